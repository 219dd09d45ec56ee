"""`godwit bench cluster`: failover, confirms, throughput and catch-up of a cluster, and the rate of a bridge.

Everything is a process of its own on this machine: three servers of the engine (NATS JetStream, which syncs each
record), the nodes, and the clients. The throughput is compared with a broker that is alone, in the same round.

    per round    an active node and a standby: lone confirms, messages of 100 bytes and of 8 KiB, and the standby, which
                 was away meanwhile, catches up. The same messages to a broker that is alone. A bridge with a backlog
    kills        three nodes; a publisher with all addresses publishes one message after another. The active node is
                 killed, alone or together with a server of the engine: the time until a message is confirmed that was
                 published after that. The server belongs to the same machine, and is the engine's leader now and then
    handovers    the same with a command to hand over, up to the first confirm of the next node
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

from godwit.errors import GodwitError
from godwit.limits import MAX_DATAGRAM_BYTES
from godwit.net.client import connect
from godwit.net.cluster_admin import EngineClient
from godwit.net.engine_server import find_program
from godwit.net.loop import run as run_loop
from godwit.server.cluster_configuration import ClusterSection
from godwit.store.replica import ReplicaPlace, read_place
from godwit_bench.log import (
    LARGE_BYTES,
    LARGE_DATAGRAM_BYTES,
    LARGE_PUBLISHERS,
    LOG_FOLDER,
    MEGABYTE,
    SMALL_BYTES,
    TOPIC,
    Outcome,
    godwit_logger,
)
from godwit_bench.processes import GIVE_UP_S, HOST, READY, ProcessGroup, free_port, receive_reply
from godwit_bench.report import Ratio, Report, Result, machine, median_ratio

SERVERS: Final = 3
LONE_MESSAGES: Final = 200
KILL_PAUSE_S: Final = 1.0
"""Before each kill, a random part of this: a kill may come at any time between two heartbeats."""
CONFIRM_PAUSE_S: Final = 0.005
SEED: Final = 19
FILES_BYTES: Final = 16_000_000_000
"""Limit of the files of a server of the engine."""
BRIDGE: Final = "bench"
REPEAT_S: Final = 5.0
"""A node ignores a command to hand over to a node of which it has received nothing for a while."""
_POLL_S: Final = 0.01


def run(*, folder: Path, rounds: int, seconds: float, kills: int, on_round: Callable[[str], None]) -> Report:
    """Measure everything.

    Args:
        folder: Where brokers and engine store their logs.
        rounds: Of throughput, confirms, catch-up and bridge, whose medians are returned.
        seconds: How long messages are published in each measurement of a round.
        kills: How often a node is killed, alone and together with a server of the engine, and how many handovers.
        on_round: Called with the name of each measurement.

    Raises:
        GodwitError: The program nats-server does not exist, or a process failed or did not answer in time.
    """
    program = find_program(None)
    figures: dict[str, list[float]] = {}
    for _ in range(rounds):
        for measure in (
            partial(measure_alone, folder, seconds, on_round),
            partial(measure_cluster, program, folder, seconds, on_round),
            partial(measure_bridge, folder, seconds, on_round),
        ):
            for name, value in measure().items():
                figures.setdefault(name, []).append(value)
    for name, with_server in (("broker_kill_p95_s", False), ("machine_kill_p95_s", True)):
        figures[name] = [percentile_95(measure_kills(program, folder, kills, with_server, on_round))]
    waits_s = measure_handovers(program, folder, kills, on_round)
    figures |= {"handover_p50_s": [statistics.median(waits_s)], "handover_longest_s": [max(waits_s)]}
    units = {
        "lone_confirm_p50_ms": "ms until a lone message is confirmed",
        "alone_confirm_p50_ms": "ms, a broker that is alone",
        "cluster_100": f"confirmed messages/s of {SMALL_BYTES} B",
        "alone_100": "the same, a broker that is alone",
        "cluster_8k": f"MB/s of payload, {LARGE_BYTES} B messages",
        "alone_8k": "the same, a broker that is alone",
        "catch_up_mb_s": "MB/s of payload that a standby reads and stores",
        "bridge_messages_s": f"messages/s of {SMALL_BYTES} B over a bridge",
        "broker_kill_p95_s": f"s until a message is confirmed, {kills} kills of the active node",
        "machine_kill_p95_s": f"s, {kills} kills together with a server of the engine",
        "handover_p50_s": f"s until the next node confirms a message, {kills} handovers",
        "handover_longest_s": "s, the longest of them",
    }
    results = [Result(name, statistics.median(figures[name]), unit) for name, unit in units.items()]
    against = "a broker that is alone"
    ratios = [
        Ratio("cluster_vs_alone_100", median_ratio(figures["cluster_100"], figures["alone_100"]), against),
        Ratio("cluster_vs_alone_8k", median_ratio(figures["cluster_8k"], figures["alone_8k"]), against),
    ]
    return Report("cluster", machine(), results, ratios)


def percentile_95(values: Sequence[float]) -> float:
    """Return the value below which 95 % of these are."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


# -- processes --------------------------------------------------------------------------------------------------------


class NodeLog:
    """A broker as a process of the command `godwit broker`, and its event lines."""

    def __init__(self, group: ProcessGroup, folder: Path, configuration: str) -> None:
        self._group = group
        self.data = folder / LOG_FOLDER
        self._file = folder / "broker.toml"
        self._log = folder / "events.log"
        folder.mkdir()
        self._file.write_text(configuration, encoding="utf-8")
        self._process: SpawnProcess | None = None

    def start(self) -> None:
        """Start it. The event lines of an earlier run are gone."""
        self._log.write_bytes(b"")
        arguments = ("-m", "godwit", "broker", "--config", str(self._file), "--log-format", "json")
        self._process = self._group.run_to(self._log, sys.executable, *arguments)

    def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        assert self._process is not None
        self._process.kill()
        self._process.join()

    def events(self) -> list[dict[str, Any]]:
        """Return the event lines of this run."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    @property
    def is_active(self) -> bool:
        """Whether it serves clients."""
        if self._process is None or not self._process.is_alive():
            return False
        for event in reversed(self.events()):
            if event["kind"] == "listening":
                return True
            if event["kind"] == "cluster" and event.get("state") not in (None, "active"):
                return False
        return False

    def url(self) -> str:
        """Return its address, once it listens."""
        self.wait_for(lambda: self.is_active, "listens")
        return next(str(event["url"]) for event in self.events() if event["kind"] == "listening")

    def wait_for(self, is_done: Callable[[], bool], text: str) -> None:
        """Wait for something that it does. Raise GodwitError with its last line if it does not."""
        assert self._process is not None
        process = self._process
        wait_until(
            is_done,
            lambda: f"a broker never {text}; its last line: {self._log.read_text(errors='replace')[-500:].strip()}",
            lambda: not process.is_alive(),
        )


def wait_until(
    is_done: Callable[[], bool], describe: Callable[[], str], has_failed: Callable[[], bool] = lambda: False
) -> None:
    """Wait for something. Raise GodwitError if it takes too long, or has failed."""
    until = time.monotonic() + GIVE_UP_S
    while not is_done():
        if time.monotonic() > until or has_failed():
            raise GodwitError(f"{describe()}: run it again on a quieter machine")
        time.sleep(_POLL_S)


class ClusterProcesses:
    """Servers of the engine and nodes. The machine with a number has a server and a node, or a server only."""

    def __init__(self, group: ProcessGroup, program: str, nodes: int) -> None:
        self._group = group
        self._program = program
        ports = [free_port() for _ in range(3 * SERVERS)]
        servers, self._monitors, routes = ports[:SERVERS], ports[SERVERS : 2 * SERVERS], ports[2 * SERVERS :]
        self._servers: list[SpawnProcess | None] = [None] * SERVERS
        cluster = {"name": "bench", "routes": [f"nats-route://{HOST}:{port}" for port in routes]}
        for number in range(SERVERS):
            jetstream = {"store_dir": str(self._server(number, "store")), "max_mem": 1 << 26, "max_file": FILES_BYTES}
            lines = {
                "server_name": f"server-{number}",
                "listen": f"{HOST}:{servers[number]}",
                "http": f"{HOST}:{self._monitors[number]}",
                "cluster": {**cluster, "listen": f"{HOST}:{routes[number]}"},
                "jetstream": {**jetstream, "sync_interval": "always"},
            }
            text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
            self._server(number, "conf").write_text(text, encoding="utf-8")
        self.section = ClusterSection(
            name="bench",
            node="",
            servers=tuple(f"nats://{HOST}:{port}" for port in servers),
            monitors=tuple(f"http://{HOST}:{port}" for port in self._monitors),
        )
        """How commands reach the engine."""
        engine = f"servers = {json.dumps(self.section.servers)}\nmonitors = {json.dumps(self.section.monitors)}\n"
        self._addresses = [f"{HOST}:{free_port()}" for _ in range(nodes)]
        self.nodes = [
            NodeLog(
                group,
                group.folder / node_name(number),
                f"{configuration(address)}[limits]\ndatagram_bytes = {LARGE_DATAGRAM_BYTES}\n"
                f'[cluster]\nname = "bench"\nnode = "{node_name(number)}"\n{engine}',
            )
            for number, address in enumerate(self._addresses)
        ]

    @property
    def address(self) -> str:
        """The addresses of all nodes, for clients."""
        return ",".join(f"udp://{address}" for address in self._addresses)

    def start(self) -> None:
        """Start everything, and wait until a node is active and the others follow it."""
        for number in range(SERVERS):
            self._start_server(number)
        for node in self.nodes:
            node.start()
        self.wait_for_active()
        for node in self.nodes:
            self._wait_until_following(node)

    def wait_for_active(self) -> int:
        """Return the number of the active node, once there is one."""
        wait_until(lambda: any(node.is_active for node in self.nodes), lambda: "no node became active")
        return next(number for number, node in enumerate(self.nodes) if node.is_active)

    def kill(self, number: int, *, with_server: bool) -> None:
        """Kill a node, and the server of its machine."""
        server = self._servers[number]
        if with_server and server is not None:
            server.kill()
        self.nodes[number].kill()
        if with_server and server is not None:
            server.join()

    def restart(self, number: int, *, with_server: bool) -> None:
        """Start a node again, and the server of its machine, and wait until they are part of the cluster."""
        if with_server:
            self._start_server(number)
            wait_until(lambda: self._is_healthy(number), lambda: "a server of the engine did not return")
        self.nodes[number].start()
        self._wait_until_following(self.nodes[number])

    def _wait_until_following(self, node: NodeLog) -> None:
        """Wait until a node has read the claim of the active one."""
        node.wait_for(
            lambda: node.is_active or any("is active since position" in event["text"] for event in node.events()),
            "followed the active one",
        )

    def _server(self, number: int, name: str) -> Path:
        return self._group.folder / f"server-{number}.{name}"

    def _start_server(self, number: int) -> None:
        command = (self._program, "-c", str(self._server(number, "conf")))
        self._servers[number] = self._group.run_to(self._server(number, "log"), *command)

    def _is_healthy(self, number: int) -> bool:
        """Whether a server has all records."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._monitors[number]}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"node-{number}"


def configuration(listen: str) -> str:
    """Return the begin of a configuration file of a broker with its log in LOG_FOLDER."""
    return f'listen = ["{listen}"]\n[log]\ndata = "{LOG_FOLDER}"\n[archive]\nlisten = "none"\n'


# -- confirms and throughput ------------------------------------------------------------------------------------------


class PublishingLoad:
    """Publishes to one broker or cluster, and checks that its log has everything that was confirmed."""

    def __init__(self, group: ProcessGroup, address: str, nodes: Sequence[NodeLog]) -> None:
        self._group = group
        self._address = address
        self._nodes = nodes
        self._confirmed = 0

    def rate(self, seconds: float, message_bytes: int, publishers: int = 1) -> float:
        """Return the confirmed messages per second."""
        datagram_bytes = MAX_DATAGRAM_BYTES if publishers == 1 else LARGE_DATAGRAM_BYTES
        publish = godwit_logger(publishers, datagram_bytes).publish
        pipe = self._group.start(publish, self._address, seconds, message_bytes)
        outcome = receive_reply(pipe, Outcome, within_s=GIVE_UP_S + seconds)
        self._confirmed += outcome.confirmed
        self._check()
        return outcome.confirmed / outcome.elapsed_s

    def _check(self) -> None:
        """Compare with the offsets of the logs: the totals of topics may be behind after a takeover.

        A message whose confirm was lost then is in the log twice.
        """
        logged = max(_place(node).next_offset for node in self._nodes)
        if logged < self._confirmed:
            raise GodwitError(f"{self._confirmed} messages were confirmed, and {logged} are in the log")

    @property
    def confirmed(self) -> int:
        """The number of messages that were confirmed so far."""
        return self._confirmed

    def lone_ms(self) -> float:
        """Return the median time until a lone message is confirmed."""
        pipe = self._group.start(_publish_one_by_one, self._address, LONE_MESSAGES)
        times_s: list[float] = receive_reply(pipe, list)
        self._confirmed += LONE_MESSAGES
        return 1000 * statistics.median(times_s)


def _publish_one_by_one(pipe: Pipe, address: str, count: int) -> None:
    pipe.send(run_loop(_confirm_times(address, count)))


async def _confirm_times(address: str, count: int) -> list[float]:
    times_s = []
    async with connect(address) as client:
        for _ in range(count):
            began = time.perf_counter()
            await client.publish(TOPIC, bytes(SMALL_BYTES), qos=1)
            times_s.append(time.perf_counter() - began)
    return times_s


def measure_alone(folder: Path, seconds: float, on_round: Callable[[str], None]) -> dict[str, float]:
    """Measure a broker that is alone."""
    with ProcessGroup(within=folder) as group:
        limits = f"[limits]\ndatagram_bytes = {LARGE_DATAGRAM_BYTES}\n"
        broker = NodeLog(group, group.folder / "alone", configuration(f"{HOST}:0") + limits)
        broker.start()
        load = PublishingLoad(group, broker.url(), [broker])
        on_round("a broker that is alone")
        return {
            "alone_confirm_p50_ms": load.lone_ms(),
            "alone_100": load.rate(seconds, SMALL_BYTES),
            "alone_8k": load.rate(seconds, LARGE_BYTES, LARGE_PUBLISHERS) * LARGE_BYTES / MEGABYTE,
        }


def measure_cluster(program: str, folder: Path, seconds: float, on_round: Callable[[str], None]) -> dict[str, float]:
    """Measure a cluster with an active node and a standby, and then how fast the standby catches up."""
    with ProcessGroup(within=folder) as group:
        cluster = ClusterProcesses(group, program, nodes=2)
        on_round("a cluster starts")
        cluster.start()
        load = PublishingLoad(group, cluster.address, cluster.nodes)
        on_round("a cluster")
        found = {
            "lone_confirm_p50_ms": load.lone_ms(),
            "cluster_100": load.rate(seconds, SMALL_BYTES),
            "cluster_8k": load.rate(seconds, LARGE_BYTES, LARGE_PUBLISHERS) * LARGE_BYTES / MEGABYTE,
        }
        active = cluster.wait_for_active()
        former, standby = cluster.nodes[active], cluster.nodes[1 - active]
        wait_until(lambda: _position(standby) == _position(former), lambda: "the standby did not follow")
        standby.kill()
        before = load.confirmed
        load.rate(2 * seconds, LARGE_BYTES, LARGE_PUBLISHERS)
        on_round("a standby that catches up")
        standby.start()
        standby.wait_for(lambda: bool(standby.events()), "started")
        began = time.perf_counter()
        standby.wait_for(lambda: _position(standby) == _position(former), "caught up")
        elapsed_s = time.perf_counter() - began
        return {**found, "catch_up_mb_s": (load.confirmed - before) * LARGE_BYTES / MEGABYTE / elapsed_s}


def _place(node: NodeLog) -> ReplicaPlace:
    """Return how far the file of a node reaches."""
    return read_place(node.data / "log.sqlite")


def _position(node: NodeLog) -> int:
    """Return how far the file of a node has followed the replicated log."""
    return _place(node).place.position


# -- kills ------------------------------------------------------------------------------------------------------------


def measure_kills(
    program: str, folder: Path, kills: int, with_server: bool, on_round: Callable[[str], None]
) -> list[float]:
    """Kill the active node again and again. Return how long each time no new message was confirmed, in seconds."""
    rng = random.Random(SEED)
    waits_s = []
    with ProcessGroup(within=folder) as group:
        cluster = ClusterProcesses(group, program, nodes=SERVERS)
        on_round("a cluster starts")
        cluster.start()
        publisher = group.start(_report_confirms, cluster.address)
        receive_reply(publisher, str)
        for number in range(kills):
            victim = "machine" if with_server else "broker"
            on_round(f"kill {number + 1} of {kills} of a {victim}")
            time.sleep(rng.uniform(0.0, KILL_PAUSE_S))
            active = cluster.wait_for_active()
            cluster.kill(active, with_server=with_server)
            killed_at = time.monotonic()
            publisher.send(killed_at)
            waits_s.append(receive_reply(publisher, float) - killed_at)
            cluster.wait_for_active()
            cluster.restart(active, with_server=with_server)
    return waits_s


def measure_handovers(program: str, folder: Path, handovers: int, on_round: Callable[[str], None]) -> list[float]:
    """Hand over again and again. Return how long each time no node confirmed after the former one, in seconds."""
    waits_s = []
    with ProcessGroup(within=folder) as group:
        cluster = ClusterProcesses(group, program, nodes=SERVERS)
        on_round("a cluster starts")
        cluster.start()
        publisher = group.start(_report_confirms, cluster.address)
        receive_reply(publisher, str)
        with EngineClient(cluster.section) as engine:
            for number in range(handovers):
                on_round(f"handover {number + 1} of {handovers}")
                target = node_name((cluster.wait_for_active() + 1) % SERVERS)
                began = time.monotonic()
                publisher.send(began)
                engine.request_handover(target)
                while not publisher.poll(REPEAT_S) and time.monotonic() < began + GIVE_UP_S:
                    engine.request_handover(target)
                waits_s.append(receive_reply(publisher, float) - began)
    return waits_s


def _report_confirms(pipe: Pipe, address: str) -> None:
    run_loop(_report_confirms_forever(pipe, address))


async def _report_confirms_forever(pipe: Pipe, address: str) -> None:
    """Publish one message after another.

    For each time that is received, answer with that of the first confirm of a message that was published after it, over
    a connection that was made after it.
    """
    since: float | None = None
    online_at = 0.0

    def on_state(state: str, _: str) -> None:
        nonlocal online_at
        if state == "online":
            online_at = time.monotonic()

    async with connect(address, on_state=on_state) as client:
        await client.publish(TOPIC, bytes(SMALL_BYTES), qos=1)
        pipe.send(READY)
        while True:
            sent_at = time.monotonic()
            await client.publish(TOPIC, bytes(SMALL_BYTES), qos=1)
            if since is None and pipe.poll():
                since = pipe.recv()
            if since is not None and min(sent_at, online_at) > since:
                pipe.send(time.monotonic())
                since = None
            await asyncio.sleep(CONFIRM_PAUSE_S)


# -- a bridge ---------------------------------------------------------------------------------------------------------


def measure_bridge(folder: Path, seconds: float, on_round: Callable[[str], None]) -> dict[str, float]:
    """Measure how fast a backlog of a broker reaches its hub."""
    with ProcessGroup(within=folder) as group:
        on_round("a bridge")
        edge = NodeLog(group, group.folder / "edge", configuration(f"{HOST}:0"))
        edge.start()
        load = PublishingLoad(group, edge.url(), [edge])
        load.rate(seconds / 3, SMALL_BYTES)
        edge.kill()
        hub = NodeLog(group, group.folder / "hub", configuration(f"{HOST}:0"))
        hub.start()
        reader = group.start(_watch_bridge, hub.url(), load.confirmed)
        receive_reply(reader, str)
        bridge = f'[[bridge]]\nname = "{BRIDGE}"\nhub = "{hub.url()}"\nfilters = ["#"]\n'
        again = NodeLog(group, group.folder / "again", configuration(f"{HOST}:0") + bridge)
        edge.data.rename(again.data)
        again.start()
        elapsed_s = receive_reply(reader, float, within_s=GIVE_UP_S + 60 * seconds)
    return {"bridge_messages_s": load.confirmed / elapsed_s}


def _watch_bridge(pipe: Pipe, hub: str, count: int) -> None:
    run_loop(_watch(pipe, hub, count))


async def _watch(pipe: Pipe, hub: str, count: int) -> None:
    """Report how long it took from the last moment without any message of the bridge until all were there."""
    async with connect(hub) as client:
        began = 0.0
        messages = -1
        while messages < count:
            now = time.perf_counter()
            bridges = await client.bridges()
            messages = sum(bridge.messages for bridge in bridges)
            if messages <= 0:
                if not began:
                    pipe.send(READY)
                began = now
            await asyncio.sleep(_POLL_S)
    pipe.send(time.perf_counter() - began)
