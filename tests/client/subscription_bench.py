"""Subscriptions on a stub connection, and the broker's side of their channels, record by record."""

from __future__ import annotations

from collections.abc import Sequence

from tests.client.stubs import StubConnection

from godwit.client.events import ClientEvent
from godwit.client.message import Message
from godwit.client.requests import RequestQueue
from godwit.client.subscription import Start, Subscription, Subscriptions
from godwit.transport.connection import Connection
from godwit.transport.events import Received
from godwit.wire.batch import Batch, Route, encode_batch, encode_joinable
from godwit.wire.control import (
    ControlMessage,
    DeliveryOpen,
    Labels,
    Subscribe,
    Subscribed,
    decode_control,
    encode_control,
    encode_in_band,
)
from godwit.wire.epochs import Epoch

FEED, LIVE = 1, 2


def batch(payloads: list[bytes], offset: int, *, qos: int = 1, retain: bool = False, topic: int = 1) -> bytes:
    return encode_joinable(Batch(payloads, 100, qos, retain, None, Route(topic, 1, offset, 200)))


class SubscriptionBench:
    """The subscriptions of a client with a stub connection, and the broker's side of it."""

    def __init__(self) -> None:
        self.events: list[ClientEvent] = []
        self.violations: list[str] = []
        self.requests = RequestQueue()
        self.work: list[Received] = []
        self.subscriptions = Subscriptions(self.requests, self.events, self._note, self.work.append)
        self.connection = StubConnection()
        self.answered = 0
        self.records: dict[int, int] = {}

    def _note(self, connection: Connection, reason: str) -> None:
        assert connection is self.connection.real
        self.violations.append(reason)

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, log: bytes = b"log", epochs: Sequence[Epoch] = ()) -> None:
        self.connection = StubConnection()
        self.records = {}
        self.answered = 0
        self.requests.attach(self.connection.real)
        self.subscriptions.attach(self.connection.real, log, epochs)
        self.requests.resend()

    def detach(self) -> None:
        self.requests.detach()
        self.subscriptions.detach()

    def sent(self) -> list[ControlMessage]:
        """Return the control messages of the client since the last call."""
        self.requests.pump(0.0)
        new = self.connection.sent[self.answered :]
        self.answered = len(self.connection.sent)
        messages = []
        for record in new:
            message = decode_control(record.body)
            assert isinstance(message, ControlMessage)
            messages.append(message)
        return messages

    def asked(self) -> list[Subscribe]:
        return [message for message in self.sent() if isinstance(message, Subscribe)]

    # -- the broker ---------------------------------------------------------------------------------------------------

    def started(self, *, start: Start = None, next_offset: int = 0, cursor: str | None = None) -> Subscription:
        """A subscription that the broker has agreed to."""
        subscription = self.subscriptions.subscribe(("a/#",), start=start, since_us=None, cursor=cursor)
        (ask,) = self.asked()
        self.agree(ask, next_offset)
        return subscription

    def agree(self, ask: Subscribe, next_offset: int, same_below: int | None = None) -> None:
        self.open(ask.subscription)
        reply = Subscribed(
            request=ask.request, subscription=ask.subscription, next_offset=next_offset, same_below=same_below
        )
        assert self.subscriptions.handle_subscribed(reply)

    def open(self, number: int = 0) -> None:
        for channel, live in ((FEED + 2 * number, False), (LIVE + 2 * number, True)):
            self.receive(channel, encode_control(DeliveryOpen(subscription=number, live=live)))
            labels = Labels(topics=[(1, "a/b"), (2, "a/c")], publishers=[(1, "someone")])
            self.receive(channel, encode_in_band(labels))

    def receive(self, channel: int, body: bytes, *, reliable: bool = True, last: bool = False) -> int:
        """Receive a record, and return its number."""
        number = 0
        if reliable:
            number = self.records.get(channel, 0)
            self.records[channel] = number + 1
        self.subscriptions.handle_received(Received(self.connection.real, channel, number, body, reliable, last))
        return number

    def receive_live(self, payloads: list[bytes], number: int) -> None:
        body = encode_batch(Batch(payloads, 100, 0, False, None, Route(1, 1, number, 200)))
        self.receive(LIVE, body, reliable=False)


def take_all(subscription: Subscription) -> list[Message]:
    found = []
    while (messages := subscription.take()) is not None:
        found += messages
    return found


def payloads(messages: list[Message] | None) -> list[bytes]:
    return [message.payload for message in messages or []]
