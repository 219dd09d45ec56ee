"""The metrics of the pipeline, without Spark."""

from __future__ import annotations

from tests.metrics.http_client import check_with_promtool, get, needs_promtool, samples

from godwit.metrics.server import MetricsServer, open_endpoint
from godwit.pipeline.metrics import PipelineMetrics
from godwit.pipeline.supervisor import BatchProgress


class Listener:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_batch(self, batch: BatchProgress) -> None:
        self.seen.append(f"batch {batch.number}")

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        self.seen.append(f"failure of {query}")


def filled(listener: Listener) -> PipelineMetrics:
    metrics = PipelineMetrics(listener)
    metrics.on_batch(BatchProgress("tables", 0, 100, 0.4, 7, {"bronze/messages": 100, "silver/quarantine": 3}))
    metrics.on_batch(BatchProgress("tables", 1, 50, 1.5, 0, {"bronze/messages": 50, "silver/quarantine": 1}))
    metrics.on_failure("gold", "the store is away", 1.0)
    return metrics


def test_batches_rows_lag_and_failures_are_counted() -> None:
    listener = Listener()
    found = samples(filled(listener).collect().render())
    assert listener.seen == ["batch 0", "batch 1", "failure of gold"]
    assert found['godwit_pipeline_messages_total{query="tables"}'] == 150
    assert found['godwit_pipeline_rows_total{table="bronze/messages"}'] == 150
    assert found["godwit_pipeline_quarantined_messages_total"] == 4
    assert found['godwit_pipeline_lag_messages{query="tables"}'] == 0
    assert found['godwit_pipeline_batch_seconds_bucket{le="0.5",query="tables"}'] == 1
    assert found['godwit_pipeline_failures_total{query="gold"}'] == 1


def test_a_failing_query_makes_it_not_ready() -> None:
    metrics = filled(Listener())
    server = MetricsServer(open_endpoint("127.0.0.1", 0), metrics.answers())
    try:
        assert get(server.address, "/healthz").status == 200
        assert get(server.address, "/readyz")[::2] == (503, b"the query gold fails: the store is away\n")
        metrics.on_batch(BatchProgress("gold", 0, 1, 0.1, 0))
        assert get(server.address, "/readyz").status == 200
        assert samples(get(server.address, "/metrics").body)
    finally:
        server.close()


@needs_promtool
def test_promtool_accepts_them() -> None:
    check_with_promtool(filled(Listener()).collect().render())
