"""Requests to the archive: JSON in tickets, descriptors and the bodies of actions, checked here.

    ticket, flight info    {"filters": ["home/#"], "start": 100, "end": 200, "columns": ["offset", "payload"],
                            "epochs": [["0123456789abcdef", 0]], ...}
    offset_for_time        {"time_us": 1700000000000000}
    measure                {"start": 100, "end": 200, "filters": ["home/#"], "max_rows": 50, "max_bytes": 10000}
    topics                 {"filters": ["home/#"]}
    stage (DoPut)          {"query": "alerts", "batch": 7, "partition": 0, "attempt": 3, "publisher": "alerts"}
    stage_commit           {"query": "alerts", "batch": 7, "parts": [{"partition": 0, "attempt": 3}]}
    stage_abort            {"query": "alerts", "batch": 7}, with "parts" only these

An invalid request raises BadRequestError. So does an unknown field: a misspelt `filters` must not select the whole log.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from godwit.archive.columns import ALL_COLUMNS, COLUMNS
from godwit.broker.topics import check_filter, shown
from godwit.errors import BadFilterError, UsageError
from godwit.limits import KIB, MAX_CLIENT_NAME_BYTES, MAX_FILTERS, MAX_TOPIC_BYTES, MIB
from godwit.wire.epochs import EPOCH_ID_BYTES, MAX_EPOCHS_TOLD

MAX_REQUEST_BYTES: Final = 128 * KIB
MAX_PARTS: Final = 4096
"""Partitions of one staged batch."""
MAX_COMMIT_REQUEST_BYTES: Final = 1 * MIB

Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
EpochText = Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * EPOCH_ID_BYTES}}}$")]
BatchNumber = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""A batch per millisecond reaches the limit in 34 years. All numbers up to a query's last one count as committed."""
_RequestT = TypeVar("_RequestT", bound=msgspec.Struct)

assert MAX_FILTERS * MAX_TOPIC_BYTES < MAX_REQUEST_BYTES < MAX_COMMIT_REQUEST_BYTES


class BadRequestError(UsageError):
    """The request is invalid; repeating it does not help."""


class ReadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of the log. Offsets: from `start` on, before `end`."""

    filters: tuple[str, ...] = ()
    """Empty: every topic, including those that begin with $."""
    start: Offset | None = None
    """None: from the oldest message in the log, whatever was deleted before it."""
    end: Offset | None = None
    """None: up to the last message that was committed when the request arrived."""
    columns: tuple[str, ...] = COLUMNS
    fail_on_data_loss: bool = True
    """False: lost messages are skipped, and reported in the metadata of the next batch."""
    gaps_known_below: Offset = 0
    """Deletions by retention below this offset are not reported: they were made before the client began to read."""
    epochs: Annotated[tuple[tuple[EpochText, Offset], ...], msgspec.Meta(max_length=MAX_EPOCHS_TOLD)] = ()
    """The newest epochs of the log that the range refers to, from `info`. The request fails if the log has others."""


class TimeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first offset received at or after a time."""

    time_us: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class MeasureRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a range from `start` on with at most this number of rows and payload bytes."""

    start: Offset
    end: Offset
    filters: tuple[str, ...] = ()
    max_rows: Number | None = None
    max_bytes: Number | None = None


class TopicsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The topics that match one of the filters."""

    filters: tuple[str, ...] = ()


class StageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name under which rows are staged, and their publisher."""

    query: str
    batch: BatchNumber
    partition: Number
    attempt: Number
    publisher: str


class StagedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stage of one attempt of a partition."""

    partition: Number
    attempt: Number


class CommitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Append these parts, by partition, once for this batch of the query."""

    query: str
    batch: BatchNumber
    parts: tuple[StagedPart, ...]


class AbortRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Delete staged rows."""

    query: str
    batch: BatchNumber
    parts: tuple[StagedPart, ...] | None = None
    """None: all stages of this batch."""


def read_request(body: bytes) -> ReadRequest:
    """Decode a request for rows. An empty body selects everything."""
    request = _decoded(body or b"{}", ReadRequest, MAX_REQUEST_BYTES)
    _check_filters(request.filters)
    if not request.columns:
        raise BadRequestError(f"columns is empty: leave it out, or choose from {', '.join(ALL_COLUMNS)}")
    for name in request.columns:
        if name not in ALL_COLUMNS:
            raise BadRequestError(f"there is no column {shown(name)}: choose from {', '.join(ALL_COLUMNS)}")
    if len(set(request.columns)) < len(request.columns):
        raise BadRequestError("columns names a column twice: name each once")
    if request.start is not None and request.end is not None and request.end < request.start:
        raise BadRequestError(f"the range ends at {request.end}, before its start {request.start}: swap them")
    return request


def time_request(body: bytes) -> TimeRequest:
    """Decode a request for an offset by time."""
    return _decoded(body, TimeRequest, MAX_REQUEST_BYTES)


def measure_request(body: bytes) -> MeasureRequest:
    """Decode a request for the size of a range."""
    request = _decoded(body, MeasureRequest, MAX_REQUEST_BYTES)
    _check_filters(request.filters)
    return request


def topics_request(body: bytes) -> TopicsRequest:
    """Decode a request for topics. An empty body selects all."""
    request = _decoded(body or b"{}", TopicsRequest, MAX_REQUEST_BYTES)
    _check_filters(request.filters)
    return request


def stage_request(body: bytes) -> StageRequest:
    """Decode the name of a stage."""
    request = _decoded(body, StageRequest, MAX_REQUEST_BYTES)
    _check_name("query", request.query)
    _check_name("publisher", request.publisher)
    return request


def commit_request(body: bytes) -> CommitRequest:
    """Decode a request to commit stages. It may have no parts: a batch without rows is committed at once."""
    request = _decoded(body, CommitRequest, MAX_COMMIT_REQUEST_BYTES)
    _check_name("query", request.query)
    if len(request.parts) > MAX_PARTS:
        raise BadRequestError(f"{len(request.parts)} parts: at most {MAX_PARTS} are allowed; use fewer partitions")
    if len({part.partition for part in request.parts}) < len(request.parts):
        raise BadRequestError("parts names a partition twice: name one attempt of each")
    return request


def abort_request(body: bytes) -> AbortRequest:
    """Decode a request to delete stages."""
    request = _decoded(body, AbortRequest, MAX_COMMIT_REQUEST_BYTES)
    _check_name("query", request.query)
    return request


def _decoded(body: bytes, kind: type[_RequestT], max_bytes: int) -> _RequestT:
    if len(body) > max_bytes:
        raise BadRequestError(f"the request is {len(body)} bytes long: at most {max_bytes} are allowed")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the request {shown(body[:100].decode(errors='replace'))} is wrong: {error}") from error


def _check_filters(filters: tuple[str, ...]) -> None:
    if len(filters) > MAX_FILTERS:
        raise BadRequestError(f"{len(filters)} filters: at most {MAX_FILTERS} are allowed")
    for text in filters:
        try:
            check_filter(text)
        except BadFilterError as error:
            raise BadRequestError(str(error)) from error


def _check_name(what: str, name: str) -> None:
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise BadRequestError(f"the {what} {name!a} is not valid Unicode: it has half of a surrogate pair") from None
    if not 1 <= size_bytes <= MAX_CLIENT_NAME_BYTES:
        raise BadRequestError(f"the {what} is {size_bytes} bytes long: 1 to {MAX_CLIENT_NAME_BYTES} are allowed")
