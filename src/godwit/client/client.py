"""One broker, over reconnects: the sans-IO counterpart of the server.

    feed    connect, close, receive (a train), handle_timers; publisher, subscribe and the others, and what they give
    drain   events, next_train, next_timer
    look    state, name, statistics

    connecting --welcome--> online --connection lost--> offline --pause--> connecting
        \\--no answer, refused--> offline        close(), or a word of the broker that is final: closed, from any

After any feed, drain. Whatever the broker sends never raises here: what cannot be ends the connection, and another one
is tried later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from godwit.broker.topics import check_filter, check_topic
from godwit.client.backoff import Backoff, Random
from godwit.client.config import ClientConfig
from godwit.client.dialing import Dialer
from godwit.client.events import ClientEvent, Ended, Offline, Online, Reply
from godwit.client.inbox import Inbox
from godwit.client.login import make_login, problem_with
from godwit.client.outbox import Outbox
from godwit.client.publisher import Publisher
from godwit.client.requests import Requests
from godwit.client.subscription import Start, Subscription
from godwit.errors import ConnectionClosedError, DecodeError, SendBufferFullError, UsageError
from godwit.limits import LOGIN_TIMEOUT_S, MAX_CLIENT_NAME_BYTES, MAX_FILTERS
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Closed, Confirmed, Connected, Event, Received, Writable
from godwit.transport.statistics import Statistics
from godwit.transport.train import Address, Train
from godwit.wire.control import (
    Code,
    Commit,
    ControlMessage,
    Done,
    Error,
    Kicked,
    Opened,
    Ping,
    Pong,
    Qos,
    Refused,
    Subscribed,
    UnknownKind,
    Welcome,
    decode_control,
    encode_control,
)

ClientState: TypeAlias = Literal["connecting", "online", "offline", "closed"]

FINAL_CODES: Final = frozenset((Code.NOT_ALLOWED, Code.BAD_NAME, Code.TAKEN_OVER, Code.KICKED, Code.VERSION))
"""After these the client does not come back: it would be sent away again."""
INSTANCE_BYTES: Final = 16


class Client:
    """See the module's first lines. `entropy` gives random bytes, `random` random numbers, both the caller's."""

    def __init__(self, config: ClientConfig, *, entropy: Callable[[int], bytes], random: Random) -> None:
        self.config = config
        self.state: ClientState = "offline"
        self.name = config.name or ""
        """The client's; the broker gives one to a client without."""
        self.instance = entropy(INSTANCE_BYTES)
        """Made anew for each run of the client."""
        self._events: list[ClientEvent] = []
        self._endpoint = Endpoint(config.endpoint, entropy=entropy)
        self._backoff = Backoff(config.retry_min_s, config.retry_max_s, random)
        self._dialer = Dialer(self._endpoint, self._backoff)
        self._requests = Requests()
        self._outbox = Outbox(config.send_buffer_bytes, self._events, self.instance.hex())
        self._inbox = Inbox(self._requests, self._events, self._note_violation)
        self._connection: Connection | None = None
        self._login: int | None = None
        """The request that waits for its welcome."""
        self._login_by: float | None = None
        self._online_since: float | None = None
        self._was_online = False
        self._violation: tuple[Connection, str] | None = None

    # -- feed: the connection -----------------------------------------------------------------------------------------

    def connect(self, addresses: Sequence[Address], now: float) -> None:
        """Begins to connect to a broker at one of these addresses, and stays with it. Again: new addresses for it."""
        if not addresses:
            raise UsageError("no address to connect to: give at least one")
        self._require_open()
        self._dialer.set_addresses(addresses)
        if self.state == "offline" and self._dialer.due_at is None:
            self.state = "connecting"
            self._dialer.begin(now)

    def close(self, now: float) -> None:
        """Says goodbye and ends everything at once: what is not confirmed is dropped. May be repeated."""
        if self.state != "closed":
            self._finish(Code.NORMAL, "closed by the application", now)

    def receive(self, train: Train, now: float) -> None:
        """Takes a train of packets."""
        self._endpoint.receive(train, now)
        self._digest(now)

    def handle_timers(self, now: float) -> None:
        """Does what is due by now."""
        self._endpoint.handle_timers(now)
        self._dialer.handle_timers(now)
        if self.state == "offline" and self._dialer.is_dialing:
            self.state = "connecting"
        if self._login_by is not None and now >= self._login_by:
            self._drop_connection(now, Code.TIMEOUT, f"the broker gave no welcome within {LOGIN_TIMEOUT_S:g} s")
        self._digest(now)

    # -- drain --------------------------------------------------------------------------------------------------------

    def events(self) -> list[ClientEvent]:
        """What happened since the last call."""
        events = self._events[:]
        self._events.clear()
        self._inbox.on_events_fetched()
        return events

    def next_train(self, now: float) -> Train | None:
        """The next thing that may be sent now, until it gives None. Open batches go when nothing else is to be sent."""
        if self._violation is not None:
            self._digest(now)
        if self._requests.has_unsent:
            self._requests.pump(now)
        train = self._endpoint.next_train(now)
        if train is not None or self.state != "online":
            return train
        outbox = self._outbox
        if outbox.has_kept:
            outbox.go_on()
        connection = self._connection
        if outbox.has_begun and connection is not None and not connection.has_unsent:
            outbox.cut_begun()
        return self._endpoint.next_train(now)

    def next_timer(self) -> float | None:
        """When handle_timers wants to be called, if nothing else happens before."""
        timers = (self._endpoint.next_timer(), self._dialer.due_at, self._login_by, self._requests.due_at)
        return min([timer for timer in timers if timer is not None], default=None)

    # -- look ---------------------------------------------------------------------------------------------------------

    @property
    def statistics(self) -> Statistics:
        """Of the present connection."""
        return Statistics() if self._connection is None else self._connection.statistics

    @property
    def held_bytes(self) -> int:
        """What the publishers hold that is not confirmed."""
        return self._outbox.held_bytes

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def on_sending(self, *, begun: Callable[[], None], full: Callable[[], None]) -> None:
        """Has the caller told, from inside `Publisher.send`, when trains should be asked for.

        `begun`: soon, at the end of the turn: a batch has got its first message. `full`: now, a full batch waits to go.
        """
        self._outbox.on_batch_begun = begun
        self._outbox.on_batch_full = full

    # -- feed: publish, subscribe, ask --------------------------------------------------------------------------------

    def publisher(
        self, topic: str, *, qos: int = 1, identity: str | None = None, epoch: int = 0, sequence: int = 0
    ) -> Publisher:
        """The publisher of a topic and QoS. With an identity (and for recognition across runs an epoch, and the
        sequence to go on with) a new one each time."""
        self._require_open()
        check_topic(topic)
        if qos not in (0, 1, 2):
            raise UsageError(f"QoS {qos!r} does not exist: choose 0, 1 or 2")
        if identity is not None:
            _check_name("identity", identity)
        for what, value in (("epoch", epoch), ("sequence", sequence)):
            if not 0 <= value < 2**63:
                raise UsageError(f"{what} is {value}: it must lie between 0 and 2**63 - 1")
        known: Qos = 0 if qos == 0 else 1 if qos == 1 else 2
        return self._outbox.publisher(topic, known, identity, epoch, sequence)

    def subscribe(
        self, filters: Sequence[str], *, start: Start = None, since_us: int | None = None, cursor: str | None = None
    ) -> Subscription:
        """Asks for what matches one of the filters. SubscriptionStarted or -Ended tells what became of it."""
        self._require_open()
        unique = tuple(sorted(set(filters)))
        if not 1 <= len(unique) <= MAX_FILTERS:
            raise UsageError(f"{len(unique)} filters: a subscription has 1 to {MAX_FILTERS}")
        for pattern in unique:
            check_filter(pattern)
        if not isinstance(start, int) and start not in (None, "latest", "earliest"):
            raise UsageError(f"start is {start!r}: give an offset, 'latest' or 'earliest'")
        for what, value in (("start", start), ("since_us", since_us)):
            if isinstance(value, int) and not 0 <= value < 2**63:
                raise UsageError(f"{what} is {value}: it must lie between 0 and 2**63 - 1")
        if start is not None and since_us is not None:
            raise UsageError("start and since are two ways to say the same: give one of them")
        if cursor is not None:
            _check_name("cursor", cursor)
        return self._inbox.subscribe(unique, start=start, since_us=since_us, cursor=cursor)

    def unsubscribe(self, subscription: Subscription, *, keep: bool = False, offset: int | None = None) -> int:
        """Ends the subscription; the Reply to the request with the number it gives says that the broker has too.

        `keep`: the session keeps its place, for a later run of this client; `offset` says where that is, else it is
        behind what was confirmed.
        """
        self._require_open()
        return self._inbox.unsubscribe(subscription, keep=keep, offset=offset)

    def commit(self, subscription: Subscription, offset: int) -> int:
        """After a break the subscription goes on from this offset. Gives the number of the request."""
        return self.request(lambda number: Commit(request=number, subscription=subscription.number, offset=offset))

    def request(self, make: Callable[[int], ControlMessage]) -> int:
        """Asks the broker what `make` gives for the number of the request; a Reply event brings the answer.

        It is asked again after each reconnect until it is answered.
        """
        self._require_open()
        number = self._requests.number()
        self._requests.ask(number, make(number))
        return number

    def forget(self, request: int) -> None:
        """Nobody waits for the answer to this request any more: it is not asked again, and a Reply will not come."""
        self._requests.forget(request)

    def _require_open(self) -> None:
        if self.state == "closed":
            raise UsageError("the client is closed: make another one")

    # -- what the transport tells -------------------------------------------------------------------------------------

    def _digest(self, now: float) -> None:
        while True:
            if self._violation is not None:
                connection, reason = self._violation
                self._violation = None
                if connection is self._connection:
                    self._drop_connection(now, Code.PROTOCOL, reason)
            events = self._endpoint.events()
            if not events:
                break
            for event in events:
                try:
                    self._handle(event, now)
                except DecodeError as error:
                    event.connection.close(now, Code.PROTOCOL, str(error))
                except ConnectionClosedError:
                    pass  # its Closed event is on the way
        if self._requests.has_unsent:
            self._requests.pump(now)

    def _handle(self, event: Event, now: float) -> None:
        connection = event.connection
        if isinstance(event, Connected):
            self._on_connected(connection, now)
        elif isinstance(event, Closed):
            if connection is self._connection or self._dialer.on_closed(connection, now):
                self._on_lost(event.code, event.reason, now)
        elif connection is not self._connection:
            pass  # of a connection that was given up
        elif isinstance(event, Received):
            if event.channel == 0:
                self._on_control(connection, event.body, now)
            else:
                self._inbox.on_received(event)
        elif isinstance(event, Confirmed):
            self._outbox.on_confirmed(event.channel, event.sequence, event.reached)
        elif isinstance(event, Writable):
            self._requests.pump(now)
            self._outbox.on_writable()

    def _on_connected(self, connection: Connection, now: float) -> None:
        if not self._dialer.on_connected(connection, now):
            connection.close(now)
            return
        self._connection = connection
        self._login = self._requests.number()
        self._login_by = now + LOGIN_TIMEOUT_S
        login = make_login(self.config, self._login, self.instance, connection.binding, is_first=not self._was_online)
        connection.send(0, encode_control(login))

    def _on_lost(self, code: int, reason: str, now: float) -> None:
        """The connection has ended, or there was none to be had."""
        if code in FINAL_CODES or (code == Code.NAME_IN_USE and not self._was_online):
            self._finish(code, reason, now)
            return
        if self._online_since is not None and now - self._online_since >= self.config.retry_max_s:
            self._backoff.reset()
        self._detach()
        self.state = "offline"
        self._events.append(Offline(code, reason, self._dialer.retry(now)))

    def _detach(self) -> None:
        self._connection = self._login = self._login_by = self._online_since = None
        self._requests.detach()
        self._outbox.detach()
        self._inbox.detach()

    def _finish(self, code: int, reason: str, now: float) -> None:
        connection = self._connection
        self._dialer.stop(now)
        self._detach()
        self.state = "closed"
        self._outbox.close()
        self._inbox.close()
        if connection is not None:
            connection.close(now, Code.NORMAL)
        self._events.append(Ended(code, reason))

    def _drop_connection(self, now: float, code: int, reason: str) -> None:
        if self._connection is not None:
            self._connection.close(now, code, reason)

    def _note_violation(self, connection: Connection, reason: str) -> None:
        """Found where the time is not known: the next drain acts on it."""
        self._violation = connection, reason

    # -- what the broker says -----------------------------------------------------------------------------------------

    def _on_control(self, connection: Connection, body: bytes, now: float) -> None:
        message = decode_control(body)
        if isinstance(message, Ping):
            self._answer(connection, Pong(request=message.request))
        elif isinstance(message, UnknownKind):
            if message.request is not None:
                text = f"this client does not know the kind {message.kind!r}"
                self._answer(connection, Error(code=Code.UNKNOWN_KIND, text=text, request=message.request))
        elif self._login is not None:
            self._on_login_answer(connection, message, now)
        else:
            self._on_message(message)

    def _answer(self, connection: Connection, message: ControlMessage) -> None:
        with suppress(SendBufferFullError):  # whoever asks so much and does not listen gets no answer
            connection.send(0, encode_control(message))

    def _on_login_answer(self, connection: Connection, message: ControlMessage, now: float) -> None:
        if isinstance(message, Error) and message.request == self._login:
            connection.close(now, message.code, message.text)
        if not isinstance(message, Welcome) or message.request != self._login:
            return
        problem = problem_with(message, self.config, connection.binding)
        if problem:
            connection.close(now, Code.NOT_ALLOWED, problem)
            return
        self._login = self._login_by = None
        self._online_since = now
        self._was_online = True
        self.state = "online"
        self.name = message.name
        self._events.append(Online(message.resumed, message.name))
        self._requests.attach(connection)
        self._inbox.attach(connection, message.log)
        self._requests.resend()
        self._outbox.attach(connection, message.max_message_bytes)

    def _on_message(self, message: ControlMessage) -> None:
        if isinstance(message, Opened):
            self._outbox.on_opened(message.channel, message.subscribers)
        elif isinstance(message, Refused):
            self._outbox.on_refused(message.channel, message.code, message.text)
        elif isinstance(message, Kicked):
            self._inbox.on_kicked(message)
        elif isinstance(message, Subscribed) and self._inbox.on_subscribed(message):
            pass
        else:
            request: int | None = getattr(message, "request", None)
            if request is None:
                return
            if isinstance(message, Error) and self._inbox.on_error(request, message.code, message.text):
                return
            if self._requests.on_answer(request):
                is_done = self._inbox.on_answer(request) and isinstance(message, Error)
                self._events.append(Reply(request, Done(request=request) if is_done else message))


def _check_name(what: str, name: str) -> None:
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= MAX_CLIENT_NAME_BYTES:
        raise UsageError(f"{what} {name[:40]!r} has {size} bytes in UTF-8: it has 1 to {MAX_CLIENT_NAME_BYTES}")
