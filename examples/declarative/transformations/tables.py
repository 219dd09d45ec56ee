"""The messages of a broker's log, and the readings in them: three tables that each run extends."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from godwit.pipeline import declarative

spark = SparkSession.active()


@dp.table(comment="One row per message: (broker, offset).")
def bronze_messages() -> DataFrame:
    # format("godwit") is registered by itself, because godwit is installed.
    options = {"archive": spark.conf.get("godwit.archive"), "topics": spark.conf.get("godwit.topics")}
    return spark.readStream.format("godwit").options(**options, includeHeaders="true").load()


@dp.table(comment="One row per number in a message.")
def silver_readings() -> DataFrame:
    return declarative.silver_readings(spark.readStream.table("bronze_messages"), has_content_type=True)


@dp.table(comment="Messages that are not readings, with the reason.")
def silver_quarantine() -> DataFrame:
    return declarative.silver_quarantine(spark.readStream.table("bronze_messages"), has_content_type=True)
