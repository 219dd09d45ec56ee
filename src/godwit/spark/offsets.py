"""Where a query stands, and what it reads next: arithmetic with offsets of one or more logs, and nothing else.

A position is `{log id: offset}`, the first offset that is not read yet. Beside them stand, for some logs, GAPS: below
which offset retention had deleted something when the query began, which is no loss for it; BEGINS: where the query
began with a log that joined with this very batch, so that the batch is the same whenever it is read; and EPOCHS: the
newest epochs of what was read, by which an older copy of the log is recognised that was put back.
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
"""No log has such an id: those are 32 hexadecimal digits."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
LOG_ID_LETTERS: Final = 32
MIN_PARTITION_ROWS: Final = 20_000
"""A smaller share is not worth a task of its own."""

MAX_EPOCHS: Final = 16
"""Of one log in a position, and in a request to an archive."""

Offsets: TypeAlias = dict[str, int]
Epochs: TypeAlias = list[tuple[str, int]]
"""Ids with their first offsets, in order and without a gap. See godwit.wire.epochs, which is not here on executors."""


@dataclass(frozen=True)
class Position:
    """Of a query in all logs that it reads."""

    offsets: Offsets
    gaps: Offsets
    begins: Offsets
    epochs: dict[str, Epochs] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As Spark keeps it in its checkpoint."""
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
        """Raises ValueError when it is none of ours."""
        offsets = {log: at for log, at in plain.items() if log not in (GAPS, BEGINS, EPOCHS)}
        epochs = {log: to_epochs(found) for log, found in plain.get(EPOCHS, {}).items()}
        return cls(checked(offsets), checked(plain.get(GAPS, {})), checked(plain.get(BEGINS, {})), epochs)


@dataclass(frozen=True)
class Range:
    """A piece of a log: from `start` on and below `end`."""

    log: str
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


def parse(name: str, text: str) -> str | Offsets:
    """What startingOffsets and endingOffsets say: a word, or JSON with an offset for each log. ValueError otherwise."""
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
        return checked(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def checked(value: Mapping[str, Any]) -> Offsets:
    """Log ids with offsets that can be; ValueError otherwise."""
    for log, at in value.items():
        if len(log) != LOG_ID_LETTERS or not set(log) <= set("0123456789abcdef"):
            raise ValueError(
                f"{log!r} is no log id: those are {LOG_ID_LETTERS} hexadecimal digits, see `godwit log info`"
            )
        if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at < 2**63:
            raise ValueError(f"{at!r} is no offset of log {log}: give a whole number that is not negative")
    return dict(value)


def to_epochs(found: Any) -> Epochs:
    """Return epochs that came as JSON. Raise ValueError if they are not any."""
    try:
        return [(str(id_), int(first_offset)) for id_, first_offset in found]
    except (TypeError, ValueError):
        raise ValueError(f"{found!r} is not a list of epochs, each an id and an offset") from None


def epochs_below(epochs: Epochs, at: int) -> Epochs:
    """Return the newest epochs of what stands below an offset: what to store with it."""
    return [epoch for epoch in epochs if epoch[1] < at][-MAX_EPOCHS:]


def same_below(known: Epochs, epochs: Epochs, next_offset: int) -> int:
    """Return the offset below which a log has what a query with the known epochs read there; 0 if that is unknown."""
    ours = {epoch: place for place, epoch in enumerate(epochs)}
    for place in reversed(range(len(known))):
        found = ours.get(known[place])
        if found is not None:
            end = epochs[found + 1][1] if found + 1 < len(epochs) else next_offset
            return min(end, known[place + 1][1]) if place + 1 < len(known) else end
    return 0


def shares(limit: int, lags: Mapping[str, int]) -> Offsets:
    """How much of a limit each log gets: in proportion to its lag, in whole rows; none starves."""
    behind = {log: lag for log, lag in lags.items() if lag > 0}
    total = sum(behind.values())
    if total <= limit:
        return behind
    if limit < len(behind):
        return dict.fromkeys(sorted(behind, key=lambda log: (-behind[log], log))[:limit], 1)
    # One row for each, so that no small log starves; the rest in proportion, and what does not divide to the largest
    # remainders.
    spare, wanted = limit - len(behind), total - len(behind)
    found = {log: 1 + spare * (lag - 1) // wanted for log, lag in behind.items()}
    order = sorted(behind, key=lambda log: (-(spare * (behind[log] - 1) % wanted), log))
    for log in order[: limit - sum(found.values())]:
        found[log] += 1
    return found


def cut(ranges: Sequence[Range], parts: int) -> list[Range]:
    """The same rows in about so many pieces, all of about the same length; no piece spans two logs."""
    total = sum(piece.rows for piece in ranges)
    found: list[Range] = []
    for piece in ranges:
        if piece.rows <= 0:
            continue
        count = min(max(1, round(parts * piece.rows / total)), piece.rows)
        edges = [piece.start + piece.rows * index // count for index in range(count + 1)]
        found += [Range(piece.log, begin, end) for begin, end in pairwise(edges)]
    return found


def parts_for(rows: int, parallelism: int, at_least: int | None) -> int:
    """Into how many pieces so many rows are cut."""
    if at_least is not None:
        return at_least
    return max(1, min(parallelism, -(-rows // MIN_PARTITION_ROWS)))
