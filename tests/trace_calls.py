"""Count the Python calls and the files of Godwit that take part in one message and in one job.

    python tests/trace_calls.py          # the two figures
    python tests/trace_calls.py --files  # and the calls by file and function

A broker with its log on disk and two clients run in one process, over real sockets. After a warm-up, all threads are
traced from the call that sends one message (or submits one job) until the program has the confirmation and the message
(or the result) and has asked for the next message, which acknowledges this one. Calls of the standard library and of C
functions do not count.
"""

from __future__ import annotations

import asyncio
import collections
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import godwit
from godwit.net.service import Service
from godwit.server.configuration import Configuration

PACKAGE: Final = str(Path(godwit.__file__).parent)
WARM_UP: Final = 20
ROUNDS: Final = 15
IDLE_S: Final = 0.3
"""After this time the acknowledgements of the last round have been exchanged."""

Calls = collections.Counter[tuple[str, str]]


class Tracer:
    """Counts the calls of functions in the package, in all threads that were started after `install`."""

    def __init__(self) -> None:
        self.calls: Calls = collections.Counter()
        self.is_on = False

    def install(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_on and event == "call":
            code = frame.f_code
            if code.co_filename.startswith(PACKAGE):
                self.calls[code.co_filename[len(PACKAGE) + 1 :], code.co_qualname] += 1

    async def trace(self, work: Callable[[], Awaitable[None]]) -> Calls:
        """Return the calls of one execution that begins when all is idle."""
        await asyncio.sleep(IDLE_S)
        self.calls = collections.Counter()
        self.is_on = True
        await work()
        self.is_on = False
        return self.calls


def typical(runs: list[Calls]) -> Calls:
    """Return the run with the median number of calls."""
    return sorted(runs, key=lambda calls: calls.total())[len(runs) // 2]


async def trace_message(tracer: Tracer, url: str) -> Calls:
    """Trace one message of QoS 1 from `send` to its confirmation and to the subscriber's program."""
    async with (
        godwit.connect(url, name="publisher") as sender,
        godwit.connect(url, name="subscriber") as receiver,
        receiver.subscribe("traced/topic") as messages,
    ):
        waiting = asyncio.ensure_future(anext(messages))

        async def work() -> None:
            nonlocal waiting
            await sender.publish("traced/topic", b"payload", qos=1)
            await waiting
            waiting = asyncio.ensure_future(anext(messages))  # asking for the next one acknowledges this one
            await asyncio.sleep(0)

        for _ in range(WARM_UP):
            await work()
        traced = typical([await tracer.trace(work) for _ in range(ROUNDS)])
        waiting.cancel()
        return traced


async def trace_job(tracer: Tracer, url: str) -> Calls:
    """Trace one job from `submit` to its result, done by one worker."""
    worker = godwit.Worker(url, name="worker")

    @worker.handles("traced")
    async def handle(task: Any) -> bytes:
        return b"done"

    working = asyncio.ensure_future(worker.run())
    try:
        async with godwit.connect(url, name="controller") as client:

            async def work() -> None:
                job = await client.submit("traced", b"payload")
                await job.results()

            for _ in range(WARM_UP):
                await work()
            return typical([await tracer.trace(work) for _ in range(ROUNDS)])
    finally:
        working.cancel()
        await asyncio.wait([working])


async def trace() -> dict[str, Calls]:
    """Return the calls of a message and of a job."""
    tracer = Tracer()
    tracer.install()
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with Service(Configuration(listen=["127.0.0.1:0"], data=Path(folder))) as service:
                url = service.urls[0]
                return {"message": await trace_message(tracer, url), "job": await trace_job(tracer, url)}
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


def main() -> None:
    for name, calls in asyncio.run(trace()).items():
        print(f"one {name}: {calls.total()} calls through {len({file for file, _ in calls})} files")
        if "--files" in sys.argv:
            files: collections.Counter[str] = collections.Counter()
            for (file, _), count in calls.items():
                files[file] += count
            for file, count in files.most_common():
                print(f"  {count:4}  {file}")
                for (owner, function), inner in calls.most_common():
                    if owner == file:
                        print(f"          {inner:4}  {function}")


if __name__ == "__main__":
    main()
