"""The components of one connection, shared by the parts that receive, send and handle timers; and its statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from godwit.limits import BASE_DATAGRAM_BYTES, CONTROL_QUEUE_BYTES, UNADMITTED_BYTES
from godwit.transport.acknowledgement import Acknowledger
from godwit.transport.arq import receive_policy, send_policy
from godwit.transport.config import EndpointConfig
from godwit.transport.congestion import Congestion
from godwit.transport.control_frames import ControlFrames
from godwit.transport.events import Role
from godwit.transport.path import PathMtu
from godwit.transport.protection import PacketProtection
from godwit.transport.receive_channels import ReceiveChannels
from godwit.transport.recovery import Recovery, SentLog
from godwit.transport.send_channels import SendChannels
from godwit.wire.parameters import Parameters


class Components:
    """The components. Some exist from the start, so that records can be queued; the others once the peer is known."""

    __slots__ = (
        "acknowledger", "config", "congestion", "connection_id", "control_frames", "dropped", "entropy", "in_order",
        "key", "mtu", "peer", "peer_id", "peer_role", "protection", "receive_channels", "recovery", "reset_tokens",
        "role", "send_channels",
    )  # fmt: skip

    def __init__(
        self,
        *,
        role: Role,
        connection_id: int,
        config: EndpointConfig,
        discipline: Parameters,
        dropped: Counter[str],
        entropy: Callable[[int], bytes],
    ) -> None:
        self.role: Role = role
        self.peer_role: Role = "server" if role == "client" else "client"
        self.connection_id = connection_id
        self.config = config
        self.dropped = dropped
        """The endpoint's counts of dropped packets, by reason."""
        self.entropy = entropy
        self.send_channels = SendChannels(
            send_policy(discipline), send_buffer_bytes=config.send_buffer_bytes, max_channels=config.max_channels
        )
        self.receive_channels = ReceiveChannels(config, dropped)
        self.in_order = receive_policy(discipline)
        # A sender keeps at most half of the receive buffer in flight: an acknowledgement for a sixteenth of that
        # suffices.
        max_unacknowledged = max(config.receive_buffer_bytes // 32 // BASE_DATAGRAM_BYTES, 2)
        self.acknowledger = Acknowledger(at_once=self.in_order is not None, max_unacknowledged=max_unacknowledged)
        self.control_frames = ControlFrames(self.receive_channels, self.send_channels)
        self.protection: PacketProtection | None = None
        """The keys of a sealed connection, once it is open; None: packets have checksums."""
        self.reset_tokens: ResetTokens | None = None
        """The endpoint's tokens, if this is a client's sealed connection, whose token arrives in a packet."""
        # Set by handle_peer.
        self.peer_id: int
        self.peer: Parameters
        self.key: bytes
        self.recovery: Recovery
        self.mtu: PathMtu
        self.congestion: Congestion

    def handle_peer(self, *, peer_id: int, peer: Parameters, key: bytes, round_trip_s: float | None, now: float) -> str:
        """Store the peer's side of the handshake. Return why queued records exceed its limits, or an empty string."""
        self.peer_id = peer_id
        self.peer = peer
        self.key = key
        self.handle_new_path(now, round_trip_s)
        return self.send_channels.handle_limits(peer)

    def admit(self, is_admitted: bool = True) -> None:
        """Set how much is stored for the peer: little until the application has identified it."""
        self.receive_channels.is_admitted = is_admitted
        self.send_channels.control_queue_bytes = CONTROL_QUEUE_BYTES if is_admitted else UNADMITTED_BYTES

    def release(self) -> None:
        """Drop all records and sent packets, because the connection has ended.

        Channels and their records refer to each other: without this they would stay until the next garbage collection.
        """
        self.send_channels.release()
        self.receive_channels.release()
        if hasattr(self, "recovery"):
            self.recovery.sent = SentLog()
            self.recovery.declared_lost = SentLog()

    def release_keys(self) -> None:
        """Drop the keys. They refer to these components, so both would stay until the next garbage collection."""
        self.protection = None

    def handle_new_path(self, now: float, round_trip_s: float | None) -> None:
        """Start with a new path of which nothing is known. Packets in flight remain in flight."""
        in_flight = SentLog()
        spurious = 0
        if hasattr(self, "recovery"):
            in_flight = self.recovery.sent
            spurious = self.recovery.spurious
            for run in in_flight:
                run.is_mtu_probe = False  # its fate shows nothing about the new path
        self.recovery = Recovery(round_trip_s, now)
        self.recovery.sent = in_flight
        self.recovery.spurious = spurious
        self.mtu = PathMtu(min(self.config.max_datagram_bytes, self.peer.max_datagram_bytes))
        self.congestion = Congestion(
            now=now,
            datagram_bytes=self.mtu.datagram_bytes,
            round_trip_s=round_trip_s,
            peer_buffer_bytes=self.peer.receive_buffer_bytes,
        )
        self.congestion.handle_sent(sum(run.size_bytes for run in in_flight))


class ResetTokens:
    """The tokens by which a client's endpoint recognises the resets of servers."""

    __slots__ = ("_by_token", "_tokens")

    def __init__(self) -> None:
        self._by_token: dict[bytes, int] = {}
        self._tokens: dict[int, bytes] = {}

    def add(self, connection_id: int, token: bytes) -> None:
        """Set the token of a connection."""
        self.remove(connection_id)
        self._by_token[token] = connection_id
        self._tokens[connection_id] = token

    def remove(self, connection_id: int) -> None:
        """Remove the token of a connection, if it has one."""
        token = self._tokens.pop(connection_id, b"")
        if self._by_token.get(token) == connection_id:  # a faulty server may issue the same token twice
            del self._by_token[token]

    def connection_id(self, token: bytes) -> int:
        """Return the connection that a reset with this token ends, or 0."""
        return self._by_token.get(token, 0)


class Statistics(msgspec.Struct, frozen=True):
    """The counters of a connection, and the properties of its path."""

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


class TransportTotals(msgspec.Struct):
    """The counters of many connections together, see Statistics."""

    packets_sent: int = 0
    packets_received: int = 0
    packets_lost: int = 0
    packets_spuriously_lost: int = 0
    bytes_sent: int = 0
    fragments_resent: int = 0
    unreliable_dropped: int = 0
