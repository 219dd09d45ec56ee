"""The progress of streaming queries, read from their checkpoints without Spark.

Spark writes offsets/N before it works on batch N, and commits/N when the batch is complete.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from pyarrow import fs

from godwit.pipeline.datasets import anomalies, bronze
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.files import file_system
from godwit.pipeline.lake import Lake
from godwit.spark.offsets import Offsets, Position

FOLDER: Final = "_checkpoints"
TABLES: Final = "tables"
ANOMALIES: Final = "anomalies"
QUERIES: Final = (TABLES, ANOMALIES)
GOLD: Final = "gold"
"""Not a streaming query: it follows bronze and silver, see godwit.pipeline.gold."""


@dataclass(frozen=True)
class Checkpoint:
    """The progress of a query."""

    batch: int
    """The last complete batch."""
    done_us: int
    offsets: Offsets
    """For each log, the offset below which all batches are complete."""
    has_partial_batch: bool
    """Whether a later batch was begun: a query works on it now, or was interrupted."""


def checkpoint_address(lake: Lake, query: str) -> str:
    """Return the folder of a query's checkpoint."""
    return f"{lake.address}/{FOLDER}/{query}"


def read_checkpoint(lake: Lake, query: str) -> Checkpoint | None:
    """Return the progress of a query, or None if it has not completed a batch."""
    system, path = file_system(checkpoint_address(lake, query))
    done = _batches(system, f"{path}/commits")
    if not done:
        return None
    batch = max(done)
    begun = max(_batches(system, f"{path}/offsets"), default=batch)
    return Checkpoint(batch, done[batch], _offsets(system, f"{path}/offsets/{batch}"), begun > batch)


def planned_offsets(lake: Lake, query: str, batch: int) -> Offsets:
    """Return, for each log, the offset at which a batch ends that is in progress."""
    system, path = file_system(checkpoint_address(lake, query))
    return _offsets(system, f"{path}/offsets/{batch}")


def check_checkpoints(lake: Lake) -> None:
    """Raise PipelineError if a query has written rows and its checkpoint is missing: it would write them again."""
    for query, spec in ((TABLES, bronze.SPEC), (ANOMALIES, anomalies.SPEC)):
        system, path = file_system(checkpoint_address(lake, query))
        exists = system.get_file_info(f"{path}/metadata").type == fs.FileType.File
        if not exists and lake.table(spec).rows:
            raise PipelineError(
                f"the lake {lake.address} has rows in {spec.name}, but the checkpoint {FOLDER}/{query} is missing, and "
                "all of them would be written a second time: restore the checkpoint, or start a new lake with --lake"
            )


def check_no_partial_batch(lake: Lake) -> None:
    """Raise PipelineError if the last batch is incomplete: some tables have it and others may not."""
    found = read_checkpoint(lake, TABLES)
    system, path = file_system(checkpoint_address(lake, TABLES))
    is_partial = found.has_partial_batch if found else bool(_batches(system, f"{path}/offsets"))
    if is_partial:
        raise PipelineError(
            f"the last batch in the lake {lake.address} is incomplete: finish it with godwit pipeline run --once, "
            "then try again"
        )


def _batches(system: fs.FileSystem, folder: str) -> dict[int, int]:
    """Return the numbers of the batches that have a file in a folder, with its time in microseconds."""
    found = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return {int(one.base_name): one.mtime_ns // 1000 for one in found if one.is_file and one.base_name.isdecimal()}


def _offsets(system: fs.FileSystem, path: str) -> Offsets:
    """Return the offsets in the last line of a file; the lines before are Spark's version and settings."""
    try:
        with system.open_input_file(path) as file:
            lines = file.read().decode().splitlines()
        return Position.from_dict(json.loads(lines[-1])).offsets
    except (OSError, ValueError, LookupError) as error:
        raise PipelineError(
            f"the checkpoint is damaged: {path} ({type(error).__name__}). Delete this file, so that Spark plans its "
            "batch again; each message is still written once"
        ) from None
