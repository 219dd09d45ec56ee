"""A member of a consumer group, which writes the number of each message to a file before it asks for the next one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.system.pour import number_of
from tests.system.worker import Orders, say

from godwit.net.client import connect

NUMBER_BYTES = 8


async def share(orders: Orders, *, broker: str, name: str, group: str, filter: str, path: str) -> None:
    """Join a group and report `ready`. Order: `stop` leaves the group and reports `left`."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    async with connect(broker, name=name) as client, client.subscribe(filter, group=group) as messages:
        say("ready", client=client.name)

        async def consume() -> None:
            async for message in messages:
                # The kernel has it then, also if this process is killed.
                os.write(file, number_of(message.payload).to_bytes(NUMBER_BYTES, "big"))

        consuming = asyncio.create_task(consume())
        stopping = asyncio.create_task(orders.next())
        await asyncio.wait((consuming, stopping), return_when=asyncio.FIRST_COMPLETED)
        consuming.cancel()
        await asyncio.wait([consuming])
        if not consuming.cancelled():
            consuming.result()
    say("left")


def processed(folder: Path) -> list[int]:
    """The numbers that all members have written, in the order of the files."""
    found: list[int] = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        found += [
            int.from_bytes(data[at : at + NUMBER_BYTES], "big")
            for at in range(0, len(data) // NUMBER_BYTES * NUMBER_BYTES, NUMBER_BYTES)
        ]
    return found
