"""Convert host names and ports into the address tuples of sockets, and addresses into text."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final, TypeAlias

from godwit.errors import AddressError
from godwit.transport.events import Address

DEFAULT_PORT: Final = 50_000
"""The broker's default port."""
MAX_BROKERS: Final = 16
"""Maximum of addresses that a client is given."""
_SCHEMES: Final = ("udp://", "udps://")
Brokers: TypeAlias = str | Sequence[str]
"""The address of a broker, several with commas between them, or a list of addresses."""


def parse_brokers(brokers: Brokers) -> list[tuple[str, int]]:
    """Parse one address or several, as `parse_broker` does: `"a:50000,b:50000"` or `["a:50000", "b:50000"]`.

    Returns:
        Host and port of each, without repeats.

    Raises:
        AddressError: The list is empty, or one of the addresses is invalid.
    """
    found = list(dict.fromkeys(map(parse_broker, split_brokers(brokers))))
    if not 1 <= len(found) <= MAX_BROKERS:
        raise AddressError(f"{len(found)} addresses of brokers: give 1 to {MAX_BROKERS}")
    return found


def split_brokers(brokers: Brokers) -> list[str]:
    """Return the texts of the single addresses. Raises AddressError if they are not texts."""
    texts = brokers.split(",") if isinstance(brokers, str) else brokers
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise AddressError(
            f"the broker is {repr(brokers)[:80]}, of the type {type(brokers).__name__}: give a text such as "
            f"'localhost:{DEFAULT_PORT}', or a list of such texts"
        )
    return [text for text in texts if text.strip() or len(texts) == 1]


def parse_broker(text: str, *, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Parse `host`, `host:port`, `[::1]`, `[::1]:port` or `::1`, each also with the prefix `udp://` or `udps://`.

    A fingerprint behind a `#` is for godwit.net.security.

    Returns:
        Host and port.

    Raises:
        AddressError: The text is not the address of a broker.
    """
    example = f"write host:port, for example localhost:{DEFAULT_PORT} or [::1]:{DEFAULT_PORT}"
    rest = text.strip().partition("#")[0]
    if "@" in rest:  # the part before it may be a password, and is not repeated
        raise AddressError(f"an address of a broker has no user name and no password; {example}")
    if "://" in rest:
        if not rest.lower().startswith(_SCHEMES):
            schemes = " or ".join(_SCHEMES)
            raise AddressError(f"{text!r} is not the address of a broker: its scheme must be {schemes}; {example}")
        rest = rest.partition("://")[2].removesuffix("/")
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise AddressError(f"{text!r} is not the address of a broker; {example}")
        port_text = tail[1:] if tail else None
    elif rest.count(":") > 1:
        if not _is_ipv6(rest):
            raise AddressError(f"{text!r} is not the address of a broker; {example}")
        host, port_text = rest, None
    else:
        host, colon, tail = rest.partition(":")
        port_text = tail if colon else None
    if not host:
        raise AddressError(f"{text!r} names no host; {example}")
    if any(character.isspace() or not character.isprintable() for character in host):
        raise AddressError(f"{text!r} is not the address of a broker; {example}")
    if port_text is None:
        return host, default_port
    if not (port_text.isascii() and port_text.isdigit()) or len(port_text) > 5 or int(port_text) > 65535:
        raise AddressError(f"{port_text!r} in {text!r} is not a port: a port is a number from 1 to 65535; {example}")
    return host, int(port_text)


def is_loopback(address: Address) -> bool:
    """Return whether only this machine can reach the address."""
    return ipaddress.ip_address(address[0].partition("%")[0]).is_loopback


def is_ip_address(host: str) -> bool:
    """Return whether a host is an IP address, and not a name that must be resolved."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def resolve(host: str, port: int, *, family: int = socket.AF_UNSPEC) -> Address:
    """Return the first address of a host, in the form of `recvmsg`, so that the two compare equal.

    The system's resolver may block for seconds: do not call it in the thread of an event loop.

    Raises:
        AddressError: The host or the port is invalid, or the host has no address.
    """
    return resolve_all(host, port, family=family)[0]


def resolve_all(host: str, port: int, *, family: int = socket.AF_UNSPEC) -> list[Address]:
    """Return all addresses of a host, in the system's order of preference. "localhost" is often ::1 and 127.0.0.1.

    Raises:
        AddressError: The host or the port is invalid, or the host has no address.
    """
    if not host:
        raise AddressError("no host was given; name one, or 0.0.0.0 (IPv6: ::) for every address of this machine")
    # The resolver would truncate a larger number to 16 bits, which is a valid but wrong port.
    if not 0 <= port <= 65535:
        raise AddressError(f"port {port} of {host} is out of range; a port is from 1 to 65535 (0: any free one)")
    if "\0" in host:  # which ends the name in C
        raise AddressError(f"{host!r} is not a host name or an IP address (it contains a NUL); correct it")
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_DGRAM, socket.IPPROTO_UDP)
    except socket.gaierror as error:
        raise AddressError(_resolver_text(host, family, error)) from error
    except ValueError as error:  # a label too long for a name, a character outside IDNA
        raise AddressError(f"{host!r} is not a host name or an IP address ({error}); correct it") from error
    # A Python without IPv6 support returns (port, bytes) pairs, which sockets do not accept.
    addresses = list(dict.fromkeys(entry[4] for entry in found if isinstance(entry[4][0], str)))
    if not addresses:
        raise AddressError(f"host {host} has no address that this system can use; give another one")
    return list(addresses)


def family_of(address: Address) -> socket.AddressFamily:
    """Return the address family of an address tuple."""
    return socket.AF_INET if len(address) == 2 else socket.AF_INET6


def format_address(address: Address) -> str:
    """Return an address as `127.0.0.1:4000` or `[::1]:4000`."""
    host, port = address[:2]
    return f"[{host}]:{port}" if len(address) > 2 else f"{host}:{port}"


def bind_text(address: Address, error: OSError) -> str:
    """Return why a socket could not be opened or bound, and what to do."""
    where = f"cannot listen on UDP {format_address(address)}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: another socket has this port; stop it, or choose another port (0 takes any free one)"
    if error.errno == errno.EACCES:
        return f"{where}: permission denied; choose a port from 1024 upward, or run with the privilege for low ports"
    if error.errno == errno.EADDRNOTAVAIL:
        wildcard = "0.0.0.0" if len(address) == 2 else "::"
        return f"{where}: this machine does not have that address; use one it has, or {wildcard} for all of them"
    if error.errno == errno.EAFNOSUPPORT:
        return f"{where}: this system has no IPv{4 if len(address) == 2 else 6}; use the other version's address"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{where}: too many open files; close some, or raise the limit (`ulimit -n`)"
    return f"{where}: {error.strerror or error}; check the address and the state of the network"


def _resolver_text(host: str, family: int, error: socket.gaierror) -> str:
    version = {socket.AF_INET: "IPv4 ", socket.AF_INET6: "IPv6 "}.get(socket.AddressFamily(family), "")
    if error.errno == socket.EAI_AGAIN:
        return f"no answer from the name service about {host}; check the network, or give an IP address"
    return f"host {host} has no {version}address ({error.strerror}); check the name, or give an IP address"
