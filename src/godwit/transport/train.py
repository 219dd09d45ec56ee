"""A train: datagrams of one size for one address, handed over in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

Address: TypeAlias = tuple[Any, ...]
"""What `socket.recvmsg` gives: (host, port), or (host, port, flow, scope) with IPv6."""


class Train(msgspec.Struct, frozen=True, gc=False):
    """The unit between transport and socket: one system call moves many datagrams.

    A train to send has at most `limits.MAX_TRAIN_DATAGRAMS` datagrams and `limits.MAX_TRAIN_BYTES` bytes.
    """

    address: Address
    """Where it goes to, or came from."""
    data: bytes
    """The datagrams, one after another."""
    segment_bytes: int
    """The size of every datagram but the last, which may be shorter. At least 1."""

    def datagrams(self) -> Iterator[bytes]:
        """The datagrams one by one, in order."""
        data = self.data
        segment_bytes = self.segment_bytes
        if len(data) <= segment_bytes:
            if data:
                yield data  # the common case of a lone datagram: no copy
            return
        for start in range(0, len(data), segment_bytes):
            yield data[start : start + segment_bytes]
