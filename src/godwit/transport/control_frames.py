"""Frames besides records that are sent reliably: confirms, credit, pings, replies to path probes.

Each has a key, and only the latest value of a key matters. When a packet is lost, its keys are sent again with their
current values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from godwit.limits import MAX_CONFIRMS_WAITING
from godwit.transport.receive_channels import ReceiveChannels
from godwit.transport.recovery import ControlFrameKey
from godwit.transport.send_channels import SendChannels
from godwit.wire.packet import BlockedFrame, ConfirmFrame, CreditFrame, PingFrame, TokenFrame, encode_frame

LARGEST_FRAME_BYTES: Final = 32
"""The largest size of a control frame (a path response)."""
MAX_RESPONSES: Final = 4


class ControlFrames:
    """The control frames to send."""

    __slots__ = (
        "_blocked", "_confirms", "_pending_confirms", "_ping", "_receive_channels", "_responses", "_send_channels",
        "_token", "_token_due", "has_others",
    )  # fmt: skip

    def __init__(self, receive_channels: ReceiveChannels, send_channels: SendChannels) -> None:
        self._receive_channels = receive_channels
        self._send_channels = send_channels
        self._confirms: dict[int, tuple[int, int]] = {}
        """The latest confirm (sequence, reached) of each channel, until the peer has acknowledged it."""
        self._pending_confirms: dict[int, None] = {}
        """Channels whose confirm is to be sent."""
        self._blocked: dict[int, None] = {}
        self._responses: list[bytes] = []
        self._ping = False
        self._token = b""
        """The token of resets, until the peer has acknowledged it."""
        self._token_due = False
        self.has_others = False
        """Whether there are frames to send besides credit, which ReceiveChannels knows."""

    @property
    def pending(self) -> bool:
        return self.has_others or bool(self._receive_channels.pending_credits)

    def confirm(self, channel: int, sequence: int, reached: int) -> None:
        self._confirms[channel] = (sequence, reached)
        if len(self._confirms) > MAX_CONFIRMS_WAITING:
            oldest = next(iter(self._confirms))
            del self._confirms[oldest]
            self._pending_confirms.pop(oldest, None)
        self._pending_confirms[channel] = None
        self.has_others = True

    def ping(self) -> None:
        self._ping = self.has_others = True

    def send_token(self, token: bytes) -> None:
        """Send the token of resets until it is acknowledged."""
        self._token = token
        self._token_due = self.has_others = True

    @property
    def has_response_room(self) -> bool:
        return len(self._responses) < MAX_RESPONSES

    def respond(self, frame: bytes) -> None:
        """Queue a path response, if has_response_room. It is not repeated: the peer probes again."""
        self._responses.append(frame)
        self.has_others = True

    def block(self, channels: Iterable[int]) -> None:
        self._blocked.update(dict.fromkeys(channels))
        self._update()

    def repeat(self, keys: Iterable[ControlFrameKey]) -> None:
        """Send these again: their packet is lost."""
        for kind, channel, _ in keys:
            if kind == "confirm" and channel in self._confirms:
                self._pending_confirms[channel] = None
                self.has_others = True
            elif kind == "credit":
                self._receive_channels.repeat_credit(channel)
            elif kind == "token" and self._token:
                self._token_due = self.has_others = True

    def handle_acked(self, keys: Iterable[ControlFrameKey]) -> None:
        """Note that the packet with these keys has arrived."""
        for kind, channel, value in keys:
            if kind == "confirm" and (confirm := self._confirms.get(channel)) is not None and confirm[0] == value:
                del self._confirms[channel]
                if self._pending_confirms:
                    self._pending_confirms.pop(channel, None)
                    self._update()
            elif kind == "token":
                self._token = b""

    @property
    def has_lone(self) -> bool:
        """Whether a confirm is the only frame to send."""
        return not (
            len(self._pending_confirms) != 1
            or self._ping
            or self._responses
            or self._blocked
            or self._token_due
            or self._receive_channels.pending_credits
        )

    def next_lone(self) -> tuple[int, int, int] | None:
        """Return a confirm (channel, sequence, reached) if it is the only frame to send, else None."""
        if not self.has_lone:
            return None
        channel, _ = self._pending_confirms.popitem()
        self.has_others = False
        return channel, *self._confirms[channel]

    def next_frames(self, room_bytes: int) -> tuple[list[bytes], list[ControlFrameKey]]:
        """Return as many frames as fit, and the keys to repeat if their packet is lost."""
        frames: list[bytes] = []
        keys: list[ControlFrameKey] = []
        room = room_bytes // LARGEST_FRAME_BYTES
        if self._token_due and room:
            self._token_due = False
            frames.append(encode_frame(TokenFrame(self._token)))
            keys.append(("token", 0, 0))
        while self._responses and len(frames) < room:
            frames.append(self._responses.pop(0))
        while self._pending_confirms and len(frames) < room:
            channel = next(iter(self._pending_confirms))
            del self._pending_confirms[channel]
            sequence, reached = self._confirms[channel]
            frames.append(encode_frame(ConfirmFrame(channel, sequence, reached)))
            keys.append(("confirm", channel, sequence))
        for channel, limit in self._receive_channels.next_credits(room - len(frames)):
            frames.append(encode_frame(CreditFrame(channel, limit)))
            keys.append(("credit", channel, limit))
        while self._blocked and len(frames) < room:
            channel = next(iter(self._blocked))
            del self._blocked[channel]
            if channel in self._send_channels.blocked:
                frames.append(encode_frame(BlockedFrame(channel, self._send_channels.blocked[channel])))
        if self._ping and len(frames) < room:
            self._ping = False
            frames.append(encode_frame(PingFrame()))
        self._update()
        return frames, keys

    def _update(self) -> None:
        self.has_others = bool(
            self._ping or self._pending_confirms or self._responses or self._blocked or self._token_due
        )
