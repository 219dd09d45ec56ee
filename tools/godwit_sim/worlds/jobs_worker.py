"""The workers of the world of jobs: they take tasks, tell how far they are, and bring results, failures, or neither."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from godwit.client import events as told
from godwit.client.worker import Lease
from godwit.errors import BufferFullError
from godwit.transport.events import Address
from godwit.wire.jobs import Ref
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_ledger import Run
from godwit_sim.network import Host
from godwit_sim.worlds.jobs_actor import Actor
from godwit_sim.worlds.jobs_books import JobBooks
from godwit_sim.worlds.jobs_plan import KINDS, WorkerPlan

CALM_TASK_S: Final = 0.05
"""No attempt takes longer when all is calm."""


class WorkerActor(Actor):
    """One worker through all its lives."""

    def __init__(
        self, books: JobBooks, number: int, plan: WorkerPlan, host: Host, server: Address, *, has_twin: bool
    ) -> None:
        super().__init__(books, f"worker{number}", plan.actor, host, server, has_twin=has_twin)
        self.plan = plan
        self._kinds = plan.kinds
        self._capacity = plan.capacity
        self._is_away = False
        """It has withdrawn."""
        self._holding: dict[Lease, Run] = {}
        self._claims: set[Ref] = set()
        """Tasks of others that it has reported."""

    def on_begun(self) -> None:
        self._holding.clear()
        self._claims.clear()
        self._volunteer()

    def _volunteer(self) -> None:
        if self._is_away:
            self.client.withdraw()
        else:
            self.client.volunteer(self._kinds, self._capacity)

    # -- what befalls it ----------------------------------------------------------------------------------------------

    def withdraw(self, lasts_s: float) -> None:
        """For so long it wants no more; some hand back what they have, others end it."""
        self._is_away = True
        if self.host.alive and not self.is_closing:
            self.client.withdraw()
            if self.plan.returns:
                for lease, run in list(self._holding.items()):
                    self._end(lease, run, self._give_back)
            self.books.network.pump(self.host)
        self.books.network.at(self.books.network.now + lasts_s, self._want_again)

    def _want_again(self) -> None:
        self._is_away = False
        self._say_again()

    def change(self, rng: Random) -> None:
        """It does something else from now on, or more, or less."""
        self._kinds = tuple(rng.sample(KINDS, rng.randint(1, 2)))
        self._capacity = rng.choice((1, 2, 5))
        self._say_again()

    def _say_again(self) -> None:
        if self.host.alive and not self.is_closing:
            self._volunteer()
            self.books.network.pump(self.host)

    def calm_down(self) -> None:
        super().calm_down()
        self._is_away = False
        self._kinds, self._capacity = self.plan.kinds, self.plan.capacity
        self._say_again()

    def unsettled(self) -> str:
        held = [run for run in self._holding.values() if not run.is_reported]
        return super().unsettled() or (f"{held[0]} is not over" if held and not self.is_retired else "")

    # -- tasks --------------------------------------------------------------------------------------------------------

    def on_event(self, event: Any) -> None:
        match event:
            case told.Leased():
                self._on_leased(event.lease)
            case told.Revoked():
                run = self._holding.pop(event.lease)
                if self.plan.is_deaf and not self.books.is_calm:
                    self.later(0.01, self._insist, event.lease, run)
            case told.Reported():
                if event.lease.ref not in self._claims:
                    self.books.tellings.reported(self._holding.pop(event.lease))
            case told.VolunteerRefused():
                raise ViolationError("worker", f"{self.label} may not work: {event.text}")
            case told.VolunteerAccepted() | told.WorkIdle():
                pass
            case _:
                raise ViolationError("worker", f"{self.label} was told {event}")

    def _on_leased(self, lease: Lease) -> None:
        books = self.books
        run = books.ledger.begin(lease.ref, self.name, self.label, books.network.now)
        books.tellings.leased(run, lease)
        self._holding[lease] = run
        plan = books.plans[lease.payload]
        rng = Random(f"{books.seed} run {lease.ref} {self.label}")
        takes_s = rng.uniform(0.0, 2 * plan.takes_s)
        if books.is_calm:
            takes_s = min(takes_s, CALM_TASK_S)
        for step in range(self.plan.steps):
            self.later(takes_s * (step + 1) / (self.plan.steps + 1), self._step, lease, run, step)
        fate: Callable[[Lease, Run], None] = self._finish
        if rng.random() < self.plan.returns:
            fate = self._give_back
        elif rng.random() < plan.fails:
            fate = self._fail_for_good if rng.random() < plan.fails_for_good else self._fail
        self.later(takes_s, self._end, lease, run, fate)
        if self.plan.is_deaf and not books.is_calm:
            self.later(takes_s / 2, self._claim)

    def _step(self, lease: Lease, run: Run, step: int) -> None:
        if lease in self._holding and not run.is_over:
            progress, note = round((step + 1) / (self.plan.steps + 1), 3), f"step {step} of {run.ref}"
            run.steps.append((progress, note))
            self.client.step(lease, progress, note)

    def _end(self, lease: Lease, run: Run, fate: Callable[[Lease, Run], None]) -> None:
        if lease in self._holding and not run.is_over:
            fate(lease, run)

    def _finish(self, lease: Lease, run: Run) -> None:
        size_bytes = self.books.plans[lease.payload].result_bytes
        result = self.books.payload(size_bytes) if size_bytes else b""
        try:
            self.client.finish(lease, result)
        except BufferFullError:
            self.when_there_is_room(self._end, lease, run, self._finish)
        else:
            run.result = result

    def _fail(self, lease: Lease, run: Run) -> None:
        run.error = f"no luck with {lease.ref}"
        self.client.fail(lease, run.error)

    def _fail_for_good(self, lease: Lease, run: Run) -> None:
        run.error, run.is_final = f"no hope for {lease.ref}", True
        self.client.fail(lease, run.error, is_final=True)

    def _give_back(self, lease: Lease, run: Run) -> None:
        run.is_returned = True
        self.client.give_back(lease)

    # -- bad manners: what is reported here must be ignored -----------------------------------------------------------

    def _insist(self, lease: Lease, run: Run) -> None:
        """Reports what was revoked, as a worker would that knows nothing of revoking."""
        self._holding[lease] = run
        run.result = self._report_anyway(lease)

    def _claim(self) -> None:
        """Reports a task that somebody else has."""
        for story in self.books.chronicle.unended():
            for task in story.tasks.values():
                ref = (story.number, task.number, task.fence)
                if task.state == "leased" and task.worker != self.name and ref not in self._claims:
                    lease = Lease(ref, story.kept.kind, story.kept.controller, b"", 1, 0, None, None)
                    self._claims.add(ref)
                    self._report_anyway(lease)
                    return

    def _report_anyway(self, lease: Lease) -> bytes:
        result = self.books.payload(16)
        lease.state = "running"
        self.client._work.leases._running[lease.ref] = lease
        self.client.finish(lease, result)
        return result
