"""The pacer lets through what the rate allows, in trains, whatever the event loop's timers do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.transport.congestion import DEPTH_S, TRAIN_S, Pacer, train_bytes

LIMIT = 64_000


@given(st.integers(1200, 9000), st.floats(1e3, 1e10, allow_nan=False), st.integers(2 * 9000, LIMIT))
def test_a_train_is_a_millisecond_of_whole_datagrams(datagram: int, rate: float, limit: int) -> None:
    size = train_bytes(rate, datagram, limit)
    assert size % datagram == 0
    assert datagram <= size <= limit
    assert size <= max(rate * TRAIN_S, 2 * datagram)


@pytest.mark.parametrize("rate", [1e4, 1.25e6, 1.25e8])
@pytest.mark.parametrize("lateness_s", [0.0, 0.0004, 0.001])
def test_the_rate_is_kept(rate: float, lateness_s: float) -> None:
    pacer = Pacer(0.0)
    size = train_bytes(rate, 1400, LIMIT)
    now = 0.0
    sent = 0
    duration_s = 2000 * size / rate
    while now < duration_s:
        room = pacer.room_bytes(now, rate, size)
        if room >= size:
            pacer.bucket_bytes -= size
            sent += size
        else:
            then = pacer.ready_at(rate, size)
            assert then > now
            now = then + lateness_s
    expected = rate * duration_s
    assert sent == pytest.approx(expected, rel=0.01)


def test_a_pause_buys_no_burst() -> None:
    rate, size = 1e6, 2800
    pacer = Pacer(0.0)
    room = pacer.room_bytes(100.0, rate, size)
    assert size <= room <= size + 2 * DEPTH_S * rate + 1


def test_ready_is_ready() -> None:
    """A timer set for the exact moment does not come too early by a rounding error."""
    pacer = Pacer(0.0)
    rate, size = 1_234_567.0, 2800
    now = 1e6
    for _ in range(1000):
        while pacer.room_bytes(now, rate, size) >= size:
            pacer.bucket_bytes -= size
        now = pacer.ready_at(rate, size)
        assert pacer.room_bytes(now, rate, size) >= size


def test_what_goes_outside_its_control_is_paid_back() -> None:
    pacer = Pacer(0.0)
    rate, size = 1e6, 2800
    pacer.room_bytes(0.0, rate, size)
    pacer.bucket_bytes -= 100_000
    assert pacer.room_bytes(0.0, rate, size) < 0
    assert pacer.ready_at(rate, size) == pytest.approx(0.1, rel=0.05)
