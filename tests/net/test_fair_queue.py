"""The queue between threads: turns, waiting, the end."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from godwit.net.fair_queue import FairQueue

PATIENCE_S = 20.0


def drain(queue: FairQueue[int], count: int) -> list[int | None]:
    return [queue.get() for _ in range(count)]


def test_everybody_has_a_turn_and_each_line_keeps_its_order() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(4):
        queue.put("greedy", number)
    queue.put("modest", 100)
    queue.put("late", 200)
    queue.put("modest", 101)
    assert drain(queue, 7) == [0, 100, 200, 1, 101, 2, 3]


def test_who_comes_while_others_wait_has_to_let_each_of_them_go_once() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(1000):
        queue.put("greedy", number)
    assert queue.get() == 0
    queue.put("modest", 5000)
    assert drain(queue, 3) == [1, 5000, 2]


def test_who_gets_waits_for_what_comes_and_for_the_end() -> None:
    queue: FairQueue[int] = FairQueue()
    got: SimpleQueue[int | None] = SimpleQueue()

    def take() -> None:
        for item in drain(queue, 3):
            got.put(item)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    queue.put("one", 1)
    queue.put("two", 2)
    while queue._lines:
        threading.Event().wait(0.001)
    assert got.empty()  # it waits for the third
    queue.end()
    assert [got.get(timeout=PATIENCE_S) for _ in range(3)] == [1, 2, None]
    thread.join(PATIENCE_S)


def test_the_end_comes_at_once_whatever_waits() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.put("one", 1)
    queue.end()
    assert queue.get() is None
    assert queue.get() is None
