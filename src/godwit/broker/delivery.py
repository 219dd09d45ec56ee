"""From the log to the subscribers: matching, forwarding, windows, catching up, retained messages, gaps."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from godwit.broker.catalogue import Catalogue, Names, Topic
from godwit.broker.effects import Effect, Found, Losing, Read, Send
from godwit.broker.feed import Feed
from godwit.broker.lane import RECORD_BYTES, Lane, routed
from godwit.broker.losses import count_losses
from godwit.broker.session import Link
from godwit.broker.trie import FilterTrie, matches
from godwit.broker.trim import without_first
from godwit.limits import MAX_UNRELIABLE_BYTES
from godwit.wire.batch import RETAIN
from godwit.wire.control import Gap
from godwit.wire.entry import Entry

_serial = attrgetter("serial")
LEAST_READ_BYTES: Final = 64 * 1024
READ_BYTES: Final = 512 * 1024
"""What a feed that is behind reads at once."""
RETAINED_A_TURN: Final = 2000
LOOKS_A_TURN: Final = 5000
"""Filters that are laid over topics for one feed; then the others have their turn."""


class Delivery:
    """Feed: attach, detach, forward, forward_live, on_confirm, on_found, on_losing. Drain: flush."""

    def __init__(self, catalogue: Catalogue, names: Names, effects: list[Effect]) -> None:
        self._catalogue = catalogue
        self._names = names
        self._effects = effects
        self._trie: FilterTrie[Feed] = FilterTrie()
        self._generation = 0
        """Changes with every subscription that comes or goes: routes of an older one are worked out anew."""
        self._dirty: dict[Feed, None] = {}
        """Feeds with pieces that wait for the end of the turn."""
        self._lagging: dict[Feed, None] = {}
        """Connected feeds that have something unconfirmed or are behind: they need the log's past."""
        self._absent: dict[Feed, None] = {}
        self._needed_bound = 0
        """No connected feed needs anything below, as far as was last worked out."""
        self.first_offset = 0
        self.next_offset = 0
        """The end of the log, as far as it is committed."""
        self.subscriptions = 0
        self.messages_out = 0
        self.live_dropped = 0

    @property
    def filter_nodes(self) -> int:
        """What the memory for the filters of all subscriptions goes with."""
        return self._trie.nodes

    @property
    def filter_places(self) -> int:
        """How many filters the subscriptions have, each of each."""
        return len(self._trie)

    # -- subscriptions come and go ------------------------------------------------------------------------------------

    def add(self, feed: Feed) -> None:
        """A new subscription, absent as yet."""
        for pattern in feed.filters:
            self._trie.add(pattern, feed)
        self._absent[feed] = None
        self.subscriptions += 1

    def attach(self, feed: Feed, link: Link, number: int, offset: int, *, resumes: bool, with_retained: bool) -> None:
        """Its client is there: begin at the offset. `resumes`: it goes on where its session stood."""
        self._generation += 1
        self._absent.pop(feed, None)
        feed.link = link
        feed.number = number
        feed.is_live = feed.is_abandoned = feed.is_full = False
        feed.reading = None
        if not resumes:
            # How many of these were for it is known only of those that left the log while it was absent.
            missed = max(self.first_offset - offset, 0)
            feed.lost = missed if offset < feed.counted_from else min(feed.lost, missed)
        offset = max(offset, self.first_offset)
        feed.position = offset
        feed.live_number = 0
        channel, live_channel = link.take_channels()
        feed.lane = Lane(link.connection, channel, self._effects)
        feed.live_lane = Lane(link.connection, live_channel, self._effects)
        link.feeds[number] = feed
        link.lanes[channel] = link.lanes[live_channel] = feed
        link.unconfirmed_bytes += feed.lane.begin(number, live=False, offset=offset)
        link.unconfirmed_bytes += feed.live_lane.begin(number, live=True, offset=offset)
        feed.kept_before = self._catalogue.keeps
        feed.waiting_retained = [(place, "") for place in range(len(feed.filters))] if with_retained else []
        self._fall_behind(feed, link)
        self._needed_bound = min(self._needed_bound, offset)
        self.pump(link)

    def detach(self, feed: Feed) -> None:
        """Its client is gone; the feed stays, for as long as its session."""
        link = feed.link
        if link is None:
            return
        self._generation += 1
        if feed.cursor is None:
            feed.resume_at = feed.done_below(self.next_offset)
        feed.counted_from = feed.resume_at
        gone = self.first_offset - feed.resume_at
        feed.lost += sum(count for _, count in feed.gaps)
        feed.gaps.clear()
        if gone > 0 and feed.cursor is None:
            # What it was sent and did not confirm, as far as the log cannot send it again.
            feed.lost += sum(count for _, offset, _, count in feed.lane.unconfirmed if offset < self.first_offset)
        elif gone > 0:
            feed.lost = gone  # how many of them were for it nobody knows: not more than these
        feed.resume_at = max(feed.resume_at, self.first_offset)
        self._settle(feed, link)
        feed.link = None
        feed.is_live = False
        feed.waiting_retained.clear()
        del feed.lane, feed.live_lane
        self._absent[feed] = None

    def pause(self, feed: Feed, offset: int | None = None) -> None:
        """Its channels are closed; it stays, as if its client were gone. `offset`: it was done with what is below."""
        link = feed.link
        if link is not None:
            lanes = (feed.lane, feed.live_lane)
            self.detach(feed)
            if offset is not None and feed.cursor is None and self.first_offset <= offset <= self.next_offset:
                feed.resume_at = feed.counted_from = offset
                feed.lost = 0
            if link.is_open:
                for lane in lanes:
                    self._effects.append(Send(link.connection, lane.channel, b"", last=True))
                self.pump(link)

    def end(self, feed: Feed) -> None:
        """The subscription is over."""
        self.pause(feed)
        for pattern in feed.filters:
            self._trie.remove(pattern, feed)
        self._absent.pop(feed, None)
        self.subscriptions -= 1

    def _settle(self, feed: Feed, link: Link) -> None:
        """Takes the feed off its link's books."""
        for lane in (feed.lane, feed.live_lane):
            link.unconfirmed_bytes -= sum(size for _, _, size, _ in lane.unconfirmed)
            del link.lanes[lane.channel]
        link.unconfirmed_bytes -= feed.lane.pieces_bytes
        del link.feeds[feed.number]
        link.behind.pop(feed, None)
        self._dirty.pop(feed, None)
        self._lagging.pop(feed, None)

    # -- from the log, as it grows ------------------------------------------------------------------------------------

    def routes(self, topic: Topic) -> list[Feed]:
        """The connected subscriptions that match a topic."""
        if topic.generation != self._generation:
            topic.generation = self._generation
            connected = [feed for feed in self._trie.match(topic.name) if feed.link is not None]
            topic.routes = sorted(connected, key=_serial)
        return topic.routes

    def forward(self, topic: Topic, publisher: int, entry: Entry, offset: int) -> int:
        """A batch has been committed. Gives how many connected subscriptions it is for."""
        feeds = self.routes(topic)
        if feeds:
            head, rest = routed(entry, entry.flags & ~RETAIN, topic.number, publisher, offset)
            size = len(head) + len(rest)
            end = offset + entry.count
            for feed in feeds:
                if feed.is_live:
                    link = feed.link
                    assert link is not None
                    if not feed.may_hold(link, size):
                        feed.position = offset
                        self._fall_behind(feed, link)
                        continue
                    self._push(feed, link, topic, publisher, entry, head, rest, offset)
                    feed.position = end
        return len(feeds)

    def on_committed(self, next_offset: int) -> None:
        """Everything below this offset is in the log and was forwarded. Feeds at its end may be live from now on."""
        self.next_offset = next_offset

    def _push(
        self, feed: Feed, link: Link, topic: Topic, publisher: int, entry: Entry, head: bytes, rest: bytes, offset: int
    ) -> None:
        lane = feed.lane
        size = len(head) + len(rest)
        if lane.pieces_bytes and lane.pieces_bytes + size > RECORD_BYTES:
            link.unconfirmed_bytes += lane.cut()
        if not lane.knows(topic.number, publisher):
            if lane.labels_are_many:
                link.unconfirmed_bytes += lane.forget_labels()
            lane.introduce(topic.number, topic.name, publisher, entry.publisher)
        lane.add(head, rest, offset, entry.count)
        link.unconfirmed_bytes += size
        link.messages_out += entry.count
        self.messages_out += entry.count
        self._dirty[feed] = None
        self._lagging[feed] = None

    def forward_live(self, topic: Topic, publisher: int, entry: Entry) -> int:
        """A batch of QoS 0, which is in no log. Gives how many connected subscriptions it is for."""
        feeds = self.routes(topic)
        for feed in feeds:
            link = feed.link
            assert link is not None
            number = feed.live_number
            feed.live_number += entry.count
            head, rest = routed(entry, entry.flags & ~RETAIN, topic.number, publisher, number)
            size = len(head) + len(rest)
            lane = feed.live_lane
            reliable = size > MAX_UNRELIABLE_BYTES
            # One that is longer than the window goes when half of it is free: else it could never go.
            if reliable and link.unconfirmed_bytes + min(size, link.window_bytes // 2) > link.window_bytes:
                self.live_dropped += entry.count
                continue
            if lane.pieces_bytes + size > MAX_UNRELIABLE_BYTES:
                link.unconfirmed_bytes += lane.cut_unreliable()
            if not lane.knows(topic.number, publisher):
                if lane.labels_are_many:
                    link.unconfirmed_bytes += lane.cut_unreliable() + lane.forget_labels()
                lane.introduce(topic.number, topic.name, publisher, entry.publisher)
            lane.add(head, rest, 0, 0)
            if reliable:
                link.unconfirmed_bytes += size + lane.cut()
            else:
                self._dirty[feed] = None
            link.messages_out += entry.count
            self.messages_out += entry.count
        return len(feeds)

    def flush(self) -> None:
        """The end of a turn: what waits to be joined is sent."""
        for feed in self._dirty:
            link = feed.link
            if link is not None:
                link.unconfirmed_bytes += feed.lane.cut() + feed.live_lane.cut_unreliable()
        self._dirty.clear()

    # -- the subscriber's pace ----------------------------------------------------------------------------------------

    def on_confirm(self, link: Link, channel: int, record: int) -> None:
        """The client's application has taken everything on this channel up to the record."""
        feed = link.lanes.get(channel)
        if feed is None:
            return
        lane = feed.lane if feed.lane.channel == channel else feed.live_lane
        link.unconfirmed_bytes -= lane.on_confirm(record)
        while feed.gaps and lane is feed.lane and feed.gaps[0][0] <= record:
            del feed.gaps[0]
        if feed.is_live and not feed.lane.unconfirmed and not feed.lane.pieces:
            self._lagging.pop(feed, None)
        if link.behind and (link.unconfirmed_bytes <= link.window_bytes // 2 or not feed.lane.held_bytes):
            for behind in link.behind:
                behind.is_full = False
            self.pump(link)

    def pump(self, link: Link) -> None:
        """Lets the feeds that are behind go on, in turn, as far as the client's window allows."""
        for feed in list(link.behind):
            if link.unconfirmed_bytes >= link.window_bytes:
                return
            if feed.reading is not None or feed.is_full or not feed.may_hold(link, 1):
                continue
            self._send_retained(feed, link)
            if feed.waiting_retained:
                if feed.may_hold(link, 1):  # it has looked at many: on_found lets it go on
                    feed.reading = Read(feed, feed.position, 1)
                    self._effects.append(feed.reading)
                continue
            if feed.position >= self.next_offset and not feed.lost:
                feed.is_live = True
                feed.is_abandoned = False
                del link.behind[feed]
                if not feed.lane.unconfirmed and not feed.lane.pieces:
                    self._lagging.pop(feed, None)
            else:
                room = (link.window_bytes - link.unconfirmed_bytes) // len(link.behind)
                # Not too little: what is not for it costs no room.
                feed.reading = Read(feed, feed.position, max(LEAST_READ_BYTES, min(room, READ_BYTES)))
                self._effects.append(feed.reading)
                # The others have their turn first next time.
                del link.behind[feed]
                link.behind[feed] = None

    def _fall_behind(self, feed: Feed, link: Link) -> None:
        feed.is_live = False
        link.behind[feed] = None
        self._lagging[feed] = None

    def on_found(self, found: Found) -> None:
        """What the log had for a feed that is behind."""
        feed = found.read.feed
        link = feed.link
        if link is None or found.read is not feed.reading:
            return
        feed.reading = None
        if feed.waiting_retained:
            self.pump(link)
            return
        if found.entries and found.entries[0][0] > feed.position:
            feed.lost += found.entries[0][0] - feed.position  # how many of them were for it, nobody knows
            feed.position = found.entries[0][0]
        if feed.lost:
            gap = Gap(count=feed.lost, next_offset=feed.position)
            link.unconfirmed_bytes += feed.lane.say(gap, feed.position)
            feed.gaps.append((feed.lane.next_record - 1, feed.lost))
            feed.lost = 0
        matching: dict[str, bool] = {}
        for offset, entry in found.entries:
            end = offset + entry.count
            if end <= feed.position:
                continue
            topic = self._catalogue.get(entry.topic)
            if entry.topic not in matching:
                if len(matching) * len(feed.filters) > LOOKS_A_TURN:
                    self.pump(link)
                    return
                matching[entry.topic] = feed.matches(entry.topic)
            if topic is None or not matching[entry.topic]:
                feed.position = end
                continue
            if offset < feed.position:
                entry = without_first(entry, feed.position - offset)
                offset = feed.position
            if not feed.may_hold(link, len(entry.rest)):
                feed.is_full = True
                return  # the next confirm lets it go on
            publisher = self._names.number(entry.publisher)
            head, rest = routed(entry, entry.flags & ~RETAIN, topic.number, publisher, offset)
            self._push(feed, link, topic, publisher, entry, head, rest, offset)
            feed.position = end
        feed.position = max(feed.position, found.next_offset)
        self.pump(link)

    def _send_retained(self, feed: Feed, link: Link) -> None:
        """As many as the window allows, and not too many in one turn; the client's confirm lets it go on."""
        waiting = feed.waiting_retained
        left = RETAINED_A_TURN
        looks = LOOKS_A_TURN
        while waiting:
            place, after = waiting.pop()
            for topic in self._catalogue.with_retained(feed.filters[place], after):
                if not feed.may_hold(link, 1) or left == 0 or looks <= 0:
                    waiting.append((place, after))
                    return
                after = topic.name
                looks -= 1 + place
                kept = topic.kept
                if kept is None or any(matches(pattern, after) for pattern in feed.filters[:place]):
                    continue  # one of the filters before it sends it
                if kept.serial > feed.kept_before or (kept.qos and kept.offset >= feed.position):
                    continue  # newer than the subscription: it came live, or comes from the log
                left -= 1
                entry = kept.entry(after)
                publisher = self._names.number(kept.publisher)
                head, rest = routed(entry, entry.flags, topic.number, publisher, kept.offset)
                self._push(feed, link, topic, publisher, entry, head, rest, feed.position)

    # -- what the log is about to forget ------------------------------------------------------------------------------

    def overrun(self, floor: int) -> list[Feed]:
        """The connected feeds that still need something below this offset."""
        if floor <= self._needed_bound:
            return []
        late = [feed for feed in self._lagging if not feed.is_abandoned and feed.done_below(self.next_offset) < floor]
        if not late:
            self._needed_bound = floor
        return late

    def needs_below(self, floor: int) -> bool:
        """Whether anybody, connected or not, will miss something when the log begins at this offset."""
        return any(feed.resume_at < floor for feed in self._absent) or any(
            feed.position < floor and not feed.is_live for feed in self._lagging
        )

    def on_losing(self, losing: Losing) -> None:
        """Counts for everyone what they will not get."""
        floor = self.first_offset = losing.floor
        late: dict[Feed, int] = {feed: feed.resume_at for feed in self._absent if feed.resume_at < floor}
        late.update((feed, feed.position) for feed in self._lagging if feed.position < floor and not feed.is_live)
        count_losses(losing, late, self._trie.match)
        for feed in late:
            if feed.link is None:
                feed.resume_at = floor
            else:
                feed.position = floor
