"""The words between broker and archive, however the pipe cuts them, and the form of a stage's file."""

from __future__ import annotations

import random
import struct

import pytest

from godwit.broker.access import TokenRights
from godwit.errors import DecodeError
from godwit.server import archive_pipe
from godwit.server.archive_pipe import (
    MAX_PIPE_MESSAGE_BYTES,
    Commit,
    CommitDone,
    FromArchive,
    LogLine,
    PipeReader,
    Ready,
    decode_from_archive,
    decode_from_broker,
    encode_message,
    join_blocks,
    split_blocks,
)

FROM_ARCHIVE: list[FromArchive] = [
    Ready("grpc://127.0.0.1:50001"),
    Commit(7, "query-1", 3, ["query-1.3.0.attempt", "query-1.3.1.attempt"]),
    Commit(8, "", 0, []),
    Commit(9, "q", 0, [], TokenRights(("home/#",), (), ("pump-?",))),
    LogLine("warning", "a stage of ünknown origin was removed"),
]


def test_messages_of_the_archive_come_out_as_they_went_in_however_they_are_cut() -> None:
    stream = b"".join(encode_message(message) for message in FROM_ARCHIVE)
    for seed in range(50):
        rng = random.Random(seed)
        reader, at, got = PipeReader(), 0, []
        while at < len(stream):
            step = rng.choice((1, 3, 17, len(stream)))
            got += [decode_from_archive(body) for body in reader.feed(stream[at : at + step])]
            at += step
        assert got == FROM_ARCHIVE, f"seed {seed}"


def test_answers_of_the_broker_come_out_as_they_went_in() -> None:
    answers = [CommitDone(7, was_known=True), CommitDone(8, "the disk is full"), CommitDone(9, "", False, 100, 5)]
    bodies = list(PipeReader().feed(b"".join(encode_message(answer) for answer in answers)))
    assert [decode_from_broker(body) for body in bodies] == answers


def test_the_form_is_json_behind_a_length_in_network_order() -> None:
    data = encode_message(CommitDone(1))
    assert struct.unpack_from(">I", data)[0] == len(data) - 4
    assert data[4:].startswith(b'{"kind":"committed","key":1,')


def test_what_is_no_message_is_one_error() -> None:
    for body in (b"", b"{}", b'{"kind":"ready"}', b'{"kind":"other"}', b"\xff\xfe", b'{"kind":"ready","url":"\xff"}'):
        with pytest.raises(DecodeError):
            decode_from_archive(body)
        with pytest.raises(DecodeError):
            decode_from_broker(body)


def test_a_length_that_is_only_claimed_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DecodeError, match="oversize"):
        list(PipeReader().feed(struct.pack(">I", MAX_PIPE_MESSAGE_BYTES + 1)))
    monkeypatch.setattr(archive_pipe, "MAX_PIPE_MESSAGE_BYTES", 3)
    assert list(PipeReader().feed(b"\0\0\0\3abc\0\0")) == [b"abc"]
    before_nonsense = PipeReader().feed(b"\0\0\0\3abchello, world")
    assert next(before_nonsense) == b"abc"


def test_a_stage_is_its_blocks_one_after_the_other() -> None:
    blocks = [b"first", b"", b"x" * 70_000]
    data = join_blocks(blocks[:1]) + join_blocks(blocks[1:])
    assert list(split_blocks(data)) == blocks
    assert list(split_blocks(b"")) == []
    for cut in (1, 3, 5, len(data) - 1):
        with pytest.raises(DecodeError, match="truncated"):
            list(split_blocks(data[:cut]))
