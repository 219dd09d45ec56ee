"""Mosquitto's packet sequences against the whole broker, sans-IO, with a log that keeps state and with access rules."""

from __future__ import annotations

from typing import Any

import pytest
from tests.mqtt import client_packets as client
from tests.mqtt.reference import Sequence, checkout, load_sequences
from tests.mqtt.world import MqttWorld

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.mqtt.packets import _Cursor

EVERYTHING = Rule(clients=("*",), allow=frozenset(("publish", "subscribe")), topics=("#", "$SYS/#"))


class Stream:
    """A client that sends given bytes and keeps the replies."""

    def __init__(self, world: MqttWorld) -> None:
        self.world = world
        self.data = b""
        self.is_closed = False
        self.connection = world.mqtt.connect(self, "192.0.2.9:5000", "192.0.2.9")

    def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.connection.handle_lost()

    def set_reading(self, is_reading: bool) -> None: ...

    def unsent_bytes(self) -> int:
        return 0

    def send(self, data: bytes) -> None:
        self.connection.receive(data)
        self.world.run()

    def take(self) -> bytes:
        """Return the next packet, or nothing."""
        if not self.data:
            return b""
        cursor = _Cursor(self.data, 1, len(self.data))
        end = cursor.varint() + cursor.at
        packet, self.data = self.data[:end], self.data[end:]
        return packet


def split(data: bytes) -> list[bytes]:
    packets = []
    while data:
        cursor = _Cursor(data, 1, len(data))
        end = cursor.varint() + cursor.at
        packets.append(data[:end])
        data = data[end:]
    return packets


def problem_of(world: MqttWorld, sequence: Sequence) -> str:
    """Return the problem, or an empty text."""
    stream = Stream(world)
    try:
        return _run_steps(world, stream, sequence)
    finally:
        stream.close()
        world.run()


def _run_steps(world: MqttWorld, stream: Stream, sequence: Sequence) -> str:
    version = sequence.version
    if sequence.has_connect:
        stream.send(client.connect(sequence.name, version))
        connack = stream.take()
        if connack[:1] != b"\x20" or connack[2:4] != b"\0\0":
            return f"refused: {connack.hex()}"
    for step in sequence.steps:
        problem = _run_step(world, stream, step, version)
        if problem:
            return problem
    world.run()
    if stream.is_closed != sequence.ends:
        return "closed" if stream.is_closed else "still open"
    return f"left: {stream.data.hex()}" if sequence.ends and stream.data else ""


def _run_step(world: MqttWorld, stream: Stream, step: dict[str, Any], version: int) -> str:
    kind = step["type"]
    if kind == "send":
        stream.send(step["payload"])
    elif kind == "recv":
        for expected in split(step["payload"]):
            found = stream.take()
            is_accepted = expected[0] == 0x20 and expected[3] == 0 and found[:1] == b"\x20"
            if found != expected and not (is_accepted and found[2:4] == expected[2:4]):
                return f"got {found.hex()} for {expected.hex()}"
    elif kind == "external_publish":
        helper = Stream(world)
        packet = client.publish(
            step["topic"],
            step["payload"].encode(),
            qos=step["qos"],
            packet_id=1,
            retain=step.get("retain", False),
        )
        helper.send(client.connect("helper") + packet)
        helper.send(client.ack(6, 1) if step["qos"] == 2 else b"")
        helper.close()
        world.run()
    elif kind == "subscribe":
        stream.send(client.subscribe(1, (step["topic"], step["qos"]), version=version))
        if stream.take()[:1] != b"\x90":
            return "no SUBACK"
    elif kind == "unsubscribe":
        stream.send(client.unsubscribe(1, step["topic"], version=version))
        if stream.take()[:1] != b"\xb0":
            return "no UNSUBACK"
    return ""


@pytest.mark.parametrize("has_rules", [False, True], ids=["open", "rules"])
def test_the_broker_answers_as_the_reference_sequences_expect(pytestconfig: pytest.Config, has_rules: bool) -> None:
    assert pytestconfig.cache is not None
    sequences = load_sequences(checkout(pytestconfig.cache.mkdir("reference")))
    settings = Settings(access=Access(rules=(EVERYTHING,))) if has_rules else Settings()
    world = MqttWorld(settings, receive_maximum=20, max_packet_bytes=2_000_000)
    wrong = []
    for sequence in sequences:
        problem = problem_of(world, sequence)
        if problem:
            wrong.append(f"{sequence.name}: {problem}")
    assert not wrong, "\n".join(wrong)
    assert not world.mqtt.connections
