"""gold/anomalies: readings that are unlike their series, found as they come, and told to the broker.

Each series, that is a quantity of a topic of a broker, has a detector of its own, which Spark keeps in the checkpoint.
Readings of a micro-batch are taken in the order of their times. A batch that is done again begins with the same states
and finds the same alarms; table and broker take them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from godwit.pipeline.alerts import Alerts
from godwit.pipeline.datasets import readings
from godwit.pipeline.detector import Detector
from godwit.pipeline.lake import Lake, TableSpec

QUERY_NAME: Final = "anomalies"
_SERIES: Final = ("broker", "topic", "quantity")
_FOUND: Final = (
    "broker string, topic string, quantity string, offset bigint, time_us bigint, value double, unit string, "
    "expected double, score double, reason string"
)
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
RETENTION_HOURS: Final = 24
"""So long a reader may stay with the files that it has begun to read."""

SPEC: Final = TableSpec(
    "gold/anomalies",
    "one row per alarm: (broker, offset, quantity) of the reading that raised it",
    pa.schema(
        [
            ("broker", pa.string()),
            ("offset", pa.int64()),
            ("quantity", pa.string()),
            ("topic", pa.string()),
            ("event_time", pa.timestamp("us", tz="UTC")),
            ("value", pa.float64()),
            ("unit", pa.string()),
            ("expected", pa.float64()),
            ("score", pa.float64()),  # in limits of the detector: from 1
            ("reason", pa.string()),
        ]
    ),
    keys=("broker", "offset", "quantity"),
    checks={"it is beyond the limit, and says why": "score >= 1 AND reason != ''"},
)


def start(
    spark: SparkSession, source: Mapping[str, str], lake: Lake, checkpoint: str, trigger: Mapping[str, Any]
) -> StreamingQuery:
    """The query that fills the table and writes alerts. `source`: options of format("godwit")."""
    stream = spark.readStream.format("godwit").options(**source).load()
    alarms = find(readings.good(readings.read(stream)))
    writer = alarms.writeStream.queryName(QUERY_NAME).outputMode("append").foreachBatch(_writing(lake, Alerts(source)))
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def find(stream: DataFrame) -> DataFrame:
    """Rows of this table, of a stream of readings."""
    rows = stream.select(*_SERIES, "offset", sf.unix_micros("event_time").alias("time_us"), "value", "unit")
    found = rows.groupBy(*_SERIES).transformWithState(_Detection(), _FOUND, "append", "none")
    return found.withColumn("event_time", sf.timestamp_micros("time_us")).select(*SPEC.schema.names)


class _Detection(StatefulProcessor):
    """On an executor: one series after the other."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("detector", "state binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803  # Spark's
        known = self._state.get()
        detector = Detector() if known is None else Detector.from_bytes(bytes(known[0]))
        broker, topic, quantity = key
        for row in sorted(rows, key=lambda one: (one.time_us, one.offset)):
            alarm = detector.update(row.time_us, row.value)
            if alarm is not None:
                yield Row(
                    broker=broker,
                    topic=topic,
                    quantity=quantity,
                    offset=row.offset,
                    time_us=row.time_us,
                    value=row.value,
                    unit=row.unit,
                    expected=alarm.expected,
                    score=alarm.score,
                    reason=alarm.reason,
                )
        self._state.update((detector.to_bytes(),))

    def close(self) -> None:
        """Nothing is held."""


def _writing(lake: Lake, alerts: Alerts) -> Callable[[DataFrame, int], None]:
    table = lake.table(SPEC)

    def write(found: DataFrame, batch: int) -> None:
        spark = found.sparkSession
        query = spark.sparkContext.getLocalProperty(_QUERY_PROPERTY)
        assert query is not None, "micro-batches are those of a streaming query"
        # One look and no more, as each would run the detectors again. Alarms are few: the driver has room for them.
        rows = found.toArrow().sort_by([(name, "ascending") for name in ("event_time", "broker", "offset", "quantity")])
        if rows.num_rows:
            table.append_arrow(rows, {query: batch})
            table.tidy(None, RETENTION_HOURS)
            alerts.write(spark, rows.to_pylist(), query, batch)

    return write
