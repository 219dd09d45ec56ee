"""Options and connections shared by all commands that talk to a broker."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer

from godwit.cli.context import is_secret_of_another
from godwit.cli.streams import OutputClosedError, discard_output, print_error_line
from godwit.cli.text import safe
from godwit.errors import AccessError, BrokerUnreachableError, GodwitError, NameInUseError, UsageError
from godwit.limits import (
    GO_BACK_N_WINDOW,
    MAX_ARQ_WINDOW,
    MAX_SECRET_BYTES,
    MAX_SESSION_EXPIRY_S,
    MAX_TIMEOUT_S,
    MAX_WILL_BYTES,
    SESSION_EXPIRY_S,
)

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.net.connecting import Connecting
    from godwit.net.security import Security
    from godwit.transport.config import EndpointConfig
    from godwit.wire.control import Will
    from godwit.wire.parameters import Arq

T = TypeVar("T")

DEFAULT_BROKER: Final = "localhost:50000"
REQUEST_TIMEOUT_S: Final = 10.0
"""Default timeout of a command that sends one request and ends."""
NOTICE_DELAY_S: Final = 1.0
"""Time without a broker after which a command without a timeout prints why it is waiting."""
REPLY_NOTICE_DELAY_S: Final = 2.0
"""The same for a command with a timeout."""
POLL_S: Final = 0.25
CLOSE_TIMEOUT_S: Final = 1.0
"""Time that an interrupted command has to close its connection."""
EXIT_TERMINATED: Final = 143
"""Exit code that a shell reports for a program ended by SIGTERM: 128 + SIGTERM."""

TIMEOUT_METAVAR: Final = "SECONDS|never"
TIMEOUT_HELP: Final = "Give up when the broker is unreachable for this many seconds, or never."


def parse_timeout(value: str | float) -> float:
    """Return the seconds of `--timeout`; infinity for `never`. A default is a number already.

    Raises:
        UsageError: It is neither, or out of range. 0 is: as in Python, that would leave the broker no time to answer.
    """
    if value == "never":
        return math.inf
    try:
        seconds = float(value)
    except ValueError:
        raise UsageError(f"--timeout {str(value)[:40]!r} is not a number; give seconds, or never") from None
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise UsageError(f"--timeout {seconds:g} is out of range; give seconds above 0, or never")
    return seconds


BrokerOption = Annotated[
    str,
    typer.Option(
        "--broker", envvar="GODWIT_BROKER", metavar="HOST:PORT", help="Address of the broker; several with commas."
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Name of this client; the broker keeps its subscriptions under this name."),
]
SecretOption = Annotated[
    Path | None, typer.Option("--secret-file", metavar="FILE", help="File with the secret that proves the name.")
]
ArqOption = Annotated[
    str | None,
    typer.Option(
        "--arq",
        metavar="SCHEME",
        help="Retransmission: selective-repeat, go-back-n, go-back-n:WINDOW or stop-and-wait.",
        show_default="selective-repeat",
    ),
]
WillTopicOption = Annotated[
    str | None,
    typer.Option(
        "--will-topic", metavar="TOPIC", help="Topic of a message that the broker publishes if this client is lost."
    ),
]
WillPayloadOption = Annotated[
    str | None, typer.Option("--will-payload", metavar="TEXT", help="Payload of the will.", show_default="empty")
]
WillQosOption = Annotated[str, typer.Option("--will-qos", metavar="0|1|2", help="QoS of the will.")]
WillRetainOption = Annotated[bool, typer.Option("--will-retain", help="Keep the will for later subscribers.")]
SessionExpiryOption = Annotated[
    int | None,
    typer.Option(
        "--session-expiry",
        "-x",
        metavar="SECONDS",
        help="With --name: how long the broker keeps the session after this client has left.",
        show_default=f"{SESSION_EXPIRY_S}",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", parser=parse_timeout, metavar=TIMEOUT_METAVAR, help=TIMEOUT_HELP),
]
EndlessTimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", parser=parse_timeout, metavar=TIMEOUT_METAVAR, help=TIMEOUT_HELP, show_default="never"),
]


@dataclass(frozen=True)
class Target:
    """Which broker to connect to, under which name, and for how long to try. Without `timeout_s`: for ever."""

    broker: str
    name: str | None = None
    secret: bytes = field(default=b"", repr=False)
    timeout_s: float | None = None
    session_expiry_s: int = SESSION_EXPIRY_S
    is_cursor: bool = False
    """Whether `name` is a cursor's name that the user gave instead of a client name."""
    arq: tuple[Arq, int] | None = None
    """Retransmission scheme, and its window in fragments. None: the default."""
    will: Will | None = None

    @classmethod
    def of(
        cls, broker: str, name: str | None, secret_file: Path | None, timeout: float | None, arq: str | None = None
    ) -> Target:
        """Return the target that the options of a command name. A timeout of infinity becomes None.

        Raises:
            UsageError: An option is invalid, or a secret was given without a name.
            GodwitError: Reading the secret file failed.
        """
        is_given = any(one.partition("=")[0] == "--secret-file" for one in sys.argv)
        if secret_file is not None and not is_given and is_secret_of_another(name, secret_file):
            secret_file = None
        if secret_file is not None and not name:
            raise UsageError("a secret proves a name: add --name to --secret-file")
        secret = b"" if secret_file is None else read_secret(secret_file)
        timeout_s = None if timeout == math.inf else timeout
        return cls(broker, name, secret, timeout_s, arq=None if arq is None else parse_arq(arq))

    def security(self) -> Security:
        """Return how the broker is verified: by the authorities in the file that GODWIT_CA names, if it is set.

        GODWIT_CERTIFICATE and GODWIT_KEY name the files of the client's own certificate.
        """
        from godwit.net.security import Security

        ca, certificate, key = (os.environ.get(f"GODWIT_{name}") or None for name in ("CA", "CERTIFICATE", "KEY"))
        return Security(ca=ca, certificate=certificate, key=key)

    def endpoint(self) -> EndpointConfig:
        """Return the settings of the transport."""
        from godwit.transport.config import EndpointConfig

        return EndpointConfig() if self.arq is None else EndpointConfig(arq=self.arq[0], arq_window=self.arq[1])


def parse_arq(text: str) -> tuple[Arq, int]:
    """Return the retransmission scheme that a text names, and its window in fragments.

    Raises:
        UsageError: The scheme is unknown, or its window is out of range.
    """
    scheme, colon, window = text.partition(":")
    if scheme == "go-back-n":
        if not colon:
            return "go-back-n", GO_BACK_N_WINDOW
        if window.isascii() and window.isdigit() and len(window) <= len(str(MAX_ARQ_WINDOW)):
            fragments = int(window)
            if 1 <= fragments <= MAX_ARQ_WINDOW:
                return "go-back-n", fragments
        raise UsageError(
            f"the window {window!r} of go-back-n is out of range; give a number from 1 to {MAX_ARQ_WINDOW:,}"
        )
    if colon or scheme not in ("selective-repeat", "stop-and-wait"):
        raise UsageError(
            f"unknown retransmission scheme {text!r}; choose selective-repeat, "
            "go-back-n, go-back-n:WINDOW or stop-and-wait"
        )
    return ("selective-repeat" if scheme == "selective-repeat" else "stop-and-wait"), GO_BACK_N_WINDOW


@dataclass(frozen=True)
class WillOptions:
    """The message that the broker publishes if this client is lost, as the options give it."""

    topic: str | None
    payload: str | None
    qos: str
    retain: bool

    def will(self) -> Will | None:
        """Return the will, or None without a topic.

        Raises:
            UsageError: An option is invalid, or given without --will-topic.
        """
        from godwit.broker.topics import check_topic
        from godwit.wire.control import Will

        if self.topic is None:
            if self.payload is not None or self.retain:
                raise UsageError("a will needs a topic: add --will-topic")
            return None
        check_topic(self.topic)
        payload = (self.payload or "").encode("utf-8", "surrogateescape")
        if len(payload) > MAX_WILL_BYTES:
            raise UsageError(
                f"--will-payload has {len(payload):,} bytes, and a will at most {MAX_WILL_BYTES:,}; shorten it"
            )
        qos = check_qos(self.qos)
        return Will(topic=self.topic, payload=payload, qos=1 if qos == 1 else 2 if qos == 2 else 0, retain=self.retain)


def check_session_expiry(seconds: int | None) -> int:
    """Return the time for which the broker keeps the session.

    Raises:
        UsageError: It is out of range.
    """
    if seconds is None:
        return SESSION_EXPIRY_S
    if not 0 <= seconds <= MAX_SESSION_EXPIRY_S:
        raise UsageError(f"--session-expiry {seconds} is out of range; give seconds from 0 to {MAX_SESSION_EXPIRY_S:,}")
    return seconds


def read_secret(path: Path) -> bytes:
    """Return the secret in a file, without the line end that editors add.

    Raises:
        UsageError: The file is empty or too long.
        GodwitError: Reading the file failed.
    """
    from godwit.broker.access import secret_in

    try:
        with path.open("rb") as file:
            secret = secret_in(file.read(MAX_SECRET_BYTES + 3))
    except OSError as error:
        raise GodwitError(f"cannot read the secret file {path}: {error.strerror}; check its path and rights") from error
    if not secret:
        raise UsageError(f"the secret file {path} is empty; write the secret into it")
    if len(secret) > MAX_SECRET_BYTES:
        raise UsageError(f"the secret in {path} is longer than {MAX_SECRET_BYTES} bytes; choose a shorter one")
    return secret


def print_notice(text: str) -> None:
    """Print one line for the user on stderr, apart from the output of the command and its progress bars."""
    print_error_line(f"godwit: {safe(text)}")


def run(main: Coroutine[Any, Any, T], *, is_interactive: bool = False, is_brief: bool = False) -> T:
    """Run a command to its end. A closed stdout ends the command with exit code 0.

    With `is_interactive` a user types at the terminal. uvloop is not used then, because it makes a terminal that it
    reads non-blocking for all processes that share it. With `is_brief` the command sends one request and ends: loading
    uvloop would take longer than it saves.
    """
    from godwit.net import loop

    is_plain = is_interactive or is_brief
    try:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop if is_plain else loop.new_event_loop) as runner:
            return runner.run(_until_terminated(main))
    except OutputClosedError:
        discard_output()
        raise typer.Exit(0) from None


async def _until_terminated(main: Coroutine[Any, Any, T]) -> T:
    """Run a command so that SIGTERM ends it as Ctrl-C does: it closes its connection before it exits."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    is_terminated = False

    def end() -> None:
        nonlocal is_terminated
        is_terminated = True
        if task is not None:
            task.cancel()

    with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; or not the main thread
        loop.add_signal_handler(signal.SIGTERM, end)
    try:
        return await main
    except asyncio.CancelledError:
        if is_terminated:
            raise typer.Exit(EXIT_TERMINATED) from None
        raise
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGTERM)


@asynccontextmanager
async def connected(target: Target, notice: _WaitNotice | None = None) -> AsyncIterator[AsyncClient]:
    """Yield a client that is online. Within the block, report on stderr when the broker is lost and found again.

    Raises:
        BrokerUnreachableError: The target has a timeout, and the broker was unreachable for longer.
        BrokerError: The broker refused or removed the client.
    """
    from godwit.net.client import connect

    monitor = _ConnectionMonitor(target)
    opening = connect(
        target.broker,
        name=target.name,
        secret=target.secret,
        timeout_s=target.timeout_s,
        session_expiry_s=target.session_expiry_s,
        will=target.will,
        endpoint=target.endpoint(),
        security=target.security(),
        on_state=monitor.on_state,
    )
    notice = _WaitNotice(target) if notice is None else notice
    waiting = asyncio.create_task(notice.run(opening))
    try:
        client = await opening
    except AccessError as error:
        raise _explained_login(error, target) from None
    except NameInUseError as error:
        raise _explained_name(error, target) from None
    finally:
        waiting.cancel()
    async with client:
        try:
            async with asyncio.timeout(None) as limit:
                watching = asyncio.create_task(monitor.run(client, limit))
                try:
                    yield client
                finally:
                    watching.cancel()
        except AccessError as error:
            raise _explained_refusal(error, target) from None
        except TimeoutError:
            if not limit.expired():
                raise
            client.require_open()  # raises the reason if the client was closed
            raise BrokerUnreachableError(
                f"the broker at {target.broker} was lost ({client.last_reason}) and did not come back within "
                f"{target.timeout_s:g} s: check that it runs, then try again"
            ) from None


def ask(target: Target, send_request: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Connect, send one request, and return its reply. Connection and reply share the timeout of the target.

    Raises:
        BrokerUnreachableError: No reply came in time.
    """

    from godwit.net.loop import TimeLimit

    async def main() -> T:
        now = asyncio.get_running_loop().time
        deadline = None if target.timeout_s is None else now() + target.timeout_s
        notice = _WaitNotice(target)
        async with connected(target, notice) as client:
            waiting = asyncio.create_task(notice.run())
            try:
                async with TimeLimit(None if deadline is None else max(deadline - now(), 0.0)):
                    return await send_request(client)
            except TimeoutError:
                raise BrokerUnreachableError(
                    f"the broker at {target.broker} did not answer within {target.timeout_s:g} s; try again, "
                    "or give it more time with --timeout"
                ) from None
            finally:
                waiting.cancel()

    return run(main(), is_brief=True)


class _WaitNotice:
    """The line that a command prints, at most once, when the broker does not answer soon."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._is_printed = False

    async def run(self, opening: Connecting | None = None) -> None:
        """Wait, then print the line. With `opening` the command waits for the broker's welcome, else for a reply."""
        target = self._target
        await asyncio.sleep(NOTICE_DELAY_S if target.timeout_s is None else REPLY_NOTICE_DELAY_S)
        if self._is_printed:
            return
        self._is_printed = True
        limit = "" if target.timeout_s is None else f", for {target.timeout_s:g} s in all"
        if opening is not None and opening.is_answered:
            if target.name is not None and not target.secret:
                what = "cursor" if target.is_cursor else "name"
                why = f"another connection still seems to hold the {what} {target.name!r}"
            else:  # a client that proves its name, or has none, never waits for another client
                why = "it has not let this client in yet"
            print_notice(f"the broker at {target.broker} answers, but {why}; waiting{limit} (Ctrl-C ends)")
        elif target.timeout_s is None:
            print_notice(f"no broker answers at {target.broker}; still trying (Ctrl-C ends)")
        else:
            print_notice(f"waiting for an answer from {target.broker}{limit} (Ctrl-C ends)")


def _explained_login(error: AccessError, target: Target) -> AccessError:
    """Return the error with the likeliest causes, which a broker does not report."""
    if not target.secret:
        return error
    return AccessError(
        error.code,
        f"{error} (a secret was given for the name {target.name!r}: most likely the broker does not list this name "
        "under [[access.client]], or lists it with another secret)",
    )


def _explained_name(error: NameInUseError, target: Target) -> NameInUseError:
    """Return the error in terms of the cursor if the user gave a cursor and no name."""
    if not target.is_cursor:
        return error
    return NameInUseError(
        error.code,
        f"the cursor {target.name!r} is in use by another client that answers: end that client first, or choose "
        "another cursor",
    )


def _explained_refusal(error: AccessError, target: Target) -> AccessError:
    """Return the error with advice on what to do about it."""
    if " may not " not in error.text:
        return error
    if target.secret:
        prove = ""
    elif target.name is not None and not target.is_cursor:
        prove = f", or prove the name {target.name!r} if it may: --secret-file"
    else:
        prove = ", or prove a name that may: --name and --secret-file"
    return AccessError(error.code, f"{error}; ask the operator of the broker for a rule that allows it{prove}")


class _ConnectionMonitor:
    """Reports when the broker is lost and found again, and ends the command after its timeout."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._is_loss_reported = False

    def on_state(self, state: str, reason: str) -> None:
        """Report at once that the broker is back, before messages of the new connection are printed."""
        if state == "online" and self._is_loss_reported:
            self._is_loss_reported = False
            print_notice(f"the broker at {self._target.broker} is back")

    async def run(self, client: AsyncClient, limit: asyncio.Timeout) -> None:
        target = self._target
        now = asyncio.get_running_loop().time
        lost_at: float | None = None
        while client.state != "closed":
            await asyncio.sleep(POLL_S)
            if client.state == "online":
                lost_at = None
                continue
            lost_at = now() if lost_at is None else lost_at
            if target.timeout_s is not None and now() - lost_at >= target.timeout_s:
                break
            if target.timeout_s is None and not self._is_loss_reported and now() - lost_at >= NOTICE_DELAY_S:
                self._is_loss_reported = True
                print_notice(
                    f"lost the broker at {target.broker} ({client.last_reason}); trying to get it back (Ctrl-C ends)"
                )
        limit.reschedule(now())


async def guarded(work: Coroutine[Any, Any, T], *guards: Coroutine[Any, Any, NoReturn]) -> T:
    """Return the result of the work, or raise the exception of the first guard that fails before that."""
    working = asyncio.ensure_future(work)
    watching = [asyncio.ensure_future(guard) for guard in guards]
    tasks: list[asyncio.Future[Any]] = [working, *watching]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for guard in watching:
            if guard.done() and not working.done():
                guard.result()
        return await working
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)


def check_qos(text: str) -> int:
    """Return the QoS that a text names.

    Raises:
        UsageError: The text is not 0, 1 or 2.
    """
    if text not in ("0", "1", "2"):
        raise UsageError(
            f"unknown QoS {text}; choose 0 (at most once), 1 (at least once) or 2 (in the log exactly once)"
        )
    return int(text)
