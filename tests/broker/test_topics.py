"""Topics, filters and kinds of work: which names are valid, and the tables that match many at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from tests.wire.filter_strategies import filters, filters_with_topics, topics
from tests.wire.test_filters import VECTORS

from godwit.broker.topics import FilterTrie, TopicTree, check_filter, check_kind, check_topic, shown
from godwit.errors import BadFilterError, BadKindError, BadTopicError, UsageError
from godwit.limits import MAX_KIND_BYTES, MAX_STARS, MAX_TOPIC_BYTES, MAX_TOPIC_LEVELS
from godwit.wire.filters import is_pattern, matches

GOOD_TOPICS = [
    "a",
    "home/room1/temperature",
    "Trinity/Hamilton/room1/temperature",
    "a topic with blanks/ and more ",
    "/a",
    "a/",
    "a//b",
    "/",
    "$sys/clients",
    "küche/温度/🌡",
    "é" * (MAX_TOPIC_BYTES // 2),
    "/" * (MAX_TOPIC_LEVELS - 1),
]
BAD_TOPICS = [
    ("", "topic '' is empty: give it at least one character"),
    (cast("str", b"a"), "topic b'a' is of the type bytes: give a text (str)"),
    ("a/+", "topic 'a/+' contains '+': wildcards are for subscriptions; publish under a name without + * #"),
    ("a#", "contains '#'"),
    ("*/b", "contains '*'"),
    ("a\0b", r"topic 'a\x00b' contains the control character U+0000: leave it out"),
    ("a\nb", "U+000A"),
    ("\x7f", "U+007F"),
    ("\ud800", r"topic '\ud800' is not valid Unicode"),
    ("é" * (MAX_TOPIC_BYTES // 2) + "x", f"is {MAX_TOPIC_BYTES + 1} bytes long: at most {MAX_TOPIC_BYTES} are allowed"),
    ("/" * MAX_TOPIC_LEVELS, f"has {MAX_TOPIC_LEVELS + 1} levels: at most {MAX_TOPIC_LEVELS} are allowed"),
]
GOOD_FILTERS = [
    *GOOD_TOPICS,
    "#",
    "+",
    "*",
    "a/#",
    "+/+",
    "*/*/#",
    "a/*/b",
    "/+",
    "+/",
    "$sys/#",
    "*/" * MAX_STARS + "#",
]
BAD_FILTERS = [
    ("", "filter '' is empty"),
    ("*/" * MAX_STARS + "*", "has more than 8 levels"),
    ("a/#/b", "filter 'a/#/b' has '#' before its end, where it cannot stand"),
    ("#/#", "'#' before its end"),
    ("a#", "filter 'a#' has '#' inside the level 'a#': a wildcard stands alone between slashes"),
    ("sport/tennis#", "inside the level 'tennis#'"),
    ("a/b+/c", "has '+' inside the level 'b+'"),
    ("home*", "has '*' inside the level 'home*'"),
    ("**", "has '*' inside the level '**'"),
    ("a\tb", "U+0009"),
    ("a/\udfff/#", "is not valid Unicode"),
    ("#" * (MAX_TOPIC_BYTES + 1), "bytes long"),
    ("+/" * MAX_TOPIC_LEVELS + "#", "levels"),
]


@pytest.mark.parametrize("name", GOOD_TOPICS)
def test_good_topics(name: str) -> None:
    check_topic(name)
    check_filter(name)
    assert not is_pattern(name)


@pytest.mark.parametrize(("name", "complaint"), BAD_TOPICS)
def test_bad_topics_are_told_what_is_wrong(name: str, complaint: str) -> None:
    with pytest.raises(BadTopicError) as raised:
        check_topic(name)
    assert complaint in str(raised.value)
    assert isinstance(raised.value, UsageError)
    str(raised.value).encode()  # can be sent and printed whatever the name was


@pytest.mark.parametrize("text", GOOD_FILTERS)
def test_good_filters(text: str) -> None:
    check_filter(text)


@pytest.mark.parametrize(("text", "complaint"), BAD_FILTERS)
def test_bad_filters_are_told_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(BadFilterError) as raised:
        check_filter(text)
    assert complaint in str(raised.value)
    assert isinstance(raised.value, UsageError)
    str(raised.value).encode()


GOOD_KINDS = ["resize", "images/resize", "größe", "a b", "/", "é" * (MAX_KIND_BYTES // 2), "/" * (MAX_TOPIC_LEVELS - 2)]
BAD_KINDS = [
    ("", "the kind of work '' is empty: give it at least one character"),
    (cast("str", b"a"), "the kind of work b'a' is of the type bytes: give a text (str)"),
    ("a/+", "the kind of work 'a/+' contains a wildcard: leave out + * #"),
    ("a#", "contains a wildcard"),
    ("a\nb", "U+000A"),
    ("\ud800", "is not valid Unicode"),
    ("$jobs", "the kind of work '$jobs' begins with $, as only the broker's own names do: rename it"),
    ("é" * (MAX_KIND_BYTES // 2) + "x", f"is {MAX_KIND_BYTES + 1} bytes long: at most {MAX_KIND_BYTES} are allowed"),
    ("/" * (MAX_TOPIC_LEVELS - 1), f"has {MAX_TOPIC_LEVELS} levels: at most {MAX_TOPIC_LEVELS - 1} are allowed"),
]


@pytest.mark.parametrize("kind", GOOD_KINDS)
def test_good_kinds_of_work_and_the_topics_of_their_events(kind: str) -> None:
    check_kind(kind)
    check_topic(f"$jobs/{kind}")


@pytest.mark.parametrize(("kind", "complaint"), BAD_KINDS)
def test_bad_kinds_of_work_are_told_what_is_wrong(kind: str, complaint: str) -> None:
    with pytest.raises(BadKindError) as raised:
        check_kind(kind)
    assert complaint in str(raised.value)
    assert isinstance(raised.value, UsageError)
    str(raised.value).encode()


def refusal_of(check: Callable[[str], object], text: str) -> str:
    try:
        check(text)
    except (BadTopicError, BadFilterError, BadKindError) as error:
        return str(error)
    return ""


@given(st.text() | st.text(alphabet=st.characters(codec=None)))
def test_any_text_is_taken_or_refused_in_words_that_can_be_shown(text: str) -> None:
    for check in (check_topic, check_filter, check_kind):
        refusal = refusal_of(check, text)
        assert refusal.isprintable()
        assert len(refusal) < 1200


def test_a_long_name_is_quoted_in_part() -> None:
    assert shown("short") == "'short'"
    assert len(shown("x" * 5000)) < 100
    assert "\x1b" not in shown("\x1b[2J")


# -- trie -------------------------------------------------------------------------------------------------------------


values = st.integers(0, 5)


@pytest.mark.parametrize(("filter", "topic", "expected"), VECTORS)
def test_the_vectors_hold_for_trie_and_tree(filter: str, topic: str, expected: bool) -> None:
    trie: FilterTrie[str] = FilterTrie()
    trie.add(filter, "me")
    assert trie.match(topic) == ({"me"} if expected else set())
    tree = TopicTree()
    tree.add(topic)
    assert tree.match(filter) == ([topic] if expected else [])


# -- filters ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(filters, values)), st.lists(topics, max_size=5), filters_with_topics())
def test_a_trie_finds_what_matches(pairs: list[tuple[str, int]], names: list[str], sure: tuple[str, str]) -> None:
    trie: FilterTrie[int] = FilterTrie()
    pairs.append((sure[0], 99))
    for filter, value in pairs:
        trie.add(filter, value)
    assert len(trie) == len(set(pairs))
    for topic in [*names, sure[1]]:
        assert trie.match(topic) == {value for filter, value in pairs if matches(filter, topic)}
    assert 99 in trie.match(sure[1])


class TrieMachine(RuleBasedStateMachine):
    """Adding and removing, against a plain list of pairs."""

    added: Bundle[tuple[str, int]] = Bundle("added")

    def __init__(self) -> None:
        super().__init__()
        self.trie: FilterTrie[int] = FilterTrie()
        self.pairs: list[tuple[str, int]] = []

    @rule(target=added, filter=filters, value=values)
    def add(self, filter: str, value: int) -> tuple[str, int]:
        self.trie.add(filter, value)
        self.pairs.append((filter, value))
        return filter, value

    @rule(target=added, pair=added, value=values)
    def add_under_the_same_filter(self, pair: tuple[str, int], value: int) -> tuple[str, int]:
        self.add(pair[0], value)
        return pair[0], value

    @rule(pair=added)
    def remove(self, pair: tuple[str, int]) -> None:
        if pair in self.pairs:
            self.trie.remove(*pair)
            self.pairs.remove(pair)
        else:
            with pytest.raises(KeyError):
                self.trie.remove(*pair)

    @rule(topic=topics)
    def match(self, topic: str) -> None:
        assert self.trie.match(topic) == {value for filter, value in self.pairs if matches(filter, topic)}

    @invariant()
    def has_the_size(self) -> None:
        assert len(self.trie) == len(set(self.pairs))

    @rule(filter=filters)
    def contains(self, filter: str) -> None:
        for one in {filter, *[pair[0] for pair in self.pairs]}:
            assert (one in self.trie) == any(one == pair[0] for pair in self.pairs)

    def teardown(self) -> None:
        for filter, value in self.pairs:
            self.trie.remove(filter, value)
        assert not self.trie._root.below, "an empty trie keeps no nodes"


TestTrieMachine = TrieMachine.TestCase


def test_a_value_under_two_filters_stays_under_the_other() -> None:
    trie: FilterTrie[str] = FilterTrie()
    trie.add("a/+", "me")
    trie.add("a/b", "me")
    trie.add("a/b", "me")  # twice
    assert trie.match("a/b") == {"me"}
    trie.remove("a/+", "me")
    trie.remove("a/b", "me")
    assert trie.match("a/b") == {"me"}
    trie.remove("a/b", "me")
    assert trie.match("a/b") == set()
    assert len(trie) == 0
    for filter in ("a/b", "a", "x/y"):
        with pytest.raises(KeyError):
            trie.remove(filter, "me")


def test_removing_a_long_filter_keeps_a_shorter_one() -> None:
    trie: FilterTrie[str] = FilterTrie()
    trie.add("a", "short")
    trie.add("a/b/c", "long")
    trie.remove("a/b/c", "long")
    assert trie.match("a") == {"short"}
    assert list(trie._root.below["a"].below) == []


def test_the_result_belongs_to_the_caller() -> None:
    trie: FilterTrie[str] = FilterTrie()
    trie.add("a", "me")
    trie.match("a").clear()
    assert trie.match("a") == {"me"}


def test_many_wildcards_are_walked_once() -> None:
    """If nodes were visited more than once per level, this would not end."""
    trie: FilterTrie[int] = FilterTrie()
    for number in range(1, MAX_TOPIC_LEVELS + 1):
        trie.add("/".join(["*"] * number), number)
        trie.add("/".join(["*", "a"] * (number // 2) + ["*"]), -number)
        trie.add("/".join(["*", "+"] * (number // 2) + ["b"]), 1000 + number)
    found = trie.match("/".join(["a"] * MAX_TOPIC_LEVELS))
    assert found >= set(range(1, MAX_TOPIC_LEVELS + 1))
    assert max(found) == MAX_TOPIC_LEVELS
    tree = TopicTree()
    tree.add("/".join(["a"] * MAX_TOPIC_LEVELS))
    assert len(tree.match("/".join(["*", "a"] * (MAX_TOPIC_LEVELS // 2)))) == 1
    assert tree.match("/".join(["*", "a"] * (MAX_TOPIC_LEVELS // 2 - 1) + ["*", "b"])) == []


def quickest_s(trie: FilterTrie[int], topic: str) -> float:
    def once() -> float:
        start = time.perf_counter()
        for _ in range(100):
            trie.match(topic)
        return time.perf_counter() - start

    return min(once() for _ in range(20))


def test_other_subscriptions_cost_nothing() -> None:
    topic = "home/room1/temperature"
    alone: FilterTrie[int] = FilterTrie()
    crowded: FilterTrie[int] = FilterTrie()
    for trie in (alone, crowded):
        trie.add("home/+/temperature", -1)
    for number in range(25_000):
        crowded.add(f"home/room{number + 2}/temperature", number)
        crowded.add(f"plant{number}/+/#", number)
        crowded.add(f"*/sensor{number}", number)
        crowded.add(f"home/*/sensor{number}/+", number)
    assert len(crowded) == 100_001
    assert crowded.match(topic) == alone.match(topic) == {-1}
    # The crowded one has other wildcards to follow, a few more places; measured 1.6 to 2 times.
    assert quickest_s(crowded, topic) < 5 * quickest_s(alone, topic)


# -- topics -----------------------------------------------------------------------------------------------------------


@given(st.lists(topics), filters_with_topics(), st.none() | topics)
def test_a_tree_finds_what_matches_in_order(names: list[str], sure: tuple[str, str], after: str | None) -> None:
    filter = sure[0]
    known = sorted({*names, sure[1]})
    tree = TopicTree()
    for name in known[::-1] + names:
        tree.add(name)
    assert len(tree) == len(known)
    assert list(tree) == known
    assert tree.match(filter) == [name for name in known if matches(filter, name)]
    behind = [name for name in known if after is None or name > after]
    assert list(tree.walk(after=after)) == behind
    assert list(tree.walk(filter, after)) == [name for name in behind if matches(filter, name)]


@given(st.lists(topics), filters_with_topics(), st.integers(70, 90))
def test_a_search_that_stops_at_any_place_continues_there(names: list[str], sure: tuple[str, str], steps: int) -> None:
    tree = TopicTree()
    for name in {*names, sure[1], f"{sure[1]}/", "a/", "a//", "a"}:
        tree.add(name)
    found: list[str] = []
    after = ""
    for _ in range(100):
        stopped = False
        for count, (place, is_match) in enumerate(tree.visit(sure[0], after)):
            if count == steps:
                stopped = True
                break
            found += [place] if is_match else []
            last = place
        if not stopped:
            break
        assert last > after
        after = last
    assert found == [name for name in tree if matches(sure[0], name)]


def test_a_search_looks_at_each_place_once() -> None:
    tree = TopicTree()
    for number in range(1000):
        tree.add(f"room{number}/temperature")
    assert len(list(tree.visit("*/zzz"))) == 2000
    assert len(list(tree.visit("room7/zzz"))) == 2


def test_the_order_of_many_topics_is_not_sorted_again_for_each_new_one() -> None:
    tree = TopicTree()
    for number in range(1000):
        tree.add(f"room{number}")
    assert next(iter(tree)) == "room0"
    order = tree._root.order
    tree.add("room5/temperature")
    tree.add("attic")
    tree.discard("room0")
    assert tree._root.order is order
    assert list(tree) == sorted(tree)
    assert next(iter(tree)) == "attic"


class TreeMachine(RuleBasedStateMachine):
    """Adding and discarding, against a set; asking in between, so that the order kept is tested too."""

    known: Bundle[str] = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        self.tree = TopicTree()
        self.names: set[str] = set()

    @rule(target=known, name=topics)
    def add(self, name: str) -> str:
        self.tree.add(name)
        self.names.add(name)
        return name

    @rule(target=known, name=known, more=topics)
    def add_below(self, name: str, more: str) -> str:
        self.add(f"{name}/{more}")
        return f"{name}/{more}"

    @rule(name=known | topics)
    def discard(self, name: str) -> None:
        self.tree.discard(name)
        self.names.discard(name)

    @rule()
    def discard_all(self) -> None:
        for name in list(self.names):
            self.tree.discard(name)
        self.names.clear()
        assert not self.tree._root.below, "an empty tree keeps no nodes"

    @rule(name=known | topics)
    def look_up(self, name: str) -> None:
        assert (name in self.tree) == (name in self.names)

    @rule(filter=filters, after=known | topics)
    def match(self, filter: str, after: str) -> None:
        expected = sorted(name for name in self.names if matches(filter, name))
        assert self.tree.match(filter) == expected
        assert list(self.tree.walk(filter, after)) == [name for name in expected if name > after]

    @invariant()
    def is_whole(self) -> None:
        assert len(self.tree) == len(self.names)
        assert list(self.tree) == sorted(self.names)


TestTreeMachine = TreeMachine.TestCase


def test_a_walk_shows_reserved_topics_only_when_they_are_asked_for() -> None:
    tree = TopicTree()
    for name in ("$sys/a", "a", "x/$y"):
        tree.add(name)
    assert list(tree.walk()) == ["$sys/a", "a", "x/$y"]
    assert tree.match("#") == ["a", "x/$y"]
    assert tree.match("+/+") == ["x/$y"]
    assert tree.match("$sys/+") == ["$sys/a"]


def test_a_walk_is_lazy_and_goes_on_behind_a_name() -> None:
    tree = TopicTree()
    names = sorted(f"room{number}/temperature" for number in range(1000))
    for name in names:
        tree.add(name)
    walk = tree.walk("+/temperature")
    page = [next(walk) for _ in range(10)]
    assert page == names[:10]
    pages = [page]
    while page:
        walk = tree.walk("+/temperature", after=pages[-1][-1])
        page = [name for _, name in zip(range(300), walk, strict=False)]
        pages += [page] if page else []
    assert [name for page in pages for name in page] == names


def test_a_literal_level_is_looked_up_not_searched() -> None:
    tree = TopicTree()
    for number in range(1000):
        tree.add(f"home/room{number}/temperature")
    assert tree.match("home/room7/+") == ["home/room7/temperature"]
    assert tree._root.below["home"].order is None, "the order of all rooms was not needed"
