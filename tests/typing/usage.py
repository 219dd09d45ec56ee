"""The public interface as programs use it: mypy must accept every line, and infer these types."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, assert_type

import godwit


def on_state(state: godwit.ClientState, reason: str) -> None:
    print(state, reason)


def on_gap(count: int | None) -> None:
    print(count)


async def with_asyncio() -> None:
    async with godwit.connect(
        "a:50000,b:50000",
        name="sensor-1",
        secret="open sesame",
        will=godwit.Will(topic="status", payload=b"gone"),
        timeout_s=5,
        session_expiry_s=60,
        fresh=True,
        on_state=on_state,
        endpoint=godwit.EndpointConfig(idle_timeout_s=10),
    ) as client:
        assert_type(client, godwit.AsyncClient)
        assert_type(client.state, godwit.ClientState)
        assert_type(client.statistics, godwit.Statistics)
        assert_type(await client.publish("t", {"t": 21.5}, retain=True, timeout_s=1.5), int | None)
        for payload in (b"x", bytearray(b"x"), "x", [1], 5, 2.5, True, None):
            await client.publish("t", payload)
        publisher: godwit.AsyncPublisher = client.publisher("t", qos=2, identity="me", epoch=1)
        publisher.send({"t": 1})
        await publisher.flush(timeout_s=5)
        async with client.subscribe("t/#", since=datetime.now(UTC), cursor="c", on_gap=on_gap) as messages:
            assert_type(messages, godwit.AsyncSubscription)
            async for message in messages:
                assert_type(message, godwit.Message)
                assert_type(message.text, str)
                assert_type(message.json(), Any)
                await messages.commit(timeout_s=5)
            start: godwit.Start = messages.bookmark
            client.subscribe("t", start=start)
        job = await client.submit("resize", {"w": 5}, workers="all", retries=2, key="k", timeout_s=5)
        assert_type(job, godwit.AsyncJob)
        async for update in job:
            assert_type(update, godwit.Update)
        results = await job.results(timeout_s=60)
        assert_type(results, list[godwit.TaskResult])
        options: godwit.JobOptions = {"priority": 5, "deadline_s": None}
        jobs: list[godwit.JobLike] = [("resize", b""), ("resize", {"w": 5}, "key")]
        await client.submit_many(jobs, **options)
        assert_type(await client.topics(timeout_s=5), list[godwit.TopicInfo])
        assert_type(await client.clients(), list[godwit.ClientInfo])
        info, tasks = await client.job_info(job.number)
        assert_type(info, godwit.JobInfo)
        assert_type(tasks, list[godwit.TaskInfo])
        async with client.receive_files("in/#", folder="in") as files:
            async for file in files:
                assert_type(file, godwit.ReceivedFile)
        assert_type(await client.send_file("in/a", "a.txt"), godwit.SentFile)


def blocking() -> None:
    with godwit.sync.connect(["a", "b"], name="n", secret=b"s", timeout_s=5, on_state=on_state) as client:
        assert_type(client, godwit.sync.BlockingClient)
        client.publish("t", {"t": 21.5}, timeout_s=5)
        with client.subscribe("t", timeout_s=5) as messages:
            for message in messages:
                assert_type(message, godwit.Message)
            assert_type(messages.get(timeout_s=1), godwit.Message)
        job: godwit.sync.BlockingJob = client.submit("resize", [1, 2], workers=2)
        assert_type([result.json() for result in job.results()], list[Any])


worker = godwit.Worker("localhost", name="anna", capacity=2, secret="s", timeout_s=5, on_state=on_state)


@worker.handles("resize")
async def resize(task: godwit.Task) -> bytes:
    task.progress(0.5, "half of it")
    return task.payload


@worker.handles("count")
def count(task: godwit.Task) -> dict[str, int]:
    return {"count": len(task.json())}


@worker.handles("nothing")
def nothing(task: godwit.Task) -> None:
    raise godwit.TaskFailed("never", final=True)


worker.handles("words", command=["wc", "-w"])
handler: godwit.TaskHandler = resize
assert_type(godwit.run(with_asyncio()), None)

try:
    blocking()
except godwit.ReplyTimeoutError as timeout:
    assert_type(timeout, godwit.ReplyTimeoutError)
except godwit.BrokerError as error:
    assert_type(error.code == godwit.Code.NOT_ALLOWED, bool)
