"""Godwit moves messages and work over plain UDP datagrams and loses none.

import godwit

async with godwit.connect("localhost", name="sensor-1") as client:
    await client.publish("home/room1/temperature", b"21.5")

with godwit.sync.connect("localhost") as client:      # the same, blocking
    client.publish("home/room1/temperature", b"21.5")
    print(client.submit("resize", picture, workers=4).results())

worker = godwit.Worker("localhost", name="anna")      # does such work

@worker.handles("resize")
async def resize(task): ...
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from godwit import sync
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
    from godwit.net.connect import AsyncClient, connect
    from godwit.net.jobs import AsyncJob, TaskResult, Update
    from godwit.net.loop import run
    from godwit.net.publishing import BufferFull
    from godwit.net.task import Task, TaskFailed
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
    "sync",
]

_HOMES = {
    "AsyncClient": "godwit.net.connect",
    "AsyncJob": "godwit.net.jobs",
    "Bookmark": "godwit.client.message",
    "BufferFull": "godwit.net.publishing",
    "Message": "godwit.client.message",
    "Task": "godwit.net.task",
    "TaskFailed": "godwit.net.task",
    "TaskResult": "godwit.net.jobs",
    "Update": "godwit.net.jobs",
    "Will": "godwit.wire.control",
    "Worker": "godwit.net.worker",
    "connect": "godwit.net.connect",
    "run": "godwit.net.loop",
}


def __getattr__(name: str) -> Any:
    """Looked up when it is asked for (PEP 562): every layer imports this module, so it imports nothing itself."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        from importlib.metadata import version

        return version("godwit")
    from importlib import import_module

    if name == "sync":
        return import_module("godwit.sync")
    value = globals()[name] = getattr(import_module(_HOMES.get(name, "godwit.errors")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
