"""The harness of the jobs world: a log with delayed commits, the checkers, and the runs of actors."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from tests.sim.worlds.jobs_world import QUIET, quiet, run, worker

from godwit.broker import broker
from godwit.broker.effects import Append, Committed, Failed
from godwit.broker.session import made_name
from godwit.broker.settings import Settings
from godwit.client.events import Ended, Leased, Online
from godwit.client.worker import Lease
from godwit.errors import DiskError
from godwit.wire.batch import Batch, Entry, encode_batch, encode_head
from godwit.wire.changes import JobPayloadRow, JobRow
from godwit.wire.control_base import Code
from godwit.wire.jobs import JobSpec
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Network, Trace
from godwit_sim.worlds.broker_harness import EPOCH_US, Checkers
from godwit_sim.worlds.jobs import JobsWorld
from godwit_sim.worlds.jobs_harness import TAIL, Actor, DelayedLog, JobCheckers, describe

ENTRY = Entry(topic="a/b", publisher="boss", flags=0, published_us=0, received_us=0, count=1, rest=b"body")
COMMIT_US = 20_000


class Store:
    """Count appends, or fail."""

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


class Broker(broker.Broker):
    def __init__(self) -> None:
        super().__init__(Settings(), entropy=bytes, now_us=0)
        self.handle_events: list[Any] = []

    def handle(self, event: Any, now_us: int) -> None:
        self.handle_events.append(event)


@pytest.fixture
def parts() -> tuple[DelayedLog, Any, Any]:
    store: Any = Store()
    listening: Any = Broker()
    log = DelayedLog(store, Random(1), COMMIT_US / 1e6)
    log.begin(listening)
    return log, store, listening


def test_an_append_is_answered_later_and_in_order(parts: tuple[DelayedLog, Any, Any]) -> None:
    log, _, broker = parts
    assert (log.due_us, log.held_bytes) == (None, 0)
    log.append(Append([ENTRY], []), 1000)
    log.append(Append([ENTRY], []), 1000)
    due_us = log.due_us
    assert due_us is not None
    assert 1000 < due_us <= 1000 + COMMIT_US
    assert log.held_bytes == 2 * len(ENTRY.rest)
    log.work(due_us - 1)
    assert broker.handle_events == []
    log.work(due_us)
    assert broker.handle_events == [Committed(0)]
    log.work(1000 + 2 * COMMIT_US)
    assert broker.handle_events == [Committed(0), Committed(1)]
    assert (log.due_us, log.held_bytes) == (None, 0)


def test_appends_after_a_failure_fail_too(parts: tuple[DelayedLog, Any, Any]) -> None:
    log, store, broker = parts
    for _ in range(3):
        log.append(Append([ENTRY], []), 1000)
    store.is_full = True
    log.work(log.due_us or 0)
    assert [type(event) for event in broker.handle_events] == [Failed] * 3
    assert log.due_us is None
    store.is_full = False
    log.append(Append([ENTRY], []), 2000)
    log.work(2000 + COMMIT_US)
    assert broker.handle_events[-1] == Committed(0)


JOB_ROW = JobRow(1, "boss", "key", "mail", 1, 0, EPOCH_US, EPOCH_US, None, 3, 1000, None, "waiting", None, None)


def entry(topic: str, *payloads: bytes) -> Entry:
    batch = Batch(payloads=list(payloads), published_us=EPOCH_US, qos=1)
    body = encode_batch(batch)
    flags = body[0]
    head = encode_head(flags, EPOCH_US, None, None)
    assert body.startswith(head)
    return Entry(
        topic=topic,
        publisher="$broker",
        flags=flags,
        published_us=EPOCH_US,
        received_us=EPOCH_US,
        count=len(payloads),
        rest=body[len(head) :],
    )


def checkers() -> JobCheckers:
    made = Checkers(1, Network())
    made.restarts.attempted([], [JOB_ROW, JobPayloadRow(1, b"x")])
    made.restarts.succeeded(0)
    return JobCheckers(QUIET, made)


def test_events_are_learned() -> None:
    made = checkers()
    made.records.request("boss", JobSpec(key="key", of_kind="mail", size=1), b"x", 0.0)
    event = {"event": "submitted", "job": 1, "controller": "boss", "at_us": EPOCH_US, "payload_bytes": 1}
    made.learn([entry("other", b"no event"), entry("$jobs/mail", msgspec.json.encode(event))])
    assert made.log_model.jobs[1].state == "waiting"
    assert not made.is_storage_failing


def test_events_before_a_violation_are_reported() -> None:
    made = checkers()
    for number in range(30):
        made.note(f"note {number}")
    lines = made.tail().splitlines()
    assert lines[-1].endswith("note 29")
    assert len(lines) == TAIL + 1


def test_an_invalid_event_is_caught() -> None:
    with pytest.raises(ViolationError, match="is not an event"):
        checkers().learn([entry("$jobs/mail", b"no event")])


def world() -> JobsWorld:
    made = JobsWorld(QUIET, Trace())
    made.start()
    made.network.run(0.2)
    return made


def anna(made: JobsWorld) -> Actor:
    return made.workers[0]


def test_runs_of_an_actor() -> None:
    made = world()
    actor = anna(made)
    assert (actor.label, actor.is_online, actor.unsettled()) == ("worker0.1", True, "")
    actor.begin()
    assert actor.label == "worker0.1", "it runs already"
    first = actor.client.instance
    actor.die()
    assert actor.unsettled() == "worker0.1 is not online"
    actor.restart()
    assert not actor.host.alive, "only a closed actor restarts by itself"
    actor.begin()
    assert actor.label == "worker0.2"
    assert actor.client.instance != first
    actor.close()
    actor.restart()
    assert (actor.label, actor.is_closing) == ("worker0.3", False)
    actor.retire()
    actor.restart()
    assert not actor.host.alive
    assert actor.unsettled() == ""


def test_later_actions_need_the_same_run() -> None:
    made = world()
    actor = anna(made)
    done: list[str] = []
    actor.later(0.01, done.append, "now")
    made.network.run(0.25)
    actor.later(0.01, done.append, "after the pause")
    made.network.pause(actor.host, 0.5)
    made.network.run(0.4)
    assert done == ["now"]
    made.network.run(0.6)
    assert done == ["now", "after the pause"]
    actor.later(0.01, done.append, "never")
    actor.die()
    actor.begin()
    made.network.run(0.8)
    assert done == ["now", "after the pause"]


def test_an_end_has_a_reason() -> None:
    actor = anna(world())
    with pytest.raises(ViolationError, match="ended with code"):
        actor._on_events([Ended(Code.TAKEN_OVER, "another")], 0.2)
    with pytest.raises(ViolationError, match="welcomed as 'otto'"):
        actor._on_events([Online(False, "otto")], 0.2)


def test_twins_take_each_other_s_name_and_one_of_them_stays() -> None:
    made = run(quiet(workers=(worker("anna"), worker("anna", start_s=1.0))))
    assert [actor.is_retired for actor in made.workers] == [False, True]
    assert made.workers[0].is_retired is False
    assert {one.worker for one in made.jobs.records.runs.values()} == {"anna"}


def test_nameless_ones_are_called_by_their_instance() -> None:
    made = run(quiet(workers=(worker(None),)))
    (name,) = {one.worker for one in made.jobs.records.runs.values()}
    assert name == made_name(made.workers[0].client.instance)


def test_events_are_described() -> None:
    lease = Lease((1, 0, 2), "mail", "boss", b"x", 1, 0, None, None)
    assert describe(Leased(lease)) == "Leased (1, 0, 2) mail of boss running"
    assert describe(Online(True, "anna")) == "Online resumed=True name=anna"
