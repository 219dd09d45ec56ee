"""The digest and the lines of a trace."""

from __future__ import annotations

import math

from godwit_sim.trace import Trace


def test_equal_notes_give_equal_digests() -> None:
    one, other = Trace(), Trace()
    for trace in (one, other):
        trace.note(0.1, "a")
        trace.note(0.2, "b")
    assert one.hexdigest() == other.hexdigest()
    assert one.notes == 2


def test_every_difference_shows() -> None:
    digests = set()
    for now, what in ((0.1, "a"), (0.1, "b"), (math.nextafter(0.1, 1.0), "a"), (0.2, "a")):
        trace = Trace()
        trace.note(now, what)
        digests.add(trace.hexdigest())
    assert len(digests) == 4  # the last bit of the time counts


def test_reading_changes_nothing() -> None:
    lines: list[str] = []
    read, unread = Trace(lines.append), Trace()
    for trace in (read, unread):
        trace.note(1.5, "something")
        trace.comment(1.5, "an explanation")
    assert read.readable
    assert not unread.readable
    assert read.hexdigest() == unread.hexdigest()
    assert [line.split() for line in lines] == [["1.500000", "something"], ["1.500000", "an", "explanation"]]
