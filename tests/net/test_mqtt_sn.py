"""The MQTT-SN gateway of Eclipse Paho in front of the MQTT listener, as the guide shows it.

The gateway is fetched and built by the test, and is never part of this repository. PAHO_MQTT_SN names a checkout;
without it the test clones the repository, and is skipped where that, or building it, is not possible.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from tests.mqtt.reference import checkout_of
from tests.net.running import run
from tests.net.test_mqtt import PahoClient, broker, port_of
from tests.ports import free_port

from godwit.net.client import connect

URL = "https://github.com/eclipse-paho/paho.mqtt-sn.embedded-c"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "mqtt.md"
BUILD_S = 600.0
WAIT_S = 120.0
ATTEMPT_S = 1.0
CONNECT, CONNACK, REGISTER, REGACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 4, 5, 10, 11, 12, 13, 18, 19
"""Types of messages, MQTT-SN 1.2."""
QOS_1 = 0x20
CLEAN = 0x04


def build_gateway(source: Path, folder: Path) -> Path:
    """Return the folder with the gateway; skips the test if it cannot be built."""
    if not all(shutil.which(name) for name in ("cmake", "make", "c++")):
        pytest.skip("the gateway is built with cmake, make and a C++ compiler")
    folder.mkdir(exist_ok=True)
    policy = "-DCMAKE_POLICY_VERSION_MINIMUM=3.5"  # newer versions of CMake know no older rules
    commands = [
        ["cmake", "-DSENSORNET=udp", policy, "-S", str(source), "-B", str(folder)],
        ["cmake", "--build", str(folder), "--target", "MQTT-SNGateway"],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
        if done.returncode:
            pytest.skip(f"the gateway cannot be built: {done.stderr[-300:]}")
    found = [path for root in (folder, source / "MQTTSNGateway") for path in root.rglob("MQTT-SNGateway")]
    programs = [path for path in found if path.is_file()]
    if not programs:
        pytest.skip("the gateway was not built")
    return programs[0]


def guide_configuration() -> str:
    """Return the gateway.conf of the guide."""
    found = re.search(r"```text\n(BrokerName=.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


class SensorClient:
    """A client of MQTT-SN 1.2 over UDP."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self.messages: list[bytes] = []

    def send(self, kind: int, body: bytes) -> None:
        self._socket.send(bytes((2 + len(body), kind)) + body)

    def receive(self, timeout_s: float) -> tuple[int, bytes]:
        self._socket.settimeout(timeout_s)
        data = self._socket.recv(4096)
        return data[1], data[2:]

    def ask(self, kind: int, body: bytes, reply: int) -> bytes:
        """Send a message until its reply comes: datagrams may be lost, and the gateway takes a while to start."""
        for _ in range(int(WAIT_S / ATTEMPT_S)):
            try:
                self.send(kind, body)
                while True:
                    found, content = self.receive(ATTEMPT_S)
                    if found == reply:
                        return content
                    self.handle(found, content)
            except (TimeoutError, ConnectionRefusedError):
                continue
        raise AssertionError(f"the gateway does not answer to messages of type {kind}")

    def handle(self, kind: int, content: bytes) -> None:
        if kind == PUBLISH:
            self.messages.append(content[5:])
            self.send(PUBACK, content[1:5] + b"\0")
        elif kind == REGISTER:
            self.send(REGACK, content[:4] + b"\0")

    def connect(self, client_id: str) -> None:
        body = bytes((CLEAN, 1)) + (60).to_bytes(2, "big") + client_id.encode()
        assert self.ask(CONNECT, body, CONNACK) == b"\0"

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 1: returns when the broker has stored it."""
        registered = self.ask(REGISTER, b"\0\0\0\1" + topic.encode(), REGACK)
        assert registered[4] == 0
        acknowledged = self.ask(PUBLISH, bytes((QOS_1,)) + registered[:2] + b"\0\2" + payload, PUBACK)
        assert acknowledged[4] == 0

    def subscribe(self, topic: str) -> None:
        assert self.ask(SUBSCRIBE, bytes((QOS_1,)) + b"\0\3" + topic.encode(), SUBACK)[5] == 0

    def wait(self) -> bytes:
        """Return the next message."""
        while not self.messages:
            self.handle(*self.receive(WAIT_S))
        return self.messages.pop(0)

    def close(self) -> None:
        self._socket.close()


@pytest.mark.soak
def test_sensors_behind_the_gateway(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("reference")
    program = build_gateway(checkout_of(cache, "mqtt-sn", "PAHO_MQTT_SN", URL), tmp_path / "build")
    gateway_port = free_port()

    async def test() -> None:
        async with broker() as service, connect(service.urls[0], name="native") as native:
            text = guide_configuration()
            for name, value in (("BrokerPortNo", port_of(service)), ("GatewayPortNo", gateway_port)):
                text, count = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", text)
                assert count == 1
            (tmp_path / "gateway.conf").write_text(text, encoding="utf-8")
            command = [str(program), "-f", str(tmp_path / "gateway.conf")]
            with (tmp_path / "gateway.txt").open("wb") as output:
                process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=output, stderr=output)
            sensor = SensorClient(gateway_port)
            try:
                phone = await asyncio.to_thread(PahoClient, port_of(service), "phone")
                await asyncio.to_thread(phone.subscribe, "sensors/#")
                async with native.subscribe("sensors/#") as messages:
                    await asyncio.to_thread(sensor.connect, "thermometer")
                    await asyncio.to_thread(sensor.publish, "sensors/kitchen", b"21.5")
                    message = await anext(messages)
                assert (message.topic, message.payload, message.publisher) == (
                    "sensors/kitchen",
                    b"21.5",
                    "thermometer",
                )
                assert await asyncio.to_thread(phone.wait, 1) == [("sensors/kitchen", b"21.5")]
                await asyncio.to_thread(sensor.subscribe, "commands/kitchen")
                await native.publish("commands/kitchen", b"measure")
                assert await asyncio.to_thread(sensor.wait) == b"measure"
                await asyncio.to_thread(phone.close)
            finally:
                sensor.close()
                process.kill()
                await process.wait()

    run(test, deadline_s=120)
