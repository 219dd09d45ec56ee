"""The parts of groups as CBOR: most of what a busy broker encodes, so it is done by hand.

cbor2 takes its time for every value, and a part has a dozen: its field names, and values that are the same in part
after part, as the kind of work, the worker, the state. So what repeats is encoded once and remembered, and only the few
values that differ are encoded for each part. The bytes are those of godwit.wire.cbor; a test compares.
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
    from godwit.wire.work import JobUpdate, LeasedTask, Outcome, TakenJob, TaskUpdate

Part = TypeVar("Part", bound=msgspec.Struct)
Pieces: TypeAlias = list[bytes]
"""Bytes that stand one behind another."""

_REMEMBERED: Final = 1024
"""Combinations of values: some workers, states and so on, each with each."""
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


def encode_parts(kind: str, name: str, add: Callable[[Pieces, Iterable[Part]], None], parts: Sequence[Part]) -> bytes:
    """The head of a group that has nothing but one list of parts, under this name."""
    pieces = [_begin(kind, name), _array(len(parts))]
    add(pieces, parts)
    return b"".join(pieces)


@cache
def _begin(kind: str, name: str) -> bytes:
    return b"".join((_MAPS[2], cbor2.dumps("kind"), cbor2.dumps(kind), cbor2.dumps(name)))


def _number(value: int) -> bytes:
    """Of 64 bits, not negative."""
    if value < len(_SMALL):
        return _SMALL[value]
    if value < 1 << 16:
        return _U16.pack(0x19, value)
    return _U32.pack(0x1A, value) if value < 1 << 32 else _U64.pack(0x1B, value)


def _text(value: str) -> bytes:
    data = value.encode()
    return _length(0x60, len(data)) + data


def _array(length: int) -> bytes:
    """What so many values stand behind."""
    return _length(0x80, length)


def _length(kind: int, length: int) -> bytes:
    if length < 24:
        return bytes((kind + length,))
    head = _number(length)
    return bytes((kind + head[0],)) + head[1:]


# -- what repeats -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=_REMEMBERED)
def _repeated(kind: type[msgspec.Struct], first: int, values: tuple[Any, ...]) -> tuple[int, bytes]:
    """How many of these fields are there, from the so manyth on, and their bytes: those with defaults are left out."""
    pairs = zip(_fields(kind)[first:], values, strict=False)
    told = [(name, value) for (name, default), value in pairs if value != default]
    return len(told), b"".join([cbor2.dumps(name) + cbor2.dumps(value) for name, value in told])


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Names and defaults."""
    return [(field.name, field.default) for field in msgspec.structs.fields(kind)]


# -- parts ------------------------------------------------------------------------------------------------------------


def add_outcomes(pieces: Pieces, outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        count, rest = _repeated(type(outcome), 2, (outcome.error, outcome.is_final))
        if outcome.size:
            pieces += (_MAPS[2 + count], _lease(outcome.task), _SIZE, _number(outcome.size), rest)
        else:
            pieces += (_MAPS[1 + count], _lease(outcome.task), rest)


def add_taken(pieces: Pieces, jobs: Iterable[TakenJob]) -> None:
    for job in jobs:
        count, rest = _repeated(type(job), 2, (job.agreed, job.code, job.text))
        if job.job:
            pieces += (_MAPS[2 + count], _KEY, _text(job.key), _JOB, _number(job.job), rest)
        else:
            pieces += (_MAPS[1 + count], _KEY, _text(job.key), rest)


def add_leases(pieces: Pieces, tasks: Iterable[LeasedTask]) -> None:
    for task in tasks:
        count, whose = _repeated(type(task), 1, (task.of_kind, task.controller))
        more, rest = _repeated(type(task), 4, (task.agreed, task.failures, task.time_limit_ms, task.deadline_us))
        if task.size:
            pieces += (_MAPS[2 + count + more], _lease(task.task), whose, _SIZE, _number(task.size), rest)
        else:
            pieces += (_MAPS[1 + count + more], _lease(task.task), whose, rest)


def add_updates(pieces: Pieces, jobs: Iterable[JobUpdate]) -> None:
    for job in jobs:
        count, rest = _repeated(type(job), 1, (job.state, job.agreed, job.reason))
        pieces += (_MAPS[1 + count + bool(job.tasks)], _JOB, _number(job.job), rest)
        if job.tasks:
            pieces += (_TASKS, _array(len(job.tasks)))
            _add_tasks(pieces, job.tasks)


def _add_tasks(pieces: Pieces, tasks: Iterable[TaskUpdate]) -> None:
    for task in tasks:
        stand = (
            task.state, task.worker, task.fence, task.failures, task.losses, task.progress, task.note, task.error
        )  # fmt: skip
        count, rest = _repeated(type(task), 1, stand)
        if task.size:
            pieces += (_MAPS[2 + count], _TASK, _number(task.task), rest, _SIZE, _number(task.size))
        else:
            pieces += (_MAPS[1 + count], _TASK, _number(task.task), rest)


def _lease(ref: Ref) -> bytes:
    """The field `task` of a part."""
    job, task, fence = ref
    return _LEASE + _number(job) + _number(task) + _number(fence)
