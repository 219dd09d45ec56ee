"""A board for tests, with the words that a test needs: time in seconds, and what each turn brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from godwit.broker.jobs.board import Board
from godwit.broker.jobs.model import Happening, Job, Task
from godwit.wire.jobs import Ref
from godwit.wire.work import Submission

LEASE_S = 30.0
KEEP_S = 3600.0
START_US = 1_700_000_000_000_000


class Bench:
    """Drives a board, and collects what it says."""

    def __init__(self, board: Board | None = None, now_us: int = START_US) -> None:
        self.board = board or Board(lease_us=int(LEASE_S * 1e6), keep_us=int(KEEP_S * 1e6))
        self.now_us = now_us
        self.events: list[Happening] = []
        self.revoked: list[tuple[str, Ref, str]] = []
        self.gone: list[int] = []
        self._keys = 0

    def submit(
        self,
        kind: str = "resize",
        payload: bytes = b"",
        *,
        by: str = "carla",
        key: str | None = None,
        is_turn: bool = True,
        **options: Any,
    ) -> Job:
        self._keys += 1
        submission = Submission(key=key or f"key-{self._keys}", of_kind=kind, size=len(payload), **options)
        job = self.board.submit(by, submission, payload, self.now_us)
        if is_turn:
            self.turn()
        return job

    def volunteer(
        self,
        name: str,
        kinds: Sequence[str] = ("resize",),
        capacity: int = 1,
        *,
        holding: Sequence[Ref] = (),
        instance: bytes = b"run 1",
        is_new_link: bool = False,
        is_turn: bool = True,
    ) -> list[Ref]:
        unknown = self.board.volunteer(name, instance, kinds, capacity, holding, self.now_us, is_new_link=is_new_link)
        if is_turn:
            self.turn()
        return unknown

    def turn(self) -> list[Task]:
        """The end of a turn: what was leased in it."""
        board = self.board
        board.dispatch(self.now_us)
        leased = board.leased
        self.events += [happening for told in board.happened.values() for happening in told]
        self.revoked += board.revoked
        self.gone += board.gone
        board.new_jobs, board.leased, board.revoked, board.gone, board.silent = [], [], [], [], []
        board.changed_jobs, board.changed_tasks, board.happened = {}, {}, {}
        return leased

    def wait(self, seconds: float, *, heard: Sequence[str] = ()) -> list[Task]:
        """Time goes by, timer for timer. Those who are heard report now and then."""
        leased = []
        end_us = self.now_us + int(seconds * 1e6)
        while True:
            at_us = self.board.next_timer_us
            self.now_us = end_us if at_us is None else max(min(at_us, end_us), self.now_us)
            for name in heard:
                self.board.heard(name, self.now_us)
            self.board.on_time(self.now_us)
            leased += self.turn()
            if self.now_us == end_us:
                return leased

    def finish(self, task: Task, result: bytes = b"done") -> list[Task]:
        assert self.board.finish(task.worker, task.ref, result, self.now_us)
        return self.turn()

    def fail(self, task: Task, error: str = "broken", *, is_final: bool = False) -> list[Task]:
        assert self.board.fail(task.worker, task.ref, error, is_final, self.now_us)
        return self.turn()

    def give_back(self, task: Task) -> list[Task]:
        assert self.board.give_back(task.worker, task.ref, self.now_us)
        return self.turn()

    def told(self) -> list[str]:
        """The events so far, which are forgotten then."""
        events = [happening.event for happening in self.events]
        self.events.clear()
        return events


def holders(job: Job) -> list[str]:
    """Who has its tasks, in their order."""
    return [task.worker for task in job.tasks if task.state == "leased"]
