"""Parsing of payloads: any payload yields readings or a reason."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.pipeline.payload import GREATEST, MAX_TEXT_BYTES, ParsedPayload, Reading, RejectedPayload, parse

TOPIC = "home/room1/temperature"
NOON_US = 1_794_744_000_000_000


@pytest.mark.parametrize(
    ("payload", "quantity", "value", "unit"),
    [
        ('{"t": 21.5}', "temperature", 21.5, "°C"),
        ('{"Temperature": "21.5"}', "temperature", 21.5, "°C"),
        ('{"temp": 50, "unit": "F"}', "temperature", 10.0, "°C"),
        ('{"temp": 300, "unit": "K"}', "temperature", 26.85, "°C"),
        ('{"humidity": 40}', "humidity", 40.0, "%"),
        ('{"value": 1500, "unit": "mV"}', "voltage", 1.5, "V"),
        ('{"value": 7, "unit": "bananas"}', "value", 7.0, "bananas"),
        ('{"pressure": 101.3, "unit": "kPa"}', "pressure", 1013.0, "hPa"),
        ("21.5", "temperature", 21.5, "°C"),
        (" -3 \n", "temperature", -3.0, "°C"),
        ("2,5", "temperature", 2.5, "°C"),
        ("1e3", "temperature", 1000.0, "°C"),
        ("The Temp is 54 degree", "temperature", 54.0, "°C"),
        ("12C", "temperature", 12.0, "°C"),
        ("54.5 °F", "temperature", 12.5, "°C"),
        ("humidity: 40", "humidity", 40.0, "%"),
        ("40 %", "humidity", 40.0, "%"),
        ("room 101 without a unit", "temperature", 101.0, "°C"),
    ],
)
def test_payloads_with_a_reading(payload: str, quantity: str, value: float, unit: str) -> None:
    found = parse(payload.encode(), TOPIC)
    assert isinstance(found, ParsedPayload), found
    ((name, number, stored),) = found.readings
    assert (name, stored) == (quantity, unit)
    assert math.isclose(number, value)


def test_a_quantity_is_there_once() -> None:
    found = parse(b'{"value": 50, "unit": "F", "temperature": 20}', "home")
    assert isinstance(found, ParsedPayload)
    assert found.readings == [Reading("temperature", 10.0, "\N{DEGREE SIGN}C")]


def test_the_rest_is_json_whatever_it_holds() -> None:
    found = parse(b'{"t": 1, "a": NaN, "b": [-Infinity, 1e999], "c": "\\ud83d\\ude00"}', "home")
    assert isinstance(found, ParsedPayload)
    assert found.extra is not None
    assert json.loads(found.extra) == {"a": "NaN", "b": ["-Infinity", "Infinity"], "c": "\N{GRINNING FACE}"}


def test_several_numbers_a_time_a_device_and_the_rest() -> None:
    payload = {"temp": 20, "humidity": 41.5, "ts": NOON_US // 1000, "sensor": "b7", "firmware": {"major": 2}}
    found = parse(json.dumps(payload).encode(), TOPIC)
    assert found == ParsedPayload(
        [Reading("temperature", 20.0, "°C"), Reading("humidity", 41.5, "%")],
        NOON_US,
        "b7",
        '{"firmware": {"major": 2}}',
    )


@pytest.mark.parametrize(
    "time",
    ["2026-11-15T12:00:00Z", "2026-11-15T13:00:00+01:00", "2026-11-15 12:00:00", NOON_US // 10**6, NOON_US // 1000,
     NOON_US, NOON_US * 1000, str(NOON_US // 10**6)],
)  # fmt: skip
def test_times_in_all_their_forms(time: str | int) -> None:
    found = parse(json.dumps({"t": 1, "time": time}).encode(), TOPIC)
    assert isinstance(found, ParsedPayload), found
    assert found.time_us == NOON_US


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "empty"),
        (b"\xff\xfe", "not text"),
        (b"hello", "no number"),
        (b"NaN", "no number"),
        (b'{"t": NaN}', "not finite"),
        (b'{"t": Infinity}', "not finite"),
        (b'{"t": 1e999}', "not finite"),
        (b'{"t": 1' + b"0" * 10_000 + b"}", "not finite"),
        (b'{"t": 1e16}', "too large"),
        (b"900000000000000 kW", "too large"),
        (b'{"t": 1, "device": "\\ud800"}', "not text"),
        (b'{"t": 1, "\\udfff": 1}', "not text"),
        (b'{"t": {"c": 21}}', "type changed"),
        (b'{"t": [21]}', "type changed"),
        (b'{"t": true}', "type changed"),
        (b'{"t": "warm"}', "type changed"),
        (b'{"t": null}', "type changed"),
        (b"[1, 2]", "no object"),
        (b'{"foo": 1}', "no quantity"),
        (b'{"t": 1', "bad JSON"),
        (b'{"t": 1, "time": "soon"}', "bad time"),
        (b'{"t": 1, "time": [1]}', "bad time"),
        (b'{"t": 1, "time": 12}', "time in the far past"),
        (b'{"t": 1, "time": "1999-12-31T23:59:59Z"}', "time in the far past"),
        (b"[" * 20_000, "nested too deeply"),
        (b'{"t": 1, "x": ' + b'{"a":' * 20 + b"1" + b"}" * 21, "nested too deeply"),
        (b"1" * (MAX_TEXT_BYTES + 1), "too long"),
        (json.dumps({str(n): n for n in range(100)}).encode(), "too many fields"),
    ],
)
def test_rejected_payloads(payload: bytes, reason: str) -> None:
    found = parse(payload, TOPIC)
    assert isinstance(found, RejectedPayload), found
    assert found.reason == reason
    assert len(found.detail) <= 300


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(["t", "time", "unit", "value", "device", "humidity", "foo"]), values)
payloads = st.one_of(
    st.binary(max_size=60), st.text(max_size=60).map(str.encode), objects.map(lambda value: json.dumps(value).encode())
)


@given(payloads, st.text(max_size=20))
def test_any_payload_yields_valid_numbers_or_a_reason(payload: bytes, topic: str) -> None:
    found = parse(payload, topic)
    if isinstance(found, ParsedPayload):
        assert found.readings
        assert all(math.isfinite(one.value) and abs(one.value) <= 2 * GREATEST for one in found.readings)
        assert len({one.quantity for one in found.readings}) == len(found.readings)
        assert found.time_us is None or 0 < found.time_us < 2**63
        texts = [found.device, found.extra, *[one.unit for one in found.readings]]
    else:
        texts = [found.reason, found.detail]
        assert found.reason
    assert all(text is None or text.encode() is not None for text in texts)
