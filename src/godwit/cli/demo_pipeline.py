"""The last part of `godwit demo`: what the broker has logged goes through the pipeline, and onto one page.

It runs in a process of its own, as `godwit pipeline` does for anybody: Spark wants a Java, and takes its time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

PATIENCE_S: Final = 300.0
"""So long the pipeline may take; on two cores it takes less than a minute."""
_PROGRAM: Final = (sys.executable, "-c", "from godwit.cli import main; main()")


class PipelineReport(msgspec.Struct, frozen=True):
    """How it went."""

    is_good: bool
    sentence: str
    """What came of it, or why nothing did."""


def missing() -> str | None:
    """Why there can be no pipeline on this machine; None: nothing is missing."""
    from godwit.cli.pipeline_spark import PACKAGES

    packages = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if packages:
        return f"the pipeline needs {' and '.join(packages)}: run pip install 'godwit[spark]'"
    from godwit.pipeline import java

    return None if java.find_java(os.environ) else java.missing_text(os.getuid())


async def run_pipeline(archive: str, lake: Path, report: Path) -> PipelineReport:
    """All that the archive has, into a lake, and from there into the report."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            for command in (
                ["pipeline", "run", "--once", "--archive", archive, "--lake", str(lake)],
                ["pipeline", "report", "--lake", str(lake), "--output", str(report), "--force"],
            ):
                failure = await _failure(command)
                if failure is not None:
                    return PipelineReport(False, f"the pipeline failed: {failure}")
    except TimeoutError:
        return PipelineReport(False, f"the pipeline was not done after {PATIENCE_S:g} s: try again with a lower --rate")
    sentence = f"The report is {report}: open it in a browser. (The rooms' clocks run fast, from a week ago on.)"
    return PipelineReport(True, sentence)


async def _failure(command: list[str]) -> str | None:
    """Return why a command failed, the last line of its errors, or None if it did not."""
    process = await asyncio.create_subprocess_exec(*_PROGRAM, *command, stdout=DEVNULL, stderr=PIPE)
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()  # it ends Spark, too
            await process.wait()
    if process.returncode == 0:
        return None
    lines = errors.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"
