"""Quarantine once more: what can be read by now goes to silver and to its windows, the rest stays.

Three tables change one after another, and a message must never count twice: each step is done once for a round, and a
round that was ended in the middle is finished before the next. While it is under way its messages are in silver and in
quarantine, which no others are: so it is known which they are.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from godwit.pipeline.checkpoints import check_whole
from godwit.pipeline.datasets import readings, windows
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake
from godwit.pipeline.merging import merge
from godwit.pipeline.problems import PipelineError
from godwit.pipeline.replacing import remove

QUERY = "requeue"
_KEYS = ["broker", "offset"]


def requeue(spark: SparkSession, lake: Lake) -> tuple[int, int]:
    """Gives how many messages left quarantine, and how many stay. The lake must be locked."""
    check_whole(lake)
    Gold(lake).catch_up(spark)  # it must not meet messages that are still to come to it in another way
    quarantine, silver = lake.table(readings.QUARANTINE), lake.table(readings.SPEC)
    ended = quarantine.mark(QUERY)
    moved, round_ = 0, 0 if ended is None else ended + 1
    is_unfinished = True
    while is_unfinished:
        is_unfinished = silver.is_done({QUERY: round_})
        waiting = quarantine.frame(spark)
        if not is_unfinished:
            found = readings.good(readings.read(waiting)).localCheckpoint()
            if found.isEmpty():
                break
            silver.append(found, {QUERY: round_})
        fresh = silver.frame(spark).join(waiting.select(*_KEYS), _KEYS, "left_semi").localCheckpoint()
        messages = fresh.select(*_KEYS).distinct().toArrow()
        merge(lake.table(windows.SPEC), windows.MERGING, fresh, {QUERY: round_})
        remove(quarantine, messages, {QUERY: round_})  # the end of the round
        moved += messages.num_rows
        round_ += 1
    return moved, quarantine.rows


def check_finished(lake: Lake) -> None:
    """PipelineError if a round was ended in the middle: its messages are in silver, and not in windows yet."""
    begun, ended = lake.table(readings.SPEC).mark(QUERY), lake.table(readings.QUARANTINE).mark(QUERY)
    if begun is not None and (ended is None or ended < begun):
        raise PipelineError(
            f"quarantine of the lake {lake.address} was being read again, and that was ended in the middle: finish it "
            "with godwit pipeline requeue, then try again"
        )
