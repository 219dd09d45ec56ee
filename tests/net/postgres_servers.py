"""PostgreSQL servers on this machine, for tests of clusters: a primary, and a standby if needed."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg
from tests.ports import free_ports

from godwit.net.postgres_engine import PostgresSettings

START_S = 120.0
PASSWORD = "not a secret"
UNPRIVILEGED = 65534
ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "PGPASSWORD": PASSWORD}


def find_programs() -> Path | None:
    """Return the folder with the newest initdb and postgres, or None."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name.zfill(3))
    if found := shutil.which("initdb"):
        folders.insert(0, Path(found).resolve().parent)
    return next((each for each in reversed(folders) if (each / "initdb").exists()), None)


def find_user() -> int | None:
    """Return the user for the servers, which refuse to run as root; None: this one."""
    if os.geteuid() != 0:
        return None
    return {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}.get("postgres", UNPRIVILEGED)


class PostgresServers:
    """A primary, and a standby after `add_standby`. Their folder is deleted by `stop`."""

    def __init__(self) -> None:
        programs = find_programs()
        assert programs is not None
        self._programs = programs
        self._user = find_user()
        self.folder = Path(tempfile.mkdtemp(prefix="godwit-postgres-"))  # the folders of pytest belong to one user
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self.ports = free_ports(2)
        self.options: list[str] = []
        self.processes: list[subprocess.Popen[bytes] | None] = [None, None]
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "password").chmod(0o644)
        self._run(
            "initdb", "-D", str(self.folder / "s0"), "-U", "postgres", "-A", "scram-sha-256", "--no-locale", "-N",
            "-E", "UTF8", f"--pwfile={self.folder / 'password'}",
        )  # fmt: skip

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=ENVIRONMENT, user=self._user, extra_groups=self._groups,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()

    @property
    def _groups(self) -> list[int] | None:
        return None if self._user is None else []

    def url(self, number: int = 0, password: str = PASSWORD) -> str:
        return f"postgresql://postgres:{password.replace(' ', '%20')}@127.0.0.1:{self.ports[number]}/postgres"

    def settings(self, name: str) -> PostgresSettings:
        """Return settings for one server alone."""
        return PostgresSettings(name=name, servers=[self.url()], is_single_allowed=True)

    def start(self, number: int = 0, *options: str) -> None:
        """Start a server, with these and earlier options, and wait until it answers."""
        if number == 0:
            self.options += options
        deadline = time.monotonic() + START_S
        command = [
            str(self._programs / "postgres"), "-D", str(self.folder / f"s{number}"), "-p", str(self.ports[number]),
            "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "shared_buffers=16MB",
            *(word for option in (self.options if number == 0 else options) for word in ("-c", option)),
        ]  # fmt: skip
        while True:
            process = self.processes[number]
            if process is None or process.poll() is not None:  # processes of a killed server may still hold its memory
                with (self.folder / f"s{number}.log").open("ab") as log:
                    self.processes[number] = subprocess.Popen(
                        command, cwd=self.folder, env=ENVIRONMENT, user=self._user, extra_groups=self._groups,
                        stdout=log, stderr=log,
                    )  # fmt: skip
            try:
                self.execute("SELECT 1", number)
                return
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                log_text = (self.folder / f"s{number}.log").read_text(errors="replace")
                assert time.monotonic() < deadline, log_text[-2000:]
                time.sleep(0.1)

    def add_standby(self) -> None:
        """Make a copy of the primary, which follows it as `second`."""
        source = f"host=127.0.0.1 port={self.ports[0]} user=postgres password='{PASSWORD}' application_name=second"
        self._run("pg_basebackup", "-D", str(self.folder / "s1"), "-d", source, "-R", "-X", "stream", "-c", "fast")
        self.start(1)

    def execute(self, sql: str, number: int = 0) -> list[Any]:
        """Run a statement on a server."""

        async def run() -> list[Any]:
            connection = await asyncpg.connect(self.url(number), timeout=5, command_timeout=60)
            try:
                return list(await connection.fetch(sql))
            finally:
                connection.terminate()

        return asyncio.run(run())

    def kill(self, number: int = 0) -> None:
        """Kill a server without warning. Its other processes notice that and end."""
        process, self.processes[number] = self.processes[number], None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        for process in self.processes:
            if process is not None:
                process.send_signal(signal.SIGQUIT)  # at once, without waiting for clients
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
