"""How topics, filters and kinds of work are written: what may be published under, subscribed to, submitted.

What a filter means is told, and worked out, in godwit.wire.filters.
"""

from __future__ import annotations

import re
from typing import Final

from godwit.errors import BadFilterError, BadKindError, BadTopicError
from godwit.limits import MAX_KIND_BYTES, MAX_STARS, MAX_TOPIC_BYTES, MAX_TOPIC_LEVELS
from godwit.wire.filters import ONE, RESERVED, REST, SOME, WILDCARDS, covers, is_pattern, matches, overlaps, split

__all__ = [
    "ONE",
    "RESERVED",
    "REST",
    "SOME",
    "WILDCARDS",
    "check_filter",
    "check_kind",
    "check_topic",
    "covers",
    "is_pattern",
    "matches",
    "overlaps",
    "shown",
    "split",
]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NOT_IN_TOPIC: Final = re.compile(r"[\x00-\x1f\x7f+*#]")
_WILD: Final = re.compile(r"[+*#]")
_SHOWN_CHARACTERS: Final = 80


def check_topic(name: str) -> None:
    """BadTopicError if nobody can publish under this name."""
    if problem := _size_problem(name):
        raise BadTopicError(f"topic {shown(name)} {problem}")
    if bad := _NOT_IN_TOPIC.search(name):
        if bad[0] in WILDCARDS:
            raise BadTopicError(
                f"topic {shown(name)} contains {bad[0]!r}: "
                "wildcards are for subscriptions; publish under a name without + * #"
            )
        raise BadTopicError(f"topic {shown(name)} {_control_problem(bad[0])}")


def check_filter(text: str) -> None:
    """BadFilterError if it cannot be subscribed to."""
    if problem := _size_problem(text):
        raise BadFilterError(f"filter {shown(text)} {problem}")
    if bad := _CONTROL.search(text):
        raise BadFilterError(f"filter {shown(text)} {_control_problem(bad[0])}")
    if not _WILD.search(text):
        return
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


def check_kind(kind: str) -> None:
    """BadKindError if no kind of work can be called so: it is written as a topic, so that its events have one."""
    if not isinstance(kind, str):
        raise BadKindError(
            f"the kind of work {repr(kind)[:_SHOWN_CHARACTERS]} is of the type {type(kind).__name__}: give a text (str)"
        )
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
    """A name as an error text quotes it: never long, nothing that a terminal would act on."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}..."


def _size_problem(text: str, max_bytes: int = MAX_TOPIC_BYTES, max_levels: int = MAX_TOPIC_LEVELS) -> str | None:
    if not text:
        return "is empty: give it at least one character"
    try:
        size_bytes = len(text.encode())
    except AttributeError:  # without a price for those who give what they should
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
