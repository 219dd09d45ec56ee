"""The ledger of the world of jobs: what controllers asked for, and what workers did, in their own words.

Nothing here looks at the broker or the library. Payloads and results are unlike each other, so that a wrong one is
noticed wherever it turns up.

The story of each job, as the log's `$jobs` messages tell it: what they look like, and how jobs and tasks stand.

The meaning of the events is written down here once more, from the specification, so that the broker's own states are
checked against something else than themselves. Whether something may happen is the matter of jobs_chronicle.

The checker of the log's `$jobs` messages: each event may happen when it does, and what is kept beside them agrees.

It hears of every append that is safe, also of those that only turn up after a restart. So its stories are the truth
that what workers and controllers are told is compared with: nothing may be said that is not in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from godwit.limits import MAX_LOSSES, MAX_RETRY_DELAY_S, MAX_RETURN_PAUSE_S, PATIENCE_S, RETURN_PAUSE_S
from godwit.wire.changes import JobKept, TaskKept
from godwit.wire.jobs import Ref
from godwit.wire.work import Submission
from godwit_sim.broker_restarts import JOB_ROWS, Rows
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_workers import WorkRoster


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One time that it was asked for."""

    wish: Submission
    payload: bytes
    asked_s: float


@dataclass(slots=True, eq=False)
class Order:
    """A job as its controller asked for it. Asked for again with the same key it is the same, and as it was."""

    controller: str
    key: str
    asks: list[Ask] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """The jobs that it became: one, unless that was forgotten long after its end and then asked for again."""

    def __str__(self) -> str:
        return f"job {self.key!r} of {self.controller}"


@dataclass(slots=True, eq=False)
class Run:
    """A lease in the hands of a worker, from its side."""

    ref: Ref
    worker: str
    label: str
    """Which life of the worker."""
    began_s: float
    result: bytes | None = None
    error: str | None = None
    is_final: bool = False
    is_returned: bool = False
    is_reported: bool = False
    """The library said that the outcome is safe."""
    steps: list[tuple[float | None, str]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.error is not None or self.is_returned

    def __str__(self) -> str:
        job, task, fence = self.ref
        return f"task {task} of job {job} under fence {fence} at {self.label}"


class JobLedger:
    """Feed: ask, cancel, begin. What becomes of runs is written into them."""

    NAME: Final = "ledger"

    def __init__(self) -> None:
        self.orders: dict[tuple[str, str], Order] = {}
        """By controller and key."""
        self.runs: dict[Ref, Run] = {}
        self.cancels: set[int] = set()
        """Jobs that somebody wanted to be cancelled."""

    def ask(self, controller: str, wish: Submission, payload: bytes, now: float) -> Order:
        """A controller submits."""
        order = self.orders.setdefault((controller, wish.key), Order(controller, wish.key))
        order.asks.append(Ask(wish, payload, now))
        return order

    def begin(self, ref: Ref, worker: str, label: str, now: float) -> Run:
        """A worker was given this lease. No two ever get the same one, and nobody gets it twice."""
        if (other := self.runs.get(ref)) is not None:
            raise ViolationError(self.NAME, f"{other} was given to {label} too")
        run = self.runs[ref] = Run(ref, worker, label, now)
        return run


ENDED: Final = ("done", "failed", "cancelled")
TASK_ENDED: Final = ("finished", "failed", "cancelled")

TaskStand: TypeAlias = tuple[str, str, int, int, int]
"""State, worker, fence, failures, losses."""
JobStand: TypeAlias = tuple[str, int | None]
"""State and agreed."""


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message on `$jobs/<kind>`."""

    event: str
    job: int
    controller: str
    at_us: int
    task: int | None = None
    worker: str = ""
    fence: int = 0
    agreed: int | None = None
    workers: int = 1
    priority: int = 0
    payload_bytes: int = 0
    result_bytes: int = 0
    waited_us: int = 0
    ran_us: int = 0
    failures: int = 0
    losses: int = 0
    error: str = ""
    reason: str = ""

    @property
    def ref(self) -> Ref:
        assert self.task is not None
        return self.job, self.task, self.fence


@dataclass(slots=True, eq=False)
class TaskStory:
    """One task, and every way it ever stood."""

    number: int
    ready_us: int
    """It is not leased before."""
    returns: int = 0
    """How often it was handed back in a row, at the most."""
    state: str = "waiting"
    worker: str = ""
    instance: bytes = b""
    """Which run of the worker has it."""
    fence: int = 0
    failures: int = 0
    losses: int = 0
    leased_us: int = 0
    has_failed_for_good: bool = False
    """Its last attempt said that another one would not help."""
    errors: set[str] = field(default_factory=lambda: {""})
    result: bytes | None = None
    history: list[TaskStand] = field(default_factory=list)

    @property
    def is_ended(self) -> bool:
        return self.state in TASK_ENDED

    @property
    def stand(self) -> TaskStand:
        return self.state, self.worker, self.fence, self.failures, self.losses

    @property
    def surely_ready_us(self) -> int:
        """A task that was handed back again and again waits a while, but not for longer than that."""
        pause_s = min(RETURN_PAUSE_S * 2 ** (self.returns - 2), MAX_RETURN_PAUSE_S) if self.returns > 1 else 0
        return self.ready_us + int(pause_s * 1e6)

    def note(self) -> None:
        """It may have changed."""
        if not self.history or self.history[-1] != self.stand:
            self.history.append(self.stand)


@dataclass(slots=True, eq=False)
class Story:
    """One job, and every way it ever stood."""

    kept: JobKept
    """As it was written first: what was asked for does not change."""
    order: Order
    ask: Ask
    state: str = "waiting"
    agreed: int | None = None
    ended_us: int | None = None
    last_us: int = 0
    """When the last event happened."""
    tasks: dict[int, TaskStory] = field(default_factory=dict)
    had: set[str] = field(default_factory=set)
    """Workers that have had any task of it."""
    history: list[JobStand] = field(default_factory=list)
    is_gone: bool = False
    """It ended long ago and was removed."""

    @property
    def number(self) -> int:
        return self.kept.job

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def stand(self) -> JobStand:
        return self.state, self.agreed

    def settle(self, agreed: int, at_us: int) -> None:
        """So many tasks are made."""
        self.state, self.agreed = "running", agreed
        self.tasks = {number: TaskStory(number, max(at_us, self.kept.begins_us)) for number in range(agreed)}

    def end(self, state: str, at_us: int, task_state: str) -> None:
        """It is over, and with it every task that is not."""
        self.state, self.ended_us = state, at_us
        for task in self.tasks.values():
            if not task.is_ended:
                task.state = task_state

    def note(self) -> None:
        """It may have changed."""
        if not self.history or self.history[-1] != self.stand:
            self.history.append(self.stand)
        for task in self.tasks.values():
            task.note()

    def __str__(self) -> str:
        return f"job {self.number} ({self.order}, {self.kept.kind!r}, {self.state})"


def read_event(payload: bytes) -> JobEvent:
    """A violation if it cannot be read, or says more than is written down."""
    try:
        return msgspec.json.decode(payload, type=JobEvent)
    except msgspec.DecodeError as error:
        raise ViolationError("events", f"{payload[:200]!r} is no event: {error}") from None


CLOSE_CALL_US: Final = 10
TIMER_LATE_US: Final = 100_000
"""A timer of the broker may ring so much later than it should."""


class Chronicle:
    """Feed: learn, after each append. Everything else is for looking."""

    NAME = "chronicle"

    def __init__(self, ledger: JobLedger, roster: WorkRoster, *, epoch_us: int, keep_s: float) -> None:
        self.stories: dict[int, Story] = {}
        self.events = 0
        self.has_disk_failed = False
        """It did not take everything: a lease may have been undone that nobody was told of."""
        self._ledger = ledger
        self._roster = roster
        self._epoch_us = epoch_us
        self._keep_us = int(keep_s * 1e6)
        self._rows: Rows = {}
        self._handlers: dict[str, Callable[[Story, JobEvent], None]] = {
            "settled": self._settled,
            "done": self._done,
            "job_failed": self._job_failed,
            "cancelled": self._cancelled,
        }
        self._task_handlers: dict[str, Callable[[Story, TaskStory, JobEvent], None]] = {
            "leased": self._leased,
            "returned": self._returned,
            "lost": self._lost,
            "failed": self._failed,
            "finished": self._finished,
            "task_failed": self._task_failed,
        }

    # -- feed ---------------------------------------------------------------------------------------------------------

    def learn(self, messages: Sequence[tuple[str, bytes]], rows: Rows, now: float) -> None:
        """An append is safe: its messages (kind and body), and what is kept beside the log from now on."""
        newest = max(self.stories, default=0)
        leased: list[JobEvent] = []
        times_us = set()
        for kind, payload in messages:
            event = read_event(payload)
            self.events += 1
            times_us.add(event.at_us)
            if event.event == "submitted":
                self._submitted(kind, event, rows, newest)
            else:
                self._happened(kind, event)
            if event.event == "leased":
                leased.append(event)
        if len(times_us) == 1:  # else several turns are in it, because the disk had failed: nobody knows the order
            for event in leased:
                self._check_capacity(event)
        self._compare(rows, now)
        self._rows = rows

    def _happened(self, kind: str, event: JobEvent) -> None:
        story = self.stories.get(event.job)
        if story is None:
            raise self._violation(event, "no job with this number was submitted")
        if (kind, event.controller) != (story.kept.kind, story.kept.controller):
            raise self._violation(event, f"of {kind!r} and {event.controller!r}, but it is {story}")
        if story.is_ended:
            raise self._violation(event, f"after its end: {story}")
        if event.at_us < story.last_us:
            raise self._violation(event, f"before the event at {story.last_us}")
        story.last_us = event.at_us
        if (on_task := self._task_handlers.get(event.event)) is not None:
            task = story.tasks.get(-1 if event.task is None else event.task)
            if task is None:
                raise self._violation(event, f"{story} has {len(story.tasks)} tasks")
            on_task(story, task, event)
        elif (handler := self._handlers.get(event.event)) is not None:
            handler(story, event)
        else:
            raise self._violation(event, "there is no such event")
        story.note()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _submitted(self, kind: str, event: JobEvent, rows: Rows, newest: int) -> None:
        kept = rows.get(("job", event.job))
        if not isinstance(kept, JobKept):
            raise self._violation(event, "nothing of it is kept")
        if event.job <= newest:
            raise self._violation(event, f"there was a job {newest} already: a number was given twice")
        order = self._ledger.orders.get((kept.controller, kept.key))
        if order is None or kind != kept.kind or event.controller != kept.controller:
            raise self._violation(event, f"on {kind!r}, but {kept} is kept, which nobody asked for")
        for number in order.numbers:
            if not self.stories[number].is_gone and ("job", number) in rows:
                raise self._violation(event, f"the key is that of {self.stories[number]}")
        ask = self._find_ask(order, kept, rows)
        if ask is None:
            raise self._violation(event, f"{kept} is kept, which is none of {[one.wish for one in order.asks]}")
        told = (event.workers, event.priority, event.payload_bytes)
        if told != (kept.workers, kept.priority, len(ask.payload)) or event.at_us != kept.submitted_us:
            raise self._violation(event, f"does not tell of {kept}, payload {len(ask.payload)}")
        story = self.stories[event.job] = Story(kept, order, ask, last_us=event.at_us)
        order.numbers.append(event.job)
        if event.agreed is not None:
            self._settled(story, event)
        elif kept.begins_us <= event.at_us and (surely := self._roster.surely(kind, self._s(event.at_us))):
            raise self._violation(event, f"waits, though {surely[0]} was there for it")
        story.note()

    def _find_ask(self, order: Order, kept: JobKept, rows: Rows) -> Ask | None:
        """Which of the times that it was asked for made it what it is."""
        payload = rows.get(("payload", kept.job))
        for ask in order.asks:
            wish = ask.wish
            delay_us = wish.delay_ms * 1000
            deadline_us = None if wish.deadline_ms is None else kept.submitted_us + wish.deadline_ms * 1000
            if (
                payload is not None
                and payload.payload == ask.payload
                and (kept.kind, kept.workers, kept.priority) == (wish.of_kind, wish.workers, wish.priority)
                and (kept.retries, kept.retry_delay_ms) == (wish.retries, wish.retry_delay_ms)
                and (kept.time_limit_ms, kept.deadline_us) == (wish.time_limit_ms, deadline_us)
                and kept.begins_us == kept.submitted_us + delay_us
            ):
                return ask
        return None

    def _settled(self, story: Story, event: JobEvent) -> None:
        kept = story.kept
        agreed = event.agreed
        if agreed is None or agreed < 1 or story.agreed is not None:
            raise self._violation(event, f"agreed on {agreed}, it was {story.agreed}")
        if event.at_us < kept.begins_us:
            raise self._violation(event, f"before it begins, at {kept.begins_us}")
        least, most = self._roster.count(kept.kind, self._s(event.at_us))
        if kept.workers:
            least, most = min(kept.workers, least), min(kept.workers, most)
        if not least <= agreed <= most:
            raise self._violation(
                event, f"agreed on {agreed} of {kept.workers or 'all'}, there were {least} to {most} volunteers"
            )
        story.settle(agreed, event.at_us)

    def _done(self, story: Story, event: JobEvent) -> None:
        states = [task.state for task in story.tasks.values()]
        if story.state != "running" or states != ["finished"] * (story.agreed or 0):
            raise self._violation(event, f"its tasks are {states}, agreed was {story.agreed}")
        story.end("done", event.at_us, "finished")

    def _job_failed(self, story: Story, event: JobEvent) -> None:
        states = [task.state for task in story.tasks.values()]
        is_over = story.state == "running" and all(task.is_ended for task in story.tasks.values())
        if not (is_over and "failed" in states) and not self._is_late(story, event.at_us):
            raise self._violation(event, f"its tasks are {states}, the deadline {story.kept.deadline_us}")
        for task in story.tasks.values():
            if not task.is_ended:
                task.errors.add(event.reason)
        story.end("failed", event.at_us, "failed")

    def _cancelled(self, story: Story, event: JobEvent) -> None:
        if event.job not in self._ledger.cancels:
            raise self._violation(event, "nobody wanted that")
        story.end("cancelled", event.at_us, "cancelled")

    @staticmethod
    def _is_late(story: Story, at_us: int) -> bool:
        return story.kept.deadline_us is not None and at_us >= story.kept.deadline_us

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _leased(self, story: Story, task: TaskStory, event: JobEvent) -> None:
        kept, now = story.kept, self._s(event.at_us)
        if task.state != "waiting" or event.fence != task.fence + 1:
            raise self._violation(event, f"it is {task.state} under fence {task.fence}")
        if task.failures > kept.retries or task.has_failed_for_good:
            raise self._violation(event, f"after {task.failures} failures with {kept.retries} retries")
        if event.at_us < task.ready_us - CLOSE_CALL_US:
            raise self._violation(event, f"it was to wait until {task.ready_us}")
        if kept.deadline_us is not None and event.at_us > kept.deadline_us + TIMER_LATE_US:
            raise self._violation(event, f"its deadline was {kept.deadline_us}")
        if not self._roster.capacity(event.worker, kept.kind, now):
            raise self._violation(event, f"it did not volunteer for {kept.kind!r}")
        patience_us = int(max(self._roster.lease_s, PATIENCE_S) * 1e6)
        if event.worker in story.had and event.at_us < task.ready_us + patience_us - CLOSE_CALL_US:
            fresh = [name for name in self._roster.surely(kept.kind, now) if name not in story.had]
            if fresh:
                raise self._violation(event, f"it had the job before, and {fresh[0]} had not")
        self._check_priority(story, event)
        story.had.add(event.worker)
        task.state, task.worker, task.fence, task.leased_us = "leased", event.worker, event.fence, event.at_us
        task.instance = b""

    def _check_priority(self, story: Story, event: JobEvent) -> None:
        """Nothing of the same kind that this worker could have had is more urgent."""
        for other in self.stories.values():
            if (
                other.state == "running"
                and other.kept.priority > story.kept.priority
                and other.kept.kind == story.kept.kind
                and event.worker not in other.had
                and any(
                    task.state == "waiting" and task.surely_ready_us < event.at_us - CLOSE_CALL_US
                    for task in other.tasks.values()
                )
            ):
                raise self._violation(event, f"priority {story.kept.priority}, while {other} waits")

    def _check_capacity(self, event: JobEvent) -> None:
        held = sum(
            task.state == "leased" and task.worker == event.worker
            for story in self.stories.values()
            if not story.is_ended
            for task in story.tasks.values()
        )
        most = self._roster.capacity(event.worker, self.stories[event.job].kept.kind, self._s(event.at_us))
        if held > most:
            raise self._violation(event, f"it has {held} tasks, and takes {most}")

    def _require_lease(self, task: TaskStory, event: JobEvent) -> None:
        if (task.state, task.worker, task.fence) != ("leased", event.worker, event.fence):
            raise self._violation(event, f"it is {task.state}, by {task.worker!r} under fence {task.fence}")
        if abs(event.ran_us - (event.at_us - task.leased_us)) > CLOSE_CALL_US:
            raise self._violation(event, f"it was leased at {task.leased_us}")

    def _returned(self, story: Story, task: TaskStory, event: JobEvent) -> None:
        self._require_lease(task, event)
        self._check_silence(task, event)
        is_untold = self.has_disk_failed and event.ref not in self._ledger.runs
        leased_s, now = self._s(task.leased_us), self._s(event.at_us)
        if not is_untold and not self._roster.may_return(event.worker, event.ref, leased_s, now):
            raise self._violation(event, "it never gave it up")
        task.returns += 1
        task.state, task.ready_us = "waiting", event.at_us

    def _lost(self, story: Story, task: TaskStory, event: JobEvent) -> None:
        self._require_lease(task, event)
        leased_s, now = self._s(task.leased_us), self._s(event.at_us)
        if not self._roster.may_be_lost(event.worker, task.instance, leased_s, now):
            raise self._violation(event, "it was there, and was heard in time")
        task.losses += 1
        task.returns = 0
        task.state, task.ready_us = "waiting", event.at_us
        if event.losses != task.losses:
            raise self._violation(event, f"it was lost {task.losses} times")

    def _failed(self, story: Story, task: TaskStory, event: JobEvent) -> None:
        self._require_lease(task, event)
        self._check_silence(task, event)
        said = [one for one, _ in self._roster.outcomes(event.worker, event.ref) if one.error == event.error]
        limit_ms = story.kept.time_limit_ms
        took_too_long = limit_ms is not None and event.at_us - task.leased_us >= limit_ms * 1000 - CLOSE_CALL_US
        if not said and not took_too_long:
            raise self._violation(event, f"it did not say so, and its time limit is {limit_ms} ms")
        task.failures += 1
        task.returns = 0
        if event.failures != task.failures:
            raise self._violation(event, f"it failed {task.failures} times")
        task.has_failed_for_good = any(one.is_final for one in said)
        pause_ms = min(story.kept.retry_delay_ms * 2 ** (task.failures - 1), int(MAX_RETRY_DELAY_S * 1000))
        task.state, task.ready_us = "waiting", event.at_us + pause_ms * 1000
        task.errors.add(event.error)

    def _finished(self, story: Story, task: TaskStory, event: JobEvent) -> None:
        self._require_lease(task, event)
        self._check_silence(task, event)
        self._check_time(story, task, event)
        said = [payload for one, payload in self._roster.outcomes(event.worker, event.ref) if one.error is None]
        run = self._ledger.runs.get(event.ref)
        if not said or run is None or run.result is None:
            raise self._violation(event, "it brought no result")
        if run.worker != event.worker or said[0] != run.result or event.result_bytes != len(run.result):
            raise self._violation(event, f"{run} brought {len(run.result)} bytes, {len(said[0])} came to the broker")
        task.state, task.result = "finished", run.result

    def _check_silence(self, task: TaskStory, event: JobEvent) -> None:
        """A broker that lived all the time takes its tasks from a worker that says nothing."""
        leased_s, now = self._s(task.leased_us), self._s(event.at_us)
        if self._roster.was_restarted(leased_s, now):
            return
        silence_s = self._roster.silence_s(event.worker, leased_s, now)
        if silence_s > self._roster.lease_s + TIMER_LATE_US / 1e6:
            raise self._violation(event, f"it was silent for {silence_s:.3f} s, and still had it")

    def _check_time(self, story: Story, task: TaskStory, event: JobEvent) -> None:
        """A broker that lived all the time has kept an eye on the clock."""
        if self._roster.was_restarted(self._s(task.leased_us), self._s(event.at_us)):
            return
        limit_ms, deadline_us = story.kept.time_limit_ms, story.kept.deadline_us
        if limit_ms is not None and event.at_us > task.leased_us + limit_ms * 1000 + TIMER_LATE_US:
            raise self._violation(event, f"it took longer than {limit_ms} ms")
        if deadline_us is not None and event.at_us > deadline_us + TIMER_LATE_US:
            raise self._violation(event, f"its deadline was {deadline_us}")

    def _task_failed(self, story: Story, task: TaskStory, event: JobEvent) -> None:
        if task.is_ended or (task.state == "leased" and not self._is_late(story, event.at_us)):
            raise self._violation(event, f"it is {task.state}")
        is_due = (
            task.failures > story.kept.retries
            or task.has_failed_for_good
            or task.losses >= MAX_LOSSES
            or self._is_late(story, event.at_us)
        )
        if not is_due:
            raise self._violation(
                event, f"after {task.failures} failures and {task.losses} losses, {story.kept.retries} retries"
            )
        task.state = "failed"
        task.errors.add(event.error)

    # -- what is kept -------------------------------------------------------------------------------------------------

    def _compare(self, rows: Rows, now: float) -> None:
        """What is kept of each job says the same as its story."""
        for story in self.stories.values():
            if story.is_gone:
                continue
            if (kept := rows.get(("job", story.number))) is None:
                self._forget(story, now)
                continue
            if (kept.state, kept.agreed, kept.ended_us) != (story.state, story.agreed, story.ended_us):
                raise ViolationError(self.NAME, f"{story}, agreed {story.agreed}, but {kept} is kept")
            for task in story.tasks.values():
                key = ("task", story.number, task.number)
                there = rows.get(key)
                if there is not self._rows.get(key) or _stand(there) != task.stand:
                    self._compare_task(story, task, there)
        for key in rows.keys() - self._rows.keys():
            if key[0] in JOB_ROWS:
                known = self.stories.get(key[1])
                if known is None or known.is_gone or (key[0] == "task" and key[2] not in known.tasks):
                    raise ViolationError(self.NAME, f"{key} is kept, and no event tells of it")

    def _forget(self, story: Story, now: float) -> None:
        if not self.may_be_gone(story, now):
            raise ViolationError(self.NAME, f"{story}, ended at {story.ended_us}, is not kept any more")
        story.is_gone = True

    def _compare_task(self, story: Story, task: TaskStory, there: TaskKept | None) -> None:
        if _stand(there) != task.stand:
            raise ViolationError(self.NAME, f"task {task.number} of {story} is {task.stand}, but {there} is kept")
        if there is None:
            return
        if task.state == "finished" and there.result != task.result:
            raise ViolationError(self.NAME, f"task {task.number} of {story} is kept with another result")
        if task.state == "leased":
            task.instance = there.instance
            instances = self._roster.instances(task.worker, story.kept.kind, self._s(task.leased_us))
            if there.instance not in instances:
                raise ViolationError(self.NAME, f"task {task.number} of {story} is kept for a run that was not there")

    # -- look ---------------------------------------------------------------------------------------------------------

    def unended(self) -> list[Story]:
        return [story for story in self.stories.values() if not story.is_ended]

    def may_be_gone(self, story: Story, now: float) -> bool:
        """Whether it ended so long ago that nobody has to remember it."""
        ended_us = story.ended_us
        return ended_us is not None and now >= self._s(ended_us + self._keep_us - CLOSE_CALL_US)

    def _s(self, at_us: int) -> float:
        return (at_us - self._epoch_us) / 1e6

    def _violation(self, event: JobEvent, text: str) -> ViolationError:
        task = "" if event.task is None else f" task {event.task} fence {event.fence} {event.worker}"
        return ViolationError(
            self.NAME, f"{event.event} job {event.job}{task} at {self._s(event.at_us):.6f}: {text}; it says {event}"
        )


def _stand(there: TaskKept | None) -> TaskStand:
    """Of a task that nobody ever had nothing is kept."""
    if there is None:
        return "waiting", "", 0, 0, 0
    return there.state, there.worker, there.fence, there.failures, there.losses
