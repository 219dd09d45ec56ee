"""`godwit security`: certificates for a small installation, fingerprints, and the weak points of a configuration."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from godwit.cli.text import safe
from godwit.errors import GodwitError, UsageError

if TYPE_CHECKING:
    from godwit.server.configuration import Configuration

app = typer.Typer(no_args_is_help=True, help="Make certificates, show fingerprints, check a configuration.")
EXIT_FINDINGS = 1


def register(root: typer.Typer) -> None:
    """Add `godwit security`."""
    root.add_typer(app, name="security")


@app.callback(epilog="Example: godwit security check broker.toml")
def security() -> None:
    """Make certificates, show fingerprints, and check what an attacker could do."""


@app.command("init", epilog="Example: godwit security init certificates --host broker.example")
def init(
    folder: Annotated[Path, typer.Argument(help="Folder for the files. It is created if needed.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Host name or IP address of the broker; may be repeated."),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="Name of a client to issue a certificate for; may be repeated."),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="HOST", help="Host of a node of a cluster, for [cluster]; may be repeated."),
    ] = None,
) -> None:
    """Make an authority (ca.crt, ca.key), and certificates for a broker, for clients and for nodes of a cluster.

    If the folder has an authority already, it issues the new certificates. Files that exist are not replaced. Keep
    ca.key where no broker and no client can read it: its owner can issue certificates for all names.
    """
    from godwit.net.authority import (
        issue_for_broker,
        issue_for_client,
        issue_for_node,
        load_authority,
        new_authority,
        write_identity,
    )

    if not hosts and not clients and not nodes:
        raise UsageError("nothing to issue: add --host for the broker, --client for a client, --node for a node")
    names = [*(["broker"] if hosts else []), *map(_file_name, (*(clients or []), *(nodes or [])))]
    if "ca" in names or len(set(names)) != len(names):
        raise UsageError("two of the certificates would have the same file: choose other names")
    for name in names:
        if (folder / f"{name}.key").exists():
            raise GodwitError(
                f"{folder / name}.key exists already: remove it, or renew it with `godwit security rotate`"
            )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise GodwitError(f"cannot make the folder {folder}: {error.strerror}") from None
    if (folder / "ca.key").exists():
        authority = load_authority(folder)
    else:
        authority = new_authority()
        write_identity(folder, "ca", authority)
        typer.echo(f"authority   {safe(str(folder / 'ca.crt'))}")
    if hosts:
        identity = issue_for_broker(authority, hosts)
        certificate, key = write_identity(folder, "broker", identity)
        typer.echo(f"broker      {safe(str(certificate))}, {safe(str(key))}: {identity.fingerprint}")
    for client in clients or []:
        certificate, key = write_identity(folder, _file_name(client), issue_for_client(authority, client))
        typer.echo(f"client      {safe(str(certificate))}, {safe(str(key))}")
    for node in nodes or []:
        certificate, key = write_identity(folder, _file_name(node), issue_for_node(authority, [node]))
        typer.echo(f"node        {safe(str(certificate))}, {safe(str(key))}")
    if hosts or clients:
        typer.echo(
            "give certificate, key and client_ca under [security] to the broker, and ca.crt to its clients", err=True
        )
    if nodes:
        typer.echo("give each node its certificate and key, and ca.crt as ca, under [cluster]", err=True)


def _file_name(client: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in client) or "_"


@app.command("fingerprint", epilog="Example: godwit security fingerprint certificates/broker.crt")
def fingerprint(
    path: Annotated[Path, typer.Argument(help="Certificate in PEM, or the data folder of a broker.")],
) -> None:
    """Print the fingerprint of a certificate's key, as clients pin it and known_brokers has it."""
    from godwit.net.tls import CERTIFICATE_FILE, fingerprint_of, load_authorities

    file = path / CERTIFICATE_FILE if path.is_dir() else path
    typer.echo(fingerprint_of(load_authorities(file)[0]))


@app.command("rotate", epilog="Example: godwit security rotate certificates")
def rotate(
    folder: Annotated[Path, typer.Argument(help="Folder of `godwit security init`, or the data folder of a broker.")],
) -> None:
    """Replace the broker's key and certificate. The former files are kept with .old behind their names.

    With an authority in the folder the new certificate has the same host names, and clients that trust the authority
    notice nothing. Otherwise the key is the broker's own: clients that know the former one will refuse the new one.
    Send SIGHUP to the broker, or start it again.
    """
    from godwit.net.authority import hosts_of, issue_for_broker, load_authority, write_identity
    from godwit.net.tls import CERTIFICATE_FILE, KEY_FILE, load_identity, stored_identity

    has_authority = (folder / "ca.key").exists()
    names = ("broker.crt", "broker.key") if has_authority else (CERTIFICATE_FILE, KEY_FILE)
    paths = [folder / name for name in names]
    former = load_identity(*paths)
    for path in paths:
        path.replace(path.with_name(f"{path.name}.old"))
    try:
        if has_authority:
            identity = issue_for_broker(load_authority(folder), hosts_of(former))
            write_identity(folder, "broker", identity)
        else:
            identity = stored_identity(folder)
    except BaseException:
        for path in paths:
            path.with_name(f"{path.name}.old").replace(path)
        raise
    typer.echo(f"before  {former.fingerprint}")
    typer.echo(f"now     {identity.fingerprint}")


@app.command("check", epilog="Example: godwit security check broker.toml")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="Configuration of a broker.")],
) -> None:
    """Show what an attacker could do with a broker of this configuration. The exit code is 1 if there is anything."""
    from godwit.cli.broker import load_file, with_log

    configuration = with_log(load_file(file, []), data=None, memory=False, archive=None)
    findings = [*configuration.warnings, *weaknesses(configuration), *loose_files(configuration, file)]
    for finding in findings:
        typer.echo(f"- {safe(finding)}")
    if findings:
        raise typer.Exit(EXIT_FINDINGS)
    typer.echo("nothing found")


def weaknesses(configuration: Configuration) -> Iterator[str]:
    """Yield a sentence for each attack."""
    from godwit.net.broker_archive import is_local
    from godwit.net.cluster_tls import unencrypted
    from godwit.net.mqtt import parse_mqtt_address

    access = configuration.settings.access
    is_remote = not all(map(is_local, configuration.listen))
    where = "any machine that reaches the broker's address" if is_remote else "every user and program of this machine"
    if access.is_open:
        yield f"{where} can read and publish every message, and run jobs: add [access] with clients and rules"
    elif access.allows_anonymous:
        rights = [action for action, _ in access.rights_of_anonymous()]
        if rights:
            what = ", ".join(rights)
            yield f'{where} can {what} without a proved name: see the rules for "*", or set anonymous = false'
    if configuration.security.plain == "allow" and is_remote:
        yield 'everyone on the way can read and change messages of clients that do not seal: remove plain = "allow"'
    archive = configuration.archive
    if configuration.data is not None and archive.is_on and archive.listen is not None and not is_local(archive.listen):
        if archive.token_file is None:
            yield "any machine that reaches the archive can read and write the log: give a token_file under [archive]"
        if archive.certificate is None:
            yield "everyone on the way can read the archive's data and tokens: give a certificate under [security]"
    if configuration.mqtt is not None:
        for text in configuration.mqtt.listen:
            address = parse_mqtt_address(text)
            if not address.has_tls and not is_local(f"{address.host}:{address.port}"):
                yield f"everyone on the way can read messages and passwords of MQTT clients on {text}: use tls://"
    if configuration.cluster is not None and (plain := unencrypted(configuration.cluster)):
        yield f"everyone on the way to {plain[0]}, of the cluster's engine, can read and change messages: use TLS there"
    if configuration.metrics is not None and not is_local(configuration.metrics.listen):
        yield f"any machine that reaches {configuration.metrics.listen} can read metrics: let it listen on 127.0.0.1"


def loose_files(configuration: Configuration, file: Path) -> Iterator[str]:
    """Yield which files with keys or secrets other users can read or change."""
    if os.name != "posix":
        return
    data = configuration.data
    paths = [(file, 0o022, "change the configuration")]
    if data is not None:
        paths.append((data, 0o077, "read the log"))
    keys = [configuration.security.key] if configuration.security.key is not None else []
    paths += [(path, 0o077, "read or change keys, secrets or tokens") for path in (*keys, *configuration.private_files)]
    for path, forbidden, what in dict.fromkeys(paths):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue  # a broker that starts makes it, or reports that it is missing
        if mode & forbidden:
            yield f"other users of this machine can {what} ({path}, mode {mode:o}): run chmod go= {path}"
