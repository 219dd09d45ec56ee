"""Errors of a configuration file: the line and the key, what is wrong, and what to do.

msgspec reports the path of an invalid value (`$.access.client[0].name`). The text is made from that path, the value and
the type that the structs have there. The line is found by a scan of the TOML text for its keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
import msgspec.inspect as types

from godwit.broker.topics import shown
from godwit.errors import ConfigurationError

KeyPath: TypeAlias = tuple[str | int, ...]
"""Where a value is: keys of tables, and indices of arrays of tables."""

_PATH: Final = re.compile(r" - at `\$([\w.\[\]]*)`$")
_STEP: Final = re.compile(r"(\w+)|\[(\d+)\]")
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_HEADER: Final = re.compile(r"\s*(\[\[?)([^\[\]]+)\]")
_KEY: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_MULTILINE: Final = re.compile(r"\"\"\"|'''")
_TOML_TYPES: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    list: "a list",
    dict: "a table",
}


def label(path: KeyPath) -> str:
    """Return how error texts name a key: `limits.clients`, `access.rule number 2: allow`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text = f"{text} number {step + 1}"
        else:
            shown_step = step if step.isidentifier() else shown(step)
            text = f"{text}: {shown_step}" if " " in text else f"{text}.{shown_step}" if text else shown_step
    return text


class ConfigurationSource:
    """The text of a configuration file, its values, and the struct into which they are converted."""

    def __init__(self, text: str, values: dict[str, Any], struct: type[msgspec.Struct]) -> None:
        self._text = text
        self._values = values
        self._struct = struct

    def error(self, path: KeyPath, text: str) -> ConfigurationError:
        """Return an error with the line of a key."""
        line = self.line(path)
        return ConfigurationError(text if line is None else f"line {line}: {text}")

    def value(self, path: KeyPath) -> Any:
        """Return the value of a key, as it is in the file; None if it is missing."""
        found: Any = self._values
        for step in path:
            try:
                found = found[step]
            except (KeyError, IndexError, TypeError):
                return None
        return found

    def line(self, path: KeyPath) -> int | None:
        """Return the line of a key or, if it has none, of the table around it; None if that is unknown too."""
        lines = dict(reversed(list(_key_lines(self._text))))  # the first line of each key
        for length in range(len(path), 0, -1):
            if path[:length] in lines:
                return lines[path[:length]]
        return None

    def conversion_error(self, error: Exception) -> ConfigurationError:
        """Return the error of msgspec in the words of the file."""
        message = str(error)
        match = _PATH.search(message)
        path: KeyPath = ()
        if match is not None:
            path = tuple(key if key else int(index) for key, index in _STEP.findall(match[1]))
        if message.startswith("Object contains unknown field"):
            return self._unknown_key(path)
        if missing := _MISSING.match(message):
            key = (*path, missing[1])
            return self.error(key, f"{label(key)} is missing: it must be {_expected(self._type_at(key))}")
        if path and isinstance(path[-1], int) and not isinstance(self._type_at(path), types.StructType):
            return self._wrong_item(path[:-1], path)
        return self._wrong_value(path, path)

    def _unknown_key(self, path: KeyPath) -> ConfigurationError:
        struct = self._type_at(path)
        known = [each.encode_name for each in struct.fields] if isinstance(struct, types.StructType) else []
        key = next(key for key in self.value(path) if key not in known)
        near = get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return self.error((*path, key), f"{label((*path, key))} is not a known key; {hint}")

    def _wrong_item(self, list_path: KeyPath, path: KeyPath) -> ConfigurationError:
        if isinstance(self.value(path), str):
            return self._wrong_value(list_path, path)
        text = f"{label(list_path)} contains {_toml_type(self.value(path))}"
        return self.error(list_path, f'{text}: it must be a list of texts, as in ["one", "two"]')

    def _wrong_value(self, named: KeyPath, path: KeyPath) -> ConfigurationError:
        value, wanted = self.value(path), self._type_at(path)
        name = label(named)
        if isinstance(wanted, types.LiteralType) and isinstance(value, str):
            words = self._choices(named)
            near = get_close_matches(value, words, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}? " if near else ""
            return self.error(named, f"{name} is {shown(value)}: {hint}choose from {', '.join(words)}")
        if isinstance(wanted, types.ListType) and isinstance(wanted.item_type, types.StructType):
            return self.error(named, f"{name} is {_toml_type(value)}: begin each with a line [[{name}]]")
        if isinstance(wanted, types.StructType) and named and isinstance(named[-1], int):
            outer = named[:-1]
            return self.error(outer, f"{label(outer)} is a list: begin each with a line [[{label(outer)}]]")
        return self.error(named, f"{name} is {_toml_type(value)}: it must be {_expected(wanted)}")

    def _choices(self, path: KeyPath) -> list[str]:
        """Return the words that a key allows, in the order of their declaration, which `msgspec.inspect` sorts."""
        struct = self._type_at(path[:-1])
        assert isinstance(struct, types.StructType)
        name = next(each.name for each in struct.fields if each.encode_name == path[-1])
        annotation = get_type_hints(struct.cls)[name]
        while get_origin(annotation) is not Literal:
            annotation = get_args(annotation)[0]
        return list(get_args(annotation))

    def _type_at(self, path: KeyPath) -> types.Type:
        found: types.Type = types.type_info(self._struct)
        for step in path:
            if isinstance(found, types.StructType):
                found = next(each.type for each in found.fields if each.encode_name == step)
            elif isinstance(found, types.ListType):
                found = found.item_type
            if isinstance(found, types.UnionType):
                found = found.types[0]
        return found


def _expected(wanted: types.Type) -> str:
    names: dict[type[types.Type], str] = {
        types.BoolType: "true or false",
        types.IntType: "a whole number",
        types.FloatType: "a number",
        types.StrType: "text in quotes",
        types.LiteralType: "text in quotes",
        types.ListType: "a list",
        types.StructType: "a table",
    }
    return names[type(wanted)]


def _toml_type(value: object) -> str:
    return _TOML_TYPES.get(type(value), "a date or a time")


def _key_lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Yield the path and the line of each table and key of a TOML text. Keys in inline tables are not found."""
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    is_in_text = False
    for number, line in enumerate(text.split("\n"), 1):
        if not is_in_text:
            if header := _HEADER.match(line):
                table = _path_of(header[2], counts)
                if header[1] == "[[":
                    counts[table] = counts.get(table, -1) + 1
                    yield table, number
                    table = (*table, counts[table])
                yield table, number
            elif key := _KEY.match(line):
                path = (*table, *_path_of(key[1], {}))
                for length in range(len(table) + 1, len(path) + 1):
                    yield path[:length], number
        if len(_MULTILINE.findall(line)) % 2:
            is_in_text = not is_in_text


def _path_of(dotted: str, counts: dict[KeyPath, int]) -> KeyPath:
    """Return a dotted key as a path. The names of arrays of tables are followed by the index of their last table."""
    path: KeyPath = ()
    steps = [step.strip().strip("\"'") for step in dotted.split(".")]
    for step in steps:
        if path in counts:
            path = (*path, counts[path])
        path = (*path, step)
    return path
