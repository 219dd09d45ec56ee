"""Access rules: names with secrets, and rules by name, action and filter. Also the rights of archive tokens.

A client must prove a name that is listed. Every other client is anonymous, also under a name that it chose: only rules
for everyone ("*") apply to it. Without a rule that allows it, everything is forbidden, and a rule that denies wins over
all that allow. Rules are about the principal: the proved name of a client, or the user of an MQTT client.

To submit jobs and to work on them are rights on kinds of work, which are written and matched as topics are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from godwit.broker.topics import check_filter, shown
from godwit.errors import BadFilterError, ConfigurationError
from godwit.limits import MAX_CLIENT_NAME_BYTES, MAX_FILTERS, MAX_SECRET_BYTES
from godwit.wire.filters import ONE, RESERVED, WILDCARDS, covers, overlaps, split

Action: TypeAlias = Literal["publish", "subscribe", "create", "submit", "work", "kick", "relay"]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
EVERYONE: Final = "*"
CLIENT: Final = "{client}"
"""In a rule's filter: the client's own name, as one level."""
_WITHOUT_TOPIC: Final = frozenset(("kick",))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Allow or deny these clients these actions on these topics, or (submit, work) on these kinds of work."""

    clients: tuple[str, ...]
    """Names, in which * stands for any characters and ? for one; "*" alone stands for every client."""
    allow: frozenset[Action] = frozenset()
    deny: frozenset[Action] = frozenset()
    """A rule has one of `allow` and `deny`."""
    topics: tuple[str, ...] = ()
    """Topic filters; not needed to kick."""
    groups: tuple[str, ...] = (EVERYONE,)
    """Consumer groups that may (or must not) be joined with the right to subscribe: names, in which * and ? are
    special. A rule that denies and lists groups denies these groups only."""

    def __post_init__(self) -> None:
        if not self.clients or "" in self.clients:
            raise ConfigurationError(f'a rule names no client: give names or globs, "{EVERYONE}" for everyone')
        if bool(self.allow) == bool(self.deny):
            raise ConfigurationError("a rule has one of allow and deny: give one of them, and a second rule")
        actions, verb = (self.allow, "allows") if self.allow else (self.deny, "denies")
        if unknown := set(actions) - set(ACTIONS):
            raise ConfigurationError(f"a rule {verb} {shown(min(unknown))}: choose from {', '.join(ACTIONS)}")
        if not self.topics and actions - _WITHOUT_TOPIC:
            raise ConfigurationError(
                f"a rule {verb} {', '.join(sorted(actions - _WITHOUT_TOPIC))} on no topic: "
                'give filters, "#" for all topics and kinds of work'
            )
        for text in self.topics:
            check_rule_filter(text)

    def is_for(self, name: str) -> bool:
        """Return whether the rule applies to a client that has proved this name."""
        return any(is_like(name, glob) for glob in self.clients)

    @property
    def is_for_everyone(self) -> bool:
        return EVERYONE in self.clients

    def allows(self, name: str | None, action: Action, topic: str) -> bool:
        """Return whether the rule allows the action on a topic, filter or kind.

        `name`: the proved name; None for an anonymous client.
        """
        if action not in self.allow:
            return False
        if action in _WITHOUT_TOPIC:
            return True
        return any(_covers_for(name, text, topic) for text in self.topics)

    def denies(self, name: str | None, action: Action, topic: str, group: str | None = None) -> bool:
        """Return whether the rule denies the action on a topic or kind, or on any topic of a filter.

        `name`: the proved name; None for an anonymous client. `group`: for a subscription in a consumer group.
        """
        if action not in self.deny:
            return False
        if action in _WITHOUT_TOPIC:
            return True
        if EVERYONE not in self.groups and (group is None or not any(is_like(group, glob) for glob in self.groups)):
            return False
        return any(_meets_for(name, text, topic) for text in self.topics)


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """The names and rules of one broker. Without arguments: no name is listed, and clients may only connect."""

    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False, hash=False)
    """The secret of each listed name that has one."""
    certificates: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Listed names that a certificate of the client proves: the fingerprint of its key, or an empty text for any
    certificate of the authority for clients that has this name."""
    rules: tuple[Rule, ...] = ()
    allows_anonymous: bool = True
    """Whether clients without a listed name may connect."""
    is_open: bool = False
    """Whether every client may do everything; the rules are then ignored."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secrets", MappingProxyType(dict(self.secrets)))
        object.__setattr__(self, "certificates", MappingProxyType(dict(self.certificates)))
        for name in self.names:
            size_bytes = len(name.encode(errors="replace"))
            if not 1 <= size_bytes <= MAX_CLIENT_NAME_BYTES:
                raise ConfigurationError(
                    f"the client name {shown(name)} is {size_bytes} bytes long: "
                    f"1 to {MAX_CLIENT_NAME_BYTES} are allowed"
                )
        for name, secret in self.secrets.items():
            if not 1 <= len(secret) <= MAX_SECRET_BYTES:
                raise ConfigurationError(
                    f"the secret of client {shown(name)} is {len(secret)} bytes long: "
                    f"1 to {MAX_SECRET_BYTES} are allowed, 16 random ones are good"
                )

    @classmethod
    def open(cls) -> Access:
        """Return the access of a broker without access rules: every client may do everything."""
        return cls(is_open=True)

    @property
    def names(self) -> list[str]:
        """The listed names. Clients with other names are anonymous."""
        return list(dict.fromkeys((*self.secrets, *self.certificates)))

    def is_listed(self, name: str) -> bool:
        """Return whether a client must prove this name."""
        return name in self.secrets or name in self.certificates

    def secret_of(self, name: str) -> bytes | None:
        """Return the secret of a name; None if it is not listed, or if only a certificate proves it."""
        return self.secrets.get(name)

    def certificate_of(self, name: str) -> str | None:
        """Return which certificate proves a name, see `certificates`; None if none does."""
        return self.certificates.get(name)

    def may(self, name: str | None, proved: bool, action: Action, topic: str = "") -> bool:
        """Return whether a client may do this, see `problem`."""
        return not self.problem(name, proved, action, topic)

    def problem(self, name: str | None, proved: bool, action: Action, topic: str = "") -> str:
        """Return why a client may not do this on a topic, a whole filter (subscribe) or a kind of work (submit, work).

        No topic is needed to kick. The text names the rule that denies it; it is empty if the client may do it.
        """
        return self._problem(name, proved, action, topic, None)

    def may_join(self, name: str | None, proved: bool, group: str, topic: str) -> bool:
        """Return whether a client may subscribe to a whole filter as a member of a consumer group."""
        return not self.join_problem(name, proved, group, topic)

    def join_problem(self, name: str | None, proved: bool, group: str, topic: str) -> str:
        """Return why a client may not subscribe to a whole filter as a member of a consumer group, or ""."""
        return self._problem(name, proved, "subscribe", topic, group)

    def _problem(self, name: str | None, proved: bool, action: Action, topic: str, group: str | None) -> str:
        if self.is_open:
            return ""
        is_listed = name is not None and self.is_listed(name)
        if is_listed and not proved:
            return "its name is not proved"
        proved_name = name if is_listed else None
        is_allowed = False
        for number, rule in enumerate(self.rules, 1):
            if not (rule.is_for_everyone if proved_name is None else rule.is_for(proved_name)):
                continue
            if rule.denies(proved_name, action, topic, group):
                return f"access.rule number {number} denies it"
            if not is_allowed and rule.allows(proved_name, action, topic):
                is_allowed = group is None or any(is_like(group, glob) for glob in rule.groups)
        return "" if is_allowed else "no access.rule allows it"

    def rights_of_anonymous(self) -> list[tuple[Action, tuple[str, ...]]]:
        """Return the rights of clients without a proved name: each action with its filters, in the order of
        ACTIONS. Rules that deny are not subtracted."""
        rights: list[tuple[Action, tuple[str, ...]]] = []
        for action in ACTIONS:
            allowing = [rule for rule in self.rules if rule.is_for_everyone and action in rule.allow]
            texts = [text for rule in allowing for text in rule.topics if CLIENT not in text]
            if allowing and (texts or action in _WITHOUT_TOPIC):
                rights.append((action, () if action in _WITHOUT_TOPIC else tuple(dict.fromkeys(texts))))
        return rights


def is_like(name: str, glob: str) -> bool:
    """Return whether a name matches a glob, in which only * and ? are special."""
    return fnmatchcase(name, glob.replace("[", "[[]"))


def check_rule_filter(text: str) -> None:
    """Raise ConfigurationError if this is not a filter for a rule, where a level may also be {client}."""
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
    """Return the secret in a file: its bytes without the line ends that editors add."""
    return data.rstrip(b"\r\n")


def _covers_for(name: str | None, rule_filter: str, topic: str) -> bool:
    if CLIENT not in rule_filter:
        return covers(rule_filter, topic)
    if name is None or not _is_level(name):
        return False
    if rule_filter.startswith(CLIENT) and name.startswith(RESERVED):
        return False
    levels = [name if level == CLIENT else level for level in split(rule_filter)]
    return covers("/".join(levels), topic)


def _meets_for(name: str | None, rule_filter: str, topic: str) -> bool:
    """Return whether a rule that denies concerns a topic, or any topic of a filter.

    A name that does not fit one level, or none, must not undo the rule: {client} then matches every level.
    """
    if CLIENT not in rule_filter:
        return overlaps(rule_filter, topic)
    own = ONE if name is None or not _is_level(name) else name
    levels = [own if level == CLIENT else level for level in split(rule_filter)]
    return overlaps("/".join(levels), topic)


def _is_level(name: str) -> bool:
    """Return whether a name fits one level of a filter: a slash or wildcard in it would change the filter."""
    return "/" not in name and not any(character in name for character in WILDCARDS)


class TokenRights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rights of an archive token: the topics it reads and publishes to, and the names it publishes under.

    A client proves a listed name with its secret. An archive token proves no name, so without a right of its own it
    must not publish under a name that has a secret: subscribers would take its messages for those of that client.

    Each `*_problem` method returns why something is not allowed, or an empty text if it is.
    """

    read: tuple[str, ...] | None = None
    """Topic filters; None: all topics, also those that begin with $."""
    publish: tuple[str, ...] | None = None
    """Topic filters; None: all topics. Topics that begin with $ are the broker's own in any case."""
    names: tuple[str, ...] | None = None
    """Publisher names, in which * stands for any characters and ? for one; None: all names that have no secret."""
    expires: str = ""
    """Until when the token is accepted, with the offset from UTC, as in 2026-12-01T08:00:00Z. Empty: for ever."""

    def check(self) -> None:
        """Raise ConfigurationError if a filter or a name is invalid, or there are too many."""
        for key in ("read", "publish", "names"):
            texts = getattr(self, key) or ()
            if len(texts) > MAX_FILTERS:
                raise ConfigurationError(f"{key} has {len(texts)} entries: at most {MAX_FILTERS} are allowed")
        for text in (*(self.read or ()), *(self.publish or ())):
            try:
                check_filter(text)
            except BadFilterError as error:
                raise ConfigurationError(str(error)) from error
        for name in self.names or ():
            if not 1 <= len(name.encode(errors="replace")) <= MAX_CLIENT_NAME_BYTES:
                raise ConfigurationError(f"the name {shown(name)} must have 1 to {MAX_CLIENT_NAME_BYTES} bytes")

    def read_problem(self, filters: Sequence[str]) -> str:
        """Check a request for these filters; an empty list is a request for all topics."""
        if self.read is None:
            return ""
        allowed = ", ".join(map(shown, self.read)) or "nothing"
        if not filters:
            return f"the token may not read all topics: give filters; it may read {allowed}"
        for text in filters:
            if not any(covers(right, text) for right in self.read):
                return f"the token may not read {shown(text)}: it may read {allowed}"
        return ""

    def publish_problem(self, topic: str) -> str:
        """Check a topic to publish to."""
        if self.publish is None or any(covers(right, topic) for right in self.publish):
            return ""
        allowed = ", ".join(map(shown, self.publish)) or "nothing"
        return (
            f"the token may not publish to {shown(topic)}: it may publish to {allowed}; "
            "ask the operator of the broker for a token that may"
        )

    def name_problem(self, name: str, *, has_secret: bool) -> str:
        """Check a name to publish under."""
        if self.names is None:
            if not has_secret:
                return ""
            return (
                f"the token may not publish under the name {shown(name)}, which has a secret: choose another name, "
                "or ask the operator of the broker for a token that lists this one"
            )
        if any(is_like(name, pattern) for pattern in self.names):
            return ""
        allowed = ", ".join(map(shown, self.names)) or "no name"
        return (
            f"the token may not publish under the name {shown(name)}: it may publish under {allowed}; "
            "choose one of these, or ask the operator of the broker for a token that may"
        )

    def staging_problem(self) -> str:
        """Check whether the token may stage, commit and abort anything at all."""
        return "the token may only read" if () in (self.publish, self.names) else ""
