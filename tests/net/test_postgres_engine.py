"""The engine of a cluster with real PostgreSQL servers: checks, the contract, and a standby that is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
from tests.net.engine_contract import PATIENCE_S, EngineContract, EngineServers, EngineUser
from tests.net.postgres_servers import PostgresServers, find_programs
from tests.ports import free_ports

from godwit.cluster.engine import (
    AppendRefused,
    AppendRequest,
    EngineReport,
    FollowRequest,
    InfoRequest,
    RecordFound,
    RecordRequest,
    Stored,
    StreamInfo,
    Unsuitable,
)
from godwit.errors import ConfigurationError, GodwitError
from godwit.net import postgres_engine
from godwit.net.postgres_engine import PostgresEngine, PostgresSettings, settings_problem

needs_server = pytest.mark.skipif(find_programs() is None, reason="PostgreSQL is not installed (Debian: postgresql)")

SUITABLE = {
    "server_version_num": "150004",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "ANY 1 (second, third)",
}


class PostgresLab(PostgresServers, EngineServers):
    is_single_allowed = True

    def make(
        self, name: str, report: Callable[[EngineReport], None], backlog: Callable[[], int] = lambda: 0
    ) -> PostgresEngine:
        settings = msgspec.structs.replace(self.settings(name), is_single_allowed=self.is_single_allowed)
        return PostgresEngine(settings, report, backlog=backlog)

    def kill_servers(self) -> None:
        self.kill()

    def start_servers(self) -> None:
        self.start()


@pytest.fixture(scope="module")
def servers() -> Iterator[PostgresLab]:
    made = PostgresLab()
    try:
        made.start()
        yield made
    finally:
        made.stop()


# -- checks -----------------------------------------------------------------------------------------------------------


def test_a_suitable_server_has_no_problem() -> None:
    assert settings_problem(SUITABLE, is_single_allowed=False) == ""
    assert settings_problem({**SUITABLE, "synchronous_commit": "remote_apply"}, is_single_allowed=False) == ""
    assert settings_problem({**SUITABLE, "synchronous_standby_names": ""}, is_single_allowed=True) == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"server_version_num": "130011"}, "has version 13: use 14 or newer"),
        ({"fsync": "off"}, "set fsync = on"),
        ({"full_page_writes": "off"}, "set full_page_writes = on"),
        ({"synchronous_commit": "off"}, "set synchronous_commit = on"),
        ({"synchronous_commit": "local"}, "set synchronous_commit = on"),
        ({"synchronous_commit": "remote_write"}, "set synchronous_commit = on"),
        ({"synchronous_standby_names": ""}, "has no synchronous standby"),
        ({"synchronous_standby_names": " "}, "has no synchronous standby"),
    ],
)
def test_an_unsuitable_server_is_described(change: dict[str, str], text: str) -> None:
    assert text in settings_problem({**SUITABLE, **change}, is_single_allowed=False)


def refusal(settings: PostgresSettings, timeout_s: float = PATIENCE_S) -> GodwitError:
    with pytest.raises(GodwitError) as caught:
        PostgresEngine(settings, lambda report: None).start(timeout_s)
    return caught.value


def test_an_invalid_name_and_an_absent_server_are_refused() -> None:
    for name in ("", 'a"b', "a" * 41, "ä"):
        error = refusal(PostgresSettings(name=name, servers=[]))
        assert isinstance(error, ConfigurationError)
        assert "names of tables" in str(error)
    assert "no server of PostgreSQL is configured" in str(refusal(PostgresSettings(name="a", servers=[])))
    url = f"postgresql://user:word@127.0.0.1:{free_ports(1)[0]}/db"
    text = str(refusal(PostgresSettings(name="a", servers=[url]), 0.1))
    assert "cannot be used" in text
    assert "word@" not in text


@needs_server
def test_servers_that_break_promises_are_refused(servers: PostgresLab) -> None:
    alone = PostgresSettings(name="checks", servers=[servers.url()])
    assert "has no synchronous standby" in str(refusal(alone))
    wrong = PostgresSettings(name="checks", servers=[servers.url(password="wrong")], is_single_allowed=True)
    assert "check" in str(refusal(wrong))
    servers.execute("ALTER ROLE postgres SET synchronous_commit = off")
    try:
        error = refusal(servers.settings("checks"))
        assert isinstance(error, ConfigurationError)
        assert "set synchronous_commit = on" in str(error)
    finally:
        servers.execute("ALTER ROLE postgres RESET synchronous_commit")


@needs_server
def test_tables_that_a_crash_would_empty_are_refused(servers: PostgresLab) -> None:
    with EngineUser(servers, "unlogged"):
        pass
    servers.execute('ALTER TABLE "godwit_unlogged_log" SET UNLOGGED')
    assert "not logged" in str(refusal(servers.settings("unlogged")))
    servers.execute('DROP TABLE "godwit_unlogged_log"')
    assert "one of the tables" in str(refusal(servers.settings("unlogged")))


@needs_server
def test_a_role_that_may_not_create_tables_is_refused(servers: PostgresLab) -> None:
    servers.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    servers.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    url = f"postgresql://guest:guest@127.0.0.1:{servers.ports[0]}/postgres"
    assert "GRANT CREATE" in str(refusal(PostgresSettings(name="guest", servers=[url], is_single_allowed=True)))


# -- the contract -----------------------------------------------------------------------------------------------------


@needs_server
class TestPostgresEngine(EngineContract):
    """PostgreSQL does what every engine must do."""

    @pytest.mark.parametrize("statement", ["DROP TABLE {}", "DELETE FROM {}", "UPDATE {} SET stream = 'other'"])
    def test_tables_that_are_deleted_or_made_anew_stop_the_node(self, servers: PostgresLab, statement: str) -> None:
        name = f"gone_{statement[:4]}"
        with EngineUser(servers, name) as user:
            user.append_surely(0, b"one")
            servers.execute(statement.format(f'"godwit_{name}_head"'))
            user.engine.send([InfoRequest(), FollowRequest(0), RecordRequest(1)])
            assert "PostgreSQL" in user.next_report(Unsuitable).text
            user.engine.send([RecordRequest(1), AppendRequest(1, b"two")])
            assert isinstance(user.next_report(Stored, AppendRefused, RecordFound), AppendRefused)

    def test_the_other_server_is_found(self, servers: PostgresLab) -> None:
        absent = f"postgresql://127.0.0.1:{free_ports(1)[0]}/postgres"
        reports: SimpleQueue[EngineReport] = SimpleQueue()
        settings = PostgresSettings(name="second", servers=[absent, servers.url()], is_single_allowed=True)
        engine = PostgresEngine(settings, reports.put)
        engine.start(PATIENCE_S)
        try:
            while reports.empty():
                engine.send([InfoRequest()])
                time.sleep(0.1)
            assert reports.get() == StreamInfo(1, 0, 0)
        finally:
            engine.close()


# -- a synchronous standby --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresLab]:
    """A primary whose commits wait for one standby. Tests leave it like that."""
    yield from make_pair()


@pytest.fixture
def own_pair() -> Iterator[PostgresLab]:
    """The same, for one test."""
    yield from make_pair()


def make_pair() -> Iterator[PostgresLab]:
    made = PostgresLab()
    made.is_single_allowed = False
    try:
        made.start()
        made.add_standby()
        made.execute("ALTER SYSTEM SET synchronous_standby_names = 'second'")
        made.execute("SELECT pg_reload_conf()")
        wait_for(lambda: made.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
        yield made
    finally:
        made.stop()


def wait_for(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@needs_server
def test_a_record_is_a_fact_when_the_standby_has_it(pair: PostgresLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_engine, "REQUEST_S", 1.0)
    with EngineUser(pair, "sync") as writer, EngineUser(pair, "sync") as reader:
        writer.append_surely(0, b"one")
        while not (rows := pair.execute('SELECT data FROM "godwit_sync_log"', 1)):
            time.sleep(0.02)  # the standby has it on disk, and shows it soon
        assert rows[0][0] == b"one"
        pair.kill(1)
        reader.engine.send([FollowRequest(0)])
        # Its commit waits for the standby until it is cancelled. PostgreSQL then reports success, with a warning, and
        # shows the row to all.
        while not pair.execute('SELECT 1 FROM "godwit_sync_log" WHERE position = 2'):
            assert isinstance(writer.append(1, b"two"), AppendRefused)
        assert isinstance(writer.append(1, b"other"), AppendRefused)
        # No reader may take it for a fact, also after a crash of the primary, which ends the wait.
        for _ in range(2):
            writer.engine.send([RecordRequest(2)])
            reader.engine.send([RecordRequest(2), FollowRequest(0)])
            time.sleep(2.5)  # longer than the statement may last; a slow machine only sees less
            for user in (reader, writer):
                found = [report for report in user.drain() if isinstance(report, RecordFound)]
                assert b"two" not in [report.data for report in found]
            pair.kill(0)
            pair.start(0)
        pair.start(1)
        assert writer.read(2) == RecordFound(2, b"two")
        reader.engine.send([FollowRequest(0)])
        while reader.next_report(RecordFound).position < 2:
            pass
        writer.append_surely(2, b"three")


@needs_server
def test_a_standby_that_takes_over_has_everything(own_pair: PostgresLab) -> None:
    reports: SimpleQueue[EngineReport] = SimpleQueue()
    settings = PostgresSettings(name="takeover", servers=[own_pair.url(0), own_pair.url(1)], is_single_allowed=True)
    engine = PostgresEngine(settings, reports.put)
    engine.start(PATIENCE_S)
    try:
        engine.send([AppendRequest(after, b"%d" % after) for after in range(100)])
        stored = [reports.get(timeout=PATIENCE_S) for _ in range(50)]
        positions = {report.position for report in stored if isinstance(report, Stored)}
        own_pair.kill(0)
        own_pair.execute("SELECT pg_promote()", 1)
        own_pair.execute("ALTER SYSTEM SET synchronous_standby_names = ''", 1)
        own_pair.execute("SELECT pg_reload_conf()", 1)
        found: set[int] = set()
        deadline = time.monotonic() + PATIENCE_S
        while not positions <= found:
            assert time.monotonic() < deadline
            engine.send([RecordRequest(position) for position in sorted(positions - found)])
            time.sleep(0.2)
            while not reports.empty():
                report = reports.get()
                if isinstance(report, RecordFound):
                    assert report.data == b"%d" % (report.position - 1)
                    found.add(report.position)
    finally:
        engine.close()


@needs_server
def test_synchronous_replication_that_is_switched_off_stops_the_node(
    pair: PostgresLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EngineUser(pair, "off") as user:
        user.append_surely(0, b"one")
        pair.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        pair.execute("SELECT pg_reload_conf()")
        wait_for(lambda: pair.execute("SELECT 1 WHERE current_setting('synchronous_standby_names') = ''"))
        time.sleep(0.5)  # other sessions of the server read their settings in their own time
        assert isinstance(user.append(1, b"two"), AppendRefused)
        assert not [report for report in user.drain() if isinstance(report, Unsuitable)]
        # A failover program does this for a moment.
        pair.execute("ALTER SYSTEM SET synchronous_standby_names = 'second'")
        pair.execute("SELECT pg_reload_conf()")
        user.append_surely(1, b"two")
        monkeypatch.setattr(postgres_engine, "UNSUITABLE_S", 0.5)
        pair.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        pair.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            user.engine.send([InfoRequest()])
            time.sleep(0.3)
            if found := [report for report in user.drain() if isinstance(report, Unsuitable)]:
                break
        assert "has no synchronous standby" in found[0].text
    pair.execute("ALTER SYSTEM SET synchronous_standby_names = 'second'")
    pair.execute("SELECT pg_reload_conf()")
