"""The broker as a service and as a process: where it listens, what it tells, how it stops and reloads."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.net.running import Notices, both_loops, configuration, restarted, run, service

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.errors import AccessError, AddressError, ConfigurationError, SocketError, TopicError, UsageError
from godwit.net import serve as serve_module
from godwit.net.connect import connect
from godwit.net.serve import Service
from godwit.net.udp import UdpSocket
from godwit.server.configuration import Configuration

READ_ONLY = Access(rules=(Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("#",)),))


# -- listening --------------------------------------------------------------------------------------------------------


@both_loops
def test_it_listens_on_several_addresses_and_joins_who_comes_to_each(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(configuration("127.0.0.1:0", "[::1]:0", "127.0.0.1:0"), notices=notices) as broker:
            assert [address[0] for address in broker.addresses] == ["127.0.0.1", "::1", "127.0.0.1"]
            assert notices.texts("listening") == [f"listening on {url}" for url in broker.urls]
            async with (
                connect(broker.urls[0]) as one,
                connect(broker.urls[1]) as two,
                connect(broker.urls[2]) as three,
                three.subscribe("a") as messages,
                one.subscribe("a") as others,
            ):
                for number in range(100):
                    assert await (one, two)[number % 2].publish("a", str(number)) == 2
                for received in (messages, others):
                    assert [int((await anext(received)).payload) for _ in range(100)] == list(range(100))
                for number in range(20):
                    await two.publish("a", str(number), qos=0)
                    assert int((await anext(messages)).payload) == number

    run(test, loop)


def test_a_host_with_several_addresses_is_listened_on_at_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [("127.0.0.1", 0), ("::1", 0, 0, 0), ("192.0.2.1", 0)]  # the last is not ours
    found = addresses
    monkeypatch.setattr(serve_module, "resolve_all", lambda host, port: [(a[0], port, *a[2:]) for a in found])

    async def test() -> None:
        nonlocal found
        async with Service(configuration("both.example:0")) as broker:
            assert len(broker.addresses) == 1  # each would get a port of its own
            port = broker.addresses[0][1]
        async with Service(configuration(f"both.example:{port}")) as broker:
            assert [address[0] for address in broker.addresses] == ["127.0.0.1", "::1"]
            with pytest.raises(SocketError, match="another socket has this port"):
                await Service(configuration(f"both.example:{port}")).start()
        found = addresses[2:] * 2
        with pytest.raises(SocketError, match="does not have that address"):
            await Service(configuration("both.example:0")).start()

    run(test)


def test_an_address_that_cannot_be_had_leaves_nothing_open() -> None:
    async def test() -> None:
        with UdpSocket("127.0.0.1") as taken, UdpSocket("127.0.0.1") as free:
            used, other = taken.local_address[1], free.local_address[1]
            free.close()
            with pytest.raises(SocketError, match="another socket has this port"):
                await Service(configuration(f"127.0.0.1:{other}", f"127.0.0.1:{used}")).start()
            UdpSocket("127.0.0.1", other).close()
        with pytest.raises(AddressError):
            await Service(configuration("host:port")).start()

    run(test)


def test_a_service_runs_once() -> None:
    async def test() -> None:
        async with service() as broker:
            with pytest.raises(UsageError, match="runs already"):
                await broker.start()
        await broker.stop()

    run(test)


def test_being_open_to_other_machines_is_said_loudly() -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(configuration("0.0.0.0:0", "[::]:0"), notices=notices):
            warnings = notices.texts("warning")
            assert len(warnings) == 2
            assert all("everybody may do everything" in warning for warning in warnings)
        quiet = Notices()
        async with Service(configuration("0.0.0.0:0", access=READ_ONLY), notices=quiet):
            assert quiet.texts("warning") == []
        async with Service(configuration("127.0.0.1:0"), notices=quiet):
            assert quiet.texts("warning") == []

    run(test)


def test_what_happens_is_told() -> None:
    async def test() -> None:
        notices = Notices()
        doubtful = replace(configuration(), warnings=["this is hardly meant"])
        async with Service(doubtful, notices=notices) as broker:
            async with connect(broker.urls[0], name="sensor") as client, client.subscribe("a"):
                pass
            assert (await notices.until("subscribed"))[0] == "sensor subscribed to a"
            assert "sensor left" in (await notices.until("disconnected"))[0]
        assert notices.texts("warning") == ["this is hardly meant"]
        assert notices.seen[-1][1] == "the broker has stopped"

    run(test)


# -- stopping ---------------------------------------------------------------------------------------------------------


def test_clients_are_told_that_it_stops_and_none_is_left_believing() -> None:
    async def test() -> None:
        reasons: list[str] = []
        broker = service()
        await broker.start()
        clients = [
            await connect(broker.urls[0], on_state=lambda state, reason: reasons.append(reason)) for _ in range(20)
        ]
        await broker.stop()
        while any(client.state == "online" for client in clients):
            await asyncio.sleep(0)
        assert reasons.count("the broker is being stopped") >= 20
        broker = await restarted(broker)
        for client in clients:
            await client.ping()
            await client.close()
        await broker.stop()

    run(test)


def test_a_client_that_comes_back_too_early_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "GOODBYE_PATIENCE_S", 1.0)

    async def test() -> None:
        broker = service()
        await broker.start()
        silent = await connect(broker.urls[0])
        silent._driver.close()  # keeps the broker waiting? it does not: the farewell has an end of its own
        stopping = asyncio.create_task(broker.stop())
        states: list[str] = []
        early = asyncio.create_task(
            connect(broker.urls[0], on_state=lambda state, _: states.append(state)).__aenter__()
        )
        await stopping
        while states and states[-1] == "online":
            await asyncio.sleep(0)
        early.cancel()
        try:
            client = await early
        except asyncio.CancelledError:
            pass
        else:
            await client.close(timeout_s=0)

    run(test)


# -- reloading --------------------------------------------------------------------------------------------------------


def test_a_new_configuration_holds_at_once() -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(configuration(), notices=notices) as broker:
            async with connect(broker.urls[0]) as client:
                await client.publish("a", b"x")
                changed = replace(
                    broker.configuration, settings=Settings(access=READ_ONLY, default_policy="explicit"), warnings=["w"]
                )
                broker.reload(changed)
                with pytest.raises(AccessError):
                    await client.publish("a", b"x")
                with pytest.raises((AccessError, TopicError)):
                    await client.publish("new", b"x")
                async with client.subscribe("a"):
                    pass
                broker.reload(replace(changed, listen=["127.0.0.1:1"], settings=Settings()))
                assert await client.publish("a", b"x") == 0
            assert broker.configuration.listen == ["127.0.0.1:0"]
        assert notices.texts("reloaded") == ["the configuration was read again"] * 2
        assert "w" in notices.texts("warning")
        assert any("restart" in warning for warning in notices.texts("warning"))

    run(test)


def test_a_configuration_with_a_mistake_changes_nothing() -> None:
    async def test() -> None:
        notices = Notices()

        def broken() -> Configuration:
            raise ConfigurationError("limits.clients is -1")

        def missing() -> Configuration:
            raise FileNotFoundError("no such file")

        async with Service(configuration(), notices=notices) as broker, connect(broker.urls[0]) as client:
            for load in (broken, missing):
                broker.try_reload(load)
            assert await client.publish("a", b"x") == 0
            first, second = notices.texts("warning")
            assert first == "the configuration stays as it was: limits.clients is -1"
            assert "no such file" in second
            broker.try_reload(configuration)
            assert notices.texts("reloaded")

    run(test)


# -- time -------------------------------------------------------------------------------------------------------------


def test_time_never_goes_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "WALL_CLOCK_INTERVAL_S", 0.001)
    clock_us = 2_000_000_000_000_000
    looks = 0

    def look() -> int:
        nonlocal looks
        looks += 1
        return clock_us

    async def test() -> None:
        nonlocal clock_us
        broker = Service(configuration(), wall_clock_us=look)
        async with broker, connect(broker.urls[0]) as client, client.subscribe("a") as messages:
            received = []
            for step_us in (0, -3_600_000_000, 7_200_000_000, -1, 0):
                clock_us += step_us
                seen = looks
                while looks == seen:
                    await asyncio.sleep(0.001)
                await client.publish("a", b"x")
                received.append((await anext(messages)).received_us)
            assert received == sorted(received)
            assert received[-1] >= 2_000_003_600_000_000 - 1

    run(test)


# -- as a process -----------------------------------------------------------------------------------------------------

PROCESS = """
import sys
from pathlib import Path
from godwit.net.loop import run
from godwit.net.notices import NoticeWriter
from godwit.net.serve import serve
from godwit.server.configuration import load_configuration

def load():
    return load_configuration(Path(sys.argv[1]).read_text(), read_secret=lambda path: b"")

notices = NoticeWriter(sys.stdout, sys.argv[2])
run(serve(load(), notices=notices, load=load, ready=lambda service: print("ready", file=sys.stderr, flush=True)))
notices.close()
"""


class Process:
    """A broker in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdout is not None
        self._out = process.stdout

    @classmethod
    async def start(cls, file: Path, log_format: str = "text") -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROCESS, str(file), log_format,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(process)

    async def line(self, containing: str) -> str:
        while True:
            line = (await self._out.readline()).decode()
            assert line, "it has ended"
            if containing in line:
                return line.rstrip("\n")

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    async def end(self) -> tuple[int | None, str]:
        _, err = await self._process.communicate()
        return self._process.returncode, err.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_process_cleanly(number: int, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('listen = ["127.0.0.1:0"]')

    async def test() -> None:
        process = await Process.start(file)
        line = await process.line("listening")
        assert line.startswith("listening on udp://127.0.0.1:")
        reasons: list[str] = []
        async with connect(line.split()[-1], on_state=lambda state, reason: reasons.append(reason)) as client:
            await client.publish("a", b"x")
            process.send(number)
            await process.line("the broker has stopped")
            assert await process.end() == (0, "ready\n")
            while client.state == "online":
                await asyncio.sleep(0.001)
            assert "the broker is being stopped" in reasons

    run(test)


def test_a_hangup_reads_the_file_again_and_json_is_json(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('listen = ["127.0.0.1:0"]')

    async def test() -> None:
        process = await Process.start(file, "json")
        ready = json.loads(await process.line("listening on udp://"))
        assert ready["kind"] == "listening"
        assert ready["port"] == int(ready["url"].rpartition(":")[2])
        async with connect(ready["url"]) as client:
            await client.publish("a", b"x")
            file.write_text('listen = ["127.0.0.1:0"]\n[topics]\npolicy = "wrong"\n')
            process.send(signal.SIGHUP)
            warning = json.loads(await process.line("stays as it was"))
            assert warning["kind"] == "warning"
            assert "topics.policy" in warning["text"]
            await client.publish("b", b"x")
            file.write_text('listen = ["127.0.0.1:0"]\n[topics]\npolicy = "explicit"\n')
            process.send(signal.SIGHUP)
            await process.line("read again")
            with pytest.raises(TopicError):
                await client.publish("c", b"x")
        process.send(signal.SIGTERM)
        assert (await process.end())[0] == 0

    run(test)


def test_the_service_does_not_need_uvloop_or_a_main_thread() -> None:
    async def test() -> None:
        began = time.monotonic()
        async with service() as broker, connect(broker.urls[0]) as client:
            await client.ping()
        assert time.monotonic() - began < 10

    run(test, asyncio.SelectorEventLoop)


def test_urls_say_how_to_connect() -> None:
    async def test() -> None:
        async with Service(configuration("[::1]:0")) as broker:
            ((host, port, *_),) = broker.addresses
            assert host == "::1"
            assert broker.urls == [f"udp://[::1]:{port}"]
            assert socket.inet_pton(socket.AF_INET6, host)

    run(test)
