"""A node with its file: proposes appends in groups, applies records that count, and reports committed appends.

    append --> queue --> at most `max_in_flight` proposals --> records that count --> one transaction --> committed

The engine comes first, then the file, then the answer. A file is therefore never ahead of the replicated log, and a
confirmed message is on the disks of a majority of the engine's servers and on that of the active broker.

Retention is planned here, on the file of the active node, and deletes on all of them: a cut is proposed like an append.
One is in flight at a time, because the next one is planned on the file that it leaves.

`work` does everything that is due. It is synchronous: a transaction of the file is awaited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from godwit.cluster.node import ClusterNode
from godwit.cluster.values import LogIdentity, NodeConfig
from godwit.errors import StorageError
from godwit.limits import MIB
from godwit.store.block import encode_blocks
from godwit.store.port import Change, Entry
from godwit.store.replica import AppendStep, ForeignLogError, ReplicaStore
from godwit.store.retention import Deletion, PlannedCut, Retention

MAX_IN_FLIGHT: Final = 4
"""More proposals would hardly be quicker, and make the wait of a reconnecting client longer."""
GROUP_BYTES: Final = 16 * MIB
"""Maximum size of a proposal, plus one append."""
RETRY_S: Final = 1.0
"""Time until a file that could not be written is tried again."""
RETENTION_S: Final = 0.2
"""How often retention checks the file."""
CUT_PAUSE_S: Final = 0.05
"""Pause between two cuts, so that commits wait for few of them."""


class CommittedAppend(msgspec.Struct, frozen=True):
    """An append that is in the replicated log and in the file."""

    token: Any
    first_offset: int


class FailedAppend(msgspec.Struct, frozen=True):
    """An append that cannot be encoded, or that was queued behind such a one. It was not proposed."""

    token: Any
    text: str


class AppliedCut(msgspec.Struct, frozen=True):
    """A cut of retention that is in the replicated log and in the file."""

    deletions: list[Deletion]


ReplicaAnswer: TypeAlias = CommittedAppend | FailedAppend | AppliedCut


class _ProposedCut(msgspec.Struct, frozen=True):
    planned: PlannedCut
    retention: Retention


class _QueuedAppend(msgspec.Struct, frozen=True):
    token: Any
    entries: Sequence[Entry]
    changes: Sequence[Change]
    size_bytes: int


class Replica:
    """A node of a cluster and its file. It must be used by one thread at a time."""

    def __init__(self, config: NodeConfig, store: ReplicaStore, *, entropy: Callable[[int], bytes], now: float) -> None:
        """Begin as a standby with an open file."""
        self.store = store
        self.node = ClusterNode(
            config, store.place, self._identity, has_content=store.has_content, entropy=entropy, now=now
        )
        self._queue: deque[_QueuedAppend] = deque()
        self._next_offset = 0
        """Of the next proposal."""
        self._is_writing = False
        self._is_alone = False
        """Whether each append is proposed alone and awaited, because one of them cannot be encoded."""
        self._retry_at: float | None = None
        self._retention: Retention | None = None
        self._log_time_us: Callable[[], int] = lambda: 0
        self._cut_at = now
        self.has_cut_in_flight = False
        self.retention_problem = ""
        """Why retention could not be planned last; empty if it could."""
        self.storage_problem = ""
        """Why the file could not be written last; empty if it could."""

    def _identity(self) -> LogIdentity:
        meta = self.store.meta
        return LogIdentity(meta.log_id, meta.created_us, meta.stamp, self.store.next_offset)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued, proposed, or waits to be applied."""
        return not self._queue and not self.node.in_flight and not self.node.steps()

    def next_timer(self) -> float:
        """Return when `work` is needed, if nothing else happens before."""
        due = self.node.next_timer()
        if self._may_cut:
            due = min(due, self._cut_at)
        return due if self._retry_at is None else min(due, self._retry_at)

    def change_retention(self, retention: Retention | None, log_time_us: Callable[[], int] = lambda: 0) -> None:
        """Replace the retention of the active broker; None: nothing is deleted. It ends when the node is not active.

        Args:
            retention: Of the store of this replica.
            log_time_us: Returns the time by which the ages of messages are measured.
        """
        self._retention, self._log_time_us = retention, log_time_us
        self._cut_at = 0.0
        self.retention_problem = ""

    def append(self, token: object, entries: Sequence[Entry], changes: Sequence[Change], size_bytes: int) -> None:
        """Queue an append of the active broker. It is reported by `work` when it is committed, else never."""
        self._queue.append(_QueuedAppend(token, entries, changes, size_bytes))

    def work(self, now: float) -> list[ReplicaAnswer]:
        """Run timers, propose queued appends, and apply everything that counts. Return the answers, in their order."""
        node = self.node
        node.handle_timers(now)
        answers = self._apply(now)
        if node.state != "active":
            self._queue.clear()
            self._is_writing = self.has_cut_in_flight = False
            self._retention = None
            return []
        if not self._is_writing:
            self._is_writing = True
            self._next_offset = self.store.next_offset
        while self._queue and node.in_flight < (1 if self._is_alone else MAX_IN_FLIGHT) and node.may_propose:
            group = self._next_group()
            try:
                self._propose(group, now)
            except (ValueError, OverflowError, TypeError, KeyError) as error:
                self._queue.extendleft(reversed(group))
                if self._is_alone:
                    text = f"the append cannot be encoded ({error})"
                    answers += [FailedAppend(one.token, text) for one in self._queue]
                    self._queue.clear()
                self._is_alone = not self._is_alone  # one of a group is the cause: then they are proposed one by one
        if not self._queue:
            self._is_alone = False
        if self._retention is not None and self._may_cut and now >= self._cut_at:
            self._propose_cut(self._retention, now)
        return answers

    @property
    def _may_cut(self) -> bool:
        return self._retention is not None and self.node.may_propose and not self.has_cut_in_flight

    def _propose_cut(self, retention: Retention, now: float) -> None:
        try:
            planned = retention.plan(self._log_time_us())
        except StorageError as error:
            self.retention_problem = str(error)
            self._cut_at = now + RETRY_S
            return
        self.retention_problem = ""
        self._cut_at = now + (RETENTION_S if planned is None else CUT_PAUSE_S)
        if planned is not None and planned.cut is not None:
            self.has_cut_in_flight = True
            self.node.propose(planned.cut, [_ProposedCut(planned, retention)], now)

    def _next_group(self) -> list[_QueuedAppend]:
        group = [self._queue.popleft()]
        group_bytes = group[0].size_bytes
        while self._queue and group_bytes < GROUP_BYTES and not self._is_alone:
            group.append(self._queue.popleft())
            group_bytes += group[-1].size_bytes
        return group

    def _propose(self, group: list[_QueuedAppend], now: float) -> None:
        offset = self._next_offset
        answers = []
        for one in group:
            answers.append(CommittedAppend(one.token, offset))
            offset += sum([entry.count for entry in one.entries])
        entries = [entry for one in group for entry in one.entries]
        changes = [change for one in group for change in one.changes]
        rows = encode_blocks(entries, self._next_offset, self.store.log_secret)
        self.node.propose(AppendStep(rows, changes), answers, now)
        self._next_offset = offset

    def _apply(self, now: float) -> list[ReplicaAnswer]:
        node = self.node
        answers: list[ReplicaAnswer] = []
        if self._retry_at is not None:
            if now < self._retry_at:
                return []
            self._retry_at = None
        while node.state != "stopped" and (steps := node.steps()):
            try:
                self.store.apply([one.step for one in steps if one.step is not None], steps[-1].place)
            except ForeignLogError as error:
                node.handle_apply_failed(str(error), is_foreign=True)
            except StorageError as error:
                self._retry_at = now + RETRY_S
                self.storage_problem = str(error)
                node.handle_apply_failed(str(error))
                break
            else:
                self.storage_problem = ""
                for one in steps:
                    for token in one.token or ():
                        answers.append(self._finish(token) if isinstance(token, _ProposedCut) else token)
                node.handle_applied(steps[-1].place)
        return answers

    def _finish(self, cut: _ProposedCut) -> AppliedCut:
        self.has_cut_in_flight = False
        deletions = cut.retention.finish(cut.planned)
        return AppliedCut([*deletions, Deletion(None, self.store.first_offset, [])] if deletions else [])
