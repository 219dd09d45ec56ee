"""A record being put together, and its channel."""

from __future__ import annotations

import sys

from godwit.limits import ASSEMBLY_COST_BYTES, PIECE_BYTES, RECORD_COST_BYTES
from godwit.transport.receive_channels import COMPACT_PIECES, Assembly, IncomingChannel
from godwit.wire.packet import DATA, DATA_HEADER


def test_many_small_fragments_are_joined() -> None:
    assembly = Assembly(IncomingChannel(3, 1000, 2000), 7)
    assert assembly.frame_head == DATA_HEADER.pack(DATA, 3, 7)
    for _ in range(10 * COMPACT_PIECES):
        assembly.run.append(b"x")
        assembly.compact()
    assert len(assembly.run) < 2 * COMPACT_PIECES
    assert b"".join(assembly.run) == b"x" * 10 * COMPACT_PIECES


def test_long_fragments_are_left_alone() -> None:
    assembly = Assembly(IncomingChannel(1, 1000, 2000), 0)
    for _ in range(2 * COMPACT_PIECES):
        assembly.run.append(bytes(PIECE_BYTES))
        assembly.compact()
    assert len(assembly.run) == 2 * COMPACT_PIECES


def test_a_channel_may_hold_its_window_and_one_longest_record() -> None:
    channel = IncomingChannel(1, 1000, 5000)
    assert channel.max_held_bytes == 1000 + 5000 + RECORD_COST_BYTES


def test_an_empty_record_costs_what_is_counted_for_it() -> None:
    channel = IncomingChannel(1, 1000, 5000)
    before = sys.getsizeof(channel.held)
    count = 10_000
    for number in range(count):
        assembly = channel.held[number] = Assembly(channel, 1_000_000 + number)
        assembly.run.append(b"")
    one = channel.held[0]
    real = sum(map(sys.getsizeof, (one, one.run, one.apart, one.frame_head, one.number, 1_000)))
    real += (sys.getsizeof(channel.held) - before) // count
    real += 3 * 16  # what the garbage collector keeps of each of the three containers
    assert 0.6 * (RECORD_COST_BYTES + ASSEMBLY_COST_BYTES) < real <= RECORD_COST_BYTES + ASSEMBLY_COST_BYTES
