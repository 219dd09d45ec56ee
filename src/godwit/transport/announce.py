"""What must be said reliably but is no record: confirms, credit, pings, answers to path probes.

Each has a key, and only the newest value under a key matters. When the packet that carried it is lost, the key is
spoken again with whatever its value is by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from godwit.limits import MAX_CONFIRMS_WAITING
from godwit.transport.receive import ReceiveHalf
from godwit.transport.send import SendHalf
from godwit.transport.sent import Announcement
from godwit.wire.frames import Blocked, Confirm, Credit, Ping, encode_frame

LARGEST_FRAME_BYTES: Final = 32
"""No announcement is longer (a path response is the longest)."""
MAX_RESPONSES: Final = 4


class Announcements:
    """Feed: confirm, ping, respond, block, on_acked, repeat. Drain: take."""

    __slots__ = ("_blocked", "_confirms", "_ping", "_receiving", "_responses", "_sending", "_unsaid")

    def __init__(self, receiving: ReceiveHalf, sending: SendHalf) -> None:
        self._receiving = receiving
        self._sending = sending
        self._confirms: dict[int, tuple[int, int]] = {}
        """The newest of each channel (sequence, reached), until the other side has acknowledged it."""
        self._unsaid: dict[int, None] = {}
        """Channels whose confirm is to be said."""
        self._blocked: dict[int, None] = {}
        self._responses: list[bytes] = []
        self._ping = False

    @property
    def pending(self) -> bool:
        return bool(self._ping or self._unsaid or self._responses or self._blocked or self._receiving.has_grants)

    def confirm(self, channel: int, sequence: int, reached: int) -> None:
        self._confirms[channel] = (sequence, reached)
        if len(self._confirms) > MAX_CONFIRMS_WAITING:
            oldest = next(iter(self._confirms))
            del self._confirms[oldest]
            self._unsaid.pop(oldest, None)
        self._unsaid[channel] = None

    def ping(self) -> None:
        self._ping = True

    @property
    def takes_response(self) -> bool:
        return len(self._responses) < MAX_RESPONSES

    def respond(self, frame: bytes) -> None:
        """A path response, if takes_response says so. Not repeated: the other side asks again."""
        self._responses.append(frame)

    def block(self, channels: Iterable[int]) -> None:
        self._blocked.update(dict.fromkeys(channels))

    def repeat(self, keys: Iterable[Announcement]) -> None:
        """The packet that said these is lost."""
        for kind, channel, _ in keys:
            if kind == "confirm" and channel in self._confirms:
                self._unsaid[channel] = None
            elif kind == "credit":
                self._receiving.repeat_grant(channel)

    def on_acked(self, keys: Iterable[Announcement]) -> None:
        """The packet that said these has arrived."""
        for kind, channel, value in keys:
            if kind == "confirm" and (confirm := self._confirms.get(channel)) is not None and confirm[0] == value:
                del self._confirms[channel]
                if self._unsaid:
                    self._unsaid.pop(channel, None)

    def take_lone(self) -> tuple[int, int, int] | None:
        """A confirm (channel, sequence, reached), if that is all there is to say."""
        if len(self._unsaid) != 1 or self._ping or self._responses or self._blocked or self._receiving.has_grants:
            return None
        channel, _ = self._unsaid.popitem()
        return channel, *self._confirms[channel]

    def take(self, room_bytes: int) -> tuple[list[bytes], list[Announcement]]:
        """As many frames as fit, and the keys that must be repeated if their packet is lost."""
        frames: list[bytes] = []
        keys: list[Announcement] = []
        room = room_bytes // LARGEST_FRAME_BYTES
        while self._responses and len(frames) < room:
            frames.append(self._responses.pop(0))
        while self._unsaid and len(frames) < room:
            channel = next(iter(self._unsaid))
            del self._unsaid[channel]
            sequence, reached = self._confirms[channel]
            frames.append(encode_frame(Confirm(channel, sequence, reached)))
            keys.append(("confirm", channel, sequence))
        for channel, limit in self._receiving.take_grants(room - len(frames)):
            frames.append(encode_frame(Credit(channel, limit)))
            keys.append(("credit", channel, limit))
        while self._blocked and len(frames) < room:
            channel = next(iter(self._blocked))
            del self._blocked[channel]
            if channel in self._sending.blocked:
                frames.append(encode_frame(Blocked(channel, self._sending.blocked[channel])))
        if self._ping and len(frames) < room:
            self._ping = False
            frames.append(encode_frame(Ping()))
        return frames, keys
