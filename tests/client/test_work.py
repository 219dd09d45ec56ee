"""The work channel towards the broker: what becomes one record, what goes when, and how much may wait."""

from __future__ import annotations

import pytest
from tests.client.stubs import StubConnection

from godwit.client.events import ClientEvent, WorkIdle, WorkRoom
from godwit.client.leasing import Lease
from godwit.client.work import CUT_AFTER_S, GROUP_BYTES, OPTIONS_BYTES, PART_COST_BYTES, WorkChannel
from godwit.errors import BufferFullError, DecodeError
from godwit.limits import (
    MAX_GROUP,
    MAX_JOB_PAYLOAD_BYTES,
    MAX_JOB_TIME_MS,
    MAX_KIND_BYTES,
    MAX_RETRIES,
    MAX_WORK_HEAD_BYTES,
    MIB,
)
from godwit.wire.control import Work, decode_control
from godwit.wire.jobs import JobSpec
from godwit.wire.work import ProgressReport, ReportGroup, SubmitGroup, TaskOutcome, decode_from_client

CHANNEL = 1


class Bench:
    """A channel of work, and what it told."""

    def __init__(self, limit_bytes: int = MIB) -> None:
        self.events: list[ClientEvent] = []
        self.reported: list[list[Lease]] = []
        self.violations: list[str] = []
        self.told: list[str] = []
        self.channel = WorkChannel(
            limit_bytes,
            self.events,
            on_reported=self.reported.append,
            on_violation=lambda _, reason: self.violations.append(reason),
        )
        self.channel.on_begun = lambda: self.told.append("begun")
        self.channel.on_full = self._on_full
        self.connection = StubConnection()
        self.channel.attach(self.connection.real, MIB)

    def _on_full(self) -> None:
        assert not self.channel.has_begun, "the next group is about to fill"
        self.told.append("full")

    def submit(self, number: int, payload: bytes = b"payload", kind: str = "kind") -> None:
        submission = JobSpec(key=f"k{number}", of_kind=kind, size=len(payload))
        self.channel.add_submission(submission, payload, len(kind.encode()) + 6)

    def report(self, number: int, result: bytes | None = b"result", error: str | None = None) -> Lease:
        lease = Lease((number, 0, 1), "kind", "boss", b"", 1, 0, None, None)
        if result is not None:
            lease.outcome = TaskOutcome(task=lease.ref, size=len(result), error=error)
            lease.result = result
        self.channel.add_outcome(lease)
        return lease

    @property
    def groups(self) -> list[tuple[SubmitGroup | ReportGroup, list[bytes]]]:
        return [decode_from_client(body) for body in self.connection.bodies(CHANNEL)]

    @property
    def job_keys(self) -> list[list[str]]:
        return [[job.key for job in head.jobs] for head, _ in self.groups if isinstance(head, SubmitGroup)]


def test_what_is_added_in_one_turn_is_one_record() -> None:
    bench = Bench()
    for number in range(100):
        bench.submit(number)
    returned = bench.report(7, None)
    for number in range(50):
        bench.report(number)
    assert bench.connection.sent == []
    assert bench.told == ["begun", "begun"]
    bench.channel.cut()
    assert not bench.channel.has_begun
    assert isinstance(decode_control(bench.connection.sent[0].body), Work)
    (submit, payloads), (report, results) = bench.groups
    assert isinstance(submit, SubmitGroup)
    assert isinstance(report, ReportGroup)
    assert [job.key for job in submit.jobs] == [f"k{number}" for number in range(100)]
    assert payloads == [b"payload"] * 100
    assert report.returned == [returned.ref]
    assert [outcome.task for outcome in report.outcomes] == [(number, 0, 1) for number in range(50)]
    assert results == [b"result"] * 50


def test_a_full_group_goes_at_once() -> None:
    bench = Bench()
    for number in range(10):
        bench.submit(number, bytes(GROUP_BYTES // 4))
    assert bench.job_keys == [["k0", "k1", "k2"], ["k3", "k4", "k5"], ["k6", "k7", "k8"]]
    assert bench.told == ["begun", "full", "full", "full"]
    bench.channel.cut()
    assert bench.job_keys[-1] == ["k9"]
    for number in range(5):
        bench.report(number, bytes(GROUP_BYTES // 2 - 100))
    bench.channel.cut()
    assert [len(head.outcomes) for head, _ in bench.groups if isinstance(head, ReportGroup)] == [2, 2, 1]


def test_a_group_has_no_more_parts_than_it_may() -> None:
    bench = Bench()
    for number in range(MAX_GROUP + 1):
        bench.report(number, None)
    bench.channel.cut()
    counts = [len(head.returned) for head, _ in bench.groups if isinstance(head, ReportGroup)]
    assert sum(counts) == MAX_GROUP + 1
    assert max(counts) <= MAX_GROUP


def test_the_longest_parts_fit() -> None:
    bench = Bench()
    bench.submit(0, bytes(MAX_JOB_PAYLOAD_BYTES))
    bench.submit(1, bytes(MAX_JOB_PAYLOAD_BYTES))
    for number in range(1000):
        bench.submit(number, b"", "ü" * (MAX_KIND_BYTES // 2))
        bench.report(number, b"", "ü" * 1024)
    for number in range(500):
        bench.channel.add_step(ProgressReport(task=(number, 0, 1), note="ü" * 1024))
    bench.channel.cut()
    assert sum(map(len, bench.job_keys)) == 1002
    for body in bench.connection.bodies(CHANNEL):
        assert int.from_bytes(body[:4], "big") <= MAX_WORK_HEAD_BYTES
    assert sum(len(body) > GROUP_BYTES + 100 for body in bench.connection.bodies(CHANNEL)) == 2


def test_what_is_reckoned_for_a_part_is_enough() -> None:
    """A broker with a small limit takes no more than a group should have."""
    bench = Bench()
    for number in range(MAX_GROUP):
        longest = JobSpec(
            key=f"k{number}",
            of_kind="kind",
            size=1,
            workers=9999,
            priority=-100,
            delay_ms=MAX_JOB_TIME_MS,
            deadline_ms=MAX_JOB_TIME_MS,
            retries=MAX_RETRIES,
            retry_delay_ms=MAX_JOB_TIME_MS,
            time_limit_ms=MAX_JOB_TIME_MS,
        )
        bench.channel.add_submission(longest, b"x", len("kind") + len(longest.key) + OPTIONS_BYTES)
        lease = Lease((2**63 - 1, 2**32 - 1, 2**32 - 1), "kind", "boss", b"", 1, 0, None, None)
        lease.outcome = TaskOutcome(task=lease.ref, size=1, error="no", is_final=True)
        lease.result = b"x"
        bench.channel.add_outcome(lease)
        bench.channel.add_step(ProgressReport(task=lease.ref, progress=0.123456789, note="n"))
    bench.channel.cut()
    lengths = [len(body) for body in bench.connection.bodies(CHANNEL)]
    assert max(lengths) <= GROUP_BYTES + 100
    assert len(lengths) < 10


def test_an_empty_report_is_a_sign_of_life() -> None:
    bench = Bench()
    bench.channel.add_nothing()
    bench.channel.cut()
    assert [head for head, _ in bench.groups] == [ReportGroup()]


def test_a_busy_transport_is_waited_for_a_little() -> None:
    bench = Bench()
    bench.submit(0)
    bench.channel.cut_if_late(10.0)
    assert bench.channel.due_at == 10.0 + CUT_AFTER_S
    bench.channel.cut_if_late(10.0 + CUT_AFTER_S / 2)
    assert bench.connection.sent == []
    bench.channel.cut_if_late(10.0 + CUT_AFTER_S)
    assert bench.job_keys == [["k0"]]
    assert bench.channel.due_at is None


def test_what_the_transport_does_not_take_goes_later_and_in_order() -> None:
    bench = Bench()
    bench.connection.room = 2
    for number in range(4):
        bench.submit(number)
        bench.channel.cut()
    assert bench.job_keys == [["k0"]]
    bench.connection.room = 10
    bench.channel.hand_over()
    assert bench.job_keys == [["k0"], ["k1"], ["k2"], ["k3"]]


def test_without_a_channel_it_waits_for_one() -> None:
    bench = Bench()
    bench.connection.channels_left = 0
    bench.submit(0)
    bench.channel.cut()
    assert bench.channel.lacks_channel
    bench.connection.channels_left = 1
    bench.channel.hand_over()
    assert bench.job_keys == [["k0"]]
    assert not bench.channel.lacks_channel


def test_a_broker_that_takes_only_short_records_breaks_the_rules() -> None:
    bench = Bench()
    bench.connection.longest_bytes = 1000
    bench.submit(0, bytes(2000))
    bench.channel.cut()
    assert bench.violations == ["too long"]


def test_a_connection_that_is_closing_takes_nothing_and_nothing_happens() -> None:
    bench = Bench()
    bench.connection.is_closed = True
    bench.submit(0)
    bench.channel.cut()
    assert bench.connection.sent == []


def test_reports_are_told_when_their_record_is_confirmed() -> None:
    bench = Bench()
    one = bench.report(1)
    bench.channel.cut()
    bench.submit(0)
    bench.channel.cut()
    two, three = bench.report(2), bench.report(3, None)
    bench.channel.cut()
    bench.channel.on_confirmed(0)
    assert bench.reported == []
    bench.channel.on_confirmed(2)
    assert bench.reported == [[one]]
    bench.channel.on_confirmed(3)
    bench.channel.on_confirmed(3)
    assert bench.reported == [[one], [two, three]]


def test_a_confirm_of_what_was_not_sent() -> None:
    bench = Bench()
    bench.report(1)
    bench.channel.cut()
    with pytest.raises(DecodeError, match="record 2 on the channel of work"):
        bench.channel.on_confirmed(2)


def test_nothing_of_a_connection_outlives_it() -> None:
    bench = Bench()
    bench.report(1)
    bench.channel.cut()
    bench.connection.room = 0
    bench.submit(2)
    bench.channel.cut()
    bench.report(3)
    bench.channel.detach()
    bench.submit(4)
    bench.report(5)
    assert not bench.channel.has_begun
    bench.connection = StubConnection()
    bench.channel.attach(bench.connection.real, MIB)
    bench.channel.cut()
    assert bench.connection.sent == []
    bench.submit(6)
    bench.channel.cut()
    assert bench.job_keys == [["k6"]]
    bench.channel.on_confirmed(1)
    assert bench.reported == []


# -- the buffer -------------------------------------------------------------------------------------------------------


def test_the_buffer_is_bounded_and_tells_of_room_once_it_is_half_empty() -> None:
    cost = 1000 + PART_COST_BYTES
    bench = Bench(10 * cost)
    for _ in range(10):
        bench.channel.take(1000)
    with pytest.raises(BufferFullError, match=f"{10 * cost} bytes"):
        bench.channel.take(0)
    for _ in range(4):
        bench.channel.give_back(1000)
    assert bench.events == []
    bench.channel.give_back(1000)
    assert bench.events == [WorkRoom()]
    bench.channel.take(1000)
    bench.channel.give_back(1000)
    assert bench.events == [WorkRoom()]


def test_one_part_always_fits_and_what_must_not_wait_too() -> None:
    bench = Bench(100)
    bench.channel.take(1000)
    bench.channel.take_anyway()
    assert bench.channel.held_parts == 2
    bench.channel.give_back(0)
    assert bench.events == []
    bench.channel.give_back(1000)
    assert bench.events == [WorkIdle()]
    bench.channel.take(1000)
