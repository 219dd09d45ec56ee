"""Who works: workers volunteer, report, fall silent, go and come back, and with them what they have."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from godwit.broker.jobs.dispatch import Dispatch
from godwit.broker.jobs.ends import Ends
from godwit.broker.jobs.model import Task, Worker
from godwit.broker.jobs.starts import Starts, check
from godwit.broker.jobs.timers import Timers
from godwit.broker.jobs.turn import TimerOwner, Turn


class Crew:
    """All workers, by name: who volunteered and is connected, and who has leases."""

    __slots__ = ("_dispatch", "_ends", "_starts", "_timers", "_turn", "lease_us", "workers")

    def __init__(
        self,
        lease_us: int,
        workers: dict[str, Worker],
        dispatch: Dispatch,
        starts: Starts,
        ends: Ends,
        timers: Timers[TimerOwner],
        turn: Turn,
    ) -> None:
        self.lease_us = lease_us
        self.workers = workers
        self._dispatch = dispatch
        self._starts = starts
        self._ends = ends
        self._timers = timers
        self._turn = turn

    def change(self, lease_us: int) -> None:
        """A shorter one holds for those who volunteer from now on: the others were told that they have longer."""
        self.lease_us = lease_us
        for worker in self.workers.values():
            worker.lease_us = max(worker.lease_us, lease_us)

    def volunteer(self, name: str, instance: bytes, kinds: Sequence[str], capacity: int, now_us: int) -> Worker:
        """It does these kinds from now on, and no others. RequestFailure if one of them cannot be."""
        for kind in kinds:
            if kind not in self._dispatch.queues:
                check(kind)
        self.displace(name, instance, now_us)
        worker = self.workers.get(name)
        if worker is None:
            worker = self.workers[name] = Worker(name, instance, now_us)
        worker.is_connected = True
        worker.is_silent = False
        worker.heard_us = now_us
        worker.capacity = capacity
        worker.kinds = tuple(dict.fromkeys(kinds))
        self._serve(worker, worker.kinds, now_us)
        self._dispatch.moved(worker)
        worker.lease_us = self.lease_us
        self._timers.set(worker, now_us + worker.lease_us)
        return worker

    def heard(self, name: str, now_us: int) -> None:
        worker = self.workers.get(name)
        if worker is None:
            return
        worker.heard_us = now_us
        if worker.is_silent:
            worker.is_silent = False
            self._serve(worker, worker.kinds, now_us)
            self._timers.set(worker, now_us + worker.lease_us)

    def withdraw(self, name: str, kinds_lost: Collection[str] | None, now_us: int) -> None:
        worker = self.workers.get(name)
        if worker is None:
            return
        lost = worker.kinds if kinds_lost is None else frozenset(kinds_lost)
        worker.kinds = tuple(kind for kind in worker.kinds if kind not in lost)
        self._serve(worker, () if worker.is_silent else worker.kinds, now_us)
        if kinds_lost is not None:
            for task in [task for task in worker.leases if task.job.kind in lost]:
                self._ends.take_back(task, now_us, "it may not do this kind of work any more")
        self._ends.forget_idle(worker)

    def disconnect(self, worker: Worker, now_us: int) -> None:
        """It is no volunteer. What it has stays with it until it was silent for too long."""
        worker.is_connected = False
        worker.kinds = ()
        self._serve(worker, (), now_us)
        self._ends.forget_idle(worker)

    def leave(self, name: str, now_us: int) -> None:
        worker = self.workers.get(name)
        if worker is not None:
            self.disconnect(worker, now_us)
            for task in list(worker.leases):
                self._ends.give_back(task, now_us)

    def displace(self, name: str, instance: bytes, now_us: int) -> None:
        """This run of it is there: what another one had is lost."""
        worker = self.workers.get(name)
        if worker is not None and worker.instance != instance:
            self.disconnect(worker, now_us)
            for task in list(worker.leases):
                self._ends.lose(task, "another run of this worker has come", now_us)

    def on_silence(self, worker: Worker, now_us: int) -> None:
        """Perhaps: it is looked at when it might have been silent for too long."""
        due_us = worker.heard_us + worker.lease_us
        if due_us > now_us:
            self._timers.set(worker, due_us)
            return
        worker.is_silent = True
        self._turn.silent.append(worker.name)
        self._serve(worker, (), now_us)
        for task in list(worker.leases):
            self._ends.lose(task, "its worker reported nothing for too long", now_us)

    def restore(self, task: Task, heard_us: int) -> None:
        """It was leased before the broker stopped."""
        worker = self.workers.get(task.worker)
        if worker is None:
            worker = self.workers[task.worker] = Worker(task.worker, task.instance, heard_us)
            worker.lease_us = self.lease_us
            self._timers.set(worker, heard_us + worker.lease_us)
        worker.leases[task] = None

    def _serve(self, worker: Worker, kinds: Sequence[str], now_us: int) -> None:
        """It counts as a volunteer for these kinds, and no others."""
        for queue in [queue for queue in worker.queues if queue.kind not in kinds]:
            self._dispatch.leave(worker, queue)
        served = {queue.kind for queue in worker.queues}
        for kind in kinds:
            if kind not in served:
                queue = self._dispatch.queue(kind)
                if not queue.volunteers:
                    self._starts.settle_later(queue, now_us)
                self._dispatch.join(worker, queue)
