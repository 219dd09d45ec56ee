"""Logins: which clients are admitted, under which name, and the end of sessions whose clients disconnect.

A name belongs to the client that proves it, or to the run of the client (its instance) that has it. Another client that
claims it waits while the present holder is pinged. Several claimants wait in the order in which they came.

On a broker that admits only clients that prove a name, the reply to a refused login is the same whether the name exists
or not, and costs the same work: otherwise names could be guessed one by one. The difference is reported to the operator
alone. Nothing else of a login is examined before its proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from godwit.broker.append_queue import AppendQueue
from godwit.broker.catalogue import Catalogue, PublisherNumbers
from godwit.broker.delivery import Delivery
from godwit.broker.dirty_state import DirtyState
from godwit.broker.effects import Effect, Notice
from godwit.broker.jobs.service import JobService
from godwit.broker.login_limits import LoginLimits
from godwit.broker.ports import Credentials, OnWelcome, Peer, RequestFailure
from godwit.broker.publications import Publications
from godwit.broker.quotas import ANONYMOUS, Bucket
from godwit.broker.session import Session, Sessions, check_chosen, check_name, is_group_session, made_name
from godwit.broker.topics import check_topic
from godwit.errors import BadTopicError, UsageError
from godwit.limits import IDLE_TIMEOUT_S, NAME_PING_S, RESTART_GRACE_S
from godwit.wire.changes import SessionRow
from godwit.wire.control import Will
from godwit.wire.control_base import Code
from godwit.wire.filters import RESERVED, split

RESTART_GRACE_US: Final = int(RESTART_GRACE_S * 1e6)
"""How long a restarted broker waits for the clients that were connected: they may notice by their idle timeout only."""
assert IDLE_TIMEOUT_S * 1.5e6 < RESTART_GRACE_US
MAX_CLAIMANTS: Final = 8
"""Clients that wait for one name."""
NO_NAME: Final = "this broker takes only clients that prove a name: connect with a name and its secret"
TOO_MANY_FAILURES: Final = "too many failed logins under this name or from this host: try again in a minute"
NOT_PROVED: Final = "the name is unknown here, or its proof is missing or wrong: check the name and its secret"
DECOY_BYTES: Final = 32


class LoginRefusal(RequestFailure):
    """A refused login; `detail` is for the operator only."""

    def __init__(self, code: Code, text: str, detail: str) -> None:
        super().__init__(code, text)
        self.detail = detail


class Claimant(msgspec.Struct):
    """A client that claims a name that is in use."""

    peer: Peer
    credentials: Credentials
    welcome: OnWelcome


class _NameQueue(msgspec.Struct):
    claimants: list[Claimant]
    until_us: int


@dataclass(eq=False)
class Admission:
    """Input: login, on_alive, on_gone, on_stopped, expire. Holds the sessions."""

    _catalogue: Catalogue
    _numbers: PublisherNumbers
    _delivery: Delivery
    _publications: Publications
    _queue: AppendQueue
    _dirty: DirtyState
    _jobs: JobService
    _effects: list[Effect]
    sessions: Sessions
    _entropy: Callable[[int], bytes]

    def __post_init__(self) -> None:
        self._decoy = self._entropy(DECOY_BYTES)
        """Used in place of the secret of a name that does not exist."""
        self._names = NameQueues()
        self._endings: list[tuple[int, int, Session]] = []
        """A heap of the times when absent sessions end. Entries of sessions that resumed are skipped."""
        self._wills: list[tuple[int, int, Session]] = []
        """A heap of the times when delayed wills are published. Entries of clients that returned are skipped."""
        self._serial = 0
        self.on_session_forgotten: Callable[[Session], None] = lambda session: None
        """Called with each session that is deleted."""
        self._now_us = 0
        """The time of the last input."""
        self.limits = LoginLimits()
        self.logins = 0
        self.refused: Counter[str] = Counter()
        """Logins that were not admitted, by the name of the code."""

    # -- logins -------------------------------------------------------------------------------------------------------

    def login(self, peer: Peer, credentials: Credentials, welcome: OnWelcome, now_us: int) -> None:
        """Begin or resume a session for a connection. A client that is refused is closed with the reason."""
        self._now_us = now_us
        peer.login_by_us = None
        try:
            self._check_rate(peer)
            is_proved = self._check(peer, credentials)
        except RequestFailure as failure:
            self._refuse(peer, failure)
            return
        name = credentials.name
        if name is None:
            name = made_name(credentials.instance)
            former = self.sessions.get(name)
            if former is not None and former.instance == credentials.instance and former.peer is not None:
                # The client has given up that connection before the broker did. It is not lost: no will is published.
                former.peer.close(Code.TAKEN_OVER, f"{name} has connected again, from {peer.address}")
                self.on_gone(former.peer, now_us, was_expected=True, reason="taken over")
            while name in self.sessions:
                name = f"{ANONYMOUS}{self._entropy(8).hex()}"
            session = Session(name, self._numbers.number(name), is_remembered=False)
            self._admit(peer, credentials, welcome, session, False, now_us)
            return
        known = self.sessions.get(name)
        try:
            self._check_principal(credentials, known, is_proved)
        except RequestFailure as failure:
            self._refuse(peer, failure)
            return
        proves_name = is_proved and credentials.principal in (None, name)
        if known is None or known.peer is None or proves_name or known.instance == credentials.instance:
            self._enter(Claimant(peer, credentials, welcome), name, is_proved, now_us)
        else:
            self._claim(Claimant(peer, credentials, welcome), name, known.peer, now_us)

    def _claim(self, claimant: Claimant, name: str, holder: Peer, now_us: int) -> None:
        """Ping the holder of the name and wait for its answer, behind other claimants."""
        is_first = name not in self._names
        if is_first:
            self._names.begin(name, [], now_us + int(NAME_PING_S * 1e6))
        try:
            former = self._names.join(name, claimant)
        except RequestFailure as failure:
            self._refuse(claimant.peer, failure)
            return
        if former is not None:
            text = f"{name} asks again, from {claimant.peer.address}"
            self._refuse(former, RequestFailure(Code.TAKEN_OVER, text))
        if is_first:
            holder.ping()

    def _enter(self, claimant: Claimant, name: str, is_proved: bool, now_us: int) -> None:
        """Begin or resume the session of a name. The former connection is closed."""
        peer, credentials = claimant.peer, claimant.credentials
        session = self.sessions.get(name)
        if session is not None:
            former = session.peer
            is_same = session.instance == credentials.instance
            if former is not None:
                self._refuse_claimants(name)  # this client has a better right
                former.close(Code.TAKEN_OVER, f"{name} has connected again, from {peer.address}")
                is_expected = is_same and not credentials.publishes_replaced_will
                self.on_gone(former, now_us, was_expected=is_expected, reason="taken over")
            elif session.is_awaited and not is_same:
                self.abandon(session, now_us)  # that run of the client will not return
            session = self.sessions.get(name)  # a session that does not outlive its connection is deleted now
        if session is not None and credentials.is_clean:
            self.forget(session)
            session = None
        if session is None:
            try:
                self._require_room(peer, is_proved)
            except RequestFailure as failure:
                self._refuse(peer, failure)
                return
        resumed = session is not None
        if session is None:
            session = Session(name, self._numbers.number(name), is_remembered=True)
        self._admit(peer, credentials, claimant.welcome, session, resumed, now_us, is_proved=is_proved)

    def _require_room(self, peer: Peer, is_proved: bool) -> None:
        settings = self._catalogue.settings
        is_full = len(self.sessions) - self.sessions.groups >= settings.max_sessions
        if is_full and not (is_proved and self._make_room()):
            text = f"there are {settings.max_sessions:,} sessions, the limit here (limits.sessions): try again later"
            raise RequestFailure(Code.TOO_MANY, text)
        limit = settings.max_sessions_per_host
        if not is_proved and self.sessions.of_host(peer.host) >= limit:
            text = (
                f"{peer.host} may have at most {limit:,} sessions under names that were not proved: prove the name, "
                "connect without one, or have the broker's operator raise limits.sessions_per_host"
            )
            raise RequestFailure(Code.TOO_MANY, text)

    def _make_room(self) -> bool:
        """Delete the oldest absent session without a proved name: any client can create such sessions."""
        for session in self.sessions.values():
            if session.peer is None and not session.is_proved:
                self.forget(session)
                text = f"the session of {session.name} made room for a client that proved its name"
                self._effects.append(Notice("session_expired", text, session.fields()))
                return True
        return False

    def _admit(
        self,
        peer: Peer,
        credentials: Credentials,
        welcome: OnWelcome,
        session: Session,
        resumed: bool,
        now_us: int,
        *,
        is_proved: bool = False,
    ) -> None:
        settings = self._catalogue.settings
        self.sessions[session.name] = session
        session.peer = peer
        session.instance = credentials.instance
        session.is_proved = is_proved
        session.principal = session.name if credentials.principal is None else credentials.principal
        self.sessions.move(session, "" if is_proved else peer.host)
        expiry_s = min(credentials.session_expiry_s, settings.max_session_expiry_s)
        session.expiry_s = expiry_s if session.is_remembered else 0
        session.ends_at_us = None
        session.is_awaited = False
        session.will = credentials.will
        session.will_extension = credentials.will_extension
        session.will_delay_s = credentials.will_delay_s
        session.will_due_us = None
        peer.session = session
        self.logins += 1
        peer.admit()
        self._jobs.handle_login(session, now_us)
        if settings.messages_per_s is not None:
            peer.bucket = Bucket(settings.messages_per_s, settings.messages_per_s, now_us)
        if self._dirty.session(session):  # its will must be stored first
            self._queue.when_stored(peer, lambda: welcome(session, resumed))
        else:
            welcome(session, resumed)
        verb = "came back" if resumed else "connected"
        text = f"{session.name} {verb} from {peer.address}"
        self._effects.append(Notice("connected", text, session.fields(address=peer.address)))

    def _refuse(self, peer: Peer, failure: RequestFailure) -> None:
        """Close a connection that is not admitted. Broker.disconnect follows and cleans up."""
        self.refused[failure.code.name.lower()] += 1
        peer.close(failure.code, failure.text)
        fields = {"address": peer.address, "host": peer.host, "code": int(failure.code)}
        why = failure.detail if isinstance(failure, LoginRefusal) else failure.text
        self._effects.append(Notice("refused", f"refused {peer.address}: {why}", fields))

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check_rate(self, peer: Peer) -> None:
        per_s = self._catalogue.settings.host_logins_per_s
        if per_s is not None and not self.limits.admit(peer.host, per_s, self._now_us):
            text = f"{peer.host} may have {per_s:g} logins per second (limits.host_logins_per_s): try again later"
            raise RequestFailure(Code.BUSY, text)

    def _check(self, peer: Peer, credentials: Credentials) -> bool:
        """Return whether the login proves its name. Raises RequestFailure if the client is not admitted."""
        name = credentials.name
        if name is not None:
            try:
                check_name(name)
                check_chosen(name)
            except UsageError as error:
                raise RequestFailure(Code.BAD_NAME, str(error)) from None
        is_proved = self._check_proof(peer, credentials)
        if credentials.will is not None:
            self._check_will(credentials.will, credentials.principal or name, is_proved)
        return is_proved

    def _check_proof(self, peer: Peer, credentials: Credentials) -> bool:
        access = self._catalogue.settings.access
        name = credentials.name
        if name is None:
            if not access.allows_anonymous:
                raise RequestFailure(Code.NOT_ALLOWED, NO_NAME)
            return False
        if credentials.principal is not None:
            name = credentials.principal
        if not access.is_listed(name) and access.allows_anonymous:
            return False  # without the work of a proof: such a name is admitted anyway
        certificate = access.certificate_of(name)
        if certificate is not None and credentials.is_certified(name, certificate):
            return True
        if problem := self.limits.problem(name, peer.host, self._now_us):
            raise LoginRefusal(Code.BUSY, TOO_MANY_FAILURES, problem)
        secret = access.secret_of(name)
        is_right = credentials.proves(self._decoy if secret is None else secret)
        if secret is None or not is_right:
            self.limits.add_failure(name, peer.host, self._now_us)
        if secret is None:
            why = f"no client {name!r} is listed"
            if certificate is not None:
                why = f"the name {name!r} needs a certificate, and the client has none for it"
            raise LoginRefusal(Code.NOT_ALLOWED, NOT_PROVED, why)
        if not is_right:
            raise LoginRefusal(Code.NOT_ALLOWED, NOT_PROVED, f"the proof of the name {name!r} is missing or wrong")
        self.limits.add_success(name, peer.host)
        return True

    def _check_principal(self, credentials: Credentials, known: Session | None, is_proved: bool) -> None:
        """Raise RequestFailure if the session belongs to another user."""
        if not credentials.has_principals:
            return
        name = credentials.name
        assert name is not None
        if credentials.principal not in (None, name) and self._catalogue.settings.access.is_listed(name):
            text = f"the name {name!r} is listed with a proof of its own: choose another client identifier"
            raise RequestFailure(Code.NAME_IN_USE, text)
        principal = name if credentials.principal is None else credentials.principal
        if known is not None and known.is_proved and (known.principal != principal or not is_proved):
            text = f"the session {name!r} belongs to another user: choose another client identifier"
            raise RequestFailure(Code.NAME_IN_USE, text)

    def change_expiry(self, session: Session, expiry_s: int) -> None:
        """Change how long a session is kept after its connection has ended."""
        session.expiry_s = min(expiry_s, self._catalogue.settings.max_session_expiry_s) if session.is_remembered else 0
        self._dirty.session(session)

    def _check_will(self, will: Will, name: str | None, is_proved: bool) -> None:
        try:
            check_topic(will.topic)
        except BadTopicError as error:
            raise RequestFailure(Code.BAD_TOPIC, f"the last will: {error}") from None
        settings = self._catalogue.settings
        if will.topic.startswith(RESERVED):
            raise RequestFailure(Code.NOT_ALLOWED, f"the last will: topic {will.topic!r} is the broker's own")
        problem = settings.access.problem(name or "", is_proved, "publish", will.topic)
        if problem:
            text = f"a last will on {will.topic!r} is not allowed for this client ({problem})"
            raise RequestFailure(Code.NOT_ALLOWED, text)
        if self._catalogue.get(will.topic) is None and settings.policy_of(will.topic) == "explicit":
            raise RequestFailure(Code.NO_SUCH_TOPIC, f"the last will: topic {will.topic!r} does not exist")

    # -- names in use -------------------------------------------------------------------------------------------------

    def on_alive(self, peer: Peer) -> None:
        """The holder of a name has answered a ping: the claimants are refused."""
        if peer.session is not None:
            self._refuse_claimants(peer.session.name)

    def _refuse_claimants(self, name: str) -> None:
        text = f"the name {name!r} is in use by another client that answers: choose another name, or prove this one"
        for claimant in self._names.take(name):
            self._refuse(claimant.peer, RequestFailure(Code.NAME_IN_USE, text))

    def _admit_next(self, name: str, now_us: int) -> None:
        """The name is free: its first claimant gets it, and the others wait whether that one answers."""
        claimants = self._names.take(name)
        while claimants:
            claimant = claimants.pop(0)
            if self._admit_claimant(claimant, name, now_us):
                if claimants:
                    self._names.begin(name, claimants, now_us + int(NAME_PING_S * 1e6))
                    claimant.peer.ping()
                return

    def _admit_claimant(self, claimant: Claimant, name: str, now_us: int) -> bool:
        """Return whether it has the name now."""
        try:
            is_proved = self._check(claimant.peer, claimant.credentials)  # the rules may have changed meanwhile
        except RequestFailure as failure:
            self._refuse(claimant.peer, failure)
            return False
        self._enter(claimant, name, is_proved, now_us)
        session = self.sessions.get(name)
        return session is not None and session.peer is claimant.peer

    # -- disconnected clients -----------------------------------------------------------------------------------------

    def on_gone(self, peer: Peer, now_us: int, *, was_expected: bool, reason: str) -> None:
        """The connection has ended. If that is unexpected, the will is published."""
        if not peer.is_open:
            return
        self._now_us = now_us
        peer.is_open = False
        self._names.leave(peer)
        session = peer.session
        if session is None:
            return
        self._release(peer, session, now_us)
        if was_expected:
            session.will = None
        elif session.will_delay_s and session.expiry_s and session.is_remembered:
            delay_s = min(session.will_delay_s, session.expiry_s)
            self._delay_will(session, now_us + delay_s * 1_000_000)
        else:
            self._publish_will(session, now_us)
        text = f"{session.name} left: {reason}" if reason else f"{session.name} left"
        self._effects.append(Notice("disconnected", text, session.fields(expected=was_expected)))
        self.keep_for_later(session, now_us)
        self._admit_next(session.name, now_us)

    def on_stopped(self, peer: Peer, now_us: int) -> None:
        """The broker itself is being stopped. The next run waits for the client, as after a crash."""
        self._names.leave(peer)
        session = peer.session
        is_open, peer.is_open = peer.is_open, False
        if not is_open or session is None:
            return
        self._release(peer, session, now_us)
        if session.outlives_restart:
            session.is_awaited = True
            self._end_at(session, now_us + RESTART_GRACE_US)
        else:
            self.forget(session)

    def _publish_will(self, session: Session, now_us: int) -> None:
        """Publish the will of a client, if it has one."""
        will, session.will = session.will, None
        session.will_due_us = None
        if will is not None:
            self._publications.publish_will(session, will, now_us)

    def _delay_will(self, session: Session, due_us: int) -> None:
        if session.will is not None:
            session.will_due_us = due_us
            self._serial += 1
            heappush(self._wills, (due_us, self._serial, session))
            if len(self._wills) > 2 * len(self.sessions) + 64:
                self._wills = [one for one in self._wills if one[2].will_due_us == one[0]]
                heapify(self._wills)

    def _release(self, peer: Peer, session: Session, now_us: int) -> None:
        peer.lookups.clear()
        for publication in list(peer.publications):
            self._publications.close(publication)
        for subscription in list(peer.subscriptions):
            self._delivery.detach(subscription)
            if subscription.is_inbox:
                del session.subscriptions[subscription.key]
                session.filter_levels -= len(split(subscription.filters[0]))
                self._delivery.end(subscription)
        for member in list(peer.members):
            member.group.owner.leave(member)
        self._jobs.handle_disconnect(peer, now_us)
        session.peer = None

    def keep_for_later(self, session: Session, now_us: int) -> None:
        """Keep a session whose client is gone until it expires.

        A session without subscriptions has nothing to remember but a will that waits for its time.
        """
        if session.expiry_s and session.is_remembered and session.subscriptions:
            self._end_at(session, now_us + session.expiry_s * 1_000_000)
            self._dirty.session(session)
        elif session.will_due_us is not None:
            self._end_at(session, session.will_due_us)
            self._dirty.session(session)
        else:
            self.forget(session)

    def _end_at(self, session: Session, ends_at_us: int) -> None:
        session.ends_at_us = ends_at_us
        self._serial += 1
        heappush(self._endings, (ends_at_us, self._serial, session))
        if len(self._endings) > 2 * len(self.sessions) + 64:
            self._drop_old_endings()

    def abandon(self, session: Session, now_us: int) -> None:
        """Its client was connected when the broker stopped, and has not returned: it is gone unexpectedly."""
        session.is_awaited = False
        if is_group_session(session.name):
            self.keep_for_later(session, now_us)
            return
        self._publish_will(session, now_us)
        text = f"{session.name} did not come back after the broker's restart"
        self._effects.append(Notice("disconnected", text, session.fields(expected=False)))
        self.keep_for_later(session, now_us)

    def restore(self, row: SessionRow, now_us: int) -> Session:
        """Add a session that existed before the broker was restarted, as yet without its subscriptions."""
        session = Session(row.name, self._numbers.number(row.name), is_remembered=True)
        session.instance = row.instance
        session.is_proved = row.is_proved
        session.expiry_s = row.expiry_s
        session.will = row.will
        session.principal = row.name if row.principal is None else row.principal
        session.will_extension = row.will_extension
        session.will_delay_s = row.will_delay_s
        session.is_stored = True
        session.is_awaited = row.ends_at_us is None
        self.sessions[row.name] = session
        if row.will_due_us is not None:
            self._delay_will(session, row.will_due_us)
        self._end_at(session, now_us + RESTART_GRACE_US if row.ends_at_us is None else row.ends_at_us)
        return session

    def _drop_old_endings(self) -> None:
        """Remove the entries of sessions that have resumed since: each disconnect adds one."""
        self._endings = [
            ending
            for ending in self._endings
            if ending[2].ends_at_us == ending[0] and self.sessions.get(ending[2].name) is ending[2]
        ]
        heapify(self._endings)

    def forget(self, session: Session) -> None:
        """Delete a session and its subscriptions. A will that waits for its time is published."""
        if session.will_due_us is not None:
            self._publish_will(session, self._now_us)
        for subscription in list(session.subscriptions.values()):
            self._delivery.end(subscription)
        session.subscriptions.clear()
        self.on_session_forgotten(session)
        if self.sessions.get(session.name) is session:
            del self.sessions[session.name]
        self._dirty.session(session)

    def expire(self, now_us: int) -> int | None:
        """End expired sessions, and disconnect holders of names that did not answer. Return when the next is due."""
        self._now_us = now_us
        while self._wills and self._wills[0][0] <= now_us:
            due_us, _, session = heappop(self._wills)
            if session.will_due_us == due_us and self.sessions.get(session.name) is session:
                self._publish_will(session, now_us)
                self._dirty.session(session)
        endings = self._endings
        while endings and endings[0][0] <= now_us:
            ends_at_us, _, session = heappop(endings)
            if session.ends_at_us != ends_at_us or self.sessions.get(session.name) is not session:
                continue
            if session.is_awaited:
                self.abandon(session, now_us)
            else:
                self.forget(session)
                what = "group" if is_group_session(session.name) else "session of"
                self._effects.append(Notice("session_expired", f"the {what} {session.name} expired", session.fields()))
        next_us = [heap[0][0] for heap in (endings, self._wills) if heap]
        while (due := self._names.first_due()) is not None:
            name, until_us = due
            if until_us > now_us:
                next_us.append(until_us)
                break
            holder = self.sessions[name].peer if name in self.sessions else None
            if holder is None:
                self._admit_next(name, now_us)
                continue
            reason = "no answer while another asked for the name"
            holder.close(Code.TIMEOUT, reason)
            self.on_gone(holder, now_us, was_expected=False, reason=reason)  # admits the next claimant
        return min(next_us, default=None)


class NameQueues:
    """The clients that wait for a name that is in use, in the order in which they came."""

    def __init__(self) -> None:
        self._queues: dict[str, _NameQueue] = {}
        """The one that ends first comes first: all have the same duration."""
        self._names: dict[Peer, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._queues

    def __len__(self) -> int:
        """Return the number of waiting clients."""
        return len(self._names)

    def begin(self, name: str, claimants: list[Claimant], until_us: int) -> None:
        """Begin a queue for a name that has none. `until_us`: when the holder of the name loses it."""
        self._queues[name] = _NameQueue(claimants, until_us)
        self._names.update((claimant.peer, name) for claimant in claimants)

    def join(self, name: str, claimant: Claimant) -> Peer | None:
        """Add a client at the end of a queue.

        Return its former connection if this run of it is in the queue already: then it takes that position. Raises
        RequestFailure if too many wait.
        """
        claimants = self._queues[name].claimants
        for index, other in enumerate(claimants):
            if other.credentials.instance == claimant.credentials.instance:
                claimants[index] = claimant
                del self._names[other.peer]
                self._names[claimant.peer] = name
                return other.peer
        if len(claimants) >= MAX_CLAIMANTS:
            text = f"the name {name!r} is in use, and {MAX_CLAIMANTS} clients wait for it: choose another name"
            raise RequestFailure(Code.NAME_IN_USE, text)
        claimants.append(claimant)
        self._names[claimant.peer] = name
        return None

    def leave(self, peer: Peer) -> None:
        """Remove a connection from the queue that it may be in."""
        name = self._names.pop(peer, None)
        if name is not None:
            queue = self._queues[name]
            queue.claimants = [claimant for claimant in queue.claimants if claimant.peer is not peer]
            if not queue.claimants:
                del self._queues[name]

    def take(self, name: str) -> list[Claimant]:
        """End the queue of a name; return the claimants, the first one first."""
        queue = self._queues.pop(name, None)
        claimants = queue.claimants if queue is not None else []
        for claimant in claimants:
            del self._names[claimant.peer]
        return claimants

    def first_due(self) -> tuple[str, int] | None:
        """Return the name whose holder must answer first, and by when."""
        for name, queue in self._queues.items():
            return name, queue.until_us
        return None
