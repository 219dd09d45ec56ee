"""Which topics a request asks for. Each name is compared with the filters once, however many blocks it is in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from godwit.store.block import DamagedBlockError, decode_topic_index
from godwit.wire.filters import matches

MAX_REMEMBERED: Final = 50_000
"""Topics; then all are forgotten, and compared again."""


class Chosen:
    """The topics that match one of the filters; without filters every topic."""

    def __init__(self, filters: Sequence[str]) -> None:
        self._filters = tuple(filters)
        self._known: dict[str, bool] = {}

    @property
    def is_everything(self) -> bool:
        return not self._filters

    def has(self, topic: str) -> bool:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            known = self.is_everything or any(matches(pattern, topic) for pattern in self._filters)
            self._known[topic] = known
        return known

    def among(self, topics: Sequence[str]) -> list[bool]:
        """For each of them."""
        return list(map(self.has, topics))

    def concerns(self, topics: bytes) -> bool:
        """Whether a block with this table of topics has to be read. A damaged table may hold anything."""
        if self.is_everything:
            return True
        try:
            shares = decode_topic_index(topics)
        except DamagedBlockError:
            return True
        return not shares or any(self.has(share.name) for share in shares)
