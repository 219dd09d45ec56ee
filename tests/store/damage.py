"""Logs to be damaged, what they hold, and which bytes of their files each block cannot do without."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw
import msgspec
from tests.store.entries import LOG_ID, make_entry, make_job, make_task

from godwit.store import sql
from godwit.store.block import encode_blocks
from godwit.store.btree import Tree, pointer
from godwit.store.kept import apply, sealed
from godwit.store.meta import Meta, set_meta
from godwit.store.pages import PAGE_BYTES, PageFile
from godwit.store.retention import Retention, Rule
from godwit.store.schema import APPLICATION_ID
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry
from godwit.wire.changes import (
    Change,
    FeedKept,
    IdentityKept,
    JobGone,
    JobKept,
    JobPayload,
    NextJob,
    QueryDone,
    RetainedKept,
    SessionKept,
    State,
    TaskKept,
    TopicKept,
)

SIZES = [0, 10, 300, 2_000, 5_000, 16_000, 16_300, 18_000, 33_000, 90_000]


class Original(NamedTuple):
    """A sound log."""

    path: Path
    entries: dict[int, Entry]
    """All that are in it, by their offsets."""
    published: dict[int, Entry]
    """All that ever were."""
    next_offset: int
    state: State


def make_log(path: Path, rng: Random, blocks: int, *, is_trimmed: bool) -> Original:
    """Blocks of all sizes, in leaves alone, with few and many overflow pages; state beside them."""
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    published: dict[int, Entry] = {}
    rules = [Rule("t/0", max_bytes=50_000), Rule(max_bytes=blocks * 20_000)] if is_trimmed else []
    trimming = Retention(store, rules)
    for number in range(blocks):
        topics = [f"t/{rng.randrange(5)}", f"t/{rng.randrange(5)}"]
        if rng.random() < 0.1:
            topics = [f"many/{number}/{index}/{'x' * 20}" for index in range(rng.choice([10, 100, 400]))]
        entries = [
            make_entry(
                *(rng.randbytes(rng.choice(SIZES) if len(topics) < 3 else 5) for _ in range(rng.randrange(1, 3))),
                topic=topic,
                received_us=number + 1,
            )
            for topic in topics
        ]
        offset = store.append(entries, changes_of(number, rng))
        for entry in entries:
            published[offset] = entry
            offset += entry.count
        while trimming.step(number) is not None:
            pass
        if number % 7 == 0:
            store.checkpoint(truncate=False)
    found = store.read(0, 2**40)
    original = Original(path, dict(found.entries), published, store.next_offset, store.state())
    store.close()
    assert found.damaged == []
    return original


def make_older_log(path: Path, entries: list[Entry], changes: list[Change], version: int = 1) -> None:
    """A log as an older Godwit made it, with nothing but the first scripts: 1 is that of 0.3.0, 2 that of 0.5.0."""
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("journal_mode", "wal")
    with connection:
        for script in sql.MIGRATIONS[:version]:
            connection.execute(script)
        meta = Meta(LOG_ID, 1, b"an older")
        set_meta(connection, meta)
        rows = encode_blocks(entries, 0, meta.stamp)
        connection.executemany(sql.QUERIES["insert_block"], map(msgspec.structs.astuple, rows))
        apply(connection, [change for change in changes if not isinstance(change, FeedKept)])
        feeds = [change for change in changes if isinstance(change, FeedKept)]
        for feed in feeds:
            filters = msgspec.json.encode(feed.filters).decode()
            row = sealed((feed.session, filters, feed.cursor, feed.resume_at, feed.lost))
            connection.execute(sql.QUERIES["upsert_feed"], row)
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", version)
    connection.close()


def older_changes(number: int, rng: Random) -> list[Change]:
    """What there was to keep before there were jobs."""
    newer = (JobGone, JobKept, JobPayload, NextJob, TaskKept)
    return [change for change in changes_of(number, rng) if not isinstance(change, newer)]


def changes_of(number: int, rng: Random) -> list[Change]:
    return [
        TopicKept(f"t/{number}", number, number, number),
        RetainedKept(f"t/{number % 9}", rng.randbytes(rng.choice([3, 300, 30_000])), "me", 1, 2, 1, number),
        SessionKept(f"client {number % 5}", b"instance", False, 60, None),
        FeedKept(f"client {number % 5}", ("t/#",), f"cursor {number % 11}", number),
        IdentityKept("", f"publisher {number}", "t/0", 1, number, number),
        QueryDone(f"query {number % 3}", number),
        *jobs_of(number),
    ]


def jobs_of(number: int) -> list[Change]:
    """A new job with two tasks, one of them with a result; an older job is forgotten."""
    rng = Random(number)
    job = number + 1
    sizes = [3, 300, 30_000]
    return [
        make_job(job, agreed=2),
        JobPayload(job, rng.randbytes(rng.choice(sizes))),
        make_task(job, 0),
        make_task(job, 1, rng.randbytes(rng.choice(sizes))),
        NextJob(job + 1),
        JobGone(job - 20),
    ]


def vital_bytes(path: Path) -> dict[int, list[tuple[int, int]]]:
    """Of each block, by its first offset, the ranges of the file that hold it and the numbers of its pages."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'blocks'").get
    rows: list[tuple[Any, ...]] = connection.execute("SELECT first_offset, length(body) FROM blocks").fetchall()
    lengths: dict[int, int] = dict(rows)
    connection.close()
    found: dict[int, list[tuple[int, int]]] = {}
    with PageFile(path) as file:
        for cell in Tree(file, root).cells():
            start = len(cell.payload) - lengths[cell.rowid]  # where the block begins in the payload
            local = cell.local_end - cell.local_at
            page_at = (cell.page - 1) * PAGE_BYTES
            ranges = []
            if start < local:
                ranges.append((page_at + cell.local_at + start, page_at + cell.local_end))
            if cell.overflow and start < local:
                ranges.append((page_at + cell.local_end, page_at + cell.local_end + 4))
            position = local
            for place, number in enumerate(cell.overflow):
                page = file.page(number)
                assert page is not None
                carried = min(PAGE_BYTES - 4, len(cell.payload) - position)
                overflow_at = (number - 1) * PAGE_BYTES
                if position + carried > start:
                    ranges.append((overflow_at + 4 + max(start - position, 0), overflow_at + 4 + carried))
                    if place + 1 < len(cell.overflow):
                        assert pointer(page, 0) == cell.overflow[place + 1]
                        ranges.append((overflow_at, overflow_at + 4))
                position += carried
            found[cell.rowid] = ranges
    return found


def flip(path: Path, rng: Random, count: int) -> list[int]:
    """Change bytes: anywhere, or where the pages say what they are. Gives their places."""
    data = bytearray(path.read_bytes())
    places = []
    for _ in range(count):
        place = rng.randrange(len(data))
        kind = rng.random()
        if kind < 0.15:
            place = rng.randrange(120)  # the head of the file
        elif kind < 0.5:
            place -= place % PAGE_BYTES
            place += rng.randrange(64)  # the head of a page
        data[place] ^= rng.randrange(1, 256)
        places.append(place)
    path.write_bytes(data)
    return places
