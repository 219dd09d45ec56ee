"""A check of a new address: asks with patience, never too much, believes only the proved answer from there."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from godwit.limits import AMPLIFICATION
from godwit.transport.config import EndpointConfig
from godwit.transport.connection_state import Components
from godwit.transport.events import Address
from godwit.transport.handshake import close_mac, path_mac
from godwit.transport.path import CHALLENGE_PACKET_BYTES, MAX_CHALLENGES, PathMigration
from godwit.wire import packet as wire
from godwit.wire.packet import encode_packet

KEY = b"k" * 32
HERE: Address = ("192.0.2.1", 4000)
THERE: Address = ("192.0.2.1", 4001)


def migration() -> tuple[PathMigration, Components]:
    parameters = EndpointConfig().parameters(b"")
    parts = Components(
        role="server",
        connection_id=5,
        config=EndpointConfig(),
        discipline=parameters,
        dropped=Counter(),
        entropy=random.Random(1).randbytes,
    )
    parts.handle_peer(peer_id=6, peer=parameters, key=KEY, round_trip_s=0.04, now=0.0)
    for number in range(10):
        parts.acknowledger.handle_packet(number, 0.0)
    return PathMigration(parts), parts


def packet(*frames: wire.Frame, number: int = 10, size: int = 0) -> bytes:
    content = b"".join(map(wire.encode_frame, frames or (wire.PingFrame(),)))
    return encode_packet(5, number, content.ljust(size, b"\0"))


def challenge(one: PathMigration, now: float = 1.0) -> bytes:
    asked = one.next_challenge(now)
    assert asked is not None
    address, encoded = asked
    assert address == HERE
    (probe,) = wire.decode_frames(encoded)
    assert isinstance(probe, wire.PathProbeFrame)
    return probe.challenge


def test_nobody_new() -> None:
    one, _ = migration()
    assert one.candidate is None
    assert one.next_challenge(100.0) is None


def test_a_proved_answer_moves() -> None:
    one, parts = migration()
    assert not one.handle_packet(packet(size=1000), HERE, 1.0)
    assert parts.dropped == {"unproven_path": 1}
    assert one.candidate is not None
    assert one.candidate.due_at == 1.0
    asked = challenge(one)
    answer = wire.PathResponseFrame(asked, path_mac(KEY, "client", asked))
    assert one.handle_packet(packet(wire.PingFrame(), answer, number=11), HERE, 1.05)
    assert not one.handle_packet(packet(answer, number=9), HERE, 1.1)
    assert one.next_challenge(100.0) is None


@pytest.mark.parametrize("sender", ["server", "stranger"])
def test_a_wrong_proof_is_counted(sender: str) -> None:
    one, parts = migration()
    one.handle_packet(packet(size=1000), HERE, 1.0)
    asked = challenge(one)
    mac = path_mac(KEY, "server", asked) if sender == "server" else bytes(16)
    assert not one.handle_packet(packet(wire.PathResponseFrame(asked, mac)), HERE, 1.05)
    assert parts.dropped["forged_path_response"] == 1
    assert one.candidate is not None


def test_the_answer_must_come_from_the_new_address() -> None:
    one, _ = migration()
    one.handle_packet(packet(size=1000), HERE, 1.0)
    asked = challenge(one)
    answer = packet(wire.PathResponseFrame(asked, path_mac(KEY, "client", asked)), number=5)
    assert not one.handle_packet(answer, THERE, 1.05)
    assert one.handle_packet(answer, HERE, 1.05)


def test_an_old_number_is_no_sign_of_a_move() -> None:
    one, parts = migration()
    for number in (0, 5, 9):
        assert not one.handle_packet(packet(number=number), HERE, 1.0)
    assert one.candidate is None
    assert parts.dropped == {"unproven_path": 3}


def test_broken_packets_are_counted_by_their_fault() -> None:
    one, parts = migration()
    good = packet()
    one.handle_packet(good[:-1] + bytes((good[-1] ^ 1,)), HERE, 1.0)
    one.handle_packet(encode_packet(5, 20, b"\x3f"), HERE, 1.0)
    assert parts.dropped == {"checksum": 1, "frame": 1}
    assert one.candidate is None


def test_it_asks_a_few_times_with_growing_patience() -> None:
    one, _ = migration()
    one.handle_packet(packet(size=1000), HERE, 1.0)
    now = 1.0
    times = []
    while one.candidate is not None:
        now = one.candidate.due_at
        if one.next_challenge(now) is not None:
            times.append(now)
    assert len(times) == MAX_CHALLENGES
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(later == pytest.approx(2 * earlier) for earlier, later in itertools.pairwise(gaps))
    assert one.next_challenge(1e6) is None


def test_never_more_than_three_times_what_came() -> None:
    one, _ = migration()
    small = packet()
    one.handle_packet(small, HERE, 1.0)
    received = len(small)
    sent = 0
    while one.candidate is not None:
        now = one.candidate.due_at
        sent += CHALLENGE_PACKET_BYTES * (one.next_challenge(now) is not None)
        assert sent <= AMPLIFICATION * received
    assert sent > 0


def test_one_candidate_at_a_time() -> None:
    one, _ = migration()
    one.handle_packet(packet(size=1000), THERE, 1.0)
    one.handle_packet(packet(number=11, size=1000), HERE, 1.0)
    assert len(challenge(one)) == wire.PROBE_BYTES
    assert one.next_challenge(1.0) is None


def test_a_proved_goodbye_is_taken_from_anywhere() -> None:
    one, _ = migration()
    mac = close_mac(KEY, "client", 0, "bye")
    for forged in (bytes(len(mac)), close_mac(KEY, "server", 0, "bye"), close_mac(b"q" * 32, "client", 0, "bye")):
        assert one.proven_close(packet(wire.CloseFrame(0, "bye", forged))) is None
    assert one.proven_close(packet()) is None
    assert one.proven_close(b"no packet") is None
    assert one.proven_close(packet(wire.PingFrame(), wire.CloseFrame(0, "bye", mac))) == wire.CloseFrame(0, "bye", mac)
    assert not one.handle_packet(packet(wire.CloseFrame(0, "bye", mac)), HERE, 1.0)  # it moves nothing
