"""The properties of messages as applications see them: headers, and the options of `publish`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, TypedDict

import msgspec

from godwit.broker.topics import check_topic
from godwit.errors import UsageError
from godwit.limits import MAX_LIFETIME_US
from godwit.wire.extension import NO_PROPERTIES, Properties, encode_properties

if TYPE_CHECKING:
    from godwit.client.batches import Payload

JSON_TYPE: Final = "application/json"
"""The content type of a payload that was given as a dict or a list."""
_JSON_EXTENSION: Final = encode_properties(Properties(content_type=JSON_TYPE))
HeadersLike: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""Headers of a message to publish: a dict, or pairs of name and value, which may repeat a name."""


class Headers(Mapping[str, str]):
    """The headers of a message: names with values, in the order of the publisher.

    It is a mapping, in which the last value of a repeated name counts. `pairs` has all of them.
    """

    __slots__ = ("_values", "pairs")

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        """Make headers of pairs of name and value."""
        self.pairs: tuple[tuple[str, str], ...] = tuple(pairs)
        """All names and values, in order."""
        self._values = dict(self.pairs)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get_all(self, name: str) -> list[str]:
        """Return all values of a name, in order; an empty list for an unknown name."""
        return [value for known, value in self.pairs if known == name]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return self.pairs == other.pairs
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __repr__(self) -> str:
        return f"Headers({list(self.pairs)!r})"


NO_HEADERS: Final = Headers()


class MessageOptions(TypedDict, total=False):
    """The properties of a message that `publish` accepts. Each comment begins with the default."""

    headers: HeadersLike | None
    """None. Names and values that travel with the message: a dict, or pairs, which may repeat a name."""
    content_type: str | None
    """None; for a dict or list as payload `application/json`. The type of the payload, such as `text/csv`."""
    reply_to: str | None
    """None. The topic to which a receiver sends its reply."""
    correlation: bytes | None
    """None. Bytes by which the sender of a request recognises the reply."""
    expires_s: float | None
    """None. The message is dropped where it is, and delivered to no subscriber, after this many seconds."""


def make_properties(
    *,
    headers: HeadersLike | None = None,
    content_type: str | None = None,
    reply_to: str | None = None,
    correlation: bytes | None = None,
    expires_s: float | None = None,
) -> Properties:
    """Return the checked properties of a message.

    Raises:
        UsageError: One of them is invalid, or all together are too long.
    """
    if content_type is not None and not isinstance(content_type, str):
        raise UsageError(f"content_type is of the type {type(content_type).__name__}: give a text (str)")
    if reply_to is not None:
        check_topic(reply_to)
    if correlation is not None:
        if not isinstance(correlation, bytes | bytearray | memoryview):
            raise UsageError(f"correlation is of the type {type(correlation).__name__}: give bytes")
        correlation = bytes(correlation)
    properties = Properties(
        headers=_pairs(headers),
        content_type=content_type,
        reply_topic=reply_to,
        correlation=correlation,
        lifetime_us=_lifetime_us(expires_s),
    )
    try:
        encode_properties(properties)
    except ValueError as error:
        raise UsageError(f"the properties of a message are invalid: {error}") from None
    return properties


def _pairs(headers: HeadersLike | None) -> tuple[tuple[str, str], ...]:
    if headers is None:
        return ()
    if isinstance(headers, Headers):
        return headers.pairs
    items = headers.items() if isinstance(headers, Mapping) else headers
    pairs = []
    try:
        for name, value in items:
            if not isinstance(name, str) or not isinstance(value, str):
                raise UsageError(f"the header {name!r}: {value!r} is not a pair of texts: convert both to str")
            pairs.append((name, value))
    except (TypeError, ValueError):
        raise UsageError(
            f"headers is of the type {type(headers).__name__}: give a dict, or a list of pairs of name and value"
        ) from None
    return tuple(pairs)


def _lifetime_us(expires_s: float | None) -> int | None:
    if expires_s is None:
        return None
    if isinstance(expires_s, bool) or not isinstance(expires_s, int | float):
        raise UsageError(f"expires_s is {expires_s!r}: give a number of seconds, or None for no limit")
    if not math.isfinite(expires_s) or not 0 < expires_s <= MAX_LIFETIME_US / 1_000_000:
        raise UsageError(
            f"expires_s is {expires_s:g}: give more than 0 and at most {MAX_LIFETIME_US // 1_000_000} seconds, or None "
            "for no limit"
        )
    return max(round(expires_s * 1_000_000), 1)


def extension_for(payload: Payload, properties: Properties) -> bytes:
    """Return the encoded properties of a message. The content type of a dict or list is JSON by default."""
    if properties.content_type is None and isinstance(payload, dict | list):
        if properties is NO_PROPERTIES:
            return _JSON_EXTENSION
        properties = msgspec.structs.replace(properties, content_type=JSON_TYPE)
    return encode_properties(properties) if properties is not NO_PROPERTIES else b""


class JsonBody(bytes):
    """The bytes of a dict or list on their way to the loop's thread."""
