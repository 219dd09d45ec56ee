"""Counts what subscriptions will miss when the log forgets its oldest batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from godwit.broker.effects import Losing
from godwit.broker.feed import Feed


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
