"""Repairs tables: `rebuild` computes gold again, `requeue` decodes quarantine again, `requeue_all` all of silver."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from godwit.pipeline.checkpoints import check_no_partial_batch
from godwit.pipeline.datasets import bronze, devices, readings, windows
from godwit.pipeline.datasets.catalog import GOLD_TABLES
from godwit.pipeline.datasets.definitions import DefinitionStore
from godwit.pipeline.decoders.selection import DecoderRule, decoder_set
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.gold import Gold, complete_since
from godwit.pipeline.gold_table import GoldTable
from godwit.pipeline.lake import HOUR, Lake, LakeTable, RowTimes

MAX_KEYS: Final = 100_000
"""Messages that leave quarantine by their keys, through the driver; for more, executors write the others again."""
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

    Rows that were made from expired rows remain as they are, see `rebuilt_since`.

    Return the number of rows by table. The lake must be locked. Raise PipelineError if a batch or a `requeue` is
    incomplete.
    """
    check_no_partial_batch(lake)
    _check_no_partial_requeue(lake)
    Gold(lake).catch_up(spark)  # otherwise its next step would add messages that the new rows already count
    start, end = whole_hours(start, end)
    known = rebuilt_since(lake)
    return {
        gold.spec.name: _rebuild(spark, lake, gold, (start, end), known.get(gold.spec.name)) for gold in GOLD_TABLES
    }


def _rebuild(
    spark: SparkSession,
    lake: Lake,
    gold: GoldTable,
    span: tuple[datetime | None, datetime | None],
    since: datetime | None,
) -> int:
    """Compute rows of one table again. Return their number."""
    table, rows = lake.table(gold.spec), lake.table(gold.source).frame(spark)
    if gold.spec.time is not None:
        start, end = span
        if since is not None:
            start = since if start is None else max(start, since)
        if start is not None and end is not None and end <= start:
            return 0
        found = gold.compute(_within(rows, gold.source_time, start, end))
        return table.replace_times(spark, RowTimes(gold.spec.time, ((start, end),)), found, {}).written
    rows = _within(rows, gold.source_time, since, None)
    if since is not None:
        older = table.frame(spark).where(sf.col(devices.FIRST) < sf.lit(since)).select(*gold.spec.keys)
        rows = rows.join(older, list(gold.spec.keys), "left_anti")
    return table.replace_times(spark, RowTimes(devices.FIRST, ((since, None),)), gold.compute(rows), {}).written


def rebuilt_since(lake: Lake) -> dict[str, datetime]:
    """Return, by gold table, the time from which on it and its source have all rows. Other tables lost none.

    Older rows are not computed again. Of gold/devices these are the devices whose first message is older.
    """
    found = {}
    for gold in GOLD_TABLES:
        since = complete_since(lake, gold)
        if since is not None:
            found[gold.spec.name] = since
    return found


def requeue(spark: SparkSession, lake: Lake, rules: tuple[DecoderRule, ...] = ()) -> tuple[int, int]:
    """Decode the messages in quarantine again, and move new readings to silver and to their windows.

    Three tables change one after another. A watermark with the number of the round makes each change take effect once,
    and an interrupted round is completed first. Only messages of an incomplete round are both in silver and in
    quarantine, which identifies them. Messages that are decoded and have no readings leave quarantine, too. The
    others remain there, with the reasons that the decoders state now.

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
                _refresh_reasons(quarantine, pending, readings.rejected(parsed), round_)
                break
            silver.append(found, {REQUEUE: round_})
        fresh = silver.frame(spark).join(pending.select(*_KEYS), _KEYS, "left_semi").localCheckpoint()
        messages = fresh.select(*_KEYS).union(silent).distinct().localCheckpoint()
        windows.TABLE.merge_on_executors(lake.table(windows.SPEC), fresh, {REQUEUE: round_})
        count = messages.count()
        if count <= MAX_KEYS:
            quarantine.remove(messages.toArrow(), {REQUEUE: round_})  # ends the round
        else:
            quarantine.overwrite(pending.join(messages, _KEYS, "left_anti"), {REQUEUE: round_})
        moved += count
        round_ += 1
    return moved, quarantine.rows


def requeue_all(spark: SparkSession, lake: Lake, rules: tuple[DecoderRule, ...] = ()) -> tuple[int, int]:
    """Decode all messages in bronze again, and replace silver, quarantine and the windows.

    Rows of messages that bronze no longer has remain as they are, and so do windows whose readings have expired. Rows
    that have expired from silver or quarantine do not come back.

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
    watermarks = {REQUEUE_ALL: max(-1 if one is None else one for one in rounds) + 1}
    since = messages.expired_before
    changed = RowTimes("received", ((since, None),))
    parsed = readings.parse(_within(messages.frame(spark), "received", since, None), decoding)
    parsed = parsed.persist(StorageLevel.DISK_ONLY)
    try:
        for table, rows in ((silver, readings.valid(parsed)), (quarantine, readings.rejected(parsed))):
            table.replace_times(spark, changed, _within(rows, "received", table.expired_before, None), watermarks)
    finally:
        parsed.unpersist()
    since = rebuilt_since(lake).get(windows.SPEC.name)
    found = windows.TABLE.compute(_within(silver.frame(spark), "event_time", since, None))
    gold.replace_times(spark, RowTimes("window_start", ((since, None),)), found, watermarks)
    return silver.rows, quarantine.rows


def expired_notices(lake: Lake, *, is_all: bool) -> list[str]:
    """Return sentences about what `requeue`, or with `is_all` `requeue_all`, leaves as it is because rows expired."""
    found = []
    spec = bronze.SPEC if is_all else readings.QUARANTINE
    if (before := lake.table(spec).expired_before) is not None:
        found.append(
            f"messages received before {_text(before)} have expired from {spec.name} and are not decoded again"
            + ("; their readings remain as they are" if is_all else "")
        )
    since = rebuilt_since(lake).get(windows.SPEC.name)
    if is_all and since is not None:
        found.append(rebuild_notice(windows.SPEC.name, since))
    return found


def rebuild_notice(table: str, since: datetime) -> str:
    """Return a sentence about the rows of a gold table that are not computed again."""
    gold = next(one for one in GOLD_TABLES if one.spec.name == table)
    rows = "rows" if gold.spec.time is not None else "devices that sent messages"
    return (
        f"{table}: {rows} from before {_text(since)} are not computed again: they, or rows of {gold.source.name} that "
        "they were made from, have expired"
    ).replace("messages from before", "messages before")


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")


def _decoding(
    spark: SparkSession, lake: Lake, rules: tuple[DecoderRule, ...], *, is_new: bool = False
) -> readings.Decoding:
    """Return how messages are decoded again; with `is_new`, definitions are read from bronze again, too."""
    store = DefinitionStore(lake, decoder_set(rules))
    store.catch_up(spark, is_new=is_new)
    return readings.Decoding(rules, tuple(store.rows_since()))


def is_repair_incomplete(lake: Lake) -> bool:
    """Return whether a `requeue` or a `requeue_all` was interrupted."""
    return _is_requeue_incomplete(lake) or _is_requeue_all_incomplete(lake)


def _is_requeue_incomplete(lake: Lake) -> bool:
    """Return whether messages of a round are in silver and may be missing in windows."""
    begun = lake.table(readings.SPEC).watermark(REQUEUE)
    ended = lake.table(readings.QUARANTINE).watermark(REQUEUE)
    return begun is not None and (ended is None or ended < begun)


def _is_requeue_all_incomplete(lake: Lake) -> bool:
    """Return whether silver was replaced, and quarantine or windows were not."""
    begun, ended = [lake.table(spec).watermark(REQUEUE_ALL) for spec in (readings.SPEC, windows.SPEC)]
    return begun is not None and (ended is None or ended < begun)


def _check_no_partial_requeue(lake: Lake) -> None:
    if _is_requeue_incomplete(lake):
        raise PipelineError(
            f"a requeue of the lake {lake.address} was interrupted: finish it with godwit pipeline requeue, then try "
            "again"
        )
    _check_no_partial_requeue_all(lake)


def _check_no_partial_requeue_all(lake: Lake) -> None:
    if _is_requeue_all_incomplete(lake):
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


def _refresh_reasons(quarantine: LakeTable, stored: DataFrame, rejected: DataFrame, round_: int) -> None:
    """Replace quarantine by the same messages with the reasons of today's decoders, if any of them differs."""
    columns = [*_KEYS, "reason", "detail"]
    if not rejected.select(*columns).exceptAll(stored.select(*columns)).isEmpty():
        quarantine.overwrite(rejected, {REQUEUE: round_})


def _within(rows: DataFrame, column: str, start: datetime | None, end: datetime | None) -> DataFrame:
    if start is not None:
        rows = rows.where(sf.col(column) >= sf.lit(start))
    if end is not None:
        rows = rows.where(sf.col(column) < sf.lit(end))
    return rows
