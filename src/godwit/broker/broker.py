"""The broker core: routes messages, keeps sessions and answers requests. Sans-IO, without a protocol or a store.

    protocols    call the functions that godwit.broker.ports lists
    the log      handle(event, now_us): answers to Append, Read and Locate (godwit.broker.effects), and time
    output       end_turn(): what the log is to do, notices for the operator; call it once at the end of a turn, because
                 it joins everything that the turn brought into large appends and records
    getters      next_timer_us, figures, counters, overrun, needs_below, sessions

Times are microseconds since the epoch and never go backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from godwit.broker.administration import Administration, ListQueue
from godwit.broker.admission import Admission
from godwit.broker.append_queue import AppendQueue
from godwit.broker.catalogue import BROKER_NAME, Catalogue, PublisherNumbers, Topic
from godwit.broker.counters import BrokerCounters
from godwit.broker.delivery import Delivery
from godwit.broker.dirty_state import DirtyState
from godwit.broker.effects import BrokerEvent, Committed, Effect, Failed, Found, Import, Located, Losing, Notice, Tick
from godwit.broker.groups import Groups
from godwit.broker.identities import Identities
from godwit.broker.imports import Imports
from godwit.broker.jobs.service import JobService
from godwit.broker.ports import Credentials, OnWelcome, Peer
from godwit.broker.publications import Publications
from godwit.broker.quotas import DeferredCredit
from godwit.broker.relays import Relays
from godwit.broker.session import Sessions, is_group_session
from godwit.broker.settings import Settings
from godwit.broker.subscription import BrokerSubscription
from godwit.broker.subscriptions import SubscriptionRequests
from godwit.limits import LOGIN_TIMEOUT_S
from godwit.wire.batch import make_entry
from godwit.wire.changes import StoredState
from godwit.wire.control_base import Code
from godwit.wire.epochs import Epoch

SAVE_EVERY_US: Final = 1_000_000
"""How often the state that changes all the time is saved, see godwit.broker.dirty_state."""


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
        """`state`: what the log has stored of the run before. `keeps_state`: whether the log stores changes of it."""
        self.effects: list[Effect] = []
        """The effects of this turn, in order. A protocol may add its own, for which it registers handlers with the
        server: so its output keeps its order among the core's. `end_turn` returns and clears them."""
        self.inputs = 0
        """How many events `handle`, or a protocol beside its own turn, has had: if it has changed, end_turn is to be
        called."""
        self.log_id = log_id
        self.epochs = epochs
        self._peers: dict[Peer, None] = {}
        self._not_logged_in: dict[Peer, None] = {}
        """The oldest first."""
        self._figures_at_us = now_us
        self._pay_at_us: int | None = None
        self._expire_at_us: int | None = None
        self._save_at_us: int | None = None
        effects = self.effects
        numbers = PublisherNumbers()
        self.sessions = sessions = Sessions()
        self._dirty = dirty = DirtyState(sessions, is_durable=keeps_state)
        self._identities = identities = Identities(dirty)
        self._catalogue = catalogue = Catalogue(settings, dirty)
        self._delivery = delivery = Delivery(catalogue, numbers, dirty, effects)
        delivery.now_us = now_us
        delivery.first_offset = first_offset
        delivery.next_offset = next_offset
        self.append_queue = queue = AppendQueue(catalogue, delivery, identities, dirty, effects)
        self._publications = publications = Publications(catalogue, delivery, identities, queue, dirty, effects)
        self._subscriptions = subscriptions = SubscriptionRequests(catalogue, delivery, queue, dirty, effects, epochs)
        self._imports = Imports(catalogue, numbers, queue, dirty, effects)
        self.relays = Relays(catalogue, numbers, queue, dirty, effects, log_id)
        self.jobs = jobs = JobService(catalogue, numbers, dirty, queue, effects)
        self._job_activity = jobs.activity
        self._admission = admission = Admission(
            catalogue, numbers, delivery, publications, queue, dirty, jobs, effects, sessions, entropy
        )
        self.groups = groups = Groups(
            catalogue, delivery, dirty, admission, effects, sessions, lambda: self.now_us, subscriptions.next_serial
        )
        subscriptions.groups = groups
        self.administration = Administration(
            catalogue, delivery, identities, publications, subscriptions, admission, jobs, groups, effects
        )
        self.lists, self.deferred_credit = ListQueue(), DeferredCredit()
        if state is not None:
            self._restore(state, now_us)
        self._started_us, self._broker_number = now_us, numbers.number(BROKER_NAME)
        self._published_figures: dict[str, str] = {}
        self._figure_sources: list[Callable[[], Mapping[str, int | str]]] = []
        self._figure_topics: dict[str, tuple[str, str]] = {}
        self._handlers: dict[type[Any], Callable[[Any, int], None]] = {
            Committed: queue.on_committed,
            Failed: queue.on_failed,
            Found: delivery.on_found,
            Located: subscriptions.on_located,
            Losing: delivery.on_losing,
            Import: self._imports.handle,
            Tick: self._on_tick,
        }
        self._expose_ports()

    def _expose_ports(self) -> None:
        """Offer the methods of the parts as ports, without a layer in between: they are called for every message."""
        publications, subscriptions, groups = self._publications, self._subscriptions, self.groups
        queue, admission, delivery = self.append_queue, self._admission, self._delivery
        self.open_publication = publications.open
        self.close_publication = publications.close
        self.publish = publications.publish
        self.publish_once = publications.publish_once
        self.subscribe = subscriptions.subscribe
        self.unsubscribe = subscriptions.unsubscribe
        self.commit = subscriptions.commit
        self.open_table = subscriptions.open_table
        self.add_filters = subscriptions.add_filters
        self.remove_filters = subscriptions.remove_filters
        self.hold_identifier = subscriptions.hold_identifier
        self.free_identifier = subscriptions.free_identifier
        self.release = subscriptions.release
        self.complete = subscriptions.complete
        self.when_stored = queue.when_stored
        self.drop_shared = subscriptions.drop_shared
        self.leave_group = groups.leave
        self.acknowledge_in_group = groups.acknowledge
        self.resume_members = groups.resume
        self.change_expiry = admission.change_expiry
        self.login_limits = admission.limits
        self.acknowledge = delivery.acknowledge
        self.resume = delivery.resume
        self.handle_alive = admission.on_alive

    def _restore(self, state: StoredState, now_us: int) -> None:
        """Begin with the stored state. Limits that were lowered since do not remove anything of it."""
        self._delivery.marks.update(state.retention_floors)
        for topic in state.topics:
            self._catalogue.restore(topic)
        for retained in state.retained:
            self._catalogue.restore_retained(retained)
        self._identities.restore(state.identities, now_us)
        for session in state.sessions:
            self._admission.restore(session, now_us)
        for row in state.subscriptions:
            owner = self.sessions.get(row.session)
            if owner is not None and is_group_session(owner.name):
                self.groups.restore(owner, row)
            elif owner is not None:
                self._subscriptions.restore(owner, row)
        for filter_row in state.filters:
            if (owner := self.sessions.get(filter_row.session)) is not None:
                self._subscriptions.restore_filter(owner, filter_row)
        for packet_row in state.packets:
            if (owner := self.sessions.get(packet_row.session)) is not None:
                self._subscriptions.restore_packet(owner, packet_row)
        self._imports.restore(state.queries)
        self.relays.restore(state.relays)
        self.jobs.restore(state, now_us)
        self._expire_at_us = now_us

    # -- ports of protocols: connections (for the others see the end of __init__) --------------------------------------

    def connect(self, peer: Peer, now_us: int) -> None:
        """A connection exists. It is closed unless `login` is called in time."""
        peer.since_us = now_us
        peer.login_by_us = now_us + int(LOGIN_TIMEOUT_S * 1e6)
        self._peers[peer] = None
        self._not_logged_in[peer] = None

    def login(self, peer: Peer, credentials: Credentials, welcome: OnWelcome, now_us: int) -> None:
        """Begin or resume a session. `welcome` is called when it is stored; a client that is refused is closed.

        If the name is in use, the client waits until the present holder has answered a ping or its time is over.
        """
        if self._not_logged_in.pop(peer, peer) is None:
            self._admission.login(peer, credentials, welcome, now_us)
            self._expire_at_us = now_us  # it may wait for its name

    def disconnect(
        self, peer: Peer, now_us: int, *, was_expected: bool, reason: str = "", is_stopping: bool = False
    ) -> None:
        """A connection has ended, whether Peer.close was called or not.

        `was_expected`: the client announced it, so its will is not published. `is_stopping`: the broker is being
        stopped, and the client will return to the next run.
        """
        if peer not in self._peers:
            return
        del self._peers[peer]
        self._not_logged_in.pop(peer, None)
        if is_stopping:
            self._admission.on_stopped(peer, now_us)
            return
        if was_expected and peer.session is not None:
            self.jobs.handle_leave(peer.session, now_us)
        self._admission.on_gone(peer, now_us, was_expected=was_expected, reason=reason)
        self._expire_at_us = now_us

    def close(self, peer: Peer, code: Code, reason: str) -> None:
        """Close a connection because of something that it did, with a notice to the operator."""
        peer.close(code, reason)
        session = peer.session
        name = session.name if session is not None else peer.address
        fields = session.fields() if session is not None else {"client": name, "host": peer.host}
        self.effects.append(Notice("closed", f"closed {name}: {reason}", {**fields, "code": int(code)}))

    # -- the log's answers, time, settings ----------------------------------------------------------------------------

    def handle(self, event: BrokerEvent, now_us: int) -> None:
        """Take one event."""
        self.inputs += 1
        self.now_us = now_us = max(now_us, self.now_us)
        self._handlers[type(event)](event, now_us)

    def change_settings(self, settings: Settings) -> None:
        """Apply new settings: clients are notified of the rights that they have lost."""
        former = self.settings.access
        self._catalogue.on_settings(settings)
        for peer in list(self._peers):
            if peer.session is not None:
                problem = self.administration.apply_rules(peer, peer.session, settings.access, former)
                if problem is not None:
                    self.close(peer, Code.NOT_ALLOWED, problem)
        self.jobs.handle_settings(self.now_us)

    def _on_tick(self, event: Tick, now_us: int) -> None:
        for peer in list(self._not_logged_in):
            if peer.login_by_us is not None and peer.login_by_us > now_us:
                break
            del self._not_logged_in[peer]
            self.close(peer, Code.NOT_LOGGED_IN, f"no login within {LOGIN_TIMEOUT_S:g} s")
        if self._pay_at_us is not None and self._pay_at_us <= now_us:
            self._pay_at_us = self.deferred_credit.pay(now_us)
        if self._expire_at_us is not None and self._expire_at_us <= now_us:
            self._expire_at_us = self._admission.expire(now_us)
        if self.jobs.due_us is not None and self.jobs.due_us <= now_us:
            self.jobs.handle_timer(now_us)
        retained_us = self._catalogue.retained_due_us
        if retained_us is not None and retained_us <= now_us:
            self._catalogue.drop_expired(now_us)
        if self.lists.waiting:
            self.lists.serve(now_us)
        if self.groups.sweep_at_us is not None and self.groups.sweep_at_us <= now_us:
            self.groups.sweep(now_us)
        if self._save_at_us is not None and self._save_at_us <= now_us:
            self._save_at_us = None
            self._dirty.save_some()
            self._delivery.quiet.sweep()
        if self._figures_at_us <= now_us:
            self._figures_at_us = now_us + int(self.settings.sys_interval_s * 1e6)
            self._publish_figures(now_us)

    # -- output -------------------------------------------------------------------------------------------------------

    def end_turn(self) -> list[Effect]:
        """End the turn and return its effects, which are to be executed in this order."""
        now_us = self.now_us
        queue = self.append_queue
        delivery = self._delivery
        job_activity = self._job_activity
        if job_activity.is_active:
            self.jobs.finish_turn(now_us)
        if queue.fresh or queue.callbacks or queue.again or self._dirty.is_marked or delivery.quiet.candidates:
            queue.seal(now_us)
        if job_activity.is_active:  # also if the append was answered at once
            self.jobs.send_output(now_us)
        if self._pay_at_us is None and self.deferred_credit.waiting:
            self._pay_at_us = now_us
        if self._save_at_us is None and (self._dirty.used or self._dirty.moved or delivery.quiet.watched):
            self._save_at_us = now_us + SAVE_EVERY_US
        if delivery.unflushed:
            delivery.flush()
        effects = self.effects[:]
        self.effects.clear()
        return effects

    def next_timer_us(self) -> int:
        """Return when a Tick is needed, if nothing else happens before."""
        at_us = self._figures_at_us
        if self._not_logged_in:
            login_by_us = next(iter(self._not_logged_in)).login_by_us
            at_us = min(at_us, login_by_us if login_by_us is not None else self.now_us)
        if self._pay_at_us is not None and self._pay_at_us < at_us:
            at_us = self._pay_at_us
        if self._expire_at_us is not None and self._expire_at_us < at_us:
            at_us = self._expire_at_us
        if self._save_at_us is not None and self._save_at_us < at_us:
            at_us = self._save_at_us
        queue = self.append_queue
        if (queue.again or self._dirty.is_marked) and queue.retry_at_us < at_us:
            at_us = queue.retry_at_us
        jobs_us = self.jobs.due_us
        if jobs_us is not None and jobs_us < at_us:
            at_us = jobs_us
        groups_us = self.groups.sweep_at_us
        if groups_us is not None and groups_us < at_us:
            at_us = groups_us
        retained_us = self._catalogue.retained_due_us
        if retained_us is not None and retained_us < at_us:
            at_us = retained_us
        if self.lists.waiting:
            lists_us = self.lists.due_us
            if lists_us is not None and lists_us < at_us:
                at_us = lists_us
        return at_us

    # -- getters, and what a log in memory asks -----------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """The time of the present turn. It never goes backwards."""
        return self._delivery.now_us

    @now_us.setter
    def now_us(self, now_us: int) -> None:
        self._delivery.now_us = now_us

    @property
    def settings(self) -> Settings:
        return self._catalogue.settings

    @property
    def end_offset(self) -> int:
        """The end of the log, as far as it is committed."""
        return self._delivery.next_offset

    def overrun(self, floor: int) -> list[BrokerSubscription]:
        """Return the connected subscriptions that still need something of the log below this offset."""
        return self._delivery.overrun(floor)

    def abandon(self, subscriptions: Iterable[BrokerSubscription]) -> None:
        """Let publishers no longer wait for these subscriptions, until they have caught up once."""
        for one in subscriptions:
            one.is_abandoned = True
            one.is_steady = False
            text = f"{one.session.name} is too slow for {', '.join(one.filters)}: it will miss messages"
            self.effects.append(Notice("slow", text, one.session.fields(filters=list(one.filters))))

    def needs_below(self, floor: int) -> bool:
        """Return whether a subscription, also an absent one, will miss something when the log begins at this offset."""
        return self._delivery.needs_below(floor)

    def add_figures(self, source: Callable[[], Mapping[str, int | str]]) -> None:
        """Publish further figures on `$sys`: those that `source` returns, each time the figures are collected."""
        self._figure_sources.append(source)

    def publish_figures_as(self, topics: Mapping[str, tuple[str, str]]) -> None:
        """Publish figures on further topics: by name, the topic and the text around the figure, as `{} seconds`."""
        self._figure_topics.update(topics)

    def figures(self) -> dict[str, int | str]:
        """Return the figures that are published under `$sys/`."""
        delivery = self._delivery
        publications = self._publications
        return {
            "uptime_s": (self.now_us - self._started_us) // 1_000_000,
            "clients/connected": sum(peer.session is not None for peer in self._peers if peer.is_open),
            "clients/sessions": len(self.sessions) - self.sessions.groups,
            "groups": len(self.groups),
            "subscriptions": delivery.subscriptions,
            "topics": len(self._catalogue),
            "retained": self._catalogue.retained_count,
            "messages/in": sum(publications.messages_in),
            "messages/out": sum(delivery.messages_out),
            "messages/dropped": delivery.live_dropped + publications.dropped,
            "bytes/in": sum(publications.bytes_in),
            "bytes/out": sum(delivery.bytes_out),
            "logins/refused": sum(self._admission.refused.values()),
            "log/first_offset": delivery.first_offset,
            "log/next_offset": delivery.next_offset,
            **self.jobs.figures(),
            **{name: figure for source in self._figure_sources for name, figure in source().items()},
        }

    def counters(self) -> BrokerCounters:
        """Return the counters of the core."""
        delivery, publications, admission = self._delivery, self._publications, self._admission
        scheduler = self.jobs.scheduler
        workers = scheduler.workers.values()
        return BrokerCounters(
            uptime_s=(self.now_us - self._started_us) / 1e6,
            connections=len(self._peers),
            clients=len(self._peers) - len(self._not_logged_in),
            sessions=len(self.sessions) - self.sessions.groups,
            logins=admission.logins,
            logins_refused=dict(admission.refused),
            messages_in=list(publications.messages_in),
            messages_out=list(delivery.messages_out),
            bytes_in=list(publications.bytes_in),
            bytes_out=list(delivery.bytes_out),
            publishes_confirmed=self.append_queue.confirmed,
            publishes_refused=self.append_queue.refused,
            messages_dropped={"rate": publications.dropped, "subscriber": delivery.live_dropped},
            topics=len(self._catalogue),
            retained=self._catalogue.retained_count,
            subscriptions=delivery.subscriptions,
            groups=len(self.groups),
            appends_under_way=self.append_queue.depth,
            lists_waiting=sum([len(requests) for requests in self.lists.waiting.values()]),
            first_offset=delivery.first_offset,
            next_offset=delivery.next_offset,
            jobs={
                "waiting": scheduler.unsettled,
                "running": scheduler.unended - scheduler.unsettled,
                "ended": len(scheduler.jobs) - scheduler.unended,
            },
            jobs_ended=dict(scheduler.ended_as),
            tasks_leased=sum([len(worker.leases) for worker in workers]),
            workers=sum([bool(worker.queues) for worker in workers]),
            worker_capacity=sum([worker.capacity for worker in workers if worker.queues]),
        )

    def lagging_subscriptions(self) -> list[BrokerSubscription]:
        """Return the connected subscriptions that have not acknowledged everything, or are behind the log."""
        return self._delivery.lagging_subscriptions()

    def absent_subscriptions(self) -> list[BrokerSubscription]:
        """Return the subscriptions whose client is disconnected."""
        return self._delivery.absent_subscriptions()

    def send_to_inbox(self, inbox: str, payload: bytes) -> bool | None:
        """Send a message of the broker itself to an inbox.

        Return None if the inbox has no subscriber, and False if its client is too slow and does not get the message.
        """
        topic = self._catalogue.get(inbox)
        if topic is None:
            return None
        self.inputs += 1
        dropped = self._delivery.live_dropped
        entry = make_entry(inbox, BROKER_NAME, [payload], qos=0, retain=False, now_us=self.now_us)
        if not self.append_queue.forward_live(topic, self._broker_number, [entry]):
            return None
        return self._delivery.live_dropped == dropped

    def publish_live(self, name: str, payload: bytes) -> None:
        """Send a message of the broker itself, on a topic of its own, to the subscribers that are connected."""
        self.inputs += 1
        entry = make_entry(name, BROKER_NAME, [payload], qos=0, retain=False, now_us=self.now_us)
        self.append_queue.forward_live(self._catalogue.own(name), self._broker_number, [entry])

    def topics_page(self, pattern: str, after: str | None, steps: int) -> tuple[list[Topic], str | None]:
        """Return the topics that a filter matches within this many steps of the search, and where to continue."""
        return self._catalogue.page(pattern, after, steps)

    def _publish_figures(self, now_us: int) -> None:
        """Publish the figures that have changed, as retained messages on `$sys/...`."""
        for name, figure in self.figures().items():
            text = str(figure)
            if self._published_figures.get(name) != text:
                self._published_figures[name] = text
                topic = self._catalogue.own(f"$sys/{name}")
                self._publications.publish_figure(topic, text.encode(), self._broker_number, BROKER_NAME, now_us)
                if name in self._figure_topics:
                    other, form = self._figure_topics[name]
                    data = form.format(text).encode()
                    topic = self._catalogue.own(other)
                    self._publications.publish_figure(topic, data, self._broker_number, BROKER_NAME, now_us)
