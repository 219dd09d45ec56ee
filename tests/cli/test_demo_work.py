"""The workers and the controller of the demo, against a broker in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tests.cli.test_demo_processes import Cut, cut

from godwit.cli import demo_work
from godwit.cli.demo_processes import Line
from godwit.cli.demo_work import WorkReport, problems
from godwit.net.service import Service


def in_thread(work: Callable[[Line], Coroutine[Any, Any, None]]) -> tuple[Connection, threading.Thread]:
    here, there = Pipe()

    def run() -> None:
        with suppress(Cut):  # the pipe was closed, as it should be
            asyncio.run(work(Line(there, cut)))

    thread = threading.Thread(target=run)
    thread.start()
    return here, thread


def test_jobs_are_done_by_all_workers_and_checked() -> None:
    async def main() -> WorkReport:
        async with Service() as service:
            url = service.urls[0]
            ends = [
                in_thread(lambda line, name=name: demo_work.volunteer(line, url, name))  # type: ignore[misc]
                for name in demo_work.WORKERS
            ]
            for pipe, _ in ends:
                assert await asyncio.to_thread(pipe.recv) == "ready"
            here, thread = in_thread(lambda line: demo_work.control(line, url, 1))
            ends.append((here, thread))
            report: WorkReport = await asyncio.to_thread(here.recv)
            here.send("go")
            while report.submitted < 12:
                report = await asyncio.to_thread(here.recv)
            here.send("finish")
            while not report.is_complete:
                report = await asyncio.to_thread(here.recv)
            for pipe, thread in ends:
                pipe.close()
                await asyncio.to_thread(thread.join)
        return report

    report = asyncio.run(main())
    assert problems(report) == []
    assert report.by_worker.keys() == set(demo_work.WORKERS)
    assert sum(report.by_worker.values()) == report.done + 1  # one job was for both


def test_what_is_wrong_is_told() -> None:
    assert problems(WorkReport(submitted=5, done=5, is_complete=True)) == []
    assert problems(WorkReport(submitted=5, done=3, wrong=1, is_complete=True)) == [
        "1 of 5 jobs failed or had a wrong result",
        "1 of 5 jobs were not done in time",
    ]
