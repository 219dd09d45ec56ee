"""A broker, four publishers and four subscribers, each a process, over a bad network: everything arrives, in order."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.system.stage import Memory, Stage, bad_way, needs_linux, processor_s, run

SEED = 20_271
PUBLISHERS = 4
SUBSCRIBERS = 4
BAD = {"loss": 0.10, "duplication": 0.05, "reordering": 0.05, "delay_s": 0.001, "jitter_s": 0.001}


@needs_linux
@pytest.mark.parametrize("messages", [2_000, pytest.param(20_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("qos", [1, 2])
def test_all_messages_reach_all_subscribers_in_order(messages: int, qos: int) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker()
            async with bad_way(broker, seed=SEED + qos, **BAD) as (_, address):
                shared: dict[str, Any] = {"broker": address, "seed": SEED}
                subscribers = [
                    await stage.worker("subscribe", f"sub{number}", filters=["house/#"], **shared)
                    for number in range(SUBSCRIBERS)
                ]
                publishers = [
                    await stage.worker("publish", f"pub{number}", topic=f"house/{number}", qos=qos, **shared)
                    for number in range(PUBLISHERS)
                ]
                for subscriber in subscribers:
                    await subscriber.hear("subscribed")
                for publisher in publishers:
                    await publisher.hear("ready")

                began = time.monotonic()
                share = messages // PUBLISHERS
                for subscriber in subscribers:
                    subscriber.tell(f"until {json.dumps({f'house/{n}': share for n in range(PUBLISHERS)})}")
                for publisher in publishers:
                    publisher.tell(f"send {share}")
                for publisher in publishers:
                    word = await publisher.hear("confirmed", within_s=240)
                    assert (word["sent"], word["reached"]) == (share, SUBSCRIBERS)
                confirmed_s = time.monotonic() - began
                complete = [await subscriber.hear("complete", within_s=240) for subscriber in subscribers]
                print(
                    f"{messages} messages to {SUBSCRIBERS}: confirmed in {confirmed_s:.1f} s, "
                    f"there in {time.monotonic() - began:.1f} s"
                )
                print(f"broker: {Memory.of(broker)}, {processor_s(broker):.1f} s of the processor")

                reconnects = sum(word["state"] == "offline" for worker in publishers for word in worker.heard("state"))
                for subscriber, word in zip(subscribers, complete, strict=True):
                    # A hole, a swap or a wrong byte would have ended the worker. What a publisher sends again after a
                    # reconnect may come twice at QoS 1, and never at QoS 2.
                    assert [first["number"] for first in subscriber.heard("first")] == [0] * PUBLISHERS
                    assert subscriber.heard("gap") == []
                    assert word["repeats"] == 0 or (qos == 1 and reconnects)

    run(test, within_s=300)
