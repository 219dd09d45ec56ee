"""The stories of jobs: what an event may say, and every way that jobs and tasks stood."""

from __future__ import annotations

import pytest
from tests.sim.jobs_truth import Truth

from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_stories import read_event


def test_events_are_read() -> None:
    event = read_event(b'{"event":"leased","job":3,"controller":"boss","at_us":5,"task":1,"worker":"anna","fence":2}')
    assert (event.event, event.ref, event.worker) == ("leased", (3, 1, 2), "anna")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"event":"done","job":"1"}', b'{"event":"done","job":1,"x":1}'])
def test_what_is_no_event(body: bytes) -> None:
    with pytest.raises(ViolationError, match="is no event"):
        read_event(body)


def test_a_story_knows_how_everything_stood() -> None:
    truth = Truth()
    truth.volunteers("anna", "berta")
    truth.submit(agreed=2, workers=2)
    story = truth.chronicle.stories[1]
    truth.lease()
    story.note()
    assert [stand[0] for stand in story.tasks[0].history] == ["waiting", "leased"], "what does not change is not noted"
    story.end("cancelled", truth.now_us, "cancelled")
    story.note()
    assert story.is_ended
    assert [task.history[-1] for task in story.tasks.values()] == [
        ("cancelled", "anna", 1, 0, 0),
        ("cancelled", "", 0, 0, 0),
    ]
    assert story.history == [("running", 2), ("cancelled", 2)]
    assert str(story) == "job 1 (job 'key 1' of boss, 'resize', cancelled)"
