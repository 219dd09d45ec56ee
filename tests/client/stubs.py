"""A connection that collects its records and accepts as many as a test allows."""

from __future__ import annotations

import msgspec

from godwit.errors import ChannelError, ConnectionClosedError, RecordTooLargeError, SendBufferFullError
from godwit.transport.connection import Connection


class SentRecord(msgspec.Struct, frozen=True):
    channel: int
    body: bytes
    reliable: bool
    last: bool


class StubConnection(Connection):
    """What the client's parts need of a connection. Compiled code accepts no object of another class."""

    train_payload_bytes = 1000
    unsent_bytes = 0

    def __init__(self, train_payload_bytes: int = 1000) -> None:
        self.train_payload_bytes = train_payload_bytes
        self.sent: list[SentRecord] = []
        self.room = 1_000_000
        """How many records it still takes."""
        self.channels_left = 1_000_000
        self.longest_bytes = 2**30
        self.is_closed = False
        self.consumed: list[tuple[int, int]] = []
        self.confirmed: list[tuple[int, int]] = []
        self._next_channel = 1

    def open_channel(self) -> int:
        self._require_open()
        if not self.channels_left:
            raise ChannelError("no more")
        self.channels_left -= 1
        self._next_channel += 1
        return self._next_channel - 1

    def send(self, channel: int, body: bytes, *, reliable: bool = True, last: bool = False) -> bool:
        self._require_open()
        if len(body) > self.longest_bytes:
            raise RecordTooLargeError("too long")
        if not self.room:
            raise SendBufferFullError("full")
        self.room -= 1
        self.sent.append(SentRecord(channel, body, reliable, last))
        return reliable

    def consume(self, channel: int, body_bytes: int) -> None:
        self.consumed.append((channel, body_bytes))

    def confirm(self, channel: int, record: int, reached: int) -> None:
        self._require_open()
        assert reached == 0
        self.confirmed.append((channel, record))

    def _require_open(self) -> None:
        if self.is_closed:
            raise ConnectionClosedError(0, "closed")

    @property
    def real(self) -> Connection:
        """For the type checker."""
        return self

    def bodies(self, channel: int) -> list[bytes]:
        """What went on the channel behind its open."""
        return [record.body for record in self.sent if record.channel == channel][1:]
