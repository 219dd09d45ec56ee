"""Subscriptions: request them on each connection, hold records until the application takes them, report losses.

A record is confirmed, and its credit returned, when the application asks for the next one. So the broker never has more
under way than the application can process.

`Subscriptions` manages all subscriptions of a client and calls the single `Subscription`, which reads plain attributes
of its owner and calls none of its methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from godwit.broker.topics import check_filter
from godwit.client.batches import ChannelDecoder, UnknownLabelError
from godwit.client.events import Available, ClientEvent, Missed, SubscriptionEnded, SubscriptionStarted
from godwit.client.message import Bookmark, Message, make_bookmark
from godwit.client.requests import RequestQueue
from godwit.errors import ConnectionClosedError, DecodeError, UsageError
from godwit.limits import GROUP_EXPIRY_S, MAX_LABELS, MIB, RECORD_COST_BYTES
from godwit.transport.connection import Connection
from godwit.transport.events import Received
from godwit.wire.control import (
    DeliveryOpen,
    Gap,
    Kicked,
    Labels,
    RetainHandling,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Work,
    decode_control,
    decode_in_band,
    is_in_band,
)
from godwit.wire.control_base import Code
from godwit.wire.epochs import Epoch
from godwit.wire.filters import WILDCARDS, split_group

MAX_UNRELIABLE_HELD_BYTES: Final = MIB
"""Limit for held records of QoS 0, which have no flow control: beyond it the oldest are dropped and count as missed."""

Start: TypeAlias = Literal["latest", "earliest"] | int | Bookmark | None
"""Where a subscription begins: the end or the beginning of the log, an offset, a bookmark; None for the default."""
SubscriptionState: TypeAlias = Literal["asking", "active", "ended"]


class Membership(msgspec.Struct, frozen=True):
    """The consumer group that a subscription is a member of."""

    group: str
    expiry_s: int = GROUP_EXPIRY_S
    max_in_flight: int | None = None


def make_membership(group: object, expiry_s: object, max_in_flight: object) -> Membership | None:
    """Return the membership with these options of an application; None without any.

    Raises UsageError for an invalid one. The group may be empty if the filters name it.
    """
    if group is None and expiry_s is None and max_in_flight is None:
        return None
    expiry, most = _check_count("group_expiry_s", expiry_s, 0), _check_count("max_in_flight", max_in_flight, 1)
    if group is not None and not isinstance(group, str):
        raise UsageError(f"group is {repr(group)[:80]}, of the type {type(group).__name__}: give a text (str)")
    return Membership(group or "", GROUP_EXPIRY_S if expiry is None else expiry, most)


def _check_count(what: str, value: object, least: int) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not least <= value < 2**32:
        raise UsageError(f"{what} is {value!r}: give a whole number from {least} on")
    return value


def with_membership(filters: Sequence[object], membership: Membership | None) -> tuple[list[str], Membership | None]:
    """Return the filters without the group that they name as `$share/NAME/FILTER`, and the membership in it.

    Raises UsageError if they name several groups, and for a filter that is not a text.
    """
    parts = [split_group(text if isinstance(text, str) else check_filter(text)) for text in filters]
    names = {name for name, _ in parts}
    if names - {None}:
        name = names.pop()
        if names or name is None or (membership is not None and membership.group not in ("", name)):
            raise UsageError("all filters of one subscription are in the same group, or none is")
        membership = msgspec.structs.replace(membership or Membership(name), group=name)
    elif membership is not None and membership.group == "":
        raise UsageError("the options of a group without its name: give group='...'")
    if membership is not None and set(membership.group) & {"/", *WILDCARDS}:
        raise UsageError(f"the group {membership.group!r} has one of the characters / + # *: choose another name")
    return [text for _, text in parts], membership


class InboundChannel(msgspec.Struct, eq=False):
    """A channel on which the broker sends records for a subscription."""

    connection: Connection
    number: int
    decoder: ChannelDecoder


class HeldRecord(msgspec.Struct, frozen=True):
    """A record that the application has not taken yet."""

    channel: InboundChannel
    number: int
    body: bytes
    reliable: bool
    arrived_at: float = 0.0


class Subscription:
    """A subscription, made by `ClientProtocol.subscribe`. It outlives the connection."""

    def __init__(
        self,
        owner: Subscriptions,
        number: int,
        filters: tuple[str, ...],
        *,
        start: Start = None,
        since_us: int | None = None,
        cursor: str | None = None,
        retained: RetainHandling | None = None,
        no_local: bool = False,
        is_responder: bool = False,
        membership: Membership | None = None,
    ) -> None:
        self.number = number
        self.filters = filters
        self.cursor = cursor
        self.membership = membership
        self.confirmed: int | None = None
        """Of a member of a group: the last record of the present connection that was confirmed."""
        self.start: Start = start
        self.since_us = since_us
        self.state: SubscriptionState = "asking"
        self.position = 0
        """The next offset to hand to the application."""
        self.missed = 0
        """The number of messages that could not be delivered, as far as it is known."""
        self.done_below = 0
        """The application has processed all messages below this offset: it has asked for the ones behind them."""
        self.has_position = False
        """Whether the broker has ever replied with a start position."""
        self.log = b""
        """The id of the log that its offsets belong to; empty if the broker did not name it."""
        self.is_answered = False
        """Whether the broker has replied on the present connection. Before that, records of this connection cannot be
        related to the position."""
        self.was_asked = False
        """Whether a request was sent on any connection. The broker may have stored it although no reply arrived."""
        self.retained = retained
        self.no_local = no_local
        self.is_responder = is_responder
        is_latest = since_us is None and start in (None, "latest")
        self.wants_retained = is_latest if retained is None else retained != "never"
        """Whether retained messages may still arrive: no message of the log has arrived yet."""
        self.epochs: tuple[Epoch, ...] = ()
        """The newest epochs of the log that its offsets belong to."""
        self.replaced: tuple[int, int] | None = None
        """The last range of offsets that stand for other messages since an older copy of the log was restored: the end
        is the position that the application had reached."""
        self._same_below: int | None = None
        """The log of the present connection has the messages that were read below this offset. It is compared with the
        position when all records of older connections were taken."""
        self._owner = owner
        self._held: deque[HeldRecord] = deque()
        self._unreliable_bytes = 0
        self._taken: HeldRecord | None = None
        """The record whose messages the application is processing."""
        self._in_hand = 0
        """The number of messages of the log in that record: from done_below on, below position."""
        self._overlap = 0
        """The number of them that the broker was asked for again, and has neither sent again nor lost."""
        self._has_begun = False
        """Whether any message of the log was delivered or reported as missed: then all below position were."""
        self._retained: dict[str, int] = {}
        """By topic, the time of arrival of the retained message that was delivered, while it may be sent again."""

    # -- application calls --------------------------------------------------------------------------------------------

    def take(self, now: float | None = None, now_us: int | None = None) -> list[Message] | None:
        """Return the messages of the next record, or None if there is none.

        The call confirms the record before: its messages count as delivered.

        Args:
            now: the time of the transport's clock. Without it, messages that have expired here are returned, too.
            now_us: the same in microseconds since the epoch.
        """
        if self._taken is not None:
            self._confirm(self._taken)
            self._taken = None
        held = self._held
        self.done_below = self.position
        self._in_hand = 0
        if self._same_below is not None:
            self._compare()
        while held:
            record = held[0]
            if not self.is_answered and record.channel.connection is self._owner.connection:
                break
            held.popleft()
            if not record.reliable:
                self._unreliable_bytes -= len(record.body) + RECORD_COST_BYTES
            decoder = record.channel.decoder
            if now is not None:
                decoder.now_us = now_us
                decoder.waited_us = max(int((now - record.arrived_at) * 1_000_000), 0)
            try:
                messages = self._decode(record)
            except UnknownLabelError:
                if record.reliable:
                    self._give_up(record, "a batch with a label that was not introduced")
                    return None
                messages = []  # older than the labels, which are sent reliably and have overtaken it
            except DecodeError as error:
                self._give_up(record, str(error))
                return None
            if messages:
                self._taken = record
                return messages
            self._confirm(record)
            self.done_below = self.position
            self._in_hand = 0
            if self._same_below is not None:
                self._compare()
        return None

    def reached(self, offset: int) -> int:
        """Return an offset named by the application, or an earlier one if it refers to messages that the log lost."""
        if self._same_below is not None:
            return min(offset, self._same_below)
        if self.replaced is not None and self.position < offset <= self.replaced[1]:
            return self.position
        return offset

    def bookmark(self, offset: int) -> Bookmark:
        """Return the bookmark of an offset in the present log."""
        return make_bookmark(offset, self.log, self.epochs)

    @property
    def resume_at(self) -> int:
        """The offset to resume at: all messages below it are processed, and the same in the newest known log."""
        return self.done_below if self._same_below is None else min(self.done_below, self._same_below)

    def epochs_at(self, offset: int | None) -> list[Epoch]:
        """Return the epoch of the message before an offset, if it is known."""
        return [epoch for epoch in self.epochs if offset is not None and epoch.first_offset < offset][-1:]

    @property
    def group(self) -> str | None:
        """The name of the consumer group that it is a member of."""
        return None if self.membership is None else self.membership.group

    @property
    def has_taken(self) -> bool:
        """Whether the application is processing a record of the log that came on the present connection."""
        if self._taken is None or self._taken.channel.decoder.live:
            return False
        return self._taken.channel.connection is self._owner.connection

    @property
    def held_bytes(self) -> int:
        """The size of the records that the application has not taken yet."""
        return sum(len(record.body) for record in self._held)

    @property
    def has_records(self) -> bool:
        """Whether there are records that the application has not taken yet."""
        return bool(self._held)

    # -- records ------------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Go back to the first offset at which the present log has other messages than the application received.

        Waits until all records of older connections are taken and processed.
        """
        if self._same_below is None or (self._held and self._held[0].channel.connection is not self._owner.connection):
            return
        same_below, self._same_below = self._same_below, None
        if self.position > same_below:
            self.replaced = (same_below, self.position)
            self.position = self.done_below = same_below
            self._in_hand = self._overlap = 0
            self._owner.events.append(Missed(self, None, next_offset=same_below, had_below=self.replaced[1]))

    def _decode(self, record: HeldRecord) -> list[Message]:
        body = record.body
        decoder = record.channel.decoder
        if is_in_band(body):
            self._handle_in_band(decoder, body)
            return []
        if self.membership is not None and not decoder.live:
            messages = decoder.decode(body)
            self.position = max([self.position, *(one.offset + 1 for one in messages[-1:] if one.offset is not None)])
            return messages
        if decoder.live:
            missed = decoder.missed
            messages = decoder.decode(body)
            if decoder.missed > missed:
                self._add_missed(decoder.missed - missed, live=True)
            return messages
        decoder.position = self.position
        repeated = decoder.repeated
        messages = decoder.decode(body)
        self._in_hand = len(messages)
        if messages and messages[0].retained:  # retained messages precede those of the log
            messages = self._without_known_retained(messages)
        if record.channel.connection is self._owner.connection:
            self._overlap = max(self._overlap - (decoder.repeated - repeated), 0)
        elif self._owner.connection is not None:
            self._overlap += self._in_hand  # from an older connection, and requested again on the present one
        if decoder.position != self.position:
            self.position = decoder.position
            self._has_begun = True
            self.wants_retained = False
            self._retained.clear()
        return messages

    def _without_known_retained(self, messages: list[Message]) -> list[Message]:
        """Drop retained messages that the broker repeats after a reconnect, possibly behind held ones of the log."""
        known = self._retained
        wants = self.wants_retained
        new = [one for one in messages if not one.retained or (wants and known.get(one.topic) != one.received_us)]
        for one in new:
            if one.retained and len(known) < MAX_LABELS:
                known[one.topic] = one.received_us
        self._in_hand = sum(not one.retained for one in new)
        return new

    def _handle_in_band(self, decoder: ChannelDecoder, body: bytes) -> None:
        match decode_in_band(body):
            case Labels() as labels:
                decoder.learn(labels)
            case Gap(count=count, next_offset=next_offset, below=below) if not decoder.live:
                self._handle_gap(count, next_offset, max(below or 0, next_offset))
            case _:
                pass  # from a later version of the protocol

    def _handle_gap(self, count: int, next_offset: int, below: int) -> None:
        """Skip messages that are no longer in the log, and count those that the application has not received.

        `below`: all of them had lower offsets. They can be behind `next_offset`, if other topics still have messages.
        """
        count = min(count, below)
        if self.membership is not None:
            self._add_missed(count, live=False)
            return
        missed = count
        if below == next_offset:  # otherwise messages in hand may still be in the log, and are not counted
            received = min(count, self._overlap)
            self._overlap -= received
            missed -= received
        if self._has_begun:  # after a restart the broker may count messages before the position, too
            missed = min(missed, max(below - self.position, 0))
        self._has_begun = True
        self.position = max(self.position, next_offset)
        if missed:
            self._add_missed(missed, live=False)

    def _add_missed(self, count: int, *, live: bool) -> None:
        self.missed += count
        self._owner.events.append(Missed(self, count, live, None if live else self.position))

    def _confirm(self, record: HeldRecord, *, credit_only: bool = False) -> None:
        """Confirm a record and return its credit, so that the broker sends more; or return only the credit."""
        channel = record.channel
        connection = channel.connection
        if record.reliable and connection is self._owner.connection:
            try:
                connection.consume(channel.number, len(record.body))
                if not credit_only:
                    connection.confirm(channel.number, record.number, 0)
                    if not channel.decoder.live:
                        self.confirmed = record.number
            except ConnectionClosedError:
                pass  # the record will be delivered again, and recognised by its offset

    def _give_up(self, record: HeldRecord, reason: str) -> None:
        """Have the connection closed: the broker violated the protocol."""
        self._held.clear()
        self._unreliable_bytes = 0
        self._owner.on_violation(record.channel.connection, reason)

    # -- input from Subscriptions -------------------------------------------------------------------------------------

    def add(self, record: HeldRecord) -> None:
        """Hold a record until the application takes it."""
        self._held.append(record)
        if not record.reliable:
            self._unreliable_bytes += len(record.body) + RECORD_COST_BYTES
            if self._unreliable_bytes > MAX_UNRELIABLE_HELD_BYTES:
                self._drop_unreliable()

    def _drop_unreliable(self) -> None:
        """Drop the older half of the unreliable records. Half of them at once keeps the cost per record low."""
        excess_bytes = MAX_UNRELIABLE_HELD_BYTES // 2
        remaining: deque[HeldRecord] = deque()
        for record in self._held:
            if record.reliable or excess_bytes <= 0:
                remaining.append(record)
            else:
                excess_bytes -= len(record.body) + RECORD_COST_BYTES
        self._held = remaining
        self._count_unreliable()

    def handle_disconnected(self, connection: Connection | None) -> None:
        """Keep the held records of one connection, up to the first gap: the others will be sent again.

        Records of a connection whose offsets were not compared yet are dropped.
        """
        is_compared = self.is_answered and self._same_below is None
        self.is_answered = False
        self.confirmed = None
        if self.membership is not None:  # the broker sends them to other members
            self._held.clear()
            self._unreliable_bytes = 0
            return
        held, self._held = self._held, deque()
        for record in held:
            if record.channel.connection is not held[0].channel.connection or _is_gap(record):
                break
            if record.channel.connection is connection and not is_compared:
                break
            self._held.append(record)
        self._count_unreliable()

    def handle_asked(self) -> None:
        """Note that the broker was asked for all messages from done_below on."""
        self.was_asked = True
        self._overlap = self._in_hand

    def handle_started(self, next_offset: int, *, anew: bool, same_below: int | None) -> None:
        """Begin or resume, after the broker's reply.

        Args:
            next_offset: the first offset that the broker will send.
            anew: whether earlier offsets are invalid, because the broker has another log.
            same_below: the offset from which on the log has other messages than before; None if that is unknown.
        """
        if same_below is not None:
            self._same_below = same_below if self._same_below is None else min(same_below, self._same_below)
        connection = self._owner.connection
        if self.membership is not None:
            self.position = self.done_below = next_offset if anew else max(self.position, next_offset)
            self.has_position = self.is_answered = True
            self.state = "active"
            return
        if anew:
            self._same_below = None
            self._overlap = self._in_hand = 0
            self._has_begun = False
            self._retained.clear()
            self._held = deque(record for record in self._held if record.channel.connection is connection)
            self._count_unreliable()
        if anew or not self.has_position:
            self.position = self.done_below = next_offset
            self.has_position = True
        self.epochs = self._owner.epochs
        self.is_answered = True
        self.state = "active"
        if self._taken is None:
            self._compare()

    def handle_ended(self, *, keep: bool) -> None:
        """Release all held records. With `keep` the broker stores the position, so they are not confirmed."""
        self.state = "ended"
        for record in [*self._held, self._taken]:
            if record is not None:
                self._confirm(record, credit_only=keep)
        self._taken = None
        self._held.clear()
        self._unreliable_bytes = 0

    def _count_unreliable(self) -> None:
        self._unreliable_bytes = sum(
            len(record.body) + RECORD_COST_BYTES for record in self._held if not record.reliable
        )


def _is_gap(record: HeldRecord) -> bool:
    """Return whether the record reports a gap, or cannot be decoded."""
    if not is_in_band(record.body):
        return False
    try:
        return isinstance(decode_in_band(record.body), Gap)
    except DecodeError:
        return True


@dataclass(eq=False)
class Subscriptions:
    """All subscriptions of a client: requests them on each connection, and distributes the records.

    Input: subscribe, unsubscribe; attach, detach, close, handle_*. Output: events.
    """

    _requests: RequestQueue
    events: list[ClientEvent]
    on_violation: Callable[[Connection, str], None]
    """Called when the broker has violated the protocol."""
    _on_work: Callable[[Received], None]
    """Called with the first record of the broker's work channel."""

    def __post_init__(self) -> None:
        self.connection: Connection | None = None
        """The present connection, once the broker has accepted the login."""
        self.now = 0.0
        """The time of the last input."""
        self.announced: dict[Subscription, None] = {}
        """Subscriptions with an Available among the events that were not fetched yet."""
        self.log = b""
        """The id of the log of the newest connection whose broker named one."""
        self.epochs: tuple[Epoch, ...] = ()
        """The newest epochs of the log of the present connection."""
        self._subscriptions: dict[int, Subscription] = {}
        self._requested: dict[int, tuple[Subscription, Literal["latest", "earliest"] | int | None]] = {}
        """By request number, the subscription and its start."""
        self._leaving: dict[int, tuple[Subscription, bool]] = {}
        """By request number, subscriptions whose end is not confirmed, and whether the broker keeps the position."""
        self._channels: dict[int, tuple[InboundChannel, Subscription] | None] = {}
        """By number on the present connection; None for a channel whose subscription has ended here."""
        self._next_number = 0

    # -- application calls --------------------------------------------------------------------------------------------

    def subscribe(
        self,
        filters: tuple[str, ...],
        *,
        start: Start,
        since_us: int | None,
        cursor: str | None,
        retained: RetainHandling | None = None,
        no_local: bool = False,
        is_responder: bool = False,
        membership: Membership | None = None,
    ) -> Subscription:
        """Return the subscription with these filters and this cursor or group; request it if it is new."""
        group = None if membership is None else membership.group
        for known in self._subscriptions.values():
            if (known.filters, known.cursor, known.group) == (filters, cursor, group):
                return known
        number = self._next_number
        self._next_number += 1
        subscription = Subscription(
            self,
            number,
            filters,
            start=start,
            since_us=since_us,
            cursor=cursor,
            retained=retained,
            no_local=no_local,
            is_responder=is_responder,
            membership=membership,
        )
        self._subscriptions[number] = subscription
        if self.connection is not None:
            self._request(subscription, start)
        return subscription

    def unsubscribe(
        self, subscription: Subscription, *, keep: bool, offset: int | None = None, handled: int = 0
    ) -> int:
        """End a subscription here at once. Return the number of the request that ends it at the broker."""
        request = self._requests.next_number()
        record = None
        if subscription.membership is not None:
            keep, offset = True, None  # held records are not confirmed: they go to other members
            record = subscription.confirmed
            handled = handled if subscription.has_taken else 0
        else:
            handled = 0
        if offset is not None:
            offset = subscription.reached(offset)
        if self._subscriptions.get(subscription.number) is subscription:
            self._forget(subscription, keep=keep)
            self._leaving[request] = subscription, keep
        epochs = subscription.epochs_at(offset)
        message = Unsubscribe(
            request=request,
            subscription=subscription.number,
            keep=keep,
            offset=offset,
            epochs=epochs,
            record=record,
            handled=handled,
        )
        self._requests.request(request, message)
        return request

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, log: bytes, epochs: Sequence[Epoch]) -> None:
        """Request all subscriptions on a new connection, from the position that the application has reached."""
        self.connection = connection
        self.log = log or self.log
        self.epochs = tuple(epochs)
        wanted = {(known.filters, known.cursor) for known in self._subscriptions.values() if known.group is None}
        for subscription, keep in self._leaving.values():
            if not keep and (subscription.filters, subscription.cursor) not in wanted:
                # The broker's session may have stored it. To end it there, it needs a number on this connection.
                self._request(subscription, subscription.start, tracked=False)
        for subscription in self._subscriptions.values():
            if not subscription.has_position or subscription.membership is not None:
                self._request(subscription, subscription.start)
            elif subscription.log not in (b"", self.log):
                self._request(subscription, "earliest")  # another log: all its messages are new to the application
            else:
                # Within one epoch the broker is the same process as before: then there is nothing to compare.
                is_same_epoch = subscription.epochs[-1:] == self.epochs[-1:]
                epochs = () if is_same_epoch else subscription.epochs
                self._request(subscription, subscription.resume_at, epochs=epochs)

    def detach(self) -> None:
        """Forget all channels and requests of the connection, which is gone."""
        connection, self.connection = self.connection, None
        self._channels.clear()
        self._requested.clear()
        for subscription in self._subscriptions.values():
            subscription.handle_disconnected(connection)

    def close(self) -> None:
        """End all subscriptions, without a request to the broker."""
        self.detach()
        for subscription in list(self._subscriptions.values()):
            self._forget(subscription)
        self._leaving.clear()

    def _request(
        self, subscription: Subscription, start: Start, *, epochs: Sequence[Epoch] = (), tracked: bool = True
    ) -> None:
        request = self._requests.next_number()
        if isinstance(start, Bookmark):
            bookmark = start
            start = "earliest"  # in another log nothing counts as read
            if bookmark.log == self.log:
                start, epochs = bookmark.offset, bookmark.epochs
        is_first = not subscription.has_position
        membership = subscription.membership
        # The broker may have stored an earlier request and crashed before it sent its reply and the retained messages.
        # It then resumes the subscription as a known one, and sends retained messages only if asked to.
        retained = subscription.wants_retained and subscription.was_asked
        if tracked:
            self._requested[request] = subscription, start
            subscription.handle_asked()
        self._requests.send(
            Subscribe(
                request=request,
                subscription=subscription.number,
                filters=list(subscription.filters),
                cursor=subscription.cursor,
                start=start,
                epochs=list(epochs),
                since_us=subscription.since_us if is_first else None,
                retain_handling=subscription.retained if is_first else None,
                no_local=subscription.no_local,
                responder=subscription.is_responder,
                retained=retained and membership is None,
                group=None if membership is None else membership.group,
                group_expiry_s=0 if membership is None else membership.expiry_s,
                max_in_flight=None if membership is None else membership.max_in_flight,
            )
        )

    def _forget(self, subscription: Subscription, *, keep: bool = False) -> None:
        self._subscriptions.pop(subscription.number, None)
        subscription.handle_ended(keep=keep)
        for channel, entry in self._channels.items():
            if entry is not None and entry[1] is subscription:
                self._channels[channel] = None

    # -- input from the broker ----------------------------------------------------------------------------------------

    def handle_received(self, event: Received) -> None:
        """Hold a record for its subscription. Raises DecodeError if the channel does not begin as it must."""
        number = event.channel
        entry = self._channels.get(number)
        if entry is not None and event.body:
            channel, subscription = entry
            subscription.add(HeldRecord(channel, event.record, event.body, event.reliable, self.now))
            if subscription.is_answered and subscription not in self.announced:
                self._announce(subscription)
        elif event.reliable:
            if number not in self._channels:
                self._handle_first(event)
            event.connection.consume(number, len(event.body))
            event.connection.confirm(number, event.record, 0)
        if event.last:
            self._channels.pop(number, None)

    def _handle_first(self, event: Received) -> None:
        """Assign a channel to the subscription that its record 0 names, or to work."""
        message = decode_control(event.body)
        if event.record == 0 and isinstance(message, Work):
            self._on_work(event)
            return
        if event.record != 0 or not isinstance(message, DeliveryOpen):
            raise DecodeError("feed", f"channel {event.channel} does not begin with its subscription")
        subscription = self._subscriptions.get(message.subscription)
        if subscription is None:
            self._channels[event.channel] = None  # ended here, and the broker does not know it yet
        else:
            is_shared = subscription.membership is not None and not message.live
            decoder = ChannelDecoder(live=message.live, is_shared=is_shared)
            channel = InboundChannel(event.connection, event.channel, decoder)
            self._channels[event.channel] = channel, subscription

    def handle_subscribed(self, reply: Subscribed) -> bool:
        """Start or resume a subscription. Return whether the reply belongs to a request of a subscription."""
        requested = self._requested.pop(reply.request, None)
        if requested is None:
            return False
        subscription, start = requested
        if subscription.state == "ended":
            return True
        if subscription.membership is not None and not reply.group:
            self.unsubscribe(subscription, keep=False)
            self._end(subscription, Code.UNKNOWN_KIND, "the broker does not know consumer groups: update it")
            return True
        if reply.subscription != subscription.number:
            self._end(subscription, Code.TOO_MANY, "the broker treats it as the same as another subscription")
            return True
        is_first = not subscription.has_position
        same_below = reply.same_below
        if subscription.membership is not None:  # the broker has its position, unless it is another broker
            is_anew = not is_first and subscription.log not in (b"", self.log)
        else:
            is_behind = not isinstance(start, str | None) and same_below is None and reply.next_offset < start
            is_anew = not is_first and (isinstance(start, str) or is_behind)
        subscription.handle_started(reply.next_offset, anew=is_anew, same_below=None if is_first else same_below)
        if is_first:
            self.events.append(SubscriptionStarted(subscription, reply.next_offset))
            bookmark = subscription.start
            if isinstance(bookmark, Bookmark):
                self._check_bookmark(subscription, bookmark, reply)
        if is_anew:
            self.events.append(Missed(subscription, None, next_offset=reply.next_offset))
        subscription.log = self.log  # only now: until the reply, its offsets are those of the log before
        if subscription.has_records and subscription not in self.announced:
            self._announce(subscription)
        return True

    def _check_bookmark(self, subscription: Subscription, bookmark: Bookmark, reply: Subscribed) -> None:
        """Report a loss if the log does not have the messages that were read before the bookmark."""
        if bookmark.log != self.log:
            self.events.append(Missed(subscription, None, next_offset=reply.next_offset))
        elif reply.same_below is not None and reply.same_below < bookmark.offset:
            subscription.replaced = (reply.same_below, bookmark.offset)
            self.events.append(Missed(subscription, None, next_offset=reply.same_below, had_below=bookmark.offset))

    def handle_error(self, request: int, code: int, text: str) -> bool:
        """End a subscription that the broker rejected. Return whether the request belongs to a subscription."""
        requested = self._requested.pop(request, None)
        if requested is None:
            return False
        if requested[0].state != "ended":
            self._end(requested[0], code, text)
        return True

    def handle_answer(self, request: int) -> bool:
        """Return whether an answered request was to end a subscription, which has ended then with any answer."""
        return self._leaving.pop(request, None) is not None

    def handle_kicked(self, message: Kicked) -> None:
        """End a subscription that an administrator removed."""
        subscription = self._subscriptions.get(message.subscription)
        if subscription is not None:
            reason = f": {message.reason}" if message.reason else ""
            self._end(subscription, Code.KICKED, f"{message.by} removed the subscription{reason}")

    def _end(self, subscription: Subscription, code: int, text: str) -> None:
        self._forget(subscription)
        self.events.append(SubscriptionEnded(subscription, code, text))

    def _announce(self, subscription: Subscription) -> None:
        self.announced[subscription] = None
        self.events.append(Available(subscription))
