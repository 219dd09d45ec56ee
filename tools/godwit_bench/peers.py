"""The origin of the peers: programs of Debian or of `make setup`, clients from PyPI. A missing one is an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from godwit.errors import GodwitError

PROGRAMS: Final = ("mosquitto", "nats-server")
"""Each is the name of a program and of its Debian package."""
MODULES: Final = ("nats", "zenoh")
"""Clients for Python; Zenoh's contains its router."""
_MORE_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin", str(Path(sys.executable).parent))
"""Debian has servers in folders that are only in root's PATH; a package of `make setup` contains nats-server."""
_INSTALL_S: Final = 300


def find(program: str) -> str | None:
    """Return the full path of a program, or None."""
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_MORE_FOLDERS)))


def require(
    on_install: Callable[[str], None], *, programs: Sequence[str] = PROGRAMS, modules: Sequence[str] = MODULES
) -> dict[str, str]:
    """Return the full paths of these programs, installing missing ones as root.

    Raises GodwitError, with the command to install them, if one is still missing.
    """
    absent = [module for module in modules if find_spec(module) is None]
    if absent:
        raise GodwitError(
            f"the benchmark needs the Python packages {' and '.join(absent)}, which are not installed: "
            "run `make setup` in a checkout of Godwit"
        )
    missing = [program for program in programs if find(program) is None]
    if missing:
        command = ("apt-get", "install", "--yes", "--no-install-recommends", *missing)
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise _not_installed(missing, "is missing", command)
        on_install(" ".join(command))
        _install(command, missing)
    return {program: path for program in programs if (path := find(program)) is not None}


def _install(command: Sequence[str], missing: list[str]) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for step in (("apt-get", "update"), command):
        try:
            done = subprocess.run(
                step, env=environment, capture_output=True, text=True, timeout=_INSTALL_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise _not_installed(missing, f"could not be installed in {_INSTALL_S} s", command) from None
        if done.returncode != 0 and step is command:  # an old index may do, too
            output = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            raise _not_installed(missing, f"could not be installed ({output})", command)
    still = [program for program in missing if find(program) is None]
    if still:
        raise _not_installed(still, "is missing even after installing it", command)


def _not_installed(programs: Sequence[str], what: str, command: Sequence[str]) -> GodwitError:
    return GodwitError(
        f"the benchmark measures against {' and '.join(programs)}, which {what}: "
        f"run `sudo apt-get update && sudo {' '.join(command)}`, or install it another way, then try again"
    )
