"""The metrics of a broker: their values, that Prometheus accepts them, and that they never block the broker."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.metrics.http_client import Reply, address_of, check_with_promtool, get, needs_promtool, samples
from tests.net.running import Notices, configuration, run

from godwit.broker.access import Access, Rule
from godwit.errors import AccessError, DiskError, SocketError
from godwit.net import broker_metrics
from godwit.net.client import connect
from godwit.net.durable_log import DurableLog
from godwit.net.service import Service
from godwit.net.tls import stored_identity
from godwit.server.configuration import BridgeSection, Configuration, MetricsSection

ROOT = Path(__file__).resolve().parents[2]
PROMTOOL = shutil.which("promtool")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metrics, "MIN_INTERVAL_S", 0.0)


def measured(data: Path | None = None, notices: Notices | None = None, **section: Any) -> Service:
    """A broker with metrics on a free port."""
    metrics = MetricsSection(listen="127.0.0.1:0", **section)
    return Service(replace(configuration(), data=data, metrics=metrics), notices=notices)


async def fetch(service: Service, path: str = "/metrics") -> Reply:
    return await asyncio.to_thread(get, address_of(service.metrics_url), path)


async def read(service: Service) -> dict[str, float]:
    reply = await fetch(service)
    assert reply.status == 200, reply.body
    return samples(reply.body)


def test_messages_are_counted_by_qos() -> None:
    async def main() -> None:
        async with measured() as service, connect(service.urls[0], name="a") as client:
            async with client.subscribe("t/#") as messages:
                for qos in (0, 1, 2):
                    await client.publish("t/x", b"12345", qos=qos)
                    assert (await anext(messages)).payload == b"12345"
                found = await read(service)
            for label in ("0", "1", "2"):
                assert found[f'godwit_messages_received_total{{qos="{label}"}}'] == 1
                assert found[f'godwit_messages_sent_total{{qos="{label}"}}'] == 1
                assert found[f'godwit_received_bytes_total{{qos="{label}"}}'] >= 5
                assert found[f'godwit_sent_bytes_total{{qos="{label}"}}'] >= 5
            assert found["godwit_publishes_confirmed_total"] == 2
            assert found["godwit_clients"] == 1
            assert found['godwit_connections{protocol="native"}'] == 1
            assert found["godwit_log_next_offset"] == 2
            assert found["godwit_subscriptions"] == 1
            assert 0 < found['godwit_round_trip_seconds{stat="median"}'] < 30
            assert found["godwit_packets_sent_total"] > 3
            assert not [name for name in found if "client=" in name and "lag" not in name and "behind" not in name]

    run(main)


def test_totals_do_not_fall_when_connections_end() -> None:
    async def main() -> None:
        async with measured() as service:
            async with connect(service.urls[0]) as client:
                await client.publish("t", b"x")
                before = await read(service)
            while (await read(service))['godwit_connections{protocol="native"}']:
                pass
            after = await read(service)
            for name in (
                "godwit_packets_sent_total",
                "godwit_packets_received_total",
                "godwit_packets_sent_bytes_total",
            ):
                assert after[name] >= before[name] > 0

    run(main)


def test_refused_logins_are_counted_by_reason() -> None:
    access = Access(secrets={"a": b"0123456789abcdef"}, rules=(Rule(clients=("*",), allow=frozenset(("kick",))),))

    async def main() -> None:
        base = configuration(access=access)
        async with Service(replace(base, metrics=MetricsSection(listen="127.0.0.1:0"))) as service:
            with pytest.raises(AccessError):
                async with connect(service.urls[0], name="a", secret=b"wrong wrong wrong"):
                    pass
            found = await read(service)
            assert found['godwit_logins_refused_total{reason="not_allowed"}'] == 1
            assert found["godwit_logins_total"] == 0

    run(main)


def test_drops_are_counted_by_reason() -> None:
    async def main() -> None:
        async with measured() as service:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=service.addresses[0][:2]
            )
            try:
                while True:
                    transport.sendto(b"not a packet of this protocol")
                    found = await read(service)
                    if found.get('godwit_packets_dropped_total{reason="checksum"}'):
                        break
            finally:
                transport.close()

    run(main)


def test_a_log_on_disk_has_histograms_and_sizes(tmp_path: Path) -> None:
    async def main() -> None:
        async with measured(tmp_path / "data") as service, connect(service.urls[0]) as client:
            for _ in range(3):
                await client.publish("t", b"x" * 1000)
            found = await read(service)
            assert found["godwit_log_commit_seconds_count"] >= 3
            assert found["godwit_log_commit_seconds_sum"] > 0
            assert found['godwit_log_commit_bytes_bucket{le="+Inf"}'] == found["godwit_log_commit_seconds_count"]
            assert found["godwit_log_commit_messages_sum"] == 3
            assert found["godwit_log_size_bytes"] > 1000
            assert found["godwit_log_disk_size_bytes"] > found["godwit_log_disk_free_bytes"] > 0
            assert found["godwit_log_writable"] == 1
            assert "godwit_archive_up" in found
            assert not [name for name in found if "cluster" in name]
            assert found.get("process_resident_memory_bytes", 0) > 1e6 or sys.platform != "linux"

    run(main)


def test_calls_to_the_archive_are_counted(tmp_path: Path) -> None:
    from tests.archive.client import ArchiveClient

    async def main() -> None:
        async with measured(tmp_path / "data") as service:
            while not service.archive_url:
                await asyncio.sleep(0.02)
            with ArchiveClient(service.archive_url) as archive:
                await asyncio.to_thread(archive.info)
            while True:
                found = await read(service)
                if found.get('godwit_archive_calls_total{method="action"}'):
                    break
                await asyncio.sleep(0.05)
            assert found["godwit_archive_up"] == 1
            assert found["godwit_archive_starts_total"] == 1

    run(main)


def test_jobs_and_workers_are_counted() -> None:
    async def main() -> None:
        async with measured() as service, connect(service.urls[0], name="c") as client:
            job = await client.submit("resize", b"x")
            found = await read(service)
            assert found['godwit_jobs{state="waiting"}'] == 1
            assert found["godwit_workers"] == 0
            await job.cancel()
            found = await read(service)
            assert found['godwit_jobs{state="waiting"}'] == 0
            assert found['godwit_jobs_ended_total{state="cancelled"}'] == 1

    run(main)


def test_an_absent_subscriber_has_a_lag(tmp_path: Path) -> None:
    async def main() -> None:
        async with measured(tmp_path / "data") as service, connect(service.urls[0]) as publisher:
            subscriber = connect(service.urls[0], name="s", session_expiry_s=3600)
            async with subscriber as client, client.subscribe("t", keep=True):
                pass
            for _ in range(5):
                await publisher.publish("t", b"x")
            found = await read(service)
            assert found['godwit_subscriptions_behind{client="absent"}'] == 1
            assert found['godwit_subscription_lag_messages_max{client="absent"}'] == 5

    run(main)


def test_bridges_and_sealed_connections_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        hub = measured(tmp_path / "hub")
        async with hub:
            section = MetricsSection(listen="127.0.0.1:0")
            fingerprint = stored_identity(tmp_path / "hub").fingerprint
            bridge = BridgeSection(name="site7", hub=f"{hub.urls[0].replace('udp://', 'udps://')}#{fingerprint}")
            edge = Service(replace(configuration(), data=tmp_path / "edge", metrics=section, bridges=(bridge,)))
            async with edge, connect(edge.urls[0]) as client:
                await client.publish("t", b"x")
                while (found := await read(edge))['godwit_bridge_messages_total{bridge="site7"}'] < 1:
                    await asyncio.sleep(0.02)
                assert found['godwit_bridge_up{bridge="site7"}'] == 1
                assert found['godwit_bridge_missed_messages_total{bridge="site7"}'] == 0
                assert 'godwit_bridge_lag_messages{bridge="site7"}' in found
                found = await read(hub)
                assert found["godwit_bridges_incoming"] == 1
                assert found["godwit_sealed_connections"] == 1

    run(main)


def test_names_are_shown_only_if_that_is_configured() -> None:
    hostile = '<script>"\\[red]'

    async def main() -> None:
        async with measured(clients=("s*", "<*"), topics=("plant/#",), max_series=3) as service:
            url = service.urls[0]
            async with connect(url, name="sensor") as one, connect(url, name=hostile), connect(url, name="other"):
                for number in range(5):
                    await one.publish(f"plant/{number}", b"abc")
                await one.publish("private", b"abc")
                text = (await fetch(service)).body
            found = samples(text)
            assert found['godwit_client_messages_received_total{client="sensor"}'] == 6
            assert len([name for name in found if name.startswith("godwit_client_connected")]) == 2
            assert b"other" not in text
            assert b"private" not in text
            assert len([name for name in found if name.startswith("godwit_topic_messages_total")]) == 3
            assert found['godwit_metrics_omitted_series{label="topic"}'] == 2
            if PROMTOOL is not None:
                check_with_promtool(text)

    run(main)


@needs_promtool
def test_promtool_accepts_all_metrics(tmp_path: Path) -> None:
    async def main() -> None:
        service = measured(tmp_path / "data", clients=("*",), topics=("#",))
        async with service, connect(service.urls[0], name="a") as client, client.subscribe("t"):
            await client.publish("t", b"x")
            text = (await fetch(service)).body
        await asyncio.to_thread(check_with_promtool, text)

    run(main)


def test_health_and_readiness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that cannot be written makes the broker not ready, until it can be written, also without messages."""
    monkeypatch.setattr(broker_metrics, "PROBE_INTERVAL_S", 0.0)

    async def main() -> None:
        async with measured(tmp_path / "data") as service, connect(service.urls[0]) as client:
            for path, sentence in (
                ("/healthz", b"this broker works\n"),
                ("/readyz", b"this broker stores messages and serves clients\n"),
                ("/activez", b"this broker is active: it is not a node of a cluster\n"),
            ):
                assert (await fetch(service, path))[::2] == (200, sentence)
            assert isinstance(service._durable, DurableLog)
            store = service._durable._store
            broken = True

            def refuse(*arguments: Any) -> Any:
                if broken:
                    raise DiskError("the disk is full: make room")
                return type(store).append(store, *arguments)

            monkeypatch.setattr(store, "append", refuse)
            monkeypatch.setattr(store, "probe", lambda: refuse([], []))
            with pytest.raises(Exception, match="the disk is full"):
                await client.publish("t", b"x")
            reply = await fetch(service, "/readyz")
            assert reply.status == 503
            assert b"the log is not writable: the disk is full" in reply.body
            assert (await read(service))["godwit_log_writable"] == 0
            assert (await fetch(service, "/healthz")).status == 200
            assert (await fetch(service, "/activez")).status == 200
            broken = False
            while (await fetch(service, "/readyz")).status != 200:
                pass

    run(main)


def test_scrapes_are_collected_in_slices_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many requests at once are one collection, and a collection yields to other work of the loop."""
    monkeypatch.setattr(broker_metrics, "SLICE", 2)
    collections = 0
    original = broker_metrics.BrokerMetrics._collect

    async def counted(self: broker_metrics.BrokerMetrics) -> Any:
        nonlocal collections
        collections += 1
        await asyncio.sleep(0.2)
        return await original(self)

    monkeypatch.setattr(broker_metrics.BrokerMetrics, "_collect", counted)

    async def main() -> None:
        async with measured() as service:
            clients = [connect(service.urls[0]) for _ in range(7)]
            for client in clients:
                await client.__aenter__()
            replies = await asyncio.gather(*(fetch(service) for _ in range(8)))
            assert {reply.status for reply in replies} == {200}
            assert collections < 8
            assert samples(replies[0].body)["godwit_clients"] == 7
            for client in clients:
                await client.__aexit__(None, None, None)

    run(main)


def test_a_port_in_use_stops_the_start() -> None:
    async def main() -> None:
        async with measured() as service:
            host, port = address_of(service.metrics_url)
            other = Service(replace(configuration(), metrics=MetricsSection(listen=f"{host}:{port}")))
            with pytest.raises(SocketError, match="another program has this port"):
                await other.start()

    run(main)


def test_the_address_is_announced_and_a_change_needs_a_restart() -> None:
    async def main() -> None:
        notices = Notices()
        async with measured(notices=notices) as service:
            assert notices.texts("metrics") == [f"metrics on {service.metrics_url}/metrics"]
            service.reload(Configuration(listen=service.configuration.listen))
            assert "other settings of metrics need a restart of the broker" in notices.texts("warning")
            assert (await fetch(service)).status == 200

    run(main)


def test_names_on_a_public_address_are_a_warning() -> None:
    async def main() -> None:
        notices = Notices()
        metrics = MetricsSection(listen="0.0.0.0:0", topics=("#",))
        async with Service(replace(configuration(), metrics=metrics), notices=notices):
            assert any("shows names of clients or topics" in text for text in notices.texts("warning"))

    run(main)


# -- dashboard, alerts, page ------------------------------------------------------------------------------------------


def exported() -> set[str]:
    """All names of metrics in the sources, as they are in expressions."""
    names = set()
    for path in ("net/broker_metrics.py", "net/cluster_metrics.py", "pipeline/metrics.py"):
        source = (ROOT / "src" / "godwit" / path).read_text()
        for kind, name in re.findall(r"metrics\.(gauge|counters?|histogram)\(\s*\"(\w+)\"", source):
            names.add(f"godwit_{name}{'_total' if kind.startswith('counter') else ''}")
            if kind == "histogram":
                names |= {f"godwit_{name}_{part}" for part in ("bucket", "sum", "count")}
    return names


def test_expressions_use_metrics_that_exist() -> None:
    known = exported()
    assert len(known) > 60
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "godwit.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    expressions.append((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    used = {name for text in expressions for name in re.findall(r"\bgodwit_\w+", text)}
    assert used - known == set()
    assert len(used) > 30


def test_every_metric_is_in_the_guide() -> None:
    page = (ROOT / "docs" / "guides" / "metrics.md").read_text()
    listed = set(re.findall(r"^\| `(godwit_\w+)", page, re.MULTILINE))
    parts = {name for name in exported() if re.search(r"_(bucket|sum|count)$", name)}
    assert listed == exported() - parts


@needs_promtool
@pytest.mark.parametrize("arguments", [
    ["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"], ["check", "config", "cluster.yml"],
], ids=" ".join)  # fmt: skip
def test_promtool_accepts_the_files(arguments: list[str]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], cwd=ROOT / "deploy" / "prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_scrape_takes_little_time_of_the_loop() -> None:
    """The part of a scrape in the broker's loop is short, also with hundreds of connections."""

    async def main() -> None:
        async with measured() as service:
            clients = [connect(service.urls[0]) for _ in range(100)]
            for client in clients:
                await client.__aenter__()
            metrics = broker_metrics.BrokerMetrics(service.parts, MetricsSection(listen="127.0.0.1:0"))
            began = time.process_time()
            for _ in range(10):
                await metrics._collect()
            took_s = (time.process_time() - began) / 10
            assert took_s < 0.1  # about 1 ms on an idle machine
            for client in clients:
                await client.__aexit__(None, None, None)

    run(main)
