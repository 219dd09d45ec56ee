"""What every engine of a cluster must do, as tests that its adapter inherits. See godwit.cluster.engine."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from tests.store.entries import make_entry

from godwit.cluster.engine import (
    AppendRefused,
    AppendRequest,
    Beat,
    BeatRequest,
    EngineReport,
    FollowRequest,
    InfoRequest,
    Missing,
    RecordFound,
    RecordRequest,
    Stored,
    StreamInfo,
    TrimRequest,
)
from godwit.cluster.records import OVERHEAD_BYTES, PART_BYTES
from godwit.cluster.replica import CommittedAppend, Replica
from godwit.cluster.values import MAX_BEAT_BYTES, NodeConfig
from godwit.net.engine_thread import EngineThread
from godwit.store.replica import ReplicaStore
from godwit.wire.batch import payloads_of

PATIENCE_S = 120.0
R = TypeVar("R", bound=EngineReport)


class EngineServers(ABC):
    """The servers of one kind of engine."""

    @abstractmethod
    def make(
        self, name: str, report: Callable[[EngineReport], None], backlog: Callable[[], int] = lambda: 0
    ) -> EngineThread:
        """Return an adapter for the cluster of this name."""

    @abstractmethod
    def kill_servers(self) -> None:
        """Kill all servers without warning."""

    @abstractmethod
    def start_servers(self) -> None:
        """Start them again."""


class EngineUser:
    """An adapter, and its reports."""

    def __init__(self, servers: EngineServers, name: str) -> None:
        self._queue: SimpleQueue[EngineReport] = SimpleQueue()
        self._has_asked_again = False
        self.backlog = 0
        self.engine = servers.make(name, self._queue.put, lambda: self.backlog)
        self.engine.start(PATIENCE_S)

    def __enter__(self) -> EngineUser:
        return self

    def __exit__(self, *details: object) -> None:
        self.engine.close()

    def next_report(self, *kinds: type[R]) -> R:
        """Wait for a report of one of these kinds. Others are dropped."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            report = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            if isinstance(report, kinds):
                return report

    def next_record(self, after: int) -> RecordFound:
        """Wait for a record that a follower reports behind this one. Ask again as a node does: it may have ended."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                report = self._queue.get(timeout=10.0)
            except Empty:
                assert time.monotonic() < deadline
                self._has_asked_again = True
                self.engine.send([FollowRequest(after)])
                continue
            if isinstance(report, RecordFound) and (report.position > after or not self._has_asked_again):
                return report

    def drain(self) -> list[EngineReport]:
        """Return the reports that are there."""
        found = []
        try:
            while True:
                found.append(self._queue.get_nowait())
        except Empty:
            return found

    def append(self, after: int, data: bytes) -> Stored | AppendRefused:
        self.engine.send([AppendRequest(after, data)])
        report = self.next_report(Stored, AppendRefused)
        assert isinstance(report, Stored | AppendRefused)
        return report

    def append_surely(self, after: int, data: bytes) -> None:
        """Store a record as a node does it: repeat the request, and look whether it was stored."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if isinstance(self.append(after, data), Stored):
                return
            found = self.read(after + 1)
            if isinstance(found, RecordFound):
                assert found.data == data
                return
            time.sleep(0.05)
        raise AssertionError("a record could not be stored")

    def read(self, position: int) -> RecordFound | Missing:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.engine.send([RecordRequest(position)])
            try:
                while True:
                    report = self._queue.get(timeout=2.0)
                    if isinstance(report, RecordFound | Missing) and report.position == position:
                        return report
            except Empty:
                assert time.monotonic() < deadline

    def info(self) -> StreamInfo:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.engine.send([InfoRequest()])
            try:
                while True:
                    report = self._queue.get(timeout=2.0)
                    if isinstance(report, StreamInfo):
                        return report
            except Empty:
                assert time.monotonic() < deadline


class EngineContract:
    """Inherit this, and define the fixture `servers`."""

    def test_appends_get_the_next_positions_and_can_be_read(self, servers: EngineServers) -> None:
        with EngineUser(servers, "plain") as user:
            assert user.info() == StreamInfo(1, 0, user.info().size_bytes)
            records = [b"first", b"", bytes(range(256)), os.urandom(PART_BYTES + OVERHEAD_BYTES)]
            for after, data in enumerate(records):
                user.append_surely(after, data)
            for number, data in enumerate(records):
                assert user.read(number + 1) == RecordFound(number + 1, data)
            found = user.info()
            assert (found.first, found.last) == (1, len(records))
            assert found.size_bytes >= sum(map(len, records))
            assert user.read(5) == Missing(5, 1, 4)
        with EngineUser(servers, "plain") as user:
            assert user.read(3) == RecordFound(3, records[2])

    def test_many_appends_are_in_flight(self, servers: EngineServers) -> None:
        with EngineUser(servers, "flight") as user:
            records = [b"%d %s" % (number, bytes(number * 100)) for number in range(200)]
            user.engine.send([AppendRequest(after, data) for after, data in enumerate(records)])
            reports = [user.next_report(Stored, AppendRefused) for _ in records]
            for report in reports:
                if isinstance(report, Stored):
                    assert report.data == records[report.position - 1]
            for after, data in enumerate(records):  # a machine that is too slow refuses some
                if Stored(after + 1, data) not in reports:
                    user.append_surely(after, data)
            assert user.info().last == len(records)
            for position in (1, 99, 200):
                assert user.read(position) == RecordFound(position, records[position - 1])

    def test_an_append_behind_another_position_is_not_stored(self, servers: EngineServers) -> None:
        with EngineUser(servers, "wrong") as user:
            user.append_surely(0, b"one")
            for after in (0, 2, 100):
                assert isinstance(user.append(after, b"other"), AppendRefused)
            # The second would continue the first, which is refused.
            user.engine.send([AppendRequest(5, b"six"), AppendRequest(6, b"seven")])
            assert isinstance(user.next_report(Stored, AppendRefused), AppendRefused)
            assert isinstance(user.next_report(Stored, AppendRefused), AppendRefused)
            assert user.info().last == 1
            user.append_surely(1, b"two")
            assert user.read(2) == RecordFound(2, b"two")

    def test_of_rivals_one_is_stored(self, servers: EngineServers) -> None:
        with EngineUser(servers, "rivals") as one, EngineUser(servers, "rivals") as two:
            for after in range(20):
                for user, data in ((one, b"one"), (two, b"two")):
                    user.engine.send([AppendRequest(after, data)])
                answers = [user.next_report(Stored, AppendRefused) for user in (one, two)]
                stored = [answer for answer in answers if isinstance(answer, Stored)]
                if stored:
                    assert len(stored) == 1
                    assert one.read(after + 1) == RecordFound(after + 1, stored[0].data)
                elif isinstance(one.read(after + 1), Missing):  # a machine that is too slow refuses both
                    one.append_surely(after, b"one")
            assert two.info().last == 20

    def test_a_follower_gets_all_records_in_order(self, servers: EngineServers) -> None:
        with EngineUser(servers, "follow") as writer, EngineUser(servers, "follow") as reader:
            for after in range(10):
                writer.append_surely(after, b"%d" % after)
            reader.engine.send([FollowRequest(4)])
            for position in range(5, 11):
                assert reader.next_record(position - 1) == RecordFound(position, b"%d" % (position - 1))
            for position in range(11, 61):
                writer.append_surely(position - 1, b"%d" % (position - 1))
                assert reader.next_record(position - 1) == RecordFound(position, b"%d" % (position - 1))
            reader.engine.send([FollowRequest(0)])  # from another position
            for position in range(1, 61):
                assert reader.next_record(position - 1).position == position
            reader.engine.send([FollowRequest(None)])
            assert reader.info().last == 60
            for after in range(60, 65):
                writer.append_surely(after, b"later")
            assert reader.info().last == 65
            assert not [report for report in reader.drain() if isinstance(report, RecordFound)]

    def test_a_follower_waits_for_its_node(self, servers: EngineServers) -> None:
        with EngineUser(servers, "slow") as user:
            for after in range(5):
                user.append_surely(after, bytes(10))
            user.backlog = 1_000_000
            user.engine.send([FollowRequest(0)])
            last = user.next_record(0).position
            with EngineUser(servers, "slow") as other:
                other.append_surely(5, b"six")
            user.info()
            found = user.drain()
            assert RecordFound(6, b"six") not in found
            last = max([last, *(report.position for report in found if isinstance(report, RecordFound))])
            user.backlog = 0
            while last < 6:
                last = user.next_record(last).position

    def test_trimmed_records_are_missing(self, servers: EngineServers) -> None:
        with EngineUser(servers, "trim") as user:
            for after in range(10):
                user.append_surely(after, bytes(1000))
            before = user.info().size_bytes
            user.engine.send([TrimRequest(8)])
            deadline = time.monotonic() + PATIENCE_S
            while (found := user.info()).first != 8:
                assert time.monotonic() < deadline
                user.engine.send([TrimRequest(8)])  # a machine that is too slow does not carry out some
            assert found.last == 10
            assert found.size_bytes < before
            assert user.read(7) == Missing(7, 8, 10)
            assert isinstance(user.read(8), RecordFound)
            user.engine.send([TrimRequest(11)])
            while (found := user.info()).first != 11:
                assert time.monotonic() < deadline
                user.engine.send([TrimRequest(11)])
            assert found.last == 10  # positions are not used again
            user.append_surely(10, b"eleven")
            assert user.read(11) == RecordFound(11, b"eleven")
            user.engine.send([FollowRequest(3)])
            assert user.next_record(10) == RecordFound(11, b"eleven")

    def test_members_receive_heartbeats(self, servers: EngineServers) -> None:
        data = os.urandom(MAX_BEAT_BYTES)
        with (
            EngineUser(servers, "beats") as one,
            EngineUser(servers, "beats") as two,
            EngineUser(servers, "other") as other,
        ):
            deadline = time.monotonic() + PATIENCE_S
            one.engine.send([BeatRequest(data)])
            while Beat(data) not in two.drain():
                assert time.monotonic() < deadline
                time.sleep(0.05)
                one.engine.send([BeatRequest(data)])  # as a node does: the engine may lose one
            assert one.next_report(Beat) == Beat(data)
            other.info()
            assert not [report for report in other.drain() if isinstance(report, Beat)]

    def test_killed_servers_lose_nothing(self, servers: EngineServers) -> None:
        with EngineUser(servers, "killed") as writer, EngineUser(servers, "killed") as reader:
            reader.engine.send([FollowRequest(0)])
            for after in range(10):
                writer.append_surely(after, b"%d" % after)
            writer.engine.send([AppendRequest(after, b"%d" % after) for after in range(10, 15)])
            servers.kill_servers()
            writer.engine.send([AppendRequest(20, b"refused")])
            stored = []
            while isinstance(report := writer.next_report(Stored, AppendRefused), Stored):  # answers may come late
                stored.append(report.position)
            assert 21 not in stored
            servers.start_servers()
            for after in range(10, 30):
                writer.append_surely(after, b"%d" % after)
            for position in [*range(1, 31), *stored]:
                assert writer.read(position) == RecordFound(position, b"%d" % (position - 1))
            seen = 0
            while seen < 30:  # a node asks again if a follower has ended
                try:
                    followed = reader._queue.get(timeout=1.0)
                except Empty:
                    reader.engine.send([FollowRequest(seen)])
                    continue
                if isinstance(followed, RecordFound) and followed.position == seen + 1:
                    assert followed.data == b"%d" % seen
                    seen += 1

    def test_replicas_agree_over_takeovers(self, servers: EngineServers, tmp_path: Path) -> None:
        runners = [ReplicaRunner(tmp_path / name, name, servers) for name in ("one", "two", "three")]
        confirmed: list[bytes] = []
        number = 0
        try:
            for round_number in range(3):
                run_until(runners, lambda: active(runners))
                leader = active(runners)
                assert leader is not None
                payloads = [b"%d %s" % (number + k, bytes(20_000 if k == 3 else 10)) for k in range(30)]
                number += 30
                for payload in payloads:
                    leader.replica.append(payload, [make_entry(payload)], [], len(payload))
                    leader.run()
                run_until(runners, lambda: len(leader.committed) == 30 or leader.replica.node.state != "active")  # noqa: B023
                confirmed += [token for token in leader.committed if isinstance(token, bytes)]
                leader.committed.clear()
                if round_number < 2:
                    runners.remove(leader)
                    leader.close()
                    if round_number == 0:
                        servers.kill_servers()
                        servers.start_servers()
                    runners.append(ReplicaRunner(tmp_path / leader.name, leader.name, servers))
            run_until(runners, lambda: len({one.store.place for one in runners}) == 1 and active(runners))
            assert len(confirmed) >= 30
            contents = [dump(one.store) for one in runners]
            assert contents[0] == contents[1] == contents[2]
            entries = runners[0].store.read(0, 1 << 30).entries
            stored = [payload for _, entry in entries for payload in payloads_of(entry)]
            assert len(stored) == len(set(stored))
            assert set(confirmed) <= set(stored)
            follower = next(one for one in runners if one.replica.node.state != "active")
            assert follower.replica.node.active_name
        finally:
            for runner in runners:
                runner.close()


class ReplicaRunner:
    """A replica with its engine, driven by the test."""

    def __init__(self, path: Path, name: str, servers: EngineServers) -> None:
        self.name = name
        self.reports: SimpleQueue[EngineReport] = SimpleQueue()
        self.store = ReplicaStore.open(path, new_log_id=name.encode().ljust(16), now_us=1)
        self.engine = servers.make("replicas", self.reports.put, self.reports.qsize)
        self.engine.start(PATIENCE_S)
        self.replica = Replica(NodeConfig(name=name), self.store, entropy=os.urandom, now=time.monotonic())
        self.committed: list[object] = []

    def run(self) -> None:
        now = time.monotonic()
        try:
            while True:
                self.replica.node.handle(self.reports.get_nowait(), now)
        except Empty:
            pass
        for answer in self.replica.work(now):
            assert isinstance(answer, CommittedAppend)
            self.committed.append(answer.token)
        if self.replica.node.is_closing:
            self.replica.node.handle_closed()
        self.engine.send(self.replica.node.poll_requests())

    def close(self) -> None:
        self.engine.close()
        self.store.close()


def dump(store: ReplicaStore) -> list[object]:
    tables = ("blocks", "state", "epochs", "meta")
    return [store.connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in tables]


def run_until(runners: list[ReplicaRunner], done: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, [
            (one.name, one.replica.node.state, one.replica.node.reason) for one in runners
        ]
        for runner in runners:
            runner.run()
        time.sleep(0.002)


def active(runners: list[ReplicaRunner]) -> ReplicaRunner | None:
    return next((one for one in runners if one.replica.node.state == "active"), None)
