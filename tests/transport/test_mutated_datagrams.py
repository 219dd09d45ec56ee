"""Mutated datagrams of recorded sealed and plain sessions: no exception, no growth, and nothing is delivered.

A soak runs 20 million of them in chunks, each with its own seed; `GODWIT_MUTATIONS` sets another number.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Sequence

import pytest
from tests.transport.sealed import CLIENT, SERVER, RealSealer, SealedWorld
from tests.transport.world import STRANGER, World, send_all

from godwit.transport.config import EndpointConfig
from godwit.transport.events import Closed, ConnectionState, Received, Train
from godwit.wire.packet import HEADER, encode_packet

CHUNK = 20_000
SOAK = int(os.environ.get("GODWIT_MUTATIONS", "20000000"))
GROWTH = 5_000
"""Objects; one connection has some hundreds."""


def mutated(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """A changed copy. Plain packets get a right checksum in half of the cases, so that the change gets further."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        kind = rng.randrange(6)
        place = rng.randrange(len(changed))
        if kind == 0:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[place] = rng.randrange(256)
        elif kind == 2:
            del changed[place + 1 :]
        elif kind == 3:
            changed[place:place] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            changed[place:] = rng.choice(others)[place:] or b"\0"
        else:
            changed[: HEADER.size] = rng.choice(others)[: HEADER.size]
    packet = bytes(changed[:2000])
    if packet[0] == 0x10 and len(packet) > 20 and rng.random() < 0.5:
        return encode_packet(int.from_bytes(packet[1:9], "big"), int.from_bytes(packet[9:13], "big"), packet[13:-4])
    return packet


class Target:
    """A server with one open connection and its recorded datagrams. All that is mutated goes to that server."""

    def __init__(self, *, is_sealed: bool) -> None:
        server = EndpointConfig(accepts=True, needs_admission=True)
        self.is_sealed = is_sealed
        self.world = SealedWorld(sealer=RealSealer(), server=server) if is_sealed else World(server=server)
        self.client, self.server = self.world.connect()
        self.server.admit()
        send_all(self.world, self.client, [bytes([n]) * (200 * n + 1) for n in range(12)])
        self.world.run(1.0)
        self.datagrams = [flying.data for flying in self.world.log if flying.target == SERVER]
        self.records = len(self.world.server.records)

    def run(self, seed: int, count: int) -> None:
        rng = random.Random(seed)
        world, endpoint = self.world, self.world.server.endpoint
        for number in range(count):
            packets = [
                mutated(rng.choice(self.datagrams), self.datagrams, rng) for _ in range(rng.choice((1, 1, 1, 3)))
            ]
            size = max(map(len, packets))
            data = packets[0] if len(packets) == 1 else b"".join(one.ljust(size, b"\0") for one in packets)
            endpoint.receive(Train(rng.choice((CLIENT, STRANGER)), data, size), world.now)
            if number % 50 == 0:
                world.now += 0.01
                endpoint.handle_timers(world.now)
                endpoint.trains(world.now)
                world.server.events += [one for one in endpoint.events() if isinstance(one, Received | Closed)]
        if self.is_sealed:
            assert self.server.state is ConnectionState.OPEN, f"seed {seed}"
            assert len(world.server.records) == self.records, f"seed {seed}: a changed packet was delivered"


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "plain"])
def test_mutated_datagrams_do_no_harm(is_sealed: bool) -> None:
    Target(is_sealed=is_sealed).run(1, 3000)


@pytest.mark.soak
def test_twenty_million_mutated_datagrams() -> None:
    """In chunks: each chunk has a new server, so that a failure needs only its seed, and nothing may remain of it."""
    baseline = 0
    for chunk in range(-(-SOAK // CHUNK)):
        Target(is_sealed=chunk % 2 == 0).run(chunk, min(CHUNK, SOAK))
        gc.collect()
        objects = len(gc.get_objects())
        baseline = objects if chunk < 4 else baseline
        assert objects < baseline + GROWTH, f"chunk {chunk}: {objects:,} objects, {baseline:,} after the first chunks"
