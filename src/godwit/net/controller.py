"""The part of a client that gives work to others and looks after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Unpack

from godwit.broker.topics import check_kind
from godwit.client.packing import Payload
from godwit.errors import UsageError
from godwit.net.jobs import AsyncJob
from godwit.net.shell import ClientShell
from godwit.net.submitting import JobLike, JobOptions, check_number, check_states, core_options
from godwit.wire.jobs import JobDetails, JobInfo, JobList, JobState, ListJobs, ShowJob, TaskInfo


class Controller(ClientShell):
    """What AsyncClient can do with jobs."""

    async def submit(
        self, kind: str, payload: Payload = b"", *, key: str | None = None, **options: Unpack[JobOptions]
    ) -> AsyncJob:
        """Has a job done by workers that volunteer for its kind. Returns when the broker has it safe.

        `job.agreed` says then how many workers do it. Options: workers=1 (or more, or "all"), priority=0, delay_s=0,
        deadline_s, retries=3, retry_delay_s=1, time_limit_s; see godwit.net.submitting.JobOptions. A `key` of your own
        makes it the same job when you submit it again, also in a later run, if the client has a name: keys are a
        controller's own, and without a name each client is another controller.
        """
        self.require_open()
        return await self.followed_jobs.submit(kind, payload, key, core_options(**options))

    async def submit_many(self, jobs: Iterable[JobLike], **options: Unpack[JobOptions]) -> list[AsyncJob]:
        """The fast way for many: (kind, payload) or (kind, payload, key), all with the same options.

        Returns when all are answered. With keys of your own all of it may be repeated, also after a crash.
        One that the broker refuses stops no other: its state is "refused", and its results() raises why.
        """
        self.require_open()
        return await self.followed_jobs.submit_many(jobs, core_options(**options))

    async def job(self, number: int) -> AsyncJob:
        """A job that was submitted before, also by an earlier run of this program: how it stands, and what follows."""
        info = (await self._shown(number, 0)).job
        job = await self.followed_jobs.watch(number)
        job.describe(info)
        return job

    async def jobs(
        self,
        *,
        kind: str | None = None,
        controller: str | None = None,
        states: Sequence[JobState] | None = None,
        limit: int | None = None,
    ) -> list[JobInfo]:
        """The jobs that this client may see, the newest first; of a kind, a controller, in one of these states.

        With a `limit` at most so many.
        """
        if kind is not None:
            check_kind(kind)
        if controller is not None and not isinstance(controller, str):
            raise UsageError(f"controller is of the type {type(controller).__name__}: give a name")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise UsageError(f"limit is {limit!r}: give how many jobs, 1 or more, or None for all")
        chosen = check_states(states)
        found: list[JobInfo] = []
        before: int | None = None
        while True:
            page = await self.request(partial(_jobs, kind, controller, chosen, before), JobList)
            found += page.jobs
            is_enough = limit is not None and len(found) >= limit
            if is_enough or not page.more or (before is not None and page.before >= before):  # it does not come on
                return found[:limit]
            before = page.before

    async def job_info(self, number: int) -> tuple[JobInfo, list[TaskInfo]]:
        """One job and its tasks, as they stand."""
        tasks: list[TaskInfo] = []
        while True:
            page = await self._shown(number, len(tasks))
            tasks += page.tasks
            if not page.more or not page.tasks:
                return page.job, tasks

    async def cancel_job(self, number: int, reason: str = "") -> None:
        """Ends a job: tasks that are at work are revoked. Returns when that is safe."""
        await self.followed_jobs.cancel(number, reason)

    async def _shown(self, number: int, first_task: int) -> JobDetails:
        check_number(number)
        return await self.request(lambda n: ShowJob(request=n, job=number, first_task=first_task), JobDetails)


def _jobs(
    kind: str | None, controller: str | None, states: list[JobState] | None, before: int | None, number: int
) -> ListJobs:
    return ListJobs(request=number, of_kind=kind, controller=controller, states=states, before=before)
