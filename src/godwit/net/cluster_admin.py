"""What an operator does with a cluster: look at its nodes, hand over, compare, seed a node, begin with a log.

These functions talk to the engine, not to a broker, so they work while no node is active. They block.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgspec

from godwit.cluster.engine import (
    AppendRefused,
    AppendRequest,
    Beat,
    BeatRequest,
    EngineReport,
    EngineRequest,
    InfoRequest,
    Missing,
    RecordFound,
    RecordRequest,
    Stored,
    StreamInfo,
)
from godwit.cluster.records import (
    CLAIM,
    Claim,
    NewerFormatError,
    RecordError,
    checksum_of,
    decode_body,
    decode_part,
    encode_body,
    encode_parts,
)
from godwit.cluster.values import Heartbeat, decode_beat
from godwit.errors import GodwitError, StorageError, UsageError
from godwit.net.cluster_member import Engine, HandoverCommand
from godwit.net.cluster_service import engine_maker
from godwit.net.durable_log import LOG_ID_BYTES
from godwit.server.cluster_configuration import ClusterSection
from godwit.store.folder import DataFolder
from godwit.store.maintenance import backup
from godwit.store.port import ProgressCallback
from godwit.store.replica import FORMAT, Place, ReplicaPlace, ReplicaStore, read_place
from godwit.store.sqlite import SqliteStore
from godwit.store.witness import write_witness
from godwit.wire.epochs import EPOCH_ID_BYTES

ENGINE_S: Final = 20.0
LISTEN_S: Final = 1.5
"""Three heartbeats."""
REQUEST_S: Final = 15.0
REPEAT_S: Final = 2.0


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as its last heartbeat describes it."""

    node: str
    state: str
    address: str
    epoch: int
    position: int
    applied: int
    behind: int
    """How many records of the replicated log its file lacks."""
    next_offset: int
    reason: str
    problem: str
    """Why it could not do its part at present, as its `/readyz` reports; empty if it could."""


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cluster."""

    name: str
    first: int
    """The first and the last position of the replicated log, and its size."""
    last: int
    size_bytes: int
    nodes: list[NodeReport]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison has found."""

    cluster: ClusterReport
    folder: str
    """The data folder that was compared; empty for none."""
    position: int
    """How far its file has followed the replicated log."""
    problems: list[str]
    """A sentence each."""


class EngineClient:
    """Sends single requests to the engine of a cluster."""

    def __init__(self, section: ClusterSection, *, makes_stream: bool = False) -> None:
        """Connect. With `makes_stream` a stream that does not exist is made, else that is an error.

        Raises ConfigurationError, or EngineUnavailableError if the engine does not answer.
        """
        self._reports: SimpleQueue[EngineReport] = SimpleQueue()
        self._engine: Engine = engine_maker(section, makes_stream=makes_stream)(self._reports.put, backlog=lambda: 0)
        self._engine.start(ENGINE_S)

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def send(self, request: EngineRequest) -> None:
        """Send a request without waiting."""
        self._engine.send([request])

    def request_handover(self, to: str) -> None:
        """Ask the active node to hand over to another one; empty: any. Does not wait for it."""
        self.send(BeatRequest(msgspec.msgpack.encode(HandoverCommand(to))))

    def beats(self, timeout_s: float) -> dict[str, Heartbeat]:
        """Return the heartbeats that arrive within this time, the last one of each node."""
        found: dict[str, Heartbeat] = {}
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0:
            try:
                report = self._reports.get(timeout=left_s)
            except Empty:
                break
            if isinstance(report, Beat) and (beat := decode_beat(report.data)) is not None:
                found[beat.name] = beat
        return found

    def ask(self, request: EngineRequest, is_answer: Callable[[EngineReport], bool]) -> Any:
        """Repeat a request until its answer comes. Raise GodwitError if it does not."""
        until = time.monotonic() + REQUEST_S
        repeat_at = 0.0
        while (now := time.monotonic()) < until:
            if now >= repeat_at:
                repeat_at = now + REPEAT_S
                self._engine.send([request])
            try:
                report = self._reports.get(timeout=0.1)
            except Empty:
                continue
            if is_answer(report):
                return report
        raise GodwitError(f"the engine has not answered within {REQUEST_S:g} s: check that most of its servers run")

    def info(self) -> StreamInfo:
        """Return how far the replicated log reaches."""
        found: StreamInfo = self.ask(InfoRequest(), lambda report: isinstance(report, StreamInfo))
        return found

    def record(self, position: int) -> bytes | None:
        """Return the record at a position, or None."""
        found = self.ask(
            RecordRequest(position),
            lambda report: isinstance(report, RecordFound | Missing) and report.position == position,
        )
        return found.data if isinstance(found, RecordFound) else None


# -- status, handover -------------------------------------------------------------------------------------------------


def cluster_status(section: ClusterSection) -> ClusterReport:
    """Return the nodes that run, and how far the replicated log reaches."""
    with EngineClient(section) as client:
        return _status(client, section)


def _status(client: EngineClient, section: ClusterSection) -> ClusterReport:
    info = client.info()
    beats = client.beats(max(LISTEN_S, 3 * section.heartbeat_s))
    nodes = [
        NodeReport(
            node=beat.name,
            state=beat.state,
            address=beat.address,
            epoch=beat.epoch,
            position=beat.position,
            applied=beat.applied,
            behind=max(0, info.last - beat.applied),
            next_offset=beat.next_offset,
            reason=beat.reason,
            problem=beat.problem,
        )
        for _, beat in sorted(beats.items())
    ]
    return ClusterReport(name=section.name, first=info.first, last=info.last, size_bytes=info.size_bytes, nodes=nodes)


def hand_over(section: ClusterSection, to: str, timeout_s: float) -> tuple[str, str, float]:
    """Make another node the active one. Return the former one, the new one, and how long it took in seconds.

    Args:
        section: Of the cluster.
        to: The next active node; empty for any.
        timeout_s: How long to wait.

    Raises:
        GodwitError: No node is active, the next one does not run, or nothing has changed in time.
    """
    with EngineClient(section) as client:
        beats = client.beats(max(LISTEN_S, 3 * section.heartbeat_s))
        former = next((beat for beat in beats.values() if beat.state == "active"), None)
        if former is None:
            raise GodwitError("no node is active: see godwit cluster status")
        others = sorted(beat.name for beat in beats.values() if beat.state == "standby")
        if to == former.name:
            raise UsageError(f"the node {to} is active already: name another one of {', '.join(others) or 'none'}")
        if not others or (to and to not in others):
            what = f"the node {to} is not a standby" if to else "no standby runs"
            raise GodwitError(f"{what}: standbys are {', '.join(others) or 'none'}; see godwit cluster status")
        began = time.monotonic()
        client.request_handover(to)
        while time.monotonic() < began + timeout_s:
            for beat in client.beats(0.1).values():
                if beat.state == "active" and beat.epoch > former.epoch:
                    return former.name, beat.name, time.monotonic() - began
    raise GodwitError(f"no other node has become active within {timeout_s:g} s: see godwit cluster status")


# -- check ------------------------------------------------------------------------------------------------------------


def check_cluster(section: ClusterSection, folder: Path | None) -> CheckReport:
    """Compare the nodes with each other and with the replicated log, and the file in a folder with it."""
    with EngineClient(section) as client:
        report = _status(client, section)
        problems = [*_compare_nodes(report)]
        place = Place()
        path = None if folder is None else DataFolder(folder).log_path
        if path is not None and path.exists():
            place = read_place(path).place
            problems += _compare_file(client, report, place, path)
    return CheckReport(
        cluster=report, folder="" if folder is None else str(folder), position=place.position, problems=problems
    )


def _compare_nodes(report: ClusterReport) -> list[str]:
    problems = []
    active = [node.node for node in report.nodes if node.state == "active"]
    if len(active) != 1:
        problems.append(f"{len(active)} nodes are active{': ' if active else ''}{', '.join(active)}")
    for node in report.nodes:
        if node.state == "stopped":
            problems.append(f"the node {node.node} is stopped: {node.reason}")
        elif node.problem or node.state not in ("active", "standby"):
            problems.append(f"the node {node.node} is {node.state}, and not ready: {node.problem or node.reason}")
        if node.position > report.last:
            problems.append(
                f"the node {node.node} has read up to position {node.position:,}, and the replicated log ends at "
                f"{report.last:,}: the engine has lost records. Keep the folder of this node, and begin a cluster of "
                "another name with the folder that has read most (godwit cluster begin --from DIR)"
            )
    return problems


def _compare_file(client: EngineClient, report: ClusterReport, place: Place, path: Path) -> list[str]:
    if not place.number:
        return [f"{path} was never part of a cluster: begin one with it (godwit cluster begin --from DIR)"]
    if place.position > report.last:
        return [
            f"{path} has read up to position {place.position:,}, and the replicated log ends at {report.last:,}: the "
            "engine has lost records, or was begun anew"
        ]
    if place.position + 1 < report.first:
        return [
            f"{path} needs the records from position {place.position + 1:,} on, and the replicated log begins at "
            f"{report.first:,}: seed this node (godwit cluster seed FILE)"
        ]
    data = client.record(place.position)
    if data is not None and checksum_of(data) != place.link:
        return [f"{path} has another record at position {place.position:,}: it belongs to another cluster"]
    return []


# -- seed, begin ------------------------------------------------------------------------------------------------------


def seed_folder(file: Path, folder_path: Path, progress: ProgressCallback) -> ReplicaPlace:
    """Make a data folder from a backup of another node. Return how far it has followed the replicated log.

    Raises:
        UsageError: The file is not of a node, or the folder has a log that must not be replaced.
        LogInUseError: A broker uses the folder.
    """
    if file.is_dir():
        file = DataFolder(file).log_path
    found = read_place(file)
    if not found.place.number:
        raise UsageError(f"{file} is not the log of a node of a cluster: make a backup of one (godwit log backup)")
    folder = DataFolder(folder_path)
    folder.open()
    try:
        if folder.log_path.exists():
            _refuse_to_replace(found, read_place(folder.log_path), folder.log_path, file)
        part = folder.log_path.with_name("log.sqlite.seed")
        part.unlink(missing_ok=True)  # left by a killed run
        try:
            backup(file, part, progress)
            folder.replace_log(part)
        finally:
            part.unlink(missing_ok=True)
        write_witness(folder.log_path, found.log_id, found.next_offset, found.until_us)
    finally:
        folder.close()
    return found


def _refuse_to_replace(new: ReplicaPlace, old: ReplicaPlace, path: Path, file: Path) -> None:
    if old.log_id != new.log_id and (old.next_offset or old.place.number):
        raise UsageError(f"{path} is another log, with {old.next_offset:,} messages: move it away first")
    if old.log_id == new.log_id and old.place.position >= new.place.position:
        raise UsageError(
            f"{path} has followed the replicated log up to position {old.place.position:,}, and {file} only up to "
            f"{new.place.position:,}: take a newer backup, of a node that runs"
        )


def begin_cluster(section: ClusterSection, folder_path: Path) -> ReplicaPlace:
    """Begin a cluster with an existing log: write its first record. Return the place of the log after that.

    Raises:
        UsageError: The folder has no log, or the cluster has begun already.
        LogInUseError: A broker uses the folder.
        StorageError: The log cannot be opened.
    """
    folder = DataFolder(folder_path)
    if not folder.log_path.exists():
        raise UsageError(f"{folder_path} has no log: give the data folder of a broker")
    folder.open()
    try:
        now_us = time.time_ns() // 1000
        # A log of a broker that was alone is repaired as that broker would do it.
        SqliteStore.open(folder.log_path, new_log_id=os.urandom(LOG_ID_BYTES), now_us=now_us).close()
        store = ReplicaStore.open(folder.log_path, new_log_id=os.urandom(LOG_ID_BYTES), now_us=now_us)
        try:
            with EngineClient(section, makes_stream=True) as client:
                _write_first_claim(client, section, store)
        finally:
            store.close()
    finally:
        folder.close()
    return read_place(folder.log_path)


def _write_first_claim(client: EngineClient, section: ClusterSection, store: ReplicaStore) -> None:
    claim = Claim(
        format=FORMAT,
        node=section.node,
        address="",
        log_id=store.log_id,
        created_us=store.created_us,
        secret=store.log_secret,
        writer=os.urandom(EPOCH_ID_BYTES),
        next_offset=store.next_offset,
    )
    (part,), number, _ = encode_parts(CLAIM, 1, 0, 0, encode_body(claim))
    if client.info().last == 0:
        client.ask(AppendRequest(0, part), lambda report: isinstance(report, Stored) or _is_refusal(report))
    found = client.record(1)
    begun = None if found is None else _decode_claim(found)
    if found is None or begun is None or client.info().last != 1 or _differs(begun, claim):
        raise UsageError(
            f"the cluster {section.name} has begun already, with other records: give this one another name under "
            "[cluster]"
        )
    place = Place(1, 1, number, checksum_of(found), begun.writer, format=max(Place().format, begun.format))
    try:
        store.apply([begun.step()], place)
    except StorageError as error:
        raise GodwitError(
            f"the first record is written, and the log is not changed yet ({error}): repeat this"
        ) from error


def _is_refusal(report: EngineReport) -> bool:
    """Whether a record may be stored without an acknowledgement: it is read then."""
    return isinstance(report, AppendRefused)


def _decode_claim(data: bytes) -> Claim | None:
    try:
        part = decode_part(data)
        content = decode_body(part.kind, part.body)
    except (RecordError, NewerFormatError):
        return None
    return content if isinstance(content, Claim) else None


def _differs(one: Claim, other: Claim) -> bool:
    """Whether two claims are of different logs, or of one log at different times."""
    fields: Sequence[str] = ("log_id", "created_us", "secret", "next_offset")
    return any(getattr(one, name) != getattr(other, name) for name in fields)
