"""The pipeline is killed in the middle of its batches again and again, and so is the broker: each message counts once.

`godwit pipeline run` gets SIGKILL while a batch of one of its queries is half done; its JVM is left behind, and the
next run must wait for it. At the end each confirmed message stands once in bronze, and each alert once in the broker's
log, namely those that a detector tells that saw the readings one by one.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from tests.archive.client import ArchiveClient
from tests.system import thermometers
from tests.system.stage import Broker, Process, Stage, needs_linux, run, until

from godwit.pipeline.checkpoints import ANOMALIES, TABLES, read_checkpoint
from godwit.pipeline.datasets import anomalies, bronze, readings
from godwit.pipeline.detector import Alarm, Detector
from godwit.pipeline.files import FILES
from godwit.pipeline.lake import Lake

SEED = 6_081
KILLS = 10
BROKER_IS_KILLED_AT = (4, 8)
SENSORS = 30
INTERVAL_S = 0.25
LONGEST_LIFE_S = 4.0
"""After the first batch that a run has done, or begun."""
START_S = 300.0
"""Until a JVM runs and has done its first batch, on a busy machine."""
IN_USE = "its Java process"


@needs_linux
@pytest.mark.java
@pytest.mark.soak
def test_each_message_and_each_alert_counts_once_whoever_is_killed(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    lake = tmp_path / "lake"

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=tmp_path / "data", archive="127.0.0.1:0")
            address, archive = broker.address, broker.archive.removeprefix("grpc://")
            sensors = list(range(SENSORS))
            publisher = await stage.worker("measure", "halls", broker=address, sensors=sensors, interval_s=INTERVAL_S)
            await publisher.hear("ready")
            publisher.tell("go")
            for number in range(1, KILLS + 1):
                pipeline = await started(stage, archive, lake)
                if number % 2:
                    await another_batch(lake)
                else:
                    await another_attempt(lake)  # it is killed again in the batch in which it was killed before
                if number in BROKER_IS_KILLED_AT:
                    await broker.kill()
                    await asyncio.sleep(rng.uniform(0, LONGEST_LIFE_S))
                    broker = await again(stage, tmp_path / "data", address, archive)
                await asyncio.sleep(rng.uniform(0, LONGEST_LIFE_S))
                await until(lambda: bool(half_done(lake)), "a query is in the middle of a batch", within_s=START_S)
                queries = half_done(lake)
                await pipeline.kill()
                print(f"kill {number}: {queries} at batch {steps(lake)} of {TABLES}")

            publisher.tell("halt")
            counts = (await publisher.hear("confirmed"))["counts"]
            pipeline = await started(stage, archive, lake, "--once")
            assert await pipeline.ended(within_s=2 * START_S) == 0, pipeline.said()
            check = await stage.godwit("pipeline", "check", "--lake", str(lake))
            assert await check.ended(within_s=START_S) == 0, check.said()
            check_bronze(Lake(str(lake)), counts)
            await asyncio.to_thread(check_alerts, Lake(str(lake)), broker.archive, counts)
            await broker.stop()

    run(test, within_s=KILLS * 2 * START_S)


async def started(stage: Stage, archive: str, lake: Path, *more: str) -> Process:
    """A run that has the lake: the JVM of the one before may have to end first."""
    ends = time.monotonic() + START_S
    while True:
        pipeline = await stage.godwit("pipeline", "run", "--archive", archive, "--lake", str(lake), *more)
        await until(partial(has_begun_or_ended, pipeline), "the pipeline has begun", within_s=START_S)
        if reads(pipeline):
            return pipeline
        await pipeline.kill()
        assert IN_USE in pipeline.said(), pipeline.said()
        assert time.monotonic() < ends, pipeline.said()
        print("the JVM of the last run has the lake still")
        await asyncio.sleep(0.5)


def has_begun_or_ended(pipeline: Process) -> bool:
    return reads(pipeline) or not pipeline.is_running


def reads(pipeline: Process) -> bool:
    return any(line.startswith("reading ") for line in pipeline.lines)


async def again(stage: Stage, data: Path, address: str, archive: str) -> Broker:
    return await stage.broker(data=data, listen=(address,), archive=archive)


async def another_batch(lake: Path) -> None:
    """Waits until a run has done one."""
    before = steps(lake)
    await until(lambda: steps(lake) > before, "a batch is done", within_s=START_S)


async def another_attempt(lake: Path) -> None:
    """Waits until a run writes to bronze."""
    before = attempts(lake)
    await until(lambda: attempts(lake) > before, "a batch is being written", within_s=START_S)


def attempts(lake: Path) -> int:
    """Each has files of its own, whether they were committed or not."""
    return len(list((lake / bronze.SPEC.name / FILES).glob("*")))


def steps(lake: Path) -> int:
    """The newest batch of `tables` that is complete; -1: none."""
    found = read_checkpoint(Lake(str(lake)), TABLES)
    return -1 if found is None else found.batch


def half_done(lake: Path) -> list[str]:
    """The queries that are in the middle of a batch."""
    found = [TABLES] if has_invisible_files(lake) else []
    return found + ([ANOMALIES] if has_later_manifest(lake) else [])


def has_later_manifest(lake: Path) -> bool:
    """Whether the detectors have a result that is not in the table yet, or that was not published yet."""
    numbers = [int(path.stem) for path in (lake / "_checkpoints" / ANOMALIES / "states").glob("*.json")]
    found = read_checkpoint(Lake(str(lake)), ANOMALIES)
    return bool(numbers) and (found is None or max(numbers) > found.batch)


def has_invisible_files(lake: Path) -> bool:
    """Whether the newest file of bronze is not in the table yet."""
    table = Lake(str(lake)).table(bronze.SPEC)
    paths = sorted((Path(table.address) / FILES).glob("*"), key=lambda path: path.stat().st_mtime_ns)
    visible = {Path(uri).name for uri in DeltaTable(table.address).file_uris()}
    return bool(paths) and paths[-1].name not in visible


# -- what must be there -----------------------------------------------------------------------------------------------


def check_bronze(lake: Lake, counts: list[int]) -> None:
    rows = lake.table(bronze.SPEC).arrow(["broker", "offset", "topic", "payload"])
    places = pa.TableGroupBy(rows, ["broker", "offset"]).aggregate([([], "count_all")])
    assert places.num_rows == rows.num_rows, "a message of the log stands twice in bronze"
    found: dict[str, list[int]] = {}
    for topic, payload in zip(rows["topic"].to_pylist(), rows["payload"].to_pylist(), strict=True):
        if topic.startswith("halls/"):
            found.setdefault(topic, []).append(thermometers.number_of(payload))
    for sensor, count in enumerate(counts):
        assert sorted(found[thermometers.topic_of(sensor)]) == list(range(count))
    print(f"bronze: {rows.num_rows} rows, {sum(counts)} confirmed readings, each once")


def check_alerts(lake: Lake, archive: str, counts: list[int]) -> None:
    raised = [
        (thermometers.topic_of(sensor), alarm) for sensor in range(len(counts)) for alarm in alarms_of(lake, sensor)
    ]
    events = {(topic, alarm.begin_position): alarm for topic, alarm in raised}
    rows = lake.table(anomalies.SPEC).arrow(["topic", "offset", "value", "reason", "state"]).to_pylist()
    assert Counter((row["topic"], row["offset"], row["value"], row["reason"], row["state"]) for row in rows) == Counter(
        (topic, offset, alarm.begin_value, alarm.reason, alarm.state) for (topic, offset), alarm in events.items()
    )
    with ArchiveClient(archive) as client:
        told = [json.loads(one) for batch in client.read(["alerts/#"]) for one in batch["payload"].to_pylist()]
    assert Counter((one["topic"], one["value"], one["reason"], one["state"]) for one in told) == Counter(
        (topic, alarm.value, alarm.reason, alarm.state) for topic, alarm in raised
    )
    print(f"{len(told)} alerts in the log, each once")
    assert told


def alarms_of(lake: Lake, sensor: int) -> list[Alarm]:
    """What one detector tells that sees all readings of a sensor in their order."""
    rows = lake.table(readings.SPEC).arrow(["topic", "offset", "event_time", "value"])
    mine = rows.filter(pc.equal(rows["topic"], thermometers.topic_of(sensor))).sort_by("offset")
    times_us = mine["event_time"].cast(pa.int64()).to_pylist()
    detector = Detector()
    found = [
        detector.update(time_us, value, offset)
        for time_us, value, offset in zip(times_us, mine["value"].to_pylist(), mine["offset"].to_pylist(), strict=True)
    ]
    return [alarm for alarm in found if alarm is not None]
