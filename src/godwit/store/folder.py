"""The data folder of a broker, and the lock that ensures that only one broker uses it.

log.sqlite (-wal, -shm)   the log
log.sqlite-witness        how far the log was confirmed (godwit.store.witness)
log.sqlite.next           a log that replaces log.sqlite: left by a command that was killed meanwhile
stages/                   messages that a query has staged and not yet committed
reset-key                 proves to clients of the last run that this broker was restarted
reserve                   disk space that is released when the disk is full at a start
lock                      locked while a broker uses the folder; it contains a mark once there was a log

Until a broker has opened its log for the first time, a folder has `lock` without the mark, `reset-key`, `stages` and
`reserve` at most, and an empty log: a start that is killed before that must not make the folder unusable.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from godwit.errors import DiskError, LogDamagedError, LogInUseError
from godwit.limits import MIB
from godwit.store.atomic_file import move_into_place, sync, write_bytes
from godwit.store.connection import SQLITE_SUFFIXES
from godwit.store.sqlite_pages import is_whole_file
from godwit.store.witness import read_witness, write_witness

LOCK_NAME: Final = "lock"
RESET_KEY_NAME: Final = "reset-key"
STAGES_NAME: Final = "stages"
LOG_FILES: Final = "log.sqlite*, stages and lock"
"""Files of a folder that belong to its log, for messages. The other ones are keys and settings, which must be kept."""
RESERVE_BYTES: Final = 1 * MIB
"""Space that SQLite needs to open a log, even without writing to it, and a little more."""
_LOG_MARK: Final = b"this folder has had a log\n"


class DataFolder:
    """A data folder. Call `open` before anything else, and `close` at the end. Errors are DiskError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_path = path / "log.sqlite"
        self._next_log_path = path / "log.sqlite.next"
        self.stages_path = path / STAGES_NAME
        self._lock: int | None = None

    def open(self) -> None:
        """Create the folder if needed, take its lock, and finish an interrupted replacement of the log.

        Raise LogInUseError if another broker holds the lock.
        """
        try:
            if not self.path.is_dir():
                self.path.mkdir(mode=0o700, parents=True)
                sync(self.path.parent)
        except FileExistsError:
            raise DiskError(f"{self.path} is a file: give the folder that the log is in, or is to be in") from None
        except OSError as error:
            raise self._unusable(error) from error
        self.lock()
        try:
            self.stages_path.mkdir(mode=0o700, exist_ok=True)
            self._manage_reserve()
        except OSError as error:
            self.close()
            raise self._unusable(error) from error

    def _manage_reserve(self) -> None:
        """Release the reserve if the disk is full, so that the log can be opened; else make sure that it exists.

        A broker whose disk is full must start: it serves its log, and accepts messages once there is room.
        """
        reserve = self.path / "reserve"
        free_bytes = shutil.disk_usage(self.path).free
        if free_bytes < RESERVE_BYTES:
            reserve.unlink(missing_ok=True)
        elif free_bytes > 4 * RESERVE_BYTES and not (reserve.exists() and reserve.stat().st_size >= RESERVE_BYTES):
            file = os.open(reserve, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(file, 0, RESERVE_BYTES)
            except OSError:  # the file system cannot reserve space
                reserve.unlink()
            finally:
                os.close(file)

    def lock(self) -> None:
        """Take the lock of an existing data folder, as `open` does, without creating anything else in it."""
        try:
            lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        if not _try_lock(lock, is_shared=False):
            os.close(lock)
            raise LogInUseError(
                f"another broker works in the folder {self.path}: stop it, or give this one its own (--data)"
            )
        self._lock = lock
        try:
            self._finish_replacing()
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        except LogDamagedError:
            self.close()
            raise

    def mark_log(self) -> None:
        """Record that this folder has a log now. The folder must be locked; see `sign_of_log`."""
        assert self._lock is not None
        with suppress(OSError):  # a full disk must not prevent the start
            if os.pread(self._lock, len(_LOG_MARK), 0) != _LOG_MARK:
                os.pwrite(self._lock, _LOG_MARK, 0)
                os.fsync(self._lock)

    def replace_log(self, new: Path) -> None:
        """Replace the log, and the files that SQLite has beside it, by another file of this folder.

        This takes several steps, and a log without its WAL, or with that of another log, is invalid. So the file is
        first given a name by which `open` recognizes an interrupted replacement and finishes it.
        """
        try:
            move_into_place(new, self._next_log_path)
            self._finish_replacing()
        except OSError as error:
            raise self._unusable(error) from error

    def _finish_replacing(self) -> None:
        if self._next_log_path.exists():
            if not is_whole_file(self._next_log_path):  # it was when it got this name
                raise LogDamagedError(
                    f"{self._next_log_path}, which was to replace {self.log_path.name}, is damaged. Move it away to "
                    f"continue with {self.log_path.name}, or restore a backup"
                )
            if (record := read_witness(self.log_path)) is not None:  # it describes a WAL that is about to be deleted
                write_witness(self.log_path, record.log_id, record.confirmed, record.received_us)
            for suffix in SQLITE_SUFFIXES:
                Path(f"{self.log_path}{suffix}").unlink(missing_ok=True)
            sync(self.path)
            move_into_place(self._next_log_path, self.log_path)

    def reset_key(self, new_key: bytes) -> bytes:
        """Return the key of this folder, which becomes `new_key` if there is none."""
        path = self.path / RESET_KEY_NAME
        try:
            if path.exists() and len(key := path.read_bytes()) == len(new_key):
                return key
            write_bytes(path, new_key)
        except OSError as error:
            raise self._unusable(error) from error
        return new_key

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _unusable(self, error: OSError) -> DiskError:
        return DiskError(
            f"the data folder {self.path} cannot be used: {error.strerror}. Check the path, its rights and the disk, "
            "or choose another one (--data)"
        )


def is_in_use(path: Path) -> bool:
    """Return whether a broker uses the folder, or may use it: without permissions this is unknown."""
    try:
        lock = os.open(path / LOCK_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:
        return not _try_lock(lock, is_shared=True)
    finally:
        os.close(lock)


def is_data_folder(path: Path) -> bool:
    """Return whether a broker has worked in this folder: it is not a backup, or a copy of a log alone."""
    return os.path.lexists(path / RESET_KEY_NAME) or _has_mark(path)


def sign_of_log(path: Path) -> str | None:
    """Return the name of a file beside a missing log that is only created after the log; None without one.

    The file of a node of a cluster may be created again, because its offsets are in the records of the cluster: only a
    broker that is alone marks its folder. A log whose witness is there has a better sign: see `refuse_missing`.
    """
    if _has_mark(path.parent):
        return LOCK_NAME
    signs = [*path.parent.glob(f"{path.name}*.damaged*"), *(path.parent / STAGES_NAME).glob("*.stage")]
    return min((str(sign.relative_to(path.parent)) for sign in signs), default=None)


def _has_mark(folder: Path) -> bool:
    try:
        return (folder / LOCK_NAME).read_bytes().startswith(_LOG_MARK)
    except OSError:
        return False


def _try_lock(lock: int, *, is_shared: bool) -> bool:
    """Try to take the lock, which the system releases when the process ends."""
    import fcntl  # missing on Windows, where a broker without a data folder works

    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
