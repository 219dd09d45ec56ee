"""Control messages: CBOR maps on channel 0, and in-band on the channels of data.

The field `kind` tells them apart. A request carries a number, and its reply the same one. Unknown fields are ignored;
an unknown kind is answered with an error, so that a newer program can talk to an older one.

    a client asks                        the broker replies
    login                                welcome, or closes the connection
    subscribe                            subscribed
    unsubscribe, commit, create, delete, kick, delete_group, capture
                                         done
    topics                               topic_list
    clients                              client_list
    cursors                              cursor_list
    groups                               group_list
    progress                             progressed
    bridges                              bridge_list
    volunteer, watch, jobs, job, workers see godwit.wire.jobs
    ping (either side asks)              pong
    anything                             error

In-band: `open` is record 0 of a publisher's channel, answered on channel 0 by `opened` or `refused`; `feed` is record 0
of a channel towards a subscriber, and `labels` and `gap` stand between the batches there (see godwit.wire.control).
Record 0 of the channel of a bridge is `relay`, answered by `relaying` or `refused`: see godwit.wire.relay.
Unasked, on channel 0: `refused` for a channel whose right has ended, `kicked` for a subscription that was removed.
"""

from __future__ import annotations

import hmac
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec

from godwit.errors import DecodeError
from godwit.limits import MAX_CONTROL_RECORD_BYTES, MAX_EXTENSION_BYTES, MAX_WILL_BYTES
from godwit.wire import cbor, control_base, jobs, relay
from godwit.wire.control_base import (
    BaseControlMessage,
    Channel,
    CodeNumber,
    Count,
    Filters,
    Label,
    Name,
    Request,
    Text,
    TopicText,
)
from godwit.wire.epochs import Epochs

Code = control_base.Code
Qos = control_base.Qos
GroupKey: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_CONTROL_RECORD_BYTES // 2)]
"""From where a list of groups continues."""

# -- who is there -----------------------------------------------------------------------------------------------------


class Will(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Published by the broker when the client is gone without a goodbye."""

    topic: TopicText
    payload: Annotated[bytes, msgspec.Meta(max_length=MAX_WILL_BYTES)]
    qos: Qos = 1
    retain: bool = False
    delay_s: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0
    """The time until it is published, or until the session ends; a client that returns before cancels it."""
    extension: Annotated[bytes, msgspec.Meta(max_length=MAX_EXTENSION_BYTES)] = b""
    """Its properties, see godwit.wire.extension."""


class Login(BaseControlMessage, frozen=True, kw_only=True, tag="login"):
    """The first message of a client. Nothing else is answered before it."""

    request: Request
    name: Name | None = None
    """Who it is; without one there is no session, and the broker makes a name up."""
    instance: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    """Random, one for each run of the client: the same instance may take over its own older connection."""
    proof: Annotated[bytes, msgspec.Meta(max_length=32)] = b""
    """HMAC-SHA256 under the name's secret, see godwit.wire.control."""
    session_expiry_s: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0
    """How long the broker keeps subscriptions and cursors of this name after the connection has ended."""
    fresh: bool = False
    """Forget the session that there may be."""
    will: Will | None = None


class Welcome(BaseControlMessage, frozen=True, kw_only=True, tag="welcome"):
    request: Request
    name: Name
    """The client's name from now on."""
    resumed: bool = False
    """There was a session of this name, with its subscriptions' cursors."""
    proof: Annotated[bytes, msgspec.Meta(max_length=32)] = b""
    """The broker's, if the client proved its name: it knows the secret too."""
    log: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    """The log's id: offsets of another one mean nothing here."""
    epochs: Epochs = []
    """The newest ones of the log, the last of which is the broker's own: see godwit.wire.epochs."""
    max_message_bytes: Count


# -- publishing -------------------------------------------------------------------------------------------------------


class PublishOpen(BaseControlMessage, frozen=True, kw_only=True, tag="open"):
    """Record 0 of a publisher's channel: what the channel's batches are."""

    topic: TopicText
    qos: Qos = 1
    publisher: Name | None = None
    """The identity under which repeats are recognised (QoS 2); without it, this run of the client."""
    epoch: Count = 0


class Opened(BaseControlMessage, frozen=True, kw_only=True, tag="opened"):
    """The channel is in use. `subscribers`: connected subscriptions that match its topic now."""

    channel: Channel
    subscribers: Count = 0


class PublishRefused(BaseControlMessage, frozen=True, kw_only=True, tag="refused"):
    """The channel is not, or no longer, in use: what was sent on it and not confirmed is dropped."""

    channel: Channel
    code: CodeNumber
    text: str


class ProgressQuery(BaseControlMessage, frozen=True, kw_only=True, tag="progress"):
    """How far has this publisher (QoS 2) come with this topic?"""

    request: Request
    topic: TopicText
    publisher: Name | None = None


class Progressed(BaseControlMessage, frozen=True, kw_only=True, tag="progressed"):
    request: Request
    epoch: Count = 0
    next_sequence: Count = 0
    """0 with epoch 0: nothing is known of it."""


# -- subscribing ------------------------------------------------------------------------------------------------------


RetainHandling: TypeAlias = Literal["always", "if new", "never"]
"""`if new`: unless the session has the subscription already."""


class Subscribe(BaseControlMessage, frozen=True, kw_only=True, tag="subscribe"):
    """Deliver what matches one of the filters, each message once."""

    request: Request
    subscription: Request
    """A number that the client chose: how both sides call it on this connection."""
    filters: Filters
    cursor: Name | None = None
    """Kept under this name and moved by `commit` alone; else it moves as records are confirmed."""
    start: Literal["latest", "earliest"] | Count | None = None
    """An offset or a word. None: where the session or the cursor stands, else latest."""
    since_us: Count | None = None
    """Instead of start: the first message received at or after this time."""
    epochs: Epochs = []
    """With an offset as start: the newest epochs of the log that it was read in, as far as the client knows them."""
    retain_handling: RetainHandling | None = None
    """When retained messages are sent first. None: to a new subscription that starts at latest."""
    no_local: bool = False
    """Do not deliver messages that this client has published."""
    responder: bool = False
    """The client replies to requests that it receives: it counts as a responder whatever its filters."""
    retained: bool = False
    """Retained messages first, though it does not start at latest: they were on their way when a connection broke."""
    group: Name | None = None
    """The subscription is a member of this consumer group: each message goes to one member. `start` and `since_us` are
    for a group that does not exist yet."""
    group_expiry_s: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0
    """How long the group is kept after its last member has left, unless another member asked for longer."""
    max_in_flight: Annotated[int, msgspec.Meta(ge=1, lt=2**32)] | None = None
    """The number of unconfirmed messages that this member holds at most; None: as the broker chooses."""


class Subscribed(BaseControlMessage, frozen=True, kw_only=True, tag="subscribed"):
    request: Request
    subscription: Request
    """The number asked for, or that of the same subscription if the client had it already."""
    is_new: bool = True
    next_offset: Count = 0
    """Where it starts."""
    same_below: Count | None = None
    """With epochs in the request: the log has what the client read below this offset, and from it on other messages.
    An earlier end than the start means that the log was replaced by an older copy."""
    group: bool = False
    """The subscription is a member of a group. A broker that does not know groups leaves this out."""


class Unsubscribe(BaseControlMessage, frozen=True, kw_only=True, tag="unsubscribe"):
    request: Request
    subscription: Request
    keep: bool = False
    """Deliver nothing more, but keep its place for the session."""
    offset: Count | None = None
    """With `keep`: go on from here later. None: from what was confirmed."""
    epochs: Epochs = []
    """With an offset: the epoch of the message before it."""
    record: Count | None = None
    """Of a member of a group: all records up to this one are processed, as if it had been confirmed,"""
    handled: Count = 0
    """and this number of messages of the record with messages that follows it. The other ones go to other members."""


class CursorCommit(BaseControlMessage, frozen=True, kw_only=True, tag="commit"):
    """The subscription goes on from this offset after a break."""

    request: Request
    subscription: Request
    offset: Count
    """The first one that is not done yet."""
    epochs: Epochs = []
    """The epoch of the message before it. In a log that does not have it, or not so far, nothing behind it is done."""


class Kicked(BaseControlMessage, frozen=True, kw_only=True, tag="kicked"):
    """Another client removed this subscription."""

    subscription: Request
    by: str
    reason: Text = ""


class DeliveryOpen(BaseControlMessage, frozen=True, kw_only=True, tag="feed"):
    """Record 0 of a channel towards a subscriber: whose it is. `live`: the channel of QoS 0."""

    subscription: Request
    live: bool = False


class Labels(BaseControlMessage, frozen=True, kw_only=True, tag="labels"):
    """In-band: what the numbers in the routes of the batches behind it stand for, on this channel."""

    topics: list[Label] = []
    publishers: list[Label] = []
    forget: bool = False
    """Whether to clear all earlier labels of this channel."""


class Gap(BaseControlMessage, frozen=True, kw_only=True, tag="gap"):
    """In-band: `count` messages below `below`, or else below `next_offset`, were deleted and are not delivered."""

    count: Count
    next_offset: Count
    below: Count | None = None


# -- topics, clients --------------------------------------------------------------------------------------------------


class Create(BaseControlMessage, frozen=True, kw_only=True, tag="create"):
    request: Request
    topic: TopicText


class DeleteTopic(BaseControlMessage, frozen=True, kw_only=True, tag="delete"):
    """Forget a topic that is not in use, with its figures and its retained message. The log keeps its messages."""

    request: Request
    topic: TopicText


class Topics(BaseControlMessage, frozen=True, kw_only=True, tag="topics"):
    """Which topics are there? A page at a time, in the order of their names."""

    request: Request
    filter: TopicText | None = None
    after: TopicText | None = None


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic and its figures."""

    name: str
    policy: Literal["open", "publishers", "explicit"] = "open"
    subscribers: Count = 0
    """Connected subscriptions that match it now."""
    publishers: Count = 0
    """Channels that are open for it now."""
    messages: Count = 0
    """Since it came into being."""
    payload_bytes: Count = 0
    retained: bool = False
    last_us: Count = 0
    """When the last message came; 0: none has."""


class TopicList(BaseControlMessage, frozen=True, kw_only=True, tag="topic_list"):
    request: Request
    topics: list[TopicInfo] = []
    more: bool = False
    after: TopicText = ""
    """Behind which topic the next page begins, if there is more: a page may be short, even empty."""


class Clients(BaseControlMessage, frozen=True, kw_only=True, tag="clients"):
    """Who is there? A page at a time, in the order of their names."""

    request: Request
    after: Name | None = None


class ClientInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client that is connected, or of which the broker keeps a session."""

    name: str
    address: str = ""
    """Empty: a session that is not connected."""
    since_us: Count = 0
    subscriptions: list[list[str]] = []
    """The filters of each."""
    messages_in: Count = 0
    messages_out: Count = 0
    protocol: str = ""
    """native or mqtt; empty while it is not connected."""
    arq: str = ""
    """The retransmission scheme of its connection; the following fields are about this connection, too."""
    round_trip_us: Count = 0
    window_bytes: Count = 0
    packets_sent: Count = 0
    """By the broker to the client, and so are lost packets, retransmitted fragments and bytes."""
    packets_received: Count = 0
    packets_lost: Count = 0
    fragments_resent: Count = 0
    bytes_sent: Count = 0


class ClientList(BaseControlMessage, frozen=True, kw_only=True, tag="client_list"):
    request: Request
    clients: list[ClientInfo] = []
    more: bool = False


class Cursors(BaseControlMessage, frozen=True, kw_only=True, tag="cursors"):
    """List the subscriptions with their positions in the log. A page at a time, in the order of the clients' names."""

    request: Request
    client: Name | None = None
    """Only those of this client."""
    after: Name | None = None


class CursorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription and its position in the log."""

    client: str
    filters: list[str]
    cursor: str = ""
    """The name of its cursor; empty if the position moves by itself."""
    connected: bool = False
    position: Count = 0
    """The first offset that the client has not processed, or with a cursor not committed."""
    lag: Count = 0
    """The number of messages from there to the end of the log, whether they match its filters or not."""
    idle: bool = False
    """The client is connected, and has processed every matching message of the log."""


class CursorList(BaseControlMessage, frozen=True, kw_only=True, tag="cursor_list"):
    """A page of subscriptions. All subscriptions of a client are in one page."""

    request: Request
    cursors: list[CursorInfo] = []
    more: bool = False
    after: Text = ""
    """With `more`: the `after` of the next request."""


class Kick(BaseControlMessage, frozen=True, kw_only=True, tag="kick"):
    """Remove a client, or with filters its subscription to exactly these. The client is notified of the reason."""

    request: Request
    client: Name
    filters: Filters | None = None
    reason: Text = ""
    keep: bool = False
    """Without filters: only close its connection. Its session remains, and it may reconnect."""


class ListGroups(BaseControlMessage, frozen=True, kw_only=True, tag="groups"):
    """List the consumer groups. A page at a time."""

    request: Request
    after: GroupKey | None = None


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A consumer group and its position in the log."""

    name: str
    filters: list[str]
    members: list[str] = []
    """The names of the clients that are connected as members; at most 100 of them."""
    member_count: Count = 0
    position: Count = 0
    """The first offset that the group has not acknowledged."""
    lag: Count = 0
    """The number of messages from there to the end of the log, whether they match its filters or not."""
    in_flight: Count = 0
    """Messages that members have and have not acknowledged."""
    missed: Count = 0
    """Messages that retention deleted before they were acknowledged, since the broker started."""
    expires_us: Count = 0
    """When the group is deleted, unless a member joins; 0 while it has members."""


class GroupList(BaseControlMessage, frozen=True, kw_only=True, tag="group_list"):
    request: Request
    groups: list[GroupInfo] = []
    more: bool = False
    after: GroupKey = ""
    """With `more`: the `after` of the next request."""


class DeleteGroup(BaseControlMessage, frozen=True, kw_only=True, tag="delete_group"):
    """Delete the groups of a name, or with filters the one with exactly these. Members lose their subscriptions."""

    request: Request
    group: Name
    filters: Filters | None = None


class Capture(BaseControlMessage, frozen=True, kw_only=True, tag="capture"):
    """Send the packets of all clients, as a pcapng file in pieces, to an inbox of this client."""

    request: Request
    inbox: TopicText
    seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 30
    max_bytes: Annotated[int, msgspec.Meta(ge=1024, le=2**30)] = 16 * 1024 * 1024
    packet_bytes: Annotated[int, msgspec.Meta(ge=32, le=65_535)] = 65_535
    """Longer packets are cut."""
    filter: Text = ""


# -- work: requests about it are in godwit.wire.jobs ------------------------------------------------------------------


class Work(BaseControlMessage, frozen=True, kw_only=True, tag="work"):
    """Record 0 of a channel that carries work, in either direction: see godwit.wire.work."""


# -- replies that all share -------------------------------------------------------------------------------------------


class Ping(BaseControlMessage, frozen=True, kw_only=True, tag="ping"):
    request: Request


class Pong(BaseControlMessage, frozen=True, kw_only=True, tag="pong"):
    request: Request


class Done(BaseControlMessage, frozen=True, kw_only=True, tag="done"):
    """The reply to a request that has nothing else to say."""

    request: Request


class Error(BaseControlMessage, frozen=True, kw_only=True, tag="error"):
    """The reply to a request that failed; `request` is missing when it could not be read."""

    code: CodeNumber
    text: str
    request: Request | None = None


ControlMessage: TypeAlias = (
    Login | Welcome | PublishOpen | Opened | PublishRefused | ProgressQuery | Progressed | Subscribe | Subscribed
    | Unsubscribe | CursorCommit | Kicked | DeliveryOpen | Labels | Gap | Create | Topics | TopicList | Clients
    | ClientList | DeleteTopic | Cursors | CursorList | Kick | ListGroups | GroupList | DeleteGroup | Capture | Work
    | Ping | Pong | Done | Error
    | jobs.Volunteer | jobs.VolunteerReply | jobs.WatchJobs | jobs.WatchReply | jobs.UnwatchJobs | jobs.CancelJob
    | jobs.RetryJob | jobs.RetryReply | jobs.ListJobs | jobs.JobList | jobs.ShowJob | jobs.JobDetails
    | jobs.ListWorkers | jobs.WorkerList
    | relay.RelayOpen | relay.RelayOpened | relay.ListBridges | relay.BridgeList
)  # fmt: skip


class UnknownKind(msgspec.Struct, frozen=True):
    """A message of a kind that this version does not have: to be answered with Error(UNKNOWN_KIND)."""

    kind: str
    request: int | None


class MalformedError(DecodeError):
    """A message of a known kind with a field that cannot be: to be answered with Error(MALFORMED)."""

    def __init__(self, detail: str, request: int | None) -> None:
        super().__init__("control", detail)
        self.detail = detail
        self.request = request


class _Envelope(msgspec.Struct):
    """Just enough to answer a message that cannot be understood."""

    kind: str
    request: Any = None


_KINDS = {kind.__struct_config__.tag: kind for kind in get_args(ControlMessage)}


def encode_control(message: ControlMessage) -> bytes:
    """The CBOR map of a message."""
    return cbor.encode(message)


def decode_control(
    data: bytes, *, max_bytes: int = MAX_CONTROL_RECORD_BYTES, max_items: int | None = None
) -> ControlMessage | UnknownKind:
    """The message, or the kind that is not known here; DecodeError if it is no control message at all.

    A known kind with a wrong field gives MalformedError, which knows the number of the request. A broker gives bounds
    that fit what it expects, because decoding costs time (see godwit.wire.cbor.load).
    """
    if len(data) > max_bytes:
        raise DecodeError("control", f"{len(data)} bytes, at most {max_bytes}")
    plain = cbor.load(data, max_items=max_items)
    envelope = cbor.convert(plain, _Envelope)
    usable = type(envelope.request) is int and 0 <= envelope.request < 2**32  # exactly int: True is no request
    request = envelope.request if usable else None
    kind = _KINDS.get(envelope.kind)
    if kind is None:
        return UnknownKind(envelope.kind[:64], request)
    try:
        message: ControlMessage = cbor.convert(plain, kind)
    except DecodeError as error:
        raise MalformedError(str(error).removeprefix("control: "), request) from None
    return message


IN_BAND: Final = 0xFF
_MARK: Final = bytes((IN_BAND,))


def encode_in_band(message: ControlMessage) -> bytes:
    """A control message as a record of a channel of data."""
    return _MARK + encode_control(message)


def is_in_band(record: bytes) -> bool:
    return record[:1] == _MARK


def decode_in_band(record: bytes) -> ControlMessage | UnknownKind:
    """The message of a record that is_in_band; DecodeError otherwise."""
    if not is_in_band(record):
        raise DecodeError("control", "a record without the mark of a control message")
    return decode_control(record[1:])


PROOF_BYTES: Final = 32
Side: TypeAlias = Literal["client", "server"]


def make_proof(secret: bytes, side: Side, binding: bytes, name: str) -> bytes:
    """What stands in `login` (side client) or in `welcome` (side server)."""
    return hmac.digest(secret, b"godwit 1 " + side.encode() + b" " + binding + name.encode(), "sha256")


def is_proof(proof: bytes, secret: bytes, side: Side, binding: bytes, name: str) -> bool:
    """Whether it is the right one, compared without telling by its duration how much of it is."""
    return hmac.compare_digest(proof, make_proof(secret, side, binding, name))
