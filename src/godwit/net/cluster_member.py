"""A node of a cluster in a thread of its own: its file, and its engine.

    event loop    append, detach, resign, end  --->  thread of the node  <--->  engine (in its own thread), file
    event loop    on_change, answers           <---  thread of the node

The thread is the only one that writes the file, for as long as the process lives, whether its broker is active or not.
A broker that becomes active gets a `ReplicatedLog`, whose writer (`ClusterWriter`) hands its appends to the thread. The
writer belongs to one broker: appends that come after it was detached are dropped.

Any unexpected error ends the node: without this thread no message would be confirmed, and another node can do that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from godwit.broker.effects import Committed, Failed, Losing, Notice
from godwit.cluster.engine import (
    Beat,
    BeatRequest,
    EngineReport,
    EngineRequest,
    EngineUnavailableError,
    RecordFound,
    Stored,
    StreamInfo,
)
from godwit.cluster.members import MEMBER_S
from godwit.cluster.replica import AppliedCut, FailedAppend, Replica, ReplicaAnswer
from godwit.cluster.values import MAX_BEAT_BYTES, Heartbeat, NodeConfig, State
from godwit.errors import GodwitError
from godwit.metrics.distribution import BYTES, COUNTS, SECONDS, Distribution
from godwit.net.checkpoints import Checkpoints
from godwit.net.durable_log import LOG_ID_BYTES, LogClock, ThreadedLog
from godwit.net.log_writer import Answer, PendingAppend, text_of
from godwit.store.folder import DataFolder
from godwit.store.reader import LogReader
from godwit.store.replica import ReplicaStore
from godwit.store.retention import Retention, RetentionRule
from godwit.wire.changes import StoredState
from godwit.wire.epochs import Epoch

ENGINE_PAUSE_S: Final = 0.5
"""Pause between two attempts to reach the engine at the start."""
ENGINE_GRACE_S: Final = 5.0
"""A server of the engine that starts together with the node needs a few seconds: nothing is reported before."""
ENGINE_START_S: Final = 15.0
"""Time limit of one attempt."""
ITEMS_A_TURN: Final = 1024
STATUS_S: Final = 0.25
"""How often the status is renewed, beside changes of the state."""
FAREWELL_S: Final = 0.3
"""A node that stops sends its last heartbeat for this time."""
_POLL_S: Final = 0.002
_logger = logging.getLogger(__name__)


class Engine(Protocol):
    """An adapter of an engine, see godwit.cluster.engine."""

    def start(self, timeout_s: float = ...) -> None: ...
    def send(self, requests: Sequence[EngineRequest]) -> None: ...
    def renew(self, context: ssl.SSLContext) -> None: ...
    def close(self) -> None: ...


class NewEngine(Protocol):
    """Makes an engine that is not started; `report` and `backlog` are called in its thread."""

    def __call__(self, report: Callable[[EngineReport], None], *, backlog: Callable[[], int]) -> Engine: ...


class HandoverCommand(msgspec.Struct, frozen=True, tag="handover", array_like=True):
    """Sent to all members like a heartbeat: the active node hands over."""

    to: str = ""
    """The next active node; empty for any."""


def decode_command(data: bytes) -> HandoverCommand | None:
    """Return a command, or None if the bytes are not one."""
    if len(data) > MAX_BEAT_BYTES:
        return None
    try:
        return msgspec.msgpack.decode(data, type=HandoverCommand)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node, as other threads see it."""

    state: State = "standby"
    reason: str = ""
    epoch: int = 0
    position: int = 0
    behind: int = 0
    void: int = 0
    in_flight: int = 0
    engine_at: float | None = None
    """When the engine last reported how far the records reach, in monotonic seconds."""
    claiming_since: float | None = None
    """Since when a claim of this standby has not been stored. Servers without a majority answer, and store nothing."""
    storage_problem: str = ""
    """Why the file could not be written last; empty if it could."""
    claim_problem: str = ""
    """Why this standby could not claim if it had to; empty if it could."""
    active_name: str = ""
    active_address: str = ""
    members: tuple[Heartbeat, ...] = ()
    """The last heartbeats of the present nodes, this one first."""
    absent: tuple[Heartbeat, ...] = ()
    """The last heartbeats of nodes that have sent none for a while."""

    @property
    def lacking(self) -> int:
        """How many records of the replicated log the file of this node lacks, as far as is known."""
        applied = self.members[0].applied if self.members else self.position
        return self.behind + max(0, self.position - applied)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSnapshot:
    """The log as a broker finds it that becomes active. Its file belongs to the node."""

    log_id: bytes
    first_offset: int
    next_offset: int
    epochs: list[Epoch]
    stored: StoredState
    last_received_us: int

    def state(self) -> StoredState:
        """Return the state rows."""
        return self.stored

    def close(self) -> None:
        """Do nothing: the node keeps the file open."""


class _QueuedItem(NamedTuple):
    writer: ClusterWriter
    append: PendingAppend
    at: float


class _Detach(NamedTuple):
    writer: ClusterWriter


class _NewRules(NamedTuple):
    writer: ClusterWriter
    rules: Sequence[RetentionRule]
    hold: Callable[[], int | None]


class _Resign(NamedTuple):
    to: str


class _Closed(NamedTuple):
    """The broker of this node is closed."""


class _Renew(NamedTuple):
    context: ssl.SSLContext


class _End(NamedTuple):
    """End the thread."""


_Item: TypeAlias = EngineReport | _QueuedItem | _Detach | _NewRules | _Resign | _Closed | _Renew | _End


class ClusterWriter:
    """The writer of one active broker, in place of godwit.net.log_writer.LogWriter."""

    def __init__(self, member: ClusterMember, answer: Callable[[list[Answer]], None]) -> None:
        self._member = member
        self.answer = answer
        self.lets_read = member.checkpoints.lets_read
        self.has_reported_all = threading.Event()
        self.has_reported_all.set()
        self.commits = 0
        self.commit_seconds = Distribution(SECONDS)
        self.commit_bytes = Distribution(BYTES)
        self.commit_messages = Distribution(COUNTS)
        self.failures = 0
        self.deleted_messages = 0
        self.busy_since: float | None = None
        """When the oldest append without an answer was queued."""
        self.failed_era = -1
        """All appends of this era and earlier ones fail."""
        self.ended = threading.Event()

    @property
    def problem(self) -> str:
        """Why messages are refused: never, because a node that cannot store them is not active."""
        return ""

    def start(self) -> None:
        """Do nothing: the thread of the node runs."""

    def append(self, append: PendingAppend) -> None:
        """Queue an append. It is answered when it is in the replicated log and in the file, else never."""
        self._member.post(_QueuedItem(self, append, time.monotonic()))

    def probe(self) -> None:
        """Do nothing: see `problem`."""

    def end(self) -> None:
        """Detach it when all its appends are answered, or cannot be answered any more. Does not wait for that."""
        self._member.post(_Detach(self))

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until it is detached. Return whether it is."""
        return self.ended.wait(timeout_s) or not self._member.is_alive


class ReplicatedLog:
    """The log of the active broker of a cluster, see godwit.net.durable_log.BrokerLog."""

    def __init__(
        self,
        member: ClusterMember,
        snapshot: LogSnapshot,
        rules: Sequence[RetentionRule],
        *,
        wake: Callable[[], None],
        on_notice: Callable[[Notice], None],
        hold_from: int | None = None,
    ) -> None:
        """Open a reader, and begin with retention. See godwit.net.durable_log.DurableLog for the arguments."""
        self._member = member
        self.folder = member.folder
        self.reset_key = member.reset_key
        self.last_received_us = snapshot.last_received_us
        self.findings: list[str] = []
        self.hold_from = hold_from
        reader = LogReader.open(member.folder.log_path)
        self.log = ThreadedLog(snapshot, reader, self._new_writer, wake=wake, on_notice=on_notice)
        self.change_rules(rules)

    def _new_writer(self, answer: Callable[[list[Answer]], None]) -> ClusterWriter:
        self._writer = ClusterWriter(self._member, answer)
        return self._writer

    def __str__(self) -> str:
        return f"log in {self.folder.path}: the next message has offset {self.log.next_offset}"

    @property
    def status(self) -> MemberStatus:
        """The state of the node, and of the others."""
        return self._member.status

    def change_rules(self, rules: Sequence[RetentionRule]) -> None:
        """Replace the rules of retention."""
        self._member.post(_NewRules(self._writer, rules, lambda: self.hold_from))

    async def close(self) -> None:
        """Wait until all appends are answered, as far as they can be, and detach the writer."""
        self.log.end()
        while not self.log.has_ended:
            await asyncio.sleep(_POLL_S)


class ClusterMember:
    """A node with its thread. The file is open from the moment it is made."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        new_engine: NewEngine,
        *,
        reset_key: bytes,
        now_us: int,
        on_change: Callable[[], None],
        on_notice: Callable[[Notice], None],
    ) -> None:
        """Open the file.

        Args:
            config: Names and times.
            folder: The data folder, whose lock is held.
            new_engine: Makes the engine.
            reset_key: Of the folder.
            now_us: The time in microseconds since 1970.
            on_change: Called in the thread after a change of the state, or a command of an operator.
            on_notice: Called in the thread with an event line.

        Raises:
            StorageError: The file cannot be opened.
        """
        self.config = config
        self.folder = folder
        self.reset_key = reset_key
        self._new_engine = new_engine
        self._on_change = on_change
        self._on_notice = on_notice
        self.store = ReplicaStore.open(folder.log_path, new_log_id=os.urandom(LOG_ID_BYTES), now_us=now_us)
        self.checkpoints = Checkpoints(self.store, self._on_checkpoint_failed)
        self.status = MemberStatus(epoch=self.store.place.epoch, position=self.store.place.position)
        self.snapshot: LogSnapshot | None = None
        """The log at the moment at which this node became active."""
        self.handover: str | None = None
        """The node to hand over to, by a command of an operator; empty: any."""
        self.problem = "it has just started"
        """Why this node could not do its part, for the other nodes and operators. The event loop sets it."""
        self.failure: GodwitError | None = None
        """Why the thread has ended."""
        self._inbox: SimpleQueue[_Item] = SimpleQueue()
        self._engine: Engine | None = None
        self._replica: Replica
        self._writer: ClusterWriter | None = None
        self._detaching: ClusterWriter | None = None
        self._detach_by = 0.0
        self._resigning: str | None = None
        """The node to hand over to, as soon as nothing is in flight."""
        self._queued: deque[_QueuedItem] = deque()
        """Appends of the present writer without an answer."""
        self._read_bytes = 0
        """Bytes of records that were read and may not be applied yet."""
        self._status_at = 0.0
        self._engine_at: float | None = None
        self._claiming_since: float | None = None
        self._clock = LogClock(self.store)
        self._retention_problem = ""
        self._checkpoint_problem = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="godwit-cluster", daemon=True)

    # -- called in the event loop -------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, which connects to the engine."""
        self._thread.start()

    def post(self, item: _Item) -> None:
        """Hand something to the thread. May be called in any thread."""
        self._inbox.put(item)

    def handle_closed(self) -> None:
        """The broker of this node is closed."""
        self.post(_Closed())

    def resign(self, to: str) -> None:
        """Hand over to another node; empty: any. The broker of this node must be closed."""
        self.post(_Resign(to))

    def renew(self, context: ssl.SSLContext) -> None:
        """Use other certificates for new connections to the engine, once it is connected."""
        self.post(_Renew(context))

    def end(self) -> None:
        """End the thread, and close engine and file. Does not wait for it."""
        self._ending.set()
        self.post(_End())

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._open_engine():
                self._replica = Replica(self.config, self.store, entropy=os.urandom, now=time.monotonic())
                while not self._ending.is_set():
                    self._turn()
                    if self._replica.node.state == "stopped":
                        self._say_farewell()
                        self.failure = GodwitError(self._replica.node.reason)
                        break
        except GodwitError as error:
            self.failure = error
        except Exception as error:
            _logger.exception("the node has ended")
            self.failure = GodwitError(f"the node failed unexpectedly: {text_of(error)}")
        finally:
            self._close()
            self._on_change()

    def _open_engine(self) -> bool:
        """Connect to the engine, for as long as that takes. Return whether it is connected."""
        reported = ""
        report_at = time.monotonic() + ENGINE_GRACE_S
        while not self._ending.is_set():
            engine = self._new_engine(self._inbox.put, backlog=self._inbox.qsize)
            try:
                engine.start(ENGINE_START_S)
            except EngineUnavailableError as error:
                if str(error) != reported and time.monotonic() >= report_at:
                    reported = str(error)
                    self._on_notice(Notice("cluster", f"waiting for the engine of the cluster: {error}"))
                self._ending.wait(ENGINE_PAUSE_S)
            else:
                self._engine = engine
                return True
        return False

    def _turn(self) -> None:
        replica = self._replica
        node = replica.node
        now = time.monotonic()
        waits = [replica.next_timer() - now, *self.checkpoints.waits(now)]
        if self._detaching is not None:
            waits.append(self._detach_by - now)
        try:
            item: _Item | None = self._inbox.get(timeout=max(0.0, min(waits)))
        except Empty:
            item = None
        now = time.monotonic()
        node.problem = self.problem
        place = self.store.place
        for _ in range(ITEMS_A_TURN):
            if item is None:
                break
            self._handle(item, now)
            try:
                item = self._inbox.get_nowait()
            except Empty:
                item = None
        if item is not None:
            self._handle(item, now)
        if self._writer is not None and replica.has_cut_in_flight:
            self._writer.has_reported_all.clear()  # a reader of this node may see its effects from now on
        self._on_answers(replica.work(now))
        if self._writer is not None:
            self._writer.has_reported_all.set()
        self._resign_if_due(now)
        assert self._engine is not None
        self._engine.send(node.poll_requests())
        now = time.monotonic()
        if self.store.place != place:
            self.checkpoints.handle_commit(self._read_bytes, now)
            self._read_bytes = 0
        self._detach_if_due(now)
        self._report(now)
        if (problem := replica.retention_problem) != self._retention_problem:
            self._retention_problem = problem
            if problem:
                self._on_notice(
                    Notice("warning", f"old messages could not be deleted, which is tried again: {problem}")
                )
        if self._inbox.empty():
            self._maintain(now)

    def _handle(self, item: _Item, now: float) -> None:
        node = self._replica.node
        if isinstance(item, _QueuedItem):
            self._on_append(item)
        elif isinstance(item, _Detach):
            self._detaching, self._detach_by = item.writer, now + self.config.withdraw_s
            self._replica.change_retention(None)
        elif isinstance(item, _NewRules):
            self._on_rules(item)
        elif isinstance(item, _Resign):
            self._resigning = item.to
        elif isinstance(item, _Closed):
            node.handle_closed()
        elif isinstance(item, _Renew):
            assert self._engine is not None
            self._engine.renew(item.context)
        elif not isinstance(item, _End):
            if isinstance(item, StreamInfo):
                self._engine_at = now
            elif isinstance(item, Stored | RecordFound):
                self._read_bytes += len(item.data)
            elif isinstance(item, Beat) and (command := decode_command(item.data)) is not None:
                self._on_command(command, now)
                return
            node.handle(item, now)

    # -- appends ------------------------------------------------------------------------------------------------------

    def _on_append(self, item: _QueuedItem) -> None:
        writer, append = item.writer, item.append
        if writer.ended.is_set() or self._replica.node.state != "active":
            return  # its broker is being closed, and the clients send it to the next one
        self._writer = writer
        if append.era <= writer.failed_era:  # it was queued before the failure was known
            writer.answer([Failed("an append before it failed")])
            return
        if not self._queued:
            writer.busy_since = item.at
        self._queued.append(item)
        self._replica.append(item, append.effect.entries, append.effect.changes, append.size_bytes)

    def _on_rules(self, item: _NewRules) -> None:
        if item.writer.ended.is_set() or self._detaching is not None or self._replica.node.state != "active":
            return
        self._writer = item.writer
        retention = Retention(self.store, item.rules, item.hold) if item.rules else None
        self._replica.change_retention(retention, lambda: self._clock.at(time.time_ns() // 1000))

    def _on_answers(self, answers: Sequence[ReplicaAnswer]) -> None:
        if self._replica.node.state != "active":
            self._queued.clear()
        if not answers or self._writer is None:
            return
        writer = self._writer
        found: list[Answer] = []
        began = self._queued[0].at if self._queued else None
        committed = size_bytes = messages = 0
        for answer in answers:
            if isinstance(answer, AppliedCut):
                for deletion in answer.deletions:
                    writer.deleted_messages += sum([entry.count for _, entry in deletion.entries])
                    found.append(Losing(deletion.entries, deletion.floor, deletion.pattern))
                continue
            item = self._queued.popleft()
            if isinstance(answer, FailedAppend):
                writer.failed_era = item.append.era
                writer.failures += 1
                found.append(Failed(answer.text, is_lasting=True))
                continue
            committed += 1
            size_bytes += item.append.size_bytes
            messages += sum([entry.count for entry in item.append.effect.entries])
            found.append(Committed(answer.first_offset))
        if began is not None and committed:
            writer.commits += 1
            writer.commit_seconds.observe(time.monotonic() - began)
            writer.commit_bytes.observe(size_bytes)
            writer.commit_messages.observe(messages)
        writer.busy_since = self._queued[0].at if self._queued else None
        writer.answer(found)

    def _resign_if_due(self, now: float) -> None:
        node = self._replica.node
        if self._resigning is not None and (node.state != "active" or (node.may_propose and self._replica.is_idle)):
            to, self._resigning = self._resigning, None
            if node.state == "active":
                node.resign(to, now)
            else:  # deposed or withdrawn while its broker was being closed
                node.handle_closed()

    def _detach_if_due(self, now: float) -> None:
        writer = self._detaching
        if writer is None:
            return
        if self._replica.node.state != "active" or self._replica.is_idle or now >= self._detach_by:
            self._detaching = self._writer = None
            self._queued.clear()
            writer.ended.set()

    # -- reports ------------------------------------------------------------------------------------------------------

    def _on_command(self, command: HandoverCommand, now: float) -> None:
        node = self._replica.node
        if node.state != "active":
            return
        present = [name for name, member in node.members.items() if now - member.at <= MEMBER_S]
        if (command.to and command.to not in present) or not present:
            text = f"a handover to {command.to or 'another node'} was requested, which does not run"
            self._on_notice(Notice("cluster", text))
            return
        self.handover = command.to
        self._on_change()

    def _report(self, now: float) -> None:
        node = self._replica.node
        events = node.poll_events()
        if not events and now < self._status_at and node.state == self.status.state:
            return
        self._status_at = now + STATUS_S
        has_changed = node.state != self.status.state
        if has_changed and node.state == "active":
            store = self.store
            self.snapshot = LogSnapshot(
                log_id=store.log_id,
                first_offset=store.first_offset,
                next_offset=store.next_offset,
                epochs=list(store.epochs),
                stored=store.state(),
                last_received_us=store.last_received_us,
            )
        is_claiming = node.state == "standby" and node.in_flight > 0
        self._claiming_since = (self._claiming_since or now) if is_claiming else None
        present: list[Heartbeat] = []
        absent: list[Heartbeat] = []
        for member in node.members.values():
            (present if now - member.at <= MEMBER_S else absent).append(member.beat)
        self.status = MemberStatus(
            state=node.state,
            reason=node.reason,
            epoch=node.epoch,
            position=node.position,
            behind=node.behind,
            void=node.void,
            in_flight=node.in_flight,
            engine_at=self._engine_at,
            claiming_since=self._claiming_since,
            storage_problem=self._replica.storage_problem,
            claim_problem=node.claim_problem,
            active_name=node.active_name,
            active_address=node.active_address,
            members=(node.heartbeat(), *present),
            absent=tuple(absent),
        )
        for event in events:
            fields = {"node": self.config.name, "state": event.state, "epoch": node.epoch, "position": node.position}
            self._on_notice(Notice("cluster", f"node {self.config.name} is {event.state}: {event.text}", fields))
        if has_changed:
            self._on_change()

    # -- the file -----------------------------------------------------------------------------------------------------

    def _maintain(self, now: float) -> None:
        try:
            self.checkpoints.reserve(now)
            if self.checkpoints.run(now):
                self._checkpoint_problem = ""
        except GodwitError as error:
            self.checkpoints.postpone(now)
            self._on_checkpoint_failed(error)

    def _on_checkpoint_failed(self, error: Exception) -> None:
        text = f"the log's file could not be brought up to date, which is tried again: {text_of(error)}"
        if text != self._checkpoint_problem:
            self._checkpoint_problem = text
            self._on_notice(Notice("warning", text))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _say_farewell(self) -> None:
        """Let the other nodes and `godwit cluster status` know why this one is stopped."""
        assert self._engine is not None
        self._engine.send([BeatRequest(msgspec.msgpack.encode(self._replica.node.heartbeat()))])
        self._ending.wait(FAREWELL_S)

    def _close(self) -> None:
        for writer in (self._writer, self._detaching):
            if writer is not None:
                writer.has_reported_all.set()
                writer.ended.set()
        if self._engine is not None:
            self._engine.close()
        try:
            self.store.close()
        except GodwitError as error:
            self._on_notice(Notice("warning", f"the log could not be closed: {error}"))
