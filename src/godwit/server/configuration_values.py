"""Values of a configuration file that are texts with a meaning: sizes and ages with a unit, and paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeAlias

from godwit.limits import KIB, MIB
from godwit.server.configuration_errors import ConfigurationSource, KeyPath, label

AGES_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 24 * 3600.0, "w": 7 * 24 * 3600.0}
_THOUSANDS_BYTES: Final = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
SIZES_BYTES: Final = {**_THOUSANDS_BYTES, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB, "TiB": 1024**2 * MIB}
WITH_UNIT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
Quantity: TypeAlias = float | str
"""A number, or a text with a unit."""


def read_path(source: ConfigurationSource, key: KeyPath, text: str | None, folder: Path) -> Path | None:
    """Return a path, which is relative to the folder of the file."""
    if text is None:
        return None
    if not text:
        raise source.error(key, f"{label(key)} is empty: give a path, or leave the key out")
    return folder / text


def read_quantity(
    source: ConfigurationSource,
    key: KeyPath,
    value: Quantity | None,
    units: dict[str, float] | dict[str, int],
    least: float,
    least_text: str,
    how: str,
) -> float | None:
    """Return a number with its unit applied, or None if the key is missing."""
    if value is None:
        return None
    if isinstance(value, str):
        match = WITH_UNIT.fullmatch(value)
        if match is None or match[2] not in units:
            raise source.error(key, f"{label(key)} is not understood: write it as {how}")
        value = float(match[1]) * units[match[2]]
    if not value >= least:  # also for nan
        raise source.error(key, f"{label(key)} is {value:g}: it must be {least_text} at least; write it as {how}")
    if value > 2**53:
        raise source.error(key, f"{label(key)} is {value:g}: leave the key out for no bound; write it as {how}")
    return value
