"""The epochs of a log (godwit.wire.epochs) in its table: each is written in the transaction of its first message.

A broker that appends nothing leaves no epoch, so a full disk does not keep it from starting, and the first offsets of
the rows are all different. The table has a bounded number of rows: the oldest are dropped. A position so old that none
of its epochs is left counts as one of another log.
"""

from __future__ import annotations

from typing import Final

import apsw
import msgspec

from godwit.store.kept import DamagedRowError, is_sealed, sealed
from godwit.store.scan import Scanner
from godwit.store.sql import QUERIES
from godwit.wire.epochs import UNKNOWN, Epoch

MAX_EPOCHS: Final = 1000
"""Rows in the table."""
TABLE: Final = "epochs"


class EpochRow(msgspec.Struct, frozen=True):
    """One epoch of a log, and when its first message was received."""

    first_offset: int
    id: bytes
    begun_us: int

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.id, self.first_offset)


def load_epochs(connection: apsw.Connection) -> list[EpochRow]:
    """Return the epochs of all messages, in order and without a gap.

    Raise DamagedRowError if a row is not what was written, or its messages are missing.
    """
    rows = []
    for row in connection.execute(QUERIES["select_epochs"]):
        if not is_sealed(row):
            raise DamagedRowError(f"a row of the table {TABLE} is not what was written")
        rows.append(EpochRow(*row[:-1]))
    next_offset = Scanner(connection).ends().next_offset  # after the rows: a broker may begin an epoch meanwhile
    if rows and rows[-1].first_offset >= next_offset:
        raise DamagedRowError(
            f"the epoch {rows[-1].id.hex()} begins at offset {rows[-1].first_offset}, and the log ends at {next_offset}"
        )
    first_offset = rows[0].first_offset if rows else next_offset
    if first_offset > 0 and len(rows) < MAX_EPOCHS:
        # Messages of a broker that wrote no epochs, or whose table could not be recovered.
        rows.insert(0, EpochRow(0, UNKNOWN, 0))
    return rows


def insert_epoch(connection: apsw.Connection, row: EpochRow) -> None:
    """Add the newest epoch and drop the oldest ones beyond the limit, within the caller's transaction."""
    connection.execute(QUERIES["insert_epoch"], sealed(msgspec.structs.astuple(row)))
    connection.execute(QUERIES["delete_old_epochs"], (MAX_EPOCHS - 1,))
