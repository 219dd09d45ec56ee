"""The metrics endpoint: replies, and clients that send too much, too slowly or too often."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from tests.metrics.http_client import PATIENCE_S, exchange, get, read_reply

from godwit.errors import SocketError
from godwit.metrics import server as server_module
from godwit.metrics.server import HttpReply, MetricsServer, metrics_reply, open_endpoint


async def answer() -> HttpReply:
    return metrics_reply(b"up 1\n")


async def fail() -> HttpReply:
    raise ValueError("a defect")


async def hang() -> HttpReply:
    await asyncio.sleep(3600)
    raise AssertionError


ANSWERS = {"/metrics": answer, "/fail": fail, "/hang": hang}


@pytest.fixture
def endpoint() -> Iterator[MetricsServer]:
    server = MetricsServer(open_endpoint("127.0.0.1", 0), ANSWERS)
    yield server
    server.close()


def test_a_reply(endpoint: MetricsServer) -> None:
    reply = get(endpoint.address, "/metrics?debug=1")
    assert (reply.status, reply.body) == (200, b"up 1\n")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert reply.headers["content-length"] == "5"
    assert reply.headers["connection"] == "close"
    assert get(endpoint.address, "/metrics", "HEAD") == (200, reply.headers, b"")
    assert endpoint.url == f"http://127.0.0.1:{endpoint.address[1]}"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),  # TLS
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"GET /\xff\x1b[31m<script> HTTP/1.1\r\n\r\n", 404),
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 431),
        (b"x" * 20_000, 431),
    ],
)
def test_invalid_requests_have_a_reply(endpoint: MetricsServer, request_bytes: bytes, status: int) -> None:
    try:
        assert exchange(endpoint.address, request_bytes).status == status
    except ConnectionResetError:  # it closed with unread bytes
        assert len(request_bytes) > 8192
    assert get(endpoint.address, "/metrics").status == 200


def test_a_request_in_pieces_is_read(endpoint: MetricsServer) -> None:
    with socket.create_connection(endpoint.address, timeout=PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for letter in b"GET /metrics HTTP/1.1\r\n\r\n":
            connection.sendall(bytes([letter]))
        assert read_reply(connection).status == 200


def test_a_defect_of_an_answer_is_an_error_of_the_request(
    endpoint: MetricsServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert get(endpoint.address, "/fail").status == 500
    assert "a defect" in caplog.text
    assert get(endpoint.address, "/metrics").status == 200


def test_an_answer_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, endpoint: MetricsServer) -> None:
    monkeypatch.setattr(server_module, "ANSWER_TIMEOUT_S", 0.05)
    assert get(endpoint.address, "/hang").status == 503


def test_a_client_that_never_ends_its_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, endpoint: MetricsServer
) -> None:
    monkeypatch.setattr(server_module, "REQUEST_TIMEOUT_S", 0.05)
    with socket.create_connection(endpoint.address, timeout=PATIENCE_S) as connection, suppress(ConnectionResetError):
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert connection.recv(100) == b""


def test_silent_connections_give_way_to_a_request(endpoint: MetricsServer) -> None:
    with ExitStack() as stack:
        for _ in range(server_module.MAX_CONNECTIONS + 20):
            silent = stack.enter_context(socket.create_connection(endpoint.address, timeout=PATIENCE_S))
            silent.sendall(b"GET /metrics")
        assert get(endpoint.address, "/metrics").status == 200
        assert endpoint.refused >= 20


def test_a_client_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_TIMEOUT_S", 0.05)
    ended = threading.Event()

    async def much() -> HttpReply:
        return metrics_reply(b"x" * (64 << 20))

    server = MetricsServer(open_endpoint("127.0.0.1", 0), {"/metrics": much})
    try:
        with socket.create_connection(server.address, timeout=PATIENCE_S) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            for _ in range(2400):  # until the server has given it up
                if server.requests and not server._connections:
                    ended.set()
                    break
                threading.Event().wait(0.05)
        assert ended.is_set()
    finally:
        server.close()


def test_many_connections_are_accepted_slowly(monkeypatch: pytest.MonkeyPatch, endpoint: MetricsServer) -> None:
    monkeypatch.setattr(server_module, "ACCEPT_BURST", 5.0)
    endpoint._tokens = 0.0
    for _ in range(20):
        assert get(endpoint.address, "/metrics").status == 200
    assert endpoint.requests == 20


def test_a_port_in_use_is_explained(endpoint: MetricsServer) -> None:
    with pytest.raises(SocketError, match=r"cannot serve metrics on 127\.0\.0\.1:\d+: .*another program has this port"):
        open_endpoint(*endpoint.address)
    with pytest.raises(SocketError, match="cannot serve metrics on no-such-host"):
        open_endpoint("no-such-host.invalid", 1)


def test_it_can_be_closed_during_a_request() -> None:
    server = MetricsServer(open_endpoint("127.0.0.1", 0), ANSWERS)
    with socket.create_connection(server.address, timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /hang HTTP/1.1\r\n\r\n")
        while not server.requests:
            threading.Event().wait(0.01)
        server.close()
        server.close()
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""
