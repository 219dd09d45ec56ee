"""A node with its file: groups of appends, their answers, and appends with errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.store.entries import make_entry

from godwit.cluster.engine import AppendRefused, AppendRequest, RecordFound, Stored, StreamInfo
from godwit.cluster.replica import MAX_IN_FLIGHT, AppliedCut, CommittedAppend, FailedAppend, Replica, ReplicaAnswer
from godwit.cluster.values import NodeConfig
from godwit.errors import DiskError
from godwit.limits import KIB
from godwit.store.replica import ReplicaStore
from godwit.store.retention import Deletion, Retention, RetentionRule
from godwit.wire.batch import Entry
from godwit.wire.changes import TopicRow
from godwit.wire.retention_floors import BROKER_WIDE


class Cluster:
    """A replica, and an engine that stores all records when `agree` is called."""

    def __init__(self, path: Path) -> None:
        self.store = ReplicaStore.open(path, new_log_id=bytes(16), now_us=1)
        self.now = 0.0
        self.replica = Replica(NodeConfig(name="a"), self.store, entropy=Random(1).randbytes, now=0.0)
        self.last = 0
        self.requests: list[AppendRequest] = []
        self.records: list[bytes] = []
        while self.replica.node.state != "active":
            self.now += 0.25
            self.work()
            self.replica.node.handle(StreamInfo(1, self.last), self.now)
            self.agree()

    def work(self) -> list[ReplicaAnswer]:
        answers = self.replica.work(self.now)
        requests = self.replica.node.poll_requests()
        self.requests += [request for request in requests if isinstance(request, AppendRequest)]
        return answers

    def agree(self) -> None:
        """Store all records that were sent."""
        for request in self.requests:
            self.last += 1
            self.records.append(request.data)
            self.replica.node.handle(Stored(self.last, request.data), self.now)
        self.requests.clear()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "log")
    yield made
    made.store.close()


def test_appends_are_answered_when_they_are_in_the_file(cluster: Cluster) -> None:
    cluster.replica.append("one", [make_entry(b"1", b"2")], [TopicRow("a/b", 2)], 2)
    assert cluster.work() == []
    assert cluster.store.next_offset == 0
    cluster.agree()
    assert cluster.work() == [CommittedAppend("one", 0)]
    assert cluster.store.next_offset == 2
    assert cluster.replica.is_idle


def test_what_waits_becomes_one_record(cluster: Cluster) -> None:
    for number in range(20):
        cluster.replica.append(number, [make_entry(b"x")], [], 1)
        cluster.work()
    assert len(cluster.requests) == MAX_IN_FLIGHT
    cluster.agree()
    answers = cluster.work()
    assert len(cluster.requests) == 1
    cluster.agree()
    answers += cluster.work()
    assert answers == [CommittedAppend(number, number) for number in range(20)]


def test_an_append_that_cannot_be_encoded_fails_behind_the_others(cluster: Cluster) -> None:
    bad = Entry(topic="a", publisher="b", flags=0, published_us=0, received_us=0, count=5, rest=b"x")
    for token, entry in (("one", make_entry(b"1")), ("bad", bad), ("two", make_entry(b"2"))):
        cluster.replica.append(token, [entry], [], 1)
    answers = cluster.work()
    assert answers == []
    cluster.agree()
    answers = cluster.work()
    assert answers[0] == CommittedAppend("one", 0)
    assert [answer.token for answer in answers[1:] if isinstance(answer, FailedAppend)] == ["bad", "two"]
    cluster.replica.append("three", [make_entry(b"3")], [], 1)
    cluster.work()
    cluster.agree()
    assert cluster.work() == [CommittedAppend("three", 1)]


def test_a_full_disk_is_not_a_failure(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(steps: object, place: object) -> None:
        raise DiskError("the disk is full")

    cluster.replica.append("one", [make_entry(b"1")], [], 1)
    cluster.work()
    cluster.agree()
    with monkeypatch.context() as patched:
        patched.setattr(cluster.store, "apply", fail)
        assert cluster.work() == []
    assert cluster.replica.node.state == "withdrawn"
    assert cluster.replica.storage_problem == "the disk is full"
    assert cluster.store.next_offset == 0
    cluster.now += 2.0
    assert cluster.work() == []  # its sender is gone
    assert cluster.store.next_offset == 1
    assert cluster.replica.storage_problem == ""


def test_nothing_is_answered_in_doubt(cluster: Cluster) -> None:
    cluster.replica.append("one", [make_entry(b"1")], [], 1)
    cluster.work()
    cluster.replica.node.handle(AppendRefused(), cluster.now)
    for _ in range(40):
        cluster.now += 0.25
        assert cluster.work() == []
    assert cluster.replica.node.state == "withdrawn"


# -- retention --------------------------------------------------------------------------------------------------------


def dump(store: ReplicaStore) -> list[object]:
    tables = ("blocks", "marks", "epochs", "meta", "state")
    return [store.connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables]


def settle(cluster: Cluster, seconds: float = 3.0) -> list[Deletion]:
    """Let the cluster agree for a while, and return the deletions."""
    deletions: list[Deletion] = []
    for _ in range(round(seconds / 0.02)):
        cluster.now += 0.02
        for answer in cluster.work():
            if isinstance(answer, AppliedCut):
                deletions += answer.deletions
        cluster.agree()
    return deletions


def test_retention_deletes_the_same_on_all_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """Whole blocks by age and by the size of the file, and topics of blocks that are shared."""
    payload = bytes(20 * KIB)
    for number in range(30):
        entries = [make_entry(payload, topic=topic, received_us=number * 1_000_000) for topic in ("a", "b", "c")]
        cluster.replica.append(number, entries, [], len(payload))
        cluster.work()
        cluster.agree()
    settle(cluster)
    rules = [RetentionRule("a", max_bytes=60 * KIB), RetentionRule(max_age_s=10.0, max_bytes=700 * KIB)]
    cluster.replica.change_retention(Retention(cluster.store, rules), lambda: 29_000_000)
    deletions = settle(cluster)
    counted = sum(entry.count for deletion in deletions for _, entry in deletion.entries)
    left = cluster.store.read(0, 1 << 30).entries
    assert counted + len(left) == 90
    assert [entry.topic for _, entry in left].count("a") == 3
    assert 0 < len(left) < 50
    assert deletions[-1] == Deletion(None, cluster.store.first_offset, [])
    assert cluster.store.state().retention_floors[BROKER_WIDE] > 0
    other = ReplicaStore.open(tmp_path / "other", new_log_id=bytes(16), now_us=1)
    standby = Replica(NodeConfig(name="b"), other, entropy=Random(2).randbytes, now=0.0)
    for position, data in enumerate(cluster.records, 1):
        standby.node.handle(RecordFound(position, data), 0.0)
    standby.work(0.0)
    assert dump(other) == dump(cluster.store)
    other.close()
    reopened = ReplicaStore.open(tmp_path / "other", new_log_id=bytes(16), now_us=1)
    assert reopened.place == cluster.store.place
    reopened.close()


def test_retention_waits_for_the_engine_and_ends_with_the_activation(cluster: Cluster) -> None:
    cluster.replica.append("one", [make_entry(b"1")], [], 1)
    settle(cluster)
    cluster.replica.change_retention(Retention(cluster.store, [RetentionRule(max_age_s=1.0)]), lambda: 10**15)
    cluster.now += 1.0
    cluster.work()
    assert len(cluster.requests) == 1  # the floors
    for _ in range(40):
        cluster.now += 0.25
        assert cluster.work() == []
    assert cluster.replica.node.state == "withdrawn"
    assert cluster.store.first_offset == 0
    assert cluster.replica._retention is None
    assert not cluster.replica.has_cut_in_flight


def test_retention_that_cannot_be_planned_is_tried_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.replica.append("one", [make_entry(b"1")], [], 1)
    settle(cluster)
    retention = Retention(cluster.store, [RetentionRule(max_age_s=1.0)])

    def fail(now_us: int) -> None:
        raise DiskError("the disk fails")

    with monkeypatch.context() as patched:
        patched.setattr(retention, "plan", fail)
        cluster.replica.change_retention(retention, lambda: 10**15)
        assert settle(cluster, 0.1) == []
        assert cluster.replica.retention_problem == "the disk fails"
    assert settle(cluster) != []
    assert cluster.replica.retention_problem == ""
    assert cluster.store.first_offset == 1
