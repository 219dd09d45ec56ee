"""The web server of the console: its files, logins, and the websockets of browser windows.

How it is protected: it answers only under the names of this machine (against DNS rebinding). Requests that change
something, and websockets, must come from its own pages (Origin) and carry a token (against forged requests). The policy
for content allows no script, style or connection from elsewhere, and none within a page. Scripts cannot read the
cookie, and it is not sent with requests of other sites.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Collection
from contextlib import suppress
from importlib import resources
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from godwit.console.connection import MAX_REQUEST_BYTES, BrowserConnection
from godwit.console.lake import ConsoleLake
from godwit.console.link import BrokerLink
from godwit.console.logins import COOKIE, LoginLimiter, LoginSessions
from godwit.console.pages import REQUESTS
from godwit.errors import BrokerUnreachableError, GodwitError, SocketError

DEFAULT_LISTEN: Final = "127.0.0.1:8080"
TOKEN_HEADER: Final = "X-Godwit-Token"
MAX_WINDOWS: Final = 200
MAX_LOGINS: Final = 8
"""Logins that are under way at the same time."""
FIRST_MESSAGE_S: Final = 10.0
REOPEN_S: Final = 3.0
"""How often a link without a login is tried again after the broker has refused or ended it."""
TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/?#@\s]+)(:[0-9]{1,5})?")
"""A Host header: a name or an address, and perhaps a port."""
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}


class LoginForm(msgspec.Struct, forbid_unknown_fields=True):
    """The name and the secret of a client of the broker."""

    name: str
    secret: str

    def __repr__(self) -> str:
        """Return everything but the secret."""
        return f"<LoginForm {self.name!r}>"


class ConsoleServer:
    """The console of one broker, in the running event loop."""

    def __init__(
        self,
        broker: str,
        *,
        lake: ConsoleLake | None = None,
        host_names: Collection[str] = (),
    ) -> None:
        """Make a console.

        Args:
            broker: The address of the broker.
            lake: The tables of the pipeline; without it the console has no page about them.
            host_names: Further names under which browsers may open it, for example of a proxy in front of it.
        """
        self.url = ""
        self._broker = broker
        self._lake = lake
        self._host_names = {name.casefold() for name in host_names} | {"localhost", socket.gethostname().casefold()}
        self._sessions = LoginSessions()
        self._limiter = LoginLimiter()
        self._logins = 0
        self._anonymous = BrokerLink(broker)
        self._opened_at = 0.0
        self._closing: set[asyncio.Task[None]] = set()
        self._windows: dict[web.WebSocketResponse, str] = {}
        """Open websockets, and the cookies of their browsers."""
        self._files = _load_files()
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """Begin to serve, over TLS if there is a context for it.

        Raises:
            SocketError: The system refused the address, for example because the port is in use.
        """
        app = web.Application(client_max_size=64 * 1024, middlewares=[self._protect])
        app.router.add_get("/", self._page)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get("/favicon.ico", self._icon)
        app.router.add_get("/api/session", self._session)
        app.router.add_post("/api/login", self._login)
        app.router.add_post("/api/logout", self._logout)
        app.router.add_get("/ws", self._window)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if error.errno == errno.EADDRINUSE:
                raise SocketError(
                    f"the console cannot listen on {where}: another program uses this port; choose another one, for "
                    f"example --listen {host}:{port + 1 if port < 65_535 else 8080}"
                ) from None
            raise SocketError(f"the console cannot listen on {where}: {error.strerror or error}") from error
        address = self._runner.addresses[0]
        self._host_names.add(host.casefold())
        scheme = "http" if tls is None else "https"
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.url = f"{scheme}://{shown}:{address[1]}"
        self._anonymous.open_in_background()
        self._opened_at = time.monotonic()

    async def stop(self) -> None:
        """Close everything."""
        for window in list(self._windows):
            with suppress(Exception):
                await asyncio.wait_for(window.close(), 1.0)
        if self._runner is not None:
            await self._runner.cleanup()
        for link in {self._anonymous, *self._sessions.links()}:
            await link.close()
        await asyncio.gather(*self._closing)
        if self._lake is not None:
            await self._lake.stop()

    # -- protection ---------------------------------------------------------------------------------------------------

    @web.middleware
    async def _protect(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Refuse requests under foreign names, and from pages of other sites. Add headers to all replies."""
        try:
            if not self._is_own_name(request.host):
                raise web.HTTPMisdirectedRequest(
                    text="This console does not serve this host name. Open it by its IP address or localhost, or start "
                    "it with --host-name.\n"
                )
            if (request.method != "GET" or request.path == "/ws") and not is_same_origin(request):
                raise web.HTTPForbidden(text="This request comes from a page of another site.\n")
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    def _is_own_name(self, host: str) -> bool:
        """Return whether a Host header names this machine. An IP address always does: no one can redirect it."""
        match = HOST.fullmatch(host.casefold())
        if match is None:
            return False
        name = match[1].strip("[]")
        if name in self._host_names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _require_token(self, request: web.Request) -> str:
        """Return the cookie of a request that has its token. Raises HTTPForbidden."""
        cookie = request.cookies.get(COOKIE, "")
        if not cookie or not self._sessions.is_token(cookie, request.headers.get(TOKEN_HEADER, "")):
            raise web.HTTPForbidden(text="The token of this page is missing or wrong: load the page again.\n")
        return cookie

    # -- files --------------------------------------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.Response:
        return self._reply_file(request, "index.html")

    async def _icon(self, request: web.Request) -> web.Response:
        return self._reply_file(request, "icon.svg")

    async def _file(self, request: web.Request) -> web.Response:
        return self._reply_file(request, request.match_info["name"])

    def _reply_file(self, request: web.Request, name: str) -> web.Response:
        found = self._files.get(name)
        if found is None:
            raise web.HTTPNotFound(text="The console has no such file.\n")
        data, kind, tag = found
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=data, content_type=kind, charset="utf-8", headers=headers)

    # -- logins -------------------------------------------------------------------------------------------------------

    async def _session(self, request: web.Request) -> web.Response:
        """Return the state of the login, and the token of the page."""
        cookie = request.cookies.get(COOKIE, "")
        is_new = not 20 <= len(cookie) <= 100
        if is_new:
            cookie = self._sessions.new_cookie()
        link = self._link_of(cookie)
        response = web.json_response(
            {
                "token": self._sessions.token(cookie),
                "login": self._login_state(link),
                "lake": self._lake is not None,
                **link.describe(),
            }
        )
        if is_new:
            set_cookie(request, response, cookie)
        return response

    def _login_state(self, link: BrokerLink) -> str:
        """Return none if no login is needed, offered if it extends the rights, required, done, or waiting."""
        if link.name is not None:
            return "done"
        if link.refusal:
            return "required"
        if link.is_operator is None or link.is_over:
            return "waiting"
        return "none" if link.is_operator else "offered"

    def _link_of(self, cookie: str) -> BrokerLink:
        """Return the link of a browser: that of its login, or the one without a name."""
        now = time.monotonic()
        link = self._sessions.find(cookie, now)
        if link is not None and link.is_over:
            self._sessions.remove_link(link)
            self._retire(link)
            link = None
        if link is not None:
            return link
        if self._anonymous.is_over and now > self._opened_at + REOPEN_S:
            former, self._anonymous = self._anonymous, BrokerLink(self._broker)
            self._anonymous.refusal = former.refusal  # until the broker has answered
            self._opened_at = now
            self._retire(former)
            self._anonymous.open_in_background()
        return self._anonymous

    def _retire(self, link: BrokerLink) -> None:
        """Close a link that has ended."""
        task = asyncio.get_running_loop().create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _login(self, request: web.Request) -> web.Response:
        cookie = self._require_token(request)
        try:
            form = msgspec.json.decode(await request.read(), type=LoginForm)
        except msgspec.DecodeError:
            return refusal(400, "The form is invalid: load the page again.")
        if not form.name or not form.secret:
            return refusal(400, "Give the name and the secret of a client of the broker.")
        keys = (f"name {form.name}", f"address {request.remote}")
        now = time.monotonic()
        if (wait_s := self._limiter.wait_s(keys, now)) > 0:
            return refusal(429, f"Too many wrong secrets: try again in {wait_s:.0f} seconds.", wait_s)
        if self._logins >= MAX_LOGINS:
            return refusal(503, "Too many logins at the same time: try again in a moment.")
        self._logins += 1
        try:
            link = await self._open_link(form)
        except BrokerUnreachableError as error:
            return refusal(503, str(error))
        except GodwitError:
            self._limiter.add_failure(keys, time.monotonic())
            return refusal(403, "The broker does not accept this name with this secret.")
        finally:
            self._logins -= 1
        self._limiter.add_success(keys[:1])
        response = web.json_response({"name": form.name})
        # A new cookie, so that one that was known before the login is worth nothing after it.
        await self._forget(cookie)
        cookie = self._sessions.new_cookie()
        for unused in self._sessions.add(cookie, link, time.monotonic()):
            await unused.close()
        set_cookie(request, response, cookie)
        return response

    async def _open_link(self, form: LoginForm) -> BrokerLink:
        """Return the link of a person, opened with this secret now or by another window before."""
        secret = form.secret.encode("utf-8", "replace")
        known = self._sessions.named(form.name)
        if known is not None and not known.is_over and hmac.compare_digest(known.secret, secret):
            return known
        link = BrokerLink(self._broker, form.name, secret)
        try:
            await link.open()
        except BaseException:
            await link.close()
            raise
        if known is not None:
            self._sessions.remove_link(known)
            await known.close()
        return link

    async def _logout(self, request: web.Request) -> web.Response:
        cookie = self._require_token(request)
        await self._forget(cookie)
        response = web.json_response({})
        response.del_cookie(COOKIE, path="/")
        return response

    async def _forget(self, cookie: str) -> None:
        """Log a browser out, and close its windows."""
        for window in [window for window, owner in self._windows.items() if owner == cookie]:
            await window.close()
        if (link := self._sessions.remove(cookie)) is not None:
            await link.close()

    # -- windows ------------------------------------------------------------------------------------------------------

    async def _window(self, request: web.Request) -> web.StreamResponse:
        """Serve one window until it is closed."""
        cookie = request.cookies.get(COOKIE, "")
        if len(self._windows) >= MAX_WINDOWS:
            raise web.HTTPServiceUnavailable(text=f"{MAX_WINDOWS} windows are open already: close some.\n")
        window = web.WebSocketResponse(heartbeat=20.0, max_msg_size=MAX_REQUEST_BYTES, compress=False)
        await window.prepare(request)
        self._windows[window] = cookie
        try:
            with suppress(TimeoutError, TypeError):
                first = await window.receive_str(timeout=FIRST_MESSAGE_S)
                if cookie and self._sessions.is_token(cookie, first):
                    await BrowserConnection(window, self._link_of(cookie), lake=self._lake).run(REQUESTS)
                else:
                    await window.close(code=4403, message=b"load the page again")
        finally:
            del self._windows[window]
        return window


def is_same_origin(request: web.Request) -> bool:
    """Return whether a request comes from a page of the console itself."""
    origin = request.headers.get("Origin", "")
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc != "" and parts.netloc == request.host


def set_cookie(request: web.Request, response: web.Response, value: str) -> None:
    """Set the cookie of a browser. A proxy that encrypts is recognized by its header."""
    is_encrypted = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
    response.set_cookie(COOKIE, value, httponly=True, samesite="Strict", path="/", secure=is_encrypted)


def refusal(status: int, text: str, retry_s: float = 0.0) -> web.Response:
    """Return a reply that refuses a request, with a text for people."""
    headers = {"Retry-After": str(int(retry_s) + 1)} if retry_s else {}
    return web.json_response({"error": text}, status=status, headers=headers)


def _load_files() -> dict[str, tuple[bytes, str, str]]:
    """Return the files of the pages by name: content, type and tag."""
    found = {}
    for file in (resources.files(__package__) / "static").iterdir():
        suffix = f".{file.name.rpartition('.')[2]}"
        if suffix in TYPES:
            data = file.read_bytes()
            found[file.name] = (data, TYPES[suffix], f'"{hashlib.sha256(data).hexdigest()[:16]}"')
    return found
