"""MQTT listeners: TCP, TLS and WebSocket streams in the event loop, joined to godwit.mqtt.protocol."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from godwit.broker.session import network_of
from godwit.errors import AddressError, ConfigurationError, SocketError
from godwit.limits import KIB
from godwit.mqtt.connection import MqttConnection, MqttTransport
from godwit.mqtt.protocol import MqttProtocol
from godwit.mqtt.websocket import WebSocketStream
from godwit.net.address import bind_text, format_address, parse_broker
from godwit.net.listener_tls import load_certificate
from godwit.server.server import Server
from godwit.transport.events import Address

READ_BYTES: Final = 256 * KIB
HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Of TLS."""
CLOSE_TIMEOUT_S: Final = 5.0
"""How long a closed connection may take to send its last packets."""
MAX_PONG_BYTES: Final = 64 * KIB
"""A WebSocket client with more unread bytes gets no reply to its pings."""
BACKLOG: Final = 1024
ACCEPT_PAUSE_S: Final = 1.0
"""How long no connection is accepted when the system has no more files."""
MAX_UNADMITTED: Final = 8192
MAX_UNADMITTED_PER_HOST: Final = 1024
"""Connections without a login, of all clients and of one host. For another one, the oldest of them is closed."""
OTHER_FILES: Final = 256
"""Open files that the broker needs beside connections."""
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


def common_name(certificate: dict[str, Any] | None) -> str:
    """Return the common name of a certificate as `ssl` returns it; empty if it has none, or several."""
    subject = (certificate or {}).get("subject", ())
    names = [value for pairs in subject for key, value in pairs if key == "commonName"]
    return str(names[0]) if len(names) == 1 else ""


class MqttStream(asyncio.BufferedProtocol):
    """The stream of one client, see godwit.mqtt.connection.MqttTransport."""

    __slots__ = (
        "_closing", "_connection", "_is_given_up", "_is_paused", "_is_securing", "_listeners", "_opening", "_transport",
        "_websocket", "host",
    )  # fmt: skip

    def __init__(self, listeners: MqttListeners, websocket: WebSocketStream | None, host: str) -> None:
        self.host = host
        """The network of the client, see `network_of`."""
        self._listeners = listeners
        self._websocket = websocket
        self._transport: asyncio.Transport | None = None
        self._connection: MqttConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        """Joins it to its socket, with the handshake of TLS, while that lasts."""
        self._is_securing = False
        """Whether the handshake of TLS is under way."""
        self._is_given_up = False
        """Whether it was ended before it was joined to its socket."""
        self._is_paused = False
        """Whether the stream has more to send than the system accepts, see `unsent_bytes`."""
        self._closing: asyncio.TimerHandle | None = None

    def begin(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        """Serve a client that counts as a connection already, after the handshake if there is a context of TLS."""
        self._opening = asyncio.get_running_loop().create_task(self._open(accepted, context))
        self._opening.add_done_callback(partial(self._end_opening, accepted))

    async def _open(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        if self._is_given_up:
            return
        self._is_securing = context is not None
        timeout_s = None if context is None else HANDSHAKE_TIMEOUT_S
        with suppress(OSError):  # also ssl.SSLError, and a timeout
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self, accepted, ssl=context, ssl_handshake_timeout=timeout_s
            )

    def _end_opening(self, accepted: socket.socket, _: asyncio.Task[None]) -> None:
        self._opening, self._is_securing = None, False
        if self._transport is None:
            accepted.close()
            self._listeners.remove(self)

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self._give_up()

    def _give_up(self) -> None:
        """End it before it is joined to its socket. Without TLS that takes one turn, which uvloop must finish."""
        self._is_given_up = True
        if self._is_securing and self._opening is not None:
            self._opening.cancel()

    # -- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)  # uvloop's is not derived from it
        if self._is_given_up:
            stream.abort()
            return
        peer = stream.get_extra_info("peername") or ("", 0)
        handle = stream.get_extra_info("socket")
        if handle is not None and handle.family != getattr(socket, "AF_UNIX", None):
            handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        protocol = self._listeners.protocol
        certified_user = None
        if protocol.settings.user_from_certificate and stream.get_extra_info("ssl_object") is not None:
            certified_user = common_name(stream.get_extra_info("peercert"))
        self._connection = protocol.connect(self, format_address(peer), self.host, certified_user)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listeners.view  # one for all: its bytes are copied before the next read begins

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._listeners.view[:nbytes])
        websocket = self._websocket
        if websocket is not None:
            data = websocket.receive(data)
            if websocket.output and self._transport is not None:
                if websocket.is_closed or self._transport.get_write_buffer_size() <= MAX_PONG_BYTES:
                    self._transport.write(b"".join(websocket.output))
                websocket.output.clear()
            if websocket.is_closed:
                self.close()
        if data and self._connection is not None:
            self._connection.receive(data)

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._connection is not None:
            self._connection.handle_drained()

    def pause_writing(self) -> None:
        self._is_paused = True

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._listeners.remove(self)
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        if self._connection is not None:
            self._connection.handle_lost("" if exc is None else str(exc))
            self._connection = None

    # -- MqttTransport ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        if self._transport is not None and self._closing is None and not self._transport.is_closing():
            self._transport.write(data if self._websocket is None else self._websocket.frame(data))

    def close(self) -> None:
        """Close the stream when everything is sent, or after a while.

        Without TLS the client is read until it has closed its side: a socket that is closed with unread bytes is reset,
        and the client may lose the last packet, which has the reason.
        """
        transport = self._transport
        if transport is None or self._closing is not None or transport.is_closing():
            return
        self._closing = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, transport.abort)
        try:
            if transport.can_write_eof():
                transport.resume_reading()
                transport.write_eof()
            else:
                transport.close()
        except OSError:  # the client has closed it
            transport.close()

    def close_now(self) -> None:
        """Close the stream when everything is sent; nothing is read any more."""
        if self._transport is not None:
            self._transport.close()
        else:
            self._give_up()

    def set_reading(self, is_reading: bool) -> None:
        """Pause reading, or continue."""
        if self._transport is not None and self._closing is None and not self._transport.is_closing():
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def unsent_bytes(self) -> int:
        """Return how many bytes wait to be sent."""
        if not self._is_paused or self._transport is None:  # then only a few kilobytes wait
            return 0
        return self._transport.get_write_buffer_size()


class StreamListener:
    """One listening socket.

    The event loop's own listener calls a protocol after the handshake of TLS: clients that never end it would not be
    counted. And asyncio's forgets a connection that it has accepted just before it is closed, and leaves it open.
    """

    def __init__(self, listeners: MqttListeners, handle: socket.socket, address: MqttAddress) -> None:
        self.handle = handle
        self._listeners = listeners
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self.handle.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                accepted, peer = self.handle.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no more files: other connections have to end first
                self._loop.remove_reader(self.handle.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._begin)
                return
            accepted.setblocking(False)
            stream = self._listeners.make_stream(self._address, peer[0])
            if self._listeners.add(stream):
                stream.begin(accepted, self._listeners.context if self._address.has_tls else None)
            else:
                accepted.close()

    def close(self) -> None:
        """Accept no more connections."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self.handle.fileno())
            self.handle.close()


def open_listener(address: Address, family: int) -> socket.socket:
    """Return a socket that listens on a resolved address. Raises OSError."""
    handle = socket.socket(family, socket.SOCK_STREAM)
    try:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            handle.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        handle.setblocking(False)
        handle.bind(address)
        handle.listen(BACKLOG)
    except BaseException:
        handle.close()
        raise
    return handle


def allow_connections(wanted: int) -> int:
    """Raise the limit of open files if that is possible. Return how many connections it allows, at most `wanted`."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return wanted if soft == resource.RLIM_INFINITY else max(min(wanted, soft - OTHER_FILES), 1)


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
        self.max_connections = allow_connections(max_connections)
        self._listeners: list[StreamListener] = []
        self._streams: dict[MqttStream, None] = {}
        self._hosts: Counter[str] = Counter()
        self._unadmitted: dict[MqttStream, None] = {}
        """Connections without a login, the oldest first."""
        self._unadmitted_by_host: dict[str, dict[MqttStream, None]] = {}
        self.context: ssl.SSLContext | None = None
        """Of new TLS connections."""
        protocol.wake = self._wake
        protocol.note_admitted = self._note_admitted
        server.add_protocol(protocol)

    def _wake(self) -> None:
        self._server.advance(time.monotonic())
        self._schedule_turn()

    async def start(self, addresses: Sequence[MqttAddress], context: ssl.SSLContext | None) -> None:
        """Open all listeners. After an error none is left open.

        Raises:
            ConfigurationError: An address has TLS, and the context is missing.
            SocketError: The system refused a socket, for example because the port is in use.
        """
        if context is None and any(address.has_tls for address in addresses):
            raise ConfigurationError("an address for MQTT has TLS: give a certificate and its key, too")
        self.context = context
        try:
            for address in addresses:
                try:
                    await self._open(address)
                except OSError as error:
                    text = bind_text((address.host, address.port), error).replace("UDP", "TCP")
                    raise SocketError(text) from error
        except BaseException:
            self.close()
            raise

    async def _open(self, address: MqttAddress) -> None:
        """Open the sockets of one address. Raises OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=getattr(socket, "AI_PASSIVE", 0)
        )
        for family, where in dict.fromkeys((one[0], one[4]) for one in found):
            listener = StreamListener(self, open_listener(where, family), address)
            self._listeners.append(listener)
            self.addresses.append((address, listener.handle.getsockname()))

    def make_stream(self, address: MqttAddress, peer: str) -> MqttStream:
        """Return the stream of a new client of this listener, from an IP address."""
        host = network_of(peer) if peer else ""
        if not address.is_websocket:
            return MqttStream(self, None, host)
        max_bytes = self.protocol.broker.settings.max_message_bytes + 64 * KIB
        return MqttStream(self, WebSocketStream(address.path, max_bytes, self.protocol.settings.origins), host)

    def reload_certificate(self, certificate: Path, key: Path) -> None:
        """Use a new certificate for new connections.

        Raises:
            OSError: Reading the files failed, or they do not belong together; then the former one remains.
        """
        if self.context is not None:
            load_certificate(self.context, certificate, key)

    @property
    def urls(self) -> list[str]:
        """The addresses as `mqtt://127.0.0.1:1883`."""
        return [f"{where.scheme}://{format_address(address)}{where.path}" for where, address in self.addresses]

    @property
    def connections(self) -> int:
        """How many connections there are, with and without a login."""
        return len(self._streams)

    @property
    def unadmitted(self) -> int:
        """How many connections have no login."""
        return len(self._unadmitted)

    def add(self, stream: MqttStream) -> bool:
        """Count a connection. Return False if all places are taken.

        Connections without a login give way to a new one, the oldest first: clients log in at once, and connections
        that remain silent must not keep them out.
        """
        host = stream.host
        limit = self.protocol.broker.settings.max_clients_per_host
        of_host = self._unadmitted_by_host.get(host)
        if of_host and (len(of_host) >= MAX_UNADMITTED_PER_HOST or (limit is not None and self._hosts[host] >= limit)):
            self._evict(next(iter(of_host)))
        if self._unadmitted and (len(self._unadmitted) >= MAX_UNADMITTED or len(self._streams) >= self.max_connections):
            self._evict(next(iter(self._unadmitted)))
        if len(self._streams) >= self.max_connections or (limit is not None and self._hosts[host] >= limit):
            self.refused += 1
            return False
        self._streams[stream] = None
        self._hosts[host] += 1
        self._unadmitted[stream] = None
        self._unadmitted_by_host.setdefault(host, {})[stream] = None
        return True

    def _evict(self, stream: MqttStream) -> None:
        """Close a connection without a login."""
        self.refused += 1
        self.remove(stream)
        stream.abort()

    def _note_admitted(self, transport: MqttTransport) -> None:
        """The client of this stream has a login."""
        assert isinstance(transport, MqttStream)
        self._unlist(transport)

    def _unlist(self, stream: MqttStream) -> None:
        if stream in self._unadmitted:
            del self._unadmitted[stream]
            host = stream.host
            of_host = self._unadmitted_by_host[host]
            del of_host[stream]
            if not of_host:
                del self._unadmitted_by_host[host]

    def remove(self, stream: MqttStream) -> None:
        """The connection has ended, or was never counted."""
        if stream in self._streams:
            self._unlist(stream)
            del self._streams[stream]
            host = stream.host
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def close(self) -> None:
        """Close the listeners and all connections."""
        self.stop_listening()
        for stream in list(self._streams):
            stream.close_now()
