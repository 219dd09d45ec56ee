"""The fields of a JSON object, or of a map of CBOR or MessagePack: readings, their units, the time and the device.

What a field means depends on its name and on the names beside it, so the plan for an object is made once for each set
of names and topic, and then used for all such objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from godwit.pipeline.decoders.content import MAX_LEVELS, extra_of, number_and_unit, time_of
from godwit.pipeline.decoders.json_checks import (
    OTHER_SCALES,
    check_factors,
    check_flags,
    check_scale_of,
    check_system,
    check_units,
    is_channel,
    is_factor,
    is_flag,
    is_imperial,
    same_unit,
    teaching,
    without_twins,
)
from godwit.pipeline.decoders.results import CONFIGURATION, DEFAULT, PAYLOAD, Decoded, Reading, RejectedError
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.quantities import (
    DS18B20,
    LOCATIONS,
    MOST_SPEED,
    MOST_WHOLE_VOLTS,
    QUANTITIES,
    VALUE,
    Field,
    Quantity,
    field_of,
    is_setting,
    is_setting_topic,
    is_short_gas,
    kind_of,
    measure,
    quantity_of_topic,
    words_of,
)
from godwit.pipeline.units import is_unit, scale_of

MAX_FIELDS: Final = 1024
MAX_PLANS: Final = 20_000
MAX_DEVICE: Final = 256
OPTIONS: Final = ("fields", "units", "time", "time_zone", "device", "ignore")
"""The options of decoders that read such objects."""
TIMES: Final = (
    "time", "timestamp", "ts", "datetime", "date_time", "event_time", "eventtime", "measured_at", "measuredat",
    "recorded_at", "recordedat", "observed_at", "observedat", "sampled_at", "created_at", "createdat", "published_at",
    "source_timestamp", "sourcetimestamp", "time_us", "time_ms", "timestamp_ms", "timestamp_us", "ts_ms", "unixtime",
    "unix_time", "epoch", "utc", "at",
    "date", "timestampms", "epoch_ms", "measurement_time", "sample_time", "last_seen", "dt", "tst", "unix",
    "unix_timestamp", "unixtimestamp", "epoch_time", "dateutc", "time_utc", "timestamp_utc", "datetime_utc", "utctime",
)  # fmt: skip
"""Fields with the time of the readings, in lower case; the first of them that is there and can be read counts."""
DEVICES: Final = (
    "device", "device_id", "deviceid", "dev_id", "devid", "device_name", "devicename", "sensor", "sensor_id",
    "sensorid", "sensor_name", "id", "mac", "mac_address", "serial", "serial_number", "node", "node_id", "nodeid",
    "station", "station_id", "client_id", "clientid", "dev_eui", "deveui", "uuid",
)  # fmt: skip
"""Fields that name the device, in lower case; the first of them that is there counts."""
UNITS: Final = frozenset(("unit", "units", "uom", "unit_of_measurement", "unitofmeasurement", "unit_of_measure"))
QUANTITY_NAMES: Final = (
    "quantity", "type", "measurement", "measure", "metric", "sensor_type", "sensortype", "device_class", "kind",
    "property", "observed_property", "parameter", "value_type", "variable", "measurand", "data_type", "datatype",
    "reading_type", "field", "sensor", "name", "label", "channel",
)  # fmt: skip
"""Fields that may name the quantity of `value`, in lower case."""
POWER_ON_VALUES: Final = frozenset((85.0, 185.0, 358.15))
"""The value of a DS18B20 after power-on, in °C, °F and K."""
SYSTEMS: Final = frozenset(("metric", "si", "metric_system"))
OTHER_SYSTEMS: Final = frozenset(("imperial", "us", "uscs", "english", "customary", "us_customary", "uk"))
_TYPES: Final = frozenset(("datetime", "date", "timestamp", "string", "text", "bool", "boolean", "enum", "hex", "json"))
"""Texts in place of a unit that tell that `value` is not a number of something."""
_NO_VALUES: Final = frozenset(
    ("serial", "version", "firmware", "hardware", "software", "revision", "year", "typ", "type", "status", "flag",
     "flags", "mask", "checksum", "crc", "sequence", "number", "samples", "timestamp", "datetime", "date", "time",
     "diagnostic", "raw", "code")
)  # fmt: skip
"""Words of an object whose `value` is an identity or a state: {"serial-number": {"value": 7}}."""
_CODES: Final = frozenset(("protocol", "bits"))
"""Fields beside which `value` is the code of a remote control."""
NO_VALUE: Final = frozenset(
    ("", "-", "--", "---", "nan", "null", "none", "n/a", "na", "unknown", "unavailable", "error", "err", "inf", "-inf")
)
"""Texts that stand for no value."""
PARTS: Final = frozenset(
    ("config", "configuration", "settings", "setting", "limits", "limit", "threshold", "thresholds", "forecast",
     "desired", "target", "metadata", "meta", "calibration", "schedule", "history", "statistics", "stats", "update",
     "prediction", "options", "definition", "schema", "previous", "delta", "min", "max", "alarm", "alarms", "expected",
     "capabilities", "info", "version", "request", "command", "set", "offset", "offsets", "setpoints", "setpoint",
     "old", "last", "average", "averages", "daily", "summary", "yesterday", "tomorrow", "default", "defaults",
     "program", "programs", "error", "errors", "count", "counts", "pin", "pins", "gpio", "gpios", "interval",
     "intervals", "column", "columns", "id", "ids", "address", "addresses", "register", "registers", "weights",
     "enabled", "disabled", "minimum", "maximum", "mean", "std", "unit", "units", "type", "types", "range", "ranges",
     "bounds", "step", "steps", "scale", "scales", "factor", "factors", "coefficients", "deltas", "correction",
     "corrections", "alert", "alerts", "rule", "rules", "trigger", "triggers", "index", "indices", "hysteresis",
     "accuracy", "resolution", "precision", "tolerance", "mapping", "before", "example", "examples",
     "mode", "modes", "test", "tests", "preset", "presets", "profile", "profiles", "schedules", "labels", "names",
     "colors", "timers", "timer", "tgt", "setpt", "goal", "goals", "hourly", "weekly", "monthly", "backlog", "backlogs",
     "aggregate", "aggregates", "aggregated", "cal", "mask", "payloadmask", "rated", "nominal", "avg",
     "stddev")
)  # fmt: skip
"""Names of objects within objects that do not hold current measurements."""


class PlannedField(NamedTuple):
    """A field that may be a reading."""

    key: str
    quantity: str
    name: str
    unit: str | None
    """Stated by the name or the configuration."""
    source: str
    unit_key: str | None
    """The field that states the unit."""
    is_ds18b20: bool
    low: float = 1.0
    high: float = 0.0
    """Numbers from `low` to `high` except `errors` are quickly converted; others, here all, need `measure`."""
    errors: frozenset[float] = frozenset()
    factor: float = 1.0
    offset: float = 0.0
    result: str = ""
    """The unit of a number that is quickly converted."""
    is_state: bool = False
    """Whether 1 may be the state of a switch: a power without a unit, and without other electrical fields."""


class ObjectPlan(NamedTuple):
    fields: tuple[PlannedField, ...]
    times: tuple[str, ...]
    device: str | None
    letter_t: str | None
    """A field "t", which is a time if it is in the range of one."""
    unit_key: str | None
    quantity_keys: tuple[str, ...]
    others: tuple[str, ...]
    twins: tuple[str, ...]
    """Fields with the value of another one in another unit: tempf beside tempc."""
    flags: tuple[str, ...]
    """Fields that may tell that values are in another unit or invalid: isFahrenheit, valid, status."""
    has_imperial: bool
    """Whether a field has a unit of the imperial system in its name."""
    factors: tuple[str, ...]
    """Fields whose number may tell that the values are in other units: scale, divisor."""


class JsonFields:
    """Reads objects, with the options of a configuration."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options`: a subset of OPTIONS. Raise PipelineError if one is invalid."""
        self._fields = {key: _field_option(key, one) for key, one in _table(options, "fields").items()}
        self._units = {key: _unit_option(key, one) for key, one in _table(options, "units").items()}
        self._time = _text_option(options, "time")
        self._device = _text_option(options, "device")
        self._ignored = frozenset(_list_option(options, "ignore"))
        self.zone = _zone_option(options)
        self._plans: dict[tuple[str, tuple[str, ...]], ObjectPlan] = {}

    def read_flat(self, item: Mapping[str, Any], topic: str, *, is_flat: bool = False) -> Decoded | None:
        """Return the content of an object without objects and lists in it; None if it has such.

        `is_flat`: whether it is known that it has none.
        """
        try:
            plan = self._plans[topic, tuple(item)]
        except KeyError:
            plan = self.plan_of(topic, tuple(item))
        readings: list[Reading] = []
        rest: dict[str, Any] = {}
        if not is_flat:
            for value in item.values():
                if type(value) is dict or type(value) is list:
                    return None
        self._read(item, plan, readings, rest, "", None)
        time_us = self.time_in(item, plan, rest)
        if plan.twins:
            readings = without_twins(readings, plan.twins)
        if plan.flags:
            check_flags(item, plan.flags, readings)
        if plan.factors:
            check_factors(item, plan.factors, readings)
        if plan.has_imperial:
            check_system(readings)
        if not readings:
            raise _no_readings(item, topic, rest)
        for key in plan.others:
            value = rest[key] = item[key]
            if type(value) is str and value.lower() in OTHER_SCALES:
                check_scale_of(key, value, readings)
        device = item[plan.device] if plan.device is not None else None
        return Decoded(readings, time_us, device_text(device), extra_of(rest) if rest else None)

    def read_nested(self, item: Any, topic: str) -> Decoded:
        """Return the content of an object or a list with objects in it; the names of readings are paths."""
        walk = _Walk(self, topic)
        walk.visit(item, "", None, None, 1)
        if walk.has_imperial:
            check_system(walk.readings)
        if any(one.unit_source == DEFAULT for one in walk.readings):
            check_units(item, walk.readings, 1)
        if not walk.readings:
            raise _no_readings(item if isinstance(item, dict) else {"[]": item}, topic, walk.rest)
        readings = _unique_names(walk.readings)
        return Decoded(readings, walk.time_us, walk.device, extra_of(walk.rest))

    # -- plans --------------------------------------------------------------------------------------------------------

    def plan_of(self, topic: str, keys: tuple[str, ...], path: str = "", parent: Field | None = None) -> ObjectPlan:
        """Return the plan for an object: at the top, or below at a path and in the field `parent`."""
        place = f"{topic}\n{path}" if path else topic
        if (place, keys) in self._plans:
            return self._plans[place, keys]
        if not self._fields and is_setting_topic(topic):
            text = f"by its topic a command, a setting or a forecast: {teaching(keys[0] if keys else 'x', topic)}"
            raise RejectedError("no quantity", text)
        if len(keys) > MAX_FIELDS:
            raise RejectedError("too many fields", f"{len(keys)}: at most {MAX_FIELDS}")
        lower = {key.lower(): key for key in reversed(keys)}
        found = {
            key: field for key in keys if (field := self._field(key, path)) is not None and key not in self._ignored
        }
        if not _CODES.isdisjoint(lower):
            found = {key: field for key, field in found.items() if field.quantity != VALUE or key in self._fields}
        has_unit = not UNITS.isdisjoint(lower)
        for key in [one for one in found if one not in self._fields and is_channel(one, lower, found, has_unit)]:
            del found[key]
        for key in [one for one in found if one.lower().startswith("current_")]:
            found.pop(key[len("current_") :], None)  # beside current_temperature, temperature is the one that is set
        times = [lower[name] for name in TIMES if name in lower]
        if self._time is not None:
            times = [self._time] if self._time in keys else []
        device = next((lower[name] for name in DEVICES if name in lower and lower[name] not in found), None)
        if self._device is not None:
            device = self._device if self._device in keys else None
        unit_keys = _unit_keys(keys, found)
        fields = []
        by_place = parent if path else quantity_of_topic(topic)
        if not path and is_short_gas(topic) and not has_unit:
            by_place = None
        is_alone = _ELECTRICAL_FIELDS.isdisjoint(one.quantity for one in found.values())
        for key, (field, name, source) in self._named(found, by_place, path).items():
            planned = self._planned(key, field, name, source, unit_keys.get(key), topic, path)
            if planned.quantity == "power" and planned.unit is None and is_alone:
                planned = planned._replace(errors=planned.errors | {1.0}, is_state=True)
            fields.append(planned)
        used = {*found, *times, device, *unit_keys.values()}
        unit_key = next((lower[name] for name in UNITS if name in lower), None)
        quantity_keys = tuple(lower[name] for name in QUANTITY_NAMES if name in lower)
        letter_t = lower.get("t") if not times and "t" in lower and lower["t"] not in found else None
        others = tuple(key for key in keys if key not in used and key not in (unit_key, letter_t))
        twins = _twins(fields)
        flags = tuple(key for key in keys if is_flag(key))
        has_imperial = any(is_imperial(key) for key in keys)
        plan = ObjectPlan(
            tuple(fields), tuple(times), device, letter_t, unit_key, quantity_keys, others, twins, flags, has_imperial,
            tuple(key for key in keys if is_factor(key)),
        )  # fmt: skip
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        self._plans[place, keys] = plan
        return plan

    def _field(self, key: str, path: str) -> Field | None:
        configured = self._option(key, path)
        return field_of(key) if configured is None else Field(configured[0], configured[1], configured[2] == "")

    def _option(self, key: str, path: str) -> tuple[str, str | None, str] | None:
        """Return the configuration of a field, by its path or its own name."""
        return self._fields.get(f"{path}{key}") or self._fields.get(key)

    def _named(
        self, found: Mapping[str, Field], by_place: Field | None, path: str
    ) -> dict[str, tuple[Field, str, str]]:
        """Return the fields with the names of their readings and the sources of their units.

        `by_place` is the quantity that the topic or the object around names, for a field `value`.
        """
        named: dict[str, tuple[Field, str, str]] = {}
        seen: set[tuple[str, str]] = set()
        for key, field in found.items():
            name, source = "" if field.is_plain else key, PAYLOAD
            configured = self._option(key, path)
            if configured is not None:
                name, source = configured[2], CONFIGURATION if field.unit is not None else PAYLOAD
            elif field.quantity == VALUE and by_place is not None and by_place.quantity != VALUE:
                field = Field(by_place.quantity, field.unit or by_place.unit, True)
            if (field.quantity, name) in seen:
                name = key
            seen.add((field.quantity, name))
            named[key] = (field, name, source)
        return named

    def _planned(
        self, key: str, field: Field, name: str, source: str, unit_key: str | None, topic: str, path: str
    ) -> PlannedField:
        unit = field.unit
        if unit is None and field.quantity in self._units:
            unit, source = self._units[field.quantity], CONFIGURATION
        known = QUANTITIES.get(field.quantity)
        is_ds18b20 = field.quantity == "temperature" and DS18B20.search(f"{topic} {path}{key}") is not None
        plan = PlannedField(key, field.quantity, name, unit, source, unit_key, is_ds18b20)
        is_slow = field.quantity in ("battery", "light", VALUE) or (unit is None and field.quantity == "current")
        if known is None or unit_key is not None or is_ds18b20 or is_slow:
            return plan
        return _quick(plan, known)

    # -- values -------------------------------------------------------------------------------------------------------

    def _read(
        self,
        item: Mapping[str, Any],
        plan: ObjectPlan,
        readings: list[Reading],
        rest: dict[str, Any],
        path: str,
        time_us: int | None,
    ) -> None:
        """Append the readings of an object, and add other values of its known fields to `rest`."""
        unit = item[plan.unit_key] if plan.unit_key is not None else None
        if unit is not None or plan.quantity_keys:
            self._read_stated(item, plan, readings, rest, path, unit, time_us)
            return
        for field in plan.fields:
            key, quantity, name, _, source, _, _, low, high, errors, factor, offset, result, _ = field
            value = item[key]
            kind = type(value)
            if (kind is float or kind is int) and low <= value <= high and value not in errors:
                number = value * factor + offset
                if number == value or round(number, 6) not in errors:
                    readings.append(
                        Reading(quantity, number, result, path + (name or key) if path else name, time_us, source)
                    )
                    continue
            self._read_slowly(item, field, None, readings, rest, path, time_us)

    def _read_stated(
        self,
        item: Mapping[str, Any],
        plan: ObjectPlan,
        readings: list[Reading],
        rest: dict[str, Any],
        path: str,
        unit: Any,
        time_us: int | None,
    ) -> None:
        """Read an object that states a unit for its fields, or may name the quantity of its value."""
        fields = plan.fields
        if plan.quantity_keys:
            fields = self.with_quantity(item, plan)
        stated = None if unit is None else stated_units(unit, fields)
        for field in fields:
            self._read_slowly(
                item, field, None if stated is None else stated.get(field.key), readings, rest, path, time_us
            )

    def with_quantity(self, item: Mapping[str, Any], plan: ObjectPlan) -> tuple[PlannedField, ...]:
        """Return the fields, those of `value` with the quantity that another field names."""
        if len(plan.fields) != 1 or plan.fields[0].key in self._fields or field_of(plan.fields[0].key) is None:
            return plan.fields
        only = plan.fields[0]
        own = field_of(only.key)
        if own is None or own.quantity != VALUE:
            return plan.fields
        named = {
            field
            for key in plan.quantity_keys
            if isinstance(text := item[key], str) and (field := field_of(text)) is not None and field.quantity != VALUE
        }
        if len({field.quantity for field in named}) > 1:
            raise RejectedError("ambiguous", f"{only.key!r} is of more than one quantity: {_listed(named)}")
        if not named:
            if any(isinstance(text := item[key], str) and is_setting(text) for key in plan.quantity_keys):
                raise RejectedError("no quantity", f"{only.key!r} is a setting or a limit, by the field beside it")
            return plan.fields
        field = sorted(named)[0] if len(named) > 1 else next(iter(named))
        unit = self._units.get(field.quantity, field.unit)
        source = CONFIGURATION if field.quantity in self._units else PAYLOAD
        return (only._replace(quantity=field.quantity, unit=unit, source=source, low=1.0, high=0.0),)

    def _read_slowly(
        self,
        item: Mapping[str, Any],
        field: PlannedField,
        unit: str | None,
        readings: list[Reading],
        rest: dict[str, Any],
        path: str,
        time_us: int | None,
    ) -> None:
        value = item[field.key]
        name = path + (field.name or field.key) if path else field.name
        label = path + field.key
        written = None
        if isinstance(value, str):
            split = number_and_unit(value)
            if split is None or (split[1] and not _is_unit_of(split[1], field.quantity)):
                rest[label] = value
                return
            value, written = split[0], split[1] or None
        elif isinstance(value, bool) or not isinstance(value, int | float):
            if value is not None:
                rest[label] = value
            return
        source = PAYLOAD
        if field.unit_key is not None:
            text = item[field.unit_key]
            written = same_unit(written, text.strip() if isinstance(text, str) else None, label)
        written = same_unit(written, unit, label)
        if field.source == PAYLOAD:
            written = same_unit(written, field.unit, label)
        elif written is None:
            written, source = field.unit, field.source
        if field.quantity == VALUE and written is not None and written.lower() in _TYPES:
            rest[label] = value
            return
        if field.is_state and written is None and (value == 1 or isinstance(item[field.key], str)) and value in (0, 1):
            rest[label] = item[field.key]  # on, or 1 W
            return
        if written is None and field.quantity == "light" and value in (0, 1) and label.lower().endswith("light"):
            raise RejectedError("ambiguous", f"{label} is {value}: an illuminance or a state; {teaching(label)}")
        is_ds18b20 = field.is_ds18b20 or (
            value in POWER_ON_VALUES and any(isinstance(one, str) and DS18B20.search(one) for one in item.values())
        )
        try:
            reading = measure(
                field.quantity, value, written, name, unit_source=source, time_us=time_us, is_ds18b20=is_ds18b20
            )
        except RejectedError as error:
            is_pascal = field.quantity == "pressure" and _LEAST_PASCALS <= value <= _MOST_PASCALS
            if error.rejection.reason != "ambiguous" or not (is_pascal or field.quantity in _SUPPLY):
                raise
            rest[label] = item[field.key]  # without a unit: the other measurements are clear nevertheless
            return
        readings.append(reading)

    def time_in(self, item: Mapping[str, Any], plan: ObjectPlan, rest: dict[str, Any]) -> int | None:
        """Return the time that an object states. Other values of its fields are added to `rest`."""
        found = None
        for key in plan.times:
            value = item[key]
            if isinstance(value, dict) and "year" in value:
                raise RejectedError("bad time", f"the field {key[:40]!r} is an object: publish it as a text")
            time_us = time_of(value, key) if found is None else None
            zone = UTC if "utc" in key.lower() else self.zone
            if time_us is None and zone is not None and isinstance(value, str) and found is None:
                time_us = _local_time(value, zone)
            if time_us is not None:
                found = time_us
            elif value is not None:
                rest[key] = value
        if plan.letter_t is not None:
            found = time_of(item[plan.letter_t], plan.letter_t)
            if found is None:
                rest[plan.letter_t] = item[plan.letter_t]
        return found


_SUPPLY: Final = frozenset(("battery", "voltage", "current", "power_factor"))
"""Quantities that remain in `extra` if their unit is unclear, rather than reject the message."""
_LEAST_PASCALS: Final = 80_000
_MOST_PASCALS: Final = 110_000
"""A pressure without a unit between these may well be in Pa, and its message is metric: it remains in `extra`."""
_ELECTRICAL_FIELDS: Final = frozenset(
    ("voltage", "current", "energy", "power_factor", "apparent_power", "reactive_power", "frequency")
)


def _quick(plan: PlannedField, known: Quantity) -> PlannedField:
    """Return the plan with the range of numbers that need no call of `measure`."""
    errors = known.errors | POWER_ON_VALUES if plan.quantity == "temperature" else known.errors
    if plan.unit is None:
        low, high = known.bounds if known.default is None else known.default
        high = min(high, MOST_WHOLE_VOLTS) if plan.quantity == "voltage" else high
        if plan.quantity == "speed":
            low, high = -MOST_SPEED, MOST_SPEED
        unit = "" if known.default is None else known.unit
        return plan._replace(low=low, high=high, errors=errors, result=unit, source=DEFAULT)
    scale, base = scale_of(plan.unit, known.kind), scale_of(known.unit, known.kind)
    if scale is None or base is None or scale.kind != known.kind:
        return plan
    factor, offset = scale.factor / base.factor, scale.offset / base.factor
    low, high = [(bound - offset) / factor for bound in known.bounds]
    margin = 1e-9 * max(abs(low), abs(high))
    return plan._replace(
        low=low + margin, high=high - margin, errors=errors, factor=factor, offset=offset, result=known.unit
    )


class _Walk:
    """Visits objects within objects and collects readings."""

    def __init__(self, fields: JsonFields, topic: str) -> None:
        self._fields = fields
        self._topic = topic
        self.readings: list[Reading] = []
        self.rest: dict[str, Any] = {}
        self.time_us: int | None = None
        self.device: str | None = None
        self.has_imperial = False

    def visit(self, item: Any, path: str, parent: Field | None, time_us: int | None, level: int) -> None:
        if level > MAX_LEVELS:
            raise RejectedError("nested too deeply", f"more than {MAX_LEVELS} levels")
        if isinstance(item, dict):
            self._visit_object(item, path, parent, time_us, level)
        elif isinstance(item, list):
            self._visit_list(item, path, parent, time_us, level)

    def _visit_object(
        self, item: dict[str, Any], path: str, parent: Field | None, time_us: int | None, level: int
    ) -> None:
        fields = self._fields
        item = {str(key): value for key, value in item.items()}
        if parent is not None and item.keys() == {"data", "unit"}:  # {"voltageL1": {"data": 231, "unit": "V"}}
            item = {"value": item["data"], "unit": item["unit"]}
        item = _with_parent(item, parent)
        plan = fields.plan_of(self._topic, tuple(item), path, parent)
        rest: dict[str, Any] = {}
        own = fields.time_in(item, plan, rest)
        self.rest |= {path + key: value for key, value in rest.items()}
        if own is not None and not path:
            self.time_us = own
            own = None
        device = item[plan.device] if plan.device is not None else None
        if self.device is None and not isinstance(device, dict | list):
            self.device = device_text(device)
        first = len(self.readings)
        fields._read(item, plan, self.readings, self.rest, path, own or time_us)
        if plan.factors:
            check_factors(item, plan.factors, self.readings[first:])
        self.has_imperial = self.has_imperial or plan.has_imperial
        if plan.flags:
            check_flags(item, plan.flags, self.readings)
        below = [] if _is_desired(item) else [*plan.others, *[one.key for one in plan.fields]]
        if isinstance(device, dict) and plan.device is not None:
            below.append(plan.device)
        for key in below:
            value = item[key]
            if isinstance(value, dict | list):
                self.rest.pop(path + key, None)
                self._visit_below(key, value, path, own or time_us, level)
            elif key in plan.others:
                self.rest[path + key] = value

    def _visit_below(self, key: str, value: Any, path: str, time_us: int | None, level: int) -> None:
        words = words_of(key)
        is_identity = not _NO_VALUES.isdisjoint(words) or key.lower().endswith("year")
        is_identity = is_identity and isinstance(value, dict) and "value" in value
        if field_of(key) is None and (is_identity or not PARTS.isdisjoint(words)):
            self.rest[path + key] = value
            return
        self.visit(value, f"{path}{key}.", field_of(key), time_us, level + 1)

    def _visit_list(self, item: list[Any], path: str, parent: Field | None, time_us: int | None, level: int) -> None:
        if not all(isinstance(one, dict) for one in item) or not item:
            self.rest[path.rstrip(".") or "[]"] = item
            return
        if len(item) > MAX_FIELDS:
            raise RejectedError("too many fields", f"{len(item)} objects in a list: at most {MAX_FIELDS}")
        for index, (label, one) in enumerate(zip(_labels(item), item, strict=True)):
            self.visit(one, f"{path}{index if label is None else label}.", parent, time_us, level + 1)


def _is_desired(item: dict[str, Any]) -> bool:
    """Return whether an object is a command for the property that its path names, as in Eclipse Ditto."""
    return isinstance(path := item.get("path"), str) and "desired" in path.lower()


_LABELS: Final = ("id", "name", "sensor", "label", "channel", "address", "sensor_id", "device", "key", "n")


def _labels(items: list[dict[str, Any]]) -> list[str | None]:
    """Return the names that tell the objects of a list apart; None for each if there are none."""
    for key in _LABELS:
        values = [one.get(key) for one in items]
        if all(isinstance(one, str | int) and not isinstance(one, bool) for one in values):
            texts = [str(one)[:64] for one in values]
            if len(set(texts)) == len(texts):
                return list(texts)
    return [None] * len(items)


def _with_parent(item: dict[str, Any], parent: Field | None) -> dict[str, Any]:
    """Return an object with the names of its fields completed by its own name: {"temperature": {"c": 21.5}}."""
    if parent is None or parent.quantity == VALUE or not parent.is_plain:
        return item
    found = {}
    for key, value in item.items():
        own, complete = field_of(key), f"{parent.quantity}_{key}"
        if own is None and (key.lower() in LOCATIONS or key.lower() in _SCALE_NAMES) and field_of(complete) is not None:
            key = complete
        elif own is not None and key.lower() in ("current", "count") and parent.quantity not in _ELECTRICAL:
            key = f"{key} of {parent.quantity}"  # the current temperature, or an electric current: unknown
        found[key] = value
    return found


_SCALE_NAMES: Final = frozenset(
    ("c", "f", "k", "degc", "degf", "hpa", "kpa", "pa", "mbar", "mv", "v", "percent", "pct")
)
_ELECTRICAL: Final = frozenset(("battery", "power", "voltage", "energy"))


def _unique_names(readings: list[Reading]) -> list[Reading]:
    """Return the readings; a name that is there twice at the same time would mix two series."""
    seen: set[tuple[str, str, int | None]] = set()
    for one in readings:
        key = (one.quantity, one.name, one.time_us)
        if key in seen:
            raise RejectedError("ambiguous", f"two values of {one.name or one.quantity}")
        seen.add(key)
    return readings


def _twins(fields: list[PlannedField]) -> tuple[str, ...]:
    """Return the fields whose value another one states in another unit, by the name without the unit."""
    first: dict[tuple[str, str], PlannedField] = {}
    found = []
    for field in fields:
        stem = (field.quantity, re.sub(r"(?i)(?:_?deg)?_?(?:c|f|k|celsius|fahrenheit)(?=_?\d*\Z)", "", field.key))
        if field.quantity == "temperature" and field.unit is not None:
            if stem in first and first[stem].unit != field.unit:
                found.append(field.key)
            first.setdefault(stem, field)
    return tuple(found)


# -- units ------------------------------------------------------------------------------------------------------------


def _unit_keys(keys: tuple[str, ...], found: Mapping[str, Field]) -> dict[str, str]:
    """Return the fields that state the unit of another field, by that field: temperature_unit, tempUnits."""
    result: dict[str, str] = {}
    for key in keys:
        words = words_of(key)
        if len(words) > 1 and words[-1] in ("unit", "units", "uom"):
            rest = words[:-1]
        elif len(words) > 3 and words[-3:] == ["unit", "of", "measurement"]:
            rest = words[:-3]
        else:
            continue
        for other, field in found.items():
            own = field_of("_".join(rest))
            if words_of(other) == rest or (own is not None and own.quantity == field.quantity and own.is_plain):
                result[other] = key
    return result


def stated_units(unit: Any, fields: tuple[PlannedField, ...]) -> dict[str, str] | None:
    """Return the unit of each field that the unit of the whole object applies to."""
    if isinstance(unit, dict):
        return {
            field.key: text
            for field in fields
            if isinstance(text := unit.get(field.key, unit.get(field.quantity)), str)
        }
    if not isinstance(unit, str):
        raise RejectedError("ambiguous", f"the unit is {kind_of(unit)} and should be a text")
    if not unit.strip() or unit.strip().lower() in SYSTEMS:
        return None
    if unit.strip().lower() in OTHER_SYSTEMS:
        raise RejectedError("ambiguous", f"the units are {unit[:40]!r}, which does not say the unit of each field")
    if len(fields) == 1:
        return {fields[0].key: unit}
    fitting = {
        field.key: unit
        for field in fields
        if (known := QUANTITIES.get(field.quantity)) is not None
        and known.kind
        and (scale := scale_of(unit, known.kind)) is not None
        and scale.kind == known.kind
    }
    if not fitting and fields:
        raise RejectedError("unit does not fit", f"the unit {unit[:40]!r} fits none of {len(fields)} fields")
    return fitting


def _is_unit_of(text: str, quantity: str) -> bool:
    known = QUANTITIES.get(quantity)
    return is_unit(text) or (
        known is not None and bool(known.kind) and (found := scale_of(text, known.kind)) is not None
        and found.kind == known.kind
    )  # fmt: skip


# -- small parts ------------------------------------------------------------------------------------------------------


def device_text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)[:MAX_DEVICE] or None


def _no_readings(item: Mapping[str, Any], topic: str, rest: Mapping[str, Any]) -> RejectedError:
    """Return the reason for an object without readings."""
    known = [key for key in item if field_of(str(key)) is not None]
    if known:
        first = known[0]
        text = item[first]
        if text is None or (isinstance(text, str) and text.strip().lower() in NO_VALUE):
            return RejectedError("error value", f"{first} has no value")
        if isinstance(text, int | float) and not isinstance(text, bool) and (field := field_of(first)) is not None:
            try:
                measure(field.quantity, text, field.unit, first)
            except RejectedError as error:
                return error
            return RejectedError("ambiguous", f"{first} may be a state or a channel, too: {teaching(first, topic)}")
        return RejectedError("type changed", f"the field {first!r} is {kind_of(text)} and should be a number")
    names = ", ".join(str(key) for key in list(item)[:8])[:200] or "none"
    first = next((str(key) for key, one in item.items() if isinstance(one, int | float)), "x")
    return RejectedError("no quantity", f"none of its fields is known ({names}): {teaching(first, topic)}")


def _listed(fields: set[Field]) -> str:
    return ", ".join(sorted(field.quantity for field in fields))


def _local_time(text: str, zone: tzinfo) -> int | None:
    """Return the time of a clock without a zone, which the configuration or the name of the field states."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    if moment.tzinfo is not None:
        return None
    earlier, later = [moment.replace(tzinfo=zone, fold=fold) for fold in (0, 1)]
    is_clear = earlier.utcoffset() == later.utcoffset()  # else it exists twice or not at all: daylight saving time
    return time_of(earlier.isoformat()) if is_clear else None


# -- options ----------------------------------------------------------------------------------------------------------


def _table(options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = options.get(name, {})
    if not isinstance(found, Mapping):
        raise PipelineError(f"the option {name} of a decoder is not a table: write {name} = {{ t = ... }}")
    return found


def _field_option(key: str, value: Any) -> tuple[str, str | None, str]:
    """Return quantity, unit and name of a configured field."""
    if isinstance(value, str):
        value = {"quantity": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("quantity"), str) or not value["quantity"]:
        raise PipelineError(
            f'the field {key} of a decoder needs a quantity: write {key} = "temperature" or '
            f'{key} = {{ quantity = "temperature", unit = "°F" }}'
        )
    if unknown := sorted(set(value) - {"quantity", "unit", "name"}):
        raise PipelineError(f"the field {key} of a decoder has no option {', '.join(unknown)}: quantity, unit, name")
    unit = value.get("unit")
    return value["quantity"], None if unit is None else _unit_option(key, unit), str(value.get("name", ""))


def _unit_option(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise PipelineError(f'the unit of {key} of a decoder is not a text: write it as "°F"')
    return value


def _text_option(options: Mapping[str, Any], name: str) -> str | None:
    found = options.get(name)
    if found is not None and not isinstance(found, str):
        raise PipelineError(f"the option {name} of a decoder is not a text: give the name of a field")
    return found


def _list_option(options: Mapping[str, Any], name: str) -> list[str]:
    found = options.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise PipelineError(f"the option {name} of a decoder is not a list of names")
    return found


def _zone_option(options: Mapping[str, Any]) -> ZoneInfo | None:
    name = _text_option(options, "time_zone")
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise PipelineError(f"{name!r} is not a time zone: give a name such as Europe/Berlin or UTC") from None
