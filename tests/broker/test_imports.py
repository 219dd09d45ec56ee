"""Staged messages: each batch of a query once, whole, as if a publisher had sent them."""

from __future__ import annotations

import pytest
from tests.broker.durable import FULL, DurableWorld

from godwit.broker import imports
from godwit.broker.access import Access, TokenRights
from godwit.broker.effects import Import, Imported
from godwit.broker.settings import Settings
from godwit.limits import MAX_BATCH_MESSAGES
from godwit.wire import control as c
from godwit.wire.batch import LONE, QOS_SHIFT, RETAIN, Entry, make_entry
from godwit.wire.extension import encode_extension

ONE = LONE | 1 << QOS_SHIFT


def entry(payload: bytes, topic: str = "alerts", publisher: str = "spark", flags: int = ONE, count: int = 1) -> Entry:
    return Entry(
        topic=topic, publisher=publisher, flags=flags, published_us=7, received_us=0, count=count, rest=payload
    )


def bring(world: DurableWorld, batch: int, *entries: Entry, query: str = "q", key: int = 1) -> list[Imported]:
    world.server.import_staged(Import(key, query, batch, list(entries)))
    world.run()
    return answers(world)


def answers(world: DurableWorld) -> list[Imported]:
    imported = world.server.imported[:]
    world.server.imported.clear()
    return imported


def test_they_are_appended_once_and_delivered() -> None:
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    alice.publish(alice.open("other"), b"0")
    bob.subscribe("alerts")
    staged = [entry(b"a"), entry(b"b", publisher="else"), entry(b"c", flags=ONE | RETAIN)]
    assert bring(world, 4, *staged) == [Imported(1, first_offset=1, count=3)]
    assert [(got.payload, got.publisher, got.offset) for got in bob.got] == [
        (b"a", "spark", 1),
        (b"b", "else", 2),
        (b"c", "spark", 3),
    ]
    assert all(got.received_us == world.now_us and got.published_us == 7 for got in bob.got)
    for batch in (4, 3):
        assert bring(world, batch, entry(b"again"), key=2) == [Imported(2, was_known=True)]
    assert bring(world, 5, entry(b"d")) == [Imported(1, first_offset=4, count=1)]
    assert bring(world, 4, entry(b"x"), query="other") == [Imported(1, first_offset=5, count=1)]
    world.restart()
    assert bring(world, 5, entry(b"again")) == [Imported(1, was_known=True)]
    late = world.client("late")
    late.subscribe("alerts")
    assert late.payloads == [b"c"]


def test_a_malformed_extension_is_refused() -> None:
    world = DurableWorld()
    good = make_entry("alerts", "spark", [b"a"], qos=1, now_us=7, extension=encode_extension({300: 5}))
    bad = make_entry("alerts", "spark", [b"a"], qos=1, now_us=7, extension=b"\xff")
    (refused,) = bring(world, 1, good, bad)
    assert "'alerts' is not accepted: extension" in refused.problem
    assert bring(world, 1, good) == [Imported(1, count=1)]


def test_one_without_messages_is_done_and_not_remembered() -> None:
    """Nothing in it could be appended twice; and such batches must not fill the memory, or end a query."""
    world = DurableWorld()
    assert bring(world, 1, entry(b"a")) == [Imported(1, count=1)]
    assert bring(world, imports.LAST_BATCH) == [Imported(1)]
    assert bring(world, 0, query="other") == [Imported(1)]
    assert set(world.keeping.of("query")) == {"q"}
    assert bring(world, 2, entry(b"b")) == [Imported(1, first_offset=1, count=1)]
    assert bring(world, 1) == [Imported(1, was_known=True)]


@pytest.mark.parametrize("batch", [-1, imports.LAST_BATCH + 1, 2**63, 2**64])
def test_a_batch_number_out_of_range_is_refused(batch: int) -> None:
    world = DurableWorld()
    assert "2^53" in bring(world, batch, entry(b"a"))[0].problem
    assert world.keeping.next_offset == 0
    assert bring(world, imports.LAST_BATCH, entry(b"a")) == [Imported(1, count=1)]


def test_its_offset_is_behind_what_came_before_it_in_the_turn() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    channel = alice.open("news")
    world.hold()
    alice.publish(channel, b"0", b"1")
    alice.record(channel, b"\x41" + bytes(8) + b"2")
    world.handle_fed()
    assert bring(world, 1, entry(b"a")) == []
    assert bring(world, 1, entry(b"a"), key=2) == []  # what it repeats may not be safe yet
    world.commit()
    assert answers(world) == [Imported(1, first_offset=3, count=1), Imported(2, was_known=True)]


def test_one_that_failed_can_be_sent_again() -> None:
    world = DurableWorld()
    bob = world.client("bob")
    bob.subscribe("alerts")
    assert bring(world, 1, entry(b"a")) == [Imported(1, count=1)]
    world.keeping.is_full = True
    for batch in (2, 3):
        assert bring(world, batch, entry(b"b")) == [Imported(1, problem=FULL)]
    world.keeping.is_full = False
    world.pass_s(5)
    assert bring(world, 1, entry(b"a")) == [Imported(1, was_known=True)]
    assert bring(world, 2, entry(b"b")) == [Imported(1, first_offset=1, count=1)]
    assert bob.payloads == [b"a", b"b"]


def test_the_token_decides_about_names_and_topics_at_the_commit() -> None:
    access = Access(secrets={"pump": b"a secret of some length"}, rules=())
    world = DurableWorld(Settings(access=access))

    def staged(batch: int, rights: TokenRights, *entries: Entry) -> Imported:
        world.server.import_staged(Import(1, "q", batch, list(entries), rights))
        world.run()
        (answer,) = answers(world)
        return answer

    plain = TokenRights()
    refused = staged(1, plain, entry(b"a"), entry(b"b", publisher="pump"))
    assert "may not publish under the name 'pump', which has a secret" in refused.problem
    assert "may not publish to 'alerts'" in staged(1, TokenRights(publish=("home/#",)), entry(b"a")).problem
    assert world.keeping.next_offset == 0
    assert staged(1, plain, entry(b"a")) == Imported(1, count=1)
    assert staged(2, TokenRights(names=("pump",)), entry(b"b", publisher="pump")).count == 1
    world.server.change_settings(Settings(access=Access(secrets={"spark": b"a secret of some length"})))
    assert "'spark', which has a secret" in staged(3, plain, entry(b"c")).problem
    assert staged(3, plain, entry(b"c", publisher="pump")).count == 1


def test_topics_are_created_as_a_publisher_would() -> None:
    world = DurableWorld(Settings(policies=(("closed/#", "explicit"),), max_topics=3))
    assert bring(world, 1, entry(b"a", topic="new/one")) == [Imported(1, count=1)]
    problems = [
        *bring(world, 2, entry(b"a", topic="closed/one")),
        *bring(world, 2, entry(b"a", topic="bad/+")),
        *bring(world, 2, entry(b"a", topic="$sys/x")),
        *bring(world, 2, *[entry(b"a", topic=f"many/{number}") for number in range(5)]),
    ]
    assert ["does not exist" in problems[0].problem, "+" in problems[1].problem, "$" in problems[2].problem] == [
        True
    ] * 3
    assert "no room" in problems[3].problem
    assert world.keeping.next_offset == 1
    client = world.client()
    assert "new/one" in {topic.name for topic in client.expect(c.Topics(request=70), c.TopicList).topics}


@pytest.mark.parametrize(
    "bad",
    [
        entry(b"x" * 1001),
        entry(bytes(70_000)),
        entry(b"", count=MAX_BATCH_MESSAGES + 1),
        entry(b"", count=0),
        entry(b"x", publisher=""),
        entry(b"x", flags=LONE | 3 << QOS_SHIFT),
        Entry(topic="alerts", publisher="spark", flags=ONE, published_us=2**63, received_us=0, count=1, rest=b""),
    ],
)
def test_an_import_with_an_invalid_entry_is_refused_whole(bad: Entry) -> None:
    world = DurableWorld(Settings(max_message_bytes=1000))
    (answer,) = bring(world, 1, entry(b"fine"), bad)
    assert answer.problem
    assert world.keeping.next_offset == 0
    assert bring(world, 1, entry(b"fine")) == [Imported(1, count=1)]


def test_queries_have_names_and_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "MAX_QUERIES", 2)
    world = DurableWorld()
    assert "query" in bring(world, 1, query="x" * 300)[0].problem
    assert [bring(world, 1, entry(b"x"), query=name)[0].problem for name in ("a", "b")] == ["", ""]
    assert "no room" in bring(world, 1, entry(b"x"), query="c")[0].problem
    assert bring(world, 2, entry(b"x"), query="a")[0].count == 1


def test_the_query_that_was_silent_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only when it was silent for long: a repeat of its last batch would not be known any more."""
    monkeypatch.setattr(imports, "MAX_QUERIES", 2)
    world = DurableWorld()
    bring(world, 7, entry(b"x"), query="old")
    world.pass_s(60)
    bring(world, 7, entry(b"x"), query="used")
    world.pass_s(imports.QUERY_EXPIRY_US // 1_000_000 - 61)
    assert "no room" in bring(world, 1, entry(b"x"), query="new")[0].problem
    world.restart(after_s=2)
    assert bring(world, 1, entry(b"x"), query="new")[0].problem == ""
    assert set(world.keeping.of("query")) == {"used", "new"}
    assert bring(world, 7, entry(b"x"), query="used") == [Imported(1, was_known=True)]
    assert "no room" in bring(world, 8, entry(b"x"), query="old")[0].problem


def test_one_that_fails_with_an_older_append_leaves_nothing_behind() -> None:
    """It came in the turn in which the log said that the one before had failed, and was not under way yet."""
    world = DurableWorld()
    broker = world.server.broker
    world.hold()
    assert bring(world, 1, entry(b"x"), query="other") == []
    broker.handle(Import(2, "mine", 7, [entry(b"x")]), world.now_us)
    world.fail()
    assert [(answer.key, answer.problem) for answer in answers(world)] == [(1, FULL), (2, FULL)]
    world.pass_s(5)
    assert world.keeping.of("query") == {}
    assert bring(world, 7, entry(b"x"), query="mine") == [Imported(1, count=1)]


def test_queries_whose_first_batch_failed_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "MAX_QUERIES", 1)
    world = DurableWorld()
    world.keeping.is_full = True
    assert bring(world, 1, entry(b"x"), query="a")[0].problem == FULL
    world.keeping.is_full = False
    world.pass_s(5)
    assert bring(world, 1, entry(b"x"), query="b")[0].problem == ""
