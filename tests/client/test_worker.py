"""The worker in a client: volunteering, leases, reports and heartbeats."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.client.work_broker import WorkBroker, at_work, break_connection
from tests.client.world import Network, User

from godwit.client.config import ClientConfig
from godwit.client.events import (
    Leased,
    Offline,
    Reported,
    Revoked,
    VolunteerAccepted,
    VolunteerRefused,
    WorkBufferAvailable,
    WorkIdle,
)
from godwit.client.worker import BEATS_PER_LEASE, MAX_TEXT, STEP_INTERVAL_S, Lease
from godwit.errors import BadKindError, BufferFullError, RecordTooLargeError, UsageError
from godwit.limits import MAX_CAPACITY, MAX_JOB_PAYLOAD_BYTES, MAX_KINDS
from godwit.wire.control import Error
from godwit.wire.control_base import Code
from godwit.wire.jobs import Ref, Volunteer


def working(capacity: int = 8, config: ClientConfig | None = None) -> tuple[Network, WorkBroker, User]:
    network, broker, user = at_work(config)
    user.client.volunteer(["resize"], capacity)
    network.run(0.1)
    return network, broker, user


def leases(network: Network, broker: WorkBroker, user: User, *refs: Ref, payload: bytes = b"do it") -> list[Lease]:
    before = len(user.all(Leased))
    broker.lease(*refs, payload=payload)
    network.run(0.1)
    return [event.lease for event in user.all(Leased)[before:]]


def refs(count: int) -> list[Ref]:
    return [(number, 0, 1) for number in range(1, count + 1)]


# -- volunteering -----------------------------------------------------------------------------------------------------


def test_volunteering_is_answered() -> None:
    _, broker, user = working()
    (sent,) = broker.link.all(Volunteer)
    assert (sent.kinds, sent.capacity, sent.holding) == (["resize"], 8, [])
    assert user.all(VolunteerAccepted) == [VolunteerAccepted(30.0)]


def test_the_last_call_holds() -> None:
    network, broker, user = working()
    user.client.volunteer(["b", "a", "b"], 2)
    user.client.withdraw()
    user.client.withdraw()
    network.run(0.1)
    assert [(sent.kinds, sent.capacity) for sent in broker.link.all(Volunteer)[1:]] == [(["b", "a"], 2), ([], 2)]
    break_connection(network, broker, user)
    network.run(0.1)
    assert [sent.kinds for sent in broker.link.all(Volunteer)] == [[]]


def test_volunteering_is_repeated_with_the_held_leases() -> None:
    network, broker, user = working()
    running, done, failed, returned = leases(network, broker, user, *refs(4))
    broker.confirms = False
    user.client.finish(done, b"result")
    user.client.fail(failed, "no")
    user.client.give_back(returned)
    network.run(0.1)
    break_connection(network, broker, user)
    network.run(0.1)
    (sent,) = broker.link.all(Volunteer)
    assert sorted(sent.holding) == [running.ref, done.ref, failed.ref]
    assert len(user.all(VolunteerAccepted)) == 2


def test_a_client_that_never_volunteered_sends_nothing() -> None:
    network, broker, user = at_work()
    user.client.withdraw()
    break_connection(network, broker, user)
    network.run(100)
    assert broker.link.all(Volunteer) == []
    assert broker.report_times == []


def test_a_refusal_is_reported_and_not_repeated() -> None:
    network, broker, user = at_work()
    broker.volunteers = False
    user.client.volunteer(["resize"], 1)
    network.run(0.1)
    (sent,) = broker.link.all(Volunteer)
    broker.link.send(Error(request=sent.request, code=Code.NOT_ALLOWED, text="no right"))
    network.run(0.1)
    assert user.all(VolunteerRefused) == [VolunteerRefused(Code.NOT_ALLOWED, "no right")]
    break_connection(network, broker, user)
    network.run(0.1)
    assert [sent.kinds for sent in broker.link.all(Volunteer)] == [[]]


def test_invalid_kinds_and_capacities() -> None:
    network, broker, user = at_work()
    for kinds in ([], [f"kind/{number}" for number in range(MAX_KINDS + 1)]):
        with pytest.raises(UsageError, match="kinds of work"):
            user.client.volunteer(kinds, 1)
    with pytest.raises(BadKindError):
        user.client.volunteer(["a/#"], 1)
    for capacity in (0, -1, MAX_CAPACITY + 1):
        with pytest.raises(UsageError, match="capacity"):
            user.client.volunteer(["a"], capacity)
    network.run(0.1)
    assert broker.link.all(Volunteer) == []


# -- leases and reports -----------------------------------------------------------------------------------------------


def test_a_lease_has_all_data_of_the_task() -> None:
    network, broker, user = working()
    (lease,) = leases(network, broker, user, (7, 3, 2), payload=b"image")
    assert (lease.ref, lease.kind, lease.controller, lease.payload) == ((7, 3, 2), "resize", "boss", b"image")
    assert (lease.state, lease.agreed, lease.failures) == ("running", 1, 0)


def test_reports_of_a_turn_are_one_record_and_reported_when_confirmed() -> None:
    network, broker, user = working()
    done, failed, hopeless, returned = leases(network, broker, user, *refs(4))
    before = len(broker.report_times)
    user.client.finish(done, b"result")
    user.client.fail(failed, "not now")
    user.client.fail(hopeless, "never", is_final=True)
    user.client.give_back(returned)
    assert {lease.state for lease in (done, failed, hopeless, returned)} == {"reported"}
    network.run(0.1)
    assert len(broker.report_times) == before + 1
    assert [(outcome.task, outcome.error, outcome.is_final, result) for outcome, result in broker.outcomes] == [
        (done.ref, None, False, b"result"),
        (failed.ref, "not now", False, b""),
        (hopeless.ref, "never", True, b""),
    ]
    assert broker.returned == [returned.ref]
    assert {event.lease for event in user.all(Reported)} == {done, failed, hopeless, returned}
    assert {lease.state for lease in (done, failed, hopeless, returned)} == {"ended"}
    assert len(user.all(WorkIdle)) == 1


def test_a_lease_ends_once() -> None:
    network, broker, user = working()
    (lease,) = leases(network, broker, user, *refs(1))
    user.client.finish(lease, b"first")
    user.client.finish(lease, b"second")
    user.client.fail(lease, "no")
    user.client.give_back(lease)
    user.client.step(lease, 0.5)
    network.run(1)
    user.client.finish(lease, b"third")
    network.run(1)
    assert [result for _, result in broker.outcomes] == [b"first"]
    assert (broker.returned, broker.steps, user.client.work_held) == ([], [], 0)


def test_reports_that_were_not_confirmed_go_again_in_their_order() -> None:
    network, broker, user = working()
    one, two, three = leases(network, broker, user, *refs(3))
    broker.confirms = False
    for lease in (three, one, two):
        user.client.finish(lease, b"of %d" % lease.job)
        network.run(0.1)
    assert user.all(Reported) == []
    broker.outcomes.clear()
    broker.confirms = True
    break_connection(network, broker, user)
    network.run(0.1)
    assert [result for _, result in broker.outcomes] == [b"of 3", b"of 1", b"of 2"]
    assert [event.lease for event in user.all(Reported)] == [three, one, two]
    break_connection(network, broker, user)
    network.run(0.1)
    assert len(broker.outcomes) == 3


def test_a_task_that_ends_without_a_broker_is_reported_when_it_is_back() -> None:
    network, broker, user = working()
    one, two = leases(network, broker, user, *refs(2))
    broker.link.connection.close(network.now, Code.SHUTDOWN, "a test")
    user.until("offline")
    user.client.finish(one, b"result")
    user.client.step(two, 0.5)
    user.until("online")
    network.run(0.2)
    assert [result for _, result in broker.outcomes] == [b"result"]
    assert [step.task for step in broker.steps] == [two.ref]
    assert broker.link.all(Volunteer)[0].holding == [one.ref, two.ref]


def test_a_revoked_lease_is_reported_once_and_its_report_is_not_sent() -> None:
    network, broker, user = working()
    one, two = leases(network, broker, user, *refs(2))
    user.client.step(one, 0.5)
    broker.revoke(one.ref, (99, 0, 1), reason="cancelled")
    broker.revoke(one.ref)
    network.run(0.1)
    assert user.all(Revoked) == [Revoked(one, "cancelled")]
    user.client.finish(one, b"too late")
    user.client.finish(two, b"in time")
    network.run(0.2)
    assert [result for _, result in broker.outcomes] == [b"in time"]


def test_a_revoke_of_a_reported_lease_changes_nothing() -> None:
    network, broker, user = working()
    (lease,) = leases(network, broker, user, *refs(1))
    broker.confirms = False
    user.client.finish(lease, b"result")
    network.run(0.1)
    broker.confirms = True
    break_connection(network, broker, user)
    broker.revoke(lease.ref)
    network.run(0.1)
    assert user.all(Revoked) == []
    assert [event.lease for event in user.all(Reported)] == [lease]


def test_a_lease_that_comes_after_the_withdrawal_goes_back() -> None:
    network, broker, user = working()
    user.client.withdraw()
    broker.lease((1, 0, 1))
    network.run(0.1)
    assert user.all(Leased) == []
    assert broker.returned == [(1, 0, 1)]
    assert user.all(Reported) == []
    assert user.client.work_held == 0


def test_a_broker_with_another_log_means_other_tasks() -> None:
    network, broker, user = working()
    client = user.client
    running, done = leases(network, broker, user, *refs(2))
    broker.confirms = False
    client.finish(done, b"result")
    network.run(0.1)
    broker.outcomes.clear()
    client._work._log = b"the one before"
    assert broker.link.login is not None
    connection = client._connection
    assert connection is not None
    client._work.detach()
    client._work.attach(connection, b"another", 2**20, network.now)
    network.run(0.1)
    assert [(event.lease, event.reason) for event in user.all(Revoked)] == [
        (running, "the broker has another log than before")
    ]
    assert [event.lease for event in user.all(Reported)] == [done]
    assert broker.outcomes == []
    assert broker.link.all(Volunteer)[-1].holding == []


def test_results_are_bounded() -> None:
    network, broker, user = working(config=ClientConfig(send_buffer_bytes=20_000))
    one, two, three = leases(network, broker, user, *refs(3))
    with pytest.raises(RecordTooLargeError, match="the result of a task has"):
        user.client.finish(one, bytes(MAX_JOB_PAYLOAD_BYTES + 1))
    broker.confirms = False
    user.client.finish(one, bytes(15_000))
    with pytest.raises(BufferFullError):
        user.client.finish(two, bytes(15_000))
    assert two.state == "running"
    user.client.fail(three, "a failure has always room")
    network.run(0.1)
    broker.confirms = True
    break_connection(network, broker, user)
    network.run(0.1)
    assert len(user.all(WorkBufferAvailable)) == 1
    user.client.finish(two, bytes(15_000))
    network.run(0.1)
    assert len(user.all(Reported)) == 3


def test_a_broker_with_a_lower_limit() -> None:
    network, broker, user = working()
    one, two = leases(network, broker, user, *refs(2))
    broker.confirms = False
    user.client.finish(one, bytes(50_000))
    network.run(0.1)
    broker.outcomes.clear()
    broker.max_message_bytes = 10_000
    broker.confirms = True
    break_connection(network, broker, user)
    with pytest.raises(RecordTooLargeError, match="has 10001 bytes, the broker accepts at most 10000"):
        user.client.finish(two, bytes(10_001))
    user.client.finish(two, bytes(10_000))
    network.run(0.1)
    (failure, nothing), (_, result) = broker.outcomes
    assert (failure.task, failure.is_final, nothing) == (one.ref, True, b"")
    assert failure.error is not None
    assert failure.error.startswith("the result of a task has 50000 bytes, the broker accepts at most 10000")
    assert len(result) == 10_000
    assert (len(user.all(Reported)), user.client.work_held) == (2, 0)


def test_errors_and_notes_with_any_characters_are_sent() -> None:
    network, broker, user = working()
    one, two = leases(network, broker, user, *refs(2))
    user.client.step(one, None, "\ud800" + "ü" * 2000)
    user.client.fail(two, "half a pair \udc00, " + "x" * 2000)
    network.run(0.2)
    assert broker.steps[0].note == "?" + "ü" * (MAX_TEXT - 1)
    error = broker.outcomes[0][0].error
    assert error is not None
    assert error.startswith("half a pair ?, xxx")
    assert len(error) == MAX_TEXT


# -- more than was asked for ------------------------------------------------------------------------------------------


def test_more_leases_than_the_capacity_break_the_rules() -> None:
    network, broker, user = working(capacity=3)
    link = broker.link
    assert len(leases(network, broker, user, *refs(3))) == 3
    broker.lease((4, 0, 1))
    network.run_until(lambda: link.closed is not None, 5)
    assert link.closed is not None
    assert link.closed.code == Code.PROTOCOL
    assert user.all(Offline)[0].code == Code.PROTOCOL
    user.until("online")
    network.run(0.1)
    assert broker.link.all(Volunteer)[0].holding == refs(3)


def test_a_place_is_free_when_its_task_was_reported() -> None:
    """Although the broker's confirm has not come: the lease that follows may overtake it."""
    network, broker, user = working(capacity=1)
    broker.confirms = False
    for number in range(1, 20):
        (lease,) = leases(network, broker, user, (number, 0, 1))
        user.client.finish(lease, b"")
        network.run(0.01)
    assert broker.link.closed is None


def test_unwanted_leases_are_bounded_too() -> None:
    network, broker, user = working(capacity=1)
    user.client.withdraw()
    broker.confirms = False
    link = broker.link
    for number in range(1, 12):
        broker.lease(*[(number, task, 1) for task in range(500)])
    network.run_until(lambda: link.closed is not None, 5)
    assert link.closed is not None
    assert link.closed.code == Code.PROTOCOL


def test_the_same_lease_twice_breaks_the_rules() -> None:
    network, broker, user = working()
    link = broker.link
    leases(network, broker, user, (1, 0, 1))
    broker.lease((1, 0, 1))
    network.run_until(lambda: link.closed is not None, 5)
    assert len(user.all(Leased)) == 1


# -- signs of life ----------------------------------------------------------------------------------------------------


def longest_silence_s(times: list[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(times))


def test_a_worker_without_work_sends_heartbeats() -> None:
    network, broker, user = working()
    began = network.now
    network.run(100)
    times = [began, *broker.report_times, network.now]
    assert longest_silence_s(times) <= 30 / BEATS_PER_LEASE + 0.1
    assert len(times) <= 14, "no more than it has to"
    user.client.withdraw()
    network.run(1)
    broker.report_times.clear()
    network.run(100)
    assert broker.report_times == []


def test_a_withdrawn_worker_sends_heartbeats_while_it_has_a_task() -> None:
    network, broker, user = working()
    (lease,) = leases(network, broker, user, *refs(1))
    user.client.withdraw()
    broker.report_times.clear()
    network.run(50)
    assert 4 <= len(broker.report_times) <= 6
    user.client.finish(lease, b"")
    network.run(1)
    broker.report_times.clear()
    network.run(50)
    assert broker.report_times == []


def test_the_broker_sets_the_heartbeat_interval() -> None:
    network, broker, user = at_work()
    broker.lease_ms = 900
    user.client.volunteer(["resize"], 1)
    network.run(10)
    assert 30 <= len(broker.report_times) <= 36


def test_the_heartbeat_interval_has_a_lower_bound() -> None:
    network, broker, user = at_work()
    broker.lease_ms = 0
    user.client.volunteer(["resize"], 1)
    network.run(10)
    assert len(broker.report_times) <= 310


def test_reports_are_signs_of_life() -> None:
    network, broker, user = working(capacity=100)
    for lease in leases(network, broker, user, *refs(20)):
        user.client.finish(lease, b"")
        network.run(5)
    assert len(broker.report_times) == 20


def test_a_blocked_publisher_does_not_delay_heartbeats() -> None:
    network, broker, user = working()
    (lease,) = leases(network, broker, user, *refs(1))
    broker.confirms = False
    publisher = user.client.publisher("t")
    connection = user.client._connection
    assert connection is not None
    broker.consumes = False
    for _ in range(10):
        publisher.send(bytes(1_000_000), network.now_us)
    network.run(1)
    assert connection.has_unsent
    user.client.finish(lease, b"result")
    network.run(1)
    assert [result for _, result in broker.outcomes] == [b"result"]


# -- steps ------------------------------------------------------------------------------------------------------------


def test_steps_are_joined() -> None:
    network, broker, user = working()
    one, two = leases(network, broker, user, *refs(2))
    for number in range(100):
        user.client.step(one, number / 100, f"step {number}")
        user.client.step(two, None, "on the way")
        network.run(0.01)
    network.run(1)
    assert two.ref in {step.task for step in broker.steps}
    last = [step for step in broker.steps if step.task == one.ref][-1]
    assert (last.progress, last.note) == (0.99, "step 99")
    assert 9 <= len(broker.step_times) <= 12
    assert min(later - earlier for earlier, later in pairwise(broker.step_times)) > STEP_INTERVAL_S * 0.8


def test_the_end_of_a_task_makes_its_steps_worthless() -> None:
    network, broker, user = working()
    (lease,) = leases(network, broker, user, *refs(1))
    user.client.step(lease, 0.1)
    network.run(0.01)
    user.client.step(lease, 0.9)
    user.client.finish(lease, b"")
    network.run(1)
    assert [step.progress for step in broker.steps] == [0.1]


@pytest.mark.parametrize("progress", [-0.01, 1.01, float("nan")])
def test_progress_out_of_range(progress: float) -> None:
    network, broker, user = working()
    (lease,) = leases(network, broker, user, *refs(1))
    with pytest.raises(UsageError, match="progress"):
        user.client.step(lease, progress)
    network.run(0.5)
    assert broker.steps == []


def lease() -> Lease:
    return Lease((7, 2, 3), "resize", "boss", b"payload", 4, 2, None, None)


def test_its_numbers_have_names() -> None:
    one = lease()
    assert (one.job, one.task, one.fence) == (7, 2, 3)
    assert one.state == "running"


def test_leases_are_compared_by_identity() -> None:
    one, other = lease(), lease()
    assert one != other
    assert len({one, other}) == 2
    one.state = "ended"
    assert one in {one}
