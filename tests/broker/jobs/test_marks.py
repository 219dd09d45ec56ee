"""Jobs and tasks that are to be written: as they stand, in runs of one type, put back on failure."""

from __future__ import annotations

from godwit.broker.jobs.marks import JobMarks
from godwit.broker.jobs.model import Job, Task
from godwit.broker.jobs.ready import Queue
from godwit.wire import changes as ch


def job(number: int, tasks: int = 1) -> Job:
    made = Job(number, "ann", f"k{number}", Queue("resize"), b"payload", 2, 5, 100, 200, 300, 4, 1000, 60_000)
    made.state = "running"
    made.agreed = tasks
    made.tasks = [Task(made, place, 150) for place in range(tasks)]
    return made


def test_a_new_job_is_written_with_its_payload_and_the_next_number() -> None:
    marks = JobMarks()
    one = job(7)
    marks.add([one], one.tasks, [], 8)
    kept = ch.JobRow(7, "ann", "k7", "resize", 2, 5, 100, 200, 300, 4, 1000, 60_000, "running", 1, None)
    assert marks.changes() == [
        ch.NextJobRow(8),
        kept,
        ch.JobPayloadRow(7, b"payload"),
        ch.TaskRow(7, 0, "waiting", "", b"", 0, 0, 0, 150, 150),
    ]


def test_a_job_that_is_stored_is_written_without_its_payload() -> None:
    marks = JobMarks()
    one = job(7)
    one.is_stored = True
    marks.add([one], [], [], 0)
    assert [type(change) for change in marks.changes()] == [ch.JobRow]


def test_what_is_written_is_how_it_stands_by_then() -> None:
    marks = JobMarks()
    one = job(7)
    marks.add([], one.tasks, [], 0)
    task = one.tasks[0]
    task.state, task.worker, task.had, task.result = "finished", "bob", ("cid",), b"small"
    (kept,) = marks.changes()
    assert isinstance(kept, ch.TaskRow)
    assert (kept.state, kept.worker, kept.previous_workers, kept.result) == ("finished", "bob", ("cid",), b"small")


def test_those_of_one_type_stand_together_and_what_is_gone_comes_last() -> None:
    marks = JobMarks()
    first, second, third = job(1, 2), job(2, 2), job(3)
    third.is_stored = True
    marks.add([first, second, third], [*first.tasks, *second.tasks], [9], 4)
    assert [type(change) for change in marks.changes()] == [
        ch.NextJobRow, *[ch.JobRow] * 3, *[ch.JobPayloadRow] * 2, *[ch.TaskRow] * 4, ch.JobDeleted,
    ]  # fmt: skip


def test_of_a_job_that_is_gone_nothing_else_is_written() -> None:
    older, marks = JobMarks(), JobMarks()
    one = job(7)
    older.add([one], one.tasks, [], 8)
    marks.add([], [], [7], 9)
    marks.put_back(older)
    assert marks.changes() == [ch.NextJobRow(9), ch.JobDeleted(7)]  # its number is not given again


def test_what_is_put_back_is_written_once_with_the_highest_number() -> None:
    older, marks = JobMarks(), JobMarks()
    one, two = job(7), job(8)
    older.add([one], one.tasks, [], 8)
    marks.add([two, one], one.tasks, [], 9)
    marks.put_back(older)
    changes = marks.changes()
    assert changes[0] == ch.NextJobRow(9)
    assert [change.job for change in changes if isinstance(change, ch.JobRow)] == [8, 7]
    assert len([change for change in changes if isinstance(change, ch.TaskRow)]) == 1


def test_what_is_forgotten_is_not_written() -> None:
    marks = JobMarks()
    one = job(7, 3)
    marks.add([one], one.tasks, [], 8)
    assert marks
    marks.forget(one)
    assert not marks
    assert marks.changes() == [ch.NextJobRow(8)]
