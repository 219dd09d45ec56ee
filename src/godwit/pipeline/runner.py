"""Runs the pipeline: two streaming queries, gold that follows, and a watch over all of them.

`tables` writes bronze and silver; `anomalies` has a state of its own and finds what is unusual. They read the same logs
from checkpoints of their own, so that neither waits for the other. What fails is started again after a pause; an error
that cannot get better ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from godwit.pipeline.batches import Tables
from godwit.pipeline.checkpoints import ANOMALIES, GOLD, TABLES, check_checkpoints, checkpoint_address
from godwit.pipeline.datasets import anomalies
from godwit.pipeline.following import Following
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake
from godwit.pipeline.watching import Observer, Outcome, Query, Watched

LOOK_S: Final = 0.5
MAX_ROWS: Final = 200_000
MAX_BYTES: Final = 256 * 1024 * 1024
"""Of one micro-batch: what a driver with little memory can handle."""

ARCHIVE_TIMEOUT_S: Final = 15.0
"""After that somebody is told that a broker is away, and the query is tried again."""


@dataclass(frozen=True)
class Order:
    """What is to be run."""

    lake: Lake
    source: Mapping[str, str]
    """Options of format("godwit")."""
    is_once: bool = False
    """Up to what the logs have now, and no further."""
    trigger_s: float = 1.0

    @property
    def limited_source(self) -> dict[str, str]:
        limits = {"maxRowsPerTrigger": str(MAX_ROWS), "maxBytesPerTrigger": str(MAX_BYTES)}
        return limits | {"archiveTimeout": f"{ARCHIVE_TIMEOUT_S:g}"} | dict(self.source)

    @property
    def trigger(self) -> dict[str, Any]:
        return (
            {"availableNow": True} if self.is_once else {"processingTime": f"{self.trigger_s * 1000:.0f} milliseconds"}
        )


def run(spark: SparkSession, order: Order, observer: Observer) -> Outcome:
    """Until all is done (`is_once`), or until it is interrupted. PipelineError if it cannot go on."""
    check_checkpoints(order.lake)
    outcome = Outcome()
    followers: list[Following] = []

    def start_gold() -> Following:
        followers[:] = [Following(spark, Gold(order.lake), is_fed=lambda: tables.is_done)]
        return followers[0]

    tables = Watched(TABLES, lambda: start_tables(spark, order), order.is_once, observer, outcome)
    alarms = Watched(ANOMALIES, lambda: start_anomalies(spark, order), order.is_once, observer, outcome)
    gold = Watched(GOLD, start_gold, order.is_once, observer, outcome)
    watched = (tables, alarms, gold)
    try:
        while not all(one.is_done for one in watched):
            for one in watched:
                one.look()
            time.sleep(LOOK_S)
    finally:
        for follower in followers:
            follower.stop()
    return outcome


def start_tables(spark: SparkSession, order: Order) -> Query:
    stream = spark.readStream.format("godwit").options(**order.limited_source).load()
    writer = stream.writeStream.queryName(TABLES).foreachBatch(Tables(order.lake).write)
    writer = writer.option("checkpointLocation", checkpoint_address(order.lake, TABLES))
    return Query(writer.trigger(**order.trigger).start())


def start_anomalies(spark: SparkSession, order: Order) -> Query:
    checkpoint = checkpoint_address(order.lake, ANOMALIES)
    return Query(anomalies.start(spark, order.limited_source, order.lake, checkpoint, order.trigger))
