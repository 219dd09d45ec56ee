"""One broker with one subscription against one with many: what is counted, never how fast it was."""

from __future__ import annotations

from godwit.broker.topics import check_filter
from godwit.wire.filters import matches
from godwit_bench.subscriptions import AT_ONCE, TOPIC, Hall, compare, filters


def test_the_others_are_valid_and_match_other_topics() -> None:
    others = list(filters(50))
    assert len(set(others)) == 50
    for pattern in others:
        check_filter(pattern)
        assert not matches(pattern, TOPIC)
    assert {"+", "#", "*"} <= {level for pattern in others for level in pattern.split("/")}


def test_batches_are_forwarded_and_confirmed() -> None:
    hall = Hall()
    before = hall.subscriber.records
    assert hall.forward(0.02) > 0
    assert hall.publisher.confirmed >= AT_ONCE
    assert hall.subscriber.records > before


def test_the_others_are_there_and_cost_no_message() -> None:
    hall = Hall()
    hall.add_others(1500)
    figures = hall.server.broker.figures()
    assert figures["subscriptions"] == 1501
    assert figures["clients/connected"] == 2 + 2
    assert len(hall.server.broker.overrun(1 << 60)) <= 1  # of the others none has anything left to confirm
    hall.forward(0.02)
    assert hall.server.broker.figures()["messages/in"] == hall.server.broker.figures()["messages/out"]


def test_rounds_are_interleaved() -> None:
    few, many = compare(50, rounds=2, seconds=0.02)
    assert len(few) == len(many) == 2
    assert min(few + many) > 0
