"""How leases, tasks and jobs end: every change of a state but the lease itself."""

from __future__ import annotations

from typing import Final

from godwit.broker.jobs.dispatch import Dispatch
from godwit.broker.jobs.model import Happening, Job, Task, Worker
from godwit.broker.jobs.shelf import Shelf
from godwit.broker.jobs.states import ENDED, JobEvent, TaskEvent, job_after, task_after
from godwit.broker.jobs.timers import Timers
from godwit.broker.jobs.turn import TimerOwner, Turn
from godwit.limits import MAX_LOSSES, MAX_RETRY_DELAY_S, MAX_RETURN_PAUSE_S, RETURN_PAUSE_S

DEADLINE_PASSED: Final = "the deadline passed"
NO_ROOM: Final = "no room for its result"
_MAX_DOUBLINGS: Final = 32
_MAX_RETRY_DELAY_MS: Final = int(MAX_RETRY_DELAY_S * 1000)
_RETURN_PAUSE_MS: Final = int(RETURN_PAUSE_S * 1000)
_MAX_RETURN_PAUSE_MS: Final = int(MAX_RETURN_PAUSE_S * 1000)


class Ends:
    """Ends things, and says so in the turn."""

    __slots__ = ("_dispatch", "_shelf", "_timers", "_turn", "_workers")

    def __init__(
        self, turn: Turn, dispatch: Dispatch, shelf: Shelf, timers: Timers[TimerOwner], workers: dict[str, Worker]
    ) -> None:
        self._turn = turn
        self._dispatch = dispatch
        self._shelf = shelf
        self._timers = timers
        self._workers = workers

    # -- of leases ----------------------------------------------------------------------------------------------------

    def finish(self, task: Task, result: bytes, now_us: int) -> None:
        """Its worker has a result."""
        job = task.job
        result_bytes = len(result)
        shelf = self._shelf
        if not shelf.may_keep(job.controller, result_bytes) or not shelf.make_room(0, result_bytes, self._turn.gone):
            self.fail(task, NO_ROOM, now_us, is_final=True)
            return
        ran_us = now_us - task.since_us
        self._end_lease(task, "result", now_us)
        task.result = result
        job.result_bytes += result_bytes
        shelf.grow(job, result_bytes)
        job.finished += 1
        self._turn.tell(
            job.kind,
            Happening(
                "finished",
                job.number,
                job.controller,
                now_us,
                task.number,
                task.worker,
                task.fence,
                result_bytes=result_bytes,
                ran_us=ran_us,
            ),
        )
        if job.finished + job.failed == job.agreed:
            self._end_when_all_have(job, now_us)

    def fail(self, task: Task, error: str, now_us: int, *, is_final: bool = False) -> None:
        """An attempt failed."""
        job = task.job
        task.failures += 1
        is_last = is_final or task.failures > job.retries
        ran_us = now_us - task.since_us
        self._end_lease(task, "last failure" if is_last else "failure", now_us)
        self._keep_error(task, error)
        self._tell(task, "failed", now_us, ran_us, error)
        if is_last:
            self._fail_for_good(task, now_us)
            return
        task.returns = 0
        self._pause(task, min(job.retry_delay_ms << min(task.failures - 1, _MAX_DOUBLINGS), _MAX_RETRY_DELAY_MS))

    def overrun(self, task: Task, now_us: int) -> None:
        """It took longer than its job allows, which is a failure."""
        error = f"took longer than {(task.job.time_limit_ms or 0) / 1000:g} s"
        self.revoke(task, error)
        self.fail(task, error, now_us)

    def give_back(self, task: Task, now_us: int) -> None:
        """Its worker hands it back, which counts against nobody. It is for others at once; but not again and again."""
        if now_us - task.since_us >= _MAX_RETURN_PAUSE_MS * 1000:
            task.returns = 0
        self._return(task, now_us)
        doublings = min(task.returns - 1, _MAX_DOUBLINGS)
        task.returns += 1
        self._pause(task, min(_RETURN_PAUSE_MS << doublings, _MAX_RETURN_PAUSE_MS) if doublings >= 0 else 0)

    def take_back(self, task: Task, now_us: int, reason: str = "") -> None:
        """It is not the worker's doing. With a reason: it has the task, and is to hear."""
        if reason:
            self.revoke(task, reason)
        self._return(task, now_us)
        self._dispatch.ready(task)

    def _return(self, task: Task, now_us: int) -> None:
        ran_us = now_us - task.since_us
        self._end_lease(task, "return", now_us)
        self._tell(task, "returned", now_us, ran_us)

    def _pause(self, task: Task, pause_ms: int) -> None:
        """It ended just now. It may be leased again, but not before that."""
        if pause_ms:
            task.begins_us = task.since_us + pause_ms * 1000
            self._timers.set(task, task.begins_us)
        else:
            self._dispatch.ready(task)

    def lose(self, task: Task, reason: str, now_us: int) -> None:
        """Its worker died, or fell silent."""
        self.revoke(task, reason)
        task.losses += 1
        task.returns = 0
        is_last = task.losses >= MAX_LOSSES
        ran_us = now_us - task.since_us
        self._end_lease(task, "last loss" if is_last else "loss", now_us)
        self._tell(task, "lost", now_us, ran_us, reason=reason)
        if is_last:
            self._keep_error(task, f"{task.losses} workers were lost while they had it")
            self._fail_for_good(task, now_us)
        else:
            self._dispatch.ready(task)

    def revoke(self, task: Task, reason: str) -> None:
        """Its worker is to hear that it has it no longer."""
        if self._workers[task.worker].is_connected:
            self._turn.revoked.append((task.worker, task.ref, reason))

    def _end_lease(self, task: Task, event: TaskEvent, now_us: int) -> None:
        job = task.job
        worker = self._workers[task.worker]
        task.state = task_after(task.state, event)
        task.since_us = task.begins_us = now_us
        task.progress = None
        task.note = ""
        del worker.leases[task]
        job.leased -= 1
        if job.time_limit_ms is not None:
            self._timers.stop(task)
        self._dispatch.moved(worker)
        self._turn.changed_tasks[task] = None
        if not worker.leases and not worker.queues:
            self.forget_idle(worker)

    def forget_idle(self, worker: Worker) -> None:
        """If nothing is known of it that matters."""
        if not worker.leases and not worker.kinds and worker.name in self._workers:
            self._dispatch.forget(worker)
            self._timers.stop(worker)
            del self._workers[worker.name]

    def _keep_error(self, task: Task, error: str) -> None:
        grown = len(error) - len(task.error)
        task.error = error
        task.job.text_bytes += grown
        self._shelf.grow(task.job, grown)

    def _fail_for_good(self, task: Task, now_us: int) -> None:
        job = task.job
        job.failed += 1
        self._tell(task, "task_failed", now_us, None, task.error)
        if job.finished + job.failed == job.agreed:
            self._end_when_all_have(job, now_us)

    def _tell(self, task: Task, event: str, now_us: int, ran_us: int | None, error: str = "", reason: str = "") -> None:
        job = task.job
        self._turn.tell(
            job.kind,
            Happening(
                event,
                job.number,
                job.controller,
                now_us,
                task.number,
                task.worker,
                task.fence,
                ran_us=ran_us,
                failures=task.failures,
                losses=task.losses,
                error=error,
                reason=reason,
            ),
        )

    # -- of jobs ------------------------------------------------------------------------------------------------------

    def cancel(self, job: Job, reason: str, now_us: int) -> None:
        self._end_early(job, "cancel", f"cancelled: {reason}" if reason else "cancelled", now_us)
        self._end(job, "cancel", "cancelled", reason, now_us)

    def miss_deadline(self, job: Job, now_us: int) -> None:
        self._end_early(job, "deadline", DEADLINE_PASSED, now_us)
        self._end(job, "deadline", "job_failed", DEADLINE_PASSED, now_us)

    def discard(self, job: Job) -> None:
        """As if it had never been submitted. Nobody was told of it, so nobody is."""
        turn = self._turn
        for task in job.tasks:
            if task.state == "leased":
                worker = self._workers[task.worker]
                del worker.leases[task]
                self._dispatch.moved(worker)
                self.forget_idle(worker)
            if task.state not in ENDED:  # it may be in turn.leased
                task.state = task_after(task.state, "cancel")
            self._timers.stop(task)
            turn.changed_tasks.pop(task, None)
        turn.changed_jobs.pop(job, None)
        self._shelf.remove(job)
        if job.state not in ENDED:
            job.state = job_after(job.state, "cancel")
            self._timers.stop(job)
            self._dispatch.end(job)

    def _end_early(self, job: Job, event: TaskEvent, reason: str, now_us: int) -> None:
        """All its tasks that have not ended."""
        for task in job.tasks:
            if task.state == "leased":
                self.revoke(task, reason)
                self._end_lease(task, event, now_us)
            elif task.state == "waiting":
                task.state = task_after(task.state, event)
                task.since_us = now_us
                self._timers.stop(task)
                self._turn.changed_tasks[task] = None
            else:
                continue
            if task.state == "failed":
                job.failed += 1
                self._keep_error(task, reason)
                self._tell(task, "task_failed", now_us, None, reason)

    def _end_when_all_have(self, job: Job, now_us: int) -> None:
        if job.failed:
            reason = f"{job.failed} of {job.agreed} tasks failed" if job.agreed != 1 else "its task failed"
            self._end(job, "all ended, one failed", "job_failed", reason, now_us)
        else:
            self._end(job, "all finished", "done", "", now_us)

    def _end(self, job: Job, event: JobEvent, told: str, reason: str, now_us: int) -> None:
        job.state = job_after(job.state, event)
        job.ended_us = now_us
        job.reason = reason
        self._dispatch.end(job)
        self._timers.stop(job)
        self._shelf.end(job)
        self._turn.changed_jobs[job] = None
        self._turn.tell(
            job.kind,
            Happening(told, job.number, job.controller, now_us, agreed=job.agreed, reason=reason),
        )
