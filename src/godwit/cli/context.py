"""`godwit context`: names for brokers, each with an address, a client name and a secret file.

The selected context supplies the defaults of `--broker`, `--name` and `--secret-file` of every command that connects
to a broker. Contexts are in `contexts.json` in the folder `godwit` of the user's configuration (`$XDG_CONFIG_HOME`,
else `~/.config`).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from godwit.cli.text import safe
from godwit.errors import GodwitError, UsageError

VARIABLE: Final = "GODWIT_CONTEXT"
"""The environment variable that selects a context for one command or one terminal."""
FIELDS: Final = ("broker", "name", "secret_file")
"""The options that a context sets, as parameters of commands."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]

app = typer.Typer(no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `godwit context`."""
    root.add_typer(app, name="context")


# -- the file ---------------------------------------------------------------------------------------------------------


def contexts_path() -> Path:
    """Return the path of the file with the contexts."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "godwit" / "contexts.json"


def read_contexts() -> tuple[dict[str, dict[str, str]], str | None]:
    """Return all contexts by name, and the name of the selected one.

    Raises:
        GodwitError: Reading the file failed, or it has another form.
    """
    path = contexts_path()
    try:
        found: Any = json.loads(path.read_bytes())
        contexts = {
            str(name): {field: str(one[field]) for field in FIELDS if field in one}
            for name, one in found["contexts"].items()
        }
        selected = found.get("selected")
    except (FileNotFoundError, NotADirectoryError):
        return {}, None
    except OSError as error:
        raise GodwitError(f"cannot read the contexts in {path}: {error.strerror}; check its rights") from error
    except (ValueError, TypeError, KeyError, AttributeError):
        raise GodwitError(
            f"{path} is not a file of contexts; correct it, or delete it and add the contexts again"
        ) from None
    return contexts, selected if isinstance(selected, str) and selected in contexts else None


def write_contexts(contexts: dict[str, dict[str, str]], selected: str | None) -> None:
    """Replace the file with the contexts.

    Raises:
        GodwitError: Writing it failed.
    """
    from godwit.store.atomic_file import write_bytes

    path = contexts_path()
    text = json.dumps({"contexts": contexts, "selected": selected}, indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode())
    except OSError as error:
        raise GodwitError(f"cannot write the contexts to {path}: {error.strerror}; check its rights") from error


def chosen_context(name: str | None) -> dict[str, str]:
    """Return the options of the context of this name, without a name those of the selected one; empty without any.

    Raises:
        UsageError: The context does not exist.
        GodwitError: Reading the file failed.
    """
    contexts, selected = read_contexts()
    name = selected if name is None else name
    if name is None:
        return {}
    if name not in contexts:
        raise UsageError(f"the context {name!r} does not exist; godwit context list shows them")
    return contexts[name]


def is_secret_of_another(name: str | None, secret_file: Path) -> bool:
    """Return whether a secret file belongs to a context whose client name is not this one.

    The secret of a context proves the name of the context, and no other name, such as that of `--name`.
    """
    contexts, _ = read_contexts()
    owners = {one.get("name") for one in contexts.values() if one.get("secret_file") == str(secret_file)}
    return bool(owners) and name not in owners


# -- commands ---------------------------------------------------------------------------------------------------------


@app.callback(epilog="Example: godwit context add home --broker broker.local:50000 --select")
def context() -> None:
    """Name brokers, and choose the one that commands use.

    `godwit --context NAME COMMAND` and the variable GODWIT_CONTEXT choose another one than the selected context.
    Options of a command and GODWIT_BROKER come before a context.
    """


@app.command("add", epilog="Example: godwit context add plant --broker 10.0.0.7 --name desk --select")
def add(
    context: NameArgument,
    broker: Annotated[
        str, typer.Option("--broker", metavar="HOST:PORT", help="Address of the broker; several with commas.")
    ],
    name: Annotated[str | None, typer.Option("--name", help="Client name of the commands.")] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file", metavar="FILE", readable=False, help="File with the secret that proves the name."
        ),
    ] = None,
    select: Annotated[bool, typer.Option("--select", help="Select the context.")] = False,
) -> None:
    """Add a context, or replace the one of this name. The first one is selected."""
    from godwit.net.address import parse_brokers

    if not _NAME.fullmatch(context):
        raise UsageError(f"{context!r} is not a name of a context; use up to 64 letters, digits, - _ and .")
    if secret_file is not None and not name:
        raise UsageError("a secret proves a name: add --name to --secret-file")
    parse_brokers(broker)
    contexts, selected = read_contexts()
    path = None if secret_file is None else str(secret_file.absolute())
    fields = {"broker": broker, "name": name, "secret_file": path}
    contexts[context] = {field: value for field, value in fields.items() if value is not None}
    write_contexts(contexts, context if select or selected is None else selected)
    typer.echo(f"added {context}{', selected' if select or selected is None else ''}")


@app.command("list", epilog="Example: godwit context list")
def list_contexts(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """List the contexts. A star marks the selected one."""
    from godwit.cli.tables import Column, show_objects, show_table

    contexts, selected = read_contexts()
    if as_json:
        show_objects([{"context": name, "selected": name == selected, **one} for name, one in sorted(contexts.items())])
        return
    if not contexts:
        typer.echo("no contexts; add one with godwit context add", err=True)
        return
    columns = [
        Column(""),
        Column("context", is_name=True),
        Column("broker"),
        Column("name"),
        Column("secret file", drop=1),
    ]
    rows = [
        ("*" if name == selected else "", name, *(one.get(field, "") for field in FIELDS))
        for name, one in sorted(contexts.items())
    ]
    show_table(columns, rows)


@app.command("select", epilog="Example: godwit context select home")
def select_context(context: NameArgument) -> None:
    """Select the context that commands use."""
    chosen_context(context)
    write_contexts(read_contexts()[0], context)
    typer.echo(f"selected {safe(context)}")


@app.command("remove", epilog="Example: godwit context remove home")
def remove(context: NameArgument) -> None:
    """Remove a context. The secret file remains."""
    chosen_context(context)
    contexts, selected = read_contexts()
    del contexts[context]
    write_contexts(contexts, None if selected == context else selected)
    typer.echo(f"removed {safe(context)}")
