"""The model of workers: volunteering, activity, and reports about leases over time."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest

from godwit.broker.session import made_name
from godwit.transport.events import Closed, Connected, Received
from godwit.wire.control import Login, Work, encode_control
from godwit.wire.control_base import Code
from godwit.wire.jobs import JobSpec, Ref, Volunteer
from godwit.wire.work import ReportGroup, SubmitGroup, TaskOutcome, encode_group
from godwit_sim.jobs_workers import WorkerModel

LEASE: Ref = (1, 0, 1)


class Line:
    """One connection of a worker, as the broker's transport reports it."""

    def __init__(
        self, workers: WorkerModel, now: float, name: str | None = "anna", instance: bytes = b"a" * 16
    ) -> None:
        self.workers = workers
        self.records: dict[int, int] = {}
        workers.handle_events([Connected(self.connection, b"")], now)
        self.receive(0, encode_control(Login(request=0, name=name, instance=instance)), now)

    @cached_property
    def connection(self) -> Any:
        return object()

    def receive(self, channel: int, body: bytes, now: float) -> None:
        record = self.records.get(channel, -1) + 1
        self.records[channel] = record
        self.workers.handle_events([Received(self.connection, channel, record, body, True, False)], now)

    def volunteer(self, now: float, *kinds: str, capacity: int = 1, holding: tuple[Ref, ...] = ()) -> None:
        asked = Volunteer(request=1, kinds=list(kinds), capacity=capacity, holding=list(holding))
        self.receive(0, encode_control(asked), now)

    def report(self, now: float, *payloads: bytes, **parts: Any) -> None:
        if 1 not in self.records:
            self.receive(1, encode_control(Work()), now)
        self.receive(1, encode_group(ReportGroup(**parts), payloads), now)

    def close(self, now: float, origin: Any = "peer", code: int = Code.NORMAL) -> None:
        self.workers.handle_events([Closed(self.connection, code, "", origin)], now)


@pytest.fixture
def workers() -> WorkerModel:
    made = WorkerModel(10.0, 60.0)
    made.started(0.0)
    return made


def test_who_is_there(workers: WorkerModel) -> None:
    anna, berta = Line(workers, 1.0), Line(workers, 1.0, "berta")
    anna.volunteer(2.0, "resize", "mail", capacity=3)
    berta.volunteer(3.0, "resize")
    assert workers.count("resize", 2.5) == (1, 1)
    assert workers.count("resize", 3.0) == (1, 2), "at that instant both are possible"
    assert workers.certain_workers("resize", 3.5) == ["anna", "berta"]
    assert workers.certain_workers("mail", 3.5) == ["anna"]
    assert (workers.capacity("anna", "mail", 3.5), workers.capacity("berta", "mail", 3.5)) == (3, 0)
    assert workers.instances("anna", "mail", 3.5) == {b"a" * 16}
    anna.volunteer(4.0, "mail")
    assert workers.certain_workers("resize", 4.5) == ["berta"], "it replaces the earlier request"
    anna.volunteer(5.0)
    assert workers.count("mail", 5.5) == (0, 0)
    berta.close(6.0, "timeout", 0)
    assert workers.count("resize", 7.0) == (0, 0)
    assert workers.certain_workers("resize", 5.5) == ["berta"], "the past does not change"


def test_an_idle_worker_may_be_present(workers: WorkerModel) -> None:
    anna = Line(workers, 1.0)
    anna.volunteer(2.0, "resize")
    assert workers.count("resize", 11.9) == (1, 1)
    assert workers.count("resize", 12.1) == (0, 1)
    anna.report(13.0)
    assert workers.count("resize", 22.9) == (1, 1)


def test_whose_name_is_asked_for_is_perhaps_there(workers: WorkerModel) -> None:
    Line(workers, 1.0).volunteer(2.0, "resize")
    other = Line(workers, 4.0, instance=b"b" * 16)
    assert workers.count("resize", 3.5) == (1, 1)
    assert workers.count("resize", 4.5) == (0, 1)
    other.close(5.0, "local", Code.NAME_IN_USE)
    assert workers.count("resize", 5.5) == (1, 1)


def test_silence(workers: WorkerModel) -> None:
    anna = Line(workers, 1.0)
    anna.volunteer(2.0, "resize")
    anna.report(5.0)
    assert workers.longest_idle_s("anna", 3.0, 4.0) == 2.0, "from its last message before"
    assert workers.longest_idle_s("anna", 3.0, 5.5) == 3.0
    assert workers.longest_idle_s("anna", 3.0, 9.0) == 4.0
    assert workers.longest_idle_s("berta", 3.0, 9.0) == pytest.approx(6.0, abs=0.001), "it never sent a message"


def test_no_worker_is_present_when_the_broker_is_dead(workers: WorkerModel) -> None:
    Line(workers, 1.0).volunteer(2.0, "resize")
    workers.handle_broker_death(3.0)
    assert workers.count("resize", 3.5) == (0, 0)


def test_outcomes(workers: WorkerModel) -> None:
    anna = Line(workers, 1.0)
    anna.receive(1, encode_control(Work()), 1.0)
    anna.receive(1, encode_group(SubmitGroup(jobs=[JobSpec(key="k", of_kind="mail")]), [b""]), 1.0)
    anna.report(2.0, b"yes", b"", outcomes=[TaskOutcome(task=LEASE, size=3), TaskOutcome(task=(2, 0, 1), error="no")])
    assert [(one.error, payload) for one, payload in workers.outcomes("anna", LEASE)] == [(None, b"yes")]
    assert [one.error for one, _ in workers.outcomes("anna", (2, 0, 1))] == ["no"]
    assert workers.outcomes("berta", LEASE) == []
    anna.receive(1, b"no group", 3.0)
    anna.receive(5, b"no work", 3.0)


def test_nameless_workers_have_a_stable_name(workers: WorkerModel) -> None:
    Line(workers, 1.0, None).volunteer(1.0, "resize")
    assert workers.certain_workers("resize", 2.0) == [made_name(b"a" * 16)]


def test_returned_leases(workers: WorkerModel) -> None:
    anna = Line(workers, 1.0)
    anna.volunteer(2.0, "resize")
    assert not workers.may_return("anna", LEASE, 3.0, 4.0)
    anna.report(5.0, returned=[LEASE])
    assert workers.may_return("anna", LEASE, 3.0, 5.0)
    assert not workers.may_return("anna", (1, 1, 1), 3.0, 6.0)
    anna.close(7.0)
    assert workers.may_return("anna", (1, 1, 1), 3.0, 7.0), "it closed"
    assert not workers.may_return("anna", (1, 1, 1), 8.0, 9.0)
    Line(workers, 9.0).volunteer(9.0, "resize", holding=((1, 1, 1),))
    assert not workers.may_return("anna", (1, 1, 1), 8.0, 9.0), "it still has that"
    assert workers.may_return("anna", (1, 2, 1), 8.0, 9.0), "it came back without it"


def test_a_lost_connection_returns_no_lease(workers: WorkerModel) -> None:
    Line(workers, 1.0).close(2.0, "timeout")
    assert not workers.may_return("anna", LEASE, 1.0, 3.0)


def test_leases_that_may_be_lost(workers: WorkerModel) -> None:
    instance = b"a" * 16
    anna = Line(workers, 1.0)
    anna.volunteer(2.0, "resize")
    anna.report(5.0)
    assert not workers.may_be_lost("anna", instance, 3.0, 14.9)
    assert workers.may_be_lost("anna", instance, 3.0, 15.0)
    Line(workers, 6.0)
    assert not workers.may_be_lost("anna", instance, 3.0, 7.0), "the same run came back"
    Line(workers, 8.0, instance=b"b" * 16)
    assert workers.may_be_lost("anna", instance, 3.0, 8.0), "another one did"


def test_after_a_restart_there_is_more_time(workers: WorkerModel) -> None:
    instance = b"a" * 16
    Line(workers, 1.0).volunteer(2.0, "resize")
    workers.handle_broker_death(4.0)
    workers.started(5.0)
    assert not workers.may_be_lost("anna", instance, 3.0, 64.9)
    assert workers.may_be_lost("anna", instance, 3.0, 65.0)
    Line(workers, 10.0).volunteer(10.0, "resize")
    assert not workers.may_be_lost("anna", instance, 3.0, 19.9)
    assert workers.may_be_lost("anna", instance, 3.0, 20.0), "it came back, and fell silent again"
