"""`godwit cluster`: the nodes of a cluster, handover, comparison, seeding and beginning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from godwit.cli.broker import load_file
from godwit.cli.text import count, safe
from godwit.errors import UsageError

if TYPE_CHECKING:
    from godwit.net.cluster_admin import ClusterReport
    from godwit.server.cluster_configuration import ClusterSection

app = typer.Typer(no_args_is_help=True)
HANDOVER_S: Final = 30.0
EXIT_PROBLEMS: Final = 1

ConfigOption = Annotated[
    Path, typer.Option("--config", metavar="FILE", readable=False, help="Configuration of a node, with [cluster].")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(root: typer.Typer) -> None:
    """Add `godwit cluster`."""
    root.add_typer(app, name="cluster")


@app.callback(epilog="Example: godwit cluster status --config broker.toml")
def cluster() -> None:
    """Show and change the nodes of a cluster: several brokers with one log, of which one is active."""


@app.command("status", epilog="Example: godwit cluster status --config broker.toml --json")
def status(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Show the nodes that run, with their states. It asks the engine, so it works while no node is active."""
    from godwit.cli.tables import show_objects
    from godwit.net.cluster_admin import cluster_status

    section, _ = _sections(config)
    report = cluster_status(section)
    if as_json:
        show_objects([msgspec.to_builtins(report)])
        return
    _show(report)
    for node in report.nodes:
        if node.problem and node.state != "stopped":
            typer.echo(f"{safe(node.node)} is not ready: {safe(node.problem)}")
        elif node.reason and node.state not in ("active", "standby"):
            typer.echo(f"{safe(node.node)}: {safe(node.reason)}")


@app.command("handover", epilog="Example: godwit cluster handover node-2 --config broker.toml")
def handover(
    config: ConfigOption,
    node: Annotated[str, typer.Argument(metavar="[NODE]", help="Next active node.", show_default="any standby")] = "",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="How long to wait until it is active.")
    ] = HANDOVER_S,
) -> None:
    """Make another node the active one, for example before maintenance of its machine. Clients move to it."""
    from godwit.net.cluster_admin import hand_over

    section, _ = _sections(config)
    former, present, took_s = hand_over(section, node, timeout)
    typer.echo(f"{safe(present)} is active in place of {safe(former)}, after {took_s:.1f} s")


@app.command("check", epilog="Example: godwit cluster check --config broker.toml")
def check(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Compare the nodes with each other, and the log of the configuration with the engine.

    The exit code is 1 if there is a problem. Nothing is changed.
    """
    from godwit.cli.tables import show_objects
    from godwit.net.cluster_admin import check_cluster

    section, data = _sections(config)
    report = check_cluster(section, data)
    if as_json:
        show_objects([msgspec.to_builtins(report)])
    else:
        _show(report.cluster)
        if report.folder:
            typer.echo(f"{safe(report.folder)} has followed the log up to position {report.position:,}")
        for problem in report.problems:
            typer.echo(safe(problem))
        if not report.problems:
            typer.echo("no problem was found")
    if report.problems:
        raise typer.Exit(EXIT_PROBLEMS)


@app.command("seed", epilog="Example: godwit cluster seed node-1.sqlite --config broker.toml")
def seed(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", readable=False, help="Backup of another node: its file, or its folder.")
    ],
    config: ConfigOption,
) -> None:
    """Make the log of a node from a backup of another one: for a new machine, or one that was away for too long.

    The node must not run. When it is started, it reads on from the place of the backup.
    """
    from godwit.cli.progress import WorkProgress
    from godwit.net.cluster_admin import seed_folder

    _, data = _sections(config)
    with WorkProgress("copying", enabled=sys.stderr.isatty()) as progress:
        found = seed_folder(file, data, progress.show)
    typer.echo(
        f"{safe(str(data))} has {count(found.next_offset, 'message')}, up to position {found.place.position:,}; "
        "start the node"
    )


@app.command("begin", epilog="Example: godwit cluster begin --from godwit-data --config broker.toml")
def begin(
    config: ConfigOption,
    folder: Annotated[
        Path, typer.Option("--from", metavar="DIR", readable=False, help="Data folder of a broker that does not run.")
    ],
) -> None:
    """Begin a cluster with the log of a broker that was alone, or of the node that has read most.

    A cluster that begins empty does not need this. Give the other nodes a backup of this log (`godwit log backup`,
    `godwit cluster seed`).
    """
    from godwit.net.cluster_admin import begin_cluster

    section, data = _sections(config)
    found = begin_cluster(section, folder)
    typer.echo(f"the cluster {section.name} begins with {count(found.next_offset, 'message')} in {safe(str(folder))}")
    if folder.resolve() != data.resolve():
        typer.echo(f"start the node with this folder: its configuration names {safe(str(data))}")
    typer.echo("seed the other nodes: godwit log backup here, then godwit cluster seed with that backup there")


def _sections(config: Path) -> tuple[ClusterSection, Path]:
    """Return the section [cluster] of a configuration, and the data folder."""
    from godwit.cli.broker import with_log

    configuration = with_log(load_file(config, []), data=None, memory=False, archive=None)
    if configuration.cluster is None:
        raise UsageError(f"{config} has no section [cluster]: give the configuration of a node")
    assert configuration.data is not None
    return configuration.cluster, configuration.data


def _show(report: ClusterReport) -> None:
    from godwit.cli.tables import Column, show_table

    typer.echo(
        f"cluster {safe(report.name)}: {count(len(report.nodes), 'node')}, positions {report.first:,} to "
        f"{report.last:,} in the engine, {report.size_bytes:,} bytes"
    )
    columns = [
        Column("node", is_name=True),
        Column("state"),
        Column("address", least_width=12),
        Column("epoch", right=True, drop=1),
        Column("position", right=True, drop=2),
        Column("behind", right=True),
        Column("messages", right=True, drop=3),
    ]
    rows = [
        (
            node.node,
            node.state,
            node.address,
            f"{node.epoch:,}",
            f"{node.applied:,}",
            f"{node.behind:,}",
            f"{node.next_offset:,}",
        )
        for node in report.nodes
    ]
    if rows:
        show_table(columns, rows)
