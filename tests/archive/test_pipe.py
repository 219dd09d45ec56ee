"""The pipes between broker and archive, from the archive's side."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from godwit.archive.pipe import BrokerPipe
from godwit.broker.access import TokenRights
from godwit.server.archive_pipe import (
    Commit,
    CommitDone,
    FromArchive,
    LogLine,
    PipeReader,
    Ready,
    decode_from_archive,
    encode_message,
)

PATIENCE_S = 20.0
RIGHTS = TokenRights(names=("p",))


class Broker:
    """The other ends."""

    def __init__(self) -> None:
        archive_reads, self.writes_fd = os.pipe()
        self.reads_fd, archive_writes = os.pipe()
        self.ended = threading.Event()
        self.pipe = BrokerPipe(archive_reads, archive_writes, self.ended.set)
        self.pipe.start()
        self._reader = PipeReader()
        self._heard: list[FromArchive] = []

    def hear(self) -> FromArchive:
        while not self._heard:
            self._heard += map(decode_from_archive, self._reader.feed(os.read(self.reads_fd, 65536)))
        return self._heard.pop(0)

    def say(self, data: bytes) -> None:
        os.write(self.writes_fd, data)


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    if not broker.ended.is_set():
        os.close(broker.writes_fd)
        assert broker.ended.wait(PATIENCE_S)


def test_what_it_says(broker: Broker) -> None:
    broker.pipe.ready("grpc://127.0.0.1:7")
    broker.pipe.log("warning", "it is hot")
    assert broker.hear() == Ready("grpc://127.0.0.1:7")
    assert broker.hear() == LogLine("warning", "it is hot")


def test_each_commit_gets_its_own_answer(broker: Broker) -> None:
    answers: dict[str, CommitDone | None] = {}

    def ask(query: str) -> None:
        answers[query] = broker.pipe.commit(query, 7, ["file"], RIGHTS, PATIENCE_S)

    threads = [threading.Thread(target=ask, args=(query,)) for query in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    keys = {}
    for _ in threads:
        commit = broker.hear()
        assert isinstance(commit, Commit)
        assert (commit.batch, commit.files, commit.rights) == (7, ["file"], RIGHTS)
        keys[commit.query] = commit.key
    said = b"".join(
        encode_message(CommitDone(keys[query], first_offset=number))
        for number, query in enumerate(("three", "one", "two"))
    )
    broker.say(said[:5])  # however it is cut
    broker.say(said[5:])
    for thread in threads:
        thread.join(PATIENCE_S)
    assert {query: done and done.first_offset for query, done in answers.items()} == {"three": 0, "one": 1, "two": 2}


def test_no_answer_in_time(broker: Broker) -> None:
    assert broker.pipe.commit("q", 1, [], RIGHTS, 0.01) is None
    late = broker.hear()
    assert isinstance(late, Commit)
    broker.say(encode_message(CommitDone(late.key)))  # is nobody's any more
    broker.pipe.ready("still there")
    assert broker.hear() == Ready("still there")


def test_the_end_of_the_pipe_is_the_end(broker: Broker) -> None:
    os.close(broker.writes_fd)
    assert broker.ended.wait(PATIENCE_S)
    os.close(broker.reads_fd)
    broker.pipe.log("info", "to nobody")  # and no error


def test_a_broker_that_talks_nonsense_is_no_broker(broker: Broker) -> None:
    broker.say(b"\x00\x00\x00\x01?")
    assert broker.ended.wait(PATIENCE_S)
