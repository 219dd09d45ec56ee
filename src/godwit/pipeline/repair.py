"""Repairs tables: `rebuild` computes gold again, `requeue` decodes quarantine again, `requeue_all` all of silver."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from godwit.pipeline.checkpoints import check_no_partial_batch
from godwit.pipeline.datasets import bronze, readings, windows
from godwit.pipeline.datasets.catalog import GOLD_TABLES
from godwit.pipeline.datasets.definitions import DefinitionStore
from godwit.pipeline.decoders.selection import DecoderRule, decoder_set
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake, range_condition

HOUR: Final = timedelta(hours=1)
REQUEUE: Final = "requeue"
"""Name of the watermarks of `requeue`: the number of its last round."""
REQUEUE_ALL: Final = "requeue all"
"""Name of the watermarks of `requeue_all`: silver has it at the beginning, windows at the end."""
_KEYS: Final = ["broker", "offset"]


def rebuild(spark: SparkSession, lake: Lake, start: datetime | None, end: datetime | None) -> dict[str, int]:
    """Compute gold again for a range of time, and replace the stored rows.

    The range begins at `start` and ends before `end`, None meaning no bound, and is extended to whole hours, the length
    of the longest window. Windows are selected by event time, traffic and jobs by the time of receipt. A device is one
    row for all time, so gold/devices is computed from all messages.

    Return the number of rows by table. The lake must be locked. Raise PipelineError if a batch or a `requeue` is
    incomplete.
    """
    check_no_partial_batch(lake)
    _check_no_partial_requeue(lake)
    Gold(lake).catch_up(spark)  # otherwise its next step would add messages that the new rows already count
    start, end = whole_hours(start, end)
    counts = {}
    for gold in GOLD_TABLES:
        rows = lake.table(gold.source).frame(spark)
        where = None
        if gold.spec.time is not None:
            rows = _within(rows, gold.source_time, start, end)
            where = range_condition(gold.spec.time, start, end)
        found = gold.compute(rows).toArrow()
        lake.table(gold.spec).replace(found, where)
        counts[gold.spec.name] = found.num_rows
    return counts


def requeue(spark: SparkSession, lake: Lake, rules: tuple[DecoderRule, ...] = ()) -> tuple[int, int]:
    """Decode the messages in quarantine again, and move new readings to silver and to their windows.

    Three tables change one after another. A watermark with the number of the round makes each change take effect once,
    and an interrupted round is completed first. Only messages of an incomplete round are both in silver and in
    quarantine, which identifies them. Messages that are decoded and have no readings leave quarantine, too.

    Return the number of messages moved, and the number left. The lake must be locked. Raise PipelineError if a batch is
    incomplete.
    """
    check_no_partial_batch(lake)
    _check_no_partial_requeue_all(lake)
    Gold(lake).catch_up(spark)  # otherwise its next step would add the moved messages a second time
    decoding = _decoding(spark, lake, rules)
    quarantine, silver = lake.table(readings.QUARANTINE), lake.table(readings.SPEC)
    last_round = quarantine.watermark(REQUEUE)
    moved, round_ = 0, 0 if last_round is None else last_round + 1
    is_incomplete = True
    while is_incomplete:
        is_incomplete = silver.has_reached({REQUEUE: round_})
        pending = quarantine.frame(spark)
        parsed = readings.parse(pending, decoding).localCheckpoint()
        silent = pending.select(*_KEYS).join(parsed.select(*_KEYS), _KEYS, "left_anti").localCheckpoint()
        if not is_incomplete:
            found = readings.valid(parsed)
            if found.isEmpty() and silent.isEmpty():
                break
            silver.append(found, {REQUEUE: round_})
        fresh = silver.frame(spark).join(pending.select(*_KEYS), _KEYS, "left_semi").localCheckpoint()
        messages = fresh.select(*_KEYS).union(silent).distinct().toArrow()
        windows.TABLE.merge(lake.table(windows.SPEC), fresh, {REQUEUE: round_})
        quarantine.remove(messages, {REQUEUE: round_})  # ends the round
        moved += messages.num_rows
        round_ += 1
    return moved, quarantine.rows


def requeue_all(spark: SparkSession, lake: Lake, rules: tuple[DecoderRule, ...] = ()) -> tuple[int, int]:
    """Decode all messages in bronze again, and replace silver, quarantine and the windows.

    An interrupted call is repeated as a whole. Anomalies are not detected again: their alerts were published.

    Return the number of readings, and of messages in quarantine. The lake must be locked. Raise PipelineError if a
    batch is incomplete.
    """
    check_no_partial_batch(lake)
    Gold(lake).catch_up(spark)
    silver, quarantine, gold = [lake.table(one) for one in (readings.SPEC, readings.QUARANTINE, windows.SPEC)]
    messages = lake.table(bronze.SPEC)
    if messages.version is None:
        return 0, 0
    decoding = _decoding(spark, lake, rules, is_new=True)
    rounds = [table.watermark(REQUEUE_ALL) for table in (silver, gold)]
    round_ = max(-1 if one is None else one for one in rounds) + 1
    parsed = readings.parse(messages.frame(spark), decoding).persist(StorageLevel.DISK_ONLY)
    try:
        silver.overwrite(readings.valid(parsed), {REQUEUE_ALL: round_})
        quarantine.overwrite(readings.rejected(parsed), {REQUEUE_ALL: round_})
    finally:
        parsed.unpersist()
    gold.replace(windows.TABLE.compute(silver.frame(spark)).toArrow(), None)
    gold.upsert(windows.SPEC.schema.empty_table(), {REQUEUE_ALL: round_})
    return silver.rows, quarantine.rows


def _decoding(
    spark: SparkSession, lake: Lake, rules: tuple[DecoderRule, ...], *, is_new: bool = False
) -> readings.Decoding:
    """Return how messages are decoded again; with `is_new`, definitions are read from bronze again, too."""
    store = DefinitionStore(lake, decoder_set(rules))
    store.catch_up(spark, is_new=is_new)
    return readings.Decoding(rules, tuple(store.rows_since()))


def _check_no_partial_requeue(lake: Lake) -> None:
    """Raise PipelineError if a round is incomplete: its messages are in silver and may be missing in windows."""
    begun = lake.table(readings.SPEC).watermark(REQUEUE)
    ended = lake.table(readings.QUARANTINE).watermark(REQUEUE)
    if begun is not None and (ended is None or ended < begun):
        raise PipelineError(
            f"a requeue of the lake {lake.address} was interrupted: finish it with godwit pipeline requeue, then try "
            "again"
        )
    _check_no_partial_requeue_all(lake)


def _check_no_partial_requeue_all(lake: Lake) -> None:
    """Raise PipelineError if silver was replaced, and quarantine or windows were not."""
    begun, ended = [lake.table(spec).watermark(REQUEUE_ALL) for spec in (readings.SPEC, windows.SPEC)]
    if begun is not None and (ended is None or ended < begun):
        raise PipelineError(
            f"a requeue of all messages of the lake {lake.address} was interrupted: finish it with godwit pipeline "
            "requeue --all, then try again"
        )


def whole_hours(start: datetime | None, end: datetime | None) -> tuple[datetime | None, datetime | None]:
    """Extend a range so that it begins and ends at a full hour."""
    if start is not None:
        start = _hour_of(start)
    if end is not None and _hour_of(end) != end:
        end = _hour_of(end) + HOUR
    return start, end


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _within(rows: DataFrame, column: str, start: datetime | None, end: datetime | None) -> DataFrame:
    if start is not None:
        rows = rows.where(sf.col(column) >= sf.lit(start))
    if end is not None:
        rows = rows.where(sf.col(column) < sf.lit(end))
    return rows
