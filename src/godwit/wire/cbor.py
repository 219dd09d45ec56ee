"""CBOR (RFC 8949) from outside into typed structs, or DecodeError.

Only plain data passes: maps with text keys, lists, text, bytes, numbers, booleans and null, of definite length and few
levels. CBOR's tags (dates, big numbers, regular expressions, shared references) are refused before they do any work.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, Final, NoReturn, TypeVar

import cbor2
import msgspec

from godwit.errors import DecodeError
from godwit.limits import MAX_CONTROL_DEPTH

T = TypeVar("T")

_MAX_DETAIL_CHARACTERS: Final = 200
"""The limit for input that is quoted in errors, so that a peer cannot fill the logs."""

_BYTES, _TEXT, _ARRAY, _MAP, _TAG = 2, 3, 4, 5, 6
"""Major types of RFC 8949, section 3.1."""


def _skip(first: int) -> int:
    """Return the length of a value that begins with this byte, without its parts; 0 if more bytes must be read."""
    major, number = first >> 5, first & 31
    if major in (_BYTES, _TEXT):
        return 1 + number if number < 24 else 0
    if major in (_ARRAY, _MAP):
        return 1 if number < 24 else 0
    if major == _TAG or number > 27:
        return 0
    return 1 if number < 24 else 1 + (1 << (number - 24))


def _inside(first: int) -> int:
    """Return how many values follow as parts of a short array or map that begins with this byte."""
    major, number = first >> 5, first & 31
    return number * {_ARRAY: 1, _MAP: 2}.get(major, 0)


_SKIP: Final = bytes(map(_skip, range(256)))
_INSIDE: Final = bytes(map(_inside, range(256)))

# Every tag that cbor2 would act on; all others reach the tag hook.
_BUILT_IN_TAGS: Final = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 43, 52, 54, 100, 256, 258, 260, 261, 1004,
                         43000, 55799)  # fmt: skip


def _refuse_tag(*_: object) -> NoReturn:
    raise DecodeError("control", "CBOR tags are not used")


_REFUSE: Final[Any] = dict.fromkeys(_BUILT_IN_TAGS, _refuse_tag)


def encode(message: msgspec.Struct) -> bytes:
    """Return a struct as a CBOR map, without fields that have their default value if the struct has omit_defaults."""
    return cbor2.dumps(msgspec.to_builtins(message, builtin_types=(bytes,)))


def decode(data: bytes, kind: type[T], *, max_items: int | None = None) -> T:
    """Return the struct that the bytes describe. Unknown fields are ignored. DecodeError as `load` and `convert`."""
    return convert(load(data, max_items=max_items), kind)


def load(data: bytes, *, max_items: int | None = None, text_keys: bool = True) -> Any:
    """Return the plain data that the bytes describe; DecodeError if they are anything else.

    `max_items` bounds the values in it, with keys and containers counted: what decoding costs goes with their number,
    and a byte can be one.
    """
    if max_items is not None and len(data) > max_items:
        _require_few(data, max_items)
    source = BytesIO(data)  # cbor2.loads would not tell whether something stands behind the value
    try:
        plain = cbor2.load(
            source,
            tag_hook=_refuse_tag,
            semantic_decoders=_REFUSE,
            max_depth=MAX_CONTROL_DEPTH,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=text_keys,
        )
    except (cbor2.CBORError, ValueError, OverflowError, MemoryError) as error:
        raise DecodeError("control", f"not CBOR: {error}"[:_MAX_DETAIL_CHARACTERS]) from None
    if source.tell() != len(data):
        raise DecodeError("control", f"{len(data) - source.tell()} bytes behind the value")
    return plain


def convert(plain: Any, kind: type[T]) -> T:
    """Return the struct that plain data describes; DecodeError if it is not one."""
    try:
        # With bytes as a built-in type, bytes must come as bytes: a text would be taken for Base64 otherwise.
        return msgspec.convert(plain, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise DecodeError("control", str(error)[:_MAX_DETAIL_CHARACTERS]) from None


def _require_few(data: bytes, max_items: int) -> None:
    """Raise DecodeError if there are more values than this.

    What is not CBOR, of indefinite length or a tag is left to the decoder, which refuses it when it comes there.
    """
    at = seen = 0
    size = len(data)
    announced = 1
    """Values that there must be, as far as the containers seen so far say."""
    while seen < announced <= max_items and at < size:
        first = data[at]
        seen += 1
        if skip := _SKIP[first]:
            at += skip
            announced += _INSIDE[first]
            continue
        major, number = first >> 5, first & 31
        at += 1
        if number >= 24:
            width = 1 << (number - 24)
            if width > 8 or major == _TAG:
                return
            number = int.from_bytes(data[at : at + width], "big")
            at += width
        if major in (_BYTES, _TEXT):
            at += number
        elif major == _ARRAY:
            announced += number
        elif major == _MAP:
            announced += 2 * number
        else:
            return
    if announced > max_items:
        raise DecodeError("control", f"more than {max_items} values in a record of {size} bytes")
