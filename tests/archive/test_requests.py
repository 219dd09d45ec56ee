"""Requests as clients write them, right and wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.archive.columns import COLUMNS
from godwit.archive.requests import (
    MAX_COMMIT_REQUEST_BYTES,
    MAX_PARTS,
    MAX_REQUEST_BYTES,
    BadRequestError,
    ReadRequest,
    abort_request,
    commit_request,
    read_request,
    stage_request,
    time_request,
    topics_request,
)

STAGE = {"query": "q", "batch": 7, "partition": 0, "attempt": 3, "publisher": "alerts"}


def encoded(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_nothing_asks_for_everything() -> None:
    assert read_request(b"") == read_request(b"{}") == ReadRequest((), None, None, COLUMNS, True, 0)
    assert topics_request(b"").filters == ()


def test_a_range() -> None:
    request = read_request(
        encoded(filters=["a/#"], start=5, end=9, columns=["payload", "offset"], fail_on_data_loss=False)
    )
    assert request == ReadRequest(("a/#",), 5, 9, ("payload", "offset"), False)


def test_stages() -> None:
    assert stage_request(encoded(**STAGE)).attempt == 3
    commit = commit_request(encoded(query="q", batch=7, parts=[{"partition": 1, "attempt": 0}]))
    assert [(part.partition, part.attempt) for part in commit.parts] == [(1, 0)]
    assert commit_request(encoded(query="q", batch=7, parts=[])).parts == ()
    assert abort_request(encoded(query="q", batch=7)).parts is None
    assert time_request(encoded(time_us=-5)).time_us == -5


@pytest.mark.parametrize(
    ("read", "body", "complaint"),
    [
        (read_request, b"[", "is wrong"),
        (read_request, b"\xff", "is wrong"),
        (read_request, b"[" * 100_000, "is wrong"),
        (read_request, b" " * (MAX_REQUEST_BYTES + 1), f"at most {MAX_REQUEST_BYTES} are allowed"),
        (read_request, encoded(start=-1), ">= 0"),
        (read_request, encoded(start=2**63), "<= 9223372036854775807"),
        (read_request, encoded(filterss=["a"]), "unknown field `filterss`"),
        (stage_request, encoded(**STAGE | {"batch": 2**40 + 1}), "<= 1099511627776"),
        (commit_request, encoded(query="q", batch=2**63 - 1, parts=[]), "<= 1099511627776"),
        (read_request, encoded(start=1e300), "is wrong"),
        (read_request, encoded(epochs=[["0011", 3]]), "epochs"),
        (read_request, encoded(start=9, end=5), "ends at 5, before its start 9"),
        (read_request, encoded(filters="home/#"), "is wrong"),
        (read_request, encoded(filters=["a/#/b"]), "'#' before its end"),
        (read_request, encoded(filters=[""]), "is empty"),
        (read_request, encoded(filters=["a"] * 65), "at most 64"),
        (read_request, encoded(columns=[]), "columns is empty"),
        (read_request, encoded(columns=["key"]), "no column 'key': choose from offset, topic"),
        (read_request, encoded(columns=["topic", "topic"]), "twice"),
        (topics_request, encoded(filters=["+x"]), "stands alone"),
        (time_request, b"{}", "time_us"),
        (stage_request, encoded(**STAGE | {"query": ""}), "the query is 0 bytes long"),
        (stage_request, encoded(**STAGE | {"publisher": "ä" * 129}), "the publisher is 258 bytes long"),
        (stage_request, encoded(**STAGE | {"partition": -1}), ">= 0"),
        (commit_request, encoded(query="q", batch=1), "parts"),
        (commit_request, encoded(query="q", batch=1, parts=[{"partition": 1, "attempt": 0}] * 2), "twice"),
        (
            commit_request,
            encoded(query="q", batch=1, parts=[{"partition": n, "attempt": 0} for n in range(MAX_PARTS + 1)]),
            "use fewer partitions",
        ),
        (commit_request, b" " * (MAX_COMMIT_REQUEST_BYTES + 1), "at most"),
        (abort_request, encoded(query="q" * 300, batch=1), "300 bytes long"),
    ],
)
def test_what_is_wrong_is_said(read: Callable[[bytes], object], body: bytes, complaint: str) -> None:
    with pytest.raises(BadRequestError) as raised:
        read(body)
    assert complaint in str(raised.value)
    assert len(str(raised.value)) < 500


@given(
    st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda values: st.lists(values) | st.dictionaries(st.sampled_from(["filters", "start", "query", "x"]), values),
    ).map(lambda value: json.dumps(value).encode())
)
def test_bytes_from_outside_are_a_request_or_one_error(body: bytes) -> None:
    for read in (read_request, topics_request, time_request, stage_request, commit_request, abort_request):
        with suppress(BadRequestError):
            assert isinstance(read(body), msgspec.Struct)
