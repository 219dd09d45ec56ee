"""Marks: up to which offset retention has deleted messages, a mark for each rule.

A rule goes by its filter, the broker-wide one by BROKER_WIDE. A topic belongs to one rule, the first that matches it,
so a deletion by one rule says nothing about topics of an earlier one. Whoever writes marks (godwit.store.retention)
keeps two things, which make the question below safe to answer without knowing the order of the rules:

  - a deletion raises the mark of its rule, and those of later rules that it covers, which it deletes for;
  - a rule that is new begins with the highest mark of those that cover it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from godwit.wire.filters import covers, overlaps

BROKER_WIDE: Final = ""
"""The key of the broker-wide rule's mark: no filter is empty."""


def lost_below(marks: Mapping[str, int], filters: Iterable[str]) -> int:
    """Below this offset, messages that match one of the filters may have been deleted; 0 if none was.

    A rule that covers a filter answers for it, in the place of any wider rule.
    """
    return max((_lost_below(marks, filter) for filter in filters), default=0)


def rule_covers(outer: str, inner: str) -> bool:
    """Whether all topics of a rule, or of a filter, match an other rule, both as keys of marks."""
    return outer == BROKER_WIDE or (inner != BROKER_WIDE and covers(outer, inner))


def _lost_below(marks: Mapping[str, int], filter: str) -> int:
    answering = [key for key in marks if rule_covers(key, filter)]
    return max(
        (
            floor
            for key, floor in marks.items()
            if (key == BROKER_WIDE or overlaps(key, filter))
            and not any(rule_covers(key, other) and not rule_covers(other, key) for other in answering)
        ),
        default=0,
    )
