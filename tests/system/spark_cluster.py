"""A standalone cluster of Spark's on this machine: a master and two workers, each a JVM with a host of its own.

The workers' Python is another one than that of the tests: the interpreter that the virtual environment was made from,
with a folder in which there is what executors need, and no godwit.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from godwit.pipeline.java import find_java

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark tries a slow task a second time on another host only."""
START_S = 180.0
CORES = "2"
MEMORY = "1g"
NEEDED = ("pyarrow", "pandas", "numpy", "google", "dateutil", "pytz", "tzdata", "six.py")
"""pyarrow, pandas and protobuf, with what they import; Spark brings its own Python modules."""


class Cluster:
    """Where it is, and what a driver has to know of it."""

    def __init__(self, folder: Path) -> None:
        self.master = ""
        self._folder = folder
        self._packages = _packages(folder / "packages")
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """For the driver's process: its executors' Python has no godwit."""
        return _without_godwit(self._packages)

    def start(self) -> None:
        log = self._run("master", "master.Master", "--host", HOSTS[0], "--port", "0", "--webui-port", "0")
        self.master = _said(log, r"Starting Spark master at (spark://\S+)")
        for number, host in enumerate(HOSTS):
            arguments = ("--host", host, "--webui-port", "0", "--cores", CORES, "--memory", MEMORY)
            work = ("--work-dir", str(self._folder / f"work-{number}"))
            log = self._run(f"worker-{number}", "worker.Worker", *arguments, *work, self.master, host=host)
            _said(log, r"(Successfully registered with master)")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)  # a worker ends its executors
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _run(self, name: str, kind: str, *arguments: str, host: str = HOSTS[0]) -> Path:
        home = Path(pyspark.__file__).parent
        log = self._folder / f"{name}.log"
        settings = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": host, "PYTHONPATH": str(self._packages)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=_clean() | settings,
            )
        self._processes.append(process)
        return log


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """One that is ready."""
    folder.mkdir(exist_ok=True)
    found = Cluster(folder)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def _packages(folder: Path) -> Path:
    """Links to those that executors need. The file that makes godwit known to the virtual environment is not there."""
    folder.mkdir()
    site = Path(sysconfig.get_path("purelib"))
    for name in NEEDED:
        if (site / name).exists():
            (folder / name).symlink_to(site / name)
    return folder


def bare_environment(folder: Path) -> dict[str, str]:
    """The environment of a program whose Spark has a Python without godwit; its packages are linked in this folder."""
    return _without_godwit(_packages(folder))


def _without_godwit(packages: Path) -> dict[str, str]:
    return _clean() | {"PYSPARK_PYTHON": _bare_python(), "PYTHONPATH": str(packages)}


def _bare_python() -> str:
    """The interpreter behind the virtual environment, which knows nothing of what is installed in it."""
    return str(getattr(sys, "_base_executable", sys.executable))


def _clean() -> dict[str, str]:
    """The environment of the tests without what a program in it would find packages by, and with Java."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GODWIT_", "PYSPARK_", "SPARK_"))}
    kept.pop("VIRTUAL_ENV", None)
    java = find_java(os.environ)
    return kept | (java.variables if java is not None else {})


def _said(log: Path, pattern: str) -> str:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} does not say {pattern!r}: {log.read_text(errors='replace')[-2000:]}")
