"""`godwit sub` as a user sees it."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.cli.fake_client import message
from tests.cli.logs import opened, write_log
from tests.cli.real import (
    GODWIT,
    NOTICE,
    PATIENCE_S,
    broker,
    environment,
    error_of,
    eventually,
    godwit,
    lines,
    needs_posix,
    running,
    subscribed,
)
from tests.ports import free_port

from godwit.cli.sub import _report_gap, file_line, parse_age, parse_size, parse_start, position_after
from godwit.errors import UsageError
from godwit.net.file_inbox import ReceivedFile


def publish(address: str, topic: str, *messages: str, qos: str = "1") -> None:
    data = "".join(f"{message}\n" for message in messages).encode()
    assert godwit("pub", topic, "--lines", "-q", "--qos", qos, "--broker", address, input=data).returncode == 0


def test_several_filters_and_wildcards(address: str) -> None:
    with running("sub", "sub/+/temperature", "sub/*/fan", "--broker", address) as sub:
        subscribed(address, "sub/+/temperature")
        for topic in ("sub/a/temperature", "sub/a/b/temperature", "sub/a/b/fan", "sub/fan", "sub/b/temperature"):
            publish(address, topic, "x")
        assert [sub.out.line() for _ in range(3)] == [
            "sub/a/temperature: x",
            "sub/a/b/fan: x",
            "sub/b/temperature: x",
        ]


def test_what_came_before_is_not_shown_unless_asked_for(address: str) -> None:
    publish(address, "sub/past", "one", "two")
    assert lines(godwit("sub", "sub/past", "--from", "earliest", "--count", "2", "--broker", address).stdout) == [
        "sub/past: one",
        "sub/past: two",
    ]
    found = godwit("sub", "sub/past", "--from", "earliest", "--json", "--count", "1", "--broker", address)
    offset = json.loads(found.stdout)["offset"]
    found = godwit("sub", "sub/past", "--from", str(offset + 1), "--count", "1", "--broker", address)
    assert lines(found.stdout) == ["sub/past: two"]
    found = godwit("sub", "sub/past", "--from", "2020-01-01", "--count", "1", "--broker", address)
    assert lines(found.stdout) == ["sub/past: one"]


def test_count_cuts_a_batch(address: str) -> None:
    publish(address, "sub/many", *map(str, range(1000)))
    found = godwit("sub", "sub/many", "--from", "earliest", "--count", "10", "--broker", address)
    assert lines(found.stdout) == [f"sub/many: {number}" for number in range(10)]


def test_a_name_finds_its_place_again(address: str) -> None:
    """R2 and R4: messages published while a named subscriber was away are not lost."""
    arguments = ("sub", "sub/named", "--name", "display-1", "--broker", address)
    with running(*arguments) as sub:
        subscribed(address, "sub/named")
        publish(address, "sub/named", "one")
        assert sub.out.line() == "sub/named: one"
        assert sub.interrupt() == 130
    publish(address, "sub/named", "two", "three")
    found = lines(godwit(*arguments, "--count", "2").stdout)
    assert found[-1] in ("sub/named: two", "sub/named: three")  # at least once: `one` may come again


def test_a_cursor_moves_when_messages_were_printed(address: str) -> None:
    arguments = ("sub", "sub/cursor", "--cursor", "report", "--name", "c", "--broker", address)
    publish(address, "sub/cursor", "one")
    assert lines(godwit(*arguments, "--from", "earliest", "--count", "1").stdout) == ["sub/cursor: one"]
    publish(address, "sub/cursor", "two")
    assert lines(godwit(*arguments, "--count", "1").stdout) == ["sub/cursor: two"]


def test_a_cursor_needs_no_other_name(address: str) -> None:
    publish(address, "sub/alone", "one", "two")
    arguments = ("sub", "sub/alone", "--cursor", "sub-alone", "--count", "1", "--broker", address)
    assert lines(godwit(*arguments, "--from", "earliest").stdout) == ["sub/alone: one"]
    assert lines(godwit(*arguments).stdout) == ["sub/alone: two"]


def test_what_count_cuts_off_comes_the_next_time(address: str) -> None:
    """With a cursor and without: a batch that was cut is not lost, and not printed twice."""
    publish(address, "sub/cut", *map(str, range(9)))
    for more in (["--cursor", "cut", "--name", "cut-1"], ["--name", "cut-2"]):
        arguments = ("sub", "sub/cut", *more, "--broker", address)
        found = lines(godwit(*arguments, "--from", "earliest", "--count", "2").stdout)
        for count in (1, 2, 4):
            found = [*found, *lines(godwit(*arguments, "--count", str(count)).stdout)]
        assert found == [f"sub/cut: {number}" for number in range(9)]


def test_place_behind() -> None:
    logged = [message("a", b"", offset=offset) for offset in (4, 5)]
    assert position_after(logged, 4) == 6
    assert position_after([*logged, message("a", b"", qos=0, offset=None)], 4) == 6
    assert position_after([message("a", b"", qos=0, offset=None)], 4) == 4
    assert position_after([], 4) == 4


def test_nothing_from_the_network_acts_on_the_terminal(address: str) -> None:
    with running("sub", "sub/evil", "--count", "1", "--broker", address) as sub:
        subscribed(address, "sub/evil")
        godwit("pub", "sub/evil", "\x1b[2J\r\nfake: line", "--broker", address)
        assert sub.out.line() == "sub/evil: \\x1b[2J\\r\\nfake: line"


@needs_posix
def test_a_reader_that_goes_ends_it_quietly(address: str) -> None:
    """As `godwit sub sub/head | head -1` does; also when no further message comes."""
    command = [*GODWIT, "sub", "sub/head", "--broker", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            subscribed(address, "sub/head")
            publish(address, "sub/head", "one")
            assert process.stdout.readline() == b"sub/head: one\n"
            process.stdout.close()
            assert process.wait(timeout=PATIENCE_S) == 0
            assert NOTICE.sub("", process.stderr.read().decode()) == ""
        finally:
            process.kill()


@needs_posix
def test_ctrl_c_ends_it_at_once(address: str) -> None:
    with running("sub", "sub/interrupt", "--broker", address) as sub:
        subscribed(address, "sub/interrupt")
        assert sub.interrupt() == 130
        assert (sub.out.rest(), sub.err.rest()) == ([], [])


@needs_posix
def test_sigterm_closes_the_connection(address: str) -> None:
    """Otherwise the name would be held, and the next client would have to wait for it."""
    with running("sub", "sub/terminate", "--cursor", "terminate", "--broker", address) as sub:
        subscribed(address, "sub/terminate")
        sub.process.terminate()
        assert sub.wait() == 143
        assert (sub.out.rest(), sub.err.rest()) == ([], [])
    clients = map(json.loads, lines(godwit("clients", "--json", "--broker", address).stdout))
    assert [each["address"] for each in clients if each["name"] == "terminate"] == [""]


def test_a_cursor_in_use_is_called_a_cursor(address: str) -> None:
    with running("sub", "sub/held", "--cursor", "held", "--broker", address):
        subscribed(address, "sub/held")
        text = error_of("sub", "sub/held", "--cursor", "held", "--broker", address)
        assert text.startswith("the cursor 'held' is in use by another client")
        text = error_of("sub", "sub/held", "--cursor", "other", "--name", "held", "--broker", address)
        assert text.startswith("the name 'held' is in use by another client")


def test_what_was_missed_is_the_most_that_it_can_be(tmp_path: Path) -> None:
    """The broker counts all offsets that are gone, of whatever topic."""
    data = tmp_path / "data"
    write_log(data, [[("sub/gap", "one")], [("sub/other", "two")], [("sub/gap", "three")]])
    with opened(data) as store:
        store.connection.execute("UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset < 2")
    with broker("--data", str(data), "--archive", "none") as address:
        found = godwit("sub", "sub/gap", "--from", "0", "--count", "1", "--broker", address)
    assert lines(found.stdout) == ["sub/gap: three"]
    assert lines(found.stderr) == ["godwit: missed up to 2 messages"]


@needs_posix
def test_it_waits_for_a_broker_that_comes_later_and_comes_back_to_it() -> None:
    """A client started before its broker gets through once it is there."""
    address = f"127.0.0.1:{free_port()}"
    with running("sub", "sub/later", "--broker", address) as sub:
        line = sub.err.until("no broker answers")
        assert line == f"godwit: no broker answers at {address}; still trying (Ctrl-C ends)"
        with running("broker", "--listen", address, "--memory") as first:
            first.out.until("listening on")
            subscribed(address, "sub/later")
            publish(address, "sub/later", "one")
            assert sub.out.line() == "sub/later: one"
            first.process.terminate()
            assert first.wait() == 0
        assert sub.err.line() == (
            f"godwit: lost the broker at {address} (the broker is being stopped); trying to get it back (Ctrl-C ends)"
        )
        with running("broker", "--listen", address, "--memory") as second:
            second.out.until("listening on")
            assert sub.err.line() == f"godwit: the broker at {address} is back"
            assert sub.err.line().startswith("godwit: may have missed messages")
            subscribed(address, "sub/later")
            publish(address, "sub/later", "two")
            assert sub.out.until("two") == "sub/later: two"
    with running("sub", "x", "--broker", address) as sub:
        sub.err.until("no broker answers")
        assert sub.interrupt() == 130


@needs_posix
def test_a_durable_broker_may_be_killed(tmp_path: Path) -> None:
    """A subscriber misses nothing and receives nothing twice; a cursor keeps its position."""
    address = f"127.0.0.1:{free_port()}"
    arguments = ("broker", "--listen", address, "--data", str(tmp_path / "data"), "--archive", "none")
    cursor = ("sub", "sub/kill", "--cursor", "sub-kill", "--count", "2", "--broker", address)
    with running("sub", "sub/kill", "--broker", address) as sub:
        with running(*arguments) as first:
            first.out.until("listening on")
            subscribed(address, "sub/kill")
            publish(address, "sub/kill", "one", "two", "three")
            assert [sub.out.line() for _ in range(3)] == ["sub/kill: one", "sub/kill: two", "sub/kill: three"]
            found = godwit(*cursor, "--from", "earliest")
            assert lines(found.stdout) == ["sub/kill: one", "sub/kill: two"]
            first.process.kill()
            first.wait()
        with running(*arguments) as second:
            second.out.until("listening on")
            publish(address, "sub/kill", "four")
            assert sub.out.line() == "sub/kill: four"
            assert lines(godwit(*cursor).stdout) == ["sub/kill: three", "sub/kill: four"]
        assert [line for line in sub.err.rest() if "missed" in line] == []


def test_with_a_time_limit_it_gives_up(nowhere: str) -> None:
    assert "127.0.0.1 port 9" in error_of("sub", "x", "--broker", nowhere, "--timeout", "0.3")


def test_a_kicked_subscriber_is_notified_and_ends(address: str) -> None:
    for filters in ([], ["sub/kicked"]):
        with running("sub", "sub/kicked", "--name", "victim", "--broker", address) as sub:
            subscribed(address, "sub/kicked")
            assert godwit("kick", "victim", *filters, "--reason", "too loud", "--broker", address).returncode == 0
            assert "too loud" in sub.err.line()
            assert sub.wait() == 1


def test_a_slow_reader_does_not_lose_the_connection(address: str) -> None:
    with running("sub", "sub/slow", "--count", "30000", "--broker", address) as sub:
        subscribed(address, "sub/slow")
        publish(address, "sub/slow", *["x" * 100] * 30_000)
        eventually(lambda: len(sub.out.rest()) >= 0 and len(sub.out.seen) == 30_000)
        assert sub.wait() == 0
        assert sub.err.rest() == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([""], "is empty"),
        (["a/b#"], "a wildcard"),
        (["#/a"], "'#' before its end"),
        (["a\udcff"], "is not valid Unicode"),
        (["a", "--count", "0"], "--count 0 is out of range"),
        (["a", "--from", "soon"], "is not a position"),
        (["a", "--save", "x", "--no-follow"], "--save receives files"),
        (["a", "--save", "x", "--raw"], "--save receives files"),
        (["a", "--wait", "0"], "--wait 0 is out of range"),
        (["a", "--json", "--raw"], "exclude each other"),
        (["a", "--retained-only", "--from", "earliest"], "--retained-only does not accept"),
        (["a", "--exclude", "b#"], "a wildcard"),
        (["a", "--format", "%t %z"], "--format has an unknown %z; choose from %t, %p"),
        (["a", "--format", "%t\\q"], "--format has an unknown \\q; choose from"),
        (["a", "--session-expiry", "5"], "add --name to --session-expiry"),
        (["a", "--max-size", "5"], "--max-size limits received files: add --save"),
        (["a", "--max-total", "1KiB"], "--max-total limits received files: add --save"),
        (["a", "--name", "n", "--session-expiry", "-1"], "--session-expiry -1 is out of range"),
        (["a", "--save", "x", "--max-size", "much"], "--max-size 'much' is not a size; write it as 500MB"),
        (["a", "--save", "x", "--max-total", "-1"], "--max-total '-1' is not a size"),
        (["a"] * 1 + [f"f{number}" for number in range(64)], "64"),
    ],
)
def test_bad_input_is_one_line(address: str, arguments: list[str], text: str) -> None:
    assert text in error_of("sub", *arguments, "--broker", address)


def test_a_folder_that_cannot_be(address: str, tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("x")
    assert "cannot use the folder" in error_of("sub", "a", "--save", str(taken), "--broker", address)


def test_files_are_received_within_limits(address: str, tmp_path: Path) -> None:
    for size in (100, 3000, 5000):
        (tmp_path / f"{size}.bin").write_bytes(bytes(size))
    arguments = ("sub", "limits/files", "--save", str(tmp_path / "in"), "--max-size", "4KB", "--max-total", "10KiB")
    with running(*arguments, "--broker", address) as sub:
        subscribed(address, "limits/files")
        for size in (5000, 100, 3000):
            sent = godwit("pub", "limits/files", "--file", str(tmp_path / f"{size}.bin"), "--broker", address)
            assert sent.returncode == 0, sent.stderr
        assert "5000.bin is not received: it has 5,000 bytes, and at most 4,000 are allowed" in sub.err.line()
        assert sub.out.line() == str(tmp_path / "in" / "100.bin")
        assert "cannot keep 3000.bin" in (text := sub.err.line())
        assert "the limit of 10,240 bytes in total; move files away or raise the limit" in text
        assert sub.wait() == 1
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["100.bin"]


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("1.5 KiB", 1536), ("10GiB", 10 * 2**30), ("1TB", 10**12)]
)
def test_parse_size(text: str, size: int) -> None:
    assert parse_size("--max-size", text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1e9", "10 gib", "9" * 30, "٣"])
def test_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size; write it as"):
        parse_size("--max-size", text)


@pytest.mark.parametrize(
    ("text", "start", "since", "back"),
    [
        (None, None, None, None),
        ("latest", "latest", None, None),
        ("earliest", "earliest", None, None),
        ("17", 17, None, None),
        ("-10", None, None, 10),
        ("2025-03-01T12:00", None, datetime(2025, 3, 1, 12, tzinfo=UTC), None),
        ("2025-03-01T12:00:00+01:00", None, datetime(2025, 3, 1, 11, tzinfo=UTC), None),
    ],
)
def test_parse_start(text: str | None, start: str | int | None, since: datetime | None, back: int | None) -> None:
    assert parse_start(text) == (start, since, back)


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("1.5h", timedelta(hours=1.5)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(days=7)),
        ("5", None),
        ("5y", None),
        ("-5m", None),
    ],
)
def test_parse_age(text: str, age: timedelta | None) -> None:
    assert parse_age(text) == age
    if age is not None:
        _, since, _ = parse_start(text)
        assert since is not None
        assert datetime.now(UTC) - timedelta(minutes=1) < since + age <= datetime.now(UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "-", "-1x", "1.5", "9" * 30, "1969-01-01", "٣"])
def test_no_start(text: str) -> None:
    with pytest.raises(UsageError, match="is not a position"):
        parse_start(text)


def test_file_line() -> None:
    file = ReceivedFile(Path("in/a\x1b.bin"), "a.bin", "files", "me", 3, b"\xab" * 32)
    assert file_line(file, as_json=False) == "in/a\\x1b.bin\n"
    found = json.loads(file_line(file, as_json=True))
    assert (found["path"], found["size_bytes"], found["sha256"]) == ("in/a\x1b.bin", 3, "ab" * 32)


def test_an_older_copy_of_the_log_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    _report_gap(None, None)
    _report_gap(None, (1200, 1300))
    other, older = capsys.readouterr().err.splitlines()
    assert "the broker has a new log" in other
    assert "older copy of its log: the messages received at the offsets 1,200 to 1,299 are not in it" in older


# -- where to end, and what to print ----------------------------------------------------------------------------------


def test_no_follow_ends_at_the_end_of_the_log(address: str) -> None:
    publish(address, "end/a", *map(str, range(300)))
    publish(address, "other/end", "x")
    found = godwit("sub", "end/#", "--from", "earliest", "--no-follow", "--payload-only", "--broker", address)
    assert (found.returncode, lines(found.stdout)) == (0, [str(number) for number in range(300)])
    found = godwit("sub", "end/nothing/#", "--from", "earliest", "--no-follow", "--broker", address)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")
    assert "300 of 301 messages arrived before the end of the log" in error_after_output(
        "sub", "end/a", "--from", "earliest", "--no-follow", "-n", "301", "--broker", address
    )


def error_after_output(*arguments: str) -> str:
    result = godwit(*arguments)
    assert result.returncode == 1
    return result.stderr.decode()


def test_no_follow_with_a_cursor_prints_each_message_once(address: str) -> None:
    arguments = ("sub", "end/cursor", "--cursor", "end-cursor", "--no-follow", "--payload-only", "--broker", address)
    publish(address, "end/cursor", "one", "two")
    assert lines(godwit(*arguments, "--from", "earliest").stdout) == ["one", "two"]
    assert godwit(*arguments).stdout == b""
    publish(address, "end/cursor", "three")
    assert lines(godwit(*arguments).stdout) == ["three"]


def test_wait_ends_after_a_time(address: str) -> None:
    publish(address, "wait/a", "one")
    options = ("-W", "5", "--timeout", str(PATIENCE_S), "--broker", address)  # the timeout is that of the connection
    found = godwit("sub", "wait/a", "--from", "earliest", *options)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"wait/a: one\n", b"")
    text = error_after_output("sub", "wait/a", "--from", "earliest", "-n", "2", *options)
    assert text == "godwit: 1 of 2 messages arrived within 5 s\n"


def test_messages_printed_before_the_time_is_over_do_not_come_again(address: str) -> None:
    options = ("-W", "5", "--timeout", str(PATIENCE_S), "--broker", address)
    arguments = ("sub", "wait/named", "--name", "wait-named", "--payload-only", *options)
    publish(address, "wait/named", "one")
    assert godwit(*arguments, "--from", "earliest").stdout == b"one\n"
    publish(address, "wait/named", "two")
    assert godwit(*arguments).stdout == b"two\n"


def test_wait_needs_no_broker(nowhere: str) -> None:
    assert "no broker answered" in error_of("sub", "a", "-W", "0.3", "--broker", nowhere)


def test_from_counts_back_from_the_end(address: str) -> None:
    publish(address, "back", *map(str, range(10)))
    found = godwit("sub", "back", "--from", "-3", "--no-follow", "--payload-only", "--broker", address)
    assert lines(found.stdout) == ["7", "8", "9"]
    assert len(lines(godwit("sub", "back", "--from", "1h", "--no-follow", "--broker", address).stdout)) == 10


def test_exclude(address: str) -> None:
    for topic in ("exclude/a", "exclude/b/c", "exclude/b/d"):
        publish(address, topic, "x")
    found = godwit(
        "sub", "exclude/#", "--exclude", "exclude/+/c", "-T", "exclude/a", "--from", "earliest", "--no-follow",
        "--broker", address,
    )  # fmt: skip
    assert lines(found.stdout) == ["exclude/b/d: x"]


def test_retained_only_and_no_retained(address: str) -> None:
    for name in ("a", "b"):
        godwit("pub", f"stored/{name}", "old", "--retain", "-q", "--broker", address)
    found = godwit("sub", "stored/#", "--retained-only", "--format", "%t %r", "--broker", address)
    assert sorted(lines(found.stdout)) == ["stored/a 1", "stored/b 1"]
    with running("sub", "stored/#", "--no-retained", "--broker", address) as sub:
        subscribed(address, "stored/#")
        publish(address, "stored/a", "new")
        assert sub.out.line() == "stored/a: new"


def test_raw_keeps_every_byte(address: str) -> None:
    data = bytes(range(256))
    assert godwit("pub", "raw/bytes", "-", "-q", "--broker", address, input=data).returncode == 0
    assert godwit("sub", "raw/bytes", "--from", "-1", "--no-follow", "--raw", "--broker", address).stdout == data


def test_files_from_an_earlier_position(address: str, tmp_path: Path) -> None:
    path = tmp_path / "early.bin"
    path.write_bytes(b"early" * 1000)
    assert godwit("pub", "early/files", "--file", str(path), "-q", "--broker", address).returncode == 0
    found = godwit(
        "sub", "early/files", "--save", str(tmp_path / "in"), "--from", "earliest", "-n", "1", "-W", "120",
        "--broker", address,
    )  # fmt: skip
    assert lines(found.stdout) == [str(tmp_path / "in" / "early.bin")]
    assert (tmp_path / "in" / "early.bin").read_bytes() == path.read_bytes()


# -- QoS of filters ---------------------------------------------------------------------------------------------------


def test_each_filter_has_its_own_highest_qos(address: str) -> None:
    for qos in ("0", "1", "2"):
        assert godwit("pub", f"sub/qos/{qos}", "x", "--qos", qos, "-q", "--broker", address).returncode == 0
    shown = ["sub/qos/1", "sub/qos/2", "--from", "earliest", "--no-follow", "--format", "%t %q\\n", "--broker", address]
    for options, wanted in (
        ((), ["sub/qos/1 1", "sub/qos/2 2"]),
        (("--qos", "1"), ["sub/qos/1 1", "sub/qos/2 1"]),
        (("--qos", "2", "--qos", "0"), ["sub/qos/1 1", "sub/qos/2 0"]),
        (("--qos", "0", "--qos", "2"), ["sub/qos/1 0", "sub/qos/2 2"]),
    ):
        result = godwit("sub", *shown, *options)
        assert result.returncode == 0, result.stderr
        assert sorted(lines(result.stdout)) == wanted, options


def test_a_filter_of_qos_0_keeps_no_position_for_a_client_that_comes_back(address: str) -> None:
    arguments = ["sub/kept", "sub/lost", "--qos", "1", "--qos", "0", "--name", "qos-client", "--session-expiry", "60"]
    with running("sub", *arguments, "--count", "2", "--broker", address) as command:
        subscribed(address, "sub/kept")
        subscribed(address, "sub/lost")
        for topic in ("sub/kept", "sub/lost"):
            assert godwit("pub", topic, "1", "-q", "--broker", address).returncode == 0
        assert sorted((command.out.line(), command.out.line())) == ["sub/kept: 1", "sub/lost: 1"]
        assert command.wait() == 0
    for topic in ("sub/kept", "sub/lost"):
        assert godwit("pub", topic, "2", "-q", "--broker", address).returncode == 0
    result = godwit("sub", *arguments, "--no-follow", "--broker", address)
    assert (result.returncode, lines(result.stdout)) == (0, ["sub/kept: 2"]), result.stderr


@needs_posix
def test_the_will_of_a_killed_subscriber(address: str) -> None:
    will = ("--will-topic", "sub/will", "--will-payload", "gone", "--will-qos", "2", "--will-retain")
    with running("sub", "sub/alive", *will, "--name", "sub-killed", "--broker", address) as command:
        subscribed(address, "sub/alive")
        command.process.kill()
        # Another client of the same name ends the connection of the killed one at once.
        godwit("ping", "-n", "1", "--name", "sub-killed", "--broker", address)
        result = godwit("sub", "sub/will", "-n", "1", "-F", "%p %q", "--broker", address)
    assert lines(result.stdout) == ["gone 2"]


@pytest.mark.parametrize(("expiry", "wanted"), [("0", []), ("60", ["sub/away: 2"])])
def test_a_session_is_kept_for_its_expiry(address: str, expiry: str, wanted: list[str]) -> None:
    name = f"sub-expiry-{expiry}"
    arguments = ("sub", "sub/away", "--name", name, "--session-expiry", expiry, "--broker", address)
    with running(*arguments, "-n", "1") as command:
        subscribed(address, "sub/away")
        assert godwit("pub", "sub/away", "1", "-q", "--broker", address).returncode == 0
        assert command.out.line() == "sub/away: 1"
        assert command.wait() == 0
    assert godwit("pub", "sub/away", "2", "-q", "--broker", address).returncode == 0
    assert lines(godwit(*arguments, "--no-follow").stdout) == wanted


def test_bad_qos_of_filters() -> None:
    assert "is given 2 times for 3 filters" in error_of("sub", "a", "b", "c", "--qos", "1", "--qos", "2")
    assert "3" in error_of("sub", "a", "--qos", "3")
    assert "stores no position" in error_of("sub", "a", "--qos", "0", "--cursor", "c")
    assert "receives files" in error_of("sub", "a", "--qos", "0", "--save", "folder")
