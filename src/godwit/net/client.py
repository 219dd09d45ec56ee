"""The client for asyncio: publish, subscribe, submit jobs, query the broker. It reconnects by itself.

async with godwit.connect("localhost", name="sensor-1") as client:
    await client.publish("home/room1/temperature", b"21.5", retain=True)
    async with client.subscribe("home/+/temperature") as messages:
        async for message in messages: ...

It works in any running event loop that can watch sockets; `godwit.run` starts the fastest one. Cancelling a call stops
only the wait: messages and requests that were sent are not withdrawn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, Unpack

from godwit.broker.topics import check_filter, check_kind, check_topic
from godwit.client.arguments import check_text
from godwit.client.batches import Payload
from godwit.client.config import ClientConfig
from godwit.client.message import Message
from godwit.client.properties import MessageOptions, make_properties
from godwit.client.protocol import ClientState
from godwit.client.subscription import Start, make_membership
from godwit.errors import UsageError
from godwit.net.arguments import (
    check_callback,
    check_path,
)
from godwit.net.connecting import Connecting as Connecting  # noqa: PLC0414 - exported, as connect is
from godwit.net.connecting import connect as connect  # noqa: PLC0414
from godwit.net.files import FileReceiver, OnFileProgress, OnProgress, SentFile, send_file
from godwit.net.job_options import JobLike, JobOptions, check_states, checked_spec
from godwit.net.jobs import AsyncJob
from godwit.net.loop import check_timeout, within
from godwit.net.publisher import AsyncPublisher
from godwit.net.queries import (
    job_page,
    list_bridges,
    list_clients,
    list_cursors,
    list_groups,
    list_jobs,
    list_topics,
    list_workers,
    retry_job,
    show_job,
)
from godwit.net.replies import (
    MAX_CONCURRENT,
    AsyncResponder,
    ReplyHandler,
    Requester,
    RequestOptions,
)
from godwit.net.runtime import BrokerResolver, ClientRuntime, OnState
from godwit.net.security import Security
from godwit.net.subscription import AsyncSubscription, OnGap, Since
from godwit.transport.connection_state import Statistics
from godwit.transport.events import Address
from godwit.wire.control import (
    ClientInfo,
    Create,
    CursorInfo,
    DeleteGroup,
    DeleteTopic,
    Done,
    GroupInfo,
    Kick,
    Ping,
    Pong,
    RetainHandling,
    TopicInfo,
)
from godwit.wire.extension import NO_PROPERTIES
from godwit.wire.jobs import JobInfo, JobState, TaskInfo, WorkerInfo
from godwit.wire.relay import BridgeInfo

FLUSH_TIMEOUT_S: Final = 5.0
"""How long the end of a client waits for confirmations."""
_NOT_STORED: Final = (
    "the broker has not stored the job",
    "it may do so later; submit it again with the same key, which never makes a second job",
)
T = TypeVar("T")


class AsyncClient:
    """A client of one broker, over reconnects. Made by `connect`.

    All calls wait while the broker cannot be reached, and resume after the reconnect. Once the client has ended, every
    call raises the reason: a BrokerError if the broker ended it for good (such as TakenOverError or KickedError), a
    UsageError after `close`, a ForkedError in a forked child.
    """

    def __init__(
        self,
        config: ClientConfig,
        addresses: Sequence[Address],
        *,
        on_state: OnState | None = None,
        resolver: BrokerResolver | None = None,
        securities: Mapping[tuple[str, int], Security] | None = None,
    ) -> None:
        """Begin to connect to one of the addresses. Programs call `connect` instead."""
        self._runtime = ClientRuntime(config, addresses, on_state=on_state, resolver=resolver, securities=securities)
        """The client in its event loop. Workers and file transfers use it too."""
        self._request = self._runtime.request
        self._requester: Requester | None = None

    def __repr__(self) -> str:
        return f"<AsyncClient {self.name!r} of the broker at {self._runtime.broker}, {self.state}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait a few seconds for confirmations of sent messages, then close. Raises nothing if some are missing.

        Call `await publisher.flush()` in the block to be sure that all are confirmed. After a cancellation it does not
        wait.
        """
        if kind is not None and self._runtime.is_inherited:
            return  # the exception that is being raised is more useful than a ForkedError
        is_hurried = kind is not None and not issubclass(kind, Exception)
        await self.close(timeout_s=0.0 if is_hurried else FLUSH_TIMEOUT_S)

    async def close(self, *, timeout_s: float | None = FLUSH_TIMEOUT_S) -> bool:
        """Wait for confirmations of sent messages and jobs, then close the connection. May be repeated.

        Args:
            timeout_s: How long to wait for confirmations; 0 does not wait, None waits for ever.

        Returns:
            Whether everything was confirmed.

        Raises:
            UsageError: `timeout_s` is not a number of seconds.
        """
        check_timeout(timeout_s)
        return await self._runtime.close(timeout_s)

    def abort(self) -> None:
        """Close at once, without waiting for anything."""
        self._runtime.abort()

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The client's name; the broker assigns one to a client without."""
        return self._runtime.core.name

    @property
    def state(self) -> ClientState:
        """connecting, online, offline (between two attempts) or closed."""
        return self._runtime.state

    @property
    def statistics(self) -> Statistics:
        """Packets, losses, round trip time and rate of the present connection."""
        return self._runtime.core.statistics

    @property
    def is_answered(self) -> bool:
        """Whether a broker answers at the address, even if it has not accepted the login yet."""
        return self._runtime.is_answered

    @property
    def last_reason(self) -> str:
        """Why the connection was lost, or could not be made, the last time."""
        return self._runtime.last_reason

    def require_open(self) -> None:
        """Raise the error with which the client ended, if it has ended."""
        self._runtime.require_open()

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(
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
            TopicError: The topic is invalid, or does not exist and may not be created.
            AccessError: This client may not publish there.
            BrokerError: The broker refused the message for another reason.
            UsageError: The payload, the QoS or an option is invalid.
            MessageExpiredError: With `expires_s`: it expired before it was confirmed, and was dropped here.
            ReplyTimeoutError: The message was not confirmed within `timeout_s`, or found no room in the buffer.
        """
        properties = make_properties(**options) if options else NO_PROPERTIES
        publishers = self._runtime.publishers
        if timeout_s is None:
            return await publishers.publish(topic, payload, qos=qos, retain=retain, properties=properties)
        return await publishers.publish_within(timeout_s, topic, payload, qos=qos, retain=retain, properties=properties)

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
    ) -> AsyncPublisher:
        """Return a publisher for many messages of one topic, whose `send` does not wait.

        For QoS 2 without duplicates across crashes of this program, pass `identity`, `epoch` and `sequence`.

        Args:
            topic: Where to publish.
            qos: 0, 1 or 2, see `publish`.
            identity: A name under which the broker recognises repeated messages in a later run.
            epoch: Higher in each run, or the same to continue a run that was interrupted.
            sequence: The sequence of the first message that will be sent.
            retain: Keep the last message as the topic's retained message.
            options: The properties of all messages, see `MessageOptions`; `expires_s` is counted for each message.

        Raises:
            UsageError: An argument is invalid, or an identity has no epoch.
        """
        self._runtime.require_open()
        if identity is not None and epoch is None:
            raise UsageError(
                f"the identity {identity!r} without an epoch: a later run would be taken for repeats of this one; "
                "give epoch=, higher in each run, or the same and the sequence to go on with"
            )
        return self._runtime.publishers.publisher(
            topic,
            qos=qos,
            identity=identity,
            epoch=epoch or 0,
            sequence=sequence,
            retain=retain,
            properties=make_properties(**options) if options else NO_PROPERTIES,
        )

    # -- subscribing --------------------------------------------------------------------------------------------------

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
    ) -> AsyncSubscription:
        """Return a subscription: `async with client.subscribe("home/#") as messages: async for message in messages`.

        A message that matches several of the filters is delivered once.

        Args:
            filters: Topic filters: `+` matches one level, `#` at the end all further ones.
            start: "earliest", "latest", an offset or a Bookmark. By default the subscription resumes at the position
                of the client's session or of the cursor, or begins with the next message.
            since: Begin with the first message received since this time.
            cursor: Name of a position that is stored at the broker, and moved by `commit`.
            on_gap: Called with the number of messages that could not be delivered, before the next message; the
                number is an upper bound, or None if it is unknown.
            keep: Whether the broker's session remembers the subscription when its block is left, for a client with a
                name that will return. By default only with a cursor.
            retained: When retained messages come first: "always" (also if the session resumes, and with a start), "if
                new" (unless the session has the subscription), "never". By default if it is new and begins at the end.
            no_local: Leave out messages that this client has published.
            group: Name of a consumer group: each message goes to one of its members. `start` and `since` are for a
                group that does not exist yet; `cursor` and `keep` do not apply.
            group_expiry_s: How long the broker keeps the group after its last member has left; by default 7 days.
            max_in_flight: The number of messages that this member has at once, at most; by default the broker adapts
                it to the pace of the member. With 1 the messages of one topic are divided most evenly.

        Raises:
            UsageError: The client has ended. Errors of the broker are raised when the block is entered.
        """
        self._runtime.require_open()
        membership = make_membership(group, group_expiry_s, max_in_flight)
        return AsyncSubscription(
            self._runtime,
            filters,
            start=start,
            since=since,
            cursor=cursor,
            on_gap=on_gap,
            keep=keep,
            retained=retained,
            no_local=no_local,
            membership=membership,
        )

    # -- requests and replies -----------------------------------------------------------------------------------------

    async def request(self, topic: str, payload: Payload = b"", **options: Unpack[RequestOptions]) -> Message:
        """Send a request to the clients that reply on a topic, and return the first reply.

        Args:
            topic: Where responders are subscribed, see `replies`.
            payload: The request, as for `publish`.
            options: Time limit, QoS, headers and content type; see `RequestOptions`.

        Raises:
            NoResponderError: No client that may reply is subscribed to the topic (QoS 1 and 2).
            NoReplyError: No reply arrived within `timeout_s`; it is a TimeoutError, too.
            RequestFailedError: The handler of the responder failed.
            BrokerError: The broker refused the request, for example AccessError.
            UsageError: An argument is invalid.
        """
        return await self._open_requester().request_one(topic, payload, **options)

    async def request_many(
        self, topic: str, payload: Payload = b"", *, replies: int | None = None, **options: Unpack[RequestOptions]
    ) -> list[Message]:
        """Send a request, and return the replies of several clients in the order of their arrival.

        Args:
            topic: Where responders are subscribed, see `replies`.
            payload: The request, as for `publish`.
            replies: Return when this many have arrived. None: one from each responder that the request reached; with
                QoS 0 one.
            options: See `request`. After `timeout_s` the replies so far are returned, perhaps an empty list.

        Returns:
            The replies. One that reports a failure has the header `godwit-error`.

        Raises:
            NoResponderError: No client that may reply is subscribed to the topic (QoS 1 and 2).
            BrokerError: The broker refused the request, for example AccessError.
            UsageError: An argument is invalid.
        """
        return (await self._open_requester().request(topic, payload, replies, **options)).messages

    def _open_requester(self) -> Requester:
        self._runtime.require_open()
        if self._requester is None:
            self._requester = Requester(self)
        return self._requester

    def replies(self, *filters: str, capacity: int = MAX_CONCURRENT) -> Callable[[ReplyHandler], AsyncResponder]:
        """Return a decorator for a function that answers the requests on some topics.

            @client.replies("service/echo")
            async def echo(request):
                return request.payload

        The function gets the request as a Message and returns the payload of the reply. A function that is not a
        coroutine function runs in a thread. If it raises an exception, `request` raises RequestFailedError with its
        text. The decorator returns an AsyncResponder, which has begun; await its `ready()` to be sure.

        Args:
            filters: Topic filters, see `subscribe`.
            capacity: How many requests to handle at once.
        """
        self._runtime.require_open()
        return lambda handler: AsyncResponder(self, filters, handler, capacity=capacity)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        kind: str,
        payload: Payload = b"",
        *,
        key: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[JobOptions],
    ) -> AsyncJob:
        """Submit a job to the workers that volunteer for its kind, and wait until the broker has stored it.

        Args:
            kind: The kind of work, for example "resize".
            payload: The input of the job: bytes, or a str that is sent as UTF-8. A dict, list, int, float, bool or None
                is sent as JSON.
            key: Makes a repeated submission harmless, also in a later run of a client with the same name: the broker
                returns the job that it has under this key already.
            timeout_s: How long to wait for the broker; None waits for ever. The job may be stored after a timeout
                nevertheless: submit it again with the same key.
            options: Number of workers, priority, times and retries; see `JobOptions`.

        Returns:
            The job. `job.agreed` is the number of workers that do it; `await job.results()` waits for its end.

        Raises:
            UsageError: An argument is invalid.
            BrokerError: The broker refused the job, for example AccessError.
            ReplyTimeoutError: The broker has not stored the job within `timeout_s`.
        """
        self._runtime.require_open()
        return await within(
            self._runtime.jobs.submit(checked_spec(kind, key, options), payload), timeout_s, *_NOT_STORED
        )

    async def submit_many(
        self, jobs: Iterable[JobLike], *, timeout_s: float | None = None, **options: Unpack[JobOptions]
    ) -> list[AsyncJob]:
        """Submit many jobs with the same options, and wait until all are answered. Much faster than one by one.

        Args:
            jobs: (kind, payload) or (kind, payload, key) of each. With keys the whole call may be repeated.
            timeout_s: How long to wait for all answers, see `submit`.
            options: See `submit`.

        Returns:
            The jobs in the same order. The state of a refused job is "refused", and its results() raises the error.

        Raises:
            UsageError: A job or an option is invalid; then none was submitted.
            ReplyTimeoutError: Some jobs were not answered within `timeout_s`.
        """
        self._runtime.require_open()
        return await within(
            self._runtime.jobs.submit_many(jobs, checked_spec("", None, options)), timeout_s, *_NOT_STORED
        )

    async def job(self, number: int, *, timeout_s: float | None = None) -> AsyncJob:
        """Return a job that was submitted before, also by another program or an earlier run, and follow it.

        Args:
            number: The number of the job.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            JobError: The broker does not know the job (any more), or this client may not see it.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        return await self._answered(self._find_job(number), timeout_s)

    async def _find_job(self, number: int, *, is_retry: bool = False) -> AsyncJob:
        number = await retry_job(self._runtime, number) if is_retry else number
        info = (await job_page(self._runtime, number, 0)).job
        job = await self._runtime.jobs.watch(number)
        job._describe(info)
        return job

    async def _answered(self, request: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        """Return the reply to a request, which is not repeated after a timeout."""
        where = self._runtime.broker
        return await within(
            request, timeout_s, f"the broker at {where} did not answer", "try again, or give it more time"
        )

    async def jobs(
        self,
        *,
        kind: str | None = None,
        controller: str | None = None,
        states: Sequence[JobState] | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> list[JobInfo]:
        """Return the jobs that this client may see, the newest first.

        Args:
            kind: Only jobs of this kind.
            controller: Only jobs that the client with this name submitted.
            states: Only jobs in one of these states.
            limit: The maximum number of jobs.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            UsageError: An argument is invalid.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        if kind is not None:
            check_kind(kind)
        if controller is not None:
            check_text("controller", controller)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise UsageError(f"limit is {limit!r}: give how many jobs, 1 or more, or None for all")
        return await self._answered(list_jobs(self._runtime, kind, controller, check_states(states), limit), timeout_s)

    async def job_info(self, number: int, *, timeout_s: float | None = None) -> tuple[JobInfo, list[TaskInfo]]:
        """Return the present state of a job and its tasks.

        Args:
            number: The number of the job.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            JobError: The broker does not know the job (any more), or this client may not see it.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        return await self._answered(show_job(self._runtime, number), timeout_s)

    async def cancel_job(self, number: int, reason: str = "", *, timeout_s: float | None = None) -> None:
        """Cancel a job and wait until the broker has stored that. Running tasks are revoked.

        Args:
            number: The number of the job.
            reason: Shown to the workers and to clients that watch the job.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            JobError: The broker does not know the job (any more), or this client may not see it.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        await self._answered(self._runtime.jobs.cancel(number, reason), timeout_s)

    async def retry_job(self, number: int, *, timeout_s: float | None = None) -> AsyncJob:
        """Submit a failed or cancelled job once more, and return the new job, with the same payload and options.

        Args:
            number: The number of the job that ended.
            timeout_s: How long to wait for the broker; None waits for ever. The job may be stored nevertheless.

        Raises:
            JobError: The broker does not know the job (any more), this client may not see it, or it has not failed.
            AccessError: This client may not submit jobs of its kind, or the job belongs to another client.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        return await self._answered(self._find_job(number, is_retry=True), timeout_s)

    # -- queries ------------------------------------------------------------------------------------------------------

    async def topics(self, filter: str | None = None, *, timeout_s: float | None = None) -> list[TopicInfo]:
        """Return the existing topics in the order of their names, or those of them that match a filter.

        Args:
            filter: Only topics that match it.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            BadFilterError: The filter is invalid.
            AccessError: This client may not list topics.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        if filter is not None:
            check_filter(filter)
        return await self._answered(list_topics(self._runtime, filter), timeout_s)

    async def create_topic(self, topic: str, *, timeout_s: float | None = None) -> None:
        """Create a topic. Needed where the topic's policy is `explicit`.

        Args:
            topic: The name of the topic.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            TopicError: The name is invalid, or the topic exists already.
            AccessError: This client may not create it.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        check_topic(topic)
        await self._answered(self._request(lambda n: Create(request=n, topic=topic), Done), timeout_s)

    async def delete_topic(self, topic: str, *, timeout_s: float | None = None) -> None:
        """Delete a topic that is not in use, with its figures and its retained message. The log keeps its messages.

        Args:
            topic: The topic.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            TopicError: The name is invalid, or the topic does not exist or is in use.
            AccessError: This client may not delete it.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        check_topic(topic)
        await self._answered(self._request(lambda n: DeleteTopic(request=n, topic=topic), Done), timeout_s)

    async def clients(self, *, timeout_s: float | None = None) -> list[ClientInfo]:
        """Return the connected clients, and those of which the broker keeps a session.

        Args:
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            AccessError: This client may not list clients.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        return await self._answered(list_clients(self._runtime), timeout_s)

    async def cursors(self, client: str | None = None, *, timeout_s: float | None = None) -> list[CursorInfo]:
        """Return the subscriptions with their positions in the log, in the order of the clients' names.

        Args:
            client: Only the subscriptions of this client.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            BrokerError: The client does not exist.
            AccessError: This client may not list the subscriptions of others.
            UsageError: The name of the client is not a text.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        if client is not None:
            check_text("the client", client)
        return await self._answered(list_cursors(self._runtime, client), timeout_s)

    async def groups(self, *, timeout_s: float | None = None) -> list[GroupInfo]:
        """Return the consumer groups with their positions: all for a client that may kick, else the ones it may join.

        Args:
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        return await self._answered(list_groups(self._runtime), timeout_s)

    async def bridges(self, *, timeout_s: float | None = None) -> list[BridgeInfo]:
        """Return the bridges from and to the broker, with their positions.

        Args:
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            AccessError: This client may not see bridges: it needs the right to kick.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        return await self._answered(list_bridges(self._runtime), timeout_s)

    async def delete_group(self, group: str, *filters: str, timeout_s: float | None = None) -> None:
        """Delete a consumer group with its position. The subscriptions of its members end.

        Args:
            group: The name of the group.
            filters: Delete only the group of this name with exactly these filters.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            BrokerError: The group does not exist.
            AccessError: This client may not delete groups: it needs the right to kick.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        check_text("the group", group)
        for pattern in filters:
            check_filter(pattern)
        request = self._request(lambda n: DeleteGroup(request=n, group=group, filters=list(filters) or None), Done)
        await self._answered(request, timeout_s)

    async def workers(self, *, timeout_s: float | None = None) -> list[WorkerInfo]:
        """Return the workers in the order of their names: kinds of work, capacity, and how many tasks they hold.

        Args:
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            AccessError: This client may not list workers.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        return await self._answered(list_workers(self._runtime), timeout_s)

    async def kick(
        self,
        client: str,
        *filters: str,
        reason: str = "",
        keep_session: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Remove another client, or one of its subscriptions.

        Args:
            client: The name of the client.
            filters: Remove only the subscription to exactly these filters.
            reason: Sent to that client.
            keep_session: Only close its connection. Its session remains, and it reconnects by itself.
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            BrokerError: The client or the subscription does not exist.
            AccessError: This client may not remove others.
            UsageError: An argument is not a text.
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        check_text("the client", client)
        check_text("the reason", reason)
        for pattern in filters:
            check_filter(pattern)
        request = self._request(
            lambda n: Kick(
                request=n, client=client, filters=list(filters) or None, reason=reason, keep=bool(keep_session)
            ),
            Done,
        )
        await self._answered(request, timeout_s)

    async def ping(self, *, timeout_s: float | None = None) -> float:
        """Send a request to the broker, and return the seconds until its reply.

        Args:
            timeout_s: How long to wait for the broker; None waits for ever.

        Raises:
            ReplyTimeoutError: The broker has not answered within `timeout_s`.
        """
        began = time.monotonic()
        await self._answered(self._request(lambda n: Ping(request=n), Pong), timeout_s)
        return time.monotonic() - began

    # -- files --------------------------------------------------------------------------------------------------------

    async def send_file(
        self,
        topic: str,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        progress: OnProgress | None = None,
        hashing: OnProgress | None = None,
    ) -> SentFile:
        """Send a file of any size, and wait until the broker has confirmed all of it.

        If it is interrupted, the same call later continues with the first chunk that is missing.

        Args:
            topic: Where to send it.
            path: The file.
            name: The name for receivers; by default the file's own.
            progress: Called as `progress(done_bytes, total_bytes)` when a chunk is confirmed.
            hashing: Called in the same way while the file's hash is computed, before the first chunk is sent.

        Raises:
            FileTransferError: The file is not readable, or was changed while it was sent.
            BrokerError: The broker refused it.
        """
        check_topic(topic)
        if name is not None:
            check_text("name", name)
        check_callback("progress", progress)
        check_callback("hashing", hashing)
        return await send_file(
            self._runtime, topic, check_path("path", path), name=name, progress=progress, hashing=hashing
        )

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
    ) -> FileReceiver:
        """Return an async iterator over received files, each once it is complete and its hash is correct.

        Args:
            filters: Filters of the topics to which the files are sent.
            folder: Where to write them, each under a safe name that is free.
            progress: Called as `progress(name, done_bytes, total_bytes)` for each chunk.
            on_problem: Called with a text for each file that could not be received.
            max_file_bytes: Larger files are not received.
            max_total_bytes: Limit for received files that are still in the folder, with incomplete ones.
            start: See `subscribe`.
            since: See `subscribe`.
            keep: See `subscribe`.

        Raises:
            FileTransferError: While iterating: the folder cannot be written, or `max_total_bytes` is reached.
        """
        check_callback("progress", progress)
        check_callback("on_problem", on_problem)
        for what, limit in (("max_file_bytes", max_file_bytes), ("max_total_bytes", max_total_bytes)):
            if limit is not None and (type(limit) is not int or limit < 0):
                raise UsageError(f"{what} is {limit!r}: give a number of bytes, or None for no limit")
        subscription = self.subscribe(*filters, start=start, since=since, keep=keep)
        return FileReceiver(
            subscription,
            check_path("folder", folder),
            progress=progress,
            on_problem=on_problem,
            max_file_bytes=max_file_bytes,
            max_total_bytes=max_total_bytes,
        )
