"""`godwit bench startup`: how quickly commands start, as processor time of a process, and one query's elapsed time.

Each command is a process of its own, as a user runs it. Its processor time is that of the process and its children,
from the operating system. One run of each before the first round writes Python's bytecode.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from godwit.errors import GodwitError
from godwit_bench.log import durable_broker
from godwit_bench.processes import ProcessGroup
from godwit_bench.report import Report, Result, interleaved, machine

GIVE_UP_S: Final = 60.0
ROWS: Final = 1_000
"""Readings in the table that is queried."""
QUERY: Final = "SELECT quantity, count(*), avg(value) FROM silver_readings GROUP BY quantity"


def run(rounds: int, on_round: Callable[[str], None]) -> Report:
    """Measure, and return the medians over the rounds. `query_s` needs the packages of the extra `spark`.

    Raises:
        GodwitError: A command failed.
    """
    with ProcessGroup() as processes:
        broker, _ = durable_broker(processes, processes.folder / "data")
        lake = processes.folder / "lake"
        has_lake = write_lake(lake)
        measures: dict[str, Callable[[], float]] = {
            "version_cpu_s": lambda: cpu_s("--version"),
            "help_cpu_s": lambda: cpu_s("--help"),
            "pub_cpu_s": lambda: cpu_s("pub", "bench/startup", "1", "--broker", broker.removeprefix("udp://")),
        }
        if has_lake:
            measures["query_s"] = lambda: elapsed_s("pipeline", "query", QUERY, "--lake", str(lake))
        for measure in measures.values():
            measure()
        figures = interleaved(measures, rounds, on_round)
    return Report("startup", machine(), results(figures), [])


def results(figures: Mapping[str, list[float]]) -> list[Result]:
    """Return the median of each figure; None for a query that could not be measured."""
    names = ("version_cpu_s", "help_cpu_s", "pub_cpu_s", "query_s")
    return [Result(name, statistics.median(figures[name]) if name in figures else None, "s") for name in names]


def cpu_s(*arguments: str) -> float:
    """Return the processor time of a command: in user mode, and in the system for it."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    elapsed_s(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def elapsed_s(*arguments: str) -> float:
    """Return the time from the start of a command to its end.

    Raises:
        GodwitError: It failed, or did not end in time.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "godwit", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIVE_UP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GodwitError(f"godwit {arguments[0]} did not end within {GIVE_UP_S:g} s; run it by hand") from None
    if done.returncode:
        raise GodwitError(f"godwit {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return time.perf_counter() - began


def write_lake(path: Path) -> bool:
    """Write a lake with one table of readings. Return False without the packages that a query needs."""
    if find_spec("duckdb") is None:
        return False
    try:
        import pyarrow as pa

        from godwit.pipeline.datasets import readings
        from godwit.pipeline.lake import Lake
    except ImportError:
        return False
    row = {"topic": "bench/startup", "quantity": "temperature", "value": 21.5, "event_time": datetime.now(UTC)}
    schema = readings.SPEC.schema
    columns = {one.name: pa.array([row.get(one.name)] * ROWS, one.type) for one in schema}
    Lake(str(path)).table(readings.SPEC).append_arrow(pa.table(columns, schema=schema), {"bench": 0})
    return True
