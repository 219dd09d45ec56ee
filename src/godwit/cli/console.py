"""`godwit console`: the web console of a broker."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from godwit.cli.connection import DEFAULT_BROKER, BrokerOption
from godwit.cli.pipeline import ArchiveOption, CertificateOption, TokenOption
from godwit.cli.pipeline_run import SourceOptions
from godwit.cli.text import safe
from godwit.errors import ConfigurationError, GodwitError, UsageError
from godwit.install import pip_command

if TYPE_CHECKING:
    from godwit.console.server import ConsoleServer
    from godwit.net.broker_archive import Notices
    from godwit.net.cluster_service import ClusterService
    from godwit.net.service import Service

CONSOLE_LISTEN: Final = "127.0.0.1:8080"
CONSOLE_PORT: Final = 8080
CONSOLE_INTERVAL_S: Final = 2.0
"""How often a broker with a console publishes its figures, at least."""
END_WITH_INPUT: Final = "GODWIT_CONSOLE_ENDS_WITH_INPUT"
"""Variable of a console that ends when its standard input is closed, so that it does not outlive its broker."""
ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_running: set[asyncio.Task[None]] = set()


def register(root: typer.Typer) -> None:
    """Add `godwit console`."""
    root.command("console", epilog="Example: godwit console --broker localhost:50000")(console)


def missing_packages() -> str:
    """Return what to install for the console; empty if nothing is missing."""
    if importlib.util.find_spec("aiohttp") is None:
        return f"the console needs aiohttp: run {pip_command('console')}"
    return ""


def console(
    broker: BrokerOption = DEFAULT_BROKER,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="TCP address for browsers. Port 0 takes any free port.")
    ] = CONSOLE_LISTEN,
    lake: Annotated[
        str | None,
        typer.Option("--lake", metavar="DIR", help="Location of the pipeline's tables, for the page about them."),
    ] = None,
    archive: ArchiveOption = None,
    token_file: TokenOption = None,
    certificate_file: CertificateOption = None,
    pipeline_config: Annotated[
        Path | None,
        typer.Option(
            "--pipeline-config",
            metavar="FILE",
            help="Configuration of the pipeline, for requeuing its quarantine.",
            show_default="pipeline.toml in the lake, if there is one",
        ),
    ] = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            "--host-name",
            metavar="NAME",
            help="Further host name under which browsers open the console, as behind a proxy; may be repeated.",
            show_default="localhost, the name of this machine, and IP addresses",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Certificate in PEM, for TLS. SIGHUP reads it again."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Key of the certificate, in PEM.")
    ] = None,
) -> None:
    """Serve the web console of a broker until Ctrl-C or SIGTERM.

    It is an ordinary client of the broker. Without access rules every browser that reaches it may do everything; with
    them a person logs in with the name and the secret of a client, and has exactly that client's rights.
    """
    if missing := missing_packages():
        raise GodwitError(missing)
    from godwit.net import loop
    from godwit.net.address import parse_broker
    from godwit.net.broker_archive import is_local

    host, port = parse_broker(listen, default_port=CONSOLE_PORT)
    if (certificate is None) != (key is None):
        raise UsageError("--certificate and --key belong together: give both, or none")
    tls = None if certificate is None or key is None else ConsoleTls(certificate, key)
    if not is_local(listen) and tls is None:
        typer.echo(
            f"warning: other machines can reach {safe(listen)}, and secrets travel there without encryption: "
            "give --certificate and --key, put a proxy with TLS in front of it, or listen on 127.0.0.1",
            err=True,
        )
    if lake is not None and importlib.util.find_spec("deltalake") is None:
        raise UsageError(f"--lake needs the packages of the pipeline: run {pip_command('spark')}")
    for option, value in (
        ("--pipeline-config", pipeline_config),
        ("--archive", archive),
        ("--token-file", token_file),
        ("--certificate-file", certificate_file),
    ):
        if value and lake is None:
            raise UsageError(f"{option} needs --lake, the location of the pipeline's tables")
    from godwit.console.lake import ConsoleLake
    from godwit.console.server import ConsoleServer

    shown = None
    if lake is not None:
        source = SourceOptions(archive or [], broker, [], token_file, certificate_file)
        source.warn_of_plain_token()
        shown = ConsoleLake(lake, source.options(), None if pipeline_config is None else str(pipeline_config))
    server = ConsoleServer(broker, lake=shown, host_names=host_name or [])
    loop.run(_serve(server, host, port, tls, end_with_input=END_WITH_INPUT in os.environ))


class ConsoleTls:
    """The certificate of the console, which may be replaced while it runs."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises ConfigurationError if the files are unusable, or other users can read the key."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._files = (certificate, key)
        self._load(certificate, key)

    def _load(self, certificate: Path, key: Path) -> None:
        from godwit.net.listener_tls import load_certificate
        from godwit.net.tls import check_private

        check_private(key)
        try:
            load_certificate(self.context, certificate, key)
        except OSError as error:  # also ssl.SSLError
            raise ConfigurationError(
                f"the certificate {certificate} with the key {key} is unusable ({error}): check both files"
            ) from error
        self._files = (certificate, key)

    def reload(self, certificate: Path | None = None, key: Path | None = None) -> None:
        """Read the files again, or other ones. After an error the former certificate remains in use."""
        try:
            self._load(certificate or self._files[0], key or self._files[1])
        except ConfigurationError as error:
            typer.echo(f"warning: the certificate of the console stays as it was: {safe(str(error))}", err=True)


class ConsoleFiles(msgspec.Struct, array_like=True):
    """A line that a broker sends to its console: the files of the certificate to use from now on."""

    certificate: str
    key: str


class ConsoleInput:
    """The input of a console that ends with its broker: ConsoleFiles in JSON, one a line."""

    def __init__(self, stopping: asyncio.Event, tls: ConsoleTls | None) -> None:
        self._stopping = stopping
        self._tls = tls
        self._rest = b""

    def handle_readable(self) -> None:
        """Read the standard input; its end stops the console."""
        data = os.read(0, 65_536)
        if not data:
            self._stopping.set()
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._tls is not None:
            files = msgspec.json.decode(lines[-1], type=ConsoleFiles)
            self._tls.reload(Path(files.certificate), Path(files.key))


def run_console(service: Service | ClusterService, *, listen: str, notices: Notices) -> None:
    """Start the console of a broker as a process, which ends with the broker. Call it in the broker's event loop."""
    from godwit.net.broker_archive import is_local

    named, port, *_ = service.addresses[0]
    host = ANY_HOST.get(str(named), str(named))
    scheme = "udps" if service.configuration.security.plain == "refuse" else "udp"
    address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    command = [sys.executable, "-m", "godwit", "console", "--broker", address, "--listen", listen]
    is_exposed = not is_local(listen)
    files = service.security.certificate_files(is_exposed=is_exposed)
    if files is not None:
        command += ["--certificate", str(files[0]), "--key", str(files[1])]
    task = asyncio.get_running_loop().create_task(_watch(command, service, notices, is_exposed=is_exposed))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _watch(command: list[str], service: Service | ClusterService, notices: Notices, *, is_exposed: bool) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, END_WITH_INPUT: "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    has_tls = "--certificate" in command
    send = process.stdin.write

    def on_reload() -> None:
        files = service.security.certificate_files(is_exposed=is_exposed)
        if (files is not None) != has_tls:
            text = "a console with TLS instead of without, or the reverse, needs a restart of the broker"
            notices.write("warning", text, {})
        elif files is not None and process.returncode is None:
            send(msgspec.json.encode(ConsoleFiles(str(files[0]), str(files[1]))) + b"\n")

    service.on_reload = on_reload
    try:
        async for line in process.stdout:
            text = line.decode("utf-8", "replace").strip()
            notices.write("console", text, {"url": text.rpartition(" ")[2]})
        code = await process.wait()
        notices.write("warning", f"the console has ended with exit code {code}: see standard error", {})
    finally:
        if process.returncode is None:
            process.terminate()


async def _serve(server: ConsoleServer, host: str, port: int, tls: ConsoleTls | None, *, end_with_input: bool) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    await server.start(host, port, tls=None if tls is None else tls.context)
    try:
        if sys.platform != "win32":
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stopping.set)
            if tls is not None:
                loop.add_signal_handler(signal.SIGHUP, tls.reload)
        if end_with_input:
            loop.add_reader(0, ConsoleInput(stopping, tls).handle_readable)
        typer.echo(f"console on {server.url}")
        sys.stdout.flush()
        await stopping.wait()
    finally:
        await server.stop()
