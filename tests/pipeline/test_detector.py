"""The detector: anomalies that it finds, series without anomalies, events, scores, and its state."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.pipeline.detector import (
    BEGIN,
    BLOCK,
    END,
    IS_WORSE,
    LEARNING,
    MAX_STATE_BYTES,
    PAUSE,
    REASONS,
    RELEASE,
    STUCK_LEARNING,
    STUCK_RUN,
    Alarm,
    Detector,
    score_of,
)
from godwit.pipeline.detector_bank import FEW, DetectorBank

STEP_US = 300_000_000
DAY = 288
"""Readings of a day."""
LEARNED = 2_000


def noise(count: int, level: float = 20.0, deviation: float = 0.5, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(level, deviation) for _ in range(count)]


def alarms(values: Iterable[float], detector: Detector | None = None, first: int = 0) -> list[Alarm]:
    detector = detector or Detector()
    found = [detector.update(number * STEP_US, value, number) for number, value in enumerate(values, first)]
    return [one for one in found if one is not None]


def begins(values: Iterable[float], at_least: float = 0.0) -> list[Alarm]:
    """Return the events that begin, with the score that they begin with."""
    return [one for one in alarms(values) if one.state == BEGIN and one.score >= at_least]


# -- anomalies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spike", "reason"), [(60.0, "jump up"), (-20.0, "jump down")])
def test_one_reading_far_off_is_one_event(spike: float, reason: str) -> None:
    begin = LEARNING + 50
    values = [*noise(begin), spike, *[20.0] * 500]
    first, *rest = [one for one in alarms(values) if one.score > 0.7]
    assert (first.time_us, first.value, first.reason, first.state) == (begin * STEP_US, spike, reason, BEGIN)
    assert (first.begin_us, first.begin_position, first.peak_value) == (begin * STEP_US, begin, spike)
    assert first.expected == pytest.approx(20.0, abs=1.0)
    assert first.end_us is None
    (last,) = rest
    assert (last.state, last.begin_position, last.peak_us, last.peak_value) == (END, begin, begin * STEP_US, spike)
    assert last.end_us is not None
    assert begin * STEP_US <= last.end_us < (begin + 20) * STEP_US
    assert last.time_us == last.end_us + PAUSE * STEP_US


@pytest.mark.parametrize(
    ("target", "reasons"), [(24.0, {"high level", "jump up"}), (16.0, {"low level", "jump down"})], ids=["up", "down"]
)
def test_a_level_that_shifts_or_creeps_away_is_found(target: float, reasons: set[str]) -> None:
    for length in (1, 200):
        moving = [20 + (target - 20) * min(1, (number + 1) / length) for number in range(400)]
        values = [*noise(LEARNED), *[a + b - 20 for a, b in zip(moving, noise(400, seed=2), strict=True)]]
        found = [one for one in alarms(values) if one.time_us >= LEARNED * STEP_US]
        assert {one.reason for one in found} <= reasons
        assert found[0].time_us < (LEARNED + 200) * STEP_US
        assert found[0].expected == pytest.approx(20.0, abs=0.5)
        assert len([one for one in found if one.state == BEGIN]) == 1
        assert found[-1].score > 0.65


def test_a_day_without_its_peak_is_found_by_the_hour_of_the_day() -> None:
    usual = daily(14 * DAY)
    without = [min(value, 20.5) for value in daily(15 * DAY)[14 * DAY :]]
    found = [one for one in begins([*usual, *without]) if one.time_us >= 14 * DAY * STEP_US]
    assert [one.reason for one in found] == ["jump down"]
    assert found[0].expected > 22  # the value of that hour: the mean is 20
    assert min(usual) < min(without) < max(without) < max(usual)  # each value is usual by itself


def test_a_sensor_that_got_stuck_is_found() -> None:
    values = [*noise(STUCK_LEARNING), *[20.1] * (20 * STUCK_RUN)]
    stuck = [one for one in alarms(values) if one.reason == "stuck"]
    assert stuck[0].state == BEGIN
    assert stuck[0].time_us == (STUCK_LEARNING + STUCK_RUN - 1) * STEP_US
    assert {one.state for one in stuck[1:]} == {IS_WORSE}
    assert len(stuck) <= 1 + math.log2(20)  # another one each time that it has lasted twice as long


def test_a_gap_is_found_and_begins_with_the_reading_before_it() -> None:
    detector = Detector()
    alarms(noise(LEARNED), detector)
    short = [detector.update((LEARNED + number * 4) * STEP_US, 20.0) for number in range(5)]
    assert not any(one is not None and one.reason == "gap" for one in short)
    last = LEARNED + 16
    gap = detector.update((last + 12) * STEP_US, 20.0)
    assert gap is not None
    assert (gap.reason, gap.begin_us, gap.time_us) == ("gap", last * STEP_US, (last + 12) * STEP_US)
    longer = Detector()
    alarms(noise(LEARNED), longer)
    day = longer.update((LEARNED + DAY) * STEP_US, 20.0)
    assert day is not None
    assert day.score > gap.score


# -- events -----------------------------------------------------------------------------------------------------------


def test_a_lasting_deviation_is_one_event_that_may_become_worse() -> None:
    values = [*noise(LEARNED), *noise(60, 24.0, seed=2), *noise(60, 200.0, seed=3), *noise(3 * PAUSE, seed=4)]
    found = [one for one in alarms(values) if one.begin_position >= LEARNED]
    assert (found[0].state, found[-1].state) == (BEGIN, END)
    assert {one.state for one in found[1:-1]} == {IS_WORSE}
    assert {one.begin_position for one in found} == {found[0].begin_position}
    assert [one.score for one in found] == sorted(one.score for one in found)
    assert found[-1].peak_value == pytest.approx(200, abs=3)
    assert len(found) <= 6


def test_events_that_repeat_must_deviate_farther() -> None:
    values = noise(40_000)
    for number in range(LEARNED, len(values), 400):
        values[number] += 5
    spikes = [one for one in begins(values) if one.begin_position % 400 == 0]
    assert len([one for one in spikes if one.begin_position < 4_000]) >= 3
    assert len([one for one in spikes if one.begin_position >= 36_000]) <= 5  # of ten


def test_the_series_is_anomalous_until_readings_are_weaker_again() -> None:
    detector = Detector()
    alarms(noise(LEARNED), detector)
    states = [detector.is_anomalous]
    assert detector.event_score == 0
    alarms([60.0], detector, LEARNED)
    states.append(detector.is_anomalous)
    assert states == [False, True]
    assert 0.7 < detector.score == detector.event_score < 1
    states = []
    for number in range(45):
        alarms([20.0], detector, LEARNED + 1 + number)
        states.append(detector.is_anomalous)
    assert states == sorted(states, reverse=True)
    assert RELEASE <= states.count(True) + 1 < RELEASE + 40


# -- normal series ----------------------------------------------------------------------------------------------------


def daily(count: int) -> list[float]:
    return [20 + 5 * math.sin(2 * math.pi * number / DAY) + extra for number, extra in enumerate(noise(count, 0, 0.3))]


def drifting(count: int) -> list[float]:
    return [number / 100 + extra for number, extra in enumerate(noise(count, 0, 0.3))]


def switching(count: int) -> list[float]:
    return [float(number // 37 % 2) for number in range(count)]


def coarse(count: int) -> list[float]:
    return [round(value * 2) / 2 for value in noise(count, 20, 0.2)]


def wandering(count: int) -> list[float]:
    rng = random.Random(7)
    found, value = [], 0.0
    for _ in range(count):
        value = 0.99 * value + rng.gauss(0, 0.3)
        found.append(20 + value)
    return found


NORMAL = {
    "noise": noise(20_000),
    "daily": daily(20_000),
    "drifting": drifting(20_000),
    "switching": switching(20_000),
    "coarse": coarse(20_000),
    "wandering": wandering(20_000),
    "constant": [20.0] * 20_000,
}


@pytest.mark.parametrize("values", NORMAL.values(), ids=NORMAL)
def test_a_normal_series_has_few_events_and_no_strong_one(values: Sequence[float]) -> None:
    found = begins(values)
    assert len(found) / len(values) < 1 / 1000
    assert [one for one in alarms(values) if one.score > 0.77] == []


def test_the_score_is_how_rare_a_deviation_is() -> None:
    detector = Detector()
    count, scores = 100_000, []
    for number, value in enumerate(noise(count, seed=3)):
        detector.update(number * STEP_US, value)
        scores.append(detector.score)
    blocks = [max(scores[first : first + BLOCK]) for first in range(LEARNED, count, BLOCK)]
    for decades in (1.31, 2.0):
        share = sum(one >= score_of(decades) for one in blocks) / len(blocks)
        # Two tests, each with this frequency; and the noise falls faster than the distribution assumes.
        assert 10**-decades / 4 < share < 3 * 10**-decades


def test_no_alarm_before_it_has_learned_the_series() -> None:
    assert alarms([*noise(LEARNING - 1), 1000.0]) == []


def test_a_new_level_becomes_the_usual_one() -> None:
    detector = Detector()
    alarms(noise(LEARNED), detector)
    assert alarms(noise(5_000, level=40.0, seed=2), detector, LEARNED) != []
    late = alarms(noise(5_000, level=40.0, seed=3), detector, LEARNED + 5_000)
    assert not detector.is_anomalous
    assert len([one for one in late if one.state == BEGIN]) <= 5


# -- its state --------------------------------------------------------------------------------------------------------

poison = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 1e15, -1e15, 5e-324, 0.0, -0.0])
values = st.lists(st.one_of(poison, st.floats(), st.floats(-50, 50), st.just(20.0)), max_size=60)


@given(
    count=st.integers(0, LEARNED + 500), values=values, times=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60)
)
@settings(max_examples=60)
def test_any_value_is_accepted_and_a_restored_detector_decides_the_same(
    count: int, values: list[float], times: list[int]
) -> None:
    original = Detector()
    alarms(noise(count), original)
    restored = Detector.from_bytes(original.to_bytes())
    for number, value in enumerate(values):
        time_us = times[number % len(times)] if times else number
        found = original.update(time_us, value, number)
        assert restored.update(time_us, value, number) == found
        assert (restored.score, restored.event_score) == (original.score, original.event_score)
        assert 0 <= original.score < 1
        if found is not None:
            assert all(map(math.isfinite, (found.value, found.expected, found.peak_value, found.begin_expected)))
            assert 0 < found.score < 1
            assert found.reason in REASONS
        restored = Detector.from_bytes(restored.to_bytes())
    assert restored.to_bytes() == original.to_bytes()
    assert len(original.to_bytes()) == MAX_STATE_BYTES


def test_the_state_is_small() -> None:
    assert len(Detector().to_bytes()) == MAX_STATE_BYTES < 700


@pytest.mark.parametrize("state", [b"\x01" + bytes(4_711), b"\x03" + bytes(MAX_STATE_BYTES - 1), b""])
def test_a_state_of_another_version_is_learned_anew(state: bytes) -> None:
    assert Detector.from_bytes(state).to_bytes() == Detector().to_bytes()


# -- many series at once -----------------------------------------------------------------------------------------------


def random_series(rng: random.Random, length: int) -> list[tuple[int, float]]:
    """Return readings with jumps, levels, stuck values, gaps, late readings, days and equal times."""
    time_us = rng.randrange(10**15)
    interval_us = rng.choice([1_000_000, 60_000_000, 600_000_000])
    level, scale = rng.choice([0.0, 21.0, -1e9]), rng.choice([0.0, 0.1, 5.0, 1e6])
    readings, stuck = [], 0
    for _ in range(length):
        time_us += rng.choice([interval_us, interval_us, rng.randrange(2 * interval_us), 0, -interval_us])
        if rng.random() < 0.002:
            time_us += 50 * interval_us
        if rng.random() < 0.005:
            level += rng.choice([-20, 20]) * scale
        if rng.random() < 0.002:
            stuck = 200
        stuck -= 1
        wave = scale * math.sin(time_us / 86_400_000_000 * 2 * math.pi)
        value = level if stuck > 0 else level + 10 * wave + rng.gauss(0, scale) + 30 * scale * (rng.random() < 0.005)
        readings.append((time_us, round(value, 2)))
    return readings


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_series_at_once_are_the_same_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.choice([0, 1, 23, 24, 500, rng.randrange(3000)]) for _ in range(3 * FEW)]
    series = [random_series(rng, length) for length in lengths]
    detectors = [Detector() for _ in series]
    states: list[bytes | None] = [None] * len(series)
    states[0] = b"of another version"
    alarms = 0
    begins = [0] * len(series)
    while any(begin < length for begin, length in zip(begins, lengths, strict=True)):
        ends = [
            rng.choice([begin, length, rng.randint(begin, length)])
            for begin, length in zip(begins, lengths, strict=True)
        ]
        rows = [one[begin:end] for one, begin, end in zip(series, begins, ends, strict=True)]
        wanted = []
        index = 0
        for number, part in enumerate(rows):
            for time_us, value in part:
                alarm = detectors[number].update(time_us, value, index)
                if alarm is not None:
                    wanted.append((number, index, alarm))
                index += 1
        flat = [reading for part in rows for reading in part]
        bank = DetectorBank(states)
        found = bank.update(
            np.array([len(part) for part in rows], np.int64),
            np.array([time_us for time_us, _ in flat], np.int64),
            np.array([value for _, value in flat], np.float64),
            np.arange(len(flat)),
        )
        assert sorted(found) == wanted
        states = list(bank.states())
        assert states == [one.to_bytes() for one in detectors]
        begins = ends
        alarms += len(wanted)
    assert alarms > 10


def test_no_series_at_all() -> None:
    empty = np.array([], np.int64)
    bank = DetectorBank([])
    assert bank.update(empty, empty, np.array([], np.float64), empty) == []
    assert bank.states() == []
