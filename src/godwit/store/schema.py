"""The schema of a log's file: its versions, the statements on it, and checks that a file has exactly this schema.

A file may come from an untrusted source, and SQLite executes what its schema contains: views, triggers, expressions of
indexes. Before anything else is read, the schema of a file must therefore equal that of our scripts, letter by letter,
and table names in statements come from this module and not from the file. For the same reason a released script is
never changed, not even a space within a statement.

    schema.sql      creates the versions 4 and 5, which differ in the rows of jobs only
    schema_N.sql    adds to version N - 1 what version N had: the versions 1 to 3, which godwit.store.legacy upgrades
    queries.sql     the statements, by name
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw

from godwit.errors import LogDamagedError, LogVersionError
from godwit.store.folder import LOG_FILES

APPLICATION_ID: Final = 0x47574C47
"""'GWLG', which programs such as `file` recognize."""
BLOCKS: Final = "blocks"
META: Final = "meta"
STATE: Final = "state"
FLOORS: Final = "marks"
EPOCHS: Final = "epochs"
PLACE: Final = "place"
"""Key of the row in `meta` that only the file of a cluster's node has (godwit.store.replica)."""

_SchemaObject: TypeAlias = tuple[Any, ...]
_SELECT: Final = "SELECT type, name, tbl_name, sql FROM {}.sqlite_schema LIMIT ?"
_SHOWN_LETTERS: Final = 60
_MAGIC: Final = b"SQLite format 3\0"
_FOLDER: Final = Path(__file__).parent
_NAME: Final = "-- name: "


def parse_queries(text: str) -> dict[str, str]:
    """Return the statements of a file in which each follows a line `-- name: ...`."""
    found: dict[str, str] = {}
    for part in text.split(f"\n{_NAME}")[1:]:
        name, _, statement = part.partition("\n")
        if name in found:
            raise ValueError(f"two statements are named {name}")
        found[name] = statement.strip()
    return found


def read_sql(name: str) -> str:
    """Return the content of a file of SQL in this package."""
    return (_FOLDER / name).read_text(encoding="utf-8")


QUERIES: Final = parse_queries(read_sql("queries.sql"))
LEGACY_VERSIONS: Final = (1, 2, 3)
"""The versions with other tables."""
LEGACY_SCRIPTS: Final = tuple(read_sql(f"schema_{version}.sql") for version in LEGACY_VERSIONS)
VERSION: Final = 5
"""The version that this program writes. Since 5 the row of a job contains its payload and its task (JobRow in
godwit.wire.changes), which a program that knows version 4 only would take for lost."""


def script(version: int = VERSION) -> str:
    """Return the script that makes an empty file a log of a version."""
    return "".join(LEGACY_SCRIPTS[:version]) if version in LEGACY_VERSIONS else read_sql("schema.sql")


def create_schema(connection: apsw.Connection) -> None:
    """Make an empty file a log of the current version, without metadata."""
    connection.execute(script())
    set_version(connection)


def set_version(connection: apsw.Connection) -> None:
    """Mark a file as a log of the current version."""
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", VERSION)


def refuse_foreign_file(path: Path) -> None:
    """Raise LogDamagedError for files that SQLite would take for empty ones and overwrite."""
    refuse_lone_wal(path)
    try:
        with path.open("rb") as file:
            begin = file.read(len(_MAGIC))
    except OSError:
        return  # missing, or SQLite reports the reason
    if begin not in (b"", _MAGIC):
        raise LogDamagedError(
            f"the log {path} cannot be opened: it is not a database of SQLite's, or its first page is damaged. "
            "Save what is intact with `godwit log recover`, restore a backup, or choose another folder"
        )


def refuse_lone_wal(path: Path) -> None:
    """Raise LogDamagedError for a write-ahead log without its file: SQLite would create a new file and delete it."""
    wal = Path(f"{path}-wal")
    if not _size(path) and _size(wal):
        raise LogDamagedError(
            f"{path} is missing or empty, and {wal.name} beside it has messages. Put {path.name} back, restore a "
            f"backup, or save the messages in {wal.name} with `godwit log recover`; to begin a new log, move "
            f"{LOG_FILES} of this folder away, and keep its other files"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def version_of(connection: apsw.Connection, path: Path) -> int:
    """Return the version of a file, 0 if it is empty.

    Raise LogVersionError if it is of a newer version or not a log, LogDamagedError if it has no version.
    """
    application_id = connection.pragma("application_id")
    version = int(connection.pragma("user_version"))
    if application_id == 0 and version == 0 and connection.pragma("schema_version") == 0:
        return 0
    if application_id != APPLICATION_ID:
        raise LogVersionError(
            f"{path} is a database, but not a log of Godwit: choose another folder. "
            "If it was one, its first page is damaged: save what is intact with `godwit log recover`"
        )
    if version > VERSION:
        raise LogVersionError(
            f"the log {path} was written by a newer Godwit: its format is {version}, and this one knows "
            f"{VERSION}. Use the newer one; the file was not changed. If there was never a newer one, "
            "its first page is damaged: save what is intact with `godwit log recover`"
        )
    if version < 1:
        raise LogDamagedError(
            f"the log {path} does not contain its format version: its first page is damaged. "
            "Save what is intact with `godwit log recover`, or restore a backup"
        )
    return version


def tables(version: int = VERSION) -> list[str]:
    """Return the tables of a version, in the order of their creation."""
    return [name for kind, name, *_ in schema_objects(version) if kind == "table"]


def initial_roots(version: int = VERSION) -> dict[str, int]:
    """Return the root page of each table in a file that was created with a version."""
    connection = _in_memory(version)
    rows: list[tuple[Any, ...]] = connection.execute(
        "SELECT name, rootpage FROM sqlite_schema WHERE type = 'table'"
    ).fetchall()
    return dict(rows)


def check_schema(connection: apsw.Connection, path: Path, version: int, database: str = "main") -> None:
    """Raise LogDamagedError unless the schema of a file equals that of a version."""
    difference = _difference(connection, schema_objects(version), database)
    if difference is None:
        return
    raise LogDamagedError(
        f"the log {path} cannot be opened: {difference}. Do not use the file if you do not know where it comes from; "
        "save what is intact with `godwit log recover`, or restore a backup"
    )


def _difference(connection: apsw.Connection, expected: list[_SchemaObject], database: str) -> str | None:
    try:
        found: list[_SchemaObject] = connection.execute(_SELECT.format(database), (len(expected) + 1,)).fetchall()
    except UnicodeDecodeError:
        return "a text in its schema is not UTF-8"
    foreign = next((each for each in found if each not in expected), None)
    if foreign is not None:
        return f"the {foreign[0]} {str(foreign[1])[:_SHOWN_LETTERS]!r} in it is not ours"
    return None if len(found) == len(expected) else "something is missing in it"


@cache
def schema_objects(version: int) -> list[_SchemaObject]:
    """Return type, name, table and SQL text of everything in the schema of a version."""
    return _in_memory(version).execute(_SELECT.format("main"), (-1,)).fetchall()


def _in_memory(version: int) -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(script(version))
    return connection
