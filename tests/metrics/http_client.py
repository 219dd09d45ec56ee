"""Plain HTTP over a socket, for tests of the metrics endpoint: also requests that no library would send."""

from __future__ import annotations

import shutil
import socket
import subprocess
from typing import NamedTuple

import pytest

PATIENCE_S = 120.0
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: apt install prometheus")


class Reply(NamedTuple):
    """The reply to a request."""

    status: int
    headers: dict[str, str]
    body: bytes


def get(address: tuple[str, int], path: str, method: str = "GET") -> Reply:
    """Request a path."""
    return exchange(address, f"{method} {path} HTTP/1.1\r\nHost: test\r\nAccept: */*\r\n\r\n".encode())


def exchange(address: tuple[str, int], request: bytes) -> Reply:
    """Send bytes and return the reply."""
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        return read_reply(connection)


def read_reply(connection: socket.socket) -> Reply:
    """Read until the other side closes."""
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Reply(int(first.split()[1]), headers, body)


def address_of(url: str) -> tuple[str, int]:
    """Return the address in `http://127.0.0.1:9464`."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host.strip("[]"), int(port)


def check_with_promtool(text: bytes) -> None:
    """Fail if promtool finds anything wrong with metrics."""
    assert PROMTOOL is not None
    command = [PROMTOOL, "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "", "")


def samples(text: bytes) -> dict[str, float]:
    """Return the samples of metrics, by name with labels."""
    found = {}
    for line in text.decode().split("\n"):
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in found, f"{name} is there twice"
            found[name] = float(value)
    return found
