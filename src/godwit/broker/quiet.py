"""Quiet subscriptions: those whose clients have everything that the log has for them.

A subscription whose topics are quiet would keep an old position in the store: after a restart it would read all that
others published since, and retention of that would look like a loss. Writing its position again and again would cost a
row for each such subscription. So it is stored once as *settled*: it resumes at the end of the log, wherever that is.

    active --has everything, and has had nothing to take in some sweeps--> settled
      ^--an append that has a message for it: in the same transaction--/

The store is right at any moment because of two rules. An append that has a message for a settled subscription stores
its position with it, so a stored `settled` says that nothing in the stored log is for it. And a subscription settles
only if no append that is under way has a message for it. Whether its client is connected does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from godwit.broker.catalogue import Topic
from godwit.broker.feed import Feed
from godwit.broker.journal import SAVED_AT_ONCE, Journal

IDLE_SWEEPS: Final = 3
"""A connected subscription settles when nothing was sent to it between two sweeps that are this many apart: one with
steady traffic would be stored twice for each message."""


class QuietSubscriptions:
    """Feed: begin, offer, leave, forget, rewind, sweep; hold and on_failed, which report the outcome of appends.
    Drain at the end of a turn, before the journal is taken: settle, then unsettle_all.

    `matching` returns all subscriptions that match a topic.
    """

    def __init__(self, journal: Journal, matching: Callable[[Topic], Iterable[Feed]]) -> None:
        self._journal = journal
        self._matching = matching
        self._watched: dict[Feed, tuple[int, int]] = {}
        """Connected and not settled: how far it had been sent to in which sweep, the oldest first."""
        self.candidates: dict[Feed, None] = {}
        """Those that settle at the end of the turn, unless an append has something for them."""
        self._sweeps = 0
        self._settlings = 0
        """Changes when a subscription settles: topics that were looked at before are looked at again."""

    @property
    def is_watching(self) -> bool:
        """Whether sweeps are needed."""
        return bool(self._watched)

    def begin(self, feed: Feed, offset: int, end_offset: int, *, resumes: bool) -> None:
        """The client is connected, and is sent what is from an offset on. `resumes`: its session stood there."""
        self.candidates.pop(feed, None)
        if resumes:
            feed.sent_below = feed.quiet_from
        else:
            self.unsettle(feed, end_offset)
            feed.sent_below = offset
        if not feed.is_settled:
            self._watch(feed)

    def offer(self, feed: Feed) -> None:
        """Settle it at the end of the turn, if it has everything: it begins at the end of the log, or is about to be
        absent."""
        if self._journal.keeps and not feed.is_settled and feed.has_everything():
            self.candidates[feed] = None

    def leave(self, feed: Feed) -> None:
        """Its client is about to be gone."""
        self._watched.pop(feed, None)
        self.offer(feed)

    def forget(self, feed: Feed) -> None:
        """The subscription is over."""
        self._watched.pop(feed, None)
        self.candidates.pop(feed, None)

    def sweep(self) -> None:
        """Look for connected subscriptions that have had nothing to take for a while; called about once a second."""
        self._sweeps += 1
        for feed, (sent_below, swept) in list(islice(self._watched.items(), SAVED_AT_ONCE)):
            if self._sweeps - swept < IDLE_SWEEPS:
                break
            if feed.sent_below == sent_below and feed.has_everything():
                self.candidates[feed] = None
            del self._watched[feed]
            self._watched[feed] = feed.sent_below, self._sweeps

    def hold(self, topics: Iterable[Topic]) -> None:
        """Let no subscription settle in this turn that matches one of the topics."""
        for topic in topics:
            for feed in self._matching(topic):
                self.candidates.pop(feed, None)

    def settle(self, under_way: Iterable[Topic]) -> None:
        """Settle the candidates but for those that an append under way has something for, on these topics."""
        self.hold(under_way)
        for feed in self.candidates:
            has_everything = not feed.lost if feed.link is None else feed.has_everything()
            if has_everything and self._journal.feed(feed):
                feed.is_settled = True
                self._watched.pop(feed, None)
        self.candidates.clear()
        self._settlings += 1

    def unsettle_all(self, topics: Iterable[Topic], end_offset: int) -> None:
        """An append brings messages on these topics: where the settled subscriptions stand is stored with it."""
        for topic in topics:
            if topic.settlings != self._settlings:
                topic.settlings = self._settlings
                for feed in self._matching(topic):
                    self.unsettle(feed, end_offset)

    def unsettle(self, feed: Feed, end_offset: int) -> None:
        """It may miss something from the end of the committed log on: its position is stored again."""
        if feed.is_settled:
            feed.is_settled = False
            feed.resume_at = feed.counted_from = end_offset
            if feed.link is not None:
                self._watch(feed)
        elif not feed.is_stored_settled:
            return
        self._journal.feed(feed)

    def rewind(self, feed: Feed, offset: int, end_offset: int) -> None:
        """An absent subscription, or one with a named cursor, is to resume at this offset."""
        if not feed.is_resumed_from(offset, end_offset):
            self.candidates.pop(feed, None)
            self.unsettle(feed, end_offset)
            feed.resume_at = feed.quiet_from = offset

    def _watch(self, feed: Feed) -> None:
        if self._journal.keeps:
            self._watched[feed] = feed.sent_below, self._sweeps

    def on_failed(self) -> None:
        """Appends failed: subscriptions may be stored as settled that are not."""
        self._settlings += 1
