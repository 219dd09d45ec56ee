"""Dialing: addresses in turn, the first that answers, a random pause that grows, the next round."""

from __future__ import annotations

import random

import pytest

from godwit.client.dialer import NEXT_ADDRESS_S, STANDBY_PAUSE_S, Backoff, Dialer
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
    return list(one._attempts.values())


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


def test_the_first_connection_is_used_and_the_others_are_cancelled() -> None:
    one, _ = dialer()
    one.begin(0.0)
    one.handle_timers(NEXT_ADDRESS_S)
    first, second = connections(one)
    assert one.handle_connected(second, 0.3)
    assert first.state is ConnectionState.CLOSED
    assert not one.is_dialing
    assert not one.handle_connected(first, 0.4)
    assert not one.handle_closed(first, 0.4)
    assert one.due_at is None


def test_a_refused_address_makes_way_at_once() -> None:
    one, _ = dialer()
    one.begin(0.0)
    (first,) = connections(one)
    assert not one.handle_closed(first, 0.01)
    (second,) = connections(one)
    assert second.peer_address == ADDRESSES[1]


def test_a_round_is_over_with_its_last_attempt_and_the_next_begins_elsewhere() -> None:
    one, _ = dialer()
    one.begin(0.0)
    one.handle_timers(NEXT_ADDRESS_S)
    one.handle_timers(2 * NEXT_ADDRESS_S)
    overs = [one.handle_closed(connection, HANDSHAKE_TIMEOUT_S) for connection in connections(one)]
    assert overs == [False, False, True]
    wait_s = one.retry(11.0)
    assert one.due_at == 11.0 + wait_s
    one.handle_timers(11.0 + wait_s)
    (again,) = connections(one)
    assert again.peer_address == ADDRESSES[1]


def test_stopping_cancels_all_attempts() -> None:
    one, endpoint = dialer()
    one.begin(0.0)
    one.stop(0.1)
    assert not one.is_dialing
    assert one.due_at is None
    one.handle_timers(100.0)
    assert dialed(endpoint, 0.1) == []


class Fixed:
    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def test_bound_doubles_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 1.0, Fixed(1.0))
    assert [round(backoff.next_pause_s(), 3) for _ in range(6)] == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_never_shorter_than_the_shortest() -> None:
    backoff = Backoff(0.1, 1.0, Fixed(0.0))
    assert {backoff.next_pause_s() for _ in range(5)} == {0.1}


def test_reset_begins_anew() -> None:
    backoff = Backoff(0.1, 1.0, Fixed(1.0))
    backoff.next_pause_s()
    backoff.next_pause_s()
    backoff.reset()
    assert backoff.next_pause_s() == 0.2


def test_clients_do_not_come_back_together() -> None:
    waits = []
    for seed in range(200):
        backoff = Backoff(0.1, 5.0, random.Random(seed))
        for _ in range(7):
            wait_s = backoff.next_pause_s()
        waits.append(wait_s)
    assert min(waits) < 0.5
    assert max(waits) > 4.5


def test_the_clients_of_a_broker_that_restarts_are_spread_over_a_longer_time() -> None:
    first = Backoff(0.1, 5.0, Fixed(1.0))
    assert first.next_pause_s(spread_s=1.0) == pytest.approx(1.0)
    assert first.next_pause_s() == pytest.approx(0.4)  # the second failure, as without it
    assert Backoff(0.1, 0.5, Fixed(1.0)).next_pause_s(spread_s=1.0) == pytest.approx(0.5)
    later = Backoff(0.1, 5.0, Fixed(1.0))
    for _ in range(5):
        later.next_pause_s()
    assert later.next_pause_s(spread_s=1.0) == pytest.approx(5.0)


def test_an_address_that_was_replaced_is_not_tried_any_more() -> None:
    one, endpoint = dialer()
    one.begin(0.0)
    other: Address = ("192.0.2.4", 4)
    one.set_addresses([ADDRESSES[2], other])
    one.handle_timers(NEXT_ADDRESS_S)
    one.handle_timers(2 * NEXT_ADDRESS_S)
    assert [connection.peer_address for connection in connections(one)] == [ADDRESSES[0], ADDRESSES[2]]
    for connection in connections(one):
        one.handle_closed(connection, 1.0)
    one.retry(1.0)
    assert one.due_at is not None
    one.handle_timers(one.due_at)
    assert [connection.peer_address for connection in connections(one)] == [ADDRESSES[2]]
    assert dialed(endpoint, 2.0)[-1] == ADDRESSES[2]


def test_standbys_are_tried_again_soon_although_another_broker_does_not_answer() -> None:
    one, _ = dialer()
    now = 0.0
    one.begin(now)
    for _ in range(10):  # the first broker was lost, and the others are standbys
        while len(connections(one)) > 1 or not one._standby_until > now:
            if len(connections(one)) == 1:
                one.handle_timers(now := now + NEXT_ADDRESS_S)
            standby = next(each for each in connections(one) if each.peer_address != ADDRESSES[0])
            one.handle_standby(now)
            assert not one.handle_closed(standby, now)
        assert [each.peer_address for each in connections(one)] == ADDRESSES[:1]
        assert one.due_at is not None
        assert now < one.due_at <= now + STANDBY_PAUSE_S
        now = one.due_at
        one.handle_timers(now)
        assert len(connections(one)) == 2
    one.stop(now)


def test_after_a_standby_pauses_are_short_and_count_no_failure() -> None:
    one, _ = dialer()
    for _ in range(20):
        one.handle_standby(1.0)
        assert one.retry(1.0) <= STANDBY_PAUSE_S
    assert one.retry(100.0, is_restart=False) <= 0.2
