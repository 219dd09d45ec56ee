"""Names, and the channels of a link."""

from __future__ import annotations

import pytest
from tests.broker.world import World

from godwit.broker.session import Link, check_name
from godwit.errors import UsageError
from godwit.limits import MAX_CLIENT_NAME_BYTES


@pytest.mark.parametrize("name", ["a", "Sensor 1", "\u00fc", "a/b", "a$", "n" * MAX_CLIENT_NAME_BYTES])
def test_names_that_a_client_may_have(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "n" * (MAX_CLIENT_NAME_BYTES + 1), "a\x00", "a\x1f", "\x7f", "$sys", "\ud800"])
def test_names_that_it_may_not(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


def test_a_link_gives_out_channels_one_by_one_and_in_pairs() -> None:
    link = Link(World().peer(), "192.0.2.1:1", 0, 1000)  # type: ignore[arg-type]
    assert link.take_channels() == (1, 2)
    assert link.take_channel() == 3
    assert link.take_channels() == (4, 5)
