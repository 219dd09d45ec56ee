"""Subscriptions for asyncio: `async with client.subscribe(...) as messages: async for message in messages: ...`"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeAlias

from godwit.client.events import Available, Missed, SubscriptionEnded, SubscriptionStarted
from godwit.client.message import Bookmark, Message
from godwit.client.subscription import Start, Subscription
from godwit.errors import GodwitError, UsageError, broker_error

if TYPE_CHECKING:
    from godwit.net.shell import ClientShell

Since: TypeAlias = datetime | int
OnGap: TypeAlias = Callable[[int | None], None]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_microseconds(since: Since | None) -> int | None:
    """Microseconds since the epoch; a datetime without a time zone is local time."""
    if isinstance(since, datetime):
        return (since.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    return since


class AsyncSubscription:
    """Messages that match the filters, in order. Made by `AsyncClient.subscribe`.

    A message counts as handled once the next one is asked for, or when the block is left without an exception (`break`
    and `return` are no exceptions). When an exception leaves the block, also a cancel, KeyboardInterrupt, SystemExit or
    GeneratorExit, the message in hand is not handled: a kept subscription delivers it again the next time. `batches()`
    returns messages in lists, as they came; there it is the record of the list in hand that is delivered again. Leaving
    the block ends the subscription at the broker too, unless it was made with `keep` or has a cursor.
    """

    def __init__(
        self,
        client: ClientShell,
        filters: tuple[str, ...],
        *,
        start: Start,
        since: Since | None,
        cursor: str | None,
        on_gap: OnGap | None,
        keep: bool | None,
    ) -> None:
        self.filters = filters
        self._client = client
        self._start = start
        self._since_us = to_microseconds(since)
        self._cursor = cursor
        self._on_gap = on_gap
        self._keep = cursor is not None if keep is None else keep
        self._core: Subscription | None = None
        self._failure: GodwitError | None = None
        self._waiter: asyncio.Future[None] | None = None
        # What the core gave last, and how far the application is with it.
        self._messages: list[Message] = []
        self.rest: Iterator[Message] = iter(())
        """Of the present messages, those that are not handed out yet. `fetch` brings more. Threads may share it: an
        iterator over a list returns each item once."""
        self.in_lists = False
        """Whether messages were handed out in lists: then only the broker knows which ones are in hand."""
        self._told_replaced: tuple[int, int] | None = None
        self._done_before = 0
        """The first offset that was not handed out before these messages."""

    # -- the block ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncSubscription:
        if self._core is not None:
            raise UsageError("this subscription is in use already: ask the client for another one")
        core = self._core = self._client.begin_subscription(
            self, start=self._start, since_us=self._since_us, cursor=self._cursor
        )
        try:
            while core.state == "asking":
                await self._wait()
        except asyncio.CancelledError:
            self._client.drop_subscription(core, keep=self._keep, offset=None)
            raise
        self._done_before = core.position
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the subscription. After an exception the message in hand is not handled.

        Waits until the broker knows, but not after an exception that is no error, such as a cancel.
        """
        if kind is None:
            await self.close()
        elif (core := self._leave()) is not None:
            offset = self.handled_below if self._keep else None
            if issubclass(kind, Exception):
                await self._client.leave_subscription(core, keep=self._keep, offset=offset)
            else:
                self._client.drop_subscription(core, keep=self._keep, offset=offset)

    async def close(self, offset: int | None = None) -> None:
        """Ends the subscription, and waits a while for the broker to know. May be repeated.

        One that is kept goes on from `offset` later; without it, behind the last message that was handed out.
        """
        if (core := self._leave()) is not None:
            done_below = self._reached(offset)
            await self._client.leave_subscription(core, keep=self._keep, offset=done_below if self._keep else None)

    def _leave(self) -> Subscription | None:
        """What is to be ended, if it has not ended yet."""
        if self._core is None or self._failure is not None:
            return None
        self._end(UsageError(f"the subscription to {', '.join(self.filters)} was left: subscribe again"))
        return self._core

    # -- messages -----------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        # A generator: for each message that is quicker than a coroutine for __anext__. What it has not handed out stays
        # in `rest` when its loop is left.
        return self._generate()

    async def _generate(self) -> AsyncIterator[Message]:
        while True:
            for message in self.rest:
                yield message
            await self.fetch()

    async def __anext__(self) -> Message:
        while True:
            for message in self.rest:
                return message
            await self.fetch()

    async def batches(self) -> AsyncIterator[list[Message]]:
        """The messages in lists, as they came: one record of the transport each."""
        self.in_lists = True
        while True:
            if messages := [*self.rest]:
                yield messages
            await self.fetch()

    async def fetch(self) -> None:
        """Wait until `rest` has messages. Returns at once while it has: a second fetch cannot replace the first one's.

        Taking them is the last step and awaits nothing, so a cancel comes before it or not at all.
        """
        if self._core is None:
            raise UsageError("a subscription begins with `async with client.subscribe(...) as messages:`")
        while not length_hint(self.rest) and not self._take():
            await self._wait()

    def _take(self) -> bool:
        core = self._core
        assert core is not None
        if self._failure is not None:
            return False
        missed, replaced = core.missed, core.replaced
        self._done_before = core.position
        messages = core.take()
        if core.replaced is not None and core.replaced is not replaced:
            self._done_before = core.replaced[0]
            self._tell_replaced(core)
        self._client.schedule_flush()
        # Also if there are none: the next message was asked for, so none is in hand. `rest` first: another thread that
        # reads the position in between must not take the new messages for handed out.
        self.rest = iter(messages or ())
        self._messages = messages or []
        if core.missed > missed:
            self._tell_gap(core.missed - missed)  # before the messages behind the gap
        return messages is not None

    async def _wait(self) -> None:
        """Until something happens to the subscription."""
        if self._failure is not None:
            raise copy(self._failure)
        if self._waiter is not None:
            raise UsageError("two tasks wait for messages of one subscription: let one hand them to the other")
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None
        if self._failure is not None:
            raise copy(self._failure)

    # -- the place in the log -----------------------------------------------------------------------------------------

    @property
    def missed(self) -> int:
        """Messages that could not be delivered: a slow subscriber's at QoS 0, or gone from the log."""
        return 0 if self._core is None else self._core.missed

    @property
    def position(self) -> int:
        """The first offset that was not handed out yet: what to store with results, and to give as `start`."""
        position = self._done_before
        for message in reversed(self._handed_out()):
            if message.offset is not None and not message.retained:
                position = max(message.offset + 1, position)
                break
        return position if self._core is None else self._core.reached(position)

    @property
    def bookmark(self) -> Bookmark:
        """The position with the epochs of the log: as `start` it is checked against an older copy that was put back."""
        if self._core is None or not self._core.has_position:
            raise UsageError("a subscription has a bookmark once it has begun: `async with client.subscribe(...)`")
        return self._core.bookmark(self.position)

    @property
    def replaced(self) -> tuple[int, int] | None:
        """The range of offsets that stand for other messages now than for those that the application had received: from
        the first on and below the second. None while no older copy of the log was put back."""
        return None if self._core is None else self._core.replaced

    @property
    def handled_below(self) -> int | None:
        """The first offset that was not handled: that of the message in hand, if there is one.

        None: the broker resumes with the first record that is not confirmed. That is so after lists, and if the broker
        has begun another log since, in which the offset in hand means nothing.
        """
        if self._core is None or self.in_lists or self._core.position < self.position:
            return None
        for message in self._handed_out()[-1:]:
            if message.offset is not None and not message.retained:
                return max(message.offset, self._done_before)
        return self.position

    def _handed_out(self) -> list[Message]:
        return self._messages[: len(self._messages) - length_hint(self.rest)]

    async def commit(self, offset: int | None = None) -> None:
        """Moves the cursor: after a break the subscription goes on from `offset`, or behind the last message."""
        if self._core is None or self._cursor is None:
            raise UsageError("only a subscription with a cursor is committed: subscribe(..., cursor='name')")
        await self._client.commit_subscription(self._core, self._reached(offset))

    def _reached(self, offset: int | None) -> int:
        """Return what the application is done with: an offset of messages that the log has lost counts for nothing."""
        position = self.position
        if offset is None or (self.replaced is not None and position < offset <= self.replaced[1]):
            return position
        return offset

    # -- what the client tells ----------------------------------------------------------------------------------------

    def on_event(self, event: Available | SubscriptionStarted | Missed | SubscriptionEnded) -> None:
        if isinstance(event, Missed):
            # Only what nobody can count. The rest is seen when it is taken, in order with the messages.
            if event.had_below is not None:
                self._tell_replaced(event.subscription)
            elif event.count is None:
                self._tell_gap(None)
        elif isinstance(event, SubscriptionEnded):
            self._end(broker_error(event.code, event.text))
        else:
            self._wake()

    def _tell_replaced(self, core: Subscription) -> None:
        """Once, and before the messages behind it."""
        if self._told_replaced is not core.replaced:
            self._told_replaced = core.replaced
            self._tell_gap(None)

    def _tell_gap(self, count: int | None) -> None:
        if self._on_gap is not None:
            self._client.call_back(self._on_gap, count)

    def on_forked(self) -> None:
        """The parent hands these messages out. Used up, not replaced: a loop that has begun holds the iterator."""
        for _ in self.rest:
            pass

    def on_client_ended(self, error: GodwitError) -> None:
        self._end(copy(error))

    def _end(self, error: GodwitError) -> None:
        if self._failure is None:
            self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
