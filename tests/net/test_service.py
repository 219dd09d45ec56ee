"""The broker as a service and as a process: listeners, event lines, stop and reload."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from tests.archive.client import ArchiveClient
from tests.net.running import DEADLINE_S, Notices, both_loops, configuration, restarted, run, service, spawn
from tests.ports import free_port, free_ports

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.compiled_core import is_compiled
from godwit.errors import (
    AccessError,
    AddressError,
    ConfigurationError,
    LogInUseError,
    SocketError,
    TopicError,
    UsageError,
)
from godwit.net import archive_process
from godwit.net import service as serve_module
from godwit.net.archive_process import ArchiveProcess
from godwit.net.broker_archive import archive_address, is_local
from godwit.net.client import connect
from godwit.net.service import Service, listen_on, listener_reset_key
from godwit.net.service_warnings import archive_not_installed, archive_open_to_all, archive_without_tls, open_to_all
from godwit.net.udp import UdpSocket
from godwit.server.configuration import ArchiveSection, Configuration
from godwit.store.retention import RetentionRule
from godwit.transport.events import Address

READ_ONLY = Access(rules=(Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("#",)),))


# -- listening --------------------------------------------------------------------------------------------------------


@both_loops
def test_it_listens_on_several_addresses_and_connects_their_clients(
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
        port = free_port()
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
        with UdpSocket("127.0.0.1") as taken:
            used, other = taken.local_address[1], free_port()
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


def test_being_open_to_other_machines_is_warned_of() -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(configuration("0.0.0.0:0", "[::]:0"), notices=notices):
            warnings = notices.texts("warning")
            assert len(warnings) == 2
            assert all("anyone on the network can publish" in warning for warning in warnings)
            assert notices.texts("access") == ["clients need no name, and every client may do everything"]
        quiet = Notices()
        async with Service(configuration("0.0.0.0:0", access=READ_ONLY), notices=quiet):
            assert quiet.texts("warning") == []
        async with Service(configuration("127.0.0.1:0"), notices=quiet):
            assert quiet.texts("warning") == []

    run(test)


@pytest.mark.parametrize(
    ("access", "line", "warning"),
    [
        (Access(allows_anonymous=False), "clients without a proved name are refused", None),
        (Access(), "clients without a proved name may connect, and do nothing else", None),
        (READ_ONLY, "clients without a proved name may subscribe to '#'", None),
        (
            Access(
                rules=(
                    Rule(clients=("*",), allow=frozenset(("publish", "kick")), topics=tuple("abcdefg")),
                    Rule(clients=("*",), deny=frozenset(("publish",)), topics=("a/b",)),
                )
            ),
            "clients without a proved name may publish to 'a', 'b', 'c', 'd', 'e', 2 more; kick clients, "
            "except where a rule denies it",
            "anyone on the network can publish to 'a', 'b', 'c', 'd', 'e', 2 more; kick clients",
        ),
    ],
)
def test_the_rights_of_anonymous_clients_are_shown_at_the_start(access: Access, line: str, warning: str | None) -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(configuration("0.0.0.0:0", access=access), notices=notices) as broker:
            assert notices.texts("access") == [line]
            warnings = notices.texts("warning")
            assert (not warnings) if warning is None else (warning in warnings[0] and len(warnings) == 1)
            opened = replace(
                broker.configuration, settings=replace(broker.configuration.settings, access=Access.open())
            )
            broker.reload(opened)
            broker.reload(opened)
            assert notices.texts("access")[1:] == ["clients need no name, and every client may do everything"]

    run(test)


def test_events_become_event_lines() -> None:
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


def test_all_clients_are_notified_that_it_stops() -> None:
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


def test_a_client_that_reconnects_too_early_is_notified_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "CLOSE_TIMEOUT_S", 1.0)

    async def test() -> None:
        broker = service()
        await broker.start()
        silent = await connect(broker.urls[0])
        silent._runtime.driver.close()  # the broker does not wait for it longer than CLOSE_TIMEOUT_S
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


# -- with a folder ----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _patient_with_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an archive takes longer to start than a broker waits for it."""
    monkeypatch.setattr(serve_module, "ARCHIVE_TIMEOUT_S", 120.0)


def durable(path: Path, *listen: str, is_on: bool = False, **settings: Any) -> Configuration:
    if not listen and not is_on:  # with an archive, that would listen at the next port
        listen = (f"127.0.0.1:{free_port()}",)
    return replace(configuration(*listen, **settings), data=path, archive=ArchiveSection(is_on=is_on))


@both_loops
def test_what_was_confirmed_is_there_after_a_restart(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def test() -> None:
        broker = Service(durable(tmp_path))
        await broker.start()
        async with connect(broker.urls[0], name="sensor") as client:
            for number in range(20):
                await client.publish("a", str(number))
            broker = await restarted(broker)
            await client.publish("a", "20")
            async with client.subscribe("a", start="earliest") as messages:
                assert [int((await anext(messages)).payload) for _ in range(21)] == list(range(21))
        await broker.stop()
        assert not (tmp_path / "log.sqlite-wal").exists()

    run(test, loop)


def test_time_does_not_go_backwards_across_a_restart(tmp_path: Path) -> None:
    future_us = 2_000_000_000_000_000

    async def test() -> None:
        received = []
        for clock_us in (future_us, future_us - 3_600_000_000):
            broker = Service(durable(tmp_path), wall_clock_us=lambda clock_us=clock_us: clock_us)  # type: ignore[misc]
            async with broker, connect(broker.urls[0]) as client, client.subscribe("a") as messages:
                await client.publish("a", b"x")
                received.append((await anext(messages)).received_us)
        assert received[0] >= future_us
        assert received == sorted(received)

    run(test)


def test_answers_of_the_log_reach_the_clients_of_all_listeners(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            Service(durable(tmp_path, "127.0.0.1:0", "127.0.0.1:0")) as broker,
            connect(broker.urls[0]) as one,
            connect(broker.urls[1]) as two,
            one.subscribe("a") as first,
            two.subscribe("a") as second,
        ):
            for number in range(50):
                assert await (one, two)[number % 2].publish("a", str(number)) == 2
                for messages in (first, second):
                    assert int((await anext(messages)).payload) == number

    run(test)


def test_a_folder_that_is_in_use_leaves_no_socket_open(tmp_path: Path) -> None:
    async def test() -> None:
        port = free_port()
        async with Service(durable(tmp_path)):
            with pytest.raises(LogInUseError):
                await Service(durable(tmp_path, f"127.0.0.1:{port}")).start()
            UdpSocket("127.0.0.1", port).close()

    run(test)


def test_a_broker_that_cannot_be_made_gives_its_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConfigurationError("it cannot be")

    async def test() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(serve_module, "Server", fail)
            with pytest.raises(ConfigurationError):
                await Service(durable(tmp_path)).start()
        async with Service(durable(tmp_path)):
            pass

    run(test)


def test_an_address_that_cannot_be_had_makes_no_folder(tmp_path: Path) -> None:
    async def test() -> None:
        with UdpSocket("127.0.0.1") as taken, pytest.raises(SocketError):
            await Service(durable(tmp_path / "data", f"127.0.0.1:{taken.local_address[1]}")).start()
        assert not (tmp_path / "data").exists()

    run(test)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def test() -> None:
        async with Service() as broker, connect(broker.urls[0]) as client:
            await client.publish("a", b"x")
            assert broker.archive_url == ""
        assert list(tmp_path.iterdir()) == []

    run(test)


def test_a_killed_broker_proves_to_its_clients_that_it_was_restarted(tmp_path: Path) -> None:
    """The key for that is in the folder, so no client waits for a timeout."""

    async def test() -> None:
        broker = Service(durable(tmp_path))
        await broker.start()
        reasons: list[str] = []
        async with connect(broker.urls[0], on_state=lambda state, reason: reasons.append(reason)) as client:
            for driver in broker._drivers:
                driver.close()  # without a word
            broker = await restarted(broker)
            await client.publish("a", b"x")
            assert any("reset" in reason or "restart" in reason for reason in reasons), reasons
        await broker.stop()

    run(test)


def test_a_listener_does_not_give_away_the_reset_tokens_of_another(tmp_path: Path) -> None:
    """A stranger asks the second listener for a reset of a connection of the first."""

    def reset(service: Service, place: int, connection_id: int) -> bytes | None:
        return service.server.listeners[place].endpoint._acceptor.reset(connection_id, 1200, time.monotonic())

    async def test() -> None:
        listen = [f"127.0.0.1:{port}" for port in free_ports(2)]
        async with Service(durable(tmp_path, *listen)) as broker:
            async with connect(broker.urls[0]):
                (connection_id,) = broker.server.listeners[0].endpoint.connections
            own, other = reset(broker, 0, connection_id), reset(broker, 1, connection_id)
        assert own is not None
        assert other is not None
        assert own != other
        async with Service(durable(tmp_path, *listen)) as broker:
            assert reset(broker, 0, connection_id) == own

    run(test)


def test_other_rules_hold_at_once_and_another_folder_needs_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(durable(tmp_path), notices=notices) as broker, connect(broker.urls[0]) as client:
            for _ in range(30):
                await client.publish("a", bytes(50_000))
            broker.reload(replace(broker.configuration, retention=(RetentionRule("a", max_bytes=500_000),)))
            first = 0
            while first < 15:
                async with client.subscribe("a", start="earliest") as messages:
                    first = (await anext(messages)).offset or 0
            assert notices.texts("warning") == []
            broker.reload(replace(broker.configuration, data=tmp_path / "other"))
            assert notices.texts("warning") == ["another folder for the log needs a restart of the broker"]
            assert broker.configuration.data == tmp_path

    run(test)


# -- the archive ------------------------------------------------------------------------------------------------------


def test_the_archive_is_announced_before_the_listeners_and_ends_with_the_broker(tmp_path: Path) -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(durable(tmp_path, is_on=True), notices=notices) as broker:
            await notices.until("listening")
            kinds = [kind for kind, _, _ in notices.seen]
            assert kinds[:3] == ["archive", "log", "listening"]
            assert notices.texts("log") == [f"log in {tmp_path}: no messages, the next one has offset 0"]
            assert broker.archive_url.startswith("grpc://127.0.0.1:")
            assert notices.texts("archive") == [f"archive on {broker.archive_url}"]
            port = int(broker.archive_url.rpartition(":")[2])
            socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S).close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)

    run(test)


def test_what_was_staged_with_the_archive_and_committed_is_delivered_once(tmp_path: Path) -> None:
    rows = pa.table({"topic": ["a", "a", "b"], "payload": [b"1", b"2", b"3"]})

    def commit(url: str) -> dict[str, Any]:
        with ArchiveClient(url) as archive:
            archive.stage(rows, query="q", batch=1, partition=0, attempt=0, publisher="spark")
            return archive.commit("q", 1, [(0, 0)])

    async def test() -> None:
        notices = Notices()
        async with Service(durable(tmp_path, is_on=True), notices=notices) as broker:
            await notices.until("archive")
            async with connect(broker.urls[0]) as client, client.subscribe("#") as messages:
                first = await asyncio.to_thread(commit, broker.archive_url)
                assert (first["first_offset"], first["count"], first["was_known"]) == (0, 3, False)
                assert [(await anext(messages)).payload for _ in range(3)] == [b"1", b"2", b"3"]
                again = await asyncio.to_thread(commit, broker.archive_url)
                assert again["was_known"]
                await client.publish("a", b"4")
                assert (await anext(messages)).payload == b"4"
        assert list((tmp_path / "stages").iterdir()) == []

    run(test)


def test_an_archive_does_not_outlive_a_broker_that_was_killed(tmp_path: Path) -> None:
    arguments = ["broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    code = "from godwit.cli import main; main()"
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            ready = next(line for line in process.stdout if line.startswith(b"archive on ")).decode()
            port = int(ready.rpartition(":")[2])
            socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S).close()
        finally:
            process.kill()
    ends = time.monotonic() + DEADLINE_S
    with pytest.raises(OSError, match=r"refused|reset"):  # noqa: PT012  # it takes a moment to hear of it
        while time.monotonic() < ends:
            socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S).close()
            time.sleep(0.01)  # an archive that has no processor does not accept them, and its queue must not be full


def test_an_archive_that_cannot_start_does_not_keep_the_broker_from_it(tmp_path: Path) -> None:
    async def test() -> None:
        notices = Notices()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            section = ArchiveSection(listen=f"127.0.0.1:{taken.getsockname()[1]}")
            broken = replace(durable(tmp_path), archive=section)
            async with Service(broken, notices=notices) as broker, connect(broker.urls[0]) as client:
                assert await client.publish("a", b"x") == 0
                await notices.until("listening")
                assert any("archive" in text for text in notices.texts("warning"))

    run(test)


@pytest.mark.parametrize(
    ("section", "kind"), [(ArchiveSection(), "log"), (ArchiveSection(listen="127.0.0.1:0"), "warning")]
)
def test_an_archive_that_is_not_installed_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: ArchiveSection, kind: str
) -> None:
    monkeypatch.setattr(archive_process, "ARCHIVE_PACKAGES", ("msgspec", "no_such_package"))

    async def test() -> None:
        notices = Notices()
        config = replace(durable(tmp_path), archive=section)
        async with Service(config, notices=notices) as broker:
            await notices.until("listening")
            broker.reload(config)
            await notices.until("reloaded")
            assert broker.archive_url == ""
            reported = [(event, text) for event, text, _ in notices.seen if "the archive" in text]
            assert reported == [(kind, archive_not_installed(["no_such_package"]))]

    run(test)


def test_an_invalid_address_of_the_archive_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "data"
        with pytest.raises(AddressError, match="is not a port"):
            await Service(replace(durable(path), archive=ArchiveSection(listen="127.0.0.1:port"))).start()
        assert not path.exists()

    run(test)


def test_an_archive_that_is_open_to_other_machines_is_warned_of(tmp_path: Path) -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(durable(tmp_path, "127.0.0.1:0", is_on=True), notices=notices):
            assert notices.texts("warning") == []
        tokens, pem = tmp_path / "tokens", tmp_path / "pem"
        tokens.write_text("a-token\n")
        for section, warning in (
            (ArchiveSection(listen="0.0.0.0:0"), "every client may read and write"),
            (ArchiveSection(listen="0.0.0.0:0", token_file=tokens), "tokens are sent without encryption: give"),
            (ArchiveSection(listen="127.0.0.1:0", token_file=tokens), None),
            (ArchiveSection(listen="0.0.0.0:0", token_file=tokens, certificate=pem, key=pem), None),
        ):
            told = Notices()
            async with Service(replace(durable(tmp_path), archive=section), notices=told):
                warned = [text for text in told.texts("warning") if "from other machines" in text]
                assert len(warned) == (warning is not None)
                assert warning is None or warning in warned[0]

    run(test)


def test_with_access_rules_an_archive_needs_tokens(tmp_path: Path) -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(durable(tmp_path, is_on=True, access=READ_ONLY), notices=notices) as broker:
            assert "no tokens for the archive, so it does not run" in notices.texts("warning")[0]
            assert broker.archive_url == ""
            assert notices.texts("listening")

    run(test)


def test_access_rules_that_come_with_a_new_configuration_reach_the_archive(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token\n")

    def info(url: str, token: str | None = None) -> dict[str, Any]:
        with ArchiveClient(url, token=token) as archive:
            return archive.info()

    async def test() -> None:
        notices = Notices()
        async with Service(durable(tmp_path / "data", is_on=True), notices=notices) as broker:
            await notices.until("archive")
            was_open = broker.configuration
            first_url = broker.archive_url
            assert (await asyncio.to_thread(info, first_url))["next_offset"] == 0
            closed = replace(was_open, settings=Settings(access=READ_ONLY))
            broker.reload(closed)
            assert "no tokens for the archive, so it does not run" in notices.texts("warning")[0]
            assert broker.archive_url == ""
            port = int(first_url.rpartition(":")[2])
            with pytest.raises(OSError, match="refused"):  # noqa: PT012  # it takes a moment to end
                while True:
                    socket.create_connection(("127.0.0.1", port), timeout=5).close()
                    await asyncio.sleep(0.01)
            broker.reload(replace(closed, archive=ArchiveSection(token_file=tokens)))
            await notices.until("archive", 2)
            with pytest.raises(flight.FlightUnauthenticatedError, match="wants a token"):
                await asyncio.to_thread(info, broker.archive_url)
            assert (await asyncio.to_thread(info, broker.archive_url, "a-token"))["next_offset"] == 0
            broker.reload(was_open)
            await notices.until("archive", 3)
            assert (await asyncio.to_thread(info, broker.archive_url))["next_offset"] == 0
            broker.reload(replace(was_open, archive=ArchiveSection(is_on=False)))
            assert broker.archive_url == ""
            assert len(notices.texts("warning")) == 1

    run(test)


def test_a_token_publishes_under_no_name_that_has_a_secret_unless_it_lists_it(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text('plain\nlisted {"names": ["pump"]}\n')
    rows = pa.table({"topic": ["home/a"], "payload": [b"1"]})

    def publish(url: str, token: str, name: str, batch: int) -> int:
        with ArchiveClient(url, token=token) as archive:
            archive.stage(rows, query=token, batch=batch, partition=0, attempt=0, publisher=name)
            count: int = archive.commit(token, batch, [(0, 0)])["count"]
            return count

    async def test() -> None:
        notices = Notices()
        access = Access(secrets={"pump": b"a secret of some length"})
        closed = replace(
            durable(tmp_path / "data", is_on=True, access=access), archive=ArchiveSection(token_file=tokens)
        )
        async with Service(closed, notices=notices) as broker:
            await notices.until("archive")
            url = broker.archive_url
            with pytest.raises(flight.FlightServerError, match="under the name 'pump', which has a secret: choose"):
                await asyncio.to_thread(publish, url, "plain", "pump", 0)
            assert await asyncio.to_thread(publish, url, "plain", "spark", 0) == 1
            assert await asyncio.to_thread(publish, url, "listed", "pump", 0) == 1
            with pytest.raises(flight.FlightUnauthorizedError, match="it may publish under 'pump'"):
                await asyncio.to_thread(publish, url, "listed", "spark", 1)

    run(test)


def test_an_archive_s_address_that_cannot_be_leaves_the_configuration_as_it_was(tmp_path: Path) -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(durable(tmp_path), notices=notices) as broker:
            former = broker.configuration
            wrong = replace(former, archive=ArchiveSection(listen="127.0.0.1:port"), settings=Settings(max_topics=1))
            broker.try_reload(lambda: wrong)
            assert "stays as it was" in notices.texts("warning")[0]
            assert broker.configuration is former
            with pytest.raises(AddressError):
                broker.reload(wrong)
            assert broker.server.broker.settings is former.settings

    run(test)


@pytest.mark.parametrize("part", ["_close_connections", "archive", "turn"])
def test_whatever_goes_wrong_at_the_end_the_log_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    if part == "turn" and is_compiled("godwit.server.server"):
        pytest.skip("replaces a part of a compiled module")  # before a broker runs, which would not be stopped

    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    def fail_at_once(*_: object) -> None:
        raise RuntimeError("a bug")

    async def test() -> None:
        broker = Service(durable(tmp_path))
        await broker.start()
        with monkeypatch.context() as patch:
            if part == "turn":
                patch.setattr(broker.server, "run_turn", fail_at_once)
            elif part == "archive":
                patch.setattr(ArchiveProcess, "stop", fail)
            else:
                patch.setattr(broker, part, fail)
            with pytest.raises(RuntimeError, match="a bug"):
                await broker.stop()
        assert not (tmp_path / "log.sqlite-wal").exists()
        await (await restarted(broker)).stop()  # folder and port are free

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
from godwit.net.broker_process import serve
from godwit.net.loop import run
from godwit.net.notices import NoticeWriter
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
        process = await spawn(
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


STOPPED_EARLY = """
import asyncio, os, sys
from godwit.net import service
from godwit.net.broker_process import serve
from godwit.net.loop import run
from godwit.server.configuration import Configuration

class Printer:
    def write(self, kind, text, fields):
        print(kind, flush=True)
        if kind == "listening" == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))

async def open_sockets(listen):
    os.kill(os.getpid(), int(sys.argv[2]))
    await asyncio.sleep(3600)

if sys.argv[1] == "opening":
    service.open_sockets = open_sockets
run(serve(Configuration(listen=["127.0.0.1:0"]), notices=Printer()))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("moment", "lines"), [("opening", []), ("listening", ["listening", "stopped"])])
def test_a_signal_while_it_starts_stops_the_process_cleanly(number: int, moment: str, lines: list[str]) -> None:
    command = [sys.executable, "-c", STOPPED_EARLY, moment, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.split() if line != "warning"] == lines


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
        async with service() as broker, connect(broker.urls[0]) as client:
            await client.ping()

    run(test, asyncio.SelectorEventLoop)


def test_urls_say_how_to_connect() -> None:
    async def test() -> None:
        async with Service(configuration("[::1]:0")) as broker:
            ((host, port, *_),) = broker.addresses
            assert host == "::1"
            assert broker.urls == [f"udp://[::1]:{port}"]
            assert socket.inet_pton(socket.AF_INET6, host)

    run(test)


ELSEWHERE: Address = ("192.0.2.1", 0)


def test_a_host_s_addresses_that_are_not_this_machine_s_are_left_out() -> None:
    port = free_port()
    sockets = listen_on("host.example", port, [ELSEWHERE, ("127.0.0.1", port), ("127.0.0.2", port)])
    assert [udp.local_address[:2] for udp in sockets] == [("127.0.0.1", port), ("127.0.0.2", port)]
    with pytest.raises(SocketError, match="another socket has this port"):
        listen_on("host.example", port, [("127.0.0.3", port), ("127.0.0.1", port)])
    for udp in sockets:
        udp.close()
    UdpSocket("127.0.0.3", port).close()  # the error left nothing open


def test_with_any_port_one_of_them_is_enough() -> None:
    (udp,) = listen_on("host.example", 0, [("127.0.0.1", 0), ("127.0.0.2", 0)])
    udp.close()


def test_a_host_that_is_another_machine() -> None:
    with pytest.raises(SocketError, match="does not have that address"):
        listen_on("host.example", 0, [ELSEWHERE, ELSEWHERE])


@pytest.mark.parametrize(
    ("listen", "port", "expected"),
    [
        ("127.0.0.1:50000", 50000, "127.0.0.1:50001"),
        ("localhost", 50000, "localhost:50001"),
        ("[::1]:7", 7, "[::1]:8"),
        ("127.0.0.1:0", 43210, "127.0.0.1:0"),
        ("127.0.0.1:65535", 65535, "127.0.0.1:0"),
    ],
)
def test_where_the_archive_listens_by_default(listen: str, port: int, expected: str) -> None:
    assert archive_address(listen, ("127.0.0.1", port)) == expected


def test_the_warning_names_the_address_and_the_remedy() -> None:
    assert open_to_all("udp://0.0.0.0:1").startswith("udp://0.0.0.0:1 can be reached from other machines")
    assert "[access]" in open_to_all("")
    assert "the archive on 0.0.0.0:2 can be reached" in archive_open_to_all("0.0.0.0:2")
    assert "the archive on 0.0.0.0:2 can be reached" in archive_without_tls("0.0.0.0:2")


def test_what_only_this_machine_can_reach() -> None:
    for listen in ("127.0.0.1:5", "127.3.2.1", "[::1]:5", "localhost:5", "localhost"):
        assert is_local(listen)
    for listen in ("0.0.0.0:5", "[::]:5", "192.0.2.1", "host.example:5"):
        assert not is_local(listen)


def test_each_listener_has_a_reset_key_of_its_own_that_stays_the_same() -> None:
    addresses: list[Address] = [("127.0.0.1", 50000), ("127.0.0.1", 50001), ("::1", 50000, 0, 0)]
    keys = [listener_reset_key(bytes(32), address) for address in addresses]
    assert len({*keys, bytes(32)}) == 4
    assert keys == [listener_reset_key(bytes(32), address) for address in addresses]
    assert listener_reset_key(b"another broker's key, 32 bytes..", addresses[0]) != keys[0]
    assert all(len(key) == 32 for key in keys)
