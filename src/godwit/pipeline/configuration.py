"""The configuration of the pipeline: a TOML file, pipeline.toml in the lake unless another one is named.

    [[pipeline.decoder]]
    filter = "logger/#"
    decoder = "csv"
    columns = ["time", "temperature_F", "humidity"]

    [pipeline.retention]
    bronze = "90d"
    "silver.readings" = "2y"

The options beside `filter` and `decoder` are those of the decoder: see docs/DECODERS.md. Retention is by table or by
layer: see docs/SPARK.md.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

from godwit.pipeline.decoders.selection import DecoderRule, decoder_set
from godwit.pipeline.errors import PipelineError

FILE: Final = "pipeline.toml"
SECTION: Final = "pipeline"
RETENTION: Final = "retention"
MAX_RETENTION_HOURS: Final = 1000 * 365 * 24
T = TypeVar("T")
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24, "y": 365 * 24}
_DURATION: Final = re.compile(r"(\d{1,12})\s*([hdwy])")
_HEADER: Final = re.compile(r"\s*\[\[?([^\[\]]+)\]")
_CONTENT_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+")
_SELECTION: Final = ("filter", "content_type", "decoder")
"""The keys of an entry that are not options of its decoder."""
_HINT: Final = 'write [[pipeline.decoder]], then filter = "..." and decoder = "..."'


def find_configuration(config: Path | None, lake: str) -> Path | None:
    """Return the file to read: the one that is named, or pipeline.toml in a lake that is a folder and has one.

    Raise PipelineError if a lake in an object store has one, because it is not read there, and must not be ignored.
    """
    if config is not None:
        return config
    if "://" in lake:
        from godwit.pipeline.files import file_system  # pyarrow, which `decode` can do without

        system, path = file_system(lake)
        if system.get_file_info(f"{path}/{FILE}").is_file:
            raise PipelineError(
                f"the configuration {lake}/{FILE} is in an object store: copy it to this machine, and name the copy "
                "with --config"
            )
        return None
    found = Path(lake) / FILE
    return found if found.is_file() else None


def load_rules(path: Path | None) -> tuple[DecoderRule, ...]:
    """Return the decoders of a configuration; none without a file.

    Raise PipelineError if it is unreadable or invalid, also if a decoder or an option of one is unknown.
    """

    def convert(content: dict[str, Any], text: str) -> tuple[DecoderRule, ...]:
        rules = rules_of(content)
        decoder_set(rules)
        return rules

    return () if path is None else _load(path, convert)


def load_retention(path: Path | None) -> dict[str, timedelta]:
    """Return for how long tables keep their rows, by name, in a configuration; nothing without a file.

    Raise PipelineError if it is unreadable or invalid, also if a table is unknown.
    """
    return {} if path is None else _load(path, retention_of)


def _load(path: Path, convert: Callable[[dict[str, Any], str], T]) -> T:
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise PipelineError(f"cannot read the configuration {path}: {error.strerror}; check its path") from error
    except UnicodeDecodeError as error:
        raise PipelineError(f"the configuration {path} is not UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"the configuration {path} is not TOML: {error}") from error
    try:
        _refuse_unknown(content, text)
        return convert(content, text)
    except PipelineError as error:
        raise PipelineError(f"the configuration {path}: {error}") from error


def _refuse_unknown(content: dict[str, Any], text: str) -> None:
    section = content.get(SECTION, {})
    names: list[tuple[str, str, tuple[str, ...]]] = [(name, name, (SECTION,)) for name in content]
    if isinstance(section, dict):
        names += [(name, f"{SECTION}.{name}", ("decoder", RETENTION)) for name in section]
    for name, path, known in names:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
            line = next((f"line {number}: " for number, one in enumerate(text.splitlines(), 1) if name in one), "")
            raise PipelineError(f"{line}{path} is unknown: {hint}")


def rules_of(content: dict[str, Any]) -> tuple[DecoderRule, ...]:
    """Return the decoders of a parsed configuration. Raise PipelineError if an entry is invalid."""
    section = content.get(SECTION, {})
    entries = section.get("decoder", []) if isinstance(section, dict) else None
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise PipelineError(f"pipeline.decoder is not a list of tables: {_HINT}")
    rules = []
    for number, entry in enumerate(entries, 1):
        content_type = entry.get("content_type")
        filter, decoder = entry.get("filter", None if content_type is None else "#"), entry.get("decoder")
        if not isinstance(filter, str) or not isinstance(decoder, str):
            raise PipelineError(f"entry {number} of pipeline.decoder lacks a filter or a decoder: {_HINT}")
        is_type = isinstance(content_type, str) and _CONTENT_TYPE.fullmatch(content_type) is not None
        if content_type is not None and not is_type:
            raise PipelineError(
                f"entry {number} of pipeline.decoder: {content_type!r} is not a content type; write it without "
                'parameters, as "text/csv"'
            )
        if not _is_filter(filter):
            raise PipelineError(
                f"entry {number} of pipeline.decoder: {filter!r} is not a filter; use + for one level, * for some, and "
                "# at the end for all that remain"
            )
        options = {name: value for name, value in entry.items() if name not in _SELECTION}
        rules.append(DecoderRule(filter, decoder, options, content_type))
    return tuple(rules)


def _is_filter(text: str) -> bool:
    levels = text.split("/")
    wrong = [one for one in levels if len(one) > 1 and ("#" in one or "+" in one)]
    return bool(text) and not wrong and "#" not in levels[:-1]


# -- retention --------------------------------------------------------------------------------------------------------


def retention_of(content: dict[str, Any], text: str) -> dict[str, timedelta]:
    """Return for how long tables keep their rows, by name. `text` is the TOML, for the lines of errors.

    A key is a table, such as "silver.readings", "silver/readings" or "readings", or a layer, such as "silver", for
    its tables that no other key names. Raise PipelineError if a key or a duration is invalid.
    """
    section = content.get(SECTION, {})
    found = section.get(RETENTION, {}) if isinstance(section, dict) else {}
    if not isinstance(found, dict):
        raise PipelineError(f"{_line(text, RETENTION)}pipeline.retention is not a table: write [pipeline.retention]")
    names = _expiring() if found else {}
    known = {one.partition(".")[0] for one in names}
    layers: dict[str, timedelta] = {}
    tables: dict[str, timedelta] = {}
    for key, value in _flat(found):
        at = _line(text, key)
        name = key.replace("/", ".")
        keep = _duration(value, at, key)
        if name in known:
            layers[name] = keep
            continue
        named = [one for one in names if name in (one, one.partition(".")[2], one.replace(".", "_"))]
        if not named:
            raise PipelineError(f"{at}{_unknown(key, name, names)}")
        if named[0] in tables:
            raise PipelineError(f"{at}the retention of {named[0]} is given twice: remove one")
        tables[named[0]] = keep
    by_layer = {one: layers[one.partition(".")[0]] for one in names if one.partition(".")[0] in layers}
    return {names[one]: keep for one, keep in (by_layer | tables).items()}


def _expiring() -> dict[str, str]:
    """Return the names of the tables whose rows can expire, with a dot and as they are in the lake."""
    from godwit.pipeline.datasets.catalog import ALL  # late: it imports Spark, which `decode` does not need

    return {spec.name.replace("/", "."): spec.name for spec in ALL if spec.expires_by is not None}


def _flat(section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values. Without quotes, `silver.readings` is a table in a table."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", one) for inner, one in value.items())
        else:
            yield key, value


def _unknown(key: str, name: str, known: Iterable[str]) -> str:
    if name in ("definitions", "silver.definitions", "silver_definitions"):
        return f"pipeline.retention.{key}: definitions do not expire, because later messages need them; remove the line"
    names = [*dict.fromkeys(one.partition(".")[0] for one in known), *known]
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"pipeline.retention.{key} is not a table or a layer: {hint}choose from {', '.join(names)}"


def _duration(value: object, at: str, key: str) -> timedelta:
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    hours = 0 if found is None else int(found[1]) * _HOURS[found[2]]
    if not 0 < hours <= MAX_RETENTION_HOURS:
        reason = "is not a duration" if found is None else "is out of range"
        raise PipelineError(
            f"{at}pipeline.retention.{key} = {value!r} {reason}: write a number and h, d, w or y (365 days), "
            'from "1h" to "1000y", such as "90d"'
        )
    return timedelta(hours=hours)


def _line(text: str, key: str) -> str:
    """Return "line N: " for a key of the retention, for its section if the key is not found, or "" for neither."""
    section = tail = 0
    is_inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            is_inside = _bare(header[1]).startswith(f"{SECTION}.{RETENTION}")
            section = section or (number if is_inside else 0)
        names, equals, _ = line.partition("=")
        name = _bare(names).removeprefix(f"{SECTION}.").removeprefix(f"{RETENTION}.")
        if equals and (is_inside or RETENTION in names):
            if name == _bare(key):
                return f"line {number}: "
            if _bare(key).endswith(f".{name}"):  # in a section [pipeline.retention.silver]
                tail = tail or number
    return f"line {tail or section}: " if tail or section else ""


def _bare(key: str) -> str:
    return re.sub(r"[\s\"']", "", key)
