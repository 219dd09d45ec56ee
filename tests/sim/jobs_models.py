"""A log of jobs for the tests of their checkers: what a good broker would have written, event by event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from godwit.wire.changes import Change, JobGone, JobKept, JobPayload, TaskKept
from godwit.wire.work import Outcome, Submission
from godwit_sim.broker_restarts import Rows, apply
from godwit_sim.jobs_log_model import Chronicle, JobLedger
from godwit_sim.jobs_notifications import TellingChecker
from godwit_sim.jobs_workers import Presence, WorkRoster

EPOCH_US = 1_000_000_000
SECOND_US = 1_000_000
INSTANCE = b"i" * 16


@dataclass
class Truth:
    """Feed the methods, each is one append a second after the last; then `checkers` know it."""

    lease_s: float = 10.0
    keep_s: float = 100.0
    now: float = 0.0
    rows: Rows = field(default_factory=dict)
    ledger: JobLedger = field(default_factory=JobLedger)

    def __post_init__(self) -> None:
        self.roster = WorkRoster(self.lease_s, 60.0)
        self.roster.started(0.0)
        self.chronicle = Chronicle(self.ledger, self.roster, epoch_us=EPOCH_US, keep_s=self.keep_s)
        self.tellings = TellingChecker(self.ledger, self.chronicle)

    @property
    def now_us(self) -> int:
        return EPOCH_US + int(self.now * 1e6)

    # -- who is there -------------------------------------------------------------------------------------------------

    def volunteers(self, *names: str, kinds: tuple[str, ...] = ("resize",), capacity: int = 1) -> None:
        for name in names:
            worker = self.roster._worker(name)
            worker.presences.append(Presence(name, INSTANCE, frozenset(kinds), capacity, self.now))
            worker.heard_s.append(self.now)
        self.now += 1.0

    def leaves(self, name: str) -> None:
        self.roster._worker(name).presences[-1].until_s = self.now
        self.now += 1.0

    def says(self, name: str, ref: tuple[int, int, int], result: bytes | None = None, **outcome: Any) -> None:
        """The worker did it, and the broker heard it."""
        run = self.ledger.runs.get(ref) or self.ledger.begin(ref, name, f"{name}.1", self.now)
        run.result, run.error = result, outcome.get("error")
        heard = Outcome(task=ref, size=len(result or b""), **outcome)
        self.roster._worker(name).outcomes.setdefault(ref, []).append((heard, result or b""))
        self.roster._worker(name).heard_s.append(self.now)

    # -- what the broker writes ---------------------------------------------------------------------------------------

    def append(self, kind: str, events: list[dict[str, Any]], *changes: Change) -> None:
        self.rows = apply(self.rows, changes)
        fields = {"controller": "boss", "at_us": self.now_us}
        messages = [(kind, msgspec.json.encode(fields | event)) for event in events]
        self.chronicle.learn(messages, self.rows, self.now)
        self.now += 1.0

    def job(self, number: int, **changes: Any) -> JobKept:
        """As it is kept by now, but for this."""
        kept: JobKept = self.rows["job", number]
        return msgspec.structs.replace(kept, **changes)

    def task(self, number: int, task: int = 0, **changes: Any) -> TaskKept:
        kept = self.rows.get(("task", number, task))
        made = kept or TaskKept(number, task, "waiting", "", b"", 0, 0, 0, self.now_us, self.now_us)
        return msgspec.structs.replace(made, **changes)

    def submit(self, number: int = 1, agreed: int | None = 1, **wishes: Any) -> None:
        """A job that is there, with its tasks; nobody has one yet."""
        fields: dict[str, Any] = {"key": f"key {number}", "of_kind": "resize", "size": 5}
        wish = Submission(**(fields | wishes))
        payload = b"job %d" % number
        self.ledger.ask("boss", wish, payload, self.now)
        deadline_us = None if wish.deadline_ms is None else self.now_us + wish.deadline_ms * 1000
        state = "waiting" if agreed is None else "running"
        kept = JobKept(
            number, "boss", wish.key, wish.of_kind, wish.workers, wish.priority, self.now_us,
            self.now_us + wish.delay_ms * 1000, deadline_us, wish.retries, wish.retry_delay_ms, wish.time_limit_ms,
            state, agreed, None,
        )  # fmt: skip
        event = {"event": "submitted", "job": number, "workers": wish.workers, "priority": wish.priority}
        event |= {"payload_bytes": len(payload)} | ({} if agreed is None else {"agreed": agreed})
        tasks = [self.task(number, task) for task in range(agreed or 0)]
        self.append(wish.of_kind, [event], kept, JobPayload(number, payload), *tasks)

    def lease(self, worker: str = "anna", number: int = 1, task: int = 0, fence: int = 1, **event: Any) -> None:
        kept = self.task(number, task, state="leased", worker=worker, instance=INSTANCE, fence=fence)
        told = {"event": "leased", "job": number, "task": task, "worker": worker, "fence": fence}
        self.append("resize", [told | event], kept)

    def end_lease(self, event: str, state: str = "waiting", number: int = 1, task: int = 0, **fields: Any) -> None:
        """With one of the events that end a lease."""
        kept = self.rows["task", number, task]
        leased_us = self.chronicle.stories[number].tasks[task].leased_us
        told = {"event": event, "job": number, "task": task, "worker": kept.worker, "fence": kept.fence}
        told |= {"ran_us": self.now_us - leased_us}
        counts = {name: fields[name] for name in ("failures", "losses") if name in fields}
        result = fields.pop("result", b"")
        if event == "finished":
            told["result_bytes"] = len(result)
        self.append("resize", [told | fields], self.task(number, task, state=state, result=result, **counts))

    def end(self, event: str, state: str, number: int = 1, tasks: str | None = None, **fields: Any) -> None:
        """The job is over; its tasks are then as told."""
        changes: list[Change] = [self.job(number, state=state, ended_us=self.now_us)]
        if tasks is not None:
            changes += [self.task(number, key[2], state=tasks) for key in self.rows if key[:2] == ("task", number)]
        self.append("resize", [{"event": event, "job": number} | fields], *changes)

    def remove(self, number: int = 1) -> None:
        self.append("resize", [], JobGone(number))
