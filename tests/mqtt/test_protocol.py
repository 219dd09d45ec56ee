"""MQTT clients on the broker core, in memory: login, QoS 0 to 2 both ways, subscriptions, retained messages, wills."""

from __future__ import annotations

from typing import Any

import pytest
from tests.mqtt import client_packets as client
from tests.mqtt.world import Device, Message, MqttWorld

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.mqtt.packets import PacketType, Property, Reason
from godwit.mqtt.receiver import AckSlot

CONNACK = b"\x20\x02\x00\x00"
KEEPS = {Property.SESSION_EXPIRY: 3600}


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_from_one_client_to_another(version: int, qos: int) -> None:
    world = MqttWorld()
    receiver, sender = world.device("r", version), world.device("s", version)
    assert receiver.packets[0][2:4] == b"\0\0"
    assert receiver.subscribe(("a/+", 2)) == [2]
    replies = sender.publish("a/b", b"hello", qos=qos, packet_id=7)
    assert receiver.messages == [Message("a/b", b"hello", qos, packet_id=1 if qos else 0)]
    if qos == 1:
        assert replies == [client.ack(4, 7)]
    elif qos == 2:
        assert replies == [client.ack(5, 7)]
        assert sender.send(client.ack(6, 7)) == [client.ack(7, 7)]
        assert receiver.packets[-1] == client.ack(6, 1)
    assert not world.server.broker.sessions["r"].subscriptions[(), None].sent


def test_mqtt_and_native_clients_share_topics_and_retained_messages() -> None:
    world = MqttWorld()
    native = world.client("native")
    native.subscribe("home/#", number=1)
    device = world.device("d")
    device.publish("home/lamp", b"on", qos=1, packet_id=1, retain=True)
    assert [(got.topic, got.payload, got.publisher) for got in native.got] == [("home/lamp", b"on", "d")]
    channel = native.open("home/door")
    native.publish(channel, b"shut", retain=True)
    assert device.subscribe(("home/+", 1)) == [1]
    assert [(one.topic, one.payload, one.retain) for one in device.messages] == [
        ("home/door", b"shut", True),
        ("home/lamp", b"on", True),
    ]
    native.publish(channel, b"open")
    assert device.messages[-1] == Message("home/door", b"open", 1, packet_id=device.messages[-1].packet_id)
    assert not device.messages[-1].retain


def test_a_run_of_messages_is_one_batch_and_acknowledged_in_order() -> None:
    world = MqttWorld()
    device = world.device("d")
    packets = [client.publish("t", b"%d" % n, qos=1, packet_id=n) for n in range(1, 51)]
    assert b"".join(device.send(*packets)) == b"".join(client.ack(4, n) for n in range(1, 51))
    (entries,) = [entries for entries, _ in world.keeping.appends if entries]
    assert [entry.count for entry in entries] == [50]


def test_acknowledgements_wait_for_the_log() -> None:
    world = MqttWorld()
    device, receiver = world.device("d"), world.device("r")
    receiver.subscribe(("t", 1))
    world.hold()
    assert device.publish("t", b"1", qos=1, packet_id=1) == []
    assert device.publish("t", b"2", qos=2, packet_id=2) == []
    assert receiver.messages == []
    world.commit()
    assert device.packets[-2:] == [client.ack(4, 1), client.ack(5, 2)]
    assert receiver.got() == [("t", b"1"), ("t", b"2")]


def test_acknowledgements_end_before_the_first_that_is_not_complete() -> None:
    """Some of the messages are stored, and others are not yet."""
    receiver = MqttWorld().device("d").connection.receiver
    first, second, third = (AckSlot(receiver, 0) for _ in range(3))
    held_bytes = receiver.held_bytes
    first.fill(b"1")
    assert receiver.take_acks() == b"1"
    assert receiver.held_bytes == held_bytes * 2 // 3
    third.fill(b"3")
    assert receiver.take_acks() == b""
    second.fill(b"2")
    assert receiver.take_acks() == b"23"
    assert receiver.held_bytes == 0


def test_a_disk_that_fails_closes_the_connection_without_an_acknowledgement() -> None:
    world = MqttWorld()
    device = world.device("d", 5, clean=False, values=KEEPS)
    world.hold()
    device.publish("t", b"1", qos=2, packet_id=1)
    world.fail()
    assert device.packets[-1][:3] == bytes((0xE0, len(device.packets[-1]) - 2, Reason.IMPLEMENTATION))
    assert device.is_closed
    again = world.device("d", 5, clean=False, values=KEEPS)
    assert again.publish("t", b"1", qos=2, packet_id=1, dup=True) == [client.ack(5, 1)]
    assert world.keeping.next_offset == 1


def test_a_qos_2_message_is_published_once_whatever_is_repeated() -> None:
    world = MqttWorld()
    device, receiver = world.device("d", clean=False), world.device("r")
    receiver.subscribe(("t", 0))
    for _ in range(2):
        assert device.publish("t", b"1", qos=2, packet_id=5, dup=True) == [client.ack(5, 5)]
    device.publish("t", b"1", qos=2, packet_id=5, dup=True)
    assert device.is_closed  # repeats are for the next connection
    device = world.device("d", clean=False)
    assert device.packets[0] == b"\x20\x02\x01\x00"  # session present
    assert device.publish("t", b"1", qos=2, packet_id=5, dup=True) == [client.ack(5, 5)]
    assert device.send(client.ack(6, 5)) == [client.ack(7, 5)]
    assert device.send(client.ack(6, 5)) == [client.ack(7, 5)]
    assert receiver.got() == [("t", b"1")]
    device.publish("t", b"2", qos=2, packet_id=5)
    assert receiver.got() == [("t", b"1"), ("t", b"2")]


@pytest.mark.parametrize("version", [4, 5])
def test_packet_identifiers_that_are_used_again_too_early(version: int) -> None:
    """With QoS 1 each message counts. With QoS 2 an identifier is that of one message until it is released."""
    world = MqttWorld()
    device, receiver = world.device("d", version), world.device("r")
    receiver.subscribe(("t/#", 2))
    world.hold()
    for number in range(3):
        assert device.publish("t/1", b"%d" % number, qos=1, packet_id=7) == []
    world.commit()
    assert device.packets[-3:] == [client.ack(4, 7)] * 3
    for number in range(200):
        assert device.publish("t/2", b"%d" % number, qos=2, packet_id=7) == [client.ack(5, 7)]
    assert device.subscribe(("t/3", 0)) == [0]  # SUBSCRIBE uses 1: identifiers of other packets are not confused
    assert device.send(client.ack(6, 7)) == [client.ack(7, 7)]
    assert device.publish("t/2", b"next", qos=2, packet_id=7) == [client.ack(5, 7)]
    assert receiver.got() == [("t/1", b"0"), ("t/1", b"1"), ("t/1", b"2"), ("t/2", b"0"), ("t/2", b"next")]
    for number in range(1, 101):  # unreleased identifiers are bounded by the receive maximum
        device.publish("t/2", b"x", qos=2, packet_id=1000 + number)
    assert device.is_closed == (version == 5)


def test_messages_in_flight_are_repeated_with_their_identifiers_after_a_reconnect() -> None:
    world = MqttWorld()
    sender = world.device("s")
    device = world.device("d", clean=False)
    device.subscribe(("t/#", 2))
    device.answers = False
    for number, qos in enumerate((1, 2, 1, 2), 1):
        sender.publish(f"t/{number}", b"x", qos=qos, packet_id=number)
    first = device.messages
    device.send(client.ack(4, first[2].packet_id))  # the third, out of order
    assert device.send(client.ack(5, first[1].packet_id)) == [client.ack(6, first[1].packet_id)]
    device.vanish()
    device = Device(world, 4)
    device.answers = False
    device.send(client.connect("d", clean=False))
    assert device.packets == [b"\x20\x02\x01\x00", client.ack(6, first[1].packet_id)]
    repeated = [(one.topic, one.packet_id, one.dup) for one in device.messages]
    assert repeated == [("t/1", first[0].packet_id, True), ("t/4", first[3].packet_id, True)]


def test_the_quota_of_a_client_is_kept() -> None:
    world = MqttWorld()
    device = world.device("d", 5, values={Property.RECEIVE_MAXIMUM: 3})
    device.subscribe(("t", 1))
    device.answers = False
    sender = world.device("s")
    sender.send(*(client.publish("t", b"%d" % n, qos=1, packet_id=n) for n in range(1, 11)))
    assert len(device.messages) == 3
    for number in range(10):
        assert device.messages[number].payload == b"%d" % (number + 1)
        device.send(client.ack(4, device.messages[number].packet_id))
    assert len(device.messages) == 10


def test_one_copy_for_overlapping_filters_with_all_identifiers() -> None:
    world = MqttWorld()
    device = world.device("d", 5)
    device.subscribe(("a/#", 0), values={Property.SUBSCRIPTION_ID: 5})
    device.subscribe(("a/+", 2), values={Property.SUBSCRIPTION_ID: 300})
    world.device("s").publish("a/b", b"x", qos=2, packet_id=1)
    assert device.messages == [Message("a/b", b"x", 2, packet_id=1, properties={Property.SUBSCRIPTION_ID: [5, 300]})]


def test_options_of_subscriptions() -> None:
    world = MqttWorld()
    device = world.device("d", 5)
    assert device.subscribe(("a", 1 | 4), ("b", 1 | 8), ("c", 1)) == [1, 1, 1]
    for topic in "abc":
        device.publish(topic, b"x", qos=1, packet_id=1, retain=True)
    assert [(one.topic, one.retain) for one in device.messages] == [("b", True), ("c", False)]  # a: no local
    device.messages.clear()
    for handling, expected in ((0, 1), (1, 0), (2, 0)):
        device.subscribe(("c", 1 | handling << 4))
        assert [one.retain for one in device.messages] == [True] * expected
        device.messages.clear()
    other = world.device("o", 5)
    other.subscribe(("c", 1 | 1 << 4))
    other.subscribe(("b", 1 | 2 << 4))
    assert [(one.topic, one.retain) for one in other.messages] == [("c", True)]


def test_unsubscribe() -> None:
    world = MqttWorld()
    device, sender = world.device("d", 5), world.device("s")
    device.subscribe(("a/#", 1), ("b", 1))
    assert device.send(client.unsubscribe(3, "a/#", "x", version=5)) == [b"\xb0\x05\x00\x03\x00\x00\x11"]
    sender.publish("a/b", b"1")
    sender.publish("a/b", b"2", qos=1, packet_id=1)
    sender.publish("b", b"3", qos=1, packet_id=2)
    assert device.got() == [("b", b"3")]


def test_a_filter_that_is_added_late_gets_no_older_messages() -> None:
    world = MqttWorld()
    sender = world.device("s")
    device = world.device("d", clean=False)
    device.subscribe(("a", 1))
    device.vanish()
    for topic in "abab":
        sender.publish(topic, topic.encode(), qos=1, packet_id=1)
    device = Device(world, 4)
    device.send(client.connect("d", clean=False), client.subscribe(1, ("b", 1)))
    assert device.got() == [("a", b"a")] * 2
    sender.publish("b", b"new", qos=1, packet_id=1)
    assert device.got()[2:] == [("b", b"new")]


def test_topic_aliases_both_ways() -> None:
    world = MqttWorld()
    sender, device = world.device("s", 5), world.device("d", 5, values={Property.TOPIC_ALIAS_MAXIMUM: 1})
    device.subscribe(("#", 1))
    sender.publish("a/b", b"1", values={Property.TOPIC_ALIAS: 3})
    sender.publish("", b"2", values={Property.TOPIC_ALIAS: 3})
    sender.publish("c", b"3", qos=1, packet_id=1)
    assert [(one.topic, one.payload, one.properties) for one in device.messages] == [
        ("a/b", b"1", {Property.TOPIC_ALIAS: 1}),
        ("", b"2", {Property.TOPIC_ALIAS: 1}),
        ("c", b"3", {}),
    ]
    sender.publish("x", b"", values={Property.TOPIC_ALIAS: 11})
    assert sender.packets[-1][2] == Reason.BAD_ALIAS
    other = world.device("o", 5)
    other.publish("", b"", values={Property.TOPIC_ALIAS: 3})
    assert other.packets[-1][2] == Reason.PROTOCOL


def test_properties_of_messages_arrive_also_with_a_retained_message() -> None:
    world = MqttWorld()
    values = {
        Property.PAYLOAD_FORMAT: 1,
        Property.CONTENT_TYPE: "text/plain",
        Property.RESPONSE_TOPIC: "r/t",
        Property.CORRELATION_DATA: b"\0\1",
        Property.USER_PROPERTY: [("b", "2"), ("a", "1"), ("b", "2")],
    }
    device = world.device("d", 5)
    device.subscribe(("t", 1))
    sender = world.device("s", 5)
    sender.publish("t", b"x", qos=1, packet_id=1, retain=True, values=values)
    assert device.messages[0].properties == values
    late = world.device("l", 5)
    late.subscribe(("t", 1))
    assert late.messages[0].properties == values
    old = world.device("old", 4)
    old.subscribe(("t", 1))
    assert old.got() == [("t", b"x")]


def test_a_message_that_has_expired_is_not_sent() -> None:
    world = MqttWorld()
    sender, device = world.device("s", 5), world.device("d", 5, clean=False, values=KEEPS)
    device.subscribe(("t", 1))
    device.vanish()
    for expiry_s in (5, 50):
        sender.publish("t", b"%d" % expiry_s, qos=1, packet_id=1, values={Property.MESSAGE_EXPIRY: expiry_s})
    world.pass_s(10)
    device = world.device("d", 5, clean=False, values=KEEPS)
    assert [(one.payload, one.properties) for one in device.messages] == [(b"50", {Property.MESSAGE_EXPIRY: 40})]


def test_a_will_expires_after_it_was_published() -> None:
    world = MqttWorld()
    watcher = world.device("w", 5, clean=False, values=KEEPS)
    watcher.subscribe(("will/#", 1))
    expiry = {Property.MESSAGE_EXPIRY: 30}
    device = world.device("d", 5, will=("will/d", b"gone", 1, True), will_values=expiry)
    world.pass_s(50)
    device.vanish()
    assert [(one.payload, one.properties) for one in watcher.messages] == [(b"gone", expiry)]
    world.pass_s(40)
    late = world.device("late", 5)
    late.subscribe(("will/#", 1))
    assert not late.messages


def test_properties_beyond_the_limits_are_refused() -> None:
    world = MqttWorld()
    device = world.device("d", 5)
    long: list[dict[int, Any]] = [
        {Property.USER_PROPERTY: [("n", "v" * 2049)]},
        {Property.USER_PROPERTY: [("n", "v")] * 65},
        {Property.CONTENT_TYPE: "c" * 257},
        {Property.CORRELATION_DATA: b"c" * 1025},
    ]
    for values in long:
        (puback,) = device.publish("t", b"x", qos=1, packet_id=1, values=values)
        assert puback[4] == Reason.QUOTA
        refused = world.device("e", 5, will=("t", b"x", 1, False), will_values=values)
        assert refused.packets[0][3] == Reason.QUOTA
        assert refused.is_closed
    assert device.publish("t", b"x", qos=1, packet_id=1)[0][:1] == b"\x40"


def test_a_property_without_a_meaning_is_left_out() -> None:
    world = MqttWorld()
    device = world.device("d", 5)
    device.subscribe(("t", 0))
    device.publish("t", b"x", values={Property.CONTENT_TYPE: "", Property.USER_PROPERTY: [("", "v"), ("n", "")]})
    assert device.messages[0].properties == {Property.USER_PROPERTY: [("n", "")]}


def test_a_will_is_published_unless_the_client_says_goodbye() -> None:
    world = MqttWorld()
    watcher = world.device("w")
    watcher.subscribe(("will/#", 1))
    will = ("will/d", b"gone", 1, True)
    world.device("d", will=will).send(client.DISCONNECT)
    assert watcher.messages == []
    world.device("d", will=will).vanish()
    world.device("d", 5, will=will).send(b"\xe0\x01\x04")
    first, second = world.device("e", will=will), world.device("e")
    assert first.is_closed
    assert second.packets[0] == CONNACK
    assert watcher.got() == [("will/d", b"gone")] * 3
    assert not watcher.messages[0].retain


def test_a_will_waits_for_its_delay() -> None:
    world = MqttWorld()
    watcher = world.device("w", 5)
    watcher.subscribe(("will/#", 1))
    user = {Property.USER_PROPERTY: [("a", "1")]}

    def device(name: str, *, clean: bool = False) -> Device:
        delay = {Property.WILL_DELAY: 10, **user}
        will = (f"will/{name}", b"gone", 1, False)
        return world.device(name, 5, clean=clean, will=will, will_values=delay, values=KEEPS)

    device("returns").vanish()
    world.pass_s(9)
    device("returns")
    device("late").vanish()
    device("cleaned").vanish()
    device("cleaned", clean=True).send(client.DISCONNECT)
    assert watcher.got() == [("will/cleaned", b"gone")]  # its session has ended
    world.pass_s(9)
    assert len(watcher.messages) == 1
    world.pass_s(2)
    assert watcher.got()[1:] == [("will/late", b"gone")]
    assert watcher.messages[1].properties == user
    device("stored").vanish()
    world.restart()
    watcher = world.device("w", 5)
    watcher.subscribe(("will/#", 1))
    world.pass_s(11)
    assert watcher.got() == [("will/stored", b"gone")]


def test_an_identifier_in_use_delays_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.mqtt.sender.IDENTIFIERS", 4)
    world = MqttWorld()
    sender, device = world.device("s"), world.device("d", clean=False)
    device.subscribe(("t", 2))
    device.answers = False
    for number in range(6):
        sender.publish("t", b"%d" % number, qos=2, packet_id=number + 1)
    assert [one.packet_id for one in device.messages] == [1, 2, 3, 4]
    device.send(client.ack(5, 1))
    device.send(client.ack(7, 1))
    assert len(device.messages) == 4  # the store has the handshake, until a position behind it is stored
    device.answers = True
    for number in (2, 3, 4):
        device.send(client.ack(5, number))
    world.pass_s(3)
    assert [(one.packet_id, one.payload) for one in device.messages[4:]] == [(1, b"4"), (2, b"5")]


def test_a_silent_client_is_disconnected_after_its_keep_alive() -> None:
    world = MqttWorld()
    device = world.device("d", 5, keep_alive_s=10, will=("w", b"", 0, False))
    world.pass_s(14)
    device.send(client.PING)
    world.pass_s(14)
    assert device.packets[-1] == b"\xd0\x00"
    world.pass_s(2)
    assert device.is_closed
    assert device.packets[-1][2] == Reason.KEEP_ALIVE_TIMEOUT
    forever = world.device("f", keep_alive_s=0)
    world.pass_s(3600)
    assert not forever.is_closed


def test_a_connection_without_a_connect_is_closed() -> None:
    world = MqttWorld()
    device = Device(world, 4)
    world.run()
    world.pass_s(9)
    device.connection.receive(client.connect("d")[:5])
    world.run()
    assert not device.is_closed
    world.pass_s(2)
    assert device.is_closed


def test_client_identifiers() -> None:
    world = MqttWorld()
    assert world.device("", 3).packets == [b"\x20\x02\x00\x02"]
    assert world.device("", 4, clean=False).packets == [b"\x20\x02\x00\x02"]
    assert world.device("", 4).packets == [CONNACK]
    device = world.device("", 5)
    assert b"\x12\x00\x19auto-" in device.packets[0]
    assert world.device("$x", 5).packets[0][3] == Reason.BAD_CLIENT_ID
    first = world.device("same", 5)
    second = world.device("same", 4)
    assert first.packets[-1][2] == Reason.TAKEN_OVER
    assert first.is_closed
    assert not second.is_closed
    native = world.client("native")
    assert world.device("native", 5).packets[0][3] == Reason.BAD_CLIENT_ID
    assert native.closed is None


def test_packets_behind_the_connect_wait_for_the_welcome() -> None:
    world = MqttWorld()
    world.hold()
    device = Device(world, 4)
    device.send(client.connect("d", will=("w", b"", 1, False)), client.subscribe(1, ("a", 0)), client.PING)
    assert device.packets == []
    world.commit()
    assert device.packets[0] == CONNACK
    assert sorted(device.packets[1:]) == [b"\x90\x03\x00\x01\x00", b"\xd0\x00"]


def test_the_session_expiry_is_bounded_and_can_be_changed_at_the_end() -> None:
    world = MqttWorld(Settings(max_session_expiry_s=100))
    device = world.device("d", 5, values={Property.SESSION_EXPIRY: 2**32 - 1})
    assert b"\x11\x00\x00\x00\x64" in device.packets[0]
    device.send(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00")
    assert "d" not in world.server.broker.sessions
    device = world.device("d", 5)
    device.send(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x05")
    assert device.packets[-1][2] == Reason.PROTOCOL
    device = world.device("e", 5, values=KEEPS)
    device.send(client.DISCONNECT)
    world.pass_s(99)
    assert world.device("e", 5, clean=False, values=KEEPS).packets[0][2] == 1


def test_a_bridge_of_mosquitto() -> None:
    world = MqttWorld()
    state = "$SYS/broker/connection/here.bridge/state"
    connect = bytearray(client.connect("bridge", will=(state, b"0", 1, True)))
    connect[8] |= 0x80
    bridge = Device(world, 4)
    bridge.send(bytes(connect))
    assert bridge.packets == [CONNACK]
    assert bridge.publish(state, b"1", qos=1, packet_id=1, retain=True) == [client.ack(4, 1)]
    bridge.subscribe(("#", 1))
    other = world.device("o")
    other.subscribe(("#", 1))
    bridge.publish("t", b"from the bridge", qos=1, packet_id=2)
    other.publish("t", b"to the bridge", qos=1, packet_id=1, retain=True)
    assert [(one.payload, one.retain) for one in bridge.messages] == [(b"to the bridge", True)]
    assert other.got() == [("t", b"from the bridge"), ("t", b"to the bridge")]


def test_access_rules_apply_to_the_user() -> None:
    rules = (
        Rule(clients=("anna",), allow=frozenset(("publish", "subscribe")), topics=("home/#",)),
        Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("public/#",)),
    )
    world = MqttWorld(Settings(access=Access(secrets={"anna": b"secret", "bob": b"b"}, rules=rules)))
    assert world.device("x", 4, user="anna", password=b"wrong").packets == [b"\x20\x02\x00\x05"]
    assert world.device("x", 5, user="anna", password=b"wrong").packets[0][3] == Reason.NOT_AUTHORIZED
    assert world.device("anna", 4).packets == [b"\x20\x02\x00\x05"]
    anna = world.device("x", 5, user="anna", password=b"secret", clean=False, values=KEEPS)
    assert anna.subscribe(("home/#", 1), ("public/#", 1), ("#", 1)) == [1, 1, Reason.NOT_AUTHORIZED]
    assert anna.publish("home/a", b"1", qos=1, packet_id=1) == [client.ack(4, 1)]
    assert anna.publish("public/a", b"1", qos=1, packet_id=2)[0][4] == Reason.NOT_AUTHORIZED
    assert world.device("y", 4).subscribe(("home/#", 1), ("public/#", 1)) == [0x80, 1]
    old = world.device("z", 4)
    assert old.publish("home/a", b"2", qos=1, packet_id=3) == [client.ack(4, 3)]  # acknowledged and dropped
    assert anna.got() == [("home/a", b"1")]
    assert not old.is_closed
    # The session of one user is not for another one, and a listed name is not for other users.
    assert world.device("x", 5, user="bob", password=b"b").packets[0][3] == Reason.BAD_CLIENT_ID
    assert world.device("x", 5).packets[0][3] == Reason.BAD_CLIENT_ID
    assert world.device("bob", 5, user="anna", password=b"secret").packets[0][3] == Reason.BAD_CLIENT_ID
    assert not anna.is_closed
    # New rules take filters away.
    fewer = Access(secrets={"anna": b"secret"}, rules=rules[1:])
    world.server.change_settings(Settings(access=fewer))
    world.run()
    assert world.server.broker.sessions["x"].subscriptions[(), None].filters == ("public/#",)


def test_an_operator_ends_the_subscription_of_a_client() -> None:
    world = MqttWorld()
    device, sender = world.device("d", clean=False), world.device("s")
    device.subscribe(("a", 1), ("b", 1))
    session = world.server.broker.sessions["d"]
    world.server.broker.administration.kick(session, "d", ["a", "b"], "", world.now_us)
    world.run()
    sender.publish("a", b"1", qos=1, packet_id=1)
    assert device.messages == []
    assert session.filter_levels == 0
    assert device.subscribe(("a", 1)) == [1]
    sender.publish("a", b"2", qos=1, packet_id=2)
    assert device.got() == [("a", b"2")]
    assert set(world.keeping.of("filter")) == {("d", "a")}


def test_topics_of_the_broker_are_not_for_clients() -> None:
    world = MqttWorld()
    device = world.device("d", 5)
    assert device.publish("$x", b"", qos=1, packet_id=1)[0][4] == Reason.NOT_AUTHORIZED
    assert device.subscribe(("$SYS/x", 0)) == [0]
    old = world.device("e", 4)
    assert old.publish("$x", b"", qos=1, packet_id=1) == [client.ack(4, 1)]


def test_figures_under_the_names_of_other_brokers() -> None:
    world = MqttWorld()
    world.device("other")
    world.pass_s(21)
    device = world.device("d")
    device.subscribe(("$SYS/#", 0))
    found = {one.topic.removeprefix("$SYS/broker/"): one.payload for one in device.messages}
    assert found["uptime"] == b"20 seconds"
    assert found["clients/connected"] == b"1"
    assert set(found) >= {"messages/received", "subscriptions/count", "retained messages/count"}
    assert all(one.retain for one in device.messages)


def test_a_restarted_broker_resumes_sessions() -> None:
    world = MqttWorld()
    device = world.device("d", clean=False)
    device.subscribe(("t/#", 2), ("gone", 1))
    device.send(client.unsubscribe(2, "gone"))
    sender = world.device("s", clean=False)
    device.answers = False
    for number in (1, 2, 3):
        sender.publish(f"t/{number}", b"x", qos=2, packet_id=number)
    first = device.messages
    assert device.send(client.ack(5, first[0].packet_id)) == [client.ack(6, first[0].packet_id)]
    world.restart()
    device = Device(world, 4)
    device.answers = False
    device.send(client.connect("d", clean=False))
    assert device.packets == [b"\x20\x02\x01\x00", client.ack(6, first[0].packet_id)]
    assert [(one.topic, one.packet_id, one.dup) for one in device.messages] == [
        ("t/2", first[1].packet_id, True),
        ("t/3", first[2].packet_id, True),
    ]
    sender = world.device("s", clean=False)
    assert sender.packets[0] == b"\x20\x02\x01\x00"
    assert sender.publish("t/3", b"x", qos=2, packet_id=3, dup=True) == [client.ack(5, 3)]  # known
    sender.publish("gone", b"x", qos=1, packet_id=9)
    assert len(device.messages) == 2
    sender.send(client.ack(6, 1), client.ack(6, 2), client.ack(6, 3))
    device.answers = True
    for message in device.messages:
        device.send(client.ack(5, message.packet_id))
    device.send(client.ack(7, first[0].packet_id))
    world.pass_s(5)
    assert not world.keeping.of("packet")
    assert set(world.keeping.of("filter")) == {("d", "t/#")}
    world.restart()
    device = world.device("d", clean=False)
    assert device.packets == [b"\x20\x02\x01\x00"]
    assert device.messages == []


def test_a_release_that_is_not_stored_is_not_sent() -> None:
    world = MqttWorld()
    sender = world.device("s", clean=False)
    device = world.device("d", clean=False)
    device.answers = False
    device.subscribe(("t", 2))
    sender.publish("t", b"x", qos=2, packet_id=1)
    world.hold()
    assert device.send(client.ack(5, 1)) == []
    assert sender.send(client.ack(6, 1)) == []
    world.fail()
    assert device.is_closed
    assert sender.is_closed
    device, sender = Device(world, 4), Device(world, 4)
    world.hold()
    device.send(client.connect("d", clean=False))
    sender.send(client.connect("s", clean=False), client.ack(6, 1))
    assert client.ack(6, 1) not in device.packets
    world.commit()
    world.pass_s(2)
    assert device.packets[-1] == client.ack(6, 1)
    assert sender.packets[-1] == client.ack(7, 1)
    assert device.messages == []
    world.restart()
    device = world.device("d", clean=False)
    assert device.messages == []


def test_qos_0_of_mqtt_clients_can_be_logged() -> None:
    world = MqttWorld(log_qos_0=True)
    world.device("d").publish("t", b"x")
    assert world.keeping.next_offset == 1


def test_a_receive_maximum_that_is_exceeded() -> None:
    world = MqttWorld(receive_maximum=2)
    device = world.device("d", 5)
    world.hold()
    device.send(*(client.publish("t", b"x", qos=2, packet_id=n, version=5) for n in (1, 2, 3)))
    assert device.packets[-1][2] == Reason.RECEIVE_MAXIMUM


def test_longer_packets_than_the_client_accepts_are_not_sent() -> None:
    world = MqttWorld()
    device = world.device("d", 5, values={Property.MAXIMUM_PACKET_SIZE: 60})
    device.subscribe(("t", 1))
    sender = world.device("s")
    for payload in (b"x" * 100, b"short"):
        sender.publish("t", payload, qos=1, packet_id=1)
        sender.publish("t", payload)
    assert [one.payload for one in device.messages] == [b"short", b"short"]
    assert not world.server.broker.sessions["d"].subscriptions[(), None].sent


def test_a_client_that_never_reads_costs_no_more_than_its_window() -> None:
    world = MqttWorld(Settings(client_window_bytes=100_000))
    device = world.device("d")
    device.subscribe(("t", 1))
    device.answers = False
    device.unsent = 100_001
    sender = world.device("s")
    for number in range(50):
        sender.publish("t", b"x" * 10_000, qos=1, packet_id=1 + number)
        sender.publish("t", b"y" * 10_000)
    assert device.messages == []
    assert device.connection.outbound.queued_bytes <= 100_000
    assert world.server.broker.figures()["messages/dropped"] == 50
    device.unsent = 0
    device.answers = True
    device.connection.handle_drained()
    world.run()
    assert [one.payload[:1] for one in device.messages] == [b"x"] * 50


def test_the_broker_says_goodbye_when_it_is_stopped() -> None:
    world = MqttWorld()
    device, old = world.device("d", 5), world.device("o", 4)
    world.server.close(world.now)
    assert device.packets[-1][2] == Reason.SHUTDOWN
    assert device.is_closed
    assert old.is_closed


def test_response_information() -> None:
    world = MqttWorld(response_information="reply/{client}")
    asks = {Property.REQUEST_RESPONSE_INFO: 1}
    text = b"\x1a\x00\x07reply/d"
    assert text in world.device("d", 5, values=asks).packets[0]
    assert text not in world.device("d", 5).packets[0]
    assert b"reply/" not in world.device("a/b", 5, values=asks).packets[0]
    assert b"\x1a" not in MqttWorld().device("d", 5, values=asks).packets[0]


def test_a_user_that_a_certificate_has_proved() -> None:
    rule = Rule(clients=("anna",), allow=frozenset(("publish",)), topics=("home/{client}",))
    access = Access(secrets={"anna": b"secret"}, rules=(rule,), allows_anonymous=False)
    world = MqttWorld(Settings(access=access))

    def device(certified_user: str, version: int = 5, **options: Any) -> Device:
        found = Device(world, version, certified_user)
        found.send(client.connect("d", version, **options))
        return found

    anna = device("anna", user="another", password=b"wrong")
    assert anna.publish("home/anna", qos=1, packet_id=1)[0][4] == Reason.NO_SUBSCRIBERS
    assert device("anna", 4).packets == [CONNACK]
    for user in ("bert", ""):
        assert device(user).packets[0][3] == Reason.NOT_AUTHORIZED
    method = {Property.AUTH_METHOD: "SCRAM-SHA-256", Property.AUTH_DATA: b"n,,n=anna,r=x"}
    assert device("anna", values=method).packets[0][3] == Reason.BAD_AUTH_METHOD


@pytest.mark.parametrize("version", [4, 5])
def test_a_subscription_that_is_not_stored_is_not_acknowledged(version: int) -> None:
    world = MqttWorld()
    device = world.device("d", version, clean=False, values=KEEPS if version == 5 else None)
    world.hold()
    assert device.send(client.subscribe(1, ("a", 1), version=version)) == []
    world.fail()
    assert [packet[0] >> 4 for packet in device.packets[1:]] == ([PacketType.DISCONNECT] if version == 5 else [])
    assert device.is_closed
    device = world.device("d", version, clean=False, values=KEEPS if version == 5 else None)
    assert device.subscribe(("a", 1)) == [1]
    world.hold()
    assert device.send(client.unsubscribe(2, "a", version=version)) == []
    world.fail()
    assert device.is_closed
    assert device.packets[-1][0] >> 4 != PacketType.UNSUBACK
