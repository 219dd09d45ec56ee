"""Small senders to Mosquitto: MQTT 3.1.1 over TCP, packets written out by hand."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Final

from godwit.errors import GodwitError
from godwit_bench.small_senders import FILTER, MESSAGE_BYTES, System, tell_arrived
from godwit_bench.stage import GIVE_UP_S, HOST, Stage, free_port, wait_for_listener

CONNECT: Final = 0x10
CONNACK_BYTES: Final = 4
PUBLISH_QOS_1: Final = 0x32
PUBACK: Final = 0x40
PUBACK_BYTES: Final = 4
SUBSCRIBE: Final = 0x82
SUBACK_BYTES: Final = 5
_QOS_MASK: Final = 0x06
_U16: Final = struct.Struct(">H")


def mosquitto_system(program: str) -> System:
    """With the mosquitto at this path."""

    def broker(stage: Stage) -> int:
        port = free_port()
        settings = stage.folder / "mosquitto.conf"
        settings.write_text(
            f"listener {port} {HOST}\nallow_anonymous true\nset_tcp_nodelay true\n"
            "max_queued_messages 0\nmax_inflight_messages 0\n",  # 0: without limit
            encoding="utf-8",
        )
        log = stage.run(program, "-c", str(settings))
        wait_for_listener(port, log)
        return port

    return System(broker, _subscribe, _connect)


# -- packets ----------------------------------------------------------------------------------------------------------


def encode(kind: int, content: bytes) -> bytes:
    """A packet: its type, its length in groups of seven bits, its content."""
    length = len(content)
    out = bytearray((kind,))
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    out.append(length)
    return bytes(out) + content


def text(value: str) -> bytes:
    encoded = value.encode()
    return _U16.pack(len(encoded)) + encoded


def connect_packet(client: str) -> bytes:
    clean_session, no_keep_alive = b"\x02", b"\x00\x00"
    return encode(CONNECT, text("MQTT") + b"\x04" + clean_session + no_keep_alive + text(client))


def publish_packet(topic: str, payload: bytes) -> bytes:
    return encode(PUBLISH_QOS_1, text(topic) + _U16.pack(1) + payload)


def subscribe_packet(topic_filter: str) -> bytes:
    return encode(SUBSCRIBE, _U16.pack(1) + text(topic_filter) + b"\x01")


def acknowledge(stream: bytes) -> tuple[int, bytes, bytes]:
    """How many PUBLISH packets the stream begins with, the answers to them, and the rest, which is not whole yet."""
    at = count = 0
    answers: list[bytes] = []
    end = len(stream)
    while end - at >= 3:
        length, start = stream[at + 1], at + 2
        if length > 127:  # all packets here are shorter than 16384 bytes
            length, start = length & 127 | stream[at + 2] << 7, at + 3
        if end - start < length:
            break
        if stream[at] & _QOS_MASK:
            number_at = start + 2 + _U16.unpack_from(stream, start)[0]
            answers.append(b"\x40\x02" + stream[number_at : number_at + 2])
        count += 1
        at = start + length
    return count, b"".join(answers), stream[at:]


# -- the two clients --------------------------------------------------------------------------------------------------


class MqttLane:
    """One connection; its messages are all the same bytes."""

    __slots__ = ("_packet", "confirmed", "socket")

    def __init__(self, opened: socket.socket, number: int) -> None:
        self.socket = opened
        self.confirmed = 0
        self._packet = publish_packet(f"bench/{number}", bytes(MESSAGE_BYTES))

    def first(self) -> bytes:
        return self._packet

    def on_answer(self, data: bytes) -> bytes | None:
        if len(data) != PUBACK_BYTES or data[0] != PUBACK:
            raise GodwitError(f"Mosquitto answered {data.hex(' ') or 'with the end of the connection'}")
        self.confirmed += 1
        return self._packet

    def again(self) -> bytes | None:
        return None  # TCP does


def _open(port: int, name: str) -> socket.socket:
    opened = socket.create_connection((HOST, port), timeout=GIVE_UP_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.sendall(connect_packet(name))
    opened.recv(CONNACK_BYTES)
    return opened


def _connect(port: int, connections: int) -> Sequence[MqttLane]:
    return [MqttLane(_open(port, f"sender-{number}"), number) for number in range(connections)]


def _subscribe(pipe: Pipe, port: int) -> None:
    arrived = 0

    def count() -> int:
        return arrived

    rest = b""
    with _open(port, "subscriber") as broker:
        broker.sendall(subscribe_packet(FILTER))
        broker.recv(SUBACK_BYTES)
        for pause_s in tell_arrived(pipe, count):
            while select.select([broker], [], [], pause_s)[0]:
                count_now, answers, rest = acknowledge(rest + broker.recv(1 << 20))
                arrived += count_now
                broker.sendall(answers)
                pause_s = 0
