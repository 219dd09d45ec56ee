"""Copies of a log: a backup while a broker writes it, and a copy without free pages in its place.

Both copy rows and not pages, a few blocks at a time, each with a statement that is finished at once. SQLite's own
backup and VACUUM INTO read in one piece: meanwhile the WAL of a busy broker could not be used again and would grow by
gigabytes; or they begin anew with every commit of another process. Blocks are only ever added at the end, so a copy in
pieces is right if its last piece is of one moment: the newest blocks, and all that is kept beside the log.

What retention deletes during the copy may be in it although its mark says that it is gone: a mark promises no more than
that something may be missing. Blocks are copied as they are, damaged ones too.

A copy is made by our own scripts and has our own tables: nothing that the file says of itself becomes a statement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from godwit.errors import LogDamagedError, LogInUseError
from godwit.limits import MIB
from godwit.store import sql
from godwit.store.connection import connect, heed_signals, naming_full, telling, transaction
from godwit.store.draft import BESIDE, Progress, drafting, put
from godwit.store.meta import load_meta
from godwit.store.pages import PAGE_BYTES
from godwit.store.reader import LogReader
from godwit.store.scan import Scanner
from godwit.store.schema import APPLICATION_ID, BLOCKS, check_schema, tables
from godwit.store.witness import read_witness, write_witness

PIECE_BYTES: Final = 16 * MIB
"""What is copied with one statement."""
MAX_ROUNDS: Final = 8
"""How often a backup tries to catch up with a broker before it takes all that is left at once."""

_SQL: Final = sql.parse_queries(Path(__file__).with_name("copies.sql").read_text(encoding="utf-8"))
_PIECE_BLOCKS: Final = 4096


class Copied(msgspec.Struct, frozen=True):
    """What a backup holds."""

    log_id: bytes
    blocks: int
    next_offset: int
    """Up to where it goes."""
    until_us: int
    """When its newest message was received."""
    size_bytes: int


class Compacted(msgspec.Struct, frozen=True):
    before_bytes: int
    after_bytes: int


def backup(path: Path, out: Path, progress: Progress) -> Copied:
    """Copy a log to a file that is not there yet. A broker may go on writing it."""
    reader = LogReader.open(path)  # it is a log, of a version that we know
    reader.close()
    with telling(path, "copied"), drafting(out, like=path) as draft, naming_full(out.parent):
        return _Copy(path, draft, progress, is_immutable=reader.is_immutable).run()


def compact(path: Path, progress: Progress) -> Compacted:
    """Put a copy without free pages in the place of a log that nobody else has open: hold the lock of its folder.

    Raises LogDamagedError rather than leave out what `recover` could save.
    """
    record = read_witness(path)
    reader = LogReader.open(path)
    missing = None if record is None else record.missing_after(reader.log_id, reader.next_offset())
    reader.close()
    if missing is not None:
        raise LogDamagedError(
            f"the log {path} cannot be compacted: offsets {missing[0]:,} to {missing[1] - 1:,} were confirmed and are "
            "missing. Save what is intact with `godwit log recover`, or start the broker, which does it too"
        )
    wal = Path(f"{path}-wal")
    with telling(path, "compacted"):
        if record is not None:
            write_witness(path, record.log_id, record.confirmed, record.received_us)
        _check_alone(path)
        before_bytes = path.stat().st_size
        draft = path.with_name(f"{path.name}.compact")
        draft.unlink(missing_ok=True)  # of a run that was killed
        with drafting(draft, like=path) as copy:
            _Copy(path, copy, progress).run()
        # A WAL of the old file beside the new one would be taken for its own.
        if wal.exists() and wal.stat().st_size:
            draft.unlink()
            raise LogInUseError(f"another program has written to the log {path} meanwhile: end it, and try again")
        for ending in BESIDE:
            Path(f"{path}{ending}").unlink(missing_ok=True)
        put(draft, path)
    return Compacted(before_bytes, path.stat().st_size)


def _check_alone(path: Path) -> None:
    """Bring all of the WAL into the file, and see that its pages are in order."""
    connection = connect(path, apsw.SQLITE_OPEN_READWRITE, None)
    try:
        heed_signals(connection)
        problem = connection.execute("PRAGMA quick_check(1)").get
        if problem != "ok":
            raise LogDamagedError(
                f"the log {path} cannot be compacted: it is damaged ({problem}). "
                "Save what is intact with `godwit log recover`, or restore a backup"
            )
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.close()


class _Copy:
    """From a log into an empty file."""

    def __init__(self, path: Path, draft: Path, progress: Progress, *, is_immutable: bool = False) -> None:
        self._path = path
        self._progress = progress
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        self._connection = connect(draft, flags, None)
        self._source = f"{path.absolute().as_uri()}?{'immutable=1' if is_immutable else 'mode=ro'}"
        self._next_offset = 0
        self._copied_bytes = 0
        self._total_bytes = 0

    def run(self) -> Copied:
        try:
            self._prepare()
            for _ in range(MAX_ROUNDS):
                if not self._copy_round():
                    break
            self._finish()
            return Copied(
                log_id=load_meta(self._connection).log_id,
                blocks=int(self._connection.execute(_SQL["count_blocks"]).get),
                next_offset=self._next_offset,
                until_us=Scanner(self._connection).ends().until_us,
                size_bytes=self._connection.pragma("page_count") * PAGE_BYTES,
            )
        finally:
            self._connection.close()

    def _prepare(self) -> None:
        connection = self._connection
        # Nothing is lost if this is cut short: the file has its name only when it is on the disk.
        connection.pragma("page_size", PAGE_BYTES)
        connection.pragma("journal_mode", "OFF")
        connection.pragma("synchronous", "OFF")
        for script in sql.MIGRATIONS:
            connection.execute(script)
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", len(sql.MIGRATIONS))
        heed_signals(connection)
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 1)
        connection.execute(_SQL["attach"], (self._source,))
        check_schema(connection, self._path, len(sql.MIGRATIONS), "source")
        self._total_bytes = connection.pragma("page_count", schema="source") * PAGE_BYTES

    def _copy_round(self) -> bool:
        """All that is there now, piece by piece; whether it was more than one."""
        pieces = 0
        last = self._connection.execute(_SQL["select_last"]).get
        while last is not None and self._next_offset <= last:
            rows: list[tuple[Any, ...]] = self._connection.execute(
                _SQL["select_sizes"], (self._next_offset, _PIECE_BLOCKS)
            ).fetchall()
            piece_bytes = 0
            for first_offset, end_offset, size_bytes in rows:
                stop, self._next_offset = first_offset, end_offset
                piece_bytes += size_bytes
                if piece_bytes >= PIECE_BYTES:
                    break
            if not rows:
                break
            self._connection.execute(_SQL["copy_blocks"], (rows[0][0], stop))
            self._copied_bytes += piece_bytes
            self._progress(min(self._copied_bytes, self._total_bytes), self._total_bytes)
            pieces += 1
        return pieces > 1

    def _finish(self) -> None:
        """What came meanwhile, and what is kept beside the log, as of one moment."""
        connection = self._connection
        with transaction(connection):
            connection.execute(_SQL["copy_last_blocks"], (self._next_offset,))
            for table in tables():
                if table != BLOCKS:
                    connection.execute(f'INSERT INTO main."{table}" SELECT * FROM source."{table}"')
        self._next_offset = Scanner(connection).ends().next_offset
        connection.execute(_SQL["detach"])
        self._progress(self._total_bytes, self._total_bytes)
