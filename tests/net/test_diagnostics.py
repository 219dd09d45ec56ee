"""Logging of the library: silent by default, GODWIT_LOG, unreachable brokers, reconnects, handlers, drop counters."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from tests.net.running import broker_and_client, restarted, run, service

from godwit.errors import TaskFailedError
from godwit.net import diagnostics
from godwit.net.client import AsyncClient, connect
from godwit.net.diagnostics import ConnectionReporter, configure_logging, read_drop_counters
from godwit.net.tasks import Task
from godwit.net.udp import UdpSocket
from godwit.net.worker import Worker
from godwit.transport.events import Train
from godwit.wire.control_base import Code


class Records(logging.Handler):
    """Collects log records, and lets a test wait for one."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self, level: int = logging.DEBUG) -> list[str]:
        return [record.getMessage() for record in self.records if record.levelno >= level]

    async def until(self, holds: Callable[[list[str]], bool], level: int = logging.DEBUG) -> list[str]:
        while not holds(self.texts(level)):
            await asyncio.sleep(0.005)
        return self.texts(level)


@pytest.fixture
def records() -> Iterator[Records]:
    handler = Records()
    logger = logging.getLogger("godwit")
    former = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(former)


def test_a_client_warns_at_once_and_again_while_it_cannot_reach_its_broker(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "UNANSWERED_S", 0.01)
    monkeypatch.setattr(diagnostics, "REPEAT_S", 0.02)

    async def test() -> None:
        with UdpSocket("127.0.0.1") as silent:
            port = silent.local_address[1]
            connecting = asyncio.ensure_future(_open(f"127.0.0.1:{port}"))
            warnings = await records.until(lambda texts: len(texts) >= 3, logging.WARNING)
            connecting.cancel()
            await asyncio.wait([connecting])
        assert all(f"no broker has answered at 127.0.0.1 port {port} for" in text for text in warnings)
        assert all("still trying" in text for text in warnings)
        count = len(records.texts(logging.WARNING))
        await asyncio.sleep(0.05)
        assert len(records.texts(logging.WARNING)) == count  # a client that was given up is silent

    run(test)


HOSTILE = "\x1b]0;owned\x07\x1b[2J\rline\n\u202e\x9b31m"


def test_a_reason_from_the_network_cannot_act_on_a_terminal(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "REPEAT_S", 0.001)

    async def test() -> None:
        reporter = ConnectionReporter(asyncio.get_running_loop(), "127.0.0.1")
        reporter.on_offline(HOSTILE, 1.0)
        reporter.on_online(HOSTILE, is_resumed=False)
        reporter.on_offline(HOSTILE, 1.0)
        await records.until(lambda texts: len(texts) >= 3, logging.WARNING)
        reporter.on_online(HOSTILE, is_resumed=True)
        reporter.on_ended(1, HOSTILE)
        texts = [text for text in records.texts() if "owned" in text]
        assert len(texts) >= 6
        assert all(text.isprintable() and r"\x1b[2J\rline\n\u202e\x9b31m" in text for text in texts)

    run(test)


def test_a_broker_that_closes_with_a_hostile_reason(records: Records) -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client):
            (connection,) = broker.server.native.endpoints[0].connections.values()
            connection.close(time.monotonic(), Code.BUSY, HOSTILE)
            broker._drivers[0].flush()
            warnings = await records.until(lambda texts: any("owned" in text for text in texts), logging.WARNING)
            assert all(text.isprintable() for text in warnings)
            await client.ping()

    run(test)


async def _open(url: str) -> AsyncClient:
    return await connect(url)


def test_a_lost_connection_and_the_reconnect_are_logged(records: Records) -> None:
    async def test() -> None:
        broker = service()
        await broker.start()
        async with connect(broker.urls[0], name="anna") as client:
            await client.publish("a", b"")
            broker = await restarted(broker)
            await client.publish("a", b"")
            warnings = records.texts(logging.WARNING)
            assert any("lost the broker at 127.0.0.1 port" in text for text in warnings)
            await records.until(lambda texts: any("anna is connected again" in text for text in texts))
        await broker.stop()
        assert any("anna is connected to the broker" in text for text in records.texts())
        assert any("has ended (code" in text for text in records.texts(logging.INFO))

    run(test)


def test_an_exception_of_a_handler_is_logged_with_its_traceback_at_the_worker(records: Records) -> None:
    async def fail(task: Task) -> None:
        raise ValueError("no such picture")

    def fail_in_thread(task: Task) -> None:
        raise KeyError("size")

    async def fail_on_purpose(task: Task) -> None:
        raise TaskFailedError("the picture is damaged", final=True)

    async def test() -> None:
        async with broker_and_client() as (broker, client):
            worker = Worker(broker.urls[0], name="anna", capacity=3)
            worker.handles("a")(fail)
            worker.handles("b")(fail_in_thread)
            worker.handles("c")(fail_on_purpose)
            running = asyncio.ensure_future(worker.run())
            await worker.ready()
            jobs = await client.submit_many([("a", b""), ("b", b""), ("c", b"")], retries=0)
            for job in jobs:
                with pytest.raises(Exception, match="failed"):
                    await job.results()
            worker.stop()
            await running
        failures = {record.getMessage(): record for record in records.records if "Task 0" in record.getMessage()}
        raised = [record for text, record in failures.items() if "raised" in text]
        assert sorted(str(record.exc_info[0]) for record in raised if record.exc_info) == [
            "<class 'KeyError'>",
            "<class 'ValueError'>",
        ]
        assert all(record.levelno == logging.WARNING for record in raised)
        on_purpose = next(record for text, record in failures.items() if "the picture is damaged" in text)
        assert on_purpose.levelno == logging.INFO
        assert on_purpose.exc_info is None

    run(test)


def test_drops_are_counted_on_sys_and_logged_at_the_end(records: Records) -> None:
    async def test() -> None:
        async with broker_and_client(sys_interval_s=1) as (broker, client):
            with UdpSocket("127.0.0.1") as stranger:
                stranger.send(Train(broker.addresses[0], b"nonsense" * 4, 32))
                while broker.network_figures()["network/dropped"] == 0:
                    await asyncio.sleep(0.005)
            figures = broker.network_figures()
            assert figures["network/dropped"] == sum(n for name, n in figures.items() if name != "network/dropped")
            assert figures["network/dropped/kernel"] == 0
            counters = await read_drop_counters(client, 10)
            while not any(reason.startswith("packet/") for reason in counters):
                counters = await read_drop_counters(client, 10)
            assert counters["kernel"] == 0
        assert any("dropped: packet/" in text for text in records.texts(logging.INFO))

    run(test)


def test_warnings_are_visible_by_default_and_godwit_log_shows_the_rest() -> None:
    program = (
        "import godwit.net, logging; log = logging.getLogger('godwit.net.test'); "
        "log.warning('something happened'); log.info('something usual')"
    )

    def output(**variables: str) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "GODWIT_LOG"} | variables
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr

    assert output() == "something happened\n"
    assert "INFO godwit.net.test: something usual" in output(GODWIT_LOG="info")
    assert "WARNING godwit.net.test: something happened" in output(GODWIT_LOG="warning")
    assert "something happened" in output(GODWIT_LOG="DEBUG")
    assert output(GODWIT_LOG="error") == ""
    assert "GODWIT_LOG is 'loud': choose debug, info, warning, error" in output(GODWIT_LOG="loud")


@pytest.mark.parametrize(("value", "level"), [("info", logging.INFO), ("warning", logging.WARNING)])
def test_the_level_is_that_of_the_variable(value: str, level: int) -> None:
    logger = logging.getLogger("godwit")
    former = logger.level
    assert configure_logging({}) is None
    handler = configure_logging({"GODWIT_LOG": value})
    assert handler is not None
    try:
        assert logger.level == level
    finally:
        logger.removeHandler(handler)
        logger.setLevel(former)
