"""The receiving process of `godwit demo`: takes every message, checks it against the ones before it, and reports."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Final

import msgspec

from godwit.errors import DecodeError
from godwit.net import loop
from godwit.net.drive import EndpointDriver
from godwit.net.udp import UdpSocket
from godwit.sim.rooms import Reading
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Closed, Event, PathChanged, Received
from godwit.wire.batch import decode_batches

REPORT_S: Final = 0.1


class RoomReport(msgspec.Struct, frozen=True):
    """What arrived on one channel."""

    room: str
    received: int
    missing: int
    """Numbers that were skipped and did not come."""
    misplaced: int
    """Repeated, out of order, or of another room."""
    celsius: float
    """The latest."""
    digest: str
    """SHA-256 over all payloads, each with a newline behind it."""
    ended: bool


class Report(msgspec.Struct, frozen=True):
    """What arrived so far, all told."""

    at_s: float = 0.0
    rooms: tuple[RoomReport, ...] = ()
    received_bytes: int = 0
    """Of records: batches with their heads."""
    records: int = 0
    active_s: float = 0.0
    """From the first record to the last."""
    longest_pause_s: float = 0.0
    """Between two records."""
    moves: int = 0
    """How often the sender turned up, and proved itself, at another address."""
    dropped: dict[str, int] = {}
    """Why packets were thrown away, and how many."""
    problem: str = ""

    @property
    def received(self) -> int:
        return sum(room.received for room in self.rooms)


def running_digest(digest: hashlib._Hash, payloads: Sequence[bytes]) -> None:
    """Both sides count this in. It does not depend on how the messages are cut into batches."""
    digest.update(b"\n".join(payloads) + b"\n")


class RoomCheck:
    """Every message of one channel, in the order of arrival, against the only order that is right."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Reading)
        self._digest = hashlib.sha256()
        self._room = ""
        self._expected = 0
        self._received = 0
        self._missing = 0
        self._misplaced = 0
        self._celsius = 0.0
        self.ended = False

    def take(self, payloads: Sequence[bytes]) -> None:
        running_digest(self._digest, payloads)
        decode = self._decoder.decode
        for payload in payloads:
            reading = decode(payload)
            self._received += 1
            self._room = self._room or reading.room
            if reading.number < self._expected or reading.room != self._room or self.ended:
                self._misplaced += 1
                continue
            self._missing += reading.number - self._expected
            self._expected = reading.number + 1
            self._celsius = reading.celsius

    def report(self) -> RoomReport:
        return RoomReport(
            self._room,
            self._received,
            self._missing,
            self._misplaced,
            self._celsius,
            self._digest.hexdigest(),
            self.ended,
        )


class Receiver:
    """The application of the receiving endpoint."""

    def __init__(self) -> None:
        self._checks: dict[int, RoomCheck] = {}
        self._bytes = 0
        self._records = 0
        self._first_at = 0.0
        self._last_at = 0.0
        self._longest_pause_s = 0.0
        self._moves = 0
        self._problem = ""

    def on_events(self, events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, Received):
                self._take(event, now)
                event.connection.consume(event.channel, len(event.body))
            elif isinstance(event, PathChanged):
                self._moves += 1
            elif isinstance(event, Closed) and event.origin != "peer":
                self._problem = f"the receiver's connection ended ({event.origin}): {event.reason}"

    def _take(self, event: Received, now: float) -> None:
        if self._records:
            self._longest_pause_s = max(self._longest_pause_s, now - self._last_at)
        else:
            self._first_at = now
        self._last_at = now
        self._records += 1
        self._bytes += len(event.body)
        check = self._checks.setdefault(event.channel, RoomCheck())
        try:
            for batch in decode_batches(event.body):
                check.take(batch.payloads)
        except (DecodeError, msgspec.DecodeError) as error:
            self._problem = f"record {event.record} of channel {event.channel} cannot be read: {error}"
        check.ended = check.ended or event.last

    def report(self, now: float, dropped: dict[str, int]) -> Report:
        return Report(
            at_s=now,
            rooms=tuple(check.report() for _, check in sorted(self._checks.items())),
            received_bytes=self._bytes,
            records=self._records,
            active_s=self._last_at - self._first_at,
            longest_pause_s=self._longest_pause_s,
            moves=self._moves,
            dropped=dropped,
            problem=self._problem,
        )


def main(pipe: Pipe) -> None:
    """Of the process: tells its address, then how it goes, until nobody listens any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the demo ends this process itself
    loop.run(_serve(pipe))


async def _serve(pipe: Pipe) -> None:
    udp = UdpSocket("127.0.0.1")
    config = EndpointConfig(accepts=True, receive_buffer_bytes=udp.receive_buffer_bytes)
    endpoint = Endpoint(config, entropy=os.urandom)
    receiver = Receiver()
    driver = EndpointDriver(endpoint, udp, lambda events: receiver.on_events(events, time.monotonic()))
    try:
        pipe.send(udp.local_address)
        while True:
            await asyncio.sleep(REPORT_S)
            pipe.send(receiver.report(time.monotonic(), dict(endpoint.dropped)))
    except OSError:
        pass  # the other end of the pipe is closed, or its process is gone
    finally:
        driver.close()
