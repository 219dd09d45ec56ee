"""The settings of a client, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from godwit import limits
from godwit.errors import ConfigurationError
from godwit.transport.config import EndpointConfig
from godwit.wire.control import Will

SEND_BUFFER_BYTES: Final = 16 * limits.MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientConfig:
    """The identity and the limits of a client. Every setting has a default.

    Raises ConfigurationError for a value out of its range.
    """

    name: str | None = None
    """The client's name. Without one the broker assigns a name and stores no session."""
    secret: bytes = b""
    """Proves the name to the broker and the broker to the client. It is never sent."""
    session_expiry_s: int = limits.SESSION_EXPIRY_S
    """How long the broker stores this name's subscriptions after the connection has ended."""
    fresh: bool = False
    """Discard the session of an earlier run."""
    will: Will | None = None
    """A message that the broker publishes if the connection ends without being closed by the client."""
    send_buffer_bytes: int = SEND_BUFFER_BYTES
    """Limit for the unconfirmed messages of all publishers together; beyond it `send` raises BufferFullError. Jobs and
    results have a second buffer of the same size."""
    retry_min_s: float = 0.1
    retry_max_s: float = 5.0
    """Bounds of the random pause between two attempts to connect. It grows with each failure."""
    suspect_s: float = 3.0
    """A connection on which nothing was received for this long, although something is unacknowledged, is given up. On
    slow paths it is at least SUSPECT_PROBES times the probe timeout."""
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)

    def __post_init__(self) -> None:
        if self.name is not None:
            _check_name(self.name)
        elif self.secret:
            raise ConfigurationError("a secret proves a name: give a name too, or leave the secret out")
        if len(self.secret) > limits.MAX_SECRET_BYTES:
            raise ConfigurationError(f"secret has {len(self.secret)} bytes: at most {limits.MAX_SECRET_BYTES}")
        if not 0 <= self.session_expiry_s < 2**32:
            raise ConfigurationError(f"session_expiry_s is {self.session_expiry_s}: it lies between 0 and 2**32 - 1")
        if self.send_buffer_bytes < 1:
            raise ConfigurationError(f"send_buffer_bytes is {self.send_buffer_bytes}: it must be at least 1")
        if not 0 < self.retry_min_s <= self.retry_max_s:
            raise ConfigurationError(
                f"retry_min_s is {self.retry_min_s} and retry_max_s {self.retry_max_s}: "
                "the first must be above 0 and not above the second"
            )
        if not self.suspect_s > 0:
            raise ConfigurationError(f"suspect_s is {self.suspect_s}: it must be above 0")
        if self.endpoint.accepts:
            raise ConfigurationError("endpoint.accepts is set: a client accepts no connections, leave it out")


def _check_name(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"the name {name!r} has characters that cannot be written as UTF-8") from None
    if not 1 <= size <= limits.MAX_CLIENT_NAME_BYTES:
        raise ConfigurationError(f"a name has 1 to {limits.MAX_CLIENT_NAME_BYTES} bytes in UTF-8, this one {size}")
