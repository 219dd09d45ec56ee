"""The workers and controllers of the jobs world.

Workers accept tasks, report progress, and return results or failures, or give tasks back. Controllers submit, follow,
resubmit, stop following and cancel jobs. A named controller that restarts submits unfinished jobs again with their old
keys, or watches them by their numbers. A controller without a name cannot: it has a new identity in each run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from godwit.client import events as client_events
from godwit.client.jobs import JobView
from godwit.client.worker import Lease
from godwit.errors import BufferFullError
from godwit.transport.events import Address
from godwit.wire.control import Done, Error
from godwit.wire.control_base import Code
from godwit.wire.jobs import CancelJob, JobDetails, JobList, JobSpec, ListJobs, Ref, ShowJob
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_log_model import RequestedJob, TaskRun
from godwit_sim.jobs_notifications import JobObservation
from godwit_sim.network import Host
from godwit_sim.worlds.jobs_harness import Actor, JobCheckers
from godwit_sim.worlds.jobs_plan import KINDS, ControllerPlan, JobPlan, WorkerPlan

# -- workers ----------------------------------------------------------------------------------------------------------

HEALED_TASK_S: Final = 0.05
"""The longest attempt after the faults have ended."""


class WorkerActor(Actor):
    """One worker through all its runs."""

    def __init__(
        self, checkers: JobCheckers, number: int, plan: WorkerPlan, host: Host, server: Address, *, has_twin: bool
    ) -> None:
        super().__init__(checkers, f"worker{number}", plan.actor, host, server, has_twin=has_twin)
        self.plan = plan
        self._kinds = plan.kinds
        self._capacity = plan.capacity
        self._is_away = False
        """It has withdrawn."""
        self._holding: dict[Lease, TaskRun] = {}
        self._claims: set[Ref] = set()
        """Tasks of other workers that it has reported."""

    def on_begun(self) -> None:
        self._holding.clear()
        self._claims.clear()
        self._volunteer()

    def _volunteer(self) -> None:
        if self._is_away:
            self.client.withdraw()
        else:
            self.client.volunteer(self._kinds, self._capacity)

    # -- faults -------------------------------------------------------------------------------------------------------

    def withdraw(self, lasts_s: float) -> None:
        """Withdraw for this time; depending on the plan, return the tasks or finish them."""
        self._is_away = True
        if self.host.alive and not self.is_closing:
            self.client.withdraw()
            if self.plan.returns:
                for lease, run in list(self._holding.items()):
                    self._end(lease, run, self._give_back)
            self.checkers.network.pump(self.host)
        self.checkers.network.at(self.checkers.network.now + lasts_s, self._end_withdrawal)

    def _end_withdrawal(self) -> None:
        self._is_away = False
        self._volunteer_again()

    def change(self, rng: Random) -> None:
        """Change the kinds and the capacity."""
        self._kinds = tuple(rng.sample(KINDS, rng.randint(1, 2)))
        self._capacity = rng.choice((1, 2, 5))
        self._volunteer_again()

    def _volunteer_again(self) -> None:
        if self.host.alive and not self.is_closing:
            self._volunteer()
            self.checkers.network.pump(self.host)

    def end_faults(self) -> None:
        super().end_faults()
        self._is_away = False
        self._kinds, self._capacity = self.plan.kinds, self.plan.capacity
        self._volunteer_again()

    def unsettled(self) -> str:
        held = [run for run in self._holding.values() if not run.is_reported]
        return super().unsettled() or (f"{held[0]} is not over" if held and not self.is_retired else "")

    # -- tasks --------------------------------------------------------------------------------------------------------

    def on_event(self, event: Any) -> None:
        match event:
            case client_events.Leased():
                self._on_leased(event.lease)
            case client_events.Revoked():
                run = self._holding.pop(event.lease)
                if self.plan.ignores_revokes and not self.checkers.is_healed:
                    self.later(0.01, self._insist, event.lease, run)
            case client_events.Reported():
                if event.lease.ref not in self._claims:
                    self.checkers.notifications.reported(self._holding.pop(event.lease))
            case client_events.VolunteerRefused():
                raise ViolationError("worker", f"{self.label} may not work: {event.text}")
            case client_events.VolunteerAccepted() | client_events.WorkIdle():
                pass
            case _:
                raise ViolationError("worker", f"{self.label} received an unexpected {event}")

    def _on_leased(self, lease: Lease) -> None:
        checkers = self.checkers
        run = checkers.records.begin(lease.ref, self.name, self.label, checkers.network.now)
        checkers.notifications.leased(run, lease)
        self._holding[lease] = run
        plan = checkers.plans[lease.payload]
        rng = Random(f"{checkers.seed} run {lease.ref} {self.label}")
        takes_s = rng.uniform(0.0, 2 * plan.takes_s)
        if checkers.is_healed:
            takes_s = min(takes_s, HEALED_TASK_S)
        for step in range(self.plan.steps):
            self.later(takes_s * (step + 1) / (self.plan.steps + 1), self._step, lease, run, step)
        action: Callable[[Lease, TaskRun], None] = self._finish
        if rng.random() < self.plan.returns:
            action = self._give_back
        elif rng.random() < plan.fails:
            action = self._fail_for_good if rng.random() < plan.fails_for_good else self._fail
        self.later(takes_s, self._end, lease, run, action)
        if self.plan.ignores_revokes and not checkers.is_healed:
            self.later(takes_s / 2, self._claim)

    def _step(self, lease: Lease, run: TaskRun, step: int) -> None:
        if lease in self._holding and not run.is_over:
            progress, note = round((step + 1) / (self.plan.steps + 1), 3), f"step {step} of {run.ref}"
            run.steps.append((progress, note))
            self.client.step(lease, progress, note)

    def _end(self, lease: Lease, run: TaskRun, action: Callable[[Lease, TaskRun], None]) -> None:
        if lease in self._holding and not run.is_over:
            action(lease, run)

    def _finish(self, lease: Lease, run: TaskRun) -> None:
        size_bytes = self.checkers.plans[lease.payload].result_bytes
        result = self.checkers.payload(size_bytes) if size_bytes else b""
        try:
            self.client.finish(lease, result)
        except BufferFullError:
            self.retry_when_writable(self._end, lease, run, self._finish)
        else:
            run.result = result

    def _fail(self, lease: Lease, run: TaskRun) -> None:
        run.error = f"no luck with {lease.ref}"
        self.client.fail(lease, run.error)

    def _fail_for_good(self, lease: Lease, run: TaskRun) -> None:
        run.error, run.is_final = f"no hope for {lease.ref}", True
        self.client.fail(lease, run.error, is_final=True)

    def _give_back(self, lease: Lease, run: TaskRun) -> None:
        run.is_returned = True
        self.client.give_back(lease)

    # -- misbehaviour: the broker must ignore these reports -----------------------------------------------------------

    def _insist(self, lease: Lease, run: TaskRun) -> None:
        """Report a revoked lease, as a worker does that ignores revocations."""
        self._holding[lease] = run
        run.result = self._report_anyway(lease)

    def _claim(self) -> None:
        """Report a task that another worker has."""
        for job in self.checkers.log_model.unended():
            for task in job.tasks.values():
                ref = (job.number, task.number, task.fence)
                if task.state == "leased" and task.worker != self.name and ref not in self._claims:
                    lease = Lease(ref, job.row.kind, job.row.controller, b"", 1, 0, None, None)
                    self._claims.add(ref)
                    self._report_anyway(lease)
                    return

    def _report_anyway(self, lease: Lease) -> bytes:
        result = self.checkers.payload(16)
        lease.state = "running"
        self.client._work.leases._running[lease.ref] = lease
        self.client.finish(lease, result)
        return result


# -- controllers ------------------------------------------------------------------------------------------------------

RETRY_S: Final = 0.5
"""The delay after the broker's disk refused a job."""
LOOK_INTERVAL_S: Final = 0.7
"""How often a curious controller looks at other jobs."""


@dataclass(slots=True, eq=False)
class _ControllerJob:
    """A job that a controller remembers through all its runs."""

    plan: JobPlan
    payload: bytes
    requested_job: RequestedJob
    number: int | None = None
    is_over: bool = False
    """Its end is known, or the controller has stopped following it."""


class ControllerActor(Actor):
    """One controller through all its runs."""

    def __init__(self, checkers: JobCheckers, number: int, plan: ControllerPlan, host: Host, server: Address) -> None:
        super().__init__(checkers, f"boss{number}", plan.actor, host, server, has_twin=False)
        self.plan = plan
        self._todo = deque(plan.jobs)
        self._own_jobs: list[_ControllerJob] = []
        self._views: dict[JobView, tuple[JobObservation, _ControllerJob | None]] = {}
        self._cancels: dict[int, int] = {}
        """Jobs by the request that cancels them."""
        self._questions: set[int] = set()
        """Requests about any jobs."""
        self._seen: set[int] = set()
        """Jobs of others that it has looked at."""

    # -- runs ---------------------------------------------------------------------------------------------------------

    def on_begun(self) -> None:
        self._views.clear()
        self._cancels.clear()
        self._questions.clear()
        if self.actor.name is None:
            self._own_jobs.clear()
        for own_job in self._own_jobs:
            if not own_job.is_over:
                if self.plan.remembers == "numbers" and own_job.number is not None:
                    self._watch(own_job.number, own_job)
                else:
                    self._submit(own_job)
        self._submit_due()
        if self.plan.is_curious:
            self.later(LOOK_INTERVAL_S, self._look)

    def _submit_due(self) -> None:
        """Submit the jobs that are due."""
        now = self.checkers.network.now
        while self._todo and self._todo[0].at_s <= now:
            self._begin_job(self._todo.popleft())
        if self._todo:
            self.later(self._todo[0].at_s - now, self._submit_due)

    def end_faults(self) -> None:
        super().end_faults()
        self._submit_due()

    def unsettled(self) -> str:
        if problem := super().unsettled():
            return problem
        if self._todo or self._cancels:
            return f"{self.label} has {len(self._todo)} jobs to submit and {len(self._cancels)} cancels unanswered"
        for view in self._views:
            if not view.is_ended:
                return f"{self.label} follows {view.key!r}, job {view.number}, which is {view.state}"
        return next(
            (
                f"{own_job.requested_job} is not over for {self.label}"
                for own_job in self._own_jobs
                if not own_job.is_over
            ),
            "",
        )

    # -- requests -----------------------------------------------------------------------------------------------------

    def _begin_job(self, plan: JobPlan) -> None:
        checkers = self.checkers
        payload = checkers.payload(plan.size_bytes)
        checkers.plans[payload] = plan
        view = self._call(plan, payload, plan.key)
        if view is None:
            self.retry_when_writable(self._begin_job, plan)
            return
        requested_job = checkers.records.request(
            self.name, _submission(plan, view.key, payload), payload, checkers.network.now
        )
        own_job = _ControllerJob(plan, payload, requested_job)
        self._own_jobs.append(own_job)
        self._follow(view, own_job)
        if plan.cancel_after_s is not None:
            self.later(plan.cancel_after_s, self._cancel, own_job)
        if plan.again_after_s is not None:
            self.later(plan.again_after_s, self._submit_again, own_job)
        if plan.unwatch_after_s is not None:
            self.later(plan.unwatch_after_s, self._lose_interest, view, own_job)

    def _call(self, plan: JobPlan, payload: bytes, key: str | None) -> JobView | None:
        """Pass the job to the library; return None if its buffer is full."""
        try:
            return self.client.submit(_submission(plan, key or "", payload), payload)
        except BufferFullError:
            return None

    def _submit(self, own_job: _ControllerJob) -> None:
        """Submit the job once more, unchanged."""
        view = self._call(own_job.plan, own_job.payload, own_job.requested_job.key)
        if view is None:
            self.retry_when_writable(self._submit, own_job)
        else:
            self._follow(view, own_job)

    def _submit_again(self, own_job: _ControllerJob) -> None:
        """Submit with the same key but another payload, which has no effect if the job is known."""
        checkers = self.checkers
        payload = checkers.payload(own_job.plan.size_bytes)
        view = self._call(own_job.plan, payload, own_job.requested_job.key)
        if view is not None:
            checkers.plans[payload] = own_job.plan
            submission = _submission(own_job.plan, view.key, payload)
            checkers.records.request(self.name, submission, payload, checkers.network.now)
            self._follow(view, own_job)

    def _follow(self, view: JobView, own_job: _ControllerJob) -> None:
        self._views[view] = (JobObservation(self.label, own_job.requested_job), own_job)

    def _watch(self, number: int, own_job: _ControllerJob | None) -> None:
        view = self.client.watch(number)
        self._views[view] = (JobObservation(self.label, None), own_job)

    def _look(self) -> None:
        """Watch a job of another controller, and list all jobs."""
        numbers = [number for number in self.checkers.log_model.jobs if number not in self._seen]
        if numbers:
            number = numbers[0]
            self._seen.add(number)
            self._watch(number, None)
            self._questions.add(self.client.request(lambda request: ShowJob(request=request, job=number)))
            self._questions.add(self.client.request(lambda request: ListJobs(request=request)))
        if not self.checkers.is_healed:
            self.later(LOOK_INTERVAL_S, self._look)

    def _lose_interest(self, view: JobView, own_job: _ControllerJob) -> None:
        self.client.unwatch(view)
        self._views.pop(view, None)
        own_job.is_over = True

    def _cancel(self, own_job: _ControllerJob) -> None:
        if own_job.number is None:
            if not own_job.is_over:
                self.later(0.05, self._cancel, own_job)
            return
        number = own_job.number
        self.checkers.records.cancels.add(number)
        request = self.client.request(lambda request: CancelJob(request=request, job=number, reason="not needed"))
        self._cancels[request] = number

    # -- notifications ------------------------------------------------------------------------------------------------

    def on_event(self, event: Any) -> None:
        match event:
            case client_events.JobTaken():
                if (found := self._views.get(event.view)) is not None:
                    observation, own_job = found
                    self.checkers.notifications.taken(observation, event.view)
                    if own_job is not None:
                        own_job.number = event.view.number
            case client_events.JobChanged():
                if (found := self._views.get(event.view)) is not None:
                    self._on_changed(event.view, *found)
            case client_events.JobRefused():
                if (found := self._views.pop(event.view, None)) is not None:
                    self._on_refused(event, *found)
            case client_events.Reply():
                self._on_reply(event)
            case client_events.WorkIdle():
                pass
            case _:
                raise ViolationError("controller", f"{self.label} received an unexpected {event}")

    def _on_changed(self, view: JobView, observation: JobObservation, own_job: _ControllerJob | None) -> None:
        self.checkers.notifications.changed(observation, view, self.checkers.network.now)
        if view.is_ended:
            self.checkers.notifications.ended(observation, view, self.checkers.network.now)
            if own_job is not None:
                own_job.is_over = True

    def _on_refused(
        self, event: client_events.JobRefused, observation: JobObservation, own_job: _ControllerJob | None
    ) -> None:
        if event.code == Code.NO_SUCH_JOB and event.view.number is not None:
            self.checkers.notifications.unknown(observation, event.view.number, self.checkers.network.now)
            if own_job is not None:
                own_job.is_over = True
        elif event.code == Code.STORAGE and self.checkers.is_storage_failing:
            if own_job is not None:
                self.later(RETRY_S, self._submit, own_job)
        else:
            raise ViolationError("controller", f"{self.label}: {observation.requested_job} was refused: {event.text}")

    def _on_reply(self, event: client_events.Reply) -> None:
        if event.request in self._questions:
            self._questions.discard(event.request)
            self._on_shown(event.message)
        else:
            self._on_cancelled(event)

    def _on_shown(self, message: object) -> None:
        if self.checkers.is_storage_failing:
            return  # then a list may show states that are not durable
        if isinstance(message, JobDetails):
            self.checkers.notifications.listed(self.label, message.job, message.tasks)
        elif isinstance(message, JobList):
            for info in message.jobs:
                self.checkers.notifications.listed(self.label, info)
        elif not isinstance(message, Error) or message.code != Code.NO_SUCH_JOB:
            raise ViolationError("controller", f"{self.label} asked for jobs, and was answered {message}")

    def _on_cancelled(self, event: client_events.Reply) -> None:
        number, message = self._cancels.pop(event.request), event.message
        if isinstance(message, Error) and message.code == Code.STORAGE and self.checkers.is_storage_failing:
            return
        if not isinstance(message, Done) and not (isinstance(message, Error) and message.code == Code.NO_SUCH_JOB):
            raise ViolationError("controller", f"{self.label}: cancel of job {number} was answered {message}")
        self.checkers.notifications.over(self.label, number)


def _submission(plan: JobPlan, key: str, payload: bytes) -> JobSpec:
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
