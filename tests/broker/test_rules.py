"""New access rules, for those who are connected."""

from __future__ import annotations

from tests.broker.world import World

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.wire import control as c
from godwit.wire.control_base import Code

SECRETS = {"alice": b"alice's secret", "bob": b"bob's secret"}


def settings(*allowed: str, secrets: dict[str, bytes] = SECRETS, anonymous: bool = True) -> Settings:
    rules = (Rule(clients=("*",), allow=frozenset(("publish", "subscribe")), topics=allowed),) if allowed else ()
    return Settings(access=Access(secrets=secrets, rules=rules, allows_anonymous=anonymous))


def change(world: World, new: Settings) -> None:
    world.server.change_settings(new)
    world.run()


def test_who_keeps_its_rights_notices_nothing() -> None:
    world = World(settings("#"))
    alice = world.client("alice", secret=SECRETS["alice"])
    channel = alice.open("news")
    alice.subscribe("news")
    said = len(alice.said)
    change(world, settings("news"))
    alice.publish(channel, b"x")
    assert alice.payloads == [b"x"]
    assert alice.said[said:] == []


def test_channels_are_refused_and_subscriptions_end() -> None:
    world = World(settings("#"))
    alice = world.client("alice", secret=SECRETS["alice"])
    channel = alice.open("news")
    number = alice.subscribe("news", "weather").subscription
    change(world, settings("weather"))
    assert (alice.last(c.PublishRefused).channel, alice.last(c.PublishRefused).code) == (channel, Code.NOT_ALLOWED)
    assert alice.last(c.Kicked).subscription == number
    assert alice.closed is None


def test_who_proved_a_secret_that_holds_no_more_is_closed() -> None:
    world = World(settings("#"))
    alice, bob, carol = (world.client(name, secret=SECRETS.get(name, b"")) for name in ("alice", "bob", "carol"))
    change(world, settings("#", secrets={"alice": b"another", "bob": SECRETS["bob"]}, anonymous=False))
    assert (alice.end, bob.end, carol.end) == (Code.NOT_ALLOWED, None, Code.NOT_ALLOWED)
    assert world.told("closed") == [
        f"closed {name}: the broker's access rules have changed: connect again" for name in ("alice", "carol")
    ]


def test_a_name_that_is_listed_from_now_on_must_be_proved() -> None:
    world = World(settings("#"))
    carol = world.client("carol")
    change(world, settings("#", secrets={"carol": b"hers"}))
    assert carol.end == Code.NOT_ALLOWED


def test_who_has_not_logged_in_is_left_alone() -> None:
    world = World(settings("#"))
    stranger = world.peer()
    change(world, settings("#", anonymous=False))
    assert stranger.closed is None
