"""The decoders read the corpus: no wrong reading, and most of the readable payloads."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from tests.pipeline.corpus_judge import (
    NOISE,
    NOON,
    RIGHT,
    UNREAD,
    WRONG,
    JudgedReading,
    Verdict,
    entries,
    judge,
    payload_of,
    seconds,
    table,
)

from godwit.pipeline.decoders.base import DecoderMessage
from godwit.pipeline.decoders.results import Rejected
from godwit.pipeline.decoders.selection import DecoderRule, DecoderSet, decoder_set

READABLE_SHARE = 0.85
ENTRIES = 450
INVENTED = 60


def decoders_of(entry: dict[str, Any]) -> DecoderSet:
    """Return the decoders with the configuration of an entry and the definitions before it."""
    decoders = decoder_set(
        DecoderRule(
            rule["filter"],
            rule["decoder"],
            {key: value for key, value in rule.items() if key not in ("filter", "decoder")},
        )
        for rule in entry.get("configuration", [])
    )
    for offset, earlier in enumerate(entry.get("before", [])):
        message = DecoderMessage(earlier["topic"], payload_of(earlier), broker="b", offset=offset)
        decoders.add_definitions(decoders.define(message))
    return decoders


def decode(decoders: DecoderSet, entry: dict[str, Any]) -> tuple[list[JudgedReading] | None, str]:
    """Return the readings of an entry, or None and the reason."""
    received_us = int(seconds(entry.get("received", NOON)) * 1e6)
    message = DecoderMessage(
        entry["topic"],
        payload_of(entry),
        entry.get("content_type"),
        received_us,
        "b",
        len(entry.get("before", [])),
    )
    found, name = decoders.decode(message)
    if isinstance(found, Rejected):
        return None, f"{found.reason} [{name}]: {found.detail}"
    readings = []
    for one in found.readings:
        time_us = found.time_us if one.time_us is None else one.time_us
        readings.append(
            JudgedReading(one.quantity, one.value, one.unit, one.name, None if time_us is None else time_us / 1e6)
        )
    return readings, f"[{name}]"


def verdicts() -> list[Verdict]:
    """Return the verdicts of all entries."""
    default = decoder_set()
    found = []
    for family, fields, entry in entries():
        decoders = decoders_of(entry) if "before" in entry or "configuration" in entry else default
        readings, reason = decode(decoders, entry)
        found.append(judge(family, fields, entry, readings, reason))
    return found


@pytest.fixture(scope="module")
def all_verdicts() -> list[Verdict]:
    return verdicts()


def test_the_corpus_is_complete() -> None:
    counted: Counter[str] = Counter()
    ids = set()
    for family, _, entry in entries():
        counted[family] += 1
        ids.add((family, entry["id"]))
        assert entry["source"], entry["id"]
        assert ("payload" in entry) != ("payload_base64" in entry), entry["id"]
        expect = entry["expect"]
        assert len({"readings", "quarantine", "nothing"} & set(expect)) == 1, entry["id"]
        assert not entry["readable"] or expect["readings"], entry["id"]
    assert len(ids) == counted.total()
    assert counted.total() - counted["invented"] >= ENTRIES
    assert counted["invented"] >= INVENTED


def test_no_reading_is_wrong(all_verdicts: list[Verdict]) -> None:
    assert not any(one.outcome == WRONG for one in all_verdicts), table(all_verdicts)


def test_definitions_and_states_are_not_quarantined(all_verdicts: list[Verdict]) -> None:
    assert not any(one.outcome == NOISE for one in all_verdicts), table(all_verdicts)


def test_readable_payloads_are_read(all_verdicts: list[Verdict]) -> None:
    readable = [one for one in all_verdicts if one.readable]
    read = sum(one.outcome == RIGHT for one in readable)
    assert read >= READABLE_SHARE * len(readable), table(all_verdicts)


def test_the_command_reads_the_same() -> None:
    default = decoder_set()
    given = [
        entry
        for _, _, entry in entries()
        if not {"before", "configuration", "content_type"} & set(entry) and "config" not in entry["topic"]
    ]
    lines = b"".join(
        json.dumps({"topic": entry["topic"], "payload_base64": base64.b64encode(payload_of(entry)).decode()}).encode()
        + b"\n"
        for entry in given
    )
    code = "import sys; from godwit.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "pipeline", "decode", "--lines"]
    shown = subprocess.run(command, input=lines, capture_output=True, check=True).stdout.splitlines()
    assert len(shown) == len(given)
    for entry, line in zip(given, shown, strict=True):
        readings, reason = decode(default, entry)
        found = json.loads(line)
        if readings is None:
            assert set(found) == {"quarantine"}, entry["id"]
            assert reason.startswith(found["quarantine"]), entry["id"]
            continue
        assert f"[{found['decoder']}]" == reason, entry["id"]
        assert [(one["quantity"], one["value"], one["unit"]) for one in found["readings"]] == [
            (one.quantity, one.value, one.unit) for one in readings
        ], entry["id"]
        for one, reading in zip(found["readings"], readings, strict=True):
            # A time relative to the receipt of the message is unknown to the command.
            if one["time"] is not None:
                assert reading.time_s is not None, entry["id"]
                assert abs(seconds(one["time"]) - reading.time_s) < 1e-3, entry["id"]


READING = {"quantity": "temperature", "value": 70, "unit": "°F"}


@pytest.mark.parametrize(
    ("readings", "expect", "outcome"),
    [
        ([("temperature", 21.11111111, "°C")], {"readings": [READING]}, RIGHT),
        ([("temperature", 70.0, "°F")], {"readings": [READING]}, RIGHT),
        ([("temperature", 70.0, "°C")], {"readings": [READING]}, WRONG),
        ([("temperature", 70.0, "")], {"readings": [READING]}, WRONG),
        ([("temperature", 70.0, "")], {"readings": [{**READING, "unit_any": True}]}, RIGHT),
        ([("value", 70.0, "")], {"readings": [{**READING, "unit_any": True}]}, UNREAD),
        ([("value", 70.0, "")], {"readings": [READING]}, WRONG),
        ([("humidity", 70.0, "%")], {"readings": [READING]}, WRONG),
        ([("temperature", 70.0, "°F"), ("value", 3.0, "")], {"readings": [READING]}, WRONG),
        ([("temperature", 70.0, "°F"), ("value", 3.0, "")],
         {"readings": [READING], "allowed": [{"quantity": "value", "value": 3, "unit": ""}]}, RIGHT),
        ([("temperature", 70.0, "°F")], {"readings": [READING], "never": [{"quantity": "temperature"}]}, WRONG),
        ([], {"readings": [READING]}, UNREAD),
        (None, {"readings": [READING]}, UNREAD),
        (None, {"nothing": True}, NOISE),
        ([], {"nothing": True}, RIGHT),
        (None, {"quarantine": True}, RIGHT),
        ([("value", 3.0, "")], {"quarantine": True}, WRONG),
    ],
)  # fmt: skip
def test_the_judge(readings: list[tuple[str, float, str]] | None, expect: dict[str, Any], outcome: str) -> None:
    entry = {"id": "x", "readable": "readings" in expect, "expect": expect}
    given = None if readings is None else [JudgedReading(*one) for one in readings]
    assert judge("family", [], entry, given).outcome == outcome


def test_times_are_compared() -> None:
    expect = {"readings": [{**READING, "time": "2026-11-15T12:00:00Z"}]}
    entry = {"id": "x", "readable": True, "expect": expect}
    noon = seconds("2026-11-15T12:00:00Z")
    for time_s, outcome in ((noon, RIGHT), (noon + 3600, WRONG), (None, UNREAD)):
        assert judge("family", [], entry, [JudgedReading("temperature", 70.0, "°F", "", time_s)]).outcome == outcome
    expect["no_time"] = True  # type: ignore[assignment]
    assert judge("family", [], entry, [JudgedReading("temperature", 70.0, "°F", "", noon)]).outcome == WRONG
