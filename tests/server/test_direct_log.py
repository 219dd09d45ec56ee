"""A log whose store is asked at once: its answers, and the store's refusal."""

from __future__ import annotations

from collections.abc import Sequence

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, BrokerEvent, Committed, Failed, Found, Read
from godwit.broker.settings import Settings
from godwit.errors import DiskError
from godwit.server.direct_log import READS_PER_TURN, DirectLog
from godwit.store.memory import MemoryStore
from godwit.store.port import Change, Entry

ENTRY = Entry(topic="news", publisher="alice", flags=5, published_us=1, received_us=2, count=3, rest=b"rest")


class Listening(Broker):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__(Settings(), entropy=bytes, now_us=0)
        self.told: list[BrokerEvent] = []

    def handle(self, event: BrokerEvent, now_us: int) -> None:
        self.told.append(event)


class FullStore(MemoryStore):
    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        raise DiskError("the disk is full: make room")


def begun(store: MemoryStore) -> tuple[DirectLog, Listening]:
    log, broker = DirectLog(store), Listening()
    log.begin(broker)
    return log, broker


def test_an_append_is_answered_at_once() -> None:
    log, broker = begun(MemoryStore(log_id=b"id", first_offset=7))
    log.append(Append([ENTRY]), 5)
    log.append(Append([ENTRY]), 5)
    assert broker.told == [Committed(7), Committed(10)]
    assert (log.log_id, log.first_offset, log.next_offset, log.held_bytes) == (b"id", 7, 13, 0)


def test_what_the_store_refuses_has_failed() -> None:
    log, broker = begun(FullStore(log_id=b"id"))
    log.append(Append([ENTRY]), 5)
    assert broker.told == [Failed("the disk is full: make room")]


def test_reads_are_done_a_few_at_a_time() -> None:
    log, broker = begun(MemoryStore(log_id=b"id"))
    log.append(Append([ENTRY]), 5)
    broker.told.clear()
    reads = [Read(None, 0, 100) for _ in range(READS_PER_TURN + 1)]  # type: ignore[arg-type]
    for read in reads:
        log.read(read)
    assert log.due_us == 0
    log.work(5)
    assert broker.told == [Found(read, [(0, ENTRY)], 3) for read in reads[:READS_PER_TURN]]
    assert log.due_us == 0
    log.work(5)
    assert len(broker.told) == READS_PER_TURN + 1
    assert log.due_us is None
