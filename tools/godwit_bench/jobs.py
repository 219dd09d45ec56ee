"""`godwit bench jobs`: jobs that are submitted, leased and completed, all on disk, against beanstalkd in one run.

Controller, broker and worker, a process each, and the broker's jobs on the disk of one folder. beanstalkd syncs its
binlog after each change (`-f0`), as Godwit promises nothing that is not on the disk. It is measured with several
numbers of connections, and each round is held against the best of them. One job at a time shows how long a job takes
that nobody else is in the way of: from its submission until the controller has its result.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

from godwit_bench import peers
from godwit_bench.jobs_beanstalkd import beanstalkd, beanstalkd_one_by_one
from godwit_bench.jobs_cycles import JOB_BYTES, Dispatcher, measure
from godwit_bench.jobs_godwit import godwit_jobs, godwit_one_by_one
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio

CONNECTIONS: Final = (1, 4, 16)
"""Of beanstalkd's controller, and of its worker. More bring it nothing."""
OURS: Final = "godwit"
THEIRS: Final = [f"beanstalkd_{connections}" for connections in CONNECTIONS]
OURS_SINGLE: Final = "godwit_one_by_one"
THEIRS_SINGLE: Final = "beanstalkd_one_by_one"


def run(
    *,
    folder: Path,
    rounds: int,
    seconds: float,
    on_round: Callable[[str], None],
    on_install: Callable[[str], None],
) -> Report:
    """Measures all, interleaved, and takes the medians. GodwitError if the peer is missing."""
    program = peers.require(on_install, programs=("beanstalkd",), modules=("greenstalk",))["beanstalkd"]

    def cycles_per_s(dispatcher: Dispatcher) -> Callable[[], float]:
        return lambda: measure(dispatcher, folder, seconds)

    figures = interleaved(
        {
            OURS: cycles_per_s(godwit_jobs()),
            **{
                name: cycles_per_s(beanstalkd(program, connections))
                for name, connections in zip(THEIRS, CONNECTIONS, strict=True)
            },
            OURS_SINGLE: cycles_per_s(godwit_one_by_one()),
            THEIRS_SINGLE: cycles_per_s(beanstalkd_one_by_one(program)),
        },
        rounds,
        on_round,
    )
    units = dict.fromkeys((OURS_SINGLE, THEIRS_SINGLE), "jobs/s with their results, one at a time")
    cycles = f"cycles/s, jobs of {JOB_BYTES} B"
    results = [Result(name, statistics.median(values), units.get(name, cycles)) for name, values in figures.items()]
    best = [max(values) for values in zip(*(figures[name] for name in THEIRS), strict=True)]
    ratios = [
        Ratio("vs_beanstalkd", median_ratio(figures[OURS], best), "beanstalkd -f0, the best of each round"),
        Ratio(
            "one_by_one_vs_beanstalkd",
            median_ratio(figures[OURS_SINGLE], figures[THEIRS_SINGLE]),
            "beanstalkd -f0, results as jobs of another tube",
        ),
    ]
    return Report("jobs", machine(), results, ratios)
