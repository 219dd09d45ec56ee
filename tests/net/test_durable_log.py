"""The log in two threads: answers come back in the loop's thread, in order, and it is woken for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue

import pytest
from tests.net.log_stands import PATIENCE_S, Asker, DiskReader, DiskStore, ListeningBroker, append, entry

from godwit.broker.effects import Append, Committed, Failed, Found, Located, Losing, Notice, Read
from godwit.errors import DiskError
from godwit.net import durable_log
from godwit.net.checkpoints import TRUNCATE_BYTES
from godwit.net.durable_log import READS_A_TURN, FairQueue, ThreadedLog
from godwit.net.log_writer import LogWriter
from godwit.store.port import Slice
from godwit.wire.changes import StoredState

FULL = DiskError("the disk is full: make room")


class World:
    """The loop's side: the test's own thread works whenever it is woken."""

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        self.reader = DiskReader(store)
        self.broker = ListeningBroker()
        self.notices: list[Notice] = []
        self.wakes = 0
        self._woken = threading.Semaphore(0)
        self.log = ThreadedLog(
            store, self.reader, partial(LogWriter, store), wake=self._wake, on_notice=self.notices.append
        )
        self.log.begin(self.broker)

    def _wake(self) -> None:
        self.wakes += 1
        self._woken.release()

    def work(self) -> None:
        """Waits to be woken, and works."""
        assert self._woken.acquire(timeout=PATIENCE_S)
        self.log.work(5)

    def work_until(self, answers: int) -> None:
        while len(self.broker.told) + len(self.notices) < answers:
            if self.log.due_us == 0:
                self.log.work(5)
            else:
                self.work()

    def end(self) -> None:
        self.store.is_slow = False
        self.store.may_end.release(1000)
        self.log.end()
        assert self.log.join(PATIENCE_S)
        assert self.log.has_ended


@pytest.fixture
def world() -> Iterator[World]:
    world = World(DiskStore())
    try:
        yield world
    finally:
        world.end()


@pytest.fixture
def slow() -> Iterator[World]:
    world = World(DiskStore(is_slow=True))
    try:
        yield world
    finally:
        world.end()


def read(offset: int) -> Read:
    """Of a client of its own."""
    return Asker().read(offset, 1000)


def test_it_is_the_store_s_log(world: World) -> None:
    assert (world.log.log_id, world.log.first_offset, world.log.next_offset) == (b"id", 0, 0)
    assert world.log.state() == StoredState()


def test_answers_come_when_the_loop_works_and_in_its_thread(slow: World) -> None:
    log, store = slow.log, slow.store
    log.append(append(2), 5)
    store.begun.get(timeout=PATIENCE_S)
    log.append(append(3), 5)
    log.append(Append([entry(1, 100)]), 5)
    assert log.held_bytes == 108
    assert slow.wakes == 0
    store.may_end.release()
    slow.work()
    assert slow.broker.told == [Committed(0)]
    assert log.held_bytes == 104
    store.may_end.release()
    slow.work()
    assert slow.broker.told == [Committed(0), Committed(2), Committed(5)]
    assert (log.held_bytes, store.next_offset, log.due_us) == (0, 6, None)
    assert slow.wakes == 2  # one for what one commit took
    assert slow.broker.threads == {threading.current_thread().name}


def test_the_loop_is_woken_once_for_what_waits(world: World) -> None:
    for _ in range(1000):
        world.log.append(append(1), 5)
    assert world.store.begun.get(timeout=PATIENCE_S)
    while world.store.next_offset < 1000:
        world.store.begun.get(timeout=PATIENCE_S)
    world.work_until(1000)
    assert world.broker.told == [Committed(offset) for offset in range(1000)]
    assert world.wakes <= world.log.writer.commits
    # Nothing is left behind without a wake-up, however the two threads meet.
    for number in range(1000, 3000):
        world.log.append(append(1), 5)
        world.work_until(number + 1)


def test_a_failure_is_reported_to_the_broker_and_to_the_operator(world: World) -> None:
    world.store.errors = [FULL]
    world.log.append(append(1), 5)
    world.work_until(2)
    world.log.append(append(1), 5)
    world.work_until(4)
    assert world.broker.told == [Failed(str(FULL)), Committed(0)]
    assert [notice.kind for notice in world.notices] == ["warning", "log"]
    assert world.log.held_bytes == 0


def test_with_one_append_all_fail_that_were_given_before_the_broker_hears_of_it(slow: World) -> None:
    log, store = slow.log, slow.store
    store.errors = [FULL]
    log.append(append(1), 5)
    store.begun.get(timeout=PATIENCE_S)
    store.may_end.release()
    while not slow.wakes:
        threading.Event().wait(0.001)
    for _ in range(3):
        log.append(append(1), 5)  # the writer has failed and might try these
    slow.work()
    assert slow.broker.told == [Failed(str(FULL))] * 4
    assert log.held_bytes == 0
    store.may_end.release()
    log.append(append(1), 5)
    slow.work_until(7)
    assert slow.broker.told[4:] == [Committed(0)]
    assert store.next_offset == 1
    assert len(slow.notices) == 2


def test_reads_do_not_wait_for_a_commit(slow: World) -> None:
    log, store = slow.log, slow.store
    log.append(append(3), 5)
    store.begun.get(timeout=PATIENCE_S)
    question, lookup = read(0), Asker().locate(7)
    log.read(question)
    log.locate(lookup, 5)
    slow.work_until(2)
    assert slow.broker.told == [Found(question, [], 0), Located(lookup, 0)]


def test_reads_are_handed_over_a_few_at_a_time(world: World) -> None:
    world.log.append(append(3), 5)
    world.work_until(1)
    questions = [read(0) for _ in range(READS_A_TURN + 2)]
    for question in questions:
        world.log.read(question)
    while len(world.log._found) < READS_A_TURN + 2:
        threading.Event().wait(0.001)
    world.broker.told.clear()
    world.log.work(5)
    assert len(world.broker.told) == READS_A_TURN
    assert world.log.due_us == 0
    world.log.work(5)
    assert world.broker.told == [Found(question, [(0, entry(3))], 3) for question in questions]
    assert world.log.due_us is None


def test_a_read_that_the_disk_refuses_is_tried_until_it_works(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_log, "RETRY_S", 0.001)
    world.reader.error = DiskError("the disk gave an error: look at the system's log")
    questions = [read(0), read(0)]
    for question in questions:
        world.log.read(question)
    world.work_until(1)
    assert "the log cannot be read, which is tried again: the disk gave" in world.notices[0].text
    world.log.append(append(1), 5)  # writing continues
    world.work_until(2)
    world.reader.error = None
    world.work_until(5)
    assert [notice.kind for notice in world.notices] == ["warning", "log"]
    for question in questions:
        assert world.broker.told.count(Found(question, [(0, entry(1))], 1)) == 1


def test_clients_are_served_in_turn_however_much_one_of_them_asks_for(world: World) -> None:
    greedy, modest = Asker(), Asker()
    world.reader.may_read.clear()
    for offset in range(100):
        world.log.read(greedy.read(offset))
    while not world.reader.reads:
        threading.Event().wait(0.001)
    world.log.read(modest.read(1000))
    world.log.locate(modest.locate(7), 5)
    world.reader.may_read.set()
    world.work_until(102)
    assert world.reader.reads[:4] == [0, 1, 1000, 2]  # the second was in line before the other client came
    located = next(place for place, event in enumerate(world.broker.told) if isinstance(event, Located))
    assert located <= 5


def test_an_answer_that_is_not_needed_any_more_is_not_looked_up(world: World) -> None:
    world.reader.may_read.clear()
    world.log.read(read(0))
    while not world.reader.reads:
        threading.Event().wait(0.001)
    gone, elsewhere, closed, early = Asker().read(1), Asker().read(2), Asker().locate(3), Asker().read(4)
    early.subscription.peer = None  # before the log knows of it
    for question in (gone, elsewhere, early):
        world.log.read(question)
    world.log.locate(closed, 5)
    gone.subscription.peer = None
    elsewhere.subscription.reading = read(9)
    closed.lookup.peer.is_open = False
    last = read(5)
    world.log.read(last)
    world.reader.may_read.set()
    world.work_until(2)
    assert world.reader.reads == [0, 5]
    assert world.reader.looks == []
    assert world.broker.told[-1] == Found(last, [], 5)


def test_a_read_that_is_not_needed_any_more_is_not_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_log, "RETRY_S", 0.001)
    world.reader.error = FULL
    hopeless = read(1)
    world.log.read(hopeless)
    world.work_until(1)
    hopeless.subscription.peer = None
    last = read(2)
    world.log.read(last)
    while 2 not in world.reader.reads:
        threading.Event().wait(0.001)
    tried = len(world.reader.reads)
    world.reader.error = None
    world.work_until(3)
    assert world.broker.told == [Found(last, [], 2)]
    assert set(world.reader.reads[tried:]) <= {2}


def test_reads_let_a_write_ahead_log_be_cut_off_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_log, "READ_PAUSE_S", PATIENCE_S)
    store = DiskStore()
    store.wal_bytes = store.blocked_wal_bytes = TRUNCATE_BYTES + 1
    world = World(store)
    question = read(0)
    world.log.read(question)
    for _ in range(3):
        assert store.checkpoints.get(timeout=PATIENCE_S)
    assert world.reader.reads == []  # else there would always be a reader
    store.blocked_wal_bytes = 0
    world.work_until(1)
    assert world.broker.told == [Found(question, [], 0)]
    world.end()


def test_reads_do_not_wait_for_that_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_log, "READ_PAUSE_S", 0.001)
    store = DiskStore()
    store.wal_bytes = store.blocked_wal_bytes = TRUNCATE_BYTES + 1
    world = World(store)
    world.log.read(read(0))
    world.work_until(1)
    assert not world.log.writer.lets_read.is_set()
    world.end()


def test_damage_is_reported_to_the_operator_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.reader, "read", lambda offset, max_bytes: Slice([], 9, [(5, 9)]))
    for _ in range(3):
        world.log.read(read(5))
    world.work_until(4)
    (notice,) = world.notices
    assert notice.kind == "warning"
    assert "offsets 5 to 8 cannot be read" in notice.text
    assert "godwit log verify" in notice.text
    assert len(world.broker.told) == 3


def test_a_reader_that_cannot_be_closed_holds_up_no_end() -> None:
    world = World(DiskStore())
    world.reader.close_error = FULL
    world.end()
    world.log.work(5)
    assert [notice.text for notice in world.notices] == [f"the log's reader has ended: {FULL}"]
    assert world.store.is_closed


def test_only_the_append_that_is_the_cause_fails_for_good(slow: World) -> None:
    log, store = slow.log, slow.store
    store.errors = [OverflowError("too large")]
    log.append(append(1), 5)
    store.begun.get(timeout=PATIENCE_S)
    log.append(append(1), 5)
    store.may_end.release()
    while not slow.wakes:
        threading.Event().wait(0.001)
    slow.work()
    assert [type(event) for event in slow.broker.told] == [Failed, Failed]
    assert [event.is_lasting for event in slow.broker.told if isinstance(event, Failed)] == [True, False]


def test_messages_deleted_by_retention_are_reported() -> None:
    losing = Losing([(0, entry(3))], 3)
    broker, woken = ListeningBroker(), threading.Event()
    steps = iter([[losing]])
    store = DiskStore()
    log = ThreadedLog(
        store,
        DiskReader(store),
        partial(LogWriter, store, retention=lambda now_us: next(steps, None)),
        wake=woken.set,
        on_notice=print,
    )
    log.begin(broker)
    assert woken.wait(PATIENCE_S)
    log.work(5)
    assert broker.told == [losing]
    assert log.held_bytes == 0
    log.end()
    assert log.join(PATIENCE_S)


def test_deletions_are_reported_before_results_of_reads() -> None:
    losing = Losing([(0, entry(3))], 3)
    deleted, may_tell = threading.Event(), threading.Event()

    def retain(now_us: int) -> list[Losing] | None:
        if deleted.is_set():
            return None
        deleted.set()
        assert may_tell.wait(PATIENCE_S)
        return [losing]

    broker, woken = ListeningBroker(), threading.Semaphore(0)
    store = DiskStore()
    reader = DiskReader(store)
    log = ThreadedLog(store, reader, partial(LogWriter, store, retention=retain), wake=woken.release, on_notice=print)
    log.begin(broker)
    assert deleted.wait(PATIENCE_S)
    question = read(0)
    log.read(question)
    assert reader.has_read.wait(PATIENCE_S)
    log.work(5)
    assert broker.told == []
    may_tell.set()
    while len(broker.told) < 2:
        assert woken.acquire(timeout=PATIENCE_S)
        log.work(5)
    assert broker.told == [losing, Found(question, [], 0)]
    log.end()
    assert log.join(PATIENCE_S)


def test_the_reader_ends_first_so_that_the_writer_is_the_last_to_close_the_file(slow: World) -> None:
    slow.log.append(append(1), 5)
    slow.store.begun.get(timeout=PATIENCE_S)
    slow.log.end()
    while not slow.reader.is_closed:
        threading.Event().wait(0.001)
    assert not slow.store.is_closed


def test_a_log_that_was_never_begun_can_be_closed() -> None:
    store = DiskStore()
    reader = DiskReader(store)
    log = ThreadedLog(store, reader, partial(LogWriter, store), wake=print, on_notice=print)
    log.end()
    assert log.has_ended
    assert store.is_closed
    assert reader.is_closed


def test_the_end_commits_what_waits_and_leaves_no_thread() -> None:
    world = World(DiskStore(is_slow=True))
    for _ in range(10):
        world.log.append(append(1), 5)
    world.reader.error = FULL
    world.log.read(read(0))  # never answered; it delays no other
    world.log.end()
    assert not world.log.has_ended
    world.end()
    assert world.store.next_offset == 10
    assert world.store.checkpoints.get() is True
    assert world.store.is_closed
    assert world.reader.is_closed
    assert not {thread.name for thread in threading.enumerate()} & {"godwit-log-writer", "godwit-log-reader"}


def drain(queue: FairQueue[int], count: int) -> list[int | None]:
    return [queue.get() for _ in range(count)]


def test_everybody_has_a_turn_and_each_line_keeps_its_order() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(4):
        queue.put("greedy", number)
    queue.put("modest", 100)
    queue.put("late", 200)
    queue.put("modest", 101)
    assert drain(queue, 7) == [0, 100, 200, 1, 101, 2, 3]


def test_a_new_owner_waits_for_one_item_of_each_other() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(1000):
        queue.put("greedy", number)
    assert queue.get() == 0
    queue.put("modest", 5000)
    assert drain(queue, 3) == [1, 5000, 2]


def test_get_waits_for_an_item_or_the_end() -> None:
    queue: FairQueue[int] = FairQueue()
    got: SimpleQueue[int | None] = SimpleQueue()

    def take() -> None:
        for item in drain(queue, 3):
            got.put(item)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    queue.put("one", 1)
    queue.put("two", 2)
    while queue._queues:
        threading.Event().wait(0.001)
    assert got.empty()  # it waits for the third
    queue.end()
    assert [got.get(timeout=PATIENCE_S) for _ in range(3)] == [1, 2, None]
    thread.join(PATIENCE_S)


def test_the_end_comes_at_once_whatever_waits() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.put("one", 1)
    queue.end()
    assert queue.get() is None
    assert queue.get() is None
