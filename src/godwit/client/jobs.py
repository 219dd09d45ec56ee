"""The jobs that a client has submitted or watches, and what happened to them.

    submit --> pending --accepted--> followed --the update that ends it--> ended
                  \\--refused--> ended

A pending job is submitted again on each connection, a followed one is watched again.

The broker sends states, not events: intermediate states may be skipped, and after a reconnect the whole state is sent
again. The changes are therefore computed by comparing two states, and each is reported once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from godwit.broker.topics import check_kind
from godwit.client.events import ClientEvent, JobChanged, JobRefused, JobTaken
from godwit.client.requests import RequestQueue
from godwit.errors import DecodeError, RecordTooLargeError, UsageError
from godwit.limits import (
    MAX_JOB_KEY_BYTES,
    MAX_TASKS_OF_JOB,
    MAX_WATCHED_AT_ONCE,
)
from godwit.wire.control_base import Code
from godwit.wire.jobs import OPTION_BOUNDS, UNASKED, JobSpec, JobState, TaskState, UnwatchJobs, WatchJobs, WatchReply
from godwit.wire.work import JobUpdate, SubmitReplyGroup, TaskUpdate, UpdateGroup

if TYPE_CHECKING:
    from godwit.client.work import WorkChannel

PAYLOAD: Final = "the payload of a job"
OPTIONS_BYTES: Final = 128
"""Upper bound of the encoding of all options that differ from the defaults."""
MAX_CACHED_KINDS: Final = 1024
"""Kinds whose names are known to be valid."""

ViewState: TypeAlias = JobState | Literal["sending", "refused", "unknown"]
ChangeKind: TypeAlias = Literal[
    "settled", "leased", "progress", "failure", "reassigned", "result", "task_failed", "ended"
]  # fmt: skip

ENDED: Final = frozenset(("done", "failed", "cancelled"))
_ENDED_VIEW: Final = ENDED | {"refused", "unknown"}
_ENDED_TASK: Final = frozenset(("finished", "failed", "cancelled"))


# -- checks before a job is sent --------------------------------------------------------------------------------------


def check_payload(what: str, payload: object, most_bytes: int) -> None:
    """Check the payload of a job or the result of a task; `what` names it in errors.

    Raises UsageError for another type than bytes, RecordTooLargeError if it is too long.
    """
    if type(payload) is not bytes:
        raise UsageError(f"{what} is of the type {type(payload).__name__}: give bytes")
    if len(payload) > most_bytes:
        raise RecordTooLargeError(too_large(what, len(payload), most_bytes))


def too_large(what: str, size_bytes: int, most_bytes: int) -> str:
    """Return the text of the error for a payload or a result that is too long."""
    return (
        f"{what} has {size_bytes} bytes, the broker accepts at most {most_bytes}: "
        "send larger things as files, and let the job name them"
    )


def check_key(key: object) -> int:
    """Return the length of a job's key in bytes. Raises UsageError if it is invalid."""
    if not isinstance(key, str):
        raise UsageError(f"the key is {key!r}, of the type {type(key).__name__}: give a text")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise UsageError(f"the key {key[:40]!r} has characters that cannot be written as UTF-8") from None
    if not 1 <= size <= MAX_JOB_KEY_BYTES:
        raise UsageError(f"the key {key[:40]!r} has {size} bytes in UTF-8: a key has 1 to {MAX_JOB_KEY_BYTES}")
    return size


def check_options(spec: JobSpec) -> None:
    """Raise UsageError for the first option that is out of its range."""
    for bounds, value in zip(OPTION_BOUNDS, _read_options(spec), strict=True):
        if value is None and bounds.is_optional:
            continue
        if type(value) is not int or not bounds.least <= value <= bounds.most:
            raise UsageError(
                f"{bounds.option} is {value!r}: it is a whole number between {bounds.least} and {bounds.most}"
            )


_read_options: Final = attrgetter(*[bounds.option for bounds in OPTION_BOUNDS])
_DEFAULTS: Final = _read_options(JobSpec(key="", of_kind=""))

# -- the state of a job -----------------------------------------------------------------------------------------------


class TaskView(msgspec.Struct, frozen=True, gc=False):
    """The state of a task, as this client knows it."""

    state: TaskState
    worker: str
    """The worker that has the task, or had it last."""
    fence: int
    """The number of its leases so far."""
    progress: float | None
    note: str
    failures: int
    losses: int
    error: str
    """The error of the last failed attempt."""
    result: bytes | None
    """None until the task has finished."""


class Change(NamedTuple):
    """A change of a job or of one of its tasks.

    settled       the number of workers for the job is known
    leased        a worker has begun with the task
    progress      the progress or note of the task has changed
    failure       an attempt failed; the task will be tried again
    reassigned    another lease of the task has begun, with another worker or the same one
    result        the task has finished with a result
    task_failed   the task has failed for good
    ended         the job has ended; see its state
    """

    what: ChangeKind
    task: int | None = None
    """The number of the task."""
    view: TaskView | None = None
    """The task after this change; the job's view may be newer."""


class JobView(msgspec.Struct, eq=False, weakref=True):
    """The state of a job, as this client knows it. Views are compared by identity: a job may have several."""

    key: str
    """The controller's key of the job; empty for a job that is only watched."""
    kind: str
    """Empty for a job that is only watched: the broker does not send it."""
    workers: int = 0
    """The number of workers asked for; 0 means all."""
    number: int | None = None
    """The broker's number of the job, once it has accepted it."""
    state: ViewState = "sending"
    """`sending` until the broker has answered; `refused` and `unknown` (to the broker) are final."""
    agreed: int | None = None
    """The number of tasks of the job, once it is known."""
    reason: str = ""
    """The reason why it was refused, was cancelled, or failed."""
    tasks: dict[int, TaskView] = {}
    """The `agreed` tasks, numbered from 0."""
    owner: Any = None
    """Free for use by the layer above."""
    submission: JobSpec | None = None
    payload: bytes = b""
    """Stored until the broker has answered."""
    unwatches_before: int | None = None
    """For a job with a key of the application: the number of unwatch requests before it was submitted; -1 if one of
    them was not answered yet."""
    is_unwanted: bool = False
    """Whether the application has called unwatch."""
    twin: JobView | None = None
    """Another view of the same job."""

    @property
    def is_ended(self) -> bool:
        """Whether the state is final."""
        return self.state in _ENDED_VIEW

    def settle(self, agreed: int) -> None:
        """Set the number of tasks. Raises DecodeError if it is out of range."""
        if not 0 < agreed <= MAX_TASKS_OF_JOB:
            raise DecodeError("work", f"a job with {agreed} tasks")
        self.agreed = agreed
        self.tasks = dict.fromkeys(range(agreed), UNTOUCHED)


UNTOUCHED: Final = TaskView("waiting", "", 0, None, "", 0, 0, "", None)
"""A task that no worker has had yet; the broker sends no state of it."""
SETTLED: Final = Change("settled")
JOB_ENDED: Final = Change("ended")


def apply(view: JobView, update: JobUpdate, payloads: list[bytes], at: int) -> list[Change]:
    """Update a view, and return the changes.

    Args:
        view: the view to update. A task that has ended in it does not change any more.
        update: the state that the broker sent.
        payloads: the results of the update's tasks, from index `at` on.

    Raises DecodeError for a task that the job does not have, and for an invalid progress.
    """
    changes: list[Change] = []
    agreed = update.agreed
    if agreed is not None and view.agreed is None:
        view.settle(agreed)
        changes.append(SETTLED)
    tasks = view.tasks
    for index, task in enumerate(update.tasks, at):
        old = tasks.get(task.task)
        if old is None:
            raise DecodeError("work", f"task {task.task} of job {update.job}, for which {view.agreed} were agreed")
        if old.state not in _ENDED_TASK and task.fence >= old.fence:
            tasks[task.task] = _updated_task(old, task, payloads[index], changes)
    if update.state != "waiting" or view.state == "sending":
        view.state = update.state
    if update.reason:
        view.reason = update.reason
    if update.state in ENDED:
        changes.append(JOB_ENDED)
    return changes


def catch_up(view: JobView, known: JobView) -> list[Change]:
    """Bring a view without any task states up to date with another one of the same job, and return the changes."""
    changes: list[Change] = []
    if view.agreed is None and known.agreed is not None:
        changes.append(SETTLED)
    view.agreed, view.state, view.reason = known.agreed, known.state, known.reason
    view.tasks = known.tasks.copy()
    for number, task in view.tasks.items():
        _add_changes(number, UNTOUCHED, task, changes)
    return changes


def _updated_task(old: TaskView, new: TaskUpdate, result: bytes, changes: list[Change]) -> TaskView:
    progress, note = new.progress, new.note
    if progress is None:
        if not note and new.fence == old.fence:  # a restarted broker does not know the progress any more
            progress, note = old.progress, old.note
    elif not 0 <= progress <= 1:
        raise DecodeError("work", f"a task that is {progress} done")
    view = TaskView(
        new.state,
        new.worker,
        new.fence,
        progress,
        note,
        new.failures,
        new.losses,
        new.error,
        result if new.state == "finished" else None,
    )
    _add_changes(new.task, old, view, changes)
    return view


def _add_changes(number: int, old: TaskView, new: TaskView, changes: list[Change]) -> None:
    """Add the changes between two states of a task."""
    state, fence = new.state, new.fence
    if new.failures > old.failures and state != "failed":
        changes.append(Change("failure", number, new))
    if fence > old.fence:
        if fence > 1:
            changes.append(Change("reassigned", number, new))
        elif state == "leased":
            changes.append(Change("leased", number, new))
        old = UNTOUCHED
    if state == "leased":
        if new.progress != old.progress or new.note != old.note:
            changes.append(Change("progress", number, new))
    elif state == "finished":
        changes.append(Change("result", number, new))
    elif state == "failed":
        changes.append(Change("task_failed", number, new))


# -- the jobs of a client ---------------------------------------------------------------------------------------------


class JobTracker:
    """All jobs that a client has submitted or watches.

    Input: submit, watch, unwatch; attach, detach, handle_*. Output: send_requests, events.
    """

    def __init__(self, channel: WorkChannel, requests: RequestQueue, events: list[ClientEvent], run: str) -> None:
        self.to_watch: dict[int, None] = {}
        self.to_unwatch: dict[int, None] = {}
        """Jobs for the next requests to watch and unwatch, which send_requests makes."""
        self._channel = channel
        self._requests = requests
        self._events = events
        self._run = run
        """Prefix of the keys of this run of the client."""
        self._submitted = 0
        self._kind_bytes: dict[str, int] = {}
        self._pending: dict[str, JobView] = {}
        """By key, in the order in which they were submitted."""
        self._followed: dict[int, JobView] = {}
        """By number; a view leads to the others of the same job."""
        self._watch_requests: dict[int, list[int]] = {}
        """By request number, the jobs to be watched."""
        self._unwatch_requests: set[int] = set()
        """Requests to unwatch without an answer."""
        self._unwatch_count = 0
        """The number of all requests to unwatch so far."""

    # -- application calls --------------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec, payload: bytes) -> JobView:
        """Submit a job (see ClientProtocol.submit)."""
        kind, key = spec.of_kind, spec.key
        kind_bytes = self._kind_bytes.get(kind) or self._check_kind(kind)
        channel = self._channel
        check_payload(PAYLOAD, payload, channel.max_payload_bytes)
        text_bytes = kind_bytes
        if _read_options(spec) != _DEFAULTS:
            check_options(spec)
            text_bytes += OPTIONS_BYTES
        unwatches_before: int | None = None
        if not key:
            channel.reserve(len(payload))
            self._submitted += 1
            key = f"{self._run}-{self._submitted}"
            text_bytes += len(key)
        else:
            text_bytes += check_key(key)
            known = self._pending.get(key)
            if known is not None:
                view = JobView(key, known.kind, known.workers, twin=known.twin)
                known.twin = view
                return view
            channel.reserve(len(payload))
            unwatches_before = self._unwatch_count if not (self._unwatch_requests or self.to_unwatch) else -1
        submission = msgspec.structs.replace(spec, key=key, size=len(payload))
        view = self._pending[key] = JobView(
            key, kind, spec.workers, submission=submission, payload=payload, unwatches_before=unwatches_before
        )
        channel.add_submission(submission, payload, text_bytes)
        return view

    def watch(self, number: int) -> JobView:
        """Follow a job by its number. JobChanged reports its state, JobRefused that it does not exist."""
        view = JobView("", "", number=number)
        self._follow(number, view)
        return view

    def unwatch(self, view: JobView) -> None:
        """Report no further changes of the job to this view."""
        view.is_unwanted = True
        if view.number is not None and view.number in self._followed:
            self._refollow(view.number, [known for known in _chain(self._followed[view.number]) if known is not view])

    def _check_kind(self, kind: str) -> int:
        check_kind(kind)
        if len(self._kind_bytes) >= MAX_CACHED_KINDS:
            self._kind_bytes.clear()
        kind_bytes = self._kind_bytes[kind] = len(kind.encode())
        return kind_bytes

    # -- views of a job -----------------------------------------------------------------------------------------------

    def _follow(self, number: int, view: JobView) -> None:
        """Add a view of a job. If other views of it have changes already, report them to this one now."""
        known = self._followed.get(number)
        if known is not None:
            view.twin = known
            is_first = view.state == "sending"
            if known.state != "sending" and ((changes := catch_up(view, known)) or is_first):
                self._events.append(JobChanged(view, changes))
        elif view.state == "sending":
            self.to_watch[number] = None
        self._followed[number] = view
        if self.to_unwatch:
            self.to_unwatch.pop(number, None)

    def _refollow(self, number: int, views: list[JobView]) -> None:
        """Replace the views of a job; without any, stop watching it."""
        for view, twin in zip(views, [*views[1:], None], strict=False):
            view.twin = twin
        if views:
            self._followed[number] = views[0]
        else:
            del self._followed[number]
            self.to_watch.pop(number, None)
            self.to_unwatch[number] = None

    def _refuse(self, view: JobView | None, code: int, text: str) -> None:
        for each in _chain(view):
            each.state = "unknown" if code == Code.NO_SUCH_JOB else "refused"
            each.reason = text
            each.twin = None
            self._events.append(JobRefused(each, code, text))

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, *, is_other_log: bool) -> None:
        """Submit pending jobs again and watch followed ones, on a new connection."""
        if is_other_log:  # the numbers of the jobs mean other jobs there
            followed, self._followed = self._followed, {}
            for number, view in followed.items():
                self._refuse(view, Code.NO_SUCH_JOB, f"job {number} is gone: the broker has another log than before")
        self.to_watch = dict.fromkeys(self._followed)
        self.to_unwatch.clear()
        most_bytes = self._channel.max_payload_bytes
        for key, view in list(self._pending.items()):
            assert view.submission is not None
            size_bytes = len(view.payload)
            if size_bytes > most_bytes:
                self._remove_pending(key, view)
                self._refuse(view, Code.TOO_LARGE, too_large(PAYLOAD, size_bytes, most_bytes))
            else:
                text_bytes = len(key.encode()) + len(view.kind.encode()) + OPTIONS_BYTES
                self._channel.add_submission(view.submission, view.payload, text_bytes)

    def detach(self) -> None:
        """Forget the requests of the connection, which is gone."""
        self._watch_requests.clear()
        self._unwatch_requests.clear()

    def send_requests(self) -> None:
        """Ask the broker to watch and unwatch jobs, on the present connection."""
        for numbers in _groups(self.to_watch):
            request = self._requests.next_number()
            self._watch_requests[request] = numbers
            self._requests.send(WatchJobs(request=request, jobs=numbers))
        for numbers in _groups(self.to_unwatch):
            request = self._requests.next_number()
            self._unwatch_requests.add(request)
            self._unwatch_count += 1
            self._requests.send(UnwatchJobs(request=request, jobs=numbers))
        self.to_watch.clear()
        self.to_unwatch.clear()

    # -- input from the broker ----------------------------------------------------------------------------------------

    def handle_taken(self, group: SubmitReplyGroup) -> None:
        """Handle the answers to submissions. Raises DecodeError for an accepted job without a number."""
        for taken in group.jobs:
            number, agreed = taken.job, taken.agreed
            view = self._pending.get(taken.key)
            if view is None:
                continue  # answered before
            if not (taken.code or number):
                raise DecodeError("work", f"the job {taken.key!r} was taken and got no number")
            if agreed is not None:
                view.settle(agreed)
            self._remove_pending(taken.key, view)
            if taken.code:
                self._refuse(view, taken.code, taken.text)
                continue
            self._accept(view, number)
            if (
                view.unwatches_before is not None
                and view.unwatches_before != self._unwatch_count
                and number in self._followed
            ):
                # An unwatch of this job, which travels on another channel, may have arrived after the submission.
                self.to_watch[number] = None

    def _remove_pending(self, key: str, view: JobView) -> None:
        del self._pending[key]
        self._channel.release(len(view.payload))
        view.submission = None
        view.payload = b""

    def _accept(self, view: JobView, number: int) -> None:
        """Set the number of an accepted job in all its views, and follow it for those that the application watches."""
        for each in _chain(view) if view.twin is not None else (view,):
            if each is not view:
                each.agreed = view.agreed
                each.tasks = view.tasks.copy()
            each.number = number
            each.state = "waiting" if each.agreed is None else "running"
            each.twin = None
            self._events.append(JobTaken(each))
            if not each.is_unwanted:
                self._follow(number, each)
        if number not in self._followed:
            self.to_unwatch[number] = None

    def handle_update(self, group: UpdateGroup, payloads: list[bytes]) -> None:
        """Report the changes of followed jobs. Raises DecodeError for an invalid state."""
        followed, events = self._followed, self._events
        at = 0
        for update in group.jobs:
            view = followed.get(update.job)
            if view is not None:
                for each in _chain(view) if view.twin is not None else (view,):
                    is_first = each.state == "sending"
                    changes = apply(each, update, payloads, at)
                    if changes or is_first:
                        events.append(JobChanged(each, changes))
                    if update.state in ENDED:
                        each.twin = None
                if update.state in ENDED:
                    del followed[update.job]
            at += len(update.tasks)

    def handle_watched(self, reply: WatchReply) -> bool:
        """End the views of unknown jobs. Return whether the reply belongs to a request of this class."""
        numbers: Collection[int] | None = self._watch_requests.pop(reply.request, None)
        text = "the broker does not know job {}"
        if reply.request == UNASKED:
            numbers, text = list(self._followed), "the broker no longer lets this client see job {}"
        if numbers is None:
            return False
        for number in set(reply.unknown).intersection(numbers):
            self._refuse(self._followed.pop(number, None), Code.NO_SUCH_JOB, text.format(number))
        return True

    def handle_unwatched(self, request: int) -> bool:
        """Return whether the answered request was to unwatch jobs."""
        if request not in self._unwatch_requests:
            return False
        self._unwatch_requests.remove(request)
        return True

    def handle_error(self, request: int, code: int, text: str) -> bool:
        """End the views of jobs whose request failed. Return whether the request belongs to this class."""
        numbers = self._watch_requests.pop(request, None)
        if numbers is None:
            return self.handle_unwatched(request)
        for number in numbers:
            self._refuse(self._followed.pop(number, None), code, text)
        return True


def _chain(view: JobView | None) -> Iterator[JobView]:
    """Yield all views of the same job. The view just yielded may be removed from the chain."""
    while view is not None:
        twin = view.twin
        yield view
        view = twin


def _groups(numbers: dict[int, None]) -> Iterator[list[int]]:
    """Yield the numbers in groups that fit one request."""
    remaining = iter(numbers)
    while group := list(islice(remaining, MAX_WATCHED_AT_ONCE)):
        yield group
