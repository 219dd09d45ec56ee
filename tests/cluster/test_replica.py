"""A node with its file: groups of appends, their answers, and appends with errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.store.entries import make_entry

from godwit.cluster.engine import AppendRefused, AppendRequest, Stored, StreamInfo
from godwit.cluster.replica import MAX_IN_FLIGHT, CommittedAppend, FailedAppend, Replica
from godwit.cluster.values import NodeConfig
from godwit.errors import DiskError
from godwit.store.replica import ReplicaStore
from godwit.wire.batch import Entry
from godwit.wire.changes import TopicRow


class Cluster:
    """A replica, and an engine that stores all records when `agree` is called."""

    def __init__(self, path: Path) -> None:
        self.store = ReplicaStore.open(path, new_log_id=bytes(16), now_us=1)
        self.now = 0.0
        self.replica = Replica(NodeConfig(name="a"), self.store, entropy=Random(1).randbytes, now=0.0)
        self.last = 0
        self.requests: list[AppendRequest] = []
        while self.replica.node.state != "active":
            self.now += 0.25
            self.work()
            self.replica.node.handle(StreamInfo(1, self.last), self.now)
            self.agree()

    def work(self) -> list[CommittedAppend | FailedAppend]:
        answers = self.replica.work(self.now)
        requests = self.replica.node.poll_requests()
        self.requests += [request for request in requests if isinstance(request, AppendRequest)]
        return answers

    def agree(self) -> None:
        """Store all records that were sent."""
        for request in self.requests:
            self.last += 1
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
    assert cluster.store.next_offset == 0
    cluster.now += 2.0
    assert cluster.work() == []  # its sender is gone
    assert cluster.store.next_offset == 1


def test_nothing_is_answered_in_doubt(cluster: Cluster) -> None:
    cluster.replica.append("one", [make_entry(b"1")], [], 1)
    cluster.work()
    cluster.replica.node.handle(AppendRefused(), cluster.now)
    for _ in range(40):
        cluster.now += 0.25
        assert cluster.work() == []
    assert cluster.replica.node.state == "withdrawn"
