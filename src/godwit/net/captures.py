"""Captures of a broker's packets: recorded between its sockets and the transport, sent to an operator's inbox.

    operator   subscribes to an inbox, sends the control message `capture`, and gets messages there: the pieces of a
               pcapng file in order; an empty message is the end
    broker     replaces the sockets of its drivers by ones that copy all trains, while a capture lasts

A broker without a capture does nothing for this. With one, the number of captures, their time, their bytes and the
bytes in each tenth of a second are limited; packets beyond are counted, and the count is in the file. The packets of
operators are left out: recording them would cause more of them. Only the native protocol is captured.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import struct
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

import msgspec

from godwit.broker.broker import Broker
from godwit.broker.effects import Notice
from godwit.broker.ports import CaptureRequest, Peer, RequestFailure
from godwit.capture.pcapng import RECEIVED, SENT, CapturedDatagram, file_header, packet_block, statistics_block
from godwit.errors import ReplyTimeoutError
from godwit.native.peer import NativePeer
from godwit.net.client import AsyncClient
from godwit.net.driver import EndpointDriver
from godwit.transport.events import Address, Train
from godwit.wire.control import Capture, Done
from godwit.wire.control_base import Code
from godwit.wire.filters import REPLIES

MAX_CAPTURES: Final = 4
TICK_S: Final = 0.1
PIECE_BYTES: Final = 32 * 1024
"""A piece is sent when it has this length, or after TICK_S."""
TICK_BYTES: Final = 512 * 1024
"""Packets that one capture records in TICK_S, which bounds its cost: about 5 MB/s."""
LEAST_BLOCK_BYTES: Final = 72
"""A block with an empty packet, at least."""
END_TRIES: Final = 50
"""Ticks for which the end is repeated to a client that is too slow."""
GRACE_S: Final = 10.0
"""How long a client waits for the end beyond the time of the capture."""
_KEYS: Final = ("host", "port", "client", "direction")


class CaptureFilter(msgspec.Struct, kw_only=True):
    """Which packets to record: all conditions hold. The remote address is that of the client."""

    host: str | None = None
    port: int | None = None
    client: str | None = None
    direction: int = 0

    @classmethod
    def parse(cls, text: str) -> CaptureFilter:
        """Parse `host=192.0.2.7 port=40001 client=sensor-1 direction=in`. Raises RequestFailure."""
        found = cls()
        try:
            terms = shlex.split(text)
        except ValueError as error:
            raise _bad_filter(text, str(error)) from None
        for term in terms:
            key, _, value = term.partition("=")
            if key not in _KEYS or not value:
                raise _bad_filter(text, f"{term!r} is not a condition")
            if key == "port":
                if not (value.isascii() and value.isdecimal()) or not 0 < int(value) < 65536:
                    raise _bad_filter(text, f"{value!r} is not a port")
                found.port = int(value)
            elif key == "direction":
                if value not in ("in", "out"):
                    raise _bad_filter(text, f"{value!r} is not in or out")
                found.direction = RECEIVED if value == "in" else SENT
            elif key == "host":
                found.host = value
            else:
                found.client = value
        return found

    def matches(self, remote: Address, direction: int, client_address: Address | None) -> bool:
        """Return whether to record a packet. `client_address`: the present address of the client, if one is named."""
        return (
            (self.host is None or remote[0] == self.host)
            and (self.port is None or remote[1] == self.port)
            and (not self.direction or direction == self.direction)
            and (self.client is None or remote == client_address)
        )


def _bad_filter(text: str, problem: str) -> RequestFailure:
    return RequestFailure(
        Code.MALFORMED,
        f"the filter {text[:100]!r} is invalid, because {problem[:100]}: write conditions as in "
        "'host=192.0.2.7 port=40001 client=sensor-1 direction=in'",
    )


class _RunningCapture:
    """One capture under way."""

    def __init__(self, request: CaptureRequest, wanted: CaptureFilter, now: float) -> None:
        self.request = request
        self.wanted = wanted
        self.ends_at = now + request.seconds
        self.bytes_left = request.max_bytes
        self.tick_bytes = TICK_BYTES
        self.pieces = [file_header("godwit broker")]
        self.size_bytes = len(self.pieces[0])
        """Of `pieces`."""
        self.packets = 0
        self.dropped = 0
        self.pending_packets = 0
        """In `pieces`."""
        self.client_address: Address | None = None
        self.is_over = False
        self.end_tries = END_TRIES

    def record(self, time_ns: int, local: Address, train: Train, direction: int) -> None:
        """Record the packets of a train."""
        data, remote, at = train.data, train.address, 0
        ends = ((remote[0], remote[1]), (local[0], local[1]))
        source, destination = ends if direction == RECEIVED else ends[::-1]
        limit = self.request.packet_bytes
        while at < len(data) and not self.is_over:
            packet = data[at : at + train.segment_bytes]
            at += train.segment_bytes
            if LEAST_BLOCK_BYTES + min(len(packet), limit) > self.tick_bytes:
                self.dropped += 1  # before a block is made: that is most of the cost
                continue
            length = len(packet) if len(packet) > limit else 0
            block = packet_block(CapturedDatagram(time_ns, source, destination, packet[:limit], direction, length))
            if len(block) > self.tick_bytes:
                self.dropped += 1
                continue
            if len(block) > self.bytes_left:
                self.is_over = True
                return
            self.tick_bytes -= len(block)
            self.bytes_left -= len(block)
            self.size_bytes += len(block)
            self.pending_packets += 1
            self.pieces.append(block)


class BrokerCaptures:
    """All captures of a broker."""

    def __init__(self, broker: Broker, drivers: list[EndpointDriver[Notice]]) -> None:
        self._broker = broker
        self._drivers = drivers
        self._loop = asyncio.get_running_loop()
        self._running: list[_RunningCapture] = []
        self._timer: asyncio.TimerHandle | None = None
        broker.administration.capture_handler = self.begin

    def begin(self, request: CaptureRequest) -> None:
        """Begin a capture. Raises RequestFailure if there are too many, or the filter is invalid."""
        if len(self._running) >= MAX_CAPTURES:
            text = f"{MAX_CAPTURES} captures are under way: wait until one of them has ended"
            raise RequestFailure(Code.TOO_MANY, text)
        capture = _RunningCapture(request, CaptureFilter.parse(request.filter), time.monotonic())
        self._running.append(capture)
        self._find_client(capture)
        if self._timer is None:
            for driver in self._drivers:
                driver.udp.on_train = partial(self._record, driver.udp.local_address)
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def close(self) -> None:
        """End all captures. May be repeated."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._running.clear()
        for driver in self._drivers:
            driver.udp.on_train = None

    def _record(self, local: Address, train: Train, is_received: bool) -> None:
        """Record a train for all captures that want it."""
        direction = RECEIVED if is_received else SENT
        time_ns = time.time_ns()
        operators = [_address_of(capture.request.peer) for capture in self._running]
        if train.address in operators:
            return
        for capture in self._running:
            if not capture.is_over and capture.wanted.matches(train.address, direction, capture.client_address):
                capture.record(time_ns, local, train, direction)
                if capture.size_bytes >= PIECE_BYTES:
                    self._send(capture)

    def _find_client(self, capture: _RunningCapture) -> None:
        if capture.wanted.client is not None:
            session = self._broker.sessions.get(capture.wanted.client)
            capture.client_address = None if session is None or session.peer is None else _address_of(session.peer)

    def _send(self, capture: _RunningCapture) -> None:
        piece = b"".join(capture.pieces)
        sent = self._broker.send_to_inbox(capture.request.inbox, piece)
        if sent is None:
            capture.is_over, capture.end_tries = True, 0
        elif sent:
            capture.packets += capture.pending_packets
        else:
            capture.dropped += capture.pending_packets
        capture.pieces.clear()
        capture.pending_packets = capture.size_bytes = 0

    def _tick(self) -> None:
        now = time.monotonic()
        for capture in list(self._running):
            capture.tick_bytes = TICK_BYTES
            self._find_client(capture)
            if now >= capture.ends_at or not capture.request.peer.is_open:
                capture.is_over = True
            if capture.pieces:
                self._send(capture)
            if capture.is_over and self._end(capture):
                self._running.remove(capture)
        for driver in self._drivers:
            driver.schedule_flush()
        self._timer = None
        if self._running:
            self._timer = self._loop.call_later(TICK_S, self._tick)
        else:
            self.close()

    def _end(self, capture: _RunningCapture) -> bool:
        """Send the statistics and the end. Return whether that is done, or hopeless."""
        if capture.end_tries <= 0:
            return True
        capture.end_tries -= 1
        inbox = capture.request.inbox
        sent = self._broker.send_to_inbox(inbox, statistics_block(capture.packets, capture.dropped))
        if sent:  # else a slow client would get the end without them
            sent = self._broker.send_to_inbox(inbox, b"")
        return sent is not False


def _address_of(peer: Peer) -> Address | None:
    return peer.connection.peer_address if isinstance(peer, NativePeer) else None


# -- the operator's side ----------------------------------------------------------------------------------------------


async def capture_packets(
    client: AsyncClient,
    *,
    seconds: int,
    max_bytes: int,
    packet_bytes: int = 65_535,
    filter: str = "",
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a pcapng file with the packets of a broker.

    Raises:
        AccessError: The client may not see the packets of others.
        BrokerError: The filter is invalid, or too many captures are under way.
        ReplyTimeoutError: The end did not come in time.
    """
    inbox = f"{REPLIES}/{os.urandom(16).hex()}"
    async with client.subscribe(inbox) as messages:
        request = Capture(
            request=0, inbox=inbox, seconds=seconds, max_bytes=max_bytes, packet_bytes=packet_bytes, filter=filter
        )
        await client._runtime.request(lambda number: msgspec.structs.replace(request, request=number), Done)
        try:
            async with asyncio.timeout(seconds + GRACE_S):
                async for message in messages:
                    if not message.payload:
                        return
                    yield message.payload
        except TimeoutError:
            raise ReplyTimeoutError(
                f"the broker did not end the capture within {seconds + GRACE_S:g} s; the file has the packets before"
            ) from None


def capture_counts(data: bytes) -> tuple[int, int]:
    """Return how many packets a capture has, and how many it lacks, from its last piece."""
    if len(data) < 8 or struct.unpack_from("<I", data)[0] != 5:
        return 0, 0
    return struct.unpack_from("<Q", data, 24)[0], struct.unpack_from("<Q", data, 36)[0]
