"""What a configuration says of the log, how much of it is kept and who may read it: [log], [[log.rule]], [archive]."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from godwit.broker.topics import check_filter
from godwit.errors import BadFilterError, ConfigurationError
from godwit.limits import KIB, MIB
from godwit.server.toml_table import Table
from godwit.store.retention import RetentionRule

NO_ARCHIVE: Final = "none"
LEAST_AGE_S: Final = 1.0
LEAST_BYTES: Final = MIB
"""A block may be that long, and nothing smaller is deleted."""

_AGES_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 24 * 3600.0, "w": 7 * 24 * 3600.0}
_THOUSANDS_BYTES: Final = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
SIZES_BYTES: Final = {**_THOUSANDS_BYTES, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB, "TiB": 1024**2 * MIB}
WITH_UNIT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveSection:
    """How the archive is started."""

    is_on: bool = True
    listen: str | None = None
    """HOST:PORT; None: the host of the first listener, and its port plus one."""
    token_file: Path | None = None
    """One token a line, perhaps with its rights; see godwit.archive.tokens."""
    certificate: Path | None = None
    key: Path | None = None


def read_log_section(table: Table, folder: Path) -> tuple[Path | None, tuple[RetentionRule, ...]]:
    """Where the log lies, and the rules of its retention, the one for all that no filter names last."""
    table.expect("data", "max_age", "max_bytes", "rule")
    data = _path(table, "data", folder)
    rules = []
    for part in table.tables("rule"):
        part.expect("filter", "max_age", "max_bytes")
        pattern = part.text("filter")
        try:
            check_filter(pattern)
        except BadFilterError as error:
            raise ConfigurationError(f"{part.label()}: {error}") from error
        rules.append(RetentionRule(pattern, _age_s(part), _bytes(part)))
    age_s, size_bytes = _age_s(table), _bytes(table)
    if age_s is not None or size_bytes is not None:
        rules.append(RetentionRule(None, age_s, size_bytes))
    return data, tuple(rules)


def read_archive_section(table: Table, folder: Path) -> ArchiveSection:
    table.expect("listen", "token_file", "certificate", "key")
    listen = table.text("listen") if "listen" in table else None
    certificate, key = _path(table, "certificate", folder), _path(table, "key", folder)
    if (certificate is None) != (key is None):
        raise ConfigurationError(f"{table.label()} has only one of certificate and key: give both, or none")
    return ArchiveSection(
        is_on=listen != NO_ARCHIVE,
        listen=None if listen == NO_ARCHIVE else listen,
        token_file=_path(table, "token_file", folder),
        certificate=certificate,
        key=key,
    )


def _path(table: Table, key: str, folder: Path) -> Path | None:
    if key not in table:
        return None
    text = table.text(key)
    if not text:
        raise ConfigurationError(f"{table.label(key)} is empty: give a path, or leave the key out")
    return folder / text


def _age_s(table: Table) -> float | None:
    """None: for ever."""
    return _quantity(table, "max_age", _AGES_S, LEAST_AGE_S, "1 s", '"30d", "12h" or a number of seconds')


def _bytes(table: Table) -> int | None:
    """None: as much as there is room for."""
    found = _quantity(table, "max_bytes", SIZES_BYTES, LEAST_BYTES, "1 MiB", '"10GiB", "500MB" or a number of bytes')
    return None if found is None else int(found)


def _quantity(
    table: Table, key: str, units: dict[str, float] | dict[str, int], least: float, least_text: str, how: str
) -> float | None:
    if key not in table:
        return None
    if table.is_text(key):
        match = WITH_UNIT.fullmatch(table.text(key))
        if match is None or match[2] not in units:
            raise ConfigurationError(f"{table.label(key)} is not understood: write it as {how}")
        value = float(match[1]) * units[match[2]]
    else:
        value = table.number(key, fraction=True)
    if not value >= least:  # or no number
        raise ConfigurationError(
            f"{table.label(key)} is {value:g}: it must be {least_text} at least; write it as {how}"
        )
    if value > 2**53:
        raise ConfigurationError(f"{table.label(key)} is {value:g}: leave the key out for no bound; write it as {how}")
    return value
