"""The decoders read the corpus: no wrong reading, and most of the readable payloads."""

from __future__ import annotations

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

from godwit.pipeline.decoders.base import DecoderMessage, Definitions
from godwit.pipeline.decoders.catalog import decoder_set
from godwit.pipeline.decoders.results import Rejected
from godwit.pipeline.decoders.selection import DecoderRule, DecoderSet

READABLE_SHARE = 0.85
ENTRIES = 450
INVENTED = 60


def decode(decoders: DecoderSet, entry: dict[str, Any]) -> tuple[list[JudgedReading] | None, str]:
    """Return the readings of an entry, or None and the reason."""
    received_us = int(seconds(entry.get("received", NOON)) * 1e6)
    decoders.definitions = Definitions()
    before = entry.get("before", [])
    for offset, earlier in enumerate(before):
        message = DecoderMessage(earlier["topic"], payload_of(earlier), None, received_us - 1_000_000, "b", offset)
        decoders.definitions.add(decoders.define(message))
    message = DecoderMessage(
        entry["topic"], payload_of(entry), entry.get("content_type"), received_us, "b", len(before)
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
        decoders = default
        if rules := entry.get("configuration"):
            decoders = decoder_set(
                DecoderRule(
                    rule["filter"],
                    rule["decoder"],
                    {key: value for key, value in rule.items() if key not in ("filter", "decoder")},
                )
                for rule in rules
            )
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
