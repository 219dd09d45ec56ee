"""The parts of one connection: each does one thing; the connection joins them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from godwit.limits import BASE_DATAGRAM_BYTES, CONTROL_QUEUE_BYTES, UNADMITTED_BYTES
from godwit.transport.acknowledge import Acknowledger
from godwit.transport.announce import Announcements
from godwit.transport.arq import receive_policy, send_policy
from godwit.transport.config import EndpointConfig
from godwit.transport.congestion import Congestion
from godwit.transport.handshake import Role
from godwit.transport.mtu import PathMtu
from godwit.transport.receive import ReceiveHalf
from godwit.transport.recovery import Recovery
from godwit.transport.send import SendHalf
from godwit.transport.sent import SentLog
from godwit.wire.parameters import Parameters


class Parts:
    """Some exist from the start, so that the application can queue records; the others once the peer is known."""

    __slots__ = (
        "acknowledger", "announcements", "config", "congestion", "connection_id", "dropped", "entropy", "in_order",
        "key", "mtu", "peer", "peer_id", "peer_role", "receiving", "recovery", "role", "sending",
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
        """Why packets were dropped: the endpoint's count."""
        self.entropy = entropy
        self.sending = SendHalf(
            send_policy(discipline), send_buffer_bytes=config.send_buffer_bytes, max_channels=config.max_channels
        )
        self.receiving = ReceiveHalf(config, dropped)
        self.in_order = receive_policy(discipline)
        # A sender keeps at most half of the receive buffer under way: a sixteenth of that is soon enough for an answer.
        most_waiting = max(config.receive_buffer_bytes // 32 // BASE_DATAGRAM_BYTES, 2)
        self.acknowledger = Acknowledger(at_once=self.in_order is not None, most_waiting=most_waiting)
        self.announcements = Announcements(self.receiving, self.sending)
        # Once the peer is known:
        self.peer_id: int
        self.peer: Parameters
        self.key: bytes
        self.recovery: Recovery
        self.mtu: PathMtu
        self.congestion: Congestion

    def on_peer(self, *, peer_id: int, peer: Parameters, key: bytes, round_trip_s: float | None, now: float) -> str:
        """The handshake is done. Gives what is queued already and too much for the peer, in words, or nothing."""
        self.peer_id = peer_id
        self.peer = peer
        self.key = key
        self.on_new_path(now, round_trip_s)
        return self.sending.on_limits(peer)

    def admit(self, is_admitted: bool = True) -> None:
        """Bound what the peer may have stored here: little until the application knows who it is."""
        self.receiving.is_admitted = is_admitted
        self.sending.control_queue_bytes = CONTROL_QUEUE_BYTES if is_admitted else UNADMITTED_BYTES

    def release(self) -> None:
        """Drop all records and sent packets, because the connection has ended.

        Channels and their records refer to each other: without this they would wait for the garbage collector.
        """
        self.sending.release()
        self.receiving.release()
        if hasattr(self, "recovery"):
            self.recovery.sent = SentLog()
            self.recovery.given_up = SentLog()

    def on_new_path(self, now: float, round_trip_s: float | None) -> None:
        """Nothing is known of the path, or nothing any more; packets under way stay under way."""
        under_way = SentLog()
        spurious = 0
        if hasattr(self, "recovery"):
            under_way = self.recovery.sent
            spurious = self.recovery.spurious
            for run in under_way:
                run.is_mtu_probe = False  # what becomes of it says nothing about the new path
        self.recovery = Recovery(round_trip_s, now)
        self.recovery.sent = under_way
        self.recovery.spurious = spurious
        self.mtu = PathMtu(min(self.config.max_datagram_bytes, self.peer.max_datagram_bytes))
        self.congestion = Congestion(
            now=now,
            datagram_bytes=self.mtu.datagram_bytes,
            round_trip_s=round_trip_s,
            peer_buffer_bytes=self.peer.receive_buffer_bytes,
        )
        self.congestion.on_sent(sum(run.size_bytes for run in under_way))
