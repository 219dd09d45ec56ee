"""Retention floors: for each retention rule, the offset below which it has deleted messages.

A rule is identified by its filter, the broker-wide rule by BROKER_WIDE. A topic belongs to the first rule that matches
it, so a deletion by one rule does not affect topics of an earlier rule. The writer of the floors
(godwit.store.retention) guarantees two things, which make `lost_below` correct without knowing the order of the rules:

  - a deletion raises the floor of its rule, and those of later rules that it covers, because it deletes for them too;
  - a new rule starts with the highest floor of the rules that cover it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from godwit.wire.filters import covers, overlaps

BROKER_WIDE: Final = ""
"""The key of the broker-wide rule; a filter is never empty."""


def lost_below(floors: Mapping[str, int], filters: Iterable[str]) -> int:
    """Return the offset below which messages that match one of the filters may have been deleted; 0 if none were.

    For each filter the narrowest rule that covers it decides; wider rules are ignored.
    """
    return max((_lost_below(floors, filter) for filter in filters), default=0)


def rule_covers(outer: str, inner: str) -> bool:
    """Return whether all topics of a rule or filter match another rule. Both are keys of floors."""
    return outer == BROKER_WIDE or (inner != BROKER_WIDE and covers(outer, inner))


def _lost_below(floors: Mapping[str, int], filter: str) -> int:
    covering = [key for key in floors if rule_covers(key, filter)]
    return max(
        (
            floor
            for key, floor in floors.items()
            if (key == BROKER_WIDE or overlaps(key, filter))
            and not any(rule_covers(key, other) and not rule_covers(other, key) for other in covering)
        ),
        default=0,
    )
