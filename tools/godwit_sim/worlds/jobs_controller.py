"""The controllers of the world of jobs: they submit, follow, ask again, lose interest and cancel.

One that comes back after its death has its jobs on paper. It asks for those again whose end it does not know, with
their old keys, or watches them by their numbers. One without a name cannot: it is somebody else each time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from godwit.client import events as told
from godwit.client.jobs import JobView
from godwit.errors import BufferFullError
from godwit.transport.events import Address
from godwit.wire.control import Done, Error
from godwit.wire.control_base import Code
from godwit.wire.jobs import CancelJob, JobDetails, JobList, JobSpec, ListJobs, ShowJob
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_ledger import Order
from godwit_sim.jobs_tellings import Following
from godwit_sim.network import Host
from godwit_sim.worlds.jobs_actor import Actor
from godwit_sim.worlds.jobs_books import JobBooks
from godwit_sim.worlds.jobs_plan import ControllerPlan, JobPlan

TRIES_AGAIN_S: Final = 0.5
"""After the broker's disk could not take a job."""
LOOKS_S: Final = 0.7
"""So often somebody curious looks what others do."""


@dataclass(slots=True, eq=False)
class _Paper:
    """A job on a controller's paper, through all its lives."""

    plan: JobPlan
    payload: bytes
    order: Order
    number: int | None = None
    is_over: bool = False
    """Its end is known, or nobody cares any more."""


class ControllerActor(Actor):
    """One controller through all its lives."""

    def __init__(self, books: JobBooks, number: int, plan: ControllerPlan, host: Host, server: Address) -> None:
        super().__init__(books, f"boss{number}", plan.actor, host, server, has_twin=False)
        self.plan = plan
        self._todo = deque(plan.jobs)
        self._papers: list[_Paper] = []
        self._views: dict[JobView, tuple[Following, _Paper | None]] = {}
        self._cancels: dict[int, int] = {}
        """By request: the job."""
        self._questions: set[int] = set()
        """Requests about jobs of anybody."""
        self._seen: set[int] = set()
        """Jobs of others that it has looked at."""

    # -- lives --------------------------------------------------------------------------------------------------------

    def on_begun(self) -> None:
        self._views.clear()
        self._cancels.clear()
        self._questions.clear()
        if self.actor.name is None:
            self._papers.clear()
        for paper in self._papers:
            if not paper.is_over:
                if self.plan.remembers == "numbers" and paper.number is not None:
                    self._watch(paper.number, paper)
                else:
                    self._submit(paper)
        self._go_on()
        if self.plan.is_curious:
            self.later(LOOKS_S, self._look)

    def _go_on(self) -> None:
        """Asks for what is due."""
        now = self.books.network.now
        while self._todo and self._todo[0].at_s <= now:
            self._begin_job(self._todo.popleft())
        if self._todo:
            self.later(self._todo[0].at_s - now, self._go_on)

    def calm_down(self) -> None:
        super().calm_down()
        self._go_on()

    def unsettled(self) -> str:
        if problem := super().unsettled():
            return problem
        if self._todo or self._cancels:
            return f"{self.label} has {len(self._todo)} jobs to submit and {len(self._cancels)} cancels unanswered"
        for view in self._views:
            if not view.is_ended:
                return f"{self.label} follows {view.key!r}, job {view.number}, which is {view.state}"
        return next((f"{paper.order} is not over for {self.label}" for paper in self._papers if not paper.is_over), "")

    # -- asking -------------------------------------------------------------------------------------------------------

    def _begin_job(self, plan: JobPlan) -> None:
        books = self.books
        payload = books.payload(plan.size_bytes)
        books.plans[payload] = plan
        view = self._call(plan, payload, plan.key)
        if view is None:
            self.when_there_is_room(self._begin_job, plan)
            return
        order = books.ledger.ask(self.name, _wish(plan, view.key, payload), payload, books.network.now)
        paper = _Paper(plan, payload, order)
        self._papers.append(paper)
        self._follow(view, paper)
        if plan.cancel_after_s is not None:
            self.later(plan.cancel_after_s, self._cancel, paper)
        if plan.again_after_s is not None:
            self.later(plan.again_after_s, self._ask_again, paper)
        if plan.unwatch_after_s is not None:
            self.later(plan.unwatch_after_s, self._lose_interest, view, paper)

    def _call(self, plan: JobPlan, payload: bytes, key: str | None) -> JobView | None:
        """Hands it to the library; None if that has no room."""
        try:
            return self.client.submit(_wish(plan, key or "", payload), payload)
        except BufferFullError:
            return None

    def _submit(self, paper: _Paper) -> None:
        """Once more, as it was."""
        view = self._call(paper.plan, paper.payload, paper.order.key)
        if view is None:
            self.when_there_is_room(self._submit, paper)
        else:
            self._follow(view, paper)

    def _ask_again(self, paper: _Paper) -> None:
        """With the same key, but another payload: if the job is known, nothing of that counts."""
        books = self.books
        payload = books.payload(paper.plan.size_bytes)
        view = self._call(paper.plan, payload, paper.order.key)
        if view is not None:
            books.plans[payload] = paper.plan
            wish = _wish(paper.plan, view.key, payload)
            books.ledger.ask(self.name, wish, payload, books.network.now)
            self._follow(view, paper)

    def _follow(self, view: JobView, paper: _Paper) -> None:
        self._views[view] = (Following(self.label, paper.order), paper)

    def _watch(self, number: int, paper: _Paper | None) -> None:
        view = self.client.watch(number)
        self._views[view] = (Following(self.label, None), paper)

    def _look(self) -> None:
        """At a job of somebody else, and at all that there are."""
        numbers = [number for number in self.books.chronicle.stories if number not in self._seen]
        if numbers:
            number = numbers[0]
            self._seen.add(number)
            self._watch(number, None)
            self._questions.add(self.client.request(lambda request: ShowJob(request=request, job=number)))
            self._questions.add(self.client.request(lambda request: ListJobs(request=request)))
        if not self.books.is_calm:
            self.later(LOOKS_S, self._look)

    def _lose_interest(self, view: JobView, paper: _Paper) -> None:
        self.client.unwatch(view)
        self._views.pop(view, None)
        paper.is_over = True

    def _cancel(self, paper: _Paper) -> None:
        if paper.number is None:
            if not paper.is_over:
                self.later(0.05, self._cancel, paper)
            return
        number = paper.number
        self.books.ledger.cancels.add(number)
        request = self.client.request(lambda request: CancelJob(request=request, job=number, reason="not needed"))
        self._cancels[request] = number

    # -- what it is told ----------------------------------------------------------------------------------------------

    def on_event(self, event: Any) -> None:
        match event:
            case told.JobTaken():
                if (found := self._views.get(event.view)) is not None:
                    following, paper = found
                    self.books.tellings.taken(following, event.view)
                    if paper is not None:
                        paper.number = event.view.number
            case told.JobChanged():
                if (found := self._views.get(event.view)) is not None:
                    self._on_changed(event.view, *found)
            case told.JobRefused():
                if (found := self._views.pop(event.view, None)) is not None:
                    self._on_refused(event, *found)
            case told.Reply():
                self._on_reply(event)
            case told.WorkIdle():
                pass
            case _:
                raise ViolationError("controller", f"{self.label} was told {event}")

    def _on_changed(self, view: JobView, following: Following, paper: _Paper | None) -> None:
        self.books.tellings.changed(following, view, self.books.network.now)
        if view.is_ended:
            self.books.tellings.ended(following, view, self.books.network.now)
            if paper is not None:
                paper.is_over = True

    def _on_refused(self, event: told.JobRefused, following: Following, paper: _Paper | None) -> None:
        if event.code == Code.NO_SUCH_JOB and event.view.number is not None:
            self.books.tellings.unknown(following, event.view.number, self.books.network.now)
            if paper is not None:
                paper.is_over = True
        elif event.code == Code.STORAGE and self.books.is_storage_failing:
            if paper is not None:
                self.later(TRIES_AGAIN_S, self._submit, paper)
        else:
            raise ViolationError("controller", f"{self.label}: {following.order} was refused: {event.text}")

    def _on_reply(self, event: told.Reply) -> None:
        if event.request in self._questions:
            self._questions.discard(event.request)
            self._on_shown(event.message)
        else:
            self._on_cancelled(event)

    def _on_shown(self, message: object) -> None:
        if self.books.is_storage_failing:
            return  # who looks then sees also what is not safe yet
        if isinstance(message, JobDetails):
            self.books.tellings.listed(self.label, message.job, message.tasks)
        elif isinstance(message, JobList):
            for info in message.jobs:
                self.books.tellings.listed(self.label, info)
        elif not isinstance(message, Error) or message.code != Code.NO_SUCH_JOB:
            raise ViolationError("controller", f"{self.label} asked for jobs, and was answered {message}")

    def _on_cancelled(self, event: told.Reply) -> None:
        number, message = self._cancels.pop(event.request), event.message
        if isinstance(message, Error) and message.code == Code.STORAGE and self.books.is_storage_failing:
            return
        if not isinstance(message, Done) and not (isinstance(message, Error) and message.code == Code.NO_SUCH_JOB):
            raise ViolationError("controller", f"{self.label}: cancel of job {number} was answered {message}")
        self.books.tellings.over(self.label, number)


def _wish(plan: JobPlan, key: str, payload: bytes) -> JobSpec:
    return JobSpec(
        key=key,
        of_kind=plan.kind,
        size=len(payload),
        workers=plan.workers,
        priority=plan.priority,
        delay_ms=plan.delay_ms,
        deadline_ms=plan.deadline_ms,
        retries=plan.retries,
        retry_delay_ms=plan.retry_delay_ms,
        time_limit_ms=plan.time_limit_ms,
    )
