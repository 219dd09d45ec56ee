"""A small plan of the broker world without faults, which each test changes as needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from godwit.impairment import LinkSettings
from godwit.limits import KIB
from godwit.server.server import Server
from godwit.transport.config import EndpointConfig
from godwit_sim.network import Trace
from godwit_sim.worlds.broker import BrokerWorld
from godwit_sim.worlds.broker_plan import (
    BrokerPlan,
    ClientPlan,
    Fault,
    PublicationPlan,
    ReadingPlan,
    SubscriptionPlan,
    WillPlan,
)
from godwit_sim.worlds.transport_plan import HostPlan

HOST = HostPlan(joins=True, wake_delay_s=0.0, timer_step_s=0.0, epoch_s=5.0)
LINK = LinkSettings(delay_s=0.005)
ENDPOINT = EndpointConfig(idle_timeout_s=2.0, keep_alive_s=0.7)


def client(name: str | None, **changes: Any) -> ClientPlan:
    fields: dict[str, Any] = {
        "start_s": 0.0,
        "name": name,
        "secret": b"",
        "session_expiry_s": 3600,
        "will": None,
        "host": HOST,
        "listener": 0,
        "endpoint": ENDPOINT,
        "send_buffer_bytes": 1024 * KIB,
        "up": LINK,
        "down": LINK,
        "reading": ReadingPlan(),
        "subscriptions": (),
        "publications": (),
        "remembers": False,
    }
    return ClientPlan(**(fields | changes))


def messages(
    topic: str, qos: Any, count: int = 20, size_bytes: int = 60, retain: bool = False
) -> list[PublicationPlan]:
    return [PublicationPlan(0.3 + 0.05 * number, topic, qos, size_bytes, retain) for number in range(count)]


SENDS = (*messages("home/a", 0), *messages("home/a", 1), *messages("home/b", 2), *messages("home/c", 1, retain=True))
SENDER = client("sender", publications=tuple(sorted(SENDS, key=lambda one: one.at_s)))
READER = client(
    "reader",
    subscriptions=(SubscriptionPlan(0.0, ("home/#",)), SubscriptionPlan(1.5, ("+/c", "home/b"))),
)
OTHER = client("other", subscriptions=(SubscriptionPlan(0.0, ("home/b",)),), will=WillPlan("home/will", 1, False))

PLAN = BrokerPlan(
    seed=1,
    troubles=(),
    faults_end_s=2.0,
    server_hosts=(HOST,),
    server=replace(ENDPOINT, accepts=True, reset_key=bytes(32)),
    ring_bytes=1024 * KIB,
    client_window_bytes=1024 * KIB,
    hold_back_s=1.0,
    clients=(SENDER, READER, OTHER),
    faults=(),
    hostile=None,
)
"""A sender with four order keys, a reader that subscribes a second time later on, and another with a will."""

DEATH = replace(PLAN, faults=(Fault(0.7, "client_dies", 2, 0.4), Fault(1.0, "client_dies", 1, 0.3)))
"""Both readers die and restart."""

LOST = replace(PLAN, faults_end_s=7.0, faults=(Fault(0.5025, "partition", 0, 5.0), Fault(0.6, "partition", 2, 5.0)))
"""The sender is disconnected for longer than any timeout, between its message and the confirm."""

SLOW = replace(
    PLAN,
    ring_bytes=64 * KIB,
    client_window_bytes=64 * KIB,
    hold_back_s=0.1,
    clients=(
        client("sender", publications=tuple(messages("home/b", 1, 60, 3000))),
        replace(READER, subscriptions=READER.subscriptions[:1], reading=ReadingPlan(0.0, ((0.5, 5.0),))),
        OTHER,
    ),
    faults_end_s=5.0,
)
"""A reader that pauses while the ring is overwritten."""


STALE = replace(
    SLOW,
    clients=(
        client("sender", publications=(*messages("home/b", 1, 60, 3000), PublicationPlan(4.5, "quiet", 1, 50))),
        client("quiet", subscriptions=(SubscriptionPlan(0.0, ("quiet",), is_quiet=True),)),
        client("other", subscriptions=(SubscriptionPlan(0.0, ("home/b",)),)),
    ),
    faults=(Fault(1.0, "partition", 1, 3.5),),
)
"""A subscriber without messages is disconnected while the ring is overwritten."""


def run(plan: BrokerPlan, server: type[Server] = Server) -> BrokerWorld:
    world = BrokerWorld(plan, Trace(), server)
    world.run()
    return world
