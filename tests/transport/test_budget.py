"""Unfinished records of all connections together have a bound, and no honest client is locked out by it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.transport.world import CLIENT, World, packet_for, send_all

from godwit.limits import KIB, MAX_UNFINISHED_BYTES
from godwit.transport.admission import REASON, ReceiveBudget
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.events import Closed, ConnectionState
from godwit.wire import packet as wire
from godwit.wire.control_base import Code


class Stub(Connection):
    """A connection as the budget sees it."""

    is_admitted = True

    def __init__(self, budget: ReceiveBudget, *, is_admitted: bool = True) -> None:
        self.budget = budget
        self.is_admitted = is_admitted
        self.closed: int | None = None

    def hold(self, held_bytes: int) -> None:
        self.budget.update(self, held_bytes, 1.0)

    def close(self, now: float, code: int = 0, reason: str = "") -> None:
        assert self.closed is None
        self.closed = code
        self.hold(0)


def budget(limit_bytes: int = 1000) -> ReceiveBudget:
    return ReceiveBudget(random.Random(1).randbytes, limit_bytes)


def test_it_adds_up_what_connections_hold() -> None:
    shared = budget()
    one, other = Stub(shared), Stub(shared)
    one.hold(100)
    other.hold(300)
    one.hold(250)
    assert shared.used_bytes == 550
    one.hold(0)
    one.hold(0)
    assert shared.used_bytes == 300
    assert ReceiveBudget(bytes).limit_bytes == MAX_UNFINISHED_BYTES


def test_the_greediest_stranger_goes_first() -> None:
    shared = budget()
    friend, small, greedy = Stub(shared), Stub(shared, is_admitted=False), Stub(shared, is_admitted=False)
    small.hold(100)
    greedy.hold(300)
    friend.hold(700)
    assert (friend.closed, small.closed, greedy.closed) == (None, None, Code.BUSY)
    assert shared.used_bytes == 800


def test_then_one_of_those_above_the_average() -> None:
    victims = set()
    for seed in range(20):
        shared = ReceiveBudget(random.Random(seed).randbytes, 1000)
        small = [Stub(shared) for _ in range(5)]
        large = [Stub(shared) for _ in range(3)]
        for one in small:
            one.hold(10)
        for one in large:
            one.hold(400)
        assert shared.used_bytes == 850
        assert not any(one.closed for one in small)
        victims.add([one.closed for one in large].index(Code.BUSY))
    assert victims == {0, 1, 2}  # by chance: an honest one is not always hit


def hold_fragments(world: World, connection: Connection, fragments: int) -> None:
    """Have the server hold this number of fragments of a record whose first one never arrives."""
    for n in range(1, fragments + 1):
        frame = wire.DataFrame(0, 1, 0, 1000 * n, None, bytes(1000))
        packet = packet_for(connection, 1000 + n, frame)
        world.inject(world.server, packet, source=CLIENT)


def test_unfinished_records_of_all_connections_together_stay_within_the_bound() -> None:
    world = World()
    shared = world.server.endpoint._budget
    shared.limit_bytes = 200 * KIB
    servers = [world.connect()[1] for _ in range(10)]
    for connection in servers:
        hold_fragments(world, connection, 50)
        assert shared.used_bytes <= 200 * KIB
    closed = [one for one in world.server.endpoint.events() if isinstance(one, Closed)]
    assert len(closed) >= 6
    assert {(one.code, one.reason) for one in closed} == {(Code.BUSY, REASON)}
    for connection in servers:
        connection.close(world.now)
    assert shared.used_bytes == 0


def test_what_came_in_long_runs_is_counted_with_its_train() -> None:
    world = World()
    shared = world.server.endpoint._budget
    client, server = world.connect()
    send_all(world, client, [bytes(1_000_000)])
    seen = 0
    while not world.server.bodies():
        world.step(world.now + 1)
        seen = max(seen, shared.used_bytes)
        world.server.note_events()
        if not world.server.bodies():
            assert shared.used_bytes == server._components.receive_channels.unfinished_bytes
    assert seen > 500_000
    assert shared.used_bytes == 0


@pytest.mark.parametrize("seed", range(3))
def test_many_honest_clients_with_long_records_all_get_through(seed: int) -> None:
    """Together they want ten times the bound, at once, and come back when they are closed."""
    size = 100 * KIB
    world = World(seed, bytes_per_s=2_000_000, queue_bytes=200_000, server=EndpointConfig(accepts=True))
    world.server.endpoint._budget.limit_bytes = 2 * size + 20 * KIB
    waiting = {n: n.to_bytes(2, "big") * (size // 2) for n in range(20)}
    connections: dict[int, Connection] = {}
    due = dict.fromkeys(waiting, world.now)
    closes = 0
    end = world.now + 600
    while waiting:
        assert world.now < end, f"seed {seed}: {len(waiting)} are left"
        for n in list(waiting):
            connection = connections.get(n)
            if connection is not None and connection.state in (ConnectionState.OPEN, ConnectionState.CONNECTING):
                continue
            if connection is not None:
                del connections[n]
                closes += 1
                due[n] = world.now + world.rng.uniform(0.1, 2.0)
            elif due[n] <= world.now:
                connections[n] = world.client.endpoint.connect(world.server.address, world.now)
                send_all(world, connections[n], [waiting[n]])
        world.step(world.now + 0.05)
        arrived = {body[:2] for body in world.server.bodies()}
        waiting = {n: body for n, body in waiting.items() if body[:2] not in arrived}
        world.log.clear()
    assert closes > 0


def test_its_own_record_is_counted_at_its_real_cost() -> None:
    """Empty records out of order cost many times their bytes on the wire."""
    world = World()
    shared = world.server.endpoint._budget
    _, server = world.connect()
    frames: list[Any] = [wire.DataFrame(wire.WHOLE | wire.HAS_LENGTH, 1, n, 0, None, b"") for n in range(1, 101)]
    world.inject(world.server, packet_for(server, 1000, *frames), source=CLIENT)
    assert shared.used_bytes == 100 * (512 + 128)
