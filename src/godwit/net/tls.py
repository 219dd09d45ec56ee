"""TLS 1.3 with pyOpenSSL, the AEAD suites of PyCA cryptography, and the keys and certificates of brokers.

OpenSSL sees no socket: TlsHandshake passes bytes through memory, as godwit.transport.sealing expects. Certificates
pass OpenSSL's own check, which still verifies that the peer has the private key; whether the key is the expected one is
decided here, before anything is sealed.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes, PrivateKeyTypes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from OpenSSL import SSL

from godwit.errors import ConfigurationError, GodwitError, StorageError, printable
from godwit.transport.events import PeerCertificate, Role
from godwit.transport.protection import SECRET_BYTES, Suite
from godwit.transport.sealing import EXPORTER_LABEL, TlsError, TlsSession

ALPN: Final = b"godwit/1"
NAME_URI: Final = "godwit:"
"""Before the name of a client, in a URI of its certificate."""
KEY_FILE: Final = "tls-key.pem"
CERTIFICATE_FILE: Final = "tls-cert.pem"
KEY_LOG_VARIABLE: Final = "GODWIT_KEY_LOG"
VALIDITY: Final = datetime.timedelta(days=3650)
MAX_INTERMEDIATES: Final = 4
"""The number of certificates between that of a peer and its authority. Each costs up to half a millisecond."""
_READ_BYTES: Final = 65_536
_SAMPLE: Final = bytes(1200)
_ROUNDS: Final = 32

_logger = logging.getLogger(__name__)

AES_128_GCM: Final = Suite(1, "AES-128-GCM", key_bytes=16, max_forged=2**52, make=AESGCM, error=InvalidTag)
CHACHA20_POLY1305: Final = Suite(
    2, "ChaCha20-Poly1305", key_bytes=32, max_forged=2**36, make=ChaCha20Poly1305, error=InvalidTag
)


@cache
def ordered_suites() -> tuple[Suite, ...]:
    """Return all suites, the quicker one on this machine first: AES without instructions of the processor is slow."""

    def cost_s(suite: Suite) -> float:
        encrypt = suite.make(bytes(suite.key_bytes)).encrypt
        began = time.perf_counter()
        for _ in range(_ROUNDS):
            encrypt(bytes(12), _SAMPLE, b"")
        return time.perf_counter() - began

    # Half the time and not less: both are equally safe, and a machine that is busy must not change the order.
    is_slow = min(cost_s(AES_128_GCM) for _ in range(3)) > 2 * min(cost_s(CHACHA20_POLY1305) for _ in range(3))
    return (CHACHA20_POLY1305, AES_128_GCM) if is_slow else (AES_128_GCM, CHACHA20_POLY1305)


# -- the handshake ----------------------------------------------------------------------------------------------------


def make_context(
    identity: Identity | None = None, role: Role | None = None, *, asks_client: bool = False
) -> SSL.Context:
    """Return the settings of TLS.

    `role`: by default a server's if there is an identity, else a client's. `asks_client`: whether a server asks clients
    for a certificate, which they need not have.
    """
    role = role or ("client" if identity is None else "server")
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_max_proto_version(SSL.TLS1_3_VERSION)
    # No session is resumed: a resumed one has no certificate, and sealed connections live long.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET)
    if role == "client":
        context.set_alpn_protos([ALPN])
    else:
        context.set_alpn_select_callback(_select_alpn)
    if role == "client" or asks_client:
        context.set_verify(SSL.VERIFY_PEER, _accept_any)
        context.set_verify_depth(MAX_INTERMEDIATES)  # OpenSSL checks the signatures of a chain, too
    if identity is not None:
        context.use_certificate(identity.certificates[0])
        for certificate in identity.certificates[1:]:
            context.add_extra_chain_cert(certificate)
        context.use_privatekey(identity.key)  # type: ignore[arg-type]
        context.check_privatekey()
    return context


def _accept_any(_connection: object, _certificate: object, _error: int, _depth: int, _ok: int) -> bool:
    return True  # see the module: check_peer decides


def _select_alpn(_connection: object, offered: list[bytes]) -> Any:
    return ALPN if ALPN in offered else SSL.NO_OVERLAPPING_PROTOCOLS


class TlsHandshake:
    """One handshake, as a TlsSession of godwit.transport.sealing."""

    def __init__(
        self,
        context: SSL.Context,
        role: Role,
        check: Callable[[list[x509.Certificate]], PeerCertificate | None] | None = None,
    ) -> None:
        """`check` is called with the chain of the peer's certificate, and raises TlsError if it is not accepted.

        That of a server is called if the client has a certificate, and returns its names.
        """
        self._check = check
        self._role = role
        self._is_done = False
        self._tls = SSL.Connection(context, None)
        if role == "server":
            self._tls.set_accept_state()
        else:
            self._tls.set_connect_state()  # without a server name: it would show every observer which host is meant

    def start(self) -> bytes:
        """Return the first bytes to send."""
        return self._step()

    def receive(self, data: bytes) -> bytes:
        """Handle bytes of the peer and return those to send. Raises TlsError."""
        self._tls.bio_write(data)
        return self._step()

    def _step(self) -> bytes:
        try:
            self._tls.do_handshake()
            self._is_done = True
        except SSL.WantReadError:
            pass
        except SSL.Error as error:
            raise TlsError(
                f"the TLS handshake failed ({_reason(error)}): is the peer a Godwit of this version?"
            ) from None
        if self._is_done and self._tls.get_alpn_proto_negotiated() != ALPN:
            raise TlsError(f"the TLS handshake failed: the peer does not use the protocol {ALPN.decode()}")
        output = b""
        try:
            while True:
                output += self._tls.bio_read(_READ_BYTES)
        except SSL.WantReadError:
            return output

    def is_done(self) -> bool:
        """Return whether the handshake is complete on this side."""
        return self._is_done

    def check_peer(self) -> PeerCertificate | None:
        """Raise TlsError if the peer's certificate is not accepted."""
        if self._check is None:
            return None
        try:
            chain = self._peer_chain()
            if chain:
                return self._check(chain)
        except GodwitError:
            raise
        except Exception as error:  # OpenSSL reads certificates that cryptography does not, for several reasons
            raise TlsError(
                f"the certificate of the peer is damaged, or of an unknown kind ({printable(str(error))[:200]})"
            ) from None
        if self._role == "client":
            raise TlsError("the broker has no certificate")
        return None

    def _peer_chain(self) -> list[x509.Certificate]:
        """Return the certificates of the peer, its own first."""
        leaf = self._tls.get_peer_certificate(as_cryptography=True)
        if leaf is None:
            return []
        # The chain that a server gets may lack the client's own certificate.
        return [leaf, *(one for one in self._tls.get_peer_cert_chain(as_cryptography=True) or [] if one != leaf)]

    def export(self, label: bytes, length: int, context: bytes) -> bytes:
        """Return keying material (RFC 8446, 7.5)."""
        material = self._tls.export_keying_material(label, length, context)
        path = key_log_path()
        if path is not None and label == EXPORTER_LABEL:
            _log_keys(path, self._tls.client_random() or b"", material)
        return material


def key_log_path() -> Path | None:
    """Return the file for the secrets of sealed connections, if the environment names one. It is for debugging only."""
    text = os.environ.get(KEY_LOG_VARIABLE)
    return Path(text) if text else None


def _log_keys(path: Path, client_random: bytes, material: bytes) -> None:
    """Append the secrets of a connection, by the random bytes in the client hello, as key logs of TLS do."""
    client, server = material[:SECRET_BYTES], material[SECRET_BYTES : 2 * SECRET_BYTES]
    lines = (
        f"GODWIT_CLIENT_SECRET {client_random.hex()} {client.hex()}\n"
        f"GODWIT_SERVER_SECRET {client_random.hex()} {server.hex()}\n"
    )
    _warn_of_key_log(path)
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            mode = os.fstat(file).st_mode
            if os.name == "posix" and stat.S_ISREG(mode) and mode & 0o077:  # it existed, and others may read it
                os.fchmod(file, 0o600)
            os.write(file, lines.encode())
        finally:
            os.close(file)
    except OSError as error:
        _logger.error("writing the key log %s failed: %s", path, error.strerror or error)


@cache
def _warn_of_key_log(path: Path) -> None:
    _logger.warning("%s", key_log_warning(path))


def key_log_warning(path: Path) -> str:
    """Return the warning of a process that stores the secrets of its connections."""
    return (
        f"the secrets of sealed connections are stored in {path}, because {KEY_LOG_VARIABLE} is set: with them and a "
        "recording everything can be read; unset it, and delete the file, unless you are debugging"
    )


def _reason(error: SSL.Error) -> str:
    """Return OpenSSL's own words for an error, in a form that can be printed."""
    found = error.args[0] if error.args and isinstance(error.args[0], list) else []
    texts = [str(one[-1]) for one in found if isinstance(one, tuple) and one and one[-1]]
    return printable("; ".join(texts) or type(error).__name__)


# -- the identity of a broker -----------------------------------------------------------------------------------------


class Identity:
    """The private key of a broker and its certificates, the broker's own first."""

    def __init__(self, key: PrivateKeyTypes, certificates: Sequence[x509.Certificate]) -> None:
        self.key = key
        self.certificates = list(certificates)

    def __repr__(self) -> str:
        return f"<Identity {self.fingerprint}>"

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its key."""
        return fingerprint_of(self.certificates[0])


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Return the fingerprint of a certificate's key: a renewed certificate for the same key has the same one."""
    public = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return f"sha256:{hashlib.sha256(public).hexdigest()}"


def new_identity() -> Identity:
    """Return a new key with a certificate that it has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Identity(key, [self_signed(key)])


def self_signed(key: CertificateIssuerPrivateKeyTypes) -> x509.Certificate:
    """Return a certificate of a key for itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "godwit broker")])
    # Valid since yesterday: the clocks of clients differ.
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    host = socket.gethostname()
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    if host.isascii() and host != "localhost" and 0 < len(host) <= 253:
        names.append(x509.DNSName(host))
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(since + VALIDITY)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )


def load_identity(certificate: Path, key: Path) -> Identity:
    """Read a key and a certificate chain from PEM files.

    Raises ConfigurationError if reading fails, the files do not belong together, or other users can read the key.
    """
    check_private(key)
    try:
        certificates = x509.load_pem_x509_certificates(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {error.filename}: {error.strerror}; check the path and its rights"
        ) from None
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{certificate} and {key} are not a certificate and a private key without a password, in PEM: {error}"
        ) from None
    identity = Identity(private, certificates)
    try:
        make_context(identity)
    except (SSL.Error, TypeError, ValueError):
        raise ConfigurationError(f"the key in {key} does not belong to the certificate in {certificate}") from None
    return identity


def check_private(path: Path) -> None:
    """Raise ConfigurationError if a file with a key can be read by others than its owner."""
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}; check the path and its rights") from None
    if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigurationError(
            f"other users can read or change the key in {path}: remove their rights (`chmod 600 {path}`), and replace "
            "the key if it may have been copied"
        )


def stored_identity(folder: Path) -> Identity:
    """Return the identity that is stored in a folder, or make one there.

    Raises ConfigurationError if the files are damaged or others can read the key, StorageError if writing
    fails.
    """
    key_path = folder / KEY_FILE
    certificate_path = folder / CERTIFICATE_FILE
    if key_path.exists():
        if not certificate_path.exists():  # stopped between the two files
            check_private(key_path)
            key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
            certificate = self_signed(key)  # type: ignore[arg-type]
            write_file(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        return load_identity(certificate_path, key_path)
    identity = new_identity()
    private = identity.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificate_path.unlink(missing_ok=True)
    write_file(key_path, private, 0o600)
    write_file(certificate_path, identity.certificates[0].public_bytes(serialization.Encoding.PEM), 0o644)
    return identity


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file, complete or not at all, with these permissions. Raises StorageError if that fails."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(file, "wb") as output:
            output.write(data)
            output.flush()
            os.fsync(output.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from None


# -- sealers ----------------------------------------------------------------------------------------------------------


class BrokerSealer:
    """Makes the TLS sessions of a broker, with one identity."""

    def __init__(self, identity: Identity, *, client_ca: Path | None = None, asks_client: bool = False) -> None:
        """`asks_client`: ask clients for certificates. `client_ca`: the authorities whose names count, in PEM.

        Raises ConfigurationError if that file is not usable.
        """
        self.identity = identity
        self._context = make_context(identity, asks_client=asks_client)
        self._authorities = [] if client_ca is None else load_authorities(client_ca)
        self._asks_client = asks_client

    def suites(self) -> Sequence[Suite]:
        """Return the suites that can be used."""
        return ordered_suites()

    def new_session(self) -> TlsSession:
        """Return the session of a new client."""
        return TlsHandshake(self._context, "server", self._check_client if self._asks_client else None)

    def _check_client(self, chain: list[x509.Certificate]) -> PeerCertificate:
        """Return the key that a client has proven, and the names in its certificate if an authority has issued it."""
        names: tuple[str, ...] = ()
        if self._authorities:
            try:
                names = client_names(chain, self._authorities)
            except VerificationError as error:
                _logger.info("the certificate of a client is not accepted: %s", printable(str(error))[:200])
        return PeerCertificate(fingerprint_of(chain[0]), names)


def load_authorities(path: Path) -> list[x509.Certificate]:
    """Return the certificates of authorities in a PEM file. Raises ConfigurationError if reading fails."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}; check the path and its rights") from None
    except ValueError as error:
        raise ConfigurationError(f"{path} has no certificates of authorities in PEM: {error}") from None


def issuers_of(chain: list[x509.Certificate]) -> list[x509.Certificate]:
    """Return the issuers of the first certificate in a chain that a peer sent, each issued by the next.

    There is one for each name, and MAX_INTERMEDIATES at most: with several of one name, a check of the signatures would
    try all paths.
    """
    by_subject: dict[x509.Name, x509.Certificate] = {}
    for certificate in reversed(chain[1:]):
        by_subject[certificate.subject] = certificate
    found: list[x509.Certificate] = []
    name = chain[0].issuer
    while len(found) < MAX_INTERMEDIATES and (issuer := by_subject.pop(name, None)) is not None:
        found.append(issuer)
        name = issuer.issuer
    return found


def client_names(chain: list[x509.Certificate], authorities: list[x509.Certificate]) -> tuple[str, ...]:
    """Return the names in the certificate of a client: of URIs `godwit:NAME`, or its DNS names if it has no such URI.

    Raises VerificationError if no authority has issued it for clients, or if it is not valid now.
    """
    verifier = PolicyBuilder().store(Store(authorities)).build_client_verifier()
    subjects = verifier.verify(chain[0], issuers_of(chain)).subjects
    uris = [one.value for one in subjects or () if isinstance(one, x509.UniformResourceIdentifier)]
    names = [unquote(uri.removeprefix(NAME_URI)) for uri in uris if uri.startswith(NAME_URI)]
    return tuple(names or [one.value for one in subjects or () if isinstance(one, x509.DNSName)])


@cache
def _client_context() -> SSL.Context:
    return make_context()


def new_client_session(check: Callable[[list[x509.Certificate]], None], identity: Identity | None = None) -> TlsSession:
    """Return the session of a new connection. `check`: see TlsHandshake. `identity`: the client's own."""
    context = _client_context() if identity is None else make_context(identity, "client")
    return TlsHandshake(context, "client", check)


def check_authority(chain: list[x509.Certificate], host: str, ca: Path) -> None:
    """Raise TlsError unless the first certificate is for this host, and issued by an authority in the PEM file `ca`."""
    try:
        authorities = x509.load_pem_x509_certificates(ca.read_bytes())
    except (OSError, ValueError) as error:
        raise TlsError(f"the file {ca} has no certificates of authorities that can be read: {error}") from None
    subject: x509.DNSName | x509.IPAddress
    try:
        subject = x509.IPAddress(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        subject = x509.DNSName(host)
    verifier = PolicyBuilder().store(Store(authorities)).build_server_verifier(subject)
    try:
        verifier.verify(chain[0], issuers_of(chain))
    except VerificationError as error:
        raise TlsError(
            f"the certificate of the broker is not accepted: no authority in {ca} confirms it for {host} now "
            f"({printable(str(error))[:200]})"
        ) from None
