"""What a store needs between its commits, in the thread that writes it: checkpoints, a long write-ahead log, a witness.

Used by godwit.net.log_writer and, for a node of a cluster, by godwit.net.cluster_member.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from godwit.limits import KIB, MIB

_logger = logging.getLogger(__name__)

CHECKPOINT_BYTES: Final = 16 * MIB
"""A checkpoint copies the write-ahead log into the file after this much, and the write-ahead log is overwritten then.
It delays the next commit by 30 to 100 ms; larger checkpoints are hardly cheaper."""
COMMIT_PAGES_BYTES: Final = 4 * 16 * KIB
"""Estimate of the pages that a commit writes beside the messages."""
IDLE_WAL_BYTES: Final = 64 * MIB
"""Maximum length of the write-ahead log of an idle broker. It is not truncated each time, because overwriting a file
takes a fraction of the time of growing it: a growing file's length is written to disk too."""
TRUNCATE_BYTES: Final = 256 * MIB
"""The write-ahead log becomes longer than this only if readers prevent checkpoints. Then it is truncated as soon as
possible."""
RESERVED_WAL_BYTES: Final = 8 * MIB
"""Length that the write-ahead log gets at the start. Commits of single messages, of one or two pages each, reach the
next checkpoint within it, and no commit has to make the file longer."""
RESERVING_PAUSE_S: Final = 0.02
"""The write-ahead log is lengthened after this time without a commit: the next one would wait for it."""
IDLE_S: Final = 1.0
"""A checkpoint is made after this time without an append."""
MAINTENANCE_S: Final = 1.0
"""After which time failed maintenance is repeated."""
WITNESS_S: Final = 1.0
"""How often the witness is synced while there are commits. Without commits a checkpoint follows, which syncs it."""
RETRY_S: Final = 0.05
"""Time until the next attempt to truncate a write-ahead log that is too long."""


class CheckpointStore(Protocol):
    """The interface of godwit.store.sqlite.SqliteStore that is used here."""

    @property
    def wal_bytes(self) -> int: ...
    def checkpoint(self, *, truncate: bool) -> None: ...
    def extend_wal(self, least_bytes: int) -> bool: ...
    def sync_witness(self) -> None: ...


class Checkpoints:
    """The maintenance of one store. All methods are called in the thread that writes it."""

    def __init__(self, store: CheckpointStore, on_failed: Callable[[Exception], None]) -> None:
        """`on_failed(error)` is called for a failed checkpoint, which is tried again."""
        self._store = store
        self._on_failed = on_failed
        self._idle_at = time.monotonic() + IDLE_S
        """When the log counts as idle, if no append comes before."""
        self._checkpoint_at = 0.0
        """The earliest time of the next checkpoint, after a failed one."""
        self._witness_at = 0.0
        """When the witness is synced next."""
        self._wal_bytes = 0
        """The last known length of the write-ahead log."""
        self.lets_read = threading.Event()
        """Cleared while the write-ahead log must be truncated, which needs a moment without readers."""
        self._check_wal()
        self._reserve_at: float | None = 0.0
        """When to lengthen the write-ahead log by a piece. None: it is long enough, or cannot be lengthened."""
        self._is_wal_cut = False
        """Whether it is to be lengthened again after the next commit, which makes the file."""
        self._written_bytes = self._wal_bytes
        """Estimate of the bytes written since the last checkpoint."""

    def handle_commit(self, size_bytes: int, now: float) -> None:
        """A commit with this many bytes of messages has ended."""
        self._written_bytes += COMMIT_PAGES_BYTES + size_bytes
        if self._reserve_at is not None or self._is_wal_cut:
            self._is_wal_cut = False
            self._reserve_at = now + RESERVING_PAUSE_S
        self._idle_at = now + IDLE_S

    def handle_deletion(self) -> None:
        """Retention has written to the file."""
        self._written_bytes += COMMIT_PAGES_BYTES

    def postpone(self, now: float) -> None:
        """After an error: do nothing for a while."""
        self._checkpoint_at = now + MAINTENANCE_S

    def waits(self, now: float) -> list[float]:
        """Return the times until something is due, in seconds, if nothing else happens before."""
        waits = []
        if self._reserve_at is not None:
            waits.append(self._reserve_at - now)
        if self._wal_bytes > TRUNCATE_BYTES:
            waits.append(self._checkpoint_at - now)
        elif self._written_bytes or self._wal_bytes > IDLE_WAL_BYTES:
            waits.append(max(self._idle_at, self._checkpoint_at) - now)
        return waits

    def reserve(self, now: float) -> None:
        """Lengthen the write-ahead log by a piece, if that is due.

        Only speed depends on it, so a full disk is not a problem yet.
        """
        if self._reserve_at is None or now < self._reserve_at:
            return
        try:
            if self._store.extend_wal(RESERVED_WAL_BYTES):
                self._reserve_at = None
        except OSError as error:
            self._reserve_at = None
            _logger.info("the write-ahead log could not be lengthened: commits take longer", exc_info=error)

    def run(self, now: float) -> bool:
        """Sync the witness and make a checkpoint, if that is due. Return whether a checkpoint was made."""
        if now >= self._witness_at:
            self._witness_at = now + WITNESS_S
            self._store.sync_witness()
        if now < self._checkpoint_at:
            return False
        is_idle = now >= self._idle_at
        self._check_wal()
        if self._wal_bytes > (IDLE_WAL_BYTES if is_idle else TRUNCATE_BYTES):
            return self._checkpoint(truncate=True)
        if self._written_bytes >= (1 if is_idle else CHECKPOINT_BYTES):
            return self._checkpoint(truncate=False)
        return False

    def _checkpoint(self, *, truncate: bool) -> bool:
        try:
            self._store.checkpoint(truncate=truncate)
        except Exception as error:
            self._checkpoint_at = time.monotonic() + MAINTENANCE_S
            self._on_failed(error)
            return False
        self._written_bytes = 0
        self._check_wal()
        if truncate:
            self._is_wal_cut = True
        if truncate and self._wal_bytes:  # a reader prevented it
            self._checkpoint_at = time.monotonic() + (RETRY_S if self._wal_bytes > TRUNCATE_BYTES else MAINTENANCE_S)
        return True

    def _check_wal(self) -> None:
        self._wal_bytes = self._store.wal_bytes
        if self._wal_bytes > TRUNCATE_BYTES:
            self.lets_read.clear()
        else:
            self.lets_read.set()
