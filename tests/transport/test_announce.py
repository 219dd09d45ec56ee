"""Announcements: the newest value under a key is said, and said again when its packet was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from godwit.transport import announce as announce_module
from godwit.transport.announce import LARGEST_FRAME_BYTES, MAX_RESPONSES, Announcements
from godwit.transport.arq import SelectiveRepeat
from godwit.transport.config import EndpointConfig
from godwit.transport.receive import ReceiveHalf
from godwit.transport.send import SendHalf
from godwit.wire import frames as wire

ROOM = 1183


def parts() -> tuple[Announcements, ReceiveHalf, SendHalf]:
    receiving = ReceiveHalf(EndpointConfig(channel_window_bytes=4000, connection_window_bytes=8000), Counter())
    sending = SendHalf(SelectiveRepeat(), send_buffer_bytes=10**6)
    return Announcements(receiving, sending), receiving, sending


def frames(taken: tuple[list[bytes], object]) -> list[wire.Frame]:
    return [frame for encoded in taken[0] for frame in wire.decode_frames(encoded)]


def test_nothing_to_say() -> None:
    announcements, _, _ = parts()
    assert not announcements.pending
    assert announcements.take(ROOM) == ([], [])


def test_a_ping_is_said_once() -> None:
    announcements, _, _ = parts()
    announcements.ping()
    announcements.ping()
    assert announcements.pending
    assert frames(announcements.take(ROOM)) == [wire.Ping()]
    assert not announcements.pending


def test_of_a_confirm_the_newest_is_said_until_it_arrived() -> None:
    announcements, _, _ = parts()
    announcements.confirm(1, 5, 2)
    announcements.confirm(1, 6, 3)
    announcements.confirm(2, 1, 0)
    taken = announcements.take(ROOM)
    assert frames(taken) == [wire.Confirm(1, 6, 3), wire.Confirm(2, 1, 0)]
    assert not announcements.pending
    announcements.confirm(1, 7, 1)
    announcements.repeat(taken[1])
    again = announcements.take(ROOM)
    assert frames(again) == [wire.Confirm(1, 7, 1), wire.Confirm(2, 1, 0)]
    announcements.on_acked(taken[1])
    announcements.repeat(again[1])
    third = announcements.take(ROOM)
    assert frames(third) == [wire.Confirm(1, 7, 1)]
    announcements.on_acked(third[1])
    announcements.repeat(third[1])
    assert not announcements.pending


def test_a_confirm_that_arrived_before_it_was_said_again_is_not() -> None:
    announcements, _, _ = parts()
    announcements.confirm(1, 5, 2)
    _, keys = announcements.take(ROOM)
    announcements.repeat(keys)
    assert announcements.pending
    announcements.on_acked(keys)
    assert not announcements.pending


def test_credit_is_said_again_with_its_newest_value() -> None:
    announcements, receiving, _ = parts()
    receiving.on_fragment(1, 0, 0, bytes(1500), is_last=True, ends_channel=False)
    receiving.consume(1, 1500)
    taken = announcements.take(ROOM)
    assert wire.Credit(1, 4000 + 1628) in frames(taken)
    receiving.on_fragment(1, 1, 0, bytes(10), is_last=True, ends_channel=False)
    receiving.consume(1, 10)
    announcements.repeat(taken[1])
    assert wire.Credit(1, 4000 + 1628 + 138) in frames(announcements.take(ROOM))
    announcements.on_acked(taken[1])
    assert not announcements.pending


def test_blocked_is_said_only_while_it_is_true() -> None:
    announcements, _, sending = parts()
    sending.blocked = {1: 4000}
    announcements.block([0, 1])
    assert announcements.pending
    assert frames(announcements.take(ROOM)) == [wire.Blocked(1, 4000)]
    assert not announcements.pending


def test_responses_are_few_and_first() -> None:
    announcements, _, _ = parts()
    announcements.ping()
    for n in range(20):
        if announcements.takes_response:
            announcements.respond(wire.encode_frame(wire.PathResponse(bytes((n,)) * 8, bytes(16))))
    said = frames(announcements.take(ROOM))
    assert len(said) == MAX_RESPONSES + 1
    assert said[-1] == wire.Ping()
    assert not announcements.pending


def test_what_does_not_fit_waits() -> None:
    announcements, receiving, sending = parts()
    announcements.ping()
    announcements.respond(wire.encode_frame(wire.PathResponse(bytes(8), bytes(16))))
    sending.blocked = dict.fromkeys(range(100), 1)
    announcements.block(range(100))
    for channel in range(1, 101):
        announcements.confirm(channel, 1, 1)
    receiving.on_blocked(0)
    rounds = 0
    said: list[wire.Frame] = []
    while announcements.pending:
        taken = announcements.take(ROOM)
        assert 0 < sum(map(len, taken[0])) <= ROOM
        said += frames(taken)
        rounds += 1
    assert rounds > 3
    assert len(said) == 1 + 1 + 100 + 1 + 100
    announcements.ping()
    assert announcements.take(LARGEST_FRAME_BYTES - 1) == ([], [])
    assert announcements.pending


def test_confirms_that_nobody_acknowledges_cost_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce_module, "MAX_CONFIRMS_WAITING", 3)
    announcements, _, _ = parts()
    for channel in range(1, 11):
        announcements.confirm(channel, 0, 0)
    said = frames(announcements.take(ROOM))
    assert [frame.channel for frame in said if isinstance(frame, wire.Confirm)] == [8, 9, 10]
    announcements.repeat([("confirm", 1, 0), ("confirm", 9, 0)])
    assert frames(announcements.take(ROOM)) == [wire.Confirm(9, 0, 0)]


def test_a_confirm_that_is_all_there_is_to_say() -> None:
    announcements, receiving, _ = parts()
    assert announcements.take_lone() is None
    announcements.confirm(1, 5, 2)
    assert announcements.take_lone() == (1, 5, 2)
    assert not announcements.pending
    announcements.repeat([("confirm", 1, 5)])
    assert announcements.take_lone() == (1, 5, 2)
    announcements.on_acked([("confirm", 1, 5)])
    announcements.repeat([("confirm", 1, 5)])
    assert announcements.take_lone() is None
    spoilers: list[Callable[[], None]] = [
        lambda: announcements.confirm(2, 0, 0),
        announcements.ping,
        lambda: announcements.respond(b""),
        lambda: announcements.block([1]),
        lambda: receiving.on_blocked(0),
    ]
    for spoil in spoilers:
        announcements.confirm(1, 6, 2)
        spoil()
        assert announcements.take_lone() is None
        announcements.take(ROOM)
        assert not announcements.pending
