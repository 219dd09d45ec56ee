"""Drives a scheduler in tests: time in seconds, and the output of each turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from godwit.broker.jobs.model import Job, JobEvent, JobTask, TurnOutput
from godwit.broker.jobs.scheduler import Scheduler
from godwit.wire.jobs import JobSpec, Ref

LEASE_S = 30.0
KEEP_S = 3600.0
START_US = 1_700_000_000_000_000


class SchedulerDriver:
    """Calls a scheduler and collects its output."""

    def __init__(self, scheduler: Scheduler | None = None, now_us: int = START_US) -> None:
        self.scheduler = scheduler or Scheduler(lease_us=int(LEASE_S * 1e6), keep_us=int(KEEP_S * 1e6))
        self.now_us = now_us
        self.events: list[JobEvent] = []
        self.revoked: list[tuple[str, Ref, str]] = []
        self.deleted: list[int] = []
        self._keys = 0

    def submit(
        self,
        kind: str = "resize",
        payload: bytes = b"",
        *,
        by: str = "carla",
        key: str | None = None,
        is_turn: bool = True,
        **options: Any,
    ) -> Job:
        self._keys += 1
        spec = JobSpec(key=key or f"key-{self._keys}", of_kind=kind, size=len(payload), **options)
        job = self.scheduler.submit(by, spec, payload, self.now_us)
        if is_turn:
            self.turn()
        return job

    def volunteer(
        self,
        name: str,
        kinds: Sequence[str] = ("resize",),
        capacity: int = 1,
        *,
        holding: Sequence[Ref] = (),
        instance: bytes = b"run 1",
        is_new_link: bool = False,
        is_turn: bool = True,
    ) -> list[Ref]:
        unknown = self.scheduler.volunteer(
            name, instance, kinds, capacity, holding, self.now_us, is_new_link=is_new_link
        )
        if is_turn:
            self.turn()
        return unknown

    def turn(self) -> list[JobTask]:
        """End a turn; return the tasks that were leased in it."""
        self.scheduler.lease_tasks(self.now_us)
        output = self.scheduler.output
        leased = output.leased[:]
        self.events += [event for events in output.events.values() for event in events]
        self.revoked += output.revoked
        self.deleted += output.deleted
        clear(output)
        return leased

    def wait(self, seconds: float, *, reporting: Sequence[str] = ()) -> list[JobTask]:
        """Advance the time, timer by timer. The workers in `reporting` report at each of them."""
        leased = []
        end_us = self.now_us + int(seconds * 1e6)
        while True:
            at_us = self.scheduler.next_timer_us
            self.now_us = end_us if at_us is None else max(min(at_us, end_us), self.now_us)
            for name in reporting:
                self.scheduler.renew_leases(name, self.now_us)
            self.scheduler.handle_timers(self.now_us)
            leased += self.turn()
            if self.now_us == end_us:
                return leased

    def finish(self, task: JobTask, result: bytes = b"done") -> list[JobTask]:
        assert self.scheduler.finish(task.worker, task.ref, result, self.now_us)
        return self.turn()

    def fail(self, task: JobTask, error: str = "broken", *, is_final: bool = False) -> list[JobTask]:
        assert self.scheduler.fail(task.worker, task.ref, error, is_final, self.now_us)
        return self.turn()

    def return_task(self, task: JobTask) -> list[JobTask]:
        assert self.scheduler.return_task(task.worker, task.ref, self.now_us)
        return self.turn()

    def take_events(self) -> list[str]:
        """Remove and return the events so far."""
        events = [event.event for event in self.events]
        self.events.clear()
        return events


def clear(output: TurnOutput) -> None:
    """Drop the output of a turn, as JobCommits does when it has taken it."""
    for part in (
        output.new_jobs, output.leased, output.revoked, output.deleted, output.stalled, output.changed_jobs,
        output.changed_tasks, output.events,
    ):  # fmt: skip
        part.clear()


def holders(job: Job) -> list[str]:
    """Return the workers that hold its tasks, in the order of the tasks."""
    return [task.worker for task in job.tasks if task.state == "leased"]
