"""Messages of an MQTT client: PUBLISH packets become batches of the core, acknowledgements are sent in their order.

Packets in a row with the same topic, QoS and retain flag are one batch. With QoS 2 the identifiers that the client has
not released are state of the session, which is stored in the append of the message.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from godwit.broker.ports import Publication, Receipt, RequestFailure
from godwit.broker.session import Session
from godwit.broker.subscription import FilterTable
from godwit.mqtt.encoding import encode_ack, encode_acks
from godwit.mqtt.packets import (
    NO_PACKET_PROPERTIES,
    V5,
    PacketError,
    PacketProperties,
    PacketType,
    Property,
    PublishPacket,
    PublishRun,
    Reason,
)
from godwit.wire.batch import Entry, make_entry, make_lone_entry
from godwit.wire.control_base import Code
from godwit.wire.extension import Properties, encode_properties
from godwit.wire.filters import RESERVED, is_inbox

if TYPE_CHECKING:
    from godwit.mqtt.connection import MqttConnection

PUBACK: Final = 4
PUBREC: Final = 5
QOS_1: Final = 2
QOS_2: Final = 4
"""The bits of the flags of a PUBLISH."""
MAX_RUN_MESSAGES: Final = 4096
MAX_RUN_BYTES: Final = 512 * 1024
"""One batch of messages of a client, at most."""
MAX_PUBLICATIONS: Final = 2048
"""Topics of one client that are kept open, for QoS 0 and for the others; the least recently opened is closed for
another one."""
SLOT_COST_BYTES: Final = 512
"""The memory of a batch that waits for its acknowledgement, beside its payloads, about."""
MAX_REPEATS: Final = 1
"""Of a message of QoS 2 on one connection: a client repeats it after a reconnect only."""
BRIDGE_STATE: Final = re.compile(r"\$SYS/broker/connection/[^/]+/state")
"""A topic on which bridges of Mosquitto report their state: acknowledged and dropped."""
PUBLISH_REASONS: Final = {
    Code.NOT_ALLOWED: Reason.NOT_AUTHORIZED,
    Code.NO_SUCH_TOPIC: Reason.NOT_AUTHORIZED,
    Code.BAD_TOPIC: Reason.BAD_TOPIC,
    Code.TOO_MANY: Reason.QUOTA,
    Code.LIMIT: Reason.QUOTA,
    Code.MALFORMED: Reason.QUOTA,
}
"""The reason code of a PUBACK or PUBREC for a refusal of the core."""


class MqttPublication(Publication):
    """What a client publishes to one topic."""

    __slots__ = ("receiver",)

    def __init__(self, receiver: MqttReceiver, session: Session, qos: int) -> None:
        super().__init__(receiver.connection, session, qos)
        self.receiver = receiver

    def ended(self, code: Code, text: str) -> None:
        self.receiver.forget(self)


class AckSlot:
    """The position of one acknowledgement: they are sent in the order of the packets."""

    __slots__ = ("data", "held_bytes", "receiver")

    def __init__(self, receiver: MqttReceiver, held_bytes: int) -> None:
        self.receiver = receiver
        held_bytes += SLOT_COST_BYTES
        self.held_bytes = held_bytes
        self.data: bytes | None = None
        receiver.slots.append(self)
        receiver.held_bytes += held_bytes

    def fill(self, data: bytes) -> None:
        """Set the acknowledgement: it is sent at the end of the turn, after those before it."""
        self.data = data
        connection = self.receiver.connection
        if not connection.is_marked:
            connection.mark_output()


class MqttReceipt(AckSlot):
    """The outcome of one batch: its acknowledgements."""

    __slots__ = ("ids", "qos")

    def __init__(self, receiver: MqttReceiver, qos: int, ids: list[int], held_bytes: int) -> None:
        super().__init__(receiver, held_bytes)
        self.qos = qos
        self.ids = ids

    def accepted(self, reached: int) -> None:
        """See godwit.broker.ports.Receipt."""
        ids = self.ids
        if self.qos == 1:
            receiver = self.receiver
            receiver.unacknowledged -= len(ids)
            if not reached and receiver.connection.version == V5:
                self.fill(b"".join([encode_ack(V5, PUBACK, number, Reason.NO_SUBSCRIBERS) for number in ids]))
            else:
                self.fill(encode_acks(PUBACK, ids))
        else:
            self.fill(encode_acks(PUBREC, ids))

    def refused(self, code: Code, text: str) -> None:
        """See godwit.broker.ports.Receipt."""
        receiver = self.receiver
        connection = receiver.connection
        if self.qos == 1:
            receiver.unacknowledged -= len(self.ids)
        if code in (Code.STORAGE, Code.TOO_LARGE):
            # An acknowledgement with an error would be final, and the client must be able to send them again.
            for number in self.ids if self.qos == 2 else ():
                receiver.free(number)
            connection.close(code, text)
            self.fill(b"")
            return
        connection.notify_refused(code, text)
        kind = PacketType.PUBACK if self.qos == 1 else PacketType.PUBREC
        version = connection.version
        if version == V5:
            for number in self.ids if self.qos == 2 else ():
                receiver.free(number)
            reason = PUBLISH_REASONS.get(code, Reason.UNSPECIFIED)
            one = connection.with_reason(lambda shown: encode_ack(version, kind, 0, reason, shown), text)
            at = 3 if one[1] & 0x80 else 2  # where the packet identifier is
            self.fill(b"".join([one[:at] + number.to_bytes(2, "big") + one[at + 2 :] for number in self.ids]))
        else:
            self.fill(encode_acks(kind, self.ids))


class MqttReceiver:
    """The messages of one connection."""

    __slots__ = (
        "_aliases", "_name", "_publications", "_publish_entries", "_reliable", "_repeats", "_session", "_table",
        "connection", "held_bytes", "slots", "unacknowledged",
    )  # fmt: skip

    held_bytes: int

    def __init__(self, connection: MqttConnection, session: Session, table: FilterTable) -> None:
        self.connection = connection
        self._session = session
        self._table = table
        self._aliases: dict[int, str] = {}
        self._name = session.name
        self._publish_entries: Callable[[Publication, list[Entry], Receipt | None, int, int], None]
        self._publish_entries = connection.broker.publish
        self._publications: dict[str, MqttPublication] = {}
        """Of QoS 0, by topic."""
        self._reliable: dict[str, MqttPublication] = {}
        """Of QoS 1 and 2, by topic."""
        self._repeats: dict[int, tuple[int, int]] = {}
        """Of messages of QoS 2 by identifier: a hash, and how often the same one was repeated on this connection."""
        self.slots: deque[AckSlot] = deque()
        self.held_bytes = 0
        """Of messages that are not acknowledged, with their cost: the client is not read beyond a limit."""
        self.unacknowledged = 0
        """Messages of QoS 1 without a PUBACK."""

    # -- PUBLISH ------------------------------------------------------------------------------------------------------

    def handle_publishes(self, packets: list[Any], index: int, now_us: int) -> int:
        """Publish messages, beginning with the packet at an index. Return the index behind the last one."""
        connection = self.connection
        end = len(packets)
        while index < end:
            first: Any = packets[index]
            if type(first) is PublishPacket:
                if first.properties or first.flags & QOS_2 or not first.topic:
                    # With QoS 2 one by one, because any of them may be a repeat.
                    topic = self._topic(first)
                    self._publish(topic, first.flags & 7, [first.payload], [first.packet_id], first.properties, now_us)
                    return index + 1
                following: Any = packets[index + 1] if index + 1 < end else None
                is_publish = type(following) is PublishPacket or type(following) is PublishRun
                if is_publish and following.topic == first.topic:
                    index = self._publish_run(packets, index, now_us)
                else:
                    self._publish_one(first, now_us)
                    index += 1
            elif type(first) is PublishRun:
                index = self._publish_run(packets, index, now_us)
            else:
                break
            if connection.is_closing or connection.bucket is not None or self.held_bytes > connection.window_bytes:
                break  # the caller decides whether the client has to wait
        return index

    def _publish_one(self, packet: PublishPacket, now_us: int) -> None:
        """Publish one message of QoS 0 or 1 without properties."""
        flags = packet.flags & 7
        publication = (self._reliable if flags & QOS_1 else self._publications).get(packet.topic)
        if publication is None:
            self._publish(packet.topic, flags, [packet.payload], [packet.packet_id], NO_PACKET_PROPERTIES, now_us)
            return
        size = len(packet.payload)
        receipt = None
        if flags & QOS_1:
            ids = [packet.packet_id]
            self._require_quota(1, 1, packet.packet_id)
            receipt = MqttReceipt(self, 1, ids, size)
            self.unacknowledged += 1
        entry = make_lone_entry(packet.topic, self._name, packet.payload, flags >> 1, bool(flags & 1), now_us)
        self._publish_entries(publication, [entry], receipt, size, now_us)

    def _publish_run(self, packets: list[Any], index: int, now_us: int) -> int:
        """Publish the packets of QoS 0 or 1 from an index on that have the same topic, QoS and retain flag as one
        batch. Return the index behind them."""
        first: PublishPacket | PublishRun = packets[index]
        topic = first.topic
        if type(first) is PublishRun:
            payloads, ids = first.payloads, first.packet_ids
        else:
            assert type(first) is PublishPacket
            payloads, ids = [first.payload], [first.packet_id]
        flags = first.flags & 7
        end = index + 1
        if end < len(packets):
            size = 0
            while end < len(packets) and len(payloads) < MAX_RUN_MESSAGES:
                packet = packets[end]
                if type(packet) is PublishPacket:
                    if packet.topic != topic or packet.flags & 7 != flags or packet.properties:
                        break
                    size += len(packet.payload)
                    payloads.append(packet.payload)
                    ids.append(packet.packet_id)
                elif type(packet) is PublishRun:
                    if packet.topic != topic or packet.flags & 7 != flags:
                        break
                    size += sum(map(len, packet.payloads))
                    payloads += packet.payloads
                    ids += packet.packet_ids
                else:
                    break
                end += 1
                if size > MAX_RUN_BYTES:
                    break
        self._publish(topic, flags, payloads, ids, NO_PACKET_PROPERTIES, now_us)
        return end

    def _topic(self, packet: PublishPacket) -> str:
        alias = packet.properties.get(Property.TOPIC_ALIAS)
        if alias is None:
            return packet.topic
        if alias > self.connection.settings.topic_alias_maximum:
            raise PacketError(Reason.BAD_ALIAS, f"topic alias {alias} is too large")
        if packet.topic:
            self._aliases[alias] = packet.topic
            return packet.topic
        try:
            return self._aliases[alias]
        except KeyError:
            raise PacketError(Reason.PROTOCOL, f"topic alias {alias} is not known") from None

    def _publish(
        self,
        topic: str,
        flags: int,
        payloads: list[bytes],
        ids: list[int],
        properties: PacketProperties,
        now_us: int,
    ) -> None:
        """Publish messages of one topic, QoS and retain flag; with QoS 2, one. `ids` are not used with QoS 0."""
        qos = flags >> 1 & 3
        size = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        if qos:
            self._require_quota(len(ids), qos, ids[0])
        if qos == 2:
            self._count_repeat(ids[0], payloads[0])
            if self._is_repeat(ids[0]):
                return
        receipt = None
        if qos:
            receipt = MqttReceipt(self, qos, ids, size)
            if qos == 1:
                self.unacknowledged += len(ids)
        extension = None
        publication = (self._reliable if qos else self._publications).get(topic)
        if publication is None or properties:
            try:
                extension = encode_message_properties(properties) if properties else None
                publication = publication or self._open(topic, qos > 0)
            except RequestFailure as failure:
                self._refuse(topic, receipt, failure)
                return
        if qos == 2:
            self.connection.broker.hold_identifier(self._table, ids[0])
        entry = make_entry(
            topic,
            self._name,
            payloads,
            qos=qos,
            retain=bool(flags & 1),
            now_us=now_us,
            extension=extension,
        )
        self._publish_entries(publication, [entry], receipt, size, now_us)

    def _require_quota(self, count: int, qos: int, packet_id: int) -> None:
        """Raise PacketError if the client has more messages in flight than it was allowed."""
        connection = self.connection
        if connection.version < V5:
            return
        received = self._table.numbers.received
        if qos == 2 and packet_id in received:
            return
        if self.unacknowledged + len(received) + count > connection.settings.receive_maximum:
            text = f"more than {connection.settings.receive_maximum} messages without an acknowledgement"
            raise PacketError(Reason.RECEIVE_MAXIMUM, text)

    def _count_repeat(self, packet_id: int, payload: bytes) -> None:
        """Raise PacketError if the same message comes again and again on one connection."""
        seen, count = self._repeats.get(packet_id, (0, -1))
        found = hash(payload)
        count = count + 1 if seen == found else 0
        self._repeats[packet_id] = found, count
        if count > MAX_REPEATS:
            raise PacketError(Reason.PROTOCOL, f"message {packet_id} was repeated without a new connection")

    def _is_repeat(self, packet_id: int) -> bool:
        """Acknowledge a message of QoS 2 again that is known, when it is stored."""
        if packet_id not in self._table.numbers.received:
            return False
        slot = AckSlot(self, 0)
        data = encode_ack(self.connection.version, PacketType.PUBREC, packet_id)
        self.connection.broker.when_stored(self.connection, lambda: slot.fill(data), lambda text: slot.fill(b""))
        return True

    def _refuse(self, topic: str, receipt: MqttReceipt | None, failure: RequestFailure) -> None:
        """Report that messages to a topic are not accepted."""
        if topic.startswith(RESERVED) and not is_inbox(topic):  # no notice: every client may try it
            if receipt is not None and BRIDGE_STATE.fullmatch(topic):
                receipt.accepted(1)
            elif receipt is not None:
                receipt.refused(Code.NOT_ALLOWED, "")
        elif receipt is not None:
            receipt.refused(failure.code, failure.text)
        else:
            self.connection.notify_refused(failure.code, failure.text)

    def _open(self, topic: str, is_reliable: bool) -> MqttPublication:
        """Return a new publication for a topic. Raises RequestFailure."""
        known = self._reliable if is_reliable else self._publications
        if len(known) >= MAX_PUBLICATIONS:
            self.connection.broker.close_publication(known.pop(next(iter(known))))
        publication = MqttPublication(self, self._session, int(is_reliable))
        publication.is_logged = self.connection.settings.log_qos_0
        self.connection.broker.open_publication(publication, topic)
        known[topic] = publication
        return publication

    def forget(self, publication: MqttPublication) -> None:
        """The client has lost the right to publish to a topic."""
        (self._reliable if publication.qos else self._publications).pop(publication.topic.name, None)

    # -- PUBREL and acknowledgements ----------------------------------------------------------------------------------

    def handle_pubrel(self, packet_id: int) -> None:
        """The client will not repeat a message of QoS 2: forget its identifier, and report that when it is stored."""
        self._repeats.pop(packet_id, None)
        slot = AckSlot(self, 0)
        data = encode_ack(self.connection.version, PacketType.PUBCOMP, packet_id)
        self.connection.broker.free_identifier(
            self._table, packet_id, lambda: slot.fill(data), self.connection.handle_storage_error
        )

    def free(self, packet_id: int) -> None:
        """Forget the identifier of a message that was not stored."""
        self.connection.broker.free_identifier(self._table, packet_id, _ignore, _ignore)

    def take_acks(self) -> bytes:
        """Return the acknowledgements that are complete, in order."""
        slots = self.slots
        found: list[bytes] = []
        while slots:
            data = slots[0].data  # a type checker must not take the next slot's for this one's: compiled code trusts it
            if data is None:
                break
            self.held_bytes -= slots.popleft().held_bytes
            found.append(data)
        if found:
            self.connection.check_input()
        return found[0] if len(found) == 1 else b"".join(found)


def encode_message_properties(values: PacketProperties) -> bytes | None:
    """Return the extension of a batch for the properties of a PUBLISH or a will; None if none of them is for readers.
    An empty content type and user properties without a name have no meaning in the core, and are left out.

    Raises RequestFailure if they exceed the limits of godwit.wire.extension.
    """
    expiry_s = values.get(Property.MESSAGE_EXPIRY)
    properties = Properties(
        headers=tuple([(name, value) for name, value in values.get(Property.USER_PROPERTY, ()) if name]),
        content_type=values.get(Property.CONTENT_TYPE) or None,
        reply_topic=values.get(Property.RESPONSE_TOPIC),
        correlation=values.get(Property.CORRELATION_DATA),
        payload_format=values.get(Property.PAYLOAD_FORMAT),
        lifetime_us=None if expiry_s is None else expiry_s * 1_000_000,
    )
    try:
        return encode_properties(properties) or None
    except ValueError as error:
        raise RequestFailure(Code.TOO_MANY, f"the properties of a message are not accepted: {error}") from None


def _ignore(text: str = "") -> None:
    """Do nothing."""
