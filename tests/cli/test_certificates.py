"""One certificate for all listeners of a broker: sealed connections, archive, MQTT and console, replaced by SIGHUP."""

from __future__ import annotations

import hashlib
import signal
import ssl
import sys
import urllib.request
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.cli.real import eventually, godwit, needs_posix, running

from godwit.cli.console import ConsoleTls
from godwit.errors import ConfigurationError
from godwit.net.security import BrokerSecurity
from godwit.net.tls import new_identity, write_file
from godwit.server.configuration import SecuritySection, load_configuration

CONFIG = """
[security]
certificate = "broker.crt"
key = "broker.key"
plain = "refuse"
[mqtt]
listen = ["tls://127.0.0.1:0"]
[archive]
listen = "127.0.0.1:0"
"""


def make_identity(folder: Path) -> tuple[str, str]:
    """Write a certificate and its key; return the digest of the certificate and the fingerprint of the key."""
    identity = new_identity()
    private = identity.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = identity.certificates[0].public_bytes(serialization.Encoding.PEM)
    write_file(folder / "new.key", private, 0o600)
    write_file(folder / "new.crt", public, 0o644)
    (folder / "new.key").replace(folder / "broker.key")
    (folder / "new.crt").replace(folder / "broker.crt")
    return digest(public.decode()), identity.fingerprint


def digest(pem: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def served(url: str) -> str:
    """The digest of the certificate that a listener shows now; empty while it does not accept connections."""
    host, _, port = url.partition("://")[2].rpartition(":")
    try:
        return digest(ssl.get_server_certificate((host, int(port)), timeout=60))
    except OSError:
        return ""


@needs_posix
def test_one_certificate_for_all_listeners_that_sighup_replaces(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG)
    first, fingerprint = make_identity(tmp_path)
    options = [
        "--config",
        str(config),
        "--data",
        str(tmp_path / "data"),
        "--console",
        "--console-listen",
        "127.0.0.1:0",
    ]
    with running("broker", "--listen", "127.0.0.1:0", *options) as broker:
        prefixes = ("archive on grpc+tls://", "listening on udps://", "listening on tls://", "console on https://")
        found: dict[str, str] = {}
        while len(found) < len(prefixes):  # the console is a process of its own: its line may come at any time
            line = broker.out.line()
            found |= {prefix: line.rpartition(" ")[2] for prefix in prefixes if prefix in line}
        assert any(f"the broker's key is {fingerprint}" in line for line in broker.out.seen)
        archive, address, mqtt, console = (found[prefix] for prefix in prefixes)
        urls = [archive, mqtt, console]
        assert [served(url) for url in urls] == [first] * 3
        assert godwit("pub", "--broker", f"{address}#{fingerprint}", "a", "x").returncode == 0
        context = ssl.create_default_context(cafile=str(tmp_path / "broker.crt"))
        context.check_hostname = False
        with urllib.request.urlopen(f"{console}/api/session", context=context, timeout=60) as reply:
            assert "Secure" in reply.headers["Set-Cookie"]

        second, renewed = make_identity(tmp_path)
        broker.process.send_signal(signal.SIGHUP)
        archive = broker.out.until("archive on grpc+tls://").rpartition(" ")[2]  # it was started again, on a free port
        for url in (archive, mqtt, console):
            eventually(lambda url=url: served(url) == second)  # type: ignore[misc]
        assert godwit("pub", "--broker", f"{address}#{renewed}", "a", "x").returncode == 0

        former_key = (tmp_path / "broker.key").read_bytes()
        make_identity(tmp_path)
        write_file(tmp_path / "broker.key", former_key, 0o600)  # only half of the pair was replaced
        broker.process.send_signal(signal.SIGHUP)
        broker.out.until("the certificate of mqtt stays as it was")
        broker.out.until("the archive stays as it was")
        assert "stays as it was" in broker.err.until("the certificate of the console")
        assert [served(url) for url in (archive, mqtt, console)] == [second] * 3

        (tmp_path / "broker.crt").write_text("damaged")
        broker.process.send_signal(signal.SIGHUP)
        broker.out.until("the archive stays as it was")
        assert "stays as it was" in broker.err.until("the certificate of the console")
        assert [served(url) for url in (archive, mqtt, console)] == [second] * 3


@needs_posix
def test_sighup_takes_a_certificate_from_other_files(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG)
    make_identity(tmp_path)
    other = tmp_path / "renewed"
    other.mkdir()
    renewed, fingerprint = make_identity(other)
    options = ("--config", str(config), "--console", "--console-listen", "127.0.0.1:0")
    with running("broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), *options) as broker:
        prefixes = ("archive on grpc+tls://", "listening on udps://", "listening on tls://", "console on https://")
        found: dict[str, str] = {}
        while len(found) < len(prefixes):
            line = broker.out.line()
            found |= {prefix: line.rpartition(" ")[2] for prefix in prefixes if prefix in line}
        _, address, mqtt, console = (found[prefix] for prefix in prefixes)
        config.write_text(
            CONFIG.replace("broker.crt", "renewed/broker.crt").replace("broker.key", "renewed/broker.key")
        )
        broker.process.send_signal(signal.SIGHUP)
        archive = broker.out.until("archive on grpc+tls://").rpartition(" ")[2]
        for url in (archive, mqtt, console):
            eventually(lambda url=url: served(url) == renewed)  # type: ignore[misc]
        assert godwit("pub", "--broker", f"{address}#{fingerprint}", "a", "x").returncode == 0
        assert not any("need a restart" in line for line in broker.out.seen)

        config.write_text(CONFIG.replace("broker.crt", "absent.crt"))
        broker.process.send_signal(signal.SIGHUP)
        broker.out.until("the settings of security stay as they were")
        broker.out.until("the archive stays as it was")
        assert [served(url) for url in (archive, mqtt, console)] == [renewed] * 3

        config.write_text('[security]\nplain = "refuse"\n')
        broker.process.send_signal(signal.SIGHUP)
        broker.out.until("a console with TLS instead of without, or the reverse, needs a restart of the broker")
        assert served(console) == renewed


def test_listeners_fall_back_to_the_certificate_of_security() -> None:
    text = CONFIG.replace('listen = "127.0.0.1:0"', 'listen = "127.0.0.1:0"\ncertificate = "own.crt"\nkey = "own.key"')
    both = load_configuration(CONFIG, read_secret=lambda _: b"")
    own = load_configuration(text, read_secret=lambda _: b"")
    assert both.mqtt is not None
    assert (both.mqtt.certificate, both.archive.key) == (Path("broker.crt"), Path("broker.key"))
    assert own.mqtt is not None
    assert (own.mqtt.certificate, own.archive.certificate) == (Path("broker.crt"), Path("own.crt"))


def test_a_listener_for_other_machines_gets_the_brokers_own_certificate(tmp_path: Path) -> None:
    security = BrokerSecurity(SecuritySection(), tmp_path)
    assert security.certificate_files(is_exposed=False) is None
    assert not security.is_loaded
    files = security.certificate_files(is_exposed=True)
    assert files is not None
    assert files[0].exists()
    ConsoleTls(*files)
    assert BrokerSecurity(SecuritySection(), None).certificate_files(is_exposed=True) is None


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such permissions")
def test_files_that_a_console_does_not_accept(tmp_path: Path) -> None:
    make_identity(tmp_path)
    files = (tmp_path / "broker.crt", tmp_path / "broker.key")
    files[1].chmod(0o644)
    with pytest.raises(ConfigurationError, match="other users can read or change the key"):
        ConsoleTls(*files)
    files[1].chmod(0o600)
    files[0].write_text("damaged")
    with pytest.raises(ConfigurationError, match="check both files"):
        ConsoleTls(*files)
    result = godwit("console", "--certificate", str(files[0]))
    assert b"--certificate and --key belong together" in result.stderr
