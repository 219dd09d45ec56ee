"""`godwit log info` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.logs import opened, write_log
from tests.cli.real import error_of, godwit, lines

from godwit.store.state import store_floor
from godwit.wire.retention_floors import BROKER_WIDE

ID = "000102030405060708090a0b0c0d0e0f"


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write_log(tmp_path, [[("home/a", "12"), ("home/b", "345")], [("home/a", "6")], [("home/a", "7")]]))


def test_for_people(data: str) -> None:
    rows = lines(godwit("log", "info", "--data", data).stdout)
    assert rows[:3] == [f"log         {ID}", f"file        {data}/log.sqlite", "broker      none runs on it"]
    assert rows[3].startswith("size        ")
    assert rows[4:8] == [
        "offsets     0 to 3",
        "messages    4 in 3 blocks, 7 B of payload",
        "received    2025-03-01 12:00:00 to 2025-03-01 12:00:03 UTC",
        f"epochs      1, the newest is {ID[:16]} from offset 0 on",
    ]
    assert rows[8] == ""
    assert [row.split() for row in rows[9:]] == [
        ["topic", "messages", "size"],
        ["home/a", "3", "4", "B"],
        ["home/b", "1", "3", "B"],
    ]


def test_for_programs(data: str) -> None:
    found = json.loads(godwit("log", "info", "--json", "--data", data).stdout)
    assert found.pop("size_bytes") == (Path(data) / "log.sqlite").stat().st_size
    assert found == {
        "log_id": ID,
        "path": f"{data}/log.sqlite",
        "is_in_use": False,
        "wal_bytes": 0,
        "first_offset": 0,
        "next_offset": 4,
        "messages": 4,
        "payload_bytes": 7,
        "blocks": 3,
        "first_received": "2025-03-01T12:00:00.000000Z",
        "last_received": "2025-03-01T12:00:03.000000Z",
        "deleted": [],
        "epochs": [{"id": ID[:16], "first_offset": 0, "begun": "2025-03-01T12:00:00.000000Z"}],
        "damaged": [],
        "topics": [
            {"name": "home/a", "messages": 3, "payload_bytes": 4},
            {"name": "home/b", "messages": 1, "payload_bytes": 3},
        ],
    }


def test_while_a_broker_runs(data: str) -> None:
    with opened(Path(data)) as store:
        store.append([])
        rows = lines(godwit("log", "info", "--data", data).stdout)
        found = json.loads(godwit("log", "info", "--json", "--data", data).stdout)
    assert "broker      runs on it" in rows
    assert found["is_in_use"]


def test_what_retention_deleted(data: str) -> None:
    with opened(Path(data)) as store, store.transaction() as connection:
        connection.execute("DELETE FROM blocks WHERE first_offset < 3")
        store_floor(connection, BROKER_WIDE, 2)
        store_floor(connection, "home/#", 3)
    rows = lines(godwit("log", "info", "--data", data).stdout)
    assert "offsets     3 to 3" in rows
    assert "deleted     before offset 2, by the rule for the whole log" in rows
    assert "deleted     before offset 3, of home/#" in rows
    found = json.loads(godwit("log", "info", "--json", "--data", data).stdout)
    assert found["deleted"] == [{"filter": None, "before": 2}, {"filter": "home/#", "before": 3}]
    assert found["messages"] == 1


def test_what_is_known_to_be_damaged(data: str) -> None:
    with opened(Path(data)) as store:
        store.connection.execute("DELETE FROM blocks WHERE first_offset = 2")  # no rule did that
    assert "lost        offsets 2; godwit log verify tells more" in lines(godwit("log", "info", "--data", data).stdout)
    assert json.loads(godwit("log", "info", "--json", "--data", data).stdout)["damaged"] == [[2, 3]]


def test_an_empty_log(tmp_path: Path) -> None:
    write_log(tmp_path, [])
    rows = lines(godwit("log", "info", "--data", str(tmp_path)).stdout)
    assert "offsets     none; the next one is 0" in rows
    assert rows[-1] == "messages    0 in 0 blocks, 0 B of payload"


def test_no_log_there(tmp_path: Path) -> None:
    text = error_of("log", "info", "--data", str(tmp_path))
    assert text == f"there is no log in {tmp_path} (no file log.sqlite); name the folder of a broker with --data"


def test_a_log_that_cannot_be_read(data: str) -> None:
    path = Path(data) / "log.sqlite"
    path.write_bytes(b"x" * path.stat().st_size)
    assert "godwit log recover" in error_of("log", "info", "--data", data)
