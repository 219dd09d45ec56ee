"""beanstalkd as a system under test: its binlog synced after each command that changes something, and greenstalk.

greenstalk has one command under way on a connection, so a process that wants more has more connections, each in a
thread of its own: the server then has the next command at hand when it comes back from the disk. It syncs a job twice,
when it is put and when it is deleted; that a worker has it is not written down.

beanstalkd knows no results. A controller that waits for one gets it as a job of another tube.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING, Final

from godwit.errors import GodwitError
from godwit_bench.jobs_cycles import DATA_FOLDER, JOB_BYTES, Completed, Dispatcher, Submitted
from godwit_bench.stage import GIVE_UP_S, HOST, READY, Stage, free_port, wait_for_listener

if TYPE_CHECKING:
    import greenstalk

JOBS: Final = "jobs"
RESULTS: Final = "results"
LOOK_S: Final = 0.002


def beanstalkd(program: str, connections: int) -> Dispatcher:
    """With the beanstalkd at this path, and so many connections from the controller and from the worker."""
    return Dispatcher(
        partial(_broker, program), partial(_submit, connections, False), partial(_complete, connections, False)
    )


def beanstalkd_one_by_one(program: str) -> Dispatcher:
    """One job at a time: the next one is put when the result of the last one has come."""
    return Dispatcher(partial(_broker, program), partial(_submit, 1, True), partial(_complete, 1, True))


def _broker(program: str, stage: Stage) -> str:
    port = free_port()
    data = stage.folder / DATA_FOLDER
    data.mkdir()
    log = stage.run(program, "-l", HOST, "-p", str(port), "-b", str(data), "-f0")
    wait_for_listener(port, log)
    return str(port)


def _connect(port: str, *, use: str, watch: str) -> greenstalk.Client[bytes]:
    import greenstalk

    return greenstalk.Client((HOST, int(port)), encoding=None, use=use, watch=watch)


def _submit(connections: int, waits_for_results: bool, pipe: Pipe, port: str, seconds: float) -> None:
    clients = [_connect(port, use=JOBS, watch=RESULTS) for _ in range(connections)]
    counts = [0] * connections
    began = time.monotonic()

    def submit(number: int) -> None:
        put, reserve, delete = clients[number].put, clients[number].reserve, clients[number].delete
        payload = bytes(JOB_BYTES)
        while time.monotonic() < began + seconds:
            put(payload)
            if waits_for_results:
                delete(reserve())
            counts[number] += 1

    for thread in _threads(connections, submit):
        thread.join()
    pipe.send(Submitted(sum(counts), began, time.monotonic()))


def _complete(connections: int, gives_results: bool, pipe: Pipe, port: str) -> None:
    clients = [_connect(port, use=RESULTS, watch=JOBS) for _ in range(connections)]
    counts = [0] * connections
    ended = [0.0] * connections

    def complete(number: int) -> None:
        put, reserve, delete = clients[number].put, clients[number].reserve, clients[number].delete
        while True:
            job = reserve()
            if gives_results:
                put(b"done")
            delete(job)
            counts[number] += 1
            ended[number] = time.monotonic()

    _threads(connections, complete)
    pipe.send(READY)
    jobs = pipe.recv()
    gives_up = time.monotonic() + GIVE_UP_S
    while sum(counts) < jobs:
        if time.monotonic() > gives_up:
            raise GodwitError(f"beanstalkd handed out {sum(counts)} of {jobs} jobs and then no more")
        time.sleep(LOOK_S)
    pipe.send(Completed(sum(counts), max(ended)))


def _threads(connections: int, part: Callable[[int], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=part, args=(number,), daemon=True) for number in range(connections)]
    for thread in threads:
        thread.start()
    return threads
