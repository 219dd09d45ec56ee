"""The close is said a few times, and again to those who have not heard it, but not for ever."""

from __future__ import annotations

from godwit.transport.timers import LINGER_PROBE_TIMEOUTS, MAX_ANSWERS, REPEATS, ClosingState

CLOSE = b"the close frame"


def test_said_a_few_times_at_intervals() -> None:
    farewell = ClosingState(CLOSE, 10.0, 0.1)
    control_keys = []
    now = 10.0
    while now < farewell.ends_at:
        if farewell.next_frame(now) == CLOSE:
            control_keys.append(now)
        assert farewell.next_frame(now) is None
        then = farewell.next_timer()
        assert then > now
        now = then
    assert len(control_keys) == REPEATS
    assert control_keys[0] == 10.0
    assert now == farewell.ends_at == 10.0 + LINGER_PROBE_TIMEOUTS * 0.1


def test_not_before_its_time() -> None:
    farewell = ClosingState(CLOSE, 10.0, 0.1)
    assert farewell.next_frame(10.0) == CLOSE
    assert farewell.next_frame(10.05) is None
    assert farewell.next_frame(10.1) == CLOSE


def test_who_has_not_heard_it_is_told_at_once_but_not_for_ever() -> None:
    farewell = ClosingState(CLOSE, 10.0, 0.1)
    answers = 0
    for n in range(200):
        farewell.handle_packet(10.0 + n / 1000)
        answers += farewell.next_frame(10.0 + n / 1000) is not None
    assert MAX_ANSWERS <= answers <= MAX_ANSWERS + REPEATS


def test_silent_when_the_peer_has_closed() -> None:
    farewell = ClosingState(b"", 10.0, 0.1)
    assert not farewell.next_frame(10.0)
    assert farewell.next_timer() == farewell.ends_at


def test_a_close_that_is_sent_late_is_not_forgotten_before() -> None:
    """A busy process handles timers first: the peer would get a reset in place of the reason."""
    farewell = ClosingState(CLOSE, 10.0, 0.1)
    assert not farewell.is_over(20.0)
    assert farewell.next_frame(20.0) == CLOSE
    assert not farewell.is_over(20.1)
    assert farewell.is_over(20.0 + LINGER_PROBE_TIMEOUTS * 0.1)
