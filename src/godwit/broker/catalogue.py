"""Which topics there are, what they may be used for, and the numbers that stand for names towards subscribers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from godwit.broker.journal import Journal
from godwit.broker.quotas import Usage, over_quota, owner_of
from godwit.broker.settings import Policy, Settings
from godwit.broker.topics import RESERVED, check_topic
from godwit.broker.trie import TopicTree
from godwit.limits import MAX_TOPIC_NODES
from godwit.wire.changes import TopicRow

if TYPE_CHECKING:
    from godwit.broker.feed import Feed
    from godwit.broker.retained import Kept

BROKER_NAME: Final = "$broker"
"""Who publishes the broker's own messages."""
JOBS: Final = "$jobs/"
"""What happens to jobs is told on this and their kind. Kinds come and go, and so do these topics."""
KEPT_COST_BYTES: Final = 256
"""What Python needs for a retained message beside its payload."""
MAX_NAMES: Final = 262_144
"""Publishers' names that have a number; beyond it the longest unused one is forgotten, and gets a new number later."""
NEAR_QUOTA: Final = 8
"""A client's unused topics are looked for when less than this part of its quota is left."""
LOOKS_FOR_ROOM: Final = 64
"""Topics that are looked at, when there are too many, for one that can be forgotten."""


class Topic:
    """One topic. Unless it was created it can be forgotten, and made anew later: then it has another number."""

    __slots__ = (
        "creator", "generation", "is_created", "is_gone", "is_logged", "is_stored", "keeps", "kept", "last_us",
        "matching", "messages", "messages_seen", "name", "number", "payload_bytes", "policy", "publishers", "routes",
        "settlings",
    )  # fmt: skip

    def __init__(self, name: str, number: int, settings: Settings) -> None:
        self.name = name
        self.number = number
        """Its label on every channel towards a subscriber."""
        self.policy: Policy = settings.policy_of(name)
        self.is_logged = settings.is_logged(name)
        """Its messages of QoS 0, too."""
        self.is_created = False
        """Somebody asked for it, or the configuration did: it stays, whether it is used or not."""
        self.is_stored = False
        """Whether it is written down, and outlives a restart."""
        self.is_gone = False
        self.creator: str | None = None
        """The client that it counts for; None if that is not known."""
        self.publishers = 0
        self.messages = 0
        self.messages_seen = -1
        """How many they were when its room was last looked for."""
        self.payload_bytes = 0
        self.last_us = 0
        self.kept: Kept | None = None
        """The retained message."""
        self.keeps = 0
        """How often that was set or cleared."""
        self.matching: list[Feed] = []
        """The subscriptions that match, as of `generation`."""
        self.routes = self.matching
        """Those of them that are connected."""
        self.generation = -1
        self.settlings = -1
        """As of when none of them is settled, see godwit.broker.quiet."""


def _cost_bytes(kept: Kept | None) -> int:
    return 0 if kept is None else len(kept.payload) + KEPT_COST_BYTES


class TooManyTopicsError(Exception):
    """There are as many as there may be."""


class Catalogue:
    """Topics by name, in the order of their names too.

    A topic that was not created is written down with its first message. Before that it is forgotten when nobody uses it
    any more; and when there are too many, those go that nobody publishes to.
    """

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self.settings = settings
        self._journal = journal
        self._topics: OrderedDict[str, Topic] = OrderedDict()
        """Those that were looked at for room come last."""
        self._tree = TopicTree()
        self._kept = TopicTree()
        self._next_number = 1
        self._own = 0
        self._retained_bytes = 0
        self._retained_of = Usage()
        self._topics_of = Usage()
        self.keeps = 0
        """How often a retained message was set or cleared."""
        for name in settings.topics:
            self.create(name, is_created=True)

    def __len__(self) -> int:
        """Without the broker's own."""
        return len(self._topics) - self._own

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def create(self, name: str, *, creator: str | None = None, is_created: bool = False) -> Topic:
        """Create a topic that is not there yet, on behalf of a client. `is_created`: it is to stay.

        BadTopicError, TooManyTopicsError.
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
            self.stay(topic)
        return topic

    def attribute(self, topic: Topic, creator: str) -> None:
        """Count a topic that counts for no client yet for this one."""
        if topic.creator is None:
            topic.creator = creator
            self._topics_of.add(owner_of(creator, self.settings.access), 1)

    def _require_quota(self, creator: str) -> None:
        """Raise TooManyTopicsError if this client has as many topics as it may, and none of them can be forgotten."""
        owner = owner_of(creator, self.settings.access)
        limit = self.settings.max_topics_per_client
        # Early, because a topic is forgotten only if it had no message between two looks; and two for each new one,
        # because now and then there are only looks.
        for _ in range(2):
            if self._topics_of.of(owner) >= limit - limit // NEAR_QUOTA:
                self._make_room(owner)
        if self._topics_of.of(owner) >= limit:
            advice = "use those that exist"
            raise TooManyTopicsError(over_quota(owner, "topics that it created", limit, "topics_per_client", advice))

    def stay(self, topic: Topic) -> None:
        """It is not forgotten any more."""
        topic.is_created = True
        self._journal.topic(topic)

    def adopt(self, name: str) -> Topic:
        """The topic of something that the log has, made if need be: what was possible once is not refused now."""
        topic = self._topics.get(name)
        if topic is None:
            if self._is_full:
                self._make_room()
            topic = self._add(name)
        return topic

    def release(self, name: str) -> None:
        """Nobody subscribes to it by its name any more: it goes, if it was never used otherwise."""
        topic = self._topics.get(name)
        if topic is not None and not topic.messages and self._is_unused(topic):
            self._forget(topic)

    def _is_unused(self, topic: Topic) -> bool:
        is_held = topic.is_created or topic.publishers or topic.kept is not None
        is_own = topic.name.startswith(RESERVED) and not topic.name.startswith(JOBS)
        return not is_held and not is_own

    def _make_room(self, owner: str | None = None) -> None:
        """For one more, if it can be done without a long search. Who subscribes to what goes loses nothing.

        `owner`: only a topic that counts for this one is forgotten.
        """
        for _ in range(min(LOOKS_FOR_ROOM, len(self._topics))):
            topic = next(iter(self._topics.values()))
            self._topics.move_to_end(topic.name)
            was_seen, topic.messages_seen = topic.messages_seen, topic.messages
            # With another policy not everybody could bring it back.
            comes_back = topic.policy == "open" or topic.name.startswith(JOBS)
            is_idle = not topic.messages or (topic.messages == was_seen and comes_back)
            if owner is not None and self._owner_of(topic) != owner:
                continue
            if is_idle and self._is_unused(topic):
                self._forget(topic)
                return

    def _owner_of(self, topic: Topic) -> str | None:
        return None if topic.creator is None else owner_of(topic.creator, self.settings.access)

    def _forget(self, topic: Topic) -> None:
        topic.is_gone = True
        if topic.creator is not None:
            self._topics_of.add(owner_of(topic.creator, self.settings.access), -1)
        del self._topics[topic.name]
        self._tree.discard(topic.name)
        self._journal.topic_gone(topic)

    def restore(self, kept: TopicRow) -> None:
        """One that was there before the broker was restarted."""
        topic = self._topics.get(kept.name) or self._add(kept.name)
        topic.is_created = topic.is_created or kept.is_created
        topic.is_stored = True
        topic.messages = kept.messages
        topic.payload_bytes = kept.payload_bytes
        topic.last_us = kept.last_us

    def own(self, name: str) -> Topic:
        """One of the broker's own topics, made if need be. They do not count against the limit."""
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

    def keep(self, topic: Topic, kept: Kept | None) -> None:
        """The topic has another retained message from now on, or none. Its serial must be `keeps` + 1."""
        if topic.is_gone:  # its batch was on the way into the log for very long
            topic = self.adopt(topic.name)
            self._journal.retained(topic)
        self.keeps += 1
        topic.keeps += 1
        if not topic.name.startswith(RESERVED):
            self._retained_bytes += _cost_bytes(kept) - _cost_bytes(topic.kept)
            for one, sign in ((topic.kept, -1), (kept, 1)):
                if one is not None:
                    self._retained_of.add(owner_of(one.publisher, self.settings.access), sign * _cost_bytes(one))
        topic.kept = kept
        if kept is None:
            self._kept.discard(topic.name)
        else:
            self._kept.add(topic.name)

    def keep_problem(self, topic: Topic, publisher: str, payload_bytes: int) -> str | None:
        """Return why there is no room for a retained message of this client and length, or None if there is."""
        if topic.name.startswith(RESERVED):
            return None  # the broker's own figures are few
        settings = self.settings
        freed_bytes = _cost_bytes(topic.kept)
        more_bytes = payload_bytes + KEPT_COST_BYTES
        if self._retained_bytes - freed_bytes + more_bytes > settings.max_retained_bytes:
            return f"the retained messages here take all of their {settings.max_retained_bytes} bytes: clear some first"
        owner = owner_of(publisher, settings.access)
        is_own = topic.kept is not None and owner_of(topic.kept.publisher, settings.access) == owner
        used_bytes = self._retained_of.of(owner) - (freed_bytes if is_own else 0)
        limit = settings.max_client_retained_bytes
        if used_bytes + more_bytes > limit:
            advice = "clear some with empty retained messages"
            return over_quota(owner, "bytes of retained messages", limit, "client_retained_bytes", advice)
        return None

    @property
    def retained(self) -> int:
        return len(self._kept)

    def with_retained(self, pattern: str, after: str) -> Iterator[tuple[str, Topic | None]]:
        """Topics that a filter matches and that have a retained message, behind `after` in the order of their names.

        Each step of the search is yielded with the place that it looked at; the topic is None if it found none there.
        A caller that stops continues later with that place as `after`. Do not hold the iterator while another topic is
        kept or cleared.
        """
        return self._found(self._kept, pattern, after)

    def after(self, pattern: str | None, after: str | None) -> Iterator[tuple[str, Topic | None]]:
        """Topics behind `after` in the order of their names, those that a filter matches or all; else as above."""
        return self._found(self._tree, pattern, after)

    def _found(self, tree: TopicTree, pattern: str | None, after: str | None) -> Iterator[tuple[str, Topic | None]]:
        topics = self._topics
        return ((place, topics[place] if is_match else None) for place, is_match in tree.visit(pattern, after))

    @property
    def _is_full(self) -> bool:
        return len(self) >= self.settings.max_topics or self._tree.nodes >= MAX_TOPIC_NODES

    def on_settings(self, settings: Settings) -> None:
        """New rules hold for the topics that are there, too."""
        self.settings = settings
        self._topics_of.clear()
        self._retained_of.clear()
        for topic in self._topics.values():
            topic.policy = settings.policy_of(topic.name)
            topic.is_logged = settings.is_logged(topic.name)
            # Other names may be listed, and so count for themselves.
            if topic.creator is not None:
                self._topics_of.add(owner_of(topic.creator, settings.access), 1)
            if topic.kept is not None and not topic.name.startswith(RESERVED):
                self._retained_of.add(owner_of(topic.kept.publisher, settings.access), _cost_bytes(topic.kept))
        for name in settings.topics:
            if name in self._topics:
                self.stay(self._topics[name])
            elif not self._is_full:
                self.create(name, is_created=True)


class Names:
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
