"""`godwit log verify`, `recover`, `compact`, `purge` and `backup`: check, repair, shrink, empty and copy a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import typer

from godwit.cli.connection import print_notice
from godwit.cli.log_content import format_ranges, log_path
from godwit.cli.new_file import check_free, new_file
from godwit.cli.progress import WorkProgress
from godwit.cli.tables import show_objects
from godwit.cli.text import count, safe, size
from godwit.errors import GodwitError, LogDamagedError, LogInUseError, StorageError
from godwit.net.checkpoints import TRUNCATE_BYTES
from godwit.net.durable_log import LOG_ID_BYTES
from godwit.store.connection import SQLITE_SUFFIXES
from godwit.store.folder import LOG_FILES, DataFolder, is_in_use
from godwit.store.maintenance import VerifyReport, backup, compact, verify
from godwit.store.port import ProgressCallback
from godwit.store.recover import LOST_END, RecoverReport, recover
from godwit.store.replica import Place, read_place
from godwit.store.retention import Retention, RetentionRule
from godwit.store.schema import refuse_lone_wal
from godwit.store.sqlite import SqliteStore
from godwit.store.witness import SUFFIX, read_witness, write_witness
from godwit.wire.changes import RetainedRow
from godwit.wire.filters import matches

MAX_DAMAGED_FILES: Final = 1000
"""Damaged files kept in one folder."""
MAX_PROBLEMS: Final = 3
"""Problems listed in a sentence; --json has all."""
WAL_WAIT_S: Final = 1.0
"""Time that one step of a copy or a check waits for the broker to shorten a long WAL."""
WAL_POLL_S: Final = 0.02


def run_verify(folder: Path, *, as_json: bool) -> None:
    """Check the whole file and print the result.

    Raises:
        LogDamagedError: Something is damaged or missing.
    """
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
            if verdict.witness == "absent":
                typer.echo(f"the end of the log was not checked: this copy has no {path.name}{SUFFIX}")
        return
    if verdict.is_intact:
        raise LogDamagedError(_without_witness(path, verdict))
    has_witness = verdict.witness in ("intact", "absent")
    if verdict.has_needless_wal and not (verdict.damaged or verdict.problems or verdict.missing):
        raise LogDamagedError(
            f"{safe(str(path))}: {path.name}-wal is damaged. Nothing is lost: {path.name} has all of it. Start the "
            "broker, which repairs that, or run godwit log recover"
        )
    if not has_witness or verdict.missing or verdict.lacks_changes or verdict.has_needless_wal or verdict.problems:
        found = (
            [f"offsets {format_ranges([verdict.missing])} were confirmed and are missing"] if verdict.missing else []
        )
        if verdict.lacks_changes:
            found.append("the write-ahead log is shorter than it was: its last commits are missing")
        if verdict.has_needless_wal:
            found.append(f"{path.name}-wal is damaged")
        if verdict.damaged:
            found.append(f"offsets {format_ranges(verdict.damaged)} are damaged")
        if not has_witness:
            found.append(f"{path.name}{SUFFIX} is {verdict.witness}, so the end of the log is unchecked")
        found += verdict.problems[:MAX_PROBLEMS]
        if (more := len(verdict.problems) - MAX_PROBLEMS) > 0:
            found.append(f"and {count(more, 'problem')} more")
        raise LogDamagedError(
            f"{safe(str(path))}: {'; '.join(found)}. Stop the broker, then save the intact messages with "
            "godwit log recover"
        )
    raise LogDamagedError(
        f"{safe(str(path))}: offsets {format_ranges(verdict.damaged)} are damaged: a broker skips them and "
        "notifies the subscribers that reach them. The rest is intact; godwit log recover writes it into a new file"
    )


def _without_witness(path: Path, verdict: VerifyReport) -> str:
    """Return a sentence about a log that is intact as far as it goes."""
    if verdict.witness == "unreadable":
        return (
            f"{safe(str(path))}: the file is intact, but reading {path.name}{SUFFIX} fails, so the end of the log "
            "is unchecked. Check its permissions and the disk, then try again"
        )
    return (
        f"{safe(str(path))}: the file is intact, but {path.name}{SUFFIX} is {verdict.witness}, so the end of the log "
        "is unchecked: its last messages may be missing. Start the broker, which writes a new one, or restore a "
        "backup"
    )


def _given_up(verdict: VerifyReport) -> str:
    """Return a remark about offsets that were lost and given up earlier."""
    if not verdict.given_up:
        return ""
    return (
        f", except for offsets {format_ranges(verdict.given_up)}, which were lost before an earlier godwit log recover"
    )


def _verified(path: Path, *, is_locked: bool = False) -> VerifyReport:
    with _bar("checking") as progress:
        return verify(path, _yielding_to_broker(path, progress.show), is_locked=is_locked)


def run_recover(folder: Path, *, as_json: bool) -> None:
    """Replace a damaged log by a new one with everything that is intact, and keep the damaged file.

    Raises:
        LogDamagedError: Nothing could be saved.
        LogInUseError: A broker uses the folder.
    """
    with _exclusive(folder, "recover", may_be_missing=True) as held:
        path = held.log_path
        verdict = _locked_verdict(path)
        if verdict is not None and verdict.is_intact:
            if as_json:
                show_objects([{"path": str(path), "kept": None, "is_sound": verdict.is_sound}])
            elif verdict.is_sound:
                typer.echo(f"{safe(str(path))}: nothing is damaged; the file is unchanged")
            else:
                typer.echo(_without_witness(path, verdict))
            return
        part = path.with_name(f"{path.name}.saved")
        part.unlink(missing_ok=True)  # left by a run that was killed
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
                    f"nothing in {safe(str(path))} can be saved; the file is unchanged. Restore a backup; to begin a "
                    f"new log, move {LOG_FILES} of this folder away, and keep its other files"
                )
            kept = _keep_damaged(path)
            held.replace_log(part)
        finally:
            part.unlink(missing_ok=True)
    if as_json:
        show_objects([{"path": str(path), "kept": str(kept), "is_sound": False, **_fields(saved)}])
        return
    typer.echo(f"{safe(str(path))}: saved {count(saved.blocks, 'block')} with {count(saved.messages, 'message')}")
    typer.echo(f"missing: {missing_text(saved)}")
    if saved.lost_tables:
        typer.echo(f"partly unreadable tables beside the messages: {', '.join(saved.lost_tables)}")
    if saved.lacks_changes:
        typer.echo(
            "the last commits are missing: sessions, cursors, retained messages and jobs may be older than the newest "
            "confirmed ones"
        )
    if saved.was_replica:
        typer.echo(
            "this was the file of a cluster's node, and is a log of its own now: the node refuses it. Give the node an "
            "empty folder or a backup (godwit cluster seed), or begin a new cluster with this log (godwit cluster "
            "begin --from)"
        )
    if not saved.has_old_id:
        typer.echo("the id of the log was unreadable: the new log has a new id, and clients start at its beginning")
    typer.echo(f"the damaged file is kept as {safe(str(kept))}; delete it when you no longer need it")


def _locked_verdict(path: Path) -> VerifyReport | None:
    """Return the result of a check in a folder that is locked, or None if opening the log fails."""
    try:
        return _verified(path, is_locked=True)
    except StorageError:
        return None


def run_compact(folder: Path, *, as_json: bool) -> None:
    """Write the file again without its free pages."""
    with _exclusive(folder, "compact") as held, _bar("compacting") as progress:
        path = held.log_path
        result = compact(path, progress.show)
    if as_json:
        show_objects([{"path": str(path), **_fields(result)}])
        return
    typer.echo(f"{safe(str(path))}: {size(result.before_bytes)} before, {size(result.after_bytes)} now")


def run_purge(folder: Path, filters: Sequence[str], *, as_json: bool) -> None:
    """Delete all messages of the topics that match, with their retained messages.

    Raises:
        GodwitError: The folder is in use, or belongs to a node of a cluster.
    """
    messages = 0
    with _exclusive(folder, "purge") as held:
        path = held.log_path
        _refuse_replica(path)
        now_us = time.time_ns() // 1000
        store = SqliteStore.open(path, new_log_id=os.urandom(LOG_ID_BYTES), now_us=now_us)
        try:
            for finding in store.findings:  # they are settled by this opening, and the next one does not report them
                print_notice(f"warning: {finding}")
            # An age of 0: every message of these topics is too old. Other topics have no limit.
            rules = [RetentionRule(pattern=filter, max_age_s=0.0) for filter in dict.fromkeys(filters)]
            retention = Retention(store, rules)
            latest_us = max(now_us, store.last_received_us)
            while (deletions := retention.step(latest_us)) is not None:
                messages += sum(entry.count for deletion in deletions for _, entry in deletion.entries)
            retained = [row.topic for row in store.state().retained if any(matches(one, row.topic) for one in filters)]
            store.append((), [RetainedRow(topic, b"") for topic in retained])
        finally:
            store.close()
    if as_json:
        show_objects([{"path": str(path), "messages": messages, "retained": len(retained)}])
        return
    typer.echo(
        f"{safe(str(path))}: deleted {count(messages, 'message')} and {count(len(retained), 'retained message')}; "
        "godwit log compact returns the space"
    )


def _refuse_replica(path: Path) -> None:
    """Raise GodwitError for the file of a node, which has to stay equal to the files of the other nodes."""
    try:
        place = read_place(path).place
    except StorageError:  # purging opens it as well, and reports the reason
        return
    if place != Place():
        raise GodwitError(
            f"{safe(str(path))} belongs to a node of a cluster, and all nodes must have the same messages: give the "
            "nodes a retention rule for these topics instead"
        )


def run_backup(folder: Path, output: Path, *, force: bool, as_json: bool) -> None:
    """Copy the log into a folder of its own.

    Raises:
        GodwitError: The folder is in use or not empty, or cannot be written.
    """
    path = log_path(folder)
    copy = DataFolder(output).log_path
    with _folder(output):
        check_free(copy, force=force)
        if copy.exists() and copy.samefile(path):
            raise GodwitError(f"{safe(str(output))} is the folder of the log itself; choose another folder")
        if is_in_use(output):
            raise GodwitError(f"a broker uses {safe(str(output))}; choose another folder")
        with new_file(copy, force=force) as part, _bar("copying") as progress:
            result = backup(path, part, _yielding_to_broker(path, progress.show))
            for end in SQLITE_SUFFIXES:  # else SQLite would apply the WAL of the replaced log to the copy
                _beside(copy, end).unlink(missing_ok=True)
    write_witness(copy, result.log_id, result.next_offset, result.until_us)
    if as_json:
        show_objects([{"path": str(copy), **_fields(result)}])
        return
    typer.echo(
        f"{safe(str(copy))}: {count(result.blocks, 'block')}, {size(result.size_bytes)}, "
        f"all before offset {result.next_offset:,}"
    )


def missing_text(saved: RecoverReport) -> str:
    """Return the lost offsets as text."""
    if not saved.missing:
        return "nothing"
    *inner, (begin, end) = saved.missing
    if end < saved.next_offset or end - begin < LOST_END:
        return f"offsets {format_ranges(saved.missing)}"
    before = f"offsets {format_ranges(inner)}, and " if inner else ""
    return f"{before}perhaps some from offset {begin:,} on: the end was unreadable, so the next offset is {end:,}"


def _bar(title: str) -> WorkProgress:
    return WorkProgress(title, enabled=sys.stderr.isatty())


def _yielding_to_broker(path: Path, show: ProgressCallback) -> ProgressCallback:
    """Return a progress callback that lets a broker truncate a long WAL, which it cannot do during a read."""
    wal = _beside(path, "-wal")

    def step(done: int, total: int) -> None:
        show(done, total)
        give_up_at = time.monotonic() + WAL_WAIT_S
        while _size(wal) > TRUNCATE_BYTES and time.monotonic() < give_up_at:
            time.sleep(WAL_POLL_S)

    return step


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _fields(result: msgspec.Struct) -> dict[str, object]:
    """Return a result for JSON, with a log's id as in `godwit log info`."""
    fields = msgspec.structs.asdict(result)
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}


@contextmanager
def _exclusive(folder: Path, work: str, *, may_be_missing: bool = False) -> Iterator[DataFolder]:
    """Lock a folder with a log for the duration of the block.

    With `may_be_missing`, a folder whose other files show that it had a log is accepted, with an empty file for the
    log.

    Raises:
        LogInUseError: A broker uses the folder.
        GodwitError: The folder has no log.
    """
    held = DataFolder(folder)
    path = held.log_path
    if may_be_missing and (read_witness(path) is not None or _size(_beside(path, "-wal"))):
        path.touch(mode=0o600)
    else:
        refuse_lone_wal(path)
        log_path(folder)  # raises if the folder has no log
    try:
        held.lock()
    except LogInUseError:
        raise LogInUseError(
            f"a broker uses {safe(str(folder))}, and {work} needs the log for itself; stop the broker, then try again"
        ) from None
    try:
        yield held
    finally:
        held.close()


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Create a folder for the block, and remove it again if the block fails."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        yield
        return
    except OSError as error:
        raise GodwitError(
            f"cannot create the folder {safe(str(path))}: {error.strerror}; choose another path"
        ) from error
    try:
        yield
    except BaseException:
        path.rmdir()
        raise


def _keep_damaged(damaged: Path) -> Path:
    """Link a damaged log and its WAL to a second name, and return that name."""
    kept = _free_name(damaged)
    try:
        os.link(damaged, kept)
        if _size(wal := _beside(damaged, "-wal")):
            os.link(wal, _beside(kept, "-wal"))
    except OSError as error:
        raise GodwitError(
            f"cannot keep {safe(str(damaged))} as {safe(kept.name)}: {error.strerror}; check the folder's permissions"
        ) from error
    return kept


def _free_name(path: Path) -> Path:
    for number in range(1, MAX_DAMAGED_FILES + 1):
        name = path.with_name(f"{path.name}.damaged" if number == 1 else f"{path.name}.damaged-{number}")
        if not os.path.lexists(name):
            return name
    raise GodwitError(f"{safe(str(path.parent))} already has {MAX_DAMAGED_FILES:,} damaged files; delete some")


def _beside(path: Path, end: str) -> Path:
    return path.with_name(f"{path.name}{end}")
