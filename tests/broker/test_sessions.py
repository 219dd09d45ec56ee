"""Sessions in the order of their names, whatever comes and goes between two lists."""

from __future__ import annotations

import random

from godwit.broker.session import Session, Sessions


def test_sessions_are_listed_in_order_while_they_come_and_go() -> None:
    rng = random.Random(5)
    sessions = Sessions()
    for step in range(500):
        name = f"client-{rng.randrange(40)}"
        if name in sessions and rng.random() < 0.5:
            del sessions[name]
        else:
            sessions[name] = Session(name, 1, is_remembered=True)
        if step % 7 == 0:
            after = rng.choice([None, "client-2", "client-39", "a", "z"])
            expected = sorted(known for known in sessions if after is None or known > after)
            assert [session.name for session in sessions.after(after)] == expected


def test_a_session_that_is_replaced_is_listed_once() -> None:
    sessions = Sessions()
    sessions["a"] = Session("a", 1, is_remembered=True)
    assert len(list(sessions.after(None))) == 1
    newer = sessions["a"] = Session("a", 2, is_remembered=True)
    assert list(sessions.after(None)) == [newer]
