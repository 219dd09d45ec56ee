"""Tokens of the archive: a file of tokens, one of which a client sends as `Authorization: Bearer TOKEN`.

The file holds one token a line, perhaps followed by its rights as a JSON object (godwit.broker.access):

    5up3rs3cr3t
    n1ghtj0b     {"publish": ["alerts/#"], "names": ["night-job"], "read": ["home/#"]}
    gu3st        {"publish": [], "expires": "2026-12-01T08:00:00Z"}

It is read again when it has changed, so tokens and rights can be changed while the archive runs.
"""

from __future__ import annotations

import hmac
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from pyarrow import flight

from godwit.broker.access import TokenRights
from godwit.errors import ConfigurationError, UsageError

HEADER: Final = "authorization"
SCHEME: Final = "bearer "
MAX_TOKEN_BYTES: Final = 4096
MIDDLEWARE: Final = "tokens"
"""The name of TokenCheck among the middleware of a server."""
_WITH_RIGHTS: Final = re.compile(rb"(\S+)\s+(\{.*\})")


class TokenRightsError(UsageError):
    """The client's token does not allow the request."""


def require(problem: str) -> None:
    """Raise TokenRightsError if a check of TokenRights returned a problem."""
    if problem:
        raise TokenRightsError(problem)


def rights_of(context: Any) -> TokenRights:
    """Return the rights of the token that a call was made with."""
    call = context.get_middleware(MIDDLEWARE)
    return TokenRights() if call is None else call.rights


class TokenFile:
    """The tokens of a file, read again whenever it changes."""

    def __init__(
        self,
        path: Path,
        warn: Callable[[str], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Read the file. ConfigurationError if it cannot be read or has an invalid line.

        `warn` is called, from any thread, when the file has invalid lines after a later change. `now` is the clock.
        """
        self._now = now
        self._path = path
        self._warn = warn
        self._lock = threading.Lock()
        self._version: tuple[int, int, int] | None = None
        self._tokens: list[tuple[bytes, TokenRights]] = []
        self._refresh()
        if not self._tokens:
            raise ConfigurationError(f"{path} contains no token, so no client could use the archive: put one on a line")

    def find(self, token: bytes) -> TokenRights | None:
        """Return the rights of a token, or None if it is unknown.

        It takes as long for a token that is nearly right as for any other.
        """
        self._refresh()
        found = None
        for known, rights in self._tokens:
            if hmac.compare_digest(known, token):
                found = rights
        if found is not None and found.expires and self._now() >= parse_time(found.expires):
            return None
        return found

    def _refresh(self) -> None:
        with self._lock:
            try:
                status = self._path.stat()
                version = (status.st_mtime_ns, status.st_size, status.st_ino)
                if version != self._version:
                    self._load(self._path.read_bytes(), is_first=self._version is None)
                    self._version = version
            except OSError as error:
                if self._version is None:
                    raise ConfigurationError(
                        f"cannot read the tokens in {self._path} ({error.strerror or error}): "
                        "check the path and who may read it"
                    ) from error
                self._tokens = []  # without the file no token is accepted
                self._version = (0, 0, 0)

    def _load(self, data: bytes, *, is_first: bool) -> None:
        tokens: dict[bytes, TokenRights] = {}
        for number, line in enumerate(data.splitlines(), 1):
            try:
                if line := line.strip():
                    token, rights = parse_line(line)
                    if tokens.setdefault(token, rights) != rights:
                        raise ConfigurationError("this token has other rights in a line before: give it once")
            except ConfigurationError as error:
                text = f"line {number} of {self._path} is invalid: {error}"
                if is_first:
                    raise ConfigurationError(text) from error
                self._warn(f"{text}; its token is not accepted until the file is corrected")
        self._tokens = list(tokens.items())


def parse_line(line: bytes) -> tuple[bytes, TokenRights]:
    """Return the token of a line and its rights. ConfigurationError if the rights are invalid."""
    match = _WITH_RIGHTS.fullmatch(line)
    if match is None:
        return line, TokenRights()
    try:
        rights = msgspec.json.decode(match[2], type=TokenRights)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"the rights behind the token are not understood: {error}") from error
    rights.check()
    if rights.expires:
        parse_time(rights.expires)
    return match[1], rights


def parse_time(text: str) -> datetime:
    """Return the time in a text. ConfigurationError if it is not one, or has no offset from UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ConfigurationError(
            f"expires is {text[:80]!r}: write a time with its offset from UTC, as in 2026-12-01T08:00:00Z"
        )
    return found


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Checks the token of every call of a Flight server."""

    def __init__(self, tokens: TokenFile) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> CheckedCall:
        """Return the rights of a call, or raise FlightUnauthenticatedError."""
        for value in headers.get(HEADER, []):
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            if text[: len(SCHEME)].lower() == SCHEME and len(text) <= MAX_TOKEN_BYTES:
                rights = self._tokens.find(text[len(SCHEME) :].strip().encode("latin-1", errors="replace"))
                if rights is not None:
                    return CheckedCall(rights)
                raise flight.FlightUnauthenticatedError(
                    "the token is unknown or has expired: ask the operator of the broker for one"
                )
        raise flight.FlightUnauthenticatedError(
            "this archive wants a token: send the header 'authorization: Bearer TOKEN'"
        )


class CheckedCall(flight.ServerMiddleware):  # type: ignore[misc]
    """One call, and the rights of its token."""

    def __init__(self, rights: TokenRights) -> None:
        super().__init__()
        self.rights = rights
