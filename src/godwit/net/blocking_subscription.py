"""Subscriptions and arriving files without asyncio: plain iterators in a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType

from godwit.client.message import Message
from godwit.net.files import FileReceiver
from godwit.net.inbox import ReceivedFile
from godwit.net.subscribing import AsyncSubscription
from godwit.net.thread import LoopThread


class BlockingSubscription:
    """Messages that match the filters, in order: an iterator in a block. Made by `BlockingClient.subscribe`.

    A message counts as delivered once the next one is asked for.
    """

    def __init__(self, thread: LoopThread, inner: AsyncSubscription, timeout_s: float | None) -> None:
        self._thread = thread
        self._inner = inner
        self._timeout_s = timeout_s
        self._fetching = threading.Lock()

    def __enter__(self) -> BlockingSubscription:
        self._thread.call(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the subscription, and waits until the broker knows. May be repeated."""
        self._thread.call(self._inner.close())

    def __iter__(self) -> Iterator[Message]:
        while True:
            yield from self._inner.rest  # no hop to the other thread for each message
            try:
                self._fetch(self._timeout_s)
            except TimeoutError:
                return

    def __next__(self) -> Message:
        try:
            return self.get(self._timeout_s)
        except TimeoutError:
            raise StopIteration from None

    def get(self, timeout_s: float | None = None) -> Message:
        """The next message; TimeoutError if none comes for so long."""
        while True:
            for message in self._inner.rest:
                return message
            self._fetch(timeout_s)

    def batches(self) -> Iterator[list[Message]]:
        """The messages in lists, as they came: one record of the transport each."""
        while True:
            messages = list(self._inner.rest)
            if messages:
                yield messages
            try:
                self._fetch(self._timeout_s)
            except TimeoutError:
                return

    def _fetch(self, timeout_s: float | None) -> None:
        """Waits for messages. Several threads may: one fetches, the others find what it brought."""
        rest = self._inner.rest
        if not self._fetching.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise TimeoutError(f"no message within {timeout_s:g} s")
        try:
            if self._inner.rest is rest:
                self._thread.call(self._inner.fetch(), timeout_s)
        finally:
            self._fetching.release()

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

    def commit(self, offset: int | None = None) -> None:
        """Moves the cursor: after a break the subscription goes on from `offset`, or behind the last message."""
        self._thread.call(self._inner.commit(offset))


class BlockingFiles:
    """The files that arrive, as an iterator in a block. Made by `BlockingClient.receive_files`."""

    def __init__(self, thread: LoopThread, inner: FileReceiver, timeout_s: float | None) -> None:
        self._thread = thread
        self._inner = inner
        self._timeout_s = timeout_s

    def __enter__(self) -> BlockingFiles:
        self._thread.call(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.call(self._inner.__aexit__(kind, error, traceback))

    def __iter__(self) -> Iterator[ReceivedFile]:
        return self

    def __next__(self) -> ReceivedFile:
        try:
            return self._thread.call(self._inner.__anext__(), self._timeout_s)
        except TimeoutError:
            raise StopIteration from None

    @property
    def problems(self) -> int:
        """Files that could not be kept so far."""
        return self._inner.problems
