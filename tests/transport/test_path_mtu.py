"""The search finds what the path carries, to within a few bytes, and comes back down when the path shrinks."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.transport.world import World, send_all

from godwit.limits import BASE_DATAGRAM_BYTES, LARGEST_DATAGRAM_BYTES, MAX_DATAGRAM_BYTES
from godwit.transport.config import EndpointConfig
from godwit.transport.path import (
    CLOSE_ENOUGH_BYTES,
    RETRY_S,
    SUSPICIOUS_LOSSES,
    SUSPICIOUS_PROBES,
    TRIES,
    PathMtu,
)


def search(mtu: PathMtu, carries_bytes: int, now: float = 0.0) -> list[int]:
    """Run a search on a path with this MTU. Return the sizes that were tried."""
    tried = []
    mtu.is_wanted = True
    while (size := mtu.probe_bytes(now)) is not None:
        assert mtu.datagram_bytes < size
        tried.append(size)
        mtu.handle_probe_sent(size)
        assert mtu.probe_bytes(now) is None
        if size <= carries_bytes:
            mtu.handle_probe_acked(size)
        else:
            mtu.handle_probe_lost(size)
    return tried


@given(st.data(), st.integers(BASE_DATAGRAM_BYTES, 9000) | st.integers(BASE_DATAGRAM_BYTES, LARGEST_DATAGRAM_BYTES))
def test_finds_any_limit(data: st.DataObject, largest: int) -> None:
    carries = data.draw(st.integers(BASE_DATAGRAM_BYTES, largest))
    mtu = PathMtu(largest)
    tried = search(mtu, carries)
    assert carries - CLOSE_ENOUGH_BYTES <= mtu.datagram_bytes <= carries
    assert len(tried) <= 20 * TRIES


@example(8981, 8493)
@given(st.integers(1200, 9000), st.integers(1200, 9000))
def test_never_says_more_than_the_path_or_the_peers_carry(largest: int, carries: int) -> None:
    mtu = PathMtu(largest)
    tried = search(mtu, carries)
    assert mtu.datagram_bytes <= max(min(largest, carries), BASE_DATAGRAM_BYTES)
    assert all(BASE_DATAGRAM_BYTES < size <= largest for size in tried)


def test_the_largest_is_tried_first() -> None:
    assert search(PathMtu(1472), 1472) == [1472]
    assert search(PathMtu(1200), 9000) == []
    assert search(PathMtu(1201), 9000) == [1201]


def test_nothing_is_tried_before_a_datagram_was_full() -> None:
    mtu = PathMtu(1472)
    assert mtu.probe_bytes(0.0) is None
    mtu.is_wanted = True
    assert mtu.probe_bytes(0.0) == 1472


def test_a_probe_that_got_lost_by_chance_is_tried_again() -> None:
    mtu = PathMtu(1472)
    mtu.is_wanted = True
    for _ in range(TRIES - 1):
        assert mtu.probe_bytes(0.0) == 1472
        mtu.handle_probe_sent(1472)
        mtu.handle_probe_lost(1472)
    assert search(mtu, 1472) == [1472]
    assert mtu.datagram_bytes == 1472


def test_a_search_that_ended_below_the_largest_is_repeated_later() -> None:
    mtu = PathMtu(1472)
    search(mtu, 1300)
    found = mtu.datagram_bytes
    assert search(mtu, 1472, now=RETRY_S - 0.1) == []
    assert search(mtu, 1472, now=RETRY_S) == [1472]
    assert mtu.datagram_bytes == 1472 > found


def test_a_black_hole_leads_back_to_the_base() -> None:
    mtu = PathMtu(1472)
    search(mtu, 1472)
    assert not mtu.handle_probe_timeouts(SUSPICIOUS_PROBES - 1, 5.0)
    assert mtu.datagram_bytes == 1472
    assert mtu.handle_probe_timeouts(SUSPICIOUS_PROBES, 5.0)
    assert mtu.datagram_bytes == BASE_DATAGRAM_BYTES
    assert not mtu.handle_probe_timeouts(SUSPICIOUS_PROBES + 1, 5.5)
    assert mtu.probe_bytes(5.5) is None
    search(mtu, 1400, now=10.0)
    assert 1400 - CLOSE_ENOUGH_BYTES <= mtu.datagram_bytes <= 1400


def test_many_large_losses_in_a_row_are_a_black_hole_even_if_small_packets_pass() -> None:
    mtu = PathMtu(1472)
    search(mtu, 1472)
    for number in range(SUSPICIOUS_LOSSES - 1):
        assert not mtu.handle_large_lost(number, 5.0)
    assert mtu.datagram_bytes == 1472
    assert mtu.handle_large_lost(SUSPICIOUS_LOSSES, 5.0)
    assert mtu.datagram_bytes == BASE_DATAGRAM_BYTES


def test_losses_among_arrivals_are_no_black_hole() -> None:
    mtu = PathMtu(1472)
    search(mtu, 1472)
    for number in range(0, 1000, 2):
        assert not mtu.handle_large_lost(number, 5.0)
        mtu.handle_large_acked(number + 1)
        assert not mtu.handle_large_lost(number - 1, 5.0)  # older than one that arrived: it says nothing
        mtu.handle_large_acked(number - 5)
    assert mtu.datagram_bytes == 1472


def test_at_the_base_there_is_nowhere_to_fall() -> None:
    mtu = PathMtu(1472)
    assert not any(mtu.handle_large_lost(number, 5.0) for number in range(100))


def test_probes_of_another_path_say_nothing() -> None:
    mtu = PathMtu(1472)
    mtu.handle_probe_acked(1472)
    assert mtu.datagram_bytes == BASE_DATAGRAM_BYTES
    for _ in range(TRIES):
        mtu.handle_probe_lost(1400)
    assert search(mtu, 1472) == [1472]


# -- on a connection --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carries", [1200, 1201, 1250, 1333, 1400, 1471, 1472, 1500])
def test_a_connection_finds_the_size_of_its_path(carries: int) -> None:
    world = World(mtu_bytes=carries)
    client, server = world.connect()
    for _ in range(60):
        send_all(world, client, [bytes(5000)])
        send_all(world, server, [bytes(5000)])
        world.run(0.3)
    for connection in (client, server):
        found = connection.statistics.datagram_bytes
        assert min(carries, MAX_DATAGRAM_BYTES) - CLOSE_ENOUGH_BYTES <= found <= carries
    assert len(world.server.records) == len(world.client.records) == 60


def test_the_smaller_of_both_sides_is_the_largest() -> None:
    world = World(server=EndpointConfig(accepts=True, max_datagram_bytes=1300))
    client, server = world.connect()
    send_all(world, client, [bytes(5000)])
    send_all(world, server, [bytes(5000)])
    world.run(2.0)
    assert client.statistics.datagram_bytes == server.statistics.datagram_bytes == 1300


def test_a_path_that_shrinks_in_the_middle_of_a_record() -> None:
    """Fragments that were cut for the larger path are cut anew."""
    world = World(bytes_per_s=2.5e6)
    client, _ = world.connect()
    send_all(world, client, [bytes(5000)])
    world.run(1.0)
    assert client.statistics.datagram_bytes == 1472
    bodies = [world.rng.randbytes(200_000) for _ in range(4)]
    channel = send_all(world, client, bodies)
    world.run(0.1)
    world.mtu_bytes = 1300
    world.run_until(lambda: len(world.server.bodies(channel)) == 4, 30.0)
    assert world.server.bodies(channel) == bodies
    assert client.statistics.datagram_bytes <= 1300


def test_a_path_that_shrinks_while_small_packets_still_pass() -> None:
    """Something is heard all the time, so no probe timer tells: only the large packets vanish, again and again."""
    world = World()
    client, server = world.connect()
    send_all(world, client, [bytes(5000)])
    world.run(1.0)
    assert client.statistics.datagram_bytes == 1472
    world.mtu_bytes = 1300
    large = send_all(world, client, [bytes(1400)])
    small_up, small_down = client.open_channel(), server.open_channel()
    for _ in range(200):
        if world.server.bodies(large):
            break
        client.send(small_up, b"tick")
        server.send(small_down, b"tock")
        world.run(0.05)
    assert world.server.bodies(large) == [bytes(1400)]
    assert client.statistics.datagram_bytes <= 1300


def test_who_says_little_tries_no_larger_size() -> None:
    world = World()
    client, server = world.connect()
    up, down = client.open_channel(), server.open_channel()
    for _ in range(20):
        client.send(up, bytes(100))
        server.send(down, bytes(100))
        world.run(0.5)
    assert len(world.server.bodies(up)) == len(world.client.bodies(down)) == 20
    assert max(len(flying.data) for flying in world.log) == BASE_DATAGRAM_BYTES  # the padded hello


@pytest.mark.parametrize("arq", ["go-back-n", "stop-and-wait"])
def test_positions_are_cut_to_the_base_for_ever(arq: str) -> None:
    world = World(client=EndpointConfig(arq=arq))  # type: ignore[arg-type]
    client, _ = world.connect()
    send_all(world, client, [bytes(5000)])
    world.run(2.0)
    assert max(len(flying.data) for flying in world.log) == BASE_DATAGRAM_BYTES
    assert client.statistics.datagram_bytes == BASE_DATAGRAM_BYTES


@pytest.mark.parametrize("size", [9000, 32_000, 40_000, 64_000])
def test_large_datagrams_keep_the_limits_of_a_train(size: int) -> None:
    config = {"max_datagram_bytes": size, "receive_buffer_bytes": 2**22}
    world = World(client=EndpointConfig(**config), server=EndpointConfig(accepts=True, **config))  # type: ignore[arg-type]
    client, _ = world.connect()
    for _ in range(8):  # the window must have room for such a probe first
        send_all(world, client, [bytes(500_000)])
        world.run(0.5)
    assert client.statistics.datagram_bytes == size
    world.run_until(lambda: len(world.server.records) == 8)
