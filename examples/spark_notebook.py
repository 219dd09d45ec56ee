# %% [markdown]
# # A broker's log in Spark
#
# Open this file as a notebook (VS Code, PyCharm, Jupytext), or run it: `python examples/spark_notebook.py [HOST:PORT]`,
# with the address of an archive. Start `godwit broker` and `godwit sensors --duration 60` before.

# %%
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import godwit.spark

ARCHIVE = sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "localhost:50001"
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

spark = (
    SparkSession.builder.master("local[*,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.shuffle.partitions", "4")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
godwit.spark.register(spark)

# %% [markdown]
# ## All logged messages
#
# `broker` (the id of the broker's log) and `offset` identify a message permanently.

# %%
past = spark.read.format("godwit").option("archive", ARCHIVE).option("topics", "home/#").load()
counts = past.groupBy("topic").agg(sf.count("*").alias("messages"), sf.max("received").alias("last"))
counts.orderBy("topic").show(truncate=False)

# %% [markdown]
# ## Numbers from JSON
#
# `try_cast` and `get_json_object` return null for other payloads; `cast` would end the query with an error.

# %%
celsius = sf.get_json_object(sf.col("payload").cast("string"), "$.celsius").try_cast("double")
readings = past.select("topic", "received", celsius.alias("celsius")).where("celsius IS NOT NULL")
by_minute = readings.groupBy("topic", sf.window("received", "1 minute").start.alias("minute"))
means = by_minute.agg(sf.count("*").alias("readings"), sf.round(sf.avg("celsius"), 2).alias("mean"))
means.orderBy("topic", "minute").show(truncate=False)

# %% [markdown]
# ## The same as a stream
#
# `availableNow` reads to the current end of the log; without it the query does not end. With a checkpoint, the next
# query resumes at the end of this one.

# %%
stream = spark.readStream.format("godwit").option("archive", ARCHIVE).option("maxRowsPerTrigger", "1000").load()
query = (
    stream.groupBy("topic").count().writeStream.format("memory").queryName("counts").outputMode("complete")
    .trigger(availableNow=True).start()
)  # fmt: skip
query.awaitTermination()
spark.table("counts").orderBy(sf.desc("count")).show(truncate=False)
print(f"{len(query.recentProgress)} micro-batches")

# %% [markdown]
# ## Messages to the broker
#
# All rows are written, or none; with the option `query`, a repeated write does nothing. To see the messages:
# `godwit sub 'reports/#' --from earliest`.

# %%
warmest = readings.groupBy("topic").agg(sf.max("celsius").alias("celsius"))
(
    warmest.selectExpr("concat('reports/', topic) AS topic", "to_json(struct(celsius)) AS payload")
    .write.format("godwit").options(archive=ARCHIVE, publisher="notebook", query="warmest-1").mode("append").save()
)  # fmt: skip

# %%
spark.stop()
