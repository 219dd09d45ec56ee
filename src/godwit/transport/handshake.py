"""Cookies, keys and proofs: the arithmetic of the handshake, without state.

Nothing here is secret from someone who sees the handshake go by; it keeps out everybody else. docs/PROTOCOL.md,
"Handshake" and "Keys and proofs".
"""

from __future__ import annotations

import hmac
import struct
from typing import Final, Literal, TypeAlias

from godwit.limits import COOKIE_LIFETIME_S
from godwit.transport.train import Address
from godwit.wire.frames import MAC_BYTES, TOKEN_BYTES, encode_reason

Role: TypeAlias = Literal["client", "server"]

_TIME: Final = struct.Struct(">I")
_ID: Final = struct.Struct(">Q")
_CODE: Final = struct.Struct(">H")


def make_cookie(secret: bytes, now: float, address: Address, connection_id: int, nonce: bytes) -> bytes:
    """What a hello from this address is answered with: only somebody who receives there can send it back."""
    issued = _TIME.pack(int(now) & 0xFFFFFFFF)
    return issued + _cookie_proof(secret, issued, address, connection_id, nonce)


def check_cookie(secret: bytes, now: float, address: Address, connection_id: int, nonce: bytes, cookie: bytes) -> bool:
    """Whether this is the cookie made for this address and hello, not too long ago."""
    issued = cookie[: _TIME.size]
    age_s = (int(now) - _TIME.unpack(issued)[0]) & 0xFFFFFFFF
    expected = _cookie_proof(secret, issued, address, connection_id, nonce)
    return age_s <= COOKIE_LIFETIME_S and hmac.compare_digest(cookie[_TIME.size :], expected)


def _cookie_proof(secret: bytes, issued: bytes, address: Address, connection_id: int, nonce: bytes) -> bytes:
    # The address has no fixed length, so it goes last: no two inputs give the same bytes.
    content = issued + _ID.pack(connection_id) + nonce + repr(address).encode()
    return hmac.digest(secret, b"cookie" + content, "sha256")[:MAC_BYTES]


def connection_key(client_nonce: bytes, server_nonce: bytes) -> bytes:
    """The key of the proofs on one connection."""
    return hmac.digest(client_nonce + server_nonce, b"godwit 1 connection key", "sha256")


def login_binding(key: bytes) -> bytes:
    """What a login's proofs are made for, so that they hold on this connection only."""
    return hmac.digest(key, b"godwit 1 login", "sha256")


def path_mac(key: bytes, sender: Role, challenge: bytes) -> bytes:
    """The proof in a path response."""
    return hmac.digest(key, b"path" + _role(sender) + challenge, "sha256")[:MAC_BYTES]


def close_mac(key: bytes, sender: Role, code: int, reason: str) -> bytes:
    """The proof in a close."""
    content = b"close" + _role(sender) + _CODE.pack(code) + encode_reason(reason)
    return hmac.digest(key, content, "sha256")[:MAC_BYTES]


def reset_token(reset_key: bytes, connection_id: int) -> bytes:
    """The proof that a server with this key gave out this connection id."""
    return hmac.digest(reset_key, b"reset" + _ID.pack(connection_id), "sha256")[:TOKEN_BYTES]


def same(one: bytes, other: bytes) -> bool:
    """Compares proofs without telling by its duration how much of them is right."""
    return hmac.compare_digest(one, other)


def _role(sender: Role) -> bytes:
    return b"c" if sender == "client" else b"s"
