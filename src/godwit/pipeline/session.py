"""A Spark session for the pipeline: quiet, set up for it, and ended for certain.

What Spark and its Java say goes to files in the lake, which messages name. The session ends within seconds whatever it
is doing: politely if it can, else its JVM is killed, which every table stands.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from pyspark import SparkConf, SparkContext, cloudpickle, java_gateway
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import godwit.spark
from godwit import pipeline
from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError
from godwit.pipeline.scratch import scratch_folder

Session: TypeAlias = SparkSession
CLUSTER_PARTITIONS: Final = 8
"""Of a shuffle on a cluster; on one machine there are as many as processors. The stateful query keeps those that it
began with: each has a state store of its own, so that few are quick."""
POLITE_S: Final = 4.0
"""So long queries and session may take to end by themselves."""
LOGS: Final = "_logs"
LOG_BYTES: Final = "10MB"
_ROCKS: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_ERRORS_LOGGER: Final = "SQLQueryContextLogger"
"""PySpark's, which prints every error of a question a second time."""
_LOG4J: Final = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c: %m%n%ex
appender.file.policies.type = SizeBasedTriggeringPolicy
appender.file.policies.size = {size}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""


def log_path(lake: Lake) -> Path:
    """Where Spark's warnings and errors go."""
    if "://" not in lake.address:
        return Path(lake.address) / LOGS / "spark.log"
    return Path(tempfile.gettempdir()) / f"godwit-{os.getuid()}" / "spark.log"


@contextmanager
def spark_session(master: str, log: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session for the time of the block. `settings`: Spark's own, in place of ours."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if log.parent.lstat().st_uid != os.getuid():  # in a folder of everybody's, a stranger may have been first
            raise PermissionError(errno.EPERM, "its folder belongs to somebody else")
        log.with_suffix(".out").touch()
    except OSError as error:
        raise PipelineError(
            f"cannot write Spark's log {log}: {error.strerror}; check the rights of the lake"
        ) from error
    if _is_local(master):  # executors elsewhere have a Python of their own
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    with scratch_folder() as folder, log.with_suffix(".out").open("wb") as output:
        quiet = folder / "log4j2.properties"
        quiet.write_text(_LOG4J.format(path=log, size=LOG_BYTES), encoding="utf-8")
        with _python_log(log):
            session, process = _started(_conf(master, quiet, folder, settings or {}), output, log)
            try:
                godwit.spark.register(session)
                cloudpickle.register_pickle_by_value(pipeline)  # type: ignore[no-untyped-call]  # for executors
                yield session
            finally:
                _end(session, process)


def _conf(master: str, quiet: Path, folder: Path, settings: Mapping[str, str]) -> SparkConf:
    ours = {
        "spark.app.name": "godwit pipeline",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        # What Java leaves in its folder for temporary files goes with ours, however it ends.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet.as_uri()} -Djava.io.tmpdir={folder}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str((os.cpu_count() or 1) if _is_local(master) else CLUSTER_PARTITIONS),
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.streaming.stateStore.providerClass": _ROCKS,
        "spark.sql.streaming.numRecentProgressUpdates": "16",
        "spark.scheduler.mode": "FAIR",  # between pools: gold must not stand before micro-batches
        "spark.sql.streaming.stopTimeout": f"{POLITE_S / 2:g}s",
        "spark.python.authenticate.socketTimeout": "120s",  # its own 15 s are too short for a very busy machine
    }
    return SparkConf().setMaster(master).setAll(list((ours | dict(settings)).items()))


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _started(conf: SparkConf, output: IO[bytes], log: Path) -> tuple[SparkSession, Any]:
    """The session, and the process of its JVM."""
    usual = signal.getsignal(signal.SIGINT)
    gateway = None
    with _children() as children:
        try:
            launch: Any = java_gateway.launch_gateway
            gateway = launch(conf, popen_kwargs={"stdout": output, "stderr": output})
            context = SparkContext(conf=conf, gateway=gateway)
        except BaseException as error:  # whatever Java, py4j or Spark raise where they do not start, and Ctrl-C
            for child in children:
                child.kill()
                child.wait()
            if gateway is not None:
                SparkContext._gateway = SparkContext._jvm = None
            if not isinstance(error, Exception):
                raise
            raise PipelineError(_start_text(error, conf.get("spark.master"), log, Path(output.name))) from error
        finally:
            # PySpark's own would talk to the JVM in the middle of whatever the program tells it.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, usual)
    # Else it prints a traceback when the JVM ends before it: it would be told of accumulators, which we have none of.
    context._accumulatorServer.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    return SparkSession(context), gateway.proc


@contextmanager
def _children() -> Iterator[list[Any]]:
    """The processes that PySpark starts in this block: it forgets one if it is interrupted while it waits for it."""
    found: list[Any] = []
    module: Any = java_gateway
    popen = module.Popen

    def started(*arguments: Any, **more: Any) -> Any:
        found.append(popen(*arguments, **more))
        return found[-1]

    module.Popen = started
    try:
        yield found
    finally:
        module.Popen = popen


def _start_text(error: Exception, master: str | None, log: Path, output: Path) -> str:
    """With what Java said last, if it did."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines() or str(error).splitlines()
    told = [line.strip() for line in lines if line.strip()]
    cause = next(
        (line for line in reversed(told) if "Exception" in line or line.startswith("Error")), "".join(told[:1])
    )
    cause = cause.removeprefix('Exception in thread "main" ').rstrip(".") or type(error).__name__
    return f"Spark did not start with --master {master}: {cause}; what it said itself is in {log} and {output}"


def _end(session: SparkSession, process: Any) -> None:
    """In a thread of its own: this one may have been interrupted in the middle of a call."""

    def politely() -> None:
        with suppress(Exception):  # the JVM may be gone
            session.sparkContext.cancelAllJobs()
            for query in session.streams.active:
                with suppress(PySparkException):
                    query.stop()
            session.stop()

    thread = threading.Thread(target=politely, name="godwit-spark-end", daemon=True)
    thread.start()
    thread.join(POLITE_S)
    process.kill()  # it has nothing left to do, and takes its time
    process.wait()
    process.stdin.close()
    gateway = SparkContext._gateway
    if gateway is not None:
        with suppress(Exception):  # whatever py4j thinks of an end like that
            gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


@contextmanager
def _python_log(log: Path) -> Iterator[None]:
    """What PySpark and py4j log in this process goes there too, not between the lines of the command."""
    handler = logging.FileHandler(log, delay=True)
    # The root too: py4j tells it of a JVM that ended in the middle of a call.
    loggers = [logging.getLogger(name) for name in ("", "py4j", "pyspark")] + [PySparkLogger.getLogger(_ERRORS_LOGGER)]
    before = [(logger, list(logger.handlers), logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers[:] = [handler]
        logger.propagate = False
    try:
        yield
    finally:
        for logger, handlers, propagates in before:
            logger.handlers[:] = handlers or [logging.NullHandler()]
            logger.propagate = propagates
        handler.close()
