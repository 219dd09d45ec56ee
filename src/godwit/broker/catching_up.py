"""What a subscription gets that is not live: retained messages first, then what the log has, with its gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from godwit.broker.catalogue import Catalogue, Names
from godwit.broker.effects import Found
from godwit.broker.feed import Feed
from godwit.broker.lane import routed
from godwit.broker.session import Link
from godwit.broker.trie import matches
from godwit.broker.trim import without_first
from godwit.wire.batch import RETAIN, Entry
from godwit.wire.control import Gap

if TYPE_CHECKING:
    from godwit.broker.delivery import Delivery

RETAINED_A_TURN: Final = 2000
LOOKS_A_TURN: Final = 5000
"""Filters that are laid over topics for one feed; then the others have their turn."""


class CatchingUp:
    """Feed: on_found, send_retained. It pushes through the delivery, whose part it is."""

    def __init__(self, delivery: Delivery, catalogue: Catalogue, names: Names) -> None:
        self._delivery = delivery
        self._catalogue = catalogue
        self._names = names

    def on_found(self, found: Found) -> None:
        """What the log had for a feed that is behind."""
        feed = found.read.feed
        link = feed.link
        if link is None or found.read is not feed.reading:
            return
        self._delivery.stop_reading(feed, link)
        if not feed.waiting_retained:
            self._send_found(feed, link, found)
        self._delivery.pump(link)

    def _send_found(self, feed: Feed, link: Link, found: Found) -> None:
        """As far as there is room; the next confirm lets it go on."""
        # The log may have more by now than has been forwarded to those who are live.
        end_offset = min(found.next_offset, self._delivery.next_offset)
        damaged = found.damaged[::-1]
        matching: dict[str, bool] = {}
        if feed.lost:
            self._tell(feed, link)
        for offset, entry in found.entries:
            end = offset + entry.count
            if offset >= end_offset:
                break
            if end <= feed.position:
                continue
            while damaged and damaged[-1][0] <= offset:
                _pass_damage(feed, *damaged.pop())
            _pass_hole(feed, offset)
            if entry.topic not in matching:
                if len(matching) * len(feed.filters) > LOOKS_A_TURN:
                    return
                matching[entry.topic] = feed.matches(entry.topic)
            if matching[entry.topic]:
                if not self._send_entry(feed, link, offset, entry):
                    return
                feed.sent_below = end
            feed.position = end
        while damaged and damaged[-1][0] < end_offset:
            _pass_damage(feed, *damaged.pop())
        _pass_hole(feed, end_offset)

    def _send_entry(self, feed: Feed, link: Link, offset: int, entry: Entry) -> bool:
        """False: there is no room for it."""
        if feed.lost:
            self._tell(feed, link)
        if offset < feed.position:
            entry = without_first(entry, feed.position - offset)
            offset = feed.position
        if not feed.may_hold(link, len(entry.rest)):
            feed.is_full = True
            return False
        topic = self._catalogue.adopt(entry.topic)
        publisher = self._names.number(entry.publisher)
        head, rest = routed(entry, entry.flags & ~RETAIN, topic.number, publisher, offset)
        self._delivery.push(feed, link, topic, publisher, entry, head, rest, offset)
        return True

    def _tell(self, feed: Feed, link: Link) -> None:
        """What it has missed, in the place where it is missing."""
        gap = Gap(count=feed.lost, next_offset=feed.position)
        link.unconfirmed_bytes += feed.lane.say(gap, feed.position, feed.sent_below)
        feed.sent_below = feed.position
        feed.gaps.append((feed.lane.next_record - 1, feed.lost, feed.position))
        feed.lost = 0

    def send_retained(self, feed: Feed, link: Link) -> None:
        """As many as the window allows, and not too many in one turn; the client's confirm lets it go on."""
        waiting = feed.waiting_retained
        left = RETAINED_A_TURN
        looks = LOOKS_A_TURN
        while waiting:
            place, after = waiting.pop()
            for next_place, topic in self._catalogue.with_retained(feed.filters[place], after):
                if not feed.may_hold(link, 1) or left == 0 or looks <= 0:
                    waiting.append((place, after))
                    return
                after = next_place
                looks -= 1
                if topic is None:
                    continue
                looks -= place
                kept = topic.kept
                if kept is None or any(matches(pattern, after) for pattern in feed.filters[:place]):
                    continue  # one of the filters before it sends it
                if kept.serial > feed.kept_before or (kept.qos and kept.offset >= feed.position):
                    continue  # newer than the subscription: it came live, or comes from the log
                left -= 1
                entry = kept.entry(after)
                publisher = self._names.number(kept.publisher)
                head, rest = routed(entry, entry.flags, topic.number, publisher, kept.offset)
                self._delivery.push(feed, link, topic, publisher, entry, head, rest, feed.position)


def _pass_damage(feed: Feed, begin: int, end: int) -> None:
    """How much of it was for the feed, nobody knows: all counts."""
    _pass_hole(feed, begin)
    feed.lost += max(end - feed.position, 0)
    feed.position = max(end, feed.position)


def _pass_hole(feed: Feed, offset: int) -> None:
    """Up to the offset there is nothing. Retention makes holes: of other topics, of messages that it told of and that
    were counted then, or of some that the feed should have had."""
    if offset > feed.position:
        feed.lost += max(min(offset, feed.holes_below) - feed.position, 0)
        feed.position = offset
