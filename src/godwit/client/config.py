"""The settings of a client, checked when they are made, and the login that they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from godwit import limits
from godwit.errors import ConfigurationError
from godwit.transport.config import EndpointConfig
from godwit.wire.control import Login, Welcome, Will, is_proof, make_proof

SEND_BUFFER_BYTES: Final = 16 * limits.MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientConfig:
    """The identity and the limits of a client. Every setting has a default.

    Raises ConfigurationError for a value out of its range.
    """

    name: str | None = None
    """The client's name. Without one the broker assigns a name and stores no session."""
    secret: bytes = field(default=b"", repr=False)
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
    """When nothing was received for this long, although something is unacknowledged, the other addresses are tried
    beside the connection. Without another one it is given up, on slow paths no sooner than after SUSPECT_PROBES times
    the probe timeout."""
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


def make_login(config: ClientConfig, request: int, instance: bytes, binding: bytes, *, is_first: bool) -> Login:
    """Return the login for a connection with this binding. Only the first login of a run may discard the session."""
    name = config.name
    return Login(
        request=request,
        name=name,
        instance=instance,
        proof=make_proof(config.secret, "client", binding, name) if config.secret and name is not None else b"",
        session_expiry_s=config.session_expiry_s,
        fresh=config.fresh and is_first,
        will=config.will,
    )


def welcome_problem(welcome: Welcome, config: ClientConfig, binding: bytes) -> str:
    """Return why the broker is not trusted: it did not prove that it knows the client's secret. Empty if it did."""
    if not config.secret or config.name is None:
        return ""
    if is_proof(welcome.proof, config.secret, "server", binding, config.name):
        return ""
    return (
        f"the broker did not prove that it knows the secret of {config.name!r}: "
        "it is not the one you meant, or it has another secret for this name"
    )
