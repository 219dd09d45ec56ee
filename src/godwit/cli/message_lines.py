"""Messages as lines: `topic: payload` for people, one JSON object per line for programs."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.cli.text import iso_time, safe, safe_json, safe_payload
from godwit.errors import DecodeError

if TYPE_CHECKING:
    from godwit.client.message import Message

MAX_CACHED_TOPICS: Final = 10_000


class MessageObject(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """JSON form of a message. The payload is in `payload` if it is UTF-8, else in `payload_base64`."""

    topic: str
    publisher: str
    published: str
    received: str
    qos: int
    retained: bool
    offset: int | None
    payload: str | msgspec.UnsetType = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET


_encode: Final = msgspec.json.Encoder().encode


def json_line(message: Message) -> bytes:
    """Return a message as a JSON object, without a line end."""
    text: str | msgspec.UnsetType = msgspec.UNSET
    coded: str | msgspec.UnsetType = msgspec.UNSET
    try:
        text = message.payload.decode()
    except UnicodeDecodeError:
        coded = base64.b64encode(message.payload).decode()
    return _encode(
        MessageObject(
            message.topic,
            message.publisher,
            iso_time(message.published_us),
            iso_time(message.received_us),
            message.qos,
            message.retained,
            message.offset,
            text,
            coded,
        )
    )


class MessageFormatter:
    """Formats messages as text or as JSON. Call `render` with a list of messages."""

    def __init__(self, *, as_json: bool) -> None:
        self.render: Callable[[Sequence[Message]], bytes] = self._json if as_json else self._text
        self._topics: dict[str, str] = {}  # topics made safe for a terminal

    def _json(self, messages: Sequence[Message]) -> bytes:
        return safe_json(b"\n".join([*map(json_line, messages), b""]))

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
