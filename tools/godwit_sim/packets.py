"""Datagrams read from the outside, for checkers, attackers and traces: what an observer on the line can tell."""

from __future__ import annotations

from godwit.errors import DecodeError
from godwit.wire import packet as f
from godwit.wire.packet import decode_packet


def frames_of(datagram: bytes) -> list[f.Frame]:
    """The frames of an intact packet; none of anything else."""
    try:
        return f.decode_frames(decode_packet(datagram)[2])
    except DecodeError:
        return []


def addressed_to(datagram: bytes) -> tuple[int, int] | None:
    """The connection id and the truncated packet number of an intact packet."""
    try:
        connection_id, number, _ = decode_packet(datagram)
    except DecodeError:
        return None
    return connection_id, number


def challenges(datagram: bytes) -> list[bytes]:
    """What the receiver of this datagram could only know by receiving it: cookies and path challenges."""
    found = []
    for frame in frames_of(datagram):
        if isinstance(frame, f.CookieFrame):
            found.append(frame.cookie)
        elif isinstance(frame, f.PathProbeFrame):
            found.append(frame.challenge)
    return found


def answers(datagram: bytes) -> list[bytes]:
    """The challenges that this datagram gives back."""
    found = []
    for frame in frames_of(datagram):
        if isinstance(frame, f.ConnectFrame):
            found.append(frame.cookie)
        elif isinstance(frame, f.PathResponseFrame):
            found.append(frame.challenge)
    return found


def describe(datagram: bytes) -> str:
    """One line for a reader."""
    try:
        connection_id, number, body = decode_packet(datagram)
        found = f.decode_frames(body)
    except DecodeError as error:
        return f"{len(datagram)} B, no packet ({error.reason})"
    words = ", ".join(_describe_frame(frame) for frame in found)
    return f"{len(datagram)} B #{number} for {connection_id:016x}: {words}"


def _describe_frame(frame: f.Frame) -> str:
    match frame:
        case f.DataFrame(flags, channel, record, offset, position, body):
            mode = "unreliable" if flags & f.UNRELIABLE else "data"
            marks = ("." if flags & (f.WHOLE | f.LAST) else "") + (" end" if flags & f.END else "")
            place = "" if position is None else f" position {position}"
            return f"{mode} {channel}/{record}+{offset}:{offset + len(body)}{marks}{place}"
        case f.AckFrame(_, ranges, next_position):
            spans = " ".join(f"{first}-{last}" if first != last else f"{first}" for first, last in ranges[:4])
            more = f" and {len(ranges) - 4} more" if len(ranges) > 4 else ""
            return f"ack {spans}{more}" + ("" if next_position is None else f" next {next_position}")
        case f.CreditFrame(channel, limit):
            return f"credit {channel} to {limit}"
        case f.BlockedFrame(channel, limit):
            return f"blocked {channel} at {limit}"
        case f.ConfirmFrame(channel, sequence, reached):
            return f"confirm {channel} up to {sequence} reached {reached}"
        case f.CloseFrame(code, reason):
            return f"close {code} {reason!r}"
    return type(frame).__name__.lower()
