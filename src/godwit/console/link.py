"""A client of the broker, shared by the browser windows of one person; it reconnects by itself."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec

import godwit
from godwit.console.catalogue import TopicCatalogue
from godwit.console.figures import FigureHistory, cluster_state, summary
from godwit.errors import AccessError, GodwitError

LOGIN_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 20.0
BURST_S: Final = 0.25
"""A broker publishes its figures one after the other; a sample is taken this long after the first one."""
PAUSE_S: Final = 2.0
MAX_READERS: Final = 32
"""Connections that windows without a login have for tails, values and single messages, all together."""

Listener = Callable[[dict[str, Any]], None]
"""Called with an event for the browser."""


class LinkReader:
    """A client that subscribes for one part of a window."""

    def __init__(self, client: godwit.AsyncClient, cursor: str | None) -> None:
        self._client = client
        self._cursor = cursor

    def subscribe(
        self, *filters: str, retained: godwit.RetainHandling, start: godwit.Start = None, since_us: int | None = None
    ) -> godwit.AsyncSubscription:
        """Return a subscription. There may be one at a time."""
        return self._client.subscribe(
            *filters, start=start, since=since_us, retained=retained, cursor=self._cursor, keep=False
        )


class BrokerLink:
    """One client, its connection state, and the history of the broker's figures while it was connected."""

    def __init__(self, broker: str, name: str | None = None, secret: bytes = b"") -> None:
        """Make a link that is not open. Without a name it is an anonymous client."""
        self.broker = broker
        self.name = name
        self.secret = secret
        self.history = FigureHistory()
        self.figures_problem = ""
        """Why there are no figures, for example for want of the right to subscribe to `$sys/#`."""
        self.state = "connecting"
        self.reason = ""
        self.refusal = ""
        """Why the broker does not admit the client at all."""
        self.is_operator: bool | None = None
        """Whether the client may see and remove other clients; None: not known yet."""
        self.listeners: set[Listener] = set()
        self._client: godwit.AsyncClient | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._readers = 0
        self._figures_at = 0.0
        """When the newest figure since the last sample was published, by the clock of the broker.

        The first figures are retained: they are older than the connection.
        """
        self.catalogue = TopicCatalogue(lambda: self.client.topics(timeout_s=REQUEST_TIMEOUT_S))

    @property
    def client(self) -> godwit.AsyncClient:
        """The client. Raises GodwitError while no broker has admitted it."""
        if self._client is None:
            raise GodwitError(self.refusal or f"no broker answers at {self.broker}: is it running there?")
        return self._client

    @property
    def is_over(self) -> bool:
        """Whether the broker has ended the client for good, or refused it."""
        return self.state == "closed"

    async def open(self, timeout_s: float | None = LOGIN_TIMEOUT_S) -> None:
        """Connect and log in. With None it waits as long as no broker answers.

        Raises:
            GodwitError: The broker refused the login, or none answered.
        """
        try:
            self._client = await godwit.connect(
                self.broker,
                name=self.name,
                secret=self.secret,
                session_expiry_s=0,
                timeout_s=timeout_s,
                on_state=self._on_state,
            )
        except GodwitError as error:
            self.refusal = str(error)
            self._on_state("closed", str(error))
            raise
        try:
            await self._client.bridges(timeout_s=timeout_s)  # the shortest of the lists that need the right
            self.is_operator = True
        except AccessError:
            self.is_operator = False
        self._on_state("online", "")
        self._tasks.append(asyncio.get_running_loop().create_task(self._read_figures(self._client)))

    def open_in_background(self) -> None:
        """Connect, however long it takes."""

        async def begin() -> None:
            with suppress(GodwitError):
                await self.open(None)

        self._tasks.append(asyncio.get_running_loop().create_task(begin()))

    async def close(self) -> None:
        """End the client."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close(timeout_s=0.0)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[LinkReader]:
        """Return a client for subscriptions of one part of a window.

        A client has one subscription for the same filters, but several windows may show the same topics. So a client
        with a name has a cursor of its own for each part, which ends with it. A client without a name has no cursors:
        each part connects, up to MAX_READERS of them.

        Raises:
            GodwitError: There are too many, or the broker refused the connection.
        """
        if self.name is not None:
            yield LinkReader(self.client, f"console-{secrets.token_hex(8)}")
            return
        if self._readers >= MAX_READERS:
            raise GodwitError(
                f"{MAX_READERS} views of messages are open in windows without a login: close some of these windows"
            )
        self._readers += 1
        try:
            async with godwit.connect(self.broker, timeout_s=LOGIN_TIMEOUT_S) as client:
                yield LinkReader(client, None)
        finally:
            self._readers -= 1

    def describe(self) -> dict[str, Any]:
        """Return the state of the connection, for the browser."""
        return {"broker": self.broker, "state": self.state, "reason": self.reason, "name": self.name or ""}

    def _on_state(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason
        self._emit({"on": "state", **self.describe()})

    def _emit(self, event: dict[str, Any]) -> None:
        for listener in list(self.listeners):
            listener(event)

    async def _read_figures(self, client: godwit.AsyncClient) -> None:
        while True:
            try:
                async with client.subscribe("$sys/#", retained="always", keep=False) as messages:
                    self.figures_problem = ""
                    async for message in messages:
                        self.history.handle_figure(message.topic, message.payload)
                        self._figures_at = max(self._figures_at, message.received_us / 1e6)
                        self._schedule_sample()
            except AccessError as error:
                self.figures_problem = str(error)
                return
            except GodwitError as error:
                self.figures_problem = str(error)
                if client.state == "closed":
                    return
            await asyncio.sleep(PAUSE_S)

    def _schedule_sample(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BURST_S, self._take_sample)

    def _take_sample(self) -> None:
        self._timer = None
        at, self._figures_at = self._figures_at, 0.0
        samples = self.history.samples
        if samples and 0 <= at - samples[-1].at < BURST_S:
            return  # the rest of the figures of this sample: they count in the next one
        sample = self.history.add_sample(at)
        self._emit({"on": "overview", "sample": msgspec.to_builtins(sample), **self.overview()})

    def overview(self) -> dict[str, Any]:
        """Return the present figures and problems, for the browser."""
        return {
            "summary": summary(self.history.current),
            "problems": msgspec.to_builtins(self.history.problems()),
            "cluster": msgspec.to_builtins(cluster_state(self.history.current)),
            "missing": self.figures_problem,
        }
