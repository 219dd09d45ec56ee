"""A broker is started on an older backup of its log: subscribers that stayed miss nothing, and are notified."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.net.running import Notices, configuration, run

from godwit.client.message import Message
from godwit.net.connect import AsyncClient, connect
from godwit.net.serve import Service
from godwit.net.subscribing import AsyncSubscription
from godwit.server.log_sections import ArchiveSection
from godwit.store.copies import backup

PATIENCE_S = 10.0


class Broker:
    """A broker with a data folder, restarted at the same address, whose log can be replaced while it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.log_path = folder / "data" / "log.sqlite"
        self.notices = Notices()
        self._copy = folder / "backup.sqlite"
        self._configuration = replace(configuration(), data=folder / "data", archive=ArchiveSection(is_on=False))
        self._service: Service | None = None
        self.url = ""

    async def start(self) -> None:
        self._service = Service(self._configuration, notices=self.notices)
        await self._service.start()
        self.url = self._service.urls[0]
        self._configuration = replace(self._configuration, listen=[self.url.removeprefix("udp://")])

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


@pytest.mark.parametrize("name", [None, "reader"])
def test_a_subscriber_that_stayed_gets_what_the_restored_log_has(tmp_path: Path, name: str | None) -> None:
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
                await broker.start()
                # The subscriber may come back before or after the log has grown past its position.
                await publish(writer, *(f"b{number}" for number in range(3, 9)))
                assert await receive(messages, 6) == [(number, f"b{number}") for number in range(3, 9)]
                assert gaps == [None]
                assert messages.replaced == (3, 6)
                assert messages.position == 9
                assert await broker.notices.until("replaced")
        finally:
            await broker.stop()

    run(test)
