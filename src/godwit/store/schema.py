"""What a log's file is: a database of SQLite's that says so, with the tables that our scripts make and nothing else.

A file may come from anywhere: restored, sent by somebody, found. SQLite runs what its schema says: views, triggers,
expressions of indexes. So before anything is read, the schema must be that of our scripts, letter by letter, and
whoever names a table in a statement takes the name from here and not from the file. A script that was released is
therefore never changed, not even a space in it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw

from godwit.errors import LogDamagedError, LogVersionError
from godwit.store import sql

APPLICATION_ID: Final = 0x47574C47
"""'GWLG', which `file` and others can see."""
BLOCKS: Final = "blocks"
META: Final = "meta"

_Object: TypeAlias = tuple[Any, ...]
_SELECT: Final = "SELECT type, name, tbl_name, sql FROM {}.sqlite_schema LIMIT ?"
_SHOWN_LETTERS: Final = 60
_MAGIC: Final = b"SQLite format 3\0"


def refuse_other(path: Path) -> None:
    """SQLite takes some files for empty ones, and would write over them."""
    refuse_orphan(path)
    try:
        with path.open("rb") as file:
            begin = file.read(len(_MAGIC))
    except OSError:
        return  # not there, or SQLite says why not
    if begin not in (b"", _MAGIC):
        raise LogDamagedError(
            f"the log {path} cannot be opened: it is not a database of SQLite's, or its first page is damaged. "
            "Save what is intact with `godwit log recover`, restore a backup, or choose another folder"
        )


def refuse_orphan(path: Path) -> None:
    """A WAL without its file: SQLite would begin a new one, and delete what is in the WAL."""
    wal = Path(f"{path}-wal")
    if not _size(path) and _size(wal):
        raise LogDamagedError(
            f"{path} is missing or empty, and {wal.name} beside it has messages: put {path.name} back, save what the "
            f"other has with `godwit log recover`, or move {wal.name} away to begin a new log"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def version_of(connection: apsw.Connection, path: Path) -> int:
    """Of the schema in the file; 0 if it is empty."""
    application_id = connection.pragma("application_id")
    version = int(connection.pragma("user_version"))
    if application_id == 0 and version == 0 and connection.pragma("schema_version") == 0:
        return 0
    if application_id != APPLICATION_ID:
        raise LogVersionError(
            f"{path} is a database, but no log of Godwit's: choose another folder. "
            "If it was one, its first page is damaged: save what is intact with `godwit log recover`"
        )
    if version > len(sql.MIGRATIONS):
        raise LogVersionError(
            f"the log {path} was written by a newer Godwit: its format is {version}, and this one knows "
            f"{len(sql.MIGRATIONS)}. Use the newer one; the file was not changed. If there was never a newer one, "
            "its first page is damaged: save what is intact with `godwit log recover`"
        )
    if version < 1:
        raise LogDamagedError(
            f"the log {path} does not say which format it has: its first page is damaged. "
            "Save what is intact with `godwit log recover`, or restore a backup"
        )
    return version


def tables(version: int | None = None) -> list[str]:
    """Those of a version, the current one unless told, in the order in which they were made."""
    return [name for kind, name, *_ in _objects(sql.MIGRATIONS[:version]) if kind == "table"]


def state_tables() -> list[str]:
    """Those whose rows carry a seal: all that a broker keeps beside the log."""
    return [name for name in tables() if name not in (BLOCKS, META)]


def check_schema(connection: apsw.Connection, path: Path, version: int, database: str = "main") -> None:
    """Raises LogDamagedError unless it is that of a version: the file must not make us do what we would not."""
    what = _difference(connection, _objects(sql.MIGRATIONS[:version]), database)
    if what is None:
        return
    raise LogDamagedError(
        f"the log {path} cannot be opened: {what}. Do not use the file if you do not know where it comes from; "
        "save what is intact with `godwit log recover`, or restore a backup"
    )


def _difference(connection: apsw.Connection, ours: list[_Object], database: str) -> str | None:
    """From the schema in the file."""
    try:
        found: list[_Object] = connection.execute(_SELECT.format(database), (len(ours) + 1,)).fetchall()
    except UnicodeDecodeError:
        return "a text in its schema is no UTF-8"
    foreign = next((each for each in found if each not in ours), None)
    if foreign is not None:
        return f"the {foreign[0]} {str(foreign[1])[:_SHOWN_LETTERS]!r} in it is not ours"
    return None if len(found) == len(ours) else "something is missing in it"


@cache
def _objects(scripts: tuple[str, ...]) -> list[_Object]:
    """What they make of an empty file."""
    connection = apsw.Connection(":memory:")
    try:
        for script in scripts:
            connection.execute(script)
        return connection.execute(_SELECT.format("main"), (-1,)).fetchall()
    finally:
        connection.close()
