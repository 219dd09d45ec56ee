"""One UDP socket that moves trains: many datagrams in a system call where the kernel can, one by one where not."""

from __future__ import annotations

import errno
import functools
import socket
import struct
import sys
from collections import Counter
from types import TracebackType
from typing import Any, Final

from godwit.errors import SocketError
from godwit.limits import MAX_TRAIN_BYTES, MAX_TRAIN_DATAGRAMS, MIB
from godwit.net.address import bind_text, family_of, format_address, resolve
from godwit.transport.events import Address, Train

BUFFER_BYTES: Final = 4 * MIB
"""Asked of the kernel for each direction. It may give less: Linux not above net.core.rmem_max and wmem_max."""

_LINUX: Final = sys.platform == "linux"
# Linux' numbers (linux/udp.h, linux/in.h, linux/in6.h, asm-generic/socket.h), which the socket module does not have.
_SOL_UDP: Final = 17
_UDP_SEGMENT: Final = 103
_UDP_GRO: Final = 104
_SO_RXQ_OVFL: Final = 40
_IP_MTU_DISCOVER: Final = 10
_IPV6_MTU_DISCOVER: Final = 23
_PMTUDISC_PROBE: Final = 3

_RECEIVE_BYTES: Final = 65_536  # neither a datagram nor what GRO joins is longer
_ANCILLARY_BYTES: Final = 2 * socket.CMSG_SPACE(4) if hasattr(socket, "CMSG_SPACE") else 0
# A plain number: the arithmetic of the module's own flags takes as long as a system call.
_TRUNCATED: Final = int(getattr(socket, "MSG_TRUNC", 0)) | int(getattr(socket, "MSG_CTRUNC", 0))
_U32: Final = 0xFFFF_FFFF

_FULL: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS})
_GSO_REFUSED: Final = frozenset({errno.EINVAL, errno.EIO, errno.EOPNOTSUPP})


class UdpSocket:
    """A non-blocking socket, bound to (host, port); port 0 is any free one.

    Receiving and sending never raise for what the network or a peer did: it is counted in `dropped`, in datagrams by
    reason ("oversize", "empty", "truncated", "send ENETUNREACH", "receive ECONNREFUSED", ...).
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
        self.dropped: Counter[str] = Counter()
        self.kernel_drops: int = 0
        """What the kernel dropped for want of room, known from the next arrival on. It counts its own buffers: with
        GRO a whole train is one."""
        self._last_kernel_count = 0
        self._ancillary: list[tuple[int, int, bytes]] = []
        self._ancillary_segment_bytes = 0
        _keep_freed_memory()
        address = resolve(host, port)
        try:
            self._socket = _open(address)
        except OSError as error:
            raise SocketError(bind_text(address, error)) from error
        self.local_address: Address = self._socket.getsockname()
        _ask_for_buffer(self._socket, socket.SO_RCVBUF, receive_buffer_bytes)
        _ask_for_buffer(self._socket, socket.SO_SNDBUF, send_buffer_bytes)
        self._receive_buffer_bytes = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self.gso: bool = gso and _takes_segment_size(self._socket)
        """Trains leave in one call. Becomes False for good when the kernel or a device turns out to refuse it."""
        self.gro: bool = gro and _try_option(self._socket, _SOL_UDP, _UDP_GRO, 1)
        """Datagrams of one sender arrive joined."""
        _try_option(self._socket, socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        # Bound methods, looked up once: they are called for every train.
        self._sendto: Any = self._socket.sendto
        self._sendmsg: Any = getattr(self._socket, "sendmsg", None)  # Windows has neither of the two
        self._recvmsg: Any = getattr(self._socket, "recvmsg", self._recvmsg_without_ancillary)

    @property
    def receive_buffer_bytes(self) -> int:
        """What the kernel really gave, in its own accounting.

        Linux doubles what is asked for (after capping it) and then charges each arrival with its bookkeeping: 212,992
        hold about 190 kB of joined trains, 130 kB of lone 1400-byte datagrams and only 26 kB of 100-byte ones.
        """
        return self._receive_buffer_bytes

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive_trains(self, limit: int = 16, most_bytes: int = MIB) -> list[Train]:
        """What has arrived, at most `limit` buffers of the kernel: 64 KiB each at most, with GRO a train each. No
        more are taken once they have `most_bytes` together."""
        trains: list[Train] = []
        recvmsg = self._recvmsg
        for _ in range(limit):
            try:
                # A fresh bytes object each: 64 KiB are allocated and cut to size in place. Against recvmsg_into a
                # buffer that is kept, and copying out of it, this took 6.7 instead of 7.3 us for 63 kB and 1.3 instead
                # of 1.6 us for 100 bytes.
                data, ancillary, flags, address = recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                self._count_error("receive", error)
                continue
            segment_bytes = len(data)
            if ancillary:  # only joined datagrams, and arrivals after a drop, have any
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
        return trains

    def _read_ancillary(self, ancillary: list[tuple[int, int, bytes]], segment_bytes: int) -> int:
        """Notes the kernel's count of drops; the size of the datagrams, if they came joined."""
        for level, kind, value in ancillary:
            if kind == _UDP_GRO and level == _SOL_UDP:
                # 0 would be a broken kernel; it must not become an endless loop in whoever cuts the train.
                segment_bytes = int.from_bytes(value[:4], sys.byteorder) or segment_bytes
            elif kind == _SO_RXQ_OVFL and level == socket.SOL_SOCKET:
                self._note_kernel_count(int.from_bytes(value[:4], sys.byteorder))
        return segment_bytes

    def _note_kernel_count(self, count: int) -> None:
        more = (count - self._last_kernel_count) & _U32  # the kernel's count wraps at 32 bits
        if more < 1 << 31:  # else it is older than one already seen: arrivals on two processors can overtake each other
            self.kernel_drops += more
            self._last_kernel_count = count

    def _recvmsg_without_ancillary(self, size_bytes: int, _: int) -> tuple[bytes, list[Any], int, Address]:
        data, address = self._socket.recvfrom(size_bytes)
        return data, [], 0, address

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, train: Train) -> Train | None:
        """Hands a train to the kernel. What did not fit comes back: send that once the socket is writable again.

        None means that there is nothing left to do: all is with the kernel, or is dropped for good and counted.
        """
        data = train.data
        segment_bytes = train.segment_bytes
        if 0 < len(data) <= segment_bytes:  # a lone datagram, as most are on a server with many small senders
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
            # The kernel's field has 16 bits. A larger segment is no datagram: it will be refused as too long.
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
        """Nothing of the train was sent. Finds out whether that is because of its length, its way or the kernel."""
        if error.errno in _FULL:
            return train
        datagrams = -(-len(train.data) // train.segment_bytes)
        if len(train.data) > MAX_TRAIN_BYTES or datagrams > MAX_TRAIN_DATAGRAMS:
            return self._send_one_by_one(train)  # longer than trains are: says nothing about the kernel
        if error.errno not in _GSO_REFUSED:
            self._count_error("send", error, datagrams)
            return None
        # An old kernel says EINVAL also for segments longer than the link takes, and any does for a bad address. Only
        # if a datagram goes alone is it the train that is refused: old kernels, devices without checksums, IPsec.
        first = Train(train.address, train.data[: train.segment_bytes], train.segment_bytes)
        failures = self.dropped.total()
        if self._send_one_by_one(first) is not None:
            return train
        if self.dropped.total() == failures:
            self.gso = False
        return self._send_one_by_one(Train(train.address, train.data[train.segment_bytes :], train.segment_bytes))

    def _count_error(self, doing: str, error: OSError, datagrams: int = 1) -> None:
        if error.errno == errno.EBADF:  # the program's mistake, not the network's
            raise SocketError(
                f"cannot {doing} on UDP {format_address(self.local_address)}: the socket is closed; open a new one"
            ) from error
        if error.errno == errno.EMSGSIZE:
            self.dropped["oversize" if doing == "send" else "truncated"] += datagrams
        else:
            self.dropped[f"{doing} {errno.errorcode.get(error.errno or 0, 'error')}"] += datagrams

    # -- the rest -----------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """For select, poll and event loops; -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Gives the port back. May be repeated."""
        self._socket.close()

    def __enter__(self) -> UdpSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
            # Else a listener on :: would take IPv4's port too, and keep the one on 0.0.0.0 from opening.
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            _try_option(opened, socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            # Never fragment, and do not believe what routers said about the path's MTU: the transport searches itself.
            _try_option(opened, socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        opened.bind(address)
    except BaseException:
        opened.close()
        raise
    return opened


def _try_option(opened: socket.socket, level: int, option: int, value: int) -> bool:
    """Sets an option that only Linux has, and not every Linux."""
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
    """Linux caps what is asked for; others refuse what is too much, so ask for less until they agree."""
    while size_bytes > 0:
        try:
            opened.setsockopt(socket.SOL_SOCKET, option, size_bytes)
        except OSError:
            size_bytes //= 2
        else:
            return


@functools.cache
def _keep_freed_memory() -> None:
    """Tells glibc's allocator, once a process, to keep the memory of a turn's trains instead of returning it each time.

    Freeing a large block raises its threshold for giving memory back to twice that block (mallopt(3), "dynamic mmap
    threshold"). Without this the pages of every turn are faulted in anew: a train of 63 kB took 12 to 19 us instead of
    7. Costs up to 8 MiB, and does nothing on other systems.
    """
    bytes(4 * MIB)
