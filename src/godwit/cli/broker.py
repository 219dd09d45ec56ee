"""`godwit broker`: run a broker until it is stopped."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from godwit.cli.streams import discard_output
from godwit.errors import ConfigurationError, GodwitError, UsageError

if TYPE_CHECKING:
    from godwit.server.configuration import Configuration

DEFAULT_DATA: Final = "godwit-data"
NO_ARCHIVE: Final = "none"


def register(root: typer.Typer) -> None:
    """Add `godwit broker`."""
    root.command("broker", epilog="Example: godwit broker --listen 127.0.0.1:50000 --listen '[::1]:50000'")(broker)


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
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with listeners, limits, topics, log, jobs and access. SIGHUP reads it again.",
        ),
    ] = None,
    log_format: Annotated[str, typer.Option(metavar="text|json", help="Format of the event lines.")] = "text",
) -> None:
    """Run a broker until Ctrl-C or SIGTERM. Clients are notified on shutdown and reconnect when the broker is back.

    Confirmed messages are on disk, in the folder of the log, and survive a restart or a crash. Each event is one line
    on standard output. `archive on grpc://HOST:PORT` and `listening on udp://HOST:PORT` mean that these are ready.
    """
    from godwit.net import loop
    from godwit.net.notices import NoticeWriter
    from godwit.net.service import serve

    if log_format not in ("text", "json"):
        raise UsageError(f"unknown log format {log_format}; choose text or json")

    def load() -> Configuration:
        return with_log(load_file(config, listen or []), data=data, memory=memory, archive=archive)

    configuration = load()
    notices = NoticeWriter(sys.stdout, "json" if log_format == "json" else "text")
    try:
        loop.collect_garbage_rarely()
        loop.switch_threads_quickly()
        loop.run(serve(configuration, notices=notices, load=None if config is None else load))
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
