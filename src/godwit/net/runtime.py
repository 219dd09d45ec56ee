"""A sans-IO client in an event loop: its sockets, the delivery of its events, pending requests, and its end.

Programs use it through godwit.net.client.AsyncClient.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
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
    VolunteerAccepted,
    VolunteerRefused,
    WorkBufferAvailable,
)
from godwit.client.protocol import ClientProtocol, ClientState
from godwit.client.subscription import Start, Subscription
from godwit.errors import ForkedError, GodwitError, SocketError, UsageError, broker_error
from godwit.net.address import family_of, format_address
from godwit.net.diagnostics import ConnectionReporter, log_drops
from godwit.net.driver import ANY_HOST, open_driver
from godwit.net.jobs import ClientJobs
from godwit.net.loop import completes, disown_in_children, forked_error
from godwit.net.publisher import ClientPublishers
from godwit.net.subscription import AsyncSubscription
from godwit.net.tasks import Handler, TaskExecutor
from godwit.net.udp import UdpSocket
from godwit.transport.events import Address, ConnectionState
from godwit.wire.control import ControlMessage, Error
from godwit.wire.control_base import Code

CLOSE_TIMEOUT_S: Final = 0.25
"""How long a client waits for the acknowledgement of its close: if the close got lost, the will would be published."""
UNSUBSCRIBE_TIMEOUT_S: Final = 5.0
UNSUBSCRIBE_OFFLINE_TIMEOUT_S: Final = 0.5
"""How long the end of a subscription waits for the broker's answer, while the client is online and while it is not."""
RETURN_TIMEOUT_S: Final = 1.0
"""How long a worker that stops waits until the broker has confirmed its last reports."""
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
        broker: str = "",
    ) -> None:
        """Open the sockets and begin to connect to one of the addresses. `broker` is their name in log records."""
        self.last_reason = ""
        """Why the connection was lost, or could not be made, the last time."""
        self._sockets = open_sockets(addresses)
        usable = {family_of(udp.local_address) for udp in self._sockets}
        receive_buffer_bytes = min(udp.receive_buffer_bytes for udp in self._sockets)
        config = replace(config, endpoint=replace(config.endpoint, receive_buffer_bytes=receive_buffer_bytes))
        self.core = core = ClientProtocol(config, entropy=os.urandom, random=random.Random())
        self._on_state = on_state
        self._failure: GodwitError | None = None
        """Why the client has ended."""
        self._loop = asyncio.get_running_loop()
        self._online: asyncio.Future[None] = self._loop.create_future()
        self._requests: dict[int, asyncio.Future[ControlMessage]] = {}
        self._subscriptions: dict[Subscription, AsyncSubscription] = {}
        self.driver = open_driver(core, self._sockets, self._on_events)
        self.schedule_flush = self.driver.schedule_flush
        self.publishers = ClientPublishers(core, self.driver.flush, self.schedule_flush)
        self.jobs = ClientJobs(core, self.schedule_flush, self.request)
        self._executor: TaskExecutor | None = None
        self._reporter = ConnectionReporter(self._loop, broker or ", ".join(map(format_address, addresses)))
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Online: self._on_online,
            Offline: self._on_offline,
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
        core.connect([address for address in addresses if family_of(address) in usable], self.driver.clock())
        self.schedule_flush()
        disown_in_children(self)

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

    async def close(self, timeout_s: float) -> bool:
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
        if not self.driver.closed:
            counters: list[Mapping[str, int]] = [self.core.endpoint.dropped]
            for udp in self._sockets:
                counters += [udp.dropped, {"kernel": udp.kernel_drops} if udp.kernel_drops else {}]
            log_drops(_logger, f"client {self.core.name}", counters)
        self.driver.close()

    async def _drain(self, timeout_s: float) -> None:
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
        future: asyncio.Future[ControlMessage] = self._loop.create_future()
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
    ) -> Subscription:
        """Subscribe, and deliver the events of the returned core to `subscription`."""
        self.require_open()
        core = self.core.subscribe(subscription.filters, start=start, since_us=since_us, cursor=cursor)
        if core in self._subscriptions:
            raise UsageError(f"already subscribed to {', '.join(core.filters)}: use that subscription")
        self._subscriptions[core] = subscription
        self.schedule_flush()
        return core

    async def leave_subscription(self, core: Subscription, *, keep: bool, offset: int | None) -> None:
        """Unsubscribe and wait a while for the answer. With `keep` the broker's session remembers the position."""
        if self._subscriptions.pop(core, None) is not None:
            self.driver.flush()  # confirmations of delivered messages are sent before
            number = self.core.unsubscribe(core, keep=keep, offset=offset)
            answer = self._requests[number] = self._loop.create_future()
            self.schedule_flush()
            timeout_s = UNSUBSCRIBE_TIMEOUT_S if self.state == "online" else UNSUBSCRIBE_OFFLINE_TIMEOUT_S
            try:  # without asyncio.timeout: see godwit.net.loop.completes
                await asyncio.wait([answer], timeout=timeout_s)
            finally:
                self._requests.pop(number, None)
            if answer.done():  # else the request is repeated when the broker is back
                answer.result()

    def drop_subscription(self, core: Subscription, *, keep: bool, offset: int | None) -> None:
        """Unsubscribe without waiting for the broker's answer."""
        if self._subscriptions.pop(core, None) is not None:
            self.driver.flush()
            self.core.unsubscribe(core, keep=keep, offset=offset)
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
        self._report_state("offline", event.reason)

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

    def on_forked(self) -> None:
        """Refuse everything in a forked child: nothing is sent and no callback is called there."""
        self.driver.disown()
        if self._failure is None:
            for subscription in self._subscriptions.values():
                subscription.on_forked()
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
            subscription.on_client_ended(failure)
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
            subscription.on_event(event)

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
            self._loop.call_exception_handler(context)


def open_sockets(addresses: Sequence[Address]) -> list[UdpSocket]:
    """Open a socket for each address family that the addresses have and the system supports, at least one.

    Raises:
        SocketError: The system supports none of them.
    """
    opened: list[UdpSocket] = []
    refusal: SocketError | None = None
    for family in dict.fromkeys(family_of(address) for address in addresses):
        try:
            opened.append(UdpSocket(ANY_HOST[family]))
        except SocketError as error:  # such as a system without IPv6, whose resolver returns such addresses anyway
            refusal = error
    if not opened and refusal is not None:
        raise refusal
    return opened
