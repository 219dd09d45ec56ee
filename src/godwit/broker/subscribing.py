"""Requests about subscriptions: subscribe, unsubscribe, commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from godwit.broker.catalogue import JOBS, Catalogue, TooManyTopicsError
from godwit.broker.commits import Commits
from godwit.broker.delivery import Delivery
from godwit.broker.effects import Effect, Locate, Notice, Send
from godwit.broker.failure import RequestFailure
from godwit.broker.feed import Feed
from godwit.broker.journal import Journal
from godwit.broker.session import Link, Session, check_name
from godwit.broker.topics import check_filter, is_pattern, split
from godwit.errors import BadFilterError, UsageError
from godwit.limits import MAX_FILTER_LEVELS, MAX_FILTER_NODES, MAX_FILTER_PLACES
from godwit.wire.changes import SubscriptionRow
from godwit.wire.control import CursorCommit, Subscribe, Subscribed, Unsubscribe, encode_control
from godwit.wire.control_base import Code
from godwit.wire.epochs import Epoch, same_below

LOOKUPS_AT_ONCE: Final = 4
"""Starts by time, of one client, that the log is asked for; the others wait."""
MAX_TO_LOCATE: Final = 64
"""So many wait, because each holds its filters."""


class Subscribing:
    """Each method is one request; what cannot be done is a RequestFailure."""

    def __init__(
        self,
        catalogue: Catalogue,
        delivery: Delivery,
        commits: Commits,
        journal: Journal,
        effects: list[Effect],
        epochs: Sequence[Epoch] = (),
    ) -> None:
        self._catalogue = catalogue
        self._delivery = delivery
        self._commits = commits
        self._journal = journal
        self._effects = effects
        self._epochs = epochs
        self._next_serial = 0

    def subscribe(self, link: Link, session: Session, request: Subscribe, offset: int | None = None) -> None:
        """`offset`: what request.since_us was found to mean."""
        filters = self._check(session, request)
        feed = session.feeds.get((filters, request.cursor))
        if feed is not None and feed.link is not None:
            self._reply(link, request, feed, is_new=False, must_wait=False)
            return
        number = request.subscription
        if number in link.feeds or number in link.locating or number in link.to_locate:
            raise RequestFailure(Code.MALFORMED, f"subscription {number} exists with other filters")
        if feed is None:
            self._require_room(session, filters)
        if request.since_us is not None and offset is None:
            if len(link.to_locate) >= MAX_TO_LOCATE:
                text = f"{MAX_TO_LOCATE} subscriptions wait for their start to be looked up: try again later"
                raise RequestFailure(Code.TOO_MANY, text)
            link.to_locate[number] = request
            self._look_up(link)
            return
        known_below = self._known_below(request)
        start = self._start(request, feed, offset, known_below)
        self._create_topics(session, filters)
        is_latest = request.start == "latest" or (request.start is None and offset is None)
        with_retained = request.retained or (feed is None and is_latest)
        resumes = feed is not None and request.start is None and offset is None
        is_offset = offset is not None or isinstance(request.start, int)
        end = self._delivery.next_offset
        if feed is not None and is_offset and feed.is_resumed_from(start, end):
            start = feed.resumes_at(end)
            resumes = True
        must_wait = False
        if feed is None:
            feed = self._add(session, filters, request.cursor, start)
            self._delivery.add(feed)
            self._journal.session(session)
            must_wait = self._journal.feed(feed)
            text = f"{session.name} subscribed to {', '.join(filters)}"
            self._effects.append(Notice("subscribed", text, session.fields(filters=list(filters), offset=start)))
        if known_below is not None and isinstance(request.start, int) and request.start > known_below:
            self._tell_replaced(session, filters, request.start, known_below)
        self._delivery.attach(
            feed,
            link,
            request.subscription,
            start,
            resumes=resumes,
            with_retained=with_retained,
            is_earliest=request.start == "earliest" or (known_below == 0 and request.start != 0),
        )
        self._reply(link, request, feed, is_new=True, must_wait=must_wait, known_below=known_below)

    def _add(self, session: Session, filters: tuple[str, ...], cursor: str | None, offset: int) -> Feed:
        feed = Feed(self._next_serial, session, filters, cursor, offset)
        self._next_serial += 1
        session.feeds[filters, cursor] = feed
        session.filter_levels += _levels(filters)
        return feed

    def restore(self, session: Session, kept: SubscriptionRow) -> None:
        """A subscription that was there before the broker was restarted."""
        feed = self._add(session, kept.filters, kept.cursor, kept.resume_at)
        feed.lost = kept.lost
        feed.quiet_from = kept.resume_at if kept.quiet_from is None else kept.quiet_from
        feed.is_stored = True
        feed.is_settled = feed.is_stored_settled = kept.is_settled
        self._delivery.restore(feed)

    def _look_up(self, link: Link) -> None:
        """The starts of those that wait, the oldest first."""
        while link.to_locate and link.lookups < LOOKUPS_AT_ONCE:
            number = next(iter(link.to_locate))
            request = link.locating[number] = link.to_locate.pop(number)
            assert request.since_us is not None
            link.lookups += 1
            self._effects.append(Locate(link.connection, request, request.since_us))

    def on_located(self, link: Link, session: Session, request: Subscribe, offset: int) -> None:
        """The start of a subscription was looked up; it may have been given up meanwhile."""
        link.lookups -= 1
        self._look_up(link)
        if link.locating.get(request.subscription) is request:
            del link.locating[request.subscription]
            self.subscribe(link, session, request, offset)

    def unsubscribe(self, link: Link, session: Session, request: Unsubscribe) -> None:
        if request.subscription in link.locating or request.subscription in link.to_locate:
            link.locating.pop(request.subscription, None)
            link.to_locate.pop(request.subscription, None)
            return
        feed = self._feed(link, request.subscription)
        if request.keep:
            self._delivery.pause(feed, self._reached(request.offset, request.epochs))
            return
        self.end(session, feed)
        text = f"{session.name} unsubscribed from {', '.join(feed.filters)}"
        self._effects.append(Notice("unsubscribed", text, session.fields(filters=list(feed.filters))))

    def end(self, session: Session, feed: Feed) -> None:
        if session.feeds.pop((feed.filters, feed.cursor), None) is not None:
            session.filter_levels -= _levels(feed.filters)
        self._delivery.end(feed)
        self._journal.session(session)  # it may hold nothing any more

    def commit(self, link: Link, request: CursorCommit) -> None:
        feed = self._feed(link, request.subscription)
        if feed.cursor is None:
            raise RequestFailure(
                Code.MALFORMED, "the subscription has no named cursor: it moves by itself; subscribe with cursor=..."
            )
        offset = self._reached(request.offset, request.epochs)
        if offset is None:
            return  # of messages that this log does not have: it goes on from where its cursor stands here
        if offset > self._delivery.next_offset:
            raise RequestFailure(Code.MALFORMED, f"offset {offset} does not exist yet")
        feed.gaps = [gap for gap in feed.gaps if gap[2] > offset]
        self._delivery.quiet.rewind(feed, offset, self._delivery.next_offset)
        self._journal.feed(feed)

    # -- the parts ----------------------------------------------------------------------------------------------------

    def _check(self, session: Session, request: Subscribe) -> tuple[str, ...]:
        access = self._catalogue.settings.access
        try:
            for pattern in request.filters:
                check_filter(pattern)
            if request.cursor is not None:
                check_name(request.cursor)
        except BadFilterError as error:
            raise RequestFailure(Code.BAD_FILTER, str(error)) from None
        except UsageError as error:
            raise RequestFailure(Code.BAD_NAME, f"as a cursor: {error}") from None
        if request.start is not None and request.since_us is not None:
            raise RequestFailure(Code.MALFORMED, "a start and a time: give one of them")
        for pattern in request.filters:
            if not access.may(session.name, session.is_proved, "subscribe", pattern):
                raise RequestFailure(Code.NOT_ALLOWED, f"{session.name} may not subscribe to {pattern!r}")
        return tuple(sorted(set(request.filters)))

    def _require_room(self, session: Session, filters: tuple[str, ...]) -> None:
        most = self._catalogue.settings.max_subscriptions
        if len(session.feeds) >= most:
            raise RequestFailure(Code.TOO_MANY, f"{session.name} has {most} subscriptions, which is the limit here")
        if session.filter_levels + _levels(filters) > MAX_FILTER_LEVELS:
            text = f"the filters of {session.name} have more than {MAX_FILTER_LEVELS} levels: use fewer or shorter ones"
            raise RequestFailure(Code.TOO_MANY, text)
        if (
            self._delivery.filter_nodes >= MAX_FILTER_NODES
            or self._delivery.filter_places + len(filters) > MAX_FILTER_PLACES
        ):
            text = "the subscriptions of all clients take all of their room: try again later"
            raise RequestFailure(Code.TOO_MANY, text)

    def _create_topics(self, session: Session, filters: tuple[str, ...]) -> None:
        """A filter without wildcards is the name of a topic, which must be there or come into being."""
        missing = [name for name in filters if not is_pattern(name) and self._catalogue.get(name) is None]
        for name in missing:
            if name.startswith(JOBS):
                continue  # of a kind that nobody has submitted yet
            if name.startswith("$") or self._catalogue.settings.policy_of(name) != "open":
                raise RequestFailure(Code.NO_SUCH_TOPIC, f"topic {name!r} does not exist")
        try:
            for name in missing:
                self._catalogue.create(name, creator=session.name)
        except TooManyTopicsError as error:
            raise RequestFailure(Code.TOO_MANY, str(error)) from None

    def _known_below(self, request: Subscribe) -> int | None:
        """Return the offset below which the log has what the client read, or None if the client did not ask."""
        if not request.epochs or not isinstance(request.start, int):
            return None
        return same_below(request.epochs, self._epochs, self._delivery.next_offset)

    def _reached(self, offset: int | None, epochs: list[Epoch]) -> int | None:
        """Return how far a client is that has done everything below an offset; None if that is not known here.

        It may have asked before an older copy of the log was put back.
        """
        if not epochs or offset is None:
            return offset
        return min(offset, same_below(epochs, self._epochs, self._delivery.next_offset)) or None

    def _tell_replaced(self, session: Session, filters: tuple[str, ...], asked: int, known_below: int) -> None:
        text = (
            f"{session.name} has read {', '.join(filters)} up to offset {asked}, and this log has other messages from "
            f"offset {known_below} on: it is an older copy of the one that {session.name} knows. It continues at "
            f"{known_below}; confirmed messages that only the newer one has are lost"
        )
        fields = session.fields(filters=list(filters), offset=asked, same_below=known_below)
        self._effects.append(Notice("replaced", text, fields))

    def _start(self, request: Subscribe, feed: Feed | None, offset: int | None, known_below: int | None) -> int:
        end = self._delivery.next_offset
        if offset is not None:
            return min(offset, end)
        if request.start is None:
            return end if feed is None else feed.resumes_at(end)
        if request.start == "latest":
            return end
        if request.start == "earliest":
            return self._delivery.first_offset
        if known_below is not None:
            return self._delivery.first_offset if known_below == 0 < request.start else min(request.start, known_below)
        if request.start > end:
            text = f"offset {request.start} does not exist: the log ends at {end}; it may be an older copy of it"
            raise RequestFailure(Code.NO_SUCH_OFFSET, text)
        return request.start

    def _feed(self, link: Link, number: int) -> Feed:
        feed = link.feeds.get(number)
        if feed is None:
            raise RequestFailure(Code.NOT_SUBSCRIBED, f"there is no subscription {number}")
        return feed

    def _reply(
        self,
        link: Link,
        request: Subscribe,
        feed: Feed,
        *,
        is_new: bool,
        must_wait: bool,
        known_below: int | None = None,
    ) -> None:
        """One that the session remembers is promised, so it must be safe first."""
        next_offset = max(feed.position, feed.sent_below)
        if is_new and next_offset == self._delivery.first_offset:
            # Messages before the log's beginning are reported as missed, and the connection may end before that report
            # arrives: the client asks for this offset again then, and gets the report again.
            asked = request.start if isinstance(request.start, int) else 0
            next_offset = max(next_offset - feed.lost, min(asked, next_offset))
        reply = Subscribed(
            request=request.request,
            subscription=feed.number,
            is_new=is_new,
            next_offset=next_offset,
            same_below=known_below,
        )
        if must_wait:
            self._commits.say(link, reply)
        else:
            self._effects.append(Send(link.connection, 0, encode_control(reply)))


def _levels(filters: tuple[str, ...]) -> int:
    return sum([len(split(text)) for text in filters])
