"""The extension of a batch: a small typed map for optional attributes of its messages.

An extension is a CBOR map (RFC 8949) from key numbers to values. Each known key has one type; the values of unknown
keys are plain CBOR and are carried unchanged, so that a newer publisher and a newer subscriber can use a key that the
broker between them does not know. An extension without bytes is an empty map. Version 0.5 wrote the text "file" for
key 1, which is still read.

A broker refuses a batch whose extension is not valid (see check_properties), so that every subscriber can rely on it.

Keys 0 and 2 to 6 are the properties of the messages. EXPIRY is always the first key and always has 8 bytes, so that it
is found and rewritten without decoding the map:

    head of a map of 1 to 23 fields u8 | 0x00 | 0x1b | lifetime u64 | the other fields

The lifetime is in microseconds from the time at which the broker received the batch. In a routed batch it is the time
that remained when the broker sent it.

ORIGIN is always the last key, and always has 24 bytes: the id of a log, and the offset of the first message of the
batch in it. A hub adds it to the messages of a bridge.

    0x07 | 0x58 | 0x18 | log id, 16 bytes | offset u64
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import cbor2
import msgspec

from godwit.errors import DecodeError
from godwit.limits import (
    MAX_CONTENT_TYPE_BYTES,
    MAX_CORRELATION_BYTES,
    MAX_EXTENSION_BYTES,
    MAX_EXTENSION_FIELDS,
    MAX_EXTENSION_ITEMS,
    MAX_HEADER_NAME_BYTES,
    MAX_HEADER_VALUE_BYTES,
    MAX_HEADERS,
    MAX_LIFETIME_US,
    MAX_TOPIC_BYTES,
)
from godwit.wire import cbor
from godwit.wire.batch import HAS_EXTENSION, Entry, extension_at, extension_of, with_extension

T = TypeVar("T")
Value: TypeAlias = bool | int | float | str | bytes | list[Any] | dict[str, Any] | None

MAX_KEY: Final = 0xFFFF


class ExtensionKey(IntEnum):
    """The known keys. Keys below 256 belong to this protocol; those from 256 on are for experiments."""

    EXPIRY = 0
    """The lifetime in microseconds: see the layout above."""
    FILE = 1
    """The header of a chunk of a file: see "Files" in docs/PROTOCOL.md."""
    HEADERS = 2
    """A list of texts: name, value, name, value ..."""
    CONTENT_TYPE = 3
    REPLY_TOPIC = 4
    """The topic for replies to a request."""
    CORRELATION = 5
    """The bytes by which a requester recognises the reply."""
    PAYLOAD_FORMAT = 6
    """0: bytes. 1: UTF-8. For MQTT."""
    ORIGIN = 7
    """Where a message that came by a bridge was published first: see the layout above. Only brokers write it."""


TYPES: Final[dict[int, Any]] = {ExtensionKey.FILE: dict[str, Any]}
"""The type of the value of each known key that is not a property."""
_OLD_NAMES: Final = {"file": int(ExtensionKey.FILE)}

_MAP: Final = 0xA0
"""The head of a CBOR map of up to 23 fields is this plus their number."""
_MAX_SHORT_FIELDS: Final = 23
_U64: Final = 0x1B
"""The first byte of a CBOR unsigned integer of 8 bytes."""
_LIFETIME_AT: Final = 3
_LIFETIME_END: Final = 11
_LIFETIME_BYTES: Final = _LIFETIME_END - _LIFETIME_AT
_LENGTH_BYTES: Final = 4
"""The length of the extension, before it in the rest of an entry."""
_MAX_CACHED_BYTES: Final = 512
"""Longer extensions are not cached, so that the caches are bounded in bytes, too."""
_ORIGIN_HEAD: Final = bytes((ExtensionKey.ORIGIN, 0x58, 24))
_ORIGIN_BYTES: Final = len(_ORIGIN_HEAD) + 24
_ORIGIN_LOG_BYTES: Final = 16
_LAST_OFFSET: Final = 2**63 - 1
_CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f]")


class Properties(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of the messages of a batch."""

    headers: tuple[tuple[str, str], ...] = ()
    """Names and values, in order. A name may occur more than once."""
    content_type: str | None = None
    reply_topic: str | None = None
    correlation: bytes | None = None
    payload_format: int | None = None
    lifetime_us: int | None = None
    """The time after which the messages expire, counted from their arrival at the broker."""
    origin: tuple[bytes, int] | None = None
    """The log in which the messages were stored first, and the offset of the first of them there."""


NO_PROPERTIES: Final = Properties()


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


# -- properties -------------------------------------------------------------------------------------------------------


def encode_properties(properties: Properties) -> bytes:
    """Return the extension with these properties; empty if there are none. Equal properties have equal bytes.

    Raises ValueError if a property is out of its range, or the extension exceeds its limits.
    """
    fields: dict[int, Value] = {}
    if properties.headers:
        fields[ExtensionKey.HEADERS] = [text for pair in properties.headers for text in pair]
    scalars: dict[int, Value] = {
        ExtensionKey.CONTENT_TYPE: properties.content_type,
        ExtensionKey.REPLY_TOPIC: properties.reply_topic,
        ExtensionKey.CORRELATION: properties.correlation,
        ExtensionKey.PAYLOAD_FORMAT: properties.payload_format,
    }
    fields.update((key, value) for key, value in scalars.items() if value is not None)
    lifetime_us = properties.lifetime_us
    if not fields and lifetime_us is None:
        return b""
    parts = [bytes((_MAP + len(fields) + (lifetime_us is not None),))]
    try:
        if lifetime_us is not None:
            parts.append(bytes((ExtensionKey.EXPIRY, _U64)) + _pack_lifetime(lifetime_us))
        for key, value in fields.items():
            _PROPERTIES[key](value)
            parts.append(bytes((key,)) + cbor2.dumps(value))
    except DecodeError as error:
        raise ValueError(str(error).removeprefix("extension: ")) from None
    data = b"".join(parts)
    if len(data) > MAX_EXTENSION_BYTES:
        raise ValueError(
            f"headers and other properties of a message have {len(data)} bytes together: "
            f"at most {MAX_EXTENSION_BYTES} are allowed"
        )
    return data


def check_properties(extension: bytes) -> Properties:
    """Return the properties of an extension that a publisher has sent.

    Raises DecodeError as decode_extension, or if a property is out of its range or EXPIRY does not have its layout.
    """
    return _check_cached(extension) if len(extension) <= _MAX_CACHED_BYTES else _check(extension)


def decode_properties(extension: bytes | None) -> Properties:
    """Return the properties of an extension that was stored or received. Malformed ones are absent.

    Brokers before version 0.9 stored extensions without checking the properties.
    """
    if not extension or len(extension) > MAX_EXTENSION_BYTES:
        return NO_PROPERTIES
    return _decode_cached(extension)


def lifetime_of(extension: bytes) -> int | None:
    """Return the lifetime in microseconds, or None if the messages do not expire."""
    if (
        len(extension) < _LIFETIME_END
        or extension[1] != ExtensionKey.EXPIRY
        or extension[2] != _U64
        or not _MAP < extension[0] <= _MAP + _MAX_SHORT_FIELDS
    ):
        return None
    lifetime_us = int.from_bytes(extension[_LIFETIME_AT:_LIFETIME_END], "big")
    return lifetime_us if lifetime_us <= MAX_LIFETIME_US else None


def expiry_of(entry: Entry) -> int | None:
    """Return the time in microseconds since the epoch from which an entry is expired, by the broker's clock; None if
    it does not expire."""
    if not entry.flags & HAS_EXTENSION:
        return None
    rest = entry.rest
    size_bytes = int.from_bytes(rest[:_LENGTH_BYTES], "big")
    if not _LIFETIME_END <= size_bytes <= MAX_EXTENSION_BYTES:
        return None
    lifetime_us = lifetime_of(rest[_LENGTH_BYTES : _LENGTH_BYTES + _LIFETIME_END])
    return None if lifetime_us is None else entry.received_us + lifetime_us


def with_lifetime(extension: bytes, lifetime_us: int) -> bytes:
    """Return an extension that has EXPIRY with another lifetime.

    Raises ValueError if it has no EXPIRY, or the lifetime is out of range.
    """
    if lifetime_of(extension) is None:
        raise ValueError("the extension has no EXPIRY")
    try:
        return extension[:_LIFETIME_AT] + _pack_lifetime(lifetime_us) + extension[_LIFETIME_END:]
    except DecodeError as error:
        raise ValueError(str(error).removeprefix("extension: ")) from None


def limit_lifetime(record: bytes, remaining_s: float) -> bytes:
    """Return a publisher's record of one batch with EXPIRY, with at most this lifetime in it, and at least 1.

    The broker counts the lifetime from the arrival of the batch, so a publisher subtracts the time in its queue.
    """
    at = extension_at(record) + _LIFETIME_AT
    lifetime_us = int.from_bytes(record[at : at + _LIFETIME_BYTES], "big")
    left_us = min(max(int(remaining_s * 1_000_000), 1), lifetime_us)
    return record[:at] + left_us.to_bytes(_LIFETIME_BYTES, "big") + record[at + _LIFETIME_BYTES :]


def shorten_lifetime(entry: Entry, lifetime_us: int) -> Entry:
    """Return an entry that has EXPIRY with another lifetime in its extension."""
    rest = entry.rest
    at = _LENGTH_BYTES + _LIFETIME_AT
    end = _LENGTH_BYTES + _LIFETIME_END
    return msgspec.structs.replace(entry, rest=rest[:at] + _pack_lifetime(lifetime_us) + rest[end:])


# -- the origin of messages that came by a bridge ---------------------------------------------------------------------


def split_origin(extension: bytes) -> tuple[bytes, tuple[bytes, int] | None]:
    """Return an extension without ORIGIN, and the log and the offset in it; None if it has none."""
    if extension[-_ORIGIN_BYTES : len(_ORIGIN_HEAD) - _ORIGIN_BYTES] != _ORIGIN_HEAD or not _is_short_map(extension):
        return extension, None
    # The same bytes may be the end of another value, so the whole map is decoded.
    origin = decode_properties(extension).origin
    if origin is None:
        return extension, None
    fields = extension[0] - _MAP - 1
    return (bytes((_MAP + fields,)) + extension[1:-_ORIGIN_BYTES] if fields else b""), origin


def add_origin(extension: bytes, log: bytes, offset: int) -> bytes | None:
    """Return an extension without ORIGIN with it. None if it has no room: too many keys or bytes."""
    field = _ORIGIN_HEAD + log + offset.to_bytes(8, "big")
    if not extension:
        return bytes((_MAP + 1,)) + field
    if not _is_short_map(extension) or extension[0] == _MAP + _MAX_SHORT_FIELDS:
        return None
    if len(extension) + _ORIGIN_BYTES > MAX_EXTENSION_BYTES:
        return None
    return bytes((extension[0] + 1,)) + extension[1:] + field


def shift_origin(entry: Entry, count: int) -> Entry:
    """Return an entry whose first `count` messages were cut off, with the origin of the first that is left."""
    extension = extension_of(entry)
    if extension is None:
        return entry
    plain, origin = split_origin(extension)
    if origin is None:
        return entry
    shifted = add_origin(plain, origin[0], origin[1] + count)
    return entry if shifted is None else with_extension(entry, shifted)


def _is_short_map(extension: bytes) -> bool:
    return _MAP <= extension[0] <= _MAP + _MAX_SHORT_FIELDS


def _check(extension: bytes) -> Properties:
    fields = decode_extension(extension)
    if ExtensionKey.ORIGIN in fields:
        raise DecodeError("extension", "ORIGIN is written by brokers only")
    values = {_NAMES[key]: read(fields[key]) for key, read in _PROPERTIES.items() if key in fields}
    if ExtensionKey.EXPIRY in fields:
        lifetime_us = lifetime_of(extension)
        if lifetime_us is None:
            raise DecodeError(
                "extension", f"EXPIRY must be the first key, with 8 bytes, and at most {MAX_LIFETIME_US} microseconds"
            )
        values["lifetime_us"] = lifetime_us
    return Properties(**values) if values else NO_PROPERTIES


def _decode(extension: bytes) -> Properties:
    values: dict[str, Any] = {"lifetime_us": lifetime_of(extension)}
    try:
        fields = cbor.load(extension, max_items=MAX_EXTENSION_ITEMS, text_keys=False)
    except DecodeError:
        fields = None
    if isinstance(fields, dict):
        for key, value in fields.items():
            if type(key) is int and key in _PROPERTIES:
                try:
                    values[_NAMES[key]] = _PROPERTIES[key](value)
                except DecodeError:
                    continue
    return Properties(**values)


_check_cached = lru_cache(maxsize=4096)(_check)
_decode_cached = lru_cache(maxsize=1024)(_decode)


def _pack_lifetime(lifetime_us: int) -> bytes:
    if type(lifetime_us) is not int or not 0 <= lifetime_us <= MAX_LIFETIME_US:
        raise DecodeError("extension", f"a lifetime of {lifetime_us} us: it is a number from 0 to {MAX_LIFETIME_US}")
    return lifetime_us.to_bytes(_LIFETIME_BYTES, "big")


def _read_headers(value: Value) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not value or len(value) % 2:
        raise DecodeError("extension", "headers: not a list of names and values")
    if len(value) > 2 * MAX_HEADERS:
        raise DecodeError("extension", f"{len(value) // 2} headers: at most {MAX_HEADERS} are allowed")
    for name in value[::2]:
        if "\0" in _read_text(name, "the name of a header", 1, MAX_HEADER_NAME_BYTES):
            raise DecodeError("extension", "the name of a header contains U+0000")
    for text in value[1::2]:
        if "\0" in _read_text(text, "the value of a header", 0, MAX_HEADER_VALUE_BYTES):
            raise DecodeError("extension", "the value of a header contains U+0000")
    return tuple(zip(value[::2], value[1::2], strict=True))


def _read_content_type(value: Value) -> str:
    text = _read_text(value, "the content type", 1, MAX_CONTENT_TYPE_BYTES)
    if _CONTROL_CHARACTERS.search(text):
        raise DecodeError("extension", "the content type contains a control character")
    return text


def _read_reply_topic(value: Value) -> str:
    return _read_text(value, "the reply topic", 1, MAX_TOPIC_BYTES)


def _read_correlation(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise DecodeError("extension", "the correlation data is not a byte string")
    if len(value) > MAX_CORRELATION_BYTES:
        raise DecodeError(
            "extension", f"the correlation data has {len(value)} bytes: at most {MAX_CORRELATION_BYTES} are allowed"
        )
    return value


def _read_payload_format(value: Value) -> int:
    if type(value) is not int or value not in (0, 1):
        raise DecodeError("extension", "the payload format is not 0 (bytes) or 1 (UTF-8)")
    return value


def _read_origin(value: Value) -> tuple[bytes, int]:
    if not isinstance(value, bytes) or len(value) != _ORIGIN_BYTES - len(_ORIGIN_HEAD):
        raise DecodeError("extension", "the origin does not have 24 bytes")
    offset = int.from_bytes(value[_ORIGIN_LOG_BYTES:], "big")
    if offset > _LAST_OFFSET:
        raise DecodeError("extension", f"the origin has the offset {offset}: at most {_LAST_OFFSET} is allowed")
    return value[:_ORIGIN_LOG_BYTES], offset


def _read_text(value: Value, name: str, min_bytes: int, max_bytes: int) -> str:
    if not isinstance(value, str):
        raise DecodeError("extension", f"{name} is not a text")
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError:
        raise DecodeError("extension", f"{name} is not valid Unicode (half of a surrogate pair)") from None
    if not min_bytes <= size_bytes <= max_bytes:
        raise DecodeError("extension", f"{name} has {size_bytes} bytes: {min_bytes} to {max_bytes} are allowed")
    return value


_PROPERTIES: Final[dict[int, Callable[[Value], Any]]] = {
    ExtensionKey.HEADERS: _read_headers,
    ExtensionKey.CONTENT_TYPE: _read_content_type,
    ExtensionKey.REPLY_TOPIC: _read_reply_topic,
    ExtensionKey.CORRELATION: _read_correlation,
    ExtensionKey.PAYLOAD_FORMAT: _read_payload_format,
    ExtensionKey.ORIGIN: _read_origin,
}
"""Functions that return the value of a property. They raise DecodeError if it is malformed."""
_NAMES: Final = {int(key): key.name.lower() for key in ExtensionKey}
"""The fields of Properties by key."""
