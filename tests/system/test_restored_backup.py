"""A broker is started on an older backup of its log: subscribers that stayed miss nothing, and are notified."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.net.running import Notices, configuration, run
from tests.ports import free_port

from godwit.client.message import Bookmark, Message
from godwit.net.client import AsyncClient, connect
from godwit.net.service import Service
from godwit.net.subscription import AsyncSubscription
from godwit.server.configuration import ArchiveSection
from godwit.store.maintenance import backup

PATIENCE_S = 120.0


class Broker:
    """A broker with a data folder, restarted at the same address, whose log can be replaced while it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.log_path = folder / "data" / "log.sqlite"
        self.notices = Notices()
        self._copy = folder / "backup.sqlite"
        listen = [f"127.0.0.1:{free_port()}"]
        archive = ArchiveSection(is_on=False)
        self._configuration = replace(configuration(), listen=listen, data=folder / "data", archive=archive)
        self._service: Service | None = None
        self.url = ""

    async def start(self) -> None:
        """At the same address each time."""
        self._service = Service(self._configuration, notices=self.notices)
        await self._service.start()
        self.url = self._service.urls[0]

    async def grow(self, *texts: str) -> None:
        """Run at another address for a while, where others publish these."""
        elsewhere = Service(replace(self._configuration, listen=["127.0.0.1:0"]))
        async with elsewhere, connect(elsewhere.urls[0]) as client:
            await publish(client, *texts)

    async def stop(self) -> None:
        if self._service is not None:
            await self._service.stop()
            self._service = None

    def back_up(self) -> None:
        backup(self.log_path, self._copy, lambda _done, _total: None)

    def restore(self) -> None:
        """Put the backup in the place of the log, in a folder without anything else of the old one."""
        for path in self.log_path.parent.iterdir():
            if path.is_file():
                path.unlink()
        self._copy.rename(self.log_path)


async def publish(client: AsyncClient, *texts: str) -> None:
    for text in texts:
        await client.publish("t", text.encode())


async def receive(messages: AsyncSubscription, count: int) -> list[tuple[int | None, str]]:
    found: list[Message] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found.append(await anext(messages))
    return [(one.offset, one.payload.decode()) for one in found]


@pytest.mark.parametrize("has_grown", [False, True])
@pytest.mark.parametrize("name", [None, "reader"])
def test_a_subscriber_that_stayed_gets_what_the_restored_log_has(
    tmp_path: Path, name: str | None, has_grown: bool
) -> None:
    """Whether it comes back before or after the log has grown past its position."""

    async def test() -> None:
        broker = Broker(tmp_path)
        await broker.start()
        gaps: list[int | None] = []
        try:
            async with (
                connect(broker.url, name="writer") as writer,
                connect(broker.url, name=name) as reader,
                reader.subscribe("t", on_gap=gaps.append) as messages,
            ):
                await publish(writer, "a0", "a1", "a2")
                broker.back_up()
                await publish(writer, "a3", "a4", "a5")
                assert len(await receive(messages, 6)) == 6
                await broker.stop()
                broker.restore()
                new = [f"b{number}" for number in range(3, 9)]
                if has_grown:
                    await broker.grow(*new)
                await broker.start()
                if not has_grown:
                    await publish(writer, *new)
                assert await receive(messages, 6) == [(number, f"b{number}") for number in range(3, 9)]
                assert gaps == [None]
                assert messages.replaced == (3, 6)
                assert messages.position == 9
                assert await broker.notices.until("replaced")
        finally:
            await broker.stop()

    run(test)


def test_a_bookmark_of_a_former_run_is_checked(tmp_path: Path) -> None:
    async def test() -> None:
        broker = Broker(tmp_path)
        await broker.start()
        gaps: list[int | None] = []
        try:
            async with connect(broker.url) as client:
                await publish(client, "a0", "a1", "a2")
                broker.back_up()
                await publish(client, "a3", "a4", "a5")
                async with client.subscribe("t", start="earliest") as messages:
                    await receive(messages, 5)
                    stored = str(messages.bookmark)
            await broker.stop()
            broker.restore()
            await broker.grow(*(f"b{number}" for number in range(3, 9)))
            await broker.start()
            async with connect(broker.url) as client:
                start = Bookmark.parse(stored)
                async with client.subscribe("t", start=start, on_gap=gaps.append) as messages:
                    assert await receive(messages, 6) == [(number, f"b{number}") for number in range(3, 9)]
                    assert (gaps, messages.replaced) == ([None], (3, 5))
                    again = messages.bookmark
                async with client.subscribe("t", start=again, on_gap=gaps.append) as messages:
                    await publish(client, "b9")
                    assert await receive(messages, 1) == [(9, "b9")]
                    assert (gaps, messages.replaced) == ([None], None)
        finally:
            await broker.stop()

    run(test)


def test_a_cursor_is_not_moved_by_a_position_in_the_lost_log(tmp_path: Path) -> None:
    async def test() -> None:
        broker = Broker(tmp_path)
        await broker.start()
        told = asyncio.Event()
        try:
            async with (
                connect(broker.url, name="reader", session_expiry_s=600) as reader,
                reader.subscribe("t", cursor="mine", start="earliest", on_gap=lambda _: told.set()) as messages,
            ):
                await publish(reader, "a0", "a1", "a2")
                await receive(messages, 2)
                await messages.commit()
                broker.back_up()
                await publish(reader, "a3", "a4", "a5")
                last = (await receive(messages, 4))[-1][0]
                assert last == 5
                waiting = asyncio.create_task(receive(messages, 1))  # it is done with them
                await broker.stop()
                broker.restore()
                await broker.grow(*(f"b{number}" for number in range(3, 9)))
                await broker.start()
                await told.wait()
                done_below = messages.position
                assert done_below in (3, 4)  # it may have the first new message by now
                await messages.commit(last + 1)
                assert await waiting == [(3, "b3")]
                assert messages.position == 4
            async with (
                connect(broker.url, name="reader", session_expiry_s=600) as reader,
                reader.subscribe("t", cursor="mine") as messages,
            ):
                expected = [(number, f"b{number}") for number in range(done_below, 9)]
                assert await receive(messages, len(expected)) == expected
        finally:
            await broker.stop()

    run(test)
