"""The broker's configuration file: TOML, converted by msgspec into one tree of structs. Unknown keys are refused.

    text --tomllib--> dict --msgspec--> ConfigurationFile --checks--> Configuration

examples/broker.toml shows and explains all keys. An error names the line and the key, what is wrong and what to do (see
godwit.server.configuration_errors). No error text repeats a value of the wrong type: it may be a secret.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from godwit.broker.access import ACTIONS, EVERYONE, Access, Action, Rule, is_like, secret_in
from godwit.broker.settings import BOUNDS, Policy, Settings
from godwit.broker.topics import check_filter, check_topic, shown
from godwit.errors import BadFilterError, BadTopicError, ConfigurationError
from godwit.limits import MAX_RELAY_FILTERS, MAX_RELAY_FILTERS_BYTES, MIB
from godwit.mqtt.connection import MqttSettings
from godwit.server.cluster_configuration import ClusterFileSection, ClusterSection, read_cluster
from godwit.server.configuration_errors import ConfigurationSource, KeyPath, label
from godwit.server.configuration_values import AGES_S, SIZES_BYTES, Quantity, read_path, read_quantity
from godwit.store.retention import RetentionRule
from godwit.wire.filters import RESERVED

DEFAULT_LISTEN: Final = "127.0.0.1:50000"
NO_ARCHIVE: Final = "none"
SHORT_SECRET_BYTES: Final = 12
MIN_AGE_S: Final = 1.0
MIN_LOG_BYTES: Final = MIB
"""A block may be this long, and nothing smaller is deleted."""
MAX_METRIC_SERIES: Final = 100_000

_BRIDGE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DEFAULTS: Final = Settings()
_MQTT_DEFAULTS: Final = MqttSettings()
_FINGERPRINT: Final = re.compile(r"sha256:[0-9a-f]{64}")
ANY_CERTIFICATE: Final = "ca"
"""In place of a fingerprint: any certificate of client_ca that has the name."""
_WITH_TLS: Final = re.compile(r"\s*(tls|ssl|mqtts|wss):", re.IGNORECASE)
"""An address for MQTT that needs a certificate, see godwit.net.mqtt."""
_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#@,]+", re.IGNORECASE)
"""The origin of a page, as a browser sends it; pages of files have `null`."""
_MQTT_BOUNDS: Final = {
    "receive_maximum": (1, 65_535),
    "topic_alias_maximum": (0, 65_535),
    "max_packet_bytes": (0, 268_435_460),
    "max_keep_alive_s": (0, 65_535),
    "max_in_flight": (1, 65_535),
}
_ZERO_IS_NONE: Final = frozenset(("max_clients_per_host", "host_logins_per_s", "messages_per_s"))
"""Numbers for which 0 means no limit."""


# -- the result -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveSection:
    """How the archive is started."""

    is_on: bool = True
    listen: str | None = None
    """HOST:PORT; None for the host of the first listener and its port plus one."""
    token_file: Path | None = None
    """One token a line, optionally with its rights; see godwit.archive.tokens."""
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MqttSection:
    """The MQTT listeners of a broker."""

    listen: tuple[str, ...]
    """Addresses as HOST:PORT, tls://HOST:PORT, ws://HOST:PORT/path or wss://HOST:PORT/path."""
    settings: MqttSettings = field(default_factory=MqttSettings)
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    """Clients must have a certificate of this authority."""


PlainMode: TypeAlias = Literal["loopback", "allow", "refuse"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SecuritySection:
    """How connections of clients are sealed."""

    plain: PlainMode = "loopback"
    """Which clients may connect without sealing: those on the broker's machine, all, or none."""
    certificate: Path | None = None
    """A PEM file; None for a certificate that the broker makes itself and stores in its data folder."""
    key: Path | None = None
    client_ca: Path | None = None
    """A PEM file with authorities whose certificates prove the names of clients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BridgeSection:
    """A bridge: messages of this broker's log are sent to a hub."""

    name: str
    """The link: the name of this broker's client at the hub."""
    hub: str
    """HOST:PORT of the hub, also with udps:// and a fingerprint; several with commas between them."""
    filters: tuple[str, ...] = ("#",)
    prefix: str = ""
    """Put before every topic. Empty, or one or more levels with a slash at the end."""
    secret: bytes = field(default=b"", repr=False)
    hold: bool = False
    """Whether retention waits for messages that the hub does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsSection:
    """The metrics endpoint of a broker."""

    listen: str
    """HOST:PORT, for HTTP."""
    clients: tuple[str, ...] = ()
    """Clients with series of their own; * matches any characters and ? one."""
    topics: tuple[str, ...] = ()
    """Filters for topics with series of their own."""
    max_series: int = 1000
    """Maximum of clients, and of topics, with series of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The configuration of a broker."""

    listen: list[str] = field(default_factory=lambda: [DEFAULT_LISTEN])
    """Addresses as HOST:PORT, not resolved yet."""
    settings: Settings = field(default_factory=Settings)
    data: Path | None = None
    """The folder of the log; None for a bounded log in memory."""
    retention: tuple[RetentionRule, ...] = ()
    """Rules of retention for a log that has a folder; without a rule nothing is deleted."""
    archive: ArchiveSection = field(default_factory=ArchiveSection)
    """The archive of a log that has a folder."""
    mqtt: MqttSection | None = None
    """None: no MQTT."""
    bridges: tuple[BridgeSection, ...] = ()
    """Bridges of a log that has a folder."""
    metrics: MetricsSection | None = None
    """None: no metrics endpoint."""
    cluster: ClusterSection | None = None
    """None: this broker is alone."""
    security: SecuritySection = field(default_factory=SecuritySection)
    private_files: tuple[Path, ...] = ()
    """Files with keys, secrets or tokens that the configuration names."""
    has_secrets: bool = False
    """Whether the text of the configuration has a secret itself."""
    warnings: list[str] = field(default_factory=list)
    """Settings that are allowed but probably a mistake, a sentence each."""


# -- the file ---------------------------------------------------------------------------------------------------------


class _Section(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. The names of keys are those of the fields, unless `name` gives another one."""

    def __repr__(self) -> str:
        """Return no values: some are secrets."""
        return f"<{type(self).__name__}>"


class TopicRuleSection(_Section):
    """[[topics.rule]]"""

    filter: str
    policy: Policy | None = None
    log: bool | None = None


class TopicsSection(_Section):
    """[topics]"""

    policy: Policy = "open"
    create: list[str] = []
    rule: list[TopicRuleSection] = []


class LimitsSection(_Section):
    """[limits]. The fields are those of Settings."""

    max_clients: int = msgspec.field(name="clients", default=_DEFAULTS.max_clients)
    max_clients_per_host: int | None = msgspec.field(name="clients_per_host", default=None)
    host_logins_per_s: float | None = None
    max_message_bytes: int = msgspec.field(name="message_bytes", default=_DEFAULTS.max_message_bytes)
    max_datagram_bytes: int = msgspec.field(name="datagram_bytes", default=_DEFAULTS.max_datagram_bytes)
    client_window_bytes: int = msgspec.field(name="client_memory_bytes", default=_DEFAULTS.client_window_bytes)
    messages_per_s: float | None = None
    ring_bytes: int = _DEFAULTS.ring_bytes
    max_retained_bytes: int = msgspec.field(name="retained_bytes", default=_DEFAULTS.max_retained_bytes)
    max_client_retained_bytes: int = msgspec.field(
        name="client_retained_bytes", default=_DEFAULTS.max_client_retained_bytes
    )
    hold_back_s: float = _DEFAULTS.hold_back_s
    max_topics: int = msgspec.field(name="topics", default=_DEFAULTS.max_topics)
    max_topics_per_client: int = msgspec.field(name="topics_per_client", default=_DEFAULTS.max_topics_per_client)
    max_subscriptions: int = msgspec.field(name="subscriptions_per_client", default=_DEFAULTS.max_subscriptions)
    max_sessions: int = msgspec.field(name="sessions", default=_DEFAULTS.max_sessions)
    max_sessions_per_host: int = msgspec.field(name="sessions_per_host", default=_DEFAULTS.max_sessions_per_host)
    max_session_expiry_s: int = msgspec.field(name="session_expiry_s", default=_DEFAULTS.max_session_expiry_s)
    max_groups: int = msgspec.field(name="groups", default=_DEFAULTS.max_groups)
    group_ack_s: float = _DEFAULTS.group_ack_s


class JobsSection(_Section):
    """[jobs]. The fields are those of Settings."""

    lease_s: float = _DEFAULTS.lease_s
    job_keep_s: float = msgspec.field(name="keep_s", default=_DEFAULTS.job_keep_s)


class AccessClientSection(_Section):
    """[[access.client]]"""

    name: str
    secret: str | None = None
    secret_file: str | None = None
    certificate: str | None = None


class AccessRuleSection(_Section):
    """[[access.rule]]"""

    clients: list[str]
    allow: list[Action] = []
    deny: list[Action] = []
    topics: list[str] = []
    groups: list[str] = msgspec.field(default_factory=lambda: [EVERYONE])


class AccessSection(_Section):
    """[access]"""

    anonymous: bool | None = None
    client: list[AccessClientSection] = []
    rule: list[AccessRuleSection] = []


class LogRuleSection(_Section):
    """[[log.rule]]"""

    filter: str
    max_age: Quantity | None = None
    max_bytes: Quantity | None = None


class LogSection(_Section):
    """[log]"""

    data: str | None = None
    max_age: Quantity | None = None
    max_bytes: Quantity | None = None
    rule: list[LogRuleSection] = []


class ArchiveFileSection(_Section):
    """[archive]"""

    listen: str | None = None
    token_file: str | None = None
    certificate: str | None = None
    key: str | None = None


class SecurityFileSection(_Section):
    """[security]"""

    plain: PlainMode = "loopback"
    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None


class MqttFileSection(_Section):
    """[mqtt]"""

    listen: list[str]
    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None
    receive_maximum: int = _MQTT_DEFAULTS.receive_maximum
    topic_alias_maximum: int = _MQTT_DEFAULTS.topic_alias_maximum
    max_packet_bytes: int = _MQTT_DEFAULTS.max_packet_bytes
    max_keep_alive_s: int = _MQTT_DEFAULTS.max_keep_alive_s
    max_in_flight: int = _MQTT_DEFAULTS.max_in_flight
    log_qos_0: bool = _MQTT_DEFAULTS.log_qos_0
    user_from_certificate: bool = _MQTT_DEFAULTS.user_from_certificate
    response_information: str = _MQTT_DEFAULTS.response_information
    origins: list[str] = []


class BridgeFileSection(_Section):
    """[[bridge]]"""

    name: str
    hub: str
    filters: list[str] = msgspec.field(default_factory=lambda: ["#"])
    prefix: str = ""
    secret: str | None = None
    secret_file: str | None = None
    hold: bool = False


class MetricsFileSection(_Section):
    """[metrics]"""

    listen: str
    clients: list[str] = []
    topics: list[str] = []
    max_series: int = 1000


class ConfigurationFile(_Section):
    """The whole file."""

    listen: list[str] = msgspec.field(default_factory=lambda: [DEFAULT_LISTEN])
    sys_interval_s: float = _DEFAULTS.sys_interval_s
    topics: TopicsSection = msgspec.field(default_factory=TopicsSection)
    limits: LimitsSection = msgspec.field(default_factory=LimitsSection)
    jobs: JobsSection = msgspec.field(default_factory=JobsSection)
    access: AccessSection | None = None
    log: LogSection = msgspec.field(default_factory=LogSection)
    archive: ArchiveFileSection = msgspec.field(default_factory=ArchiveFileSection)
    mqtt: MqttFileSection | None = None
    bridge: list[BridgeFileSection] = []
    metrics: MetricsFileSection | None = None
    cluster: ClusterFileSection | None = None
    security: SecurityFileSection = msgspec.field(default_factory=SecurityFileSection)


def load_configuration(text: str, *, read_secret: Callable[[str], bytes], folder: Path = Path()) -> Configuration:
    """Convert and check the text of a configuration file.

    Args:
        text: The content of the file.
        read_secret: Returns the content of a `secret_file`, whose path is passed as it is in the file.
        folder: Other paths in the file are relative to this folder.

    Raises:
        ConfigurationError: The text has the line and the key, what is wrong and what to do.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        detail = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigurationError(f"the configuration is not TOML: {detail}") from error
    source = ConfigurationSource(text, values, ConfigurationFile)
    try:
        file = msgspec.convert(values, ConfigurationFile)
    except (msgspec.ValidationError, OverflowError) as error:
        raise source.conversion_error(error) from None
    if not file.listen:
        raise source.error(("listen",), f'listen is empty: give at least one address, as in ["{DEFAULT_LISTEN}"]')
    warnings: list[str] = []
    settings = Settings(
        **_topics(file, source),
        **_numbers(source, (), file, "sys_interval_s"),
        **_numbers(source, ("limits",), file.limits),
        **_numbers(source, ("jobs",), file.jobs),
        access=_access(file.access, source, read_secret, warnings, file.security.client_ca is not None),
    )
    data = read_path(source, ("log", "data"), file.log.data, folder)
    retention = _retention(file.log, source)
    # Listeners with TLS use the certificate of the broker, unless they have their own.
    for other in (file.archive, file.mqtt):
        if other is not None and other.certificate is None and other.key is None:
            other.certificate, other.key = file.security.certificate, file.security.key
    archive = _archive(file.archive, source, folder)
    mqtt = None if file.mqtt is None else _mqtt(file.mqtt, source, folder)
    owners: list[AccessClientSection | BridgeFileSection] = [
        *([] if file.access is None else file.access.client),
        *file.bridge,
    ]
    private = [folder / one.secret_file for one in owners if one.secret_file is not None]
    private += [path for path in (archive.key, archive.token_file, None if mqtt is None else mqtt.key) if path]
    if file.cluster is not None:
        private += [
            folder / path for path in (file.cluster.password_file, file.cluster.credentials, file.cluster.key) if path
        ]
    return Configuration(
        listen=file.listen,
        settings=settings,
        data=data,
        retention=retention,
        archive=archive,
        mqtt=mqtt,
        bridges=_bridges(file.bridge, source, read_secret),
        metrics=None if file.metrics is None else _metrics(file.metrics, source),
        cluster=None if file.cluster is None else read_cluster(file.cluster, source, read_secret, folder),
        security=_security(file.security, source, folder),
        private_files=tuple(dict.fromkeys(private)),
        has_secrets=any(one.secret is not None for one in owners)
        or (file.cluster is not None and file.cluster.password is not None),
        warnings=warnings,
    )


# -- limits, jobs -----------------------------------------------------------------------------------------------------


def _numbers(source: ConfigurationSource, path: KeyPath, section: _Section, *names: str) -> dict[str, Any]:
    """Return the numbers of a section by the fields of Settings, each within its bounds."""
    found: dict[str, Any] = {}
    for each in msgspec.structs.fields(section):
        if names and each.name not in names:
            continue
        value = getattr(section, each.name)
        if each.name in _ZERO_IS_NONE and value == 0:
            value = None
        low, high = BOUNDS[each.name]
        if value is not None and not low <= value <= high:
            key = (*path, each.encode_name)
            none = ", or 0 for no limit" if each.name in _ZERO_IS_NONE else ""
            text = f"{label(key)} is {source.value(key)}: it must lie between {low} and {high}{none}"
            raise source.error(key, text)
        found[each.name] = value
    return found


# -- topics -----------------------------------------------------------------------------------------------------------


def _topics(file: ConfigurationFile, source: ConfigurationSource) -> dict[str, Any]:
    create: KeyPath = ("topics", "create")
    for name in file.topics.create:
        _check(source, create, name, check_topic)
        if name.startswith(RESERVED):
            text = f"{label(create)}: topic {shown(name)} begins with $, as only the broker's own do: rename it"
            raise source.error(create, text)
    listed = len(dict.fromkeys(file.topics.create))
    if listed > file.limits.max_topics:
        text = f"{label(create)} lists {listed} topics, and limits.topics is {file.limits.max_topics}"
        raise source.error(create, f"{text}: raise that limit")
    for number, rule in enumerate(file.topics.rule):
        key: KeyPath = ("topics", "rule", number)
        _check(source, key, rule.filter, check_filter)
        if rule.policy is None and rule.log is None:
            raise source.error(key, f"{label(key)} has neither policy nor log: give policy, log or both")
    return {
        "topics": tuple(dict.fromkeys(file.topics.create)),
        "default_policy": file.topics.policy,
        "policies": tuple((rule.filter, rule.policy) for rule in file.topics.rule if rule.policy is not None),
        "logged": tuple(rule.filter for rule in file.topics.rule if rule.log),
    }


def _check(source: ConfigurationSource, key: KeyPath, value: str, check: Callable[[str], object]) -> None:
    try:
        check(value)
    except (BadTopicError, BadFilterError) as error:
        raise source.error(key, f"{label(key)}: {error}") from error


# -- access -----------------------------------------------------------------------------------------------------------


def _access(
    section: AccessSection | None,
    source: ConfigurationSource,
    read_secret: Callable[[str], bytes],
    warnings: list[str],
    has_client_ca: bool,
) -> Access:
    if section is None:
        return Access.open()
    secrets: dict[str, bytes] = {}
    certificates: dict[str, str] = {}
    for number, client in enumerate(section.client):
        key: KeyPath = ("access", "client", number)
        if client.name in secrets or client.name in certificates:
            text = f"{label((*key, 'name'))}: {shown(client.name)} is listed twice: remove one of them"
            raise source.error((*key, "name"), text)
        if client.certificate is not None:
            certificates[client.name] = _certificate(client.certificate, key, source, has_client_ca)
        if client.certificate is None or client.secret is not None or client.secret_file is not None:
            secrets[client.name] = _secret(client, key, source, read_secret)
    rules = tuple(_access_rule(rule, ("access", "rule", number), source) for number, rule in enumerate(section.rule))
    allows_anonymous = not (secrets or certificates) if section.anonymous is None else section.anonymous
    try:
        access = Access(secrets=secrets, certificates=certificates, rules=rules, allows_anonymous=allows_anonymous)
    except ConfigurationError as error:
        raise source.error(("access", "client"), str(error)) from error
    warnings += _doubts(access)
    return access


def _certificate(text: str, key: KeyPath, source: ConfigurationSource, has_client_ca: bool) -> str:
    """Return the fingerprint of the key that proves a name; an empty text for a certificate of client_ca."""
    key = (*key, "certificate")
    if text == ANY_CERTIFICATE:
        if not has_client_ca:
            raise source.error(key, f'{label(key)} is "{ANY_CERTIFICATE}": give client_ca under [security] too')
        return ""
    if not _FINGERPRINT.fullmatch(text):
        problem = (
            f'{label(key)}: write "{ANY_CERTIFICATE}", or the fingerprint of a key: sha256: and 64 hexadecimal digits'
        )
        raise source.error(key, problem)
    return text


def _secret(
    client: AccessClientSection, key: KeyPath, source: ConfigurationSource, read_secret: Callable[[str], bytes]
) -> bytes:
    if client.secret is not None and client.secret_file is None:
        return client.secret.encode()
    if client.secret is not None or client.secret_file is None:
        text = f"{label(key)}: give either secret or secret_file, and only one of them, or a certificate"
        raise source.error(key, text)
    try:
        return secret_in(read_secret(client.secret_file))
    except OSError as error:
        key = (*key, "secret_file")
        text = f"{label(key)}: cannot read {shown(client.secret_file)} ({error.strerror or error})"
        raise source.error(key, f"{text}: check the path and its permissions") from error


def _access_rule(rule: AccessRuleSection, key: KeyPath, source: ConfigurationSource) -> Rule:
    if not rule.allow and not rule.deny:
        text = f"{label(key)} has neither allow nor deny: give one of them, with actions from {', '.join(ACTIONS)}"
        raise source.error(key, text)
    try:
        return Rule(
            clients=tuple(rule.clients),
            allow=frozenset(rule.allow),
            deny=frozenset(rule.deny),
            topics=tuple(rule.topics),
            groups=tuple(rule.groups),
        )
    except ConfigurationError as error:
        raise source.error(key, f"{label(key)}: {error}") from error


def _doubts(access: Access) -> list[str]:
    """Return a warning for each setting that is probably a mistake."""
    found = []
    if not any(rule.allow for rule in access.rules):
        found.append("access has no rules that allow: clients may connect, and do nothing else; add an [[access.rule]]")
    if not access.names and not access.allows_anonymous:
        found.append("access lists no client and anonymous is false: no client can connect; add an [[access.client]]")
    for name, secret in access.secrets.items():
        if len(secret) < SHORT_SECRET_BYTES:
            found.append(
                f"the secret of client {shown(name)} has {len(secret)} bytes, and can be guessed from a recorded "
                "login; make it longer"
            )
    for number, rule in enumerate(access.rules, 1):
        for glob in rule.clients:
            if glob != EVERYONE and not any(is_like(name, glob) for name in access.names):
                found.append(
                    f"access.rule number {number} is for {shown(glob)}, which fits no listed client; "
                    f'list such a client, or write "{EVERYONE}" for everyone'
                )
    rights = access.rights_of_anonymous() if access.allows_anonymous else []
    for number, rule in enumerate(access.rules, 1):
        if not rule.is_for_everyone and any(_is_denied(rule, action, texts) for action, texts in rights):
            found.append(
                f"access.rule number {number} denies rights that clients without a proved name have: its clients get "
                f'around it by connecting without their name; deny them to "{EVERYONE}", or set anonymous = false'
            )
    return found


def _is_denied(rule: Rule, action: Action, texts: tuple[str, ...]) -> bool:
    return any(rule.denies(None, action, text, group) for text in texts or ("",) for group in (None, *rule.groups))


# -- log, archive -----------------------------------------------------------------------------------------------------


def _retention(section: LogSection, source: ConfigurationSource) -> tuple[RetentionRule, ...]:
    """Return the rules of retention; the last one, without a filter, is for the whole log."""
    rules = []
    for number, rule in enumerate(section.rule):
        key: KeyPath = ("log", "rule", number)
        _check(source, key, rule.filter, check_filter)
        rules.append(RetentionRule(rule.filter, _age_s(rule, source, key), _bytes(rule, source, key)))
    age_s, size_bytes = _age_s(section, source, ("log",)), _bytes(section, source, ("log",))
    if age_s is not None or size_bytes is not None:
        rules.append(RetentionRule(None, age_s, size_bytes))
    return tuple(rules)


def _archive(section: ArchiveFileSection, source: ConfigurationSource, folder: Path) -> ArchiveSection:
    def path(key: str, text: str | None) -> Path | None:
        return read_path(source, ("archive", key), text, folder)

    if (section.certificate is None) != (section.key is None):
        raise source.error(("archive",), "archive has only one of certificate and key: give both, or none")
    return ArchiveSection(
        is_on=section.listen != NO_ARCHIVE,
        listen=None if section.listen == NO_ARCHIVE else section.listen,
        token_file=path("token_file", section.token_file),
        certificate=path("certificate", section.certificate),
        key=path("key", section.key),
    )


def _security(section: SecurityFileSection, source: ConfigurationSource, folder: Path) -> SecuritySection:
    if (section.certificate is None) != (section.key is None):
        raise source.error(("security",), "security has only one of certificate and key: give both, or none")
    return SecuritySection(
        plain=section.plain,
        certificate=read_path(source, ("security", "certificate"), section.certificate, folder),
        key=read_path(source, ("security", "key"), section.key, folder),
        client_ca=read_path(source, ("security", "client_ca"), section.client_ca, folder),
    )


def _mqtt(section: MqttFileSection, source: ConfigurationSource, folder: Path) -> MqttSection:
    def path(key: str, text: str | None) -> Path | None:
        return read_path(source, ("mqtt", key), text, folder)

    if not section.listen:
        raise source.error(("mqtt", "listen"), 'mqtt.listen is empty: give an address, as in ["127.0.0.1:1883"]')
    if (section.certificate is None) != (section.key is None):
        raise source.error(("mqtt",), "mqtt has only one of certificate and key: give both, or none")
    if section.certificate is None and any(map(_WITH_TLS.match, section.listen)):
        raise source.error(
            ("mqtt", "listen"),
            "mqtt.listen has an address with TLS: give certificate and key too, here or under [security]",
        )
    if section.user_from_certificate and section.client_ca is None:
        text = "mqtt.user_from_certificate needs client_ca: the authority that signs the certificates of clients"
        raise source.error(("mqtt", "user_from_certificate"), text)
    _check_response_information(section, source)
    for origin in section.origins:
        if not _ORIGIN.fullmatch(origin):
            text = f'mqtt.origins has {origin!r}: write an origin as "https://dashboard.example", or "*" for all pages'
            raise source.error(("mqtt", "origins"), text)
    settings = MqttSettings(**{name: getattr(section, name) for name in MqttSettings.__struct_fields__})
    for name, (low, high) in _MQTT_BOUNDS.items():
        value = getattr(section, name)
        if not low <= value <= high:
            raise source.error(("mqtt", name), f"mqtt.{name} is {value}: it must lie between {low} and {high}")
    return MqttSection(
        listen=tuple(section.listen),
        settings=msgspec.structs.replace(settings, origins=tuple([one.lower() for one in section.origins])),
        certificate=path("certificate", section.certificate),
        key=path("key", section.key),
        client_ca=path("client_ca", section.client_ca),
    )


def _metrics(section: MetricsFileSection, source: ConfigurationSource) -> MetricsSection:
    if not section.listen:
        raise source.error(("metrics", "listen"), 'metrics.listen is empty: give an address, as in "127.0.0.1:9464"')
    for pattern in section.topics:
        _check(source, ("metrics", "topics"), pattern, check_filter)
    if not 1 <= section.max_series <= MAX_METRIC_SERIES:
        text = f"metrics.max_series is {section.max_series}: it must lie between 1 and {MAX_METRIC_SERIES}"
        raise source.error(("metrics", "max_series"), text)
    return MetricsSection(
        listen=section.listen,
        clients=tuple(section.clients),
        topics=tuple(section.topics),
        max_series=section.max_series,
    )


def _check_response_information(section: MqttFileSection, source: ConfigurationSource) -> None:
    text = section.response_information
    try:
        if text:
            check_topic(text.replace("{client}", "x"))
    except BadTopicError as error:
        key = ("mqtt", "response_information")
        raise source.error(key, f"mqtt.response_information is not the beginning of a topic: {error}") from None


# -- bridges ----------------------------------------------------------------------------------------------------------


def _bridges(
    sections: list[BridgeFileSection], source: ConfigurationSource, read_secret: Callable[[str], bytes]
) -> tuple[BridgeSection, ...]:
    found: dict[str, BridgeSection] = {}
    for number, section in enumerate(sections):
        key: KeyPath = ("bridge", number)
        if not _BRIDGE_NAME.fullmatch(section.name):
            text = f"{label((*key, 'name'))} is not the name of a bridge: use up to 64 letters, digits, - _ and ."
            raise source.error((*key, "name"), text)
        if section.name in found:
            text = f"{label((*key, 'name'))}: {section.name} occurs twice: give each bridge a name of its own"
            raise source.error((*key, "name"), text)
        if section.secret is not None and section.secret_file is not None:
            raise source.error(key, f"{label(key)} has secret and secret_file: give one of them")
        secret = b""
        if section.secret is not None:
            secret = section.secret.encode()
        elif section.secret_file is not None:
            try:
                secret = secret_in(read_secret(section.secret_file))
            except OSError as error:
                text = f"{label((*key, 'secret_file'))}: cannot read {shown(section.secret_file)}"
                raise source.error((*key, "secret_file"), f"{text} ({error.strerror or error}); check it") from error
        prefix = f"{section.prefix.rstrip('/')}/" if section.prefix else ""
        found[section.name] = BridgeSection(
            name=section.name,
            hub=section.hub,
            filters=_bridge_filters(section, key, source, prefix),
            prefix=prefix,
            secret=secret,
            hold=section.hold,
        )
    return tuple(found.values())


def _bridge_filters(
    section: BridgeFileSection, key: KeyPath, source: ConfigurationSource, prefix: str
) -> tuple[str, ...]:
    at = (*key, "filters")
    if prefix:
        _check(source, (*key, "prefix"), prefix.rstrip("/"), check_topic)
    for text in section.filters:
        _check(source, at, text, check_filter)
        _check(source, at, prefix + text, check_filter)
    if any(text.startswith(RESERVED) for text in (*section.filters, prefix)):
        raise source.error(at, f"{label(at)}: topics that begin with $ are a broker's own: leave them out")
    size_bytes = sum(len((prefix + text).encode()) for text in section.filters)
    if not 1 <= len(section.filters) <= MAX_RELAY_FILTERS or size_bytes > MAX_RELAY_FILTERS_BYTES:
        text = f"{len(section.filters)} filters, {size_bytes} bytes with the prefix"
        limit = f"give 1 to {MAX_RELAY_FILTERS}, of at most {MAX_RELAY_FILTERS_BYTES} bytes"
        raise source.error(at, f"{label(at)}: {text}: {limit}")
    return tuple(dict.fromkeys(section.filters))


def _age_s(section: LogSection | LogRuleSection, source: ConfigurationSource, path: KeyPath) -> float | None:
    """Return the maximum age in seconds, or None for no limit."""
    key = (*path, "max_age")
    return read_quantity(source, key, section.max_age, AGES_S, MIN_AGE_S, "1 s", '"30d", "12h" or a number of seconds')


def _bytes(section: LogSection | LogRuleSection, source: ConfigurationSource, path: KeyPath) -> int | None:
    """Return the maximum size in bytes, or None for no limit."""
    key, how = (*path, "max_bytes"), '"10GiB", "500MB" or a number of bytes'
    found = read_quantity(source, key, section.max_bytes, SIZES_BYTES, MIN_LOG_BYTES, "1 MiB", how)
    return None if found is None else int(found)
