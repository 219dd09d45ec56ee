"""How the lake is shown: values, answers in three forms, the status."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from tests.cli.real import GODWIT, environment, error_of, godwit, lines, needs_posix
from tests.pipeline.lakes import write_spark_checkpoint

from godwit.cli.pipeline_run import SparkOptions
from godwit.cli.pipeline_show import cell_text, json_value, show_query
from godwit.pipeline.checkpoints import TABLES
from godwit.pipeline.datasets import bronze
from godwit.pipeline.lake import Lake
from godwit.pipeline.sql import check_first_word

LOG = "a" * 32
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "in_json", "in_table"),
    [
        (None, None, ""),
        (1.23456789, 1.23456789, "1.23457"),
        (float("nan"), None, "nan"),
        (b"warm", "warm", "warm"),
        (b"\xff\x00", "/wA=", "<2 bytes>"),
        (NOON, "2026-11-15T12:00:00.000000Z", "2026-11-15T12:00:00.000000Z"),
        (Decimal("1.50"), "1.50", "1.50"),
        ([1, {"a": b"x"}], [1, {"a": "x"}], '[1,{"a":"x"}]'),
        (Row(a=1, b=None), {"a": 1, "b": None}, '{"a":1,"b":null}'),
        (True, True, "true"),
    ],
)
def test_values(value: Any, in_json: Any, in_table: str) -> None:
    assert json_value(value) == in_json
    assert cell_text(value) == in_table


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake(str(tmp_path / "lake"))
    rows = [
        {"broker": LOG, "offset": at, "topic": "a\x1b[31m", "received": NOON, "payload": str(at).encode()}
        for at in range(3)
    ]
    found.table(bronze.SPEC).append_arrow(pa.Table.from_pylist(rows, bronze.SPEC.schema), {"q": 0})
    return found


def test_answers_in_three_forms(lake: Lake) -> None:
    ask = ("pipeline", "query", "--lake", lake.address)
    sql = "SELECT offset, topic, payload, received FROM bronze_messages ORDER BY offset"
    told = [json.loads(line) for line in lines(godwit(*ask, sql, "--json").stdout)]
    assert told[2] == {"offset": 2, "topic": "a\x1b[31m", "payload": "2", "received": "2026-11-15T12:00:00.000000Z"}
    table = godwit(*ask, sql, "--limit", "2")
    assert lines(table.stdout)[0].split() == ["offset", "topic", "payload", "received"]
    assert lines(table.stdout)[1].split() == ["0", r"a\x1b[31m", "0", "2026-11-15T12:00:00.000000Z"]
    assert len(lines(table.stdout)) == 3
    assert b"more than 2 rows: see the rest with --limit" in table.stderr
    assert lines(godwit(*ask, "SELECT offset, [1] a FROM bronze_messages WHERE offset = 1", "--csv").stdout) == [
        "offset,a",
        "1,[1]",
    ]
    assert "choose from bronze_messages" in error_of(*ask, "SELECT * FROM nothing")
    assert "give --engine spark" in error_of(*ask, "SELECT 1", "--conf", "spark.x=1")
    assert lines(godwit(*ask, "SELECT count(*) AS n FROM gold_windows", "--csv").stdout) == ["n", "0"]


@pytest.mark.parametrize("sql", ["DROP TABLE bronze_messages", " /* a */ -- b\n(insert INTO x VALUES (1))", "selec 1"])
def test_statements_are_refused_before_spark_starts(lake: Lake, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        pytest.fail("Spark was started")

    monkeypatch.setattr("godwit.cli.pipeline_show.session", fail)
    error = error_of("pipeline", "query", "--engine", "spark", "--lake", lake.address, sql)
    assert re.match("(DROP|INSERT|SELEC) is not a query: use SELECT", error)


@pytest.mark.parametrize(
    "sql", ["SELECT 1", "-- a\nwith x as (select 1) select * from x", "(SELECT 1)", "", "VALUES (1)"]
)
def test_queries_are_left_to_spark(sql: str) -> None:
    check_first_word(sql)


@pytest.mark.soak
def test_answers_of_spark(lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def shared(master: str, log: Path, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        assert (master, dict(settings)) == ("local[*,4]", {"spark.x": "1"})
        yield spark

    monkeypatch.setattr("godwit.pipeline.session.spark_session", shared)
    ask = ("pipeline", "query", "--engine", "spark", "--lake", lake.address, "--conf", "spark.x=1")
    sql = "SELECT offset, topic, payload, received FROM bronze_messages ORDER BY offset"
    told = [json.loads(line) for line in lines(godwit(*ask, sql, "--json").stdout)]
    assert told[2] == {"offset": 2, "topic": "a\x1b[31m", "payload": "2", "received": "2026-11-15T12:00:00.000000Z"}
    table = godwit(*ask, sql, "--limit", "2")
    assert lines(table.stdout)[0].split() == ["offset", "topic", "payload", "received"]
    assert lines(table.stdout)[1].split() == ["0", r"a\x1b[31m", "0", "2026-11-15T12:00:00.000000Z"]
    assert len(lines(table.stdout)) == 3
    assert b"more than 2 rows: see the rest with --limit" in table.stderr
    assert lines(godwit(*ask, "SELECT offset, array(1) a FROM bronze_messages WHERE offset = 1", "--csv").stdout) == [
        "offset,a",
        "1,[1]",
    ]
    assert "choose from bronze_messages" in error_of(*ask, "SELECT * FROM nothing")


EVIL = "\x1b]0;title\x07\r\n\u202e"


def answer_of(names: list[str], rows: list[dict[str, Any]], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Print an answer as `godwit pipeline query` does, without Spark."""

    class Answer:
        columns = names

    @contextmanager
    def no_session(*_: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr("godwit.cli.pipeline_show.session", no_session)
    monkeypatch.setattr("godwit.pipeline.sql.run_query", lambda *_: Answer)
    monkeypatch.setattr("godwit.pipeline.sql.iterate_rows", lambda _: iter(rows))
    show_query(SparkOptions("local", [], False), str(Path.cwd()), "SELECT", form, None)


@needs_posix
def test_no_spinner_is_left_in_front_of_a_table(lake: Lake) -> None:
    master, slave = pty.openpty()
    command = [*GODWIT, "pipeline", "query", "--lake", lake.address, "SELECT 7 AS answer"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment(TERM="xterm")) as process:
        os.close(slave)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while data := os.read(master, 65536):
                shown += data
    os.close(master)
    assert process.returncode == 0, shown
    assert b"working" in shown
    between = shown.rpartition(b"working")[2].partition(b"answer")[0]
    assert b"\x1b[2K" in between, "the line of the spinner is erased"
    assert b"working" not in shown.partition(b"answer")[2]


@needs_posix
@pytest.mark.parametrize("form", ["csv", "json", "table"])
def test_a_terminal_gets_no_control_characters_of_data_or_titles(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)  # else the terminal adds carriage returns of its own
    with os.fdopen(slave, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        row = {EVIL: EVIL.encode(), "nested": [EVIL, "\x9b31m"], "[bold]n[/bold]": 1}
        answer_of(list(row), [row], form, patch)
    written = b""
    with suppress(OSError):  # the end, as the other side is closed
        while data := os.read(master, 65536):
            written += data
    os.close(master)
    screen = written.decode()
    own = re.sub(r"\x1b\[[0-9;]*m", "", screen)  # the bold titles of a table
    assert not [one for one in own if one != "\n" and not one.isprintable()], repr(own)
    assert "title" in own
    if form == "csv":
        assert own.count("\n") == 2
        assert own.splitlines()[0] == r"\x1b]0;title\x07\r\n\u202e,nested,[bold]n[/bold]"


def test_csv_in_a_file_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.csv"
    value = f'{EVIL}, "quoted" \u20ac'
    # The character set of some locales has no euro sign.
    with (
        path.open("w", encoding="iso-8859-9", errors="backslashreplace", newline="") as stream,
        monkeypatch.context() as patch,
    ):
        patch.setattr(sys, "stdout", stream)
        answer_of(["payload", "n"], [{"payload": value.encode(), "n": 1}], "csv", patch)
    with path.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["payload", "n"], [value, "1"]]


def test_the_status(lake: Lake) -> None:
    write_spark_checkpoint(lake, TABLES, [f'{{"{LOG}": 3}}'], done=1)
    ask = ("pipeline", "status", "--lake", lake.address, "--archive", "127.0.0.1:9")
    result = godwit(*ask)
    text = result.stdout.decode()
    assert result.returncode == 0
    assert "the number of unread messages is unknown" in result.stderr.decode()
    assert ["tables", LOG[:8], "3", "?"] in [line.split() for line in text.splitlines()]
    assert "2027-01-15 08:00:00" in text
    assert "bronze/messages" in text
    more = (*ask, "--archive", "192.0.2.7:9", "--json")
    with_token = godwit(*more, GODWIT_ARCHIVE_TOKEN="secret")
    assert b"192.0.2.7:9 is sent without encryption" in with_token.stderr
    assert b"secret" not in with_token.stderr
    told = json.loads(with_token.stdout)
    assert told["queries"] == [{"query": "tables", "batch": 0, "done": "2027-01-15T08:00:00.000000Z"}]
    assert told["tables"][0]["rows"] == 3
