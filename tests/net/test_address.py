"""Names become the address tuples that sockets use; errors have a reason."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from godwit.errors import AddressError, GodwitError
from godwit.net.address import family_of, format_address, is_loopback, parse_broker, resolve, resolve_all
from godwit.net.udp import UdpSocket
from godwit.transport.events import Train


def test_numbers_come_back_in_the_form_of_their_family() -> None:
    assert resolve("127.0.0.1", 4000) == ("127.0.0.1", 4000)
    assert resolve("::1", 4000) == ("::1", 4000, 0, 0)
    assert resolve("0:0:0:0::0:1", 4000) == ("::1", 4000, 0, 0)
    assert family_of(("127.0.0.1", 1)) == socket.AF_INET
    assert family_of(("::1", 1, 0, 0)) == socket.AF_INET6


def test_a_name_gives_the_address_that_arrivals_carry() -> None:
    with UdpSocket("localhost") as receiver, UdpSocket("localhost") as sender:
        family = family_of(receiver.local_address)
        assert resolve("localhost", receiver.local_address[1], family=family) == receiver.local_address
        sender.send(Train(resolve("localhost", receiver.local_address[1], family=family), b"x", 1))
        select.select([receiver], [], [], 5.0)
        (train,) = receiver.receive_trains()
        assert train.address == resolve("localhost", sender.local_address[1], family=family)


def test_all_addresses_come_once_each_in_the_systems_order(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Sequence[tuple[Any, ...]] = [
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 5, 0, 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 5)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 5)),
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", (5, b"raw bytes, as Python built without IPv6 gives them")),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers)
    assert resolve_all("localhost", 5) == [("::1", 5, 0, 0), ("127.0.0.1", 5)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers[-1:])
    with pytest.raises(AddressError, match="localhost has no address that this system can use"):
        resolve_all("localhost", 5)


@pytest.mark.parametrize("port", [-1, 65_536, 70_000])
def test_a_port_out_of_range_is_reported(port: int) -> None:
    with pytest.raises(AddressError, match=f"port {port} of localhost is out of range; a port is from 1 to 65535"):
        resolve("localhost", port)


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("", "no host was given; name one, or 0.0.0.0"),
        ("a" * 70 + ".example", "is not a host name or an IP address .*; correct it"),
        ("a\0b", "is not a host name or an IP address .*; correct it"),
    ],
)
def test_an_invalid_name_is_reported(host: str, text: str) -> None:
    with pytest.raises(AddressError, match=text) as caught:
        resolve(host, 1)
    assert isinstance(caught.value, GodwitError)


@pytest.mark.parametrize(
    ("code", "family", "text"),
    [
        (socket.EAI_NONAME, socket.AF_UNSPEC, r"host far\.example has no address \(made up\); check the name, or give"),
        (socket.EAI_NONAME, socket.AF_INET6, r"host far\.example has no IPv6 address"),
        (socket.EAI_AGAIN, socket.AF_UNSPEC, r"no answer from the name service about far\.example; check the network"),
    ],
)
def test_errors_of_the_resolver_are_reported(
    monkeypatch: pytest.MonkeyPatch, code: int, family: int, text: str
) -> None:
    def fail(*_: object) -> None:
        raise socket.gaierror(code, "made up")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(AddressError, match=text):
        resolve("far.example", 1, family=family)


def test_an_ipv4_number_is_no_ipv6_address() -> None:
    with pytest.raises(AddressError, match=r"host 127\.0\.0\.1 has no IPv6 address"):
        resolve("127.0.0.1", 1, family=socket.AF_INET6)


def test_addresses_read_as_people_write_them() -> None:
    assert format_address(("127.0.0.1", 4000)) == "127.0.0.1:4000"
    assert format_address(("::1", 4000, 0, 0)) == "[::1]:4000"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", ("localhost", 50_000)),
        ("broker.example:1234", ("broker.example", 1234)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]", ("::1", 50_000)),
        ("[::1]:1234", ("::1", 1234)),
        ("::1", ("::1", 50_000)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("udp://localhost:65535", ("localhost", 65535)),
        ("UDP://[::1]:7/", ("::1", 7)),
        (" localhost ", ("localhost", 50_000)),
    ],
)
def test_a_broker_is_named_in_the_usual_ways(text: str, expected: tuple[str, int]) -> None:
    assert parse_broker(text) == expected


def test_another_default_port() -> None:
    assert parse_broker("::", default_port=0) == ("::", 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ":1",
        "[]:1",
        "[::1",
        "[::1]x",
        "a:b",
        "a:",
        "a:65536",
        "a:-1",
        "a:²",
        f"a:{'1' * 5000}",
        "a:1:2",
        "tcp://a:1",
        "udp://",
        "http://a",
        "not an address",
        "a\x1bb:1",
    ],
)
def test_an_invalid_address_is_answered_with_an_example(text: str) -> None:
    with pytest.raises(AddressError, match=r"write host:port"):
        parse_broker(text)


def test_loopback_addresses_are_recognised() -> None:
    assert all(is_loopback(address) for address in [("127.0.0.1", 1), ("127.9.9.9", 1), ("::1", 1, 0, 0)])
    assert not any(is_loopback(address) for address in [("0.0.0.0", 1), ("::", 1, 0, 0), ("fe80::1%lo", 1, 0, 1)])
