"""Messages as lines."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.cli.fake_client import message

from godwit.cli import message_lines
from godwit.cli.message_lines import MessageFormatter
from godwit.client.files import FileHeader, encode_header, file_id
from godwit.client.message import Message
from godwit.wire.extension import Properties, encode_properties


def text_of(*messages: Message) -> str:
    return MessageFormatter().render(messages).decode()


def test_topic_and_payload() -> None:
    assert text_of(message("a/b", b"21.5"), message("a/b", "21 °C".encode()), message("c", b"")) == (
        "a/b: 21.5\na/b: 21 °C\nc: \n"
    )


def test_what_a_terminal_would_act_upon_is_escaped() -> None:
    assert text_of(message("a\u202eb", b"\x1b[2J\r\n\xff")) == "a\\u202eb: \\x1b[2J\\r\\n\\xff\n"


def test_the_known_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_lines, "MAX_CACHED_TOPICS", 3)
    lines = MessageFormatter()
    for number in range(10):
        assert lines.render([message(f"t{number}", b"x")]) == b"t%d: x\n" % number
    assert len(lines._topics) <= 3


def test_json_has_the_fields_of_the_message() -> None:
    rendered = MessageFormatter("json").render([message("a", b"21.5"), message("a", b"\xff\x00", qos=0, offset=None)])
    first, second = map(json.loads, rendered.decode().splitlines())
    assert first == {
        "topic": "a",
        "payload": "21.5",
        "publisher": "me",
        "published": "2023-11-14T22:13:20.000000Z",
        "received": "2023-11-14T22:13:20.000001Z",
        "qos": 1,
        "retained": False,
        "offset": 0,
    }
    assert second["payload_base64"] == "/wA="
    assert "payload" not in second
    assert (second["qos"], second["offset"]) == (0, None)


def test_json_is_one_line_and_safe() -> None:
    rendered = MessageFormatter("json").render([message("a", "\n\x9b\u2028".encode())])
    assert rendered.count(b"\n") == 1
    assert rendered.isascii()
    assert json.loads(rendered)["payload"] == "\n\x9b\u2028"


def piece(at: int, extension: bytes | None = None) -> Message:
    sha256 = bytes(32)
    header = FileHeader(
        id=file_id(sha256, "a\x07.bin", "files"), run=1, name="a\x07.bin", size=3_000, at=at, sha256=sha256
    )
    return msgspec.structs.replace(message("files", bytes(1000)), extension=extension or encode_header(header))


def test_a_piece_of_a_file_is_named_not_shown() -> None:
    assert text_of(piece(1000)) == ("files: <file a\\x07.bin, bytes 1,000 to 2,000 of 3,000; receive it with --save>\n")


def test_another_extension_changes_nothing() -> None:
    for extension in (b"\xff", b"\xa0"):
        strange = msgspec.structs.replace(message("a", b"x"), extension=extension)
        assert text_of(strange) == "a: x\n"


# -- formats ----------------------------------------------------------------------------------------------------------


def test_formats() -> None:
    one = message("a/b", b"\x1b[2Jx", qos=2, offset=7, publisher="me")
    assert MessageFormatter(form="%t|%p|%x|%X|%l|%q|%r|%o|%n|%%").render([one]) == (
        b"a/b|\\x1b[2Jx|1b5b324a78|1B5B324A78|5|2|0|7|me|%\n"
    )
    assert MessageFormatter(form="%I %U").render([one]) == b"2023-11-14T22:13:20.000001Z 1700000000.000001\n"
    assert MessageFormatter(form="%j").render([one]) == MessageFormatter("json").render([one])
    assert MessageFormatter(form="%t\\t%l\\n").render([one, one]) == b"a/b\t5\n" * 2
    assert MessageFormatter(form="%t\\0").render([one]) == b"a/b\0"
    assert MessageFormatter(form="%o").render([message("a", b"", qos=0, offset=None)]) == b"\n"


def test_repeated_headers_are_all_shown() -> None:
    properties = Properties(headers=(("a", "1"), ("a", "2\x1b")), correlation=b"\1\xff")
    one = msgspec.structs.replace(message("t", b"x"), extension=encode_properties(properties))
    found = json.loads(MessageFormatter("json").render([one]))
    assert found["headers"] == {"a": "2\x1b"}
    assert found["header_pairs"] == [["a", "1"], ["a", "2\x1b"]]
    assert found["correlation"] == "01ff"
    assert MessageFormatter(form="%P|%D|%C|%R|%E").render([one]) == b"a=1 a=2\\x1b|01ff|||\n"
    assert text_of(one) == "t: x\n"


def test_payloads_alone() -> None:
    messages = [message("a", b"one\n"), message("b", b"\xff")]
    assert MessageFormatter("payload").render(messages) == b"one\\n\n\\xff\n"
    assert MessageFormatter("raw").render(messages) == b"one\n\xff"
