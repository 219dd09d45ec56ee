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
from godwit.net.log_writer import Chore
from godwit.net.threaded_log import ThreadedLog
from godwit.store.folder import DataFolder
from godwit.store.reader import LogReader
from godwit.store.retention import Retention, Rule
from godwit.store.sqlite import SqliteStore

LOG_ID_BYTES: Final = 16
RESET_KEY_BYTES: Final = 32
LOCK_TRIES: Final = 3
LOCK_PAUSE_S: Final = 0.02
_LOOK_S: Final = 0.002


class DurableLog:
    """Open from the moment it is made: StorageError says what is in the way, and then nothing is left open."""

    def __init__(
        self,
        path: Path,
        rules: Sequence[Rule],
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
        self.last_received_us = self._store.last_received_us
        """When its newest message came, in the time of the log: that never goes backwards."""
        self.log = ThreadedLog(self._store, reader, wake=wake, tell=tell, retain=self._retaining(rules))

    def change_rules(self, rules: Sequence[Rule]) -> None:
        """Of retention, from now on."""
        self.log.writer.change_retention(self._retaining(rules))

    async def close(self) -> None:
        """Commits what waits, and gives the folder back."""
        self.log.end()
        # Looked at and not waited for in a thread: a second Ctrl-C must end the process also when the disk hangs.
        while not self.log.has_ended:
            await asyncio.sleep(_LOOK_S)
        self.folder.close()

    def _retaining(self, rules: Sequence[Rule]) -> Chore | None:
        return _Retaining(self._store, rules) if rules else None


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


class _Retaining:
    """Retention in the writer's thread, where it is also made: it looks at the file when it is."""

    def __init__(self, store: SqliteStore, rules: Sequence[Rule]) -> None:
        self._store = store
        self._rules = rules
        self._retention: Retention | None = None

    def __call__(self, now_us: int) -> list[Losing] | None:
        if self._retention is None:
            self._retention = Retention(self._store, self._rules)
        trimmed = self._retention.step(now_us)
        if trimmed is None:
            return None
        return [Losing(part.entries, part.floor, part.pattern) for part in trimmed]
