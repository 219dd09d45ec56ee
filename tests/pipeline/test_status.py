"""Archives, checkpoints and the status of a lake."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.pipeline.lakes import tables_at, write_spark_checkpoint
from tests.spark.archives import options, served

from godwit.pipeline.checkpoints import (
    ANOMALIES,
    GOLD,
    TABLES,
    WRITTEN_TOGETHER,
    check_no_partial_batch,
    checkpoint_address,
    read_checkpoint,
    write_checkpoint,
)
from godwit.pipeline.datasets import bronze
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake
from godwit.pipeline.status import LogStatus, QueryStatus, find_logs, status_of
from godwit.spark.offsets import Position

# -- archives ----------------------------------------------------------------------------------------------------------


def test_logs_and_their_ends(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(3)
        (log,) = find_logs(options(place))
        assert (log.id, log.next_offset) == (place.log, 3)
        (log,) = find_logs(options(place, topics="home/#"))
        assert log.id == place.log
        with pytest.raises(PipelineError, match="home/#/x"):
            find_logs(options(place, topics="home/#/x"))
        port = log.address.rpartition(":")[2]
        with pytest.raises(PipelineError, match="are of one broker: name one"):
            find_logs({"archive": f"127.0.0.1:{port},localhost:{port}"})


def test_unreachable_archives_and_invalid_options() -> None:
    with pytest.raises(PipelineError, match=r"127\.0\.0\.1:9 did not answer within 0\.5 s"):
        find_logs({"archive": "127.0.0.1:9"}, timeout_s=0.5)
    with pytest.raises(PipelineError, match="tokenFile: cannot read"):
        find_logs({"archive": "127.0.0.1:9", "tokenFile": "nowhere/token"})


# -- checkpoints -------------------------------------------------------------------------------------------------------


ONE, TWO = "1" * 32, "2" * 32


def test_the_position_file(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    assert read_checkpoint(lake, TABLES) is None
    position = Position({ONE: 10, TWO: 7}, {ONE: 3}, {}, {ONE: [("e", 0)]})
    write_checkpoint(lake, TABLES, 5, position, {ONE: 2, TWO: 0})
    found = read_checkpoint(lake, TABLES)
    assert found is not None
    assert (found.batch, found.position, found.offsets, found.firsts) == (
        5,
        position,
        {ONE: 10, TWO: 7},
        {ONE: 2, TWO: 0},
    )
    assert abs(found.done_us / 1e6 - time.time()) < 600
    path = Path(checkpoint_address(lake, TABLES)) / "position.json"
    for content in ("", "[]", '{"batch": 1}', path.read_text().replace(ONE, "x")):
        path.write_text(content)
        with pytest.raises(
            PipelineError, match=r"position\.json .*Delete this file: the query then resumes at the water"
        ):
            read_checkpoint(lake, TABLES)


def test_a_checkpoint_of_spark_counts_until_there_is_a_position_file(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    planned = [f'{{"{ONE}": {at}, "{TWO}": 7, "gaps": {{"{ONE}": 3}}}}' for at in range(12)]
    write_spark_checkpoint(lake, TABLES, planned, done=0)
    assert read_checkpoint(lake, TABLES) is None
    write_spark_checkpoint(lake, TABLES, planned, done=11)
    found = read_checkpoint(lake, TABLES)
    assert found is not None
    assert (found.batch, found.offsets, found.position.gaps, found.firsts) == (10, {ONE: 10, TWO: 7}, {ONE: 3}, {})
    assert found.done_us == 1_800_000_010 * 1_000_000
    assert read_checkpoint(lake, ANOMALIES) is None
    tables_at(lake, {ONE: 11})
    found = read_checkpoint(lake, TABLES)
    assert found is not None
    assert found.offsets == {ONE: 11}


def test_a_batch_is_partial_until_all_tables_have_it(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    check_no_partial_batch(lake)
    tables_at(lake, {ONE: 0})
    for spec in WRITTEN_TOGETHER:
        lake.table(spec).append_files([], {ONE: 5})
        if spec != WRITTEN_TOGETHER[-1]:
            with pytest.raises(PipelineError, match="incomplete: finish it with godwit pipeline run --once"):
                check_no_partial_batch(lake)
    check_no_partial_batch(lake)


# -- status ------------------------------------------------------------------------------------------------------------


OTHER = "e" * 32


def test_lags_batches_and_rows(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    rows = pa.Table.from_pylist([{"broker": OTHER, "offset": at} for at in range(4)], bronze.SPEC.schema)
    lake.table(bronze.SPEC).append_arrow(rows, {"q": 0})
    with served(tmp_path / "data") as place:
        place.add(10)
        write_spark_checkpoint(lake, TABLES, [f'{{"{place.log}": 4, "{OTHER}": 7}}'], done=1)
        write_spark_checkpoint(lake, ANOMALIES, [f'{{"{OTHER}": 7}}'], done=1, at_s=1_900_000_000)
        found = status_of(lake, options(place))
        lags = {(one.query, one.log): (one.offset, one.lag) for one in found.logs}
        assert lags == {
            (TABLES, place.log): (4, 6), (TABLES, OTHER): (7, None),
            (GOLD, place.log): (0, 10), (GOLD, OTHER): (0, None),
            (ANOMALIES, place.log): (0, 10), (ANOMALIES, OTHER): (7, None),
        }  # fmt: skip
        assert found.queries == [
            QueryStatus(TABLES, 0, 1_800_000_000_000_000), QueryStatus(ANOMALIES, 0, 1_900_000_000_000_000)
        ]  # fmt: skip
        assert {one.table: one.rows for one in found.tables}["bronze/messages"] == 4
        assert {one.table: one.rows for one in found.tables}["gold/windows"] == 0
        assert found.problem is None


def test_without_an_archive_the_rest_is_reported(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    tables_at(lake, {OTHER: 7})
    found = status_of(lake, {"archive": "127.0.0.1:9", "archiveTimeout": "0.3"})
    assert found.logs == [LogStatus(TABLES, OTHER, None, 7, None), LogStatus(GOLD, OTHER, None, 0, None)]
    assert found.problem is not None
    assert "did not answer" in found.problem
