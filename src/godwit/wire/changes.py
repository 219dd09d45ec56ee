"""What changes beside the log and outlives a restart: how broker and store hand it to each other.

A change says what is so from now on; the store keeps the newest of each key, in the same transaction as the batches
that it belongs to. State is all that is kept, as a broker needs it at its start.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from godwit.wire.control import Will


class TopicKept(msgspec.Struct, frozen=True, gc=False):
    """A topic is there; how much has been published to it."""

    name: str
    messages: int = 0
    payload_bytes: int = 0
    last_us: int = 0
    is_created: bool = False
    """Somebody asked for it, or the configuration did: it stays, whether it is used or not."""


class TopicGone(msgspec.Struct, frozen=True, gc=False):
    """Nobody used it, and others needed the room."""

    name: str


class RetainedKept(msgspec.Struct, frozen=True, gc=False):
    """The retained message of a topic; without a payload there is none any more."""

    topic: str
    payload: bytes
    publisher: str = ""
    published_us: int = 0
    received_us: int = 0
    qos: int = 0
    offset: int = 0


class SessionKept(msgspec.Struct, frozen=True, gc=False):
    """A client by its name."""

    name: str
    instance: bytes
    is_proved: bool
    expiry_s: int
    ends_at_us: int | None
    """When it is forgotten; None while its client is connected."""
    will: Will | None = None


class SessionGone(msgspec.Struct, frozen=True, gc=False):
    """It is forgotten, with all its subscriptions."""

    name: str


class FeedKept(msgspec.Struct, frozen=True, gc=False):
    """How far a subscription has come. Its key: session, filters and cursor."""

    session: str
    filters: tuple[str, ...]
    cursor: str | None
    resume_at: int
    lost: int = 0
    """Messages that it missed and has not been told of."""
    quiet_from: int | None = None
    """Nothing for the subscription is between here and `resume_at`; None: nothing is known of what is before that."""
    is_settled: bool = False
    """Nothing for the subscription is between `quiet_from` and the end of the log: that is where it resumes."""


class FeedGone(msgspec.Struct, frozen=True, gc=False):
    session: str
    filters: tuple[str, ...]
    cursor: str | None


class IdentityKept(msgspec.Struct, frozen=True, gc=False):
    """What is known of a publisher of QoS 2 on a topic. Its key: owner, publisher and topic."""

    owner: str
    publisher: str
    topic: str
    epoch: int
    next_sequence: int
    last_us: int


class IdentityGone(msgspec.Struct, frozen=True, gc=False):
    owner: str
    publisher: str
    topic: str


class QueryDone(msgspec.Struct, frozen=True, gc=False):
    """The batches of a query, staged in the archive, are in the log up to this one."""

    query: str
    batch: int
    last_us: int = 0
    """When the last one came."""


class QueryGone(msgspec.Struct, frozen=True, gc=False):
    """It has brought nothing for long, and others needed the room."""

    query: str


class JobKept(msgspec.Struct, frozen=True, gc=False):
    """A job as it stands. What never changes of it but may be long, its payload, is a JobPayload."""

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


class JobPayload(msgspec.Struct, frozen=True, gc=False):
    """Of a new job, also when it is empty: a job without one is known to have lost it."""

    job: int
    payload: bytes


class JobGone(msgspec.Struct, frozen=True, gc=False):
    """It ended long ago: it is forgotten with its payload and its tasks."""

    job: int


class TaskKept(msgspec.Struct, frozen=True, gc=False):
    """A task as it stands. Its key: job and number."""

    job: int
    number: int
    state: str
    worker: str
    """Who has it, or had it last."""
    instance: bytes
    """Which run of the worker."""
    fence: int
    failures: int
    losses: int
    begins_us: int
    """Not leased again before; while it is leased, when that began."""
    since_us: int
    had: tuple[str, ...] = ()
    """Workers that had it before."""
    result: bytes = b""
    error: str = ""


class NextJob(msgspec.Struct, frozen=True, gc=False):
    """The number of the next job: none is ever given twice, or a late report could mean another one."""

    job: int


Change: TypeAlias = (
    TopicKept
    | TopicGone
    | RetainedKept
    | SessionKept
    | SessionGone
    | FeedKept
    | FeedGone
    | IdentityKept
    | IdentityGone
    | QueryDone
    | QueryGone
    | JobKept
    | JobPayload
    | JobGone
    | TaskKept
    | NextJob
)


class State(msgspec.Struct):
    """Everything that is kept, each list by its key."""

    topics: list[TopicKept] = []
    retained: list[RetainedKept] = []
    sessions: list[SessionKept] = []
    feeds: list[FeedKept] = []
    identities: list[IdentityKept] = []
    """The one that was silent for longest first."""
    queries: list[QueryDone] = []
    """The one that was silent for longest first."""
    next_job: int = 1
    jobs: list[JobKept] = []
    """By their numbers, as payloads and tasks are."""
    payloads: list[JobPayload] = []
    tasks: list[TaskKept] = []
    marks: dict[str, int] = {}
    """Filters of retention rules, and up to which offset messages of their topics were deleted."""
