"""A subscription: holds records until the application takes them, drops what it has had, says what was missed.

A record counts as delivered when the application asks for the next one. Only then is it confirmed and its credit given
back, so the broker never has more under way than the application can bear.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from godwit.client.bookmark import Bookmark, make_bookmark
from godwit.client.decoding import Reader, UnknownLabelError
from godwit.client.message import Message
from godwit.errors import ConnectionClosedError, DecodeError
from godwit.limits import MAX_LABELS, MIB, RECORD_COST_BYTES
from godwit.transport.connection import Connection
from godwit.wire.control import Gap, Labels, decode_in_band, is_in_band
from godwit.wire.epochs import Epoch

if TYPE_CHECKING:
    from godwit.client.inbox import Inbox

MAX_UNRELIABLE_HELD_BYTES: Final = MIB
"""Of QoS 0, which no credit holds back: beyond it the oldest records are dropped, and count as missed."""

Start: TypeAlias = Literal["latest", "earliest"] | int | Bookmark | None
SubscriptionState: TypeAlias = Literal["asking", "active", "ended"]


class Lane(msgspec.Struct, eq=False):
    """One channel that leads to a subscription."""

    connection: Connection
    channel: int
    reader: Reader


class HeldRecord(msgspec.Struct, frozen=True):
    """A record that the application has not taken yet."""

    lane: Lane
    number: int
    body: bytes
    reliable: bool


class Subscription:
    """Made by `Client.subscribe`, and kept over reconnects."""

    def __init__(
        self,
        inbox: Inbox,
        number: int,
        filters: tuple[str, ...],
        *,
        start: Start = None,
        since_us: int | None = None,
        cursor: str | None = None,
    ) -> None:
        self.number = number
        self.filters = filters
        self.cursor = cursor
        self.start: Start = start
        self.since_us = since_us
        self.state: SubscriptionState = "asking"
        self.position = 0
        """The next offset that the application has not been given."""
        self.missed = 0
        """Messages that could not be delivered, as far as is known."""
        self.done_below = 0
        """The application has asked for more than everything below this offset."""
        self.has_position = False
        """Whether the broker has ever said where it begins."""
        self.log = b""
        """The log that its offsets belong to; empty if the broker did not name it."""
        self.is_answered = False
        """Whether it has on the present connection: before that, nobody knows what its offsets are worth."""
        self.was_asked = False
        """Whether a request was sent on any connection. The broker may have stored it although no reply arrived."""
        self.wants_retained = since_us is None and start in (None, "latest")
        """No message of the log has come yet, so retained ones may still be on their way."""
        self.epochs: tuple[Epoch, ...] = ()
        """The newest ones of the log that its offsets belong to."""
        self.replaced: tuple[int, int] | None = None
        """The log was replaced by an older copy: from the first of these offsets on and below the second one, which the
        application had got to, the log has other messages now. If that happened twice, the second time."""
        self._same_below: int | None = None
        """The log of the present connection has what was read below this offset. It is compared with the position when
        everything of older connections was handed out."""
        self._inbox = inbox
        self._held: deque[HeldRecord] = deque()
        self._unreliable_bytes = 0
        self._taken: HeldRecord | None = None
        """What the application is working on."""
        self._in_hand = 0
        """How many messages of the log it is working on: from done_below on, below position."""
        self._overlap = 0
        """How many of them the broker was asked for again, and has neither sent again nor lost."""
        self._has_begun = False
        """Something of the log has been given or told as missed: everything below position has been."""
        self._retained: dict[str, int] = {}
        """By topic, when the broker received the retained message that was given; while they may come again."""

    # -- the application's calls --------------------------------------------------------------------------------------

    def take(self) -> list[Message] | None:
        """The messages of the next record, or None. The one before it counts as delivered from now on."""
        if self._taken is not None:
            self._confirm(self._taken)
            self._taken = None
        held = self._held
        self._is_done()
        self._compare()
        while held:
            record = held[0]
            if not self.is_answered and record.lane.connection is self._inbox.connection:
                break
            held.popleft()
            if not record.reliable:
                self._unreliable_bytes -= len(record.body) + RECORD_COST_BYTES
            try:
                messages = self._read(record)
            except UnknownLabelError:
                if record.reliable:
                    self._give_up(record, "a batch with a label that was not introduced")
                    return None
                messages = []  # it is older than the labels: they went reliably, and this one took its time
            except DecodeError as error:
                self._give_up(record, str(error))
                return None
            if messages:
                self._taken = record
                return messages
            self._confirm(record)
            self._is_done()
            self._compare()
        return None

    def _is_done(self) -> None:
        """The application has nothing in hand."""
        self.done_below = self.position
        self._in_hand = 0

    def _compare(self) -> None:
        """Go back to where the log has other messages than those that the application has had, if it does.

        Everything of older connections must have been handed out and be done.
        """
        if self._same_below is None or (self._held and self._held[0].lane.connection is not self._inbox.connection):
            return
        same_below, self._same_below = self._same_below, None
        if self.position > same_below:
            self.replaced = (same_below, self.position)
            self.position = self.done_below = same_below
            self._in_hand = self._overlap = 0
            self._inbox.on_replaced(self)

    # -- where it stands ----------------------------------------------------------------------------------------------

    @property
    def resume_at(self) -> int:
        """Everything below this offset is done, and the same in the log of the last connection."""
        return self.done_below if self._same_below is None else min(self.done_below, self._same_below)

    def reached(self, offset: int) -> int:
        """Return an offset that the application names, or an earlier one if it is of messages that the log has lost."""
        if self._same_below is not None:
            return min(offset, self._same_below)
        if self.replaced is not None and self.position < offset <= self.replaced[1]:
            return self.position
        return offset

    def epochs_at(self, offset: int | None) -> list[Epoch]:
        """Return the epoch of the message before an offset, as far as it is known."""
        return [epoch for epoch in self.epochs if offset is not None and epoch.first_offset < offset][-1:]

    def bookmark(self, offset: int) -> Bookmark:
        return make_bookmark(offset, self.log, self.epochs)

    @property
    def held_bytes(self) -> int:
        """What waits for the application."""
        return sum(len(record.body) for record in self._held)

    def _read(self, record: HeldRecord) -> list[Message]:
        body = record.body
        reader = record.lane.reader
        if is_in_band(body):
            self._read_in_band(reader, body)
            return []
        if reader.live:
            missed = reader.missed
            messages = reader.read(body)
            if reader.missed > missed:
                self.missed += reader.missed - missed
                self._inbox.on_missed(self, reader.missed - missed, live=True)
            return messages
        reader.position = self.position
        repeated = reader.repeated
        messages = reader.read(body)
        self._in_hand = len(messages)
        if messages and messages[0].retained:  # they come before those of the log
            messages = self._without_known_retained(messages)
        if record.lane.connection is self._inbox.connection:
            self._overlap = max(self._overlap - (reader.repeated - repeated), 0)
        elif self._inbox.connection is not None:
            self._overlap += self._in_hand  # of an older connection, and asked for again on the present one
        if reader.position != self.position:
            self.position = reader.position
            self._has_begun = True
            self.wants_retained = False
            self._retained.clear()
        return messages

    def _without_known_retained(self, messages: list[Message]) -> list[Message]:
        """After a reconnect the broker may send retained messages again, also behind held ones of the log."""
        known = self._retained
        wants = self.wants_retained
        new = [one for one in messages if not one.retained or (wants and known.get(one.topic) != one.received_us)]
        for one in new:
            if one.retained and len(known) < MAX_LABELS:
                known[one.topic] = one.received_us
        self._in_hand = sum(not one.retained for one in new)
        return new

    def _read_in_band(self, reader: Reader, body: bytes) -> None:
        match decode_in_band(body):
            case Labels() as labels:
                reader.learn(labels)
            case Gap(count=count, next_offset=next_offset) if not reader.live:
                self._on_gap(min(count, next_offset), next_offset)
            case _:
                pass  # of a later version

    def _on_gap(self, count: int, next_offset: int) -> None:
        """Messages are gone from the log. Some of them the application may have had."""
        had = min(count, self._overlap)
        self._overlap -= had
        missed = count - had
        if self._has_begun:  # a broker that has forgotten which of them were for this one counts them all
            missed = min(missed, max(next_offset - self.position, 0))
        self._has_begun = True
        self.position = max(self.position, next_offset)
        if missed:
            self.missed += missed
            self._inbox.on_missed(self, missed, live=False)

    def _confirm(self, record: HeldRecord) -> None:
        """The broker may forget the record and send more."""
        try:
            if self._return_credit(record):
                record.lane.connection.confirm(record.lane.channel, record.number, 0)
        except ConnectionClosedError:
            pass  # it will be delivered again, and known by its offset

    def _return_credit(self, record: HeldRecord) -> bool:
        """The broker may send more. False: the connection on which the record came has ended, or counts no credit."""
        connection = record.lane.connection
        if not record.reliable or connection is not self._inbox.connection:
            return False
        connection.consume(record.lane.channel, len(record.body))
        return True

    def _give_up(self, record: HeldRecord, reason: str) -> None:
        """The broker sent something that cannot be: the connection ends, and another one may do better."""
        self._held.clear()
        self._unreliable_bytes = 0
        self._inbox.on_violation(record.lane.connection, reason)

    # -- what the inbox does with it ----------------------------------------------------------------------------------

    def add(self, record: HeldRecord) -> None:
        """A record has arrived."""
        self._held.append(record)
        if not record.reliable:
            self._unreliable_bytes += len(record.body) + RECORD_COST_BYTES
            if self._unreliable_bytes > MAX_UNRELIABLE_HELD_BYTES:
                self._drop_unreliable()

    def _drop_unreliable(self) -> None:
        """The older half goes, at once, so that the work is worth it."""
        excess_bytes = MAX_UNRELIABLE_HELD_BYTES // 2
        kept: deque[HeldRecord] = deque()
        for record in self._held:
            if record.reliable or excess_bytes <= 0:
                kept.append(record)
            else:
                excess_bytes -= len(record.body) + RECORD_COST_BYTES
        self._held = kept
        self._count_unreliable()

    @property
    def has_records(self) -> bool:
        return bool(self._held)

    def on_disconnected(self, connection: Connection | None) -> None:
        """What has arrived stays, but no more than one connection's worth: it may come again, as gaps do.

        Nothing stays of a connection whose offsets were not compared yet.
        """
        is_compared = self.is_answered and self._same_below is None
        self.is_answered = False
        held, self._held = self._held, deque()
        for record in held:
            if record.lane.connection is not held[0].lane.connection or _is_gap(record):
                break
            if record.lane.connection is connection and not is_compared:
                break
            self._held.append(record)
        self._count_unreliable()

    def on_asked(self) -> None:
        """The broker is asked for everything from done_below on."""
        self.was_asked = True
        self._overlap = self._in_hand

    def on_started(self, next_offset: int, *, anew: bool, same_below: int | None) -> None:
        """The broker has said where it begins. `anew`: offsets from before mean nothing any more. `same_below`: from
        there on they mean other messages."""
        if same_below is not None:
            self._same_below = same_below if self._same_below is None else min(same_below, self._same_below)
        if anew:
            self._same_below = None
            self._overlap = self._in_hand = 0
            self._has_begun = False
            self._retained.clear()
            connection = self._inbox.connection
            self._held = deque(record for record in self._held if record.lane.connection is connection)
            self._count_unreliable()
        if anew or not self.has_position:
            self.position = self.done_below = next_offset
            self.has_position = True
        self.epochs = self._inbox.epochs
        self.is_answered = True
        self.state = "active"
        if self._taken is None:
            self._compare()

    def on_ended(self, *, keep: bool) -> None:
        """Release what is held. `keep`: the broker stores the position, so nothing unhandled may be confirmed."""
        self.state = "ended"
        for record in [*self._held, self._taken]:
            if record is not None:
                (self._return_credit if keep else self._confirm)(record)
        self._taken = None
        self._held.clear()
        self._unreliable_bytes = 0

    def _count_unreliable(self) -> None:
        self._unreliable_bytes = sum(
            len(record.body) + RECORD_COST_BYTES for record in self._held if not record.reliable
        )


def _is_gap(record: HeldRecord) -> bool:
    """Or something that cannot be read."""
    if not is_in_band(record.body):
        return False
    try:
        return isinstance(decode_in_band(record.body), Gap)
    except DecodeError:
        return True
