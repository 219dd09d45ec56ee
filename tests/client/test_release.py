"""Clients that leave a broker: neither side keeps anything of their connections, without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from tests.client.test_with_server import Place
from tests.client.world import User

from godwit.broker.subscription import BrokerSubscription
from godwit.client.config import ClientConfig
from godwit.limits import KIB
from godwit.native.peer import NativePeer
from godwit.native.publish_channel import PublishChannel
from godwit.native.subscriber_channel import SubscriberChannel
from godwit.native.work_channel import JobPeer
from godwit.transport.connection import Connection
from godwit.transport.connection_state import Components
from godwit.transport.receive_channels import Assembly, IncomingChannel
from godwit.transport.send_channels import OutgoingChannel, OutgoingRecord
from godwit.wire.control import Kick

PER_CONNECTION = frozenset(
    (
        Assembly,
        Connection,
        BrokerSubscription,
        IncomingChannel,
        PublishChannel,
        SubscriberChannel,
        NativePeer,
        OutgoingChannel,
        OutgoingRecord,
        Components,
        JobPeer,
    )
)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> dict[str, int]:
    counts = dict.fromkeys((kind.__name__ for kind in PER_CONNECTION), 0)
    for one in gc.get_objects():
        if type(one) in PER_CONNECTION:
            counts[type(one).__name__] += 1
    return counts


def close(place: Place, user: User) -> None:
    user.client.close(place.network.now)


def kick(place: Place, user: User) -> None:
    admin = place.user(ClientConfig(name="admin"))
    admin.client.request(lambda number: Kick(request=number, client="leaver"))
    place.network.run(1)
    admin.client.close(place.network.now)


def fall_silent(place: Place, user: User) -> None:
    place.network.lost = lambda source, target: user.address in (source, target)
    place.network.run(60)  # both sides notice by their idle time-outs
    user.client.close(place.network.now)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("end", [close, kick, fall_silent])
def test_a_client_that_leaves_with_work_undone_leaves_nothing_behind(end: Callable[[Place, User], None]) -> None:
    place = Place()
    sender = place.user(ClientConfig(name="sender"))
    place.publish(sender, "a/b", *[bytes(10 * KIB)] * 10)
    place.network.run(60)
    before = alive()
    # Without a session: nothing of it is to be remembered.
    user = place.user(ClientConfig(name="leaver", session_expiry_s=0))
    place.subscribe(user, "a/#", start="earliest")
    place.subscribe(user, "a/+")
    publisher = user.client.publisher("c/d", qos=1)
    user.client.volunteer(["kind"], capacity=2)
    place.publish(sender, "a/b", *[bytes(10 * KIB)] * 900)  # more than the client's window, and it takes none
    address = user.address
    place.network.lost = lambda source, target: source == address
    for _ in range(100):
        publisher.send(bytes(10 * KIB), place.network.now_us, False)
    place.network.run(0.5)
    between = alive()
    assert between["NativePeer"] == before["NativePeer"] + 1
    assert between["SubscriberChannel"] == before["SubscriberChannel"] + 4
    assert between["OutgoingRecord"] > before["OutgoingRecord"]
    place.network.lost = lambda source, target: False
    end(place, user)
    place.network.run(60)
    place.network.lost = lambda source, target: False
    place.network.after_step.remove(user.note)
    del place.network.nodes[address], user, publisher
    place.publish(sender, "a/b", b"routes are worked out anew")
    place.network.run(60)
    left = {kind: count - before[kind] for kind, count in alive().items() if count > before[kind]}
    assert left == {}
