"""How something that runs is watched, without Spark."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from tests.pipeline.heard import Heard

from godwit.pipeline.problems import PipelineError
from godwit.pipeline.watching import Batch, Outcome, Query, Watched


class Fake:
    """Fails, or ends well."""

    is_active = False

    def __init__(self, error: str | None) -> None:
        self._error = error

    def batches(self) -> list[Batch]:
        return [] if self._error else [Batch("tables", 0, 7, 1.0, 0)]

    def error(self) -> Exception | None:
        return None if self._error is None else PySparkException(self._error)


def watch(monkeypatch: pytest.MonkeyPatch, errors: list[str | None], heard: Heard, *, is_once: bool) -> Outcome:
    now = [0.0]
    monkeypatch.setattr("godwit.pipeline.watching.time.monotonic", lambda: now[0])
    started, outcome = iter(errors), Outcome()
    watched = Watched("tables", lambda: Fake(next(started)), is_once, heard, outcome)
    while not watched.is_done:
        watched.look()
        now[0] += 0.5
    return outcome


def test_what_fails_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    away = "x\ngodwit.spark.archive.UnreachableError: nobody there\n"
    outcome = watch(monkeypatch, [away] * 8 + [None], heard, is_once=False)
    assert heard.failures == [("tables", "nobody there", pause_s) for pause_s in (1, 2, 4, 8, 16, 32, 60, 60)]
    assert outcome == Outcome({"tables": 1}, {"tables": 7})


def test_what_cannot_get_better_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    gone = "x\ngodwit.spark.archive.DataLossError: messages are gone\n"
    with pytest.raises(PipelineError, match="the query tables failed: messages are gone"):
        watch(monkeypatch, [gone], heard, is_once=False)
    with pytest.raises(PipelineError, match="OutOfMemoryError"):
        watch(monkeypatch, ["java.lang.OutOfMemoryError"] * 5, heard, is_once=True)
    assert len(heard.failures) == 4


def test_a_java_process_that_died_is_told() -> None:
    def refused() -> Fake:
        raise ConnectionRefusedError

    with pytest.raises(PipelineError, match="Java process has ended by itself"):
        Watched("tables", refused, False, Heard(), Outcome()).look()


def test_a_job_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, errors = Heard(), [Py4JError("An error occurred\nCaused by: java.io.IOException: a damaged file"), None]

    def start() -> Fake:
        if error := errors.pop(0):
            raise error
        return Fake(None)

    now = [0.0]
    monkeypatch.setattr("godwit.pipeline.watching.time.monotonic", lambda: now[0])
    watched = Watched("gold", start, False, heard, Outcome())
    watched.look()
    now[0] += 1.0
    watched.look()
    assert watched.is_done
    assert heard.failures == [("gold", "IOException: a damaged file", 1.0)]


def test_what_the_pipeline_itself_says_ends_the_run() -> None:
    def refused() -> Fake:
        raise PipelineError("begin a new lake")

    with pytest.raises(PipelineError, match=r"^begin a new lake$"):
        Watched("gold", refused, False, Heard(), Outcome()).look()


def test_an_observer_may_end_the_run() -> None:
    class Enough(Heard):
        def on_batch(self, batch: Batch) -> None:
            raise KeyError(batch.rows)

    with pytest.raises(KeyError):
        Watched("tables", lambda: Fake(None), False, Enough(), Outcome()).look()


def test_each_batch_of_a_query_is_told_once() -> None:
    def progress(number: int, rows: int) -> Any:
        told = {"name": "tables", "batchId": number, "numInputRows": rows, "batchDuration": 1500}
        source = {"endOffset": {"log": 5}, "latestOffset": {"log": 8, "version": "x"}}
        return SimpleNamespace(batchId=number, timestamp=f"{number}", json=json.dumps(told | {"sources": [source]}))

    spark: Any = SimpleNamespace(lastProgress=None, recentProgress=[], isActive=True, exception=lambda: None)
    query = Query(spark)
    assert (query.batches(), query.is_active, query.error()) == ([], True, None)
    spark.recentProgress = [progress(0, 3), progress(1, 0), progress(2, 4)]
    spark.lastProgress = spark.recentProgress[-1]
    assert query.batches() == [Batch("tables", 0, 3, 1.5, 3), Batch("tables", 2, 4, 1.5, 3)]
    assert query.batches() == []
