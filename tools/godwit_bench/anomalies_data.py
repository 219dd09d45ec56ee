"""Real sensor data with labels: the temperature series of NAB, and the motes of Suthaharan and others."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from godwit.errors import GodwitError

NAB: Final = {
    "ambient temperature": "ambient_temperature_system_failure.csv",
    "machine temperature": "machine_temperature_system_failure.csv",
}
MOTES: Final = Path("suthaharan_multihop") / "data.csv"
QUANTITIES: Final = ("humidity", "temperature")
MOTE_INTERVAL_US: Final = 5_000_000
"""Their readings are numbered and have no times; they were taken every five seconds."""


class Window(NamedTuple):
    """A labelled anomaly: from here to there, both included."""

    begin_us: int
    end_us: int


class Series(NamedTuple):
    """Readings of one quantity."""

    name: str
    times_us: list[int]
    values: list[float]
    windows: list[Window]


class Mote(NamedTuple):
    """Readings of one sensor node, with a label for each row of them."""

    name: str
    times_us: list[int]
    quantities: list[list[float]]
    labels: list[bool]


def read_nab(folder: Path) -> list[Series]:
    """Both series, with their labelled windows."""
    with _open(folder / "nab" / "combined_windows.json") as file:
        labelled = json.load(file)
    found = []
    for name, file_name in NAB.items():
        rows = list(_rows(folder / "nab" / file_name))
        windows = [Window(_time_us(begin), _time_us(end)) for begin, end in labelled[f"realKnownCause/{file_name}"]]
        times_us = [_time_us(row["timestamp"]) for row in rows]
        found.append(Series(name, times_us, [float(row["value"]) for row in rows], windows))
    return found


def read_motes(folder: Path) -> list[Mote]:
    """All four, in the order of their numbers."""
    motes: dict[str, Mote] = {}
    for row in _rows(folder / MOTES):
        mote = motes.setdefault(row["mote_id"], Mote(f"mote {row['mote_id']}", [], [[] for _ in QUANTITIES], []))
        mote.times_us.append(int(row["reading"]) * MOTE_INTERVAL_US)
        mote.labels.append(row["label"] == "1")
        for values, quantity in zip(mote.quantities, QUANTITIES, strict=True):
            values.append(float(row[quantity]))
    return [motes[number] for number in sorted(motes)]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with _open(path) as file:
        yield from csv.DictReader(file)


def _open(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise GodwitError(
            f"{path} cannot be read ({error.strerror}): give the folder with nab and suthaharan_multihop as --data"
        ) from None


def _time_us(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000)
