"""One broker with one subscription against one with many: the counts, never how fast."""

from __future__ import annotations

from godwit.broker.topics import check_filter
from godwit.wire.filters import matches
from godwit_bench.subscriptions import AT_ONCE, TOPIC, InProcessBroker, compare, filters


def test_the_others_are_valid_and_match_other_topics() -> None:
    others = list(filters(50))
    assert len(set(others)) == 50
    for pattern in others:
        check_filter(pattern)
        assert not matches(pattern, TOPIC)
    assert {"+", "#", "*"} <= {level for pattern in others for level in pattern.split("/")}


def test_batches_are_forwarded_and_confirmed() -> None:
    broker = InProcessBroker()
    before = broker.subscriber.records
    assert broker.forward(0.02) > 0
    assert broker.publisher.confirmed >= AT_ONCE
    assert broker.subscriber.records > before


def test_the_others_are_there_and_cost_no_message() -> None:
    broker = InProcessBroker()
    broker.add_others(1500)
    figures = broker.server.broker.figures()
    assert figures["subscriptions"] == 1501
    assert figures["clients/connected"] == 2 + 2
    assert len(broker.server.broker.overrun(1 << 60)) <= 1  # none of the others has anything left to confirm
    broker.forward(0.02)
    assert broker.server.broker.figures()["messages/in"] == broker.server.broker.figures()["messages/out"]


def test_rounds_are_interleaved() -> None:
    few, many = compare(50, rounds=2, seconds=0.02)
    assert len(few) == len(many) == 2
    assert min(few + many) > 0
