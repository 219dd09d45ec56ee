"""A node with its thread and its file, on an engine in memory."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.net.cluster_nodes import wait_until

from godwit.cluster.engine import (
    AppendRequest,
    EngineReport,
    EngineRequest,
    InfoRequest,
    Missing,
    RecordFound,
    RecordRequest,
    Stored,
    StreamInfo,
)
from godwit.cluster.values import NodeConfig
from godwit.net.cluster_member import ClusterMember
from godwit.store.folder import DataFolder

CONFIG = NodeConfig(name="n1", heartbeat_s=0.05, suspect_s=0.1, withdraw_s=0.5)


class MemoryEngine:
    """Stores records as they come, and answers at once, unless it is silent."""

    def __init__(self, report: Callable[[EngineReport], None]) -> None:
        self._report = report
        self._records: list[bytes] = []
        self.is_silent = False

    def start(self, timeout_s: float = 0.0) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def renew(self, context: ssl.SSLContext) -> None:
        """Do nothing."""

    def send(self, requests: Sequence[EngineRequest]) -> None:
        for request in requests if not self.is_silent else ():
            if isinstance(request, InfoRequest):
                self._report(StreamInfo(1, len(self._records)))
            elif isinstance(request, AppendRequest) and request.after == len(self._records):
                self._records.append(request.data)
                self._report(Stored(len(self._records), request.data))
            elif isinstance(request, RecordRequest):
                self._report(self._record(request.position))

    def _record(self, position: int) -> EngineReport:
        if 0 < position <= len(self._records):
            return RecordFound(position, self._records[position - 1])
        return Missing(position, 1, len(self._records))


def test_a_node_that_withdraws_during_a_handover_returns(tmp_path: Path) -> None:
    """Its broker is closed for the handover already, when the engine has been silent for too long."""
    engines: list[MemoryEngine] = []

    def new_engine(report: Callable[[EngineReport], None], *, backlog: Callable[[], int]) -> MemoryEngine:
        engines.append(MemoryEngine(report))
        return engines[-1]

    folder = DataFolder(tmp_path)
    folder.open()
    member = ClusterMember(
        CONFIG, folder, new_engine, reset_key=b"k" * 32, now_us=1, on_change=lambda: None, on_notice=lambda _: None
    )
    member.start()
    try:
        wait_until(lambda: member.status.state == "active")
        [engine] = engines
        engine.is_silent = True
        wait_until(lambda: member.status.state == "withdrawn")
        member.resign("n2")  # as a service does when it has closed its broker for a handover
        engine.is_silent = False
        wait_until(lambda: member.status.state == "active")
        assert member.status.epoch == 2
    finally:
        member.end()
        wait_until(lambda: not member.is_alive)
        folder.close()
