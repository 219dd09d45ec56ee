"""`godwit broker`, `godwit config` and `godwit passwd`: run a broker, check its configuration, and make secrets."""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from godwit.cli.console import CONSOLE_INTERVAL_S, CONSOLE_LISTEN, missing_packages, run_console
from godwit.cli.streams import discard_output
from godwit.cli.text import count, safe
from godwit.errors import ConfigurationError, GodwitError, UsageError

if TYPE_CHECKING:
    from godwit.server.configuration import Configuration

DEFAULT_DATA: Final = "godwit-data"
NO_ARCHIVE: Final = "none"
SECRET_BYTES: Final = 24

config_app = typer.Typer(no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `godwit broker`, `godwit config` and `godwit passwd`."""
    root.command("broker", epilog="Example: godwit broker --listen 127.0.0.1:50000 --listen '[::1]:50000'")(broker)
    root.add_typer(config_app, name="config")
    root.command("passwd", epilog="Example: godwit passwd s1 --config b.toml --allow publish --topic 'home/#'")(passwd)


def broker(
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="UDP address to listen on; may be repeated. Port 0 takes any free port.",
            show_default="127.0.0.1:50000, this machine only",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the log, created if it does not exist.",
            show_default="./godwit-data, unless the configuration names one",
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Keep a bounded log in memory instead, which ends with the broker."),
    ] = False,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="TCP address that serves the log in bulk (Arrow Flight), or `none`.",
            show_default="host of the first listener, its port plus one",
        ),
    ] = None,
    mqtt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="TCP address for MQTT clients, also as ws://HOST:PORT/path; may be repeated.",
            show_default="none, unless the configuration has [mqtt]",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="TCP address that serves metrics for Prometheus, /healthz, /readyz and /activez.",
            show_default="none, unless the configuration has [metrics]",
        ),
    ] = None,
    console: Annotated[
        bool, typer.Option("--console", help="Also serve the web console, as a process of its own.")
    ] = False,
    console_listen: Annotated[
        str, typer.Option("--console-listen", metavar="HOST:PORT", help="TCP address of the web console.")
    ] = CONSOLE_LISTEN,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with listeners, limits, topics, log, jobs and access. SIGHUP reads it again.",
        ),
    ] = None,
    log_format: Annotated[str, typer.Option(metavar="text|json", help="Format of the event lines.")] = "text",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no lines about single clients: only addresses and warnings.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Also print every event with its fields, and the log of the library, on stderr."
        ),
    ] = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM. Clients are notified on shutdown and reconnect when the broker is back.

    Confirmed messages are on disk, in the folder of the log, and survive a restart or a crash. Each event is one line
    on standard output. `archive on grpc://HOST:PORT` and `listening on udp://HOST:PORT` mean that these are ready.
    """
    from godwit.net import loop
    from godwit.net.broker_process import serve
    from godwit.net.diagnostics import VARIABLE, configure_logging
    from godwit.net.notices import NoticeWriter

    if log_format not in ("text", "json"):
        raise UsageError(f"unknown log format {log_format}; choose text or json")
    if quiet and verbose:
        raise UsageError("--quiet and --verbose exclude each other: give one of them")
    if verbose and configure_logging({} if os.environ.get(VARIABLE) else {VARIABLE: "debug"}) is None:
        logging.getLogger("godwit").setLevel(logging.DEBUG)  # GODWIT_LOG has added a handler already

    def load() -> Configuration:
        loaded = with_log(load_file(config, listen or []), data=data, memory=memory, archive=archive)
        loaded = with_metrics(with_mqtt(loaded, mqtt or []), metrics)
        return with_quick_figures(loaded) if console else loaded

    if console and (missing := missing_packages()):
        raise GodwitError(missing)
    configuration = load()
    notices = NoticeWriter(sys.stdout, "json" if log_format == "json" else "text", is_quiet=quiet)
    try:
        loop.collect_garbage_rarely()
        loop.switch_threads_quickly()
        loop.run(
            serve(
                configuration,
                notices=notices,
                load=None if config is None else load,
                ready=partial(run_console, listen=console_listen, notices=notices) if console else None,
            )
        )
    finally:
        notices.close()
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # the reader of the event lines is gone, which is not an error
            discard_output()


def load_file(path: Path | None, listen: list[str]) -> Configuration:
    """Return the configuration in a file, with the listeners of the command line in place of its own.

    Raises:
        GodwitError: Reading the file failed.
        ConfigurationError: The file is invalid.
    """
    from godwit.server.configuration import Configuration, load_configuration

    configuration = Configuration()
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise GodwitError(
                f"cannot read the configuration {path}: {error.strerror}; check its path and rights"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"the configuration {path} is not UTF-8: {error.reason}") from error
        try:
            # Paths are relative to the folder of the configuration.
            configuration = load_configuration(
                text, read_secret=lambda name: (path.parent / name).read_bytes(), folder=path.parent
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from error
        if configuration.has_secrets:
            configuration = replace(configuration, private_files=(*configuration.private_files, path))
    return replace(configuration, listen=listen) if listen else configuration


def with_log(configuration: Configuration, *, data: Path | None, memory: bool, archive: str | None) -> Configuration:
    """Return the configuration with the options of the command line for log and archive.

    Raises:
        UsageError: Two options contradict each other.
    """
    if memory and data is not None:
        raise UsageError("--memory and --data exclude each other: give one of them")
    if memory and archive not in (None, NO_ARCHIVE):
        raise UsageError("--memory has no log for an archive to serve: give one of --memory and --archive")
    folder = None if memory else data or configuration.data or Path(DEFAULT_DATA)
    section = configuration.archive
    if archive is not None:
        is_on = archive != NO_ARCHIVE
        section = replace(section, is_on=is_on, listen=archive if is_on else None)
    return replace(configuration, data=folder, archive=section)


def with_mqtt(configuration: Configuration, listen: list[str]) -> Configuration:
    """Return the configuration with the MQTT addresses of the command line in place of its own."""
    from godwit.server.configuration import MqttSection

    if not listen:
        return configuration
    section = configuration.mqtt or MqttSection(listen=())
    return replace(configuration, mqtt=replace(section, listen=tuple(listen)))


def with_metrics(configuration: Configuration, listen: str | None) -> Configuration:
    """Return the configuration with the metrics address of the command line in place of its own."""
    from godwit.server.configuration import MetricsSection

    if listen is None:
        return configuration
    section = configuration.metrics or MetricsSection(listen=listen)
    return replace(configuration, metrics=replace(section, listen=listen))


def with_quick_figures(configuration: Configuration) -> Configuration:
    """Return the configuration with figures that are published often enough for live charts."""
    settings = configuration.settings
    quick = replace(settings, sys_interval_s=min(settings.sys_interval_s, CONSOLE_INTERVAL_S))
    return replace(configuration, settings=quick)


# -- configuration ----------------------------------------------------------------------------------------------------


@config_app.callback(epilog="Example: godwit config check broker.toml")
def config_group() -> None:
    """Check a configuration file."""


@config_app.command("check", epilog="Example: godwit config check broker.toml && systemctl reload godwit")
def check_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="TOML file of a broker.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a broker's configuration file and the secret files that it names. No broker is started.

    The exit code is 1 if the file has an error; the text has its line and key.
    """
    from godwit.cli.tables import show_objects
    from godwit.net.service_warnings import anonymous_rights

    configuration = with_log(load_file(file, []), data=None, memory=False, archive=None)
    access = configuration.settings.access
    if as_json:
        facts = {
            "file": str(file),
            "listen": list(configuration.listen),
            "data": str(configuration.data),
            "clients": len(access.names),
            "rules": len(access.rules),
            "is_open": access.is_open,
        }
        show_objects([facts])
        return
    typer.echo(f"{safe(str(file))} is valid")
    typer.echo(f"listens on  {', '.join(configuration.listen)}")
    typer.echo(f"log in      {safe(str(configuration.data))}")
    rules = f"{count(len(access.names), 'client')} with a secret or a certificate, {count(len(access.rules), 'rule')}"
    typer.echo(f"access      {'every client may do everything' if access.is_open else rules}")
    if not access.is_open:
        typer.echo(f"            {safe(anonymous_rights(access))}")


# -- secrets ----------------------------------------------------------------------------------------------------------


def passwd(
    client: Annotated[str, typer.Argument(metavar="NAME", help="Name of the client.")],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Configuration of the broker, to which entries are added."),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            metavar="FILE",
            readable=False,
            help="File to create, with the secret.",
            show_default="NAME.secret, beside the configuration",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ACTION",
            help="Right of the client: publish, subscribe, create, submit, work, kick or relay; may be repeated.",
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="FILTER", help="Topics, or kinds of work, of these rights; may be repeated."),
    ] = None,
) -> None:
    """Make a random secret for a client, and the entries for the broker's configuration.

    With --config the entries are added to the file; else they are printed. Send SIGHUP to a running broker to make it
    read the file again. The client proves its name with --secret-file.
    """
    entry = AccessEntry.of(client, config, secret_file, allow or [], topics or [])
    entry.write_secret()
    try:
        if config is not None:
            entry.add_to(config)
    except BaseException:
        entry.secret_file.unlink(missing_ok=True)
        raise
    typer.echo(f"secret in {safe(str(entry.secret_file))}", err=True)
    if config is None:
        typer.echo(entry.toml(Path()), nl=False)
    else:
        typer.echo(f"added {safe(client)} to {safe(str(config))}; a running broker reads it after SIGHUP", err=True)


@dataclass(frozen=True)
class AccessEntry:
    """A client with its secret, and a rule for it."""

    client: str
    secret_file: Path
    allow: tuple[str, ...]
    topics: tuple[str, ...]

    @classmethod
    def of(
        cls, client: str, config: Path | None, secret_file: Path | None, allow: list[str], topics: list[str]
    ) -> AccessEntry:
        """Return the entry that the arguments describe.

        Raises:
            UsageError: An argument is invalid.
            GodwitError: Reading the configuration failed, or it has this client already.
        """
        from godwit.broker.access import Access, Rule

        if topics and not allow:
            raise UsageError("--topic belongs to a right: add --allow publish or another")
        try:
            Access(secrets={client: b"x"})
            if allow:
                Rule(clients=(client,), allow=frozenset(allow), topics=tuple(topics))  # type: ignore[arg-type]
        except ConfigurationError as error:
            hint = " (--topic)" if " on no topic: " in str(error) else ""
            raise UsageError(f"{error}{hint}") from None
        if config is not None and config.is_symlink():  # it would be replaced by a file
            raise GodwitError(f"{config} is a link: name the file itself, {config.resolve()}")
        if config is not None and load_file(config, []).settings.access.is_listed(client):
            raise GodwitError(f"{config} has the client {client!r} already; remove its entry first")
        if secret_file is None:
            name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in client)
            secret_file = (config.parent if config is not None else Path()) / f"{name.lstrip('.') or '_'}.secret"
        return cls(client, secret_file, tuple(dict.fromkeys(allow)), tuple(topics))

    def write_secret(self) -> None:
        """Create the file of the secret, readable for its owner only.

        Raises:
            GodwitError: It exists, or writing it failed.
        """
        try:
            number = os.open(self.secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "w") as file:
                file.write(f"{secrets.token_urlsafe(SECRET_BYTES)}\n")
        except FileExistsError:
            raise GodwitError(
                f"{self.secret_file} exists already; remove it, or name another file with --secret-file"
            ) from None
        except OSError as error:
            raise GodwitError(f"cannot write {self.secret_file}: {error.strerror}; choose another file") from error

    def toml(self, folder: Path) -> str:
        """Return the entries of a configuration file in this folder."""
        path = self.secret_file
        with suppress(ValueError):
            path = path.absolute().relative_to(folder.absolute())
        # The strings of JSON are strings of TOML, too.
        lines = ["", "[[access.client]]", f"name = {json.dumps(self.client)}", f"secret_file = {json.dumps(str(path))}"]
        if self.allow:
            lines += ["", "[[access.rule]]", f"clients = {json.dumps([self.client])}"]
            lines += [f"allow = {json.dumps(list(self.allow))}"]
            lines += [f"topics = {json.dumps(list(self.topics))}"] if self.topics else []
        return "\n".join([*lines, ""])

    def add_to(self, config: Path) -> None:
        """Append the entries to a configuration file. A file that would be invalid then is left unchanged.

        Raises:
            GodwitError: Writing the file failed.
            ConfigurationError: The file would be invalid.
        """
        from godwit.store.atomic_file import create_file

        before = config.read_text(encoding="utf-8")
        with create_file(config, like=config, replaces=True) as draft:
            draft.write_text(before + self.toml(config.parent), encoding="utf-8")
            load_file(draft, [])
