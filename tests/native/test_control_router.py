"""Requests and replies: everything is answered, nothing before the login, and not without end."""

from __future__ import annotations

import cbor2
import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import World

from godwit.limits import (
    MAX_CAPACITY,
    MAX_CHANNELS,
    MAX_CLIENT_NAME_BYTES,
    MAX_CONTROL_ITEMS,
    MAX_FIRST_ITEMS,
    MAX_KIND_BYTES,
    MAX_KINDS,
    MAX_LOGIN_BYTES,
    MAX_OPEN_RECORD_BYTES,
    MAX_TOPIC_BYTES,
    MAX_WILL_BYTES,
    REQUESTS_PER_S,
)
from godwit.native.peer import BYTES_PER_REQUEST, REQUEST_BURST_S
from godwit.wire import control as c
from godwit.wire import jobs as j
from godwit.wire.control import encode_control
from godwit.wire.control_base import Code


def test_a_ping_is_answered() -> None:
    assert World().client("alice").ask(c.Ping(request=77)) == c.Pong(request=77)


def test_nothing_is_done_before_the_login() -> None:
    world = World()
    peer = world.peer()
    for message in (
        c.Ping(request=1),
        c.Subscribe(request=2, subscription=1, filters=["a"]),
        c.Kick(request=3, client="alice"),
        c.Topics(request=4),
    ):
        assert peer.refusal(message) is Code.NOT_LOGGED_IN
    assert peer.closed is None
    assert peer.login("alice").name == "alice"


def test_a_channel_before_the_login_ends_the_connection() -> None:
    world = World()
    peer = world.peer()
    peer.start("a")
    assert peer.end == Code.NOT_LOGGED_IN


def test_a_second_login_is_refused() -> None:
    alice = World().client("alice")
    assert alice.refusal(c.Login(request=50, name="bob", instance=bytes(16))) is Code.MALFORMED


def test_an_unknown_kind_is_answered() -> None:
    world = World()
    alice = world.client("alice")
    alice.receive(0, 9, cbor2.dumps({"kind": "teleport", "request": 8}))
    world.run()
    error = alice.last(c.Error)
    assert (error.code, error.request) == (Code.UNKNOWN_KIND, 8)
    assert "teleport" in error.text


def test_a_malformed_request_is_answered() -> None:
    world = World()
    alice = world.client("alice")
    alice.receive(0, 9, cbor2.dumps({"kind": "subscribe", "request": 8, "subscription": 1, "filters": []}))
    world.run()
    error = alice.last(c.Error)
    assert (error.code, error.request) == (Code.MALFORMED, 8)


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x80", cbor2.dumps({"request": 1})])
def test_what_is_no_message_ends_the_connection(body: bytes) -> None:
    world = World()
    alice = world.client("alice")
    alice.receive(0, 9, body)
    world.run()
    assert alice.end == Code.PROTOCOL


@pytest.mark.parametrize(
    "message",
    [
        c.Welcome(request=1, name="x", max_message_bytes=1),
        c.Subscribed(request=1, subscription=1),
        c.Done(request=1),
        c.Opened(channel=1),
        c.Labels(),
        c.DeliveryOpen(subscription=1),
        c.PublishOpen(topic="a"),
    ],
)
def test_what_only_a_broker_says_is_not_taken(message: c.ControlMessage) -> None:
    world = World()
    alice = world.client("alice")
    before = len(alice.said)
    alice.say(message)
    world.run()
    (error,) = alice.said[before:]
    assert isinstance(error, c.Error)
    assert error.code == Code.MALFORMED


def test_an_error_and_an_unasked_pong_are_never_answered() -> None:
    world = World()
    alice = world.client("alice")
    before = len(alice.said)
    alice.say(c.Error(code=1, text="?", request=1))
    alice.say(c.Pong(request=1))
    world.run()
    assert len(alice.said) == before


def test_a_flood_of_requests_ends_the_connection_and_no_other() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    ping = encode_control(c.Ping(request=1))
    for number in range(REQUESTS_PER_S * REQUEST_BURST_S + 10):
        alice.receive(0, number, ping)
    world.run()
    assert alice.end == Code.LIMIT
    assert bob.ask(c.Ping(request=1)) == c.Pong(request=1)


def test_a_steady_rate_of_requests_is_fine() -> None:
    world = World()
    alice = world.client("alice")
    for _ in range(30):
        world.pass_s(0.5)
        for number in range(REQUESTS_PER_S // 2 - 10):
            alice.say(c.Ping(request=number))
        world.run()
    assert alice.closed is None


def test_only_so_many_replies_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.native.peer.MAX_PENDING_REPLIES", 10)
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    world.hold()
    for client, count in ((alice, 10), (bob, 20)):
        for number in range(count):
            client.say(c.Create(request=70 + number, topic=f"{id(client)}/{number}"))
            world.run()
    assert alice.end is None
    assert bob.end is Code.LIMIT
    world.commit()
    assert len(alice.all(c.Done)) == 10
    for number in range(20):
        alice.expect(c.Create(request=170 + number, topic=f"more/{number}"), c.Done)


def test_a_flood_of_channels_ends_the_connection() -> None:
    """All that it may have can be opened at once, and more in time."""
    world = World()
    steady = world.client("steady")
    for first in (1, MAX_CHANNELS):
        for channel in range(first, first + MAX_CHANNELS - 1):
            steady.record(channel, b"", last=True)
        world.run()
        world.pass_s(MAX_CHANNELS / REQUESTS_PER_S)
    assert steady.closed is None
    mallory = world.client("mallory")
    for channel in range(1, MAX_CHANNELS + 2):
        mallory.record(channel, encode_control(c.PublishOpen(topic="t", qos=2, publisher=str(channel))))
    world.run()
    assert mallory.end == Code.LIMIT


# -- costly records ---------------------------------------------------------------------------------------------------


def many_values(count: int) -> bytes:
    return cbor2.dumps({"kind": "ping", "request": 1, "junk": [[]] * count})


def test_a_login_is_small() -> None:
    world = World()
    for body in (
        many_values(MAX_FIRST_ITEMS),
        cbor2.dumps({"kind": "ping", "request": 1, "junk": bytes(MAX_LOGIN_BYTES)}),
    ):
        peer = world.peer()
        peer.receive(0, 0, body)
        world.run()
        assert peer.end == Code.PROTOCOL
    will = c.Will(topic="t" * MAX_TOPIC_BYTES, payload=bytes(MAX_WILL_BYTES))
    assert world.client("n" * MAX_CLIENT_NAME_BYTES, will=will).closed is None


def test_a_record_of_very_many_values_ends_the_connection() -> None:
    world = World()
    alice = world.client("alice")
    alice.receive(0, 1, many_values(MAX_CONTROL_ITEMS // 2))
    world.run()
    assert alice.closed is None
    alice.receive(0, 2, many_values(MAX_CONTROL_ITEMS))
    world.run()
    assert alice.end == Code.PROTOCOL


def test_a_worker_with_all_leases_that_it_may_have_is_understood() -> None:
    leases = [(2**40 + number, 2**20, 2**20) for number in range(MAX_CAPACITY)]
    kinds = [f"{number}".zfill(MAX_KIND_BYTES) for number in range(MAX_KINDS)]
    alice = World().client("alice")
    request = j.Volunteer(request=50, kinds=kinds, capacity=MAX_CAPACITY, holding=leases)
    alice.expect(request, j.VolunteerReply)


@pytest.mark.parametrize("body", [many_values(9000), cbor2.dumps({"kind": "commit", "junk": bytes(10_000)})])
def test_long_records_count_as_many_requests_even_if_they_are_malformed(body: bytes) -> None:
    world = World()
    alice = world.client("alice")
    allowed = REQUESTS_PER_S * REQUEST_BURST_S * BYTES_PER_REQUEST // len(body)
    for number in range(allowed + 10):
        alice.receive(0, number, body)
    world.run()
    assert alice.end == Code.LIMIT
    assert len(alice.said) <= allowed + 2


@pytest.mark.parametrize("junk", [bytes(MAX_OPEN_RECORD_BYTES), [[]] * MAX_FIRST_ITEMS], ids=["long", "of many values"])
def test_the_record_that_opens_a_channel_is_small(junk: object) -> None:
    world = World()
    alice = world.client("alice")
    alice.record(1, cbor2.dumps({"kind": "open", "topic": "t", "junk": junk}))
    world.run()
    assert alice.end == Code.PROTOCOL
