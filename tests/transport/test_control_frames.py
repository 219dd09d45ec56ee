"""Announcements: the newest value under a key is said, and said again when its packet was lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from godwit.transport import control_frames as announce_module
from godwit.transport.arq import SelectiveRepeat
from godwit.transport.config import EndpointConfig
from godwit.transport.control_frames import LARGEST_FRAME_BYTES, MAX_RESPONSES, ControlFrames
from godwit.transport.receive_channels import ReceiveChannels
from godwit.transport.recovery import ControlFrameKey
from godwit.transport.send_channels import SendChannels
from godwit.wire import packet as wire

ROOM = 1183


def parts() -> tuple[ControlFrames, ReceiveChannels, SendChannels]:
    receive_channels = ReceiveChannels(
        EndpointConfig(channel_window_bytes=4000, connection_window_bytes=8000), Counter()
    )
    send_channels = SendChannels(SelectiveRepeat(), send_buffer_bytes=10**6)
    return ControlFrames(receive_channels, send_channels), receive_channels, send_channels


def frames(taken: tuple[list[bytes], object]) -> list[wire.Frame]:
    return [frame for encoded in taken[0] for frame in wire.decode_frames(encoded)]


def test_nothing_to_say() -> None:
    control_frames, _, _ = parts()
    assert not control_frames.pending
    assert control_frames.next_frames(ROOM) == ([], [])


def test_a_ping_is_said_once() -> None:
    control_frames, _, _ = parts()
    control_frames.ping()
    control_frames.ping()
    assert control_frames.pending
    assert frames(control_frames.next_frames(ROOM)) == [wire.PingFrame()]
    assert not control_frames.pending


def test_of_a_confirm_the_newest_is_said_until_it_arrived() -> None:
    control_frames, _, _ = parts()
    control_frames.confirm(1, 5, 2)
    control_frames.confirm(1, 6, 3)
    control_frames.confirm(2, 1, 0)
    taken = control_frames.next_frames(ROOM)
    assert frames(taken) == [wire.ConfirmFrame(1, 6, 3), wire.ConfirmFrame(2, 1, 0)]
    assert not control_frames.pending
    control_frames.confirm(1, 7, 1)
    control_frames.repeat(taken[1])
    again = control_frames.next_frames(ROOM)
    assert frames(again) == [wire.ConfirmFrame(1, 7, 1), wire.ConfirmFrame(2, 1, 0)]
    control_frames.handle_acked(taken[1])
    control_frames.repeat(again[1])
    third = control_frames.next_frames(ROOM)
    assert frames(third) == [wire.ConfirmFrame(1, 7, 1)]
    control_frames.handle_acked(third[1])
    control_frames.repeat(third[1])
    assert not control_frames.pending


def test_a_confirm_that_arrived_before_it_was_said_again_is_not() -> None:
    control_frames, _, _ = parts()
    control_frames.confirm(1, 5, 2)
    _, keys = control_frames.next_frames(ROOM)
    control_frames.repeat(keys)
    assert control_frames.pending
    control_frames.handle_acked(keys)
    assert not control_frames.pending


def test_credit_is_said_again_with_its_newest_value() -> None:
    control_frames, receive_channels, _ = parts()
    receive_channels.handle_fragment(1, 0, 0, bytes(1500), is_last=True, ends_channel=False)
    receive_channels.consume(1, 1500)
    taken = control_frames.next_frames(ROOM)
    assert wire.CreditFrame(1, 4000 + 1628) in frames(taken)
    receive_channels.handle_fragment(1, 1, 0, bytes(10), is_last=True, ends_channel=False)
    receive_channels.consume(1, 10)
    control_frames.repeat(taken[1])
    assert wire.CreditFrame(1, 4000 + 1628 + 138) in frames(control_frames.next_frames(ROOM))
    control_frames.handle_acked(taken[1])
    assert not control_frames.pending


def test_blocked_is_said_only_while_it_is_true() -> None:
    control_frames, _, send_channels = parts()
    send_channels.blocked = {1: 4000}
    control_frames.block([0, 1])
    assert control_frames.pending
    assert frames(control_frames.next_frames(ROOM)) == [wire.BlockedFrame(1, 4000)]
    assert not control_frames.pending


def test_responses_are_few_and_first() -> None:
    control_frames, _, _ = parts()
    control_frames.ping()
    for n in range(20):
        if control_frames.has_response_room:
            control_frames.respond(wire.encode_frame(wire.PathResponseFrame(bytes((n,)) * 8, bytes(16))))
    sent = frames(control_frames.next_frames(ROOM))
    assert len(sent) == MAX_RESPONSES + 1
    assert sent[-1] == wire.PingFrame()
    assert not control_frames.pending


def test_what_does_not_fit_waits() -> None:
    control_frames, receive_channels, send_channels = parts()
    control_frames.ping()
    control_frames.respond(wire.encode_frame(wire.PathResponseFrame(bytes(8), bytes(16))))
    send_channels.blocked = dict.fromkeys(range(100), 1)
    control_frames.block(range(100))
    for channel in range(1, 101):
        control_frames.confirm(channel, 1, 1)
    receive_channels.handle_blocked(0)
    rounds = 0
    sent: list[wire.Frame] = []
    while control_frames.pending:
        taken = control_frames.next_frames(ROOM)
        assert 0 < sum(map(len, taken[0])) <= ROOM
        sent += frames(taken)
        rounds += 1
    assert rounds > 3
    assert len(sent) == 1 + 1 + 100 + 1 + 100
    control_frames.ping()
    assert control_frames.next_frames(LARGEST_FRAME_BYTES - 1) == ([], [])
    assert control_frames.pending


def test_confirms_that_nobody_acknowledges_cost_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce_module, "MAX_CONFIRMS_WAITING", 3)
    control_frames, _, _ = parts()
    for channel in range(1, 11):
        control_frames.confirm(channel, 0, 0)
    sent = frames(control_frames.next_frames(ROOM))
    assert [frame.channel for frame in sent if isinstance(frame, wire.ConfirmFrame)] == [8, 9, 10]
    control_frames.repeat([("confirm", 1, 0), ("confirm", 9, 0)])
    assert frames(control_frames.next_frames(ROOM)) == [wire.ConfirmFrame(9, 0, 0)]


def test_a_confirm_that_is_all_there_is_to_say() -> None:
    control_frames, receive_channels, _ = parts()
    assert control_frames.next_lone() is None
    control_frames.confirm(1, 5, 2)
    assert control_frames.next_lone() == (1, 5, 2)
    assert not control_frames.pending
    control_frames.repeat([("confirm", 1, 5)])
    assert control_frames.next_lone() == (1, 5, 2)
    control_frames.handle_acked([("confirm", 1, 5)])
    control_frames.repeat([("confirm", 1, 5)])
    assert control_frames.next_lone() is None
    spoilers: list[Callable[[], None]] = [
        lambda: control_frames.confirm(2, 0, 0),
        control_frames.ping,
        lambda: control_frames.respond(b""),
        lambda: control_frames.block([1]),
        lambda: receive_channels.handle_blocked(0),
    ]
    for spoil in spoilers:
        control_frames.confirm(1, 6, 2)
        spoil()
        assert control_frames.next_lone() is None
        control_frames.next_frames(ROOM)
        assert not control_frames.pending


@pytest.mark.parametrize("seed", range(5))
def test_has_others_is_right_after_every_call(seed: int) -> None:
    control_frames, receive_channels, send_channels = parts()
    send_channels.blocked = dict.fromkeys(range(4), 1)
    rng = random.Random(seed)
    keys: list[ControlFrameKey] = []

    def send(room_bytes: int) -> None:
        keys.extend(control_frames.next_frames(room_bytes)[1])

    def send_lone() -> None:
        if (lone := control_frames.next_lone()) is not None:
            keys.append(("confirm", *lone[:2]))

    calls: list[Callable[[], object]] = [
        lambda: control_frames.confirm(rng.randrange(4), rng.randrange(3), 0),
        control_frames.ping,
        lambda: control_frames.respond(b""),
        lambda: control_frames.block(range(rng.randrange(3))),
        lambda: receive_channels.handle_blocked(0),
        lambda: control_frames.repeat(rng.sample(keys, min(len(keys), 2))),
        lambda: control_frames.handle_acked(rng.sample(keys, min(len(keys), 2))),
        lambda: send(LARGEST_FRAME_BYTES * rng.randrange(4)),
        lambda: send(ROOM),
        send_lone,
    ]
    seen = set()
    for _ in range(2000):
        rng.choice(calls)()
        others = (
            control_frames._ping
            or control_frames._pending_confirms
            or control_frames._responses
            or control_frames._blocked
        )
        assert control_frames.has_others is bool(others)
        assert control_frames.pending is (bool(others) or bool(receive_channels.pending_credits))
        seen.add(control_frames.has_others)
    assert seen == {True, False}
