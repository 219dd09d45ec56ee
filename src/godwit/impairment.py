"""One direction of an impaired path, sans-IO: input is a datagram and the time, output are its deliveries.

A datagram passes these stages in order. Each may drop it, and a counter per stage counts the drops:

    outage -> MTU -> queue and bandwidth -> loss -> truncation, corruption -> delay, jitter, reordering, duplication

Loss comes after the bandwidth, as on a radio link: a lost datagram has used its time on the line. All random numbers
come from the given generator, so equal seeds behave equally.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass

HEADER_BYTES = 28
"""The bytes that IPv4 (20) and UDP (8) add to every datagram on the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """The impairments of one direction of a path. The defaults are none: instant, unlimited, faultless."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """The largest random addition to the delay. Jitter alone never reorders datagrams."""
    bandwidth_bits_per_s: float | None = None
    queue_packets: int | None = None
    """How many may wait behind the one on the line; a datagram that finds the queue full is dropped."""
    mtu_bytes: int = 1500
    """The largest IP packet; a datagram counts with its 28 bytes of headers."""
    loss: float = 0.0
    corruption: float = 0.0
    """Long-run shares of datagrams lost, and of datagrams that arrive with flipped bits."""
    burst_mean_packets: float | None = None
    """Mean run length of losses (and of corruptions); None draws each datagram on its own."""
    burst_max_packets: int | None = None
    """After this many in a row the next one passes, so the share above is then an upper bound."""
    truncation: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    reorder_delay_s: tuple[float, float] = (0.001, 0.02)
    """A reordered datagram is delayed by a time from this range, while later ones overtake it."""
    outages: tuple[tuple[float, float], ...] = ()
    """Outages as (from, until): datagrams that would enter or arrive during one are lost."""

    def __post_init__(self) -> None:
        for name in ("loss", "corruption", "truncation", "duplication", "reordering"):
            share = getattr(self, name)
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{name} is a share between 0 and 1, not {share}")
        if self.delay_s < 0.0 or self.jitter_s < 0.0 or not 0.0 <= self.reorder_delay_s[0] <= self.reorder_delay_s[1]:
            raise ValueError("delays are never negative, and a range is (least, most)")
        if self.bandwidth_bits_per_s is not None and self.bandwidth_bits_per_s <= 0.0:
            raise ValueError("a link without bandwidth is an outage: use outages")
        if self.burst_mean_packets is not None and self.burst_mean_packets < 1.0:
            raise ValueError("a burst has at least one packet")


class Bursts:
    """A random yes-or-no process with a given long-run share of yes, in runs of a given mean and largest length.

    Two states (Gilbert): after a yes the next is yes with probability `stay`, after a no with `enter`.
    """

    def __init__(self, share: float, mean: float | None, largest: int | None) -> None:
        self._enter = self._stay = share
        if mean is not None and 0.0 < share < 1.0:
            self._stay = 1.0 - 1.0 / mean
            self._enter = min(1.0, share * (1.0 - self._stay) / (1.0 - share))
        self._largest = largest
        self._run = 0

    def draw(self, rng: random.Random) -> bool:
        if self._enter == 0.0:
            return False
        hit = rng.random() < (self._stay if self._run else self._enter)
        if self._largest is not None and self._run >= self._largest:
            hit = False
        self._run = self._run + 1 if hit else 0
        return hit


class ImpairedLink:
    """One direction of a path. Offer datagrams with a `now` that never decreases."""

    def __init__(self, settings: LinkSettings, rng: random.Random) -> None:
        self.up = True
        """Set to False for an unscheduled partition."""
        self.counters: Counter[str] = Counter()
        """offered, delivered, the same with _bytes (headers included), and one name for each kind of fault."""
        self._rng = rng
        self._line_free_at = 0.0
        self._waiting: deque[float] = deque()  # when each datagram in the queue starts on the line
        self._last_arrival = 0.0
        self.change(settings)

    @property
    def settings(self) -> LinkSettings:
        return self._settings

    def change(self, settings: LinkSettings) -> None:
        """Use other settings from now on; datagrams already in flight are not affected."""
        self._settings = settings
        self._loss = Bursts(settings.loss, settings.burst_mean_packets, settings.burst_max_packets)
        self._corruption = Bursts(settings.corruption, settings.burst_mean_packets, settings.burst_max_packets)

    def offer(self, datagram: bytes, now: float) -> list[tuple[float, bytes]]:
        """Send one datagram; return when which bytes arrive: never, once, or twice, ordered by time."""
        settings = self._settings
        counters = self.counters
        line_bytes = len(datagram) + HEADER_BYTES
        counters["offered"] += 1
        counters["offered_bytes"] += line_bytes
        if not self.up or self._dark(now):
            counters["outage"] += 1
            return []
        if line_bytes > settings.mtu_bytes:
            counters["too_big"] += 1
            return []
        leaves_at = self._transmit(line_bytes, now)
        if leaves_at is None:
            counters["queue_full"] += 1
            return []
        if self._loss.draw(self._rng):
            counters["lost"] += 1
            return []
        datagram = self._damage(datagram)
        deliveries = []
        for arrives_at in self._arrivals(leaves_at):
            if self._dark(arrives_at):
                counters["outage"] += 1
                continue
            counters["delivered"] += 1
            counters["delivered_bytes"] += len(datagram) + HEADER_BYTES
            deliveries.append((arrives_at, datagram))
        deliveries.sort(key=lambda delivery: delivery[0])
        return deliveries

    def _dark(self, at: float) -> bool:
        return any(start <= at < end for start, end in self._settings.outages)

    def _transmit(self, line_bytes: int, now: float) -> float | None:
        """Return when the last bit has left, or None if the queue is full."""
        bandwidth = self._settings.bandwidth_bits_per_s
        if bandwidth is None:
            return now
        waiting = self._waiting
        while waiting and waiting[0] <= now:
            waiting.popleft()
        limit = self._settings.queue_packets
        if limit is not None and len(waiting) >= limit and self._line_free_at > now:
            return None
        starts_at = max(now, self._line_free_at)
        if starts_at > now:
            waiting.append(starts_at)
        self._line_free_at = starts_at + line_bytes * 8.0 / bandwidth
        return self._line_free_at

    def _damage(self, datagram: bytes) -> bytes:
        rng = self._rng
        if self._settings.truncation and rng.random() < self._settings.truncation and datagram:
            self.counters["truncated"] += 1
            datagram = datagram[: rng.randrange(len(datagram))]
        if self._corruption.draw(rng) and datagram:
            self.counters["corrupted"] += 1
            datagram = flip_bits(datagram, rng)
        return datagram

    def _arrivals(self, leaves_at: float) -> list[float]:
        settings = self._settings
        rng = self._rng
        arrives_at = leaves_at + settings.delay_s
        if settings.jitter_s:
            arrives_at += rng.random() * settings.jitter_s
        if settings.reordering and rng.random() < settings.reordering:
            # It is delayed separately: later datagrams do not wait for it, and it does not wait for earlier ones.
            self.counters["reordered"] += 1
            arrives_at += rng.uniform(*settings.reorder_delay_s)
        else:
            arrives_at = self._last_arrival = max(arrives_at, self._last_arrival)
        arrivals = [arrives_at]
        if settings.duplication and rng.random() < settings.duplication:
            self.counters["duplicated"] += 1
            arrivals.append(arrives_at + rng.random() * max(settings.delay_s, 0.001))
        return arrivals


def flip_bits(datagram: bytes, rng: random.Random) -> bytes:
    """Return a copy with one to three different bits flipped: CRC-32C detects every such error at these lengths."""
    damaged = bytearray(datagram)
    bits = len(damaged) * 8
    for bit in rng.sample(range(bits), min(bits, rng.randint(1, 3))):
        damaged[bit >> 3] ^= 1 << (bit & 7)
    return bytes(damaged)
