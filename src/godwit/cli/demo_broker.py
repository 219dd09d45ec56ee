"""The process of `godwit demo` that is the broker."""

from __future__ import annotations

from multiprocessing.connection import Connection as Pipe

from godwit.cli.demo_processes import Line, run_child


def main(pipe: Pipe) -> None:
    """Of the process: tells its address, and runs until nobody listens any more."""
    run_child(pipe, work)


async def work(line: Line) -> None:
    from godwit.net.serve import Service

    async with Service() as service:  # on any free port of this machine
        line.say(service.addresses[0])
        await line.is_cut()
