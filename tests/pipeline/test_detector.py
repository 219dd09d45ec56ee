"""The detector: anomalies that it finds, series without anomalies, and its state."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.pipeline.detector import (
    BLOCK,
    HISTORY,
    JUMP_LEARNING,
    LEVEL_LEARNING,
    MAX_STATE_BYTES,
    PAUSE,
    RECENT,
    Alarm,
    Detector,
)

LEARNED = LEVEL_LEARNING * BLOCK
STEP_US = 1_000_000


def noise(count: int, level: float = 20.0, deviation: float = 0.5, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(level, deviation) for _ in range(count)]


def alarms(values: Iterable[float], detector: Detector | None = None) -> list[Alarm]:
    detector = detector or Detector()
    found = [detector.update(number * STEP_US, value) for number, value in enumerate(values)]
    return [one for one in found if one is not None]


# -- anomalies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spike", "reason"), [(60.0, "jump up"), (-20.0, "jump down")])
def test_one_reading_far_off_is_one_alarm(spike: float, reason: str) -> None:
    begin = JUMP_LEARNING * BLOCK
    values = [*noise(begin), spike, *noise(500, seed=2)]
    (alarm,) = alarms(values)
    assert (alarm.time_us, alarm.value, alarm.reason) == (begin * STEP_US, spike, reason)
    assert alarm.expected == pytest.approx(20.0, abs=1.0)
    assert alarm.score > 1


@pytest.mark.parametrize(("target", "reason"), [(26.0, "high level"), (14.0, "low level")])
def test_a_level_that_creeps_away_is_found(target: float, reason: str) -> None:
    creeping = [20 + (target - 20) * min(1, number / 200) for number in range(400)]
    values = [*noise(LEARNED), *[a + b - 20 for a, b in zip(creeping, noise(400, seed=2), strict=True)]]
    found = alarms(values)
    assert {one.reason for one in found} == {reason}
    assert LEARNED * STEP_US < found[0].time_us < (LEARNED + 200) * STEP_US
    assert found[0].expected == pytest.approx(20.0, abs=0.5)
    assert len(found) <= 4  # another one when the score has doubled


def test_a_sensor_that_got_stuck_is_found_once() -> None:
    values = [*noise(LEARNED), *[20.1] * (10 * PAUSE)]
    found = alarms(values)
    assert [one.reason for one in found][:1] == ["stuck"]
    assert LEARNED + BLOCK <= found[0].time_us / STEP_US + 1 <= LEARNED + BLOCK + 1
    assert len(found) <= 1 + math.log2(10 * PAUSE / BLOCK)  # another one when it has lasted twice as long


def test_another_event_raises_an_alarm_after_the_pause_or_if_it_is_worse() -> None:
    learned = noise(LEARNED)
    detector = Detector()
    assert len(alarms([*learned, 60.0, *noise(50, seed=2)], detector)) == 1
    assert alarms([60.0, *noise(50, seed=3)], detector) == []
    assert len(alarms([200.0, *noise(PAUSE, seed=4)], detector)) == 1
    assert len(alarms([60.0, *noise(50, seed=5)], detector)) == 1


def test_a_lasting_event_that_began_within_the_pause_raises_an_alarm() -> None:
    detector = Detector()
    assert len(alarms([*noise(HISTORY * BLOCK), 60.0, *noise(50, seed=2)], detector)) == 1
    late = alarms(noise(PAUSE + 50, level=23.5, seed=3), detector)
    assert [one.reason for one in late] == ["high level"]


def test_an_excursion_ends_when_all_is_calm_again() -> None:
    detector = Detector()
    seen = []
    for values in (noise(LEARNED), [60.0], [20.0] * (RECENT - 1), [20.0]):
        alarms(values, detector)
        seen.append(detector.is_anomalous)
    assert seen == [False, True, True, False]


# -- normal series ----------------------------------------------------------------------------------------------------


def daily(count: int) -> list[float]:
    return [20 + 5 * math.sin(2 * math.pi * number / 288) + extra for number, extra in enumerate(noise(count, 0, 0.3))]


def drifting(count: int) -> list[float]:
    return [number / 100 + extra for number, extra in enumerate(noise(count, 0, 0.3))]


def switching(count: int) -> list[float]:
    return [float(number // 37 % 2) for number in range(count)]


def coarse(count: int) -> list[float]:
    return [round(value * 2) / 2 for value in noise(count, 20, 0.2)]


@pytest.mark.parametrize(
    "values",
    [noise(20_000), daily(20_000), drifting(20_000), switching(20_000), coarse(20_000), [20.0] * 20_000],
    ids=["noise", "daily", "drifting", "switching", "coarse", "constant"],
)
def test_a_normal_series_raises_no_alarm(values: Sequence[float]) -> None:
    assert alarms(values) == []


def test_no_alarm_before_it_has_learned_the_series() -> None:
    assert alarms([*noise(JUMP_LEARNING * BLOCK - 2), 1000.0]) == []


def test_a_new_level_becomes_the_usual_one() -> None:
    detector = Detector()
    alarms(noise(LEARNED), detector)
    assert alarms(noise(HISTORY * BLOCK, level=40.0, seed=2), detector) != []
    assert alarms(noise(HISTORY * BLOCK, level=40.0, seed=3), detector) == []
    assert not detector.is_anomalous


# -- its state --------------------------------------------------------------------------------------------------------

poison = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 1e15, -1e15, 5e-324, 0.0, -0.0])
values = st.lists(st.one_of(poison, st.floats(), st.floats(-50, 50), st.just(20.0)), max_size=60)


@given(
    begins=st.integers(0, LEARNED + 500), values=values, times=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60)
)
@settings(max_examples=60)
def test_any_value_is_accepted_and_a_restored_detector_decides_the_same(
    begins: int, values: list[float], times: list[int]
) -> None:
    original = Detector()
    alarms(noise(begins), original)
    restored = Detector.from_bytes(original.to_bytes())
    for number, value in enumerate(values):
        time_us = times[number % len(times)] if times else number
        found = original.update(time_us, value)
        assert restored.update(time_us, value) == found
        assert restored.is_anomalous == original.is_anomalous
        assert found is None or all(map(math.isfinite, (found.value, found.expected, found.score)))
        assert found is None or found.score >= 1
        restored = Detector.from_bytes(restored.to_bytes())
    assert restored.to_bytes() == original.to_bytes()
    assert len(original.to_bytes()) <= MAX_STATE_BYTES


def test_the_state_has_a_greatest_size() -> None:
    detector = Detector()
    alarms(noise((HISTORY + 2) * BLOCK - 1), detector)
    assert len(detector.to_bytes()) == MAX_STATE_BYTES < 5_000


def test_a_state_of_another_version_is_learned_anew() -> None:
    detector = Detector()
    alarms(noise(1000), detector)
    state = bytes([detector.to_bytes()[0] + 1]) + detector.to_bytes()[1:]
    assert Detector.from_bytes(state).to_bytes() == Detector().to_bytes()
