"""What can be submitted, and where a payload comes from."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from godwit.cli.job_submit import Wish, read_payload
from godwit.errors import GodwitError, UsageError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.net.job_options import JobOptions


def test_a_wish() -> None:
    assert Wish.of("resize", "x", None, {}, is_literal=False) == Wish("resize", b"x")
    options: JobOptions = {"workers": "all", "delay_s": 1.0, "deadline_s": 2.0}
    assert Wish.of("resize", "--", "mine", options, is_literal=True) == Wish("resize", b"--", "mine", options)


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        ("", {}, "is empty"),
        ("x" * 257, {}, "257"),
        ("$sys", {}, r"\$"),
        ("a/#", {}, "#"),
        ("a", {"priority": 101}, "--priority 101 cannot be; give a number from -100 to 100"),
        ("a", {"retries": -1}, "--retries -1 cannot be"),
        ("a", {"retries": 1001}, "--retries 1001 cannot be; give a number from 0 to 1,000"),
        ("a", {"retry_delay_s": -1.0}, "--retry-delay -1 cannot be"),
        ("a", {"delay_s": -1.0}, "--delay -1 cannot be"),
        ("a", {"deadline_s": 0.0}, "--deadline 0 cannot be"),
        ("a", {"time_limit_s": float("nan")}, "--time-limit nan cannot be"),
        ("a", {"delay_s": 9.0, "deadline_s": 9.0}, "--deadline 9 is over before --delay 9 is"),
    ],
)
def test_wishes_that_cannot_be(kind: str, options: JobOptions, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Wish.of(kind, "x", None, options, is_literal=False)


def test_payloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"\x00\xff")
    assert read_payload(None) == b""
    assert read_payload("21 °C") == "21 °C".encode()
    assert read_payload("\udcff") == b"\xff"
    assert read_payload("-5.5") == b"-5.5"
    assert read_payload(f"@{path}") == b"\x00\xff"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from there")))
    assert read_payload("-") == b"from there"


def test_payloads_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(MAX_JOB_PAYLOAD_BYTES + 1))
    for text, what in ((f"@{path}", "large"), ("x" * (MAX_JOB_PAYLOAD_BYTES + 1), "the payload")):
        with pytest.raises(UsageError, match=f"{what} is longer than 1,048,576 bytes, the most that a job carries"):
            read_payload(text)
    with pytest.raises(GodwitError, match=r"cannot read .*nothing: No such file"):
        read_payload(f"@{tmp_path / 'nothing'}")
    with pytest.raises(UsageError, match="there is no option --wrokers; if it is a payload, put -- before it"):
        read_payload("--wrokers")
    assert read_payload("--wrokers", is_literal=True) == b"--wrokers"


def test_a_payload_of_the_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "fits"
    path.write_bytes(bytes(MAX_JOB_PAYLOAD_BYTES))
    assert len(read_payload(f"@{path}")) == MAX_JOB_PAYLOAD_BYTES
