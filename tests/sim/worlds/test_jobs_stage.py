"""A log that takes its time: answers come in order, later, and after a failure for all that were under way."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from godwit.broker.effects import Append, Committed, Failed
from godwit.errors import DiskError
from godwit.wire.batch import Entry
from godwit_sim.worlds.jobs_stage import LateLog

ENTRY = Entry(topic="a/b", publisher="boss", flags=0, published_us=0, received_us=0, count=1, rest=b"body")
COMMIT_US = 20_000


class Store:
    """Counts, or fails."""

    def __init__(self) -> None:
        self.is_full = False
        self.next_offset = 0

    def append(self, entries: Sequence[Entry], changes: Sequence[object] = ()) -> int:
        if self.is_full:
            raise DiskError("the disk is full")
        self.next_offset += len(entries)
        return self.next_offset - len(entries)

    def trim(self, now_us: int) -> list[Any]:
        return []


class Broker:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def handle(self, event: Any, now_us: int) -> None:
        self.heard.append(event)


@pytest.fixture
def parts() -> tuple[LateLog, Any, Any]:
    store: Any = Store()
    broker: Any = Broker()
    log = LateLog(store, Random(1), COMMIT_US / 1e6)
    log.begin(broker)
    return log, store, broker


def test_an_append_is_answered_later_and_in_order(parts: tuple[LateLog, Any, Any]) -> None:
    log, _, broker = parts
    assert (log.due_us, log.held_bytes) == (None, 0)
    log.append(Append([ENTRY], []), 1000)
    log.append(Append([ENTRY], []), 1000)
    due_us = log.due_us
    assert due_us is not None
    assert 1000 < due_us <= 1000 + COMMIT_US
    assert log.held_bytes == 2 * len(ENTRY.rest)
    log.work(due_us - 1)
    assert broker.heard == []
    log.work(due_us)
    assert broker.heard == [Committed(0)]
    log.work(1000 + 2 * COMMIT_US)
    assert broker.heard == [Committed(0), Committed(1)]
    assert (log.due_us, log.held_bytes) == (None, 0)


def test_what_is_behind_a_failure_fails_too(parts: tuple[LateLog, Any, Any]) -> None:
    log, store, broker = parts
    for _ in range(3):
        log.append(Append([ENTRY], []), 1000)
    store.is_full = True
    log.work(log.due_us or 0)
    assert [type(event) for event in broker.heard] == [Failed] * 3
    assert log.due_us is None
    store.is_full = False
    log.append(Append([ENTRY], []), 2000)
    log.work(2000 + COMMIT_US)
    assert broker.heard[-1] == Committed(0)
