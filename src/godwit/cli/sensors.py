"""`godwit sensors`: simulated rooms that publish their temperatures."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from godwit.cli.connection import (
    DEFAULT_BROKER,
    ArqOption,
    BrokerOption,
    EndlessTimeoutOption,
    NameOption,
    SecretOption,
    Target,
    check_qos,
    connected,
    run,
)
from godwit.cli.text import count as counted
from godwit.errors import BufferFullError, UsageError

if TYPE_CHECKING:
    from godwit.cli.house import Sensor
    from godwit.net.client import AsyncClient
    from godwit.net.publisher import AsyncPublisher

MAX_ROOMS: Final = 10_000
MAX_RATE: Final = 100_000.0
TICK_S: Final = 0.02
"""Readings that are due within this time are published together."""
MAX_LAG_S: Final = 1.0
"""A sensor that was delayed for longer skips the readings in between."""


class SensorPlan(msgspec.Struct, frozen=True):
    """The options of the command."""

    rooms: int
    rate: float
    """Readings per second of each room."""
    seed: int
    faults_per_thousand: float
    prefix: str
    qos: int
    retain: bool
    count: int | None
    duration_s: float | None

    def check(self) -> None:
        """Check the ranges of all options.

        Raises:
            UsageError: An option is out of range.
        """
        from godwit.broker.topics import check_topic

        if not 1 <= self.rooms <= MAX_ROOMS:
            raise UsageError(f"--rooms {self.rooms} is out of range; give a number from 1 to {MAX_ROOMS:,}")
        if not 0 < self.rate <= MAX_RATE:
            raise UsageError(
                f"--rate {self.rate:g} is out of range; give readings per second, above 0, up to {MAX_RATE:,.0f}"
            )
        if not 0 <= self.faults_per_thousand <= 1000:
            raise UsageError(f"--faults {self.faults_per_thousand:g} is out of range; give a number from 0 to 1000")
        if self.count is not None and self.count < 1:
            raise UsageError(f"--count {self.count} is out of range; give a number from 1 upward, or leave it out")
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise UsageError(f"--duration {self.duration_s:g} is out of range; give seconds above 0, or leave it out")
        check_topic(self.prefix)


def register(root: typer.Typer) -> None:
    """Add `godwit sensors`."""
    root.command("sensors", epilog="Example: godwit sensors --rooms 20 --rate 2 --duration 60")(sensors)


def sensors(
    rooms: Annotated[int, typer.Option(metavar="N", help="Number of rooms.")] = 5,
    rate: Annotated[float, typer.Option(metavar="R", help="Readings per second of each room.")] = 1.0,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of the readings and faults.")] = 1,
    faults: Annotated[float, typer.Option(metavar="F", help="Faults per thousand readings of a sensor.")] = 1.0,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", metavar="N", help="End after this many readings.", show_default="no limit"),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End after this many seconds.", show_default="no limit")
    ] = None,
    prefix: Annotated[
        str, typer.Option(metavar="TOPIC", help="First levels of the topics: TOPIC/kitchen/temperature.")
    ] = "home",
    qos: Annotated[
        str, typer.Option(metavar="0|1|2", help="Delivery: 0 at most once, 1 at least once, 2 exactly once in the log.")
    ] = "1",
    retain: Annotated[
        bool, typer.Option("--retain", help="Keep the last reading of each room for later subscribers.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: EndlessTimeoutOption = None,
) -> None:
    """Publish the temperatures of simulated rooms as JSON: daily cycle, drift, noise, and occasional faults.

    The topics are home/kitchen/temperature and so on. A faulty sensor is stuck, spikes, drifts away or stops sending.
    The command runs until Ctrl-C unless --count or --duration ends it.
    """
    plan = SensorPlan(rooms, rate, seed, faults, prefix, check_qos(qos), retain, count, duration)
    plan.check()
    run(_run(Target.of(broker, name, secret_file, timeout, arq), plan, quiet))


async def _run(target: Target, plan: SensorPlan, quiet: bool) -> None:
    from godwit.cli.house import sensors as house
    from godwit.cli.progress import LineProgress

    async with connected(target) as client:
        if not quiet:
            text = f"{counted(plan.rooms, 'room')} at {plan.prefix}/+/temperature, {plan.rate:g} per second each"
            typer.echo(f"publishing {text}", err=True)
        source = SensorPublisher(
            client,
            house(
                plan.rooms,
                plan.seed,
                start_us=time.time_ns() // 1000,
                step_us=max(round(1e6 / plan.rate), 1),
                faults_per_reading=plan.faults_per_thousand / 1000,
            ),
            plan,
        )
        try:
            with LineProgress(enabled=not quiet and sys.stderr.isatty()) as progress:
                await source.run(progress.show)
        except asyncio.CancelledError:
            if not quiet:
                unsure = "" if plan.qos == 0 else ", the last of them perhaps not confirmed"
                typer.echo(f"interrupted: {counted(source.sent, 'reading')} sent{unsure}", err=True)
            raise
    if not quiet:
        typer.echo(f"{counted(source.sent, 'reading')} {'sent' if plan.qos == 0 else 'confirmed'}", err=True)


class SensorPublisher:
    """The sensors and their publishers. Readings are spread evenly over time, one sensor after another."""

    def __init__(self, client: AsyncClient, sensors: list[Sensor], plan: SensorPlan) -> None:
        self._plan = plan
        self._pairs: list[tuple[Sensor, AsyncPublisher]] = [
            (
                sensor,
                client.publisher(f"{plan.prefix}/{sensor.room}/temperature", qos=plan.qos, retain=plan.retain),
            )
            for sensor in sensors
        ]
        self.sent = 0

    async def run(self, show: Callable[[int], None]) -> None:
        """Publish until the plan ends, then wait until the broker has confirmed everything."""
        plan = self._plan
        now = asyncio.get_running_loop().time
        turns_per_s = plan.rate * len(self._pairs)
        began = started = now()
        turn = 0
        while not self._is_over(now() - began):
            due = int((now() - started) * turns_per_s) + 1
            if due - turn > max(turns_per_s * MAX_LAG_S, len(self._pairs)):
                started = now() - turn / turns_per_s
                continue
            waited = False
            while turn < due and self.sent != plan.count and not waited:
                waited = await self._publish_reading(turn)
                turn += 1
            show(self.sent)
            pause_s = max(started + turn / turns_per_s - now(), TICK_S)
            if plan.duration_s is not None:
                pause_s = min(pause_s, began + plan.duration_s - now())
            await asyncio.sleep(0 if waited or self.sent == plan.count else max(pause_s, 0))
        for _, publisher in self._pairs:
            await publisher.flush()

    def _is_over(self, elapsed_s: float) -> bool:
        duration_s = self._plan.duration_s
        return self.sent == self._plan.count or (duration_s is not None and elapsed_s >= duration_s)

    async def _publish_reading(self, turn: int) -> bool:
        """Publish one reading; return whether it had to wait for buffer space."""
        sensor, publisher = self._pairs[turn % len(self._pairs)]
        reading = sensor.read()
        if reading is None:
            return False
        payload = msgspec.json.encode(reading)
        waited = False
        while True:
            try:
                publisher.send(payload)
                break
            except BufferFullError:
                waited = True
                await publisher.ready()
        self.sent += 1
        return waited
