"""Trouble with the disk, for real: full, failing, read-only, missing, used twice, damaged, deleted; and a kill.

What cannot work at the start is one clear line and exit code 1. While the broker runs, publishers are told, nothing is
confirmed that is not on disk, reads go on, and publishing works again without a restart once there is room.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import apsw
import pytest
from tests.system.stage import MIB, Broker, Stage, needs_linux, run, until

from godwit.errors import BrokerError
from godwit.net.client import AsyncClient, connect
from godwit.wire.control_base import Code

DISK_BYTES = 12 * MIB
PAYLOAD = bytes(60_000)
LONG_WAIT_S = 120.0
# A disk that never comes back: the process tries to bring its file up to date at the end, and waits for ever.
HANGING = """
import time
from godwit.store.sqlite import SqliteStore
def hang(self, *, truncate):
    print("the disk hangs", flush=True)
    time.sleep(3600)
SqliteStore.checkpoint = hang
from godwit.cli import main; main()
"""
# SIGXFSZ would end the process; without it, a write behind the limit is an error like any other (EFBIG).
LIMITED = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({DISK_BYTES}, resource.RLIM_INFINITY))
from godwit.cli import main; main()
"""

pytestmark = needs_linux


@contextmanager
def small_disk(folder: Path, *, size_bytes: int = DISK_BYTES) -> Iterator[bool]:
    """A file system of its own in the folder; whether that could be had, which takes the rights to mount."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    has_it = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield has_it
    finally:
        if has_it:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@asynccontextmanager
async def client_of(broker: Broker, name: str | None = None) -> AsyncIterator[AsyncClient]:
    async with connect(broker.address, name=name, timeout_s=LONG_WAIT_S) as client:
        yield client


async def broker_from(stage: Stage, code: str, data: Path) -> Broker:
    """A broker that is ready, in a process of which something else is special."""
    arguments = ("broker", "--listen", "127.0.0.1:0", "--data", str(data), "--archive", "none")
    broker = Broker("special broker", await stage._start(code, *arguments))
    stage._processes.append(broker)
    await broker.listening(1)
    return broker


async def publish_until_refused(client: AsyncClient) -> tuple[int, BrokerError]:
    """How many were confirmed before."""
    confirmed = 0
    while True:
        try:
            await client.publish("news", PAYLOAD)
        except BrokerError as error:
            return confirmed, error
        confirmed += 1
        assert confirmed * len(PAYLOAD) < 4 * DISK_BYTES, "the disk does not get full"


async def read_all(broker: Broker) -> int:
    """How many messages come from the beginning of the log up to its end."""
    async with client_of(broker) as reader:
        async with reader.subscribe("news", start="latest") as messages:
            end = messages.position
        assert end is not None
        async with reader.subscribe("news", start="earliest") as messages:
            offsets = [(await anext(messages)).offset for _ in range(end)]
    assert offsets == list(range(end))
    return len(offsets)


async def refused(stage: Stage, *arguments: str) -> str:
    """The one line of a broker that does not start."""
    process = await stage.godwit("broker", "--listen", "127.0.0.1:0", *arguments)
    assert await process.ended() == 1, process.said()
    await until(lambda: bool(process.lines), "it says why")
    (line,) = process.lines
    assert line.startswith("godwit: ")
    return line.removeprefix("godwit: ")


# -- while it runs ----------------------------------------------------------------------------------------------------


async def survive_a_lack_of_room(stage: Stage, broker: Broker, data: Path, make_room: Callable[[], None]) -> None:
    async with client_of(broker) as client:
        confirmed, error = await publish_until_refused(client)
        print(f"{confirmed} messages of {len(PAYLOAD)} bytes were confirmed: {error}")
        assert error.code == Code.STORAGE
        assert confirmed > 20
        line = await broker.line("messages are refused")
        assert str(data) in line
        with pytest.raises(BrokerError) as again:
            await client.publish("news", PAYLOAD)
        assert again.value.code == Code.STORAGE
        assert await read_all(broker) == confirmed  # reads go on
        make_room()
        await client.publish("news", PAYLOAD)
        await broker.line("the log can be written again")
        for _ in range(5):
            await client.publish("news", PAYLOAD)
    assert await read_all(broker) == confirmed + 6
    await broker.kill()  # what was confirmed is there again
    second = await stage.broker(data=data, name="second broker")
    assert await read_all(second) == confirmed + 6
    await second.stop()


def test_a_full_disk(tmp_path: Path) -> None:
    async def test() -> None:
        with small_disk(tmp_path) as has_it:
            if not has_it:
                pytest.skip("this user may not mount; the next test fills a file up to a limit instead")
            filler = tmp_path / "filler"
            filler.write_bytes(bytes(6 * MIB))
            async with Stage() as stage:
                broker = await stage.broker(data=tmp_path / "data")
                await survive_a_lack_of_room(stage, broker, tmp_path / "data", filler.unlink)

    run(test, within_s=240)


def test_a_disk_that_takes_no_more_of_a_file(tmp_path: Path) -> None:
    """A limit of the process, which needs no rights: the system refuses each write behind it with an error."""

    async def test() -> None:
        async with Stage() as stage:
            broker = await broker_from(stage, LIMITED, tmp_path)

            def make_room() -> None:
                none = resource.RLIM_INFINITY
                resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (none, none))

            await survive_a_lack_of_room(stage, broker, tmp_path, make_room)

    run(test, within_s=240)


@pytest.mark.parametrize("name", ["log.sqlite", "log.sqlite-wal"])
def test_a_file_that_is_deleted_under_a_running_broker(tmp_path: Path, name: str) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            async with client_of(broker) as client:
                for _ in range(10):
                    await client.publish("news", PAYLOAD)
                (tmp_path / name).unlink()
                confirmed, error = await publish_until_refused(client)
                assert confirmed == 0
                assert error.code == Code.STORAGE
                assert "it was moved or deleted while it was in use" in str(error)
                assert str(tmp_path) in await broker.line("messages are refused")
                assert await read_all(broker) == 10
            await broker.stop()

    run(test, within_s=240)


def test_a_broker_that_is_killed_has_everything_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            async with client_of(broker, "sensor") as client:
                for number in range(50):
                    await client.publish("news", f"{number}", retain=number == 49)
                broker.signal(signal.SIGKILL)
                assert await broker.ended() == -signal.SIGKILL
                second = await stage.broker(data=tmp_path, listen=(broker.address,), name="second broker")
                await client.publish("news", "50")
            async with client_of(second) as reader, reader.subscribe("news", start="earliest") as messages:
                assert [int((await anext(messages)).payload) for _ in range(51)] == list(range(51))
            async with client_of(second) as reader, reader.subscribe("news") as messages:
                assert (await anext(messages)).payload == b"49"
            await second.stop()
            assert not (tmp_path / "log.sqlite-wal").exists()  # all is in the file

    run(test, within_s=240)


@pytest.mark.parametrize("end", ["killed", "stopped", "filled later"])
def test_a_broker_starts_on_a_full_disk(tmp_path: Path, end: str) -> None:
    """It serves what it has, refuses messages, and accepts them when there is room."""

    async def test() -> None:
        with small_disk(tmp_path) as has_it:
            if not has_it:
                pytest.skip("this user may not mount")
            async with Stage() as stage:
                broker = await stage.broker(data=tmp_path / "data")
                async with client_of(broker) as client:
                    for _ in range(40):
                        await client.publish("news", PAYLOAD)
                if end == "filled later":
                    await broker.stop()
                filler = tmp_path / "filler"
                fill(filler)
                if end == "killed":
                    await broker.kill()
                elif end == "stopped":
                    await broker.stop()
                fill(tmp_path / "more")  # what its end has freed
                second = await stage.broker(data=tmp_path / "data", name="second broker")
                assert await read_all(second) >= 40
                async with client_of(second) as client:
                    confirmed, error = await publish_until_refused(client)
                    assert error.code == Code.STORAGE
                    assert "the disk is full" in str(error)
                    (tmp_path / "more").unlink()
                    filler.unlink()
                    await client.publish("news", PAYLOAD)
                assert await read_all(second) == 41 + confirmed
                await second.stop()

    run(test, within_s=240)


def fill(path: Path) -> None:
    """Use up what is left of the disk, to the last page."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("damage", ["deleted", "cut", "flipped"])
def test_a_write_ahead_log_that_is_damaged_after_a_kill(tmp_path: Path, damage: str) -> None:
    """The operator and the subscribers get to know which messages are lost, and no offset is used again."""

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            async with client_of(broker) as client:
                for number in range(200):
                    await client.publish("news", f"{number}".encode() + bytes(3_000))
            await broker.kill()
            wal = tmp_path / "log.sqlite-wal"
            content = wal.read_bytes()
            middle = len(content) // 2
            if damage == "deleted":
                wal.unlink()
            elif damage == "cut":
                wal.write_bytes(content[:middle])
            else:
                wal.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
            verify = await stage.godwit("log", "verify", "--data", str(tmp_path))
            assert await verify.ended() == 1
            assert "were confirmed and are missing" in verify.said()
            second = await stage.broker(data=tmp_path, name="second broker")
            (line,) = [line for line in second.lines if "were confirmed and are missing" in line]
            gaps: list[int | None] = []
            async with client_of(second) as client:
                await client.publish("news", b"new")
                async with client.subscribe("news", start="earliest", on_gap=gaps.append) as messages:
                    found: dict[int, bytes] = {}
                    while b"new" not in found.values():
                        message = await anext(messages)
                        assert message.offset is not None
                        found[message.offset] = message.payload
            assert found.pop(200) == b"new"
            assert all(payload.startswith(f"{offset}".encode() + b"\0") for offset, payload in found.items())
            assert sum(gap or 0 for gap in gaps) == 200 - len(found)
            if damage == "flipped":
                assert len(found) >= 199
                assert "put back" in line
            else:
                assert "are lost for good" in line
            await second.stop()

    run(test, within_s=240)


# -- at the start -----------------------------------------------------------------------------------------------------


def test_a_second_broker_on_the_same_folder(tmp_path: Path) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            line = await refused(stage, "--data", str(tmp_path))
            assert line.startswith(f"another broker works in the folder {tmp_path}: stop it, or give this one")
            async with client_of(broker) as client:
                await client.publish("news", PAYLOAD)  # the first has not noticed
            await broker.kill()
            third = await stage.broker(data=tmp_path, name="third broker")  # a lock dies with its owner
            assert await read_all(third) == 1

    run(test, within_s=240)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def test() -> None:
        async with Stage() as stage:
            line = await refused(stage, "--data", str(tmp_path / "file" / "data"))
            assert line.startswith(f"the data folder {tmp_path / 'file' / 'data'} cannot be used: Not a directory.")

    run(test, within_s=240)


def test_a_read_only_disk(tmp_path: Path) -> None:
    async def test() -> None:
        with small_disk(tmp_path) as has_it:
            async with Stage() as stage:
                broker = await stage.broker(data=tmp_path / "data")
                await broker.stop()
                with read_only(tmp_path, has_it) as is_read_only:
                    if not is_read_only:
                        pytest.skip("root may write everywhere, and this one may not mount")
                    for folder in ("data", "new"):
                        line = await refused(stage, "--data", str(tmp_path / folder))
                        assert str(tmp_path / folder) in line
                        assert "Read-only" in line or "read-only" in line or "Permission denied" in line

    run(test, within_s=240)


@contextmanager
def read_only(folder: Path, is_mounted: bool) -> Iterator[bool]:
    if is_mounted:
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield True
        return
    if os.geteuid() == 0:
        yield False
        return
    parts = [folder / "data" / "log.sqlite", folder / "data", folder]
    for part in parts:
        part.chmod(0o500)
    try:
        yield True
    finally:
        for part in reversed(parts):
            part.chmod(0o700)


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            async with client_of(broker) as client:
                for _ in range(20):
                    await client.publish("news", PAYLOAD)
            await broker.stop()
            whole = path.read_bytes()
            page_bytes = 16_384
            for damage in (
                b"this is no database".ljust(100) + whole[100:],
                whole[:page_bytes] + b"\xff" * page_bytes + whole[2 * page_bytes :],
            ):
                path.write_bytes(damage)
                line = await refused(stage, "--data", str(tmp_path))
                assert str(path) in line
                assert "godwit log recover" in line
                assert path.read_bytes() == damage  # a file that it refuses is not touched
            path.write_bytes(whole)
            second = await stage.broker(data=tmp_path)
            assert await read_all(second) == 20

    run(test, within_s=240)


def test_a_file_of_a_newer_version(tmp_path: Path) -> None:
    async def test() -> None:
        async with Stage() as stage:
            await (await stage.broker(data=tmp_path)).stop()
            with apsw.Connection(str(tmp_path / "log.sqlite")) as connection:
                connection.execute("PRAGMA user_version = 999")
            connection.close()
            line = await refused(stage, "--data", str(tmp_path))
            assert "was written by a newer Godwit" in line

    run(test, within_s=240)


def test_ctrl_c_ends_at_once_also_with_work_waiting(tmp_path: Path) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            async with client_of(broker) as client:
                publisher = client.publisher("news", qos=1)
                for _ in range(20):
                    publisher.send(PAYLOAD)
                await client.publish("other", b"")
                broker.signal(signal.SIGINT)
                assert await broker.ended() == 0
            assert "the broker has stopped" in broker.said()
            assert not (tmp_path / "log.sqlite-wal").exists()

    run(test, within_s=240)


def test_a_second_ctrl_c_ends_it_also_when_the_disk_hangs(tmp_path: Path) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await broker_from(stage, HANGING, tmp_path)
            broker.signal(signal.SIGINT)
            await broker.line("the disk hangs")
            assert broker.is_running
            broker.signal(signal.SIGINT)
            assert await broker.ended() != 0

    run(test, within_s=240)
