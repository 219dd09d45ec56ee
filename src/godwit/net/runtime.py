"""A sans-IO client in an event loop: its sockets, the delivery of its events, pending requests, and its end.

Programs use it through godwit.net.client.AsyncClient.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from godwit.client.config import ClientConfig
from godwit.client.events import (
    Available,
    ClientEvent,
    Ended,
    Leased,
    Missed,
    Offline,
    Online,
    Reply,
    Reported,
    Revoked,
    SubscriptionEnded,
    SubscriptionStarted,
    Unanswered,
    VolunteerAccepted,
    VolunteerRefused,
    WorkBufferAvailable,
)
from godwit.client.protocol import ClientProtocol, ClientState
from godwit.client.relay import RelaySender
from godwit.client.subscription import Membership, Start, Subscription
from godwit.errors import (
    AddressError,
    ForkedError,
    GodwitError,
    SocketError,
    UsageError,
    broker_error,
)
from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.net.address import family_of, format_address, is_ip_address, resolve_all
from godwit.net.diagnostics import ConnectionReporter, log_drops
from godwit.net.driver import ANY_HOST, open_driver
from godwit.net.jobs import ClientJobs
from godwit.net.loop import completes, disown_in_children, forked_error
from godwit.net.publisher import ClientPublishers
from godwit.net.security import ClientSealer, Security
from godwit.net.subscription import AsyncSubscription
from godwit.net.tasks import Handler, TaskExecutor
from godwit.net.udp import UdpSocket
from godwit.transport.events import Address, ConnectionState
from godwit.wire.control import ControlMessage, Error, RetainHandling
from godwit.wire.control_base import Code
from godwit.wire.packet import NONCE_BYTES, OVERHEAD_BYTES, HelloFrame, encode_frame, encode_packet

CLOSE_TIMEOUT_S: Final = 0.25
"""How long a client waits for the acknowledgement of its close: if the close got lost, the will would be published."""
UNSUBSCRIBE_TIMEOUT_S: Final = 5.0
UNSUBSCRIBE_OFFLINE_TIMEOUT_S: Final = 0.5
"""How long the end of a subscription waits for the broker's answer, while the client is online and while it is not."""
RETURN_TIMEOUT_S: Final = 1.0
"""How long a worker that stops waits until the broker has confirmed its last reports."""
RESOLVE_GRACE_S: Final = 0.5
"""When the names of some brokers are resolved, the other names have this much more time."""
PROBE_S: Final = 1.0
"""How long a reachability probe waits for a report of the network."""
_POLL_S: Final = 0.005

OnState: TypeAlias = Callable[[ClientState, str], None]
"""Called with the new state of the client, and the reason if the connection was lost."""
T = TypeVar("T")

_logger = logging.getLogger(__name__)


class ClientRuntime:
    """One sans-IO client (the `core`) in the running event loop, with all futures that wait for it."""

    def __init__(
        self,
        config: ClientConfig,
        addresses: Sequence[Address],
        *,
        on_state: OnState | None = None,
        resolver: BrokerResolver | None = None,
        relay: RelaySender | None = None,
        securities: Mapping[tuple[str, int], Security] | None = None,
    ) -> None:
        """Open the sockets and begin to connect to one of the addresses.

        With a `resolver`, the names of the brokers are resolved again before each further round of attempts. `relay` is
        the bridge that the client is for, if it is for one.
        `securities`: see godwit.net.security; without it a connection is sealed if it leaves this machine.
        """
        self.last_reason = ""
        """Why the connection was lost, or could not be made, the last time."""
        self._resolver = resolver
        self._brokers: dict[Address, tuple[str, int]] = {}
        """Host and port of the broker of each address that the core uses, as the application gave them."""
        self._resolving: asyncio.Task[None] | None = None
        self._probe: ReachabilityProbe | None = None
        self._sockets = open_sockets(addresses, is_any=resolver is not None and resolver.is_open_ended)
        self._families = {family_of(udp.local_address) for udp in self._sockets}
        receive_buffer_bytes = min(udp.receive_buffer_bytes for udp in self._sockets)
        config = replace(config, endpoint=replace(config.endpoint, receive_buffer_bytes=receive_buffer_bytes))
        sealer = ClientSealer(securities or {}, self._broker_of, has_secret=bool(config.secret))
        self.core = core = ClientProtocol(
            config, entropy=os.urandom, random=random.Random(), relay=relay, sealer=sealer
        )
        self._on_state = on_state
        self._failure: GodwitError | None = None
        """Why the client has ended."""
        self.loop = asyncio.get_running_loop()
        """The loop that runs the client."""
        self._online: asyncio.Future[None] = self.loop.create_future()
        self._requests: dict[int, asyncio.Future[ControlMessage]] = {}
        self._subscriptions: dict[Subscription, AsyncSubscription] = {}
        self.driver = open_driver(core, self._sockets, self._on_events)
        self.schedule_flush = self.driver.schedule_flush
        self.publishers = ClientPublishers(core, self.driver.flush, self.schedule_flush)
        self.jobs = ClientJobs(core, self.schedule_flush, self.request)
        self._executor: TaskExecutor | None = None
        self.broker = ", ".join(map(format_address, addresses)) if resolver is None else str(resolver)
        """The addresses that the application gave, for texts."""
        self._reporter = ConnectionReporter(self.loop, self.broker)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Online: self._on_online,
            Offline: self._on_offline,
            Unanswered: self._on_unanswered,
            Ended: self._on_ended,
            Reply: self._on_reply,
            SubscriptionStarted: self._on_subscription,
            Available: self._on_subscription,
            Missed: self._on_subscription,
            SubscriptionEnded: self._on_subscription,
            Leased: self._on_work,
            Revoked: self._on_work,
            Reported: self._on_work,
            VolunteerAccepted: self._on_work,
            VolunteerRefused: self._on_work,
            WorkBufferAvailable: self._on_work_room,
            **self.publishers.handlers,
            **self.jobs.handlers,
        }
        self._connect(addresses)
        disown_in_children(self)

    def _connect(self, addresses: Sequence[Address]) -> None:
        """Connect to one of the addresses, or use them from the next round on, if it is connected or trying."""
        usable = [address for address in addresses if family_of(address) in self._families]
        if usable:
            # Replaced together with the addresses: without its broker, an address would lose its key, too.
            self._brokers = {} if self._resolver is None else self._resolver.brokers()
            self.core.connect(usable, self.driver.clock(), brokers=self._brokers)
            self.schedule_flush()

    def _broker_of(self, address: Address) -> tuple[str, int] | None:
        return self._brokers.get(address)

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClientState:
        """The state of the client, see AsyncClient.state."""
        return self.core.state if self._failure is None else "closed"

    @property
    def is_answered(self) -> bool:
        """Whether a broker answers at the address, even if it has not accepted the login yet."""
        return any(connection.state is ConnectionState.OPEN for connection in self.core.endpoint.connections.values())

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that connected."""
        return isinstance(self._failure, ForkedError)

    def require_open(self) -> None:
        """Raise the error with which the client ended, if it has ended."""
        if self._failure is not None:
            raise copy(self._failure)

    # -- begin and end ------------------------------------------------------------------------------------------------

    async def wait_until_online(self) -> None:
        """Wait until the broker has accepted the login for the first time. Raise the error if the client ends."""
        await asyncio.shield(self._online)

    async def close(self, timeout_s: float | None) -> bool:
        """Wait up to `timeout_s` for confirmations, then close. Return whether all was confirmed. May be repeated."""
        if self.is_inherited:
            self.require_open()
        is_safe = True
        try:
            if self.core.state != "closed":
                await self._drain(timeout_s)
        finally:
            is_safe = self.core.held_bytes == 0 and self.core.work_held == 0
            try:
                self.driver.flush()  # confirmations of delivered messages are sent before the close
                self.core.close(self.driver.clock())
                self.driver.flush()
                await self._wait_for_close()
            finally:
                self._release()
        return is_safe

    def abort(self) -> None:
        """Close at once, without waiting for anything."""
        self.core.close(self.driver.clock())
        self.driver.flush()
        self._release()

    def _release(self) -> None:
        self._reporter.close()
        if self._resolving is not None:
            self._resolving.cancel()
        if self._probe is not None:
            self._probe.close()
        if not self.driver.closed:
            counters: list[Mapping[str, int]] = [self.core.endpoint.dropped]
            for udp in self._sockets:
                counters += [udp.dropped, {"kernel": udp.kernel_drops} if udp.kernel_drops else {}]
            log_drops(_logger, f"client {self.core.name}", counters)
        self.driver.close()

    async def _drain(self, timeout_s: float | None) -> None:
        async def drained() -> None:
            await self.publishers.drained()
            await self.jobs.drained()

        await completes(drained(), timeout_s)

    async def _wait_for_close(self) -> None:
        until = time.monotonic() + CLOSE_TIMEOUT_S
        while self.core.endpoint.connections and not self.driver.closed and time.monotonic() < until:
            await asyncio.sleep(_POLL_S)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(self, make: Callable[[int], ControlMessage], kind: type[T]) -> T:
        """Send the request that `make` returns for a request number, and wait for the reply of type `kind`.

        It is sent again after each reconnect until it is answered.

        Raises:
            BrokerError: The broker refused the request.
            GodwitError: The client has ended.
        """
        self.require_open()
        number = self.core.request(make)
        try:
            reply = await self._answer(number)
        except asyncio.CancelledError:
            self.core.forget(number)
            raise
        if not isinstance(reply, kind):
            raise broker_error(Code.PROTOCOL, f"the broker answered with {type(reply).__name__}: is it a newer one?")
        return reply

    async def _answer(self, number: int) -> ControlMessage:
        future: asyncio.Future[ControlMessage] = self.loop.create_future()
        self._requests[number] = future
        self.schedule_flush()
        try:
            return await future
        finally:
            self._requests.pop(number, None)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def begin_subscription(
        self,
        subscription: AsyncSubscription,
        *,
        start: Start,
        since_us: int | None,
        cursor: str | None,
        retained: RetainHandling | None = None,
        no_local: bool = False,
        is_responder: bool = False,
        membership: Membership | None = None,
    ) -> Subscription:
        """Subscribe, and deliver the events of the returned core to `subscription`."""
        self.require_open()
        core = self.core.subscribe(
            subscription.filters,
            start=start,
            since_us=since_us,
            cursor=cursor,
            retained=retained,
            no_local=no_local,
            is_responder=is_responder,
            membership=membership,
        )
        if core in self._subscriptions:
            raise UsageError(f"already subscribed to {', '.join(core.filters)}: use that subscription")
        self._subscriptions[core] = subscription
        self.schedule_flush()
        return core

    async def leave_subscription(self, core: Subscription, *, keep: bool, offset: int | None, handled: int = 0) -> None:
        """Unsubscribe and wait a while for the answer. With `keep` the broker's session remembers the position.

        `handled`: of a member of a group, the messages of the current record that are processed.
        """
        if self._subscriptions.pop(core, None) is not None:
            self.driver.flush()  # confirmations of delivered messages are sent before
            number = self.core.unsubscribe(core, keep=keep, offset=offset, handled=handled)
            answer = self._requests[number] = self.loop.create_future()
            self.schedule_flush()
            timeout_s = UNSUBSCRIBE_TIMEOUT_S if self.state == "online" else UNSUBSCRIBE_OFFLINE_TIMEOUT_S
            try:  # without asyncio.timeout: see godwit.net.loop.completes
                await asyncio.wait([answer], timeout=timeout_s)
            finally:
                self._requests.pop(number, None)
            if answer.done():  # else the request is repeated when the broker is back
                answer.result()

    def drop_subscription(self, core: Subscription, *, keep: bool, offset: int | None, handled: int = 0) -> None:
        """Unsubscribe without waiting for the broker's answer."""
        if self._subscriptions.pop(core, None) is not None:
            self.driver.flush()
            self.core.unsubscribe(core, keep=keep, offset=offset, handled=handled)
            self.schedule_flush()

    async def commit_subscription(self, core: Subscription, offset: int) -> None:
        """Move the cursor of a subscription, and wait for the broker's answer."""
        self.require_open()
        await self._answer(self.core.commit(core, offset))

    # -- work ---------------------------------------------------------------------------------------------------------

    def begin_work(self, handlers: Mapping[str, Handler], capacity: int, on_ready: Callable[[], None]) -> TaskExecutor:
        """Volunteer for the kinds of the handlers. `on_ready` is called when the broker has accepted that.

        Raises:
            UsageError: The client is a worker already: one client can be one worker only.
        """
        self.require_open()
        if self._executor is not None:
            raise UsageError("this client works already: a client is one worker, with all kinds that it does")
        executor = self._executor = TaskExecutor(self.core, self.schedule_flush, handlers, capacity, on_ready)
        return executor

    async def end_work(self, executor: TaskExecutor, reason: str, timeout_s: float | None = None) -> None:
        """Return all unfinished tasks to the broker, and wait until all handlers except those in threads have ended.

        Waits up to `timeout_s` until the last reports are confirmed; by default a second, or not at all while offline.
        """
        if timeout_s is None:
            timeout_s = RETURN_TIMEOUT_S if self.state == "online" else 0.0
        is_hurried = False
        try:
            executor.return_all(reason)
            self.driver.flush()
            await self._drain(timeout_s)
        except asyncio.CancelledError:  # for the second time: the program does not want to wait
            is_hurried = True
            raise
        finally:
            try:
                await executor.close(is_hurried=is_hurried)
            finally:
                self._executor = None

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_events(self, events: list[ClientEvent]) -> None:
        handlers = self._handlers
        for event in events:
            handlers[type(event)](event)

    def _on_online(self, event: Online) -> None:
        self._reporter.on_online(event.name, is_resumed=event.resumed)
        if not self._online.done():
            self._online.set_result(None)
        self._report_state("online", "")

    def _on_offline(self, event: Offline) -> None:
        self._reporter.on_offline(event.reason, event.retry_in_s)
        self.last_reason = event.reason
        self._begin_resolving()
        self._report_state("offline", event.reason)

    def _begin_resolving(self) -> None:
        if self._resolver is not None and self._resolver.has_names and self._resolving is None:
            self._resolving = self.loop.create_task(self._resolve_again(self._resolver))

    async def _resolve_again(self, resolver: BrokerResolver) -> None:
        """Resolve the names of the brokers for the next round: their addresses may have changed."""
        try:
            addresses = await resolver.resolve()
        except AddressError as error:
            _logger.debug("the addresses of before are used again: %s", error)
        else:
            if self._failure is None:
                self._connect(addresses)
        finally:
            self._resolving = None

    def _on_unanswered(self, event: Unanswered) -> None:
        self._begin_resolving()  # before the other brokers are tried
        if self._probe is not None:
            self._probe.close()
        try:
            self._probe = ReachabilityProbe(self.loop, event.address, self._on_unreachable)
        except OSError as error:  # too many open files
            _logger.debug("cannot probe %s: %s", format_address(event.address), error)

    def _on_unreachable(self, address: Address) -> None:
        if not self.driver.closed:
            self.core.handle_unreachable(address, self.driver.clock())
            self.schedule_flush()

    def _on_ended(self, event: Ended) -> None:
        self._reporter.on_ended(event.code, event.reason)
        self.last_reason = event.reason
        if event.code == Code.NORMAL:
            failure: GodwitError = UsageError("the client is closed: connect again")
        else:
            failure = broker_error(event.code, event.reason)
        self._fail(failure)
        if self._executor is not None:
            self._executor.on_client_ended(failure)
        self._report_state("closed", event.reason)

    def _on_forked(self) -> None:
        """Refuse everything in a forked child: nothing is sent and no callback is called there."""
        self.driver.disown()
        if self._failure is None:
            for subscription in self._subscriptions.values():
                subscription._on_forked()
            self._fail(forked_error())

    def _fail(self, failure: GodwitError) -> None:
        """End all waits and refuse all further calls with this error."""
        self._failure = failure
        futures: list[asyncio.Future[Any]] = [self._online, *self._requests.values()]
        for future in futures:
            if not future.done():
                future.set_exception(copy(failure))
        if self._online.done() and not self._online.cancelled():
            self._online.exception()  # marked as retrieved, even if no call waits for it
        self.publishers.on_ended(failure)
        for subscription in list(self._subscriptions.values()):
            subscription._on_client_ended(failure)
        self._subscriptions.clear()
        self.jobs.on_ended(failure)

    def _on_reply(self, event: Reply) -> None:
        future = self._requests.get(event.request)
        if future is None or future.done():
            return  # the call was cancelled
        if isinstance(event.message, Error):
            future.set_exception(broker_error(event.message.code, event.message.text))
        else:
            future.set_result(event.message)

    def _on_subscription(self, event: Available | SubscriptionStarted | Missed | SubscriptionEnded) -> None:
        subscription = self._subscriptions.get(event.subscription)
        if subscription is not None:
            if isinstance(event, SubscriptionEnded):
                del self._subscriptions[event.subscription]
            subscription._on_event(event)

    def _on_work(self, event: Leased | Revoked | Reported | VolunteerAccepted | VolunteerRefused) -> None:
        if self._executor is not None:
            self._executor.on_event(event)
        elif isinstance(event, Leased):  # the broker sent it before it received the end of the work
            self.core.give_back(event.lease)

    def _on_work_room(self, event: WorkBufferAvailable) -> None:
        self.jobs.on_room()
        if self._executor is not None:
            self._executor.on_room()

    def _report_state(self, state: ClientState, reason: str) -> None:
        if self._on_state is not None:
            self.call_back(self._on_state, state, reason)

    def call_back(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a function of the application. Its errors go to the loop's exception handler, and stop nothing."""
        try:
            callback(*arguments)
        except Exception as error:
            context = {"message": "a callback of a godwit client failed", "exception": error}
            self.loop.call_exception_handler(context)


class BrokerResolver:
    """Resolve the names of the brokers that the application gave: at first, and again for each round of attempts.

    Each name is resolved in a daemon thread of its own, because the system's resolver may block for many seconds: a
    program that ends does not wait for it, and one slow name does not delay the others.
    """

    def __init__(self, brokers: Sequence[tuple[str, int]]) -> None:
        """`brokers`: host and port of each."""
        self._brokers = list(brokers)
        self._found: dict[tuple[str, int], list[Address]] = {}
        """The addresses of each name, from the last time that it could be resolved."""
        self._errors: dict[tuple[str, int], AddressError] = {}
        self._running: dict[tuple[str, int], asyncio.Future[list[Address]]] = {}

    def __str__(self) -> str:
        return ", ".join(f"{host} port {port}" for host, port in self._brokers)

    @property
    def has_names(self) -> bool:
        """Whether a broker is named by a host name, whose addresses may change."""
        return not all(is_ip_address(host) for host, _ in self._brokers)

    @property
    def is_open_ended(self) -> bool:
        """Whether addresses of another family may be found later, because a name was not resolved in time."""
        return len(self._brokers) > 1 and self.has_names

    async def resolve(self) -> list[Address]:
        """Return the addresses of all brokers, in the order of the brokers.

        Names that take longer than others are left out, and names that fail now keep their addresses of before.

        Raises:
            AddressError: None of the names has an address.
        """
        for broker in self._brokers:
            if broker not in self._running:
                future = self._running[broker] = self._start(*broker)
                future.add_done_callback(partial(self._on_done, broker))
        pending: set[asyncio.Future[list[Address]]] = set(self._running.values())
        while pending and not self._found:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if pending:
            await asyncio.wait(pending, timeout=RESOLVE_GRACE_S)
        for broker, future in list(self._running.items()):
            if future.done():  # its callback may be due only in the next turn of the loop
                self._on_done(broker, future)
        addresses = [address for broker in self._brokers for address in self._found.get(broker, ())]
        if not addresses:
            raise copy(self._errors[self._brokers[0]])
        return list(dict.fromkeys(addresses))

    def brokers(self) -> dict[Address, tuple[str, int]]:
        """Return the broker of each address that was found, as host and port."""
        return {address: broker for broker in self._brokers for address in self._found.get(broker, ())}

    def _start(self, host: str, port: int) -> asyncio.Future[list[Address]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Address]] = loop.create_future()

        def settle(addresses: list[Address], error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(addresses)
                else:
                    future.set_exception(error)

        def work() -> None:
            addresses: list[Address] = []
            failure: BaseException | None = None
            try:
                addresses = resolve_all(host, port)
            except BaseException as error:
                failure = error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, addresses, failure)

        threading.Thread(target=work, name=f"godwit-resolver-{host}", daemon=True).start()
        return future

    def _on_done(self, broker: tuple[str, int], future: asyncio.Future[list[Address]]) -> None:
        if self._running.get(broker) is not future:
            return  # handled already
        del self._running[broker]
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._found[broker] = future.result()
        elif isinstance(error, AddressError):
            if len(self._brokers) > 1 and broker not in self._errors:
                _logger.warning("one of several brokers is left out: %s", error)
            self._errors[broker] = error
        else:
            self._errors[broker] = AddressError(f"cannot resolve {broker[0]}: {error}; give an IP address")


class ReachabilityProbe:
    """Find out whether the network reports that nothing listens at the address of a broker (by ICMP).

    The system passes such reports to connected sockets only, and the sockets of a client are not. So a socket of its
    own sends a hello, which a broker answers with a cookie.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, address: Address, on_unreachable: Callable[[Address], None]
    ) -> None:
        """Send the hello. `on_unreachable(address)` is called in the loop, at most once."""
        self._loop = loop
        self._address = address
        self._on_unreachable = on_unreachable
        self._socket = socket.socket(family_of(address), socket.SOCK_DGRAM)
        self._timer = loop.call_later(PROBE_S, self.close)
        self._socket.setblocking(False)
        self._is_closed = False
        loop.add_reader(self._socket.fileno(), self._on_readable)
        hello = encode_frame(HelloFrame(int.from_bytes(os.urandom(8), "big"), os.urandom(NONCE_BYTES)))
        try:
            self._socket.connect(address)
            self._socket.send(encode_packet(0, 0, hello.ljust(BASE_DATAGRAM_BYTES - OVERHEAD_BYTES, b"\0")))
        except OSError as error:
            _logger.debug("cannot probe %s: %s", format_address(address), error)
            self.close()

    def _on_readable(self) -> None:
        try:
            self._socket.recv(BASE_DATAGRAM_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            _logger.debug("the network reports about %s: %s", format_address(self._address), error)
            self.close()
            self._on_unreachable(self._address)
        else:
            self.close()  # something listens there

    def close(self) -> None:
        """Stop waiting. May be repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._timer.cancel()
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


def open_sockets(addresses: Sequence[Address], *, is_any: bool = False) -> list[UdpSocket]:
    """Open a socket for each address family that the addresses have and the system supports, at least one.

    With `is_any`, addresses of the other family may follow: it gets a socket too.

    Raises:
        SocketError: The system supports none of them.
    """
    opened: list[UdpSocket] = []
    refusal: SocketError | None = None
    others = list(ANY_HOST) if is_any else []
    for family in dict.fromkeys([*map(family_of, addresses), *others]):
        try:
            opened.append(UdpSocket(ANY_HOST[family]))
        except SocketError as error:  # such as a system without IPv6, whose resolver returns such addresses anyway
            refusal = error
    if not opened and refusal is not None:
        raise refusal
    return opened
