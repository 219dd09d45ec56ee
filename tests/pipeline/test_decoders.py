"""The decoders: their documented examples, the selection among them, and any bytes."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from godwit.pipeline.configuration import rules_of
from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage, Definitions
from godwit.pipeline.decoders.results import REASONS, UNIT_SOURCES, Decoded, Reading, Rejected
from godwit.pipeline.decoders.selection import BUILT_IN, DecoderRule, DecoderSet, decoder_set, filter_pattern
from godwit.pipeline.errors import PipelineError
from godwit.wire.filters import matches

EXAMPLES = [(decoder, one) for decoder in BUILT_IN for one in sys.modules[decoder.__module__].DECODERS[decoder]]
SET = decoder_set()


def decode(payload: bytes | str, topic: str = "home/kitchen/x") -> Decoded | Rejected:
    data = payload.encode() if isinstance(payload, str) else payload
    return SET.decode(DecoderMessage(topic, data))[0]


def numbers(payload: bytes | str, topic: str = "home/kitchen/x") -> list[tuple[str, float, str]]:
    found = decode(payload, topic)
    assert isinstance(found, Decoded), found
    return [(one.quantity, round(one.value, 6), one.unit) for one in found.readings]


def reason(payload: bytes | str, topic: str = "home/kitchen/x") -> str:
    found = decode(payload, topic)
    assert isinstance(found, Rejected), found
    assert found.reason in REASONS
    assert found.detail
    return found.reason


# -- the documented examples ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("decoder", "one"), EXAMPLES, ids=[f"{decoder.name}-{one.topic}" for decoder, one in EXAMPLES])
def test_documented_examples(decoder: type[Decoder], one: DecoderExample) -> None:
    rules = [DecoderRule(one.topic, decoder.name, one.options)] if one.is_configured else []
    decoders = decoder_set(rules)
    for offset, (topic, payload) in enumerate(one.definitions):
        message = DecoderMessage(topic, payload, broker="b", offset=offset)
        decoders.add_definitions(decoders.define(message))
        found, _ = decoders.decode(message)
        assert isinstance(found, Decoded), found
    found, name = decoders.decode(DecoderMessage(one.topic, one.payload, broker="b", offset=len(one.definitions)))
    if one.reason:
        assert isinstance(found, Rejected), found
        assert found.reason == one.reason, found
        return
    assert isinstance(found, Decoded), found
    assert name == decoder.name
    assert len(found.readings) == len(one.readings), found.readings
    for reading, expected in zip(found.readings, one.readings, strict=True):
        assert reading._replace(value=0) == expected._replace(value=0)
        assert reading.value == pytest.approx(expected.value, rel=1e-9)
    assert found.time_us == one.time_us


def test_each_decoder_has_examples_and_a_title() -> None:
    for decoder in BUILT_IN:
        examples = [one for owner, one in EXAMPLES if owner is decoder]
        assert decoder.title
        assert any(one.readings for one in examples)
        assert all(one.reason in REASONS for one in examples if one.reason)
    assert len({one.name for one in BUILT_IN}) == len(BUILT_IN)


# -- numbers that were wrong in 0.5.0 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "topic", "expected"),
    [
        ("70 deg F", "home/temperature", ("temperature", 21.111111, "°C")),
        ("70 °F", "home/temperature", ("temperature", 21.111111, "°C")),
        ("70 \u00baF", "home/temperature", ("temperature", 21.111111, "°C")),  # the ordinal indicator as a degree sign
        ("70 \u2109", "home/temperature", ("temperature", 21.111111, "°C")),
        ('{"temperature": 70, "unit_of_measurement": "°F"}', "home", ("temperature", 21.111111, "°C")),
        ("760 mmHg", "home/pressure", ("pressure", 1013.250144, "hPa")),
        ("760 mmHg", "home/x", ("value", 1013.250144, "hPa")),
        ('{"t":1763208000,"temperature":21.5}', "home", ("temperature", 21.5, "°C")),
        ('{"battery": 87}', "home", ("battery", 87.0, "%")),
        ("87 %", "home/battery", ("battery", 87.0, "%")),
        ("87 %", "home/x", ("value", 87.0, "%")),
    ],
)
def test_payloads_that_were_read_wrongly(payload: str, topic: str, expected: tuple[str, float, str]) -> None:
    assert numbers(payload, topic) == [expected]


@pytest.mark.parametrize(
    "payload",
    [
        "2026-11-15T12:00:00Z,21.5",
        "2026-11-15",
        "12:30:05",
        "sensor-7 21.5",
        "512 MB free",
        "192.168.1.17",
        "v1.2.3",
        "1.2.3",
        "$GPGGA,123519,4807.038,N,01131.000,E,1,08,0.9,545.4,M,46.9,M,,*47",
        "aa:bb:cc:dd:ee:ff",
        "00:1A:2B:3C:4D:5E",
        "The Temp is 54 degree",
        "room 101",
        "21,5",
        "1,000",
        "0x1F",
        "ON",
        "online",
        "21.5 22.5",
        "nan",
        "1e999",
        "temperature 21.5",
        "T=21.5",
        "12 F",
        "5 m",
        "\u0661\u0662",  # digits of another script
    ],
)
def test_text_that_is_not_a_number_with_a_unit(payload: str) -> None:
    assert reason(payload) in ("no number", "not finite", "ambiguous")


def test_error_values_and_bounds() -> None:
    for payload, topic in (
        ("-127", "home/temperature"),
        ("-127.0 °C", "home/temperature"),
        ('{"temperature": -127}', "home"),
        ('{"temperature": 327.67}', "home"),
        ('{"temperature": -3276.8}', "home"),
        ('{"temperature_C": 6553.5}', "home"),
        ("85", "attic/ds18b20/temperature"),
        ('{"co2": 65535}', "home"),
    ):
        assert reason(payload, topic) == "error value", payload
    assert reason("140", "home/humidity") == "out of bounds"
    assert reason("-300 °C", "home/temperature") == "out of bounds"
    assert numbers("85 °C", "attic/temperature") == [("temperature", 85.0, "°C")]


def test_a_temperature_that_may_be_in_fahrenheit_needs_a_unit() -> None:
    """Rooms have 50 to 110 °F. Only few measurements are as hot in °C, and their devices mostly state the unit."""
    assert numbers("49.9", "attic/temperature") == [("temperature", 49.9, "°C")]
    for payload in ("71.2", "85", '{"temperature": 71.2}', "weather,place=office temperature=82"):
        assert reason(payload, "attic/temperature") == "ambiguous", payload
    assert numbers('{"temperature": 71.2, "unit": "°C"}', "attic") == [("temperature", 71.2, "°C")]
    assert reason('{"dew_point": 60}', "attic") == "ambiguous"


@pytest.mark.parametrize(
    ("payload", "topic"),
    [
        ("760", "home/pressure"),  # mmHg
        ("101325", "home/pressure"),
        ("29.92", "home/pressure"),
        ('{"pressure": 101.3}', "home"),
        ('{"temperature": 294.65}', "home"),  # kelvin
        ('{"battery": 3.05}', "home"),
        ('{"battery": 0.87}', "home"),
        ('{"voltage": 3005}', "home"),
        ('{"humidity": 0.45}', "home"),
        ("1", "home/kitchen/light"),
        ('{"light": 1}', "home"),
        ('{"temperature_c": 21.5, "unit": "°F"}', "home"),
        ('{"temperature": 70, "humidity": 40, "units": "imperial"}', "home"),
    ],
)
def test_values_without_a_unit_that_are_ambiguous(payload: str, topic: str) -> None:
    assert reason(payload, topic) == "ambiguous"


@pytest.mark.parametrize(
    ("payload", "topic", "expected"),
    [
        ("42 bananas", "home/kitchen/x", ("value", 42, "bananas")),
        ("12 mg/L", "home/kitchen/x", ("value", 12, "mg/L")),
        ("5 fps", "home/kitchen/x", ("value", 5, "fps")),
        ("1.2 inH2O", "hvac/ahu1/static_pressure", ("value", 2.989067, "hPa")),
        ("21,5 °C", "home/kitchen/temperature", ("temperature", 21.5, "°C")),
        ("68 *F", "home/kitchen/temperature", ("temperature", 20, "°C")),
        ("3.7 V", "home/kitchen/battery", ("voltage", 3.7, "V")),
        ("21.5", "node/sensor/xiaomi_wohnzimmer_temperature/state", ("temperature", 21.5, "°C")),
        ('{"battery": "3.7 V"}', "home/kitchen", ("voltage", 3.7, "V")),
        ('{"windspeedmph": 10}', "weather/station", ("wind_speed", 4.4704, "m/s")),
        ('energy_joules_total{d="1"} 3600000', "metrics/house", ("energy", 1, "kWh")),
        ('[{"n": "temperature_setpoint", "u": "Cel", "v": 22}]', "senml/x", ("temperature_setpoint", 22, "°C")),
    ],
)
def test_units_and_names_that_devices_use(payload: str, topic: str, expected: tuple[str, float, str]) -> None:
    assert numbers(payload, topic) == [expected]


@pytest.mark.parametrize(
    ("payload", "topic", "expected"),
    [
        ("42 free", "home/kitchen/x", "no number"),
        ("42bananas", "home/kitchen/x", "no number"),
        ("1 Alice", "home/kitchen/x", "no number"),
        ("5 FAILED", "home/kitchen/x", "no number"),
        ("21.5 bananas", "home/kitchen/temperature", "no number"),
        ("21,5", "home/kitchen/temperature", "no number"),
        ("1,013 hPa", "home/kitchen/pressure", "no number"),
        ("21.5", "node/sensor/frost_protection_temperature/state", None),
        ("21.5", "node/sensor/target_temperature/state", "no quantity"),
        ("21.5", "node/number/temperature/state", "no quantity"),
        ("21.5", "homeassistant/statestream/climate/hall/temperature", "no quantity"),
        ('{"temperature": 70, "isFahrenheit": true}', "home/kitchen", "ambiguous"),
        ('{"temperature": 70, "celsius": false}', "home/kitchen", "ambiguous"),
        ('{"data": {"temperature": 70, "metric": false}}', "home/kitchen", "ambiguous"),
        ('{"temperature_F": 185, "model": "DS18B20"}', "a/b", "error value"),
        ('{"temperature_K": 358.15, "model": "DS18B20"}', "a/b", "error value"),
        ('{"temperature_F": -196.6}', "a/b", "error value"),
        ('{"temperature_K": 146.15}', "a/b", "error value"),
        ('{"TempC_DS18B20": 279.9}', "a/b", "error value"),
        ('{"value": 2312, "scale": 0.1, "unit": "V"}', "a/b", "ambiguous"),
        ('{"a": {"value": 2312, "divisor": "10", "unit": "V"}}', "a/b", "ambiguous"),
        ('{"value": 2312, "decimals": 1, "unit": "V"}', "a/b", "ambiguous"),
        ('{"outTemp": "45.1", "usUnits": "1.0"}', "weather/loop", "ambiguous"),
        ('{"conditions": [{"lsid": 1, "temp": 45.1}]}', "weather/x", "ambiguous"),
        ('{"ch1": 0, "ch2": 0, "ch3": 1, "ch4": 0}', "a/b", "ambiguous"),
        ('{"ch4": 4}', "a/b", "ambiguous"),
        ('{"o1": 0, "o3": 1}', "a/b", "ambiguous"),
        ('{"pm1": 230, "pm2": 231, "pm3": 229}', "a/b", "ambiguous"),
        ('{"power": 1}', "home/lamp", "ambiguous"),
        ('{"volt": 360}', "a/b", "ambiguous"),
        ('{"speed": 9600}', "a/b", "ambiguous"),
        ('{"timestamp": {"year": 2026, "day": 1}, "temperature": 21.5}', "a/b", "bad time"),
        ('{"avg": {"temperature": 21.5}}', "a/b", "no quantity"),
        ('temp_celsius{sensor="ds18b20"} 85', "metrics/x", "error value"),
        ('{"temperature": 21.5, "valid": false}', "home/kitchen", "error value"),
        ('{"temperature": 21.5, "status": "error"}', "home/kitchen", "error value"),
        ('{"type": "setpoint", "value": 21.5}', "home/kitchen", "no quantity"),
        ('{"tgt": {"temperature": 21.5}}', "home/kitchen", "no quantity"),
        ("temperature=21.5 humidity=45", "home/kitchen", "no number"),
        ("m v=1,v=2", "telegraf/x", "bad payload"),
        ("m\x01 v=1", "telegraf/x", "no number"),
        ("m,a\x00=b v=1", "telegraf/x", "no number"),
        (
            '{"specversion": "1.0", "type": "room.setpoint", "source": "a", "id": "b", "data": {"temperature": 21.5}}',
            "events/room",
            "no quantity",
        ),
    ],
)
def test_no_measurements_are_guessed(payload: str, topic: str, expected: str | None) -> None:
    if expected is None:  # a number, but not of the quantity in its name
        assert numbers(payload, topic)[0][0] == "value"
    else:
        assert reason(payload, topic) == expected


def test_flags_that_agree_with_the_default_change_nothing() -> None:
    for text in ('"isFahrenheit": false', '"celsius": true', '"valid": true', '"status": "ok"', '"air_quality": "bad"'):
        assert numbers(f'{{"temperature": 21.5, {text}}}') == [("temperature", 21.5, "°C")]


@pytest.mark.parametrize(
    "text",
    [
        '"dt": 1794744000',
        '"t": "2026-11-15T12:00:00Z"',
        '"tst": 1794744000',
        '"dateutc": "2026-11-15 12:00:00"',
        '"time_utc": "2026-11-15T12:00:00"',
    ],
)
def test_names_of_times(text: str) -> None:
    found = decode(f'{{"temperature": 21.5, {text}}}')
    assert isinstance(found, Decoded)
    assert found.time_us == 1_794_744_000_000_000


@pytest.mark.parametrize(
    "payload",
    [
        "a26b74656d7065726174757265fb40358000000000006474696d65c11a6af99ec0",  # CBOR, tag 1
        "a26b74656d7065726174757265fb40358000000000006474696d65c074323032362d31312d31355431323a30303a30305a",  # tag 0
        "82ab74656d7065726174757265cb4035800000000000a474696d65d6ff6af99ec0",  # the timestamp of MessagePack
    ],
)
def test_times_of_binary_maps(payload: str) -> None:
    found = decode(bytes.fromhex(payload))
    assert isinstance(found, Decoded)
    assert found.time_us == 1_794_744_000_000_000


def test_units_of_fields() -> None:
    assert numbers('{"temperature": 68, "humidity": 40, "unit": "F"}') == [
        ("temperature", 20.0, "°C"),
        ("humidity", 40.0, "%"),
    ]
    assert numbers('{"temperature": "68 °F"}') == [("temperature", 20.0, "°C")]
    assert numbers('{"temperature": "21.5"}') == [("temperature", 21.5, "°C")]
    assert numbers('{"temperature": 21.5, "unit": "widgets"}') == [("temperature", 21.5, "widgets")]
    assert numbers('{"battery_mV": 3050}') == [("voltage", 3.05, "V")]
    assert numbers('{"pm2_5": 12, "eCO2": 600}') == [("pm25", 12.0, "µg/m³"), ("co2", 600.0, "ppm")]
    assert numbers('{"energy": 12.5}') == [("energy", 12.5, "")]
    assert reason('{"humidity": 40, "unit": "°C"}') == "unit does not fit"
    assert reason('{"temperature": 70, "humidity": 40, "unit": "hPa"}') == "unit does not fit"


def test_fields_without_a_number() -> None:
    assert numbers('{"temperature": null, "humidity": 40}') == [("humidity", 40.0, "%")]
    assert numbers('{"power": "ON", "voltage": 230}') == [("voltage", 230.0, "V")]
    assert reason('{"temperature": null}') == "error value"
    assert reason('{"temperature": "warm"}') == "type changed"
    assert reason('{"temperature": true}') == "type changed"
    assert reason('{"state": "ON"}') == "no quantity"
    assert reason("{}") == "no quantity"


def test_encodings() -> None:
    assert numbers(b"\xef\xbb\xbf21.5") == [("value", 21.5, "")]
    assert numbers("21.5".encode("utf-16")) == [("value", 21.5, "")]
    assert numbers(b"70 \xb0F", "home/temperature") == [("temperature", 21.111111, "°C")]
    assert reason("21.5".encode("utf-16-le")) == "no number"
    assert reason(b"caf\xe9 21.5") == "not text"
    assert reason(b"") == reason(b" \n") == "empty"


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ('{"temperature": 21.5', "bad JSON"),
        ('{"temperature": NaN}', "bad JSON"),
        ('{"temperature": 1, "temperature": 2}', "bad JSON"),
        ('{"a": ' * 20 + "1" + "}" * 20, "nested too deeply"),
        ("[" * 500_000 + "]" * 500_000, "too long"),
        ("[" * 30_000, "nested too deeply"),
        ('{"temperature": ' + "9" * 40 + "}", "out of bounds"),
        ('{"temperature": ' + "9" * 400 + "}", "type changed"),
        ('{"temperature": ' + "9" * 5000 + "}", "bad JSON"),
        ('{"temperature": "\\ud800"}', "not text"),
        ("[1, 2, 3]", "no quantity"),
    ],
)
def test_bad_json(payload: str, expected: str) -> None:
    assert reason(payload) == expected


# -- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1763208000",
        "1763208000.0",
        "1763208000000",
        "1763208000000000",
        "1763208000000000000",
        '"1763208000"',
        '"2025-11-15T12:00:00Z"',
        '"2025-11-15T12:00:00.000+00:00"',
        '"2025-11-15 13:00:00+0100"',
        '"2025-11-15T12:00:00.000000000Z"',
    ],
)
def test_times(text: str) -> None:
    found = decode('{"temperature": 21.5, "time": ' + text + "}")
    assert isinstance(found, Decoded)
    assert found.time_us == 1763208000_000_000
    assert found.extra is None


@pytest.mark.parametrize("text", ['"2025-11-15T12:00:00"', "12345", "86400.5", '"noon"', "2026"])
def test_times_that_are_not_known(text: str) -> None:
    found = decode('{"temperature": 21.5, "time": ' + text + "}")
    assert isinstance(found, Decoded)
    assert found.time_us is None
    assert found.extra is not None
    assert text.strip('"') in found.extra


def test_a_clock_that_was_never_set() -> None:
    assert reason('{"temperature": 21.5, "time": "1970-01-01T00:00:12Z"}') == "time in the far past"


def test_a_configured_time_zone() -> None:
    decoders = decoder_set([DecoderRule("a/#", "json", {"time_zone": "Europe/Berlin"})])
    found, _ = decoders.decode(DecoderMessage("a/b", b'{"temperature": 21.5, "time": "2025-11-15T13:00:00"}'))
    assert isinstance(found, Decoded)
    assert found.time_us == 1763208000_000_000


# -- nested JSON ------------------------------------------------------------------------------------------------------


def test_nested_json() -> None:
    found = decode(
        '{"time": 1763208000, "device": "d1", "a": {"temperature": {"value": 68, "unit": "F"}}, '
        '"b": [{"humidity": 40}, {"humidity": 41}], "settings": {"temperature": 30}, "c": {"temperature_max": 9}}'
    )
    assert isinstance(found, Decoded)
    assert [(one.name, one.quantity, round(one.value, 6)) for one in found.readings] == [
        ("a.temperature.value", "temperature", 20.0),
        ("b.0.humidity", "humidity", 40.0),
        ("b.1.humidity", "humidity", 41.0),
    ]
    assert (found.time_us, found.device) == (1763208000_000_000, "d1")
    assert found.extra is not None
    assert "settings" in found.extra


def test_samples_with_their_own_times() -> None:
    found = decode('[{"time": 1763208000, "temperature": 20}, {"time": 1763208060, "temperature": 21}]')
    assert isinstance(found, Decoded)
    assert [(one.value, one.time_us) for one in found.readings] == [
        (20.0, 1763208000_000_000),
        (21.0, 1763208060_000_000),
    ]


# -- selection --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from(["a", "b", "", "+", "*"]), min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.sampled_from(["a", "b", "", "$s"]), min_size=1, max_size=5),
)
def test_filters_match_as_those_of_the_broker(levels: list[str], is_open: bool, topic: list[str]) -> None:
    text = "/".join([*levels, "#"] if is_open else levels)
    name = "/".join(topic)
    if text and name:
        assert (filter_pattern(text).match(name) is not None) == matches(text, name)


def test_the_configuration_comes_first() -> None:
    rules = [DecoderRule("a/+", "number", {"quantity": "co2"}), DecoderRule("a/#", "sentence", {})]
    decoders = decoder_set(rules)
    assert decoders.decode(DecoderMessage("a/b", b"700"))[0] == Decoded(
        [Reading("co2", 700.0, "ppm", unit_source="default")]
    )
    found, name = decoders.decode(DecoderMessage("a/b", b'{"temperature": 21.5}'))
    assert (found[0], name) == ("wrong format", "number")
    assert decoders.decode(DecoderMessage("a/b/c", b"The Temp is 54 degree"))[1] == "sentence"
    assert decoders.decode(DecoderMessage("b", b'{"temperature": 21.5}'))[1] == "json"


CBOR = bytes.fromhex("a16b74656d7065726174757265f94d60")
MESSAGE_PACK = bytes.fromhex("81ab74656d7065726174757265cb4035800000000000")
SENML = b'[{"n": "urn:dev:a:temperature", "u": "Cel", "v": 21.5}]'
EVENT = (
    b'{"specversion": "1.0", "type": "reading", "source": "/rooms/7", "id": "a1", "datacontenttype": '
    b'"application/senml+json", "data": [{"n": "temperature", "u": "Cel", "v": 21.5}]}'
)
FLAT = b'{"temperature": 21.5}'


@pytest.mark.parametrize(
    ("content_type", "payload", "decoder"),
    [
        ("application/cbor", CBOR, "binary_map"),
        ("application/vnd.maker+cbor", CBOR, "binary_map"),
        ("application/msgpack", MESSAGE_PACK, "binary_map"),
        ("application/senml+json", SENML, "senml"),
        ("Application/SenML+JSON; charset=utf-8", SENML, "senml"),
        ("application/cbor", bytes.fromhex("81a2006474656d7002f94d60"), "senml"),
        ("application/cloudevents+json; charset=utf-8", EVENT, "cloudevents"),
        ("application/json", FLAT, "json"),  # a general type: recognised as without it
        ("text/plain", b"21.5", "number"),
        ("application/vnd.maker+json", FLAT, "json"),
    ],
)
def test_the_content_type_chooses_the_decoder(content_type: str, payload: bytes, decoder: str) -> None:
    # The topic is one of Zigbee2MQTT: a stated format prevails, and where none is stated the topic does.
    for topic in ("home/temperature", "zigbee2mqtt/a"):
        for _ in range(2):  # the second time from the caches
            found, name = SET.decode_quickly(topic, payload, 0, "b", 1, content_type)
            is_topics = topic.startswith("zigbee") and decoder in ("json", "number")
            assert name == ("zigbee2mqtt" if is_topics else decoder)
            if not is_topics:
                assert isinstance(found, Decoded)
                assert [(one.quantity, one.value) for one in found.readings] == [("temperature", 21.5)]


@pytest.mark.parametrize(
    ("content_type", "payload", "format"),
    [
        ("application/cbor", FLAT, "senml or binary_map"),
        ("application/cbor", CBOR[:-1], "senml or binary_map"),
        ("application/msgpack", CBOR, "binary_map"),
        ("application/cloudevents+json", FLAT, "cloudevents"),
    ],
)
def test_a_payload_that_is_not_of_its_content_type(content_type: str, payload: bytes, format: str) -> None:
    found, _ = SET.decode_quickly("home/kitchen", payload, 0, "b", 1, content_type)
    text = f"the content type is {content_type}, and this is not of the format {format}"
    assert found == Rejected("bad payload", text)
    assert SET.decode_quickly("home/kitchen", FLAT, 0, "b", 2, None)[1] == "json"


def test_a_configured_content_type() -> None:
    columns = {"columns": ["temperature_C", "humidity"]}
    content = {"pipeline": {"decoder": [{"content_type": "Text/CSV", "decoder": "csv", **columns}]}}
    decoders = decoder_set([*rules_of(content), DecoderRule("lab/#", "number", {"quantity": "co2"})])
    for _ in range(2):
        found, name = decoders.decode_quickly("lab/a", b"21.5,40", 0, "b", 1, "text/csv; header=absent")
        assert (name, [one.value for one in found.readings]) == ("csv", [21.5, 40.0])
        assert decoders.decode_quickly("lab/a", b"700", 0, "b", 1, None)[1] == "number"
        assert decoders.decode_quickly("lab/a", b"700", 0, "b", 1, "text/plain")[1] == "number"
        assert decoders.decode_quickly("home/a", FLAT, 0, "b", 1, "application/json")[1] == "json"
        assert decoders.decode_quickly("home/a", FLAT, 0, "b", 1, "text/csv")[1] == "csv"  # quickly read before
    for wrong in (5, "csv", "text/csv; a=b", ""):
        with pytest.raises(PipelineError, match="is not a content type"):
            rules_of({"pipeline": {"decoder": [{"content_type": wrong, "decoder": "csv", **columns}]}})


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (DecoderRule("a", "jsn", {}), "the decoder 'jsn' is unknown"),
        (DecoderRule("a", "json", {"colums": []}), "has no option colums"),
        (DecoderRule("a", "csv", {}), "needs columns"),
        (DecoderRule("a", "json", {"time_zone": "Mars"}), "not a time zone"),
        (DecoderRule("a", "json", {"fields": {"t": 5}}), "needs a quantity"),
    ],
)
def test_invalid_configurations(rule: DecoderRule, text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        decoder_set([rule])


class _Failing(Decoder):
    name = "failing"
    title = "fails"

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        raise ValueError("broken")


@pytest.mark.parametrize(
    ("result", "reason", "text"),
    [
        ("a text", "decoder failed", "it returned str"),
        (Decoded([("temperature", 1.0)]), "decoder failed", "a reading is of the type tuple"),  # type: ignore[list-item]
        (Decoded([Reading("x", "5", "")]), "decoder failed", "the value of x is str"),  # type: ignore[arg-type]
        (Decoded([Reading("x", 5.0, None)]), "decoder failed", "are texts"),  # type: ignore[arg-type]
        (Decoded([Reading("", 5.0, "")]), "decoder failed", "are texts"),
        (Decoded([Reading("x", float("nan"), "")]), "not finite", "x is nan"),
        (SystemExit("bye"), "decoder failed", "SystemExit: bye"),
    ],
)
def test_results_that_no_table_can_hold_are_rejected(result: Any, reason: str, text: str) -> None:
    class Foreign(_Failing):
        def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
            if isinstance(result, BaseException):
                raise result
            found: Decoded = result
            return found

    found, name = DecoderSet([Foreign]).decode(DecoderMessage("a", b"1"))
    assert isinstance(found, Rejected)
    assert (found.reason, name) == (reason, "failing")
    assert text in found.detail


def test_a_decoder_that_fails_is_named() -> None:
    found, name = DecoderSet([_Failing]).decode(DecoderMessage("a", b"1"))
    assert (found, name) == (Rejected("decoder failed", "the decoder failing: ValueError: broken"), "failing")


def test_definitions_apply_to_later_messages_of_the_same_broker() -> None:
    rows = [("b", 5, "x", "k", '{"n": 5}'), ("b", 9, "x", "k", '{"n": 9}'), ("c", 1, "x", "k", "1")]
    for order in (rows, rows[::-1], rows + rows):
        found = Definitions(order)
        assert [found.newest("b", "x", "k", at) for at in (5, 6, 9, 10)] == [None, {"n": 5}, {"n": 5}, {"n": 9}]
        assert found.newest("b", "y", "k", 10) is None
        assert len(found) == 3


# -- any bytes --------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.binary(max_size=200), st.sampled_from(["a/b", "home/temperature", "zigbee2mqtt/x", "tele/x/SENSOR"]))
@example(b"\xa1" + b"\x81" * 5000, "a")
@example(b"\x81" * 5000, "a")
def test_any_bytes_give_readings_or_a_reason(payload: bytes, topic: str) -> None:
    _check(SET.decode(DecoderMessage(topic, payload)))


_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["temperature", "unit", "time", "value", "id", "t", "battery", "power_unit"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(_VALUES)
def test_any_json_gives_readings_or_a_reason(value: Any) -> None:
    _check(SET.decode(DecoderMessage("a/b", json.dumps(value).encode())))


@settings(max_examples=300)
@given(st.text(alphabet='ab=,{}" 0123456789.-#\n°CF%', max_size=80))
def test_any_text_gives_readings_or_a_reason(text: str) -> None:
    _check(SET.decode(DecoderMessage("a/b", text.encode())))


def _check(result: tuple[Decoded | Rejected, str]) -> None:
    found, name = result
    if isinstance(found, Rejected):
        assert found.reason in REASONS
        assert found.reason != "decoder failed", found
        assert found.detail
        return
    assert name
    for one in found.readings:
        assert math.isfinite(one.value)
        assert one.unit_source in UNIT_SOURCES
        assert one.quantity


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 65_000,
        b'{"a":' * 10_000,
        b"1" * 65_000,
        b"a=" * 30_000,
        b"a b=1," * 10_000,
        b'a{b="' * 12_000,
        b" " * 65_000,
        b"1 " + b"\xc2\xb0" * 30_000,
        b'{"' + b'a":1,"' * 10_000,
        b"\x81" * 65_000,
        b"a,b=c" * 13_000,
        b"a" * 65_000 + b" b=1",
        b"a\\" * 32_000,
        b"x{" + b'a="b" , ' * 8_000,
        b'x{a="b"' + b" " * 65_000,
    ],
)
def test_time_is_bounded_by_the_length(payload: bytes) -> None:
    began_at = time.process_time()
    _check(SET.decode(DecoderMessage("a/b", payload)))
    assert time.process_time() - began_at < 5, "quadratic work would take minutes"


# -- decoders of other packages ----------------------------------------------------------------------------------------


def install(folder: Path, name: str, source: str, value: str) -> None:
    """Write a package as an installation would: a module, and metadata with an entry point."""
    (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[godwit.decoders]\n{name} = {value}\n")


def test_the_decoder_of_the_docs_works_when_its_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "DECODERS.md").read_text(encoding="utf-8")
    source = page.partition("## A decoder of your own")[2].partition("```python\n")[2].partition("```")[0]
    install(tmp_path, "pulse_package", source, "pulse_package:PulseDecoder")
    monkeypatch.syspath_prepend(tmp_path)
    found, decoder = decoder_set().decode(DecoderMessage("meters/7/pulse", (1234).to_bytes(4, "big")))
    assert isinstance(found, Decoded)
    assert (decoder, len(found.readings)) == ("pulse", 1)
    found, decoder = decoder_set().decode(DecoderMessage("meters/7/pulse", b"123"))
    assert found == Rejected("bad payload", "a pulse message has four bytes")


@pytest.mark.parametrize(
    ("value", "text"), [("broken:Missing", "cannot be loaded"), ("broken:NUMBER", "is not a subclass of Decoder")]
)
def test_a_package_without_a_decoder_is_an_error(
    value: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken", "NUMBER = 1\n", value)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(PipelineError, match=text):
        decoder_set()


def test_what_is_clear_beside_what_is_not() -> None:
    assert numbers('{"power": 1, "temperature": 21.5}') == [("temperature", 21.5, "°C")]
    assert numbers('{"power": 1, "voltage": 231.5}') == [("power", 1.0, "W"), ("voltage", 231.5, "V")]
    assert numbers('{"power": 0}') == [("power", 0.0, "W")]
    assert numbers('{"temperature": 21.5, "pressure": 100729.1}') == [("temperature", 21.5, "°C")]
    assert numbers('{"voltage": 217.9, "current": 168.5}') == [("voltage", 217.9, "V")]
    assert numbers('{"ch4": 4, "co2": 612}') == [("methane", 4.0, ""), ("co2", 612.0, "ppm")]
    assert numbers('{"ch4_ppm": 4, "ch1": 0}') == [("methane", 4.0, "ppm")]
    assert numbers('{"temperature": 21.5, "factor": 1}') == [("temperature", 21.5, "°C")]
    assert numbers('{"power": 100.5, "factor": 0.9}') == [("power", 100.5, "W")]
    assert numbers('{"temperature": 21.5, "decimals": 1}') == [("temperature", 21.5, "°C")]
    assert numbers('{"voltageL1": {"data": 231, "unit": "V"}}') == [("voltage", 231.0, "V")]
    assert numbers("1", "relay/ch4") == [("value", 1.0, "")]
    assert numbers("12 ppm", "air/ch4") == [("methane", 12.0, "ppm")]
    assert numbers('esp_value{unit="°F"} 68', "metrics/x") == [("esp_value", 68.0, "°F")]
    assert numbers("weather,units=metric temperature=21.5", "telegraf/x") == [("temperature", 21.5, "°C")]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("a163656e76a26474656d70156474656d7016", "bad payload"),  # {"env": {"temp": 21, "temp": 22}}
        ("a163656e76a26474656d70157804" + b"temp".hex() + "16", "bad payload"),  # the same length in another spelling
        ("bf63656e76bf6474656d70156474656d7016ffff", "bad payload"),
        ("a16178" + "82a1616101a1616102" + "", "no quantity"),  # {"x": [{"a": 1}, {"a": 2}]}
    ],
)
def test_keys_that_cbor_has_twice(payload: str, expected: str) -> None:
    found, _ = decoder_set().decode(DecoderMessage("a/b", bytes.fromhex(payload)))
    assert isinstance(found, Rejected)
    assert found.reason == expected
