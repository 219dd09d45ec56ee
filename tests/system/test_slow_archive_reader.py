"""A client reads the archive slowly while publishers run at full rate: the write-ahead log stays small."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.system.stage import MIB, Memory, Stage, needs_linux, run

PUBLISHERS = 2
MESSAGE_BYTES = 8 * 1024
"""Large, so that the log grows as fast as it can."""
MOST_WAL_BYTES = 512 * MIB
INTERVAL_S = 0.2
"""Between two pieces that the client takes."""
LOOK_S = 0.01
ENOUGH_BYTES = 1024 * MIB
"""A write-ahead log that was never emptied would be larger by then than it may be."""


@needs_linux
@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.soak)])
def test_the_write_ahead_log_stays_small(tmp_path: Path, seconds: int) -> None:
    data = tmp_path / "data"

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=data, archive="127.0.0.1:0")
            publishers = [
                await stage.worker("pour", f"pub{number}", broker=broker.address, qos=1, message_bytes=MESSAGE_BYTES)
                for number in range(PUBLISHERS)
            ]
            for publisher in publishers:
                await publisher.hear("ready")
                publisher.tell("send 1000")  # something to read
            for publisher in publishers:
                await publisher.hear("confirmed")
            reader = await stage.worker("read_slowly", "reader", archive=broker.archive, interval_s=INTERVAL_S)
            await reader.hear("reading")
            for publisher in publishers:
                publisher.tell("go")
            wal = data / "log.sqlite-wal"
            largest_bytes = 0
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                largest_bytes = max(largest_bytes, wal.stat().st_size)
                assert largest_bytes < MOST_WAL_BYTES
                await asyncio.sleep(LOOK_S)
            await reader.hear("reading")  # a second piece: the archive has the lowest priority
            reader.tell("stop")
            word = await reader.hear("read")
            written = 0
            for publisher in publishers:
                publisher.tell("halt")
                written += (await publisher.hear("confirmed"))["confirmed"] * MESSAGE_BYTES
            print(
                f"{written / MIB:.0f} MiB of payload in {seconds} s, the write-ahead log had at most "
                f"{largest_bytes / MIB:.0f} MiB; {word['pieces']} pieces, {word['rows']} messages read; "
                f"broker: {Memory.of(broker)}"
            )
            assert word["pieces"] > 1
            if seconds >= 60:
                assert written > ENOUGH_BYTES
            await broker.stop()

    run(test, within_s=240 + 3 * seconds)
