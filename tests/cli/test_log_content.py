"""`godwit log info`, `tail` and `export`, and the errors for a folder without a log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.cli.logs import BEGAN_US, LOG_ID, entry, opened, write_log
from tests.cli.real import (
    GODWIT,
    PATIENCE_S,
    Running,
    environment,
    error_of,
    eventually,
    godwit,
    lines,
    needs_posix,
    running,
)

from godwit.archive.columns import schema_of
from godwit.cli import log_content
from godwit.cli.log_content import (
    MAX_RANGES,
    LogFile,
    format_ranges,
    log_path,
    messages_of,
    newest_start,
    scan_messages,
)
from godwit.errors import GodwitError, LogVersionError
from godwit.store.folder import DataFolder
from godwit.store.maintenance import backup
from godwit.store.reader import LogReader, TopicSelection
from godwit.store.state import store_floor
from godwit.wire.batch import Batch, Entry, decode_head, encode_batch, encode_joinable
from godwit.wire.retention_floors import BROKER_WIDE

# -- log folder -------------------------------------------------------------------------------------------------------


def test_a_log_is_read(tmp_path: Path) -> None:
    write_log(tmp_path, [[("a", "1")]])
    with LogFile(tmp_path) as log:
        assert log.reader.next_offset() == 1
        assert log.path == tmp_path / "log.sqlite"


def test_no_log(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(GodwitError, match=r"has no log .*--data"):
            log_path(folder)
    (tmp_path / "log.sqlite").write_bytes(b"")
    with pytest.raises(LogVersionError):
        LogFile(tmp_path)
    with pytest.raises(GodwitError, match=r"log.sqlite is a file: name its folder"):
        log_path(tmp_path / "log.sqlite")


def test_a_file_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    write_log(tmp_path / "old", [[("a", "1")]])
    write_log(tmp_path / "new", [[("a", "1")], [("a", "2")]])
    with LogFile(tmp_path / "old") as log:
        assert not log.reopen()
        (tmp_path / "new" / "log.sqlite").replace(log.path)
        assert log.reopen()
        assert log.reader.next_offset() == 2
        assert not log.reopen()
        log.path.unlink()
        assert not log.reopen()
        assert log.reader.next_offset() == 2


def test_ranges() -> None:
    assert format_ranges([(5, 6)]) == "5"
    assert format_ranges([(5, 7), (1000, 2000)]) == "5 to 6, 1,000 to 1,999"
    many = [(10 * number, 10 * number + 1) for number in range(MAX_RANGES + 2)]
    assert format_ranges(many).endswith(" and 2 ranges more")


# -- log info ---------------------------------------------------------------------------------------------------------


ID = "000102030405060708090a0b0c0d0e0f"


@pytest.fixture
def info_data(tmp_path: Path) -> str:
    return str(write_log(tmp_path, [[("home/a", "12"), ("home/b", "345")], [("home/a", "6")], [("home/a", "7")]]))


def test_for_people(info_data: str) -> None:
    rows = lines(godwit("log", "info", "--data", info_data).stdout)
    assert rows[:3] == [f"log         {ID}", f"file        {info_data}/log.sqlite", "broker      not running"]
    assert rows[3].startswith("size        ")
    assert rows[4:8] == [
        "offsets     0 to 3",
        "messages    4 in 3 blocks, 7 B of payload",
        "received    2025-03-01 12:00:00 to 2025-03-01 12:00:03 UTC",
        f"epochs      1, the newest is {ID[:16]} since offset 0",
    ]
    assert rows[8] == ""
    assert [row.split() for row in rows[9:]] == [
        ["topic", "messages", "size"],
        ["home/a", "3", "4", "B"],
        ["home/b", "1", "3", "B"],
    ]


def test_for_programs(info_data: str) -> None:
    found = json.loads(godwit("log", "info", "--json", "--data", info_data).stdout)
    assert found.pop("size_bytes") == (Path(info_data) / "log.sqlite").stat().st_size
    assert found == {
        "log_id": ID,
        "path": f"{info_data}/log.sqlite",
        "is_in_use": False,
        "wal_bytes": 0,
        "first_offset": 0,
        "next_offset": 4,
        "messages": 4,
        "payload_bytes": 7,
        "blocks": 3,
        "first_received": "2025-03-01T12:00:00.000000Z",
        "last_received": "2025-03-01T12:00:03.000000Z",
        "deleted": [],
        "epochs": [{"id": ID[:16], "first_offset": 0, "begun": "2025-03-01T12:00:00.000000Z"}],
        "damaged": [],
        "topics": [
            {"name": "home/a", "messages": 3, "payload_bytes": 4},
            {"name": "home/b", "messages": 1, "payload_bytes": 3},
        ],
    }


def test_while_a_broker_runs(info_data: str) -> None:
    with opened(Path(info_data)) as store:
        store.append([])
        rows = lines(godwit("log", "info", "--data", info_data).stdout)
        found = json.loads(godwit("log", "info", "--json", "--data", info_data).stdout)
    assert "broker      running" in rows
    assert found["is_in_use"]


def test_what_retention_deleted(info_data: str) -> None:
    with opened(Path(info_data)) as store, store.transaction() as connection:
        connection.execute("DELETE FROM blocks WHERE first_offset < 3")
        store_floor(connection, BROKER_WIDE, 2)
        store_floor(connection, "home/#", 3)
    rows = lines(godwit("log", "info", "--data", info_data).stdout)
    assert "offsets     3 to 3" in rows
    assert "deleted     before offset 2, by the rule for the whole log" in rows
    assert "deleted     before offset 3, of home/#" in rows
    found = json.loads(godwit("log", "info", "--json", "--data", info_data).stdout)
    assert found["deleted"] == [{"filter": None, "before": 2}, {"filter": "home/#", "before": 3}]
    assert found["messages"] == 1


def test_what_is_known_to_be_damaged(info_data: str) -> None:
    with opened(Path(info_data)) as store:
        store.connection.execute("DELETE FROM blocks WHERE first_offset = 2")  # no rule did that
    assert "lost        offsets 2; see godwit log verify" in lines(godwit("log", "info", "--data", info_data).stdout)
    assert json.loads(godwit("log", "info", "--json", "--data", info_data).stdout)["damaged"] == [[2, 3]]


def test_an_empty_log(tmp_path: Path) -> None:
    write_log(tmp_path, [])
    rows = lines(godwit("log", "info", "--data", str(tmp_path)).stdout)
    assert "offsets     none; the next is 0" in rows
    assert rows[-1] == "messages    0 in 0 blocks, 0 B of payload"


def test_no_log_there(tmp_path: Path) -> None:
    text = error_of("log", "info", "--data", str(tmp_path))
    assert text == f"{tmp_path} has no log (no file log.sqlite); name the folder of a broker with --data"


def test_a_log_that_cannot_be_read(info_data: str) -> None:
    path = Path(info_data) / "log.sqlite"
    path.write_bytes(b"x" * path.stat().st_size)
    assert "godwit log recover" in error_of("log", "info", "--data", info_data)


# -- log messages -----------------------------------------------------------------------------------------------------


TOPICS = ("a", "b", "a", "c", "a", "b", "b", "a")


def batch_entry(batch: Batch, *, joinable: bool = True) -> Entry:
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
    return [
        message.offset
        for piece in scan_messages(reader, start, stop, TopicSelection(filters))
        for message in piece.messages
    ]


def test_a_batch_is_its_messages() -> None:
    found = messages_of(7, batch_entry(Batch([b"x", b"", b"yy"], 1_000, qos=2, retain=True, deltas_us=(0, 5, 9))))
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
    (found,) = messages_of(0, batch_entry(Batch([b"x"], 1_000, extension=b"more"), joinable=joinable))
    assert (found.payload, found.published_us, found.extension, found.retained) == (b"x", 1_000, b"more", False)


@pytest.mark.parametrize("filters", [(), ("a",), ("b", "c"), ("nothing",)])
def test_pieces_have_every_wanted_message_of_a_range(
    reader: LogReader, filters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_content, "BLOCKS_A_TIME", 3)
    wanted = [offset for offset, topic in enumerate(TOPICS * 20) if not filters or topic in filters]
    for start, stop in ((0, 160), (5, 6), (7, 100), (99, 160), (160, 160)):
        assert offsets(reader, start, stop, *filters) == [each for each in wanted if start <= each < stop]


def test_a_batch_is_cut_at_the_borders(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append([batch_entry(Batch([b"%d" % number for number in range(10)], 1_000))])
        reader = LogReader.open(store.path)
        assert offsets(reader, 3, 7) == [3, 4, 5, 6]
        reader.close()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 60, 1000])
@pytest.mark.parametrize("filters", [(), ("a",), ("b", "c"), ("nothing",)])
def test_newest(reader: LogReader, filters: tuple[str, ...], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_content, "FIRST_SCAN_OFFSETS", 5)
    monkeypatch.setattr(log_content, "SPANS_A_TIME", 4)
    wanted = [offset for offset, topic in enumerate(TOPICS * 20) if not filters or topic in filters]
    start, skip = newest_start(reader, TopicSelection(filters), count, 160)
    found = offsets(reader, start, 160, *filters)[skip:]
    assert found == wanted[max(len(wanted) - count, 0) :]


def test_a_damaged_block_is_skipped_and_reported(tmp_path: Path) -> None:
    write_log(tmp_path, [[("a", "one"), ("a", "two")], [("a", "three")], [("a", "four")]])
    with opened(tmp_path) as store:
        store.connection.execute("UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = 2")
    reader = LogReader.open(DataFolder(tmp_path).log_path)
    found = list(scan_messages(reader, 1, 4, TopicSelection(())))
    reader.close()
    assert [message.payload for piece in found for message in piece.messages] == [b"two", b"four"]
    assert [each for piece in found for each in piece.damaged] == [(2, 3)]


# -- log tail ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tail_data(tmp_path: Path) -> str:
    write_log(
        tmp_path / "data",
        [[("home/a", str(number)), ("home/b", f"-{number}")] for number in range(20)] + [[("$jobs/x", "job")]],
    )
    return str(tmp_path / "data")


def test_the_last_ten(tail_data: str) -> None:
    found = lines(godwit("log", "tail", "--data", tail_data).stdout)
    assert found == [
        "home/b: -15",
        *(f"home/{x}" for n in range(16, 20) for x in (f"a: {n}", f"b: -{n}")),
        "$jobs/x: job",
    ]


def test_filters_and_count(tail_data: str) -> None:
    assert lines(godwit("log", "tail", "home/a", "-n", "2", "--data", tail_data).stdout) == [
        "home/a: 18",
        "home/a: 19",
    ]
    assert lines(godwit("log", "tail", "#", "-n", "1", "--data", tail_data).stdout) == ["home/b: -19"]
    assert len(lines(godwit("log", "tail", "--count", "1000", "--data", tail_data).stdout)) == 41
    assert godwit("log", "tail", "--count", "0", "--data", tail_data).stdout == b""
    assert godwit("log", "tail", "garage", "--data", tail_data).stdout == b""


def test_json_is_that_of_sub(tail_data: str) -> None:
    (found,) = lines(godwit("log", "tail", "home/a", "-n", "1", "--json", "--data", tail_data).stdout)
    assert json.loads(found) == {
        "topic": "home/a",
        "publisher": "sensor-1",
        "published": "2025-03-01T12:00:37.999000Z",
        "received": "2025-03-01T12:00:38.000000Z",
        "qos": 1,
        "retain": False,
        "offset": 38,
        "payload": "19",
    }


@needs_posix
def test_follow_shows_what_a_broker_adds_and_ends_with_ctrl_c(tail_data: str) -> None:
    with (
        opened(Path(tail_data)) as store,
        running("log", "tail", "home/#", "-n", "1", "--follow", "--data", tail_data) as tail,
    ):
        assert tail.out.line() == "home/b: -19"
        store.append([entry("home/a", "new"), entry("garage", "not wanted")])
        assert tail.out.line() == "home/a: new"
        store.append([entry("home/b", "newer")])
        assert tail.out.line() == "home/b: newer"
        assert tail.interrupt() == 130
        assert (tail.out.rest(), tail.err.rest()) == ([], [])


@needs_posix
def test_follow_continues_when_the_file_is_replaced(tail_data: str, tmp_path: Path) -> None:
    with running("log", "tail", "home/b", "-n", "1", "--follow", "--data", tail_data) as tail:
        assert tail.out.line() == "home/b: -19"
        write_log(tmp_path / "compacted", [[("home/b", "known")] * 41, [("home/b", "new")]])
        (tmp_path / "compacted" / "log.sqlite").replace(Path(tail_data) / "log.sqlite")
        assert tail.out.line() == "home/b: new"
        write_log(tmp_path / "other", [[("home/b", "from another log")]], log_id=bytes(16))
        (tmp_path / "other" / "log.sqlite").replace(Path(tail_data) / "log.sqlite")
        assert tail.out.line() == "home/b: from another log"
        assert tail.err.line() == "godwit: the folder has a new log; continuing with its first message"


@needs_posix
def test_follow_goes_back_when_an_older_copy_is_put_in_its_place(tail_data: str, tmp_path: Path) -> None:
    backup(Path(tail_data) / "log.sqlite", tmp_path / "copy.sqlite", lambda *_: None)
    with opened(Path(tail_data), b"lost" * 4) as store:
        store.append([entry("home/b", "lost"), entry("home/b", "lost too")])
    with running("log", "tail", "home/b", "-n", "1", "--follow", "--data", tail_data) as tail:
        assert tail.out.line() == "home/b: lost too"
        (tmp_path / "restored").mkdir()
        (tmp_path / "copy.sqlite").rename(tmp_path / "restored" / "log.sqlite")
        with opened(tmp_path / "restored", b"new!" * 4) as store:
            store.append([entry("home/b", f"new {number}", received_us=BEGAN_US * 2) for number in range(3)])
        (tmp_path / "restored" / "log.sqlite").replace(Path(tail_data) / "log.sqlite")
        assert [tail.out.line() for _ in range(3)] == [f"home/b: new {number}" for number in range(3)]
        assert tail.err.line() == (
            "godwit: an older copy of the log was restored: other messages start at offset 41; continuing there"
        )


@needs_posix
def test_a_reader_that_goes_ends_it_quietly(tail_data: str) -> None:
    """As `godwit log tail --follow | head -1` does."""
    command = [*GODWIT, "log", "tail", "-n", "1", "--follow", "--data", tail_data]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == b"$jobs/x: job\n"
            process.stdout.close()
            assert process.wait(timeout=PATIENCE_S) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()


def test_damage_is_reported(tail_data: str) -> None:
    with opened(Path(tail_data)) as store:
        store.connection.execute("UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = 38")
    found = godwit("log", "tail", "-n", "5", "--data", tail_data)
    assert lines(found.stdout) == ["home/a: 18", "home/b: -18", "$jobs/x: job"]
    assert lines(found.stderr) == [
        "godwit: offsets 38 to 39 are damaged and not shown; see godwit log verify",
    ]


def test_bad_input_of_tail_is_one_line(tail_data: str, tmp_path: Path) -> None:
    assert "--count -1 is out of range" in error_of("log", "tail", "--count", "-1", "--data", tail_data)
    assert "'#' before its end" in error_of("log", "tail", "a/#/b", "--data", tail_data)
    assert "has no log" in error_of("log", "tail", "--data", str(tmp_path))


# -- log export -------------------------------------------------------------------------------------------------------


ROWS = [("home/a" if number % 3 else "home/b", str(number)) for number in range(30)]


@pytest.fixture
def export_data(tmp_path: Path) -> str:
    """Offset n was received n seconds after 12:00."""
    return str(write_log(tmp_path / "data", [ROWS[at : at + 4] for at in range(0, len(ROWS), 4)]))


def exported(data: str, path: Path, *arguments: str) -> list[int]:
    """The offsets in an export."""
    result = godwit("log", "export", *arguments, "--output", str(path), "--data", data)
    assert (result.returncode, result.stderr) == (0, b"")
    return [json.loads(line)["offset"] for line in path.read_text().splitlines()]


def test_parquet_has_the_columns_of_the_archive(export_data: str, tmp_path: Path) -> None:
    path = tmp_path / "all.parquet"
    result = godwit("log", "export", "--format", "parquet", "--output", str(path), "--data", export_data)
    assert result.stdout.decode().startswith(f"{path}: 30 messages, ")
    table = parquet.read_table(path)
    assert table.schema.equals(schema_of(LOG_ID), check_metadata=True)
    assert table["offset"].to_pylist() == list(range(30))
    assert list(zip(table["topic"].to_pylist(), table["payload"].to_pylist(), strict=True)) == [
        (topic, payload.encode()) for topic, payload in ROWS
    ]


def test_many_small_blocks_make_few_row_groups(
    export_data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "all.parquet"
    arguments = ("log", "export", "--output", str(path), "--data", export_data)
    godwit(*arguments)
    assert parquet.ParquetFile(path).num_row_groups == 1
    monkeypatch.setattr(log_content, "ROW_GROUP_BYTES", 1)
    with opened(Path(export_data)) as store:
        for _ in range(5):
            store.append([entry("big", b"x" * 3_000_000)])
    godwit(*arguments, "--force")
    file = parquet.ParquetFile(path)
    assert file.num_row_groups > 1
    assert file.read()["offset"].to_pylist() == list(range(35))


def test_jsonl_is_what_sub_prints(export_data: str, tmp_path: Path) -> None:
    with opened(Path(export_data)) as store:
        store.append([entry("home/c", b"\xff", "\x1b", qos=2, retain=True)])
    path = tmp_path / "all.jsonl"
    godwit("log", "export", "home/c", "--output", str(path), "--data", export_data)
    assert path.read_bytes() == godwit("log", "tail", "home/c", "--json", "--data", export_data).stdout
    assert [json.loads(line).get("payload_base64") for line in path.read_text().splitlines()] == ["/w==", None]


def test_filters_and_ranges(export_data: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert exported(export_data, path) == list(range(30))
    assert exported(export_data, path, "home/b", "--force") == list(range(0, 30, 3))
    assert exported(export_data, path, "nothing/#", "--force") == []
    assert exported(export_data, path, "--force", "--from", "5", "--to", "9") == [5, 6, 7, 8]
    assert exported(export_data, path, "--force", "--from", "28", "--to", "1000") == [28, 29]
    assert exported(export_data, path, "--force", "--from", "2025-03-01T12:00:10", "--to", "2025-03-01T12:00:12") == [
        10,
        11,
    ]
    assert exported(export_data, path, "--force", "--from", "2025-03-01T13:00+01:00", "--to", "2") == [0, 1]
    assert exported(export_data, path, "--force", "--from", "latest") == []


def test_what_was_written_as_json(export_data: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    found = json.loads(godwit("log", "export", "--json", "--output", str(path), "--data", export_data).stdout)
    assert found == {"path": str(path), "messages": 30, "size_bytes": path.stat().st_size, "lost": []}


def test_nothing_is_replaced_unasked(export_data: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("mine")
    assert "exists already" in error_of("log", "export", "--output", str(path), "--data", export_data)
    assert path.read_text() == "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="it has a disk that is always full")
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_full_disk_is_reported_with_the_text_of_the_system(export_data: str, tmp_path: Path, form: str) -> None:
    part = tmp_path / f".godwit-{os.getpid()}.part"
    part.symlink_to("/dev/full")
    path = tmp_path / f"x.{form}"
    assert error_of("log", "export", "--output", str(path), "--data", export_data) == (
        f"cannot write {path}: No space left on device; the partial file was removed"
    )
    assert not path.exists()
    assert not part.is_symlink()


def test_damage_is_reported_and_the_rest_is_exported(export_data: str, tmp_path: Path) -> None:
    with opened(Path(export_data)) as store:
        store.connection.execute("UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = 8")
    path = tmp_path / "x.jsonl"
    result = godwit("log", "export", "--json", "--output", str(path), "--data", export_data)
    assert result.returncode == 1
    assert lines(result.stderr) == [
        f"godwit: messages at the offsets 8 to 11 are not in {path}: they are damaged (see godwit log verify), "
        "or retention deleted them during the export"
    ]
    assert json.loads(result.stdout)["lost"] == [[8, 12]]
    offsets = [json.loads(line)["offset"] for line in path.read_text().splitlines()]
    assert offsets == [*range(8), *range(12, 30)]


def test_messages_deleted_by_retention_are_reported(export_data: str, tmp_path: Path) -> None:
    with opened(Path(export_data)) as store, store.transaction() as connection:
        connection.execute("DELETE FROM blocks WHERE first_offset < 8")
        store_floor(connection, BROKER_WIDE, 8)
    assert exported(export_data, tmp_path / "all.jsonl") == list(range(8, 30))
    path = tmp_path / "from.jsonl"
    result = godwit("log", "export", "--from", "3", "--output", str(path), "--data", export_data)
    assert result.returncode == 0
    assert lines(result.stderr) == [
        "godwit: retention has deleted messages before offset 8; the remaining messages are exported"
    ]
    assert len(path.read_text().splitlines()) == 22


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-o", "x"], "implies no format; add --format"),
        (["-o", "x.csv"], "implies no format; add --format"),
        (["-o", "x.jsonl", "--format", "csv"], "unknown format csv"),
        (["-o", "-", "--format", "jsonl"], "an export is a file"),
        (["-o", "nowhere/x.jsonl"], "nowhere does not exist; create it"),
        (["-o", "x.jsonl", "a/#/b"], "'#' before its end"),
        (["-o", "x.jsonl", "--from", "soon"], "--from 'soon' is not a position"),
        (["-o", "x.jsonl", "--to", "-1"], "--to '-1' is not a position"),
        (["-o", "x.jsonl", "--from", "5", "--to", "4"], "is before --from 5"),
    ],
)
def test_bad_input_of_export_is_one_line(
    export_data: str, tmp_path: Path, arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in error_of("log", "export", *arguments, "--data", export_data)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@needs_posix
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, form: str) -> None:
    with opened(tmp_path / "data") as store:
        commit = [entry(f"home/{number}", *[b"x" * 10] * 5000) for number in range(10)]
        for _ in range(40):
            store.append(commit)
    out = tmp_path / "out"
    out.mkdir()
    arguments = (
        "log",
        "export",
        "--format",
        form,
        "-o",
        str(out / "x"),
        "--data",
        str(tmp_path / "data"),
    )
    assert any(is_interrupted(arguments, out) for _ in range(20))


def is_interrupted(arguments: Sequence[str], out: Path) -> bool:
    """Interrupt an export. Return False if it had ended before, as on a machine that starved this test."""
    command = Running(*arguments)
    try:
        eventually(lambda: any(out.iterdir()))
        command.process.send_signal(signal.SIGINT)
        code = command.wait()
        if code == 0:
            for path in out.iterdir():
                path.unlink()
            return False
        assert code == 130
        assert (command.out.rest(), command.err.rest()) == ([], [])
        assert list(out.iterdir()) == []
        return True
    finally:
        command.stop()


def test_a_row_is_the_message_it_was() -> None:
    schema = schema_of(LOG_ID)
    row = {
        "offset": 7, "topic": "a", "publisher": "me", "published": 5, "received": 6, "qos": 2, "retained": True,
        "payload": b"x",
    }  # fmt: skip
    (found,) = log_content.messages_from_arrow(pa.RecordBatch.from_pylist([row], schema=schema))
    assert (found.offset, found.published_us, found.received_us, found.payload) == (7, 5, 6, b"x")
    assert (found.topic, found.publisher, found.qos, found.retained) == ("a", "me", 2, True)
