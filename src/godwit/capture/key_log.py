"""A key log, the file that GODWIT_KEY_LOG names, and the sealed packets of a capture that its secrets open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from godwit.transport.protection import DirectionKey, Suite
from godwit.wire.packet import HEADER

CLIENT: Final = "CLIENT"
SERVER: Final = "SERVER"
RANDOM_AT: Final = 11
"""Where the random bytes of a client hello are in the stream of TLS: after the heads of the record and the message."""
RANDOM_BYTES: Final = 32
_LINE: Final = re.compile(r"^GODWIT_(CLIENT|SERVER)_SECRET ([0-9a-fA-F]{64}) ([0-9a-fA-F]{64})\s*$", re.MULTILINE)


class KeyLog:
    """The secrets of sealed connections, by the random bytes of their client hellos."""

    def __init__(self, text: str, suites: Sequence[Suite]) -> None:
        """Read the lines of a key log; other lines are ignored.

        Args:
            text: The content of the file.
            suites: The algorithms that connections may have.
        """
        self._suites = {suite.code: suite for suite in suites}
        self._secrets = {
            (random.lower(), sender): bytes.fromhex(secret) for sender, random, secret in _LINE.findall(text)
        }

    def __len__(self) -> int:
        return len(self._secrets)

    def opener(self, hello: bytes, suite: int, sender: str) -> SealedOpener | None:
        """Return the opener of the packets of one side of a connection, or None if its secret is not in the log.

        Args:
            hello: The first bytes of the client's TLS handshake.
            suite: The number of the algorithm, from the accept.
            sender: CLIENT or SERVER.
        """
        random = hello[RANDOM_AT : RANDOM_AT + RANDOM_BYTES].hex()
        found, secret = self._suites.get(suite), self._secrets.get((random, sender))
        return None if found is None or secret is None else SealedOpener(found, secret)


class SealedOpener:
    """Opens the packets of one direction in the order of a capture. It follows updates of the key."""

    def __init__(self, suite: Suite, secret: bytes) -> None:
        self._suite = suite
        self._key = DirectionKey(suite, secret)
        self._former: DirectionKey | None = None
        self._first = 0
        """The number of the first packet that the present key has opened."""

    def open(self, packet: bytes, number: int) -> bytes | None:
        """Return the frames of a packet with this full number, or None if it does not open."""
        key: DirectionKey | None = self._key
        if packet[0] != self._key.first_byte:
            key = self._former if number < self._first else self._key.next(self._suite)
        if key is None:
            return None
        header = packet[: HEADER.size]
        nonce = key.salt + (key.iv ^ number).to_bytes(8, "big")
        try:
            frames = key.decrypt(nonce, packet[HEADER.size :], header)
        except self._suite.error:
            return None
        if key.number > self._key.number:
            self._former, self._key, self._first = self._key, key, number
        return frames
