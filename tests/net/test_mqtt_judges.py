"""Public judges of MQTT brokers, over real sockets: Mosquitto's packet sequences, and Paho's interoperability suite.

Both come from their repositories, see tests/mqtt/reference.py, and are skipped without them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.mqtt import client_packets as packets
from tests.mqtt import paho_suite
from tests.mqtt.reference import Sequence, checkout, load_sequences, paho_checkout
from tests.mqtt.test_sequences import EVERYTHING, split
from tests.net.running import Notices, run
from tests.net.test_mqtt import port_of, ws_frame, ws_request

from godwit.broker.access import Access
from godwit.broker.settings import Settings
from godwit.mqtt.connection import MqttSettings
from godwit.net.service import Service
from godwit.server.configuration import ArchiveSection, Configuration, MqttSection

WAIT_S = 120.0
SUITE_S = 1200.0


def judged_broker(folder: Path | None) -> Service:
    """Return a broker as the judges expect it; with a folder, it has a log on disk and access rules."""
    settings = MqttSettings(receive_maximum=20, max_packet_bytes=2_000_000, max_keep_alive_s=60)
    mqtt = MqttSection(listen=("127.0.0.1:0", "ws://127.0.0.1:0/mqtt"), settings=settings)
    access = Access.open() if folder is None else Access(rules=(EVERYTHING,))
    configuration = Configuration(
        listen=["127.0.0.1:0"],
        data=folder,
        archive=ArchiveSection(is_on=False),
        mqtt=mqtt,
        settings=Settings(access=access, policies=(("test/nosubscribe", "explicit"),)),
    )
    return Service(configuration, notices=Notices())


class Wire:
    """A client that sends given bytes, over TCP or WebSocket, and reads packets."""

    def __init__(self, port: int, *, is_websocket: bool) -> None:
        self.is_websocket = is_websocket
        self._data = b""
        """Bytes of MQTT."""
        self._raw = b""
        self.is_closed = False
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        if is_websocket:
            self._socket.sendall(ws_request())
            while b"\r\n\r\n" not in self._raw:
                self._raw += self._socket.recv(4096)
            self._raw = self._raw.partition(b"\r\n\r\n")[2]

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(ws_frame(data) if self.is_websocket else data)
        except (BrokenPipeError, ConnectionResetError):
            self.is_closed = True

    def _fill(self) -> None:
        """Read more, or notice the end."""
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            data = b""
        self.is_closed = not data
        if not self.is_websocket:
            self._data += data
            return
        self._raw += data
        while len(self._raw) >= 2:
            size, at = self._raw[1], 2
            if size == 126:
                size, at = int.from_bytes(self._raw[2:4], "big"), 4
            if len(self._raw) < at + size:
                break
            if self._raw[0] == 0x82:
                self._data += self._raw[at : at + size]
            self._raw = self._raw[at + size :]

    def take(self) -> bytes:
        """Return the next packet, or nothing at the end of the connection."""
        while True:
            if len(self._data) >= 2:
                size = shift = 0
                for at, byte in enumerate(self._data[1:5], 2):
                    size |= (byte & 0x7F) << shift
                    shift += 7
                    if byte < 0x80:
                        if len(self._data) >= at + size:
                            packet, self._data = self._data[: at + size], self._data[at + size :]
                            return packet
                        break
            if self.is_closed:
                return b""
            self._fill()

    def ends(self) -> bool:
        """Return whether the broker closes the connection, without a further packet."""
        return self.take() == b"" and self.is_closed

    def is_open(self) -> bool:
        """Return whether nothing was received that ends the connection."""
        self._socket.setblocking(False)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False

    def close(self) -> None:
        self._socket.close()


def problem_of(port: int, sequence: Sequence, *, is_websocket: bool) -> str:
    """Return the problem with one sequence, or an empty text."""
    wire = Wire(port, is_websocket=is_websocket)
    try:
        if sequence.has_connect:
            wire.send(packets.connect(sequence.name, sequence.version))
            connack = wire.take()
            if connack[:1] != b"\x20" or connack[2:4] != b"\0\0":
                return f"refused: {connack.hex()}"
        for step in sequence.steps:
            problem = _run_step(port, wire, step, sequence.version)
            if problem:
                return problem
        if sequence.ends:
            return "" if wire.ends() else "still open, or more came"
        return "" if wire.is_open() else "closed"
    finally:
        wire.close()


def _run_step(port: int, wire: Wire, step: dict[str, Any], version: int) -> str:
    kind = step["type"]
    if kind == "send":
        wire.send(step["payload"])
    elif kind == "recv":
        for expected in split(step["payload"]):
            found = wire.take()
            is_accepted = expected[0] == 0x20 and expected[3] == 0 and found[:1] == b"\x20"
            if found != expected and not (is_accepted and found[2:4] == expected[2:4]):
                return f"got {found.hex()} for {expected.hex()}"
    elif kind == "external_publish":
        qos = step["qos"]
        helper = Wire(port, is_websocket=wire.is_websocket)
        helper.send(packets.connect("helper"))
        helper.take()
        retain = step.get("retain", False)
        helper.send(packets.publish(step["topic"], step["payload"].encode(), qos=qos, packet_id=1, retain=retain))
        if qos:
            helper.take()
        if qos == 2:
            helper.send(packets.ack(6, 1))
            helper.take()
        helper.send(b"\xc0\x00")
        helper.take()
        helper.close()
    elif kind == "subscribe":
        wire.send(packets.subscribe(1, (step["topic"], step["qos"]), version=version))
        if wire.take()[:1] != b"\x90":
            return "no SUBACK"
    elif kind == "unsubscribe":
        wire.send(packets.unsubscribe(1, step["topic"], version=version))
        if wire.take()[:1] != b"\xb0":
            return "no UNSUBACK"
    return ""


@pytest.mark.parametrize("is_durable", [False, True], ids=["open", "rules and log"])
@pytest.mark.parametrize("is_websocket", [False, True], ids=["TCP", "WebSocket"])
def test_packet_sequences(pytestconfig: pytest.Config, tmp_path: Path, *, is_websocket: bool, is_durable: bool) -> None:
    assert pytestconfig.cache is not None
    sequences = load_sequences(checkout(pytestconfig.cache.mkdir("reference")))

    async def test() -> None:
        async with judged_broker(tmp_path if is_durable else None) as service:
            port = port_of(service, int(is_websocket))

            def wrong() -> list[str]:
                found = []
                for sequence in sequences:
                    problem = problem_of(port, sequence, is_websocket=is_websocket)
                    if problem:
                        found.append(f"{sequence.name}: {problem}")
                return found

            problems = await asyncio.to_thread(wrong)
            assert not problems, "\n".join(problems)

    run(test)


@pytest.mark.soak
@pytest.mark.parametrize("is_durable", [False, True], ids=["open", "rules and log"])
@pytest.mark.parametrize(("name", "all_tests", "least"), [("client_test", 10, 10), ("client_test5", 27, 25)])
def test_interoperability_with_paho(
    pytestconfig: pytest.Config, tmp_path: Path, *, name: str, all_tests: int, least: int, is_durable: bool
) -> None:
    assert pytestconfig.cache is not None
    suite = paho_checkout(pytestconfig.cache.mkdir("reference"))

    async def test() -> None:
        async with judged_broker(tmp_path if is_durable else None) as service:
            command = [sys.executable, "-B", paho_suite.__file__, str(suite), name, str(port_of(service))]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
            found: dict[str, str] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
            assert len(found) >= all_tests
            failed = {test: problem for test, problem in found.items() if problem}
            assert len(found) - len(failed) >= least, failed

    run(test, deadline_s=SUITE_S)
