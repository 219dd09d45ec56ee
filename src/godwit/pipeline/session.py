"""Spark sessions for the pipeline: configured, without output on the terminal, and ended within seconds.

The messages of Spark and Java go to log files in the lake. If a session does not end by itself, its JVM is killed,
which cannot damage a table.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import logging
import os
import shutil
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
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake

Session: TypeAlias = SparkSession
"""For packages that do not import pyspark."""
CLUSTER_PARTITIONS: Final = 8
"""Partitions of a shuffle on a cluster; on one machine, the number of processors. Steps are small."""
JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a session on one machine, where Java starts tasks of Python and does little else. Compiling its code twice, and
the threads of another collector, would take half of the processor time of a start."""
STOP_TIMEOUT_S: Final = 4.0
"""Time for queries and session to end before the JVM is killed."""
LOGS: Final = "_logs"
LOG_BYTES: Final = "10MB"
SCRATCH_PREFIX: Final = "godwit-spark-"
_SCRATCH_LOCK: Final = "in-use"
_ERRORS_LOGGER: Final = "SQLQueryContextLogger"
"""A logger of PySpark that repeats the error of each failed query."""
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
    """Return the file for warnings and errors of Spark."""
    if "://" not in lake.address:
        return Path(lake.address) / LOGS / "spark.log"
    return Path(tempfile.gettempdir()) / f"godwit-{os.getuid()}" / "spark.log"


@contextmanager
def spark_session(master: str, log: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a session for the time of the block.

    `master` is the address of a cluster or local[*]; `log` the file for Spark's messages; `settings` override the
    pipeline's settings of Spark. Raise PipelineError if the session does not start.
    """
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if log.parent.lstat().st_uid != os.getuid():  # in a shared folder, another user may have created it first
            raise PermissionError(errno.EPERM, "its folder belongs to another user")
        log.with_suffix(".out").touch()
    except OSError as error:
        raise PipelineError(
            f"cannot write Spark's log {log}: {error.strerror}; check the permissions of the lake"
        ) from error
    if _is_local(master):  # executors on other machines have their own Python
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    with scratch_folder() as folder, log.with_suffix(".out").open("wb") as output:
        log4j = folder / "log4j2.properties"
        log4j.write_text(_LOG4J.format(path=log, size=LOG_BYTES), encoding="utf-8")
        # For executors. PySpark finds format("godwit") by itself, when it is used: registering it takes a second.
        godwit.spark.pickle_by_value()
        cloudpickle.register_pickle_by_value(pipeline)  # type: ignore[no-untyped-call]
        with _python_logs_to(log):
            session, process = _start(_conf(master, log4j, folder, settings or {}), output, log)
            try:
                yield session
            finally:
                _end(session, process)


@contextmanager
def scratch_folder(prefix: str = SCRATCH_PREFIX) -> Iterator[Path]:
    """Create a folder for temporary files, of Java or of another library, for the time of the block.

    A killed process cannot delete its folder, so the next one does. A lock in each folder shows whether it is in use.
    """
    _delete_unused(Path(tempfile.gettempdir()), prefix)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name,
        (Path(name) / _SCRATCH_LOCK).open("wb") as held,
    ):
        fcntl.flock(held, fcntl.LOCK_EX)
        yield Path(name)


def _delete_unused(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # it is in use, or is being deleted by another process
            if folder.lstat().st_uid == os.getuid():
                with (folder / _SCRATCH_LOCK).open("rb") as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)


def _conf(master: str, log4j: Path, folder: Path, settings: Mapping[str, str]) -> SparkConf:
    ours = {
        "spark.app.name": "godwit pipeline",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        # Java's temporary files are deleted with the scratch folder, however the JVM ends.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()} -Djava.io.tmpdir={folder}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str((os.cpu_count() or 1) if _is_local(master) else CLUSTER_PARTITIONS),
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.scheduler.mode": "FAIR",  # between pools: gold must not delay other queries
        "spark.python.authenticate.socketTimeout": "120s",  # the default of 15 s is too short for a busy machine
    }
    if _is_local(master):
        ours[JAVA_OPTIONS] = QUICK_START
    return SparkConf().setMaster(master).setAll(list((ours | dict(settings)).items()))


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _start(conf: SparkConf, output: IO[bytes], log: Path) -> tuple[SparkSession, Any]:
    """Start a session. Return it with the process of its JVM."""
    sigint = signal.getsignal(signal.SIGINT)
    gateway = None
    with _started_processes() as processes:
        try:
            launch: Any = java_gateway.launch_gateway
            gateway = launch(conf, popen_kwargs={"stdout": output, "stderr": output})
            context = SparkContext(conf=conf, gateway=gateway)
        except BaseException as error:  # Java, py4j and Spark raise many types; and Ctrl-C
            for process in processes:
                process.kill()
                process.wait()
            if gateway is not None:
                SparkContext._gateway = SparkContext._jvm = None
            if not isinstance(error, Exception):
                raise
            raise PipelineError(_start_text(error, conf.get("spark.master"), log, Path(output.name))) from error
        finally:
            # PySpark's handler would call the JVM in the middle of any other call.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, sigint)
    # The server of accumulators, which are not used, would print a traceback if the JVM exits first.
    context._accumulatorServer.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    if _is_local(context.master or ""):
        threading.Thread(target=_start_workers, args=(context,), name="godwit-spark-workers", daemon=True).start()
    return SparkSession(context), gateway.proc


def _start_workers(context: SparkContext) -> None:
    """Start the processes of Python that run tasks while Java, which uses one processor, makes the session."""
    with suppress(Exception):  # the session may end meanwhile; and a task reports its errors itself
        count = max(1, context.defaultParallelism)
        context.parallelize(range(count), count).foreach(_import_libraries)


def _import_libraries(number: int) -> None:
    """Import the libraries of the tasks, on an executor."""
    for name in ("numpy", "pyarrow.compute", "pyarrow.flight", "pyarrow.parquet"):
        importlib.import_module(name)


@contextmanager
def _started_processes() -> Iterator[list[Any]]:
    """Collect the processes that PySpark starts in this block: if it is interrupted, it leaves one running."""
    found: list[Any] = []
    module: Any = java_gateway
    popen = module.Popen

    def start(*arguments: Any, **more: Any) -> Any:
        found.append(popen(*arguments, **more))
        return found[-1]

    module.Popen = start
    try:
        yield found
    finally:
        module.Popen = popen


def _start_text(error: Exception, master: str | None, log: Path, output: Path) -> str:
    """Return the error text for a session that did not start, with Java's last error if there is one."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines() or str(error).splitlines()
    written = [line.strip() for line in lines if line.strip()]
    cause = next(
        (line for line in reversed(written) if "Exception" in line or line.startswith("Error")), "".join(written[:1])
    )
    cause = cause.removeprefix('Exception in thread "main" ').rstrip(".") or type(error).__name__
    return f"Spark did not start with --master {master}: {cause}; Spark's own messages are in {log} and {output}"


def _end(session: SparkSession, process: Any) -> None:
    """Stop the session in another thread, as this one may have been interrupted in a call; then kill the JVM."""

    def stop() -> None:
        with suppress(Exception):  # the JVM may have exited
            session.sparkContext.cancelAllJobs()
            for query in session.streams.active:
                with suppress(PySparkException):
                    query.stop()
            session.stop()

    thread = threading.Thread(target=stop, name="godwit-spark-end", daemon=True)
    thread.start()
    thread.join(STOP_TIMEOUT_S)
    process.kill()  # it has nothing left to do, and its own exit is slow
    process.wait()
    process.stdin.close()
    gateway = SparkContext._gateway
    if gateway is not None:
        with suppress(Exception):  # py4j raises many types without a JVM
            gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


@contextmanager
def _python_logs_to(log: Path) -> Iterator[None]:
    """Send the log records of PySpark and py4j in this process to the file, not to the terminal."""
    handler = logging.FileHandler(log, delay=True)
    # The root logger, too: py4j uses it for a JVM that exits during a call.
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
