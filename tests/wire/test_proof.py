"""Proofs of a name: an HMAC that fits one secret, side, connection and name, and nothing else."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import names, raw

from godwit.wire.control import PROOF_BYTES, Side, is_proof, make_proof

BINDING = bytes(range(32))
SECRET = b"correct horse battery staple"

VECTORS: list[tuple[Side, str, str]] = [
    ("client", "sensor-1", "a9b7bc2112093f4e78d5631952aa4aa470d25321d2a97503cde7670b10250e9b"),
    ("server", "sensor-1", "ab48af4e7130c4d478146702934217cc1cc24659ee651356e386c4a31cb334ae"),
    ("client", "m\u00fcller", "42e5fe5e07107f6ed0e919f7264610e7c76dd4defb42d1b7174aa34649ce15ca"),
    ("client", "", "84328152b1bdd8d6fa12df0c6924571edeaf0fca42bf074304067adb73615440"),
]


@pytest.mark.parametrize(("side", "name", "expected"), VECTORS)
def test_vectors(side: Side, name: str, expected: str) -> None:
    assert make_proof(SECRET, side, BINDING, name).hex() == expected


def by_hand(secret: bytes, side: str, binding: bytes, name: str) -> bytes:
    """RFC 2104 with nothing but SHA-256."""
    key = (hashlib.sha256(secret).digest() if len(secret) > 64 else secret).ljust(64, b"\x00")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
    inner.update(b"godwit 1 " + side.encode("ascii") + b" " + binding + name.encode("utf-8"))
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner.digest()).digest()


sides = st.sampled_from(("client", "server"))


@given(st.binary(max_size=100), sides, raw(32), names)
def test_a_proof_is_an_hmac(secret: bytes, side: Side, binding: bytes, name: str) -> None:
    proof = make_proof(secret, side, binding, name)
    assert len(proof) == PROOF_BYTES
    assert proof == by_hand(secret, side, binding, name)
    assert is_proof(proof, secret, side, binding, name)


@given(st.binary(max_size=40))
def test_anything_else_is_no_proof(proof: bytes) -> None:
    assert not is_proof(proof, SECRET, "client", BINDING, "sensor-1")


def test_a_proof_fits_nothing_else() -> None:
    """In particular: what the broker sends back proves nothing when a client sends it."""
    proof = make_proof(SECRET, "client", BINDING, "sensor-1")
    assert not is_proof(proof, b"another secret", "client", BINDING, "sensor-1")
    assert not is_proof(proof, SECRET, "server", BINDING, "sensor-1")
    assert not is_proof(proof, SECRET, "client", BINDING[::-1], "sensor-1")
    assert not is_proof(proof, SECRET, "client", BINDING, "sensor-2")
    assert not is_proof(proof[:-1], SECRET, "client", BINDING, "sensor-1")
    assert not is_proof(b"", SECRET, "client", BINDING, "sensor-1")
