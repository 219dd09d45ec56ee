"""Many filters against one topic, and many topics against one filter, without looking at each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from godwit.broker.topics import ONE, RESERVED, REST, SOME, WILDCARDS, matches, split

__all__ = ["FilterTrie", "TopicTree", "matches"]

T = TypeVar("T", bound=Hashable)
_WORTH_KEEPING: Final = 16
"""Shorter lists are quickly sorted again, and there are many of them."""


class _FilterNode(Generic[T]):
    """What the filters that begin with the levels on the way here have in common."""

    __slots__ = ("below", "is_some", "values")

    def __init__(self, *, is_some: bool) -> None:
        self.below: dict[str, _FilterNode[T]] = {}
        self.is_some = is_some
        self.values: dict[T, int] | None = None


class FilterTrie(Generic[T]):
    """Values under filters. Finding those of a topic costs the filters that go its way, not the others."""

    __slots__ = ("_root", "_size", "nodes")

    def __init__(self) -> None:
        self._root: _FilterNode[T] = _FilterNode(is_some=False)
        self._size = 0
        self.nodes = 0
        """Levels of filters, those that they have in common once: what the trie's memory goes with."""

    def __len__(self) -> int:
        """How many pairs of filter and value there are."""
        return self._size

    def __contains__(self, filter: str) -> bool:
        """Whether there is a value under just this filter."""
        node = self._root
        for level in split(filter):
            found = node.below.get(level)
            if found is None:
                return False
            node = found
        return node.values is not None

    def add(self, filter: str, value: T) -> None:
        """Put a value under a filter (checked before). Added twice, it must be removed twice."""
        node = self._root
        for level in split(filter):
            found = node.below.get(level)
            if found is None:
                found = node.below[level] = _FilterNode(is_some=level == SOME)
                self.nodes += 1
            node = found
        if node.values is None:
            node.values = {}
        count = node.values.get(value, 0)
        node.values[value] = count + 1
        self._size += not count

    def remove(self, filter: str, value: T) -> None:
        """Take a value from under a filter; KeyError if it is not there. Under other filters it stays."""
        node = self._root
        way: list[tuple[_FilterNode[T], str]] = []
        for level in split(filter):
            way.append((node, level))
            node = node.below[level]
        if node.values is None:
            raise KeyError(value)
        count = node.values[value]
        if count > 1:
            node.values[value] = count - 1
            return
        del node.values[value]
        self._size -= 1
        if node.values:
            return
        node.values = None
        for parent, level in reversed(way):
            child = parent.below[level]
            if child.below or child.values is not None:
                break
            del parent.below[level]
            self.nodes -= 1

    def match(self, topic: str) -> set[T]:
        """All values under filters that match the topic, each once."""
        found: set[T] = set()
        levels = split(topic)
        places: Iterable[_FilterNode[T]] = (self._root,)
        if topic.startswith(RESERVED):  # passes by the wildcards of the first level
            first = self._root.below.get(levels.pop(0))
            places = () if first is None else (first,)
        _collect_rest(places, found)
        for level in levels:
            onward: dict[_FilterNode[T], None] = {}  # each place once, however many ways lead to it
            for node in places:
                if node.is_some:
                    onward[node] = None
                below = node.below
                for key in (level, ONE, SOME):
                    if (next_node := below.get(key)) is not None:
                        onward[next_node] = None
            places = onward
            _collect_rest(places, found)
        for node in places:
            if node.values is not None:
                found.update(node.values)
        return found


def _collect_rest(places: Iterable[_FilterNode[T]], found: set[T]) -> None:
    for node in places:
        rest = node.below.get(REST)
        if rest is not None and rest.values is not None:
            found.update(rest.values)


class _TopicNode:
    """The topics that begin with the levels on the way here, and whether these are a topic themselves."""

    __slots__ = ("below", "is_topic", "order")

    def __init__(self) -> None:
        self.below: dict[str, _TopicNode] = {}
        self.is_topic = False
        self.order: list[str] | None = None

    def steps(self) -> list[str]:
        """The ways on, in the order of the whole names: a level that ends a topic, or a level with its slash.

        With the slash, because `a-b` comes before `a/b`, and both come after `a`.
        """
        if self.order is not None:
            return self.order
        ends = [level for level, node in self.below.items() if node.is_topic]
        order = sorted(ends + [f"{level}/" for level, node in self.below.items() if node.below])
        if len(order) >= _WORTH_KEEPING:
            self.order = order
        return order

    def reorder(self, step: str, is_there: bool) -> None:
        """Add a step to the sorted list of steps, or remove it: sorting them all again costs much more."""
        order = self.order
        if order is None:
            return
        if is_there:
            insort(order, step)
        else:
            del order[bisect_left(order, step)]


class _Pattern:
    """A filter as bits: bit i of a state says that the filter's first i levels can stand for the topic's so far."""

    __slots__ = ("any", "full", "literals", "stay")

    def __init__(self, filter: str) -> None:
        levels = split(filter)
        self.any = self.stay = 0
        self.full = 1 << len(levels)
        self.literals: dict[str, int] = {}
        for at, level in enumerate(levels):
            bit = 1 << at
            if level == REST:
                self.stay |= bit
                self.full = bit
            elif level == SOME:
                self.any |= bit
                self.stay |= bit << 1
            elif level == ONE:
                self.any |= bit
            else:
                self.literals[level] = self.literals.get(level, 0) | bit

    def after(self, state: int, level: str) -> int:
        """The state behind one more level; 0: no topic that goes on so can match."""
        return (state & (self.any | self.literals.get(level, 0))) << 1 | state & self.stay

    def steps(self, state: int, node: _TopicNode) -> list[str]:
        """The ways on from a node that may lead to a match, in order. Where only a name can, no other is looked at."""
        if state & (self.any | self.stay) or len(self.literals) >= len(node.below):
            return node.steps()
        found = []
        for level, bits in self.literals.items():
            if state & bits and (below := node.below.get(level)):
                found += [level] * below.is_topic + [f"{level}/"] * bool(below.below)
        return sorted(found)


class TopicTree:
    """Topics by their levels. Finding those that match a filter walks only where one can be."""

    __slots__ = ("_root", "_size", "nodes")

    def __init__(self) -> None:
        self._root = _TopicNode()
        self._size = 0
        self.nodes = 0
        """Levels of topics, those that they have in common once: what the tree's memory goes with."""

    def __len__(self) -> int:
        return self._size

    def __contains__(self, topic: str) -> bool:
        node = self._root
        for level in split(topic):
            found = node.below.get(level)
            if found is None:
                return False
            node = found
        return node.is_topic

    def __iter__(self) -> Iterator[str]:
        return self.walk()

    def add(self, topic: str) -> None:
        *parents, last = split(topic)
        node = self._root
        for level in parents:
            child = node.below.get(level)
            if child is None:
                child = node.below[level] = _TopicNode()
                self.nodes += 1
            if not child.below:  # it is about to get its first one
                node.reorder(f"{level}/", is_there=True)
            node = child
        child = node.below.get(last)
        if child is None:
            child = node.below[last] = _TopicNode()
            self.nodes += 1
        if not child.is_topic:
            child.is_topic = True
            self._size += 1
            node.reorder(last, is_there=True)

    def discard(self, topic: str) -> None:
        if topic not in self:
            return
        node = self._root
        way: list[tuple[_TopicNode, str]] = []
        for level in split(topic):
            way.append((node, level))
            node = node.below[level]
        node.is_topic = False
        self._size -= 1
        parent, level = way[-1]
        parent.reorder(level, is_there=False)
        while way:
            parent, level = way.pop()
            child = parent.below[level]
            if child.below or child.is_topic:
                break
            del parent.below[level]
            self.nodes -= 1
            if way and not parent.below:
                grandparent, above = way[-1]
                grandparent.reorder(f"{above}/", is_there=False)

    def match(self, filter: str) -> list[str]:
        """All topics that match a filter, in the order of their names."""
        return list(self.walk(filter))

    def walk(self, filter: str | None = None, after: str | None = None) -> Iterator[str]:
        """Topics in the order of their names, those that match (None: all, also those with `$`), those behind `after`.

        Take what you need before you add or discard one; then go on with `after`.
        """
        return (place for place, is_match in self.visit(filter, after) if is_match)

    def visit(self, filter: str | None = None, after: str | None = None) -> Iterator[tuple[str, bool]]:
        """Each place that `walk` looks at, in order, and whether it is a topic that matches.

        A place is a name or the beginning of names, up to a slash. The caller can stop at any of them, and continues
        later with that place as `after`: so it bounds the work, even if nothing matches.
        """
        hides_reserved = filter is not None and split(filter)[0] in WILDCARDS
        return _visit(self._root, _Pattern(REST if filter is None else filter), hides_reserved, after or "")


def _visit(root: _TopicNode, pattern: _Pattern, hides_reserved: bool, after: str) -> Iterator[tuple[str, bool]]:
    steps = pattern.steps(1, root)
    first = _first_behind(steps, after)
    stack = [("", root, 1, iter(steps[first:] if first else steps))]  # the name so far, what is there, what remains
    while stack:
        prefix, node, state, remaining = stack[-1]
        for step in remaining:
            if hides_reserved and not prefix and step.startswith(RESERVED):
                continue
            if not step:
                continue  # the topic that ends in a slash: it is at the same place as its parent's step, see below
            name = prefix + step
            if not step.endswith("/"):
                yield name, bool(pattern.after(state, step) & pattern.full)
                continue
            level = step[:-1]
            below = node.below[level]
            next_state = pattern.after(state, level)
            slash_topic = below.below.get("")
            is_topic = slash_topic is not None and slash_topic.is_topic and name > after
            yield name, is_topic and bool(pattern.after(next_state, "") & pattern.full)
            if not next_state:
                continue
            steps = pattern.steps(next_state, below)
            if after.startswith(name):
                steps = steps[_first_behind(steps, after[len(name) :]) :]
            stack.append((name, below, next_state, iter(steps)))
            break
        else:
            stack.pop()


def _first_behind(steps: list[str], after: str) -> int:
    """The first step that is, or may lead to, a name behind `after`."""
    first = bisect_right(steps, after)
    # A way with its slash comes before the names that it leads to.
    return first - 1 if first and steps[first - 1].endswith("/") and after.startswith(steps[first - 1]) else first
