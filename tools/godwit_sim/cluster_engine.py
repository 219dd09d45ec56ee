"""A model of the engine of a cluster: one list of records, with servers that fail, and links to it that fail too.

A record is *proposed* when the leader accepts it, and *stored* a moment later, when a majority has it. A change of the
leader stores some of the proposed records without a report and drops the others. Without a majority nothing is stored,
and requests are lost or arrive later. Requests and reports are late, doubled or lost; reads and infos may come from a
server that is behind. All this an engine may do.

A *violation* breaks its promises: it loses stored records, changes one, loses one in the middle, or is begun
anew. A node cannot prevent them, but must not continue as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Literal, TypeAlias

import msgspec

from godwit.cluster.engine import (
    AppendRefused,
    AppendRequest,
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
)
from godwit.cluster.values import Heartbeat
from godwit_sim.network import Network

EngineViolation: TypeAlias = Literal["suffix", "flip", "hole", "anew"]
VIOLATIONS: Final[tuple[EngineViolation, ...]] = ("suffix", "flip", "hole", "anew")
MAX_LAG: Final = 4
"""How many records a server may be behind."""


class EngineFaults:
    """Probabilities of faults that an engine may have; all 0 when it is healed."""

    def __init__(self, rng: Random) -> None:
        self.lost = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.doubled = rng.choice((0.0, 0.0, 0.05))
        self.late = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.stale = rng.choice((0.0, 0.05))
        self.unfollowed = rng.choice((0.0, 0.01))

    def heal(self) -> None:
        """Let everything work."""
        self.lost = self.doubled = self.late = self.stale = self.unfollowed = 0.0


def strange_beat(data: bytes, rng: Random) -> bytes:
    """Return the heartbeat of a wrongly configured node, which is to disturb no other one, after that of a good one."""
    beat = msgspec.msgpack.decode(data, type=Heartbeat)
    beat = msgspec.structs.replace(beat, name="stranger", run=rng.randbytes(8), state="standby", link=beat.link ^ 1)
    kind = rng.randrange(3)
    if kind == 0 and beat.log_id:
        beat = msgspec.structs.replace(
            beat, log_id=rng.randbytes(16), state="active", epoch=rng.randrange(2**40), position=rng.randrange(2**40)
        )
    elif kind == 1:  # has just started with the folder of a cluster that has begun with the same log
        beat = msgspec.structs.replace(beat, is_verified=False, applied=rng.randrange(2**40))
    else:  # the same, with a name that is in use
        name = f"node{rng.randrange(3)}"
        beat = msgspec.structs.replace(beat, name=name, is_verified=False, age_s=rng.uniform(0.0, 1e6))
    return msgspec.msgpack.encode(beat)


class EngineModel:
    """The engine and all its links."""

    def __init__(self, network: Network, rng: Random, *, is_conditional: bool) -> None:
        self.network = network
        self.rng = rng
        self.is_conditional = is_conditional
        self.faults = EngineFaults(rng)
        self.records: list[bytes] = []
        """The stored records; the first one is at position 1."""
        self.first = 1
        self.holes: set[int] = set()
        self.has_majority = True
        self.links: list[EngineLink] = []
        self.strangers: Random | None = None
        """Draws heartbeats of wrongly configured nodes; None: there are none."""
        self.on_stored: Callable[[int, bytes], None] = lambda position, data: None
        self._proposed: list[tuple[bytes, EngineLink | None]] = []
        self._delayed: list[tuple[EngineLink, AppendRequest]] = []
        """Requests that arrive when there is a majority again."""

    def delay_s(self) -> float:
        """Draw the time that a request or a report takes."""
        if self.rng.random() < self.faults.late:
            return self.rng.uniform(0.1, 4.0)
        return self.rng.uniform(0.0003, 0.004)

    # -- requests -----------------------------------------------------------------------------------------------------

    def arrive(self, link: EngineLink, request: EngineRequest) -> None:
        """Carry out a request that has reached a server."""
        if isinstance(request, AppendRequest):
            self._append(link, request)
        elif isinstance(request, FollowRequest):
            link.follows_behind = request.after
            self._push(link)
        elif isinstance(request, BeatRequest):
            for other in self.links:
                other.report(Beat(request.data))
                if self.strangers is not None:
                    other.report(Beat(strange_beat(request.data, self.strangers)))
        elif not self.has_majority:
            return
        elif isinstance(request, TrimRequest):
            self.first = max(self.first, min(request.below, len(self.records) + 1))
        else:
            last = len(self.records)
            if self.rng.random() < self.faults.stale:
                last = max(self.first - 1, last - self.rng.randrange(1, MAX_LAG))
            if isinstance(request, InfoRequest):
                size_bytes = sum(map(len, self.records[self.first - 1 :]))
                link.report(StreamInfo(self.first, last, size_bytes))
            elif isinstance(request, RecordRequest):
                if self.first <= request.position <= last and request.position not in self.holes:
                    link.report(RecordFound(request.position, self.records[request.position - 1]))
                else:
                    link.report(Missing(request.position, self.first, last))

    def _append(self, link: EngineLink, request: AppendRequest) -> None:
        if not self.has_majority:
            if self.rng.random() < 0.5:
                self._delayed.append((link, request))
            elif self.rng.random() < 0.5:
                link.report(AppendRefused("no majority"))
            return
        if self.is_conditional and request.after != len(self.records) + len(self._proposed):
            link.report(AppendRefused("wrong last position"))
            return
        self._proposed.append((request.data, link))
        self.network.at(self.network.now + self.rng.uniform(0.0005, 0.006), self._store)

    def _store(self) -> None:
        if self._proposed and self.has_majority:
            self._store_first(reports=True)

    def _store_first(self, *, reports: bool) -> None:
        data, link = self._proposed.pop(0)
        self.records.append(data)
        self.on_stored(len(self.records), data)
        if reports and link is not None:
            link.report(Stored(len(self.records), data))
        for other in self.links:
            self._push(other)

    def _push(self, link: EngineLink) -> None:
        while link.follows_behind is not None and link.follows_behind < len(self.records) and self.has_majority:
            link.follows_behind += 1
            if self.rng.random() < self.faults.unfollowed:
                link.follows_behind = None
            elif self.first <= link.follows_behind and link.follows_behind not in self.holes:
                link.report_in_order(RecordFound(link.follows_behind, self.records[link.follows_behind - 1]))

    # -- faults -------------------------------------------------------------------------------------------------------

    def change_leader(self) -> None:
        """Store some of the proposed records without a report, and drop the others."""
        for _ in range(self.rng.randrange(len(self._proposed) + 1)):
            self._store_first(reports=False)
        self._proposed.clear()

    def set_majority(self, has_majority: bool) -> None:
        """Lose the majority, or get it back with another leader."""
        self.has_majority = has_majority
        if has_majority:
            self.change_leader()
            delayed, self._delayed = self._delayed, []
            for link, request in delayed:
                self._append(link, request)
            for link in self.links:
                self._push(link)

    def violate(self, kind: EngineViolation) -> bool:
        """Break a promise. Return False if there is nothing to break."""
        if len(self.records) <= self.first + 2:
            return False
        rng = self.rng
        if kind == "suffix":
            del self.records[-rng.randrange(1, min(8, len(self.records) - self.first)) :]
            self._proposed.clear()
        elif kind == "flip":
            index = rng.randrange(max(self.first, len(self.records) - 3), len(self.records) + 1) - 1
            data = bytearray(self.records[index])
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            self.records[index] = bytes(data)
        elif kind == "hole":
            self.holes.add(rng.randrange(max(self.first, len(self.records) - 3), len(self.records) + 1))
        else:
            self.records.clear()
            self._proposed.clear()
            self.first = 1
        for link in self.links:
            if link.follows_behind is not None:
                link.follows_behind = min(link.follows_behind, len(self.records))
        return True


class EngineLink:
    """The connection of one run of a node to the engine."""

    def __init__(self, model: EngineModel, deliver: Callable[[EngineReport], None]) -> None:
        self.follows_behind: int | None = None
        """The position of the last record that was reported, if the node follows."""
        self._model = model
        self._deliver = deliver
        self._is_cut = False
        self._ordered_at = 0.0
        model.links.append(self)

    def close(self) -> None:
        """The process has ended. Its requests may still be under way."""
        if self in self._model.links:
            self._model.links.remove(self)

    def cut(self, is_cut: bool) -> None:
        """Cut or mend the network between the node and the engine."""
        self._is_cut = is_cut
        if is_cut:
            self.follows_behind = None

    def send(self, request: EngineRequest) -> None:
        """Send a request to the engine."""
        model = self._model
        if self._is_cut or model.rng.random() < model.faults.lost:
            if isinstance(request, AppendRequest) and model.rng.random() < 0.5:
                self.report(AppendRefused("no answer"))
            return
        network = model.network
        network.at(network.now + model.delay_s(), model.arrive, self, request)
        if isinstance(request, AppendRequest) and model.rng.random() < model.faults.doubled:
            network.at(network.now + model.rng.uniform(0.001, 6.0), model.arrive, self, request)

    def report(self, report: EngineReport) -> None:
        """Send a report to the node."""
        model = self._model
        if model.rng.random() >= model.faults.lost:
            model.network.at(model.network.now + model.delay_s(), self._arrive, report)

    def report_in_order(self, report: EngineReport) -> None:
        """Send a report that does not overtake others of this kind."""
        self._ordered_at = max(self._ordered_at, self._model.network.now + self._model.delay_s())
        self._model.network.at(self._ordered_at, self._arrive, report)

    def _arrive(self, report: EngineReport) -> None:
        if self in self._model.links and not self._is_cut:
            self._deliver(report)
