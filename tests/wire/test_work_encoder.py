"""The fast encoder returns the same bytes as cbor2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import refs
from tests.wire.work_strategies import HEADS

from godwit.wire import cbor
from godwit.wire import work as w
from godwit.wire.work import encode_group

BY_HAND = (w.SubmitReplyGroup, w.LeaseGroup, w.UpdateGroup, w.ReportGroup)
EDGES = (0, 1, 23, 24, 255, 256, 1023, 1024, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**63 - 1)


def head_of(record: bytes) -> bytes:
    return record[4 : 4 + int.from_bytes(record[:4], "big")]


@pytest.mark.parametrize("kind", BY_HAND)
@given(st.data())
def test_any_group(kind: type, data: st.DataObject) -> None:
    """Encode twice: the second time from the cache."""
    head = data.draw(HEADS[kind])
    for _ in range(2):
        assert head_of(encode_group(head)) == cbor.encode(head)


@given(st.lists(st.builds(w.TaskOutcome, task=refs, size=st.sampled_from(EDGES)), min_size=1, max_size=3))
def test_results_alone(outcomes: list[w.TaskOutcome]) -> None:
    head = w.ReportGroup(outcomes=outcomes)
    assert head_of(encode_group(head)) == cbor.encode(head)


@pytest.mark.parametrize("number", EDGES)
def test_numbers_of_every_width(number: int) -> None:
    head = w.SubmitReplyGroup(jobs=[w.SubmitReply(key="k", job=number, agreed=number)])
    assert head_of(encode_group(head)) == cbor.encode(head)


@pytest.mark.parametrize("length", [0, 1, 23, 24, 255, 256, 1100])
def test_lists_and_texts_of_every_width(length: int) -> None:
    heads: list[w.FromBroker] = [
        w.SubmitReplyGroup(jobs=[w.SubmitReply(key="é" * length)] * length),
        w.UpdateGroup(
            jobs=[w.JobUpdate(job=1, state="running", tasks=[w.TaskUpdate(task=1, state="waiting")] * length)]
        ),
        w.LeaseGroup(tasks=[w.LeasedTask(task=(1, 2, 3), of_kind="k" * length, controller="c")]),
    ]
    for head in heads:
        assert head_of(encode_group(head)) == cbor.encode(head)


def test_the_cache_is_bounded() -> None:
    """Names and notes come from clients."""
    for number in range(2 * w._CACHED):
        encode_group(w.SubmitReplyGroup(jobs=[w.SubmitReply(key="k", text=str(number))]))
    assert w._repeated.cache_info().currsize <= w._CACHED
