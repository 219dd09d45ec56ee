"""Subscriptions: `AsyncSubscription` for asyncio, and `BlockingSubscription` with plain iterators for threads."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeAlias, TypeVar

from godwit.client.arguments import check_flag
from godwit.client.events import Available, Missed, SubscriptionEnded, SubscriptionStarted
from godwit.client.message import Bookmark, Message
from godwit.client.subscription import Membership, Start, Subscription
from godwit.errors import GodwitError, UsageError, broker_error
from godwit.net.direct import BRISK_S, DIRECT_S, CallerDriver
from godwit.net.loop import SIGNAL_S, LoopThread, check_timeout, within
from godwit.wire.control import RetainHandling

if TYPE_CHECKING:
    from godwit.net.runtime import ClientRuntime

Since: TypeAlias = datetime | int
"""A time; an int counts microseconds since 1970."""
OnGap: TypeAlias = Callable[[int | None], None]
"""Called with the number of messages that could not be delivered; None if the number is unknown."""
_logger = logging.getLogger(__name__)
T = TypeVar("T")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_microseconds(since: Since | None) -> int | None:
    """Return a time as microseconds since 1970. A datetime without a time zone is local time.

    Raises UsageError for another type.
    """
    if isinstance(since, datetime):
        try:
            return (since.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
        except (OverflowError, OSError) as error:
            raise UsageError(f"since is {since}: {error}; give a later time") from None
    if since is not None and type(since) is not int:
        raise UsageError(
            f"since is {repr(since)[:80]}, of the type {type(since).__name__}: give a datetime, or microseconds since "
            "1970 as an int"
        )
    return since


def _check_offset(offset: int | None) -> None:
    if offset is not None and (type(offset) is not int or offset < 0):
        raise UsageError(f"offset is {offset!r}: give the offset of a message, or None for the one after the last")


class AsyncSubscription:
    """An async iterator over the messages that match the filters, in order. Made by `AsyncClient.subscribe`.

        async with client.subscribe("home/+/temperature") as messages:
            async for message in messages:
                print(message.topic, message.payload)

    A message counts as handled when the application asks for the next one, or leaves the block without an exception
    (`break` and `return` are not exceptions). If an exception leaves the block (including a cancellation,
    KeyboardInterrupt, SystemExit and GeneratorExit), the current message is not handled, and a kept subscription
    delivers it again the next time. `batches()` returns messages in lists, as they arrived; there the record of the
    current list is delivered again. Leaving the block also ends the subscription at the broker, unless it was made with
    `keep` or has a cursor.
    """

    def __init__(
        self,
        runtime: ClientRuntime,
        filters: tuple[str, ...],
        *,
        start: Start,
        since: Since | None,
        cursor: str | None,
        on_gap: OnGap | None,
        keep: bool | None,
        retained: RetainHandling | None = None,
        no_local: bool = False,
        is_responder: bool = False,
        membership: Membership | None = None,
    ) -> None:
        if membership is not None and (keep or cursor is not None):
            raise UsageError("a group has a position of its own: leave out keep and cursor")
        check_flag("no_local", no_local)
        if keep is not None:
            check_flag("keep", keep)
        if on_gap is not None and not callable(on_gap):
            raise UsageError(f"on_gap is of the type {type(on_gap).__name__}: give a function")
        self.filters = filters
        """The topic filters, as given to `subscribe`."""
        self._runtime = runtime
        self._start = start
        self._since_us = to_microseconds(since)
        self._cursor = cursor
        self._retained = retained
        self._no_local = no_local
        self._is_responder = is_responder
        self._membership = membership
        self._on_gap = on_gap
        self._keep = cursor is not None if keep is None else bool(keep)
        self._core: Subscription | None = None
        self._failure: GodwitError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._requests: list[_MessageRequest] = []
        """Threads that wait for messages."""
        self._messages: list[Message] = []
        """The messages of the last record that the core returned."""
        self._rest: Iterator[Message] = iter(())
        """Those of them that were not returned to the application yet. `_fetch_more` brings more. Threads may share it:
        an iterator over a list returns each item once."""
        self._in_lists = False
        """Whether messages were returned in lists: then only the broker knows which ones are not handled."""
        self._reported_replaced: tuple[int, int] | None = None
        self._done_before = 0
        """The first offset that was not returned to the application before these messages."""

    def __repr__(self) -> str:
        return f"<AsyncSubscription to {', '.join(map(repr, self.filters))}, {self._state_text()}>"

    def _state_text(self) -> str:
        if self._core is None:
            return "not begun: use it with `async with` (or `with`)"
        return "ended" if self._failure is not None else f"at offset {self.position}"

    # -- the block ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncSubscription:
        """Subscribe, and wait until the broker has agreed.

        Raises:
            BrokerError: The broker refused the subscription, for example AccessError or BadFilterError.
            UsageError: The subscription was used before, or the client already has one with these filters.
        """
        if self._core is not None:
            raise UsageError("this subscription is in use already: ask the client for another one")
        core = self._core = self._runtime.begin_subscription(
            self,
            start=self._start,
            since_us=self._since_us,
            cursor=self._cursor,
            retained=self._retained,
            no_local=self._no_local,
            is_responder=self._is_responder,
            membership=self._membership,
        )
        try:
            while core.state == "asking":
                await self._wait()
        except asyncio.CancelledError:
            self._runtime.drop_subscription(core, keep=self._keep, offset=None)
            raise
        self._done_before = core.position
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the subscription. After an exception the current message does not count as handled.

        Waits until the broker has confirmed the end, but not after a cancellation, KeyboardInterrupt or SystemExit.
        """
        if kind is None:
            await self.close()
        elif (core := self._leave()) is not None:
            offset = self._handled_below if self._keep else None
            handled = 0 if self._in_lists else max(len(self._returned()) - 1, 0)
            if issubclass(kind, Exception):
                await self._runtime.leave_subscription(core, keep=self._keep, offset=offset, handled=handled)
            else:
                self._runtime.drop_subscription(core, keep=self._keep, offset=offset, handled=handled)

    async def close(self, offset: int | None = None) -> None:
        """End the subscription, and wait a few seconds for the broker to confirm that. May be repeated.

        Args:
            offset: Where a kept subscription resumes. By default after the last message that was returned.

        Raises:
            UsageError: The offset is invalid.
        """
        _check_offset(offset)
        if (core := self._leave()) is not None:
            done_below = self._reached(offset)
            await self._runtime.leave_subscription(
                core, keep=self._keep, offset=done_below if self._keep else None, handled=len(self._returned())
            )

    def _leave(self) -> Subscription | None:
        """Return the core of the subscription and refuse all further calls; None if it has ended already."""
        if self._core is None or self._failure is not None:
            return None
        self._end(UsageError(f"the subscription to {', '.join(self.filters)} was left: subscribe again"))
        return self._core

    # -- messages -----------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        # A generator is faster for each message than a coroutine for __anext__. Messages that it has not returned
        # remain in `_rest` when the application leaves its loop.
        return self._generate()

    async def _generate(self) -> AsyncIterator[Message]:
        while True:
            for message in self._rest:
                yield message
            await self._fetch_more()

    async def __anext__(self) -> Message:
        while True:
            for message in self._rest:
                return message
            await self._fetch_more()

    async def batches(self) -> AsyncIterator[list[Message]]:
        """Iterate over the messages in lists, as they arrived: each list is one record of the transport."""
        self._in_lists = True
        while True:
            if messages := [*self._rest]:
                yield messages
            await self._fetch_more()

    async def _fetch_more(self) -> None:
        """Wait until `_rest` has messages. Return at once if it has some: a second fetch does not replace the first.

        The last step takes the messages and awaits nothing, so that a cancellation cannot lose them.
        """
        if self._core is None:
            raise UsageError(
                "a subscription begins with `with client.subscribe(...) as messages:` (with asyncio: `async with`)"
            )
        while not length_hint(self._rest) and not self._take():
            await self._wait()

    def _begin_request(self, request: _MessageRequest) -> bool:
        """Have `request.try_end` called when something may have arrived, unless it has. Return whether it has."""
        if request.try_end():
            return True
        self._requests.append(request)
        return False

    def _withdraw_request(self, request: _MessageRequest) -> None:
        """Forget a request. One that has ended already is ignored."""
        if request in self._requests:
            self._requests.remove(request)

    def _fetch_now(self) -> bool:
        """Return whether `_rest` has messages, or the subscription has ended; without waiting."""
        if self._core is None:
            raise UsageError("a subscription begins with `with client.subscribe(...) as messages:`")
        return bool(length_hint(self._rest)) or self._take() or self._failure is not None

    def _require_more(self) -> None:
        """Raise the error with which the subscription has ended, unless `_rest` has messages."""
        if self._failure is not None and not length_hint(self._rest):
            raise copy(self._failure)

    def _take(self) -> bool:
        core = self._core
        assert core is not None
        if self._failure is not None:
            return False
        missed, replaced = core.missed, core.replaced
        self._done_before = core.position
        messages = core.take(time.monotonic(), time.time_ns() // 1000)
        if core.replaced is not None and core.replaced is not replaced:
            self._done_before = core.replaced[0]
            self._report_replaced(core)
        self._runtime.schedule_flush()
        # Also without messages: the application asked for the next one, so no message is unhandled. `_rest` is set
        # first, so that another thread that reads the position meanwhile does not count the new messages as returned.
        self._rest = iter(messages or ())
        self._messages = messages or []
        if core.missed > missed:
            self._report_gap(core.missed - missed)  # before the messages after the gap
        return messages is not None

    async def _wait(self) -> None:
        """Wait for the next event of the subscription."""
        if self._failure is not None:
            raise copy(self._failure)
        if self._waiter is not None:
            raise UsageError("two tasks wait for messages of one subscription: let one pass them to the other")
        waiter = self._waiter = self._runtime.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None
        if self._failure is not None:
            raise copy(self._failure)

    # -- the position in the log --------------------------------------------------------------------------------------

    @property
    def missed(self) -> int:
        """The number of undelivered messages: QoS 0 dropped for a slow subscriber, or deleted from the log."""
        return 0 if self._core is None else self._core.missed

    @property
    def position(self) -> int:
        """The first offset that was not returned yet. Store it with your results, and pass it as `start` later."""
        position = self._done_before
        for message in reversed(self._returned()):
            if message.offset is not None and not message.retained:
                position = max(message.offset + 1, position)
                break
        return position if self._core is None else self._core.reached(position)

    @property
    def bookmark(self) -> Bookmark:
        """The position with the epochs of the log.

        As `start` it is better than an offset: the broker notices if an older copy of its log was restored meanwhile.

        Raises:
            UsageError: The subscription has not begun.
        """
        if self._core is None or not self._core.has_position:
            raise UsageError("a subscription has a bookmark once it has begun: `async with client.subscribe(...)`")
        return self._core.bookmark(self.position)

    @property
    def replaced(self) -> tuple[int, int] | None:
        """The offsets, from the first on and below the second, at which the log now has messages other than the ones
        that the application received. None unless an older copy of the log was restored at the broker."""
        return None if self._core is None else self._core.replaced

    @property
    def _handled_below(self) -> int | None:
        """The first offset that was not handled: that of the current message, if there is one.

        None if the broker must resume with the first record that is not confirmed: after messages in lists, and if the
        broker has a new log since, in which the offset of the current message has no meaning.
        """
        if self._core is None or self._in_lists or self._core.position < self.position:
            return None
        for message in self._returned()[-1:]:
            if message.offset is not None and not message.retained:
                return max(message.offset, self._done_before)
        return self.position

    def _returned(self) -> list[Message]:
        return self._messages[: len(self._messages) - length_hint(self._rest)]

    async def commit(self, offset: int | None = None, *, timeout_s: float | None = None) -> None:
        """Move the cursor: a later subscription with this cursor resumes from there.

        Args:
            offset: The first offset that is not handled. By default the one after the last message.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            UsageError: The subscription has no cursor, or has not begun.
            BrokerError: The broker refused the commit.
            ReplyTimeoutError: The broker has not confirmed it within `timeout_s`.
        """
        _check_offset(offset)
        if self._core is None or self._cursor is None:
            raise UsageError("only a subscription with a cursor can be committed: subscribe(..., cursor='name')")
        await within(
            self._runtime.commit_subscription(self._core, self._reached(offset)),
            timeout_s,
            f"the broker did not confirm the commit of the cursor {self._cursor!r}",
            "it may be stored or not; commit again",
        )

    def _reached(self, offset: int | None) -> int:
        """Return the first unhandled offset; the position if `offset` is in a part of the log that was lost."""
        position = self.position
        if offset is None or (self.replaced is not None and position < offset <= self.replaced[1]):
            return position
        return offset

    # -- events of the client -----------------------------------------------------------------------------------------

    def _on_event(self, event: Available | SubscriptionStarted | Missed | SubscriptionEnded) -> None:
        if isinstance(event, Missed):
            # Only gaps of unknown size. Others are reported by _take, in order with the messages.
            if event.had_below is not None:
                self._report_replaced(event.subscription)
            elif event.count is None:
                self._report_gap(None)
        elif isinstance(event, SubscriptionEnded):
            self._end(broker_error(event.code, event.text))
        else:
            self._wake()

    def _report_replaced(self, core: Subscription) -> None:
        """Report the gap once, before the messages after it."""
        if self._reported_replaced is not core.replaced:
            self._reported_replaced = core.replaced
            self._report_gap(None)

    def _report_gap(self, count: int | None) -> None:
        _logger.warning(
            "subscription to %s: %s messages could not be delivered",
            ", ".join(self.filters),
            "an unknown number of" if count is None else count,
        )
        if self._on_gap is not None:
            self._runtime.call_back(self._on_gap, count)

    def _on_forked(self) -> None:
        """Drop the fetched messages in a forked child: the parent returns them.

        The iterator is exhausted, not replaced, because a loop that has begun holds it.
        """
        for _ in self._rest:
            pass

    def _on_client_ended(self, error: GodwitError) -> None:
        self._end(copy(error))

    def _end(self, error: GodwitError) -> None:
        if self._failure is None:
            self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._requests:
            self._requests = [request for request in self._requests if not request.try_end()]
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _MessageRequest:
    """A thread that waits for messages of a subscription, with as few steps of the loop as possible.

    The loop watches the time limit, as in LoopThread.call: a message that has arrived in time is returned.
    """

    __slots__ = ("_ended", "_error", "_source", "_thread", "_timeout_s", "_timer", "pauses_loop")

    def __init__(self, source: AsyncSubscription, timeout_s: float | None) -> None:
        self._source = source
        self._thread: LoopThread | None = None
        self.pauses_loop = False
        """Whether the thread that waits will run the client itself while it waits for the next message."""
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def wait(self, thread: LoopThread) -> None:
        """Wait for messages, in any thread except the loop's. Raise TimeoutError, or why there are none."""
        self._thread = thread
        try:
            thread.post(self._begin)
            while not self._ended.acquire(timeout=SIGNAL_S):
                pass
        except BaseException:
            if not thread.is_inherited:
                thread.call_soon(self._withdraw)
            raise
        if self._error is not None:
            raise self._error
        self._source._require_more()

    # -- in the loop's thread -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._source._begin_request(self) and self._timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire)

    def try_end(self) -> bool:
        """End the wait if there is something to return. Return whether there is."""
        try:
            if not self._source._fetch_now():
                return False
        except Exception as error:
            self._error = error
        self._end()
        return True

    def _expire(self) -> None:
        self._withdraw()
        self._error = TimeoutError()
        self._end()

    def _withdraw(self) -> None:
        self._source._withdraw_request(self)
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.pauses_loop and self._thread is not None and not self._thread.is_paused:
            self._thread.pause()
        self._ended.release()


class AsyncSource(Protocol[T]):
    """The interface of its asyncio counterpart that a blocking iterator uses."""

    _rest: Iterator[T]
    """Items that have arrived and were not returned yet: an iterator over a list."""

    async def _fetch_more(self) -> None:
        """Wait until `_rest` has an item. Called again before `_rest` is exhausted, it changes nothing."""

    async def __aenter__(self) -> object: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class BlockingIterator(Generic[T]):
    """Iterate over a source in the loop's thread, from any number of threads: each item goes to exactly one of them.

    Items wait in `_rest`, so that a time limit or Ctrl-C during the wait cannot lose them. Between taking an item from
    `_rest` and returning it nothing is called: Python may raise KeyboardInterrupt after a call, and lose the item.
    """

    def __init__(self, thread: LoopThread, inner: AsyncSource[T], timeout_s: float | None) -> None:
        self._thread = thread
        self._inner = inner
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()

    def __enter__(self) -> Self:
        self._thread.call(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and self._thread.is_inherited:
            return  # the exception that is being raised is more useful than a ForkedError
        self._thread.call(self._inner.__aexit__(kind, error, traceback))

    def __iter__(self) -> Iterator[T]:
        while True:
            yield from self._inner._rest  # without a change of threads for each item
            try:
                self._fetch(self._timeout_s)
            except TimeoutError:
                return

    def __next__(self) -> T:
        try:
            return self.get(self._timeout_s)
        except TimeoutError:
            raise StopIteration from None

    def get(self, timeout_s: float | None = None) -> T:
        """Wait for the next item and return it.

        Raises:
            TimeoutError: No item arrived within `timeout_s` seconds. None is lost by that.
            GodwitError: The subscription or the client has ended.
        """
        check_timeout(timeout_s)
        for item in self._inner._rest:
            return item
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                self._fetch(None if until is None else max(until - time.monotonic(), 0.0))
            except TimeoutError:
                raise TimeoutError(f"nothing arrived within {timeout_s:g} s") from None
            for item in self._inner._rest:  # empty if another thread was quicker
                return item

    def _fetch(self, timeout_s: float | None) -> None:
        self._thread.call(self._bring(), timeout_s)

    async def _bring(self) -> None:
        """Fetch items. Of several threads one waits for the source; the others wait for that thread."""
        async with self._turn:
            await self._inner._fetch_more()


class BlockingSubscription(BlockingIterator[Message]):
    """An iterator over the messages that match the filters, in order. Made by `BlockingClient.subscribe`.

        with client.subscribe("home/+/temperature", timeout_s=5) as messages:
            for message in messages:
                print(message.topic, message.payload)

    A message counts as handled when the application asks for the next one, or leaves the block without an exception
    (`break` and `return` are not exceptions). If an exception leaves the block (including KeyboardInterrupt, SystemExit
    and GeneratorExit), the current message is not handled, and a kept subscription delivers it again the next time.

    Several threads may share a subscription. Then a message counts as handled when any thread asks for the next one. If
    that is too early, use a cursor, and commit the offset below which all threads have handled all messages.
    """

    _inner: AsyncSubscription

    def __init__(
        self, thread: LoopThread, inner: AsyncSubscription, timeout_s: float | None, driver: CallerDriver
    ) -> None:
        super().__init__(thread, inner, timeout_s)
        self._driver = driver
        self._is_brisk = False
        """Whether the last message came so soon that a thread should wait for the next one by itself."""

    def __repr__(self) -> str:
        return f"<BlockingSubscription{repr(self._inner).removeprefix('<AsyncSubscription')}"

    def _fetch(self, timeout_s: float | None) -> None:
        began = time.monotonic()
        is_long = timeout_s is None or timeout_s > DIRECT_S
        if self._is_brisk and is_long and self._driver.wait(self._inner._fetch_now):
            self._inner._require_more()
            return
        if timeout_s is not None:
            timeout_s = max(timeout_s - (time.monotonic() - began), 0.0)
        request = _MessageRequest(self._inner, timeout_s)
        request.pauses_loop = self._is_brisk and is_long and self._driver.may_pause()
        self._is_brisk = False
        request.wait(self._thread)
        self._is_brisk = time.monotonic() - began < BRISK_S
        self._driver.may_send = self._thread.is_paused

    def close(self) -> None:
        """End the subscription, and wait a few seconds for the broker to confirm that. May be repeated."""
        self._thread.call(self._inner.close())

    def batches(self) -> Iterator[list[Message]]:
        """Iterate over the messages in lists, as they arrived: each list is one record of the transport.

        A list counts as handled under the same conditions as a message. If the current list is not handled, its record
        is delivered again.
        """
        self._inner._in_lists = True
        while True:
            if messages := [*self._inner._rest]:
                yield messages
            try:
                self._fetch(self._timeout_s)
            except TimeoutError:
                return

    @property
    def filters(self) -> tuple[str, ...]:
        """The topic filters, as given to `subscribe`."""
        return self._inner.filters

    @property
    def missed(self) -> int:
        """The number of undelivered messages: QoS 0 dropped for a slow subscriber, or deleted from the log."""
        return self._inner.missed

    @property
    def position(self) -> int:
        """The first offset that was not returned yet. Store it with your results, and pass it as `start` later."""
        return self._inner.position

    @property
    def bookmark(self) -> Bookmark:
        """The position with the epochs of the log, see `AsyncSubscription.bookmark`."""
        return self._inner.bookmark

    @property
    def replaced(self) -> tuple[int, int] | None:
        """The range of offsets at which the log has other messages now, see `AsyncSubscription.replaced`."""
        return self._inner.replaced

    def commit(self, offset: int | None = None, *, timeout_s: float | None = None) -> None:
        """Move the cursor, see `AsyncSubscription.commit`."""
        self._thread.call(self._inner.commit(offset, timeout_s=timeout_s))
