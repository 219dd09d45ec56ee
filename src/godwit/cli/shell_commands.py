"""The commands of `godwit shell`, and how a typed line is read: words separated by blanks, and quotes around names.

Replies, messages and updates of jobs are all written line by line to one output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from godwit.cli.clients import kicked_text, subscriptions_text
from godwit.cli.job import parse_job, parse_workers
from godwit.cli.job_view import job_facts, job_line, task_line, update_text
from godwit.cli.message_lines import MessageFormatter
from godwit.cli.pub import reached_text
from godwit.cli.text import count, hanging, safe
from godwit.cli.worker import TaskRunner, check_simulated_seconds, simulated_work
from godwit.errors import GodwitError, KickedError, TopicError, UsageError
from godwit.wire.control_base import Code

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.net.jobs import AsyncJob


# -- words of a line --------------------------------------------------------------------------------------------------


QUOTES = "\"'"


def first_word(line: str) -> tuple[str, str]:
    """Return the first word without its quotes, and the rest of the line.

    Raises:
        UsageError: A quote is not closed.
    """
    line = line.lstrip()
    if line[:1] and line[0] in QUOTES:
        end = line.find(line[0], 1)
        if end < 0:
            raise UsageError(f"the quote {line[0]} is not closed; add one at the end of the name")
        return line[1:end], line[end + 1 :].lstrip()
    word, _, rest = line.partition(" ")
    return word, rest.lstrip()


def words(line: str) -> list[str]:
    """Return all words of a line."""
    found = []
    rest = line.strip()
    while rest:
        word, rest = first_word(rest)
        found.append(word)
    return found


def topic_and_message(line: str) -> tuple[str, str]:
    """Return a name, and the text up to the end of the line as typed.

    Quotes around the whole text are removed: `pub a "two words"`. Others remain: `pub a {"celsius": 21.5}`.
    """
    topic, text = first_word(line)
    text = text.rstrip()
    if len(text) >= 2 and text[0] in QUOTES and text.find(text[0], 1) == len(text) - 1:
        text = text[1:-1]
    return topic, text


def quoted(name: str) -> str:
    """Return a name as it has to be typed."""
    if name and not any(character.isspace() or character in QUOTES for character in name):
        return name
    quote = "'" if '"' in name else '"'
    return f"{quote}{name}{quote}"


# -- usage ------------------------------------------------------------------------------------------------------------


HELP: Final[Mapping[str, tuple[str, str]]] = {
    "pub": ("pub TOPIC MESSAGE", "publish a message"),
    "retain": (
        "retain TOPIC MESSAGE",
        "publish a message and keep it for later subscribers; without MESSAGE: delete it",
    ),
    "sub": ("sub FILTER", "show messages from now on; + matches one level, # the rest, * one or more levels"),
    "unsub": ("unsub FILTER", "end a subscription"),
    "subs": ("subs", "list your subscriptions"),
    "list": ("list [FILTER]", "list the topics"),
    "create": ("create TOPIC", "create a topic"),
    "clients": ("clients", "list the clients"),
    "kick": ("kick CLIENT [FILTER]", "remove a client, or its subscription"),
    "job submit": (
        "job submit KIND [PAYLOAD]",
        "submit work to one worker and show its progress; --workers N or --workers all before KIND: to several",
    ),
    "job list": ("job list [KIND]", "list the newest jobs"),
    "job show": ("job show JOB", "show one job and its tasks"),
    "job watch": ("job watch JOB", "follow a job"),
    "job cancel": ("job cancel JOB [REASON]", "cancel a job"),
    "volunteer": (
        "volunteer KIND...",
        "simulate work on tasks of these kinds, for a second each or for --seconds S before KIND",
    ),
    "withdraw": ("withdraw", "stop working; unfinished tasks are handed back"),
    "wait": ("wait SECONDS", "wait, for scripts"),
    "help": ("help", "show this list"),
    "quit": ("quit", "end the shell; Ctrl-D does the same, and Ctrl-C on an empty line"),
}

USAGE_WIDTH: Final = max(len(usage) for usage, _ in HELP.values()) + 2


def arguments(command: str, rest: str, least: int, most: int | None) -> list[str]:
    """Return the words after a command.

    Raises:
        UsageError: There are too few or too many words, or an empty one.
    """
    found = words(rest)
    if len(found) < least:
        raise missing_argument(command)
    if most is not None and len(found) > most:
        raise UsageError(f"too many arguments: {HELP[command][0]}; a name with blanks needs quotes")
    if any(not word for word in found):
        raise UsageError(f"a name is empty: {HELP[command][0]}")
    return found


def missing_argument(command: str) -> UsageError:
    """Return the error for a line that lacks an argument."""
    return UsageError(f"an argument is missing: {HELP[command][0]}")


def leading_options(command: str, rest: str, names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return the `--name value` pairs before the first argument, and the rest of the line.

    Raises:
        UsageError: An option is unknown or has no value.
    """
    found: dict[str, str] = {}
    while rest.startswith("--"):
        name, rest = first_word(rest)
        if name not in names:
            raise UsageError(f"{command} has no option {name}; it has {' and '.join(names)}")
        found[name], rest = first_word(rest)
        if not found[name]:
            raise UsageError(f"the option {name} needs a value: {command} {name} VALUE ...")
    return found, rest


# -- messages, topics and clients -------------------------------------------------------------------------------------


ALREADY_SUBSCRIBED: Final = "Already subscribed to topic."
NOT_SUBSCRIBED: Final = "You are not currently subscribed to this topic."
NO_SUCH_TOPIC: Final = "Topic does not exist."
MAX_WAIT_S: Final = 3600.0
CLOSE_TIMEOUT_S: Final = 0.5
"""Time for the last messages to the broker when the shell ends."""


class Shell:
    """The commands of the shell and its subscriptions. `write` accepts whole lines."""

    def __init__(self, client: AsyncClient, write: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self.client = client
        self._write = write
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        self._jobs = ShellJobs(client, write)
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "pub": self._pub,
            "retain": self._retain,
            "sub": self._sub,
            "unsub": self._unsub,
            "subs": self._subs,
            "list": self._list,
            "create": self._create,
            "clients": self._clients,
            "kick": self._kick,
            **self._jobs.commands,
            "wait": self._wait,
            "help": self._help,
        }

    @property
    def filters(self) -> list[str]:
        """The filters of the subscriptions."""
        return list(self._subscriptions)

    async def execute(self, line: str) -> bool:
        """Execute a line; return False for `quit`.

        Raises:
            GodwitError: The command is unknown or failed.
        """
        name, rest = first_word(line)
        if not name or name.startswith("#"):  # an empty line, or a comment in a script
            return True
        if name in ("quit", "exit"):
            arguments("quit", rest, 0, 0)
            return False
        command = self._commands.get(name)
        if command is None:
            raise UsageError(f"unknown command {name}; type help for the list")
        try:
            await command(rest)
        except TopicError as error:
            if error.code == Code.NO_SUCH_TOPIC:
                raise GodwitError(NO_SUCH_TOPIC) from error
            raise
        return True

    async def close(self) -> None:
        """End all subscriptions and hand unfinished tasks back."""
        tasks = list(self._subscriptions.values())
        self._subscriptions.clear()
        for task in tasks:
            task.cancel()
        await self._jobs.close()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def _pub(self, rest: str) -> None:
        topic, message = topic_and_message(rest)
        if not topic or not message:
            raise missing_argument("pub")
        await self._publish(topic, message, retain=False)

    async def _retain(self, rest: str) -> None:
        topic, message = topic_and_message(rest)
        if not topic:
            raise missing_argument("retain")
        await self._publish(topic, message, retain=True)

    async def _publish(self, topic: str, message: str, *, retain: bool) -> None:
        payload = message.encode("utf-8", "surrogateescape")
        reached = await self.client.publish(topic, payload, qos=1, retain=retain)
        await self._write_line(reached_text(reached))

    # -- subscribing --------------------------------------------------------------------------------------------------

    async def _sub(self, rest: str) -> None:
        (filter,) = arguments("sub", rest, 1, 1)
        if filter in self._subscriptions:
            raise GodwitError(ALREADY_SUBSCRIBED)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._show(filter, ready))
        self._subscriptions[filter] = task
        try:
            await ready
        except BaseException:
            self._subscriptions.pop(filter, None)
            task.cancel()
            raise

    async def _unsub(self, rest: str) -> None:
        (filter,) = arguments("unsub", rest, 1, 1)
        task = self._subscriptions.pop(filter, None)
        if task is None:
            raise GodwitError(NOT_SUBSCRIBED)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._write_line(f"Unsubscribed from {filter}.")

    async def _show(self, filter: str, ready: asyncio.Future[None]) -> None:
        """Print the messages of a subscription until it is ended."""
        gaps: list[int | None] = []
        try:
            async with self.client.subscribe(filter, on_gap=gaps.append) as messages:
                await self._write_line(f"Subscribed to {filter}.")
                ready.set_result(None)
                lines = MessageFormatter()
                async for batch in messages.batches():
                    while gaps:
                        missed = gaps.pop(0)
                        what = "some messages" if missed is None else f"up to {count(missed, 'message')}"
                        await self._write_line(f"(missed {what} of {filter})")
                    await self._write(lines.render(batch).decode())
        except GodwitError as error:
            if not ready.done():
                ready.set_exception(error)
                return
            self._subscriptions.pop(filter, None)
            kicked = isinstance(error, KickedError)
            await self._write_line(
                f"{'You were removed from' if kicked else 'No longer subscribed to'} {filter}: {error}"
            )

    async def _subs(self, rest: str) -> None:
        arguments("subs", rest, 0, 0)
        for filter in self.filters or ["You are not subscribed to anything."]:
            await self._write_line(filter)

    # -- topics and clients -------------------------------------------------------------------------------------------

    async def _list(self, rest: str) -> None:
        found = arguments("list", rest, 0, 1)
        filter = found[0] if found and rest.strip() != "topics" else None  # `list topics` is allowed as well
        topics = await self.client.topics(filter)
        lines = [f"{safe(topic.name)}  ({count(topic.subscribers, 'subscriber')})" for topic in topics]
        await self._write("".join(f"{line}\n" for line in lines or ["There are no topics."]))

    async def _create(self, rest: str) -> None:
        (topic,) = arguments("create", rest, 1, 1)
        await self.client.create_topic(topic)
        await self._write_line("Topic created.")

    async def _clients(self, rest: str) -> None:
        arguments("clients", rest, 0, 0)
        for client in await self.client.clients():
            me = " (you)" if client.name == self.client.name else ""
            subscriptions = subscriptions_text(client) or "no subscription"
            await self._write_line(f"{client.name}{me}  {client.address or 'away'}  {subscriptions}")

    async def _kick(self, rest: str) -> None:
        client, *filters = arguments("kick", rest, 1, None)
        await self.client.kick(client, *filters, reason=f"by {self.client.name}")
        await self._write_line(kicked_text(client, filters))

    # -- the rest -----------------------------------------------------------------------------------------------------

    async def _wait(self, rest: str) -> None:
        (text,) = arguments("wait", rest, 1, 1)
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= MAX_WAIT_S:
            raise UsageError(f"wait {text} is out of range; give seconds from 0 to {MAX_WAIT_S:g}")
        await asyncio.sleep(seconds)

    async def _help(self, rest: str) -> None:
        lines = [line for usage, what in HELP.values() for line in hanging(usage, what, title_width=USAGE_WIDTH)]
        await self._write(
            "".join(f"{line}\n" for line in lines) + 'Names that contain blanks need quotes: pub "living room" 21.5\n'
        )

    async def _write_line(self, text: str) -> None:
        await self._write(f"{safe(text)}\n")


# -- jobs and tasks ---------------------------------------------------------------------------------------------------


CAPACITY: Final = 4
"""Number of tasks that a shell simulates at once."""
SHOWN_JOBS: Final = 50
ALREADY_VOLUNTEERING: Final = "You are already volunteering; withdraw first."
NOT_VOLUNTEERING: Final = "You are not volunteering."


class ShellJobs:
    """The commands `job`, `volunteer` and `withdraw`. Results are shown when they arrive; no command waits for them."""

    def __init__(self, client: AsyncClient, write: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self.client = client
        self._write = write
        self._watched: dict[int, asyncio.Task[None]] = {}
        self._serving: asyncio.Task[None] | None = None
        self._notice: asyncio.Task[None] | None = None  # referenced here, because the loop does not keep its tasks
        self._runner: TaskRunner | None = None
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
        """Hand unfinished tasks back and stop watching jobs. The jobs continue."""
        tasks = [*self._watched.values(), *([self._serving] if self._serving is not None else [])]
        self._watched.clear()
        self._serving = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def _job(self, rest: str) -> None:
        name, rest = first_word(rest)
        command = self._job_commands.get(name)
        if command is None:
            known = ", ".join(self._job_commands)
            raise UsageError(
                f"unknown command job {name}; choose one of: {known}" if name else f"job needs a command: {known}"
            )
        await command(rest)

    async def _submit(self, rest: str) -> None:
        options, rest = leading_options("job submit", rest, ["--workers"])
        kind, payload = topic_and_message(rest)
        if not kind:
            raise missing_argument("job submit")
        workers = parse_workers(options.get("--workers", "1"))
        job = await self.client.submit(kind, payload.encode("utf-8", "surrogateescape"), workers=workers)
        self._watch_job(job)

    async def _list(self, rest: str) -> None:
        kinds = arguments("job list", rest, 0, 1)
        jobs = await self.client.jobs(kind=kinds[0] if kinds else None, limit=SHOWN_JOBS + 1)
        lines = [*map(job_line, jobs[:SHOWN_JOBS]), *(["Older jobs are not listed."] if len(jobs) > SHOWN_JOBS else [])]
        await self._write("".join(f"{line}\n" for line in lines) or "There are no jobs.\n")

    async def _show(self, rest: str) -> None:
        (number,) = arguments("job show", rest, 1, 1)
        info, tasks = await self.client.job_info(parse_job(number))
        lines = [f"{title:12}{fact}" for title, fact in job_facts(info).items()]
        await self._write("".join(f"{line}\n" for line in [*lines, *map(task_line, tasks)]))

    async def _watch(self, rest: str) -> None:
        (text,) = arguments("job watch", rest, 1, 1)
        number = parse_job(text)
        if number in self._watched:
            raise GodwitError(f"Job {number} is already being watched.")
        self._watch_job(await self.client.job(number))

    async def _cancel(self, rest: str) -> None:
        text, reason = topic_and_message(rest)
        if not text:
            raise missing_argument("job cancel")
        number = parse_job(text)
        await self.client.cancel_job(number, reason=reason)
        if number not in self._watched:  # else its updates show it
            await self._write(f"job {number}: cancelled\n")

    def _watch_job(self, job: AsyncJob) -> None:
        number = job.number
        if number not in self._watched:  # the same key returns the same job
            self._watched[number] = asyncio.create_task(self._print_updates(job, number))

    async def _print_updates(self, job: AsyncJob, number: int) -> None:
        try:
            async for update in job:
                if update.what != "progress":
                    await self._write(f"{update_text(job, update)}\n")
        except GodwitError as error:
            await self._write(f"job {number} is no longer watched: {safe(str(error))}\n")
        finally:
            self._watched.pop(number, None)

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def _volunteer(self, rest: str) -> None:
        from godwit.broker.topics import check_kind

        options, rest = leading_options("volunteer", rest, ["--seconds"])
        kinds = list(dict.fromkeys(arguments("volunteer", rest, 1, None)))
        for kind in kinds:
            check_kind(kind)
        seconds = _seconds(options.get("--seconds", "1"))
        if self._serving is not None:
            raise GodwitError(ALREADY_VOLUNTEERING)
        self._runner = runner = TaskRunner(simulated_work(seconds), self._write)
        worker = runner.worker(kinds, CAPACITY)
        self._serving = serving = asyncio.create_task(worker.serve(self.client))
        try:
            await worker.ready()
        except UsageError:  # it ended first; awaiting it raises the reason
            self._serving = None
            await serving
            raise
        await self._write(f"Volunteering for {safe(', '.join(kinds))}.\n")
        serving.add_done_callback(self._on_served)

    def _on_served(self, serving: asyncio.Task[None]) -> None:
        """Report an end of the work that the user did not request."""
        if self._serving is serving and not serving.cancelled() and (error := serving.exception()) is not None:
            self._serving = None
            self._notice = asyncio.create_task(self._write(f"You no longer volunteer: {safe(str(error))}\n"))

    async def _withdraw(self, rest: str) -> None:
        arguments("withdraw", rest, 0, 0)
        if self._serving is None or self._runner is None:
            raise GodwitError(NOT_VOLUNTEERING)
        serving, self._serving = self._serving, None
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        returned = self._runner.returned_count
        await self._write(f"Withdrawn; {count(returned, 'task')} handed back.\n" if returned else "Withdrawn.\n")


def _seconds(text: str) -> float:
    try:
        return check_simulated_seconds(float(text))
    except ValueError:
        raise UsageError(f"{text!r} is not a number of seconds; see help") from None
