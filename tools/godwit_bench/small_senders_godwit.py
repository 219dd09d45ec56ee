"""Small senders to Godwit: real logins by the library, then packets that are ready but for three numbers."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from godwit.errors import GodwitError
from godwit.limits import MAX_ACK_DELAY_S
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, Event, Received, Train
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
from godwit.wire.packet import CHECKSUM, HEADER, decode_packet, encode_packet
from godwit_bench.small_senders import MESSAGE_BYTES
from godwit_bench.stage import GIVE_UP_S, HOST

AT_ONCE: Final = 50
"""So many log in side by side: what they send at once fits a small receive buffer."""
RECEIVE_BYTES: Final = 65_536
INSTANCE_BYTES: Final = 16
TIMER_S: Final = 0.01
"""How often timers are looked at."""

_U32: Final = wire.U32
_ACK_HEAD_BYTES: Final = 6
_RANGE_BYTES: Final = 8
_CONFIRM: Final = struct.Struct(">BIQ")
_NUMBER_AT: Final = HEADER.size - _U32.size
_FRAMES_AT: Final = HEADER.size
_HEARD_AT: Final = _FRAMES_AT + _ACK_HEAD_BYTES + _U32.size  # the end of the ACK's one range
_RECORD_AT: Final = _FRAMES_AT + _ACK_HEAD_BYTES + _RANGE_BYTES + 1 + _U32.size  # behind the DATA's type and channel


def confirmed_record(packet: bytes, channel: int) -> int:
    """Up to which record this packet confirms the channel; -1 if it says nothing of it."""
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


class GodwitLane:
    """One connection that has logged in and opened its channel. From here on its packets are made by hand.

    Header, an ACK of all that came, DATA with a whole record (a batch of one message), checksum.
    """

    __slots__ = ("_channel", "_content", "_heard", "_number", "_record", "confirmed", "socket")

    def __init__(self, opened: socket.socket, *, peer_id: int, number: int, heard: int, channel: int) -> None:
        self.socket = opened
        self.confirmed = 0
        self._channel = channel
        self._number = number
        """Of the last packet sent."""
        self._heard = heard
        """The newest packet of the broker."""
        self._record = 1
        """In flight. Record 0 was the open."""
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
        if number > self._heard:
            self._heard = number
        if confirmed_record(data, self._channel) < self._record:
            return None
        self.confirmed += 1
        self._record += 1
        return self._packet()

    def _packet(self) -> bytes:
        """The record in flight, in a packet with a number of its own."""
        self._number += 1
        content = self._content
        _U32.pack_into(content, _NUMBER_AT, self._number)
        _U32.pack_into(content, _HEARD_AT, self._heard)
        _U32.pack_into(content, _RECORD_AT, self._record)
        return bytes(content) + CHECKSUM.pack(crc32c(content))


# -- logging in -------------------------------------------------------------------------------------------------------


class Entry:
    """A connection on its way in: handshake, login, a channel for its topic. All by the library."""

    def __init__(self, port: int, number: int) -> None:
        self.lane: GodwitLane | None = None
        """There when it is done."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((HOST, port))
        self.socket.setblocking(False)
        self._address: Address = (HOST, port)
        self._number = number
        self._sent = b""
        """The header of the last packet sent: its fields are what goes on."""
        self._heard = 0
        self._channel = 0
        self._is_open = False
        self.endpoint = Endpoint(EndpointConfig(), entropy=os.urandom)
        now = time.monotonic()
        self.endpoint.connect(self._address, now)
        self._transmit(now)

    def on_readable(self) -> None:
        now = time.monotonic()
        while self.lane is None:
            try:
                data = self.socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                break
            self.endpoint.receive(Train(self._address, data, len(data)), now)
            if self._channel:
                self._heard = max(self._heard, decode_packet(data)[1])
            self._handle(self.endpoint.events())
            self._transmit(now)
            if self._is_open:
                self._say_what_is_due(now)
                _, peer_id, number = HEADER.unpack(self._sent)
                self.lane = GodwitLane(
                    self.socket, peer_id=peer_id, number=number, heard=self._heard, channel=self._channel
                )

    def _say_what_is_due(self, now: float) -> None:
        """Acknowledges the last packet too: nobody does while the lane waits for the others to log in."""
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


def connect(port: int, connections: int) -> Sequence[GodwitLane]:
    """So many lanes, a few at a time."""
    lanes: list[GodwitLane] = []
    for first in range(0, connections, AT_ONCE):
        entries = [Entry(port, number) for number in range(first, min(first + AT_ONCE, connections))]
        try:
            _drive(entries)
        except BaseException:
            for opened in (*(lane.socket for lane in lanes), *(entry.socket for entry in entries)):
                opened.close()
            raise
        lanes += [entry.lane for entry in entries if entry.lane is not None]
    return lanes


def _drive(entries: Sequence[Entry]) -> None:
    """Until all are in."""
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
                if waiting[file].lane is not None:
                    epoll.unregister(file)
                    del waiting[file]
            for entry in waiting.values():
                due = entry.endpoint.next_timer()
                if due is not None and due <= now:
                    entry.on_timer()
