"""Reading the log beside the one who writes it: from another thread, or another process."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import apsw

from godwit.errors import LogVersionError
from godwit.store import sql
from godwit.store.connection import connect, heed_signals, snapshot, telling
from godwit.store.epochs import EpochRow, load_epochs
from godwit.store.kept import marks_of, queries_of, topics_of
from godwit.store.meta import load_meta
from godwit.store.port import Slice
from godwit.store.scan import Rows, Scanner, Wanted
from godwit.store.schema import check_schema, refuse_other, version_of
from godwit.wire.changes import TopicKept


class LogReader:
    """A connection that cannot write. Each call sees what is committed when it is made, and leaves nothing open."""

    is_immutable = False
    """Whether it stands where nothing can be written, and so does not change."""

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        """Use `open`."""
        self.path = path
        self._connection = connection
        self._scanner = Scanner(connection)
        try:
            heed_signals(connection)
            _check_version(connection, path)
            check_schema(connection, path, len(sql.MIGRATIONS))
            meta = load_meta(connection)
            self.log_id, self.created_us = meta.log_id, meta.created_us
        except BaseException:
            connection.close()
            raise

    @classmethod
    def open(cls, path: str | Path, vfs: str | None = None) -> LogReader:
        """A file that is there, and is a log of a version that this reads."""
        path = Path(path)
        if vfs is None:
            refuse_other(path)
        with telling(path, "opened"):
            try:
                return cls(path, connect(path, apsw.SQLITE_OPEN_READONLY, vfs))
            except (apsw.CantOpenError, apsw.ReadOnlyError):
                if vfs is not None or not _is_at_rest(path):
                    raise
            # SQLite wants to put files beside it, which cannot be here: a backup on a disk that is mounted read-only.
            uri = f"{path.absolute().as_uri()}?immutable=1"
            reader = cls(path, connect(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, None))
            reader.is_immutable = True
            return reader

    @property
    def connection(self) -> apsw.Connection:
        """For verify, which has questions of its own."""
        return self._connection

    def first_offset(self) -> int:
        with telling(self.path, "read"):
            return self._scanner.ends().first_offset

    def next_offset(self) -> int:
        with telling(self.path, "read"):
            return self._scanner.ends().next_offset

    def read(self, offset: int, max_bytes: int) -> Slice:
        """See Store.read."""
        with telling(self.path, "read"):
            return self._scanner.read(offset, max_bytes)

    def offset_at(self, time_us: int) -> int:
        """See Store.offset_at."""
        with telling(self.path, "read"):
            return self._scanner.offset_at(time_us)

    def rows(self, start: int, stop: int, max_blocks: int, max_bytes: int, wanted: Wanted | None = None) -> Rows:
        """See Scanner.rows."""
        with telling(self.path, "read"):
            return self._scanner.rows(start, stop, max_blocks, max_bytes, wanted)

    def spans(self, start: int, stop: int, max_blocks: int) -> Rows:
        """See Scanner.spans."""
        with telling(self.path, "read"):
            return self._scanner.spans(start, stop, max_blocks)

    def topics(self) -> list[TopicKept]:
        with telling(self.path, "read"):
            return topics_of(self._connection)

    def marks(self) -> dict[str, int]:
        """Filters of retention's rules, and up to which offset messages of their topics were deleted."""
        with telling(self.path, "read"):
            return marks_of(self._connection)

    def epochs(self) -> list[EpochRow]:
        """Which runs of a broker appended to the log, in order: see godwit.wire.epochs."""
        with telling(self.path, "read"):
            return load_epochs(self._connection)

    def queries(self) -> dict[str, int]:
        """Queries that staged messages, and up to which of their batches these are in the log."""
        with telling(self.path, "read"):
            return queries_of(self._connection)

    def snapshot(self) -> AbstractContextManager[None]:
        """All calls within it see the log of one moment. To be left at once: the WAL grows past it meanwhile."""
        return snapshot(self._connection)

    def close(self) -> None:
        self._connection.close()


def _check_version(connection: apsw.Connection, path: Path) -> None:
    version = version_of(connection, path)
    if version == 0:
        raise LogVersionError(f"{path} is empty: no broker has made a log of it yet")
    if version < len(sql.MIGRATIONS):
        raise LogVersionError(
            f"the log {path} was written by an older Godwit: its format is {version}, and this one reads "
            f"{len(sql.MIGRATIONS)}. A broker brings it forward when it opens it"
        )


def _is_at_rest(path: Path) -> bool:
    """Whether all of the log is in its one file, as it is when its writer has closed it."""
    wal = Path(f"{path}-wal")
    return path.exists() and not (wal.exists() and wal.stat().st_size)
