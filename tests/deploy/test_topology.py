"""The containers of the compose file without containers: each of its services in a network namespace, on its networks.

Every process has a read-only root, no capabilities, and sees the other services under their names, as in a container.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.real import GODWIT, PATIENCE_S, environment
from tests.metrics.http_client import samples
from tests.net.test_two_networks import ASK, ECHO, has_namespaces, ip

from godwit.capture.conversation import read_reports
from godwit.capture.pcapng import read_capture

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
CONFINED = """
mount --bind "$HOSTS" /etc/hosts
mount --bind "$FOLDER" "$FOLDER"
mount -o remount,bind,ro /
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
"""
READ_URL = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=20).read().decode())"


class Topology:
    """The namespaces of the services, and a switch for each network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.networks = sorted({network for one in SERVICES.values() for network in one["networks"]})
        self.tag = f"godwit-{os.getpid()}"
        self.switch = f"{self.tag}-switch"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.output: dict[str, Path] = {}

    def namespace(self, service: str) -> str:
        return f"{self.tag}-{service}"

    def address(self, service: str, network: str) -> str:
        return f"10.214.{self.networks.index(network)}.{10 + sorted(SERVICES).index(service)}"

    def build(self) -> None:
        ip("netns", "add", self.switch)
        for number, _ in enumerate(self.networks):
            ip("-n", self.switch, "link", "add", f"net{number}", "type", "bridge")
            ip("-n", self.switch, "link", "set", f"net{number}", "up")
        for place, (service, one) in enumerate(SERVICES.items()):
            name = self.namespace(service)
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            hosts = ["127.0.0.1 localhost"]
            for network in one["networks"]:
                number = self.networks.index(network)
                port = f"port{place}-{number}"
                ip(
                    "-n",
                    self.switch,
                    "link",
                    "add",
                    port,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    f"eth{number}",
                    "netns",
                    name,
                )
                ip("-n", self.switch, "link", "set", port, "master", f"net{number}", "up")
                ip("-n", name, "address", "add", f"{self.address(service, network)}/24", "dev", f"eth{number}")
                ip("-n", name, "link", "set", f"eth{number}", "up")
                hosts += [
                    f"{self.address(other, network)} {other}"
                    for other in SERVICES
                    if network in SERVICES[other]["networks"]
                ]
            (self.folder / service).mkdir()
            (self.folder / f"{service}.hosts").write_text("\n".join([*hosts, ""]))

    def tear_down(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for name in [self.switch, *map(self.namespace, SERVICES)]:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def command(self, service: str, *arguments: str) -> list[str]:
        """A command as a process of this service runs it."""
        inside = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", CONFINED, "sh"]
        return ["ip", "netns", "exec", self.namespace(service), *inside, *arguments]

    def environment(self, service: str) -> dict[str, str]:
        wanted = {name: self.placed(service, value) for name, value in SERVICES[service].get("environment", {}).items()}
        hosts, folder = str(self.folder / f"{service}.hosts"), str(self.folder / service)
        return environment(**wanted, HOSTS=hosts, FOLDER=folder, PYTHONUNBUFFERED="1")

    def placed(self, service: str, text: str) -> str:
        """A path of the container in the folder of the service."""
        return re.sub(r"^(/var/lib/godwit|/etc/godwit|/tmp)", str(self.folder / service), text)

    def start(self, service: str) -> None:
        """Start the service with the command of the compose file."""
        arguments = [self.placed(service, argument) for argument in SERVICES[service]["command"]]
        self.output[service] = self.folder / f"{service}.log"
        with self.output[service].open("wb") as log:
            self.processes[service] = subprocess.Popen(
                self.command(service, *GODWIT, *arguments),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.environment(service),
            )  # fmt: skip

    def run(self, service: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(service, *arguments), capture_output=True, text=True, check=False, timeout=PATIENCE_S,
            env=self.environment(service),
        )  # fmt: skip

    def until(self, condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < ends, {name: path.read_text()[-600:] for name, path in self.output.items()}
            time.sleep(0.1)

    def stop(self, service: str) -> int:
        self.processes[service].send_signal(signal.SIGTERM)
        return self.processes[service].wait(PATIENCE_S)


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    if not has_namespaces():
        pytest.skip("needs Linux, root and the command `ip`")
    made = Topology(tmp_path)
    try:
        made.build()
        yield made
    finally:
        made.tear_down()


def test_the_cast_of_the_compose_file(topology: Topology, tmp_path: Path) -> None:
    assert topology.run("publisher-1", "touch", "/root/godwit-test").returncode != 0  # the root is read-only
    config = (DEPLOY / "compose" / "broker.toml").read_text()
    (tmp_path / "broker" / "broker.toml").write_text(config.replace("/var/lib/godwit", str(tmp_path / "broker")))
    topology.start("broker")
    check = re.search(r"HEALTHCHECK .*\\\n\s+CMD (\[.*\])", (DEPLOY / "Containerfile").read_text())
    assert check
    _, *arguments = json.loads(check[1])
    topology.until(lambda: topology.run("broker", sys.executable, *arguments).returncode == 0)
    for service in ("subscriber-1", "subscriber-2", "capture", "publisher-1", "publisher-2"):
        topology.start(service)

    first, second = topology.output["subscriber-1"], topology.output["subscriber-2"]
    topology.until(lambda: "home/kitchen/temperature: {" in first.read_text())
    topology.until(lambda: all(f"{home}/kitchen/temperature: {{" in second.read_text() for home in ("home", "garage")))
    assert "garage/" not in first.read_text()

    def scraped() -> dict[str, float]:
        done = topology.run("prometheus", sys.executable, "-c", READ_URL, "http://broker:9464/metrics")
        return samples(done.stdout.encode()) if done.returncode == 0 else {}

    ready = ("prometheus", sys.executable, "-c", READ_URL, "http://broker:9464/readyz")
    topology.until(lambda: topology.run(*ready).returncode == 0)
    topology.until(lambda: scraped().get("godwit_clients") == 5)
    topology.until(lambda: scraped().get("godwit_sealed_connections") == 5)
    topology.until(lambda: scraped().get('godwit_messages_sent_total{qos="1"}', 0) > 0)

    topology.start("console")
    page = ("prometheus", sys.executable, "-c", READ_URL, f"http://{topology.address('console', 'monitoring')}:8080/")
    topology.until(lambda: "Godwit console" in topology.run(*page).stdout)
    topology.until(lambda: scraped().get("godwit_clients") == 6)

    capture = tmp_path / "capture"
    topology.until(lambda: any(part.stat().st_size > 20_000 for part in capture.glob(".godwit-*.part")))
    assert topology.stop("capture") == 0
    reports = read_reports(read_capture((capture / "capture.pcapng").read_bytes()))
    hosts = {report.datagram.source[0] for report in reports}
    assert {topology.address("publisher-1", "publishers"), topology.address("subscriber-2", "subscribers")} <= hosts
    assert any("sealed, " in part for report in reports for part in report.parts)
    assert b"kitchen" not in (capture / "capture.pcapng").read_bytes()
    assert topology.stop("broker") == 0


def test_publishers_cannot_reach_subscribers(topology: Topology) -> None:
    target = topology.address("subscriber-1", "subscribers")
    echo = subprocess.Popen(
        ["ip", "netns", "exec", topology.namespace("subscriber-1"), sys.executable, "-c", ECHO], stdout=subprocess.PIPE
    )
    topology.processes["echo"] = echo
    assert echo.stdout is not None
    assert echo.stdout.readline() == b"ready\n"
    topology.until(lambda: "answered" in topology.run("broker", sys.executable, "-c", ASK, target).stdout)
    for service in ("publisher-1", "publisher-2", "prometheus"):
        done = topology.run(service, sys.executable, "-c", ASK, target)
        assert done.stdout == "no answer\n" or "Network is unreachable" in done.stderr, done
    echo.stdout.close()
