"""Who is there: a link is one connection, a session is what outlives it under a client's name."""

from __future__ import annotations

import re
from hashlib import sha256
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any, Final

from godwit.broker.rate import Bucket
from godwit.errors import UsageError
from godwit.limits import MAX_CLIENT_NAME_BYTES
from godwit.transport.connection import Connection
from godwit.wire.control import Subscribe, Will

if TYPE_CHECKING:
    from godwit.broker.feed import Feed
    from godwit.broker.inlet import Inlet
    from godwit.broker.jobs.work_channel import JobPeer

_BAD_IN_NAME: Final = re.compile(r"[\x00-\x1f\x7f]")


def check_name(name: str) -> None:
    """UsageError if no client can be called so."""
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= MAX_CLIENT_NAME_BYTES:
        raise UsageError(f"a name of {size} bytes: it has 1 to {MAX_CLIENT_NAME_BYTES}")
    if _BAD_IN_NAME.search(name) or name.startswith("$"):
        raise UsageError(f"the name {name!r} has a control character or begins with '$': choose another")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the name {name!r} is no valid Unicode text: choose another") from None


ANONYMOUS: Final = "anonymous-"
"""How the names begin that the broker makes: no client may choose such a one."""


def made_name(instance: bytes) -> str:
    """For a client without a name: the same over its reconnects. It tells nothing of the instance, which proves it."""
    return ANONYMOUS + sha256(b"godwit nameless" + instance).hexdigest()[:16]


def network_of(host: str) -> str:
    """Return what one client can be told by: an IPv4 address, or the 64-bit network of an IPv6 address."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))


def check_chosen(name: str) -> None:
    """UsageError if a client cannot choose this name for itself: the broker makes such ones."""
    if name.startswith(ANONYMOUS):
        raise UsageError(f"the name {name!r} begins with {ANONYMOUS!r}, as those that the broker makes: choose another")


class Session:
    """A client's name and what belongs to it."""

    __slots__ = (
        "ends_at_us", "expiry_s", "feeds", "filter_levels", "host", "instance", "is_awaited", "is_proved",
        "is_remembered", "is_stored", "link", "messages_in", "name", "publisher_number", "will",
    )  # fmt: skip

    def __init__(self, name: str, publisher_number: int, *, is_remembered: bool) -> None:
        self.name = name
        self.publisher_number = publisher_number
        self.is_remembered = is_remembered
        """Nameless clients are not."""
        self.is_proved = False
        self.host = ""
        """The network of a client that has not proved its name, as far as this run of the broker has seen it."""
        self.instance = b""
        self.expiry_s = 0
        self.ends_at_us: int | None = None
        """When it is forgotten, while nobody is connected under its name."""
        self.is_awaited = False
        """It was connected when the broker stopped: it has until ends_at_us to come back, then it counts as gone."""
        self.is_stored = False
        """Whether it is written down, and outlives a restart."""
        self.link: Link | None = None
        self.will: Will | None = None
        self.feeds: dict[tuple[tuple[str, ...], str | None], Feed] = {}
        """By their filters and cursor's name: the same ones again are the same subscription."""
        self.filter_levels = 0
        """Of all its subscriptions."""
        self.messages_in = 0

    def fields(self, **more: Any) -> dict[str, Any]:
        """Return the fields of an event line about this client. With a host, its lines are bounded for that host, too:
        a name that is not proved can be another one each time."""
        return {"client": self.name, **({"host": self.host} if self.host else {}), **more}

    @property
    def outlives_restart(self) -> bool:
        """Whether there is anything to remember: a will, or subscriptions that outlive the connection."""
        return self.is_remembered and (self.will is not None or bool(self.expiry_s and self.feeds))


class Link:
    """One connection of a client."""

    __slots__ = (
        "_next_channel", "address", "awaited", "behind", "bucket", "connection", "feeds", "inlets", "is_open", "lanes",
        "locating", "login_by_us", "lookups", "messages_out", "opens", "party", "reads", "requests", "session",
        "since_us", "to_locate", "unconfirmed_bytes", "unpaid", "window_bytes",
    )  # fmt: skip

    def __init__(self, connection: Connection, address: str, now_us: int, window_bytes: int) -> None:
        self.connection = connection
        self.is_open = True
        self.address = address
        self.since_us = now_us
        self.login_by_us: int | None = None
        self.session: Session | None = None
        """Who it is, once it has logged in."""
        self.inlets: dict[int, Inlet] = {}
        """Its channels for publishing."""
        self.feeds: dict[int, Feed] = {}
        """Its subscriptions, by the numbers that it gave them."""
        self.lanes: dict[int, Feed] = {}
        """The same, by the channels that lead to it."""
        self.locating: dict[int, Subscribe] = {}
        """Subscriptions whose start is being looked up, by their numbers."""
        self.to_locate: dict[int, Subscribe] = {}
        """Those that wait until others are done."""
        self.lookups = 0
        """What the log was asked for and has not answered, also of subscriptions that were given up meanwhile."""
        self.behind: dict[Feed, None] = {}
        """Those that are to go on first come first."""
        self.reads = 0
        """How many of them the log is being asked for."""
        self.window_bytes = window_bytes
        self.unconfirmed_bytes = 0
        """Sent or about to be sent, and not taken by the client's application."""
        self.messages_out = 0
        self.awaited = 0
        """Replies to it that wait for the log."""
        self.requests: Bucket | None = None
        self.opens: Bucket | None = None
        """Of the channels that it opens: as many at once as it may have."""
        self.bucket: Bucket | None = None
        """Of its messages, if there is a limit."""
        self.unpaid: list[tuple[int, int]] = []
        """Credit that it gets back only when its rate allows it: channel, bytes."""
        self.party: JobPeer | None = None
        """Its part in work, if it takes one."""
        self._next_channel = 1

    @property
    def host(self) -> str:
        """The network that it comes from."""
        return network_of(self.connection.peer_address[0])

    def take_channel(self) -> int:
        """The number of the next channel that is opened towards it."""
        channel = self._next_channel
        self._next_channel += 1
        return channel

    def take_channels(self) -> tuple[int, int]:
        return self.take_channel(), self.take_channel()
