"""`godwit request` and `godwit reply` as a user sees them."""

from __future__ import annotations

import json
import signal

import pytest
from tests.cli.real import error_of, godwit, needs_posix, running, subscribed


@needs_posix
def test_a_command_replies(address: str) -> None:
    with running("reply", "cli/upper", "--exec", "tr a-z A-Z", "--broker", address, "--name", "upper") as reply:
        subscribed(address, "cli/upper")
        result = godwit("request", "cli/upper", "hello; $(echo no)", "--timeout", "120", "--broker", address)
        assert (result.returncode, result.stdout) == (0, b"HELLO; $(ECHO NO)\n"), result.stderr
        result = godwit("request", "cli/upper", "-", "--timeout", "120", "--json", "--broker", address, input=b"x")
        assert (json.loads(result.stdout)["payload"], json.loads(result.stdout)["publisher"]) == ("X", "upper")
        result = godwit("request", "cli/upper", "a", "--replies", "2", "--timeout", "10", "--broker", address)
        assert (result.returncode, result.stdout) == (1, b"A\n")
        assert b"1 of 2 replies arrived within 10 s" in result.stderr
        reply.process.send_signal(signal.SIGINT)
        assert reply.wait() == 130


@needs_posix
def test_a_failing_command_is_reported(address: str) -> None:
    command = "sh -c 'echo sorry >&2; exit 3'"
    with running("reply", "cli/fails", "--exec", command, "--quiet", "--broker", address):
        subscribed(address, "cli/fails")
        text = error_of("request", "cli/fails", "x", "--timeout", "120", "--broker", address)
        assert "TaskFailedError: sh ended with code 3: sorry" in text


@needs_posix
def test_the_environment_describes_the_request(address: str) -> None:
    command = "sh -c 'echo $GODWIT_TOPIC $GODWIT_PUBLISHER $GODWIT_CONTENT_TYPE'"
    with running("reply", "cli/env/#", "--exec", command, "--broker", address):
        subscribed(address, "cli/env/#")
        options = ["--timeout", "120", "--name", "me", "--content-type", "text/x", "-H", "a=b", "--broker", address]
        assert godwit("request", "cli/env/1", "x", *options).stdout == b"cli/env/1 me text/x\\n\n"


def test_no_responder(address: str) -> None:
    assert "no client is subscribed to 'cli/unknown' now" in error_of(
        "request", "cli/unknown", "x", "--broker", address
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["request", "a/#", "x"], "wildcards are for subscriptions"),
        (["request", "a", "x", "--timeout", "0"], "--timeout 0 is out of range"),
        (["request", "a", "x", "--replies", "0"], "--replies 0 is out of range"),
        (["request", "a", "x", "--qos", "3"], "unknown QoS 3"),
        (["request", "a", "x", "-H", "b"], "is not NAME=VALUE"),
        (["reply", "a", "--exec", "no-such-command-at-all"], "does not exist here; check --exec"),
        (["reply", "a", "--exec", ""], "--exec is empty; name a command"),
        (["reply", "a", "--exec", "'"], "has a quote that is not closed"),
        (["reply", "a", "--exec", "true", "--capacity", "0"], "--capacity 0 is out of range"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], text: str) -> None:
    assert text in error_of(*arguments)
