"""Jobs and leases of a client, and the work channels that carry them.

`WorkChannel` is the channel towards the broker: groups of submissions and reports, and the buffer that bounds them.

    added --> open group --full, or trains are polled--> waiting --handed over--> sent --confirmed--> released

A group does not outlive its connection. Each part is stored by the object that added it until it is answered, and is
added again on the next connection: a submission is identified by its key and a report by its fencing number, so
repeats are harmless.

`ClientWork` joins this channel, the broker's channel, the JobTracker and the Leases.
"""

from __future__ import annotations

from base64 import b32encode
from collections import deque
from collections.abc import Callable
from typing import Final

from godwit.client.events import ClientEvent, WorkBufferAvailable, WorkIdle
from godwit.client.jobs import JobTracker
from godwit.client.requests import RequestQueue
from godwit.client.worker import Lease, Leases
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
from godwit.transport.events import Received
from godwit.wire.control import ControlMessage, Done, Error, Work, encode_control
from godwit.wire.jobs import JobSpec, Ref, VolunteerReply, WatchReply
from godwit.wire.work import (
    FromClient,
    LeaseGroup,
    ProgressReport,
    ReportGroup,
    RevokeGroup,
    SubmitGroup,
    SubmitReplyGroup,
    TaskOutcome,
    decode_from_broker,
    encode_group,
)

GROUP_BYTES: Final = 60_000
"""Size at which a group is full: it fits one train, and the record limit of every broker."""
PART_HEAD_BYTES: Final = 64
"""Upper bound of the encoding of a part in a group's head, without its texts."""
PART_COST_BYTES: Final = 512
"""Bytes of the buffer that a part uses beside its payload."""
CUT_AFTER_S: Final = 0.005
"""The time that an open group waits for a transport that is busy with other records."""

_RUN_START: Final = 8
_RUN_STOP: Final = 13
"""The bytes of the instance that become the prefix of keys. Its first bytes are public: they are part of names."""


def _ignore() -> None:
    """Do nothing: the default of the callbacks."""


class WorkChannel:
    """The work channel towards the broker.

    Input: reserve, release, add_*; attach, detach, cut, hand_over, handle_confirmed. Output: events.
    """

    def __init__(
        self,
        limit_bytes: int,
        events: list[ClientEvent],
        *,
        on_reported: Callable[[list[Lease]], None],
        on_violation: Callable[[Connection, str], None],
    ) -> None:
        self.channel: int | None = None
        """Its number on the present connection."""
        self.max_payload_bytes = MAX_JOB_PAYLOAD_BYTES
        """The limit of the broker, once it is known."""
        self.held_parts = 0
        """The number of submissions and reports without an answer."""
        self.lacks_channel = False
        """Whether groups wait for a channel, because publishers use all of them."""
        self.on_begun: Callable[[], None] = _ignore
        """Called when a group gets its first part: poll for trains soon."""
        self.on_full: Callable[[], None] = _ignore
        """Called when a full group was handed to the transport: poll for trains now."""
        self._events = events
        self._on_reported = on_reported
        self._on_violation = on_violation
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._is_starved = False
        self._connection: Connection | None = None
        self.is_filling = False
        """Whether on_full runs. The open group is not cut then: the next one is about to fill too."""
        self.due_at: float | None = None
        """When the open groups have waited long enough for a busy transport; None if they do not wait."""
        # The open groups.
        self._jobs: list[JobSpec] = []
        self._job_payloads: list[bytes] = []
        self.jobs_bytes = 0
        """The size of the open group of submissions; 0 if there is none."""
        self._outcomes: list[TaskOutcome] = []
        self._results: list[bytes] = []
        self._returned: list[Ref] = []
        self._steps: list[ProgressReport] = []
        self._leases: list[Lease] = []
        """The leases that the open report ends."""
        self.report_bytes = 0
        """The size of the open report, which counts as a heartbeat; 0 if there is none."""
        # Packed groups.
        self._waiting: deque[tuple[bytes, list[Lease]]] = deque()
        self._sent: deque[tuple[int, list[Lease]]] = deque()
        """Unconfirmed reports with their record numbers."""
        self._next_record = 0

    # -- the buffer ---------------------------------------------------------------------------------------------------

    def reserve(self, payload_bytes: int) -> None:
        """Reserve room in the buffer for a part. An empty buffer accepts a part of any size.

        Raises BufferFullError if there is too little room.
        """
        held_bytes = self._held_bytes + payload_bytes + PART_COST_BYTES
        if held_bytes > self._limit_bytes and self.held_parts:
            self._is_starved = True
            raise BufferFullError(
                f"{self._held_bytes} bytes of jobs and results of this client are not confirmed yet, it may hold "
                f"{self._limit_bytes}: wait for room, then try again"
            )
        self._held_bytes = held_bytes
        self.held_parts += 1

    def reserve_always(self) -> None:
        """Reserve room for a part without a payload, above the limit if necessary: there are no more than leases."""
        self._held_bytes += PART_COST_BYTES
        self.held_parts += 1

    def release(self, payload_bytes: int) -> None:
        """Release the room of a part that was answered."""
        self._held_bytes -= payload_bytes + PART_COST_BYTES
        self.held_parts -= 1
        if self._is_starved and 2 * self._held_bytes <= self._limit_bytes:
            self._is_starved = False
            self._events.append(WorkBufferAvailable())
        if not self.held_parts:
            self._events.append(WorkIdle())

    # -- the open groups: without a connection nothing is added --------------------------------------------------------

    def add_submission(self, submission: JobSpec, payload: bytes, text_bytes: int) -> None:
        """Add a job. `text_bytes` is the length of its kind and key, and the upper bound of its options."""
        if self._connection is None:
            return
        size_bytes = len(payload) + text_bytes + PART_HEAD_BYTES
        jobs = self._jobs
        is_full = len(jobs) >= MAX_GROUP or self.jobs_bytes + size_bytes > GROUP_BYTES
        if is_full and jobs:
            self._cut_jobs()
            jobs = self._jobs
        jobs.append(submission)
        self._job_payloads.append(payload)
        self.jobs_bytes += size_bytes
        if is_full:
            self._flush_full()
        elif len(jobs) == 1:
            self.on_begun()

    def add_outcome(self, lease: Lease) -> None:
        """Add the report of a lease: its outcome, or that it was given back."""
        if self._connection is None:
            return
        outcome, result = lease.outcome, lease.result
        size_bytes = len(result) + PART_HEAD_BYTES
        if outcome is not None and outcome.error:
            size_bytes += len(outcome.error.encode())
        is_full = len(self._leases) >= MAX_GROUP or self.report_bytes + size_bytes > GROUP_BYTES
        if is_full and self.report_bytes:
            self._cut_report()
        is_first = not self.report_bytes
        if outcome is None:
            self._returned.append(lease.ref)
        else:
            self._outcomes.append(outcome)
            self._results.append(result)
        self._leases.append(lease)
        self.report_bytes += size_bytes
        if is_full:
            self._flush_full()
        elif is_first:
            self.on_begun()

    def add_step(self, step: ProgressReport) -> None:
        """Add the progress of a task."""
        size_bytes = len(step.note.encode()) + PART_HEAD_BYTES
        if len(self._steps) >= MAX_GROUP or self.report_bytes + size_bytes > GROUP_BYTES:
            self._cut_report()
        self._steps.append(step)
        self.report_bytes += size_bytes

    def add_heartbeat(self) -> None:
        """Open a report without parts: its arrival keeps the leases."""
        self.report_bytes += PART_HEAD_BYTES

    def cut(self) -> None:
        """Pack all open groups and hand them to the transport."""
        if self._jobs:
            self._cut_jobs()
        if self.report_bytes:
            self._cut_report()

    def cut_if_late(self, now: float) -> None:
        """Cut the open groups if the transport was busy for CUT_AFTER_S: it may stay busy for long."""
        if self.due_at is None:
            self.due_at = now + CUT_AFTER_S
        elif now >= self.due_at:
            self.cut()

    def _flush_full(self) -> None:
        self.is_filling = True
        try:
            self.on_full()
        finally:
            self.is_filling = False

    def _cut_jobs(self) -> None:
        jobs, payloads = self._jobs, self._job_payloads
        self._jobs, self._job_payloads = [], []
        self.jobs_bytes = 0
        if not self.report_bytes:
            self.due_at = None
        self._queue(SubmitGroup(jobs=jobs), payloads, [])

    def _cut_report(self) -> None:
        report = ReportGroup(outcomes=self._outcomes, steps=self._steps, returned=self._returned)
        results, leases = self._results, self._leases
        self._outcomes, self._steps, self._returned, self._results, self._leases = [], [], [], [], []
        self.report_bytes = 0
        if not self.jobs_bytes:
            self.due_at = None
        self._queue(report, results, leases)

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, max_message_bytes: int) -> None:
        """Use a new connection whose broker accepts messages of this size."""
        self._connection = connection
        self.max_payload_bytes = min(max_message_bytes, MAX_JOB_PAYLOAD_BYTES)

    def detach(self) -> None:
        """Drop all groups: the connection is gone, and the parts will be added again."""
        self._connection = self.channel = self.due_at = None
        self.lacks_channel = False
        self._next_record = 0
        self._waiting.clear()
        self._sent.clear()
        self._jobs, self._job_payloads = [], []
        self._outcomes, self._steps, self._returned, self._results, self._leases = [], [], [], [], []
        self.jobs_bytes = self.report_bytes = 0

    def _queue(self, head: FromClient, payloads: list[bytes], leases: list[Lease]) -> None:
        self._waiting.append((encode_group(head, payloads), leases))
        self.hand_over()

    def hand_over(self) -> None:
        """Hand waiting groups to the transport, as far as it accepts them."""
        connection = self._connection
        if connection is None:
            return
        self.lacks_channel = False
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
        except RecordTooLargeError as error:  # a broker with work must accept records of this length
            self._on_violation(connection, str(error))
        except ChannelError:
            self.lacks_channel = True
        except (SendBufferFullError, ConnectionClosedError):
            pass  # the event Writable or the next connection leads to the next call

    def handle_confirmed(self, record: int) -> None:
        """Pass on that reports up to this record are confirmed. Raises DecodeError if the record was never sent."""
        if record >= self._next_record:
            raise DecodeError("confirm", f"of record {record} on the channel of work, which was not sent")
        sent = self._sent
        while sent and sent[0][0] <= record:
            self._on_reported(sent.popleft()[1])


class ClientWork:
    """The work of a client: its jobs, its leases and the channels in both directions.

    Application calls go to `jobs` and `leases`. Input: attach, detach, poll, handle_*. Poll again when `channel.due_at`
    or `leases.due_at` has come.
    """

    def __init__(
        self,
        send_buffer_bytes: int,
        requests: RequestQueue,
        events: list[ClientEvent],
        instance: bytes,
        on_violation: Callable[[Connection, str], None],
    ) -> None:
        self.leases = Leases(requests, events)
        self.channel = WorkChannel(
            send_buffer_bytes, events, on_reported=self.leases.on_reported, on_violation=on_violation
        )
        self.leases.channel = self.channel
        self.jobs = JobTracker(
            self.channel, requests, events, b32encode(instance[_RUN_START:_RUN_STOP]).decode().lower()
        )
        self.is_used = False
        """Whether the client has ever submitted, watched or volunteered: without it, work costs messages nothing."""
        self.inbound: int | None = None
        """The number of the broker's channel on the present connection."""
        self._log = b""
        """The id of the log that the numbers of jobs belong to."""

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, log: bytes, max_message_bytes: int, now: float) -> None:
        """Resume on a new connection, whose broker has accepted the login."""
        is_other_log = bool(self._log) and bool(log) and log != self._log
        self._log = log or self._log
        self.channel.attach(connection, max_message_bytes)
        self.leases.attach(now, is_other_log=is_other_log)
        self.jobs.attach(is_other_log=is_other_log)

    def detach(self) -> None:
        """Forget the state of the connection, which is gone."""
        self.inbound = None
        self.channel.detach()
        self.leases.detach()
        self.jobs.detach()

    def poll(self, connection: Connection, now: float) -> None:
        """Cut open groups and due reports, because trains are polled."""
        channel = self.channel
        if channel.lacks_channel:
            channel.hand_over()
        due_at = self.leases.due_at if self.leases.is_used else None
        if due_at is not None and now >= due_at:
            self.leases.add_due(now)
            self.leases.handle_cut(now)
            channel.cut()
        elif (channel.jobs_bytes or channel.report_bytes) and not channel.is_filling:
            if channel.report_bytes:
                self.leases.handle_cut(now)
            if connection.has_unsent:
                channel.cut_if_late(now)
            else:
                channel.cut()

    # -- input from the broker ----------------------------------------------------------------------------------------

    def handle_opened(self, event: Received) -> None:
        """Store the number of the broker's channel. Raises DecodeError if there is one already."""
        if self.inbound is not None:
            raise DecodeError("work", f"a second channel of work, {event.channel}")
        self.inbound = event.channel

    def handle_received(self, event: Received) -> None:
        """Handle a record on the broker's channel. Raises DecodeError if it violates the protocol."""
        if not event.reliable or event.last:
            raise DecodeError("work", "a record that may get lost, or the end of the channel of work")
        head, payloads = decode_from_broker(event.body)
        if isinstance(head, LeaseGroup):
            self.leases.handle_leased(head, payloads)
        elif isinstance(head, SubmitReplyGroup):
            self.jobs.handle_taken(head)
        elif isinstance(head, RevokeGroup):
            self.leases.handle_revoked(head)
        else:
            self.jobs.handle_update(head, payloads)
        event.connection.consume(event.channel, len(event.body))
        event.connection.confirm(event.channel, event.record, 0)

    def handle_reply(self, message: ControlMessage) -> bool:
        """Handle a control message. Return whether it answers a request about work."""
        if isinstance(message, VolunteerReply):
            return self.leases.handle_volunteered(message)
        if isinstance(message, WatchReply):
            return self.jobs.handle_watched(message)
        if isinstance(message, Done):
            return self.jobs.handle_unwatched(message.request)
        if isinstance(message, Error) and message.request is not None:
            request, code, text = message.request, message.code, message.text
            return self.leases.handle_error(request, code, text) or self.jobs.handle_error(request, code, text)
        return False
