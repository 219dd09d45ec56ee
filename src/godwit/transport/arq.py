"""The three disciplines of repetition, as policies of one machine.

Selective repeat resends just the fragments that were lost. Go-back-n numbers the fragments of a connection (their
*position*), has at most a window of them under way, and on a loss sends everything again from the first one that is
missing, because the receiver keeps only what comes in order. Stop-and-wait is go-back-n with a window of one.

The sending half asks a policy for `next_resend`, then, if `may_send_new`, cuts new fragments and hands them to
`on_new`; packets that are acknowledged or lost are told to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.transport.fragment import UNUSED, Fragment, OutgoingRecord
from godwit.transport.sent import SentRun
from godwit.wire.packet import expand_number
from godwit.wire.parameters import Parameters


class SendPolicy(Protocol):
    """What is sent again, and when something new may be sent."""

    largest_datagram_bytes: int | None
    """Fragments are cut for datagrams of at most this size; None: whatever the path carries."""

    def next_resend(self) -> Fragment | None:
        """The fragment to be sent again next, without taking it."""

    def take_resend(self) -> None:
        """What next_resend gave has been put into a packet."""

    def replace_resend(self, smaller: Iterable[Fragment]) -> None:
        """What next_resend gave no longer fits the path; these together are the same bytes."""

    def may_send_new(self) -> bool: ...

    def on_new(self, fragment: Fragment) -> None:
        """A new fragment is about to be sent for the first time."""

    def on_ack(self, arrived: Sequence[SentRun], next_position: int | None) -> list[OutgoingRecord]:
        """These packets arrived, and with go-back-n the receiver has every position below `next_position` (truncated).

        Gives the records that this completed.
        """

    def is_possible(self, next_position: int) -> bool:
        """Whether the receiver can have come so far (truncated)."""

    def on_lost(self, packet: int, fragments: Iterable[Fragment]) -> None:
        """Their packet is lost."""

    def on_probe(self, fragments: Iterable[Fragment]) -> None:
        """The probe timer fired and theirs is the oldest packet under way: they go out again."""

    def release(self) -> None:
        """Drop all fragments, because the connection has ended."""


class SelectiveRepeat:
    """Resends what was lost, nothing else."""

    largest_datagram_bytes: int | None = None

    def __init__(self) -> None:
        self.lost: deque[Fragment] = UNUSED
        """To be sent again, unless they have arrived after all."""

    def next_resend(self) -> Fragment | None:
        lost = self.lost
        while lost and lost[0].settled:
            lost.popleft()
        return lost[0] if lost else None

    def take_resend(self) -> None:
        self.lost.popleft()

    def replace_resend(self, smaller: Iterable[Fragment]) -> None:
        self.lost.popleft().settled = True
        self.lost.extendleft(reversed(list(smaller)))

    def may_send_new(self) -> bool:
        return True

    def on_new(self, fragment: Fragment) -> None:
        pass

    def on_ack(self, arrived: Sequence[SentRun], next_position: int | None) -> list[OutgoingRecord]:
        return [fragment.record for run in arrived for fragment in run.fragments if fragment.settle()]

    def is_possible(self, next_position: int) -> bool:
        return False

    def on_lost(self, packet: int, fragments: Iterable[Fragment]) -> None:
        # One that a probe has carried again since then is still under way.
        if self.lost is UNUSED:
            self.lost = deque()
        self.lost.extend(one for one in fragments if one.packet == packet and not one.settled)

    def on_probe(self, fragments: Iterable[Fragment]) -> None:
        if self.lost is UNUSED:
            self.lost = deque()
        self.lost.extendleft(one for one in reversed(list(fragments)) if not one.settled)

    def release(self) -> None:
        self.lost = UNUSED


class GoBackN:
    """Everything in order, in a window; stop-and-wait with a window of one."""

    # A position stays with its fragment, so a fragment is never cut anew: it always fits.
    largest_datagram_bytes: int | None = BASE_DATAGRAM_BYTES

    def __init__(self, window: int) -> None:
        self._window = window
        self._under_way: deque[Fragment] = deque()
        self._first_position = 0
        self._cursor = 0
        """How many of those under way have been sent since the last going back."""

    def next_resend(self) -> Fragment | None:
        return self._under_way[self._cursor] if self._cursor < len(self._under_way) else None

    def take_resend(self) -> None:
        self._cursor += 1

    def replace_resend(self, smaller: Iterable[Fragment]) -> None:
        raise AssertionError("a fragment with a position always fits")

    def may_send_new(self) -> bool:
        return len(self._under_way) < self._window

    def on_new(self, fragment: Fragment) -> None:
        fragment.position = self._first_position + len(self._under_way)
        self._under_way.append(fragment)
        self._cursor += 1

    def on_ack(self, arrived: Sequence[SentRun], next_position: int | None) -> list[OutgoingRecord]:
        if next_position is None:
            return []
        completed = []
        expected = expand_number(next_position, self._first_position)
        while self._first_position < expected and self._under_way:
            fragment = self._under_way.popleft()
            if fragment.settle():
                completed.append(fragment.record)
            self._first_position += 1
            self._cursor = max(self._cursor - 1, 0)
        for run in arrived:
            # What arrived but is not below the position came out of order and was thrown away: it is as good as lost.
            self.on_lost(run.number, run.fragments)
        return completed

    def is_possible(self, next_position: int) -> bool:
        return expand_number(next_position, self._first_position) <= self._first_position + len(self._under_way)

    def on_lost(self, packet: int, fragments: Iterable[Fragment]) -> None:
        for fragment in fragments:
            index = fragment.position - self._first_position
            # Once for each flight: what was sent before the last going back is on its way again already.
            if fragment.packet == packet and 0 <= index < self._cursor:
                self._cursor = 0

    def on_probe(self, fragments: Iterable[Fragment]) -> None:
        self._cursor = 0

    def release(self) -> None:
        self._under_way.clear()
        self._cursor = 0


class InOrder:
    """The receiver of go-back-n and stop-and-wait: takes only the next position."""

    __slots__ = ("expected",)

    def __init__(self) -> None:
        self.expected = 0

    def takes(self, position: int) -> bool:
        if position != self.expected:
            return False
        self.expected += 1
        return True


def send_policy(parameters: Parameters) -> SendPolicy:
    """The sender's policy for the discipline that the client chose."""
    if parameters.arq == "selective-repeat":
        return SelectiveRepeat()
    return GoBackN(1 if parameters.arq == "stop-and-wait" else parameters.arq_window)


def receive_policy(parameters: Parameters) -> InOrder | None:
    """The receiver's; None: fragments are taken in any order."""
    return None if parameters.arq == "selective-repeat" else InOrder()
