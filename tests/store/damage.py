"""Logs to be damaged, what they hold, and which bytes of their files each block cannot do without."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw
from tests.store.entries import LOG_ID, make_entry, make_job, make_task

from godwit.store.retention import Retention, RetentionRule
from godwit.store.sqlite import SqliteStore
from godwit.store.sqlite_pages import PAGE_BYTES, PageFile, Tree, pointer
from godwit.wire.batch import Entry
from godwit.wire.changes import (
    Change,
    IdentityRow,
    JobDeleted,
    JobPayloadRow,
    NextJobRow,
    QueryRow,
    RetainedRow,
    SessionRow,
    StoredState,
    SubscriptionRow,
    TopicRow,
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
    state: StoredState


def make_log(path: Path, rng: Random, blocks: int, *, is_trimmed: bool) -> Original:
    """Blocks of all sizes, in leaves alone, with few and many overflow pages; state beside them."""
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    published: dict[int, Entry] = {}
    rules = [RetentionRule("t/0", max_bytes=50_000), RetentionRule(max_bytes=blocks * 20_000)] if is_trimmed else []
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


def changes_of(number: int, rng: Random) -> list[Change]:
    return [
        TopicRow(f"t/{number}", number, number, number),
        RetainedRow(f"t/{number % 9}", rng.randbytes(rng.choice([3, 300, 30_000])), "me", 1, 2, 1, number),
        SessionRow(f"client {number % 5}", b"instance", False, 60, None),
        SubscriptionRow(f"client {number % 5}", ("t/#",), f"cursor {number % 11}", number),
        IdentityRow("", f"publisher {number}", "t/0", 1, number, number),
        QueryRow(f"query {number % 3}", number),
        *jobs_of(number),
    ]


def jobs_of(number: int) -> list[Change]:
    """A new job with two tasks, one of them with a result; an older job is forgotten."""
    rng = Random(number)
    job = number + 1
    sizes = [3, 300, 30_000]
    return [
        make_job(job, agreed=2),
        JobPayloadRow(job, rng.randbytes(rng.choice(sizes))),
        make_task(job, 0),
        make_task(job, 1, rng.randbytes(rng.choice(sizes))),
        NextJobRow(job + 1),
        JobDeleted(job - 20),
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
