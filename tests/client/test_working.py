"""Work joined together: both channels, whose numbers they are, and a broker that says what cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.office import WorkBroker, at_work, break_connection
from tests.client.world import Network, User
from tests.transport.world import examples

from godwit.client.events import JobChanged, JobRefused, JobTaken, Leased, Offline
from godwit.errors import GodwitError
from godwit.wire.control import Work, encode_control
from godwit.wire.control_base import Code
from godwit.wire.work import (
    JobUpdate,
    Lease,
    LeasedTask,
    Report,
    Revoke,
    Taken,
    TakenJob,
    TaskUpdate,
    Update,
    encode_group,
)


def busy() -> tuple[Network, WorkBroker, User]:
    """A client with a job (number 1) and a lease (2, 0, 1)."""
    network, broker, user = at_work()
    user.client.submit("resize", b"image")
    user.client.volunteer(["resize"], 1)
    network.run(0.1)
    broker.lease((2, 0, 1))
    network.run(0.1)
    assert len(user.all(JobTaken)) == len(user.all(Leased)) == 1
    return network, broker, user


def test_what_the_broker_says_is_confirmed_and_its_credit_given_back() -> None:
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
    pending = user.client.submit("resize", b"")
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
    broker.say_bytes(encode_group(Revoke(tasks=[])), reliable=False)


def second_channel(broker: WorkBroker) -> None:
    channel = broker.link.connection.open_channel()
    broker.link.connection.send(channel, encode_control(Work()))


IMPOSSIBLE: list[tuple[str, Callable[[WorkBroker], None]]] = [
    ("nothing", lambda broker: broker.say_bytes(b"")),
    ("noise", lambda broker: broker.say_bytes(bytes(range(40)))),
    ("a client's word", lambda broker: broker.say_bytes(encode_group(Report()))),
    ("payloads that are missing", lambda broker: broker.say(Lease(tasks=[task((9, 0, 1), size=5)]))),
    ("payloads too many", lambda broker: broker.say(Revoke(tasks=[]), [b"x"])),
    ("a job without a number", lambda broker: broker.say(Taken(jobs=[TakenJob(key=broker.submitted[-1][0].key)]))),
    ("a lease too many", lambda broker: broker.lease((9, 0, 1))),
    ("a task that was not agreed", lambda broker: broker.update(1, "running", TaskUpdate(task=1, state="waiting"))),
    ("unreliable", unreliable),
    ("the end", lambda broker: broker.say_bytes(encode_group(Revoke(tasks=[])), last=True)),
    ("a second channel", second_channel),
    ("a confirm of what was not sent", lambda broker: broker.link.connection.confirm(broker._in[broker.link], 999, 0)),
]


def task(ref: tuple[int, int, int], size: int = 0) -> LeasedTask:
    return LeasedTask(task=ref, of_kind="resize", controller="boss", size=size)


@pytest.mark.parametrize("say", [act for _, act in IMPOSSIBLE], ids=[name for name, _ in IMPOSSIBLE])
def test_what_cannot_be_ends_the_connection_and_nothing_else(say: Callable[[WorkBroker], None]) -> None:
    network, broker, user = busy()
    broker.takes = False
    pending = user.client.submit("resize", b"second")
    network.run(0.1)
    link = broker.link
    say(broker)
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
    st.builds(Taken, jobs=st.lists(st.builds(TakenJob, key=st.text(max_size=3), job=_small, code=_small))),
    st.builds(Lease, tasks=st.lists(st.builds(task, st.tuples(_small, _small, _small)), max_size=3)),
    st.builds(Revoke, tasks=st.lists(st.tuples(_small, _small, _small), max_size=3)),
    st.builds(
        Update,
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
def test_any_words_of_the_broker(words: list[bytes]) -> None:
    network, broker, user = busy()
    for word in words:
        try:
            broker.say_bytes(word)
        except GodwitError:
            break  # the client has hung up
        network.run(0.05)
    network.run(1)
    user.until("online", 10.0)
    assert user.client._work.leases._running.keys() <= {(a, b, c) for a in range(4) for b in range(4) for c in range(4)}
    assert len(user.client._work.leases._running) <= 1
    break_connection(network, broker, user)
    view = user.client.submit("resize", b"still here")
    network.run(0.2)
    assert broker.numbers[view.key] == view.number
