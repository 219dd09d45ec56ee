"""A connection of the native protocol, as the core knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from godwit.broker.effects import Effect
from godwit.broker.ports import Credentials, PathStatus, Peer
from godwit.broker.quotas import Bucket
from godwit.broker.session import network_of
from godwit.limits import MAX_CHANNELS, REQUESTS_PER_S
from godwit.native.effects import AdmitConnection, CloseConnection, SendRecord
from godwit.transport.connection import Connection
from godwit.wire.control import ControlMessage, Ping, encode_control, is_proof
from godwit.wire.control_base import Code

if TYPE_CHECKING:
    from godwit.native.publish_channel import PublishChannel
    from godwit.native.relay_channel import RelayChannel
    from godwit.native.subscriber_channel import NativeOutbound
    from godwit.native.work_channel import JobPeer

NAME_PING: Final = 0xFFFFFFFF
"""The request number of the broker's own ping."""
REQUEST_BURST_S: Final = 4
BYTES_PER_REQUEST: Final = 256
"""This number of bytes of a long control message costs as much as a request."""
MAX_PENDING_REPLIES: Final = 4 * REQUESTS_PER_S
"""Replies to one client that wait for the log: a disk may be slow."""


class FloodError(Exception):
    """Too many requests: the connection is to be closed."""


class NativeCredentials(Credentials, kw_only=True):
    """A login whose proof is an HMAC over the connection's binding, see godwit.wire.control."""

    proof: bytes
    connection: Connection

    def proves(self, secret: bytes) -> bool:
        return is_proof(self.proof, secret, "client", self.connection.binding, self.name or "")

    def is_certified(self, name: str, fingerprint: str) -> bool:
        certificate = self.connection.peer_certificate
        if certificate is None:
            return False
        return certificate.fingerprint == fingerprint if fingerprint else name in certificate.names


class NativePeer(Peer):
    """One connection of the transport, with its channels in both directions."""

    __slots__ = (
        "_effects", "_next_channel", "_opens", "_requests", "channels", "connection", "job_peer", "outbounds",
        "publish_channels", "unconfirmed_bytes", "window_bytes",
    )  # fmt: skip

    def __init__(self, connection: Connection, window_bytes: int, effects: list[Effect]) -> None:
        super().__init__(address_of(connection), network_of(connection.peer_address[0]))
        self.connection = connection
        self._effects = effects
        self.publish_channels: dict[int, PublishChannel | RelayChannel] = {}
        """By the client's channels."""
        self.outbounds: dict[int, NativeOutbound] = {}
        """By the numbers that the client gave its subscriptions, also while their start is looked up."""
        self.channels: dict[int, NativeOutbound] = {}
        """By the channels towards the client: each subscription has two."""
        self.job_peer: JobPeer | None = None
        """Its part in jobs, from its first request or work channel on."""
        self.window_bytes = window_bytes
        self.unconfirmed_bytes = 0
        """Sent or about to be sent, and not confirmed by the client's application."""
        self._requests: Bucket | None = None
        self._opens: Bucket | None = None
        self._next_channel = 1

    # -- ports --------------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        self._effects.append(AdmitConnection(self.connection))

    def close(self, code: Code, text: str) -> None:
        self._effects.append(CloseConnection(self.connection, code, text))

    def has_room(self) -> bool:
        return self.unconfirmed_bytes < self.window_bytes

    def path(self) -> PathStatus:
        figures = self.connection.statistics
        return PathStatus(
            protocol="native",
            arq=self.connection.arq,
            round_trip_us=round(figures.round_trip_s * 1e6),
            window_bytes=figures.window_bytes,
            packets_sent=figures.packets_sent,
            packets_received=figures.packets_received,
            packets_lost=figures.packets_lost,
            fragments_resent=figures.fragments_resent,
            bytes_sent=figures.bytes_sent,
        )

    def ping(self) -> None:
        self.send(Ping(request=NAME_PING))

    # -- the protocol's own -------------------------------------------------------------------------------------------

    def send(self, message: ControlMessage) -> None:
        """Send a control message on channel 0."""
        self._effects.append(SendRecord(self.connection, 0, encode_control(message)))

    def take_channel(self) -> int:
        """Return the number of the next channel that is opened towards the client."""
        channel = self._next_channel
        self._next_channel += 1
        return channel

    def require_request_rate(self, cost: int, now_us: int) -> None:
        """Raise FloodError if this request is one too many."""
        if self._requests is None:
            self._requests = Bucket(REQUESTS_PER_S, REQUESTS_PER_S * REQUEST_BURST_S, now_us)
        if not self._requests.take(cost, now_us):
            raise FloodError(f"more than {REQUESTS_PER_S} requests a second, {BYTES_PER_REQUEST} bytes counted as one")
        if self.pending_replies > MAX_PENDING_REPLIES:
            raise FloodError(f"more than {MAX_PENDING_REPLIES} requests wait for the broker's disk")

    def require_open_rate(self, now_us: int) -> None:
        """Raise FloodError if the client opens one channel too many: all that it may have can be opened at once."""
        if self._opens is None:
            self._opens = Bucket(REQUESTS_PER_S, MAX_CHANNELS, now_us)
        if not self._opens.take(1, now_us):
            raise FloodError(f"more than {REQUESTS_PER_S} channels opened a second")

    def forget(self) -> None:
        """The connection has ended: drop all channels, so that nothing refers to it any more."""
        for channel in list(self.publish_channels.values()):
            channel.forget()
        self.publish_channels.clear()
        self.outbounds.clear()
        self.channels.clear()


def address_of(connection: Connection) -> str:
    """Return the address of the client for people."""
    host, port, *_ = connection.peer_address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
