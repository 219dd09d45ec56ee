"""The root of the command line: the table of commands, commands of other distributions, and the exit code."""

from __future__ import annotations

import importlib
import inspect
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import godwit
from godwit.cli.interrupts import EXIT_INTERRUPTED, quick_interrupts
from godwit.cli.text import safe
from godwit.compiled_core import describe_form
from godwit.errors import GodwitError, NodeStoppedError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

EXIT_ERROR: Final = 1
EXIT_STOPPED: Final = 4
"""A node of a cluster must not be started again before the operator has acted."""


class Section(NamedTuple):
    """Commands that the help lists under one title."""

    title: str
    commands: tuple[tuple[str, str, str], ...]
    """Name, module below `godwit.cli`, and description in the list of commands."""


SECTIONS: Final = (
    Section(
        "Messages",
        (
            ("pub", "pub", "Publish a message, lines of standard input, or a file."),
            ("sub", "sub", "Print messages as they arrive, or save files."),
            ("request", "request", "Send a request to other clients, and print the reply."),
            ("reply", "request", "Reply to requests with the output of a command."),
            ("shell", "shell", "Publish, subscribe and submit jobs by hand, in one session."),
        ),
    ),
    Section(
        "Work",
        (
            ("job", "job", "Submit work to workers, and follow it."),
            ("worker", "worker", "Volunteer for kinds of work, and do it."),
            ("workers", "clients", "List the workers with their tasks."),
        ),
    ),
    Section(
        "Broker",
        (
            ("broker", "broker", "Run a broker."),
            ("config", "broker", "Check a configuration file."),
            ("passwd", "broker", "Make a secret for a client, and its entry in the configuration."),
            ("security", "security", "Make certificates, show fingerprints, check a configuration."),
            ("topics", "topics", "List, show, create and delete topics."),
            ("clients", "clients", "List the clients with their subscriptions."),
            ("cursors", "clients", "List the subscriptions with their positions in the log."),
            ("groups", "groups", "List and delete consumer groups, with their positions in the log."),
            ("bridge", "bridge", "Show the bridges from and to the broker."),
            ("cluster", "cluster", "Show the nodes of a cluster, hand over, compare, seed."),
            ("up", "up", "Run a cluster of several nodes on this machine, to try it out."),
            ("kick", "clients", "Remove a client, or one of its subscriptions."),
            ("ping", "clients", "Measure round trips to the broker."),
            ("context", "context", "Name brokers, and choose the one that commands use."),
            ("log", "log", "Show a broker's log, export messages, and maintain its file."),
            ("console", "console", "Serve the web console of a broker."),
            ("top", "top", "Show clients and topics with their rates, live."),
            ("capture", "capture", "Record the packets of a broker."),
            ("flow", "capture", "Draw the packets of a capture as a sequence diagram."),
            ("dissector", "capture", "Install the dissector for Wireshark, or print its path."),
        ),
    ),
    Section("Tables", (("pipeline", "pipeline", "Keep brokers' logs as tables, and query them."),)),
    Section(
        "Examples",
        (
            ("demo", "demo", "Watch messages and jobs survive a bad network, with a report."),
            ("sensors", "sensors", "Publish the temperatures of simulated rooms."),
        ),
    ),
)
"""The commands in the order of the help text. The list is here, so that `--help` imports no command.

Each module has a function `register(app)` that adds its commands (`app.command("demo")(demo)`) or its group
(`app.add_typer(group, name="job")`), each with an example as `epilog`. Only the module of the requested command is
imported, so that the command starts quickly.
"""

COMMANDS: Final[Mapping[str, str]] = {
    name: f"godwit.cli.{module}" for section in SECTIONS for name, module, _ in section.commands
}
"""The module of each command."""

CLIENT_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "job": ("submit", "list", "show", "results", "cancel", "retry", "watch"),
    "topics": ("list", "show", "create", "delete"),
    "groups": ("list", "delete"),
    "bridge": ("status",),
    "bench": ("pub", "sub", "latency"),
    **dict.fromkeys(
        (
            "pub",
            "sub",
            "request",
            "reply",
            "shell",
            "worker",
            "workers",
            "clients",
            "cursors",
            "kick",
            "ping",
            "top",
            "capture",
            "sensors",
        ),
        (),
    ),
}
"""Commands that connect to a broker, and their subcommands."""

CONTEXT_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {**CLIENT_COMMANDS, "pipeline": ("run", "status")}
"""Commands to which a context applies: `pipeline` finds the archive of a broker by the address of that broker."""

DEVELOPMENT_COMMANDS: Final[Mapping[str, str]] = {
    "bench": "Measure on this machine, side by side with peers and limits.",
    "sim": "Run Godwit in simulated networks, in virtual time, from a seed.",
}
"""Commands of a development checkout, which adds them as entry points. An installed Godwit does not have them."""

MAX_HELP_WIDTH: Final = 100

IS_LITERAL: Final = "godwit.cli.is_literal"
"""Key in the context of a PayloadCommand: whether its arguments contain --, after which a payload is a text."""

ENTRY_POINTS: Final = "godwit.commands"
"""Entry point group through which other distributions add commands.

The name of an entry is the name of the command. The entry is a `typer.Typer` with subcommands, or a function that
becomes one command. It is imported only when its command is run. An entry with the name of a command of `COMMANDS` is
ignored.
"""


class HelpFormatter(typer.Context.formatter_class):  # type: ignore[misc,valid-type]
    """Writes help texts whose lines never end within a word such as `--secret-file`, with limits in words.

    Lines are wrapped after hyphens otherwise, so these are non-breaking ones until the text is complete.
    """

    HYPHEN = "\N{NON-BREAKING HYPHEN}"

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args.replace("-", self.HYPHEN), prefix)

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", self.HYPHEN))

    def write_dl(self, rows: Sequence[tuple[str, str]], *args: int, **kwargs: int) -> None:
        rows = [(first, plain_notes(second).replace("-", self.HYPHEN)) for first, second in rows]
        super().write_dl(rows, *args, **kwargs)

    def getvalue(self) -> str:
        text: str = super().getvalue()
        return text.replace(self.HYPHEN, "-")


def plain_notes(text: str) -> str:
    """Return a help text with plain notes at its end.

    Limits such as `0<=x<=2` and `x>=1` become `0 to 2` and `at least 1`, the defaults `10.0` and `(no limit)` become
    `10` and `no limit`.
    """
    text = re.sub(r"(default: )\(([^()]*)\)", r"\1\2", text)
    text = re.sub(r"([\d.]+)<=x<=([\d.]+)\]$", r"\1 to \2]", text)
    text = re.sub(r"x>=([\d.]+)\]$", r"at least \1]", text)
    return re.sub(r"(?<=\d)\.0(?= to |;|\]$)", "", text)


def similar(text: str, known: Sequence[str]) -> str:
    """Return the known word that a mistyped one most resembles, or an empty string."""
    import difflib

    return next(iter(difflib.get_close_matches(text, known, n=1)), "")


class HelpContext(typer.Context):
    """A context whose help is written by our formatter."""

    formatter_class = HelpFormatter


class PlainCommand(TyperCommand):
    """A command whose usage line names the required arguments without braces: `godwit pub TOPIC [MESSAGE]`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. The error of a number out of range has the range in words."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            fact, separator, limits = error.message.partition(" is not in the range ")
            if separator:
                error.message = f"{fact} is out of range; the range is {plain_notes(f'{limits[:-1]}]')[:-1]}."
            raise


class PayloadCommand(PlainCommand):
    """A command with a payload that may begin with a hyphen: -5 is a payload, --retian an unknown option.

    After -- everything is a payload. The command needs the setting `ignore_unknown_options`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            UsageError: An argument looks like an option, and the command has no such option.
        """
        is_literal = ctx.meta[IS_LITERAL] = "--" in args
        literal_count = len(args) - args.index("--") - 1 if is_literal else 0
        values, extra, _ = self.make_parser(ctx).parse_args(list(args))
        arguments = (values.get(one.name) for one in self.params if one.param_type_name == "argument" and one.name)
        found = [*(text for text in arguments if isinstance(text, str)), *extra]
        for text in found[: max(len(found) - literal_count, 0)]:
            if re.match(r"-[^\d.\s]", text) and not ctx.resilient_parsing:
                name = text.partition("=")[0]  # the value may be a secret
                likely = similar(name, [option for one in self.params for option in one.opts])
                hint = f", perhaps {likely} is meant" if likely else ""
                raise UsageError(f"unknown option {name}{hint}; if it is a payload, put -- before it")
        return super().parse_args(ctx, args)


class RootGroup(TyperGroup):
    """The root command. It imports a command when it is run, and only lists it before."""

    context_class = HelpContext

    def list_commands(self, ctx: Any) -> list[str]:
        names = (*COMMANDS, *super().list_commands(ctx), *self._entries)
        return list(dict.fromkeys(names))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command that was loaded, or a stand-in with a name and no options."""
        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        if cmd_name in COMMANDS or cmd_name in self._entries:
            return TyperCommand(cmd_name)
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in sections."""
        sections = [(one.title, [(name, text) for name, _, text in one.commands]) for one in SECTIONS]
        sections.append(
            ("Development", [(name, text) for name, text in DEVELOPMENT_COMMANDS.items() if name in self._entries])
        )
        others = [
            (name, f"Command of {distribution_name(entry)}.")
            for name, entry in self._entries.items()
            if name not in DEVELOPMENT_COMMANDS
        ]
        sections.append(("Other distributions", others))
        for title, rows in sections:
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(f"{name:9}", text) for name, text in rows])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command to run, loaded.

        Raises:
            GodwitError: It is a development tool that is not installed, or cannot be loaded.
        """
        if args[0] in DEVELOPMENT_COMMANDS and self.get_command(ctx, args[0]) is None:
            raise GodwitError(
                f"godwit {args[0]} is a development tool and not installed: run make setup in a checkout of the "
                "repository, and use the command there"
            )
        is_unknown = not args[0].startswith("-") and self.get_command(ctx, args[0]) is None
        if is_unknown and (likely := similar(args[0], self.list_commands(ctx))):
            ctx.fail(f"No such command '{args[0]}'; perhaps {likely} is meant.")
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name not in self.commands:
            with quick_interrupts():
                command = load_own_command(name) if name in COMMANDS else load_command(self._entries[name])
            self.commands[name] = command
        return name, command, rest

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        from importlib import metadata

        return {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINTS) if entry.name not in COMMANDS}


def load_own_command(name: str) -> Any:
    """Import the module of a command of `COMMANDS`, and return the command."""
    holder = _new_holder()
    importlib.import_module(COMMANDS[name]).register(holder)
    return _built(holder, name)


def _new_holder() -> typer.Typer:
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    holder.callback()(lambda: None)  # makes it a group, even with one command
    return holder


def _built(holder: typer.Typer, name: str) -> Any:
    _unwrap_help(holder)
    command = typer.main.get_group(holder).commands[name]
    _prepare_help(command)
    return command


def load_command(entry: EntryPoint) -> Any:
    """Import the command of an entry point.

    Raises:
        GodwitError: The entry cannot be imported, or is not a command. The text names its distribution.
    """
    try:
        found = entry.load()
        holder = _new_holder()
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=entry.name)
        else:
            holder.command(entry.name)(found)
        return _built(holder, entry.name)
    except Exception as error:  # code of another distribution can raise anything
        raise GodwitError(
            f"the command {entry.name} of {distribution_name(entry)} cannot be loaded: {type(error).__name__}: "
            f"{error}; update or uninstall that distribution"
        ) from error


def distribution_name(entry: EntryPoint) -> str:
    """Return the name and version of the distribution that an entry point comes from."""
    return "an unknown distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"godwit {godwit.__version__}\ncore: {describe_form()}")
        raise typer.Exit


def _root(
    typer_context: typer.Context,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            envvar="GODWIT_CONTEXT",
            metavar="NAME",
            help="Use the broker, name and secret of this context.",
            show_default="the selected one, see godwit context",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Move messages and work over plain UDP datagrams, and lose none."""
    _set_defaults(typer_context, context)


def _set_defaults(root: typer.Context, context: str | None) -> None:
    """Make the options of a context the defaults of all commands that connect to a broker.

    `bench latency` measures a broker instead of its comparison only on request: with --broker, --context or
    GODWIT_CONTEXT, and not because some context is selected.
    """
    if root.invoked_subcommand not in CONTEXT_COMMANDS:
        return
    from godwit.cli.context import chosen_context

    options: dict[str, Any] = dict(chosen_context(context))
    defaults = {name: options | dict.fromkeys(subcommands, options) for name, subcommands in CONTEXT_COMMANDS.items()}
    if context is None:
        defaults["bench"]["latency"] = {name: value for name, value in options.items() if name != "broker"}
    root.default_map = defaults


def build_app() -> typer.Typer:
    """Return the root command. The commands are imported when they are run."""
    app = typer.Typer(
        name="godwit",
        cls=RootGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: rich takes 0.1 s to import, and takes [words] for markup
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_HELP_WIDTH},
    )
    app.callback(epilog="Example: godwit demo. Each command explains itself: godwit COMMAND --help")(_root)
    return app


def _unwrap_help(app: typer.Typer) -> None:
    """Remove the line breaks within the paragraphs of all help texts, because each terminal has its own width.

    Lists of commands show the first sentence, uncut.
    """
    for command in app.registered_commands:
        text = inspect.getdoc(command.callback) if command.callback else None
        command.help = command.help or "\n\n".join(part.replace("\n", " ") for part in (text or "").split("\n\n"))
        if not command.short_help:
            command.short_help = command.help.partition("\n\n")[0].partition(". ")[0].removesuffix(".") + "."
        if command.cls in (None, TyperCommand):
            command.cls = PlainCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _unwrap_help(group.typer_instance)


def _prepare_help(command: Any) -> None:
    """Give each argument and each option with a value a name for that value, its own in capitals; and our help."""
    command.context_class = HelpContext
    for parameter in command.params:
        if parameter.metavar is None and not getattr(parameter, "is_flag", False) and parameter.name != "help":
            more = "..." if parameter.nargs == -1 else ""
            parameter.metavar = f"{parameter.name.removeprefix('as_').upper()}{more}"
    for subcommand in getattr(command, "commands", {}).values():
        _prepare_help(subcommand)


def run(app: typer.Typer) -> NoReturn:
    """Run a command and exit.

    An error that the user can act on is printed as one line on stderr. A traceback is always a bug of Godwit.
    """
    try:
        app()
    except GodwitError as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"godwit: {safe(text)}", file=sys.stderr)  # the text may come from a broker
        sys.exit(EXIT_STOPPED if isinstance(error, NodeStoppedError) else EXIT_ERROR)
    except KeyboardInterrupt:  # before and after a command; typer handles it within one
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def complete_streams() -> None:
    """Open an empty stream in place of each standard stream that is closed (`>&-`).

    Otherwise the next file or socket would get its descriptor number, which makes uvloop fail.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w"))


def main() -> NoReturn:
    """Run the `godwit` script."""
    complete_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # where the terminal's character set is not UTF-8
    run(build_app())
