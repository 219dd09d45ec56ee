"""Publishing: rights and topics are checked, messages counted and screened, then handed to the append queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from godwit.broker.append_queue import AppendQueue, OnFailure, Pending
from godwit.broker.catalogue import Catalogue, TooManyTopicsError, Topic
from godwit.broker.delivery import Delivery
from godwit.broker.dirty_state import DirtyState
from godwit.broker.effects import Effect, Notice
from godwit.broker.identities import Identities
from godwit.broker.ports import Publication, Receipt, RequestFailure
from godwit.broker.session import Session, require_right
from godwit.broker.topics import shown
from godwit.errors import BadTopicError, DecodeError
from godwit.wire.batch import (
    HAS_EXTENSION,
    QOS_SHIFT,
    RETAIN,
    Entry,
    extension_of,
    has_times,
    last_message,
    longest_message,
    make_entry,
    payload_bytes,
    without_first,
)
from godwit.wire.control import Will
from godwit.wire.control_base import Code
from godwit.wire.extension import check_properties
from godwit.wire.filters import RESERVED, is_inbox

LATEST_US: Final = 2**62
"""The latest time of publication: later ones are mistakes, and would not fit the log."""
LAST_SEQUENCE: Final = 2**62
"""The largest sequence: the next one always fits the reply to a query for the progress."""
WILL_COST_BYTES: Final = 1024
"""The memory for a will beside its payload, rounded up."""
MAX_UNRELIABLE_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Of QoS 0 on its way into the log: its publishers are not slowed down, so it is dropped beyond this."""
MAX_WILLS_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Of wills on their way into the log: they wait while the disk fails, and are dropped beyond this."""
_SCREENED: Final = RETAIN | HAS_EXTENSION


def check_extension(entry: Entry) -> bytes:
    """Return the extension of a batch, empty without one. Raises RequestFailure if it is malformed or too long."""
    extension = extension_of(entry)
    if extension is None:
        return b""
    try:
        properties = check_properties(extension)
        if properties.lifetime_us is not None and has_times(entry):
            raise DecodeError("extension", "EXPIRY in a batch whose messages have times of their own")
    except DecodeError as error:
        raise RequestFailure(Code.MALFORMED, f"a batch for {shown(entry.topic)} is not accepted: {error}") from None
    return extension


@dataclass(eq=False)
class Publications:
    """Input: open, publish, publish_once, publish_will, publish_figure. Output: to the append queue, or live."""

    _catalogue: Catalogue
    _delivery: Delivery
    _identities: Identities
    _queue: AppendQueue
    _dirty: DirtyState
    _effects: list[Effect]

    def __post_init__(self) -> None:
        self._fresh = self._queue.fresh
        self.messages_in = [0, 0, 0]
        """By QoS, and so are the bytes."""
        self.bytes_in = [0, 0, 0]
        self.dropped = 0
        """Of QoS 0: beyond the rate of their publisher, or of the log."""

    # -- opening ------------------------------------------------------------------------------------------------------

    def open(self, publication: Publication, name: str, publisher: str | None = None, epoch: int = 0) -> int:
        """Let a client publish to a topic, which is created if its policy allows that.

        `publisher`, `epoch`: with QoS 2, the identity by which repeated messages are recognized, and its run; without
        an identity, each run of a client is one. Return how many connected subscriptions match the topic. Raises
        RequestFailure.
        """
        session = publication.session
        topic = publication.topic = self._require_topic(session, name)
        if publication.qos == 2:
            owner = session.name if session.is_remembered else ""
            publication.key = (owner, publisher or session.instance.hex(), name)
            publication.epoch = epoch
            if not self._identities.open(publication.key, epoch):
                text = f"a newer run of publisher {publication.key[1]!r} is known: take a higher epoch"
                raise RequestFailure(Code.STALE_EPOCH, text)
        publication.is_active = True
        publication.peer.publications[publication] = None
        topic.publishers += 1
        return len(self._delivery.routes(topic))

    def _require_topic(self, session: Session, name: str) -> Topic:
        settings = self._catalogue.settings
        if is_inbox(name):  # its name, which only the requester and its responders know, is the right to reply
            inbox = self._catalogue.get(name)
            if inbox is None:
                text = f"no client waits for replies at {name!r}: the requester has left"
                raise RequestFailure(Code.NO_SUCH_TOPIC, text)
            return inbox
        if name.startswith(RESERVED):
            raise RequestFailure(Code.NOT_ALLOWED, f"topic {name!r} begins with '$': these are the broker's own")
        topic = self._catalogue.get(name)
        if topic is None and settings.policy_of(name) == "explicit":
            raise RequestFailure(Code.NO_SUCH_TOPIC, f"topic {name!r} does not exist: create it first")
        require_right(settings.access, session, "publish", name, f"publish to {name!r}")
        if topic is None:
            try:
                topic = self._catalogue.create(name, creator=session.principal)
            except BadTopicError as error:
                raise RequestFailure(Code.BAD_TOPIC, str(error)) from None
            except TooManyTopicsError as error:
                raise RequestFailure(Code.TOO_MANY, str(error)) from None
            text = f"{session.name} created topic {name}"
            self._effects.append(Notice("topic_created", text, session.fields(topic=name)))
        self._catalogue.attribute(topic, session.principal)
        return topic

    def close(self, publication: Publication) -> None:
        """The client publishes nothing more with this publication."""
        if publication.is_active:
            publication.is_active = False
            publication.topic.publishers -= 1
            publication.peer.publications.pop(publication, None)

    # -- messages -----------------------------------------------------------------------------------------------------

    def publish(
        self, publication: Publication, entries: list[Entry], receipt: Receipt | None, size_bytes: int, now_us: int
    ) -> None:
        """Publish batches of an open publication.

        `receipt` gets the outcome. None (with QoS 0 only): the messages may be dropped if the client exceeds its rate.
        `size_bytes`: as received, for the figures.
        """
        count = all_bytes = 0
        max_bytes = self._catalogue.settings.max_message_bytes
        # Most batches skip the slower checks of _screen: without a publisher key there are no repeats to recognize, and
        # without these flags and below this size there is nothing to refuse.
        needs_screening = publication.key is not None
        for entry in entries:
            count += entry.count
            rest_bytes = len(entry.rest)
            all_bytes += rest_bytes if entry.count == 1 else payload_bytes(entry)
            if entry.flags & _SCREENED or rest_bytes > max_bytes:
                needs_screening = True
        if needs_screening:
            try:
                entries = self._screen(publication, entries, max_bytes, now_us)
            except RequestFailure as failure:
                if receipt is not None:
                    receipt.refused(failure.code, failure.text)
                elif failure.code is Code.MALFORMED:
                    self.close(publication)
                    publication.ended(failure.code, failure.text)
                return
        received = count
        if needs_screening:  # without repeats of QoS 2
            count = sum([entry.count for entry in entries])
            all_bytes = sum([payload_bytes(entry) for entry in entries])
        bucket = publication.peer.bucket
        if bucket is not None and not bucket.take(received, now_us) and receipt is None:
            self.dropped += received
            return
        session = publication.session
        topic = publication.topic
        session.messages_in += count
        self.messages_in[publication.qos] += count
        self.bytes_in[publication.qos] += size_bytes
        topic.messages += count
        topic.payload_bytes += all_bytes
        topic.last_us = now_us
        if topic.is_inbox:
            reached = self._queue.forward_live(topic, session.publisher_number, entries)
            if receipt is not None:
                receipt.accepted(reached)
        elif publication.qos:
            self._fresh.append(Pending(receipt, topic, session.publisher_number, size_bytes, entries))
        else:
            is_logged = topic.is_logged or publication.is_logged
            reached = self._publish_unreliable(topic, session.publisher_number, entries, size_bytes, is_logged)
            if receipt is not None:
                receipt.accepted(reached)

    def publish_once(self, session: Session, entries: list[Entry], receipt: Receipt, now_us: int) -> None:
        """Publish batches of one topic and QoS without a publication; with QoS 2, repeats are not recognized."""
        assert session.peer is not None
        publication = Publication(session.peer, session, min(entries[0].flags >> QOS_SHIFT, 1))
        try:
            self.open(publication, entries[0].topic)
        except RequestFailure as failure:
            receipt.refused(failure.code, failure.text)
            return
        self.publish(publication, entries, receipt, sum([len(entry.rest) for entry in entries]), now_us)
        self.close(publication)

    def _screen(self, publication: Publication, entries: list[Entry], max_bytes: int, now_us: int) -> list[Entry]:
        """Return the new messages. Raises RequestFailure for a message that is not accepted."""
        for entry in entries:
            if len(entry.rest) > max_bytes and longest_message(entry.flags, entry.count, entry.rest) > max_bytes:
                text = f"a message is longer than the {max_bytes} bytes that this broker takes"
                raise RequestFailure(Code.TOO_LARGE, text)
            extension = check_extension(entry)
            if entry.flags & RETAIN and publication.topic.is_inbox:
                raise RequestFailure(Code.NOT_ALLOWED, "a reply is not retained: publish it without the flag")
            if entry.flags & RETAIN and publication.qos:  # QoS 0 is delivered even if it is not retained
                self._queue.is_retaining = True
                payload, _ = last_message(entry)
                size_bytes = len(payload) + len(extension)
                if payload and (
                    problem := self._catalogue.retain_problem(publication.topic, entry.publisher, size_bytes)
                ):
                    raise RequestFailure(Code.TOO_MANY, problem)
        key = publication.key
        if key is None:
            return entries
        fresh: list[Entry] = []
        for entry in entries:
            assert entry.sequence is not None
            repeated = self._identities.record_sequences(key, publication.epoch, entry.sequence, entry.count, now_us)
            if repeated is None:
                raise RequestFailure(Code.STALE_EPOCH, f"a newer run of publisher {key[1]!r} has begun")
            if repeated < entry.count:
                fresh.append(without_first(entry, repeated) if repeated else entry)
        return fresh

    def _publish_unreliable(
        self, topic: Topic, publisher: int, entries: list[Entry], size_bytes: int, is_logged: bool
    ) -> int:
        """Forward QoS 0 at once, or through the log if that is demanded and the log keeps up."""
        queue = self._queue
        if self._dirty.is_durable:
            self._dirty.used[topic] = None
        if not is_logged:
            return queue.forward_live(topic, publisher, entries)
        if queue.unreliable_bytes + size_bytes > MAX_UNRELIABLE_WAITING_BYTES:
            self.dropped += sum([entry.count for entry in entries])
        else:
            queue.is_retaining = True  # perhaps
            queue.unreliable_bytes += size_bytes
            self._fresh.append(Pending(None, topic, publisher, size_bytes, entries, OnFailure.FORWARDED))
        return 0

    # -- messages that no client sends now ----------------------------------------------------------------------------

    def publish_will(self, session: Session, will: Will, now_us: int) -> None:
        """Publish a will in the name of its client, if the rules still allow that."""
        settings = self._catalogue.settings
        if not settings.access.may(session.principal, session.is_proved, "publish", will.topic):
            return
        topic = self._catalogue.get(will.topic)
        if topic is None:
            if settings.policy_of(will.topic) == "explicit":
                return
            try:
                topic = self._catalogue.create(will.topic, creator=session.principal)
            except TooManyTopicsError:
                return
        entry = make_entry(
            will.topic,
            session.name,
            [will.payload],
            qos=will.qos,
            retain=will.retain,
            now_us=now_us,
            extension=session.will_extension,
        )
        size_bytes = len(will.payload) + WILL_COST_BYTES
        queue = self._queue
        if will.qos and queue.will_bytes + size_bytes > MAX_WILLS_WAITING_BYTES:
            text = f"the last will of {session.name} on {will.topic} is lost: too many wait for the log to be written"
            self._effects.append(Notice("warning", text, session.fields(topic=will.topic)))
            return
        topic.messages += 1
        topic.payload_bytes += len(will.payload)
        topic.last_us = now_us
        if will.qos:
            queue.is_retaining |= will.retain
            queue.will_bytes += size_bytes
            pending = Pending(None, topic, session.publisher_number, size_bytes, [entry], OnFailure.RETRIED)
            self._fresh.append(pending)
        else:
            self._publish_unreliable(topic, session.publisher_number, [entry], len(will.payload), topic.is_logged)

    def publish_figure(self, topic: Topic, payload: bytes, publisher: int, publisher_name: str, now_us: int) -> None:
        """Publish one of the broker's own figures: QoS 0, retained."""
        entry = make_entry(topic.name, publisher_name, [payload], qos=0, retain=True, now_us=now_us)
        self._queue.forward_live(topic, publisher, [entry])
