"""The client for programs without asyncio: the same methods as godwit.net.connect, blocking.

with godwit.sync.connect("localhost") as client:
    client.publish("home/room1/temperature", b"21.5")
    with client.subscribe("home/#") as messages:
        for message in messages: ...

An event loop in a thread of its own does the work, so confirms, keep-alives and reconnects go on while the program is
busy. Any thread may call any method. Ctrl-C returns at once, and loses no message. Callbacks are called in the loop's
thread, and everything else waits for them. A forked child cannot use the client: each call raises ForkedError there.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Unpack

from godwit.client.client import ClientState
from godwit.client.packing import Payload
from godwit.client.subscription import Start
from godwit.errors import GodwitError
from godwit.net.blocking_jobs import BlockingJob
from godwit.net.blocking_publisher import BlockingPublisher
from godwit.net.blocking_subscription import BlockingFiles, BlockingSubscription
from godwit.net.connect import FLUSH_PATIENCE_S, AsyncClient, Connecting
from godwit.net.connect import connect as connect_async
from godwit.net.files import OnFileProgress, OnProgress, SentFile
from godwit.net.fork import disown_in_children
from godwit.net.publishing import AsyncPublisher
from godwit.net.submitting import JobLike, JobOptions
from godwit.net.subscribing import OnGap, Since
from godwit.net.thread import LoopThread
from godwit.transport.connection_state import Statistics
from godwit.wire.control import ClientInfo, TopicInfo
from godwit.wire.jobs import JobInfo, JobState, TaskInfo

_EXIT_PATIENCE_S: Final = 1.0

_open_clients: weakref.WeakSet[BlockingClient] = weakref.WeakSet()


def connect(broker: str = "localhost", *, timeout_s: float | None = None, **options: Any) -> BlockingClient:
    """A client of the broker at `host`, `host:port`, `[::1]:port` or `udp://host:port`, once the broker welcomed it.

    It waits for ever unless there is a `timeout_s`. The other options are those of godwit.connect: name, secret, will,
    session_expiry_s, fresh, send_buffer_bytes, on_state, endpoint.
    """
    return BlockingClient(connect_async(broker, timeout_s=timeout_s, **options))


class BlockingClient:
    """One client of one broker, over reconnects. Made by `connect`; for `with`, or to be closed."""

    def __init__(self, connecting: Connecting) -> None:
        self._thread = LoopThread()
        try:
            self._client: AsyncClient = self._thread.call(_wait_for(connecting))
        except BaseException:
            self._thread.stop()
            raise
        _open_clients.add(self)
        # One that is dropped without a close leaves no thread and no socket behind. At the program's end: _close_all.
        self._abandon = weakref.finalize(self, _abandon, self._thread, self._client)
        self._abandon.atexit = False
        disown_in_children(self)

    def on_forked(self) -> None:
        _open_clients.discard(self)
        self._abandon.detach()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Waits a few seconds for confirms of what was sent, then ends, without an error. After Ctrl-C at once."""
        if kind is not None and self._thread.is_inherited:
            return  # the exception on its way says more than that this process cannot use the client
        is_hurried = kind is not None and not issubclass(kind, Exception)
        self.close(timeout_s=0.0 if is_hurried else FLUSH_PATIENCE_S)

    def close(self, *, timeout_s: float = FLUSH_PATIENCE_S) -> bool:
        """Says goodbye. Waits so long for what is not confirmed, and gives whether all was. May be repeated."""
        self._thread.require_own_process()
        if self not in _open_clients:
            return True
        _open_clients.discard(self)
        self._abandon.detach()
        try:
            return self._thread.call(self._client.close(timeout_s=timeout_s))
        finally:
            self._thread.stop()

    # -- look ---------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The client's; the broker gives one to a client without."""
        return self._client.name

    @property
    def state(self) -> ClientState:
        """connecting, online, offline (between two attempts) or closed."""
        return self._client.state

    @property
    def statistics(self) -> Statistics:
        """Of the present connection: packets, losses, round trip, rate."""
        return self._client.statistics

    # -- publish and subscribe ----------------------------------------------------------------------------------------

    def publish(self, topic: str, payload: Payload, *, qos: int = 1, retain: bool = False) -> int | None:
        """Publishes one message. Returns when the broker has it safe, with the number of subscriptions reached."""
        return self._thread.call(self._client.publish(topic, payload, qos=qos, retain=retain))

    def publisher(
        self,
        topic: str,
        *,
        qos: int = 1,
        identity: str | None = None,
        epoch: int | None = None,
        sequence: int = 0,
        retain: bool = False,
    ) -> BlockingPublisher:
        """The fast way for many messages of one topic; see AsyncClient.publisher."""

        async def make() -> AsyncPublisher:
            return self._client.publisher(
                topic, qos=qos, identity=identity, epoch=epoch, sequence=sequence, retain=retain
            )

        return BlockingPublisher(self._thread, self._thread.call(make()))

    def subscribe(
        self,
        *filters: str,
        start: Start = None,
        since: Since | None = None,
        cursor: str | None = None,
        on_gap: OnGap | None = None,
        keep: bool | None = None,
        timeout_s: float | None = None,
    ) -> BlockingSubscription:
        """What matches one of the filters, as an iterator: `with client.subscribe(...) as messages`.

        With a `timeout_s` the iteration ends when nothing has come for so long. The rest as in AsyncClient.subscribe.
        """
        inner = self._client.subscribe(*filters, start=start, since=since, cursor=cursor, on_gap=on_gap, keep=keep)
        return BlockingSubscription(self._thread, inner, timeout_s)

    # -- work ---------------------------------------------------------------------------------------------------------

    def submit(
        self, kind: str, payload: Payload = b"", *, key: str | None = None, **options: Unpack[JobOptions]
    ) -> BlockingJob:
        """Has a job done by workers that volunteer for its kind. Returns when the broker has it safe.

        The options are those of AsyncClient.submit.
        """
        return BlockingJob(self._thread, self._thread.call(self._client.submit(kind, payload, key=key, **options)))

    def submit_many(self, jobs: Iterable[JobLike], **options: Unpack[JobOptions]) -> list[BlockingJob]:
        """The fast way for many: (kind, payload) or (kind, payload, key). See AsyncClient.submit_many."""
        wanted = list(jobs)  # here: what makes them may take its time
        return [
            BlockingJob(self._thread, job) for job in self._thread.call(self._client.submit_many(wanted, **options))
        ]

    def job(self, number: int) -> BlockingJob:
        """A job that was submitted before, also by an earlier run of this program."""
        return BlockingJob(self._thread, self._thread.call(self._client.job(number)))

    def jobs(
        self,
        *,
        kind: str | None = None,
        controller: str | None = None,
        states: Sequence[JobState] | None = None,
        limit: int | None = None,
    ) -> list[JobInfo]:
        """The jobs that this client may see, the newest first; of a kind, a controller, in one of these states."""
        return self._thread.call(self._client.jobs(kind=kind, controller=controller, states=states, limit=limit))

    def job_info(self, number: int) -> tuple[JobInfo, list[TaskInfo]]:
        """One job and its tasks, as they stand."""
        return self._thread.call(self._client.job_info(number))

    def cancel_job(self, number: int, reason: str = "") -> None:
        """Ends a job: tasks that are at work are revoked. Returns when that is safe."""
        self._thread.call(self._client.cancel_job(number, reason))

    # -- ask ----------------------------------------------------------------------------------------------------------

    def topics(self, filter: str | None = None) -> list[TopicInfo]:
        """The topics that there are, by name; those that match the filter, if there is one."""
        return self._thread.call(self._client.topics(filter))

    def create_topic(self, topic: str) -> None:
        """Brings a topic into being: needed where the topic's policy is `explicit`."""
        self._thread.call(self._client.create_topic(topic))

    def clients(self) -> list[ClientInfo]:
        """Who is connected, and who is remembered."""
        return self._thread.call(self._client.clients())

    def kick(self, client: str, *filters: str, reason: str = "") -> None:
        """Removes another client, or with filters its subscription to exactly these. It is told why."""
        self._thread.call(self._client.kick(client, *filters, reason=reason))

    def ping(self) -> float:
        """Asks the broker for a sign of life; gives the seconds that it took."""
        return self._thread.call(self._client.ping())

    # -- files --------------------------------------------------------------------------------------------------------

    def send_file(
        self,
        topic: str,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        progress: OnProgress | None = None,
        hashing: OnProgress | None = None,
    ) -> SentFile:
        """Sends a file of any size; returns when the broker has all of it. See AsyncClient.send_file."""
        return self._thread.call(self._client.send_file(topic, path, name=name, progress=progress, hashing=hashing))

    def receive_files(
        self,
        *filters: str,
        folder: str | os.PathLike[str],
        progress: OnFileProgress | None = None,
        on_problem: Callable[[str], None] | None = None,
        max_file_bytes: int | None = None,
        max_total_bytes: int | None = None,
        start: Start = None,
        since: Since | None = None,
        keep: bool = False,
        timeout_s: float | None = None,
    ) -> BlockingFiles:
        """The files sent to topics that match, as an iterator: `with client.receive_files(...) as files`."""
        inner = self._client.receive_files(
            *filters,
            folder=folder,
            progress=progress,
            on_problem=on_problem,
            max_file_bytes=max_file_bytes,
            max_total_bytes=max_total_bytes,
            start=start,
            since=since,
            keep=keep,
        )
        return BlockingFiles(self._thread, inner, timeout_s)


def _abandon(thread: LoopThread, client: AsyncClient) -> None:
    thread.call_soon(client.abort)
    thread.stop()


async def _wait_for(connecting: Connecting) -> AsyncClient:
    return await connecting


@atexit.register
def _close_all() -> None:
    """A program that ends without closing still says goodbye, so that no last will is released."""
    for client in list(_open_clients):
        with suppress(GodwitError, TimeoutError):
            client.close(timeout_s=_EXIT_PATIENCE_S)
