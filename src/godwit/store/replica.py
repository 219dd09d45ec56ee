"""A log's file as a replica: it is made of the steps of a replicated log, and stores how far it has followed them.

A step is one record of the cluster that counts (godwit.cluster.records): blocks and state changes, a cut, with which
retention deletes messages, or a claim, with which a broker becomes the active one. Steps are applied in order, many in
one transaction, together with the place behind the last one. All files at one place are therefore equal, row by row.

The place is a row of the table `meta`, with the key `place`: a MessagePack array of the fields of Place. Later versions
may add fields at its end, and have to leave `format` where it is: a program that finds a newer format there refuses the
file, whatever the rest is.

A replica that was restored from an older copy is not damaged: it continues from its own place. So the comparison with
the witness, which would declare the missing messages lost, is left out when it is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import apsw
import msgspec

from godwit.errors import LogDamagedError, LogVersionError, StorageError
from godwit.store.block import BlockRow
from godwit.store.connection import translate_errors
from godwit.store.port import Change, Entry
from godwit.store.reader import BlockScanner, EpochRow, LogReader, insert_epoch
from godwit.store.retention import RetentionCut, apply_cut
from godwit.store.schema import PLACE, QUERIES
from godwit.store.sqlite import SqliteStore
from godwit.store.state import LogMeta, apply_changes, has_valid_checksum, store_meta, with_checksum
from godwit.store.witness import Witness
from godwit.wire.epochs import Epoch

FORMAT: Final = 3
"""The version of the records that this program writes and applies. Claims and places name it."""
FIRST_STORED_FORMAT: Final = 2
"""The version while places did not name it."""
_PLACE_BYTES: Final = 256
"""Limit of a stored place."""
_FORMAT_INDEX: Final = 6
"""Of the format in a place."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """How far records were followed: behind the last whole record that counts. Zeros before the first one."""

    position: int = 0
    """The position in the replicated log of that record's last part."""
    epoch: int = 0
    """Of the last claim that counts."""
    number: int = 0
    """How many parts count, up to this one."""
    link: int = 0
    """The checksum of that last part."""
    writer: bytes = b""
    """The id of the epoch of the log (godwit.wire.epochs) that the last claim began."""
    is_resigned: bool = False
    """Whether the broker of the last claim has resigned, so that only a claim can follow."""
    format: int = FIRST_STORED_FORMAT
    """The newest version of records up to this place."""


class AppendStep(msgspec.Struct, frozen=True):
    """Blocks and state changes of one commit of the active broker."""

    rows: list[BlockRow]
    changes: list[Change]


class ClaimStep(msgspec.Struct, frozen=True):
    """A broker becomes the active one and begins an epoch."""

    meta: LogMeta
    writer: bytes
    next_offset: int
    """Where the log ends for that broker."""


Step: TypeAlias = AppendStep | ClaimStep | RetentionCut


class ForeignLogError(StorageError):
    """A step does not fit to this file: it belongs to another log, or to another history of this one."""


class ReplicaStore(SqliteStore):
    """A durable log that changes by `apply` only."""

    is_replica: ClassVar = True

    def __init__(
        self, path: Path, connection: apsw.Connection, witness: Witness, files: Sequence[Path], epoch_id: bytes
    ) -> None:
        """Use `open`."""
        super().__init__(path, connection, witness, files, epoch_id)
        self.place = _load_place(connection, path)
        """How far this file has followed the cluster. It is durable."""
        self._begin_epoch(self.place)

    @property
    def meta(self) -> LogMeta:
        """The properties of the log that never change."""
        return LogMeta(self.log_id, self.created_us, self.log_secret)

    @property
    def has_content(self) -> bool:
        """Whether the file has, or has had, messages or state."""
        with translate_errors(self.path, "read"):
            return self._next_offset > 0 or bool(self.connection.execute(QUERIES["select_has_state"]).get)

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        """Raise TypeError: nothing may be written that is not in the replicated log."""
        raise TypeError("a replica is changed by apply only")

    def apply(self, steps: Sequence[Step], place: Place) -> None:
        """Apply steps in one transaction, after which the file is at this place. They are durable when this returns.

        Raises:
            ForeignLogError: A step does not fit; nothing was changed.
            StorageError: The disk failed; nothing was changed.
        """
        meta, writer, has_begun = self.meta, self._epoch_id, self._has_begun
        begun: list[Epoch] = []
        next_offset, until_us = self._next_offset, self.last_received_us
        ends = [step.rows[-1].end_offset for step in steps if isinstance(step, AppendStep) and step.rows]
        with self._changing(max([next_offset, *ends])) as connection:
            for step in steps:
                if isinstance(step, ClaimStep):
                    meta = self._adopt(connection, step, meta, next_offset)
                    writer, has_begun = step.writer, False
                    continue
                if isinstance(step, RetentionCut):
                    apply_cut(connection, step, meta.stamp)
                    continue
                if step.rows:
                    if step.rows[0].first_offset != next_offset:
                        raise ForeignLogError(
                            f"the log {self.path} ends at offset {next_offset:,}, and the cluster continues at "
                            f"{step.rows[0].first_offset:,}: seed this node from a backup of another one"
                        )
                    connection.executemany(QUERIES["insert_block"], map(msgspec.structs.astuple, step.rows))
                    if not has_begun:
                        has_begun = True
                        insert_epoch(connection, EpochRow(next_offset, writer, step.rows[0].received_us))
                        begun.append(Epoch(writer, next_offset))
                    next_offset, until_us = step.rows[-1].end_offset, step.rows[-1].until_us
                apply_changes(connection, step.changes)
            connection.execute(QUERIES["replace_meta"], with_checksum((PLACE, msgspec.msgpack.encode(place))))
        if meta.log_id != self.log_id:
            self._witness.adopt(meta.log_id)
        self.log_id, self.created_us, self.log_secret = meta.log_id, meta.created_us, meta.stamp
        self._epoch_id, self._has_begun = writer, has_begun
        self._epochs += begun
        self._next_offset, self.last_received_us = next_offset, until_us
        self.place = place
        self._attest()

    def _adopt(self, connection: apsw.Connection, claim: ClaimStep, meta: LogMeta, next_offset: int) -> LogMeta:
        """Check that a claim is of this log. An empty file becomes the log of the cluster."""
        if claim.meta == meta:
            if claim.next_offset == next_offset:
                return meta
            raise ForeignLogError(
                f"the log {self.path} ends at offset {next_offset:,}, and that of the cluster at "
                f"{claim.next_offset:,} at the same place: seed this node from a backup of another one"
            )
        if next_offset or self.place.number:
            raise ForeignLogError(
                f"the log {self.path} has the id {meta.log_id.hex()}, and that of the cluster has "
                f"{claim.meta.log_id.hex()}: give this node the folder of the cluster, or an empty one"
            )
        if claim.next_offset:
            raise ForeignLogError(
                f"the cluster was begun with a log of {claim.next_offset:,} messages, which {self.path} lacks: seed "
                "this node from a backup of another one"
            )
        connection.execute(QUERIES["delete_meta"])
        store_meta(connection, claim.meta)
        return claim.meta

    def _begin_epoch(self, place: Place) -> None:
        """Continue in the epoch of the last claim."""
        if place.writer:
            self._epoch_id = place.writer
            self._has_begun = bool(self._epochs) and self._epochs[-1].id == place.writer


class ReplicaPlace(msgspec.Struct, frozen=True):
    """How far a file has followed a cluster, and which log it is."""

    place: Place
    log_id: bytes
    next_offset: int
    until_us: int
    """When its newest message arrived."""


def read_place(path: Path) -> ReplicaPlace:
    """Read the place of a log, which a broker may be using. Raise a StorageError if that is not possible."""
    reader = LogReader.open(path)
    try:
        with translate_errors(path, "read"):
            ends = BlockScanner(reader.connection).ends()
            return ReplicaPlace(_load_place(reader.connection, path), reader.log_id, ends.next_offset, ends.until_us)
    finally:
        reader.close()


def _load_place(connection: apsw.Connection, path: Path) -> Place:
    """Return the place of a file; the first one if it was never in a cluster.

    Raises:
        LogVersionError: Records of a newer format were applied.
        LogDamagedError: The place is unreadable.
    """
    row = connection.execute(QUERIES["select_place"]).fetchone()
    if row is None:
        return Place()
    try:
        if not has_valid_checksum(row):
            raise ValueError("its checksum is wrong")
        fields = msgspec.msgpack.decode(row[1], type=list[Any])
        if len(fields) > _FORMAT_INDEX and fields[_FORMAT_INDEX] > FORMAT:
            raise LogVersionError(
                f"the log {path} has followed its cluster in the format {fields[_FORMAT_INDEX]} of records, and this "
                f"version knows {FORMAT}: update this node"
            )
        if len(row[1]) > _PLACE_BYTES:
            raise ValueError("it is too long")
        return msgspec.msgpack.decode(row[1], type=Place)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise LogDamagedError(
            f"the place of the log {path} in its cluster is unreadable ({error}): seed this node from a backup of "
            "another one"
        ) from error
