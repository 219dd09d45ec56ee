"""One subscription of one client: how far it has come, and its two channels while the client is connected.

    absent --attach--> behind --has come to the end of the log--> live
      ^                  ^------the client takes too slowly---------/
      \\--detach, from either

A live feed gets every batch as it is committed. One that is behind gets nothing pushed: it reads the log as fast as its
client takes it, so that a slow subscriber costs no more than its window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from godwit.broker.lane import Lane
from godwit.broker.trie import matches

if TYPE_CHECKING:
    from godwit.broker.effects import Read
    from godwit.broker.session import Link, Session

SHARE: Final = 3
"""A feed may hold so many times what is free of its client's window: alone three quarters of it. So the others of the
same client go on, whatever one leaves untaken."""


class Feed:
    """A subscription's state. Delivery moves it."""

    __slots__ = (
        "counted_from",
        "cursor",
        "filters",
        "gaps",
        "holes_below",
        "is_abandoned", "is_full", "is_live", "is_settled", "is_stored", "is_stored_settled",
        "kept_before",
        "lane",
        "link",
        "live_lane",
        "live_number",
        "lost",
        "number",
        "position",
        "quiet_from",
        "reading",
        "resume_at",
        "sent_below",
        "serial",
        "session",
        "thinned_below",
        "waiting_retained",
    )  # fmt: skip

    NOWHERE: Final = 2**63
    lane: Lane
    live_lane: Lane

    def __init__(
        self, serial: int, session: Session, filters: tuple[str, ...], cursor: str | None, offset: int
    ) -> None:
        self.serial = serial
        """Feeds are served in the order in which they came."""
        self.session = session
        self.filters = filters
        """Sorted, each once."""
        self.cursor = cursor
        """With a name it moves by commits alone."""
        self.number = 0
        """What the client calls it on the present connection."""
        self.link: Link | None = None
        self.is_live = False
        self.reading: Read | None = None
        """What the log is being asked for; its answer to anything else comes too late."""
        self.is_full = False
        """What it read last has no room in its client's window; it waits for a confirm."""
        self.is_abandoned = False
        """Publishers have waited for it long enough, and do so again only when it has caught up once."""
        self.position = offset
        """Unless it is live: everything below was sent, or is not for this feed, or is lost."""
        self.sent_below = offset
        """The offset behind the last message that was sent or reported as missed. Nothing for this feed is between here
        and its position, or the log's end if it is live."""
        self.resume_at = offset
        """Where it goes on after a break: kept up to date while absent or with a named cursor."""
        self.quiet_from = offset
        """Nothing for this feed is between here and `resume_at`, and kept up to date when that is."""
        self.is_settled = False
        """The client has everything that the log has for it: whatever `resume_at` is, it would resume at the log's end.
        The append with the next message for it ends this."""
        self.is_stored_settled = False
        """Whether the store may have it as settled."""
        self.counted_from = self.NOWHERE
        """Where `lost` begins to count, since it is absent."""
        self.gaps: list[tuple[int, int, int]] = []
        """Reports of missed messages that are not settled: record, count, offset behind the missed messages. A confirm
        of the record settles one; with a named cursor, a commit of the offset."""
        self.kept_before = 0
        """Retained messages up to this one are older than the subscription."""
        self.lost = 0
        """Messages that left the log unsent; told with the next record."""
        self.holes_below = 0
        """Up to here retention has thinned out what it is to read, and nobody has counted what was for it: all that is
        missing there counts."""
        self.thinned_below = 0
        """Up to here retention had thinned out the log when it asked for whatever there is: that is no loss."""
        self.is_stored = False
        """Whether it is written down, and outlives a restart."""
        self.waiting_retained: list[tuple[int, str]] = []
        """The filters (by their place) whose retained messages are still to be sent, and behind which topic."""
        self.live_number = 0
        """Counts the messages of QoS 0, sent or dropped: so the client can tell what it missed."""

    def matches(self, topic: str) -> bool:
        return any(matches(pattern, topic) for pattern in self.filters)

    def done_below(self, end_offset: int) -> int:
        """Below this the client has taken everything. `end_offset` is the log's end."""
        unconfirmed = self.lane.unconfirmed
        if unconfirmed:
            return unconfirmed[0][1]
        if self.lane.pieces:
            return self.lane.start
        return end_offset if self.is_live else self.position

    def taken_below(self) -> int:
        """Return the offset behind the last message that the client has taken. Nothing for it is between here and
        `done_below`."""
        unconfirmed = self.lane.unconfirmed
        if unconfirmed:
            return unconfirmed[0][2]
        return self.lane.start_after if self.lane.pieces else self.sent_below

    def has_everything(self) -> bool:
        """Return whether a connected client has taken all that the log has for it; with a named cursor: committed."""
        if not self.is_live or self.lost or self.gaps:
            return False
        if self.cursor is not None:
            return self.resume_at >= self.sent_below
        return not self.lane.pieces and not any(count for *_, count in self.lane.unconfirmed)

    def resumes_at(self, end_offset: int) -> int:
        """Return where it would resume if it is absent or has a named cursor. `end_offset` is the log's end."""
        return end_offset if self.is_settled else self.resume_at

    def is_resumed_from(self, offset: int, end_offset: int) -> bool:
        """Return whether it would get the same from this offset on as from where it would resume. A client that comes
        back asks for what is behind the last message that it got."""
        if self.lost:  # a client that names `counted_from` or a later offset does not miss all of it
            return self.quiet_from <= offset < min(self.counted_from, self.resumes_at(end_offset))
        return self.quiet_from <= offset <= self.resumes_at(end_offset)

    def standing(self, end_offset: int) -> tuple[int, int, int]:
        """Return where it would resume after a restart, since where nothing was for it, and how much it would have
        missed."""
        lost = self.lost + self.owed()
        if self.link is not None and self.cursor is None:
            return self.done_below(end_offset), self.taken_below(), lost
        has_everything = self.is_settled or (self.link is not None and self.has_everything())
        return end_offset if has_everything else self.resume_at, self.quiet_from, lost

    def owed(self) -> int:
        """Return how many messages were reported as missed, to be reported again to the next connection.

        Those behind a cursor's position are found missing again when the log is read from there.
        """
        return sum([count for *_, count, offset in self.gaps if self.cursor is None or offset <= self.resume_at])

    def may_hold(self, link: Link, size: int) -> bool:
        """Whether so much more may be under way to it. One that holds nothing may have any message while there is room
        at all, so that none is too long: only the last may go beyond the window."""
        free_bytes = link.window_bytes - link.unconfirmed_bytes
        held_bytes = self.lane.held_bytes
        return held_bytes + size <= SHARE * free_bytes if held_bytes else free_bytes > 0
