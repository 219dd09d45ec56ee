"""Groups of work for hypothesis: each part with all of its fields, and the payloads that belong to the parts."""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st
from tests.wire.strategies import counts, fractions, job_states, kinds, names, refs, task_states, texts, u

from godwit.limits import MAX_JOB_TIME_MS, MAX_PRIORITY, MAX_RETRIES, MAX_TASKS_OF_JOB
from godwit.wire import work as w
from godwit.wire.jobs import JobSpec

Group: TypeAlias = tuple[w.FromClient | w.FromBroker, list[bytes]]

sizes = st.integers(0, 40)
durations = st.integers(0, MAX_JOB_TIME_MS)
limits = st.none() | st.integers(1, MAX_JOB_TIME_MS)
submissions = st.builds(
    JobSpec,
    key=names,
    of_kind=kinds,
    size=sizes,
    workers=st.integers(0, MAX_TASKS_OF_JOB),
    priority=st.integers(-MAX_PRIORITY, MAX_PRIORITY),
    delay_ms=durations,
    deadline_ms=limits,
    retries=st.integers(0, MAX_RETRIES),
    retry_delay_ms=durations,
    time_limit_ms=limits,
)
outcomes = st.builds(w.TaskOutcome, task=refs, size=sizes, error=st.none() | texts, is_final=st.booleans())
steps = st.builds(w.ProgressReport, task=refs, progress=fractions, note=texts)
taken_jobs = st.builds(w.SubmitReply, key=names, job=counts, agreed=st.none() | counts, code=u(16), text=texts)
leased_tasks = st.builds(
    w.LeasedTask,
    task=refs,
    of_kind=kinds,
    controller=names,
    size=sizes,
    agreed=counts,
    failures=counts,
    time_limit_ms=st.none() | counts,
    deadline_us=st.none() | counts,
)
task_updates = st.builds(
    w.TaskUpdate,
    task=counts,
    state=task_states,
    worker=texts,
    fence=counts,
    failures=counts,
    losses=counts,
    progress=fractions,
    note=texts,
    error=texts,
    size=sizes,
)
job_updates = st.builds(
    w.JobUpdate,
    job=counts,
    state=job_states,
    agreed=st.none() | counts,
    reason=texts,
    tasks=st.lists(task_updates, max_size=3),
)


def _some(parts: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[list[Any]]:
    return st.lists(parts, min_size=least, max_size=3)


HEADS: dict[type, st.SearchStrategy[Any]] = {
    w.SubmitGroup: st.builds(w.SubmitGroup, jobs=_some(submissions, 1)),
    w.ReportGroup: st.builds(w.ReportGroup, outcomes=_some(outcomes), steps=_some(steps), returned=_some(refs)),
    w.SubmitReplyGroup: st.builds(w.SubmitReplyGroup, jobs=_some(taken_jobs)),
    w.LeaseGroup: st.builds(w.LeaseGroup, tasks=_some(leased_tasks)),
    w.RevokeGroup: st.builds(w.RevokeGroup, tasks=_some(refs), reason=texts),
    w.UpdateGroup: st.builds(w.UpdateGroup, jobs=_some(job_updates)),
}
"""Every kind of group."""


def sizes_of(head: w.FromClient | w.FromBroker) -> list[int]:
    """Of the payloads, in the order in which they stand in the record."""
    match head:
        case w.SubmitGroup():
            return [job.size for job in head.jobs]
        case w.ReportGroup():
            return [outcome.size for outcome in head.outcomes]
        case w.LeaseGroup():
            return [task.size for task in head.tasks]
        case w.UpdateGroup():
            return [task.size for job in head.jobs for task in job.tasks]
    return []


@st.composite
def groups(draw: st.DrawFn, *kinds_of_head: type) -> Group:
    """A group of one of these kinds, or of any."""
    head = draw(st.one_of(*[HEADS[kind] for kind in kinds_of_head or HEADS]))
    return head, [draw(st.binary(min_size=size, max_size=size)) for size in sizes_of(head)]
