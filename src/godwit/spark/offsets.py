"""The position of a query in one or more logs, and the arithmetic of limits and partitions.

A position is `{log id: offset}` with the first offset that is not read yet. For some logs it also has:

GAPS      the offset below which retention had deleted messages when the query began, which is not a loss
BEGINS    the first offset of a log that was added with this batch, so that the batch is the same whenever it is read
EPOCHS    the newest epochs of the messages that were read, to detect that an older copy of the log was restored
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeAlias

GAPS: Final = "gaps"
BEGINS: Final = "begins"
EPOCHS: Final = "epochs"
"""These keys are not valid log ids, which have 32 hexadecimal digits."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
LOG_ID_LETTERS: Final = 32
MIN_PARTITION_ROWS: Final = 20_000
"""A smaller partition is not worth a task."""

MAX_EPOCHS: Final = 16
"""Of one log in a position, and in a request to an archive."""

Offsets: TypeAlias = dict[str, int]
Epochs: TypeAlias = list[tuple[str, int]]
"""Ids with their first offsets, in order and complete. See godwit.wire.epochs, which executors do not have."""


@dataclass(frozen=True)
class Position:
    """The position of a query in all logs that it reads."""

    offsets: Offsets
    gaps: Offsets
    begins: Offsets
    epochs: dict[str, Epochs] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the form that Spark stores in its checkpoint."""
        plain: dict[str, Any] = dict(self.offsets)
        if self.gaps:
            plain[GAPS] = dict(self.gaps)
        if self.begins:
            plain[BEGINS] = dict(self.begins)
        if self.epochs:
            plain[EPOCHS] = {log: [list(epoch) for epoch in epochs] for log, epochs in self.epochs.items()}
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Position:
        """Parse the form that Spark stores. Raise ValueError if it is invalid."""
        offsets = {log: at for log, at in plain.items() if log not in (GAPS, BEGINS, EPOCHS)}
        epochs = {log: to_epochs(found) for log, found in plain.get(EPOCHS, {}).items()}
        return cls(
            check_offsets(offsets), check_offsets(plain.get(GAPS, {})), check_offsets(plain.get(BEGINS, {})), epochs
        )


@dataclass(frozen=True)
class Range:
    """A range of offsets of a log: from `start`, before `end`."""

    log: str
    start: int
    end: int

    @property
    def rows(self) -> int:
        """The number of offsets."""
        return self.end - self.start


def parse(name: str, text: str) -> str | Offsets:
    """Parse the option startingOffsets or endingOffsets: a word, or JSON with an offset for each log.

    Raise ValueError, with the name of the option, if it is invalid.
    """
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError(
            f"{name} is {text!r}: give {EARLIEST!r}, {LATEST!r}, or JSON with an offset for each log id, "
            'as in {"0f3c...": 1200}'
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {text!r}: the JSON must be an object with an offset for each log id")
    try:
        return check_offsets(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def check_offsets(value: Mapping[str, Any]) -> Offsets:
    """Return a copy of these offsets. Raise ValueError if a log id or an offset is invalid."""
    for log, at in value.items():
        if len(log) != LOG_ID_LETTERS or not set(log) <= set("0123456789abcdef"):
            raise ValueError(
                f"{log!r} is not a log id, which has {LOG_ID_LETTERS} hexadecimal digits: see `godwit log info`"
            )
        if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at < 2**63:
            raise ValueError(f"{at!r} is not a valid offset of log {log}: give a whole number that is not negative")
    return dict(value)


def to_epochs(found: Any) -> Epochs:
    """Parse epochs from JSON. Raise ValueError if they are invalid."""
    try:
        return [(str(id_), int(first_offset)) for id_, first_offset in found]
    except (TypeError, ValueError):
        raise ValueError(f"{found!r} is not a list of epochs, each an id and an offset") from None


def epochs_below(epochs: Epochs, at: int) -> Epochs:
    """Return the newest epochs of the messages below an offset, which a position stores with it."""
    return [epoch for epoch in epochs if epoch[1] < at][-MAX_EPOCHS:]


def same_below(known: Epochs, epochs: Epochs, next_offset: int) -> int:
    """Return the offset below which a log has the messages that a query with these epochs has read; 0 if unknown."""
    indices = {epoch: index for index, epoch in enumerate(epochs)}
    for index in reversed(range(len(known))):
        found = indices.get(known[index])
        if found is not None:
            end = epochs[found + 1][1] if found + 1 < len(epochs) else next_offset
            return min(end, known[index + 1][1]) if index + 1 < len(known) else end
    return 0


def share_limit(limit: int, lags: Mapping[str, int]) -> Offsets:
    """Share a limit of rows among logs in proportion to their lags, with at least one row each if possible."""
    behind = {log: lag for log, lag in lags.items() if lag > 0}
    total = sum(behind.values())
    if total <= limit:
        return behind
    if limit < len(behind):
        return dict.fromkeys(sorted(behind, key=lambda log: (-behind[log], log))[:limit], 1)
    # One row for each log, the rest in proportion; rows that remain after the division go to the largest remainders.
    spare, wanted = limit - len(behind), total - len(behind)
    found = {log: 1 + spare * (lag - 1) // wanted for log, lag in behind.items()}
    order = sorted(behind, key=lambda log: (-(spare * (behind[log] - 1) % wanted), log))
    for log in order[: limit - sum(found.values())]:
        found[log] += 1
    return found


def split(ranges: Sequence[Range], parts: int) -> list[Range]:
    """Split ranges into about `parts` ranges of similar length."""
    total = sum(one.rows for one in ranges)
    found: list[Range] = []
    for one in ranges:
        if one.rows <= 0:
            continue
        count = min(max(1, round(parts * one.rows / total)), one.rows)
        edges = [one.start + one.rows * index // count for index in range(count + 1)]
        found += [Range(one.log, begin, end) for begin, end in pairwise(edges)]
    return found


def partition_count(rows: int, parallelism: int, min_partitions: int | None) -> int:
    """Return the number of partitions for `rows` rows."""
    if min_partitions is not None:
        return min_partitions
    return max(1, min(parallelism, -(-rows // MIN_PARTITION_ROWS)))
