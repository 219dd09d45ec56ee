"""One controller, one broker with its work on disk, one worker, a process each: how many jobs a second are done.

Every system is measured in the same way. The controller submits jobs for a while, as fast as its library lets it, and
the worker takes and completes them. A cycle is a job that was submitted, leased and completed, and what was promised
about it is on the disk. The time runs from the first submission until the last job is known to be completed.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

import msgspec

from godwit.errors import GodwitError
from godwit_bench.stage import GIVE_UP_S, Stage, hear

JOB_BYTES: Final = 100
DATA_FOLDER: Final = "data"
"""In the stage's folder: where a system keeps its jobs."""


class Dispatcher(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[Stage], str]
    """Starts it, with its jobs in DATA_FOLDER of the stage's folder, and gives its address once it is reachable."""
    controller: Callable[[Pipe, str, float], None]
    """Submits jobs of JOB_BYTES for so many seconds, says Submitted; in a process of its own."""
    worker: Callable[[Pipe, str], None]
    """Says READY, completes what comes, hears how many jobs it will be, says Completed; in a process of its own."""


class Submitted(msgspec.Struct, frozen=True):
    """What a controller says when all its jobs are safe. Times are of the monotonic clock, one for all processes."""

    jobs: int
    began_s: float
    ended_s: float


class Completed(msgspec.Struct, frozen=True):
    """What a worker says when it has done all there is to do."""

    jobs: int
    ended_s: float


def measure(dispatcher: Dispatcher, folder: Path, seconds: float) -> float:
    """Cycles a second, on the disk of this folder."""
    with Stage(within=folder) as stage:
        address = dispatcher.broker(stage)
        worker = stage.start(dispatcher.worker, address)
        hear(worker, str)
        controller = stage.start(dispatcher.controller, address, seconds)
        submitted = hear(controller, Submitted, within_s=GIVE_UP_S + seconds)
        worker.send(submitted.jobs)
        completed = hear(worker, Completed, within_s=GIVE_UP_S + seconds)
    if completed.jobs != submitted.jobs:
        raise GodwitError(f"{submitted.jobs} jobs were submitted, and {completed.jobs} were done")
    return submitted.jobs / (max(submitted.ended_s, completed.ended_s) - submitted.began_s)
