"""What the commands of `godwit pipeline` share: packages, Java, a session, the lock, and errors in one sentence."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from godwit.cli.connecting import EXIT_TERMINATED, tell
from godwit.cli.text import safe
from godwit.errors import GodwitError, UsageError
from godwit.net.address import parse_broker

if TYPE_CHECKING:
    from godwit.pipeline.lake import Lake
    from godwit.pipeline.session import Session

PACKAGES: Final = ("pyspark", "deltalake", "pyarrow", "pandas")
MAX_PORT: Final = 65535
ODD: Final = "%\\[]{}*?"
"""Spark takes most of them for patterns, and Delta some for the beginning of another letter."""


@dataclass(frozen=True)
class Spark:
    """How Spark is to be started, as it was typed."""

    master: str
    conf: list[str]
    is_java_installed_unasked: bool

    def settings(self) -> dict[str, str]:
        found = {}
        for text in self.conf:
            name, equals, value = text.partition("=")
            if not equals or not name.startswith("spark."):
                raise UsageError(f"--conf {text!r} is no setting of Spark's; write it as spark.executor.memory=4g")
            found[name] = value
        return found


@dataclass(frozen=True)
class Sources:
    """Which logs are to be read, as it was typed."""

    archives: list[str]
    broker: str
    topics: list[str]
    token_file: Path | None = None
    certificate_file: Path | None = None
    fails_on_data_loss: bool = True

    def options(self) -> dict[str, str]:
        """Of format("godwit")."""
        found = {"archive": ",".join(self.archives or [archive_beside(self.broker)])}
        if self.topics:
            found["topics"] = ",".join(self.topics)
        if self.token_file is not None:
            found["tokenFile"] = str(self.token_file.absolute())
        if self.certificate_file is not None:
            found["certificateFile"] = str(self.certificate_file.absolute())
        if not self.fails_on_data_loss:
            found["failOnDataLoss"] = "false"
        return found


def archive_beside(broker: str) -> str:
    """A broker's archive, unless it was told otherwise: at its host, and its port plus one."""
    host, port = parse_broker(broker)
    if not 0 < port < MAX_PORT:
        raise UsageError(f"the archive of a broker at port {port} cannot be guessed: give it with --archive")
    return f"[{host}]:{port + 1}" if ":" in host else f"{host}:{port + 1}"


def open_lake(address: str, *, must_exist: bool) -> Lake:
    """The lake that somebody means."""
    require_packages()
    from godwit.pipeline.lake import Lake

    if "://" in address:
        return Lake(address)
    path = Path(address).absolute()
    if odd := sorted({letter for letter in str(path) if letter in ODD or not letter.isprintable()}):
        raise UsageError(f"the path of a lake cannot have {' '.join(map(repr, odd))} in it: {address!r}; name another")
    if must_exist and not path.is_dir():
        raise GodwitError(f"there is no lake at {address}: godwit pipeline run makes it, or name another with --lake")
    return Lake(str(path))


def require_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the pipeline needs {' and '.join(missing)}: run pip install 'godwit[spark]'")


def require_java(*, is_installed_unasked: bool) -> None:
    """Finds Java and lets Spark know; else installs it if that is possible and wanted."""
    from godwit.pipeline import java

    found = java.find_java(os.environ)
    user = os.getuid()
    command = java.install_command(user)
    if found is None and user == 0 and command is not None and (is_installed_unasked or _agrees(command)):
        tell(f"running {' '.join(command)}")
        subprocess.run(command, check=False, stdout=sys.stderr)
        found = java.find_java(os.environ)
    if found is None:
        raise GodwitError(java.missing_text(user))
    os.environ["JAVA_HOME"] = str(found.home)


def _agrees(command: list[str]) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return typer.confirm(f"Spark needs Java, which is missing. Install it with {' '.join(command)}?", err=True)


@contextmanager
def waiting(text: str) -> Iterator[Status]:
    """Says on a terminal what is going on; the status can be given other words."""
    status = Status(Text(safe(text)), console=Console(stderr=True))
    if not sys.stderr.isatty():
        yield status
        return
    with status:
        yield status


@contextmanager
def session(spark: Spark, lake: Lake, status: Status, *, purpose: str | None = None) -> Iterator[Session]:
    """A Spark session; with a purpose the lake is ours for that time, and nobody else writes to it."""
    from godwit.pipeline.lock import LakeLock
    from godwit.pipeline.session import log_path, spark_session

    settings = spark.settings()
    require_java(is_installed_unasked=spark.is_java_installed_unasked)
    status.update("starting Spark")
    if purpose is None:
        log = log_path(lake).with_name("query.log")  # a run may be writing to the other one
        with spark_session(spark.master, log, settings) as found:
            yield found
        return
    with LakeLock(lake, purpose) as lock, spark_session(spark.master, log_path(lake), settings) as found:
        lock.share(found)
        yield found


@contextmanager
def explained() -> Iterator[None]:
    """The pipeline's own errors as the command line tells them; SIGTERM ends the block as Ctrl-C does."""
    require_packages()
    from godwit.pipeline.errors import PipelineError
    from godwit.pipeline.lake import LAKE_ERRORS

    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    except PipelineError as error:
        raise GodwitError(str(error)) from error
    except LAKE_ERRORS as error:
        told = next(iter(str(error).splitlines()), "")
        raise GodwitError(f"the lake cannot be read or written: {type(error).__name__}: {told}") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)
