"""Logins of browsers: cookies, tokens against forged requests, and a limit on wrong secrets."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import Final

import msgspec

from godwit.console.link import BrokerLink

COOKIE: Final = "godwit_console"
COOKIE_BYTES: Final = 32
MAX_SESSIONS: Final = 1_000
IDLE_S: Final = 12 * 3600.0
FREE_FAILURES: Final = 5
"""Wrong secrets for a name, or from an address, before the next attempt has to wait."""
FIRST_WAIT_S: Final = 5.0
MAX_WAIT_S: Final = 300.0
MAX_KEYS: Final = 10_000


class BrowserSession(msgspec.Struct):
    """A browser that has logged in."""

    link: BrokerLink
    used_at: float


class LoginSessions:
    """The browsers that have logged in, by their cookies. `now` is monotonic time."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)
        self._sessions: OrderedDict[str, BrowserSession] = OrderedDict()

    def new_cookie(self) -> str:
        """Return the value of a new cookie. A browser has one before it logs in, too."""
        return secrets.token_urlsafe(COOKIE_BYTES)

    def token(self, cookie: str) -> str:
        """Return the token that a page has to send with requests that change something.

        A page of another site can make the browser send the cookie, but cannot read this token.
        """
        return hmac.digest(self._key, cookie.encode("utf-8", "replace"), hashlib.sha256).hex()

    def is_token(self, cookie: str, token: str) -> bool:
        """Return whether it is the token of the cookie."""
        return hmac.compare_digest(self.token(cookie).encode(), token.encode("utf-8", "replace"))

    def add(self, cookie: str, link: BrokerLink, now: float) -> list[BrokerLink]:
        """Store a login. Return the links of logins that are not used any more, which may be closed."""
        self._sessions[cookie] = BrowserSession(link, now)
        return self.expire(now)

    def find(self, cookie: str, now: float) -> BrokerLink | None:
        """Return the link of a browser that has logged in."""
        session = self._sessions.get(cookie)
        if session is None or session.used_at + IDLE_S < now:
            return None
        session.used_at = now
        self._sessions.move_to_end(cookie)
        return session.link

    def links(self) -> set[BrokerLink]:
        """Return the links of all logins."""
        return {one.link for one in self._sessions.values()}

    def named(self, name: str) -> BrokerLink | None:
        """Return the link of a login with this name."""
        return next((one.link for one in self._sessions.values() if one.link.name == name), None)

    def remove(self, cookie: str) -> BrokerLink | None:
        """Log a browser out. Return its link if no other browser uses it."""
        session = self._sessions.pop(cookie, None)
        if session is None or self.named(session.link.name or "") is not None:
            return None
        return session.link

    def remove_link(self, link: BrokerLink) -> None:
        """Log all browsers of a link out."""
        for cookie in [cookie for cookie, one in self._sessions.items() if one.link is link]:
            del self._sessions[cookie]

    def expire(self, now: float) -> list[BrokerLink]:
        """Remove logins that were not used for long. Return their links, if no other browser uses them."""
        found = []
        while self._sessions:
            cookie, session = next(iter(self._sessions.items()))
            if len(self._sessions) <= MAX_SESSIONS and session.used_at + IDLE_S >= now:
                break
            if (link := self.remove(cookie)) is not None:
                found.append(link)
        return found


class LoginLimiter:
    """Makes attempts wait after wrong secrets, by name and by address. `now` is monotonic time."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Number of wrong secrets, and until when further attempts are refused."""

    def wait_s(self, keys: tuple[str, ...], now: float) -> float:
        """Return how long the next attempt has to wait; 0 if it may be made."""
        return max((max(self._failures[key][1] - now, 0.0) for key in keys if key in self._failures), default=0.0)

    def add_failure(self, keys: tuple[str, ...], now: float) -> None:
        """Count a wrong secret."""
        for key in keys:
            count = self._failures.pop(key, (0, 0.0))[0] + 1
            pause_s = (
                0.0 if count < FREE_FAILURES else min(FIRST_WAIT_S * 2 ** min(count - FREE_FAILURES, 16), MAX_WAIT_S)
            )
            self._failures[key] = (count, now + pause_s)
            if len(self._failures) > MAX_KEYS:
                self._failures.popitem(last=False)

    def add_success(self, keys: tuple[str, ...]) -> None:
        """Forget the wrong secrets before a right one."""
        for key in keys:
            self._failures.pop(key, None)
