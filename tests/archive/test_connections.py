"""A connection that is cut from this side."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from godwit.archive.connections import cut_connection


@pytest.mark.parametrize(("host", "peer"), [("127.0.0.1", "ipv4:127.0.0.1:{}"), ("::1", "ipv6:%5B::1%5D:{}")])
def test_only_the_connection_to_this_peer_is_cut(host: str, peer: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no address {host} here")
    port = listener.getsockname()[1]
    with listener, socket.create_connection((host, port)) as one, socket.create_connection((host, port)) as other:
        accepted = [listener.accept()[0] for _ in range(2)]
        assert cut_connection(peer.format(one.getsockname()[1]))
        one.settimeout(20)
        assert one.recv(1) == b""
        accepted[1].sendall(b"x")
        assert other.recv(1) == b"x"
        for connection in accepted:
            connection.close()


def test_a_socket_for_both_families() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no such sockets here")
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        one = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with one, accepted:
            assert cut_connection(f"ipv4:127.0.0.1:{one.getsockname()[1]}")
            one.settimeout(20)
            assert one.recv(1) == b""


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "unix:/tmp/x", "", "ipv4:", "nonsense"])
def test_a_peer_that_is_not_there(peer: str) -> None:
    files = Path("/dev/fd")
    before = len(list(files.iterdir()))
    assert not cut_connection(peer)
    assert len(list(files.iterdir())) == before  # it looked at copies of all, files and pipes too
