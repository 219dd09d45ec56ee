"""The jobs world: controllers, workers, and the server with its log on a disk, all of which can fail at any time.

Safety: while workers die, stall, withdraw and return, controllers disappear and come back, and the broker restarts, the
`$jobs` messages of the log contain no event that is not allowed, and no client is notified of a state that is not in
them. Liveness: after the faults, within a bounded time every job has ended as its limits demand, and every client that
follows it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from godwit.broker.settings import Settings
from godwit.impairment import ImpairedLink, LinkSettings
from godwit.limits import MAX_RETRY_DELAY_S
from godwit.server.log import Log
from godwit.server.server import Server
from godwit.transport.events import Event
from godwit_sim.network import Host, Trace
from godwit_sim.worlds.broker import observe
from godwit_sim.worlds.durable import DiskFault, DurableWorld, Opener, TrimmedLog, WatchedDurableStore, open_store
from godwit_sim.worlds.jobs_clients import ControllerActor, WorkerActor
from godwit_sim.worlds.jobs_harness import Actor, DelayedLog, JobCheckers
from godwit_sim.worlds.jobs_plan import ActorFault, ActorPlan, JobsPlan, draw_jobs_plan


class JobsWorld(DurableWorld):
    """One seed, from its plan to its end."""

    def __init__(
        self, plan: JobsPlan, trace: Trace, server: type[Server] = Server, opener: Opener = open_store
    ) -> None:
        self.work = plan
        super().__init__(plan.durable, trace, server, opener)
        self.jobs = JobCheckers(plan, self.checkers)
        self.checkers.on_learned = self.jobs.learn
        address = self.hosts[0].address
        names = [worker.actor.name for worker in plan.workers]
        self.workers = [
            WorkerActor(
                self.jobs,
                number,
                one,
                self._add_actor_host(number, one.actor),
                address,
                has_twin=_is_twin(names, number),
            )
            for number, one in enumerate(plan.workers)
        ]
        self.controllers = [
            ControllerActor(self.jobs, number, one, self._add_actor_host(len(names) + number, one.actor), address)
            for number, one in enumerate(plan.controllers)
        ]
        self.actors: list[Actor] = [*self.workers, *self.controllers]

    def _add_actor_host(self, number: int, plan: ActorPlan) -> Host:
        host = self._add_host(f"actor{number}", (f"10.0.1.{number + 1}", 41_000), plan.host)
        self._join(host, self.hosts[0], plan.up)
        self._join(self.hosts[0], host, plan.down)
        return host

    def start(self) -> None:
        super().start()
        for actor in self.actors:
            self.network.at(actor.actor.start_s, actor.begin)
        for fault in self.work.faults:
            self.network.at(fault.at_s, self._apply_actor_fault, fault)

    def summary(self) -> str:
        jobs = self.jobs.log_model.jobs.values()
        ends = {state: sum(job.state == state for job in jobs) for state in ("done", "failed", "cancelled")}
        return (
            f"{len(self.workers)} workers, {len(self.controllers)} controllers, {len(jobs)} jobs {ends}, "
            f"{len(self.jobs.records.runs)} runs, {self.jobs.log_model.events} events, {super().summary()}"
        )

    # -- the server ---------------------------------------------------------------------------------------------------

    def _settings(self) -> Settings:
        return replace(super()._settings(), lease_s=self.work.lease_s, job_keep_s=self.work.keep_s)

    def _make_log(self, watched: WatchedDurableStore) -> TrimmedLog:
        if not self.work.commit_s:
            return super()._make_log(watched)
        return DelayedLog(watched, Random(f"{self.plan.seed} log {self._openings}"), self.work.commit_s)

    def _make_server(self, log: Log, label: str, epoch_us: int) -> Server:
        self.jobs.workers.started(self.network.now)
        return super()._make_server(log, label, epoch_us)

    def _observe_events(self, events: Sequence[Event]) -> None:
        super()._observe_events(events)
        self.jobs.workers.handle_events(events, self.network.now)

    def _end_run(self) -> None:
        super()._end_run()
        self.jobs.workers.handle_broker_death(self.network.now)

    # -- faults -------------------------------------------------------------------------------------------------------

    def _start_disk_fault(self, fault: DiskFault) -> None:
        super()._start_disk_fault(fault)
        self.jobs.log_model.has_disk_failed = True

    def _apply_actor_fault(self, fault: ActorFault) -> None:
        network = self.network
        actor = self.actors[fault.actor]
        again_s = network.now + fault.lasts_s
        self.checkers.note(f"fault {fault.kind} {actor.label}")
        match fault.kind:
            case "dies":
                actor.die()
                network.at(again_s, actor.begin)
            case "closes":
                actor.close()
                network.at(again_s, actor.restart)
            case "pauses":
                network.pause(actor.host, again_s)
            case "partition":
                network.partition(actor.host, self.hosts[0], both_ways=fault.actor % 2 == 0)
                network.at(again_s, network.heal, actor.host, self.hosts[0])
            case "rebind":
                ip, port = actor.host.address
                network.rebind(actor.host, (ip, port + 1))
            case "route":
                assert fault.route is not None
                for settings, link in zip(fault.route, self._lines(actor), strict=True):
                    link.change(settings)
            case "withdraws":
                assert isinstance(actor, WorkerActor)
                actor.withdraw(fault.lasts_s)
            case "changes":
                assert isinstance(actor, WorkerActor)
                actor.change(Random(f"{self.plan.seed} change {fault.at_s}"))

    def _lines(self, actor: Actor) -> tuple[ImpairedLink, ImpairedLink]:
        here, stored = actor.host.name, self.hosts[0].name
        return self.network.links[here, stored], self.network.links[stored, here]

    def _heal(self) -> None:
        super()._heal()
        self.jobs.is_healed = True
        for actor in self.actors:
            for settings, link in zip((actor.actor.up, actor.actor.down), self._lines(actor), strict=True):
                link.up = True
                link.change(LinkSettings(delay_s=settings.delay_s))
        for number, worker in enumerate(self.workers):
            if _is_twin([one.actor.name for one in self.work.workers[: number + 1]], number):
                worker.retire()  # only one process may keep the name
        for actor in self.actors:
            actor.end_faults()

    # -- liveness -----------------------------------------------------------------------------------------------------

    @property
    def _clients(self) -> int:
        return super()._clients + sum(not actor.is_retired for actor in self.actors)

    def _patience_s(self) -> float:
        """Return how long jobs may take: every attempt may fail but the last, and every lease may expire first."""
        worst_s = 0.0
        for job in self.work.jobs:
            pauses_s = sum(min(job.retry_delay_ms * 2**again / 1000, MAX_RETRY_DELAY_S) for again in range(job.retries))
            worst_s = max(worst_s, job.delay_ms / 1000 + pauses_s)
        return super()._patience_s() + worst_s + 20 * self.work.lease_s + 2.0 * len(self.work.jobs) + 60.0

    def _unsettled(self) -> str:
        if problem := super()._unsettled():
            return problem
        for job in self.jobs.log_model.unended():
            tasks = {number: task.status for number, task in job.tasks.items()}
            return f"{job} has not ended: {tasks}"
        return next((problem for actor in self.actors if (problem := actor.unsettled())), "")

    def _finish(self) -> None:
        self.jobs.is_over = True
        for actor in self.actors:
            actor.close()
        super()._finish()


def _is_twin(names: Sequence[str | None], number: int) -> bool:
    """Return whether another worker has the same name."""
    return names[number] is not None and names.count(names[number]) > 1


def run_jobs(
    seed: int, trace: Trace, server: type[Server] = Server, opener: Opener = open_store
) -> tuple[str | None, str]:
    """Run one seed; return the violation, if any, and a summary."""
    plan = draw_jobs_plan(seed)
    trace.comment(0.0, f"plan {plan}")
    world = JobsWorld(plan, trace, server, opener)
    violation, summary = observe(world)
    if violation is not None:
        violation += f"\n  before that:{world.jobs.tail()}"
    return violation, summary
