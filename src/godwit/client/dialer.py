"""Connect to one of several addresses: a round of attempts, a pause, the next round.

Within a round the addresses are tried one after another with a short delay, and the first connection that opens is
used: a host name may resolve to several addresses of which only some lead to the broker. An attempt repeats its first
packet twice a second for as long as the transport allows, so a client started before its broker connects soon after
the broker is up.

Some of several brokers may refuse the client while others are away for a moment. A broker that has refused is left out
until one of the others has accepted the client or failed to answer. Several addresses may lead to the same broker.

A standby of a cluster refuses all clients until it is active. After its answer the pauses are short, and a round does
not wait for addresses that do not answer.

A client whose broker does not answer tries the other addresses beside the present connection (`apart_from`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from math import inf
from typing import Final, Protocol

from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address

NEXT_ADDRESS_S: Final = 0.25
"""Delay before the next address of a round is tried too (as RFC 8305 recommends)."""
RESTART_SPREAD_S: Final = 1.0
"""All clients of a broker that was stopped or restarted reconnect at the same time: their pauses are spread at least
over this range."""

STANDBY_PAUSE_S: Final = 0.6
"""Longest pause after a standby of a cluster has answered: one of them takes over within seconds."""
STANDBY_S: Final = 5.0
"""The pauses are short for this time after its answer."""


class Random(Protocol):
    """The part of `random.Random` that a client needs."""

    def random(self) -> float: ...


class Backoff:
    """The pause before the next attempt to connect.

    A pause is random between `shortest_s` and a bound that doubles with each failure, up to `longest_s`. Drawing from
    the whole range spreads the clients out that reconnect after a broker's restart.
    """

    def __init__(self, shortest_s: float, longest_s: float, random: Random) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._random = random
        self._bound_s = shortest_s

    def short_pause_s(self, longest_s: float) -> float:
        """Return a pause up to this one, without counting a failure."""
        longest_s = min(max(longest_s, self._shortest_s), self._longest_s)
        return self._shortest_s + (longest_s - self._shortest_s) * self._random.random()

    def next_pause_s(self, *, spread_s: float = 0.0) -> float:
        """Count a failure and return the pause that follows it, drawn from a range that ends at `spread_s` or later."""
        self._bound_s = min(2 * self._bound_s, self._longest_s)
        bound_s = min(max(self._bound_s, spread_s), self._longest_s)
        return self._shortest_s + (bound_s - self._shortest_s) * self._random.random()

    def reset(self) -> None:
        """Forget the failures so far, after a connection that lasted."""
        self._bound_s = self._shortest_s


class Dialer:
    """Makes the attempts to connect and reports which of them succeeded.

    Input: set_addresses, apart_from, begin, retry, stop, handle_*. Getters: is_dialing, is_refused_by_all, has_others,
    due_at.
    """

    def __init__(self, endpoint: Endpoint, backoff: Backoff) -> None:
        self.due_at: float | None = None
        """When to call handle_timers."""
        self.apart_from: Address | None = None
        """An address that rounds leave out: that of the connection beside which the other brokers are tried."""
        self._endpoint = endpoint
        self._backoff = backoff
        self._addresses: deque[Address] = deque()
        self._brokers: Mapping[Address, Hashable] = {}
        self._refused_by: set[Hashable] = set()
        """The brokers that have refused the client since the last other outcome."""
        self._untried: deque[Address] = deque()
        """Addresses of the present round that were not tried yet."""
        self._attempts: dict[int, Connection] = {}
        self._standby_until = -inf

    @property
    def is_dialing(self) -> bool:
        """Whether an attempt is under way."""
        return bool(self._attempts)

    @property
    def is_refused_by_all(self) -> bool:
        """Whether every broker has refused the client."""
        return all(self._broker_of(address) in self._refused_by for address in self._addresses)

    def has_others(self, address: Address) -> bool:
        """Whether there is another address than this one."""
        return any(other != address for other in self._addresses)

    def set_addresses(self, addresses: Sequence[Address], brokers: Mapping[Address, Hashable] | None = None) -> None:
        """Replace the addresses, from the next round on. The same ones keep their order, so that all get their turn.

        Addresses that are not among them are not tried any more, also in the present round.

        `brokers` has the broker of each address; an address without an entry is a broker of its own.
        """
        self._brokers = {} if brokers is None else brokers
        if set(addresses) != set(self._addresses):
            self._addresses = deque(addresses)
            self._untried = deque([address for address in self._untried if address in addresses])

    def begin(self, now: float) -> None:
        """Begin a round at once. Each round begins with another address."""
        wanted = [address for address in self._addresses if address != self.apart_from]
        accepting = [address for address in wanted if self._broker_of(address) not in self._refused_by]
        dialed = [connection.peer_address for connection in self._attempts.values()]
        chosen = accepting or wanted or list(self._addresses)
        self._untried = deque([address for address in chosen if address not in dialed])
        self._addresses.rotate(-1)
        if self._untried:
            self._dial(now)

    def retry(self, now: float, *, is_restart: bool = False) -> float:
        """Schedule the next round, and return the pause before it in seconds.

        `is_restart`: the broker was stopped or restarted, so all of its clients reconnect.
        """
        if now < self._standby_until:
            pause_s = self._backoff.short_pause_s(STANDBY_PAUSE_S)
        else:
            pause_s = self._backoff.next_pause_s(spread_s=RESTART_SPREAD_S if is_restart else 0.0)
        self.due_at = now + pause_s
        return pause_s

    def stop(self, now: float) -> None:
        """Cancel all attempts and timers."""
        self.due_at = None
        self._untried.clear()
        attempts = list(self._attempts.values())
        self._attempts.clear()
        for connection in attempts:
            connection.close(now)

    def handle_timers(self, now: float) -> None:
        """Try the next address, or begin the next round, if that is due."""
        if self.due_at is not None and now >= self.due_at:
            self.due_at = None
            if self._untried:
                self._dial(now)
            else:
                self.begin(now)

    def handle_connected(self, connection: Connection, now: float) -> bool:
        """Return whether this connection is to be used: the first of its round. The other attempts are cancelled."""
        if self._attempts.pop(connection.id, None) is None:
            return False
        self.stop(now)
        return True

    def handle_closed(self, connection: Connection, now: float) -> bool:
        """Return whether this was an attempt, and the last one of its round."""
        if self._attempts.pop(connection.id, None) is None:
            return False
        if self._untried:
            self._dial(now)
        elif self._attempts and self.due_at is None:
            self._retry_standbys(now)
        return not self._attempts

    def handle_standby(self, now: float) -> None:
        """Note that a standby of a cluster has answered."""
        self._standby_until = now + STANDBY_S

    def handle_refused(self, address: Address) -> None:
        """Note that the broker at this address has refused the client."""
        self._refused_by.add(self._broker_of(address))

    def forget_refusals(self) -> None:
        """Try all brokers again, from the next round on."""
        self._refused_by.clear()

    def _broker_of(self, address: Address) -> Hashable:
        return self._brokers.get(address, address)

    def _dial(self, now: float) -> None:
        connection = self._endpoint.connect(self._untried.popleft(), now)
        self._attempts[connection.id] = connection
        self.due_at = now + NEXT_ADDRESS_S if self._untried else None
        if not self._untried:
            self._retry_standbys(now)

    def _retry_standbys(self, now: float) -> None:
        """Schedule the next round while attempts are under way: a broker that was lost may never answer."""
        if now < self._standby_until:
            self.retry(now)
