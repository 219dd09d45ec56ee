"""Checks of the arguments that applications give to the client's methods."""

from __future__ import annotations

from typing import Final, get_args

from godwit.client.message import Bookmark
from godwit.client.subscription import Start
from godwit.errors import UsageError
from godwit.limits import MAX_CLIENT_NAME_BYTES
from godwit.wire.control import RetainHandling

_RETAIN_HANDLINGS: Final[tuple[RetainHandling, ...]] = get_args(RetainHandling)


def check_text(what: str, value: object) -> None:
    """Raise UsageError if an argument is not a text."""
    if not isinstance(value, str):
        raise UsageError(f"{what} is {repr(value)[:80]}, of the type {type(value).__name__}: give a text (str)")


def check_flag(what: str, value: object) -> None:
    """Raise UsageError if an argument is not True or False: a text such as "no" would count as true."""
    if type(value) is not bool:
        raise UsageError(f"{what} is {repr(value)[:80]}, of the type {type(value).__name__}: give True or False")


def check_argument_name(what: str, name: object) -> str:
    """Return the name of an identity, a cursor or a group. Raise UsageError if it is invalid."""
    if not isinstance(name, str):
        raise UsageError(f"{what} is {repr(name)[:80]}, of the type {type(name).__name__}: give a text (str)")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} {name[:40]!r} has characters that cannot be written as UTF-8") from None
    if not 1 <= size <= MAX_CLIENT_NAME_BYTES:
        raise UsageError(f"{what} {name[:40]!r} has {size} bytes in UTF-8: it has 1 to {MAX_CLIENT_NAME_BYTES}")
    return name


def check_number(what: str, value: object) -> int:
    """Return a number of an identity. Raise UsageError if it is not a whole number."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise UsageError(f"{what} is {value!r}: give a whole number between 0 and 2**63 - 1")
    return value


def check_position(what: str, value: object) -> int:
    """Return an offset or a time. Raise UsageError if it is out of range."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise UsageError(f"{what} is {value!r}: it must lie between 0 and 2**63 - 1")
    return value


def check_start(start: object) -> Start:
    """Return where a subscription begins. Raise UsageError if that is unknown."""
    if start is None or isinstance(start, Bookmark):
        return start
    if isinstance(start, int):
        return check_position("start", start)
    if start == "latest":
        return "latest"
    if start == "earliest":
        return "earliest"
    raise UsageError(f"start is {start!r}: give an offset, a bookmark, 'latest' or 'earliest'")


def check_retained(retained: object) -> RetainHandling | None:
    """Return which retained messages a subscription gets. Raise UsageError if that is unknown."""
    for known in _RETAIN_HANDLINGS:
        if retained == known:
            return known
    if retained is not None:
        raise UsageError(f"retained is {retained!r}: choose 'always', 'if new' or 'never', or None for the default")
    return None
