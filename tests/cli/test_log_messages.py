"""Messages out of a log: those of a batch, the newest ones, those between two offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.logs import opened, write_log

from godwit.archive.choosing import Chosen
from godwit.cli import log_messages
from godwit.cli.log_messages import messages_of, newest, pieces
from godwit.store.folder import DataFolder
from godwit.store.reader import LogReader
from godwit.wire.batch import Batch, Entry, decode_head, encode_batch, encode_joinable

TOPICS = ("a", "b", "a", "c", "a", "b", "b", "a")


def entry(batch: Batch, *, joinable: bool = True) -> Entry:
    data = encode_joinable(batch) if joinable else encode_batch(batch)
    head = decode_head(data)
    return Entry(
        topic="a/b",
        publisher="me",
        flags=head.flags,
        published_us=batch.published_us,
        received_us=2_000,
        count=head.count,
        rest=data[head.rest_at :],
    )


@pytest.fixture(params=[1, 2, 3, 8], ids=lambda size: f"commits of {size}")
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogReader]:
    """Messages on TOPICS, twenty times, each with its offset as payload."""
    rows = [(topic, str(offset)) for offset, topic in enumerate(TOPICS * 20)]
    size = request.param
    write_log(tmp_path, [rows[at : at + size] for at in range(0, len(rows), size)])
    reader = LogReader.open(DataFolder(tmp_path).log_path)
    yield reader
    reader.close()


def offsets(reader: LogReader, start: int, stop: int, *filters: str) -> list[int | None]:
    return [message.offset for piece in pieces(reader, start, stop, Chosen(filters)) for message in piece.messages]


def test_a_batch_is_its_messages() -> None:
    found = messages_of(7, entry(Batch([b"x", b"", b"yy"], 1_000, qos=2, retain=True, deltas_us=(0, 5, 9))))
    assert [(each.offset, each.payload, each.published_us) for each in found] == [
        (7, b"x", 1_000),
        (8, b"", 1_005),
        (9, b"yy", 1_009),
    ]
    assert {(each.topic, each.publisher, each.received_us, each.qos, each.retained) for each in found} == {
        ("a/b", "me", 2_000, 2, True)
    }


@pytest.mark.parametrize("joinable", [True, False])
def test_a_lone_message(joinable: bool) -> None:
    (found,) = messages_of(0, entry(Batch([b"x"], 1_000, extension=b"more"), joinable=joinable))
    assert (found.payload, found.published_us, found.extension, found.retained) == (b"x", 1_000, b"more", False)


@pytest.mark.parametrize("filters", [(), ("a",), ("b", "c"), ("nothing",)])
def test_pieces_have_every_wanted_message_of_a_range(
    reader: LogReader, filters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_messages, "BLOCKS_A_TIME", 3)
    wanted = [offset for offset, topic in enumerate(TOPICS * 20) if not filters or topic in filters]
    for start, stop in ((0, 160), (5, 6), (7, 100), (99, 160), (160, 160)):
        assert offsets(reader, start, stop, *filters) == [each for each in wanted if start <= each < stop]


def test_a_batch_is_cut_at_the_borders(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append([entry(Batch([b"%d" % number for number in range(10)], 1_000))])
        reader = LogReader.open(store.path)
        assert offsets(reader, 3, 7) == [3, 4, 5, 6]
        reader.close()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 60, 1000])
@pytest.mark.parametrize("filters", [(), ("a",), ("b", "c"), ("nothing",)])
def test_newest(reader: LogReader, filters: tuple[str, ...], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_messages, "FIRST_LOOK", 5)
    monkeypatch.setattr(log_messages, "SPANS_A_TIME", 4)
    wanted = [offset for offset, topic in enumerate(TOPICS * 20) if not filters or topic in filters]
    start, skip = newest(reader, Chosen(filters), count, 160)
    found = offsets(reader, start, 160, *filters)[skip:]
    assert found == wanted[max(len(wanted) - count, 0) :]


def test_a_damaged_block_is_passed_over_and_told(tmp_path: Path) -> None:
    write_log(tmp_path, [[("a", "one"), ("a", "two")], [("a", "three")], [("a", "four")]])
    with opened(tmp_path) as store:
        store.connection.execute("UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = 2")
    reader = LogReader.open(DataFolder(tmp_path).log_path)
    found = list(pieces(reader, 1, 4, Chosen(())))
    reader.close()
    assert [message.payload for piece in found for message in piece.messages] == [b"two", b"four"]
    assert [each for piece in found for each in piece.damaged] == [(2, 3)]
