"""Many clients in one process: each has a socket, a connection, a login and two subscriptions of its own."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable

from tests.system.worker import Orders, say

from godwit.client.config import ClientConfig
from godwit.client.events import Available, ClientEvent, Ended, Missed, Offline, SubscriptionEnded, SubscriptionStarted
from godwit.client.protocol import ClientProtocol
from godwit.net.address import parse_broker, resolve
from godwit.net.driver import EndpointDriver
from godwit.net.udp import UdpSocket
from godwit.transport.connection_state import Statistics
from godwit.transport.events import Address

AT_ONCE = 50
"""Number of clients that log in at the same time: their datagrams fit the broker's receive buffer."""
SUBSCRIPTIONS = 2
NICENESS = 5
"""Thousands of devices would not share the broker's processors."""


class Member:
    """One client, without the facade: a thousand of them share an event loop."""

    def __init__(self, name: str, address: Address, filters: list[str], on_message: Callable[[str], None]) -> None:
        self.is_ready = asyncio.get_running_loop().create_future()
        """Set once the broker has agreed to all subscriptions."""
        self._name = name
        self._on_message = on_message
        self._agreed = 0
        self._wanted = len(filters)
        udp = UdpSocket("127.0.0.1")
        self._client = ClientProtocol(ClientConfig(name=name), entropy=os.urandom, random=random.Random(name))
        self._driver = EndpointDriver(self._client, udp, self._on_events)
        for filter in filters:
            self._client.subscribe([filter])
        self._client.connect([address], self._driver.clock())
        self._driver.flush()

    def _on_events(self, events: list[ClientEvent]) -> None:
        for event in events:
            match event:
                case SubscriptionStarted():
                    self._agreed += 1
                    if self._agreed == self._wanted:
                        self.is_ready.set_result(None)
                case Available(subscription=subscription):
                    while (messages := subscription.take()) is not None:
                        for message in messages:
                            self._on_message(message.topic)
                case Offline(reason=reason) | Ended(reason=reason):
                    say("lost", client=self._name, reason=reason)
                case SubscriptionEnded() | Missed():
                    say("lost", client=self._name, reason=str(event))
                case _:
                    pass

    @property
    def is_online(self) -> bool:
        return self._client.state == "online"

    @property
    def statistics(self) -> Statistics:
        return self._client.statistics

    def close(self) -> None:
        self._client.close(self._driver.clock())
        self._driver.flush()
        self._driver.close()


async def crowd(orders: Orders, *, broker: str, name: str, first: int, count: int) -> None:
    """Connect `count` clients, each subscribed to `crowd/all` and to `crowd/NUMBER`, then report `connected`.

    Orders: `until N` has it say `reached` once N messages have come in all; `tell` has it say `told`, how many are
    online and what they have sent and received; `stop` has all say goodbye.
    """
    os.nice(NICENESS)
    address = resolve(*parse_broker(broker))
    came: Counter[str] = Counter()
    members: list[Member] = []
    wanted: int | None = None

    def on_message(topic: str) -> None:
        came[topic] += 1
        look()

    def look() -> None:
        nonlocal wanted
        if wanted is not None and came.total() >= wanted:
            wanted = None
            say("reached", came=dict(came))

    for number in range(first, first + count, AT_ONCE):
        several = range(number, min(number + AT_ONCE, first + count))
        more = [Member(f"{name}-{member}", address, ["crowd/all", f"crowd/{member}"], on_message) for member in several]
        members += more
        await asyncio.gather(*[member.is_ready for member in more])
    say("connected", clients=len(members), subscriptions=len(members) * SUBSCRIPTIONS)
    while (order := await orders.next()) != "stop":
        if order == "tell":
            figures = [member.statistics for member in members]
            say(
                "told",
                online=sum(member.is_online for member in members),
                packets_sent=sum(each.packets_sent for each in figures),
                packets_received=sum(each.packets_received for each in figures),
                packets_lost=sum(each.packets_lost for each in figures),
            )
        else:
            wanted = int(order.removeprefix("until "))
            look()
    for member in members:
        member.close()
