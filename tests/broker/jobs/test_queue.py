"""The queue of one kind of work: eligibility groups, fairness, and that outdated entries do not pile up."""

from __future__ import annotations

from godwit.broker.jobs.model import MAX_SHARED_WORKERS, Job, JobTask, PoolWorker
from godwit.broker.jobs.queue import MAX_CANDIDATES, SLACK, FairShare, JobQueue
from godwit.limits import MAX_BLOCKED_LINES
from godwit.wire.jobs import JobSpec

# -- groups -----------------------------------------------------------------------------------------------------------


def make_job(queue: JobQueue, number: int, *, priority: int = 0, controller: str = "carla", tasks: int = 1) -> Job:
    spec = JobSpec(key=f"key-{number}", of_kind="cut", workers=tasks, priority=priority)
    job = Job(number, controller, spec, queue, b"", 0)
    job.state = "running"
    job.tasks = [JobTask(job, task, 0) for task in range(tasks)]
    job.ready = list(job.tasks)
    queue.jobs += 1
    queue.add_job(job)
    return job


def make_worker(queue: JobQueue, name: str, free: int) -> PoolWorker:
    worker = PoolWorker(name, b"", 0)
    worker.free_slot = (-free, 0, queue.version, worker)
    queue.add_volunteer(worker)
    queue.offer(worker, worker.free_slot)
    return worker


def first(queue: JobQueue) -> Job | None:
    group = queue.first_group()
    return None if group is None else group.heap[0][3]


def test_virtual_time_never_decreases() -> None:
    queue = JobQueue("cut")
    early, late = make_job(queue, 1), make_job(queue, 2)
    for job in (late, early):
        queue.push(job)
        job.ready = []
        group = queue.first_group()
        assert group is not None
        queue.update_leased(group, 1)
    assert make_job(queue, 3, controller="new").tag == late.tag + 1


def test_jobs_that_ended_are_passed_over_and_do_not_pile_up() -> None:
    queue = JobQueue("cut")
    last = make_job(queue, 1, priority=-1)
    queue.push(last)
    for number in range(2, 2002):
        job = make_job(queue, number)
        queue.push(job)
        job.state = "cancelled"
        queue.end_job(job)
        job.ready = []
        assert len(queue.untried.heap) <= 3 * SLACK
    assert first(queue) is last


def test_ended_jobs_do_not_pile_up_in_groups_of_tried_jobs() -> None:
    queue = JobQueue("cut")
    worker = PoolWorker("anna", b"", 0)
    last = make_job(queue, 1, priority=-1)
    last.add_tried_worker(worker)
    queue.push(last)
    for number in range(2, 2002):
        job = make_job(queue, number, tasks=number % 2 + 1)
        job.add_tried_worker(worker)
        if number % 2:
            job.add_tried_worker(PoolWorker(f"worker {number}", b"", 0))
        queue.push(job)
        job.state = "cancelled"
        queue.end_job(job)
        job.ready = []
        assert sum(len(group.heap) for group in queue._groups.values()) <= 3 * SLACK
        assert len(queue._order) <= 4 * SLACK
    assert first(queue) is last


def test_workers_whose_capacity_changed_do_not_pile_up() -> None:
    queue = JobQueue("cut")
    worker = make_worker(queue, "anna", 1)
    for number in range(1000):
        worker.free_slot = (-1, 0, number, worker)
        queue.offer(worker, worker.free_slot)
        assert len(queue._free) <= 2 + SLACK + 1
    assert queue.first_free() is worker
    queue.remove_volunteer(worker)
    assert queue.first_free() is None


def test_workers_that_tried_a_job_are_skipped_and_remain() -> None:
    queue = JobQueue("cut")
    best, good, poor = (make_worker(queue, name, free) for name, free in (("anna", 3), ("bert", 2), ("cleo", 1)))
    job = make_job(queue, 1, tasks=2)
    job.add_tried_worker(best)
    queue.push(job)
    group = queue.first_group()
    assert group is not None
    assert queue.eligible_count(group) == 2
    assert queue.pick(group, 5) == [good, poor]
    assert queue.first_free() is best


def test_a_blocked_group_comes_back_with_the_first_eligible_worker() -> None:
    queue = JobQueue("cut")
    anna = make_worker(queue, "anna", 1)
    job = make_job(queue, 1)
    job.add_tried_worker(anna)
    queue.push(job)
    group = queue.first_group()
    assert group is not None
    queue.block(group)
    assert queue.first_group() is None
    assert anna.free_slot is not None
    queue.offer(anna, anna.free_slot)
    assert queue.first_group() is None, "she tried it"
    bert = make_worker(queue, "bert", 1)
    assert queue.first_group() is group
    assert queue.pick(group, 1) == [bert]


def test_a_more_urgent_job_moves_a_group_that_was_blocked_forward() -> None:
    queue = JobQueue("cut")
    anna = make_worker(queue, "anna", 1)
    last, first_one, between = (
        make_job(queue, number, priority=priority) for number, priority in ((1, -5), (2, 5), (3, 0))
    )
    for job in (last, first_one):
        job.add_tried_worker(anna)
    queue.push(last)
    group = queue.first_group()
    assert group is not None
    queue.block(group)
    make_worker(queue, "bert", 1)
    queue.push(between)
    assert first(queue) is between
    queue.push(first_one)
    assert first(queue) is first_one


def test_a_group_remembers_a_bounded_number_of_candidates() -> None:
    queue = JobQueue("cut")
    anna = make_worker(queue, "anna", 1)
    urgent, tried = make_job(queue, 1, priority=1), make_job(queue, 2)
    tried.add_tried_worker(anna)
    queue.push(tried)
    group = queue.first_group()
    assert group is not None
    queue.block(group)
    queue.push(urgent)
    workers = [make_worker(queue, f"worker {number}", number + 2) for number in range(2 * MAX_CANDIDATES)]
    assert first(queue) is urgent
    assert not queue._candidates
    assert queue.pick(group, 2) == [workers[-1], workers[-2]]


def test_a_blocked_group_counts_the_workers_it_waits_for() -> None:
    queue = JobQueue("cut")
    anna = make_worker(queue, "anna", 1)
    busy = [PoolWorker(name, b"", 0) for name in ("bert", "cleo")]
    job = make_job(queue, 1)
    job.add_tried_worker(anna)
    queue.push(job)
    queue.add_volunteer(busy[0])
    group = queue.first_group()
    assert group is not None
    assert queue.eligible_count(group) == 1
    queue.block(group)
    queue.add_volunteer(busy[1])
    queue.remove_volunteer(anna)
    assert (queue.eligible_count(group), queue.first_group()) == (2, None)
    queue.remove_volunteer(busy[0])
    queue.add_volunteer(anna)
    assert (queue.eligible_count(group), queue.first_group()) == (1, None)
    queue.remove_volunteer(busy[1])
    assert (queue.eligible_count(group), queue.first_group()) == (0, group)


def test_a_blocked_group_comes_back_when_no_eligible_worker_is_left() -> None:
    queue = JobQueue("cut")
    anna = make_worker(queue, "anna", 1)
    bert = PoolWorker("bert", b"", 0)
    queue.add_volunteer(bert)
    job = make_job(queue, 1)
    job.add_tried_worker(anna)
    queue.push(job)
    group = queue.first_group()
    assert group is not None
    assert queue.eligible_count(group) == 1
    queue.block(group)
    queue.remove_volunteer(bert)
    assert queue.first_group() is group
    assert queue.eligible_count(group) == 0


def test_a_job_tried_by_many_workers_has_a_group_of_its_own_that_ends_with_it() -> None:
    queue = JobQueue("cut")
    job = make_job(queue, 1, tasks=MAX_SHARED_WORKERS + 8)
    for number in range(MAX_SHARED_WORKERS + 1):
        job.add_tried_worker(make_worker(queue, f"worker {number}", 1))
    queue.push(job)
    group = queue.first_group()
    assert group is not None
    assert group.key is job
    assert queue.eligible_count(group) == 0
    late = make_worker(queue, "late", 1)
    assert queue.eligible_count(group) == 1
    assert queue.pick(group, 3) == [late]
    job.add_tried_worker(late)
    job.ready.pop()
    queue.update_leased(group, 1)
    assert queue.eligible_count(group) == 0
    job.state = "cancelled"
    queue.end_job(job)
    assert queue.first_group() is None
    assert not queue._groups


def test_groups_do_not_multiply_with_workers_that_come_and_go() -> None:
    queue = JobQueue("cut")
    make_worker(queue, "anna", 1)
    for number in range(20 * SLACK):
        passing = make_worker(queue, f"passing {number}", 1)
        job = make_job(queue, number)
        job.add_tried_worker(queue.volunteers["anna"])
        job.add_tried_worker(passing)
        queue.push(job)
        queue.remove_volunteer(passing)
        assert len(queue._groups) <= 2 * SLACK
    assert sum(len(group.heap) for group in queue._groups.values()) == queue._size == 20 * SLACK
    for number in range(20 * SLACK):
        group = queue.first_group()
        assert group is not None
        assert group.heap[0][3].number == number, "the order is kept"
        assert queue.eligible_count(group) == 0
        group.heap[0][3].ready = []
        queue.update_leased(group, 0)


def test_a_job_whose_worker_is_back_goes_to_its_right_group() -> None:
    queue = JobQueue("cut")
    anna, bert = make_worker(queue, "anna", 1), make_worker(queue, "bert", 1)
    queue.remove_volunteer(anna)
    jobs = [make_job(queue, number) for number in (1, 2)]
    for job in jobs:
        job.add_tried_worker(anna)
        job.add_tried_worker(bert)
        queue.push(job)
    group = queue.first_group()
    assert group is not None
    assert group.excluded_workers == {"bert"}
    assert not queue.regroup_first(group)
    queue.add_volunteer(anna)
    assert queue.regroup_first(group)
    right = queue.first_group()
    assert right is not None
    assert right is not group
    assert (first(queue), right.excluded_workers, queue.eligible_count(right)) == (jobs[0], {"anna", "bert"}, 0)
    assert not queue.regroup_first(right)
    jobs[0].ready = []
    queue.update_leased(right, 0)
    assert (queue.first_group(), queue._size) == (group, 1)


def test_the_number_of_blocked_groups_is_bounded() -> None:
    queue = JobQueue("cut")
    queue.add_volunteer(PoolWorker("busy", b"", 0))
    groups = []
    for number in range(MAX_BLOCKED_LINES + 2):
        job = make_job(queue, number)
        job.add_tried_worker(make_worker(queue, f"worker {number}", 1))
        queue.push(job)
    while (group := queue.first_group()) is not None and queue.block(group):
        groups.append(group)
    assert len(groups) == MAX_BLOCKED_LINES
    assert group is not None
    assert queue.unblock(groups[0])
    assert queue.first_group() is groups[0]
    assert not queue.unblock(groups[0]), "it is not blocked"
    assert queue.block(groups[0]), "it was blocked before"


def test_a_group_counts_right_after_many_changes_of_the_volunteers() -> None:
    queue = JobQueue("cut")
    job = make_job(queue, 1)
    job.add_tried_worker(make_worker(queue, "anna", 1))
    queue.push(job)
    group = queue.first_group()
    assert group is not None
    for count in (1, SLACK - 1, SLACK, SLACK + 1, 5 * SLACK):
        before = queue.eligible_count(group)
        late = [make_worker(queue, f"worker {count} {number}", 1) for number in range(count)]
        assert queue.eligible_count(group) == before + count == len(queue.volunteers) - 1
        queue.remove_volunteer(late[0])
        assert queue.eligible_count(group) == len(queue.volunteers) - 1


# -- fairness ---------------------------------------------------------------------------------------------------------


def test_a_tag_follows_the_virtual_time_and_the_controllers_last_tag() -> None:
    share = FairShare()
    assert [share.add_job("many", 2), share.add_job("many", 2), share.add_job("few", 1)] == [2, 4, 1]
    share.time = 10
    assert [share.add_job("few", 1), share.add_job("many", 2)] == [11, 12]


def test_a_controller_is_forgotten_with_its_last_job_even_if_no_time_goes_by() -> None:
    share = FairShare()
    for number in range(1000):
        share.add_job(f"controller {number}", 1)
        share.end_job(f"controller {number}")
    assert not share._tags
    assert [share.add_job("many", 2), share.add_job("many", 2)] == [2, 4]
    share.end_job("many")
    assert share.add_job("many", 2) == 6, "it has another job"
