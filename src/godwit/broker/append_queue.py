"""The queue of appends: everything that a turn brought goes into the log at once, with the state that it changed.

    fresh --seal, at the end of a turn--> under way --Committed--> forwarded, accepted, retained; replies are sent
                                                    \\--Failed----> refused; changed state is retried

Appends are answered in the order in which they were given out. A record that brings nothing new (a repeat with QoS 2)
waits in the queue like the others, because the repeated messages may not be stored yet; so does a reply that promises
something.

A Failed ends every append under way, because the log fails these too, and the fresh batches: so a message is never in
the log without the messages that its publisher sent before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Final

import msgspec

from godwit.broker.catalogue import Catalogue, RetainedMessage, Topic
from godwit.broker.delivery import Delivery
from godwit.broker.dirty_state import DirtySet, DirtyState
from godwit.broker.effects import Append, Committed, Effect, Failed
from godwit.broker.identities import Identities, PublisherKey
from godwit.broker.ports import Peer, Receipt
from godwit.wire.batch import HAS_EXTENSION, RETAIN, Entry, extension_of, payload_bytes
from godwit.wire.changes import Change, IdentityRow, RetainedRow
from godwit.wire.control_base import Code
from godwit.wire.extension import decode_properties
from godwit.wire.filters import is_inbox

RETRY_US: Final = 1_000_000
"""When to retry, after a failed append, the changes that no client is waiting for."""


class OnFailure(Enum):
    """What to do with batches that cannot be written."""

    REFUSED = auto()
    """The publisher is notified through its receipt."""
    FORWARDED = auto()
    """Messages of QoS 0 are delivered all the same."""
    RETRIED = auto()
    """A will: no client could send it again."""
    DROPPED = auto()
    """The caller waits for the outcome, see AppendQueue.wait."""


class Pending(msgspec.Struct, gc=False):
    """Batches of one topic and publisher on their way into the log."""

    receipt: Receipt | None
    topic: Topic
    publisher: int
    size_bytes: int
    entries: list[Entry]
    on_failure: OnFailure = OnFailure.REFUSED


class OnDurable(msgspec.Struct, frozen=True):
    """What to call when a turn's append is stored, or when it failed."""

    stored: Callable[[int], None]
    """Gets the offset of the append's first message."""
    failed: Callable[[str], None]


class _SealedAppend(msgspec.Struct):
    """The batches, callbacks and marks of one append."""

    pendings: list[Pending]
    callbacks: list[OnDurable]
    dirty: DirtySet | None = None
    identities: list[IdentityRow] = []
    """As they are written with it."""
    retaining: list[tuple[Topic, int]] = []
    """Topics whose retained message is written with it, and their `retained_version` at that time."""
    expected_offset: int = 0
    """Of its first message, if it retains anything."""
    is_failed: bool = False


@dataclass(eq=False)
class AppendQueue:
    """Input: `fresh` (append to it), the methods with callbacks, on_committed, on_failed. Output: seal."""

    _catalogue: Catalogue
    _delivery: Delivery
    _identities: Identities
    _dirty: DirtyState
    _effects: list[Effect]

    def __post_init__(self) -> None:
        self.fresh: list[Pending] = []
        """The batches of this turn, in order."""
        self.is_retaining = False
        """Whether some of them may be retained."""
        self.unreliable_bytes = 0
        """Of QoS 0 on its way into the log."""
        self.will_bytes = 0
        """Of wills on their way into the log."""
        self.callbacks: list[OnDurable] = []
        """Of this turn."""
        self.again: list[Pending] = []
        """Batches to retry."""
        self.retry_at_us = 0
        """When to retry, after a failed append, the changes that no client is waiting for."""
        self.confirmed = 0
        """Records of publishers that were stored."""
        self.refused = 0
        """Records of publishers that could not be stored."""
        self._under_way: deque[_SealedAppend] = deque()

    @property
    def depth(self) -> int:
        """The number of appends that the log has not answered."""
        return len(self._under_way)

    # -- callbacks ----------------------------------------------------------------------------------------------------

    def when_stored(self, peer: Peer, reply: Callable[[], None], refuse: Callable[[str], None] | None = None) -> None:
        """Call `reply` when everything that has changed so far is stored.

        If the append fails, `refuse` is called with the reason; without it `reply` is called all the same, because the
        change is retried until it is stored.
        """
        if not self._dirty.is_durable:
            reply()
            return
        peer.pending_replies += 1
        self.callbacks.append(OnDurable(partial(_stored, peer, reply), partial(_failed, peer, reply, refuse)))

    def wait(self, stored: Callable[[int], None], failed: Callable[[str], None]) -> None:
        """Call `stored` or `failed` when the outcome of this turn's append is known."""
        self.callbacks.append(OnDurable(stored, failed))

    # -- the end of a turn --------------------------------------------------------------------------------------------

    def _is_due(self, now_us: int) -> bool:
        return now_us >= self.retry_at_us and (self._dirty.is_marked or bool(self.again))

    def is_filled(self, now_us: int) -> bool:
        """Return whether `seal` will find something to append."""
        return bool(self.fresh or self.callbacks) or self._is_due(now_us)

    def seal(self, now_us: int) -> None:
        """Append everything that came in the turn, with all changed state."""
        if self._delivery.quiet.candidates:
            under_way = [sealed for sealed in self._under_way if not sealed.is_failed]
            self._delivery.quiet.settle(_topics([pending for sealed in under_way for pending in sealed.pendings]))
        fresh = self.fresh
        if not (fresh or self.callbacks or self._is_due(now_us)):
            return
        if self.again:
            self._retry(now_us)
        sealed = _SealedAppend(fresh[:], self.callbacks)
        fresh.clear()
        self.callbacks = []
        if len(sealed.pendings) == 1:
            entries = sealed.pendings[0].entries
        else:
            entries = [entry for pending in sealed.pendings for entry in pending.entries]
        changes = self._changes(sealed) if self._dirty.is_durable else []
        if entries or changes:
            self._under_way.append(sealed)
            self._effects.append(Append(entries, changes))
        elif self._under_way and not self._under_way[-1].is_failed:
            last = self._under_way[-1]
            last.pendings += sealed.pendings
            last.callbacks += sealed.callbacks
        else:
            self._settle(sealed, self._delivery.next_offset)

    def _retry(self, now_us: int) -> None:
        for pending in self.again:
            pending.entries = [msgspec.structs.replace(entry, received_us=now_us) for entry in pending.entries]
        self.fresh += self.again
        self.again = []
        self.is_retaining = True  # perhaps

    def _changes(self, sealed: _SealedAppend) -> list[Change]:
        dirty = self._dirty
        topics = _topics(sealed.pendings)
        dirty.published(topics)
        self._delivery.quiet.unsettle_all(topics, self._delivery.next_offset)
        changes: list[Change] = []
        if dirty.is_marked:
            changes, sealed.dirty = dirty.take(self._delivery.next_offset)
            if sealed.dirty.identities:
                sealed.identities = [change for change in changes if isinstance(change, IdentityRow)]
        if self.is_retaining:
            self.is_retaining = False
            changes += self._retained(sealed)
        return changes

    def _retained(self, sealed: _SealedAppend) -> list[Change]:
        """Return the retained messages of an append, with the offsets that they should get.

        If an offset turns out to be another one, on_committed has the message written again.
        """
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
                    message = RetainedMessage.of(entry, offset - 1, 0)
                    newest[pending.topic] = (
                        RetainedRow(entry.topic, b"") if message is None else message.row(entry.topic)
                    )
        sealed.retaining = [(topic, topic.retained_version) for topic in newest]
        return list(newest.values())

    # -- the log's answers --------------------------------------------------------------------------------------------

    def on_committed(self, event: Committed, now_us: int) -> None:
        """The oldest append is stored: forward its messages and notify the publishers."""
        sealed = self._under_way.popleft()
        first_offset = event.first_offset
        if sealed.dirty is not None and sealed.dirty.unsettled:
            # Stored was the end of the log before the append: now it is known where their messages are.
            self._dirty.moved.update(dict.fromkeys(sealed.dirty.unsettled))
        if sealed.dirty is not None and sealed.dirty.passed:
            for numbers, offset in sealed.dirty.passed:
                numbers.released.pop(offset, None)
        for row in sealed.identities:
            self._identities.on_stored((row.owner, row.publisher, row.topic), row.epoch, row.next_sequence)
        for topic, version in sealed.retaining:
            if topic.retained_version != version or sealed.expected_offset != first_offset:
                self._dirty.retained(topic)  # something came in between: write what will be true
        self._settle(sealed, first_offset)

    def _settle(self, sealed: _SealedAppend, first_offset: int) -> None:
        offset = first_offset
        delivery = self._delivery
        if delivery.quiet.candidates:
            delivery.quiet.hold(_topics(sealed.pendings))
        for pending in sealed.pendings:
            topic = pending.topic
            reached = -1
            for entry in pending.entries:
                if entry.flags & RETAIN and not self._catalogue.retain_last(topic, entry, offset + entry.count - 1):
                    self._dirty.retained(topic)
                reached = delivery.forward(topic, pending.publisher, entry, offset)
                offset += entry.count
            receipt = pending.receipt
            if receipt is not None:
                if not sealed.is_failed:
                    if reached > 0 and is_request(pending.entries[-1]):
                        reached = delivery.count_responders(topic, pending.entries[-1])
                    self.confirmed += 1
                    receipt.accepted(reached if reached >= 0 else len(delivery.routes(topic)))
            elif pending.on_failure is OnFailure.FORWARDED:
                self.unreliable_bytes -= pending.size_bytes
            elif pending.on_failure is OnFailure.RETRIED:
                self.will_bytes -= pending.size_bytes
        if offset > first_offset:
            delivery.next_offset = offset
        for callback in sealed.callbacks:
            callback.stored(first_offset)

    def on_failed(self, failed: Failed, now_us: int) -> None:
        """The oldest append could not be written, and no append that was given out since will be."""
        text = failed.text
        oldest = self._under_way.popleft()
        if oldest.is_failed:
            return  # it ended with an older one
        self.retry_at_us = now_us + RETRY_US
        ended = [oldest, *self._under_way, _SealedAppend(self.fresh[:], self.callbacks)]
        self.fresh.clear()
        self.is_retaining = False
        self.callbacks = []
        self._dirty.drop_queries()
        lost_keys: list[PublisherKey] = []
        for sealed in ended:
            if sealed.dirty is not None:
                self._dirty.on_failed(sealed.dirty)
        self._delivery.quiet.on_failed()
        if failed.is_lasting:
            lost_keys = self._give_up(oldest)
        for sealed in reversed(ended):  # the newest first: its marks prevail
            sealed.is_failed = True
            if sealed.dirty is not None:
                self._dirty.put_back(sealed.dirty)
        self._identities.rewind([*lost_keys, *self._dirty.identities])
        for sealed in ended:
            for pending in sealed.pendings:
                self._fail(pending, text)
            for callback in sealed.callbacks:
                callback.failed(text)

    def _give_up(self, sealed: _SealedAppend) -> list[PublisherKey]:
        """Retry nothing of an append that the store can never write, because it would fail all that come after it.

        Return the identities that it had.
        """
        for pending in sealed.pendings:
            if pending.on_failure is OnFailure.RETRIED:
                pending.on_failure = OnFailure.DROPPED
                self.will_bytes -= pending.size_bytes
        dirty, sealed.dirty = sealed.dirty, None
        return [] if dirty is None else list(dirty.identities)

    def _fail(self, pending: Pending, text: str) -> None:
        on_failure = pending.on_failure
        if on_failure in (OnFailure.REFUSED, OnFailure.DROPPED):
            topic = pending.topic
            topic.messages -= sum([entry.count for entry in pending.entries])
            topic.payload_bytes -= sum([payload_bytes(entry) for entry in pending.entries])
        if pending.receipt is not None:
            self.refused += 1
            pending.receipt.refused(Code.STORAGE, text)
        elif on_failure is OnFailure.RETRIED:
            self.again.append(pending)
        elif on_failure is OnFailure.FORWARDED:
            self.unreliable_bytes -= pending.size_bytes
            self.forward_live(pending.topic, pending.publisher, pending.entries)

    def forward_live(self, topic: Topic, publisher: int, entries: list[Entry]) -> int:
        """Forward messages of QoS 0 that are not logged, at once. Return how many subscriptions they are for."""
        reached = 0
        for entry in entries:
            if entry.flags & RETAIN and self._catalogue.retain_last(topic, entry, 0):
                self._dirty.retained(topic)
            reached = self._delivery.forward_live(topic, publisher, entry)
        return reached


def is_request(entry: Entry) -> bool:
    """Return whether messages are requests whose client waits for replies in its inbox."""
    if not entry.flags & HAS_EXTENSION:
        return False
    reply_topic = decode_properties(extension_of(entry)).reply_topic
    return reply_topic is not None and is_inbox(reply_topic)


def _topics(pendings: list[Pending]) -> dict[Topic, None]:
    if len(pendings) == 1:
        return {pendings[0].topic: None}
    return dict.fromkeys([pending.topic for pending in pendings])


def _stored(peer: Peer, reply: Callable[[], None], first_offset: int) -> None:
    peer.pending_replies -= 1
    reply()


def _failed(peer: Peer, reply: Callable[[], None], refuse: Callable[[str], None] | None, text: str) -> None:
    peer.pending_replies -= 1
    if refuse is None:
        reply()
    else:
        refuse(text)
