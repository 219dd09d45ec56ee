"""The threads that read the log. Each has a connection of its own; what a client asks for is a job for one of them.

Few threads serve any number of streams: a stream holds no connection and no statement while its client is slow, so it
can neither make the WAL grow nor use up connections. But several that are busy can: the log's WAL is only taken back at
a moment when nobody reads. So a job waits a while with its beginning when the WAL has become long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from godwit.limits import MIB
from godwit.store.reader import LogReader

READERS: Final = 4
LONG_WAL_BYTES: Final = 256 * MIB
"""Where the broker tries to take it back."""
MAX_WAIT_S: Final = 1.0
WAIT_STEP_S: Final = 0.01

_ResultT = TypeVar("_ResultT")


class Readers:
    """Hands jobs to the threads. The log is opened once at the start, so that a bad file is told then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wal_path = Path(f"{path}-wal")
        self._own = threading.local()
        reader = LogReader.open(path)
        self.log_id: Final = reader.log_id
        reader.close()
        self._threads = ThreadPoolExecutor(READERS, "log reader")

    def start(self, job: Callable[[LogReader], _ResultT]) -> Future[_ResultT]:
        """Do it in one of the threads."""
        return self._threads.submit(lambda: self._do(job))

    def ask(self, job: Callable[[LogReader], _ResultT]) -> _ResultT:
        """Do it, and wait for the answer."""
        return self.start(job).result()

    def _do(self, job: Callable[[LogReader], _ResultT]) -> _ResultT:
        give_up_at = time.monotonic() + MAX_WAIT_S
        while self._is_wal_long() and time.monotonic() < give_up_at:
            time.sleep(WAIT_STEP_S)
        return job(self._reader())

    def _is_wal_long(self) -> bool:
        try:
            return self._wal_path.stat().st_size > LONG_WAL_BYTES
        except OSError:  # there is none
            return False

    def _reader(self) -> LogReader:
        reader: LogReader | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = LogReader.open(self._path)
        return reader

    def close(self) -> None:
        """What is under way is finished; the connections go with their threads."""
        self._threads.shutdown(cancel_futures=True)
