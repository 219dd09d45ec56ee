"""Files over real sockets: whole, checked, resumed on both sides, in bounded memory, whatever a publisher claims."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from tests.net.running import both_loops, broker_and_client, lossy, run, service, turns
from tests.net.test_publisher import OPEN_BUT_SECRET

from godwit.client.files import CHUNK_BYTES, PART_PATTERN, FileHeader, encode_header, file_id, publisher_of
from godwit.errors import AccessError, FileTransferError, TopicError, UsageError
from godwit.limits import MIB
from godwit.net import files as files_module
from godwit.net.client import AsyncClient, connect
from godwit.net.file_inbox import ReceivedFile
from godwit.net.files import WINDOW_CHUNKS, FileReceiver
from godwit.wire.extension import ExtensionKey, encode_extension


def make_file(path: Path, size_bytes: int, seed: int = 1) -> bytes:
    content = random.Random(seed).randbytes(size_bytes)
    path.write_bytes(content)
    return content


async def send_chunk(client: AsyncClient, topic: str, header: FileHeader, chunk: bytes, sequence: int) -> None:
    """Send one chunk, as another program might."""
    lane = client._runtime.publishers.chunk_waiters(topic, publisher_of(header.id), epoch=header.run, sequence=sequence)
    await client._runtime.publishers.send_chunk(lane, chunk, encode_header(header))
    await lane.confirmed(sequence + 1)


def header_of(content: bytes, name: str, topic: str, *, at: int = 0, run: int = 1) -> FileHeader:
    sha256 = hashlib.sha256(content).digest()
    id_ = file_id(sha256, name, topic)
    return FileHeader(id=id_, run=run, name=name, size=len(content), at=at, sha256=sha256)


# -- both sides -------------------------------------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize("size_bytes", [0, 1, CHUNK_BYTES, 5 * CHUNK_BYTES + 17])
def test_a_file_arrives_as_it_was_sent(
    loop: Callable[[], asyncio.AbstractEventLoop], size_bytes: int, tmp_path: Path
) -> None:
    source = tmp_path / "drawing 1.pdf"
    content = make_file(source, size_bytes)

    async def test() -> None:
        sent_steps: list[tuple[int, int]] = []
        hash_steps: list[tuple[int, int]] = []
        steps: list[tuple[str, int, int]] = []
        async with (
            broker_and_client("sender") as (broker, client),
            connect(broker.urls[0]) as other,
            other.receive_files(
                "plans/#", folder=tmp_path / "inbox", progress=lambda *step: steps.append(step)
            ) as files,
        ):
            sent = await client.send_file(
                "plans/a",
                source,
                progress=lambda *step: sent_steps.append(step),
                hashing=lambda *step: hash_steps.append(step),
            )
            received = await anext(files)
        assert received == ReceivedFile(
            tmp_path / "inbox" / "drawing 1.pdf",
            "drawing 1.pdf",
            "plans/a",
            "sender",
            size_bytes,
            hashlib.sha256(content).digest(),
        )
        assert received.path.read_bytes() == content
        assert (sent.name, sent.topic, sent.size_bytes, sent.sha256) == (
            "drawing 1.pdf", "plans/a", size_bytes, received.sha256,
        )  # fmt: skip
        assert (sent.resumed_at_bytes, sent.reached) == (0, 1)
        assert sent_steps[-1] == (size_bytes, size_bytes)
        assert sent_steps == sorted(sent_steps)
        assert steps[-1] == ("drawing 1.pdf", size_bytes, size_bytes)
        assert not hash_steps or hash_steps[-1] == (size_bytes, size_bytes)

    run(test, loop)


def test_files_cross_a_bad_network(tmp_path: Path) -> None:
    contents = [make_file(tmp_path / f"{n}.bin", (n + 1) * 300_000, seed=n) for n in range(3)]

    async def test() -> None:
        async with (
            service() as broker,
            lossy(broker.addresses[0], seed=5, loss=0.02, reordering=0.01, duplication=0.01, delay_s=0.001) as relay,
            connect(f"127.0.0.1:{relay.address[1]}") as client,
            connect(f"127.0.0.1:{relay.address[1]}") as other,
            other.receive_files("#", folder=tmp_path / "in") as files,
        ):
            sending = asyncio.gather(*(client.send_file(f"t/{n}", tmp_path / f"{n}.bin") for n in range(3)))
            received = {file.name: file async for file in take(files, 3)}
            await sending
            for number, content in enumerate(contents):
                assert received[f"{number}.bin"].path.read_bytes() == content
            assert files.problems == 0

    run(test)


async def take(files: FileReceiver, count: int) -> AsyncIterator[ReceivedFile]:
    for _ in range(count):
        yield await anext(files)


def test_messages_that_are_no_files_are_passed_over(tmp_path: Path) -> None:
    make_file(tmp_path / "a", 10)

    async def test() -> None:
        async with broker_and_client() as (_, client):
            problems: list[str] = []
            async with client.receive_files("#", folder=tmp_path / "in", on_problem=problems.append) as files:
                await client.publish("t", b"just a message")
                await client.send_file("t", tmp_path / "a", name="renamed.txt")
                assert (await anext(files)).path.name == "renamed.txt"
                assert problems == []

    run(test)


def test_a_plain_loop_needs_no_block(tmp_path: Path) -> None:
    make_file(tmp_path / "a", 10)

    async def test() -> None:
        async with broker_and_client() as (_, client):
            await client.send_file("t", tmp_path / "a")
            async for file in client.receive_files("t", folder=tmp_path / "in", start="earliest"):
                assert file.size_bytes == 10
                break

    run(test)


def test_memory_stays_bounded(tmp_path: Path) -> None:
    make_file(tmp_path / "a", 100 * CHUNK_BYTES)

    async def test() -> None:
        async with (
            service(ring_bytes=4 * MIB) as broker,
            connect(broker.urls[0]) as client,
            connect(broker.urls[0]) as other,
            other.receive_files("t", folder=tmp_path / "in") as files,
        ):
            held: list[int] = []
            buffered: list[int] = []

            def look(done_bytes: int, total_bytes: int) -> None:
                held.append(client._runtime.core.held_bytes)
                buffered.append(broker.server.buffered_bytes)

            sending = asyncio.create_task(client.send_file("t", tmp_path / "a", progress=look))
            assert (await anext(files)).size_bytes == 100 * CHUNK_BYTES
            await sending
            assert CHUNK_BYTES <= max(held) <= (WINDOW_CHUNKS + 1) * (CHUNK_BYTES + 1000)
            assert max(buffered) <= 16 * MIB

    run(test)


# -- the sender breaks off --------------------------------------------------------------------------------------------


def test_a_sender_that_breaks_off_goes_on_where_it_was(tmp_path: Path) -> None:
    source = tmp_path / "a.bin"
    content = make_file(source, 60 * CHUNK_BYTES + 5)

    async def test() -> None:
        async with (
            broker_and_client() as (broker, other),
            other.receive_files("t", folder=tmp_path / "in") as files,
        ):
            reading = asyncio.create_task(files.__anext__())
            enough = asyncio.Event()
            client = await connect(broker.urls[0])

            def watch(done_bytes: int, _: int) -> None:
                if done_bytes > 20 * CHUNK_BYTES:
                    enough.set()

            sending = asyncio.create_task(client.send_file("t", source, progress=watch))
            await enough.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            client.abort()
            first_step: list[int] = []
            async with connect(broker.urls[0]) as again:
                sent = await again.send_file("t", source, progress=lambda done, _: first_step.append(done))
            assert 20 * CHUNK_BYTES < sent.resumed_at_bytes <= len(content)
            assert first_step[0] == sent.resumed_at_bytes
            assert (await reading).path.read_bytes() == content

    run(test)


def test_a_file_sent_again_is_a_new_run_and_arrives_again(tmp_path: Path) -> None:
    content = make_file(tmp_path / "a.bin", 2 * CHUNK_BYTES)

    async def test() -> None:
        async with broker_and_client() as (_, client), client.receive_files("t", folder=tmp_path / "in") as files:
            for name in ("a.bin", "a (1).bin", "a (2).bin"):
                sent = await client.send_file("t", tmp_path / "a.bin")
                assert sent.resumed_at_bytes == 0
                received = await anext(files)
                assert received.path.name == name
                assert received.path.read_bytes() == content

    run(test)


def test_two_senders_of_one_file_help_each_other(tmp_path: Path) -> None:
    content = make_file(tmp_path / "a.bin", 20 * CHUNK_BYTES)

    async def test() -> None:
        async with (
            broker_and_client() as (broker, client),
            connect(broker.urls[0]) as other,
            connect(broker.urls[0]) as reader,
            reader.receive_files("t", folder=tmp_path / "in") as files,
        ):
            await asyncio.gather(client.send_file("t", tmp_path / "a.bin"), other.send_file("t", tmp_path / "a.bin"))
            assert (await anext(files)).path.read_bytes() == content

    run(test)


# -- the receiver breaks off ------------------------------------------------------------------------------------------


def test_a_receiver_that_breaks_off_goes_on_where_it_was(tmp_path: Path) -> None:
    content = make_file(tmp_path / "a.bin", 40 * CHUNK_BYTES)
    folder = tmp_path / "in"

    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as client:
            enough = asyncio.Event()
            reader = await connect(broker.urls[0], name="reader")
            files = reader.receive_files("t", folder=folder, progress=lambda name, done, _: enough.set())
            await files.__aenter__()
            reading = asyncio.create_task(files.__anext__())
            sending = asyncio.create_task(client.send_file("t", tmp_path / "a.bin"))
            await enough.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            reader.abort()  # it dies in the middle
            (part,) = folder.glob(PART_PATTERN)
            assert 0 < part.stat().st_size < len(content)
            async with (
                connect(broker.urls[0], name="reader") as reader,
                reader.receive_files("t", folder=folder) as files,
            ):
                assert (await anext(files)).path.read_bytes() == content
                assert files.problems == 0
            await sending

    run(test)


def test_a_cancel_between_loses_no_file(tmp_path: Path) -> None:
    make_file(tmp_path / "a", 3 * CHUNK_BYTES)

    async def test() -> None:
        async with broker_and_client() as (_, client), client.receive_files("t", folder=tmp_path / "in") as files:
            got = []
            for number in range(10):
                sending = asyncio.create_task(client.send_file("t", tmp_path / "a"))
                while not sending.done():
                    waiting = asyncio.create_task(files.__anext__())
                    await turns(1 + number % 4)
                    waiting.cancel()
                    with suppress(asyncio.CancelledError):
                        got.append(await waiting)
            while len(got) < 10:
                got.append(await anext(files))
            assert len({file.path for file in got}) == 10

    run(test)


def test_a_file_that_was_fetched_and_not_handed_out_comes_again_to_a_kept_subscription(tmp_path: Path) -> None:
    source = tmp_path / "a.bin"
    content = make_file(source, 1000)

    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as sender:
            for is_handed_out in (False, True):
                async with (
                    connect(broker.urls[0], name="me") as client,
                    client.receive_files("f", folder=tmp_path / "in", keep=True) as files,
                ):
                    if not is_handed_out:
                        await sender.send_file("f", source)
                    await files._fetch_more()
                    await files._fetch_more()  # changes nothing
                    if is_handed_out:
                        assert (await anext(files)).path.read_bytes() == content
            async with (
                connect(broker.urls[0], name="me") as client,
                client.receive_files("f", folder=tmp_path / "in") as files,
            ):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await anext(files)

    run(test)


def test_a_callback_that_fails_hides_no_file(tmp_path: Path) -> None:
    source = tmp_path / "a.bin"
    content = make_file(source, 1000)

    def fail(*_: object) -> None:
        raise ValueError("of the application")

    async def test() -> None:
        async with (
            broker_and_client() as (_, client),
            client.receive_files("f", folder=tmp_path / "in", progress=fail) as files,
        ):
            await client.send_file("f", source)
            with pytest.raises(ValueError, match="of the application"):
                await anext(files)
            assert (await anext(files)).path.read_bytes() == content

    run(test)


def test_a_late_receiver_is_notified_and_gets_the_next_run(tmp_path: Path) -> None:
    content = b"0123456789"

    async def test() -> None:
        async with broker_and_client() as (_, client):
            await send_chunk(client, "t", header_of(content, "a", "t"), content[:4], 0)
            problems: list[str] = []
            async with client.receive_files("t", folder=tmp_path, on_problem=problems.append) as files:
                await send_chunk(client, "t", header_of(content, "a", "t", at=4), content[4:], 1)
                await send_chunk(client, "t", header_of(content, "a", "t", run=2), content, 0)
                assert (await anext(files)).path.read_bytes() == content
                assert problems == ["a: bytes 0 to 4 are missing; it must be sent again"]

    run(test)


# -- hostile and unlucky ----------------------------------------------------------------------------------------------


def test_hostile_chunks_do_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "inbox"
    good = b"good"

    async def test() -> None:
        async with broker_and_client() as (_, client):
            problems: list[str] = []
            receiving = client.receive_files("#", folder=folder, on_problem=problems.append, max_file_bytes=1000)
            async with receiving as files:
                lane = client._runtime.publishers.chunk_waiters("t", "evil", epoch=1, sequence=0)
                hostile: list[dict[str, Any]] = [{}, {"id": 5}, {"run": "x"}, {"name": os.urandom(4000)}]
                for fields in hostile:  # the broker refuses extensions that are not a map with a file in it
                    extension = encode_extension({ExtensionKey.FILE: fields})
                    await client._runtime.publishers.send_chunk(lane, b"x", extension)
                await lane.confirmed(4)
                huge = header_of(good, "huge", "t")
                for number, header in enumerate(
                    [
                        FileHeader(id=huge.id, run=1, name="huge", size=2**62, at=0, sha256=huge.sha256),
                        FileHeader(id=huge.id, run=1, name="huge", size=5, at=4, sha256=huge.sha256),
                        header_of(good, "../../../escape.txt", "t"),
                    ]
                ):
                    await send_chunk(client, "t", header, b"good", number)
                received = await anext(files)
                assert received.path == folder / "escape.txt"
                assert len(problems) == 6
                assert files.problems == 6
        assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"escape.txt"}

    run(test)


def test_content_that_is_not_what_was_promised_is_not_kept(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            problems: list[str] = []
            async with client.receive_files("t", folder=tmp_path, on_problem=problems.append) as files:
                await send_chunk(client, "t", header_of(b"good", "a", "t"), b"evil", 0)
                await send_chunk(client, "t", header_of(b"good", "b", "t"), b"good", 0)
                assert (await anext(files)).path.name == "b"
                assert ["damaged" in problem for problem in problems] == [True]
            assert [path.name for path in tmp_path.iterdir()] == ["b"]

    run(test)


def test_a_full_disk_is_reported_to_the_receiver(tmp_path: Path) -> None:
    make_file(tmp_path / "a", 10)

    async def test() -> None:
        async with broker_and_client() as (_, client):
            folder = tmp_path / "in"
            async with client.receive_files("t", folder=folder) as files:
                folder.rmdir()
                await client.send_file("t", tmp_path / "a")
                with pytest.raises(FileTransferError, match="cannot keep a in"):
                    await anext(files)
                folder.mkdir()
                await client.send_file("t", tmp_path / "a")
                assert (await anext(files)).size_bytes == 10
            (tmp_path / "blocked").write_text("")
            with pytest.raises(FileTransferError, match="cannot use the folder"):
                async with client.receive_files("t", folder=tmp_path / "blocked"):
                    pass

    run(test)


def test_files_that_cannot_be_sent_are_reported(tmp_path: Path) -> None:
    make_file(tmp_path / "a", 10)

    async def test() -> None:
        async with broker_and_client(access=OPEN_BUT_SECRET) as (_, client):
            with pytest.raises(FileTransferError, match="No such file"):
                await client.send_file("open/t", tmp_path / "missing")
            with pytest.raises(FileTransferError, match="is a folder"):
                await client.send_file("open/t", tmp_path)
            os.mkfifo(tmp_path / "pipe")
            with pytest.raises(FileTransferError, match="is not a regular file"):
                await client.send_file("open/t", tmp_path / "pipe")
            with pytest.raises(AccessError):
                await client.send_file("closed/t", tmp_path / "a")
            with pytest.raises(TopicError):
                await client.send_file("a/+", tmp_path / "a")
            await client.send_file("open/t", tmp_path / "a")
            await client.close()
            with pytest.raises(UsageError, match="closed"):
                await client.send_file("open/t", tmp_path / "a")

    run(test)


@pytest.mark.parametrize("change", ["shorter", "other"])
def test_a_file_that_changes_while_it_is_sent_is_reported(change: str, tmp_path: Path) -> None:
    source = tmp_path / "a"
    make_file(source, (WINDOW_CHUNKS + 4) * CHUNK_BYTES)

    def meddle(done_bytes: int, total_bytes: int) -> None:
        if change == "shorter" and done_bytes == CHUNK_BYTES:
            os.truncate(source, CHUNK_BYTES)
        elif done_bytes == total_bytes:
            with source.open("ab") as file:
                file.write(b"x")

    async def test() -> None:
        async with broker_and_client() as (_, client):
            with pytest.raises(FileTransferError, match="was changed while it was sent"):
                await client.send_file("t", source, progress=meddle)

    run(test)


def test_a_cancel_while_hashing_stops_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_HASH_BYTES", 1000)
    make_file(tmp_path / "a", 2_000_000)

    async def test() -> None:
        async with broker_and_client() as (_, client):
            started = asyncio.Event()
            steps: list[int] = []

            def hashing(done_bytes: int, total_bytes: int) -> None:
                steps.append(done_bytes)
                started.set()

            sending = asyncio.create_task(client.send_file("t", tmp_path / "a", hashing=hashing))
            await started.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert await client.topics() == []

    run(test)


def test_a_cancel_while_the_file_is_opened_closes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_file(tmp_path / "a", 10)
    opened: list[FileIO] = []
    begun, may_end = threading.Event(), threading.Event()
    real_open = files_module._open

    def slow_open(path: Path) -> FileIO:
        begun.set()
        assert may_end.wait(60)
        opened.append(real_open(path))
        return opened[0]

    monkeypatch.setattr(files_module, "_open", slow_open)

    async def test() -> None:
        async with broker_and_client() as (_, client):
            sending = asyncio.create_task(client.send_file("t", tmp_path / "a"))
            assert await asyncio.to_thread(begun.wait, 60)
            sending.cancel()
            asyncio.get_running_loop().call_soon(may_end.set)
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert opened[0].closed

    run(test)
