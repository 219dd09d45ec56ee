"""Logs for the tests of `godwit log`, written without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from godwit.store.folder import DataFolder
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Batch, Entry, decode_head, encode_joinable

BEGAN_US = 1_740_830_400_000_000
"""2025-03-01 12:00:00 UTC. A second later the second batch is received, and so on."""
LOG_ID = bytes(range(16))


def entry(topic: str, *payloads: str | bytes, received_us: int = BEGAN_US, qos: int = 1, retain: bool = False) -> Entry:
    """A batch of these messages, published a millisecond before it was received."""
    bodies = [each.encode() if isinstance(each, str) else each for each in payloads]
    published_us = received_us - 1000
    data = encode_joinable(Batch(bodies, published_us, qos, retain))
    head = decode_head(data)
    return Entry(
        topic=topic,
        publisher="sensor-1",
        flags=head.flags,
        published_us=published_us,
        received_us=received_us,
        count=head.count,
        rest=data[head.rest_at :],
    )


@contextmanager
def opened(folder: Path, log_id: bytes = LOG_ID) -> Iterator[SqliteStore]:
    """The log in a folder, locked as by a broker."""
    data = DataFolder(folder)
    data.open()
    try:
        store = SqliteStore.open(data.log_path, new_log_id=log_id, now_us=BEGAN_US)
        try:
            yield store
        finally:
            store.close()
    finally:
        data.close()


def write_log(folder: Path, commits: Iterable[Sequence[tuple[str, str]]], log_id: bytes = LOG_ID) -> Path:
    """A log with these commits of (topic, payload), each message a batch of its own, a second apart."""
    with opened(folder, log_id) as store:
        second = 0
        for commit in commits:
            entries = []
            for topic, payload in commit:
                entries.append(entry(topic, payload, received_us=BEGAN_US + second * 1_000_000))
                second += 1
            store.append(entries)
    return folder
