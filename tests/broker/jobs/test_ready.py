"""The queue of a kind: tags, lines, and that what is out of date does not pile up."""

from __future__ import annotations

from godwit.broker.jobs.model import Job, Task, Worker
from godwit.broker.jobs.ready import MAX_CANDIDATES, SLACK, Level, Queue


def make_job(queue: Queue, number: int, *, priority: int = 0, controller: str = "carla", tasks: int = 1) -> Job:
    job = Job(number, controller, f"key-{number}", queue, b"", tasks, priority, 0, 0, None, 3, 1000, None)
    job.state = "running"
    job.tasks = [Task(job, task, 0) for task in range(tasks)]
    job.ready = list(job.tasks)
    queue.jobs += 1
    queue.tag(job)
    return job


def make_worker(queue: Queue, name: str, free: int) -> Worker:
    worker = Worker(name, b"", 0)
    worker.free = (-free, 0, len(queue.volunteers), worker)
    queue.join(worker)
    queue.offer(worker, worker.free)
    return worker


def first(queue: Queue) -> Job | None:
    line = queue.first()
    return None if line is None else line.heap[0][3]


def test_a_tag_follows_the_time_and_the_controllers_last_one() -> None:
    level = Level()
    assert [level.tag("many", 2), level.tag("many", 2), level.tag("few", 1)] == [2, 4, 1]
    level.time = 10
    assert [level.tag("few", 1), level.tag("many", 2)] == [11, 12]


def test_tags_of_controllers_that_have_nothing_waiting_are_forgotten() -> None:
    level = Level()
    for number in range(10_000):
        level.time = level.tag(f"controller {number}", 1)
    assert len(level._tags) <= 2 * SLACK
    assert level.tag("new", 1) == level.time + 1


def test_the_time_of_a_level_never_goes_back() -> None:
    queue = Queue("cut")
    early, late = make_job(queue, 1), make_job(queue, 2)
    for job in (late, early):
        queue.push(job)
        job.ready = []
        line = queue.first()
        assert line is not None
        queue.took(line, 1)
    assert make_job(queue, 3, controller="new").tag == late.tag + 1


def test_jobs_that_ended_are_passed_over_and_do_not_pile_up() -> None:
    queue = Queue("cut")
    last = make_job(queue, 1, priority=-1)
    queue.push(last)
    for number in range(2, 2002):
        job = make_job(queue, number)
        queue.push(job)
        job.state = "cancelled"
        queue.end(job)
        job.ready = []
        assert len(queue.untouched.heap) <= 3 * SLACK
    assert first(queue) is last


def test_jobs_that_ended_in_the_lines_of_those_who_had_them_do_not_pile_up() -> None:
    queue = Queue("cut")
    worker = Worker("anna", b"", 0)
    last = make_job(queue, 1, priority=-1)
    last.had_by(worker)
    queue.push(last)
    for number in range(2, 2002):
        job = make_job(queue, number, tasks=number % 2 + 1)
        job.had_by(worker)
        if number % 2:
            job.had_by(Worker(f"worker {number}", b"", 0))
        queue.push(job)
        job.state = "cancelled"
        queue.end(job)
        job.ready = []
        assert sum(len(line.heap) for line in queue._lines.values()) <= 3 * SLACK
        assert len(queue._order) <= 4 * SLACK
    assert first(queue) is last


def test_workers_whose_capacity_changed_do_not_pile_up() -> None:
    queue = Queue("cut")
    worker = make_worker(queue, "anna", 1)
    for number in range(1000):
        worker.free = (-1, 0, number, worker)
        queue.offer(worker, worker.free)
        assert len(queue._free) <= 2 + SLACK + 1
    assert queue.first_free() is worker
    queue.leave(worker)
    assert queue.first_free() is None


def test_those_who_had_a_job_are_passed_over_and_stay() -> None:
    queue = Queue("cut")
    best, good, poor = (make_worker(queue, name, free) for name, free in (("anna", 3), ("bert", 2), ("cleo", 1)))
    job = make_job(queue, 1, tasks=2)
    job.had_by(best)
    queue.push(job)
    line = queue.first()
    assert line is not None
    assert queue.fresh(line) == 2
    assert queue.pick(line, 5) == [good, poor]
    assert queue.first_free() is best


def test_a_blocked_line_comes_back_with_the_first_who_may_take_of_it() -> None:
    queue = Queue("cut")
    anna = make_worker(queue, "anna", 1)
    job = make_job(queue, 1)
    job.had_by(anna)
    queue.push(job)
    line = queue.first()
    assert line is not None
    queue.block(line)
    assert queue.first() is None
    assert anna.free is not None
    queue.offer(anna, anna.free)
    assert queue.first() is None, "she had it"
    bert = make_worker(queue, "bert", 1)
    assert queue.first() is line
    assert queue.pick(line, 1) == [bert]


def test_a_more_urgent_job_moves_a_line_that_was_blocked_forward() -> None:
    queue = Queue("cut")
    anna = make_worker(queue, "anna", 1)
    last, first_one, between = (
        make_job(queue, number, priority=priority) for number, priority in ((1, -5), (2, 5), (3, 0))
    )
    for job in (last, first_one):
        job.had_by(anna)
    queue.push(last)
    line = queue.first()
    assert line is not None
    queue.block(line)
    make_worker(queue, "bert", 1)
    queue.push(between)
    assert first(queue) is between
    queue.push(first_one)
    assert first(queue) is first_one


def test_a_line_does_not_remember_all_who_might_take_from_it() -> None:
    queue = Queue("cut")
    anna = make_worker(queue, "anna", 1)
    urgent, had = make_job(queue, 1, priority=1), make_job(queue, 2)
    had.had_by(anna)
    queue.push(had)
    line = queue.first()
    assert line is not None
    queue.block(line)
    queue.push(urgent)
    workers = [make_worker(queue, f"worker {number}", number + 2) for number in range(2 * MAX_CANDIDATES)]
    assert first(queue) is urgent
    assert not queue._candidates
    assert queue.pick(line, 2) == [workers[-1], workers[-2]]


def test_a_blocked_line_knows_how_many_it_waits_for() -> None:
    queue = Queue("cut")
    anna = make_worker(queue, "anna", 1)
    busy = [Worker(name, b"", 0) for name in ("bert", "cleo")]
    job = make_job(queue, 1)
    job.had_by(anna)
    queue.push(job)
    queue.join(busy[0])
    line = queue.first()
    assert line is not None
    assert queue.fresh(line) == 1
    queue.block(line)
    queue.join(busy[1])
    queue.leave(anna)
    assert (queue.fresh(line), queue.first()) == (2, None)
    queue.leave(busy[0])
    queue.join(anna)
    assert (queue.fresh(line), queue.first()) == (1, None)
    queue.leave(busy[1])
    assert (queue.fresh(line), queue.first()) == (0, line)


def test_a_blocked_line_comes_back_when_nobody_else_is_left() -> None:
    queue = Queue("cut")
    anna = make_worker(queue, "anna", 1)
    bert = Worker("bert", b"", 0)
    queue.join(bert)
    job = make_job(queue, 1)
    job.had_by(anna)
    queue.push(job)
    line = queue.first()
    assert line is not None
    assert queue.fresh(line) == 1
    queue.block(line)
    queue.leave(bert)
    assert queue.first() is line
    assert queue.fresh(line) == 0


def test_a_job_that_many_had_has_a_line_of_its_own_that_ends_with_it() -> None:
    queue = Queue("cut")
    job = make_job(queue, 1, tasks=20)
    for number in range(12):
        job.had_by(make_worker(queue, f"worker {number}", 1))
    queue.push(job)
    line = queue.first()
    assert line is not None
    assert line.key is job
    assert queue.fresh(line) == 0
    late = make_worker(queue, "late", 1)
    assert queue.fresh(line) == 1
    assert queue.pick(line, 3) == [late]
    job.had_by(late)
    job.ready.pop()
    queue.took(line, 1)
    assert queue.fresh(line) == 0
    job.state = "cancelled"
    queue.end(job)
    assert queue.first() is None
    assert not queue._lines
