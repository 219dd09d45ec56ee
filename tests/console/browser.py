"""A real broker, a real console and a real browser, in one event loop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect
from tests.ports import free_port

import godwit
from godwit.broker.access import Access
from godwit.broker.settings import Settings
from godwit.console.lake import ConsoleLake
from godwit.console.server import ConsoleServer
from godwit.net.service import Service
from godwit.server.configuration import ArchiveSection, Configuration

PATIENCE_S = 120.0
PATIENCE_MS = PATIENCE_S * 1000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
expect.set_options(timeout=PATIENCE_MS)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing (Debian: apt install chromium)")


class World:
    """One broker with its console and a window."""

    def __init__(self, service: Service, server: ConsoleServer, browser: Browser) -> None:
        self.service = service
        self.server = server
        self.browser = browser
        self.own = [server.url]
        """Addresses of consoles."""
        self.requests: list[str] = []
        """Addresses that windows have requested."""
        self.errors: list[str] = []
        """Messages of the browser's console."""

    @property
    def address(self) -> str:
        host, port, *_ = self.service.addresses[0]
        return f"{host}:{port}"

    async def open(self, path: str = "/", *, width: int = 1280, theme: Any = "light", **options: Any) -> Page:
        """Open a window of a person that has not been there before."""
        context = await self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, locale="en-GB", timezone_id="UTC", **options
        )
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url))
        page.on("console", lambda message: self.errors.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.errors.append(f"a script ran: {dialog.message}"))
        await page.goto(path if path == "about:blank" else f"{self.server.url}{path}")
        return page


@asynccontextmanager
async def console_world(
    folder: Path | None = None,
    *,
    access: Access | None = None,
    lake: str | None = None,
    archive: bool = False,
    interval_s: float = 0.25,
    **settings: Any,
) -> AsyncIterator[World]:
    """Run a broker, its console and a browser."""
    assert CHROMIUM is not None
    configuration = Configuration(
        listen=[f"127.0.0.1:{free_port()}"],  # a test may start it again there
        data=folder,
        archive=ArchiveSection(is_on=archive),
        settings=Settings(sys_interval_s=interval_s, access=access or Access.open(), **settings),
    )
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(Service(configuration))
        host, port, *_ = service.addresses[0]
        shown = None if lake is None else ConsoleLake(lake, {"archive": f"{host}:{port + 1}"})
        server = ConsoleServer(f"{host}:{port}", lake=shown)
        await server.start("127.0.0.1", 0)
        stack.push_async_callback(server.stop)
        stack.push_async_callback(accept_late_connections)
        driver = await stack.enter_async_context(async_playwright())
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE_MS)
        stack.push_async_callback(browser.close)
        world = World(service, server, browser)
        yield world
        own = (*world.own, *(url.replace("http", "ws") for url in world.own), "about:blank")
        outside = [url for url in world.requests if not url.startswith(own)]
        assert outside == [], "a request left the host"
        serious = [
            text for text in world.errors if not text.startswith(("log:", "info:")) and "status of 4" not in text
        ]
        assert [text for text in serious if "WebSocket connection" not in text and "ERR_" not in text] == []


async def accept_late_connections() -> None:
    """Let the server accept the connections of a browser that is gone.

    asyncio forgets one that it has accepted just before the server closes (cpython gh-109564), and it is never closed.
    """
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a test in an event loop of its own."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S * 10):
            await scenario()

    asyncio.run(main())


async def until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(patience_s):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.05)


async def go(page: Page, name: str) -> None:
    """Open a page by its link."""
    await page.get_by_role("navigation").get_by_role("link", name=name).click()
    await expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()


def client_of(world: World, name: str | None = None, **options: Any) -> godwit.Connecting:
    """Connect another client to the broker."""
    return godwit.connect(world.address, name=name, timeout_s=PATIENCE_S, **options)
