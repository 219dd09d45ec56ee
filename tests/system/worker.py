"""The other end of tests.system.stage.Worker: one role in a process of its own.

It takes orders as lines of standard input and answers with JSON objects, one a line, each with a `word`. It ends when
its input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from godwit.net import loop

MAX_LINE_BYTES = 64 * 1024


class Orders:
    """What the test wants."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream

    @classmethod
    async def open(cls) -> Orders:
        stream = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), sys.stdin)
        return cls(stream)

    async def next(self) -> str:
        """The next one."""
        line = await self._stream.readline()
        if not line:
            os._exit(0)  # the test has ended, so no orderly end is needed
        return line.decode().strip()


def say(word: str, **more: Any) -> None:
    """Tells the test something."""
    print(json.dumps({"word": word, **more}), flush=True)


def say_state(state: str, reason: str) -> None:
    """For `connect(on_state=...)`."""
    say("state", state=state, reason=reason)


Role = Callable[..., Awaitable[None]]


def roles() -> dict[str, Role]:
    from tests.system import crowd, hostile, labour, pour, sharing, thermometers, traffic

    return {
        "publish": traffic.publish,
        "subscribe": traffic.subscribe,
        "crowd": crowd.crowd,
        "flood": hostile.flood,
        "stall": hostile.stall,
        "lie": hostile.lie,
        "pour": pour.pour,
        "replay": pour.replay,
        "read_slowly": pour.read_slowly,
        "labour": labour.labour,
        "measure": thermometers.measure,
        "share": sharing.share,
    }


def main() -> None:
    role = roles()[sys.argv[1]]
    arguments = json.loads(sys.argv[2])

    async def play() -> None:
        await role(await Orders.open(), **arguments)

    loop.run(play())
