"""The worker in a client: the kinds that it volunteers for, its leases, and the heartbeats that keep them.

    leased --> running --finish, fail, give_back--> reported --confirmed--> ended
                  \\--revoked--> ended

A report is stored until it is confirmed, and sent again on each connection. The request to volunteer is repeated too,
with the leases that the client still holds: the broker reassigns all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from godwit.broker.topics import check_kind
from godwit.client.events import ClientEvent, Leased, Reported, Revoked, VolunteerAccepted, VolunteerRefused
from godwit.client.jobs import check_payload, too_large
from godwit.client.requests import RequestQueue
from godwit.errors import DecodeError, UsageError
from godwit.limits import LEASE_S, MAX_CAPACITY, MAX_KINDS
from godwit.wire import jobs as wire
from godwit.wire.jobs import Ref, Volunteer
from godwit.wire.work import LeasedTask, LeaseGroup, ProgressReport, RevokeGroup, TaskOutcome

if TYPE_CHECKING:
    from godwit.client.work import WorkChannel

RESULT: Final = "the result of a task"
STEP_INTERVAL_S: Final = 0.1
"""The least time between two reports of progress."""
BEATS_PER_LEASE: Final = 3
"""The number of heartbeats in the time after which the broker would revoke a silent worker's leases."""
LEAST_LEASE_S: Final = 0.1
"""Lower bound for the lease time that a broker announces."""
MAX_TEXT: Final = 1024
"""Characters of an error or a note; longer ones are cut off."""

LeaseState: TypeAlias = Literal["running", "reported", "ended"]


class Lease(msgspec.Struct, eq=False, weakref=True):
    """A task that the broker has assigned to this client (event Leased). Leases are compared by identity."""

    ref: Ref
    """The numbers of the job and the task, and the fencing number."""
    kind: str
    controller: str
    payload: bytes
    agreed: int
    """The number of tasks of the job."""
    failures: int
    """The number of failed attempts before this one."""
    time_limit_ms: int | None
    deadline_us: int | None
    state: LeaseState = "running"
    """`reported` until the broker has confirmed the report; `ended` then, or if the lease was revoked."""
    outcome: TaskOutcome | None = None
    """The reported outcome; None while the task runs, or if it was given back."""
    result: bytes = b""
    is_known: bool = True
    """Whether the application received the event Leased. Not if the client had just withdrawn."""
    owner: Any = None
    """Free for use by the layer above."""

    @property
    def job(self) -> int:
        """The number of the job."""
        return self.ref[0]

    @property
    def task(self) -> int:
        """The number of the task in its job."""
        return self.ref[1]

    @property
    def fence(self) -> int:
        """The fencing number of this lease."""
        return self.ref[2]


class Leases:
    """The leases of a client, and the kinds that it volunteers for.

    Input: volunteer, withdraw, finish, fail, give_back, step; attach, detach, handle_*. Output: due_at, events.
    """

    def __init__(self, requests: RequestQueue, events: list[ClientEvent]) -> None:
        self.channel: WorkChannel
        """Set after construction: the channel needs on_reported of this object."""
        self._requests = requests
        self._events = events
        self._kinds: tuple[str, ...] = ()
        self._capacity = 1
        self._max_capacity = 0
        """The largest capacity that was sent to the broker on this connection."""
        self._request: int | None = None
        """The number of the last request to volunteer, until it is answered."""
        self.is_used = False
        """Whether the client has ever volunteered: without it there is nothing to report."""
        self._is_attached = False
        self._running: dict[Ref, Lease] = {}
        self._unconfirmed: dict[Ref, Lease] = {}
        """Reported and not confirmed, in the order of their reports."""
        self._steps: dict[Lease, ProgressReport] = {}
        """The newest progress of each lease, until it is sent."""
        self._stepped_at = 0.0
        self._lease_s = LEASE_S
        self._reported_at = 0.0

    # -- application calls --------------------------------------------------------------------------------------------

    def volunteer(self, kinds: Sequence[str], capacity: int) -> None:
        """Replace the kinds and the capacity (see ClientProtocol.volunteer)."""
        unique = tuple(dict.fromkeys(kinds))
        if not 1 <= len(unique) <= MAX_KINDS:
            raise UsageError(f"{len(unique)} kinds of work: a worker has 1 to {MAX_KINDS}")
        for kind in unique:
            check_kind(kind)
        if type(capacity) is not int or not 1 <= capacity <= MAX_CAPACITY:
            raise UsageError(f"capacity is {capacity!r}: it is a whole number between 1 and {MAX_CAPACITY}")
        self._kinds = unique
        self._capacity = capacity
        self.is_used = True
        self._send_request()

    def withdraw(self) -> None:
        """Volunteer for nothing any more. Running tasks may still be finished or given back."""
        if self._kinds:
            self._kinds = ()
            self._send_request()

    def finish(self, lease: Lease, result: bytes) -> None:
        """Report a result (see ClientProtocol.finish)."""
        if lease.state == "running":
            check_payload(RESULT, result, self.channel.max_payload_bytes)
            self.channel.reserve(len(result))
            lease.outcome = TaskOutcome(task=lease.ref, size=len(result))
            lease.result = result
            self._report(lease)

    def fail(self, lease: Lease, error: str, *, is_final: bool) -> None:
        """Report a failed attempt."""
        if lease.state == "running":
            self.channel.reserve_always()
            lease.outcome = TaskOutcome(task=lease.ref, error=_text(error), is_final=is_final)
            self._report(lease)

    def give_back(self, lease: Lease) -> None:
        """Return a task to the broker, which assigns it to another worker."""
        if lease.state == "running":
            self.channel.reserve_always()
            self._report(lease)

    def step(self, lease: Lease, progress: float | None, note: str) -> None:
        """Report the progress of a task. Raises UsageError if it is not between 0 and 1."""
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

    def _replace_result(self, lease: Lease, error: str) -> None:
        """Report a final failure instead of a result that this broker does not accept."""
        size_bytes, lease.result = len(lease.result), b""
        self.channel.reserve_always()
        self.channel.release(size_bytes)
        lease.outcome = TaskOutcome(task=lease.ref, error=error, is_final=True)

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, now: float, *, is_other_log: bool) -> None:
        """Volunteer again and repeat unconfirmed reports, on a new connection."""
        if is_other_log:  # the numbers of the tasks mean other tasks there
            self.handle_revoked(RevokeGroup(tasks=list(self._running), reason="the broker has another log than before"))
            self.on_reported(list(self._unconfirmed.values()))
        self._is_attached = True
        self._max_capacity = 0
        self._reported_at = now
        if self.is_used:
            self._send_request()
        most_bytes = self.channel.max_payload_bytes
        for lease in self._unconfirmed.values():
            if len(lease.result) > most_bytes:
                self._replace_result(lease, too_large(RESULT, len(lease.result), most_bytes))
            self.channel.add_outcome(lease)

    def detach(self) -> None:
        """Forget the request of the connection, which is gone."""
        self._is_attached = False
        self._request = None

    def _send_request(self) -> None:
        if not self._is_attached:
            return
        self._max_capacity = max(self._max_capacity, self._capacity)
        self._request = self._requests.next_number()
        done = [ref for ref, lease in self._unconfirmed.items() if lease.outcome is not None]
        self._requests.send(
            Volunteer(
                request=self._request,
                kinds=list(self._kinds),
                capacity=self._capacity,
                holding=[*done, *self._running][:MAX_CAPACITY],
            )
        )

    @property
    def due_at(self) -> float | None:
        """When to call add_due; None without a connection, or if there is nothing to report."""
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
        """Add the due reports of progress to the open group, or a heartbeat."""
        channel = self.channel
        if self._steps and now >= self._stepped_at + STEP_INTERVAL_S:
            self._stepped_at = now
            for step in self._steps.values():
                channel.add_step(step)
            self._steps.clear()
        if not channel.report_bytes and now >= self._reported_at + self._lease_s / BEATS_PER_LEASE:
            channel.add_heartbeat()

    def handle_cut(self, now: float) -> None:
        """Note that a report is sent, which counts as a heartbeat."""
        self._reported_at = now

    # -- input from the broker ----------------------------------------------------------------------------------------

    def handle_leased(self, group: LeaseGroup, payloads: list[bytes]) -> None:
        """Hold new leases. Raises DecodeError for a repeated one, and if there are more than the capacity."""
        for task, payload in zip(group.tasks, payloads, strict=True):
            if len(self._running) >= self._max_capacity or len(self._unconfirmed) > self._max_capacity + MAX_CAPACITY:
                raise DecodeError("work", f"more leases than the {self._max_capacity} that this worker can hold")
            lease = _make_lease(task, payload)
            if lease.ref in self._running or lease.ref in self._unconfirmed:
                raise DecodeError("work", f"the lease {lease.ref} a second time")
            self._running[lease.ref] = lease
            if lease.kind in self._kinds:
                self._events.append(Leased(lease))
            else:  # it was under way when the client withdrew from this kind
                lease.is_known = False
                self.give_back(lease)

    def handle_revoked(self, group: RevokeGroup) -> None:
        """End running leases. Reported ones are confirmed later, whether or not the broker used the report."""
        for ref in group.tasks:
            lease = self._running.pop(ref, None)
            if lease is not None:
                lease.state = "ended"
                self._steps.pop(lease, None)
                self._events.append(Revoked(lease, group.reason))

    def on_reported(self, leases: list[Lease]) -> None:
        """End leases whose reports the broker has confirmed."""
        for lease in leases:
            lease.state = "ended"
            del self._unconfirmed[lease.ref]
            self.channel.release(len(lease.result))
            if lease.is_known:
                self._events.append(Reported(lease))

    def handle_volunteered(self, reply: wire.VolunteerReply) -> bool:
        """Return whether the reply answers the last request to volunteer."""
        if reply.request != self._request:
            return False
        self._request = None
        self._lease_s = max(reply.lease_ms / 1000, LEAST_LEASE_S)
        if self._kinds:
            self._events.append(VolunteerAccepted(self._lease_s))
        return True

    def handle_error(self, request: int, code: int, text: str) -> bool:
        """Return whether the error answers the last request to volunteer, which is not repeated then."""
        if request != self._request:
            return False
        self._request = None
        if self._kinds:
            self._kinds = ()
            self._events.append(VolunteerRefused(code, text))
        return True


def _make_lease(task: LeasedTask, payload: bytes) -> Lease:
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
    """Return a text of limited length that can be encoded as UTF-8."""
    return text[:MAX_TEXT].encode(errors="replace").decode()
