"""Where a broker listens: the sockets of a host with several addresses, and the archive's place beside them."""

from __future__ import annotations

import errno
import hmac
from collections.abc import Sequence
from typing import Final

from godwit.errors import SocketError
from godwit.net.address import is_loopback, parse_broker
from godwit.net.udp import UdpSocket
from godwit.transport.events import Address

MAX_PORT: Final = 65_535
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen_on(host: str, port: int, addresses: Sequence[Address]) -> list[UdpSocket]:
    """A socket for each address of the host that this machine has; with port 0 for one of them."""
    if len(addresses) == 1:
        return [UdpSocket(host, port)]
    opened: list[UdpSocket] = []
    try:
        for address in addresses:
            try:
                opened.append(UdpSocket(address[0], port))
            except SocketError as error:
                cause = error.__cause__
                is_elsewhere = isinstance(cause, OSError) and cause.errno in _NOT_HERE
                if not is_elsewhere or (not opened and address == addresses[-1]):
                    raise
            if opened and port == 0:
                break
    except BaseException:
        for udp in opened:
            udp.close()
        raise
    return opened


def listener_reset_key(reset_key: bytes, address: Address) -> bytes:
    """Return the reset key of the listener that is bound to this address, derived from the broker's stored key.

    With one key for all, a listener would answer a packet for a connection of another with that connection's token. The
    address outlives a restart. A port picked by the system does not, but then no client sends to the old one either.
    """
    host, port, *_ = address
    return hmac.digest(reset_key, f"godwit 1 listener {host} {port}".encode(), "sha256")


def beside(listen: str, address: Address) -> str:
    """Where the archive listens unless it is said: at the first listener's host, and its port plus one."""
    host, port = parse_broker(listen)
    after = address[1] + 1 if 0 < port < MAX_PORT else 0
    return f"[{host}]:{after}" if ":" in host else f"{host}:{after}"


def open_to_all(url: str) -> str:
    """The warning of a broker that everybody can reach and use."""
    return (
        f"{url} can be reached from other machines and everybody may do everything: "
        "list clients and rules under [access] in the configuration, or listen on 127.0.0.1 only"
    )


def is_only_here(listen: str) -> bool:
    """Whether only this machine can reach it. A name other than localhost may be anything."""
    host, _ = parse_broker(listen)
    try:
        return host == "localhost" or is_loopback((host, 0))
    except ValueError:
        return False


def archive_without_tls(listen: str) -> str:
    """Return the warning of an archive whose tokens travel unencrypted."""
    return (
        f"the archive on {listen} can be reached from other machines and has no certificate, so that tokens are sent "
        "without encryption: give certificate and key under [archive] in the configuration, or let it listen on "
        "127.0.0.1 only and reach it through a tunnel"
    )


def archive_open_to_all(listen: str) -> str:
    """The same of the archive."""
    return (
        f"the archive on {listen} can be reached from other machines and everybody may read and write there: "
        "give a token_file under [archive] in the configuration, or let it listen on 127.0.0.1 only"
    )
