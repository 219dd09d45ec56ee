"""Workers of jobs for the big tests: each does what the job says, and may fail at it."""

from __future__ import annotations

import asyncio
import random

from tests.system.worker import Orders, say

import godwit
from godwit.net.tasks import Task

KIND = "labour"
LONGEST_TASK_S = 0.01
FAILURES_SHARE = 0.02


async def labour(orders: Orders, *, broker: str, name: str, capacity: int, seed: int) -> None:
    """Volunteers for KIND. A task takes a random while, may fail, and gives its payload back, reversed.

    Says `ready` when it has volunteered. The order `stop` ends it: it hands back what it has.
    """
    rng = random.Random(f"{seed} {name}")
    worker = godwit.Worker(broker, name=name, capacity=capacity)

    @worker.handles(KIND)
    async def do(task: Task) -> bytes:
        await asyncio.sleep(rng.uniform(0, LONGEST_TASK_S))
        if rng.random() < FAILURES_SHARE:
            raise RuntimeError("this one went wrong")
        return task.payload[::-1]

    async with asyncio.TaskGroup() as group:
        running = group.create_task(worker.run())
        await worker.ready()
        say("ready")
        while await orders.next() != "stop":
            pass
        running.cancel()
