"""Where a streaming query stands, read from its checkpoint: no Spark needed.

Spark writes offsets/N before it works on batch N, and commits/N when all of it is done.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from pyarrow import fs

from godwit.pipeline.datasets import anomalies, bronze
from godwit.pipeline.lake import Lake, file_system
from godwit.pipeline.problems import PipelineError
from godwit.spark.offsets import Offsets, Position

FOLDER: Final = "_checkpoints"
TABLES: Final = "tables"
ANOMALIES: Final = "anomalies"
QUERIES: Final = (TABLES, ANOMALIES)
GOLD: Final = "gold"
"""No query of Spark's: it follows the tables, see godwit.pipeline.gold."""


@dataclass(frozen=True)
class Standing:
    """How far a query has got."""

    batch: int
    """The last one that is done."""
    done_us: int
    offsets: Offsets
    """Up to which all is done, for each log."""
    is_half_done: bool
    """Another batch was begun: a query works on it now, or was ended in the middle of it."""


def checkpoint_address(lake: Lake, query: str) -> str:
    return f"{lake.address}/{FOLDER}/{query}"


def standing(lake: Lake, query: str) -> Standing | None:
    """None: no batch was ever done."""
    system, path = file_system(checkpoint_address(lake, query))
    done = _numbers(system, f"{path}/commits")
    if not done:
        return None
    batch = max(done)
    begun = max(_numbers(system, f"{path}/offsets"), default=batch)
    return Standing(batch, done[batch], _offsets(system, f"{path}/offsets/{batch}"), begun > batch)


def planned(lake: Lake, query: str, batch: int) -> Offsets:
    """Up to which offset of each log a batch goes that is being worked on."""
    system, path = file_system(checkpoint_address(lake, query))
    return _offsets(system, f"{path}/offsets/{batch}")


def check_checkpoints(lake: Lake) -> None:
    """PipelineError if a checkpoint is gone of a query that has written: it would read and write everything again."""
    for query, spec in ((TABLES, bronze.SPEC), (ANOMALIES, anomalies.SPEC)):
        system, path = file_system(checkpoint_address(lake, query))
        is_there = system.get_file_info(f"{path}/metadata").type == fs.FileType.File
        if not is_there and lake.table(spec).rows:
            raise PipelineError(
                f"the lake {lake.address} has rows in {spec.name}, but the checkpoint {FOLDER}/{query} is gone, and "
                "all of them would be written a second time: put the checkpoint back, or begin a new lake with --lake"
            )


def check_whole(lake: Lake) -> None:
    """PipelineError if some tables have the last batch and some may not."""
    found = standing(lake, TABLES)
    system, path = file_system(checkpoint_address(lake, TABLES))
    is_half_done = found.is_half_done if found else bool(_numbers(system, f"{path}/offsets"))
    if is_half_done:
        raise PipelineError(
            f"the last batch in the lake {lake.address} is half done: finish it with godwit pipeline run --once, "
            "then try again"
        )


def _numbers(system: fs.FileSystem, folder: str) -> dict[int, int]:
    """The batches that have a file there, and when it was written, in microseconds."""
    found = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return {int(one.base_name): one.mtime_ns // 1000 for one in found if one.is_file and one.base_name.isdecimal()}


def _offsets(system: fs.FileSystem, path: str) -> Offsets:
    """Of the file's last line; the first ones are Spark's version and settings."""
    try:
        with system.open_input_file(path) as file:
            lines = file.read().decode().splitlines()
        return Position.from_dict(json.loads(lines[-1])).offsets
    except (OSError, ValueError, LookupError) as error:
        raise PipelineError(
            f"the checkpoint is damaged: {path} ({type(error).__name__}). Remove this file, so that Spark plans its "
            "batch anew; each message is taken once all the same"
        ) from None
