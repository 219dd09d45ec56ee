"""All subscriptions of a client: asks the broker for them on each connection, and brings the records to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from godwit.client.bookmark import Bookmark
from godwit.client.decoding import Reader
from godwit.client.events import Available, ClientEvent, Missed, SubscriptionEnded, SubscriptionStarted
from godwit.client.requests import Requests
from godwit.client.subscription import HeldRecord, Lane, Start, Subscription
from godwit.errors import DecodeError
from godwit.transport.connection import Connection
from godwit.transport.events import Received
from godwit.wire.control import (
    DeliveryOpen,
    Kicked,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Work,
    decode_control,
)
from godwit.wire.control_base import Code
from godwit.wire.epochs import Epoch


class Inbox:
    """Feed: subscribe, unsubscribe; attach, detach, on_received and the broker's words. Gives events."""

    def __init__(
        self,
        requests: Requests,
        events: list[ClientEvent],
        on_violation: Callable[[Connection, str], None],
        on_work: Callable[[Received], None],
    ) -> None:
        self.connection: Connection | None = None
        """The one with a broker that has welcomed the client."""
        self.on_violation = on_violation
        """To be called when the broker sent something that cannot be."""
        self._on_work = on_work
        """To be called when a channel begins that is not for a subscription, but for work."""
        self._requests = requests
        self._events = events
        self._subscriptions: dict[int, Subscription] = {}
        self._asked: dict[int, tuple[Subscription, Literal["latest", "earliest"] | int | None]] = {}
        """By request: who asked, and for which start."""
        self._leaving: dict[int, tuple[Subscription, bool]] = {}
        """By request: what the broker has not confirmed to have ended, and whether it is to keep its place."""
        self._lanes: dict[int, tuple[Lane, Subscription] | None] = {}
        """By channel of the present connection; None: of no use any more."""
        self._next_number = 0
        self._announced: dict[Subscription, None] = {}
        """An Available is among the events that nobody has fetched yet."""
        self.log = b""
        """The log of the newest connection whose broker named one."""
        self.epochs: tuple[Epoch, ...] = ()
        """The newest ones of the log of the present connection."""

    # -- the application's calls --------------------------------------------------------------------------------------

    def subscribe(
        self, filters: tuple[str, ...], *, start: Start, since_us: int | None, cursor: str | None
    ) -> Subscription:
        """The same filters and cursor again are the same subscription, as for the broker."""
        for known in self._subscriptions.values():
            if known.filters == filters and known.cursor == cursor:
                return known
        number = self._next_number
        self._next_number += 1
        subscription = Subscription(self, number, filters, start=start, since_us=since_us, cursor=cursor)
        self._subscriptions[number] = subscription
        if self.connection is not None:
            self._ask(subscription, start)
        return subscription

    def unsubscribe(self, subscription: Subscription, *, keep: bool, offset: int | None = None) -> int:
        """Ends it here at once, and at the broker with the answer to the request whose number it gives."""
        request = self._requests.number()
        if offset is not None:
            offset = subscription.reached(offset)
        if self._subscriptions.get(subscription.number) is subscription:
            self._forget(subscription, keep=keep)
            self._leaving[request] = subscription, keep
        epochs = subscription.epochs_at(offset)
        message = Unsubscribe(
            request=request, subscription=subscription.number, keep=keep, offset=offset, epochs=epochs
        )
        self._requests.ask(request, message)
        return request

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, log: bytes, epochs: Sequence[Epoch]) -> None:
        """A broker has welcomed the client: it is asked for everything from where the application stands."""
        self.connection = connection
        self.log = log or self.log
        self.epochs = tuple(epochs)
        wanted = {(known.filters, known.cursor) for known in self._subscriptions.values()}
        for subscription, keep in self._leaving.values():
            if not keep and (subscription.filters, subscription.cursor) not in wanted:
                # The broker's session may remember it. To end it there, it must have a number on this connection.
                self._ask(subscription, subscription.start, tracked=False)
        for subscription in self._subscriptions.values():
            if not subscription.has_position:
                self._ask(subscription, subscription.start)
            elif subscription.log not in (b"", self.log):
                self._ask(subscription, "earliest")  # all of it is newer than what the application has
            else:
                # The broker that gave it its position is this very process: then there is nothing to compare.
                is_same_epoch = subscription.epochs[-1:] == self.epochs[-1:]
                epochs = () if is_same_epoch else subscription.epochs
                self._ask(subscription, subscription.resume_at, epochs=epochs)

    def detach(self) -> None:
        connection, self.connection = self.connection, None
        self._lanes.clear()
        self._asked.clear()
        for subscription in self._subscriptions.values():
            subscription.on_disconnected(connection)

    def close(self) -> None:
        self.detach()
        for subscription in list(self._subscriptions.values()):
            self._forget(subscription)
        self._leaving.clear()

    def _ask(
        self, subscription: Subscription, start: Start, *, epochs: Sequence[Epoch] = (), tracked: bool = True
    ) -> None:
        request = self._requests.number()
        if isinstance(start, Bookmark):
            bookmark = start
            start = "earliest"  # in another log nothing is known to have been read
            if bookmark.log == self.log:
                start, epochs = bookmark.offset, bookmark.epochs
        is_first = not subscription.has_position
        # The broker may have stored an earlier request and crashed before it sent its reply and the retained messages.
        # It then resumes the subscription as a known one, and sends retained messages only if asked to.
        retained = subscription.wants_retained and subscription.was_asked
        if tracked:
            self._asked[request] = subscription, start
            subscription.on_asked()
        self._requests.say(
            Subscribe(
                request=request,
                subscription=subscription.number,
                filters=list(subscription.filters),
                cursor=subscription.cursor,
                start=start,
                epochs=list(epochs),
                since_us=subscription.since_us if is_first else None,
                retained=retained,
            )
        )

    def _forget(self, subscription: Subscription, *, keep: bool = False) -> None:
        self._subscriptions.pop(subscription.number, None)
        subscription.on_ended(keep=keep)
        for channel, entry in self._lanes.items():
            if entry is not None and entry[1] is subscription:
                self._lanes[channel] = None

    # -- what the broker says -----------------------------------------------------------------------------------------

    def on_received(self, event: Received) -> None:
        """A record on a channel of data; DecodeError if it cannot be."""
        channel = event.channel
        entry = self._lanes.get(channel)
        if entry is not None and event.body:
            lane, subscription = entry
            subscription.add(HeldRecord(lane, event.record, event.body, event.reliable))
            if subscription.is_answered:
                self._announce(subscription)
        elif event.reliable:
            if channel not in self._lanes:
                self._on_first(event)
            event.connection.consume(channel, len(event.body))
            event.connection.confirm(channel, event.record, 0)
        if event.last:
            self._lanes.pop(channel, None)

    def _on_first(self, event: Received) -> None:
        """Record 0 tells whose channel it is."""
        message = decode_control(event.body)
        if event.record == 0 and isinstance(message, Work):
            self._on_work(event)
            return
        if event.record != 0 or not isinstance(message, DeliveryOpen):
            raise DecodeError("feed", f"channel {event.channel} does not begin with its subscription")
        subscription = self._subscriptions.get(message.subscription)
        if subscription is None:
            self._lanes[event.channel] = None  # ended here, and the broker has not heard of it
        else:
            lane = Lane(event.connection, event.channel, Reader(live=message.live))
            self._lanes[event.channel] = lane, subscription

    def on_subscribed(self, reply: Subscribed) -> bool:
        """Whether it answers a question of ours."""
        asked = self._asked.pop(reply.request, None)
        if asked is None:
            return False
        subscription, start = asked
        if subscription.state == "ended":
            return True
        if reply.subscription != subscription.number:
            self._end(subscription, Code.TOO_MANY, "the broker takes it for the same as another subscription")
            return True
        is_first = not subscription.has_position
        same_below = reply.same_below
        is_anew = not is_first and (
            isinstance(start, str) or (start is not None and same_below is None and reply.next_offset < start)
        )
        subscription.on_started(reply.next_offset, anew=is_anew, same_below=None if is_first else same_below)
        if is_first:
            self._events.append(SubscriptionStarted(subscription, reply.next_offset))
            bookmark = subscription.start
            if isinstance(bookmark, Bookmark):
                self._compare(subscription, bookmark, reply)
        if is_anew:
            self._events.append(Missed(subscription, None, next_offset=reply.next_offset))
        subscription.log = self.log  # only now: until the reply, its offsets are those of the log before
        if subscription.has_records:
            self._announce(subscription)
        return True

    def _compare(self, subscription: Subscription, bookmark: Bookmark, reply: Subscribed) -> None:
        """Report it if the log does not have what was read before the bookmark."""
        if bookmark.log != self.log:
            self._events.append(Missed(subscription, None, next_offset=reply.next_offset))
        elif reply.same_below is not None and reply.same_below < bookmark.offset:
            subscription.replaced = (reply.same_below, bookmark.offset)
            self.on_replaced(subscription)

    def on_error(self, request: int, code: int, text: str) -> bool:
        """Whether it answers a question of ours."""
        asked = self._asked.pop(request, None)
        if asked is None:
            return False
        if asked[0].state != "ended":
            self._end(asked[0], code, text)
        return True

    def on_answer(self, request: int) -> bool:
        """The broker has answered a request of any kind. True: whatever it said, the subscription is ended there."""
        return self._leaving.pop(request, None) is not None

    def on_kicked(self, message: Kicked) -> None:
        subscription = self._subscriptions.get(message.subscription)
        if subscription is not None:
            reason = f": {message.reason}" if message.reason else ""
            self._end(subscription, Code.KICKED, f"{message.by} removed the subscription{reason}")

    def _end(self, subscription: Subscription, code: int, text: str) -> None:
        self._forget(subscription)
        self._events.append(SubscriptionEnded(subscription, code, text))

    # -- events -------------------------------------------------------------------------------------------------------

    def on_missed(self, subscription: Subscription, count: int, *, live: bool) -> None:
        next_offset = None if live else subscription.position
        self._events.append(Missed(subscription, count, live, next_offset))

    def on_replaced(self, subscription: Subscription) -> None:
        assert subscription.replaced is not None
        same_below, had_below = subscription.replaced
        self._events.append(Missed(subscription, None, next_offset=same_below, had_below=had_below))

    def _announce(self, subscription: Subscription) -> None:
        if subscription not in self._announced:
            self._announced[subscription] = None
            self._events.append(Available(subscription))

    def on_events_fetched(self) -> None:
        self._announced.clear()
