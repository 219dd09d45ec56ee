"""Subscriptions and arriving files without asyncio: plain iterators in a block."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from godwit.client.message import Bookmark, Message
from godwit.net.files import FileReceiver
from godwit.net.inbox import ReceivedFile
from godwit.net.subscribing import AsyncSubscription
from godwit.net.thread import LoopThread

T = TypeVar("T")


class Source(Protocol[T]):
    """What a blocking iterator needs of its asyncio counterpart."""

    rest: Iterator[T]
    """What has arrived and was not handed out yet: an iterator over a list."""

    async def fetch(self) -> None:
        """Wait until `rest` has something. Called again before it is used up, it changes nothing."""

    async def __aenter__(self) -> object: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class BlockingIterator(Generic[T]):
    """Iterates over a source in the loop's thread. Any number of threads may: each item goes to exactly one of them.

    Items wait in `rest`, whatever becomes of the wait that brought them: a time limit or Ctrl-C cannot lose them. From
    `rest` they are taken without a call between taking and returning, because after a call Python may raise
    KeyboardInterrupt, and the item in between would be lost.
    """

    def __init__(self, thread: LoopThread, inner: Source[T], timeout_s: float | None) -> None:
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
            return  # the exception on its way says more than that this process cannot use the client
        self._thread.call(self._inner.__aexit__(kind, error, traceback))

    def __iter__(self) -> Iterator[T]:
        while True:
            yield from self._inner.rest  # no hop to the other thread for each item
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
        """Return the next one. Raises TimeoutError if none comes within `timeout_s` seconds; none is lost by that."""
        for item in self._inner.rest:
            return item
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                self._fetch(None if until is None else max(until - time.monotonic(), 0.0))
            except TimeoutError:
                raise TimeoutError(f"nothing arrived within {timeout_s:g} s") from None
            for item in self._inner.rest:  # empty if another thread was quicker
                return item

    def _fetch(self, timeout_s: float | None) -> None:
        self._thread.call(self._bring(), timeout_s)

    async def _bring(self) -> None:
        """Of several threads one waits for the source; the others wait for it, and find what it brought."""
        async with self._turn:
            await self._inner.fetch()


class BlockingSubscription(BlockingIterator[Message]):
    """Messages that match the filters, in order: an iterator in a block. Made by `BlockingClient.subscribe`.

    A message counts as handled once the next one is asked for, or when the block is left without an exception (`break`
    and `return` are no exceptions). When an exception leaves the block, also KeyboardInterrupt, SystemExit and
    GeneratorExit, the message in hand is not handled: a kept subscription delivers it again the next time.

    Several threads may share a subscription. Then a message counts as handled once any thread asks for the next one: if
    that is too early, use a cursor, and commit what all threads have handled.
    """

    _inner: AsyncSubscription

    def close(self) -> None:
        """Ends the subscription, and waits until the broker knows. May be repeated."""
        self._thread.call(self._inner.close())

    def batches(self) -> Iterator[list[Message]]:
        """The messages in lists, as they came: one record of the transport each.

        A list counts as handled as a message does; what is delivered again is the record of the list in hand.
        """
        self._inner.in_lists = True
        while True:
            if messages := [*self._inner.rest]:
                yield messages
            try:
                self._fetch(self._timeout_s)
            except TimeoutError:
                return

    @property
    def filters(self) -> tuple[str, ...]:
        return self._inner.filters

    @property
    def missed(self) -> int:
        """Messages that could not be delivered: a slow subscriber's at QoS 0, or gone from the log."""
        return self._inner.missed

    @property
    def position(self) -> int:
        """The first offset that was not handed out yet."""
        return self._inner.position

    @property
    def bookmark(self) -> Bookmark:
        """The position with the epochs of the log: see `AsyncSubscription.bookmark`."""
        return self._inner.bookmark

    @property
    def replaced(self) -> tuple[int, int] | None:
        """The range of offsets that stand for other messages now: see `AsyncSubscription.replaced`."""
        return self._inner.replaced

    def commit(self, offset: int | None = None) -> None:
        """Moves the cursor: after a break the subscription goes on from `offset`, or behind the last message."""
        self._thread.call(self._inner.commit(offset))


class BlockingFiles(BlockingIterator[ReceivedFile]):
    """The files that arrive, as an iterator in a block. Made by `BlockingClient.receive_files`."""

    _inner: FileReceiver

    @property
    def problems(self) -> int:
        """Files that could not be kept so far."""
        return self._inner.problems
