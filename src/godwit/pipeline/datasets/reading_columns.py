"""Readings of many messages at once, by the shapes of their payloads: see godwit.pipeline.decoders.shapes.

Numbers, times and texts are processed as columns. A message is left out, to be decoded by itself, if its payload has no
shape, if one of its numbers is out of the bounds of its shape, or if its time is not one or is in the future. Groups of
a few messages are left out, too: for these the work for each group is more than the work for each message.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.pipeline.decoders.content import EARLIEST_S, EARLIEST_US, LATEST_S
from godwit.pipeline.decoders.selection import DecoderSet
from godwit.pipeline.decoders.shapes import MAX_WHOLE, Layout, Shape, ShapeField
from godwit.pipeline.decoders.skeletons import Numbers, Skeletons, find_skeletons

MIN_MESSAGES: Final = 64
"""Smaller batches are decoded message by message."""
MIN_OF_SHAPE: Final = 4
"""Messages in a batch from which on the shape of a topic and skeleton is looked for."""
MIN_OF_LAYOUT: Final = 32
"""Messages in a batch from which on a layout is processed as columns."""
_CLOSE: Final = 1e-5
"""Numbers that are closer to an error value are decoded one by one."""
_MAX_DIGITS: Final = 15
"""Significant digits of a decimal number up to which its shortest spelling is the one that is read."""


class FieldTexts(NamedTuple):
    """The constant texts of a reading."""

    quantity: str
    unit: str
    name: str
    unit_source: str
    decoder: str


class ReadingColumns(NamedTuple):
    """The readings of messages that were read by their shapes, in the order of the messages."""

    rows: Numbers
    """For each reading, the position of its message in the batch."""
    positions: Numbers
    fields: Numbers
    """For each reading, the position of its texts in `texts`."""
    texts: list[FieldTexts]
    values: Numbers
    times_us: Numbers
    devices: pa.Array
    extras: pa.Array


class MessageTimes(NamedTuple):
    """The times of messages, in microseconds since 1970."""

    default_us: Numbers
    """The event time of messages whose payload has none."""
    latest_us: Numbers
    """The latest event time that is valid."""


def read_columns(
    decoders: DecoderSet, topics: pa.Array, payloads: pa.Array, is_wanted: Numbers, times: MessageTimes
) -> ReadingColumns | None:
    """Return the readings of the wanted messages that can be read by their shapes; None if there are none."""
    if np.count_nonzero(is_wanted) < MIN_MESSAGES:
        return None
    encoded = topics.dictionary_encode()
    names, topic_codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    parts: list[_Part] = []
    texts: dict[FieldTexts, int] = {}
    for skeletons in find_skeletons(payloads):
        groups = _Groups(decoders, names, topic_codes, payloads, skeletons, is_wanted)
        for members, at in groups.layouts:
            parts.append(_read_layout(members, at, groups, times, texts))
    parts = [one for one in parts if one.rows.size]
    if not parts:
        return None
    rows = np.concatenate([one.rows for one in parts])
    joined = ReadingColumns(
        rows,
        np.concatenate([one.positions for one in parts]),
        np.concatenate([one.fields for one in parts]),
        list(texts),
        np.concatenate([one.values for one in parts]),
        np.concatenate([one.times_us for one in parts]),
        pa.concat_arrays([one.devices for one in parts]),
        pa.concat_arrays([one.extras for one in parts]),
    )
    return joined if len(parts) == 1 else _in_order(joined)


def _in_order(columns: ReadingColumns) -> ReadingColumns:
    order = np.argsort(columns.rows, kind="stable")
    taken = pa.array(order)
    return ReadingColumns(
        columns.rows[order],
        columns.positions[order],
        columns.fields[order],
        columns.texts,
        columns.values[order],
        columns.times_us[order],
        columns.devices.take(taken),
        columns.extras.take(taken),
    )


# -- groups -----------------------------------------------------------------------------------------------------------


class LayoutMembers(NamedTuple):
    """A layout, and the shapes in a batch that have it."""

    layout: Layout
    number: int
    shapes: list[Shape]


class _Groups:
    """Messages with a shape, by the topics and skeletons that determine it."""

    def __init__(
        self,
        decoders: DecoderSet,
        topics: list[str],
        topic_codes: Numbers,
        payloads: pa.Array,
        skeletons: Skeletons,
        is_wanted: Numbers,
    ) -> None:
        self.skeletons = skeletons
        pairs = topic_codes[skeletons.rows].astype(np.int64) * len(skeletons.texts) + skeletons.codes
        encoded = pa.array(pairs).dictionary_encode()
        self._codes = encoded.indices.to_numpy()
        """For each payload with a skeleton, its group."""
        places = encoded.dictionary.to_numpy()
        counts = np.bincount(self._codes, minlength=places.size)
        examples = np.zeros(places.size, np.int64)
        examples[self._codes[::-1]] = skeletons.rows[::-1]  # the first one of each group
        shapes: list[Shape | None] = []
        for place, count, example in zip(places.tolist(), counts.tolist(), examples.tolist(), strict=True):
            topic, skeleton = topics[place // len(skeletons.texts)], skeletons.texts[place % len(skeletons.texts)]
            if count >= MIN_OF_SHAPE:
                shapes.append(decoders.shape(topic, skeleton, payloads[example].as_py()))
            else:
                shapes.append(decoders.known_shape(topic, skeleton))
        members: dict[int, LayoutMembers] = {}
        layout_of = np.full(places.size, -1, np.int64)
        self._member_of = np.zeros(places.size, np.int64)
        for group, shape in enumerate(shapes):
            if shape is not None:
                found = members.setdefault(id(shape.layout), LayoutMembers(shape.layout, len(members), []))
                layout_of[group] = found.number
                self._member_of[group] = len(found.shapes)
                found.shapes.append(shape)
        of_message = layout_of[self._codes]
        of_message[~is_wanted[skeletons.rows]] = -1
        counts = np.bincount(of_message + 1, minlength=len(members) + 1)[1:]
        self.layouts = [
            (one, np.flatnonzero(of_message == one.number))
            for one in members.values()
            if counts[one.number] >= MIN_OF_LAYOUT
        ]
        """The layouts to process, with the positions of their messages in `skeletons`."""

    def members(self, at: Numbers) -> Numbers:
        """Return the positions of the shapes of these messages in the shapes of their layout."""
        found: Numbers = self._member_of[self._codes[at]]
        return found


# -- one layout -------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """The readings of one layout."""

    rows: Numbers
    positions: Numbers
    fields: Numbers
    values: Numbers
    times_us: Numbers
    devices: pa.Array
    extras: pa.Array


def _read_layout(
    members: LayoutMembers, at: Numbers, groups: _Groups, times: MessageTimes, texts: dict[FieldTexts, int]
) -> _Part:
    """Return the readings of the messages at these positions in the skeletons."""
    layout, shapes = members.layout, members.shapes
    numbers = _LayoutNumbers(groups.skeletons, at)
    is_read = np.ones(at.size, bool)
    values = np.empty((at.size, len(layout.fields)))
    for index, field in enumerate(layout.fields):
        values[:, index], is_valid = _values(field, numbers.values(field.slot))
        is_read &= is_valid
    for slot in layout.zeros:
        is_read &= numbers.values(slot) == 0
    rows = groups.skeletons.rows[at]
    if layout.time is not None:
        times_us, is_time = numbers.times(layout.time)
        is_read &= is_time
    else:
        times_us = times.default_us[rows]
        if any(one.time_us is not None for one in shapes):
            stated = np.array([one.time_us or 0 for one in shapes])[groups.members(at)]
            times_us = np.where(stated == 0, times_us, stated)
    is_read &= times_us <= times.latest_us[rows]
    if layout.device is not None:
        is_read &= numbers.is_whole(layout.device) & ~numbers.is_minus_zero(layout.device)
    for slot in layout.extra:
        if slot >= 0:
            is_read &= numbers.is_shortest(slot)
    if not is_read.all():
        kept = np.flatnonzero(is_read)
        at, rows, values, times_us = at[kept], rows[kept], values[kept], times_us[kept]
        numbers = _LayoutNumbers(groups.skeletons, at)
    shape_of = pa.array(groups.members(at))
    if layout.device is not None:
        devices = numbers.texts(layout.device)
    else:
        devices = pa.array([one.device for one in shapes], pa.string()).take(shape_of)
    extras = _extras(members, shape_of, numbers)
    count = len(layout.fields)
    codes = [
        texts.setdefault(FieldTexts(one.quantity, one.unit, one.name, one.unit_source, layout.decoder), len(texts))
        for one in layout.fields
    ]
    if count > 1:
        repeated = pa.array(np.repeat(np.arange(at.size), count))
        devices, extras = devices.take(repeated), extras.take(repeated)
    return _Part(
        np.repeat(rows, count),
        np.tile(np.arange(count, dtype=np.int32), at.size),
        np.tile(np.array(codes, np.int32), at.size),
        values.ravel(),
        np.repeat(times_us, count),
        devices,
        extras,
    )


class _LayoutNumbers:
    """The numbers and times of the messages of one layout, by slot."""

    def __init__(self, skeletons: Skeletons, at: Numbers) -> None:
        self._skeletons = skeletons
        self._firsts = skeletons.first_numbers[at]
        self._first_times = skeletons.first_times[at]

    def values(self, slot: int) -> Numbers:
        found: Numbers = self._skeletons.numbers[self._firsts + slot]
        return found

    def texts(self, slot: int) -> pa.Array:
        if slot < 0:
            return self._skeletons.time_texts.take(pa.array(self._first_times + ~slot))
        return self._skeletons.number_texts.take(pa.array(self._firsts + slot))

    def times(self, slot: int) -> tuple[Numbers, Numbers]:
        """Return microseconds since 1970, and which are valid."""
        if slot >= 0:
            return _times(self.values(slot))
        times_us: Numbers = self._skeletons.times_us[self._first_times + ~slot]
        return times_us, times_us >= EARLIEST_US

    def is_whole(self, slot: int) -> Numbers:
        found: Numbers = self._skeletons.is_whole[self._firsts + slot]
        return found

    def is_minus_zero(self, slot: int) -> Numbers:
        values = self.values(slot)
        found: Numbers = (values == 0) & np.signbit(values)
        return found

    def is_shortest(self, slot: int) -> Numbers:
        """Return whether Python would write the numbers in the same way."""
        is_whole = self.is_whole(slot)
        if is_whole.all():
            return ~self.is_minus_zero(slot)
        texts, size = self.texts(slot), np.abs(self.values(slot))
        is_short = pc.utf8_length(texts).to_numpy() <= _MAX_DIGITS + 1
        is_tidy = pc.match_substring_regex(texts, r"\.(?:0|[0-9]*[1-9])$").to_numpy(zero_copy_only=False)
        is_plain = is_short & is_tidy & ((size >= 1e-4) | (size == 0))
        return np.where(is_whole, ~self.is_minus_zero(slot), is_plain)


def _values(field: ShapeField, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return the values of a field, and which of them are valid."""
    is_valid = (numbers >= max(field.low, -MAX_WHOLE)) & (numbers <= min(field.high, MAX_WHOLE))
    if (is_zero := numbers == 0).any():
        is_valid &= ~(is_zero & np.signbit(numbers))  # not the same as a whole number and as a decimal one
    values = numbers * field.factor + field.offset
    if field.divisor != 1:
        values = values / field.divisor
    is_converted = field.divisor != 1 or field.factor != 1 or field.offset != 0
    if is_valid.any():
        for seen in (numbers, values) if is_converted else (numbers,):
            least, greatest = seen[is_valid].min() - _CLOSE, seen[is_valid].max() + _CLOSE
            for error in field.errors:
                if least <= error <= greatest:
                    is_valid &= np.abs(seen - error) > _CLOSE
    return values, is_valid


def _times(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return the microseconds since 1970 of times in seconds, milli- or microseconds, and which numbers are times."""
    times_us = np.zeros(numbers.size, np.int64)
    is_time = np.zeros(numbers.size, bool)
    for scale in (1_000_000, 1000, 1):
        scaled = numbers * scale
        is_one = (scaled >= EARLIEST_S * 1_000_000) & (scaled <= LATEST_S * 1_000_000) & ~is_time
        if is_one.all():
            return np.rint(scaled).astype(np.int64), is_one
        times_us[is_one] = np.rint(scaled[is_one]).astype(np.int64)
        is_time |= is_one
    return times_us, is_time


def _extras(members: LayoutMembers, shape_of: pa.Array, numbers: _LayoutNumbers) -> pa.Array:
    """Return the JSON of the other fields of each message."""
    texts, slots = [one.extra for one in members.shapes], members.layout.extra
    if not any(texts):
        return pa.nulls(len(shape_of), pa.string())
    pieces = []
    for index in range(len(slots) + 1):
        pieces.append(pa.array([one[index] if one else None for one in texts], pa.string()).take(shape_of))
        if index < len(slots):
            pieces.append(numbers.texts(slots[index]))
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, "")
