"""The web server of the console: its protection, logins and files, without a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.ports import free_port

import godwit
from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.console.server import HEADERS, ConsoleServer, _load_files
from godwit.errors import SocketError
from godwit.net.service import Service
from godwit.server.configuration import Configuration

PATIENCE_S = 90.0
STATIC = Path(__file__).parents[2] / "src" / "godwit" / "console" / "static"
ACCESS = Access(
    secrets={"anna": b"right secret"},
    rules=(Rule(clients=("anna",), allow=frozenset({"subscribe", "publish", "create"}), topics=("home/#",)),),
    allows_anonymous=False,
)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S * 2):
            await scenario()

    asyncio.run(main())


@asynccontextmanager
async def serving(access: Access | None = None) -> AsyncIterator[tuple[ConsoleServer, aiohttp.ClientSession]]:
    """Run a broker and its console, and return a browser without a window."""
    settings = Settings(sys_interval_s=0.25, access=access or Access.open())
    async with Service(Configuration(listen=["127.0.0.1:0"], settings=settings)) as service:
        server = ConsoleServer(service.urls[0])
        await server.start("127.0.0.1", 0)
        jar = aiohttp.CookieJar(unsafe=True)  # accepts cookies of IP addresses
        try:
            async with aiohttp.ClientSession(server.url, cookie_jar=jar) as browser:
                yield server, browser
        finally:
            await server.stop()


async def session_of(browser: aiohttp.ClientSession, wanted: str) -> dict[str, Any]:
    """Return the state of the login once it is as wanted."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with browser.get("/api/session") as reply:
                found: dict[str, Any] = await reply.json()
            if found["login"] == wanted:
                return found
            await asyncio.sleep(0.05)


async def log_in(server: ConsoleServer, browser: aiohttp.ClientSession, name: str, secret: str) -> tuple[int, Any]:
    async with browser.get("/api/session") as reply:
        token = (await reply.json())["token"]
    headers = {"Origin": server.url, "X-Godwit-Token": token}
    async with browser.post("/api/login", json={"name": name, "secret": secret}, headers=headers) as reply:
        return reply.status, await reply.json()


@asynccontextmanager
async def window(
    server: ConsoleServer, browser: aiohttp.ClientSession
) -> AsyncIterator[Callable[..., Awaitable[dict[str, Any]]]]:
    """Open a websocket as a page does, and return a function that sends a request and waits for its reply."""
    async with browser.get("/api/session") as reply:
        token = (await reply.json())["token"]
    async with browser.ws_connect("/ws", origin=server.url, max_msg_size=2**24) as socket:
        await socket.send_str(token)

        async def request(action: str, **arguments: Any) -> dict[str, Any]:
            await socket.send_json({"id": 7, "do": action, "with": arguments})
            while True:
                message: dict[str, Any] = await socket.receive_json(timeout=PATIENCE_S)
                if message.get("id") == 7:
                    return message

        yield request


def test_all_replies_have_the_headers_of_protection() -> None:
    async def scenario() -> None:
        async with serving() as (_, browser):
            for path, status in (("/", 200), ("/static/console.js", 200), ("/static/nothing.js", 404), ("/none", 404)):
                async with browser.get(path) as reply:
                    assert reply.status == status
                    for name, value in HEADERS.items():
                        if name != "Cache-Control":
                            assert reply.headers[name] == value
            for path in ("/static/..%2fserver.py", "/static/%2e%2e/server.py", "/static//etc/passwd"):
                async with browser.get(path) as reply:
                    assert reply.status == 404
            async with browser.get("/api/session") as reply:
                cookie = reply.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            policy = HEADERS["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy

    run(scenario)


def test_requests_of_other_sites_are_refused() -> None:
    async def scenario() -> None:
        async with serving(ACCESS) as (server, browser):
            found = await session_of(browser, "required")
            right = {"Origin": server.url, "X-Godwit-Token": found["token"]}
            form = {"name": "anna", "secret": "right secret"}
            for wrong in (
                {**right, "Origin": "http://evil.example"},
                {**right, "Origin": "null"},
                {"X-Godwit-Token": found["token"]},
                {"Origin": server.url},
                {**right, "X-Godwit-Token": "0" * 64},
            ):
                async with browser.post("/api/login", json=form, headers=wrong) as reply:
                    assert reply.status == 403
            async with browser.get("/", headers={"Host": "evil.example"}) as reply:
                assert reply.status == 421
            async with browser.get("/", headers={"Host": "localhost:1"}) as reply:
                assert reply.status == 200
            for origin in ("http://evil.example", None):
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await browser.ws_connect("/ws", origin=origin)
                assert refused.value.status == 403
            async with browser.ws_connect("/ws", origin=server.url) as socket:
                await socket.send_str("not the token")
                message = await socket.receive(timeout=PATIENCE_S)
                assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 4403)

    run(scenario)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::1].evil", ""])
def test_names_that_lead_here_by_the_domain_name_system_are_refused(host: str) -> None:
    """A page of a site whose name was bound to this machine has the console's own origin, in the eyes of a browser."""

    async def scenario() -> None:
        async with serving() as (server, browser):
            port = server.url.rpartition(":")[2]
            headers = {"Host": f"{host}:{port}"}
            async with browser.get("/api/session", headers=headers) as reply:
                assert reply.status in (400, 421)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await browser.ws_connect("/ws", origin=f"http://{host}:{port}", headers=headers)
            assert refused.value.status in (400, 421)

    run(scenario)


def test_names_of_a_proxy_and_of_this_machine_are_served() -> None:
    async def scenario() -> None:
        async with Service(Configuration(listen=["127.0.0.1:0"])) as service:
            server = ConsoleServer(service.urls[0], host_names=["Console.Example"])
            await server.start("127.0.0.1", 0)
            jar = aiohttp.CookieJar(unsafe=True)
            try:
                async with aiohttp.ClientSession(server.url, cookie_jar=jar) as browser:
                    for host in ("console.example", "localhost:1", "127.0.0.1", "[::1]:2", "a.localhost"):
                        async with browser.ws_connect("/ws", origin=f"http://{host}", headers={"Host": host}) as socket:
                            await socket.send_str("not the token")
                            assert (await socket.receive(timeout=PATIENCE_S)).data == 4403
                        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                            await browser.ws_connect("/ws", origin="http://127.0.0.2", headers={"Host": host})
                        assert refused.value.status == 403
            finally:
                await server.stop()

    run(scenario)


def test_connections_of_windows_without_a_login_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.console.link.MAX_READERS", 3)

    async def scenario() -> None:
        async with serving() as (server, browser), godwit.connect(server._broker) as client:
            await client.publish("home/a", b"1", retain=True)
            await session_of(browser, "none")
            before = len(await client.clients())
            async with window(server, browser) as last:
                async with AsyncExitStack() as windows:
                    for number in range(3):
                        request = await windows.enter_async_context(window(server, browser))
                        assert "is" in await request("tail", filters=["home/a"], tail=1)
                        while len(await client.clients()) < before + number + 1:
                            await asyncio.sleep(0.05)
                    reply = await last("topic", topic="home/a")
                    assert reply["error"] == (
                        "3 views of messages are open in windows without a login: close some of these windows"
                    )
                    assert len(await client.clients()) == before + 3
                async with asyncio.timeout(PATIENCE_S):
                    while "is" not in (reply := await last("topic", topic="home/a")):
                        await asyncio.sleep(0.05)
                assert reply["is"]["retained"]["text"] == "1"

    run(scenario)


def test_wrong_secrets_are_refused_and_slowed_down() -> None:
    async def scenario() -> None:
        async with serving(ACCESS) as (server, browser):
            await session_of(browser, "required")
            for _ in range(5):
                status, reply = await log_in(server, browser, "anna", "wrong")
                assert (status, reply["error"]) == (403, "The broker does not accept this name with this secret.")
            status, reply = await log_in(server, browser, "anna", "right secret")
            assert status == 429
            assert "Too many wrong secrets: try again in" in reply["error"]

    run(scenario)


def test_a_login_changes_the_cookie_and_ends_with_the_logout() -> None:
    async def scenario() -> None:
        async with serving(ACCESS) as (server, browser):
            await session_of(browser, "required")
            before = {cookie.key: cookie.value for cookie in browser.cookie_jar}
            assert (await log_in(server, browser, "anna", "right secret"))[0] == 200
            after = {cookie.key: cookie.value for cookie in browser.cookie_jar}
            assert before["godwit_console"] != after["godwit_console"]
            found = await session_of(browser, "done")
            assert found["name"] == "anna"
            async with window(server, browser) as request:
                reply = await request("publish", topic="home/a", payload="1")
                assert reply["is"] == {"reached": 0, "bytes": 1}
                reply = await request("publish", topic="other", payload="1")
                assert "may not" in reply["error"]
            headers = {"Origin": server.url, "X-Godwit-Token": found["token"]}
            async with browser.post("/api/logout", headers=headers) as answer:
                assert answer.status == 200
            await session_of(browser, "required")

    run(scenario)


def test_bad_requests_get_a_text() -> None:
    async def scenario() -> None:
        async with serving() as (server, browser):
            await session_of(browser, "none")
            async with window(server, browser) as request:
                for action, arguments, text in (
                    ("unknown", {}, "does not know this request"),
                    ("topics", {"offset": "x"}, "The request is invalid"),
                    ("topics", {"more": 1}, "The request is invalid"),
                    ("publish", {"topic": "a/#", "payload": ""}, "wildcards"),
                    ("publish", {"topic": "a", "payload": "{", "form": "json"}, "This is not JSON"),
                    ("tail", {"filters": [], "tail": 1}, "Give a topic filter"),
                    ("client", {"name": "nothing"}, "does not exist"),
                    ("kick", {"name": "nothing"}, "no client 'nothing'"),
                    ("job", {"job": 99}, "99"),
                    ("payload", {"message": 1}, "no longer in memory"),
                    ("pipeline", {"part": "status"}, "--lake"),
                ):
                    reply = await request(action, **arguments)
                    assert text in reply["error"], (action, reply)

    run(scenario)


def test_windows_of_one_person_may_show_the_same_topic() -> None:
    async def scenario() -> None:
        async with serving(ACCESS) as (server, browser):
            await session_of(browser, "required")
            assert (await log_in(server, browser, "anna", "right secret"))[0] == 200
            async with window(server, browser) as first, window(server, browser) as second:
                await first("publish", topic="home/a", payload="1", retain=True)
                for request in (first, second):
                    assert "is" in await request("tail", filters=["home/a"], tail=1)
                    assert (await request("topic", topic="home/a"))["is"]["retained"]["text"] == "1"
                    assert "is" in await request("values", topics=["home/a"])

    run(scenario)


def test_a_port_in_use_is_reported_in_one_sentence() -> None:
    async def scenario() -> None:
        async with serving() as (server, _):
            port = int(server.url.rpartition(":")[2])
            with pytest.raises(SocketError, match=f"cannot listen on 127.0.0.1:{port}: another program uses this port"):
                await ConsoleServer("127.0.0.1:1").start("127.0.0.1", port)

    run(scenario)


def test_the_console_waits_for_its_broker() -> None:
    async def scenario() -> None:
        address = f"127.0.0.1:{free_port()}"
        server = ConsoleServer(address)
        await server.start("127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession(server.url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
                await session_of(browser, "waiting")
                async with Service(Configuration(listen=[address])):
                    await session_of(browser, "none")
        finally:
            await server.stop()

    run(scenario)


def test_a_kicked_console_connects_again() -> None:
    async def scenario() -> None:
        async with serving() as (server, browser):
            await session_of(browser, "none")
            async with godwit.connect(server._broker) as other:
                for one in await other.clients():
                    if one.name != other.name:
                        await other.kick(one.name)
            await session_of(browser, "none")
            async with window(server, browser) as request:
                assert "is" in await request("clients")

    run(scenario)


def test_pages_load_nothing_from_elsewhere_and_parse_no_html() -> None:
    assert set(_load_files()) == {path.name for path in STATIC.iterdir()}
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        for word in ("http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, f"{path.name} has {word}"
