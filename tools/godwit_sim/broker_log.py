"""The checker of the log: what was confirmed is in it, QoS 2 once, each lane in order, and offsets count messages.

It is told of every append, so it knows the whole log, also what a bounded store has since dropped: the truth that the
checkers of subscriptions compare with.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from godwit.errors import DecodeError
from godwit.wire.batch import QOS_SHIFT, RETAIN, Entry, decode_entry
from godwit_sim.broker_ledger import Lane, Ledger, Publication, fits_any
from godwit_sim.checkers import ViolationError


@dataclass(slots=True)
class History:
    """The messages of one log, by offset less `begin`. Another history begins when an older copy is put back."""

    begin: int
    messages: list[Publication] = field(default_factory=list)
    received_us: list[int] = field(default_factory=list)
    """Tells a message from another with the same offset, even if both are the same publication."""

    def has(self, offset: int, publication: Publication, received_us: int) -> bool:
        """Return whether the message is in this history at that offset."""
        index = offset - self.begin
        return (
            0 <= index < len(self.messages)
            and self.messages[index] is publication
            and self.received_us[index] == received_us
        )

    def same_below(self, other: History, end: int) -> int:
        """Return the first offset below `end` where another history has another message, or none; else `end`."""
        if self is other:
            return end
        ours, theirs = self.received_us[: end - self.begin], other.received_us[: end - self.begin]
        if ours == theirs:
            return end
        same = takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
        return self.begin + sum(1 for _ in same)


@dataclass(slots=True)
class LogBackup:
    """What a log had when it was copied."""

    history: History
    newest: dict[Lane, int]


class LogChecker:
    """Everything that was ever appended, message by message."""

    NAME = "log"

    def __init__(self, ledger: Ledger, next_offset: int = 0, *, logs_qos_0: bool = False) -> None:
        self.begin = next_offset
        self.gone_below = next_offset
        """What the store has dropped."""
        self.damaged: set[int] = set()
        """What the store cannot read any more."""
        self.history = History(next_offset)
        self.former: list[History] = []
        """Those that were replaced by an older copy."""
        self.lost: set[Publication] = set()
        """What only they have, or had."""
        self._logs_qos_0 = logs_qos_0
        self._ledger = ledger
        self._newest: dict[Lane, int] = {}

    @property
    def messages(self) -> list[Publication]:
        """By offset, less `begin`."""
        return self.history.messages

    @property
    def _received_us(self) -> list[int]:
        return self.history.received_us

    def copy(self) -> LogBackup:
        """The log is copied as it is now."""
        history = History(self.begin, self.messages[:], self._received_us[:])
        return LogBackup(history, dict(self._newest))

    def put_back(self, backup: LogBackup) -> None:
        """The log is replaced by a copy of itself: what came since is not in it."""
        for history in (self.history, backup.history):
            for publication in history.messages:
                publication.offsets.clear()
        self.lost.update(self.messages)
        self.former.append(self.history)
        kept = backup.history
        self.history = History(self.begin, kept.messages[:], kept.received_us[:])
        for offset, publication in enumerate(self.messages, self.begin):
            publication.offsets.append(offset)
        self._newest = dict(backup.newest)

    @property
    def next_offset(self) -> int:
        return self.begin + len(self.messages)

    def is_gone(self, offset: int) -> bool:
        """Whether nobody can get it any more."""
        return offset < self.gone_below or offset in self.damaged

    def at(self, offset: int) -> Publication | None:
        """The message with this offset."""
        index = offset - self.begin
        return self.messages[index] if 0 <= index < len(self.messages) else None

    def since(self, time_us: int) -> int:
        """The first offset that was received at this time or later."""
        return self.begin + bisect_left(self._received_us, time_us)

    def matching(self, filters: Sequence[str], first: int, end: int) -> list[int]:
        """The offsets from `first` up to, but not including, `end` whose topics match one of the filters."""
        first = max(first, self.begin)
        return [
            offset
            for offset, one in enumerate(self.messages[first - self.begin : max(0, end - self.begin)], first)
            if fits_any(filters, one.topic)
        ]

    def appended(self, first_offset: int, entries: Sequence[Entry]) -> list[Publication]:
        """The store has taken these. Gives those of their messages that a topic retains from now on."""
        if first_offset != self.next_offset:
            raise ViolationError(self.NAME, f"an append got offset {first_offset}, the next one was {self.next_offset}")
        return [found for entry in entries for found in self._take(entry)]

    def _take(self, entry: Entry) -> list[Publication]:
        if self._received_us and entry.received_us < self._received_us[-1]:
            raise ViolationError(self.NAME, f"received at {entry.received_us}, after one at {self._received_us[-1]}")
        found = []
        for offset, (payload, published_us) in enumerate(self._contents(entry), self.next_offset):
            where = f"offset {offset}"
            qos = entry.flags >> QOS_SHIFT
            if entry.topic.startswith("$jobs/"):
                self._ledger.announce(entry.topic, payload, published_us)
            publication = self._ledger.recognise(
                self.NAME, where, entry.topic, payload, published_us, qos, entry.publisher
            )
            self._check(publication, entry, where)
            publication.offsets.append(offset)
            self.messages.append(publication)
            self._received_us.append(entry.received_us)
            found.append(publication)
        return found[-1:] if entry.flags & RETAIN else []

    def _contents(self, entry: Entry) -> list[tuple[bytes, int]]:
        try:
            batch = decode_entry(entry)
        except DecodeError as error:
            raise ViolationError(self.NAME, f"a batch on {entry.topic!r} that cannot be read: {error}") from None
        if len(batch.payloads) != entry.count:
            raise ViolationError(self.NAME, f"a batch of {len(batch.payloads)} messages counted as {entry.count}")
        deltas_us = batch.deltas_us or (0,) * entry.count
        times_us = [entry.published_us + delta_us for delta_us in deltas_us]
        return list(zip(batch.payloads, times_us, strict=True))

    def _check(self, publication: Publication, entry: Entry, where: str) -> None:
        if publication.qos == 0 and not self._logs_qos_0:
            raise ViolationError(self.NAME, f"{where}: {publication} is in the log")
        if publication.topic.startswith("$sys/"):
            raise ViolationError(self.NAME, f"{where}: {publication} is in the log")
        if bool(entry.flags & RETAIN) is not publication.retain:
            raise ViolationError(self.NAME, f"{where}: {publication} was published with retain={publication.retain}")
        if publication.is_will:
            return  # one for each time that its client is lost: the checker of wills counts
        if publication.offsets:
            if publication.qos == 2:
                raise ViolationError(self.NAME, f"{where}: {publication} is there at {publication.offsets[0]} already")
            return  # QoS 1 sent again
        newest = self._newest.get(publication.lane, -1)
        if publication.place < newest:
            raise ViolationError(self.NAME, f"{where}: {publication} stands behind message {newest}: out of order")
        self._newest[publication.lane] = publication.place

    def confirmed(self, publication: Publication, now: float) -> None:
        """The library told its application that this one is safe."""
        if publication.qos and not publication.offsets and publication not in self.lost:
            raise ViolationError(self.NAME, f"{publication} was confirmed and is not in the log")
        publication.confirmed_s = publication.confirmed_s if publication.confirmed_s is not None else now
