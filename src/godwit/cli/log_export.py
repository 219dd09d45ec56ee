"""`godwit log export`: messages of the log into a file, in bounded memory.

The way is the archive's: ranges of blocks as Arrow, whatever is gone told. Parquet takes that as it is, JSON lines are
made of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import typer

from godwit.archive.range_reader import RangeReader, Ranges, gone_below
from godwit.archive.requests import ReadRequest
from godwit.broker.topics import check_filter
from godwit.cli.connecting import tell
from godwit.cli.log_folder import LogFile, ranges
from godwit.cli.new_file import check_free, new_file
from godwit.cli.places import read_place
from godwit.cli.progress import WorkProgress
from godwit.cli.rendering import Lines
from godwit.cli.tables import show_objects
from godwit.cli.text import count, safe, size
from godwit.client.message import Message
from godwit.errors import StorageError, UsageError
from godwit.limits import MIB
from godwit.store.port import joined

if TYPE_CHECKING:
    import pyarrow as pa

    from godwit.store.reader import LogReader

FORMATS: Final = ("parquet", "jsonl")
ROW_GROUP_BYTES: Final = 64 * MIB
"""Parquet is written in groups of rows, which are held until they are this long: small ones are slow to read."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Write: TypeAlias = Callable[["pa.RecordBatch"], object]


class Order(NamedTuple):
    """What was asked for, as it was typed."""

    filters: tuple[str, ...]
    start: str
    stop: str
    output: Path
    form: str | None
    force: bool


def run_export(folder: Path, order: Order, *, as_json: bool) -> None:
    """Write the file and tell what is in it; exit code 1 if something had to be left out."""
    for each in order.filters:
        check_filter(each)
    if str(order.output) == "-":
        raise UsageError("an export is a file: name one, or print messages with godwit log tail --json --count N")
    form = form_of(order.form, order.output)
    check_free(order.output, force=order.force)
    with LogFile(folder) as log:
        request = request_of(log.reader, order)
        with new_file(order.output, force=order.force) as part:
            messages, lost = _write(log.reader, request, part, form)
    size_bytes = order.output.stat().st_size
    if as_json:
        show_objects([{"path": str(order.output), "messages": messages, "size_bytes": size_bytes, "lost": lost}])
    else:
        typer.echo(f"{safe(str(order.output))}: {count(messages, 'message')}, {size(size_bytes)}")
    if lost:
        raise StorageError(
            f"messages at the offsets {ranges(lost)} are not in {safe(str(order.output))}: they are damaged "
            "(godwit log verify tells more), or retention has deleted them meanwhile"
        )


def request_of(reader: LogReader, order: Order) -> ReadRequest:
    """What to ask of the archive's reading. What retention deleted before is told, once, and then no news."""
    start, stop = place(reader, "--from", order.start), place(reader, "--to", order.stop)
    if stop < start:
        raise UsageError(
            f"--to {order.stop} (offset {stop:,}) lies before --from {order.start} (offset {start:,}); swap them"
        )
    gone = gone_below(reader.first_offset(), reader.retention_floors(), order.filters)
    if start < gone and order.start != "earliest":
        tell(f"retention has deleted messages from before offset {gone:,}; what is left is exported")
    return ReadRequest(order.filters, start, stop, fail_on_data_loss=False, gaps_known_below=gone)


def form_of(form: str | None, output: Path) -> str:
    """The format that was asked for, or that the file's name says."""
    if form is None:
        form = output.suffix.removeprefix(".")
        if form not in FORMATS:
            raise UsageError(f"the name of {safe(str(output))} says no format; add --format parquet or --format jsonl")
    if form not in FORMATS:
        raise UsageError(f"there is no format {safe(form)}; choose parquet or jsonl")
    return form


def place(reader: LogReader, option: str, text: str) -> int:
    """The offset that somebody means; one beyond the end means the end."""
    match read_place(text):
        case "earliest":
            return reader.first_offset()
        case "latest":
            return reader.next_offset()
        case int(offset):
            return min(offset, reader.next_offset())
        case datetime() as moment:
            return reader.offset_at((moment - _EPOCH) // timedelta(microseconds=1))
    raise UsageError(
        f"{option} {text!r} is no place in a log; write earliest, latest, an offset, or a time such as 2025-03-01T12:00"
    )


def _write(reader: LogReader, request: ReadRequest, path: Path, form: str) -> tuple[int, Ranges]:
    reading = RangeReader(request, reader)
    messages, lost = 0, list[tuple[int, int]]()
    sink = _parquet if form == "parquet" else _jsonl
    with WorkProgress("exporting", enabled=sys.stderr.isatty()) as progress, sink(path, reading.schema) as write:
        while (piece := reading.next_piece(reader)) is not None:
            write(piece.batch)
            messages += piece.batch.num_rows
            lost = joined([*lost, *piece.lost])
            progress.show(piece.next_offset - reading.start, reading.end - reading.start)
    return messages, lost


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow import parquet

    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0

    def write(batch: pa.RecordBatch) -> None:
        nonlocal waiting_bytes
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= ROW_GROUP_BYTES:
            flush()

    def flush() -> None:
        nonlocal waiting_bytes
        writer.write_table(pa.Table.from_batches(waiting, schema))
        waiting.clear()
        waiting_bytes = 0

    with parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=["topic", "publisher"]) as writer:
        yield write
        if waiting:
            flush()


@contextmanager
def _jsonl(path: Path, schema: pa.Schema) -> Iterator[Write]:
    lines = Lines(as_json=True)
    with path.open("wb") as file:
        yield lambda batch: file.write(lines.render(messages_of(batch)))


def messages_of(batch: pa.RecordBatch) -> list[Message]:
    """Rows of the archive as the messages that they are."""
    import pyarrow as pa

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return list(
        map(
            Message,
            columns["topic"].to_pylist(),
            columns["payload"].to_pylist(),
            columns["publisher"].to_pylist(),
            columns["published"].cast(pa.int64()).to_pylist(),
            columns["received"].cast(pa.int64()).to_pylist(),
            columns["qos"].to_pylist(),
            columns["retained"].to_pylist(),
            columns["offset"].to_pylist(),
        )
    )
