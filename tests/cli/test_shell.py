"""`godwit shell` as a user sees it: scripts, and a real terminal in which messages arrive while the user types."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import pytest
from tests.cli.real import broker, godwit, lines, needs_posix, running, subscribed
from tests.ports import free_port

if sys.platform != "win32":
    from tests.cli.terminal import terminal


# -- scripts ----------------------------------------------------------------------------------------------------------


def script(address: str, text: str, *arguments: str) -> tuple[int, list[str], list[str]]:
    result = godwit("shell", "--broker", address, *arguments, input=text.encode("utf-8", "surrogateescape"))
    return result.returncode, list(lines(result.stdout)), list(lines(result.stderr))


def test_a_script(address: str) -> None:
    code, out, err = script(
        address,
        """
        # what R2 and R4 can do
        create shell/script/room 1
        create "shell/script/room 1"
        sub shell/script/#
        pub "shell/script/room 1" 21.5 degrees
        wait 0.2
        unsub shell/script/#
        pub "shell/script/room 1" 22
        list shell/script/#
        """,
    )
    assert code == 1
    assert err == ["godwit: too many arguments: create TOPIC; a name with blanks needs quotes"]
    assert out[:2] == ["Topic created.", "Subscribed to shell/script/#."]
    assert set(out[2:4]) == {"reached 1 subscriber", "shell/script/room 1: 21.5 degrees"}
    assert out[4:] == [
        "Unsubscribed from shell/script/#.",
        "reached no subscriber",
        "shell/script/room 1  (0 subscribers)",
    ]


def test_what_a_script_published_last_is_still_shown(address: str) -> None:
    code, out, err = script(address, "sub shell/last\npub shell/last x")
    assert (code, err) == (0, [])
    assert "shell/last: x" in out


def test_the_answers_of_the_reference_systems(tmp_path: Path) -> None:
    """R2: an unknown topic, a second subscription, one that there is not. R1: publishing to an unknown room."""
    config = tmp_path / "broker.toml"
    config.write_text('[topics]\npolicy = "publishers"\n[[topics.rule]]\nfilter = "rooms/#"\npolicy = "explicit"\n')
    with broker("--config", str(config)) as address:
        code, out, err = script(
            address,
            """
            sub news
            pub news hello
            sub news
            sub news
            unsub weather
            pub rooms/1 warm
            create rooms/1
            pub rooms/1 warm
            quit
            pub news never
            """,
        )
    assert code == 1
    assert err == [
        "godwit: Topic does not exist.",
        "godwit: Already subscribed to topic.",
        "godwit: You are not currently subscribed to this topic.",
        "godwit: Topic does not exist.",
    ]
    assert out == [
        "reached no subscriber",
        "Subscribed to news.",
        "Topic created.",
        "reached no subscriber",
    ]


def test_clients_and_kick(address: str) -> None:
    """R1: a subscription is removed from another terminal; its client is notified and continues."""
    with running("shell", "--name", "shell-victim", "--broker", address) as victim:
        victim.write("sub shell/kick\n")
        assert victim.out.line() == "Subscribed to shell/kick."
        code, out, _ = script(address, "clients\nkick shell-victim shell/kick\n", "--name", "shell-admin")
        assert code == 0
        assert any(line.startswith("shell-victim  127.0.0.1:") and line.endswith("shell/kick") for line in out)
        assert out[-1] == "removed the subscription of shell-victim to shell/kick"
        assert victim.out.until("shell/kick").startswith("You were removed from shell/kick: ")
        assert "shell-admin" in victim.out.seen[-1]
        victim.write("subs\n")
        assert victim.out.line() == "You are not subscribed to anything."
        code, out, _ = script(address, "kick shell-victim", "--name", "shell-admin")
        assert (code, out[-1]) == (0, "removed shell-victim")
        assert victim.wait() == 1
        assert "shell-admin" in victim.err.line()


@needs_posix
def test_ctrl_c_ends_a_script_that_waits(address: str) -> None:
    with running("shell", "--broker", address) as shell:
        shell.write("sub shell/interrupt\n")
        shell.out.line()
        assert shell.interrupt() == 130
        assert shell.err.rest() == []


def test_a_line_that_is_no_text(address: str) -> None:
    code, out, err = script(address, "pub shell/bytes \udcff\nsub \udcff\n")
    assert (code, out) == (1, ["reached no subscriber"])
    assert "is not valid Unicode" in err[0]


# -- a terminal -------------------------------------------------------------------------------------------------------


@needs_posix
def test_messages_arrive_while_the_user_types(address: str, tmp_path: Path) -> None:
    with terminal("shell", "--broker", address, "--name", "typist", XDG_STATE_HOME=str(tmp_path)) as shell:
        assert f"Connectedto{address}astypist" in shell.until("godwit> ")
        shell.type("sub shell/pty\r")
        shell.until("Subscribed to shell/pty.")
        subscribed(address, "shell/pty")
        shell.type("pub shell/other hel")
        shell.until("hel")
        godwit("pub", "shell/pty", "an \x1b[31minterruption", "--broker", address)
        shell.until("shell/pty: an \\x1b[31minterruption")
        shell.until("pub shell/other hel")  # the line that is being typed is drawn again
        shell.type("lo\r")
        shell.until("reached no subscriber")
        shell.type("nonsense\r")
        shell.until("unknown command nonsense")
        shell.type("unsub shell/pty\r")
        shell.until("Unsubscribed from shell/pty.")
        shell.type("quit\r")
        assert shell.wait() == 0
    history = tmp_path / "godwit" / "shell_history"
    assert "+pub shell/other hello" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


@needs_posix
def test_completion_and_history(address: str, tmp_path: Path) -> None:
    godwit("pub", "shell/complete/kitchen", "x", "--broker", address)
    with terminal("shell", "--broker", address, XDG_STATE_HOME=str(tmp_path)) as shell:
        shell.until("godwit> ")
        shell.type("pub shell/comp\t")
        shell.until("shell/complete/kitchen")
        shell.type(" warm\r")
        shell.until("reached no subscriber")
    with terminal("shell", "--broker", address, XDG_STATE_HOME=str(tmp_path)) as shell:
        shell.until("godwit> ")
        shell.insist("\x1b[A", "pub shell/complete/kitchen warm")  # the history is read while one can type already
        shell.type("\r")
        shell.until("reached no subscriber")
        shell.type("\x04")
        assert shell.wait() == 0


@needs_posix
def test_ctrl_c_drops_a_line_and_ends_at_an_empty_one(address: str, tmp_path: Path) -> None:
    with terminal("shell", "--broker", address, XDG_STATE_HOME=str(tmp_path)) as shell:
        shell.until("godwit> ")
        shell.type("pub shell/dropped x")
        shell.until("shell/dropped x")
        shell.type("\x03")
        shell.until("godwit> ")
        shell.type("\x03")
        assert shell.wait() == 130
        assert "Traceback" not in shell.screen
    assert godwit("topics", "show", "shell/dropped", "--broker", address).returncode == 1


@needs_posix
def test_typing_continues_while_the_broker_is_away(tmp_path: Path) -> None:
    """Waiting for the network never blocks the user: the biggest regret of a reference system's author."""
    address = f"127.0.0.1:{free_port()}"
    with running("broker", "--listen", address, "--memory") as first:
        first.out.until("listening on")
        with terminal("shell", "--broker", address, XDG_STATE_HOME=str(tmp_path)) as shell:
            shell.until("godwit> ")
            first.process.send_signal(signal.SIGTERM)
            first.wait()
            shell.until("lost the broker")
            shell.type("pub a waits\r")
            shell.type("help\r")
            shell.type("subs")
            shell.until("subs")
            with running("broker", "--listen", address, "--memory"):
                shell.until("reached no subscriber")
                shell.until("quit")  # of the help
                shell.type("\r")
                shell.until("You are not subscribed to anything.")
                shell.type("quit\r")
                assert shell.wait() == 0


@needs_posix
def test_a_flood_does_not_stop_the_typing(address: str, tmp_path: Path) -> None:
    with terminal("shell", "--broker", address, XDG_STATE_HOME=str(tmp_path)) as shell:
        shell.until("godwit> ")
        shell.type("sub shell/flood\r")
        shell.until("Subscribed")
        flood = b"x" * 200 + b"\n"
        with running("pub", "shell/flood", "--lines", "-q", "--broker", address) as pub:
            pub.write((flood * 100_000).decode())
            pub.close_input()
            shell.until("shell/flood: xxx")
            shell.type("pub shell/beside still here\r")
            shell.until("reached no subscriber")
        shell.type("quit\r")
        assert shell.wait() == 0


@needs_posix
def test_without_a_folder_of_its_own_it_has_no_memory(address: str, tmp_path: Path) -> None:
    (tmp_path / "godwit").write_text("a file where a folder should be")
    with terminal("shell", "--broker", address, XDG_STATE_HOME=str(tmp_path)) as shell:
        shell.until("godwit> ")
        shell.type("quit\r")
        assert shell.wait() == 0


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs a Unix")
def test_no_broker(nowhere: str) -> None:
    code, out, err = script(nowhere, "", "--timeout", "0.3")
    assert (code, out) == (1, [])
    assert "no broker answered" in err[0]


# -- work -------------------------------------------------------------------------------------------------------------


def test_a_shell_that_gives_work_and_one_that_does_it(address: str) -> None:
    with running("shell", "--name", "shell-worker", "--broker", address) as worker:
        worker.write("volunteer --seconds 0 shell/work\n")
        assert worker.out.line() == "Volunteering for shell/work."
        with running("shell", "--name", "shell-boss", "--broker", address) as boss:
            boss.write("job submit --workers all shell/work a photo\n")
            out = [boss.out.line() for _ in range(3)]
            boss.write("job list shell/work\n")
            out.append(boss.out.line())
            boss.close_input()
            assert boss.wait() == 0
            assert (boss.out.rest(), boss.err.rest()) == ([], [])
        number = out[0].removeprefix("job ").partition(":")[0]
        assert out == [
            f"job {number}: 1 worker agreed",
            f"job {number}, task 0: shell-worker finished: simulated for 0 s",
            f"job {number}: done",
            f"{number}  shell/work  done  1/1 finished  (shell-boss)",
        ]
        assert worker.out.line() == f"job {number}, task 0: shell/work from shell-boss: a photo"
        assert "finished in" in worker.out.line()


def test_withdrawing_hands_tasks_back(address: str) -> None:
    """R5: a worker can quit, and volunteer again without a new name."""
    with (
        running("shell", "--name", "shell-quitter", "--broker", address) as quitter,
        running("shell", "--name", "shell-controller", "--broker", address) as controller,
    ):
        quitter.write("volunteer --seconds 600 shell/quit\n")
        quitter.out.until("Volunteering")
        controller.write("job submit shell/quit\n")
        number = controller.out.line().removeprefix("job ").partition(":")[0]
        quitter.out.until(f"job {number}, task 0")
        quitter.write("withdraw\n")
        assert quitter.out.line() == "Withdrawn; 1 task handed back."
        controller.write(f"job show {number}\n")
        assert controller.out.until("task 0") == "task 0  waiting"
        quitter.write("volunteer --seconds 0 shell/quit\n")
        assert controller.out.until("finished") == f"job {number}, task 0: shell-quitter finished: simulated for 0 s"
        controller.write("job submit shell/unknown\n")
        waiting = controller.out.until("waits").removeprefix("job ").partition(" ")[0]
        controller.write(f"job cancel {waiting} not needed\n")
        assert controller.out.line() == f"job {waiting}: cancelled: not needed"


@needs_posix
def test_tasks_arrive_while_the_user_types(address: str, tmp_path: Path) -> None:
    """The biggest regret of a reference system's author: waiting for typed input blocked the arrival of packets."""
    with terminal("shell", "--broker", address, "--name", "typing-worker", XDG_STATE_HOME=str(tmp_path)) as shell:
        shell.until("godwit> ")
        shell.type("volunteer --seconds 0.5 shell/typing\r")
        shell.until("Volunteering for shell/typing.")
        shell.type("pub shell/other hel")
        shell.until("hel")
        result = godwit("job", "submit", "shell/typing", "x", "--wait", "--broker", address)
        assert result.stdout == b"typing-worker: simulated for 0.5 s\n"
        shell.until("task 0: shell/typing from")
        shell.until("finished in ")
        shell.until("pub shell/other hel")  # the line that is being typed is drawn again
        shell.type("lo\r")
        shell.until("reached no subscriber")
        shell.type("quit\r")
        assert shell.wait() == 0
