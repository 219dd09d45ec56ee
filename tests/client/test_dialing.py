"""Dialing: addresses in turn, the first that answers, a pause, the next round."""

from __future__ import annotations

import random

from godwit.client.backoff import Backoff
from godwit.client.dialing import NEXT_ADDRESS_S, Dialer
from godwit.limits import HANDSHAKE_TIMEOUT_S
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, ConnectionState

ADDRESSES: list[Address] = [("192.0.2.1", 1), ("192.0.2.2", 2), ("192.0.2.3", 3)]


def dialer() -> tuple[Dialer, Endpoint]:
    rng = random.Random(1)
    endpoint = Endpoint(EndpointConfig(), entropy=rng.randbytes)
    made = Dialer(endpoint, Backoff(0.1, 5.0, rng))
    made.set_addresses(ADDRESSES)
    return made, endpoint


def dialed(endpoint: Endpoint, now: float) -> list[Address]:
    return [train.address for train in endpoint.trains(now)]


def connections(one: Dialer) -> list[Connection]:
    return list(one._dials.values())


def test_addresses_are_tried_one_after_another_with_little_time_between() -> None:
    one, endpoint = dialer()
    one.begin(0.0)
    assert dialed(endpoint, 0.0) == ADDRESSES[:1]
    assert one.due_at == NEXT_ADDRESS_S
    one.handle_timers(NEXT_ADDRESS_S - 0.001)
    assert len(connections(one)) == 1
    one.handle_timers(NEXT_ADDRESS_S)
    one.handle_timers(2 * NEXT_ADDRESS_S)
    assert [connection.peer_address for connection in connections(one)] == ADDRESSES
    assert one.due_at is None


def test_the_first_that_answers_is_taken_and_the_others_given_up() -> None:
    one, _ = dialer()
    one.begin(0.0)
    one.handle_timers(NEXT_ADDRESS_S)
    first, second = connections(one)
    assert one.on_connected(second, 0.3)
    assert first.state is ConnectionState.CLOSED
    assert not one.is_dialing
    assert not one.on_connected(first, 0.4)
    assert not one.on_closed(first, 0.4)
    assert one.due_at is None


def test_a_refused_address_makes_way_at_once() -> None:
    one, _ = dialer()
    one.begin(0.0)
    (first,) = connections(one)
    assert not one.on_closed(first, 0.01)
    (second,) = connections(one)
    assert second.peer_address == ADDRESSES[1]


def test_a_round_is_over_with_its_last_attempt_and_the_next_begins_elsewhere() -> None:
    one, _ = dialer()
    one.begin(0.0)
    one.handle_timers(NEXT_ADDRESS_S)
    one.handle_timers(2 * NEXT_ADDRESS_S)
    overs = [one.on_closed(connection, HANDSHAKE_TIMEOUT_S) for connection in connections(one)]
    assert overs == [False, False, True]
    wait_s = one.retry(11.0)
    assert one.due_at == 11.0 + wait_s
    one.handle_timers(11.0 + wait_s)
    (again,) = connections(one)
    assert again.peer_address == ADDRESSES[1]


def test_stopping_gives_everything_up() -> None:
    one, endpoint = dialer()
    one.begin(0.0)
    one.stop(0.1)
    assert not one.is_dialing
    assert one.due_at is None
    one.handle_timers(100.0)
    assert dialed(endpoint, 0.1) == []
