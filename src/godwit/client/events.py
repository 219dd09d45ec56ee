"""The events that a client reports to the layer above (`ClientProtocol.events`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from godwit.transport.events import Address
from godwit.wire.control import ControlMessage

if TYPE_CHECKING:
    from godwit.client.jobs import Change, JobView
    from godwit.client.publisher import Publisher
    from godwit.client.subscription import Subscription
    from godwit.client.worker import Lease


class Online(msgspec.Struct, frozen=True):
    """The broker has accepted the login. Messages sent before now travel."""

    resumed: bool
    """Whether the broker had stored a session of this client."""
    name: str
    """The client's name; assigned by the broker if the configuration has none."""


class Offline(msgspec.Struct, frozen=True):
    """The connection was lost or could not be opened. The client tries again after `retry_in_s`."""

    code: int
    reason: str
    retry_in_s: float


class Unanswered(msgspec.Struct, frozen=True):
    """The broker has not answered for a while. Call `handle_unreachable` if the network reports why."""

    address: Address


class Ended(msgspec.Struct, frozen=True):
    """The client does not reconnect: closed by the application (code NORMAL), or rejected by the broker for good."""

    code: int
    reason: str


class Confirmed(msgspec.Struct, frozen=True):
    """The QoS of all messages of the publisher below `sequence` is met (QoS 0: they were handed to the transport)."""

    publisher: Publisher
    sequence: int
    reached: int
    """Connected subscriptions that the last record matched; 0 at QoS 0."""


class BufferAvailable(msgspec.Struct, frozen=True):
    """The send buffer is at most half full again, after a BufferFullError of this publisher."""

    publisher: Publisher


class Refused(msgspec.Struct, frozen=True):
    """The broker rejected messages of the publisher, and they were dropped. A later send asks the broker again."""

    publisher: Publisher
    code: int
    text: str
    first_sequence: int
    sequence: int
    """The end of the dropped range: the messages from first_sequence on and below this one were dropped."""


class Expired(msgspec.Struct, frozen=True):
    """Messages from `first_sequence` on, below `sequence`, have expired in the queue of this client. They are dropped.

    The broker may have some of them nevertheless, if they were sent on a connection that was lost before the confirm.
    """

    publisher: Publisher
    first_sequence: int
    sequence: int


class SubscriptionStarted(msgspec.Struct, frozen=True):
    """The broker has accepted the subscription, for the first time."""

    subscription: Subscription
    next_offset: int


class Available(msgspec.Struct, frozen=True):
    """`subscription.take()` may return messages now; call it until it returns None."""

    subscription: Subscription


class Missed(msgspec.Struct, frozen=True):
    """Messages before the next ones of `take()` could not be delivered.

    With `live` they were messages of QoS 0. Otherwise they are no longer in the log, which resumes at `next_offset`.
    A count of None is unknown: the broker has another log than before, or an older copy of it. For an older copy,
    `had_below` is the position that the application had reached: the log has other messages now from `next_offset` on
    and below `had_below`.
    """

    subscription: Subscription
    count: int | None
    live: bool = False
    next_offset: int | None = None
    had_below: int | None = None


class SubscriptionEnded(msgspec.Struct, frozen=True):
    """The broker rejected the subscription, or an administrator removed it (code KICKED)."""

    subscription: Subscription
    code: int
    text: str


class Reply(msgspec.Struct, frozen=True):
    """The broker's answer to a request; `message` may be an Error."""

    request: int
    message: ControlMessage


class JobTaken(msgspec.Struct, frozen=True):
    """The broker has stored the job: `number`, `agreed` and `state` of the view are known."""

    view: JobView


class JobRefused(msgspec.Struct, frozen=True):
    """The broker rejects the job or does not know it (NO_SUCH_JOB, also after a reconnect). The view has ended."""

    view: JobView
    code: int
    text: str


class JobChanged(msgspec.Struct, frozen=True):
    """The state of the job has changed. The first event of a job watched by its number may have no changes."""

    view: JobView
    changes: list[Change]


class VolunteerAccepted(msgspec.Struct, frozen=True):
    """The broker knows the kinds that this client volunteers for: after each `volunteer`, and on each connection."""

    lease_s: float
    """A worker that sends nothing for this time loses its tasks. The client sends heartbeats while it is driven."""


class VolunteerRefused(msgspec.Struct, frozen=True):
    """The broker rejected the request: the client volunteers for nothing now."""

    code: int
    text: str


class Leased(msgspec.Struct, frozen=True):
    """A task was assigned to this client. End it with finish, fail or give_back."""

    lease: Lease


class Revoked(msgspec.Struct, frozen=True):
    """The task was cancelled or assigned to another worker: stop. Reports about it are ignored."""

    lease: Lease
    reason: str


class Reported(msgspec.Struct, frozen=True):
    """The broker has confirmed the report of the lease. It has effect unless the lease had ended before."""

    lease: Lease


class WorkBufferAvailable(msgspec.Struct, frozen=True):
    """The buffer of jobs and results is at most half full again, after a BufferFullError."""


class WorkIdle(msgspec.Struct, frozen=True):
    """All submitted jobs are answered and all reports confirmed."""


ClientEvent: TypeAlias = (
    Online | Offline | Unanswered | Ended | Confirmed | BufferAvailable | Refused | Expired | SubscriptionStarted
    | Available | Missed | SubscriptionEnded | Reply
    | JobTaken | JobRefused | JobChanged | VolunteerAccepted | VolunteerRefused | Leased | Revoked | Reported
    | WorkBufferAvailable | WorkIdle
)  # fmt: skip
