"""Traffic for the durable log: publishers at full rate, one who reads it all again, and one who reads it slowly.

A message is its number and filler, so that making and checking one costs next to nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.system.worker import Orders, say, say_state

from godwit.client.message import Message
from godwit.errors import BufferFullError
from godwit.net.client import connect
from godwit.net.publisher import AsyncPublisher
from godwit.net.subscription import AsyncSubscription

NUMBER_BYTES = 8
BURST = 200
PROGRESS_MESSAGES = 20_000


def body(number: int, size: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big").ljust(size, b".")


def number_of(payload: bytes) -> int:
    return int.from_bytes(payload[:NUMBER_BYTES], "big")


# -- publish ----------------------------------------------------------------------------------------------------------


async def pour(orders: Orders, *, broker: str, name: str, qos: int, message_bytes: int = 100) -> None:
    """Publishes numbered messages to `poured/NAME` as fast as the client takes them, over breaks of the connection.

    Orders: `send N` publishes N more and says `confirmed`; `go` publishes until `halt`, which says `confirmed` too;
    `tell` says `told`: how many were sent, and how many of these are confirmed. `stop` ends.
    """
    recognised: dict[str, Any] = {"identity": name, "epoch": 1} if qos == 2 else {}
    async with connect(broker, name=name, on_state=say_state) as client, asyncio.TaskGroup() as group:
        publisher = client.publisher(f"poured/{name}", qos=qos, **recognised)
        say("ready", client=client.name)
        going: asyncio.Task[None] | None = None

        def tell(word: str) -> None:
            sent = publisher.next_sequence
            say(word, sent=sent, confirmed=sent - publisher.unconfirmed)

        while (order := await orders.next()) != "stop":
            if order == "tell":
                tell("told")
            elif order == "go":
                going = group.create_task(send_upto(publisher, None, message_bytes))
            else:
                if order == "halt":
                    assert going is not None
                    going.cancel()
                    await asyncio.wait([going])
                else:
                    upto = publisher.next_sequence + int(order.removeprefix("send "))
                    await send_upto(publisher, upto, message_bytes)
                await publisher.flush()
                tell("confirmed")


async def send_upto(publisher: AsyncPublisher, upto: int | None, message_bytes: int) -> None:
    """Publish up to a number, or for ever."""
    send = publisher.send
    number = publisher.next_sequence
    while upto is None or number < upto:
        try:
            for _ in range(BURST if upto is None else min(BURST, upto - number)):
                send(body(number, message_bytes))
                number += 1
        except BufferFullError:
            await publisher.ready()
        await asyncio.sleep(0)  # orders and confirms have their turn


# -- read -------------------------------------------------------------------------------------------------------------


class Replay:
    """What came of the log. An offset or a number out of turn ends the worker."""

    def __init__(self) -> None:
        self.offset = 0
        self.numbers: dict[str, int] = {}
        self.wanted: int | None = None
        """When this many messages are there, the test is told."""

    def take(self, messages: list[Message]) -> None:
        before = self.offset
        for message in messages:
            if message.offset != self.offset:
                raise AssertionError(f"offset {message.offset} came where {self.offset} was due")
            number, expected = number_of(message.payload), self.numbers.get(message.topic, 0)
            if number != expected:
                raise AssertionError(f"{message.topic}: {number} came where {expected} was due")
            self.offset += 1
            self.numbers[message.topic] = number + 1
        if before // PROGRESS_MESSAGES != self.offset // PROGRESS_MESSAGES:
            say("progress", received=self.offset)
        self.look()

    def look(self) -> None:
        if self.wanted is not None and self.offset >= self.wanted:
            self.wanted = None
            say("complete", received=self.offset, numbers=self.numbers)


async def replay(orders: Orders, *, broker: str, name: str) -> None:
    """Takes the log from its first message on; says `subscribed`, then `progress`.

    Orders: `until N` has it say `complete` once it has N messages; `stop` ends.
    """
    seen = Replay()
    async with (
        connect(broker, name=name, on_state=say_state) as client,
        client.subscribe("poured/#", start="earliest", on_gap=lambda count: say("gap", count=count)) as messages,
        asyncio.TaskGroup() as group,
    ):
        say("subscribed", client=client.name)
        taking = group.create_task(_take(messages, seen))
        while (order := await orders.next()) != "stop":
            seen.wanted = int(order.removeprefix("until "))
            seen.look()
        taking.cancel()


async def _take(messages: AsyncSubscription, seen: Replay) -> None:
    async for batch in messages.batches():
        seen.take(batch)


async def read_slowly(orders: Orders, *, archive: str, name: str, interval_s: float) -> None:
    """Asks the archive for everything, takes a piece now and then, and begins anew at the end: until `stop`.

    Says `reading` with the first two pieces, and `read` at the end: how many pieces and messages there were.
    """
    from pyarrow import flight

    everything = flight.Ticket(b"{}")
    pieces = rows = 0
    stopping = asyncio.create_task(orders.next())
    with flight.connect(archive) as client:
        while not stopping.done():
            stream = await asyncio.to_thread(client.do_get, everything)
            while not stopping.done() and (piece := await asyncio.to_thread(_next_piece, stream)) is not None:
                pieces += 1
                rows += piece.data.num_rows
                if pieces <= 2:
                    say("reading")
                await asyncio.wait([stopping], timeout=interval_s)
            stream.cancel()
    say("read", pieces=pieces, rows=rows)


def _next_piece(stream: Any) -> Any:
    """None at the end: a StopIteration does not get out of a thread."""
    try:
        return stream.read_chunk()
    except StopIteration:
        return None
