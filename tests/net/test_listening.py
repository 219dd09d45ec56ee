"""Sockets for the addresses of a host, and the archive's place. How a broker uses them is in test_serve."""

from __future__ import annotations

import pytest

from godwit.errors import SocketError
from godwit.net.listening import (
    archive_open_to_all,
    archive_without_tls,
    beside,
    is_only_here,
    listen_on,
    listener_reset_key,
    open_to_all,
)
from godwit.net.udp import UdpSocket
from godwit.transport.events import Address

ELSEWHERE: Address = ("192.0.2.1", 0)


def test_a_host_s_addresses_that_are_not_this_machine_s_are_left_out() -> None:
    with UdpSocket("127.0.0.1") as free:
        port = free.local_address[1]
    sockets = listen_on("host.example", port, [ELSEWHERE, ("127.0.0.1", port), ("127.0.0.2", port)])
    assert [udp.local_address[:2] for udp in sockets] == [("127.0.0.1", port), ("127.0.0.2", port)]
    with pytest.raises(SocketError, match="another socket has this port"):
        listen_on("host.example", port, [("127.0.0.3", port), ("127.0.0.1", port)])
    for udp in sockets:
        udp.close()
    UdpSocket("127.0.0.3", port).close()  # the error left nothing open


def test_with_any_port_one_of_them_is_enough() -> None:
    (udp,) = listen_on("host.example", 0, [("127.0.0.1", 0), ("127.0.0.2", 0)])
    udp.close()


def test_a_host_that_is_another_machine() -> None:
    with pytest.raises(SocketError, match="does not have that address"):
        listen_on("host.example", 0, [ELSEWHERE, ELSEWHERE])


@pytest.mark.parametrize(
    ("listen", "port", "expected"),
    [
        ("127.0.0.1:50000", 50000, "127.0.0.1:50001"),
        ("localhost", 50000, "localhost:50001"),
        ("[::1]:7", 7, "[::1]:8"),
        ("127.0.0.1:0", 43210, "127.0.0.1:0"),
        ("127.0.0.1:65535", 65535, "127.0.0.1:0"),
    ],
)
def test_where_the_archive_listens_unless_it_is_said(listen: str, port: int, expected: str) -> None:
    assert beside(listen, ("127.0.0.1", port)) == expected


def test_the_warning_names_the_address_and_the_remedy() -> None:
    assert open_to_all("udp://0.0.0.0:1").startswith("udp://0.0.0.0:1 can be reached from other machines")
    assert "[access]" in open_to_all("")
    assert "the archive on 0.0.0.0:2 can be reached" in archive_open_to_all("0.0.0.0:2")
    assert "the archive on 0.0.0.0:2 can be reached" in archive_without_tls("0.0.0.0:2")


def test_what_only_this_machine_can_reach() -> None:
    for listen in ("127.0.0.1:5", "127.3.2.1", "[::1]:5", "localhost:5", "localhost"):
        assert is_only_here(listen)
    for listen in ("0.0.0.0:5", "[::]:5", "192.0.2.1", "host.example:5"):
        assert not is_only_here(listen)


def test_each_listener_has_a_reset_key_of_its_own_that_stays_the_same() -> None:
    addresses: list[Address] = [("127.0.0.1", 50000), ("127.0.0.1", 50001), ("::1", 50000, 0, 0)]
    keys = [listener_reset_key(bytes(32), address) for address in addresses]
    assert len({*keys, bytes(32)}) == 4
    assert keys == [listener_reset_key(bytes(32), address) for address in addresses]
    assert listener_reset_key(b"another broker's key, 32 bytes..", addresses[0]) != keys[0]
    assert all(len(key) == 32 for key in keys)
