"""The settings of a broker, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from godwit import limits
from godwit.broker.access import Access
from godwit.broker.topics import check_filter, check_topic, shown
from godwit.errors import BadFilterError, BadTopicError, ConfigurationError
from godwit.wire.filters import RESERVED, matches

Policy: TypeAlias = Literal["open", "publishers", "explicit"]
"""How a topic is created: by any use / by publishing to it / only by an explicit request."""
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "max_clients": (1, 2**20),
    "max_clients_per_host": (1, 2**20),
    "host_logins_per_s": (0.001, 2**32),
    "max_message_bytes": (1, limits.LARGEST_RECORD_BYTES - 64 * limits.KIB),
    "max_datagram_bytes": (limits.BASE_DATAGRAM_BYTES, limits.MAX_TRAIN_BYTES),
    "client_window_bytes": (64 * limits.KIB, 2**34),
    "messages_per_s": (0.001, 2**32),
    "ring_bytes": (64 * limits.KIB, 2**44),
    "max_retained_bytes": (0, 2**44),
    "max_client_retained_bytes": (0, 2**44),
    "hold_back_s": (0, 24 * 3600),
    "sys_interval_s": (0.1, 24 * 3600),
    "max_topics": (1, 2**24),
    "max_topics_per_client": (1, 2**24),
    "max_subscriptions": (1, 2**16),
    "max_sessions": (1, 2**24),
    "max_sessions_per_host": (1, 2**24),
    "max_session_expiry_s": (0, 2**32 - 1),
    "max_groups": (0, 2**20),
    "group_ack_s": (0.1, 24 * 3600),
    "lease_s": (0.1, 24 * 3600),
    "job_keep_s": (0, 366 * 24 * 3600),
}
"""The smallest and the largest value of each number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings; by default the limits are those of godwit.limits, and every client may do everything."""

    topics: tuple[str, ...] = ()
    """Topics that exist from the start."""
    policies: tuple[tuple[str, Policy], ...] = ()
    """Filters with the policy of the topics that match; the first that matches a topic decides."""
    default_policy: Policy = "open"
    """Of topics that none of these filters matches."""
    logged: tuple[str, ...] = ()
    """Filters of topics whose messages with QoS 0 are logged too, as far as the log keeps up."""
    access: Access = field(default_factory=Access.open)

    max_clients: int = limits.MAX_CONNECTIONS
    max_clients_per_host: int | None = None
    """Clients from one IPv4 address or one /64 of IPv6; None: no limit of its own."""
    host_logins_per_s: float | None = None
    """Logins from such a host, also if they fail; None: no limit."""
    max_message_bytes: int = limits.MAX_MESSAGE_BYTES
    max_datagram_bytes: int = limits.MAX_DATAGRAM_BYTES
    """The largest datagram that the path search tries: more than the default where frames are larger."""
    client_window_bytes: int = limits.CLIENT_WINDOW_BYTES
    """Sent to one client and not confirmed by its application."""
    messages_per_s: float | None = None
    """Messages that one client may publish per second; None: no limit."""
    ring_bytes: int = limits.RING_BYTES
    max_retained_bytes: int = limits.MAX_RETAINED_BYTES
    """Of all retained messages together."""
    max_client_retained_bytes: int = limits.MAX_CLIENT_RETAINED_BYTES
    """Of the retained messages of one client, as godwit.broker.quotas counts clients."""
    hold_back_s: float = limits.HOLD_BACK_S
    sys_interval_s: float = limits.SYS_INTERVAL_S
    max_topics: int = limits.MAX_TOPICS
    max_topics_per_client: int = limits.MAX_TOPICS_PER_CLIENT
    """Topics that one client has created and that still exist."""
    max_subscriptions: int = limits.MAX_SUBSCRIPTIONS
    """Of one client."""
    max_sessions: int = limits.MAX_SESSIONS
    max_sessions_per_host: int = limits.MAX_SESSIONS_PER_HOST
    """Sessions under names that were not proved, from one IPv4 address or one 64-bit network of IPv6."""
    max_session_expiry_s: int = limits.MAX_SESSION_EXPIRY_S
    max_groups: int = limits.MAX_GROUPS
    """Consumer groups."""
    group_ack_s: float = limits.GROUP_ACK_S
    """A member of a group that acknowledges nothing for this time loses its messages to others that are idle."""
    lease_s: float = limits.LEASE_S
    """A worker that reports nothing for this time loses its tasks."""
    job_keep_s: float = limits.JOB_KEEP_S
    """How long an ended job is remembered, unless its room is needed."""

    def __post_init__(self) -> None:
        _check_policy(self.default_policy)
        for _, policy in self.policies:
            _check_policy(policy)
        for pattern in (*(pattern for pattern, _ in self.policies), *self.logged):
            try:
                check_filter(pattern)
            except BadFilterError as error:
                raise ConfigurationError(f"in the rules for topics: {error}") from error
        for topic in self.topics:
            try:
                check_topic(topic)
            except BadTopicError as error:
                raise ConfigurationError(f"in the topics to create: {error}") from error
            if topic.startswith(RESERVED):
                raise ConfigurationError(f"topic {shown(topic)} cannot be created: names with $ are the broker's own")
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigurationError(f"{name} is {value}: it must lie between {low} and {high}")
        if len(self.topics) > self.max_topics:
            raise ConfigurationError(
                f"{len(self.topics)} topics are to be created and max_topics is {self.max_topics}: raise it"
            )

    def policy_of(self, topic: str) -> Policy:
        """Return how this topic is created."""
        return next((policy for pattern, policy in self.policies if matches(pattern, topic)), self.default_policy)

    def is_logged(self, topic: str) -> bool:
        """Return whether the messages of QoS 0 of a topic are logged too."""
        return not topic.startswith(RESERVED) and any(matches(pattern, topic) for pattern in self.logged)


def _check_policy(policy: str) -> None:
    if policy not in POLICIES:
        raise ConfigurationError(f"the policy {shown(policy)} does not exist: choose one of {', '.join(POLICIES)}")
