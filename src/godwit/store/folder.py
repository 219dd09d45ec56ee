"""The folder of a broker: its log, what is staged for it, the key of its resets, and a lock, so that it has one broker.

log.sqlite (-wal, -shm)   the log
log.sqlite-witness        how far the log was confirmed (godwit.store.witness)
log.sqlite.next           a log that is about to take its place: left by a command that was killed
stages/                   messages that a query has staged and not yet committed
reset-key                 proves to clients of the last run that this broker was restarted
reserve                   room on the disk that is given back at a start for which there would be none
lock                      locked while a broker works here; its content means nothing
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from godwit.errors import DiskError, LogInUseError
from godwit.limits import MIB
from godwit.store.draft import BESIDE, put, sync
from godwit.store.witness import read_witness, write_witness

LOCK_NAME: Final = "lock"
RESERVE_BYTES: Final = 1 * MIB
"""What SQLite needs to open a log, even if nothing is written to it, and a little more."""


class DataFolder:
    """`open` before anything else of it is used, `close` at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_path = path / "log.sqlite"
        self._next_log_path = path / "log.sqlite.next"
        self.stages_path = path / "stages"
        self._lock: int | None = None

    def open(self) -> None:
        """Make it if it is not there, keep others out, and bring to an end what somebody had begun who was killed."""
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
        """Give the reserve back if the disk is full, so that the log can be opened; else see that there is one.

        A broker whose disk is full must start: it serves what it has, and accepts messages once there is room.
        """
        reserve = self.path / "reserve"
        free_bytes = shutil.disk_usage(self.path).free
        if free_bytes < RESERVE_BYTES:
            reserve.unlink(missing_ok=True)
        elif free_bytes > 4 * RESERVE_BYTES and not reserve.exists():
            file = os.open(reserve, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(file, 0, RESERVE_BYTES)
            except OSError:  # the disk cannot set room aside
                reserve.unlink()
            finally:
                os.close(file)

    def lock(self) -> None:
        """Of a folder that is there, and in which a broker worked before: as `open`, but nothing else is made in it."""
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

    def replace_log(self, new: Path) -> None:
        """Put a file of this folder in the place of the log, which is gone with what SQLite has beside it.

        That takes several steps, and a log without its WAL, or with that of another, is a wrong one. So the file first
        gets a name by which `open` knows that they are to be done.
        """
        try:
            put(new, self._next_log_path)
            self._finish_replacing()
        except OSError as error:
            raise self._unusable(error) from error

    def _finish_replacing(self) -> None:
        if self._next_log_path.exists():
            if (record := read_witness(self.log_path)) is not None:  # it attests for a WAL that is about to go
                write_witness(self.log_path, record.log_id, record.confirmed, record.received_us)
            for ending in BESIDE:
                Path(f"{self.log_path}{ending}").unlink(missing_ok=True)
            sync(self.path)
            put(self._next_log_path, self.log_path)

    def reset_key(self, new_key: bytes) -> bytes:
        """The key of this folder; the new one becomes it if there is none."""
        path = self.path / "reset-key"
        try:
            if path.exists() and len(key := path.read_bytes()) == len(new_key):
                return key
            draft = path.with_suffix(".new")
            draft.touch(mode=0o600)
            with draft.open("wb") as file:
                file.write(new_key)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            raise self._unusable(error) from error
        return new_key

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _unusable(self, error: OSError) -> DiskError:
        return DiskError(
            f"the data folder {self.path} cannot be used: {error.strerror}. Check the path, its rights and the disk, "
            "or choose another one (--data)"
        )


def is_in_use(path: Path) -> bool:
    """Whether a broker works in the folder now, or may: that of somebody else cannot be asked."""
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


def _try_lock(lock: int, *, is_shared: bool) -> bool:
    """The system lets go of it when the process ends, however it does."""
    import fcntl  # not everywhere: a broker without a folder works without it

    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
