"""Requests about work, on channel 0: volunteer, watch, unwatch, cancel, jobs, job."""

from __future__ import annotations

from typing import Final

from godwit.broker.catalogue import Catalogue
from godwit.broker.effects import Effect, Notice
from godwit.broker.jobs.board import Board
from godwit.broker.jobs.intake import MAX_REVOKES_WAITING, NOT_YOURS
from godwit.broker.jobs.ledger import Ledger
from godwit.broker.jobs.listing import Listing
from godwit.broker.jobs.party import Party, party_of, who
from godwit.broker.jobs.states import ENDED
from godwit.broker.jobs.telling import MAX_WATCHED, Telling
from godwit.broker.ports import RequestFailure
from godwit.broker.session import Session
from godwit.broker.topics import check_kind
from godwit.errors import BadKindError
from godwit.native.peer import NativePeer
from godwit.wire import jobs as wire
from godwit.wire.control import Code

KINDS_TOLD: Final = 3
"""In a line for the people who run the broker."""


class JobRequests:
    """Each method is one request; what cannot be done is a RequestFailure."""

    def __init__(
        self,
        catalogue: Catalogue,
        board: Board,
        ledger: Ledger,
        telling: Telling,
        listing: Listing,
        workers: dict[str, Party],
        effects: list[Effect],
    ) -> None:
        self._catalogue = catalogue
        self._board = board
        self._ledger = ledger
        self._telling = telling
        self._listing = listing
        self._workers = workers
        self._effects = effects
        self.jobs = listing.jobs
        self.job = listing.job

    def volunteer(self, link: NativePeer, session: Session, request: wire.Volunteer, now_us: int) -> wire.Volunteered:
        settings = self._catalogue.settings
        kinds = tuple(dict.fromkeys(request.kinds))
        for kind in kinds:
            try:
                check_kind(kind)
            except BadKindError as error:
                raise RequestFailure(Code.BAD_KIND, str(error)) from None
            if not settings.access.may(session.name, session.is_proved, "work", kind):
                raise RequestFailure(Code.NOT_ALLOWED, f"{session.name} may not work on the kind {kind!r}")
        party = party_of(link, session, self._effects)
        if len(party.revokes) > MAX_REVOKES_WAITING:
            raise RequestFailure(Code.TOO_MANY, f"{session.name} does not take what was sent to it: try again later")
        is_new_link, party.is_worker = not party.is_worker, True
        self._workers[party.name] = party
        known = self._board.workers.get(party.name)
        before = known.kinds if known is not None and not is_new_link else ()
        not_its = self._board.volunteer(
            party.name, session.instance, kinds, request.capacity, request.holding, now_us, is_new_link=is_new_link
        )
        self._ledger.is_stirred = True
        for lease in not_its:
            self._telling.revoke(party, lease, NOT_YOURS)
        if kinds != before:
            self._tell_people(session, kinds, request.capacity)
        return wire.Volunteered(request=request.request, lease_ms=int(settings.lease_s * 1000))

    def _tell_people(self, session: Session, kinds: tuple[str, ...], capacity: int) -> None:
        name = who(session)
        fields = session.fields(client=name, kinds=list(kinds), capacity=capacity)
        if kinds:
            more = f" and {len(kinds) - KINDS_TOLD} more" if len(kinds) > KINDS_TOLD else ""
            text = f"{name} volunteered for {', '.join(kinds[:KINDS_TOLD])}{more}, {capacity} at once"
            self._effects.append(Notice("volunteered", text, fields))
        else:
            self._effects.append(Notice("withdrew", f"{name} withdrew: it takes no more tasks", fields))

    def watch(self, link: NativePeer, session: Session, request: wire.Watch) -> wire.Watched:
        party = party_of(link, session, self._effects)
        unknown: list[int] = []
        for number in dict.fromkeys(request.jobs):
            job = self._board.jobs.get(number)
            if job is None or not job.is_stored or not self._listing.may_follow(session, job):
                unknown.append(number)
                continue
            if self._telling.is_full(party) and number not in party.watched:
                raise RequestFailure(Code.TOO_MANY, f"{session.name} watches {MAX_WATCHED} jobs: unwatch some first")
            self._telling.watch(party, job)
            self._telling.tell_all(party, job)
        return wire.Watched(request=request.request, unknown=unknown)

    def unwatch(self, link: NativePeer, request: wire.Unwatch) -> None:
        party = link.party
        if party is not None:
            for number in request.jobs:
                self._telling.unwatch(party, number)

    def cancel(self, session: Session, request: wire.Cancel, now_us: int) -> None:
        job = self._listing.find(session, request.job)
        name = who(session)
        if job.controller != name and not self._catalogue.settings.access.may(session.name, session.is_proved, "kick"):
            raise RequestFailure(
                Code.NOT_ALLOWED,
                f"job {job.number} is {job.controller}'s: only who submitted it, or may kick, can cancel it",
            )
        if job.state == "cancelled":
            return
        if job.state in ENDED:
            raise RequestFailure(Code.NO_SUCH_JOB, f"job {job.number} has ended already, it is {job.state}")
        self._board.cancel(job, request.reason or f"cancelled by {name}", now_us)
        self._ledger.is_stirred = True
