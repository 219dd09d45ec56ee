"""What is fair between controllers: tags."""

from __future__ import annotations

from godwit.broker.jobs.levels import Level


def test_a_tag_follows_the_time_and_the_controllers_last_one() -> None:
    level = Level()
    assert [level.tag("many", 2), level.tag("many", 2), level.tag("few", 1)] == [2, 4, 1]
    level.time = 10
    assert [level.tag("few", 1), level.tag("many", 2)] == [11, 12]


def test_a_controller_is_forgotten_with_its_last_job_even_if_no_time_goes_by() -> None:
    level = Level()
    for number in range(1000):
        level.tag(f"controller {number}", 1)
        level.end(f"controller {number}")
    assert not level._tags
    assert [level.tag("many", 2), level.tag("many", 2)] == [2, 4]
    level.end("many")
    assert level.tag("many", 2) == 6, "it has another job"
