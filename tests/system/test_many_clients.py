"""Thousands of connected clients, each with two subscriptions, cost the broker bounded memory, and all are reached."""

from __future__ import annotations

import time

import pytest
from tests.system.stage import Memory, Stage, Worker, needs_linux, processor_s, run

from godwit.net.client import connect

GENERATORS = 4
MOST_BYTES = 250_000_000
SAMPLE = 100


async def online(generators: list[Worker]) -> int:
    """How many clients are connected, by their own account."""
    for generator in generators:
        generator.tell("tell")
    return sum([(await generator.hear("told"))["online"] for generator in generators])


@needs_linux
@pytest.mark.parametrize("clients", [500, pytest.param(5_000, marks=pytest.mark.soak)])
def test_all_connected_clients_are_reached_in_little_memory(clients: int) -> None:
    import resource  # not everywhere

    share = clients // GENERATORS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < share + 100:
        pytest.skip(f"a process may open {files} files here: raise `ulimit -n` above {share + 100}")

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker()
            print(f"broker: {Memory.of(broker)} without clients")
            began = time.monotonic()
            generators = [
                await stage.worker("crowd", f"crowd{number}", broker=broker.address, first=number * share, count=share)
                for number in range(GENERATORS)
            ]
            for generator in generators:
                await generator.hear("connected", within_s=300)
            while await online(generators) < clients:  # on a busy machine some may have been lost for a while
                pass
            print(f"{clients} clients connected and subscribed in {time.monotonic() - began:.1f} s")
            print(f"broker: {Memory.of(broker)}, {processor_s(broker):.1f} s of the processor")

            async with connect(broker.address, name="announcer", timeout_s=60) as announcer:
                infos = await announcer.clients()
                assert len(infos) == clients + 1
                assert sum(len(info.subscriptions) for info in infos) == 2 * clients

                began = time.monotonic()
                for generator in generators:
                    generator.tell(f"until {share}")
                reached = await announcer.publish("crowd/all", b"to everybody")
                confirmed_s = time.monotonic() - began
                for generator in generators:
                    assert (await generator.hear("reached", within_s=120))["came"] == {"crowd/all": share}
                print(f"to all: confirmed in {confirmed_s:.2f} s, there in {time.monotonic() - began:.2f} s")

                for number in range(0, clients, clients // SAMPLE):
                    await announcer.publish(f"crowd/{number}", b"to one")
                for generator in generators:
                    generator.tell(f"until {share + SAMPLE // GENERATORS}")
                for generator in generators:
                    came = (await generator.hear("reached", within_s=120))["came"]
                    assert came.pop("crowd/all") == share
                    assert set(came.values()) == {1}

            memory = Memory.of(broker)
            lost = sum(len(generator.heard("lost")) for generator in generators)
            print(f"broker: {memory} at the end, {processor_s(broker):.1f} s of the processor; {lost} reconnects")
            assert reached is not None
            assert clients - lost <= reached <= clients
            assert memory.peak_bytes < MOST_BYTES

    run(test, within_s=590)
