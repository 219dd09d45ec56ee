"""A channel towards a subscriber: joins batches, names labels first, remembers what is unconfirmed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.world import World
from tests.wire.strategies import batches

from godwit.broker import lane as lanes
from godwit.broker.effects import Effect, Open, Send
from godwit.broker.lane import Lane, routed
from godwit.limits import MAX_CONTROL_RECORD_BYTES, RECORD_COST_BYTES
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


def a_lane() -> tuple[Lane, list[Effect]]:
    effects: list[Effect] = []
    return Lane(World().peer(), 3, effects), effects  # type: ignore[arg-type]


def sent(effects: list[Effect]) -> list[bytes]:
    return [effect.body for effect in effects if isinstance(effect, Send)]


@given(st.lists(batches().filter(lambda batch: batch.route is None), min_size=1, max_size=4))
def test_routed_batches_join_and_keep_what_they_hold(several: list[Batch]) -> None:
    record = b""
    for number, batch in enumerate(several):
        entry = entry_of(batch)
        record += b"".join(routed(entry, entry.flags, 5, 6, number))
    found = decode_batches(record)
    assert [batch.payloads for batch in found] == [batch.payloads for batch in several]
    assert [batch.deltas_us for batch in found] == [batch.deltas_us for batch in several]
    assert [batch.extension for batch in found] == [batch.extension for batch in several]
    assert [batch.route for batch in found] == [Route(5, 6, number, 77) for number in range(len(several))]


def add(lane: Lane, number: int, topic: int = 1, publisher: int = 2) -> None:
    entry = entry_of(Batch([b"%d" % number], 0))
    lane.introduce(topic, f"topic {topic}", publisher, f"publisher {publisher}")
    lane.add(*routed(entry, entry.flags, topic, publisher, number), number, number - 1, 1)


def test_a_channel_begins_with_whose_it_is() -> None:
    lane, effects = a_lane()
    size = lane.begin(9, live=True, offset=4, after=3)
    assert isinstance(effects[0], Open)
    (body,) = sent(effects)
    assert decode_control(body) == DeliveryOpen(subscription=9, live=True)
    assert size == len(body) + RECORD_COST_BYTES


def test_labels_stand_before_the_batches_that_use_them_and_are_said_once() -> None:
    lane, effects = a_lane()
    add(lane, 0)
    add(lane, 1)
    lane.cut()
    add(lane, 2)
    add(lane, 3, topic=8)
    lane.cut()
    first, batch, second, last = sent(effects)
    assert decode_in_band(first) == Labels(topics=[(1, "topic 1")], publishers=[(2, "publisher 2")])
    assert [one.payloads for one in decode_batches(batch)] == [[b"0"], [b"1"]]
    assert decode_in_band(second) == Labels(topics=[(8, "topic 8")])
    assert [one.payloads for one in decode_batches(last)] == [[b"2"], [b"3"]]


def test_very_many_labels_need_several_messages() -> None:
    lane, effects = a_lane()
    for number in range(400):
        lane.introduce(number, "\u20ac" * 300 + str(number), 1, "p")
    add(lane, 0)
    lane.cut()
    *labels, _ = sent(effects)
    assert len(labels) > 2
    assert all(is_in_band(body) and len(body) <= MAX_CONTROL_RECORD_BYTES for body in labels)
    said = [decode_in_band(body) for body in labels]
    numbers = [number for message in said if isinstance(message, Labels) for number, _ in message.topics]
    assert numbers[:400] == list(range(400))


def test_forgetting_says_what_waits_first_and_then_all_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MAX_LABELS", 2)
    lane, effects = a_lane()
    add(lane, 0)
    assert lane.labels_are_many
    lane.forget_labels()
    assert not lane.knows(1, 2)
    add(lane, 1)
    lane.cut()
    _, first, forget, second = sent(effects)
    assert decode_batches(first)[0].payloads == [b"0"]
    assert decode_in_band(forget) == Labels(topics=[(1, "topic 1")], publishers=[(2, "publisher 2")], forget=True)
    assert decode_batches(second)[0].payloads == [b"1"]


def test_a_message_in_band_stands_behind_what_waits() -> None:
    lane, effects = a_lane()
    add(lane, 0)
    lane.say(Gap(count=1, next_offset=2), 2, 1)
    _, batch, gap = sent(effects)
    assert decode_batches(batch)[0].payloads == [b"0"]
    assert decode_in_band(gap) == Gap(count=1, next_offset=2)


def test_confirms_free_what_they_cover() -> None:
    lane, effects = a_lane()
    lane.begin(1, live=False, offset=0, after=0)
    for number in range(3):
        add(lane, number)
        lane.cut()
    sizes = [len(body) + RECORD_COST_BYTES for body in sent(effects)]
    assert [size for *_, size, _ in lane.unconfirmed] == sizes
    assert lane.on_confirm(1) == sum(sizes[:2])
    assert lane.on_confirm(1) == 0
    assert lane.unconfirmed[0][1] == 0  # the first batch is not done yet
    assert lane.on_confirm(100) == sum(sizes[2:])
    assert lane.unconfirmed == []


def test_unreliable_records_are_neither_numbered_nor_waited_for() -> None:
    lane, effects = a_lane()
    add(lane, 0)
    lane.cut_unreliable()
    labels, batch = [effect for effect in effects if isinstance(effect, Send)]
    assert (labels.reliable, batch.reliable) == (True, False)
    assert len(lane.unconfirmed) == 1
    assert lane.next_record == 1
