"""Lists that a broker sends in pages: topics, clients, cursors, workers, jobs, and the tasks of a job; and retries."""

from __future__ import annotations

import os
from functools import partial
from typing import Final

from godwit.net.job_options import check_number
from godwit.net.runtime import ClientRuntime
from godwit.wire.control import (
    ClientInfo,
    ClientList,
    Clients,
    CursorInfo,
    CursorList,
    Cursors,
    GroupInfo,
    GroupList,
    ListGroups,
    TopicInfo,
    TopicList,
    Topics,
)
from godwit.wire.jobs import (
    JobDetails,
    JobInfo,
    JobList,
    JobState,
    ListJobs,
    ListWorkers,
    RetryJob,
    RetryReply,
    ShowJob,
    TaskInfo,
    WorkerInfo,
    WorkerList,
)
from godwit.wire.relay import BridgeInfo, BridgeList, ListBridges

KEY_BYTES: Final = 12
"""Random bytes in the key of a retried job."""


async def list_topics(runtime: ClientRuntime, filter: str | None) -> list[TopicInfo]:
    """Return the topics that match a filter, or all."""
    found: list[TopicInfo] = []
    after: str | None = None
    while True:
        page = await runtime.request(partial(_topics, filter, after), TopicList)
        found += page.topics
        if not page.more or page.after <= (after or ""):  # a broker that makes no progress
            return found
        after = page.after


def _topics(filter: str | None, after: str | None, number: int) -> Topics:
    return Topics(request=number, filter=filter, after=after)


async def list_clients(runtime: ClientRuntime) -> list[ClientInfo]:
    """Return the connected clients, and those of which the broker keeps a session."""
    found: list[ClientInfo] = []
    while True:
        page = await runtime.request(partial(_clients, found[-1].name if found else None), ClientList)
        found += page.clients
        if not page.more or not page.clients:
            return found


def _clients(after: str | None, number: int) -> Clients:
    return Clients(request=number, after=after)


async def list_cursors(runtime: ClientRuntime, client: str | None) -> list[CursorInfo]:
    """Return the subscriptions of a client, or of all, with their positions."""
    found: list[CursorInfo] = []
    after: str | None = None
    while True:
        page = await runtime.request(partial(_cursors, client, after), CursorList)
        found += page.cursors
        if not page.more or page.after <= (after or ""):  # a broker that makes no progress
            return found
        after = page.after


def _cursors(client: str | None, after: str | None, number: int) -> Cursors:
    return Cursors(request=number, client=client, after=after)


async def list_groups(runtime: ClientRuntime) -> list[GroupInfo]:
    """Return the consumer groups with their positions."""
    found: list[GroupInfo] = []
    after: str | None = None
    while True:
        page = await runtime.request(partial(_groups, after), GroupList)
        found += page.groups
        if not page.more or page.after <= (after or ""):  # a broker that makes no progress
            return found
        after = page.after


def _groups(after: str | None, number: int) -> ListGroups:
    return ListGroups(request=number, after=after)


async def list_bridges(runtime: ClientRuntime) -> list[BridgeInfo]:
    """Return the bridges from and to the broker."""
    return (await runtime.request(lambda number: ListBridges(request=number), BridgeList)).bridges


async def list_workers(runtime: ClientRuntime) -> list[WorkerInfo]:
    """Return the workers in the order of their names."""
    found: list[WorkerInfo] = []
    while True:
        page = await runtime.request(partial(_workers, found[-1].name if found else None), WorkerList)
        found += page.workers
        if not page.more or not page.workers:
            return found


def _workers(after: str | None, number: int) -> ListWorkers:
    return ListWorkers(request=number, after=after)


async def list_jobs(
    runtime: ClientRuntime,
    kind: str | None,
    controller: str | None,
    states: list[JobState] | None,
    limit: int | None,
) -> list[JobInfo]:
    """Return the jobs that have these properties, the newest first."""
    found: list[JobInfo] = []
    before: int | None = None
    while True:
        page = await runtime.request(partial(_jobs, kind, controller, states, before), JobList)
        found += page.jobs
        is_enough = limit is not None and len(found) >= limit
        if is_enough or not page.more or (before is not None and page.before >= before):  # no progress
            return found[:limit]
        before = page.before


def _jobs(
    kind: str | None, controller: str | None, states: list[JobState] | None, before: int | None, number: int
) -> ListJobs:
    return ListJobs(request=number, of_kind=kind, controller=controller, states=states, before=before)


async def show_job(runtime: ClientRuntime, number: int) -> tuple[JobInfo, list[TaskInfo]]:
    """Return a job and its tasks."""
    tasks: list[TaskInfo] = []
    while True:
        page = await job_page(runtime, number, len(tasks))
        tasks += page.tasks
        if not page.more or not page.tasks:
            return page.job, tasks


async def job_page(runtime: ClientRuntime, number: int, first_task: int) -> JobDetails:
    """Return a job, and its tasks from `first_task` on that fit into one reply."""
    check_number(number)
    return await runtime.request(lambda n: ShowJob(request=n, job=number, first_task=first_task), JobDetails)


async def retry_job(runtime: ClientRuntime, number: int) -> int:
    """Submit a failed or cancelled job once more. Return the number of the new job when the broker has stored it."""
    check_number(number)
    key = f"retry-{os.urandom(KEY_BYTES).hex()}"
    return (await runtime.request(lambda n: RetryJob(request=n, job=number, key=key), RetryReply)).job
