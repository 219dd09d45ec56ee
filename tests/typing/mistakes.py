"""Mistakes of programs that mypy must find: each comment names the expected error, and an unused one is an error."""

from __future__ import annotations

import godwit

godwit.connect(nmae="x")  # type: ignore[call-arg]
godwit.connect(5)  # type: ignore[arg-type]
godwit.connect(timeout_s="5")  # type: ignore[arg-type]
godwit.connect(on_state=print, secret=5)  # type: ignore[arg-type]
godwit.sync.connect(nmae="x")  # type: ignore[call-arg]
godwit.sync.connect(on_state=lambda state: None)  # type: ignore[arg-type, misc]
godwit.Worker(nmae="x")  # type: ignore[call-arg]
godwit.Worker(capacity="2")  # type: ignore[arg-type]
godwit.Conect()  # type: ignore[attr-defined]


async def with_asyncio(client: godwit.AsyncClient) -> None:
    await client.publish("t", object())  # type: ignore[arg-type]
    await client.publish("t", {1, 2})  # type: ignore[arg-type]
    await client.publish(b"t", b"x")  # type: ignore[arg-type]
    await client.publish("t", b"x", timeout=5)  # type: ignore[call-arg]
    client.subscribe("t", start="first")  # type: ignore[arg-type]
    client.subscribe("t", since="yesterday")  # type: ignore[arg-type]
    client.subscribe("t", on_gap=lambda: None)  # type: ignore[arg-type, misc]
    await client.submit("kind", wrokers=2)  # type: ignore[call-arg]
    await client.submit("kind", workers="some")  # type: ignore[arg-type]
    client.publisher("t").send(object())  # type: ignore[arg-type]


def blocking(client: godwit.sync.BlockingClient) -> None:
    client.publish("t", object())  # type: ignore[arg-type]
    client.submit("kind", wrokers=2)  # type: ignore[call-arg]
    for message in client.subscribe("t"):
        message.payloda  # type: ignore[attr-defined]  # noqa: B018


worker = godwit.Worker()


@worker.handles("a")  # type: ignore[type-var]
def without_a_task() -> bytes:
    return b""


@worker.handles("b")  # type: ignore[type-var]
def of_another_type(task: int) -> bytes:
    return b""


@worker.handles("c")  # type: ignore[type-var]
async def with_a_result_that_cannot_be_sent(task: godwit.Task) -> set[int]:
    return set()
