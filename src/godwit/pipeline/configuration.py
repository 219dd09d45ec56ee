"""The configuration of the pipeline: a TOML file, pipeline.toml in the lake unless another one is named.

    [[pipeline.decoder]]
    filter = "logger/#"
    decoder = "csv"
    columns = ["time", "temperature_F", "humidity"]

The options beside `filter` and `decoder` are those of the decoder: see docs/DECODERS.md.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from godwit.pipeline.decoders.selection import DecoderRule, decoder_set
from godwit.pipeline.errors import PipelineError

FILE: Final = "pipeline.toml"
SECTION: Final = "pipeline"
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
    if path is None:
        return ()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(f"cannot read the configuration {path}: {error.strerror}; check its path") from error
    except UnicodeDecodeError as error:
        raise PipelineError(f"the configuration {path} is not UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"the configuration {path} is not TOML: {error}") from error
    try:
        rules = rules_of(content)
        decoder_set(rules)
    except PipelineError as error:
        raise PipelineError(f"the configuration {path}: {error}") from error
    return rules


def rules_of(content: dict[str, Any]) -> tuple[DecoderRule, ...]:
    """Return the decoders of a parsed configuration. Raise PipelineError if an entry is invalid."""
    section = content.get(SECTION, {})
    entries = section.get("decoder", []) if isinstance(section, dict) else None
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise PipelineError(f"pipeline.decoder is not a list of tables: {_HINT}")
    rules = []
    for number, entry in enumerate(entries, 1):
        filter, decoder = entry.get("filter"), entry.get("decoder")
        if not isinstance(filter, str) or not isinstance(decoder, str):
            raise PipelineError(f"entry {number} of pipeline.decoder lacks a filter or a decoder: {_HINT}")
        if not _is_filter(filter):
            raise PipelineError(
                f"entry {number} of pipeline.decoder: {filter!r} is not a filter; use + for one level, * for some, and "
                "# at the end for all that remain"
            )
        options = {name: value for name, value in entry.items() if name not in ("filter", "decoder")}
        rules.append(DecoderRule(filter, decoder, options))
    return tuple(rules)


def _is_filter(text: str) -> bool:
    levels = text.split("/")
    wrong = [one for one in levels if len(one) > 1 and ("#" in one or "+" in one)]
    return bool(text) and not wrong and "#" not in levels[:-1]
