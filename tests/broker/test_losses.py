"""What is lost is counted exactly, for each subscription from where it needs it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from godwit.broker.effects import Losing
from godwit.broker.session import Session
from godwit.broker.subscription import BrokerSubscription, count_losses
from godwit.wire.entry import Entry
from godwit.wire.filters import matches

TOPICS = ("a", "b", "a/x")
FILTERS = ("#", "a", "b", "a/#", "+")


@given(
    st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(1, 4)), min_size=1, max_size=12),
    st.lists(st.tuples(st.sampled_from(FILTERS), st.integers(0, 60)), max_size=6),
    st.data(),
)
def test_as_counting_one_by_one(
    shape: list[tuple[str, int]], wants: list[tuple[str, int]], data: st.DataObject
) -> None:
    entries: list[tuple[int, Entry]] = []
    offset = first = data.draw(st.integers(0, 20))
    for topic, count in shape:
        entries.append((offset, Entry(topic, "me", 0x40, 1, 1, None, 0, count, b"")))
        offset += count
    floor = data.draw(st.integers(entries[-1][0] + 1, offset))
    session = Session("me", 1, is_remembered=True)
    feeds = [BrokerSubscription(at, session, (pattern,), None, 0) for at, (pattern, _) in enumerate(wants)]
    needs = {feed: start for feed, (_, start) in zip(feeds, wants, strict=True) if start < floor}

    def matching(topic: str) -> list[BrokerSubscription]:
        return [feed for feed in feeds if matches(feed.filters[0], topic)]

    count_losses(Losing(entries, floor), needs, matching)
    topic_at = {at: entry.topic for begin, entry in entries for at in range(begin, begin + entry.count)}
    for feed, (pattern, start) in zip(feeds, wants, strict=True):
        lost = [at for at in range(max(first, start), floor) if matches(pattern, topic_at[at])]
        assert feed.lost == len(lost)
