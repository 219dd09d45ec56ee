"""Messages that are read many at a time, by their shapes, are read as they are one by one."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pytest
from tests.pipeline.corpus_judge import entries, payload_of
from tests.pipeline.test_corpus import decoders_of

from godwit.pipeline.datasets import reading_columns, readings
from godwit.pipeline.datasets.readings import NOT_READINGS, split_batch
from godwit.pipeline.decoders import json_fields
from godwit.pipeline.decoders.base import DecoderMessage
from godwit.pipeline.decoders.results import Decoded, Rejected
from godwit.pipeline.decoders.selection import DecoderRule, DecoderSet, decoder_set
from godwit.pipeline.decoders.skeletons import find_skeletons
from godwit.pipeline.quantities import ALIASES, QUANTITIES, Quantity, field_of
from godwit.pipeline.units import scale_of

NOON_US: Final = 1_794_744_000_000_000
COPIES: Final = 40
"""Messages of each template: enough to be read by their shape."""
NUMBER: Final = re.compile(r"(?<=[:\s,\[])-?\d+(?:\.\d+)?(?=[\s,}\]])|\A-?\d+(?:\.\d+)?\Z")
ODD_NUMBERS: Final = (
    "0", "-0", "-0.0", "0.0", "1", "01", "1.", ".5", "-", "--1", "1.2.3", "1e3", "1E-2", "+5", "1/2", "85", "85.0",
    "185", "-127", "-127.0000001", "65535", "99999999999999999999999", "9007199254740993", "1000000000000001",
    "0.00001", "0.10", "100.00", "123456789.123456789", "NaN", "Infinity", "null", "true", '"21.5"', '"n/a"', "21.5 ",
    "1794744000", "1794744000.25", "1794744000123", "1794744000123456", "1794744000123456789", "946684799",
    "4102444801",
)  # fmt: skip
ODD_TIMES: Final = (
    "1999-12-31T23:59:59Z", "2000-01-01T00:00:00+01:00", "2026-02-29T00:00:00Z", "2028-02-29T00:00:00Z", "now",
    "2026-04-31T00:00:00Z", "2026-13-01T00:00:00Z", "2026-11-15T24:00:00Z", "2026-11-15T12:00:60Z",
    "2026-11-15T12:00:00.1234567Z", "2026-11-15T12:00:00,5Z", "2026-11-15 12:00:00Z", "2026-11-15 12:00:00 UTC",
    "2026-11-15T12:00:00+0100", "2026-11-15T12:00:00-01", "2026-11-15T12:00Z", "2099-12-31T23:59:59Z",
    "2026-11-15T12:00:00+99:00", "2026-11-15T12:00:00é", "2026-11-15T11:59:59.999999Z",
)  # fmt: skip
NAMES: Final = (
    "temperature", "temperature_F", "temp", "indoor_temp", "humidity", "pressure", "pressure_hPa", "battery",
    "battery_mV", "voltage", "current", "power", "light", "illuminance", "co2", "value", "count", "power_factor",
    "linkquality", "rssi", "time", "ts", "timestamp", "t", "device", "id", "sensor", "name", "type", "unit",
    "temperature_unit", "error", "status", "valid", "isFahrenheit", "seq", "firmware", "target_temp", "tempf", "tempc",
    "wind_mph", "übertemperatur",
)  # fmt: skip
TEXTS: Final = (
    "a", "d17", "°F", "°C", "F", "mV", "%", "humidity", "temperature", "ok", "error", "max", "metric", "imperial",
    "2026-11-15T12:00:00Z", "2026-11-15T12:00:00", "a 5, b", "x: -1", "{1}", "[2]", "ds18b20", "", "é",
    'q"uote', "back\\slash",
)  # fmt: skip
TOPICS: Final = (
    "home/kitchen", "home/kitchen/temperature", "home/kitchen/battery", "home/x", "plant/ds18b20/7", "a/set", "b/light",
    "b/voltage", "zigbee2mqtt/a", "tele/a/SENSOR", "$sys/a", "alerts/a", "home/pressure", "home/current",
    "home/version",
)  # fmt: skip


def batch_of(messages: Iterable[tuple[str, bytes]], content_type: str | None = None) -> pa.RecordBatch:
    sent = list(messages)
    count = len(sent)
    times = pa.array([NOON_US + 1000 * row for row in range(count)], pa.timestamp("us", "UTC"))
    return pa.record_batch(
        {
            "broker": pa.array(["b"] * count),
            "offset": pa.array(range(7, 7 + count), pa.int64()),
            "topic": pa.array([topic for topic, _ in sent], pa.string()),
            "publisher": pa.array(["p"] * count),
            "published": times,
            "received": times,
            "payload": pa.array([payload for _, payload in sent], pa.binary()),
            "content_type": pa.array([content_type] * count, pa.string()),
        }
    )


def compare(decoders: DecoderSet, batch: pa.RecordBatch) -> int:
    """Compare with messages that are decoded by themselves; return how many were read by their shapes."""
    found = split_batch(decoders, batch)
    is_wanted = np.array([not topic.startswith(NOT_READINGS) for topic in batch.column("topic").to_pylist()])
    expected = readings._split_one_by_one(decoders, batch, is_wanted)
    for some, others in zip(found, expected, strict=True):
        got, wanted = some.to_pylist(), others.to_pylist()
        for one, other in zip(got, wanted, strict=False):
            assert repr(one) == repr(other)
        assert len(got) == len(wanted)
    columns = readings._read_columns(decoders, batch, np.ones(batch.num_rows, bool))
    return 0 if columns is None else len(set(columns.rows.tolist()))


def number_text(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.03:
        return rng.choice(ODD_NUMBERS)
    if kind < 0.4:
        return str(rng.randint(15, 49))
    return f"{rng.uniform(15, 49):.{rng.randint(1, 3)}f}"


def time_text(rng: random.Random) -> str:
    """Return a time of today in some spelling, or a text that is similar to one."""
    if rng.random() < 0.03:
        return rng.choice(ODD_TIMES)
    text = f"2026-11-{rng.randint(10, 15)}T{rng.randint(0, 11):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
    return text + rng.choice(["Z", "Z", "Z", ".5Z", ".123456Z", "+00:00", "+05:30", "", ".25"])


def mutations(rng: random.Random, payload: bytes) -> Iterable[bytes]:
    """Yield a payload with other numbers, near to its own or any."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return
    for _ in range(COPIES):

        def other(found: re.Match[str]) -> str:
            kind = rng.random()
            if kind < 0.02:
                return rng.choice(ODD_NUMBERS)
            if kind < 0.5 or len(found[0]) > 9:
                return found[0][:-1] + str(rng.randint(1, 9))
            return number_text(rng)

        yield NUMBER.sub(other, text).encode()


def test_the_payloads_of_the_corpus_with_other_numbers() -> None:
    rng = random.Random(7)
    default = decoder_set()
    by_shape = messages = 0
    for _, _, entry in entries():
        is_plain = not entry.get("configuration") and not entry.get("before")
        decoders = default if is_plain else decoders_of(entry)
        if not payload_of(entry).startswith((b"{", b"-", *[b"%d" % digit for digit in range(10)])):
            continue
        sent = [(entry["topic"], payload) for payload in mutations(rng, payload_of(entry))] * 2
        batch = batch_of(sent, entry.get("content_type"))
        by_shape += compare(decoders, batch)
        messages += batch.num_rows
    assert by_shape > messages / 10  # most of the corpus is about other formats


def test_random_objects() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    decoders = decoder_set()
    by_shape = messages = 0
    for _ in range(60):
        sent = []
        for _ in range(6):
            topic = rng.choice(TOPICS)
            names = rng.sample(NAMES, rng.randint(0, 5)) + ["temperature"] * (rng.random() < 0.5)
            if rng.random() < 0.03:
                names += names[:1]
            comma, colon = rng.choice([(", ", ": "), (",", ":"), (" , ", " :\t")])
            texts = {name: rng.choice([rng.choice(TEXTS), True, False, None, [1], {"a": 2}]) for name in names}
            is_number = {name: rng.random() < (0.3 if name in ("unit", "device", "status") else 0.85) for name in names}
            if "time" in names:
                is_number["time"] = True
            times = {name for name in names if rng.random() < (0.4 if "t" in name else 0.05)}
            for _ in range(COPIES):
                parts = []
                for name in names:
                    text = json.dumps(texts[name], ensure_ascii=False)
                    if name in times:
                        text = json.dumps(time_text(rng))
                    if is_number[name]:
                        text = number_text(rng)
                        if name in ("time", "ts", "timestamp", "t") and rng.random() < 0.95:
                            at = NOON_US / 1e6 + rng.uniform(-1000, 200)
                            text = rng.choice([f"{at:.3f}", f"{at:.0f}", f"{1000 * at:.0f}", f"{1e6 * at:.0f}"])
                    parts.append(f"{json.dumps(name, ensure_ascii=False)}{colon}{text}")
                text = "{" + comma.join(parts) + "}"
                sent.append((topic, number_text(rng).encode() if rng.random() < 0.1 else text.encode()))
        rng.shuffle(sent)
        batch = batch_of(sent, rng.choice([None, None, "application/json", "application/cbor"]))
        by_shape += compare(decoders, batch)
        messages += batch.num_rows
    assert by_shape > messages / 20, (by_shape, messages)


UNIT_ENDS: Final = (
    "", "_C", "_F", "_K", "_hPa", "_kPa", "_Pa", "_inHg", "_mmHg", "_psi", "_mV", "_V", "_mA", "_A", "_W", "_kW", "_Wh",
    "_kWh", "_pct", "_lx", "_km_h", "_mph", "_mm", "_in", "_ppm", "_ppb", "_Hz",
)  # fmt: skip
BESIDE: Final = (
    "", ', "model": "DS18B20"', ', "voltage": 231.5', ', "scale": 0.1', ', "usUnits": 1', ', "lsid": 3', ', "ch1": 0',
    ', "unit": "\u00b0F"', ', "valid": true', ', "wind_mph": 3', ', "time": 1794744000', ', "error": 0', ', "lux": 12',
    ', "pressure": 101325',
)  # fmt: skip


def edge_numbers(known: Quantity, ends: Iterable[str]) -> list[float]:
    """Return numbers at the bounds of a quantity, its error values and others, in its own unit and in others."""
    own = scale_of(known.unit, known.kind) if known.kind else None
    edges = {*known.bounds, *(known.default or ()), *known.errors}
    edges |= {85.0, 0.0, 1.0, 2.0, 15.0, 260.0, 261.0, 1000.0, 1001.0}
    found = set(edges)
    for end in ends:
        scale = scale_of(end.strip("_").replace("_", "/") or known.unit, known.kind) if known.kind else None
        if scale is not None and own is not None and scale.kind == known.kind:
            found |= {(edge * own.factor + own.offset - scale.offset) / scale.factor for edge in edges}
    near = {one + step for one in found for step in (-0.5, -1e-7, 1e-7, 0.5)}
    return sorted({round(one, digits) for one in found | near for digits in (0, 1, 6) if abs(one) < 1e14})


@pytest.mark.parametrize("quantity", sorted(ALIASES))
def test_all_ways_to_read_a_number_agree(quantity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = decoder_set()
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    known = QUANTITIES[quantity]
    alias = ALIASES[quantity][0]
    names = [name for end in UNIT_ENDS if (found := field_of(name := alias + end)) is not None and found.unit != ""]
    numbers = edge_numbers(known, UNIT_ENDS)
    sent: list[tuple[str, bytes]] = []
    for name in [*names, *rng.sample(ALIASES[quantity], 1)]:
        for beside in ["", *rng.sample(BESIDE, 3)]:
            for number in rng.sample(numbers, min(len(numbers), 25)):
                text = str(int(number)) if number == int(number) and rng.random() < 0.5 else repr(number)
                sent.append((rng.choice(["home/a", "home/ds18b20"]), f'{{"{name}": {text}{beside}}}'.encode()))
    sent += [(f"home/{rng.choice(names)}", repr(number).encode()) for number in numbers]
    compare(quick, batch_of(sent))
    monkeypatch.setattr(json_fields, "_quick", lambda plan, known: plan)
    slow = decoder_set()
    for topic, payload in sent:
        quick.decode_quickly(topic, payload, NOON_US, "b", 7)  # selects the decoder
        found, _ = quick.decode_quickly(topic, payload, NOON_US, "b", 7)
        expected, _ = slow.decode(DecoderMessage(topic, payload, None, NOON_US, "b", 7))
        case = f"{topic} {payload.decode()}"
        if isinstance(expected, Rejected):
            assert (found.reason, found.detail) == expected, case
            continue
        assert isinstance(found, Decoded), (case, found, expected)
        assert [one._replace(value=0.0) for one in found.readings] == [
            one._replace(value=0.0) for one in expected.readings
        ], case
        assert [one.value for one in found.readings] == pytest.approx([one.value for one in expected.readings]), case
        assert (found.time_us, found.device, found.extra) == (expected.time_us, expected.device, expected.extra), case


def test_random_bytes() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    decoders = decoder_set()
    for _ in range(10):
        sent = []
        for _ in range(20):
            whole = bytearray(b'{"temperature": 21.5, "humidity": 40, "time": 1794744000, "device": "d17", "n": -3}')
            for _ in range(20):
                damaged = bytearray(whole)
                for _ in range(rng.choice([0, 0, 1, 2])):
                    place = rng.randrange(len(damaged))
                    damaged[place : place + rng.randint(0, 2)] = rng.choice(
                        [
                            b"",
                            b'"',
                            b"\\",
                            b"\xff",
                            b"\x00",
                            b"{",
                            b"}",
                            b"-",
                            b".",
                            b"/",
                            b"e",
                            b"5",
                            b",",
                            b":",
                            b"\xc3\xa9",
                        ]
                    )
                sent.append(("home/kitchen", bytes(damaged)))
        rng.shuffle(sent)
        compare(decoders, batch_of(sent))


@pytest.mark.parametrize(
    ("topic", "template"),
    [
        ("home/kitchen", '{"temperature": %s, "humidity": %s}'),
        ("home/kitchen", '{"temperature": %s, "time": 1794743%s0, "device": "b7"}'),
        ("home/kitchen", '{"temperature_F":%s,"id":%s}'),
        ("home/kitchen", '{"temperature": %s, "unit": "°F", "seq": %s}'),
        ("home/kitchen", '{"value": %s, "type": "humidity", "error": 0, "n": %s.25}'),
        ("home/kitchen", '{"sensor": "attic", "temperature": %s, "battery": %s, "ok": true, "note": null}'),
        ("home/kitchen", '{"temperature": 2%s, "time": "2026-11-15T11:5%s:00.5Z", "since": "2026-11-15T11:5%s:00"}'),
        ("home/kitchen", '{"Time": "2026-11-15T11:5%s:00", "temperature": %s, "rssi": -%s}'),
        ("home/kitchen/temperature", "%s"),
        ("home/kitchen/x", "%s.5"),
        ("home/kitchen/pressure", "10%s"),
    ],
)
def test_usual_messages_are_read_by_their_shapes(topic: str, template: str) -> None:
    rng = random.Random(1)
    slots = template.count("%s")
    sent = [
        (
            topic,
            (
                template
                % tuple(rng.randint(1, 9) if '"2026' in template else rng.randint(20, 49) for _ in range(slots))
            ).encode(),
        )
        for _ in range(100)
    ]
    batch = batch_of(sent)
    assert compare(decoder_set(), batch) == len(sent)
    assert split_batch(decoder_set(), batch)[1].num_rows == 0


def test_the_same_in_a_part_of_a_batch_and_without_a_content_type() -> None:
    sent = [("home/kitchen", b'{"temperature": %d.5}' % (20 + row % 9)) for row in range(200)]
    batch = batch_of(sent).drop_columns(["content_type"]).slice(50, 100)
    assert compare(decoder_set(), batch) == 100
    found = split_batch(decoder_set(), batch)[0]
    assert found.column("offset").to_pylist() == list(range(57, 157))


def test_a_configured_topic_has_no_shape_of_the_defaults() -> None:
    rule = DecoderRule("home/#", "json", {"units": {"temperature": "°F"}})
    sent = [("home/kitchen", b'{"temperature": 6%d}' % (row % 9)) for row in range(100)]
    found, _ = split_batch(decoder_set([rule]), batch_of(sent))
    assert found.column("value").to_pylist() == pytest.approx([(60 + row % 9 - 32) / 1.8 for row in range(100)])


def test_new_definitions_end_shapes() -> None:
    decoders = decoder_set()
    sent = [("lab/sensor", b'{"temperature": 6%d}' % (row % 9)) for row in range(100)]
    assert split_batch(decoders, batch_of(sent))[1].num_rows == 100  # 60 without a unit: ambiguous
    config = {"state_topic": "lab/sensor", "unit_of_measurement": "°F", "device_class": "temperature"}
    config |= {"value_template": "{{ value_json.temperature }}", "name": "a"}
    definition = DecoderMessage("homeassistant/sensor/a/config", json.dumps(config).encode(), broker="b", offset=1)
    decoders.add_definitions(decoders.define(definition))
    found, rejected = split_batch(decoders, batch_of(sent))
    assert (found.num_rows, rejected.num_rows) == (100, 0)
    assert set(found.column("decoder").to_pylist()) == {"home_assistant"}


def test_an_empty_batch_and_a_small_one() -> None:
    assert [part.num_rows for part in split_batch(decoder_set(), batch_of([]))] == [0, 0]
    few = batch_of([("home/kitchen", b'{"temperature": 21.5}')] * (reading_columns.MIN_MESSAGES - 1))
    assert readings._read_columns(decoder_set(), few, np.ones(few.num_rows, bool)) is None
    assert split_batch(decoder_set(), few)[0].num_rows == few.num_rows


def test_skeletons_are_exact() -> None:
    payloads = [
        b'{"a": 1}',
        b'{"a": -2.50}',
        b'{"a":1}',
        b'{"a": 1e5}',
        b'{"a": "1"}',
        b'{"a": 01}',
        b"21.5",
        b"1-2",
        b"x",
    ]
    objects, numbers = find_skeletons(pa.array(payloads, pa.binary()))
    assert objects.rows.tolist() == [0, 1, 2, 3, 4]
    texts = [objects.texts[code] for code in objects.codes]
    assert texts == [b'{"a": \xff}', b'{"a": \xff}', b'{"a":\xff}', b'{"a": \xffe\xff}', b'{"a": "1"}']
    assert objects.numbers.tolist() == [1, -2.5, 1, 1, 5]
    assert (numbers.rows.tolist(), numbers.numbers.tolist()) == ([6], [21.5])
