"""Requests about subscriptions: subscribe, unsubscribe, commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from godwit.broker.append_queue import AppendQueue
from godwit.broker.catalogue import JOBS, Catalogue, TooManyTopicsError
from godwit.broker.delivery import Delivery
from godwit.broker.dirty_state import TABLE_KEY, DirtyState
from godwit.broker.effects import Effect, Locate, Located, Notice
from godwit.broker.groups import Groups
from godwit.broker.ports import (
    FilterRequest,
    Outbound,
    Peer,
    RequestFailure,
    SubscribeReply,
    SubscribeRequest,
    SubscribeResult,
)
from godwit.broker.session import Session, check_name, require_right
from godwit.broker.subscription import (
    BrokerSubscription,
    FilterTable,
    Lookup,
    PacketNumbers,
    RetainedRequest,
    TableFilter,
)
from godwit.broker.topics import check_filter
from godwit.errors import BadFilterError, UsageError
from godwit.limits import MAX_FILTER_LEVELS, MAX_FILTER_NODES, MAX_FILTER_PLACES
from godwit.wire.changes import FilterRow, PacketRow, SubscriptionRow
from godwit.wire.control_base import Code
from godwit.wire.epochs import Epoch, same_below
from godwit.wire.filters import GROUP_PREFIX, REPLIES, RESERVED, is_inbox, is_pattern, split, split_group

LOOKUPS_AT_ONCE: Final = 4
"""Per client: starts by time that the log is asked for at once."""
MAX_LOOKUPS: Final = 64
"""Per client: starts by time that wait for those; a waiting request holds its filters."""


@dataclass(eq=False)
class SubscriptionRequests:
    """Each method is one request. It raises RequestFailure, or refuses through the reply that it was given."""

    _catalogue: Catalogue
    _delivery: Delivery
    _queue: AppendQueue
    _dirty: DirtyState
    _effects: list[Effect]
    _epochs: Sequence[Epoch] = ()

    groups: Groups = field(init=False)

    def __post_init__(self) -> None:
        self._next_serial = 0

    def next_serial(self) -> int:
        """Return the number of the next subscription."""
        serial = self._next_serial
        self._next_serial += 1
        return serial

    def subscribe(self, peer: Peer, request: SubscribeRequest, outbound: Outbound, reply: SubscribeReply) -> None:
        """Attach a subscription of the peer's session to an outbound; create it if it is new.

        The outcome comes through `reply`: at once, or when the start was looked up and the subscription is stored.
        """
        try:
            request = _with_group(request)
            self._subscribe(peer, request, outbound, reply, None)
        except RequestFailure as failure:
            reply.refused(failure.code, failure.text)

    def _subscribe(
        self, peer: Peer, request: SubscribeRequest, outbound: Outbound, reply: SubscribeReply, offset: int | None
    ) -> None:
        """`offset`: the result of the lookup of request.since_us."""
        session = peer.session
        assert session is not None
        filters = self._check(session, request)
        if request.group is not None:
            self._join(peer, request, filters, outbound, reply, offset)
            return
        subscription = session.subscriptions.get((filters, request.cursor))
        if subscription is not None and subscription.peer is not None:
            reply.subscribed(self._result(request, subscription, is_new=False))
            return
        replaced: list[BrokerSubscription] = []
        if subscription is None:
            replaced = self._same_cursor(session, request.cursor)
            self._require_room(session, filters, replaced)
        former = min(replaced, key=_quiet_from, default=None)
        if request.since_us is not None and offset is None:
            self._begin_lookup(peer, request, outbound, reply)
            return
        known_below = self._known_below(request)
        start = self._start(request, subscription or former, offset, known_below)
        self._create_topics(session, filters)
        is_latest = request.start == "latest" or (request.start is None and offset is None and former is None)
        with_retained = request.retained or (subscription is None and is_latest)
        if request.retain_handling is not None:
            is_wanted = request.retained or subscription is None or request.retain_handling == "always"
            with_retained = request.retain_handling != "never" and is_wanted
        resumes = subscription is not None and request.start is None and offset is None
        is_offset = offset is not None or isinstance(request.start, int)
        end = self._delivery.next_offset
        if subscription is not None and is_offset and subscription.is_resumed_from(start, end):
            resume_at = subscription.resumes_at(end)
            below = max(resume_at, subscription.lost_until)
            subscription.lost = min(subscription.lost, below - start)  # the client does not miss earlier ones
            start = resume_at
            resumes = True
        must_wait = False
        if subscription is None:
            # An explicit start does not move a cursor: the next commit does.
            position = start if former is None else former.quiet_from
            subscription = self._add(session, filters, request.cursor, position)
            self._delivery.add(subscription)
            for one in replaced:  # after the new one was added, so that topics of all are kept
                self.end(one)
            self._dirty.session(session)
            must_wait = self._dirty.subscription(subscription)
            text = f"{session.name} subscribed to {', '.join(filters)}"
            self._effects.append(Notice("subscribed", text, session.fields(filters=list(filters), offset=start)))
        if known_below is not None and isinstance(request.start, int) and request.start > known_below:
            self._notify_replaced(session, filters, request.start, known_below)
        subscription.no_local = request.no_local
        subscription.is_responder = request.is_responder
        self._delivery.attach(
            subscription,
            peer,
            outbound,
            start,
            resumes=resumes,
            with_retained=with_retained,
            is_earliest=request.start == "earliest" or (known_below == 0 and request.start != 0),
        )
        result = self._result(request, subscription, is_new=True, known_below=known_below)
        if must_wait:  # the session remembers it: that is a promise
            self._queue.when_stored(peer, lambda: reply.subscribed(result))
        else:
            reply.subscribed(result)

    def _join(
        self,
        peer: Peer,
        request: SubscribeRequest,
        filters: tuple[str, ...],
        outbound: Outbound,
        reply: SubscribeReply,
        offset: int | None,
    ) -> None:
        """Subscribe as a member of a consumer group."""
        session = peer.session
        assert session is not None
        assert request.group is not None
        group = self.groups.get(request.group, filters)
        if group is None and request.since_us is not None and offset is None:
            self._begin_lookup(peer, request, outbound, reply)
            return
        self._require_room(session, filters)
        self.groups.require_room(session, request.group, filters)
        start = self._delivery.next_offset if group is not None else self._start(request, None, offset, None)
        self._create_topics(session, filters)
        member, must_wait = self.groups.join(
            peer,
            request.group,
            filters,
            outbound,
            start=start,
            expiry_s=request.group_expiry_s,
            limit=request.max_in_flight,
        )
        source = member.group.source
        position = source.restart_position(self._delivery.next_offset)[0]
        result = SubscribeResult(subscription=source, member=member, is_new=True, next_offset=position)
        if must_wait:
            self._queue.when_stored(peer, lambda: reply.subscribed(result))
        else:
            reply.subscribed(result)

    def _begin_lookup(self, peer: Peer, request: SubscribeRequest, outbound: Outbound, reply: SubscribeReply) -> None:
        if sum([not lookup.is_running for lookup in peer.lookups.values()]) >= MAX_LOOKUPS:
            text = f"{MAX_LOOKUPS} subscriptions wait for their start to be looked up: try again later"
            raise RequestFailure(Code.TOO_MANY, text)
        peer.lookups[outbound] = Lookup(peer, request, outbound, reply)
        self._look_up(peer)

    def _same_cursor(self, session: Session, cursor: str | None) -> list[BrokerSubscription]:
        """Return the subscriptions with this cursor and other filters, which a new one replaces.

        A cursor is one position, whatever its filters. A log of an older version may have several for one name: the new
        one continues from the furthest behind.
        """
        if cursor is None:
            return []
        same = [one for one in session.subscriptions.values() if one.cursor == cursor]
        for one in same:
            if one.peer is not None:
                text = (
                    f"the cursor {cursor!r} is in use by the subscription to {', '.join(one.filters)}: end that first, "
                    "or choose another cursor"
                )
                raise RequestFailure(Code.MALFORMED, text)
        return same

    def _add(self, session: Session, filters: tuple[str, ...], cursor: str | None, offset: int) -> BrokerSubscription:
        subscription = BrokerSubscription(self._next_serial, session, filters, cursor, offset)
        self._next_serial += 1
        session.subscriptions[filters, cursor] = subscription
        session.filter_levels += _levels(filters)
        return subscription

    def restore(self, session: Session, row: SubscriptionRow) -> None:
        """Add a subscription that existed before the broker was restarted."""
        subscription: BrokerSubscription
        if row.filters:
            subscription = self._add(session, row.filters, row.cursor, row.resume_at)
        else:
            subscription = table = self._add_table(session, row.resume_at, row.created_at)
            # A client that was connected may have been sent anything.
            table.numbers.sent_below = self._delivery.next_offset if session.is_awaited else row.sent_below
        subscription.lost = row.lost
        subscription.quiet_from = row.resume_at if row.quiet_from is None else row.quiet_from
        subscription.is_stored = True
        subscription.is_settled = subscription.is_stored_settled = row.is_settled
        self._delivery.restore(subscription)

    def _look_up(self, peer: Peer) -> None:
        """Ask the log for the starts of waiting requests, the oldest first."""
        for lookup in peer.lookups.values():
            if peer.running_lookups >= LOOKUPS_AT_ONCE:
                return
            if not lookup.is_running:
                assert lookup.request.since_us is not None
                lookup.is_running = True
                peer.running_lookups += 1
                self._effects.append(Locate(lookup, lookup.request.since_us))

    def on_located(self, event: Located, now_us: int) -> None:
        """The log has found a start. The request may have been withdrawn meanwhile."""
        lookup = event.locate.lookup
        peer = lookup.peer
        peer.running_lookups -= 1
        if not peer.is_open:
            return
        is_wanted = peer.lookups.get(lookup.outbound) is lookup
        if is_wanted:
            del peer.lookups[lookup.outbound]
        self._look_up(peer)
        if is_wanted:
            try:
                self._subscribe(peer, lookup.request, lookup.outbound, lookup.reply, event.offset)
            except RequestFailure as failure:
                lookup.reply.refused(failure.code, failure.text)

    def unsubscribe(
        self,
        peer: Peer,
        outbound: Outbound,
        *,
        pause: bool = False,
        offset: int | None = None,
        epochs: Sequence[Epoch] = (),
    ) -> None:
        """End the subscription of an outbound, or withdraw its request.

        `pause`: the session keeps it. `offset`: then the client has processed everything below, in a log with these
        `epochs`.
        """
        if peer.lookups.pop(outbound, None) is not None:
            return
        subscription = outbound.subscription
        if subscription is None:
            raise RequestFailure(Code.NOT_SUBSCRIBED, "the subscription has ended")
        if pause:
            self._delivery.pause(subscription, self._reached(offset, epochs))
            return
        session = subscription.session
        self.end(subscription)
        text = f"{session.name} unsubscribed from {', '.join(subscription.filters)}"
        self._effects.append(Notice("unsubscribed", text, session.fields(filters=list(subscription.filters))))

    def end(self, subscription: BrokerSubscription) -> None:
        """Delete a subscription."""
        session = subscription.session
        if session.subscriptions.pop(subscription.key, None) is not None:
            session.filter_levels -= _levels(subscription.filters)
        self._delivery.end(subscription)
        self._dirty.session(session)  # it may have nothing to remember now

    def remove(self, subscription: BrokerSubscription, by: str, reason: str) -> None:
        """Delete a subscription against the will of its client, and notify the client.

        A table loses its filters and remains, because its session needs it.
        """
        if isinstance(subscription, FilterTable):
            self._drop_filters(subscription, subscription.filters)
            return
        outbound = subscription.outbound if subscription.peer is not None else None
        self.end(subscription)
        if outbound is not None:
            outbound.removed(by, reason)

    def commit(self, subscription: BrokerSubscription, offset: int, epochs: Sequence[Epoch] = ()) -> None:
        """Move a named cursor: everything below the offset, in a log with these epochs, is processed."""
        if subscription.cursor is None:
            raise RequestFailure(
                Code.MALFORMED, "the subscription has no named cursor: it moves by itself; subscribe with cursor=..."
            )
        reached = self._reached(offset, epochs)
        if reached is None:
            return  # of messages that this log does not have: the cursor remains where it is
        if reached > self._delivery.next_offset:
            raise RequestFailure(Code.MALFORMED, f"offset {reached} does not exist yet")
        subscription.gaps = [gap for gap in subscription.gaps if gap[1] > reached]
        self._delivery.quiet.rewind(subscription, reached, self._delivery.next_offset)
        self._dirty.subscription(subscription)

    # -- a subscription whose filters come and go ---------------------------------------------------------------------

    def open_table(self, peer: Peer, outbound: Outbound) -> FilterTable:
        """Attach the one subscription of the peer's session whose filters come and go; create it if it is new."""
        session = peer.session
        assert session is not None
        end = self._delivery.next_offset
        table = session.subscriptions.get(TABLE_KEY)
        is_new = table is None
        if table is None:
            table = self._add_table(session, end, end)
            self._delivery.add(table)
            self._dirty.session(session)
            self._dirty.subscription(table)
        assert isinstance(table, FilterTable)
        self.remove_forbidden(table)
        self._delivery.attach(table, peer, outbound, table.resumes_at(end), resumes=not is_new)
        table.members.clear()
        for one in table.shared:
            try:
                self._join_shared(table, one)
            except RequestFailure:
                self.drop_shared(table, one.text)
        return table

    def _add_table(self, session: Session, offset: int, created_at: int) -> FilterTable:
        table = FilterTable(self._next_serial, session, offset, created_at)
        self._next_serial += 1
        session.subscriptions[TABLE_KEY] = table
        return table

    def restore_filter(self, session: Session, row: FilterRow) -> None:
        """Add a filter that existed before the broker was restarted, after its subscription."""
        table = session.subscriptions.get(TABLE_KEY)
        if isinstance(table, FilterTable):
            one = TableFilter(row.filter, row.since, row.options, row.identifier, row.until)
            table.is_written = True
            session.filter_levels += _levels((row.filter,))
            if is_inbox(row.filter) and row.until is None:
                self._catalogue.own(row.filter)
            if row.until is None and not one.is_shared:
                self._delivery.add_filter(table, one)
            else:
                table.put(one)

    def restore_packet(self, session: Session, row: PacketRow) -> None:
        """Add a handshake of QoS 2 that had begun before the broker was restarted."""
        table = session.subscriptions.get(TABLE_KEY)
        if isinstance(table, FilterTable):
            table.is_written = True
            if row.is_outgoing:
                table.numbers.released[row.number] = PacketNumbers.OPEN
            else:
                table.numbers.received[row.number] = None

    def add_filters(
        self,
        table: FilterTable,
        requests: Sequence[FilterRequest],
        reply: Callable[[list[RequestFailure | None]], None],
        failed: Callable[[str], None],
    ) -> None:
        """Add filters, or replace existing ones. `reply` gets the outcome of each when they are stored.

        Retained messages follow the reply. `failed` is called instead if they could not be stored yet.
        """
        peer = table.peer
        assert peer is not None
        results: list[RequestFailure | None] = []
        retained: list[RetainedRequest] = []
        for request in requests:
            try:
                is_new = self._add_filter(table, request)
            except RequestFailure as failure:
                results.append(failure)
                continue
            results.append(None)
            if request.retained == "always" or (is_new and request.retained == "if new"):
                retained.append(self._delivery.retained_request(request.filter))
        must_wait = False
        added = [request.filter for request, failure in zip(requests, results, strict=True) if failure is None]
        if added:
            session = table.session
            # An append under way may have messages for the new filters.
            self._delivery.quiet.unsettle(table, self._delivery.next_offset)
            must_wait = self._dirty.filters(table, added)
            text = f"{session.name} subscribed to {', '.join(added)}"
            self._effects.append(Notice("subscribed", text, session.fields(filters=added)))

        def answer() -> None:
            reply(results)
            if table.peer is peer:
                self._delivery.send_retained(table, retained)

        if must_wait:
            self._queue.when_stored(peer, answer, failed)
        else:
            answer()

    def _add_filter(self, table: FilterTable, request: FilterRequest) -> bool:
        """Return whether the filter is new."""
        session = table.session
        text = request.filter
        if text.startswith(GROUP_PREFIX):
            return self._add_shared(table, request)
        self._check_filter(session, text)
        known = table.table.get(text)
        if known is None:
            self._require_room(session, (text,))
            session.filter_levels += _levels((text,))
        since = self._delivery.next_offset if known is None else known.since
        self._delivery.add_filter(table, TableFilter(text, since, request.options, request.identifier))
        return known is None or known.until is not None

    def _add_shared(self, table: FilterTable, request: FilterRequest) -> bool:
        """Join a consumer group, or join it again with other options. Return False: no retained messages are sent."""
        text = request.filter
        one = TableFilter(text, self._delivery.next_offset, request.options, request.identifier)
        if text not in table.table:
            self._require_room(table.session, (text,))
        self._join_shared(table, one)
        if text not in table.table:
            table.session.filter_levels += _levels((text,))
        table.put(one)
        return False

    def _join_shared(self, table: FilterTable, one: TableFilter) -> None:
        session, peer = table.session, table.peer
        assert peer is not None
        name, pattern = split_group(one.text)
        assert name is not None
        self._check_pattern(session, pattern)
        self.groups.check(session, name, (pattern,))
        self.groups.require_room(session, name, (pattern,))
        former = table.members.pop(one.text, None)
        table.members[one.text], _ = self.groups.join(
            peer,
            name,
            (pattern,),
            table.outbound.member_outbound(one),
            start=self._delivery.next_offset,
            expiry_s=session.expiry_s,
            is_single=True,
        )
        if former is not None:
            self.groups.leave(former)

    def drop_shared(self, table: FilterTable, text: str) -> None:
        """Remove a filter of a consumer group whose membership has ended."""
        table.members.pop(text, None)
        if text in table.table:
            table.discard(text)
            table.session.filter_levels -= _levels((text,))
            self._dirty.filters(table, [text])

    def _check_pattern(self, session: Session, text: str) -> None:
        """Check that a filter is valid, and that its topic exists if it has to."""
        try:
            check_filter(text)
        except BadFilterError as error:
            raise RequestFailure(Code.BAD_FILTER, str(error)) from None
        self._require_right(session, text)
        if is_inbox(text):
            self._catalogue.own(text)
        is_missing = not is_pattern(text) and not text.startswith(RESERVED) and self._catalogue.get(text) is None
        if is_missing and self._catalogue.settings.policy_of(text) != "open":
            raise RequestFailure(Code.NO_SUCH_TOPIC, f"topic {text!r} does not exist")

    def _check_filter(self, session: Session, text: str) -> None:
        try:
            check_filter(text)
        except BadFilterError as error:
            raise RequestFailure(Code.BAD_FILTER, str(error)) from None
        require_right(self._catalogue.settings.access, session, "subscribe", text, f"subscribe to {text!r}")
        self._check_pattern(session, text)

    def remove_filters(
        self,
        table: FilterTable,
        filters: Sequence[str],
        reply: Callable[[list[bool]], None],
        failed: Callable[[str], None],
    ) -> None:
        """Remove filters. `reply` gets for each whether it existed, when that is stored; see `add_filters`."""
        peer = table.peer
        assert peer is not None
        results = []
        for text in filters:
            one = table.table.get(text)
            results.append(one is not None and one.until is None)
            if results[-1]:
                self._remove_filter(table, text)
        removed = [text for text, existed in zip(filters, results, strict=True) if existed]
        if removed:
            session = table.session
            text = f"{session.name} unsubscribed from {', '.join(removed)}"
            self._effects.append(Notice("unsubscribed", text, session.fields(filters=removed)))
        if removed and self._dirty.filters(table, removed):
            self._queue.when_stored(peer, lambda: reply(results), failed)
        else:
            reply(results)

    def _remove_filter(self, table: FilterTable, text: str) -> None:
        if table.table[text].is_shared:
            member = table.members.get(text)
            if member is not None:
                self.groups.leave(member)
            self.drop_shared(table, text)
            return
        self._delivery.remove_filter(table, text)
        if text not in table.table:
            table.session.filter_levels -= _levels((text,))

    def remove_forbidden(self, table: FilterTable) -> None:
        """Remove the filters that the access rules do not allow any more."""
        session = table.session
        access = self._catalogue.settings.access
        removed = [
            text
            for text in table.filters
            if not (is_inbox(text) or access.may(session.principal, session.is_proved, "subscribe", text))
        ]
        self._drop_filters(table, removed)

    def _drop_filters(self, table: FilterTable, filters: Sequence[str]) -> None:
        """Remove filters at once, also for messages that were sent because of them."""
        for text in filters:
            self._delivery.remove_filter(table, text)
            table.discard(text)
            table.session.filter_levels -= _levels((text,))
        if filters:
            self._dirty.filters(table, filters)

    # -- handshakes of QoS 2 with a client that numbers packets -------------------------------------------------------

    def hold_identifier(self, table: FilterTable, number: int) -> None:
        """Remember that the client has published a message under this number; stored with the append of the turn."""
        table.numbers.received[number] = None
        self._dirty.packet(table, False, number)

    def free_identifier(
        self, table: FilterTable, number: int, reply: Callable[[], None], failed: Callable[[str], None]
    ) -> None:
        """Forget it, because the client will not send the message again.

        `reply` is called when that is stored; `failed` if it could not be stored yet, and must not be reported.
        """
        is_changed = table.numbers.received.pop(number, number) is None and self._dirty.packet(table, False, number)
        if is_changed and table.peer is not None:
            self._queue.when_stored(table.peer, reply, failed)
        else:
            reply()

    def release(
        self, table: FilterTable, offset: int, reply: Callable[[], None], failed: Callable[[str], None]
    ) -> None:
        """The client has received the message of QoS 2 at this offset: it is not sent again.

        `reply` is called when that is stored; `failed` if it could not be stored yet, and must not be reported.
        """
        peer = table.peer
        assert peer is not None
        table.numbers.released[offset] = PacketNumbers.OPEN
        if self._dirty.packet(table, True, offset):
            self._queue.when_stored(peer, reply, failed)
        else:
            reply()

    def complete(self, table: FilterTable, offset: int) -> None:
        """The client has answered the release. Its row is deleted with the position that is stored behind it."""
        released = table.numbers.released
        if table.is_stored and self._dirty.is_durable:
            if offset in released:
                released[offset] = PacketNumbers.DONE
        else:
            released.pop(offset, None)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _check(self, session: Session, request: SubscribeRequest) -> tuple[str, ...]:
        try:
            for pattern in request.filters:
                check_filter(pattern)
            if request.cursor is not None:
                check_name(request.cursor)
                if not session.is_remembered:
                    raise UsageError("the client has no name, under which it would be stored; log in with a name")
        except BadFilterError as error:
            raise RequestFailure(Code.BAD_FILTER, str(error)) from None
        except UsageError as error:
            raise RequestFailure(Code.BAD_NAME, f"as a cursor: {error}") from None
        if request.start is not None and request.since_us is not None:
            raise RequestFailure(Code.MALFORMED, "a start and a time: give one of them")
        if request.group is not None:
            if request.cursor is not None or request.no_local:
                text = "a group has a position of its own, and no publisher: leave out the cursor and no_local"
                raise RequestFailure(Code.MALFORMED, text)
            self.groups.check(session, request.group, request.filters)
        for pattern in request.filters:
            self._require_right(session, pattern)
        if any(map(is_inbox, request.filters)) and (len(request.filters) > 1 or request.cursor is not None):
            raise RequestFailure(Code.MALFORMED, "an inbox for replies is a subscription of its own, without a cursor")
        return tuple(sorted(set(request.filters)))

    def _require_right(self, session: Session, text: str) -> None:
        """Check that the client may subscribe to a filter. An inbox is free for the first client that knows its name.

        No filter matches several inboxes, so that only the holder of an inbox sees the replies in it.
        """
        if split(text)[0] == REPLIES:
            if not is_inbox(text):
                problem = f"an inbox is subscribed by its exact name, {REPLIES}/ and 32 hexadecimal digits"
                raise RequestFailure(Code.NOT_ALLOWED, f"{session.name} may not subscribe to {text!r}: {problem}")
            if not self._delivery.owns_inbox(session, text):
                raise RequestFailure(Code.NOT_ALLOWED, f"the inbox {text!r} belongs to another client")
        else:
            require_right(self._catalogue.settings.access, session, "subscribe", text, f"subscribe to {text!r}")

    def _require_room(
        self, session: Session, filters: tuple[str, ...], replaced: Sequence[BrokerSubscription] = ()
    ) -> None:
        """Check the limits for a new subscription."""
        limit = self._catalogue.settings.max_subscriptions
        freed_levels = sum([_levels(one.filters) for one in replaced])
        memberships = 0 if session.peer is None else len(session.peer.members)
        if len(session.subscriptions) + memberships - len(replaced) >= limit:
            raise RequestFailure(Code.TOO_MANY, f"{session.name} has {limit} subscriptions, which is the limit here")
        if session.filter_levels - freed_levels + _levels(filters) > MAX_FILTER_LEVELS:
            text = f"the filters of {session.name} have more than {MAX_FILTER_LEVELS} levels: use fewer or shorter ones"
            raise RequestFailure(Code.TOO_MANY, text)
        if (
            self._delivery.filter_nodes >= MAX_FILTER_NODES
            or self._delivery.filter_count + len(filters) > MAX_FILTER_PLACES
        ):
            text = "the subscriptions of all clients take all of their room: try again later"
            raise RequestFailure(Code.TOO_MANY, text)

    def _create_topics(self, session: Session, filters: tuple[str, ...]) -> None:
        """A filter without wildcards is the name of a topic, which must exist or is created."""
        missing = [name for name in filters if not is_pattern(name) and self._catalogue.get(name) is None]
        for name in [name for name in missing if is_inbox(name)]:
            self._catalogue.own(name)
            missing.remove(name)
        for name in missing:
            if name.startswith(JOBS):
                continue  # a kind of work that has not been submitted yet
            if name.startswith("$") or self._catalogue.settings.policy_of(name) != "open":
                raise RequestFailure(Code.NO_SUCH_TOPIC, f"topic {name!r} does not exist")
        try:
            for name in missing:
                self._catalogue.create(name, creator=session.name)
        except TooManyTopicsError as error:
            raise RequestFailure(Code.TOO_MANY, str(error)) from None

    def _known_below(self, request: SubscribeRequest) -> int | None:
        """Return the offset below which the log has what the client read, or None if the client did not ask."""
        if not request.epochs or not isinstance(request.start, int):
            return None
        return same_below(request.epochs, self._epochs, self._delivery.next_offset)

    def _reached(self, offset: int | None, epochs: Sequence[Epoch]) -> int | None:
        """Return the offset in this log for a client that has processed everything below `offset`, or None.

        An older copy of the log may have been put back since the client read it.
        """
        if not epochs or offset is None:
            return offset
        return min(offset, same_below(epochs, self._epochs, self._delivery.next_offset)) or None

    def _notify_replaced(self, session: Session, filters: tuple[str, ...], asked: int, known_below: int) -> None:
        text = (
            f"{session.name} has read {', '.join(filters)} up to offset {asked}, and this log has other messages from "
            f"offset {known_below} on: it is an older copy of the one that {session.name} knows. It continues at "
            f"{known_below}; confirmed messages that only the newer one has are lost"
        )
        fields = session.fields(filters=list(filters), offset=asked, same_below=known_below)
        self._effects.append(Notice("replaced", text, fields))

    def _start(
        self,
        request: SubscribeRequest,
        subscription: BrokerSubscription | None,
        offset: int | None,
        known_below: int | None,
    ) -> int:
        """`subscription`: the one that is resumed or, with other filters, replaced."""
        end = self._delivery.next_offset
        if offset is not None:
            return min(offset, end)
        if request.start is None:
            if subscription is None:
                return end
            if subscription.filters != tuple(sorted(set(request.filters))):
                return subscription.quiet_from  # messages after it that did not match before may match now
            return subscription.resumes_at(end)
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

    def _result(
        self,
        request: SubscribeRequest,
        subscription: BrokerSubscription,
        *,
        is_new: bool,
        known_below: int | None = None,
    ) -> SubscribeResult:
        next_offset = max(subscription.position, subscription.sent_below)
        if is_new and next_offset == self._delivery.first_offset:
            # Messages before the log's beginning are reported as missed, and the connection may end before that report
            # arrives: the client asks for this offset again then, and gets the report again.
            asked = request.start if isinstance(request.start, int) else 0
            next_offset = max(next_offset - subscription.lost, min(asked, next_offset))
        return SubscribeResult(
            subscription=subscription, is_new=is_new, next_offset=next_offset, same_below=known_below
        )


def _with_group(request: SubscribeRequest) -> SubscribeRequest:
    """Return the request with its group as a field, if its filters have the form `$share/NAME/FILTER`."""
    parts = [split_group(text) for text in request.filters]
    names = {name for name, _ in parts}
    if names == {None}:
        return request
    if None in names or len(names) > 1 or (request.group is not None and request.group not in names):
        raise RequestFailure(Code.BAD_FILTER, "all filters of one subscription are in the same group, or none is")
    return msgspec.structs.replace(request, group=names.pop(), filters=tuple([text for _, text in parts]))


def _quiet_from(subscription: BrokerSubscription) -> int:
    return subscription.quiet_from


def _levels(filters: tuple[str, ...]) -> int:
    return sum([len(split(text)) for text in filters])
