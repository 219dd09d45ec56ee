"""The witness: a small file beside the log that records, independently of SQLite, how far the log was confirmed.

SQLite ends the write-ahead log at the first frame whose checksum is wrong, and takes a missing one for an empty one. So
a flipped bit, a truncation or a deletion removes commits without an error, and their offsets would be given to other
messages. At every start the log is therefore compared with the witness, and the difference is repaired or reported.

    log.sqlite-witness    four slots of 512 bytes, each with one record, little-endian:

     0  4s   magic "GWWT"
     4  u8   format version, 1
     5  u8   flags. 1: the log was closed in order, and no commit followed. 2: a checkpoint is under way
     6  16s  log id
    22  16s  boot id of the machine (zeros where the system has none)
    38  u64  number of the record; of the valid ones the highest counts
    46  u64  confirmed: the log's next offset after the last finished commit
    54  u64  reserved: the next offset after the commit that is under way, else the same as confirmed
    62  u64  received_us: receive time of the newest message
    70  u32  frames: length of the write-ahead log after the last commit
    74  u32  backfilled: frames of it that are in log.sqlite as well
    78  8s   salts of the write-ahead log that these are frames of
    86  u32  CRC-32C of the bytes before

Slots 0 and 1 take a record before and after every commit, in turn, without a sync. They survive the end of the process,
and all but the last second or so of them a power failure. Slots 2 and 3 take records that are synced one at a time, so
that one of these is always intact: after every checkpoint, and once a second while there are commits. What a power
failure can hide is therefore limited: damage of the write-ahead log to commits of the last second before the failure.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, Literal, TypeAlias

import apsw
import msgspec
from crc32c import crc32c

from godwit.store.connection import SQLITE_SUFFIXES

SUFFIX: Final = "-witness"
COMPANIONS: Final = (*SQLITE_SUFFIXES, SUFFIX)
"""Suffixes of all files that may be beside a log."""
SLOT_BYTES: Final = 512
LOG_ID_BYTES: Final = 16

_RECORD: Final = struct.Struct("<4sBB16s16sQQQQII8s")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"GWWT"
_VERSION: Final = 1
_SLOTS: Final = 4
_FINAL: Final = 1
_CHECKPOINTING: Final = 2
_SALTS_AT: Final = 16
_SALTS_BYTES: Final = 8
_SYNCED: Final = 2
"""The first of the slots that are synced."""
_SYNC_FLAGS: Final = apsw.SQLITE_SYNC_NORMAL | apsw.SQLITE_SYNC_DATAONLY
_BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
_NO_BOOT: Final = bytes(16)


WalCondition: TypeAlias = Literal["complete", "needless", "short", "torn"]
"""Of a write-ahead log at a start.

needless: it is damaged, and all that was in it is in the log's file.
short: the last commits are missing from it; what is left is what the log was after an earlier commit.
torn: it is damaged, and what is left does not fit to the log's file.
"""


class WitnessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record; the fields are explained in the module's docstring."""

    log_id: bytes
    boot_id: bytes = _NO_BOOT
    number: int = 0
    confirmed: int = 0
    reserved: int = 0
    received_us: int = 0
    frames: int = 0
    backfilled: int = 0
    salts: bytes = bytes(_SALTS_BYTES)
    is_final: bool = False
    is_checkpointing: bool = False

    def is_of(self, log_id: bytes) -> bool:
        """Return whether it attests for the log with this id."""
        return self.log_id == log_id.ljust(LOG_ID_BYTES, b"\0")

    @property
    def is_exact(self) -> bool:
        """Return whether no commit can have followed the reserved one.

        True if the log was closed in order, or if the machine has run since: then no write was lost with the power.
        """
        return self.is_final or (self.boot_id != _NO_BOOT and self.boot_id == current_boot_id())

    def missing_after(self, log_id: bytes, next_offset: int) -> tuple[int, int] | None:
        """Return the range of offsets that were confirmed in a log and that it does not have any more, or None."""
        if not self.is_of(log_id) or next_offset >= self.confirmed:
            return None
        return next_offset, self.reserved

    def judge(self, salts: bytes, frames: int) -> WalCondition:
        """Judge a write-ahead log with these salts, of which SQLite accepts this number of frames.

        A damaged one is a shorter one to SQLite. What it lacks may be in the log's file already: then the older images
        of pages in it must not hide the newer ones there.
        """
        is_same = salts == self.salts
        if not self.frames or (is_same and frames >= self.frames):
            return "complete"
        if self.frames == self.backfilled and not self.is_checkpointing:
            return "needless" if is_same else "complete"
        if self.is_checkpointing or (is_same and frames < self.backfilled):
            return "torn"
        return "short"


class Witness:
    """The witness of a log that is open for writing. Errors of the disk are apsw.Error."""

    def __init__(self, log_path: Path, vfs: str | None) -> None:
        """Open the file, and create it if there is none.

        Args:
            log_path: The log's own file.
            vfs: Name of the SQLite file system that the log is on; None for that of the machine.
        """
        flags = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        # Opened as SQLite opens a WAL: with the rights of the log's file, and its first sync syncs the folder too.
        self._file = apsw.VFSFile(vfs or "", f"{log_path}{SUFFIX}", [flags, 0])
        data = self._file.xRead(_SLOTS * SLOT_BYTES, 0) if self._file.xFileSize() else b""
        self.found = newest(data)
        """What the last run left; None if there is nothing that can be believed."""
        self.is_damaged = self.found is None and any(data)
        self._boot_id = _NO_BOOT if vfs else current_boot_id()
        self._has_begun = False
        self._log_id = bytes(LOG_ID_BYTES)
        self._number = 0 if self.found is None else self.found.number
        self._confirmed = 0
        self._received_us = 0
        # The older one of each pair of slots is written next, so that a torn write spares the newer one.
        self._slot = _older(data, 0)
        self._synced_slot = _older(data, _SYNCED)
        self._frames = 0
        self._backfilled = 0
        self._salts = bytes(_SALTS_BYTES)
        self._wal_path = f"{log_path}-wal"
        self._vfs = vfs
        self._is_checkpointing = False
        self._is_unsynced = False

    def begin(self, log_id: bytes, frames: int) -> None:
        """Start to attest for this log, with this number of frames in its write-ahead log. A second call does nothing.

        The messages that were found in it are not confirmed by that: some may not have reached the disk yet.
        """
        if self._has_begun:
            return
        found = self.found
        if found is None or not found.is_of(log_id):
            found = WitnessRecord(log_id=log_id)
        self._log_id = log_id
        self._confirmed, self._received_us = found.confirmed, found.received_us
        # The write-ahead log need not be the one that the last record is about: that one may be lost with the power,
        # or may have been repaired. A record may only ask for frames that no power failure takes any more.
        if frames:
            _sync(self._wal_path, self._vfs)
        self._frames, self._salts = frames, read_salts(self._wal_path, self._vfs)
        if self._file.xFileSize() < _SLOTS * SLOT_BYTES:
            self._file.xWrite(bytes(_SLOTS * SLOT_BYTES), 0)  # so that no later write has to make the file longer
            self._file.xSync(apsw.SQLITE_SYNC_NORMAL)
        self._has_begun = True

    def adopt(self, log_id: bytes) -> None:
        """Attest for a log from now on that has taken over another id, and has no messages."""
        self._log_id = log_id
        self._confirmed = self._received_us = 0

    def reserve(self, end: int) -> None:
        """Record that the commit which begins now ends before this offset.

        Before every commit, whatever it changes: with it SQLite may begin the write-ahead log anew, and the record must
        not say then that the old one is needed, not even after a power failure.
        """
        if self._is_unsynced and 0 < self._frames == self._backfilled:
            self.sync()  # the end of a checkpoint, which could not be recorded when it came
        self._write_next(end)

    def confirm(self, end: int, received_us: int, frames: int) -> None:
        """Record that a commit is finished: the log's next offset, and the frames of the write-ahead log."""
        if self._backfilled == self._frames:  # SQLite may have begun the write-ahead log anew
            self._look_at_salts()
        self._confirmed = end
        self._received_us = received_us
        self._frames = frames
        self._is_unsynced = True
        self._write_next(end)

    def begin_checkpoint(self) -> None:
        """Record that SQLite is about to copy frames into the log's file."""
        self._is_checkpointing = True
        self._write_next(self._confirmed)

    def end_checkpoint(self, frames: int, backfilled: int) -> None:
        """Record the result of a checkpoint that came to its end."""
        self._is_checkpointing = False
        self._look_at_salts()
        self._frames = frames
        self._backfilled = backfilled
        self._is_unsynced = True
        self.sync()

    def _look_at_salts(self) -> None:
        salts = read_salts(self._wal_path, self._vfs)
        if salts != self._salts:
            self._salts = salts
            self._backfilled = 0

    def sync(self) -> None:
        """Bring the newest record to the disk, if it is not there yet."""
        if self._is_unsynced:
            self._write_synced(is_final=False)
            self._is_unsynced = False

    def close(self, *, is_final: bool) -> None:
        """Close the file. `is_final`: record before that the log was closed in order."""
        try:
            if is_final:
                self._write_synced(is_final=True)
        finally:
            self._file.xClose()

    def _write_next(self, reserved: int) -> None:
        self._write(self._slot, reserved)
        self._slot ^= 1

    def _write_synced(self, *, is_final: bool) -> None:
        self._write(_SYNCED + self._synced_slot, self._confirmed, is_final=is_final)
        self._file.xSync(_SYNC_FLAGS)
        self._synced_slot ^= 1  # only now: a record that did not get there is written to the same slot again

    def _write(self, slot: int, reserved: int, *, is_final: bool = False) -> None:
        self._number += 1
        flags = _FINAL * is_final | _CHECKPOINTING * self._is_checkpointing
        record = _RECORD.pack(
            _MAGIC, _VERSION, flags, self._log_id, self._boot_id, self._number, self._confirmed, reserved,
            self._received_us, self._frames, self._backfilled, self._salts,
        )  # fmt: skip
        self._file.xWrite(record + _CRC.pack(crc32c(record)), slot * SLOT_BYTES)


def _older(data: bytes, first: int) -> int:
    """Return which of two neighbouring slots holds the older record: 0 or 1."""
    one, two = (decode(data[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]) for slot in (first, first + 1))
    return int(one is not None and (two is None or two.number < one.number))


def newest(data: bytes) -> WitnessRecord | None:
    """Return the newest valid record in the bytes of a witness file, or None if there is none."""
    records = [decode(data[at : at + SLOT_BYTES]) for at in range(0, _SLOTS * SLOT_BYTES, SLOT_BYTES)]
    return max((record for record in records if record is not None), key=lambda record: record.number, default=None)


def decode(slot: bytes) -> WitnessRecord | None:
    """Return the record in a slot, or None if it is not what was written."""
    if len(slot) < _RECORD.size + _CRC.size:
        return None
    magic, version, flags, *values = _RECORD.unpack_from(slot)
    (crc,) = _CRC.unpack_from(slot, _RECORD.size)
    if magic != _MAGIC or version != _VERSION or crc != crc32c(slot[: _RECORD.size]):
        return None
    log_id, boot_id, number, confirmed, reserved, received_us, frames, backfilled, salts = values
    return WitnessRecord(
        log_id=log_id, boot_id=boot_id, number=number, confirmed=confirmed, reserved=reserved,
        received_us=received_us, frames=frames, backfilled=backfilled, salts=salts,
        is_final=bool(flags & _FINAL), is_checkpointing=bool(flags & _CHECKPOINTING),
    )  # fmt: skip


def read_witness(log_path: Path, vfs: str | None = None) -> WitnessRecord | None:
    """Return the newest record of the witness of a log, or None if there is none that can be believed."""
    return newest(_read(f"{log_path}{SUFFIX}", vfs, _SLOTS * SLOT_BYTES, 0))


def is_unreadable(log_path: Path) -> bool:
    """Return whether there is a witness that this process may not read, or that the disk fails to read."""
    try:
        Path(f"{log_path}{SUFFIX}").read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def count_frames(connection: apsw.Connection) -> int:
    """Return how many frames of the write-ahead log SQLite accepts. The connection must have read something before."""
    return max(connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0], 0)


def read_salts(wal_path: str, vfs: str | None) -> bytes:
    """Return the salts in the header of a write-ahead log; zeros if there is none."""
    return _read(wal_path, vfs, _SALTS_BYTES, _SALTS_AT).ljust(_SALTS_BYTES, b"\0")


def _read(path: str, vfs: str | None, size_bytes: int, at: int) -> bytes:
    """Return a piece of a file, or less if there is less."""
    if vfs is None:  # SQLite would refuse it if the log's own file is missing
        try:
            with Path(path).open("rb") as plain:
                plain.seek(at)
                return plain.read(size_bytes)
        except OSError:
            return b""
    try:
        file = apsw.VFSFile(vfs, path, [apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READONLY, 0])
    except apsw.Error:
        return b""
    try:
        return file.xRead(size_bytes, at)
    except apsw.Error:
        return b""
    finally:
        file.xClose()


def _sync(path: str, vfs: str | None) -> None:
    file = apsw.VFSFile(vfs or "", path, [apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE, 0])
    try:
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
    finally:
        file.xClose()


def write_witness(log_path: Path, log_id: bytes, confirmed: int, received_us: int) -> None:
    """Attest for a log whose write-ahead log is not needed, or will not be any more in a moment."""
    witness = Witness(log_path, None)
    try:
        witness.begin(log_id, 0)
        witness.confirm(confirmed, received_us, 0)
    except BaseException:
        witness.close(is_final=False)
        raise
    witness.close(is_final=True)


def current_boot_id() -> bytes:
    """Return the id of the machine's present run, or zeros where the system does not have one."""
    try:
        text = _BOOT_ID_PATH.read_text(encoding="ascii")
        boot_id = bytes.fromhex(text.strip().replace("-", ""))
    except (OSError, ValueError):
        return _NO_BOOT
    return boot_id if len(boot_id) == len(_NO_BOOT) else _NO_BOOT
