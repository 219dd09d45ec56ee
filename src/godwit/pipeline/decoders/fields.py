"""Helpers of the decoders of devices: values of JSON fields, and tables of fields with their units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from godwit.pipeline.decoders.content import number_of
from godwit.pipeline.decoders.results import DECODER, Reading, RejectedError
from godwit.pipeline.quantities import QUANTITIES, measure
from godwit.pipeline.units import scale_of

_KINDS: Final = {dict: "an object", list: "a list", bool: "true or false", bytes: "binary"}
MAX_NAMES: Final = 8


class DeviceField(NamedTuple):
    """The meaning of a field in a format that fixes it."""

    quantity: str
    unit: str
    """"" for a quantity without a unit."""


def field_number(value: Any, name: str) -> float | None:
    """Return the number of a field, or of a text that is one; None for null.

    Raise RejectedError for another type.
    """
    if value is None:
        return None
    if isinstance(value, str):
        number = number_of(value)
        if number is None:
            raise RejectedError("type changed", f"the field {name!r} is the text {value[:40]!r} and should be a number")
        return number
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = _KINDS.get(type(value), type(value).__name__)
        raise RejectedError("type changed", f"the field {name!r} is {kind} and should be a number")
    return float(value)


def device_reading(field: DeviceField, value: Any, name: str, time_us: int | None = None) -> Reading | None:
    """Return the reading of a field whose unit the format fixes; None if it is null."""
    number = field_number(value, name)
    if number is None:
        return None
    return measure(field.quantity, number, field.unit, name, unit_source=DECODER, time_us=time_us)


def quantity_in(quantity: str, unit: str) -> str:
    """Return the quantity of a gas in this unit: parts of the volume and mass per volume are not the same quantity.

    They are converted by the molar mass only, which is not known for a mixture such as VOC.
    """
    known = QUANTITIES.get(quantity)
    if known is None or known.kind != "ppm":
        return quantity
    scale = scale_of(unit, "")
    return f"{quantity}_mass" if scale is not None and scale.kind == "mass concentration" else quantity


def unit_fits(quantity: str, unit: str) -> bool:
    """Whether the unit is one of this quantity, or the quantity is not in the vocabulary."""
    known = QUANTITIES.get(quantity)
    if known is None:
        return True
    scale = scale_of(unit, known.kind)
    return scale is not None and scale.kind == known.kind


def has_numbers(fields: Mapping[str, Any]) -> bool:
    """Whether there is a number among the values, at any depth."""
    pending: list[Any] = [fields]
    while pending:
        one = pending.pop()
        if isinstance(one, Mapping):
            pending += one.values()
        elif isinstance(one, list):
            pending += one
        elif isinstance(one, int | float) and not isinstance(one, bool):
            return True
    return False


def some_names(fields: Mapping[str, Any]) -> str:
    """Return the first names of fields, for a detail."""
    return ", ".join(list(fields)[:MAX_NAMES])[:200]
