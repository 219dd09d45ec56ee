"""Clients that mean harm: they flood, they stall, they lie. Each says how far it got, so that a test can be sure."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tests.system.worker import Orders, say

from godwit.errors import BufferFullError, GodwitError
from godwit.limits import BASE_DATAGRAM_BYTES, MAX_BATCH_MESSAGES
from godwit.net.address import parse_broker, resolve
from godwit.net.client import AsyncClient, connect
from godwit.net.driver import EndpointDriver
from godwit.net.udp import UdpSocket
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, Event, Received
from godwit.wire import packet as wire
from godwit.wire.batch import Batch, encode_batch, encode_head
from godwit.wire.control import (
    ControlMessage,
    CursorCommit,
    Kick,
    Login,
    Ping,
    PublishOpen,
    Subscribe,
    Topics,
    Unsubscribe,
    Welcome,
    decode_control,
    encode_control,
)
from godwit.wire.control_base import Qos
from godwit.wire.packet import OVERHEAD_BYTES, encode_packet

TOPICS = 100
PAYLOAD_BYTES = 4_000
MESSAGES_A_TURN = 32
REQUESTS_A_TURN = 2_000
DATAGRAMS_A_TURN = 20
DATAGRAM_TURN_S = 0.005
LIE_PATIENCE_S = 1.0
"""A client that violates the protocol waits this long for the broker to close the connection, then closes it."""


async def begin(orders: Orders) -> None:
    """Wait until the test sends `begin`, when all other clients are ready."""
    say("ready")
    assert await orders.next() == "begin"


async def _until_stopped(orders: Orders, work: Callable[[], Awaitable[int]], enough: int) -> None:
    """Call `work` until the test sends `stop`. Report `enough` when the sum of its results reaches `enough`."""
    done = 0
    stopping = asyncio.create_task(orders.next())
    while not stopping.done():
        before = done
        done += await work()
        if before < enough <= done:
            say("enough", done=done)


# -- flood ------------------------------------------------------------------------------------------------------------


async def flood(orders: Orders, *, broker: str, name: str, kind: str, seed: int, enough: int) -> None:
    """As much as it can of `messages` (QoS 0 and 1) or `requests`; or thousands a second of `garbage` or `hellos`."""
    rng = random.Random(f"{seed} flood {kind}")
    await begin(orders)
    if kind in ("messages", "requests"):
        async with connect(broker, name=name) as client:
            say("begun")
            await _until_stopped(orders, _messages(client, rng) if kind == "messages" else _requests(client), enough)
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.setblocking(False)
            say("begun")
            make = _garbage if kind == "garbage" else _hello
            await _until_stopped(orders, _datagrams(udp, resolve(*parse_broker(broker)), lambda: make(rng)), enough)


def _messages(client: AsyncClient, rng: random.Random) -> Callable[[], Awaitable[int]]:
    payload = rng.randbytes(PAYLOAD_BYTES)
    publishers = [client.publisher(f"flood/{number}", qos=rng.randrange(2)) for number in range(TOPICS)]

    async def work() -> int:
        publisher = rng.choice(publishers)
        sent = 0
        try:
            while sent < MESSAGES_A_TURN:
                publisher.send(payload)
                sent += 1
        except BufferFullError:
            await publisher.ready()
        await asyncio.sleep(0)
        return sent

    return work


def _requests(client: AsyncClient) -> Callable[[], Awaitable[int]]:
    """Many at once, again and again, whatever becomes of the connection: the client comes back and asks anew."""

    async def work() -> int:
        questions: list[Awaitable[object]] = [client.ping() for _ in range(REQUESTS_A_TURN)]
        questions += [client.topics("#"), client.clients()]
        answers = await asyncio.gather(*questions, return_exceptions=True)
        return sum(not isinstance(answer, BaseException) for answer in answers)

    return work


def _datagrams(udp: socket.socket, address: Address, make: Callable[[], bytes]) -> Callable[[], Awaitable[int]]:
    async def work() -> int:
        with suppress(OSError):
            for _ in range(DATAGRAMS_A_TURN):
                udp.sendto(make(), address)
        await asyncio.sleep(DATAGRAM_TURN_S)
        return DATAGRAMS_A_TURN

    return work


def _garbage(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 1400))


def _hello(rng: random.Random) -> bytes:
    frame = wire.encode_frame(wire.HelloFrame(rng.getrandbits(64), rng.randbytes(wire.NONCE_BYTES)))
    return encode_packet(0, 0, frame.ljust(BASE_DATAGRAM_BYTES - OVERHEAD_BYTES, b"\0"))


# -- stall ------------------------------------------------------------------------------------------------------------


async def stall(orders: Orders, *, broker: str, name: str, filters: list[str]) -> None:
    """Subscribes and never takes a message, while its transport goes on answering."""
    await begin(orders)
    async with connect(broker, name=name) as client, client.subscribe(*filters):
        say("begun")
        while await orders.next() != "stop":
            pass


# -- lie --------------------------------------------------------------------------------------------------------------


class Liar:
    """One connection that tells one kind of lie again and again, until it is sent away or has told enough."""

    def __init__(self, address: Address, name: str, rng: random.Random) -> None:
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.lies = 0
        self._rng = rng
        self._name = name
        self._endpoint = Endpoint(EndpointConfig(), entropy=rng.randbytes)
        self._driver = EndpointDriver(self._endpoint, UdpSocket("127.0.0.1"), self._on_events)
        self._connection = self._endpoint.connect(address, self._driver.clock())
        self._driver.flush()

    def _on_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Connected):
                self._begin(event.connection)
            elif isinstance(event, Received):
                if event.channel == 0 and isinstance(decode_control(event.body), Welcome):
                    self._tell(event.connection)
            elif isinstance(event, Closed) and not self.over.done():
                self.over.set_result(f"{event.code} {event.reason}")

    def _begin(self, connection: Connection) -> None:
        if self._rng.random() < 0.3:  # does not even log in
            self._tell(connection)
        else:
            instance = self._rng.randbytes(16)
            proof = self._rng.choice((b"", self._rng.randbytes(32)))
            login = Login(request=1, name=self._name, instance=instance, proof=proof, session_expiry_s=2**32 - 1)
            connection.send(0, encode_control(login))

    def _tell(self, connection: Connection) -> None:
        lie = self._rng.choice(LIES)
        with suppress(GodwitError):  # its own transport may see through it
            for _ in range(self._rng.randrange(1, 20)):
                lie(self._rng, connection)
                self.lies += 1

    def close(self) -> None:
        self._connection.close(self._driver.clock())
        self._driver.flush()
        self._driver.close()


def _junk_request(rng: random.Random, connection: Connection) -> None:
    connection.send(0, rng.randbytes(rng.randrange(1, 3000)))


def _junk_data(rng: random.Random, connection: Connection) -> None:
    connection.send(connection.open_channel(), rng.randbytes(rng.randrange(0, 70_000)), last=rng.random() < 0.2)


def _spoiled_request(rng: random.Random, connection: Connection) -> None:
    """Right but for a few bytes, or for what it asks."""
    messages: list[ControlMessage] = [
        Ping(request=rng.randrange(2**32)),
        Topics(request=1, filter="#", after="a" * 1000),
        Subscribe(request=2, subscription=rng.randrange(4), filters=["x/" * 31 + "#"] * 64, start=2**63 - 1),
        Subscribe(request=3, subscription=rng.randrange(4), filters=["lies/#", "#", "*/*/*/*"], start="earliest"),
        PublishOpen(topic="lies/open"),
        CursorCommit(request=4, subscription=rng.randrange(4), offset=2**63 - 1),
        Unsubscribe(request=5, subscription=rng.randrange(4)),
        Kick(request=6, client="unknown", reason="x" * 1024),
    ]
    data = bytearray(encode_control(rng.choice(messages)))
    for _ in range(rng.randrange(3)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    connection.send(0, bytes(data))


def _false_batch(rng: random.Random, connection: Connection) -> None:
    """On a channel that was opened well: more messages and bytes are claimed than there are."""
    channel = connection.open_channel()
    qos: Qos = rng.choice((0, 1, 2))
    connection.send(channel, encode_control(PublishOpen(topic=f"lies/{rng.randrange(50)}", qos=qos)))
    head = encode_head(qos << 6 | rng.choice((0, 1, 2, 4, 8, 16, 32, 63)), rng.randrange(2**64), None, None)
    counts = (0, 1, 1000, MAX_BATCH_MESSAGES, 2**31, 2**32 - 1)
    claims = struct.pack(">II", rng.choice(counts), rng.choice(counts))
    connection.send(channel, head + claims + rng.randbytes(rng.randrange(200)))


def _wrong_qos(rng: random.Random, connection: Connection) -> None:
    channel = connection.open_channel()
    connection.send(channel, encode_control(PublishOpen(topic="lies/qos", qos=1)))
    connection.send(channel, encode_batch(Batch([b"x"], 1, qos=2, sequence=rng.randrange(2**63))))


def _false_confirm(rng: random.Random, connection: Connection) -> None:
    connection.confirm(rng.choice((1, 2, 3, 4, 999)), rng.choice((0, 5, 2**32, 2**62)), rng.randrange(2**31))


def _unreliable_junk(rng: random.Random, connection: Connection) -> None:
    connection.send(connection.open_channel(), rng.randbytes(rng.randrange(1, 1000)), reliable=False)


LIES: list[Callable[[random.Random, Connection], None]] = [
    _junk_request,
    _junk_data,
    _spoiled_request,
    _false_batch,
    _wrong_qos,
    _false_confirm,
    _unreliable_junk,
]


async def lie(orders: Orders, *, broker: str, name: str, seed: int, enough: int) -> None:
    """One liar after another. At the end it says `lied`, with what it was told when it was sent away."""
    rng = random.Random(f"{seed} lies")
    address = resolve(*parse_broker(broker))
    farewells: Counter[str] = Counter()
    lies = 0

    async def work() -> int:
        nonlocal lies
        liar = Liar(address, f"{name} {rng.randrange(5)}", rng)
        try:
            async with asyncio.timeout(LIE_PATIENCE_S):
                farewells[await liar.over] += 1
        except TimeoutError:
            farewells["nothing"] += 1
        finally:
            liar.close()
        lies += liar.lies
        return 1

    await begin(orders)
    say("begun")
    await _until_stopped(orders, work, enough)
    say("lied", lies=lies, farewells=farewells)
