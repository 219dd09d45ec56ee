"""Real sockets on loopback: trains arrive as they were sent, with and without the kernel's help."""

from __future__ import annotations

import errno
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.ports import free_port

from godwit.errors import GodwitError, SocketError
from godwit.net.udp import UdpSocket
from godwit.transport.events import Train

LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="GSO, GRO and SO_RXQ_OVFL are Linux'")
DEADLINE_S = 120.0


def ipv6_works() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


HOSTS = [
    "127.0.0.1",
    pytest.param("::1", marks=pytest.mark.skipif(not ipv6_works(), reason="this system has no ::1")),
]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def receive(udp: UdpSocket, datagrams: int) -> list[Train]:
    """Trains until that many datagrams have come."""
    trains: list[Train] = []
    missing = datagrams
    deadline = time.monotonic() + DEADLINE_S
    while missing > 0:
        readable, _, _ = select.select([udp], [], [], max(0.0, deadline - time.monotonic()))
        assert readable, f"{missing} of {datagrams} datagrams did not arrive"
        new = udp.receive_trains()
        trains += new
        missing -= sum(len(list(train.datagrams())) for train in new)
    return trains


def cut(trains: list[Train]) -> list[bytes]:
    return [datagram for train in trains for datagram in train.datagrams()]


class Failing:
    """A fake system call: raises the listed errors in turn, and calls the real one for None and at the end."""

    def __init__(self, call: Any, errors: list[int | None]) -> None:
        self.call = call
        self.errors = errors
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise OSError(error, "made by the test")
        return self.call(*arguments)


# -- sending and receiving --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("gso", [True, False], ids=["gso", "singly"])
@pytest.mark.parametrize("gro", [True, False], ids=["gro", "plain"])
def test_datagrams_arrive_the_same_with_and_without_the_kernels_help(
    opened: ExitStack, host: str, gso: bool, gro: bool
) -> None:
    sender = opened.enter_context(UdpSocket(host, gso=gso))
    receiver = opened.enter_context(UdpSocket(host, gro=gro))
    rng = random.Random(1)
    for total, segment_bytes in [(1, 1), (1200, 1200), (1201, 1200), (63_000, 1400), (62_999, 1400), (640, 10)]:
        train = Train(receiver.local_address, rng.randbytes(total), segment_bytes)
        assert sender.send(train) is None
        expected = list(train.datagrams())
        arrived = receive(receiver, len(expected))
        assert cut(arrived) == expected
        assert {each.address for each in arrived} == {sender.local_address}
    assert not sender.dropped
    assert not receiver.dropped
    assert receiver.receive_trains() == []


@LINUX_ONLY
@pytest.mark.parametrize("host", HOSTS)
def test_a_train_is_one_call_each_way_where_the_kernel_can(opened: ExitStack, host: str) -> None:
    sender = opened.enter_context(UdpSocket(host))
    receiver = opened.enter_context(UdpSocket(host))
    if not (sender.gso and receiver.gro):
        pytest.skip("this kernel has no GSO or no GRO")
    sender._sendto = None
    train = Train(receiver.local_address, random.Random(2).randbytes(63_000), 1400)
    sender.send(train)
    assert receive(receiver, 45) == [Train(sender.local_address, train.data, 1400)]


def test_receives_at_most_the_limit(opened: ExitStack) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1", gso=False))
    receiver = opened.enter_context(UdpSocket("127.0.0.1", gro=False))
    sender.send(Train(receiver.local_address, bytes(range(20)), 1))
    select.select([receiver], [], [], DEADLINE_S)
    assert cut(receiver.receive_trains(8)) == [bytes([n]) for n in range(8)]
    assert len(receive(receiver, 12)) == 12


def test_receives_no_more_when_it_has_enough_bytes(opened: ExitStack) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1", gso=False))
    receiver = opened.enter_context(UdpSocket("127.0.0.1", gro=False))
    sender.send(Train(receiver.local_address, bytes(20_000), 1000))
    select.select([receiver], [], [], DEADLINE_S)
    assert len(receiver.receive_trains(16, 3500)) == 4
    assert len(receive(receiver, 16)) == 16


def test_an_empty_train_sends_nothing(opened: ExitStack) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    assert sender.send(Train(receiver.local_address, b"", 1200)) is None
    assert sender.send(Train(receiver.local_address, b"end", 1200)) is None
    assert cut(receive(receiver, 1)) == [b"end"]
    assert not receiver.dropped


# -- the kernel refuses trains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [errno.EIO, errno.EINVAL, errno.EOPNOTSUPP])
def test_goes_on_singly_for_good_when_trains_are_refused(opened: ExitStack, refusal: int) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    sender.gso = True
    sender._sendmsg = sendmsg = Failing(sender._sendmsg, [refusal])
    train = Train(receiver.local_address, random.Random(3).randbytes(10_000), 1200)
    for _ in range(2):
        assert sender.send(train) is None
        assert cut(receive(receiver, 9)) == list(train.datagrams())
    assert not sender.gso
    assert sendmsg.calls == 1
    assert not sender.dropped


def test_does_not_blame_the_kernel_for_a_datagram_that_is_too_long_for_the_link(opened: ExitStack) -> None:
    """Older kernels say EINVAL for a train of too long segments, and EMSGSIZE only for one alone."""
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    sender.gso = True
    sender._sendmsg = Failing(sender._sendmsg, [errno.EINVAL])
    sender._sendto = Failing(sender._sendto, [errno.EMSGSIZE] * 3)
    assert sender.send(Train(("127.0.0.1", 9), bytes(3000), 1400)) is None
    assert sender.gso
    assert sender.dropped["oversize"] == 3


def test_learns_nothing_from_a_refusal_while_the_kernel_is_full(opened: ExitStack) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    sender.gso = True
    sender._sendmsg = Failing(sender._sendmsg, [errno.EIO])
    sender._sendto = Failing(sender._sendto, [errno.EAGAIN])
    train = Train(("127.0.0.1", 9), bytes(3000), 1400)
    assert sender.send(train) is train
    assert sender.gso


def test_a_train_longer_than_trains_are_is_sent_singly_and_proves_nothing(opened: ExitStack) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    could = sender.gso
    for train in (
        Train(receiver.local_address, random.Random(4).randbytes(66_000), 1400),
        Train(receiver.local_address, random.Random(5).randbytes(300), 1),
    ):
        assert sender.send(train) is None
        expected = list(train.datagrams())
        assert cut(receive(receiver, len(expected))) == expected
    assert sender.gso is could


# -- the kernel is full -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [errno.EAGAIN, errno.ENOBUFS])
def test_gives_a_train_back_when_the_kernel_is_full(opened: ExitStack, full: int) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    sender.gso = True
    sender._sendmsg = Failing(sender._sendmsg, [full])
    sender._sendto = Failing(sender._sendto, [full])
    many = Train(receiver.local_address, bytes(3000), 1400)
    one = Train(receiver.local_address, b"one", 3)
    assert sender.send(many) is many
    assert sender.send(one) is one
    assert receiver.receive_trains() == []
    assert not sender.dropped


def test_what_was_sent_singly_is_not_sent_again(opened: ExitStack) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1", gso=False))
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    sender._sendto = Failing(sender._sendto, [None, None, errno.EAGAIN, None, errno.ENOBUFS])
    train = Train(receiver.local_address, random.Random(6).randbytes(4100), 1000)
    rest: Train | None = train
    turns = 0
    while rest is not None:
        rest = sender.send(rest)
        turns += 1
    assert turns == 3
    assert cut(receive(receiver, 5)) == list(train.datagrams())
    assert receiver.receive_trains() == []


# -- errors that are counted ------------------------------------------------------------------------------------------


def test_a_datagram_too_long_is_dropped_and_counted(opened: ExitStack) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    assert sender.send(Train(receiver.local_address, bytes(65_508), 65_508)) is None
    assert sender.dropped["oversize"] == 1
    assert sender.send(Train(receiver.local_address, bytes(140_000), 70_000)) is None
    assert sender.dropped["oversize"] == 3
    sender.gso = True
    sender._sendmsg = Failing(sender._sendmsg, [errno.EMSGSIZE])
    assert sender.send(Train(receiver.local_address, bytes(4000), 1400)) is None
    assert sender.dropped["oversize"] == 6
    assert sender.send(Train(receiver.local_address, b"fits", 4)) is None
    assert cut(receive(receiver, 1)) == [b"fits"]


@pytest.mark.parametrize("reason", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EPERM])
def test_an_unreachable_peer_is_counted_not_raised(opened: ExitStack, reason: int) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    sender.gso = True
    sender._sendto = Failing(sender._sendto, [reason])
    sender._sendmsg = Failing(sender._sendmsg, [reason])
    assert sender.send(Train(("127.0.0.1", 9), b"x", 1)) is None
    assert sender.send(Train(("127.0.0.1", 9), b"x" * 30, 10)) is None
    assert sender.dropped == {f"send {errno.errorcode[reason]}": 4}


def test_a_bad_port_of_a_peer_is_counted_not_raised(opened: ExitStack) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    could = sender.gso
    assert sender.send(Train(("127.0.0.1", 0), b"x" * 30, 10)) is None
    assert sender.dropped.total() == 3
    assert sender.gso is could


def test_errors_that_a_peer_caused_do_not_end_receiving(opened: ExitStack) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver._recvmsg = Failing(receiver._recvmsg, [errno.ECONNREFUSED, None, errno.EHOSTUNREACH])
    for data in (b"one", b"two"):
        sender.send(Train(receiver.local_address, data, 3))
    assert cut(receive(receiver, 2)) == [b"one", b"two"]
    assert receiver.dropped == {"receive ECONNREFUSED": 1, "receive EHOSTUNREACH": 1}


def test_receiving_ends_at_the_limit_even_if_only_errors_come(opened: ExitStack) -> None:
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver._recvmsg = Failing(receiver._recvmsg, [errno.ENETUNREACH] * 100)
    assert receiver.receive_trains(10) == []
    assert receiver.dropped == {"receive ENETUNREACH": 10}


def test_empty_datagrams_are_dropped_and_counted(opened: ExitStack) -> None:
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        plain.sendto(b"", receiver.local_address)
        plain.sendto(b"full", receiver.local_address)
        assert cut(receive(receiver, 1)) == [b"full"]
    assert receiver.dropped == {"empty": 1}


@LINUX_ONLY
def test_truncated_datagrams_are_dropped_and_counted(opened: ExitStack) -> None:
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    recvmsg = receiver._recvmsg
    receiver._recvmsg = lambda _size, ancillary_bytes: recvmsg(100, ancillary_bytes)
    for size in (101, 100):
        sender.send(Train(receiver.local_address, bytes(size), size))
    assert cut(receive(receiver, 1)) == [bytes(100)]
    assert receiver.dropped == {"truncated": 1}


# -- the kernel's own drops -------------------------------------------------------------------------------------------


@LINUX_ONLY
@pytest.mark.parametrize("host", HOSTS)
def test_the_kernels_drops_are_counted(opened: ExitStack, host: str) -> None:
    sender = opened.enter_context(UdpSocket(host))
    receiver = opened.enter_context(UdpSocket(host, receive_buffer_bytes=20_000, gro=False))
    for n in range(500):
        sender.send(Train(receiver.local_address, struct.pack(">I", n) + bytes(996), 1000))
    held = 0
    while trains := receiver.receive_trains():
        held += len(trains)
    sender.send(Train(receiver.local_address, b"the count rides on the next one", 1000))
    receive(receiver, 1)
    assert 0 < held < 500
    assert receiver.kernel_drops == 500 - held


def test_the_kernels_count_of_drops_may_wrap_or_come_out_of_order(opened: ExitStack) -> None:
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    for count, total in [(5, 5), (5, 5), (2**31, 2**31), (2**32 - 2, 2**32 - 2), (3, 2**32 + 3), (1, 2**32 + 3)]:
        ancillary = [(socket.SOL_SOCKET, 40, struct.pack("=I", count))]
        assert receiver._read_ancillary(ancillary, 1200) == 1200
        assert receiver.kernel_drops == total


def test_a_segment_size_of_zero_is_not_believed(opened: ExitStack) -> None:
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    assert receiver._read_ancillary([(17, 104, struct.pack("=i", 0))], 900) == 900
    assert receiver._read_ancillary([(17, 104, struct.pack("=i", 300))], 900) == 300


def test_the_size_of_the_kernel_s_buffer_is_known(opened: ExitStack) -> None:
    small = opened.enter_context(UdpSocket("127.0.0.1", receive_buffer_bytes=100_000))
    large = opened.enter_context(UdpSocket("127.0.0.1", receive_buffer_bytes=1 << 30))
    assert 100_000 <= small.receive_buffer_bytes <= 200_000
    assert small.receive_buffer_bytes < large.receive_buffer_bytes < 1 << 31


def test_takes_a_smaller_buffer_where_the_system_refuses_a_large_one(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = socket.socket.setsockopt

    def stingy(self: socket.socket, level: int, option: int, value: int) -> None:
        if option in (socket.SO_RCVBUF, socket.SO_SNDBUF) and value > 300_000:
            raise OSError(errno.ENOBUFS, "made by the test")
        original(self, level, option, value)

    monkeypatch.setattr(socket.socket, "setsockopt", stingy)
    udp = opened.enter_context(UdpSocket("127.0.0.1", receive_buffer_bytes=1_000_000))
    assert 250_000 <= udp.receive_buffer_bytes <= 600_000


# -- a system without any of it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("linux", [True, False])
def test_works_where_the_kernel_knows_none_of_the_options(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch, linux: bool
) -> None:
    monkeypatch.setattr("godwit.net.udp._LINUX", linux)
    original = socket.socket.setsockopt

    def poor(self: socket.socket, level: int, option: int, value: int) -> None:
        if (level, option) not in ((socket.SOL_SOCKET, socket.SO_RCVBUF), (socket.SOL_SOCKET, socket.SO_SNDBUF)):
            raise OSError(errno.ENOPROTOOPT, "made by the test")
        original(self, level, option, value)

    def no_segment(self: socket.socket, level: int, option: int) -> int:
        if level == 17:
            raise OSError(errno.ENOPROTOOPT, "made by the test")
        return 1

    monkeypatch.setattr(socket.socket, "setsockopt", poor)
    monkeypatch.setattr(socket.socket, "getsockopt", no_segment)
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver = opened.enter_context(UdpSocket("127.0.0.1"))
    receiver._recvmsg = receiver._recvmsg_without_ancillary
    assert not sender.gso
    assert not receiver.gro
    train = Train(receiver.local_address, random.Random(7).randbytes(5000), 1200)
    assert sender.send(train) is None
    assert cut(receive(receiver, 5)) == list(train.datagrams())


# -- opening and closing ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not ipv6_works(), reason="this system has no ::1")
def test_both_wildcards_open_on_one_port(opened: ExitStack) -> None:
    port = free_port()  # a port that the system chooses for the one family may be in use in the other
    six = opened.enter_context(UdpSocket("::", port))
    four = opened.enter_context(UdpSocket("0.0.0.0", port))
    sender = opened.enter_context(UdpSocket("127.0.0.1"))
    sender.send(Train(("127.0.0.1", port), b"four", 4))
    assert cut(receive(four, 1)) == [b"four"]
    assert six.receive_trains() == []


def test_a_port_in_use_is_reported(opened: ExitStack) -> None:
    first = opened.enter_context(UdpSocket("127.0.0.1"))
    port = first.local_address[1]
    with pytest.raises(SocketError, match=rf"127\.0\.0\.1:{port}: another socket has this port; .*choose another"):
        UdpSocket("127.0.0.1", port)


def test_an_address_of_another_machine_is_reported() -> None:
    with pytest.raises(SocketError, match=r"192\.0\.2\.1:0: this machine does not have that address; .*0\.0\.0\.0"):
        UdpSocket("192.0.2.1")


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (errno.EACCES, "permission denied; choose a port from 1024 upward"),
        (errno.EMFILE, "too many open files; close some"),
        (errno.EAFNOSUPPORT, "this system has no IPv4; use the other"),
        (errno.ENETDOWN, "made by the test; check the address"),
    ],
)
def test_other_refusals_are_reported_and_leave_nothing_open(
    monkeypatch: pytest.MonkeyPatch, reason: int, text: str
) -> None:
    closed: list[socket.socket] = []
    original = socket.socket.close

    def bind(_: socket.socket, __: object) -> None:
        raise OSError(reason, "made by the test")

    def close(self: socket.socket) -> None:
        closed.append(self)
        original(self)

    monkeypatch.setattr(socket.socket, "bind", bind)
    monkeypatch.setattr(socket.socket, "close", close)
    with pytest.raises(SocketError, match=rf"cannot listen on UDP 127\.0\.0\.1:80: {text}") as caught:
        UdpSocket("127.0.0.1", 80)
    assert isinstance(caught.value, GodwitError)
    assert len(closed) == 1


def test_closes_once_and_shows_it(opened: ExitStack) -> None:
    with UdpSocket("127.0.0.1") as udp:
        host, port = udp.local_address
        assert host == "127.0.0.1"
        assert port > 0
        assert udp.fileno() >= 0
        assert f"127.0.0.1:{port}" in repr(udp)
    udp.close()
    assert udp.fileno() == -1
    assert "closed" in repr(udp)
    with pytest.raises(SocketError, match=f"cannot receive on UDP 127.0.0.1:{port}: the socket is closed"):
        udp.receive_trains()
    for data in (b"x", b"xxx"):
        with pytest.raises(SocketError, match=r"cannot send on .* the socket is closed"):
            udp.send(Train(("127.0.0.1", 9), data, 1))
    opened.enter_context(UdpSocket("127.0.0.1", port))
