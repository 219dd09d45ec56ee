"""`godwit log info`: what is in a log, without reading a single message."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec
import typer

from godwit.cli.log_folder import LogFile, ranges
from godwit.cli.log_messages import SPANS_A_TIME
from godwit.cli.progress import WorkProgress
from godwit.cli.tables import Column, show_objects, show_table
from godwit.cli.text import count, iso_time, safe, size
from godwit.store.block import BlockRow, decode_topic_index
from godwit.store.folder import is_in_use
from godwit.store.port import joined
from godwit.wire.retention_floors import BROKER_WIDE

TITLE_WIDTH: Final = 12


class TopicTotal(msgspec.Struct):
    """How much of a topic is in the log."""

    name: str
    messages: int = 0
    payload_bytes: int = 0


class Deleted(msgspec.Struct):
    """Retention has deleted messages before this offset that match the filter of a rule; None: the broker-wide one."""

    filter: str | None
    before: int


class EpochInfo(msgspec.Struct):
    """One run of a broker that appended to the log."""

    id: str
    first_offset: int
    begun: str | None
    """When its first message was received; None: of messages from before there were epochs."""


class LogInfo(msgspec.Struct):
    """What `--json` prints."""

    log_id: str
    path: str
    is_in_use: bool
    """A broker runs on it."""
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
    """In order. Copies of a log have those of their common past in common."""
    damaged: list[tuple[int, int]] = []
    topics: list[TopicTotal] = []


def show_info(folder: Path, *, as_json: bool) -> None:
    """Print what there is, for people or as one JSON object."""
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
    """From the small columns of all blocks. What a broker adds meanwhile does not count."""
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
    """Adds the blocks to what was found."""
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
        ("broker", "runs on it" if found.is_in_use else "none runs on it"),
        ("size", f"{size(found.size_bytes)}{wal}"),
    ]
    if found.first_offset < found.next_offset:
        facts.append(("offsets", f"{found.first_offset:,} to {found.next_offset - 1:,}"))
    else:
        facts.append(("offsets", f"none; the next one is {found.next_offset:,}"))
    facts.append(
        ("messages", f"{found.messages:,} in {count(found.blocks, 'block')}, {size(found.payload_bytes)} of payload")
    )
    if found.first_received is not None and found.last_received is not None:
        facts.append(("received", f"{_moment(found.first_received)} to {_moment(found.last_received)} UTC"))
    if found.epochs:
        newest = found.epochs[-1]
        facts.append(
            ("epochs", f"{len(found.epochs):,}, the newest is {newest.id} from offset {newest.first_offset:,} on")
        )
    for each in found.deleted:
        whose = "by the rule for the whole log" if each.filter is None else f"of {safe(each.filter)}"
        facts.append(("deleted", f"before offset {each.before:,}, {whose}"))
    if found.damaged:
        facts.append(("lost", f"offsets {ranges(found.damaged)}; godwit log verify tells more"))
    return facts


def _moment(time: str) -> str:
    """An ISO time without its fractions, as tables have it."""
    return time[:19].replace("T", " ")


def _size(path: Path) -> int:
    """0 if it is not there, as a WAL may not be."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
