"""Brokers that are killed under MQTT traffic: QoS 1 and 2, with sessions and clients that keep their state."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.mqtt import client_packets as packets
from tests.net.running import run, spawn
from tests.ports import free_port

SEED = 18_050
EXPIRY_S = 3600
WINDOW = 50
"""Messages that a sender has in flight."""
LONGEST_PAUSE_S = 0.2
MESSAGES_BETWEEN = 300
"""Messages that arrive between two kills."""
SESSION_EXPIRY = 0x11


async def start_broker(folder: Path, port: int) -> asyncio.subprocess.Process:
    """Start a broker with a log on disk, as a process."""
    process = await spawn(
        sys.executable, "-m", "godwit", "broker", "--listen", "127.0.0.1:0", "--data", str(folder),
        "--archive", "none", "--mqtt", f"127.0.0.1:{port}", "--quiet", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async for line in process.stdout:
        if b"mqtt://" in line:
            return process
    raise AssertionError("the broker has ended")


class StrictClient:
    """A client with a session, which keeps the state of QoS 1 and 2 over its reconnects, as it must.

    paho-mqtt does not: when a reconnect fails, it publishes messages of QoS 2 again that the broker has released.
    """

    def __init__(self, port: int, client_id: str, version: int) -> None:
        self.port = port
        self.client_id = client_id
        self.version = version
        self.messages: list[tuple[int, bytes]] = []
        """QoS and payload."""
        self.problems: list[str] = []
        self.is_holding = False
        """Whether it sends no acknowledgements for now."""
        self.held: deque[tuple[int, tuple[int, bytes], bytes]] = deque()
        """Messages of this connection without an acknowledgement: QoS, identifier and payload, the acknowledgement."""
        self.lost: set[tuple[int, bytes]] = set()
        """Messages whose connection was lost before they were acknowledged: they must come again, with the same
        identifiers. A message of QoS 1 that its publisher repeats is another one."""
        self.repeated = 0
        self.changed = asyncio.Condition()
        self._seen: set[tuple[int, bytes]] = set()
        """Identifiers and payloads of all messages so far."""
        self._out: dict[int, bytes] = {}
        """Packets to repeat after a reconnect, by packet identifier: a PUBLISH with DUP, or a PUBREL."""
        self._received: set[int] = set()
        self._next_id = 0
        self._is_subscribed = False
        self._writer: asyncio.StreamWriter | None = None
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            writer: asyncio.StreamWriter | None = None
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                if writer.get_extra_info("sockname") == writer.get_extra_info("peername"):
                    raise ConnectionError("TCP connected to itself: nothing listens, and the system chose this port")
                values = {SESSION_EXPIRY: EXPIRY_S} if self.version == 5 else None
                writer.write(packets.connect(self.client_id, self.version, clean=False, values=values))
                first, connack = await self._read(reader)
                assert (first, connack[1]) == (0x20, 0), connack
                writer.write(b"".join(self._out.values()))
                self._writer = writer  # at once: a message that is published meanwhile is sent by `publish`
                async with self.changed:
                    self.changed.notify_all()
                while True:
                    await self._handle(await self._read(reader), writer)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.02)
            except RuntimeError:  # uvloop: a write after the connection was lost
                assert writer is not None
                assert writer.is_closing()
            finally:
                self._writer = None
                self.lost |= {message for _, message, _ in self.held}
                self.held.clear()
                if writer is not None:
                    writer.close()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.task.cancelled(), self.task.exception()

    def has_received(self, count: int) -> bool:
        """Return whether it has received this many messages."""
        return len(self.messages) >= count

    def has(self, qos: int, payload: bytes) -> bool:
        """Return whether it has received a message."""
        return (qos, payload) in self.messages

    async def _read(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        first = (await reader.readexactly(1))[0]
        size = shift = 0
        while True:
            byte = (await reader.readexactly(1))[0]
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return first, await reader.readexactly(size)

    async def _handle(self, packet: tuple[int, bytes], writer: asyncio.StreamWriter) -> None:
        first, body = packet
        kind = first >> 4
        packet_id = int.from_bytes(body[:2], "big")
        if kind == 3:
            self._handle_publish(first, body)
        elif kind == 6:
            self._received.discard(packet_id)
            writer.write(packets.ack(7, packet_id))
        elif kind == 5:
            self._out[packet_id] = packets.ack(6, packet_id)
            writer.write(self._out[packet_id])
        elif kind in (4, 7):
            self._out.pop(packet_id, None)
        elif kind == 9:
            self._is_subscribed = True
        if not self.is_holding:
            self._acknowledge()
        async with self.changed:
            self.changed.notify_all()

    def _handle_publish(self, first: int, body: bytes) -> None:
        at = 2 + int.from_bytes(body[:2], "big")
        qos = first >> 1 & 3
        packet_id = int.from_bytes(body[at : at + 2], "big")
        payload = body[at + 2 + (self.version == 5) :]
        message = packet_id, payload
        if message in self._seen:
            self.repeated += 1
            self.lost.discard(message)
            if not first & 8:
                self.problems.append(f"{payload!r} of {packet_id} came again without DUP")
        self._seen.add(message)
        if qos == 1 or packet_id not in self._received:
            self.messages.append((qos, payload))
        if qos == 2:
            self._received.add(packet_id)
        self.held.append((qos, message, packets.ack(4 if qos == 1 else 5, packet_id)))

    def _acknowledge(self) -> None:
        """Acknowledge all messages, in their order."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(b"".join([ack for _, _, ack in self.held]))
            self.held.clear()

    def release(self) -> None:
        """Acknowledge messages again."""
        self.is_holding = False
        self._acknowledge()

    async def subscribe(self, pattern: str) -> None:
        await self.until(lambda: self._writer is not None)
        assert self._writer is not None
        self._writer.write(packets.subscribe(1, (pattern, 2), version=self.version))
        await self.until(lambda: self._is_subscribed)

    async def publish(self, topic: str, payload: bytes, qos: int) -> None:
        await self.until(lambda: len(self._out) < WINDOW)
        self._next_id = self._next_id % 65535 + 1
        number = self._next_id

        def packet(*, dup: bool) -> bytes:
            return packets.publish(topic, payload, qos=qos, packet_id=number, dup=dup, version=self.version)

        self._out[number] = packet(dup=True)
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(packet(dup=False))

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(is_true)

    @property
    def is_idle(self) -> bool:
        return not self._out

    def holds_both(self) -> bool:
        """Return whether it has messages of QoS 1 and 2 that it has not acknowledged."""
        return {qos for qos, _, _ in self.held} == {1, 2}


class Traffic:
    """Publishes messages of QoS 1 and 2 in turn, until it is stopped."""

    def __init__(self, sender: StrictClient) -> None:
        self.count = 0
        self._sender = sender
        self._is_stopping = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self._is_stopping:
            for qos in (1, 2):
                await self._sender.publish(f"t/{qos}", self.payload(self.count, qos), qos)
            self.count += 1
            await asyncio.sleep(0)

    @staticmethod
    def payload(number: int, qos: int) -> bytes:
        return b"%d of QoS %d" % (number, qos)

    async def stop(self) -> None:
        """Stop, and wait until everything is acknowledged."""
        self._is_stopping = True
        await self._task
        await self._sender.until(lambda: self._sender.is_idle)


@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.soak)])
def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(tmp_path: Path, kills: int, version: int) -> None:
    """QoS 1 at least once, QoS 2 exactly once and in order, repeated with DUP under the same packet identifiers."""
    rng = random.Random(SEED + kills)
    print(f"seed {SEED + kills}")
    port = free_port()

    async def test() -> None:
        process = await start_broker(tmp_path, port)
        receiver, sender = StrictClient(port, "receiver", version), StrictClient(port, "sender", version)
        try:
            await receiver.subscribe("t/#")
            traffic = Traffic(sender)
            for _ in range(kills):  # while messages are on their way in both directions
                receiver.is_holding = True
                await receiver.until(receiver.holds_both)
                await asyncio.sleep(rng.uniform(0, LONGEST_PAUSE_S))
                process.kill()
                await process.wait()
                process = await start_broker(tmp_path, port)
                # Not before: if the broker dies before it has stored the last acknowledgement, its window is full again
                # without the last message.
                receiver.release()
                await receiver.until(lambda: not receiver.lost)
                enough = len(receiver.messages) + MESSAGES_BETWEEN
                await receiver.until(partial(receiver.has_received, enough))
            await traffic.stop()
            for qos in (1, 2):
                await receiver.until(partial(receiver.has, qos, traffic.payload(traffic.count - 1, qos)))
        finally:
            await receiver.stop()
            await sender.stop()
            process.kill()
            await process.wait()
        for qos in (1, 2):
            found = [payload for one, payload in receiver.messages if one == qos]
            wanted = [traffic.payload(number, qos) for number in range(traffic.count)]
            assert (list(dict.fromkeys(found)) if qos == 1 else found) == wanted
        assert not receiver.problems
        assert receiver.repeated >= 2 * kills
        print(f"{2 * traffic.count} messages, {kills} kills, {receiver.repeated} repeated")

    run(test, deadline_s=120 + 30 * kills)
