"""The shapes of flat JSON objects: how all objects are read that differ in their numbers and times only.

This follows JsonFields.read_flat with a slot in place of each number. Where the result would depend on a number in
another way than by its bounds, the object has none, and is read by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.content import extra_of
from godwit.pipeline.decoders.json_checks import OTHER_SCALES, check_flags, check_scale_of, is_error_code, same_unit
from godwit.pipeline.decoders.json_fields import (
    POWER_ON_VALUES,
    JsonFields,
    ObjectPlan,
    PlannedField,
    device_text,
    stated_units,
)
from godwit.pipeline.decoders.results import DEFAULT, PAYLOAD, Reading
from godwit.pipeline.decoders.shapes import Layout, Shape, ShapeField, Slot, TimeSlot
from godwit.pipeline.quantities import DS18B20_RANGE, MOST_SPEED, MOST_WHOLE_VOLTS, QUANTITIES
from godwit.pipeline.units import scale_of


def flat_shape(reader: JsonFields, decoder: str, topic: str, item: Mapping[str, Any]) -> Shape | None:
    """Return how objects are read that differ from this one in their numbers and times only, as `read_flat` does.

    A Slot or a TimeSlot is in place of each of these. None means that this depends on them in more than a few ways.
    Raise RejectedError if all such objects are rejected.
    """
    plan = reader.plan_of(topic, tuple(item))
    unit = item[plan.unit_key] if plan.unit_key is not None else None
    texts = [plan.unit_key, plan.device, *plan.quantity_keys, *plan.flags, *[one.unit_key for one in plan.fields]]
    if any(type(item[key]) is Slot for key in plan.factors):
        return None
    if plan.twins or type(unit) is Slot or any(type(item[key]) is TimeSlot for key in texts if key is not None):
        return None
    if any(type(item[key]) is TimeSlot and (reader.zone or "utc" in key.lower()) for key in plan.times):
        return None
    is_stated = unit is not None or bool(plan.quantity_keys)
    planned = reader.with_quantity(item, plan) if plan.quantity_keys else plan.fields
    units = (stated_units(unit, planned) if unit is not None else None) or {}
    fields: list[ShapeField] = []
    rest: dict[str, Any] = {}
    for field in planned:
        value = item[field.key]
        if type(value) is Slot:
            found = _shaped(item, field, value.index, units.get(field.key), is_stated)
            if found is None:
                return None
            fields.append(found)
        elif type(value) is str or type(value) is TimeSlot:
            return None
        elif value is not None:
            rest[field.key] = value
    time = _shape_time(reader, item, plan, rest)
    readings = [Reading(one.quantity, one.low, one.unit, one.name, None, one.unit_source) for one in fields]
    flags = [key for key in plan.flags if type(item[key]) is not Slot]
    check_flags(item, tuple(flags), readings)
    zeros = [item[key].index for key in plan.flags if key not in flags and is_error_code(key)]
    is_default = any(one.unit_source == DEFAULT and one.unit == "°C" for one in readings)
    if not fields or (plan.has_imperial and is_default):
        return None
    for key in plan.others:
        value = rest[key] = item[key]
        if type(value) is str and value.lower() in OTHER_SCALES:
            check_scale_of(key, value, readings)
    device = item[plan.device] if plan.device is not None else None
    extra, extra_slots = _shape_extra(rest)
    layout = Layout(
        decoder,
        sum(type(one) is Slot for one in item.values()),
        tuple(fields),
        tuple(zeros),
        time.index if isinstance(time, Slot) else ~time.index if isinstance(time, TimeSlot) else None,
        device.index if isinstance(device, Slot) else None,
        extra_slots,
    )
    time_us = time if isinstance(time, int) else None
    return Shape(layout, time_us, None if isinstance(device, Slot) else device_text(device), extra)


def _shaped(
    item: Mapping[str, Any], field: PlannedField, slot: int, unit: str | None, is_stated: bool
) -> ShapeField | None:
    """Return how the numbers of a field are read: as `_read` does, or `_read_slowly` if `is_stated`."""
    if not is_stated and field.low <= field.high:
        errors = field.errors | POWER_ON_VALUES if field.quantity == "temperature" else field.errors
        return ShapeField(
            slot, field.quantity, field.result, field.name, field.source, field.low, field.high, errors,
            field.factor, field.offset,
        )  # fmt: skip
    written, source = None, PAYLOAD
    if field.unit_key is not None:
        text = item[field.unit_key]
        written = text.strip() if isinstance(text, str) else None
    written = same_unit(written, unit, field.key)
    if field.source == PAYLOAD:
        written = same_unit(written, field.unit, field.key)
    elif written is None:
        written, source = field.unit, field.source
    return _shape_field(field, slot, written, source)


def _shape_time(
    reader: JsonFields, item: Mapping[str, Any], plan: ObjectPlan, rest: dict[str, Any]
) -> int | Slot | TimeSlot | None:
    """Return the time that an object states, or its slot; as `time_in` for a number that is a time."""
    found: int | Slot | TimeSlot | None = None
    for key in plan.times:
        value = item[key]
        if found is None and _is_time_slot(value):
            found = value
        elif found is None and type(value) is not TimeSlot:
            found = reader.time_in({key: value}, plan._replace(times=(key,)), rest)
        elif value is not None:
            rest[key] = value
    if plan.letter_t is None:  # else there are no others
        return found
    value = item[plan.letter_t]
    if _is_time_slot(value):
        return value  # type: ignore[no-any-return]
    if type(value) is TimeSlot:
        rest[plan.letter_t] = value
        return None
    return reader.time_in(item, plan, rest)


def _shape_field(field: PlannedField, slot: int, unit: str | None, source: str) -> ShapeField | None:
    """Return which numbers of a field `measure` converts, and how; None if that is not known for any.

    The bounds are a little narrower than those of `measure`, so that rounding does not matter.
    """
    known = QUANTITIES.get(field.quantity)
    if known is None or (field.quantity == "current" and not unit):
        return None
    errors = known.errors | POWER_ON_VALUES if field.quantity == "temperature" else known.errors
    errors |= {1.0} if field.is_state else frozenset()
    low, high = DS18B20_RANGE if field.is_ds18b20 else known.bounds
    if not unit:
        if known.default is not None:
            low, high = max(low, known.default[0]), min(high, known.default[1])
        low, high = max(low, _LEAST.get(field.quantity, low)), min(high, _GREATEST.get(field.quantity, high))
        unit = "" if known.default is None else known.unit
        return ShapeField(slot, field.quantity, unit, field.name, DEFAULT, low, high, errors)
    if not known.kind:
        return None
    scale, base = scale_of(unit, known.kind), scale_of(known.unit, known.kind)
    if scale is None or base is None or scale.kind != known.kind or scale.factor <= 0:
        return None
    low, high = [(bound * base.factor - scale.offset) / scale.factor for bound in (low, high)]
    margin = 1e-9 * max(abs(low), abs(high))
    return ShapeField(
        slot, field.quantity, known.unit, field.name, source, low + margin, high - margin, errors,
        scale.factor, scale.offset, base.factor,
    )  # fmt: skip


def _is_time_slot(value: Any) -> bool:
    return type(value) is Slot or (type(value) is TimeSlot and value.has_zone)


_LEAST: Final = {"battery": 15.0, "light": 2.0, "speed": -float(MOST_SPEED)}
_GREATEST: Final = {"voltage": float(MOST_WHOLE_VOLTS), "speed": float(MOST_SPEED)}
"""By quantity: numbers between these have a default unit whatever else they are, see `_read_slowly` and `measure`."""


def _shape_extra(rest: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the JSON of `extra_of` as texts, with slots between them."""
    if not rest:
        return (), ()
    texts, slots = ["{"], []
    for name, value in rest.items():
        separator = ", " if len(texts) > 1 or texts[0] != "{" else ""
        if type(value) is Slot:
            texts[-1] += separator + (extra_of({name: 0}) or "")[1:-2]
            slots.append(value.index)
            texts.append("")
        elif type(value) is TimeSlot:
            texts[-1] += separator + (extra_of({name: ""}) or "")[1:-2]
            slots.append(~value.index)
            texts.append('"')
        else:
            texts[-1] += separator + (extra_of({name: value}) or "")[1:-1]
    texts[-1] += "}"
    return tuple(texts), tuple(slots)
