"""`godwit pub` as a user sees it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.real import (
    CODE,
    GODWIT,
    PATIENCE_S,
    broker,
    environment,
    error_of,
    eventually,
    godwit,
    needs_posix,
    running,
    subscribed,
)

from godwit.cli.pub import messages_done, reached_text

if sys.platform != "win32":
    from tests.cli.terminal import terminal


@pytest.mark.parametrize(
    ("reached", "text"),
    [
        (0, "reached no subscriber"),
        (1, "reached 1 subscriber"),
        (2000, "reached 2,000 subscribers"),
        (None, "sent (QoS 0 is not confirmed)"),
    ],
)
def test_reached_text(reached: int | None, text: str) -> None:
    assert reached_text(reached) == text


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_message_reaches_a_subscriber(address: str, qos: str) -> None:
    topic = f"pub/{qos}"
    with running("sub", topic, "--json", "--count", "1", "--broker", address) as sub:
        subscribed(address, topic)
        result = godwit("pub", topic, "21 °C", "--qos", qos, "--name", f"sensor-{qos}", "--broker", address)
        assert (result.returncode, result.stdout) == (0, b"")
        assert result.stderr.decode() == ("sent (QoS 0 is not confirmed)\n" if qos == "0" else "reached 1 subscriber\n")
        message = json.loads(sub.out.line())
        assert sub.wait() == 0
    assert (message["topic"], message["payload"], message["qos"]) == (topic, "21 °C", int(qos))
    assert (message["offset"] is None) == (qos == "0")


def test_properties_are_shown(tmp_path: Path) -> None:
    options = ["--header", "unit=C", "-H", "a=b=c", "--content-type", "text/plain", "--reply-to", "answers/1"]
    with broker("--data", str(tmp_path / "log")) as address:
        for more in (["--retain", "--expires", "600"], ["--lines"]):
            message = [] if "--lines" in more else ["x"]
            given = b"x\n" if "--lines" in more else b""
            result = godwit("pub", "t", *message, *options, *more, "--broker", address, input=given)
            assert result.returncode == 0, result.stderr
        asked = ["--from", "earliest", "--json", "--count", "2", "--broker", address]
        shown = godwit("sub", "t", *asked).stdout.splitlines()
        form = "%C|%P|%R|%E|%D|%t"
        line = godwit("sub", "t", "--count", "1", "--format", form, "--broker", address).stdout.decode()
    for text in shown:
        found = json.loads(text)
        assert found["headers"] == {"unit": "C", "a": "b=c"}
        assert (found["content_type"], found["reply_to"]) == ("text/plain", "answers/1")
    first, second = map(json.loads, shown)
    assert first["expires"] > first["received"]
    assert "expires" not in second
    kind, headers, reply_to, expires, correlation, topic = line.rstrip("\n").split("|")
    assert (kind, headers, reply_to, correlation, topic) == ("text/plain", "unit=C a=b=c", "answers/1", "", "t")
    assert expires.endswith("Z")
    logged = godwit("log", "tail", "--data", str(tmp_path / "log"), "--json").stdout.splitlines()
    assert json.loads(logged[0])["headers"] == {"unit": "C", "a": "b=c"}
    assert json.loads(logged[0])["expires"] > first["received"]


def test_a_publisher_is_notified_that_there_is_no_subscriber(address: str) -> None:
    """R1: publishing to a room with no subscriber tells the publisher so."""
    result = godwit("pub", "pub/lonely", "x", "--broker", address)
    assert (result.returncode, result.stderr) == (0, b"reached no subscriber\n")
    assert godwit("pub", "pub/lonely", "x", "-q", "--broker", address).stderr == b""


def test_a_retained_message_waits_for_later_subscribers_until_it_is_cleared(address: str) -> None:
    topic = "pub/retained"
    godwit("pub", topic, "old", "--retain", "--broker", address)
    godwit("pub", topic, "kept", "--retain", "--broker", address)
    result = godwit("sub", "pub/retained/#", "--count", "1", "--json", "--broker", address)
    message = json.loads(result.stdout)
    assert (message["payload"], message["retained"]) == ("kept", True)
    godwit("pub", topic, "", "--retain", "--broker", address)
    show = json.loads(godwit("topics", "show", topic, "--json", "--broker", address).stdout)
    assert show["retained"] is False


def test_a_negative_number_is_a_message(address: str) -> None:
    for message in ("-5.5", "-.5", "- 5"):
        assert godwit("pub", "pub/negative", message, "--retain", "--broker", address).returncode == 0
        found = godwit("sub", "pub/negative", "--count", "1", "--broker", address)
        assert found.stdout.decode() == f"pub/negative: {message}\n"
    assert error_of("pub", "pub/negative", "--retian") == (
        "unknown option --retian, perhaps --retain is meant; if it is a payload, put -- before it"
    )
    assert godwit("pub", "--broker", address, "pub/negative", "--", "--retian").returncode == 0


def test_bytes_that_are_no_text(address: str) -> None:
    topic = "pub/bytes"
    assert godwit("pub", topic, "\udcff\udc80", "--retain", "--broker", address).returncode == 0
    found = godwit("sub", topic, "--count", "1", "--json", "--broker", address)
    assert json.loads(found.stdout)["payload_base64"] == "/4A="


# -- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", ["1", "2"])
def test_each_line_is_a_message(address: str, qos: str) -> None:
    topic = f"pub/lines/{qos}"
    count = 50_000
    data = b"".join(b"%d\n" % number for number in range(count))
    with running("sub", topic, "--count", str(count), "--broker", address) as sub:
        subscribed(address, topic)
        result = godwit("pub", topic, "--lines", "--qos", qos, "--broker", address, input=data)
        assert result.returncode == 0
        assert result.stderr.decode() == "50,000 messages confirmed; the last one reached 1 subscriber\n"
        assert sub.wait() == 0
        sub.out.until(f"{topic}: {count - 1}")
    assert sub.out.seen == [f"{topic}: {number}" for number in range(count)]


def test_empty_input_and_empty_lines(address: str) -> None:
    result = godwit("pub", "pub/empty", "--lines", "--broker", address)
    assert (result.returncode, result.stderr) == (0, b"nothing to publish: standard input was empty\n")
    result = godwit("pub", "pub/empty", "--lines", "--broker", address, input=b"\n\nx")
    assert b"3 messages confirmed" in result.stderr
    assert godwit("pub", "pub/empty", "--lines", "--quiet", "--broker", address, input=b"x").stderr == b""


def test_a_line_is_sent_when_it_is_typed(address: str) -> None:
    with running("sub", "pub/typed", "--broker", address) as sub:
        subscribed(address, "pub/typed")
        with running("pub", "pub/typed", "--lines", "--broker", address) as pub:
            for word in ("one", "two"):
                pub.write(f"{word}\n")
                assert sub.out.line() == f"pub/typed: {word}"
            pub.close_input()
            assert pub.wait() == 0


@needs_posix
def test_ctrl_c_while_it_waits_for_input(address: str) -> None:
    with running("pub", "pub/interrupted", "--lines", "--broker", address) as pub:
        pub.write("x\n")
        eventually(lambda: godwit("topics", "show", "pub/interrupted", "--broker", address).returncode == 0)
        assert pub.interrupt() == 130
        assert pub.err.line().startswith("interrupted: ")
        assert pub.err.rest() == []


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_crosses_the_broker(address: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 8000
    source = tmp_path / "data.bin"
    source.write_bytes(data)
    folder = tmp_path / "received"
    with running("sub", "pub/files", "--save", str(folder), "--count", "2", "--json", "--broker", address) as sub:
        subscribed(address, "pub/files")
        for _ in range(2):
            result = godwit("pub", "pub/files", "--file", str(source), "--broker", address)
            assert result.returncode == 0
            assert result.stderr.decode() == "data.bin: 2.0 MB confirmed, reached 1 subscriber\n"
        first, second = json.loads(sub.out.line()), json.loads(sub.out.line())
        assert sub.wait() == 0
    assert first["sha256"] == hashlib.sha256(data).hexdigest()
    assert (first["name"], first["size_bytes"], first["topic"]) == ("data.bin", len(data), "pub/files")
    assert (first["path"], second["path"]) == (str(folder / "data.bin"), str(folder / "data (1).bin"))
    assert (folder / "data.bin").read_bytes() == data
    assert sorted(path.name for path in folder.iterdir()) == ["data (1).bin", "data.bin"]


@needs_posix
def test_a_progress_bar_on_a_terminal(address: str, tmp_path: Path) -> None:
    source = tmp_path / "large.bin"
    source.write_bytes(bytes(30_000_000))
    arguments = ("sub", "pub/bar", "--save", str(tmp_path / "in"), "--count", "1", "--broker", address)
    with terminal(*arguments) as sub:
        subscribed(address, "pub/bar")
        with terminal("pub", "pub/bar", "--file", str(source), "--broker", address) as pub:
            pub.until("large.bin")
            pub.until("/30.0 MB")
            pub.until("large.bin: 30.0 MB confirmed, reached 1 subscriber")
            assert pub.wait() == 0
        sub.until("/30.0 MB")
        sub.until(str(tmp_path / "in" / "large.bin"))
        assert sub.wait() == 0


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["home/+/temperature", "x"], "wildcards are for subscriptions"),
        (["home/#", "x"], "wildcards are for subscriptions"),
        (["home/*", "x"], "wildcards are for subscriptions"),
        (["", "x"], "is empty"),
        (["x" * 1025, "x"], "is 1025 bytes long: at most 1024"),
        (["/".join("x" * 65), "x"], "has 65 levels: at most 64"),
        (["a\udcff", "x"], "is not valid Unicode"),
        (["a\nb", "x"], "control character"),
        (["a", "x", "--qos", "3"], "unknown QoS 3; choose 0"),
        (["a", "x", "--qos", "one"], "unknown QoS one; choose 0"),
        (["a"], "give exactly one of MESSAGE"),
        (["a", "x", "--lines"], "give exactly one of MESSAGE"),
        (["a", "x", "--stdin"], "give exactly one of MESSAGE, --stdin, --lines and --file"),
        (["a", "x", "--repeat", "-1"], "--repeat -1 is out of range"),
        (["a", "x", "--interval", "1"], "add --repeat"),
        (["a", "x", "--repeat", "2", "--interval", "-1"], "--interval -1 is out of range"),
        (["a", "--lines", "--repeat", "2"], "--repeat is for one message"),
        (["a", "@no-such-file"], "cannot read no-such-file"),
        (["a", "x", "--will-payload", "gone"], "add --will-topic"),
        (["a", "x", "--will-topic", "a/#"], "a/#"),
        (["a", "x", "--arq", "hope"], "unknown retransmission scheme 'hope'; choose selective-repeat"),
        (["a", "x", "--arq", "go-back-n:0"], "the window '0' of go-back-n is out of range"),
        (["a", "--file", "/nowhere", "--retain"], "a file cannot be retained"),
        (["a", "--file", "/nowhere", "--header", "a=b"], "a file has no headers"),
        (["a", "x", "--header", "unit"], "--header 'unit' is not NAME=VALUE"),
        (["a", "x", "--header", "=C"], "is not NAME=VALUE"),
        (["a", "x", "--expires", "0"], "--expires 0 is out of range; give seconds above 0, up to 4,294,967,295"),
        (["a", "x", "--reply-to", "a/#"], "wildcards are for subscriptions"),
        (["a", "x", "--content-type", "a\nb"], "control character"),
        (["a", "x", "--timeout", "-1"], "--timeout -1 is out of range"),
        (["a", "x", "--timeout", "0"], "--timeout 0 is out of range; give seconds above 0, or never"),
        (["a", "x", "--timeout", "soon"], "--timeout 'soon' is not a number; give seconds, or never"),
        (["a", "x", "--broker", "host:port"], "is not a port"),
        (["a", "x", "--broker", "no such host"], "'no such host' is not the address of a broker; write host:port"),
        (["a", "x", "--name", "n" * 257], "name"),
        (["a", "x", "--secret-file", "/nowhere"], "a secret proves a name"),
        (["a", "x", "--name", "n", "--secret-file", "/nowhere"], "cannot read the secret file /nowhere"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], text: str) -> None:
    assert text in error_of("pub", *arguments)


@pytest.mark.parametrize("arguments", [("a", "--retian"), ("--retian", "a"), ("a", "x", "--retian"), ("a", "-z")])
@pytest.mark.parametrize("command", [("pub",), ("job", "submit")])
def test_an_unknown_option_is_not_an_argument(command: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    (option,) = (one for one in arguments if one.startswith("-"))
    text = error_of(*command, *arguments)
    assert text.startswith(f"unknown option {option}{'' if option == '-z' else ', perhaps --ret'}"), text
    assert text.endswith("; if it is a payload, put -- before it")


def test_errors_that_need_a_broker(address: str, tmp_path: Path) -> None:
    assert "cannot read" in error_of("pub", "a", "--file", str(tmp_path / "nothing"), "--broker", address)
    assert "is a folder" in error_of("pub", "a", "--file", str(tmp_path), "--broker", address)
    assert "$" in error_of("pub", "$sys/mine", "x", "--broker", address)


@needs_posix
def test_what_is_no_file_with_a_size(tmp_path: Path) -> None:
    """Reported at once, without a broker."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (str(pipe), "/dev/zero"):
        assert f"{path} is not a regular file" in error_of("pub", "a", "--file", path)
    assert "write it to a file first" in error_of("pub", "a", "--file", "-")


def test_an_over_large_message(address: str) -> None:
    data = b"x" * (16 * 1024 * 1024 + 1)
    assert "line 1 of standard input is longer than 16,777,216 bytes" in error_of(
        "pub", "pub/large", "--lines", "--broker", address, input=data
    )


def test_a_message_that_is_too_large_for_this_broker(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("[limits]\nmessage_bytes = 1000\n")
    with broker("--config", str(config)) as address:
        assert "1000" in error_of("pub", "a", "x" * 1001, "--broker", address)
        assert "1000" in error_of("pub", "a", "--lines", "--broker", address, input=b"x\n" + b"x" * 1001)
        assert godwit("pub", "a", "x" * 1000, "--broker", address).returncode == 0


def test_a_failure_reports_the_confirmed_lines(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("[limits]\nmessage_bytes = 1000\n")

    def messages() -> int:
        found = godwit("topics", "list", "pub/middle", "--json", "--broker", address).stdout
        return int(json.loads(found)["messages"]) if found else 0

    with broker("--config", str(config)) as address:
        with running("pub", "pub/middle", "--lines", "--broker", address) as pub:
            pub.write("one\ntwo\n")
            eventually(lambda: messages() == 2)
            pub.write("x" * 1001 + "\n")
            pub.close_input()
            assert pub.wait() == 1
            assert pub.err.line().endswith(" (the first 2 lines were confirmed)")
        long = b"x" * (16 * 1024 * 1024 + 1)
        with running("pub", "pub/middle", "--lines", "--broker", address) as pub:
            pub.write("three\n")
            eventually(lambda: messages() == 3)
            pub.write(long.decode())
            assert pub.wait() == 1
            assert pub.err.line() == (
                "godwit: line 2 of standard input is longer than 16,777,216 bytes, the largest size of a message; "
                "shorten it, or send it with --file (the first line was confirmed)"
            )
        assert error_of("pub", "$own", "--lines", "--broker", address, input=b"x").endswith(" (no line was confirmed)")
        assert error_of("pub", "a", "--lines", "--broker", address, input=b"x" * 1001).endswith(
            "the broker accepts at most 1000"
        )
    assert messages_done(2000) == "the first 2,000 lines were"


def test_the_help_describes_qos_2_exactly() -> None:
    text = " ".join(godwit("pub", "--help").stdout.decode().replace("│", "").split())
    assert "2 exactly once in the log" in text
    assert "2 (in the log exactly once)" in error_of("pub", "a", "x", "--qos", "3")


def test_a_name_in_use(address: str) -> None:
    with running("sub", "pub/taken", "--name", "taken", "--broker", address):
        subscribed(address, "pub/taken")
        assert "taken" in error_of("pub", "a", "x", "--name", "taken", "--broker", address)


@pytest.mark.parametrize("name", ["", "a\x07b", "\udcff", "n" * 257])
def test_a_name_that_cannot_be(address: str, name: str) -> None:
    assert "name" in error_of("pub", "a", "x", "--name", name, "--broker", address)


@needs_posix
@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("pub pub/closed x --retain", "<&- >&-"),
        ("pub pub/closed --lines", "<&-"),
        ("sub pub/closed --count 1", ">&-"),
        ("sub pub/closed --count 1", "<&- >&- 2>&-"),
        ("ping -n 1", ">&-"),
    ],
)
def test_a_stream_that_is_closed_from_the_beginning(address: str, command: str, closed: str) -> None:
    godwit("pub", "pub/closed", "x", "--retain", "--broker", address)
    result = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *GODWIT, *command.split()],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment(GODWIT_BROKER=address),
    )
    assert (result.returncode, result.stdout) == (0, b"")
    assert b"Traceback" not in result.stderr


def test_no_broker(nowhere: str) -> None:
    text = error_of("pub", "a", "x", "--broker", nowhere, "--timeout", "0.5")
    assert text == (
        "no broker answered at 127.0.0.1 port 9 within 0.5 s: is it running there, and does the way to it let UDP pass?"
    )
    assert "127.0.0.1 port 9" in error_of("pub", "a", "x", "--timeout", "0.5", GODWIT_BROKER=nowhere)


# -- one message from standard input or a file, and repetitions -------------------------------------------------------


def all_of(address: str, filter: str, *options: str) -> bytes:
    """What the log has, up to its end."""
    result = godwit("sub", filter, "--from", "earliest", "--no-follow", *options, "--broker", address)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_standard_input_and_files_are_one_message(address: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.bin"
    path.write_bytes(b"\x00\xff\n\n")
    for message in (["-"], ["--stdin"], [f"@{path}"]):
        sent = godwit("pub", "pub/whole", *message, "-q", "--broker", address, input=b"two\nlines\n")
        assert sent.returncode == 0, sent.stderr
    assert all_of(address, "pub/whole", "--raw") == b"two\nlines\n" * 2 + b"\x00\xff\n\n"


def test_a_message_is_repeated(address: str) -> None:
    result = godwit("pub", "pub/again", "x", "--repeat", "3", "--interval", "0.01", "--broker", address)
    assert (result.returncode, result.stderr) == (0, b"3 messages confirmed; the last one reached no subscriber\n")
    assert all_of(address, "pub/again", "--payload-only") == b"x\n" * 3


PRINTS_CONFIRMS = f"""
import sys
from godwit.net.publisher import ClientPublishers

handle = ClientPublishers._on_confirmed

def print_confirm(self, event):
    handle(self, event)
    print("confirmed up to", event.sequence, file=sys.stderr, flush=True)

ClientPublishers._on_confirmed = print_confirm
{CODE}
"""


@needs_posix
@pytest.mark.parametrize(
    ("arguments", "lines", "count", "confirmed"),
    [
        (("--lines",), "one\ntwo\n", 2, "the first 2 lines were"),
        (("x", "--repeat", "0", "--interval", "600"), "", 1, "the first message was"),
    ],
)
def test_ctrl_c_prints_how_much_was_confirmed(
    address: str, arguments: tuple[str, ...], lines: str, count: int, confirmed: str
) -> None:
    program = [sys.executable, "-c", PRINTS_CONFIRMS]
    for number in range(3):
        topic = f"pub/counted/{len(arguments)}/{number}"
        with running("pub", topic, *arguments, "--broker", address, program=program) as pub:
            pub.write(lines)
            pub.err.until(
                f"confirmed up to {count}"
            )  # the log has the messages earlier than the publisher its confirms
            assert pub.interrupt() == 130
            assert pub.err.rest() == [f"interrupted: {confirmed} confirmed"]
        assert all_of(address, topic, "--payload-only").decode() == (lines or "x\n")


@needs_posix
def test_the_will_of_a_killed_publisher(address: str) -> None:
    will = ("--will-topic", "pub/will", "--will-payload", "gone", "--will-retain")
    arguments = ("pub", "pub/alive", "x", "--repeat", "0", "--interval", "60", *will, "--broker", address)
    with running(*arguments, "--name", "pub-killed") as pub:
        eventually(lambda: all_of(address, "pub/alive", "--payload-only") == b"x\n")
        pub.process.kill()
        # Another client of the same name ends the connection of the killed one at once.
        godwit("ping", "-n", "1", "--name", "pub-killed", "--broker", address)
        eventually(lambda: all_of(address, "pub/will", "--payload-only") == b"gone\n")


@pytest.mark.parametrize("arq", ["stop-and-wait", "go-back-n", "go-back-n:8", "selective-repeat"])
def test_every_retransmission_scheme(address: str, arq: str) -> None:
    topic = f"pub/arq/{arq.replace(':', '-')}"
    lines = b"".join(b"%d\n" % number for number in range(200))
    assert godwit("pub", topic, "--lines", "-q", "--arq", arq, "--broker", address, input=lines).returncode == 0
    assert all_of(address, topic, "--payload-only", "--arq", arq) == lines
