"""Requests for pages of lists wait here and are answered client by client, within a budget of work.

A page costs steps: places that the search looked at, and entries that it found. The budget refills with time, so lists
take a bounded part of the broker's time however many requests come, and no turn is long because of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from godwit.broker.failure import RequestFailure
from godwit.broker.rate import Bucket
from godwit.broker.session import Link
from godwit.wire import control, jobs
from godwit.wire.control_base import Code

ListRequest: TypeAlias = control.Topics | control.Clients | jobs.ListJobs | jobs.ShowJob

STEPS_PER_S: Final = 200_000
"""About a quarter of a processor's time."""
STEPS_AT_ONCE: Final = 4000
"""What a turn may spend on lists, beyond its last page: a few milliseconds."""
PAGE_STEPS: Final = 20
"""What a page costs beside its search and its entries."""
MAX_LISTS_WAITING: Final = 256
"""Requests of one client that wait to be answered."""


class ListQueue:
    """Feed: add, serve. `due_us` says when to serve next.

    `answer` sends the reply to one request and returns the steps that it cost.
    """

    def __init__(self, answer: Callable[[Link, ListRequest], int]) -> None:
        self._answer = answer
        self._waiting: dict[Link, deque[ListRequest]] = {}
        """The client that was served longest ago comes first."""
        self._budget: Bucket | None = None

    @property
    def due_us(self) -> int | None:
        """When there is budget for the next request, or None if none waits."""
        return self._budget.due_us if self._waiting and self._budget is not None else None

    def add(self, link: Link, request: ListRequest, now_us: int) -> None:
        """Answer a request now, or when there is budget for it. RequestFailure if its client has too many waiting."""
        requests = self._waiting.setdefault(link, deque())
        if len(requests) >= MAX_LISTS_WAITING:
            raise RequestFailure(
                Code.TOO_MANY, f"{MAX_LISTS_WAITING} requests for lists wait to be answered: wait for those first"
            )
        requests.append(request)
        self.serve(now_us)

    def serve(self, now_us: int) -> None:
        """Answer the requests that wait, one of each client in turn, while there is budget."""
        budget = self._budget
        if budget is None:
            budget = self._budget = Bucket(STEPS_PER_S, STEPS_AT_ONCE, now_us)
        while self._waiting and budget.take(0, now_us):
            link = next(iter(self._waiting))
            requests = self._waiting.pop(link)
            if not link.is_open:
                continue
            request = requests.popleft()
            if requests:
                self._waiting[link] = requests
            budget.take(PAGE_STEPS + self._answer(link, request), now_us)
