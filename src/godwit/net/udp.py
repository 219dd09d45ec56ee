"""A UDP socket for packet trains: many datagrams in one system call if the kernel supports that, else one by one."""

from __future__ import annotations

import errno
import functools
import logging
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from godwit.errors import SocketError
from godwit.limits import MAX_TRAIN_BYTES, MAX_TRAIN_DATAGRAMS, MIB
from godwit.net.address import bind_text, family_of, format_address, resolve
from godwit.transport.events import Address, Train

_logger = logging.getLogger(__name__)

BUFFER_BYTES: Final = 4 * MIB
"""Requested buffer size for each direction. Linux grants at most net.core.rmem_max and net.core.wmem_max."""

_LINUX: Final = sys.platform == "linux"
# Constants of Linux (linux/udp.h, linux/in.h, linux/in6.h, asm-generic/socket.h) that the socket module lacks.
_SOL_UDP: Final = 17
_UDP_SEGMENT: Final = 103
_UDP_GRO: Final = 104
_SO_RXQ_OVFL: Final = 40
_IP_MTU_DISCOVER: Final = 10
_IPV6_MTU_DISCOVER: Final = 23
_PMTUDISC_PROBE: Final = 3

_RECEIVE_BYTES: Final = 65_536  # the maximum of a datagram, and of datagrams joined by GRO
_ANCILLARY_BYTES: Final = 2 * socket.CMSG_SPACE(4) if hasattr(socket, "CMSG_SPACE") else 0
# A plain int: an operation with the enum flags of the socket module takes as long as a system call.
_TRUNCATED: Final = int(getattr(socket, "MSG_TRUNC", 0)) | int(getattr(socket, "MSG_CTRUNC", 0))
_U32: Final = 0xFFFF_FFFF

_FULL: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS})
_GSO_REFUSED: Final = frozenset({errno.EINVAL, errno.EIO, errno.EOPNOTSUPP})


class UdpSocket:
    """A non-blocking socket, bound to (host, port); port 0 is any free one.

    Errors of the network or a peer do not raise: `dropped` counts the lost datagrams by reason ("oversize", "empty",
    "truncated", "send ENETUNREACH", "receive ECONNREFUSED", ...).
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        receive_buffer_bytes: int = BUFFER_BYTES,
        send_buffer_bytes: int = BUFFER_BYTES,
        gso: bool = True,
        gro: bool = True,
    ) -> None:
        """Open and bind the socket.

        Args:
            host: The local address or name.
            port: The local port; 0 for any free one.
            receive_buffer_bytes: Requested size of the kernel's receive buffer.
            send_buffer_bytes: Requested size of the kernel's send buffer.
            gso: Send trains in one call, if the kernel supports it.
            gro: Receive joined datagrams, if the kernel supports it.

        Raises:
            AddressError: The host cannot be resolved.
            SocketError: The system refused the socket, for example because the port is in use.
        """
        self.dropped: Counter[str] = Counter()
        """Lost datagrams by reason."""
        self.kernel_drops: int = 0
        """Drops for want of room in the kernel's receive buffer. The count is updated by the next arrival. The kernel
        counts buffers: with GRO a whole train is one."""
        self.on_train: Callable[[Train, bool], None] | None = None
        """Called with every train that was received (True) or sent (False), for captures."""
        self._last_kernel_count = 0
        self._ancillary: list[tuple[int, int, bytes]] = []
        self._ancillary_segment_bytes = 0
        _keep_freed_memory()
        address = resolve(host, port)
        try:
            self._socket = _open(address)
        except OSError as error:
            raise SocketError(bind_text(address, error), error.errno) from error
        self.local_address: Address = self._socket.getsockname()
        _ask_for_buffer(self._socket, socket.SO_RCVBUF, receive_buffer_bytes)
        _ask_for_buffer(self._socket, socket.SO_SNDBUF, send_buffer_bytes)
        self._receive_buffer_bytes = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self.gso: bool = gso and _takes_segment_size(self._socket)
        """Whether trains are sent in one call. Becomes False when the kernel or a device refuses that."""
        self.gro: bool = gro and _try_option(self._socket, _SOL_UDP, _UDP_GRO, 1)
        """Whether datagrams of one sender are received joined."""
        _try_option(self._socket, socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        # Bound methods are looked up once, because they are called for every train.
        self._sendto: Any = self._socket.sendto
        self._sendmsg: Any = getattr(self._socket, "sendmsg", None)  # Windows has neither sendmsg nor recvmsg
        self._recvmsg: Any = getattr(self._socket, "recvmsg", self._recvmsg_without_ancillary)

    @property
    def receive_buffer_bytes(self) -> int:
        """The size of the kernel's receive buffer, in the kernel's accounting.

        Linux doubles the requested size (after capping it) and then charges each arrival with its overhead: 212,992
        bytes hold about 190 kB of joined trains, 130 kB of single 1400-byte datagrams and only 26 kB of 100-byte ones.
        """
        return self._receive_buffer_bytes

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive_trains(self, limit: int = 16, most_bytes: int = MIB) -> list[Train]:
        """Return arrived trains: at most `limit` buffers of the kernel (up to 64 KiB each, with GRO a train each), and
        none after `most_bytes` in total."""
        trains: list[Train] = []
        recvmsg = self._recvmsg
        for _ in range(limit):
            try:
                # A new bytes object each time: 64 KiB are allocated and shrunk in place. That is faster than copying
                # out of a fixed buffer of recvmsg_into: 6.7 instead of 7.3 us for 63 kB, 1.3 instead of 1.6 us for
                # 100 bytes.
                data, ancillary, flags, address = recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                self._count_error("receive", error)
                continue
            segment_bytes = len(data)
            if ancillary:  # present only for joined datagrams, and for arrivals after a drop
                segment_bytes = self._read_ancillary(ancillary, segment_bytes)
            if flags & _TRUNCATED:
                self.dropped["truncated"] += 1
            elif not data:
                self.dropped["empty"] += 1
            else:
                trains.append(Train(address, data, segment_bytes))
                most_bytes -= len(data)
                if most_bytes <= 0:
                    break
        if self.on_train is not None:
            for train in trains:
                self.on_train(train, True)
        return trains

    def _read_ancillary(self, ancillary: list[tuple[int, int, bytes]], segment_bytes: int) -> int:
        """Update the kernel's count of drops, and return the size of the datagrams if they arrived joined."""
        for level, kind, value in ancillary:
            if kind == _UDP_GRO and level == _SOL_UDP:
                # A broken kernel may return 0, which must not cause an endless loop where the train is cut.
                segment_bytes = int.from_bytes(value[:4], sys.byteorder) or segment_bytes
            elif kind == _SO_RXQ_OVFL and level == socket.SOL_SOCKET:
                self._note_kernel_count(int.from_bytes(value[:4], sys.byteorder))
        return segment_bytes

    def _note_kernel_count(self, count: int) -> None:
        more = (count - self._last_kernel_count) & _U32  # the kernel's count wraps at 32 bits
        if more < 1 << 31:  # else the count is older than the last one: arrivals on two processors can be reordered
            self.kernel_drops += more
            self._last_kernel_count = count

    def _recvmsg_without_ancillary(self, size_bytes: int, _: int) -> tuple[bytes, list[Any], int, Address]:
        data, address = self._socket.recvfrom(size_bytes)
        return data, [], 0, address

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, train: Train) -> Train | None:
        """Send a train. Return the part that the kernel had no room for: send it once the socket is writable again.

        None means that everything was passed to the kernel, or dropped and counted.
        """
        rest = self._pass_to_kernel(train)
        if self.on_train is not None:
            sent_bytes = len(train.data) - (0 if rest is None else len(rest.data))
            if sent_bytes:
                self.on_train(Train(train.address, train.data[:sent_bytes], train.segment_bytes), False)
        return rest

    def _pass_to_kernel(self, train: Train) -> Train | None:
        data = train.data
        segment_bytes = train.segment_bytes
        if 0 < len(data) <= segment_bytes:  # a single datagram, the usual case of a server with many small senders
            try:
                self._sendto(data, train.address)
            except OSError as error:
                if error.errno in _FULL:
                    return train
                self._count_error("send", error)
            return None
        if not self.gso or not data:
            return self._send_one_by_one(train)
        if segment_bytes != self._ancillary_segment_bytes:
            self._ancillary_segment_bytes = segment_bytes
            # The kernel's field has 16 bits. A larger segment is not a valid datagram, and is refused as too long.
            self._ancillary = [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", min(segment_bytes, 0xFFFF)))]
        try:
            self._sendmsg((data,), self._ancillary, 0, train.address)
        except OSError as error:
            return self._train_failed(train, error)
        return None

    def _send_one_by_one(self, train: Train) -> Train | None:
        address = train.address
        data = train.data
        segment_bytes = train.segment_bytes
        start = 0
        while start < len(data):
            try:
                self._sendto(data[start : start + segment_bytes], address)
            except OSError as error:
                if error.errno in _FULL:
                    return Train(address, data[start:], segment_bytes) if start else train
                self._count_error("send", error)
            start += segment_bytes
        return None

    def _train_failed(self, train: Train, error: OSError) -> Train | None:
        """Handle a refused train: find out whether its length, its destination or the kernel is the cause."""
        if error.errno in _FULL:
            return train
        datagrams = -(-len(train.data) // train.segment_bytes)
        if len(train.data) > MAX_TRAIN_BYTES or datagrams > MAX_TRAIN_DATAGRAMS:
            return self._send_one_by_one(train)  # longer than valid trains: that does not depend on the kernel
        if error.errno not in _GSO_REFUSED:
            self._count_error("send", error, datagrams)
            return None
        # Old kernels return EINVAL also for segments above the link's MTU, and all kernels do for a bad address. If a
        # single datagram is accepted, GSO itself is refused: by old kernels, devices without checksums, or IPsec.
        first = Train(train.address, train.data[: train.segment_bytes], train.segment_bytes)
        failures = self.dropped.total()
        if self._send_one_by_one(first) is not None:
            return train
        if self.dropped.total() == failures:
            self.gso = False
            _logger.info("UDP %s: the system refused GSO; datagrams are sent one by one", self.local_address)
        return self._send_one_by_one(Train(train.address, train.data[train.segment_bytes :], train.segment_bytes))

    def _count_error(self, doing: str, error: OSError, datagrams: int = 1) -> None:
        if error.errno == errno.EBADF:  # an error of the program, not of the network
            raise SocketError(
                f"cannot {doing} on UDP {format_address(self.local_address)}: the socket is closed; open a new one"
            ) from error
        if error.errno == errno.EMSGSIZE:
            reason = "oversize" if doing == "send" else "truncated"
        else:
            reason = f"{doing} {errno.errorcode.get(error.errno or 0, 'error')}"
        if not self.dropped[reason]:
            _logger.info("UDP %s drops datagrams: %s (%s)", self.local_address, reason, error.strerror or error)
        self.dropped[reason] += datagrams

    # -- other methods ------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the file descriptor for select, poll and event loops; -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket. May be repeated."""
        self._socket.close()

    def __enter__(self) -> UdpSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed, was " if self.fileno() < 0 else ""
        return f"<UdpSocket {state}{format_address(self.local_address)} gso={self.gso} gro={self.gro}>"


def _open(address: Address) -> socket.socket:
    family = family_of(address)
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        if family == socket.AF_INET6:
            # Else a listener on :: would occupy the port for IPv4 too, and one on 0.0.0.0 could not open.
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            _try_option(opened, socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            # Never fragment, and ignore the path MTU reported by routers: the transport searches it itself.
            _try_option(opened, socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        opened.bind(address)
    except BaseException:
        opened.close()
        raise
    return opened


def _try_option(opened: socket.socket, level: int, option: int, value: int) -> bool:
    """Set an option that only (some versions of) Linux have. Return whether that succeeded."""
    if not _LINUX:
        return False
    try:
        opened.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def _takes_segment_size(opened: socket.socket) -> bool:
    if not _LINUX:
        return False
    try:
        opened.getsockopt(_SOL_UDP, _UDP_SEGMENT)
    except OSError:
        return False
    return True


def _ask_for_buffer(opened: socket.socket, option: int, size_bytes: int) -> None:
    """Request a buffer size. Linux caps the size; other systems refuse a large one, so it is halved until accepted."""
    while size_bytes > 0:
        try:
            opened.setsockopt(socket.SOL_SOCKET, option, size_bytes)
        except OSError:
            size_bytes //= 2
        else:
            return


@functools.cache
def _keep_freed_memory() -> None:
    """Make glibc's allocator keep freed memory for the trains of the next turn, once for each process.

    Freeing a large block raises the threshold for returning memory to the system to twice that block (mallopt(3),
    "dynamic mmap threshold"). Otherwise the pages are faulted in again in every turn: a train of 63 kB took 12 to 19 us
    instead of 7. It costs up to 8 MiB, and has no effect with other allocators.
    """
    bytes(4 * MIB)
