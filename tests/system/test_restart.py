"""A durable broker is stopped, or killed, and started again on its folder: what clients left there goes on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.system.stage import Broker, Stage, needs_linux, run

import godwit
from godwit.net.subscription import AsyncSubscription

PATIENCE_S = 120.0
both_ends = pytest.mark.parametrize("end", ["stopped", "killed"])


async def finish(broker: Broker, end: str) -> None:
    if end == "killed":
        broker.signal(signal.SIGKILL)
        await broker.ended()
    else:
        await broker.stop()


async def restart(stage: Stage, broker: Broker, end: str, data: Path) -> Broker:
    """The next broker, on the same folder and port."""
    await finish(broker, end)
    return await stage.broker(data=data, listen=(broker.address,), name="next broker")


async def take(messages: AsyncSubscription, count: int) -> list[bytes]:
    """Return the payloads of the next `count` messages."""
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(messages)).payload for _ in range(count)]


@needs_linux
@both_ends
def test_retained_messages_are_still_there(tmp_path: Path, end: str) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            async with godwit.connect(broker.address) as client:
                await client.publish("home/lamp", b"on", retain=True)
                await client.publish("home/lamp", b"dimmed", retain=True)
                await client.publish("home/radio", b"loud", retain=True)
                await client.publish("home/radio", b"", retain=True)
                await client.publish("home/door", b"open", qos=0, retain=True)
                await client.ping()  # the answer comes behind what QoS 0 has no answer for
                await client.publish("behind", b"")  # the confirm: the log has what came before
            broker = await restart(stage, broker, end, tmp_path)
            async with godwit.connect(broker.address) as client, client.subscribe("home/+") as messages:
                await client.publish("home/end", b"end")
                found = {}
                while (message := await anext(messages)).payload != b"end":
                    found[message.topic] = message.payload
                    assert message.retained
                assert found["home/lamp"] == b"dimmed"
                assert "home/radio" not in found
                assert found["home/door"] == b"open"

    run(test, within_s=240)


@needs_linux
@both_ends
def test_a_session_and_a_cursor_go_on_where_they_were(tmp_path: Path, end: str) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            numbers = [b"%d" % number for number in range(20)]
            async with godwit.connect(broker.address, name="watcher") as watcher:
                async with watcher.subscribe("work/#", keep=True) as messages:
                    for number in numbers[:10]:
                        await watcher.publish("work/a", number)
                    assert await take(messages, 5) == numbers[:5]
                async with watcher.subscribe("work/#", cursor="done", start="earliest") as messages:
                    assert await take(messages, 8) == numbers[:8]
                    await messages.commit()
            broker = await restart(stage, broker, end, tmp_path)
            async with godwit.connect(broker.address, name="watcher") as watcher:
                for number in numbers[10:]:
                    await watcher.publish("work/a", number)
                async with watcher.subscribe("work/#", keep=True) as messages:
                    assert await take(messages, 15) == numbers[5:]
                async with watcher.subscribe("work/#", cursor="done") as messages:
                    assert await take(messages, 12) == numbers[8:]

    run(test, within_s=240)


@needs_linux
@both_ends
def test_a_publisher_of_qos_2_is_recognised(tmp_path: Path, end: str) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            numbers = [b"%d" % number for number in range(120)]
            async with godwit.connect(broker.address, name="plant") as client:
                meter = client.publisher("meter", qos=2, identity="meter", epoch=3)
                for number in numbers[:100]:
                    meter.send(number)
                await meter.flush()
            broker = await restart(stage, broker, end, tmp_path)
            async with godwit.connect(broker.address, name="plant") as client:
                # Another run of the program, which does not know how many of its last thirty messages got through.
                meter = client.publisher("meter", qos=2, identity="meter", epoch=3, sequence=70)
                for number in numbers[70:]:
                    meter.send(number)
                await meter.flush()
                async with client.subscribe("meter", start="earliest") as messages:
                    assert await take(messages, 120) == numbers
                    await client.publish("meter", b"end")
                    assert await take(messages, 1) == [b"end"]
                retired = client.publisher("meter", qos=2, identity="meter", epoch=2)
                retired.send(b"an echo of long ago")
                with pytest.raises(godwit.BrokerError, match="epoch"):
                    await retired.flush()

    run(test, within_s=240)


@needs_linux
@pytest.mark.soak  # a broker gives those who were connected a minute to come back
@both_ends
def test_the_will_of_who_does_not_come_back_is_published(tmp_path: Path, end: str) -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path)
            will = {topic: godwit.Will(topic=f"wills/{topic}", payload=b"gone") for topic in ("lost", "faithful")}
            lost = await godwit.connect(broker.address, name="lost", will=will["lost"])
            async with godwit.connect(broker.address, name="faithful", will=will["faithful"]) as faithful:
                await finish(broker, end)
                lost.abort()  # without closing the connection
                await stage.broker(data=tmp_path, listen=(broker.address,), name="next broker")
                async with faithful.subscribe("wills/#", start="earliest") as messages:
                    assert (await anext(messages)).topic == "wills/lost"
                    await faithful.publish("wills/end", b"end")
                    assert (await anext(messages)).topic == "wills/end"

    run(test, within_s=240)
