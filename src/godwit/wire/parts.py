"""A fast CBOR encoder for the items of work groups, which are most of what a busy broker encodes.

cbor2 takes its time for every value, and an item has a dozen: its field names, and values that are equal in one item
after another, such as the kind of work, the worker and the state. So repeated combinations are encoded once and cached,
and only the few values that differ are encoded for each item. The bytes are those of godwit.wire.cbor, which a test
compares.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import cbor2
import msgspec

if TYPE_CHECKING:
    from godwit.wire.jobs import Ref
    from godwit.wire.work import JobUpdate, LeasedTask, SubmitReply, TaskOutcome, TaskUpdate

Item = TypeVar("Item", bound=msgspec.Struct)
Pieces: TypeAlias = list[bytes]
"""Consecutive pieces of an encoded head."""

_CACHED: Final = 1024
"""The number of cached combinations of values (workers, states and so on)."""
_SMALL: Final = [cbor2.dumps(number) for number in range(1024)]
_MAPS: Final = [bytes([0xA0 + fields]) for fields in range(24)]
_U16: Final = struct.Struct(">BH")
_U32: Final = struct.Struct(">BI")
_U64: Final = struct.Struct(">BQ")
_KEY: Final = cbor2.dumps("key")
_JOB: Final = cbor2.dumps("job")
_SIZE: Final = cbor2.dumps("size")
_TASK: Final = cbor2.dumps("task")
_TASKS: Final = cbor2.dumps("tasks")
_LEASE: Final = _TASK + b"\x83"


def encode_items(kind: str, name: str, add: Callable[[Pieces, Iterable[Item]], None], items: Sequence[Item]) -> bytes:
    """Return the head of a group that consists of one list.

    Args:
        kind: the type of the group.
        name: the field that contains the list.
        add: the function of this module that encodes such items.
        items: the list.
    """
    pieces = [_prefix(kind, name), _length(0x80, len(items))]
    add(pieces, items)
    return b"".join(pieces)


@cache
def _prefix(kind: str, name: str) -> bytes:
    return b"".join((_MAPS[2], cbor2.dumps("kind"), cbor2.dumps(kind), cbor2.dumps(name)))


def _number(value: int) -> bytes:
    """Encode a number from 0 to 2**64 - 1."""
    if value < len(_SMALL):
        return _SMALL[value]
    if value < 1 << 16:
        return _U16.pack(0x19, value)
    return _U32.pack(0x1A, value) if value < 1 << 32 else _U64.pack(0x1B, value)


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


# -- items ------------------------------------------------------------------------------------------------------------


def add_outcomes(pieces: Pieces, outcomes: Iterable[TaskOutcome]) -> None:
    """Encode the items of a report."""
    for outcome in outcomes:
        count, rest = _repeated(type(outcome), 2, (outcome.error, outcome.is_final))
        if outcome.size:
            pieces += (_MAPS[2 + count], _lease(outcome.task), _SIZE, _number(outcome.size), rest)
        else:
            pieces += (_MAPS[1 + count], _lease(outcome.task), rest)


def add_replies(pieces: Pieces, jobs: Iterable[SubmitReply]) -> None:
    """Encode the replies to submissions."""
    for job in jobs:
        count, rest = _repeated(type(job), 2, (job.agreed, job.code, job.text))
        if job.job:
            pieces += (_MAPS[2 + count], _KEY, _text(job.key), _JOB, _number(job.job), rest)
        else:
            pieces += (_MAPS[1 + count], _KEY, _text(job.key), rest)


def add_leases(pieces: Pieces, tasks: Iterable[LeasedTask]) -> None:
    """Encode leases."""
    for task in tasks:
        count, origin = _repeated(type(task), 1, (task.of_kind, task.controller))
        more, rest = _repeated(type(task), 4, (task.agreed, task.failures, task.time_limit_ms, task.deadline_us))
        if task.size:
            pieces += (_MAPS[2 + count + more], _lease(task.task), origin, _SIZE, _number(task.size), rest)
        else:
            pieces += (_MAPS[1 + count + more], _lease(task.task), origin, rest)


def add_updates(pieces: Pieces, jobs: Iterable[JobUpdate]) -> None:
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
