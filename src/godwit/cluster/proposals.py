"""The proposals of a node: records that it has sent to the engine and that do not count yet, in their order.

Each part is sent behind the position where it is to be stored. A part without an answer is in doubt: it is looked for,
and sent again if there is nothing. See godwit.cluster.node.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from godwit.cluster.engine import AppendRequest
from godwit.cluster.records import Content, Fold, encode_body, encode_parts

DOUBT_S: Final = 1.5
"""After this time without an answer a node looks for its records."""
RESEND_MIN_S: Final = 0.02
RESEND_MAX_S: Final = 1.0


class Proposal(msgspec.Struct):
    """A record in parts."""

    kind: int
    parts: list[bytes]
    number: int
    """Of its last part."""
    link: int
    content: Content
    token: Any
    settled: int = 0
    sent_behind: list[int] = []


class Proposals:
    """The records of one node that are in flight."""

    def __init__(self, now: float) -> None:
        self.head_since = now
        """Since when the first proposal is the first one, and not settled."""
        self._queue: deque[Proposal] = deque()
        self._sent_at = now
        self._resend_at: float | None = None
        self._resend_pause_s = RESEND_MIN_S

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is sent or looked for until they are sent again."""
        return not self._queue or self._resend_at is not None

    def due(self) -> float | None:
        """Return when `resend_if_due` or `is_in_doubt` has something to do."""
        if self._resend_at is not None:
            return self._resend_at
        return self._sent_at + DOUBT_S if self._queue else None

    def add(self, kind: int, epoch: int, fold: Fold, content: Content, token: object, now: float) -> None:
        """Propose a record behind all others, or behind the last part that counts."""
        last = self._queue[-1] if self._queue else None
        number, link = (fold.number, fold.link) if last is None else (last.number, last.link)
        parts, number, link = encode_parts(kind, epoch, number, link, encode_body(content))
        if last is None:
            self.head_since = self._sent_at = now
            self._resend_pause_s = RESEND_MIN_S
        self._queue.append(Proposal(kind, parts, number, link, content, token, sent_behind=[-1] * len(parts)))

    def unsent(self, after: int, now: float) -> list[AppendRequest]:
        """Return the parts that were not sent yet, behind the last position that was read."""
        if self._resend_at is not None:
            return []
        requests = []
        for proposal in self._queue:
            for index in range(proposal.settled, len(proposal.parts)):
                if proposal.sent_behind[index] == -1:
                    proposal.sent_behind[index] = after
                    requests.append(AppendRequest(after, proposal.parts[index]))
                    self._sent_at = now
                after += 1
        return requests

    def has_next(self, data: bytes) -> bool:
        """Return whether a record is the first part that is not settled."""
        return bool(self._queue) and self._queue[0].parts[self._queue[0].settled] == data

    def settle(self, now: float) -> Proposal | None:
        """Count a part of the first proposal. Return the proposal if this was its last part."""
        head = self._queue[0]
        head.settled += 1
        self._resend_pause_s = RESEND_MIN_S
        self.head_since = self._sent_at = now
        if head.settled < len(head.parts):
            return None
        return self._queue.popleft()

    def is_in_doubt(self, now: float) -> bool:
        """Return whether there was no answer for too long, which is once until the next time."""
        if self.is_waiting or now < self._sent_at + DOUBT_S:
            return False
        self._sent_at = now
        return True

    def resend_later(self, now: float) -> None:
        """Send all of them again after a pause."""
        if not self.is_waiting:
            self._resend_at = now + self._resend_pause_s
            self._resend_pause_s = min(2 * self._resend_pause_s, RESEND_MAX_S)

    def resend_if_due(self, now: float) -> bool:
        """Return whether all of them are to be sent again now, by `unsent`."""
        if self._resend_at is None or now < self._resend_at:
            return False
        self._resend_at = None
        for proposal in self._queue:
            proposal.sent_behind = [-1] * len(proposal.parts)
        return True

    def clear(self) -> None:
        """Give them up without an answer: some may be stored already, or later."""
        self._queue.clear()
        self._resend_at = None
