"""The decoders of devices and gateways: bad input, error values, definitions, and any bytes on their topics."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.pipeline.decoders.base import Decoder, DecoderMessage
from godwit.pipeline.decoders.results import REASONS, UNIT_SOURCES, Decoded, Rejected
from godwit.pipeline.decoders.selection import BUILT_IN, DecoderRule, DecoderSet, decoder_set
from godwit.pipeline.errors import PipelineError

NOW_US = 1_763_208_000_000_000
SET = decoder_set()

Messages = list[tuple[str, bytes | str | dict[str, Any] | list[Any]]]


def encoded(payload: Any) -> bytes:
    if isinstance(payload, bytes):
        return payload
    return (payload if isinstance(payload, str) else json.dumps(payload)).encode()


def decode(topic: str, payload: Any, before: Messages | None = None, rule: DecoderRule | None = None) -> Any:
    decoders = SET if not before and rule is None else decoder_set([] if rule is None else [rule])
    for offset, (earlier, content) in enumerate(before or []):
        decoders.add_definitions(decoders.define(DecoderMessage(earlier, encoded(content), None, NOW_US, "b", offset)))
    message = DecoderMessage(topic, encoded(payload), None, NOW_US, "b", len(before or []))
    return decoders.decode(message)[0]


def numbers(topic: str, payload: Any, before: Messages | None = None) -> list[tuple[str, float, str, str]]:
    found = decode(topic, payload, before)
    assert isinstance(found, Decoded), found
    return [(one.quantity, round(one.value, 6), one.unit, one.name) for one in found.readings]


def reason(topic: str, payload: Any, before: Messages | None = None) -> str:
    found = decode(topic, payload, before)
    assert isinstance(found, Rejected), found
    assert found.reason in REASONS
    assert found.detail
    return found.reason


# -- Zigbee2MQTT ------------------------------------------------------------------------------------------------------


def devices(*exposes: dict[str, Any], name: str = "d") -> tuple[str, list[Any]]:
    return "zigbee2mqtt/bridge/devices", [
        {"ieee_address": "0x1", "friendly_name": name, "definition": {"exposes": list(exposes)}},
        {"friendly_name": "Coordinator", "definition": None},
        "not an object",
    ]


def numeric(name: str, unit: Any = None, access: Any = 1, prop: str | None = None) -> dict[str, Any]:
    return {"type": "numeric", "name": name, "property": prop or name, "unit": unit, "access": access}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"voltage": 3000, "battery": 100}, [("voltage", 3.0, "V", "voltage"), ("battery", 100.0, "%", "battery")]),
        ({"voltage": 230.1, "power": 5}, [("voltage", 230.1, "V", "voltage"), ("power", 5.0, "W", "power")]),
        ({"voltage": 3.0, "battery": 100}, [("battery", 100.0, "%", "battery")]),
        ({"voltage": 230, "battery": 100}, [("battery", 100.0, "%", "battery")]),
        ({"temperature": None, "humidity": 40}, [("humidity", 40.0, "%", "humidity")]),
        ({"state": "ON", "brightness": 215, "color_temp": 325}, []),
        ({"occupancy": True}, []),
        ({"illuminance": 41, "illuminance_lux": 41}, [("light", 41.0, "lx", "illuminance_lux")]),
        ({"temperature": "21.5"}, [("temperature", 21.5, "°C", "temperature")]),
    ],
)
def test_zigbee2mqtt_without_a_definition(state: dict[str, Any], expected: list[Any]) -> None:
    assert numbers("zigbee2mqtt/d", state) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"battery": 255}, "out of bounds"),
        ({"temperature": 327.67}, "error value"),
        ({"temperature": 65535}, "error value"),
        ({"humidity": 655.35}, "out of bounds"),
        ({"temperature": "warm"}, "type changed"),
        ({"temperature": [21.5]}, "type changed"),
        ({"temperature": True}, "type changed"),
        ({"voc": 120, "formaldehyd": 3}, "definition missing"),
        ([1, 2], "bad payload"),
        ('{"temperature": 21.5', "bad JSON"),
    ],
)
def test_zigbee2mqtt_rejects(state: Any, expected: str) -> None:
    assert reason("zigbee2mqtt/d", state) == expected


def test_zigbee2mqtt_with_definitions() -> None:
    before: Messages = [
        devices(
            numeric("temperature", "°C"),
            numeric("voc", "µg/m³"),
            numeric("power", "W", prop="power_left"),
            numeric("power", "kW", prop="power_right"),
            numeric("occupied_heating_setpoint", "°C", access=7),
            {**numeric("temperature_calibration", "°C"), "category": "config"},
            numeric("linkquality", "lqi"),
            numeric("target_distance", "m"),
            {"type": "composite", "property": "color", "features": [numeric("x")]},
            name="room/sensor",
        )
    ]
    state = {
        "temperature": 21.5,
        "voc": 120,
        "power_left": 5,
        "power_right": 1.5,
        "occupied_heating_setpoint": 22,
        "temperature_calibration": -1.5,
        "linkquality": 120,
        "target_distance": 1.25,
        "color": {"x": 0.3},
    }
    assert numbers("zigbee2mqtt/room/sensor", state, before) == [
        ("temperature", 21.5, "°C", "temperature"),
        ("voc_mass", 120.0, "µg/m³", "voc"),
        ("power", 5.0, "W", "power_left"),
        ("power", 1500.0, "W", "power_right"),
        ("target_distance", 1.25, "m", "target_distance"),
    ]
    assert numbers("zigbee2mqtt/0x1", {"temperature": 21.5}, before) == [("temperature", 21.5, "°C", "temperature")]
    assert numbers("zigbee2mqtt/room/sensor/voc", "120", before) == [("voc_mass", 120.0, "µg/m³", "voc")]
    assert reason("zigbee2mqtt/room/sensor", {"temperature": "x"}, before) == "type changed"
    assert reason("zigbee2mqtt/d", {"temperature": 5}, [devices(numeric("temperature", "%"))]) == "unit does not fit"


def test_zigbee2mqtt_without_a_unit_in_the_definition() -> None:
    before: Messages = [devices(numeric("illuminance"), numeric("temperature"), numeric("power_factor"))]
    assert numbers("zigbee2mqtt/d", {"illuminance": 17000, "temperature": 20, "power_factor": 0.5}, before) == [
        ("illuminance", 17000.0, "", "illuminance"),
        ("temperature", 20.0, "°C", "temperature"),
        ("power_factor", 0.5, "", "power_factor"),
    ]


def test_zigbee2mqtt_uses_the_newest_definition() -> None:
    before: Messages = [devices(numeric("temperature", "°C")), devices(numeric("temperature", "°F"))]
    assert numbers("zigbee2mqtt/d", {"temperature": 68}, before) == [("temperature", 20.0, "°C", "temperature")]


def test_zigbee2mqtt_reads_a_long_list_of_devices() -> None:
    found = devices(*[numeric(f"p{index}", "W") for index in range(3000)], numeric("temperature", "°F"))
    assert len(encoded(found[1])) > 200_000
    assert numbers("zigbee2mqtt/d", {"temperature": 68}, [found]) == [("temperature", 20.0, "°C", "temperature")]
    assert decode(*found) == Decoded([])


@pytest.mark.parametrize("topic", ["d/set", "d/set/state", "d/get", "d/availability", "bridge/state", "bridge/x/y"])
def test_zigbee2mqtt_commands_and_the_bridge_have_no_readings(topic: str) -> None:
    assert numbers(f"zigbee2mqtt/{topic}", {"temperature": 21.5}) == []


def test_zigbee2mqtt_below_another_topic() -> None:
    rule = DecoderRule("home/z2m/#", "zigbee2mqtt", {"base": "home/z2m"})
    found = decode("home/z2m/d", {"temperature": 21.5, "last_seen": "2025-11-15T12:00:00.000Z"}, rule=rule)
    assert (found.device, found.time_us) == ("d", NOW_US)
    assert found.readings[0].quantity == "temperature"


# -- Tasmota ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("telemetry", "expected"),
    [
        ({"DS18B20": {"Temperature": 85}, "TempUnit": "C"}, "error value"),
        ({"DS18B20": {"Temperature": -127.0}}, "error value"),
        ({"BMP280": {"Pressure": 740}}, "ambiguous"),
        ({"AM2301": {"Temperature": "warm"}}, "type changed"),
        ({"AM2301": {"Temperature": {"Now": 3}, "Humidity": True}}, "type changed"),
        ({"AM2301": {"Temperature": 20}, "TempUnit": 5}, "bad payload"),
        ({"AM2301": {"Humidity": 255}}, "out of bounds"),
        ({"ANALOG": {"A0": 1024}}, "no quantity"),
        ('{"AM2301": {"Temperature": 20}', "bad JSON"),
    ],
)
def test_tasmota_rejects(telemetry: Any, expected: str) -> None:
    assert reason("tele/d/SENSOR", telemetry) == expected


def test_tasmota_units_and_names() -> None:
    assert numbers(
        "tele/d/SENSOR",
        {"DHT11": {"Temperature": 77}, "SHT3X": {"Temperature": 68.0}, "DS18B20": {"Temperature": 85}, "TempUnit": "F"},
    ) == [
        ("temperature", 25.0, "°C", "DHT11.Temperature"),
        ("temperature", 20.0, "°C", "SHT3X.Temperature"),
        ("temperature", 29.444444, "°C", "DS18B20.Temperature"),
    ]
    assert numbers("tele/d/SENSOR", {"BMP280": {"Pressure": 29.92}, "PressureUnit": "inHg"}) == [
        ("pressure", 1013.207481, "hPa", "BMP280.Pressure")
    ]
    assert numbers("tele/d/SENSOR", {"ENERGY": {"Voltage": [230, 231, None], "Total": 5.5, "Period": 7}}) == [
        ("voltage", 230.0, "V", "ENERGY.Voltage.0"),
        ("voltage", 231.0, "V", "ENERGY.Voltage.1"),
        ("energy", 5.5, "kWh", "ENERGY.Total"),
    ]
    zigbee = {
        "0x8F20": {"Name": "Kitchen", "Temperature": 21.5, "Voltage": 2.9, "Pressure": 990, "PressureUnit": "hPa"}
    }
    assert numbers("tele/d/SENSOR", {"ZbReceived": zigbee, "TempUnit": "F"}) == [
        ("temperature", 21.5, "°C", "ZbReceived.0x8F20.Temperature"),
        ("voltage", 2.9, "V", "ZbReceived.0x8F20.Voltage"),
        ("pressure", 990.0, "hPa", "ZbReceived.0x8F20.Pressure"),
    ]
    assert numbers("tele/d/SENSOR", {"data": {"AM2301": {"Temperature": 68}, "TempUnit": "F"}}) == [
        ("temperature", 20.0, "°C", "data.AM2301.Temperature")
    ]
    wind = {"Speed": {"Act": 36, "Max": 90}, "Dir": {"Card": "WSW", "Deg": 247.5}}
    assert numbers("tele/d/SENSOR", {"TX23": wind, "SpeedUnit": "km/h"}) == [
        ("wind_speed", 10.0, "m/s", "TX23.Speed.Act"),
        ("wind_direction", 247.5, "°", "TX23.Dir.Deg"),
    ]


@pytest.mark.parametrize(
    ("time", "time_us"),
    [
        ({"Time": "2025-11-15T12:00:00"}, None),
        ({"Time": "2025-11-15T13:00:00+01:00"}, NOW_US),
        ({"Time": "2025-11-15T13:00:00", "Epoch": NOW_US // 1_000_000}, NOW_US),
        ({"Time": NOW_US // 1_000_000}, NOW_US),
    ],
)
def test_tasmota_times(time: dict[str, Any], time_us: int | None) -> None:
    found = decode("tele/d/SENSOR", {**time, "AM2301": {"Temperature": 20}})
    assert found.time_us == time_us
    if time_us is None:
        assert json.loads(found.extra)["Time"] == time["Time"]


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("tele/d/LWT", "Online"),
        ("tele/d/INFO2", {"WebServerMode": "Admin"}),
        ("stat/d/RESULT", {"TelePeriod": 300}),
        ("stat/d/POWER", "ON"),
        ("stat/d/STATUS", {"Status": {"Power": 1}}),
        ("tasmota/discovery/AA/config", {"ip": "192.168.1.2"}),
        ("tele/d/SENSOR", {"Time": "2021-01-01T00:00:00", "Switch1": "OFF"}),
    ],
)
def test_tasmota_states_have_no_readings(topic: str, payload: Any) -> None:
    assert numbers(topic, payload) == []


def test_tasmota_answers_and_other_orders_of_the_topic() -> None:
    status = {"StatusSNS": {"Time": "2025-11-15T12:00:00", "AM2301": {"Temperature": 20}, "TempUnit": "C"}}
    expected = [("temperature", 20.0, "°C", "AM2301.Temperature")]
    assert numbers("stat/d/STATUS8", status) == numbers("stat/d/STATUS10", status) == expected
    assert numbers("tasmota/bedroom/d/tele/SENSOR", status["StatusSNS"]) == expected
    old = {"Time": "2017-07-25T12:06:28", "Total": 0.64, "Power": 5, "Voltage": 230}
    assert numbers("tele/d/ENERGY", old) == [
        ("energy", 0.64, "kWh", "ENERGY.Total"),
        ("power", 5.0, "W", "ENERGY.Power"),
        ("voltage", 230.0, "V", "ENERGY.Voltage"),
    ]
    assert decode("penthouse/d/tele/SENSOR", status["StatusSNS"]).device == "penthouse/d"


# -- Shelly -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "payload", "expected"),
    [
        ("emeter/1/returned_energy", "60", ("energy", 0.001, "kWh", "emeter/1/returned_energy")),
        ("emeter/1/total_returned", "1000", ("energy", 1.0, "kWh", "emeter/1/total_returned")),
        ("temperature", "59.03", ("temperature", 59.03, "°C", "temperature")),
        ("temperature_f", "212", ("temperature", 100.0, "°C", "temperature_f")),
        ("sensor/temperature", "-5.5", ("temperature", -5.5, "°C", "sensor/temperature")),
        ("sensor/battery", "87", ("battery", 87.0, "%", "sensor/battery")),
        ("roller/0/power", "0.0", ("power", 0.0, "W", "roller/0/power")),
        ("emeter/0/pf", "0.98", ("power_factor", 0.98, "", "emeter/0/pf")),
    ],
)
def test_shelly_gen1(topic: str, payload: str, expected: tuple[str, float, str, str]) -> None:
    assert numbers(f"shellies/shelly-1/{topic}", payload) == [expected]


@pytest.mark.parametrize(
    ("topic", "payload", "expected"),
    [
        ("ext_temperature/0", "999", "error value"),
        ("ext_temperature/0", "-127", "error value"),
        ("sensor/humidity", "999.0", "error value"),
        ("sensor/temperature", "72", "ambiguous"),
        ("sensor/battery", "255", "out of bounds"),
        ("relay/0/power", "much", "type changed"),
        ("relay/0/power", "", "empty"),
        ("relay/0/torque", "5", "no quantity"),
        ("info", "[]", "bad payload"),
        ("info", '{"bat": {"value": "full"}}', "type changed"),
        ("relay/0/power", b"\xff\xfe5", "not text"),
    ],
)
def test_shelly_gen1_rejects(topic: str, payload: Any, expected: str) -> None:
    assert reason(f"shellies/shelly-1/{topic}", payload) == expected


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("relay/0", "on"),
        ("input/0", "1"),
        ("overtemperature", "0"),
        ("online", "true"),
        ("input_event/0", '{"event":"S"}'),
    ],
)
def test_shelly_gen1_states_have_no_readings(topic: str, payload: str) -> None:
    assert numbers(f"shellies/shelly-1/{topic}", payload) == []
    assert numbers("shellies/announce", '{"id":"shelly-1","mac":"00"}') == []


def test_shelly_gen1_info() -> None:
    info = {
        "bat": {"value": 57, "voltage": 3.1},
        "lux": {"value": 1004, "is_valid": True},
        "tmp": {"value": 68.0, "units": "F", "is_valid": True},
        "hum": {"value": 999, "is_valid": False},
        "thermostats": [{"tmp": {"value": 20.5, "units": "C", "is_valid": True}, "target_t": {"value": 22}}],
        "uptime": 12345,
    }
    assert numbers("shellies/shellytrv-1/info", info) == [
        ("battery", 57.0, "%", "bat.value"),
        ("light", 1004.0, "lx", "lux.value"),
        ("temperature", 20.0, "°C", "tmp.value"),
        ("temperature", 20.5, "°C", "thermostats.0.tmp.value"),
    ]


def test_shelly_gen1_option() -> None:
    with pytest.raises(PipelineError, match="must be C or F"):
        decoder_set([DecoderRule("shellies/#", "shelly_gen1", {"temperature_unit": "K"})])


def test_shelly_gen2() -> None:
    em = {
        "id": 0,
        "a_voltage": 230.5,
        "b_voltage": 231.5,
        "a_act_power": -12.5,
        "total_act_power": 100,
        "n_current": None,
    }
    assert numbers("shellypro3em-1/status/em:0", em) == [
        ("power", -12.5, "W", "em:0.a_act_power"),
        ("voltage", 230.5, "V", "em:0.a_voltage"),
        ("voltage", 231.5, "V", "em:0.b_voltage"),
        ("power", 100.0, "W", "em:0.total_act_power"),
    ]
    status = {
        "id": 1,
        "src": "shelly-1",
        "dst": "x",
        "result": {"temperature:100": {"id": 100, "tF": 68}, "sys": {"uptime": 9}},
    }
    assert numbers("x/rpc", status) == [("temperature", 20.0, "°C", "temperature:100.tF")]
    two = {"ts": NOW_US / 1e6, "temperature:100": {"id": 100, "tC": 1.5}, "temperature:101": {"id": 101, "tC": 2.5}}
    found = decode("home/s1/events/rpc", {"src": "shelly-1", "method": "NotifyFullStatus", "params": two})
    assert [(one.name, one.value) for one in found.readings] == [
        ("temperature:100.tC", 1.5),
        ("temperature:101.tC", 2.5),
    ]
    assert (found.device, found.time_us) == ("shelly-1", NOW_US)
    # below the topic of generation 1
    assert numbers("shellies/s1/status/temperature:0", {"id": 0, "tC": 5}) == [
        ("temperature", 5.0, "°C", "temperature:0.tC")
    ]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"id": 0, "tC": -127}, "error value"),
        ({"id": 0, "tC": "warm"}, "type changed"),
        ({"id": 0, "tC": [1]}, "type changed"),
    ],
)
def test_shelly_gen2_rejects(state: Any, expected: str) -> None:
    assert reason("s1/status/temperature:100", state) == expected


def test_other_status_topics_are_left_to_other_decoders() -> None:
    assert numbers("plant/status/wifi", {"temperature": 21.5}) == [("temperature", 21.5, "°C", "")]
    assert numbers("plant/x/rpc", {"temperature": 21.5}) == [("temperature", 21.5, "°C", "")]


# -- Home Assistant and ESPHome ---------------------------------------------------------------------------------------


def sensor(name: str, **config: Any) -> tuple[str, dict[str, Any]]:
    return f"homeassistant/sensor/{name}/config", {"state_topic": "x/state", **config}


@pytest.mark.parametrize(
    ("template", "payload", "name", "value"),
    [
        ("{{ value_json.t }}", {"t": 68}, "t", 20.0),
        ("{{value_json.t}}", {"t": "68"}, "t", 20.0),
        ("{{ value_json['t'] }}", {"t": 68}, "t", 20.0),
        ('{{ value_json["a b"].c }}', {"a b": {"c": 68}}, "a b.c", 20.0),
        ("{{ value_json.list[1].t }}", {"list": [{}, {"t": 68}]}, "list.1.t", 20.0),
        ("{{ value_json.list.0 }}", {"list": [68]}, "list.0", 20.0),
        ("{{ value_json.t | is_defined }}", {"t": 68}, "t", 20.0),
        ("{{ value_json.t | float(0) | round(1) }}", {"t": 68}, "t", 20.0),
        ("{{ value_json.t | default(0) }}", {"t": 68}, "t", 20.0),
        ("{{ value }}", "68", "", 20.0),
        (None, "68", "", 20.0),
    ],
)
def test_home_assistant_paths(template: str | None, payload: Any, name: str, value: float) -> None:
    config = {"device_class": "temperature", "unit_of_measurement": "°F"}
    before: Messages = [sensor("s", **config, **({} if template is None else {"value_template": template}))]
    assert numbers("x/state", payload, before) == [("temperature", value, "°C", name)]


@pytest.mark.parametrize(
    "template",
    [
        "{{ value_json.t * 10 }}",
        "{{ value_json.t | int }}",
        "{{ value_json.t | round(1) * 2 }}",
        "{% if value_json.t %}{{ value_json.t }}{% endif %}",
        "{{ states('sensor.x') }}",
        "{{ value_json.t }} °C",
        "{{ value_json.t - 32 }}",
        "{{ value[0:4] }}",
        5,
    ],
)
def test_home_assistant_templates_that_compute(template: Any) -> None:
    before: Messages = [sensor("s", unit_of_meas="°C", value_template=template)]
    assert reason("x/state", {"t": 21.5}, before) == "template not supported"


def test_home_assistant_sensors_of_one_topic_are_not_mixed() -> None:
    before: Messages = [
        sensor("a", dev_cla="temperature", unit_of_meas="°C", val_tpl="{{ value_json.inside }}"),
        sensor("b", dev_cla="temperature", unit_of_meas="°F", val_tpl="{{ value_json.outside }}"),
        ("homeassistant/binary_sensor/c/config", {"stat_t": "x/state", "val_tpl": "{{ value_json.door }}"}),
    ]
    assert numbers("x/state", {"inside": 21.5, "outside": 50, "door": "ON"}, before) == [
        ("temperature", 21.5, "°C", "inside"),
        ("temperature", 10.0, "°C", "outside"),
    ]
    before.append(("homeassistant/sensor/b/config", b""))
    assert numbers("x/state", {"inside": 21.5, "outside": 50}, before) == [("temperature", 21.5, "°C", "inside")]
    before.append(sensor("a", state_topic="y/state", unit_of_meas="°C"))
    assert numbers("x/state", {"door": "ON"}, before) == []


@pytest.mark.parametrize(
    ("config", "payload", "expected"),
    [
        ({"unit_of_measurement": "°C", "device_class": "temperature"}, "nan", "not finite"),
        ({"unit_of_measurement": "°C", "device_class": "temperature"}, "warm", "type changed"),
        ({"unit_of_measurement": "%", "device_class": "temperature"}, "21", "unit does not fit"),
        ({"unit_of_measurement": "%", "device_class": "battery"}, "255", "out of bounds"),
        ({"device_class": "temperature"}, "300", "ambiguous"),
        ({"unit_of_measurement": "°C", "value_template": "{{ value_json.t }}"}, '{"t": 21', "bad JSON"),
        ({"unit_of_measurement": "°C", "value_template": "{{ value_json.t }}"}, '{"t": [21]}', "type changed"),
    ],
)
def test_home_assistant_rejects(config: dict[str, Any], payload: str, expected: str) -> None:
    assert reason("x/state", payload, [sensor("s", **config)]) == expected


@pytest.mark.parametrize(
    ("config", "payload"),
    [
        ({"unit_of_measurement": "°C"}, "unavailable"),
        ({"unit_of_measurement": "°C"}, "unknown"),
        ({"unit_of_measurement": "°C", "value_template": "{{ value_json.t }}"}, '{"other": 5}'),
        ({}, "idle"),
        ({"device_class": "timestamp"}, "2025-11-15T12:00:00Z"),
        ({"device_class": "enum"}, "5"),
    ],
)
def test_home_assistant_states_without_a_number(config: dict[str, Any], payload: str) -> None:
    assert numbers("x/state", payload, [sensor("s", **config)]) == []


def test_home_assistant_names_and_bases() -> None:
    before: Messages = [
        (
            "homeassistant/sensor/node/water_flow/config",
            {"~": "a/b", "stat_t": "~/state", "avty_t": "~/on", "unit_of_meas": "L/min", "dev": {"name": "pump"}},
        )
    ]
    assert numbers("a/b/on", "online", before) == []
    found = decode("a/b/state", "2.5", before)
    assert found.device == "pump"
    assert [(one.quantity, one.value, one.unit) for one in found.readings] == [("volume_flow", 2.5, "L/min")]
    assert numbers("a/b/state", "7", [sensor("oddness", state_topic="a/b/state", unit_of_meas="furlongs")]) == [
        ("oddness", 7.0, "furlongs", "")
    ]
    assert reason("homeassistant/sensor/x/config", '{"stat_t": ') == "bad JSON"
    assert numbers("homeassistant/status", "online") == []


def test_home_assistant_climate() -> None:
    topic, config = "homeassistant/climate/c/config", {"temp_stat_t": "c/set", "curr_temp_t": "c/now", "temp_unit": "F"}
    assert numbers("c/now", "68", [(topic, config)]) == [("temperature", 20.0, "°C", "")]
    assert numbers("c/set", "68", [(topic, config)]) == []
    assert reason("c/now", "68", [(topic, {"curr_temp_t": "c/now"})]) == "ambiguous"
    humidity = {"curr_hum_t": "c/now", "curr_hum_tpl": "{{ value_json.h }}"}
    assert numbers("c/now", {"h": 41}, [(topic, humidity)]) == [("humidity", 41.0, "%", "h")]


def test_home_assistant_sensors_that_contradict_each_other() -> None:
    before: Messages = [
        sensor("a", dev_cla="temperature", unit_of_meas="°C"),
        sensor("b", dev_cla="temperature", unit_of_meas="°F"),
    ]
    assert reason("x/state", "21", before) == "ambiguous"


def test_esphome_without_discovery_is_left_to_other_decoders() -> None:
    assert decode("node/sensor/temperature/state", "21.5").readings[0].unit_source == "default"


# -- rtl_433 and OwnTracks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature_F": 68}, ("temperature", 20.0, "°C", "temperature_F")),
        ({"pressure_inHg": 29.92}, ("pressure", 1013.207481, "hPa", "pressure_inHg")),
        ({"pressure_PSI": 30}, ("pressure", 2068.427188, "hPa", "pressure_PSI")),
        ({"wind_max_mi_h": 10}, ("wind_gust", 4.4704, "m/s", "wind_max_mi_h")),
        ({"rain_in": 2}, ("precipitation", 50.8, "mm", "rain_in")),
        ({"rain_rate_in_h": 2}, ("precipitation_rate", 50.8, "mm/h", "rain_rate_in_h")),
        ({"light_klx": 2}, ("light", 2000.0, "lx", "light_klx")),
        ({"pm2_5_ug_m3": 7}, ("pm25", 7.0, "µg/m³", "pm2_5_ug_m3")),
        ({"battery_V": 2.9, "battery_ok": 1}, ("voltage", 2.9, "V", "battery_V")),
        ({"moisture": 41}, ("moisture", 41.0, "%", "moisture")),
        ({"depth_cm": 150}, ("distance", 1.5, "m", "depth_cm")),
    ],
)
def test_rtl_433(fields: dict[str, Any], expected: tuple[str, float, str, str]) -> None:
    event = {"time": "2025-11-15 12:00:00", "model": "Acme-1", "id": 5, **fields, "mic": "CRC"}
    assert numbers("rtl_433/host/events", event) == [expected]
    assert decode("rtl_433/host/events", event).time_us is None
    if "moisture" not in fields:
        assert decode("sensors/radio", event).device == "Acme-1/5"
    [(name, value)] = [one for one in fields.items() if not one[0].endswith("_ok")]
    assert numbers(f"rtl_433/host/devices/Acme-1/5/{name}", str(value)) == [expected]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"temperature_C": -127}, "error value"),
        ({"temperature_C": 2635.8}, "out of bounds"),
        ({"temperature_C": "cold"}, "type changed"),
        ({"humidity": 255}, "out of bounds"),
        ({"odd_value": 5}, "no quantity"),
    ],
)
def test_rtl_433_rejects(event: dict[str, Any], expected: str) -> None:
    assert reason("rtl_433/host/events", {"model": "Acme-1", "id": 5, "mic": "CRC", **event}) == expected


def test_rtl_433_fields_without_a_unit_are_not_read() -> None:
    found = decode(
        "rtl_433/host/events", {"model": "A", "id": 5, "temperature_C": 5, "battery_ok": 1, "setpoint_C": 20}
    )
    assert [one.name for one in found.readings] == ["temperature_C"]
    assert numbers("rtl_433/host/events", {"model": "Doorbell", "id": 5, "button": 3, "code": "a0"}) == []
    assert numbers("home/node", {"model": "bme280", "id": 5, "humidity": 40, "temperature": 20}) == [
        ("humidity", 40.0, "%", ""),
        ("temperature", 20.0, "°C", ""),
    ]


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ({"lat": 91, "lon": 0}, "out of bounds"),
        ({"lat": 0, "lon": 181}, "out of bounds"),
        ({"lat": "north", "lon": 0}, "type changed"),
        ({"lat": 0, "lon": 0, "batt": 255}, "out of bounds"),
    ],
)
def test_owntracks_rejects(location: dict[str, Any], expected: str) -> None:
    assert reason("owntracks/u/d", {"_type": "location", "tst": 1763208000, **location}) == expected


def test_owntracks_types() -> None:
    region = {"_type": "waypoint", "desc": "Home", "lat": 52.5, "lon": 13.25, "rad": 50, "tst": 1763208000}
    assert numbers("owntracks/u/d/waypoint", region) == [
        ("latitude", 52.5, "°", "waypoint.lat"),
        ("longitude", 13.25, "°", "waypoint.lon"),
        ("radius", 50.0, "m", "waypoint.rad"),
    ]
    assert numbers("owntracks/u/d/step", {"_type": "steps", "tst": 1763208000, "steps": -1}) == []
    assert numbers("owntracks/u/d/cmd", {"_type": "cmd", "action": "dump"}) == []
    assert numbers("owntracks/u/d", {"_type": "card", "name": "Jane", "lat": 1}) == []


# -- The Things Network and ChirpStack --------------------------------------------------------------------------------


def uplink(**message: Any) -> dict[str, Any]:
    return {"end_device_ids": {"device_id": "d1"}, "received_at": "2025-11-15T12:00:00Z", "uplink_message": message}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (uplink(frm_payload="gkHe"), "no quantity"),
        (uplink(decoded_payload={}), "no quantity"),
        (uplink(decoded_payload=[1]), "no quantity"),
        (uplink(decoded_payload={"temperature": 327.67}), "error value"),
        (uplink(normalized_payload=[{"air": {"temperature": "x"}}]), "type changed"),
        (uplink(normalized_payload=[5]), "bad payload"),
        (uplink(decoded_payload={"ok": True}), "no quantity"),
    ],
)
def test_thethingsnetwork_rejects(message: dict[str, Any], expected: str) -> None:
    assert reason("v3/a@t/devices/d1/up", message) == expected


def test_thethingsnetwork() -> None:
    found = decode("hook", uplink(decoded_payload={"temp_in": 20, "temp_out": 5}, received_at="2025-11-15T11:59:59Z"))
    assert (found.device, found.time_us) == ("d1", NOW_US - 1_000_000)
    assert [(one.name, one.value) for one in found.readings] == [("temp_in", 20.0), ("temp_out", 5.0)]
    normalized = [
        {"time": "2025-11-15T11:00:00Z", "soil": {"moisture": 40}},
        {"battery": 3.5, "air": {"location": "indoor"}},
    ]
    found = decode("hook", uplink(decoded_payload={"b": 350}, normalized_payload=normalized))
    assert [(one.quantity, one.value, one.unit, one.name, one.time_us) for one in found.readings] == [
        ("moisture", 40.0, "%", "0.soil.moisture", NOW_US - 3_600_000_000),
        ("voltage", 3.5, "V", "1.battery", None),
    ]
    solved = {"end_device_ids": {"device_id": "d1"}, "location_solved": {"location": {"latitude": 1.5, "longitude": 2}}}
    assert numbers("v3/a@t/devices/d1/location/solved", solved) == [
        ("latitude", 1.5, "°", "latitude"),
        ("longitude", 2.0, "°", "longitude"),
    ]
    assert numbers("v3/a@t/devices/d1/down/push", {"downlinks": [{"decoded_payload": {"temperature": 21}}]}) == []


def event(**fields: Any) -> dict[str, Any]:
    return {"time": "2025-11-15T12:00:00+00:00", "deviceInfo": {"devEui": "01", "deviceName": "d"}, **fields}


CHIRPSTACK = "application/1/device/01/event/"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("up", event(fPort=1, data="qg=="), "no quantity"),
        ("up", event(fPort=1, object={"temperature": -127}), "error value"),
        ("up", event(fPort=1, object={"temperatureSensor": {"1": "x"}}), "type changed"),
        ("status", event(margin=10, batteryLevel=255), "out of bounds"),
        ("location", event(location={"latitude": 91}), "out of bounds"),
    ],
)
def test_chirpstack_rejects(kind: str, message: dict[str, Any], expected: str) -> None:
    assert reason(CHIRPSTACK + kind, message) == expected


def test_chirpstack() -> None:
    found = decode("hook", event(fPort=1, object={"in": {"temperature": 20}, "out": {"temperature": 5}}))
    assert (found.device, found.time_us) == ("01", NOW_US)
    assert [(one.name, one.value) for one in found.readings] == [("in.temperature", 20.0), ("out.temperature", 5.0)]
    assert numbers(CHIRPSTACK + "status", event(margin=10, externalPowerSource=True, batteryLevel=0)) == [
        ("margin", 10.0, "dB", "margin")
    ]
    assert (
        numbers("application/1/device/01/command/down", {"devEui": "01", "confirmed": True, "object": {"t": 1}}) == []
    )
    assert numbers(CHIRPSTACK + "log", event(level="ERROR", code="UPLINK_MIC")) == []


# -- any content ------------------------------------------------------------------------------------------------------

TOPICS = (
    "zigbee2mqtt/d", "zigbee2mqtt/bridge/devices", "zigbee2mqtt/d/power", "tele/d/SENSOR", "tele/d/STATE",
    "stat/d/STATUS8", "shellies/s/info", "shellies/s/sensor/temperature", "shellies/s/relay/0/energy", "s/events/rpc",
    "s/status/switch:0", "s/status/em:0", "homeassistant/sensor/s/config", "homeassistant/device/s/config", "x/state",
    "rtl_433/h/events", "rtl_433/h/devices/M/1/temperature_C", "owntracks/u/d", "v3/a@t/devices/d/up",
    "application/1/device/01/event/up", "application/1/device/01/event/status",
)  # fmt: skip
KEYS = (
    "temperature", "voltage", "battery", "power", "last_seen", "type", "name", "property", "unit", "access", "exposes",
    "features", "definition", "friendly_name", "Time", "Epoch", "TempUnit", "PressureUnit", "AM2301", "DS18B20",
    "Temperature", "Pressure", "ENERGY", "Total", "Wifi", "Signal", "Vcc", "StatusSNS", "ZbReceived", "TX23", "Speed",
    "bat", "tmp", "value", "units", "tC", "thermostats", "src", "method", "params", "result", "ts", "switch:0", "id",
    "apower", "aenergy", "total", "state_topic", "stat_t", "val_tpl", "unit_of_meas", "dev_cla", "cmps", "p", "~",
    "dev",
    "model", "time", "mic", "temperature_C", "humidity", "pm2_5_ug_m3", "_type", "lat", "lon", "tst", "batt",
    "end_device_ids", "uplink_message", "decoded_payload", "normalized_payload", "received_at", "air", "deviceInfo",
    "devEui", "object", "temperatureSensor", "margin", "batteryLevel", "fPort", "t",
)  # fmt: skip
TEXTS = (
    "NotifyStatus", "location", "numeric", "sensor", "C", "F", "hPa", "x/state", "{{ value_json.t }}", "{{ value }}",
    "temperature", "°C", "21.5", "nan", "2025-11-15T12:00:00Z", "1970-01-01T00:00:00Z", "d", "TPMS", "",
)  # fmt: skip
_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(TEXTS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=15,
)


def check(found: Decoded | Rejected) -> None:
    if isinstance(found, Rejected):
        assert found.reason in REASONS
        assert found.reason != "decoder failed", found
        return
    for one in found.readings:
        assert math.isfinite(one.value)
        assert one.unit_source in UNIT_SOURCES
        assert one.quantity
        assert isinstance(one.name, str)


@settings(max_examples=600)
@given(st.sampled_from(TOPICS), _VALUES, st.sampled_from(TOPICS), _VALUES)
def test_any_json_gives_readings_or_a_reason(topic: str, value: Any, earlier: str, content: Any) -> None:
    decoders = DecoderSet(BUILT_IN)
    first = DecoderMessage(earlier, json.dumps(content).encode(), None, NOW_US, "b", 1)
    decoders.add_definitions(decoders.define(first))
    check(decoders.decode(first)[0])
    check(decoders.decode(DecoderMessage(topic, json.dumps(value).encode(), None, NOW_US, "b", 2))[0])


@settings(max_examples=300)
@given(st.sampled_from(TOPICS), st.binary(max_size=60))
def test_any_bytes_give_readings_or_a_reason(topic: str, payload: bytes) -> None:
    message = DecoderMessage(topic, payload, None, NOW_US, "b", 1)
    SET.define(message)
    check(SET.decode(message)[0])


@pytest.mark.parametrize("decoder", BUILT_IN, ids=lambda one: one.name)
def test_truncated_examples_give_readings_or_a_reason(decoder: type[Decoder]) -> None:
    for one in sys.modules[decoder.__module__].DECODERS[decoder]:
        for length in range(len(one.payload)):
            check(SET.decode(DecoderMessage(one.topic, one.payload[:length], None, NOW_US, "b", 1))[0])
