"""Counts what subscriptions will miss when the log forgets its oldest batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from godwit.broker.effects import Losing
from godwit.broker.feed import Feed
from godwit.wire.retention_floors import lost_below


def late_feeds(absent: Iterable[Feed], lagging: Iterable[Feed], floor: int) -> dict[Feed, int]:
    """Return the feeds that have not been sent all that is below an offset, and from where on each needs it."""
    late = {feed: feed.resume_at for feed in absent if feed.resumes_at(floor) < floor}
    late.update((feed, feed.position) for feed in lagging if feed.position < floor and not feed.is_live)
    return late


def lose(
    losing: Losing, late: dict[Feed, int], marks: dict[str, int], matching: Callable[[str], Iterable[Feed]]
) -> None:
    """Count what the late feeds miss, and let them pass over it. `marks`: how far each retention rule has deleted."""
    floor = losing.floor
    if losing.pattern is not None:
        marks[losing.pattern] = max(marks.get(losing.pattern, 0), floor)
        uncounted = [feed for feed, first in late.items() if first < feed.holes_below]
        for feed in uncounted:
            del late[feed]
            feed.holes_below = lost_below(marks, feed.filters)
    count_losses(losing, late, matching)
    if losing.pattern is None:
        for feed, first in late.items():
            # Messages that retention removed before it came there were not counted: not more than these.
            feed.lost += max(min(floor, feed.holes_below) - first, 0)
            if feed.link is None:
                feed.resume_at = floor
            else:
                feed.position = floor


def count_losses(losing: Losing, needs_from: Mapping[Feed, int], matching: Callable[[str], Iterable[Feed]]) -> None:
    """Adds to `lost` of each feed how many messages it needs, by their offsets, and will not get.

    Worked out topic by topic, because there may be very many absent feeds.
    """
    spans_of: dict[str, list[tuple[int, int]]] = {}
    for offset, entry in losing.entries:
        spans_of.setdefault(entry.topic, []).append((offset, min(offset + entry.count, losing.floor)))
    for topic, spans in spans_of.items():
        count = sum([end - offset for offset, end in spans])
        for feed in matching(topic):
            first = needs_from.get(feed)
            if first is not None:
                needs_all = first <= spans[0][0]
                feed.lost += count if needs_all else sum([max(end - max(offset, first), 0) for offset, end in spans])
