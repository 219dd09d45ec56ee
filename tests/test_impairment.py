"""One direction of a path: each impairment alone, exactly or in its long-run share."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.impairment import HEADER_BYTES, Bursts, ImpairedLink, LinkSettings, flip_bits


def link(seed: int = 1, **settings: Any) -> ImpairedLink:
    return ImpairedLink(LinkSettings(**settings), Random(seed))


def offer_many(path: ImpairedLink, count: int, *, size: int = 100, every_s: float = 0.01) -> list[tuple[float, bytes]]:
    """Offer numbered datagrams; return the arrivals by time."""
    arrivals = []
    for number in range(count):
        arrivals += path.offer(number.to_bytes(4, "big") + bytes(size - 4), number * every_s)
    return sorted(arrivals)


def numbers(arrivals: list[tuple[float, bytes]]) -> list[int]:
    return [int.from_bytes(datagram[:4], "big") for _, datagram in arrivals]


def test_the_default_is_faultless_and_instant() -> None:
    path = link()
    assert path.offer(b"hello", 3.0) == [(3.0, b"hello")]
    assert path.counters["offered"] == path.counters["delivered"] == 1
    assert path.counters["delivered_bytes"] == 5 + HEADER_BYTES


def test_delay() -> None:
    assert link(delay_s=0.015).offer(b"x", 1.0) == [(1.015, b"x")]


def test_jitter_spreads_but_never_reorders() -> None:
    arrivals = []
    path = link(delay_s=0.01, jitter_s=0.05)
    for number in range(500):
        arrivals += path.offer(number.to_bytes(4, "big"), number * 0.001)
    assert numbers(arrivals) == list(range(500))
    times = [when for when, _ in arrivals]
    assert times == sorted(times)
    delays = [when - number * 0.001 for number, when in enumerate(times)]
    assert min(delays) >= 0.01
    assert max(delays) > 0.04


def test_bandwidth_counts_ip_and_udp_headers() -> None:
    path = link(bandwidth_bits_per_s=8000.0)  # a byte a millisecond
    first = path.offer(bytes(72), 0.0)
    second = path.offer(bytes(22), 0.0)
    assert first[0][0] == pytest.approx(0.1)
    assert second[0][0] == pytest.approx(0.15)
    assert path.offer(bytes(22), 1.0)[0][0] == pytest.approx(1.05)


def test_queue_drops_its_tail() -> None:
    path = link(bandwidth_bits_per_s=8000.0, queue_packets=3)
    sent = [bool(path.offer(bytes(72), 0.0)) for _ in range(6)]
    assert sent == [True, True, True, True, False, False]  # one on the line, three behind it
    assert path.counters["queue_full"] == 2
    assert path.offer(bytes(72), 0.1001)  # one has left, one moved up: there is room again
    assert not path.offer(bytes(72), 0.1002)


def test_mtu_counts_headers() -> None:
    path = link(mtu_bytes=1500)
    assert path.offer(bytes(1472), 0.0)
    assert not path.offer(bytes(1473), 0.0)
    assert path.counters["too_big"] == 1


def test_loss_takes_its_share() -> None:
    path = link(loss=0.1)
    arrivals = offer_many(path, 5000)
    assert path.counters["lost"] == 5000 - len(arrivals)
    assert 400 < path.counters["lost"] < 600


def test_a_lost_datagram_has_used_the_line() -> None:
    path = link(loss=1.0, bandwidth_bits_per_s=8000.0)
    path.offer(bytes(72), 0.0)
    path.change(replace(path.settings, loss=0.0))
    assert path.offer(bytes(72), 0.0)[0][0] == pytest.approx(0.2)


def runs(hits: list[bool]) -> list[int]:
    lengths, run = [], 0
    for hit in [*hits, False]:
        if hit:
            run += 1
        elif run:
            lengths.append(run)
            run = 0
    return lengths


@pytest.mark.parametrize(("share", "mean"), [(0.05, 2.0), (0.2, 4.0), (0.3, 3.0)])
def test_bursts_keep_share_and_mean(share: float, mean: float) -> None:
    process, rng = Bursts(share, mean, None), Random(5)
    hits = [process.draw(rng) for _ in range(60_000)]
    assert sum(hits) / len(hits) == pytest.approx(share, rel=0.15)
    lengths = runs(hits)
    assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.1)


def test_bursts_have_a_largest_length() -> None:
    process, rng = Bursts(0.5, None, 3), Random(5)
    lengths = runs([process.draw(rng) for _ in range(5000)])
    assert max(lengths) == 3


def test_no_share_draws_nothing() -> None:
    rng = Random(5)
    before = rng.getstate()
    assert not Bursts(0.0, 3.0, None).draw(rng)
    assert rng.getstate() == before


def test_duplication_delivers_the_same_bytes_twice() -> None:
    path = link(duplication=1.0, delay_s=0.01)
    (first, one), (second, other) = path.offer(b"twice", 0.0)
    assert one == other == b"twice"
    assert second >= first
    assert path.counters["duplicated"] == 1


def test_reordering_lets_later_ones_overtake() -> None:
    path = link(reordering=0.2, reorder_delay_s=(0.02, 0.05), delay_s=0.01)
    arrived = numbers(offer_many(path, 500))
    assert sorted(arrived) == list(range(500))
    assert arrived != list(range(500))
    late = sum(later < earlier for earlier, later in pairwise(arrived))
    assert late > 50


def test_corruption_flips_bits_and_keeps_the_length() -> None:
    path = link(corruption=1.0)
    original = bytes(50)
    ((_, damaged),) = path.offer(original, 0.0)
    assert damaged != original
    assert len(damaged) == len(original)
    assert path.counters["corrupted"] == 1
    assert path.offer(b"", 0.0) == [(0.0, b"")]  # nothing to flip


def test_truncation_shortens() -> None:
    path = link(truncation=1.0)
    original = bytes(range(50))
    ((_, damaged),) = path.offer(original, 0.0)
    assert len(damaged) < 50
    assert original.startswith(damaged)


def test_outages_drop_entering_and_arriving_datagrams() -> None:
    path = link(delay_s=0.5, outages=((1.0, 2.0),))
    assert path.offer(b"x", 0.1)
    assert not path.offer(b"x", 0.6)  # would arrive during the outage
    assert not path.offer(b"x", 1.9)  # enters during the outage
    assert path.offer(b"x", 2.0)
    assert path.counters["outage"] == 2


def test_the_switch() -> None:
    path = link()
    path.up = False
    assert not path.offer(b"x", 0.0)
    path.up = True
    assert path.offer(b"x", 0.0)
    assert path.counters["outage"] == 1


def test_one_seed_gives_one_behaviour() -> None:
    settings = {"loss": 0.1, "duplication": 0.1, "reordering": 0.1, "corruption": 0.1, "truncation": 0.1, "jitter_s": 1}
    assert offer_many(link(7, **settings), 300) == offer_many(link(7, **settings), 300)
    assert offer_many(link(7, **settings), 300) != offer_many(link(8, **settings), 300)


@given(st.binary(min_size=1, max_size=80), st.integers())
def test_flipped_bits_differ_in_one_to_three_places(datagram: bytes, seed: int) -> None:
    damaged = flip_bits(datagram, Random(seed))
    difference = int.from_bytes(datagram, "big") ^ int.from_bytes(damaged, "big")
    assert 1 <= difference.bit_count() <= 3


@given(
    st.lists(st.tuples(st.integers(0, 1600), st.floats(0, 0.1)), max_size=60),
    st.floats(0, 0.5),
    st.sampled_from([None, 1e4, 1e6]),
)
def test_every_datagram_is_accounted_for(
    offers: list[tuple[int, float]], share: float, bandwidth: float | None
) -> None:
    path = link(
        loss=share, corruption=share, duplication=share, reordering=share, truncation=share, jitter_s=0.1,
        bandwidth_bits_per_s=bandwidth, queue_packets=5, outages=((0.5, 0.7),),
    )  # fmt: skip
    now, delivered = 0.0, 0
    for size, pause in offers:
        now += pause
        arrivals = path.offer(bytes(size), now)
        assert all(when >= now for when, _ in arrivals)
        assert arrivals == sorted(arrivals, key=lambda arrival: arrival[0])
        delivered += len(arrivals)
    counters = path.counters
    gone = counters["lost"] + counters["queue_full"] + counters["too_big"] + counters["outage"]
    assert counters["offered"] == len(offers)
    assert counters["delivered"] == delivered == len(offers) + counters["duplicated"] - gone


@pytest.mark.parametrize(
    "wrong",
    [{"loss": 1.5}, {"duplication": -0.1}, {"delay_s": -1.0}, {"reorder_delay_s": (0.2, 0.1)},
     {"bandwidth_bits_per_s": 0.0}, {"burst_mean_packets": 0.5}],
)  # fmt: skip
def test_settings_check_themselves(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"share|delays|bandwidth|burst"):
        LinkSettings(**wrong)
