"""Figures of one connection."""

from __future__ import annotations

import msgspec

from godwit.transport.inbound import Inbound
from godwit.transport.parts import Parts
from godwit.transport.transmit import Transmitter


class Statistics(msgspec.Struct, frozen=True):
    """What happened on a connection so far, and what it knows of its path."""

    packets_sent: int = 0
    packets_received: int = 0
    packets_lost: int = 0
    packets_spuriously_lost: int = 0
    bytes_sent: int = 0
    fragments_resent: int = 0
    unreliable_dropped: int = 0
    round_trip_s: float = 0.0
    shortest_trip_s: float = 0.0
    bandwidth_bytes_per_s: float = 0.0
    window_bytes: int = 0
    in_flight_bytes: int = 0
    datagram_bytes: int = 0


def gather(parts: Parts, transmitter: Transmitter, inbound: Inbound) -> Statistics:
    """The figures of a connection that is, or was, open."""
    return Statistics(
        packets_sent=transmitter.packets_sent,
        packets_received=parts.acknowledger.packets,
        packets_lost=inbound.packets_lost,
        packets_spuriously_lost=parts.recovery.spurious,
        bytes_sent=transmitter.bytes_sent,
        fragments_resent=transmitter.fragments_resent,
        unreliable_dropped=parts.sending.unreliable_dropped,
        round_trip_s=parts.recovery.round_trip.smoothed_s,
        shortest_trip_s=parts.congestion.shortest_trip_s,
        bandwidth_bytes_per_s=parts.congestion.bandwidth_bytes_per_s,
        window_bytes=parts.congestion.window_bytes,
        in_flight_bytes=parts.congestion.in_flight_bytes,
        datagram_bytes=transmitter.datagram_bytes(),
    )
