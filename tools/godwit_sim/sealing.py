"""Stand-ins for TLS and for the ciphers of sealed packets: deterministic, quick, and without secrets.

The messages of the stand-in for TLS have the sizes of real ones, and both sides derive the same keys from them unless
anything was changed on the way. The cipher authenticates packets but does not encrypt them, so that checkers can read
the frames of a sealed packet.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from godwit.errors import DecodeError
from godwit.transport.events import Address, Role
from godwit.transport.protection import SEALED_OVERHEAD_BYTES, TAG_BYTES, Suite, is_sealed
from godwit.transport.sealing import Sealer, TlsError, TlsSession
from godwit.wire.packet import HEADER

CLIENT_HELLO_BYTES: Final = 1462
SERVER_FLIGHT_BYTES: Final = 1793
FINISHED_BYTES: Final = 80


CHECK_BYTES: Final = 8
"""The part of a tag that shows damage without the key, for checkers."""


def _check(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=CHECK_BYTES).digest()


class ForgedError(Exception):
    """Raised by the stand-in for a cipher."""


class ClearAead:
    """A cipher that adds a tag and leaves the data as it is."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def _tag(self, nonce: bytes, data: bytes | memoryview, associated_data: bytes) -> bytes:
        digest = hashlib.blake2b(nonce, key=self._key, digest_size=TAG_BYTES - CHECK_BYTES)
        digest.update(associated_data)
        digest.update(data)
        return digest.digest() + _check(bytes(associated_data) + bytes(data))

    def encrypt(self, nonce: bytes, data: bytes | memoryview, associated_data: bytes) -> bytes:
        """Return the data with its tag."""
        return bytes(data) + self._tag(nonce, data, associated_data)

    def decrypt(self, nonce: bytes, data: bytes | memoryview, associated_data: bytes) -> bytes:
        """Return the data without its tag. Raises ForgedError if the tag is wrong."""
        body = data[:-TAG_BYTES]
        if not hmac.compare_digest(data[-TAG_BYTES:], self._tag(nonce, body, associated_data)):
            raise ForgedError
        return bytes(body)


CLEAR: Final = Suite(99, "clear", key_bytes=32, max_forged=2**36, make=ClearAead, error=ForgedError)


class HidingAead(ClearAead):
    """The same with encrypted data, by the bytes of a hash function. For worlds that check secrecy."""

    def _hide(self, nonce: bytes, data: bytes | memoryview) -> bytes:
        stream = hashlib.shake_128(self._key + nonce).digest(len(data))
        return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")

    def encrypt(self, nonce: bytes, data: bytes | memoryview, associated_data: bytes) -> bytes:
        """Return the encrypted data with its tag."""
        return super().encrypt(nonce, self._hide(nonce, data), associated_data)

    def decrypt(self, nonce: bytes, data: bytes | memoryview, associated_data: bytes) -> bytes:
        """Return the data without its tag. Raises ForgedError if the tag is wrong."""
        return self._hide(nonce, super().decrypt(nonce, data, associated_data))


HIDING: Final = Suite(98, "hiding", key_bytes=32, max_forged=2**36, make=HidingAead, error=ForgedError)


class StandInSession:
    """A handshake of three messages with random bytes; the last one proves that both sides have seen the same."""

    def __init__(self, role: Role, entropy: Callable[[int], bytes], problem: str = "") -> None:
        """`problem`: why the peer is refused when the handshake is complete."""
        self._role = role
        self._problem = problem
        self._entropy = entropy
        self._received = b""
        self._transcript = b""
        self._is_done = False

    def start(self) -> bytes:
        """Return the hello of a client."""
        if self._role == "server":
            return b""
        hello = self._entropy(CLIENT_HELLO_BYTES)
        self._transcript = hello
        return hello

    def receive(self, data: bytes) -> bytes:
        """Handle bytes of the peer and return those to send."""
        self._received += data
        if self._role == "client":
            if self._is_done or len(self._received) < SERVER_FLIGHT_BYTES:
                return b""
            self._transcript += self._received
            self._is_done = True
            return self._finished()
        if not self._transcript:
            if len(self._received) < CLIENT_HELLO_BYTES:
                return b""
            flight = self._entropy(SERVER_FLIGHT_BYTES)
            self._transcript = self._received[:CLIENT_HELLO_BYTES] + flight
            return flight
        finished = self._received[CLIENT_HELLO_BYTES:]
        if len(finished) < FINISHED_BYTES:
            return b""
        if finished != self._finished():
            raise TlsError("the handshake was changed on the way")
        self._is_done = True
        return b""

    def _finished(self) -> bytes:
        return hashlib.sha256(self._transcript).digest().ljust(FINISHED_BYTES, b"\0")

    def is_done(self) -> bool:
        """Return whether the handshake is complete on this side."""
        return self._is_done

    def check_peer(self) -> None:
        """Refuse the peer if that was asked for. No client has a certificate."""
        if self._problem:
            raise TlsError(self._problem)

    def export(self, label: bytes, length: int, context: bytes) -> bytes:
        """Return bytes that follow from the transcript, the label and the context."""
        return hashlib.shake_256(self._transcript + label + context).digest(length)


class StandInSealer:
    """Seals all connections of an endpoint with the stand-ins."""

    def __init__(
        self,
        entropy: Callable[[int], bytes],
        *,
        suites: Sequence[Suite] = (CLEAR,),
        plain: str = "",
        problem: str = "",
        is_off: bool = False,
    ) -> None:
        """`plain`: why plain clients are refused. `problem`: why the peer's certificate is. `is_off`: of a client."""
        self._entropy = entropy
        self._suites = suites
        self._plain = plain
        self._problem = problem
        self._is_off = is_off

    def suites(self) -> Sequence[Suite]:
        """Return the suites."""
        return self._suites

    def new_session(self, role: Role, address: Address) -> TlsSession | None:
        """Return a new stand-in."""
        return None if self._is_off else StandInSession(role, self._entropy, self._problem)

    def plain_problem(self, address: Address) -> str:
        """Return why plain clients are refused, or an empty string."""
        return self._plain


_is_world_sealed: ContextVar[bool] = ContextVar("_is_world_sealed", default=False)


@contextmanager
def sealed_world() -> Iterator[None]:
    """Have all worlds that are made inside seal their connections, with the stand-ins."""
    token = _is_world_sealed.set(True)
    try:
        yield
    finally:
        _is_world_sealed.reset(token)


def sealer_of_world(entropy: Callable[[int], bytes]) -> Sealer | None:
    """Return the sealer of an endpoint that is made now: None, for plain connections, outside of `sealed_world`."""
    return StandInSealer(entropy, plain="connections must be sealed") if _is_world_sealed.get() else None


def sealed_content(packet: bytes) -> tuple[int, int, bytes] | None:
    """Return connection id, number and frames of a packet that was sealed with CLEAR; None if it is not sealed.

    Raises DecodeError if it is damaged.
    """
    if len(packet) <= SEALED_OVERHEAD_BYTES or not is_sealed(packet):
        return None
    if packet[-CHECK_BYTES:] != _check(packet[:-TAG_BYTES]):
        raise DecodeError("forged")
    _, connection_id, number = HEADER.unpack_from(packet)
    return connection_id, number, packet[HEADER.size : -TAG_BYTES]
