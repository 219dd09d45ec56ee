"""The progress of the pipeline's queries, in files that are read without Spark.

The watermarks of the tables decide where a query resumes. The query `tables` also has a position file in the lake, for
data that the watermarks lack: the offsets at which it began to read each log, gaps that are not a loss, and epochs, to
detect that an older copy of a log was restored. The file is written after the transactions of a step, so it may be one
step behind them.

Up to version 0.5.0 Spark wrote checkpoints: offsets/N before it worked on batch N, and commits/N when the batch was
complete. They are read once, to bring a lake forward.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyarrow import fs

from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.files import file_system
from godwit.pipeline.lake import Lake, TableSpec
from godwit.spark.offsets import Offsets, Position, check_offsets

FOLDER: Final = "_checkpoints"
TABLES: Final = "tables"
ANOMALIES: Final = "anomalies"
QUERIES: Final = (TABLES, ANOMALIES)
GOLD: Final = "gold"
"""It has no checkpoint: the watermarks of its tables are sufficient, see godwit.pipeline.gold."""
WRITTEN_TOGETHER: Final[tuple[TableSpec, ...]] = (bronze.SPEC, readings.SPEC, readings.QUARANTINE)
"""The tables of the query `tables`."""
_POSITION: Final = "position.json"


@dataclass(frozen=True)
class Checkpoint:
    """The progress of a query."""

    batch: int
    """The last complete batch."""
    done_us: int
    position: Position
    """For each log, the offset below which all batches are complete."""
    firsts: Offsets
    """For each log, the offset at which the query began; not known of logs that Godwit 0.5.0 has read."""

    @property
    def offsets(self) -> Offsets:
        """For each log, the offset below which all batches are complete."""
        return self.position.offsets


def checkpoint_address(lake: Lake, query: str) -> str:
    """Return the folder of a query's checkpoint."""
    return f"{lake.address}/{FOLDER}/{query}"


def read_checkpoint(lake: Lake, query: str) -> Checkpoint | None:
    """Return the progress of a query, or None if it has not begun."""
    system, path = file_system(checkpoint_address(lake, query))
    content = _read(system, f"{path}/{_POSITION}")
    if content is None:
        return _read_spark_checkpoint(system, path)
    try:
        found = json.loads(content)
        position, firsts = Position.from_dict(found["position"]), check_offsets(found["firsts"])
        return Checkpoint(int(found["batch"]), int(found["done_us"]), position, firsts)
    except (ValueError, LookupError, TypeError) as error:
        raise PipelineError(
            f"the checkpoint is damaged: {path}/{_POSITION} ({type(error).__name__}). Delete this file: the query then "
            "resumes at the watermarks of the tables, and each message is still written once"
        ) from None


def write_checkpoint(lake: Lake, query: str, batch: int, position: Position, firsts: Offsets) -> None:
    """Store the progress of a query, in one atomic step."""
    plain: Mapping[str, Any] = {
        "batch": batch,
        "done_us": time.time_ns() // 1000,
        "firsts": firsts,
        "position": position.to_dict(),
    }
    content = json.dumps(plain).encode()
    address = checkpoint_address(lake, query)
    if "://" in address:
        system, path = file_system(address)
        with system.open_output_stream(f"{path}/{_POSITION}") as file:  # an object store shows complete objects only
            file.write(content)
        return
    folder = Path(address)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{_POSITION}.new").open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    (folder / f"{_POSITION}.new").replace(folder / _POSITION)


def check_no_partial_batch(lake: Lake) -> None:
    """Raise PipelineError if the last batch is incomplete: some tables have it and others do not."""
    found = read_checkpoint(lake, TABLES)
    tables = [lake.table(spec) for spec in WRITTEN_TOGETHER]
    for log in {} if found is None else found.offsets:
        if len({table.watermark(log) for table in tables}) > 1:
            raise PipelineError(
                f"the last batch in the lake {lake.address} is incomplete: finish it with godwit pipeline run --once, "
                "then try again"
            )


def _read(system: fs.FileSystem, path: str) -> bytes | None:
    try:
        with system.open_input_file(path) as file:
            return bytes(file.read())
    except FileNotFoundError:
        return None


# -- checkpoints of Spark, up to 0.5.0 --------------------------------------------------------------------------------


def _read_spark_checkpoint(system: fs.FileSystem, path: str) -> Checkpoint | None:
    """Return the last complete batch of a checkpoint that Spark has written."""
    done = _batches(system, f"{path}/commits")
    if not done:
        return None
    batch = max(done)
    return Checkpoint(batch, done[batch], _spark_position(system, f"{path}/offsets/{batch}"), {})


def _batches(system: fs.FileSystem, folder: str) -> dict[int, int]:
    """Return the numbers of the batches that have a file in a folder, with its time in microseconds."""
    found = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return {int(one.base_name): one.mtime_ns // 1000 for one in found if one.is_file and one.base_name.isdecimal()}


def _spark_position(system: fs.FileSystem, path: str) -> Position:
    """Return the position in the last line of a file; the lines before are Spark's version and settings."""
    try:
        with system.open_input_file(path) as file:
            lines = file.read().decode().splitlines()
        return Position.from_dict(json.loads(lines[-1]))
    except (OSError, ValueError, LookupError) as error:
        raise PipelineError(
            f"the checkpoint is damaged: {path} ({type(error).__name__}). Delete the folder of the checkpoint: the "
            "query then resumes at the watermarks of the tables, and each message is still written once"
        ) from None
