"""`connect`, and the client that is not connected yet, which it returns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from godwit.client.arguments import check_flag
from godwit.client.batches import to_bytes
from godwit.client.config import SEND_BUFFER_BYTES, ClientConfig
from godwit.errors import BrokerUnreachableError
from godwit.limits import SESSION_EXPIRY_S
from godwit.net.address import Brokers, parse_brokers
from godwit.net.arguments import check_options, checked_will
from godwit.net.loop import TimeLimit
from godwit.net.runtime import BrokerResolver, OnState
from godwit.net.security import Security, securities_of
from godwit.transport.config import EndpointConfig
from godwit.transport.events import Address
from godwit.wire.control import Will

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient


class Connecting:
    """A client that is not connected yet: use it with `async with`, or await it. Made by `connect`."""

    def __init__(
        self, resolver: BrokerResolver, timeout_s: float | None, begin: Callable[[Sequence[Address]], AsyncClient]
    ) -> None:
        """`begin`: returns a client that begins to connect to one of these addresses."""
        self._resolver = resolver
        self._timeout_s = timeout_s
        self._begin = begin
        self._client: AsyncClient | None = None

    def __repr__(self) -> str:
        return f"<Connecting to {self._resolver}: use it with `async with`, or await it>"

    @property
    def is_answered(self) -> bool:
        """Whether a broker answers. It may still wait with the login, for example while the name is in use."""
        return self._client is not None and self._client.is_answered

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncClient:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.__aexit__(kind, error, traceback)

    async def _open(self) -> AsyncClient:
        client: AsyncClient | None = None
        try:
            async with TimeLimit(self._timeout_s):
                addresses = await self._resolver.resolve()
                self._client = client = self._begin(addresses)
                await client._runtime.wait_until_online()
                return client
        except BaseException as error:
            is_answered, reason = False, ""
            if client is not None:
                is_answered, reason = client.is_answered, client.last_reason
                client.abort()
            if isinstance(error, TimeoutError):
                raise _unreachable(str(self._resolver), self._timeout_s, is_answered, reason) from None
            raise


def _unreachable(broker: str, timeout_s: float | None, is_answered: bool, reason: str) -> BrokerUnreachableError:
    """Return the error of a client that could not connect in time. `reason`: why the last attempt failed, if known."""
    if is_answered:
        return BrokerUnreachableError(
            f"the broker at {broker} answers, but has not let this client in within {timeout_s:g} s: another "
            "connection may still hold its name; try again, or wait for longer"
        )
    detail = f" ({reason})" if reason and not reason.startswith("no answer to ") else ""  # that repeats this text
    return BrokerUnreachableError(
        f"no broker answered at {broker} within {timeout_s:g} s{detail}: is it running there, and does the way to it "
        "let UDP pass?"
    )


def connect(
    broker: Brokers = "localhost",
    *,
    name: str | None = None,
    secret: bytes | str = b"",
    will: Will | None = None,
    timeout_s: float | None = None,
    session_expiry_s: int = SESSION_EXPIRY_S,
    fresh: bool = False,
    send_buffer_bytes: int = SEND_BUFFER_BYTES,
    on_state: OnState | None = None,
    endpoint: EndpointConfig | None = None,
    security: Security | None = None,
) -> Connecting:
    """Connect to a broker. Use the result with `async with`, or await it and close the client yourself.

        async with godwit.connect("localhost", name="sensor-1") as client:
            await client.publish("home/room1/temperature", b"21.5")

    Args:
        broker: `host`, `host:port`, `[::1]:port`, `udps://host:port` or `udp://host:port`; the default port is 50000.
            Several with commas between them, or in a list: the client uses one that answers, and another one when that
            is lost. `udps` connections are sealed, `udp` ones are not; without a scheme all are sealed that leave this
            machine. `#sha256:...` behind an address is the fingerprint of the broker's key.
        name: The client's name, by which the broker knows its session. Without one the broker assigns a name, and
            nothing outlives the connection.
        secret: Proves the name, if the broker requires that. A str is encoded as UTF-8. It is never sent.
        will: A message that the broker publishes if the client is lost without closing.
        timeout_s: How long to wait for the broker; None waits forever, so that a client may start before its broker.
        session_expiry_s: How long the broker keeps the session (subscriptions and positions) after the client left.
        fresh: Discard a session that the broker still has under this name.
        send_buffer_bytes: Size of the buffer for messages that are not confirmed yet.
        on_state: Called as `on_state(state, reason)` when the connection is lost, found again or closed.
        endpoint: Settings of the transport.
        security: How connections are sealed and brokers verified.

    Returns:
        An object that returns the client when it is awaited or entered, once the broker has accepted the login.

    Raises:
        AddressError: The broker's address is invalid, or (when awaited) its host name cannot be resolved.
        UsageError: An option is invalid.
        BrokerUnreachableError: When awaited: no broker answered, or none accepted the login, within `timeout_s`.
        BrokerError: When awaited: the broker refused the login, for example AccessError or NameInUseError; or
            SealingError: its key is not the expected one, or it does not seal.
    """
    check_options(name, secret, timeout_s, session_expiry_s, send_buffer_bytes, on_state, endpoint)
    check_flag("fresh", fresh)
    config = ClientConfig(
        name=name,
        secret=to_bytes(secret, "a secret"),
        session_expiry_s=session_expiry_s,
        fresh=fresh,
        will=checked_will(will),
        send_buffer_bytes=send_buffer_bytes,
        endpoint=endpoint or EndpointConfig(),
    )
    from godwit.net.client import AsyncClient  # it imports this module

    resolver = BrokerResolver(parse_brokers(broker))
    securities = securities_of(broker, security)
    return Connecting(
        resolver,
        timeout_s,
        lambda addresses: AsyncClient(config, addresses, on_state=on_state, resolver=resolver, securities=securities),
    )
