"""Who may do what: names with secrets, and rules by name, action and filter.

A name that is listed must be proved, see godwit.wire.control. Everybody else is anonymous, also under a name of its own
choice: it proves nothing, so only rules for everyone ("*") hold for it. What no rule allows is forbidden.

To submit jobs and to work on them are rights on kinds of work, which are written and matched as topics are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

from godwit.broker.topics import RESERVED, WILDCARDS, check_filter, covers, shown, split
from godwit.errors import BadFilterError, ConfigurationError
from godwit.limits import MAX_CLIENT_NAME_BYTES, MAX_SECRET_BYTES

__all__ = ["ACTIONS", "CLIENT", "EVERYONE", "Access", "Action", "Rule", "covers", "is_like", "secret_in"]

Action: TypeAlias = Literal["publish", "subscribe", "create", "submit", "work", "kick"]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
EVERYONE: Final = "*"
CLIENT: Final = "{client}"
"""In a rule's filter: the client's own name, as one level."""
_WITHOUT_TOPIC: Final = frozenset(("kick",))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """These clients may do this on these topics, or (submit, work) on these kinds of work."""

    clients: tuple[str, ...]
    """Names, in which * stands for any characters and ? for one; "*" alone is everyone."""
    allow: frozenset[Action]
    topics: tuple[str, ...] = ()
    """Filters. To kick no topic is needed."""

    def __post_init__(self) -> None:
        if not self.clients or "" in self.clients:
            raise ConfigurationError(f'a rule names no client: give names or globs, "{EVERYONE}" for everyone')
        if unknown := set(self.allow) - set(ACTIONS):
            raise ConfigurationError(f"a rule allows {shown(min(unknown))}: choose from {', '.join(ACTIONS)}")
        if not self.topics and self.allow - _WITHOUT_TOPIC:
            raise ConfigurationError(
                f"a rule allows {', '.join(sorted(self.allow - _WITHOUT_TOPIC))} on no topic: "
                'give filters, "#" for all topics and kinds of work'
            )
        for text in self.topics:
            check_rule_filter(text)

    def is_for(self, name: str) -> bool:
        """Whether it holds for a client that has proved this name."""
        return any(is_like(name, glob) for glob in self.clients)

    @property
    def is_for_everyone(self) -> bool:
        return EVERYONE in self.clients

    def allows(self, name: str | None, action: Action, topic: str) -> bool:
        """Whether it allows this on the topic, filter or kind. `name`: as proved; None for an anonymous client."""
        if action not in self.allow:
            return False
        if action in _WITHOUT_TOPIC:
            return True
        return any(_covers_for(name, text, topic) for text in self.topics)


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """The names and rules of one broker. Without arguments: nobody is known, nothing is allowed but to connect."""

    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False, hash=False)
    """Of each listed name."""
    rules: tuple[Rule, ...] = ()
    allows_anonymous: bool = True
    """Whether somebody without a listed name may connect."""
    is_open: bool = False
    """Whether everybody may do everything; rules are then not looked at."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secrets", MappingProxyType(dict(self.secrets)))
        for name, secret in self.secrets.items():
            size_bytes = len(name.encode(errors="replace"))
            if not 1 <= size_bytes <= MAX_CLIENT_NAME_BYTES:
                raise ConfigurationError(
                    f"the client name {shown(name)} is {size_bytes} bytes long: "
                    f"1 to {MAX_CLIENT_NAME_BYTES} are allowed"
                )
            if not 1 <= len(secret) <= MAX_SECRET_BYTES:
                raise ConfigurationError(
                    f"the secret of client {shown(name)} is {len(secret)} bytes long: "
                    f"1 to {MAX_SECRET_BYTES} are allowed, 16 random ones are good"
                )

    @classmethod
    def open(cls) -> Access:
        """Everybody may do everything: a broker without access rules."""
        return cls(is_open=True)

    def secret_of(self, name: str) -> bytes | None:
        """What this name is proved with; None: it is nobody's, and who uses it is anonymous."""
        return self.secrets.get(name)

    def may(self, name: str | None, proved: bool, action: Action, topic: str = "") -> bool:
        """Whether a client may do this on a topic, (subscribe) on a whole filter or (submit, work) on a kind of work.

        None of these is needed to kick.
        """
        if self.is_open:
            return True
        is_listed = name is not None and name in self.secrets
        if is_listed and not proved:
            return False
        proved_name = name if is_listed else None
        return any(rule.allows(proved_name, action, topic) for rule in self._rules_for(proved_name))

    def _rules_for(self, name: str | None) -> list[Rule]:
        if name is None:
            return [rule for rule in self.rules if rule.is_for_everyone]
        return [rule for rule in self.rules if rule.is_for(name)]


def is_like(name: str, glob: str) -> bool:
    """Whether a name fits a glob, in which only * and ? are special."""
    return fnmatchcase(name, glob.replace("[", "[[]"))


def check_rule_filter(text: str) -> None:
    """ConfigurationError if it is no filter for a rule, where a level may also be {client}."""
    try:
        check_filter(text)
    except BadFilterError as error:
        raise ConfigurationError(f"in a rule: {error}") from error
    for level in split(text):
        if CLIENT in level and level != CLIENT:
            raise ConfigurationError(
                f"the filter {shown(text)} in a rule has {CLIENT} inside the level {shown(level)}: "
                f"it stands alone between slashes, as in home/{CLIENT}/#"
            )


def secret_in(data: bytes) -> bytes:
    """The secret that a file holds: its bytes without the line ends behind them, which editors add."""
    return data.rstrip(b"\r\n")


def _covers_for(name: str | None, rule_filter: str, topic: str) -> bool:
    if CLIENT not in rule_filter:
        return covers(rule_filter, topic)
    # An anonymous client has no name of its own, and a name that is no plain level would change the filter's meaning.
    if name is None or "/" in name or any(character in name for character in WILDCARDS):
        return False
    if rule_filter.startswith(CLIENT) and name.startswith(RESERVED):
        return False
    levels = [name if level == CLIENT else level for level in split(rule_filter)]
    return covers("/".join(levels), topic)
