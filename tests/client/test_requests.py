"""Requests: numbered, paced, and asked again until they are answered."""

from __future__ import annotations

import pytest
from tests.client.stubs import StubConnection

from godwit.client.requests import BURST, LAST_NUMBER, RATE_PER_S, RequestQueue
from godwit.errors import UsageError
from godwit.wire.control import Create, Ping, decode_control


def ask(requests: RequestQueue) -> int:
    number = requests.next_number()
    requests.request(number, Ping(request=number))
    return number


def asked(connection: StubConnection) -> list[int]:
    numbers = []
    for record in connection.sent:
        message = decode_control(record.body)
        assert isinstance(message, Ping)
        assert record.channel == 0
        numbers.append(message.request)
    return numbers


def test_requests_go_in_order_and_again_until_answered() -> None:
    requests = RequestQueue()
    first, second, third = (ask(requests) for _ in range(3))
    requests.pump(0.0)
    assert not requests.unsent
    connection = StubConnection()
    requests.attach(connection.real)
    requests.resend()
    requests.pump(1.0)
    assert asked(connection) == [first, second, third]
    assert requests.handle_answer(second)
    assert not requests.handle_answer(second)
    assert not requests.handle_answer(999)
    requests.detach()
    again = StubConnection()
    requests.attach(again.real)
    requests.resend()
    fourth = ask(requests)
    requests.pump(2.0)
    assert asked(again) == [first, third, fourth]


def test_a_message_without_an_answer_is_not_repeated() -> None:
    requests = RequestQueue()
    requests.send(Ping(request=1))
    connection = StubConnection()
    requests.attach(connection.real)
    requests.send(Ping(request=2))
    requests.pump(0.0)
    assert asked(connection) == [2]
    requests.detach()
    requests.attach(connection.real)
    requests.resend()
    requests.pump(1.0)
    assert asked(connection) == [2]


def test_no_faster_than_the_broker_accepts_them() -> None:
    requests = RequestQueue()
    connection = StubConnection()
    requests.attach(connection.real)
    for _ in range(BURST + 500):
        ask(requests)
    requests.pump(10.0)
    assert len(connection.sent) == BURST
    now = 10.0
    while requests.due_at is not None:
        assert requests.due_at > now
        now = requests.due_at
        requests.pump(now)
    assert len(connection.sent) == BURST + 500
    assert now == pytest.approx(10.0 + 500 / RATE_PER_S, rel=0.01)


def test_waits_for_room_in_the_transport() -> None:
    requests = RequestQueue()
    connection = StubConnection()
    connection.room = 1
    requests.attach(connection.real)
    first, second = ask(requests), ask(requests)
    requests.pump(0.0)
    assert asked(connection) == [first]
    assert requests.due_at is None
    connection.room = 5
    requests.pump(1.0)
    assert asked(connection) == [first, second]


def test_a_connection_that_has_just_closed_is_no_error() -> None:
    requests = RequestQueue()
    connection = StubConnection()
    connection.is_closed = True
    requests.attach(connection.real)
    ask(requests)
    requests.pump(0.0)
    assert not requests.unsent


def test_numbers_wrap_around_and_leave_out_those_in_use() -> None:
    requests = RequestQueue()
    assert ask(requests) == 0
    requests._next_number = LAST_NUMBER
    assert ask(requests) == LAST_NUMBER
    assert ask(requests) == 1


def test_a_forgotten_request_is_not_repeated() -> None:
    requests = RequestQueue()
    first, second = ask(requests), ask(requests)
    requests.forget(first)
    requests.forget(first)
    connection = StubConnection()
    requests.attach(connection.real)
    requests.resend()
    requests.pump(0.0)
    assert asked(connection) == [second]
    assert not requests.handle_answer(first)


def test_too_long_a_request_is_refused_at_once() -> None:
    requests = RequestQueue()
    with pytest.raises(UsageError, match="at most"):
        requests.request(0, Create(request=0, topic="x" * 200_000))
