"""A log of jobs for the tests of their checkers: the events that a correct broker would have written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from godwit.wire.changes import Change, JobDeleted, JobPayloadRow, JobRow, TaskRow
from godwit.wire.jobs import JobSpec
from godwit.wire.work import TaskOutcome
from godwit_sim.broker_restarts import Rows, apply
from godwit_sim.jobs_log_model import JobLogModel, JobRecords
from godwit_sim.jobs_notifications import NotificationChecker
from godwit_sim.jobs_workers import VolunteerPeriod, WorkerModel

EPOCH_US = 1_000_000_000
SECOND_US = 1_000_000
INSTANCE = b"i" * 16


@dataclass
class Models:
    """Models of one log. Each method is one append, a second after the last, which the checkers observe."""

    lease_s: float = 10.0
    keep_s: float = 100.0
    now: float = 0.0
    rows: Rows = field(default_factory=dict)
    records: JobRecords = field(default_factory=JobRecords)

    def __post_init__(self) -> None:
        self.workers = WorkerModel(self.lease_s, 60.0)
        self.workers.started(0.0)
        self.log_model = JobLogModel(self.records, self.workers, epoch_us=EPOCH_US, keep_s=self.keep_s)
        self.notifications = NotificationChecker(self.records, self.log_model)

    @property
    def now_us(self) -> int:
        return EPOCH_US + int(self.now * 1e6)

    # -- workers ------------------------------------------------------------------------------------------------------

    def volunteers(self, *names: str, kinds: tuple[str, ...] = ("resize",), capacity: int = 1) -> None:
        for name in names:
            worker = self.workers._worker(name)
            worker.periods.append(VolunteerPeriod(name, INSTANCE, frozenset(kinds), capacity, self.now))
            worker.message_times_s.append(self.now)
        self.now += 1.0

    def leaves(self, name: str) -> None:
        self.workers._worker(name).periods[-1].until_s = self.now
        self.now += 1.0

    def says(self, name: str, ref: tuple[int, int, int], result: bytes | None = None, **outcome: Any) -> None:
        """Report that the worker finished the task; the broker receives it."""
        run = self.records.runs.get(ref) or self.records.begin(ref, name, f"{name}.1", self.now)
        run.result, run.error = result, outcome.get("error")
        handle_events = TaskOutcome(task=ref, size=len(result or b""), **outcome)
        self.workers._worker(name).outcomes.setdefault(ref, []).append((handle_events, result or b""))
        self.workers._worker(name).message_times_s.append(self.now)

    # -- appends of the broker ----------------------------------------------------------------------------------------

    def append(self, kind: str, events: list[dict[str, Any]], *changes: Change) -> None:
        self.rows = apply(self.rows, changes)
        fields = {"controller": "boss", "at_us": self.now_us}
        messages = [(kind, msgspec.json.encode(fields | event)) for event in events]
        self.log_model.learn(messages, self.rows, self.now)
        self.now += 1.0

    def job(self, number: int, **changes: Any) -> JobRow:
        """Return the present row of the job, with these changes."""
        row: JobRow = self.rows["job", number]
        return msgspec.structs.replace(row, **changes)

    def task(self, number: int, task: int = 0, **changes: Any) -> TaskRow:
        row = self.rows.get(("task", number, task))
        made = row or TaskRow(number, task, "waiting", "", b"", 0, 0, 0, self.now_us, self.now_us)
        return msgspec.structs.replace(made, **changes)

    def submit(self, number: int = 1, agreed: int | None = 1, **wishes: Any) -> None:
        """Submit a job with its tasks, none of them leased."""
        fields: dict[str, Any] = {"key": f"key {number}", "of_kind": "resize", "size": 5}
        submission = JobSpec(**(fields | wishes))
        payload = b"job %d" % number
        self.records.request("boss", submission, payload, self.now)
        deadline_us = None if submission.deadline_ms is None else self.now_us + submission.deadline_ms * 1000
        state = "waiting" if agreed is None else "running"
        row = JobRow(
            number, "boss", submission.key, submission.of_kind, submission.workers, submission.priority, self.now_us,
            self.now_us + submission.delay_ms * 1000, deadline_us, submission.retries, submission.retry_delay_ms,
            submission.time_limit_ms, state, agreed, None,
        )  # fmt: skip
        event = {"event": "submitted", "job": number, "workers": submission.workers, "priority": submission.priority}
        event |= {"payload_bytes": len(payload)} | ({} if agreed is None else {"agreed": agreed})
        tasks = [self.task(number, task) for task in range(agreed or 0)]
        self.append(submission.of_kind, [event], row, JobPayloadRow(number, payload), *tasks)

    def lease(self, worker: str = "anna", number: int = 1, task: int = 0, fence: int = 1, **event: Any) -> None:
        row = self.task(number, task, state="leased", worker=worker, instance=INSTANCE, fence=fence)
        reported = {"event": "leased", "job": number, "task": task, "worker": worker, "fence": fence}
        self.append("resize", [reported | event], row)

    def end_lease(self, event: str, state: str = "waiting", number: int = 1, task: int = 0, **fields: Any) -> None:
        """End a lease with one of the events for that."""
        row = self.rows["task", number, task]
        leased_us = self.log_model.jobs[number].tasks[task].leased_us
        reported = {"event": event, "job": number, "task": task, "worker": row.worker, "fence": row.fence}
        reported |= {"ran_us": self.now_us - leased_us}
        counts = {name: fields[name] for name in ("failures", "losses") if name in fields}
        result = fields.pop("result", b"")
        if event == "finished":
            reported["result_bytes"] = len(result)
        self.append("resize", [reported | fields], self.task(number, task, state=state, result=result, **counts))

    def end(self, event: str, state: str, number: int = 1, tasks: str | None = None, **fields: Any) -> None:
        """End the job with these states of its tasks."""
        changes: list[Change] = [self.job(number, state=state, ended_us=self.now_us)]
        if tasks is not None:
            changes += [self.task(number, key[2], state=tasks) for key in self.rows if key[:2] == ("task", number)]
        self.append("resize", [{"event": event, "job": number} | fields], *changes)

    def remove(self, number: int = 1) -> None:
        self.append("resize", [], JobDeleted(number))
