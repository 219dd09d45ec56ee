"""One Spark session for all tests that need one, as small as it goes, and a real broker to read from."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

START_S = 120.0
_TYPES: dict[str, DataType] = {
    "bigint": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "int": IntegerType(),
    "string": StringType(),
}


def small_session(master: str = "local[2,4]", **more: str) -> SparkSession:
    """`more`: settings of Spark's, with dots written as two underscores."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("godwit-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.authenticate.socketTimeout": "120s",  # as the pipeline's own session
        # The optimising compiler of the JVM takes half the processor time of a session that lives for minutes.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    } | {name.replace("__", "."): value for name, value in more.items()}
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("FATAL")
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # errors come as exceptions, too
    return session


def columns(ddl: str) -> StructType:
    """Return the schema of a text such as "topic string, payload binary". PySpark's own parser needs a session."""
    fields = (field.split() for field in ddl.split(","))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in fields])


class BrokerProcess:
    """A broker's process with its archive."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        command = [
            sys.executable,
            "-c",
            "from godwit.cli import main; main()",
            "broker",
            "--listen",
            "127.0.0.1:0",
            "--data",
            str(data),
        ]
        self._process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        self.address = self.archive = ""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"archive on (\S+)", line):
                self.archive = found[1]
            if found := re.search(r"listening on udp://(\S+)", line):
                self.address = found[1]
            if self.address and self.archive:
                break
        else:
            raise AssertionError(f"the broker ended with {self._process.wait()}")
        self._reader = threading.Thread(target=self._process.stdout.read, daemon=True)
        self._reader.start()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._ended()

    def stop(self) -> None:
        self._process.terminate()
        self._ended()

    def _ended(self) -> None:
        self._process.wait(START_S)
        self._reader.join(START_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def running_broker(data: Path, *options: str) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(data, *options)
    try:
        yield broker
    finally:
        broker.kill()
