"""The ledger recognises what was published and nothing else; its filters mean what the specification says."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.broker_truth import Truth

from godwit_sim.broker_ledger import fits, fits_any
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
    assert [topic for topic in yes.split() if not fits(filter_text, topic)] == []
    assert [topic for topic in no.split() if fits(filter_text, topic)] == []
    assert all(fits_any(["nothing", filter_text], topic) for topic in yes.split())


def recognise(truth: Truth, publication: Any, **changes: Any) -> Any:
    fields = {
        "topic": publication.topic,
        "payload": publication.payload,
        "published_us": publication.published_us or 77,
        "qos": publication.qos,
        "publisher": publication.author.title(),
    }
    return truth.ledger.recognise("test", "here", **(fields | changes))


def test_what_was_published_is_recognised() -> None:
    truth = Truth()
    one, other, empty = truth.publish(), truth.publish(), truth.publish(payload=b"", retain=True)
    for publication in (one, other, empty):
        assert recognise(truth, publication) is publication
    assert [one.place, other.place, truth.publish(author="bob").place, truth.publish(qos=2).place] == [0, 1, 0, 0]
    assert truth.publish(source="identity").lane[0] == "identity"


def test_a_will_may_have_any_time() -> None:
    truth = Truth()
    will = truth.ledger.leave_will("bob", "a/b", b"I am dead", 0.0)
    assert recognise(truth, will) is will
    assert recognise(truth, will, published_us=12345) is will
    assert "will" in str(will)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"payload": b"else"}, "nobody published"),
        ({"payload": b""}, "0 bytes .* nobody published"),
        ({"topic": "a/c"}, "topic"),
        ({"qos": 2}, "QoS"),
        ({"published_us": 5}, "time"),
        ({"publisher": "Bob"}, "came from"),
    ],
)
def test_what_was_not_published_is_a_violation(changes: dict[str, Any], complaint: str) -> None:
    truth = Truth()
    with pytest.raises(ViolationError, match=complaint):
        recognise(truth, truth.publish(), **changes)
