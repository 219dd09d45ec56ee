"""From the publishers towards the log: channels are opened, batches checked. godwit.broker.commits sees to the rest."""

from __future__ import annotations

import struct
from typing import Final

from godwit.broker.catalogue import Catalogue, TooManyTopicsError, Topic
from godwit.broker.commits import MAX_UNRELIABLE_WAITING_BYTES, MAX_WILLS_WAITING_BYTES, Commits, Fate, Pending
from godwit.broker.delivery import Delivery
from godwit.broker.effects import Consume, Effect, Notice, Send
from godwit.broker.identities import Identities, Key
from godwit.broker.inlet import Inlet
from godwit.broker.journal import Journal
from godwit.broker.pace import Pace
from godwit.broker.retained import last_message
from godwit.broker.session import Link, Session
from godwit.broker.topics import RESERVED
from godwit.broker.trim import longest_message, without_first
from godwit.errors import BadTopicError, DecodeError
from godwit.limits import MAX_RECORD_BATCHES
from godwit.transport.events import Received
from godwit.wire.batch import HAS_ROUTE, HAS_SEQUENCE, LONE, QOS_SHIFT, RETAIN, Entry, decode_head
from godwit.wire.control import Opened, PublishOpen, Will, encode_control
from godwit.wire.control_base import Code

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_ONE_OF_QOS_1: Final = LONE | 1 << QOS_SHIFT
_HEAD_BYTES: Final = 9
_NOT_IN_LOG: Final = HAS_SEQUENCE | HAS_ROUTE
NO_SUCH_TIME: Final = "published at a time that no clock shows"
LATEST_US: Final = 2**62
"""No clock shows more: a time beyond it is nonsense, and would not fit the log."""
LAST_SEQUENCE: Final = 2**62
"""Nobody counts so far: the next one always fits the reply to `progress`."""
WILL_COST_BYTES: Final = 1024
"""What a last will takes in memory beside its payload, rounded up."""


class Publishing:
    """Feed: open, ignore, receive, publish_own, publish_figure. Everything goes to the line of commits, or is live."""

    def __init__(
        self,
        catalogue: Catalogue,
        delivery: Delivery,
        identities: Identities,
        commits: Commits,
        journal: Journal,
        pace: Pace,
        effects: list[Effect],
    ) -> None:
        self._catalogue = catalogue
        self._delivery = delivery
        self._identities = identities
        self._commits = commits
        self._fresh = commits.fresh
        self._journal = journal
        self._pace = pace
        self._effects = effects
        self.messages_in = 0
        self.bytes_in = 0
        self.dropped = 0
        """Of QoS 0: beyond their publisher's rate, or what the log takes."""

    # -- channels -----------------------------------------------------------------------------------------------------

    def open(self, link: Link, session: Session, channel: int, request: PublishOpen) -> None:
        """Record 0 of a channel."""
        inlet = link.inlets[channel] = Inlet(link, session, channel)
        inlet.qos = request.qos
        problem = self._open_problem(inlet, session, request)
        if problem is not None:
            inlet.refuse(*problem, self._effects)
            return
        inlet.enter()
        subscribers = len(self._delivery.routes(inlet.topic))
        self._effects.append(Send(link.connection, 0, encode_control(Opened(channel=channel, subscribers=subscribers))))

    def _open_problem(self, inlet: Inlet, session: Session, request: PublishOpen) -> tuple[Code, str] | None:
        name = request.topic
        access = self._catalogue.settings.access
        if name.startswith(RESERVED):
            return Code.NOT_ALLOWED, f"topic {name!r} begins with '$': these are the broker's own"
        topic = self._catalogue.get(name)
        try:
            if topic is None and self._catalogue.settings.policy_of(name) != "explicit":
                if not access.may(session.name, session.is_proved, "publish", name):
                    return Code.NOT_ALLOWED, f"{session.name} may not publish to {name!r}"
                topic = self._catalogue.create(name, creator=session.name)
                text = f"{session.name} created topic {name}"
                self._effects.append(Notice("topic_created", text, session.fields(topic=name)))
        except BadTopicError as error:
            return Code.BAD_TOPIC, str(error)
        except TooManyTopicsError as error:
            return Code.TOO_MANY, str(error)
        if topic is None:
            return Code.NO_SUCH_TOPIC, f"topic {name!r} does not exist: create it first"
        if not access.may(session.name, session.is_proved, "publish", name):
            return Code.NOT_ALLOWED, f"{session.name} may not publish to {name!r}"
        inlet.topic = topic
        self._catalogue.attribute(topic, session.name)
        if request.qos == 2:
            # Without an identity of its own each run of a client is one: it begins to count anew.
            owner = session.name if session.is_remembered else ""
            inlet.key = (owner, request.publisher or session.instance.hex(), name)
            inlet.epoch = request.epoch
            if not self._identities.open(inlet.key, request.epoch):
                return Code.STALE_EPOCH, f"a newer run of publisher {inlet.key[1]!r} is known: take a higher epoch"
        return None

    def ignore(self, link: Link, session: Session, channel: int) -> None:
        """Its open could not be read: what comes on the channel is thrown away."""
        inlet = link.inlets[channel] = Inlet(link, session, channel)
        inlet.is_refused = True

    # -- batches ------------------------------------------------------------------------------------------------------

    def receive(self, inlet: Inlet, event: Received, now_us: int) -> None:
        """A record of batches. DecodeError if it is none."""
        body = event.body
        link = inlet.link
        if not body or inlet.is_refused:
            if event.reliable:
                self._effects.append(Consume(link.connection, event.channel, len(body)))
            if event.last:
                inlet.end()
            return
        if inlet.qos and not event.reliable:
            raise DecodeError("batch", f"an unreliable record on a channel that was opened for QoS {inlet.qos}")
        session = inlet.session
        topic = inlet.topic
        body_bytes = len(body)
        entries: list[Entry] | None
        most_bytes = self._catalogue.settings.max_message_bytes + _HEAD_BYTES
        if body[0] == _ONE_OF_QOS_1 and inlet.qos == 1 and _HEAD_BYTES <= body_bytes <= most_bytes:
            # The usual record of a small sender: one message. It has a short way, because there are so many of them.
            (published_us,) = _U64.unpack_from(body, 1)
            if published_us > LATEST_US:
                raise DecodeError("batch", NO_SUCH_TIME)
            rest = body[_HEAD_BYTES:]
            entries = [
                Entry(
                    topic=topic.name,
                    publisher=session.name,
                    flags=_ONE_OF_QOS_1,
                    published_us=published_us,
                    received_us=now_us,
                    count=1,
                    rest=rest,
                )
            ]
            count = 1
        else:
            entries, count = self._entries(inlet, body, now_us)
        if entries is None:
            self.receive(inlet, event, now_us)  # refused by now
            return
        if link.bucket is not None and not link.bucket.take(count, now_us) and not event.reliable:
            self.dropped += count
            return
        session.messages_in += count
        self.messages_in += count
        self.bytes_in += body_bytes
        topic.messages += count
        # Near enough: head and lengths are most of what a batch adds to its messages.
        topic.payload_bytes += body_bytes - _HEAD_BYTES - (4 * count + 4 if count > 1 else 0)
        topic.last_us = now_us
        if inlet.qos:
            self._fresh.append(Pending(inlet, topic, session.publisher_number, event.record, body_bytes, entries))
        else:
            self._publish_unreliable(topic, session.publisher_number, entries, body_bytes)
            if event.reliable:
                self._pace.give_back(link, event.channel, body_bytes, now_us)
        if event.last:
            inlet.end()

    def _entries(self, inlet: Inlet, body: bytes, now_us: int) -> tuple[list[Entry] | None, int]:
        """The batches of a record for the log, without what is known; None when the channel was refused by now."""
        topic = inlet.topic.name
        publisher = inlet.session.name
        max_bytes = self._catalogue.settings.max_message_bytes
        entries: list[Entry] = []
        total = 0
        at = 0
        batches = 0
        while at < len(body):
            batches += 1
            if batches > MAX_RECORD_BATCHES:
                raise DecodeError("batch", f"more than {MAX_RECORD_BATCHES} in a record")
            head = decode_head(body, at)
            _check_head(inlet, head.flags, head.published_us)
            rest = body[head.rest_at : head.end]
            if len(rest) > max_bytes and longest_message(head.flags, head.count, rest) > max_bytes:
                text = f"a message is longer than the {max_bytes} bytes that this broker takes"
                inlet.refuse(Code.TOO_LARGE, text, self._effects)
                return None, 0
            stored_flags = head.flags & ~_NOT_IN_LOG
            entry = Entry(
                topic=topic,
                publisher=publisher,
                flags=stored_flags,
                published_us=head.published_us,
                received_us=now_us,
                sequence=head.sequence,
                epoch=inlet.epoch,
                count=head.count,
                rest=rest,
            )
            if head.flags & RETAIN and not self._may_keep(inlet, entry):
                return None, 0
            at = head.end
            if inlet.qos == 0 and head.sequence is not None:
                if head.sequence < inlet.next_sequence:
                    continue
                inlet.next_sequence = head.sequence + head.count
            total += head.count
            if inlet.key is not None:
                fresh = self._without_known(inlet, inlet.key, entry, now_us)
                if fresh is None:
                    return None, 0
                entries += fresh
            else:
                entries.append(entry)
        return entries, total

    def _may_keep(self, inlet: Inlet, entry: Entry) -> bool:
        """Whether its last message can be retained. What QoS 0 brings is not kept then, but delivered."""
        if inlet.qos == 0:
            return True
        self._commits.is_retaining = True
        payload, _ = last_message(entry)
        problem = self._catalogue.keep_problem(inlet.topic, entry.publisher, len(payload)) if payload else None
        if problem is None:
            return True
        inlet.refuse(Code.TOO_MANY, problem, self._effects)
        return False

    def _without_known(self, inlet: Inlet, key: Key, entry: Entry, now_us: int) -> list[Entry] | None:
        if entry.sequence is None:
            raise DecodeError("batch", "a batch of QoS 2 has no sequence")
        if entry.sequence > LAST_SEQUENCE:
            raise DecodeError("batch", "a sequence that nobody can have counted up to")
        repeated = self._identities.new_messages(key, inlet.epoch, entry.sequence, entry.count, now_us)
        if repeated is None:
            inlet.refuse(Code.STALE_EPOCH, f"a newer run of publisher {key[1]!r} has begun", self._effects)
            return None
        if repeated == entry.count:
            return []
        return [without_first(entry, repeated) if repeated else entry]

    # -- what is not a record of QoS 1 or 2 ---------------------------------------------------------------------------

    def _publish_unreliable(self, topic: Topic, publisher: int, entries: list[Entry], size_bytes: int) -> None:
        """QoS 0 is forwarded at once, or through the log if the topic's rule says so and it keeps up."""
        commits = self._commits
        if self._journal.keeps:
            self._journal.used[topic] = None
        if not topic.is_logged:
            commits.forward_live(topic, publisher, entries)
        elif commits.unreliable_bytes + size_bytes > MAX_UNRELIABLE_WAITING_BYTES:
            self.dropped += sum([entry.count for entry in entries])
        else:
            commits.is_retaining = True  # perhaps
            commits.unreliable_bytes += size_bytes
            self._fresh.append(Pending(None, topic, publisher, 0, size_bytes, entries, Fate.LIVE))

    def publish_own(self, session: Session, will: Will, now_us: int) -> None:
        """A last will, in the name of the client that left it."""
        topic = self._catalogue.get(will.topic)
        if topic is None:
            return
        flags = LONE | (RETAIN if will.retain else 0) | will.qos << QOS_SHIFT
        entry = Entry(
            topic=will.topic,
            publisher=session.name,
            flags=flags,
            published_us=now_us,
            received_us=now_us,
            count=1,
            rest=will.payload,
        )
        size_bytes = len(will.payload) + WILL_COST_BYTES
        commits = self._commits
        if will.qos and commits.will_bytes + size_bytes > MAX_WILLS_WAITING_BYTES:
            text = f"the last will of {session.name} on {will.topic} is lost: too many wait for the log to be written"
            self._effects.append(Notice("warning", text, session.fields(topic=will.topic)))
            return
        topic.messages += 1
        topic.payload_bytes += len(will.payload)
        topic.last_us = now_us
        if will.qos:
            commits.is_retaining |= will.retain
            commits.will_bytes += size_bytes
            self._fresh.append(Pending(None, topic, session.publisher_number, 0, size_bytes, [entry], Fate.AGAIN))
        else:
            self._publish_unreliable(topic, session.publisher_number, [entry], len(will.payload))

    def publish_figure(self, topic: Topic, payload: bytes, publisher: int, publisher_name: str, now_us: int) -> None:
        """One of the broker's own figures: QoS 0, retained."""
        entry = Entry(
            topic=topic.name,
            publisher=publisher_name,
            flags=LONE | RETAIN,
            published_us=now_us,
            received_us=now_us,
            count=1,
            rest=payload,
        )
        self._commits.forward_live(topic, publisher, [entry])


def _check_head(inlet: Inlet, flags: int, published_us: int) -> None:
    if flags >> QOS_SHIFT != inlet.qos:
        raise DecodeError("batch", f"QoS {flags >> QOS_SHIFT} on a channel that was opened for QoS {inlet.qos}")
    if published_us > LATEST_US:
        raise DecodeError("batch", NO_SUCH_TIME)
    if flags & HAS_ROUTE:
        raise DecodeError("batch", "a publisher's batch has no route")
