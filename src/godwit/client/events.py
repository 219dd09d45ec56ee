"""What a client tells the layer above."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from godwit.wire.control import ControlMessage

if TYPE_CHECKING:
    from godwit.client.comparing import Change, JobView
    from godwit.client.leasing import Lease
    from godwit.client.publisher import Publisher
    from godwit.client.subscription import Subscription


class Online(msgspec.Struct, frozen=True):
    """The broker has welcomed the client: what was waiting is on its way."""

    resumed: bool
    """The broker knew the client's session."""
    name: str
    """The client's, given by the broker if it had none."""


class Offline(msgspec.Struct, frozen=True):
    """The connection was lost or could not be made; the client tries again by itself."""

    code: int
    reason: str
    retry_in_s: float


class Ended(msgspec.Struct, frozen=True):
    """The client will not come back: closed by the application (code NORMAL), or for good by the broker."""

    code: int
    reason: str


class Confirmed(msgspec.Struct, frozen=True):
    """All messages of the publisher below `sequence` are safe as promised (QoS 0: handed to the transport)."""

    publisher: Publisher
    sequence: int
    reached: int
    """Connected subscriptions that the last record matched; 0 at QoS 0."""


class Room(msgspec.Struct, frozen=True):
    """There is room in the buffer again, after a BufferFullError of this publisher."""

    publisher: Publisher


class Refused(msgspec.Struct, frozen=True):
    """The broker does not take these messages of the publisher: they are dropped. A later send asks again."""

    publisher: Publisher
    code: int
    text: str
    first_sequence: int
    sequence: int
    """The messages from first_sequence on and below this one are those that were dropped."""


class SubscriptionStarted(msgspec.Struct, frozen=True):
    """The broker has agreed to the subscription, for the first time."""

    subscription: Subscription
    next_offset: int


class Available(msgspec.Struct, frozen=True):
    """`subscription.take()` may give messages now; call it until it gives None."""

    subscription: Subscription


class Missed(msgspec.Struct, frozen=True):
    """Messages that could not be delivered stood before what `take()` gives next.

    `live`: of QoS 0. Else they are gone from the log, and `next_offset` is where it goes on. A count of None: nobody
    knows how many, because the broker has another log than before, or an older copy of it. Of an older copy,
    `had_below` is where the application had got to: from `next_offset` on and below it the log has other messages now.
    """

    subscription: Subscription
    count: int | None
    live: bool = False
    next_offset: int | None = None
    had_below: int | None = None


class SubscriptionEnded(msgspec.Struct, frozen=True):
    """Refused by the broker, or removed by somebody (code KICKED)."""

    subscription: Subscription
    code: int
    text: str


class Reply(msgspec.Struct, frozen=True):
    """The broker's answer to a request; `message` may be an Error."""

    request: int
    message: ControlMessage


class JobTaken(msgspec.Struct, frozen=True):
    """The broker has the job, safe: `number`, `agreed` and `state` are known."""

    view: JobView


class JobRefused(msgspec.Struct, frozen=True):
    """The broker does not take the job, or does not know it (NO_SUCH_JOB; also after a reconnect). This is its end."""

    view: JobView
    code: int
    text: str


class JobChanged(msgspec.Struct, frozen=True):
    """The job stands differently. The first one of a job that is watched by its number may tell no change."""

    view: JobView
    changes: list[Change]


class Volunteered(msgspec.Struct, frozen=True):
    """The broker knows what this client volunteers for: after each `volunteer`, and again on each connection."""

    lease_s: float
    """A worker that is silent for so long loses its tasks. The client is not, while it is driven."""


class VolunteerRefused(msgspec.Struct, frozen=True):
    """The client volunteers for nothing any more."""

    code: int
    text: str


class Leased(msgspec.Struct, frozen=True):
    """A task to do. End it with finish, fail or give_back."""

    lease: Lease


class Revoked(msgspec.Struct, frozen=True):
    """The task is not wanted any more, or not from this client: stop. What is reported of it is ignored."""

    lease: Lease
    reason: str


class Reported(msgspec.Struct, frozen=True):
    """The broker has confirmed how the lease ended: that is safe, unless the lease had ended before."""

    lease: Lease


class WorkRoom(msgspec.Struct, frozen=True):
    """There is room in the buffer of jobs and results again, after a BufferFullError."""


class WorkIdle(msgspec.Struct, frozen=True):
    """All jobs that were submitted are answered, and all reports confirmed."""


ClientEvent: TypeAlias = (
    Online | Offline | Ended | Confirmed | Room | Refused | SubscriptionStarted | Available | Missed
    | SubscriptionEnded | Reply
    | JobTaken | JobRefused | JobChanged | Volunteered | VolunteerRefused | Leased | Revoked | Reported
    | WorkRoom | WorkIdle
)  # fmt: skip
