"""Quarantine once more: what can be read by now goes to silver and to its windows, the rest stays.

Three tables change one after another, and a message must never count twice: each step is done once for a round, and a
round that was ended in the middle is finished before the next. While it is under way its messages are in silver and in
quarantine, which no others are: so it is known which they are.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from godwit.pipeline.datasets import readings, windows
from godwit.pipeline.lake import Lake
from godwit.pipeline.merging import merge
from godwit.pipeline.replacing import remove

QUERY = "requeue"
_KEYS = ["broker", "offset"]


def requeue(spark: SparkSession, lake: Lake) -> tuple[int, int]:
    """Gives how many messages left quarantine, and how many stay. The lake must be locked."""
    quarantine, silver = lake.table(readings.QUARANTINE), lake.table(readings.SPEC)
    moved, round_ = 0, _next_round(lake)
    is_unfinished = True
    while is_unfinished:
        is_unfinished = silver.is_done(QUERY, round_)
        waiting = quarantine.frame(spark)
        silver.append(readings.good(readings.read(waiting)), QUERY, round_)
        fresh = silver.frame(spark).join(waiting.select(*_KEYS), _KEYS, "left_semi").localCheckpoint()
        merge(lake.table(windows.SPEC), windows.MERGING, fresh, QUERY, round_)
        moved += _leave(lake, fresh, round_)
        round_ += 1
    return moved, quarantine.rows


def _leave(lake: Lake, fresh: DataFrame, round_: int) -> int:
    """Takes the messages of a round out of quarantine: the end of the round."""
    messages = fresh.select(*_KEYS).distinct().toArrow()
    if messages.num_rows:
        remove(lake.table(readings.QUARANTINE), messages, QUERY, round_)
    return int(messages.num_rows)


def _next_round(lake: Lake) -> int:
    """The first that quarantine has not seen the end of."""
    table, round_ = lake.table(readings.QUARANTINE), 0
    while table.is_done(QUERY, round_):
        round_ += 1
    return round_
