"""Work groups: records on channels of their own, one opened by the client and one by the broker.

    head length u32 | head (a CBOR map) | payloads, one after another

The `kind` of the head is the type of the group. Each item that has a payload contains its size; the payloads follow in
the order of the items. So a broker can forward a payload without decoding it, and the CBOR part remains small.

    a client sends    the broker sends
    submit            taken       the reply to each submission, when it is stored
    report            lease       tasks to do
                      revoke      leases that have ended
                      update      changes of jobs that the client watches

Record 0 of either channel is the control message `work`. The broker confirms a client's record when its changes are
stored; the client confirms a broker's record when it has processed it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from godwit.errors import DecodeError
from godwit.limits import MAX_GROUP, MAX_JOB_PAYLOAD_BYTES, MAX_WORK_HEAD_BYTES, MAX_WORK_ITEMS
from godwit.wire import cbor
from godwit.wire.control_base import CodeNumber, Count, Fraction, Text
from godwit.wire.jobs import JobSpec, JobState, Ref, Size, TaskState
from godwit.wire.parts import add_leases, add_outcomes, add_replies, add_updates, encode_items

_U32: Final = struct.Struct(">I")


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

_LISTS: Final[dict[type[WorkGroup], tuple[str, str, Callable[[list[bytes], Any], None]]]] = {
    UpdateGroup: ("update", "jobs", add_updates),
    SubmitReplyGroup: ("taken", "jobs", add_replies),
    LeaseGroup: ("lease", "tasks", add_leases),
}
"""Groups that consist of one list: the kind, the name of the list, and the fast encoder of its items."""


def encode_group(head: FromClient | FromBroker, payloads: Sequence[bytes] = ()) -> bytes:
    """Return a record.

    Args:
        head: the group.
        payloads: the payloads of its items in order; items without a payload (size 0) are skipped.
    """
    entry = _LISTS.get(type(head))
    if entry is not None:
        kind, name, add = entry
        encoded = encode_items(kind, name, add, getattr(head, name))
    elif isinstance(head, ReportGroup) and head.outcomes and not head.steps and not head.returned:
        encoded = encode_items("report", "outcomes", add_outcomes, head.outcomes)
    else:
        encoded = cbor.encode(head)
    return b"".join((_U32.pack(len(encoded)), encoded, *payloads))


def decode_from_client(record: bytes) -> tuple[FromClient, list[bytes]]:
    """Return the head, and a payload for each submission or outcome.

    Raises:
        DecodeError: the record is not a valid group of a client.
    """
    head: FromClient
    head, at = _decode_head(record, FromClient, MAX_WORK_ITEMS)
    items: Sequence[JobSpec | TaskOutcome] = head.jobs if isinstance(head, SubmitGroup) else head.outcomes
    return head, _split_payloads(record, at, [item.size for item in items])


def decode_from_broker(record: bytes) -> tuple[FromBroker, list[bytes]]:
    """Return the head, and a payload for each leased task, or for each task of each update.

    Raises:
        DecodeError: the record is not a valid group of a broker.
    """
    head: FromBroker
    head, at = _decode_head(record, FromBroker)
    sizes: list[int] = []
    if isinstance(head, LeaseGroup):
        sizes = [task.size for task in head.tasks]
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
    return cbor.decode(record[_U32.size : end], kind, max_items=max_items), end


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
