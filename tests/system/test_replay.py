"""The whole log is read again while publishers go on: every offset once, in order, in little memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.system.stage import MIB, Memory, Stage, needs_linux, run

PUBLISHERS = 2
MOST_MORE_BYTES = 64 * MIB
"""What a subscriber may need beyond what it had at its start, however long the log is."""


@needs_linux
@pytest.mark.parametrize(
    ("history", "more"), [(200_000, 50_000), pytest.param(5_000_000, 1_000_000, marks=pytest.mark.soak)]
)
def test_history_runs_into_live_while_publishers_go_on(tmp_path: Path, history: int, more: int) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path / "data")
            publishers = [
                await stage.worker("pour", f"pub{number}", broker=broker.address, qos=1) for number in range(PUBLISHERS)
            ]
            began = time.monotonic()
            for publisher in publishers:
                await publisher.hear("ready")
                publisher.tell(f"send {history // PUBLISHERS}")
            for publisher in publishers:
                await publisher.hear("confirmed", within_s=300)
            print(f"{history} messages confirmed in {time.monotonic() - began:.1f} s; broker: {Memory.of(broker)}")

            subscriber = await stage.worker("replay", "reader", broker=broker.address)
            await subscriber.hear("subscribed")
            at_start = Memory.of(subscriber)
            began = time.monotonic()
            subscriber.tell(f"until {history + more}")
            await subscriber.hear("progress")
            for publisher in publishers:
                publisher.tell(f"send {more // PUBLISHERS}")
            for publisher in publishers:
                await publisher.hear("confirmed", within_s=300)
            confirmed_s = time.monotonic() - began
            word = await subscriber.hear("complete", within_s=300)
            memory = Memory.of(subscriber)
            print(f"{more} more confirmed after {confirmed_s:.1f} s, all read after {time.monotonic() - began:.1f} s")
            print(f"subscriber: {memory}, {at_start.now_bytes / MIB:.1f} MiB at its start; broker: {Memory.of(broker)}")

            # An offset or a number out of turn, or twice, would have ended the worker.
            share = (history + more) // PUBLISHERS
            assert word["received"] == history + more
            assert word["numbers"] == {f"poured/pub{number}": share for number in range(PUBLISHERS)}
            assert subscriber.heard("gap") == []
            assert memory.peak_bytes - at_start.now_bytes < MOST_MORE_BYTES
            await broker.stop()

    run(test, within_s=900)
