"""MQTT over real sockets, with paho-mqtt as the client: TCP, TLS, WebSocket, bad input, properties."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.mqtt import client_packets as packets
from tests.net.running import LOOPS, Notices, run
from tests.net.test_mqtt_killed import start_broker
from tests.ports import free_port

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.errors import AddressError, ConfigurationError, SocketError
from godwit.limits import LOGIN_TIMEOUT_S
from godwit.mqtt.connection import MqttSettings
from godwit.mqtt.websocket import CLOSE_NOT_BINARY, CLOSE_PROTOCOL, CLOSE_TOO_LARGE
from godwit.net.client import connect
from godwit.net.mqtt import OTHER_FILES, MqttAddress, allow_connections, common_name, parse_mqtt_address
from godwit.net.service import Service
from godwit.server.configuration import Configuration, MqttSection

WAIT_S = 120.0
VERSIONS = [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5]


def broker(*listen: str, **section: Any) -> Service:
    mqtt = MqttSection(listen=listen or ("127.0.0.1:0",), **section)
    return Service(Configuration(listen=["127.0.0.1:0"], mqtt=mqtt), notices=Notices())


def port_of(service: Service, index: int = 0) -> int:
    return int(service.mqtt_urls[index].removesuffix("/mqtt").rpartition(":")[2])


class PahoClient:
    """A client in a thread of its own, whose messages are collected."""

    def __init__(
        self,
        port: int,
        client_id: str = "",
        version: Any = paho.MQTTv311,
        *,
        transport: Any = "tcp",
        clean: bool = True,
        setup: Callable[[paho.Client], None] = lambda client: None,
    ) -> None:
        options: dict[str, Any] = {} if version == paho.MQTTv5 else {"clean_session": clean}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, transport=transport, **options
        )
        self.messages: list[paho.MQTTMessage] = []
        self._changed = threading.Condition()
        self._subscribed = threading.Event()
        self.is_connected = threading.Event()
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_connect = lambda *_: self.is_connected.set()
        setup(self.client)
        self.client.connect("127.0.0.1", port, keepalive=60)
        self.client.loop_start()
        assert self.is_connected.wait(WAIT_S)

    def _on_message(self, client: Any, data: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def subscribe(self, pattern: str, qos: int = 2) -> None:
        self._subscribed.clear()
        self.client.subscribe(pattern, qos)
        assert self._subscribed.wait(WAIT_S)

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        self.client.publish(topic, payload, qos, retain).wait_for_publish(WAIT_S)

    def wait(self, count: int) -> list[tuple[str, bytes]]:
        """Return the messages once there are `count` of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.messages) >= count, WAIT_S), len(self.messages)
            return [(message.topic, bytes(message.payload)) for message in self.messages]

    def wait_for(self, topic: str) -> list[tuple[str, bytes]]:
        """Return the messages once there is one of this topic."""
        with self._changed:
            assert self._changed.wait_for(lambda: topic in [one.topic for one in self.messages], 2 * WAIT_S)
            return [(message.topic, bytes(message.payload)) for message in self.messages]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        handle = self.client.socket()
        if handle is not None:  # the loop may have been stopped before it closed it
            handle.close()


def exchange(port: int, version: int, **options: Any) -> None:
    """One client sends itself messages of each QoS, and finds a retained one."""
    client = PahoClient(port, f"client-{version}", version, **options)
    client.subscribe(f"{version}/#")
    for qos in (0, 1, 2):
        client.publish(f"{version}/{qos}", b"%d" % qos, qos, retain=qos == 1)
    assert sorted(client.wait(3)) == [(f"{version}/{qos}", b"%d" % qos) for qos in (0, 1, 2)]
    client.subscribe(f"{version}/1")
    client.wait(4)
    assert client.messages[3].retain
    client.close()


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_a_client_of_each_version(scheme: str, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        async with broker(f"{scheme}://127.0.0.1:0{'/mqtt' if scheme == 'ws' else ''}") as service:
            for version in VERSIONS:
                transport = "websockets" if scheme == "ws" else "tcp"
                await asyncio.to_thread(exchange, port_of(service), version, transport=transport)

    run(test, loop)


def test_native_clients_and_mqtt_clients_in_one_broker() -> None:
    async def test() -> None:
        async with broker() as service, connect(service.urls[0], name="native") as native:
            device = await asyncio.to_thread(PahoClient, port_of(service), "device")
            async with native.subscribe("up/#") as subscription:
                await asyncio.to_thread(device.subscribe, "down/#")
                await asyncio.to_thread(device.publish, "up/a", b"hello", 1)
                message = await anext(subscription)
                assert (message.topic, message.payload, message.publisher) == ("up/a", b"hello", "device")
                await native.publish("down/a", b"answer", qos=2)
                assert await asyncio.to_thread(device.wait, 1) == [("down/a", b"answer")]
            await asyncio.to_thread(device.close)

    run(test)


def guide_block(kind: str, index: int) -> str:
    """Return a block of the guide to MQTT."""
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "mqtt.md").read_text(encoding="utf-8")
    source = guide.split(f"```{kind}\n")[index + 1].partition("```")[0]
    assert "1883" in source
    return source


def guide_broker() -> Service:
    """Return a broker for the guide's way from a device to a table."""
    rule = Rule(clients=("sensor-1",), allow=frozenset(("publish", "subscribe")), topics=("home/#",))
    access = Access(secrets={"sensor-1": b"the secret of sensor-1"}, rules=(rule,))
    mqtt = MqttSection(listen=("127.0.0.1:0",), settings=MqttSettings(log_qos_0=True))
    return Service(Configuration(listen=["127.0.0.1:0"], settings=Settings(access=access), mqtt=mqtt))


def test_the_device_of_the_guide() -> None:
    async def test() -> None:
        async with guide_broker() as service:
            source = guide_block("python", 1).replace("1883", str(port_of(service)))
            await asyncio.to_thread(exec, source, {})
            assert service.server.broker.figures()["log/next_offset"] == 5  # also those of QoS 0

    run(test)


def test_the_example_of_the_guide() -> None:
    source = guide_block("python", 0)
    rule = Rule(clients=("sensor-1",), allow=frozenset(("publish",)), topics=("home/#",))
    access = Access(secrets={"sensor-1": b"the secret of [[access.client]]"}, rules=(rule,))

    async def test() -> None:
        mqtt = MqttSection(listen=("127.0.0.1:0",))
        configuration = Configuration(listen=["127.0.0.1:0"], settings=Settings(access=access), mqtt=mqtt)
        async with Service(configuration) as service:
            await asyncio.to_thread(exec, source.replace("1883", str(port_of(service))), {})
            assert service.server.broker.figures()["log/next_offset"] == 1

    run(test)


# -- TLS --------------------------------------------------------------------------------------------------------------


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
        "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return certificate, key


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_tls_and_a_new_certificate(tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    certificate, key = make_certificate(tmp_path, "first")
    port = 0

    def names() -> str:
        context = ssl.create_default_context(cafile=str(certificate))
        with (
            socket.create_connection(("127.0.0.1", port), WAIT_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
        ):
            found: Any = stream.getpeercert()
            return str(found["subject"][0][0][1])

    async def test() -> None:
        nonlocal port
        async with broker("tls://127.0.0.1:0", certificate=certificate, key=key) as service:
            port = port_of(service)
            await asyncio.to_thread(
                exchange, port, paho.MQTTv5, setup=lambda client: client.tls_set(ca_certs=str(certificate))
            )
            assert await asyncio.to_thread(names) == "first"
            new_certificate, new_key = make_certificate(tmp_path, "second")
            new_certificate.replace(certificate)
            new_key.replace(key)
            service.reload(service.configuration)
            assert await asyncio.to_thread(names) == "second"

    run(test, loop)


def sign_certificate(folder: Path, name: str, authority: tuple[Path, Path]) -> tuple[Path, Path]:
    """Return a certificate of a client that an authority has signed, and its key."""
    certificate, key, request = (folder / f"{name}.{kind}" for kind in ("crt", "key", "csr"))
    make = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"]
    subprocess.run([*make, "-keyout", str(key), "-out", str(request)], check=True, capture_output=True)
    sign = ["openssl", "x509", "-req", "-in", str(request), "-CA", str(authority[0]), "-CAkey", str(authority[1])]
    subprocess.run([*sign, "-days", "2", "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_a_certificate_names_the_user(tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    certificate, key = make_certificate(tmp_path, "broker")
    authority = make_certificate(tmp_path, "authority")
    press = sign_certificate(tmp_path, "press-7", authority)
    stranger = make_certificate(tmp_path, "stranger")
    rule = Rule(clients=("press-*",), allow=frozenset(("publish", "subscribe")), topics=("plant/{client}/#",))
    access = Access(secrets={"press-7": b"a secret that is not used"}, rules=(rule,), allows_anonymous=False)
    section = MqttSection(
        listen=("tls://127.0.0.1:0",),
        settings=MqttSettings(user_from_certificate=True),
        certificate=certificate,
        key=key,
        client_ca=authority[0],
    )

    def use_tls(client: paho.Client) -> None:
        client.tls_set(ca_certs=str(certificate), certfile=str(press[0]), keyfile=str(press[1]))

    async def test() -> None:
        configuration = Configuration(listen=["127.0.0.1:0"], settings=Settings(access=access), mqtt=section)
        async with Service(configuration, notices=Notices()) as service:
            device = await asyncio.to_thread(PahoClient, port_of(service), "device", setup=use_tls)
            await asyncio.to_thread(device.subscribe, "plant/press-7/#")
            await asyncio.to_thread(device.publish, "plant/press-7/state", b"on", 1)
            assert await asyncio.to_thread(device.wait, 1) == [("plant/press-7/state", b"on")]
            await asyncio.to_thread(device.close)
            for wrong in (stranger, None):
                context = ssl.create_default_context(cafile=str(certificate))
                if wrong is not None:
                    context.load_cert_chain(*wrong)
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await asyncio.to_thread(handshake, port_of(service), context)

    run(test, loop)


def handshake(port: int, context: ssl.SSLContext) -> bytes:
    """With TLS 1.3 a client learns only from the first read that its certificate is refused."""
    with (
        socket.create_connection(("127.0.0.1", port), WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
    ):
        stream.sendall(packets.connect("stranger"))
        data = stream.recv(100)
        if not data:
            raise ConnectionError("closed")
        return data


def test_the_common_name_of_a_certificate() -> None:
    one = (("commonName", "a"),)
    assert common_name({"subject": ((("countryName", "x"),), one)}) == "a"
    for wrong in (None, {}, {"subject": ()}, {"subject": (one, one)}):
        assert common_name(wrong) == ""


def test_a_certificate_that_does_not_exist(tmp_path: Path) -> None:
    async def test() -> None:
        service = broker("tls://127.0.0.1:0", certificate=tmp_path / "no", key=tmp_path / "no")
        with pytest.raises(ConfigurationError, match="check certificate"):
            await service.start()

    run(test)


# -- addresses --------------------------------------------------------------------------------------------------------


def test_addresses() -> None:
    assert parse_mqtt_address("h:1") == MqttAddress("mqtt", "h", 1)
    assert parse_mqtt_address("h") == MqttAddress("mqtt", "h", 1883)
    assert parse_mqtt_address("tls://[::1]") == MqttAddress("tls", "::1", 8883)
    assert parse_mqtt_address("ws://h:80/a/b") == MqttAddress("ws", "h", 80, "/a/b")
    assert parse_mqtt_address("wss://h") == MqttAddress("wss", "h", 8084, "/mqtt")
    assert parse_mqtt_address("ws://h/") == MqttAddress("ws", "h", 8083, "/")
    for text in ("http://h", "mqtt://h/path", "h:x", ""):
        with pytest.raises(AddressError):
            parse_mqtt_address(text)


def test_a_port_in_use() -> None:
    async def test() -> None:
        async with broker() as service:
            with pytest.raises(SocketError, match="TCP"):
                await broker(f"127.0.0.1:{port_of(service)}").start()

    run(test)


def test_tls_without_a_certificate() -> None:
    async def test() -> None:
        with pytest.raises(ConfigurationError, match="has TLS: give a certificate and its key"):
            await broker("mqtts://127.0.0.1:0").start()

    run(test)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("scheme", ["mqtt", "tls"])
def test_a_connection_that_arrives_at_the_end_is_closed(
    scheme: str, tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The broker accepts it, and its listener ends in the same or one of the next turns of the loop."""
    certificate, key = make_certificate(tmp_path, "broker")

    async def test() -> None:
        for turns in range(5):
            async with broker(f"{scheme}://127.0.0.1:0", certificate=certificate, key=key) as service:
                listeners = service._mqtt
                assert listeners is not None
                with socket.create_connection(("127.0.0.1", port_of(service)), WAIT_S) as client:
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    listeners.close()
                    with suppress(ConnectionResetError):
                        assert await asyncio.to_thread(client.recv, 100) == b""

    run(test, loop)


# -- bad input --------------------------------------------------------------------------------------------------------


async def read_end(reader: asyncio.StreamReader) -> bytes:
    """Return everything until the broker closes the connection."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def test_invalid_packets_end_their_connection_and_no_other() -> None:
    bad = [
        b"\x30\x05hello",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x10\xff\xff\xff\x7f",
        packets.connect("x") + b"\x30\xff\xff\xff\x7f",
        packets.connect("x") + packets.connect("x"),
        packets.connect("x", 5) + packets.publish("t", qos=1, packet_id=0, version=5),
        packets.connect("x", 5) + packets.publish("", version=5, values={0x23: 99}),
        os.urandom(64),
    ]

    async def test() -> None:
        async with broker() as service:
            good = await asyncio.to_thread(PahoClient, port_of(service), "good")
            await asyncio.to_thread(good.subscribe, "t")
            for data in bad:
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
                writer.write(data)
                if data[:1] == b"\x10" and len(data) < 100:
                    await writer.drain()
                writer.write_eof() if data == bad[-1] else None
                await read_end(reader)
                writer.close()
            await asyncio.to_thread(good.publish, "t", b"still here", 1)
            assert await asyncio.to_thread(good.wait, 1) == [("t", b"still here")]
            await asyncio.to_thread(good.close)

    run(test)


def test_the_reason_arrives_although_the_client_goes_on_sending() -> None:
    async def test() -> None:
        async with broker() as service:
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
                writer.write(packets.connect("x", 5) + packets.connect("x", 5) + bytes(300_000))
                await writer.drain()
                assert (await reader.read()).endswith(b"\xe0\x01\x82"), "the connection was reset"
                writer.close()

    run(test)


def test_anything_but_a_connect_is_refused_at_its_first_byte() -> None:
    async def test() -> None:
        async with broker() as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
            writer.write(b"G")
            assert await asyncio.wait_for(reader.read(), LOGIN_TIMEOUT_S / 2) == b""
            writer.close()

    run(test)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_handshakes_of_tls_that_never_end_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    monkeypatch.setattr("godwit.net.mqtt.MAX_UNADMITTED_PER_HOST", 3)
    certificate, key = make_certificate(tmp_path, "broker")

    async def test() -> None:
        async with broker("tls://127.0.0.1:0", certificate=certificate, key=key) as service:
            silent = [await asyncio.open_connection("127.0.0.1", port_of(service)) for _ in range(8)]
            for reader, _ in silent[:5]:
                assert await read_end(reader) == b""
            assert service._mqtt is not None
            assert service._mqtt.unadmitted == 3
            await asyncio.to_thread(
                exchange, port_of(service), paho.MQTTv5, setup=lambda client: client.tls_set(ca_certs=str(certificate))
            )
            monkeypatch.setattr("godwit.net.mqtt.HANDSHAKE_TIMEOUT_S", 0.05)
            reader, late = await asyncio.open_connection("127.0.0.1", port_of(service))
            assert await read_end(reader) == b""
            for _, writer in (*silent, (reader, late)):
                writer.close()

    run(test, loop)


def test_connections_leave_files_for_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), list(new)))
    assert allow_connections(500) == 500
    assert limits == [1024, 4096]
    assert allow_connections(2000) == 2000
    assert limits == [2000 + OTHER_FILES, 4096]
    assert allow_connections(20_000) == 4096 - OTHER_FILES
    assert limits == [4096, 4096]
    limits[:] = [resource.RLIM_INFINITY, resource.RLIM_INFINITY]
    assert allow_connections(20_000) == 20_000


def test_many_filters_in_one_subscribe_and_a_random_stream() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def test() -> None:
        async with broker() as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
            filters = [(f"a/{number}/+", 1) for number in range(500)]
            writer.write(packets.connect("many", 4) + packets.subscribe(7, *filters))
            assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
            assert (await reader.readexactly(3 + 2 + 500))[5:] == b"\x01" * 500
            writer.close()
            for _ in range(50):
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
                writer.write(packets.connect("r", rng.choice((3, 4, 5))) + rng.randbytes(rng.randrange(1, 400)))
                writer.write_eof()
                await read_end(reader)
                writer.close()

    run(test)


def test_connections_without_a_login_give_way_to_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.net.mqtt.MAX_UNADMITTED_PER_HOST", 3)

    async def test() -> None:
        async with broker() as service:
            listeners = service._mqtt
            assert listeners is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
            writer.write(packets.connect("first"))
            assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
            silent = [await asyncio.open_connection("127.0.0.1", port_of(service)) for _ in range(8)]
            for lost, _ in silent[:5]:  # the oldest ones
                assert await read_end(lost) == b""
            assert listeners.unadmitted <= 3
            late_reader, late = await asyncio.open_connection("127.0.0.1", port_of(service))
            late.write(packets.connect("late"))
            assert await late_reader.readexactly(4) == b"\x20\x02\x00\x00"
            writer.write(b"\xc0\x00")  # clients with a login are not touched
            assert await reader.readexactly(2) == b"\xd0\x00"
            assert listeners.refused == 6
            for each in (writer, late, *(one for _, one in silent)):
                each.close()

    run(test)


@pytest.mark.parametrize("count", [1500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_silent_and_slow_connections_hurt_no_other(tmp_path: Path, count: int) -> None:
    """Connections that say nothing, and ones that send their CONNECT byte by byte and never end it."""
    needed = count + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} open files are not allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    port = free_port()
    slow = packets.connect("slow" * 50)

    async def test() -> None:
        process = await start_broker(tmp_path, port)
        opened: list[socket.socket] = []
        try:
            good = await asyncio.to_thread(PahoClient, port, "good")
            await asyncio.to_thread(good.subscribe, "t")
            before_kb = memory_kb(process.pid)
            for number in range(count):
                opened.append(socket.create_connection(("127.0.0.1", port), WAIT_S))
                if number % 2:
                    with suppress(ConnectionError):  # the broker closes the oldest ones
                        opened[-1].send(slow[:1])
                if number >= 8 and number % 2:
                    with suppress(ConnectionError):
                        opened[number - 8].send(slow[1:2])
                if number % 500 == 0:
                    await asyncio.to_thread(good.publish, "t", b"%d" % number, 1)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port
            )  # paho-mqtt cannot use more than 1024 files
            writer.write(packets.connect("late") + packets.publish("t", b"end", qos=1, packet_id=1))
            assert await reader.readexactly(8) == b"\x20\x02\x00\x00" + packets.ack(4, 1)
            writer.close()
            expected = [*(b"%d" % number for number in range(0, count, 500)), b"end"]
            assert [payload for _, payload in await asyncio.to_thread(good.wait, len(expected))] == expected
            assert memory_kb(process.pid) - before_kb < 64 * 1024
            await asyncio.to_thread(good.close)
        finally:
            process.kill()
            await process.wait()
            for one in opened:
                one.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    run(test, deadline_s=WAIT_S + count / 20)


def memory_kb(pid: int) -> int:
    """Return the memory of a process that is not shared with others, in KiB; 0 where that is unknown."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.partition("RssAnon:")[2].split()[0])


def ws_request(
    *, protocol: str = "mqtt", path: str = "/mqtt", key: str = "dGhlIHNhbXBsZSBub25jZQ==", more: str = ""
) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: x\r\n{more}Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    ).encode()


def ws_frame(body: bytes, kind: int = 2, *, fin: bool = True, mask: bytes = b"abcd", size: int | None = None) -> bytes:
    length = len(body) if size is None else size
    head = bytes((0x80 * fin | kind, (0x80 if mask else 0) | (length if length < 126 else 127)))
    long = b"" if length < 126 else length.to_bytes(8, "big")
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(body)) if mask else body
    return head + long + mask + masked


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (ws_frame(packets.connect("x"), mask=b""), CLOSE_PROTOCOL),
        (ws_frame(b"", size=2**40), CLOSE_TOO_LARGE),
        (ws_frame(b"text", 1), CLOSE_NOT_BINARY),
        (ws_frame(b"x", 0), CLOSE_PROTOCOL),
        (ws_frame(b"x" * 126, 9), CLOSE_PROTOCOL),
        (ws_frame(b"x", 2, fin=False) + ws_frame(b"y", 2), CLOSE_PROTOCOL),
    ],
)
def test_invalid_websocket_frames(frames: bytes, code: int) -> None:
    async def test() -> None:
        async with broker("ws://127.0.0.1:0/mqtt") as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
            writer.write(ws_request() + frames)
            received = await read_end(reader)
            assert received.endswith(b"\x88\x02" + code.to_bytes(2, "big"))
            writer.close()

    run(test)


def test_a_websocket_with_fragments_and_pings() -> None:
    async def test() -> None:
        async with broker("ws://127.0.0.1:0/mqtt") as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
            data = packets.connect("x")
            stream = ws_request() + ws_frame(data[:5], fin=False) + ws_frame(b"ping", 9) + ws_frame(data[5:], 0)
            for byte in stream:
                writer.write(bytes((byte,)))
                await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head  # the example of RFC 6455
            assert await reader.readexactly(6) == b"\x8a\x04ping"
            assert await reader.readexactly(6) == b"\x82\x04\x20\x02\x00\x00"
            writer.write(ws_frame(b"\x03\xe8", 8))
            assert await read_end(reader) == b"\x88\x02\x03\xe8"
            writer.close()
            for request, status in (
                (ws_request(path="/other"), b"404"),
                (ws_request(protocol="chat"), b"400"),
                (ws_request(key="short"), b"426"),
                (ws_request(more="Origin: https://evil.example\r\n"), b"403"),
                (ws_request(more="Origin: http://x:8083\r\n"), b"403"),
                (ws_request(more="Origin: http://x\r\nOrigin: http://x\r\n"), b"403"),
                (ws_request(more="Origin: null\r\n"), b"403"),
                (b"POST /mqtt HTTP/1.1\r\n\r\n", b"400"),
                (b"GET " + b"x" * 10_000, b"431"),
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
                writer.write(request)
                assert (await read_end(reader)).startswith(b"HTTP/1.1 " + status)
                writer.close()

    run(test)


@pytest.mark.parametrize(
    ("origins", "origin"),
    [
        ((), "http://x"),  # the broker's own address, as paho-mqtt sends it
        ((), "https://X"),
        (("https://dashboard.example",), "https://Dashboard.example"),
        (("null",), "null"),
        (("*",), "https://anything.example:8443"),
    ],
)
def test_pages_that_may_connect(origins: tuple[str, ...], origin: str) -> None:
    async def test() -> None:
        async with broker("ws://127.0.0.1:0/mqtt", settings=MqttSettings(origins=origins)) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
            writer.write(ws_request(more=f"Origin: {origin}\r\n"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            writer.close()

    run(test)


# -- settings and properties ------------------------------------------------------------------------------------------


def test_settings_of_the_listener_reach_the_client() -> None:
    async def test() -> None:
        async with broker(settings=MqttSettings(receive_maximum=7, topic_alias_maximum=0)) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(service))
            writer.write(packets.connect("x", 5))
            head = await reader.readexactly(2)
            body = await reader.readexactly(head[1])
            assert body.endswith(b"\x21\x00\x07")
            assert b"\x22" not in body[:4]
            writer.close()

    run(test)


def publish_properties() -> Any:
    return Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]


def test_requests_and_replies_between_native_and_mqtt_clients() -> None:
    """Either side can be the requester or the responder, with response topic and correlation data."""

    def answer(client: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        given: Any = message.properties
        properties: Any = publish_properties()
        properties.CorrelationData = given.CorrelationData
        properties.UserProperty = [("from", "mqtt")]
        client.publish(given.ResponseTopic, bytes(message.payload).upper(), 1, properties=properties)

    async def test() -> None:
        async with broker() as service, connect(service.urls[0], name="native") as native:
            device = await asyncio.to_thread(PahoClient, port_of(service), "device", paho.MQTTv5)
            device.client.message_callback_add("mqtt/upper", answer)
            await asyncio.to_thread(device.subscribe, "mqtt/upper", 1)
            reply = await native.request("mqtt/upper", b"hello", headers={"a": "b"}, timeout_s=WAIT_S)
            assert (reply.payload, dict(reply.headers), reply.publisher) == (b"HELLO", {"from": "mqtt"}, "device")

            responder = native.replies("native/echo")(lambda request: request.payload * 2)
            await responder.ready()
            await asyncio.to_thread(device.subscribe, "answers/device", 1)
            properties = publish_properties()
            properties.ResponseTopic, properties.CorrelationData = "answers/device", b"42"
            device.client.publish("native/echo", b"ab", 1, properties=properties)
            assert await asyncio.to_thread(device.wait, 1) == [("answers/device", b"abab")]
            given: Any = device.messages[0].properties
            assert given.CorrelationData == b"42"

            inbox = "$reply/" + "ab" * 16  # an MQTT client may have an inbox, too
            await asyncio.to_thread(device.subscribe, inbox, 1)
            properties.ResponseTopic = inbox
            device.client.publish("native/echo", b"cd", 1, properties=properties)
            assert (await asyncio.to_thread(device.wait, 2))[1] == (inbox, b"cdcd")
            await asyncio.to_thread(device.close)

    run(test)


def test_headers_and_expiry_cross_the_protocols() -> None:
    async def test() -> None:
        async with broker() as service, connect(service.urls[0], name="native") as native:
            device = await asyncio.to_thread(PahoClient, port_of(service), "device", paho.MQTTv5)
            await asyncio.to_thread(device.subscribe, "down/#", 1)
            await native.publish("down/a", {"v": 1}, headers=[("a", "1"), ("a", "2")], expires_s=60)
            await asyncio.to_thread(device.wait, 1)
            given: Any = device.messages[0].properties
            assert given.UserProperty == [("a", "1"), ("a", "2")]
            assert (given.ContentType, 1 <= given.MessageExpiryInterval <= 60) == ("application/json", True)
            async with native.subscribe("up/#") as messages:
                properties = publish_properties()
                properties.UserProperty, properties.MessageExpiryInterval = [("x", "y")], 30
                device.client.publish("up/a", b"up", 1, properties=properties)
                message = await anext(messages)
            assert (dict(message.headers), message.expires is not None) == ({"x": "y"}, True)
            await native.publish("late", b"gone", retain=True, expires_s=0.05)
            await asyncio.sleep(0.1)
            await native.publish("late/end", b"end", retain=True)
            await asyncio.to_thread(device.subscribe, "late/#", 1)
            assert (await asyncio.to_thread(device.wait, 2))[1:] == [("late/end", b"end")]
            await asyncio.to_thread(device.close)

    run(test)
