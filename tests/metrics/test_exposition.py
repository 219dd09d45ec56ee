"""The text form of metrics, also with names that come from the network; and distributions."""

from __future__ import annotations

import pytest
from tests.metrics.http_client import check_with_promtool, needs_promtool, samples

from godwit.metrics.distribution import BYTES, SECONDS, Distribution
from godwit.metrics.exposition import MetricSet

HOSTILE = [
    '<script>alert("x")</script>',
    "\x1b[31mred\x1b[0m",
    "[bold]markup[/bold]",
    "\u202eabc",
    'a"} 1\nfake 2',
    "\\n",
]


def test_a_distribution_counts_by_upper_bounds() -> None:
    one = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 7.0):
        one.observe(value)
    assert one.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert (one.count, one.total) == (5, 12.0)


@pytest.mark.parametrize("bounds", [SECONDS, BYTES])
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def metrics() -> MetricSet:
    found = MetricSet()
    found.gauge("queue_depth", "Pending items.", 3)
    found.counter("messages", "Messages.", 4, qos="0")
    found.counter("messages", "Messages.", 5, qos="1")
    found.counters("drops", "Drops by reason.", "reason", {})
    took = Distribution((0.1, 1.0))
    took.observe(0.05)
    found.histogram("commit_seconds", "Commits.", took)
    for name in HOSTILE:
        found.gauge("client_connected", "1 if connected.", 1, client=name)
    return found


def test_the_text_form() -> None:
    text = metrics().render()
    found = samples(text)
    assert found["godwit_queue_depth"] == 3
    assert found['godwit_messages_total{qos="1"}'] == 5
    assert found['godwit_commit_seconds_bucket{le="0.1"}'] == 1
    assert found["godwit_commit_seconds_sum"] == 0.05
    assert b"# TYPE godwit_drops_total counter" in text
    assert len([name for name in found if name.startswith("godwit_client_connected")]) == len(HOSTILE)
    assert 'godwit_client_connected{client="a\\"} 1\\nfake 2"} 1.0' in text.decode()
    assert not [name for name in found if name.startswith("fake")]


def test_a_name_that_is_not_unicode_has_a_form() -> None:
    one = MetricSet()
    one.gauge("client_connected", "1 if connected.", 1, client="a\udc80")
    assert b'client="a?"' in one.render()


@needs_promtool
def test_promtool_accepts_it() -> None:
    check_with_promtool(metrics().render())
