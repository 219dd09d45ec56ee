"""State rows: the broker's durable state beside the message log, as broker and store exchange it.

The broker hands the store a list of changes with every append. A change is a row, which replaces the stored row with
the same key, or a deletion. The store writes changes in the same transaction as the batches that they belong to, and
returns all rows as a StoredState when the broker starts.

The store encodes a row as an array of its fields (godwit.store.state). A new field is therefore added at the end of its
struct, with a default: rows stored before have the default, and no migration is needed. Callers pass it by keyword.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from godwit.wire.control import Will
from godwit.wire.epochs import Epoch


class TopicRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A topic and its totals. Key: name."""

    name: str
    messages: int = 0
    payload_bytes: int = 0
    last_us: int = 0
    is_created: bool = False
    """A client or the configuration created it explicitly, so it is never removed to make room."""


class TopicDeleted(msgspec.Struct, frozen=True, gc=False):
    """An unused topic was removed to make room for others."""

    name: str


class RetainedRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The retained message of a topic; an empty payload deletes it. Key: topic."""

    topic: str
    payload: bytes
    publisher: str = ""
    published_us: int = 0
    received_us: int = 0
    qos: int = 0
    offset: int = 0
    extension: bytes | None = None


class SessionRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The session of a client. Key: name."""

    name: str
    instance: bytes
    is_proved: bool
    expiry_s: int
    ends_at_us: int | None
    """When the session expires; None while its client is connected."""
    will: Will | None = None
    principal: str | None = None
    """The name whose rights the client has, if that is not the name of the session."""
    will_extension: bytes | None = None
    will_delay_s: int = 0
    will_due_us: int | None = None
    """When the will of a client that is gone is published, unless it returns before."""


class SessionDeleted(msgspec.Struct, frozen=True, gc=False):
    """A session expired or was ended, with all its subscriptions."""

    name: str


class SubscriptionRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The position of a subscription. Key: session, filters and cursor."""

    session: str
    filters: tuple[str, ...]
    cursor: str | None
    resume_at: int
    lost: int = 0
    """Number of missed messages that the client has not been notified of."""
    quiet_from: int | None = None
    """No message for the subscription is between this offset and `resume_at`; None if that is unknown."""
    is_settled: bool = False
    """No message for the subscription is between `quiet_from` and the end of the log, where it resumes."""
    created_at: int = 0
    """The end of the log when the subscription of a session with changing filters was created, see FilterRow."""
    sent_below: int = 0
    """Of the same: messages below this offset may have been sent before."""
    high: int = 0
    """Of a consumer group: all messages from `resume_at` on below this offset are acknowledged, except `unfinished`."""
    unfinished: tuple[int, ...] = ()
    """Ranges of offsets: first, end, first, end, ..."""


class SubscriptionDeleted(msgspec.Struct, frozen=True, gc=False):
    """A subscription ended; one without filters, with its FilterRows and PacketRows."""

    session: str
    filters: tuple[str, ...]
    cursor: str | None


class FilterRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A filter of the one subscription that has no filters in its SubscriptionRow. Key: session and filter."""

    session: str
    filter: str
    since: int
    """Messages with smaller offsets do not match."""
    until: int | None = None
    """The client has unsubscribed: only messages below this offset match, because they may have been sent."""
    options: int = 0
    """What the protocol wants to remember of it."""
    identifier: int = 0
    """The client's own number for it; 0 if it gave none."""


class FilterDeleted(msgspec.Struct, frozen=True, gc=False):
    """A filter was removed, and every message that it matched has been delivered."""

    session: str
    filter: str


class PacketRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A handshake of QoS 2 that has begun, of a client whose protocol numbers packets. All fields are the key."""

    session: str
    is_outgoing: bool
    number: int
    """Incoming: the client's packet identifier of a stored message. Outgoing: the offset of a message that the client
    has received; it is not sent again."""


class PacketDeleted(msgspec.Struct, frozen=True, gc=False):
    """A handshake of QoS 2 has ended."""

    session: str
    is_outgoing: bool
    number: int


class IdentityRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The progress of a QoS 2 publisher on a topic. Key: owner, publisher and topic."""

    owner: str
    publisher: str
    topic: str
    epoch: int
    next_sequence: int
    last_us: int


class IdentityDeleted(msgspec.Struct, frozen=True, gc=False):
    """A publisher was idle for long and was removed to make room for others."""

    owner: str
    publisher: str
    topic: str


class QueryRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The newest committed batch of a query that stages messages in the archive. Key: query."""

    query: str
    batch: int
    last_us: int = 0
    """Time of the commit."""


class QueryDeleted(msgspec.Struct, frozen=True, gc=False):
    """A query was idle for long and was removed to make room for others."""

    query: str


class RelayRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How far this log has the messages of another one, which a bridge sends. Key: link and log."""

    link: str
    log: bytes
    offset: int
    """Everything below this offset of that log is in this one."""
    epochs: tuple[Epoch, ...] = ()
    """The epochs of that log with which the edge opened the bridge."""
    last_us: int = 0


class TaskRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A task of a job with several, or of a job that an older version has stored. Key: job and number."""

    job: int
    number: int
    state: str
    worker: str
    """The worker that holds the task, or held it last."""
    instance: bytes
    """The run of that worker."""
    fence: int
    failures: int
    losses: int
    begins_us: int
    """The task is not leased before this time; while it is leased, the start of the lease."""
    since_us: int
    previous_workers: tuple[str, ...] = ()
    result: bytes = b""
    error: str = ""


class JobRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A job; most are stored as this row alone. Key: job."""

    job: int
    controller: str
    key: str
    kind: str
    workers: int
    """0: all."""
    priority: int
    submitted_us: int
    begins_us: int
    deadline_us: int | None
    retries: int
    retry_delay_ms: int
    time_limit_ms: int | None
    state: str
    agreed: int | None
    ended_us: int | None
    reason: str = ""
    payload_bytes: int | None = None
    """The length of the payload, which is no longer stored when the job is done. None in older rows."""
    payload: bytes | None = None
    """None for a long payload: it never changes, and is written once, as a JobPayloadRow."""
    task: TaskRow | None = None
    """The task of a job with one task. None for one that was never leased and has not ended."""


class JobPayloadRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A long payload. Older versions stored every payload so. A job without any payload has lost it. Key: job."""

    job: int
    payload: bytes


class JobDeleted(msgspec.Struct, frozen=True, gc=False):
    """A job that ended long ago was removed, with its payload and its tasks."""

    job: int


class NextJobRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The number of the next job. No number is used twice, or a late report could refer to another job."""

    job: int


StateRow: TypeAlias = (
    TopicRow
    | RetainedRow
    | SessionRow
    | SubscriptionRow
    | FilterRow
    | PacketRow
    | IdentityRow
    | QueryRow
    | RelayRow
    | JobRow
    | JobPayloadRow
    | TaskRow
    | NextJobRow
)
Change: TypeAlias = (
    StateRow
    | TopicDeleted
    | SessionDeleted
    | SubscriptionDeleted
    | FilterDeleted
    | PacketDeleted
    | IdentityDeleted
    | QueryDeleted
    | JobDeleted
)


def job_parts(row: JobRow) -> tuple[JobRow, JobPayloadRow | None, TaskRow | None]:
    """Return the row of a job without payload and task, and the rows of both if it contains them."""
    payload, task = row.payload, row.task
    if payload is None and task is None:
        return row, None, None
    payload_row = None if payload is None else JobPayloadRow(row.job, payload)
    return msgspec.structs.replace(row, payload=None, task=None), payload_row, task


class StoredState(msgspec.Struct):
    """All stored rows. Jobs, payloads and tasks are ordered by number, topics by name.

    The rows of jobs are without their payloads and tasks, which are among those of the others (job_parts).
    """

    topics: list[TopicRow] = []
    retained: list[RetainedRow] = []
    sessions: list[SessionRow] = []
    subscriptions: list[SubscriptionRow] = []
    identities: list[IdentityRow] = []
    """Ordered by last use, oldest first."""
    queries: list[QueryRow] = []
    """Ordered by last use, oldest first."""
    next_job: int = 1
    jobs: list[JobRow] = []
    payloads: list[JobPayloadRow] = []
    tasks: list[TaskRow] = []
    retention_floors: dict[str, int] = {}
    """Offsets below which retention deleted messages, by the filter of its rule (godwit.wire.retention_floors)."""
    filters: list[FilterRow] = []
    packets: list[PacketRow] = []
    relays: list[RelayRow] = []
