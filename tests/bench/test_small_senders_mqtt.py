"""The senders to Mosquitto: packets against the examples of the standard, and a short run with the real broker."""

from __future__ import annotations

import socket

import pytest

from godwit.errors import GodwitError
from godwit_bench import peers
from godwit_bench.small_senders import measure
from godwit_bench.small_senders_mqtt import (
    PUBLISH_QOS_1,
    MqttLane,
    acknowledge,
    connect_packet,
    encode,
    mosquitto_system,
    publish_packet,
    subscribe_packet,
)

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
        lane = MqttLane(unused, 12)
        assert lane.first() == publish_packet("bench/12", bytes(100))
        assert lane.on_answer(bytes.fromhex("4002 0001")) == lane.first()
        assert lane.confirmed == 1
        assert lane.again() is None
        with pytest.raises(GodwitError, match="Mosquitto answered 20 02 00 05"):
            lane.on_answer(bytes.fromhex("2002 0005"))
        with pytest.raises(GodwitError, match="the end of the connection"):
            lane.on_answer(b"")


@pytest.mark.skipif(MOSQUITTO is None, reason="needs the program mosquitto")
def test_a_short_run_with_mosquitto() -> None:
    assert MOSQUITTO is not None
    assert measure(mosquitto_system(MOSQUITTO), 20, 0.2) > 20
