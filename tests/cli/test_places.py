"""Places in a log as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from godwit.cli.places import Place, read_place


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
def test_places(text: str, place: Place) -> None:
    assert read_place(text) == place


@pytest.mark.parametrize(
    "text", ["", "yesterday", "Latest", "-1", "1.5", "9" * 30, "1969-12-31", "1970-01-01T00:30+01:00", "٣"]
)
def test_no_place(text: str) -> None:
    assert read_place(text) is None
