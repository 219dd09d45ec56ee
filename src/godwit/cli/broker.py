"""`godwit broker`: run a broker until it is stopped."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from godwit.cli.streams import discard_output
from godwit.errors import ConfigurationError, GodwitError, UsageError

if TYPE_CHECKING:
    from godwit.server.configuration import Configuration


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
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Keep the log in memory: so far always so.", show_default=False),
    ] = True,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML: listeners, limits, topics, access. SIGHUP: read it again."),
    ] = None,
    log_format: Annotated[str, typer.Option(metavar="text|json", help="How to tell what happens.")] = "text",
) -> None:
    """Run a broker until Ctrl-C or SIGTERM; clients are told that it stops, and come back when it does.

    The log is kept in memory: it is bounded, and gone when the broker stops. What happens is told on standard output,
    one line an event; `listening on udp://HOST:PORT` says that a listener is ready.
    """
    from godwit.net import loop
    from godwit.net.notices import NoticeWriter
    from godwit.net.serve import serve

    if log_format not in ("text", "json"):
        raise UsageError(f"there is no log format {log_format}; choose text or json")

    def load() -> Configuration:
        return load_file(config, listen or [])

    configuration = load()
    notices = NoticeWriter(sys.stdout, "json" if log_format == "json" else "text")
    try:
        loop.collect_garbage_rarely()
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
            # The path of a secret file is meant from where the configuration lies.
            configuration = load_configuration(text, read_secret=lambda name: (path.parent / name).read_bytes())
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from error
    return replace(configuration, listen=listen) if listen else configuration
