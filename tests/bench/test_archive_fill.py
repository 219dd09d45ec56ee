"""Logs for the archive to read: that they hold what they say, as a broker would have written it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from godwit.store.reader import LogReader
from godwit.wire.batch import Batch, Entry, decode_batch, encode_head
from godwit_bench.archive_fill import (
    FULL_BATCH_MESSAGES,
    MESSAGE_BYTES,
    PUBLISHERS,
    fill_with_full_batches,
    fill_with_lone_messages,
)


def entries_of(data: Path) -> list[tuple[int, Entry]]:
    reader = LogReader.open(data / "log.sqlite")
    try:
        found: list[tuple[int, Entry]] = []
        offset, end = 0, reader.next_offset()
        while offset < end:
            piece = reader.read(offset, 1 << 20)
            found += piece.entries
            offset = piece.next_offset
        return found
    finally:
        reader.close()


def opened(entry: Entry) -> Batch:
    return decode_batch(encode_head(entry.flags, entry.published_us, None, None) + entry.rest)[0]


@pytest.mark.parametrize("fill", [fill_with_full_batches, fill_with_lone_messages])
def test_every_message_is_there(fill: Callable[[Path, int], int], tmp_path: Path) -> None:
    count = fill(tmp_path, 15_000)
    entries = entries_of(tmp_path)
    assert count >= 15_000
    assert entries[0][0] == 0
    assert all(offset + entry.count == follower for (offset, entry), (follower, _) in pairwise(entries))
    assert entries[-1][0] + entries[-1][1].count == count
    assert {len(payload) for payload in opened(entries[0][1]).payloads} == {MESSAGE_BYTES}


def test_batches_are_full(tmp_path: Path) -> None:
    fill_with_full_batches(tmp_path, 1)
    assert {entry.count for _, entry in entries_of(tmp_path)} == {FULL_BATCH_MESSAGES}


def test_messages_come_alone_from_many(tmp_path: Path) -> None:
    fill_with_lone_messages(tmp_path, PUBLISHERS, a_commit=2500)
    entries = [entry for _, entry in entries_of(tmp_path)]
    assert {entry.count for entry in entries} == {1}
    assert len({entry.publisher for entry in entries}) == len({entry.topic for entry in entries}) == PUBLISHERS
