"""Topics and filters for hypothesis: few different levels, so that they often meet."""

from __future__ import annotations

from hypothesis import strategies as st

LITERALS = ["a", "b", "", "$x", "a b", "a-", "É"]


def is_topic(name: str) -> bool:
    return name != ""


levels = st.sampled_from(LITERALS)
topics = st.lists(levels, min_size=1, max_size=6).map("/".join).filter(is_topic)
_inner_levels = st.one_of(levels, st.sampled_from(["+", "*"]))
filters = (
    st.tuples(st.lists(_inner_levels, max_size=5), st.one_of(_inner_levels, st.just("#")))
    .map(lambda parts: "/".join([*parts[0], parts[1]]))
    .filter(is_topic)
)


@st.composite
def matched_by(draw: st.DrawFn, filter: str) -> str:
    """A topic that a filter matches."""
    found: list[str] = []
    for level in filter.split("/"):
        if level in ("+", "*", "#"):
            least, most = {"+": (1, 1), "*": (1, 4), "#": (0, 4)}[level]
            found += draw(st.lists(levels, min_size=least, max_size=most))
        else:
            found.append(level)
    if filter[0] in "+*#" and found and found[0].startswith("$"):
        found[0] = "a"
    topic = "/".join(found)
    return topic if topic else "a" if filter in ("+", "*", "#", "+/#", "*/#") else "/"


@st.composite
def filters_with_topics(draw: st.DrawFn) -> tuple[str, str]:
    filter = draw(filters)
    return filter, draw(matched_by(filter))
