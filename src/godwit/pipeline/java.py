"""The Java that Spark runs on: found, or how to get it.

Spark starts whatever JAVA_HOME says and complains at length if that is too old. So it is looked for here: JAVA_HOME,
the PATH, and where Linux distributions put it; the first that is new enough is taken.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OLDEST: Final = 17
ANSWER_S: Final = 20.0
"""A Java that has not told its version by then is none."""
SYSTEM_FOLDER: Final = Path("/usr/lib/jvm")
PACKAGE: Final = "openjdk-17-jre-headless"
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')


@dataclass(frozen=True)
class Java:
    home: Path
    version: int


def find_java(environment: Mapping[str, str], system_folder: Path = SYSTEM_FOLDER) -> Java | None:
    """The first that is new enough."""
    return next((one for one in _installed(environment, system_folder) if one.version >= OLDEST), None)


def install_command(user: int) -> list[str] | None:
    """What installs it on this machine; None where that is not known."""
    if shutil.which("apt-get") is None:
        return None
    command = ["apt-get", "install", "--yes", "--no-install-recommends", PACKAGE]
    return command if user == 0 else ["sudo", *command]


def missing_text(user: int) -> str:
    """Why nothing can start, and the exact command that changes it."""
    command = install_command(user)
    how = f"run: {' '.join(command)}" if command else "install a JRE (on Debian and Ubuntu: " + PACKAGE + ")"
    return f"Spark needs Java {OLDEST} or newer and none was found: {how}, or set JAVA_HOME to one"


def _installed(environment: Mapping[str, str], system_folder: Path) -> Iterator[Java]:
    seen = set()
    for home in _homes(environment, system_folder):
        real = home.resolve()
        if real not in seen:
            seen.add(real)
            if (version := _version_of(home)) is not None:
                yield Java(home, version)


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
        told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return version_in(told.stderr + told.stdout)


def version_in(text: str) -> int | None:
    """Of what `java -version` says: 17 of "17.0.15", 8 of "1.8.0_292"."""
    found = _VERSION.search(text)
    if found is None:
        return None
    first, second = int(found[1]), int(found[2] or 0)
    return second if first == 1 else first
