"""Work in groups, on channels of its own: one that the client opens, and one that the broker opens.

    head length u32 | head (a CBOR map) | payloads, one after another

The head's `kind` says what it is. Each part that has a payload says how long it is; the payloads follow in the order of
the parts. So a broker that hands a payload on never looks into it, and what CBOR has to decode stays small.

    a client sends    the broker sends
    submit            taken       its answer to each submission, once that is safe
    report            lease       tasks to do
                      revoke      leases that have ended
                      update      what became of jobs that the client watches

Record 0 of either channel is the control message `work`. The broker confirms a client's record when all that it says
is safe; the client confirms a broker's record when it has taken it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from godwit.errors import DecodeError
from godwit.limits import (
    MAX_GROUP,
    MAX_JOB_KEY_BYTES,
    MAX_JOB_PAYLOAD_BYTES,
    MAX_JOB_TIME_MS,
    MAX_RETRIES,
    MAX_TASKS_OF_JOB,
    MAX_WORK_HEAD_BYTES,
    MAX_WORK_ITEMS,
)
from godwit.wire import cbor
from godwit.wire.control_base import CodeNumber, Count, Fraction, Text
from godwit.wire.jobs import JobState, Kind, Priority, Ref, TaskState
from godwit.wire.parts import add_leases, add_outcomes, add_taken, add_updates, encode_parts

_U32: Final = struct.Struct(">I")
_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_JOB_PAYLOAD_BYTES)]
_Duration: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_JOB_TIME_MS)]
_Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_JOB_TIME_MS)]
_Key: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_JOB_KEY_BYTES)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One of a group. They are many and hold plain data: nothing for the garbage collector to look at."""


class _Group(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """The head of a record."""


# -- from clients -----------------------------------------------------------------------------------------------------


class Submission(_Part, frozen=True, kw_only=True):
    """A job, as a controller asks for it."""

    key: _Key
    """The controller's own word for it: the same one again is the same job, not another."""
    of_kind: Kind
    size: _Size = 0
    """Of its payload."""
    workers: Annotated[int, msgspec.Meta(ge=0, le=MAX_TASKS_OF_JOB)] = 1
    """0: all."""
    priority: Priority = 0
    delay_ms: _Duration = 0
    deadline_ms: _Limit | None = None
    """From now on; a job that has not ended by then fails."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=MAX_RETRIES)] = 3
    """How often a task is tried again after it failed."""
    retry_delay_ms: _Duration = 1000
    """Before the first retry; it doubles with each."""
    time_limit_ms: _Limit | None = None
    """One attempt may take so long; longer ones count as failed."""


class Submit(_Group, frozen=True, kw_only=True, tag="submit"):
    jobs: Annotated[list[Submission], msgspec.Meta(min_length=1, max_length=MAX_GROUP)]


class Outcome(_Part, frozen=True, kw_only=True):
    """How a task ended: with a result, which is its payload, or with an error."""

    task: Ref
    size: _Size = 0
    error: Text | None = None
    is_final: bool = False
    """Of a failure: to try again would not help."""


class Step(_Part, frozen=True, kw_only=True):
    """How far a task is."""

    task: Ref
    progress: Fraction | None = None
    note: Text = ""


class Report(_Group, frozen=True, kw_only=True, tag="report"):
    """From a worker. An empty one is a sign of life, which every one is for all its leases."""

    outcomes: Annotated[list[Outcome], msgspec.Meta(max_length=MAX_GROUP)] = []
    steps: Annotated[list[Step], msgspec.Meta(max_length=MAX_GROUP)] = []
    returned: Annotated[list[Ref], msgspec.Meta(max_length=MAX_GROUP)] = []
    """Tasks that it hands back undone."""


# -- from the broker --------------------------------------------------------------------------------------------------


class TakenJob(_Part, frozen=True, kw_only=True):
    """Its number, or why it was not taken."""

    key: str
    job: Count = 0
    agreed: Count | None = None
    """How many workers will do it; None: there is none yet."""
    code: CodeNumber = 0
    text: str = ""


class Taken(_Group, frozen=True, kw_only=True, tag="taken"):
    jobs: list[TakenJob]


class LeasedTask(_Part, frozen=True, kw_only=True):
    task: Ref
    of_kind: str
    controller: str
    size: _Size = 0
    agreed: Count = 1
    """How many tasks the job has."""
    failures: Count = 0
    """Attempts before this one that failed."""
    time_limit_ms: Count | None = None
    deadline_us: Count | None = None


class Lease(_Group, frozen=True, kw_only=True, tag="lease"):
    tasks: list[LeasedTask]


class Revoke(_Group, frozen=True, kw_only=True, tag="revoke"):
    """Stop: what these tasks would bring is not wanted any more."""

    tasks: list[Ref]
    reason: str = ""


class TaskUpdate(_Part, frozen=True, kw_only=True):
    """How a task stands. A result is its payload."""

    task: Count
    state: TaskState
    worker: str = ""
    fence: Count = 0
    failures: Count = 0
    losses: Count = 0
    progress: Fraction | None = None
    note: str = ""
    error: str = ""
    size: _Size = 0


class JobUpdate(_Part, frozen=True, kw_only=True):
    """How a job stands, and those of its tasks that changed since the last update on this connection."""

    job: Count
    state: JobState
    agreed: Count | None = None
    reason: str = ""
    tasks: list[TaskUpdate] = []


class Update(_Group, frozen=True, kw_only=True, tag="update"):
    jobs: list[JobUpdate]


FromClient: TypeAlias = Submit | Report
FromBroker: TypeAlias = Taken | Lease | Revoke | Update


def encode_group(head: FromClient | FromBroker, payloads: Sequence[bytes] = ()) -> bytes:
    """A record. The payloads are those of its parts, in their order; parts without one bring none."""
    encoded = _encode_head(head)
    return b"".join((_U32.pack(len(encoded)), encoded, *payloads))


def _encode_head(head: FromClient | FromBroker) -> bytes:
    if isinstance(head, Update):
        return encode_parts("update", "jobs", add_updates, head.jobs)
    if isinstance(head, Taken):
        return encode_parts("taken", "jobs", add_taken, head.jobs)
    if isinstance(head, Lease):
        return encode_parts("lease", "tasks", add_leases, head.tasks)
    if isinstance(head, Report) and head.outcomes and not head.steps and not head.returned:
        return encode_parts("report", "outcomes", add_outcomes, head.outcomes)
    return cbor.encode(head)


def decode_from_client(record: bytes) -> tuple[FromClient, list[bytes]]:
    """The head, and a payload for each submission or outcome; DecodeError if it is none."""
    head: FromClient
    head, at = _head(record, FromClient, MAX_WORK_ITEMS)
    parts: Sequence[Submission | Outcome] = head.jobs if isinstance(head, Submit) else head.outcomes
    return head, _cut(record, at, [part.size for part in parts])


def decode_from_broker(record: bytes) -> tuple[FromBroker, list[bytes]]:
    """The head, and a payload for each leased task, or each task of each update; DecodeError if it is none."""
    head: FromBroker
    head, at = _head(record, FromBroker)
    sizes: list[int] = []
    if isinstance(head, Lease):
        sizes = [task.size for task in head.tasks]
    elif isinstance(head, Update):
        sizes = [task.size for job in head.jobs for task in job.tasks]
    return head, _cut(record, at, sizes)


def _head(record: bytes, kind: Any, max_items: int | None = None) -> tuple[Any, int]:
    if len(record) < _U32.size:
        raise DecodeError("work", "a record without a head")
    (size,) = _U32.unpack_from(record)
    end = _U32.size + size
    if size > MAX_WORK_HEAD_BYTES or end > len(record):
        raise DecodeError("work", f"a head of {size} bytes in a record of {len(record)}")
    return cbor.decode(record[_U32.size : end], kind, max_items=max_items), end


def _cut(record: bytes, at: int, sizes: list[int]) -> list[bytes]:
    payload_bytes = len(record) - at
    if sum(sizes) != payload_bytes:
        raise DecodeError("work", f"{payload_bytes} bytes of payloads where the head says {sum(sizes)}")
    if payload_bytes > MAX_JOB_PAYLOAD_BYTES:
        raise DecodeError("work", f"{payload_bytes} bytes of payloads in a group, at most {MAX_JOB_PAYLOAD_BYTES}")
    payloads = []
    for size in sizes:
        payloads.append(record[at : at + size])
        at += size
    return payloads
