"""How a client decides whether to seal its connections, and whether a broker is the expected one.

    udps://host:port    sealed
    udp://host:port     plain
    host:port           sealed, except on this machine (a loopback address)

A sealed client compares the broker's key with a fingerprint (`udps://host:port#sha256:...`), or checks its certificate
with a CA, or, without both, trusts the key that it sees first and remembers it in the file `known_brokers`, as ssh
does. It never falls back to plain packets. TLS itself is in godwit.net.tls, which is imported when it is needed.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from godwit.client.arguments import check_flag, check_text
from godwit.errors import AddressError, ConfigurationError, GodwitError, UsageError
from godwit.net.address import Brokers, parse_broker, split_brokers
from godwit.net.arguments import check_path
from godwit.transport.events import Address, Role
from godwit.transport.protection import Suite
from godwit.transport.sealing import TlsError, TlsSession

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from godwit.net.tls import BrokerSealer
    from godwit.server.configuration import PlainMode, SecuritySection

SealMode: TypeAlias = Literal["auto", "always", "never"]
_FINGERPRINT: Final = re.compile(r"sha256:[0-9a-f]{64}")
_SCHEMES: Final[Mapping[str, SealMode]] = {"udp": "never", "udps": "always"}

_logger = logging.getLogger(__name__)
_trust_logger = logging.getLogger(f"{__name__}.trust")
"""For warnings that users of the command line see, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Security:
    """How a client seals its connections and verifies brokers.

    Args:
        seal: "always", "never", or "auto": always, except on this machine. The scheme of an address (`udps://` or
            `udp://`) has precedence.
        fingerprint: The fingerprint of the broker's key, `sha256:` and 64 hexadecimal digits, as the broker prints it
            when it starts.
        ca: A PEM file with certificates of authorities. The broker's certificate must be issued by one of them, for
            the host name or IP address that the client connects to.
        known_brokers: The file with the keys of brokers seen before; by default `~/.config/godwit/known_brokers`. It is
            used if neither `fingerprint` nor `ca` is given.
        trust_new: Whether to trust a broker that is not in that file, and to add it.
        certificate: A PEM file with a certificate of the client, which proves its name if the broker accepts that.
        key: The PEM file with the key of that certificate.

    Raises:
        UsageError: A value is of the wrong type.
        ConfigurationError: A value is invalid.
    """

    seal: SealMode = "auto"
    fingerprint: str = ""
    ca: str | Path | None = None
    known_brokers: str | Path | None = None
    trust_new: bool = True
    certificate: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        check_text("fingerprint", self.fingerprint)
        check_flag("trust_new", self.trust_new)
        paths = {"ca": self.ca, "known_brokers": self.known_brokers, "certificate": self.certificate, "key": self.key}
        for what, path in paths.items():
            if path is not None:
                check_path(what, path)
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("security has only one of certificate and key: give both, or none")
        if self.seal not in get_args(SealMode):
            raise ConfigurationError(f"seal is {self.seal!r}: choose one of {', '.join(get_args(SealMode))}")
        if self.fingerprint:
            check_fingerprint(self.fingerprint)


def check_fingerprint(text: str) -> str:
    """Return a fingerprint. Raises ConfigurationError if the text is not one."""
    if not _FINGERPRINT.fullmatch(text):
        raise ConfigurationError(
            f"the fingerprint {text[:80]!r} is invalid: it is `sha256:` and 64 hexadecimal digits, as the broker "
            "prints it when it starts"
        )
    return text


def security_of(text: str, security: Security) -> Security:
    """Return the security for one address of a broker: its scheme and its fingerprint have precedence.

    Raises AddressError if the fingerprint in the address is invalid.
    """
    address, _, fingerprint = text.strip().partition("#")
    scheme = address.partition("://")[0].lower() if "://" in address else ""
    mode = _SCHEMES.get(scheme, security.seal)
    if not fingerprint:
        return security if mode == security.seal else replace(security, seal=mode)
    if mode == "never":
        raise AddressError(
            f"{text!r} has a fingerprint, but plain packets prove nothing: write udps:// or leave it out"
        )
    try:
        return replace(security, seal="always", fingerprint=check_fingerprint(fingerprint))
    except ConfigurationError as error:
        raise AddressError(f"{text!r} is not the address of a broker: {error}") from None


def securities_of(brokers: Brokers, security: Security | None) -> dict[tuple[str, int], Security]:
    """Return the security of each broker, by host and port.

    Raises UsageError if `security` is of another type, AddressError if an address has an invalid fingerprint.
    """
    if security is not None and not isinstance(security, Security):
        raise UsageError(f"security is of the type {type(security).__name__}: give a godwit.Security")
    common = security or Security()
    return {parse_broker(text): security_of(text, common) for text in split_brokers(brokers)}


def is_this_machine(address: Address) -> bool:
    """Return whether an address is a loopback address, also if it is an IPv4 address in IPv6 form."""
    host = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return host.is_loopback


def default_key_folder() -> Path | None:
    """Return the folder for the key of a broker without a data folder; None if the user has none that is writable."""
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = (Path(base) if base else Path.home() / ".local" / "state") / "godwit"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    return folder if os.access(folder, os.W_OK) else None


def default_known_brokers() -> Path:
    """Return the file with the keys of brokers that this user has seen."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "godwit" / "known_brokers"


class KnownBrokers:
    """The file with the keys of brokers: `host:port sha256:...`, one a line. Other lines are ignored."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        """None: the default, which is looked up when it is needed."""

    @property
    def path(self) -> Path:
        return default_known_brokers() if self._path is None else self._path

    def check(self, broker: str, fingerprint: str, *, trust_new: bool, is_proved: bool) -> None:
        """Compare the key of a broker (`host:port`) with the file, and add a new broker to it if `trust_new`.

        `is_proved`: the broker proves itself with a secret, too, so that it need not be in the file.

        Raises TlsError if the broker has another key, or is not in the file and cannot be added.
        """
        known = self._find(broker)
        if known is not None:
            line, expected = known
            if expected == fingerprint:
                return
            raise TlsError(
                f"THE KEY OF THE BROKER {broker} HAS CHANGED: it is {fingerprint}, and line {line} of {self.path} has "
                f"{expected}. Another machine may answer at its address, and nothing was sent to it. If the "
                "broker has a new key (its data folder was removed), delete that line"
            )
        if not trust_new:
            raise TlsError(
                f"the broker {broker} is unknown: compare {fingerprint} with the line that it printed when it started, "
                f"and add the line `{broker} {fingerprint}` to {self.path}"
            )
        try:
            self._add(broker, fingerprint)
        except OSError as error:
            text = f"the key of the broker {broker} cannot be stored in {self.path} ({error.strerror or error})"
            if not is_proved:
                raise TlsError(f"{text}: give it with the address, as udps://{broker}#{fingerprint}") from None
            _trust_logger.warning("%s", text)
        else:
            _trust_logger.warning(
                "trusting the broker %s, which is new here: its key is %s, stored in %s; compare it with the line that "
                "the broker printed when it started",
                broker,
                fingerprint,
                self.path,
            )

    def _find(self, broker: str) -> tuple[int, str] | None:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
            reason = error.strerror if isinstance(error, OSError) else error
            raise TlsError(
                f"reading the keys of known brokers failed ({reason}): give the broker's fingerprint"
            ) from None
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if len(words) == 2 and words[0] == broker and _FINGERPRINT.fullmatch(words[1]):
                return number, words[1]
        return None

    def _add(self, broker: str, fingerprint: str) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # In one write, so that lines of several clients do not mix.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            line = f"{broker} {fingerprint}\n".encode()
            if os.write(file, line) != len(line):
                raise OSError(errno.ENOSPC, "no space left")
        finally:
            os.close(file)


class ClientSealer:
    """Seals the connections of one client (a Sealer of godwit.transport.sealing)."""

    def __init__(
        self,
        brokers: Mapping[tuple[str, int], Security],
        broker_of: Callable[[Address], tuple[str, int] | None],
        *,
        has_secret: bool,
    ) -> None:
        """`brokers`: the security of each broker by host and port. `broker_of` returns the broker of an address."""
        self._brokers = brokers
        self._broker_of = broker_of
        self._has_secret = has_secret

    def suites(self) -> Sequence[Suite]:
        """Return the suites that can be used."""
        from godwit.net.tls import ordered_suites

        return ordered_suites()

    def new_session(self, role: Role, address: Address) -> TlsSession | None:
        """Return a new session; None if the connection to this address is plain."""
        broker = self._broker_of(address) or (str(address[0]), int(address[1]))
        security = self._brokers.get(broker) or Security()
        if security.seal == "never" or (security.seal == "auto" and is_this_machine(address)):
            return None
        from godwit.net.tls import load_identity, new_client_session

        identity = None
        if security.certificate is not None and security.key is not None:
            identity = load_identity(Path(security.certificate), Path(security.key))
        return new_client_session(lambda chain: self._check(security, broker, chain), identity)

    def plain_problem(self, address: Address) -> str:
        """A client accepts no connections."""
        return ""

    def _check(self, security: Security, broker: tuple[str, int], chain: list[Certificate]) -> None:
        from godwit.net.tls import check_authority, fingerprint_of

        fingerprint = fingerprint_of(chain[0])
        label = broker_label(*broker)
        if security.fingerprint and security.fingerprint != fingerprint:
            raise TlsError(
                f"the broker {label} has the key {fingerprint}, and {security.fingerprint} is expected: another "
                "machine may answer at its address, and nothing was sent to it"
            )
        if security.ca is not None:
            check_authority(chain, broker[0], Path(security.ca))
        if not security.fingerprint and security.ca is None:
            path = None if security.known_brokers is None else Path(security.known_brokers)
            known = KnownBrokers(path)
            known.check(label, fingerprint, trust_new=security.trust_new, is_proved=self._has_secret)


def broker_label(host: str, port: int) -> str:
    """Return `host:port`, as the file of known brokers has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host.lower()}:{port}"


# -- the broker -------------------------------------------------------------------------------------------------------


class BrokerSecurity:
    """Seals the connections of a broker (a Sealer), and decides which clients may connect without sealing.

    The key is loaded, or made, when it is needed first: a broker that only its own machine can reach may never need it.
    """

    def __init__(self, section: SecuritySection, folder: Path | None, *, asks_client: bool = False) -> None:
        """`folder`: where the key is stored if the section has none; None: it is not stored.

        `asks_client`: whether certificates prove names of clients.
        """
        self.section = section
        self._asks_client = asks_client
        self._folder = folder
        self._sealer: BrokerSealer | None = None

    def sealer(self) -> BrokerSealer:
        """Return the broker's identity.

        Raises GodwitError if reading or storing it fails, or if other users can read the key.
        """
        if self._sealer is None:
            self._sealer = self._load(self.section, self._asks_client)
        return self._sealer

    @property
    def is_loaded(self) -> bool:
        """Whether the key was needed so far."""
        return self._sealer is not None

    def certificate_files(self, *, is_exposed: bool) -> tuple[Path, Path] | None:
        """Return certificate and key for a further listener: those of the configuration.

        Without them, a listener that other machines can reach gets the files that the broker has made itself; None if
        it stores none. Raises GodwitError if making them fails.
        """
        if self.section.certificate is not None and self.section.key is not None:
            return self.section.certificate, self.section.key
        if not is_exposed or self._folder is None:
            return None
        from godwit.net.tls import CERTIFICATE_FILE, KEY_FILE

        self.sealer()
        return self._folder / CERTIFICATE_FILE, self._folder / KEY_FILE

    def _load(self, section: SecuritySection, asks_client: bool) -> BrokerSealer:
        from godwit.net.tls import BrokerSealer, load_identity, new_identity, stored_identity

        if section.certificate is not None and section.key is not None:
            identity = load_identity(section.certificate, section.key)
        else:
            identity = new_identity() if self._folder is None else stored_identity(self._folder)
        return BrokerSealer(identity, client_ca=section.client_ca, asks_client=asks_client)

    def reload(self, section: SecuritySection, *, asks_client: bool = False) -> None:
        """Use another section, and read its files again, for new connections.

        Raises GodwitError if they are not usable; then nothing has changed.
        """
        if self._sealer is not None:
            self._sealer = self._load(section, asks_client)
        self.section = section
        self._asks_client = asks_client

    def suites(self) -> Sequence[Suite]:
        """Return the suites that can be used."""
        from godwit.net.tls import ordered_suites

        return ordered_suites()

    def new_session(self, role: Role, address: Address) -> TlsSession | None:
        """Return the session of a new client; None if the broker's key is not usable, which is logged."""
        try:
            return self.sealer().new_session()
        except GodwitError as error:
            _logger.error("no connection can be sealed: %s", error)
            return None

    def plain_problem(self, address: Address) -> str:
        """Return why a client at this address must seal its connection, or an empty string."""
        plain: PlainMode = self.section.plain
        if plain == "allow" or (plain == "loopback" and is_this_machine(address)):
            return ""
        return (
            "this broker accepts sealed connections only: connect to udps://HOST:PORT with Godwit 0.6 or newer, or "
            'set plain = "allow" under [security] in its configuration, if the network is trusted'
        )
