"""What a log knows of itself: its id, when it was made, and its stamp.

The stamp is 8 random bytes that stand in the head of every block of the log. Nobody is told them but who can read the
file. So a block that is found without the help of the table around it (godwit.store.salvage) is known to be the log's
own, and not one that a publisher has put together and hidden in a message.
"""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from godwit.store.block import STAMP_BYTES
from godwit.store.kept import DamagedRowError, is_sealed, sealed
from godwit.store.sql import QUERIES


class Meta(msgspec.Struct, frozen=True):
    """All that never changes."""

    log_id: bytes
    created_us: int
    stamp: bytes


def new_stamp(connection: apsw.Connection) -> bytes:
    """By SQLite, which has the randomness of the system."""
    stamp: bytes = connection.execute(QUERIES["select_random"], (STAMP_BYTES,)).get
    return stamp


def set_meta(connection: apsw.Connection, meta: Meta, end_offset: int = 0) -> None:
    """What a new log begins with; within the caller's transaction."""
    rows = [sealed(pair) for pair in msgspec.structs.asdict(meta).items()]
    connection.executemany(QUERIES["insert_meta"], [*rows, ("end_offset", end_offset, 0)])


def load_meta(connection: apsw.Connection) -> Meta:
    """Raises DamagedRowError when it is not what was written."""
    found: dict[str, Any] = {}
    for row in connection.execute(QUERIES["select_meta"]):
        if not is_sealed(row):
            raise DamagedRowError("a row of the table meta is not what was written")
        found[str(row[0])] = row[1]
    try:
        return msgspec.convert(found, Meta)
    except msgspec.ValidationError:
        raise DamagedRowError("the table meta lacks a row") from None
