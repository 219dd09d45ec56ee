"""MQTT clients as members of consumer groups: `$share/NAME/FILTER`, alone and together with native members."""

from __future__ import annotations

from typing import Any

import pytest
from tests.mqtt import client_packets as client
from tests.mqtt.world import Device, Message, MqttWorld

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.mqtt.packets import PacketType, Property, Reason
from godwit.wire import control as c

SHARED = "$share/billing/orders/#"
KEEPS = {Property.SESSION_EXPIRY: 3600}


def payloads(*devices: Device) -> list[bytes]:
    return sorted([message.payload for device in devices for message in device.messages])


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(version: int, qos: int) -> None:
    world = MqttWorld()
    first, second = world.device("a", version), world.device("b", version)
    granted = min(qos, 1)  # a group repeats a message at another member: it cannot promise exactly once
    assert first.subscribe((SHARED, qos)) == [granted]
    assert second.subscribe((SHARED, qos), ("other", 2)) == [granted, 2]
    sender = world.device("s")
    for number in range(10):
        sender.publish("orders/new", b"%d" % number, qos=qos, packet_id=number + 1)
        sender.send(client.ack(6, number + 1) if qos == 2 else b"")
    assert payloads(first, second) == [b"%d" % number for number in range(10)]
    assert (len(first.messages), len(second.messages)) == (5, 5)
    assert {message.qos for message in first.messages} == {granted}


def test_connack_does_not_deny_shared_subscriptions() -> None:
    world = MqttWorld()
    assert bytes((Property.SHARED_AVAILABLE, 0)) not in world.device("a", 5).packets[0]


def test_no_local_is_a_protocol_error() -> None:
    world = MqttWorld()
    device = world.device("a", 5)
    (reply,) = device.send(client.subscribe(1, (SHARED, 0x04), version=5))
    assert (reply[0] >> 4, reply[2]) == (PacketType.DISCONNECT, Reason.PROTOCOL)


def test_native_and_mqtt_members_share_one_group() -> None:
    world = MqttWorld()
    device, native = world.device("a", 5), world.client("native")
    device.subscribe((SHARED, 1))
    native.subscribe("orders/#", group="billing")
    sender = world.device("s")
    for number in range(6):
        sender.publish("orders/new", b"%d" % number, qos=1, packet_id=1)
    assert (len(device.messages), len(native.payloads)) == (3, 3)
    assert sorted(payloads(device) + native.payloads) == [b"%d" % number for number in range(6)]
    native.confirms_itself = False
    sender.publish("orders/new", b"6", qos=1, packet_id=1)
    sender.publish("orders/new", b"7", qos=1, packet_id=1)
    native.die()
    assert set(payloads(device)) >= {b"6", b"7"}


def test_retained_messages_are_not_sent() -> None:
    world = MqttWorld()
    sender = world.device("s")
    sender.publish("orders/new", b"kept", qos=1, packet_id=1, retain=True)
    device = world.device("a")
    device.subscribe((SHARED, 1))
    assert device.messages == []
    device.subscribe(("orders/#", 1))
    assert [message.payload for message in device.messages] == [b"kept"]


def test_unacknowledged_messages_of_a_lost_connection_go_to_others() -> None:
    world = MqttWorld()
    first, second = world.device("a", 5, values=KEEPS), world.device("b", 5)
    first.answers = False
    first.subscribe((SHARED, 1))
    sender = world.device("s")
    for number in range(3):
        sender.publish("orders/new", b"%d" % number, qos=1, packet_id=1)
    assert len(first.messages) == 3
    second.subscribe((SHARED, 1))
    assert second.messages == []
    first.vanish()
    assert payloads(second) == [b"0", b"1", b"2"]
    assert not any(message.dup for message in second.messages)
    again = world.device("a", 5, clean=False, values=KEEPS)
    assert again.messages == []
    sender.publish("orders/new", b"3", qos=1, packet_id=1)
    sender.publish("orders/new", b"4", qos=1, packet_id=1)
    assert (len(again.messages), len(second.messages)) == (1, 4)  # it is a member again without a SUBSCRIBE


def test_the_receive_maximum_counts_for_both_kinds_of_subscription() -> None:
    world = MqttWorld()
    device = world.device("a", 5, values={Property.RECEIVE_MAXIMUM: 3})
    device.answers = False
    device.subscribe((SHARED, 1), ("own", 1))
    sender = world.device("s", 5)
    for number in range(5):
        sender.publish("orders/new", b"%d" % number, qos=1, packet_id=1)
        sender.publish("own", b"own %d" % number, qos=1, packet_id=1)
    assert len(device.messages) == 3
    assert len({message.packet_id for message in device.messages}) == 3
    seen = 0
    for _ in range(10):
        for message in device.messages[seen:]:
            seen += 1
            device.send(client.ack(4, message.packet_id, 5))
    assert payloads(device) == [*(b"%d" % number for number in range(5)), *(b"own %d" % number for number in range(5))]


def test_an_unsubscribed_member_gets_nothing_more() -> None:
    world = MqttWorld()
    first, second = world.device("a", 5), world.device("b", 5)
    for device in (first, second):
        device.subscribe((SHARED, 1))
    assert first.send(client.unsubscribe(2, SHARED, version=5))[0][-1] == Reason.SUCCESS
    assert first.send(client.unsubscribe(2, SHARED, version=5))[0][-1] == Reason.NO_SUBSCRIPTION
    sender = world.device("s")
    for number in range(4):
        sender.publish("orders/new", b"%d" % number, qos=1, packet_id=1)
    assert (first.messages, len(second.messages)) == ([], 4)


def test_a_refused_message_is_not_sent_to_others() -> None:
    world = MqttWorld()
    first, second = world.device("a", 5), world.device("b", 5)
    first.answers = False
    first.subscribe((SHARED, 1))
    sender = world.device("s")
    sender.publish("orders/new", b"1", qos=1, packet_id=1)
    second.subscribe((SHARED, 1))
    first.send(client.ack(4, first.messages[0].packet_id, 5, 0x97))
    first.vanish()
    assert second.messages == []


def test_subscription_identifier_and_a_packet_that_is_too_long() -> None:
    world = MqttWorld()
    device = world.device("a", 5, values={Property.MAXIMUM_PACKET_SIZE: 100})
    device.subscribe((SHARED, 1), values={Property.SUBSCRIPTION_ID: 9})
    sender = world.device("s", 5)
    sender.publish("orders/new", b"x" * 200, qos=1, packet_id=1)
    sender.publish("orders/new", b"short", qos=1, packet_id=1)
    (message,) = device.messages
    assert (message.payload, message.properties[Property.SUBSCRIPTION_ID]) == (b"short", [9])
    (info,) = world.client("n").expect(c.ListGroups(request=50), c.GroupList).groups
    assert (info.lag, info.in_flight) == (0, 0)


def test_a_group_of_clean_sessions_ends_with_them() -> None:
    world = MqttWorld()
    first = world.device("a", 4)
    first.subscribe((SHARED, 1))
    first.vanish()
    world.device("s").publish("orders/new", b"1", qos=1, packet_id=1)
    second = world.device("b", 4)
    second.subscribe((SHARED, 1))
    assert second.messages == []


def test_a_persistent_session_and_its_group_outlive_the_broker() -> None:
    world = MqttWorld()
    first = world.device("a", 5, values=KEEPS)
    first.answers = False
    first.subscribe((SHARED, 1))
    sender = world.device("s")
    sender.publish("orders/new", b"1", qos=1, packet_id=1)
    sender.publish("orders/new", b"2", qos=1, packet_id=1)
    first.send(client.ack(4, first.messages[0].packet_id, 5))
    world.pass_s(2)
    world.restart()
    again = world.device("a", 5, clean=False, values=KEEPS)
    assert [message.payload for message in again.messages] == [b"2"]
    assert again.packets[0][2] == 1
    sender = world.device("s")
    sender.publish("orders/new", b"3", qos=1, packet_id=1)
    assert payloads(again) == [b"2", b"3"]


def test_access_rules() -> None:
    rules = (
        Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("orders/#",), groups=("billing",)),
        Rule(clients=("*",), allow=frozenset(("publish",)), topics=("#",)),
    )
    world = MqttWorld(Settings(access=Access(rules=rules)))
    device = world.device("a", 5)
    assert device.subscribe((SHARED, 1), ("$share/audit/orders/#", 1), ("$share/billing/#", 1)) == [
        1,
        Reason.NOT_AUTHORIZED,
        Reason.NOT_AUTHORIZED,
    ]
    world.server.broker.change_settings(Settings(access=Access(rules=rules[1:])))
    world.run()
    world.device("s").publish("orders/new", b"1", qos=1, packet_id=1)
    assert device.messages == []
    assert device.connection.table.table == {}


def test_topic_aliases() -> None:
    world = MqttWorld()
    device = world.device("a", 5, values={Property.TOPIC_ALIAS_MAXIMUM: 5})
    device.subscribe((SHARED, 1))
    sender = world.device("s")
    for topic in ("orders/a", "orders/b", "orders/a", "orders/b"):
        sender.publish(topic, topic.encode(), qos=1, packet_id=1)
    found = [(message.topic, message.properties[Property.TOPIC_ALIAS]) for message in device.messages]
    assert found == [("orders/a", 1), ("orders/b", 2), ("", 1), ("", 2)]


def test_messages_keep_their_properties() -> None:
    world = MqttWorld()
    device = world.device("a", 5)
    device.subscribe((SHARED, 1))
    values: dict[int, Any] = {Property.CONTENT_TYPE: "text/plain", Property.USER_PROPERTY: [("k", "v")]}
    world.device("s", 5).publish("orders/new", b"1", qos=1, packet_id=1, values=values)
    assert device.messages[0].properties == values
    assert device.messages[0] == Message(
        "orders/new", b"1", 1, packet_id=device.messages[0].packet_id, properties=values
    )


def test_a_message_that_expires_before_it_is_repeated_is_not_a_loss() -> None:
    world = MqttWorld()
    first, second = world.device("a", 5), world.client("native")
    first.answers = False
    first.subscribe((SHARED, 1))
    sender = world.device("s", 5)
    sender.publish("orders/new", b"short", qos=1, packet_id=1, values={Property.MESSAGE_EXPIRY: 5})
    sender.publish("orders/new", b"long", qos=1, packet_id=1)
    assert len(first.messages) == 2
    second.subscribe("orders/#", group="billing")
    world.pass_s(10)
    first.vanish()
    assert second.payloads == [b"long"]
    (info,) = second.expect(c.ListGroups(request=50), c.GroupList).groups
    assert (info.missed, info.lag) == (0, 0)
    assert second.gaps == []
