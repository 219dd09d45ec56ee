"""Series with labels from files; the real ones where they are."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from godwit.errors import GodwitError
from godwit_bench.anomalies_data import NAB, Window, read_motes, read_nab

REAL = Path(__file__).parents[3] / "shared" / "data"


def at_us(hour: int) -> int:
    return int(datetime(2014, 1, 1, hour, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nab").mkdir()
    labelled = {
        f"realKnownCause/{name}": [["2014-01-01 01:00:00.000000", "2014-01-01 02:00:00.000000"]]
        for name in NAB.values()
    }
    (tmp_path / "nab" / "combined_windows.json").write_text(json.dumps(labelled))
    for name in NAB.values():
        (tmp_path / "nab" / name).write_text("timestamp,value\n2014-01-01 00:00:00,1.5\n2014-01-01 01:00:00,2\n")
    (tmp_path / "suthaharan_multihop").mkdir()
    motes = "reading,mote_id,indoor,humidity,temperature,label\n1,2,0,40,20,0\n1,1,0,41,21,0\n2,1,0,42,22,1\n"
    (tmp_path / "suthaharan_multihop" / "data.csv").write_text(motes)
    return tmp_path


def test_series_have_their_windows(folder: Path) -> None:
    found = read_nab(folder)
    assert [one.name for one in found] == list(NAB)
    assert found[0].times_us == [at_us(0), at_us(1)]
    assert found[0].values == [1.5, 2.0]
    assert found[0].windows == [Window(at_us(1), at_us(2))]


def test_motes_are_told_apart(folder: Path) -> None:
    one, two = read_motes(folder)
    assert (one.name, two.name) == ("mote 1", "mote 2")
    assert one.quantities == [[41.0, 42.0], [21.0, 22.0]]
    assert one.labels == [False, True]
    assert two.quantities == [[40.0], [20.0]]


def test_a_folder_without_them_is_told(tmp_path: Path) -> None:
    with pytest.raises(GodwitError, match="give the folder with nab and suthaharan_multihop as --data"):
        read_nab(tmp_path)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real series are not beside the project, in ../shared/data")
def test_the_real_ones_are_whole() -> None:
    assert [(len(one.values), len(one.windows)) for one in read_nab(REAL)] == [(7267, 2), (22695, 4)]
    motes = read_motes(REAL)
    assert sum(len(mote.labels) for mote in motes) == 18_760
    assert sum(sum(mote.labels) for mote in motes) == 158
