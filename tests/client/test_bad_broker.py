"""A faulty or hostile broker: the client raises no error, its memory is bounded, and it reconnects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.world import BROKER, FakeBroker, Link, Network, User, online
from tests.transport.world import examples
from tests.wire import strategies as wire_strategies

from godwit.client.events import Confirmed, Ended, Offline
from godwit.errors import GodwitError
from godwit.limits import CHANNEL_WINDOW_BYTES
from godwit.transport.events import Train
from godwit.wire import control
from godwit.wire.control import encode_control, encode_in_band
from godwit.wire.control_base import Code


def subscribed() -> tuple[Network, FakeBroker, User, Link]:
    network, broker, user = online()
    user.client.subscribe(["a/b"])
    user.client.publisher("t").send(b"x", network.now_us)
    network.run(1)
    return network, broker, user, broker.link


def new_channel(link: Link, *records: bytes) -> None:
    channel = link.connection.open_channel()
    for record in records:
        link.connection.send(channel, record)


def on_feed(link: Link, *records: bytes) -> None:
    for record in records:
        link.connection.send(link.subscribed[0].feed, record)


NONSENSE: list[tuple[str, Callable[[Link], object]]] = [
    ("no CBOR", lambda link: link.connection.send(0, b"\xff\xff")),
    ("a wrong field", lambda link: link.connection.send(0, encode_control(control.Pong(request=1))[:-1] + b"\x20")),
    ("a channel without a subscription", lambda link: new_channel(link, b"rubbish")),
    ("a channel with another first word", lambda link: new_channel(link, encode_control(control.Done(request=1)))),
    ("a confirm of a record that was never sent", lambda link: link.connection.confirm(1, 55, 0)),
    ("a record without a batch", lambda link: on_feed(link, b"\x00" * 50)),
    ("a batch without a route", lambda link: on_feed(link, b"\x41" + bytes(8) + b"x")),
    ("an empty record", lambda link: on_feed(link, b"", b"\x00")),
    ("in-band rubbish", lambda link: on_feed(link, b"\xff\xff")),
    ("an unknown label", lambda link: on_feed(link, b"\x50" + bytes(8) + b"\x00\x00\x00\x63" * 2 + bytes(24))),
]


@pytest.mark.parametrize("nonsense", [act for _, act in NONSENSE], ids=[name for name, _ in NONSENSE])
def test_protocol_violations_end_the_connection_and_the_client_reconnects(nonsense: Callable[[Link], object]) -> None:
    network, broker, user, link = subscribed()
    nonsense(link)

    def taking() -> bool:
        for subscription in list(user.client._subscriptions._subscriptions.values()):
            user.take_all(subscription)
        return link.closed is not None

    network.run_until(taking, 5.0)
    assert link.closed is not None
    assert link.closed.code == Code.PROTOCOL
    user.until("online", 5.0)
    assert broker.link is not link
    assert user.all(Offline)[0].code == Code.PROTOCOL
    user.client.publisher("t").send(b"y", network.now_us)
    network.run(1)
    assert broker.messages("t")[-1] == b"y"


HARMLESS: list[tuple[str, Callable[[Link], object]]] = [
    ("a reply to nothing", lambda link: link.send(control.Done(request=12345))),
    ("an error about nothing", lambda link: link.send(control.Error(code=101, text="what?"))),
    ("a second welcome", lambda link: link.send(control.Welcome(request=0, name="z", max_message_bytes=1))),
    ("subscribed to nothing", lambda link: link.send(control.Subscribed(request=999, subscription=7))),
    ("opened nothing", lambda link: link.send(control.Opened(channel=999))),
    ("refused nothing", lambda link: link.send(control.PublishRefused(channel=999, code=102, text=""))),
    ("kicked nothing", lambda link: link.send(control.Kicked(subscription=999, by=""))),
    ("a client's message", lambda link: link.send(control.Login(request=1, instance=bytes(16)))),
    ("a new kind", lambda link: link.connection.send(0, b"\xa1\x64kind\x63new")),
    ("a confirm for nothing", lambda link: link.connection.confirm(1234, 0, 0)),
    (
        "a feed without a subscription",
        lambda link: new_channel(link, encode_control(control.DeliveryOpen(subscription=99)), b"junk"),
    ),
    ("a gap backwards", lambda link: on_feed(link, encode_in_band(control.Gap(count=2**62, next_offset=0)))),
]


@pytest.mark.parametrize("words", [act for _, act in HARMLESS], ids=[name for name, _ in HARMLESS])
def test_messages_without_meaning_are_ignored(words: Callable[[Link], object]) -> None:
    network, broker, user, link = subscribed()
    words(link)
    network.run(1)
    broker.push(link, [b"still here"], broker.next_offset)
    network.run(1)
    (subscription,) = user.client._subscriptions._subscriptions.values()
    assert [message.payload for message in user.take_all(subscription)] == [b"still here"]
    assert user.client.state == "online"
    assert user.client.name == "nameless"


def test_an_unknown_kind_that_asks_is_answered() -> None:
    network, broker, _, link = subscribed()
    link.connection.send(0, b"\xa2\x64kind\x63new\x67request\x05")
    network.run(1)
    assert link.all(control.Error)[0].code == Code.UNKNOWN_KIND
    assert broker.link is link


def test_a_flood_of_questions_is_answered_as_far_as_the_broker_listens() -> None:
    network, broker, user, link = subscribed()
    for number in range(3000):
        link.send(control.Ping(request=number))
    network.run(5)
    assert len(link.all(control.Pong)) == 3000
    assert user.client.state == "online"
    assert broker.link is link


def test_data_before_the_welcome_is_ignored() -> None:
    network = Network()
    broker = FakeBroker(network)
    broker.welcomes = False
    user = User(network)
    user.client.subscribe(["a/b"])
    network.run_until(lambda: bool(broker.links and broker.link.login))
    link = broker.link
    new_channel(link, encode_control(control.DeliveryOpen(subscription=0)), b"data")
    link.send(control.Subscribed(request=0, subscription=0))
    link.connection.confirm(1, 5, 0)
    network.run(1)
    assert user.log == [] or user.client.state in ("connecting", "offline")
    broker.welcomes = True
    user.until("online", 15.0)


def test_held_records_are_bounded_by_credit() -> None:
    """The broker sends more than the application takes."""
    network, broker, user, link = subscribed()
    (subscription,) = user.client._subscriptions._subscriptions.values()
    for place in range(80):
        broker.push(link, [bytes(50_000)], place)
        network.run(0.01)
        assert subscription.held_bytes <= CHANNEL_WINDOW_BYTES + 60_000
    network.run(5)
    assert subscription.held_bytes <= CHANNEL_WINDOW_BYTES + 60_000


@examples(0.5)
@given(
    st.lists(st.one_of(st.binary(max_size=80), wire_strategies.control_messages.map(encode_control)), max_size=8),
    st.data(),
)
def test_any_messages_of_the_broker(words: list[bytes], data: st.DataObject) -> None:
    network, _, user, link = subscribed()
    channels = [0, link.subscribed[0].feed, link.subscribed[0].live, link.connection.open_channel()]
    for word in words:
        channel = data.draw(st.sampled_from(channels))
        if channel and data.draw(st.booleans()):
            word = b"\xff" + word
        try:
            link.connection.send(channel, word, reliable=channel == 0 or data.draw(st.booleans()))
        except GodwitError:
            break
        network.run(0.05)
        for subscription in list(user.client._subscriptions._subscriptions.values()):
            subscription.take()
    network.run(1)
    if not user.all(Ended):
        user.until("online", 10.0)


@examples(0.5)
@given(st.binary(max_size=100), st.integers(1, 100))
def test_any_datagram(data: bytes, segment_bytes: int) -> None:
    network, _, user, _ = subscribed()
    user.client.receive(Train(BROKER, data, segment_bytes), network.now)
    network.run(1)
    assert user.client.state == "online"
    assert len(user.all(Confirmed)) == 1
