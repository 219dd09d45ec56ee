"""Publisher and subscriber in two networks that cannot reach each other, with the broker as the only link.

Their connections are sealed, because they leave the machine: no option demands it.

Three network namespaces: the broker's has a cable to each of the others, and forwards nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.real import GODWIT, PATIENCE_S, environment
from tests.net.cluster_nodes import wait_until

LEFT, RIGHT = "10.213.1", "10.213.2"


def ip(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=PATIENCE_S)


def has_namespaces() -> bool:
    """Whether this machine lets us make some."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"godwit-try-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


class Networks:
    """The names of the three namespaces."""

    def __init__(self) -> None:
        tag = f"godwit-{os.getpid()}"
        self.left, self.middle, self.right = (f"{tag}-{place}" for place in ("left", "middle", "right"))

    def build(self) -> None:
        for name in (self.left, self.middle, self.right):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for side, name, network in (("l", self.left, LEFT), ("r", self.right, RIGHT)):
            cable = f"gw{os.getpid() % 100_000}{side}"
            ip("-n", self.middle, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            for place, device, address in ((self.middle, cable, f"{network}.1/24"), (name, "eth0", f"{network}.2/24")):
                ip("-n", place, "address", "add", address, "dev", device)
                ip("-n", place, "link", "set", device, "up")
            ip("-n", name, "route", "add", "default", "via", f"{network}.1")
        forbid = "echo 0 > /proc/sys/net/ipv4/ip_forward"
        subprocess.run(["ip", "netns", "exec", self.middle, "sh", "-c", forbid], check=True, capture_output=True)

    def tear_down(self) -> None:
        for name in (self.left, self.middle, self.right):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@contextmanager
def started(namespace: str, *arguments: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command inside a namespace, which ends with the block."""
    command = ["ip", "netns", "exec", namespace, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**more))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def networks() -> Iterator[Networks]:
    if not has_namespaces():
        pytest.skip("needs Linux, root and the command `ip`")
    made = Networks()
    try:
        made.build()
        yield made
    finally:
        made.tear_down()


ECHO = """
import socket
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end.bind(("0.0.0.0", 7))
print("ready", flush=True)
while True:
    data, address = end.recvfrom(2000)
    end.sendto(data, address)
"""
ASK = """
import socket, sys
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end.settimeout(0.3)
end.sendto(b"?", (sys.argv[1], 7))
try:
    print("answered:", end.recv(2000))
except OSError:
    print("no answer")
"""


def asked(namespace: str, host: str) -> str:
    """Return the reply that a namespace gets from the echo server at a host."""
    with started(namespace, sys.executable, "-c", ASK, host) as process:
        return process.communicate(timeout=PATIENCE_S)[0].decode().strip()


def lines(process: subprocess.Popen[bytes], text: str) -> list[str]:
    """Return the output of a process, up to the line with this text."""
    assert process.stdout is not None
    found: list[str] = []
    for line in iter(process.stdout.readline, b""):
        found.append(line.decode().strip())
        if text in found[-1]:
            return found
    raise AssertionError(f"it does not say {text!r}, but {found}")


def test_the_broker_is_the_only_link_between_two_networks(networks: Networks, tmp_path: Path) -> None:
    with started(networks.right, sys.executable, "-c", ECHO) as echo:
        lines(echo, "ready")
        wait_until(lambda: asked(networks.middle, f"{RIGHT}.2") == "answered: b'?'")
        assert asked(networks.left, f"{RIGHT}.2") == "no answer"
    listen = [part for network in (LEFT, RIGHT) for part in ("--listen", f"{network}.1:50000")]
    with started(networks.middle, *GODWIT, "broker", "--memory", *listen) as broker:
        said = lines(broker, f"listening on udps://{RIGHT}.1:50000")
        assert f"listening on udps://{LEFT}.1:50000" in said
        assert sum("can be reached from other machines" in line for line in said) == 2  # and reports it
        subscriber = ("sub", "rooms/+/temperature", "--count", "2", "--broker", f"{RIGHT}.1")
        own = {"XDG_CONFIG_HOME": str(tmp_path)}  # for the keys of known brokers
        with started(networks.right, *GODWIT, *subscriber, **own) as viewer:
            lines(broker, "subscribed to rooms/+/temperature")
            for room in ("1", "2"):
                publish = ("pub", f"rooms/{room}/temperature", "21.5", "--broker", f"{LEFT}.1")
                with started(networks.left, *GODWIT, *publish, **own) as publisher:
                    assert publisher.wait(PATIENCE_S) == 0
            out, errors = viewer.communicate(timeout=PATIENCE_S)
            assert viewer.returncode == 0, errors
            assert out.decode().splitlines() == ["rooms/1/temperature: 21.5", "rooms/2/temperature: 21.5"]
        with started(networks.left, *GODWIT, "pub", "rooms/1/x", "1", "--broker", f"udp://{LEFT}.1") as plain:
            assert b"accepts sealed connections only" in plain.communicate(timeout=PATIENCE_S)[1]
            assert plain.returncode == 1
    known = (tmp_path / "godwit" / "known_brokers").read_text().split()
    assert known[::2] == [f"{RIGHT}.1:50000", f"{LEFT}.1:50000"]
    assert known[1] == known[3]
