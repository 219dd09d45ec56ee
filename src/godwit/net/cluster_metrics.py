"""Health, role and metrics of a node of a cluster, served over HTTP in every state.

The endpoint (godwit.metrics.server) is open from the start of the node to its end. While the node is active, the
metrics of its broker are added (godwit.net.broker_metrics).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, get_args

from godwit.cluster.values import State
from godwit.metrics.exposition import MetricSet
from godwit.net.archive_process import ArchiveProcess
from godwit.net.broker_metrics import Health, add_archive
from godwit.net.cluster_member import ClusterMember, MemberStatus
from godwit.net.engine_server import EngineServer
from godwit.server.cluster_configuration import ClusterSection

FAR_BEHIND_RECORDS: Final = 1000
"""A standby whose file lacks more records than this is not ready."""
MIN_ENGINE_S: Final = 3.0
"""A node asks the engine each second. Without an answer for `withdraw_s`, and at least this time, it has no engine."""


class NodeMetrics:
    """The health and the metrics of a node, in its event loop."""

    def __init__(
        self,
        section: ClusterSection,
        member: ClusterMember,
        archive: ArchiveProcess,
        engine_server: EngineServer | None,
        is_serving: Callable[[], bool],
    ) -> None:
        """Make the report of a node.

        Args:
            section: Of the node.
            member: The node.
            archive: Of its folder.
            engine_server: The server of the engine that it runs, if any.
            is_serving: Returns whether its broker is open for clients.
        """
        self._section = section
        self._member = member
        self._archive = archive
        self._engine_server = engine_server
        self._is_serving = is_serving
        self._checking: asyncio.Task[str] | None = None
        self.is_ending = False
        """Whether the node is being stopped."""

    @property
    def folder(self) -> Path:
        """The data folder."""
        return self._member.folder.path

    @property
    def _name(self) -> str:
        return f"the node {self._section.node} of the cluster {self._section.name}"

    def _engine_problem(self, status: MemberStatus) -> str:
        """Return why this node cannot work with the engine; empty if it can."""
        if status.engine_at is None:
            return "it has not reached the engine of the cluster yet"
        now = time.monotonic()
        limit_s = max(self._section.withdraw_s, MIN_ENGINE_S)
        if now - status.engine_at > limit_s:
            return f"the engine has not answered for {now - status.engine_at:.0f} s"
        if status.claiming_since is not None and now - status.claiming_since > limit_s:
            return f"the engine has not stored its claim for {now - status.claiming_since:.0f} s"
        return ""

    # -- health -------------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Return whether the node has not stopped: only its operator can repair that."""
        if (failure := self._member.failure) is not None:
            return Health(False, f"{self._name} has stopped: {failure}")
        status = self._member.status
        if status.state == "stopped":
            return Health(False, f"{self._name} has stopped: {status.reason}")
        return Health(True, f"{self._name} works, and is {_with_article(status.state)}")

    def activity(self) -> Health:
        """Return whether this node serves the clients of the cluster."""
        status = self._member.status
        if self._is_active:
            return Health(True, f"{self._name} is active")
        text = f"{self._name} is {_with_article(status.state)}"
        if status.state == "active":
            text = f"{self._name} does not serve clients yet, or no longer"
        elif status.active_name and status.active_name != self._section.node:
            text = f"{text}: the node {status.active_name} is active"
        return Health(False, text)

    @property
    def _is_active(self) -> bool:
        return self._member.status.state == "active" and self._is_serving() and not self.is_ending

    async def readiness(self) -> Health:
        """Return whether this node can do its part: serve clients, or take over soon, and run its server."""
        found = self.health()
        if not found.is_good:
            return found
        problem = await self.find_problem()
        status = self._member.status
        text = f"{self._name} is {_with_article(status.state)}"
        if problem:
            return Health(False, f"{text}, and not ready: {problem}")
        if status.state == "active":
            return Health(True, f"{text} and serves clients")
        return Health(True, f"{text}, and {status.lacking:,} records behind")

    async def find_problem(self) -> str:
        """Return why this node could not do its part at present; empty if it could."""
        status = self._member.status
        if self.is_ending:
            return "it is being stopped"
        if status.state not in ("active", "standby"):
            return status.reason
        if status.state == "active" and not self._is_serving():
            return "it does not serve clients yet, or no longer"
        if problem := self._engine_problem(status) or status.claim_problem:
            return problem
        if status.storage_problem:
            return f"it cannot store records: {status.storage_problem}"
        if status.state == "standby" and status.lacking > FAR_BEHIND_RECORDS:
            return f"it is {status.lacking:,} records behind, more than {FAR_BEHIND_RECORDS:,}"
        if problem := await self._engine_server_problem():
            return f"its server of the engine {problem}"
        return ""

    async def _engine_server_problem(self) -> str:
        """Return the problem of the server that this node runs. All requests that come meanwhile share one check."""
        if self._engine_server is None:
            return ""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(asyncio.to_thread(self._engine_server.find_problem))
        return await asyncio.shield(self._checking)

    # -- metrics ------------------------------------------------------------------------------------------------------

    def add_metrics(self, metrics: MetricSet) -> None:
        """Add the metrics of every state."""
        section, status = self._section, self._member.status
        text = "The name of this node and of its cluster; always 1."
        metrics.gauge("cluster_node_info", text, 1, cluster=section.name, node=section.node)
        for state in get_args(State):
            metrics.gauge("cluster_state", "1 for the state of this node.", status.state == state, state=state)
        text = "1 if the engine answers this node, and stores its claim if it has one."
        metrics.gauge("cluster_engine_up", text, not self._engine_problem(status))
        text = "1 if the node could do its part when that was last checked, as `/readyz` reports."
        metrics.gauge("cluster_ready", text, not self._member.problem)
        text = "Number of the last claim of the log; it grows with each change of the active node."
        metrics.gauge("cluster_epoch", text, status.epoch)
        text = "Position in the replicated log of the last record that this node has read."
        metrics.gauge("cluster_position", text, status.position)
        text = "Records of the replicated log that the file of this node lacks."
        metrics.gauge("cluster_behind_records", text, math.nan if status.engine_at is None else status.lacking)
        text = "Nodes of the cluster from which heartbeats arrive, with this one."
        metrics.gauge("cluster_nodes", text, max(1, len(status.members)))
        text = "Nodes of the cluster from which heartbeats arrived, and do no longer."
        metrics.gauge("cluster_nodes_away", text, len(status.absent))
        text = "Records of the replicated log that do not count, because another node had claimed it."
        metrics.counter("cluster_void_records", text, status.void)

    def add_active(self, metrics: MetricSet) -> None:
        """Add the metrics of the active node, beside those of its broker."""
        status = self._member.status
        metrics.gauge("cluster_records_in_flight", "Records that the engine has not confirmed.", status.in_flight)
        text = "Records of the replicated log that the file of the node lacks."
        for beat in (*status.members, *status.absent):
            behind = max(0, status.position - beat.applied)
            metrics.gauge("cluster_node_behind_records", text, behind, node=beat.name)

    def add_standby(self, metrics: MetricSet) -> None:
        """Add the metrics of a node without a broker, of its folder and its archive."""
        status = self._member.status
        if status.members:
            metrics.gauge("log_next_offset", "Offset of the next message in the log.", status.members[0].next_offset)
        text = "1 if messages are stored, 0 if they are refused."
        metrics.gauge("log_writable", text, not status.storage_problem)
        add_archive(metrics, self._archive)


def _with_article(state: State) -> str:
    return "a standby" if state == "standby" else state
