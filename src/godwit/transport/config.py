"""The configuration of an endpoint, validated on construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from godwit import limits
from godwit.errors import ConfigurationError
from godwit.wire.parameters import Arq, Parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointConfig:
    """The limits and options of one endpoint. The defaults are in godwit.limits.

    Raises ConfigurationError if a value is out of range.
    """

    accepts: bool = False
    """Whether the endpoint accepts connections (a server)."""
    arq: Arq = "selective-repeat"
    """The retransmission scheme for both directions. The client's choice is used."""
    arq_window: int = limits.GO_BACK_N_WINDOW
    """The number of fragments in flight with go-back-n."""
    max_datagram_bytes: int = limits.MAX_DATAGRAM_BYTES
    receive_buffer_bytes: int = limits.RECEIVE_BUFFER_BYTES
    """The receive buffer that the kernel granted to the socket: the peer limits its bursts to a share of it."""
    channel_window_bytes: int = limits.CHANNEL_WINDOW_BYTES
    connection_window_bytes: int = limits.CONNECTION_WINDOW_BYTES
    max_record_bytes: int = limits.MAX_RECORD_BYTES
    max_channels: int = limits.MAX_CHANNELS
    max_connections: int = limits.MAX_CONNECTIONS
    max_connections_per_host: int | None = None
    """The limit on accepted connections from one host; None: max_connections alone limits them."""
    needs_admission: bool = False
    """Whether the application must admit each accepted connection with Connection.admit. Until then only channel 0 is
    open, little is buffered for it, and it may be closed to make room for a new connection."""
    send_buffer_bytes: int = limits.SEND_BUFFER_BYTES
    idle_timeout_s: float = limits.IDLE_TIMEOUT_S
    keep_alive_s: float = limits.KEEP_ALIVE_S
    reset_key: bytes = b""
    """At least 16 bytes. A server that keeps the key across restarts can prove its resets; empty: a new random key."""

    def __post_init__(self) -> None:
        low = limits.BASE_DATAGRAM_BYTES
        _check("arq", self.arq in get_args(Arq), f"is {self.arq!r}: choose one of {', '.join(get_args(Arq))}")
        _within("arq_window", self.arq_window, 1, limits.MAX_ARQ_WINDOW)
        _within("max_datagram_bytes", self.max_datagram_bytes, low, limits.MAX_TRAIN_BYTES)
        _within("receive_buffer_bytes", self.receive_buffer_bytes, 2 * low, 2**53)
        _within("channel_window_bytes", self.channel_window_bytes, low, self.connection_window_bytes)
        _within("connection_window_bytes", self.connection_window_bytes, low, 2**40)
        _within("max_record_bytes", self.max_record_bytes, low, limits.LARGEST_RECORD_BYTES)
        _within("max_channels", self.max_channels, 1, 2**31)
        _within("max_connections", self.max_connections, 1, 2**31)
        if self.max_connections_per_host is not None:
            _within("max_connections_per_host", self.max_connections_per_host, 1, 2**31)
        _within("send_buffer_bytes", self.send_buffer_bytes, low, 2**40)
        _within("idle_timeout_s", self.idle_timeout_s, 0.001, 2**32)
        _within("keep_alive_s", self.keep_alive_s, 0.001, 2**32)
        _check("reset_key", not 0 < len(self.reset_key) < 16, "is shorter than 16 bytes: make it with os.urandom(32)")

    def parameters(self, application: bytes) -> Parameters:
        """Return the parameters to send to the peer in the handshake.

        Raises ConfigurationError if `application` is too long.
        """
        if len(application) > limits.MAX_HANDSHAKE_APPLICATION_BYTES:
            raise ConfigurationError(
                f"application is {len(application)} bytes long: "
                f"the handshake holds at most {limits.MAX_HANDSHAKE_APPLICATION_BYTES}"
            )
        return Parameters(
            arq=self.arq,
            arq_window=1 if self.arq == "stop-and-wait" else self.arq_window,
            max_datagram_bytes=self.max_datagram_bytes,
            receive_buffer_bytes=self.receive_buffer_bytes,
            channel_window_bytes=self.channel_window_bytes,
            connection_window_bytes=self.connection_window_bytes,
            max_record_bytes=self.max_record_bytes,
            max_channels=self.max_channels,
            idle_timeout_ms=max(1, int(self.idle_timeout_s * 1000)),
            application=application,
        )


def _check(name: str, holds: bool, otherwise: str) -> None:
    if not holds:
        raise ConfigurationError(f"{name} {otherwise}")


def _within(name: str, value: float, low: float, high: float) -> None:
    _check(name, low <= value <= high, f"is {value}: it must lie between {low} and {high}")
