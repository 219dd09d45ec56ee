"""The ear for work: who volunteered when, who was heard when, and what workers said of their leases."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest

from godwit.broker.session import made_name
from godwit.transport.events import Closed, Connected, Received
from godwit.wire.codes import Code
from godwit.wire.control import Login, Work, encode_control
from godwit.wire.jobs import Ref, Volunteer
from godwit.wire.work import Outcome, Report, Submission, Submit, encode_group
from godwit_sim.jobs_workers import WorkRoster

LEASE: Ref = (1, 0, 1)


class Line:
    """One connection of a worker, as the broker's transport tells of it."""

    def __init__(self, roster: WorkRoster, now: float, name: str | None = "anna", instance: bytes = b"a" * 16) -> None:
        self.roster = roster
        self.records: dict[int, int] = {}
        roster.heard([Connected(self.connection, b"")], now)
        self.receive(0, encode_control(Login(request=0, name=name, instance=instance)), now)

    @cached_property
    def connection(self) -> Any:
        return object()

    def receive(self, channel: int, body: bytes, now: float) -> None:
        record = self.records.get(channel, -1) + 1
        self.records[channel] = record
        self.roster.heard([Received(self.connection, channel, record, body, True, False)], now)

    def volunteer(self, now: float, *kinds: str, capacity: int = 1, holding: tuple[Ref, ...] = ()) -> None:
        asked = Volunteer(request=1, kinds=list(kinds), capacity=capacity, holding=list(holding))
        self.receive(0, encode_control(asked), now)

    def report(self, now: float, *payloads: bytes, **parts: Any) -> None:
        if 1 not in self.records:
            self.receive(1, encode_control(Work()), now)
        self.receive(1, encode_group(Report(**parts), payloads), now)

    def close(self, now: float, origin: Any = "peer", code: int = Code.NORMAL) -> None:
        self.roster.heard([Closed(self.connection, code, "", origin)], now)


@pytest.fixture
def roster() -> WorkRoster:
    made = WorkRoster(10.0, 60.0)
    made.started(0.0)
    return made


def test_who_is_there(roster: WorkRoster) -> None:
    anna, berta = Line(roster, 1.0), Line(roster, 1.0, "berta")
    anna.volunteer(2.0, "resize", "mail", capacity=3)
    berta.volunteer(3.0, "resize")
    assert roster.count("resize", 2.5) == (1, 1)
    assert roster.count("resize", 3.0) == (1, 2), "at that very moment nobody knows"
    assert roster.surely("resize", 3.5) == ["anna", "berta"]
    assert roster.surely("mail", 3.5) == ["anna"]
    assert (roster.capacity("anna", "mail", 3.5), roster.capacity("berta", "mail", 3.5)) == (3, 0)
    assert roster.instances("anna", "mail", 3.5) == {b"a" * 16}
    anna.volunteer(4.0, "mail")
    assert roster.surely("resize", 4.5) == ["berta"], "it replaces what was said before"
    anna.volunteer(5.0)
    assert roster.count("mail", 5.5) == (0, 0)
    berta.close(6.0, "timeout", 0)
    assert roster.count("resize", 7.0) == (0, 0)
    assert roster.surely("resize", 5.5) == ["berta"], "the past stays what it was"


def test_who_is_not_heard_is_perhaps_there(roster: WorkRoster) -> None:
    anna = Line(roster, 1.0)
    anna.volunteer(2.0, "resize")
    assert roster.count("resize", 11.9) == (1, 1)
    assert roster.count("resize", 12.1) == (0, 1)
    anna.report(13.0)
    assert roster.count("resize", 22.9) == (1, 1)


def test_whose_name_is_asked_for_is_perhaps_there(roster: WorkRoster) -> None:
    Line(roster, 1.0).volunteer(2.0, "resize")
    other = Line(roster, 4.0, instance=b"b" * 16)
    assert roster.count("resize", 3.5) == (1, 1)
    assert roster.count("resize", 4.5) == (0, 1)
    other.close(5.0, "local", Code.NAME_IN_USE)
    assert roster.count("resize", 5.5) == (1, 1)


def test_silence(roster: WorkRoster) -> None:
    anna = Line(roster, 1.0)
    anna.volunteer(2.0, "resize")
    anna.report(5.0)
    assert roster.silence_s("anna", 3.0, 4.0) == 2.0, "from when it was heard before"
    assert roster.silence_s("anna", 3.0, 5.5) == 3.0
    assert roster.silence_s("anna", 3.0, 9.0) == 4.0
    assert roster.silence_s("berta", 3.0, 9.0) == pytest.approx(6.0, abs=0.001), "it was never heard at all"


def test_nobody_is_there_when_the_broker_is_dead(roster: WorkRoster) -> None:
    Line(roster, 1.0).volunteer(2.0, "resize")
    roster.cut_off(3.0)
    assert roster.count("resize", 3.5) == (0, 0)


def test_outcomes(roster: WorkRoster) -> None:
    anna = Line(roster, 1.0)
    anna.receive(1, encode_control(Work()), 1.0)
    anna.receive(1, encode_group(Submit(jobs=[Submission(key="k", of_kind="mail")]), [b""]), 1.0)
    anna.report(2.0, b"yes", b"", outcomes=[Outcome(task=LEASE, size=3), Outcome(task=(2, 0, 1), error="no")])
    assert [(one.error, payload) for one, payload in roster.outcomes("anna", LEASE)] == [(None, b"yes")]
    assert [one.error for one, _ in roster.outcomes("anna", (2, 0, 1))] == ["no"]
    assert roster.outcomes("berta", LEASE) == []
    anna.receive(1, b"no group", 3.0)
    anna.receive(5, b"no work", 3.0)


def test_nameless_workers_have_a_stable_name(roster: WorkRoster) -> None:
    Line(roster, 1.0, None).volunteer(1.0, "resize")
    assert roster.surely("resize", 2.0) == [made_name(b"a" * 16)]


def test_what_was_given_up(roster: WorkRoster) -> None:
    anna = Line(roster, 1.0)
    anna.volunteer(2.0, "resize")
    assert not roster.may_return("anna", LEASE, 3.0, 4.0)
    anna.report(5.0, returned=[LEASE])
    assert roster.may_return("anna", LEASE, 3.0, 5.0)
    assert not roster.may_return("anna", (1, 1, 1), 3.0, 6.0)
    anna.close(7.0)
    assert roster.may_return("anna", (1, 1, 1), 3.0, 7.0), "it said goodbye"
    assert not roster.may_return("anna", (1, 1, 1), 8.0, 9.0)
    Line(roster, 9.0).volunteer(9.0, "resize", holding=((1, 1, 1),))
    assert not roster.may_return("anna", (1, 1, 1), 8.0, 9.0), "it still has that"
    assert roster.may_return("anna", (1, 2, 1), 8.0, 9.0), "it came back without it"


def test_who_has_no_goodbye_gives_nothing_up(roster: WorkRoster) -> None:
    Line(roster, 1.0).close(2.0, "timeout")
    assert not roster.may_return("anna", LEASE, 1.0, 3.0)


def test_what_may_be_lost(roster: WorkRoster) -> None:
    instance = b"a" * 16
    anna = Line(roster, 1.0)
    anna.volunteer(2.0, "resize")
    anna.report(5.0)
    assert not roster.may_be_lost("anna", instance, 3.0, 14.9)
    assert roster.may_be_lost("anna", instance, 3.0, 15.0)
    Line(roster, 6.0)
    assert not roster.may_be_lost("anna", instance, 3.0, 7.0), "the same run came back"
    Line(roster, 8.0, instance=b"b" * 16)
    assert roster.may_be_lost("anna", instance, 3.0, 8.0), "another one did"


def test_after_a_restart_there_is_more_time(roster: WorkRoster) -> None:
    instance = b"a" * 16
    Line(roster, 1.0).volunteer(2.0, "resize")
    roster.cut_off(4.0)
    roster.started(5.0)
    assert not roster.may_be_lost("anna", instance, 3.0, 64.9)
    assert roster.may_be_lost("anna", instance, 3.0, 65.0)
    Line(roster, 10.0).volunteer(10.0, "resize")
    assert not roster.may_be_lost("anna", instance, 3.0, 19.9)
    assert roster.may_be_lost("anna", instance, 3.0, 20.0), "it came back, and fell silent again"
