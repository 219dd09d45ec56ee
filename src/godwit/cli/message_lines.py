"""Messages as lines: `topic: payload` for people, one JSON object per line for programs."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from godwit.cli.text import iso_time, safe, safe_json, safe_payload
from godwit.errors import DecodeError, UsageError

if TYPE_CHECKING:
    from godwit.client.message import Message

MAX_CACHED_TOPICS: Final = 10_000


class MessageObject(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """JSON form of a delivered message. The payload is in `payload` if it is UTF-8, else in `payload_base64`.

    `retained`: whether it was delivered because the broker had stored it for new subscribers. Properties that it does
    not have are left out. `headers` has the last value of a repeated name; then `header_pairs` has all of them.
    `correlation` is in hexadecimal digits.
    """

    topic: str
    publisher: str
    published: str
    received: str
    qos: int
    retained: bool
    offset: int | None
    payload: str | msgspec.UnsetType = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    header_pairs: tuple[tuple[str, str], ...] | msgspec.UnsetType = msgspec.UNSET
    content_type: str | msgspec.UnsetType = msgspec.UNSET
    reply_to: str | msgspec.UnsetType = msgspec.UNSET
    correlation: str | msgspec.UnsetType = msgspec.UNSET
    expires: str | msgspec.UnsetType = msgspec.UNSET


class LoggedMessageObject(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """JSON form of a message of the log. `retain`: whether it was published with that flag."""

    topic: str
    publisher: str
    published: str
    received: str
    qos: int
    retain: bool
    offset: int | None
    payload: str | msgspec.UnsetType = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    header_pairs: tuple[tuple[str, str], ...] | msgspec.UnsetType = msgspec.UNSET
    content_type: str | msgspec.UnsetType = msgspec.UNSET
    reply_to: str | msgspec.UnsetType = msgspec.UNSET
    correlation: str | msgspec.UnsetType = msgspec.UNSET
    expires: str | msgspec.UnsetType = msgspec.UNSET


_encode: Final = msgspec.json.Encoder().encode


def json_line(message: Message, kind: type[MessageObject] | type[LoggedMessageObject] = MessageObject) -> bytes:
    """Return a message as a JSON object, without a line end."""
    text: str | msgspec.UnsetType = msgspec.UNSET
    coded: str | msgspec.UnsetType = msgspec.UNSET
    try:
        text = message.payload.decode()
    except UnicodeDecodeError:
        coded = base64.b64encode(message.payload).decode()
    return _encode(
        kind(
            message.topic,
            message.publisher,
            iso_time(message.published_us),
            iso_time(message.received_us),
            message.qos,
            message.retained,
            message.offset,
            text,
            coded,
            *_property_values(message),
        )
    )


def _property_values(message: Message) -> tuple[Any, ...]:
    """Return the values of the last fields of MessageObject."""
    if message.extension is None:
        return ()
    headers = message.headers
    unset = msgspec.UNSET
    return (
        dict(headers) if headers else unset,
        headers.pairs if len(headers.pairs) > len(headers) else unset,
        message.content_type or unset,
        message.reply_to or unset,
        message.correlation.hex() if message.correlation is not None else unset,
        iso_time(message.expires_us) if message.expires_us is not None else unset,
    )


Style: TypeAlias = Literal["text", "json", "log", "payload", "raw"]
"""`json`: messages as they are delivered. `log`: JSON of messages as they are in the log."""


class MessageFormatter:
    """Formats messages as text, as JSON, as payloads, or by a format. Call `render` with a list of messages."""

    def __init__(self, style: Style = "text", form: str | None = None) -> None:
        """`form`: see `parse_format`; it replaces the style."""
        renders: dict[Style, Callable[[Sequence[Message]], bytes]] = {
            "text": self._text,
            "json": self._json,
            "log": self._logged,
            "payload": self._payloads,
            "raw": _raw,
        }
        self.render: Callable[[Sequence[Message]], bytes] = renders[style]
        if form is not None:
            self._parts = parse_format(form)
            self.render = self._formatted
        self._topics: dict[str, str] = {}  # topics made safe for a terminal

    def _formatted(self, messages: Sequence[Message]) -> bytes:
        return "".join([part(message) for message in messages for part in self._parts]).encode()

    def _payloads(self, messages: Sequence[Message]) -> bytes:
        return "".join([f"{safe_payload(message.payload)}\n" for message in messages]).encode()

    def _json(self, messages: Sequence[Message]) -> bytes:
        return safe_json(b"\n".join([*map(json_line, messages), b""]))

    def _logged(self, messages: Sequence[Message]) -> bytes:
        return safe_json(b"\n".join([*(json_line(message, LoggedMessageObject) for message in messages), b""]))

    def _text(self, messages: Sequence[Message]) -> bytes:
        topics = self._topics
        lines = []
        for message in messages:
            topic = topics.get(message.topic)
            if topic is None:
                if len(topics) >= MAX_CACHED_TOPICS:
                    topics.clear()
                topic = topics[message.topic] = safe(message.topic)
            if message.extension is None:
                lines.append(f"{topic}: {safe_payload(message.payload)}\n")
            else:
                lines.append(f"{topic}: {extension_text(message)}\n")
        return "".join(lines).encode()


def _raw(messages: Sequence[Message]) -> bytes:
    return b"".join([message.payload for message in messages])


FormatPart: TypeAlias = "Callable[[Message], str]"

_FIELDS: Final[dict[str, FormatPart]] = {
    "t": lambda message: safe(message.topic),
    "p": lambda message: safe_payload(message.payload),
    "x": lambda message: message.payload.hex(),
    "X": lambda message: message.payload.hex().upper(),
    "l": lambda message: str(len(message.payload)),
    "q": lambda message: str(message.qos),
    "r": lambda message: "1" if message.retained else "0",
    "o": lambda message: "" if message.offset is None else str(message.offset),
    "n": lambda message: safe(message.publisher),
    "I": lambda message: iso_time(message.received_us),
    "U": lambda message: f"{message.received_us // 1_000_000}.{message.received_us % 1_000_000:06d}",
    "C": lambda message: safe(message.content_type or ""),
    "D": lambda message: (message.correlation or b"").hex(),
    "E": lambda message: "" if message.expires_us is None else iso_time(message.expires_us),
    "P": lambda message: safe(" ".join(f"{name}={value}" for name, value in message.headers.pairs)),
    "R": lambda message: safe(message.reply_to or ""),
    "j": lambda message: safe_json(json_line(message)).decode(),
    "%": lambda message: "%",
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def parse_format(text: str) -> list[FormatPart]:
    """Return the parts of a format such as `%t %p`. A format without \\n at its end gets a line end.

    Raises:
        UsageError: It contains an unknown letter after % or \\.
    """
    parts: list[FormatPart] = []
    for match in _FORMAT.finditer(text):
        field, escape, plain = match.groups()
        if field is not None:
            if field not in _FIELDS:
                known = ", ".join(f"%{letter}" for letter in _FIELDS)
                raise UsageError(f"--format has an unknown %{field}; choose from {known}")
            parts.append(_FIELDS[field])
        elif escape is not None and escape not in _ESCAPES:
            raise UsageError(f"--format has an unknown \\{escape}; choose from \\n, \\t, \\r, \\0 and \\\\")
        else:
            parts.append(_constant(plain if escape is None else _ESCAPES[escape]))
    if not text.endswith(("\\n", "\\0")):
        parts.append(_constant("\n"))
    return parts


_FORMAT: Final = re.compile(r"%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)


def _constant(text: str) -> FormatPart:
    return lambda message: text


def extension_text(message: Message) -> str:
    """Return a message with an extension as text. A fragment of a file is described, not shown."""
    from godwit.client.files import decode_header

    try:
        header = decode_header(message.extension, message.topic, len(message.payload))
    except DecodeError:
        header = None
    if header is None:
        return safe_payload(message.payload)
    end = header.at + len(message.payload)
    return f"<file {safe(header.name)}, bytes {header.at:,} to {end:,} of {header.size:,}; receive it with --save>"
