"""One subscription of one client: its position in the log, and where its messages go while the client is connected.

    absent --attach--> behind --has reached the end of the log--> live
      ^                  ^------the client is too slow--------------/
      \\--detach, from either

A live subscription gets every batch as it is committed. One that is behind reads the log at the pace of its client, so
that a slow subscriber costs no more memory than its window.

Also here: a subscription whose filters come and go (FilterTable), quiet subscriptions (QuietSubscriptions), and the
count of missed messages when the log deletes its oldest batches (lose).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from godwit.broker.dirty_state import SAVED_AT_ONCE, TABLE_KEY, DirtyState
from godwit.broker.ports import Outbound, Peer, SubscribeReply, SubscribeRequest
from godwit.broker.topics import FilterTrie
from godwit.wire.filters import GROUP_PREFIX, begins_with_wildcard, is_inbox, matches
from godwit.wire.retention_floors import lost_below

if TYPE_CHECKING:
    from godwit.broker.catalogue import Topic
    from godwit.broker.effects import Losing, Read
    from godwit.broker.group import GroupMember
    from godwit.broker.session import Session
    from godwit.wire.batch import Entry

IDLE_SWEEPS: Final = 3
"""A connected subscription settles when nothing was sent to it between two sweeps that are this many apart: one with
steady traffic would be stored twice for each message."""


class Lookup:
    """A subscription that begins at a time: its offset is being looked up in the log."""

    __slots__ = ("is_running", "outbound", "peer", "reply", "request")

    def __init__(self, peer: Peer, request: SubscribeRequest, outbound: Outbound, reply: SubscribeReply) -> None:
        self.peer = peer
        self.request = request
        self.outbound = outbound
        self.reply = reply
        self.is_running = False


Span: TypeAlias = tuple[int, int]
"""A range of offsets: first, end."""
NOWHERE: Final = 2**63
EVERYWHERE: Final[Sequence[Span]] = ((0, NOWHERE),)


class RetainedRequest(msgspec.Struct):
    """Retained messages that are still to be sent to a subscription."""

    filter: str
    excluded: Sequence[str]
    """Messages that match one of these filters are sent for that filter."""
    version: int
    """Newer messages came live, or come from the log."""
    below: int
    """So do messages of QoS 1 and 2 from this offset on."""
    after: str = ""
    """Topics up to this one are done."""


class BrokerSubscription:
    """The state of one subscription. Delivery changes it."""

    __slots__ = (
        "_filters",
        "acknowledged_below",
        "counted_from",
        "cursor",
        "gaps",
        "holes_below",
        "is_abandoned", "is_full", "is_inbox", "is_live", "is_responder", "is_settled", "is_steady", "is_stored",
        "is_stored_settled",
        "lost", "lost_until",
        "no_local",
        "outbound",
        "peer",
        "position",
        "quiet_from",
        "reading",
        "resume_at",
        "retained_pending",
        "sent",
        "sent_below",
        "serial",
        "session",
        "thinned_below",
    )  # fmt: skip

    __deletable__: Final = ["outbound"]  # read by mypyc
    outbound: Outbound

    def __init__(
        self, serial: int, session: Session, filters: tuple[str, ...], cursor: str | None, offset: int
    ) -> None:
        self.serial = serial
        """Subscriptions are served in the order in which they were created."""
        self.session = session
        self._filters: tuple[str, ...] | None = filters
        self.is_inbox = len(filters) == 1 and is_inbox(filters[0])
        """Whether it is for replies to this connection's requests: it ends with the connection, and is not stored."""
        self.no_local = False
        """Whether messages of its own client are left out."""
        self.is_responder = False
        """Whether its client has declared that it replies to requests."""
        self.cursor = cursor
        """With a name the position moves by commits alone."""
        self.peer: Peer | None = None
        """None while the client is not connected, or has not subscribed again."""
        self.is_live = False
        self.reading: Read | None = None
        """The question to the log that is not answered yet; answers to older ones are ignored."""
        self.is_full = False
        """There was no room for the last batch: it waits until its outbound has room."""
        self.is_abandoned = False
        """Publishers no longer wait for it, until it has caught up once."""
        self.is_steady = False
        """Publishers have waited for it on this connection, and it moved on: see godwit.server.memory_log."""
        self.position = offset
        """Unless it is live: everything below was sent, does not match the filters, or is lost."""
        self.sent_below = offset
        """The offset behind the last message that was sent or reported as missed. Nothing between here and the position
        (or the log's end if it is live) matches."""
        self.sent: deque[list[int]] = deque()
        """Ranges of offsets (first, end) that were sent and are not acknowledged, in order, as long as possible."""
        self.acknowledged_below = offset
        """Everything sent below this offset has been acknowledged."""
        self.resume_at = offset
        """Where to continue after an interruption: up to date while absent, or with a named cursor."""
        self.quiet_from = offset
        """Nothing between here and `resume_at` matches; as up to date as that is."""
        self.is_settled = False
        """The client has every matching message of the log, so it would resume at the log's end whatever `resume_at`
        is. The append with the next matching message ends this."""
        self.is_stored_settled = False
        """Whether the store may have it as settled."""
        self.counted_from = NOWHERE
        """Where `lost` begins to count, since it is absent."""
        self.gaps: list[tuple[int, int]] = []
        """Reports of missed messages that are not settled: count, and the offset behind the missed messages. The
        client's acknowledgement settles one; with a named cursor, a commit of the offset."""
        self.retained_pending: list[RetainedRequest] = []
        """The last one is next."""
        self.lost = 0
        """Messages that were deleted unsent and are not reported yet."""
        self.lost_until = 0
        """They have lower offsets than this, or than `position`."""
        self.holes_below = 0
        """Up to here retention has deleted messages that it has not read, without a count for this subscription:
        every missing offset there counts as lost."""
        self.thinned_below = 0
        """Up to here retention had deleted messages when the client asked for whatever exists: these are no loss."""
        self.is_stored = False
        """Whether the store has it, so that it outlives a restart."""

    @property
    def filters(self) -> tuple[str, ...]:
        """Sorted, without duplicates."""
        if self._filters is None:
            self._filters = self._sorted_filters()
        return self._filters

    def _sorted_filters(self) -> tuple[str, ...]:
        """Return the filters when they have changed: only those of a FilterTable do."""
        raise NotImplementedError

    @property
    def key(self) -> tuple[tuple[str, ...], str | None]:
        """By which its session knows it."""
        return self.filters, self.cursor

    @property
    def match_steps(self) -> int:
        """What one call of `spans` costs."""
        return len(self.filters)

    def matches(self, topic: str) -> bool:
        return any(matches(pattern, topic) for pattern in self.filters)

    def spans(self, topic: str) -> Sequence[Span]:
        """Return the ranges of offsets in which messages on this topic are for the subscription."""
        return EVERYWHERE if self.matches(topic) else ()

    def done_below(self, end_offset: int) -> int:
        """Return the offset below which the client has processed everything. `end_offset` is the log's end."""
        if self.sent:
            return max(self.sent[0][0], self.acknowledged_below)
        return end_offset if self.is_live else self.position

    def has_everything(self) -> bool:
        """Return whether a connected client has processed (with a named cursor: committed) all that the log has."""
        if not self.is_live or self.lost or self.gaps:
            return False
        if self.cursor is not None:
            return self.resume_at >= self.sent_below
        return not self.sent

    def resumes_at(self, end_offset: int) -> int:
        """Return where it would resume if it is absent or has a named cursor. `end_offset` is the log's end."""
        return end_offset if self.is_settled else self.resume_at

    def is_own(self, entry: Entry) -> bool:
        """Return whether the client of this subscription has published a batch."""
        return entry.publisher == self.session.name

    def may_reply(self, topic: str) -> bool:
        """Return whether its client is expected to reply to requests on a topic that it is subscribed to.

        A client that has declared it is. Others, such as those of MQTT, cannot: then a filter that begins with a
        wildcard is one of an observer (a logger, a dashboard, a bridge), and any other one may be of a responder.
        """
        if self.is_responder:
            return True
        return any(not begins_with_wildcard(text) and matches(text, topic) for text in self.filters)

    def is_resumed_from(self, offset: int, end_offset: int) -> bool:
        """Return whether it would get the same messages from this offset on as from where it would resume.

        A client that reconnects asks for the offset behind the last message that it received.
        """
        if self.lost:  # a client that names `counted_from` or a later offset does not miss all of it
            return self.quiet_from <= offset < min(self.counted_from, self.resumes_at(end_offset))
        return self.quiet_from <= offset <= self.resumes_at(end_offset)

    def restart_position(self, end_offset: int) -> tuple[int, int, int]:
        """Return where a restart would resume it, since where nothing matched, and how many messages it missed."""
        lost = self.lost + self.unsettled_gaps()
        if self.peer is not None and self.cursor is None:
            quiet_from = self.acknowledged_below if self.sent else self.sent_below
            return self.done_below(end_offset), quiet_from, lost
        has_everything = self.is_settled or (self.peer is not None and self.has_everything())
        return end_offset if has_everything else self.resume_at, self.quiet_from, lost

    def unsettled_gaps(self) -> int:
        """Return how many messages were reported as missed and must be reported again to the next connection.

        Those behind a cursor's position are found missing again when the log is read from there.
        """
        return sum([count for count, offset in self.gaps if self.cursor is None or offset <= self.resume_at])

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """Return SubscriptionRow.high and SubscriptionRow.unfinished, which only a consumer group has."""
        return 0, ()

    def pass_over(self, offset: int, end: int) -> None:
        """Messages of these offsets were not sent, because they have expired."""

    def count_needed(self, spans: Sequence[Span], first: int) -> int:
        """Return how many messages of these ranges it has not got, if it needs all from an offset on."""
        return sum([max(end - max(offset, first), 0) for offset, end in spans])

    def note_sent(self, offset: int, end: int) -> None:
        """Record that the messages of these offsets are on their way to the client."""
        sent = self.sent
        if sent and sent[-1][1] == offset:
            sent[-1][1] = end
        else:
            sent.append([offset, end])
        self.sent_below = end


class TableFilter(msgspec.Struct):
    """A filter of a FilterTable."""

    text: str
    since: int
    """The end of the log when it was added: messages with smaller offsets do not match."""
    options: int = 0
    """The protocol's own."""
    identifier: int = 0
    until: int | None = None
    """It was removed: only messages below this offset match, because they may have been sent."""

    @property
    def is_shared(self) -> bool:
        """Whether it is a membership in a consumer group."""
        return self.text.startswith(GROUP_PREFIX)


class PacketNumbers:
    """Handshakes of QoS 2 with a client whose protocol numbers packets, and what else a reconnect needs to know."""

    __slots__ = ("finished", "not_logged", "received", "released", "sent_below")

    OPEN: Final = 0
    DONE: Final = 1
    DELETING: Final = 2

    def __init__(self, sent_below: int) -> None:
        self.received: dict[int, None] = {}
        """Identifiers of messages that the client has published and not released."""
        self.released: dict[int, int] = {}
        """Offsets of messages that the client has received. OPEN: it has not answered the release. DONE: it has, and
        the position of the subscription is not stored behind the message. DELETING: that is being stored."""
        self.finished: set[int] = set()
        """Offsets from the position on whose messages the client has acknowledged."""
        self.sent_below = sent_below
        """Messages below this offset may have been sent before."""
        self.not_logged: dict[int, Any] = {}
        """The protocol's own: messages on their way that are not in the log at the position, by packet identifier."""


class FilterTable(BrokerSubscription):
    """The one subscription of a session whose filters come and go, as in MQTT. It has one position for all filters.

    `filters` are the present ones. Removed ones are remembered in the table until the position has passed them.
    """

    __slots__ = ("_trie", "created_at", "is_written", "members", "numbers", "table", "version")

    def __init__(self, serial: int, session: Session, offset: int, created_at: int) -> None:
        super().__init__(serial, session, (), None, offset)
        self.table: dict[str, TableFilter] = {}
        self._trie: FilterTrie[str] = FilterTrie()
        """Of all filters in the table, except the ones of consumer groups: `$share/NAME/FILTER`."""
        self.members: dict[str, GroupMember] = {}
        """The memberships for these, while the client is connected."""
        self.created_at = created_at
        """The end of the log when the session began."""
        self.numbers = PacketNumbers(offset)
        self.is_written = False
        """Whether the store has its filters and handshakes, apart from marked ones."""
        self.version = 0
        """Changes with the filters."""

    @property
    def key(self) -> tuple[tuple[str, ...], str | None]:
        return TABLE_KEY

    @property
    def match_steps(self) -> int:
        return 1

    def matches(self, topic: str) -> bool:
        return any(one.until is None for one in self.matching(topic))

    def matching(self, topic: str) -> list[TableFilter]:
        """Return the filters that match a topic, in the order of their texts, also removed ones."""
        return [self.table[text] for text in sorted(self._trie.match(topic))]

    def may_reply(self, topic: str) -> bool:
        present = [one for one in self.matching(topic) if one.until is None]
        return any(not begins_with_wildcard(one.text) for one in present)

    def spans(self, topic: str) -> Sequence[Span]:
        return [(one.since, NOWHERE if one.until is None else one.until) for one in self.matching(topic)]

    def put(self, one: TableFilter) -> None:
        """Add a filter, or replace it."""
        if one.text not in self.table and not one.is_shared:
            self._trie.add(one.text, one.text)
        self.table[one.text] = one
        self._changed()

    def discard(self, text: str) -> None:
        """Forget a filter."""
        one = self.table.pop(text, None)
        if one is not None:
            if not one.is_shared:
                self._trie.remove(text, text)
            self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._filters = None  # a client may add thousands at once: they are sorted when they are needed

    def _sorted_filters(self) -> tuple[str, ...]:
        return tuple(sorted([text for text, one in self.table.items() if one.until is None and not one.is_shared]))

    @property
    def shared(self) -> list[TableFilter]:
        """The filters of consumer groups."""
        return [one for one in self.table.values() if one.is_shared]

    def passed(self, offset: int) -> list[str]:
        """Return the removed filters that are not needed any more when the position is at this offset."""
        return [text for text, one in self.table.items() if one.until is not None and one.until <= offset]


# -- messages that are deleted before they were sent ------------------------------------------------------------------


def late_subscriptions(
    absent: Iterable[BrokerSubscription], lagging: Iterable[BrokerSubscription], floor: int
) -> dict[BrokerSubscription, int]:
    """Return the subscriptions that have not been sent everything below an offset, and from where each needs it."""
    late = {one: one.resume_at for one in absent if one.resumes_at(floor) < floor}
    late.update((one, one.position) for one in lagging if one.position < floor and not one.is_live)
    return late


def lose(
    losing: Losing,
    late: dict[BrokerSubscription, int],
    marks: dict[str, int],
    matching: Callable[[str], Iterable[BrokerSubscription]],
) -> None:
    """Count what the late subscriptions miss, and move them behind it.

    `marks`: how far each retention rule has deleted. `matching`: all subscriptions that match a topic.
    """
    floor = losing.floor
    if losing.pattern is not None:
        marks[losing.pattern] = max(marks.get(losing.pattern, 0), floor)
        uncounted = [one for one, first in late.items() if first < one.holes_below]
        for one in uncounted:
            del late[one]
            one.holes_below = lost_below(marks, one.filters)
    count_losses(losing, late, matching)
    if losing.pattern is None:
        for one, first in late.items():
            # Messages that retention had deleted before were not counted: they are at most these.
            one.lost += max(min(floor, one.holes_below) - first, 0)
            if one.peer is None:
                one.resume_at = floor
            else:
                one.position = floor


def count_losses(
    losing: Losing,
    needs_from: Mapping[BrokerSubscription, int],
    matching: Callable[[str], Iterable[BrokerSubscription]],
) -> None:
    """Add to `lost` of each subscription how many messages it needs, by their offsets, and will not get.

    It is computed topic by topic, because there may be very many absent subscriptions.
    """
    spans_of: dict[str, list[tuple[int, int]]] = {}
    for offset, entry in losing.entries:
        spans_of.setdefault(entry.topic, []).append((offset, min(offset + entry.count, losing.floor)))
    for topic, spans in spans_of.items():
        for one in matching(topic):
            first = needs_from.get(one)
            if first is not None:
                one.lost += one.count_needed(spans, first)
                one.lost_until = max(one.lost_until, losing.floor)


# -- quiet subscriptions ----------------------------------------------------------------------------------------------


class QuietSubscriptions:
    """Subscriptions whose clients have every matching message of the log: stored once, as *settled*.

    A subscription whose topics are quiet would keep an old position in the store: after a restart it would read all
    that others published since, and deletions by retention would look like losses. Storing its position again and again
    would cost a row for each such subscription. A settled one resumes at the end of the log, wherever that is.

        active --has everything, and got nothing new in some sweeps--> settled
          ^--an append with a matching message, in the same transaction--/

    The store is right at any moment because of two rules. An append with a message for a settled subscription stores
    its position too, so a stored `settled` means that nothing in the stored log is for it. And a subscription settles
    only if no unanswered append has a message for it. Whether its client is connected does not matter.

    Input: begin, offer, leave, forget, rewind, sweep; hold and on_failed, which report the outcome of appends. At the
    end of a turn, before the changes are collected: settle, then unsettle_all.
    """

    def __init__(self, dirty: DirtyState, matching: Callable[[Topic], Iterable[BrokerSubscription]]) -> None:
        """`matching` returns all subscriptions that match a topic."""
        self._dirty = dirty
        self._matching = matching
        self.watched: dict[BrokerSubscription, tuple[int, int]] = {}
        """Connected and not settled: `sent_below` at which sweep, the oldest first. Sweeps are needed while any."""
        self.candidates: dict[BrokerSubscription, None] = {}
        """Subscriptions that settle at the end of the turn, unless an append has a message for them."""
        self._sweeps = 0
        self._settlings = 0
        """Incremented when a subscription settles: topics that were examined before are examined again."""

    def begin(self, subscription: BrokerSubscription, offset: int, end_offset: int, *, resumes: bool) -> None:
        """The client is connected, and is sent everything from an offset on. `resumes`: its session stopped there."""
        self.candidates.pop(subscription, None)
        if resumes:
            subscription.sent_below = subscription.quiet_from
        else:
            self.unsettle(subscription, end_offset)
            subscription.sent_below = offset
        subscription.acknowledged_below = subscription.sent_below
        if not subscription.is_settled:
            self._watch(subscription)

    def offer(self, subscription: BrokerSubscription) -> None:
        """Settle it at the end of the turn if it has everything: it begins at the log's end, or becomes absent."""
        if self._dirty.is_durable and not subscription.is_settled and subscription.has_everything():
            self.candidates[subscription] = None

    def leave(self, subscription: BrokerSubscription) -> None:
        """Its client is about to be detached."""
        self.watched.pop(subscription, None)
        self.offer(subscription)

    def forget(self, subscription: BrokerSubscription) -> None:
        """The subscription has ended."""
        self.watched.pop(subscription, None)
        self.candidates.pop(subscription, None)

    def sweep(self) -> None:
        """Look for connected subscriptions that got nothing new for a while; called about once a second."""
        self._sweeps += 1
        for subscription, (sent_below, swept) in list(islice(self.watched.items(), SAVED_AT_ONCE)):
            if self._sweeps - swept < IDLE_SWEEPS:
                break
            if subscription.sent_below == sent_below and subscription.has_everything():
                self.candidates[subscription] = None
            del self.watched[subscription]
            self.watched[subscription] = subscription.sent_below, self._sweeps

    def hold(self, topics: Iterable[Topic]) -> None:
        """Prevent subscriptions that match one of the topics from settling in this turn."""
        for topic in topics:
            for subscription in self._matching(topic):
                self.candidates.pop(subscription, None)

    def settle(self, under_way: Iterable[Topic]) -> None:
        """Settle the candidates, except those for which an unanswered append has a message, on these topics."""
        self.hold(under_way)
        for subscription in self.candidates:
            has_everything = not subscription.lost if subscription.peer is None else subscription.has_everything()
            if has_everything and self._dirty.subscription(subscription):
                subscription.is_settled = True
                self.watched.pop(subscription, None)
        self.candidates.clear()
        self._settlings += 1

    def unsettle_all(self, topics: Iterable[Topic], end_offset: int) -> None:
        """An append has messages on these topics: the positions of settled subscriptions are stored with it."""
        for topic in topics:
            if topic.settlings != self._settlings:
                topic.settlings = self._settlings
                for subscription in self._matching(topic):
                    self.unsettle(subscription, end_offset)

    def unsettle(self, subscription: BrokerSubscription, end_offset: int) -> None:
        """Messages from the end of the committed log on may be for it: its position is stored again."""
        if subscription.is_settled:
            subscription.is_settled = False
            subscription.resume_at = subscription.counted_from = end_offset
            if subscription.peer is not None:
                self._watch(subscription)
        elif not subscription.is_stored_settled:
            return
        self._dirty.subscription(subscription)

    def rewind(self, subscription: BrokerSubscription, offset: int, end_offset: int) -> None:
        """Let an absent subscription, or one with a named cursor, resume at this offset."""
        if not subscription.is_resumed_from(offset, end_offset):
            self.candidates.pop(subscription, None)
            self.unsettle(subscription, end_offset)
            subscription.resume_at = subscription.quiet_from = offset

    def _watch(self, subscription: BrokerSubscription) -> None:
        if self._dirty.is_durable:
            self.watched[subscription] = subscription.sent_below, self._sweeps

    def on_failed(self) -> None:
        """Appends failed: the store may have subscriptions as settled that are not."""
        self._settlings += 1
