"""Work, as the rest of the broker sees it: clients take part, submit, report and ask; the board decides.

    feed     open, receive, on_confirm, requests; on_logged_in, on_gone, leave, on_settings, on_tick
    drain    seal, before a turn's append is made; flush, behind it
    look     due_us, figures

A turn's submissions and reports are handled group by group as they come. Tasks are leased once, at its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from godwit.broker.append_queue import AppendQueue
from godwit.broker.catalogue import Catalogue, PublisherNumbers
from godwit.broker.dirty_state import DirtyState
from godwit.broker.effects import Effect, Notice
from godwit.broker.jobs.board import Board
from godwit.broker.jobs.intake import Intake
from godwit.broker.jobs.ledger import Ledger
from godwit.broker.jobs.listing import Listing
from godwit.broker.jobs.model import Job, Task
from godwit.broker.jobs.party import Party, party_of, who
from godwit.broker.jobs.recording import Recording
from godwit.broker.jobs.requests import JobRequests
from godwit.broker.jobs.telling import Telling
from godwit.broker.session import Session
from godwit.errors import DecodeError
from godwit.limits import MAX_WATCHED_AT_ONCE
from godwit.native.effects import SendRecord
from godwit.native.peer import NativePeer
from godwit.wire.changes import State
from godwit.wire.control import encode_control
from godwit.wire.jobs import UNASKED, Watched


class Office:
    """See the module's first lines."""

    def __init__(
        self,
        catalogue: Catalogue,
        names: PublisherNumbers,
        journal: DirtyState,
        commits: AppendQueue,
        effects: list[Effect],
    ) -> None:
        self._catalogue = catalogue
        self._effects = effects
        settings = catalogue.settings
        self._board = board = Board(lease_us=int(settings.lease_s * 1e6), keep_us=int(settings.job_keep_s * 1e6))
        self._workers: dict[str, Party] = {}
        """By name: where leases go to."""
        unsafe: dict[Job | Task, int] = {}
        self._telling = telling = Telling(unsafe, effects)
        recording = Recording(catalogue, names, commits)
        self._ledger = ledger = Ledger(board, journal, commits, recording, telling, self._workers, unsafe)
        self._intake = Intake(catalogue, board, ledger, telling, effects)
        self.receive = self._intake.receive
        self._listing = Listing(board, catalogue)
        self.due_us: int | None = None
        """When on_tick is wanted. It is worked out at the end of a turn in which anything happened here."""
        self._has_run = False
        self.requests = JobRequests(catalogue, board, ledger, telling, self._listing, self._workers, effects)

    def restore(self, state: State, now_us: int) -> None:
        """What there was before the broker was restarted."""
        self._board.restore(state, now_us)
        for job in self._board.jobs.values():
            job.is_stored = True
        self._ledger.is_stirred = True
        self.due_us = now_us

    # -- who takes part -----------------------------------------------------------------------------------------------

    def open(self, link: NativePeer, session: Session, channel: int) -> None:
        """Record 0 of a client's channel was `work`. DecodeError if it has such a channel already."""
        party = party_of(link, session, self._effects)
        if party.channel:
            raise DecodeError("work", f"a second channel for work: there is {party.channel}")
        party.channel = channel

    def on_confirm(self, party: Party, record: int) -> None:
        """The client has taken what was sent to it."""
        party.outlet.on_confirm(record)
        self._telling.stir(party)

    def on_logged_in(self, session: Session, now_us: int) -> None:
        """Perhaps as another run of a worker that has tasks."""
        name = who(session)
        if name in self._board.workers:
            self._board.logged_in(name, session.instance, now_us)
            self._ledger.is_stirred = True

    def on_gone(self, link: NativePeer, now_us: int) -> None:
        """The connection is over. A worker that has not left may come back to its tasks."""
        party, link.party = link.party, None
        if party is None:
            return
        self._telling.leave(party)
        self._intake.leave(party)
        self._ledger.is_stirred = True
        if self._workers.get(party.name) is party:
            del self._workers[party.name]
            self._board.away(party.name, now_us)

    def leave(self, session: Session, now_us: int) -> None:
        """The client says goodbye, or was removed: its tasks go to others at once."""
        name = who(session)
        party = self._workers.get(name)
        if name in self._board.workers and (party is None or party.session is session):
            self._workers.pop(name, None)
            self._board.leave(name, now_us)
            self._ledger.is_stirred = True

    def on_settings(self, links: Iterable[NativePeer], now_us: int) -> None:
        """New rules: who lost a right loses what it had by it. Jobs that were submitted stay."""
        settings = self._catalogue.settings
        self._board.change(lease_us=int(settings.lease_s * 1e6), keep_us=int(settings.job_keep_s * 1e6))
        self._ledger.is_stirred = True
        self.due_us = now_us
        for link in links:
            party = link.party
            if party is None:
                continue
            if self._workers.get(party.name) is party:
                self._take_kinds(party, now_us)
            self._hide_jobs(party)

    def _hide_jobs(self, party: Party) -> None:
        """Those that it may no longer follow; it is told which."""
        jobs = [job for number in party.watched if (job := self._board.jobs.get(number)) is not None]
        hidden = [job.number for job in jobs if not self._listing.may_follow(party.session, job)]
        for number in hidden:
            self._telling.unwatch(party, number)
        for at in range(0, len(hidden), MAX_WATCHED_AT_ONCE):
            told = Watched(request=UNASKED, unknown=hidden[at : at + MAX_WATCHED_AT_ONCE])
            self._effects.append(SendRecord(party.link.connection, 0, encode_control(told)))

    def _take_kinds(self, party: Party, now_us: int) -> None:
        """Those that it may no longer work on."""
        session = party.session
        access = self._catalogue.settings.access
        worker = self._board.workers.get(party.name)
        kinds = worker.kinds if worker is not None else ()
        lost = [kind for kind in kinds if not access.may(session.name, session.is_proved, "work", kind)]
        if lost:
            self._board.withdraw(party.name, lost, now_us)
            text = f"{party.name} may no longer work on {', '.join(lost)}"
            self._effects.append(Notice("withdrew", text, session.fields(client=party.name, kinds=lost)))

    def figures(self) -> dict[str, int | str]:
        """For `$sys/`."""
        board = self._board
        workers = board.workers.values()
        return {
            "jobs/waiting": board.unsettled,
            "jobs/running": board.unended - board.unsettled,
            "tasks/leased": sum([len(worker.leases) for worker in workers]),
            "workers": sum([bool(worker.queues) for worker in workers]),
        }

    # -- time, and the end of a turn ----------------------------------------------------------------------------------

    def on_tick(self, now_us: int) -> None:
        at_us = self._board.next_timer_us
        if at_us is not None and at_us <= now_us:
            self._board.on_time(now_us)
            self._ledger.is_stirred = True
            self._tell_silent()

    def _tell_silent(self) -> None:
        silent = self._board.silent
        for name in silent:
            text = f"{name} reported nothing for {self._catalogue.settings.lease_s:g} s: its tasks go to others"
            self._effects.append(Notice("silent", text, {"client": name}))
        silent.clear()

    def seal(self, now_us: int) -> None:
        """Tasks are leased, and what changed goes into the turn's append."""
        ledger = self._ledger
        if not (ledger.is_stirred or ledger.is_due(now_us)):
            return
        ledger.is_stirred = False
        self._has_run = True
        if not ledger.is_failing:
            self._board.dispatch(now_us)
        self._revoke()
        ledger.seal(now_us)
        self._intake.seal()
        ledger.has_moved = True  # what came may be certain already

    def _revoke(self) -> None:
        """At once: if it were not so after a crash, they would end all the same."""
        revoked = self._board.revoked
        for name, lease, reason in revoked:
            party = self._workers.get(name)
            if party is not None:
                self._telling.revoke(party, lease, reason)
        revoked.clear()

    def flush(self, now_us: int) -> None:
        """Clients are told what may be told by now."""
        if self._ledger.has_moved:
            self._ledger.has_moved = False
            self._intake.settle()
            self._has_run = True
        if self._telling.is_stirred:
            self._telling.flush(now_us)
            self._has_run = True
        if self._has_run:
            self._has_run = False
            timers = (self._board.next_timer_us, self._ledger.due_us, self._telling.due_us)
            due_us = min([at for at in timers if at is not None], default=None)
            self.due_us = now_us if self._ledger.is_stirred else due_us
