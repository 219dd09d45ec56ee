"""Reading a broker's log: `godwit log info`, `tail` and `export`.

The log is read in short statements, none of which stays open: a broker may write to the file meanwhile, and its WAL
must not grow because of a reader. Blocks without a requested topic are skipped unread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

import msgspec
import typer

from godwit.broker.topics import check_filter
from godwit.cli.connection import guarded, print_notice, run
from godwit.cli.message_lines import MessageFormatter
from godwit.cli.new_file import check_free, new_file
from godwit.cli.progress import WorkProgress
from godwit.cli.streams import Output
from godwit.cli.tables import Column, show_objects, show_table
from godwit.cli.text import count, iso_time, parse_position, safe, size
from godwit.client.message import Message
from godwit.errors import GodwitError, StorageError, UsageError
from godwit.install import pip_command
from godwit.limits import MIB
from godwit.net.archive_process import missing_archive_packages
from godwit.store.block import BlockRow, DamagedBlockError, decode_block, decode_topic_index
from godwit.store.folder import DataFolder, is_in_use
from godwit.store.maintenance import is_whole
from godwit.store.port import joined
from godwit.store.reader import EpochRow, LogReader, TopicSelection
from godwit.store.schema import refuse_lone_wal
from godwit.store.sqlite import refuse_missing
from godwit.wire.batch import decode_entry
from godwit.wire.epochs import same_below
from godwit.wire.extension import expiry_of
from godwit.wire.retention_floors import BROKER_WIDE

if TYPE_CHECKING:
    import pyarrow as pa

    from godwit.archive.range_reader import Ranges
    from godwit.archive.requests import ReadRequest
    from godwit.wire.batch import Entry


MAX_RANGES: Final = 8
"""Ranges that a sentence lists; further ranges are only counted."""


def log_path(folder: Path) -> Path:
    """Return the path of the log file in a folder.

    Raises:
        GodwitError: The folder has no log, or reading it failed.
    """
    path = DataFolder(folder).log_path
    try:
        if folder.is_file():
            raise GodwitError(f"{safe(str(folder))} is a file: name its folder with --data")
        found = path.exists()
    except OSError as error:
        raise GodwitError(f"cannot read {safe(str(folder))}: {error.strerror}; check its permissions") from error
    refuse_lone_wal(path)
    refuse_missing(path)
    if not found:
        raise GodwitError(
            f"{safe(str(folder))} has no log (no file {path.name}); name the folder of a broker with --data"
        )
    return path


class LogFile:
    """A reader of the log in a folder, for the duration of a block."""

    def __init__(self, folder: Path) -> None:
        self.path = log_path(folder)
        self._file = self._identity()
        self.reader = LogReader.open(self.path)
        if not is_whole(self.reader):
            print_notice(
                f"warning: the newest messages of {self.path} are missing, or hidden by a damaged write-ahead log: run "
                "godwit log verify"
            )

    def reopen(self) -> bool:
        """Open the file that has replaced the log, as `godwit log compact` does. Return whether there was one."""
        try:
            file = self._identity()
            if file == self._file:
                return False
            reader = LogReader.open(self.path)
        except (OSError, StorageError):
            return False  # it is being replaced, or it is deleted; the caller soon tries again
        self.reader.close()
        self.reader, self._file = reader, file
        return True

    def _identity(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_dev, found.st_ino

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()


def format_ranges(found: Sequence[tuple[int, int]]) -> str:
    """Return ranges of offsets as text, each with its last offset, and only the first few of many."""
    shown = [f"{begin:,}" if end == begin + 1 else f"{begin:,} to {end - 1:,}" for begin, end in found[:MAX_RANGES]]
    more = len(found) - len(shown)
    return ", ".join(shown) + (f" and {count(more, 'range')} more" if more else "")


# -- info -------------------------------------------------------------------------------------------------------------


TITLE_WIDTH: Final = 12


class TopicTotal(msgspec.Struct):
    """Number and size of a topic's messages in the log."""

    name: str
    messages: int = 0
    payload_bytes: int = 0


class Deleted(msgspec.Struct):
    """Offset below which retention deleted messages that match a rule's filter. None: the rule for the whole log."""

    filter: str | None
    before: int


class EpochInfo(msgspec.Struct):
    """One run of a broker that appended to the log."""

    id: str
    first_offset: int
    begun: str | None
    """Time at which its first message was received; None for messages older than epochs."""


class LogInfo(msgspec.Struct):
    """JSON form of `godwit log info`."""

    log_id: str
    path: str
    is_in_use: bool
    """Whether a broker uses the log."""
    size_bytes: int
    wal_bytes: int
    first_offset: int
    next_offset: int
    messages: int = 0
    payload_bytes: int = 0
    blocks: int = 0
    first_received: str | None = None
    last_received: str | None = None
    deleted: list[Deleted] = []
    epochs: list[EpochInfo] = []
    """Epochs in order. Copies of a log share the epochs of their common past."""
    damaged: list[tuple[int, int]] = []
    topics: list[TopicTotal] = []


def show_info(folder: Path, *, as_json: bool) -> None:
    """Print the figures of a log as text or as one JSON object."""
    with LogFile(folder) as log, WorkProgress("reading", enabled=sys.stderr.isatty()) as progress:
        found = gather(log, is_in_use(folder), progress.show)
    if as_json:
        show_objects([found])
        return
    for title, fact in _facts(found):
        typer.echo(f"{title:{TITLE_WIDTH}}{fact}")
    if found.topics:
        typer.echo()
        show_table(
            [Column("topic", is_name=True), Column("messages", right=True), Column("size", right=True)],
            [(topic.name, f"{topic.messages:,}", size(topic.payload_bytes)) for topic in found.topics],
        )


def gather(log: LogFile, in_use: bool, progress: Callable[[int, int], None]) -> LogInfo:
    """Return the figures of a log, read from the small columns of all blocks. Messages added meanwhile do not count."""
    reader = log.reader
    start, stop = reader.first_offset(), reader.next_offset()
    found = LogInfo(
        log_id=reader.log_id.hex(),
        path=str(log.path),
        is_in_use=in_use,
        size_bytes=_size(log.path),
        wal_bytes=_size(log.path.with_name(f"{log.path.name}-wal")),
        first_offset=start,
        next_offset=stop,
        deleted=[
            Deleted(None if pattern == BROKER_WIDE else pattern, floor)
            for pattern, floor in sorted(reader.retention_floors().items())
            if floor
        ],
        epochs=[
            EpochInfo(row.id.hex(), row.first_offset, iso_time(row.begun_us) if row.begun_us else None)
            for row in reader.epochs()
        ],
    )
    topics: dict[str, TopicTotal] = {}
    at = start
    while at < stop:
        spans = reader.spans(at, stop, SPANS_A_TIME)
        found.damaged = joined([*found.damaged, *spans.damaged])
        _count(spans.rows, found, topics)
        at = spans.next_offset
        progress(at - start, stop - start)
    found.topics = [topics[name] for name in sorted(topics)]
    return found


def _count(rows: Iterable[BlockRow], found: LogInfo, topics: dict[str, TopicTotal]) -> None:
    """Add the figures of the blocks to the totals."""
    for row in rows:
        found.blocks += 1
        found.first_received = found.first_received or iso_time(row.received_us)
        found.last_received = iso_time(row.until_us)
        for share in decode_topic_index(row.topics):
            total = topics.get(share.name)
            if total is None:
                total = topics[share.name] = TopicTotal(share.name)
            for each in (total, found):
                each.messages += share.messages
                each.payload_bytes += share.payload_bytes


def _facts(found: LogInfo) -> list[tuple[str, str]]:
    wal = f", and {size(found.wal_bytes)} in its WAL" if found.wal_bytes else ""
    facts = [
        ("log", found.log_id),
        ("file", safe(found.path)),
        ("broker", "running" if found.is_in_use else "not running"),
        ("size", f"{size(found.size_bytes)}{wal}"),
    ]
    if found.first_offset < found.next_offset:
        facts.append(("offsets", f"{found.first_offset:,} to {found.next_offset - 1:,}"))
    else:
        facts.append(("offsets", f"none; the next is {found.next_offset:,}"))
    facts.append(
        ("messages", f"{found.messages:,} in {count(found.blocks, 'block')}, {size(found.payload_bytes)} of payload")
    )
    if found.first_received is not None and found.last_received is not None:
        facts.append(("received", f"{_moment(found.first_received)} to {_moment(found.last_received)} UTC"))
    if found.epochs:
        newest = found.epochs[-1]
        facts.append(
            ("epochs", f"{len(found.epochs):,}, the newest is {newest.id} since offset {newest.first_offset:,}")
        )
    for each in found.deleted:
        rule = "by the rule for the whole log" if each.filter is None else f"of {safe(each.filter)}"
        facts.append(("deleted", f"before offset {each.before:,}, {rule}"))
    if found.damaged:
        facts.append(("lost", f"offsets {format_ranges(found.damaged)}; see godwit log verify"))
    return facts


def _moment(time: str) -> str:
    """Return an ISO time without fractions of a second, for tables."""
    return time[:19].replace("T", " ")


def _size(path: Path) -> int:
    """Return the size of a file in bytes, or 0 if it does not exist (as a WAL may not)."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


# -- messages ---------------------------------------------------------------------------------------------------------


SPANS_A_TIME: Final = 1024
BLOCKS_A_TIME: Final = 128
READ_BYTES: Final = 4 * MIB
FIRST_SCAN_OFFSETS: Final = 4096
"""Number of offsets scanned first for the newest messages; each further scan is larger."""


class ScannedMessages(NamedTuple):
    """Messages of one read, and the ranges of offsets that could not be read."""

    messages: list[Message]
    damaged: list[tuple[int, int]]


def newest_start(reader: LogReader, chosen: TopicSelection, count: int, stop: int) -> tuple[int, int]:
    """Return the offset of the last `count` matching messages before `stop`, and how many to skip from there."""
    first = reader.first_offset()
    start, found, span = stop, 0, max(count, FIRST_SCAN_OFFSETS)
    while found < count and start > first:
        end, start = start, max(start - span, first)
        for row in blocks(reader, start, end):
            start = min(start, row.first_offset)  # whole blocks, so that no message is counted twice
            found += matching_count(row, chosen)
        span *= 4
    surplus = found - count
    for row in blocks(reader, start, stop):
        amount = matching_count(row, chosen)
        if amount > surplus:
            break
        surplus -= amount
        start = row.end_offset
    return start, max(surplus, 0)


def blocks(reader: LogReader, start: int, stop: int) -> Iterator[BlockRow]:
    """Yield every block that overlaps the range, without its body."""
    while start < stop:
        found = reader.spans(start, stop, SPANS_A_TIME)
        yield from found.rows
        start = found.next_offset


def matching_count(row: BlockRow, chosen: TopicSelection) -> int:
    """Return the number of matching messages in a block."""
    return sum(share.messages for share in decode_topic_index(row.topics) if chosen.has(share.name))


def scan_messages(reader: LogReader, start: int, stop: int, chosen: TopicSelection) -> Iterator[ScannedMessages]:
    """Yield the matching messages from `start` to before `stop` in order; some results have no messages."""
    wanted = None if chosen.is_everything else chosen.concerns
    while start < stop:
        found = reader.rows(start, stop, BLOCKS_A_TIME, READ_BYTES, wanted)
        messages: list[Message] = []
        damaged = list(found.damaged)
        for row in found.rows:
            try:
                entries = decode_block(row.body)
            except DamagedBlockError:
                damaged.append((row.first_offset, row.end_offset))
                continue
            for offset, entry in entries:
                if chosen.has(entry.topic) and offset < stop:
                    messages += messages_of(offset, entry)[max(start - offset, 0) : stop - offset]
        yield ScannedMessages(messages, damaged)
        start = found.next_offset


def messages_of(offset: int, entry: Entry) -> list[Message]:
    """Return the messages of a batch whose first message has this offset."""
    batch = decode_entry(entry)
    expires_us = expiry_of(entry)
    return [
        Message(
            entry.topic,
            payload,
            entry.publisher,
            entry.published_us + delta_us,
            entry.received_us,
            batch.qos,
            batch.retain,
            message_offset,
            batch.extension,
            expires_us,
        )
        for message_offset, (payload, delta_us) in enumerate(
            zip(batch.payloads, batch.deltas_us or repeat(0), strict=False), start=offset
        )
    ]


# -- tail -------------------------------------------------------------------------------------------------------------


TAIL_POLL_S: Final = 0.2
"""Time between two checks for new messages of a followed log."""


def show_tail(folder: Path, filters: list[str], count: int, *, follow: bool, as_json: bool) -> None:
    """Print the last `count` messages; with `follow` continue until Ctrl-C or until stdout is closed."""
    for each in filters:
        check_filter(each)
    chosen = TopicSelection(filters)
    with LogFile(folder) as log:
        stop = log.reader.next_offset()
        start, skip = newest_start(
            log.reader, chosen, count, stop
        )  # outside the event loop, so that Ctrl-C ends it at once
        run(_Tail(log, chosen, as_json=as_json).run(start, stop, skip, follow=follow))


class _Tail:
    def __init__(self, log: LogFile, chosen: TopicSelection, *, as_json: bool) -> None:
        self._log = log
        self._chosen = chosen
        self._lines = MessageFormatter("log" if as_json else "text")
        self._output = Output()

    async def run(self, start: int, stop: int, skip: int, *, follow: bool) -> None:
        await guarded(self._show(start, stop, skip, follow=follow), self._output.until_closed())

    async def _show(self, start: int, stop: int, skip: int, *, follow: bool) -> None:
        await self._print(start, stop, skip)
        while follow:
            await asyncio.sleep(TAIL_POLL_S)
            log_id, epochs = self._log.reader.log_id, self._log.reader.epochs()
            if self._log.reopen():
                stop = self._resume_offset(log_id, epochs, stop)
            start, stop = stop, self._log.reader.next_offset()
            await self._print(start, stop, 0)

    def _resume_offset(self, log_id: bytes, epochs: Sequence[EpochRow], stop: int) -> int:
        """Return where to resume in a file that replaced another one, which was read up to `stop`."""
        reader = self._log.reader
        if reader.log_id != log_id:
            print_notice("the folder has a new log; continuing with its first message")
            return 0
        ours = [row.epoch for row in reader.epochs()]
        same = same_below([row.epoch for row in epochs], ours, reader.next_offset())
        if same < stop:
            print_notice(
                f"an older copy of the log was restored: other messages start at offset {same:,}; continuing there"
            )
        return min(same, stop)

    async def _print(self, start: int, stop: int, skip: int) -> None:
        for messages, damaged in scan_messages(self._log.reader, start, stop, self._chosen):
            if damaged:
                print_notice(f"offsets {format_ranges(damaged)} are damaged and not shown; see godwit log verify")
            if len(messages) > skip:
                await self._output.write(self._lines.render(messages[skip:]))
            skip = max(skip - len(messages), 0)
            await asyncio.sleep(0)  # lets Ctrl-C take effect


# -- export -----------------------------------------------------------------------------------------------------------


FORMATS: Final = ("parquet", "jsonl")
ROW_GROUP_BYTES: Final = 64 * MIB
"""Size of Parquet's groups of rows, which are collected in memory: small groups are slow to read."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Write: TypeAlias = Callable[["pa.RecordBatch"], object]


class ExportRequest(NamedTuple):
    """The arguments of `godwit log export` as typed."""

    filters: tuple[str, ...]
    start: str
    stop: str
    output: Path
    form: str | None
    force: bool


def run_export(folder: Path, request: ExportRequest, *, as_json: bool) -> None:
    """Write the file and print its size.

    Raises:
        UsageError: An argument is invalid, or the packages of the archive are not installed.
        StorageError: Messages had to be left out.
    """
    if missing := missing_archive_packages():
        raise UsageError(f"godwit log export needs {' and '.join(missing)}: run {pip_command('archive')}")
    for each in request.filters:
        check_filter(each)
    if str(request.output) == "-":
        raise UsageError("an export is a file: name one, or print messages with godwit log tail --json --count N")
    form = export_format(request.form, request.output)
    check_free(request.output, force=request.force)
    with LogFile(folder) as log:
        reads = read_request(log.reader, request)
        with new_file(request.output, force=request.force) as part:
            messages, lost = _write(log.reader, reads, part, form)
    size_bytes = request.output.stat().st_size
    if as_json:
        show_objects([{"path": str(request.output), "messages": messages, "size_bytes": size_bytes, "lost": lost}])
    else:
        typer.echo(f"{safe(str(request.output))}: {count(messages, 'message')}, {size(size_bytes)}")
    if lost:
        raise StorageError(
            f"messages at the offsets {format_ranges(lost)} are not in {safe(str(request.output))}: they are damaged "
            "(see godwit log verify), or retention deleted them during the export"
        )


def read_request(reader: LogReader, request: ExportRequest) -> ReadRequest:
    """Return the range to read. Print a notice if retention has already deleted a part of it."""
    from godwit.archive.range_reader import gone_below
    from godwit.archive.requests import ReadRequest

    start, stop = position_offset(reader, "--from", request.start), position_offset(reader, "--to", request.stop)
    if stop < start:
        raise UsageError(
            f"--to {request.stop} (offset {stop:,}) is before --from {request.start} (offset {start:,}); swap them"
        )
    gone = gone_below(reader.first_offset(), reader.retention_floors(), request.filters)
    if start < gone and request.start != "earliest":
        print_notice(f"retention has deleted messages before offset {gone:,}; the remaining messages are exported")
    return ReadRequest(request.filters, start, stop, fail_on_data_loss=False, gaps_known_below=gone)


def export_format(form: str | None, output: Path) -> str:
    """Return the requested format, else the one that the file's name implies.

    Raises:
        UsageError: The format is unknown.
    """
    if form is None:
        form = output.suffix.removeprefix(".")
        if form not in FORMATS:
            raise UsageError(
                f"the name of {safe(str(output))} implies no format; add --format parquet or --format jsonl"
            )
    if form not in FORMATS:
        raise UsageError(f"unknown format {safe(form)}; choose parquet or jsonl")
    return form


def position_offset(reader: LogReader, option: str, text: str) -> int:
    """Return the offset of a position. A position beyond the end means the end.

    Raises:
        UsageError: The text is not a position.
    """
    match parse_position(text):
        case "earliest":
            return reader.first_offset()
        case "latest":
            return reader.next_offset()
        case int(offset):
            return min(offset, reader.next_offset())
        case datetime() as moment:
            return reader.offset_at((moment - _EPOCH) // timedelta(microseconds=1))
    raise UsageError(
        f"{option} {text!r} is not a position; write earliest, latest, an offset, or a time such as 2025-03-01T12:00"
    )


def _write(reader: LogReader, request: ReadRequest, path: Path, form: str) -> tuple[int, Ranges]:
    from godwit.archive.range_reader import RangeReader

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

    pending: list[pa.RecordBatch] = []
    pending_bytes = 0

    def write(batch: pa.RecordBatch) -> None:
        nonlocal pending_bytes
        pending.append(batch)
        pending_bytes += batch.nbytes
        if pending_bytes >= ROW_GROUP_BYTES:
            flush()

    def flush() -> None:
        nonlocal pending_bytes
        writer.write_table(pa.Table.from_batches(pending, schema))
        pending.clear()
        pending_bytes = 0

    with parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=["topic", "publisher"]) as writer:
        yield write
        if pending:
            flush()


@contextmanager
def _jsonl(path: Path, schema: pa.Schema) -> Iterator[Write]:
    lines = MessageFormatter("log")
    with path.open("wb") as file:
        yield lambda batch: file.write(lines.render(messages_from_arrow(batch)))


def messages_from_arrow(batch: pa.RecordBatch) -> list[Message]:
    """Return the rows of the archive as messages."""
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
