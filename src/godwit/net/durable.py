"""The log of a broker on disk: the folder with its lock, the key for resets, the file, and the threads that use it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from godwit.broker.effects import Losing, Notice
from godwit.errors import LogInUseError
from godwit.net.log_writer import COMMIT_BYTES, Chore
from godwit.net.threaded_log import ThreadedLog
from godwit.store.connection import translate_errors
from godwit.store.folder import DataFolder
from godwit.store.reader import LogReader
from godwit.store.retention import Retention, RetentionRule
from godwit.store.sqlite import SqliteStore

LOG_ID_BYTES: Final = 16
RESET_KEY_BYTES: Final = 32
MOST_FREED_BYTES: Final = 2 * COMMIT_BYTES
"""Between two commits retention deletes no more: the next one waits for it."""
LOCK_TRIES: Final = 3
LOCK_PAUSE_S: Final = 0.02
_LOOK_S: Final = 0.002


class DurableLog:
    """Open from the moment it is made: StorageError says what is in the way, and then nothing is left open."""

    def __init__(
        self,
        path: Path,
        rules: Sequence[RetentionRule],
        *,
        now_us: int,
        wake: Callable[[], None],
        tell: Callable[[Notice], None],
    ) -> None:
        self.folder = DataFolder(path)
        _open(self.folder)
        try:
            self.reset_key = self.folder.reset_key(os.urandom(RESET_KEY_BYTES))
            log_path = self.folder.log_path
            self._store = SqliteStore.open(log_path, new_log_id=os.urandom(LOG_ID_BYTES), now_us=now_us)
            try:
                reader = LogReader.open(log_path)
            except BaseException:
                self._store.close()
                raise
        except BaseException:
            self.folder.close()
            raise
        self.findings = self._store.findings
        """What was wrong with the log at the start, in sentences; empty if nothing was."""
        self.last_received_us = self._store.last_received_us
        """When its newest message came, in the time of the log: that never goes backwards."""
        self._clock = _LogClock(self._store)
        self.log = ThreadedLog(self._store, reader, wake=wake, tell=tell, retain=self._retaining(rules), path=log_path)

    def __str__(self) -> str:
        """What was found at the start."""
        first_offset, next_offset = self.log.first_offset, self.log.next_offset
        if first_offset == next_offset:
            return f"log in {self.folder.path}: no messages, the next one has offset {next_offset}"
        return f"log in {self.folder.path}: offsets {first_offset} to {next_offset - 1}"

    def change_rules(self, rules: Sequence[RetentionRule]) -> None:
        """Of retention, from now on."""
        self.log.writer.change_retention(self._retaining(rules))

    async def close(self) -> None:
        """Commits what waits, and gives the folder back."""
        self.log.end()
        # Looked at and not waited for in a thread: a second Ctrl-C must end the process also when the disk hangs.
        while not self.log.has_ended:
            await asyncio.sleep(_LOOK_S)
        self.folder.close()

    def _retaining(self, rules: Sequence[RetentionRule]) -> Chore | None:
        return _Retaining(self._store, rules, self._clock) if rules else None


def _open(folder: DataFolder) -> None:
    """A command that asks whether a broker works in the folder holds its lock for a moment: that is none."""
    for _ in range(LOCK_TRIES - 1):
        try:
            folder.open()
        except LogInUseError:
            time.sleep(LOCK_PAUSE_S)
        else:
            return
    folder.open()


class _LogClock:
    """The time of the log, which its messages' ages are counted in: it never goes backwards, and never stands still.

    After the system's clock was ahead once, messages go on to have times from there. By the system's clock, which has
    been put right, none of them would be old before it has come there too.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._us = 0
        self._at = time.monotonic()

    def at(self, wall_us: int) -> int:
        """While the system's clock shows this."""
        now = time.monotonic()
        self._us = max(wall_us, self._store.last_received_us, self._us + int((now - self._at) * 1e6))
        self._at = now
        return self._us


class _Retaining:
    """Retention in the writer's thread, where it is also made: it looks at the file when it is."""

    def __init__(self, store: SqliteStore, rules: Sequence[RetentionRule], clock: _LogClock) -> None:
        self._store = store
        self._rules = rules
        self._clock = clock
        self._retention: Retention | None = None
        self._settled_bytes = 0
        """What the file held when last nothing was due, or less."""

    def __call__(self, now_us: int) -> list[Losing] | None:
        """As many steps as it takes to delete what was added since, if so much is due: else a busy broker's log would
        outgrow its bounds."""
        if self._retention is None:
            self._retention = Retention(self._store, self._rules)
            self._settled_bytes = self._used_bytes()
        now_us = self._clock.at(now_us)
        losing: list[Losing] = []
        begun_bytes = used_bytes = self._used_bytes()
        while True:
            trimmed = self._retention.step(now_us)
            if trimmed is None:
                self._settled_bytes = used_bytes
                return losing or None
            losing += [Losing(part.entries, part.floor, part.pattern) for part in trimmed]
            before_bytes, used_bytes = used_bytes, self._used_bytes()
            has_freed_enough = used_bytes <= self._settled_bytes or begun_bytes - used_bytes >= MOST_FREED_BYTES
            if has_freed_enough or used_bytes >= before_bytes:
                self._settled_bytes = min(self._settled_bytes, used_bytes)
                return losing

    def _used_bytes(self) -> int:
        connection = self._store.connection
        with translate_errors(self._store.path, "read"):
            pages = int(connection.pragma("page_count")) - int(connection.pragma("freelist_count"))
            return pages * int(connection.pragma("page_size"))
