"""The close is said a few times, and again to those who have not heard it, but not for ever."""

from __future__ import annotations

from godwit.transport.farewell import LINGER_PROBE_TIMEOUTS, MAX_ANSWERS, REPEATS, Farewell

CLOSE = b"the close frame"


def test_said_a_few_times_at_intervals() -> None:
    farewell = Farewell(CLOSE, 10.0, 0.1)
    said = []
    now = 10.0
    while now < farewell.ends_at:
        if farewell.take(now) == CLOSE:
            said.append(now)
        assert farewell.take(now) is None
        then = farewell.next_timer()
        assert then > now
        now = then
    assert len(said) == REPEATS
    assert said[0] == 10.0
    assert now == farewell.ends_at == 10.0 + LINGER_PROBE_TIMEOUTS * 0.1


def test_not_before_its_time() -> None:
    farewell = Farewell(CLOSE, 10.0, 0.1)
    assert farewell.take(10.0) == CLOSE
    assert farewell.take(10.05) is None
    assert farewell.take(10.1) == CLOSE


def test_who_has_not_heard_it_is_told_at_once_but_not_for_ever() -> None:
    farewell = Farewell(CLOSE, 10.0, 0.1)
    answers = 0
    for n in range(200):
        farewell.on_packet(10.0 + n / 1000)
        answers += farewell.take(10.0 + n / 1000) is not None
    assert MAX_ANSWERS <= answers <= MAX_ANSWERS + REPEATS


def test_silent_when_the_peer_has_closed() -> None:
    farewell = Farewell(b"", 10.0, 0.1)
    assert not farewell.take(10.0)
    assert farewell.next_timer() == farewell.ends_at
