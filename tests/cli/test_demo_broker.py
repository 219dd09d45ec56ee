"""The broker of the demo."""

from __future__ import annotations

import asyncio
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.cli.test_demo_processes import Cut, cut

from godwit.cli import demo_broker
from godwit.cli.demo_processes import Line
from godwit.net.address import format_address
from godwit.net.client import connect


def work_with(pipe: Connection, data: Path) -> None:
    with pytest.raises(Cut):
        asyncio.run(demo_broker.work(Line(pipe, cut), data))


def test_it_tells_its_addresses_and_ends_with_the_pipe(tmp_path: Path) -> None:
    async def main() -> None:
        here, there = Pipe()
        thread = threading.Thread(target=work_with, args=(there, tmp_path))
        thread.start()
        place: demo_broker.Place = await asyncio.to_thread(here.recv)
        assert place.archive.startswith("grpc://127.0.0.1:")
        async with connect(format_address(place.address), timeout_s=10) as client:
            assert await client.ping() > 0
        here.close()
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()

    asyncio.run(main())
