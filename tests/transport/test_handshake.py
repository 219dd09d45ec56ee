"""Cookies live for a while and for one address and hello; proofs hold for one key, sender and content."""

from __future__ import annotations

import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from godwit.limits import COOKIE_LIFETIME_S, MAX_REASON_BYTES
from godwit.transport import handshake
from godwit.transport.events import Address
from godwit.wire.packet import COOKIE_BYTES, MAC_BYTES, TOKEN_BYTES

SECRET = b"s" * 32
KEY = b"k" * 32
NONCE = bytes(range(16))
HERE: Address = ("192.0.2.1", 4000)


def cookie(now: float = 1000.0) -> bytes:
    return handshake.make_cookie(SECRET, now, HERE, 7, NONCE)


def is_good(made: bytes, now: float = 1000.0, address: Address = HERE, connection_id: int = 7) -> bool:
    return handshake.check_cookie(SECRET, now, address, connection_id, NONCE, made)


def test_a_cookie_comes_back() -> None:
    assert len(cookie()) == COOKIE_BYTES
    assert is_good(cookie())
    assert cookie()[:4] == (1000).to_bytes(4, "big")


def test_a_cookie_lives_for_a_while() -> None:
    assert is_good(cookie(), now=1000.0 + COOKIE_LIFETIME_S)
    assert not is_good(cookie(), now=1000.0 + COOKIE_LIFETIME_S + 1)
    assert not is_good(cookie(), now=999.0)
    assert not is_good(cookie(), now=1e6)


def test_the_count_of_seconds_wraps_around() -> None:
    assert is_good(cookie(2**32 - 1.0), now=2**32 + 5.0)
    assert not is_good(cookie(2**32 - 1.0), now=2**32 + COOKIE_LIFETIME_S + 1)


def test_a_cookie_is_for_one_address_and_one_hello() -> None:
    made = cookie()
    for other in (("192.0.2.1", 4001), ("192.0.2.2", 4000), ("192.0.2.1", 4000, 0, 0)):
        assert not is_good(made, address=other)
    assert not is_good(made, connection_id=8)
    assert not handshake.check_cookie(SECRET, 1000.0, HERE, 7, NONCE[::-1], made)
    assert not handshake.check_cookie(SECRET[::-1] + b"x", 1000.0, HERE, 7, NONCE, made)


@given(st.integers(0, COOKIE_BYTES * 8 - 1))
def test_a_cookie_with_one_bit_changed_is_none(bit: int) -> None:
    made = bytearray(cookie())
    made[bit // 8] ^= 1 << bit % 8
    assert not is_good(bytes(made))


def test_the_key_depends_on_both_nonces() -> None:
    keys = {handshake.connection_key(one, other) for one in (NONCE, bytes(16)) for other in (NONCE, bytes(16))}
    assert len(keys) == 4
    expected = hmac.new(NONCE + bytes(16), b"godwit 1 connection key", hashlib.sha256).digest()
    assert handshake.connection_key(NONCE, bytes(16)) == expected


def test_a_binding_belongs_to_one_key() -> None:
    assert handshake.login_binding(KEY) == hmac.new(KEY, b"godwit 1 login", hashlib.sha256).digest()
    assert handshake.login_binding(KEY) != handshake.login_binding(SECRET)


def test_a_path_response_proves_key_sender_and_challenge() -> None:
    macs = {
        handshake.path_mac(key, sender, challenge)
        for key in (KEY, SECRET)
        for sender in ("client", "server")
        for challenge in (b"12345678", b"87654321")
    }
    assert len(macs) == 8
    assert {len(mac) for mac in macs} == {MAC_BYTES}
    expected = hmac.new(KEY, b"pathc12345678", hashlib.sha256).digest()[:MAC_BYTES]
    assert handshake.path_mac(KEY, "client", b"12345678") == expected


def test_a_close_proves_key_sender_code_and_reason() -> None:
    macs = {
        handshake.close_mac(key, sender, code, reason)
        for key in (KEY, SECRET)
        for sender in ("client", "server")
        for code in (0, 1)
        for reason in ("", "a", "b")
    }
    assert len(macs) == 24
    expected = hmac.new(KEY, b"closes\x00\x05why", hashlib.sha256).digest()[:MAC_BYTES]
    assert handshake.close_mac(KEY, "server", 5, "why") == expected


def test_a_long_reason_is_proved_as_it_is_sent() -> None:
    long = "x" * (MAX_REASON_BYTES + 50)
    assert handshake.close_mac(KEY, "client", 0, long) == handshake.close_mac(KEY, "client", 0, "x" * MAX_REASON_BYTES)


def test_a_reset_token_is_for_one_key_and_one_id() -> None:
    tokens = {handshake.reset_token(key, one) for key in (KEY, SECRET) for one in (1, 2)}
    assert len(tokens) == 4
    assert {len(token) for token in tokens} == {TOKEN_BYTES}
    expected = hmac.new(KEY, b"reset" + (77).to_bytes(8, "big"), hashlib.sha256).digest()[:TOKEN_BYTES]
    assert handshake.reset_token(KEY, 77) == expected


def test_same() -> None:
    assert handshake.same(b"abc", b"abc")
    assert not handshake.same(b"abc", b"abd")
    assert not handshake.same(b"abc", b"ab")
