"""Publish/subscribe messaging and work dispatch over UDP, with a durable log.

import godwit

with godwit.sync.connect("localhost") as client:      # for programs without asyncio
    client.publish("home/room1", {"temperature": 21.5})
    with client.subscribe("home/#") as messages:
        for message in messages:
            print(message.topic, message.json())

async with godwit.connect("localhost", name="sensor-1") as client:      # the same with asyncio
    await client.publish("home/room1", {"temperature": 21.5})

worker = godwit.Worker("localhost", name="anna")      # executes jobs: client.submit("resize", picture)

@worker.handles("resize")
async def resize(task): ...

The library logs to `logging.getLogger("godwit")`: set the environment variable GODWIT_LOG to debug, info or warning to
see the records on standard error. Warnings, such as one about an absent broker, are visible without it.
"""

from typing import TYPE_CHECKING, Any

from godwit import compiled_core

if TYPE_CHECKING:
    from godwit import spark, sync
    from godwit.client.batches import Payload
    from godwit.client.jobs import TaskView
    from godwit.client.message import Bookmark, Message
    from godwit.client.properties import Headers, HeadersLike, MessageOptions
    from godwit.client.protocol import ClientState
    from godwit.client.subscription import Start
    from godwit.errors import (
        AccessError,
        AddressError,
        BadFilterError,
        BadKindError,
        BadTopicError,
        BrokerError,
        BrokerUnreachableError,
        Code,
        ConfigurationError,
        FileTransferError,
        ForkedError,
        GodwitError,
        JobCancelledError,
        JobError,
        JobFailedError,
        KickedError,
        MessageExpiredError,
        NameInUseError,
        NoReplyError,
        NoResponderError,
        PayloadError,
        RecordTooLargeError,
        ReplyTimeoutError,
        RequestError,
        RequestFailedError,
        SealingError,
        SocketError,
        TakenOverError,
        TopicError,
        UsageError,
    )
    from godwit.net.address import Brokers
    from godwit.net.arguments import make_will
    from godwit.net.client import AsyncClient, connect
    from godwit.net.connecting import Connecting
    from godwit.net.file_inbox import ReceivedFile
    from godwit.net.files import FileReceiver, OnFileProgress, OnProgress, SentFile
    from godwit.net.job_options import JobLike, JobOptions
    from godwit.net.jobs import AsyncJob, TaskResult, Update
    from godwit.net.loop import run
    from godwit.net.publisher import AsyncPublisher, BufferFull
    from godwit.net.replies import AsyncResponder, ReplyHandler, RequestOptions
    from godwit.net.runtime import OnState
    from godwit.net.security import Security
    from godwit.net.subscription import AsyncSubscription, OnGap, Since
    from godwit.net.tasks import Task, TaskFailed
    from godwit.net.worker import TaskHandler, Worker
    from godwit.transport.config import EndpointConfig
    from godwit.transport.connection_state import Statistics
    from godwit.wire.control import ClientInfo, CursorInfo, GroupInfo, RetainHandling, TopicInfo, Will
    from godwit.wire.jobs import JobInfo, JobState, TaskInfo, WorkerInfo
    from godwit.wire.relay import BridgeInfo

    __version__: str

__all__ = [
    "AccessError",
    "AddressError",
    "AsyncClient",
    "AsyncJob",
    "AsyncPublisher",
    "AsyncResponder",
    "AsyncSubscription",
    "BadFilterError",
    "BadKindError",
    "BadTopicError",
    "Bookmark",
    "BridgeInfo",
    "BrokerError",
    "BrokerUnreachableError",
    "Brokers",
    "BufferFull",
    "ClientInfo",
    "ClientState",
    "Code",
    "ConfigurationError",
    "Connecting",
    "CursorInfo",
    "EndpointConfig",
    "FileReceiver",
    "FileTransferError",
    "ForkedError",
    "GodwitError",
    "GroupInfo",
    "Headers",
    "HeadersLike",
    "JobCancelledError",
    "JobError",
    "JobFailedError",
    "JobInfo",
    "JobLike",
    "JobOptions",
    "JobState",
    "KickedError",
    "Message",
    "MessageExpiredError",
    "MessageOptions",
    "NameInUseError",
    "NoReplyError",
    "NoResponderError",
    "OnFileProgress",
    "OnGap",
    "OnProgress",
    "OnState",
    "Payload",
    "PayloadError",
    "ReceivedFile",
    "RecordTooLargeError",
    "ReplyHandler",
    "ReplyTimeoutError",
    "RequestError",
    "RequestFailedError",
    "RequestOptions",
    "RetainHandling",
    "SealingError",
    "Security",
    "SentFile",
    "Since",
    "SocketError",
    "Start",
    "Statistics",
    "TakenOverError",
    "Task",
    "TaskFailed",
    "TaskHandler",
    "TaskInfo",
    "TaskResult",
    "TaskView",
    "TopicError",
    "TopicInfo",
    "Update",
    "UsageError",
    "Will",
    "Worker",
    "WorkerInfo",
    "__version__",
    "connect",
    "make_will",
    "run",
    "spark",
    "sync",
]

compiled_core.install()

_NAMES_BY_MODULE = {
    "client.batches": "Payload",
    "client.jobs": "TaskView",
    "client.message": "Bookmark Message",
    "client.properties": "Headers HeadersLike MessageOptions",
    "client.protocol": "ClientState",
    "client.subscription": "Start",
    "net.address": "Brokers",
    "net.arguments": "make_will",
    "net.client": "AsyncClient connect",
    "net.connecting": "Connecting",
    "net.file_inbox": "ReceivedFile",
    "net.files": "FileReceiver OnFileProgress OnProgress SentFile",
    "net.job_options": "JobLike JobOptions",
    "net.jobs": "AsyncJob TaskResult Update",
    "net.loop": "run",
    "net.publisher": "AsyncPublisher BufferFull",
    "net.replies": "AsyncResponder ReplyHandler RequestOptions",
    "net.runtime": "OnState",
    "net.security": "Security",
    "net.subscription": "AsyncSubscription OnGap Since",
    "net.tasks": "Task TaskFailed",
    "net.worker": "TaskHandler Worker",
    "transport.config": "EndpointConfig",
    "transport.connection_state": "Statistics",
    "wire.control": "ClientInfo CursorInfo GroupInfo RetainHandling TopicInfo Will",
    "wire.jobs": "JobInfo JobState TaskInfo WorkerInfo",
    "wire.relay": "BridgeInfo",
}
"""The modules of the public names. The other names are errors."""


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on first use (PEP 562). Every layer imports this module, so it imports none itself."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "__version__":
            from importlib.metadata import version

            from godwit.install import DISTRIBUTION

            return version(DISTRIBUTION)
        from importlib import import_module

        if name in ("spark", "sync"):
            return import_module(f"godwit.{name}")
        home = next((module for module, names in _NAMES_BY_MODULE.items() if name in names.split()), "errors")
        value = globals()[name] = getattr(import_module(f"godwit.{home}"), name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
