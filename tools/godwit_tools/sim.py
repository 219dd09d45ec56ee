"""`godwit sim`: run the seeded worlds and the named scenarios from the command line."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from godwit.cli.text import count
from godwit_sim.network import Trace
from godwit_sim.scenarios import SCENARIOS, SEEDS, Row, run_scenario
from godwit_sim.worlds import WORLDS, Outcome, run_seed

EXIT_VIOLATION = 1
EXIT_INTERRUPTED = 130

app = typer.Typer(no_args_is_help=True, help="Run Godwit in simulated networks, in virtual time, from a seed.")


@app.callback(epilog="Example: godwit sim run --seeds 100")
def group() -> None:
    """Run Godwit in simulated networks, in virtual time, from a seed."""


@app.command("run", epilog="Example: godwit sim run --world transport --seeds 500")
def run(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 100,
    first: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    world: Annotated[str | None, typer.Option(help=f"One of: {', '.join(WORLDS)}. Default: all.")] = None,
    sealed: Annotated[
        bool, typer.Option("--sealed", help="Seal all connections. TLS and the cipher are stand-ins.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every event; needs a single seed and world.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds to run in parallel. Default: the number of processors.")
    ] = None,
) -> None:
    """Run seeded worlds and look for violations. Each seed is a whole scenario, the same on every machine.

    A failing seed prints its violation and the command that replays it. The exit code is 1 if any seed failed.
    """
    if world is not None and world not in WORLDS:
        raise typer.BadParameter(f"unknown world {world!r}; choose one of: {', '.join(WORLDS)}", param_hint="--world")
    work = [(name, seed) for name in ([world] if world else WORLDS) for seed in range(first, first + seeds)]
    if verbose and len(work) != 1:
        raise typer.BadParameter("needs a single seed and world: add --seeds 1 and --world", param_hint="--verbose")
    violations = 0
    try:
        outcomes = (
            _in_process(work, verbose, sealed)
            if len(work) == 1
            else _in_parallel(work, processes or os.cpu_count() or 1, sealed)
        )
        with _progress() as progress:
            bar = progress.add_task("seeds", total=len(work))
            for outcome in outcomes:
                progress.advance(bar)
                if outcome.violation is not None:
                    violations += 1
                    progress.stop()  # or the bar would be printed over
                    typer.echo(_report(outcome, sealed))
                    progress.start()
                if verbose:
                    typer.echo(f"{outcome.summary}, trace {outcome.digest}")
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenProcessPool:
        typer.echo("a worker process was killed (out of memory?): try again with --processes 1", err=True)
        raise typer.Exit(EXIT_VIOLATION) from None
    typer.echo(f"{count(len(work), 'seed')}, {count(violations, 'violation')}")
    if violations:
        raise typer.Exit(EXIT_VIOLATION)


def _progress() -> Progress:
    """Return a progress bar on stderr, if that is a terminal."""
    console = Console(stderr=True)
    return Progress(console=console, transient=True, redirect_stdout=False, disable=not sys.stderr.isatty())


def _report(outcome: Outcome, sealed: bool) -> str:
    command = f"godwit sim run --world {outcome.world} --seeds 1 --first {outcome.seed}{' --sealed' if sealed else ''}"
    return f"seed {outcome.seed} of {outcome.world}: {outcome.violation}\n  replay it: {command}"


def _in_process(work: Sequence[tuple[str, int]], verbose: bool, sealed: bool) -> Iterator[Outcome]:
    for world, seed in work:
        yield run_seed(world, seed, Trace(typer.echo) if verbose else None, sealed=sealed)


def _default_interrupt() -> None:
    """Let Ctrl-C, which reaches the whole process group, end a worker without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _in_parallel(work: Sequence[tuple[str, int]], processes: int, sealed: bool) -> Iterator[Outcome]:
    """Yield all outcomes as they complete, from a pool of processes that always ends with this function."""
    # Not forked: a copy of a process with threads can wait for ever for a lock that one of them held.
    spawned = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(work)), spawned, initializer=_default_interrupt)
    left = iter(work)
    running: set[Future[Outcome]] = set()
    try:
        while True:
            # Submit only a few seeds in advance, so that an interrupt has to end only the running ones.
            running.update(
                pool.submit(run_seed, *item, sealed=sealed) for item in islice(left, 4 * processes - len(running))
            )
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()  # the interpreter would wait for them at its end, and a seed can take long
        pool.shutdown(cancel_futures=True)  # and wait: see below
        raise
    pool.shutdown()  # and wait: else the interpreter may exit while the pool is shutting down


@app.command("scenarios", epilog="Example: godwit sim scenarios loss two-connections")
def scenarios(
    names: Annotated[
        list[str] | None, typer.Argument(help="Scenarios to run. Default: all.", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs for a figure that is a mean.")] = SEEDS,
) -> None:
    """Run named scenarios and compare the goodput with the capacity of the line. The exit code is 1 if one fails."""
    for name in names or ():
        if name not in SCENARIOS:
            raise typer.BadParameter(f"unknown scenario {name!r}; choose from: {', '.join(SCENARIOS)}")
    rows: list[Row] = []
    chosen = list(dict.fromkeys(names)) if names else list(SCENARIOS)
    try:
        with _progress() as progress:
            bar = progress.add_task("scenarios", total=len(chosen))
            for name in chosen:
                progress.update(bar, description=name)
                rows += run_scenario(name, seeds)
                progress.advance(bar)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    width = None if sys.stdout.isatty() else 150
    Console(width=width).print(_table(rows))
    failed = [row.name for row in rows if not row.passed]
    typer.echo(f"{count(len(rows), 'scenario')}, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
    if failed:
        raise typer.Exit(EXIT_VIOLATION)


def _table(rows: Sequence[Row]) -> Table:
    table = Table()
    for column in ("scenario", "what", "goodput", "line", "ratio", "at least", "sent again", "result"):
        table.add_column(column, justify="left" if column in ("scenario", "what", "result") else "right")
    for row in rows:
        table.add_row(
            row.name,
            row.what,
            _mega(row.goodput_bits_per_s),
            _mega(row.capacity_bits_per_s),
            _percent(row.ratio),
            _percent(row.floor),
            f"{row.repeated_share:.1%}",
            ("pass" if row.passed else "FAIL") + (f": {row.note}" if row.note else ""),
        )
    return table


def _mega(bits_per_s: float | None) -> str:
    return "" if bits_per_s is None else f"{bits_per_s / 1e6:.2f} Mbit/s"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
