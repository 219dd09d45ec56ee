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
    """Adds `godwit broker`."""
    root.command("broker", epilog="Example: godwit broker --listen 127.0.0.1:50000 --listen '[::1]:50000'")(broker)


def broker(
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen; may be repeated. The port is 50000 unless given, 0 takes any free one. "
            "127.0.0.1 unless given: only this machine.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder of the log, made if it is not there. ./godwit-data unless given here or in the file.",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Keep the log in memory instead: bounded, and gone when the broker stops."),
    ] = False,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to serve the log in bulk (Arrow Flight). Unless given: the first listener's host, and its "
            "port plus one. `none`: nowhere.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML: listeners, limits, topics, log, jobs, access. SIGHUP: read it again."),
    ] = None,
    log_format: Annotated[str, typer.Option(metavar="text|json", help="How to tell what happens.")] = "text",
) -> None:
    """Run a broker until Ctrl-C or SIGTERM; clients are told that it stops, and come back when it does.

    What is confirmed is on disk, in the folder of the log, and there again after a restart or a crash. What happens is
    told on standard output, one line an event; `archive on grpc://HOST:PORT` and `listening on udp://HOST:PORT` say
    that these are ready.
    """
    from godwit.net import loop
    from godwit.net.notices import NoticeWriter
    from godwit.net.service import serve

    if log_format not in ("text", "json"):
        raise UsageError(f"there is no log format {log_format}; choose text or json")

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
        except (OSError, ValueError):  # whoever read it is gone; the broker did not mind
            discard_output()


def load_file(path: Path | None, listen: list[str]) -> Configuration:
    """What the file says, with the addresses of the command line instead of its own, if there are some."""
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
            # Paths are meant from where the configuration lies.
            configuration = load_configuration(
                text, read_secret=lambda name: (path.parent / name).read_bytes(), folder=path.parent
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from error
    return replace(configuration, listen=listen) if listen else configuration


def with_log(configuration: Configuration, *, data: Path | None, memory: bool, archive: str | None) -> Configuration:
    """The same with what the command line says of the log."""
    if memory and data is not None:
        raise UsageError("--memory keeps no folder and --data names one: give one of them")
    if memory and archive not in (None, NO_ARCHIVE):
        raise UsageError("--memory keeps no log that an archive could serve: give one of --memory and --archive")
    folder = None if memory else data or configuration.data or Path(DEFAULT_DATA)
    section = configuration.archive
    if archive is not None:
        is_on = archive != NO_ARCHIVE
        section = replace(section, is_on=is_on, listen=archive if is_on else None)
    return replace(configuration, data=folder, archive=section)
