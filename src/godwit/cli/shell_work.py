"""Work in `godwit shell`: jobs that are submitted and followed while the user types, and tasks that are worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from godwit.cli.job_list import job_facts, job_line, task_line
from godwit.cli.job_text import parse_job, parse_workers, update_text
from godwit.cli.shell_usage import arguments, leading_options, missing
from godwit.cli.shell_words import first_word, topic_and_message
from godwit.cli.text import count, safe
from godwit.cli.worker import check_pretence
from godwit.cli.worker_tasks import Hands, pretending
from godwit.errors import GodwitError, UsageError

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.net.jobs import AsyncJob

CAPACITY: Final = 4
"""Tasks that a shell pretends to work on at once."""
SHOWN_JOBS: Final = 50
LAST_WORD_S: Final = 0.5
"""How long the end may take to hand tasks back; a broker that is gone does not answer."""
ALREADY: Final = "You are volunteering already; withdraw first."
NOT_VOLUNTEERING: Final = "You are not volunteering."


class ShellWork:
    """The commands `job`, `volunteer` and `withdraw`. What takes long is not waited for, but shown as it comes."""

    def __init__(self, client: AsyncClient, write: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self.client = client
        self._write = write
        self._followed: dict[int, asyncio.Task[None]] = {}
        self._serving: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        """Kept because the loop does not keep its tasks."""
        self._hands: Hands | None = None
        self.commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "job": self._job,
            "volunteer": self._volunteer,
            "withdraw": self._withdraw,
        }
        self._job_commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "submit": self._submit,
            "list": self._list,
            "show": self._show,
            "watch": self._watch,
            "cancel": self._cancel,
        }

    async def close(self) -> None:
        """Hands back what is not done, and follows nothing any more; jobs go on."""
        tasks = [*self._followed.values(), *([self._serving] if self._serving is not None else [])]
        self._followed.clear()
        self._serving = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORD_S)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def _job(self, rest: str) -> None:
        name, rest = first_word(rest)
        command = self._job_commands.get(name)
        if command is None:
            known = ", ".join(self._job_commands)
            raise UsageError(f"there is no command job {name}; there are: {known}" if name else f"job what? {known}")
        await command(rest)

    async def _submit(self, rest: str) -> None:
        options, rest = leading_options("job submit", rest, ["--workers"])
        kind, payload = topic_and_message(rest)
        if not kind:
            raise missing("job submit")
        workers = parse_workers(options.get("--workers", "1"))
        job = await self.client.submit(kind, payload.encode("utf-8", "surrogateescape"), workers=workers)
        self._follow(job)

    async def _list(self, rest: str) -> None:
        kinds = arguments("job list", rest, 0, 1)
        jobs = await self.client.jobs(kind=kinds[0] if kinds else None, limit=SHOWN_JOBS + 1)
        lines = [*map(job_line, jobs[:SHOWN_JOBS]), *(["There are older ones."] if len(jobs) > SHOWN_JOBS else [])]
        await self._write("".join(f"{line}\n" for line in lines) or "There are no jobs.\n")

    async def _show(self, rest: str) -> None:
        (number,) = arguments("job show", rest, 1, 1)
        info, tasks = await self.client.job_info(parse_job(number))
        lines = [f"{title:12}{fact}" for title, fact in job_facts(info).items()]
        await self._write("".join(f"{line}\n" for line in [*lines, *map(task_line, tasks)]))

    async def _watch(self, rest: str) -> None:
        (text,) = arguments("job watch", rest, 1, 1)
        number = parse_job(text)
        if number in self._followed:
            raise GodwitError(f"Job {number} is being watched already.")
        self._follow(await self.client.job(number))

    async def _cancel(self, rest: str) -> None:
        text, reason = topic_and_message(rest)
        if not text:
            raise missing("job cancel")
        number = parse_job(text)
        await self.client.cancel_job(number, reason=reason)
        if number not in self._followed:  # else it is shown anyway
            await self._write(f"job {number}: cancelled\n")

    def _follow(self, job: AsyncJob) -> None:
        number = job.number
        if number not in self._followed:  # the same key again would be the same job
            self._followed[number] = asyncio.create_task(self._tell(job, number))

    async def _tell(self, job: AsyncJob, number: int) -> None:
        try:
            async for update in job:
                if update.what != "progress":
                    await self._write(f"{update_text(job, update)}\n")
        except GodwitError as error:
            await self._write(f"job {number} is watched no longer: {safe(str(error))}\n")
        finally:
            self._followed.pop(number, None)

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def _volunteer(self, rest: str) -> None:
        from godwit.broker.topics import check_kind

        options, rest = leading_options("volunteer", rest, ["--seconds"])
        kinds = list(dict.fromkeys(arguments("volunteer", rest, 1, None)))
        for kind in kinds:
            check_kind(kind)
        seconds = _seconds(options.get("--seconds", "1"))
        if self._serving is not None:
            raise GodwitError(ALREADY)
        self._hands = hands = Hands(pretending(seconds), self._write)
        worker = hands.worker(kinds, CAPACITY)
        self._serving = serving = asyncio.create_task(worker.serve(self.client))
        try:
            await worker.ready()
        except UsageError:  # it has ended before, and says why
            self._serving = None
            await serving
            raise
        await self._write(f"Volunteering for {safe(', '.join(kinds))}.\n")
        serving.add_done_callback(self._on_served)

    def _on_served(self, serving: asyncio.Task[None]) -> None:
        """Tells of an end that nobody here asked for."""
        if self._serving is serving and not serving.cancelled() and (error := serving.exception()) is not None:
            self._serving = None
            self._telling = asyncio.create_task(self._write(f"You no longer volunteer: {safe(str(error))}\n"))

    async def _withdraw(self, rest: str) -> None:
        arguments("withdraw", rest, 0, 0)
        if self._serving is None or self._hands is None:
            raise GodwitError(NOT_VOLUNTEERING)
        serving, self._serving = self._serving, None
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        undone = self._hands.given_back
        await self._write(f"Withdrawn; {count(undone, 'task')} handed back.\n" if undone else "Withdrawn.\n")


def _seconds(text: str) -> float:
    try:
        return check_pretence(float(text))
    except ValueError:
        raise UsageError(f"{text!r} is no number of seconds; see help") from None
