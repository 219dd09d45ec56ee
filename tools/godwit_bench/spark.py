"""`godwit bench spark`: our source against a bare one in the same Spark session, and how fresh bronze is.

A log of messages of 100 bytes, each alone in its batch and from one of 10,000 publishers on one of 10,000 topics, is
read through Spark by our source, and the same rows by a Python data source that only hands on what a Flight server has
ready. Then the pipeline runs with a trigger of a second, and messages are timed from their publishing to bronze.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from godwit_bench.archive_fill import MESSAGE_BYTES, fill_with_lone_messages
from godwit_bench.log_godwit import durable_broker
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio
from godwit_bench.spark_bare import FORMAT, bare_server
from godwit_bench.spark_delay import TRIGGER_S, delays_s, percentile
from godwit_bench.spark_reading import TASKS, Session, Source
from godwit_bench.stage import Stage

MESSAGES: Final = 2_000_000
DELAY: Final = "delay"
OURS: Final = "godwit"


def run(
    *, folder: Path, rounds: int, seconds: float, on_round: Callable[[str], None], messages: int = MESSAGES
) -> Report:
    """Measures all sources in turns and takes the medians; then watches the delay for so many seconds."""
    figures = _reading(folder, rounds, on_round, messages)
    with Stage(within=folder) as stage:
        on_round(DELAY)
        delays_ms = [delay_s * 1000 for delay_s in delays_s(stage, seconds)]
    unit = f"messages/s of {MESSAGE_BYTES} B"
    what = f"ms from publishing to a row of bronze, trigger {TRIGGER_S:g} s"
    results = [Result(name, statistics.median(values), unit) for name, values in figures.items()]
    results += [Result(f"delay_p{share}_ms", percentile(delays_ms, share / 100), what) for share in (50, 95)]
    ratios = [
        Ratio(
            f"{task}_vs_bare",
            median_ratio(figures[f"{task}_{OURS}"], figures[f"{task}_{FORMAT}"]),
            "a Python source that only hands on the same rows",
        )
        for task in TASKS
    ]
    return Report("spark", machine(), results, ratios)


def _reading(folder: Path, rounds: int, on_round: Callable[[str], None], messages: int) -> dict[str, list[float]]:
    with Stage(within=folder) as stage:
        on_round("writing the log")
        rows = fill_with_lone_messages(stage.folder / "log", messages=messages)
        _, archive = durable_broker(stage, stage.folder / "log", with_archive=True)
        on_round("starting Spark")
        bare = bare_server(stage, archive)
        session = Session(stage, rows)
        options = {"address": bare, "rows": str(rows), "pieces": str(session.partitions)}
        sources = {OURS: Source(OURS, {"archive": archive}), FORMAT: Source(FORMAT, options)}
        measures = {
            f"{task}_{name}": partial(session.rows_per_s, task, source)
            for task in TASKS
            for name, source in sources.items()
        }
        interleaved(measures, 1, lambda name: on_round(f"{name}, to warm up"))
        figures = interleaved(measures, rounds, on_round)
        session.stop()
    return figures
