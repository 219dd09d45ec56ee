"""One consumer group: a cursor of the log whose messages are shared out among the members of the group.

A group is a session of its own (named `$share/NAME/FILTER`) with one subscription. To Delivery it looks like a client:
`Group` is the Outbound of that subscription and hands each message to one member. Members are native subscriptions or
filters of MQTT clients; each has an Outbound of its protocol.

    log --put--> queue --assign--> in flight at a member --acknowledge--> done
     ^             |                 |
     +--- wanted <-+-----------------+  the member left, is gone, or is slow while another one is idle

Only offsets are kept of messages in flight. Messages that are wanted again are read from the log once more: the cursor
moves back to the first of them. Everything below `high` that is neither queued, in flight nor wanted is done; so the
stored state of a group is its position, `high` and the ranges in between that are not done (docs/decisions/0061).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.broker.catalogue import Topic
from godwit.broker.delivery import Delivery
from godwit.broker.ports import Outbound, OutboundBatch, Peer
from godwit.broker.session import Session
from godwit.broker.subscription import BrokerSubscription, Span
from godwit.limits import GROUP_IN_FLIGHT, GROUP_QUEUE_BYTES, GROUP_STORED_RANGES
from godwit.wire.batch import RETAIN, Batch, cut_entry, decode_entry
from godwit.wire.control_base import Code

if TYPE_CHECKING:
    from godwit.broker.groups import Groups

FIRST_WINDOW: Final = 16
LEAST_WINDOW: Final = 2
QUICK_US: Final = 100_000
"""A member that acknowledges within this time gets more messages at once,"""
LATE_US: Final = 1_000_000
"""and one that takes longer than this gets fewer."""
HEAP_SLACK: Final = 1024
"""Entries of acknowledged pieces that the heap of a group may have."""


# -- offsets ----------------------------------------------------------------------------------------------------------


class OffsetSet:
    """A set of offsets as disjoint ranges (first, end), in order."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, ranges: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self.update(ranges)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._firsts)

    @property
    def first(self) -> int:
        """The smallest offset; the set must not be empty."""
        return self._firsts[0]

    @property
    def ranges(self) -> list[Span]:
        return list(zip(self._firsts, self._ends, strict=True))

    def update(self, ranges: Iterable[Span]) -> None:
        """Add ranges."""
        merged: list[list[int]] = []
        for first, end in sorted([*self.ranges, *ranges]):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            elif first < end:
                merged.append([first, end])
        self._firsts = [first for first, _ in merged]
        self._ends = [end for _, end in merged]

    def take(self, first: int, end: int) -> list[Span]:
        """Remove the offsets of a range from the set. Return the ranges that it had of them."""
        firsts, ends = self._firsts, self._ends
        begin = bisect_right(ends, first)
        stop = begin
        taken: list[Span] = []
        left: list[Span] = []
        while stop < len(firsts) and firsts[stop] < end:
            low, high = firsts[stop], ends[stop]
            taken.append((max(low, first), min(high, end)))
            if low < first:
                left.append((low, first))
            if high > end:
                left.append((end, high))
            stop += 1
        if taken:
            firsts[begin:stop] = [low for low, _ in left]
            ends[begin:stop] = [high for _, high in left]
        return taken


# -- members ----------------------------------------------------------------------------------------------------------


class Piece:
    """Consecutive messages of one topic in flight at a member."""

    __slots__ = ("end", "first", "is_moved", "member", "sent_us", "topic")

    def __init__(self, first: int, end: int, topic: Topic, member: GroupMember, sent_us: int) -> None:
        self.first = first
        self.end = end
        self.topic = topic
        self.member = member
        self.sent_us = sent_us
        self.is_moved = False
        """The member was too slow: the messages are on their way to another one."""


class GroupMember:
    """One member of a group: a subscription of a connected client."""

    __slots__ = (
        "group", "in_flight", "is_full", "is_single", "is_slow", "limit", "outbound", "peer", "pieces", "progress_us",
        "window",
    )  # fmt: skip

    def __init__(self, group: Group, peer: Peer, outbound: Outbound, limit: int, *, is_single: bool) -> None:
        self.group = group
        self.peer = peer
        self.outbound = outbound
        self.limit = limit
        """Messages that may be in flight at it, at most."""
        self.is_single = is_single
        """Whether it acknowledges message by message, and not the pieces that were put."""
        self.window = min(FIRST_WINDOW, limit)
        """The same, at present: so that no member holds more than about a second of its work."""
        self.in_flight = 0
        self.pieces: dict[int, Piece] = {}
        """By their first offset, also pieces that went to another member."""
        self.progress_us = 0
        """When it acknowledged something, or began to have messages in flight."""
        self.is_slow = False
        """Its messages went to others: it gets no more until it acknowledges something."""
        self.is_full = False
        """Its outbound had no room."""

    @property
    def is_ready(self) -> bool:
        return self.in_flight < self.window and not self.is_slow and not self.is_full

    def adapt(self, count: int, delay_us: int) -> None:
        """Adapt the window after an acknowledgement of `count` messages, which took `delay_us`."""
        if delay_us < QUICK_US:
            self.window = min(self.window + count, self.limit)
        elif delay_us > LATE_US:
            self.window = max(self.window // 2, min(LEAST_WINDOW, self.limit))


class GroupPeer(Peer):
    """All members of a group, as one connection for Delivery."""

    __slots__ = ()

    def __init__(self, session: Session) -> None:
        super().__init__("", "")
        self.session = session

    def close(self, code: Code, text: str) -> None:
        """Do nothing: each member has a connection of its own."""

    def ping(self) -> None:
        """Do nothing: no client can claim the name of a group."""


class GroupSubscription(BrokerSubscription):
    """The cursor of a group."""

    __slots__ = ("group",)

    group: Group

    def note_sent(self, offset: int, end: int) -> None:
        """Note that something was sent. The group knows what exactly is in flight, see Group.update_position."""
        if not self.sent:
            self.sent.append([offset, end])

    def pass_over(self, offset: int, end: int) -> None:
        self.group.wanted.take(offset, end)

    def count_needed(self, spans: Sequence[Span], first: int) -> int:
        """Return how many of these offsets are not done, because retention deletes them. They are wanted no more."""
        group = self.group
        count = 0
        for begin, end in spans:
            count += sum([stop - low for low, stop in group.wanted.take(begin, end)])
            count += max(end - max(begin, group.high, first), 0)
        return count

    def pending(self) -> tuple[int, tuple[int, ...]]:
        """Return `high`, and the ranges below it that are not done: first, end, first, end, ...

        If there are very many ranges the last ones are joined: after a crash, messages between them are repeated.
        """
        ranges = self.group.unfinished()
        if len(ranges) > GROUP_STORED_RANGES:
            ranges[GROUP_STORED_RANGES - 1 :] = [(ranges[GROUP_STORED_RANGES - 1][0], ranges[-1][1])]
        return self.group.high, tuple([offset for span in ranges for offset in span])


class _Queued(msgspec.Struct):
    """A batch of which some messages are to be handed to members."""

    batch: OutboundBatch
    ranges: list[Span]
    """The next one last."""
    size_bytes: int
    decoded: Batch | None = None


class Group(Outbound):
    """See the module's first lines. Groups changes the members; Delivery calls the methods of an Outbound."""

    __slots__ = (
        "_busy", "_clock", "_delivery", "_flight", "_gaps", "_has_news", "_heap", "_idle", "_notify", "_queue",
        "_queued_bytes", "_topics", "filters", "high", "in_flight", "members", "missed", "name", "owner", "peer",
        "session", "source", "wanted",
    )  # fmt: skip

    source: GroupSubscription
    owner: Groups

    def __init__(
        self,
        name: str,
        filters: tuple[str, ...],
        session: Session,
        delivery: Delivery,
        clock: Callable[[], int],
        notify: Callable[[Group, int], None],
    ) -> None:
        """`notify` is called with the number of messages that could not be delivered."""
        super().__init__()
        self.name = name
        self.filters = filters
        self.session = session
        self.peer = GroupPeer(session)
        self.members: dict[GroupMember, None] = {}
        """The next one for a message of QoS 0 first."""
        self.high = 0
        """The offset behind the last message that was handed out or queued."""
        self.wanted = OffsetSet()
        """Messages below `high` that are to be read from the log again."""
        self.in_flight = 0
        self.missed = 0
        """Messages that retention deleted before they were acknowledged, since the broker started."""
        self._delivery = delivery
        self._clock = clock
        self._notify = notify
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._flight: dict[int, Piece] = {}
        """By their first offset."""
        self._heap: list[int] = []
        """First offsets of pieces, also of acknowledged ones."""
        self._idle: dict[GroupMember, None] = {}
        """Members with room and nothing in flight, the least recently served first."""
        self._busy: dict[GroupMember, None] = {}
        """Members with room and something in flight, likewise."""
        self._topics: dict[Topic, tuple[GroupMember, int]] = {}
        """The member that the last messages of a topic are in flight at, and in how many pieces."""
        self._has_news = False
        """Whether something was acknowledged since messages were handed out."""
        self._gaps = 0
        """Reports of missed messages that Delivery is to count as received."""

    # -- the Outbound of the subscription -----------------------------------------------------------------------------

    def begin(self, offset: int) -> None:
        source = self.source
        self.wanted.take(0, offset)
        self.high = max(self.high, offset)
        if source.holes_below <= self.high:
            source.holes_below = 0  # wanted messages that are missing are counted one by one

    def room(self) -> int:
        return max(GROUP_QUEUE_BYTES - self._queued_bytes, 0)

    def put(self, batch: OutboundBatch) -> bool:
        size = len(batch.entry.rest)
        if self._queued_bytes and self._queued_bytes + size > GROUP_QUEUE_BYTES:
            return False
        offset, end, high = batch.offset, batch.end_offset, self.high
        ranges: list[Span] = []
        if self.wanted:
            self._note_missing(offset)
            ranges = self.wanted.take(offset, end)
        if end > high:
            ranges.append((max(offset, high), end))
            self.high = end
        if ranges:
            ranges.reverse()
            self._queue.append(_Queued(batch, ranges, size))
            self._queued_bytes += size
        return True

    def put_live(self, batch: OutboundBatch) -> bool:
        for member in list(self.members):
            del self.members[member]
            self.members[member] = None
            if member.outbound.put_live(batch):
                member.peer.messages_out += batch.entry.count
                self._delivery.unflushed[member.outbound] = None
                return True
        return False

    def gap(self, count: int, next_offset: int, below: int) -> None:
        self._gaps += 1
        self._report_missed(count, next_offset, below)

    def is_idle(self) -> bool:
        return not (self._flight or self._queue or self.wanted)

    def flush(self) -> None:
        """Hand out queued messages, move the position, and let the subscription read on."""
        source = self.source
        peer = source.peer
        if peer is None:
            return
        self._has_news = True
        while self._has_news:  # an outbound may acknowledge messages of QoS 0 at once
            self._has_news = False
            self._assign()
        self.update_position()
        if source.is_live:
            return
        target = self.wanted.first if self.wanted else self.high
        if source.position < target:
            source.position = target  # messages in between are not needed again
        if self._queued_bytes <= GROUP_QUEUE_BYTES // 2:
            self._delivery.resume(peer)

    def close(self) -> None:
        """Do nothing: the outbounds of the members are closed one by one."""

    # -- from the queue to the members --------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Hand queued messages to members, as far as these have room."""
        queue = self._queue
        used: dict[GroupMember, None] = {}
        now_us = self._clock()
        while queue and self.in_flight < GROUP_IN_FLIGHT:
            queued = queue[0]
            batch = queued.batch
            member = self._pick(batch.topic)
            if member is None:
                break
            first, end = queued.ranges[-1]
            end = min(end, first + member.window - member.in_flight, first + member.outbound.room_for(batch))
            if end == first or not member.outbound.put(self._cut(queued, first, end)):
                member.is_full = True
                self._sort(member)
                continue
            used[member] = None
            if end == queued.ranges[-1][1]:
                queued.ranges.pop()
                if not queued.ranges:
                    queue.popleft()
                    self._queued_bytes -= queued.size_bytes
            else:
                queued.ranges[-1] = (end, queued.ranges[-1][1])
            self._note_in_flight(member, batch.topic, first, end, now_us)
        for member in used:
            member.outbound.flush()

    def _pick(self, topic: Topic) -> GroupMember | None:
        """Return the member for the next messages of a topic: the one that has earlier ones in flight, if it has room.

        So messages of a topic are processed in order as long as one member keeps up with them.
        """
        owner = self._topics.get(topic)
        if owner is not None and owner[0].is_ready:
            return owner[0]
        return next(iter(self._idle or self._busy), None)

    def _cut(self, queued: _Queued, first: int, end: int) -> OutboundBatch:
        """Return a part of a batch."""
        batch = queued.batch
        if first == batch.offset and end == batch.end_offset:
            return batch
        if queued.decoded is None:
            queued.decoded = decode_entry(batch.entry)
        entry = cut_entry(batch.entry, queued.decoded, first - batch.offset, end - batch.offset)
        flags = entry.flags & ~RETAIN  # it may have another shape
        return OutboundBatch(batch.topic, batch.publisher_number, entry, flags, first, end, batch.remaining_us)

    def _note_in_flight(self, member: GroupMember, topic: Topic, first: int, end: int, now_us: int) -> None:
        if not member.in_flight:
            member.progress_us = now_us
        step = 1 if member.is_single else end - first
        for offset in range(first, end, step):
            former = member.pieces.get(offset)
            if former is not None:  # it was slow, and has the same messages again
                member.in_flight -= former.end - former.first
            piece = Piece(offset, offset + step, topic, member, now_us)
            self._flight[offset] = member.pieces[offset] = piece
            heappush(self._heap, offset)
        count = end - first
        member.in_flight += count
        self.in_flight += count
        member.peer.messages_out += count
        owner, pieces = self._topics.get(topic, (member, 0))
        self._topics[topic] = (member, count // step + (pieces if owner is member else 0))
        self._sort(member)

    def _sort(self, member: GroupMember) -> None:
        """Move a member behind the others with as much room."""
        self._idle.pop(member, None)
        self._busy.pop(member, None)
        if member in self.members and member.is_ready:
            (self._busy if member.in_flight else self._idle)[member] = None

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledge(self, member: GroupMember, first: int, end: int) -> None:
        """A member has processed messages that were put to it as one batch, or the first ones of them."""
        piece = member.pieces.pop(first, None)
        if piece is None:
            return  # acknowledged before
        now_us = self._clock()
        self._land(piece)
        if end < piece.end:
            rest = Piece(end, piece.end, piece.topic, member, piece.sent_us)
            rest.is_moved = piece.is_moved
            member.pieces[end] = rest
            member.in_flight += rest.end - end
            if not rest.is_moved:
                self._flight[end] = rest
                heappush(self._heap, end)
                self.in_flight += rest.end - end
        else:
            end = piece.end
        if piece.is_moved and self.wanted:
            self.wanted.take(first, end)
        member.progress_us = now_us
        member.is_slow = member.is_full = False
        member.adapt(end - first, now_us - piece.sent_us)
        self._sort(member)
        self._has_news = True
        self._delivery.unflushed[self] = None

    def _land(self, piece: Piece) -> None:
        """The messages of a piece are not in flight any more."""
        count = piece.end - piece.first
        piece.member.in_flight -= count
        if piece.is_moved:
            return
        del self._flight[piece.first]
        self.in_flight -= count
        owner, pieces = self._topics.get(piece.topic, (None, 0))
        if owner is piece.member:
            if pieces > 1:
                self._topics[piece.topic] = (piece.member, pieces - 1)
            else:
                del self._topics[piece.topic]

    def resume(self, member: GroupMember) -> None:
        """The outbound of a member has room again."""
        if member.is_full:
            member.is_full = False
            self._sort(member)
            self._delivery.unflushed[self] = None

    def update_position(self) -> None:
        """Tell Delivery which messages are not done."""
        source = self.source
        low = self._low()
        sent = source.sent
        sent.clear()
        source.sent_below = max(source.sent_below, self.high)
        if low is not None:
            sent.append([low, max(self.high, low + 1)])
        self._delivery.acknowledge(source, self.high if low is None else low, self._gaps)
        self._gaps = 0

    def _low(self) -> int | None:
        """Return the first offset that is not done, or None if all below `high` are."""
        heap, flight = self._heap, self._flight
        while heap and heap[0] not in flight:
            heappop(heap)
        if len(heap) > 2 * len(flight) + HEAP_SLACK:  # one message is not acknowledged for long, and many others are
            heap[:] = flight
            heapify(heap)
        lows = [self._queue[0].ranges[-1][0]] if self._queue else []
        if heap:
            lows.append(heap[0])
        if self.wanted:
            lows.append(self.wanted.first)
        return min(lows, default=None)

    def unfinished(self) -> list[Span]:
        """Return the ranges of offsets below `high` that are not done."""
        ranges = OffsetSet([(piece.first, piece.end) for piece in self._flight.values()])
        ranges.update([*self.wanted.ranges, *(span for queued in self._queue for span in queued.ranges)])
        return ranges.ranges

    # -- messages that go to another member ---------------------------------------------------------------------------

    def want(self, pieces: Iterable[Piece]) -> None:
        """Read the messages of these pieces from the log again, for other members."""
        ranges = [(piece.first, piece.end) for piece in pieces]
        ranges += [span for queued in self._queue for span in queued.ranges]
        self._queue.clear()
        self._queued_bytes = 0
        self.wanted.update(ranges)
        if self.wanted and self.members and self.source.peer is not None:
            self._delivery.rewind(self.source, self.wanted.first)
            self._delivery.unflushed[self] = None

    def move_slow(self, now_us: int, timeout_us: int) -> None:
        """Give the messages of members that acknowledge nothing to others, if another one is idle."""
        for member in self.members:
            if member.is_full:
                self.resume(member)
        if self.source.is_live and self.wanted:
            self._note_missing(self.high)
        slow = [
            one
            for one in self.members
            if one.in_flight and not one.is_slow and one.progress_us + timeout_us <= now_us
        ]  # fmt: skip
        if not slow or not self._idle:
            return
        moved: list[Piece] = []
        for member in slow:
            member.is_slow = True
            self._sort(member)
            moved += self._take_pieces(member)
        self.want(moved)

    def _take_pieces(self, member: GroupMember) -> list[Piece]:
        """Return the pieces in flight at a member, which go to others."""
        pieces = [piece for piece in member.pieces.values() if not piece.is_moved]
        for piece in pieces:
            self._land(piece)
            piece.is_moved = True
            member.in_flight += piece.end - piece.first  # it still holds them
        return pieces

    def remove(self, member: GroupMember) -> None:
        """A member has left: its unacknowledged messages go to others."""
        self.members.pop(member, None)
        self._sort(member)
        pieces = self._take_pieces(member)
        member.pieces.clear()
        member.in_flight = 0
        self._delivery.unflushed.pop(member.outbound, None)
        if pieces or not self.members:
            self.want(pieces)

    def add(self, member: GroupMember) -> None:
        """A member has joined."""
        self.members[member] = None
        self._sort(member)
        self._delivery.unflushed[self] = None

    def _note_missing(self, offset: int) -> None:
        """The log was read up to an offset: wanted messages before it do not exist any more."""
        count = sum([end - first for first, end in self.wanted.take(0, offset)])
        if count:
            self._report_missed(count, offset, offset)

    def _report_missed(self, count: int, next_offset: int, below: int) -> None:
        self.missed += count
        self._notify(self, count)
        for member in self.members:
            member.outbound.gap(count, next_offset, below)
            member.outbound.flush()
            return
