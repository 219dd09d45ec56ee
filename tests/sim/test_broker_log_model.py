"""The model of published messages identifies exactly those; its filters follow the specification.

The checker of the log accepts a correct log and catches each planted fault.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.broker_models import Models

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


def identify(models: Models, publication: Any, **changes: Any) -> Any:
    fields = {
        "topic": publication.topic,
        "payload": publication.payload,
        "published_us": publication.published_us or 77,
        "qos": publication.qos,
        "publisher": publication.author.title(),
    }
    return models.published.identify("test", "here", **(fields | changes))


def test_published_messages_are_identified() -> None:
    models = Models()
    one, other, empty = models.publish(), models.publish(), models.publish(payload=b"", retain=True)
    for publication in (one, other, empty):
        assert identify(models, publication) is publication
    assert [one.position, other.position, models.publish(author="bob").position, models.publish(qos=2).position] == [
        0,
        1,
        0,
        0,
    ]
    assert models.publish(source="identity").order_key[0] == "identity"


def test_a_will_may_have_any_time() -> None:
    models = Models()
    will = models.published.add_will("bob", "a/b", b"I am dead", 0.0)
    assert identify(models, will) is will
    assert identify(models, will, published_us=12345) is will
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
def test_unpublished_messages_are_a_violation(changes: dict[str, Any], complaint: str) -> None:
    models = Models()
    with pytest.raises(ViolationError, match=complaint):
        identify(models, models.publish(), **changes)


def test_a_good_log() -> None:
    models = Models()
    one, other, retained = models.publish(), models.publish(), models.publish(retain=True)
    assert models.log.appended(0, [models.entry(one, other)]) == []
    assert models.log.appended(2, [models.entry(retained)]) == [retained]
    assert models.log.next_offset == 3
    assert [models.log.at(offset) for offset in (-1, 0, 1, 2, 3)] == [None, one, other, retained, None]
    assert models.log.matching(["a/+"], 0, 9) == [0, 1, 2]
    assert models.log.matching(["a/+"], 1, 2) == [1]
    assert models.log.matching(["b"], 0, 9) == []
    models.log.confirmed(one, 3.0)
    models.log.confirmed(one, 4.0)
    assert one.confirmed_s == 3.0


def test_qos_1_may_be_there_twice_and_wills_as_often_as_clients_die() -> None:
    models = Models()
    one, other = models.publish(), models.publish()
    will = models.published.add_will("bob", "a/b", b"dead", 0.0, qos=2)
    models.append(one, other, one, other, will, will)
    assert one.offsets == [0, 2]
    assert will.offsets == [4, 5]


def test_offsets_have_no_holes() -> None:
    models = Models()
    with pytest.raises(ViolationError, match="the next one was 0"):
        models.log.appended(1, [models.entry(models.publish())])


def test_qos_2_is_there_once() -> None:
    models = Models()
    one = models.publish(qos=2)
    models.append(one)
    with pytest.raises(ViolationError, match="there at 0 already"):
        models.append(one)


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_with_one_key_are_in_order(qos: int) -> None:
    models = Models()
    one, other, elsewhere = models.publish(qos=qos), models.publish(qos=qos), models.publish("b", qos=qos)
    models.append(elsewhere, other)
    with pytest.raises(ViolationError, match="out of order"):
        models.append(one)


def test_qos_0_is_not_logged_without_a_rule() -> None:
    models = Models()
    one = models.publish(qos=0)
    with pytest.raises(ViolationError, match="is in the log"):
        models.append(one)
    LogChecker(models.published, logs_qos_0=True).appended(0, [models.entry(models.publish(qos=0))])


def test_the_figures_of_the_broker_are_not_there() -> None:
    models = Models()
    with pytest.raises(ViolationError, match="is in the log"):
        models.logged("$sys/clients")


def test_a_confirm_needs_an_append() -> None:
    models = Models()
    models.log.confirmed(models.publish(qos=0), 0.0)
    with pytest.raises(ViolationError, match="not in the log"):
        models.log.confirmed(models.publish(), 0.0)


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
    models = Models()
    models.logged()
    with pytest.raises(ViolationError, match=complaint):
        models.append(models.publish(), **changes)


def test_a_restored_copy_has_its_old_contents() -> None:
    models = Models()
    kept = models.logged(qos=2)
    backup = models.log.copy()
    lost, again = models.logged(qos=2), models.logged(qos=2)
    models.log.confirmed(lost, 1.0)
    models.log.restore(backup)
    assert (models.log.next_offset, kept.offsets, lost.offsets) == (1, [0], [])
    models.log.confirmed(lost, 2.0)  # its confirm was in flight
    models.append(again)
    assert again.offsets == [1]
    (former,) = models.log.former
    assert former.same_below(models.log.history, 3) == 1
    assert former.same_below(models.log.history, 1) == 1
    with pytest.raises(ViolationError, match="is there at 1 already"):
        models.append(again)
