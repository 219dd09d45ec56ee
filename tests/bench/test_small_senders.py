"""The loop of many small senders, their packets for Godwit and for Mosquitto, and short runs with real brokers."""

from __future__ import annotations

import multiprocessing
import resource
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe

import pytest
from tests.bench.fake_peers import StandIn

from godwit.errors import GodwitError
from godwit.wire import packet as wire
from godwit.wire.batch import decode_batches
from godwit.wire.packet import decode_packet, encode_packet
from godwit_bench import peers, small_senders
from godwit_bench.processes import READY, ProcessGroup
from godwit_bench.small_senders import (
    PUBLISH_QOS_1,
    GodwitSender,
    MqttSender,
    System,
    acknowledge,
    allow_files,
    confirmed_record,
    connect,
    connect_packet,
    encode,
    measure,
    mosquitto_system,
    publish_packet,
    report_arrived,
    send_all,
    subscribe_packet,
)


class Echo:
    """A sender that receives its own packets as confirms. With `deaf`, each must be sent twice."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.connect(self.socket.getsockname())
        self.confirmed = 0
        self._deaf = deaf

    def first(self) -> bytes:
        return b"lost" if self._deaf else b"sent"

    def on_answer(self, data: bytes) -> bytes | None:
        if data == b"lost":
            return None
        self.confirmed += 1
        return self.first()

    def again(self) -> bytes | None:
        return b"sent"


def broker(_: ProcessGroup) -> int:
    return 7


def connect_echoes(port: int, connections: int) -> Sequence[Echo]:
    assert port == 7
    return [Echo() for _ in range(connections)]


def subscribe(pipe: Pipe, port: int) -> None:
    assert port == 7
    list(report_arrived(pipe, lambda: 10_000_000))


def lose(pipe: Pipe, _: int) -> None:
    small_senders.SETTLE_S = 0.1  # type: ignore[misc]
    list(report_arrived(pipe, lambda: 3))


def test_every_sender_has_one_message_in_flight() -> None:
    senders = [Echo() for _ in range(5)]
    in_window, elapsed_s, in_all = send_all(senders, 0.2)
    assert elapsed_s >= 0.2
    assert 0 < in_window < in_all == sum(sender.confirmed for sender in senders)
    assert min(sender.confirmed for sender in senders) > 0
    for sender in senders:
        sender.socket.close()


def test_a_stalled_sender_sends_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit_bench.small_senders.STALLED_S", 0.05)
    senders = [Echo(deaf=True), Echo()]
    began = time.perf_counter()
    send_all(senders, 0.8)
    took_s = time.perf_counter() - began
    assert 2 <= senders[0].confirmed <= took_s / (2 * 0.05) + 1  # with every second look
    for sender in senders:
        sender.socket.close()


def test_the_rate_is_that_of_the_confirms() -> None:
    assert measure(System(broker, subscribe, connect_echoes), 3, 0.1) > 0


def test_confirmed_messages_must_have_arrived() -> None:
    with pytest.raises(GodwitError, match="messages were confirmed, but only 3 reached the subscriber"):
        measure(System(broker, lose, connect_echoes), 3, 0.1)


def test_a_subscriber_reports_its_count_once_all_arrived() -> None:
    here, there = multiprocessing.Pipe()
    counts = iter([5, 9])
    looks = report_arrived(there, lambda: next(counts, 10))
    next(looks)
    assert here.recv() == READY
    here.send(10)
    list(looks)
    assert here.recv() == 10


def test_the_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [256, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), new))
    allow_files(10)
    assert limits == [256, 4096]
    allow_files(1000)
    assert limits == [2100, 4096]
    with pytest.raises(GodwitError, match="10100 open files are needed and the system allows 4096"):
        allow_files(5000)


ACK = wire.AckFrame(12, ((3, 4), (0, 1)))
CONFIRM = wire.ConfirmFrame(7, 41, 1)


def packet(*frames: wire.Frame) -> bytes:
    return encode_packet(1, 5, b"".join(map(wire.encode_frame, frames)))


@pytest.mark.parametrize(
    ("frames", "record"),
    [
        ((ACK, CONFIRM), 41),
        ((CONFIRM,), 41),
        ((CONFIRM, ACK), 41),
        ((wire.PingFrame(), CONFIRM), 41),
        ((ACK, wire.CreditFrame(7, 9), CONFIRM), 41),
        ((ACK, wire.ConfirmFrame(6, 50, 1), CONFIRM, wire.ConfirmFrame(7, 40, 1)), 41),
        ((ACK,), -1),
        ((wire.PingFrame(),), -1),
        ((ACK, wire.ConfirmFrame(6, 50, 1)), -1),
    ],
)
def test_a_confirm_is_found_wherever_it_stands(frames: tuple[wire.Frame, ...], record: int) -> None:
    assert confirmed_record(packet(*frames), 7) == record


def test_a_sender_sends_packets_of_the_protocol() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        sender = GodwitSender(unused, peer_id=0x1122334455667788, number=9, newest_packet=4, channel=7)
        _check(sender.first(), number=10, newest_packet=4, record=1)
        assert sender.on_answer(packet(ACK)) is None
        assert sender.confirmed == 0
        assert sender.on_answer(packet(ACK, wire.ConfirmFrame(7, 0, 0))) is None  # the open
        _check(sender.again(), number=11, newest_packet=5, record=1)
        _check(sender.on_answer(packet(ACK, wire.ConfirmFrame(7, 1, 1))), number=12, newest_packet=5, record=2)
        assert sender.confirmed == 1


def _check(sent: bytes | None, *, number: int, newest_packet: int, record: int) -> None:
    assert sent is not None
    connection_id, its_number, content = decode_packet(sent)
    ack, data = wire.decode_frames(content)
    assert (connection_id, its_number) == (0x1122334455667788, number)
    assert ack == wire.AckFrame(0, ((0, newest_packet),))
    assert isinstance(data, wire.DataFrame)
    assert (data.flags, data.channel, data.record) == (wire.WHOLE | wire.LAST, 7, record)
    (batch,) = decode_batches(data.body)
    assert (batch.qos, batch.payloads) == (1, [bytes(100)])


def test_senders_log_in_and_send() -> None:
    with StandIn() as broker:
        senders = connect(broker.port, 60)
        try:
            assert len(senders) == 60
            in_window, elapsed_s, in_all = send_all(senders, 0.2)
        finally:
            for sender in senders:
                sender.socket.close()
    assert 0 < in_window <= in_all == sum(sender.confirmed for sender in senders)
    assert in_all <= broker.messages <= in_all + 60  # each once; the last ones may be in flight
    assert elapsed_s >= 0.2


def test_lost_messages_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit_bench.small_senders.STALLED_S", 0.05)
    with StandIn(loses=3) as broker:
        senders = connect(broker.port, 2)
        try:
            send_all(senders, 2.0)
        finally:
            for sender in senders:
                sender.socket.close()
    assert all(sender.confirmed > 3 for sender in senders)


def test_a_refusal_is_reported() -> None:
    with StandIn(refuses=True) as broker, pytest.raises(GodwitError, match="refused a sender: not here"):
        connect(broker.port, 1)


MOSQUITTO = peers.find("mosquitto")


def test_packets_are_those_of_mqtt() -> None:
    assert connect_packet("ab") == bytes.fromhex("10 0e 0004") + b"MQTT" + bytes.fromhex("04 02 0000 0002") + b"ab"
    assert publish_packet("a/b", b"hi") == bytes.fromhex("32 09 0003") + b"a/b" + bytes.fromhex("0001") + b"hi"
    assert subscribe_packet("#") == bytes.fromhex("82 06 0001 0001") + b"#" + b"\x01"


@pytest.mark.parametrize(
    ("length", "encoded"), [(0, "00"), (127, "7f"), (128, "8001"), (16_383, "ff7f"), (16_384, "808001")]
)
def test_lengths_are_in_groups_of_seven_bits(length: int, encoded: str) -> None:
    assert encode(0x30, bytes(length))[1 : -length or None] == bytes.fromhex(encoded)


def test_a_subscriber_answers_each_message_once() -> None:
    first = publish_packet("a", b"1")
    second = encode(PUBLISH_QOS_1, b"\x00\x01a\x12\x34" + bytes(200))
    unanswered = encode(0x30, b"\x00\x01a" + b"QoS 0")
    stream = first + second + unanswered + first
    expected = bytes.fromhex("4002 0001 4002 1234 4002 0001")
    assert acknowledge(stream) == (4, expected, b"")
    for cut in range(len(stream)):  # a stream comes in any pieces
        count, answers, rest = acknowledge(stream[:cut])
        more, more_answers, end = acknowledge(rest + stream[cut:])
        assert (count + more, answers + more_answers, end) == (4, expected, b"")


def test_every_confirm_brings_the_next_message() -> None:
    with socket.socket() as unused:
        sender = MqttSender(unused, 12)
        assert sender.first() == publish_packet("bench/12", bytes(100))
        assert sender.on_answer(bytes.fromhex("4002 0001")) == sender.first()
        assert sender.confirmed == 1
        assert sender.again() is None
        with pytest.raises(GodwitError, match="Mosquitto answered 20 02 00 05"):
            sender.on_answer(bytes.fromhex("2002 0005"))
        with pytest.raises(GodwitError, match="the end of the connection"):
            sender.on_answer(b"")


@pytest.mark.skipif(MOSQUITTO is None, reason="needs the program mosquitto")
def test_a_short_run_with_mosquitto() -> None:
    assert MOSQUITTO is not None
    assert measure(mosquitto_system(MOSQUITTO), 20, 0.2) > 0
