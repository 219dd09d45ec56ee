"""`godwit log verify`, `recover`, `compact`, `backup`: a log's file checked, saved, made smaller, copied."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import typer

from godwit.cli.log_folder import log_path, ranges
from godwit.cli.new_file import check_free, new_file
from godwit.cli.progress import WorkProgress
from godwit.cli.tables import show_objects
from godwit.cli.text import count, safe, size
from godwit.errors import GodwitError, LogDamagedError, LogInUseError, StorageError
from godwit.net.durable import LOG_ID_BYTES
from godwit.net.log_writer import TRUNCATE_BYTES
from godwit.store.connection import SQLITE_SUFFIXES
from godwit.store.folder import DataFolder, is_in_use
from godwit.store.maintenance import VerifyReport, backup, compact, verify
from godwit.store.port import ProgressCallback
from godwit.store.recover import LOST_END, RecoverReport, recover
from godwit.store.schema import refuse_lone_wal
from godwit.store.witness import read_witness, write_witness

MAX_KEPT: Final = 1000
"""Damaged files that are kept in one folder."""
MAX_PROBLEMS: Final = 3
"""More are not listed in a sentence; --json has them."""
GIVING_WAY_S: Final = 1.0
"""So long one piece of a copy or of a check waits for a broker whose WAL has become too long."""
LOOK_S: Final = 0.02


def run_verify(folder: Path, *, as_json: bool) -> None:
    """Check everything and tell; LogDamagedError if something is wrong."""
    path = log_path(folder)
    verdict = _verified(path)
    if as_json:
        show_objects([{"path": str(path), **_fields(verdict), "is_sound": verdict.is_sound}])
    else:
        typer.echo(
            f"{safe(str(path))}: {count(verdict.blocks, 'block')} with {count(verdict.messages, 'message')}, "
            f"{size(verdict.size_bytes)}"
        )
    if verdict.is_sound:
        if not as_json:
            typer.echo("everything is intact" + _given_up(verdict))
        return
    if verdict.missing or verdict.lacks_changes or verdict.problems:
        found = [f"offsets {ranges([verdict.missing])} were confirmed and are missing"] if verdict.missing else []
        if verdict.lacks_changes:
            found.append("the write-ahead log is shorter than it was: its last commits are missing")
        if verdict.damaged:
            found.append(f"offsets {ranges(verdict.damaged)} are damaged")
        found += verdict.problems[:MAX_PROBLEMS]
        if (more := len(verdict.problems) - MAX_PROBLEMS) > 0:
            found.append(f"and {count(more, 'problem')} more")
        raise LogDamagedError(
            f"{safe(str(path))}: {'; '.join(found)}. Stop the broker, then save what is intact with godwit log recover"
        )
    raise LogDamagedError(
        f"{safe(str(path))}: offsets {ranges(verdict.damaged)} are damaged: a broker passes over them and tells who "
        "comes there. All else is intact; godwit log recover writes it into a new file"
    )


def _given_up(verdict: VerifyReport) -> str:
    """What was lost before, and is known to be."""
    if not verdict.given_up:
        return ""
    return f", but for offsets {ranges(verdict.given_up)}: they were lost earlier, and godwit log recover gave them up"


def _verified(path: Path) -> VerifyReport:
    with _bar("checking") as progress:
        return verify(path, _giving_way(path, progress.show))


def run_recover(folder: Path, *, as_json: bool) -> None:
    """Put a new log with everything that is intact in the place of the damaged one, which is kept."""
    with _alone(folder, "recover", may_be_missing=True) as held:
        path = held.log_path
        if _is_sound(path):
            if as_json:
                show_objects([{"path": str(path), "kept": None, "is_sound": True}])
            else:
                typer.echo(f"{safe(str(path))}: nothing is damaged; it is left as it is")
            return
        part = path.with_name(f"{path.name}.saved")
        part.unlink(missing_ok=True)  # of a run that was killed
        try:
            with _bar("recovering") as progress:
                saved = recover(
                    path,
                    part,
                    new_log_id=os.urandom(LOG_ID_BYTES),
                    now_us=time.time_ns() // 1000,
                    progress=progress.show,
                )
            if not saved.blocks and not saved.kept_rows and read_witness(path) is None:
                raise LogDamagedError(
                    f"nothing in {safe(str(path))} can be saved; it is left as it is. Restore a backup, or move it "
                    "away and begin with a new log"
                )
            kept = _keep(path)
            held.replace_log(part)
        finally:
            part.unlink(missing_ok=True)
    if as_json:
        show_objects([{"path": str(path), "kept": str(kept), "is_sound": False, **_fields(saved)}])
        return
    typer.echo(f"{safe(str(path))}: saved {count(saved.blocks, 'block')} with {count(saved.messages, 'message')}")
    typer.echo(f"missing: {missing_of(saved)}")
    if saved.lost_tables:
        typer.echo(f"beside the log, something was not readable of: {', '.join(saved.lost_tables)}")
    if not saved.has_old_id:
        typer.echo("the log's id was not readable: it has a new one, and clients begin anew in it")
    typer.echo(f"the damaged file is kept as {safe(str(kept))}; delete it when you do not need it any more")


def _is_sound(path: Path) -> bool:
    try:
        return _verified(path).is_sound
    except StorageError:
        return False


def run_compact(folder: Path, *, as_json: bool) -> None:
    """Write the file anew without what is free in it."""
    with _alone(folder, "compact") as held, _bar("compacting") as progress:
        path = held.log_path
        result = compact(path, progress.show)
    if as_json:
        show_objects([{"path": str(path), **_fields(result)}])
        return
    typer.echo(f"{safe(str(path))}: {size(result.before_bytes)} before, {size(result.after_bytes)} now")


def run_backup(folder: Path, output: Path, *, force: bool, as_json: bool) -> None:
    """Copy the log into a folder of its own."""
    path = log_path(folder)
    copy = DataFolder(output).log_path
    with _folder(output):
        check_free(copy, force=force)
        if copy.exists() and copy.samefile(path):
            raise GodwitError(f"{safe(str(output))} is the folder of the log itself; choose another one")
        if is_in_use(output):
            raise GodwitError(f"a broker runs on {safe(str(output))}; choose another folder")
        with new_file(copy, force=force) as part, _bar("copying") as progress:
            result = backup(path, part, _giving_way(path, progress.show))
            for end in SQLITE_SUFFIXES:  # a WAL of the log that is replaced would be taken for one of the copy
                _beside(copy, end).unlink(missing_ok=True)
    write_witness(copy, result.log_id, result.next_offset, result.until_us)
    if as_json:
        show_objects([{"path": str(copy), **_fields(result)}])
        return
    typer.echo(
        f"{safe(str(copy))}: {count(result.blocks, 'block')}, {size(result.size_bytes)}, "
        f"all before offset {result.next_offset:,}"
    )


def missing_of(saved: RecoverReport) -> str:
    """What was lost, for people."""
    if not saved.missing:
        return "nothing that was in the log"
    *inner, (begin, end) = saved.missing
    if end < saved.next_offset or end - begin < LOST_END:
        return f"offsets {ranges(saved.missing)}"
    before = f"offsets {ranges(inner)}, and " if inner else ""
    return f"{before}perhaps some from offset {begin:,} on: the end was not readable, so the next one is {end:,}"


def _bar(title: str) -> WorkProgress:
    return WorkProgress(title, enabled=sys.stderr.isatty())


def _giving_way(path: Path, show: ProgressCallback) -> ProgressCallback:
    """Tells what is done, and lets a broker that writes empty its WAL now and then, which it cannot while we read."""
    wal = _beside(path, "-wal")

    def step(done: int, total: int) -> None:
        show(done, total)
        give_up_at = time.monotonic() + GIVING_WAY_S
        while _size(wal) > TRUNCATE_BYTES and time.monotonic() < give_up_at:
            time.sleep(LOOK_S)

    return step


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _fields(result: msgspec.Struct) -> dict[str, object]:
    """For JSON; a log's id as `godwit log info` shows it."""
    fields = msgspec.structs.asdict(result)
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}


@contextmanager
def _alone(folder: Path, work: str, *, may_be_missing: bool = False) -> Iterator[DataFolder]:
    """Hold a folder with a log, in which no broker runs, for the time of the block.

    With `may_be_missing`, a folder that had a log will do, as its other files show; an empty file stands for it then.
    """
    held = DataFolder(folder)
    path = held.log_path
    if may_be_missing and (read_witness(path) is not None or _size(_beside(path, "-wal"))):
        path.touch(mode=0o600)
    else:
        refuse_lone_wal(path)
        log_path(folder)  # says it if there is none
    try:
        held.lock()
    except LogInUseError:
        raise LogInUseError(
            f"a broker runs on {safe(str(folder))}, and {work} needs the log for itself; stop the broker, then "
            "try again"
        ) from None
    try:
        yield held
    finally:
        held.close()


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """A folder that is there for the block; one that was made for it goes again if the block fails."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        yield
        return
    except OSError as error:
        raise GodwitError(
            f"cannot make the folder {safe(str(path))}: {error.strerror}; choose another place"
        ) from error
    try:
        yield
    except BaseException:
        path.rmdir()
        raise


def _keep(damaged: Path) -> Path:
    """Give a log another name too, with its WAL; that name."""
    kept = _free_name(damaged)
    try:
        os.link(damaged, kept)
        if _size(wal := _beside(damaged, "-wal")):
            os.link(wal, _beside(kept, "-wal"))
    except OSError as error:
        raise GodwitError(
            f"cannot keep {safe(str(damaged))} as {safe(kept.name)}: {error.strerror}; check the folder's rights"
        ) from error
    return kept


def _free_name(path: Path) -> Path:
    for number in range(1, MAX_KEPT + 1):
        name = path.with_name(f"{path.name}.damaged" if number == 1 else f"{path.name}.damaged-{number}")
        if not os.path.lexists(name):
            return name
    raise GodwitError(f"there are {MAX_KEPT:,} damaged files in {safe(str(path.parent))} already; delete some")


def _beside(path: Path, end: str) -> Path:
    return path.with_name(f"{path.name}{end}")
