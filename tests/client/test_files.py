"""Files: headers of chunks, the chunks to send, the new bytes of a chunk, names that stay in their folder."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import PurePosixPath, PureWindowsPath

import cbor2
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from godwit.client.files import (
    CHUNK_BYTES,
    FALLBACK_NAME,
    MAX_NAME_BYTES,
    MAX_WIRE_NAME_BYTES,
    ChunkRange,
    FileHeader,
    chunk_count,
    decode_header,
    encode_header,
    file_id,
    numbered,
    part_name,
    plan,
    publisher_of,
    safe_name,
    unseen,
    wire_name,
)
from godwit.errors import DecodeError
from godwit.limits import MAX_EXTENSION_BYTES
from godwit.wire.extension import ExtensionKey, encode_extension

TOPIC = "plant/drawings"


def header(*, name: str = "a.pdf", size: int = 1000, at: int = 0, topic: str = TOPIC) -> FileHeader:
    sha256 = hashlib.sha256(b"content").digest()
    return FileHeader(id=file_id(sha256, name, topic), run=1, name=name, size=size, at=at, sha256=sha256)


# -- headers ----------------------------------------------------------------------------------------------------------


def test_a_header_travels_as_the_map_that_the_protocol_names() -> None:
    sent = header(at=300)
    assert cbor2.loads(encode_header(sent)) == {
        "file": {"id": sent.id, "run": 1, "name": "a.pdf", "size": 1000, "at": 300, "sha256": sent.sha256}
    }
    assert decode_header(encode_header(sent), TOPIC, 700) == sent


def test_identity_follows_from_content_name_and_topic() -> None:
    sha256 = hashlib.sha256(b"content").digest()
    expected = hashlib.sha256(sha256 + b"a.pdf" + TOPIC.encode()).digest()[:16]
    assert file_id(sha256, "a.pdf", TOPIC) == expected
    assert publisher_of(expected) == "file-" + expected.hex()


def test_messages_without_a_file_header() -> None:
    assert decode_header(None, TOPIC, 5) is None
    assert decode_header(b"", TOPIC, 5) is None
    assert decode_header(encode_extension({300: 5}), TOPIC, 5) is None


def test_a_header_is_read_by_key_and_by_the_name_of_version_0_5() -> None:
    fields = msgspec.to_builtins(header(), builtin_types=(bytes,))
    assert encode_header(header()) == cbor2.dumps({"file": fields})
    for extension in (encode_header(header()), encode_extension({ExtensionKey.FILE: fields, 300: 5})):
        assert decode_header(extension, TOPIC, 5) == header()


@pytest.mark.parametrize(
    "extension",
    [
        b"\xff",
        cbor2.dumps({"expiry": 5}),
        cbor2.dumps({"file": None}),
        cbor2.dumps([1]),
        cbor2.dumps({"file": 5}),
        cbor2.dumps({"file": {}}),
        cbor2.dumps({"file": {"name": "x" * MAX_EXTENSION_BYTES}}),
        cbor2.dumps({"file": msgspec.to_builtins(header(), builtin_types=(bytes,)) | {"id": b"x"}}),
        cbor2.dumps({"file": msgspec.to_builtins(header(), builtin_types=(bytes,)) | {"size": -1}}),
        cbor2.dumps({"file": msgspec.to_builtins(header(), builtin_types=(bytes,)) | {"size": 2**63}}),
        cbor2.dumps({"file": msgspec.to_builtins(header(), builtin_types=(bytes,)) | {"at": 2**70}}),
        cbor2.dumps({"file": msgspec.to_builtins(header(), builtin_types=(bytes,)) | {"name": "b.pdf"}}),
        cbor2.dumps({"file": msgspec.to_builtins(header(), builtin_types=(bytes,)) | {"sha256": bytes(32)}}),
    ],
)
def test_an_invalid_header_is_a_documented_error(extension: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_header(extension, TOPIC, 5)


def test_a_chunk_outside_its_file_is_refused() -> None:
    assert decode_header(encode_header(header(size=10, at=5)), TOPIC, 5)
    for claimed in (header(size=10, at=5), header(size=0, at=5), header(size=2**63 - 1, at=2**63 - 1)):
        with pytest.raises(DecodeError, match="ends at"):
            decode_header(encode_header(claimed), TOPIC, 6)
    with pytest.raises(DecodeError, match="empty chunk"):
        decode_header(encode_header(header(size=10)), TOPIC, 0)
    assert decode_header(encode_header(header(size=0)), TOPIC, 0)


def test_a_file_of_another_topic_is_refused() -> None:
    with pytest.raises(DecodeError, match="does not follow"):
        decode_header(encode_header(header(topic="elsewhere")), TOPIC, 5)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_header_or_the_one_error(extension: bytes) -> None:
    with contextlib.suppress(DecodeError):
        decode_header(extension, TOPIC, 5)


# -- arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "chunks"), [(0, 1), (1, 1), (CHUNK_BYTES, 1), (CHUNK_BYTES + 1, 2), (800 * CHUNK_BYTES, 800)]
)
def test_chunks_of_a_file(size: int, chunks: int) -> None:
    assert chunk_count(size) == chunks


def test_a_run_goes_on_where_the_last_one_broke_off() -> None:
    size = 5 * CHUNK_BYTES
    assert plan(size, 0, 0) == ChunkRange(1, 0, 5)
    assert plan(size, 1, 3) == ChunkRange(1, 3, 5)
    assert plan(size, 1, 3).first_byte == 3 * CHUNK_BYTES
    assert plan(size, 4, 0) == ChunkRange(4, 0, 5)  # opened, nothing arrived
    assert plan(size, 1, 5) == ChunkRange(2, 0, 5)  # done: this is the file's second time
    assert plan(0, 1, 1) == ChunkRange(2, 0, 1)


@given(st.binary(min_size=1, max_size=60), st.lists(st.tuples(st.integers(0, 59), st.integers(1, 20)), max_size=30))
def test_a_file_grows_to_its_whole_from_chunks_that_repeat_and_overlap(
    content: bytes, pieces: list[tuple[int, int]]
) -> None:
    have = b""
    for at, size in [*pieces, *((at, 10) for at in range(0, len(content), 10))]:
        new = unseen(len(have), at, content[at : at + size])
        assert (new is None) == (at > len(have))
        have += new or b""
        assert content.startswith(have)
    assert have == content


def test_parts_of_different_files_have_different_names() -> None:
    names = {
        part_name("t", bytes(16), 5),
        part_name("u", bytes(16), 5),
        part_name("t", b"1" * 16, 5),
        part_name("t", bytes(16), 6),
    }
    assert len(names) == 4
    assert all(name.startswith(".") and name.endswith(".part") and "/" not in name for name in names)


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hostile", "safe"),
    [
        ("report.pdf", "report.pdf"),
        ("über maß 1.txt", "über maß 1.txt"),
        ("u\u0308ber", "über"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\windows\\system.ini", "system.ini"),
        ("/etc/passwd", "passwd"),
        ("C:\\autoexec.bat", "autoexec.bat"),
        ("a/", FALLBACK_NAME),
        ("", FALLBACK_NAME),
        (".", FALLBACK_NAME),
        ("..", FALLBACK_NAME),
        ("...", FALLBACK_NAME),
        (". .", FALLBACK_NAME),
        (".bashrc", "bashrc"),
        (".. /.ssh", "ssh"),
        ("a\0b", "ab"),
        ("a\n\x1b[31mb\x7f", "a[31mb"),
        ("gpj\u202eexe.txt", "gpjexe.txt"),
        ("file.txt:stream", "file.txt_stream"),
        ("what?*.txt", "what__.txt"),
        ("NUL", "_NUL"),
        ("con.txt", "_con.txt"),
        ("trailing. . ", "trailing"),
    ],
)
def test_a_name_from_the_network_stays_in_its_folder(hostile: str, safe: str) -> None:
    assert safe_name(hostile) == safe


def test_a_long_name_keeps_its_suffix() -> None:
    name = safe_name("é" * 500 + ".tar")
    assert name.endswith("é.tar")
    assert MAX_NAME_BYTES - 2 <= len(name.encode()) <= MAX_NAME_BYTES
    assert len(safe_name("a." + "b" * 500).encode()) == MAX_NAME_BYTES


@given(st.text(max_size=400))
@example("." * 300)
@example("a" + " ." * 300 + "b")
def test_any_text_becomes_a_safe_name(text: str) -> None:
    name = safe_name(text)
    assert 1 <= len(name.encode()) <= MAX_NAME_BYTES
    assert PurePosixPath(name).name == name == PureWindowsPath(name).name
    assert not name.startswith(".")
    assert name.isprintable() or " " in name or any(ord(character) > 127 for character in name)
    assert safe_name(name) == name
    assert safe_name(numbered(name, 12)) == numbered(name, 12) or len(numbered(name, 12).encode()) > MAX_NAME_BYTES


def test_existing_names_get_a_number() -> None:
    assert [numbered("a.b.pdf", number) for number in range(3)] == ["a.b.pdf", "a.b (1).pdf", "a.b (2).pdf"]
    assert numbered("README", 7) == "README (7)"


def test_a_name_travels_as_bounded_text() -> None:
    assert wire_name("a.pdf") == "a.pdf"
    assert wire_name("bad\udcff.pdf") == "bad?.pdf"
    assert wire_name("é" * 1000 + ".pdf").endswith("é.pdf")
    assert len(wire_name("é" * 1000).encode()) <= MAX_WIRE_NAME_BYTES
