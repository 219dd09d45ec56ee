"""Records of the replicated log: their codec with hostile input, and the fold over random schedules of writers."""

from __future__ import annotations

import struct
from contextlib import suppress
from random import Random

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.entries import LOG_ID, make_entry, make_job, make_task

from godwit.cluster.records import (
    APPEND,
    CLAIM,
    CUT,
    MAX_BODY_BYTES,
    OVERHEAD_BYTES,
    PART_BYTES,
    RESIGN,
    BrokenLogError,
    Claim,
    Fold,
    NewerFormatError,
    RecordError,
    Resign,
    checksum_of,
    decode_body,
    decode_part,
    encode_body,
    encode_parts,
    next_epoch,
)
from godwit.store.block import encode_blocks
from godwit.store.replica import FORMAT, AppendStep, Place
from godwit.store.retention import BlockCut, RetentionCut
from godwit.wire import changes as rows
from godwit.wire.control import Will
from godwit.wire.epochs import Epoch

SECRET = bytes(8)
CHANGES: list[rows.Change] = [
    rows.TopicRow("a/b", 1, 2, 3, is_created=True),
    rows.TopicDeleted("a/b"),
    rows.RetainedRow("a", b"x", "me", 1, 2, 1, 7, b"ext"),
    rows.SessionRow("me", b"i", True, 60, None, Will(topic="w", payload=b"gone"), "p", b"e", 3, 4),
    rows.SessionDeleted("me"),
    rows.SubscriptionRow("me", ("a", "b"), None, 5, unfinished=(1, 2)),
    rows.SubscriptionDeleted("me", ("a",), "c"),
    rows.FilterRow("me", "a", 1, 2, 3, 4),
    rows.FilterDeleted("me", "a"),
    rows.PacketRow("me", True, 3),
    rows.PacketDeleted("me", True, 3),
    rows.IdentityRow("o", "p", "t", 1, 2, 3),
    rows.IdentityDeleted("o", "p", "t"),
    rows.QueryRow("q", 1, 2),
    rows.QueryDeleted("q"),
    rows.RelayRow("edge", LOG_ID, 5, (Epoch(b"12345678", 3),), 9),
    make_job(1),
    rows.JobPayloadRow(1, b"payload"),
    rows.JobDeleted(1),
    make_task(1, 1, b"result"),
    rows.NextJobRow(3),
]


def make_claim(node: str = "a") -> Claim:
    return Claim(FORMAT, node, "udp://a", LOG_ID, 1, SECRET, b"writer-1", 0)


# -- bodies -----------------------------------------------------------------------------------------------------------


def test_an_append_with_every_kind_of_change_survives() -> None:
    step = AppendStep(encode_blocks([make_entry(b"1", b"2"), make_entry(b"3", topic="x")], 7, SECRET), CHANGES)
    assert decode_body(APPEND, encode_body(step)) == step
    assert {type(change) for change in CHANGES} == set(rows.Change.__args__)


@given(st.text(max_size=20), st.integers(0, 2**62))
def test_a_claim_and_a_resignation_survive(node: str, offset: int) -> None:
    claim = Claim(FORMAT, node, "udp://a", LOG_ID, offset, SECRET, b"writer-1", offset)
    assert decode_body(CLAIM, encode_body(claim)) == claim
    assert decode_body(RESIGN, encode_body(Resign(node))) == Resign(node)


@given(
    st.lists(st.builds(BlockCut, st.integers(0, 2**63 - 1), st.none() | st.lists(st.text(max_size=9), max_size=3))),
    st.dictionaries(st.text(max_size=9), st.integers(0, 2**63 - 1), max_size=3),
)
def test_a_cut_survives(blocks: list[BlockCut], floors: dict[str, int]) -> None:
    cut = RetentionCut(blocks, floors)
    assert decode_body(CUT, encode_body(cut)) == cut


def test_a_claim_of_a_newer_format_has_any_other_fields() -> None:
    with pytest.raises(NewerFormatError, match=f"has the format {FORMAT + 1}, and this version knows {FORMAT}"):
        decode_body(CLAIM, msgspec.msgpack.encode([FORMAT + 1, {"node": "a"}]))


def test_blocks_must_follow_each_other() -> None:
    blocks = encode_blocks([make_entry()], 0, SECRET) + encode_blocks([make_entry()], 5, SECRET)
    with pytest.raises(RecordError, match="follow each other"):
        decode_body(APPEND, encode_body(AppendStep(blocks, [])))


@given(st.integers(0, 9), st.binary(max_size=300))
def test_any_bytes_are_a_body_or_a_record_error(kind: int, data: bytes) -> None:
    with suppress(RecordError):
        decode_body(kind, data)


@settings(max_examples=300)
@given(st.data())
def test_a_changed_body_is_a_body_or_a_record_error(data: st.DataObject) -> None:
    step = AppendStep(encode_blocks([make_entry(b"1")], 7, SECRET), CHANGES)
    body = bytearray(encode_body(step))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RecordError):
        decode_body(APPEND, bytes(body))


@pytest.mark.parametrize(
    "body", [b"\x92\xdd\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff\xc0", b"\x92\x90\x91\x92\xff\xc0"]
)
def test_claimed_lengths_cost_nothing(body: bytes) -> None:
    """An array of four billion elements that is not there, and a change with a negative number."""
    with pytest.raises(RecordError):
        decode_body(APPEND, body)


# -- parts ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 3 * PART_BYTES + 2))
@settings(max_examples=12, deadline=None)
def test_a_body_is_cut_into_parts_with_links(size: int) -> None:
    body = bytes(size)
    parts, number, link = encode_parts(APPEND, 3, 10, 77, body)
    assert len(parts) == max(1, -(-size // PART_BYTES))
    found = [decode_part(data) for data in parts]
    assert b"".join(part.body for part in found) == body
    assert [part.number for part in found] == list(range(11, number + 1))
    assert [part.link for part in found] == [77, *(part.checksum for part in found[:-1])]
    assert [part.has_more for part in found] == [True] * (len(parts) - 1) + [False]
    assert (link, checksum_of(parts[-1])) == (found[-1].checksum, found[-1].checksum)
    assert max(map(len, parts)) <= PART_BYTES + OVERHEAD_BYTES < 1024 * 1024


@given(st.binary(max_size=60))
def test_any_bytes_are_a_part_or_a_record_error(data: bytes) -> None:
    checksum_of(data)
    with suppress(RecordError):
        assert len(decode_part(data).body) == len(data) - OVERHEAD_BYTES


def test_too_long_a_body_is_refused() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return MAX_BODY_BYTES + 1

    with pytest.raises(ValueError, match="at most"):
        encode_parts(APPEND, 1, 0, 0, Long())


def with_checksum(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c(data))


# -- the fold ---------------------------------------------------------------------------------------------------------


def one(kind: int, epoch: int, number: int, link: int, body: bytes = b"") -> bytes:
    return encode_parts(kind, epoch, number - 1, link, body)[0][0]


def begun() -> tuple[Fold, int]:
    """A fold behind the first claim, and the link of that."""
    fold = Fold(Place())
    data = one(CLAIM, 1, 1, 0, encode_body(make_claim()))
    counted = fold.feed(1, data)
    assert counted is not None
    assert counted.place == Place(1, 1, 1, checksum_of(data))
    return fold, checksum_of(data)


def test_only_what_continues_counts() -> None:
    fold, link = begun()
    void = [
        one(APPEND, 2, 2, link),  # an epoch without a claim
        one(APPEND, 0, 2, link),
        one(APPEND, 1, 3, link),  # the one before it is missing
        one(APPEND, 1, 2, link + 1),  # another history
        one(CLAIM, 1, 2, link),  # the epoch is not higher
        one(CLAIM, 2, 1, 0),  # by a node that has not read everything
    ]
    for position, data in enumerate(void, 2):
        assert fold.feed(position, data) is None
    assert fold.void == len(void)
    data = one(APPEND, 1, 2, link)
    counted = fold.feed(8, data)
    assert counted is not None
    assert counted.place == Place(8, 1, 2, checksum_of(data))
    assert fold.feed(9, data) is None  # the same record again


def test_a_deposed_writer_cannot_write_behind_a_claim() -> None:
    fold, link = begun()
    first = one(APPEND, 1, 2, link)
    second = one(APPEND, 1, 3, checksum_of(first))
    claim = one(CLAIM, 2, 2, link, encode_body(make_claim("b")))
    assert fold.feed(2, claim) is not None
    assert fold.feed(3, second) is None
    assert fold.feed(4, first) is None
    assert fold.epoch == 2


def test_a_claim_between_parts_drops_them() -> None:
    fold, link = begun()
    parts, _, _ = encode_parts(APPEND, 1, 1, link, bytes(2 * PART_BYTES))
    assert fold.feed(2, parts[0]) is None
    assert fold.feed(3, one(CLAIM, 2, 3, checksum_of(parts[0]))) is not None
    assert fold.feed(4, parts[1]) is None
    assert (fold.number, fold.void) == (3, 1)


def test_a_long_cut_has_parts() -> None:
    fold, link = begun()
    body = encode_body(RetentionCut([BlockCut(number, ["t" * 5000]) for number in range(200)], {"#": 9}))
    parts, _, _ = encode_parts(CUT, 1, 1, link, body)
    assert len(parts) == 2
    assert fold.feed(2, parts[0]) is None
    counted = fold.feed(3, parts[1])
    assert counted is not None
    assert (counted.kind, counted.body) == (CUT, body)
    assert not counted.place.is_resigned


def test_nothing_but_a_claim_counts_behind_a_resignation() -> None:
    fold, link = begun()
    resign = one(RESIGN, 1, 2, link, encode_body(Resign()))
    counted = fold.feed(2, resign)
    assert counted is not None
    assert counted.place.is_resigned
    assert fold.feed(3, one(APPEND, 1, 3, checksum_of(resign))) is None
    claim = one(CLAIM, 2, 3, checksum_of(resign))
    assert Fold(counted.place).feed(3, claim) is not None
    assert fold.feed(4, claim) is not None
    assert not fold.is_resigned


@pytest.mark.parametrize(
    ("position", "data", "text"),
    [
        (3, b"", "position 2 of the replicated log is missing"),
        (2, b"short", "damaged"),
        (2, bytes(40), "damaged"),
        (2, None, "update this node"),
    ],
)
def test_a_broken_log_is_an_error(position: int, data: bytes | None, text: str) -> None:
    fold, link = begun()
    with pytest.raises(BrokenLogError, match=text):
        fold.feed(position, one(9, 1, 2, link) if data is None else data)


def test_unknown_flags_are_an_error() -> None:
    with pytest.raises(RecordError, match="flags are 2"):
        decode_part(with_checksum(struct.pack(">BBQQI", APPEND, 2, 1, 1, 0)))


def test_the_last_epoch_is_an_error() -> None:
    assert next_epoch(1) == 2
    with pytest.raises(BrokenLogError, match="highest"):
        next_epoch(2**64 - 1)


class Writer:
    """A broker that reads records, claims, and has up to three records in flight."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fold = Fold(Place())
        self.flight: list[bytes] = []
        self.epoch = 0
        """In which it is the active one."""
        self.counted: list[bytes] = []
        """The records that it would confirm."""

    def read(self, stored: list[bytes], end: int) -> None:
        fold = self.fold
        for position in range(fold.position, end):
            data = stored[position]
            void, epoch = fold.void, fold.epoch
            fold.feed(position + 1, data)
            if fold.void > void:
                continue
            if self.flight and data == self.flight[0]:
                self.counted.append(self.flight.pop(0))
                self.epoch = fold.epoch
            elif fold.epoch != epoch or self.flight:
                self.flight.clear()
                self.epoch = 0

    def write(self, text: bytes) -> tuple[int, bytes] | None:
        fold, flight = self.fold, self.flight
        if self.epoch != fold.epoch or not fold.epoch:
            if flight:
                return None
            data = one(CLAIM, fold.epoch + 1, fold.number + 1, fold.link, encode_body(make_claim(self.name)))
        elif len(flight) < 3:
            last = decode_part(flight[-1]) if flight else None
            at = (fold.number, fold.link) if last is None else (last.number, last.checksum)
            data = encode_parts(APPEND, fold.epoch, *at, text)[0][0]
        else:
            return None
        flight.append(data)
        return fold.position + len(flight) - 1, data


@pytest.mark.parametrize("is_conditional", [True, False])
@pytest.mark.parametrize("seed", range(100))
def test_random_schedules_of_writers(seed: int, is_conditional: bool) -> None:
    """Records in flight are lost, doubled and delayed.

    What a writer takes for counted, by its own fold, is in the fold over the whole list, once.
    """
    rng = Random(f"fold {seed} {is_conditional}")
    stored: list[bytes] = []
    under_way: list[tuple[int, bytes]] = []
    writers = [Writer(name) for name in "abc"]
    for number in range(250):
        writer = rng.choice(writers)
        if rng.random() < 0.5:
            writer.read(stored, rng.randint(writer.fold.position, len(stored)))
        elif (written := writer.write(b"%d" % number)) is not None:
            under_way.append(written)
        if writer.flight and rng.random() < 0.2:
            under_way.append((writer.fold.position, writer.flight[0]))  # in doubt: the same again
        for _ in range(rng.randrange(3) if under_way else 0):
            place = rng.randrange(len(under_way))
            after, data = under_way[place]
            if (not is_conditional or after == len(stored)) and rng.random() < 0.9:
                stored.append(data)
            if rng.random() < 0.9 and len(under_way) > 1:
                under_way.pop(place)
    judge = Writer("judge")
    valid = []
    for position, data in enumerate(stored, 1):
        void = judge.fold.void
        judge.fold.feed(position, data)
        if judge.fold.void == void:
            valid.append(data)
    assert len(set(valid)) == len(valid) > 0
    assert {data for writer in writers for data in writer.counted} <= set(valid)
