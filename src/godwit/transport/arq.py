"""The three retransmission schemes, as interchangeable policies.

Selective repeat sends only lost fragments again. Go-back-n numbers the fragments of a connection (their *position*),
has
at most a window of them in flight, and after a loss sends everything again from the first missing one, because the
receiver keeps only fragments in order. Stop-and-wait is go-back-n with a window of one.

SendChannels asks a policy for `next_resend`, then, if `may_send_new`, cuts new fragments and passes them to
`handle_new`.
The policy is notified of packets that are acknowledged or lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.transport.recovery import SentRun
from godwit.transport.send_channels import UNUSED, Fragment, OutgoingRecord
from godwit.wire.packet import expand_number
from godwit.wire.parameters import Parameters


class SendPolicy(Protocol):
    """Decides which fragments to send again, and whether new ones may be sent."""

    largest_datagram_bytes: int | None
    """The largest datagram that fragments are cut for; None: whatever the path carries."""

    def next_resend(self) -> Fragment | None:
        """Return the next fragment to send again, without removing it."""

    def mark_resent(self) -> None:
        """Note that the fragment of next_resend has been put into a packet."""

    def replace_resend(self, smaller: Iterable[Fragment]) -> None:
        """Replace the fragment of next_resend, which no longer fits the path, by smaller ones with the same bytes."""

    def may_send_new(self) -> bool: ...

    def handle_new(self, fragment: Fragment) -> None:
        """Note that a new fragment is about to be sent for the first time."""

    def handle_ack(self, arrived: Sequence[SentRun], next_position: int | None) -> list[OutgoingRecord]:
        """Note that packets arrived, and with go-back-n that the receiver has all positions below `next_position`
        (truncated).

        Return the records that are now complete.
        """

    def is_possible(self, next_position: int) -> bool:
        """Return whether the receiver can have reached this position (truncated)."""

    def handle_lost(self, packet: int, fragments: Iterable[Fragment]) -> None:
        """Note that the packet with these fragments is lost."""

    def handle_probe(self, fragments: Iterable[Fragment]) -> None:
        """Send the fragments of the oldest packet in flight again, because the probe timer fired."""

    def release(self) -> None:
        """Drop all fragments, because the connection has ended."""


class SelectiveRepeat:
    """Sends lost fragments again, and nothing else."""

    largest_datagram_bytes: int | None = None

    def __init__(self) -> None:
        self.lost: deque[Fragment] = UNUSED
        """Fragments to send again, unless they have arrived since."""

    def next_resend(self) -> Fragment | None:
        lost = self.lost
        while lost and lost[0].settled:
            lost.popleft()
        return lost[0] if lost else None

    def mark_resent(self) -> None:
        self.lost.popleft()

    def replace_resend(self, smaller: Iterable[Fragment]) -> None:
        self.lost.popleft().settled = True
        self.lost.extendleft(reversed(list(smaller)))

    def may_send_new(self) -> bool:
        return True

    def handle_new(self, fragment: Fragment) -> None:
        pass

    def handle_ack(self, arrived: Sequence[SentRun], next_position: int | None) -> list[OutgoingRecord]:
        completed = []
        for run in arrived:
            for fragment in run.fragments:
                if fragment.settle():
                    completed.append(fragment.record)
        return completed

    def is_possible(self, next_position: int) -> bool:
        return False

    def handle_lost(self, packet: int, fragments: Iterable[Fragment]) -> None:
        # A fragment that a probe has carried since then is still in flight.
        if self.lost is UNUSED:
            self.lost = deque()
        self.lost.extend(one for one in fragments if one.packet == packet and not one.settled)

    def handle_probe(self, fragments: Iterable[Fragment]) -> None:
        if self.lost is UNUSED:
            self.lost = deque()
        self.lost.extendleft(one for one in reversed(list(fragments)) if not one.settled)

    def release(self) -> None:
        self.lost = UNUSED


class GoBackN:
    """Sends everything in order, within a window; stop-and-wait has a window of one."""

    # A fragment keeps its position, so it is never cut again: it must fit every path.
    largest_datagram_bytes: int | None = BASE_DATAGRAM_BYTES

    def __init__(self, window: int) -> None:
        self._window = window
        self._in_flight: deque[Fragment] = deque()
        self._first_position = 0
        self._cursor = 0
        """The number of fragments in flight that were sent since the last going back."""

    def next_resend(self) -> Fragment | None:
        return self._in_flight[self._cursor] if self._cursor < len(self._in_flight) else None

    def mark_resent(self) -> None:
        self._cursor += 1

    def replace_resend(self, smaller: Iterable[Fragment]) -> None:
        raise AssertionError("a fragment with a position always fits")

    def may_send_new(self) -> bool:
        return len(self._in_flight) < self._window

    def handle_new(self, fragment: Fragment) -> None:
        fragment.position = self._first_position + len(self._in_flight)
        self._in_flight.append(fragment)
        self._cursor += 1

    def handle_ack(self, arrived: Sequence[SentRun], next_position: int | None) -> list[OutgoingRecord]:
        if next_position is None:
            return []
        completed = []
        expected = expand_number(next_position, self._first_position)
        while self._first_position < expected and self._in_flight:
            fragment = self._in_flight.popleft()
            if fragment.settle():
                completed.append(fragment.record)
            self._first_position += 1
            self._cursor = max(self._cursor - 1, 0)
        for run in arrived:
            # Packets that arrived beyond the position were out of order and discarded, which is the same as lost.
            self.handle_lost(run.number, run.fragments)
        return completed

    def is_possible(self, next_position: int) -> bool:
        return expand_number(next_position, self._first_position) <= self._first_position + len(self._in_flight)

    def handle_lost(self, packet: int, fragments: Iterable[Fragment]) -> None:
        for fragment in fragments:
            index = fragment.position - self._first_position
            # Once per flight: fragments sent before the last going back are being sent again already.
            if fragment.packet == packet and 0 <= index < self._cursor:
                self._cursor = 0

    def handle_probe(self, fragments: Iterable[Fragment]) -> None:
        self._cursor = 0

    def release(self) -> None:
        self._in_flight.clear()
        self._cursor = 0


class InOrderReceiver:
    """The receiver of go-back-n and stop-and-wait: accepts only the next position."""

    __slots__ = ("expected",)

    def __init__(self) -> None:
        self.expected = 0

    def accepts(self, position: int) -> bool:
        if position != self.expected:
            return False
        self.expected += 1
        return True


def send_policy(parameters: Parameters) -> SendPolicy:
    """Return the sender's policy for the scheme that the client chose."""
    if parameters.arq == "selective-repeat":
        return SelectiveRepeat()
    return GoBackN(1 if parameters.arq == "stop-and-wait" else parameters.arq_window)


def receive_policy(parameters: Parameters) -> InOrderReceiver | None:
    """Return the receiver's policy; None: fragments are accepted in any order."""
    return None if parameters.arq == "selective-repeat" else InOrderReceiver()
