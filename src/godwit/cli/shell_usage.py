"""The commands of `godwit shell` with their arguments: what help shows, and what is held against a typed line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from godwit.cli.shell_words import first_word, words
from godwit.errors import UsageError

HELP: Final[Mapping[str, tuple[str, str]]] = {
    "pub": ("pub TOPIC MESSAGE", "publish a message"),
    "retain": ("retain TOPIC MESSAGE", "publish one that later subscribers get too; without MESSAGE: forget it"),
    "sub": ("sub FILTER", "show messages from now on; + is any one level, # the rest, * one or more levels"),
    "unsub": ("unsub FILTER", "show them no longer"),
    "subs": ("subs", "what you are subscribed to"),
    "list": ("list [FILTER]", "the topics that there are"),
    "create": ("create TOPIC", "a new topic"),
    "clients": ("clients", "who is connected"),
    "kick": ("kick CLIENT [FILTER]", "remove a client, or its subscription"),
    "job submit": (
        "job submit KIND [PAYLOAD]",
        "give work to a worker; --workers N or --workers all before KIND: to several. What becomes of it is shown",
    ),
    "job list": ("job list [KIND]", "the newest jobs that there are"),
    "job show": ("job show JOB", "one job and its tasks"),
    "job watch": ("job watch JOB", "show what becomes of it"),
    "job cancel": ("job cancel JOB [REASON]", "end it"),
    "volunteer": (
        "volunteer KIND...",
        "pretend to work on tasks of these kinds for a second each; --seconds S before KIND: for so long",
    ),
    "withdraw": ("withdraw", "work no longer; unfinished tasks go to others"),
    "wait": ("wait SECONDS", "do nothing for a while, for scripts"),
    "help": ("help", "this list"),
    "quit": ("quit", "end; Ctrl-D does the same, and Ctrl-C on an empty line"),
}

USAGE_WIDTH: Final = max(len(usage) for usage, _ in HELP.values()) + 2


def arguments(command: str, rest: str, least: int, most: int | None) -> list[str]:
    """The words behind a command; UsageError if there are too few or too many of them, or empty ones."""
    found = words(rest)
    if len(found) < least:
        raise missing(command)
    if most is not None and len(found) > most:
        raise UsageError(f"that is more than {command} takes: {HELP[command][0]}; a name with blanks needs quotes")
    if any(not word for word in found):
        raise UsageError(f"a name is empty: {HELP[command][0]}")
    return found


def missing(command: str) -> UsageError:
    """For a line that ends too soon."""
    return UsageError(f"something is missing: {HELP[command][0]}")


def leading_options(command: str, rest: str, names: Sequence[str]) -> tuple[dict[str, str], str]:
    """`--name value` pairs before the first argument, and what follows them."""
    found: dict[str, str] = {}
    while rest.startswith("--"):
        name, rest = first_word(rest)
        if name not in names:
            raise UsageError(f"{command} has no option {name}; there is {' and '.join(names)}")
        found[name], rest = first_word(rest)
        if not found[name]:
            raise UsageError(f"the option {name} needs a value: {command} {name} VALUE ...")
    return found, rest
