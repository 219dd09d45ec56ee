"""A queue between threads in which everybody has a line of their own, and the lines have their turns.

Who asks for much waits for it alone: the others' next question stands behind one of theirs, not behind all of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Any thread may call anything."""

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        """By their owners, the one whose turn it is first; none is empty."""
        self._changed = threading.Condition()
        self._has_ended = False

    def put(self, owner: Hashable, item: Item) -> None:
        with self._changed:
            self._lines.setdefault(owner, deque()).append(item)
            self._changed.notify()

    def get(self) -> Item | None:
        """Waits for one. None: the queue has ended, whatever is in it."""
        with self._changed:
            while not self._has_ended:
                if self._lines:
                    owner, line = self._lines.popitem(last=False)
                    item = line.popleft()
                    if line:
                        self._lines[owner] = line
                    return item
                self._changed.wait()
            return None

    def end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
