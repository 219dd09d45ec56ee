"""The work channel towards the broker: groups of submissions and reports, and the buffer that bounds them.

    added --> the open group --full, or trains are asked for--> waiting --handed over--> sent --confirmed--> gone

A group does not outlive its connection. Whoever added a part remembers it until it is answered, and adds it again on
the next connection: a submission is known by its key and a report by its fencing number, so repeats are harmless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from godwit.client.events import ClientEvent, WorkIdle, WorkRoom
from godwit.client.leasing import Lease
from godwit.errors import (
    BufferFullError,
    ChannelError,
    ConnectionClosedError,
    DecodeError,
    RecordTooLargeError,
    SendBufferFullError,
)
from godwit.limits import MAX_GROUP, MAX_JOB_PAYLOAD_BYTES
from godwit.transport.connection import Connection
from godwit.wire.control import Work, encode_control
from godwit.wire.jobs import JobSpec, Ref
from godwit.wire.work import FromClient, ProgressReport, ReportGroup, SubmitGroup, TaskOutcome, encode_group

GROUP_BYTES: Final = 60_000
"""A group that would be longer with one more part is full: it fits one train, and what any broker takes."""
PART_HEAD_BYTES: Final = 64
"""Of a part in a group's head, beside its texts: no more."""
OPTIONS_BYTES: Final = 128
"""What a submission has beside that, if it is not as most are: no more."""
PART_COST_BYTES: Final = 512
"""What a part takes of the buffer beside its payload."""
CUT_AFTER_S: Final = 0.005
"""A group waits so long for a transport that is busy with something else."""


def _nothing() -> None:
    """Nobody wants to be told."""


class WorkChannel:
    """Feed: take, give_back, add_...; attach, detach, cut, on_confirmed, on_writable. Gives WorkRoom and WorkIdle."""

    def __init__(
        self,
        limit_bytes: int,
        events: list[ClientEvent],
        *,
        on_reported: Callable[[list[Lease]], None],
        on_violation: Callable[[Connection, str], None],
    ) -> None:
        self.channel: int | None = None
        """On the present connection."""
        self.max_payload_bytes = MAX_JOB_PAYLOAD_BYTES
        """What the broker takes, once it has said so."""
        self.held_parts = 0
        """Submissions and reports that the broker has not answered."""
        self.on_begun: Callable[[], None] = _nothing
        """Called when a group has its first part: trains should be asked for before long."""
        self.on_full: Callable[[], None] = _nothing
        """Called when a full group was handed to the transport: trains should be asked for now."""
        self._events = events
        self._on_reported = on_reported
        self._on_violation = on_violation
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._is_starved = False
        self._connection: Connection | None = None
        self._is_filling = False
        self._waits_since: float | None = None
        # The open groups.
        self._jobs: list[JobSpec] = []
        self._job_payloads: list[bytes] = []
        self._jobs_bytes = 0
        self._outcomes: list[TaskOutcome] = []
        self._results: list[bytes] = []
        self._returned: list[Ref] = []
        self._steps: list[ProgressReport] = []
        self._leases: list[Lease] = []
        """Those that the open report ends."""
        self._report_bytes = 0
        # Packed groups.
        self._waiting: deque[tuple[bytes, list[Lease]]] = deque()
        self._sent: deque[tuple[int, list[Lease]]] = deque()
        """Reports that are not confirmed, with their record numbers."""
        self._next_record = 0
        self._lacks_channel = False

    # -- look ---------------------------------------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """Whether a group is open. Not in the middle of a run that just filled one: the next is about to fill too."""
        return bool(self._jobs_bytes or self._report_bytes) and not self._is_filling

    @property
    def has_report(self) -> bool:
        """Whether the open group is a sign of life."""
        return self._report_bytes > 0

    @property
    def lacks_channel(self) -> bool:
        """Whether groups wait for a channel, because publishers have them all."""
        return self._lacks_channel

    @property
    def due_at(self) -> float | None:
        """When the open group has waited long enough."""
        since = self._waits_since if self.has_begun else None
        return None if since is None else since + CUT_AFTER_S

    # -- the buffer ---------------------------------------------------------------------------------------------------

    def take(self, payload_bytes: int) -> None:
        """Room in the buffer for a part, or BufferFullError. One for itself always fits."""
        held_bytes = self._held_bytes + payload_bytes + PART_COST_BYTES
        if held_bytes > self._limit_bytes and self.held_parts:
            self._is_starved = True
            raise BufferFullError(
                f"{self._held_bytes} bytes of jobs and results of this client are not confirmed yet, it may hold "
                f"{self._limit_bytes}: wait for room, then try again"
            )
        self._held_bytes = held_bytes
        self.held_parts += 1

    def take_anyway(self) -> None:
        """Room for a part without a payload that must not wait: there are no more of them than leases."""
        self._held_bytes += PART_COST_BYTES
        self.held_parts += 1

    def give_back(self, payload_bytes: int) -> None:
        """The broker has answered a part."""
        self._held_bytes -= payload_bytes + PART_COST_BYTES
        self.held_parts -= 1
        if self._is_starved and 2 * self._held_bytes <= self._limit_bytes:
            self._is_starved = False
            self._events.append(WorkRoom())
        if not self.held_parts:
            self._events.append(WorkIdle())

    # -- the open groups: nothing is added while there is no connection ------------------------------------------------

    def add_submission(self, submission: JobSpec, payload: bytes, text_bytes: int) -> None:
        """`text_bytes`: of its kind and its key, and OPTIONS_BYTES if it has any."""
        if self._connection is None:
            return
        size_bytes = len(payload) + text_bytes + PART_HEAD_BYTES
        jobs = self._jobs
        is_full = len(jobs) >= MAX_GROUP or self._jobs_bytes + size_bytes > GROUP_BYTES
        if is_full and jobs:
            self._cut_jobs()
            jobs = self._jobs
        jobs.append(submission)
        self._job_payloads.append(payload)
        self._jobs_bytes += size_bytes
        if is_full:
            self._tell_full()
        elif len(jobs) == 1:
            self.on_begun()

    def add_outcome(self, lease: Lease) -> None:
        """How the lease ended: with an outcome, or handed back."""
        if self._connection is None:
            return
        outcome, result = lease.outcome, lease.result
        size_bytes = len(result) + PART_HEAD_BYTES
        if outcome is not None and outcome.error:
            size_bytes += len(outcome.error.encode())
        is_full = len(self._leases) >= MAX_GROUP or self._report_bytes + size_bytes > GROUP_BYTES
        if is_full and self._report_bytes:
            self._cut_report()
        is_first = not self._report_bytes
        if outcome is None:
            self._returned.append(lease.ref)
        else:
            self._outcomes.append(outcome)
            self._results.append(result)
        self._leases.append(lease)
        self._report_bytes += size_bytes
        if is_full:
            self._tell_full()
        elif is_first:
            self.on_begun()

    def add_step(self, step: ProgressReport) -> None:
        size_bytes = len(step.note.encode()) + PART_HEAD_BYTES
        if len(self._steps) >= MAX_GROUP or self._report_bytes + size_bytes > GROUP_BYTES:
            self._cut_report()
        self._steps.append(step)
        self._report_bytes += size_bytes

    def add_nothing(self) -> None:
        """A sign of life."""
        self._report_bytes += PART_HEAD_BYTES

    def cut(self) -> None:
        """What is open goes."""
        self._waits_since = None
        if self._jobs:
            self._cut_jobs()
        if self._report_bytes:
            self._cut_report()

    def cut_if_late(self, now: float) -> None:
        """The transport is busy: a little later the open groups go nevertheless, for it may be busy for long."""
        if self._waits_since is None:
            self._waits_since = now
        elif now >= self._waits_since + CUT_AFTER_S:
            self.cut()

    def _tell_full(self) -> None:
        self._is_filling = True
        try:
            self.on_full()
        finally:
            self._is_filling = False

    def _cut_jobs(self) -> None:
        jobs, payloads = self._jobs, self._job_payloads
        self._jobs, self._job_payloads = [], []
        self._jobs_bytes = 0
        self._queue(SubmitGroup(jobs=jobs), payloads, [])

    def _cut_report(self) -> None:
        report = ReportGroup(outcomes=self._outcomes, steps=self._steps, returned=self._returned)
        results, leases = self._results, self._leases
        self._outcomes, self._steps, self._returned, self._results, self._leases = [], [], [], [], []
        self._report_bytes = 0
        self._queue(report, results, leases)

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, max_message_bytes: int) -> None:
        """There is a broker, which takes records that are a little longer than this."""
        self._connection = connection
        self.max_payload_bytes = min(max_message_bytes, MAX_JOB_PAYLOAD_BYTES)

    def detach(self) -> None:
        """All groups are gone; those who added parts remember them."""
        self._connection = self.channel = self._waits_since = None
        self._lacks_channel = False
        self._next_record = 0
        self._waiting.clear()
        self._sent.clear()
        self._jobs, self._job_payloads = [], []
        self._outcomes, self._steps, self._returned, self._results, self._leases = [], [], [], [], []
        self._jobs_bytes = self._report_bytes = 0

    def _queue(self, head: FromClient, payloads: list[bytes], leases: list[Lease]) -> None:
        self._waiting.append((encode_group(head, payloads), leases))
        self.hand_over()

    def hand_over(self) -> None:
        """Gives what waits to the transport, as far as it takes it."""
        connection = self._connection
        if connection is None:
            return
        self._lacks_channel = False
        try:
            while self._waiting:
                if self.channel is None:
                    self.channel = connection.open_channel()
                if not self._next_record:
                    connection.send(self.channel, encode_control(Work()))
                    self._next_record = 1
                body, leases = self._waiting[0]
                connection.send(self.channel, body)
                if leases:
                    self._sent.append((self._next_record, leases))
                self._next_record += 1
                self._waiting.popleft()
        except RecordTooLargeError as error:  # a broker that takes work takes records of this length
            self._on_violation(connection, str(error))
        except ChannelError:
            self._lacks_channel = True
        except (SendBufferFullError, ConnectionClosedError):
            pass  # it goes on with Writable, or the next connection

    def on_confirmed(self, record: int) -> None:
        """All that the client said up to this record is safe."""
        if record >= self._next_record:
            raise DecodeError("confirm", f"of record {record} on the channel of work, which was not sent")
        sent = self._sent
        while sent and sent[0][0] <= record:
            self._on_reported(sent.popleft()[1])
