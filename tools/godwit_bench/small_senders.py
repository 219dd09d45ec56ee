"""Many small senders: a thousand connections, each with one QoS 1 message in flight, and one subscriber to all.

The senders of both systems are one process with a socket for each connection, prepared packets in which a few bytes
change, and the same loop around them, so that the broker is measured and not the clients. Senders to Godwit log in by
the library, and then change three numbers in their packets. Senders to Mosquitto use MQTT 3.1.1 over TCP, with packets
encoded here.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Final, Protocol, TypeAlias

import msgspec
from crc32c import crc32c

from godwit.errors import GodwitError
from godwit.limits import MAX_ACK_DELAY_S
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, Event, Received, Train
from godwit.transport.protection import PacketProtection
from godwit.transport.sealing import Sealer
from godwit.wire import packet as wire
from godwit.wire.batch import Batch, encode_batch
from godwit.wire.control import (
    Error,
    Login,
    Opened,
    PublishOpen,
    PublishRefused,
    Welcome,
    decode_control,
    encode_control,
)
from godwit.wire.packet import CHECKSUM, HEADER, encode_packet
from godwit_bench.processes import GIVE_UP_S, HOST, READY, ProcessGroup, free_port, receive_reply, wait_for_listener

CONNECTIONS: Final = 1000
MESSAGE_BYTES: Final = 100
FILTER: Final = "bench/#"
WARM_UP_S: Final = 0.3
STALLED_S: Final = 0.3
"""The time without a confirm after which a sender repeats its message: a datagram may be lost even here."""
POLL_S: Final = 0.05
RECEIVE_BYTES: Final = 4096
LOOK_S: Final = 0.02
SETTLE_S: Final = 5.0
"""The time after the last confirm in which the subscriber may still receive."""
_SPARE_FILES: Final = 100


class Sender(Protocol):
    """One sender: its socket, and the packets that it sends."""

    socket: socket.socket
    confirmed: int
    """The number of its confirmed messages."""

    def first(self) -> bytes:
        """Return the first message."""

    def on_answer(self, data: bytes) -> bytes | None:
        """Return the next message if the reply confirms the one in flight."""

    def again(self) -> bytes | None:
        """Return the message in flight once more, or None if the network repeats it."""


class System(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[ProcessGroup], int]
    """Start it; return its port once it is reachable."""
    subscribe: Callable[[Pipe, int], None]
    """Subscribe to FILTER and follow report_arrived; runs in a process of its own."""
    connect: Callable[[int, int], Sequence[Sender]]
    """Return this number of senders to that port, each logged in; runs in a process of its own."""


Sent: TypeAlias = tuple[int, float, int]
"""Confirmed in the window, the window's seconds, confirmed in all."""


def measure(system: System, connections: int, seconds: float) -> float:
    """Return the confirmed messages per second. All of them must also have reached the subscriber."""
    with ProcessGroup() as processes:
        port = system.broker(processes)
        subscriber = processes.start(system.subscribe, port)
        receive_reply(subscriber, str)
        confirmed, elapsed_s, in_all = receive_reply(
            processes.start(_send, system.connect, port, connections, seconds), tuple, within_s=GIVE_UP_S + seconds
        )
        subscriber.send(in_all)
        arrived = receive_reply(subscriber, int)
        if arrived < in_all:
            raise GodwitError(f"{in_all} messages were confirmed, but only {arrived} reached the subscriber")
    return float(confirmed / elapsed_s)


def allow_files(connections: int) -> None:
    """Raise this process's limit of open files, which its children inherit, for this number of sockets."""
    import resource

    needed = 2 * connections + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    if hard < needed:
        raise GodwitError(
            f"{needed} open files are needed and the system allows {hard}: run `ulimit -n {needed}` first, as root, "
            "or ask for fewer connections"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _send(pipe: Pipe, connect: Callable[[int, int], Sequence[Sender]], port: int, count: int, seconds: float) -> None:
    pipe.send(send_all(connect(port, count), seconds))


def send_all(senders: Sequence[Sender], seconds: float) -> Sent:
    """Keep one message of each sender in flight for this time."""
    with select.epoll() as epoll:
        for sender in senders:
            sender.socket.setblocking(False)
            epoll.register(sender.socket.fileno(), select.EPOLLIN)
        return _send_in_turns(epoll, senders, seconds)


def _send_in_turns(epoll: select.epoll, senders: Sequence[Sender], seconds: float) -> Sent:
    by_file = {sender.socket.fileno(): (sender.socket.recv, sender.socket.send, sender.on_answer) for sender in senders}
    clock = time.perf_counter
    seen = [0] * len(senders)
    for sender in senders:
        sender.socket.send(sender.first())
    confirmed = before = 0
    now = began = clock()
    starts = began + WARM_UP_S
    ends = starts + seconds
    look_at = began + STALLED_S
    while now < ends:
        for file, _ in epoll.poll(POLL_S):
            receive, send, on_answer = by_file[file]
            packet = on_answer(receive(RECEIVE_BYTES))
            if packet is not None:
                confirmed += 1
                send(packet)
        now = clock()
        if now < starts:
            before, began = confirmed, now
        if now >= look_at:
            look_at = now + STALLED_S
            seen = _send_stalled(senders, seen)
    return confirmed - before, now - began, confirmed


def _send_stalled(senders: Sequence[Sender], seen: list[int]) -> list[int]:
    """Repeat messages without a confirm since the last call; return the confirmed count of each sender."""
    for sender, confirmed in zip(senders, seen, strict=True):
        if sender.confirmed == confirmed and (packet := sender.again()) is not None:
            sender.socket.send(packet)
    return [sender.confirmed for sender in senders]


def report_arrived(pipe: Pipe, arrived: Callable[[], int]) -> Iterator[float]:
    """For subscribers: send READY, wait for the expected count, send the count that arrived. Yield pauses."""
    pipe.send(READY)
    while not pipe.poll():
        yield LOOK_S
    expected: int = pipe.recv()
    ends = time.perf_counter() + SETTLE_S
    while arrived() < expected and time.perf_counter() < ends:
        yield LOOK_S
    pipe.send(arrived())


# -- Godwit -----------------------------------------------------------------------------------------------------------

AT_ONCE: Final = 50
"""The logins in progress at a time: their packets fit into a small receive buffer."""
DATAGRAM_RECEIVE_BYTES: Final = 65_536
INSTANCE_BYTES: Final = 16
TIMER_S: Final = 0.01
"""How often timers are checked."""

_U32: Final = wire.U32
_ACK_HEAD_BYTES: Final = 6
_RANGE_BYTES: Final = 8
_CONFIRM: Final = struct.Struct(">BIQ")
_NUMBER_AT: Final = HEADER.size - _U32.size
_FRAMES_AT: Final = HEADER.size
_ACKED_AT: Final = _FRAMES_AT + _ACK_HEAD_BYTES + _U32.size  # the end of the ACK's one range
_RECORD_AT: Final = _FRAMES_AT + _ACK_HEAD_BYTES + _RANGE_BYTES + 1 + _U32.size  # behind the DATA's type and channel


def confirmed_record(packet: bytes, channel: int) -> int:
    """Return the record up to which this packet confirms the channel; -1 if it does not."""
    at = _FRAMES_AT
    if packet[at] == wire.ACK:
        at += _ACK_HEAD_BYTES + _RANGE_BYTES * packet[at + _ACK_HEAD_BYTES - 1]
    end = len(packet) - CHECKSUM.size
    if at == end:
        return -1
    if packet[at] == wire.CONFIRM:  # where the reference puts it, so this is nearly always the case
        _, its_channel, record = _CONFIRM.unpack_from(packet, at)
        if its_channel == channel:
            return int(record)
    confirms = [frame for frame in wire.decode_frames(packet[at:end]) if isinstance(frame, wire.ConfirmFrame)]
    return max((confirm.sequence for confirm in confirms if confirm.channel == channel), default=-1)


class GodwitSender:
    """One connection that has logged in and opened its channel. From here on its packets are encoded here.

    Header, an ACK of all received packets, DATA with a whole record (a batch of one message), checksum.
    """

    __slots__ = ("_channel", "_content", "_newest_packet", "_number", "_protection", "_record", "confirmed", "socket")

    def __init__(
        self,
        opened: socket.socket,
        *,
        peer_id: int,
        number: int,
        newest_packet: int,
        channel: int,
        protection: PacketProtection | None = None,
    ) -> None:
        """`protection`: of a sealed connection, whose packets have a tag in place of the checksum."""
        self.socket = opened
        self._protection = protection
        self.confirmed = 0
        self._channel = channel
        self._number = number
        """The number of the last packet sent."""
        self._newest_packet = newest_packet
        """The newest packet of the broker."""
        self._record = 1
        """The record in flight. Record 0 was the open."""
        batch = encode_batch(Batch([bytes(MESSAGE_BYTES)], time.time_ns() // 1000, qos=1))
        frames = wire.encode_frame(wire.AckFrame(0, ((0, 0),)))
        frames += wire.encode_frame(wire.DataFrame(wire.WHOLE | wire.LAST, channel, 0, 0, None, batch))
        self._content = bytearray(encode_packet(peer_id, 0, frames)[: -CHECKSUM.size])

    def first(self) -> bytes:
        return self._packet()

    def again(self) -> bytes | None:
        return self._packet()

    def on_answer(self, data: bytes) -> bytes | None:
        (number,) = _U32.unpack_from(data, _NUMBER_AT)
        if self._protection is not None:
            opened = self._protection.open(data, self._newest_packet + 1, time.monotonic())
            if opened is None:
                return None
            data = opened
        if number > self._newest_packet:
            self._newest_packet = number
        if confirmed_record(data, self._channel) < self._record:
            return None
        self.confirmed += 1
        self._record += 1
        return self._packet()

    def _packet(self) -> bytes:
        """Return the record in flight, in a packet with a new number."""
        self._number += 1
        content = self._content
        _U32.pack_into(content, _NUMBER_AT, self._number)
        _U32.pack_into(content, _ACKED_AT, self._newest_packet)
        _U32.pack_into(content, _RECORD_AT, self._record)
        if self._protection is not None:
            return self._protection.seal(bytes(content), self._number)
        return bytes(content) + CHECKSUM.pack(crc32c(content))


# -- logging in -------------------------------------------------------------------------------------------------------


class PendingLogin:
    """A connection that is being set up by the library: handshake, login, a channel for its topic."""

    def __init__(self, port: int, number: int, sealer: Sealer | None = None) -> None:
        self.sender: GodwitSender | None = None
        """Set when the setup is complete."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((HOST, port))
        self.socket.setblocking(False)
        self._address: Address = (HOST, port)
        self._number = number
        self._sent = b""
        """The header of the last packet sent, whose fields the sender continues."""
        self._newest_packet = 0
        self._channel = 0
        self._is_open = False
        self.endpoint = Endpoint(EndpointConfig(), entropy=os.urandom, sealer=sealer)
        now = time.monotonic()
        self.endpoint.connect(self._address, now)
        self._transmit(now)

    def on_readable(self) -> None:
        now = time.monotonic()
        while self.sender is None:
            try:
                data = self.socket.recv(DATAGRAM_RECEIVE_BYTES)
            except BlockingIOError:
                break
            self.endpoint.receive(Train(self._address, data, len(data)), now)
            if self._channel:
                self._newest_packet = max(self._newest_packet, _U32.unpack_from(data, _NUMBER_AT)[0])
            self._handle(self.endpoint.events())
            self._transmit(now)
            if self._is_open:
                self._send_due(now)
                _, peer_id, number = HEADER.unpack(self._sent)
                (connection,) = self.endpoint.connections.values()
                self.sender = GodwitSender(
                    self.socket,
                    peer_id=peer_id,
                    number=number,
                    newest_packet=self._newest_packet,
                    channel=self._channel,
                    protection=connection._components.protection,
                )

    def _send_due(self, now: float) -> None:
        """Send due packets and acknowledge the last one, as the sender waits for the others to log in."""
        self.endpoint.handle_timers(now + MAX_ACK_DELAY_S)
        self._transmit(now + MAX_ACK_DELAY_S)

    def on_timer(self) -> None:
        now = time.monotonic()
        self.endpoint.handle_timers(now)
        self._transmit(now)

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Connected):
                login = Login(request=0, name=f"sender-{self._number}", instance=os.urandom(INSTANCE_BYTES))
                event.connection.send(0, encode_control(login))
            elif isinstance(event, Received) and event.channel == 0:
                self._on_control(event)
            elif isinstance(event, Closed):
                raise GodwitError(f"the broker ended the connection of a sender: {event.reason} (code {event.code})")

    def _on_control(self, event: Received) -> None:
        event.connection.consume(0, len(event.body))
        match decode_control(event.body):
            case Welcome():
                self._channel = event.connection.open_channel()
                event.connection.send(self._channel, encode_control(PublishOpen(topic=f"bench/{self._number}", qos=1)))
            case Opened():
                self._is_open = True
            case PublishRefused(code=code, text=text) | Error(code=code, text=text):
                raise GodwitError(f"the broker refused a sender: {text} (code {code})")

    def _transmit(self, now: float) -> None:
        for train in self.endpoint.trains(now):
            for datagram in train.datagrams():
                self.socket.send(datagram)
                self._sent = datagram[: HEADER.size]


def connect_sealed(port: int, connections: int) -> Sequence[GodwitSender]:
    """Return this number of senders on sealed connections."""
    from godwit_bench.sealed import BenchSealer

    return connect(port, connections, BenchSealer())


def connect(port: int, connections: int, sealer: Sealer | None = None) -> Sequence[GodwitSender]:
    """Return this number of senders, connecting a few at a time."""
    senders: list[GodwitSender] = []
    for first in range(0, connections, AT_ONCE):
        entries = [PendingLogin(port, number, sealer) for number in range(first, min(first + AT_ONCE, connections))]
        try:
            _drive(entries)
        except BaseException:
            for opened in (*(sender.socket for sender in senders), *(entry.socket for entry in entries)):
                opened.close()
            raise
        senders += [entry.sender for entry in entries if entry.sender is not None]
    return senders


def _drive(entries: Sequence[PendingLogin]) -> None:
    """Run the connections until all are set up."""
    waiting = {entry.socket.fileno(): entry for entry in entries}
    ends = time.monotonic() + GIVE_UP_S
    with select.epoll() as epoll:
        for file in waiting:
            epoll.register(file, select.EPOLLIN)
        while waiting:
            now = time.monotonic()
            if now > ends:
                raise GodwitError(f"{len(waiting)} senders could not log in within {GIVE_UP_S:g} s")
            for file, _ in epoll.poll(TIMER_S):
                waiting[file].on_readable()
                if waiting[file].sender is not None:
                    epoll.unregister(file)
                    del waiting[file]
            for entry in waiting.values():
                due = entry.endpoint.next_timer()
                if due is not None and due <= now:
                    entry.on_timer()


# -- Mosquitto --------------------------------------------------------------------------------------------------------

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
    """Return the mosquitto at this path."""

    def broker(processes: ProcessGroup) -> int:
        port = free_port()
        settings = processes.folder / "mosquitto.conf"
        settings.write_text(
            f"listener {port} {HOST}\nallow_anonymous true\nset_tcp_nodelay true\n"
            "max_queued_messages 0\nmax_inflight_messages 0\n",  # 0: without limit
            encoding="utf-8",
        )
        log = processes.run(program, "-c", str(settings))
        wait_for_listener(port, log)
        return port

    return System(broker, _subscribe, _connect)


# -- MQTT packets -----------------------------------------------------------------------------------------------------


def encode(kind: int, content: bytes) -> bytes:
    """Return a packet: its type, its length in groups of seven bits, its content."""
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
    """Return the number of complete PUBLISH packets in the stream, their replies, and the incomplete rest."""
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


# -- MQTT clients -----------------------------------------------------------------------------------------------------


class MqttSender:
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


def _connect(port: int, connections: int) -> Sequence[MqttSender]:
    return [MqttSender(_open(port, f"sender-{number}"), number) for number in range(connections)]


def _subscribe(pipe: Pipe, port: int) -> None:
    arrived = 0

    def count() -> int:
        return arrived

    rest = b""
    with _open(port, "subscriber") as broker:
        broker.sendall(subscribe_packet(FILTER))
        broker.recv(SUBACK_BYTES)
        for pause_s in report_arrived(pipe, count):
            while select.select([broker], [], [], pause_s)[0]:
                count_now, answers, rest = acknowledge(rest + broker.recv(1 << 20))
                arrived += count_now
                broker.sendall(answers)
                pause_s = 0
