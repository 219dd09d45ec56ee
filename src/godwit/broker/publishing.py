"""From the publishers to the log: channels are opened, batches checked, appended, and confirmed once committed.

Order is kept by two queues: what came in this turn becomes one Append, and the Appends that the store has not answered
wait in the order in which they were given out. A record that brings nothing new (QoS 2, sent again) waits in line like
the others, because what it repeats may not be safe yet.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

import msgspec

from godwit.broker.catalogue import Catalogue, TooManyTopicsError, Topic
from godwit.broker.delivery import Delivery
from godwit.broker.effects import Append, Confirm, Consume, Effect, Notice, Send
from godwit.broker.identities import Identities, Key
from godwit.broker.retained import keep, last_message
from godwit.broker.session import Link, Session
from godwit.broker.topics import RESERVED
from godwit.broker.trim import longest_message, without_first
from godwit.errors import BadTopicError, DecodeError
from godwit.limits import MAX_RECORD_BATCHES
from godwit.transport.events import Received
from godwit.wire.batch import HAS_ROUTE, HAS_SEQUENCE, LONE, QOS_SHIFT, RETAIN, decode_head
from godwit.wire.control import Code, Open, Opened, Refused, Will, encode_control
from godwit.wire.entry import Entry

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_ONE_OF_QOS_1: Final = LONE | 1 << QOS_SHIFT
_HEAD_BYTES: Final = 9
_NOT_IN_LOG: Final = HAS_SEQUENCE | HAS_ROUTE
APPEND_BYTES: Final = 64 * 1024
"""What one append is filled up to: much less than any log, so that none pushes itself out."""
NO_SUCH_TIME: Final = "published at a time that no clock shows"
LATEST_US: Final = 2**62
"""No clock shows more: a time beyond it is nonsense, and would not fit the log."""
LAST_SEQUENCE: Final = 2**62
"""Nobody counts so far: the next one always fits the reply to `progress`."""


class Inlet:
    """One channel on which a client publishes."""

    __slots__ = ("channel", "epoch", "is_refused", "key", "link", "next_sequence", "qos", "session", "topic")

    topic: Topic

    def __init__(self, link: Link, session: Session, channel: int) -> None:
        self.link = link
        self.session = session
        self.channel = channel
        self.qos = 1
        self.key: Key | None = None
        self.epoch = 0
        self.next_sequence = 0
        """Of QoS 0: what comes later than something behind it is not delivered, so that order holds."""
        self.is_refused = False


class _Pending(msgspec.Struct, gc=False):
    """A record whose batches are on their way into the log; without an inlet it is the broker's own."""

    inlet: Inlet | None
    topic: Topic
    publisher: int
    record: int
    body_bytes: int
    entries: list[Entry]


class Publishing:
    """Feed: open, receive, publish_own, on_committed, pay. Drain: seal, at the end of a turn."""

    def __init__(self, catalogue: Catalogue, delivery: Delivery, identities: Identities, effects: list[Effect]) -> None:
        self._catalogue = catalogue
        self._delivery = delivery
        self._identities = identities
        self._effects = effects
        self._fresh: list[_Pending] = []
        self._under_way: deque[list[_Pending]] = deque()
        self._owing: dict[Link, None] = {}
        """Links whose rate is overdrawn."""
        self.messages_in = 0
        self.bytes_in = 0
        self.rate_dropped = 0

    # -- channels -----------------------------------------------------------------------------------------------------

    def open(self, link: Link, session: Session, channel: int, request: Open, now_us: int) -> None:
        """Record 0 of a channel."""
        inlet = link.inlets[channel] = Inlet(link, session, channel)
        inlet.qos = request.qos
        problem = self._open_problem(inlet, session, request, now_us)
        if problem is not None:
            self.refuse(inlet, *problem)
            return
        inlet.topic.publishers += 1
        subscribers = len(self._delivery.routes(inlet.topic))
        self._effects.append(Send(link.connection, 0, encode_control(Opened(channel=channel, subscribers=subscribers))))

    def _open_problem(self, inlet: Inlet, session: Session, request: Open, now_us: int) -> tuple[Code, str] | None:
        name = request.topic
        access = self._catalogue.settings.access
        if name.startswith(RESERVED):
            return Code.NOT_ALLOWED, f"topic {name!r} begins with '$': these are the broker's own"
        topic = self._catalogue.get(name)
        try:
            if topic is None and self._catalogue.settings.policy_of(name) != "explicit":
                if not access.may(session.name, session.is_proved, "publish", name):
                    return Code.NOT_ALLOWED, f"{session.name} may not publish to {name!r}"
                topic = self._catalogue.create(name)
                self._effects.append(
                    Notice(
                        "topic_created", f"{session.name} created topic {name}", {"client": session.name, "topic": name}
                    )
                )
        except BadTopicError as error:
            return Code.BAD_TOPIC, str(error)
        except TooManyTopicsError as error:
            return Code.TOO_MANY, str(error)
        if topic is None:
            return Code.NO_SUCH_TOPIC, f"topic {name!r} does not exist: create it first"
        if not access.may(session.name, session.is_proved, "publish", name):
            return Code.NOT_ALLOWED, f"{session.name} may not publish to {name!r}"
        inlet.topic = topic
        if request.qos == 2:
            # Without an identity of its own each run of a client is one: it begins to count anew.
            owner = session.name if session.is_remembered else ""
            inlet.key = (owner, request.publisher or session.instance.hex(), name)
            inlet.epoch = request.epoch
            if not self._identities.open(inlet.key, request.epoch, now_us):
                return Code.STALE_EPOCH, f"a newer run of publisher {inlet.key[1]!r} is known: take a higher epoch"
        return None

    def ignore(self, link: Link, session: Session, channel: int) -> None:
        """Its open could not be read: what comes on the channel is thrown away."""
        inlet = link.inlets[channel] = Inlet(link, session, channel)
        inlet.is_refused = True

    def refuse(self, inlet: Inlet, code: Code, text: str) -> None:
        """What comes on this channel from now on is thrown away."""
        if not inlet.is_refused:
            self._leave(inlet)
            inlet.is_refused = True
            refused = Refused(channel=inlet.channel, code=code, text=text)
            self._effects.append(Send(inlet.link.connection, 0, encode_control(refused)))

    def end(self, inlet: Inlet) -> None:
        """The channel is over, or its connection."""
        self._leave(inlet)
        inlet.link.inlets.pop(inlet.channel, None)

    def _leave(self, inlet: Inlet) -> None:
        if not inlet.is_refused and hasattr(inlet, "topic"):
            inlet.topic.publishers -= 1

    # -- batches ------------------------------------------------------------------------------------------------------

    def receive(self, inlet: Inlet, event: Received, now_us: int) -> None:
        """A record of batches. DecodeError if it is none."""
        body = event.body
        link = inlet.link
        if not body or inlet.is_refused:
            if event.reliable:
                self._effects.append(Consume(link.connection, event.channel, len(body)))
            if event.last:
                self.end(inlet)
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
            entries = [Entry(topic.name, session.name, _ONE_OF_QOS_1, published_us, now_us, None, 0, 1, rest)]
            count = 1
        else:
            entries, count = self._entries(inlet, body, now_us)
        if entries is None:
            self.receive(inlet, event, now_us)  # refused by now
            return
        if link.bucket is not None and not link.bucket.take(count, now_us) and not event.reliable:
            self.rate_dropped += count
            return
        session.messages_in += count
        self.messages_in += count
        self.bytes_in += body_bytes
        topic.messages += count
        # Near enough: head and lengths are most of what a batch adds to its messages.
        topic.payload_bytes += body_bytes - _HEAD_BYTES - (4 * count + 4 if count > 1 else 0)
        topic.last_us = now_us
        if inlet.qos:
            self._fresh.append(_Pending(inlet, topic, session.publisher_number, event.record, body_bytes, entries))
        else:
            self._forward_live(topic, session.publisher_number, entries)
            if event.reliable:
                self._give_back(link, event.channel, body_bytes, now_us)
        if event.last:
            self.end(inlet)

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
                self.refuse(inlet, Code.TOO_LARGE, text)
                return None, 0
            stored_flags = head.flags & ~_NOT_IN_LOG
            entry = Entry(
                topic, publisher, stored_flags, head.published_us, now_us, head.sequence, inlet.epoch, head.count, rest
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
        payload, _ = last_message(entry)
        if inlet.qos == 0 or not payload or self._catalogue.may_keep(inlet.topic, len(payload)):
            return True
        most = self._catalogue.settings.max_retained_bytes
        self.refuse(
            inlet, Code.TOO_MANY, f"the retained messages here take all of their {most} bytes: clear some first"
        )
        return False

    def _without_known(self, inlet: Inlet, key: Key, entry: Entry, now_us: int) -> list[Entry] | None:
        if entry.sequence is None:
            raise DecodeError("batch", "a batch of QoS 2 has no sequence")
        if entry.sequence > LAST_SEQUENCE:
            raise DecodeError("batch", "a sequence that nobody can have counted up to")
        repeated = self._identities.new_messages(key, inlet.epoch, entry.sequence, entry.count, now_us)
        if repeated is None:
            self.refuse(inlet, Code.STALE_EPOCH, f"a newer run of publisher {key[1]!r} has begun")
            return None
        if repeated == entry.count:
            return []
        return [without_first(entry, repeated) if repeated else entry]

    def _forward_live(self, topic: Topic, publisher: int, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.flags & RETAIN and self._catalogue.may_keep(topic, len(entry.rest)):
                self._keep(topic, entry, 0)
            self._delivery.forward_live(topic, publisher, entry)

    def publish_own(self, session: Session, will: Will, now_us: int) -> None:
        """A last will, in the name of the client that left it."""
        topic = self._catalogue.get(will.topic)
        if topic is None:
            return
        flags = LONE | (RETAIN if will.retain else 0) | will.qos << QOS_SHIFT
        entry = Entry(will.topic, session.name, flags, now_us, now_us, None, 0, 1, will.payload)
        topic.messages += 1
        topic.last_us = now_us
        if will.qos:
            self._fresh.append(_Pending(None, topic, session.publisher_number, 0, 0, [entry]))
        else:
            self._forward_live(topic, session.publisher_number, [entry])

    def publish_figure(self, topic: Topic, payload: bytes, publisher: int, publisher_name: str, now_us: int) -> None:
        """One of the broker's own figures: QoS 0, retained."""
        entry = Entry(topic.name, publisher_name, LONE | RETAIN, now_us, now_us, None, 0, 1, payload)
        self._forward_live(topic, publisher, [entry])

    # -- commits ------------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """The end of a turn: what came in it is appended, many records at once."""
        if self._fresh:
            pendings: list[_Pending] = []
            size_bytes = 0
            for pending in self._fresh:
                if size_bytes + pending.body_bytes > APPEND_BYTES and pendings:
                    self._append(pendings)
                    pendings = []
                    size_bytes = 0
                pendings.append(pending)
                size_bytes += pending.body_bytes
            self._append(pendings)
            self._fresh = []

    def _append(self, pendings: list[_Pending]) -> None:
        self._under_way.append(pendings)
        self._effects.append(Append([entry for pending in pendings for entry in pending.entries]))

    def on_committed(self, first_offset: int, now_us: int) -> None:
        """The oldest append is safe: forward and confirm."""
        offset = first_offset
        delivery = self._delivery
        for pending in self._under_way.popleft():
            topic = pending.topic
            reached = -1
            for entry in pending.entries:
                if entry.flags & RETAIN:
                    self._keep(topic, entry, offset + entry.count - 1)
                reached = delivery.forward(topic, pending.publisher, entry, offset)
                offset += entry.count
            inlet = pending.inlet
            if inlet is not None and inlet.link.is_open:
                if reached < 0:
                    reached = len(delivery.routes(topic))
                self._settle(inlet, pending, reached, now_us)
        delivery.on_committed(offset)

    def _settle(self, inlet: Inlet, pending: _Pending, reached: int, now_us: int) -> None:
        """Confirms a record, and gives its credit back."""
        link = inlet.link
        body_bytes = pending.body_bytes
        if link.bucket is not None and link.bucket.due_us > now_us:
            self._owe(link, inlet.channel, body_bytes)
            body_bytes = -1
        self._effects.append(Confirm(link.connection, inlet.channel, pending.record, reached, body_bytes))

    def _keep(self, topic: Topic, entry: Entry, offset: int) -> None:
        kept = keep(entry, offset, self._catalogue.keeps + 1)
        if kept is None or self._catalogue.may_keep(topic, len(kept.payload)):  # others may have been faster, or a will
            self._catalogue.keep(topic, kept)

    # -- pace ---------------------------------------------------------------------------------------------------------

    def _give_back(self, link: Link, channel: int, body_bytes: int, now_us: int) -> None:
        """The credit of a record, at once or when the client's rate allows it."""
        bucket = link.bucket
        if bucket is not None and bucket.due_us > now_us:
            self._owe(link, channel, body_bytes)
        else:
            self._effects.append(Consume(link.connection, channel, body_bytes))

    def _owe(self, link: Link, channel: int, body_bytes: int) -> None:
        link.unpaid.append((channel, body_bytes))
        self._owing[link] = None

    @property
    def is_owing(self) -> bool:
        return bool(self._owing)

    def pay(self, now_us: int) -> int | None:
        """Gives back what may be given by now. Gives when the next is due."""
        next_us: int | None = None
        for link in list(self._owing):
            due_us = link.bucket.due_us if link.bucket is not None and link.is_open else 0
            if due_us > now_us:
                next_us = min(due_us, next_us or due_us)
                continue
            del self._owing[link]
            if link.is_open:
                self._effects += [Consume(link.connection, channel, size) for channel, size in link.unpaid]
            link.unpaid = []
        return next_us


def _check_head(inlet: Inlet, flags: int, published_us: int) -> None:
    if flags >> QOS_SHIFT != inlet.qos:
        raise DecodeError("batch", f"QoS {flags >> QOS_SHIFT} on a channel that was opened for QoS {inlet.qos}")
    if published_us > LATEST_US:
        raise DecodeError("batch", NO_SUCH_TIME)
    if flags & HAS_ROUTE:
        raise DecodeError("batch", "a publisher's batch has no route")
