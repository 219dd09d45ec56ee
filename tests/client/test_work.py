"""Work of a client: the groups and the buffer of its channel, and both channels together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.stubs import StubConnection
from tests.client.work_broker import WorkBroker, at_work, break_connection, spec
from tests.client.world import Network, User
from tests.transport.world import examples

from godwit.client.events import (
    ClientEvent,
    JobChanged,
    JobRefused,
    JobTaken,
    Leased,
    Offline,
    WorkBufferAvailable,
    WorkIdle,
)
from godwit.client.jobs import OPTIONS_BYTES
from godwit.client.work import CUT_AFTER_S, GROUP_BYTES, PART_COST_BYTES, WorkChannel
from godwit.client.worker import Lease
from godwit.errors import BufferFullError, DecodeError, GodwitError
from godwit.limits import (
    MAX_GROUP,
    MAX_JOB_PAYLOAD_BYTES,
    MAX_JOB_TIME_MS,
    MAX_KIND_BYTES,
    MAX_RETRIES,
    MAX_WORK_HEAD_BYTES,
    MIB,
)
from godwit.wire.control import Work, decode_control, encode_control
from godwit.wire.control_base import Code
from godwit.wire.jobs import JobSpec
from godwit.wire.work import (
    JobUpdate,
    LeasedTask,
    LeaseGroup,
    ProgressReport,
    ReportGroup,
    RevokeGroup,
    SubmitGroup,
    SubmitReply,
    SubmitReplyGroup,
    TaskOutcome,
    TaskUpdate,
    UpdateGroup,
    decode_from_client,
    encode_group,
)

CHANNEL = 1


class Bench:
    """A work channel, and its callbacks and events."""

    def __init__(self, limit_bytes: int = MIB) -> None:
        self.events: list[ClientEvent] = []
        self.reported: list[list[Lease]] = []
        self.violations: list[str] = []
        self.calls: list[str] = []
        self.channel = WorkChannel(
            limit_bytes,
            self.events,
            on_reported=self.reported.append,
            on_violation=lambda _, reason: self.violations.append(reason),
        )
        self.channel.on_begun = lambda: self.calls.append("begun")
        self.channel.on_full = self._on_full
        self.connection = StubConnection()
        self.channel.attach(self.connection.real, MIB)

    def _on_full(self) -> None:
        assert self.channel.is_filling, "the next group is about to fill"
        self.calls.append("full")

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


def test_parts_of_one_turn_are_one_record() -> None:
    bench = Bench()
    for number in range(100):
        bench.submit(number)
    returned = bench.report(7, None)
    for number in range(50):
        bench.report(number)
    assert bench.connection.sent == []
    assert bench.calls == ["begun", "begun"]
    bench.channel.cut()
    assert not bench.channel.jobs_bytes
    assert not bench.channel.report_bytes
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
    assert bench.calls == ["begun", "full", "full", "full"]
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


def test_the_counted_size_of_a_part_is_enough() -> None:
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
    bench.channel.add_heartbeat()
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


def test_groups_wait_for_the_transport_in_order() -> None:
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


def test_a_broker_that_accepts_only_short_records_violates_the_protocol() -> None:
    bench = Bench()
    bench.connection.longest_bytes = 1000
    bench.submit(0, bytes(2000))
    bench.channel.cut()
    assert bench.violations == ["too long"]


def test_a_closing_connection_accepts_nothing() -> None:
    bench = Bench()
    bench.connection.is_closed = True
    bench.submit(0)
    bench.channel.cut()
    assert bench.connection.sent == []


def test_reports_are_passed_on_when_their_record_is_confirmed() -> None:
    bench = Bench()
    one = bench.report(1)
    bench.channel.cut()
    bench.submit(0)
    bench.channel.cut()
    two, three = bench.report(2), bench.report(3, None)
    bench.channel.cut()
    bench.channel.handle_confirmed(0)
    assert bench.reported == []
    bench.channel.handle_confirmed(2)
    assert bench.reported == [[one]]
    bench.channel.handle_confirmed(3)
    bench.channel.handle_confirmed(3)
    assert bench.reported == [[one], [two, three]]


def test_a_confirm_of_a_record_that_was_not_sent() -> None:
    bench = Bench()
    bench.report(1)
    bench.channel.cut()
    with pytest.raises(DecodeError, match="record 2 on the channel of work"):
        bench.channel.handle_confirmed(2)


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
    assert not bench.channel.jobs_bytes
    assert not bench.channel.report_bytes
    bench.connection = StubConnection()
    bench.channel.attach(bench.connection.real, MIB)
    bench.channel.cut()
    assert bench.connection.sent == []
    bench.submit(6)
    bench.channel.cut()
    assert bench.job_keys == [["k6"]]
    bench.channel.handle_confirmed(1)
    assert bench.reported == []


# -- the buffer -------------------------------------------------------------------------------------------------------


def test_the_buffer_is_bounded_and_reports_room_when_half_empty() -> None:
    cost = 1000 + PART_COST_BYTES
    bench = Bench(10 * cost)
    for _ in range(10):
        bench.channel.reserve(1000)
    with pytest.raises(BufferFullError, match=f"{10 * cost} bytes"):
        bench.channel.reserve(0)
    for _ in range(4):
        bench.channel.release(1000)
    assert bench.events == []
    bench.channel.release(1000)
    assert bench.events == [WorkBufferAvailable()]
    bench.channel.reserve(1000)
    bench.channel.release(1000)
    assert bench.events == [WorkBufferAvailable()]


def test_one_part_always_fits_and_reports_without_payload_too() -> None:
    bench = Bench(100)
    bench.channel.reserve(1000)
    bench.channel.reserve_always()
    assert bench.channel.held_parts == 2
    bench.channel.release(0)
    assert bench.events == []
    bench.channel.release(1000)
    assert bench.events == [WorkIdle()]
    bench.channel.reserve(1000)


def busy() -> tuple[Network, WorkBroker, User]:
    """A client with a job (number 1) and a lease (2, 0, 1)."""
    network, broker, user = at_work()
    user.client.submit(spec("resize"), b"image")
    user.client.volunteer(["resize"], 1)
    network.run(0.1)
    broker.lease((2, 0, 1))
    network.run(0.1)
    assert len(user.all(JobTaken)) == len(user.all(Leased)) == 1
    return network, broker, user


def test_records_of_the_broker_are_confirmed_and_their_credit_returned() -> None:
    network, broker, user = at_work()
    user.client.volunteer(["resize"], 4096)
    network.run(0.1)
    payload = bytes(50_000)
    for number in range(200):  # more than a channel's window
        broker.lease((number, 0, 1), payload=payload)
        network.run(0.05)
    network.run(1)
    assert len(user.all(Leased)) == 200
    channel = broker._out[broker.link]
    assert max(record for confirmed, record in broker.link.confirmed if confirmed == channel) == 200


def test_a_client_may_be_both() -> None:
    network, broker, user = busy()
    (lease,) = [event.lease for event in user.all(Leased)]
    user.client.finish(lease, b"small")
    broker.update(1, "done", TaskUpdate(task=0, state="finished", worker="anna", fence=1))
    network.run(0.1)
    assert [result for _, result in broker.outcomes] == [b"small"]
    assert user.all(JobChanged)[-1].view.state == "done"
    assert user.client.publisher("t").send(b"x", network.now_us) == 0
    network.run(0.1)
    assert broker.messages("t") == [b"x"]


def test_a_broker_with_another_log_knows_none_of_the_jobs() -> None:
    network, broker, user = busy()
    broker.takes = False
    pending = user.client.submit(spec("resize"), b"")
    network.run(0.1)
    (view,) = [event.view for event in user.all(JobTaken)]
    user.client._work._log = b"the one before"
    connection = user.client._connection
    assert connection is not None
    user.client._work.detach()
    user.client._work.attach(connection, b"another", 2**20, network.now)
    assert [(event.view, event.code) for event in user.all(JobRefused)] == [(view, Code.NO_SUCH_JOB)]
    assert pending.state == "sending"


def unreliable(broker: WorkBroker) -> None:
    """The records before it have arrived, so that it may go unreliably."""
    broker.send_bytes(encode_group(RevokeGroup(tasks=[])), reliable=False)


def second_channel(broker: WorkBroker) -> None:
    channel = broker.link.connection.open_channel()
    broker.link.connection.send(channel, encode_control(Work()))


IMPOSSIBLE: list[tuple[str, Callable[[WorkBroker], None]]] = [
    ("nothing", lambda broker: broker.send_bytes(b"")),
    ("noise", lambda broker: broker.send_bytes(bytes(range(40)))),
    ("a client's message", lambda broker: broker.send_bytes(encode_group(ReportGroup()))),
    ("payloads that are missing", lambda broker: broker.send_group(LeaseGroup(tasks=[task((9, 0, 1), size=5)]))),
    ("payloads too many", lambda broker: broker.send_group(RevokeGroup(tasks=[]), [b"x"])),
    (
        "a job without a number",
        lambda broker: broker.send_group(SubmitReplyGroup(jobs=[SubmitReply(key=broker.submitted[-1][0].key)])),
    ),
    ("a lease too many", lambda broker: broker.lease((9, 0, 1))),
    ("a task that was not agreed", lambda broker: broker.update(1, "running", TaskUpdate(task=1, state="waiting"))),
    ("unreliable", unreliable),
    ("the end", lambda broker: broker.send_bytes(encode_group(RevokeGroup(tasks=[])), last=True)),
    ("a second channel", second_channel),
    (
        "a confirm of a record that was not sent",
        lambda broker: broker.link.connection.confirm(broker._in[broker.link], 999, 0),
    ),
]


def task(ref: tuple[int, int, int], size: int = 0) -> LeasedTask:
    return LeasedTask(task=ref, of_kind="resize", controller="boss", size=size)


@pytest.mark.parametrize("violate", [act for _, act in IMPOSSIBLE], ids=[name for name, _ in IMPOSSIBLE])
def test_a_violation_ends_the_connection_and_nothing_else(violate: Callable[[WorkBroker], None]) -> None:
    network, broker, user = busy()
    broker.takes = False
    pending = user.client.submit(spec("resize"), b"second")
    network.run(0.1)
    link = broker.link
    violate(broker)
    network.run_until(lambda: link.closed is not None, 5)
    assert link.closed is not None
    assert link.closed.code == Code.PROTOCOL
    assert user.all(Offline)[0].code == Code.PROTOCOL
    broker.takes = True
    user.until("online", 5)
    network.run(0.2)
    assert pending.number == 2
    (lease,) = [event.lease for event in user.all(Leased)]
    user.client.finish(lease, b"result")
    network.run(0.2)
    assert [result for _, result in broker.outcomes] == [b"result"]


_small = st.integers(0, 3)
_groups = st.one_of(
    st.builds(
        SubmitReplyGroup, jobs=st.lists(st.builds(SubmitReply, key=st.text(max_size=3), job=_small, code=_small))
    ),
    st.builds(LeaseGroup, tasks=st.lists(st.builds(task, st.tuples(_small, _small, _small)), max_size=3)),
    st.builds(RevokeGroup, tasks=st.lists(st.tuples(_small, _small, _small), max_size=3)),
    st.builds(
        UpdateGroup,
        jobs=st.lists(
            st.builds(
                JobUpdate,
                job=_small,
                state=st.sampled_from(["waiting", "running", "done", "failed", "cancelled"]),
                agreed=st.none() | _small,
                tasks=st.lists(
                    st.builds(
                        TaskUpdate,
                        task=_small,
                        state=st.sampled_from(["waiting", "leased", "finished", "failed", "cancelled"]),
                        fence=_small,
                        failures=_small,
                    ),
                    max_size=3,
                ),
            ),
            max_size=3,
        ),
    ),
).map(encode_group)


@examples(0.5)
@given(st.lists(st.one_of(_groups, st.binary(max_size=60)), max_size=8))
def test_any_groups_of_the_broker(words: list[bytes]) -> None:
    network, broker, user = busy()
    for word in words:
        try:
            broker.send_bytes(word)
        except GodwitError:
            break  # the client has hung up
        network.run(0.05)
    network.run(1)
    user.until("online", 10.0)
    assert user.client._work.leases._running.keys() <= {(a, b, c) for a in range(4) for b in range(4) for c in range(4)}
    assert len(user.client._work.leases._running) <= 1
    break_connection(network, broker, user)
    view = user.client.submit(spec("resize"), b"still here")
    network.run(0.2)
    assert broker.numbers[view.key] == view.number
