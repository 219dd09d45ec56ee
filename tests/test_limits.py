"""The limits hold what the rest relies on, beyond what godwit.limits asserts itself."""

from __future__ import annotations

import ast
import inspect

import pytest

from godwit import limits
from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    CONTROL_WINDOW_BYTES,
    LARGEST_DATAGRAM_BYTES,
    LARGEST_RECORD_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_CONTROL_RECORD_BYTES,
    MAX_RECORD_BYTES,
    MAX_UNRELIABLE_BYTES,
)
from godwit.wire.packet import DATA_HEADER, FRAGMENT_HEADER, OVERHEAD_BYTES, U16, U32

NAMES = [name for name in vars(limits) if name.isupper()]


@pytest.mark.parametrize("name", NAMES)
def test_every_limit_is_a_positive_number(name: str) -> None:
    value = getattr(limits, name)
    assert isinstance(value, int | float)
    assert value > 0


def test_every_limit_is_final() -> None:
    tree = ast.parse(inspect.getsource(limits))
    final = {
        node.target.id
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and ast.unparse(node.annotation) == "Final"
    }
    assert final == set(NAMES)


@pytest.mark.parametrize("suffix", ["_S", "_BYTES"])
def test_names_carry_their_unit_last(suffix: str) -> None:
    for name in NAMES:
        if suffix in name and not name.endswith(suffix):
            assert f"{suffix}_" not in name or name == "MAX_RESETS_PER_S", name


def test_an_unreliable_record_fits_a_base_datagram_with_something_beside_it() -> None:
    assert OVERHEAD_BYTES + DATA_HEADER.size + U16.size + MAX_UNRELIABLE_BYTES < BASE_DATAGRAM_BYTES


def test_a_fragment_with_all_its_fields_leaves_room_for_data() -> None:
    assert OVERHEAD_BYTES + FRAGMENT_HEADER.size + U32.size + U16.size < BASE_DATAGRAM_BYTES // 2
    assert LARGEST_DATAGRAM_BYTES < 2**16  # a frame's length is 16 bits wide


def test_a_place_in_the_largest_record_fits_32_bits() -> None:
    assert LARGEST_RECORD_BYTES < 2**32


def test_the_longest_message_fits_a_record_with_its_batch() -> None:
    assert limits.MAX_MESSAGE_BYTES + 1024 < MAX_RECORD_BYTES


def test_the_lengths_of_a_full_batch_fit_a_record() -> None:
    assert 2 * 4 * MAX_BATCH_MESSAGES < MAX_RECORD_BYTES


def test_a_control_record_fits_its_window() -> None:
    assert MAX_CONTROL_RECORD_BYTES < CONTROL_WINDOW_BYTES
