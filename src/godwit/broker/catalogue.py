"""The topics of a broker with their retained messages, and numbers that stand for publishers' names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.broker.dirty_state import DirtyState
from godwit.broker.quotas import Usage, over_quota, owner_of
from godwit.broker.settings import Policy, Settings
from godwit.broker.topics import TopicTree, check_topic
from godwit.limits import MAX_TOPIC_NODES
from godwit.wire.batch import QOS_SHIFT, Entry, extension_of, last_message, make_entry
from godwit.wire.changes import RetainedRow, TopicRow
from godwit.wire.extension import lifetime_of
from godwit.wire.filters import RESERVED, is_inbox

if TYPE_CHECKING:
    from godwit.broker.subscription import BrokerSubscription

BROKER_NAME: Final = "$broker"
"""The publisher of the broker's own messages."""
JOBS: Final = "$jobs/"
"""Job events are published on this prefix and the kind of work. These topics are deleted when they are not used."""
RETAINED_COST_BYTES: Final = 256
"""The memory for a retained message beside its payload."""
MAX_NAMES: Final = 262_144
"""Publishers' names that have a number; beyond it the least recently used one is deleted, and gets another later."""
MIN_EXPIRING: Final = 1000
"""The times at which retained messages expire are cleared of replaced ones when there are more than this."""
NEAR_QUOTA: Final = 8
"""Unused topics of a client are searched for when less than this fraction of its quota is left."""
TOPICS_EXAMINED: Final = 64
"""Topics that are examined, when there are too many, to find one that can be deleted."""


class Topic:
    """One topic. Unless it was created explicitly it can be deleted, and added again later under another number."""

    __slots__ = (
        "creator", "generation", "is_created", "is_gone", "is_inbox", "is_logged", "is_stored", "last_us", "matching",
        "messages", "messages_seen", "name", "number", "payload_bytes", "policy", "publishers", "retained",
        "retained_version", "routes", "settlings",
    )  # fmt: skip

    def __init__(self, name: str, number: int, settings: Settings) -> None:
        self.name = name
        self.number = number
        """Stands for the name: no other topic ever has the same number."""
        self.is_inbox = is_inbox(name)
        """Whether its messages are replies: forwarded to the one subscriber at once, and not logged."""
        self.policy: Policy = settings.policy_of(name)
        self.is_logged = settings.is_logged(name)
        """Whether its messages of QoS 0 are logged too."""
        self.is_created = False
        """By a client's request or the configuration: it is never deleted."""
        self.is_stored = False
        """Whether the store has it, so that it outlives a restart."""
        self.is_gone = False
        self.creator: str | None = None
        """The client whose quota it counts for; None if that is not known."""
        self.publishers = 0
        self.messages = 0
        self.messages_seen = -1
        """Their number when the topic was last examined for deletion."""
        self.payload_bytes = 0
        self.last_us = 0
        self.retained: RetainedMessage | None = None
        self.retained_version = 0
        """How often that was set or cleared."""
        self.matching: list[BrokerSubscription] = []
        """The subscriptions that match, as of `generation`, see godwit.broker.delivery."""
        self.routes = self.matching
        """Those of them whose clients are connected."""
        self.generation = -1
        self.settlings = -1
        """As of when none of them is settled, see QuietSubscriptions."""


class RetainedMessage(msgspec.Struct, frozen=True):
    """The retained message of a topic: the last one of the last batch with the flag RETAIN."""

    payload: bytes
    publisher: str
    published_us: int
    received_us: int
    qos: int
    offset: int
    """Its offset in the log; 0 for QoS 0, which is not in the log."""
    version: int
    """Grows with every retained message of the broker."""
    extension: bytes | None = None

    @property
    def cost_bytes(self) -> int:
        """The memory that counts against the quotas."""
        return len(self.payload) + len(self.extension or b"") + RETAINED_COST_BYTES

    @classmethod
    def of(cls, entry: Entry, offset: int, version: int) -> RetainedMessage | None:
        """Return what a topic retains after a batch whose last message has this offset: None if that is empty."""
        payload, published_us = last_message(entry)
        if not payload:
            return None
        qos = entry.flags >> QOS_SHIFT
        return cls(
            payload,
            entry.publisher,
            published_us,
            entry.received_us,
            qos,
            offset if qos else 0,
            version,
            extension_of(entry),
        )

    @classmethod
    def from_row(cls, row: RetainedRow, version: int) -> RetainedMessage:
        return cls(
            row.payload,
            row.publisher,
            row.published_us,
            row.received_us,
            row.qos,
            row.offset,
            version,
            row.extension,
        )

    def row(self, topic: str) -> RetainedRow:
        """Return the message as it is stored."""
        return RetainedRow(
            topic,
            self.payload,
            self.publisher,
            self.published_us,
            self.received_us,
            self.qos,
            self.offset,
            self.extension,
        )

    def entry(self, topic: str) -> Entry:
        """Return the message as a batch of its own."""
        return make_entry(
            topic,
            self.publisher,
            [self.payload],
            qos=self.qos,
            retain=True,
            now_us=self.received_us,
            published_us=self.published_us,
            extension=self.extension,
        )


def _cost_bytes(message: RetainedMessage | None) -> int:
    return 0 if message is None else message.cost_bytes


class TooManyTopicsError(Exception):
    """A limit on the number of topics is reached."""


class Catalogue:
    """Topics by name, also in the order of their names.

    A topic that was not created explicitly is stored with its first message. Before that it is deleted when its last
    subscription ends; later only to make room, if no client publishes to it.
    """

    def __init__(self, settings: Settings, dirty: DirtyState) -> None:
        self.settings = settings
        self._dirty = dirty
        self._topics: OrderedDict[str, Topic] = OrderedDict()
        """The most recently examined ones come last."""
        self._tree = TopicTree()
        self._with_retained = TopicTree()
        self._next_number = 1
        self._own = 0
        self._retained_bytes = 0
        self._retained_of = Usage()
        self._topics_of = Usage()
        self.retained_version = 0
        """How often a retained message was set or cleared."""
        self._expiring: list[tuple[int, int, str]] = []
        """A heap: when retained messages expire, with their version and topic. Some may have been replaced since."""
        self.retained_due_us: int | None = None
        """When to call drop_expired."""
        for name in settings.topics:
            self.create(name, is_created=True)

    def __len__(self) -> int:
        """Return the number of topics, without the broker's own."""
        return len(self._topics) - self._own

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def create(self, name: str, *, creator: str | None = None, is_created: bool = False) -> Topic:
        """Create a topic that does not exist, on behalf of a client. `is_created`: it is never deleted.

        Raises BadTopicError or TooManyTopicsError.
        """
        check_topic(name)
        if creator is not None:
            self._require_quota(creator)
        if self._is_full:
            self._make_room()
        if self._is_full:
            raise TooManyTopicsError(f"there are {len(self)} topics, and no room for more here: use one that is there")
        topic = self._add(name)
        if creator is not None:
            self.attribute(topic, creator)
        if is_created:
            self.make_permanent(topic)
        return topic

    def attribute(self, topic: Topic, creator: str) -> None:
        """Count the topic for this client's quota, unless it counts for a client already."""
        if topic.creator is None:
            topic.creator = creator
            self._topics_of.add(owner_of(creator, self.settings.access), 1)

    def _require_quota(self, creator: str) -> None:
        """Raise TooManyTopicsError if this client has as many topics as it may, and none of them can be deleted."""
        owner = owner_of(creator, self.settings.access)
        limit = self.settings.max_topics_per_client
        # Before the quota is used up, because a topic is deleted only if it had no message since it was last examined;
        # and twice for each new topic, because not every examination deletes one.
        for _ in range(2):
            if self._topics_of.of(owner) >= limit - limit // NEAR_QUOTA:
                self._make_room(owner)
        if self._topics_of.of(owner) >= limit:
            advice = "use those that exist"
            raise TooManyTopicsError(over_quota(owner, "topics that it created", limit, "topics_per_client", advice))

    def make_permanent(self, topic: Topic) -> None:
        """Never delete this topic."""
        topic.is_created = True
        self._dirty.topic(topic)

    def adopt(self, name: str) -> Topic:
        """Return the topic of something in the log, added if necessary, whatever the present limits are."""
        topic = self._topics.get(name)
        if topic is None:
            if self._is_full:
                self._make_room()
            topic = self._add(name)
        return topic

    def release(self, name: str) -> None:
        """The last subscription to exactly this topic has ended: delete it if it was never used otherwise."""
        topic = self._topics.get(name)
        if topic is None:
            return
        if topic.is_inbox:
            self._own -= 1
            self._delete(topic)
        elif not topic.messages and self._is_unused(topic):
            self._delete(topic)

    def delete(self, topic: Topic) -> None:
        """Delete a topic that no client uses, with its retained message."""
        if topic.retained is not None:
            self.retain(topic, None)
            self._dirty.retained(topic)
        self._delete(topic)

    def _is_unused(self, topic: Topic) -> bool:
        is_held = topic.is_created or topic.publishers or topic.retained is not None
        is_own = topic.name.startswith(RESERVED) and not topic.name.startswith(JOBS)
        return not is_held and not is_own

    def _make_room(self, owner: str | None = None) -> None:
        """Delete one unused topic, if it is found without a long search. Its subscribers lose nothing.

        `owner`: only a topic that counts for this client's quota.
        """
        for _ in range(min(TOPICS_EXAMINED, len(self._topics))):
            topic = next(iter(self._topics.values()))
            self._topics.move_to_end(topic.name)
            was_seen, topic.messages_seen = topic.messages_seen, topic.messages
            # With another policy, not every client could create it again.
            can_return = topic.policy == "open" or topic.name.startswith(JOBS)
            is_idle = not topic.messages or (topic.messages == was_seen and can_return)
            if owner is not None and self._owner_of(topic) != owner:
                continue
            if is_idle and self._is_unused(topic):
                self._delete(topic)
                return

    def _owner_of(self, topic: Topic) -> str | None:
        return None if topic.creator is None else owner_of(topic.creator, self.settings.access)

    def _delete(self, topic: Topic) -> None:
        topic.is_gone = True
        if topic.creator is not None:
            self._topics_of.add(owner_of(topic.creator, self.settings.access), -1)
        del self._topics[topic.name]
        self._tree.discard(topic.name)
        self._dirty.topic_gone(topic)

    def restore(self, row: TopicRow) -> None:
        """Add a topic that existed before the broker was restarted."""
        topic = self._topics.get(row.name) or self._add(row.name)
        topic.is_created = topic.is_created or row.is_created
        topic.is_stored = True
        topic.messages = row.messages
        topic.payload_bytes = row.payload_bytes
        topic.last_us = row.last_us

    def restore_retained(self, row: RetainedRow) -> None:
        """Set a retained message that existed before the broker was restarted."""
        self.retain(self.adopt(row.topic), RetainedMessage.from_row(row, self.retained_version + 1))

    def own(self, name: str) -> Topic:
        """Return one of the broker's own topics, added if necessary. They do not count against the limit."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._add(name)
            self._own += 1
        return topic

    def _add(self, name: str) -> Topic:
        topic = Topic(name, self._next_number, self.settings)
        self._next_number += 1
        self._topics[name] = topic
        self._tree.add(name)
        return topic

    def retain(self, topic: Topic, message: RetainedMessage | None) -> None:
        """Set the retained message of a topic, or clear it. The message's version must be `retained_version` + 1."""
        if topic.is_gone:  # deleted while its batch was being written
            topic = self.adopt(topic.name)
            self._dirty.retained(topic)
        self.retained_version += 1
        topic.retained_version += 1
        if not topic.name.startswith(RESERVED):
            self._retained_bytes += _cost_bytes(message) - _cost_bytes(topic.retained)
            for one, sign in ((topic.retained, -1), (message, 1)):
                if one is not None:
                    self._retained_of.add(owner_of(one.publisher, self.settings.access), sign * _cost_bytes(one))
        topic.retained = message
        if message is None:
            self._with_retained.discard(topic.name)
        else:
            self._with_retained.add(topic.name)
            lifetime_us = lifetime_of(message.extension) if message.extension else None
            if lifetime_us is not None:
                heappush(self._expiring, (message.received_us + lifetime_us, message.version, topic.name))
                if len(self._expiring) > 2 * len(self._with_retained) + MIN_EXPIRING:
                    self._expiring = [one for one in self._expiring if self._expires(one)]
                    heapify(self._expiring)
                self.retained_due_us = self._expiring[0][0]

    def _expires(self, one: tuple[int, int, str]) -> bool:
        """Return whether the retained message of an entry of the heap is still the one of its topic."""
        topic = self._topics.get(one[2])
        return topic is not None and topic.retained is not None and topic.retained.version == one[1]

    def drop_expired(self, now_us: int) -> None:
        """Clear the retained messages that have expired."""
        while self._expiring and self._expiring[0][0] <= now_us:
            one = heappop(self._expiring)
            if self._expires(one):
                topic = self._topics[one[2]]
                self.retain(topic, None)
                self._dirty.retained(topic)
        self.retained_due_us = self._expiring[0][0] if self._expiring else None

    def retain_last(self, topic: Topic, entry: Entry, offset: int) -> bool:
        """Retain the last message of a batch, which has this offset.

        Return False if there is no room: it was used up after the check when the message arrived.
        """
        message = RetainedMessage.of(entry, offset, self.retained_version + 1)
        if message is not None and self.retain_problem(
            topic, message.publisher, message.cost_bytes - RETAINED_COST_BYTES
        ):
            return False
        self.retain(topic, message)
        return True

    def retain_problem(self, topic: Topic, publisher: str, size_bytes: int) -> str | None:
        """Return why there is no room for a message of this client and size, with its extension; None if there is."""
        if topic.name.startswith(RESERVED):
            return None  # the broker's own figures are few
        settings = self.settings
        freed_bytes = _cost_bytes(topic.retained)
        more_bytes = size_bytes + RETAINED_COST_BYTES
        if self._retained_bytes - freed_bytes + more_bytes > settings.max_retained_bytes:
            return f"the retained messages here take all of their {settings.max_retained_bytes} bytes: clear some first"
        owner = owner_of(publisher, settings.access)
        is_own = topic.retained is not None and owner_of(topic.retained.publisher, settings.access) == owner
        used_bytes = self._retained_of.of(owner) - (freed_bytes if is_own else 0)
        limit = settings.max_client_retained_bytes
        if used_bytes + more_bytes > limit:
            advice = "clear some with empty retained messages"
            return over_quota(owner, "bytes of retained messages", limit, "client_retained_bytes", advice)
        return None

    @property
    def retained_count(self) -> int:
        return len(self._with_retained)

    def with_retained(self, pattern: str, after: str) -> Iterator[tuple[str, Topic | None]]:
        """Yield topics with a retained message that a filter matches, after `after` in the order of their names.

        Each step of the search is yielded with its position; the topic is None if there was none. A caller that stops
        continues later with that position as `after`. Stop before a retained message is set or cleared.
        """
        return self._found(self._with_retained, pattern, after)

    def after(self, pattern: str | None, after: str | None) -> Iterator[tuple[str, Topic | None]]:
        """Yield topics after `after` in the order of their names, those that a filter matches or all; else as above."""
        return self._found(self._tree, pattern, after)

    def page(self, pattern: str, after: str | None, steps: int) -> tuple[list[Topic], str | None]:
        """Return the topics that a filter matches within this many steps of the search, and where to continue."""
        found: list[Topic] = []
        last = after
        for last, topic in self.after(pattern, after):
            if topic is not None and not topic.is_inbox:
                found.append(topic)
            steps -= 1
            if not steps:
                return found, last
        return found, None

    def _found(self, tree: TopicTree, pattern: str | None, after: str | None) -> Iterator[tuple[str, Topic | None]]:
        topics = self._topics
        for name, is_match in tree.visit(pattern, after):
            yield name, topics[name] if is_match else None

    @property
    def _is_full(self) -> bool:
        return len(self) >= self.settings.max_topics or self._tree.nodes >= MAX_TOPIC_NODES

    def on_settings(self, settings: Settings) -> None:
        """Apply new settings, also to the existing topics."""
        self.settings = settings
        self._topics_of.clear()
        self._retained_of.clear()
        for topic in self._topics.values():
            topic.policy = settings.policy_of(topic.name)
            topic.is_logged = settings.is_logged(topic.name)
            # Other names may be listed now, and have quotas of their own.
            if topic.creator is not None:
                self._topics_of.add(owner_of(topic.creator, settings.access), 1)
            if topic.retained is not None and not topic.name.startswith(RESERVED):
                self._retained_of.add(owner_of(topic.retained.publisher, settings.access), _cost_bytes(topic.retained))
        for name in settings.topics:
            if name in self._topics:
                self.make_permanent(self._topics[name])
            elif not self._is_full:
                self.create(name, is_created=True)


class PublisherNumbers:
    """Numbers for publishers' names. A number is never used for another name."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._next = 1

    def number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._next
            self._next += 1
            if len(self._numbers) > MAX_NAMES:
                self._numbers.popitem(last=False)
        else:
            self._numbers.move_to_end(name)
        return number
