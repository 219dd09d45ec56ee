"""What leaves the log when, what is told of it, and that the file stops growing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import msgspec
import pytest
from tests.store.entries import LOG_ID, make_entry

from godwit.broker.effects import Losing
from godwit.broker.session import Session
from godwit.broker.subscription import BrokerSubscription, count_losses
from godwit.errors import DiskError
from godwit.limits import KIB, MIB
from godwit.store import retention
from godwit.store.block import encode_topic_index, make_row, secret_of
from godwit.store.retention import Deletion, Retention, RetentionRule
from godwit.store.schema import QUERIES
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry
from godwit.wire.retention_floors import BROKER_WIDE, lost_below

HOUR_US = 3_600_000_000
HOUR_S = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    yield opened
    opened.close()


def fill(store: SqliteStore, hours: int, topics: Sequence[str] = ("a",), payload: bytes = b"x") -> None:
    """A block an hour, with one message of each topic."""
    for hour in range(hours):
        store.append([make_entry(payload, topic=topic, received_us=hour * HOUR_US) for topic in topics])


def work_off(store: SqliteStore, rules: Sequence[RetentionRule], now_us: int) -> list[Deletion]:
    trimming = Retention(store, rules)
    told: list[Deletion] = []
    while (step := trimming.step(now_us)) is not None:
        told += step
    return told


def topics_at(store: SqliteStore) -> dict[int, str]:
    found = store.read(0, MIB)
    assert found.damaged == []
    return {offset: entry.topic for offset, entry in found.entries}


def counted(told: Sequence[Deletion]) -> dict[str, int]:
    """Messages of each topic that left, by what was told."""
    found: dict[str, int] = {}
    for trimmed in told:
        for _, entry in trimmed.entries:
            found[entry.topic] = found.get(entry.topic, 0) + entry.count
    return found


# -- the whole log ----------------------------------------------------------------------------------------------------


def test_without_limits_nothing_leaves(store: SqliteStore) -> None:
    fill(store, 3)
    assert Retention(store, []).step(10**18) is None
    assert Retention(store, [RetentionRule("a/#"), RetentionRule()]).step(10**18) is None
    assert len(topics_at(store)) == 3


def test_age(store: SqliteStore) -> None:
    fill(store, 5)
    told = work_off(store, [RetentionRule(max_age_s=2 * HOUR_S)], now_us=4 * HOUR_US)
    assert sorted(topics_at(store)) == [3, 4]
    assert [(trimmed.pattern, trimmed.floor) for trimmed in told] == [(BROKER_WIDE, 3), (None, 3)]
    assert told[0].entries == [
        (offset, Entry(topic="a", publisher="", flags=0, published_us=0, received_us=0, count=1, rest=b""))
        for offset in range(3)
    ]
    assert told[1].entries == []
    assert store.state().retention_floors == {BROKER_WIDE: 3}
    assert store.first_offset == 3


def test_age_may_empty_the_log_which_goes_on_where_it_was(store: SqliteStore) -> None:
    fill(store, 3)
    work_off(store, [RetentionRule(max_age_s=1.0)], now_us=10 * HOUR_US)
    assert (store.first_offset, store.next_offset) == (3, 3)
    assert store.append([make_entry(received_us=10 * HOUR_US)]) == 3
    assert Retention(store, [RetentionRule(max_age_s=1.0)]).step(10 * HOUR_US) is None


def test_what_is_not_due_yet_is_due_later(store: SqliteStore) -> None:
    fill(store, 2)
    trimming = Retention(store, [RetentionRule(max_age_s=HOUR_S)])
    assert trimming.step(HOUR_US - 1) is None
    assert trimming.step(HOUR_US) is not None
    assert trimming.step(HOUR_US) is None
    store.append([make_entry(received_us=2 * HOUR_US)])
    assert trimming.step(2 * HOUR_US) is not None
    assert trimming.step(3 * HOUR_US - 1) is None
    assert trimming.step(3 * HOUR_US) is not None
    assert store.first_offset == 3


def test_size_bounds_the_file_under_load(store: SqliteStore) -> None:
    """Several times the bound goes through; the file stays within the bound and a step."""
    max_bytes = 4 * MIB
    trimming = Retention(store, [RetentionRule(max_bytes=max_bytes)])
    payload = bytes(100 * KIB)
    longest = 0
    for round in range(200):
        store.append([make_entry(payload, received_us=round)])
        while trimming.step(round) is not None:
            pass
        if round % 10 == 0:
            store.checkpoint(truncate=True)
            longest = max(longest, store.path.stat().st_size)
    assert max_bytes * 0.9 < longest <= max_bytes + MIB
    assert store.next_offset == 200
    kept = store.read(store.first_offset, 100 * MIB)
    assert 30 <= len(kept.entries) <= 41
    assert (kept.next_offset, kept.damaged) == (200, [])
    assert store.state().retention_floors == {BROKER_WIDE: store.first_offset}


def test_small_messages_do_not_let_the_file_grow_either(store: SqliteStore) -> None:
    max_bytes = 512 * KIB
    trimming = Retention(store, [RetentionRule(max_bytes=max_bytes)])
    for round in range(800):
        store.append([make_entry(bytes(800), received_us=round)])
        if round % 10 == 0:
            while trimming.step(round) is not None:
                pass
    store.checkpoint(truncate=True)
    assert store.path.stat().st_size <= max_bytes + 128 * KIB
    assert 150 < store.next_offset - store.first_offset < 600


def test_nothing_is_deleted_from_the_held_offset_on(store: SqliteStore) -> None:
    """For a bridge whose hub does not have these messages yet."""
    fill(store, 10, payload=b"x" * 200 * KIB)
    held = [4]
    for rule in (RetentionRule(max_age_s=HOUR_S), RetentionRule(max_bytes=MIB), RetentionRule("a", max_bytes=1)):
        trimming = Retention(store, [rule], hold=lambda: held[0])
        while trimming.step(20 * HOUR_US) is not None:
            pass
        assert store.first_offset == held[0]
        held[0] += 1
    trimming = Retention(store, [RetentionRule(max_age_s=HOUR_S)], hold=lambda: None)
    while trimming.step(20 * HOUR_US) is not None:
        pass
    assert store.first_offset == store.next_offset


def test_size_leaves_the_newest_block(store: SqliteStore) -> None:
    store.append([make_entry(bytes(MIB))])
    store.append([make_entry(bytes(2 * MIB))])
    assert counted(work_off(store, [RetentionRule(max_bytes=1)], now_us=0)) == {"a/b": 1}
    assert (store.first_offset, store.next_offset) == (1, 2)


def test_a_step_is_bounded(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 10, payload=bytes(10 * KIB))
    monkeypatch.setattr(retention, "STEP_DELETED_BYTES", 30 * KIB)
    trimming = Retention(store, [RetentionRule(max_age_s=1.0)])
    steps = []
    while (told := trimming.step(100 * HOUR_US)) is not None:
        steps.append(sum(counted(told).values()))
    assert max(steps) == 2
    assert sum(steps) == 10


def test_a_step_looks_at_few_blocks(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 20, topics=["kept"])
    fill(store, 20, topics=["a", "b", "c"])
    monkeypatch.setattr(retention, "STEP_BLOCKS", 8)
    monkeypatch.setattr(retention, "STEP_SHARES", 10)
    told = work_off(
        store,
        [RetentionRule("kept"), RetentionRule("c", max_bytes=3), RetentionRule(max_age_s=HOUR_S)],
        now_us=1000 * HOUR_US,
    )
    assert counted(told) == {"c": 17, "a": 20, "b": 20}
    assert set(topics_at(store).values()) == {"kept", "c"}


# -- by topics --------------------------------------------------------------------------------------------------------


def test_the_first_rule_that_matches_decides(store: SqliteStore) -> None:
    fill(store, 6, topics=["alarms/fire", "debug/x", "other"])
    rules = [
        RetentionRule("alarms/#"),
        RetentionRule("debug/#", max_age_s=HOUR_S),
        RetentionRule("#", max_age_s=3 * HOUR_S),
    ]
    told = work_off(store, rules, now_us=5 * HOUR_US)
    left = topics_at(store)
    assert [offset for offset, topic in left.items() if topic == "alarms/fire"] == [0, 3, 6, 9, 12, 15]
    assert [offset for offset, topic in left.items() if topic == "debug/x"] == [16]
    assert [offset for offset, topic in left.items() if topic == "other"] == [11, 14, 17]
    assert counted(told) == {"debug/x": 5, "other": 3}
    assert None not in {trimmed.pattern for trimmed in told}  # the log begins where it began


def test_marks_say_what_may_be_missing_and_no_more(store: SqliteStore) -> None:
    fill(store, 6, topics=["alarms/fire", "debug/x", "other"])
    rules = [
        RetentionRule("alarms/#", max_age_s=100 * HOUR_S),
        RetentionRule("debug/#", max_age_s=HOUR_S),
        RetentionRule(max_age_s=3 * HOUR_S),
    ]
    told = work_off(store, rules, now_us=5 * HOUR_US)
    marks = store.state().retention_floors
    assert lost_below(marks, ["alarms/#"]) == 0
    assert lost_below(marks, ["debug/x"]) == 15
    assert lost_below(marks, ["other"]) == 9
    assert lost_below(marks, ["#"]) == 15
    heard: dict[str, int] = {}
    for trimmed in told:
        assert trimmed.pattern is not None
        heard[trimmed.pattern] = trimmed.floor
    assert heard == {key: floor for key, floor in marks.items() if floor}


def test_a_whole_block_of_one_rule_is_deleted_whole(store: SqliteStore) -> None:
    for hour, topic in enumerate(["debug/x", "other", "debug/x"]):
        store.append([make_entry(topic=topic, received_us=hour * HOUR_US)])
    told = work_off(store, [RetentionRule("debug/#", max_age_s=1.0)], now_us=9 * HOUR_US)
    assert topics_at(store) == {1: "other"}
    assert (store.first_offset, store.next_offset) == (1, 3)
    assert told[-1] == Deletion(None, 1, [])


def test_bytes_of_topics(store: SqliteStore) -> None:
    fill(store, 10, topics=["big/1", "small"], payload=bytes(1000))
    told = work_off(store, [RetentionRule("big/#", max_bytes=3500)], now_us=0)
    left = topics_at(store)
    assert [offset for offset, topic in left.items() if topic == "big/1"] == [14, 16, 18]
    assert len(left) == 13
    assert counted(told) == {"big/1": 7}


def test_bytes_are_counted_on_under_load(store: SqliteStore) -> None:
    trimming = Retention(store, [RetentionRule("big/#", max_bytes=5000)])
    for hour in range(40):
        store.append([make_entry(bytes(1000), topic=topic, received_us=hour) for topic in ("big/1", "small")])
        while trimming.step(hour) is not None:
            pass
    left = list(topics_at(store).values())
    assert left.count("big/1") == 5
    assert left.count("small") == 40


def test_the_size_of_the_file_comes_before_every_rule(store: SqliteStore) -> None:
    for _ in range(20):
        store.append([make_entry(bytes(100 * KIB), topic="alarms/x")])
    told = work_off(store, [RetentionRule("alarms/#"), RetentionRule(max_bytes=MIB)], now_us=0)
    assert 0 < store.first_offset < 20
    assert lost_below(store.state().retention_floors, ["alarms/x"]) == store.first_offset
    assert told[-1].pattern is None


def test_a_rewritten_block_keeps_what_it_says(store: SqliteStore) -> None:
    entries = [
        make_entry(b"1", b"2", topic="keep/1", received_us=5, sequence=7, epoch=3, qos=2),
        make_entry(b"3", topic="drop/1", received_us=6),
        make_entry(b"4", topic="keep/2", publisher="you", received_us=7, extension=b"more"),
    ]
    store.append(entries)
    work_off(store, [RetentionRule("drop/#", max_age_s=1.0)], now_us=HOUR_US)
    assert store.read(0, MIB).entries == [(0, entries[0]), (3, entries[2])]
    assert store.offset_at(6) == 3
    assert Retention(store, [RetentionRule("keep/#", max_bytes=10**9)]).step(0) is None


def test_rules_come_and_go(store: SqliteStore) -> None:
    """A new rule answers for what a wider one deleted before; the mark of an old one rises with its topics."""
    fill(store, 6, topics=["debug/x", "other"])
    work_off(store, [RetentionRule(max_age_s=4 * HOUR_S)], now_us=5 * HOUR_US)
    assert store.state().retention_floors == {BROKER_WIDE: 4}
    work_off(
        store, [RetentionRule("debug/#", max_age_s=9 * HOUR_S), RetentionRule(max_age_s=3 * HOUR_S)], now_us=5 * HOUR_US
    )
    assert store.state().retention_floors == {BROKER_WIDE: 6, "debug/#": 4}
    assert lost_below(store.state().retention_floors, ["debug/x"]) == 4
    work_off(store, [RetentionRule(max_age_s=2 * HOUR_S)], now_us=5 * HOUR_US)
    assert lost_below(store.state().retention_floors, ["debug/x"]) == 8


# -- when something is wrong ------------------------------------------------------------------------------------------


def test_a_damaged_block_goes_with_the_broker_wide_rule(store: SqliteStore) -> None:
    fill(store, 3, topics=["a", "b"])
    store.connection.execute("UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = 0")
    store.connection.execute("UPDATE blocks SET topics = x'00', body = x'00' WHERE first_offset = 2")
    work_off(store, [RetentionRule("a", max_age_s=1.0)], now_us=9 * HOUR_US)
    assert store.connection.execute("SELECT json_group_array(first_offset) FROM blocks").get == "[0,2,5]"
    work_off(store, [RetentionRule("a", max_age_s=1.0), RetentionRule(max_age_s=1.0)], now_us=9 * HOUR_US)
    assert store.first_offset == store.next_offset == 6


@pytest.mark.parametrize("damage", ["topics = x'00'", "until_us = 0", "end_offset = 5", "seal = 7"])
def test_a_damaged_row_deletes_nothing_that_is_intact(store: SqliteStore, damage: str) -> None:
    fill(store, 4, topics=["alarms/x", "other"])
    store.connection.execute(f"UPDATE blocks SET {damage} WHERE first_offset = 4")
    rules = [RetentionRule("alarms/#"), RetentionRule(max_age_s=HOUR_S)]
    assert counted(work_off(store, rules, now_us=2 * HOUR_US)) == {"other": 2}
    assert counted(work_off(store, rules, now_us=9 * HOUR_US)) == {"other": 2}
    assert store.state().retention_floors[BROKER_WIDE] == 8
    assert topics_at(store) == dict.fromkeys([0, 2, 4, 6], "alarms/x")


def test_a_row_of_which_nothing_is_left_goes_with_the_one_before_it(store: SqliteStore) -> None:
    fill(store, 4)
    store.connection.execute(
        "UPDATE blocks SET until_us = 2000000000000, body = x'00', seal = 0 WHERE first_offset = 1"
    )
    work_off(store, [RetentionRule(max_age_s=HOUR_S)], now_us=2 * HOUR_US)
    assert store.connection.execute("SELECT min(first_offset), max(first_offset) FROM blocks").get == (2, 3)


def test_a_range_that_was_lost_goes_with_its_age(store: SqliteStore) -> None:
    row = make_row(0, 10, 1, 1, encode_topic_index([]), b"")
    store.connection.execute(QUERIES["insert_block"], msgspec.structs.astuple(row))
    assert counted(work_off(store, [RetentionRule(max_age_s=1.0)], now_us=HOUR_US)) == {}
    assert store.connection.execute("SELECT count(*) FROM blocks").get == 0


def test_a_step_that_fails_changes_nothing(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full: a later step does what this one could not."""
    fill(store, 4, topics=["a", "b"], payload=bytes(100))
    before = topics_at(store)
    assert Retention(store, [RetentionRule("a", max_bytes=MIB)]).step(0) is None
    trimming = Retention(store, [RetentionRule("a", max_bytes=100)])

    def fail(*_: object) -> None:
        raise apsw.FullError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(retention, "store_floor", fail)
        for _ in range(2):
            with pytest.raises(DiskError, match="the disk is full"):
                trimming.step(0)
    assert topics_at(store) == before
    told: list[Deletion] = []
    while (step := trimming.step(0)) is not None:
        told += step
    assert counted(told) == {"a": 3}
    assert topics_at(store) == {offset: topic for offset, topic in before.items() if topic == "b" or offset == 6}


def test_two_rules_for_the_whole_log_are_refused(store: SqliteStore) -> None:
    with pytest.raises(ValueError, match="more than one rule"):
        Retention(store, [RetentionRule(max_age_s=1.0), RetentionRule(max_bytes=1)])


# -- what is told -----------------------------------------------------------------------------------------------------


def mixed_block(store: SqliteStore) -> None:
    """One block: 50 messages of a topic, then 10 of another."""
    store.append([make_entry(*[b"b"] * 50, topic="b"), make_entry(*[b"a"] * 10, topic="a")])


@pytest.mark.parametrize(
    "rules", [[RetentionRule(max_age_s=1.0)], [RetentionRule("a", max_age_s=1.0), RetentionRule()]]
)
def test_who_stands_within_a_block_hears_of_what_it_loses(store: SqliteStore, rules: list[RetentionRule]) -> None:
    """A subscriber has received 4 of the 10 messages: it loses 6, whatever precedes them in the block."""
    mixed_block(store)
    told = work_off(store, rules, now_us=HOUR_US)
    losing = next(each for each in told if each.entries)
    feed = BrokerSubscription(1, Session("me", 1, is_remembered=True), ("a",), None, 54)
    left = Losing(losing.entries, losing.floor, losing.pattern)
    count_losses(left, {feed: feed.resume_at}, lambda topic: [feed] * (topic == "a"))
    assert feed.lost == 6


def test_nothing_is_deleted_that_cannot_be_told(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the log begins then is asked before the end of the transaction."""
    mixed_block(store)
    asked: list[bool] = []
    first_offset: property = vars(SqliteStore)["first_offset"]

    def ask(asking: SqliteStore) -> object:
        asked.append(asking.connection.in_transaction)
        return first_offset.__get__(asking)

    monkeypatch.setattr(SqliteStore, "first_offset", property(ask))
    work_off(store, [RetentionRule(max_age_s=1.0)], now_us=HOUR_US)
    assert asked == [False, True]


def test_a_log_that_was_moved_is_not_trimmed(store: SqliteStore) -> None:
    mixed_block(store)
    store.path.rename(store.path.with_name("moved"))
    with pytest.raises(DiskError, match="was moved or deleted"):
        work_off(store, [RetentionRule(max_age_s=1.0)], now_us=HOUR_US)


def test_a_rewritten_block_has_the_stamp(store: SqliteStore) -> None:
    mixed_block(store)
    work_off(store, [RetentionRule("a", max_age_s=1.0), RetentionRule()], now_us=HOUR_US)
    assert secret_of(store.connection.execute("SELECT body FROM blocks").get) == store.log_secret
