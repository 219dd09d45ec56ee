"""Messages towards an MQTT client: batches of the core become PUBLISH packets, as the client's quota allows.

A message of the log has a packet identifier that follows from its offset, so that it has the same one after a reconnect
and after a restart of the broker (docs/decisions/0059). The position of the session is behind the messages whose
PUBACK or PUBREC has arrived. What one filter, or several, mean for a topic is a TopicRule.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from godwit.broker.ports import Outbound, OutboundBatch
from godwit.broker.subscription import FilterTable, TableFilter
from godwit.mqtt.encoding import encode_ack, encode_packet_properties, encode_text, publish_front, publish_head
from godwit.mqtt.packets import V5, PacketType, Property, Reason
from godwit.wire.batch import HAS_EXTENSION, QOS_SHIFT, RETAIN, Entry, extension_of, lone_payload, payloads_of
from godwit.wire.extension import decode_properties, expiry_of

if TYPE_CHECKING:
    from godwit.broker.broker import Broker
    from godwit.mqtt.connection import MqttConnection

IDENTIFIERS: Final = 49_151
"""Packet identifiers 1 to this are for messages of the log, the others for retained messages."""
RETAINED_IDENTIFIERS: Final = 65_535 - IDENTIFIERS
MAX_RULES: Final = 4096
"""Topics whose rule is remembered."""
MAX_ALIASES: Final = 256
"""Topic aliases towards one client, whatever it allows."""
NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08
ONE_ENCODINGS: Final = ("mqtt 4", "mqtt 4 retained", "mqtt 5", "mqtt 5 retained")
"""The keys of a message alone, by version and retain flag."""
ENCODING: Final = "mqtt"
"""The key of the payloads of a batch, see OutboundBatch.encodings."""


class TopicRule(msgspec.Struct, frozen=True):
    """What the filters that match a topic mean for its messages."""

    qos: int
    """The highest of the filters."""
    keeps_retain: bool
    is_no_local: bool
    identifiers: list[int]
    exact_from: int
    """Messages with smaller offsets do not match all of the filters."""
    is_plain: bool = False
    """Whether messages are sent without subscription identifiers."""


def make_rule(filters: list[TableFilter]) -> TopicRule | None:
    """Return what these filters mean together, or None if there are none."""
    if not filters:
        return None
    identifiers = sorted({one.identifier for one in filters if one.identifier})
    return TopicRule(
        max([one.options & 3 for one in filters]),
        any(one.options & RETAIN_AS_PUBLISHED for one in filters),
        all(one.options & NO_LOCAL for one in filters),
        identifiers,
        max([one.since for one in filters]),
        not identifiers,
    )


class RetainedInFlight(msgspec.Struct):
    """A retained message that was sent when a subscription began and is not acknowledged: it is kept to be repeated."""

    qos: int
    topic: str
    entry: Entry
    identifiers: list[int]
    is_released: bool = False


def packet_properties(extension: bytes | None) -> dict[int, Any]:
    """Return the properties of messages with this extension, as MQTT 5.0 has them; without their expiry."""
    properties = decode_properties(extension)
    values: dict[int, Any] = {
        Property.PAYLOAD_FORMAT: properties.payload_format,
        Property.CONTENT_TYPE: properties.content_type,
        Property.RESPONSE_TOPIC: properties.reply_topic,
        Property.CORRELATION_DATA: properties.correlation,
        Property.USER_PROPERTY: list(properties.headers) or None,
    }
    return {number: value for number, value in values.items() if value is not None}


class MqttOutbound(Outbound):
    """The messages of one session on their way to its client."""

    __slots__ = (
        "_aliases", "_connection", "_is_moved", "_next_retained", "_prune_above", "_queue", "_released_ids", "_repeats",
        "_rules", "_rules_version", "_skip_below", "client_max_bytes", "exact", "max_aliases", "next_offset",
        "publishes", "queued_bytes", "quota", "releases", "shared", "table",
    )  # fmt: skip

    table: FilterTable

    def __init__(self, connection: MqttConnection) -> None:
        super().__init__()
        self._connection = connection
        self.quota = 0
        """Messages of QoS 1 and 2 that may be in flight."""
        self.client_max_bytes = 1 << 30
        """The longest packet that the client accepts."""
        self.max_aliases = 0
        self._queue: deque[tuple[OutboundBatch, int]] = deque()
        """Batches that were put, and how many of their messages are sent or skipped."""
        self.queued_bytes = 0
        self.publishes: dict[int, int] = {}
        """Offsets of messages of the log that the client has not acknowledged, by packet identifier, in their order."""
        self.exact: set[int] = set()
        """The packet identifiers of those with QoS 2."""
        self.releases: dict[int, list[Any]] = {}
        """PUBREL by packet identifier: the offset (None: a retained message), and whether it was sent."""
        self.shared: dict[int, tuple[MqttMemberOutbound, int]] = {}
        """Messages of consumer groups by packet identifier: through which membership, and the offset."""
        self.next_offset = 0
        """Everything below was sent or skipped."""
        self._released_ids: dict[int, int] = {}
        """Offsets by the identifier of messages that may still be in PacketNumbers.released."""
        self._skip_below = 0
        """Older messages are not sent with QoS 0: they were published while the client was away."""
        self._rules: dict[str, TopicRule | None] = {}
        self._rules_version = -1
        self._aliases: dict[str, int] = {}
        """Topics whose alias the client has received."""
        self._next_retained = 0
        self._is_moved = False
        """Whether the position may have to move."""
        self._repeats: deque[int] = deque()
        """Identifiers of retained messages that the former connection did not acknowledge, to be sent again."""
        self._prune_above = 0
        """PacketNumbers.finished is searched for old offsets when it has more than this."""

    # -- ports --------------------------------------------------------------------------------------------------------

    def begin(self, offset: int) -> None:
        assert isinstance(self.subscription, FilterTable)
        self.table = self.subscription
        self.next_offset = offset

    def begin_session(self, end_offset: int, random_number: int) -> None:
        """Repeat the messages in flight to the former connection. `end_offset`: the end of the log."""
        self._skip_below = end_offset
        self._next_retained = random_number % RETAINED_IDENTIFIERS
        numbers = self.table.numbers
        for packet_id, message in list(numbers.not_logged.items()):
            if message.is_released:
                self.releases[packet_id] = [None, True]
                self._connection.write(encode_ack(self._connection.version, PacketType.PUBREL, packet_id))
            else:
                self._repeats.append(packet_id)
        for offset in sorted(numbers.released):
            packet_id = self._identifier(offset)
            self._released_ids[packet_id] = offset
            if numbers.released[offset] == numbers.OPEN:
                self.releases[packet_id] = [offset, False]
        if self.releases:  # the last ones may not be stored yet
            connection = self._connection
            connection.broker.when_stored(connection, self._repeat_releases, connection.handle_storage_error)

    def _repeat_releases(self) -> None:
        for packet_id, waiting in list(self.releases.items()):
            if not waiting[1]:
                self._send_pubrel(packet_id, waiting[0])

    def room(self) -> int:
        return max(self._connection.window_bytes - self.queued_bytes - self._connection.unsent_bytes(), 0)

    def put(self, batch: OutboundBatch) -> bool:
        size = len(batch.entry.rest)
        queued_bytes = self.queued_bytes
        window_bytes = self._connection.window_bytes
        if queued_bytes and queued_bytes + size > window_bytes:
            return False
        if queued_bytes + self._connection.unsent_bytes() >= window_bytes:
            return False
        self._queue.append((batch, 0))
        self.queued_bytes += size
        return True

    def put_live(self, batch: OutboundBatch) -> bool:
        connection = self._connection
        window_bytes = connection.window_bytes
        unsent_bytes = connection.unsent_bytes()
        # A message that is longer than the window is sent if little else waits.
        if unsent_bytes > window_bytes // 4 and unsent_bytes + len(batch.entry.rest) > window_bytes:
            return False
        entry = batch.entry
        rule = self._rule(batch.topic.name, -1)
        if rule is not None and not (rule.is_no_local and entry.publisher == connection.name):
            payload = lone_payload(entry)
            if payload is not None and rule.is_plain and not self.max_aliases and self.is_unlimited:
                self._write_one(batch, rule, payload)
            else:
                self._write_batch(batch, rule, 0)
        return True

    def gap(self, count: int, next_offset: int, below: int) -> None:
        """Messages were deleted before they could be sent. MQTT has no word for that; the operator is notified."""
        self._connection.notify_gap(count)
        if self.subscription is not None:
            self._connection.broker.acknowledge(self.subscription, 0, gaps=1)

    def is_idle(self) -> bool:
        return not self._queue and not self.publishes

    def flush(self) -> None:
        self.send_queued()

    @property
    def is_unlimited(self) -> bool:
        """Whether the client accepts packets of any length."""
        return self.client_max_bytes >= 1 << 30

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait for the client's quota or for its stream."""
        return bool(self._queue or self._repeats)

    def release(self) -> None:
        """The connection has ended: drop the messages that wait."""
        self._queue.clear()
        self._repeats.clear()
        self._rules.clear()

    # -- sending ------------------------------------------------------------------------------------------------------

    def send_queued(self) -> None:
        """Send as many of the queued messages as the quota and the socket allow, and move the position."""
        connection = self._connection
        if not (self._queue or self._repeats or self._is_moved):
            return
        self._is_moved = False
        if self._repeats:
            self._send_repeats()
        elif self._queue:
            self._send_singles()
        while self._queue and not self._repeats and not connection.is_closing:
            batch, index = self._queue[0]
            index = self._send_batch(batch, index)
            if index < batch.entry.count:
                self._queue[0] = (batch, index)
                break
            self._queue.popleft()
            self.queued_bytes -= len(batch.entry.rest)
        self._acknowledge()

    def _send_repeats(self) -> None:
        """Send retained messages again, as far as the stream has room."""
        connection = self._connection
        while self._repeats and not connection.is_closing and connection.unsent_bytes() <= connection.window_bytes:
            packet_id = self._repeats.popleft()
            message = self.table.numbers.not_logged.get(packet_id)
            if message is not None:
                self._write_retained(packet_id, message, is_repeat=True)

    def _send_batch(self, batch: OutboundBatch, index: int) -> int:
        """Send the messages of a batch from an index on. Return the index of the first one that has to wait."""
        entry = batch.entry
        count = entry.count
        connection = self._connection
        if connection.unsent_bytes() > connection.window_bytes:
            return index
        is_retained = bool(batch.flags & RETAIN)
        rule = self._rule(batch.topic.name, -1 if is_retained else batch.offset)
        is_unwanted = rule is None or (rule.is_no_local and entry.publisher == connection.name)
        if rule is None or is_unwanted:
            self._done(batch, count)
            return count
        qos = min(entry.flags >> QOS_SHIFT, rule.qos)
        if qos == 0:
            if is_retained or batch.offset >= self._skip_below:
                self._write_batch(batch, rule, index)
            self._done(batch, count)
            return count
        if is_retained:
            return self._send_retained(batch, rule, qos)
        return self._send_logged(batch, rule, qos, index)

    def _is_fresh(self, first: int, end: int) -> bool:
        """Return whether messages of these offsets were never sent to the client, and their packet identifiers are
        free: then none of them is finished or released."""
        numbers = self.table.numbers
        if first < numbers.sent_below or self.releases or self._released_ids:
            return False
        if not self.table.is_stored and numbers.sent_below <= self.table.created_at:
            return False  # the first message of the session
        for oldest in self.publishes.values():
            return end - oldest <= IDENTIFIERS
        return True

    def _send_singles(self) -> None:
        """Send batches of one message each, as many senders with a few messages make them, from the front of the queue.

        It does the same as `_send_logged` for the usual ones. It stops at the first other one, which that can send.
        """
        connection = self._connection
        queue = self._queue
        first = queue[0][0].offset
        if self.max_aliases or not self.is_unlimited or self._rules_version != self.table.version:
            return
        if connection.unsent_bytes() > connection.window_bytes or not self._is_fresh(first, first):
            return
        free = self.free_quota()
        numbers, publishes, rules, out = self.table.numbers, self.publishes, self._rules, connection.out
        created_at = self.table.created_at
        is_v5 = connection.version == V5
        while queue and free > 0:
            batch = queue[0][0]
            entry = batch.entry
            payload = lone_payload(entry)
            rule = rules.get(batch.topic.name)
            offset = batch.offset
            if payload is None or rule is None or not rule.is_plain or rule.is_no_local or offset < rule.exact_from:
                break
            qos = min(entry.flags >> QOS_SHIFT, rule.qos)
            packet_id = (offset - created_at) % IDENTIFIERS + 1
            if not qos or batch.flags & RETAIN or offset < numbers.sent_below or packet_id in publishes:
                break
            flags = qos << 1 | (1 if rule.keeps_retain and entry.flags & RETAIN else 0)
            front = publish_front(flags, connection.encoded_topic(batch.topic.name), int(is_v5), len(payload))
            data = front + packet_id.to_bytes(2, "big") + (b"\0" + payload if is_v5 else payload)
            out.append(data)
            connection.out_bytes += len(data)
            publishes[packet_id] = offset
            if qos == 2:
                self.exact.add(packet_id)
            free -= 1
            self.next_offset = numbers.sent_below = offset + 1
            queue.popleft()
            self.queued_bytes -= len(entry.rest)
        connection.mark_output()

    def _send_run(self, batch: OutboundBatch, flags: int, head: tuple[bytes, bytes], index: int, end: int) -> None:
        """Send messages with fresh offsets all at once."""
        payloads = _payloads(batch)[index:end]
        fronts = {size: publish_front(flags, head[0], len(head[1]), size) for size in set(map(len, payloads))}
        first = batch.offset + index
        packet_id = (first - self.table.created_at) % IDENTIFIERS + 1
        ids = range(packet_id, packet_id + len(payloads))
        parts = [
            part
            for number, payload in zip(ids, payloads, strict=True)
            for part in (fronts[len(payload)], number.to_bytes(2, "big") + head[1], payload)
        ]
        self.publishes.update(zip(ids, range(first, batch.offset + end), strict=True))
        if flags & 4:
            self.exact.update(ids)
        self.table.numbers.sent_below = batch.offset + end
        self._connection.write(b"".join(parts))

    def _send_logged(self, batch: OutboundBatch, rule: TopicRule, qos: int, index: int) -> int:
        """Send messages of QoS 1 or 2 from the log."""
        entry = batch.entry
        connection = self._connection
        payloads = _payloads(batch)
        numbers = self.table.numbers
        publishes, finished, released = self.publishes, numbers.finished, numbers.released
        if not self.table.is_stored and numbers.sent_below <= self.table.created_at:
            self.table.created_at = batch.offset + index  # the first message has identifier 1
        created_at = self.table.created_at
        flags = qos << 1 | (1 if rule.keeps_retain and entry.flags & RETAIN else 0)
        head = self._head(batch.topic.name, rule.identifiers, entry)
        free = self.free_quota()
        count = entry.count
        if head is not None and free > 0 and not self.max_aliases and self.is_unlimited:
            first, end = batch.offset + index, min(index + free, count)
            is_row = (first - created_at) % IDENTIFIERS + end - index <= IDENTIFIERS
            if is_row and self._is_fresh(first, batch.offset + end):
                self._send_run(batch, flags, head, index, end)
                self.next_offset = batch.offset + end
                return end
        out = connection.out
        front, front_of = b"", (-1, -1)  # of a packet, and the length and flags for which it is right
        while index < count:
            offset = batch.offset + index
            if (finished and offset in finished) or (released and offset in released):
                index += 1
                continue
            if free <= 0:
                break
            packet_id = (offset - created_at) % IDENTIFIERS + 1
            if packet_id in publishes or packet_id in self.releases or self._is_released(packet_id):
                connection.mark_stalled()
                break
            if head is None:  # it has expired
                index += 1
                continue
            payload = payloads[index]
            kind = len(payload), flags | 8 if offset < numbers.sent_below else flags
            if kind != front_of:
                front, front_of = publish_front(kind[1], head[0], len(head[1]), kind[0]), kind
            index += 1
            packet_bytes = len(front) + 2 + len(head[1]) + kind[0]
            if packet_bytes > self.client_max_bytes:
                continue
            publishes[packet_id] = offset
            if qos == 2:
                self.exact.add(packet_id)
            free -= 1
            out += (front, packet_id.to_bytes(2, "big") + head[1], payload)
            connection.out_bytes += packet_bytes
            if offset >= numbers.sent_below:
                numbers.sent_below = offset + 1
            if self.max_aliases and self._note_alias(batch.topic.name):
                head = self._head(batch.topic.name, rule.identifiers, entry)
                front_of = (-1, -1)
        self.next_offset = batch.offset + index
        connection.mark_output()
        return index

    def _send_retained(self, batch: OutboundBatch, rule: TopicRule, qos: int) -> int:
        """Send a retained message at the beginning of a subscription with QoS 1 or 2. Return 0 if it has to wait."""
        numbers = self.table.numbers
        if self.free_quota() <= 0 or len(numbers.not_logged) + len(self.shared) >= RETAINED_IDENTIFIERS:
            return 0
        packet_id = self._next_identifier()
        message = RetainedInFlight(qos, batch.topic.name, batch.entry, rule.identifiers)
        if self._write_retained(packet_id, message, is_repeat=False):
            numbers.not_logged[packet_id] = message
        self._done(batch, 1)
        return 1

    def free_quota(self) -> int:
        """Return how many messages of QoS 1 and 2 may be sent now."""
        in_flight = len(self.publishes) + len(self.releases) + len(self.table.numbers.not_logged) + len(self.shared)
        return self.quota - in_flight

    def _next_identifier(self) -> int:
        """Return an unused packet identifier for a message that has none by its offset."""
        not_logged = self.table.numbers.not_logged
        packet_id = IDENTIFIERS + 1 + self._next_retained
        for _ in range(RETAINED_IDENTIFIERS):
            if packet_id not in not_logged and packet_id not in self.releases and packet_id not in self.shared:
                break
            packet_id = packet_id + 1 if packet_id < 65_535 else IDENTIFIERS + 1
        self._next_retained = (packet_id - IDENTIFIERS) % RETAINED_IDENTIFIERS
        return packet_id

    # -- consumer groups ----------------------------------------------------------------------------------------------

    def member_outbound(self, filter: TableFilter) -> Outbound:
        return MqttMemberOutbound(self, filter)

    def room_for_shared(self, qos: int) -> int:
        """Return how many messages of consumer groups may be sent now."""
        connection = self._connection
        if connection.is_closing or connection.unsent_bytes() > connection.window_bytes:
            return 0
        if not qos:
            return 1 << 30
        identifiers = RETAINED_IDENTIFIERS - len(self.shared) - len(self.table.numbers.not_logged)
        return max(min(self.free_quota(), identifiers), 0)

    def send_shared(self, batch: OutboundBatch, rule: TopicRule, through: MqttMemberOutbound) -> list[int]:
        """Send messages of a consumer group with the QoS of the rule. Return the offsets that are done with that."""
        count = batch.entry.count
        if rule.qos == 0:
            self._write_batch(batch, rule, 0)
            return list(range(batch.offset, batch.offset + count))
        connection = self._connection
        done: list[int] = []
        flags = rule.qos << 1 | (1 if rule.keeps_retain and batch.entry.flags & RETAIN else 0)
        for offset, payload in enumerate(_payloads(batch), batch.offset):
            head = self._head(batch.topic.name, rule.identifiers, batch.entry)
            packet_id = self._next_identifier()
            packet = b"" if head is None else publish_head(flags, head[0], packet_id, head[1], len(payload)) + payload
            if head is None or len(packet) > self.client_max_bytes:  # it has expired, or is too long for the client
                done.append(offset)
                continue
            self.shared[packet_id] = (through, offset)
            connection.write(packet)
            if self.max_aliases:
                self._note_alias(batch.topic.name)
        return done

    def broker(self) -> Broker:
        """Return the broker of the connection."""
        return self._connection.broker

    # -- more of sending ----------------------------------------------------------------------------------------------

    def _write_retained(self, packet_id: int, message: RetainedInFlight, *, is_repeat: bool) -> bool:
        """Return False if the client does not accept it."""
        head = self._head(message.topic, message.identifiers, message.entry)
        if head is None:
            return False
        payload = payloads_of(message.entry)[0]
        flags = message.qos << 1 | 1 | 8 * is_repeat
        packet = publish_head(flags, head[0], packet_id, head[1], len(payload)) + payload
        if len(packet) > self.client_max_bytes:
            return False
        self._connection.write(packet)
        self._note_alias(message.topic)
        return True

    def _write_batch(self, batch: OutboundBatch, rule: TopicRule, index: int) -> None:
        """Write messages with QoS 0. The encoded form is the same for all clients without options of their own."""
        connection = self._connection
        entry = batch.entry
        is_retained = bool(batch.flags & RETAIN or (rule.keeps_retain and entry.flags & RETAIN))
        key = f"{ENCODING} 0 {connection.version == V5} {is_retained}"
        is_limited = self.client_max_bytes < 1 << 30
        is_plain = not (rule.identifiers or self.max_aliases or index or is_limited or entry.flags & HAS_EXTENSION)
        data = batch.encodings.get(key) if is_plain else None
        if data is None:
            head = self._head(batch.topic.name, rule.identifiers, entry)
            if head is None:
                return
            payloads = _payloads(batch)[index:]
            if is_plain and len(set(map(len, payloads))) == 1:
                # All have one length, like the readings of a sensor: one head serves all.
                packet = publish_head(int(is_retained), head[0], 0, head[1], len(payloads[0]))
                data = packet + packet.join(payloads)
            else:
                data = self._encode_each(batch.topic.name, payloads, rule, entry, is_retained, head)
            if is_plain:
                batch.encodings[key] = data
        if data:
            connection.write(data)

    def _write_one(self, batch: OutboundBatch, rule: TopicRule, payload: bytes) -> None:
        """Write one message with QoS 0 and without properties. The encoded form serves all such clients."""
        connection = self._connection
        is_v5 = connection.version == V5
        is_retained = rule.keeps_retain and bool(batch.entry.flags & RETAIN)
        key = ONE_ENCODINGS[2 * is_v5 + is_retained]
        data: bytes | None = batch.encodings.get(key)
        if data is None:
            text = connection.encoded_topic(batch.topic.name)
            data = publish_front(int(is_retained), text, int(is_v5), len(payload)) + (b"\0" if is_v5 else b"") + payload
            batch.encodings[key] = data
        connection.write(data)

    def _encode_each(
        self,
        topic: str,
        payloads: list[bytes],
        rule: TopicRule,
        entry: Entry,
        is_retained: bool,
        head: tuple[bytes, bytes],
    ) -> bytes:
        parts: list[bytes] = []
        for payload in payloads:
            packet = publish_head(int(is_retained), head[0], 0, head[1], len(payload))
            if len(packet) + len(payload) <= self.client_max_bytes:
                parts += (packet, payload)
                if self.max_aliases and self._note_alias(topic):
                    head = self._head(topic, rule.identifiers, entry) or head
        return b"".join(parts)

    def _head(self, topic: str, identifiers: list[int], entry: Entry) -> tuple[bytes, bytes] | None:
        """Return the encoded topic and properties of the messages of an entry, or None if they have expired."""
        connection = self._connection
        expires_us = expiry_of(entry)
        if expires_us is not None and expires_us <= connection.broker.now_us:
            return None
        if connection.version < V5:
            return connection.encoded_topic(topic), b""
        values = packet_properties(extension_of(entry)) if entry.flags & HAS_EXTENSION else {}
        if expires_us is not None:
            values[Property.MESSAGE_EXPIRY] = max((expires_us - connection.broker.now_us) // 1_000_000, 1)
        if identifiers:
            values[Property.SUBSCRIPTION_ID] = identifiers
        text = topic
        if self.max_aliases:
            alias = self._aliases.get(topic)
            if alias is not None:
                values[Property.TOPIC_ALIAS] = alias
                text = ""
            elif len(self._aliases) < min(self.max_aliases, MAX_ALIASES):
                values[Property.TOPIC_ALIAS] = len(self._aliases) + 1  # known when it is sent, see _note_alias
        return encode_text(text), encode_packet_properties(values) if values else b"\0"

    def _note_alias(self, topic: str) -> bool:
        """A packet with the head of this topic was sent. Return whether the topic has an alias since then."""
        if topic in self._aliases or len(self._aliases) >= min(self.max_aliases, MAX_ALIASES):
            return False
        self._aliases[topic] = len(self._aliases) + 1
        return True

    def _done(self, batch: OutboundBatch, count: int) -> None:
        """These messages of a batch need no acknowledgement."""
        if batch.flags & RETAIN:
            self.next_offset = max(self.next_offset, batch.end_offset)
        elif batch.offset or batch.end_offset:
            self.next_offset = batch.offset + count

    def _rule(self, topic: str, offset: int) -> TopicRule | None:
        """Return what the filters mean for a message; `offset` is -1 if it is not from the log."""
        table = self.table
        if table.version != self._rules_version or len(self._rules) > MAX_RULES:
            self._rules_version = table.version
            self._rules.clear()
        try:
            rule = self._rules[topic]
        except KeyError:
            present = [one for one in table.matching(topic) if one.until is None]
            rule = self._rules[topic] = make_rule(present)
        if offset < 0 or (rule is not None and offset >= rule.exact_from):
            return rule
        return make_rule(
            [one for one in table.matching(topic) if one.since <= offset and (one.until is None or offset < one.until)]
        )

    def _identifier(self, offset: int) -> int:
        return (offset - self.table.created_at) % IDENTIFIERS + 1

    def _is_released(self, packet_id: int) -> bool:
        """Return whether the store has a handshake with this identifier, which it would confuse with a new one."""
        if not self._released_ids:
            return False
        offset = self._released_ids.get(packet_id)
        if offset is None:
            return False
        if offset in self.table.numbers.released:
            return True
        del self._released_ids[packet_id]
        return False

    # -- the client's acknowledgements --------------------------------------------------------------------------------

    def handle_ack(self, kind: int, packet_id: int, code: int) -> bool:
        """Handle PUBACK, PUBREC or PUBCOMP. Return False if it is not the answer to the packet with this identifier."""
        if packet_id in self.shared:
            if kind != PacketType.PUBACK:
                return False
            through, offset = self.shared.pop(packet_id)
            through.acknowledge(offset)  # with any code: a message that a client refuses is not sent to others
            return True
        self._is_moved = True
        if packet_id in self.table.numbers.not_logged:
            return self._handle_retained_ack(kind, packet_id, code)
        if kind == PacketType.PUBCOMP:
            return packet_id not in self.publishes and self._handle_pubcomp(packet_id)
        if packet_id not in self.publishes:
            if kind == PacketType.PUBACK:
                return packet_id not in self.releases
            self._handle_unknown_pubrec(packet_id, code)
            return True
        if (kind == PacketType.PUBACK) != (packet_id not in self.exact):
            return False
        offset = self.publishes.pop(packet_id)
        self.exact.discard(packet_id)
        if kind == PacketType.PUBACK or code >= Reason.UNSPECIFIED:
            self.table.numbers.finished.add(offset)
            return True
        self.releases[packet_id] = [offset, False]
        self._released_ids[packet_id] = offset
        connection = self._connection
        connection.broker.release(
            self.table, offset, lambda: self._send_pubrel(packet_id, offset), connection.handle_storage_error
        )
        return True

    def handle_pubacks(self, packet_ids: list[int]) -> bool:
        """Handle PUBACK packets. Return False if one of them is not the answer to the packet with its identifier."""
        publishes, exact, finished = self.publishes, self.exact, self.table.numbers.finished
        self._is_moved = True
        for packet_id in packet_ids:
            offset = publishes.get(packet_id)
            if offset is not None and packet_id not in exact:
                del publishes[packet_id]
                finished.add(offset)
            elif not self.handle_ack(PacketType.PUBACK, packet_id, 0):
                return False
        return True

    def _send_pubrel(self, packet_id: int, offset: int | None) -> None:
        waiting = self.releases.get(packet_id)
        if waiting is not None and waiting[0] == offset:
            waiting[1] = True
            self._connection.write(encode_ack(self._connection.version, PacketType.PUBREL, packet_id))

    def _handle_unknown_pubrec(self, packet_id: int, code: int) -> None:
        waiting = self.releases.get(packet_id)
        if waiting is not None:
            if waiting[1]:  # the client repeats it
                self._send_pubrel(packet_id, waiting[0])
        elif code < Reason.UNSPECIFIED:
            self._connection.write(encode_ack(self._connection.version, PacketType.PUBREL, packet_id))

    def _handle_pubcomp(self, packet_id: int) -> bool:
        waiting = self.releases.get(packet_id)
        if waiting is not None and waiting[1]:
            del self.releases[packet_id]
            offset = waiting[0]
            if offset is not None:
                self._connection.broker.complete(self.table, offset)
                self.table.numbers.finished.add(offset)
        return True

    def _handle_retained_ack(self, kind: int, packet_id: int, code: int) -> bool:
        not_logged = self.table.numbers.not_logged
        message: RetainedInFlight = not_logged[packet_id]
        if kind == PacketType.PUBACK or code >= Reason.UNSPECIFIED:
            if kind == PacketType.PUBACK and message.qos != 1:
                return False
            del not_logged[packet_id]
        elif kind == PacketType.PUBREC:
            if message.qos != 2:
                return False
            message.is_released = True
            self._connection.write(encode_ack(self._connection.version, PacketType.PUBREL, packet_id))
        elif not message.is_released:
            return False
        else:
            del not_logged[packet_id]
            self.releases.pop(packet_id, None)
        return True

    def _acknowledge(self) -> None:
        """Move the position of the session behind the acknowledged messages."""
        subscription = self.subscription
        if subscription is None:
            return
        below = self.next_offset
        for oldest in self.publishes.values():
            below = oldest
            break
        numbers = self.table.numbers
        if numbers.finished:
            if not self.publishes and not self._queue:
                numbers.finished.clear()
            elif len(numbers.finished) > self._prune_above:
                numbers.finished = {offset for offset in numbers.finished if offset >= below}
                self._prune_above = 2 * max(len(numbers.finished), self.quota)
        if below > subscription.acknowledged_below or subscription.sent:
            self._connection.broker.acknowledge(subscription, below)


class MqttMemberOutbound(Outbound):
    """The messages of a consumer group on their way to one member, among the others of its session."""

    __slots__ = ("_done", "_filter", "_sender")

    def __init__(self, sender: MqttOutbound, filter: TableFilter) -> None:
        super().__init__()
        self._sender = sender
        self._filter = filter
        self._done: list[int] = []
        """Offsets of messages that need no acknowledgement."""

    def _rule(self, batch: OutboundBatch) -> TopicRule:
        """Return how the messages are sent: with QoS 1 at most, because a group may have to send them twice."""
        rule = make_rule([self._filter])
        assert rule is not None
        return msgspec.structs.replace(rule, qos=min(batch.entry.flags >> QOS_SHIFT, rule.qos, 1))

    def room_for(self, batch: OutboundBatch) -> int:
        return min(self._sender.room_for_shared(self._rule(batch).qos), batch.entry.count)

    def put(self, batch: OutboundBatch) -> bool:
        self._done += self._sender.send_shared(batch, self._rule(batch), self)
        return True

    def put_live(self, batch: OutboundBatch) -> bool:
        if not self._sender.room_for_shared(0):
            return False
        self._sender.send_shared(batch, self._rule(batch), self)
        return True

    def gap(self, count: int, next_offset: int, below: int) -> None:
        """Do nothing: MQTT has no word for it, and the group notifies the operator."""

    def flush(self) -> None:
        done, self._done = self._done, []
        for offset in done:
            self.acknowledge(offset)

    def acknowledge(self, offset: int) -> None:
        """The client has processed the message at this offset."""
        if self.member is not None:
            self._sender.broker().acknowledge_in_group(self.member, offset, offset + 1)

    def removed(self, by: str, reason: str) -> None:
        self._sender.broker().drop_shared(self._sender.table, self._filter.text)


def _payloads(batch: OutboundBatch) -> list[bytes]:
    """Return the messages of a batch, decoded once for all clients."""
    payloads: list[bytes] | None = batch.encodings.get(ENCODING)
    if payloads is None:
        payloads = batch.encodings[ENCODING] = payloads_of(batch.entry)
    return payloads
