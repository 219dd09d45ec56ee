"""Processes come and go: brokers that start late, stop, restart; subscribers that are killed. Two address families."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from tests.system.stage import ReservedPort, Stage, Worker, needs_linux, run

SEED = 20_273


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def upto(**counts: int) -> str:
    return f"until {json.dumps({f'house/{topic}': count for topic, count in counts.items()})}"


async def state(worker: Worker, wanted: str) -> str:
    """Waits until the worker's client is in this state, and gives the reason."""
    while (word := await worker.hear("state"))["state"] != wanted:
        pass
    return str(word["reason"])


@needs_linux
def test_clients_started_before_their_broker_get_through() -> None:
    async def test() -> None:
        async with Stage() as stage:
            port = ReservedPort()
            subscriber = await stage.worker("subscribe", "early", broker=port.address, filters=["house/#"], seed=SEED)
            publisher = await stage.worker("publish", "early too", broker=port.address, topic="house/a", seed=SEED)
            await port.knocked(2)
            assert subscriber.heard("subscribed") == publisher.heard("ready") == []
            port.give_up()
            await stage.broker(listen=(port.address,))
            await subscriber.hear("subscribed")
            await publisher.hear("ready")
            publisher.tell("send 100")
            subscriber.tell(upto(a=100))
            assert (await subscriber.hear("complete"))["received"] == 100

    run(test, within_s=240)


@needs_linux
@pytest.mark.parametrize("messages", [2_000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_a_killed_subscriber_gets_what_it_missed(tmp_path: Path, messages: int) -> None:
    log = tmp_path / "taken"

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker()
            shared = {"broker": broker.address, "filters": ["house/#"], "seed": SEED, "log": str(log)}
            first = await stage.worker("subscribe", "archive", **shared)
            await first.hear("subscribed")
            publisher = await stage.worker(
                "publish", "meter", broker=broker.address, topic="house/a", seed=SEED, interval_s=0.001
            )
            await publisher.hear("ready")
            publisher.tell(f"send {messages // 2}")
            await first.hear("progress")
            first.signal(signal.SIGKILL)
            assert await first.ended() == -signal.SIGKILL
            taken = [int(line) for line in log.read_text().splitlines()]
            assert taken == list(range(len(taken)))
            publisher.tell(f"send {messages - messages // 2}")
            for _ in range(2):
                await publisher.hear("confirmed")  # all other messages, while no subscriber is connected

            second = await stage.worker("subscribe", "archive", **shared)
            second.tell(upto(a=messages))
            resumed_at = (await second.hear("first"))["number"]
            word = await second.hear("complete", within_s=120)
            print(f"killed after {len(taken)}, resumed at {resumed_at}, got {word['received']} of {messages}")
            # What the application had taken without asking for the next comes again, and nothing is left out.
            assert resumed_at <= len(taken)
            assert word["received"] == messages - resumed_at
            assert second.heard("gap") == []

    run(test, within_s=240)


@needs_linux
def test_clients_are_told_of_a_stop_and_come_back_after_a_restart() -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker()
            address = broker.address
            subscribers = [
                await stage.worker("subscribe", name, broker=address, filters=["house/#"], seed=SEED)
                for name in ("one", "two")
            ]
            publishers = [
                await stage.worker("publish", f"to {topic}", broker=address, topic=f"house/{topic}", seed=SEED)
                for topic in "ab"
            ]
            workers = [*subscribers, *publishers]
            for worker in workers:
                await worker.hear("subscribed" if worker in subscribers else "ready")
            for publisher in publishers:
                publisher.tell("send 300")
            for subscriber in subscribers:
                subscriber.tell(upto(a=300, b=300))
                await subscriber.hear("complete")
            for publisher in publishers:
                await publisher.hear("confirmed")

            await broker.stop()
            for worker in workers:
                assert await state(worker, "offline") == "the broker is being stopped"
            for publisher in publishers:
                publisher.tell("send 300")  # into the client's buffer
                await publisher.hear("sending")
            await stage.broker(listen=(address,), name="second broker")
            for worker in workers:
                await state(worker, "online")
            for subscriber in subscribers:
                subscriber.tell(upto(a=600, b=600))
                word = await subscriber.hear("complete")
                assert (word["received"], word["repeats"]) == (1200, 0)
            for publisher in publishers:
                assert (await publisher.hear("confirmed"))["sent"] == 600

    run(test, within_s=240)


@needs_linux
@pytest.mark.soak  # no side closes the connection, so it takes the idle timeout: half a minute
def test_a_killed_broker_is_noticed_and_its_successor_is_found() -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker()
            address = broker.address
            subscriber = await stage.worker("subscribe", "one", broker=address, filters=["house/#"], seed=SEED)
            publisher = await stage.worker("publish", "two", broker=address, topic="house/a", seed=SEED)
            await subscriber.hear("subscribed")
            await publisher.hear("ready")
            publisher.tell("send 300")
            subscriber.tell(upto(a=300))
            await subscriber.hear("complete")
            await publisher.hear("confirmed")
            await broker.kill()
            await stage.broker(listen=(address,), name="second broker")
            publisher.tell("send 300")
            subscriber.tell(upto(a=600))
            word = await subscriber.hear("complete")
            assert (word["received"], word["repeats"]) == (600, 0)
            assert (await publisher.hear("confirmed"))["sent"] == 600

    run(test, within_s=240)


@needs_linux
@pytest.mark.skipif(not has_ipv6(), reason="this system has no IPv6")
def test_listeners_of_both_families_share_one_broker() -> None:
    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(listen=("127.0.0.1:0", "[::1]:0"))
            four, six = broker.addresses
            assert (four[:10], six[:6]) == ("127.0.0.1:", "[::1]:")
            subscribers = [
                await stage.worker("subscribe", f"sub {address}", broker=address, filters=["house/#"], seed=SEED)
                for address in (four, six)
            ]
            publishers = [
                await stage.worker("publish", f"pub {address}", broker=address, topic=f"house/{topic}", seed=SEED)
                for address, topic in ((four, "a"), (six, "b"))
            ]
            for subscriber in subscribers:
                await subscriber.hear("subscribed")
            for publisher in publishers:
                await publisher.hear("ready")
                publisher.tell("send 500")
            for publisher in publishers:
                assert (await publisher.hear("confirmed"))["reached"] == len(subscribers)
            for subscriber in subscribers:
                subscriber.tell(upto(a=500, b=500))
                assert (await subscriber.hear("complete"))["received"] == 1000
            await broker.stop()
            for worker in (*subscribers, *publishers):
                assert await state(worker, "offline") == "the broker is being stopped"

    run(test, within_s=240)
