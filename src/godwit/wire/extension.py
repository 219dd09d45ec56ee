"""The extension of a batch: a small typed map for optional attributes of its messages.

An extension is a CBOR map (RFC 8949) from key numbers to values. Each known key has one type; the values of unknown
keys are plain CBOR and are carried unchanged, so that a newer publisher and a newer subscriber can use a key that the
broker between them does not know. An extension without bytes is an empty map. Version 0.5 wrote the text "file" for
key 1, which is still read.

A broker refuses a batch whose extension is not valid (see decode_extension), so that every subscriber can rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, TypeAlias, TypeVar

import cbor2
import msgspec

from godwit.errors import DecodeError
from godwit.limits import MAX_EXTENSION_BYTES, MAX_EXTENSION_FIELDS, MAX_EXTENSION_ITEMS
from godwit.wire import cbor

T = TypeVar("T")
Value: TypeAlias = bool | int | float | str | bytes | list[Any] | dict[str, Any] | None

MAX_KEY: Final = 0xFFFF


class ExtensionKey(IntEnum):
    """The known keys. Keys below 256 belong to this protocol; those from 256 on are for experiments."""

    FILE = 1
    """The header of a chunk of a file: see "Files" in docs/PROTOCOL.md."""


TYPES: Final[dict[int, Any]] = {ExtensionKey.FILE: dict[str, Any]}
"""The type of the value of each known key."""
_OLD_NAMES: Final = {"file": int(ExtensionKey.FILE)}


def encode_extension(fields: Mapping[int, Value]) -> bytes:
    """Return the bytes of an extension, with its keys in ascending order.

    Raises ValueError if a key is out of range, a value has the wrong type, or the extension exceeds its limits.
    """
    data = cbor2.dumps({key: fields[key] for key in sorted(fields)})
    try:
        decode_extension(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return data


def decode_extension(data: bytes) -> dict[int, Value]:
    """Return the fields of an extension by key.

    Raises DecodeError if it is too long, has too many fields or values, is not a CBOR map, has a key that is not a
    number up to MAX_KEY, has a key twice, or has a value of the wrong type for a known key.
    """
    if not data:
        return {}
    if len(data) > MAX_EXTENSION_BYTES:
        raise DecodeError("extension", f"{len(data)} bytes: at most {MAX_EXTENSION_BYTES} are allowed")
    try:
        plain = cbor.load(data, max_items=MAX_EXTENSION_ITEMS, text_keys=False)
    except DecodeError as error:
        raise DecodeError("extension", str(error).removeprefix("control: ")) from None
    if not isinstance(plain, dict):
        raise DecodeError("extension", "not a map")
    if len(plain) > MAX_EXTENSION_FIELDS:
        raise DecodeError("extension", f"{len(plain)} fields: at most {MAX_EXTENSION_FIELDS} are allowed")
    fields: dict[int, Value] = {}
    for name, value in plain.items():
        key = _OLD_NAMES.get(name) if isinstance(name, str) else name
        if type(key) is not int or not 0 <= key <= MAX_KEY:
            raise DecodeError("extension", f"the key {str(name)[:64]!r}: a key is a number from 0 to {MAX_KEY}")
        if key in fields:
            raise DecodeError("extension", f"the key {key} occurs twice")
        fields[key] = value
        if key in TYPES:
            _convert(key, value, TYPES[key])
    return fields


def decode_field(data: bytes | None, key: int, kind: type[T]) -> T | None:
    """Return the value of one key as `kind`, or None if there is no extension or no such key.

    Raises DecodeError as decode_extension, or if the value is not a `kind`.
    """
    if data is None:
        return None
    value = decode_extension(data).get(key)
    return None if value is None else _convert(key, value, kind)


def _convert(key: int, value: Value, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise DecodeError("extension", f"the value of key {int(key)}: {str(error)[:200]}") from None
