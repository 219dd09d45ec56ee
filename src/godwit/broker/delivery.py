"""From the log to the subscribers: matching and forwarding, which subscriptions are live, behind or absent, losses."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from godwit.broker.catalogue import Catalogue, PublisherNumbers, Topic
from godwit.broker.dirty_state import DirtyState
from godwit.broker.effects import Effect, Found, Losing, Read
from godwit.broker.ports import READ_BYTES, Outbound, OutboundBatch, Peer
from godwit.broker.subscription import (
    EVERYWHERE,
    BrokerSubscription,
    FilterTable,
    QuietSubscriptions,
    RetainedRequest,
    Span,
    TableFilter,
    late_subscriptions,
    lose,
)
from godwit.broker.topics import FilterTrie
from godwit.wire.batch import HAS_EXTENSION, QOS_SHIFT, RETAIN, Entry, without_first
from godwit.wire.extension import expiry_of
from godwit.wire.filters import is_inbox, is_pattern, matches
from godwit.wire.retention_floors import lost_below

if TYPE_CHECKING:
    from godwit.broker.session import Session

LEAST_READ_BYTES: Final = 64 * 1024
READS_AT_ONCE: Final = 4
"""Per client: however many subscriptions it has, the reads of other clients do not wait for all of them."""
RETAINED_PER_TURN: Final = 2000
MATCHES_PER_TURN: Final = 5000
"""How often a filter is compared with a topic for one subscription, before others have their turn."""
SHARED_OFFSETS: Final = 4096
"""A read serves all subscriptions of its client that are at most this far beyond its start. A session with hundreds of
filters then reads the log once, and not once for each subscription."""
STEPS_PER_MATCH: Final = 10
"""The cost of finding the subscriptions that match a topic, compared with sending them a batch."""
_serial = attrgetter("serial")


class Delivery:
    """Input: add, attach, detach, forward, forward_live, acknowledge, resume, on_found, on_losing. Output: flush."""

    def __init__(
        self, catalogue: Catalogue, numbers: PublisherNumbers, dirty: DirtyState, effects: list[Effect]
    ) -> None:
        self._catalogue = catalogue
        self._numbers = numbers
        self._dirty = dirty
        self._effects = effects
        self._trie: FilterTrie[BrokerSubscription] = FilterTrie()
        self._generation = 0
        """Changes with every subscription that comes or goes: routes of an older one are computed again."""
        self.unflushed: dict[Outbound, None] = {}
        """Outbounds that were put to in this turn."""
        self._lagging: dict[BrokerSubscription, None] = {}
        """Connected subscriptions with unacknowledged messages, or behind: they need older parts of the log."""
        self._absent: dict[BrokerSubscription, None] = {}
        self.quiet = QuietSubscriptions(dirty, self._matching)
        self._needed_bound = 0
        """No connected subscription needs anything below, as of the last check."""
        self.marks: dict[str, int] = {}
        """How far retention has deleted messages, by rule: see godwit.wire.retention_floors."""
        self.now_us = 0
        """The time of the present turn."""
        self.first_offset = 0
        self.next_offset = 0
        """The end of the log, as far as it is committed."""
        self.subscriptions = 0
        self.messages_out = [0, 0, 0]
        """By QoS, and so are the bytes. A consumer group counts as one subscriber."""
        self.bytes_out = [0, 0, 0]
        self.live_dropped = 0

    @property
    def filter_nodes(self) -> int:
        """What the memory for the filters of all subscriptions is proportional to."""
        return self._trie.nodes

    @property
    def filter_count(self) -> int:
        """The number of filters of all subscriptions."""
        return len(self._trie)

    def lagging_subscriptions(self) -> list[BrokerSubscription]:
        """Return the connected subscriptions with unacknowledged messages, or behind."""
        return list(self._lagging)

    def absent_subscriptions(self) -> list[BrokerSubscription]:
        """Return the subscriptions without a connection."""
        return list(self._absent)

    def has_filter(self, text: str) -> bool:
        """Return whether any subscription, connected or not, has exactly this filter."""
        return text in self._trie

    def owns_inbox(self, session: Session, text: str) -> bool:
        """Return whether no other session is subscribed to an inbox."""
        return all(one.session is session for one in self._trie.match(text))

    # -- subscriptions come and go ------------------------------------------------------------------------------------

    def add(self, subscription: BrokerSubscription) -> None:
        """Add a new subscription, which is absent as yet."""
        self._generation += 1
        for pattern in subscription.filters:
            self._trie.add(pattern, subscription)
        self._absent[subscription] = None
        self.subscriptions += 1

    def attach(
        self,
        subscription: BrokerSubscription,
        peer: Peer,
        outbound: Outbound,
        offset: int,
        *,
        resumes: bool = False,
        with_retained: bool = False,
        is_earliest: bool = False,
    ) -> None:
        """Begin to send messages from an offset on.

        `resumes`: it continues where its session stopped. `is_earliest`: the client asked for whatever exists.
        """
        self._generation += 1
        self._absent.pop(subscription, None)
        subscription.peer = peer
        subscription.outbound = outbound
        outbound.subscription = subscription
        subscription.is_live = subscription.is_abandoned = subscription.is_full = subscription.is_steady = False
        if not resumes:
            # How many of them matched is known only of messages that were deleted while it was absent.
            missed = max(self.first_offset - offset, 0)
            thinned_below = lost_below(self.marks, subscription.filters)
            if offset >= subscription.counted_from:
                most = missed + max(thinned_below - max(offset, self.first_offset), 0)
                subscription.lost = min(subscription.lost, most)
            else:
                subscription.lost = missed
                subscription.holes_below = 0 if is_earliest else thinned_below
                subscription.thinned_below = thinned_below if is_earliest else 0
        self.quiet.begin(subscription, offset, self.next_offset, resumes=resumes)
        offset = max(offset, self.first_offset)
        subscription.position = offset
        peer.subscriptions[subscription] = None
        outbound.begin(offset)
        filters = subscription.filters
        version = self._catalogue.retained_version
        subscription.retained_pending = (
            [RetainedRequest(text, filters[:index], version, offset) for index, text in enumerate(filters)]
            if with_retained
            else []
        )
        self._fall_behind(subscription, peer)
        self._needed_bound = min(self._needed_bound, offset)
        self._advance(subscription, peer)
        self.quiet.offer(subscription)

    def add_filter(self, subscription: FilterTable, one: TableFilter) -> None:
        """Add a filter to a table, or replace it."""
        former = subscription.table.get(one.text)
        if former is None or former.until is not None:
            self._generation += 1
            self._trie.add(one.text, subscription)
        subscription.put(one)

    def remove_filter(self, subscription: FilterTable, text: str) -> None:
        """Remove a filter from a table. Messages that were sent because of it are completed."""
        one = subscription.table[text]
        if one.until is None:
            self._generation += 1
            self._trie.remove(text, subscription)
            if is_inbox(text) and text not in self._trie:
                self._catalogue.release(text)
        if subscription.done_below(self.next_offset) >= subscription.sent_below or one.since >= subscription.sent_below:
            subscription.discard(text)
        else:
            one.until = subscription.sent_below
            subscription.put(one)

    def retained_request(self, text: str) -> RetainedRequest:
        """Return a request for the retained messages that match a filter now."""
        return RetainedRequest(text, (), self._catalogue.retained_version, self.next_offset)

    def send_retained(self, subscription: BrokerSubscription, requests: Sequence[RetainedRequest]) -> None:
        """Send retained messages to a connected subscription, between the messages of the log."""
        peer = subscription.peer
        if peer is None or not requests:
            return
        texts = {request.filter for request in requests}
        # A request that has not begun is replaced by the next one for its filter: their number remains bounded.
        waiting = [one for one in subscription.retained_pending if one.after or one.filter not in texts]
        subscription.retained_pending = [*reversed(requests), *waiting]
        if subscription.is_live:
            subscription.position = self.next_offset
            self._fall_behind(subscription, peer)
            self._needed_bound = min(self._needed_bound, self.next_offset)
        self._advance(subscription, peer)

    def detach(self, subscription: BrokerSubscription) -> None:
        """The client is disconnected; the subscription remains as long as its session."""
        peer = subscription.peer
        if peer is None:
            return
        self._generation += 1
        self.quiet.leave(subscription)
        subscription.resume_at, subscription.quiet_from, _ = subscription.restart_position(self.next_offset)
        subscription.counted_from = subscription.resume_at
        gone = self.first_offset - subscription.resume_at
        unsettled = subscription.unsettled_gaps()
        subscription.lost += unsettled
        subscription.gaps.clear()
        if gone > 0 and subscription.cursor is None:
            # Messages that were sent and not acknowledged, as far as the log cannot send them again.
            subscription.lost += sum(
                max(min(end, self.first_offset) - max(first, subscription.acknowledged_below), 0)
                for first, end in subscription.sent
            )
        elif gone > 0:
            subscription.lost = gone + unsettled  # how many of them matched is unknown: at most these
        subscription.resume_at = max(subscription.resume_at, self.first_offset)
        self._note_holes(subscription)
        del peer.subscriptions[subscription]
        peer.behind.pop(subscription, None)
        self._stop_reading(subscription, peer)
        self.unflushed.pop(subscription.outbound, None)
        self._lagging.pop(subscription, None)
        subscription.peer = None
        subscription.is_live = False
        subscription.retained_pending.clear()
        subscription.sent.clear()
        subscription.outbound.subscription = None
        del subscription.outbound
        self._absent[subscription] = None
        if not (subscription.is_settled and subscription.is_stored_settled):
            self._dirty.subscription(subscription)

    def _note_holes(self, subscription: BrokerSubscription) -> None:
        """Retention may have deleted messages that it has not got yet, without a count."""
        thinned_below = lost_below(self.marks, subscription.filters)
        is_hole = thinned_below > max(subscription.resume_at, subscription.thinned_below)
        subscription.holes_below = thinned_below if is_hole else 0

    def restore(self, subscription: BrokerSubscription) -> None:
        """Add a subscription that existed before the broker was restarted."""
        subscription.resume_at = min(subscription.resumes_at(self.next_offset), self.next_offset)
        subscription.quiet_from = min(subscription.quiet_from, subscription.resume_at)
        subscription.lost_until = lost_below(self.marks, subscription.filters) if subscription.lost else 0
        subscription.lost += max(self.first_offset - subscription.resume_at, 0)
        subscription.resume_at = subscription.counted_from = max(subscription.resume_at, self.first_offset)
        self._note_holes(subscription)
        self.add(subscription)

    def pause(self, subscription: BrokerSubscription, offset: int | None = None) -> None:
        """Detach a subscription while its client remains connected. `offset`: the client has processed all below."""
        peer = subscription.peer
        if peer is None:
            return
        outbound = subscription.outbound
        self.detach(subscription)
        if offset is not None and subscription.cursor is None and self.first_offset <= offset <= self.next_offset:
            self.quiet.rewind(subscription, offset, self.next_offset)
            subscription.counted_from = subscription.resume_at
            subscription.lost = 0
            self._note_holes(subscription)
        if peer.is_open:
            outbound.close()
            self._pump(peer)

    def end(self, subscription: BrokerSubscription) -> None:
        """Delete a subscription."""
        self.pause(subscription)
        self.quiet.forget(subscription)
        self._generation += 1
        for pattern in subscription.filters:
            self._trie.remove(pattern, subscription)
            if not is_pattern(pattern) and pattern not in self._trie:
                self._catalogue.release(pattern)
        self._absent.pop(subscription, None)
        self.subscriptions -= 1
        self._dirty.subscription(subscription)

    # -- forwarding ---------------------------------------------------------------------------------------------------

    def routes(self, topic: Topic) -> list[BrokerSubscription]:
        """Return the connected subscriptions that match a topic."""
        if topic.generation != self._generation:
            self._matching(topic)
        return topic.routes

    def _matching(self, topic: Topic) -> list[BrokerSubscription]:
        """Return all subscriptions that match a topic."""
        if topic.generation != self._generation:
            topic.generation = self._generation
            topic.matching = sorted(self._trie.match(topic.name), key=_serial)
            topic.routes = [one for one in topic.matching if one.peer is not None]
        return topic.matching

    def forward(self, topic: Topic, publisher: int, entry: Entry, offset: int) -> int:
        """Forward a committed batch to live subscriptions. Return how many connected subscriptions it is for."""
        if topic.generation != self._generation:
            self._matching(topic)
        routes = topic.routes
        if routes:
            end = offset + entry.count
            batch = self._make_batch(topic, publisher, entry, entry.flags & ~RETAIN, offset, end)
            if batch is None:
                return 0
            skipped = sent_to = 0
            for one in routes:
                if one.no_local and one.is_own(entry):
                    skipped += 1
                    continue
                if one.is_live:
                    peer = one.peer
                    assert peer is not None
                    outbound = one.outbound
                    if outbound.put(batch):
                        sent = one.sent
                        if sent and sent[-1][1] == offset:
                            sent[-1][1] = end
                        else:
                            sent.append([offset, end])
                        one.sent_below = end
                        peer.messages_out += entry.count
                        sent_to += 1
                        self.unflushed[outbound] = None
                        self._lagging[one] = None
                    else:
                        one.position = offset
                        self._fall_behind(one, peer)
            self._count_out(entry, sent_to)
            return len(routes) - skipped
        return 0

    def forward_live(self, topic: Topic, publisher: int, entry: Entry) -> int:
        """Forward a batch of QoS 0 that is not logged. Return how many connected subscriptions it is for."""
        routes = self.routes(topic)
        if routes:
            batch = self._make_batch(topic, publisher, entry, entry.flags & ~RETAIN, 0, 0)
            if batch is None:
                return 0
            skipped = sent_to = 0
            for one in routes:
                if one.no_local and one.is_own(entry):
                    skipped += 1
                    continue
                peer = one.peer
                assert peer is not None
                if one.outbound.put_live(batch):
                    peer.messages_out += entry.count
                    sent_to += 1
                    self.unflushed[one.outbound] = None
                else:
                    self.live_dropped += entry.count
            self._count_out(entry, sent_to)
            return len(routes) - skipped
        return 0

    def count_responders(self, topic: Topic, entry: Entry) -> int:
        """Return how many connected subscriptions may reply to a request on a topic."""
        routes = self.routes(topic)
        return len([1 for one in routes if one.may_reply(topic.name) and not (one.no_local and one.is_own(entry))])

    def _count_out(self, entry: Entry, times: int) -> None:
        qos = entry.flags >> QOS_SHIFT
        self.messages_out[qos] += entry.count * times
        self.bytes_out[qos] += len(entry.rest) * times

    def _make_batch(
        self, topic: Topic, publisher: int, entry: Entry, flags: int, offset: int, end_offset: int
    ) -> OutboundBatch | None:
        """Return a batch for subscribers, or None if its messages have expired."""
        remaining_us = None
        if flags & HAS_EXTENSION and (expires_us := expiry_of(entry)) is not None:
            remaining_us = expires_us - self.now_us
            if remaining_us <= 0:
                return None
        return OutboundBatch(topic, publisher, entry, flags, offset, end_offset, remaining_us)

    def flush(self) -> None:
        """End a turn: have all batches sent that were put."""
        for outbound in self.unflushed:
            outbound.flush()
        self.unflushed.clear()

    # -- the subscriber's pace ----------------------------------------------------------------------------------------

    def acknowledge(self, subscription: BrokerSubscription, offset: int, gaps: int = 0) -> None:
        """The client's application has processed everything sent below an offset, and this many more gap reports."""
        if offset > subscription.acknowledged_below:
            subscription.acknowledged_below = offset
        sent = subscription.sent
        while sent and sent[0][1] <= offset:
            sent.popleft()
        if gaps and subscription.cursor is None:
            del subscription.gaps[:gaps]
        if not sent and subscription.is_live:
            self._lagging.pop(subscription, None)
        if self._dirty.is_durable and subscription.cursor is None and not subscription.is_settled:
            self._dirty.moved[subscription] = None

    def resume(self, peer: Peer) -> None:
        """Continue with the subscriptions of a client that are behind: its outbounds have room again."""
        for one in peer.behind:
            one.is_full = False
        self._pump(peer)

    def _pump(self, peer: Peer) -> None:
        for one in list(peer.behind):
            if len(peer.reading) >= READS_AT_ONCE or not peer.has_room():
                return
            self._advance(one, peer)

    def _advance(self, subscription: BrokerSubscription, peer: Peer) -> None:
        """Let a subscription that is behind continue, as far as its client and the reads of the log allow."""
        if subscription.reading is not None or subscription.is_full:
            return
        room = subscription.outbound.room()
        if not room:
            return
        if subscription.retained_pending:
            self._send_retained(subscription, peer)
            room = subscription.outbound.room()
        if subscription.retained_pending:
            if room and not subscription.is_full:  # it has examined many topics: on_found continues
                self._read(subscription, peer, 1)
        elif subscription.position >= self.next_offset and not subscription.lost:
            subscription.is_live = True
            subscription.is_abandoned = False
            del peer.behind[subscription]
            if not subscription.sent:
                self._lagging.pop(subscription, None)
        else:
            reader = self._next_reader(subscription, peer)
            if reader is not None:
                # Not too little: messages that do not match need no room.
                self._read(reader, peer, max(LEAST_READ_BYTES, min(room // len(peer.behind), READ_BYTES)))

    def _next_reader(self, subscription: BrokerSubscription, peer: Peer) -> BrokerSubscription | None:
        """Return the subscription for which the log is read now, or None if a read under way serves this one too.

        It is the furthest behind of the subscriptions that one read can serve with this one, see SHARED_OFFSETS.
        """
        if len(peer.reading) >= READS_AT_ONCE:
            return None
        position = subscription.position
        for reader in peer.reading:
            read = reader.reading
            if read is not None and read.max_bytes > 1 and read.offset <= position < read.offset + SHARED_OFFSETS:
                return None
        first = subscription
        for one in peer.behind:
            if position - SHARED_OFFSETS < one.position < first.position and _can_read(one) and one.outbound.room():
                first = one
        return first

    def _read(self, subscription: BrokerSubscription, peer: Peer, max_bytes: int) -> None:
        """Read the log, unless others of the same client do: on_found continues then."""
        if len(peer.reading) < READS_AT_ONCE:
            peer.reading[subscription] = None
            subscription.reading = Read(subscription, subscription.position, max_bytes)
            self._effects.append(subscription.reading)
            # The others have their turn first next time.
            del peer.behind[subscription]
            peer.behind[subscription] = None

    def _stop_reading(self, subscription: BrokerSubscription, peer: Peer) -> None:
        if subscription.reading is not None:
            subscription.reading = None
            del peer.reading[subscription]

    def _fall_behind(self, subscription: BrokerSubscription, peer: Peer) -> None:
        subscription.is_live = False
        peer.behind[subscription] = None
        self._lagging[subscription] = None

    def rewind(self, subscription: BrokerSubscription, offset: int) -> None:
        """Read the log again from an offset on: messages of a consumer group are to be sent to another member."""
        peer = subscription.peer
        assert peer is not None
        self._stop_reading(subscription, peer)
        if subscription.is_live:
            self._fall_behind(subscription, peer)
            subscription.position = self.next_offset
        subscription.position = max(min(offset, subscription.position), self.first_offset)
        subscription.is_full = False
        self._needed_bound = min(self._needed_bound, subscription.position)
        self._advance(subscription, peer)

    # -- from the log to a subscription that is behind ----------------------------------------------------------------

    def on_found(self, found: Found, now_us: int) -> None:
        """The log has answered a Read."""
        subscription = found.read.subscription
        peer = subscription.peer
        if peer is None or found.read is not subscription.reading:
            return
        self._stop_reading(subscription, peer)
        if not subscription.retained_pending:
            others = self._served_too(subscription, peer, found)
            if others:
                self._send_shared([subscription, *others], peer, found)
            else:
                self._send_found(subscription, peer, found)
        self._pump(peer)

    def _served_too(self, subscription: BrokerSubscription, peer: Peer, found: Found) -> list[BrokerSubscription]:
        """Return the other subscriptions of the client that continue within this answer of the log."""
        first = found.read.offset
        end = min(first + SHARED_OFFSETS, found.next_offset + 1)
        return [
            one for one in peer.behind if first <= one.position < end and _can_read(one) and one is not subscription
        ]

    def _send_shared(self, subscriptions: list[BrokerSubscription], peer: Peer, found: Found) -> None:
        """Send an answer of the log to several subscriptions of a client: each batch is matched once for all of them.

        The result is that of _send_found for each. Subscriptions with losses are left to it: their order matters.
        """
        trie: FilterTrie[BrokerSubscription] = FilterTrie()
        served: list[BrokerSubscription] = []
        for one in subscriptions:
            if one.lost or found.damaged or one.holes_below > one.position:
                self._send_found(one, peer, found)
            else:
                served.append(one)
                for pattern in one.filters:
                    trie.add(pattern, one)
        end_offset = min(found.next_offset, self.next_offset)
        matching: dict[str, list[BrokerSubscription]] = {}
        steps = 0
        for offset, entry in found.entries:
            if offset >= end_offset:
                break
            if steps > MATCHES_PER_TURN:
                end_offset = offset
                break
            targets = matching.get(entry.topic)
            if targets is None:
                targets = matching[entry.topic] = sorted(trie.match(entry.topic), key=_serial)
                steps += STEPS_PER_MATCH
            if targets:
                steps += len(targets)
                self._send_to_all(targets, peer, offset, entry)
        for one in served:
            if not one.is_full and one.position < end_offset:
                one.position = end_offset

    def _send_to_all(self, subscriptions: list[BrokerSubscription], peer: Peer, offset: int, entry: Entry) -> None:
        """Send a batch to those of the subscriptions that have not got it and have room."""
        end = offset + entry.count
        batch: OutboundBatch | None = None
        for one in subscriptions:
            if one.is_full or one.position >= end or (one.no_local and one.is_own(entry)):
                continue
            if one.position > offset:
                if self._send_entry(one, peer, offset, entry):
                    one.position = end
                continue
            one.position = offset
            if batch is None:
                topic = self._catalogue.adopt(entry.topic)
                number = self._numbers.number(entry.publisher)
                batch = self._make_batch(topic, number, entry, entry.flags & ~RETAIN, offset, end)
                if batch is None:
                    return
            if self._put_batch(one, peer, batch):
                one.note_sent(offset, end)
                one.position = end
            else:
                one.is_full = True

    def _send_found(self, subscription: BrokerSubscription, peer: Peer, found: Found) -> None:
        """Send matching batches of the answer, as far as there is room."""
        # The log may have more by now than has been forwarded to live subscriptions.
        end_offset = min(found.next_offset, self.next_offset)
        damaged = found.damaged[::-1]
        matching: dict[str, Sequence[Span]] = {}
        if subscription.lost:
            self._report_gap(subscription)
        for offset, entry in found.entries:
            end = offset + entry.count
            if offset >= end_offset:
                break
            if end <= subscription.position:
                continue
            while damaged and damaged[-1][0] <= offset:
                _pass_damage(subscription, *damaged.pop())
            _pass_hole(subscription, offset)
            if entry.topic not in matching:
                if len(matching) * subscription.match_steps > MATCHES_PER_TURN:
                    return
                matching[entry.topic] = subscription.spans(entry.topic)
            spans = matching[entry.topic]
            is_wanted = spans is EVERYWHERE or any(first <= offset < stop for first, stop in spans)
            if subscription.no_local and subscription.is_own(entry):
                is_wanted = False
            if is_wanted and not self._send_entry(subscription, peer, offset, entry):
                return
            subscription.position = end
        while damaged and damaged[-1][0] < end_offset:
            _pass_damage(subscription, *damaged.pop())
        _pass_hole(subscription, end_offset)

    def _send_entry(self, subscription: BrokerSubscription, peer: Peer, offset: int, entry: Entry) -> bool:
        """Return False if there is no room for it. One that has expired is passed over."""
        if subscription.lost:
            self._report_gap(subscription)
        if offset < subscription.position:
            entry = without_first(entry, subscription.position - offset)
            offset = subscription.position
        topic = self._catalogue.adopt(entry.topic)
        end = offset + entry.count
        number = self._numbers.number(entry.publisher)
        batch = self._make_batch(topic, number, entry, entry.flags & ~RETAIN, offset, end)
        if batch is None:
            subscription.pass_over(offset, end)
            return True
        if not self._put_batch(subscription, peer, batch):
            subscription.is_full = True
            return False
        subscription.note_sent(offset, end)
        return True

    def _put_batch(self, subscription: BrokerSubscription, peer: Peer, batch: OutboundBatch) -> bool:
        if not subscription.outbound.put(batch):
            return False
        count = batch.entry.count
        peer.messages_out += count
        self._count_out(batch.entry, 1)
        self.unflushed[subscription.outbound] = None
        return True

    def _report_gap(self, subscription: BrokerSubscription) -> None:
        """Report missed messages at the position where they are missing."""
        position = subscription.position
        subscription.outbound.gap(subscription.lost, position, max(position, subscription.lost_until))
        subscription.lost_until = 0
        subscription.note_sent(position, position)
        subscription.gaps.append((subscription.lost, position))
        subscription.lost = 0

    def _send_retained(self, subscription: BrokerSubscription, peer: Peer) -> None:
        """Send retained messages as far as there is room, and a bounded number in one turn."""
        pending = subscription.retained_pending
        left = RETAINED_PER_TURN
        steps = MATCHES_PER_TURN
        while pending:
            request = pending.pop()
            excluded = request.excluded
            for position, topic in self._catalogue.with_retained(request.filter, request.after):
                if left == 0 or steps <= 0:
                    pending.append(request)
                    return
                steps -= 1
                message = topic.retained if topic is not None else None
                if topic is not None and message is not None:
                    steps -= len(excluded)
                    if not any(matches(pattern, topic.name) for pattern in excluded) and (
                        message.version <= request.version and not (message.qos and message.offset >= request.below)
                    ):  # else it is newer than the request: it came live, or comes from the log
                        entry = message.entry(topic.name)
                        start = subscription.position
                        number = self._numbers.number(entry.publisher)
                        batch = self._make_batch(topic, number, entry, entry.flags, message.offset, start)
                        if batch is not None and not (subscription.no_local and subscription.is_own(entry)):
                            if not self._put_batch(subscription, peer, batch):
                                pending.append(request)
                                subscription.is_full = True
                                return
                            if not subscription.sent:  # it has not everything until this is acknowledged
                                subscription.sent.append([start, start])
                            left -= 1
                request.after = position

    # -- messages that are deleted from the log -----------------------------------------------------------------------

    def overrun(self, floor: int) -> list[BrokerSubscription]:
        """Return the connected subscriptions that still need something below this offset."""
        if floor <= self._needed_bound:
            return []
        late = [one for one in self._lagging if not one.is_abandoned and one.done_below(self.next_offset) < floor]
        if not late:
            self._needed_bound = floor
        return late

    def needs_below(self, floor: int) -> bool:
        """Return whether a subscription, connected or not, will miss something when the log begins at this offset."""
        return bool(late_subscriptions(self._absent, self._lagging, floor))

    def on_losing(self, losing: Losing, now_us: int) -> None:
        """Count the messages that each subscription will miss."""
        late = late_subscriptions(self._absent, self._lagging, losing.floor)
        lose(losing, late, self.marks, self._trie.match)
        if losing.pattern is None:
            self.first_offset = losing.floor
        if self._dirty.is_durable:
            self._dirty.moved.update(dict.fromkeys(late))


def _can_read(subscription: BrokerSubscription) -> bool:
    """Return whether a subscription that is behind can continue with an answer of the log."""
    return subscription.reading is None and not subscription.is_full and not subscription.retained_pending


def _pass_damage(subscription: BrokerSubscription, begin: int, end: int) -> None:
    """Move behind a damaged range. How many of its messages matched is unknown: all count as lost."""
    _pass_hole(subscription, begin)
    subscription.lost += max(end - subscription.position, 0)
    subscription.position = max(end, subscription.position)


def _pass_hole(subscription: BrokerSubscription, offset: int) -> None:
    """Move to an offset; the log has nothing before it.

    Retention leaves holes: of other topics, of messages whose loss was counted when they were deleted, or (below
    `holes_below`) of messages that this subscription should have got.
    """
    if offset > subscription.position:
        subscription.lost += max(min(offset, subscription.holes_below) - subscription.position, 0)
        subscription.position = offset
