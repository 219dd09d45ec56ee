"""Messages for a browser: a live tail of a filter, the last values of a few topics, and payloads in readable forms.

A browser shows some messages per second, a broker forwards millions. So the tail of a busy topic is a sample: after
MAX_BURST messages within a second it leaves the subscription until the second is over, and begins at the end of the
log again. A replay from a time in the past is complete, and as slow as the browser.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import godwit
from godwit.console.link import BrokerLink, LinkReader
from godwit.errors import GodwitError

MAX_BURST: Final = 500
"""Live messages per second that a tail reads."""
FLUSH_S: Final = 0.25
FLUSH_MESSAGES: Final = 100
KEPT_MESSAGES: Final = 500
"""Messages that can be requested as a whole."""
KEPT_BYTES: Final = 16 * 1024 * 1024
PREVIEW_BYTES: Final = 2_000
DETAIL_BYTES: Final = 256 * 1024
MAX_HEADERS: Final = 100
MAX_WATCHED: Final = 60
BUSY_RATE: Final = 200.0
"""Topics with more messages per second have no last value in the tree."""
VALUE_BYTES: Final = 200
VALUES_S: Final = 0.5
Send = Callable[[dict[str, Any]], Awaitable[None]]


def payload_form(payload: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the beginning of a payload as a text, or in hexadecimal digits if it is not UTF-8."""
    part = payload[:max_bytes]
    found: dict[str, Any] = {"bytes": len(payload)}
    try:
        # The part may end within a character.
        found["text"] = codecs.getincrementaldecoder("utf-8")().decode(part, final=len(payload) <= max_bytes)
    except UnicodeDecodeError:
        found["hex"] = part.hex(" ")
    if len(payload) > max_bytes:
        found["cut"] = True
    return found


def payload_detail(payload: bytes, form: str) -> dict[str, Any]:
    """Return a payload as text, indented JSON or hexadecimal digits, up to DETAIL_BYTES of it."""
    if form == "hex":
        part = payload[: DETAIL_BYTES // 4]
        return {"bytes": len(payload), "hex": part.hex(" "), "cut": len(part) < len(payload)}
    if form == "json":
        try:
            text = json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return {**payload_form(payload, DETAIL_BYTES), "problem": "This is not JSON."}
        return {"bytes": len(payload), "text": text[:DETAIL_BYTES], "cut": len(text) > DETAIL_BYTES}
    return payload_form(payload, DETAIL_BYTES)


def message_properties(message: godwit.Message) -> dict[str, Any]:
    """Return what the publisher attached to a message."""
    headers = list(message.headers.pairs)
    return {
        "content_type": message.content_type,
        "reply_to": message.reply_to,
        "expires_us": message.expires_us,
        "headers": headers[:MAX_HEADERS],
        "header_count": len(headers),
    }


class Tail:
    """A subscription whose messages go to a browser."""

    def __init__(self, link: BrokerLink, filters: Sequence[str], since_us: int | None, send: Send, number: int) -> None:
        """Begin it.

        Args:
            link: Whose client subscribes.
            filters: Topic filters.
            since_us: Begin with the messages that the broker received since then; None for new ones.
            send: Called with each event.
            number: Identifies the tail in its events.
        """
        self._link = link
        self._filters = tuple(filters)
        self._since_us = since_us
        self._send = send
        self._number = number
        self._ids = 0
        self._kept: deque[tuple[int, godwit.Message]] = deque()
        self._kept_bytes = 0
        self._waiting: deque[dict[str, Any]] = deque()
        self._has_room = asyncio.Event()
        self._skipped = False
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run()), loop.create_task(self._flush())]

    async def stop(self) -> None:
        """End the subscription."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def message(self, number: int) -> godwit.Message | None:
        """Return one of the last messages."""
        return next((message for known, message in self._kept if known == number), None)

    async def _run(self) -> None:
        try:
            async with self._link.reader() as reader:
                if self._since_us is not None:
                    await self._replay(reader, self._since_us)
                else:
                    await self._follow(reader)
        except GodwitError as error:
            await self._send({"on": "tail", "tail": self._number, "error": str(error)})

    async def _replay(self, reader: LinkReader, since_us: int) -> None:
        async with reader.subscribe(*self._filters, since_us=since_us, retained="never") as messages:
            async for message in messages:
                self._add(message)
                while len(self._waiting) >= FLUSH_MESSAGES:
                    self._has_room.clear()
                    await self._has_room.wait()

    async def _follow(self, reader: LinkReader) -> None:
        retained: godwit.RetainHandling = "always"
        while True:
            began, burst = time.monotonic(), 0
            async with reader.subscribe(*self._filters, start="latest", retained=retained) as messages:
                async for message in messages:
                    self._add(message)
                    now = time.monotonic()
                    if now > began + 1.0:
                        began, burst = now, 0
                    burst += 1
                    if burst >= MAX_BURST:
                        break
            retained = "never"
            self._skipped = True
            await asyncio.sleep(max(began + 1.0 - time.monotonic(), 0.05))

    def _add(self, message: godwit.Message) -> None:
        self._ids += 1
        self._kept.append((self._ids, message))
        self._kept_bytes += len(message.payload)
        while len(self._kept) > KEPT_MESSAGES or (self._kept_bytes > KEPT_BYTES and len(self._kept) > 1):
            self._kept_bytes -= len(self._kept.popleft()[1].payload)
        self._waiting.append(
            {
                "id": self._ids,
                "topic": message.topic,
                "publisher": message.publisher,
                "received_us": message.received_us,
                "qos": message.qos,
                "retained": message.retained,
                "offset": message.offset,
                **payload_form(message.payload, PREVIEW_BYTES),
            }
        )
        if self._since_us is None:
            while len(self._waiting) > KEPT_MESSAGES:
                self._waiting.popleft()
                self._skipped = True

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            if not self._waiting:
                continue
            part = [self._waiting.popleft() for _ in range(min(len(self._waiting), FLUSH_MESSAGES))]
            self._has_room.set()
            skipped, self._skipped = self._skipped, False
            await self._send({"on": "tail", "tail": self._number, "messages": part, "sampled": skipped})


class ValueWatch:
    """The last values of a few topics, sent to a browser at most twice a second."""

    def __init__(self, link: BrokerLink, topics: Sequence[str], send: Send) -> None:
        """Begin it. It ends by itself if the broker refuses the subscription."""
        self._link = link
        self._topics = tuple(topics)
        self._send = send
        self._values: dict[str, dict[str, Any]] = {}
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run()), loop.create_task(self._flush())]

    async def stop(self) -> None:
        """End the subscription."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async with (
                self._link.reader() as reader,
                reader.subscribe(*self._topics, start="latest", retained="always") as messages,
            ):
                async for message in messages:
                    value = payload_form(message.payload, VALUE_BYTES)
                    self._values[message.topic] = {**value, "retained": message.retained, "us": message.received_us}
        except GodwitError as error:
            await self._send({"on": "values", "values": {}, "error": str(error)})

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(VALUES_S)
            if self._values:
                values, self._values = self._values, {}
                await self._send({"on": "values", "values": values})


async def first_message(link: BrokerLink, topic: str, since_us: int | None, timeout_s: float) -> godwit.Message | None:
    """Return the retained message of a topic, or with `since_us` the first message of the log since then."""
    retained: godwit.RetainHandling = "always" if since_us is None else "never"
    start: godwit.Start = "latest" if since_us is None else None
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(timeout_s),
            link.reader() as reader,
            reader.subscribe(topic, start=start, since_us=since_us, retained=retained) as messages,
        ):
            async for message in messages:
                if since_us is not None or message.retained:
                    return message
    return None
