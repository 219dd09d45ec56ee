"""One table of a TOML file: values of the wanted type, or an error that names the key.

No error text repeats a value of the wrong type: it may be a secret in the wrong place.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final

from godwit.broker.topics import shown
from godwit.errors import ConfigurationError

_TYPES: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    list: "a list",
    dict: "a table",
}


class Table:
    """`name` is how error texts call it: `limits`, `access.rule number 2`; empty for the whole file."""

    def __init__(self, name: str, values: dict[str, Any]) -> None:
        self._name = name
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def label(self, key: str = "") -> str:
        """How an error text calls this table or a key of it."""
        if not self._name or not key:
            return self._name or key
        return f"{self._name}: {key}" if " " in self._name else f"{self._name}.{key}"

    def expect(self, *known: str) -> None:
        """ConfigurationError if there is a key that is not one of these."""
        for key in self._values:
            if key not in known:
                near = get_close_matches(key, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
                name = self.label(key if key.isidentifier() else shown(key))
                raise ConfigurationError(f"{name} is not a known key; {hint}")

    def text(self, key: str, default: str | None = None) -> str:
        value: str = self._get(key, str, default)
        return value

    def is_text(self, key: str) -> bool:
        return isinstance(self._values.get(key), str)

    def flag(self, key: str, default: bool) -> bool:
        value: bool = self._get(key, bool, default)
        return value

    def number(self, key: str, *, fraction: bool = False) -> float:
        """A whole number, or with `fraction` any."""
        if fraction and type(self._values.get(key)) is int:
            return int(self._values[key])
        value: float = self._get(key, float if fraction else int, None)
        return value

    def texts(self, key: str, default: list[str] | None = None) -> list[str]:
        values: list[Any] = self._get(key, list, default)
        for value in values:
            if not isinstance(value, str):
                raise ConfigurationError(
                    f'{self.label(key)} contains {_named(value)}: it must be a list of texts, as in ["one", "two"]'
                )
        return list(values)

    def choice(self, key: str, known: Sequence[str], default: str | None = None) -> str:
        """One of the known words."""
        return self._known(key, self.text(key, default), known)

    def choices(self, key: str, known: Sequence[str]) -> list[str]:
        """A list of known words, at least one."""
        words = [self._known(key, word, known) for word in self.texts(key)]
        if not words:
            raise ConfigurationError(f"{self.label(key)} is empty: choose from {', '.join(known)}")
        return words

    def table(self, key: str) -> Table:
        """A table of its own, empty if it is not there."""
        return Table(self.label(key), self._get(key, dict, {}))

    def tables(self, key: str) -> list[Table]:
        """A list of tables, [[key]]."""
        name = self.label(key)
        values = self._values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise ConfigurationError(f"{name} is {_named(values)}: begin each with a line [[{name}]]")
        return [Table(f"{name} number {number}", value) for number, value in enumerate(values, 1)]

    def _get(self, key: str, kind: type, default: Any) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise ConfigurationError(f"{self.label(key)} is missing: it must be {_TYPES[kind]}")
        if type(value) is not kind:  # exactly: True is no number
            raise ConfigurationError(f"{self.label(key)} is {_named(value)}: it must be {_TYPES[kind]}")
        return value

    def _known(self, key: str, word: str, known: Sequence[str]) -> str:
        if word not in known:
            near = get_close_matches(word, known, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigurationError(f"{self.label(key)} is {shown(word)}: {hint}choose from {', '.join(known)}")
        return word


def _named(value: object) -> str:
    return _TYPES.get(type(value), "a date or a time")
