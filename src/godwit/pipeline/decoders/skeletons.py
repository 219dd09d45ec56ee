"""Find the skeletons of payloads: see godwit.pipeline.decoders.shapes.

A few operations on the bytes of all payloads at once do it. Each payload that is not of the plain kind is left out:
with escapes in it, or with numbers that have other spellings.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.pipeline.decoders.shapes import _TIME, _ZONE, LOCAL_TIME_MARK, MARK, TIME_MARK

MAX_BYTES: Final = 1024
"""Longer payloads are decoded by themselves."""
MAX_DIGITS: Final = 20
"""Longer numbers are not read here."""
Numbers: TypeAlias = "npt.NDArray[Any]"
_TIME_BYTES: Final = (19, 32)
"""The lengths of the shortest and the longest such time."""

_QUOTE, _BACKSLASH, _OPEN, _CLOSE, _COLON = b'"\\{}:'
_MINUS, _POINT, _ZERO, _NINE = b"-.09"


class Skeletons(NamedTuple):
    """The skeletons and numbers of payloads."""

    rows: Numbers
    """The payloads that have a skeleton, in ascending order."""
    codes: Numbers
    """For each of them, the position of its skeleton in `texts`."""
    texts: list[bytes]
    first_numbers: Numbers
    """For each of them, the position of its first number in the following arrays."""
    numbers: Numbers
    """As double."""
    number_texts: pa.Array
    """As they are written."""
    is_whole: Numbers
    """Whether a number is written without a point."""
    first_times: Numbers
    """For each payload, the position of its first time in the following arrays."""
    time_texts: pa.Array
    times_us: Numbers
    """Microseconds since 1970; 0 for one without a zone."""


def find_skeletons(payloads: pa.Array) -> list[Skeletons]:
    """Return the skeletons of flat JSON objects, and those of plain numbers. Other payloads are left out."""
    stops, data = _buffers(payloads)
    lengths = np.diff(stops)
    starts = stops[:-1]
    is_short = (lengths >= 1) & (lengths <= MAX_BYTES)
    if not data.size:
        return []
    first = data[np.minimum(starts, data.size - 1)]
    last = data[np.maximum(stops[1:] - 1, 0)]
    is_object = is_short & (first == _OPEN) & (last == _CLOSE)
    is_number = is_short & (lengths <= MAX_DIGITS) & ((first - _MINUS) <= _NINE - _MINUS)
    found = []
    for is_wanted, find in ((is_object, _objects), (is_number, _plain_numbers)):
        rows = np.flatnonzero(is_wanted)
        if rows.size:
            chosen = payloads if rows.size == len(payloads) else payloads.take(pa.array(rows))
            found.append(find(chosen, rows))
    return [one for one in found if one is not None and one.rows.size]


def _buffers(payloads: pa.Array) -> tuple[Numbers, Numbers]:
    """Return where the payloads begin, and where the last one ends, and their bytes."""
    _, stop_bytes, data_bytes = payloads.buffers()
    stops = np.frombuffer(stop_bytes, np.int32, len(payloads) + 1, 4 * payloads.offset)
    data = np.frombuffer(data_bytes, np.uint8) if data_bytes is not None else np.zeros(0, np.uint8)
    return stops - stops[0], data[stops[0] : stops[-1]]


def _plain_numbers(payloads: pa.Array, rows: Numbers) -> Skeletons | None:
    stops, data = _buffers(payloads)
    read = _read_numbers(data, stops)
    if not read.is_valid.all():
        keep = np.flatnonzero(read.is_valid)
        return _plain_numbers(payloads.take(pa.array(keep)), rows[keep]) if keep.size else None
    zeros = np.zeros(rows.size, np.int64)
    numbers = (np.arange(rows.size), read.values, read.texts, read.is_whole)
    return Skeletons(rows, zeros, [MARK], *numbers, zeros, pa.array([], pa.string()), np.zeros(0, np.int64))


def _objects(payloads: pa.Array, rows: Numbers) -> Skeletons | None:
    stops, data = _buffers(payloads)
    is_quote = data == _QUOTE
    quotes = np.flatnonzero(is_quote)
    # Strings reach from one quote to the next: that holds if there are no escapes, and quotes come in pairs.
    is_odd = np.diff(np.searchsorted(quotes, stops)) % 2 != 0
    for is_one in (data == _BACKSLASH, data >= LOCAL_TIME_MARK[0]):
        if is_one.any():
            is_odd |= np.diff(np.searchsorted(np.flatnonzero(is_one), stops)) != 0
    if is_odd.any():
        keep = np.flatnonzero(~is_odd)
        return _objects(payloads.take(pa.array(keep)), rows[keep]) if keep.size else None
    is_text = np.bitwise_xor.accumulate(is_quote.view(np.uint8))
    is_digit = ((data - _MINUS) <= _NINE - _MINUS) & (is_text == 0)  # or a point, a minus sign, a slash
    # Each payload begins and ends with a brace, so that a run is within one of them.
    edges = np.flatnonzero(is_digit[1:] != is_digit[:-1]) + 1
    begins, ends = edges[0::2], edges[1::2]
    read = _read_numbers(data[is_digit], _joined(ends - begins))
    first_numbers = np.searchsorted(begins, stops)
    if not read.is_valid.all():
        bad = np.flatnonzero(~read.is_valid)
        keep = np.flatnonzero(np.diff(np.searchsorted(bad, first_numbers)) == 0)
        return _objects(payloads.take(pa.array(keep)), rows[keep]) if keep.size else None
    times = _read_times(data, quotes)
    marked = data.copy()
    marked[begins] = MARK[0]
    marked[times.begins] = times.marks
    is_kept = ~(is_digit | times.is_part)
    is_kept[begins] = True
    is_kept[times.begins] = True
    first_times = np.searchsorted(times.begins, stops)
    removed = _joined(ends - begins - 1)[first_numbers] + _joined(times.sizes - 1)[first_times]
    buffers = [None, pa.py_buffer((stops - removed).astype(np.int32)), pa.py_buffer(marked[is_kept])]
    skeletons = pa.Array.from_buffers(pa.binary(), rows.size, buffers).dictionary_encode()
    return Skeletons(
        rows,
        skeletons.indices.to_numpy(),
        skeletons.dictionary.to_pylist(),
        first_numbers[:-1],
        read.values,
        read.texts,
        read.is_whole,
        first_times[:-1],
        times.texts,
        times.times_us,
    )


def _joined(sizes: Numbers) -> Numbers:
    """Return where texts of these sizes begin that are joined, and where the last one ends."""
    stops = np.zeros(sizes.size + 1, np.int32)
    np.cumsum(sizes, out=stops[1:])
    return stops


class _ReadTimes(NamedTuple):
    begins: Numbers
    sizes: Numbers
    marks: Numbers
    is_part: Numbers
    """For each byte, whether it is in one of the times."""
    texts: pa.Array
    times_us: Numbers


def _read_times(data: Numbers, quotes: Numbers) -> _ReadTimes:
    """Read the strings that are times."""
    begins = quotes[0::2] + 1
    sizes = quotes[1::2] - begins
    is_one = (sizes >= _TIME_BYTES[0]) & (sizes <= _TIME_BYTES[1])
    begins, sizes = begins[is_one], sizes[is_one]
    is_one = (data[begins + 13] == _COLON) & (data[begins + 16] == _COLON)
    begins, sizes = begins[is_one], sizes[is_one]
    is_part, texts = _parts(data, begins, sizes)
    is_one = pc.match_substring_regex(texts, f"^(?:{_TIME})$").to_numpy(zero_copy_only=False)
    if not is_one.all():
        begins, sizes = begins[is_one], sizes[is_one]
        is_part, texts = _parts(data, begins, sizes)
    has_zone = pc.match_substring_regex(texts, f"{_ZONE}$").to_numpy(zero_copy_only=False)
    times_us = np.zeros(begins.size, np.int64)
    texts = texts.cast(pa.string())
    zoned = texts.filter(pa.array(has_zone)).cast(pa.timestamp("us", "UTC"))
    times_us[has_zone] = zoned.cast(pa.int64()).to_numpy()
    marks = np.where(has_zone, TIME_MARK[0], LOCAL_TIME_MARK[0]).astype(np.uint8)
    return _ReadTimes(begins, sizes, marks, is_part, texts, times_us)


def _parts(data: Numbers, begins: Numbers, sizes: Numbers) -> tuple[Numbers, pa.Array]:
    """Return for each byte whether it is in one of some parts, and the parts."""
    if not begins.size:
        return np.zeros(data.size, bool), pa.array([], pa.binary())
    is_edge = np.zeros(data.size, np.uint8)
    is_edge[begins] = 1
    is_edge[begins + sizes] = 1  # the quote behind
    is_part = np.bitwise_xor.accumulate(is_edge).view(bool)
    buffers = [None, pa.py_buffer(_joined(sizes)), pa.py_buffer(data[is_part])]
    return is_part, pa.Array.from_buffers(pa.binary(), begins.size, buffers)


class _ReadNumbers(NamedTuple):
    values: Numbers
    texts: pa.Array
    is_whole: Numbers
    is_valid: Numbers
    """If not all are valid, the values are none."""


def _read_numbers(text: Numbers, stops: Numbers) -> _ReadNumbers:
    """Read numbers of JSON without an exponent, written one after the other."""
    count = stops.size - 1
    begins, ends = stops[:-1], stops[1:]
    if not text.size:
        return _ReadNumbers(np.zeros(0), pa.array([], pa.string()), np.zeros(0, bool), np.ones(count, bool))
    is_negative = text[begins] == _MINUS
    firsts = begins + is_negative
    first = text[np.minimum(firsts, text.size - 1)]
    second = text[np.minimum(firsts + 1, text.size - 1)]
    signs = np.diff(np.searchsorted(np.flatnonzero(text < _ZERO), stops))
    points = np.diff(np.searchsorted(np.flatnonzero(text == _POINT), stops))
    is_valid = (ends - begins <= MAX_DIGITS) & (first >= _ZERO) & (text[ends - 1] >= _ZERO)
    is_valid &= (points <= 1) & (signs == points + is_negative)
    is_valid &= (first > _ZERO) | (ends - firsts == 1) | (second == _POINT)
    if (is_letter := text > _NINE).any():
        is_valid &= np.diff(np.searchsorted(np.flatnonzero(is_letter), stops)) == 0
    texts = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(stops), pa.py_buffer(text)])
    values = texts.cast(pa.float64()).to_numpy() if is_valid.all() else np.zeros(0)
    return _ReadNumbers(values, texts, points == 0, is_valid)
