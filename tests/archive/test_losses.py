"""Ranges that are gone, and how they are told."""

from __future__ import annotations

import json

import pytest

from godwit.archive.losses import DataLossError, ReplacedLogError, gone_below
from godwit.wire.retention_floors import BROKER_WIDE


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((), 90),  # everything
        (("home/#",), 50),
        (("noise/#",), 90),
        (("noise/x", "home/a"), 90),
    ],
)
def test_marks_of_overlapping_rules_count(filters: tuple[str, ...], expected: int) -> None:
    marks = {BROKER_WIDE: 50, "noise/#": 90}
    assert gone_below(40, marks, filters) == expected


def test_nothing_is_there_below_the_first_offset() -> None:
    assert gone_below(70, {}, ("a",)) == 70
    assert gone_below(70, {"a": 60}, ("a",)) == 70
    assert gone_below(0, {}, ()) == 0


def test_the_error_is_for_people_and_for_programs() -> None:
    error = DataLossError([(0, 10), (20, 21), (30, 31), (40, 41)], "they were deleted")
    assert str(error) == (
        "messages at the offsets 0 to 9, 20 to 20, 30 to 30 and 1 more ranges cannot be read: they were deleted. "
        "To read what is there, ask again with fail_on_data_loss set to false"
    )
    assert json.loads(error.details) == {"kind": "data_loss", "lost": [[0, 10], [20, 21], [30, 31], [40, 41]]}


def test_an_older_copy_of_the_log_is_for_people_and_for_programs() -> None:
    error = ReplacedLogError(40, 70)
    assert str(error).startswith(
        "the log has other messages from offset 40 on than when the offsets up to 70 were read"
    )
    assert json.loads(error.details) == {"kind": "replaced", "same_below": 40}
