"""The selection of the decoder of a message.

1. The configuration: the first `[[pipeline.decoder]]` whose filter matches the topic and whose content type, if it has
   one, is that of the message. No other decoder is asked.
2. The content type, if the message has one that names a format: the decoders of that format, and no other.
3. Decoders of installed packages (entry points of the group `godwit.decoders`), in the order of their names.
4. The built-in decoders, in the order of BUILT_IN: formats that are recognised by topic, then formats that are
   recognised by structure, then JSON and plain numbers.

A content type that several formats share, such as `application/json`, names none of them: see Decoder.content_types.
A decoder of 3. and 4. is asked if one of its filters matches the topic or one of its definitions is for the topic, the
payload has one of its forms, and a JSON object has its keys. The candidates are cached by topic, form and keys. Where
the first candidate is the one for flat JSON or plain numbers, `decode_quickly` calls it without further ado.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderMessage, Definitions
from godwit.pipeline.decoders.content import NUMBER, quick_object
from godwit.pipeline.decoders.envelopes import ChirpStackDecoder, CloudEventsDecoder, TheThingsNetworkDecoder
from godwit.pipeline.decoders.home_assistant import HomeAssistantDecoder
from godwit.pipeline.decoders.objects import BinaryMapDecoder, FlatJsonDecoder, NestedJsonDecoder
from godwit.pipeline.decoders.owntracks import OwnTracksDecoder
from godwit.pipeline.decoders.plain_text import NumberDecoder, SentenceDecoder
from godwit.pipeline.decoders.results import (
    ARRAY,
    BINARY,
    OBJECT,
    TEXT,
    WORDS,
    Decoded,
    Reading,
    Rejected,
    RejectedError,
)
from godwit.pipeline.decoders.rtl_433 import Rtl433Decoder
from godwit.pipeline.decoders.senml import SenmlDecoder
from godwit.pipeline.decoders.shapes import LOCAL_TIME_MARK, MARK, TIME, TIME_MARK, ZONE, Layout, Shape, Slot, TimeSlot
from godwit.pipeline.decoders.shelly import ShellyGen1Decoder, ShellyGen2Decoder
from godwit.pipeline.decoders.sparkplug import SparkplugDecoder
from godwit.pipeline.decoders.tasmota import TasmotaDecoder
from godwit.pipeline.decoders.text_lines import CsvDecoder, InfluxDecoder, OpenMetricsDecoder
from godwit.pipeline.decoders.zigbee2mqtt import Zigbee2MqttDecoder
from godwit.pipeline.errors import PipelineError

BUILT_IN: Final[tuple[type[Decoder], ...]] = (
    # recognised by topic
    Zigbee2MqttDecoder,
    TasmotaDecoder,
    SparkplugDecoder,
    ShellyGen2Decoder,
    ShellyGen1Decoder,
    # recognised by topic or structure
    Rtl433Decoder,
    OwnTracksDecoder,
    TheThingsNetworkDecoder,
    ChirpStackDecoder,
    # recognised by an earlier message
    HomeAssistantDecoder,
    # recognised by structure
    SenmlDecoder,
    CloudEventsDecoder,
    InfluxDecoder,
    OpenMetricsDecoder,
    # generic
    BinaryMapDecoder,
    FlatJsonDecoder,
    NestedJsonDecoder,
    NumberDecoder,
    # only if configured
    CsvDecoder,
    SentenceDecoder,
)
"""In the order in which they are asked. The constant DECODERS of their modules has their documented examples."""
ENTRY_POINTS: Final = "godwit.decoders"
MAX_PLANS: Final = 50_000
"""Cached selections. Beyond, the cache is emptied: a flood of topics must not fill the memory."""
MAX_SHAPES: Final = 20_000
MAX_TYPES: Final = 1000
"""Content types that are cached, in the same way."""
MAX_READINGS: Final = 1024
CBOR_TYPE: Final = "application/cbor"
CBOR_SUFFIX: Final = "+cbor"
"""A type such as `application/vnd.maker+cbor` is read as plain CBOR, if no decoder names it (RFC 6838, 4.2.8)."""


class DecoderRule(NamedTuple):
    """One `[[pipeline.decoder]]` of the configuration."""

    filter: str
    decoder: str
    options: Mapping[str, Any]
    content_type: str | None = None
    """Of the messages it is for, in lower case and without parameters; None: of any, or without one."""


def filter_pattern(filter: str) -> re.Pattern[str]:
    """Return the pattern of the topics that a filter matches: see godwit.wire.filters for the rules."""
    levels = filter.split("/")
    parts = ["[^/]*" if level == "+" else ".*" if level == "*" else re.escape(level) for level in levels]
    if levels[-1] == "#":
        body = "/".join(parts[:-1])
        pattern = f"{body}(?:/.*)?" if len(levels) > 1 else ".*"
    else:
        pattern = "/".join(parts)
    reserved = r"(?!\$)" if levels[0] in ("+", "*", "#") else ""
    return re.compile(rf"{reserved}{pattern}\Z", re.DOTALL)


def java_pattern(filter: str) -> str:
    """Return the same pattern for Spark, whose regular expressions are those of Java."""
    return rf"(?s)^{filter_pattern(filter).pattern.removesuffix(chr(92) + 'Z')}\z"


def bare_type(content_type: str | None) -> str | None:
    """Return a content type in lower case and without parameters; None without one."""
    return (content_type or "").partition(";")[0].strip().lower() or None


class DecoderSet:
    """The decoders of a pipeline, with their configuration: decodes any message."""

    def __init__(self, decoders: Sequence[type[Decoder]], rules: Iterable[DecoderRule] = ()) -> None:
        """`decoders` are asked in this order. Raise PipelineError if a rule names none of them or is invalid."""
        by_name: dict[str, type[Decoder]] = {}
        for one in decoders:
            if one.name in by_name:
                raise PipelineError(f"two decoders have the name {one.name}: uninstall one of their packages")
            by_name[one.name] = one
        self._rules: list[tuple[re.Pattern[str], str | None, Decoder]] = []
        for rule in rules:
            if rule.decoder not in by_name:
                raise PipelineError(
                    f"[[pipeline.decoder]] for {rule.filter!r}: the decoder {rule.decoder!r} is unknown; choose one of "
                    f"{', '.join(sorted(by_name))}"
                )
            decoder = by_name[rule.decoder](rule.options)
            self._rules.append((filter_pattern(rule.filter), bare_type(rule.content_type), decoder))
        self._has_typed_rules = any(content_type is not None for _, content_type, _ in self._rules)
        self._decoders = [one() for one in decoders]
        self._typed: dict[str, tuple[Decoder, ...]] = {}
        """By content type, the decoders that it names; none for one that names no format."""
        self._filters = [[filter_pattern(one) for one in decoder.filters] for decoder in self._decoders]
        self._text_filters = [
            filters if decoder.text_filters is None else [filter_pattern(one) for one in decoder.text_filters]
            for decoder, filters in zip(self._decoders, self._filters, strict=True)
        ]
        self._defining = [
            ([filter_pattern(one) for one in decoder.definition_filters], decoder)
            for decoder in self._decoders
            if decoder.definition_filters
        ]
        self._plans: dict[Any, tuple[Decoder, ...]] = {}
        self._quick: dict[Any, Decoder] = {}
        self._shapes: dict[tuple[str, bytes], Shape | None] = {}
        """By topic and skeleton."""
        self._layouts: dict[Layout, Layout] = {}
        """The layouts of the shapes: equal ones are the same object."""
        self._configured: dict[tuple[str, str | None], Decoder | None] = {}
        self._definitions = Definitions()

    @property
    def names(self) -> list[str]:
        """The names of all decoders, in the order in which they are asked."""
        return [one.name for one in self._decoders]

    def title(self, name: str) -> str:
        """Return the format that a decoder reads, in one line."""
        return next((one.title for one in self._decoders if one.name == name), "")

    @property
    def definitions(self) -> Definitions:
        """The definitions of earlier messages. They are replaced as a whole, or by `add_definitions`."""
        return self._definitions

    @definitions.setter
    def definitions(self, known: Definitions) -> None:
        self._definitions = known
        self._plans.clear()
        self._quick.clear()
        self._shapes.clear()

    def add_definitions(self, rows: Iterable[tuple[str, int, str, str, str]]) -> None:
        """Add definitions, as rows of Definitions."""
        rows = list(rows)
        if rows:
            self._definitions.add(rows)
            self.definitions = self._definitions

    @property
    def definition_filters(self) -> list[str]:
        """The filters of the topics whose messages may define others."""
        return sorted({one for decoder in self._decoders for one in decoder.definition_filters})

    def define(self, message: DecoderMessage) -> list[tuple[str, int, str, str, str]]:
        """Return the definitions in a message, as rows for Definitions. A decoder that fails has none."""
        found = []
        for filters, decoder in self._defining:
            if any(one.match(message.topic) for one in filters):
                try:
                    pairs = decoder.define(message)
                except Exception:  # `decode` is asked about the same message, and reports the error
                    continue
                found += [(message.broker, message.offset, decoder.name, key, text) for key, text in pairs]
        return found

    def decode_quickly(
        self,
        topic: str,
        payload: bytes,
        received_us: int,
        broker: str,
        offset: int,
        content_type: str | None = None,
    ) -> tuple[Any, str]:
        """Do as `decode`, for a message given by its parts, with less work for flat JSON and plain numbers."""
        first = payload[:1]
        item: Any
        if content_type is not None and (self._has_typed_rules or self._named_by(content_type)):
            decoder = None
        elif first == b"{":
            item = quick_object(payload)
            decoder = None if item is None else self._quick.get((topic, tuple(item)))
        elif first in _NUMBER_STARTS:
            item, decoder = payload, self._quick.get(topic)
        else:
            decoder = None
        if decoder is not None:
            try:
                found = decoder.decode_quickly(topic, item)
                if found is not None:
                    return found, decoder.name
            except RejectedError as error:
                return error.rejection, decoder.name
        return self.decode(DecoderMessage(topic, payload, content_type, received_us, broker, offset))

    def may_have_shape(self, content_type: str | None) -> bool:
        """Return whether messages with this content type may have a shape: it does not name their format."""
        return content_type is None or not (self._has_typed_rules or self._named_by(content_type))

    def known_shape(self, topic: str, skeleton: bytes) -> Shape | None:
        """Return the shape of a topic and a skeleton, if `shape` has returned one before."""
        return self._shapes.get((topic, skeleton))

    def shape(self, topic: str, skeleton: bytes, payload: bytes) -> Shape | None:
        """Return how messages of a topic with the skeleton of this payload are read; None if they have no shape.

        It is for messages of which `may_have_shape` is true.
        """
        key = (topic, skeleton)
        if key not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
                self._layouts.clear()
            found = self._find_shape(topic, skeleton, payload)
            if found is not None:
                found = found._replace(layout=self._layouts.setdefault(found.layout, found.layout))
            self._shapes[key] = found
        return self._shapes[key]

    def _find_shape(self, topic: str, skeleton: bytes, payload: bytes) -> Shape | None:
        self.decode_quickly(topic, payload, 0, "", 0)  # selects the decoder
        if skeleton == MARK:
            decoder = self._quick.get(topic)
            return None if decoder is None else decoder.shape(topic, Slot(0))
        item = quick_object(payload)
        if item is None or (decoder := self._quick.get((topic, tuple(item)))) is None:
            return None
        slots = times = 0
        for name, value in item.items():
            if type(value) is float or type(value) is int:
                item[name] = Slot(slots)
                slots += 1
            elif type(value) is str and TIME.fullmatch(value):
                item[name] = TimeSlot(times, ZONE.fullmatch(value) is not None)
                times += 1
        marks = skeleton.count(TIME_MARK) + skeleton.count(LOCAL_TIME_MARK)
        if slots != skeleton.count(MARK) or times != marks:  # a mark is in a key, or only a part of a number
            return None
        try:
            return decoder.shape(topic, item)
        except RejectedError:  # whatever its numbers are
            return None

    def decode(self, message: DecoderMessage) -> tuple[Decoded | Rejected, str]:
        """Return the content of a message or the reason why it has none, and the name of the decoder ("" for none).

        It never raises an exception.
        """
        return self._decode(message, is_inner=False)

    def _decode_inner(self, message: DecoderMessage) -> Decoded | Rejected:
        return self._decode(message, is_inner=True)[0]

    def _decode(self, message: DecoderMessage, *, is_inner: bool) -> tuple[Decoded | Rejected, str]:
        name = ""
        try:
            configured = None if is_inner else self._configured_decoder(message.topic, message.content_type)
            named: tuple[Decoder, ...] = ()
            if configured is None and message.content_type is not None:
                named = self._named_by(message.content_type)
            candidates = named or (self._candidates(message) if configured is None else (configured,))
            for decoder in candidates:
                name = decoder.name
                inner = None if is_inner else self._decode_inner
                context = DecoderContext(self._definitions, name, message.broker, message.offset, inner)
                found = decoder.decode(message, context)
                if found is not None:
                    if not type(decoder).__module__.startswith(_PACKAGE):
                        _check_foreign(found)
                    return _checked(found), name
            if configured is not None:
                text = f"the decoder {name} is configured for this topic, and this is not of its format"
                return Rejected("wrong format", text), name
            if named:
                names = " or ".join([one.name for one in named])
                text = f"the content type is {bare_type(message.content_type)}, and this is not of the format {names}"
                return Rejected("bad payload", text), name
        except RejectedError as error:
            return error.rejection, name
        except (Exception, SystemExit) as error:  # of any decoder: other messages must not suffer
            text = " ".join(str(error).split())[:200]
            return Rejected("decoder failed", f"the decoder {name}: {type(error).__name__}: {text}"), name
        return _unknown(message), ""

    def _configured_decoder(self, topic: str, content_type: str | None) -> Decoder | None:
        if not self._rules:
            return None
        key = (topic, bare_type(content_type) if self._has_typed_rules else None)
        try:
            return self._configured[key]
        except KeyError:
            found = next(
                (
                    decoder
                    for pattern, wanted, decoder in self._rules
                    if (wanted is None or wanted == key[1]) and pattern.match(topic)
                ),
                None,
            )
            if len(self._configured) >= MAX_PLANS:
                self._configured.clear()
            self._configured[key] = found
            return found

    def _named_by(self, content_type: str) -> tuple[Decoder, ...]:
        """Return the decoders of the format that a content type names; none if it names no format."""
        found = self._typed.get(content_type)
        if found is None:
            kind = bare_type(content_type) or ""
            found = tuple([one for one in self._decoders if kind in one.content_types])
            if not found and kind.endswith(CBOR_SUFFIX):
                found = tuple([one for one in self._decoders if CBOR_TYPE in one.content_types])
            if len(self._typed) >= MAX_TYPES:
                self._typed.clear()
            self._typed[content_type] = found
        return found

    def _candidates(self, message: DecoderMessage) -> tuple[Decoder, ...]:
        form, keys = _form(message)
        key = (message.topic, form, keys)
        found = self._plans.get(key)
        if found is None:
            found = tuple(
                decoder
                for decoder, filters in zip(
                    self._decoders, self._text_filters if form in (NUMERIC, WORDS) else self._filters, strict=True
                )
                if (form in decoder.forms or (form in (NUMERIC, WORDS) and TEXT in decoder.forms))
                and (
                    any(one.match(message.topic) for one in filters)
                    or self._definitions.is_group(decoder.name, message.topic)
                )
                and (form != OBJECT or not decoder.keys or any(one.issubset(keys) for one in decoder.keys))
            )
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
                self._quick.clear()
            self._plans[key] = found
            if found and found[0].is_quick and self._configured_decoder(message.topic, message.content_type) is None:
                self._quick[(message.topic, keys) if form == OBJECT else message.topic] = found[0]
        return found


NUMERIC: Final = "number"
_NUMBER_STARTS: Final = frozenset(bytes((code,)) for code in b"+-.0123456789")


def _form(message: DecoderMessage) -> tuple[str, tuple[str, ...]]:
    """Return the form of a payload, and the keys of a JSON object."""
    try:
        text = message.text
    except RejectedError:
        return BINARY, ()
    if text[:1] == "{":
        try:
            return OBJECT, tuple(message.json)
        except RejectedError:
            return OBJECT, ()
    if text[:1] == "[":
        return ARRAY, ()
    return (NUMERIC if NUMBER.fullmatch(text) else WORDS), ()


def _checked(found: Decoded | Rejected) -> Decoded | Rejected:
    if isinstance(found, Decoded) and len(found.readings) > MAX_READINGS:
        return Rejected("too many fields", f"{len(found.readings)} readings in one message: at most {MAX_READINGS}")
    return found


_PACKAGE: Final = "godwit.pipeline.decoders."


def _check_foreign(found: Any) -> None:
    """Raise TypeError or RejectedError if a decoder of another package returned what no table can hold."""
    if isinstance(found, Rejected):
        return
    if not isinstance(found, Decoded):
        raise TypeError(f"it returned {type(found).__name__}, and should return Decoded, Rejected or None")
    for one in found.readings:
        if not isinstance(one, Reading):
            raise TypeError(f"a reading is of the type {type(one).__name__}, and should be a Reading")
        texts = (one.quantity, one.unit, one.name, one.unit_source)
        if not one.quantity or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"quantity, unit, name and unit_source of a reading are texts: {texts!r:.100}")
        if isinstance(one.value, bool) or not isinstance(one.value, int | float):
            raise TypeError(f"the value of {one.quantity[:40]} is {type(one.value).__name__}, and should be a number")
        if not math.isfinite(one.value):
            raise RejectedError("not finite", f"{one.quantity[:40]} is {one.value}")


def _unknown(message: DecoderMessage) -> Rejected:
    """Return the reason for a message that is of no known format."""
    try:
        text = message.text
        if not text:
            return Rejected("empty", "the payload is empty")
        if text[:1] in "{[":
            message.json  # noqa: B018  # raises the reason
    except RejectedError as error:
        return error.rejection
    return Rejected(
        "no number",
        f"{text[:60]!r} is not a number with an optional unit, and no decoder reads it: choose one with "
        f'[[pipeline.decoder]] filter = "{message.topic[:100]}", decoder = "..."',
    )


def installed() -> list[type[Decoder]]:
    """Return the decoders of installed packages. Raise PipelineError if one cannot be loaded."""
    found = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda one: one.name):
        try:
            decoder = point.load()
        except Exception as error:
            raise PipelineError(f"the decoder {point.name} ({point.value}) cannot be loaded: {error}") from error
        if not (isinstance(decoder, type) and issubclass(decoder, Decoder)):
            raise PipelineError(f"the entry point {point.name} ({point.value}) is not a subclass of Decoder")
        found.append(decoder)
    return found


def decoder_set(rules: Iterable[DecoderRule] = ()) -> DecoderSet:
    """Return all decoders, with the rules of the configuration. Raise PipelineError if it is invalid."""
    return DecoderSet([*installed(), *BUILT_IN], rules)
