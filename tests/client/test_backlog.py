"""Packed batches: order, what is confirmed, what is sent again, what is dropped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from godwit.client.backlog import Backlog, Packed, cost_bytes
from godwit.limits import RECORD_COST_BYTES


def packed(sequence: int, count: int = 1, size: int = 10) -> Packed:
    return sequence, count, b"%03d" % sequence + bytes(size - 3)


def test_what_is_sent_is_kept_until_it_is_confirmed() -> None:
    backlog = Backlog()
    backlog.next_record = 1
    assert not backlog
    assert (backlog.first_sequence, backlog.first_waiting, backlog.last_record) == (None, None, None)
    for sequence in range(3):
        backlog.add(packed(sequence))
    backlog.mark_sent()
    backlog.mark_sent()
    assert (backlog.first_sequence, backlog.first_waiting, backlog.last_record) == (0, packed(2), 2)
    assert backlog.confirm(0) == 0
    assert backlog.confirm(1) == 10 + RECORD_COST_BYTES
    assert backlog.first_sequence == 1
    assert backlog.confirm(9) == 10 + RECORD_COST_BYTES
    assert backlog.first_sequence == 2
    assert backlog.waiting_bytes == 10


def test_only_waiting_ones_are_trimmed_and_one_always_stays() -> None:
    backlog = Backlog()
    for sequence in range(0, 10, 2):
        backlog.add(packed(sequence, count=2))
    backlog.mark_sent()
    assert backlog.trim(15) == (6, 3 * cost_bytes(packed(0)))
    assert backlog.first_waiting == packed(8, count=2)
    assert backlog.trim(0) == (0, 0)
    assert backlog.clear() == 2 * cost_bytes(packed(0))
    assert not backlog


@given(st.lists(st.sampled_from(["add", "send", "confirm", "break"]), max_size=60))
def test_nothing_is_lost_and_order_holds(steps: list[str]) -> None:
    backlog = Backlog()
    added = confirmed = 0
    for step in steps:
        if step == "add":
            backlog.add(packed(added))
            added += 1
        elif step == "send" and backlog.first_waiting is not None:
            backlog.mark_sent()
        elif step == "confirm" and backlog.last_record is not None:
            freed_bytes = backlog.confirm(backlog.last_record)
            confirmed += freed_bytes // cost_bytes(packed(0))
        elif step == "break":
            backlog.on_disconnected()
            backlog.next_record = 0
            assert backlog.waiting_bytes == 10 * (added - confirmed)
        assert backlog.first_sequence == (confirmed if confirmed < added else None)
    backlog.on_disconnected()
    rest = []
    while backlog.first_waiting is not None:
        rest.append(backlog.take()[0])
    assert rest == list(range(confirmed, added))
