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
from godwit.errors import GodwitError, LogDamagedError, LogInUseError
from godwit.store.copies import backup, compact
from godwit.store.draft import BESIDE
from godwit.store.folder import DataFolder, is_in_use
from godwit.store.recover import LOST_END, Recovered, recover
from godwit.store.verify import verify

LOG_ID_BYTES: Final = 16
MAX_KEPT: Final = 1000
"""Damaged files that are kept in one folder."""
MAX_PROBLEMS: Final = 3
"""More are not listed in a sentence; --json has them."""


def run_verify(folder: Path, *, as_json: bool) -> None:
    """Check everything and tell; LogDamagedError if something is wrong."""
    path = log_path(folder)
    with _bar("checking") as progress:
        verdict = verify(path, progress.show)
    if as_json:
        show_objects([{"path": str(path), **_fields(verdict), "is_sound": verdict.is_sound}])
    else:
        typer.echo(
            f"{safe(str(path))}: {count(verdict.blocks, 'block')} with {count(verdict.messages, 'message')}, "
            f"{size(verdict.size_bytes)}"
        )
    if verdict.is_sound:
        if not as_json:
            typer.echo("everything is intact")
        return
    if verdict.problems:
        found = [f"offsets {ranges(verdict.damaged)} are damaged"] if verdict.damaged else []
        found += verdict.problems[:MAX_PROBLEMS]
        if (more := len(verdict.problems) - MAX_PROBLEMS) > 0:
            found.append(f"and {count(more, 'problem')} more")
        raise LogDamagedError(
            f"{safe(str(path))}: {'; '.join(found)}. Stop the broker, then save what is intact with godwit log recover"
        )
    raise LogDamagedError(
        f"{safe(str(path))}: offsets {ranges(verdict.damaged)} are damaged, or were lost before: a broker passes over "
        "them and tells who comes there. All else is intact; godwit log recover writes it into a new file"
    )


def run_recover(folder: Path, *, as_json: bool) -> None:
    """Put a new log with everything that is intact in the place of the damaged one, which is kept."""
    with _alone(folder, "recover") as path:
        part = path.with_name(f".godwit-{os.getpid()}.part")
        try:
            with _bar("recovering") as progress:
                saved = recover(
                    path,
                    part,
                    new_log_id=os.urandom(LOG_ID_BYTES),
                    now_us=time.time_ns() // 1000,
                    progress=progress.show,
                )
            if not saved.blocks and not saved.kept_rows:
                raise LogDamagedError(
                    f"nothing in {safe(str(path))} can be saved; it is left as it is. Restore a backup, or move it "
                    "away and begin with a new log"
                )
            kept = _swap(path, part)
        finally:
            part.unlink(missing_ok=True)
    if as_json:
        show_objects([{"path": str(path), "kept": str(kept), **_fields(saved)}])
        return
    typer.echo(f"{safe(str(path))}: saved {count(saved.blocks, 'block')} with {count(saved.messages, 'message')}")
    typer.echo(f"missing: {missing_of(saved)}")
    if saved.lost_tables:
        typer.echo(f"beside the log, something was not readable of: {', '.join(saved.lost_tables)}")
    if not saved.has_old_id:
        typer.echo("the log's id was not readable: it has a new one, and clients begin anew in it")
    typer.echo(f"the damaged file is kept as {safe(str(kept))}; delete it when you do not need it any more")


def run_compact(folder: Path, *, as_json: bool) -> None:
    """Write the file anew without what is free in it."""
    with _alone(folder, "compact") as path, _bar("compacting") as progress:
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
            result = backup(path, part, progress.show)
            for end in BESIDE:  # a WAL of the log that is replaced would be taken for one of the copy
                _beside(copy, end).unlink(missing_ok=True)
    if as_json:
        show_objects([{"path": str(copy), **_fields(result)}])
        return
    typer.echo(
        f"{safe(str(copy))}: {count(result.blocks, 'block')}, {size(result.size_bytes)}, "
        f"all before offset {result.next_offset:,}"
    )


def missing_of(saved: Recovered) -> str:
    """What was lost, for people."""
    if not saved.missing:
        return "nothing that was in the log"
    *inner, (begin, end) = saved.missing
    if end < saved.next_offset or end - begin < LOST_END:
        return f"offsets {ranges(saved.missing)}"
    before = f"offsets {ranges(inner)}, and " if inner else ""
    return f"{before}perhaps some behind offset {begin - 1:,}: the end was not readable, so the next one is {end:,}"


def _bar(title: str) -> WorkProgress:
    return WorkProgress(title, enabled=sys.stderr.isatty())


def _fields(result: msgspec.Struct) -> dict[str, object]:
    """For JSON; a log's id as `godwit log info` shows it."""
    fields = msgspec.structs.asdict(result)
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}


@contextmanager
def _alone(folder: Path, work: str) -> Iterator[Path]:
    """The log's file, with no broker at it for the time of the block."""
    path = log_path(folder)
    held = DataFolder(folder)
    try:
        held.open()
    except LogInUseError:
        raise LogInUseError(
            f"a broker runs on {safe(str(folder))}, and {work} needs the log for itself; stop the broker, then "
            "try again"
        ) from None
    try:
        yield path
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


def _swap(damaged: Path, saved: Path) -> Path:
    """Put one file in the place of the other; gives the name under which the other one is kept.

    At every moment there is a log under the name: a broker that finds none would begin a new one.
    """
    kept = _free_name(damaged)
    try:
        os.link(damaged, kept)
        for end in BESIDE:
            beside = _beside(damaged, end)
            if beside.exists():
                beside.replace(_beside(kept, end))
        saved.replace(damaged)
    except OSError as error:
        raise GodwitError(
            f"cannot put the saved log in the place of {safe(str(damaged))}: {error.strerror}; check the "
            "folder's rights"
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
