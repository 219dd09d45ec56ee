"""The sans-IO client of one broker, over reconnects: the counterpart of the server.

    application   publisher, subscribe, unsubscribe, commit, request, submit, watch, volunteer, finish and others
    input         connect, close, receive (a train), handle_timers, handle_unreachable
    output        events, next_train, next_timer
    getters       state, name, statistics, held_bytes, work_held, max_payload_bytes

    connecting --welcome--> online --connection lost--> offline --pause--> connecting
        \\--no answer, refused--> offline        any --close(), or a final refusal by the broker--> closed

While the broker does not answer, a client with several addresses stays online and tries the other ones beside the
present connection: the first broker that accepts its login replaces it, unless the present one answers before.

After any input or application call, poll the output. Data from the broker never raises an error here: a protocol
violation closes the connection, and the client connects again later. Application calls check their arguments before
they change anything: a UsageError has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from godwit.broker.topics import check_filter, check_topic
from godwit.client.arguments import check_argument_name, check_number, check_position, check_retained, check_start
from godwit.client.config import ClientConfig, make_login, welcome_problem
from godwit.client.dialer import Backoff, Dialer, Random
from godwit.client.events import ClientEvent, Ended, Offline, Online, Reply, Unanswered
from godwit.client.jobs import JobView
from godwit.client.message import Bookmark
from godwit.client.publisher import Publisher, Publishers
from godwit.client.relay import RelaySender
from godwit.client.requests import RequestQueue
from godwit.client.subscription import Membership, Subscription, Subscriptions, with_membership
from godwit.client.work import ClientWork
from godwit.client.worker import Lease
from godwit.errors import FINAL_CODES, ConnectionClosedError, DecodeError, SendBufferFullError, UsageError
from godwit.limits import LOGIN_TIMEOUT_S, MAX_FILTERS
from godwit.transport.connection import Connection
from godwit.transport.connection_state import Statistics
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import (
    Address,
    ChannelConfirmed,
    Closed,
    Connected,
    ConnectionState,
    Event,
    Received,
    Train,
    Writable,
)
from godwit.transport.sealing import Sealer
from godwit.wire.control import (
    ControlMessage,
    CursorCommit,
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
from godwit.wire.control_base import Code, Qos
from godwit.wire.jobs import JobSpec
from godwit.wire.relay import RelayOpened

ClientState: TypeAlias = Literal["connecting", "online", "offline", "closed"]

_ENDING_CODES: Final = frozenset((Code.KICKED, Code.TAKEN_OVER))
"""These end the client whatever other brokers would answer: the client was removed, or a newer one has its name."""
INSTANCE_BYTES: Final = 16
UNANSWERED_S: Final = 1.0
"""After this time without a packet from the broker, a client that waits for one asks the broker and the network."""
SUSPECT_PROBES: Final = 4
"""The connection is given up no sooner than after this many probe timeouts."""
BESIDE_S: Final = 1.0
"""How long other brokers are tried beside a connection before it is given up, unless it has answered by then."""


class ClientProtocol:
    """The sans-IO client; see the module's documentation.

    Args:
        config: the settings.
        entropy: returns the given number of random bytes.
        random: a source of random numbers for pauses.
        relay: the bridge that this client is for, if it is for one.
        sealer: how connections are sealed; None: they are plain.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        entropy: Callable[[int], bytes],
        random: Random,
        relay: RelaySender | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        self.config = config
        self.relay = relay
        self.state: ClientState = "offline"
        self.name = config.name or ""
        """The client's name; assigned by the broker if the configuration has none."""
        self.instance = entropy(INSTANCE_BYTES)
        """Identifies this run of the client."""
        self.pending_events: list[ClientEvent] = []
        """What the next call of `events` returns; always the same list."""
        self._requests = RequestQueue()
        self._publishers = Publishers(config.send_buffer_bytes, self.pending_events, self.instance.hex())
        self._sending = self._publishers.state
        self._work = ClientWork(
            config.send_buffer_bytes, self._requests, self.pending_events, self.instance, self._note_violation
        )
        self._subscriptions = Subscriptions(
            self._requests, self.pending_events, self._note_violation, self._work.handle_opened
        )
        self._endpoint = Endpoint(config.endpoint, entropy=entropy, sealer=sealer)
        self._backoff = Backoff(config.retry_min_s, config.retry_max_s, random)
        self._dialer = Dialer(self._endpoint, self._backoff)
        self._connection: Connection | None = None
        self._login: int | None = None
        """The number of the login request, until it is answered."""
        self._login_on: Connection | None = None
        """Where the login was sent: the present connection, or one to another broker beside it."""
        self._login_by: float | None = None
        self._online_since: float | None = None
        self._was_online = False
        self._violation: tuple[Connection, str] | None = None
        self._check_at: float | None = None
        """When to check whether the broker still answers; None while nothing was sent since the last check."""
        self._suspected_at: float | None = None
        """Since when other brokers are tried beside the present connection."""

    # -- application calls: publish, subscribe, request ---------------------------------------------------------------

    def on_sending(self, *, begun: Callable[[], None], full: Callable[[], None]) -> None:
        """Set the callbacks that ask for trains to be polled, from inside `Publisher.send` and calls about work.

        Args:
            begun: called when a batch or group gets its first part: poll at the end of the turn.
            full: called when a full batch or group was handed to the transport: poll now.
        """
        self._sending.on_batch_begun = self._work.channel.on_begun = begun
        self._sending.on_batch_full = self._work.channel.on_full = full

    def publisher(
        self, topic: object, *, qos: object = 1, identity: object = None, epoch: object = 0, sequence: object = 0
    ) -> Publisher:
        """Return the publisher of a topic and QoS. The arguments are checked here, whatever their types are.

        Args:
            topic: the topic to publish to.
            qos: 0, 1 or 2.
            identity: the name under which the broker recognises repeats; with it each call makes a new publisher.
            epoch: with an identity, the number of this run: a higher epoch restarts the sequence.
            sequence: the sequence of the first message, to resume after a restart of the program.

        Raises UsageError for an invalid argument, and if the client is closed.
        """
        self._require_open()
        name = check_topic(topic)
        if qos not in (0, 1, 2):
            raise UsageError(f"QoS {qos!r} does not exist: choose 0, 1 or 2")
        known: Qos = 0 if qos == 0 else 1 if qos == 1 else 2
        return self._publishers.publisher(
            name,
            known,
            None if identity is None else check_argument_name("identity", identity),
            check_number("epoch", epoch),
            check_number("sequence", sequence),
        )

    def subscribe(
        self,
        filters: Sequence[object],
        *,
        start: object = None,
        since_us: object = None,
        cursor: object = None,
        retained: object = None,
        no_local: object = False,
        is_responder: bool = False,
        membership: Membership | None = None,
    ) -> Subscription:
        """Subscribe to all topics that match one of the filters. SubscriptionStarted or SubscriptionEnded follows.

        The arguments are checked here, whatever their types are.

        Args:
            filters: the topic filters. The same filters and cursor again return the same subscription.
            start: an offset, a bookmark, "latest" or "earliest"; None for the broker's default.
            since_us: begin with the first message published at or after this time; excludes `start`.
            cursor: the name of a position that the broker stores and `commit` moves.
            retained: when retained messages are sent first; None for the broker's default.
            no_local: whether this client's own messages are not delivered.
            is_responder: whether the application replies to the requests among the messages.
            membership: the consumer group that the subscription is a member of. A filter `$share/NAME/FILTER` names
                one, too.

        Raises UsageError for an invalid argument, and if the client is closed.
        """
        self._require_open()
        patterns, membership = with_membership(filters, membership)
        for pattern in patterns:
            check_filter(pattern)
        unique = tuple(sorted(set(patterns)))
        if not 1 <= len(unique) <= MAX_FILTERS:
            raise UsageError(f"{len(unique)} filters: a subscription has 1 to {MAX_FILTERS}")
        begin = check_start(start)
        since = None if since_us is None else check_position("since_us", since_us)
        handling = check_retained(retained)
        if begin is not None and since is not None:
            raise UsageError("start and since are two ways to say the same: give one of them")
        if membership is not None:
            check_argument_name("group", membership.group)
            if cursor is not None or isinstance(begin, Bookmark) or no_local or handling is not None:
                raise UsageError("a group has a position of its own: leave out cursor, bookmark, retained and no_local")
        name = None if cursor is None else check_argument_name("cursor", cursor)
        if name is not None and self.config.name is None:
            raise UsageError(
                f"the cursor {name[:40]!r} of a client without a name: the broker stores cursors by the name of "
                "the client; connect with name='...'"
            )
        return self._subscriptions.subscribe(
            unique,
            start=begin,
            since_us=since,
            cursor=name,
            retained=handling,
            no_local=bool(no_local),
            is_responder=is_responder,
            membership=membership,
        )

    def unsubscribe(
        self, subscription: Subscription, *, keep: bool = False, offset: int | None = None, handled: int = 0
    ) -> int:
        """End a subscription.

        Args:
            subscription: the subscription to end.
            keep: whether the session stores its position for a later run of this client.
            offset: the position to store; None for the position behind the last confirmed message.
            handled: of a member of a group, how many messages of the current record are processed.

        Returns the number of the request; its Reply confirms that the subscription has ended at the broker.
        """
        self._require_open()
        return self._subscriptions.unsubscribe(subscription, keep=keep, offset=offset, handled=handled)

    def commit(self, subscription: Subscription, offset: int) -> int:
        """Set the stored position of a subscription with a cursor. Return the number of the request."""
        offset = subscription.reached(offset)
        epochs = subscription.epochs_at(offset)
        return self.request(
            lambda number: CursorCommit(request=number, subscription=subscription.number, offset=offset, epochs=epochs)
        )

    def request(self, make: Callable[[int], ControlMessage]) -> int:
        """Send a request, and again after each reconnect until it is answered; the event Reply has the answer.

        Args:
            make: returns the message for a request number.

        Returns the request number. Raises UsageError if the message is too long, and if the client is closed.
        """
        self._require_open()
        number = self._requests.next_number()
        self._requests.request(number, make(number))
        return number

    def forget(self, request: int) -> None:
        """Do not repeat this request, and report no Reply to it."""
        self._requests.forget(request)

    def _require_open(self) -> None:
        if self.state == "closed":
            raise UsageError("the client is closed: make another one")

    # -- application calls: jobs --------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec, payload: bytes) -> JobView:
        """Submit a job. JobTaken or JobRefused follows, then JobChanged for each change.

        Args:
            spec: the kind and the options. Its key identifies the job: the same key again is the same job; an empty
                key is replaced by a new one. Its size is replaced by that of the payload.
            payload: the input of the job.

        Returns the view of the job. Raises UsageError for an invalid option, RecordTooLargeError for a payload that
        is too long, and BufferFullError if too much is not answered (wait for the event WorkBufferAvailable).
        """
        self._require_open()
        self._work.is_used = True
        return self._work.jobs.submit(spec, payload)

    def watch(self, number: object) -> JobView:
        """Follow a job by its number. JobChanged reports its state, JobRefused that it does not exist."""
        self._require_open()
        if type(number) is not int or not 1 <= number < 2**63:
            raise UsageError(f"no job has the number {number!r}: they are counted from 1")
        self._work.is_used = True
        return self._work.jobs.watch(number)

    def unwatch(self, view: JobView) -> None:
        """Report no further changes of the job to this view."""
        self._work.jobs.unwatch(view)

    # -- application calls: work --------------------------------------------------------------------------------------

    def volunteer(self, kinds: Sequence[str], capacity: int) -> None:
        """Ask for tasks. VolunteerAccepted or VolunteerRefused follows, and Leased for each task.

        Args:
            kinds: the kinds of work, instead of those of an earlier call.
            capacity: the number of tasks at the same time.

        Raises UsageError for an invalid argument, and if the client is closed.
        """
        self._require_open()
        self._work.leases.volunteer(kinds, capacity)
        self._work.is_used = True

    def withdraw(self) -> None:
        """Ask for no more tasks. Running ones may still be finished or given back."""
        self._require_open()
        self._work.leases.withdraw()

    def finish(self, lease: Lease, result: bytes) -> None:
        """Report the result of a task; the event Reported confirms it.

        For a lease that has ended nothing happens; the same holds for fail, give_back and step.

        Raises UsageError or RecordTooLargeError for an invalid result, and BufferFullError if too much is not
        confirmed (wait for the event WorkBufferAvailable).
        """
        self._work.leases.finish(lease, result)

    def fail(self, lease: Lease, error: str, is_final: bool = False) -> None:
        """Report a failed attempt. With `is_final` the task is not tried again."""
        self._work.leases.fail(lease, error, is_final=is_final)

    def give_back(self, lease: Lease) -> None:
        """Return a task undone, for another worker."""
        self._work.leases.give_back(lease)

    def step(self, lease: Lease, progress: float | None, note: str = "") -> None:
        """Report the progress of a task, between 0 and 1. Only the newest is sent, a few times a second."""
        self._work.leases.step(lease, progress, note)

    # -- input --------------------------------------------------------------------------------------------------------

    def connect(
        self, addresses: Sequence[Address], now: float, *, brokers: Mapping[Address, Hashable] | None = None
    ) -> None:
        """Connect to the broker at one of these addresses, and reconnect after a loss.

        A later call replaces the addresses. Raises UsageError without an address, and if the client is closed.

        Args:
            addresses: where to connect.
            now: the time.
            brokers: the broker of each address, if several addresses may lead to the same one. A refusal ends the
                client when every broker has refused it.
        """
        if not addresses:
            raise UsageError("no address to connect to: give at least one")
        self._require_open()
        self._dialer.set_addresses(addresses, brokers)
        if self.state == "offline" and self._dialer.due_at is None:
            self.state = "connecting"
            self._dialer.begin(now)

    def close(self, now: float) -> None:
        """Close the connection and end at once; unconfirmed messages are dropped. May be repeated."""
        if self.state != "closed":
            self._finish(Code.NORMAL, "closed by the application", now)

    def receive(self, train: Train, now: float) -> None:
        """Handle a train of packets from the network."""
        self._sending.now = self._subscriptions.now = now
        self._endpoint.receive(train, now)
        if self._suspected_at is not None:
            self._check_suspicion(self._suspected_at, now)
        self._process_events(now)

    def handle_timers(self, now: float) -> None:
        """Handle all timers that are due."""
        sending = self._sending
        sending.now = self._subscriptions.now = now
        if sending.expiring:
            self._publishers.handle_timer(now)
        self._endpoint.handle_timers(now)
        if self._dialer.due_at is not None and now >= self._dialer.due_at:
            self._dialer.handle_timers(now)
            if self.state == "offline" and self._dialer.is_dialing:
                self.state = "connecting"
        if self._login_by is not None and now >= self._login_by:
            self._login_by = None
            if self._login_on is not None:
                self._login_on.close(now, Code.TIMEOUT, f"the broker gave no welcome within {LOGIN_TIMEOUT_S:g} s")
        if self._check_at is not None and now >= self._check_at:
            self._check_answered(now)
        if self.relay is not None:
            self.relay.handle_timers(now)
        self._process_events(now)

    def handle_unreachable(self, address: Address, now: float) -> None:
        """Handle a report of the network that nothing listens at the address.

        The report may be forged: it only ends a connection on which the broker has not answered for a while.
        """
        connection = self._connection
        if connection is None or connection.peer_address != address:
            return
        since = connection.unanswered_since
        if since is not None and now - since >= UNANSWERED_S:
            self._give_up(connection, now, "and the network reports that nothing listens there")
            self._process_events(now)

    # -- output -------------------------------------------------------------------------------------------------------

    def events(self) -> list[ClientEvent]:
        """Return the events since the last call."""
        events = self.pending_events[:]
        self.pending_events.clear()
        self._subscriptions.announced.clear()
        return events

    def next_train(self, now: float) -> Train | None:
        """Return the next train to send, or None. Open batches are cut when there is nothing else to send."""
        self._sending.now = now
        if self._violation is not None:
            self._process_events(now)
        is_online = self.state == "online"
        work = self._work
        if is_online and work.is_used and (work.jobs.to_watch or work.jobs.to_unwatch):
            work.jobs.send_requests()
        if self._requests.unsent:
            self._requests.pump(now)
        endpoint = self._endpoint
        connection = self._connection
        if connection is None or not is_online:
            return self._checked_later(endpoint.next_train(now), now)
        sending = self._sending
        if not (work.is_used or sending.open_batches or sending.waiting_for_transport or sending.waiting_for_channel):
            return self._checked_later(endpoint.next_train(now) if endpoint.awake else None, now)
        if connection.has_unsent:
            train = self._checked_later(endpoint.next_train(now), now)
            if train is not None:
                return train
        # Before acknowledgements and confirms are sent alone: they share a packet with the records of this turn.
        if sending.waiting_for_transport or sending.waiting_for_channel:
            self._publishers.retry_blocked()
        if work.is_used:
            work.poll(connection, now)
        if sending.open_batches and not sending.is_filling and not connection.has_unsent:
            self._publishers.cut_open_batches()
        return self._checked_later(endpoint.next_train(now) if endpoint.awake else None, now)

    def _checked_later(self, train: Train | None, now: float) -> Train | None:
        """Return the train. If there is one, look later whether the broker has answered."""
        if train is not None and self._check_at is None:
            self._check_at = now + UNANSWERED_S
        return train

    def next_timer(self) -> float | None:
        """Return when to call handle_timers, if nothing else happens before."""
        next_at = self._endpoint.next_timer()
        work = self._work
        group_at = work.channel.due_at
        lease_at = work.leases.due_at if work.leases.is_used else None
        expiring = self._sending.expiring
        expire_at = min(expiring.values()) if expiring else None
        relay_at = None if self.relay is None else self.relay.due_at
        for due_at in (
            self._dialer.due_at, self._login_by, self._requests.due_at, group_at, lease_at, self._check_at, expire_at,
            relay_at,
        ):  # fmt: skip
            if due_at is not None and (next_at is None or due_at < next_at):
                next_at = due_at
        return next_at

    # -- getters ------------------------------------------------------------------------------------------------------

    @property
    def statistics(self) -> Statistics:
        """The statistics of the present connection."""
        return Statistics() if self._connection is None else self._connection.statistics

    @property
    def held_bytes(self) -> int:
        """The unconfirmed bytes of all publishers."""
        return self._sending.held_bytes

    @property
    def work_held(self) -> int:
        """The number of jobs and reports without an answer; the event WorkIdle reports that it is 0."""
        return self._work.channel.held_parts

    @property
    def max_payload_bytes(self) -> int:
        """The longest payload of a job or result that the broker accepts, as far as it is known."""
        return self._work.channel.max_payload_bytes

    @property
    def endpoint(self) -> Endpoint:
        """The transport endpoint."""
        return self._endpoint

    # -- transport events ---------------------------------------------------------------------------------------------

    def _process_events(self, now: float) -> None:
        while True:
            if self._violation is not None:
                connection, reason = self._violation
                self._violation = None
                if connection is self._connection:
                    connection.close(now, Code.PROTOCOL, reason)
            if not self._endpoint.pending_events:
                break
            for event in self._endpoint.events():
                try:
                    self._handle_event(event, now)
                except DecodeError as error:
                    event.connection.close(now, Code.PROTOCOL, str(error))
                except ConnectionClosedError:
                    pass  # the event Closed follows
        if self._requests.unsent:
            self._requests.pump(now)

    def _handle_event(self, event: Event, now: float) -> None:
        connection = event.connection
        if isinstance(event, Connected):
            self._handle_connected(connection, now)
        elif isinstance(event, Closed):
            if self._is_refusal(event.code):
                self._dialer.handle_refused(connection.peer_address)
            elif event.code == Code.STANDBY:
                self._dialer.handle_standby(now)
            self._handle_closed(connection, event.code, event.reason, now)
        elif connection is not self._connection:  # beside the present one, or one that this client has dropped
            if connection is self._login_on and isinstance(event, Received) and event.channel == 0:
                self._handle_control(connection, event.body, now)
        elif isinstance(event, Received):
            if event.channel == 0:
                self._handle_control(connection, event.body, now)
            elif event.channel == self._work.inbound:
                self._work.handle_received(event)
            else:
                self._subscriptions.handle_received(event)
        elif isinstance(event, ChannelConfirmed):
            self._handle_confirmed(event)
        elif isinstance(event, Writable):
            self._requests.pump(now)
            self._work.channel.hand_over()
            self._publishers.handle_writable()
            if self.relay is not None:
                self.relay.pump()

    def _handle_confirmed(self, event: ChannelConfirmed) -> None:
        if event.channel == self._work.channel.channel:
            self._work.channel.handle_confirmed(event.sequence)
        elif self.relay is not None and event.channel == self.relay.channel:
            self.relay.handle_confirmed(event.sequence)
        else:
            self._publishers.handle_confirmed(event.channel, event.sequence, event.reached)

    def _handle_connected(self, connection: Connection, now: float) -> None:
        if not self._dialer.handle_connected(connection, now):
            connection.close(now)
            return
        if self.state != "online":
            self._connection = connection
        self._login_on = connection
        self._login = self._requests.next_number()
        self._login_by = now + LOGIN_TIMEOUT_S
        login = make_login(self.config, self._login, self.instance, connection.binding, is_first=not self._was_online)
        connection.send(0, encode_control(login))

    def _handle_closed(self, connection: Connection, code: int, reason: str, now: float) -> None:
        if connection is self._connection:
            self._handle_lost(code, reason, now)
        elif connection is self._login_on:  # the other broker has not accepted the login: try the next one
            self._login = self._login_on = self._login_by = None
            self._dialer.retry(now)
        elif self._dialer.handle_closed(connection, now):
            if self._suspected_at is None:
                self._handle_lost(code, reason, now)
            else:
                self._dialer.retry(now)

    def _handle_lost(self, code: int, reason: str, now: float) -> None:
        """Go offline, or end: the connection has ended, or could not be opened."""
        is_refusal = self._is_refusal(code)
        is_beside = self._suspected_at is not None
        # An address that was tried beside may lead to the same broker, which then takes the client over from itself.
        is_own = is_beside and code == Code.TAKEN_OVER and self._login_on is not None
        if (code in _ENDING_CODES and not is_own) or (is_refusal and not is_beside and self._dialer.is_refused_by_all):
            self._finish(code, reason, now)
            return
        if is_beside and (self._login_on is not None or self._dialer.is_dialing):
            login = self._login, self._login_on, self._login_by
            self._detach()
            self._login, self._login_on, self._login_by = login
            self._connection = self._login_on
            self.state = "connecting"
            self.pending_events.append(Offline(code, reason, 0.0))
            return
        if not is_refusal:
            self._dialer.forget_refusals()
        if self._online_since is not None and now - self._online_since >= self.config.retry_max_s:
            self._backoff.reset()
        self._detach()
        self.state = "offline"
        pause_s = self._dialer.retry(now, is_restart=code in (Code.SHUTDOWN, Code.RESET))
        self.pending_events.append(Offline(code, reason, pause_s))

    def _is_refusal(self, code: int) -> bool:
        """Whether this broker would refuse the client again. Another one may accept it.

        A client that was online once tries again after SEALING: an attacker on the path can cause it for a moment, and
        must not end all clients.
        """
        if code in (Code.NAME_IN_USE, Code.SEALING):
            return not self._was_online
        return code in FINAL_CODES

    def _detach(self) -> None:
        self._connection = self._login = self._login_on = self._login_by = self._online_since = self._check_at = None
        self._suspected_at = self._dialer.apart_from = None
        self._requests.detach()
        self._publishers.detach()
        self._subscriptions.detach()
        self._work.detach()
        if self.relay is not None:
            self.relay.detach()

    def _finish(self, code: int, reason: str, now: float) -> None:
        connections = self._connection, self._login_on
        self._dialer.stop(now)
        self._detach()
        self.state = "closed"
        self._publishers.close()
        self._subscriptions.close()
        for connection in connections:
            if connection is not None:
                connection.close(now, Code.NORMAL)
        self.pending_events.append(Ended(code, reason))

    def _check_answered(self, now: float) -> None:
        """Give up a connection on which the broker does not answer. Ask a broker that owes a reply and is idle."""
        self._check_at = None
        connection = self._connection
        if connection is None or connection.state is not ConnectionState.OPEN or self.state != "online":
            return  # before the welcome the round trip is not known, and the login has a time limit
        since = connection.unanswered_since
        if since is None:
            is_relaying = self.relay is not None and self.relay.is_waiting
            if self.held_bytes or self.work_held or self._requests.is_waiting or is_relaying:
                self._check_at = connection.last_received_at + UNANSWERED_S
                if now >= self._check_at:
                    connection.ping()
                    self._check_at = now + UNANSWERED_S
            return
        suspect_at = since + self.config.suspect_s
        give_up_at = max(suspect_at, since + SUSPECT_PROBES * connection.probe_timeout_s)
        if self._dialer.has_others(connection.peer_address):
            give_up_at = max(give_up_at, suspect_at + BESIDE_S)
            if now >= suspect_at and self._suspected_at is None:
                self._suspected_at = now
                self._dialer.apart_from = connection.peer_address
                self._dialer.begin(now)
        if now >= give_up_at:
            self._give_up(connection, now, "although it was asked")
            return
        self._check_at = since + UNANSWERED_S
        if now >= self._check_at:
            self.pending_events.append(Unanswered(connection.peer_address))
            self._check_at = min(give_up_at, now + UNANSWERED_S)
            if now < suspect_at < self._check_at:
                self._check_at = suspect_at

    def _check_suspicion(self, suspected_at: float, now: float) -> None:
        """Keep the present connection if its broker has answered, and end the attempts beside it."""
        connection = self._connection
        if connection is None or connection.state is not ConnectionState.OPEN:
            return
        if connection.last_received_at > suspected_at:
            beside = self._login_on
            self._dialer.stop(now)
            self._login = self._login_on = self._login_by = self._suspected_at = self._dialer.apart_from = None
            if beside is not None:
                beside.close(now, Code.NORMAL)

    def _leave(self, accepted: Connection, now: float) -> None:
        """Replace the present connection by one to another broker, which has accepted the login."""
        left = self._connection
        self._detach()
        self._dialer.stop(now)
        self._connection = accepted
        if left is not None:
            silent_s = now - left.last_received_at if left.state is ConnectionState.OPEN else 0.0
            text = f"nothing was received from the broker for {silent_s:.1f} s, and another one has accepted the client"
            left.close(now, Code.NORMAL)  # if it arrives, that broker publishes no will
            self.pending_events.append(Offline(Code.TIMEOUT, text, 0.0))

    def _give_up(self, connection: Connection, now: float, why: str) -> None:
        silent_s = now - connection.last_received_at
        connection.fail(
            now, Code.TIMEOUT, f"nothing was received from the broker for {silent_s:.1f} s, {why}", "timeout"
        )

    def _note_violation(self, connection: Connection, reason: str) -> None:
        """Remember a protocol violation found by a call without `now`; the next poll closes the connection."""
        self._violation = connection, reason

    # -- control messages ---------------------------------------------------------------------------------------------

    def _handle_control(self, connection: Connection, body: bytes, now: float) -> None:
        message = decode_control(body)
        if isinstance(message, Ping):
            self._answer(connection, Pong(request=message.request))
        elif isinstance(message, UnknownKind):
            if message.request is not None:
                text = f"this client does not know the kind {message.kind!r}"
                self._answer(connection, Error(code=Code.UNKNOWN_KIND, text=text, request=message.request))
        elif connection is self._login_on:
            self._handle_login_answer(connection, message, now)
        else:
            self._handle_message(message, now)

    def _answer(self, connection: Connection, message: ControlMessage) -> None:
        with suppress(SendBufferFullError):  # a broker that asks faster than it reads gets no answer
            connection.send(0, encode_control(message))

    def _handle_login_answer(self, connection: Connection, message: ControlMessage, now: float) -> None:
        if isinstance(message, Error) and message.request == self._login:
            connection.close(now, message.code, message.text)
        if not isinstance(message, Welcome) or message.request != self._login:
            return
        problem = welcome_problem(message, self.config, connection.binding)
        if problem:
            connection.close(now, Code.NOT_ALLOWED, problem)
            return
        if connection is not self._connection:
            self._leave(connection, now)
        self._login = self._login_on = self._login_by = None
        self._online_since = now
        self._was_online = True
        self._dialer.forget_refusals()
        self.state = "online"
        self.name = message.name
        self.pending_events.append(Online(message.resumed, message.name))
        self._requests.attach(connection)
        self._work.attach(connection, message.log, message.max_message_bytes, now)
        self._subscriptions.attach(connection, message.log, message.epochs)
        self._requests.resend()
        self._publishers.attach(connection, message.max_message_bytes)
        if self.relay is not None:
            self.relay.attach(connection, message.max_message_bytes, now)

    def _handle_message(self, message: ControlMessage, now: float) -> None:
        if isinstance(message, Opened):
            self._publishers.handle_opened(message.channel, message.subscribers)
        elif isinstance(message, RelayOpened):
            if self.relay is not None:
                self.relay.handle_opened(message, now)
        elif isinstance(message, PublishRefused):
            code, text = message.code, message.text
            if self.relay is None or not self.relay.handle_refused(message.channel, code, text, now):
                self._publishers.handle_refused(message.channel, code, text)
        elif isinstance(message, Kicked):
            self._subscriptions.handle_kicked(message)
        elif isinstance(message, Subscribed) and self._subscriptions.handle_subscribed(message):
            pass
        elif not self._work.handle_reply(message):
            self._handle_reply(message)

    def _handle_reply(self, message: ControlMessage) -> None:
        """Handle the answer to a request of a subscription or of the application."""
        request: int | None = getattr(message, "request", None)
        if request is None:
            return
        is_error = isinstance(message, Error)
        if isinstance(message, Error) and self._subscriptions.handle_error(request, message.code, message.text):
            return
        if self._requests.handle_answer(request):
            has_ended = self._subscriptions.handle_answer(request) and is_error
            self.pending_events.append(Reply(request, Done(request=request) if has_ended else message))
