"""Publish/subscribe messaging and work dispatch over UDP, with a durable log.

import godwit

async with godwit.connect("localhost", name="sensor-1") as client:
    await client.publish("home/room1/temperature", b"21.5")

with godwit.sync.connect("localhost") as client:      # the same, blocking
    client.publish("home/room1/temperature", b"21.5")
    print(client.submit("resize", picture, workers=4).results())

worker = godwit.Worker("localhost", name="anna")      # executes such jobs

@worker.handles("resize")
async def resize(task): ...

The library logs to `logging.getLogger("godwit")`: set the environment variable GODWIT_LOG to debug, info or warning to
see the records on standard error.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from godwit import spark, sync
    from godwit.client.message import Bookmark, Message
    from godwit.errors import (
        AccessError,
        BrokerError,
        BrokerUnreachableError,
        FileTransferError,
        GodwitError,
        JobCancelledError,
        JobError,
        JobFailedError,
        KickedError,
        NameInUseError,
        TakenOverError,
        TopicError,
        UsageError,
    )
    from godwit.net.client import AsyncClient, connect
    from godwit.net.jobs import AsyncJob, TaskResult, Update
    from godwit.net.loop import run
    from godwit.net.publisher import BufferFull
    from godwit.net.tasks import Task, TaskFailed
    from godwit.net.worker import Worker
    from godwit.wire.control import Will

    __version__: str

__all__ = [
    "AccessError",
    "AsyncClient",
    "AsyncJob",
    "Bookmark",
    "BrokerError",
    "BrokerUnreachableError",
    "BufferFull",
    "FileTransferError",
    "GodwitError",
    "JobCancelledError",
    "JobError",
    "JobFailedError",
    "KickedError",
    "Message",
    "NameInUseError",
    "TakenOverError",
    "Task",
    "TaskFailed",
    "TaskResult",
    "TopicError",
    "Update",
    "UsageError",
    "Will",
    "Worker",
    "__version__",
    "connect",
    "run",
    "spark",
    "sync",
]

_HOMES = {
    "AsyncClient": "godwit.net.client",
    "AsyncJob": "godwit.net.jobs",
    "Bookmark": "godwit.client.message",
    "BufferFull": "godwit.net.publisher",
    "Message": "godwit.client.message",
    "Task": "godwit.net.tasks",
    "TaskFailed": "godwit.net.tasks",
    "TaskResult": "godwit.net.jobs",
    "Update": "godwit.net.jobs",
    "Will": "godwit.wire.control",
    "Worker": "godwit.net.worker",
    "connect": "godwit.net.client",
    "run": "godwit.net.loop",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562): every layer imports this module, so it imports nothing itself."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        from importlib.metadata import version

        from godwit.install import DISTRIBUTION

        return version(DISTRIBUTION)
    from importlib import import_module

    if name in ("spark", "sync"):
        return import_module(f"godwit.{name}")
    value = globals()[name] = getattr(import_module(_HOMES.get(name, "godwit.errors")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
