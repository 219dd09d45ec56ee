"""The engine of a cluster with PostgreSQL and synchronous replication: two tables.

    godwit_NAME_log     position bigint, data bytea: the records
    godwit_NAME_head    one row: stream (a random id), first, last (positions), size_bytes

An append moves `last` if it is the expected position, and inserts behind it, in one statement. The lock of that row
brings rivals in an order. Appends that wait for the one before them are stored together, with one commit.

Facts and doubts. A commit of PostgreSQL returns when a synchronous standby has it on disk; until then no other session
sees the rows. There are three exceptions, and after each of them rows are visible on the primary alone, which a
failover would lose: the wait was cancelled (then the commit succeeds with a warning), the primary was killed and
recovered, or the operator has switched synchronous replication off. Therefore
  - a transaction that reads records writes a mark to the write-ahead log, behind them. Its own commit waits for the
    standby, so it confirms all that it has read. This also keeps an abandoned primary from answering
  - a warning is a doubt: nothing is reported
  - the settings are read after each commit, and nothing is reported if they are unsuitable. If this lasts, the node is
    stopped

Members notify each other (LISTEN, NOTIFY) of new positions and heartbeats. A lost notification costs up to POLL_S.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import logging
import re
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import asyncpg
import msgspec

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
from godwit.errors import ConfigurationError
from godwit.limits import MIB
from godwit.net.cluster_tls import EngineTls, PlainServerError, tls_problem
from godwit.net.engine_thread import EngineThread, without_password

MIN_VERSION: Final = 14
CONNECT_S: Final = 3.0
REQUEST_S: Final = 4.0
"""After this time a statement is cancelled. Whether it was carried out is not known then."""
LOCK_S: Final = 1.0
"""How long an append waits for a rival."""
POLL_S: Final = 0.5
"""How long a follower waits for a notification until it looks for itself."""
RETRY_S: Final = 0.2
UNSUITABLE_S: Final = 10.0
"""A failover may switch synchronous replication off for a moment. Only after this time the node is stopped."""
GROUP_BYTES: Final = 8 * MIB
"""Appends in one transaction, plus one."""
BATCH_BYTES: Final = 4 * MIB
BATCH_RECORDS: Final = 512
"""A follower reads this many at once, plus one."""
TRIM_RECORDS: Final = 256
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")  # PostgreSQL cuts longer identifiers off, without an error
_SETTINGS: Final = (
    "server_version_num",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
)
_READ_SETTINGS: Final = "SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in _SETTINGS)
_MARK: Final = "mark AS MATERIALIZED (SELECT pg_logical_emit_message(true, 'godwit', ''))"
_logger = logging.getLogger(__name__)


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the engine is, and the name of the cluster there."""

    name: str
    """Of the cluster: names its tables."""
    servers: list[str]
    """As postgresql://USER:PASSWORD@HOST:PORT/DATABASE. The one that accepts writes is used."""
    is_single_allowed: bool = False
    """Whether one server without a standby suffices: a cluster that does not survive the loss of this machine."""
    tls: EngineTls | None = None
    """None: TLS if the server offers it, unverified."""

    @property
    def log_table(self) -> str:
        return f'"godwit_{self.name}_log"'

    @property
    def head_table(self) -> str:
        return f'"godwit_{self.name}_head"'

    @property
    def channel(self) -> str:
        return f"godwit_{self.name}"


def settings_problem(found: Mapping[str, str], *, is_single_allowed: bool) -> str:
    """Return why a server with these settings cannot be used; empty if it can."""
    version = int(found["server_version_num"]) // 10_000
    if version < MIN_VERSION:
        return f"has version {version}: use {MIN_VERSION} or newer"
    for name in ("fsync", "full_page_writes"):
        if found[name] != "on":
            return f"has {name} = {found[name]}, and loses commits with its machine: set {name} = on"
    if found["synchronous_commit"] not in ("on", "remote_apply"):
        return (
            f"has synchronous_commit = {found['synchronous_commit']}, and confirms commits that are not on the disk of "
            "a standby: set synchronous_commit = on (perhaps only for the role, with ALTER ROLE ... SET)"
        )
    if not found["synchronous_standby_names"].strip() and not is_single_allowed:
        return (
            "has no synchronous standby, and confirms commits that are lost with its machine: set "
            "synchronous_standby_names, as in 'ANY 1 (second, third)'"
        )
    return ""


class _DoubtError(Exception):
    """A statement was carried out, and perhaps not on the standby."""


class _PlainPostgresError(PlainServerError, ConnectionError):
    """The server offers no TLS. Handled like any lost connection."""


class _Session:
    """A connection for one statement at a time, made again after a failure."""

    def __init__(self, settings: PostgresSettings, prepare: Callable[[asyncpg.Connection], Awaitable[None]]) -> None:
        self._settings = settings
        self._prepare = prepare
        self.context: ssl.SSLContext | None = None
        """Verifies the servers; None: nothing does."""
        self._connection: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()
        self._warning = ""
        self._first = 0
        """The index of the server to try first."""

    async def fetch(self, query: str, *arguments: object, is_checked: bool = False) -> list[Any]:
        """Return the rows of a statement.

        Raises:
            _DoubtError: With `is_checked`, the commit was perhaps not confirmed by the standby.
            ConfigurationError: The same, because of unsuitable settings.
            OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError: It may be carried out or not.
        """
        async with self._lock:
            connection = await self.connect()
            self._warning = ""
            try:
                rows: list[Any] = await connection.fetch(query, *arguments, timeout=REQUEST_S)
                if is_checked:
                    (found,) = await connection.fetch(_READ_SETTINGS, timeout=REQUEST_S)
            except TimeoutError:
                await self._end_cancelling(connection)
                raise
            finally:
                if connection.is_closed():
                    self._connection = None
            if is_checked and self._warning:
                raise _DoubtError(self._warning)
            if is_checked and (problem := self._problem(found)):
                raise ConfigurationError(problem)
            return rows

    async def connect(self) -> asyncpg.Connection:
        """Return an open connection to a suitable server that accepts writes."""
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        servers = self._settings.servers
        insecure: Exception | None = None
        for attempt in range(len(servers)):
            index = (self._first + attempt) % len(servers)
            try:
                self._connection = await self._open(servers[index])
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                _logger.debug("%s cannot be used: %r", without_password(servers[index]), error)
                if self.context is not None and (problem := tls_problem(error)) is not None:
                    _logger.warning("the PostgreSQL server at %s %s", without_password(servers[index]), problem.text)
                    insecure = error
                if attempt == len(servers) - 1:
                    if insecure is not None and insecure is not error:
                        raise insecure from error
                    raise
            else:
                self._first = index
                return self._connection
        raise ConfigurationError("no server of PostgreSQL is configured")

    async def _open(self, server: str) -> asyncpg.Connection:
        try:
            connection = await asyncpg.connect(
                server,
                timeout=CONNECT_S,
                command_timeout=REQUEST_S,
                target_session_attrs="read-write",
                ssl=self.context,
                server_settings={
                    "application_name": "godwit",
                    "default_transaction_isolation": "read committed",
                    "lock_timeout": str(int(LOCK_S * 1000)),
                },
            )
        except ConnectionError as error:
            if self.context is not None and "rejected SSL" in str(error):
                raise _PlainPostgresError from error
            raise
        try:
            (found,) = await connection.fetch(_READ_SETTINGS)
            if problem := self._problem(found):
                raise ConfigurationError(problem)
            connection.add_log_listener(self._on_message)
            await self._prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _problem(self, found: Mapping[str, str]) -> str:
        problem = settings_problem(found, is_single_allowed=self._settings.is_single_allowed)
        servers = ", ".join(map(without_password, self._settings.servers))
        return problem and f"the PostgreSQL server at {servers} {problem}"

    def _on_message(self, connection: object, message: Any) -> None:
        """Remember a warning: so PostgreSQL reports that the wait for the standby was cancelled."""
        if message.severity_en == "WARNING":
            self._warning = str(message.message)

    async def _end_cancelling(self, connection: asyncpg.Connection) -> None:
        """Wait until the server has cancelled a statement; if it does not answer, close the connection."""
        try:
            await connection.fetch("SELECT 1", timeout=CONNECT_S)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


class PostgresEngine(EngineThread):
    """An engine with two tables of PostgreSQL."""

    def __init__(
        self,
        settings: PostgresSettings,
        report: Callable[[EngineReport], None],
        *,
        backlog: Callable[[], int] = lambda: 0,
        makes_tables: bool = True,
    ) -> None:
        """Make an engine that is not connected: `start` connects it.

        Args:
            settings: Where it is.
            report: Called in the engine's thread with each report. It must not wait.
            backlog: Returns how many reports the node has not handled yet.
            makes_tables: Make the tables if they do not exist; else that is an error.
        """
        super().__init__(report, backlog=backlog)
        self._settings = settings
        self._makes_tables = makes_tables
        self._writer = _Session(settings, _no_preparation)
        self._reader = _Session(settings, _no_preparation)
        self._control = _Session(settings, self._listen)
        self._stream = ""
        """The random id of the tables that this engine uses."""
        self._last = 0
        """The last position, as far as is known."""
        self._news = asyncio.Event()
        self._appends: deque[AppendRequest] = deque()
        self._has_appends = asyncio.Event()
        self._pending: set[object] = set()
        """Requests under way: nodes repeat them."""
        self._unsuitable_since: float | None = None
        self._is_unsuitable = False

    def start(self, timeout_s: float = 60.0) -> None:
        """Connect, check the server, and create the tables if they do not exist.

        Raises:
            ConfigurationError: Server or tables are not suitable.
            EngineUnavailableError: There was no answer in time.
        """
        if not _NAME.fullmatch(self._settings.name):
            raise ConfigurationError(
                f"{self._settings.name!r} is not usable in the names of tables: use up to 40 letters, digits, _ or -"
            )
        servers = ", ".join(map(without_password, self._settings.servers))
        if (tls := self._settings.tls) is not None:
            context = tls.context()
            if expired := tls.expired():
                raise EngineUnavailableError(expired)
            for session in (self._writer, self._reader, self._control):
                session.context = context
        try:
            self._launch(self._open(timeout_s))
        except (OSError, TimeoutError, _DoubtError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if tls is not None and (insecure := tls_problem(error)) is not None:
                kind = ConfigurationError if insecure.is_lasting else EngineUnavailableError
                raise kind(f"a PostgreSQL server of {servers} {insecure.text}") from error
            text = f"the PostgreSQL servers {servers} cannot be used ({error!r})"
            raise EngineUnavailableError(
                f"{text}: check that one of them is the primary and that its synchronous standby runs, and user and "
                "password"
            ) from error

    # -- in the thread ------------------------------------------------------------------------------------------------

    async def _open(self, timeout_s: float) -> None:
        gives_up_at = self._loop.time() + timeout_s
        while True:
            try:
                await self._make_tables()
                break
            except asyncpg.InsufficientPrivilegeError as error:
                raise ConfigurationError(
                    f"the role may not create tables in PostgreSQL ({error}): GRANT CREATE ON SCHEMA public TO it"
                ) from error
            except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError):
                raise
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                insecure = tls_problem(error)
                if self._loop.time() >= gives_up_at or (insecure is not None and insecure.is_lasting):
                    raise
                _logger.info("PostgreSQL cannot be used yet: %r", error)
            await asyncio.sleep(RETRY_S)
        self._keep(self._loop.create_task(self._write()))

    async def _make_tables(self) -> None:
        settings = self._settings
        connection = await self._control.connect()
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", settings.channel)
            kinds = await self._kinds(connection)
            if not kinds:
                if not self._makes_tables:
                    raise ConfigurationError(
                        f"the cluster {settings.name} has not begun: the table {settings.log_table} does not exist. "
                        "Start a node, or check the name under [cluster]"
                    )
                await connection.execute(f"""
                    CREATE TABLE {settings.log_table} (position bigint PRIMARY KEY, data bytea NOT NULL);
                    ALTER TABLE {settings.log_table} ALTER data SET STORAGE EXTERNAL;
                    CREATE TABLE {settings.head_table} (
                        one boolean PRIMARY KEY DEFAULT true CHECK (one), stream text NOT NULL,
                        first bigint NOT NULL, last bigint NOT NULL, size_bytes bigint NOT NULL
                    );
                    INSERT INTO {settings.head_table} (stream, first, last, size_bytes)
                    SELECT gen_random_uuid()::text, 1, 0, 0""")
                kinds = await self._kinds(connection)
        if kinds != ["p", "p"]:
            raise ConfigurationError(
                f"PostgreSQL has one of the tables {settings.log_table} and {settings.head_table} only, or they are "
                "not logged (which a crash empties): restore both together, or ALTER TABLE ... SET LOGGED"
            )
        rows = await self._control.fetch(f"SELECT stream, last FROM {settings.head_table}")
        if not rows:
            raise ConfigurationError(f"the table {settings.head_table} of PostgreSQL is empty: restore it")
        self._stream, self._last = str(rows[0]["stream"]), int(rows[0]["last"])

    async def _kinds(self, connection: asyncpg.Connection) -> list[str]:
        """Return how the existing tables are stored; `p`: logged."""
        rows = await connection.fetch(
            "SELECT relpersistence::text FROM pg_class WHERE oid IN (to_regclass($1), to_regclass($2))",
            self._settings.log_table,
            self._settings.head_table,
        )
        return [row[0] for row in rows]

    def _use(self, context: ssl.SSLContext) -> None:
        for session in (self._writer, self._reader, self._control):
            session.context = context

    async def _disconnect(self) -> None:
        for session in (self._writer, self._reader, self._control):
            await session.close()

    async def _listen(self, connection: asyncpg.Connection) -> None:
        await connection.add_listener(self._settings.channel, self._on_notification)

    def _on_notification(self, connection: object, process: int, channel: str, payload: str) -> None:
        """Handle a notification: a position, or `b` and a heartbeat."""
        try:
            if payload.startswith("b"):
                self._report(Beat(base64.b64decode(payload[1:], validate=True)))
            else:
                self._last = max(self._last, int(payload))
                self._news.set()
        except (ValueError, binascii.Error) as error:
            _logger.debug("a notification is invalid: %r", error)

    async def _notify(self, payload: str) -> None:
        """Notify all members. This commit waits for no disk."""
        await self._control.fetch(
            "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)", self._settings.channel, payload
        )

    async def _carry_out(self, request: EngineRequest) -> None:
        if isinstance(request, AppendRequest):
            self._appends.append(request)
            self._has_appends.set()
            return
        key: object = BeatRequest if isinstance(request, BeatRequest) else request
        if key in self._pending:
            return
        self._pending.add(key)
        try:
            if isinstance(request, BeatRequest):
                await self._notify("b" + base64.b64encode(request.data).decode())
            elif isinstance(request, InfoRequest):
                self._report(await self._info(self._control))
            elif isinstance(request, RecordRequest):
                await self._read(request.position)
            elif isinstance(request, TrimRequest):
                await self._trim(request.below)
        except Exception as error:
            self._on_failure(type(request).__name__, error)
        finally:
            self._pending.discard(key)

    def _on_failure(self, what: str, error: Exception) -> None:
        """Log a failure. Report it if the server or its tables cannot be used any more."""
        if isinstance(error, asyncpg.UndefinedTableError):
            self._stop(f"the tables of the cluster {self._settings.name} were deleted from PostgreSQL")
        elif isinstance(error, ConfigurationError):
            now = self._loop.time()
            self._unsuitable_since = self._unsuitable_since or now
            _logger.warning("%s", error)
            if now - self._unsuitable_since >= UNSUITABLE_S:
                self._stop(str(error))
        elif isinstance(error, OSError | TimeoutError | _DoubtError | asyncpg.PostgresError | asyncpg.InterfaceError):
            _logger.debug("%s was not carried out: %r", what, error)
        else:
            _logger.error("%s was not carried out", what, exc_info=error)

    def _stop(self, text: str) -> None:
        if not self._is_unsuitable:
            self._is_unsuitable = True
            self._report(Unsuitable(text))

    def _check_stream(self, rows: list[Any]) -> None:
        """Check that the tables are still those of the start."""
        if not rows or str(rows[0]["stream"]) != self._stream:
            self._stop(f"the tables of the cluster {self._settings.name} in PostgreSQL were emptied or made anew")
        if self._is_unsuitable:
            raise _DoubtError("the engine cannot be used any more")
        self._unsuitable_since = None

    async def _info(self, session: _Session) -> StreamInfo:
        rows = await session.fetch(
            f"SELECT stream, first, last, size_bytes FROM {self._settings.head_table}", is_checked=True
        )
        self._check_stream(rows)
        ((_, first, last, size_bytes),) = rows
        self._last = last
        return StreamInfo(first, last, size_bytes)

    async def _read(self, position: int) -> None:
        rows = await self._reader.fetch(
            f"WITH {_MARK} SELECT stream, first, last, "
            f"(SELECT data FROM {self._settings.log_table} WHERE position = $1) FROM {self._settings.head_table}, mark",
            position,
            is_checked=True,
        )
        self._check_stream(rows)
        ((_, first, last, data),) = rows
        self._report(Missing(position, first, last) if data is None else RecordFound(position, data))

    async def _trim(self, below: int) -> None:
        """Delete records in steps, the oldest first, so that no transaction takes long."""
        query = f"""
            WITH gone AS (
                DELETE FROM {self._settings.log_table} WHERE position IN (
                    SELECT position FROM {self._settings.log_table} WHERE position < $1 ORDER BY position LIMIT $2
                ) RETURNING position, octet_length(data) AS size_bytes
            )
            UPDATE {self._settings.head_table} SET
                first = greatest(first, (SELECT max(position) + 1 FROM gone)),
                size_bytes = size_bytes - (SELECT sum(gone.size_bytes) FROM gone)
            WHERE EXISTS (SELECT FROM gone) RETURNING first"""
        while await self._reader.fetch(query, below, TRIM_RECORDS):
            pass

    # -- appends ------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Store appends, in groups that continue each other."""
        while True:
            await self._has_appends.wait()
            self._has_appends.clear()
            while self._appends:
                group = self._next_group()
                try:
                    await self._append(group)
                except Exception as error:
                    self._on_failure("AppendRequest", error)
                    for _ in range(len(group)):
                        self._report(AppendRefused(repr(error)))
                    self._refuse_all()

    def _next_group(self) -> list[AppendRequest]:
        group = [self._appends.popleft()]
        group_bytes = len(group[0].data)
        while self._appends and self._appends[0].after == group[-1].after + 1 and group_bytes < GROUP_BYTES:
            group.append(self._appends.popleft())
            group_bytes += len(group[-1].data)
        return group

    def _refuse_all(self) -> None:
        """Refuse the appends that are queued behind a failure. The node repeats them."""
        for _ in range(len(self._appends)):
            self._report(AppendRefused("an append before it failed"))
        self._appends.clear()

    async def _append(self, group: list[AppendRequest]) -> None:
        settings = self._settings
        after = group[0].after
        records = [request.data for request in group]
        rows = await self._writer.fetch(
            f"""
            WITH moved AS (
                UPDATE {settings.head_table} SET last = last + $3, size_bytes = size_bytes + $4
                WHERE last = $1 AND stream = $2 RETURNING stream
            ), added AS (
                INSERT INTO {settings.log_table} (position, data)
                SELECT $1 + number, data FROM moved, unnest($5::bytea[]) WITH ORDINALITY AS given (data, number)
                RETURNING position
            )
            SELECT count(*) AS stored FROM added""",
            after,
            self._stream,
            len(records),
            sum(map(len, records)),
            records,
            is_checked=True,
        )
        if rows[0]["stored"] != len(records):
            raise _DoubtError(f"position {after} is not the last one")
        for position, data in zip(itertools.count(after + 1), records):
            self._report(Stored(position, data))
        self._keep(self._loop.create_task(self._announce(after + len(records))))

    async def _announce(self, last: int) -> None:
        try:
            await self._notify(str(last))
        except Exception as error:
            self._on_failure("NOTIFY", error)

    # -- following ----------------------------------------------------------------------------------------------------

    async def _follow(self, after: int) -> None:
        self._last = max(self._last, after + 1)  # look at once
        while True:
            self._news.clear()
            last = self._last
            try:
                if last <= after:
                    await self._wait_for_news()
                elif not (found := await self._read_batch(after)):
                    if self._last == last:  # no notification since then
                        self._last = after
                else:
                    for position, data in found:
                        self._report(RecordFound(position, data))
                        after = position
                    await self._wait_for_node()
            except Exception as error:
                self._on_failure("FollowRequest", error)
                await asyncio.sleep(RETRY_S)

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(POLL_S):
                await self._news.wait()
        except TimeoutError:
            await self._info(self._reader)

    async def _read_batch(self, after: int) -> list[tuple[int, bytes]]:
        rows = await self._reader.fetch(
            f"""
            WITH {_MARK}, following AS (
                SELECT position, data FROM {self._settings.log_table} WHERE position > $1 ORDER BY position LIMIT $2
            ), summed AS (
                SELECT position, data, sum(octet_length(data)) OVER (ORDER BY position) - octet_length(data) AS before
                FROM following
            )
            SELECT stream, position, data FROM {self._settings.head_table}, mark
            LEFT JOIN summed ON before < $3 ORDER BY position""",
            after,
            BATCH_RECORDS,
            BATCH_BYTES,
            is_checked=True,
        )
        self._check_stream(rows)
        return [(row["position"], row["data"]) for row in rows if row["position"] is not None]


async def _no_preparation(connection: asyncpg.Connection) -> None:
    """Prepare nothing."""
