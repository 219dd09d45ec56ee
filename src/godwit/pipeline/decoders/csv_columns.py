"""CSV with declared columns, one or more lines. Only for topics for which the columns are configured.

The columns are named as the fields of flat JSON: "time", "device", "temperature_F". "-" is a column that is not
read. A line has exactly the declared columns. With `header = true` the first line is skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.json_fields import OPTIONS, JsonFields
from godwit.pipeline.decoders.results import DEFAULT, TEXT, Decoded, Reading, Rejected
from godwit.pipeline.errors import PipelineError

MAX_LINES: Final = 1024
IGNORED: Final = "-"


class CsvDecoder(Decoder):
    """Reads lines of declared columns."""

    name = "csv"
    title = "CSV with declared columns, for configured topics"
    filters = ()
    forms = frozenset((TEXT,))
    option_names = ("columns", "separator", "header", "decimal", *OPTIONS)

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        columns = self.options.get("columns", [])
        if not isinstance(columns, list) or not all(isinstance(one, str) and one for one in columns):
            raise PipelineError('the option columns of the decoder csv is not a list of names: ["time", "temperature"]')
        named = [one for one in columns if one != IGNORED]
        if len(set(named)) != len(named):
            raise PipelineError("the option columns of the decoder csv has a name twice")
        if options is not None and not named:
            raise PipelineError('the decoder csv needs columns: columns = ["time", "temperature"]')
        self._columns = columns
        self._separator = self._sign("separator", ",")
        self._decimal = self._sign("decimal", ".")
        self._has_header = self.options.get("header", False) is True
        self._fields = JsonFields({name: one for name, one in self.options.items() if name in OPTIONS})

    def _sign(self, name: str, default: str) -> str:
        found = self.options.get(name, default)
        if not isinstance(found, str) or len(found) != 1:
            raise PipelineError(f"the option {name} of the decoder csv is not one character")
        return found

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        lines = message.text.splitlines()[1 if self._has_header else 0 :]
        if len(lines) > MAX_LINES:
            return Rejected("too many fields", f"{len(lines)} lines: at most {MAX_LINES}")
        try:
            rows = [row for row in csv.reader(lines, delimiter=self._separator, strict=True) if row]
        except csv.Error as error:
            return Rejected("bad payload", f"it is not CSV: {error}")
        found = []
        for row in rows:
            if len(row) != len(self._columns):
                return Rejected("bad payload", f"a line has {len(row)} columns and should have {len(self._columns)}")
            found.append(self._line(row, message.topic))
        if not found:
            return Rejected("empty", "it has no line of values")
        if len(found) == 1:
            return found[0]
        readings = [one._replace(time_us=line.time_us) for line in found for one in line.readings]
        return Decoded(readings, None, found[0].device, found[0].extra)

    def _line(self, row: list[str], topic: str) -> Decoded:
        cells = {
            name: cell.strip().replace(self._decimal, ".") if self._decimal != "." else cell.strip()
            for name, cell in zip(self._columns, row, strict=True)
            if name != IGNORED
        }
        found = self._fields.read_flat(cells, topic)
        assert found is not None, "cells are texts"
        return found


DECODER: Final = CsvDecoder
EXAMPLES: Final = (
    DecoderExample(
        "logger/7",
        b"2026-11-15T12:00:00Z,21.5,40",
        (
            Reading("temperature", 21.5, "°C", unit_source=DEFAULT),
            Reading("humidity", 40.0, "%", unit_source=DEFAULT),
        ),
        options={"columns": ["time", "temperature", "humidity"]},
        is_configured=True,
        time_us=1_794_744_000_000_000,
    ),
    DecoderExample(
        "logger/7",
        b"a;68,0",
        (Reading("temperature", 20.0, "°C"),),
        options={"columns": ["device", "temperature_F"], "separator": ";", "decimal": ","},
        is_configured=True,
    ),
    DecoderExample(
        "logger/7",
        b"21.5",
        reason="bad payload",
        options={"columns": ["time", "temperature"]},
        is_configured=True,
    ),
)
