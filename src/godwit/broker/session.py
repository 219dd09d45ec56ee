"""Sessions: the state that outlives a connection under a client's name."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from hashlib import sha256
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any, Final

from godwit.broker.access import Access, Action
from godwit.broker.ports import RequestFailure
from godwit.broker.quotas import ANONYMOUS, Usage
from godwit.errors import UsageError
from godwit.limits import MAX_CLIENT_NAME_BYTES
from godwit.wire.control import Will
from godwit.wire.control_base import Code
from godwit.wire.filters import GROUP_PREFIX

if TYPE_CHECKING:
    from godwit.broker.ports import Peer
    from godwit.broker.subscription import BrokerSubscription

_BAD_IN_NAME: Final = re.compile(r"[\x00-\x1f\x7f]")


def check_name(name: str) -> None:
    """Raise UsageError if the name is not valid for a client, a cursor or a query."""
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= MAX_CLIENT_NAME_BYTES:
        raise UsageError(f"a name of {size} bytes: it has 1 to {MAX_CLIENT_NAME_BYTES}")
    if _BAD_IN_NAME.search(name) or name.startswith("$"):
        raise UsageError(f"the name {name!r} has a control character or begins with '$': choose another")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the name {name!r} is no valid Unicode text: choose another") from None


def is_group_session(name: str) -> bool:
    """Return whether this is the name of the session of a consumer group, see godwit.broker.groups."""
    return name.startswith(GROUP_PREFIX)


def made_name(instance: bytes) -> str:
    """Return the name of a client that has none: the same over its reconnects. It does not reveal the instance."""
    return ANONYMOUS + sha256(b"godwit nameless" + instance).hexdigest()[:16]


def network_of(host: str) -> str:
    """Return the key of a client's quotas: its IPv4 address, or the 64-bit network of its IPv6 address."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))


def check_chosen(name: str) -> None:
    """Raise UsageError if a client may not choose this name: the broker chooses such names."""
    if name.startswith(ANONYMOUS):
        raise UsageError(f"the name {name!r} begins with {ANONYMOUS!r}, as those that the broker makes: choose another")


class Session:
    """A client's name, with its subscriptions, its will and its connection."""

    __slots__ = (
        "ends_at_us", "expiry_s", "filter_levels", "host", "instance", "is_awaited", "is_proved", "is_remembered",
        "is_stored", "messages_in", "name", "peer", "principal", "publisher_number", "subscriptions", "will",
        "will_delay_s", "will_due_us", "will_extension",
    )  # fmt: skip

    def __init__(self, name: str, publisher_number: int, *, is_remembered: bool) -> None:
        self.name = name
        self.principal = name
        """The name whose rights the client has: that of a user, in a protocol that has users."""
        self.publisher_number = publisher_number
        self.is_remembered = is_remembered
        """False for a client without a name of its own."""
        self.is_proved = False
        self.host = ""
        """The network of a client that has not proved its name, if this run of the broker has seen it."""
        self.instance = b""
        self.expiry_s = 0
        self.ends_at_us: int | None = None
        """When the session is deleted, while its client is not connected."""
        self.is_awaited = False
        """The client was connected when the broker stopped: it has until `ends_at_us` to reconnect."""
        self.is_stored = False
        """Whether the store has it, so that it outlives a restart."""
        self.peer: Peer | None = None
        """The connection, while there is one."""
        self.will: Will | None = None
        self.will_extension: bytes | None = None
        self.will_delay_s = 0
        self.will_due_us: int | None = None
        """When the will of a client that is gone is published."""
        self.subscriptions: dict[tuple[tuple[str, ...], str | None], BrokerSubscription] = {}
        """By their filters and cursor's name: the same ones again are the same subscription."""
        self.filter_levels = 0
        """Of all its subscriptions."""
        self.messages_in = 0

    def fields(self, **more: Any) -> dict[str, Any]:
        """Return the fields of a Notice about this client.

        With a host, its event lines are limited for that host too: an unproved name can be a new one each time.
        """
        return {"client": self.name, **({"host": self.host} if self.host else {}), **more}

    @property
    def outlives_restart(self) -> bool:
        """Whether there is anything to store: a will, or subscriptions that outlive the connection."""
        return self.is_remembered and (self.will is not None or bool(self.expiry_s and self.subscriptions))


def require_right(access: Access, session: Session, action: Action, topic: str, what: str) -> None:
    """Raise RequestFailure unless the client of a session has a right. Its text names the rule that refuses.

    `topic`: see Access.problem. `what`: completes "this client may not ...".
    """
    problem = access.problem(session.principal, session.is_proved, action, topic)
    if problem:
        raise RequestFailure(Code.NOT_ALLOWED, f"{session.name} may not {what} ({problem})")


class Sessions(dict[str, Session]):
    """Sessions by name. `after` and `groups_after` walk them in the order of their names. `of_host` counts them by
    host."""

    def __init__(self) -> None:
        super().__init__()
        self._order: list[str] | None = None
        """Sorted names, from the first request for a list on."""
        self._of_hosts = Usage()
        self.groups = 0
        """The number of sessions of consumer groups among them."""

    def __setitem__(self, name: str, session: Session) -> None:
        former = self.get(name)
        if former is not None:
            self._count(former, -1)
        elif self._order is not None:
            insort(self._order, name)
        if former is None:
            self.groups += is_group_session(name)
        super().__setitem__(name, session)
        self._count(session, 1)

    def move(self, session: Session, host: str) -> None:
        """Count a session for the host from which its client connects now; "" if the client has proved its name."""
        is_here = self.get(session.name) is session
        if is_here:
            self._count(session, -1)
        session.host = host
        if is_here:
            self._count(session, 1)

    def of_host(self, host: str) -> int:
        """Return the number of sessions with a chosen name that was not proved from this host."""
        return self._of_hosts.of(host)

    def _count(self, session: Session, by: int) -> None:
        if session.host and session.is_remembered:
            self._of_hosts.add(session.host, by)

    def __delitem__(self, name: str) -> None:
        session = self[name]
        super().__delitem__(name)
        self.groups -= is_group_session(name)
        self._count(session, -1)
        if self._order is not None:
            del self._order[bisect_left(self._order, name)]

    def after(self, name: str | None) -> Iterator[Session]:
        """Yield the sessions of clients with names after `name` (None: all), in order.

        Stop before a session is added or removed. Those of groups are skipped at once, however many there are.
        """
        order, first, end = self._sorted()
        begin = 0 if name is None else bisect_right(order, name)
        for at in range(begin, first):
            yield self[order[at]]
        for at in range(max(begin, end), len(order)):
            yield self[order[at]]

    def groups_after(self, name: str | None) -> Iterator[Session]:
        """Yield the sessions of groups, as `after` does those of clients."""
        order, first, end = self._sorted()
        for at in range(first if name is None else max(first, bisect_right(order, name)), end):
            yield self[order[at]]

    def _sorted(self) -> tuple[list[str], int, int]:
        """Return all names in order, and the range of those of groups."""
        if self._order is None:
            self._order = sorted(self)
        first = bisect_left(self._order, GROUP_PREFIX)
        return self._order, first, first + self.groups
