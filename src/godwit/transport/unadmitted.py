"""Slots of connections whose application has not admitted them yet, on a server mostly those without a login.

To open a connection costs a stranger nothing. So these connections have a part of all slots, a newcomer takes the place
of the oldest one of the host that has most, and connections that were admitted are never touched.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address
from typing import Final

from godwit.limits import LOGIN_GRACE_S, MAX_UNADMITTED_PER_HOST
from godwit.transport.train import Address

SHARE: Final = 4
"""One in this many of all connections may be without a login."""


def host_of(address: Address) -> str:
    """Return what one host cannot choose freely: its IPv4 address, or the first 64 bits of its IPv6 address."""
    host = str(address[0])
    try:
        parsed = IPv6Address(host)
    except AddressValueError:
        return host
    return str(parsed.ipv4_mapped) if parsed.ipv4_mapped else parsed.packed[:8].hex()


class UnadmittedConnections:
    """Feed: add, remove. Look: has_room_for and victim."""

    __slots__ = ("_by_host", "_hosts", "_slots")

    def __init__(self, max_connections: int) -> None:
        self._slots = max(max_connections // SHARE, min(max_connections, MAX_UNADMITTED_PER_HOST))
        self._by_host: dict[str, dict[int, float]] = {}
        """The connections of each host, the oldest first, with the time when each was accepted."""
        self._hosts: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, connection_id: int, address: Address, now: float) -> None:
        host = host_of(address)
        self._hosts[connection_id] = host
        self._by_host.setdefault(host, {})[connection_id] = now

    def remove(self, connection_id: int) -> None:
        """Forget a connection that was admitted or has ended. May be repeated."""
        host = self._hosts.pop(connection_id, None)
        if host is not None:
            connections = self._by_host[host]
            del connections[connection_id]
            if not connections:
                del self._by_host[host]

    def is_full(self) -> bool:
        return len(self._hosts) >= self._slots

    def victim(self, address: Address, now: float, *, must_have: bool) -> int | None:
        """Return the connection that makes room for a newcomer from this address, or None.

        `must_have`: without it there is no slot for the newcomer. Within one host a connection has LOGIN_GRACE_S for
        its login before a newcomer takes its slot: else many clients that come back at once, behind one address, would
        push each other out for ever.
        """
        host = host_of(address)
        connections = self._by_host.get(host, {})
        if must_have:
            greediest = max(self._by_host.values(), key=len, default=connections)
            if len(greediest) > len(connections):
                return next(iter(greediest))
        elif len(connections) < MAX_UNADMITTED_PER_HOST:
            return None
        oldest = next(iter(connections), None)
        return oldest if oldest is not None and now - connections[oldest] >= LOGIN_GRACE_S else None
