"""The books of the world of jobs: its checkers, beside those of the broker world, which know the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from godwit.broker.admission import RESTART_GRACE_US
from godwit.wire.batch import Entry, decode_entry
from godwit_sim.jobs_chronicle import Chronicle
from godwit_sim.jobs_ledger import JobLedger
from godwit_sim.jobs_roster import WorkRoster
from godwit_sim.jobs_tellings import TellingChecker
from godwit_sim.worlds.broker_books import EPOCH_US, Books
from godwit_sim.worlds.jobs_plan import JobPlan, JobsPlan

TOPIC: Final = "$jobs/"
TAIL: Final = 24
TAIL_WIDTH: Final = 220
"""So much is told of what went before a violation."""


class JobBooks:
    """The checkers of one world, and what each payload asks for."""

    def __init__(self, plan: JobsPlan, books: Books) -> None:
        self.seed = plan.seed
        self.network = books.network
        self.payload = books.payload
        self.ledger = JobLedger()
        self.roster = WorkRoster(plan.lease_s, RESTART_GRACE_US / 1e6)
        self.chronicle = Chronicle(self.ledger, self.roster, epoch_us=EPOCH_US, keep_s=plan.keep_s)
        self.tellings = TellingChecker(self.ledger, self.chronicle)
        self.plans: dict[bytes, JobPlan] = {}
        """By the payload of the job."""
        self.is_calm = False
        """Nothing befalls anybody any more, and tasks are quick."""
        self.is_over = False
        """Everybody goes home."""
        self._books = books
        self._tail: deque[tuple[float, str]] = deque(maxlen=TAIL)

    def note(self, what: str) -> None:
        """For the trace, and for whoever wants to know what went before a violation."""
        self._tail.append((self.network.now, what))
        self._books.note(what)

    def tail(self) -> str:
        """What happened last, a line each."""
        return "".join(f"\n  {now:12.6f}  {what[:TAIL_WIDTH]}" for now, what in self._tail)

    @property
    def is_storage_failing(self) -> bool:
        return self._books.is_storage_failing

    def learn(self, entries: Sequence[Entry]) -> None:
        """An append is safe."""
        messages = [
            (entry.topic.removeprefix(TOPIC), payload)
            for entry in entries
            if entry.topic.startswith(TOPIC)
            for payload in decode_entry(entry).payloads
        ]
        for kind, payload in messages:
            self._tail.append((self.network.now, f"log {kind} {payload.decode(errors='replace')}"))
        self.chronicle.learn(messages, self._books.restarts.rows, self.network.now)
