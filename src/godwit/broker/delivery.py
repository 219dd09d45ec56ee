"""From the log to the subscribers: matching, forwarding, windows, who is live, behind or absent, what is lost."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from godwit.broker.catalogue import Catalogue, Names, Topic
from godwit.broker.catching_up import CatchingUp
from godwit.broker.effects import Effect, Losing, Read, Send
from godwit.broker.feed import Feed
from godwit.broker.journal import Journal
from godwit.broker.lane import RECORD_BYTES, Lane, routed
from godwit.broker.losses import late_feeds, lose
from godwit.broker.quiet import QuietSubscriptions
from godwit.broker.session import Link
from godwit.broker.topics import is_pattern
from godwit.broker.trie import FilterTrie
from godwit.limits import MAX_UNRELIABLE_BYTES
from godwit.wire.batch import RETAIN, Entry
from godwit.wire.retention_floors import lost_below

_serial = attrgetter("serial")
LEAST_READ_BYTES: Final = 64 * 1024
READ_BYTES: Final = 512 * 1024
"""What a feed that is behind reads at once."""
READS_AT_ONCE: Final = 4
"""Of one client: however many subscriptions it has, the reads of others do not stand in line behind all of them."""


class Delivery:
    """Feed: attach, detach, forward, forward_live, on_confirm, on_found, on_losing. Drain: flush."""

    def __init__(self, catalogue: Catalogue, names: Names, journal: Journal, effects: list[Effect]) -> None:
        self._catalogue = catalogue
        self._journal = journal
        self._effects = effects
        self._catching_up = CatchingUp(self, catalogue, names)
        self.on_found = self._catching_up.on_found
        self._trie: FilterTrie[Feed] = FilterTrie()
        self._generation = 0
        """Changes with every subscription that comes or goes: routes of an older one are worked out anew."""
        self._dirty: dict[Feed, None] = {}
        """Feeds with pieces that wait for the end of the turn."""
        self._lagging: dict[Feed, None] = {}
        """Connected feeds that have something unconfirmed or are behind: they need the log's past."""
        self._absent: dict[Feed, None] = {}
        self.quiet = QuietSubscriptions(journal, self._matching)
        self._needed_bound = 0
        """No connected feed needs anything below, as far as was last worked out."""
        self.marks: dict[str, int] = {}
        """How far retention has thinned out the log, by rule: see godwit.wire.retention_floors."""
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
        self._generation += 1
        for pattern in feed.filters:
            self._trie.add(pattern, feed)
        self._absent[feed] = None
        self.subscriptions += 1

    def attach(
        self,
        feed: Feed,
        link: Link,
        number: int,
        offset: int,
        *,
        resumes: bool = False,
        with_retained: bool = False,
        is_earliest: bool = False,
    ) -> None:
        """Its client is there: begin at the offset.

        `resumes`: it goes on where its session stood. `is_earliest`: it asked for whatever there is.
        """
        self._generation += 1
        self._absent.pop(feed, None)
        feed.link = link
        feed.number = number
        feed.is_live = feed.is_abandoned = feed.is_full = False
        if not resumes:
            # How many of these were for it is known only of those that left the log while it was absent.
            missed = max(self.first_offset - offset, 0)
            thinned_below = lost_below(self.marks, feed.filters)
            if offset >= feed.counted_from:
                feed.lost = min(feed.lost, missed + max(thinned_below - max(offset, self.first_offset), 0))
            else:
                feed.lost = missed
                feed.holes_below = 0 if is_earliest else thinned_below
                feed.thinned_below = thinned_below if is_earliest else 0
        self.quiet.begin(feed, offset, self.next_offset, resumes=resumes)
        offset = max(offset, self.first_offset)
        feed.position = offset
        feed.live_number = 0
        channel, live_channel = link.take_channels()
        feed.lane = Lane(link.connection, channel, self._effects)
        feed.live_lane = Lane(link.connection, live_channel, self._effects)
        link.feeds[number] = feed
        link.lanes[channel] = link.lanes[live_channel] = feed
        link.unconfirmed_bytes += feed.lane.begin(number, live=False, offset=offset, after=feed.sent_below)
        link.unconfirmed_bytes += feed.live_lane.begin(number, live=True, offset=offset, after=feed.sent_below)
        feed.kept_before = self._catalogue.keeps
        feed.waiting_retained = [(place, "") for place in range(len(feed.filters))] if with_retained else []
        self._fall_behind(feed, link)
        self._needed_bound = min(self._needed_bound, offset)
        self._go_on(feed, link)
        self.quiet.offer(feed)

    def detach(self, feed: Feed) -> None:
        """Its client is gone; the feed stays, for as long as its session."""
        link = feed.link
        if link is None:
            return
        self._generation += 1
        self.quiet.leave(feed)
        feed.resume_at, feed.quiet_from, _ = feed.standing(self.next_offset)
        feed.counted_from = feed.resume_at
        gone = self.first_offset - feed.resume_at
        owed = feed.owed()
        feed.lost += owed
        feed.gaps.clear()
        if gone > 0 and feed.cursor is None:
            # What it was sent and did not confirm, as far as the log cannot send it again.
            feed.lost += sum(count for _, offset, *_, count in feed.lane.unconfirmed if offset < self.first_offset)
        elif gone > 0:
            feed.lost = gone + owed  # how many of them were for it is unknown: not more than these
        feed.resume_at = max(feed.resume_at, self.first_offset)
        self._note_holes(feed)
        self._settle(feed, link)
        feed.link = None
        feed.is_live = False
        feed.waiting_retained.clear()
        del feed.lane, feed.live_lane
        self._absent[feed] = None
        if not (feed.is_settled and feed.is_stored_settled):
            self._journal.feed(feed)

    def _note_holes(self, feed: Feed) -> None:
        """What it has not taken yet may have been thinned out: nobody has counted that."""
        thinned_below = lost_below(self.marks, feed.filters)
        feed.holes_below = thinned_below if thinned_below > max(feed.resume_at, feed.thinned_below) else 0

    def restore(self, feed: Feed) -> None:
        """It was there before the broker was restarted."""
        feed.resume_at = min(feed.resumes_at(self.next_offset), self.next_offset)
        feed.quiet_from = min(feed.quiet_from, feed.resume_at)
        feed.lost += max(self.first_offset - feed.resume_at, 0)
        feed.resume_at = feed.counted_from = max(feed.resume_at, self.first_offset)
        self._note_holes(feed)
        self.add(feed)

    def pause(self, feed: Feed, offset: int | None = None) -> None:
        """Its channels are closed; it stays, as if its client were gone. `offset`: it was done with what is below."""
        link = feed.link
        if link is not None:
            lanes = (feed.lane, feed.live_lane)
            self.detach(feed)
            if offset is not None and feed.cursor is None and self.first_offset <= offset <= self.next_offset:
                self.quiet.rewind(feed, offset, self.next_offset)
                feed.counted_from = feed.resume_at
                feed.lost = 0
                self._note_holes(feed)
            if link.is_open:
                for lane in lanes:
                    self._effects.append(Send(link.connection, lane.channel, b"", last=True))
                self.pump(link)

    def end(self, feed: Feed) -> None:
        """The subscription is over."""
        self.pause(feed)
        self.quiet.forget(feed)
        self._generation += 1
        for pattern in feed.filters:
            self._trie.remove(pattern, feed)
            if not is_pattern(pattern) and pattern not in self._trie:
                self._catalogue.release(pattern)
        self._absent.pop(feed, None)
        self.subscriptions -= 1
        self._journal.feed(feed)

    def _settle(self, feed: Feed, link: Link) -> None:
        """Takes the feed off its link's books."""
        for lane in (feed.lane, feed.live_lane):
            link.unconfirmed_bytes -= sum(size for *_, size, _ in lane.unconfirmed)
            del link.lanes[lane.channel]
        link.unconfirmed_bytes -= feed.lane.pieces_bytes
        del link.feeds[feed.number]
        link.behind.pop(feed, None)
        self.stop_reading(feed, link)
        self._dirty.pop(feed, None)
        self._lagging.pop(feed, None)

    # -- from the log, as it grows ------------------------------------------------------------------------------------

    def routes(self, topic: Topic) -> list[Feed]:
        """The connected subscriptions that match a topic."""
        if topic.generation != self._generation:
            self._matching(topic)
        return topic.routes

    def _matching(self, topic: Topic) -> list[Feed]:
        """All subscriptions that match a topic."""
        if topic.generation != self._generation:
            topic.generation = self._generation
            topic.matching = sorted(self._trie.match(topic.name), key=_serial)
            topic.routes = [feed for feed in topic.matching if feed.link is not None]
        return topic.matching

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
                    self.push(feed, link, topic, publisher, entry, head, rest, offset)
                    feed.sent_below = end
        return len(feeds)

    def on_committed(self, next_offset: int) -> None:
        """Everything below this offset is in the log and was forwarded. Feeds at its end may be live from now on."""
        self.next_offset = next_offset

    def push(
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
        lane.add(head, rest, offset, feed.sent_below, entry.count)
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
            lane.add(head, rest, 0, 0, 0)
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
        if feed.gaps and feed.cursor is None and lane is feed.lane:
            feed.gaps = [gap for gap in feed.gaps if gap[0] > record]
        if feed.is_live and not feed.lane.unconfirmed and not feed.lane.pieces:
            self._lagging.pop(feed, None)
        if self._journal.keeps and feed.cursor is None and not feed.is_settled:
            self._journal.moved[feed] = None
        if link.behind and (link.unconfirmed_bytes <= link.window_bytes // 2 or not feed.lane.held_bytes):
            for behind in link.behind:
                behind.is_full = False
            self.pump(link)

    def pump(self, link: Link) -> None:
        """Lets the feeds that are behind go on, in turn, as far as the client's window and its reads allow."""
        for feed in list(link.behind):
            if link.unconfirmed_bytes >= link.window_bytes or link.reads >= READS_AT_ONCE:
                return
            self._go_on(feed, link)

    def _go_on(self, feed: Feed, link: Link) -> None:
        if feed.reading is not None or feed.is_full or not feed.may_hold(link, 1):
            return
        self._catching_up.send_retained(feed, link)
        if feed.waiting_retained:
            if feed.may_hold(link, 1):  # it has looked at many: on_found lets it go on
                self._read(feed, link, 1)
        elif feed.position >= self.next_offset and not feed.lost:
            feed.is_live = True
            feed.is_abandoned = False
            del link.behind[feed]
            if not feed.lane.unconfirmed and not feed.lane.pieces:
                self._lagging.pop(feed, None)
        else:
            room = (link.window_bytes - link.unconfirmed_bytes) // len(link.behind)
            # Not too little: what is not for it costs no room.
            self._read(feed, link, max(LEAST_READ_BYTES, min(room, READ_BYTES)))

    def _read(self, feed: Feed, link: Link, max_bytes: int) -> None:
        """Unless others read: on_found has it go on then."""
        if link.reads < READS_AT_ONCE:
            link.reads += 1
            feed.reading = Read(feed, feed.position, max_bytes)
            self._effects.append(feed.reading)
            # The others have their turn first next time.
            del link.behind[feed]
            link.behind[feed] = None

    def stop_reading(self, feed: Feed, link: Link) -> None:
        """It has its answer, or needs none any more."""
        if feed.reading is not None:
            feed.reading = None
            link.reads -= 1

    def _fall_behind(self, feed: Feed, link: Link) -> None:
        feed.is_live = False
        link.behind[feed] = None
        self._lagging[feed] = None

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
        return bool(late_feeds(self._absent, self._lagging, floor))

    def on_losing(self, losing: Losing) -> None:
        """Counts for everyone what they will not get."""
        late = late_feeds(self._absent, self._lagging, losing.floor)
        lose(losing, late, self.marks, self._trie.match)
        if losing.pattern is None:
            self.first_offset = losing.floor
        if self._journal.keeps:
            self._journal.moved.update(dict.fromkeys(late))
