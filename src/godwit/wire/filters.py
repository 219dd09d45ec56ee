"""What filters mean: which topics one matches, when one covers another, when two have a topic in common.

A topic is a name with levels, `home/room1/temperature`. A filter is a topic in which whole levels may be wildcards:

    +   one level, anywhere
    *   one or more levels, anywhere
    #   what remains, also nothing: `home/#` matches `home` too. Only at the end

A level may be empty, case and blanks count. A topic that begins with `$` belongs to the broker: a filter that begins
with a wildcard does not match it. Names and filters that come here have been checked: see godwit.broker.topics.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Final, NamedTuple

ONE: Final = "+"
SOME: Final = "*"
REST: Final = "#"
WILDCARDS: Final = frozenset((ONE, SOME, REST))
RESERVED: Final = "$"
GROUP_PREFIX: Final = "$share/"
"""`$share/NAME/FILTER` is the filter FILTER, as a member of the consumer group NAME."""

REPLIES: Final = "$reply"
"""The first level of inboxes: the topics to which replies to requests are sent."""

_WILD: Final = re.compile(r"[+*#]")
_INBOX: Final = re.compile(r"\$reply/[0-9a-f]{32}")


def split(text: str) -> list[str]:
    """The levels of a topic or a filter."""
    return text.split("/")


def split_group(text: str) -> tuple[str | None, str]:
    """Return the name of the group and the filter in it; None without a group. Either may be empty."""
    if not text.startswith(GROUP_PREFIX):
        return None, text
    name, _, rest = text[len(GROUP_PREFIX) :].partition("/")
    return name, rest


def is_inbox(text: str) -> bool:
    """Return whether a topic or filter is an inbox: `$reply/` and 32 hexadecimal digits that a client chose."""
    return _INBOX.fullmatch(text) is not None


def is_pattern(text: str) -> bool:
    """Whether a filter has a wildcard; one without matches the topic of its own name and nothing else."""
    return _WILD.search(text) is not None


def begins_with_wildcard(filter: str) -> bool:
    """Return whether the first level of a filter is a wildcard."""
    return filter.partition("/")[0] in WILDCARDS


def matches(filter: str, topic: str) -> bool:
    """Whether a topic matches a filter, both checked before. FilterTrie and TopicTree answer the same for many."""
    wanted = split(filter)
    levels = split(topic)
    if topic.startswith(RESERVED) and wanted[0] in WILDCARDS:
        return False
    end = 1 << len(levels)
    reached = 1  # bit i: the filter's levels so far may stand for i levels of the topic
    places: dict[str, int] | None = None
    for level in wanted:
        if level == REST:
            return True
        if level == SOME:
            reached = 2 * end - 2 * (reached & -reached)  # everything behind the least
        elif level == ONE:
            reached = reached << 1 & (2 * end - 1)
        elif not reached & (reached - 1):  # one bit
            at = reached.bit_length() - 1
            reached = reached << 1 if reached < end and levels[at] == level else 0
        else:
            if places is None:
                places = {}
                for at, name in enumerate(levels):
                    places[name] = places.get(name, 0) | 1 << at
            reached = (reached & places.get(level, 0)) << 1
        if not reached:
            return False
    return bool(reached & end)


def covers(outer: str, inner: str) -> bool:
    """Whether every topic that `inner` matches is matched by `outer` too. Both may also be plain topics.

    The outer filter is laid over the inner one: a literal over the same literal, a run of wildcards over its
    number of levels, exactly or at least. Nothing exact may lie over what has no fixed length.
    """
    if inner.startswith(RESERVED) and split(outer)[0] in WILDCARDS:
        return False
    parts = _parts(inner)
    least = [0]  # the least number of levels for each prefix of the parts
    for part in parts:
        least.append(least[-1] + (part is not None))
    reached = [0]  # where in the parts the outer filter's items so far can end
    for item in _items(outer):
        if not reached:
            return False
        if isinstance(item, str):
            reached = [at + 1 for at in reached if at < len(parts) and parts[at] == item]
        elif item.is_open:
            reached = list(range(bisect_left(least, least[reached[0]] + item.levels, lo=reached[0]), len(least)))
        else:
            stops = ((at, at + item.levels) for at in reached)
            reached = [stop for at, stop in stops if stop < len(least) and least[stop] - least[at] == item.levels]
    return len(parts) in reached


def overlaps(one: str, other: str) -> bool:
    """Whether some topic matches both. Both may also be plain topics.

    Worked out from the ends: whether what remains of one filter has a name in common with what remains of the other.
    A part that stands for any number of levels ends here, or takes in the next part of the other.
    """
    for this, that in ((one, other), (other, one)):
        if this.startswith(RESERVED) and split(that)[0] in WILDCARDS:
            return False
    parts = _parts(other)
    meets = [all(part is None for part in parts[at:]) for at in range(len(parts) + 1)]  # with nothing left of `one`
    for mine in reversed(_parts(one)):
        behind = meets  # for each place in the other, without this part
        meets = [mine is None and behind[-1]]
        for at in range(len(parts) - 1, -1, -1):
            theirs = parts[at]
            if mine is None or theirs is None:
                meets.append(behind[at] or meets[-1])
            else:
                meets.append(behind[at + 1] and (mine == theirs or ONE in (mine, theirs)))
        meets.reverse()
    return meets[0]


class _Gap(NamedTuple):
    """A run of wildcards: exactly `levels` levels, or at least that number."""

    levels: int
    is_open: bool


def _items(filter: str) -> list[str | _Gap]:
    """A filter's literal levels, with a gap for each run of wildcards between them."""
    items: list[str | _Gap] = []
    gap: _Gap | None = None
    for level in split(filter):
        if level in WILDCARDS:
            levels, is_open = gap or (0, False)
            gap = _Gap(levels + (level != REST), is_open or level != ONE)
            continue
        if gap is not None:
            items.append(gap)
            gap = None
        items.append(level)
    return items if gap is None else [*items, gap]


def _parts(filter: str) -> list[str | None]:
    """A filter's levels, with `*` as `+` and None, and `#` as None: any number of levels, also none."""
    parts: list[str | None] = []
    for level in split(SOME if filter == REST else filter):  # a topic has a level, so alone they mean the same
        if level != REST:
            parts.append(ONE if level == SOME else level)
        if level in (SOME, REST):
            parts.append(None)
    return parts
