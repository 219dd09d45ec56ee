"""What all commands that talk to a broker share: their options, and how they get, keep and lose a connection."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer

from godwit.cli.streams import OutputClosedError, discard_output
from godwit.cli.text import safe
from godwit.errors import AccessError, BrokerUnreachableError, GodwitError, NameInUseError, UsageError
from godwit.limits import MAX_SECRET_BYTES, SESSION_EXPIRY_S

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient, Connecting

T = TypeVar("T")

DEFAULT_BROKER: Final = "localhost:50000"
TIMEOUT_S: Final = 10.0
"""Of a command that asks one thing and ends."""
SILENCE_S: Final = 1.0
"""After so long without a broker the user is told what the program waits for."""
ANSWER_SILENCE_S: Final = 2.0
"""The same, of a command that gives up by itself."""
LOOK_S: Final = 0.25
FAREWELL_S: Final = 1.0
"""How long an interrupted command may take to say goodbye."""
EXIT_TERMINATED: Final = 143
"""What a shell reports for a program that SIGTERM ended: 128 + SIGTERM."""

BrokerOption = Annotated[
    str, typer.Option("--broker", envvar="GODWIT_BROKER", metavar="HOST:PORT", help="Where the broker listens.")
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Who this client is; the broker remembers its subscriptions under this name."),
]
SecretOption = Annotated[
    Path | None, typer.Option("--secret-file", metavar="FILE", help="Holds the secret that proves the name.")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", help="Give up when the broker is out of reach for so long; 0: never."),
]


@dataclass(frozen=True)
class Target:
    """Which broker, as whom, and for how long to try. Without `timeout_s`: for ever, and the user is told so."""

    broker: str
    name: str | None = None
    secret: bytes = b""
    timeout_s: float | None = None
    session_expiry_s: int = SESSION_EXPIRY_S
    is_cursor: bool = False
    """The name is that of a cursor, which is all that the user knows of it."""

    @classmethod
    def of(cls, broker: str, name: str | None, secret_file: Path | None, timeout: float | None) -> Target:
        """From the options of the command line."""
        if timeout is not None and not timeout >= 0:
            raise UsageError(f"--timeout {timeout:g} cannot be; give seconds, or 0 to try for ever")
        if secret_file is not None and not name:
            raise UsageError("a secret proves a name: add --name to --secret-file")
        secret = b"" if secret_file is None else read_secret(secret_file)
        return cls(broker, name, secret, timeout or None)


def read_secret(path: Path) -> bytes:
    """What a secret file holds, without the line end that editors add."""
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


def tell(text: str) -> None:
    """One line for the user, beside what the command puts out."""
    print(f"godwit: {safe(text)}", file=sys.stderr, flush=True)


def run(main: Coroutine[Any, Any, T], *, types: bool = False) -> T:
    """Runs a command to its end. When the reader of its output is gone, that is the end, and a good one.

    With `types` somebody types: uvloop, which makes a terminal that it reads non-blocking for all who use it, is not
    taken then.
    """
    from godwit.net import loop

    try:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop if types else loop.new_event_loop) as runner:
            return runner.run(_until_terminated(main))
    except OutputClosedError:
        discard_output()
        raise typer.Exit(0) from None


async def _until_terminated(main: Coroutine[Any, Any, T]) -> T:
    """SIGTERM ends a command as Ctrl-C does: it says goodbye, and the broker need not wait for it in vain."""
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
    """A client that is online. While the block runs, the user hears when the broker is lost and found again.

    The block is ended with BrokerUnreachableError if there is a time limit and the broker is away for longer, and with
    the broker's reason if the client is sent away for good.
    """
    from godwit.net.client import connect

    watch = _Watch(target)
    opening = connect(
        target.broker,
        name=target.name,
        secret=target.secret,
        timeout_s=target.timeout_s,
        session_expiry_s=target.session_expiry_s,
        on_state=watch.on_state,
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
                watching = asyncio.create_task(watch.run(client, limit))
                try:
                    yield client
                finally:
                    watching.cancel()
        except AccessError as error:
            raise _explained_refusal(error, target) from None
        except TimeoutError:
            if not limit.expired():
                raise
            client.require_open()  # raises why it has ended, if it has
            raise BrokerUnreachableError(
                f"the broker at {target.broker} was lost ({client.last_reason}) and did not come back within "
                f"{target.timeout_s:g} s: see whether it runs, then try again"
            ) from None


def ask(target: Target, question: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Connects, asks one thing, and gives the answer; BrokerUnreachableError if it does not come in time."""

    async def main() -> T:
        notice = _WaitNotice(target)
        async with connected(target, notice) as client:
            waiting = asyncio.create_task(notice.run())
            try:
                async with asyncio.timeout(target.timeout_s):
                    return await question(client)
            except TimeoutError:
                raise BrokerUnreachableError(
                    f"the broker at {target.broker} did not answer within {target.timeout_s:g} s; try again, "
                    "or give it more time with --timeout"
                ) from None
            finally:
                waiting.cancel()

    return run(main())


class _WaitNotice:
    """The line that a command prints, at most once, when the broker does not answer soon."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._is_printed = False

    async def run(self, opening: Connecting | None = None) -> None:
        """Wait, then print the line. With `opening` the command waits for the broker's welcome, else for a reply."""
        target = self._target
        await asyncio.sleep(SILENCE_S if target.timeout_s is None else ANSWER_SILENCE_S)
        if self._is_printed:
            return
        self._is_printed = True
        limit = "" if target.timeout_s is None else f", for {target.timeout_s:g} s in all"
        if opening is not None and opening.is_answered:
            if target.name is not None and not target.secret:
                what = "cursor" if target.is_cursor else "name"
                why = f"another connection still seems to hold the {what} {target.name!r}"
            else:  # a client that proves its name, or has none, waits for no other client
                why = "it has not let this client in yet"
            tell(f"the broker at {target.broker} answers, but {why}; waiting{limit} (Ctrl-C ends)")
        elif target.timeout_s is None:
            tell(f"no broker answers at {target.broker}; still trying (Ctrl-C ends)")
        else:
            tell(f"waiting for an answer from {target.broker}{limit} (Ctrl-C ends)")


def _explained_login(error: AccessError, target: Target) -> AccessError:
    """With the likeliest reasons for it, which a broker does not tell."""
    if not target.secret:
        return error
    return AccessError(
        error.code,
        f"{error} (a secret was given for the name {target.name!r}: most likely the broker does not list this name "
        "under [[access.client]], or lists it with another secret)",
    )


def _explained_name(error: NameInUseError, target: Target) -> NameInUseError:
    """In the user's terms, who gave a cursor and no name."""
    if not target.is_cursor:
        return error
    return NameInUseError(
        error.code,
        f"the cursor {target.name!r} is in use by another client that answers: end that one first, or name another "
        "cursor",
    )


def _explained_refusal(error: AccessError, target: Target) -> AccessError:
    """With what to do about it."""
    if " may not " not in error.text:
        return error
    if target.secret:
        prove = ""
    elif target.name is not None and not target.is_cursor:
        prove = f", or prove the name {target.name!r} if it may: --secret-file"
    else:
        prove = ", or prove a name that may: --name and --secret-file"
    return AccessError(error.code, f"{error}; ask whoever runs the broker for a rule that allows it{prove}")


class _Watch:
    """Tells the user when the broker is lost and found again, and when to give up."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._told = False

    def on_state(self, state: str, reason: str) -> None:
        """At once, so that it comes before what the connection brings."""
        if state == "online" and self._told:
            self._told = False
            tell(f"the broker at {self._target.broker} is back")

    async def run(self, client: AsyncClient, limit: asyncio.Timeout) -> None:
        target = self._target
        now = asyncio.get_running_loop().time
        lost_at: float | None = None
        while client.state != "closed":
            await asyncio.sleep(LOOK_S)
            if client.state == "online":
                lost_at = None
                continue
            lost_at = now() if lost_at is None else lost_at
            if target.timeout_s is not None and now() - lost_at >= target.timeout_s:
                break
            if target.timeout_s is None and not self._told and now() - lost_at >= SILENCE_S:
                self._told = True
                tell(f"lost the broker at {target.broker} ({client.last_reason}); trying to get it back (Ctrl-C ends)")
        limit.reschedule(now())


async def guarded(work: Coroutine[Any, Any, T], *guards: Coroutine[Any, Any, NoReturn]) -> T:
    """The result of the work, unless a guard raises something before it is done."""
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
        await asyncio.wait(tasks, timeout=FAREWELL_S)


def check_qos(text: str) -> int:
    """0, 1 or 2."""
    if text not in ("0", "1", "2"):
        raise UsageError(
            f"there is no QoS {text}; choose 0 (at most once), 1 (at least once) or 2 (in the log exactly once)"
        )
    return int(text)
