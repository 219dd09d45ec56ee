"""The ledger of the world of jobs: what controllers asked for, and what workers did, in their own words.

Nothing here looks at the broker or the library. Payloads and results are unlike each other, so that a wrong one is
noticed wherever it turns up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from godwit.wire.jobs import JobSpec, Ref
from godwit_sim.checkers import ViolationError


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One time that it was asked for."""

    wish: JobSpec
    payload: bytes
    asked_s: float


@dataclass(slots=True, eq=False)
class Order:
    """A job as its controller asked for it. Asked for again with the same key it is the same, and as it was."""

    controller: str
    key: str
    asks: list[Ask] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """The jobs that it became: one, unless that was forgotten long after its end and then asked for again."""

    def __str__(self) -> str:
        return f"job {self.key!r} of {self.controller}"


@dataclass(slots=True, eq=False)
class Run:
    """A lease in the hands of a worker, from its side."""

    ref: Ref
    worker: str
    label: str
    """Which life of the worker."""
    began_s: float
    result: bytes | None = None
    error: str | None = None
    is_final: bool = False
    is_returned: bool = False
    is_reported: bool = False
    """The library said that the outcome is safe."""
    steps: list[tuple[float | None, str]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.error is not None or self.is_returned

    def __str__(self) -> str:
        job, task, fence = self.ref
        return f"task {task} of job {job} under fence {fence} at {self.label}"


class JobLedger:
    """Feed: ask, cancel, begin. What becomes of runs is written into them."""

    NAME: Final = "ledger"

    def __init__(self) -> None:
        self.orders: dict[tuple[str, str], Order] = {}
        """By controller and key."""
        self.runs: dict[Ref, Run] = {}
        self.cancels: set[int] = set()
        """Jobs that somebody wanted to be cancelled."""

    def ask(self, controller: str, wish: JobSpec, payload: bytes, now: float) -> Order:
        """A controller submits."""
        order = self.orders.setdefault((controller, wish.key), Order(controller, wish.key))
        order.asks.append(Ask(wish, payload, now))
        return order

    def begin(self, ref: Ref, worker: str, label: str, now: float) -> Run:
        """A worker was given this lease. No two ever get the same one, and nobody gets it twice."""
        if (other := self.runs.get(ref)) is not None:
            raise ViolationError(self.NAME, f"{other} was given to {label} too")
        run = self.runs[ref] = Run(ref, worker, label, now)
        return run
