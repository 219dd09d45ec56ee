"""TLS between the nodes of a cluster and the servers of its engine: contexts, and sentences about failures.

A node verifies that the certificate of a server is from an authority in `ca` and is for the host in its address, and
shows its own certificate. The servers of `[cluster.run]` do the same with each other and with nodes. A connection
without TLS is never used in place of one with it.

The files are read for each start of an engine: a node that waits for its engine finds renewed ones. A node that runs
reads them again on SIGHUP. It tries renewed ones with a handshake in memory before it uses them, because a connection
that is lost afterwards could not be made again. Open connections remain as they are.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from godwit.errors import ConfigurationError
from godwit.net.broker_archive import is_local
from godwit.net.tls import load_authorities, load_identity
from godwit.server.cluster_configuration import ClusterSection

_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED, and so on
_NOT_YET_VALID: Final = 9
_OTHER_HOST: Final = (62, 64)
_REFUSALS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")
"""Parts of the alerts with which a server refuses the certificate of a client."""


class PlainServerError(Exception):
    """A server offers no TLS behind an address that requires it."""


class TlsProblem(msgspec.Struct, frozen=True):
    """Why a connection with TLS has failed."""

    text: str
    """Continues a sentence that begins with the server."""
    is_lasting: bool
    """Whether waiting does not help: not for certificates out of date, which are renewed, or clocks, which are set."""


class EngineTls(msgspec.Struct, frozen=True, kw_only=True):
    """The certificates with which a node reaches the servers of its engine."""

    ca: Path | None = None
    """None: the authorities of the system."""
    certificate: Path | None = None
    key: Path | None = None
    is_server: bool = False
    """Whether a server of the engine on this machine uses the certificate, too."""
    hosts: tuple[str, ...] = ()
    """Of that server, as the other nodes know it."""

    def check(self) -> None:
        """Check the files. Raise ConfigurationError if one is missing, unusable, or for another purpose."""
        if self.ca is not None:
            load_authorities(self.ca)
        if self.certificate is None or self.key is None:
            return
        leaf = load_identity(self.certificate, self.key).certificates[0]
        try:
            usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except x509.ExtensionNotFound:
            return
        needed = {ExtendedKeyUsageOID.CLIENT_AUTH: "clients", ExtendedKeyUsageOID.SERVER_AUTH: "servers"}
        for usage, what in needed.items():
            is_needed = self.is_server or usage == ExtendedKeyUsageOID.CLIENT_AUTH
            if is_needed and usage not in usages and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in usages:
                raise ConfigurationError(
                    f"the certificate {self.certificate} is not for {what}: a node needs one for clients and servers, "
                    "as `godwit security init DIR --node HOST` makes it"
                )

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies servers and their host names. Raise as `check` does."""
        self.check()
        context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context

    def renewed_context(self) -> ssl.SSLContext:
        """Return a context with the files as they are now, after trying them.

        Raises ConfigurationError as `check` does, or if they are out of date, or the other nodes would refuse them.
        """
        context = self.context()
        if expired := self.expired():
            raise ConfigurationError(expired)
        if self.is_server and self.ca is not None and self.certificate is not None:
            server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca))
            server.verify_mode = ssl.CERT_REQUIRED
            server.load_cert_chain(self.certificate, self.key)
            for host in self.hosts:
                try:
                    _try_handshake(context, server, host)
                except ssl.SSLCertVerificationError as error:
                    reason = error.verify_message.rstrip(".")
                    raise ConfigurationError(
                        f"other nodes would refuse the certificate {self.certificate}: {reason}"
                    ) from None
                except ssl.SSLError as error:
                    raise ConfigurationError(f"the certificate {self.certificate} cannot be used: {error}") from None
        return context

    def expired(self) -> str:
        """Return a sentence if the certificate of this node has expired, else an empty text."""
        if self.certificate is None or self.key is None:
            return ""
        until = load_identity(self.certificate, self.key).certificates[0].not_valid_after_utc
        if until > datetime.datetime.now(datetime.UTC):
            return ""
        return f"the certificate {self.certificate} has expired at {until:%Y-%m-%d %H:%M} UTC: renew it"


def engine_tls(section: ClusterSection) -> EngineTls | None:
    """Return the certificates of a node, checked; None if it uses no TLS. Raise ConfigurationError as `check` does."""
    if not section.has_tls:
        return None
    hosts: list[str] = []
    if (run := section.run) is not None:
        places = (each[run.number - 1].rpartition("://")[2] for each in (section.servers, section.monitors, run.routes))
        hosts = [urlsplit(f"//{place}").hostname or "" for place in places]
    tls = EngineTls(
        ca=section.ca,
        certificate=section.certificate,
        key=section.key,
        is_server=section.run is not None,
        hosts=tuple(dict.fromkeys(hosts)),
    )
    tls.check()
    return tls


def _try_handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    """Let both sides verify each other without a socket. Raise ssl.SSLError if one of them refuses."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(3):  # the side that ends first has nothing to do in the last turn
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()


def tls_problem(error: BaseException) -> TlsProblem | None:
    """Return why a connection with TLS has failed; None if the error has another cause."""
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    if isinstance(error, PlainServerError):
        return TlsProblem("offers no TLS: configure it there, or correct the address", True)
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return TlsProblem("has a certificate that has expired: renew it", False)
        if error.verify_code == _NOT_YET_VALID:
            return TlsProblem("has a certificate that is not valid yet: check the clocks of both machines", False)
        reason = error.verify_message.rstrip(".")
        if error.verify_code in _OTHER_HOST:
            return TlsProblem(f"has a certificate for other hosts ({reason}): issue one for this address", True)
        return TlsProblem(f"has a certificate of an unknown authority ({reason}): check ca", True)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if "ALERT" in reason and any(text in reason for text in _REFUSALS):
            return TlsProblem(
                f"refuses the certificate of this node ({reason}): check certificate and key, and that it is valid and "
                "of an authority of the server",
                "EXPIRED" not in reason,
            )
        if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"):
            return tls_problem(PlainServerError())
        return TlsProblem(f"does not complete a TLS handshake ({reason}): check its versions of TLS", True)
    return None


def unencrypted(section: ClusterSection) -> list[str]:
    """Return the addresses of the engine on other machines to which connections are not encrypted and verified."""
    return [text for text in _plain_addresses(section) if not is_local(text)]


def _plain_addresses(section: ClusterSection) -> Iterator[str]:
    if section.engine == "postgres":
        if section.ca is None:
            for text in section.servers:
                yield text.rpartition("://")[2].rpartition("@")[2].partition("/")[0]
        return
    for text in (*section.servers, *section.monitors):
        scheme, _, place = text.partition("://")
        if scheme in ("nats", "http"):
            yield place
    if section.run is not None and section.ca is None:
        yield from section.run.routes
