"""Tokens in a file, and the check before every call. A real server asks it in test_server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import flight

from godwit.archive.tokens import MAX_TOKEN_BYTES, TokenCheck, TokenFile
from godwit.errors import ConfigurationError


def write(path: Path, text: str, stamp_s: int = 1) -> Path:
    path.write_text(text, encoding="utf-8")
    os.utime(path, (stamp_s, stamp_s))
    return path


def test_lines_are_tokens(tmp_path: Path) -> None:
    tokens = TokenFile(write(tmp_path / "tokens", "one\n\n  two \r\n"))
    assert tokens.knows(b"one")
    assert tokens.knows(b"two")
    assert not tokens.knows(b"on")
    assert not tokens.knows(b"")


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", "one\n")
    tokens = TokenFile(path)
    write(path, "two\n", stamp_s=2)
    assert not tokens.knows(b"one")
    assert tokens.knows(b"two")


def test_a_file_that_goes_lets_nobody_in_until_it_is_back(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", "one\n")
    tokens = TokenFile(path)
    path.unlink()
    assert not tokens.knows(b"one")
    write(path, "one\n")
    assert tokens.knows(b"one")


def test_a_file_that_lets_nobody_in_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the tokens in .*missing"):
        TokenFile(tmp_path / "missing")
    with pytest.raises(ConfigurationError, match="holds no token"):
        TokenFile(write(tmp_path / "empty", "\n\n"))


@pytest.mark.parametrize("value", ["Bearer one", "bearer one ", b"Bearer one"])
def test_the_header_of_a_call(tmp_path: Path, value: str | bytes) -> None:
    check = TokenCheck(TokenFile(write(tmp_path / "tokens", "one\n")))
    check.start_call(None, {"authorization": [value]})


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([], "wants a token"),
        (["Basic one"], "wants a token"),
        (["Bearer two"], "not known here"),
        (["Bearer "], "not known here"),
        (["Bearer \u20ac"], "not known here"),
        (["Bearer " + "x" * MAX_TOKEN_BYTES], "wants a token"),
    ],
)
def test_others_are_sent_away(tmp_path: Path, values: list[str | bytes], complaint: str) -> None:
    check = TokenCheck(TokenFile(write(tmp_path / "tokens", "one\n")))
    with pytest.raises(flight.FlightUnauthenticatedError, match=complaint):
        check.start_call(None, {"authorization": values})
    with pytest.raises(flight.FlightUnauthenticatedError, match="wants a token"):
        check.start_call(None, {})
