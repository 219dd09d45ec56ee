"""A channel towards a subscriber: joins batches, introduces labels before their use, remembers unconfirmed records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.world import World
from tests.wire.strategies import batches

from godwit.broker.catalogue import Topic
from godwit.broker.effects import Effect
from godwit.broker.ports import OutboundBatch
from godwit.broker.settings import Settings
from godwit.limits import MAX_CONTROL_RECORD_BYTES, RECORD_COST_BYTES
from godwit.native import subscriber_channel
from godwit.native.effects import OpenChannel, SendRecord
from godwit.native.peer import NativePeer
from godwit.native.subscriber_channel import SubscriberChannel, encode_routed
from godwit.wire.batch import Batch, Entry, Route, decode_batches, decode_head, encode_batch
from godwit.wire.control import DeliveryOpen, Gap, Labels, decode_control, decode_in_band, is_in_band


def entry_of(batch: Batch, topic: str = "t", publisher: str = "p") -> Entry:
    record = encode_batch(batch)
    head = decode_head(record)
    rest = record[head.rest_at : head.end]
    return Entry(
        topic=topic,
        publisher=publisher,
        flags=head.flags & ~0x18,
        published_us=head.published_us,
        received_us=77,
        sequence=head.sequence,
        count=head.count,
        rest=rest,
    )


def outbound(batch: Batch, offset: int, topic: int = 1, publisher: int = 2, name: str = "") -> OutboundBatch:
    entry = entry_of(batch, publisher=f"publisher {publisher}")
    named = Topic(name or f"topic {topic}", topic, Settings())
    return OutboundBatch(named, publisher, entry, entry.flags, offset, offset + entry.count)


class Stand:
    """A channel of subscription 9, and what it sends."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.peer = NativePeer(World().peer(), 1_000_000, self.effects)
        self.channel = SubscriberChannel(self.peer, self.effects, DeliveryOpen(subscription=9, live=True))

    def add(self, number: int, topic: int = 1, publisher: int = 2) -> None:
        batch = outbound(Batch([b"%d" % number], 0), number, topic, publisher)
        self.channel.introduce(batch)
        self.channel.add(*encode_routed(batch, number))
        self.channel.sent_below = number + 1

    @property
    def sent(self) -> list[bytes]:
        return [effect.body for effect in self.effects if isinstance(effect, SendRecord)]


@given(st.lists(batches().filter(lambda batch: batch.route is None), min_size=1, max_size=4))
def test_routed_batches_join_and_keep_their_contents(several: list[Batch]) -> None:
    record = b""
    for number, batch in enumerate(several):
        head, rest, size = encode_routed(outbound(batch, 99, 5, 6), number)
        assert size == len(head + rest)
        record += head + rest
    found = decode_batches(record)
    assert [batch.payloads for batch in found] == [batch.payloads for batch in several]
    assert [batch.deltas_us for batch in found] == [batch.deltas_us for batch in several]
    assert [batch.extension for batch in found] == [batch.extension for batch in several]
    assert [batch.route for batch in found] == [Route(5, 6, number, 77) for number in range(len(several))]


def test_record_0_names_the_subscription() -> None:
    stand = Stand()
    assert isinstance(stand.effects[0], OpenChannel)
    (body,) = stand.sent
    assert decode_control(body) == DeliveryOpen(subscription=9, live=True)
    assert stand.peer.unconfirmed_bytes == stand.channel.held_bytes == len(body) + RECORD_COST_BYTES


def test_labels_are_introduced_once_before_the_batches_that_use_them() -> None:
    stand = Stand()
    stand.add(0)
    stand.add(1)
    stand.channel.cut()
    stand.add(2)
    stand.add(3, topic=8)
    stand.channel.cut()
    _, first, batch, second, last = stand.sent
    assert decode_in_band(first) == Labels(topics=[(1, "topic 1")], publishers=[(2, "publisher 2")])
    assert [one.payloads for one in decode_batches(batch)] == [[b"0"], [b"1"]]
    assert decode_in_band(second) == Labels(topics=[(8, "topic 8")])
    assert [one.payloads for one in decode_batches(last)] == [[b"2"], [b"3"]]


def test_very_many_labels_need_several_messages() -> None:
    stand = Stand()
    for number in range(400):
        stand.channel.introduce(outbound(Batch([b""], 0), 0, number, 1, "\u20ac" * 300 + str(number)))
    stand.add(0)
    stand.channel.cut()
    _, *labels, _ = stand.sent
    assert len(labels) > 2
    assert all(is_in_band(body) and len(body) <= MAX_CONTROL_RECORD_BYTES for body in labels)
    messages = [decode_in_band(body) for body in labels]
    numbers = [number for message in messages if isinstance(message, Labels) for number, _ in message.topics]
    assert numbers[:400] == list(range(400))


def test_too_many_labels_are_forgotten_after_the_batches_that_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber_channel, "MAX_LABELS", 2)
    stand = Stand()
    stand.add(0)
    stand.add(1)
    stand.channel.cut()
    _, _, first, forget, second = stand.sent
    assert decode_batches(first)[0].payloads == [b"0"]
    assert decode_in_band(forget) == Labels(topics=[(1, "topic 1")], publishers=[(2, "publisher 2")], forget=True)
    assert decode_batches(second)[0].payloads == [b"1"]


def test_a_message_in_band_follows_the_batches_before_it() -> None:
    stand = Stand()
    stand.add(0)
    stand.channel.send_message(Gap(count=1, next_offset=2), gaps=1)
    _, _, batch, gap = stand.sent
    assert decode_batches(batch)[0].payloads == [b"0"]
    assert decode_in_band(gap) == Gap(count=1, next_offset=2)
    assert stand.channel.handle_confirm(9) == (1, 1)


def test_confirms_free_the_records_that_they_cover() -> None:
    stand = Stand()
    channel = stand.channel
    for number in range(3):
        stand.add(number)
        channel.cut()
    sizes = [len(body) + RECORD_COST_BYTES for body in stand.sent]
    assert [size for _, _, size, _ in channel.unconfirmed] == sizes
    assert channel.handle_confirm(1) == (0, 0)  # the labels: the first batch is not confirmed yet
    assert stand.peer.unconfirmed_bytes == channel.held_bytes == sum(sizes[2:])
    assert channel.handle_confirm(1) == (0, 0)
    assert channel.handle_confirm(2) == (1, 0)
    assert channel.handle_confirm(100) == (3, 0)
    assert (channel.unconfirmed, stand.peer.unconfirmed_bytes) == ([], 0)


def test_unreliable_records_are_neither_numbered_nor_waited_for() -> None:
    stand = Stand()
    stand.add(0)
    stand.channel.cut_unreliable()
    _, labels, batch = [effect for effect in stand.effects if isinstance(effect, SendRecord)]
    assert (labels.reliable, batch.reliable) == (True, False)
    assert len(stand.channel.unconfirmed) == stand.channel.next_record == 2
