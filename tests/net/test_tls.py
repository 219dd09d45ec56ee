"""TLS with OpenSSL: handshakes, the exporter against an independent implementation, keys and certificates."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import random
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import VerificationError
from OpenSSL import SSL, crypto

from godwit.errors import ConfigurationError, DecodeError
from godwit.limits import MAX_CRYPTO_BYTES
from godwit.net.authority import issue_for_client, new_authority, write_identity
from godwit.net.tls import (
    AES_128_GCM,
    CERTIFICATE_FILE,
    CHACHA20_POLY1305,
    KEY_FILE,
    MAX_INTERMEDIATES,
    BrokerSealer,
    Identity,
    TlsHandshake,
    check_authority,
    client_names,
    fingerprint_of,
    load_identity,
    make_context,
    new_client_session,
    new_identity,
    ordered_suites,
    self_signed,
    stored_identity,
)
from godwit.transport.events import PeerCertificate
from godwit.transport.protection import DirectionKey
from godwit.transport.sealing import EXPORTER_LABEL, CryptoStream, TlsError, TlsSession
from godwit.wire.packet import CryptoFrame


def shake_hands(client: TlsSession, server: TlsSession) -> list[int]:
    """Run a handshake. Return the sizes of its flights."""
    hello = client.start()
    assert server.start() == b""
    flight = server.receive(hello)
    finished = client.receive(flight)
    server.receive(finished)
    assert client.is_done()
    assert server.is_done()
    return [len(hello), len(flight), len(finished)]


def pair(identity: Identity | None = None) -> tuple[TlsSession, TlsSession, list[x509.Certificate]]:
    seen: list[x509.Certificate] = []
    return new_client_session(seen.extend), BrokerSealer(identity or new_identity()).new_session(), seen


def test_both_sides_export_the_same_keys_and_the_client_sees_the_certificate() -> None:
    identity = new_identity()
    client, server, seen = pair(identity)
    sizes = shake_hands(client, server)
    client.check_peer()
    assert fingerprint_of(seen[0]) == identity.fingerprint
    assert client.export(EXPORTER_LABEL, 96, b"context") == server.export(EXPORTER_LABEL, 96, b"context")
    assert client.export(EXPORTER_LABEL, 96, b"context") != client.export(EXPORTER_LABEL, 96, b"contexT")
    assert sum(sizes) < MAX_CRYPTO_BYTES


def test_the_handshake_can_come_byte_by_byte() -> None:
    client, server, _ = pair()
    out = b""
    for byte in client.start():
        out += server.receive(bytes([byte]))
    finished = b""
    for byte in out:
        finished += client.receive(bytes([byte]))
    for byte in finished:
        server.receive(bytes([byte]))
    assert client.is_done()
    assert server.is_done()


# -- the exporter by the book: RFC 8446, 7.1 and 7.5, from the secrets of OpenSSL's key log ----------------------------


def expand_label(secret: bytes, label: bytes, context: bytes, length: int, digest: str) -> bytes:
    label = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label + bytes([len(context)]) + context
    blocks = [b""]
    size = hashlib.new(digest).digest_size
    while size * (len(blocks) - 1) < length:
        blocks.append(hmac.new(secret, blocks[-1] + info + bytes([len(blocks)]), digest).digest())
    return b"".join(blocks)[:length]


def exported_by_the_book(secret: bytes, label: bytes, context: bytes, length: int) -> bytes:
    digest = "sha384" if len(secret) == 48 else "sha256"
    empty = hashlib.new(digest).digest()
    derived = expand_label(secret, label, empty, len(secret), digest)
    return expand_label(derived, b"exporter", hashlib.new(digest, context).digest(), length, digest)


def test_the_exporter_is_that_of_rfc_8446() -> None:
    lines: list[bytes] = []
    context = make_context()
    context.set_keylog_callback(lambda _connection, line: lines.append(line))
    client = TlsHandshake(context, "client", lambda chain: None)
    server = BrokerSealer(new_identity()).new_session()
    shake_hands(client, server)
    secrets = [bytes.fromhex(line.split()[2].decode()) for line in lines if line.startswith(b"EXPORTER_SECRET ")]
    assert len(secrets) == 1
    for label, parameters in ((EXPORTER_LABEL, b"x" * 32), (b"EXPORTER-other", b"")):
        book = exported_by_the_book(secrets[0], label, parameters, 96)
        assert book == client.export(label, 96, parameters) == server.export(label, 96, parameters)


def test_a_key_log_opens_the_packets_of_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From the file, the random bytes in the client hello and a recorded packet alone."""
    path = tmp_path / "keys.log"
    client, server, _ = pair()
    shake_hands(client, server)
    client.export(EXPORTER_LABEL, 96, b"context")
    assert not path.exists(), "off by default"
    monkeypatch.setenv("GODWIT_KEY_LOG", str(path))
    client, server, _ = pair()
    hello = client.start()
    finished = client.receive(server.receive(hello))
    server.receive(finished)
    material = client.export(EXPORTER_LABEL, 96, b"context")
    path.chmod(0o644)
    client.export(EXPORTER_LABEL, 96, b"context")
    client.export(b"EXPORTER-other", 96, b"context")
    assert path.stat().st_mode & 0o777 == 0o600, "also if others could read it before"
    assert "everything can be read" in caplog.text
    lines = [line.split() for line in path.read_text().splitlines()]
    secrets = {kind: bytes.fromhex(secret) for kind, random, secret in lines if random == hello[11:43].hex()}
    assert secrets == {"GODWIT_CLIENT_SECRET": material[:32], "GODWIT_SERVER_SECRET": material[32:64]}
    sender, reader = (DirectionKey(AES_128_GCM, secrets["GODWIT_CLIENT_SECRET"]) for _ in range(2))
    assert reader.decrypt(bytes(12), sender.encrypt(bytes(12), b"frames", b"header"), b"header") == b"frames"


# -- refused handshakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocols", [[], [b"h2"], [b"godwit/2", b"h2"]])
def test_another_protocol_is_refused(protocols: list[bytes]) -> None:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_verify(SSL.VERIFY_NONE, lambda *_: True)
    if protocols:
        context.set_alpn_protos(protocols)
    other = SSL.Connection(context, None)
    other.set_connect_state()
    server = BrokerSealer(new_identity()).new_session()
    with pytest.raises(SSL.WantReadError):
        other.do_handshake()
    with pytest.raises(TlsError, match=r"the TLS handshake failed"):
        _finish(other, server)


def _finish(other: SSL.Connection, server: TlsSession) -> None:
    """Carry bytes until the server refuses."""
    for _ in range(4):
        output = server.receive(other.bio_read(65536))
        assert output
        other.bio_write(output)
        other.do_handshake()


def test_an_older_tls_is_refused() -> None:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_max_proto_version(SSL.TLS1_2_VERSION)
    other = SSL.Connection(context, None)
    other.set_connect_state()
    with pytest.raises(SSL.WantReadError):
        other.do_handshake()
    with pytest.raises(TlsError, match="protocol"):
        BrokerSealer(new_identity()).new_session().receive(other.bio_read(65536))


def test_no_tickets_lead_to_a_resumed_session() -> None:
    identity = new_identity()
    sealer = BrokerSealer(identity)
    context = make_context()
    client = TlsHandshake(context, "client", lambda chain: None)
    shake_hands(client, sealer.new_session())
    session = client._tls.get_session()
    again = TlsHandshake(context, "client", lambda chain: None)
    if session is not None:
        again._tls.set_session(session)
    shake_hands(again, sealer.new_session())
    assert again._tls.get_peer_certificate() is not None
    assert client.export(EXPORTER_LABEL, 32, b"") != again.export(EXPORTER_LABEL, 32, b"")


@pytest.mark.parametrize("first", [0, 4000])
def test_changed_hellos_raise_nothing_else(first: int) -> None:
    """Mutation of the first flight: only TlsError, or a handshake that fails later."""
    sealer = BrokerSealer(new_identity())
    hello = new_client_session(lambda chain: None).start()
    for seed in range(first, first + 400):
        rng = random.Random(seed)
        data = bytearray(hello)
        for _ in range(rng.randrange(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.randrange(len(data))] if seed % 3 == 0 else data
        server = sealer.new_session()
        try:
            if data:
                server.receive(bytes(data))
        except TlsError:
            continue
        assert not server.is_done(), f"seed {seed}"


def test_a_changed_server_flight_fails() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        client, server, _ = pair()
        flight = bytearray(server.receive(client.start()))
        flight[rng.randrange(6, len(flight))] ^= 1 << rng.randrange(8)
        try:
            finished = client.receive(bytes(flight))
        except TlsError:
            continue
        assert not client.is_done(), f"seed {seed}"
        assert not finished, f"seed {seed}"


def test_certificates_of_4096_bit_rsa_work() -> None:
    key = rsa.generate_private_key(65537, 4096)
    client, server, _ = pair(Identity(key, [self_signed(key)]))
    shake_hands(client, server)


# -- identities -------------------------------------------------------------------------------------------------------


def test_an_identity_is_made_once_and_only_its_owner_can_read_the_key(tmp_path: Path) -> None:
    first = stored_identity(tmp_path)
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert stored_identity(tmp_path).fingerprint == first.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((KEY_FILE, CERTIFICATE_FILE))
    assert "PRIVATE" not in repr(first)


def test_a_broker_that_was_stopped_between_the_two_files_keeps_its_key(tmp_path: Path) -> None:
    first = stored_identity(tmp_path)
    (tmp_path / CERTIFICATE_FILE).unlink()
    assert stored_identity(tmp_path).fingerprint == first.fingerprint
    (tmp_path / KEY_FILE).unlink()
    assert stored_identity(tmp_path).fingerprint != first.fingerprint


@pytest.mark.skipif(os.name != "posix", reason="there are no modes of files")
def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    stored_identity(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o640)
    with pytest.raises(ConfigurationError, match="other users can read"):
        stored_identity(tmp_path)


def test_damaged_and_wrong_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    stored_identity(tmp_path / "a")
    stored_identity(tmp_path / "b")
    with pytest.raises(ConfigurationError, match="does not belong"):
        load_identity(tmp_path / "a" / CERTIFICATE_FILE, tmp_path / "b" / KEY_FILE)
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_identity(tmp_path / "none", tmp_path / "b" / KEY_FILE)
    (tmp_path / "a" / CERTIFICATE_FILE).write_text("nonsense")
    with pytest.raises(ConfigurationError, match="not a certificate"):
        stored_identity(tmp_path / "a")


# -- authorities ------------------------------------------------------------------------------------------------------


class Authority:
    def __init__(self, folder: Path, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.path = folder / f"{name}.crt"
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        certificate = (
            self._builder(self.name, self.key.public_key(), 0, 30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, first: int, last: int
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=first - 1))
            .not_valid_after(now + datetime.timedelta(days=last))
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    def issue(self, *names: x509.GeneralName, first: int = 0, last: int = 30) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
        certificate = (
            self._builder(subject, key.public_key(), first, last)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        return Identity(key, [certificate])


def test_a_certificate_of_an_authority_is_accepted_for_its_names_only(tmp_path: Path) -> None:
    import ipaddress

    authority = Authority(tmp_path, "ca")
    identity = authority.issue(x509.DNSName("broker.example"), x509.IPAddress(ipaddress.ip_address("192.0.2.9")))
    check_authority(identity.certificates, "broker.example", authority.path)
    check_authority(identity.certificates, "192.0.2.9", authority.path)
    for host in ("other.example", "192.0.2.8"):
        with pytest.raises(TlsError, match=f"for {host}"):
            check_authority(identity.certificates, host, authority.path)


@pytest.mark.parametrize("case", ["another authority", "expired", "not valid yet", "signed by itself"])
def test_other_certificates_are_refused(tmp_path: Path, case: str) -> None:
    authority, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    name = x509.DNSName("broker.example")
    identity = {
        "another authority": lambda: other.issue(name),
        "expired": lambda: authority.issue(name, first=-9, last=-5),
        "not valid yet": lambda: authority.issue(name, first=5, last=9),
        "signed by itself": new_identity,
    }[case]()
    with pytest.raises(TlsError, match="not accepted"):
        check_authority(identity.certificates, "broker.example", authority.path)


@pytest.mark.parametrize("case", ["endless", "strangers", "4096-bit RSA"])
def test_absurd_chains_are_refused_in_bounded_time(tmp_path: Path, case: str) -> None:
    """Sixty certificates that all could have signed each other; sixty that have nothing to do with it."""
    authority, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    name = x509.DNSName("broker.example")
    if case == "endless":
        leaf = other.issue(name).certificates
        chain = leaf + x509.load_pem_x509_certificates(other.path.read_bytes()) * 60
    elif case == "strangers":
        chain = other.issue(name).certificates + [new_identity().certificates[0]] * 60
    else:
        key = rsa.generate_private_key(65537, 4096)
        chain = [self_signed(key)] * 60
    began = time.process_time()
    with pytest.raises(TlsError, match="not accepted"):
        check_authority(chain, "broker.example", authority.path)
    assert time.process_time() - began < 5.0, "the library limits the number of signatures that it checks"


@pytest.mark.parametrize("case", ["another authority", "expired", "not valid yet", "signed by itself", "no name"])
def test_certificates_of_clients_that_prove_nothing(tmp_path: Path, case: str) -> None:
    """The broker continues without a name, and the login decides."""
    authority, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    name = x509.UniformResourceIdentifier("godwit:press-7")
    identity = {
        "another authority": lambda: other.issue(name),
        "expired": lambda: authority.issue(name, first=-9, last=-5),
        "not valid yet": lambda: authority.issue(name, first=5, last=9),
        "signed by itself": lambda: linear_chain(1, ec.SECP256R1()),
        "no name": lambda: authority.issue(x509.RFC822Name("press-7@example.com")),
    }[case]()
    broker = BrokerSealer(new_identity(), client_ca=authority.path, asks_client=True)
    client, server = new_client_session(lambda chain: None, identity), broker.new_session()
    shake_hands(client, server)
    assert server.check_peer() == PeerCertificate(identity.fingerprint, ())
    good = authority.issue(name)
    client, server = new_client_session(lambda chain: None, good), broker.new_session()
    shake_hands(client, server)
    assert server.check_peer() == PeerCertificate(good.fingerprint, ("press-7",))


def named(number: int) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {number}")])


def linear_chain(count: int, curve: ec.EllipticCurve) -> Identity:
    """A certificate for clients and its issuers, each issued by the next, the last one by itself."""
    keys = [ec.generate_private_key(curve) for _ in range(3)]
    now = datetime.datetime.now(datetime.UTC)
    certificates = []
    for place in range(count):
        issuer = min(place + 1, count - 1)
        key, signer = keys[place % 3], keys[issuer % 3]
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(place))
            .issuer_name(named(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=place > 0, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if place == 0:
            names = [x509.UniformResourceIdentifier("godwit:press-7")]
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            builder = builder.add_extension(usage, critical=False)
        else:
            builder = builder.add_extension(x509.KeyUsage(*(at in (0, 5, 6) for at in range(9))), critical=True)
        certificates.append(builder.sign(signer, hashes.SHA256()))
    return Identity(keys[0], certificates)


@pytest.mark.parametrize("count", [1, 1 + MAX_INTERMEDIATES, 2 + MAX_INTERMEDIATES])
def test_names_are_proved_by_chains_of_usual_length(count: int) -> None:
    *chain, authority = linear_chain(count + 1, ec.SECP256R1()).certificates
    mixed = [chain[0], *random.Random(1).sample(chain[1:], len(chain) - 1)]
    for one in (chain, mixed, [*chain, authority], [*chain, *[new_identity().certificates[0]] * 20]):
        if count <= 1 + MAX_INTERMEDIATES:
            assert client_names(one, [authority]) == ("press-7",)
        else:
            with pytest.raises(VerificationError):
                client_names(one, [authority])


def test_a_client_with_an_absurd_chain_costs_a_broker_little(tmp_path: Path) -> None:
    """In the handshake and in the check of the names: all in one line, and all with one name."""
    authority = new_authority()
    write_identity(tmp_path, "ca", authority)
    broker = BrokerSealer(new_identity(), client_ca=tmp_path / "ca.crt", asks_client=True)

    def cost_s(identity: Identity) -> float:
        found = []
        for _ in range(5):
            client, server = new_client_session(lambda chain: None, identity), broker.new_session()
            finished = client.receive(server.receive(client.start()))
            assert len(finished) < MAX_CRYPTO_BYTES
            began = time.thread_time()
            server.receive(finished)
            peer = server.check_peer()
            found.append(time.thread_time() - began)
            assert peer == PeerCertificate(identity.fingerprint, ())
        return min(found)

    usual = cost_s(linear_chain(1 + MAX_INTERMEDIATES, ec.SECP384R1()))
    long = linear_chain(100, ec.SECP384R1())
    assert cost_s(long) < 6 * usual, "it was 20 times as much without a limit"
    key = ec.generate_private_key(ec.SECP384R1())
    same = self_signed(key)
    assert cost_s(Identity(key, [same] * 60)) < 6 * usual


@pytest.mark.parametrize("side", ["client", "server"])
def test_damaged_certificates_raise_nothing_else(side: str, tmp_path: Path) -> None:
    """OpenSSL reads many certificates that cryptography refuses. The peer has their key, so TLS itself succeeds."""
    authority = new_authority()
    write_identity(tmp_path, "ca", authority)
    broker = BrokerSealer(new_identity(), client_ca=tmp_path / "ca.crt", asks_client=True)
    identity = issue_for_client(authority, "press-7") if side == "client" else new_identity()
    good = identity.certificates[0].public_bytes(serialization.Encoding.DER)
    path = tmp_path / "damaged.crt"
    refused = 0
    for place in [*range(8 * 60), *range(8 * 60, 8 * len(good), 9)]:
        data = bytearray(good)
        data[place // 8] ^= 1 << place % 8
        context = make_context(None, "client") if side == "client" else make_context(new_identity())
        try:
            path.write_bytes(data)
            context.use_certificate_file(path, crypto.FILETYPE_ASN1)
            context.use_privatekey(identity.key)  # type: ignore[arg-type]
            context.check_privatekey()
        except SSL.Error:
            continue  # OpenSSL does not read it either
        if side == "client":
            client: TlsSession = TlsHandshake(context, "client", lambda chain: None)
            server = judge = broker.new_session()
        else:
            client = judge = new_client_session(lambda chain: check_authority(chain, "localhost", tmp_path / "ca.crt"))
            server = TlsHandshake(context, "server")
        try:
            server.receive(client.receive(server.receive(client.start())))
            judge.check_peer()
        except TlsError as error:
            refused += "damaged, or of an unknown kind" in str(error)
    assert refused > 20, "most of the first flips are in the version, the serial number and the names"


def test_a_chain_that_is_too_long_for_the_handshake_gives_no_connection() -> None:
    """A broker whose flight is larger than 64 KiB: the client ends, and does not hold more."""
    identity = new_identity()
    long = Identity(identity.key, identity.certificates * 200)
    client, server, _ = pair(long)
    flight = server.receive(client.start())
    assert len(flight) > MAX_CRYPTO_BYTES
    stream = CryptoStream(0.01)
    for at in range(0, 65_000, 1000):
        stream.handle_frame(CryptoFrame(at, 0, flight[at : at + 1000]), 0.0)
    with pytest.raises(DecodeError, match="more than 65536 bytes"):
        stream.handle_frame(CryptoFrame(65_000, 0, flight[65_000:66_000]), 0.0)


def test_a_file_without_authorities_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing")
    with pytest.raises(TlsError, match="no certificates"):
        check_authority(new_identity().certificates, "localhost", tmp_path / "ca")


def test_both_suites_are_offered() -> None:
    assert set(ordered_suites()) == {AES_128_GCM, CHACHA20_POLY1305}
