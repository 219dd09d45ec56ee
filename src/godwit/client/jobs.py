"""The jobs that a client has submitted or watches: remembered until they are answered, followed until they end.

    submit --> pending --taken--> followed --the update that ends it--> the application's alone
                  \\--refused--> the application's alone

On each connection what is pending is submitted again, and what is followed is watched again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final

from godwit.broker.topics import check_kind
from godwit.client.comparing import ENDED, JobView, apply, catch_up
from godwit.client.events import ClientEvent, JobChanged, JobRefused, JobTaken
from godwit.client.requests import Requests
from godwit.client.submitting import DEFAULTS, check_key, check_options, check_payload, too_large
from godwit.client.work import OPTIONS_BYTES, WorkChannel
from godwit.errors import DecodeError
from godwit.limits import MAX_WATCHED_AT_ONCE
from godwit.wire.control_base import Code
from godwit.wire.jobs import UNASKED, Unwatch, Watch, Watched
from godwit.wire.work import Submission, Taken, Update

PAYLOAD: Final = "the payload of a job"
REMEMBERED_KINDS: Final = 1024
"""Kinds whose names were looked at already."""


class Jobs:
    """Feed: submit, watch, unwatch; attach, detach and the broker's words. Drain: ask. Gives events."""

    def __init__(self, channel: WorkChannel, requests: Requests, events: list[ClientEvent], run: str) -> None:
        self._channel = channel
        self._requests = requests
        self._events = events
        self._run = run
        """Begins the keys of this run of the client."""
        self._submitted = 0
        self._kind_bytes: dict[str, int] = {}
        self._pending: dict[str, JobView] = {}
        """By key, in the order in which they were submitted."""
        self._followed: dict[int, JobView] = {}
        """By number."""
        self._to_watch: dict[int, None] = {}
        self._to_unwatch: dict[int, None] = {}
        self._asked: dict[int, list[int]] = {}
        """By request: the jobs to be watched."""
        self._leaving: set[int] = set()
        """Requests to unwatch that are not answered."""
        self._unwatches = 0
        """How many such requests there were."""

    # -- the application's calls --------------------------------------------------------------------------------------

    def submit(
        self,
        kind: str,
        payload: bytes,
        key: str | None,
        workers: int,
        priority: int,
        delay_ms: int,
        deadline_ms: int | None,
        retries: int,
        retry_delay_ms: int,
        time_limit_ms: int | None,
    ) -> JobView:
        """UsageError for what no broker would take; BufferFullError: wait for the event WorkRoom."""
        kind_bytes = self._kind_bytes.get(kind) or self._check_kind(kind)
        channel = self._channel
        check_payload(PAYLOAD, payload, channel.max_payload_bytes)
        text_bytes = kind_bytes
        if (workers, priority, delay_ms, deadline_ms, retries, retry_delay_ms, time_limit_ms) != DEFAULTS:
            check_options(workers, priority, delay_ms, deadline_ms, retries, retry_delay_ms, time_limit_ms)
            text_bytes += OPTIONS_BYTES
        mark: int | None = None
        if key is None:
            channel.take(len(payload))
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
            channel.take(len(payload))
            mark = self._unwatches if not (self._leaving or self._to_unwatch) else -1
        submission = Submission(
            key=key,
            of_kind=kind,
            size=len(payload),
            workers=workers,
            priority=priority,
            delay_ms=delay_ms,
            deadline_ms=deadline_ms,
            retries=retries,
            retry_delay_ms=retry_delay_ms,
            time_limit_ms=time_limit_ms,
        )
        view = self._pending[key] = JobView(key, kind, workers, submission=submission, payload=payload, mark=mark)
        channel.add_submission(submission, payload, text_bytes)
        return view

    def watch(self, number: int) -> JobView:
        """Follows a job by its number. JobChanged tells how it stands, JobRefused that there is none."""
        view = JobView("", "", number=number)
        self._follow(number, view)
        return view

    def unwatch(self, view: JobView) -> None:
        """What becomes of the job is not told any more."""
        view.is_unwanted = True
        if view.number is not None and view.number in self._followed:
            self._refollow(view.number, [known for known in _chain(self._followed[view.number]) if known is not view])

    def _check_kind(self, kind: str) -> int:
        check_kind(kind)
        if len(self._kind_bytes) >= REMEMBERED_KINDS:
            self._kind_bytes.clear()
        kind_bytes = self._kind_bytes[kind] = len(kind.encode())
        return kind_bytes

    # -- who follows which job ----------------------------------------------------------------------------------------

    def _follow(self, number: int, view: JobView) -> None:
        """One more view of a job. What others have heard of it already, this one hears now."""
        known = self._followed.get(number)
        if known is not None:
            view.twin = known
            is_first = view.state == "sending"
            if known.state != "sending" and ((changes := catch_up(view, known)) or is_first):
                self._events.append(JobChanged(view, changes))
        elif view.state == "sending":
            self._to_watch[number] = None
        self._followed[number] = view
        if self._to_unwatch:
            self._to_unwatch.pop(number, None)

    def _refollow(self, number: int, views: list[JobView]) -> None:
        """Only these follow the job."""
        for view, twin in zip(views, [*views[1:], None], strict=False):
            view.twin = twin
        if views:
            self._followed[number] = views[0]
        else:
            del self._followed[number]
            self._to_watch.pop(number, None)
            self._to_unwatch[number] = None

    def _refuse(self, view: JobView | None, code: int, text: str) -> None:
        for each in _chain(view):
            each.state = "unknown" if code == Code.NO_SUCH_JOB else "refused"
            each.reason = text
            each.twin = None
            self._events.append(JobRefused(each, code, text))

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, *, is_other_log: bool) -> None:
        """There is a broker: what it has not answered is submitted again, what has not ended is watched again."""
        if is_other_log:  # its numbers mean other jobs
            followed, self._followed = self._followed, {}
            for number, view in followed.items():
                self._refuse(view, Code.NO_SUCH_JOB, f"job {number} is gone: the broker has another log than before")
        self._to_watch = dict.fromkeys(self._followed)
        self._to_unwatch.clear()
        most_bytes = self._channel.max_payload_bytes
        for key, view in list(self._pending.items()):
            assert view.submission is not None
            size_bytes = len(view.payload)
            if size_bytes > most_bytes:
                self._answer(key, view)
                self._refuse(view, Code.TOO_LARGE, too_large(PAYLOAD, size_bytes, most_bytes))
            else:
                text_bytes = len(key.encode()) + len(view.kind.encode()) + OPTIONS_BYTES
                self._channel.add_submission(view.submission, view.payload, text_bytes)

    def detach(self) -> None:
        self._asked.clear()
        self._leaving.clear()

    @property
    def has_to_ask(self) -> bool:
        return bool(self._to_watch or self._to_unwatch)

    def ask(self) -> None:
        """Says to the broker, which is there, which jobs this client wants to hear of."""
        for numbers in _pages(self._to_watch):
            request = self._requests.number()
            self._asked[request] = numbers
            self._requests.say(Watch(request=request, jobs=numbers))
        for numbers in _pages(self._to_unwatch):
            request = self._requests.number()
            self._leaving.add(request)
            self._unwatches += 1
            self._requests.say(Unwatch(request=request, jobs=numbers))
        self._to_watch.clear()
        self._to_unwatch.clear()

    # -- what the broker says -----------------------------------------------------------------------------------------

    def on_taken(self, group: Taken) -> None:
        for taken in group.jobs:
            number, agreed = taken.job, taken.agreed
            view = self._pending.get(taken.key)
            if view is None:
                continue  # answered before
            if not (taken.code or number):
                raise DecodeError("work", f"the job {taken.key!r} was taken and got no number")
            if agreed is not None:
                view.settle(agreed)
            self._answer(taken.key, view)
            if taken.code:
                self._refuse(view, taken.code, taken.text)
                continue
            self._take(view, number)
            if view.mark is not None and view.mark != self._unwatches and number in self._followed:
                # The broker may have heard last that nobody wants to know of this job: that went on another channel.
                self._to_watch[number] = None

    def _answer(self, key: str, view: JobView) -> None:
        """It is not pending any more."""
        del self._pending[key]
        self._channel.give_back(len(view.payload))
        view.submission = None
        view.payload = b""

    def _take(self, view: JobView, number: int) -> None:
        """The job has a number, by which all its views follow it, but for those that nobody wants."""
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
            self._to_unwatch[number] = None

    def on_update(self, group: Update, payloads: list[bytes]) -> None:
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

    def on_watched(self, reply: Watched) -> bool:
        """Whether it answers a question of ours."""
        asked: Collection[int] | None = self._asked.pop(reply.request, None)
        text = "the broker does not know job {}"
        if reply.request == UNASKED:
            asked, text = list(self._followed), "the broker no longer lets this client see job {}"
        if asked is None:
            return False
        for number in set(reply.unknown).intersection(asked):
            self._refuse(self._followed.pop(number, None), Code.NO_SUCH_JOB, text.format(number))
        return True

    def on_unwatched(self, request: int) -> bool:
        """Whether it answers a question of ours."""
        if request not in self._leaving:
            return False
        self._leaving.remove(request)
        return True

    def on_error(self, request: int, code: int, text: str) -> bool:
        """Whether it answers a question of ours."""
        asked = self._asked.pop(request, None)
        if asked is None:
            return self.on_unwatched(request)
        for number in asked:
            self._refuse(self._followed.pop(number, None), code, text)
        return True


def _chain(view: JobView | None) -> Iterator[JobView]:
    """All views of the same job; each may be taken out while it has its turn."""
    while view is not None:
        twin = view.twin
        yield view
        view = twin


def _pages(numbers: dict[int, None]) -> Iterator[list[int]]:
    remaining = iter(numbers)
    while page := list(islice(remaining, MAX_WATCHED_AT_ONCE)):
        yield page
