"""Jobs without asyncio: the same methods, blocking."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping

from godwit.client.jobs import TaskView, ViewState
from godwit.net.jobs import AsyncJob, TaskResult, Update
from godwit.net.thread import LoopThread


class BlockingJob:
    """One job, over reconnects. Made by `BlockingClient.submit`. As an iterator it gives what happens, to the end."""

    def __init__(self, thread: LoopThread, inner: AsyncJob) -> None:
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return f"<BlockingJob {self.number}, {self.kind!r}, {self.state}>"

    @property
    def number(self) -> int:
        """The broker's, for people and programs: `client.job(number)` finds it again."""
        return self._inner.number

    @property
    def key(self) -> str:
        """The controller's: to submit with the same one again is harmless."""
        return self._inner.key

    @property
    def kind(self) -> str:
        return self._inner.kind

    @property
    def agreed(self) -> int | None:
        """How many workers do it. None: no worker volunteers for its kind yet."""
        return self._inner.agreed

    @property
    def state(self) -> ViewState:
        """waiting, running, done, failed or cancelled; refused by the broker, or unknown to it (any more)."""
        return self._inner.state

    @property
    def begins_us(self) -> int:
        """Not before then, in microseconds since 1970, if it was submitted with a delay. 0 or past: at once."""
        return self._inner.begins_us

    @property
    def is_ended(self) -> bool:
        return self._inner.is_ended

    @property
    def reason(self) -> str:
        """Why it failed or was cancelled."""
        return self._inner.reason

    @property
    def tasks(self) -> Mapping[int, TaskView]:
        """How each task stands, as far as it is known."""
        return self._inner.tasks

    def results(self, timeout_s: float | None = None) -> list[TaskResult]:
        """Waits for the end; gives what each task brought. See AsyncJob.results."""
        return self._thread.call(self._inner.results(timeout_s))

    def cancel(self, reason: str = "") -> None:
        """Ends it: tasks that are at work are revoked. Returns when that is safe."""
        self._thread.call(self._inner.cancel(reason))

    def __iter__(self) -> Iterator[Update]:
        updates = aiter(self._inner)
        while (update := self._thread.call(_next(updates))) is not None:
            yield update


async def _next(updates: AsyncIterator[Update]) -> Update | None:
    return await anext(updates, None)
