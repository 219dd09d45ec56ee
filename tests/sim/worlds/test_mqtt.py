"""The MQTT world: runs with deaths and broken connections, and planted faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from godwit.mqtt.connection import MqttConnection
from godwit.mqtt.receiver import MqttReceiver
from godwit.mqtt.sender import MqttOutbound
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.mqtt import draw_mqtt_plan, run_mqtt

SEEDS = range(6)


def test_plans_differ_and_can_be_repeated() -> None:
    assert draw_mqtt_plan(7) == draw_mqtt_plan(7)
    assert draw_mqtt_plan(7) != draw_mqtt_plan(8)
    plans = [draw_mqtt_plan(seed) for seed in range(100)]
    clients = [client for plan in plans for client in plan.clients]
    assert {client.version for client in clients} == {4, 5}
    assert any(is_polite for client in clients for _, is_polite in client.breaks)
    assert all(plan.durable.max_age_s is None and not plan.durable.restores for plan in plans)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed(seed: int) -> None:
    outcome = run_seed("mqtt", seed)
    assert outcome.violation is None, outcome.violation
    assert "MQTT clients" in outcome.summary


def test_a_seed_is_the_same_every_time() -> None:
    assert run_seed("mqtt", 3).digest == run_seed("mqtt", 3).digest
    assert WORLDS["mqtt"] is run_mqtt


# -- planted faults ---------------------------------------------------------------------------------------------------


def know_no_repeat(receiver: Any, packet_id: int) -> bool:
    """Do not recognize a repeated message of QoS 2, which is stored again."""
    return False


def acknowledge_everything(outbound: Any) -> None:
    """Move the position behind messages that the client has not acknowledged."""
    if outbound.subscription is not None and outbound.next_offset > outbound.subscription.acknowledged_below:
        outbound._connection.broker.acknowledge(outbound.subscription, outbound.next_offset)


def acknowledge_at_once(receiver: Any, packets: list[Any], index: int, now_us: int) -> int:
    """Acknowledge messages of QoS 1 before they are stored."""
    packet = packets[index]
    if packet.qos == 1:
        receiver.connection.write(b"\x40\x02" + packet.packet_id.to_bytes(2, "big"))
    return HANDLE_PUBLISHES(receiver, packets, index, now_us)


HANDLE_PUBLISHES = MqttReceiver.handle_publishes


def keep_no_session(connection: Any, packet: Any, proof: bytes | None, now_us: int) -> None:
    """Begin each connection with a new session."""
    LOGIN(connection, replace(packet, is_clean=True), proof, now_us)


LOGIN = MqttConnection._login


@pytest.mark.parametrize(
    ("owner", "name", "fault", "violation"),
    [
        (MqttReceiver, "_is_repeat", know_no_repeat, "is in the log at"),
        (MqttOutbound, "_acknowledge", acknowledge_everything, "waits for"),
        (MqttReceiver, "handle_publishes", acknowledge_at_once, "was acknowledged and is not in the log"),
        (MqttConnection, "_login", keep_no_session, "is lost"),
    ],
    ids=["repeated", "missing", "early", "forgotten"],
)
def test_a_planted_fault_is_found(
    owner: type, name: str, fault: Callable[..., Any], violation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    for seed in range(12):
        found = run_seed("mqtt", seed).violation
        if found is not None:
            assert violation in found
            return
    pytest.fail("no seed has found the fault")
