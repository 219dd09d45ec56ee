"""The state of a subscription: what it matches, what is processed, when it is quiet, what it misses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.durable import DurableWorld, KeepingStore
from tests.broker.world import Peer, World

from godwit.broker.dirty_state import SAVED_AT_ONCE
from godwit.broker.effects import Losing
from godwit.broker.session import Session
from godwit.broker.subscription import IDLE_SWEEPS, BrokerSubscription, QuietSubscriptions, count_losses
from godwit.store.port import Store
from godwit.transport.events import ChannelConfirmed
from godwit.wire import control as c
from godwit.wire.batch import Entry
from godwit.wire.changes import Change, SubscriptionRow
from godwit.wire.filters import matches


def test_it_matches_by_any_of_its_filters() -> None:
    feed = BrokerSubscription(0, Session("bob", 1, is_remembered=True), ("a/+", "b"), None, 0)
    assert feed.matches("a/x")
    assert feed.matches("b")
    assert not feed.matches("a")


def test_what_is_processed_follows_the_oldest_message_that_is_not_acknowledged() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news", number=1)
    channel = alice.open("news")
    (feed,) = world.server.broker.sessions["bob"].subscriptions.values()
    assert feed.is_live
    alice.publish(alice.open("other"), b"x")
    assert feed.done_below(world.store.next_offset) == 1  # nothing is under way: what was not for it counts as done
    bob.confirms_itself = False
    alice.publish(channel, b"1")
    alice.publish(channel, b"2")
    assert feed.done_below(world.store.next_offset) == 1
    bob.confirms_itself = True
    world.run()
    assert feed.done_below(world.store.next_offset) == 3
    assert feed.restart_position(3) == (3, 3, 0)
    feed.note_sent(4, 6)
    feed.note_sent(6, 7)
    feed.note_sent(9, 10)
    assert list(feed.sent) == [[4, 7], [9, 10]]
    assert feed.restart_position(20) == (4, 3, 0)
    world.server.broker.acknowledge(feed, 5)  # in the middle of a batch
    assert feed.restart_position(20) == (5, 5, 0)
    world.server.broker.acknowledge(feed, 7)
    assert feed.restart_position(20) == (9, 7, 0)
    world.server.broker.acknowledge(feed, 10)
    assert feed.restart_position(20) == (20, 10, 0)


def test_what_it_would_get_from_an_offset_depends_on_what_is_lost() -> None:
    feed = BrokerSubscription(0, Session("bob", 1, is_remembered=True), ("a",), "mine", 20)
    feed.quiet_from = 10
    assert [feed.is_resumed_from(offset, 50) for offset in (9, 10, 20, 21)] == [False, True, True, False]
    feed.lost = 3
    assert [feed.is_resumed_from(offset, 50) for offset in (9, 10, 19, 20, 30)] == [False, True, True, False, False]
    feed.counted_from, feed.resume_at = 15, 30
    assert [feed.is_resumed_from(offset, 50) for offset in (10, 14, 15, 30)] == [True, True, False, False]


# -- quiet ------------------------------------------------------------------------------------------------------------


LONG: dict[str, Any] = {"session_expiry_s": 1000}
IDLE_S = 2 * IDLE_SWEEPS + 2.0
"""After this time every subscription that has everything is stored as settled."""


class CheckedStore(KeepingStore):
    """After each append: what is stored of subscriptions says nothing that the log denies."""

    __slots__ = ()

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        first_offset = super().append(entries, changes)
        self.check()
        return first_offset

    def check(self) -> None:
        for kept in self.of("feed").values():
            quiet_from = kept.resume_at if kept.quiet_from is None else kept.quiet_from
            end = self.next_offset if kept.is_settled else kept.resume_at
            wrong = [offset for offset in self.offsets_for(kept.filters) if quiet_from <= offset < end]
            assert not wrong or kept.lost, f"{kept}, but the log has {wrong}"

    def offsets_for(self, filters: Sequence[str]) -> list[int]:
        """Of the messages that are still there."""
        return [
            offset + place
            for offset, entry in self.read(0, 2**40).entries
            if any(matches(pattern, entry.topic) for pattern in filters)
            for place in range(entry.count)
        ]


class QuietWorld(DurableWorld):
    keeping: CheckedStore

    def open(self) -> Store:
        if not hasattr(self, "keeping"):
            self.keeping = CheckedStore()
        return self.keeping

    def forget_below(self, floor: int) -> None:
        """Retention deletes the oldest messages."""
        entries = [one for one in self.keeping.read(0, 2**40).entries if one[0] < floor]
        self.keeping._drop_before(sum(offset < floor for offset in self.keeping._offsets))
        self.feed(Losing(entries, floor))
        self.run()

    def feed_of(self, name: str) -> SubscriptionRow:
        (kept,) = [kept for (session, *_), kept in self.keeping.of("feed").items() if session == name]
        assert isinstance(kept, SubscriptionRow)
        return kept


def published(world: World, topic: str, count: int = 1) -> None:
    alice = world.client()
    channel = alice.open(topic)
    for number in range(count):
        alice.publish(channel, b"%s %d" % (topic.encode(), number))


def quiet_world(**fields: Any) -> tuple[QuietWorld, Peer]:
    """With one message for bob, which he has acknowledged, and then others that match no subscription."""
    world = QuietWorld()
    bob = world.client("bob", **LONG)
    bob.subscribe("news", number=1, **fields)
    published(world, "news")
    if "cursor" in fields:
        bob.expect(c.CursorCommit(request=90, subscription=1, offset=1), c.Done)
    world.pass_s(IDLE_S)
    published(world, "other", 9)
    world.pass_s(IDLE_S)
    return world, bob


def back(world: World, start: Any, **fields: Any) -> Peer:
    bob = world.client("bob", **LONG)
    bob.subscribe("news", number=1, start=start, **fields)
    return bob


STARTS = [None, 1, 5]
"""A new run of the client, the same run, which knows the last message that it got, and a client that asks for more."""


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("fields", [{}, {"cursor": "mine"}], ids=["plain", "cursor"])
def test_after_a_restart_it_reads_nothing_of_what_others_published(start: int | None, fields: dict[str, Any]) -> None:
    world, _ = quiet_world(**fields)
    world.restart()
    world.log.has_slow_reader = True
    bob = back(world, start, **fields)
    assert not world.log.questions
    assert bob.last(c.Subscribed).next_offset == 10
    published(world, "news")
    assert bob.payloads == [b"news 0"]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("fields", [{}, {"cursor": "mine"}], ids=["plain", "cursor"])
@pytest.mark.parametrize("is_before", [True, False])
def test_what_others_lose_is_no_gap_after_a_restart(start: int | None, fields: dict[str, Any], is_before: bool) -> None:
    world, _ = quiet_world(**fields)
    if is_before:
        world.forget_below(8)
    world.restart()
    if not is_before:
        world.forget_below(8)
    bob = back(world, start, **fields)
    published(world, "news")
    assert (bob.payloads, bob.gaps) == ([b"news 0"], [])


@pytest.mark.parametrize("start", STARTS)
def test_what_others_lose_is_no_gap_after_a_break(start: int | None) -> None:
    world, bob = quiet_world()
    bob.die()
    world.forget_below(8)
    again = back(world, start)
    published(world, "news")
    assert (again.payloads, again.gaps) == ([b"news 0"], [])


@pytest.mark.parametrize(("start", "count"), [(None, 7), (1, 7), (4, 4), (7, 1), (8, 0)])
def test_a_client_that_names_an_offset_does_not_miss_earlier_messages(start: int | None, count: int) -> None:
    world = QuietWorld()
    bob = world.client("bob", **LONG)
    bob.subscribe("news", number=1)
    published(world, "news")
    bob.confirm_all()
    world.run()
    bob.die()
    published(world, "news", 9)
    world.forget_below(8)
    world.restart()
    assert sum(gap.count for gap in back(world, start).gaps) == count


def test_what_others_lose_is_no_gap_with_a_log_in_memory() -> None:
    world = World(ring_bytes=20_000)
    bob = world.client("bob", **LONG)
    bob.subscribe("news", number=1)
    published(world, "news")
    published(world, "other", 100)
    assert world.store.first_offset > 1
    bob.die()
    published(world, "other", 100)
    again = back(world, 1)
    published(world, "news")
    assert (again.payloads, again.gaps) == ([b"news 0"], [])


def test_a_quiet_subscription_is_written_once_however_much_others_publish() -> None:
    world, bob = quiet_world()
    kept = world.feed_of("bob")
    assert (kept.quiet_from, kept.is_settled) == (1, True)
    before = len(world.keeping.appends)
    published(world, "other", 50)
    world.pass_s(60)
    bob.die()
    back(world, 1).die()
    world.pass_s(60)
    changes = [change for _, changes in world.keeping.appends[before:] for change in changes]
    assert [change for change in changes if isinstance(change, SubscriptionRow)] == []


def test_a_busy_subscription_does_not_settle() -> None:
    world = QuietWorld()
    bob = world.client("bob", **LONG)
    bob.subscribe("news", number=1)
    alice = world.client()
    channel = alice.open("news")
    for number in range(30):
        alice.publish(channel, b"%d" % number)
        world.pass_s(1)
        assert not world.feed_of("bob").is_settled
    assert len(bob.got) == 30


def test_many_settle_a_part_at_a_time() -> None:
    world = QuietWorld()
    bob = world.client("bob", **LONG)
    for number in range(SAVED_AT_ONCE // 32 + 1):
        bob.subscribe(*[f"{number}/{place}" for place in range(32)], number=number)
    for number in range(2):  # they settle when they begin, and when they have had a message
        world.pass_s(IDLE_S)
        assert all(kept.is_settled for kept in world.keeping.of("feed").values())
        published(world, f"0/{number}")
        assert sum(kept.is_settled for kept in world.keeping.of("feed").values()) == SAVED_AT_ONCE // 32


@pytest.mark.parametrize("fields", [{}, {"cursor": "mine"}], ids=["plain", "cursor"])
def test_the_append_with_the_next_message_stores_its_position(fields: dict[str, Any]) -> None:
    world, bob = quiet_world(**fields)
    bob.confirms_itself = False
    published(world, "news")
    entries, changes = next(one for one in reversed(world.keeping.appends) if one[0])
    assert [entry.topic for entry in entries] == ["news"]
    (kept,) = [change for change in changes if isinstance(change, SubscriptionRow)]
    assert kept == SubscriptionRow("bob", ("news",), fields.get("cursor"), 10, quiet_from=1)
    world.restart()
    world.forget_below(8)
    again = back(world, 1, **fields)
    assert (again.payloads, again.gaps) == ([b"news 0"], [])


def test_an_absent_one_gets_what_came_meanwhile() -> None:
    world, bob = quiet_world()
    bob.leave()
    published(world, "news")
    published(world, "other", 5)
    world.restart()
    again = back(world, None)
    assert (again.payloads, again.gaps) == ([b"news 0"], [])


def test_one_that_leaves_at_once_has_everything_if_no_append_has_something_for_it() -> None:
    """It had no time to settle while it was connected."""
    world = QuietWorld()
    bob = world.client("bob", **LONG)
    bob.subscribe("news", number=1)
    bob.leave()
    assert world.feed_of("bob").is_settled
    published(world, "other", 9)
    world.restart()
    world.log.has_slow_reader = True
    back(world, None)
    assert not world.log.questions


@pytest.mark.parametrize("is_committed_first", [True, False])
def test_one_that_leaves_does_not_settle_while_its_message_is_under_way(is_committed_first: bool) -> None:
    world = QuietWorld()
    bob = world.client("bob", **LONG)
    bob.subscribe("news", number=1)
    alice = world.client()
    channel = alice.open("news")
    world.hold()
    alice.publish(channel, b"under way")
    if is_committed_first:  # in the same turn, behind the goodbye
        bob.closed = 0, ""
        session = world.server.broker.sessions["bob"]
        peer = session.peer
        assert peer is not None
        world.server.broker._admission.on_gone(peer, world.now_us, was_expected=True, reason="")
        world.commit()
    else:
        bob.leave()
        world.commit()
    world.restart()
    assert back(world, None).payloads == [b"under way"]


def test_none_settles_while_its_message_is_under_way() -> None:
    world = QuietWorld()
    bob = world.client("bob", **LONG)
    bob.subscribe("news", number=1)
    alice = world.client()
    channel = alice.open("news")
    world.hold()
    alice.publish(channel, b"under way")
    world.pass_s(3 * IDLE_S)
    world.commit()
    assert bob.payloads == [b"under way"]
    world.pass_s(IDLE_S)
    assert world.feed_of("bob").is_settled


@pytest.mark.parametrize("is_lasting", [True, False])
def test_an_append_that_fails_leaves_it_settled_in_the_store(is_lasting: bool) -> None:
    """The next one with a message for it stores its position then."""
    world, bob = quiet_world()
    bob.confirms_itself = False
    alice = world.client()
    channel = alice.open("news")
    world.hold()
    alice.publish(channel, b"lost")
    world.fail(is_lasting=is_lasting)
    assert world.feed_of("bob").is_settled
    alice.publish(alice.open("news"), b"there")
    assert world.keeping.next_offset == 11
    assert not world.feed_of("bob").is_settled
    world.restart()
    assert back(world, 1).payloads == [b"there"]


def test_who_begins_somewhere_else_is_not_settled_there() -> None:
    world, bob = quiet_world()
    bob.leave()
    again = back(world, 0)
    assert again.payloads == [b"news 0"]
    world.pass_s(IDLE_S)
    assert world.feed_of("bob").is_settled
    again.leave()
    again = world.client("bob", **LONG)
    again.confirms_itself = False
    again.subscribe("news", number=1, start="earliest")
    assert again.payloads == [b"news 0"]
    world.pass_s(IDLE_S)
    assert not world.feed_of("bob").is_settled
    assert world.feed_of("bob").resume_at == 0


def test_a_cursor_that_is_moved_back_is_not_settled() -> None:
    world, bob = quiet_world(cursor="mine")
    assert world.feed_of("bob").is_settled
    bob.expect(c.CursorCommit(request=91, subscription=1, offset=7), c.Done)  # nothing is in between
    assert world.feed_of("bob").is_settled
    bob.expect(c.CursorCommit(request=92, subscription=1, offset=0), c.Done)
    assert world.feed_of("bob").resume_at == 0
    world.pass_s(IDLE_S)
    assert not world.feed_of("bob").is_settled
    world.restart()
    assert back(world, None, cursor="mine").payloads == [b"news 0"]


def test_one_whose_session_is_not_kept_is_not_stored() -> None:
    world = QuietWorld()
    world.client("bob").subscribe("news")
    world.client().subscribe("news")
    world.pass_s(IDLE_S)
    assert world.keeping.of("feed") == {}


def test_one_message_for_many_is_one_row_each_and_only_once() -> None:
    world = QuietWorld()
    peers = [world.client(f"client {number}", **LONG) for number in range(50)]
    for peer in peers:
        peer.subscribe("all", number=1)
    world.pass_s(IDLE_S)
    before = len(world.keeping.appends)
    published(world, "all", 3)
    rows = [
        sum(isinstance(change, SubscriptionRow) for change in changes)
        for entries, changes in world.keeping.appends[before:]
        if entries
    ]
    assert rows == [50, 0, 0]


# -- at random --------------------------------------------------------------------------------------------------------


class Subscriber:
    """A client as the library is one: it knows what is behind the last message that it took."""

    def __init__(self, world: RandomWorld, name: str, filters: tuple[str, ...]) -> None:
        self.world = world
        self.name = name
        self.filters = filters
        self.done_below: int | None = None
        """What this run of it knows."""
        self.taken_below: int | None = None
        """What all of its runs have had."""
        self.stored_below = 0
        """What of that is surely stored."""
        self.known_below = 0
        """What of that the broker knows, for all that its client knows: after a crash, what was stored."""
        self.got: set[int] = set()
        self.peer: Peer | None = None
        self._read = 0

    def connect(self, *, is_new_run: bool) -> None:
        start = None if is_new_run else self.done_below
        self.peer = self.world.client(self.name, **LONG)
        self.peer.confirms_itself = False
        reply = self.peer.subscribe(*self.filters, number=1, start=start)
        if start is None:
            self.done_below = reply.next_offset
        if self.taken_below is None:
            self.taken_below = self.stored_below = self.known_below = reply.next_offset
        self._read = 0
        for channel in self.peer.lanes:  # whose channel it is needs no application
            self.world.feed(ChannelConfirmed(self.peer, channel, 0, 0))
        self.world.run()

    def take(self) -> None:
        """Everything that has come: it is confirmed."""
        assert self.peer is not None
        assert self.done_below is not None
        assert self.taken_below is not None
        for one in self.peer.order[self._read :]:
            if isinstance(one, c.Gap):
                first, end = self.known_below, one.next_offset
                there = [offset for offset in range(first, end) if self._is_for_it(offset)]
                assert there or end <= first, f"{self.name} is told of {one}, from {first} on there was nothing for it"
                self.got.update(there)
            else:
                self.got.add(one.offset)
                end = one.offset + 1
            self.done_below = max(self.done_below, end)
            self.taken_below = self.known_below = max(self.taken_below, end)
        self._read = len(self.peer.order)
        self.peer.confirm_all()
        self.world.run()

    def _is_for_it(self, offset: int) -> bool:
        return any(matches(pattern, self.world.topics[offset]) for pattern in self.filters)

    def drop(self) -> None:
        if self.peer is not None:
            self.peer.die()
            self.peer = None


class RandomWorld(QuietWorld):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.topics: list[str] = []
        """Of each message, by its offset."""
        self.subscribers = [
            Subscriber(self, name, filters)
            for name, filters in (("one", ("a",)), ("two", ("a", "b")), ("all", ("#",)), ("none", ("never",)))
        ]
        for one in self.subscribers:
            one.connect(is_new_run=True)

    def learn(self) -> None:
        for offset, entry in self.keeping.read(len(self.topics), 2**40).entries:
            if offset >= len(self.topics):
                self.topics += [entry.topic] * entry.count

    def step(self) -> None:
        rng = self.rng
        one = rng.choice(self.subscribers)
        often = ("publish", "publish", "publish", "publish", "take", "take", "back", "back", "log", "log")
        match rng.choice((*often, "wait", "drop", "die", "forget")):
            case "publish":
                alice = self.client()
                alice.publish(alice.start(rng.choice(("a", "b", "other", "other"))), *[b"x"] * rng.randrange(1, 4))
                alice.leave()
            case "take" if one.peer is not None:
                one.take()
            case "wait":
                seconds = rng.choice((0.5, 2.0, IDLE_S))
                self.pass_s(seconds)
                if seconds > 1 and not self.log.is_held:
                    self.save()
            case "drop":
                one.drop()
            case "back" if one.peer is None:
                self.end_trouble()
                one.connect(is_new_run=rng.random() < 0.5)
            case "log":
                if not self.log.is_held:
                    self.hold()
                elif rng.random() < 0.3:
                    self.fail(is_lasting=rng.random() < 0.3)
                else:
                    self.commit()
            case "die":
                for other in self.subscribers:
                    other.peer = None
                    other.known_below = other.stored_below
                self.restart()
            case "forget":
                self.end_trouble()
                self.pass_s(IDLE_S)
                self.save()
                self.learn()
                there = self.keeping.read(0, 2**40).entries
                if there:
                    self.forget_below(rng.choice(there)[0])
                    self.pass_s(2)  # what was lost is stored, too
        self.learn()

    def save(self) -> None:
        """Everything that is saved now and then has been."""
        for one in self.subscribers:
            one.stored_below = one.known_below

    def end_trouble(self) -> None:
        self.commit()
        self.learn()

    def finish(self) -> None:
        self.end_trouble()
        for one in self.subscribers:
            if one.peer is None:
                one.connect(is_new_run=False)
        published(self, "a")
        published(self, "never")
        self.learn()
        for one in self.subscribers:
            one.take()
            expected = {offset for offset, topic in enumerate(self.topics) if one._is_for_it(offset)}
            assert expected <= one.got, f"{one.name} lacks {sorted(expected - one.got)}"


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_passed_over_whatever_happens(seed: int) -> None:
    """The store is checked after each append, and at the end every subscriber has had everything that was for it."""
    world = RandomWorld(seed)
    for _ in range(60):
        world.step()
    world.finish()


def run_all() -> None:
    for seed in range(60):
        test_nothing_is_passed_over_whatever_happens(seed)


@pytest.mark.parametrize("name", ["unsettle_all", "hold", "on_failed"])
def test_the_check_notices_a_rule_that_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuietSubscriptions, name, lambda *_: None)
    with pytest.raises(AssertionError, match=r"but the log has|lacks"):
        run_all()


# -- losses -----------------------------------------------------------------------------------------------------------


TOPICS = ("a", "b", "a/x")
FILTERS = ("#", "a", "b", "a/#", "+")


@given(
    st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(1, 4)), min_size=1, max_size=12),
    st.lists(st.tuples(st.sampled_from(FILTERS), st.integers(0, 60)), max_size=6),
    st.data(),
)
def test_as_counting_one_by_one(
    shape: list[tuple[str, int]], wants: list[tuple[str, int]], data: st.DataObject
) -> None:
    entries: list[tuple[int, Entry]] = []
    offset = first = data.draw(st.integers(0, 20))
    for topic, count in shape:
        entries.append(
            (
                offset,
                Entry(topic=topic, publisher="me", flags=0x40, published_us=1, received_us=1, count=count, rest=b""),
            )
        )
        offset += count
    floor = data.draw(st.integers(entries[-1][0] + 1, offset))
    session = Session("me", 1, is_remembered=True)
    feeds = [BrokerSubscription(at, session, (pattern,), None, 0) for at, (pattern, _) in enumerate(wants)]
    needs = {feed: start for feed, (_, start) in zip(feeds, wants, strict=True) if start < floor}

    def matching(topic: str) -> list[BrokerSubscription]:
        return [feed for feed in feeds if matches(feed.filters[0], topic)]

    count_losses(Losing(entries, floor), needs, matching)
    topic_at = {at: entry.topic for begin, entry in entries for at in range(begin, begin + entry.count)}
    for feed, (pattern, start) in zip(feeds, wants, strict=True):
        lost = [at for at in range(max(first, start), floor) if matches(pattern, topic_at[at])]
        assert feed.lost == len(lost)
