"""The files of deploy/: their schemas, their hardening, and that they agree with each other and with the broker.

Programs of other projects check them, too: hadolint, check-jsonschema and kubernetes-validate of the development
environment, and promtool and systemd-analyze where they are installed (apt install prometheus systemd).
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.real import godwit

from godwit.server.configuration import load_configuration

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes" / "godwit.yaml"
CLUSTER = DEPLOY / "kubernetes" / "cluster.yaml"
UNIT = DEPLOY / "systemd" / "godwit.service"
CONTAINERFILE = DEPLOY / "Containerfile"
USER = "10001"
WORST_EXPOSURE = 2.0
"""Of 10, as systemd-analyze computes it; the unit has 1.4."""


def found(program: str) -> str | None:
    """Return the path of a program: of the environment of the tests, or an installed one."""
    return shutil.which(program, path=sysconfig.get_path("scripts")) or shutil.which(program)


def needs(program: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(found(program) is None, reason=f"{program} is missing: {package}")


def checked(*command: str, cwd: Path | None = None) -> str:
    program = found(command[0])
    assert program is not None
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False, timeout=300, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def ours() -> dict[str, dict[str, Any]]:
    """The services that run godwit."""
    return {name: one for name, one in services().items() if one["image"] == "godwit"}


def resources() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all(KUBERNETES.read_text())}


# -- programs of other projects ---------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="hadolint has no wheel for Windows")
def test_hadolint_accepts_the_containerfile() -> None:
    checked("hadolint", str(CONTAINERFILE))


def test_the_compose_file_has_the_schema_of_compose() -> None:
    checked("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE))


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@pytest.mark.parametrize("file", [KUBERNETES, CLUSTER], ids=lambda file: file.stem)
def test_the_resources_have_the_schemas_of_kubernetes(file: Path, version: str) -> None:
    assert "passed" in checked("kubernetes-validate", "--strict", "--kubernetes-version", version, str(file))


@needs("systemd-analyze", "apt install systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/godwit/bin/godwit", "/bin/true"))  # it must exist
    assert checked("systemd-analyze", "verify", str(unit)) == ""
    exposure = checked("systemd-analyze", "security", "--offline=true", str(unit))
    match = re.search(r"Overall exposure level for godwit\.service: ([\d.]+)", exposure)
    assert match
    assert float(match[1]) <= WORST_EXPOSURE


@needs("promtool", "apt install prometheus")
def test_promtool_accepts_the_configuration_of_compose(tmp_path: Path) -> None:
    for path in (DEPLOY / "compose" / "prometheus.yml", DEPLOY / "prometheus" / "alerts.yml"):
        shutil.copy(path, tmp_path)
    checked("promtool", "check", "config", "prometheus.yml", cwd=tmp_path)


# -- compose ----------------------------------------------------------------------------------------------------------


def test_the_cast_is_in_two_isolated_networks() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    members = {
        network: {name for name, one in services().items() if network in one["networks"]}
        for network in compose["networks"]
    }
    assert members["publishers"] == {"broker", "publisher-1", "publisher-2"}
    assert members["subscribers"] == {"broker", "subscriber-1", "subscriber-2", "capture"}
    assert members["monitoring"] == {"broker", "console", "prometheus", "grafana"}
    assert compose["networks"]["publishers"]["internal"]
    assert compose["networks"]["subscribers"]["internal"]


def test_containers_have_no_rights() -> None:
    assert len(ours()) == 7
    assert [name for name, one in ours().items() if "ports" in one] == ["console"]
    for one in ours().values():
        assert one["read_only"]
        assert one["user"] == f"{USER}:{USER}"
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
    for one in services().values():
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", []))
        for volume in one.get("volumes", []):
            source, _, mode = volume.partition(":")
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), volume
                assert mode.endswith(":ro")


@pytest.mark.parametrize("name", sorted(ours()))
def test_commands_are_known(name: str) -> None:
    """Every option of the compose file is one of the command."""
    command = ours()[name]["command"]
    check_options(command[0], command[1:])


def check_options(command: str, arguments: list[str]) -> None:
    """Check that the options among the arguments are options of the command."""
    shown = godwit(command, "--help")
    assert shown.returncode == 0, shown.stderr
    for argument in arguments:
        if argument.startswith("--"):
            assert re.search(rf"{argument}\b", shown.stdout.decode()), argument


def test_grafana_finds_the_dashboard_and_prometheus() -> None:
    grafana = services()["grafana"]
    mounted = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/godwit.yaml").read_text())["providers"][0]
    assert mounted["../grafana/godwit.json"].startswith(f"{provider['options']['path']}/")
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == mounted["../grafana/godwit.json"]
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services()


# -- container --------------------------------------------------------------------------------------------------------


def test_the_image_is_not_of_root_and_has_a_health_check() -> None:
    text = CONTAINERFILE.read_text()
    last = text.rpartition("\nFROM ")[2]
    assert f"\nUSER {USER}:{USER}\n" in last
    assert "\nHEALTHCHECK " in last
    check = json.loads(re.search(r"HEALTHCHECK .*\\\n\s+CMD (\[.*\])", last)[1])  # type: ignore[index]
    compile(check[2], "health check", "exec")
    start = json.loads(re.search(r"^CMD (\[.*\])", last, re.MULTILINE)[1])  # type: ignore[index]
    assert start[0] == "broker"
    assert "/healthz" in check[2]
    for path in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for name in shlex.split(path):
            assert (ROOT / name).exists(), name
            assert f"!{name}" in CONTAINERFILE.with_suffix(".dockerignore").read_text().splitlines(), name


def test_the_versions_of_the_lock_are_constraints() -> None:
    """The expression of the Containerfile finds every package of the lock, with its marker and without its hashes."""
    command = re.search(r"sed --quiet '(.*)' requirements/dev.lock", CONTAINERFILE.read_text())
    assert command
    lock = ROOT / "requirements" / "dev.lock"
    found = subprocess.run(["sed", "-n", command[1], str(lock)], capture_output=True, text=True, check=True).stdout
    expected = [line.removesuffix("\\").strip() for line in lock.read_text().splitlines() if re.match(r"\w.*==", line)]
    assert [line.strip() for line in found.splitlines()] == expected
    assert len(expected) > 30


# -- Kubernetes -------------------------------------------------------------------------------------------------------


def pod() -> dict[str, Any]:
    found: dict[str, Any] = resources()["StatefulSet"]["spec"]["template"]["spec"]
    return found


def test_one_broker_is_protected_from_disruption() -> None:
    found = resources()
    state = found["StatefulSet"]["spec"]
    labels = state["template"]["metadata"]["labels"]
    assert state["replicas"] == 1
    assert found["PodDisruptionBudget"]["spec"] == {"maxUnavailable": 0, "selector": {"matchLabels": labels}}
    assert found["Service"]["spec"]["selector"] == state["selector"]["matchLabels"] == labels
    assert found["Service"]["metadata"]["name"] == state["serviceName"]


def test_the_pod_has_probes_and_no_rights() -> None:
    (container,) = pod()["containers"]
    paths = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod()["securityContext"]["runAsNonRoot"]
    assert pod()["securityContext"]["runAsUser"] == int(USER)
    assert pod()["automountServiceAccountToken"] is False


def test_the_version_is_that_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for file in (KUBERNETES, CLUSTER):
        assert set(re.findall(r"image: (\S+)", file.read_text())) == {f"godwit:{version}"}


@pytest.mark.parametrize("text", [
    (DEPLOY / "compose" / "broker.toml").read_text(), resources()["ConfigMap"]["data"]["broker.toml"],
], ids=["compose", "kubernetes"])  # fmt: skip
def test_configurations_are_valid_and_match_the_ports(text: str) -> None:
    found = load_configuration(text, read_secret=lambda name: b"", folder=Path("/etc/godwit"))
    assert list(found.listen) == ["0.0.0.0:50000"]
    assert found.data == Path("/var/lib/godwit/data")
    assert found.metrics is not None
    assert found.metrics.listen == "0.0.0.0:9464"
    exposed = re.search(r"^EXPOSE (.*)$", CONTAINERFILE.read_text(), re.MULTILINE)
    assert exposed
    ports = {f"{one['containerPort']}/{one['protocol'].lower()}" for one in pod()["containers"][0]["ports"]}
    assert ports == {"50000/udp", "50001/tcp", "9464/tcp"}
    assert set(exposed[1].split()) == ports | {"8080/tcp"}  # in Kubernetes the console is for the pod itself only


def test_the_image_has_the_packages_of_its_commands() -> None:
    extras = re.search(r"'\.\[(.*)\]'", CONTAINERFILE.read_text())
    assert extras
    assert set(extras[1].split(",")) == {"archive", "cluster", "console"}
    assert services()["console"]["command"][0] == "console"
    container = pod()["containers"][0]
    check_options(container["args"][0], container["args"][1:])
    assert "--console" in container["args"]


# -- systemd ----------------------------------------------------------------------------------------------------------


def test_the_unit_uses_notifications_and_the_watchdog() -> None:
    lines = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line))
    assert lines["Type"] == "notify"
    assert int(lines["WatchdogSec"]) >= 10
    assert lines["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert lines["User"] == "godwit"
    assert lines["ProtectSystem"] == "strict"
    assert "u godwit " in (DEPLOY / "systemd" / "godwit.sysusers.conf").read_text()
    command = shlex.split(lines["ExecStart"])
    check_options(command[1], command[2:])
