"""A simulated disk for SQLite: the file system of one machine, in memory, as an apsw VFS that can lose writes.

Written data is visible to every later read, but durable only after a sync. A power cut decides for each sector written
since the last sync whether it has the old content, the new content or garbage: writes are torn, lost, or seem
reordered. A killed process loses no written data. The same holds for the folder: a created or deleted file may be back
in its old state until the folder is synced, which SQLite requests with a new journal or WAL.

Two kinds of faults: with `die_in` the machine dies during a write or a sync, of which nothing, a part or all takes
effect; with `trouble` writes or syncs fail while the process runs on. Data of a failed sync may be lost for good,
although it can still be read, as on Linux.

Only one connection may be open at a time, and it needs `PRAGMA locking_mode=EXCLUSIVE`: a VFS in Python has no shared
memory.
"""

from __future__ import annotations

from itertools import count, pairwise
from random import Random
from typing import Final, Literal, TypeAlias

import apsw

Trouble: TypeAlias = Literal["full", "write", "sync"]
"""No file can grow; every write fails; every sync fails."""

Damage: TypeAlias = Literal["delete", "truncate", "flip", "zeros", "garbage"]
"""How a file is changed externally: deleted, truncated, or with a bit, its end or a sector overwritten."""
DAMAGES: Final[tuple[Damage, ...]] = ("delete", "truncate", "flip", "zeros", "garbage")

SECTOR_BYTES: Final = 512
SURVIVING_SHARES: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
"""A power cut preserves one of these shares of the unsynced data."""
GARBAGE: Final = 0.05
"""The share of lost sectors that contain garbage, because they were being written."""

_JOURNALS: Final = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_names: Final = count()


class DiedError(BaseException):
    """The machine or the process died during a call; no code after that call takes effect.

    It is not an Exception, so that error handlers do not catch it. SQLite may replace it by an error of its own, so
    check the disk's `is_dead`.
    """


class _File:
    """The visible content, the durable content, and the writes between the two in their order."""

    __slots__ = ("has_lost_writes", "safe", "seen", "unsafe")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.safe = bytearray()
        self.unsafe: list[tuple[int, bytes | None]] = []
        """Offset and data; without data: truncated at the offset."""
        self.has_lost_writes = False
        """Some visible data will never be made durable by a sync."""

    def write(self, data: bytes, offset: int) -> None:
        _change(self.seen, offset, data)
        self.unsafe.append((offset, data))

    def truncate(self, size_bytes: int) -> None:
        _change(self.seen, size_bytes, None)
        self.unsafe.append((size_bytes, None))

    def sync(self) -> None:
        if self.unsafe:  # SQLite repeats the failed writes from the same offset on
            self.has_lost_writes = False
        for offset, data in self.unsafe:
            _change(self.safe, offset, data)
        self.unsafe.clear()

    def fail_to_sync(self, rng: Random) -> None:
        """Fail a sync: some writes remain visible but are never made durable; the others are durable."""
        self.unsafe = [one for one in self.unsafe if one[1] is None or rng.random() < 0.5]
        self.sync()
        self.has_lost_writes = True

    def lose(self, rng: Random, kept: float) -> None:
        """Apply a power cut: keep some of the writes since the last sync."""
        for offset, data in self.unsafe:
            if data is None:
                if rng.random() < kept:
                    _change(self.safe, offset, None)
                continue
            for start, end in _sectors(offset, len(data)):
                drawn = rng.random()
                if drawn < kept:
                    _change(self.safe, offset + start, data[start:end])
                elif drawn < kept + (1.0 - kept) * GARBAGE:
                    _change(self.safe, offset + start, rng.randbytes(end - start))
        self.unsafe.clear()
        self.seen = bytearray(self.safe)
        self.has_lost_writes = False


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is not None:
        content[offset : offset + len(data)] = data


def _sectors(offset: int, size_bytes: int) -> list[tuple[int, int]]:
    """Return the parts of a write that lie in one sector each: begin and end, relative to the begin of the write."""
    first = SECTOR_BYTES - offset % SECTOR_BYTES
    cuts = [0, *range(first, size_bytes, SECTOR_BYTES), size_bytes]
    return list(pairwise(cuts))


class Disk(apsw.VFS):
    """All files of one machine. Connections select it by `vfs_name`.

    Faults: die_in, die, kill, cut_power, trouble, rot, damage, restore. Queries: is_dead, writes, syncs, sizes, copy.
    """

    def __init__(self, rng: Random) -> None:
        self.vfs_name = f"simulated disk {next(_names)}"
        self.trouble: Trouble | None = None
        self.is_dead = False
        self.writes = 0
        self.syncs = 0
        self.generation = 0
        """Handles of an earlier generation have no effect."""
        self._rng = rng
        self._calls_left: int | None = None
        self._seen: dict[str, _File] = {}
        self._safe: dict[str, _File] = {}
        super().__init__(self.vfs_name, "")

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes of the existing files in bytes."""
        return {name: len(file.seen) for name, file in self._seen.items()}

    @property
    def has_lost_writes(self) -> bool:
        """Return whether, after a failed sync, data can be read that will never be durable.

        SQLite overwrites it with the next commit. But if its process is killed before that, the next process takes it
        for a part of the log. Until that process has copied all of it into the file, a power cut does damage that no
        store built on SQLite can prevent.
        """
        return any(file.has_lost_writes for file in self._seen.values())

    # -- faults -------------------------------------------------------------------------------------------------------

    def die_in(self, calls: int | None) -> None:
        """Let the machine die during the change after this number of changes; None cancels it."""
        self._calls_left = calls

    def die(self) -> None:
        """Let the machine die: no further change takes effect. Close open files, then call `kill` or `cut_power`."""
        self.is_dead = True

    def kill(self) -> None:
        """End the process only: all written data is there for the next one."""
        self.is_dead = False
        self.generation += 1
        self._calls_left = None

    def cut_power(self) -> None:
        """Cut the power and restart with the data that the disk preserved."""
        kept = self._rng.choice(SURVIVING_SHARES)
        names = sorted(self._seen.keys() | self._safe.keys())
        after = {name: self._rng.choice((self._seen.get(name), self._safe.get(name))) for name in names}
        self._seen = {name: file for name, file in after.items() if file is not None}
        self._safe = dict(self._seen)
        for file in self._seen.values():
            file.lose(self._rng, kept)
        self.kill()

    def restore(self, copy: Disk) -> None:
        """Replace all files by those of a copy, which is not used any more. No file may be open."""
        self._seen = copy._seen
        self.sync_folder()

    def rot(self, path: str, needle: bytes) -> bool:
        """Flip one bit wherever the file contains the needle.

        Return False, without a change, if the needle is missing or also in another file.
        """
        places = [name for name, file in self._seen.items() if needle in file.safe or needle in file.seen]
        if places != [path]:
            return False
        file = self._seen[path]
        byte, bit = self._rng.randrange(len(needle)), self._rng.randrange(8)
        for content in (file.safe, file.seen):
            while (at := content.find(needle)) >= 0:
                content[at + byte] ^= 1 << bit
        return True

    def copy(self, rng: Random) -> Disk:
        """Return a disk on which all data visible on this one is durable."""
        other = Disk(rng)
        for name, file in self._seen.items():
            other._seen[name] = copied = _File()
            copied.write(bytes(file.seen), 0)
            copied.sync()
        other.sync_folder()
        return other

    def damage(self, path: str, damage: Damage) -> None:
        """Damage a file that is not empty."""
        content = self._seen[path].seen
        place = self._rng.randrange(len(content))
        match damage:
            case "delete":
                del self._seen[path]
            case "truncate":
                del content[place:]
            case "flip":
                content[place] ^= 1 << self._rng.randrange(8)
            case "zeros":
                content[place:] = bytes(len(content) - place)
            case "garbage":
                content[place : place + SECTOR_BYTES] = self._rng.randbytes(len(content[place : place + SECTOR_BYTES]))

    def change(self, kind: Literal["write", "sync"]) -> float | None:
        """Account for a change that is about to be made; return the share of it that takes effect. Then call `may_die`.

        Return None if the machine is dead: the change has no effect, without an error, so that SQLite can close its
        files.
        """
        if self.is_dead:
            return None
        self.writes += kind == "write"
        self.syncs += kind == "sync"
        if self._calls_left is None:
            return 1.0
        self._calls_left -= 1
        if self._calls_left >= 0:
            return 1.0
        self.is_dead = True
        return self._rng.choice((0.0, self._rng.random(), 1.0))

    def may_die(self) -> None:
        """Raise DiedError if the machine died during this call."""
        if self.is_dead:
            raise DiedError

    def forget(self, file: _File) -> None:
        file.fail_to_sync(self._rng)

    def sync_folder(self) -> None:
        self._safe = dict(self._seen)

    # -- the interface for SQLite -------------------------------------------------------------------------------------

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        return name

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        return pathname in self._seen

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        share = self.change("write")
        if share is None:
            return
        if filename not in self._seen:
            raise apsw.exception_for(apsw.SQLITE_IOERR_DELETE_NOENT)
        if share > 0.5:
            del self._seen[filename]
            if syncdir:
                self.sync_folder()
        self.may_die()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _Handle:  # type: ignore[override]  # noqa: N802
        flags[1] = flags[0]
        if name is None:
            return _Handle(self, _File(), syncs_folder=False)
        path = name if isinstance(name, str) else name.filename()
        if path not in self._seen:
            if self.is_dead:
                return _Handle(self, _File(), syncs_folder=False)
            if self.trouble in ("full", "write") or not flags[0] & apsw.SQLITE_OPEN_CREATE:
                raise apsw.CantOpenError(f"{path} cannot be made")
            self._seen[path] = _File()
        may_be_new = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & _JOURNALS)
        return _Handle(self, self._seen[path], syncs_folder=may_be_new)


class _Handle:
    """One open file of one process."""

    def __init__(self, disk: Disk, file: _File, *, syncs_folder: bool) -> None:
        self._disk = disk
        self._file = file
        self._generation = disk.generation
        self._syncs_folder = syncs_folder

    def _change(self, kind: Literal["write", "sync"]) -> float | None:
        return self._disk.change(kind) if self._generation == self._disk.generation else None

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        data = bytes(data)
        share = self._change("write")
        if share is None:
            return
        trouble = self._disk.trouble
        if trouble == "full" and offset + len(data) > len(self._file.seen):
            raise apsw.FullError("the simulated disk is full")
        if trouble == "write":
            raise apsw.exception_for(apsw.SQLITE_IOERR_WRITE)
        self._file.write(data[: round(share * len(data))], offset)
        self._disk.may_die()

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        share = self._change("write")
        if share is None:
            return
        if self._disk.trouble == "write":
            raise apsw.exception_for(apsw.SQLITE_IOERR_TRUNCATE)
        if share > 0.5:
            self._file.truncate(newsize)
        self._disk.may_die()

    def xSync(self, flags: int) -> None:  # noqa: N802
        share = self._change("sync")
        if share is None:
            return
        if self._disk.trouble == "sync":
            self._disk.forget(self._file)
            raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)
        if share > 0.5:
            self._file.sync()
            if self._syncs_folder:
                self._disk.sync_folder()
        self._disk.may_die()

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(self._file.seen[offset : offset + amount])

    def xFileSize(self) -> int:  # noqa: N802
        return len(self._file.seen)

    def xLock(self, level: int) -> None:  # noqa: N802
        """Do nothing: there is only one connection at a time."""

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """Do nothing, as in xLock."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:  # noqa: N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        """Declare SQLite's default assumption: a write changes no bytes outside its range."""
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def xClose(self) -> None:  # noqa: N802
        """Do nothing: no resources are held."""
