"""Completion in `godwit shell`: commands, then the names that a command asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from godwit.cli.shell_commands import Shell
from godwit.cli.shell_usage import HELP
from godwit.cli.shell_words import QUOTES, quoted
from godwit.cli.text import safe
from godwit.errors import GodwitError

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.wire.jobs import JobInfo

FRESH_S: Final = 2.0
"""Names that are older are asked for again."""
PATIENCE_S: Final = 0.5
"""Nobody waits longer for a list of names."""
MAX_SHOWN: Final = 100

TAKES_TOPIC: Final = frozenset(("pub", "retain", "sub", "list", "create"))
TAKES_JOB: Final = frozenset(("show", "watch", "cancel"))
COMMANDS: Final = tuple(dict.fromkeys(name.partition(" ")[0] for name in HELP))
JOB_COMMANDS: Final = tuple(name.removeprefix("job ") for name in HELP if name.startswith("job "))


class Names:
    """Topics, clients and jobs of the broker, asked for when somebody completes a name."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._topics: tuple[float, str, list[str]] = (-FRESH_S, "", [])
        self._clients: tuple[float, list[str]] = (-FRESH_S, [])
        self._jobs: tuple[float, list[JobInfo]] = (-FRESH_S, [])

    async def topics(self, beginning: str) -> list[str]:
        """Those below the last whole level of what is typed."""
        parent, slash, _ = beginning.rpartition("/")
        filter = f"{parent}/#" if slash else "#"
        asked_at, asked_for, names = self._topics
        if asked_for == filter and time.monotonic() - asked_at < FRESH_S:
            return names
        try:
            async with asyncio.timeout(PATIENCE_S):
                names = [topic.name for topic in await self._client.topics(filter)]
        except (GodwitError, TimeoutError):  # no names are no reason to disturb somebody who types
            names = []
        self._topics = (time.monotonic(), filter, names)
        return names

    async def clients(self) -> list[str]:
        asked_at, names = self._clients
        if time.monotonic() - asked_at < FRESH_S:
            return names
        try:
            async with asyncio.timeout(PATIENCE_S):
                names = [client.name for client in await self._client.clients()]
        except (GodwitError, TimeoutError):
            names = []
        self._clients = (time.monotonic(), names)
        return names

    async def jobs(self) -> list[str]:
        """The numbers of those that have not ended, the newest first."""
        return [str(job.job) for job in await self._present_jobs()]

    async def kinds(self) -> list[str]:
        """Kinds of work that is not done yet."""
        return sorted({job.of_kind for job in await self._present_jobs()})

    async def _present_jobs(self) -> list[JobInfo]:
        asked_at, jobs = self._jobs
        if time.monotonic() - asked_at < FRESH_S:
            return jobs
        try:
            async with asyncio.timeout(PATIENCE_S):
                jobs = await self._client.jobs(states=["waiting", "running"])
        except (GodwitError, TimeoutError):
            jobs = []
        self._jobs = (time.monotonic(), jobs)
        return jobs


class ShellCompleter(Completer):
    """Asks the broker, so it works in the event loop only."""

    def __init__(self, shell: Shell, names: Names) -> None:
        self._shell = shell
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        before, word = split_last(document.text_before_cursor)
        beginning = word[1:] if word[:1] in QUOTES and word else word
        shown = 0
        for name in await self._candidates(before, beginning):
            if name.startswith(beginning) and name.isprintable():
                yield Completion(quoted(name) if before else name, start_position=-len(word), display=safe(name))
                shown += 1
                if shown == MAX_SHOWN:
                    return

    async def _candidates(self, before: list[str], beginning: str) -> list[str]:
        if not before:
            return list(COMMANDS)
        command, place = before[0], len(before)
        if command in TAKES_TOPIC and place == 1:
            return await self._names.topics(beginning)
        if command == "unsub" and place == 1:
            return self._shell.filters
        if command == "kick":
            return await self._names.clients() if place == 1 else await self._names.topics(beginning)
        if command == "job":
            return await self._job_candidates(before[1:])
        return await self._names.kinds() if command == "volunteer" else []

    async def _job_candidates(self, before: list[str]) -> list[str]:
        if not before:
            return list(JOB_COMMANDS)
        if before[0] in TAKES_JOB and len(before) == 1:
            return await self._names.jobs()
        if before[1:] == ["--workers"]:
            return ["all"]
        is_at_kind = len(before) == (3 if before[1:2] == ["--workers"] else 1)
        return await self._names.kinds() if before[0] in ("submit", "list") and is_at_kind else []


def split_last(text: str) -> tuple[list[str], str]:
    """The whole words of what is typed, without their quotes, and the one that is being typed, with its quote."""
    whole: list[str] = []
    rest = text.lstrip()
    while rest:
        if rest[0] in QUOTES:
            end = rest.find(rest[0], 1)
            if end < 0 or end == len(rest) - 1:
                return whole, rest
            whole.append(rest[1:end])
            rest = rest[end + 1 :].lstrip()
        else:
            word, blank, rest = rest.partition(" ")
            if not blank:
                return whole, word
            whole.append(word)
            rest = rest.lstrip()
    return whole, ""
