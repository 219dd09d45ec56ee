"""Tasmota: telemetry on `tele/DEVICE/SENSOR` and `tele/DEVICE/STATE`, and answers on `stat/DEVICE/STATUS8` and `10`.

Sources: tasmota.github.io/docs, "MQTT", "Commands", "JSON Status Responses", "Zigbee" and the pages of the sensors; the
source of Tasmota: `MqttAppendSensorUnits` in support_tasmota.ino, and the units of kHAssJsonSensorUnits in
xdrv_12_home_assistant.ino.

- Each sensor is an object in the message. `TempUnit` (C or F), `PressureUnit` (hPa, mmHg or inHg) and `SpeedUnit` are
  fields of the message, and appended if a field has "Temperature", "Pressure" or "Speed" in its name. Firmware of 2017
  did not append them, nor do sensors with other names (MLX90614): then the unit is the default of `SetOption8` and
  `SetOption24`, which are °C and hPa, and the source of the unit is "default".
- `ZbReceived` (Zigbee2Tasmota) has temperatures in °C, independent of `TempUnit`. `Power` in it and in `MtrReceived` is
  the state of a switch, and `Illuminance` a raw number. `ZbInfo` repeats values that were received before.
- The power meter is `ENERGY`: Total, Today and Yesterday in kWh; with several phases, its fields are lists.
- `Time` is the local time without a zone, unless `SetOption52` is on: then it is not known which moment is meant, and
  the time of publishing counts. `Epoch` and a numeric `Time` (formats 2 to 4 of the command `Time`) are used.
- In STATE, `Wifi.RSSI` is a quality in percent; `Wifi.Signal` is the level in dBm.
- Humidity of a plant sensor Flora, Moisture in newer versions, is that of the soil: it remains in `extra`.
- Light, Noise and AirQuality of a Sonoff SC are relative values, `A0` is a raw number of the converter, the unit of
  Distance depends on the version for some sensors, Moisture of a Chirp is a raw number, and Global repeats the values
  of a sensor: they remain in `extra`.
- Other topics of `tele` and `stat` (LWT, INFO1, RESULT, POWER, ...) are neither readings nor errors.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, time_of
from godwit.pipeline.decoders.fields import field_number, has_numbers, some_names
from godwit.pipeline.decoders.results import DECODER as FROM_DECODER
from godwit.pipeline.decoders.results import DEFAULT, OBJECT, PAYLOAD, TEXT, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.quantities import measure

_TEMPERATURE: Final = "TempUnit"
_PRESSURE: Final = "PressureUnit"
_SPEED: Final = "SpeedUnit"
_UNIT_FIELDS: Final = frozenset((_TEMPERATURE, _PRESSURE, _SPEED))
_UNITS: Final = {"C": "°C", "F": "°F", "K": "K"}
_FIELDS: Final = {
    "Temperature": ("temperature", _TEMPERATURE),
    "ProbeTemperature": ("temperature", _TEMPERATURE),
    "ReferenceTemperature": ("temperature", _TEMPERATURE),
    "OBJTMP": ("temperature", _TEMPERATURE),
    "AMBTMP": ("temperature", _TEMPERATURE),
    "DewPoint": ("dew_point", _TEMPERATURE),
    "Pressure": ("pressure", _PRESSURE),
    "SeaPressure": ("pressure", _PRESSURE),
    "Humidity": ("humidity", "%"),
    "Moisture": ("moisture", "%"),
    "Illuminance": ("light", "lx"),
    "CarbonDioxide": ("co2", "ppm"),
    "eCO2": ("co2", "ppm"),
    "TVOC": ("voc", "ppb"),
    "PM1": ("pm1", "µg/m³"),
    "PM2.5": ("pm25", "µg/m³"),
    "PM10": ("pm10", "µg/m³"),
    "LocalTemperature": ("temperature", _TEMPERATURE),
    "Battery": ("battery", "%"),
    "BatteryPercentage": ("battery", "%"),
    "BatteryVoltage": ("voltage", "V"),
    "Voltage": ("voltage", "V"),
    "Current": ("current", "A"),
    "Power": ("power", "W"),
    "ApparentPower": ("apparent_power", "VA"),
    "ReactivePower": ("reactive_power", "var"),
    "Factor": ("power_factor", ""),
    "Frequency": ("frequency", "Hz"),
    "Weight": ("weight", "kg"),
    "UvIndex": ("uv_index", ""),
    "pH": ("ph", "pH"),
}
"""By field: quantity and unit, or the field with the unit."""
_IN_ENERGY: Final = {"Total": ("energy", "kWh"), "Today": ("energy", "kWh"), "Yesterday": ("energy", "kWh")}
_STATUS: Final = re.compile(r"STATUS\d*\Z")
_OTHER: Final = re.compile(r"(?:LWT|INFO\d|RESULT|UPTIME|POWER\d{0,2}|STATUS\d*|LOGGING|MARGINS|DISCOVERY)\Z")
_WIND: Final = re.compile(r"TX2\d|WS2300")
_REPEATED: Final = frozenset(("Global", "ZbInfo"))
"""Objects with values that were sent before."""
_GATEWAYS: Final = frozenset(("ZbReceived", "MtrReceived"))
"""Objects of Zigbee and Matter devices, in which `Power` is the state of a switch and `Illuminance` a raw number."""
_EVENTS: Final = frozenset(("IrReceived", "RfReceived", "RfRaw", "PN532", "RDM6300", "RC522", *_GATEWAYS, *_REPEATED))
"""Objects that are no errors if nothing in them is known: codes, cards, states of switches."""
MAX_SENSOR_LEVELS: Final = 4


class TasmotaDecoder(Decoder):
    """The telemetry of Tasmota."""

    name = "tasmota"
    title = "Tasmota: SENSOR and STATE telemetry, with TempUnit, PressureUnit and SpeedUnit"
    filters = ("tele/#", "*/tele/+", "stat/#", "*/stat/+", "tasmota/discovery/#")
    forms = frozenset((OBJECT, TEXT))
    option_names: ClassVar[tuple[str, ...]] = ()

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode a message, recognised by the last level of its topic."""
        if message.topic.startswith("tasmota/discovery/"):
            return Decoded([])
        levels = message.topic.split("/")
        kind = levels[-1]
        if kind not in ("SENSOR", "STATE", "ENERGY") and not _STATUS.match(kind):
            return Decoded([]) if _OTHER.match(kind) else None
        if not message.is_json:
            return None
        found = message.json
        if not isinstance(found, dict):
            return None
        status = found.get("StatusSNS")
        if isinstance(status, dict):
            found = status
        elif kind.startswith("STATUS"):
            return Decoded([])
        if kind == "ENERGY":  # a topic of its own in versions before 5.12
            found = {"Time": found.get("Time"), kind: {name: one for name, one in found.items() if name != "Time"}}
        return _telemetry(found, _device(levels), kind == "STATE")


def _device(levels: list[str]) -> str:
    """Return the levels of the topic that name the device, in any order of prefix and topic."""
    return "/".join(level for level in levels[:-1] if level not in ("tele", "stat"))


def _telemetry(found: dict[str, Any], device: str, is_state: bool) -> Decoded | Rejected:
    units: dict[str, str | None] = {_TEMPERATURE: None, _PRESSURE: None, _SPEED: None}
    for name in _UNIT_FIELDS.intersection(found):
        units[name] = _unit(found[name], name)
    readings: list[Reading] = []
    extra: dict[str, Any] = {}
    time_us = None
    for name, value in found.items():
        if name in _UNIT_FIELDS:
            continue
        if name in ("Time", "Epoch"):
            moment = time_of(value, name)
            time_us = moment if moment is not None else time_us
            if moment is None:
                extra[name] = value
        elif is_state:
            _add_state(name, value, readings, extra)
        else:
            _add_sensor(name, value, units, readings, extra)
    if not readings and not is_state:
        unknown = {name: value for name, value in extra.items() if name != "Time" and name not in _EVENTS}
        if has_numbers(unknown):
            return Rejected("no quantity", f"none of the fields of the sensors is known: {some_names(unknown)}")
    return Decoded(readings, time_us, device or None, extra_of(extra))


def _unit(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RejectedError("bad payload", f"{name} is not a unit")
    return _UNITS.get(value.strip().upper(), value.strip()) if name == _TEMPERATURE else value.strip()


def _add_state(name: str, value: Any, readings: list[Reading], extra: dict[str, Any]) -> None:
    """Add the supply voltage and the signal level of a STATE message."""
    if name == "Wifi" and isinstance(value, dict) and value.get("Signal") is not None:
        readings.append(measure("signal_strength", field_number(value["Signal"], "Wifi.Signal"), "dBm", "Wifi.Signal",
                                unit_source=FROM_DECODER))  # fmt: skip
    elif name == "Vcc" and value is not None:
        readings.append(measure("voltage", field_number(value, name), "V", name, unit_source=FROM_DECODER))
        return
    extra[name] = value


def _add_sensor(
    name: str, value: Any, units: dict[str, str | None], readings: list[Reading], extra: dict[str, Any]
) -> None:
    """Add the readings of one sensor, or of a field at the top level; other fields to `extra`."""
    if name in _REPEATED:
        extra[name] = value
        return
    before = len(readings)
    if name == "ZbReceived" and isinstance(value, dict):
        for device, fields in value.items():
            _add_fields([name, device], fields, {**units, _TEMPERATURE: "°C"}, readings)
    else:
        _add_fields([name], value, units, readings)
    if len(readings) == before or isinstance(value, dict):
        left = _left(value)
        if left or not isinstance(value, dict):
            extra[name] = left


def _left(value: Any) -> Any:
    """Return the fields of a sensor that are not measurements, for `extra`."""
    if not isinstance(value, dict):
        return value
    known = {*_FIELDS, *_IN_ENERGY, *_UNIT_FIELDS}
    return {name: _left(one) for name, one in value.items() if name not in known}


def _add_fields(path: list[str], value: Any, units: dict[str, str | None], readings: list[Reading]) -> None:
    """Add the readings of a field, or of the fields of an object; `path` begins with the name of the sensor."""
    if isinstance(value, dict):
        if own := _UNIT_FIELDS.intersection(value):  # a gateway that wraps the message
            units = {**units, **{name: _unit(value[name], name) for name in own}}
        if len(path) <= MAX_SENSOR_LEVELS:
            for name, one in value.items():
                _add_fields([*path, name], one, units, readings)
        return
    known = _known(path)
    if known is None:
        return
    for index, one in enumerate(value if isinstance(value, list) else [value]):
        if one is not None:
            name = ".".join([*path, str(index)] if isinstance(value, list) else path)
            readings.append(_reading(known, one, name, units))


def _known(path: list[str]) -> tuple[str, str] | None:
    """Return the quantity and the unit of a field, which may depend on the sensor."""
    sensor, name = path[0], path[-1]
    if sensor in _EVENTS and (sensor not in _GATEWAYS or name in ("Power", "Illuminance")):
        return None
    if sensor.startswith("ENERGY") and name in _IN_ENERGY:
        return _IN_ENERGY[name]
    if _WIND.match(sensor):
        if path[1:-1] == ["Speed"] and name in ("Act", "Avg"):
            return ("wind_speed", _SPEED)
        return ("wind_direction", "°") if path[1:] == ["Dir", "Deg"] else None
    if sensor == "ANALOG":  # converters are numbered, as Temperature1; a current transformer has the energy in kWh
        is_energy = name == "Energy" and path[-2].startswith("CTEnergy")
        return _IN_ENERGY["Total"] if is_energy else _FIELDS.get(name.rstrip("0123456789"))
    if name == "Moisture" and sensor.upper().startswith("CHIRP"):
        return None
    if name == "Humidity" and sensor.startswith("Flora"):  # of the soil, before it was named Moisture
        return None
    if name == "Distance" and sensor.startswith("SR04"):
        return ("distance", "cm")
    return _FIELDS.get(name)


def _reading(known: tuple[str, str], value: Any, name: str, units: dict[str, str | None]) -> Reading:
    quantity, unit = known
    number = field_number(value, name)
    is_ds18b20 = name.startswith("DS18")
    if unit in _UNIT_FIELDS:
        return measure(quantity, number, units[unit], name, unit_source=PAYLOAD, is_ds18b20=is_ds18b20)
    return measure(quantity, number, unit, name, unit_source=FROM_DECODER)


EXAMPLES: Final = (
    DecoderExample(
        "tele/kitchen/SENSOR",
        b'{"Time":"2021-09-22T17:00:00","BME280":{"Temperature":75.2,"Humidity":33.0,"DewPoint":44.6,"Pressure":740.0},'
        b'"PressureUnit":"mmHg","TempUnit":"F"}',
        (
            Reading("temperature", 24.0, "°C", "BME280.Temperature", None, PAYLOAD),
            Reading("humidity", 33.0, "%", "BME280.Humidity", None, FROM_DECODER),
            Reading("dew_point", 7.0, "°C", "BME280.DewPoint", None, PAYLOAD),
            Reading("pressure", 986.585667, "hPa", "BME280.Pressure", None, PAYLOAD),
        ),
        note="the time has no zone: the time of publishing counts",
    ),
    DecoderExample(
        "tele/boiler/SENSOR",
        b'{"Time":"2021-01-02T09:09:44+01:00","DS18B20-1":{"Id":"00000566CC39","Temperature":63.3},'
        b'"DS18B20-2":{"Id":"0000059352D4","Temperature":41.2},"TempUnit":"C"}',
        (
            Reading("temperature", 63.3, "°C", "DS18B20-1.Temperature", None, PAYLOAD),
            Reading("temperature", 41.2, "°C", "DS18B20-2.Temperature", None, PAYLOAD),
        ),
        time_us=1_609_574_984_000_000,
    ),
    DecoderExample(
        "tele/plug/SENSOR",
        b'{"Time":"2018-02-15T17:37:10","ENERGY":{"TotalStartTime":"2018-11-14T18:39:40","Total":6.294,'
        b'"Yesterday":5.340,"Today":0.954,"Period":217,"Power":2635,"ApparentPower":2650,"ReactivePower":282,'
        b'"Factor":0.99,"Voltage":227,"Current":11.661}}',
        (
            Reading("energy", 6.294, "kWh", "ENERGY.Total", None, FROM_DECODER),
            Reading("energy", 5.34, "kWh", "ENERGY.Yesterday", None, FROM_DECODER),
            Reading("energy", 0.954, "kWh", "ENERGY.Today", None, FROM_DECODER),
            Reading("power", 2635.0, "W", "ENERGY.Power", None, FROM_DECODER),
            Reading("apparent_power", 2650.0, "VA", "ENERGY.ApparentPower", None, FROM_DECODER),
            Reading("reactive_power", 282.0, "var", "ENERGY.ReactivePower", None, FROM_DECODER),
            Reading("power_factor", 0.99, "", "ENERGY.Factor", None, DEFAULT),
            Reading("voltage", 227.0, "V", "ENERGY.Voltage", None, FROM_DECODER),
            Reading("current", 11.661, "A", "ENERGY.Current", None, FROM_DECODER),
        ),
    ),
    DecoderExample(
        "tele/plug/STATE",
        b'{"Time":"2019-10-31T11:14:59","Uptime":"0T18:36:12","Vcc":3.423,"POWER":"OFF",'
        b'"Wifi":{"AP":1,"Channel":13,"RSSI":86,"Signal":-57}}',
        (
            Reading("voltage", 3.423, "V", "Vcc", None, FROM_DECODER),
            Reading("signal_strength", -57.0, "dBm", "Wifi.Signal", None, FROM_DECODER),
        ),
        note="Wifi.RSSI is in percent",
    ),
    DecoderExample(
        "tele/old/SENSOR",
        b'{"Time":"2017-02-16T10:13:52", "DS18B20":{"Temperature":20.6}}',
        (Reading("temperature", 20.6, "°C", "DS18B20.Temperature", None, DEFAULT),),
        note="without TempUnit: the default of SetOption8",
    ),
    DecoderExample(
        "tele/broken/SENSOR",
        b'{"DS18B20":{"Temperature":85.0},"TempUnit":"C"}',
        reason="error value",
        note="the value of a DS18B20 after power-on",
    ),
    DecoderExample("tele/adc/SENSOR", b'{"ANALOG":{"A0":1024}}', reason="no quantity"),
    DecoderExample(
        "tele/zigbee/SENSOR",
        b'{"ZbReceived":{"0x7120":{"Device":"0x7120","Name":"SHP15","Power":1,"Endpoint":1,"LinkQuality":218}}}',
        note="the state of a switch: neither a reading nor an error",
    ),
    DecoderExample("tele/plug/LWT", b"Online", note="neither a reading nor an error"),
)

DECODERS: Final = {TasmotaDecoder: EXAMPLES}
