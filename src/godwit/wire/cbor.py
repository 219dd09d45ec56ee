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
"""Some errors quote what they found: nobody from outside makes our logs grow by kilobytes."""

# Every tag that cbor2 would act on; all others reach the tag hook.
_BUILT_IN_TAGS: Final = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 43, 52, 54, 100, 256, 258, 260, 261, 1004,
                         43000, 55799)  # fmt: skip


def _refuse_tag(*_: object) -> NoReturn:
    raise DecodeError("control", "CBOR tags are not used")


_REFUSE: Final[Any] = dict.fromkeys(_BUILT_IN_TAGS, _refuse_tag)


def encode(message: msgspec.Struct) -> bytes:
    """A struct as a CBOR map; fields that have their default value are left out if the struct says omit_defaults."""
    return cbor2.dumps(msgspec.to_builtins(message, builtin_types=(bytes,)))


def decode(data: bytes, kind: type[T]) -> T:
    """The struct that the bytes describe. Unknown fields are ignored."""
    source = BytesIO(data)  # cbor2.loads would not tell whether something stands behind the value
    try:
        plain = cbor2.load(
            source,
            tag_hook=_refuse_tag,
            semantic_decoders=_REFUSE,
            max_depth=MAX_CONTROL_DEPTH,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        )
    except (cbor2.CBORError, ValueError, OverflowError, MemoryError) as error:
        raise DecodeError("control", f"not CBOR: {error}"[:_MAX_DETAIL_CHARACTERS]) from None
    if source.tell() != len(data):
        raise DecodeError("control", f"{len(data) - source.tell()} bytes behind the value")
    try:
        # With bytes as a built-in type, bytes must come as bytes: a text would be taken for Base64 otherwise.
        return msgspec.convert(plain, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise DecodeError("control", str(error)[:_MAX_DETAIL_CHARACTERS]) from None
