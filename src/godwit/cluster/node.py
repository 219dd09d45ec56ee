"""A node of a cluster: follows the replicated log, claims it when no broker is active, and writes to it. Sans-IO.

    standby ---no active broker, has everything: claims; the claim counts and is applied---> active
    active ----a claim of another node counts---> deposed ----its broker is closed---> standby
    active ----the engine does not answer, or the disk fails---> withdrawn ----the engine answers---> standby
    active ----resigns---> standby
    all -------the replicated log contradicts the records that this node has read before---> stopped

    input     handle (reports of the engine), handle_timers, handle_applied, handle_apply_failed, handle_closed,
              propose, resign
    output    poll_requests (for the engine), steps (for the file), poll_events (for the operator)
    getters   state, next_timer, members, ...

Which records count is decided by godwit.cluster.records alone. Timeouts only decide when a node tries something, so a
wrong clock or a long pause costs time and never a message.

A proposal of the active node is settled when it counts: when the engine reports it as stored directly behind all that
counts, or when it is found there. Until then it is *in doubt*, and it is never given up as failed: it may be stored
already, and its sender would send it again. The node reads the next position and sends the same bytes again if there is
nothing. Several proposals may be in flight; they are settled in order. When a node is deposed or withdraws, it drops
its proposals without an answer. Publishers send them again to the next active broker, whose log has the identities of
the proposals that counted.

A node stops if the replicated log contradicts its own file, which an engine that keeps its promises does not cause: it
has fewer records, a hole, a damaged record, or another one at the same position. It compares itself with the other
members twice a second (godwit.cluster.members). A stopped node needs the operator: continuing would lose confirmed
messages silently.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

import msgspec

from godwit.cluster.engine import (
    AppendRefused,
    Beat,
    BeatRequest,
    EngineReport,
    EngineRequest,
    FollowRequest,
    InfoRequest,
    Missing,
    RecordFound,
    RecordRequest,
    Stored,
    StreamInfo,
    TrimRequest,
    Unsuitable,
)
from godwit.cluster.members import Members
from godwit.cluster.proposals import Proposal, Proposals
from godwit.cluster.records import (
    APPEND,
    CLAIM,
    CUT,
    RESIGN,
    BrokenLogError,
    Claim,
    Content,
    CountedRecord,
    Fold,
    NewerFormatError,
    RecordError,
    Resign,
    checksum_of,
    decode_body,
    next_epoch,
)
from godwit.cluster.values import (
    MAX_KNOWN,
    MAX_KNOWN_BYTES,
    MAX_STEPS,
    MAX_STEPS_BYTES,
    Evidence,
    Heartbeat,
    LogIdentity,
    Member,
    NodeConfig,
    NodeEvent,
    PlannedStep,
    State,
    decode_beat,
    trim_position,
)
from godwit.limits import MIB
from godwit.store.replica import FORMAT, AppendStep, Place, Step
from godwit.store.retention import RetentionCut
from godwit.wire.epochs import EPOCH_ID_BYTES

POLL_S: Final = 1.0
"""How often a node asks how far the records reach."""
SUSPECT_POLL_S: Final = 0.25
"""The same while it wants to claim, or has withdrawn."""
READ_TIMEOUT_S: Final = 1.0
PAUSE_S: Final = 0.5
"""A turn that is later than this was kept from running. The time until then does not count as silence of others."""
TRIM_S: Final = 5.0


class ClusterNode:
    """One run of a node. It ends with its process."""

    def __init__(
        self,
        config: NodeConfig,
        place: Place,
        identity: Callable[[], LogIdentity],
        *,
        has_content: bool,
        entropy: Callable[[int], bytes],
        now: float,
    ) -> None:
        """Begin as a standby behind the place of the file.

        Args:
            config: Names and times.
            place: Of the file.
            identity: Returns what a claim must know of the file.
            has_content: Whether the file has messages or state.
            entropy: Returns random bytes.
            now: Monotonic seconds.
        """
        self.config = config
        self.state: State = "standby"
        self.reason = ""
        """Why it is in this state."""
        self.problem = ""
        """Why this node could not do its part, for its heartbeats. The caller sets it: it also knows the machine."""
        self.active_name = self.active_address = ""
        """The node of the last claim that counts, if this run has read it."""
        self._identity = identity
        self._entropy = entropy
        self.run_id = entropy(EPOCH_ID_BYTES)
        self._others = Members(self.run_id, now)
        self._fold = Fold(place)
        self._writer, self._format = place.writer, place.format
        self._applied = place
        self._steps: deque[PlannedStep] = deque()
        self._steps_bytes = self._known_bytes = 0
        self._known: dict[int, bytes] = {}
        """Records by position that are not fed yet."""
        self._proposals = Proposals(now)
        self._writers: set[bytes] = set()
        """Of claims that this run has sent."""
        self._claimed: int | None = None
        """The position of a claim of this run that counts and is not applied yet."""
        self._requests: list[EngineRequest] = []
        self._events: list[NodeEvent] = []
        self._is_verified = place.position == 0
        """Whether the engine has the last record of the file, or has deleted just this one."""
        self._is_proven = True
        """Whether that was seen, or a record has continued it since."""
        self._obstacle = ""
        """Why this node has not claimed although no broker was active, when the engine last answered."""
        self._is_closed = True
        """Whether this process serves no clients, so that the node may be a standby."""
        self._is_disk_failing = self._is_resigning = False
        self._now = self._due_at = now
        self._read_at: float | None = None
        """When the read under way was sent."""
        self._read_position = 0
        self._answer_at = now
        """When the engine last answered."""
        self._progress_at = now
        """When the last record was read."""
        self._info: StreamInfo | None = None
        self._beat_at = now
        self._poll_at = now
        self._trim_at = now + TRIM_S
        self._active_at = now
        """When there was the last sign of an active broker."""
        self._active_pause_s = 0.0
        """The time between two signs of the active broker."""
        self._jitter_s = self._draw_jitter()
        self._less, self._hole = Evidence(), Evidence()
        if place.position:
            self._others.remember(self._fold)
        else:
            self._requests.append(FollowRequest(0))
        if has_content and not place.number:
            self._stop(
                "the log of this node has content and was never part of a cluster: begin one with it (`godwit cluster "
                "begin --from DIR`), or give this node an empty folder"
            )

    # -- getters ------------------------------------------------------------------------------------------------------

    @property
    def place(self) -> Place:
        """The place of the file."""
        return self._applied

    @property
    def members(self) -> OrderedDict[str, Member]:
        """The other members, by name, as they were received last."""
        return self._others.known

    @property
    def epoch(self) -> int:
        """The epoch of the last claim that counts."""
        return self._fold.epoch

    @property
    def position(self) -> int:
        """Of the last record that was read."""
        return self._fold.position

    @property
    def void(self) -> int:
        """How many records this run has read that do not count."""
        return self._fold.void

    @property
    def in_flight(self) -> int:
        """The number of proposals that are not settled."""
        return len(self._proposals)

    @property
    def behind(self) -> int:
        """How many records the engine has that were not read, as far as is known."""
        return 0 if self._info is None else max(0, self._info.last - self._fold.position)

    @property
    def may_propose(self) -> bool:
        """Whether `propose` may be called."""
        return self.state == "active" and not self._is_resigning

    @property
    def claim_problem(self) -> str:
        """Why this node could not claim if it had to; empty if it could, or is not a standby."""
        if self.state != "standby":
            return ""
        if not self._is_verified:
            return "it has not found the last record of its file in the replicated log yet"
        if not self._is_proven:
            return (
                "the last record of its file was deleted from the replicated log, and it waits for a later one, which "
                "the active node writes: if none is active, begin a cluster of another name (`godwit cluster begin`)"
            )
        return self._obstacle

    @property
    def is_closing(self) -> bool:
        """Whether the broker of this node must be closed; then call `handle_closed`."""
        return self.state in ("withdrawn", "deposed", "stopped") and not self._is_closed

    def next_timer(self) -> float:
        """Return when `handle_timers` is needed, if nothing else happens before."""
        due = self._beat_at
        if self.state == "stopped":
            return due
        due = min(due, self._poll_at)
        if self._read_at is not None:
            due = min(due, self._read_at + READ_TIMEOUT_S)
        if (at := self._proposals.due()) is not None:
            due = min(due, at)
        if self.state == "active":
            due = min(due, self._withdraw_at())
        return due

    # -- output -------------------------------------------------------------------------------------------------------

    def poll_requests(self) -> list[EngineRequest]:
        """Return the requests since the last call."""
        requests, self._requests = self._requests, []
        return requests

    def poll_events(self) -> list[NodeEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def steps(self) -> list[PlannedStep]:
        """Return the records to apply to the file, in one transaction or several; then call `handle_applied`."""
        return list(self._steps)

    # -- input --------------------------------------------------------------------------------------------------------

    def handle(self, report: EngineReport, now: float) -> None:
        """Handle a report of the engine."""
        self._now = now
        self._skip_pause(now)
        if isinstance(report, Beat):
            self._on_beat(report.data, now)
            return
        if self.state == "stopped":
            return
        if isinstance(report, AppendRefused):
            if not self._proposals.is_waiting:
                self._look(now)
            return
        if isinstance(report, Unsuitable):
            self._stop(report.text)
            return
        self._answer_at = now
        if isinstance(report, StreamInfo):
            self._on_info(report, now)
        elif isinstance(report, Missing):
            self._on_missing(report, now)
        else:
            self._on_record(report, now)

    def handle_timers(self, now: float) -> None:
        """Send all requests that are due."""
        self._now = now
        self._skip_pause(now)
        self._send_due(now)
        self._due_at = self.next_timer()

    def _skip_pause(self, now: float) -> None:
        """Leave a pause out of all timeouts: this process or its machine was stopped, or its disk has kept it waiting.

        Signs of the active broker that came meanwhile are handled only now, perhaps behind other reports.
        """
        late_s = now - self._due_at
        if late_s <= 0:
            return
        self._due_at = now
        if late_s >= PAUSE_S:
            self._active_at += late_s
            self._proposals.head_since += late_s
            self._answer_at += late_s
            self._progress_at += late_s
            self._others.skip(late_s)

    def _send_due(self, now: float) -> None:
        if now >= self._beat_at:
            self._beat_at = now + self.config.heartbeat_s
            self._requests.append(BeatRequest(msgspec.msgpack.encode(self.heartbeat())))
        if self.state == "stopped":
            return
        if self.state == "active" and now >= self._withdraw_at():
            self._withdraw(f"the engine has not stored or answered anything for {self.config.withdraw_s:g} s", now)
        if self._read_at is not None and now >= self._read_at + READ_TIMEOUT_S:
            self._read_at = None
            if not self._is_verified or self._proposals:
                self._look(now)
        if self._proposals.resend_if_due(now):
            self._send(now)
        if self._proposals.is_in_doubt(now):
            self._look(now)
        if now >= self._poll_at:
            self._poll(now)

    def handle_applied(self, place: Place) -> None:
        """All steps up to this place are in the file, and synced."""
        self._applied = place
        if self._is_disk_failing:
            self._is_disk_failing = False
            self._remark_once("its file can be written again")
        while self._steps and self._steps[0].place.position <= place.position:
            self._steps_bytes -= self._steps.popleft().size_bytes
        if self._claimed is not None and place.position >= self._claimed:
            self._claimed = None
            if self.state == "standby":
                self._become_active()
        if self.state == "standby":
            self._advance(self._now)  # records that were not read because too much waited

    def handle_apply_failed(self, text: str, *, is_foreign: bool = False) -> None:
        """The file could not take the steps. `is_foreign`: because they are of another log; else call it later again.

        The records count, so their senders get no answer, and another node shall be the active one.
        """
        if is_foreign:
            self._stop(text)
            return
        self._is_disk_failing = True
        if self.state == "active":
            self._withdraw(text, self._now)
        else:
            self._remark_once(f"it cannot store records, which is tried again: {text}")

    def handle_closed(self) -> None:
        """After deposed or withdrawn: the broker of this node serves no clients any more."""
        self._is_closed = True
        if self.state == "deposed":
            self._become_standby("its broker is closed")

    def propose(self, step: AppendStep | RetentionCut, token: object, now: float) -> None:
        """Write a commit, or a cut of retention. When it counts, its step appears in `steps`, with the token."""
        if not self.may_propose:
            raise RuntimeError(f"this node is {self.state}: only the active one writes")
        self._propose(APPEND if isinstance(step, AppendStep) else CUT, self._fold.epoch, step, token, now)

    def resign(self, to: str, now: float) -> None:
        """Hand over to another node; empty: any. Its broker must be closed, and all its proposals applied."""
        if not self.may_propose:
            raise RuntimeError(f"this node is {self.state}: only the active one resigns")
        self._is_resigning = True
        self._is_closed = True
        self._propose(RESIGN, self._fold.epoch, Resign(to), None, now)

    def heartbeat(self) -> Heartbeat:
        """Return what the other members receive of this node."""
        fold = self._fold
        return Heartbeat(
            name=self.config.name,
            run=self.run_id,
            state=self.state,
            epoch=fold.epoch,
            position=fold.position,
            number=fold.number,
            link=fold.link,
            applied=self._applied.position,
            next_offset=self._identity().next_offset,
            address=self.config.address,
            reason=self.reason[:256],
            log_id=self._identity().log_id if self._applied.number else b"",
            is_verified=self._is_verified and self._is_proven,
            age_s=self._others.age_s(self._now),
            heartbeat_s=self.config.heartbeat_s,
            problem=self.problem[:256],
        )

    # -- records ------------------------------------------------------------------------------------------------------

    def _on_record(self, report: Stored | RecordFound, now: float) -> None:
        position, data = report.position, report.data
        fold = self._fold
        if isinstance(report, RecordFound):
            self._read_at = None
            if not self._is_verified and position == self._applied.position:
                self._verify(checksum_of(data) == self._applied.link, now)
                return
        if position <= fold.position:
            return
        is_next = position == fold.position + 1
        if is_next or (len(self._known) < MAX_KNOWN and self._known_bytes < MAX_KNOWN_BYTES):
            if position not in self._known:
                self._known_bytes += len(data)
            self._known[position] = data
        if not self._is_verified:
            return
        before = fold.position
        self._advance(now)
        if self.state == "stopped":
            return
        if isinstance(report, RecordFound) and self._proposals and fold.position > before:
            self._look(now)  # there may be more that this node has not written
        elif position > fold.position + 1 and not self._proposals and not self._is_full:
            self._look(now)  # a record was skipped

    @property
    def _is_full(self) -> bool:
        return len(self._steps) >= MAX_STEPS or self._steps_bytes >= MAX_STEPS_BYTES

    def _advance(self, now: float) -> None:
        """Feed all records that are next."""
        fold, known = self._fold, self._known
        while not (self._is_full and self.state == "standby"):
            data = known.pop(fold.position + 1, None)
            if data is None:
                break
            self._known_bytes -= len(data)
            try:
                self._feed(data, now)
            except BrokenLogError as error:
                advice = (
                    "" if isinstance(error, NewerFormatError) else ". Compare the nodes with `godwit cluster check`"
                )
                self._stop(f"{error}{advice}")
                return
        if self._proposals:
            self._send(now)

    def _feed(self, data: bytes, now: float) -> None:
        fold = self._fold
        void = fold.void
        counted = fold.feed(fold.position + 1, data)
        self._progress_at = now
        self._hole.clear()
        self._others.remember(fold)
        if fold.void > void:
            return
        self._is_proven = True
        own: Proposal | None = None
        if self._proposals.has_next(data):
            own = self._proposals.settle(now)
        elif self.state == "active" and (counted is None or counted.kind != CLAIM):
            raise BrokenLogError(f"another node has written the record at position {fold.position:,} as this one")
        else:
            self._proposals.clear()  # a claim that cannot count any more, or those of a deposed node
        if counted is not None:
            self._on_counted(counted, own, now)

    def _on_counted(self, counted: CountedRecord, own: Proposal | None, now: float) -> None:
        place = counted.place
        if own is not None:
            content = own.content
        else:
            try:
                content = decode_body(counted.kind, counted.body)
            except RecordError as error:
                raise BrokenLogError(f"the record at position {place.position:,} is invalid: {error}") from error
        step: Step | None = None
        if isinstance(content, Claim):
            step = content.step()
            self._writer, self._format = content.writer, max(self._format, content.format)
        elif not isinstance(content, Resign):
            step = content
        place = msgspec.structs.replace(place, writer=self._writer, format=self._format)
        self._steps.append(PlannedStep(step, place, None if own is None else own.token, len(counted.body)))
        self._steps_bytes += len(counted.body)
        if isinstance(content, Claim):
            self._on_claim(content, place, now)
        elif isinstance(content, Resign):
            self._on_resigned(content, own is not None, now)
        else:
            self._active_at = max(self._active_at, now)

    def _on_claim(self, claim: Claim, place: Place, now: float) -> None:
        self.active_name, self.active_address = claim.node, claim.address
        self._active_at, self._active_pause_s = now, 0.0
        self._jitter_s = self._draw_jitter()
        self._claimed = None
        if claim.writer in self._writers and self.state in ("standby", "withdrawn"):
            if self._is_closed and self.state == "standby":
                self._claimed = place.position
            return
        if self._is_resigning:
            self._is_resigning = False
            self._become_standby(f"the node {claim.node} is active since position {place.position:,}")
        elif self.state == "active":
            self._set("deposed", f"the node {claim.node} is active since position {place.position:,}")
        elif self.state == "standby":
            self._remark(f"the node {claim.node} is active since position {place.position:,}")

    def _on_resigned(self, resign: Resign, is_own: bool, now: float) -> None:
        self.active_name = self.active_address = ""
        self._active_pause_s = 0.0
        self._claimed = None
        if is_own:
            self._is_resigning = False
            self._become_standby(f"handed over to {resign.to or 'another node'}")
            self._active_at = now + self.config.suspect_s  # the other nodes come first
        else:
            is_next = resign.to in ("", self.config.name)
            self._active_at = now - self._suspect_s if is_next else now
            if is_next and resign.to:
                self._jitter_s = 0.0
            self._poll_at = now

    # -- proposals ----------------------------------------------------------------------------------------------------

    def _propose(self, kind: int, epoch: int, content: Content, token: object, now: float) -> None:
        self._proposals.add(kind, epoch, self._fold, content, token, now)
        self._send(now)

    def _send(self, now: float) -> None:
        self._requests += self._proposals.unsent(self._fold.position, now)

    def _look(self, now: float) -> None:
        """Read the next position, or the last record of the file if that was not compared yet."""
        position = self._fold.position + self._is_verified
        if self._read_at is None or self._read_position != position:
            self._read_at, self._read_position = now, position
            self._requests.append(RecordRequest(position))

    def _on_missing(self, report: Missing, now: float) -> None:
        self._read_at = None
        if report.position != self._fold.position + self._is_verified:
            return
        if report.position < report.first:
            if report.first == self._fold.position + 1:  # the link of a later record proves it
                self._is_proven = False
                self._verify(True, now)
            else:
                self._stop_trimmed(report.first)
        elif report.position <= report.last:
            if self._hole.add(now):
                self._stop(
                    f"the record at position {report.position:,} of the replicated log is missing, and there are later "
                    "ones: compare the nodes with `godwit cluster check`"
                )
            else:
                self._proposals.resend_later(now)
        else:
            self._hole.clear()
            self._check_less(report.last, now)
            self._proposals.resend_later(now)

    # -- the engine ---------------------------------------------------------------------------------------------------

    def _poll(self, now: float) -> None:
        claim_at = self._claim_at()
        is_urgent = self.state in ("withdrawn", "deposed") or (self.state == "standby" and now >= claim_at)
        self._poll_at = now + (SUSPECT_POLL_S if is_urgent else POLL_S)
        if self.state == "standby" and now < claim_at:
            self._poll_at = min(self._poll_at, claim_at)
        self._requests.append(InfoRequest())
        if not self._is_verified:
            self._look(now)

    def _on_info(self, info: StreamInfo, now: float) -> None:
        self._info = info
        self._obstacle = ""
        if self._check_less(info.last, now):
            return
        if self._is_verified and info.first > self._fold.position + 1 and info.last > self._fold.position:
            self._stop_trimmed(info.first)
            return
        if self.state == "withdrawn":
            if self._is_closed:
                self._become_standby("the engine answers again")
            return
        if not self._is_verified:
            return
        if info.last > self._fold.position:
            if self.state == "active":
                if not self._proposals:
                    self._look(now)
            elif now >= self._progress_at + POLL_S and not self._is_full:
                self._progress_at = now
                self._requests.append(FollowRequest(self._fold.position))
        elif self.state == "standby":
            self._try_to_claim(info, now)
        if self.state == "active" and now >= self._trim_at:
            self._trim(info, now)

    def _check_less(self, last: int, now: float) -> bool:
        """Stop if the engine has lost records that this node has read."""
        if last >= self._fold.position:
            self._less.clear()
            return False
        if self._less.add(now):
            self._stop(
                f"the replicated log ends at position {last:,}, and this node has read it up to "
                f"{self._fold.position:,}: the engine has lost records, or was begun anew. Do not delete the folder "
                "of this node; compare the nodes with `godwit cluster check`"
            )
        return True

    def _stop_trimmed(self, first: int) -> None:
        self._stop(
            f"this node needs the records from position {self._fold.position + 1:,} on, and the replicated log begins "
            f"at {first:,}: it was away for too long. Seed it from a backup of another node (`godwit cluster seed`)"
        )

    def _verify(self, is_same: bool, now: float) -> None:
        if not is_same:
            self._stop(
                f"the record at position {self._applied.position:,} of the replicated log is not the one that the "
                "file of this node has: it belongs to another cluster, or the engine has lost records"
            )
            return
        self._is_verified = True
        self._active_at = max(self._active_at, now)
        self._requests.append(FollowRequest(self._fold.position))
        self._advance(now)

    def _trim(self, info: StreamInfo, now: float) -> None:
        self._trim_at = now + TRIM_S
        below = trim_position(info, self._applied.position, self._others.applied(now), self.config.keep_bytes)
        if below > info.first:
            self._requests.append(TrimRequest(below))
        elif info.size_bytes > 2 * self.config.keep_bytes:
            self._remark_once(
                f"the replicated log has grown to {info.size_bytes // MIB:,} MiB, because no other node has its first "
                "records: start the other nodes, before the disks of the engine are full"
            )

    # -- claims -------------------------------------------------------------------------------------------------------

    @property
    def _suspect_s(self) -> float:
        """The silence behind which this node claims. Its own setting may be too short for the active node's."""
        return max(self.config.suspect_s, 2 * self._active_pause_s)

    def _claim_at(self) -> float:
        return self._active_at + self._suspect_s + self._jitter_s

    def _draw_jitter(self) -> float:
        """Return a delay that keeps two standbys from claiming at the same time, most of the time."""
        (drawn,) = struct.unpack(">H", self._entropy(2))
        return float(drawn) / 65536 * 0.5

    def _try_to_claim(self, info: StreamInfo, now: float) -> None:
        """Claim if no broker is active and this node has everything."""
        if self._proposals or self._claimed is not None or now < self._claim_at():
            return
        if self._steps or self._is_disk_failing or not self._is_closed or not self._is_proven:
            return
        for beat in self._others.present(now):
            if beat.position > info.last:
                self._obstacle = (
                    f"{beat.name} has read up to position {beat.position:,}, and the replicated log ends at "
                    f"{info.last:,}"
                )
                self._remark_once(f"this node does not become active: {self._obstacle}")
                return
        self._jitter_s = self._draw_jitter()
        identity = self._identity()
        writer = self._entropy(EPOCH_ID_BYTES)
        self._writers.add(writer)
        claim = Claim(
            format=FORMAT,
            node=self.config.name,
            address=self.config.address,
            log_id=identity.log_id,
            created_us=identity.created_us,
            secret=identity.secret,
            writer=writer,
            next_offset=identity.next_offset,
        )
        self._propose(CLAIM, next_epoch(self._fold.epoch), claim, None, now)

    # -- members ------------------------------------------------------------------------------------------------------

    def _on_beat(self, data: bytes, now: float) -> None:
        beat, others, fold = decode_beat(data), self._others, self._fold
        if beat is None or beat.run == self.run_id:
            return
        log_id = self._identity().log_id if self._applied.number else b""
        if beat.log_id and log_id and beat.log_id != log_id:
            if self.state != "stopped" and others.is_new_stranger(beat):
                self._remark(f"{beat.name} at {beat.address} has another log, and is ignored: give it its own folder")
            return
        is_sign = beat.state == "active" and beat.log_id in (b"", log_id)  # a node without a log can judge no other
        if is_sign and beat.epoch >= fold.epoch + fold.is_resigned:  # also of a namesake
            self._active_at, self._active_pause_s = max(self._active_at, now), beat.heartbeat_s
            if beat.epoch > fold.epoch and self.state == "active":
                self._look(now)
        if beat.name == self.config.name:
            if self.state not in ("active", "stopped") and others.is_earlier_namesake(beat, now):
                self._stop(
                    f"another process is the node {self.config.name}, at {beat.address or 'an unknown address'}: give "
                    "each node a name and a folder of its own"
                )
            return
        if others.add(beat, now) and self.state != "stopped":
            self._stop(
                f"this node and {beat.name} have read different records up to position {beat.position:,}: the engine "
                "has lost or changed records. Compare the nodes with `godwit cluster check`"
            )

    # -- states -------------------------------------------------------------------------------------------------------

    def _withdraw_at(self) -> float:
        since = self._proposals.head_since if self._proposals else self._answer_at
        return since + self.config.withdraw_s

    def _withdraw(self, text: str, now: float) -> None:
        self._proposals.clear()
        self._is_closed = self._is_resigning
        self._is_resigning = False
        self._set("withdrawn", text)
        self._poll_at = now

    def _become_active(self) -> None:
        self._is_closed = self._is_resigning = False
        self._proposals.head_since = self._answer_at = self._now
        self._requests.append(FollowRequest(None))
        self._set("active", f"this node is active in epoch {self._fold.epoch}")

    def _become_standby(self, text: str) -> None:
        self._proposals.clear()
        self._active_at = self._progress_at = self._now
        self._jitter_s = self._draw_jitter()
        self._requests.append(FollowRequest(self._fold.position))
        self._set("standby", text)

    def _stop(self, text: str) -> None:
        self._proposals.clear()
        self._known.clear()
        self._known_bytes = 0
        self._requests.append(FollowRequest(None))
        self._set("stopped", text)

    def _set(self, state: State, text: str) -> None:
        self.state, self.reason = state, text
        self._events.append(NodeEvent(state, text))
        self._beat_at = self._now

    def _remark(self, text: str) -> None:
        self._events.append(NodeEvent(self.state, text))

    def _remark_once(self, text: str) -> None:
        if self.reason != text:
            self.reason = text
            self._remark(text)
