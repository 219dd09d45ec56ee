"""`godwit bench transport`: the reliable transport against bare UDP from Python, between two processes on loopback.

All three move datagrams of 1400 bytes. Raw UDP is sent as fast as possible, with one call per datagram, and with one
call per train (GSO and GRO); the received datagrams are counted. The reliable transport carries batches of 100-byte
messages, with checksum, acknowledgements, credit, rate control and pacing, driven by the shipped event loop; its unique
datagrams are counted. It is measured twice: with a prepared batch, as the raw datagrams are prepared; and with every
batch built from its messages and inspected on arrival, as publisher and broker do.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Final

from godwit.errors import GodwitError, SendBufferFullError
from godwit.net.driver import EndpointDriver
from godwit.net.loop import run as run_loop
from godwit.net.udp import UdpSocket
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, Event, Received, Train, Writable
from godwit.wire.batch import Batch, decode_head, encode_batch
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio
from godwit_bench.sealed import BenchSealer, report_transport

DATAGRAM_BYTES: Final = 1400
MESSAGE_BYTES: Final = 100
TRAIN_DATAGRAMS: Final = 45
GIVE_UP_S: Final = 30.0
"""A receiver without input for this long has lost its sender."""


def run(*, rounds: int, seconds: float, on_round: Callable[[str], None]) -> Report:
    """Measure everything, interleaved, and return the medians."""
    messages: list[float] = []

    def batching() -> float:
        datagrams_per_s, messages_per_s = _between_processes(_receive_made_batches, _send_made_batches, seconds)
        messages.append(messages_per_s)
        return datagrams_per_s

    figures = interleaved(
        {
            "raw UDP, one call a datagram": lambda: _between_processes(_receive_single, _send_single, seconds)[0],
            "raw UDP, GSO and GRO": lambda: _between_processes(_receive_trains, _send_trains, seconds)[0],
            "reliable transport": lambda: _between_processes(_receive_ready_batches, _send_ready_batches, seconds)[0],
            "reliable transport and batching": batching,
        },
        rounds,
        on_round,
    )
    single, trains, ours, with_batching = figures.values()
    unit = f"datagrams/s of {DATAGRAM_BYTES} B"
    results = [Result(name, statistics.median(values), unit) for name, values in figures.items()]
    unit = f"messages/s of {MESSAGE_BYTES} B"
    results.append(Result("messages through transport and batching", statistics.median(messages), unit))
    ratios = [
        Ratio("reliable_vs_raw_single", median_ratio(ours, single), "raw UDP, one call a datagram"),
        Ratio(
            "reliable_and_batching_vs_raw_single", median_ratio(with_batching, single), "raw UDP, one call a datagram"
        ),
        Ratio("reliable_vs_raw_trains", median_ratio(ours, trains), "raw UDP, GSO and GRO"),
    ]
    return Report("transport", machine(), results, ratios)


def run_sealed(*, rounds: int, seconds: float, on_round: Callable[[str], None]) -> Report:
    """Measure the transport with and without sealing, interleaved, and handshakes and memory of connections."""
    measures: dict[str, Callable[[], float]] = {
        "plain": lambda: _between_processes(_receive_ready_batches, _send_ready_batches, seconds)[0],
        "sealed": lambda: _between_processes(_receive_sealed_batches, _send_sealed_batches, seconds)[0],
    }
    return report_transport(measures, f"datagrams/s of {DATAGRAM_BYTES} B", rounds=rounds, on_round=on_round)


# -- two processes ----------------------------------------------------------------------------------------------------


def _between_processes(
    receive: Callable[[Pipe], None], send: Callable[[Address, float], None], seconds: float
) -> tuple[float, float]:
    """Return the datagrams and messages per second that the receiver counted."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    receiver = context.Process(target=receive, args=(there,), daemon=True)
    receiver.start()
    sender = context.Process(target=send, args=(_receive_reply(here), seconds), daemon=True)
    sender.start()
    try:
        datagrams, messages, elapsed_s = _receive_reply(here)
    finally:
        for process in (sender, receiver):
            process.join(timeout=2)
            process.kill()
    return datagrams / elapsed_s, messages / elapsed_s


def _receive_reply(pipe: Pipe) -> tuple[int, ...]:
    if not pipe.poll(GIVE_UP_S):
        raise GodwitError(
            f"a process of the benchmark sent nothing for {GIVE_UP_S:g} s: run it again on a quieter machine"
        )
    answer: tuple[int, ...] = pipe.recv()
    return answer


# -- raw UDP ----------------------------------------------------------------------------------------------------------


def _receive_single(pipe: Pipe) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        udp.bind(("127.0.0.1", 0))
        pipe.send(udp.getsockname())
        buffer = bytearray(2048)
        count = 0
        udp.settimeout(GIVE_UP_S)
        udp.recv_into(buffer)
        began = ended = time.perf_counter()
        udp.settimeout(0.3)
        try:
            while True:
                udp.recvfrom_into(buffer)
                count += 1
                ended = time.perf_counter()
        except TimeoutError:
            pipe.send((count, 0, ended - began))


def _send_single(address: Address, seconds: float) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        datagram = os.urandom(DATAGRAM_BYTES)
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            for _ in range(50):
                udp.sendto(datagram, address)


def _receive_trains(pipe: Pipe) -> None:
    with UdpSocket("127.0.0.1") as udp:
        pipe.send(udp.local_address)
        count = 0
        began = ended = 0.0
        wait_s = GIVE_UP_S
        while select.select([udp], [], [], wait_s)[0]:
            for train in udp.receive_trains():
                count += -(-len(train.data) // train.segment_bytes)
            ended = time.perf_counter()
            began = began or ended
            wait_s = 0.3
        pipe.send((count, 0, ended - began))


def _send_trains(address: Address, seconds: float) -> None:
    with UdpSocket("127.0.0.1") as udp:
        train = Train(address, os.urandom(DATAGRAM_BYTES * TRAIN_DATAGRAMS), DATAGRAM_BYTES)
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            if udp.send(train) is not None:
                select.select([], [udp], [], 1.0)


# -- the reliable transport -------------------------------------------------------------------------------------------


def _open(*, accepts: bool, is_sealed: bool) -> tuple[Endpoint, UdpSocket]:
    udp = UdpSocket("127.0.0.1")
    config = EndpointConfig(
        accepts=accepts, max_datagram_bytes=DATAGRAM_BYTES, receive_buffer_bytes=udp.receive_buffer_bytes
    )
    return Endpoint(config, entropy=os.urandom, sealer=BenchSealer() if is_sealed else None), udp


async def _receive_batches(pipe: Pipe, *, opened: bool, is_sealed: bool = False) -> None:
    """Consume records; with `opened`, read each batch's head and lengths, as a broker does."""
    over = asyncio.get_running_loop().create_future()
    endpoint, udp = _open(accepts=True, is_sealed=is_sealed)
    messages = 0
    began = 0.0

    def on_events(events: list[Event]) -> None:
        nonlocal messages, began
        for event in events:
            if isinstance(event, Received):
                if opened:
                    messages += decode_head(event.body).count
                event.connection.consume(event.channel, len(event.body))
                if event.last:
                    elapsed_s = time.perf_counter() - began
                    over.set_result((event.connection.statistics.packets_received, messages, elapsed_s))
                    event.connection.close(driver.clock(), reason="all is here")
            elif isinstance(event, Connected):
                began = time.perf_counter()

    driver = EndpointDriver(endpoint, udp, on_events)
    pipe.send(udp.local_address)
    pipe.send(await asyncio.wait_for(over, GIVE_UP_S))
    driver.close()


def _receive_ready_batches(pipe: Pipe) -> None:
    run_loop(_receive_batches(pipe, opened=False))


def _receive_sealed_batches(pipe: Pipe) -> None:
    run_loop(_receive_batches(pipe, opened=False, is_sealed=True))


def _receive_made_batches(pipe: Pipe) -> None:
    run_loop(_receive_batches(pipe, opened=True))


async def _send_batches(address: Address, seconds: float, *, ready: bool, is_sealed: bool = False) -> None:
    """Send batches as a busy publisher does: each when it is full, waiting while the buffer is full."""
    endpoint, udp = _open(accepts=False, is_sealed=is_sealed)
    room = asyncio.Event()
    over = asyncio.Event()

    def on_events(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Connected | Writable):
                room.set()
            elif isinstance(event, Closed):
                over.set()

    driver = EndpointDriver(endpoint, udp, on_events)
    connection = endpoint.connect(address, driver.clock())
    driver.flush()
    await asyncio.wait_for(room.wait(), GIVE_UP_S)
    channel = connection.open_channel()
    message = os.urandom(MESSAGE_BYTES)
    ends = time.perf_counter() + seconds
    last = False
    messages: list[bytes] = []
    batch = b""
    while not last:
        last = time.perf_counter() > ends
        count = (connection.train_payload_bytes - 16) // (MESSAGE_BYTES + 4)
        if not ready or count != len(messages):
            messages = [message] * count
            batch = encode_batch(Batch(messages, time.time_ns() // 1000))
        while True:
            try:
                connection.send(channel, batch, last=last)
                break
            except SendBufferFullError:
                room.clear()
                await asyncio.wait_for(room.wait(), GIVE_UP_S)
        driver.flush()
    await asyncio.wait_for(over.wait(), GIVE_UP_S)
    driver.close()


def _send_ready_batches(address: Address, seconds: float) -> None:
    run_loop(_send_batches(address, seconds, ready=True))


def _send_sealed_batches(address: Address, seconds: float) -> None:
    run_loop(_send_batches(address, seconds, ready=True, is_sealed=True))


def _send_made_batches(address: Address, seconds: float) -> None:
    run_loop(_send_batches(address, seconds, ready=False))
