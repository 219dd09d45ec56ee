"""The rights of an archive token: the topics it reads and publishes to, and the names it publishes under.

A client proves a listed name with its secret. An archive token proves no name, so without a right of its own it must
not publish under a name that has a secret: subscribers would take its messages for those of that client.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from godwit.broker.access import is_like
from godwit.broker.topics import check_filter, covers, shown
from godwit.errors import BadFilterError, ConfigurationError
from godwit.limits import MAX_CLIENT_NAME_BYTES, MAX_FILTERS


class TokenRights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a token allows; without arguments, the rights of a token for which none are given.

    Each `*_problem` method returns why something is not allowed, or an empty text if it is.
    """

    read: tuple[str, ...] | None = None
    """Topic filters; None: all topics, also those that begin with $."""
    publish: tuple[str, ...] | None = None
    """Topic filters; None: all topics. Topics that begin with $ are the broker's own in any case."""
    names: tuple[str, ...] | None = None
    """Publisher names, in which * stands for any characters and ? for one; None: all names that have no secret."""

    def check(self) -> None:
        """Raise ConfigurationError if a filter or a name is invalid, or there are too many."""
        for field in ("read", "publish", "names"):
            texts = getattr(self, field) or ()
            if len(texts) > MAX_FILTERS:
                raise ConfigurationError(f"{field} has {len(texts)} entries: at most {MAX_FILTERS} are allowed")
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
