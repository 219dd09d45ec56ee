"""`godwit log tail` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from tests.cli.logs import BEGAN_US, entry, opened, write_log
from tests.cli.real import GODWIT, environment, error_of, godwit, lines, needs_posix, running

from godwit.store.maintenance import backup


@pytest.fixture
def data(tmp_path: Path) -> str:
    write_log(
        tmp_path / "data",
        [[("home/a", str(number)), ("home/b", f"-{number}")] for number in range(20)] + [[("$jobs/x", "job")]],
    )
    return str(tmp_path / "data")


def test_the_last_ten(data: str) -> None:
    found = lines(godwit("log", "tail", "--data", data).stdout)
    assert found == [
        "home/b: -15",
        *(f"home/{x}" for n in range(16, 20) for x in (f"a: {n}", f"b: -{n}")),
        "$jobs/x: job",
    ]


def test_filters_and_count(data: str) -> None:
    assert lines(godwit("log", "tail", "home/a", "-n", "2", "--data", data).stdout) == ["home/a: 18", "home/a: 19"]
    assert lines(godwit("log", "tail", "#", "-n", "1", "--data", data).stdout) == ["home/b: -19"]
    assert len(lines(godwit("log", "tail", "--count", "1000", "--data", data).stdout)) == 41
    assert godwit("log", "tail", "--count", "0", "--data", data).stdout == b""
    assert godwit("log", "tail", "garage", "--data", data).stdout == b""


def test_json_is_that_of_sub(data: str) -> None:
    (found,) = lines(godwit("log", "tail", "home/a", "-n", "1", "--json", "--data", data).stdout)
    assert json.loads(found) == {
        "topic": "home/a",
        "publisher": "sensor-1",
        "published": "2025-03-01T12:00:37.999000Z",
        "received": "2025-03-01T12:00:38.000000Z",
        "qos": 1,
        "retained": False,
        "offset": 38,
        "payload": "19",
    }


@needs_posix
def test_follow_shows_what_a_broker_adds_and_ends_with_ctrl_c(data: str) -> None:
    with opened(Path(data)) as store, running("log", "tail", "home/#", "-n", "1", "--follow", "--data", data) as tail:
        assert tail.out.line() == "home/b: -19"
        store.append([entry("home/a", "new"), entry("garage", "not wanted")])
        assert tail.out.line() == "home/a: new"
        store.append([entry("home/b", "newer")])
        assert tail.out.line() == "home/b: newer"
        began = time.monotonic()
        assert tail.interrupt() == 130
        assert time.monotonic() - began < 2.0
        assert (tail.out.rest(), tail.err.rest()) == ([], [])


@needs_posix
def test_follow_goes_on_when_the_file_is_replaced(data: str, tmp_path: Path) -> None:
    with running("log", "tail", "home/b", "-n", "1", "--follow", "--data", data) as tail:
        assert tail.out.line() == "home/b: -19"
        write_log(tmp_path / "compacted", [[("home/b", "known")] * 41, [("home/b", "new")]])
        (tmp_path / "compacted" / "log.sqlite").replace(Path(data) / "log.sqlite")
        assert tail.out.line() == "home/b: new"
        write_log(tmp_path / "other", [[("home/b", "from another log")]], log_id=bytes(16))
        (tmp_path / "other" / "log.sqlite").replace(Path(data) / "log.sqlite")
        assert tail.out.line() == "home/b: from another log"
        assert tail.err.line() == "godwit: there is a new log in the folder; going on with its beginning"


@needs_posix
def test_follow_goes_back_when_an_older_copy_is_put_in_its_place(data: str, tmp_path: Path) -> None:
    backup(Path(data) / "log.sqlite", tmp_path / "copy.sqlite", lambda *_: None)
    with opened(Path(data), b"lost" * 4) as store:
        store.append([entry("home/b", "lost"), entry("home/b", "lost too")])
    with running("log", "tail", "home/b", "-n", "1", "--follow", "--data", data) as tail:
        assert tail.out.line() == "home/b: lost too"
        (tmp_path / "restored").mkdir()
        (tmp_path / "copy.sqlite").rename(tmp_path / "restored" / "log.sqlite")
        with opened(tmp_path / "restored", b"new!" * 4) as store:
            store.append([entry("home/b", f"new {number}", received_us=BEGAN_US * 2) for number in range(3)])
        (tmp_path / "restored" / "log.sqlite").replace(Path(data) / "log.sqlite")
        assert [tail.out.line() for _ in range(3)] == [f"home/b: new {number}" for number in range(3)]
        assert tail.err.line() == (
            "godwit: an older copy of the log was put back: from offset 41 on it has other messages; going on there"
        )


@needs_posix
def test_a_reader_that_goes_ends_it_quietly(data: str) -> None:
    """As `godwit log tail --follow | head -1` does."""
    command = [*GODWIT, "log", "tail", "-n", "1", "--follow", "--data", data]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == b"$jobs/x: job\n"
            process.stdout.close()
            assert process.wait(timeout=10) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()


def test_damage_is_told(data: str) -> None:
    with opened(Path(data)) as store:
        store.connection.execute("UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = 38")
    found = godwit("log", "tail", "-n", "5", "--data", data)
    assert lines(found.stdout) == ["home/a: 18", "home/b: -18", "$jobs/x: job"]
    assert lines(found.stderr) == [
        "godwit: offsets 38 to 39 cannot be read: they are damaged; see godwit log verify",
    ]


def test_bad_input_is_one_line(data: str, tmp_path: Path) -> None:
    assert "--count -1 cannot be" in error_of("log", "tail", "--count", "-1", "--data", data)
    assert "'#' before its end" in error_of("log", "tail", "a/#/b", "--data", data)
    assert "there is no log" in error_of("log", "tail", "--data", str(tmp_path))
