"""Tokens in a file, and the check before every call. A real server asks it in test_server."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyarrow import flight

from godwit.archive.tokens import MAX_TOKEN_BYTES, TokenCheck, TokenFile
from godwit.broker.access import TokenRights
from godwit.errors import ConfigurationError


def write(path: Path, text: str, stamp_s: int = 1) -> Path:
    path.write_text(text, encoding="utf-8")
    os.utime(path, (stamp_s, stamp_s))
    return path


def unheard(text: str) -> None:
    raise AssertionError(f"a warning: {text}")


def test_lines_are_tokens(tmp_path: Path) -> None:
    tokens = TokenFile(write(tmp_path / "tokens", "one\n\n  two \r\n"), unheard)
    assert tokens.find(b"one") == TokenRights()
    assert tokens.find(b"two") == TokenRights()
    assert tokens.find(b"on") is None
    assert tokens.find(b"") is None


def test_a_token_may_have_rights(tmp_path: Path) -> None:
    lines = [
        'night  {"publish": ["alerts/#"], "names": ["night job", "n-?"], "read": ["home/+"]}',
        "with blanks {as before}x",
        '{"read":[]}',
        'reader {"publish": []}',
    ]
    tokens = TokenFile(write(tmp_path / "tokens", "\n".join(lines)), unheard)
    assert tokens.find(b"night") == TokenRights(read=("home/+",), publish=("alerts/#",), names=("night job", "n-?"))
    assert tokens.find(b"with blanks {as before}x") == TokenRights()
    assert tokens.find(b'{"read":[]}') == TokenRights()
    assert tokens.find(b"reader") == TokenRights(publish=())
    assert tokens.find(lines[0].encode()) is None


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('one {"publsh": ["a"]}', "unknown field `publsh`"),
        ('one {"publish": "a"}', "Expected `array | null`"),
        ('one {"publish": ["a/#/b"]}', "'#' before its end"),
        ('one {"names": [""]}', "must have 1 to"),
        ('one {"read": [' + ", ".join(['"a"'] * 65) + "]}", "at most 64"),
        ("one {read}", "malformed"),
        ('one {"publish": ["b"]}\none', "other rights in a line before"),
    ],
)
def test_wrong_rights_are_refused_at_the_start_and_told_later(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "tokens"
    with pytest.raises(ConfigurationError, match=r"line \d of .*tokens is invalid: .*" + re.escape(complaint)):
        TokenFile(write(path, line), unheard)
    told: list[str] = []
    tokens = TokenFile(write(path, "first\n"), told.append)
    write(path, f"{line}\nsecond\n", stamp_s=2)
    assert tokens.find(b"second") is not None
    assert tokens.find(b"first") is None
    assert len(told) == 1
    assert complaint in told[0]
    assert "not accepted until" in told[0]


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", "one\n")
    tokens = TokenFile(path, unheard)
    write(path, "two\n", stamp_s=2)
    assert tokens.find(b"one") is None
    assert tokens.find(b"two") is not None


def test_a_file_that_goes_lets_nobody_in_until_it_is_back(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", "one\n")
    tokens = TokenFile(path, unheard)
    path.unlink()
    assert tokens.find(b"one") is None
    write(path, "one\n")
    assert tokens.find(b"one") is not None


def test_a_file_that_lets_nobody_in_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the tokens in .*missing"):
        TokenFile(tmp_path / "missing", unheard)
    with pytest.raises(ConfigurationError, match="contains no token"):
        TokenFile(write(tmp_path / "empty", "\n\n"), unheard)


@pytest.mark.parametrize("value", ["Bearer one", "bearer one ", b"Bearer one"])
def test_the_header_of_a_call(tmp_path: Path, value: str | bytes) -> None:
    check = TokenCheck(TokenFile(write(tmp_path / "tokens", "one\n"), unheard))
    assert check.start_call(None, {"authorization": [value]}).rights == TokenRights()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([], "wants a token"),
        (["Basic one"], "wants a token"),
        (["Bearer two"], "the token is unknown"),
        (["Bearer "], "the token is unknown"),
        (["Bearer \u20ac"], "the token is unknown"),
        (["Bearer " + "x" * MAX_TOKEN_BYTES], "wants a token"),
    ],
)
def test_others_are_sent_away(tmp_path: Path, values: list[str | bytes], complaint: str) -> None:
    check = TokenCheck(TokenFile(write(tmp_path / "tokens", "one\n"), unheard))
    with pytest.raises(flight.FlightUnauthenticatedError, match=complaint):
        check.start_call(None, {"authorization": values})
    with pytest.raises(flight.FlightUnauthenticatedError, match="wants a token"):
        check.start_call(None, {})


def test_a_token_expires(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text('brief {"expires": "2026-12-01T08:00:00Z"}\nlong {"publish": []}\n')
    clock = [datetime(2026, 12, 1, 7, 59, tzinfo=UTC)]
    tokens = TokenFile(path, lambda text: None, lambda: clock[0])
    assert tokens.find(b"brief") is not None
    clock[0] = datetime(2026, 12, 1, 8, 0, tzinfo=UTC)
    assert tokens.find(b"brief") is None
    assert tokens.find(b"long") is not None


@pytest.mark.parametrize("text", ["tomorrow", "2026-12-01T08:00:00"])
def test_a_wrong_time_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(f'brief {{"expires": "{text}"}}\n')
    with pytest.raises(ConfigurationError, match="offset from UTC"):
        TokenFile(path, lambda text: None)
