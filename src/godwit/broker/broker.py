"""The broker: decides what becomes of every record and request. Sans-IO, and without a store: it only says what to do.

    feed     handle(event, now_us): the transport's events, and the store's answers (godwit.broker.effects)
    drain    effects(): what is to be done, in this order; call it once at the end of a turn, because it joins what the
             turn brought into large appends and records
    look     next_timer_us, figures, overrun, needs_below

Times are microseconds since the epoch and never go backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from godwit.broker.admission import Admission
from godwit.broker.catalogue import Catalogue, Names
from godwit.broker.commits import Commits
from godwit.broker.delivery import Delivery
from godwit.broker.desk import Desk, FloodError, require_open_rate
from godwit.broker.effects import (
    BrokerEvent,
    Committed,
    Consume,
    Effect,
    Failed,
    Found,
    Import,
    Located,
    Losing,
    Notice,
    Send,
    Tick,
)
from godwit.broker.failure import RequestFailure
from godwit.broker.feed import Feed
from godwit.broker.figures import Figures
from godwit.broker.identities import Identities
from godwit.broker.importing import Importing
from godwit.broker.jobs.service import JobService
from godwit.broker.journal import Journal
from godwit.broker.pace import Pace
from godwit.broker.publishing import Publishing
from godwit.broker.requests import Requests
from godwit.broker.restoring import restore
from godwit.broker.rules import apply_rules, close
from godwit.broker.session import Link
from godwit.broker.sessions import Sessions
from godwit.broker.settings import Settings
from godwit.broker.subscribing import Subscribing
from godwit.errors import DecodeError
from godwit.limits import LOGIN_TIMEOUT_S, MAX_FIRST_ITEMS, MAX_OPEN_RECORD_BYTES
from godwit.transport.connection import Connection
from godwit.transport.events import ChannelConfirmed, Closed, Connected, PathChanged, Received, Writable
from godwit.wire import control
from godwit.wire.changes import StoredState
from godwit.wire.control import ControlMessage, MalformedError, decode_control, encode_control
from godwit.wire.control_base import Code
from godwit.wire.epochs import Epoch

SAVE_EVERY_US: Final = 1_000_000
"""How often that is saved which changes all the time, see godwit.broker.journal."""


class Broker:
    """See the module's first lines."""

    def __init__(
        self,
        settings: Settings,
        *,
        entropy: Callable[[int], bytes],
        now_us: int,
        log_id: bytes = b"",
        first_offset: int = 0,
        next_offset: int = 0,
        epochs: Sequence[Epoch] = (),
        state: StoredState | None = None,
        keeps_state: bool = True,
    ) -> None:
        """`state`: what the log had kept. `keeps_state`: whether it goes on keeping what changes."""
        self._effects: list[Effect] = []
        self._links: dict[Connection, Link] = {}
        self._unknown: dict[Link, None] = {}
        """Those that have not logged in, the oldest first."""
        self._now_us = now_us
        self._figures_at_us = now_us
        self._pay_at_us: int | None = None
        self._expire_at_us: int | None = None
        self._save_at_us: int | None = None
        names = Names()
        sessions = Sessions()
        self._journal = journal = Journal(sessions, keeps=keeps_state)
        self._pace = pace = Pace(self._effects)
        identities = Identities(journal)
        self._catalogue = catalogue = Catalogue(settings, journal)
        self._delivery = delivery = Delivery(catalogue, names, journal, self._effects)
        delivery.first_offset = first_offset
        delivery.next_offset = next_offset
        self._commits = commits = Commits(catalogue, delivery, identities, journal, pace, self._effects)
        self._publishing = Publishing(catalogue, delivery, identities, commits, journal, pace, self._effects)
        self._subscribing = Subscribing(catalogue, delivery, commits, journal, self._effects, epochs)
        self._importing = Importing(catalogue, names, commits, journal, self._effects)
        self._office = office = JobService(catalogue, names, journal, commits, self._effects)
        self._admission = Admission(
            catalogue,
            names,
            delivery,
            self._publishing,
            commits,
            journal,
            office,
            self._effects,
            sessions=sessions,
            entropy=entropy,
            log_id=log_id,
            epochs=epochs,
        )
        requests = Requests(catalogue, delivery, identities, self._subscribing, self._admission, office, self._effects)
        self._desk = Desk(self._admission, self._subscribing, requests, office.requests, commits, self._effects)
        if state is not None:
            restore(
                state,
                catalogue,
                delivery,
                identities,
                self._admission,
                self._subscribing,
                self._importing,
                office,
                now_us,
            )
            self._expire_at_us = now_us
        self._sys = Figures(
            catalogue, names, delivery, self._publishing, self._office, sessions=sessions, started_us=now_us
        )
        self._handlers: dict[type[Any], Callable[[Any, int], None]] = {
            Received: self._on_received,
            ChannelConfirmed: self._on_confirmed,
            Committed: self._on_committed,
            Failed: self._on_failed,
            Connected: self._on_connected,
            Closed: self._on_closed,
            Found: self._on_found,
            Located: self._on_located,
            Losing: self._on_losing,
            Import: self._on_import,
            Tick: self._on_tick,
            Writable: self._ignore,
            PathChanged: self._on_path_changed,
        }

    # -- feed and drain -----------------------------------------------------------------------------------------------

    def handle(self, event: BrokerEvent, now_us: int) -> None:
        """Takes one event."""
        self._now_us = now_us = max(now_us, self._now_us)
        self._handlers[type(event)](event, now_us)

    def handle_all(self, events: Sequence[BrokerEvent], now_us: int) -> None:
        """Takes what one turn brought."""
        self._now_us = now_us = max(now_us, self._now_us)
        handlers = self._handlers
        for event in events:
            handlers[type(event)](event, now_us)

    def effects(self) -> list[Effect]:
        """What is to be done, in this order. Ends the turn."""
        self._office.finish_turn(self._now_us)
        self._commits.seal(self._now_us)
        self._office.send_output(self._now_us)
        if self._pay_at_us is None and self._pace.is_owing:
            self._pay_at_us = self._now_us
        if self._save_at_us is None and (self._journal.has_unsaved or self._delivery.quiet.is_watching):
            self._save_at_us = self._now_us + SAVE_EVERY_US
        self._delivery.flush()
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def change_settings(self, settings: Settings) -> None:
        """New rules: who has lost a right is told, and what it was doing ends."""
        former = self.settings.access
        self._catalogue.on_settings(settings)
        links = list(self._links.values())
        apply_rules(links, settings.access, former, self._subscribing, self._effects)
        self._office.handle_settings(links, self._now_us)

    @property
    def settings(self) -> Settings:
        return self._catalogue.settings

    # -- look ---------------------------------------------------------------------------------------------------------

    def next_timer_us(self) -> int:
        """When a Tick is wanted, if nothing else happens before."""
        timers = [self._figures_at_us]
        if self._unknown:
            login_by_us = next(iter(self._unknown)).login_by_us
            timers.append(login_by_us if login_by_us is not None else self._now_us)
        others = (
            self._pay_at_us,
            self._expire_at_us,
            self._save_at_us,
            self._commits.due_us,
            self._office.due_us,
            self._desk.lists.due_us,
        )
        timers += [at for at in others if at is not None]
        return min(timers)

    def overrun(self, floor: int) -> list[Feed]:
        """The connected subscriptions that still need something of the log below this offset."""
        return self._delivery.overrun(floor)

    def abandon(self, feeds: Iterable[Feed]) -> None:
        """Publishers no longer wait for these, until they have caught up once."""
        for feed in feeds:
            feed.is_abandoned = True
            feed.lane.is_steady = False
            text = f"{feed.session.name} is too slow for {', '.join(feed.filters)}: it will miss messages"
            self._effects.append(Notice("slow", text, feed.session.fields(filters=list(feed.filters))))

    def needs_below(self, floor: int) -> bool:
        """Whether any subscription, also an absent one, will miss something when the log begins at this offset."""
        return self._delivery.needs_below(floor)

    def figures(self) -> dict[str, int | str]:
        """What stands under `$sys/`."""
        return self._sys.collect(self._now_us)

    def add_figures(self, source: Callable[[], Mapping[str, int]]) -> None:
        """Publish further figures on `$sys`: those that `source` returns, each time when the figures are collected."""
        self._sys.sources.append(source)

    # -- the transport's events ---------------------------------------------------------------------------------------

    def _on_connected(self, event: Connected, now_us: int) -> None:
        connection = event.connection
        link = Link(connection, _address(connection), now_us, self.settings.client_window_bytes)
        link.login_by_us = now_us + int(LOGIN_TIMEOUT_S * 1e6)
        self._links[connection] = link
        self._unknown[link] = None

    def _on_closed(self, event: Closed, now_us: int) -> None:
        link = self._links.pop(event.connection, None)
        if link is None:
            return
        self._unknown.pop(link, None)
        if event.origin == "local" and event.code == Code.SHUTDOWN:
            self._admission.on_stopped(link, now_us)
            return
        said_goodbye = event.origin == "peer" and event.code in (Code.NORMAL, Code.SHUTDOWN)
        reason = "" if said_goodbye else event.reason or f"code {event.code}"
        if said_goodbye and link.session is not None:
            self._office.handle_leave(link.session, now_us)
        self._admission.on_gone(link, now_us, was_expected=said_goodbye, reason=reason)
        self._expire_at_us = now_us

    def _on_received(self, event: Received, now_us: int) -> None:
        link = self._links.get(event.connection)
        if link is None or not link.is_open:
            return
        channel = event.channel
        if channel == 0:
            self._on_control(link, event.body, now_us)
            return
        inlet = link.inlets.get(channel)
        try:
            if inlet is not None:
                self._publishing.receive(inlet, event, now_us)
            elif link.party is not None and link.party.channel == channel:
                self._office.handle_record(link.party, event, now_us)
            elif event.reliable:
                self._on_open(link, event, now_us)
            # An unreliable record that has overtaken its channel's open is lost, as it may be.
        except FloodError as error:
            self._close(link, Code.LIMIT, str(error))
        except DecodeError as error:
            self._close(link, Code.PROTOCOL, f"on channel {channel}: {error}")

    def _on_control(self, link: Link, body: bytes, now_us: int) -> None:
        try:
            self._desk.handle(link, body, now_us)
        except FloodError as error:
            self._close(link, Code.LIMIT, str(error))
        except DecodeError as error:
            self._close(link, Code.PROTOCOL, f"on channel 0: {error}")
        if link.login_by_us is None and link in self._unknown:
            del self._unknown[link]
            self._expire_at_us = now_us  # it may wait for its name

    def _on_open(self, link: Link, event: Received, now_us: int) -> None:
        session = link.session
        if session is None:
            self._close(link, Code.NOT_LOGGED_IN, "a channel was opened before the login")
            return
        if event.record:
            raise DecodeError("control", "a record behind the end of a channel")
        require_open_rate(link, now_us)
        self._effects.append(Consume(link.connection, event.channel, len(event.body)))
        if event.last:
            return
        try:
            request = decode_control(event.body, max_bytes=MAX_OPEN_RECORD_BYTES, max_items=MAX_FIRST_ITEMS)
        except MalformedError as error:
            self._send(link, control.PublishRefused(channel=event.channel, code=Code.MALFORMED, text=error.detail))
            self._publishing.ignore(link, session, event.channel)
            return
        if isinstance(request, control.PublishOpen):
            self._publishing.open(link, session, event.channel, request)
        elif isinstance(request, control.Work):
            self._office.handle_open(link, session, event.channel)
        else:
            raise DecodeError("control", "record 0 of a channel is neither open nor work")

    def _on_confirmed(self, event: ChannelConfirmed, now_us: int) -> None:
        link = self._links.get(event.connection)
        if link is None:
            return
        party = link.party
        if party is not None and party.work_channel.channel == event.channel:
            self._office.handle_confirm(party, event.sequence)
        else:
            self._delivery.on_confirm(link, event.channel, event.sequence)

    def _on_path_changed(self, event: PathChanged, now_us: int) -> None:
        link = self._links.get(event.connection)
        if link is not None:
            link.address = _address(event.connection)

    def _ignore(self, event: Writable, now_us: int) -> None:
        """The broker bounds what is under way by itself, see Link.window_bytes."""

    # -- the store's answers, and time --------------------------------------------------------------------------------

    def _on_committed(self, event: Committed, now_us: int) -> None:
        self._commits.on_committed(event.first_offset, now_us)

    def _on_failed(self, event: Failed, now_us: int) -> None:
        self._commits.on_failed(event, now_us)

    def _on_found(self, event: Found, now_us: int) -> None:
        self._delivery.on_found(event)

    def _on_located(self, event: Located, now_us: int) -> None:
        link = self._links.get(event.connection)
        if link is None or link.session is None or not link.is_open:
            return
        try:
            self._subscribing.on_located(link, link.session, event.request, event.offset)
        except RequestFailure as failure:
            self._send(link, control.Error(code=failure.code, text=failure.text, request=event.request.request))

    def _on_losing(self, event: Losing, now_us: int) -> None:
        self._delivery.on_losing(event)

    def _on_import(self, event: Import, now_us: int) -> None:
        self._importing.take(event, now_us)

    def _on_tick(self, event: Tick, now_us: int) -> None:
        for link in list(self._unknown):
            if link.login_by_us is None or link.login_by_us > now_us:
                break
            del self._unknown[link]
            self._close(link, Code.NOT_LOGGED_IN, f"no login within {LOGIN_TIMEOUT_S:g} s")
        if self._pay_at_us is not None and self._pay_at_us <= now_us:
            self._pay_at_us = self._pace.pay(now_us)
        if self._expire_at_us is not None and self._expire_at_us <= now_us:
            self._expire_at_us = self._admission.expire(now_us)
        self._office.handle_timer(now_us)
        self._desk.lists.serve(now_us)
        if self._save_at_us is not None and self._save_at_us <= now_us:
            self._save_at_us = None
            self._journal.save_some()
            self._delivery.quiet.sweep()
        if self._figures_at_us <= now_us:
            self._figures_at_us = now_us + int(self.settings.sys_interval_s * 1e6)
            self._sys.publish(now_us)

    # -- small parts --------------------------------------------------------------------------------------------------

    def _send(self, link: Link, message: ControlMessage) -> None:
        self._effects.append(Send(link.connection, 0, encode_control(message)))

    def _close(self, link: Link, code: Code, reason: str) -> None:
        close(link, code, reason, self._effects)


def _address(connection: Connection) -> str:
    host, port, *_ = connection.peer_address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
