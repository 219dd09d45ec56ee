"""A large file, sent and received with the command line through a lossy network: whole, and in little memory."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

import pytest
from tests.system.stage import MIB, Memory, Stage, bad_way, needs_linux, processor_s, run, until

SEED = 20_272
MOST_BYTES = 200_000_000


def make_file(path: Path, size_bytes: int) -> str:
    """Bytes that do not repeat themselves. Gives their hash."""
    rng = random.Random(f"{SEED} {size_bytes}")
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for at in range(0, size_bytes, MIB):
            block = rng.randbytes(min(MIB, size_bytes - at))
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@needs_linux
@pytest.mark.parametrize("size_mb", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_a_large_file_crosses_the_broker_whole(tmp_path: Path, size_mb: int) -> None:
    size_bytes = size_mb * 1_000_000
    source = tmp_path / "weather station.bin"
    folder = tmp_path / "received"
    folder.mkdir()
    sha256 = make_file(source, size_bytes)

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker()
            async with bad_way(broker, seed=SEED, loss=0.02, delay_s=0.0005) as (_, address):
                receiver = await stage.godwit(
                    "sub", "files/#", "--save", str(folder), "--count", "1", "--broker", address
                )
                await broker.line("subscribed to files/#")
                began = time.monotonic()
                sender = await stage.godwit("pub", "files/weather", "--file", str(source), "--broker", address)
                assert await sender.ended(within_s=540) == 0, sender.said()
                sent_s = time.monotonic() - began
                assert await receiver.ended(within_s=540) == 0, receiver.said()
                taken_s = time.monotonic() - began
                print(sender.said())
                print(f"confirmed in {sent_s:.1f} s, received in {taken_s:.1f} s ({size_mb / taken_s:.1f} MB/s)")
            memory = Memory.of(broker)
            print(f"broker: {memory}, {processor_s(broker):.1f} s of the processor")
            received = folder / source.name
            assert [path.name for path in folder.iterdir()] == [source.name]
            assert received.stat().st_size == size_bytes
            assert hash_of(received) == sha256
            assert memory.peak_bytes < MOST_BYTES

    run(test, within_s=590)


@needs_linux
def test_a_transfer_whose_ends_are_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    source = tmp_path / "weather station.bin"
    folder = tmp_path / "received"
    folder.mkdir()
    size_bytes = 20_000_000
    sha256 = make_file(source, size_bytes)

    def arrived_bytes() -> int:
        return sum(path.stat().st_size for path in folder.iterdir())

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker()
            # As slow as a good radio link: there is time to strike in the middle.
            async with bad_way(broker, seed=SEED, loss=0.02, bandwidth_bits_per_s=60e6, queue_packets=200) as (_, way):
                receive = ["sub", "files/#", "--save", str(folder), "--count", "1", "--name", "keeper", "--broker", way]
                send = ["pub", "files/weather", "--file", str(source), "--broker", way]
                receiver = await stage.godwit(*receive)
                await broker.line("keeper subscribed to files/#")

                sender = await stage.godwit(*send)
                await until(lambda: arrived_bytes() > size_bytes // 4, "a quarter of the file is there")
                assert sender.is_running
                await sender.kill()
                sender = await stage.godwit(*send)
                await until(lambda: arrived_bytes() > size_bytes // 2, "half of the file is there")
                assert receiver.is_running
                await receiver.kill()
                assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == []
                receiver = await stage.godwit(*receive)

                assert await sender.ended() == 0, sender.said()
                assert await receiver.ended() == 0, receiver.said()
                print(sender.said())
                assert "of it earlier" in sender.said()
            assert [path.name for path in folder.iterdir()] == [source.name]
            assert hash_of(folder / source.name) == sha256

    run(test, within_s=240)
