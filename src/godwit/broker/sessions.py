"""All sessions of a broker by name, and in the order of their names."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from godwit.broker.session import Session


class Sessions(dict[str, Session]):
    """Sessions by name. `after` walks them in order without looking at the others."""

    def __init__(self) -> None:
        super().__init__()
        self._order: list[str] | None = None
        """Sorted names, once a client has asked for a list; from then on kept up to date."""

    def __setitem__(self, name: str, session: Session) -> None:
        if self._order is not None and name not in self:
            insort(self._order, name)
        super().__setitem__(name, session)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        if self._order is not None:
            del self._order[bisect_left(self._order, name)]

    def after(self, name: str | None) -> Iterator[Session]:
        """Yield the sessions with names after `name` (None: all), in order. Stop before one is added or removed."""
        if self._order is None:
            self._order = sorted(self)
        order = self._order
        for at in range(0 if name is None else bisect_right(order, name), len(order)):
            yield self[order[at]]
