"""All sessions of a broker by name and in the order of their names, and how many each host has."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from godwit.broker.quotas import Usage
from godwit.broker.session import Session


class Sessions(dict[str, Session]):
    """Sessions by name. `after` walks them in order without looking at the others."""

    def __init__(self) -> None:
        super().__init__()
        self._order: list[str] | None = None
        """Sorted names, once a client has asked for a list; from then on kept up to date."""
        self._of_hosts = Usage()

    def __setitem__(self, name: str, session: Session) -> None:
        former = self.get(name)
        if former is not None:
            self._count(former, -1)
        elif self._order is not None:
            insort(self._order, name)
        super().__setitem__(name, session)
        self._count(session, 1)

    def move(self, session: Session, host: str) -> None:
        """Count a session for the host that its client comes from now; "" if the client has proved its name."""
        is_here = self.get(session.name) is session
        if is_here:
            self._count(session, -1)
        session.host = host
        if is_here:
            self._count(session, 1)

    def of_host(self, host: str) -> int:
        """Return how many sessions with a chosen name that was not proved this host has."""
        return self._of_hosts.of(host)

    def _count(self, session: Session, by: int) -> None:
        if session.host and session.is_remembered:
            self._of_hosts.add(session.host, by)

    def __delitem__(self, name: str) -> None:
        session = self[name]
        super().__delitem__(name)
        self._count(session, -1)
        if self._order is not None:
            del self._order[bisect_left(self._order, name)]

    def after(self, name: str | None) -> Iterator[Session]:
        """Yield the sessions with names after `name` (None: all), in order. Stop before one is added or removed."""
        if self._order is None:
            self._order = sorted(self)
        order = self._order
        for at in range(0 if name is None else bisect_right(order, name), len(order)):
            yield self[order[at]]
