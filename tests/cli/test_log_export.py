"""`godwit log export` as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.cli.logs import LOG_ID, entry, opened, write_log
from tests.cli.real import Running, error_of, eventually, godwit, lines, needs_posix

from godwit.archive.columns import schema_of
from godwit.cli import log_export
from godwit.store.state import store_floor
from godwit.wire.retention_floors import BROKER_WIDE

ROWS = [("home/a" if number % 3 else "home/b", str(number)) for number in range(30)]


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Offset n was received n seconds after 12:00."""
    return str(write_log(tmp_path / "data", [ROWS[at : at + 4] for at in range(0, len(ROWS), 4)]))


def exported(data: str, path: Path, *arguments: str) -> list[int]:
    """The offsets in an export."""
    result = godwit("log", "export", *arguments, "--output", str(path), "--data", data)
    assert (result.returncode, result.stderr) == (0, b"")
    return [json.loads(line)["offset"] for line in path.read_text().splitlines()]


def test_parquet_has_the_columns_of_the_archive(data: str, tmp_path: Path) -> None:
    path = tmp_path / "all.parquet"
    result = godwit("log", "export", "--format", "parquet", "--output", str(path), "--data", data)
    assert result.stdout.decode().startswith(f"{path}: 30 messages, ")
    table = parquet.read_table(path)
    assert table.schema.equals(schema_of(LOG_ID), check_metadata=True)
    assert table["offset"].to_pylist() == list(range(30))
    assert list(zip(table["topic"].to_pylist(), table["payload"].to_pylist(), strict=True)) == [
        (topic, payload.encode()) for topic, payload in ROWS
    ]


def test_many_small_blocks_make_few_row_groups(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "all.parquet"
    arguments = ("log", "export", "--output", str(path), "--data", data)
    godwit(*arguments)
    assert parquet.ParquetFile(path).num_row_groups == 1
    monkeypatch.setattr(log_export, "ROW_GROUP_BYTES", 1)
    with opened(Path(data)) as store:
        for _ in range(5):
            store.append([entry("big", b"x" * 3_000_000)])
    godwit(*arguments, "--force")
    file = parquet.ParquetFile(path)
    assert file.num_row_groups > 1
    assert file.read()["offset"].to_pylist() == list(range(35))


def test_jsonl_is_what_sub_prints(data: str, tmp_path: Path) -> None:
    with opened(Path(data)) as store:
        store.append([entry("home/c", b"\xff", "\x1b", qos=2, retain=True)])
    path = tmp_path / "all.jsonl"
    godwit("log", "export", "home/c", "--output", str(path), "--data", data)
    assert path.read_bytes() == godwit("log", "tail", "home/c", "--json", "--data", data).stdout
    assert [json.loads(line).get("payload_base64") for line in path.read_text().splitlines()] == ["/w==", None]


def test_filters_and_ranges(data: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert exported(data, path) == list(range(30))
    assert exported(data, path, "home/b", "--force") == list(range(0, 30, 3))
    assert exported(data, path, "nothing/#", "--force") == []
    assert exported(data, path, "--force", "--from", "5", "--to", "9") == [5, 6, 7, 8]
    assert exported(data, path, "--force", "--from", "28", "--to", "1000") == [28, 29]
    assert exported(data, path, "--force", "--from", "2025-03-01T12:00:10", "--to", "2025-03-01T12:00:12") == [10, 11]
    assert exported(data, path, "--force", "--from", "2025-03-01T13:00+01:00", "--to", "2") == [0, 1]
    assert exported(data, path, "--force", "--from", "latest") == []


def test_what_was_written_as_json(data: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    found = json.loads(godwit("log", "export", "--json", "--output", str(path), "--data", data).stdout)
    assert found == {"path": str(path), "messages": 30, "size_bytes": path.stat().st_size, "lost": []}


def test_nothing_is_replaced_unasked(data: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("mine")
    assert "is there already" in error_of("log", "export", "--output", str(path), "--data", data)
    assert path.read_text() == "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="it has a disk that is always full")
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_full_disk_is_told_in_the_systems_words(data: str, tmp_path: Path, form: str) -> None:
    part = tmp_path / f".godwit-{os.getpid()}.part"
    part.symlink_to("/dev/full")
    path = tmp_path / f"x.{form}"
    assert error_of("log", "export", "--output", str(path), "--data", data) == (
        f"cannot write {path}: No space left on device; nothing is left of it"
    )
    assert not path.exists()
    assert not part.is_symlink()


def test_damage_is_told_and_the_rest_is_there(data: str, tmp_path: Path) -> None:
    with opened(Path(data)) as store:
        store.connection.execute("UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = 8")
    path = tmp_path / "x.jsonl"
    result = godwit("log", "export", "--json", "--output", str(path), "--data", data)
    assert result.returncode == 1
    assert lines(result.stderr) == [
        f"godwit: messages at the offsets 8 to 11 are not in {path}: they are damaged (godwit log verify tells more), "
        "or retention has deleted them meanwhile"
    ]
    assert json.loads(result.stdout)["lost"] == [[8, 12]]
    offsets = [json.loads(line)["offset"] for line in path.read_text().splitlines()]
    assert offsets == [*range(8), *range(12, 30)]


def test_what_retention_deleted_is_told_to_who_asks_for_it(data: str, tmp_path: Path) -> None:
    with opened(Path(data)) as store, store.transaction() as connection:
        connection.execute("DELETE FROM blocks WHERE first_offset < 8")
        store_floor(connection, BROKER_WIDE, 8)
    assert exported(data, tmp_path / "all.jsonl") == list(range(8, 30))
    path = tmp_path / "from.jsonl"
    result = godwit("log", "export", "--from", "3", "--output", str(path), "--data", data)
    assert result.returncode == 0
    assert lines(result.stderr) == [
        "godwit: retention has deleted messages from before offset 8; what is left is exported"
    ]
    assert len(path.read_text().splitlines()) == 22


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-o", "x"], "says no format; add --format"),
        (["-o", "x.csv"], "says no format; add --format"),
        (["-o", "x.jsonl", "--format", "csv"], "there is no format csv"),
        (["-o", "-", "--format", "jsonl"], "an export is a file"),
        (["-o", "nowhere/x.jsonl"], "there is no folder nowhere"),
        (["-o", "x.jsonl", "a/#/b"], "'#' before its end"),
        (["-o", "x.jsonl", "--from", "soon"], "--from 'soon' is no place in a log"),
        (["-o", "x.jsonl", "--to", "-1"], "--to '-1' is no place in a log"),
        (["-o", "x.jsonl", "--from", "5", "--to", "4"], "lies before --from 5"),
    ],
)
def test_bad_input_is_one_line(
    data: str, tmp_path: Path, arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in error_of("log", "export", *arguments, "--data", data)
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
    arguments = ("log", "export", "--format", form, "-o", str(out / "x"), "--data", str(tmp_path / "data"))
    command = Running(*arguments)
    try:
        eventually(lambda: any(out.iterdir()))
        command.process.send_signal(signal.SIGINT)
        assert command.wait() == 130
        assert (command.out.rest(), command.err.rest()) == ([], [])
        assert list(out.iterdir()) == []
    finally:
        command.stop()


def test_a_row_is_the_message_it_was() -> None:
    schema = schema_of(LOG_ID)
    row = {
        "offset": 7, "topic": "a", "publisher": "me", "published": 5, "received": 6, "qos": 2, "retained": True,
        "payload": b"x",
    }  # fmt: skip
    (found,) = log_export.messages_of(pa.RecordBatch.from_pylist([row], schema=schema))
    assert (found.offset, found.published_us, found.received_us, found.payload) == (7, 5, 6, b"x")
    assert (found.topic, found.publisher, found.qos, found.retained) == ("a", "me", 2, True)
