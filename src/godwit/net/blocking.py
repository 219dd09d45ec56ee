"""The client for programs without asyncio: the methods of godwit.net.client, blocking.

with godwit.sync.connect("localhost") as client:
    client.publish("home/room1/temperature", b"21.5")
    with client.subscribe("home/#") as messages:
        for message in messages: ...

An event loop in a thread of its own does the work, so that confirmations, keep-alives and reconnects continue while the
program is busy. While messages follow each other quickly, the thread that waits for them does the work itself (see
godwit.net.direct). Any thread may call any method. Ctrl-C returns at once, and loses no message. Callbacks are called
in one of these threads, and all calls wait for them. In a forked child every call raises ForkedError.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Unpack

from godwit.client.batches import Payload
from godwit.client.config import SEND_BUFFER_BYTES
from godwit.client.message import Message
from godwit.client.properties import MessageOptions
from godwit.client.protocol import ClientState
from godwit.client.subscription import Start
from godwit.errors import GodwitError
from godwit.limits import SESSION_EXPIRY_S
from godwit.net.address import Brokers
from godwit.net.blocking_publisher import BlockingPublisher
from godwit.net.client import FLUSH_TIMEOUT_S, AsyncClient
from godwit.net.client import connect as connect_async
from godwit.net.connecting import Connecting
from godwit.net.direct import CallerDriver
from godwit.net.files import BlockingFiles, OnFileProgress, OnProgress, SentFile
from godwit.net.job_options import JobLike, JobOptions, listed_jobs
from godwit.net.jobs import BlockingJob
from godwit.net.loop import LoopThread, check_timeout, disown_in_children
from godwit.net.publisher import AsyncPublisher
from godwit.net.replies import MAX_CONCURRENT, AsyncResponder, BlockingResponder, ReplyHandler, RequestOptions
from godwit.net.runtime import OnState
from godwit.net.security import Security
from godwit.net.subscription import BlockingSubscription, OnGap, Since
from godwit.transport.config import EndpointConfig
from godwit.transport.connection_state import Statistics
from godwit.wire.control import ClientInfo, CursorInfo, GroupInfo, RetainHandling, TopicInfo, Will
from godwit.wire.jobs import JobInfo, JobState, TaskInfo, WorkerInfo
from godwit.wire.relay import BridgeInfo

_EXIT_TIMEOUT_S: Final = 1.0

_open_clients: weakref.WeakSet[BlockingClient] = weakref.WeakSet()


def connect(
    broker: Brokers = "localhost",
    *,
    name: str | None = None,
    secret: bytes | str = b"",
    will: Will | None = None,
    timeout_s: float | None = None,
    session_expiry_s: int = SESSION_EXPIRY_S,
    fresh: bool = False,
    send_buffer_bytes: int = SEND_BUFFER_BYTES,
    on_state: OnState | None = None,
    endpoint: EndpointConfig | None = None,
    security: Security | None = None,
) -> BlockingClient:
    """Connect to a broker, and return the client once the broker has accepted the login.

        with godwit.sync.connect("localhost", name="sensor-1") as client:
            client.publish("home/room1/temperature", b"21.5")

    Args:
        broker: `host`, `host:port`, `[::1]:port`, `udps://host:port` or `udp://host:port`; the default port is 50000.
            Several with commas between them, or in a list: the client uses one that answers, and another one when that
            is lost. `udps` connections are sealed, `udp` ones are not; without a scheme all are sealed that leave this
            machine. `#sha256:...` behind an address is the fingerprint of the broker's key.
        name: The client's name, by which the broker knows its session. Without one the broker assigns a name, and
            nothing outlives the connection.
        secret: Proves the name, if the broker requires that. A str is encoded as UTF-8. It is never sent.
        will: A message that the broker publishes if the client is lost without closing.
        timeout_s: How long to wait for the broker; None waits forever, so that a client may start before its broker.
        session_expiry_s: How long the broker keeps the session (subscriptions and positions) after the client left.
        fresh: Discard a session that the broker still has under this name.
        send_buffer_bytes: Size of the buffer for messages that are not confirmed yet.
        on_state: Called as `on_state(state, reason)` when the connection is lost, found again or closed; in another
            thread or in one that waits for messages, and not to be used for calls of the client.
        endpoint: Settings of the transport.
        security: How connections are sealed and brokers verified.

    Raises:
        AddressError: The broker's address is invalid, or its host name cannot be resolved.
        UsageError: An option is invalid.
        BrokerUnreachableError: No broker answered, or none accepted the login, within `timeout_s`.
        BrokerError: The broker refused the login, for example AccessError or NameInUseError; or SealingError: its key
            is not the expected one, or it does not seal.
    """
    connecting = connect_async(
        broker,
        name=name,
        secret=secret,
        will=will,
        timeout_s=timeout_s,
        session_expiry_s=session_expiry_s,
        fresh=fresh,
        send_buffer_bytes=send_buffer_bytes,
        on_state=on_state,
        endpoint=endpoint,
        security=security,
    )
    return BlockingClient(connecting)


class BlockingClient:
    """A client of one broker, over reconnects. Made by `connect`. Use it with `with`, or close it.

    All calls wait while the broker cannot be reached, and resume after the reconnect. Once the client has ended, every
    call raises the reason, see `AsyncClient`.
    """

    def __init__(self, connecting: Connecting) -> None:
        self._thread = LoopThread()
        try:
            self._client: AsyncClient = self._thread.call(_wait_for(connecting))
        except BaseException:
            self._thread.stop()
            raise
        self._driver = CallerDriver(self._thread, self._client._runtime)
        _open_clients.add(self)
        # A client that is garbage collected without a close leaves no thread and no socket behind. At the end of the
        # program _close_all does that.
        self._abandon = weakref.finalize(self, _abandon, self._thread, self._client)
        self._abandon.atexit = False
        disown_in_children(self)

    def _on_forked(self) -> None:
        _open_clients.discard(self)
        self._abandon.detach()

    def __repr__(self) -> str:
        return f"<BlockingClient{repr(self._client).removeprefix('<AsyncClient')}"

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait a few seconds for confirmations of sent messages, then close. After Ctrl-C, close at once."""
        if kind is not None and self._thread.is_inherited:
            return  # the exception that is being raised is more useful than a ForkedError
        is_hurried = kind is not None and not issubclass(kind, Exception)
        self.close(timeout_s=0.0 if is_hurried else FLUSH_TIMEOUT_S)

    def close(self, *, timeout_s: float | None = FLUSH_TIMEOUT_S) -> bool:
        """Wait for confirmations of sent messages and jobs, then close the connection. May be repeated.

        Args:
            timeout_s: How long to wait for confirmations; 0 does not wait, None waits for ever.

        Returns:
            Whether everything was confirmed.

        Raises:
            UsageError: `timeout_s` is not a number of seconds.
        """
        check_timeout(timeout_s)
        self._thread.require_own_process()
        if self not in _open_clients:
            return True
        _open_clients.discard(self)
        self._abandon.detach()
        try:
            return self._thread.call(self._client.close(timeout_s=timeout_s))
        finally:
            self._thread.stop()

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The client's name; the broker assigns one to a client without."""
        return self._client.name

    @property
    def state(self) -> ClientState:
        """connecting, online, offline (between two attempts) or closed."""
        return self._client.state

    @property
    def last_reason(self) -> str:
        """Why the connection was lost, or could not be made, the last time."""
        return self._client.last_reason

    @property
    def statistics(self) -> Statistics:
        """Packets, losses, round trip time and rate of the present connection."""
        return self._client.statistics

    # -- publishing and subscribing -----------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        qos: int = 1,
        retain: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> int | None:
        """Publish one message, and wait until it is confirmed.

        Args:
            topic: Where to publish, for example "home/room1/temperature".
            payload: bytes, or a str that is sent as UTF-8. A dict, list, int, float, bool or None is sent as JSON.
            qos: 0: may get lost. 1: stored by the broker, delivered at least once. 2: the same without duplicates.
            retain: Also keep it as the topic's retained message, which new subscribers receive first. An empty payload
                removes the retained message.
            timeout_s: How long to wait for the confirmation; None waits for ever. After a timeout the message stays in
                the client's buffer and is sent when the broker answers again, unless the error states that the buffer
                had no room for it.
            options: Headers, content type, expiry and others; see `MessageOptions`.

        Returns:
            At QoS 1 and 2 the number of connected subscriptions that matched. At QoS 0 None, without a confirmation.

        Raises:
            TopicError: The topic is invalid, or does not exist and is not created by publishing.
            AccessError: This client may not publish there.
            BrokerError: The broker refused the message for another reason.
            UsageError: The payload, the QoS or an option is invalid.
            MessageExpiredError: With `expires_s`: it expired before it was confirmed, and was dropped here.
            ReplyTimeoutError: The message was not confirmed within `timeout_s`, or found no room in the buffer.
        """
        return self._thread.call(
            self._client.publish(topic, payload, qos=qos, retain=retain, timeout_s=timeout_s, **options)
        )

    def publisher(
        self,
        topic: str,
        *,
        qos: int = 1,
        identity: str | None = None,
        epoch: int | None = None,
        sequence: int = 0,
        retain: bool = False,
        **options: Unpack[MessageOptions],
    ) -> BlockingPublisher:
        """Return a publisher for many messages of one topic, whose `send` does not wait. See AsyncClient.publisher."""

        async def make() -> AsyncPublisher:
            return self._client.publisher(
                topic, qos=qos, identity=identity, epoch=epoch, sequence=sequence, retain=retain, **options
            )

        return BlockingPublisher(self._thread, self._thread.call(make()), self._driver)

    def subscribe(
        self,
        *filters: str,
        start: Start = None,
        since: Since | None = None,
        cursor: str | None = None,
        on_gap: OnGap | None = None,
        keep: bool | None = None,
        retained: RetainHandling | None = None,
        no_local: bool = False,
        group: str | None = None,
        group_expiry_s: int | None = None,
        max_in_flight: int | None = None,
        timeout_s: float | None = None,
    ) -> BlockingSubscription:
        """Return a subscription: `with client.subscribe("home/#") as messages: for message in messages`.

        Args:
            filters: Topic filters: `+` matches one level, `#` at the end all further ones.
            start: Where to begin, see AsyncClient.subscribe.
            since: See AsyncClient.subscribe.
            cursor: See AsyncClient.subscribe.
            on_gap: See AsyncClient.subscribe. Called in the loop's thread, or in one that waits for messages.
            keep: See AsyncClient.subscribe.
            retained: See AsyncClient.subscribe.
            no_local: See AsyncClient.subscribe.
            group: Name of a consumer group, see AsyncClient.subscribe.
            group_expiry_s: See AsyncClient.subscribe.
            max_in_flight: See AsyncClient.subscribe.
            timeout_s: The iteration ends when no message has arrived for this many seconds. By default it never ends.
        """
        check_timeout(timeout_s)
        inner = self._client.subscribe(
            *filters,
            start=start,
            since=since,
            cursor=cursor,
            on_gap=on_gap,
            keep=keep,
            retained=retained,
            no_local=no_local,
            group=group,
            group_expiry_s=group_expiry_s,
            max_in_flight=max_in_flight,
        )
        return BlockingSubscription(self._thread, inner, timeout_s, self._driver)

    # -- requests and replies -----------------------------------------------------------------------------------------

    def request(self, topic: str, payload: Payload = b"", **options: Unpack[RequestOptions]) -> Message:
        """Send a request to the clients that reply on a topic, and return the first reply. See AsyncClient.request."""
        return self._thread.call(self._client.request(topic, payload, **options))

    def request_many(
        self, topic: str, payload: Payload = b"", *, replies: int | None = None, **options: Unpack[RequestOptions]
    ) -> list[Message]:
        """Send a request, and return the replies of several clients. See AsyncClient.request_many."""
        return self._thread.call(self._client.request_many(topic, payload, replies=replies, **options))

    def replies(self, *filters: str, capacity: int = MAX_CONCURRENT) -> Callable[[ReplyHandler], BlockingResponder]:
        """Return a decorator for a function that answers the requests on some topics. See AsyncClient.replies.

        The decorator returns a BlockingResponder when the broker has agreed. The function runs in a thread; a coroutine
        function runs in the loop of the client.
        """

        def decorate(handler: ReplyHandler) -> BlockingResponder:
            async def begin() -> AsyncResponder:
                responder = self._client.replies(*filters, capacity=capacity)(handler)
                await responder.ready()
                return responder

            return BlockingResponder(self._thread, self._thread.call(begin()))

        return decorate

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def submit(
        self,
        kind: str,
        payload: Payload = b"",
        *,
        key: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[JobOptions],
    ) -> BlockingJob:
        """Submit a job to the workers that volunteer for its kind, and wait until the broker has stored it.

        The arguments and errors are those of AsyncClient.submit.
        """
        submitted = self._client.submit(kind, payload, key=key, timeout_s=timeout_s, **options)
        return BlockingJob(self._thread, self._thread.call(submitted))

    def submit_many(
        self, jobs: Iterable[JobLike], *, timeout_s: float | None = None, **options: Unpack[JobOptions]
    ) -> list[BlockingJob]:
        """Submit many jobs with the same options, and wait until all are answered. See AsyncClient.submit_many."""
        submissions = listed_jobs(jobs)  # in this thread: a generator of jobs may be slow
        submitted = self._client.submit_many(submissions, timeout_s=timeout_s, **options)
        return [BlockingJob(self._thread, job) for job in self._thread.call(submitted)]

    def job(self, number: int, *, timeout_s: float | None = None) -> BlockingJob:
        """Return a job that was submitted before, also by another program or an earlier run. See AsyncClient.job."""
        return BlockingJob(self._thread, self._thread.call(self._client.job(number, timeout_s=timeout_s)))

    def jobs(
        self,
        *,
        kind: str | None = None,
        controller: str | None = None,
        states: Sequence[JobState] | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> list[JobInfo]:
        """Return the jobs that this client may see, the newest first. See AsyncClient.jobs."""
        return self._thread.call(
            self._client.jobs(kind=kind, controller=controller, states=states, limit=limit, timeout_s=timeout_s)
        )

    def job_info(self, number: int, *, timeout_s: float | None = None) -> tuple[JobInfo, list[TaskInfo]]:
        """Return the present state of a job and its tasks. See AsyncClient.job_info."""
        return self._thread.call(self._client.job_info(number, timeout_s=timeout_s))

    def cancel_job(self, number: int, reason: str = "", *, timeout_s: float | None = None) -> None:
        """Cancel a job and wait until the broker has stored that. See AsyncClient.cancel_job."""
        self._thread.call(self._client.cancel_job(number, reason, timeout_s=timeout_s))

    def retry_job(self, number: int, *, timeout_s: float | None = None) -> BlockingJob:
        """Submit a failed or cancelled job once more, as a new job. See AsyncClient.retry_job."""
        return BlockingJob(self._thread, self._thread.call(self._client.retry_job(number, timeout_s=timeout_s)))

    # -- queries ------------------------------------------------------------------------------------------------------

    def topics(self, filter: str | None = None, *, timeout_s: float | None = None) -> list[TopicInfo]:
        """Return the existing topics in the order of their names, or those of them that match a filter."""
        return self._thread.call(self._client.topics(filter, timeout_s=timeout_s))

    def create_topic(self, topic: str, *, timeout_s: float | None = None) -> None:
        """Create a topic. Needed where the topic's policy is `explicit`. See AsyncClient.create_topic."""
        self._thread.call(self._client.create_topic(topic, timeout_s=timeout_s))

    def delete_topic(self, topic: str, *, timeout_s: float | None = None) -> None:
        """Delete a topic that is not in use. See AsyncClient.delete_topic."""
        self._thread.call(self._client.delete_topic(topic, timeout_s=timeout_s))

    def clients(self, *, timeout_s: float | None = None) -> list[ClientInfo]:
        """Return the connected clients, and those of which the broker keeps a session."""
        return self._thread.call(self._client.clients(timeout_s=timeout_s))

    def cursors(self, client: str | None = None, *, timeout_s: float | None = None) -> list[CursorInfo]:
        """Return the subscriptions with their positions in the log. See AsyncClient.cursors."""
        return self._thread.call(self._client.cursors(client, timeout_s=timeout_s))

    def groups(self, *, timeout_s: float | None = None) -> list[GroupInfo]:
        """Return the consumer groups with their positions. See AsyncClient.groups."""
        return self._thread.call(self._client.groups(timeout_s=timeout_s))

    def bridges(self, *, timeout_s: float | None = None) -> list[BridgeInfo]:
        """Return the bridges from and to the broker, with their positions. See AsyncClient.bridges."""
        return self._thread.call(self._client.bridges(timeout_s=timeout_s))

    def delete_group(self, group: str, *filters: str, timeout_s: float | None = None) -> None:
        """Delete a consumer group with its position. See AsyncClient.delete_group."""
        self._thread.call(self._client.delete_group(group, *filters, timeout_s=timeout_s))

    def workers(self, *, timeout_s: float | None = None) -> list[WorkerInfo]:
        """Return the workers with their kinds of work, capacity and tasks."""
        return self._thread.call(self._client.workers(timeout_s=timeout_s))

    def kick(
        self,
        client: str,
        *filters: str,
        reason: str = "",
        keep_session: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Remove another client, or one of its subscriptions. See AsyncClient.kick."""
        self._thread.call(
            self._client.kick(client, *filters, reason=reason, keep_session=keep_session, timeout_s=timeout_s)
        )

    def ping(self, *, timeout_s: float | None = None) -> float:
        """Send a request to the broker, and return the seconds until its reply."""
        return self._thread.call(self._client.ping(timeout_s=timeout_s))

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
        """Send a file of any size, and wait until the broker has confirmed all of it. See AsyncClient.send_file."""
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
        """Return an iterator over received files: `with client.receive_files(..., folder="in") as files`.

        With a `timeout_s` the iteration ends when no file was completed for this many seconds. The other arguments are
        those of AsyncClient.receive_files.
        """
        check_timeout(timeout_s)
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
    """Close all open clients at the end of the program, so that no will is published."""
    for client in list(_open_clients):
        with suppress(GodwitError, TimeoutError):
            client.close(timeout_s=_EXIT_TIMEOUT_S)
