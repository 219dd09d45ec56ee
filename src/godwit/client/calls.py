"""What an application asks of a client: to publish, to subscribe, to submit jobs, to do them, to ask the broker.

Everything here is checked before anything is sent: a UsageError is the caller's, and nothing has happened then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from godwit.broker.topics import check_filter, check_topic
from godwit.client.bookmark import Bookmark
from godwit.client.comparing import JobView
from godwit.client.config import ClientConfig
from godwit.client.events import ClientEvent
from godwit.client.inbox import Inbox
from godwit.client.leasing import Lease
from godwit.client.outbox import Outbox
from godwit.client.publisher import Publisher
from godwit.client.requests import Requests
from godwit.client.subscription import Start, Subscription
from godwit.client.working import Working
from godwit.errors import UsageError
from godwit.limits import MAX_CLIENT_NAME_BYTES, MAX_FILTERS
from godwit.transport.connection import Connection
from godwit.wire.control import ControlMessage, CursorCommit
from godwit.wire.control_base import Qos

ClientState: TypeAlias = Literal["connecting", "online", "offline", "closed"]


class Calls:
    """The base of godwit.client.client.Client: its parts, and the calls that go to them."""

    def __init__(
        self, config: ClientConfig, *, instance: bytes, on_violation: Callable[[Connection, str], None]
    ) -> None:
        self.config = config
        self.state: ClientState = "offline"
        self.name = config.name or ""
        """The client's; the broker gives one to a client without."""
        self.instance = instance
        """Made anew for each run of the client."""
        self._events: list[ClientEvent] = []
        self._requests = Requests()
        self._outbox = Outbox(config.send_buffer_bytes, self._events, instance.hex())
        self._work = Working(config.send_buffer_bytes, self._requests, self._events, instance, on_violation)
        self._inbox = Inbox(self._requests, self._events, on_violation, self._work.on_opened)

    def on_sending(self, *, begun: Callable[[], None], full: Callable[[], None]) -> None:
        """Has the caller told, from inside `Publisher.send` and the calls about work, when trains should be asked for.

        `begun`: soon, at the end of the turn: a batch or a group has got its first part. `full`: now, a full one waits
        to go.
        """
        self._outbox.on_batch_begun = self._work.channel.on_begun = begun
        self._outbox.on_batch_full = self._work.channel.on_full = full

    # -- publish, subscribe, ask --------------------------------------------------------------------------------------

    def publisher(
        self, topic: str, *, qos: int = 1, identity: str | None = None, epoch: int = 0, sequence: int = 0
    ) -> Publisher:
        """The publisher of a topic and QoS. With an identity (and for recognition across runs an epoch, and the
        sequence to go on with) a new one each time."""
        self._require_open()
        check_topic(topic)
        if qos not in (0, 1, 2):
            raise UsageError(f"QoS {qos!r} does not exist: choose 0, 1 or 2")
        if identity is not None:
            _check_name("identity", identity)
        for what, value in (("epoch", epoch), ("sequence", sequence)):
            if not 0 <= value < 2**63:
                raise UsageError(f"{what} is {value}: it must lie between 0 and 2**63 - 1")
        known: Qos = 0 if qos == 0 else 1 if qos == 1 else 2
        return self._outbox.publisher(topic, known, identity, epoch, sequence)

    def subscribe(
        self, filters: Sequence[str], *, start: Start = None, since_us: int | None = None, cursor: str | None = None
    ) -> Subscription:
        """Asks for what matches one of the filters. SubscriptionStarted or -Ended tells what became of it."""
        self._require_open()
        unique = tuple(sorted(set(filters)))
        if not 1 <= len(unique) <= MAX_FILTERS:
            raise UsageError(f"{len(unique)} filters: a subscription has 1 to {MAX_FILTERS}")
        for pattern in unique:
            check_filter(pattern)
        if not isinstance(start, int | Bookmark) and start not in (None, "latest", "earliest"):
            raise UsageError(f"start is {start!r}: give an offset, a bookmark, 'latest' or 'earliest'")
        for what, value in (("start", start), ("since_us", since_us)):
            if isinstance(value, int) and not 0 <= value < 2**63:
                raise UsageError(f"{what} is {value}: it must lie between 0 and 2**63 - 1")
        if start is not None and since_us is not None:
            raise UsageError("start and since are two ways to say the same: give one of them")
        if cursor is not None:
            _check_name("cursor", cursor)
        return self._inbox.subscribe(unique, start=start, since_us=since_us, cursor=cursor)

    def unsubscribe(self, subscription: Subscription, *, keep: bool = False, offset: int | None = None) -> int:
        """Ends the subscription; the Reply to the request with the number it gives says that the broker has too.

        `keep`: the session keeps its place, for a later run of this client; `offset` says where that is, else it is
        behind what was confirmed.
        """
        self._require_open()
        return self._inbox.unsubscribe(subscription, keep=keep, offset=offset)

    def commit(self, subscription: Subscription, offset: int) -> int:
        """After a break the subscription goes on from this offset. Gives the number of the request."""
        offset = subscription.reached(offset)
        epochs = subscription.epochs_at(offset)
        return self.request(
            lambda number: CursorCommit(request=number, subscription=subscription.number, offset=offset, epochs=epochs)
        )

    def request(self, make: Callable[[int], ControlMessage]) -> int:
        """Asks the broker what `make` gives for the number of the request; a Reply event brings the answer.

        It is asked again after each reconnect until it is answered.
        """
        self._require_open()
        number = self._requests.number()
        self._requests.ask(number, make(number))
        return number

    def forget(self, request: int) -> None:
        """Nobody waits for the answer to this request any more: it is not asked again, and a Reply will not come."""
        self._requests.forget(request)

    def _require_open(self) -> None:
        if self.state == "closed":
            raise UsageError("the client is closed: make another one")

    # -- work: as a controller ----------------------------------------------------------------------------------------

    def submit(
        self,
        kind: str,
        payload: bytes,
        *,
        key: str | None = None,
        workers: int = 1,
        priority: int = 0,
        delay_ms: int = 0,
        deadline_ms: int | None = None,
        retries: int = 3,
        retry_delay_ms: int = 1000,
        time_limit_ms: int | None = None,
    ) -> JobView:
        """A job for so many workers (0: all). JobTaken or JobRefused, then JobChanged tell what becomes of it.

        The same key again is the same job. BufferFullError: wait for the event WorkRoom.
        """
        self._require_open()
        self._work.is_used = True
        return self._work.jobs.submit(
            kind,
            payload,
            key,
            workers,
            priority,
            delay_ms,
            deadline_ms,
            retries,
            retry_delay_ms,
            time_limit_ms,
        )

    def watch(self, number: int) -> JobView:
        """Follows a job by its number. JobChanged tells how it stands, JobRefused that there is none to be seen."""
        self._require_open()
        if type(number) is not int or not 1 <= number < 2**63:
            raise UsageError(f"no job has the number {number!r}: they are counted from 1")
        return self._work.jobs.watch(number)

    def unwatch(self, view: JobView) -> None:
        """What becomes of the job is not told any more."""
        self._work.jobs.unwatch(view)

    # -- work: as a worker --------------------------------------------------------------------------------------------

    def volunteer(self, kinds: Sequence[str], capacity: int) -> None:
        """Asks for tasks of these kinds, so many at once, instead of what was asked for before. Leased brings them."""
        self._require_open()
        self._work.leases.volunteer(kinds, capacity)
        self._work.is_used = True

    def withdraw(self) -> None:
        """Asks for no more tasks. Those that run may be finished, or handed back."""
        self._require_open()
        self._work.leases.withdraw()

    def finish(self, lease: Lease, result: bytes) -> None:
        """The task is done. Reported tells that this is safe. BufferFullError: wait for the event WorkRoom.

        For a lease that has ended nothing happens, as in the following calls.
        """
        self._work.leases.finish(lease, result)

    def fail(self, lease: Lease, error: str, is_final: bool = False) -> None:
        """The attempt failed; `is_final`: to try again would not help."""
        self._work.leases.fail(lease, error, is_final=is_final)

    def give_back(self, lease: Lease) -> None:
        """Hands the task back undone, for others to do."""
        self._work.leases.give_back(lease)

    def step(self, lease: Lease, progress: float | None, note: str = "") -> None:
        """How far the task is, between 0 and 1. The newest of each task goes, a few times a second."""
        self._work.leases.step(lease, progress, note)


def _check_name(what: str, name: str) -> None:
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= MAX_CLIENT_NAME_BYTES:
        raise UsageError(f"{what} {name[:40]!r} has {size} bytes in UTF-8: it has 1 to {MAX_CLIENT_NAME_BYTES}")
