"""The border of the broker core: the classes that a protocol implements, and the functions that it calls.

The core knows clients, topics, subscriptions and the log. It knows no packets, channels or sockets: these belong to a
protocol, such as godwit.native, which lives beside the core and joins it through the classes in this module.

A protocol derives three classes, and hands instances of them to the core:

    Peer           one connection of a client: its address, how to close it, how to ask whether the client is alive
    Publication    what a client publishes to one topic: how to report that the core ended it
    Outbound       where the messages of one subscription go: room, put, gap, flush

and calls these functions of godwit.broker.broker.Broker:

    connect(peer)                         the connection exists; a login is expected
    login(peer, credentials, welcome)     a session begins or resumes; `welcome(session, resumed)` is called once what
                                          the broker must remember of it is stored. A refused client is closed
    handle_alive(peer)                    the client has answered Peer.ping
    open_publication(publication, ...)    check the right to publish, and create the topic if its policy allows that
    publish(publication, entries, ...)    messages of an open publication; the outcome comes through a Receipt
    publish_once(session, entries, ...)   the same without a publication
    subscribe(peer, request, outbound, reply)
    acknowledge(subscription, offset)     the client's application has processed everything below the offset
    resume(peer)                          an Outbound of this peer has room again
    commit, unsubscribe                   move a named cursor; end or pause a subscription
    leave_group                           end the membership in a consumer group (godwit.broker.groups)
    acknowledge_in_group(member, ...)     the client has processed messages of a batch that was put to a member
    resume_members(peer)                  as resume, for members of groups
    open_table(peer, outbound)            the session's one subscription whose filters come and go, see FilterRequest
    add_filters, remove_filters           change these filters
    hold_identifier, free_identifier      remember a message of QoS 2 that the client identifies by a number
    drop_shared(table, filter)            remove the filter of a group whose membership has ended
    release, complete                     the two steps of a client that receives a message with QoS 2
    change_expiry(session, expiry_s)      how long the session is kept after the connection has ended
    disconnect(peer, ...)                 the connection has ended

A protocol that serves jobs also derives JobProtocol (godwit.broker.jobs.service) and JobListener
(godwit.broker.jobs.job_commits), and attaches them to Broker.jobs.

Functions that can fail at once raise RequestFailure. Results that need the log, the holder of a name or a budget of
work come later, through the callback or receipt that was given. The core calls back only from within these functions,
from within Broker.handle (the log's answers, time) and from Broker.end_turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from godwit.wire.batch import Entry
from godwit.wire.control import Will
from godwit.wire.control_base import Code
from godwit.wire.epochs import Epoch

if TYPE_CHECKING:
    from godwit.broker.catalogue import Topic
    from godwit.broker.group import GroupMember
    from godwit.broker.identities import PublisherKey
    from godwit.broker.quotas import Bucket
    from godwit.broker.session import Session
    from godwit.broker.subscription import BrokerSubscription, Lookup, TableFilter

READ_BYTES: Final = 512 * 1024
"""How much a subscription that is behind reads from the log at once."""


class RequestFailure(Exception):  # noqa: N818  # not a defect of the broker: its answer to a request
    """A request that is refused, with the code and the text for the client."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Credentials(msgspec.Struct, kw_only=True):
    """The identity that a client claims, and the session that it asks for. A protocol overrides `proves`."""

    name: str | None = None
    """None: the client has no session, and the broker chooses a name."""
    principal: str | None = None
    """A user name, if the protocol has users: `proves` is about the secret of that name, and its rights apply."""
    has_principals: bool = False
    """Whether a session belongs to its principal: another one is not admitted to it."""
    publishes_replaced_will: bool = False
    """Whether the will of the connection that this one replaces is published."""
    instance: bytes
    """Identifies one run of a client: the same instance may replace its own older connection."""
    session_expiry_s: int = 0
    """How long the session is kept after the connection has ended."""
    is_clean: bool = False
    """Whether to delete the session that may exist under this name."""
    will: Will | None = None
    """Published by the broker if the connection ends unexpectedly."""
    will_extension: bytes | None = None
    """Of the batch with the will, see godwit.wire.extension."""
    will_delay_s: int = 0
    """The will is published after this time, or with the end of the session, and not if the client returns before."""

    def proves(self, secret: bytes) -> bool:
        """Return whether the client knows the secret of its name. Must take the same time for every wrong secret."""
        return False

    def is_certified(self, name: str, fingerprint: str) -> bool:
        """Return whether the client has a certificate for a name: with this key, or any valid one if that is empty."""
        return False


class PathStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of clients shows of a connection. Protocols fill the fields that they know."""

    protocol: str = ""
    arq: str = ""
    round_trip_us: int = 0
    window_bytes: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    packets_lost: int = 0
    fragments_resent: int = 0
    bytes_sent: int = 0


class Peer:
    """One connection of a client. A protocol overrides the methods; the core maintains the attributes."""

    __slots__ = (
        "address", "behind", "bucket", "host", "is_open", "login_by_us", "lookups", "members", "messages_out",
        "pending_replies", "publications", "reading", "running_lookups", "session", "since_us", "subscriptions",
    )  # fmt: skip

    def __init__(self, address: str, host: str) -> None:
        """`address`: for people, with the port. `host`: the key of quotas, see godwit.broker.session.network_of."""
        self.address = address
        self.host = host
        self.since_us = 0
        self.is_open = True
        """False from the moment when the core treats the connection as ended."""
        self.login_by_us: int | None = None
        """When the connection is closed unless a login has come; None after the login."""
        self.session: Session | None = None
        """None before the login has succeeded."""
        self.publications: dict[Publication, None] = {}
        self.subscriptions: dict[BrokerSubscription, None] = {}
        """The session's subscriptions that this connection receives."""
        self.behind: dict[BrokerSubscription, None] = {}
        """Those of them that read the log, the next one to read first."""
        self.reading: dict[BrokerSubscription, None] = {}
        """Those of them that wait for an answer of the log."""
        self.members: dict[GroupMember, None] = {}
        """Its memberships in consumer groups."""
        self.lookups: dict[Outbound, Lookup] = {}
        """Subscriptions that begin at a time whose offset is not known yet."""
        self.running_lookups = 0
        """Questions for such offsets that the log has not answered."""
        self.messages_out = 0
        self.pending_replies = 0
        """Replies that wait for the log."""
        self.bucket: Bucket | None = None
        """The limit on messages per second, if there is one."""

    def admit(self) -> None:
        """The login has succeeded: the client may use everything that its protocol offers."""

    def close(self, code: Code, text: str) -> None:
        """Close the connection and report why to the client. Broker.disconnect is called when it has ended."""
        raise NotImplementedError

    def has_room(self) -> bool:
        """Return False if no Outbound of this connection has room: then call Broker.resume when that has changed."""
        return True

    def path(self) -> PathStatus:
        """Return the state of the connection, for a list of clients."""
        return PathStatus()

    def ping(self) -> None:
        """Ask the client for a sign of life, because another client claims its name. See Broker.handle_alive."""
        raise NotImplementedError


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's request for the packets of the broker."""

    peer: Peer
    """Of the operator: its own packets are left out."""
    inbox: str
    seconds: int
    max_bytes: int
    packet_bytes: int
    filter: str


class Receipt(Protocol):
    """How a publisher learns the outcome of one `publish`. Exactly one of the methods is called, once."""

    def accepted(self, reached: int) -> None:
        """The messages are stored, or forwarded if they have QoS 0. `reached`: the subscriptions they went to."""

    def refused(self, code: Code, text: str) -> None:
        """Nothing of it is stored or forwarded."""


class Publication:
    """What one client publishes to one topic. A protocol overrides `ended`; the core fills the attributes."""

    __slots__ = ("epoch", "is_active", "is_logged", "key", "peer", "qos", "session", "topic")

    topic: Topic

    def __init__(self, peer: Peer, session: Session, qos: int) -> None:
        self.peer = peer
        self.session = session
        self.qos = qos
        self.key: PublisherKey | None = None
        """With QoS 2: by which its messages are recognized."""
        self.epoch = 0
        self.is_active = False
        self.is_logged = False
        """Whether its messages of QoS 0 are logged, whatever the rules for the topic."""

    def ended(self, code: Code, text: str) -> None:
        """The client has lost the right to publish here. The core has closed the publication."""
        raise NotImplementedError


Start: TypeAlias = Literal["latest", "earliest"] | int | None
"""Where a subscription begins: at the end of the log, at its beginning, at an offset, or where its session stopped."""


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client subscribes to. The same filters and cursor again are the same subscription of the session."""

    filters: tuple[str, ...]
    cursor: str | None = None
    """A name: the position of the subscription moves by `commit` alone."""
    start: Start = None
    since_us: int | None = None
    """Begin with the first message received at or after this time; not together with `start`."""
    group: str | None = None
    """The name of a consumer group: the subscription is a member of it. `start` and `since_us` are for a new group."""
    group_expiry_s: int = 0
    """How long the group is kept after its last member has left."""
    max_in_flight: int | None = None
    """Messages that may be in flight at the member."""
    retained: bool = False
    """Whether retained messages are sent first, also to a subscription that resumes."""
    retain_handling: Literal["always", "if new", "never"] | None = None
    """When retained messages are sent first; None: to a new subscription that begins at the end of the log."""
    no_local: bool = False
    """Whether the client's own messages are not sent to it."""
    is_responder: bool = False
    """Whether the client replies to the requests among the messages, see BrokerSubscription.may_reply."""
    epochs: list[Epoch] = []
    """Of the log that the client has read up to `start`."""


class FilterRequest(msgspec.Struct, frozen=True):
    """A filter for the table of a session (godwit.broker.subscription.FilterTable)."""

    filter: str
    options: int = 0
    """The protocol's own, stored with the filter."""
    identifier: int = 0
    retained: Literal["never", "if new", "always"] = "always"
    """When retained messages are sent."""


class SubscribeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a subscribe request."""

    subscription: BrokerSubscription
    member: GroupMember | None = None
    """The membership, of a subscription in a consumer group."""
    is_new: bool
    """False: this connection receives the subscription already; the Outbound of the request is not used."""
    next_offset: int
    """Nothing below it will be delivered."""
    same_below: int | None = None
    """The log has what the client read below this offset; None if the client gave no epochs."""


class SubscribeReply(Protocol):
    """How a client learns the outcome of one `subscribe`. Exactly one of the methods is called, once."""

    def subscribed(self, result: SubscribeResult) -> None:
        """The subscription is attached, and stored if its session outlives a restart."""

    def refused(self, code: Code, text: str) -> None:
        """Nothing has changed."""


class OutboundBatch:
    """Messages of one topic and publisher on their way to subscribers; the same object for all of them."""

    __slots__ = ("encodings", "end_offset", "entry", "flags", "offset", "publisher_number", "remaining_us", "topic")

    def __init__(
        self,
        topic: Topic,
        publisher_number: int,
        entry: Entry,
        flags: int,
        offset: int,
        end_offset: int,
        remaining_us: int | None = None,
    ) -> None:
        self.topic = topic
        self.publisher_number = publisher_number
        """Stands for the name entry.publisher: no two names ever have the same number."""
        self.entry = entry
        self.flags = flags
        """Those of the entry; RETAIN is set only if this is a retained message that is older than the subscription."""
        self.offset = offset
        """Of the first message in the log; 0 for a message of QoS 0 that is not in the log."""
        self.end_offset = end_offset
        """What Broker.acknowledge is called with when the client has processed the batch."""
        self.remaining_us = remaining_us
        """The time until the messages expire, when the batch was made; None if they do not expire."""
        self.encodings: dict[str, Any] = {}
        """Where a protocol, by its name, may keep the encoded form for the next subscriber."""


class Outbound:
    """Where the messages of one subscription go, while its client is connected. A protocol overrides the methods."""

    __slots__ = ("member", "subscription")

    def __init__(self) -> None:
        self.member: GroupMember | None = None
        """Set by the core while a member of a consumer group uses this object."""
        self.subscription: BrokerSubscription | None = None
        """Set by the core while the subscription uses this object. For a member of a group it remains None."""

    def begin(self, offset: int) -> None:
        """The subscription is attached; its messages begin at this offset."""

    def room(self) -> int:
        """Return how many bytes may be put now, 0 if none: then call Broker.resume when that has changed."""
        return READ_BYTES

    def room_for(self, batch: OutboundBatch) -> int:
        """Return how many messages of a batch may be put now; asked only for a member of a consumer group."""
        return batch.entry.count

    def put(self, batch: OutboundBatch) -> bool:
        """Send a batch to the client, or return False if there is no room for it: it is read from the log later."""
        raise NotImplementedError

    def put_live(self, batch: OutboundBatch) -> bool:
        """Send a batch of QoS 0 that is not in the log, or return False to drop it."""
        return bool(self.room()) and self.put(batch)

    def gap(self, count: int, next_offset: int, below: int) -> None:
        """Report that up to `count` messages below an offset are missing. Delivery continues at `next_offset`.

        `below` is higher than that if retention has deleted only messages of some topics.

        The report counts as received when Broker.acknowledge is called with `gaps`.
        """
        raise NotImplementedError

    def is_idle(self) -> bool:
        """Return whether the client has processed everything that was put."""
        return True

    def flush(self) -> None:
        """The turn ends: send what `put` has collected. Called once for every outbound that was put to."""

    def close(self) -> None:
        """The subscription has ended or is paused, and the connection remains. Nothing is put any more."""

    def member_outbound(self, filter: TableFilter) -> Outbound:
        """Return where the messages of a consumer group go, of a session whose filters come and go."""
        raise NotImplementedError

    def removed(self, by: str, reason: str) -> None:
        """An operator or new access rules have removed the subscription; `close` has been called."""


OnWelcome: TypeAlias = Callable[["Session", bool], None]
"""Called with the session, and whether it existed before."""
