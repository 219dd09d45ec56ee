"""`godwit bench latency`: the round trip of one message against NATS, Mosquitto, Zenoh and a bare UDP relay.

A process publishes a message of 100 bytes to one topic; another process receives it and publishes it to a second
topic, to which the first subscribes; the broker is a third process. The time of a round trip is that from the call
that publishes until the program has the message back, and the next one begins then. The first tenth is not counted.
Rounds are interleaved; ratios are computed per round, from the medians and the 99th percentiles of the rounds.

Godwit: `publisher.send`, and `async for` or the blocking iterator, on both sides. QoS 0 and 1 with the log in memory,
and QoS 1 with the log on the disk, where a message is forwarded after its `fdatasync`.

NATS: nats-server, nats-py on uvloop, a callback that replies, `next_msg` on the other side. Zenoh: its router over TCP
and its client for Python, callbacks. Mosquitto: paho's client in a thread, QoS 0 and 1. The ratios compare these: a
broker with the client that programs use.

Two results without a ratio show how much of a round trip is the client's: Mosquitto with blocking calls on a socket and
packets written by hand, and a UDP relay of three such loops without a protocol, which is the time of four datagrams and
four process switches on the machine.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.errors import GodwitError
from godwit.net.blocking import connect as connect_blocking
from godwit.net.client import connect
from godwit.net.loop import run as run_loop
from godwit_bench import peers
from godwit_bench.log import durable_broker
from godwit_bench.pairs import godwit_pair, nats_pair, zenoh_config, zenoh_pair
from godwit_bench.processes import GIVE_UP_S, HOST, READY, ProcessGroup, receive_reply
from godwit_bench.report import Ratio, Report, Result, machine, median_ratio
from godwit_bench.small_senders import CONNACK_BYTES, SUBACK_BYTES, connect_packet, encode, mosquitto_system, text

if TYPE_CHECKING:
    import zenoh
    from nats.aio.msg import Msg
    from paho.mqtt.client import Client, MQTTMessage

MESSAGE_BYTES: Final = 100
PAYLOAD: Final = bytes(MESSAGE_BYTES)
PING: Final = "ping"
PONG: Final = "pong"
NOT_COUNTED: Final = 10
"""One in this number of round trips, the first ones of a measurement, is not counted."""

QOS_0: Final = "godwit_q0"
QOS_1: Final = "godwit_q1"
QOS_1_DISK: Final = "godwit_q1_disk"
BLOCKING_QOS_0: Final = "godwit_q0_blocking"
BLOCKING_QOS_1: Final = "godwit_q1_blocking"
RAW: Final = "raw_udp_relay"
NATS: Final = "nats"
ZENOH: Final = "zenoh_tcp"
MOSQUITTO_0: Final = "mosquitto_q0"
MOSQUITTO_1: Final = "mosquitto_q1"
BARE_MOSQUITTO_0: Final = "mosquitto_q0_without_library"
BARE_MOSQUITTO_1: Final = "mosquitto_q1_without_library"
FORWARDING: Final = (NATS, ZENOH, MOSQUITTO_0)
"""Peers that do not acknowledge messages, compared with QoS 0."""


class PingPong(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[ProcessGroup], str]
    """Start it; return its address once it is reachable."""
    ping: Callable[[Pipe, str, float], None]
    """Make round trips for this number of seconds, then send their durations; runs in a process of its own."""
    echo: Callable[[Pipe, str], None]
    """Send READY, then publish every message of PING to PONG; runs in a process of its own."""


class RoundTrips(msgspec.Struct, frozen=True):
    """The round trips of one measurement, in microseconds."""

    p50_us: float
    p99_us: float


def summarize(durations_s: list[float]) -> RoundTrips:
    """Return the percentiles of the durations, without the first ones."""
    counted = sorted(durations_s[len(durations_s) // NOT_COUNTED :])
    if not counted:
        raise GodwitError("no round trip was completed: run the benchmark for longer")
    last = len(counted) - 1
    return RoundTrips(statistics.median(counted) * 1e6, counted[min(len(counted) * 99 // 100, last)] * 1e6)


def measure(system: PingPong, folder: Path, seconds: float) -> RoundTrips:
    """Return the round trips of one measurement with fresh processes; files are in this folder."""
    with ProcessGroup(within=folder) as processes:
        address = system.broker(processes)
        receive_reply(processes.start(system.echo, address), str)
        pinging = processes.start(system.ping, address, seconds)
        return summarize(receive_reply(pinging, list, within_s=GIVE_UP_S + seconds))


def run(
    *,
    folder: Path,
    rounds: int,
    seconds: float,
    on_round: Callable[[str], None],
    on_install: Callable[[str], None],
) -> Report:
    """Measure everything, interleaved, and return the medians. Raises GodwitError if a peer is missing."""
    programs = peers.require(on_install, modules=(*peers.MODULES, "paho"))
    systems = {
        RAW: PingPong(_start_relay, _ping_raw, _echo_raw),
        NATS: PingPong(nats_pair(programs["nats-server"]).broker, _ping_nats, _echo_nats),
        ZENOH: PingPong(zenoh_pair().broker, _ping_zenoh, _echo_zenoh),
        BARE_MOSQUITTO_0: mosquitto(programs["mosquitto"], 0, is_bare=True),
        MOSQUITTO_0: mosquitto(programs["mosquitto"], 0),
        QOS_0: godwit(0),
        BLOCKING_QOS_0: godwit(0, is_blocking=True),
        MOSQUITTO_1: mosquitto(programs["mosquitto"], 1),
        BARE_MOSQUITTO_1: mosquitto(programs["mosquitto"], 1, is_bare=True),
        QOS_1: godwit(1),
        BLOCKING_QOS_1: godwit(1, is_blocking=True),
        QOS_1_DISK: godwit(1, is_durable=True),
    }
    trips: dict[str, list[RoundTrips]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            on_round(name)
            trips[name].append(measure(system, folder, seconds))
    return report(trips)


def report(trips: dict[str, list[RoundTrips]]) -> Report:
    """Return the medians of the rounds, and the ratios."""
    p50 = {name: [one.p50_us for one in of_system] for name, of_system in trips.items()}
    p99 = {name: [one.p99_us for one in of_system] for name, of_system in trips.items()}
    results: list[Result] = []
    for name in trips:
        results.append(Result(f"{name}_p50_us", statistics.median(p50[name]), "us"))
        results.append(Result(f"{name}_p99_us", statistics.median(p99[name]), "us"))
    results.append(Result("q1_disk_p50_us", statistics.median(p50[QOS_1_DISK]), "us"))
    best = _fastest(p50)
    best_p99 = _fastest(p99)
    tail_0 = median_ratio(p99[QOS_0], p99[best_p99])
    tail_1 = median_ratio(p99[QOS_1], p99[MOSQUITTO_1])
    blocking_0 = median_ratio(p50[BLOCKING_QOS_0], p50[QOS_0])
    blocking_1 = median_ratio(p50[BLOCKING_QOS_1], p50[QOS_1])
    ratios = [
        Ratio("q0_vs_best_peer", median_ratio(p50[QOS_0], p50[best]), best),
        Ratio("q1_vs_best_peer", median_ratio(p50[QOS_1], p50[MOSQUITTO_1]), MOSQUITTO_1),
        Ratio("p99_vs_best_peer", max(tail_0, tail_1), best_p99 if tail_0 >= tail_1 else MOSQUITTO_1),
        Ratio("blocking_vs_asyncio", max(blocking_0, blocking_1), QOS_0 if blocking_0 >= blocking_1 else QOS_1),
        Ratio("q0_vs_raw_udp_relay", median_ratio(p50[QOS_0], p50[RAW]), RAW),
    ]
    return Report("latency", machine(), results, ratios)


def _fastest(figures: dict[str, list[float]]) -> str:
    return min(FORWARDING, key=lambda name: statistics.median(figures[name]))


def _until(seconds: float) -> Callable[[], bool]:
    ends = time.perf_counter() + seconds
    return lambda: time.perf_counter() < ends


async def _time_trips(pipe: Pipe, trip: Callable[[], Awaitable[object]], seconds: float) -> None:
    """Await `trip` again and again, and send the durations."""
    clock = time.perf_counter
    durations: list[float] = []
    is_time = _until(seconds)
    while is_time():
        began = clock()
        await trip()
        durations.append(clock() - began)
    pipe.send(durations)


def _time_blocking_trips(pipe: Pipe, trip: Callable[[], object], seconds: float) -> None:
    """Call `trip` again and again, and send the durations."""
    clock = time.perf_counter
    durations: list[float] = []
    is_time = _until(seconds)
    while is_time():
        began = clock()
        trip()
        durations.append(clock() - began)
    pipe.send(durations)


# -- Godwit -----------------------------------------------------------------------------------------------------------


def godwit(qos: int, *, is_blocking: bool = False, is_durable: bool = False) -> PingPong:
    """Return Godwit with this QoS and client, and its log in memory or on the disk."""
    return PingPong(
        _durable_broker if is_durable else godwit_pair().broker,
        partial(_ping_blocking if is_blocking else _ping_godwit, qos),
        partial(_echo_blocking if is_blocking else _echo_godwit, qos),
    )


def _durable_broker(processes: ProcessGroup) -> str:
    address, _ = durable_broker(processes, processes.folder / "data")
    return address


def _ping_godwit(qos: int, pipe: Pipe, address: str, seconds: float) -> None:
    async def ping() -> None:
        async with connect(address) as client, client.subscribe(PONG) as messages:
            publisher = client.publisher(PING, qos=qos)
            replies = aiter(messages)

            async def trip() -> None:
                publisher.send(PAYLOAD)
                await anext(replies)

            await _time_trips(pipe, trip, seconds)

    run_loop(ping())


def _echo_godwit(qos: int, pipe: Pipe, address: str) -> None:
    async def echo() -> None:
        async with connect(address) as client, client.subscribe(PING) as messages:
            publisher = client.publisher(PONG, qos=qos)
            pipe.send(READY)
            async for message in messages:
                publisher.send(message.payload)

    run_loop(echo())


def _ping_blocking(qos: int, pipe: Pipe, address: str, seconds: float) -> None:
    with connect_blocking(address) as client, client.subscribe(PONG) as messages:
        publisher = client.publisher(PING, qos=qos)
        replies = iter(messages)

        def trip() -> None:
            publisher.send(PAYLOAD)
            next(replies)

        _time_blocking_trips(pipe, trip, seconds)


def _echo_blocking(qos: int, pipe: Pipe, address: str) -> None:
    with connect_blocking(address) as client, client.subscribe(PING) as messages:
        publisher = client.publisher(PONG, qos=qos)
        pipe.send(READY)
        for message in messages:
            publisher.send(message.payload)


# -- a relay without a protocol ---------------------------------------------------------------------------------------


def _start_relay(processes: ProcessGroup) -> str:
    return str(receive_reply(processes.start(_relay), int))


def _relay(pipe: Pipe) -> None:
    """Forward the datagrams of the first two senders to each other; the first datagram of each only names it."""
    with _udp() as relay:
        pipe.send(relay.getsockname()[1])
        addresses: list[tuple[str, int]] = []
        while True:
            data, address = relay.recvfrom(2048)
            if address not in addresses:
                addresses.append(address)
            else:
                relay.sendto(data, addresses[1] if address == addresses[0] else addresses[0])


def _udp() -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((HOST, 0))
    return opened


def _ping_raw(pipe: Pipe, address: str, seconds: float) -> None:
    relay = (HOST, int(address))
    with _udp() as opened:
        opened.sendto(b"", relay)

        def trip() -> None:
            opened.sendto(PAYLOAD, relay)
            opened.recv(2048)

        _time_blocking_trips(pipe, trip, seconds)


def _echo_raw(pipe: Pipe, address: str) -> None:
    relay = (HOST, int(address))
    with _udp() as opened:
        opened.sendto(b"", relay)
        pipe.send(READY)
        while True:
            opened.sendto(opened.recv(2048), relay)


# -- NATS -------------------------------------------------------------------------------------------------------------


def _ping_nats(pipe: Pipe, address: str, seconds: float) -> None:
    async def ping() -> None:
        import nats

        client = await nats.connect(address)
        replies = await client.subscribe(PONG)
        await client.flush()

        async def trip() -> None:
            await client.publish(PING, PAYLOAD)
            await replies.next_msg(GIVE_UP_S)

        await _time_trips(pipe, trip, seconds)

    run_loop(ping())


def _echo_nats(pipe: Pipe, address: str) -> None:
    async def echo() -> None:
        import nats

        client = await nats.connect(address)

        async def reply(message: Msg) -> None:
            await client.publish(PONG, message.data)

        await client.subscribe(PING, cb=reply)
        await client.flush()
        pipe.send(READY)
        await asyncio.Event().wait()

    run_loop(echo())


# -- Zenoh ------------------------------------------------------------------------------------------------------------


def _ping_zenoh(pipe: Pipe, address: str, seconds: float) -> None:
    import zenoh

    has_arrived = threading.Semaphore(0)
    with zenoh.open(zenoh_config("client", "connect", address)) as session:
        session.declare_subscriber(PONG, lambda _: has_arrived.release())
        publisher = session.declare_publisher(PING)

        def trip() -> None:
            publisher.put(PAYLOAD)
            if not has_arrived.acquire(timeout=GIVE_UP_S):
                raise GodwitError(f"no message of Zenoh came back within {GIVE_UP_S:g} s")

        # Nothing is forwarded before the router has passed on both declarations.
        while not has_arrived.acquire(timeout=0.1):
            publisher.put(PAYLOAD)
        while has_arrived.acquire(timeout=0.2):
            pass
        _time_blocking_trips(pipe, trip, seconds)


def _echo_zenoh(pipe: Pipe, address: str) -> None:
    import zenoh

    with zenoh.open(zenoh_config("client", "connect", address)) as session:
        publisher = session.declare_publisher(PONG)

        def reply(sample: zenoh.Sample) -> None:
            publisher.put(sample.payload)

        session.declare_subscriber(PING, reply)
        pipe.send(READY)
        threading.Event().wait()


# -- Mosquitto --------------------------------------------------------------------------------------------------------


def mosquitto(program: str, qos: int, *, is_bare: bool = False) -> PingPong:
    """Return the mosquitto at this path, with this QoS, and with paho's client or one without a library."""

    def broker(processes: ProcessGroup) -> str:
        return str(mosquitto_system(program).broker(processes))

    return PingPong(
        broker,
        partial(_ping_bare_mqtt if is_bare else _ping_mqtt, qos),
        partial(_echo_bare_mqtt if is_bare else _echo_mqtt, qos),
    )


def connect_mqtt(
    port: str, topic: str, qos: int, on_message: Callable[[Client, object, MQTTMessage], None]
) -> tuple[Client, threading.Event]:
    """Return a client of paho that connects and subscribes in its loop, and an event for when it has."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    is_ready = threading.Event()
    client = Client(CallbackAPIVersion.VERSION2)

    def subscribe(*_: object) -> None:
        client.subscribe(topic, qos)

    client.on_connect = subscribe
    client.on_subscribe = lambda *_: is_ready.set()
    client.on_message = on_message
    client.connect(HOST, int(port))
    opened = client.socket()
    assert isinstance(opened, socket.socket)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, is_ready


def _ping_mqtt(qos: int, pipe: Pipe, address: str, seconds: float) -> None:
    has_arrived = threading.Semaphore(0)
    client, is_ready = connect_mqtt(address, PONG, qos, lambda *_: has_arrived.release())
    client.loop_start()
    is_ready.wait(GIVE_UP_S)

    def trip() -> None:
        client.publish(PING, PAYLOAD, qos)
        if not has_arrived.acquire(timeout=GIVE_UP_S):
            raise GodwitError(f"no message of Mosquitto came back within {GIVE_UP_S:g} s")

    _time_blocking_trips(pipe, trip, seconds)


def _echo_mqtt(qos: int, pipe: Pipe, address: str) -> None:
    def reply(client: Client, _: object, message: MQTTMessage) -> None:
        client.publish(PONG, message.payload, qos)

    client, is_ready = connect_mqtt(address, PING, qos, reply)
    client.loop_start()
    is_ready.wait(GIVE_UP_S)
    pipe.send(READY)
    threading.Event().wait()


# -- Mosquitto without a client library -------------------------------------------------------------------------------

PUBLISH: Final = 3


def _open_bare_mqtt(address: str, topic: str, qos: int) -> socket.socket:
    opened = socket.create_connection((HOST, int(address)), timeout=GIVE_UP_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.sendall(connect_packet(topic) + encode(0x82, b"\x00\x01" + text(topic) + bytes((qos,))))
    read = 0
    while read < CONNACK_BYTES + SUBACK_BYTES:
        read += len(opened.recv(CONNACK_BYTES + SUBACK_BYTES - read))
    return opened


def _next_payload(opened: socket.socket, stream: bytearray) -> bytes:
    """Return the payload of the next message, and acknowledge it if it has QoS 1; skip acknowledgements."""
    while True:
        # All packets here are shorter than 128 bytes behind their first two.
        while len(stream) < 2 or len(stream) < 2 + stream[1]:
            stream += opened.recv(4096)
        first, content = stream[0], bytes(stream[2 : 2 + stream[1]])
        del stream[: 2 + stream[1]]
        if first >> 4 == PUBLISH:
            at = 2 + int.from_bytes(content[:2], "big")
            if first & 0x06:
                opened.sendall(b"\x40\x02" + content[at : at + 2])
                at += 2
            return content[at:]


def _bare_publish(topic: str, payload: bytes, qos: int) -> bytes:
    number = b"\x00\x01" if qos else b""  # the same number each time: one message is in flight
    return encode(0x32 if qos else 0x30, text(topic) + number + payload)


def _ping_bare_mqtt(qos: int, pipe: Pipe, address: str, seconds: float) -> None:
    packet = _bare_publish(PING, PAYLOAD, qos)
    stream = bytearray()
    with _open_bare_mqtt(address, PONG, qos) as opened:

        def trip() -> None:
            opened.sendall(packet)
            _next_payload(opened, stream)

        _time_blocking_trips(pipe, trip, seconds)


def _echo_bare_mqtt(qos: int, pipe: Pipe, address: str) -> None:
    stream = bytearray()
    with _open_bare_mqtt(address, PING, qos) as opened:
        pipe.send(READY)
        while True:
            opened.sendall(_bare_publish(PONG, _next_payload(opened, stream), qos))
