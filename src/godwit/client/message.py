"""The values that an application gets from a subscription: messages, and bookmarks of positions in the log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from godwit.client.properties import NO_HEADERS, Headers
from godwit.errors import PayloadError, UsageError
from godwit.wire.epochs import EPOCH_ID_BYTES, Epoch
from godwit.wire.extension import decode_properties

MAX_EPOCHS: Final = 4
"""Epochs in a bookmark, which keep its text short. If the log was restored from a copy older than all of them, nothing
in it counts as read."""

SHOWN_BYTES: Final = 60
"""The part of a payload that the text of a message or an error shows."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_BOOKMARK: Final = re.compile(r"(\d{1,19})@([0-9a-f]{32})((?:/[0-9a-f]{16}:\d{1,19}){0,4})")

assert EPOCH_ID_BYTES == 8, "the pattern of a bookmark's text has ids of 16 digits"


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message as it was published, with the broker's metadata. Times are microseconds since the epoch."""

    topic: str
    payload: bytes
    """The bytes that were published; see also `text` and `json()`."""
    publisher: str
    """The name of the client that published it."""
    published_us: int
    """The time of publishing, by the publisher's clock."""
    received_us: int
    """The time of arrival at the broker, by the broker's clock."""
    qos: int
    retained: bool
    """Whether it was delivered because the broker retains it for new subscriptions; it may be old."""
    offset: int | None
    """Its position in the broker's log; None at QoS 0."""
    extension: bytes | None = None
    """The properties of the message's batch as they were encoded; see `headers` and the other properties."""
    expires_us: int | None = None
    """The time from which the message counts as expired, by the clock of this computer; None if it does not expire."""

    @property
    def headers(self) -> Headers:
        """The names and values that the publisher attached, in order. It is a mapping, also if there are none."""
        if self.extension is None:
            return NO_HEADERS
        pairs = decode_properties(self.extension).headers
        return Headers(pairs) if pairs else NO_HEADERS

    @property
    def content_type(self) -> str | None:
        """The type of the payload, such as `application/json`; None if the publisher gave none."""
        return None if self.extension is None else decode_properties(self.extension).content_type

    @property
    def reply_to(self) -> str | None:
        """The topic to which the publisher wants replies; None if the message is not a request."""
        return None if self.extension is None else decode_properties(self.extension).reply_topic

    @property
    def correlation(self) -> bytes | None:
        """The bytes by which the publisher of a request recognises the reply; a reply has those of its request."""
        return None if self.extension is None else decode_properties(self.extension).correlation

    @property
    def expires(self) -> datetime | None:
        """The time from which the message counts as expired, in UTC by the clock of this computer; None for never."""
        return None if self.expires_us is None else _datetime(self.expires_us)

    @property
    def text(self) -> str:
        """The payload as a text.

        Raises:
            PayloadError: The payload is not valid UTF-8.
        """
        return decode_text(self.payload, f"the payload of a message on {self.topic!r}")

    def json(self) -> Any:
        """Return the value that the payload has as JSON: a dict, list, str, number, bool or None.

        Raises:
            PayloadError: The payload is not valid JSON.
        """
        return decode_json(self.payload, f"the payload of a message on {self.topic!r}")

    def __repr__(self) -> str:
        retained = ", retained" if self.retained else ""
        offset = "" if self.offset is None else f", offset {self.offset}"
        return (
            f"<Message on {self.topic!r}: {shorten(self.payload)}, from {self.publisher!r}, QoS {self.qos}"
            f"{offset}{retained}>"
        )

    @property
    def published(self) -> datetime:
        """The time of publishing in UTC, to the microsecond."""
        return _datetime(self.published_us)

    @property
    def received(self) -> datetime:
        """The time of arrival at the broker in UTC, to the microsecond."""
        return _datetime(self.received_us)


def decode_text(payload: bytes, what: str) -> str:
    """Return a payload as a text. `what` names it in the text of a PayloadError."""
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(
            f"{what} is not a text in UTF-8 ({error.reason} at byte {error.start}): use the bytes"
        ) from None


def decode_json(payload: bytes, what: str) -> Any:
    """Return the value of a payload in JSON. `what` names it in the text of a PayloadError."""
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is empty" if not payload else str(error)
        raise PayloadError(f"{what} is not JSON ({reason}): {shorten(payload)}") from None


def shorten(payload: bytes) -> str:
    """Return a payload as it is shown to people: the beginning, and the size of a long one."""
    if len(payload) <= SHOWN_BYTES:
        return repr(payload)
    return f"{payload[:SHOWN_BYTES]!r}... ({len(payload)} bytes)"


def _datetime(time_us: int) -> datetime:
    """Convert exactly. A time beyond the calendar (a publisher's clock may be wrong) becomes its last microsecond."""
    return _EPOCH + timedelta(microseconds=min(time_us, _LAST_US))


class Bookmark(msgspec.Struct, frozen=True):
    """A position in a log that can be stored, and checked later against an older copy of the log.

    `str` and `parse` convert it to a text and back, so that it can be stored with results.
    """

    offset: int
    """The first offset that was not read."""
    log: bytes
    """The id of the log."""
    epochs: tuple[Epoch, ...]
    """The newest epochs of the log that began before `offset`."""

    def __str__(self) -> str:
        parts = (f"/{epoch.id.hex()}:{epoch.first_offset}" for epoch in self.epochs)
        return f"{self.offset}@{self.log.hex()}{''.join(parts)}"

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        """Return the bookmark of a text that `str` made.

        Raises UsageError for any other text.
        """
        if not isinstance(text, str):
            raise UsageError(f"a bookmark of the type {type(text).__name__}: give the text of `subscription.bookmark`")
        match = _BOOKMARK.fullmatch(text)
        if match is None:
            raise UsageError(f"{text[:80]!r} is not a bookmark: give the text of `subscription.bookmark`, unchanged")
        pairs = [pair.split(":") for pair in match[3].split("/")[1:]]
        epochs = tuple(Epoch(bytes.fromhex(id_), int(first_offset)) for id_, first_offset in pairs)
        numbers = [int(match[1]), *(epoch.first_offset for epoch in epochs)]
        if max(numbers) >= 2**63:
            raise UsageError(f"{text[:80]!r} is not a bookmark: {max(numbers)} is not an offset")
        return cls(numbers[0], bytes.fromhex(match[2]), epochs)


def make_bookmark(offset: int, log: bytes, epochs: Sequence[Epoch]) -> Bookmark:
    """Return the bookmark of an offset in the log with this id and these epochs."""
    before = [epoch for epoch in epochs if epoch.first_offset < offset]
    return Bookmark(offset, log, tuple(before[-MAX_EPOCHS:]))
