"""One bound for the memory of unfinished records, over all connections of a server.

Each connection is bounded by its credit, but a server has thousands of them. Only records that are incomplete, or wait
for an earlier one, count here, at their real cost: a peer can leave them unfinished for as long as it likes. Complete
records are the application's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from godwit.limits import MAX_UNFINISHED_BYTES
from godwit.wire.control import Code

if TYPE_CHECKING:
    from godwit.transport.connection import Connection

REASON: Final = "too many unfinished records wait here: try again later"


class ReceiveBudget:
    """Feed: update."""

    __slots__ = ("_entropy", "_held", "limit_bytes", "used_bytes")

    def __init__(self, entropy: Callable[[int], bytes], limit_bytes: int = MAX_UNFINISHED_BYTES) -> None:
        self._entropy = entropy
        self._held: dict[Connection, int] = {}
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def update(self, connection: Connection, held_bytes: int, now: float) -> None:
        """Note what the unfinished records of a connection cost now; 0 when it has none or has ended.

        Beyond the bound connections are closed until the rest is within it. Their clients come back and send again.
        """
        known_bytes = self._held.get(connection, 0)
        if held_bytes == known_bytes:
            return
        self.used_bytes += held_bytes - known_bytes
        if held_bytes:
            self._held[connection] = held_bytes
        else:
            del self._held[connection]
        while self.used_bytes > self.limit_bytes:
            self._choose().close(now, Code.BUSY, REASON)

    def _choose(self) -> Connection:
        """Return the connection to close.

        First the one that holds most of those that are not admitted. Then one of those that hold more than the average,
        by chance: to take the greediest would always hit the long record that is closest to its end, and when many
        clients send long records at once, none would ever get through.
        """
        held = self._held
        strangers = [connection for connection in held if not connection.is_admitted]
        if strangers:
            return max(strangers, key=held.__getitem__)
        average = self.used_bytes // len(held)
        greedy = [connection for connection, held_bytes in held.items() if held_bytes >= average]
        return greedy[int.from_bytes(self._entropy(4), "big") % len(greedy)]
