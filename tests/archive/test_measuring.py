"""How far until so many rows or bytes: against counting message by message."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.archive.logs import make_entry
from tests.archive.running import archive_of, log_in

from godwit.archive.measuring import measure
from godwit.archive.requests import MeasureRequest
from godwit.store.reader import LogReader

BLOCKS = 10
OF_ONE = 100
"""Messages of either topic in a block."""


@pytest.fixture
def reader(tmp_path: Path) -> LogReader:
    with log_in(tmp_path) as store:
        for _ in range(BLOCKS):
            store.append([make_entry("a", [b"x" * 10] * OF_ONE), make_entry("b", [b"y" * 30] * OF_ONE)])
    return LogReader.open(tmp_path / "log.sqlite")


def test_all_of_it_without_a_limit(reader: LogReader) -> None:
    found = measure(MeasureRequest(0, 10_000), reader)
    assert (found.offset, found.rows, found.bytes) == (2000, 2000, 40_000)


@pytest.mark.parametrize(("filters", "a_block"), [((), 200), (("a",), 100), (("a", "b"), 200)])
def test_rows_of_the_topics_that_are_wanted(reader: LogReader, filters: tuple[str, ...], a_block: int) -> None:
    found = measure(MeasureRequest(0, 2000, filters, max_rows=5 * a_block), reader)
    assert (found.offset, found.rows) == (1000, 5 * a_block)
    half = measure(MeasureRequest(0, 2000, filters, max_rows=a_block // 2), reader)
    assert (half.offset, half.rows) == (100, a_block // 2)


def test_bytes_of_the_topics_that_are_wanted(reader: LogReader) -> None:
    assert measure(MeasureRequest(200, 2000, ("b",), max_bytes=6000), reader).offset == 600
    assert measure(MeasureRequest(0, 2000, max_bytes=4000), reader).offset == 200


def test_a_limit_below_one_message_still_lets_a_reader_on(reader: LogReader) -> None:
    assert measure(MeasureRequest(7, 2000, max_bytes=1), reader).offset == 8


def test_topics_that_are_not_there_cost_nothing(reader: LogReader) -> None:
    assert measure(MeasureRequest(0, 2000, ("c",), max_rows=1), reader).offset == 2000


def test_nothing_beyond_the_end(reader: LogReader) -> None:
    assert measure(MeasureRequest(2000, 2000, max_rows=1), reader).offset == 2000


def test_over_flight(tmp_path: Path) -> None:
    with log_in(tmp_path) as store:
        store.append([make_entry(payloads=[b"12345"] * 10)])
        with archive_of(tmp_path) as (_, client):
            assert client.measure(0, 10, max_rows=4) == {"offset": 4, "rows": 4, "bytes": 20}
