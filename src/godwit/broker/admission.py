"""Who may come in, under which name, and what becomes of a session when its client is gone.

A name belongs to the client that proves it, or to the run of the client (its instance) that has it. Another client that
asks for it waits while the present holder is pinged. Several wait in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from godwit.broker.catalogue import Catalogue, Names, TooManyTopicsError
from godwit.broker.commits import Commits
from godwit.broker.delivery import Delivery
from godwit.broker.effects import Admit, Close, Effect, Notice, Send
from godwit.broker.failure import RequestFailure
from godwit.broker.jobs.service import JobService
from godwit.broker.journal import Journal
from godwit.broker.login_check import LoginCheck, LoginRefusal
from godwit.broker.name_queues import Claimant, NameQueues
from godwit.broker.publishing import Publishing
from godwit.broker.rate import Bucket
from godwit.broker.session import ANONYMOUS, Link, Session, made_name
from godwit.broker.sessions import Sessions
from godwit.limits import IDLE_TIMEOUT_S, NAME_PING_S, RESTART_GRACE_S
from godwit.wire.changes import SessionRow
from godwit.wire.control import Login, Ping, Welcome, Will, encode_control, make_proof
from godwit.wire.control_base import Code
from godwit.wire.epochs import MAX_EPOCHS_TOLD, Epoch

NAME_PING: Final = 0xFFFFFFFF
"""The number of the broker's own ping."""
RESTART_GRACE_US: Final = int(RESTART_GRACE_S * 1e6)
"""So long a restarted broker waits for those who were connected: they may notice only by their idle time-out."""
assert IDLE_TIMEOUT_S * 1.5e6 < RESTART_GRACE_US


class Admission:
    """Feed: login, on_pong, on_gone, expire. The sessions are here."""

    def __init__(
        self,
        catalogue: Catalogue,
        names: Names,
        delivery: Delivery,
        publishing: Publishing,
        commits: Commits,
        journal: Journal,
        office: JobService,
        effects: list[Effect],
        *,
        sessions: Sessions,
        entropy: Callable[[int], bytes],
        log_id: bytes,
        epochs: Sequence[Epoch],
    ) -> None:
        self._catalogue = catalogue
        self._names = names
        self._delivery = delivery
        self._publishing = publishing
        self._commits = commits
        self._journal = journal
        self._office = office
        self._effects = effects
        self._entropy = entropy
        self._log_id = log_id
        self._epochs = list(epochs[-MAX_EPOCHS_TOLD:])
        self._check = LoginCheck(catalogue, entropy)
        self.sessions = sessions
        self._queues = NameQueues()
        self._endings: list[tuple[int, int, Session]] = []
        """A heap of when absent sessions end. One that came back is passed over."""
        self._serial = 0

    # -- coming in ----------------------------------------------------------------------------------------------------

    def login(self, link: Link, login: Login, now_us: int) -> None:
        """The first message of a connection. Who may not come in is told why and closed."""
        link.login_by_us = None
        try:
            is_proved = self._check.is_proved(link, login)
        except RequestFailure as failure:
            self.turn_away(link, failure)
            return
        if login.name is None:
            name = made_name(login.instance)
            while name in self.sessions:  # its former connection has not been missed yet
                name = f"{ANONYMOUS}{self._entropy(8).hex()}"
            self._admit(link, login, Session(name, self._names.number(name), is_remembered=False), False, now_us)
            return
        session = self.sessions.get(login.name)
        if session is None or session.link is None or is_proved or session.instance == login.instance:
            self._enter(link, login, is_proved, now_us)
        else:
            self._wait(link, login, session.link, now_us)

    def _wait(self, link: Link, login: Login, holder: Link, now_us: int) -> None:
        """Ping the holder of the name and wait for its answer, behind those that wait for the name already."""
        name = login.name or ""
        if name not in self._queues:
            self._ping(name, holder, [], now_us)
        try:
            former = self._queues.join(name, Claimant(link, login))
        except RequestFailure as failure:
            self.turn_away(link, failure)
            return
        if former is not None:
            self.turn_away(former, RequestFailure(Code.TAKEN_OVER, f"{name} asks again, from {link.address}"))

    def _ping(self, name: str, holder: Link, claimants: list[Claimant], now_us: int) -> None:
        self._effects.append(Send(holder.connection, 0, encode_control(Ping(request=NAME_PING))))
        self._queues.begin(name, claimants, now_us + int(NAME_PING_S * 1e6))

    def _enter(self, link: Link, login: Login, is_proved: bool, now_us: int) -> None:
        """Under a name: with the session that there is, or a new one. The former connection is told."""
        name = login.name
        assert name is not None
        session = self.sessions.get(name)
        if session is not None:
            former = session.link
            if former is not None:
                self._refuse_waiting(name)  # somebody with a better right is here
                self._effects.append(
                    Close(former.connection, Code.TAKEN_OVER, f"{name} has connected again, from {link.address}")
                )
                self.on_gone(former, now_us, was_expected=session.instance == login.instance, reason="taken over")
            elif session.is_awaited and session.instance != login.instance:
                self.abandon(session, now_us)  # that run of the client will not come back
            session = self.sessions.get(name)  # one that does not outlive its connection is gone now
        if session is not None and login.fresh:
            self.forget(session)
            session = None
        is_full = len(self.sessions) >= self._catalogue.settings.max_sessions
        if session is None and is_full and not (is_proved and self._give_way()):
            self.turn_away(link, RequestFailure(Code.TOO_MANY, "there are as many sessions as there may be here"))
            return
        limit = self._catalogue.settings.max_sessions_per_host
        if session is None and not is_proved and self.sessions.of_host(link.host) >= limit:
            text = (
                f"{link.host} may have at most {limit:,} sessions under names that were not proved: prove the name, "
                "connect without one, or have the broker's operator raise limits.sessions_per_host"
            )
            self.turn_away(link, RequestFailure(Code.TOO_MANY, text))
            return
        resumed = session is not None
        if session is None:
            session = Session(name, self._names.number(name), is_remembered=True)
        self._admit(link, login, session, resumed, now_us, is_proved=is_proved)

    def _give_way(self) -> bool:
        """Anybody can leave sessions behind under names of his choice: the oldest makes room for who has proved one."""
        for session in self.sessions.values():
            if session.link is None and not session.is_proved:
                self.forget(session)
                text = f"the session of {session.name} made room for a client that proved its name"
                self._effects.append(Notice("session_expired", text, session.fields()))
                return True
        return False

    def _admit(
        self, link: Link, login: Login, session: Session, resumed: bool, now_us: int, *, is_proved: bool = False
    ) -> None:
        settings = self._catalogue.settings
        self.sessions[session.name] = session
        session.link = link
        session.instance = login.instance
        session.is_proved = is_proved
        self.sessions.move(session, "" if is_proved else link.host)
        session.expiry_s = min(login.session_expiry_s, settings.max_session_expiry_s) if session.is_remembered else 0
        session.ends_at_us = None
        session.is_awaited = False
        session.will = login.will
        link.session = session
        self._effects.append(Admit(link.connection))
        self._office.handle_login(session, now_us)
        if settings.messages_per_s is not None:
            link.bucket = Bucket(settings.messages_per_s, settings.messages_per_s, now_us)
        proof = b""
        secret = settings.access.secret_of(session.name) if is_proved else None
        if secret is not None:
            proof = make_proof(secret, "server", link.connection.binding, session.name)
        welcome = Welcome(
            request=login.request,
            name=session.name,
            resumed=resumed,
            proof=proof,
            log=self._log_id,
            epochs=self._epochs,
            max_message_bytes=settings.max_message_bytes,
        )
        if self._journal.session(session):  # what it leaves with the broker must be safe first
            self._commits.say(link, welcome)
        else:
            self._effects.append(Send(link.connection, 0, encode_control(welcome)))
        verb = "came back" if resumed else "connected"
        text = f"{session.name} {verb} from {link.address}"
        self._effects.append(Notice("connected", text, session.fields(address=link.address)))

    def turn_away(self, link: Link, failure: RequestFailure) -> None:
        """Before it is in. The connection's Closed will come and clean up."""
        self._effects.append(Close(link.connection, failure.code, failure.text))
        fields = {"address": link.address, "host": link.host, "code": int(failure.code)}
        why = failure.detail if isinstance(failure, LoginRefusal) else failure.text
        self._effects.append(Notice("refused", f"refused {link.address}: {why}", fields))

    def on_pong(self, link: Link) -> None:
        """The holder of a name lives: who asked for it must choose another."""
        if link.session is not None:
            self._refuse_waiting(link.session.name)

    def _refuse_waiting(self, name: str) -> None:
        for claimant in self._queues.take(name):
            self.turn_away(claimant.link, RequestFailure(Code.NAME_IN_USE, _in_use(name)))

    def _admit_next(self, name: str, now_us: int) -> None:
        """The name is free: the first that waits for it gets it, and the others wait whether that one answers."""
        claimants = self._queues.take(name)
        while claimants:
            claimant = claimants.pop(0)
            if self._let_in(claimant, name, now_us):
                if claimants:
                    self._ping(name, claimant.link, claimants, now_us)
                return

    def _let_in(self, claimant: Claimant, name: str, now_us: int) -> bool:
        """Return whether it has the name now."""
        try:
            is_proved = self._check.is_proved(claimant.link, claimant.login)  # the rules may have changed meanwhile
        except RequestFailure as failure:
            self.turn_away(claimant.link, failure)
            return False
        self._enter(claimant.link, claimant.login, is_proved, now_us)
        session = self.sessions.get(name)
        return session is not None and session.link is claimant.link

    # -- going --------------------------------------------------------------------------------------------------------

    def on_gone(self, link: Link, now_us: int, *, was_expected: bool, reason: str) -> None:
        """The connection is over. Unexpected: the will is published."""
        if not link.is_open:
            return
        link.is_open = False
        self._queues.leave(link)
        session = link.session
        if session is None:
            return
        self._let_go(link, session, now_us)
        will, session.will = session.will, None
        if will is not None and not was_expected:
            self._publish_will(session, will, now_us)
        text = f"{session.name} left: {reason}" if reason else f"{session.name} left"
        self._effects.append(Notice("disconnected", text, session.fields(expected=was_expected)))
        self._keep_for_later(session, now_us)
        self._admit_next(session.name, now_us)

    def on_stopped(self, link: Link, now_us: int) -> None:
        """The broker itself is being stopped. It waits for the client when it is there again, as after a crash."""
        self._queues.leave(link)
        session = link.session
        is_open, link.is_open = link.is_open, False
        if not is_open or session is None:
            return
        self._let_go(link, session, now_us)
        if session.outlives_restart:
            session.is_awaited = True
            self._end_at(session, now_us + RESTART_GRACE_US)
        else:
            self.forget(session)

    def _let_go(self, link: Link, session: Session, now_us: int) -> None:
        link.locating.clear()
        link.to_locate.clear()
        for inlet in list(link.inlets.values()):
            inlet.end()
        for feed in list(link.feeds.values()):
            self._delivery.detach(feed)
        self._office.handle_disconnect(link, now_us)
        session.link = None

    def _keep_for_later(self, session: Session, now_us: int) -> None:
        if session.expiry_s and session.is_remembered and session.feeds:  # one without subscriptions holds nothing
            self._end_at(session, now_us + session.expiry_s * 1_000_000)
            self._journal.session(session)
        else:
            self.forget(session)

    def _end_at(self, session: Session, ends_at_us: int) -> None:
        session.ends_at_us = ends_at_us
        self._serial += 1
        heappush(self._endings, (ends_at_us, self._serial, session))
        if len(self._endings) > 2 * len(self.sessions) + 64:
            self._drop_old_endings()

    def abandon(self, session: Session, now_us: int) -> None:
        """It was connected when the broker stopped, and did not come back: it is gone, and not by its own will."""
        session.is_awaited = False
        will, session.will = session.will, None
        if will is not None:
            self._publish_will(session, will, now_us)
        text = f"{session.name} did not come back after the broker's restart"
        self._effects.append(Notice("disconnected", text, session.fields(expected=False)))
        self._keep_for_later(session, now_us)

    def restore(self, kept: SessionRow, now_us: int) -> Session:
        """One that was there before the broker was restarted, as yet without its subscriptions."""
        session = Session(kept.name, self._names.number(kept.name), is_remembered=True)
        session.instance = kept.instance
        session.is_proved = kept.is_proved
        session.expiry_s = kept.expiry_s
        session.will = kept.will
        session.is_stored = True
        session.is_awaited = kept.ends_at_us is None
        self.sessions[kept.name] = session
        self._end_at(session, now_us + RESTART_GRACE_US if kept.ends_at_us is None else kept.ends_at_us)
        return session

    def _drop_old_endings(self) -> None:
        """A client that comes and goes leaves one behind each time."""
        self._endings = [
            ending
            for ending in self._endings
            if ending[2].ends_at_us == ending[0] and self.sessions.get(ending[2].name) is ending[2]
        ]
        heapify(self._endings)

    def _publish_will(self, session: Session, will: Will, now_us: int) -> None:
        access = self._catalogue.settings.access
        if not access.may(session.name, session.is_proved, "publish", will.topic):
            return  # it was allowed at the login; the rules have changed
        if self._catalogue.get(will.topic) is None:
            if self._catalogue.settings.policy_of(will.topic) == "explicit":
                return
            try:
                self._catalogue.create(will.topic, creator=session.name)
            except TooManyTopicsError:
                return
        self._publishing.publish_own(session, will, now_us)

    def forget(self, session: Session) -> None:
        """The session and its subscriptions are over."""
        for feed in list(session.feeds.values()):
            self._delivery.end(feed)
        session.feeds.clear()
        if self.sessions.get(session.name) is session:
            del self.sessions[session.name]
        self._journal.session(session)

    def expire(self, now_us: int) -> int | None:
        """What time has ended: sessions, and the wait for a sign of life. Gives when the next is due."""
        endings = self._endings
        while endings and endings[0][0] <= now_us:
            ends_at_us, _, session = heappop(endings)
            if session.ends_at_us != ends_at_us or self.sessions.get(session.name) is not session:
                continue
            if session.is_awaited:
                self.abandon(session, now_us)
            else:
                self.forget(session)
                self._effects.append(
                    Notice("session_expired", f"the session of {session.name} expired", session.fields())
                )
        next_us = [endings[0][0]] if endings else []
        while (due := self._queues.first_due()) is not None:
            name, until_us = due
            if until_us > now_us:
                next_us.append(until_us)
                break
            holder = self.sessions[name].link if name in self.sessions else None
            if holder is None:
                self._admit_next(name, now_us)
                continue
            reason = "no answer while another asked for the name"
            self._effects.append(Close(holder.connection, Code.TIMEOUT, reason))
            self.on_gone(holder, now_us, was_expected=False, reason=reason)  # lets the next one in
        return min(next_us, default=None)


def _in_use(name: str) -> str:
    return f"the name {name!r} is in use by another client that answers: choose another name, or prove this one"
