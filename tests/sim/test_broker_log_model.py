"""The ledger recognises what was published and nothing else; its filters mean what the specification says.

The checker of the log accepts a good log and catches each planted fault.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.broker_models import Truth

from godwit_sim.broker_log_model import LogChecker, matches_any, matches_filter
from godwit_sim.checkers import ViolationError


@pytest.mark.parametrize(
    ("filter_text", "yes", "no"),
    [
        ("home/bedroom/*", "home/bedroom/fan home/bedroom/window/blind", "home/bedroom home/floor1/bedroom"),
        ("*/temperature", "home/room1/temperature garage/temperature", "home/temperature/sensor temperature/sensor"),
        (
            "home/*/temperature",
            "home/anyroom/temperature home/floor1/room1/temperature",
            "home/room/temperature/sensor houses/home/room/temperature home/temperature",
        ),
        ("sport/tennis/+", "sport/tennis/player1", "sport/tennis/player1/ranking sport/tennis"),
        ("sport/#", "sport sport/ sport/a/b", "sports"),
        ("+/+", "/finance a/b", "finance a/b/c"),
        ("/+", "/finance", "finance"),
        ("#", "a a/b /", "$sys/x"),
        ("*", "a a/b /", "$sys/x"),
        ("+/x", "a/x", "$sys/x a"),
        ("$sys/#", "$sys $sys/x", "sys"),
        ("*/b/*", "a/b/c a/x/b/y/z a/b/b/c", "a/b b/c"),
        ("a//b", "a//b", "a/b"),
        ("A", "A", "a"),
    ],
)
def test_filters(filter_text: str, yes: str, no: str) -> None:
    assert [topic for topic in yes.split() if not matches_filter(filter_text, topic)] == []
    assert [topic for topic in no.split() if matches_filter(filter_text, topic)] == []
    assert all(matches_any(["nothing", filter_text], topic) for topic in yes.split())


def identify(truth: Truth, publication: Any, **changes: Any) -> Any:
    fields = {
        "topic": publication.topic,
        "payload": publication.payload,
        "published_us": publication.published_us or 77,
        "qos": publication.qos,
        "publisher": publication.author.title(),
    }
    return truth.published.identify("test", "here", **(fields | changes))


def test_what_was_published_is_recognised() -> None:
    truth = Truth()
    one, other, empty = truth.publish(), truth.publish(), truth.publish(payload=b"", retain=True)
    for publication in (one, other, empty):
        assert identify(truth, publication) is publication
    assert [one.position, other.position, truth.publish(author="bob").position, truth.publish(qos=2).position] == [
        0,
        1,
        0,
        0,
    ]
    assert truth.publish(source="identity").order_key[0] == "identity"


def test_a_will_may_have_any_time() -> None:
    truth = Truth()
    will = truth.published.add_will("bob", "a/b", b"I am dead", 0.0)
    assert identify(truth, will) is will
    assert identify(truth, will, published_us=12345) is will
    assert "will" in str(will)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"payload": b"else"}, "never published"),
        ({"payload": b""}, "0 bytes .* never published"),
        ({"topic": "a/c"}, "topic"),
        ({"qos": 2}, "QoS"),
        ({"published_us": 5}, "time"),
        ({"publisher": "Bob"}, "came from"),
    ],
)
def test_what_was_not_published_is_a_violation(changes: dict[str, Any], complaint: str) -> None:
    truth = Truth()
    with pytest.raises(ViolationError, match=complaint):
        identify(truth, truth.publish(), **changes)


def test_a_good_log() -> None:
    truth = Truth()
    one, other, retained = truth.publish(), truth.publish(), truth.publish(retain=True)
    assert truth.log.appended(0, [truth.entry(one, other)]) == []
    assert truth.log.appended(2, [truth.entry(retained)]) == [retained]
    assert truth.log.next_offset == 3
    assert [truth.log.at(offset) for offset in (-1, 0, 1, 2, 3)] == [None, one, other, retained, None]
    assert truth.log.matching(["a/+"], 0, 9) == [0, 1, 2]
    assert truth.log.matching(["a/+"], 1, 2) == [1]
    assert truth.log.matching(["b"], 0, 9) == []
    truth.log.confirmed(one, 3.0)
    truth.log.confirmed(one, 4.0)
    assert one.confirmed_s == 3.0


def test_qos_1_may_be_there_twice_and_wills_as_often_as_clients_die() -> None:
    truth = Truth()
    one, other = truth.publish(), truth.publish()
    will = truth.published.add_will("bob", "a/b", b"dead", 0.0, qos=2)
    truth.append(one, other, one, other, will, will)
    assert one.offsets == [0, 2]
    assert will.offsets == [4, 5]


def test_offsets_have_no_holes() -> None:
    truth = Truth()
    with pytest.raises(ViolationError, match="the next one was 0"):
        truth.log.appended(1, [truth.entry(truth.publish())])


def test_qos_2_is_there_once() -> None:
    truth = Truth()
    one = truth.publish(qos=2)
    truth.append(one)
    with pytest.raises(ViolationError, match="there at 0 already"):
        truth.append(one)


@pytest.mark.parametrize("qos", [1, 2])
def test_lanes_are_in_order(qos: int) -> None:
    truth = Truth()
    one, other, elsewhere = truth.publish(qos=qos), truth.publish(qos=qos), truth.publish("b", qos=qos)
    truth.append(elsewhere, other)
    with pytest.raises(ViolationError, match="out of order"):
        truth.append(one)


def test_qos_0_is_not_there_unless_a_rule_says_so() -> None:
    truth = Truth()
    one = truth.publish(qos=0)
    with pytest.raises(ViolationError, match="is in the log"):
        truth.append(one)
    LogChecker(truth.published, logs_qos_0=True).appended(0, [truth.entry(truth.publish(qos=0))])


def test_the_figures_of_the_broker_are_not_there() -> None:
    truth = Truth()
    with pytest.raises(ViolationError, match="is in the log"):
        truth.logged("$sys/clients")


def test_a_confirm_needs_an_append() -> None:
    truth = Truth()
    truth.log.confirmed(truth.publish(qos=0), 0.0)
    with pytest.raises(ViolationError, match="not in the log"):
        truth.log.confirmed(truth.publish(), 0.0)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topic": "elsewhere"}, "topic"),
        ({"publisher": "Mallory"}, "came from"),
        ({"flags": 0x81}, "QoS"),
        ({"flags": 0x45}, "retain=False"),
        ({"published_us": 7}, "time"),
        ({"count": 2}, "counted as 2"),
        ({"rest": b"x"}, "never published"),
        ({"rest": b"x", "flags": 0x40}, "an invalid batch"),
        ({"received_us": 1}, "after one at"),
    ],
)
def test_changed_entries_are_caught(changes: dict[str, Any], complaint: str) -> None:
    truth = Truth()
    truth.logged()
    with pytest.raises(ViolationError, match=complaint):
        truth.append(truth.publish(), **changes)


def test_a_copy_that_is_put_back_has_what_it_had() -> None:
    truth = Truth()
    kept = truth.logged(qos=2)
    backup = truth.log.copy()
    lost, again = truth.logged(qos=2), truth.logged(qos=2)
    truth.log.confirmed(lost, 1.0)
    truth.log.restore(backup)
    assert (truth.log.next_offset, kept.offsets, lost.offsets) == (1, [0], [])
    truth.log.confirmed(lost, 2.0)  # its confirm was on its way
    truth.append(again)
    assert again.offsets == [1]
    (former,) = truth.log.former
    assert former.same_below(truth.log.history, 3) == 1
    assert former.same_below(truth.log.history, 1) == 1
    with pytest.raises(ViolationError, match="is there at 1 already"):
        truth.append(again)
