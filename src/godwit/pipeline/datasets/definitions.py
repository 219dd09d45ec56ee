"""silver/definitions: descriptions of later messages, from births of Sparkplug, discovery messages and the like.

Decoders return definitions by key, see `Decoder.define`. A definition applies to the messages of the same broker with
higher offsets, until another one of the same key follows. Only changes are stored. Therefore a batch that is repeated,
and a repair that reads messages again, find the same definitions as the first time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession

from godwit.pipeline.datasets import bronze
from godwit.pipeline.decoders.base import DecoderMessage, Definitions
from godwit.pipeline.decoders.selection import DecoderSet, java_pattern
from godwit.pipeline.lake import Lake, TableColumn, TableSpec, Watermarks

SPEC: Final = TableSpec(
    "silver/definitions",
    "one row per definition in a message: (broker, offset, decoder, key)",
    (
        TableColumn("broker", pa.string()),
        TableColumn("offset", pa.int64()),
        TableColumn("decoder", pa.string()),
        TableColumn("key", pa.string(), "the defined object, in the terms of the decoder"),
        TableColumn("definition", pa.string(), "JSON"),
    ),
    keys=("broker", "offset", "decoder", "key"),
    checks={"it has a decoder, a key and a definition": "decoder != '' AND key != '' AND definition != ''"},
)
CAUGHT_UP: Final = "caught up"
"""Watermark: the definitions of messages from before this table existed were read."""
DefinitionRow: TypeAlias = tuple[str, int, str, str, str]
"""The columns of the table."""


def fold(decoders: DecoderSet, messages: Iterable[DecoderMessage], known: Definitions) -> list[DefinitionRow]:
    """Add the definitions of messages, sorted by broker and offset, to the known ones. Return the changes."""
    changes: list[DefinitionRow] = []
    for message in messages:
        for row in decoders.define(message):
            broker, offset, decoder, key, text = row
            if not known.is_same(broker, decoder, key, offset, text):
                known.add([row])
                changes.append(row)
    return changes


class DefinitionStore:
    """The definitions of a lake, with those of the current batch."""

    def __init__(self, lake: Lake, decoders: DecoderSet) -> None:
        self.table = lake.table(SPEC)
        self._messages = lake.table(bronze.SPEC)
        self._decoders = decoders
        self._patterns = [java_pattern(one) for one in decoders.definition_filters]
        self._known: Definitions | None = None

    @property
    def known(self) -> Definitions:
        """All definitions of the table."""
        if self._known is None:
            rows = self.table.arrow().to_pydict()
            self._known = Definitions(zip(*[rows[name] for name in SPEC.schema.names], strict=True))
        return self._known

    def update(self, messages: Iterable[DecoderMessage], ends: Watermarks) -> None:
        """Add the definitions in messages of a step that ends at these offsets. A repeated call does nothing."""
        begins = {log: self.table.watermark(log) or 0 for log in ends}
        new_ends = {log: end for log, end in ends.items() if end > begins[log]}
        new = [one for one in messages if one.offset >= begins.get(one.broker, 0)] if new_ends else []
        if new:
            known = self.known
            try:
                changes = fold(self._decoders, sorted(new, key=lambda one: (one.broker, one.offset)), known)
                self._append(changes, new_ends)
            except BaseException:
                self._known = None  # the table, not the memory, has the last word
                raise

    def catch_up(self, spark: SparkSession, *, is_new: bool = False) -> None:
        """Read the definitions of all messages in bronze, if that was never done; with `is_new`, again."""
        if not is_new and self.table.watermark(CAUGHT_UP) is not None:
            return
        messages = self._messages.frame(spark) if self._messages.version is not None else None
        kept = [] if messages is None or not is_new else self._of_expired(messages)
        self._known = Definitions(kept)
        changes = kept if messages is None else kept + fold(self._decoders, self._defining(messages), self._known)
        self.table.replace(_rows(changes))
        self.table.append_arrow(SPEC.schema.empty_table(), {CAUGHT_UP: 0})

    def _of_expired(self, messages: DataFrame) -> list[DefinitionRow]:
        """Return the definitions of messages that bronze no longer has."""
        if self._messages.expired_before is None:
            return []
        firsts = {row[0]: row[1] for row in messages.groupBy("broker").agg({"offset": "min"}).collect()}
        rows = self.table.arrow().select(SPEC.schema.names).to_pylist()
        found = [
            tuple(row.values()) for row in rows if row["broker"] not in firsts or row["offset"] < firsts[row["broker"]]
        ]
        return sorted(found)

    def _defining(self, messages: DataFrame) -> Iterator[DecoderMessage]:
        """Yield the messages that may define others, in the order of their offsets. The driver holds a part of them."""
        if not self._patterns:
            return
        is_defining = reduce(Column.__or__, [messages.topic.rlike(one) for one in self._patterns])
        found = messages.where(is_defining).select("broker", "offset", "topic", "payload").orderBy("broker", "offset")
        for row in found.toLocalIterator():
            yield DecoderMessage(row["topic"], bytes(row["payload"]), broker=row["broker"], offset=row["offset"])

    def rows_since(self, begins: Mapping[str, int] | None = None) -> list[DefinitionRow]:
        """Return the definitions that messages at and above these offsets may need; all without offsets."""
        return self.known.rows_since(begins)

    def _append(self, changes: list[DefinitionRow], ends: Watermarks) -> None:
        if changes:
            self.table.append_arrow(_rows(changes), ends)


def _rows(changes: list[DefinitionRow]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SPEC.schema.names, row, strict=True)) for row in changes], SPEC.schema)
