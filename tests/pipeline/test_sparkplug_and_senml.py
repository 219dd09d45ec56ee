"""The decoders of Sparkplug B and SenML: births, aliases, types, base fields, and broken bytes."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.pipeline.decoders import sparkplug
from godwit.pipeline.decoders.base import DecoderMessage
from godwit.pipeline.decoders.results import REASONS, Decoded, Rejected
from godwit.pipeline.decoders.selection import decoder_set

NOW_US = 1_763_208_000_000_000
NOW_MS = NOW_US // 1000


def decode(topic: str, payload: bytes, before: list[tuple[str, bytes]] | None = None, content_type: Any = None) -> Any:
    decoders = decoder_set()
    for offset, (earlier, content) in enumerate(before or []):
        decoders.add_definitions(decoders.define(DecoderMessage(earlier, content, None, NOW_US, "b", offset)))
    found, name = decoders.decode(DecoderMessage(topic, payload, content_type, NOW_US, "b", len(before or [])))
    if isinstance(found, Rejected):
        assert found.reason in REASONS
        assert found.reason != "decoder failed", found
    else:
        assert name
    return found


def numbers(topic: str, payload: bytes, before: list[tuple[str, bytes]] | None = None) -> list[Any]:
    found = decode(topic, payload, before)
    assert isinstance(found, Decoded), found
    return [(one.quantity, one.value, one.unit, one.name) for one in found.readings]


def reason(topic: str, payload: bytes, before: list[tuple[str, bytes]] | None = None, content_type: Any = None) -> str:
    found = decode(topic, payload, before, content_type)
    assert isinstance(found, Rejected), found
    return found.reason


# -- an encoder of Sparkplug, independent of the protobuf library -----------------------------------------------------


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def float32(value: float) -> bytes:
    return varint(12 << 3 | 5) + struct.pack("<f", value)


def float64(value: float) -> bytes:
    return varint(13 << 3 | 1) + struct.pack("<d", value)


def properties(**values: str | int) -> bytes:
    keys = b"".join(field(1, key) for key in values)
    parts = [field(3, value) if isinstance(value, int) else field(8, value) for value in values.values()]
    return field(9, keys + b"".join(field(2, part) for part in parts))


def metric(*parts: bytes, name: str = "", alias: int | None = None, datatype: int = 0, ms: int = NOW_MS) -> bytes:
    head = (field(1, name) if name else b"") + (b"" if alias is None else field(2, alias)) + field(3, ms)
    return field(2, head + (field(4, datatype) if datatype else b"") + b"".join(parts))


def payload(*metrics: bytes, seq: int | None = 0, ms: int = NOW_MS) -> bytes:
    return field(1, ms) + b"".join(metrics) + (b"" if seq is None else field(3, seq))


NBIRTH, NDATA = "spBv1.0/G/NBIRTH/E", "spBv1.0/G/NDATA/E"
DBIRTH, DDATA = "spBv1.0/G/DBIRTH/E/D", "spBv1.0/G/DDATA/E/D"


# -- Sparkplug --------------------------------------------------------------------------------------------------------


def test_births_define_names_aliases_types_and_units() -> None:
    birth = payload(
        metric(field(11, 0), name="bdSeq", datatype=4),
        metric(field(14, 0), name="Node Control/Rebirth", datatype=11),
        metric(field(11, 3000), name="Node Control/Scan Rate", datatype=4),
        metric(float32(12.1), properties(engUnit="V"), name="Supply/Voltage", alias=1, datatype=9),
        metric(field(10, 2**32 - 5), properties(engUnit="°C"), name="Line 1/temperature", alias=2, datatype=3),
        metric(float64(0.5), name="Flow/ratio", alias=3, datatype=10),
        metric(field(15, "Pi 3"), name="Properties/Model", datatype=12),
    )
    assert numbers(NBIRTH, birth) == [
        ("voltage", 12.1, "V", "Supply/Voltage"),
        ("temperature", -5.0, "°C", "Line 1/temperature"),
        ("Flow/ratio", 0.5, "", "Flow/ratio"),
    ]
    update = payload(metric(float32(12.3), alias=1), metric(field(10, 2**32 - 6), alias=2, ms=NOW_MS - 5), seq=1)
    found = decode(NDATA, update, [(NBIRTH, birth)])
    assert [(one.quantity, one.value, one.unit, one.time_us, one.unit_source) for one in found.readings] == [
        ("voltage", 12.3, "V", NOW_US, "definition"),
        ("temperature", -6.0, "°C", NOW_US - 5000, "definition"),
    ]
    assert (found.time_us, found.device, json.loads(found.extra)) == (NOW_US, "G/E", {"seq": 1})
    by_name = payload(metric(float32(12.5), name="Supply/Voltage"))
    assert numbers(NDATA, by_name, [(NBIRTH, birth)]) == [("voltage", 12.5, "V", "Supply/Voltage")]


def test_folders_of_settings_keep_their_own_names() -> None:
    names = ("Setpoint/Temperature", "Limits/High/Temperature", "Alarm/Temperature", "Recipe/Temperature")
    birth = payload(*[metric(float32(22.5), name=one, datatype=9) for one in (*names, "Inputs/Temperature")])
    assert numbers(NBIRTH, birth) == [
        *[(one, 22.5, "", one) for one in names],
        ("temperature", 22.5, "°C", "Inputs/Temperature"),
    ]


def test_data_without_its_birth_is_rejected() -> None:
    birth = payload(metric(float32(1), name="a/temperature", alias=1, datatype=9))
    update = payload(metric(float32(2), alias=1))
    assert reason(NDATA, update) == "definition missing"
    assert reason(DDATA, update, [(NBIRTH, birth)]) == "definition missing"
    assert reason(NDATA, payload(metric(float32(2), alias=7)), [(NBIRTH, birth)]) == "definition missing"
    assert reason(NDATA, payload(metric(float32(2), name="b")), [(NBIRTH, birth)]) == "definition missing"
    assert reason(NDATA, payload(metric(float32(2), name="temperature", datatype=9))) == "definition missing"
    stated = payload(metric(float32(68), properties(engUnit="°F"), name="temperature", datatype=9))
    assert numbers(NDATA, stated) == [("temperature", 20.0, "°C", "temperature")]


def test_a_birth_after_the_data_does_not_define_it() -> None:
    decoders = decoder_set()
    birth = payload(metric(float32(1), name="a/temperature", alias=1, datatype=9))
    decoders.add_definitions(decoders.define(DecoderMessage(NBIRTH, birth, None, NOW_US, "b", 7)))
    update = payload(metric(float32(2), alias=1))
    assert decoders.decode(DecoderMessage(NDATA, update, None, NOW_US, "b", 6))[0][0] == "definition missing"
    assert decoders.decode(DecoderMessage(NDATA, update, None, NOW_US, "other", 9))[0][0] == "definition missing"
    assert isinstance(decoders.decode(DecoderMessage(NDATA, update, None, NOW_US, "b", 8))[0], Decoded)


def test_a_new_birth_replaces_the_aliases() -> None:
    first = payload(metric(float32(1), properties(engUnit="°C"), name="a/temperature", alias=1, datatype=9))
    second = payload(metric(float32(1), properties(engUnit="°F"), name="b/temperature", alias=1, datatype=9))
    update = payload(metric(float32(68), alias=1))
    assert numbers(DDATA, update, [(DBIRTH, first), (DBIRTH, second)]) == [("temperature", 20.0, "°C", "b/temperature")]
    twice = payload(
        metric(float32(1), name="a", alias=1, datatype=9), metric(float32(1), name="b", alias=1, datatype=9)
    )
    assert reason(DDATA, update, [(DBIRTH, twice)]) == "definition missing"


@pytest.mark.parametrize(
    ("datatype", "value", "expected"),
    [
        (1, field(10, 0xFF), -1.0),  # Int8 in its own width
        (1, field(10, 0xFFFFFFFF), -1.0),  # extended to the field
        (2, field(10, 0x8000), -32768.0),
        (3, field(10, 0xFFFFFFFE), -2.0),
        (4, field(11, 2**64 - 3), -3.0),
        (5, field(10, 255), 255.0),
        (8, field(11, 2**40), float(2**40)),
        (9, float32(21.3), 21.3),
        (10, float64(21.3), 21.3),
    ],
)
def test_number_types(datatype: int, value: bytes, expected: float) -> None:
    assert numbers(DBIRTH, payload(metric(value, name="x1", datatype=datatype))) == [("x1", expected, "", "x1")]


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        (5, field(10, 256)),
        (1, field(10, 300)),
        (6, field(10, 70_000)),
        (3, float32(1.5)),
        (9, field(10, 5)),
        (11, float64(1)),
    ],
)
def test_values_that_do_not_fit_their_type(datatype: int, value: bytes) -> None:
    assert reason(DBIRTH, payload(metric(value, name="x1", datatype=datatype))) == "type changed"


def test_nulls_bad_qualities_and_other_types_are_left_out() -> None:
    birth = payload(
        metric(field(7, 1), name="null", datatype=9),
        metric(float32(5), properties(Quality=0), name="bad", datatype=9),
        metric(float32(5), properties(Quality=500), name="stale", datatype=9),
        metric(float32(5), properties(Quality=192), name="good", datatype=9),
        metric(field(14, 1), name="running", datatype=11),
        metric(field(11, NOW_MS), name="since", datatype=13),
        metric(field(16, b"\x01\x02"), name="bytes", datatype=17),
    )
    found = decode(NBIRTH, birth)
    assert [one.name for one in found.readings] == ["good"]
    assert json.loads(found.extra) == {
        "null": None, "bad": None, "stale": None, "running": True, "since": NOW_MS, "bytes": "bytes", "seq": 0,
    }  # fmt: skip


def test_members_of_templates() -> None:
    members = metric(float32(68), properties(engUnit="°F"), name="temperature", datatype=9)
    instance = field(
        2, field(1, "Motor1") + field(3, NOW_MS) + field(4, 19) + field(18, members + field(4, "Motor") + field(5, 0))
    )
    definition = field(2, field(1, "Motor") + field(4, 19) + field(18, members + field(5, 1)))
    assert numbers(NBIRTH, payload(definition, instance)) == [("temperature", 20.0, "°C", "Motor1/temperature")]
    deep = members
    for _ in range(10):
        deep = field(2, field(1, "t") + field(18, deep))
    assert reason(NBIRTH, payload(deep)) == "nested too deeply"


@pytest.mark.parametrize(
    ("topic", "content", "expected"),
    [
        (NBIRTH, b"", "empty"),
        (NBIRTH, b"\xff\xff\xff", "bad payload"),
        (NBIRTH, payload(metric(float32(1), name="x1", datatype=9))[:-4], "bad payload"),
        (NBIRTH, b'{"metrics": []}', "bad payload"),
        (NBIRTH, payload(metric(float32(1), alias=5, datatype=9)), "bad payload"),
        (NBIRTH, payload(metric(float32(1), name="x1", datatype=9), seq=256), "bad payload"),
        (NBIRTH, payload(field(2, field(1, b"\xff\xfe") + float32(1))), "bad payload"),
        (NBIRTH, payload(metric(float32(1), float64(2), name="x1", datatype=9)), "bad payload"),
        (NBIRTH, payload(metric(float32(1), field(9, field(1, "engUnit")), name="x1", datatype=9)), "bad payload"),
        (NBIRTH, payload(metric(float32(-127), name="temperature", datatype=9)), "error value"),
        (NBIRTH, payload(metric(float32(float("nan")), name="temperature", datatype=9)), "not finite"),
        (
            NBIRTH,
            payload(metric(float32(5), properties(engUnit="%"), name="temperature", datatype=9)),
            "unit does not fit",
        ),
        (NBIRTH, b"\x00" * (sparkplug.MAX_PAYLOAD_BYTES + 1), "too long"),
        ("spBv1.0/G/NBIRTH/E/D", payload(), "bad payload"),
        ("spBv1.0/G/DDATA/E", payload(), "bad payload"),
        ("spBv1.0/G/XDATA/E", payload(), "bad payload"),
        ("spBv1.0", payload(), "bad payload"),
    ],
)
def test_bad_sparkplug(topic: str, content: bytes, expected: str) -> None:
    assert reason(topic, content) == expected


@pytest.mark.parametrize("kind", ["NDEATH/E", "DDEATH/E/D", "NCMD/E", "DCMD/E/D"])
def test_deaths_and_commands_are_not_readings(kind: str) -> None:
    content = payload(metric(float32(21.5), name="temperature", datatype=9))
    assert numbers(f"spBv1.0/G/{kind}", content) == []
    assert numbers("spBv1.0/STATE/host", b'{"online": true, "timestamp": 1763208000000}') == []


def test_a_clock_that_was_never_set_is_not_used() -> None:
    found = decode(NBIRTH, payload(metric(float32(1), name="x1", datatype=9, ms=0), ms=5))
    assert (found.time_us, found.readings[0].time_us) == (None, None)


def test_the_parser_is_made_anew_after_pickling() -> None:
    birth = payload(metric(float32(1.5), name="x1", datatype=9))
    sparkplug.parse_payload(birth)
    parser = pickle.loads(pickle.dumps(sparkplug._PARSER))
    assert parser.parse(birth).metrics[0].float_value == 1.5


BIRTH = payload(
    metric(float32(20), properties(engUnit="°C", Quality=192), name="a/temperature", alias=1, datatype=9),
    metric(field(10, 65533), name="b", alias=2, datatype=2),
)


@settings(max_examples=200)
@given(
    st.integers(0, len(BIRTH) - 1), st.binary(max_size=4), st.integers(0, 3), st.sampled_from([NBIRTH, NDATA, DDATA])
)
def test_changed_bytes_give_readings_or_a_reason(at: int, other: bytes, removed: int, topic: str) -> None:
    changed = BIRTH[:at] + other + BIRTH[at + removed :]
    decode(topic, changed, [(NBIRTH, BIRTH), (NBIRTH, changed), (DBIRTH, changed)])


@settings(max_examples=200)
@given(st.binary(max_size=80), st.sampled_from(["NBIRTH/E", "DBIRTH/E/D", "NDATA/E", "DDATA/E/D", "x", "NDEATH/E"]))
def test_any_bytes_on_sparkplug_topics(content: bytes, kind: str) -> None:
    decode(f"spBv1.0/G/{kind}", content, [(f"spBv1.0/G/{kind}", content)])


def test_the_documented_birth_is_the_one_described() -> None:
    topic, content = sparkplug._BIRTH
    found = sparkplug.SparkplugDecoder().define(DecoderMessage(topic, content))
    assert json.loads(found[0][1]) == {
        "names": {
            "bdSeq": [4, None],
            "Node Control/Rebirth": [11, None],
            "Boiler/Temperature": [9, "°F"],
            "Boiler/Level": [2, "mm"],
        },
        "aliases": {"5": "Boiler/Temperature", "6": "Boiler/Level"},
    }


# -- SenML ------------------------------------------------------------------------------------------------------------


def senml(*records: Any) -> bytes:
    return json.dumps(list(records)).encode()


LABELS = {"bver": -1, "bn": -2, "bt": -3, "bu": -4, "bv": -5, "bs": -6, "n": 0, "u": 1, "v": 2, "vs": 3, "vb": 4,
          "s": 5, "t": 6, "ut": 7, "vd": 8}  # fmt: skip


def in_cbor(*records: dict[str, Any]) -> bytes:
    return cbor2.dumps([{LABELS.get(label, label): value for label, value in one.items()} for one in records])


def test_base_fields_apply_to_the_following_records() -> None:
    records = [
        {"bn": "dev1/", "bt": NOW_US / 1e6, "bu": "Cel", "bv": 20, "n": "temp", "v": 1.5},
        {"n": "humidity", "u": "%RH", "v": 20.5},
        {"bn": "dev2/", "n": "temp", "t": -60, "v": 2, "vs": "x"},
        {"n": "door", "vb": True},
    ]
    for content in (senml(*records), in_cbor(*records)):
        found = decode("lab/x", content)
        assert [(one.quantity, one.value, one.unit, one.name, one.time_us) for one in found.readings] == [
            ("temperature", 21.5, "°C", "dev1/temp", NOW_US),
            ("humidity", 40.5, "%", "dev1/humidity", NOW_US),
            ("temperature", 22.0, "°C", "dev2/temp", NOW_US - 60_000_000),
        ]
        assert json.loads(found.extra) == {"records": [{"n": "dev2/temp", "vs": "x"}, {"n": "dev2/door", "vb": True}]}


@pytest.mark.parametrize(
    ("seconds", "time_us"),
    [(0, None), (-5, NOW_US - 5_000_000), (2.5, NOW_US + 2_500_000), (1763208000.5, NOW_US + 500_000)],
)
def test_senml_times(seconds: float, time_us: int | None) -> None:
    found = decode("lab/x", senml({"n": "temp", "u": "Cel", "v": 20, "t": seconds}))
    assert found.readings[0].time_us == time_us


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"n": "a", "u": "%RH", "v": 40}, ("humidity", 40.0, "%")),
        ({"n": "a", "u": "%EL", "v": 87}, ("battery", 87.0, "%")),
        ({"n": "a", "u": "%", "v": 40}, ("a", 40.0, "%")),
        ({"n": "a", "u": "/", "v": 0.4}, ("a", 0.4, "")),
        ({"n": "humidity", "u": "/", "v": 0.4}, ("humidity", 40.0, "%")),
        ({"n": "a", "u": "lat", "v": 52.5}, ("latitude", 52.5, "°")),
        ({"n": "temperature", "u": "K", "v": 273.15}, ("temperature", 0.0, "°C")),
        ({"n": "pressure", "u": "Pa", "v": 101325}, ("pressure", 1013.25, "hPa")),
        ({"n": "energy", "u": "J", "v": 3.6e6}, ("energy", 1.0, "kWh")),
        ({"n": "a", "u": "C", "v": 5}, ("a", 5.0, "coulomb")),
        ({"n": "a", "u": "count", "v": 5}, ("a", 5.0, "count")),
        ({"n": "temperature", "v": 21.5}, ("temperature", 21.5, "°C")),
    ],
)
def test_senml_units(record: dict[str, Any], expected: tuple[str, float, str]) -> None:
    for content in (senml(record), in_cbor(record)):
        [(quantity, value, unit, _)] = numbers("lab/x", content)
        assert (quantity, round(value, 9), unit) == expected


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([{"n": "temp", "u": "Cel", "v": "warm"}], "type changed"),
        ([{"n": "temp", "u": "Cel", "v": None}], "type changed"),
        ([{"n": "temp", "u": 5, "v": 1}], "bad payload"),
        ([{"n": "temp", "u": "Cel", "v": -127}], "error value"),
        ([{"n": "temp", "u": "%RH", "v": 255}], "out of bounds"),
        ([{"n": "temperature", "u": "V", "v": 5}], "unit does not fit"),
        ([{"n": "a", "v": 1, "x_": 2}], "bad payload"),
        ([{"bver": 11, "n": "a", "v": 1}], "bad payload"),
        ([{"n": "a b", "v": 1}], "bad payload"),
        ([{"n": "a", "v": 1, "t": 5e8}], "bad time"),
        ([{"n": "a", "v": 1, "t": "now"}], "type changed"),
        ([{"n": "a", "v": 1}] * 1025, "too many fields"),
    ],
)
def test_bad_senml(records: list[dict[str, Any]], expected: str) -> None:
    assert reason("lab/x", senml(*records)) == expected


def test_other_lists_are_left_to_other_decoders() -> None:
    assert reason("lab/x", senml({"n": "temp", "v": 20, "color": 5})) == "no quantity"
    assert reason("lab/x", senml({"n": "temp", "v": 20, "color": 5}), None, "application/senml+json") == "bad payload"
    assert reason("lab/x", in_cbor({"n": "temp", "v": 20})[:-3], None, "application/senml+cbor") == "bad payload"
    assert reason("lab/x", b"[]", None, "application/senml+json; charset=utf-8") == "bad payload"


_SENML: Any = st.lists(
    st.dictionaries(
        st.sampled_from([*LABELS, "x_"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.sampled_from(["a", "Cel", "%RH", "/", "temp", "é"]),
        max_size=5,
    ),
    max_size=4,
)


@settings(max_examples=300)
@given(_SENML, st.integers(0, 40))
def test_any_records_give_readings_or_a_reason(records: list[dict[str, Any]], cut: int) -> None:
    decode("lab/x", json.dumps(records).encode())
    content = in_cbor(*records)
    decode("lab/x", content, None, "application/senml+cbor")
    decode("lab/x", content[: max(0, len(content) - cut)])
