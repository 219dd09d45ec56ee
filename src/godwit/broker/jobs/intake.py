"""What clients send on their channels for work: groups of submissions, and reports of workers."""

from __future__ import annotations

from typing import Final

from godwit.broker.catalogue import JOBS, Catalogue, TooManyTopicsError
from godwit.broker.effects import Effect
from godwit.broker.jobs.board import Board
from godwit.broker.jobs.ledger import Ledger
from godwit.broker.jobs.party import Answer, Arrived, Party
from godwit.broker.jobs.telling import Telling
from godwit.broker.ports import RequestFailure
from godwit.broker.topics import check_kind, shown
from godwit.errors import BadKindError, DecodeError
from godwit.limits import MAX_CAPACITY, MAX_JOB_KEY_BYTES
from godwit.native.effects import ConfirmRecord
from godwit.transport.events import Received
from godwit.wire.control import Code
from godwit.wire.work import Report, Submit, TakenJob, decode_from_client

NOT_YOURS: Final = "the task is not, or no longer, yours"
MAX_REVOKES_WAITING: Final = 4 * MAX_CAPACITY
"""Of one client that does not take them: it may believe to hold as many again with each request."""


class Intake:
    """Feed: receive, leave. Drain: seal, then settle: records are confirmed when all that they said is safe."""

    def __init__(
        self, catalogue: Catalogue, board: Board, ledger: Ledger, telling: Telling, effects: list[Effect]
    ) -> None:
        self._catalogue = catalogue
        self._board = board
        self._ledger = ledger
        self._telling = telling
        self._effects = effects
        self._fresh: list[Arrived] = []
        """That came in this turn."""
        self._waiting: dict[Party, None] = {}
        """Those with records that are not confirmed."""

    def receive(self, party: Party, event: Received, now_us: int) -> None:
        """A record. DecodeError if it is no group."""
        if not event.reliable:
            raise DecodeError("work", "an unreliable record on a channel for work")
        body = event.body
        arrived = Arrived(event.record, len(body))
        if body or not event.last:  # an empty one only ends the channel
            head, payloads = decode_from_client(body)
            if isinstance(head, Submit):
                self._submit(party, head, payloads, arrived, now_us)
            else:
                self._report(party, head, payloads, now_us)
        party.arrived.append(arrived)
        self._fresh.append(arrived)
        self._waiting[party] = None
        self._ledger.is_stirred = True

    # -- submissions --------------------------------------------------------------------------------------------------

    def _submit(self, party: Party, head: Submit, payloads: list[bytes], arrived: Arrived, now_us: int) -> None:
        board = self._board
        telling = self._telling
        answers = arrived.answers
        refusals: dict[str, RequestFailure | None] = {}
        if telling.is_full(party):
            text = f"{party.name} does not take what became of its jobs: it is to read on first"
            answers += [Answer(submission.key, code=Code.TOO_MANY, text=text) for submission in head.jobs]
            return
        for submission, payload in zip(head.jobs, payloads, strict=True):
            kind = submission.of_kind
            if kind not in refusals:  # most groups have one
                refusals[kind] = self._refusal(party, kind)
            next_job = board.next_job
            try:
                if (refusal := refusals[kind]) is not None:
                    raise refusal
                _check_key(submission.key)
                job = board.submit(party.name, submission, payload, now_us)
            except RequestFailure as failure:
                answers.append(Answer(submission.key, code=failure.code, text=failure.text))
            else:
                answers.append(Answer(submission.key, job, is_new=job.number >= next_job))
                telling.watch(party, job)

    def _refusal(self, party: Party, kind: str) -> RequestFailure | None:
        """Why this client cannot submit such jobs."""
        session = party.session
        try:
            check_kind(kind)
            if not self._catalogue.settings.access.may(session.name, session.is_proved, "submit", kind):
                return RequestFailure(Code.NOT_ALLOWED, f"{session.name} may not submit jobs of the kind {kind!r}")
            if self._catalogue.get(JOBS + kind) is None:
                self._catalogue.create(JOBS + kind, creator=session.name)
        except BadKindError as error:
            return RequestFailure(Code.BAD_KIND, str(error))
        except TooManyTopicsError as error:
            return RequestFailure(Code.TOO_MANY, f"the events of the kind {kind!r} need a topic: {error}")
        return None

    # -- reports ------------------------------------------------------------------------------------------------------

    def _report(self, party: Party, head: Report, payloads: list[bytes], now_us: int) -> None:
        board = self._board
        telling = self._telling
        name = party.name
        board.heard(name, now_us)
        for step in head.steps:
            task = board.step(name, step.task, step.progress, step.note)
            if task is not None:
                telling.task_changed(task)
            elif not board.is_repeat(step.task, name) and len(party.revokes) < MAX_REVOKES_WAITING:
                telling.revoke(party, step.task, NOT_YOURS)  # else with a later step
        for outcome, payload in zip(head.outcomes, payloads, strict=True):
            # One that comes too late, or from somebody who never had the task, changes nothing: its sender is done
            # with it, so that there is nothing to revoke.
            if outcome.error is None:
                board.finish(name, outcome.task, payload, now_us)
            else:
                board.fail(name, outcome.task, outcome.error, outcome.is_final, now_us)
        for lease in head.returned:
            board.give_back(name, lease, now_us)

    # -- the end of a turn --------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """What came in this turn is safe when the turn is, or those before it if there was nothing to write."""
        for arrived in self._fresh:
            arrived.turn = self._ledger.given
        self._fresh.clear()

    def leave(self, party: Party) -> None:
        self._waiting.pop(party, None)

    def settle(self) -> None:
        """The log has answered: what is certain by now is confirmed."""
        for party in list(self._waiting):
            last: Arrived | None = None
            while party.arrived and self._is_certain(party.arrived[0]):
                last = party.arrived.popleft()
                party.owed.append(last.body_bytes)
                if last.answers:
                    self._answer(party, last)
            if last is not None:
                self._effects.append(ConfirmRecord(party.link.connection, party.channel, last.record, 0, -1))
                self._telling.stir(party)
            if not party.arrived:
                del self._waiting[party]

    def _is_certain(self, arrived: Arrived) -> bool:
        """Safe; or none of its jobs is waited for any more, because the log could not be written."""
        ledger = self._ledger
        if arrived.turn <= ledger.safe:
            return True
        return ledger.is_failing and bool(arrived.answers) and not any(map(self._is_open, arrived.answers))

    def _is_open(self, answer: Answer) -> bool:
        job = answer.job
        return job is not None and not job.is_stored and self._board.jobs.get(job.number) is job

    def _answer(self, party: Party, arrived: Arrived) -> None:
        is_safe = arrived.turn <= self._ledger.safe
        taken: list[TakenJob] = []
        for answer in arrived.answers:
            job = answer.job
            if job is None:
                taken.append(TakenJob(key=answer.key, code=answer.code, text=answer.text))
            elif job.is_stored:
                agreed = answer.agreed if is_safe or not self._ledger.is_unsafe(job) else None
                taken.append(TakenJob(key=answer.key, job=job.number, agreed=agreed))
                if not answer.is_new:
                    self._telling.tell_all(party, job)  # whoever asks again may have missed what became of it
            else:
                taken.append(TakenJob(key=answer.key, code=Code.STORAGE, text=self._ledger.failure))
        self._telling.taken(party, taken)


def _check_key(key: str) -> None:
    size_bytes = len(key.encode())
    if size_bytes > MAX_JOB_KEY_BYTES:
        raise RequestFailure(
            Code.MALFORMED, f"the key {shown(key)} is {size_bytes} bytes long: at most {MAX_JOB_KEY_BYTES} are allowed"
        )
