"""`godwit bench pipeline`: the pipeline against a plain PySpark job, small runs, the delay to bronze, and memory.

A log has JSON messages with two readings each, from THERMOMETERS devices, over an hour. `godwit pipeline run --once`
makes all of its tables from it, gold and anomalies included. The plain job of godwit_bench.pipeline_plain makes bronze
and silver from the same messages as JSON lines in files. Both are processes that start Spark, and their whole time
counts.

Then 1,000 messages are added, and a second run is timed. A run with a limit of a few messages a step makes many small
steps, and the last of them are compared with the first. The delay is that of `godwit bench spark`.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

from godwit.errors import GodwitError
from godwit.pipeline import runner
from godwit.pipeline.datasets import bronze
from godwit.pipeline.detection import Detection
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake
from godwit.pipeline.runner import RunConfig, TablesWriter
from godwit.pipeline.session import JAVA_OPTIONS, spark_session
from godwit.pipeline.supervisor import BatchProgress
from godwit.store.folder import DataFolder
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import make_entry
from godwit_bench import pipeline_plain
from godwit_bench.log import durable_broker
from godwit_bench.processes import ProcessGroup, receive_reply
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio
from godwit_bench.spark import MASTER, TRIGGER_S, delays_s, percentile

MESSAGES: Final = 2_000_000
NEW_MESSAGES: Final = 1_000
SMALL_STEPS: Final = 1_000
SMALL_STEP_MESSAGES: Final = 20
THERMOMETERS: Final = 1_000
ENTRY_MESSAGES: Final = 10
"""Messages of a device that are published together."""
COMMIT_ENTRIES: Final = 100
HOUR_US: Final = 3_600_000_000
LONGEST_S: Final = 1_800.0
SAMPLE_S: Final = 0.2
GOLD_EVERY: Final = 10
"""Small steps of `tables` in one step of gold, which has an interval of its own."""
COMPARED_STEPS: Final = 5
"""Steps of gold at the begin, after the first, and at the end that are compared."""
_LOG_ID_BYTES: Final = 16


# -- the messages -----------------------------------------------------------------------------------------------------


def fill(data: Path, lines: Path | None, first: int, count: int, total: int) -> int:
    """Append `count` messages to the log in a folder, and write them as JSON lines if a folder for these is given.

    `first` of `total` messages are there already, over an hour that ends now. Return the number of messages in the log,
    which can be larger: a run of the pipeline publishes its alerts there.
    """
    folder = DataFolder(data)
    folder.open()
    rng = random.Random(first + 1)
    begin_us = time.time_ns() // 1000 - HOUR_US
    store = SqliteStore.open(folder.log_path, new_log_id=os.urandom(_LOG_ID_BYTES), now_us=begin_us)
    try:
        with _line_writer(lines) as write_line:
            number = first
            while number < first + count:
                entries = []
                for _ in range(COMMIT_ENTRIES):
                    size = min(ENTRY_MESSAGES, first + count - number)
                    if size:
                        at_us = begin_us + HOUR_US * number // total
                        entries.append(_entry(rng, at_us, size, number, write_line))
                        number += size
                store.append(entries, ())
        store.checkpoint(truncate=True)
        return store.next_offset
    finally:
        store.close()
        folder.close()


def _entry(
    rng: random.Random, at_us: int, size: int, number: int, write_line: Callable[[Mapping[str, Any]], None]
) -> Any:
    device = rng.randrange(THERMOMETERS)
    topic, publisher = f"site/{device % 50}/room/{device}/climate", f"gateway-{device % 100}"
    payloads = []
    for index in range(size):
        reading = {
            "temperature": round(rng.gauss(21, 0.2), 2),
            "humidity": round(rng.gauss(40, 2), 1),
            "time": (at_us + index) / 1e6,
            "device": f"d{device}",
        }
        payloads.append(json.dumps(reading))
        write_line(
            {
                "broker": "log", "offset": number + index, "topic": topic, "publisher": publisher, "published": at_us,
                "received": at_us, "qos": 1, "retained": False, "payload": payloads[-1],
            }
        )  # fmt: skip
    return make_entry(topic, publisher, [one.encode() for one in payloads], qos=1, now_us=at_us)


@contextmanager
def _line_writer(folder: Path | None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that writes a message as a line, to one of a few files in turns."""
    if folder is None:
        yield lambda message: None
        return
    folder.mkdir()
    files = [(folder / f"messages-{number}.json").open("w", encoding="utf-8") for number in range(8)]
    try:
        yield lambda message: print(json.dumps(message), file=files[message["offset"] // 10_000 % len(files)])
    finally:
        for file in files:
            file.close()


# -- whole runs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunCost:
    """The cost of a process with all of its children."""

    took_s: float
    peak_bytes: int


def run_once(processes: ProcessGroup, lake: Path, archive: str, messages: int) -> RunCost:
    """Run the pipeline to the end of the log, in a process of its own. Bronze must then have this many messages."""
    return _timed(processes, lambda: processes.start(_run_once, str(lake), archive, messages))


def run_plain(processes: ProcessGroup, lines: Path, target: Path, messages: int) -> RunCost:
    """Run the plain job on these lines, in a process of its own. Bronze must then have this many messages."""
    return _timed(processes, lambda: processes.start(_run_plain, str(lines), str(target), messages))


def _timed(processes: ProcessGroup, start: Callable[[], Pipe]) -> RunCost:
    began = time.perf_counter()
    pipe = start()
    process = receive_reply(pipe, int, within_s=LONGEST_S)
    with _peak_memory(process) as peak:
        receive_reply(pipe, str, within_s=LONGEST_S)
    return RunCost(time.perf_counter() - began, peak[0])


def _run_once(pipe: Pipe, lake: str, archive: str, messages: int) -> None:
    pipe.send(os.getpid())
    config = RunConfig(Lake(lake), {"archive": archive}, is_once=True)
    with spark_session(MASTER, Path(lake) / "spark.log") as spark:
        runner.run(spark, config, _Failing())
    if (found := config.lake.table(bronze.SPEC).rows) != messages:
        raise GodwitError(f"{messages} messages are in the log, and {found} in bronze")
    pipe.send("done")


def _run_plain(pipe: Pipe, lines: str, target: str, messages: int) -> None:
    pipe.send(os.getpid())
    # All of its work is done by Java, as Java is by default.
    with spark_session(MASTER, Path(target) / "spark.log", {JAVA_OPTIONS: ""}) as spark:
        found = pipeline_plain.run(spark, lines, target)
    if found != messages:
        raise GodwitError(f"{messages} messages are in the files, and {found} in bronze")
    pipe.send("done")


class _Failing:
    """A listener that ends the run with the first failure: a retry would count as slowness."""

    def on_batch(self, batch: BatchProgress) -> None:
        """Do nothing."""

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        raise GodwitError(f"the query {query} failed: {sentence}")


@contextmanager
def _peak_memory(process: int) -> Iterator[list[int]]:
    """Sample the memory of a process with all of its children. The list has the peak in bytes."""
    peak, stop = [0], threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_S):
            peak[0] = max(peak[0], sum(_memory(one) for one in [process, *_children(process)]))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _children(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError, ValueError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from _children(child)


def _memory(process: int) -> int:
    """Return the proportional set size in bytes, in which pages of several processes are counted once."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


# -- many small steps -------------------------------------------------------------------------------------------------


def small_steps(processes: ProcessGroup, lake: Path, archive: str, steps: int) -> float:
    """Return the cost of the last small steps, with gold and anomalies, as a multiple of that of the first."""
    pipe = processes.start(_small_steps, str(lake), archive, steps)
    return receive_reply(pipe, float, within_s=LONGEST_S)


def _small_steps(pipe: Pipe, lake: str, archive: str, steps: int) -> None:
    source = {"archive": archive, "maxRowsPerTrigger": str(SMALL_STEP_MESSAGES)}
    config = RunConfig(Lake(lake), source)
    times = []
    with spark_session(MASTER, Path(lake) / "spark.log") as spark:
        tables, gold = TablesWriter(spark, config), Gold(config.lake)
        detection = Detection(spark, config.lake, source)
        for step in range(steps):
            if step % GOLD_EVERY == 0:
                times.append(0.0)
            began = time.perf_counter()
            if not tables.step().messages:
                raise GodwitError(f"the log has no messages for step {step} of {steps}")
            if step % GOLD_EVERY == GOLD_EVERY - 1:
                gold.step(spark)
                detection.step()
            times[-1] += time.perf_counter() - began
    warm = times[len(times) // 10 :]  # Java compiles its code in the first steps
    pipe.send(statistics.median(warm[-COMPARED_STEPS:]) / statistics.median(warm[:COMPARED_STEPS]))


# -- the benchmark ----------------------------------------------------------------------------------------------------


def run(
    *,
    folder: Path,
    rounds: int,
    seconds: float,
    on_round: Callable[[str], None],
    messages: int = MESSAGES,
    steps: int = SMALL_STEPS,
) -> Report:
    """Measure everything in turns and return the medians."""
    with ProcessGroup(within=folder) as processes:
        figures, peaks = _whole_runs(processes, rounds, on_round, messages)
        on_round(f"{steps} small steps")
        data = processes.folder / "small"
        fill(data, None, 0, steps * SMALL_STEP_MESSAGES, steps * SMALL_STEP_MESSAGES)
        _, archive = durable_broker(processes, data, with_archive=True)
        growth = small_steps(processes, processes.folder / "small-lake", archive, steps)
    with ProcessGroup(within=folder) as processes:
        on_round("delay")
        delays_ms = [delay_s * 1000 for delay_s in delays_s(processes, seconds)]
    what = f"ms from publishing to a row of bronze, trigger {TRIGGER_S:g} s"
    results = [
        Result("once", messages / statistics.median(figures["once"]), "messages/s, all tables, with Spark's start"),
        Result(
            "plain", messages / statistics.median(figures["plain"]), "messages/s, bronze and silver, with Spark's start"
        ),
        Result("second_run_s", statistics.median(figures["second"]), f"s for {NEW_MESSAGES:,} new messages"),
        *[Result(f"delay_p{share}_ms", percentile(delays_ms, share / 100), what) for share in (50, 95)],
        Result("memory_tenth_mb", peaks[0] / 1e6, f"MB at the peak, with {messages // 10:,} messages"),
        Result("memory_mb", peaks[1] / 1e6, f"MB at the peak, with {messages:,} messages"),
    ]
    ratios = [
        Ratio("once_vs_plain", median_ratio(figures["plain"], figures["once"]), "a plain PySpark job without gold"),
        Ratio("run_1000_vs_first", growth, f"the first of {steps:,} small steps"),
        Ratio("memory_vs_tenth", peaks[1] / peaks[0] if peaks[0] else None, "a tenth of the messages"),
    ]
    return Report("pipeline", machine(), results, ratios)


def _whole_runs(
    processes: ProcessGroup, rounds: int, on_round: Callable[[str], None], messages: int
) -> tuple[dict[str, list[float]], tuple[int, int]]:
    """Return the times of runs in seconds, and the peaks of memory with a tenth of the messages and with all."""
    on_round("writing the log")
    folder = processes.folder
    tenth = messages // 10
    fill(folder / "tenth", None, 0, tenth, messages)
    fill(folder / "whole", folder / "lines", 0, messages, messages)
    peaks: dict[str, list[int]] = {"tenth": [], "whole": []}
    turn = iter(range(1_000_000))

    def once(name: str, count: int, lake: Path) -> float:
        with ProcessGroup(within=folder) as group:
            _, archive = durable_broker(group, folder / name, with_archive=True)
            cost = run_once(group, lake, archive, count)
        peaks[name].append(cost.peak_bytes)
        return cost.took_s

    def plain() -> float:
        return run_plain(processes, folder / "lines", folder / f"plain-{next(turn)}", messages).took_s

    measures = {"once": lambda: once("whole", messages, folder / f"lake-{next(turn)}"), "plain": plain}
    figures = interleaved(measures, rounds, on_round)
    on_round("once, a tenth")
    once("tenth", tenth, folder / "lake")
    figures["second"] = []
    for number in range(rounds):
        on_round("second run")
        there = tenth + number * NEW_MESSAGES
        in_log = fill(folder / "tenth", None, there, NEW_MESSAGES, there + NEW_MESSAGES)
        figures["second"].append(once("tenth", in_log, folder / "lake"))
    return figures, (peaks["tenth"][0], max(peaks["whole"]))
