"""Logs for the archive to read, written by the store itself: what a broker would have written, without waiting for it.

The two extremes: one publisher at full rate, whose batches are full; and ten thousand devices that publish one message
each in turn, on a topic of their own, so that every message is a batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from godwit.store.folder import DataFolder
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry, make_entry

MESSAGE_BYTES: Final = 100
FULL_BATCH_MESSAGES: Final = 600
"""About what one train carries."""
FULL_BATCHES_A_COMMIT: Final = 10
"""Measured: so many came in from a publisher at full rate while the disk was busy with the ones before."""
PUBLISHERS: Final = 10_000
_LOG_ID_BYTES: Final = 16


def fill_with_full_batches(data: Path, messages: int) -> int:
    """Makes a log of at least so many messages in this folder; gives how many."""
    return _fill(data, _full_batches(), messages)


def fill_with_lone_messages(data: Path, messages: int, *, a_commit: int = PUBLISHERS) -> int:
    """The same with every message alone; so many share a commit."""
    return _fill(data, _lone_messages(a_commit), messages)


def _fill(data: Path, commits: Iterator[list[Entry]], messages: int) -> int:
    folder = DataFolder(data)
    folder.open()
    try:
        now_us = time.time_ns() // 1000
        store = SqliteStore.open(folder.log_path, new_log_id=os.urandom(_LOG_ID_BYTES), now_us=now_us)
        try:
            while store.next_offset < messages:
                store.append(next(commits), ())
            store.checkpoint(truncate=True)
            return store.next_offset
        finally:
            store.close()
    finally:
        folder.close()


def _full_batches() -> Iterator[list[Entry]]:
    payloads = [os.urandom(MESSAGE_BYTES) for _ in range(FULL_BATCH_MESSAGES)]
    ready = make_entry("bench/topic", "publisher", payloads, qos=1, now_us=0)
    while True:
        now_us = time.time_ns() // 1000
        entry = replace(ready, published_us=now_us, received_us=now_us)
        yield [entry] * FULL_BATCHES_A_COMMIT


def _lone_messages(a_commit: int) -> Iterator[list[Entry]]:
    devices = [(f"bench/{number}/reading", f"device-{number}") for number in range(PUBLISHERS)]
    payload = os.urandom(MESSAGE_BYTES)
    turn = 0
    while True:
        now_us = time.time_ns() // 1000
        yield [
            make_entry(topic, publisher, [payload], qos=1, now_us=now_us)
            for topic, publisher in (devices[number % PUBLISHERS] for number in range(turn, turn + a_commit))
        ]
        turn += a_commit
