"""Work groups: records on channels of their own, one opened by the client and one by the broker.

    head length u32 | head (a CBOR map) | payloads, one after another

The `kind` of the head is the type of the group. Each item that has a payload contains its size; the payloads follow in
the order of the items. So a broker can forward a payload without decoding it, and the CBOR part remains small.

    a client sends    the broker sends
    submit            taken       the reply to each submission, when it is stored
    report            lease       tasks to do
                      revoke      leases that have ended
                      update      changes of jobs that the client watches

A fast CBOR encoder writes the items of most groups, which are most of what a busy broker encodes. cbor2 takes its time
for every value, and an item has a dozen: its field names, and values that are equal in one item after another, such as
the kind of work, the worker and the state. So repeated combinations are encoded once and cached, and only the few
values that differ are encoded for each item. The bytes are those of godwit.wire.cbor, which a test compares.

Record 0 of either channel is the control message `work`. The broker confirms a client's record when its changes are
stored; the client confirms a broker's record when it has processed it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import Annotated, Any, Final, TypeAlias

import cbor2
import msgspec

from godwit.errors import DecodeError
from godwit.limits import MAX_GROUP, MAX_JOB_PAYLOAD_BYTES, MAX_WORK_HEAD_BYTES, MAX_WORK_ITEMS
from godwit.wire import cbor
from godwit.wire.control_base import CodeNumber, Count, Fraction, Text
from godwit.wire.jobs import JobSpec, JobState, Ref, Size, TaskState

_U32: Final = struct.Struct(">I")
_size_of: Final = attrgetter("size")


class GroupItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An item of a group. Items are many and hold plain data, so the garbage collector does not track them."""


class WorkGroup(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """The head of a record."""


# -- from clients -----------------------------------------------------------------------------------------------------


class SubmitGroup(WorkGroup, frozen=True, kw_only=True, tag="submit"):
    """New jobs, from a controller. Their payloads follow."""

    jobs: Annotated[list[JobSpec], msgspec.Meta(min_length=1, max_length=MAX_GROUP)]


class TaskOutcome(GroupItem, frozen=True, kw_only=True):
    """How a task ended: with a result, which is its payload, or with an error."""

    task: Ref
    size: Size = 0
    error: Text | None = None
    is_final: bool = False
    """For an error: do not try the task again."""


class ProgressReport(GroupItem, frozen=True, kw_only=True):
    """The progress of a task."""

    task: Ref
    progress: Fraction | None = None
    note: Text = ""


class ReportGroup(WorkGroup, frozen=True, kw_only=True, tag="report"):
    """A report of a worker. It renews all leases of the worker, even if it is empty."""

    outcomes: Annotated[list[TaskOutcome], msgspec.Meta(max_length=MAX_GROUP)] = []
    steps: Annotated[list[ProgressReport], msgspec.Meta(max_length=MAX_GROUP)] = []
    returned: Annotated[list[Ref], msgspec.Meta(max_length=MAX_GROUP)] = []
    """Tasks that it returns undone."""


# -- from the broker --------------------------------------------------------------------------------------------------


class SubmitReply(GroupItem, frozen=True, kw_only=True):
    """The number of a submitted job, or why it was refused."""

    key: str
    job: Count = 0
    agreed: Count | None = None
    """The number of its tasks; None before it is settled."""
    code: CodeNumber = 0
    text: str = ""


class SubmitReplyGroup(WorkGroup, frozen=True, kw_only=True, tag="taken"):
    """Replies to submissions."""

    jobs: list[SubmitReply]


class LeasedTask(GroupItem, frozen=True, kw_only=True):
    """A lease, with the job's payload."""

    task: Ref
    of_kind: str
    controller: str
    size: Size = 0
    agreed: Count = 1
    """The number of tasks of the job."""
    failures: Count = 0
    """Earlier attempts that failed."""
    time_limit_ms: Count | None = None
    deadline_us: Count | None = None


class LeaseGroup(WorkGroup, frozen=True, kw_only=True, tag="lease"):
    """Tasks for a worker. Their payloads follow."""

    tasks: list[LeasedTask]


class RevokeGroup(WorkGroup, frozen=True, kw_only=True, tag="revoke"):
    """Leases that have ended: the worker should stop, because their results will be ignored."""

    tasks: list[Ref]
    reason: str = ""


class TaskUpdate(GroupItem, frozen=True, kw_only=True):
    """The state of a task. A result is its payload."""

    task: Count
    state: TaskState
    worker: str = ""
    fence: Count = 0
    failures: Count = 0
    losses: Count = 0
    progress: Fraction | None = None
    note: str = ""
    error: str = ""
    size: Size = 0


class JobUpdate(GroupItem, frozen=True, kw_only=True):
    """The state of a job, and those of its tasks that changed since the last update on this connection."""

    job: Count
    state: JobState
    agreed: Count | None = None
    reason: str = ""
    tasks: list[TaskUpdate] = []


class UpdateGroup(WorkGroup, frozen=True, kw_only=True, tag="update"):
    """Changes of watched jobs. The results of their tasks follow."""

    jobs: list[JobUpdate]


FromClient: TypeAlias = SubmitGroup | ReportGroup
FromBroker: TypeAlias = SubmitReplyGroup | LeaseGroup | RevokeGroup | UpdateGroup


# -- encoding ---------------------------------------------------------------------------------------------------------

Pieces: TypeAlias = list[bytes]
"""Consecutive pieces of an encoded head."""

_CACHED: Final = 1024
"""The number of cached combinations of values (workers, states and so on)."""
_SMALL: Final = [cbor2.dumps(number) for number in range(1024)]
_MAPS: Final = [bytes([0xA0 + fields]) for fields in range(24)]
_CBOR_U16: Final = struct.Struct(">BH")
_CBOR_U32: Final = struct.Struct(">BI")
_CBOR_U64: Final = struct.Struct(">BQ")
_KEY: Final = cbor2.dumps("key")
_JOB: Final = cbor2.dumps("job")
_SIZE: Final = cbor2.dumps("size")
_TASK: Final = cbor2.dumps("task")
_TASKS: Final = cbor2.dumps("tasks")
_LEASE: Final = _TASK + b"\x83"


@cache
def _prefix(kind: str, name: str) -> bytes:
    return b"".join((_MAPS[2], cbor2.dumps("kind"), cbor2.dumps(kind), cbor2.dumps(name)))


def _number(value: int) -> bytes:
    """Encode a number from 0 to 2**64 - 1."""
    if value < len(_SMALL):
        return _SMALL[value]
    if value < 1 << 16:
        return _CBOR_U16.pack(0x19, value)
    return _CBOR_U32.pack(0x1A, value) if value < 1 << 32 else _CBOR_U64.pack(0x1B, value)


def _text(value: str) -> bytes:
    data = value.encode()
    return _length(0x60, len(data)) + data


def _length(major: int, length: int) -> bytes:
    """Encode the start of a text (major 0x60) or an array (0x80)."""
    if length < 24:
        return bytes((major + length,))
    head = _number(length)
    return bytes((major + head[0],)) + head[1:]


def _lease(ref: Ref) -> bytes:
    """Encode the field `task` of an item."""
    job, task, fence = ref
    if job < 1024 and task < 1024 and fence < 1024:
        return _LEASE + _SMALL[job] + _SMALL[task] + _SMALL[fence]
    return _LEASE + _number(job) + _number(task) + _number(fence)


@lru_cache(maxsize=_CACHED)
def _repeated(kind: type[msgspec.Struct], first: int, values: tuple[Any, ...]) -> tuple[int, bytes]:
    """Return the number and the bytes of a struct's fields from the index `first` on; defaults are omitted."""
    pairs = zip(_fields(kind)[first:], values, strict=False)
    present = [(name, value) for (name, default), value in pairs if value != default]
    return len(present), b"".join([cbor2.dumps(name) + cbor2.dumps(value) for name, value in present])


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Return the names and defaults of a struct's fields."""
    return [(field.name, field.default) for field in msgspec.structs.fields(kind)]


def _add_outcomes(pieces: Pieces, outcomes: Iterable[TaskOutcome]) -> None:
    """Encode the items of a report."""
    for outcome in outcomes:
        count, rest = _repeated(type(outcome), 2, (outcome.error, outcome.is_final))
        if outcome.size:
            pieces += (_MAPS[2 + count], _lease(outcome.task), _SIZE, _number(outcome.size), rest)
        else:
            pieces += (_MAPS[1 + count], _lease(outcome.task), rest)


def _add_replies(pieces: Pieces, jobs: Iterable[SubmitReply]) -> None:
    """Encode the replies to submissions."""
    for job in jobs:
        count, rest = _repeated(type(job), 2, (job.agreed, job.code, job.text))
        if job.job:
            pieces += (_MAPS[2 + count], _KEY, _text(job.key), _JOB, _number(job.job), rest)
        else:
            pieces += (_MAPS[1 + count], _KEY, _text(job.key), rest)


def _add_leases(pieces: Pieces, tasks: Iterable[LeasedTask]) -> None:
    """Encode leases."""
    for task in tasks:
        count, origin = _repeated(type(task), 1, (task.of_kind, task.controller))
        more, rest = _repeated(type(task), 4, (task.agreed, task.failures, task.time_limit_ms, task.deadline_us))
        if task.size:
            pieces += (_MAPS[2 + count + more], _lease(task.task), origin, _SIZE, _number(task.size), rest)
        else:
            pieces += (_MAPS[1 + count + more], _lease(task.task), origin, rest)


def _add_updates(pieces: Pieces, jobs: Iterable[JobUpdate]) -> None:
    """Encode updates of jobs, with their tasks."""
    for job in jobs:
        count, rest = _repeated(type(job), 1, (job.state, job.agreed, job.reason))
        pieces += (_MAPS[1 + count + bool(job.tasks)], _JOB, _number(job.job), rest)
        if job.tasks:
            pieces += (_TASKS, _length(0x80, len(job.tasks)))
            _add_tasks(pieces, job.tasks)


def _add_tasks(pieces: Pieces, tasks: Iterable[TaskUpdate]) -> None:
    for task in tasks:
        values = (
            task.state, task.worker, task.fence, task.failures, task.losses, task.progress, task.note, task.error
        )  # fmt: skip
        count, rest = _repeated(type(task), 1, values)
        if task.size:
            pieces += (_MAPS[2 + count], _TASK, _number(task.task), rest, _SIZE, _number(task.size))
        else:
            pieces += (_MAPS[1 + count], _TASK, _number(task.task), rest)


_LISTS: Final[dict[type[WorkGroup], tuple[str, str, Callable[[Pieces, Any], None]]]] = {
    UpdateGroup: ("update", "jobs", _add_updates),
    SubmitReplyGroup: ("taken", "jobs", _add_replies),
    LeaseGroup: ("lease", "tasks", _add_leases),
    ReportGroup: ("report", "outcomes", _add_outcomes),
}
"""Groups that consist of one list: the kind, the name of the list, and the fast encoder of its items."""


def encode_group(head: FromClient | FromBroker, payloads: Sequence[bytes] = ()) -> bytes:
    """Return a record.

    Args:
        head: the group.
        payloads: the payloads of its items in order; items without a payload (size 0) are skipped.
    """
    entry = _LISTS.get(type(head))
    if isinstance(head, ReportGroup) and (not head.outcomes or head.steps or head.returned):
        entry = None
    if entry is None:
        encoded = cbor.encode(head)
    else:
        kind, name, add = entry
        items = getattr(head, name)
        pieces = [_prefix(kind, name), _length(0x80, len(items))]
        add(pieces, items)
        encoded = b"".join(pieces)
    return b"".join((_U32.pack(len(encoded)), encoded, *payloads))


# -- decoding ---------------------------------------------------------------------------------------------------------


def decode_from_client(record: bytes) -> tuple[FromClient, list[bytes]]:
    """Return the head, and a payload for each submission or outcome.

    Raises:
        DecodeError: the record is not a valid group of a client.
    """
    head: FromClient
    head, at = _decode_head(record, FromClient, MAX_WORK_ITEMS)
    items: Sequence[JobSpec | TaskOutcome] = head.jobs if isinstance(head, SubmitGroup) else head.outcomes
    return head, _split_payloads(record, at, list(map(_size_of, items)))


def decode_from_broker(record: bytes) -> tuple[FromBroker, list[bytes]]:
    """Return the head, and a payload for each leased task, or for each task of each update.

    Raises:
        DecodeError: the record is not a valid group of a broker.
    """
    head: FromBroker
    head, at = _decode_head(record, FromBroker)
    sizes: list[int] = []
    if isinstance(head, LeaseGroup):
        sizes = list(map(_size_of, head.tasks))
    elif isinstance(head, UpdateGroup):
        sizes = [task.size for job in head.jobs for task in job.tasks]
    return head, _split_payloads(record, at, sizes)


def _decode_head(record: bytes, kind: Any, max_items: int | None = None) -> tuple[Any, int]:
    if len(record) < _U32.size:
        raise DecodeError("work", "a record without a head")
    (size,) = _U32.unpack_from(record)
    end = _U32.size + size
    if size > MAX_WORK_HEAD_BYTES or end > len(record):
        raise DecodeError("work", f"a head of {size} bytes in a record of {len(record)}")
    return cbor.convert(cbor.load(record[_U32.size : end], max_items=max_items), kind), end


def _split_payloads(record: bytes, at: int, sizes: list[int]) -> list[bytes]:
    payload_bytes = len(record) - at
    if sum(sizes) != payload_bytes:
        raise DecodeError("work", f"{payload_bytes} bytes of payloads where the head announces {sum(sizes)}")
    if payload_bytes > MAX_JOB_PAYLOAD_BYTES:
        raise DecodeError("work", f"{payload_bytes} bytes of payloads in a group, at most {MAX_JOB_PAYLOAD_BYTES}")
    payloads = []
    for size in sizes:
        payloads.append(record[at : at + size])
        at += size
    return payloads
