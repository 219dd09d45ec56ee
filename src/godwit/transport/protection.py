"""Sealed packets: the frames are encrypted, the whole packet is authenticated, and keys are replaced in time.

     0        1                            9              13                          n-16         n
    +--------+----------------------------+--------------+--------------- - - -------+------------+
    | 0001 00p1  connection id (u64)        number (u32)   frames, encrypted           tag         |
    +--------+----------------------------+--------------+--------------- - - -------+------------+

The header is the associated data; the nonce is the iv of the direction XOR the 64-bit packet number. A packet number is
sealed once: with the same nonce, two contents would reveal the key of the authentication. `p` is the key phase: it
changes with each key update of the sender. Each direction updates its keys on its own.

The algorithms come from outside (a Suite), so this module does arithmetic on numbers and bytes only. Opened and
unsealed packets have the form of plain packets, so that all other modules handle one form: an opened packet has four
zero bytes in the place of the checksum.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import repeat, takewhile
from typing import TYPE_CHECKING, Any, Final

from godwit.limits import KEY_LIFETIME_S, KEY_PACKETS, MAX_KEY_PACKETS
from godwit.transport.events import Role
from godwit.wire.packet import CHECKSUM, FIRST_BYTE, FLAG_PHASE, FLAG_SEALED, HEADER, expand_number

if TYPE_CHECKING:
    from godwit.transport.connection_state import Components

TAG_BYTES: Final = 16
SECRET_BYTES: Final = 32
IV_BYTES: Final = 12
SEALED_OVERHEAD_BYTES: Final = HEADER.size + TAG_BYTES
SMALLEST_SEALED_BYTES: Final = SEALED_OVERHEAD_BYTES + 1
EXTRA_BYTES: Final = TAG_BYTES - CHECKSUM.size
"""The difference between the lengths of a sealed and a plain packet with the same frames."""
FORMER_KEY_PROBE_TIMEOUTS: Final = 3
"""How long packets of the former key are opened after an update of the peer (RFC 9001, 6.5)."""

ASK_PACKETS: Final = 1024
"""How often a side asks for the acknowledgement that it needs for a key update."""

_SEALED: Final = FIRST_BYTE | FLAG_SEALED
_PLAIN_FIRST: Final = bytes((FIRST_BYTE,))
_NO_CHECKSUM: Final = bytes(CHECKSUM.size)
_NONCE: Final = struct.Struct(">4sQ")
_NONCE_HALVES: Final = struct.Struct(">8sI")
_HALF_NONCE_BYTES: Final = 8
_ID: Final = struct.Struct(">Q")
_HEAD_AND_NUMBER: Final = struct.Struct(">9sI")
"""The header of a packet, of which the first byte and the id are packed before."""
_MASK: Final = 0xFFFFFFFF


def is_sealed(packet: bytes) -> bool:
    """Return whether a packet, of which at least the first byte exists, is a sealed one of this version."""
    return packet[0] & ~FLAG_PHASE == _SEALED


class Suite:
    """An AEAD algorithm with 12-byte nonces and 16-byte tags.

    `make` returns an object with `encrypt(nonce, data, associated_data)` and `decrypt`, as the AEAD classes of PyCA
    cryptography have: the data may be a memoryview, the result is bytes, and `decrypt` raises `error` if the data
    is not authentic.
    """

    __slots__ = ("code", "error", "key_bytes", "make", "max_forged", "name")

    def __init__(
        self,
        code: int,
        name: str,
        *,
        key_bytes: int,
        max_forged: int,
        make: Callable[[bytes], Any],
        error: type[Exception],
    ) -> None:
        self.code = code
        """Its number in the handshake."""
        self.name = name
        self.key_bytes = key_bytes
        self.max_forged = max_forged
        """The connection ends after this many packets that did not open (RFC 9001, 6.6)."""
        self.make = make
        self.error = error


def cut(data: bytes | memoryview, at: int, skipped_bytes: int, piece_bytes: int, count: int) -> tuple[bytes, ...]:
    """Return pieces of equal length, `count` of them, from offset `at` on. Before each, some bytes are skipped."""
    return _layout(skipped_bytes, piece_bytes, count).unpack_from(data, at)


@lru_cache(maxsize=256)
def _layout(skipped_bytes: int, piece_bytes: int, count: int) -> struct.Struct:
    return struct.Struct(f"{skipped_bytes}x{piece_bytes}s" * count)


def expand(secret: bytes, purpose: bytes, length: int) -> bytes:
    """Return HKDF-Expand of RFC 5869 with SHA-256, for at most 32 bytes."""
    assert length <= SECRET_BYTES, "one block of HMAC"
    return hmac.digest(secret, b"godwit 1 " + purpose + b"\x01", "sha256")[:length]


class DirectionKey:
    """The key of one direction in one phase."""

    __slots__ = ("decrypt", "encrypt", "first_byte", "iv", "number", "salt", "secret")

    def __init__(self, suite: Suite, secret: bytes, number: int = 0) -> None:
        self.secret = secret
        self.number = number
        """How many updates preceded it."""
        self.first_byte = _SEALED | (FLAG_PHASE if number & 1 else 0)
        """The first byte of packets that are sealed with it."""
        aead = suite.make(expand(secret, b"key", suite.key_bytes))
        self.encrypt: Callable[[bytes, bytes | memoryview, bytes], bytes] = aead.encrypt
        self.decrypt: Callable[[bytes, bytes | memoryview, bytes], bytes] = aead.decrypt
        iv = expand(secret, b"iv", IV_BYTES)
        self.salt = iv[:4]
        self.iv = int.from_bytes(iv[4:], "big")

    def nonces(self, number: int, count: int) -> list[bytes]:
        """Return the nonces of packets with consecutive numbers."""
        low = number & _MASK
        if low + count > _MASK:
            return [_NONCE.pack(self.salt, self.iv ^ place) for place in range(number, number + count)]
        # All have the same upper half. Arithmetic with 32 bits takes half the time of that with 64.
        head = _NONCE.pack(self.salt, self.iv ^ number)[:_HALF_NONCE_BYTES]
        iv = self.iv & _MASK
        return list(map(_NONCE_HALVES.pack, repeat(head), [iv ^ place for place in range(low, low + count)]))

    def next(self, suite: Suite) -> DirectionKey:
        """Return the key after an update."""
        return DirectionKey(suite, expand(self.secret, b"update", SECRET_BYTES), self.number + 1)


class PacketProtection:
    """Seals the packets of one connection to its peer, and opens those from the peer."""

    __slots__ = (
        "_ask_at", "_components", "_first", "_first_number", "_former", "_former_until", "_inbound", "_key_until",
        "_next_inbound", "_next_number", "_outbound", "_received_first", "_suite", "_update_at", "forged",
    )  # fmt: skip

    def __init__(
        self, suite: Suite, role: Role, client_secret: bytes, server_secret: bytes, components: Components, now: float
    ) -> None:
        self._suite = suite
        self._components = components
        mine, theirs = (client_secret, server_secret) if role == "client" else (server_secret, client_secret)
        self._outbound = DirectionKey(suite, mine)
        self._inbound = DirectionKey(suite, theirs)
        self._next_inbound = self._inbound.next(suite)
        """Made in advance, so that a packet with the other phase takes no longer than others."""
        self._former: DirectionKey | None = None
        self._former_until = now
        self._received_first = 0
        """The number of the first packet that was opened with the present key of the peer."""
        self._next_number = 0
        """No smaller number may be sealed."""
        self._first_number = 0
        """The first number that was sealed with the present key."""
        self._update_at = KEY_PACKETS
        """The packet number from which on the next key is used, if the peer has acknowledged one of the present."""
        self._ask_at = 0
        """The packet number from which on the peer is asked again for the acknowledgement that an update needs."""
        self._key_until = now + KEY_LIFETIME_S
        self._first = bytes((self._outbound.first_byte,))
        self.forged = 0
        """The number of packets that did not open."""

    # -- sealing ------------------------------------------------------------------------------------------------------

    def seal(self, packet: bytes, number: int) -> bytes:
        """Seal a plain packet, given without its checksum. `number` is its full packet number."""
        self._use(number, 1)
        key = self._outbound
        header = self._first + packet[1 : HEADER.size]
        return header + key.encrypt(_NONCE.pack(key.salt, key.iv ^ number), packet[HEADER.size :], header)

    def seal_frames(self, frames: bytes, number: int) -> bytes:
        """Seal frames as one packet."""
        return self.seal(HEADER.pack(FIRST_BYTE, self._components.peer_id, number & _MASK) + frames, number)

    def seal_run(self, contents: list[bytes], number: int) -> list[bytes]:
        """Seal the frames of packets with consecutive numbers from `number` on. Return the parts of the packets.

        Each step is one call into C for all packets: a call for each would take longer than the cipher itself.
        """
        count = len(contents)
        self._use(number, count)
        key = self._outbound
        headers = self._headers(self._first + _ID.pack(self._components.peer_id), number, count)
        parts = [b""] * (2 * count)
        parts[::2] = headers
        parts[1::2] = map(key.encrypt, key.nonces(number, count), contents, headers)
        return parts

    @staticmethod
    def _headers(head: bytes, number: int, count: int) -> list[bytes]:
        """Return the headers of packets with consecutive numbers, which begin with `head`."""
        numbers = [place & _MASK for place in range(number, number + count)]
        return list(map(_HEAD_AND_NUMBER.pack, repeat(head), numbers))

    def _use(self, number: int, count: int) -> None:
        """Note that numbers are sealed now, and update the key first if that is due."""
        if number < self._next_number:
            raise AssertionError(f"packet number {number} was sealed before")  # never continue: see the module
        self._next_number = number + count
        if number >= self._update_at:
            self._update(number)

    def _update(self, number: int) -> None:
        """Use the next key from this packet on, if the peer has acknowledged a packet of the present key.

        Otherwise ask it for an acknowledgement: it may have received nothing but acknowledgements for a long time.
        """
        if self._components.recovery.largest_acked < self._first_number:
            if number >= self._ask_at:
                self._ask_at = number + ASK_PACKETS
                self._components.control_frames.ping()
            return
        self._outbound = self._outbound.next(self._suite)
        self._first = bytes((self._outbound.first_byte,))
        self._first_number = number
        self._update_at = number + KEY_PACKETS

    def check(self, now: float) -> str:
        """Have a key replaced that was used for KEY_LIFETIME_S. Call it before packets are sealed.

        Return why the connection must end, because a key may not be used more often (RFC 9001, 6.6), or an empty
        string.
        """
        if now >= self._key_until:
            self._key_until = now + KEY_LIFETIME_S
            self._update_at = self._next_number
        if self._next_number - self._first_number > MAX_KEY_PACKETS - 4096:
            return "the peer acknowledges no packet of the present key, so it cannot be replaced"
        if self.forged >= self._suite.max_forged:
            return "too many forged packets"
        return ""

    @property
    def updates(self) -> tuple[int, int]:
        """How often the key was replaced: the own one, and the peer's."""
        return self._outbound.number, self._inbound.number

    # -- opening ------------------------------------------------------------------------------------------------------

    def open(self, packet: bytes, expected: int, now: float) -> bytes | None:
        """Return the packet in the form of a plain one, or None if it is forged, or of a key that is not valid now.

        Nothing changes if it does not open. `expected`: one more than the largest number received.
        """
        if len(packet) < SMALLEST_SEALED_BYTES:
            self._components.dropped["truncated"] += 1
            return None
        number = expand_number(int.from_bytes(packet[9 : HEADER.size], "big"), expected)
        key = self._inbound
        if packet[0] != key.first_byte:
            other = self._key_of_other_phase(packet[0], number, now)
            if other is None:
                return None
            key = other
        header = packet[: HEADER.size]
        try:
            frames = key.decrypt(_NONCE.pack(key.salt, key.iv ^ number), packet[HEADER.size :], header)
        except self._suite.error:
            self.forged += 1
            self._components.dropped["forged"] += 1
            return None
        if key is self._next_inbound and not self._handle_update(number, now):
            return None
        return b"".join((_PLAIN_FIRST, packet[1 : HEADER.size], frames, _NO_CHECKSUM))

    def open_run(self, data: bytes, at: int, segment_bytes: int, expected: int) -> list[bytes]:
        """Open the packets of a train from offset `at` on that are the next ones in order, with the present key.

        Return the frames of each, up to the first packet that is another one or does not open: `open` decides about
        that, and counts it. As in PacketReceiver, the expected headers are compared, and each step is one call into C
        for all packets.
        """
        most = (len(data) - at) // segment_bytes
        if most < 2 or segment_bytes < SMALLEST_SEALED_BYTES:
            return []
        key = self._inbound
        head = bytes((key.first_byte,)) + data[at + 1 : at + 9]
        if not data.startswith(_HEAD_AND_NUMBER.pack(head, expected & _MASK), at):
            return []  # so that a train of forged packets costs no list of headers for each of them
        headers = self._headers(head, expected, most)
        places = range(at, at + most * segment_bytes, segment_bytes)
        same = sum(takewhile(bool, map(data.startswith, headers, places)))
        contents = cut(data, at, HEADER.size, segment_bytes - HEADER.size, same)
        opened: list[bytes] = []
        try:
            for frames in map(key.decrypt, key.nonces(expected, same), contents, headers):
                opened.append(frames)
        except self._suite.error:
            pass
        return opened

    def _key_of_other_phase(self, first_byte: int, number: int, now: float) -> DirectionKey | None:
        if first_byte & ~FLAG_PHASE != _SEALED:
            self._components.dropped["unsealed"] += 1
            return None
        if number >= self._received_first:
            return self._next_inbound
        if self._former is None or now > self._former_until:
            self._components.dropped["old_key"] += 1
            return None
        return self._former

    def _handle_update(self, number: int, now: float) -> bool:
        """Use the peer's next key from now on. Return False if the peer may not use it yet.

        It may after an acknowledgement of a packet with the present key (RFC 9001, 6.1): otherwise a peer could demand
        a key update with each packet.
        """
        if self._components.acknowledger.largest_reported < self._received_first:
            self._components.dropped["early_key_update"] += 1
            return False
        self._former = self._inbound
        self._inbound = self._next_inbound
        self._next_inbound = self._inbound.next(self._suite)
        self._received_first = number
        timeout_s = self._components.recovery.round_trip.probe_timeout_s
        self._former_until = now + FORMER_KEY_PROBE_TIMEOUTS * timeout_s
        return True
