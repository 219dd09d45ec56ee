"""Who may use the archive: whoever shows one of the tokens in a file, as `Authorization: Bearer TOKEN`.

The file holds one token a line. It is read again when it has changed, so a token can be given or taken away while the
archive runs.
"""

from __future__ import annotations

import hmac
import threading
from pathlib import Path
from typing import Any, Final

from pyarrow import flight

from godwit.errors import ConfigurationError

HEADER: Final = "authorization"
SCHEME: Final = "bearer "
MAX_TOKEN_BYTES: Final = 4096


class TokenFile:
    """The tokens of a file, as it is now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: list[bytes] = []
        self._refresh()
        if not self._tokens:
            raise ConfigurationError(f"{path} holds no token, so nobody could read the archive: put one on a line")

    def knows(self, token: bytes) -> bool:
        """Takes as long for a token that is nearly right as for any other."""
        self._refresh()
        found = False
        for known in self._tokens:
            found |= hmac.compare_digest(known, token)
        return found

    def _refresh(self) -> None:
        with self._lock:
            try:
                status = self._path.stat()
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                if stamp != self._stamp:
                    lines = [line.strip() for line in self._path.read_bytes().splitlines()]
                    self._tokens = [line for line in lines if line]
                    self._stamp = stamp
            except OSError as error:
                if self._stamp is None:
                    raise ConfigurationError(
                        f"cannot read the tokens in {self._path} ({error.strerror or error}): "
                        "check the path and who may read it"
                    ) from error
                self._tokens = []  # a file that was taken away lets nobody in
                self._stamp = (0, 0, 0)


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Stands before every call of a Flight server."""

    def __init__(self, tokens: TokenFile) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> None:
        for value in headers.get(HEADER, []):
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            if text[: len(SCHEME)].lower() == SCHEME and len(text) <= MAX_TOKEN_BYTES:
                if self._tokens.knows(text[len(SCHEME) :].strip().encode("latin-1", errors="replace")):
                    return
                raise flight.FlightUnauthenticatedError("the token is not known here: ask whoever runs the broker")
        raise flight.FlightUnauthenticatedError(
            "this archive wants a token: send the header 'authorization: Bearer TOKEN'"
        )
