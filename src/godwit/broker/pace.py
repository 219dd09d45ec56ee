"""The pace of publishers: who is beyond its rate gets its credit back later."""

from __future__ import annotations

from godwit.broker.effects import Consume, Effect
from godwit.broker.session import Link


class Pace:
    """Feed: give_back, owe, pay. What may be given goes into the list of effects."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._owing: dict[Link, None] = {}
        """Links whose rate is overdrawn."""

    def give_back(self, link: Link, channel: int, body_bytes: int, now_us: int) -> None:
        """The credit of a record, at once or when the client's rate allows it."""
        bucket = link.bucket
        if bucket is not None and bucket.due_us > now_us:
            self.owe(link, channel, body_bytes)
        else:
            self._effects.append(Consume(link.connection, channel, body_bytes))

    def owe(self, link: Link, channel: int, body_bytes: int) -> None:
        link.unpaid.append((channel, body_bytes))
        self._owing[link] = None

    @property
    def is_owing(self) -> bool:
        return bool(self._owing)

    def pay(self, now_us: int) -> int | None:
        """Gives back what may be given by now. Gives when the next is due."""
        next_us: int | None = None
        for link in list(self._owing):
            due_us = link.bucket.due_us if link.bucket is not None and link.is_open else 0
            if due_us > now_us:
                next_us = min(due_us, next_us or due_us)
                continue
            del self._owing[link]
            if link.is_open:
                self._effects += [Consume(link.connection, channel, size) for channel, size in link.unpaid]
            link.unpaid = []
        return next_us
