"""A matrix of MQTT clients: each publishes, subscribes, finds retained messages and resumes a session after a kill.

The Python clients are among the requirements of the tests. Others are used where they are installed: mosquitto_pub and
mosquitto_sub in PATH, Mosquitto itself as a bridge, and MQTT.js where node finds the module `mqtt` (NODE_PATH), or npm
can install it into the cache of pytest.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from tests.net.running import run
from tests.net.test_mqtt import PahoClient, guide_block, guide_broker, port_of
from tests.net.test_mqtt_killed import start_broker
from tests.ports import free_port

WAIT_S = 120.0
EXPIRY_S = 3600
MQTT_JS = "mqtt@5"
INSTALL_S = 120
Found = tuple[str, str, bool]
"""A message: topic, payload, and whether it is a retained one."""


def session_properties(*, clean: bool) -> Any:
    """Return the properties of a CONNECT of 5.0, for paho and aiomqtt."""
    make: Any = PahoProperties
    properties = make(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 0 if clean else EXPIRY_S
    return properties


class MatrixClient:
    """One client of the matrix. `close` disconnects, and keeps the session unless it is clean."""

    versions: tuple[int, ...] = (4, 5)

    def __init__(self, port: int, version: int, client_id: str, *, clean: bool) -> None:
        self.port, self.version, self.client_id, self.clean = port, version, client_id, clean
        self.loop = asyncio.get_running_loop()
        self.found: asyncio.Queue[Found] = asyncio.Queue()

    def put(self, topic: str, payload: str, retain: bool) -> None:
        self.loop.call_soon_threadsafe(self.found.put_nowait, (topic, payload, retain))

    async def open(self) -> None:
        raise NotImplementedError

    async def subscribe(self, text: str, qos: int) -> None:
        raise NotImplementedError

    async def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
        raise NotImplementedError

    async def resume(self, text: str) -> None:
        """Open a session that has a subscription to this filter."""
        await self.open()

    async def close(self) -> None:
        raise NotImplementedError


class Paho(MatrixClient):
    async def open(self) -> None:
        is_v5 = self.version == 5
        options: dict[str, Any] = {} if is_v5 else {"clean_session": self.clean}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, self.client_id, protocol=MQTTProtocolVersion(self.version), **options
        )
        self.client.on_message = lambda _client, _data, one: self.put(one.topic, one.payload.decode(), one.retain)
        is_connected, self.is_subscribed = threading.Event(), threading.Event()
        self.client.on_connect = lambda *_: is_connected.set()
        self.client.on_subscribe = lambda *_: self.is_subscribed.set()
        start: dict[str, Any] = {}
        if is_v5:
            start = {"clean_start": self.clean, "properties": session_properties(clean=self.clean)}
        self.client.connect("127.0.0.1", self.port, **start)
        self.client.loop_start()
        assert await asyncio.to_thread(is_connected.wait, WAIT_S)

    async def subscribe(self, text: str, qos: int) -> None:
        self.client.subscribe(text, qos)
        assert await asyncio.to_thread(self.is_subscribed.wait, WAIT_S)

    async def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
        await asyncio.to_thread(self.client.publish(topic, payload, qos, retain).wait_for_publish, WAIT_S)

    async def close(self) -> None:
        self.client.disconnect()
        await asyncio.to_thread(self.client.loop_stop)


class AioMqtt(MatrixClient):
    async def open(self) -> None:
        aiomqtt = importlib.import_module("aiomqtt")
        options: dict[str, Any] = {"clean_session": self.clean}
        if self.version == 5:
            options = {"clean_start": self.clean, "properties": session_properties(clean=self.clean)}
        protocol = aiomqtt.ProtocolVersion(self.version)
        self.client = aiomqtt.Client("127.0.0.1", self.port, identifier=self.client_id, protocol=protocol, **options)
        await self.client.__aenter__()
        self.reading = asyncio.create_task(self.read())

    async def read(self) -> None:
        async for one in self.client.messages:
            self.put(str(one.topic), one.payload.decode(), bool(one.retain))

    async def subscribe(self, text: str, qos: int) -> None:
        await self.client.subscribe(text, qos=qos)

    async def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
        await self.client.publish(topic, payload, qos=qos, retain=retain)

    async def close(self) -> None:
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)
        await self.client.__aexit__(None, None, None)


class Gmqtt(MatrixClient):
    async def open(self) -> None:
        gmqtt = importlib.import_module("gmqtt")
        options = {"session_expiry_interval": EXPIRY_S} if self.version == 5 and not self.clean else {}
        self.client = gmqtt.Client(self.client_id, clean_session=self.clean, **options)
        self.subscribed = asyncio.Event()

        def on_message(_client: Any, topic: str, payload: bytes, _qos: int, properties: dict[str, Any]) -> int:
            self.put(topic, payload.decode(), bool(properties.get("retain")))
            return 0

        self.client.on_message = on_message
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        await self.client.connect("127.0.0.1", self.port, version=self.version)

    async def subscribe(self, text: str, qos: int) -> None:
        self.client.subscribe(text, qos=qos)
        await self.subscribed.wait()

    async def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
        self.client.publish(topic, payload, qos=qos, retain=retain)

    async def close(self) -> None:
        await self.client.disconnect()


class Ohmqtt(MatrixClient):
    versions = (5,)

    async def open(self) -> None:
        self.make()
        await self.connect()

    async def resume(self, text: str) -> None:
        self.make()
        self.register(text, 2)  # before: it drops messages without a callback
        await self.connect()

    def register(self, text: str, qos: int) -> Any:
        def on_message(_client: Any, one: Any) -> None:
            self.put(one.topic, bytes(one.payload).decode(), one.retain)

        return self.client.subscribe(text, on_message, qos)

    def make(self) -> None:
        self.client = importlib.import_module("ohmqtt").Client()
        self.client.start_loop()

    async def connect(self) -> None:
        ohmqtt = importlib.import_module("ohmqtt")
        properties = ohmqtt.MQTTConnectProps(SessionExpiryInterval=0 if self.clean else EXPIRY_S)
        options = {"client_id": self.client_id, "clean_start": self.clean, "connect_properties": properties}
        self.client.connect(f"127.0.0.1:{self.port}", **options)
        await asyncio.to_thread(self.client.wait_for_connect, WAIT_S)

    async def subscribe(self, text: str, qos: int) -> None:
        handle = self.register(text, qos)
        if handle is not None:
            await asyncio.to_thread(handle.wait_for_ack, WAIT_S)

    async def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
        handle = self.client.publish(topic, payload.encode(), qos=qos, retain=retain)
        if qos:
            await asyncio.to_thread(handle.wait_for_ack, WAIT_S)

    async def close(self) -> None:
        self.client.disconnect()
        await asyncio.to_thread(self.client.wait_for_disconnect, WAIT_S)
        self.client.shutdown()


class ProcessClient(MatrixClient):
    """A client that is a process of its own, whose output lines `handle` reads."""

    process: asyncio.subprocess.Process | None = None

    async def start(self, *command: str) -> None:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        self.reading = asyncio.create_task(self.read(self.process))

    async def read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.handle(line.decode().rstrip("\n"))

    def handle(self, line: str) -> None:
        raise NotImplementedError

    async def ended(self) -> None:
        if self.process is not None:
            await self.process.wait()
            await self.reading


class MosquittoTools(ProcessClient):
    """mosquitto_sub for the session, mosquitto_pub for each message."""

    async def open(self) -> None:
        self.subscribed = asyncio.Event()

    async def resume(self, text: str) -> None:
        await self.open()
        await self.subscribe(text, 2)

    def options(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-V", "5" if self.version == 5 else "311"]

    async def subscribe(self, text: str, qos: int) -> None:
        kept = [] if self.clean else ["-c", *(["-x", str(EXPIRY_S)] if self.version == 5 else [])]
        command = ["stdbuf", "-oL", "mosquitto_sub", *self.options(), "-d", "-i", self.client_id, "-t", text]
        await self.start(*command, "-q", str(qos), "-F", "message %t %r %p", *kept)
        await self.subscribed.wait()

    def handle(self, line: str) -> None:
        if line.startswith("Subscribed"):
            self.subscribed.set()
        elif line.startswith("message "):
            _, topic, retain, payload = line.split(" ", 3)
            self.put(topic, payload, retain == "1")

    async def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
        command = ["mosquitto_pub", *self.options(), "-t", topic, "-m", payload, "-q", str(qos), *(["-r"] * retain)]
        assert not await asyncio.to_thread(subprocess.call, command)

    async def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
        await self.ended()


class MqttJs(ProcessClient):
    PROGRAM = """
        const [port, version, id, clean] = process.argv.slice(1);
        const out = (value) => console.log(JSON.stringify(value));
        const options = {host: "127.0.0.1", port: +port, protocolVersion: +version, clientId: id, clean: clean === "1"};
        if (version === "5" && clean !== "1") options.properties = {sessionExpiryInterval: 3600};
        const client = require("mqtt").connect({...options, reconnectPeriod: 0});
        client.on("connect", () => out(["done"]));
        client.on("message", (topic, payload, packet) => out(["message", topic, payload.toString(), packet.retain]));
        require("readline").createInterface({input: process.stdin}).on("line", (line) => {
            const [kind, topic, payload, qos, retain] = JSON.parse(line);
            if (kind === "subscribe") client.subscribe(topic, {qos}, () => out(["done"]));
            else if (kind === "publish") client.publish(topic, payload, {qos, retain}, () => out(["done"]));
            else client.end(false, {}, () => process.exit(0));
        });
    """

    async def open(self) -> None:
        self.done: asyncio.Queue[None] = asyncio.Queue()
        arguments = (str(self.port), str(self.version), self.client_id, str(int(self.clean)))
        await self.start("node", "-e", self.PROGRAM, *arguments)
        await self.done.get()

    def handle(self, line: str) -> None:
        kind, *values = json.loads(line)
        if kind == "done":
            self.done.put_nowait(None)
        else:
            self.put(*values)

    def send(self, *values: Any) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(values).encode() + b"\n")

    async def subscribe(self, text: str, qos: int) -> None:
        self.send("subscribe", text, "", qos)
        await self.done.get()

    async def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
        self.send("publish", topic, payload, qos, retain)
        await self.done.get()

    async def close(self) -> None:
        self.send("end")
        await self.ended()


def has_package(name: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(name) is not None


def has_tools() -> bool:
    return all(shutil.which(name) for name in ("mosquitto_pub", "mosquitto_sub", "stdbuf"))


@cache
def has_mqtt_js() -> bool:
    return bool(shutil.which("node")) and not subprocess.call(
        ["node", "-e", 'require("mqtt")'], stderr=subprocess.DEVNULL
    )


@pytest.fixture(scope="module", autouse=True)
def _mqtt_js(pytestconfig: pytest.Config) -> Iterator[None]:
    """Install MQTT.js beside the public judges, if node and npm are here and node does not have it."""
    with pytest.MonkeyPatch.context() as patch:
        if shutil.which("node") and shutil.which("npm") and not has_mqtt_js():
            assert pytestconfig.cache is not None
            folder = pytestconfig.cache.mkdir("reference") / "mqtt-js"
            if not folder.exists():
                command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), MQTT_JS]
                with suppress(OSError, subprocess.SubprocessError):
                    subprocess.run(command, timeout=INSTALL_S, check=False, capture_output=True)
            patch.setenv("NODE_PATH", str(folder / "node_modules"))
            has_mqtt_js.cache_clear()
        yield


CLIENTS: dict[str, tuple[type[MatrixClient], Callable[[], bool]]] = {
    "paho-mqtt": (Paho, lambda: True),
    "aiomqtt": (AioMqtt, has_package("aiomqtt")),
    "gmqtt": (Gmqtt, has_package("gmqtt")),
    "ohmqtt": (Ohmqtt, has_package("ohmqtt")),
    "mosquitto tools": (MosquittoTools, has_tools),
    "MQTT.js": (MqttJs, has_mqtt_js),
}


@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_of_the_matrix(name: str, version: int, tmp_path: Path) -> None:
    make, is_installed = CLIENTS[name]
    if not is_installed():
        pytest.skip(f"{name} is not installed")
    if version not in make.versions:
        pytest.skip(f"{name} does not have this version")
    port = free_port()

    async def test() -> None:
        process = await start_broker(tmp_path, port)
        try:
            first = make(port, version, "first", clean=True)
            await first.open()
            await first.subscribe("live/#", 2)
            for qos in (0, 1, 2):
                await first.publish(f"live/{qos}", "hello", qos)
            assert sorted([await first.found.get() for _ in range(3)]) == [
                (f"live/{n}", "hello", False) for n in range(3)
            ]
            await first.publish("live/kept", "last", 1, retain=True)
            assert await first.found.get() == ("live/kept", "last", False)
            reader = make(port, version, "reader", clean=True)
            await reader.open()
            await reader.subscribe("live/#", 1)
            assert await reader.found.get() == ("live/kept", "last", True)
            await reader.close()
            await first.close()

            sleeper = make(port, version, "sleeper", clean=False)
            await sleeper.open()
            await sleeper.subscribe("later/#", 2)
            await sleeper.close()
            process.kill()
            await process.wait()
            process = await start_broker(tmp_path, port)
            other = make(port, version, "other", clean=True)
            await other.open()
            await other.subscribe("later/#", 2)
            for qos in (1, 2):
                await other.publish(f"later/{qos}", "waited", qos)
                await other.found.get()
            await other.close()
            sleeper = make(port, version, "sleeper", clean=False)
            await sleeper.resume("later/#")
            found = [await sleeper.found.get() for _ in range(2)]
            assert sorted(found) == [("later/1", "waited", False), ("later/2", "waited", False)]
            await sleeper.close()
        finally:
            process.kill()
            await process.wait()

    run(test, deadline_s=120)


@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("name", CLIENTS)
def test_members_of_a_consumer_group(name: str, version: int, tmp_path: Path) -> None:
    make, is_installed = CLIENTS[name]
    if not is_installed() or version not in make.versions:
        pytest.skip(f"{name} is not installed, or does not have this version")
    port = free_port()

    async def test() -> None:
        process = await start_broker(tmp_path, port)
        try:
            members = [make(port, version, f"member-{number}", clean=True) for number in range(2)]
            for member in members:
                await member.open()
                await member.subscribe("$share/crew/work/#", 1)
            sender = make(port, version, "sender", clean=True)
            await sender.open()
            for number in range(6):
                await sender.publish(f"work/{number}", "do it", 1)
            found: list[Found] = []
            while len(found) < 6:
                getters = [asyncio.ensure_future(member.found.get()) for member in members]
                done, pending = await asyncio.wait(getters, return_when=asyncio.FIRST_COMPLETED)
                found += [one.result() for one in done]
                for one in pending:
                    one.cancel()
            assert sorted(found) == [(f"work/{number}", "do it", False) for number in range(6)]
            assert all(member.found.empty() for member in members)
            for client in (*members, sender):  # a message that this one has not acknowledged yet goes to another
                await client.close()
        finally:
            process.kill()
            await process.wait()

    run(test, deadline_s=120)


def test_the_dashboard_of_the_guide() -> None:
    if not has_mqtt_js():
        pytest.skip("MQTT.js is not installed")

    async def test() -> None:
        async with guide_broker() as service:
            device = guide_block("python", 1).replace("1883", str(port_of(service)))
            await asyncio.to_thread(exec, device, {})
            program = guide_block("javascript", 0).replace("1883", str(port_of(service)))
            done = await asyncio.to_thread(
                subprocess.run, ["node", "-e", program], check=True, capture_output=True, timeout=WAIT_S
            )
            assert done.stdout == b"home/kitchen/status online\n"
            assert service.server.broker.figures()["log/next_offset"] == 6

    run(test)


BRIDGE = """
listener {own} 127.0.0.1
allow_anonymous true
connection godwit
address 127.0.0.1:{godwit}
topic # both 1
cleansession false
restart_timeout 1
bridge_protocol_version {version}
"""


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_a_bridge_of_mosquitto(version: str, tmp_path: Path) -> None:
    mosquitto = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
    if mosquitto is None:
        pytest.skip("Mosquitto is not installed")
    godwit, own = free_port(), free_port()
    (tmp_path / "bridge.conf").write_text(BRIDGE.format(own=own, godwit=godwit, version=version), encoding="utf-8")

    async def test() -> None:
        process = await start_broker(tmp_path / "log", godwit)
        bridge = await asyncio.create_subprocess_exec(mosquitto, "-c", str(tmp_path / "bridge.conf"), stderr=-3)
        try:
            here = await asyncio.to_thread(PahoClient, godwit, "here")
            await asyncio.to_thread(here.subscribe, "up/#")
            while True:
                try:
                    there = await asyncio.to_thread(PahoClient, own, "there")
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(there.subscribe, "down/#")
            # The bridge connects in its own time: messages of QoS 1 wait for it on its side, not on the other.
            await asyncio.to_thread(there.publish, "up/a", b"from Mosquitto", 1)
            assert await asyncio.to_thread(here.wait, 1) == [("up/a", b"from Mosquitto")]
            await asyncio.to_thread(here.publish, "down/a", b"from Godwit", 1)
            assert await asyncio.to_thread(there.wait, 1) == [("down/a", b"from Godwit")]
            # Retained messages cross it, and QoS 2 does (the bridge asks for QoS 1).
            await asyncio.to_thread(there.publish, "up/kept", b"kept", 2, retain=True)
            assert (await asyncio.to_thread(here.wait, 2))[1:] == [("up/kept", b"kept")]
            late = await asyncio.to_thread(PahoClient, godwit, "late", clean=False)
            await asyncio.to_thread(late.subscribe, "up/#")
            assert await asyncio.to_thread(late.wait, 1) == [("up/kept", b"kept")]
            assert late.messages[0].retain
            await asyncio.to_thread(here.publish, "end", b"", 1)
            assert len(here.messages) == 2  # nothing goes in circles
            # Its session resumes when Godwit is killed: messages of that time arrive later.
            for one in (here, late):
                await asyncio.to_thread(one.close)
            process.kill()
            await process.wait()
            await asyncio.to_thread(there.publish, "up/b", b"while it was away", 1)
            process = await start_broker(tmp_path / "log", godwit)
            late = await asyncio.to_thread(PahoClient, godwit, "late", clean=False)
            assert dict(await asyncio.to_thread(late.wait_for, "up/b"))["up/b"] == b"while it was away"
            for one in (late, there):
                await asyncio.to_thread(one.close)
            assert {one.topic for one in there.messages} == {"down/a"}  # perhaps twice, as QoS 1 allows after a crash
        finally:
            bridge.kill()
            process.kill()
            await bridge.wait()
            await process.wait()

    run(test, deadline_s=120)
