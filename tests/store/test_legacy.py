"""Logs of earlier versions are upgraded with everything in them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import apsw
import pytest
from tests.store.entries import LOG_ID, make_entry, make_job, make_task
from tests.store.older_logs import make_older_log, older_rows

from godwit.errors import LogDamagedError, LogVersionError
from godwit.store import sqlite
from godwit.store.reader import LogReader
from godwit.store.schema import VERSION, check_schema
from godwit.store.sqlite import SqliteStore
from godwit.store.state import collect_state, store_floor
from godwit.wire.changes import (
    IdentityRow,
    JobPayloadRow,
    NextJobRow,
    QueryRow,
    RetainedRow,
    SessionRow,
    StateRow,
    SubscriptionRow,
    TopicRow,
)
from godwit.wire.control import Will

ROWS_1: list[StateRow] = [
    TopicRow("a/b", 1, 2, 3, True),
    TopicRow("größe", 4),
    RetainedRow("a/b", b"payload", "me", 1, 2, 1, 5),
    SessionRow("s", bytes(16), True, 60, 99, Will(topic="w", payload=b"bye")),
    SessionRow("t", b"x", False, 0, None),
    SubscriptionRow("s", ("a", "b/#"), "c", 4, 5),
    SubscriptionRow("s", ("a", "b/#"), None, 6),
    IdentityRow("o", "p", "t", 6, 7, 8),
    QueryRow("q", 9, 10),
]
ROWS_2: list[StateRow] = [
    NextJobRow(9),
    make_job(7),
    make_job(8, state="done"),
    JobPayloadRow(7, b""),
    JobPayloadRow(8, bytes(100_000)),
    make_task(7, 0),
    make_task(8, 0, b"result"),
]
ROWS_3: list[StateRow] = [
    SubscriptionRow("quiet", ("x",), None, 2, quiet_from=1),
    SubscriptionRow("quiet", ("y",), "", 2, 3, quiet_from=0, is_settled=True),
]
ROWS = {1: ROWS_1, 2: ROWS_1 + ROWS_2, 3: ROWS_1 + ROWS_2 + ROWS_3, 4: ROWS_1 + ROWS_2 + ROWS_3}


@pytest.mark.parametrize("version", ROWS)
def test_every_row_is_carried_forward(tmp_path: Path, version: int) -> None:
    path = tmp_path / "log.sqlite"
    entries = [make_entry(b"kept"), make_entry(b"as well", received_us=2)]
    make_older_log(path, entries, ROWS[version], version)
    connection = apsw.Connection(str(path))
    store_floor(connection, "a/#", 1)
    connection.close()
    for _ in range(2):
        store = SqliteStore.open(path, new_log_id=b"unused", now_us=2)
        state = store.state()
        expected = collect_state(ROWS[version])
        state.subscriptions.sort(key=repr)
        expected.subscriptions.sort(key=repr)
        expected.retention_floors = {"a/#": 1}
        assert state == expected
        assert [entry for _, entry in store.read(0, 2**20).entries] == entries
        check_schema(store.connection, path, VERSION)
        assert store.connection.pragma("user_version") == VERSION
        assert store.connection.execute("PRAGMA integrity_check").get == "ok"
        store.close()
    reader = LogReader.open(path)
    assert reader.topics() == expected.topics
    assert reader.queries() == {"q": 9}
    reader.close()


def test_a_log_of_0_3_0_is_brought_forward(tmp_path: Path) -> None:
    """With all that is in it; from then on it stores jobs too, and is read beside its writer."""
    path = tmp_path / "log.sqlite"
    entries = [make_entry(b"kept"), make_entry(b"as well", received_us=2)]
    make_older_log(path, entries, older_rows(3, Random(1)))
    text = rf"its format is 1, and this one reads {VERSION}\. A broker brings it forward"
    with pytest.raises(LogVersionError, match=text):
        LogReader.open(path)
    for _ in range(2):
        store = SqliteStore.open(path, new_log_id=b"unused", now_us=2)
        assert (store.log_id, store.created_us, store.log_secret) == (LOG_ID, 1, b"an older")
        assert [entry for _, entry in store.read(0, 2**20).entries] == entries
        state = store.state()
        assert [row.name for row in state.topics] == ["t/3"]
        assert len(state.retained) == len(state.sessions) == len(state.subscriptions) == len(state.identities) == 1
        store.append([], [make_job(1), JobPayloadRow(1, b"payload"), make_task(1, 0), NextJobRow(2)])
        store.close()
    assert (state.next_job, state.jobs, state.tasks) == (2, [make_job(1)], [make_task(1, 0)])
    reader = LogReader.open(path)
    assert reader.next_offset() == 2
    reader.close()


def test_a_log_of_0_5_0_is_brought_forward(tmp_path: Path) -> None:
    """Its subscriptions are not known to be quiet; from then on they can be stored so."""
    path = tmp_path / "log.sqlite"
    old = SubscriptionRow("me", ("a", "b/#"), None, 1, 2)
    make_older_log(path, [make_entry(), make_entry()], [old], version=2)
    store = SqliteStore.open(path, new_log_id=b"unused", now_us=2)
    assert store.state().subscriptions == [old]
    settled = SubscriptionRow("me", ("a", "b/#"), None, 2, quiet_from=1, is_settled=True)
    store.append([], [settled])
    store.close()
    store = SqliteStore.open(path, new_log_id=b"unused", now_us=2)
    assert store.state().subscriptions == [settled]
    store.close()


@pytest.mark.parametrize("version", ROWS)
def test_nothing_is_changed_when_an_upgrade_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    path = tmp_path / "log.sqlite"
    make_older_log(path, [make_entry()], ROWS[version], version)
    content = path.read_bytes()

    def fail(connection: apsw.Connection) -> None:
        raise apsw.exception_for(apsw.SQLITE_CORRUPT)

    monkeypatch.setattr(sqlite, "set_version", fail)
    with pytest.raises(LogDamagedError):
        SqliteStore.open(path, new_log_id=b"unused", now_us=2)
    assert path.read_bytes() == content
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == version
    check_schema(connection, path, version)
    connection.close()


def test_a_damaged_row_stops_the_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    make_older_log(path, [make_entry()], ROWS[3], 3)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE tasks SET seal = seal + 1 WHERE job = 8")
    connection.close()
    with pytest.raises(LogDamagedError, match="a row of the table tasks is not what was written"):
        SqliteStore.open(path, new_log_id=b"unused", now_us=2)
