"""The process of `godwit demo` that is the broker."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final, NamedTuple

from godwit.cli.demo_processes import TICK_S, Line, run_child
from godwit.transport.events import Address

LEASE_S: Final = 3.0
"""A worker that is silent for so long is replaced: soon enough to be seen."""


class Place(NamedTuple):
    """Where the broker is reached."""

    address: Address
    archive: str


def main(pipe: Pipe, data: str) -> None:
    """Of the process: tells where it and its archive are, and runs until nobody listens any more."""
    run_child(pipe, lambda line: work(line, Path(data)))


async def work(line: Line, data: Path) -> None:
    from godwit.broker.settings import Settings
    from godwit.net.serve import Service
    from godwit.server.configuration import Configuration
    from godwit.server.log_sections import ArchiveSection

    configuration = Configuration(
        listen=["127.0.0.1:0"],  # any free port of this machine
        settings=Settings(lease_s=LEASE_S),
        data=data,
        archive=ArchiveSection(listen="127.0.0.1:0"),
    )
    async with Service(configuration) as service:
        while not service.archive_url:
            line.has_heard("")  # or nobody listens any more
            await asyncio.sleep(TICK_S)
        line.say(Place(service.addresses[0], service.archive_url))
        await line.is_cut()
