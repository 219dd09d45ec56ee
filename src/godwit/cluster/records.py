"""Records of a replicated log: their format, and the fold that decides which of them count.

A cluster has one active broker. The others are standbys. They share one replicated log, which another program (the
engine, see godwit.cluster.engine) stores on the disks of a majority of its servers. The engine assigns each record a
position, 1, 2, 3, ..., and does no more than that: it may store a record twice, late, or behind records of another
broker that the writer did not expect. So the records themselves decide which of them count.

Format of a record. Integers are big-endian, except for the checksum.

    kind u8 | flags u8 (1: more parts follow) | epoch u64 | number u64 | link u32 | body | checksum u32, little-endian

    epoch       each claim begins a higher one
    number      1 for the first part that counts, and one more for each part that counts after it
    link        the checksum of the part before it that counts; 0 for the first one
    checksum    CRC-32C of all preceding bytes

A long record travels in parts of at most PART_BYTES of its body, each with the header and a number of its own.

Kinds, with their bodies, which are MessagePack arrays:

    claim (1)   the fields of Claim: a broker becomes the active one. The first claim is the beginning of the log. It
                has one part
    append (2)  [blocks, changes]: a commit of the active broker. A block is an array of the fields of BlockRow, a
                change is [number of its type in _CHANGES, its fields]. Since format 3 the row of a job contains its
                payload and its task
    resign (3)  the fields of Resign: the active broker hands over. Only a claim counts behind it
    cut (4)     the fields of RetentionCut: the active broker deletes messages by its rules of retention. Since format 2

The fold. A part of an append, a cut or a resign counts if its epoch is the current one and is not resigned, its number
is the next one and its link is the checksum before. A claim counts if its epoch is higher than the current one, and
number and link continue the records that count so far. Of two rival claims the first one in the log counts; the other
one does not continue. All other records are void, for every node and for ever. A claim behind the first parts of a long
record makes these parts void: they are not applied. No clock and no lease takes part in this.

So a deposed broker cannot write: its records have an old epoch. A record that is sent twice counts once: the second has
an old number. A record behind one that was lost on the way is void too, and its writer sends both again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from crc32c import crc32c

from godwit.limits import KIB, MIB
from godwit.store.block import SECRET_BYTES, BlockRow
from godwit.store.replica import FORMAT, AppendStep, ClaimStep, Place
from godwit.store.retention import RetentionCut
from godwit.store.state import LogMeta
from godwit.wire import changes as rows
from godwit.wire.changes import Change
from godwit.wire.epochs import EpochId

CLAIM: Final = 1
APPEND: Final = 2
RESIGN: Final = 3
CUT: Final = 4

PART_BYTES: Final = 768 * KIB
"""With header and headers of the engine this is below 1 MiB, the longest message that NATS allows by default."""
MAX_BODY_BYTES: Final = 256 * MIB
"""The longest body of a record in parts. A commit of a broker is far shorter."""

_HEAD: Final = struct.Struct(">BBQQI")
_CHECKSUM: Final = struct.Struct("<I")
OVERHEAD_BYTES: Final = _HEAD.size + _CHECKSUM.size
_MORE: Final = 1
_LAST_U64: Final = 2**64 - 1

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]
LogId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class BrokenLogError(Exception):
    """The replicated log differs from the records that nodes have written. The text is a sentence for the operator."""


class NewerFormatError(BrokenLogError):
    """A node of a newer version has written the record. The text is a sentence for the operator."""


class RecordError(Exception):
    """The bytes are not a record, or its body does not fit its kind."""


# -- bodies -----------------------------------------------------------------------------------------------------------


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A broker becomes the active one."""

    format: Count
    """The version of the records behind it. A node that knows only older ones stops."""
    node: Name
    address: Name
    """Where its clients connect."""
    log_id: LogId
    created_us: Count
    secret: Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    writer: EpochId
    """Random: the id of the epoch that begins in the log."""
    next_offset: Count
    """Where the log ends."""

    def step(self) -> ClaimStep:
        """Return the change of a file."""
        return ClaimStep(LogMeta(self.log_id, self.created_us, self.secret), self.writer, self.next_offset)


class _ClaimFormat(msgspec.Struct, frozen=True, array_like=True):
    """The first field of a claim, which is the same in all formats."""

    format: Count


class Resign(msgspec.Struct, frozen=True, array_like=True):
    """The active broker hands over."""

    to: Name = ""
    """The node that shall be the next; empty for any."""


Content: TypeAlias = AppendStep | Claim | Resign | RetentionCut


class _Append(msgspec.Struct, frozen=True, array_like=True):
    blocks: list[tuple[Count, Count, Count, Count, Count, bytes, bytes]]
    changes: list[tuple[int, msgspec.Raw]]


_CHANGES: Final[tuple[type, ...]] = (  # a type is added at the end: its index is in records
    rows.TopicRow,
    rows.TopicDeleted,
    rows.RetainedRow,
    rows.SessionRow,
    rows.SessionDeleted,
    rows.SubscriptionRow,
    rows.SubscriptionDeleted,
    rows.FilterRow,
    rows.FilterDeleted,
    rows.PacketRow,
    rows.PacketDeleted,
    rows.IdentityRow,
    rows.IdentityDeleted,
    rows.QueryRow,
    rows.QueryDeleted,
    rows.RelayRow,
    rows.JobRow,
    rows.JobPayloadRow,
    rows.JobDeleted,
    rows.TaskRow,
    rows.NextJobRow,
)
_NUMBERS: Final = {change_type: number for number, change_type in enumerate(_CHANGES)}
_DECODERS: Final[tuple[Callable[[msgspec.Raw], Any], ...]] = tuple(
    msgspec.msgpack.Decoder(change_type).decode for change_type in _CHANGES
)
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_append: Final = msgspec.msgpack.Decoder(_Append).decode
_decode_format: Final = msgspec.msgpack.Decoder(_ClaimFormat).decode
_decode_claim: Final = msgspec.msgpack.Decoder(Claim).decode
_decode_resign: Final = msgspec.msgpack.Decoder(Resign).decode
_decode_cut: Final = msgspec.msgpack.Decoder(RetentionCut).decode


def encode_body(value: Content) -> bytes:
    """Return the body of a record."""
    if not isinstance(value, AppendStep):
        return _encode(value)
    return _encode(
        (
            [msgspec.structs.astuple(row) for row in value.rows],
            [(_NUMBERS[type(change)], change) for change in value.changes],
        )
    )


def decode_body(kind: int, body: bytes) -> Content:
    """Return the content of a record.

    Raises:
        RecordError: It is not what the kind requires.
        NewerFormatError: It is a claim of a newer version.
    """
    try:
        if kind == CLAIM:
            if (found_format := _decode_format(body).format) > FORMAT:
                raise NewerFormatError(
                    f"the replicated log has the format {found_format}, and this version knows {FORMAT}: update this "
                    "node"
                )
            return _decode_claim(body)
        if kind == RESIGN:
            return _decode_resign(body)
        if kind == CUT:
            return _decode_cut(body)
        if kind != APPEND:
            raise RecordError(f"its kind is {kind}")
        found = _decode_append(body)
        changes: list[Change] = [_DECODERS[number](raw) for number, raw in found.changes if number >= 0]
    except (msgspec.MsgspecError, IndexError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise RecordError(f"its content is invalid ({error})") from error
    if len(changes) != len(found.changes):
        raise RecordError("a change has a negative number")
    blocks = [BlockRow(*block) for block in found.blocks]
    for before, after in pairwise(blocks):
        if before.end_offset != after.first_offset:
            raise RecordError("its blocks do not follow each other")
    return AppendStep(blocks, changes)


# -- parts ------------------------------------------------------------------------------------------------------------


class RecordPart(msgspec.Struct, frozen=True, gc=False):
    """A part of a record; most records have one."""

    kind: int
    has_more: bool
    epoch: int
    number: int
    link: int
    body: bytes
    checksum: int


def encode_parts(kind: int, epoch: int, number: int, link: int, body: bytes) -> tuple[list[bytes], int, int]:
    """Return the parts of a record behind the part with this number and checksum, and those of its last part."""
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"a record has at most {MAX_BODY_BYTES} bytes")
    parts: list[bytes] = []
    view = memoryview(body)
    for at in range(0, max(1, len(body)), PART_BYTES):
        number += 1
        head = _HEAD.pack(kind, _MORE if at + PART_BYTES < len(body) else 0, epoch, number, link)
        piece = view[at : at + PART_BYTES]
        link = crc32c(piece, crc32c(head))
        parts.append(b"".join((head, piece, _CHECKSUM.pack(link))))
    return parts, number, link


def decode_part(data: bytes) -> RecordPart:
    """Return a part. Raise RecordError if its checksum is wrong or its flags are unknown."""
    end = len(data) - _CHECKSUM.size
    if end < _HEAD.size:
        raise RecordError("it is too short")
    checksum = crc32c(memoryview(data)[:end])
    if _CHECKSUM.unpack_from(data, end)[0] != checksum:
        raise RecordError("its checksum is wrong")
    kind, flags, epoch, number, link = _HEAD.unpack_from(data)
    if flags not in (0, _MORE):
        raise RecordError(f"its flags are {flags}")
    return RecordPart(kind, bool(flags), epoch, number, link, data[_HEAD.size : end], checksum)


def checksum_of(data: bytes) -> int:
    """Return the stored checksum of a part, unverified; -1 if it is too short."""
    return _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)[0] if len(data) >= OVERHEAD_BYTES else -1


# -- the fold ---------------------------------------------------------------------------------------------------------


class CountedRecord(msgspec.Struct, frozen=True):
    """A whole record that counts."""

    kind: int
    body: bytes
    place: Place
    """Behind it. `writer` is that of the claim before, also for a claim."""


class Fold:
    """Decides which records count. All folds over the same records are at the same place."""

    def __init__(self, place: Place) -> None:
        self.position = place.position
        """Of the last record that was fed."""
        self.epoch = place.epoch
        self.number = place.number
        """Of the last part that counts."""
        self.link = place.link
        self.is_resigned = place.is_resigned
        self.void = 0
        """How many records were fed that do not count."""
        self._kind = 0
        """Of the record whose first parts are known."""
        self._parts: list[bytes] = []
        self._parts_bytes = 0

    def feed(self, position: int, data: bytes) -> CountedRecord | None:
        """Feed the record at the next position. Return a whole record that counts, if it is complete with this part.

        Raises:
            BrokenLogError: It is not the next position, or the record is damaged or of a newer version.
        """
        if position != self.position + 1:
            raise BrokenLogError(f"the record at position {self.position + 1:,} of the replicated log is missing")
        try:
            part = decode_part(data)
        except RecordError as error:
            raise BrokenLogError(
                f"the record at position {position:,} of the replicated log is damaged: {error}"
            ) from error
        self.position = position
        if not self._counts(part):
            self.void += 1
            return None
        if not CLAIM <= part.kind <= CUT or (part.has_more and part.kind in (CLAIM, RESIGN)):
            raise NewerFormatError(
                f"the record at position {position:,} of the replicated log is of the kind {part.kind}, which this "
                "version does not know: update this node"
            )
        self.epoch, self.number, self.link = part.epoch, part.number, part.checksum
        if part.kind in (CLAIM, RESIGN):
            self.is_resigned = part.kind == RESIGN
        if part.kind in (CLAIM, RESIGN) or part.kind != self._kind:  # it ends a record whose other parts never came
            self._parts.clear()
            self._parts_bytes = 0
            self._kind = part.kind
        self._parts_bytes += len(part.body)
        if self._parts_bytes > MAX_BODY_BYTES:
            raise BrokenLogError(f"the record that ends at position {position:,} of the replicated log is too long")
        self._parts.append(part.body)
        if part.has_more:
            return None
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._parts_bytes = 0
        place = Place(position, self.epoch, self.number, self.link, b"", self.is_resigned)
        return CountedRecord(part.kind, body, place)

    def _counts(self, part: RecordPart) -> bool:
        if part.number != self.number + 1 or part.link != self.link:
            return False
        if part.kind == CLAIM:
            return part.epoch > self.epoch
        return part.epoch == self.epoch and self.epoch > 0 and not self.is_resigned


def next_epoch(epoch: int) -> int:
    """Return the epoch of the next claim. Raise BrokenLogError behind the last one."""
    if epoch >= _LAST_U64:
        raise BrokenLogError("the epoch of the replicated log is the highest possible one: begin a new cluster")
    return epoch + 1
