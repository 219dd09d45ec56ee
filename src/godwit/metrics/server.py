"""The metrics endpoint: HTTP in a thread of its own, so that its clients cannot delay the process that it reports on.

    GET /metrics    the metrics, for Prometheus
    GET /healthz    200 if the process reacts
    GET /readyz     200 if the process can do its work, else 503 and the reason

Every request ends its connection. Connections, their rate, the length of a request and the time that it may take are
limited: a client that sends slowly, or never ends its headers, is closed. If all connections are taken, the oldest one
without a complete request is closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from godwit.errors import SocketError
from godwit.metrics.exposition import CONTENT_TYPE

MAX_CONNECTIONS: Final = 32
MAX_REQUEST_BYTES: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
"""For a client to send its request, and again to read the reply."""
ANSWER_TIMEOUT_S: Final = 10.0
"""For the process to answer. Prometheus waits for 10 s by default."""
ACCEPTS_PER_S: Final = 200.0
ACCEPT_BURST: Final = 50.0
BACKLOG: Final = 64
START_TIMEOUT_S: Final = 10.0
FILES_PAUSE_S: Final = 1.0
"""How long no connection is accepted when the system has no more files."""

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class HttpReply(NamedTuple):
    """The reply to a request."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Answer: TypeAlias = Callable[[], Awaitable[HttpReply]]
"""Makes the reply to a request, in the thread of the endpoint. It must not block."""

_REASONS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


def open_endpoint(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket.

    Raises:
        SocketError: The host has no address here, or the system refused the socket, as for a port in use.
    """
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    handle: socket.socket | None = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        handle = socket.socket(family, socket.SOCK_STREAM)
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        handle.setblocking(False)
        handle.bind(address)
        handle.listen(BACKLOG)
    except OSError as error:
        if handle is not None:
            handle.close()
        remedy = "check the address"
        if error.errno == errno.EADDRINUSE:
            remedy = "another program has this port; stop it, or choose another port (0 takes any free one)"
        elif error.errno == errno.EACCES:
            remedy = "choose a port from 1024 upward"
        raise SocketError(f"cannot serve metrics on {where}: {error.strerror or error}; {remedy}") from error
    return handle


class MetricsServer:
    """Serves metrics until it is closed."""

    def __init__(self, handle: socket.socket, answers: Mapping[str, Answer]) -> None:
        """Start the thread.

        Args:
            handle: A listening socket, see open_endpoint. The server owns it.
            answers: The replies, by path.
        """
        self.address: tuple[str, int] = handle.getsockname()[:2]
        self.requests = 0
        """Complete requests so far."""
        self.refused = 0
        """Connections that were closed before they had sent a request."""
        self._handle = handle
        self._answers = answers
        self._loop = asyncio.new_event_loop()
        self._connections: dict[_HttpConnection, None] = {}
        self._tokens = ACCEPT_BURST
        self._tokens_at = time.monotonic()
        self._is_accepting = False
        self._thread = threading.Thread(target=self._run, name="godwit-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address as `http://127.0.0.1:9464`."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def close(self) -> None:
        """End the thread and all connections. May be repeated."""
        if self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_TIMEOUT_S)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(_log_exception)
        try:
            self._begin()
            loop.run_forever()
        finally:
            for connection in list(self._connections):
                connection.abort()
            self._handle.close()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))  # closes transports, and ends tasks
            loop.close()

    def _begin(self) -> None:
        if not self._is_accepting:
            self._is_accepting = True
            self._loop.add_reader(self._handle.fileno(), self._accept)

    def _pause(self, pause_s: float) -> None:
        self._is_accepting = False
        self._loop.remove_reader(self._handle.fileno())
        self._loop.call_later(pause_s, self._begin)

    def _accept(self) -> None:
        """Accept one connection. Further ones wait in the kernel, as long as too many come."""
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._tokens_at) * ACCEPTS_PER_S, ACCEPT_BURST)
        self._tokens_at = now
        if self._tokens < 1:
            self._pause(1 / ACCEPTS_PER_S)
            return
        self._tokens -= 1
        try:
            accepted, _ = self._handle.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:
            self._pause(FILES_PAUSE_S)
            return
        accepted.setblocking(False)
        if len(self._connections) >= MAX_CONNECTIONS and not self._make_room():
            self.refused += 1
            accepted.close()
            return
        connection = _HttpConnection(self)
        self._connections[connection] = None
        connection.opening = self._loop.create_task(self._connect(connection, accepted))
        connection.opening.add_done_callback(partial(self._end_connect, connection, accepted))

    async def _connect(self, connection: _HttpConnection, accepted: socket.socket) -> None:
        with suppress(OSError):
            await self._loop.connect_accepted_socket(lambda: connection, accepted)

    def _end_connect(self, connection: _HttpConnection, accepted: socket.socket, _: asyncio.Task[None]) -> None:
        if not connection.is_open:  # also if the task was cancelled before it began
            accepted.close()
            self.remove(connection)

    def _make_room(self) -> bool:
        for connection in self._connections:
            if not connection.has_request:
                connection.abort()
                self.remove(connection)
                return True
        return False

    def remove(self, connection: _HttpConnection) -> None:
        """Forget a connection that has ended."""
        if self._connections.pop(connection, self) is None and not connection.has_request:
            self.refused += 1

    async def answer(self, path: str) -> HttpReply:
        """Return the reply to a request."""
        self.requests += 1
        answer = self._answers.get(path)
        if answer is None:
            known = " ".join(sorted(self._answers))
            return HttpReply(404, f"there is nothing here; see {known}\n".encode())
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer()
        except TimeoutError:
            return HttpReply(503, b"the process did not react in time\n")
        except Exception:
            _logger.exception("the reply to %r failed", path[:100])
            return HttpReply(500, b"the reply failed: see the log of the process\n")


class _HttpConnection(asyncio.Protocol):
    """One connection of a client: a request, its reply, and the end."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.opening: asyncio.Task[None] | None = None
        self.has_request = False
        """Whether the request is complete, or was refused."""

    @property
    def is_open(self) -> bool:
        """Whether it has, or had, a transport."""
        return self._transport is not None

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self.has_request:  # a second request, or a body: there is one reply for each connection
            return
        self._data += data
        head, end, _ = self._data.partition(b"\r\n\r\n")
        if not end and len(self._data) <= MAX_REQUEST_BYTES:
            return
        self.has_request = True
        if len(head) > MAX_REQUEST_BYTES or not end:
            self._send(HttpReply(431, b"the request is too long\n"), has_body=True)
            return
        method, _, rest = bytes(head).partition(b"\r\n")[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            self._send(HttpReply(400, b"this is not a request of HTTP/1.1\n"), has_body=True)
        elif method not in (b"GET", b"HEAD"):
            self._send(HttpReply(405, b"only GET and HEAD are allowed here\n"), has_body=True)
        else:
            path = target.partition(b"?")[0].decode("ascii", "replace")
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._task = asyncio.get_running_loop().create_task(self._answer(path, has_body=method == b"GET"))

    async def _answer(self, path: str, *, has_body: bool) -> None:
        self._send(await self._server.answer(path), has_body=has_body)

    def _send(self, reply: HttpReply, *, has_body: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._set_timer()
        lines = [
            f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}",
            f"Content-Type: {reply.content_type}",
            f"Content-Length: {len(reply.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if reply.status == 405:
            lines.append("Allow: GET, HEAD")
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + (reply.body if has_body else b""))
        self._transport.close()  # when everything is sent, or by the timer

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._server.remove(self)


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    error = context.get("exception")
    _logger.warning("the metrics endpoint: %s", context.get("message"), exc_info=error if error else None)  # type: ignore[arg-type]


async def call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in the event loop of another thread, and return its result."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), loop))


def metrics_reply(text: bytes) -> HttpReply:
    """Return the reply with metrics."""
    return HttpReply(200, text, CONTENT_TYPE)
