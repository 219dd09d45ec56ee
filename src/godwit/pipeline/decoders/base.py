"""The interface of decoders: their input, their results, and their description.

A decoder reads one payload format. It is a subclass of Decoder within one module of this package, which may have
several of related formats. The constant DECODERS of the module has the examples of each, which a test runs and
docs/DECODERS.md shows. `godwit.pipeline.decoders.selection` chooses the decoder of a message. Packages add decoders as
entry points of the group `godwit.decoders`, whose objects are subclasses of Decoder.

The rules for all decoders:

- A reading is made only if the payload states its meaning unambiguously. Everything else is rejected with a reason, and
  with a detail: the finding, and how to configure it.
- A decoder returns None only if the payload is not of its format, by definite structure or topic; then the next
  candidate is asked.
- A message is decoded as a whole: if one of its values is out of bounds, all of it is rejected.
- Decoders run on executors, thousands of times a second: work per message is small, and its time is bounded by the
  length of the payload.
- The modules are sent to executors by value (decision 36). Therefore they import each other at the top of the module;
  packages that an executor may lack (cbor2, msgpack, pint) within functions; and have no functools.cache and no other
  objects at module level that cannot be pickled. Compiled regular expressions and dicts can.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from godwit.pipeline.decoders.content import json_of, text_of
from godwit.pipeline.decoders.results import FORMS, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.decoders.shapes import Shape
from godwit.pipeline.errors import PipelineError

GROUP_SEPARATOR: Final = "\n"
"""In the key of a definition: between the group and the member, see `DecoderContext.definition_group`."""


class DecoderMessage:
    """A message as a decoder sees it. `text` and `json` are computed once, however many decoders are asked.

    `content_type` is that of the publisher, None without one. A decoder that unpacks others, such as the one for
    CloudEvents, states that of the data.
    """

    __slots__ = ("_json", "_text", "broker", "content_type", "offset", "payload", "received_us", "topic")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        content_type: str | None = None,
        received_us: int = 0,
        broker: str = "",
        offset: int = 0,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.content_type = content_type
        self.received_us = received_us
        self.broker = broker
        self.offset = offset

    @property
    def text(self) -> str:
        """The payload as text, without a byte order mark and blanks at both ends.

        Raise RejectedError if the payload is not text.
        """
        try:
            return self._text
        except AttributeError:
            self._text: str = text_of(self.payload)
            return self._text

    @property
    def json(self) -> Any:
        """The payload as JSON: duplicate keys, NaN, deep nesting and very long integers are rejected.

        Raise RejectedError if the payload is not such JSON. The value is shared: do not change it.
        """
        try:
            return self._json
        except AttributeError:
            self._json: Any = json_of(self.text)
            return self._json

    @property
    def is_json(self) -> bool:
        """Whether the text begins as a JSON object or array."""
        try:
            return self.text[:1] in ("{", "[")
        except RejectedError:
            return False


class Definitions:
    """The definitions from all messages so far, by broker, decoder, key and offset.

    A definition is valid for the messages after its own, in the log of the same broker. Adding the same definitions
    again, or in another order, changes nothing.
    """

    def __init__(self, rows: Iterable[tuple[str, int, str, str, str]] = ()) -> None:
        """`rows`: broker, offset, name of the decoder, key, and the definition as JSON."""
        self._texts: dict[tuple[str, str, str], dict[int, str]] = {}
        self._offsets: dict[tuple[str, str, str], list[int]] = {}
        self._parsed: dict[tuple[str, str, str, int], Any] = {}
        self._groups: dict[tuple[str, str, str], set[str]] = {}
        self._group_names: set[tuple[str, str]] = set()
        self.add(rows)

    def __len__(self) -> int:
        return sum(map(len, self._texts.values()))

    def add(self, rows: Iterable[tuple[str, int, str, str, str]]) -> None:
        """Add rows as in the constructor."""
        for broker, offset, decoder, key, text in rows:
            place = (broker, decoder, key)
            self._texts.setdefault(place, {})[offset] = text
            self._offsets.pop(place, None)
            self._parsed.pop((*place, offset), None)
            group, separator, _ = key.partition(GROUP_SEPARATOR)
            if separator:
                self._groups.setdefault((broker, decoder, group), set()).add(key)
                self._group_names.add((decoder, group))

    def group(self, broker: str, decoder: str, group: str, before: int) -> list[Any]:
        """Return the newest definitions below `before` of all keys `group`, GROUP_SEPARATOR, member, by key."""
        keys = self._groups.get((broker, decoder, group))
        if keys is None:
            return []
        found = (self.newest(broker, decoder, key, before) for key in sorted(keys))
        return [one for one in found if one is not None]

    def is_same(self, broker: str, decoder: str, key: str, offset: int, text: str) -> bool:
        """Return whether a definition at this offset would change nothing: the one before it has the same text."""
        texts = self._texts.get((broker, decoder, key), {})
        return max(((at, one) for at, one in texts.items() if at <= offset), default=(0, None))[1] == text

    def rows_since(self, begins: Mapping[str, int] | None) -> list[tuple[str, int, str, str, str]]:
        """Return rows with the definitions that messages at and above these offsets, by broker, may need.

        Without offsets all are returned, and for a broker that is not named none.
        """
        found = []
        for (broker, decoder, key), texts in self._texts.items():
            if begins is None:
                chosen = sorted(texts)
            elif broker in begins:
                before = [at for at in texts if at < begins[broker]]
                chosen = sorted({*[at for at in texts if at >= begins[broker]], *([max(before)] if before else [])})
            else:
                continue
            found += [(broker, at, decoder, key, texts[at]) for at in chosen]
        return found

    def is_group(self, decoder: str, group: str) -> bool:
        """Return whether a decoder has definitions of this group, of any broker."""
        return (decoder, group) in self._group_names

    def newest(self, broker: str, decoder: str, key: str, before: int) -> Any:
        """Return the definition with the highest offset below `before`, parsed, or None."""
        place = (broker, decoder, key)
        texts = self._texts.get(place)
        if texts is None:
            return None
        offsets = self._offsets.get(place)
        if offsets is None:
            offsets = self._offsets[place] = sorted(texts)
        index = bisect_left(offsets, before)
        if not index:
            return None
        offset = offsets[index - 1]
        found = (*place, offset)
        if found not in self._parsed:
            self._parsed[found] = json.loads(texts[offset])
        return self._parsed[found]


class DecoderContext:
    """What a decoder may ask about a message beside its content."""

    __slots__ = ("_before", "_broker", "_decoder", "_definitions", "_inner")

    def __init__(self, definitions: Definitions, decoder: str, broker: str, before: int, inner: Any = None) -> None:
        self._definitions = definitions
        self._decoder = decoder
        self._broker = broker
        self._before = before
        self._inner = inner

    def definition(self, key: str, decoder: str | None = None) -> Any:
        """Return the newest definition under this key from a message before this one, or None.

        The definition is the parsed JSON that `define` returned, of this decoder or of the one that is named. It is
        shared: do not change it.
        """
        return self._definitions.newest(self._broker, decoder or self._decoder, key, self._before)

    def definition_group(self, group: str) -> list[Any]:
        """Return the newest definitions of all keys that begin with `group` and GROUP_SEPARATOR, by key.

        For formats in which several messages define parts of one topic, such as the sensors of Home Assistant.
        """
        return self._definitions.group(self._broker, self._decoder, group, self._before)

    def decode_inner(self, message: DecoderMessage) -> Decoded | Rejected:
        """Decode a message that this one contains, with the decoder that is selected for it."""
        if self._inner is None:
            return Rejected("bad payload", "an envelope within an envelope")
        found: Decoded | Rejected = self._inner(message)
        return found


class Decoder:
    """A decoder. Subclasses set the class attributes and override `decode`."""

    name: ClassVar[str]
    """As in the configuration, and in the column `decoder` of silver/readings."""
    title: ClassVar[str]
    """The format in one line, for docs."""
    filters: ClassVar[tuple[str, ...]] = ("#",)
    """Topics for which it is asked without configuration; () for none. It is also asked for topics that are groups of
    its definitions."""
    text_filters: ClassVar[tuple[str, ...] | None] = None
    """Topics for which it is asked about text that is not JSON; None for those of `filters`."""
    forms: ClassVar[frozenset[str]] = FORMS
    """The forms of payloads for which it is asked."""
    keys: ClassVar[tuple[frozenset[str], ...]] = ()
    """For a JSON object: it is asked only if all keys of one of these sets are at the top level; () for any keys."""
    content_types: ClassVar[tuple[str, ...]] = ()
    """Content types that name its format, in lower case and without parameters. A message with one of them is given to
    its decoders alone, whatever its topic and form. A general type, such as application/json, names no format."""
    definition_filters: ClassVar[tuple[str, ...]] = ()
    """Topics whose messages may define others: see `define`."""
    is_quick: ClassVar[bool] = False
    """Whether it has `decode_quickly`, and never returns None for its forms."""
    option_names: ClassVar[tuple[str, ...]] = ()
    """The options that its configuration may have."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """Create it with the options of its configuration. Raise PipelineError if they are invalid."""
        self.options = dict(options or {})
        if unknown := sorted(set(self.options) - set(self.option_names)):
            known = ", ".join(self.option_names) or "none"
            raise PipelineError(
                f"the decoder {self.name} has no option {', '.join(unknown)} (its options: {known}): correct the "
                "configuration"
            )

    def decode_quickly(self, topic: str, item: Any) -> Decoded | None:
        """Decode a JSON object or the bytes of a number, if `is_quick`; None if `decode` is to be called."""
        return None

    def shape(self, topic: str, item: Any) -> Shape | None:
        """Return how all messages are read that differ from this one in their numbers and times only, if `is_quick`.

        `item` is a JSON object or a number, with a Slot or a TimeSlot in place of each of these. None means that each
        message is to be decoded by itself. The result must be that of `decode_quickly` for all numbers that the shape
        accepts.
        """
        return None

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode a message; None if it is not of this format. It may raise RejectedError instead of returning it."""
        raise NotImplementedError

    def define(self, message: DecoderMessage) -> list[tuple[str, str]]:
        """Return the definitions in a message that matches `definition_filters`: keys with JSON.

        For a message without definitions, or an unreadable one, the list is empty.
        """
        return []


class DecoderExample(NamedTuple):
    """A documented example of a decoder, which a test runs."""

    topic: str
    payload: bytes
    readings: tuple[Reading, ...] = ()
    """The expected readings; `unit_source` and `time_us` count."""
    reason: str = ""
    """The expected reason, if it is rejected."""
    definitions: tuple[tuple[str, bytes], ...] = ()
    """Topics and payloads of messages before this one."""
    options: Mapping[str, Any] = {}
    """The configuration: its options without `filter` and `decoder`; only used with is_configured."""
    is_configured: bool = False
    """Whether the decoder is configured for the topic rather than recognised."""
    note: str = ""
    """A remark for docs."""
    time_us: int | None = None
    """The expected time of the message."""
