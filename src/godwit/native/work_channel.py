"""The work channels of clients: one connection's part in jobs, the records it sends, and the channel towards it.

A client's record is confirmed when all its changes are stored. The channel towards the client is opened with the first
record, and bounded by a window: output that does not fit is kept as references in JobPeer, not as bytes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.broker.catalogue import JOBS, Catalogue, TooManyTopicsError
from godwit.broker.effects import Effect, refusal_notice
from godwit.broker.jobs.job_commits import JobCommits
from godwit.broker.jobs.model import Job, JobActivity, JobTask
from godwit.broker.jobs.scheduler import Scheduler
from godwit.broker.jobs.service import job_name
from godwit.broker.ports import RequestFailure
from godwit.broker.session import Session, require_right
from godwit.broker.topics import check_kind, shown
from godwit.errors import BadKindError, DecodeError
from godwit.limits import MAX_CAPACITY, MAX_JOB_KEY_BYTES, RECORD_COST_BYTES, WORK_WINDOW_BYTES
from godwit.native.effects import ConfirmRecord, OpenChannel, SendRecord
from godwit.native.peer import NativePeer
from godwit.transport.events import Received
from godwit.wire.control import Work, encode_control
from godwit.wire.control_base import Code
from godwit.wire.jobs import Ref
from godwit.wire.work import (
    FromBroker,
    JobUpdate,
    ReportGroup,
    SubmitGroup,
    SubmitReply,
    decode_from_client,
    encode_group,
)

if TYPE_CHECKING:
    from godwit.native.job_notifier import JobNotifier

NOT_HELD: Final = "the task is not, or no longer, yours"
MAX_PENDING_REVOKES: Final = 4 * MAX_CAPACITY
"""For one client that does not read them: each request may name as many leases again that it does not hold."""
_OPENING: Final = encode_control(Work())


class OutgoingWorkChannel:
    """The channel for work towards one client."""

    __slots__ = ("_effects", "_link", "_next_record", "_unconfirmed", "_unconfirmed_bytes", "channel")

    def __init__(self, link: NativePeer, effects: list[Effect]) -> None:
        self.channel = 0
        """Its number; 0 before it is opened."""
        self._link = link
        self._effects = effects
        self._next_record = 0
        self._unconfirmed: deque[tuple[int, int]] = deque()
        """Record numbers and sizes."""
        self._unconfirmed_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether one more record may be sent, which may be larger than the rest of the window."""
        return self._unconfirmed_bytes < WORK_WINDOW_BYTES

    def send(self, group: FromBroker, payloads: Sequence[bytes] = ()) -> None:
        """Send a group as a record; open the channel first if necessary."""
        body = encode_group(group, payloads)
        if not self.channel:
            self.channel = self._link.take_channel()
            self._effects.append(OpenChannel(self._link.connection, self.channel))
            self._send(_OPENING)
        self._send(body)

    def _send(self, body: bytes) -> None:
        self._effects.append(SendRecord(self._link.connection, self.channel, body))
        size_bytes = len(body) + RECORD_COST_BYTES
        self._unconfirmed.append((self._next_record, size_bytes))
        self._unconfirmed_bytes += size_bytes
        self._next_record += 1

    def handle_confirm(self, record: int) -> None:
        """Free the window of all records up to this one: the client has processed them."""
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= record:
            self._unconfirmed_bytes -= unconfirmed.popleft()[1]


class AllTasks(dict[JobTask, None]):
    """Represents all tasks of a job in a pending update: they are listed when the update is sent."""


class SubmitResult(msgspec.Struct):
    """The result of one submission, for the reply that is sent when it is stored."""

    key: str
    job: Job | None = None
    agreed: int | None = None
    """The job's value in this turn: it is stored with the turn, while a later value may not be."""
    is_new: bool = False
    """False if the key was known."""
    code: int = 0
    text: str = ""
    """Why the submission was refused."""


class PendingRecord(msgspec.Struct):
    """A client's record that is not confirmed yet."""

    record: int
    body_bytes: int
    turn: int = 0
    """It is confirmed when this turn is stored."""
    results: list[SubmitResult] = []


class JobPeer:
    """One connection that takes part in jobs, as a controller, a worker or a watching client.

    Pending output is kept as references; the state to send is looked up when the window has room.
    """

    __slots__ = (
        "channel", "credit_due", "delayed_updates", "ended_updates", "held_updates", "is_worker", "leases", "link",
        "name", "records", "replies", "revokes", "session", "updates", "watched", "work_channel",
    )  # fmt: skip

    def __init__(self, link: NativePeer, session: Session, effects: list[Effect]) -> None:
        self.link = link
        self.session = session
        self.name = job_name(session)
        self.channel = 0
        """The number of the work channel that the client opened; 0 if it has none."""
        self.work_channel = OutgoingWorkChannel(link, effects)
        self.is_worker = False
        """Whether it volunteered on this connection."""
        self.records: deque[PendingRecord] = deque()
        """Unconfirmed records in order: confirming one confirms all before it."""
        self.credit_due: list[int] = []
        """Sizes of records whose credit is returned when the client has received the replies to them. So a client
        cannot fill the broker's memory with replies that it does not read."""
        self.replies: deque[SubmitReply] = deque()
        self.revokes: deque[tuple[Ref, str]] = deque()
        self.leases: deque[tuple[JobTask, int]] = deque()
        """With their fencing numbers: a lease that has ended meanwhile is not sent."""
        self.watched: dict[int, None] = {}
        """Numbers of jobs."""
        self.updates: OrderedDict[int, tuple[Job, dict[JobTask, None]]] = OrderedDict()
        """Updates to send: jobs and their changed tasks."""
        self.held_updates: dict[int, tuple[Job, dict[JobTask, None]]] = {}
        """Updates of jobs whose present state is not stored. They move to `updates` when it is."""
        self.delayed_updates: dict[int, tuple[Job, dict[JobTask, None]]] = {}
        """Updates about first leases, which are sent a little later."""
        self.ended_updates: deque[JobUpdate] = deque()
        """The ends of jobs that were deleted before the client received their updates."""


def job_peer(link: NativePeer, session: Session, effects: list[Effect]) -> JobPeer:
    """Return the JobPeer of a connection; create it if necessary."""
    peer = link.job_peer
    if peer is None:
        peer = link.job_peer = JobPeer(link, session, effects)
    return peer


@dataclass(eq=False)
class WorkReceiver:
    """Handles the records that clients send on their work channels: submissions and reports."""

    _catalogue: Catalogue
    _scheduler: Scheduler
    _commits: JobCommits
    _notifier: JobNotifier
    _activity: JobActivity
    _effects: list[Effect]

    def __post_init__(self) -> None:
        self._new_records: list[PendingRecord] = []
        """Records of this turn."""
        self._waiting: dict[JobPeer, None] = {}
        """Connections with unconfirmed records."""

    def handle_record(self, peer: JobPeer, event: Received, now_us: int) -> None:
        """Handle a record of a client. DecodeError if it is not a valid group."""
        if not event.reliable:
            raise DecodeError("work", "an unreliable record on a channel for work")
        body = event.body
        record = PendingRecord(event.record, len(body))
        if body or not event.last:  # an empty last record only ends the channel
            head, payloads = decode_from_client(body)
            if isinstance(head, SubmitGroup):
                self._submit(peer, head, payloads, record, now_us)
            else:
                self._report(peer, head, payloads, now_us)
        peer.records.append(record)
        self._new_records.append(record)
        self._waiting[peer] = None
        self._activity.is_active = self._activity.is_dirty = True

    # -- submissions --------------------------------------------------------------------------------------------------

    def _submit(
        self, peer: JobPeer, head: SubmitGroup, payloads: list[bytes], record: PendingRecord, now_us: int
    ) -> None:
        scheduler = self._scheduler
        notifier = self._notifier
        results = record.results
        refusals: dict[str, RequestFailure | None] = {}
        is_noted = False
        if notifier.is_full(peer):
            text = f"{peer.name} does not read the updates of its jobs: read them before submitting more"
            results += [SubmitResult(spec.key, code=Code.TOO_MANY, text=text) for spec in head.jobs]
            return
        for spec, payload in zip(head.jobs, payloads, strict=True):
            kind = spec.of_kind
            if kind not in refusals:  # most groups contain one kind
                refusals[kind] = self._refusal(peer, kind)
            next_job = scheduler.next_job
            try:
                if (refusal := refusals[kind]) is not None:
                    raise refusal
                if len(spec.key) * 4 > MAX_JOB_KEY_BYTES:  # a character has at most four bytes
                    require_short_key(spec.key)
                job = scheduler.submit(peer.name, spec, payload, now_us)
            except RequestFailure as failure:
                if not is_noted:  # one line for a group, however many jobs it has
                    is_noted = True
                    text = failure.text if failure.code is Code.NOT_ALLOWED else f"a job of {peer.name}: {failure.text}"
                    self._effects.append(refusal_notice(peer.session, failure.code, text))
                results.append(SubmitResult(spec.key, code=failure.code, text=failure.text))
            else:
                results.append(SubmitResult(spec.key, job, job.agreed, is_new=job.number >= next_job))
                notifier.watch(peer, job)

    def _refusal(self, peer: JobPeer, kind: str) -> RequestFailure | None:
        """Return why a client may not submit jobs of a kind, or None."""
        session = peer.session
        try:
            check_kind(kind)
            require_right(self._catalogue.settings.access, session, "submit", kind, f"submit jobs of the kind {kind!r}")
            if self._catalogue.get(JOBS + kind) is None:
                self._catalogue.create(JOBS + kind, creator=session.name)
        except RequestFailure as failure:
            return failure
        except BadKindError as error:
            return RequestFailure(Code.BAD_KIND, str(error))
        except TooManyTopicsError as error:
            return RequestFailure(Code.TOO_MANY, f"the events of the kind {kind!r} need a topic: {error}")
        return None

    # -- reports ------------------------------------------------------------------------------------------------------

    def _report(self, peer: JobPeer, head: ReportGroup, payloads: list[bytes], now_us: int) -> None:
        scheduler = self._scheduler
        notifier = self._notifier
        name = peer.name
        scheduler.renew_leases(name, now_us)
        for step in head.steps:
            task = scheduler.set_progress(name, step.task, step.progress, step.note)
            if task is not None:
                notifier.task_changed(task)
            elif not scheduler.has_result(step.task, name) and len(peer.revokes) < MAX_PENDING_REVOKES:
                notifier.revoke(peer, step.task, NOT_HELD)  # beyond the limit, a later report gets the revoke
        for outcome, payload in zip(head.outcomes, payloads, strict=True):
            # A late outcome, or one from a worker that never held the task, changes nothing. Its sender has finished
            # the task, so there is nothing to revoke.
            if outcome.error is None:
                scheduler.finish(name, outcome.task, payload, now_us)
            else:
                scheduler.fail(name, outcome.task, outcome.error, outcome.is_final, now_us)
        for lease in head.returned:
            scheduler.return_task(name, lease, now_us)

    # -- the end of a turn --------------------------------------------------------------------------------------------

    def finish_turn(self) -> None:
        """Let the records of this turn wait for its append, or for the append before if nothing was written."""
        if self._new_records:
            turn = self._commits.last_turn
            for record in self._new_records:
                record.turn = turn
            self._new_records.clear()

    def remove_peer(self, peer: JobPeer) -> None:
        """Forget a closed connection."""
        self._waiting.pop(peer, None)

    def confirm_stored(self) -> None:
        """Confirm the records whose changes are stored, and answer their submissions."""
        commits = self._commits
        for peer in [*self._waiting]:
            last: PendingRecord | None = None
            records = peer.records
            while records and (
                records[0].turn <= commits.stored_turn or (commits.is_failing and self._is_discarded(records[0]))
            ):
                last = records.popleft()
                peer.credit_due.append(last.body_bytes)
                if last.results:
                    self._reply(peer, last)
            if last is not None:
                self._effects.append(ConfirmRecord(peer.link.connection, peer.channel, last.record, 0, -1))
                self._notifier.mark_dirty(peer)
            if not records:
                del self._waiting[peer]

    def _is_discarded(self, record: PendingRecord) -> bool:
        """Return whether a record with unstored changes can be answered: a failed append has discarded its jobs."""
        return bool(record.results) and not any(map(self._is_open, record.results))

    def _is_open(self, result: SubmitResult) -> bool:
        job = result.job
        return job is not None and not job.is_stored and self._scheduler.jobs.get(job.number) is job

    def _reply(self, peer: JobPeer, record: PendingRecord) -> None:
        commits = self._commits
        is_stored = record.turn <= commits.stored_turn
        replies: list[SubmitReply] = []
        for result in record.results:
            job = result.job
            if job is None:
                replies.append(SubmitReply(key=result.key, code=result.code, text=result.text))
            elif job.is_stored:
                agreed = result.agreed if is_stored or not commits.is_unstored(job) else None
                replies.append(SubmitReply(key=result.key, job=job.number, agreed=agreed))
                if not result.is_new:
                    self._notifier.send_all(peer, job)  # a client that submits again may have missed updates
            else:
                replies.append(SubmitReply(key=result.key, code=Code.STORAGE, text=commits.failure))
        peer.replies.extend(replies)


def require_short_key(key: str) -> None:
    size_bytes = len(key.encode())
    if size_bytes > MAX_JOB_KEY_BYTES:
        raise RequestFailure(
            Code.MALFORMED, f"the key {shown(key)} is {size_bytes} bytes long: at most {MAX_JOB_KEY_BYTES} are allowed"
        )
