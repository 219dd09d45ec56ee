"""One publisher, one broker with a log on disk: how many messages a second are confirmed.

Every system is measured in the same way: the publisher publishes for a while as fast as its library lets it, then waits
for the confirms that are still due. What counts is the time from its first message to its last confirm; and the log
must hold as many messages as were confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

import msgspec

from godwit.errors import GodwitError
from godwit_bench.stage import GIVE_UP_S, Stage, hear

TOPIC: Final = "bench/log"
LOG_FOLDER: Final = "data"
"""In the stage's folder: where a system keeps its log."""


class Logger(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[Stage], str]
    """Starts it, with its log in LOG_FOLDER of the stage's folder, and gives its address once it is reachable."""
    publish: Callable[[Pipe, str, float, int], None]
    """Publishes messages of so many bytes for so many seconds, says Outcome; in a process of its own."""


class Outcome(msgspec.Struct, frozen=True):
    """What a publisher says when all it has published is confirmed."""

    confirmed: int
    logged: int
    """What the broker's log has of it."""
    elapsed_s: float


def measure(logger: Logger, folder: Path, seconds: float, message_bytes: int) -> float:
    """Confirmed messages a second, on the disk of this folder."""
    with Stage(within=folder) as stage:
        address = logger.broker(stage)
        publisher = stage.start(logger.publish, address, seconds, message_bytes)
        outcome = hear(publisher, Outcome, within_s=GIVE_UP_S + seconds)
    if outcome.logged != outcome.confirmed:
        raise GodwitError(f"{outcome.confirmed} messages were confirmed, and {outcome.logged} are in the log")
    return outcome.confirmed / outcome.elapsed_s
