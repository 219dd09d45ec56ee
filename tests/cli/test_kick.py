"""`godwit kick` as a user meets it. What the removed one sees is in test_sub.py and test_shell.py."""

from __future__ import annotations

import pytest
from tests.cli.real import error_of, godwit, running, subscribed

from godwit.cli.kick import kicked_text


def test_a_subscription_then_the_client(address: str) -> None:
    with running("shell", "--name", "kick-me", "--broker", address) as victim:
        victim.write("sub kick/a\nsub kick/b\n")
        subscribed(address, "kick/b")
        result = godwit("kick", "kick-me", "kick/a", "--broker", address)
        assert (result.returncode, result.stdout) == (0, b"removed the subscription of kick-me to kick/a\n")
        assert victim.out.until("removed").startswith("You were removed from kick/a")
        error = error_of("kick", "kick-me", "kick/#", "--broker", address)
        assert "no subscription to exactly kick/#; godwit clients shows" in error
        result = godwit("kick", "kick-me", "--reason", "closing time", "--broker", address)
        assert (result.returncode, result.stdout) == (0, b"removed kick-me\n")
        assert "closing time" in victim.err.line()
        assert victim.wait() == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([""], "the name of the client is empty"),
        (["nobody"], "there is no client 'nobody'; godwit clients shows the names"),
        (["nobody", "a#"], "a wildcard stands alone"),
    ],
)
def test_bad_input_is_one_line(address: str, arguments: list[str], text: str) -> None:
    assert text in error_of("kick", *arguments, "--broker", address)


def test_text() -> None:
    assert kicked_text("a\x1b", []) == "removed a\\x1b"
    assert kicked_text("a", ["b", "c"]) == "removed the subscription of a to b + c"
