"""The client for asyncio: publishes, subscribes, submits jobs, asks the broker; reconnects by itself.

async with godwit.connect("localhost", name="sensor-1") as client:
    await client.publish("home/room1/temperature", b"21.5", retain=True)
    async with client.subscribe("home/+/temperature") as messages:
        async for message in messages: ...

It works in any running event loop that can watch sockets; `godwit.net.loop.run` starts the quickest one. Cancelling any
of its calls stops the waiting only: what was sent stays sent, and everything else goes on.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, Final

import msgspec

from godwit.broker.topics import check_topic
from godwit.client.batches import Payload, to_bytes
from godwit.client.config import SEND_BUFFER_BYTES, ClientConfig
from godwit.client.subscription import Start
from godwit.errors import BrokerUnreachableError, UsageError
from godwit.limits import MAX_WILL_BYTES, SESSION_EXPIRY_S
from godwit.net.address import parse_broker, resolve_all
from godwit.net.controller import Controller
from godwit.net.files import FileReceiver, OnFileProgress, OnProgress, SentFile, send_file
from godwit.net.publishing import AsyncPublisher
from godwit.net.shell import OnState
from godwit.net.subscribing import AsyncSubscription, OnGap, Since
from godwit.transport.config import EndpointConfig
from godwit.wire.control import (
    ClientInfo,
    ClientList,
    Clients,
    Create,
    Done,
    Kick,
    Ping,
    Pong,
    TopicInfo,
    TopicList,
    Topics,
    Will,
)

FLUSH_PATIENCE_S: Final = 5.0
"""So long the end of a client waits for confirms."""


def connect(
    broker: str = "localhost",
    *,
    name: str | None = None,
    secret: bytes | str = b"",
    will: Will | None = None,
    timeout_s: float | None = None,
    session_expiry_s: int = SESSION_EXPIRY_S,
    fresh: bool = False,
    send_buffer_bytes: int = SEND_BUFFER_BYTES,
    on_state: OnState | None = None,
    endpoint: EndpointConfig | None = None,
) -> Connecting:
    """A client of the broker at `host`, `host:port`, `[::1]:port` or `udp://host:port`; the port is 50000 by default.

    For `async with`, or to be awaited. It waits until the broker has welcomed the client, for ever unless there is a
    `timeout_s`: a client may be started before its broker. `on_state` is told when the connection is lost and found.
    """
    config = ClientConfig(
        name=name,
        secret=secret.encode() if isinstance(secret, str) else secret,
        session_expiry_s=session_expiry_s,
        fresh=fresh,
        will=_checked_will(will),
        send_buffer_bytes=send_buffer_bytes,
        endpoint=endpoint or EndpointConfig(),
    )
    host, port = parse_broker(broker)
    return Connecting(host, port, config, timeout_s, on_state)


class Connecting:
    """A client to be: `async with` it, or await it and close the client yourself."""

    def __init__(
        self, host: str, port: int, config: ClientConfig, timeout_s: float | None, on_state: OnState | None
    ) -> None:
        self._place = host, port
        self._config = config
        self._timeout_s = timeout_s
        self._on_state = on_state
        self._client: AsyncClient | None = None

    @property
    def is_answered(self) -> bool:
        """A broker answers there, but may not have let the client in yet: another one may have the name."""
        return self._client is not None and self._client.is_answered

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncClient:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.__aexit__(kind, error, traceback)

    async def _open(self) -> AsyncClient:
        client: AsyncClient | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                addresses = await asyncio.get_running_loop().run_in_executor(None, resolve_all, *self._place)
                self._client = client = AsyncClient(self._config, addresses, on_state=self._on_state)
                await client.welcomed()
                return client
        except BaseException as error:
            is_answered, reason = False, ""
            if client is not None:
                is_answered, reason = client.is_answered, client.last_reason
                client.abort()
            if isinstance(error, TimeoutError):
                raise self._unreachable(is_answered, reason) from None
            raise

    def _unreachable(self, is_answered: bool, reason: str) -> BrokerUnreachableError:
        host, port = self._place
        if is_answered:
            return BrokerUnreachableError(
                f"the broker at {host} port {port} answers, but has not let this client in within "
                f"{self._timeout_s:g} s: another connection may still hold its name; try again, or wait for longer"
            )
        return BrokerUnreachableError(
            f"no broker answered at {host} port {port} within {self._timeout_s:g} s{f' ({reason})' if reason else ''}: "
            "is it running there, and does the way to it let UDP pass?"
        )


class AsyncClient(Controller):
    """One client of one broker, over reconnects. Made by `connect`."""

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Waits a few seconds for confirms of what was sent, then ends, without an error in any case.

        Who must know that all is safe calls `await publisher.flush()` in the block. After a cancel it does not wait.
        """
        if kind is not None and self.is_inherited:
            return  # the exception on its way says more than that this process cannot use the client
        is_hurried = kind is not None and not issubclass(kind, Exception)
        await self.close(timeout_s=0.0 if is_hurried else FLUSH_PATIENCE_S)

    async def close(self, *, timeout_s: float = FLUSH_PATIENCE_S) -> bool:
        """Says goodbye. Waits so long for what is not confirmed, and gives whether all was. May be repeated."""
        return await self.end(timeout_s)

    # -- publish ------------------------------------------------------------------------------------------------------

    async def publish(self, topic: str, payload: Payload, *, qos: int = 1, retain: bool = False) -> int | None:
        """Publishes one message; a text travels as UTF-8.

        At QoS 1 and 2 it returns when the broker has it safe, with the number of connected subscriptions that it
        reached; at QoS 0 it gives None at once.
        """
        self.require_open()
        return await self.publishing.publish(topic, payload, qos=qos, retain=retain)

    def publisher(
        self,
        topic: str,
        *,
        qos: int = 1,
        identity: str | None = None,
        epoch: int | None = None,
        sequence: int = 0,
        retain: bool = False,
    ) -> AsyncPublisher:
        """The fast way for many messages of one topic.

        For QoS 2 across crashes of this program give an `identity`, an `epoch` that is higher in each run (or the same,
        to go on) and the `sequence` of the first message that is to be sent.
        """
        self.require_open()
        if identity is not None and epoch is None:
            raise UsageError(
                f"the identity {identity!r} without an epoch: a later run would be taken for repeats of this one; "
                "give epoch=, higher in each run, or the same and the sequence to go on with"
            )
        return self.publishing.publisher(
            topic, qos=qos, identity=identity, epoch=epoch or 0, sequence=sequence, retain=retain
        )

    # -- subscribe ----------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        *filters: str,
        start: Start = None,
        since: Since | None = None,
        cursor: str | None = None,
        on_gap: OnGap | None = None,
        keep: bool | None = None,
    ) -> AsyncSubscription:
        """What matches one of the filters, each message once: `async with client.subscribe(...) as messages`.

        It begins with the next message, or where the client's session (or the `cursor`) left off, or at `start`:
        "earliest", "latest" or an offset; or with the first message since a time. `on_gap` is called with the number of
        messages that could not be delivered, at most so many (None: nobody knows). With `keep` (the default if there is
        a cursor) the broker's session remembers the subscription when its block is left: for a client with a name that
        stops and will come back.
        """
        self.require_open()
        return AsyncSubscription(self, filters, start=start, since=since, cursor=cursor, on_gap=on_gap, keep=keep)

    # -- ask ----------------------------------------------------------------------------------------------------------

    async def topics(self, filter: str | None = None) -> list[TopicInfo]:
        """The topics that there are, by name; those that match the filter, if there is one."""
        found: list[TopicInfo] = []
        after: str | None = None
        while True:
            page = await self.request(partial(_topics, filter, after), TopicList)
            found += page.topics
            if not page.more or page.after <= (after or ""):  # a broker that does not come on is left
                return found
            after = page.after

    async def create_topic(self, topic: str) -> None:
        """Brings a topic into being: needed where the topic's policy is `explicit`."""
        await self.request(lambda n: Create(request=n, topic=topic), Done)

    async def clients(self) -> list[ClientInfo]:
        """Who is connected, and who is remembered."""
        found: list[ClientInfo] = []
        while True:
            after = found[-1].name if found else None
            page = await self.request(partial(_clients, after), ClientList)
            found += page.clients
            if not page.more or not page.clients:
                return found

    async def kick(self, client: str, *filters: str, reason: str = "") -> None:
        """Removes another client, or with filters its subscription to exactly these. It is told why."""
        await self.request(lambda n: Kick(request=n, client=client, filters=list(filters) or None, reason=reason), Done)

    async def ping(self) -> float:
        """Asks the broker for a sign of life; gives the seconds that it took."""
        began = time.monotonic()
        await self.request(lambda n: Ping(request=n), Pong)
        return time.monotonic() - began

    # -- files --------------------------------------------------------------------------------------------------------

    async def send_file(
        self,
        topic: str,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        progress: OnProgress | None = None,
        hashing: OnProgress | None = None,
    ) -> SentFile:
        """Sends a file of any size; returns when the broker has confirmed all of it.

        Stopped in the middle, the same call goes on where it was. `progress(done_bytes, total_bytes)` counts what is
        confirmed, `hashing` what was read for the hash before. `name` is what receivers call it, else its own.
        """
        return await send_file(self, topic, path, name=name, progress=progress, hashing=hashing)

    def receive_files(
        self,
        *filters: str,
        folder: str | os.PathLike[str],
        progress: OnFileProgress | None = None,
        on_problem: Callable[[str], None] | None = None,
        max_file_bytes: int | None = None,
        max_total_bytes: int | None = None,
        start: Start = None,
        since: Since | None = None,
        keep: bool = False,
    ) -> FileReceiver:
        """The files sent to topics that match, as an async iterator: each once it is complete and its hash is right.

        They are written into `folder` under a safe name that is free. `progress(name, done_bytes, total_bytes)` is told
        of each chunk, `on_problem(text)` of files that could not be kept. A file of more than `max_file_bytes` is
        not kept; FileTransferError once received files that are still in the folder, and parts of files, exceed
        `max_total_bytes`.
        """
        subscription = self.subscribe(*filters, start=start, since=since, keep=keep)
        return FileReceiver(
            subscription,
            folder,
            progress=progress,
            on_problem=on_problem,
            max_file_bytes=max_file_bytes,
            max_total_bytes=max_total_bytes,
        )


def _topics(pattern: str | None, after: str | None, number: int) -> Topics:
    return Topics(request=number, filter=pattern, after=after)


def _clients(after: str | None, number: int) -> Clients:
    return Clients(request=number, after=after)


def _checked_will(will: Will | None) -> Will | None:
    """Told here and now: the broker would only say that the login is malformed."""
    if will is None:
        return None
    check_topic(will.topic)
    payload = to_bytes(will.payload)  # a text is as good as bytes elsewhere too
    if len(payload) > MAX_WILL_BYTES:
        raise UsageError(f"the last will has {len(payload)} bytes: at most {MAX_WILL_BYTES}")
    if will.qos not in (0, 1, 2):
        raise UsageError(f"the last will has QoS {will.qos!r}: choose 0, 1 or 2")
    return msgspec.structs.replace(will, payload=payload)
