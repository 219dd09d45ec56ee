"""The run behind `godwit demo`: everybody in a process of their own, a bad network between them in this one.

    rooms (5 clients), controller ~ relay that loses, damages, repeats ~ broker ~ the same relay ~ subscriber, workers
                                                                           |
                                                              log, archive - Spark - tables - report, at the end

Everything is real (sockets, clocks, processes) except the faults of the network, which come from a seed.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from godwit.cli import demo_broker, demo_rooms, demo_watch, demo_work
from godwit.cli.demo_broker import Place
from godwit.cli.demo_check import WatchReport, problems
from godwit.cli.demo_pipeline import PipelineReport, missing, run_pipeline
from godwit.cli.demo_processes import TICK_S, Child
from godwit.cli.demo_rooms import RoomsReport
from godwit.cli.demo_work import WORKERS, WorkReport
from godwit.errors import GodwitError
from godwit.net.address import format_address
from godwit.net.relay import Direction, Impairment, Relay
from godwit.sim.link import Link, LinkSettings
from godwit.sim.rooms import ROOMS
from godwit.transport.events import Address

LINE_BITS_PER_S: Final = 20e6
DELAY_S: Final = 0.015
QUEUE_PACKETS: Final = 50
"""What a line holds in a round trip, about."""
CORRUPTION: Final = 0.005
DUPLICATION: Final = 0.01
REORDERING: Final = 0.02
BURST_MEAN_PACKETS: Final = 2.0

SHOW_S: Final = 0.1
RECENT_S: Final = 1.5
MOVE_EVERY_S: Final = 15.0
"""The addresses change that often when the demo runs for ever; else once, half-way."""
END_PATIENCE_S: Final = 30.0

Phase: TypeAlias = Literal["starting", "sending", "arriving", "late subscriber", "tables", "done"]


class Settings(msgspec.Struct, frozen=True):
    """What a user can choose. Without `seconds` it goes on until it is stopped."""

    seconds: float | None
    loss: float
    rate: float
    """Messages a second, of each room."""
    seed: int
    report: Path | None = None
    """Where the report goes; None: no pipeline runs, and there is none."""

    def link(self) -> LinkSettings:
        """One direction of one client's line; all are alike."""
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


class Picture(msgspec.Struct, frozen=True):
    """Everything that there is to show at one moment."""

    settings: Settings
    phase: Phase
    elapsed_s: float
    rooms: RoomsReport
    seen: WatchReport
    network: Mapping[Direction, Counter[str]]
    """What the links counted, by direction."""
    moved_at_s: tuple[float, ...]
    recent_per_s: float
    """Messages that arrived in a second, lately."""
    work: WorkReport
    killed: str | None
    """The worker that was killed."""
    pipeline: PipelineReport | None
    """How the last part went, if there was one."""

    def problems(self) -> list[str]:
        """What is wrong with what arrived; empty when nothing is."""
        return problems(self.rooms.rooms, self.rooms.last_digests, self.seen) + demo_work.problems(self.work)


class _Cast(NamedTuple):
    """All other processes."""

    rooms: Child
    watch: Child
    broker: Child
    controller: Child
    workers: Mapping[str, Child]


class Demo:
    """One run, from the first process to the last report."""

    def __init__(self, settings: Settings, show: Callable[[Picture], None]) -> None:
        self._settings = settings
        self._show = show
        self._links: list[tuple[Direction, Link]] = []
        self._rooms = RoomsReport()
        self._seen = WatchReport()
        self._work = WorkReport()
        self._killed: str | None = None
        self._pipeline: PipelineReport | None = None
        self._recent: deque[tuple[float, int]] = deque()
        self._moved_at_s: list[float] = []
        self._began = time.monotonic()
        self._shown_at = 0.0
        self._stopped = False
        self._phase: Phase = "starting"

    async def run(self) -> Picture:
        """The last picture. GodwitError when the run cannot be brought to its end."""
        settings = self._settings
        with self._stopped_by_interrupt(), ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="godwit-demo-")))
            broker = self._start(stack, "broker", demo_broker.main, str(folder / "log"))
            place: Place = await broker.first_word()
            async with Relay.open(("127.0.0.1", 0), place.address, impair=self._impair) as relay:
                where = format_address(relay.address)
                watch = self._start(stack, "subscriber", demo_watch.main, where)
                rooms = self._start(stack, "rooms", demo_rooms.main, where, settings.seed, settings.rate)
                controller = self._start(stack, "controller", demo_work.controller_main, where, settings.seed)
                workers = {
                    name: self._start(stack, f"worker {name}", demo_work.worker_main, where, name) for name in WORKERS
                }
                for child in (watch, rooms, controller, *workers.values()):
                    await child.first_word()
                await self._transfer(relay, _Cast(rooms, watch, broker, controller, workers))
            if settings.report is not None:
                await self._through_pipeline(place.archive, folder / "lake", settings.report)
        self._phase = "done"
        return self._picture(time.monotonic())

    def _start(self, stack: ExitStack, name: str, main: Callable[..., None], *arguments: object) -> Child:
        child = Child(name, main, *arguments)
        stack.callback(child.stop)
        return child

    async def _transfer(self, relay: Relay, cast: _Cast) -> None:
        self._began = time.monotonic()
        self._phase = "sending"
        for child in (cast.rooms, cast.controller):
            child.tell("go")
        gives_up_at = 0.0
        while not self._is_complete():
            now = time.monotonic()
            if self._phase == "sending":
                self._move_when_due(relay, now)
                self._kill_when_due(cast.workers)
                if self._is_over(now):
                    self._phase = "arriving"
                    gives_up_at = now + END_PATIENCE_S
                    for child in (cast.rooms, cast.controller):
                        child.tell("finish")
            elif self._phase == "arriving" and self._has_arrived():
                self._phase = "late subscriber"
                cast.watch.tell("late")
            if self._phase != "sending" and now > gives_up_at:
                return  # the problems tell what is missing
            cast.broker.hear()
            self._hear(cast)
            if now - self._shown_at >= SHOW_S:
                self._shown_at = now
                self._show(self._picture(now))
            await asyncio.sleep(TICK_S)

    async def _through_pipeline(self, archive: str, lake: Path, report: Path) -> None:
        """What was logged, as tables and as a page; what is missing for that is told."""
        self._phase = "tables"
        if why := missing():
            self._pipeline = PipelineReport(True, f"No report: {why}.")
            return
        running = asyncio.create_task(run_pipeline(archive, lake, report))
        try:
            while not running.done():
                self._show(self._picture(time.monotonic()))
                await asyncio.sleep(SHOW_S)
            self._pipeline = running.result()
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
        """The NAT forgets everybody: all clients get another port, and go on as if nothing had happened."""
        seconds = self._settings.seconds
        elapsed_s = now - self._began
        due = len(self._moved_at_s) + 1
        if elapsed_s >= MOVE_EVERY_S * due if seconds is None else elapsed_s >= seconds / 2 and due == 1:
            relay.rebind()
            self._moved_at_s.append(elapsed_s)

    def _kill_when_due(self, workers: Mapping[str, Child]) -> None:
        """Half-way, with the first change of addresses: the rest of its work is for the other one."""
        if self._killed is None and self._moved_at_s:
            self._killed = WORKERS[0]
            workers[self._killed].kill()

    def _hear(self, cast: _Cast) -> None:
        for self._rooms in cast.rooms.hear():
            pass
        for self._work in cast.controller.hear():
            pass
        for name, worker in cast.workers.items():
            if name != self._killed:
                worker.hear()
        for self._seen in cast.watch.hear():
            self._recent.append((self._seen.at_s, self._seen.received))
        while self._recent and self._recent[0][0] < self._seen.at_s - RECENT_S:
            self._recent.popleft()
        if self._seen.problem:
            raise GodwitError(self._seen.problem)

    def _impair(self, direction: Direction, _client: Address) -> Impairment:
        link = Link(self._settings.link(), Random(f"{self._settings.seed} {direction} {len(self._links)}"))
        self._links.append((direction, link))
        return link

    def _picture(self, now: float) -> Picture:
        recent = self._recent
        rate = 0.0
        if len(recent) > 1:
            rate = (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])
        network: dict[Direction, Counter[str]] = {"to_target": Counter(), "to_client": Counter()}
        for direction, link in self._links:
            network[direction].update(link.counters)
        return Picture(
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
        )

    @contextmanager
    def _stopped_by_interrupt(self) -> Iterator[None]:
        """Without an end of its own, the first Ctrl-C is the end; the next, or one before that, breaks off."""
        if self._settings.seconds is not None:
            yield
            return
        breaks_off = signal.getsignal(signal.SIGINT)
        running = asyncio.get_running_loop()

        def stop() -> None:
            self._stopped = True

        def on_interrupt(*_: object) -> None:
            signal.signal(signal.SIGINT, breaks_off)
            running.call_soon_threadsafe(stop)

        signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, breaks_off)
