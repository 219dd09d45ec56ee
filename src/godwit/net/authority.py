"""A small certificate authority, for installations that have none: `godwit security init` and `rotate` use it."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from godwit.errors import UsageError
from godwit.net.tls import NAME_URI, Identity, load_identity, write_file

AUTHORITY_VALIDITY: Final = datetime.timedelta(days=3650)
CERTIFICATE_DAYS: Final = 825
"""How long certificates of brokers and clients are valid by default; some programs refuse longer ones."""
MAX_COMMON_NAME: Final = 64


def new_authority(name: str = "godwit authority") -> Identity:
    """Return a new key with a certificate that may issue others."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = (
        _builder(subject, subject, key, key, since, since + AUTHORITY_VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Identity(key, [certificate])


def issue_for_broker(authority: Identity, hosts: Sequence[str], days: int = CERTIFICATE_DAYS) -> Identity:
    """Return a key and a certificate for a broker with these host names and IP addresses.

    Raises UsageError if a name is not ASCII.
    """
    return _issue(authority, "godwit broker", _names_of(hosts), [ExtendedKeyUsageOID.SERVER_AUTH], days)


def issue_for_node(authority: Identity, hosts: Sequence[str], days: int = CERTIFICATE_DAYS) -> Identity:
    """Return a key and a certificate for a node of a cluster: it is a client and a server. Raises as for a broker."""
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return _issue(authority, "godwit node", _names_of(hosts), usages, days)


def _names_of(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not host.isascii() or not host:
                raise UsageError(f"the host name {host!r} is not ASCII: write it in its ASCII form (xn--...)") from None
            names.append(x509.DNSName(host))
    return names


def hosts_of(identity: Identity) -> list[str]:
    """Return the host names and IP addresses in the certificate of a broker."""
    extension = identity.certificates[0].extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(one.value) for one in extension.value]


def issue_for_client(authority: Identity, name: str, days: int = CERTIFICATE_DAYS) -> Identity:
    """Return a key and a certificate that proves the name of a client."""
    uri = x509.UniformResourceIdentifier(NAME_URI + quote(name))
    return _issue(authority, name[:MAX_COMMON_NAME], [uri], [ExtendedKeyUsageOID.CLIENT_AUTH], days)


def _issue(
    authority: Identity,
    subject: str,
    names: Sequence[x509.GeneralName],
    usages: Sequence[x509.ObjectIdentifier],
    days: int,
) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificates[0]
    # Valid since yesterday: the clocks of the machines differ. Not longer than the authority.
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    until = min(since + datetime.timedelta(days=days + 1), issuer.not_valid_after_utc)
    certificate = (
        _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]),
            issuer.subject,
            key,
            authority.key,
            since,
            until,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority.key, hashes.SHA256())  # type: ignore[arg-type]
    )
    return Identity(key, [certificate])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: object,
    since: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)  # type: ignore[attr-defined]
    )


def load_authority(folder: Path) -> Identity:
    """Return the authority in a folder, as `write_identity` has stored it under the name `ca`.

    Raises ConfigurationError if it is missing or damaged, or if others can read its key.
    """
    return load_identity(folder / "ca.crt", folder / "ca.key")


def write_identity(folder: Path, name: str, identity: Identity) -> tuple[Path, Path]:
    """Write NAME.key, which only its owner may read, and NAME.crt, and return their paths. Files are replaced.

    Raises StorageError if writing fails.
    """
    key_path, certificate_path = folder / f"{name}.key", folder / f"{name}.crt"
    private = identity.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_file(key_path, private, 0o600)
    chain = b"".join(one.public_bytes(serialization.Encoding.PEM) for one in identity.certificates)
    write_file(certificate_path, chain, 0o644)
    return certificate_path, key_path
