"""No text of another client acts on the terminal of a user, in any command."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.cli.real import PATIENCE_S, Running, address_of, godwit, needs_posix, running, subscribed

from godwit.cli.main import COMMANDS, load_own_command
from godwit.net.blocking import BlockingClient, connect

EVIL = "\x9b31m\u202e\u2066\u200f\u2028[bold]n[/bold]"
"""Allowed in names and topics: the 8-bit form of an escape, marks of direction, a line separator, markup."""
WORSE = EVIL + "\x1b]0;title\x07\x1b[2J\r\nfake: line\x08\x7f"
"""Allowed in payloads and reasons."""
SHOWN = "\\x9b31m\\u202e"
"""The beginning of an evil name, as a user sees it."""
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

TRIED = {
    "bridge status", "broker", "capture", "clients", "cursors", "flow", "groups list", "job list", "job results",
    "job show", "job submit", "job watch", "kick", "log export", "log info", "log tail", "pub", "reply", "request",
    "sub", "top", "topics list", "topics show", "worker", "workers",
}  # fmt: skip
"""The commands whose output is examined below."""
ELSEWHERE = {
    "console": "tests/console/test_hostile.py",
    "shell": "tests/cli/test_shell_commands.py",
    "pipeline decode": "tests/cli/test_pipeline_decode.py",
    "pipeline quarantine": "tests/cli/test_pipeline_show.py",
    "pipeline query": "tests/cli/test_pipeline_show.py",
    "pipeline report": "tests/pipeline/report",
    "pipeline status": "tests/cli/test_pipeline_show.py",
}
OWN = {
    "cluster begin", "cluster check", "cluster handover", "cluster seed", "cluster status", "config check",
    "context add", "context list", "context remove", "context select", "demo", "dissector install", "dissector path",
    "groups delete", "job cancel", "job retry", "log backup", "log compact", "log purge", "log recover", "log verify",
    "passwd", "ping", "pipeline check", "pipeline rebuild", "pipeline requeue", "pipeline run", "security check",
    "security fingerprint", "security init", "security rotate", "sensors", "topics create", "topics delete", "up",
}  # fmt: skip
"""Commands that print their own texts, names from their own arguments and files, and figures."""


def all_commands() -> set[str]:
    found = set()
    for name in COMMANDS:
        command = load_own_command(name)
        found |= {f"{name} {part}" for part in command.commands} if hasattr(command, "commands") else {name}
    return found


def test_every_command_is_examined() -> None:
    """A new command that prints texts of other clients belongs to TRIED, or to a test of its own."""
    assert all_commands() == TRIED | set(ELSEWHERE) | OWN
    for path in ELSEWHERE.values():
        assert (Path(__file__).parents[2] / path).exists()


def check(what: str, *outputs: bytes) -> str:
    """Return the output as a text in which nothing acts on a terminal."""
    text = b"\n".join(outputs).decode()
    found = ACTS.search(text)
    assert found is None, f"{what}: {found[0]!r} in {text[max(0, found.start() - 80) : found.end() + 20]!r}"
    return text


class Stage:
    """A broker and a client with an evil name."""

    def __init__(self, folder: Path, address: str, client: BlockingClient) -> None:
        self.folder = folder
        self.address = address
        self.client = client

    def ask(self, *arguments: str, shows: str = "", **more: Any) -> str:
        """Run a command that connects to the broker, and return its examined output."""
        return examine(*arguments, "--broker", self.address, shows=shows, **more)


def examine(*arguments: str, shows: str = "", **more: Any) -> str:
    result = godwit(*arguments, **more)
    text = check(" ".join(arguments[:2]), result.stdout, result.stderr)
    assert shows in text, f"{arguments}: {text[:2000]}"
    return text


@needs_posix
def test_no_command_passes_on_what_acts_on_a_terminal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running("broker", "--listen", "127.0.0.1:0", "--data", str(data)) as process:
        address = address_of(process)
        with connect(address, name=f"client {EVIL}", timeout_s=PATIENCE_S) as client:
            stage = Stage(tmp_path, address, client)
            capture = Running("capture", "-o", str(tmp_path / "evil.pcapng"), "--broker", address)
            try:
                process.out.until("capture")
                examine_messages(stage)
                examine_jobs(stage)
                examine_requests(stage)
                capture.interrupt()
                check("capture", "\n".join([*capture.out.rest(), *capture.err.rest()]).encode())
            finally:
                capture.stop()
            stage.ask("kick", f"client {EVIL}", "--reason", "because", shows=SHOWN)
            stage.ask("kick", f"absent {EVIL}", shows=SHOWN)
        process.interrupt()
        seen = "\n".join([*process.out.seen, *process.out.rest(), *process.err.rest()])
        check("broker", seen.encode())
        assert SHOWN in seen
    examine("flow", str(tmp_path / "evil.pcapng"), shows="login")
    folder = ("--data", str(data))
    for arguments in (("info",), ("info", "--json"), ("tail",), ("tail", "--json")):
        examine("log", *arguments, *folder, shows="202e")
    examine("log", "export", "-o", str(tmp_path / "all.jsonl"), *folder)
    check("log export", (tmp_path / "all.jsonl").read_bytes())


def examine_messages(stage: Stage) -> None:
    client, topic = stage.client, f"evil/{EVIL}"
    with (
        client.subscribe(f"{topic}/#", cursor=f"cursor {EVIL}") as own,
        client.subscribe(f"shared/{EVIL}/#", group=f"group {EVIL}".replace("/", "")) as shared,
        running("sub", f"{topic}/#", "--broker", stage.address) as text,
        running("sub", f"{topic}/#", "--json", "--broker", stage.address) as as_json,
    ):
        for place, messages in ((topic, own), (f"shared/{EVIL}", shared)):
            client.publish(place, WORSE, retain=True, headers={EVIL: EVIL}, content_type=EVIL)
            assert next(iter(messages)).payload == WORSE.encode()
        client.publish(topic, WORSE, headers={EVIL: EVIL})
        for output in (text, as_json):  # the retained message, or the new one
            assert "u202e" in check("sub", output.out.line().encode())
        for arguments in (
            ("clients",),
            ("cursors",),
            ("groups", "list"),
            ("topics", "list"),
            ("topics", "show", topic),
        ):
            stage.ask(*arguments, shows=SHOWN)
            assert "202e" in stage.ask(*arguments, "--json")
        for more in ((), ("--topics",)):
            stage.ask("top", "--once", "--interval", "0.2", *more, shows=SHOWN)
        stage.ask("pub", topic, WORSE)
        stage.ask("pub", f"{topic}/+", "x", shows="wildcards")
        stage.ask("bridge", "status")


def examine_jobs(stage: Stage) -> None:
    """A worker and a job with evil names, a result, a failure and texts of the progress."""
    code = f"import sys; data = sys.stdin.read(); sys.exit({WORSE!r}) if data == 'fail' else print({WORSE!r})"
    kind = f"kind/{EVIL}"
    command = shlex.join([sys.executable, "-c", code])
    options = ("--kind", kind, "--exec", command, "--broker", stage.address)
    with running("worker", f"worker {EVIL}", *options) as worker:
        assert SHOWN in check("worker", worker.err.until("volunteers").encode())
        for payload in ("fail", "pass"):
            arguments = ("job", "submit", kind, payload, "--retries", "0", "--wait", "--name", f"boss {EVIL}")
            assert SHOWN in stage.ask(*arguments)
        stage.ask("workers", shows=SHOWN)
        found = [json.loads(line) for line in stage.ask("job", "list", "--json").splitlines() if line.startswith("{")]
        assert len(found) == 2
        stage.ask("job", "list", shows=SHOWN)
        for job in found:
            for what in ("show", "results", "watch"):
                for more in ((), ("--json",)):
                    stage.ask("job", what, str(job["job"]), *more)
        check("worker", "\n".join([*worker.out.rest(), *worker.err.rest()]).encode())


def examine_requests(stage: Stage) -> None:
    topic = f"service/{EVIL}"
    command = shlex.join([sys.executable, "-c", f"print({WORSE!r})"])
    with running("reply", topic, "--exec", command, "--broker", stage.address) as reply:
        assert SHOWN in check("reply", reply.err.until("replying").encode())
        subscribed(stage.address, topic)
        for more in ((), ("--json",)):
            assert "202e" in stage.ask("request", topic, WORSE, "--timeout", "60", *more)
        check("reply", reply.err.until("service").encode())
