"""The senders to Godwit: their packets are those of the protocol, and a broker takes them."""

from __future__ import annotations

import socket

import pytest
from tests.bench.stand_in import StandIn

from godwit.errors import GodwitError
from godwit.wire import packet as wire
from godwit.wire.batch import decode_batches
from godwit.wire.packet import decode_packet, encode_packet
from godwit_bench.small_senders import send_all
from godwit_bench.small_senders_godwit import GodwitLane, confirmed_record, connect

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


def test_a_lane_sends_packets_of_the_protocol() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        lane = GodwitLane(unused, peer_id=0x1122334455667788, number=9, heard=4, channel=7)
        _check(lane.first(), number=10, heard=4, record=1)
        assert lane.on_answer(packet(ACK)) is None
        assert lane.confirmed == 0
        assert lane.on_answer(packet(ACK, wire.ConfirmFrame(7, 0, 0))) is None  # the open
        _check(lane.again(), number=11, heard=5, record=1)
        _check(lane.on_answer(packet(ACK, wire.ConfirmFrame(7, 1, 1))), number=12, heard=5, record=2)
        assert lane.confirmed == 1


def _check(sent: bytes | None, *, number: int, heard: int, record: int) -> None:
    assert sent is not None
    connection_id, its_number, content = decode_packet(sent)
    ack, data = wire.decode_frames(content)
    assert (connection_id, its_number) == (0x1122334455667788, number)
    assert ack == wire.AckFrame(0, ((0, heard),))
    assert isinstance(data, wire.DataFrame)
    assert (data.flags, data.channel, data.record) == (wire.WHOLE | wire.LAST, 7, record)
    (batch,) = decode_batches(data.body)
    assert (batch.qos, batch.payloads) == (1, [bytes(100)])


def test_senders_log_in_and_send() -> None:
    with StandIn() as broker:
        lanes = connect(broker.port, 60)
        try:
            assert len(lanes) == 60
            in_window, elapsed_s, in_all = send_all(lanes, 0.2)
        finally:
            for lane in lanes:
                lane.socket.close()
    assert 0 < in_window <= in_all == sum(lane.confirmed for lane in lanes)
    assert in_all <= broker.messages <= in_all + 60  # each once; the last ones may be in flight
    assert 0.2 <= elapsed_s < 5


def test_what_is_lost_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit_bench.small_senders.STALLED_S", 0.05)
    with StandIn(loses=3) as broker:
        lanes = connect(broker.port, 2)
        try:
            send_all(lanes, 0.5)
        finally:
            for lane in lanes:
                lane.socket.close()
    assert all(lane.confirmed > 3 for lane in lanes)


def test_a_refusal_is_told() -> None:
    with StandIn(refuses=True) as broker, pytest.raises(GodwitError, match="refused a sender: not here"):
        connect(broker.port, 1)
