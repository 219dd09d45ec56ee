"""Text for a terminal: no text from the network controls it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.cli.text import (
    LogPosition,
    count,
    hanging,
    iso_time,
    moment,
    parse_position,
    safe,
    safe_json,
    safe_payload,
    short_moment,
    size,
)

# -- text -------------------------------------------------------------------------------------------------------------


ACTS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("21.5 °C", "21.5 °C"),
        ("a\tb\u00a0c", "a\tb\u00a0c"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00"),
        ("abc\u202ecba", "abc\\u202ecba"),
        ("\udcff", "\\udcff"),
        ("C:\\temp", "C:\\temp"),
    ],
)
def test_safe(text: str, shown: str) -> None:
    assert safe(text) == shown


@pytest.mark.parametrize(
    ("payload", "shown"),
    [(b"21.5", "21.5"), ("°".encode(), "°"), (b"\xff\x00ok", "\\xff\\x00ok"), (b"", ""), (b"a\x1bb", "a\\x1bb")],
)
def test_safe_payload(payload: bytes, shown: str) -> None:
    assert safe_payload(payload) == shown


@given(st.binary())
def test_no_payload_acts_on_the_terminal(payload: bytes) -> None:
    assert not ACTS.search(safe_payload(payload))


@given(st.text())
def test_no_text_acts_on_the_terminal(text: str) -> None:
    assert not ACTS.search(safe(text))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_safe_json_keeps_the_meaning(text: str) -> None:
    encoded = safe_json(json.dumps({"text": text}, ensure_ascii=False).encode())
    assert json.loads(encoded) == {"text": text}
    assert not ACTS.search(encoded.decode())


def test_count() -> None:
    assert [count(number, "message") for number in (0, 1, 2000)] == ["0 messages", "1 message", "2,000 messages"]


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_700_000_000_000_042, "2023-11-14T22:13:20.000042Z"),
        (2**63, "9999-12-31T23:59:59.775808Z"),
    ],
)
def test_iso_time(time_us: int, text: str) -> None:
    assert iso_time(time_us) == text


def test_moment() -> None:
    assert moment(1_700_000_000_000_042) == "2023-11-14 22:13:20"
    assert moment(0) == ""
    assert short_moment("2023-11-14 22:13:20") == "11-14 22:13"
    assert short_moment("") == ""


def test_hanging() -> None:
    assert hanging("sub", "short", title_width=6) == ["sub   short"]
    assert hanging("sub", "words that go on", title_width=6, width=16) == ["sub   words that", "      go on"]
    assert all(len(line) < 80 for line in hanging("sub", "word " * 100))


@pytest.mark.parametrize(
    ("amount_bytes", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e6, "2.5 MB"), (3e12, "3.0 TB")]
)
def test_size(amount_bytes: float, text: str) -> None:
    assert size(amount_bytes) == text


# -- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("latest", "latest"),
        ("earliest", "earliest"),
        ("0", 0),
        ("17", 17),
        ("2025-03-01", datetime(2025, 3, 1, tzinfo=UTC)),
        ("2025-03-01T12:00", datetime(2025, 3, 1, 12, tzinfo=UTC)),
        ("2025-03-01T12:00:00.25Z", datetime(2025, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)),
        ("2025-03-01T12:00:00+01:00", datetime(2025, 3, 1, 11, tzinfo=UTC)),
    ],
)
def test_places(text: str, place: LogPosition) -> None:
    assert parse_position(text) == place


@pytest.mark.parametrize(
    "text", ["", "yesterday", "Latest", "-1", "1.5", "9" * 30, "1969-12-31", "1970-01-01T00:30+01:00", "٣"]
)
def test_no_place(text: str) -> None:
    assert parse_position(text) is None
