"""The connections and options of all commands that talk to a broker."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest
import typer
from tests.cli.real import GODWIT, PATIENCE_S, broker, environment, needs_posix, running, subscribed

from godwit.cli import connection
from godwit.cli.connection import (
    Target,
    ask,
    check_qos,
    connected,
    guarded,
    parse_timeout,
    print_notice,
    read_secret,
    run,
)
from godwit.errors import AccessError, BrokerUnreachableError, GodwitError, KickedError, NameInUseError, UsageError
from godwit.net import loop
from godwit.net.client import AsyncClient, connect
from godwit.net.connecting import Connecting
from godwit.net.loop import TimeLimit


def test_a_target(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b" a secret\r\n")
    assert Target.of("h", "me", secret, 3.0) == Target("h", "me", b" a secret", 3.0)
    assert Target.of("h", None, None, parse_timeout("never")).timeout_s is None


def test_timeouts() -> None:
    assert [parse_timeout(value) for value in ("0.5", "10", 10.0)] == [0.5, 10.0, 10.0]
    for text in ("0", "0.0", "-1", "nan", "inf", "1e12"):
        with pytest.raises(UsageError, match="is out of range; give seconds above 0, or never"):
            parse_timeout(text)
    with pytest.raises(UsageError, match="--timeout 'soon' is not a number; give seconds, or never"):
        parse_timeout("soon")


def test_secrets(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for content, error in ((b"", "is empty"), (b"\n", "is empty"), (b"x" * 1025, "is longer than 1024 bytes")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=error):
            read_secret(path)
    path.write_bytes(b"x" * 1024 + b"\r\n")
    assert len(read_secret(path)) == 1024
    with pytest.raises(GodwitError, match="cannot read the secret file"):
        read_secret(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="a secret proves a name"):
        Target.of("h", None, path, None)


@pytest.mark.parametrize("text", ["", "3", "-1", "two", "1.0", " 1"])
def test_no_qos(text: str) -> None:
    with pytest.raises(UsageError, match="unknown QoS"):
        check_qos(text)


def test_qos() -> None:
    assert [check_qos(text) for text in "012"] == [0, 1, 2]


def test_a_new_key_of_a_broker_is_trusted_with_a_line(tmp_path: Path) -> None:
    with broker("--data", str(tmp_path / "data"), "--archive", "none") as address:
        command = [*GODWIT, "pub", "a", "x", "--quiet", "--timeout", "120", "--broker", f"udps://{address}"]
        for variables, line in (
            ({}, rf"godwit: trusting the broker {address}, which is new here: its key is sha256:[0-9a-f]{{64}}, .*\n"),
            ({}, ""),
            ({"XDG_CONFIG_HOME": str(tmp_path / "logs"), "GODWIT_LOG": "warning"}, r"\S+ \S+ .*: trusting the .*\n"),
        ):
            result = subprocess.run(
                command,
                env=environment(**{"XDG_CONFIG_HOME": str(tmp_path / "config"), **variables}),
                capture_output=True,
                text=True,
                timeout=PATIENCE_S * 2,
                check=False,
            )
            assert (result.returncode, result.stdout) == (0, ""), result.stderr
            notices = re.sub(r"godwit: waiting .*\n", "", result.stderr)  # on a busy machine
            assert re.fullmatch(line, notices), result.stderr


def test_tell_is_safe(capsys: pytest.CaptureFixture[str]) -> None:
    print_notice("lost \x1b[2J\n")
    assert capsys.readouterr().err == "godwit: lost \\x1b[2J\\n\n"


# -- guards -----------------------------------------------------------------------------------------------------------


async def never() -> NoReturn:
    await asyncio.sleep(60)
    raise AssertionError


async def fail() -> NoReturn:
    await asyncio.sleep(0.01)
    raise GodwitError("the guard")


def test_the_result_of_the_work_counts() -> None:
    async def work() -> int:
        return 7

    assert asyncio.run(guarded(work(), never())) == 7


def test_a_guard_ends_the_work() -> None:
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await asyncio.sleep(60)
        finally:
            cancelled = True

    with pytest.raises(GodwitError, match="the guard"):
        asyncio.run(guarded(work(), never(), fail()))
    assert cancelled


def test_what_the_work_raises_comes_out() -> None:
    async def work() -> None:
        raise GodwitError("the work")

    with pytest.raises(GodwitError, match="the work"):
        asyncio.run(guarded(work(), never()))


# -- a broker that comes and goes -------------------------------------------------------------------------------------


def test_ask(address: str) -> None:
    assert ask(Target(address, "asker"), AsyncClient.ping) > 0

    async def silence(client: AsyncClient) -> None:
        await asyncio.sleep(60)

    with pytest.raises(BrokerUnreachableError, match=r"did not answer within 10 s"):
        ask(Target(address, timeout_s=10.0), silence)


def test_the_reply_has_the_time_that_the_connection_left(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_connected = connection.connected
    begun_at: list[float] = []
    deadlines: list[float | None] = []

    @asynccontextmanager
    async def connected_later(target: Target, notice: connection._WaitNotice | None) -> AsyncIterator[AsyncClient]:
        now = asyncio.get_running_loop().time
        begun_at.append(now())
        async with real_connected(target, notice) as client:
            while now() == begun_at[0]:
                await asyncio.sleep(0.001)
            yield client

    def limit(timeout_s: float | None) -> TimeLimit:
        deadlines.append(None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s)
        return TimeLimit(timeout_s)

    async def request(client: AsyncClient) -> None:
        monkeypatch.undo()

    monkeypatch.setattr(connection, "connected", connected_later)
    monkeypatch.setattr(loop, "TimeLimit", limit)
    ask(Target(address, timeout_s=60.0), request)
    (begun,), (deadline,) = begun_at, deadlines
    assert deadline is not None
    assert deadline <= begun + 60 + 1e-6  # rounded


def test_a_command_with_a_time_limit_prints_what_it_waits_for(
    address: str, nowhere: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask_until_printed(client: AsyncClient) -> str:
        monkeypatch.setattr(connection, "REPLY_NOTICE_DELAY_S", 0.01)  # not before: the welcome may take its time
        while not (printed := capsys.readouterr().err):
            await asyncio.sleep(0.01)
        return printed

    line = "godwit: waiting for an answer from {}, for {} s in all (Ctrl-C ends)\n"
    assert ask(Target(address, timeout_s=60.0), ask_until_printed) == line.format(address, 60)
    with pytest.raises(BrokerUnreachableError):
        ask(Target(nowhere, timeout_s=0.5), ask_until_printed)
    assert capsys.readouterr().err == line.format(nowhere, 0.5)


def test_a_command_prints_once_what_it_waits_for(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "REPLY_NOTICE_DELAY_S", 0.0)

    async def main() -> None:
        notice = connection._WaitNotice(Target(address, timeout_s=60.0))
        await notice.run()
        await notice.run()

    asyncio.run(main())
    assert capsys.readouterr().err.count("waiting for an answer") == 1


ACCESS = """
[access]
anonymous = {anonymous}
[[access.client]]
name = "listed"
secret = "the right secret"
[[access.rule]]
clients = ["listed"]
allow = ["subscribe"]
topics = ["#"]
"""


def test_a_refused_secret_is_explained(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    for anonymous in ("true", "false"):
        config.write_text(ACCESS.format(anonymous=anonymous))
        with broker("--config", str(config)) as address:
            for name in ("listed", "unlisted"):
                with pytest.raises(AccessError, match=f"a secret was given for the name '{name}': most likely the"):
                    ask(Target(address, name, b"another secret", PATIENCE_S), AsyncClient.ping)
            with pytest.raises(AccessError) as refused:
                ask(Target(address, "listed", timeout_s=PATIENCE_S), AsyncClient.ping)
            assert "most likely" not in str(refused.value)


def test_a_missing_right_is_explained(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(ACCESS.format(anonymous="true"))
    with broker("--config", str(config)) as address:
        for target, ends in (
            (Target(address, timeout_s=PATIENCE_S), "prove a name that may: --name and --secret-file"),
            (Target(address, "reader", timeout_s=PATIENCE_S), "prove the name 'reader' if it may: --secret-file"),
            (Target(address, "listed", b"the right secret", PATIENCE_S), "for a rule that allows it"),
        ):
            with pytest.raises(AccessError, match=r"may not publish to 'a' \(no .*\); ask the operator") as refused:
                ask(target, lambda client: client.publish("a", "x"))
            assert str(refused.value).endswith(ends)
        with pytest.raises(AccessError, match=r"own$"):
            ask(Target(address, timeout_s=PATIENCE_S), lambda client: client.publish("$a", "x"))


@needs_posix
def test_a_client_that_waits_for_a_name_gets_the_right_notice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its holder was killed, and the broker does not know that yet."""
    run_notice = connection._WaitNotice.run

    async def run_when_answered(self: connection._WaitNotice, opening: Connecting | None = None) -> None:
        while opening is not None and not opening.is_answered:  # on a busy machine that takes its time
            await asyncio.sleep(0.01)
        await run_notice(self, opening)

    monkeypatch.setattr(connection._WaitNotice, "run", run_when_answered)
    monkeypatch.setattr(connection, "NOTICE_DELAY_S", 0.2)
    monkeypatch.setattr(connection, "REPLY_NOTICE_DELAY_S", 0.2)
    with broker() as address:
        for target, what in (
            (Target(address, "one"), "the name 'one'; waiting"),
            (Target(address, "two", timeout_s=120.0, is_cursor=True), "the cursor 'two'; waiting, for 120 s in all"),
        ):
            name = str(target.name)
            with running("sub", name, "--name", name, "--broker", address) as holder:
                subscribed(address, name)
                holder.process.kill()
                assert ask(target, AsyncClient.ping) > 0
            assert capsys.readouterr().err == (
                f"godwit: the broker at {address} answers, but another connection still seems to hold {what} "
                "(Ctrl-C ends)\n"
            )


def test_a_cursor_in_use(address: str) -> None:
    async def main(target: Target) -> None:
        async with connect(address, name="used"), connected(target):
            pass

    with pytest.raises(NameInUseError, match="the name 'used' is in use"):
        run(main(Target(address, "used")))
    with pytest.raises(
        NameInUseError, match=r"the cursor 'used' is in use by another client .* or choose another cursor"
    ):
        run(main(Target(address, "used", is_cursor=True)))


@needs_posix
@pytest.mark.parametrize("is_interactive", [True, False])
def test_sigterm_ends_it_as_ctrl_c_does(address: str, is_interactive: bool) -> None:
    async def names() -> set[str]:
        async with connect(address) as client:
            return {each.name for each in await client.clients()}

    async def main() -> None:
        async with connected(Target(address, "terminated", session_expiry_s=0)):
            assert "terminated" in await names()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)

    with pytest.raises(typer.Exit) as ended:
        run(main(), is_interactive=is_interactive)
    assert ended.value.exit_code == 143
    assert "terminated" not in asyncio.run(names())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_broker_that_is_lost_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "POLL_S", 0.02)

    async def main(target: Target) -> None:
        async with connected(target):
            command.process.terminate()
            await asyncio.sleep(60)

    with running("broker", "--listen", "127.0.0.1:0", "--memory") as command:
        address = command.out.until("listening on").rpartition("udp://")[2]
        with pytest.raises(BrokerUnreachableError, match=r"was lost .* and did not come back within 10 s"):
            run(main(Target(address, timeout_s=10.0)))


def test_a_client_that_is_sent_away_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "POLL_S", 0.02)

    async def main(address: str) -> None:
        async with connected(Target(address, "victim")):
            async with connect(address) as admin:
                await admin.kick("victim", reason="enough")
            await asyncio.sleep(60)

    with broker() as address, pytest.raises(KickedError, match="enough"):
        run(main(address))


def test_an_error_in_the_block_comes_out(address: str) -> None:
    async def main() -> None:
        async with connected(Target(address)):
            raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        run(main())
