"""Gold in a thread of its own while queries run: a step takes seconds, and nobody should wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Final

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from godwit.pipeline.checkpoints import GOLD
from godwit.pipeline.gold import Gold
from godwit.pipeline.watching import Batch

EVERY_S: Final = 10.0
"""From one step's end to the next: each writes the rows of the current windows anew, however few messages there are."""
LOOK_S: Final = 0.2
PATIENCE_S: Final = 4.0
_TAG: Final = "godwit-gold"


class Following:
    """From its start until it is stopped, or until nothing more can come and all is taken in. See watching.Running."""

    def __init__(self, spark: SparkSession, gold: Gold, is_fed: Callable[[], bool]) -> None:
        self._spark = spark
        self._gold = gold
        self._is_fed = is_fed
        """Whether bronze and silver have all that they will ever get."""
        self._done: list[Batch] = []
        self._steps = 0
        self._error: Exception | None = None
        self._stop = Event()
        # Not a daemon: Python must not end while a table is being written.
        self._thread: Thread = InheritableThread(target=self._follow, name="godwit-gold", daemon=False)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        return self._thread.is_alive()

    def error(self) -> Exception | None:
        """Why it ended, if not well."""
        return self._error

    def batches(self) -> list[Batch]:
        """Those that are done and were not given before."""
        found, self._done = self._done, []
        return found

    def stop(self) -> None:
        """It ends at once, or when the table that it writes is written."""
        self._stop.set()
        ends_at = time.monotonic() + PATIENCE_S
        while self._thread.is_alive() and time.monotonic() < ends_at:
            with suppress(Exception):  # the JVM may be gone, which ends it too
                self._spark.interruptTag(_TAG)
            self._thread.join(LOOK_S)

    def _follow(self) -> None:
        try:
            self._spark.addTag(_TAG)
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _TAG)
            while not self._stop.is_set():
                is_last = self._is_fed()
                began_at = time.monotonic()
                step = self._gold.step(self._spark)
                if step.messages:
                    took_s = time.monotonic() - began_at
                    self._done.append(Batch(GOLD, self._steps, step.messages, took_s, step.behind))
                    self._steps += 1
                if step.behind:
                    continue
                if is_last:
                    return
                self._wait()
        except Exception as error:  # whatever Spark, py4j and Delta raise: whoever watches decides
            self._error = error

    def _wait(self) -> None:
        until = time.monotonic() + EVERY_S
        while time.monotonic() < until and not self._is_fed() and not self._stop.wait(LOOK_S):
            pass
