"""One broker, over reconnects: the sans-IO counterpart of the server.

    feed    connect, close, receive (a train), handle_timers; publisher, submit and the others, and what they give
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
from typing import Final

from godwit.client.backoff import Backoff, Random
from godwit.client.calls import Calls, ClientState
from godwit.client.config import ClientConfig
from godwit.client.dialing import Dialer
from godwit.client.events import ClientEvent, Ended, Offline, Online, Reply
from godwit.client.login import make_login, problem_with
from godwit.errors import ConnectionClosedError, DecodeError, SendBufferFullError, UsageError
from godwit.limits import LOGIN_TIMEOUT_S
from godwit.transport.connection import Connection
from godwit.transport.connection_state import Statistics
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, ChannelConfirmed, Closed, Connected, Event, Received, Train, Writable
from godwit.wire.control import (
    ControlMessage,
    Done,
    Error,
    Kicked,
    Opened,
    Ping,
    Pong,
    PublishRefused,
    Subscribed,
    UnknownKind,
    Welcome,
    decode_control,
    encode_control,
)
from godwit.wire.control_base import Code

__all__ = ["Client", "ClientState"]

FINAL_CODES: Final = frozenset((Code.NOT_ALLOWED, Code.BAD_NAME, Code.TAKEN_OVER, Code.KICKED, Code.VERSION))
"""After these the client does not come back: it would be sent away again."""
INSTANCE_BYTES: Final = 16


class Client(Calls):
    """See the module's first lines; what an application asks for is in its base.

    `entropy` gives random bytes, `random` random numbers, both the caller's.
    """

    def __init__(self, config: ClientConfig, *, entropy: Callable[[int], bytes], random: Random) -> None:
        super().__init__(config, instance=entropy(INSTANCE_BYTES), on_violation=self._note_violation)
        self._endpoint = Endpoint(config.endpoint, entropy=entropy)
        self._backoff = Backoff(config.retry_min_s, config.retry_max_s, random)
        self._dialer = Dialer(self._endpoint, self._backoff)
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
        if self._work.jobs.has_to_ask and self.state == "online":
            self._work.jobs.ask()
        if self._requests.has_unsent:
            self._requests.pump(now)
        train = self._endpoint.next_train(now)
        connection = self._connection
        if train is not None or connection is None or self.state != "online":
            return train
        outbox = self._outbox
        if outbox.has_kept:
            outbox.go_on()
        if self._work.is_used:
            self._work.go_on(connection, now)
        if outbox.has_begun and not connection.has_unsent:
            outbox.cut_begun()
        return self._endpoint.next_train(now)

    def next_timer(self) -> float | None:
        """When handle_timers wants to be called, if nothing else happens before."""
        timers = (
            self._endpoint.next_timer(),
            self._dialer.due_at,
            self._login_by,
            self._requests.due_at,
            self._work.next_timer(),
        )
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
    def work_held(self) -> int:
        """How many jobs and reports are not answered yet; WorkIdle tells when all are."""
        return self._work.channel.held_parts

    @property
    def max_payload_bytes(self) -> int:
        """Of a job or a result: what the broker takes, as far as it has said so."""
        return self._work.channel.max_payload_bytes

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

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
            elif event.channel == self._work.inbound:
                self._work.on_received(event)
            else:
                self._inbox.on_received(event)
        elif isinstance(event, ChannelConfirmed):
            if event.channel == self._work.channel.channel:
                self._work.channel.on_confirmed(event.sequence)
            else:
                self._outbox.on_confirmed(event.channel, event.sequence, event.reached)
        elif isinstance(event, Writable):
            self._requests.pump(now)
            self._work.channel.hand_over()
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
        self._work.detach()

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
        self._work.attach(connection, message.log, message.max_message_bytes, now)
        self._inbox.attach(connection, message.log, message.epochs)
        self._requests.resend()
        self._outbox.attach(connection, message.max_message_bytes)

    def _on_message(self, message: ControlMessage) -> None:
        if isinstance(message, Opened):
            self._outbox.on_opened(message.channel, message.subscribers)
        elif isinstance(message, PublishRefused):
            self._outbox.on_refused(message.channel, message.code, message.text)
        elif isinstance(message, Kicked):
            self._inbox.on_kicked(message)
        elif (isinstance(message, Subscribed) and self._inbox.on_subscribed(message)) or self._work.on_reply(message):
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
