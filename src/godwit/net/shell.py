"""The shell around the sans-IO client in an event loop: sockets, events, who waits for which answer, the end."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

from godwit.client.client import Client, ClientState
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
    Volunteered,
    VolunteerRefused,
    WorkRoom,
)
from godwit.client.subscription import Start, Subscription
from godwit.errors import ForkedError, GodwitError, SocketError, UsageError, broker_error
from godwit.net.address import family_of
from godwit.net.followed_jobs import FollowedJobs
from godwit.net.fork import disown_in_children, forked_error
from godwit.net.handlers import Handler
from godwit.net.loop import completes
from godwit.net.pair import ANY_HOST, open_driver
from godwit.net.publishing import Publishing
from godwit.net.subscribing import AsyncSubscription
from godwit.net.udp import UdpSocket
from godwit.net.workbench import Workbench
from godwit.transport.connection_state import Statistics
from godwit.transport.events import Address, ConnectionState
from godwit.wire.control import ControlMessage, Error
from godwit.wire.control_base import Code

GOODBYE_PATIENCE_S: Final = 0.25
"""So long a client stays to say goodbye again: one that gets lost would release the last will."""
LEAVE_PATIENCE_S: Final = 5.0
ABSENT_PATIENCE_S: Final = 0.5
"""So long the end of a subscription waits for the broker's answer, if the broker is there and if it is not."""
HAND_BACK_PATIENCE_S: Final = 1.0
"""So long a worker that ends waits until the broker has its last reports safe."""
_GOODBYE_LOOK_S: Final = 0.005

OnState: TypeAlias = Callable[[ClientState, str], None]
T = TypeVar("T")


class ClientShell:
    """One client in the running event loop. The application sees it as godwit.net.connect.AsyncClient."""

    def __init__(self, config: ClientConfig, addresses: Sequence[Address], *, on_state: OnState | None = None) -> None:
        self.last_reason = ""
        """Why the connection was lost, or could not be made, the last time."""
        sockets = open_sockets(addresses)
        usable = {family_of(udp.local_address) for udp in sockets}
        receive_buffer_bytes = min(udp.receive_buffer_bytes for udp in sockets)
        config = replace(config, endpoint=replace(config.endpoint, receive_buffer_bytes=receive_buffer_bytes))
        self._core = core = Client(config, entropy=os.urandom, random=random.Random())
        self._on_state = on_state
        self._failure: GodwitError | None = None
        """Why the client has ended."""
        self._loop = asyncio.get_running_loop()
        self._online: asyncio.Future[None] = self._loop.create_future()
        self._requests: dict[int, asyncio.Future[ControlMessage]] = {}
        self._subscriptions: dict[Subscription, AsyncSubscription] = {}
        self._driver = open_driver(core, sockets, self._on_events)
        self.schedule_flush = self._driver.schedule_flush
        self.publishing = Publishing(core, self._driver.flush, self.schedule_flush)
        self.followed_jobs = FollowedJobs(core, self.schedule_flush, self.request)
        self._workbench: Workbench | None = None
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
            Volunteered: self._on_work,
            VolunteerRefused: self._on_work,
            WorkRoom: self._on_work_room,
            **self.publishing.handlers,
            **self.followed_jobs.handlers,
        }
        core.connect([address for address in addresses if family_of(address) in usable], self._driver.clock())
        self.schedule_flush()
        disown_in_children(self)

    # -- look ---------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The client's; the broker gives one to a client without."""
        return self._core.name

    @property
    def state(self) -> ClientState:
        """connecting, online, offline (between two attempts) or closed."""
        return self._core.state if self._failure is None else "closed"

    @property
    def statistics(self) -> Statistics:
        """Of the present connection: packets, losses, round trip, rate."""
        return self._core.statistics

    @property
    def is_answered(self) -> bool:
        """A broker answers there, whether or not it has let the client in."""
        return any(connection.state is ConnectionState.OPEN for connection in self._core.endpoint.connections.values())

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that connected."""
        return isinstance(self._failure, ForkedError)

    def require_open(self) -> None:
        """Raises why the client has ended, if it has."""
        if self._failure is not None:
            raise copy(self._failure)

    # -- begin and end ------------------------------------------------------------------------------------------------

    async def welcomed(self) -> None:
        """Waits until the broker has welcomed the client for the first time."""
        await asyncio.shield(self._online)

    async def end(self, timeout_s: float) -> bool:
        """Waits so long for confirms, says goodbye. Whether everything was confirmed. May be repeated."""
        if self.is_inherited:
            self.require_open()
        is_safe = True
        try:
            if self._core.state != "closed":
                await self._drain(timeout_s)
        finally:
            is_safe = self._core.held_bytes == 0 and self._core.work_held == 0
            try:
                self._driver.flush()  # the word of what was delivered goes before the goodbye
                self._core.close(self._driver.clock())
                self._driver.flush()
                await self._say_goodbye()
            finally:
                self._driver.close()
        return is_safe

    def abort(self) -> None:
        """Ends at once; the goodbye is said once."""
        self._core.close(self._driver.clock())
        self._driver.flush()
        self._driver.close()

    async def _drain(self, timeout_s: float) -> None:
        async def drained() -> None:
            await self.publishing.drained()
            await self.followed_jobs.drained()

        await completes(drained(), timeout_s)

    async def _say_goodbye(self) -> None:
        until = time.monotonic() + GOODBYE_PATIENCE_S
        while self._core.endpoint.connections and not self._driver.closed and time.monotonic() < until:
            await asyncio.sleep(_GOODBYE_LOOK_S)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(self, make: Callable[[int], ControlMessage], kind: type[T]) -> T:
        """Asks what `make` gives for the request's number, again after each reconnect until it is answered."""
        self.require_open()
        number = self._core.request(make)
        try:
            reply = await self._answer(number)
        except asyncio.CancelledError:
            self._core.forget(number)  # nobody wants to know any more
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
        self.require_open()
        core = self._core.subscribe(subscription.filters, start=start, since_us=since_us, cursor=cursor)
        if core in self._subscriptions:
            raise UsageError(f"already subscribed to {', '.join(core.filters)}: use that subscription")
        self._subscriptions[core] = subscription
        self.schedule_flush()
        return core

    async def leave_subscription(self, core: Subscription, *, keep: bool, offset: int | None) -> None:
        """Ends it at the broker too, and waits a while for that; with `keep` the session remembers its place."""
        if self._subscriptions.pop(core, None) is not None:
            self._driver.flush()  # the word of what was delivered goes before
            number = self._core.unsubscribe(core, keep=keep, offset=offset)
            answer = self._requests[number] = self._loop.create_future()
            self.schedule_flush()
            try:  # without asyncio.timeout: see godwit.net.loop.completes
                await asyncio.wait([answer], timeout=LEAVE_PATIENCE_S if self.state == "online" else ABSENT_PATIENCE_S)
            finally:
                self._requests.pop(number, None)
            if answer.done():  # else it will be asked again when the broker is back
                answer.result()

    def drop_subscription(self, core: Subscription, *, keep: bool, offset: int | None) -> None:
        """Ends it without waiting for the broker's answer."""
        if self._subscriptions.pop(core, None) is not None:
            self._driver.flush()
            self._core.unsubscribe(core, keep=keep, offset=offset)
            self.schedule_flush()

    async def commit_subscription(self, core: Subscription, offset: int) -> None:
        self.require_open()
        await self._answer(self._core.commit(core, offset))

    # -- work ---------------------------------------------------------------------------------------------------------

    def begin_work(self, handlers: Mapping[str, Handler], capacity: int, on_ready: Callable[[], None]) -> Workbench:
        """Volunteers for the kinds that there are handlers for; tells when the broker knows. A client is one worker."""
        self.require_open()
        if self._workbench is not None:
            raise UsageError("this client works already: a client is one worker, with all kinds that it does")
        bench = self._workbench = Workbench(self._core, self.schedule_flush, handlers, capacity, on_ready)
        return bench

    async def end_work(self, bench: Workbench, reason: str, patience_s: float | None = None) -> None:
        """Hands back at once what is not done. Returns when no handler runs any more, but in threads.

        It waits a while until the last reports are safe; without a `patience_s` not at all while there is no broker.
        """
        if patience_s is None:
            patience_s = HAND_BACK_PATIENCE_S if self.state == "online" else 0.0
        is_hurried = False
        try:
            bench.hand_back(reason)
            self._driver.flush()
            await self._drain(patience_s)
        except asyncio.CancelledError:  # for the second time: somebody does not want to wait
            is_hurried = True
            raise
        finally:
            try:
                await bench.close(is_hurried=is_hurried)
            finally:
                self._workbench = None

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_events(self, events: list[ClientEvent]) -> None:
        handlers = self._handlers
        for event in events:
            handlers[type(event)](event)

    def _on_online(self, event: Online) -> None:
        if not self._online.done():
            self._online.set_result(None)
        self._tell_state("online", "")

    def _on_offline(self, event: Offline) -> None:
        self.last_reason = event.reason
        self._tell_state("offline", event.reason)

    def _on_ended(self, event: Ended) -> None:
        self.last_reason = event.reason
        if event.code == Code.NORMAL:
            failure: GodwitError = UsageError("the client is closed: connect anew")
        else:
            failure = broker_error(event.code, event.reason)
        self._fail(failure)
        if self._workbench is not None:
            self._workbench.on_client_ended(failure)
        self._tell_state("closed", event.reason)

    def on_forked(self) -> None:
        """Refuse everything in a forked child. The parent goes on, so nothing is sent and no callback is called."""
        self._driver.disown()
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
            self._online.exception()  # seen, even if nobody waits
        self.publishing.on_ended(failure)
        for subscription in list(self._subscriptions.values()):
            subscription.on_client_ended(failure)
        self._subscriptions.clear()
        self.followed_jobs.on_ended(failure)

    def _on_reply(self, event: Reply) -> None:
        future = self._requests.get(event.request)
        if future is None or future.done():
            return  # nobody waits for it any more
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

    def _on_work(self, event: Leased | Revoked | Reported | Volunteered | VolunteerRefused) -> None:
        if self._workbench is not None:
            self._workbench.on_event(event)
        elif isinstance(event, Leased):  # it was on its way when the work ended
            self._core.give_back(event.lease)

    def _on_work_room(self, event: WorkRoom) -> None:
        self.followed_jobs.on_room()
        if self._workbench is not None:
            self._workbench.on_room()

    def _tell_state(self, state: ClientState, reason: str) -> None:
        if self._on_state is not None:
            self.call_back(self._on_state, state, reason)

    def call_back(self, callback: Callable[..., object], *arguments: object) -> None:
        """Calls what the application gave. What goes wrong there is told to the loop, and stops nothing here."""
        try:
            callback(*arguments)
        except Exception as error:
            context = {"message": "a callback of a godwit client failed", "exception": error}
            self._loop.call_exception_handler(context)


def open_sockets(addresses: Sequence[Address]) -> list[UdpSocket]:
    """One for each family that the addresses have and the system can use, at least one."""
    opened: list[UdpSocket] = []
    refusal: SocketError | None = None
    for family in dict.fromkeys(family_of(address) for address in addresses):
        try:
            opened.append(UdpSocket(ANY_HOST[family]))
        except SocketError as error:  # such as a system without IPv6, whose resolver names such addresses anyway
            refusal = error
    if not opened and refusal is not None:
        raise refusal
    return opened
