"""Supervision of queries, and the text of their failures. Without Spark."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from tests.pipeline.lakes import RecordingListener

from godwit.pipeline.errors import MAX_SENTENCE, PipelineError, explained, explained_store
from godwit.pipeline.supervisor import BatchProgress, RunStats, SupervisedQuery
from godwit.spark.archive import DataLossError

# -- failures ----------------------------------------------------------------------------------------------------------


PAGE = """[STREAM_FAILED] Query [id = ab7a, runId = 80ca] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed \
to plan Python data source initialize source: Traceback (most recent call last):
  File "reader.py", line 46, in prepareForTriggerAvailableNow
    infos, _ = self._find_logs()
godwit.spark.{module}.{name}: {sentence}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = ab7a]
"""


@pytest.mark.parametrize(
    ("module", "name", "is_final"),
    [
        ("options", "OptionError", True),
        ("archive", "DataLossError", True),
        ("archive", "RefusedError", True),
        ("archive", "UnreachableError", False),
        ("archive", "ArchiveError", False),
    ],
)
def test_an_error_of_godwit_is_found(module: str, name: str, is_final: bool) -> None:
    found = explained(PAGE.format(module=module, name=name, sentence="it is so: do that."))
    assert (found.sentence, found.is_final) == ("it is so: do that", is_final)


def test_the_cause_counts_not_later_errors() -> None:
    text = PAGE.format(module="archive", name="DataLossError", sentence="gone") + "godwit.x.OtherError: later\n"
    assert explained(text).sentence == "gone"


def test_other_errors_are_reported_and_retried() -> None:
    found = explained(
        "[STREAM_FAILED] ...\nTraceback:\n  File x\npyarrow.lib.ArrowInvalid: no\nValueError: bad thing\n"
    )
    assert (found.sentence, found.is_final) == ("ValueError: bad thing", False)
    assert explained("[SOMETHING] in Java\n\tat org.apache").sentence == "[SOMETHING] in Java"
    assert explained("").sentence == "no reason given"
    assert len(explained("x" * 5000).sentence) == MAX_SENTENCE


# -- restarts ----------------------------------------------------------------------------------------------------------


class Fake:
    """A query that fails, or ends after one batch."""

    is_active = False

    def __init__(self, error: str | None) -> None:
        self._error = error

    def next_batches(self) -> list[BatchProgress]:
        return [] if self._error else [BatchProgress("tables", 0, 7, 1.0, 0)]

    def error(self) -> Exception | None:
        return None if self._error is None else PySparkException(self._error)


def supervise(
    monkeypatch: pytest.MonkeyPatch, errors: list[str | None], listener: RecordingListener, *, is_once: bool
) -> RunStats:
    now = [0.0]
    monkeypatch.setattr("godwit.pipeline.supervisor.time.monotonic", lambda: now[0])
    started, stats = iter(errors), RunStats()
    query = SupervisedQuery("tables", lambda: Fake(next(started)), is_once, listener, stats)
    while not query.is_done:
        query.poll()
        now[0] += 0.5
    return stats


def test_a_failed_query_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = RecordingListener()
    away = "x\ngodwit.spark.archive.UnreachableError: no answer\n"
    stats = supervise(monkeypatch, [away] * 8 + [None], listener, is_once=False)
    assert listener.failures == [("tables", "no answer", pause_s) for pause_s in (1, 2, 4, 8, 16, 32, 60, 60)]
    assert stats == RunStats({"tables": 1}, {"tables": 7})


def test_pauses_restart_after_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Fake):
        """A query that fails after a batch."""

        def next_batches(self) -> list[BatchProgress]:
            return [BatchProgress("tables", 0, 7, 1.0, 0)] if self._error == "after a batch" else []

    now = [0.0]
    monkeypatch.setattr("godwit.pipeline.supervisor.time.monotonic", lambda: now[0])
    errors, listener = iter(["at once", "at once", "after a batch", "at once"]), RecordingListener()
    query = SupervisedQuery("tables", lambda: Failing(next(errors)), False, listener, RunStats())
    while len(listener.failures) < 4:
        query.poll()
        now[0] += 0.5
    assert [pause_s for _, _, pause_s in listener.failures] == [1, 2, 1, 2]


def test_a_final_error_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = RecordingListener()
    gone = "x\ngodwit.spark.archive.DataLossError: messages are gone\n"
    with pytest.raises(PipelineError, match="the query tables failed: messages are gone"):
        supervise(monkeypatch, [gone], listener, is_once=False)
    with pytest.raises(PipelineError, match="OutOfMemoryError"):
        supervise(monkeypatch, ["java.lang.OutOfMemoryError"] * 5, listener, is_once=True)
    assert len(listener.failures) == 4


def test_a_final_error_of_a_step_ends_the_run() -> None:
    def refused() -> Fake:
        raise DataLossError("messages are gone")

    with pytest.raises(PipelineError, match="the query tables failed: messages are gone"):
        SupervisedQuery("tables", refused, False, RecordingListener(), RunStats()).poll()


def test_a_java_process_that_exited_ends_the_run() -> None:
    def refused() -> Fake:
        raise ConnectionRefusedError

    with pytest.raises(PipelineError, match="Java process has exited"):
        SupervisedQuery("tables", refused, False, RecordingListener(), RunStats()).poll()


def test_a_job_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, errors = (
        RecordingListener(),
        [Py4JError("An error occurred\nCaused by: java.io.IOException: a damaged file"), None],
    )

    def start() -> Fake:
        if error := errors.pop(0):
            raise error
        return Fake(None)

    now = [0.0]
    monkeypatch.setattr("godwit.pipeline.supervisor.time.monotonic", lambda: now[0])
    query = SupervisedQuery("gold", start, False, listener, RunStats())
    query.poll()
    now[0] += 1.0
    query.poll()
    assert query.is_done
    assert listener.failures == [("gold", "IOException: a damaged file", 1.0)]


def test_a_pipeline_error_ends_the_run() -> None:
    def refused() -> Fake:
        raise PipelineError("begin a new lake")

    with pytest.raises(PipelineError, match=r"^begin a new lake$"):
        SupervisedQuery("gold", refused, False, RecordingListener(), RunStats()).poll()


def test_a_listener_may_end_the_run() -> None:
    class Enough(RecordingListener):
        def on_batch(self, batch: BatchProgress) -> None:
            raise KeyError(batch.rows)

    with pytest.raises(KeyError):
        SupervisedQuery("tables", lambda: Fake(None), False, Enough(), RunStats()).poll()


def test_an_error_of_an_object_store_has_no_escape_codes_and_no_signature() -> None:
    text = (
        "builtins.OSError: Kernel error -> Generic S3 error\n   \x1b[31m\u21b3\x1b[0m Error performing GET "
        "https://store.example/bucket/x?X-Amz-Signature=abc in 7ms\n \x1b[31m\u21b3\x1b[0m 403 Forbidden\n"
        "<Error><Code>AccessDenied</Code></Error>\n"
    )
    sentence = (
        "the object store (https://store.example, 403 Forbidden, AccessDenied) refuses the credentials: check the key "
        "and its rights to list, read, write and delete"
    )
    assert explained(text).sentence == explained_store(text) == sentence
    assert not explained(text).is_final  # a token may be renewed
    of_executor = (
        'pyspark.errors.exceptions.base.PythonException: \n  File "files.py", line 1, in read\nOSError: When getting '
        "information for key 'x' in bucket 'b': AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7"
    )
    assert "(NETWORK_CONNECTION) does not answer: check the network" in explained(of_executor).sentence
    odd = explained_store('Generic Config error\n \x1b[31m\u21b3\x1b[0m failed to parse "" as boolean\n')
    assert odd.startswith('Generic Config error - failed to parse "" as boolean; check the variables')
    assert explained_store("No space left on device") == "No space left on device"
