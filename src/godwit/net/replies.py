"""Requests and replies: a message with a reply topic, and the answers that arrive there.

A requester has one inbox for each client, a topic `$reply/` with random digits that only this client is subscribed to.
Replies are recognised by their correlation data, which are random, too. A responder is a subscription with a handler:
what the handler returns is published to the reply topic of the request.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypedDict, Unpack

from godwit.client.batches import Payload
from godwit.client.message import Message
from godwit.client.properties import HeadersLike, make_properties
from godwit.errors import (
    BrokerError,
    GodwitError,
    MessageExpiredError,
    NoReplyError,
    NoResponderError,
    RequestFailedError,
    UsageError,
)
from godwit.net.loop import LoopThread, TimeLimit, check_timeout
from godwit.net.subscription import AsyncSubscription
from godwit.wire.filters import REPLIES

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient

ReplyHandler: TypeAlias = Callable[[Message], Payload] | Callable[[Message], Awaitable[Payload]]
"""Gets a request and returns the payload of the reply; None for an empty one. A coroutine function or a function."""
REQUEST_TIMEOUT_S: Final = 5.0
"""How long a request waits for replies, by default."""
MAX_CONCURRENT: Final = 16
"""Requests that a responder handles at once."""
ERROR_HEADER: Final = "godwit-error"
"""The header of a reply that reports a failure; its value is the reason."""
MAX_ERROR_LETTERS: Final = 500
CORRELATION_BYTES: Final = 16
_INBOX_BYTES: Final = 16
UNSENT: Final = "it was never sent, because the inbox for the reply was not open; check that the broker is reachable"
UNCONFIRMED: Final = (
    "it has expired, and the broker has not confirmed it; check that the broker is reachable, or give it more time"
)
CONFIRMED: Final = "the broker confirmed it, and a subscriber got it and did not reply; give it more time"
HANDED_OVER: Final = "it was handed to the network (QoS 0) and may be lost; use QoS 1, or give it more time"
_logger = logging.getLogger(__name__)


class Replies(NamedTuple):
    """The replies to one request."""

    messages: list[Message]
    progress: str
    """How far the request came: the end of the error's text if no reply came."""


class RequestOptions(TypedDict, total=False):
    """The options of `request` and `request_many`. Each comment begins with the default."""

    timeout_s: float
    """5. How long to wait for replies, in seconds. The request expires after the same time."""
    qos: int
    """1. With 1 the request is logged, and a missing responder is noticed. 0 is faster, and may be lost."""
    headers: HeadersLike | None
    """None. Headers of the request."""
    content_type: str | None
    """None; for a dict or list as payload `application/json`. The content type of the request."""


class Requester:
    """The requests of one client that wait for replies, and the inbox where these arrive."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.inbox = f"{REPLIES}/{os.urandom(_INBOX_BYTES).hex()}"
        self._waiting: dict[bytes, asyncio.Queue[Message | GodwitError]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None] | None = None

    async def request(
        self,
        topic: str,
        payload: Payload,
        replies: int | None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        qos: int = 1,
        headers: HeadersLike | None = None,
        content_type: str | None = None,
    ) -> Replies:
        """Send a request and collect replies, see AsyncClient.request_many."""
        check_timeout(timeout_s)
        if timeout_s is None:  # in a program without type checks
            raise UsageError("a request needs a time limit, with which it expires: give timeout_s in seconds")
        if replies is not None and (type(replies) is not int or replies < 1):
            raise UsageError(f"replies is {replies!r}: give how many to wait for, 1 or more, or None")
        pairs = make_properties(headers=headers, content_type=content_type).headers
        correlation = os.urandom(CORRELATION_BYTES)
        arrived = self._waiting[correlation] = asyncio.Queue()
        found: list[Message] = []
        wanted, progress = replies, UNSENT
        try:
            async with TimeLimit(timeout_s) as limit:
                began = time.monotonic()
                await self._open_inbox()
                progress = UNCONFIRMED
                left_s = max(timeout_s - (time.monotonic() - began), 1e-6)
                asked = make_properties(
                    headers=pairs,
                    content_type=content_type,
                    reply_to=self.inbox,
                    correlation=correlation,
                    expires_s=left_s,
                )
                reached = await self._client._runtime.publishers.publish(
                    topic, payload, qos=qos, retain=False, properties=asked
                )
                progress = CONFIRMED if qos else HANDED_OVER
                if reached == 0 and not found and arrived.empty():
                    raise NoResponderError(
                        f"no client is subscribed to {topic!r} now that would reply: start one, "
                        f"as `godwit reply {topic} --exec CMD` does"
                    )
                wanted = replies or reached or 1
                while len(found) < wanted:
                    found.append(_message_of(await arrived.get()))
        except MessageExpiredError as error:  # a request that is still queued expires with its limit
            progress = str(error)
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            del self._waiting[correlation]
        while not arrived.empty() and (wanted is None or len(found) < wanted):  # they were quicker than the confirm
            found.append(_message_of(arrived.get_nowait()))
        return Replies(found, progress)

    async def request_one(self, topic: str, payload: Payload, **options: Unpack[RequestOptions]) -> Message:
        """Send a request and return the first reply, see AsyncClient.request."""
        found = await self.request(topic, payload, 1, **options)
        return checked_reply(found, topic, options.get("timeout_s", REQUEST_TIMEOUT_S))

    async def _open_inbox(self) -> None:
        """Subscribe to the inbox, once for the client."""
        if self._begun is None or (self._begun.done() and (self._reader is None or self._reader.done())):
            self._begun = asyncio.get_running_loop().create_future()
            self._reader = asyncio.create_task(self._read(self._begun))
        await asyncio.shield(self._begun)

    async def _read(self, begun: asyncio.Future[None]) -> None:
        try:
            async with self._client.subscribe(self.inbox) as replies:
                begun.set_result(None)
                async for reply in replies:
                    waiting = self._waiting.get(reply.correlation or b"")
                    if waiting is None:
                        _logger.debug("a reply from %s that no request waits for", reply.publisher)
                    else:
                        waiting.put_nowait(reply)
        except GodwitError as error:
            if not begun.done():
                begun.set_exception(error)
            for waiting in self._waiting.values():
                waiting.put_nowait(error)
        except BaseException:
            begun.cancel()
            raise


def _message_of(reply: Message | GodwitError) -> Message:
    if isinstance(reply, GodwitError):
        raise reply
    return reply


def checked_reply(found: Replies, topic: str, timeout_s: float = REQUEST_TIMEOUT_S) -> Message:
    """Return the reply to a request.

    Raises:
        NoReplyError: None arrived.
        RequestFailedError: It reports a failure.
    """
    if not found.messages:
        raise NoReplyError(f"no reply to the request on {topic!r} within {timeout_s:g} s: {found.progress}")
    reply = found.messages[0]
    if (reason := reply.headers.get(ERROR_HEADER)) is not None:
        raise RequestFailedError(f"{reply.publisher} could not answer the request on {topic!r}: {reason}", reply)
    return reply


class AsyncResponder:
    """A subscription whose handler answers requests. Made by `AsyncClient.replies`.

    It begins at once, and ends with the client or with `close`. Call it to call the handler itself.
    """

    def __init__(self, client: AsyncClient, filters: tuple[str, ...], handler: ReplyHandler, *, capacity: int) -> None:
        if not callable(handler):
            raise UsageError(f"the handler is of the type {type(handler).__name__}: give a function")
        if type(capacity) is not int or capacity < 1:
            raise UsageError(f"capacity is {capacity!r}: give the number of requests to handle at once, 1 or more")
        self.filters = filters
        """The topic filters of the requests."""
        self.handler = handler
        self._client = client
        self._slots = asyncio.Semaphore(capacity)
        self._running: set[asyncio.Task[None]] = set()
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._note_end)

    def __repr__(self) -> str:
        return f"<AsyncResponder to {', '.join(map(repr, self.filters))}>"

    def __call__(self, message: Message) -> Payload | Awaitable[Payload]:
        return self.handler(message)

    async def ready(self) -> None:
        """Wait until the broker has agreed to the subscription: from then on requests are answered.

        Raises:
            BrokerError: The broker refused it, for example AccessError.
        """
        await asyncio.shield(self._begun)

    async def wait(self) -> None:
        """Wait until the responder ends.

        Raises:
            GodwitError: Why it ended, unless `close` was called.
        """
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def close(self) -> None:
        """Accept no more requests, and wait for running handlers."""
        self._task.cancel()
        with suppress(asyncio.CancelledError, GodwitError):
            await self._task
        while self._running:
            await asyncio.wait(self._running)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.warning("the responder to %s has ended: %s", ", ".join(self.filters), error)

    async def _run(self) -> None:
        try:
            self._client.require_open()
            async with AsyncSubscription(
                self._client._runtime,
                self.filters,
                start=None,
                since=None,
                cursor=None,
                on_gap=None,
                keep=None,
                retained="never",
                is_responder=True,
            ) as requests:
                self._begun.set_result(None)
                async for request in requests:
                    await self._slots.acquire()
                    task = asyncio.create_task(self._answer(request))
                    self._running.add(task)
                    task.add_done_callback(self._release)
        except GodwitError as error:
            if not self._begun.done():
                self._begun.set_exception(error)
                self._begun.exception()  # it is raised by `wait` and `ready`, and logged
            raise
        finally:
            self._begun.cancel()

    def _release(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()

    async def _answer(self, request: Message) -> None:
        headers: dict[str, str] | None = None
        answer: Payload
        try:
            if inspect.iscoroutinefunction(self.handler):
                answer = await self.handler(request)
            else:
                found = await asyncio.to_thread(self.handler, request)
                answer = await found if inspect.isawaitable(found) else found
            answer = b"" if answer is None else answer
        except Exception as error:
            _logger.warning("the handler of a request on %s failed: %r", request.topic, error)
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            answer = text = "".join(letter if letter.isprintable() else " " for letter in text)[:MAX_ERROR_LETTERS]
            headers = {ERROR_HEADER: text}
        if request.reply_to is None:
            return
        try:
            await self._reply(request, answer, headers)
        except GodwitError as error:
            if headers is None and isinstance(error, UsageError):  # such as a result that is not JSON
                headers = {ERROR_HEADER: str(error)[:MAX_ERROR_LETTERS]}
                with suppress(GodwitError):
                    await self._reply(request, str(error), headers)
            log = _logger.debug if isinstance(error, BrokerError) else _logger.warning
            log("no reply to %s for a request on %s: %s", request.publisher, request.topic, error)

    async def _reply(self, request: Message, answer: Payload, headers: dict[str, str] | None) -> None:
        assert request.reply_to is not None
        left_s = None
        if request.expires_us is not None:
            left_s = max((request.expires_us - time.time_ns() // 1000) / 1e6, 0.001)
        await self._client.publish(
            request.reply_to,
            answer,
            qos=min(request.qos, 1),
            headers=headers,
            correlation=request.correlation,
            expires_s=left_s,
        )


class BlockingResponder:
    """A subscription whose handler answers requests. Made by `BlockingClient.replies`."""

    def __init__(self, thread: LoopThread, inner: AsyncResponder) -> None:
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return f"<BlockingResponder{repr(self._inner).removeprefix('<AsyncResponder')}"

    def __call__(self, message: Message) -> Payload | Awaitable[Payload]:
        return self._inner(message)

    @property
    def filters(self) -> tuple[str, ...]:
        """The topic filters of the requests."""
        return self._inner.filters

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the responder ends.

        Raises:
            TimeoutError: It has not ended within `timeout_s`.
            GodwitError: Why it ended, unless `close` was called.
        """
        self._thread.call(self._inner.wait(), timeout_s)

    def close(self) -> None:
        """Accept no more requests, and wait for running handlers."""
        self._thread.call(self._inner.close())
