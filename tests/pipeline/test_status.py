"""How far it has got: lag by log, the last batch, and rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from tests.pipeline.test_checkpoints import write_checkpoint
from tests.spark.archives import options, served

from godwit.pipeline.checkpoints import ANOMALIES, GOLD, TABLES
from godwit.pipeline.datasets import bronze
from godwit.pipeline.lake import Lake
from godwit.pipeline.status import LogStatus, QueryStatus, status_of

OTHER = "e" * 32


def test_lags_batches_and_rows(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    rows = pa.Table.from_pylist([{"broker": OTHER, "offset": at} for at in range(4)], bronze.SPEC.schema)
    lake.table(bronze.SPEC).append_arrow(rows, {"q": 0})
    with served(tmp_path / "data") as place:
        place.add(10)
        write_checkpoint(lake, TABLES, [f'{{"{place.log}": 4, "{OTHER}": 7}}'], done=1)
        write_checkpoint(lake, ANOMALIES, [f'{{"{OTHER}": 7}}'], done=1, at_s=1_900_000_000)
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


def test_without_an_archive_the_rest_is_told(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    write_checkpoint(lake, TABLES, [f'{{"{OTHER}": 7}}'], done=1)
    found = status_of(lake, {"archive": "127.0.0.1:9", "archiveTimeout": "0.3"})
    assert found.logs == [LogStatus(TABLES, OTHER, None, 7, None), LogStatus(GOLD, OTHER, None, 0, None)]
    assert found.problem is not None
    assert "did not answer" in found.problem
