"""The reader of spark.read, as Spark calls it, against real archives and without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.archive import logs
from tests.spark.archives import Served, options, served

from godwit.spark.archive import DataLossError
from godwit.spark.batches import BatchReader
from godwit.spark.options import OptionError, read_options


def offsets(place: Served, **given: str) -> list[int]:
    reader = BatchReader(read_options(options(place, **given), is_stream=False), ("offset",), 2)
    batches = [batch for piece in reader.partitions() for batch in reader.read(piece)]
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_all_of_it_or_a_part(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(10)
        assert offsets(place) == list(range(10))
        part = {"startingOffsets": f'{{"{place.log}": 3}}', "endingOffsets": f'{{"{place.log}": 7}}'}
        assert offsets(place, **part) == [3, 4, 5, 6]
        assert offsets(place, minPartitions="4") == list(range(10))
        assert offsets(place, topics="nothing/#") == []


def test_a_part_by_time(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        for second in range(3):
            entry = logs.make_entry("a", [b"x"] * 2, received_us=logs.NOW_US + second * 10**6)
            place.store.append([entry])
        begin_ms = logs.NOW_US // 1000
        assert offsets(place, startingTime=str(begin_ms + 1000), endingTime=str(begin_ms + 2000)) == [2, 3]


def test_an_end_that_was_never_reached_is_a_loss(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(2)
        end = {"endingOffsets": f'{{"{place.log}": 9}}'}
        with pytest.raises(DataLossError, match="which ends at 2"):
            offsets(place, **end)
        assert offsets(place, failOnDataLoss="false", **end) == [0, 1]


def test_an_empty_log_and_an_unknown_one(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        assert offsets(place) == []
        with pytest.raises(OptionError, match="endingOffsets names the log"):
            offsets(place, endingOffsets=f'{{"{"f" * 32}": 9}}')
