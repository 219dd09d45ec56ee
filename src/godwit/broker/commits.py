"""The line of appends: what a turn brought goes into the log with what it changed, all or none, and is answered then.

    fresh --seal, the end of a turn--> under way --Committed--> forwarded, confirmed, retained; replies are sent
                                                 \\--Failed----> refused; what changed is tried again

Appends are answered in the order in which they were given out. A record that brings nothing new (QoS 2, sent again)
waits in line like the others, because what it repeats may not be safe yet; so does a reply that promises something.

A Failed ends everything that is under way, because the log fails it too, and what is fresh: so what a publisher sent
later is never in the log without what it sent before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import msgspec

from godwit.broker.catalogue import Catalogue, Topic
from godwit.broker.delivery import Delivery
from godwit.broker.effects import Append, Confirm, Consume, Effect, Failed, Send
from godwit.broker.identities import Identities, Key
from godwit.broker.inlet import Inlet
from godwit.broker.journal import Journal, Marks
from godwit.broker.pace import Pace
from godwit.broker.retained import keep, retain
from godwit.broker.session import Link
from godwit.broker.trim import payload_bytes
from godwit.wire.batch import RETAIN, Entry
from godwit.wire.changes import Change, IdentityRow, RetainedRow
from godwit.wire.control import ControlMessage, Error, encode_control
from godwit.wire.control_base import Code

RETRY_US: Final = 1_000_000
"""After a failure, what nobody waits for is tried again this much later."""
MAX_UNRELIABLE_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Of QoS 0, on its way into the log: nobody holds it back, so beyond this it is dropped."""
MAX_WILLS_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Of last wills, on their way into the log: they wait while the disk takes nothing; beyond this they are dropped."""


class Fate(Enum):
    """What becomes of batches that cannot be written."""

    REFUSED = auto()
    """A publisher's: it is told."""
    LIVE = auto()
    """Of QoS 0: delivered all the same."""
    AGAIN = auto()
    """A last will: nobody else could send it again."""
    DROPPED = auto()
    """Somebody waits for the answer, and hears of it."""


class Pending(msgspec.Struct, gc=False):
    """A record whose batches are on their way into the log; without an inlet it is nobody's or the broker's own."""

    inlet: Inlet | None
    topic: Topic
    publisher: int
    record: int
    body_bytes: int
    entries: list[Entry]
    fate: Fate = Fate.REFUSED


class Promise(msgspec.Struct, frozen=True):
    """What is said when a turn's append is safe, and when it cannot be."""

    on_safe: Callable[[int], None]
    """Gets the offset of the append's first message."""
    on_failed: Callable[[str], None]


class _Sealed(msgspec.Struct):
    """What one append stands for."""

    pendings: list[Pending]
    promises: list[Promise]
    marks: Marks | None = None
    identities: list[IdentityRow] = []
    """As they are written with it."""
    retaining: list[tuple[Topic, int]] = []
    """Topics whose retained message is written with it, and how often it had been set or cleared by then."""
    expected_offset: int = 0
    """Of its first message, if it retains anything."""
    is_failed: bool = False


class Commits:
    """Feed: fresh (append to it), say, answer, wait, on_committed, on_failed. Drain: seal, at the end of a turn."""

    def __init__(
        self,
        catalogue: Catalogue,
        delivery: Delivery,
        identities: Identities,
        journal: Journal,
        pace: Pace,
        effects: list[Effect],
    ) -> None:
        self._catalogue = catalogue
        self._delivery = delivery
        self._identities = identities
        self._journal = journal
        self._pace = pace
        self._effects = effects
        self.fresh: list[Pending] = []
        """What came in this turn, in order."""
        self.is_retaining = False
        """Whether something of it is to be retained."""
        self.unreliable_bytes = 0
        """Of QoS 0 that is on its way into the log."""
        self.will_bytes = 0
        """Of last wills that are."""
        self._promises: list[Promise] = []
        self._again: list[Pending] = []
        self.retry_at_us = 0
        """After a failure: when that is tried again which nobody waits for."""
        self._under_way: deque[_Sealed] = deque()

    # -- replies that wait --------------------------------------------------------------------------------------------

    def say(self, link: Link, message: ControlMessage) -> None:
        """When what changed so far is safe. If it cannot be, all the same: it is tried again until it is."""
        self._reply(link, message, message)

    def answer(self, link: Link, request: int, message: ControlMessage) -> None:
        """When what changed so far is safe. If it cannot be, the answer is an error."""
        self._reply(link, message, request)

    def _reply(self, link: Link, message: ControlMessage, otherwise: ControlMessage | int) -> None:
        if not self._journal.keeps:
            self._send(link, message)
            return

        def on_safe(first_offset: int) -> None:
            link.awaited -= 1
            self._send(link, message)

        def on_failed(text: str) -> None:
            link.awaited -= 1
            if isinstance(otherwise, int):
                self._send(link, Error(code=Code.STORAGE, text=text, request=otherwise))
            else:
                self._send(link, otherwise)

        link.awaited += 1
        self.wait(on_safe, on_failed)

    def wait(self, on_safe: Callable[[int], None], on_failed: Callable[[str], None]) -> None:
        """For all that came or changed so far."""
        self._promises.append(Promise(on_safe, on_failed))

    def _send(self, link: Link, message: ControlMessage) -> None:
        if link.is_open:
            self._effects.append(Send(link.connection, 0, encode_control(message)))

    # -- the end of a turn --------------------------------------------------------------------------------------------

    @property
    def due_us(self) -> int | None:
        """When there is something to seal though nothing happens."""
        return self.retry_at_us if self._again or self._journal.is_marked else None

    def _is_due(self, now_us: int) -> bool:
        return now_us >= self.retry_at_us and (self._journal.is_marked or bool(self._again))

    def is_filled(self, now_us: int) -> bool:
        """Whether seal will find something to append."""
        return bool(self.fresh or self._promises) or self._is_due(now_us)

    def seal(self, now_us: int) -> None:
        """What came in the turn is appended, all at once, with what changed."""
        if self._delivery.quiet.candidates:
            under_way = [sealed for sealed in self._under_way if not sealed.is_failed]
            self._delivery.quiet.settle(_topics([pending for sealed in under_way for pending in sealed.pendings]))
        fresh = self.fresh
        promises = self._promises
        if not (fresh or promises or self._is_due(now_us)):
            return
        if self._again:
            self._try_again(now_us)
        sealed = _Sealed(fresh[:], promises)
        fresh.clear()
        self._promises = []
        entries = [entry for pending in sealed.pendings for entry in pending.entries]
        changes = self._changes(sealed) if self._journal.keeps else []
        if entries or changes:
            self._under_way.append(sealed)
            self._effects.append(Append(entries, changes))
        elif self._under_way and not self._under_way[-1].is_failed:
            last = self._under_way[-1]
            last.pendings += sealed.pendings
            last.promises += sealed.promises
        else:
            self._settle(sealed, self._delivery.next_offset, now_us)

    def _try_again(self, now_us: int) -> None:
        for pending in self._again:
            pending.entries = [msgspec.structs.replace(entry, received_us=now_us) for entry in pending.entries]
        self.fresh += self._again
        self._again = []
        self.is_retaining = True  # perhaps

    def _changes(self, sealed: _Sealed) -> list[Change]:
        journal = self._journal
        topics = _topics(sealed.pendings)
        journal.published(topics)
        self._delivery.quiet.unsettle_all(topics, self._delivery.next_offset)
        changes: list[Change] = []
        if journal.is_marked:
            changes, sealed.marks = journal.take(self._delivery.next_offset)
            if sealed.marks.identities:
                sealed.identities = [change for change in changes if isinstance(change, IdentityRow)]
        if self.is_retaining:
            self.is_retaining = False
            changes += self._retained(sealed)
        return changes

    def _retained(self, sealed: _Sealed) -> list[Change]:
        """They are written with their batches, so their offsets must be foretold. on_committed mends a wrong one."""
        offset = sealed.expected_offset = self._delivery.next_offset + sum(
            entry.count
            for one in self._under_way
            if not one.is_failed
            for pending in one.pendings
            for entry in pending.entries
        )
        newest: dict[Topic, RetainedRow] = {}
        for pending in sealed.pendings:
            for entry in pending.entries:
                offset += entry.count
                if entry.flags & RETAIN:
                    newest[pending.topic] = _retained(entry, offset - 1)
        sealed.retaining = [(topic, topic.keeps) for topic in newest]
        return list(newest.values())

    # -- the log's answers --------------------------------------------------------------------------------------------

    def on_committed(self, first_offset: int, now_us: int) -> None:
        """The oldest append is safe: forward and confirm."""
        sealed = self._under_way.popleft()
        if sealed.marks is not None and sealed.marks.unsettled:
            # Stored was the end of the log before the append: now it is known where their messages are.
            self._journal.moved.update(dict.fromkeys(sealed.marks.unsettled))
        for kept in sealed.identities:
            self._identities.on_safe(_key(kept), kept.epoch, kept.next_sequence)
        for topic, keeps in sealed.retaining:
            if topic.keeps != keeps or sealed.expected_offset != first_offset:
                self._journal.retained(topic)  # something came in between: what will be true is written again
        self._settle(sealed, first_offset, now_us)

    def _settle(self, sealed: _Sealed, first_offset: int, now_us: int) -> None:
        offset = first_offset
        delivery = self._delivery
        is_failed = sealed.is_failed
        if delivery.quiet.candidates:
            delivery.quiet.hold(_topics(sealed.pendings))
        for pending in sealed.pendings:
            topic = pending.topic
            reached = -1
            for entry in pending.entries:
                if entry.flags & RETAIN and not retain(self._catalogue, topic, entry, offset + entry.count - 1):
                    self._journal.retained(topic)
                reached = delivery.forward(topic, pending.publisher, entry, offset)
                offset += entry.count
            inlet = pending.inlet
            if inlet is None:
                if pending.fate is Fate.LIVE:
                    self.unreliable_bytes -= pending.body_bytes
                elif pending.fate is Fate.AGAIN:
                    self.will_bytes -= pending.body_bytes
            elif inlet.link.is_open and not is_failed:
                if reached < 0:
                    reached = len(delivery.routes(topic))
                self._confirm(inlet, pending, reached, now_us)
        if offset > first_offset:
            delivery.on_committed(offset)
        for promise in sealed.promises:
            promise.on_safe(first_offset)

    def _confirm(self, inlet: Inlet, pending: Pending, reached: int, now_us: int) -> None:
        """Confirms a record, and gives its credit back."""
        link = inlet.link
        body_bytes = pending.body_bytes
        if link.bucket is not None and link.bucket.due_us > now_us:
            self._pace.owe(link, inlet.channel, body_bytes)
            body_bytes = -1
        self._effects.append(Confirm(link.connection, inlet.channel, pending.record, reached, body_bytes))

    def on_failed(self, failed: Failed, now_us: int) -> None:
        """The oldest append could not be written, and nothing that was given out since will be."""
        text = failed.text
        oldest = self._under_way.popleft()
        if oldest.is_failed:
            return  # it ended with an older one
        self.retry_at_us = now_us + RETRY_US
        ended = [oldest, *self._under_way, _Sealed(self.fresh[:], self._promises)]
        self.fresh.clear()
        self.is_retaining = False
        self._promises = []
        self._journal.drop_queries()
        unsafe: list[Key] = []
        for sealed in ended:
            if sealed.marks is not None:
                self._journal.on_failed(sealed.marks)
        self._delivery.quiet.on_failed()
        if failed.is_lasting:
            unsafe = self._give_up(oldest)
        for sealed in reversed(ended):  # the newest first: its marks know better
            sealed.is_failed = True
            if sealed.marks is not None:
                self._journal.put_back(sealed.marks)
        self._identities.rewind([*unsafe, *self._journal.identities])
        for sealed in ended:
            for pending in sealed.pendings:
                self._fail(pending, text)
            for promise in sealed.promises:
                promise.on_failed(text)

    def _give_up(self, sealed: _Sealed) -> list[Key]:
        """What the store can never take would fail all that comes after it: it is not tried again. Gives the identities
        that it had."""
        for pending in sealed.pendings:
            if pending.fate is Fate.AGAIN:
                pending.fate = Fate.DROPPED
                self.will_bytes -= pending.body_bytes
        marks, sealed.marks = sealed.marks, None
        return [] if marks is None else list(marks.identities)

    def _fail(self, pending: Pending, text: str) -> None:
        inlet = pending.inlet
        if pending.fate in (Fate.REFUSED, Fate.DROPPED):
            topic = pending.topic
            topic.messages -= sum([entry.count for entry in pending.entries])
            topic.payload_bytes -= sum([payload_bytes(entry) for entry in pending.entries])
        if inlet is not None:
            if inlet.link.is_open:
                self._effects.append(Consume(inlet.link.connection, inlet.channel, pending.body_bytes))
                inlet.refuse(Code.STORAGE, text, self._effects)
        elif pending.fate is Fate.AGAIN:
            self._again.append(pending)
        elif pending.fate is Fate.LIVE:
            self.unreliable_bytes -= pending.body_bytes
            self.forward_live(pending.topic, pending.publisher, pending.entries)

    def forward_live(self, topic: Topic, publisher: int, entries: list[Entry]) -> None:
        """QoS 0 that goes into no log: at once, to those who are there."""
        for entry in entries:
            if entry.flags & RETAIN and retain(self._catalogue, topic, entry, 0):
                self._journal.retained(topic)
            self._delivery.forward_live(topic, publisher, entry)


def _topics(pendings: list[Pending]) -> dict[Topic, None]:
    return dict.fromkeys([pending.topic for pending in pendings])


def _key(kept: IdentityRow) -> Key:
    return kept.owner, kept.publisher, kept.topic


def _retained(entry: Entry, offset: int) -> RetainedRow:
    kept = keep(entry, offset, 0)
    if kept is None:
        return RetainedRow(entry.topic, b"")
    return RetainedRow(
        entry.topic, kept.payload, kept.publisher, kept.published_us, kept.received_us, kept.qos, kept.offset
    )
