"""Topics, filters and kinds of work: which names are valid, and tables that match many of them at once.

What a filter means is defined in godwit.wire.filters. FilterTrie finds the filters that match a topic, TopicTree the
topics that match a filter, both without looking at each.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from godwit.errors import BadFilterError, BadKindError, BadTopicError
from godwit.limits import MAX_KIND_BYTES, MAX_STARS, MAX_TOPIC_BYTES, MAX_TOPIC_LEVELS
from godwit.wire.filters import ONE, RESERVED, REST, SOME, WILDCARDS, split

T = TypeVar("T", bound=Hashable)
_LEAST_CACHED: Final = 16
"""Shorter lists are quickly sorted again, and there are many of them."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NOT_IN_TOPIC: Final = re.compile(r"[\x00-\x1f\x7f+*#]")
_WILD: Final = re.compile(r"[+*#]")
_SHOWN_CHARACTERS: Final = 80


def check_topic(name: object) -> str:
    """Return the name of a topic. Raises BadTopicError if it is not valid."""
    if not isinstance(name, str):
        raise BadTopicError(f"topic {_of_wrong_type(name)}")
    if problem := _size_problem(name):
        raise BadTopicError(f"topic {shown(name)} {problem}")
    if bad := _NOT_IN_TOPIC.search(name):
        if bad[0] in WILDCARDS:
            raise BadTopicError(
                f"topic {shown(name)} contains {bad[0]!r}: "
                "wildcards are for subscriptions; publish under a name without + * #"
            )
        raise BadTopicError(f"topic {shown(name)} {_control_problem(bad[0])}")
    return name


def check_filter(text: object) -> str:
    """Return a filter. Raises BadFilterError if it is not valid."""
    if not isinstance(text, str):
        raise BadFilterError(f"filter {_of_wrong_type(text)}")
    if problem := _size_problem(text):
        raise BadFilterError(f"filter {shown(text)} {problem}")
    if bad := _CONTROL.search(text):
        raise BadFilterError(f"filter {shown(text)} {_control_problem(bad[0])}")
    if not _WILD.search(text):
        return text
    levels = split(text)
    for level in levels:
        if level not in WILDCARDS and (bad := _WILD.search(level)):
            raise BadFilterError(
                f"filter {shown(text)} has {bad[0]!r} inside the level {shown(level)}: "
                "a wildcard stands alone between slashes, as in home/+/temperature"
            )
    if levels.count(SOME) > MAX_STARS:
        raise BadFilterError(f"filter {shown(text)} has more than {MAX_STARS} levels '*': use + for single levels")
    if REST in levels[:-1]:
        raise BadFilterError(
            f"filter {shown(text)} has '#' before its end, where it cannot stand: "
            "use + (one level) or * (one or more levels) there"
        )
    return text


def _of_wrong_type(value: object) -> str:
    return f"{repr(value)[:_SHOWN_CHARACTERS]} is of the type {type(value).__name__}: give a text (str)"


def check_kind(kind: object) -> None:
    """Raise BadKindError if the name is not valid for a kind of work, which is written as a topic."""
    if not isinstance(kind, str):
        raise BadKindError(f"the kind of work {_of_wrong_type(kind)}")
    if problem := _size_problem(kind, MAX_KIND_BYTES, MAX_TOPIC_LEVELS - 1):  # the topic is $jobs/ and the kind
        raise BadKindError(f"the kind of work {shown(kind)} {problem}")
    if bad := _NOT_IN_TOPIC.search(kind):
        problem = "contains a wildcard: leave out + * #" if bad[0] in WILDCARDS else _control_problem(bad[0])
        raise BadKindError(f"the kind of work {shown(kind)} {problem}")
    if kind.startswith(RESERVED):
        raise BadKindError(
            f"the kind of work {shown(kind)} begins with $, as only the broker's own names do: rename it"
        )


def shown(text: str) -> str:
    """Return a name as an error text quotes it: never long, and without control characters."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}..."


def _size_problem(text: str, max_bytes: int = MAX_TOPIC_BYTES, max_levels: int = MAX_TOPIC_LEVELS) -> str | None:
    if not text:
        return "is empty: give it at least one character"
    try:
        size_bytes = len(text.encode())
    except AttributeError:  # so that the usual case costs nothing
        return f"is of the type {type(text).__name__}: give a text (str)"
    except UnicodeEncodeError:
        return "is not valid Unicode (half of a surrogate pair): it could not be written as UTF-8"
    if size_bytes > max_bytes:
        return f"is {size_bytes} bytes long: at most {max_bytes} are allowed"
    levels = text.count("/") + 1
    if levels > max_levels:
        return f"has {levels} levels: at most {max_levels} are allowed"
    return None


def _control_problem(character: str) -> str:
    return f"contains the control character U+{ord(character):04X}: leave it out"


class _FilterNode(Generic[T]):
    """The filters that begin with the levels on the path to this node."""

    __slots__ = ("below", "is_some", "values")

    def __init__(self, *, is_some: bool) -> None:
        self.below: dict[str, _FilterNode[T]] = {}
        self.is_some = is_some
        self.values: dict[T, int] | None = None


class FilterTrie(Generic[T]):
    """Values by filter. A search visits only the filters that share levels with the topic."""

    __slots__ = ("_root", "_size", "nodes")

    def __init__(self) -> None:
        self._root: _FilterNode[T] = _FilterNode(is_some=False)
        self._size = 0
        self.nodes = 0
        """Levels of all filters, common beginnings counted once: the memory is proportional to it."""

    def __len__(self) -> int:
        """Return the number of pairs of filter and value."""
        return self._size

    def __contains__(self, filter: str) -> bool:
        """Return whether there is a value under exactly this filter."""
        node = self._root
        for level in split(filter):
            found = node.below.get(level)
            if found is None:
                return False
            node = found
        return node.values is not None

    def add(self, filter: str, value: T) -> None:
        """Add a value under a valid filter. Added twice, it must be removed twice."""
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
        """Remove a value from a filter, and from no other. Raises KeyError if it is not there."""
        node = self._root
        path: list[tuple[_FilterNode[T], str]] = []
        for level in split(filter):
            path.append((node, level))
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
        for parent, level in reversed(path):
            child = parent.below[level]
            if child.below or child.values is not None:
                break
            del parent.below[level]
            self.nodes -= 1

    def match(self, topic: str) -> set[T]:
        """Return all values under filters that match the topic."""
        found: set[T] = set()
        levels = split(topic)
        places: Iterable[_FilterNode[T]] = (self._root,)
        if topic.startswith(RESERVED):  # wildcards of the first level do not match it
            first = self._root.below.get(levels.pop(0))
            places = () if first is None else (first,)
        _collect_rest(places, found)
        for level in levels:
            onward: dict[_FilterNode[T], None] = {}  # each node once, however many paths lead to it
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
    """The topics that begin with the levels on the path to this node, and whether these are a topic themselves."""

    __slots__ = ("below", "is_topic", "order")

    def __init__(self) -> None:
        self.below: dict[str, _TopicNode] = {}
        self.is_topic = False
        self.order: list[str] | None = None

    def steps(self) -> list[str]:
        """Return the next steps in the order of the whole names: a level that ends a topic, or a level with its slash.

        With the slash, because `a-b` comes before `a/b`, and both come after `a`.
        """
        if self.order is not None:
            return self.order
        ends = [level for level, node in self.below.items() if node.is_topic]
        order = sorted(ends + [f"{level}/" for level, node in self.below.items() if node.below])
        if len(order) >= _LEAST_CACHED:
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
    """A filter as bits: bit i of a state is set if the filter's first i levels match the topic's levels so far."""

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
        """Return the state after one more level; 0 if no topic that continues like this can match."""
        return (state & (self.any | self.literals.get(level, 0))) << 1 | state & self.stay

    def steps(self, state: int, node: _TopicNode) -> list[str]:
        """Return the steps from a node that may lead to a match, in order."""
        if state & (self.any | self.stay) or len(self.literals) >= len(node.below):
            return node.steps()
        found = []
        for level, bits in self.literals.items():
            if state & bits and (below := node.below.get(level)):
                found += [level] * below.is_topic + [f"{level}/"] * bool(below.below)
        return sorted(found)


class TopicTree:
    """Topics by their levels. A search for a filter visits only the branches that can match."""

    __slots__ = ("_root", "_size", "nodes")

    def __init__(self) -> None:
        self._root = _TopicNode()
        self._size = 0
        self.nodes = 0
        """Levels of all topics, common beginnings counted once: the memory is proportional to it."""

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
            if not child.below:  # it is about to get its first child
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
        path: list[tuple[_TopicNode, str]] = []
        for level in split(topic):
            path.append((node, level))
            node = node.below[level]
        node.is_topic = False
        self._size -= 1
        parent, level = path[-1]
        parent.reorder(level, is_there=False)
        while path:
            parent, level = path.pop()
            child = parent.below[level]
            if child.below or child.is_topic:
                break
            del parent.below[level]
            self.nodes -= 1
            if path and not parent.below:
                grandparent, above = path[-1]
                grandparent.reorder(f"{above}/", is_there=False)

    def match(self, filter: str) -> list[str]:
        """Return all topics that match a filter, in the order of their names."""
        return list(self.walk(filter))

    def walk(self, filter: str | None = None, after: str | None = None) -> Iterator[str]:
        """Yield topics in the order of their names: those that match (None: all, also those with `$`), after `after`.

        Stop before a topic is added or discarded, and continue with `after`.
        """
        for place, is_match in self.visit(filter, after):
            if is_match:
                yield place

    def visit(self, filter: str | None = None, after: str | None = None) -> Iterator[tuple[str, bool]]:
        """Yield each position that `walk` visits, in order, and whether it is a topic that matches.

        A position is a name or the beginning of names, up to a slash. The caller can stop at any of them and continue
        later with that position as `after`: so it can bound the work, even if nothing matches.
        """
        hides_reserved = filter is not None and split(filter)[0] in WILDCARDS
        return _visit(self._root, _Pattern(REST if filter is None else filter), hides_reserved, after or "")


def _visit(root: _TopicNode, pattern: _Pattern, hides_reserved: bool, after: str) -> Iterator[tuple[str, bool]]:
    steps = pattern.steps(1, root)
    first = _first_behind(steps, after)
    stack = [("", root, 1, iter(steps[first:] if first else steps))]  # name so far, node, state, remaining steps
    while stack:
        prefix, node, state, remaining = stack[-1]
        for step in remaining:
            if hides_reserved and not prefix and step.startswith(RESERVED):
                continue
            if not step:
                continue  # the topic that ends in a slash: visited with its parent's step, see below
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
    """Return the index of the first step that is, or may lead to, a name after `after`."""
    first = bisect_right(steps, after)
    # A step with its slash comes before the names that it leads to.
    return first - 1 if first and steps[first - 1].endswith("/") and after.startswith(steps[first - 1]) else first
