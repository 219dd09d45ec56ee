"""A disk in memory for SQLite, which loses what it may lose: the file system of one invented machine, as an apsw VFS.

What a process has written is seen by every later read, but it is safe only after a sync. A power cut decides for each
sector that was written since whether it has the old content, the new one or garbage, so that writes are torn, lost,
and seem to have happened in another order. A killed process loses nothing that it has written. The same holds for the
folder: a file that was made or deleted may be back as it was until the folder is synced, which SQLite asks for with a
new journal or WAL.

Two ways to spoil a process's day: `die_in` lets the machine die in the midst of a write or a sync, of which there is
then nothing, a part or all; `trouble` lets writes or syncs fail while everything goes on. What a failed sync was
meant to save may be lost for good, though it can still be read: so do Linux and others.

There is one connection at a time, and it needs `PRAGMA locking_mode=EXCLUSIVE`: a VFS in Python has no shared memory.
"""

from __future__ import annotations

from itertools import count, pairwise
from random import Random
from typing import Final, Literal, TypeAlias

import apsw

Trouble: TypeAlias = Literal["full", "write", "sync"]
"""No file can grow; no write works; no sync does."""

Damage: TypeAlias = Literal["delete", "truncate", "flip", "zeros", "garbage"]
"""What happens to a file behind everybody's back: it goes, is cut, or has a bit, its end or a sector changed."""
DAMAGES: Final[tuple[Damage, ...]] = ("delete", "truncate", "flip", "zeros", "garbage")

SECTOR_BYTES: Final = 512
KEPT: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
"""A power cut spares one of these shares of what was not synced."""
GARBAGE: Final = 0.05
"""A sector that was not spared holds nonsense this often: it was being written."""

_JOURNALS: Final = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_names: Final = count()


class DiedError(BaseException):
    """The machine, or the process, is gone in the midst of a call: nothing behind that call happens any more.

    No Exception, so that nobody who handles errors takes it for one. SQLite may still make an error of its own of it:
    whether the disk `is_dead` is what counts.
    """


class _File:
    """What processes see, what is safe, and the writes that make the difference, in their order."""

    __slots__ = ("has_forgotten", "safe", "seen", "unsafe")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.safe = bytearray()
        self.unsafe: list[tuple[int, bytes | None]] = []
        """Where and what; without a what: cut off there."""
        self.has_forgotten = False
        """Something can be seen that no sync will ever save."""

    def write(self, data: bytes, offset: int) -> None:
        _change(self.seen, offset, data)
        self.unsafe.append((offset, data))

    def truncate(self, size_bytes: int) -> None:
        _change(self.seen, size_bytes, None)
        self.unsafe.append((size_bytes, None))

    def sync(self) -> None:
        if self.unsafe:  # SQLite writes what failed once more, from the same place on
            self.has_forgotten = False
        for offset, data in self.unsafe:
            _change(self.safe, offset, data)
        self.unsafe.clear()

    def fail_to_sync(self, rng: Random) -> None:
        """Some of the writes are forgotten, though they can still be seen; the others are safe."""
        self.unsafe = [one for one in self.unsafe if one[1] is None or rng.random() < 0.5]
        self.sync()
        self.has_forgotten = True

    def lose(self, rng: Random, kept: float) -> None:
        """What is left after a power cut."""
        for offset, data in self.unsafe:
            if data is None:
                if rng.random() < kept:
                    _change(self.safe, offset, None)
                continue
            for start, end in _sectors(offset, len(data)):
                fate = rng.random()
                if fate < kept:
                    _change(self.safe, offset + start, data[start:end])
                elif fate < kept + (1.0 - kept) * GARBAGE:
                    _change(self.safe, offset + start, rng.randbytes(end - start))
        self.unsafe.clear()
        self.seen = bytearray(self.safe)
        self.has_forgotten = False


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is not None:
        content[offset : offset + len(data)] = data


def _sectors(offset: int, size_bytes: int) -> list[tuple[int, int]]:
    """The parts of a write that lie in one sector each: begin and end, counted from the begin of the write."""
    first = SECTOR_BYTES - offset % SECTOR_BYTES
    cuts = [0, *range(first, size_bytes, SECTOR_BYTES), size_bytes]
    return list(pairwise(cuts))


class Disk(apsw.VFS):
    """All files of one machine. `vfs_name` is what a connection to one of them names.

    Feed: die_in, die, kill, cut_power, trouble, rot, damage, put_back. Look: is_dead, writes, syncs, sizes, copy.
    """

    def __init__(self, rng: Random) -> None:
        self.vfs_name = f"simulated disk {next(_names)}"
        self.trouble: Trouble | None = None
        self.is_dead = False
        self.writes = 0
        self.syncs = 0
        self.life = 0
        """Handles of an earlier life lead nowhere."""
        self._rng = rng
        self._calls_left: int | None = None
        self._seen: dict[str, _File] = {}
        self._safe: dict[str, _File] = {}
        super().__init__(self.vfs_name, "")

    @property
    def sizes(self) -> dict[str, int]:
        """The files that are there, in bytes."""
        return {name: len(file.seen) for name, file in self._seen.items()}

    @property
    def has_forgotten(self) -> bool:
        """After a failed sync: there is something that can be read and will never be safe.

        SQLite writes over it with the next commit. But if its process is killed before that, the next one takes it for
        a part of the log, and until that one has written all of it into the file a power cut does harm that no store
        built on SQLite can help.
        """
        return any(file.has_forgotten for file in self._seen.values())

    # -- what befalls it ----------------------------------------------------------------------------------------------

    def die_in(self, calls: int | None) -> None:
        """So many calls that change something still work, the next one is the last; None: nothing is planned."""
        self._calls_left = calls

    def die(self) -> None:
        """Nothing of what is under way happens any more; let go of what is open, then comes `kill` or `cut_power`."""
        self.is_dead = True

    def kill(self) -> None:
        """The process is gone, the machine is not: what was written is there for the next one."""
        self.is_dead = False
        self.life += 1
        self._calls_left = None

    def cut_power(self) -> None:
        """The machine is gone, and comes back with what its disk has kept."""
        kept = self._rng.choice(KEPT)
        names = sorted(self._seen.keys() | self._safe.keys())
        after = {name: self._rng.choice((self._seen.get(name), self._safe.get(name))) for name in names}
        self._seen = {name: file for name, file in after.items() if file is not None}
        self._safe = dict(self._seen)
        for file in self._seen.values():
            file.lose(self._rng, kept)
        self.kill()

    def put_back(self, copy: Disk) -> None:
        """Replace all files by those of a copy, which is not used any more. Nothing may be open."""
        self._seen = copy._seen
        self.sync_folder()

    def rot(self, path: str, needle: bytes) -> bool:
        """A byte changes wherever the file has the needle. False, and nothing happens, if only others have it."""
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
        """Return a disk that has safely what processes see on this one."""
        other = Disk(rng)
        for name, file in self._seen.items():
            other._seen[name] = copied = _File()
            copied.write(bytes(file.seen), 0)
            copied.sync()
        other.sync_folder()
        return other

    def damage(self, path: str, damage: Damage) -> None:
        """Spoil a file that is not empty."""
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
        """Somebody is about to change something. Gives how much of that happens; then `may_die`.

        None: that somebody is dead. What the dead do comes to nothing, and they are not told: SQLite closes its files
        in peace.
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
        """Ends the call that was the last."""
        if self.is_dead:
            raise DiedError

    def forget(self, file: _File) -> None:
        file.fail_to_sync(self._rng)

    def sync_folder(self) -> None:
        self._safe = dict(self._seen)

    # -- what SQLite asks ---------------------------------------------------------------------------------------------

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
        self._life = disk.life
        self._syncs_folder = syncs_folder

    def _change(self, kind: Literal["write", "sync"]) -> float | None:
        return self._disk.change(kind) if self._life == self._disk.life else None

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
        """There is one connection at a time."""

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """As xLock."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:  # noqa: N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        """As SQLite takes any disk: a write changes no bytes beside its own."""
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def xClose(self) -> None:  # noqa: N802
        """Nothing is held."""
