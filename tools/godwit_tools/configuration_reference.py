"""Make the reference of the broker's configuration: keys, types, defaults and bounds from the code.

The meaning of a key is its comment in examples/broker.toml.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from godwit.broker.settings import BOUNDS
from godwit.server.configuration import ConfigurationFile

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "broker.toml"
HEAD: Final = """# Configuration of a broker

All keys of the file that `godwit broker --config FILE` reads, made from the code. `godwit config check FILE` checks a
file, and a running broker reads it again on SIGHUP. Unknown keys are refused.
[examples/broker.toml](../examples/broker.toml.md) is a file with every key.
"""
_KEY: Final = re.compile(r"""^(?:# )?(\w+) = (?:"[^"]*"|[^"#])*(?:# ?(.*))?$""")
_TABLE: Final = re.compile(r"^(?:# )?\[+([\w.]+)\]+$")
_WITHOUT_COMMENT: Final = {
    "topics.rule.filter": "topics that the rule is for; the first filter that matches a topic decides",
    "topics.rule.policy": "which operation creates these topics; default: that of `[topics]`",
    "topics.rule.log": "whether messages with QoS 0 of these topics are logged",
    "topics.policy": (
        "which operation creates a topic. `open`: publishing or subscribing to it; `publishers`: publishing to it, and "
        "subscribing to an unknown topic is refused; `explicit`: only `godwit topics create` or the list `create`"
    ),
    "limits.topics": "existing topics",
    "limits.subscriptions_per_client": "subscriptions of one client",
    "access.client.name": "name of the client",
    "access.client.secret": "secret that proves the name; it is never sent",
    "access.rule.clients": "names of clients; `*` matches any characters, `?` one, and `*` alone is every client",
    "access.rule.allow": "rights of these clients",
    "access.rule.groups": "consumer groups that these clients may join if they may subscribe; `*` and `?` as in names",
    "access.rule.topics": "filters of topics; kinds of work for `submit` and `work`; none for `kick`",
    "log.max_age": "maximum age of messages: a number of seconds, or a text with s, m, h, d or w; default: no limit",
    "log.max_bytes": (
        "maximum size of the file: a number of bytes, or a text such as `10GiB`; the oldest messages are deleted, "
        "whatever their rule; default: no limit"
    ),
    "log.rule.filter": "topics that the rule is for; the first filter that matches a topic decides",
    "log.rule.max_age": "maximum age of their messages",
    "log.rule.max_bytes": "maximum size of their messages",
    "archive.certificate": "certificate for TLS, a file in PEM",
    "archive.key": "its private key, a file in PEM",
    "bridge.secret": "secret that proves the name at the hub; it is never sent",
}
"""Meanings of keys that the example explains in another place."""
_NAMES: Final = {str: "text", int: "integer", float: "number", bool: "true or false"}


def page() -> str:
    """Return the page, in Markdown."""
    return "\n".join([HEAD, *_section(ConfigurationFile, (), meanings(EXAMPLE.read_text(encoding="utf-8")))])


def key_names() -> set[str]:
    """Return all keys with their tables: `log.rule.filter`."""
    return {".".join(path) for path, _ in _fields(ConfigurationFile, ())}


def meanings(text: str) -> dict[str, str]:
    """Return the comment of each key of a file: the one behind it, else the lines above it."""
    found: dict[str, str] = {}
    table, above = "", ""
    for line in text.splitlines():
        if match := _TABLE.match(line):
            table = match[1]
            found.setdefault(table, above)
            above = ""
        elif match := _KEY.match(line):
            key = f"{table}.{match[1]}".lstrip(".")
            parts = [part for part in (above, match[2] or "") if part]
            found.setdefault(key, "; ".join(part if part.endswith("...") else part.removesuffix(".") for part in parts))
            above = ""
        elif line.startswith("#"):
            above = f"{above} {line.lstrip('# ')}".strip()
        else:
            above = ""
    return found | _WITHOUT_COMMENT


def _fields(struct: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field in msgspec.structs.fields(struct):
        inner = _struct(field.type)
        if inner is None:
            yield (*path, field.encode_name), field
        else:
            yield from _fields(inner, (*path, field.encode_name))


def _section(struct: Any, path: tuple[str, ...], texts: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a table of the file, then those of the tables in it."""
    inner = []
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        key = (*path, field.encode_name)
        if _struct(field.type) is None:
            meaning = texts.get(".".join(key), "").replace("|", "\\|")
            rows.append(f"| `{field.encode_name}` | {_type(field)} | {_default(field)} | {_marked(meaning)} |")
        else:
            inner.append((key, field))
    if path:
        name = ".".join(path)
        yield f"## {name}\n"
    if len(rows) > 2:
        yield "\n".join([*rows, ""])
    for key, field in inner:
        yield from _section(_struct(field.type), key, texts)


def _struct(annotation: Any) -> Any:
    """Return the struct of a table or of a list of tables, or None for a plain value."""
    for one in (annotation, *typing.get_args(annotation)):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return one
    return None


def _type(field: Any) -> str:
    low_high = BOUNDS.get(field.name)
    bounds = f", {_number(low_high[0])} to {_number(low_high[1])}" if low_high else ""
    return f"{_type_name(field.type)}{bounds}"


def _type_name(annotation: Any) -> str:
    parts = [one for one in typing.get_args(annotation) if one is not types.NoneType]
    origin = typing.get_origin(annotation)
    if origin is list:
        return f"list of {_type_name(parts[0])}s" if parts[0] is str else f"list of {_type_name(parts[0])}"
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in parts)
    if origin is None:
        return _NAMES[annotation]
    return " or ".join(dict.fromkeys(_type_name(one) for one in parts))


def _default(field: Any) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    elif field.default is not msgspec.NODEFAULT:
        value = field.default
    else:
        return "required"
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return _number(value) if isinstance(value, int | float) else f"`{value}`".replace("'", '"')


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"


def _marked(text: str) -> str:
    """Show signs of Markdown as they are, except in code spans."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_<#])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)
