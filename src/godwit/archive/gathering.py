"""Rows of one upload on their way into its stage: gathered, so that many small pieces make few batches."""

from __future__ import annotations

import time
from typing import Final

import pyarrow as pa

from godwit.archive.requests import BadRequestError
from godwit.archive.stages import MAX_STAGE_BYTES, Stage
from godwit.archive.staging import staged_entries
from godwit.archive.tokens import require
from godwit.broker.access import TokenRights
from godwit.limits import MIB
from godwit.server.archive_pipe import MAX_COMMIT_BATCHES, join_blocks
from godwit.store.block import encode_blocks

GATHERED_ROWS: Final = 65_536
"""Rows that are worked on at once."""
GATHERED_BYTES: Final = 8 * MIB
"""Rows are worked on when they are so many, or have so many bytes."""


class Gathering:
    """Feed: add, and finish at the end.

    BadRequestError says what is wrong with the rows, TokenRightsError which topic the client's token does not allow.
    """

    def __init__(self, stage: Stage, publisher: str, rights: TokenRights) -> None:
        self._stage = stage
        self._rights = rights
        self._publisher = publisher
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._batches = 0
        self.count = 0
        """Rows that are in the stage."""

    def add(self, rows: pa.RecordBatch) -> None:
        size_bytes = rows.get_total_buffer_size()
        if size_bytes > MAX_STAGE_BYTES:
            raise BadRequestError(
                f"a batch of rows is longer than the {MAX_STAGE_BYTES} bytes of a stage: send smaller ones"
            )
        if self._waiting_rows + rows.num_rows > GATHERED_ROWS:
            self._work()
        for start in range(0, rows.num_rows, GATHERED_ROWS):
            part = rows.slice(start, GATHERED_ROWS)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._waiting_bytes += size_bytes  # a part holds on to all of it
            if self._waiting_rows >= GATHERED_ROWS or self._waiting_bytes >= GATHERED_BYTES:
                self._work()

    def finish(self) -> None:
        self._work()
        self._stage.finish()

    def _work(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._waiting_rows = self._waiting_bytes = 0
        if not waiting:
            return
        entries = staged_entries(waiting, self._publisher, time.time_ns() // 1000, self.count)
        for topic in {entry.topic for entry in entries}:
            require(self._rights.publish_problem(topic))
        self._batches += len(entries)
        if self._batches > MAX_COMMIT_BATCHES:
            raise BadRequestError(
                f"these rows make more than {MAX_COMMIT_BATCHES} batches: rows of one topic share one, if their times "
                "published lie within an hour of the rows before; order them by time, or stage fewer"
            )
        self._stage.write(join_blocks([block.body for block in encode_blocks(entries, self.count)]))
        self.count += sum(entry.count for entry in entries)
