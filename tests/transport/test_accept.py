"""The server's side of the handshake: no state before the cookie returns, one connection for a connect, resets."""

from __future__ import annotations

import random

import pytest

from godwit.limits import (
    AMPLIFICATION,
    BASE_DATAGRAM_BYTES,
    COOKIE_LIFETIME_S,
    MAX_REASON_BYTES,
    MAX_RESETS_PER_S,
)
from godwit.transport import handshake
from godwit.transport.events import Address
from godwit.transport.handshake import RESET_PACKET_BYTES, Acceptor
from godwit.wire import packet as wire
from godwit.wire.control_base import Code
from godwit.wire.packet import decode_packet

HERE: Address = ("192.0.2.1", 4000)
ELSEWHERE: Address = ("192.0.2.1", 4001)
NONCE = b"n" * 16
RESET_KEY = b"r" * 32


def acceptor(seed: int = 1) -> Acceptor:
    rng = random.Random(seed)
    return Acceptor(secret=rng.randbytes(32), reset_key=RESET_KEY, entropy=rng.randbytes)


def cookie_from(one: Acceptor, now: float = 50.0, connection_id: int = 9, address: Address = HERE) -> bytes:
    answer = one.handle_hello(wire.HelloFrame(connection_id, NONCE), BASE_DATAGRAM_BYTES, address, now)
    assert answer is not None
    target, number, content = decode_packet(answer)
    (cookie,) = wire.decode_frames(content)
    assert isinstance(cookie, wire.CookieFrame)
    assert (target, number, cookie.nonce) == (connection_id, 0, NONCE)
    assert len(answer) * AMPLIFICATION < BASE_DATAGRAM_BYTES
    return cookie.cookie


def connect(cookie: bytes, connection_id: int = 9, nonce: bytes = NONCE) -> wire.ConnectFrame:
    return wire.ConnectFrame(connection_id, nonce, cookie, b"")


@pytest.mark.parametrize("size", [30, 1000, BASE_DATAGRAM_BYTES - 1])
def test_a_short_hello_is_not_answered(size: int) -> None:
    assert acceptor().handle_hello(wire.HelloFrame(9, NONCE), size, HERE, 0.0) is None


def test_a_hello_without_an_id_is_not_answered() -> None:
    assert acceptor().handle_hello(wire.HelloFrame(0, NONCE), BASE_DATAGRAM_BYTES, HERE, 0.0) is None


def test_a_cookie_proves_its_address_for_its_lifetime() -> None:
    one = acceptor()
    cookie = cookie_from(one)
    assert one.is_proven(connect(cookie), HERE, 50.0)
    assert one.is_proven(connect(cookie), HERE, 50.0 + COOKIE_LIFETIME_S)
    assert not one.is_proven(connect(cookie), HERE, 51.0 + COOKIE_LIFETIME_S)
    assert not one.is_proven(connect(cookie), ELSEWHERE, 50.0)
    assert not one.is_proven(connect(cookie, connection_id=10), HERE, 50.0)
    assert not one.is_proven(connect(cookie, connection_id=0), HERE, 50.0)
    assert not one.is_proven(connect(cookie, nonce=b"m" * 16), HERE, 50.0)
    assert not one.is_proven(connect(bytes(20)), HERE, 50.0)
    assert not acceptor(seed=2).is_proven(connect(cookie), HERE, 50.0)


def test_a_repeat_gets_the_same_answer_while_its_cookie_lives() -> None:
    one = acceptor()
    wanted = connect(cookie_from(one))
    assert one.repeated(wanted, 50.0) is None
    packet, key = one.accept(wanted, 1234, b"parameters", 50.0)
    target, _, content = decode_packet(packet)
    (frame,) = wire.decode_frames(content)
    assert isinstance(frame, wire.AcceptFrame)
    assert target == 9
    assert (frame.connection_id, frame.parameters) == (1234, b"parameters")
    assert frame.token == handshake.reset_token(RESET_KEY, 1234)
    assert key == handshake.connection_key(NONCE, frame.nonce)
    assert one.repeated(wanted, 50.0) == (packet, 1234)
    assert one.repeated(wanted, 50.0 + COOKIE_LIFETIME_S) == (packet, 1234)
    # The latest moment at which its cookie can be good: it was made when the connect came.
    assert one.is_proven(wanted, HERE, 65.9)
    assert one.repeated(wanted, 65.9) is not None
    assert one.repeated(wanted, 67.0) is None
    assert not one.is_proven(wanted, HERE, 67.0)


def test_another_client_is_no_repeat() -> None:
    one = acceptor()
    one.accept(connect(cookie_from(one)), 1234, b"", 50.0)
    assert one.repeated(connect(bytes(20), connection_id=10), 50.0) is None
    assert one.repeated(connect(bytes(20), nonce=b"m" * 16), 50.0) is None


def test_a_refusal_is_remembered_too() -> None:
    one = acceptor()
    wanted = connect(cookie_from(one))
    packet = one.refuse(wanted, Code.BUSY, "full " * 100, 50.0)
    (frame,) = wire.decode_frames(decode_packet(packet)[2])
    assert isinstance(frame, wire.RefuseFrame)
    assert (frame.nonce, frame.code) == (NONCE, Code.BUSY)
    assert len(frame.reason) <= MAX_REASON_BYTES
    assert one.repeated(wanted, 51.0) == (packet, 0)


def test_what_is_remembered_is_bounded() -> None:
    one = Acceptor(secret=b"s" * 32, reset_key=b"r" * 32, entropy=bytes, max_connections=1)
    clients = range(1, 2001)
    for client in clients:
        one.accept(connect(bytes(20), connection_id=client), client, b"", 50.0)
    remembered = [client for client in clients if one.repeated(connect(bytes(20), connection_id=client), 50.0)]
    assert remembered == list(range(2001 - 1026, 2001))


def test_a_reset_is_shorter_than_what_it_answers() -> None:
    one = acceptor()
    assert one.reset(5, RESET_PACKET_BYTES, 0.0) is None
    packet = one.reset(5, RESET_PACKET_BYTES + 1, 0.0)
    assert packet is not None
    assert len(packet) == RESET_PACKET_BYTES
    target, number, content = decode_packet(packet)
    assert (target, number) == (0, 0)
    assert wire.decode_frames(content) == [wire.ResetFrame(handshake.reset_token(RESET_KEY, 5))]


def test_resets_are_rare() -> None:
    one = acceptor()
    burst = [one.reset(5, 1000, 10.0 + n / 10_000) for n in range(5000)]
    assert sum(packet is not None for packet in burst) == MAX_RESETS_PER_S
    assert one.reset(5, 1000, 10.99) is None
    assert one.reset(5, 1000, 11.01) is not None
