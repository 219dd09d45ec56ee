"""The file that configures a broker: TOML, every key checked. examples/broker.toml shows and explains all of them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from godwit.broker.access import ACTIONS, EVERYONE, Access, Action, Rule, is_like, secret_in
from godwit.broker.settings import BOUNDS, POLICIES, Policy, Settings
from godwit.broker.topics import check_filter, check_topic, shown
from godwit.errors import BadFilterError, BadTopicError, ConfigurationError
from godwit.limits import MAX_TOPICS
from godwit.server.log_sections import ArchiveSection, read_archive_section, read_log_section
from godwit.server.toml_table import Table
from godwit.store.retention import Rule as RetentionRule
from godwit.wire.filters import RESERVED

DEFAULT_LISTEN: Final = "127.0.0.1:50000"
SHORT_SECRET_BYTES: Final = 12

_LIMITS: Final = {
    # key: field of Settings
    "clients": "max_clients",
    "clients_per_host": "max_clients_per_host",
    "message_bytes": "max_message_bytes",
    "datagram_bytes": "max_datagram_bytes",
    "client_memory_bytes": "client_window_bytes",
    "messages_per_s": "messages_per_s",
    "ring_bytes": "ring_bytes",
    "retained_bytes": "max_retained_bytes",
    "client_retained_bytes": "max_client_retained_bytes",
    "hold_back_s": "hold_back_s",
    "topics": "max_topics",
    "topics_per_client": "max_topics_per_client",
    "subscriptions_per_client": "max_subscriptions",
    "sessions": "max_sessions",
    "sessions_per_host": "max_sessions_per_host",
    "session_expiry_s": "max_session_expiry_s",
}
_JOBS: Final = {
    "lease_s": "lease_s",
    "keep_s": "job_keep_s",
}
_FRACTIONS: Final = frozenset(("messages_per_s", "hold_back_s", "sys_interval_s", *_JOBS))
_ZERO_IS_NONE: Final = frozenset(("clients_per_host", "messages_per_s"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """What the file says."""

    listen: list[str] = field(default_factory=lambda: [DEFAULT_LISTEN])
    """Addresses as HOST:PORT, not resolved yet."""
    settings: Settings = field(default_factory=Settings)
    data: Path | None = None
    """The folder of the log; None: it is in memory, and bounded."""
    retention: tuple[RetentionRule, ...] = ()
    """What is deleted when, of a log that has a folder; nothing unless there is a rule."""
    archive: ArchiveSection = field(default_factory=ArchiveSection)
    """Of a log that has a folder."""
    warnings: list[str] = field(default_factory=list)
    """What is allowed but hardly meant, a sentence each."""


def load_configuration(text: str, *, read_secret: Callable[[str], bytes], folder: Path = Path()) -> Configuration:
    """What a TOML file says; ConfigurationError names the key that is wrong and says what would be right.

    `read_secret` gives the content of a `secret_file`, whose path is as it stands in the file. Other paths are meant
    from `folder`.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        detail = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigurationError(f"the configuration is not TOML: {detail}") from error
    top = Table("", values)
    top.expect("listen", "sys_interval_s", "topics", "limits", "jobs", "access", "log", "archive")
    warnings: list[str] = []
    numbers: dict[str, Any] = {}
    if "sys_interval_s" in top:
        numbers["sys_interval_s"] = _number(top, "sys_interval_s", "sys_interval_s")
    numbers |= _numbers(top.table("limits"), _LIMITS)
    numbers |= _numbers(top.table("jobs"), _JOBS)
    topics = _topics(top.table("topics"))
    most, listed = numbers.get("max_topics", MAX_TOPICS), len(topics["topics"])
    if listed > most:
        raise ConfigurationError(f"topics.create lists {listed} topics, and limits.topics is {most}: raise that limit")
    settings = Settings(**topics, **numbers, access=_access(top, read_secret, warnings))
    listen = top.texts("listen", [DEFAULT_LISTEN])
    if not listen:
        raise ConfigurationError(f'listen is empty: give at least one address, as in ["{DEFAULT_LISTEN}"]')
    data, retention = read_log_section(top.table("log"), folder)
    archive = read_archive_section(top.table("archive"), folder)
    return Configuration(
        listen=listen, settings=settings, data=data, retention=retention, archive=archive, warnings=warnings
    )


# -- limits, jobs -----------------------------------------------------------------------------------------------------


def _numbers(table: Table, fields: dict[str, str]) -> dict[str, Any]:
    """By their keys in a section and the fields of Settings that they stand for."""
    table.expect(*fields)
    return {name: _number(table, key, name) for key, name in fields.items() if key in table}


def _number(table: Table, key: str, name: str) -> float | None:
    low, high = BOUNDS[name]
    value = table.number(key, fraction=key in _FRACTIONS)
    if key in _ZERO_IS_NONE and value == 0:
        return None
    if not low <= value <= high:
        none = ", or 0 for no limit" if key in _ZERO_IS_NONE else ""
        raise ConfigurationError(f"{table.label(key)} is {value}: it must lie between {low} and {high}{none}")
    return value


# -- topics -----------------------------------------------------------------------------------------------------------


def _topics(table: Table) -> dict[str, Any]:
    table.expect("policy", "create", "rule")
    names = table.texts("create", [])
    for name in names:
        _checked(table.label("create"), name, check_topic)
        if name.startswith(RESERVED):
            raise ConfigurationError(
                f"{table.label('create')}: topic {shown(name)} begins with $, as only the broker's own do: rename it"
            )
    policies: list[tuple[str, Policy]] = []
    logged: list[str] = []
    for rule in table.tables("rule"):
        rule.expect("filter", "policy", "log")
        pattern = rule.text("filter")
        _checked(rule.label(), pattern, check_filter)
        if "policy" not in rule and "log" not in rule:
            raise ConfigurationError(f"{rule.label()} says nothing of its topics: give policy, log or both")
        if "policy" in rule:
            policies.append((pattern, cast(Policy, rule.choice("policy", POLICIES))))
        if rule.flag("log", False):
            logged.append(pattern)
    return {
        "topics": tuple(dict.fromkeys(names)),
        "default_policy": table.choice("policy", POLICIES, "open"),
        "policies": tuple(policies),
        "logged": tuple(logged),
    }


def _checked(where: str, value: str, check: Callable[[str], None]) -> None:
    try:
        check(value)
    except (BadTopicError, BadFilterError) as error:
        raise ConfigurationError(f"{where}: {error}") from error


# -- access -----------------------------------------------------------------------------------------------------------


def _access(top: Table, read_secret: Callable[[str], bytes], warnings: list[str]) -> Access:
    if "access" not in top:
        return Access.open()
    table = top.table("access")
    table.expect("anonymous", "client", "rule")
    secrets: dict[str, bytes] = {}
    for client in table.tables("client"):
        client.expect("name", "secret", "secret_file")
        name = client.text("name")
        if name in secrets:
            raise ConfigurationError(f"{client.label('name')}: {shown(name)} is listed twice: remove one of them")
        secrets[name] = _secret(client, read_secret)
    rules = tuple(_rule(rule) for rule in table.tables("rule"))
    access = Access(secrets=secrets, rules=rules, allows_anonymous=table.flag("anonymous", not secrets))
    warnings += _doubts(access)
    return access


def _secret(client: Table, read_secret: Callable[[str], bytes]) -> bytes:
    if ("secret" in client) == ("secret_file" in client):
        raise ConfigurationError(f"{client.label()}: give either secret or secret_file, and only one of them")
    if "secret" in client:
        return client.text("secret").encode()
    path = client.text("secret_file")
    try:
        return secret_in(read_secret(path))
    except OSError as error:
        raise ConfigurationError(
            f"{client.label('secret_file')}: cannot read {shown(path)} ({error.strerror or error}): "
            "check the path and who may read it"
        ) from error


def _rule(table: Table) -> Rule:
    table.expect("clients", "allow", "topics")
    clients = tuple(table.texts("clients"))
    actions = frozenset(cast(Action, action) for action in table.choices("allow", ACTIONS))
    topics = tuple(table.texts("topics", []))
    try:
        return Rule(clients=clients, allow=actions, topics=topics)
    except ConfigurationError as error:
        raise ConfigurationError(f"{table.label()}: {error}") from error


def _doubts(access: Access) -> list[str]:
    """What an operator hardly meant."""
    found = []
    if not access.rules:
        found.append("access has no rules: clients may connect, and do nothing else; add an [[access.rule]]")
    if not access.secrets and not access.allows_anonymous:
        found.append("access lists no client and anonymous is false: nobody can connect; add an [[access.client]]")
    for name, secret in access.secrets.items():
        if len(secret) < SHORT_SECRET_BYTES:
            found.append(
                f"the secret of client {shown(name)} has {len(secret)} bytes, which can be guessed by whoever "
                "sees a login; make it longer"
            )
    for number, rule in enumerate(access.rules, 1):
        for glob in rule.clients:
            if glob != EVERYONE and not any(is_like(name, glob) for name in access.secrets):
                found.append(
                    f"access.rule number {number} is for {shown(glob)}, which fits no listed client; "
                    f'list such a client, or write "{EVERYONE}" for everyone'
                )
    return found
