"""A program with a Spark Connect session: reads a log as batch and stream, writes both ways, and prints the results.

Connect and classic sessions exclude each other in one process, so the tests run this one in its own.
"""

from __future__ import annotations

import json
import logging
import sys
from importlib.util import find_spec

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import godwit

TIMEOUT_S = 600


def main(source: str, target: str, folder: str) -> None:
    """`source` and `target` are addresses of archives."""
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    godwit.spark.register(spark)
    found: dict[str, object] = {"session": type(spark).__module__}

    # In a task: is godwit installed there?
    is_installed = sf.udf(lambda _: find_spec("godwit") is not None, "boolean")
    found["executors_have_godwit"] = [row[0] for row in spark.range(1).select(is_installed("id")).collect()]

    batch = spark.read.format("godwit").option("archive", source).load()
    found["columns"] = batch.columns
    found["batch"] = [list(row) for row in batch.groupBy("topic").count().orderBy("topic").collect()]

    stream = spark.readStream.format("godwit").options(archive=source, maxRowsPerTrigger="40").load()
    path = f"{folder}/stream"
    writer = stream.writeStream.format("parquet").options(path=path, checkpointLocation=f"{folder}/checkpoint-1")
    assert writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)
    found["stream_offsets"] = [row[0] for row in spark.read.parquet(path).select("offset").orderBy("offset").collect()]

    rows = batch.where("topic = 'one'").selectExpr("'batch' AS topic", "payload")
    rows.write.format("godwit").option("archive", target).mode("append").save()
    for _ in range(2):  # the second has nothing new
        rows = stream.selectExpr("concat('stream/', topic) AS topic", "payload")
        sink = rows.writeStream.format("godwit").options(archive=target, checkpointLocation=f"{folder}/checkpoint-2")
        assert sink.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)

    try:
        spark.read.format("godwit").load().collect()
    except Exception as error:  # of Connect: the text must be that of the option
        found["error"] = str(error)
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main(*sys.argv[1:])
