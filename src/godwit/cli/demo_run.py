"""The run of `godwit demo`: each part in its own process, and a bad network between them in this process.

    rooms (5 clients), controller ~ relay that loses, damages, repeats ~ broker ~ the same relay ~ subscriber, workers
                                                                           |
                                                              log, archive - Spark - tables - report, at the end

If paho-mqtt is installed, one of the rooms uses MQTT over TCP, without the bad network.
Everything is real (sockets, clocks, processes) except the faults of the network, which come from a seed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from godwit.cli import demo_processes
from godwit.cli.console import missing_packages
from godwit.cli.demo_processes import (
    TICK_S,
    WORKERS,
    BrokerAddresses,
    ChildFailure,
    RoomsReport,
    SubscriberReport,
    WorkReport,
    message_problems,
    work_problems,
)
from godwit.cli.house import ROOMS
from godwit.errors import GodwitError
from godwit.impairment import ImpairedLink, LinkSettings
from godwit.install import pip_command
from godwit.net.address import format_address
from godwit.net.relay import Direction, Impairment, Relay
from godwit.transport.events import Address

LINE_BITS_PER_S: Final = 20e6
DELAY_S: Final = 0.015
QUEUE_PACKETS: Final = 50
"""About the packets of one round trip."""
CORRUPTION: Final = 0.005
DUPLICATION: Final = 0.01
REORDERING: Final = 0.02
BURST_MEAN_PACKETS: Final = 2.0

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 2.0
SHOW_S: Final = 0.1
SAMPLE_S: Final = 0.25
"""Time between two samples of the counters, for the report."""
RECENT_S: Final = 1.5
MOVE_EVERY_S: Final = 15.0
"""Time between two changes of all addresses if the demo runs for ever; otherwise they change once, half-way."""
END_TIMEOUT_S: Final = 30.0

Result = TypeVar("Result")
Phase: TypeAlias = Literal["starting", "sending", "arriving", "late subscriber", "tables", "done"]


class DemoSettings(msgspec.Struct, frozen=True):
    """The options of the demo. Without `seconds` it runs until it is stopped."""

    seconds: float | None
    loss: float
    rate: float
    """Messages per second of each room."""
    seed: int
    report: Path | None = None
    """Path of the report; None: do not run the pipeline."""

    def link(self) -> LinkSettings:
        """Return the properties of one direction of a client's link; all are alike."""
        return LinkSettings(
            delay_s=DELAY_S,
            bandwidth_bits_per_s=LINE_BITS_PER_S,
            queue_packets=QUEUE_PACKETS,
            loss=self.loss,
            corruption=CORRUPTION,
            burst_mean_packets=BURST_MEAN_PACKETS,
            duplication=DUPLICATION,
            reordering=REORDERING,
        )


class DemoSample(msgspec.Struct, frozen=True):
    """Counters at one moment, for the course of the demo in the report."""

    at_s: float
    received: int
    """Messages that arrived."""
    faults: int
    """Datagrams that were lost or damaged."""
    tasks: Mapping[str, int]
    """Finished tasks by name of the worker."""


class DemoSnapshot(msgspec.Struct, frozen=True):
    """The state of the demo at one moment, for display."""

    settings: DemoSettings
    phase: Phase
    elapsed_s: float
    rooms: RoomsReport
    seen: SubscriberReport
    network: Mapping[Direction, Counter[str]]
    """Counters of the links, by direction."""
    moved_at_s: tuple[float, ...]
    recent_per_s: float
    """Messages per second that arrived lately."""
    work: WorkReport
    killed: str | None
    """Name of the worker that was killed."""
    pipeline: PipelineReport | None
    """Result of the pipeline, if it ran."""
    killed_at_s: float | None = None
    replaced_at_s: float | None = None
    """When the first task of the killed worker was taken over."""
    sent_at_s: float | None = None
    """When sending ended."""
    arrived_at_s: float | None = None
    """When the last message had arrived."""
    samples: Sequence[DemoSample] = ()
    """The course of the demo, if it makes a report."""

    def problems(self) -> list[str]:
        """Return the faults of the arrived messages and of the jobs; an empty list if there are none."""
        return message_problems(self.rooms.rooms, self.rooms.last_digests, self.seen) + work_problems(self.work)


class _Children(NamedTuple):
    """The child processes."""

    rooms: Child
    subscriber: Child
    broker: Child
    controller: Child
    workers: Mapping[str, Child]


class Demo:
    """One run of the demo."""

    def __init__(
        self,
        settings: DemoSettings,
        show: Callable[[DemoSnapshot], None],
        write_report: Callable[[DemoSnapshot, Path, Path | None], None] | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        """Make a demo.

        Args:
            settings: Its options.
            show: Called with snapshots.
            write_report: Called with a snapshot, the path of the report, and the folder of the lake or None.
            announce: Called with a line about the web console. None: the demo has no console.
        """
        self._announce = announce
        self._settings = settings
        self._show = show
        self._write_report = write_report
        self._links: list[tuple[Direction, ImpairedLink]] = []
        self._rooms = RoomsReport()
        self._seen = SubscriberReport()
        self._work = WorkReport()
        self._killed: str | None = None
        self._killed_at_s: float | None = None
        self._replaced_at_s: float | None = None
        self._sent_at_s: float | None = None
        self._arrived_at_s: float | None = None
        self._samples: list[DemoSample] = []
        self._pipeline: PipelineReport | None = None
        self._recent: deque[tuple[float, int]] = deque()
        self._moved_at_s: list[float] = []
        self._began = time.monotonic()
        self._shown_at = 0.0
        self._stopped = False
        self._phase: Phase = "starting"

    async def run(self) -> DemoSnapshot:
        """Run the demo and return its last snapshot.

        Raises:
            GodwitError: A process failed or was not ready in time.
        """
        settings = self._settings
        with self._stopped_by_interrupt(), ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="godwit-demo-")))
            children: list[Child] = []
            stack.callback(stop_children, children)
            broker = self._start(children, "broker", demo_processes.broker_main, str(folder / "log"))
            addresses: BrokerAddresses = await broker.wait_ready()
            async with Relay.open(("127.0.0.1", 0), addresses.address, impair=self._impair) as relay:
                relay_address = format_address(relay.address)
                subscriber = self._start(children, "subscriber", demo_processes.subscriber_main, relay_address)
                mqtt_port = addresses.mqtt_port if importlib.util.find_spec("paho") is not None else None
                rooms = self._start(
                    children, "rooms", demo_processes.rooms_main, relay_address, settings.seed, settings.rate, mqtt_port
                )
                controller = self._start(
                    children, "controller", demo_processes.controller_main, relay_address, settings.seed
                )
                workers = {
                    name: self._start(children, f"worker {name}", demo_processes.worker_main, relay_address, name)
                    for name in WORKERS
                }
                for child in (subscriber, rooms, controller, *workers.values()):
                    await child.wait_ready()
                if self._announce is not None:
                    self._announce(await self._start_console(children, format_address(addresses.address)))
                await self._transfer(relay, _Children(rooms, subscriber, broker, controller, workers))
            if settings.report is not None:
                await self._run_pipeline(addresses.archive, folder / "lake", settings.report)
        self._phase = "done"
        return self._snapshot(time.monotonic())

    def _start(self, children: list[Child], name: str, main: Callable[..., None], *arguments: object) -> Child:
        child = Child(name, main, *arguments)
        children.append(child)
        return child

    async def _start_console(self, children: list[Child], broker: str) -> str:
        """Start the web console, and return a line with its address, or with the reason why it is missing."""
        if missing := missing_packages():
            return f"without the web console: {missing}"
        console = self._start(children, "console", demo_processes.console_main, broker)
        try:
            return f"watch it in a browser: {await console.wait_ready()}"
        except GodwitError as error:
            return f"without the web console: {error}"

    async def _transfer(self, relay: Relay, children: _Children) -> None:
        self._began = time.monotonic()
        self._phase = "sending"
        for child in (children.rooms, children.controller):
            child.send("go")
        give_up_at = 0.0
        while not self._is_complete():
            now = time.monotonic()
            if self._phase == "sending":
                self._move_when_due(relay, now)
                self._kill_when_due(children.workers, now)
                if self._is_over(now):
                    self._phase = "arriving"
                    self._sent_at_s = now - self._began
                    give_up_at = now + END_TIMEOUT_S
                    for child in (children.rooms, children.controller):
                        child.send("finish")
            elif self._phase == "arriving" and self._has_arrived():
                self._phase = "late subscriber"
                self._arrived_at_s = now - self._began
                children.subscriber.send("late")
            if self._phase != "sending" and now > give_up_at:
                return  # the snapshot's problems name the missing messages
            children.broker.receive()
            self._receive(children)
            self._sample_when_due(now)
            if now - self._shown_at >= SHOW_S:
                self._shown_at = now
                self._show(self._snapshot(now))
            await asyncio.sleep(TICK_S)

    async def _run_pipeline(self, archive: str, lake: Path, report: Path) -> None:
        """Make tables and a report of the logged messages. Without tables the report tells why there are none."""
        self._phase = "tables"
        why = missing_requirement()
        failure = None
        if why is None:
            failure = await self._shown(run_pipeline(archive, lake))
        problem = why or failure
        self._pipeline = PipelineReport(failure is None, f"It has no tables: {problem}.") if problem else None
        if self._write_report is not None:
            snapshot = self._snapshot(time.monotonic())
            write = asyncio.to_thread(self._write_report, snapshot, report, None if problem else lake)
            await self._shown(write)
        sentence = f"The report is {report}: open it in a browser."
        if problem:
            sentence += f" It has no tables: {problem}."
        self._pipeline = PipelineReport(failure is None, sentence)

    async def _shown(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Show the state of the demo until the work is done. Return its result."""
        running = asyncio.create_task(work)
        try:
            while not running.done():
                self._show(self._snapshot(time.monotonic()))
                await asyncio.sleep(SHOW_S)
            return running.result()
        finally:
            running.cancel()

    def _is_over(self, now: float) -> bool:
        seconds = self._settings.seconds
        return self._stopped or (seconds is not None and now - self._began >= seconds)

    def _has_arrived(self) -> bool:
        has_all = bool(self._rooms.last_digests) and self._seen.received >= self._rooms.sent
        return has_all and self._work.is_complete

    def _is_complete(self) -> bool:
        return self._phase == "late subscriber" and len(self._seen.retained) >= len(ROOMS)

    def _move_when_due(self, relay: Relay, now: float) -> None:
        """Give every client another port, as a NAT that forgets its mappings does."""
        seconds = self._settings.seconds
        elapsed_s = now - self._began
        due = len(self._moved_at_s) + 1
        if elapsed_s >= MOVE_EVERY_S * due if seconds is None else elapsed_s >= seconds / 2 and due == 1:
            relay.rebind()
            self._moved_at_s.append(elapsed_s)

    def _kill_when_due(self, workers: Mapping[str, Child], now: float) -> None:
        """Kill one worker with the first change of addresses. The other worker takes its tasks over."""
        if self._killed is None and self._moved_at_s:
            self._killed = WORKERS[0]
            self._killed_at_s = now - self._began
            workers[self._killed].kill()

    def _sample_when_due(self, now: float) -> None:
        """Store the counters, several times a second, and the time at which a task was taken over."""
        if self._replaced_at_s is None and self._work.replaced:
            self._replaced_at_s = now - self._began
        if self._settings.report is None or now - self._began < len(self._samples) * SAMPLE_S:
            return
        faults = sum(link.counters[name] for _, link in self._links for name in ("lost", "queue_full", "corrupted"))
        sample = DemoSample(now - self._began, self._seen.received, faults, dict(self._work.by_worker))
        self._samples.append(sample)

    def _receive(self, children: _Children) -> None:
        for self._rooms in children.rooms.receive():
            pass
        for self._work in children.controller.receive():
            pass
        for name, worker in children.workers.items():
            if name != self._killed:
                worker.receive()
        for self._seen in children.subscriber.receive():
            self._recent.append((self._seen.at_s, self._seen.received))
        while self._recent and self._recent[0][0] < self._seen.at_s - RECENT_S:
            self._recent.popleft()
        if self._seen.problem:
            raise GodwitError(self._seen.problem)

    def _impair(self, direction: Direction, _client: Address) -> Impairment:
        link = ImpairedLink(self._settings.link(), Random(f"{self._settings.seed} {direction} {len(self._links)}"))
        self._links.append((direction, link))
        return link

    def _snapshot(self, now: float) -> DemoSnapshot:
        recent = self._recent
        rate = 0.0
        if len(recent) > 1:
            rate = (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])
        network: dict[Direction, Counter[str]] = {"to_target": Counter(), "to_client": Counter()}
        for direction, link in self._links:
            network[direction].update(link.counters)
        return DemoSnapshot(
            settings=self._settings,
            phase=self._phase,
            elapsed_s=now - self._began,
            rooms=self._rooms,
            seen=self._seen,
            network=network,
            moved_at_s=tuple(self._moved_at_s),
            recent_per_s=rate,
            work=self._work,
            killed=self._killed,
            pipeline=self._pipeline,
            killed_at_s=self._killed_at_s,
            replaced_at_s=self._replaced_at_s,
            sent_at_s=self._sent_at_s,
            arrived_at_s=self._arrived_at_s,
            samples=self._samples,
        )

    @contextmanager
    def _stopped_by_interrupt(self) -> Iterator[None]:
        """End an endless demo at the first Ctrl-C; abort it at the second. A bounded demo is aborted at once."""
        if self._settings.seconds is not None:
            yield
            return
        aborts = signal.getsignal(signal.SIGINT)
        running = asyncio.get_running_loop()

        def stop() -> None:
            self._stopped = True

        def on_interrupt(*_: object) -> None:
            signal.signal(signal.SIGINT, aborts)
            running.call_soon_threadsafe(stop)

        signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, aborts)


# -- child processes --------------------------------------------------------------------------------------------------


class Child:
    """A child process and the pipe to it. The process ends when the pipe is closed, even if this process is killed."""

    def __init__(self, name: str, main: Callable[..., None], *arguments: object) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self.process = context.Process(target=main, args=(there, *arguments), name=f"godwit-{name}", daemon=True)
        with _blocked_interrupts():
            self.process.start()
        there.close()

    def receive(self) -> list[Any]:
        """Return the messages received since the last call.

        Raises:
            GodwitError: The process has ended, or reports a failure.
        """
        received = []
        try:
            while self._pipe.poll():
                message = self._pipe.recv()
                if isinstance(message, ChildFailure):
                    raise GodwitError(f"{self.name}: {message.text}")
                received.append(message)
        except (EOFError, OSError):
            self.process.join(timeout=STOP_TIMEOUT_S)
            code = self.process.exitcode
            raise GodwitError(
                f"the process of the {self.name} ended unexpectedly (exit code {code}): try again"
            ) from None
        return received

    async def wait_ready(self) -> Any:
        """Return the first message, which a process sends when it is ready."""
        ends = time.monotonic() + START_TIMEOUT_S
        while not (received := self.receive()):
            if time.monotonic() > ends:
                raise GodwitError(f"the {self.name} was not ready within {START_TIMEOUT_S:g} s: try again")
            await asyncio.sleep(TICK_S)
        return received[0]

    def send(self, message: str) -> None:
        """Send a word to the process."""
        try:
            self._pipe.send(message)
        except OSError:
            self.receive()  # raises the reason

    def kill(self) -> None:
        """Kill the process at once, without a clean shutdown."""
        self.process.kill()

    def release(self) -> None:
        """Close the pipe, which makes the process end soon. May be called again."""
        self._pipe.close()

    def end(self, deadline: float) -> None:
        """Wait for the end of the process, and kill it at the deadline of the monotonic clock. May be called again."""
        self.process.join(timeout=max(deadline - time.monotonic(), 0.0))
        self.process.kill()
        self.process.join()


def stop_children(children: Sequence[Child]) -> None:
    """Release all children, so that they end at the same time, and wait for them. May be called again."""
    for child in children:
        child.release()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for child in reversed(children):
        child.end(deadline)


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Block Ctrl-C until the end of the block, and for good in a process that is started in it.

    A terminal sends it to both processes. The child would print a traceback before it can ignore the signal.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # Otherwise the first start of a process does this and unblocks the signal.
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- the pipeline -----------------------------------------------------------------------------------------------------


PIPELINE_TIMEOUT_S: Final = 300.0
"""Longest time that the pipeline may take; on two cores it takes less than a minute."""
_PROGRAM: Final = (sys.executable, "-c", "from godwit.cli import main; main()")


class PipelineReport(msgspec.Struct, frozen=True):
    """Result of the pipeline."""

    is_good: bool
    sentence: str
    """Path of the report, and the reason why it has no tables, if there is one."""


def missing_requirement() -> str | None:
    """Return why the pipeline cannot run on this machine; None if it can."""
    from godwit.cli.pipeline_run import PACKAGES

    packages = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if packages:
        return f"the pipeline needs {', '.join(packages)}: run {pip_command('spark')}"
    from godwit.pipeline import java

    return None if java.find_java(os.environ) else java.missing_text(os.getuid())


async def run_pipeline(archive: str, lake: Path) -> str | None:
    """Write everything in the archive to a lake. Return why that failed, or None.

    It is a process that runs `godwit pipeline`, because Spark needs Java and some time.
    """
    command = ["pipeline", "run", "--once", "--archive", archive, "--lake", str(lake)]
    try:
        async with asyncio.timeout(PIPELINE_TIMEOUT_S):
            failure = await _failure(command)
    except TimeoutError:
        return f"the pipeline was not done after {PIPELINE_TIMEOUT_S:g} s: try again with a lower --rate"
    return None if failure is None else f"the pipeline failed: {failure}"


async def _failure(command: list[str]) -> str | None:
    """Run a command; return the last line of its stderr if it failed, else None."""
    process = await asyncio.create_subprocess_exec(*_PROGRAM, *command, stdout=DEVNULL, stderr=PIPE)
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()  # ends Spark too
            await process.wait()
    if process.returncode == 0:
        return None
    lines = errors.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"
