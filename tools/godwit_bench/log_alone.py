"""The log without a network before it: its writer thread, fed with batches that are ready, and nothing else.

It tells what of `godwit_8k` is the log's and what is the publisher's, the transport's and the broker's share.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from godwit.broker.effects import Append, Committed, Failed
from godwit.errors import GodwitError
from godwit.limits import CHANNEL_WINDOW_BYTES
from godwit.net.log_writer import Answer, LogWriter, PendingAppend
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import make_entry

BATCH_BYTES: Final = 60_000
"""About what one train carries, as from a publisher."""
_LOG_ID_BYTES: Final = 16


def write_and_commit(folder: Path, seconds: float, message_bytes: int) -> float:
    """Bytes of payload a second that are committed on the disk of this folder.

    As much waits to be committed as the broker would take of one publisher.
    """
    count = BATCH_BYTES // message_bytes
    ready = make_entry("bench/log", "publisher", [os.urandom(message_bytes) for _ in range(count)], qos=1, now_us=0)
    room = threading.Semaphore(CHANNEL_WINDOW_BYTES // len(ready.rest))
    problems: list[str] = []

    def on_answers(answers: list[Answer]) -> None:
        problems.extend(answer.text for answer in answers if isinstance(answer, Failed))
        room.release(sum(isinstance(answer, Committed | Failed) for answer in answers))

    with tempfile.TemporaryDirectory(prefix="godwit-bench-", dir=folder) as data:
        log_id = os.urandom(_LOG_ID_BYTES)
        store = SqliteStore.open(Path(data) / "log.sqlite", new_log_id=log_id, now_us=time.time_ns() // 1000)
        writer = LogWriter(store, on_answers)
        writer.start()
        appends = 0
        began = time.perf_counter()
        while time.perf_counter() < began + seconds and not problems:
            now_us = time.time_ns() // 1000
            entry = replace(ready, published_us=now_us, received_us=now_us)
            room.acquire()
            writer.append(PendingAppend(Append([entry], []), len(ready.rest), 0))
            appends += 1
        for _ in range(CHANNEL_WINDOW_BYTES // len(ready.rest)):  # when all its room is free again, all is committed
            room.acquire()
        elapsed_s = time.perf_counter() - began
        writer.end()
        writer.join()
    if problems:
        raise GodwitError(f"the log could not be written: {problems[0]}")
    return appends * count * message_bytes / elapsed_s
