"""What the commands of `godwit shell` do. Replies and messages go to one place, line by line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from godwit.cli.clients import subscriptions_text
from godwit.cli.kick import kicked_text
from godwit.cli.pub import reached_text
from godwit.cli.rendering import Lines
from godwit.cli.shell_usage import HELP, USAGE_WIDTH, arguments, missing
from godwit.cli.shell_words import first_word, topic_and_message
from godwit.cli.shell_work import ShellWork
from godwit.cli.text import count, hanging, safe
from godwit.errors import GodwitError, KickedError, TopicError, UsageError
from godwit.wire.control_base import Code

if TYPE_CHECKING:
    from godwit.net.connect import AsyncClient

ALREADY: Final = "Already subscribed to topic."
NOT_SUBSCRIBED: Final = "You are not currently subscribed to this topic."
NO_SUCH_TOPIC: Final = "Topic does not exist."
MAX_WAIT_S: Final = 3600.0
LAST_WORD_S: Final = 0.5
"""How long the end may take to tell the broker; a broker that is gone does not answer."""


class Shell:
    """The commands, and the subscriptions that they made. `write` takes whole lines."""

    def __init__(self, client: AsyncClient, write: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self.client = client
        self._write = write
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        self._work = ShellWork(client, write)
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
            **self._work.commands,
            "wait": self._wait,
            "help": self._help,
        }

    @property
    def filters(self) -> list[str]:
        """What it is subscribed to."""
        return list(self._subscriptions)

    async def execute(self, line: str) -> bool:
        """Does what a line says; False when it says `quit`. GodwitError when it cannot be done."""
        name, rest = first_word(line)
        if not name or name.startswith("#"):  # an empty line, or a remark in a script
            return True
        if name in ("quit", "exit"):
            arguments("quit", rest, 0, 0)
            return False
        command = self._commands.get(name)
        if command is None:
            raise UsageError(f"there is no command {name}; type help to see those that there are")
        try:
            await command(rest)
        except TopicError as error:
            if error.code == Code.NO_SUCH_TOPIC:
                raise GodwitError(NO_SUCH_TOPIC) from error
            raise
        return True

    async def close(self) -> None:
        """Ends all subscriptions, and hands back tasks that are not done."""
        tasks = list(self._subscriptions.values())
        self._subscriptions.clear()
        for task in tasks:
            task.cancel()
        await self._work.close()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORD_S)

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def _pub(self, rest: str) -> None:
        topic, message = topic_and_message(rest)
        if not topic or not message:
            raise missing("pub")
        await self._publish(topic, message, retain=False)

    async def _retain(self, rest: str) -> None:
        topic, message = topic_and_message(rest)
        if not topic:
            raise missing("retain")
        await self._publish(topic, message, retain=True)

    async def _publish(self, topic: str, message: str, *, retain: bool) -> None:
        payload = message.encode("utf-8", "surrogateescape")
        reached = await self.client.publish(topic, payload, qos=1, retain=retain)
        await self._say(reached_text(reached))

    # -- subscribing --------------------------------------------------------------------------------------------------

    async def _sub(self, rest: str) -> None:
        (filter,) = arguments("sub", rest, 1, 1)
        if filter in self._subscriptions:
            raise GodwitError(ALREADY)
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
        await self._say(f"Unsubscribed from {filter}.")

    async def _show(self, filter: str, ready: asyncio.Future[None]) -> None:
        """Prints what comes until the subscription is given up or taken away."""
        gaps: list[int | None] = []
        try:
            async with self.client.subscribe(filter, on_gap=gaps.append) as messages:
                await self._say(f"Subscribed to {filter}.")
                ready.set_result(None)
                lines = Lines(as_json=False)
                async for batch in messages.batches():
                    while gaps:
                        missed = gaps.pop(0)
                        what = "some messages" if missed is None else f"up to {count(missed, 'message')}"
                        await self._say(f"(missed {what} of {filter})")
                    await self._write(lines.render(batch).decode())
        except GodwitError as error:
            if not ready.done():
                ready.set_exception(error)
                return
            self._subscriptions.pop(filter, None)
            kicked = isinstance(error, KickedError)
            await self._say(f"{'You were removed from' if kicked else 'No longer subscribed to'} {filter}: {error}")

    async def _subs(self, rest: str) -> None:
        arguments("subs", rest, 0, 0)
        for filter in self.filters or ["You are not subscribed to anything."]:
            await self._say(filter)

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
        await self._say("Topic created.")

    async def _clients(self, rest: str) -> None:
        arguments("clients", rest, 0, 0)
        for client in await self.client.clients():
            me = " (you)" if client.name == self.client.name else ""
            subscriptions = subscriptions_text(client) or "no subscription"
            await self._say(f"{client.name}{me}  {client.address or 'away'}  {subscriptions}")

    async def _kick(self, rest: str) -> None:
        client, *filters = arguments("kick", rest, 1, None)
        await self.client.kick(client, *filters, reason=f"by {self.client.name}")
        await self._say(kicked_text(client, filters))

    # -- the rest -----------------------------------------------------------------------------------------------------

    async def _wait(self, rest: str) -> None:
        (text,) = arguments("wait", rest, 1, 1)
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= MAX_WAIT_S:
            raise UsageError(f"wait {text} cannot be; give seconds from 0 to {MAX_WAIT_S:g}")
        await asyncio.sleep(seconds)

    async def _help(self, rest: str) -> None:
        lines = [line for usage, what in HELP.values() for line in hanging(usage, what, title_width=USAGE_WIDTH)]
        await self._write(
            "".join(f"{line}\n" for line in lines) + 'Names that contain blanks need quotes: pub "living room" 21.5\n'
        )

    async def _say(self, text: str) -> None:
        await self._write(f"{safe(text)}\n")
