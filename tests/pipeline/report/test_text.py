"""Words and numbers as a page shows them."""

from __future__ import annotations

import math

from godwit.pipeline.report.text import duration, safe, safe_payload, size, value


def test_words_and_numbers() -> None:
    assert safe("a" * 200) == "a" * 96 + "…"
    assert safe('<&">\x07\u2066') == "&lt;&amp;&quot;&gt;\\u0007\\u2066"
    assert safe_payload(b"\xff\x00") == "0xff00"
    assert safe_payload(b" ") == "<em>empty</em>"
    assert safe_payload("°".encode() * 500) == "°" * 96 + "…"
    assert [duration(one) for one in (0.0015, 59.0, 60.0, 3660.0, 90_000.0, None)] == [
        "1.5 ms", "59 s", "1 min", "1 h 1 min", "1 d 1 h", "\N{EN DASH}",
    ]  # fmt: skip
    assert [size(one) for one in (0, 999, 1500, 2.5e9, 7e15)] == ["0 B", "999 B", "1.5 KB", "2.5 GB", "7e+03 TB"]
    assert [value(one) for one in (21.456789, 12345.6, 1e9, math.nan)] == ["21.46", "12,346", "1e+09", "\N{EN DASH}"]
