"""The queue of a kind: lines, and that what is out of date does not pile up."""

from __future__ import annotations

from godwit.broker.jobs.model import SHARED_HAD, Job, Task, Worker
from godwit.broker.jobs.ready import MAX_CANDIDATES, SLACK, Queue
from godwit.limits import MAX_BLOCKED_LINES


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
    worker.free = (-free, 0, queue.version, worker)
    queue.join(worker)
    queue.offer(worker, worker.free)
    return worker


def first(queue: Queue) -> Job | None:
    line = queue.first()
    return None if line is None else line.heap[0][3]


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
    job = make_job(queue, 1, tasks=SHARED_HAD + 8)
    for number in range(SHARED_HAD + 1):
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


def test_lines_do_not_multiply_with_workers_that_come_and_go() -> None:
    queue = Queue("cut")
    make_worker(queue, "anna", 1)
    for number in range(20 * SLACK):
        passing = make_worker(queue, f"passing {number}", 1)
        job = make_job(queue, number)
        job.had_by(queue.volunteers["anna"])
        job.had_by(passing)
        queue.push(job)
        queue.leave(passing)
        assert len(queue._lines) <= 2 * SLACK
    assert sum(len(line.heap) for line in queue._lines.values()) == queue._standing == 20 * SLACK
    for number in range(20 * SLACK):
        line = queue.first()
        assert line is not None
        assert line.heap[0][3].number == number, "the order is kept"
        assert queue.fresh(line) == 0
        line.heap[0][3].ready = []
        queue.took(line, 0)


def test_a_job_whose_worker_is_back_goes_to_its_right_line() -> None:
    queue = Queue("cut")
    anna, bert = make_worker(queue, "anna", 1), make_worker(queue, "bert", 1)
    queue.leave(anna)
    jobs = [make_job(queue, number) for number in (1, 2)]
    for job in jobs:
        job.had_by(anna)
        job.had_by(bert)
        queue.push(job)
    line = queue.first()
    assert line is not None
    assert line.had == {"bert"}
    assert not queue.put_right(line)
    queue.join(anna)
    assert queue.put_right(line)
    right = queue.first()
    assert right is not None
    assert right is not line
    assert (first(queue), right.had, queue.fresh(right)) == (jobs[0], {"anna", "bert"}, 0)
    assert not queue.put_right(right)
    jobs[0].ready = []
    queue.took(right, 0)
    assert (queue.first(), queue._standing) == (line, 1)


def test_not_too_many_lines_wait_for_the_busy_ones() -> None:
    queue = Queue("cut")
    queue.join(Worker("busy", b"", 0))
    lines = []
    for number in range(MAX_BLOCKED_LINES + 2):
        job = make_job(queue, number)
        job.had_by(make_worker(queue, f"worker {number}", 1))
        queue.push(job)
    while (line := queue.first()) is not None and queue.block(line):
        lines.append(line)
    assert len(lines) == MAX_BLOCKED_LINES
    assert line is not None
    assert queue.unblock(lines[0])
    assert queue.first() is lines[0]
    assert not queue.unblock(lines[0]), "it does not wait"
    assert queue.block(lines[0]), "it is one of those"


def test_a_line_that_was_not_asked_for_long_still_counts_right() -> None:
    queue = Queue("cut")
    job = make_job(queue, 1)
    job.had_by(make_worker(queue, "anna", 1))
    queue.push(job)
    line = queue.first()
    assert line is not None
    for count in (1, SLACK - 1, SLACK, SLACK + 1, 5 * SLACK):
        before = queue.fresh(line)
        late = [make_worker(queue, f"worker {count} {number}", 1) for number in range(count)]
        assert queue.fresh(line) == before + count == len(queue.volunteers) - 1
        queue.leave(late[0])
        assert queue.fresh(line) == len(queue.volunteers) - 1
