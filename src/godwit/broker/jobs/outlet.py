"""The broker's channel for work towards one client: opened when there is first something to say, bounded by a window.

What does not fit the window is not kept here as bytes: those who have more to say look at has_room first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from godwit.broker.effects import Effect
from godwit.limits import RECORD_COST_BYTES, WORK_WINDOW_BYTES
from godwit.native.effects import OpenChannel, SendRecord
from godwit.native.peer import NativePeer
from godwit.wire.control import Work, encode_control
from godwit.wire.work import FromBroker, encode_group

_OPENING: Final = encode_control(Work())


class Outlet:
    """Feed: send, on_confirm. Look: has_room."""

    __slots__ = ("_effects", "_link", "_next_record", "_unconfirmed", "_unconfirmed_bytes", "channel")

    def __init__(self, link: NativePeer, effects: list[Effect]) -> None:
        self.channel = 0
        """0: not opened yet."""
        self._link = link
        self._effects = effects
        self._next_record = 0
        self._unconfirmed: deque[tuple[int, int]] = deque()
        """Records and their bytes."""
        self._unconfirmed_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether one more record may be sent. The last one may be longer than what is left."""
        return self._unconfirmed_bytes < WORK_WINDOW_BYTES

    def send(self, group: FromBroker, payloads: Sequence[bytes] = ()) -> None:
        if not self.channel:
            self.channel = self._link.take_channel()
            self._effects.append(OpenChannel(self._link.connection, self.channel))
            self._send(_OPENING)
        self._send(encode_group(group, payloads))

    def _send(self, body: bytes) -> None:
        self._effects.append(SendRecord(self._link.connection, self.channel, body))
        size = len(body) + RECORD_COST_BYTES
        self._unconfirmed.append((self._next_record, size))
        self._unconfirmed_bytes += size
        self._next_record += 1

    def on_confirm(self, record: int) -> None:
        """The client has taken everything up to this record."""
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= record:
            self._unconfirmed_bytes -= unconfirmed.popleft()[1]
