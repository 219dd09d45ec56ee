"""What an observer on the line can read."""

from __future__ import annotations

import pytest

from godwit.wire import packet as f
from godwit.wire.packet import encode_packet
from godwit_sim.packets import addressed_to, answers, challenges, describe, frames_of


def packet(*frames: f.Frame) -> bytes:
    return encode_packet(0xABC, 7, b"".join(f.encode_frame(frame) for frame in frames))


def test_frames_of_rubbish_are_none() -> None:
    assert frames_of(b"rubbish") == []
    assert frames_of(packet(f.PingFrame())) == [f.PingFrame()]


def test_addressed_to() -> None:
    assert addressed_to(packet(f.PingFrame())) == (0xABC, 7)
    assert addressed_to(b"rubbish") is None


def test_challenges_and_answers() -> None:
    asked = packet(f.CookieFrame(b"c" * 20, bytes(16)), f.PathProbeFrame(b"p" * 8), f.PingFrame())
    assert challenges(asked) == [b"c" * 20, b"p" * 8]
    assert answers(asked) == []
    answered = packet(
        f.ConnectFrame(1, bytes(16), b"c" * 20, b""), f.PathResponseFrame(b"p" * 8, bytes(16)), f.PingFrame()
    )
    assert answers(answered) == [b"c" * 20, b"p" * 8]
    assert challenges(answered) == []


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (f.PingFrame(), "ping"),
        (f.DataFrame(f.HAS_LENGTH, 3, 4, 100, None, b"12345"), "data 3/4+100:105"),
        (
            f.DataFrame(f.HAS_LENGTH | f.LAST | f.END | f.HAS_POSITION, 3, 4, 9, 8, b"1"),
            "data 3/4+9:10. end position 8",
        ),
        (f.DataFrame(f.HAS_LENGTH | f.WHOLE | f.UNRELIABLE, 3, 4, 0, None, b""), "unreliable 3/4+0:0."),
        (f.AckFrame(0, ((5, 9), (3, 3))), "ack 5-9 3"),
        (f.AckFrame(0, ((9, 9), (7, 7), (5, 5), (3, 3), (1, 1)), 6), "ack 9 7 5 3 and 1 more next 6"),
        (f.CreditFrame(1, 10), "credit 1 to 10"),
        (f.BlockedFrame(1, 10), "blocked 1 at 10"),
        (f.ConfirmFrame(1, 2, 3), "confirm 1 up to 2 reached 3"),
        (f.CloseFrame(4, "bye", bytes(16)), "close 4 'bye'"),
    ],
)
def test_describe(frame: f.Frame, text: str) -> None:
    line = describe(packet(frame))
    assert line.endswith(f"#7 for 0000000000000abc: {text}")


def test_describe_rubbish() -> None:
    assert describe(b"rubbish") == "7 B, no packet (truncated)"
