"""SenML: sensor measurement lists in JSON and CBOR.

Sources: RFC 8428 (labels of table 1 and 2, base fields, relative times), the IANA registries "SenML Units" and
"Secondary Units" (RFC 8798).

- JSON is recognised as an array of records that have labels of SenML only, and names and values; CBOR as an array of
  maps with the integer labels; or by the content type.
- Base fields (bn, bt, bu, bv, bs) apply to their record and the following ones. The name of a record is bn and n.
- A time below 2**28 is relative to now, for which the time of publishing is taken; 0 or none is now.
- The quantity is that of the last part of the name (`urn:dev:ow:10e2073a01080063:voltage`), if the vocabulary has it.
  Units of the registry that stand for one quantity by their definition name it otherwise: Cel (temperature), %RH
  (relative humidity), %EL (battery level), lat, lon, pH, lx. Otherwise the name is the quantity. `C` is coulomb.
- `vs`, `vb` and `vd` are not numbers, and a sum `s` is an integral over time: they remain in `extra`.
- A label that ends with `_` and is unknown must be understood (RFC 8428, 4.4), as a version above 10: rejected.
"""

from __future__ import annotations

import re
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import EARLIEST_S, LATEST_S, MAX_TEXT_BYTES, extra_of
from godwit.pipeline.decoders.fields import field_number, quantity_in, unit_fits
from godwit.pipeline.decoders.results import ARRAY, BINARY, DEFAULT, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.decoders.results import PAYLOAD as FROM_PAYLOAD
from godwit.pipeline.quantities import QUANTITIES, field_of, is_setting, measure

_LABELS: Final = {
    -1: "bver", -2: "bn", -3: "bt", -4: "bu", -5: "bv", -6: "bs", 0: "n", 1: "u", 2: "v", 3: "vs", 4: "vb", 5: "s",
    6: "t", 7: "ut", 8: "vd",
}  # fmt: skip
"""The labels in CBOR."""
_NAMES: Final = frozenset(_LABELS.values())
_VALUES: Final = frozenset(("v", "vs", "vb", "vd", "s"))
VERSION: Final = 10
RELATIVE_S: Final = 1 << 28
"""Times below are relative to now."""
_UNITS: Final = {
    "Cel": "°C", "%RH": "%", "%EL": "%", "lat": "°", "lon": "°", "Ohm": "Ω", "l": "L", "l/s": "L/s", "deg": "°",
    "m2": "m²", "m3": "m³", "m/s2": "m/s²", "W/m2": "W/m²", "ug/m3": "µg/m³", "1/min": "rpm", "dBm": "dBm",
    "beat/min": "beat/min", "C": "coulomb", "F": "farad",
}  # fmt: skip
"""Units of the registry whose spelling differs."""
_QUANTITIES: Final = {
    "Cel": "temperature", "%RH": "humidity", "%EL": "battery", "lat": "latitude", "lon": "longitude", "pH": "ph",
    "lx": "light",
}  # fmt: skip
"""Units that stand for one quantity by their definition in the registry."""
_RATIOS: Final = {"/": 1.0, "/100": 0.01, "/1000": 0.001}
_LAST: Final = re.compile(r"[^:/.#]+\Z")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:./_-]*\Z")
MAX_RECORDS: Final = 1024


STATED_TYPES: Final = (
    "application/senml+json", "application/senml+cbor", "application/sensml+json", "application/sensml+cbor",
)  # fmt: skip
"""Content types that state SenML."""


class SenmlDecoder(Decoder):
    """SenML packs."""

    name = "senml"
    title = "SenML (RFC 8428), JSON and CBOR"
    forms = frozenset((ARRAY, BINARY))
    content_types = (*STATED_TYPES, "application/cbor")

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode a pack, recognised by its labels or the content type."""
        content_type = (message.content_type or "").partition(";")[0].strip().lower()
        is_stated = content_type in STATED_TYPES
        if message.is_json:
            records = message.json
        elif message.payload[:1] and (0x80 <= message.payload[0] <= 0x9F):  # a CBOR array
            records = _from_cbor(message.payload, is_stated)
        else:
            records = None
        if not _is_pack(records):
            if is_stated:
                raise RejectedError("bad payload", f"the content type is {content_type}, and this is not a SenML pack")
            return None
        return _decoded(records, message.received_us)


def _from_cbor(payload: bytes, is_stated: bool) -> Any:
    """Return the records with the labels of JSON; None if it is something else."""
    import cbor2

    if len(payload) > MAX_TEXT_BYTES:
        return None
    try:
        records = cbor2.loads(payload)
    except Exception as error:  # of cbor2, or of the bytes
        if is_stated:
            raise RejectedError("bad payload", f"invalid CBOR: {type(error).__name__}") from None
        return None
    if not isinstance(records, list) or not all(isinstance(one, dict) for one in records):
        return None
    found = []
    for one in records:
        labels = {_LABELS.get(key, key) if isinstance(key, int) and not isinstance(key, bool) else key for key in one}
        if len(labels) != len(one) or not all(isinstance(label, str) for label in labels):
            return None
        found.append(
            {
                _LABELS[key] if isinstance(key, int) else key: float(value) if _is_decimal(value) else value
                for key, value in one.items()
            }
        )
    return found


def _is_decimal(value: Any) -> bool:
    """Whether it is a number of another type than int and float: CBOR has decimal fractions."""
    return hasattr(value, "as_integer_ratio") and not isinstance(value, int | float)


def _is_pack(records: Any) -> bool:
    """Whether all records have labels of SenML only, and there are a name and a value."""
    if not isinstance(records, list) or not records:
        return False
    has_name = has_value = False
    for one in records:
        if not isinstance(one, dict) or not one:
            return False
        for label in one:
            if label not in _NAMES and not label.endswith("_"):
                return False
        has_name = has_name or isinstance(one.get("n", one.get("bn")), str)
        has_value = has_value or not _VALUES.isdisjoint(one)
    return has_name and has_value


def _decoded(records: list[dict[str, Any]], received_us: int) -> Decoded:
    if len(records) > MAX_RECORDS:
        raise RejectedError("too many fields", f"{len(records)} records: at most {MAX_RECORDS}")
    base: dict[str, Any] = {"bn": "", "bt": 0.0, "bu": None, "bv": 0.0, "bs": 0.0}
    readings: list[Reading] = []
    other: list[dict[str, Any]] = []
    for one in records:
        _take_base(one, base)
        name = f"{base['bn']}{_text(one, 'n') or ''}"
        if _VALUES.isdisjoint(one):
            continue
        if not _NAME.match(name):
            raise RejectedError("bad payload", f"the name of a record is {name[:60]!r}")
        time_us = _time(base["bt"] + (_number(one, "t") or 0.0), received_us)
        unit = _text(one, "u") or base["bu"]
        if "v" in one:
            readings.append(_reading(name, base["bv"] + (_number(one, "v") or 0.0), unit, time_us))
        left: dict[str, Any] = {label: one[label] for label in ("vs", "vb", "vd", "s") if label in one}
        if left:
            other.append({"n": name, **left})
    devices = {one["bn"] for one in records if one.get("bn")}
    device = next(iter(devices)).rstrip(":/.-") if len(devices) == 1 else None
    return Decoded(readings, None, device, extra_of({"records": other} if other else {}))


def _take_base(one: dict[str, Any], base: dict[str, Any]) -> None:
    """Take over the base fields of a record. Raise RejectedError for an unknown label that must be understood."""
    for label in one:
        if label not in _NAMES:
            raise RejectedError("bad payload", f"the label {label[:40]!r} must be understood, and is unknown")
    version = one.get("bver", VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise RejectedError("bad payload", f"version {str(version)[:20]} of SenML: up to {VERSION} is known")
    for label in ("bn", "bu"):
        if label in one:
            base[label] = _text(one, label)
    base["bn"] = base["bn"] or ""
    for label in ("bt", "bv", "bs"):
        if label in one:
            base[label] = _number(one, label) or 0.0


def _text(one: dict[str, Any], label: str) -> str | None:
    value = one.get(label)
    if value is not None and not isinstance(value, str):
        raise RejectedError("bad payload", f"{label} is not a text")
    return value


def _number(one: dict[str, Any], label: str) -> float | None:
    value = one.get(label)
    if isinstance(value, str) or (label in one and value is None):
        raise RejectedError("type changed", f"{label} is not a number")
    return field_number(value, label)


def _time(seconds: float, received_us: int) -> int | None:
    """Return the time of a record; None for now."""
    if seconds == 0:
        return None
    if abs(seconds) < RELATIVE_S:
        return received_us + round(seconds * 1e6) if received_us else None
    if not EARLIEST_S <= seconds <= LATEST_S:
        raise RejectedError("bad time", f"the time {seconds:g} is not between 2000 and 2100")
    return round(seconds * 1e6)


def _reading(name: str, value: float, unit: str | None, time_us: int | None) -> Reading:
    last = _LAST.search(name)
    field = field_of(last[0]) if last is not None else None
    if unit is None:
        if field is None:
            return measure(name, value, "", name, unit_source=DEFAULT, time_us=time_us)
        return measure(field.quantity, value, field.unit, name, time_us=time_us)
    unit = unit.strip()
    written = _UNITS.get(unit, unit)
    is_other = last is not None and is_setting(last[0])  # the set point of a temperature is not one
    quantity = field.quantity if field is not None else name if is_other else _QUANTITIES.get(unit, name)
    if not is_other and unit in _QUANTITIES and not unit_fits(quantity, written):
        quantity = _QUANTITIES[unit]
    if unit in _RATIOS:
        return _ratio(quantity, name, value * _RATIOS[unit], time_us)
    return measure(quantity_in(quantity, written), value, written, name, unit_source=FROM_PAYLOAD, time_us=time_us)


def _ratio(quantity: str, name: str, value: float, time_us: int | None) -> Reading:
    """Return the reading of a ratio: a percentage where the quantity is stored as one."""
    known = QUANTITIES.get(quantity)
    if known is not None and known.kind == "percent":
        return measure(quantity, value * 100, "%", name, unit_source=FROM_PAYLOAD, time_us=time_us)
    if known is not None and known.unit:
        raise RejectedError("unit does not fit", f"{name} is a ratio")
    return Reading(quantity, value, "", name, time_us, FROM_PAYLOAD)


EXAMPLES: Final = (
    DecoderExample(
        "lab/senml",
        b'[{"bn":"urn:dev:ow:10e2073a0108006:","bt":1.763208000e+09,"bu":"A","bver":5},'
        b'{"n":"voltage","u":"V","v":120.1},{"n":"current","t":-5,"v":1.2},{"n":"current","t":-4,"v":1.3}]',
        (
            Reading("voltage", 120.1, "V", "urn:dev:ow:10e2073a0108006:voltage", 1_763_208_000_000_000),
            Reading("current", 1.2, "A", "urn:dev:ow:10e2073a0108006:current", 1_763_207_995_000_000),
            Reading("current", 1.3, "A", "urn:dev:ow:10e2073a0108006:current", 1_763_207_996_000_000),
        ),
    ),
    DecoderExample(
        "lab/senml",
        b'[{"n":"urn:dev:ow:10e2073a01080063","u":"Cel","v":23.1}]',
        (Reading("temperature", 23.1, "°C", "urn:dev:ow:10e2073a01080063"),),
    ),
    DecoderExample(
        "lab/senml",
        bytes.fromhex("82a32169626c6475653a6465763a0001622552486132fb4044000000000000a1"),
        reason="not text",
        note="truncated CBOR",
    ),
    DecoderExample("lab/senml", b'[{"n":"a","v":1,"must_":true}]', reason="bad payload"),
)

DECODERS: Final = {SenmlDecoder: EXAMPLES}
