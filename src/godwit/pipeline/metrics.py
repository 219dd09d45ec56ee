"""The metrics of a running pipeline for Prometheus: lag, batches, rows by table, quarantine, failures."""

from __future__ import annotations

import threading
import time
from collections import Counter

from godwit.metrics.distribution import LONG_SECONDS, Distribution
from godwit.metrics.exposition import MetricSet
from godwit.metrics.server import Answer, HttpReply, metrics_reply
from godwit.pipeline.supervisor import BatchProgress, RunListener

QUARANTINE = "silver/quarantine"


class PipelineMetrics:
    """A RunListener that counts, and passes all events on to another one."""

    def __init__(self, listener: RunListener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        """The run counts in its thread, and the endpoint reads in another."""
        self._started_at = time.time()
        self._rows: Counter[str] = Counter()
        self._table_rows: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._lag: dict[str, int] = {}
        self._ended_at: dict[str, float] = {}
        self._took: dict[str, Distribution] = {}
        self._failing: dict[str, str] = {}
        """Queries that have failed since their last batch, with the reason."""

    def on_batch(self, batch: BatchProgress) -> None:
        """Count a micro-batch."""
        with self._lock:
            self._rows[batch.query] += batch.rows
            self._table_rows.update(batch.tables)
            self._lag[batch.query] = batch.lag
            self._ended_at[batch.query] = time.time()
            self._took.setdefault(batch.query, Distribution(LONG_SECONDS)).observe(batch.took_s)
            self._failing.pop(batch.query, None)
        self._listener.on_batch(batch)

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        """Count a failure."""
        with self._lock:
            self._failures[query] += 1
            self._failing[query] = sentence
        self._listener.on_failure(query, sentence, pause_s)

    def collect(self) -> MetricSet:
        """Return the metrics of this moment."""
        metrics = MetricSet()
        with self._lock:
            metrics.gauge("pipeline_start_time_seconds", "Start of the run, since 1970.", self._started_at)
            for query in sorted(self._took):
                text = "Messages that the query has not processed, as of its last batch."
                metrics.gauge("pipeline_lag_messages", text, self._lag[query], query=query)
                text = "Duration of micro-batches, and of steps of gold."
                metrics.histogram("pipeline_batch_seconds", text, self._took[query], query=query)
                text = "End of the last batch, since 1970."
                metrics.gauge("pipeline_last_batch_time_seconds", text, self._ended_at[query], query=query)
            metrics.counters("pipeline_messages", "Messages that queries have processed.", "query", self._rows)
            metrics.counters("pipeline_rows", "Rows that were added to tables.", "table", self._table_rows)
            text = "Messages that could not be decoded."
            metrics.counter("pipeline_quarantined_messages", text, self._table_rows[QUARANTINE])
            metrics.counters("pipeline_failures", "Failures of queries, which restart.", "query", self._failures)
        return metrics

    def answers(self) -> dict[str, Answer]:
        """Return the replies by path, for MetricsServer."""
        return {"/metrics": self._answer_metrics, "/healthz": self._answer_health, "/readyz": self._answer_ready}

    async def _answer_metrics(self) -> HttpReply:
        return metrics_reply(self.collect().render())

    async def _answer_health(self) -> HttpReply:
        return HttpReply(200, b"ok\n")

    async def _answer_ready(self) -> HttpReply:
        with self._lock:
            failing = [f"the query {query} fails: {sentence}\n" for query, sentence in self._failing.items()]
        return HttpReply(503, "".join(failing).encode()) if failing else HttpReply(200, b"ok\n")
