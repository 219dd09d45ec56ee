"""The worker in a client: what it volunteers for, the leases that it holds, and the signs of life that keep them.

    leased --> running --finish, fail, give_back--> reported --confirmed--> ended
                  \\--revoked--> ended

A report is remembered until it is confirmed, and goes again on each connection. What the client volunteers for is said
again too, with the leases that it still has: the broker gives back to others what is not among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from godwit.broker.topics import check_kind
from godwit.client.events import ClientEvent, Leased, Reported, Revoked, Volunteered, VolunteerRefused
from godwit.client.leasing import Lease
from godwit.client.requests import Requests
from godwit.client.submitting import check_payload, too_large
from godwit.client.work import WorkChannel
from godwit.errors import DecodeError, UsageError
from godwit.limits import LEASE_S, MAX_CAPACITY, MAX_KINDS
from godwit.wire import jobs as wire
from godwit.wire.jobs import Ref, Volunteer
from godwit.wire.work import LeasedTask, LeaseGroup, ProgressReport, RevokeGroup, TaskOutcome

RESULT: Final = "the result of a task"
STEP_INTERVAL_S: Final = 0.1
"""How far tasks are is told no more often than this."""
BEATS_PER_LEASE: Final = 3
"""A worker says so often that it lives, in the time after which the broker would take its leases away."""
LEAST_LEASE_S: Final = 0.1
"""Whatever the broker says."""
MAX_TEXT: Final = 1024
"""Characters of an error or a note; the rest is cut off."""


class Leases:
    """Feed: volunteer, withdraw, finish, fail, give_back, step; attach, detach, the broker's words. Gives events."""

    def __init__(self, requests: Requests, events: list[ClientEvent]) -> None:
        self.channel: WorkChannel
        """Set by who makes both."""
        self._requests = requests
        self._events = events
        self._kinds: tuple[str, ...] = ()
        self._capacity = 1
        self._most = 0
        """The largest capacity that the broker was told on this connection."""
        self._asked: int | None = None
        """The last request to volunteer, until it is answered."""
        self._has_volunteered = False
        self._is_attached = False
        self._running: dict[Ref, Lease] = {}
        self._unconfirmed: dict[Ref, Lease] = {}
        """Reported and not confirmed, in the order of their reports."""
        self._steps: dict[Lease, ProgressReport] = {}
        """The newest of each lease, until it is sent."""
        self._stepped_at = 0.0
        self._lease_s = LEASE_S
        self._reported_at = 0.0

    # -- the application's calls --------------------------------------------------------------------------------------

    def volunteer(self, kinds: Sequence[str], capacity: int) -> None:
        """From now on this, and not what was said before. Volunteered or VolunteerRefused tells what became of it."""
        unique = tuple(dict.fromkeys(kinds))
        if not 1 <= len(unique) <= MAX_KINDS:
            raise UsageError(f"{len(unique)} kinds of work: a worker has 1 to {MAX_KINDS}")
        for kind in unique:
            check_kind(kind)
        if type(capacity) is not int or not 1 <= capacity <= MAX_CAPACITY:
            raise UsageError(f"capacity is {capacity!r}: it is a whole number between 1 and {MAX_CAPACITY}")
        self._kinds = unique
        self._capacity = capacity
        self._has_volunteered = True
        self._say()

    def withdraw(self) -> None:
        """No more tasks. Those that are there may be finished, or handed back."""
        if self._kinds:
            self._kinds = ()
            self._say()

    def finish(self, lease: Lease, result: bytes) -> None:
        """BufferFullError: wait for the event WorkRoom."""
        if lease.state == "running":
            check_payload(RESULT, result, self.channel.max_payload_bytes)
            self.channel.take(len(result))
            lease.outcome = TaskOutcome(task=lease.ref, size=len(result))
            lease.result = result
            self._report(lease)

    def fail(self, lease: Lease, error: str, *, is_final: bool) -> None:
        if lease.state == "running":
            self.channel.take_anyway()
            lease.outcome = TaskOutcome(task=lease.ref, error=_text(error), is_final=is_final)
            self._report(lease)

    def give_back(self, lease: Lease) -> None:
        if lease.state == "running":
            self.channel.take_anyway()
            self._report(lease)

    def step(self, lease: Lease, progress: float | None, note: str) -> None:
        if lease.state == "running":
            if progress is not None and not 0 <= progress <= 1:
                raise UsageError(f"progress is {progress!r}: it lies between 0 and 1")
            is_first = not self._steps
            self._steps[lease] = ProgressReport(
                task=lease.ref, progress=None if progress is None else float(progress), note=_text(note)
            )
            if is_first:
                self.channel.on_begun()

    def _report(self, lease: Lease) -> None:
        lease.state = "reported"
        del self._running[lease.ref]
        self._unconfirmed[lease.ref] = lease
        if self._steps:
            self._steps.pop(lease, None)
        self.channel.add_outcome(lease)

    def _give_up(self, lease: Lease, error: str) -> None:
        """Its result was taken for one that could be sent. Nobody else would get a shorter one."""
        size_bytes, lease.result = len(lease.result), b""
        self.channel.take_anyway()
        self.channel.give_back(size_bytes)
        lease.outcome = TaskOutcome(task=lease.ref, error=error, is_final=True)

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, now: float, *, is_other_log: bool) -> None:
        """There is a broker: it is told what this client does and has, and what it has not confirmed."""
        if is_other_log:  # its numbers mean other tasks
            self.on_revoked(RevokeGroup(tasks=list(self._running), reason="the broker has another log than before"))
            self.on_reported(list(self._unconfirmed.values()))
        self._is_attached = True
        self._most = 0
        self._reported_at = now
        if self._has_volunteered:
            self._say()
        most_bytes = self.channel.max_payload_bytes
        for lease in self._unconfirmed.values():
            if len(lease.result) > most_bytes:
                self._give_up(lease, too_large(RESULT, len(lease.result), most_bytes))
            self.channel.add_outcome(lease)

    def detach(self) -> None:
        self._is_attached = False
        self._asked = None

    def _say(self) -> None:
        if not self._is_attached:
            return
        self._most = max(self._most, self._capacity)
        self._asked = self._requests.number()
        done = [ref for ref, lease in self._unconfirmed.items() if lease.outcome is not None]
        self._requests.say(
            Volunteer(
                request=self._asked,
                kinds=list(self._kinds),
                capacity=self._capacity,
                holding=[*done, *self._running][:MAX_CAPACITY],
            )
        )

    @property
    def due_at(self) -> float | None:
        """When something is to be said, if there is a broker."""
        if not self._is_attached:
            return None
        due_at = None
        if self._kinds or self._running:
            due_at = self._reported_at + self._lease_s / BEATS_PER_LEASE
        if self._steps:
            stepped_at = self._stepped_at + STEP_INTERVAL_S
            due_at = stepped_at if due_at is None else min(due_at, stepped_at)
        return due_at

    def add_due(self, now: float) -> None:
        """Adds to the open report what is due: how far tasks are, or only that the worker lives."""
        channel = self.channel
        if self._steps and now >= self._stepped_at + STEP_INTERVAL_S:
            self._stepped_at = now
            for step in self._steps.values():
                channel.add_step(step)
            self._steps.clear()
        if not channel.has_report and now >= self._reported_at + self._lease_s / BEATS_PER_LEASE:
            channel.add_nothing()

    def on_cut(self, now: float) -> None:
        """A report goes."""
        self._reported_at = now

    # -- what the broker says -----------------------------------------------------------------------------------------

    def on_leased(self, group: LeaseGroup, payloads: list[bytes]) -> None:
        for task, payload in zip(group.tasks, payloads, strict=True):
            if len(self._running) >= self._most or len(self._unconfirmed) > self._most + MAX_CAPACITY:
                raise DecodeError("work", f"more leases than the {self._most} that this worker can hold")
            lease = _make(task, payload)
            if lease.ref in self._running or lease.ref in self._unconfirmed:
                raise DecodeError("work", f"the lease {lease.ref} a second time")
            self._running[lease.ref] = lease
            if lease.kind in self._kinds:
                self._events.append(Leased(lease))
            else:  # it was under way when the client said that it wants no more of this kind
                lease.is_known = False
                self.give_back(lease)

    def on_revoked(self, group: RevokeGroup) -> None:
        """What was reported already is confirmed by and by, whether or not the broker had use for it."""
        for ref in group.tasks:
            lease = self._running.pop(ref, None)
            if lease is not None:
                lease.state = "ended"
                self._steps.pop(lease, None)
                self._events.append(Revoked(lease, group.reason))

    def on_reported(self, leases: list[Lease]) -> None:
        """The broker has confirmed their reports."""
        for lease in leases:
            lease.state = "ended"
            del self._unconfirmed[lease.ref]
            self.channel.give_back(len(lease.result))
            if lease.is_known:
                self._events.append(Reported(lease))

    def on_volunteered(self, reply: wire.VolunteerReply) -> bool:
        """Whether it answers a question of ours."""
        if reply.request != self._asked:
            return False
        self._asked = None
        self._lease_s = max(reply.lease_ms / 1000, LEAST_LEASE_S)
        if self._kinds:
            self._events.append(Volunteered(self._lease_s))
        return True

    def on_error(self, request: int, code: int, text: str) -> bool:
        """Whether it answers a question of ours. What was refused is not asked again."""
        if request != self._asked:
            return False
        self._asked = None
        if self._kinds:
            self._kinds = ()
            self._events.append(VolunteerRefused(code, text))
        return True


def _make(task: LeasedTask, payload: bytes) -> Lease:
    return Lease(
        task.task,
        task.of_kind,
        task.controller,
        payload,
        task.agreed,
        task.failures,
        task.time_limit_ms,
        task.deadline_us,
    )


def _text(text: str) -> str:
    """As it can travel: cut off, and without halves of surrogate pairs."""
    return text[:MAX_TEXT].encode(errors="replace").decode()
