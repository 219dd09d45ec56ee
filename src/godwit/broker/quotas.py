"""Who a retained message or a topic counts for: no client may have all of what is there for everybody.

A client counts by its name. Names that are not proved are free, so clients without a proved name count together as one
on a broker whose access rules list names; on one that lists none, only the nameless clients do. A retained message
carries its publisher's name, also in the log, so what counts for a client outlives a restart. A topic does not: it
counts for the client that created it and, after a restart, for the first one that publishes to it again.
"""

from __future__ import annotations

from typing import Final

from godwit.broker.access import Access
from godwit.broker.session import ANONYMOUS

UNPROVED: Final = ""
"""The owner of what clients without a proved name have."""


def owner_of(name: str, access: Access) -> str:
    """Return the name that something of this client counts for, or UNPROVED."""
    if access.secrets:
        return name if name in access.secrets else UNPROVED
    return UNPROVED if name.startswith(ANONYMOUS) else name


class Usage:
    """How much each owner has of something."""

    def __init__(self) -> None:
        self._amounts: dict[str, int] = {}

    def of(self, owner: str) -> int:
        return self._amounts.get(owner, 0)

    def add(self, owner: str, amount: int) -> None:
        """Add an amount, or take it away if it is negative."""
        amount += self._amounts.pop(owner, 0)
        if amount:
            self._amounts[owner] = amount

    def clear(self) -> None:
        self._amounts.clear()


def over_quota(owner: str, what: str, limit: int, key: str, advice: str) -> str:
    """Return the text of the error: whose quota of what it is, how large, and what to do."""
    who = f"client {owner!r}" if owner else "all clients together that have not proved a name"
    return f"{who} may have at most {limit:,} {what} on this broker: {advice}, or have its operator raise limits.{key}"
