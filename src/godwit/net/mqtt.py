"""MQTT listeners: TCP, TLS and WebSocket streams in the event loop, joined to godwit.mqtt.protocol."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from godwit.broker.session import network_of
from godwit.errors import AddressError, ConfigurationError, SocketError
from godwit.limits import KIB
from godwit.mqtt.connection import MqttConnection
from godwit.mqtt.protocol import MqttProtocol
from godwit.mqtt.websocket import WebSocketStream
from godwit.net.address import bind_text, format_address, parse_broker
from godwit.server.server import Server
from godwit.transport.events import Address

READ_BYTES: Final = 256 * KIB
HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Of TLS."""
CLOSE_TIMEOUT_S: Final = 5.0
"""How long a closed connection may take to send its last packets."""
BACKLOG: Final = 1024
MAX_UNADMITTED: Final = 8192
MAX_UNADMITTED_PER_HOST: Final = 1024
"""Connections without a login, of all clients and of one host."""
DEFAULT_PORTS: Final = {"mqtt": 1883, "tls": 8883, "ws": 8083, "wss": 8084}
DEFAULT_PATH: Final = "/mqtt"


class MqttAddress(msgspec.Struct, frozen=True):
    """Where to listen."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def has_tls(self) -> bool:
        return self.scheme in ("tls", "wss")

    @property
    def is_websocket(self) -> bool:
        return self.scheme in ("ws", "wss")


def parse_mqtt_address(text: str) -> MqttAddress:
    """Parse `HOST:PORT`, `mqtt://...`, `tls://...`, `ws://HOST:PORT/path` or `wss://...`.

    Raises:
        AddressError: The text is not such an address.
    """
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme, rest = "mqtt", text.strip()
    scheme = {"mqtts": "tls", "tcp": "mqtt", "ssl": "tls"}.get(scheme.lower(), scheme.lower())
    if scheme not in DEFAULT_PORTS:
        raise AddressError(f"{text!r} is not an address for MQTT: its scheme must be mqtt, tls, ws or wss")
    address, slash, path = rest.partition("/")
    if path and scheme in ("mqtt", "tls"):
        raise AddressError(f"{text!r} is not an address for MQTT: only ws and wss have a path")
    host, port = parse_broker(address, default_port=DEFAULT_PORTS[scheme])
    if scheme in ("mqtt", "tls"):
        return MqttAddress(scheme, host, port)
    return MqttAddress(scheme, host, port, f"/{path}" if slash else DEFAULT_PATH)


def make_tls_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return the context of TLS listeners.

    Raises:
        ConfigurationError: Reading a file failed, or it is not a certificate or a key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        load_certificate(context, certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"the certificate of [mqtt] cannot be used ({error}): check certificate, key and client_ca"
        ) from error
    return context


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load a certificate and its key, also into a context that is in use: new connections get the new one."""
    context.load_cert_chain(certificate, key)


def common_name(certificate: dict[str, Any] | None) -> str:
    """Return the common name of a certificate as `ssl` returns it; empty if it has none, or several."""
    subject = (certificate or {}).get("subject", ())
    names = [value for pairs in subject for key, value in pairs if key == "commonName"]
    return str(names[0]) if len(names) == 1 else ""


class MqttStream(asyncio.BufferedProtocol):
    """The stream of one client, see godwit.mqtt.connection.MqttTransport."""

    __slots__ = ("_connection", "_host", "_is_counted", "_listeners", "_transport", "_websocket")

    def __init__(self, listeners: MqttListeners, websocket: WebSocketStream | None) -> None:
        self._listeners = listeners
        self._websocket = websocket
        self._transport: asyncio.Transport | None = None
        self._connection: MqttConnection | None = None
        self._host = ""
        self._is_counted = False

    # -- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)  # uvloop's is not derived from it
        peer = stream.get_extra_info("peername") or ("", 0)
        self._host = network_of(peer[0]) if peer[0] else ""
        if not self._listeners.admits(self._host):
            stream.abort()
            return
        self._is_counted = True
        self._listeners.add(self, self._host)
        handle = stream.get_extra_info("socket")
        if handle is not None and handle.family != getattr(socket, "AF_UNIX", None):
            handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol = self._listeners.protocol
        certified_user = None
        if protocol.settings.user_from_certificate and stream.get_extra_info("ssl_object") is not None:
            certified_user = common_name(stream.get_extra_info("peercert"))
        self._connection = protocol.connect(self, format_address(peer), self._host, certified_user)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listeners.view  # one for all: its bytes are copied before the next read begins

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._listeners.view[:nbytes])
        websocket = self._websocket
        if websocket is not None:
            data = websocket.receive(data)
            if websocket.output and self._transport is not None:
                self._transport.write(b"".join(websocket.output))
                websocket.output.clear()
            if websocket.is_closed:
                self.close()
        if data and self._connection is not None:
            self._connection.receive(data)

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.handle_drained()

    def pause_writing(self) -> None:
        """Nothing to do: the connection asks for `unsent_bytes`."""

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_counted:
            self._listeners.remove(self, self._host)
        if self._connection is not None:
            self._connection.handle_lost("" if exc is None else str(exc))
            self._connection = None

    # -- MqttTransport ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data if self._websocket is None else self._websocket.frame(data))

    def close(self) -> None:
        """Close the stream when everything is sent, or after a while."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.close()
            asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, transport.abort)

    def set_reading(self, is_reading: bool) -> None:
        """Pause reading, or continue."""
        if self._transport is not None and not self._transport.is_closing():
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def unsent_bytes(self) -> int:
        """Return how many bytes wait to be sent."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()


class MqttListeners:
    """All MQTT listeners of a broker."""

    def __init__(
        self, server: Server, protocol: MqttProtocol, schedule_turn: Callable[[], None], max_connections: int
    ) -> None:
        """`schedule_turn`: runs a turn of the server soon."""
        self.protocol = protocol
        self.view = memoryview(bytearray(READ_BYTES))
        self.addresses: list[tuple[MqttAddress, Address]] = []
        """Where it listens, with the actual ports."""
        self.refused = 0
        self._server = server
        self._schedule_turn = schedule_turn
        self._max_connections = max_connections
        self._servers: list[asyncio.Server] = []
        self._streams: dict[MqttStream, None] = {}
        self._hosts: Counter[str] = Counter()
        self._context: ssl.SSLContext | None = None
        protocol.wake = self._wake
        server.add_protocol(protocol)

    def _wake(self) -> None:
        self._server.advance(time.monotonic())
        self._schedule_turn()

    async def start(self, addresses: Sequence[MqttAddress], context: ssl.SSLContext | None) -> None:
        """Open all listeners. After an error none is left open.

        Raises:
            SocketError: The system refused a socket, for example because the port is in use.
        """
        self._context = context
        loop = asyncio.get_running_loop()
        try:
            for address in addresses:
                try:
                    opened = await loop.create_server(
                        self._factory(address),
                        address.host,
                        address.port,
                        ssl=context if address.has_tls else None,
                        ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if address.has_tls else None,
                        backlog=BACKLOG,
                    )
                except OSError as error:
                    text = bind_text((address.host, address.port), error).replace("UDP", "TCP")
                    raise SocketError(text) from error
                self._servers.append(opened)
                self.addresses += [(address, handle.getsockname()) for handle in opened.sockets]
        except BaseException:
            self.close()
            raise

    def _factory(self, address: MqttAddress) -> Callable[[], MqttStream]:
        if not address.is_websocket:
            return lambda: MqttStream(self, None)
        max_bytes = self.protocol.broker.settings.max_message_bytes + 64 * KIB
        return lambda: MqttStream(self, WebSocketStream(address.path, max_bytes))

    def reload_certificate(self, certificate: Path, key: Path) -> None:
        """Use a new certificate for new connections.

        Raises:
            OSError: Reading the files failed, or they do not belong together.
        """
        if self._context is not None:
            load_certificate(self._context, certificate, key)

    @property
    def urls(self) -> list[str]:
        """The addresses as `mqtt://127.0.0.1:1883`."""
        return [f"{where.scheme}://{format_address(address)}{where.path}" for where, address in self.addresses]

    def admits(self, host: str) -> bool:
        """Return whether there is room for another connection from this host."""
        limit = self.protocol.broker.settings.max_clients_per_host
        is_full = len(self._streams) >= self._max_connections or (limit is not None and self._hosts[host] >= limit)
        unadmitted = self.protocol.unadmitted
        if is_full or unadmitted.total() >= MAX_UNADMITTED or unadmitted[host] >= MAX_UNADMITTED_PER_HOST:
            self.refused += 1
            return False
        return True

    def add(self, stream: MqttStream, host: str) -> None:
        """Count a connection."""
        self._streams[stream] = None
        self._hosts[host] += 1

    def remove(self, stream: MqttStream, host: str) -> None:
        """The connection has ended."""
        self._streams.pop(stream, None)
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for opened in self._servers:
            opened.close()
        self._servers.clear()

    def close(self) -> None:
        """Close the listeners and all connections."""
        self.stop_listening()
        for stream in list(self._streams):
            stream.close()
