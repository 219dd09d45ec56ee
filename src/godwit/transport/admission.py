"""The limits of a server on connections that the application has not admitted, and on unfinished records.

Opening a connection costs an attacker nothing. Connections without a login may therefore use only a share of all slots:
a new one replaces the oldest of the host that has the most. Admitted connections are never closed for this.

The receive budget bounds the memory of unfinished records over all connections of a server. Credit bounds each
connection, but a server has thousands of them. Records that are incomplete, or that wait for an earlier record, count
here at their real cost, because a peer can leave them unfinished indefinitely. Complete records belong to the
application.

Handshakes wait in a queue (HandshakeQueue) when more arrive than a server handles in a turn, so that clients which
reconnect all at once do not delay the open connections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from ipaddress import AddressValueError, IPv6Address
from math import inf
from typing import TYPE_CHECKING, Final

from godwit.limits import (
    HANDSHAKE_STALE_S,
    LOGIN_GRACE_S,
    MAX_CONNECTS_WAITING,
    MAX_HELLOS_WAITING,
    MAX_LOGINS_AT_ONCE,
    MAX_UNADMITTED_PER_HOST,
    MAX_UNFINISHED_BYTES,
)
from godwit.transport.events import Address
from godwit.wire.control_base import Code
from godwit.wire.packet import HEADER, HELLO, NONCE_BYTES, ConnectFrame, HelloFrame

if TYPE_CHECKING:
    from godwit.transport.connection import Connection

SHARE: Final = 4
"""One connection in SHARE may be without a login, and one waiting connect in SHARE may be of the same host."""


def host_of(address: Address) -> str:
    """Return the part of an address that a host cannot choose: its IPv4 address, or the first 64 bits of its IPv6
    address."""
    host = str(address[0])
    if ":" not in host:
        return host
    try:
        parsed = IPv6Address(host)
    except AddressValueError:
        return host
    return str(parsed.ipv4_mapped) if parsed.ipv4_mapped else parsed.packed[:8].hex()


class UnadmittedConnections:
    """The slots of connections that the application has not admitted, by host."""

    __slots__ = ("_by_host", "_hosts", "_slots", "removals")

    def __init__(self, max_connections: int) -> None:
        self.removals = 0
        """How many connections were removed so far."""
        self._slots = max(max_connections // SHARE, min(max_connections, MAX_UNADMITTED_PER_HOST))
        self._by_host: dict[str, dict[int, float]] = {}
        """The time when each connection was accepted, by host and connection id, oldest first."""
        self._hosts: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, connection_id: int, address: Address, now: float) -> None:
        host = host_of(address)
        self._hosts[connection_id] = host
        self._by_host.setdefault(host, {})[connection_id] = now

    def remove(self, connection_id: int) -> None:
        """Remove a connection that was admitted or has ended. Does nothing if it is not here."""
        host = self._hosts.pop(connection_id, None)
        if host is not None:
            self.removals += 1
            connections = self._by_host[host]
            del connections[connection_id]
            if not connections:
                del self._by_host[host]

    def is_full(self) -> bool:
        return len(self._hosts) >= self._slots

    def free_at(self, host: str, now: float) -> float:
        """Return when another connection of this host can be accepted without work that is lost: now, or later.

        A client that is accepted long before it can log in may be evicted meanwhile, and would have to begin again.
        """
        connections = self._by_host.get(host)
        if connections is None or len(connections) < MAX_LOGINS_AT_ONCE:
            return now
        return max(now, next(iter(connections.values())) + LOGIN_GRACE_S)

    def victim(self, address: Address, now: float, *, must_have: bool) -> int | None:
        """Return the connection to close in favour of a new one from this address, or None.

        `must_have`: the new connection has no slot without a victim. A connection keeps its slot against
        others of its own host for LOGIN_GRACE_S: otherwise many clients that reconnect at once from behind one address
        would evict each other forever.
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
        # The same sum as in free_at: a difference could be rounded down.
        return oldest if oldest is not None and now >= connections[oldest] + LOGIN_GRACE_S else None


class HandshakeQueue:
    """Hellos and connects that wait for their turn, each client once.

    Hosts with connects take turns. When the queue is full, the host with the most connects makes room for one with
    fewer, so that it keeps no other host out. For hellos this would be useless, because their senders can forge any
    address. Packets that their clients no longer repeat are stale: answers to them would be wasted.
    """

    __slots__ = ("_connects_of_host", "_hosts_by_count", "_largest_count", "connects", "hellos")

    def __init__(self) -> None:
        self.hellos: dict[tuple[bytes, Address], float] = {}
        """When each client last sent its hello, by the connection id and nonce in it and its address, the oldest
        first. A copy from another address does not redirect the answer: any observer could send one."""
        self.connects: dict[bytes, tuple[ConnectFrame, Address, float]] = {}
        self._connects_of_host: dict[str, dict[bytes, None]] = {}
        """The keys of all connects, by host, the next host first."""
        self._hosts_by_count: defaultdict[int, dict[str, None]] = defaultdict(dict)
        """The hosts that have this number of connects."""
        self._largest_count = 0
        """No host has more connects than this."""

    def __len__(self) -> int:
        return len(self.hellos) + len(self.connects)

    def is_repeat(self, packet: bytes, address: Address, now: float) -> bool:
        """Return whether this packet without a connection repeats a handshake that waits already."""
        key = packet[_KEY_START:_KEY_STOP]
        waiting = self.connects.get(key)
        if waiting is not None:
            if waiting[1] != address:
                return False
            self.connects[key] = waiting[0], address, now
            return True
        if packet[HEADER.size] != HELLO or (key, address) not in self.hellos:
            return False
        self.hellos[key, address] = now
        return True

    def add_hello(self, hello: HelloFrame, address: Address, now: float) -> bool:
        """Add it; return False if the queue is full."""
        hellos = self.hellos
        key = _key_of(hello), address
        if len(hellos) >= MAX_HELLOS_WAITING and key not in hellos:
            oldest = next(iter(hellos))
            if now - hellos[oldest] <= HANDSHAKE_STALE_S:
                return False
            del hellos[oldest]
        hellos[key] = now
        return True

    def add_connect(self, connect: ConnectFrame, address: Address, now: float) -> bool:
        """Add it; return False if all slots for its host are taken."""
        key = _key_of(connect)
        former = self.connects.get(key)
        if former is not None:
            self._remove(key, host_of(former[1]))
        host = host_of(address)
        count = len(self._connects_of_host.get(host, ()))
        if count >= MAX_CONNECTS_WAITING // SHARE or not self._has_slot(count):
            return False
        self.connects[key] = connect, address, now
        self._connects_of_host.setdefault(host, {})[key] = None
        self._count(host, count, count + 1)
        return True

    def _has_slot(self, count: int) -> bool:
        """Return whether a host with `count` connects may have another one, if necessary in place of the newest one of
        the host with the most."""
        if len(self.connects) < MAX_CONNECTS_WAITING:
            return True
        while not self._hosts_by_count[self._largest_count]:
            del self._hosts_by_count[self._largest_count]
            self._largest_count -= 1
        if self._largest_count <= count + 1:
            return False
        host = next(iter(self._hosts_by_count[self._largest_count]))
        self._remove(next(reversed(self._connects_of_host[host])), host)
        return True

    def next_connect(self, free_at: Callable[[str, float], float], now: float) -> tuple[ConnectFrame, Address] | float:
        """Remove and return the next connect of a free host. If all hosts are busy, return when one will be free.

        `free_at`: see UnadmittedConnections. Without any connect, the result is infinite.
        """
        hosts = self._connects_of_host
        while True:
            earliest = inf
            for host in hosts:
                at = free_at(host, now)
                if at <= now:
                    break
                earliest = min(earliest, at)
            else:
                return earliest
            keys = hosts[host] = hosts.pop(host)  # the other hosts have their turn first
            while keys:
                connect, address, sent_at = self._remove(next(iter(keys)), host)
                if now - sent_at <= HANDSHAKE_STALE_S:
                    return connect, address

    def next_hello(self, now: float) -> tuple[HelloFrame, Address] | None:
        """Remove and return the oldest hello that is not stale; None without any."""
        hellos = self.hellos
        while hellos:
            oldest = next(iter(hellos))
            sent_at = hellos.pop(oldest)
            if now - sent_at <= HANDSHAKE_STALE_S:
                key, address = oldest
                return HelloFrame(int.from_bytes(key[:8], "big"), key[8:]), address
        return None

    def _remove(self, key: bytes, host: str) -> tuple[ConnectFrame, Address, float]:
        keys = self._connects_of_host[host]
        del keys[key]
        self._count(host, len(keys) + 1, len(keys))
        if not keys:
            del self._connects_of_host[host]
        return self.connects.pop(key)

    def _count(self, host: str, before: int, after: int) -> None:
        """Note that the number of connects of a host has changed."""
        if before:
            del self._hosts_by_count[before][host]
        if after:
            self._hosts_by_count[after][host] = None
            self._largest_count = max(self._largest_count, after)


_KEY_START: Final = HEADER.size + 1
_KEY_STOP: Final = _KEY_START + 8 + NONCE_BYTES
"""The connection id and nonce of a client: they follow the type of both frames."""


def _key_of(frame: HelloFrame | ConnectFrame) -> bytes:
    return frame.connection_id.to_bytes(8, "big") + frame.nonce


REASON: Final = "too many unfinished records wait here: try again later"


class ReceiveBudget:
    """The memory that unfinished records of all connections may use together."""

    __slots__ = ("_entropy", "held", "limit_bytes", "used_bytes")

    def __init__(self, entropy: Callable[[int], bytes], limit_bytes: int = MAX_UNFINISHED_BYTES) -> None:
        self._entropy = entropy
        self.held: dict[Connection, int] = {}
        """The cost of the unfinished records of each connection that has any."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def update(self, connection: Connection, held_bytes: int, now: float) -> None:
        """Set the cost of the unfinished records of a connection; 0 if it has none or has ended.

        Close connections while the total exceeds the limit. Their clients reconnect and send again.
        """
        known_bytes = self.held.get(connection, 0)
        if held_bytes == known_bytes:
            return
        self.used_bytes += held_bytes - known_bytes
        if held_bytes:
            self.held[connection] = held_bytes
        else:
            del self.held[connection]
        while self.used_bytes > self.limit_bytes:
            self._choose().close(now, Code.BUSY, REASON)

    def _choose(self) -> Connection:
        """Return the connection to close.

        Prefer the connection with the highest cost among unadmitted connections. Otherwise choose at random among
        those above the average: choosing the highest cost would always hit the long record that is closest to
        completion, and of many clients that send long records at once none would ever finish.
        """
        held = self.held
        strangers = [connection for connection in held if not connection.is_admitted]
        if strangers:
            return max(strangers, key=held.__getitem__)
        average = self.used_bytes // len(held)
        greedy = [connection for connection, held_bytes in held.items() if held_bytes >= average]
        return greedy[int.from_bytes(self._entropy(4), "big") % len(greedy)]
