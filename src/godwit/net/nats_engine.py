"""The engine of a cluster with NATS JetStream: one stream.

Requests are independent of each other, so several appends are in flight. Each has a reply subject of its own, because
an error can overtake an acknowledgement. Whatever is not a positive acknowledgement is AppendRefused, also "wrong last
sequence": it refers to proposed records, and proves nothing about stored ones. Without a connection requests are
refused at once: the library would send them much later.

Records are read from the leader of the stream (no direct get). A standby follows with an ordered consumer; if that
skips a record, the node reads it by its position.

`check_servers` refuses servers that acknowledge records before they are on disk, or are too old to know that setting.

With TLS a server first sends a line in clear, in which it announces TLS. The library believes a line that does not, and
would send user and password in clear to an attacker that has changed it; `_NatsClient` does not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import Any, Final, NoReturn

import msgspec
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError

from godwit.cluster.engine import (
    AppendRefused,
    AppendRequest,
    Beat,
    BeatRequest,
    EngineReport,
    EngineRequest,
    EngineUnavailableError,
    InfoRequest,
    Missing,
    RecordFound,
    RecordRequest,
    Stored,
    StreamInfo,
    TrimRequest,
    Unsuitable,
)
from godwit.cluster.records import OVERHEAD_BYTES, PART_BYTES
from godwit.errors import ConfigurationError
from godwit.limits import KIB, MIB
from godwit.net.cluster_tls import EngineTls, PlainServerError, TlsProblem, tls_problem
from godwit.net.engine_thread import EngineThread, without_password

MIN_VERSION: Final = (2, 12)
MIN_SERVERS: Final = 3
MIN_PAYLOAD_BYTES: Final = PART_BYTES + OVERHEAD_BYTES + 4 * KIB
"""A part of a record, with headers and subjects."""
REQUEST_S: Final = 2.0
CONNECT_S: Final = 1.0
MONITOR_S: Final = 5.0
RECHECK_S: Final = 2.0
"""How often a server is tried that was down at the start."""
MAX_VARZ_BYTES: Final = 4 * MIB
_EXPECTED_LAST: Final = "Nats-Expected-Last-Sequence"
_logger = logging.getLogger(__name__)


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the engine is, and the names of the cluster there."""

    name: str
    """Of the cluster: names its stream and its subjects."""
    servers: list[str]
    """As nats://HOST:PORT or tls://HOST:PORT."""
    monitors: list[str]
    """The monitoring address of every server, as http://HOST:PORT or https://HOST:PORT."""
    tls: EngineTls | None = None
    """None: no address has TLS."""
    replicas: int = 3
    user: str = ""
    password: str = ""
    credentials: str | None = None
    """A file with credentials, in place of user and password."""

    @property
    def stream(self) -> str:
        return f"GODWIT_{self.name}"

    @property
    def log_subject(self) -> str:
        return f"godwit.{self.name}.log"

    @property
    def beat_subject(self) -> str:
        return f"godwit.{self.name}.beat"


def check_servers(settings: NatsSettings, context: ssl.SSLContext | None = None) -> list[str]:
    """Check the servers that answer, and return the monitors of the others, which may be down at present.

    Raises ConfigurationError if one is not suitable, or if TLS with the majority fails for good, EngineUnavailableError
    if too few answer to form a majority.
    """
    if len(set(settings.monitors)) < MIN_SERVERS or settings.replicas < MIN_SERVERS:
        raise ConfigurationError(
            f"a cluster needs {MIN_SERVERS} NATS servers and {MIN_SERVERS} replicas, so that one may be lost: "
            f"{len(set(settings.monitors))} monitors and {settings.replicas} replicas are configured"
        )
    found: dict[str, str] = {}
    absent: list[str] = []
    problem: Exception | None = None
    insecure: dict[str, TlsProblem] = {}
    for monitor in settings.monitors:
        try:
            server_id = check_monitor(monitor, context)
        except (OSError, ValueError) as error:
            absent.append(monitor)
            problem = error
            if (found_problem := tls_problem(error)) is not None:
                insecure[monitor] = found_problem
                _logger.warning("the NATS server at %s %s", monitor, found_problem.text)
            continue
        if server_id in found:
            raise ConfigurationError(f"{monitor} and {found[server_id]} are the same NATS server: list each one once")
        found[server_id] = monitor
    if len(found) <= len(settings.monitors) // 2:
        # A server that only does not answer may be starting. So a wrong certificate of another one is not decisive.
        is_final = sum(one.is_lasting for one in insecure.values()) > len(settings.monitors) // 2
        for monitor, one in insecure.items():
            kind = ConfigurationError if is_final and one.is_lasting else EngineUnavailableError
            raise kind(f"the NATS server at {monitor} {one.text}") from problem
        raise EngineUnavailableError(
            f"{', '.join(absent)} do not answer ({problem}), and they are the majority: start the NATS servers with "
            "`http: HOST:PORT`, and list all of these addresses in monitors"
        ) from problem
    return absent


def _refuse(servers: str, problem: TlsProblem, cause: Exception | None) -> NoReturn:
    """Raise ConfigurationError if waiting does not help, else EngineUnavailableError."""
    kind = ConfigurationError if problem.is_lasting else EngineUnavailableError
    raise kind(f"{servers} {problem.text}") from cause


def check_monitor(monitor: str, context: ssl.SSLContext | None = None) -> str:
    """Return the id of a server that is suitable.

    Raises ConfigurationError if it is not suitable, and OSError or ValueError if it does not answer.
    """
    if not monitor.startswith(("http://", "https://")):
        raise ConfigurationError(f"{monitor!r} is not a monitoring address: give http://HOST:PORT")
    with urllib.request.urlopen(f"{monitor.rstrip('/')}/varz", timeout=MONITOR_S, context=context) as answer:
        varz = json.loads(answer.read(MAX_VARZ_BYTES))
    if problem := server_problem(varz):
        raise ConfigurationError(f"the NATS server at {monitor} {problem}")
    return str(varz.get("server_id"))


def server_problem(varz: Any) -> str:
    """Return why a server with these figures cannot be used; empty if it can."""
    try:
        version = tuple(int(part) for part in str(varz["version"]).split("-", 1)[0].split(".")[:2])
        max_payload = int(varz["max_payload"])
        jetstream = varz["jetstream"].get("config") or {}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"sends no figures of a NATS server ({error!r}): check the address in monitors"
    if version < MIN_VERSION:
        return f"has version {varz['version']}: use {'.'.join(map(str, MIN_VERSION))} or newer"
    if max_payload < MIN_PAYLOAD_BYTES:
        return f"has max_payload {max_payload:,}: set at least {MIN_PAYLOAD_BYTES:,}"
    if not jetstream:
        return "has no JetStream: configure `jetstream { ... }`"
    if jetstream.get("sync_always") is not True:
        return "acknowledges messages that are not on disk: configure `jetstream { sync_interval: always }`"
    return ""


def stream_problem(config: StreamConfig, settings: NatsSettings) -> str:
    """Return why an existing stream cannot be used; empty if it can."""
    expected: list[tuple[str, object, object]] = [
        ("subjects", config.subjects, [settings.log_subject]),
        ("storage", config.storage, StorageType.FILE),
        ("retention", config.retention, RetentionPolicy.LIMITS),
        ("discard", config.discard, DiscardPolicy.NEW),
        ("max_age", config.max_age or 0, 0),
        ("max_msgs", config.max_msgs or -1, -1),
        ("max_bytes", config.max_bytes or -1, -1),
    ]
    for name, found, wanted in expected:
        if found != wanted:
            return f"has {name} = {found}, and must have {wanted}"
    if (config.num_replicas or 1) < settings.replicas:
        return f"has {config.num_replicas} replicas, and must have {settings.replicas}"
    return ""


class _NatsTransport(TcpTransport):
    """A connection that ends at once. With TLS it would wait 30 s for the last reply of a server that is paused."""

    def close(self) -> None:
        if self._io_writer is not None:
            self._io_writer.transport.abort()


class _NatsClient(Client):
    """A client of NATS that sends nothing in clear to a server behind tls://, and uses the configured servers only."""

    async def _connect_to_server(self, s: Srv) -> None:
        """Close the connection of an attempt that failed after it was made, which the library does not."""
        self._end_connection()
        s.last_attempt = time.monotonic()
        self._transport = _NatsTransport()  # type: ignore[no-untyped-call]
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    async def close(self) -> None:
        """Close the connection also after a failed attempt, which the library does not."""
        await super().close()
        self._end_connection()
        await asyncio.sleep(0)  # its socket is closed in the next turn of the loop

    def _end_connection(self) -> None:
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Ignore further servers that a server announces: it does so before TLS has verified it."""
        await super()._process_info({**info, "connect_urls": []}, initial_connection)

    def _connect_command(self) -> bytes:
        """Return the first command to a server, which has user and password."""
        if self.options.get("tls") is not None:
            writer = getattr(self._transport, "_io_writer", None)
            if writer is None or writer.get_extra_info("ssl_object") is None:
                raise _PlainNatsError
        return super()._connect_command()


class _PlainNatsError(PlainServerError, NatsError):
    """The same as an error that the library expects, so that it tries the next server."""


class NatsEngine(EngineThread):
    """An engine with one stream of NATS JetStream."""

    def __init__(
        self,
        settings: NatsSettings,
        report: Callable[[EngineReport], None],
        *,
        backlog: Callable[[], int] = lambda: 0,
        makes_stream: bool = True,
    ) -> None:
        """Make an engine that is not connected: `start` connects it.

        Args:
            settings: Where it is.
            report: Called in the engine's thread with each report. It must not wait.
            backlog: Returns how many reports the node has not handled yet.
            makes_stream: Make the stream if it does not exist; else that is an error.
        """
        super().__init__(report, backlog=backlog)
        self._settings = settings
        self._makes_stream = makes_stream
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._opening: asyncio.Task[None] | None = None
        self._context: ssl.SSLContext | None = None
        self._problem: Exception | None = None
        """The last error before it was connected."""
        self._tls_failures = 0
        """How many attempts before it was connected have failed one after the other because of TLS."""

    def start(self, timeout_s: float = 60.0) -> None:
        """Check the servers, connect, and create the stream if it does not exist.

        Raises:
            ConfigurationError: Servers or stream are not suitable, or user and password are wrong.
            EngineUnavailableError: There was no answer in time.
        """
        if (tls := self._settings.tls) is not None:
            self._context = tls.context()
            if expired := tls.expired():
                raise EngineUnavailableError(expired)
        absent = check_servers(self._settings, self._context)
        try:
            self._launch(self._open(timeout_s, absent))
        except (NatsError, OSError, TimeoutError, CancelledError) as error:
            servers = ", ".join(map(without_password, self._settings.servers))
            text = f"the NATS servers {servers} cannot be used"
            problem = self._problem or error
            if (insecure := tls_problem(problem)) is not None:
                _refuse(f"{text}: the last one", insecure, error)
            if _is_refusal(problem):
                raise ConfigurationError(f"{text}: they refuse user and password; check them") from error
            raise EngineUnavailableError(f"{text} ({problem!r}): check that they run") from error

    # -- in the thread ------------------------------------------------------------------------------------------------

    async def _open(self, timeout_s: float, absent: list[str]) -> None:
        self._opening = asyncio.current_task()
        settings = self._settings
        async with asyncio.timeout(timeout_s):
            self._client = client = _NatsClient()
            await client.connect(
                servers=settings.servers,
                tls=self._context if settings.servers[0].startswith("tls://") else None,
                error_cb=self._on_error,
                user=settings.user or None,
                password=settings.password or None,
                user_credentials=settings.credentials,
                connect_timeout=int(CONNECT_S),
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.1,  # type: ignore[arg-type]  # the library sleeps for it
                ping_interval=1,
                max_outstanding_pings=2,
                pending_size=64 * MIB,
            )
            self._stream = client.jetstream(timeout=REQUEST_S)
            await client.subscribe(settings.beat_subject, cb=self._on_beat)
            await self._make_stream(self._stream)
        if absent:
            self._keep(self._loop.create_task(self._check_absent(absent)))

    async def _make_stream(self, stream: JetStreamContext) -> None:
        """Create the stream, or check the existing one. A cluster that has just started elects a leader first."""
        settings = self._settings
        wanted = StreamConfig(
            name=settings.stream,
            subjects=[settings.log_subject],
            num_replicas=settings.replicas,
            storage=StorageType.FILE,
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.NEW,
            allow_direct=False,
        )
        while True:
            try:
                config = (await stream.stream_info(settings.stream)).config
                break
            except NotFoundError:
                if not self._makes_stream:
                    raise ConfigurationError(
                        f"the cluster {settings.name} has not begun: the stream {settings.stream} does not exist. "
                        "Start a node, or check the name under [cluster]"
                    ) from None
                try:
                    await stream.add_stream(wanted)
                except (APIError, NatsError, TimeoutError) as error:
                    _logger.info("the stream %s cannot be made yet: %r", settings.stream, error)
            except (APIError, NatsError, TimeoutError) as error:
                _logger.info("the stream %s does not answer yet: %r", settings.stream, error)
            await asyncio.sleep(0.2)
        if problem := stream_problem(config, settings):
            raise ConfigurationError(f"the stream {settings.stream} {problem}: correct it with the program `nats`")

    def _use(self, context: ssl.SSLContext) -> None:
        self._context = context
        if self._client is not None and self._client.options.get("tls") is not None:
            self._client.options["tls"] = context  # the library reads it for each connection

    async def _disconnect(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _check_absent(self, absent: list[str]) -> None:
        """Check the servers that were down at the start, once they are up."""
        while absent:
            await asyncio.sleep(RECHECK_S)
            try:
                await self._loop.run_in_executor(None, check_monitor, absent[0], self._context)
            except ConfigurationError as error:
                self._report(Unsuitable(str(error)))
                return
            except (OSError, ValueError):
                absent.append(absent.pop(0))
            else:
                absent.pop(0)

    async def _carry_out(self, request: EngineRequest) -> None:
        client, stream, settings = self._client, self._stream, self._settings
        try:
            if client is None or stream is None or not client.is_connected:
                raise NatsError("the connection is lost")
            if isinstance(request, AppendRequest):
                await self._append(client, request)
            elif isinstance(request, BeatRequest):
                await client.publish(settings.beat_subject, request.data)
            elif isinstance(request, InfoRequest):
                self._report(await self._info(stream))
            elif isinstance(request, RecordRequest):
                await self._read(stream, request.position)
            elif isinstance(request, TrimRequest):
                await stream.purge_stream(settings.stream, seq=request.below)
        except (APIError, NatsError, TimeoutError, OSError, ValueError) as error:
            _logger.debug("%s was not carried out: %r", type(request).__name__, error)
            if isinstance(request, AppendRequest):
                self._report(AppendRefused(repr(error)))

    async def _append(self, client: Client, request: AppendRequest) -> None:
        headers = {_EXPECTED_LAST: str(request.after)}
        answer = await client.request(self._settings.log_subject, request.data, timeout=REQUEST_S, headers=headers)
        found = json.loads(answer.data)
        if "error" in found:
            self._report(AppendRefused(str(found["error"])))
        elif found.get("stream") == self._settings.stream and not found.get("duplicate"):
            self._report(Stored(int(found["seq"]), request.data))

    async def _info(self, stream: JetStreamContext) -> StreamInfo:
        """Return how far the records reach. A stream that was deleted has none, which stops the node after a while."""
        try:
            state = (await stream.stream_info(self._settings.stream)).state
        except NotFoundError:
            return StreamInfo(1, 0)
        return StreamInfo(max(1, state.first_seq), state.last_seq, state.bytes)

    async def _read(self, stream: JetStreamContext, position: int) -> None:
        try:
            found = await stream.get_msg(self._settings.stream, position)
        except NotFoundError:
            info = await self._info(stream)
            self._report(Missing(position, info.first, info.last))
        else:
            self._report(RecordFound(position, found.data or b""))

    async def _follow(self, after: int) -> None:
        """Report the records behind a position until this is cancelled. After an error the node asks again."""
        stream = self._stream
        if stream is None:
            return
        subscription = None
        try:
            subscription = await stream.subscribe(
                self._settings.log_subject,
                stream=self._settings.stream,
                ordered_consumer=True,
                config=ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=after + 1),
            )
            while True:
                try:
                    message = await subscription.next_msg(timeout=REQUEST_S)
                except TimeoutError:
                    continue
                self._report(RecordFound(message.metadata.sequence.stream, message.data))
                await self._wait_for_node()
        except (APIError, NatsError, TimeoutError, OSError) as error:
            _logger.debug("following ended: %r", error)
        finally:
            if subscription is not None:
                await _quietly(subscription.unsubscribe())

    async def _on_error(self, error: Exception) -> None:
        insecure = tls_problem(error)
        if insecure is None:
            _logger.debug("the connection to NATS: %r", error)
        else:
            _logger.warning("a NATS server %s", insecure.text)
        if self._stream is None:
            self._problem = error
            self._tls_failures = 0 if insecure is None else self._tls_failures + 1
            is_final = _is_refusal(error) or self._tls_failures >= len(self._settings.servers)
            if is_final and self._opening is not None:
                self._opening.cancel()  # the library would try again

    async def _on_beat(self, message: Msg) -> None:
        self._report(Beat(message.data))


async def _quietly(closing: Awaitable[None]) -> None:
    try:
        await closing
    except (NatsError, APIError, TimeoutError, OSError) as error:
        _logger.debug("a subscription could not be ended: %r", error)


def _is_refusal(error: BaseException) -> bool:
    return "authorization" in str(error).lower()  # the library has a class for it, and does not always use it
