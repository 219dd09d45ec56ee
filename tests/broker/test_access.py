"""Access rules, what a change of them ends, and the rights of archive tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.world import World
from tests.wire.filter_strategies import filters, filters_with_topics

from godwit.broker.access import ACTIONS, Access, Action, Rule, TokenRights, is_like, secret_in
from godwit.broker.settings import Settings
from godwit.errors import ConfigurationError
from godwit.limits import MAX_CLIENT_NAME_BYTES, MAX_SECRET_BYTES
from godwit.wire import control as c
from godwit.wire.control_base import Code
from godwit.wire.filters import matches

SECRET = b"0123456789abcdef"
NAMES = ["sensor-1", "sensor-2", "operator", "a/b", "+", "$sys", "x*"]


def rule(clients: str, allow: str, *topics: str) -> Rule:
    actions: Any = allow.split()
    return Rule(clients=tuple(clients.split()), allow=frozenset(actions), topics=topics)


def denial(clients: str, deny: str, *topics: str, groups: tuple[str, ...] = ("*",)) -> Rule:
    actions: Any = deny.split()
    return Rule(clients=tuple(clients.split()), deny=frozenset(actions), topics=topics, groups=groups)


def access(*rules: Rule, **changes: Any) -> Access:
    return Access(secrets=dict.fromkeys(NAMES, SECRET), rules=rules, **changes)


@pytest.mark.parametrize("action", ACTIONS)
def test_an_open_broker_allows_everything(action: Action) -> None:
    found = Access.open()
    assert found.is_open
    assert found.allows_anonymous
    assert found.secret_of("stranger") is None
    assert found.may(None, False, action, "$sys/#")
    assert found.may("stranger", False, action, "a")


@pytest.mark.parametrize("action", ACTIONS)
def test_without_rules_nothing_is_allowed(action: Action) -> None:
    found = access()
    assert not found.may("sensor-1", True, action, "a")
    assert not found.may(None, False, action, "a")
    assert not Access().may(None, False, action, "a")
    assert Access().allows_anonymous


def test_secrets_are_known_and_not_shown() -> None:
    found = access()
    assert found.secret_of("sensor-1") == SECRET
    assert found.secret_of("sensor-9") is None
    assert "0123456789abcdef" not in repr(found)


def test_a_rule_is_for_its_clients_actions_and_topics() -> None:
    found = access(rule("sensor-*", "publish create", "home/#", "garage/door"))
    assert found.may("sensor-1", True, "publish", "home/room1/temperature")
    assert found.may("sensor-2", True, "create", "home")
    assert found.may("sensor-1", True, "publish", "garage/door")
    assert not found.may("sensor-1", True, "subscribe", "home/room1")
    assert not found.may("sensor-1", True, "publish", "garage/window")
    assert not found.may("operator", True, "publish", "home/room1")
    assert not found.may("sensor-1", True, "kick")


def test_a_listed_name_that_is_not_proved_may_nothing() -> None:
    found = access(rule("*", "publish subscribe create kick", "#"))
    assert not any(found.may("sensor-1", False, action, "a") for action in ACTIONS)


@pytest.mark.parametrize("name", [None, "sensor-9", "", "*", "guest"])
@pytest.mark.parametrize("proved", [False, True])
def test_everybody_else_is_anonymous_whatever_the_name(name: str | None, proved: bool) -> None:
    found = access(
        rule("sensor-* guest ? ** ?*", "publish kick", "#"),
        rule("operator *", "subscribe", "public/#"),
        rule("*", "publish", "home/{client}"),
    )
    assert found.may(name, proved, "subscribe", "public/a")
    assert not found.may(name, proved, "publish", "public/a")
    assert not found.may(name, proved, "publish", f"home/{name}")
    assert not found.may(name, proved, "kick")


def test_to_kick_no_topic_is_needed() -> None:
    found = access(rule("operator", "kick"), rule("sensor-1", "kick", "home/#"))
    assert found.may("operator", True, "kick")
    assert found.may("operator", True, "kick", "any/filter/#")
    assert found.may("sensor-1", True, "kick", "elsewhere")


def test_a_subscription_must_be_covered_as_a_whole() -> None:
    found = access(rule("*", "subscribe", "home/+/temperature", "plant/#"))
    assert found.may(None, False, "subscribe", "home/+/temperature")
    assert found.may(None, False, "subscribe", "home/room1/temperature")
    assert found.may(None, False, "subscribe", "plant/*/speed")
    for filter in ("#", "home/#", "home/+/+", "home/*/temperature", "+/room1/temperature", "*"):
        assert not found.may(None, False, "subscribe", filter), filter


def test_the_brokers_own_topics_must_be_named() -> None:
    found = access(rule("sensor-1", "subscribe", "#"), rule("operator", "subscribe", "#", "$sys/#"))
    assert found.may("sensor-1", True, "subscribe", "#")
    assert not found.may("sensor-1", True, "subscribe", "$sys/clients")
    assert found.may("operator", True, "subscribe", "$sys/+")
    assert not found.may("operator", True, "subscribe", "$jobs/#")


def test_to_submit_and_to_work_are_rights_on_kinds() -> None:
    """A kind is matched as a topic is; one right gives no other."""
    found = access(rule("operator", "submit", "#"), rule("sensor-*", "work", "images/#", "own/{client}"))
    assert found.may("operator", True, "submit", "images/resize")
    assert not found.may("operator", True, "work", "images/resize")
    assert not found.may("operator", True, "publish", "images/resize")
    assert found.may("sensor-1", True, "work", "images/resize")
    assert found.may("sensor-1", True, "work", "own/sensor-1")
    assert not found.may("sensor-1", True, "work", "own/sensor-2")
    assert not found.may("sensor-1", True, "submit", "images/resize")
    assert not found.may("sensor-1", True, "work", "sounds/resize")
    assert not found.may(None, False, "work", "images/resize")


def test_the_clients_name_is_one_level() -> None:
    found = access(rule("*", "publish subscribe", "home/{client}/#", "{client}", "{client}/in"))
    assert found.may("sensor-1", True, "publish", "home/sensor-1/temperature")
    assert found.may("sensor-1", True, "subscribe", "home/sensor-1/+")
    assert found.may("sensor-1", True, "publish", "sensor-1")
    assert not found.may("sensor-1", True, "publish", "home/sensor-2/temperature")
    assert not found.may("sensor-1", True, "subscribe", "home/+/temperature")
    assert not found.may("sensor-1", True, "publish", "home/{client}/temperature")


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("a/b", "home/a/b/c"),
        ("+", "home/x/c"),
        ("+", "home/+/c"),
        ("x*", "home/x*"),
        ("$sys", "$sys"),
        ("$sys", "$sys/in"),
    ],
)
def test_a_name_that_would_change_the_filter_gets_nothing_by_it(name: str, topic: str) -> None:
    found = access(rule("*", "publish subscribe", "home/{client}/#", "{client}", "{client}/in"))
    assert not found.may(name, True, "publish", topic)
    assert not found.may(name, True, "subscribe", topic)


@given(st.sampled_from(NAMES), filters, filters_with_topics())
def test_whoever_may_subscribe_gets_only_what_the_rule_names(name: str, allowed: str, asked: tuple[str, str]) -> None:
    found = access(rule("*", "subscribe publish", allowed))
    filter, topic = asked
    if found.may(name, True, "subscribe", filter):
        assert matches(allowed, topic)
    assert found.may(name, True, "publish", topic) == matches(allowed, topic)


# -- rules that deny --------------------------------------------------------------------------------------------------


def test_deny_wins_whatever_the_order() -> None:
    allowing, denying = rule("sensor-*", "publish subscribe", "home/#"), denial("sensor-1", "publish", "home/*/set")
    for rules in ((allowing, denying), (denying, allowing)):
        found = access(*rules)
        number = rules.index(denying) + 1
        assert found.problem("sensor-1", True, "publish", "home/lamp/set") == f"access.rule number {number} denies it"
        assert found.may("sensor-1", True, "publish", "home/lamp")
        assert found.may("sensor-1", True, "subscribe", "home/lamp/set"), "another action"
        assert found.may("sensor-2", True, "publish", "home/lamp/set"), "another client"
        assert found.problem("operator", True, "publish", "home/lamp") == "no access.rule allows it"
        assert found.problem("sensor-1", False, "publish", "home/lamp") == "its name is not proved"


def test_a_filter_with_any_denied_topic_is_refused() -> None:
    found = access(rule("*", "subscribe", "#"), denial("*", "subscribe", "plant/+/secret"))
    for filter in ("#", "plant/#", "+/a/secret", "*", "plant/a/secret", "plant/+/+"):
        assert found.problem("sensor-1", True, "subscribe", filter) == "access.rule number 2 denies it", filter
        assert not found.may(None, False, "subscribe", filter), filter
    for filter in ("home/#", "plant/a/open", "plant/+"):
        assert found.may(None, False, "subscribe", filter), filter


def test_to_kick_can_be_denied_without_topics() -> None:
    found = access(rule("*", "kick"), denial("operator", "kick"))
    assert not found.may("operator", True, "kick")
    assert found.may("sensor-1", True, "kick")


def test_denied_groups() -> None:
    found = access(rule("*", "subscribe", "#"), denial("*", "subscribe", "a/#", groups=("billing-*",)))
    assert found.join_problem("operator", True, "billing-1", "a/b") == "access.rule number 2 denies it"
    assert found.may_join("operator", True, "reports", "a/b")
    assert found.may("operator", True, "subscribe", "a/b"), "only the groups are denied"


@pytest.mark.parametrize("name", [None, "guest", "a/b", "+", "x*"])
def test_a_name_that_does_not_fit_a_level_does_not_undo_a_rule(name: str | None) -> None:
    found = access(rule("*", "publish", "#"), denial("*", "publish", "home/{client}/set"))
    assert not found.may(name, True, "publish", "home/any/set")
    assert not found.may("sensor-1", True, "publish", "home/sensor-1/set")
    assert found.may("sensor-1", True, "publish", "home/sensor-2/set")


@given(st.sampled_from([*NAMES, None]), filters, filters, filters_with_topics())
def test_denied_topics_are_never_reached(name: str | None, allowed: str, denied: str, asked: tuple[str, str]) -> None:
    found = access(rule("*", "subscribe publish", allowed), denial("*", "subscribe publish", denied))
    filter, topic = asked
    if found.may(name, True, "subscribe", filter):
        assert not matches(denied, topic)
    assert found.may(name, True, "publish", topic) == (matches(allowed, topic) and not matches(denied, topic))


def test_the_rights_of_anonymous_clients() -> None:
    found = access(
        rule("*", "publish", "a", "b", "{client}/x"),
        rule("*", "publish kick", "a", "c"),
        rule("*", "subscribe", "{client}/#"),
        rule("sensor-*", "create", "#"),
        denial("*", "publish", "b"),
    )
    assert found.rights_of_anonymous() == [("publish", ("a", "b", "c")), ("kick", ())]


def test_refusals_name_the_rule_in_the_event_line() -> None:
    world = World(Settings(access=access(rule("*", "publish", "#"), denial("operator", "publish", "b"))))
    operator = world.client("operator", secret=SECRET)
    assert operator.refused_open("b") == Code.NOT_ALLOWED
    assert operator.refused_subscribe("a") == Code.NOT_ALLOWED
    assert world.told("refused") == [
        "refused: operator may not publish to 'b' (access.rule number 2 denies it)",
        "refused: operator may not subscribe to 'a' (no access.rule allows it)",
    ]


@pytest.mark.parametrize(
    ("glob", "name", "expected"),
    [
        ("*", "", True),
        ("sensor-*", "sensor-1", True),
        ("sensor-*", "Sensor-1", False),
        ("sensor-?", "sensor-12", False),
        ("a[12]", "a1", False),
        ("a[12]", "a[12]", True),
        ("a.b", "axb", False),
        ("x*", "x\ny", True),
    ],
)
def test_globs(glob: str, name: str, expected: bool) -> None:
    assert is_like(name, glob) is expected


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"clients": ()}, "a rule names no client"),
        ({"clients": ("a", "")}, "a rule names no client"),
        (
            {"allow": frozenset(("read",))},
            "a rule allows 'read': choose from publish, subscribe, create, submit, work, kick",
        ),
        ({"topics": ()}, "a rule allows publish on no topic: give filters"),
        ({"allow": frozenset()}, "a rule has one of allow and deny"),
        ({"deny": frozenset(("publish",))}, "a rule has one of allow and deny"),
        ({"allow": frozenset(), "deny": frozenset(("read",))}, "a rule denies 'read': choose from"),
        ({"allow": frozenset(), "deny": frozenset(("work",)), "topics": ()}, "a rule denies work on no topic"),
        ({"topics": ("a/#/b",)}, "in a rule: filter 'a/#/b' has '#' before its end"),
        ({"topics": ("a/x{client}",)}, "has {client} inside the level 'x{client}': it stands alone"),
    ],
)
def test_a_bad_rule_is_told_what_is_wrong(changes: dict[str, Any], complaint: str) -> None:
    fields: dict[str, Any] = {"clients": ("*",), "allow": frozenset(("publish",)), "topics": ("a",)}
    with pytest.raises(ConfigurationError) as raised:
        Rule(**fields | changes)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("name", "secret", "complaint"),
    [
        ("", SECRET, "the client name '' is 0 bytes long"),
        ("x" * (MAX_CLIENT_NAME_BYTES + 1), SECRET, f"is {MAX_CLIENT_NAME_BYTES + 1} bytes long"),
        ("me", b"", "the secret of client 'me' is 0 bytes long"),
        ("me", b"hidden" * MAX_SECRET_BYTES, f"the secret of client 'me' is {6 * MAX_SECRET_BYTES} bytes long"),
    ],
)
def test_a_bad_name_or_secret_is_told_what_is_wrong(name: str, secret: bytes, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Access(secrets={name: secret})
    assert complaint in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_later_changes_of_the_secrets_given_change_nothing() -> None:
    secrets = {"me": SECRET}
    found = Access(secrets=secrets)
    secrets.clear()
    assert found.secret_of("me") == SECRET


@pytest.mark.parametrize(("data", "secret"), [(b"abc\n", b"abc"), (b"abc\r\n", b"abc"), (b" a\nb ", b" a\nb ")])
def test_a_secret_in_a_file_ends_before_its_line_end(data: bytes, secret: bytes) -> None:
    assert secret_in(data) == secret


# -- rules ------------------------------------------------------------------------------------------------------------


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


# -- token rights -----------------------------------------------------------------------------------------------------


def test_without_rights_everything_but_names_with_a_secret() -> None:
    rights = TokenRights()
    assert not rights.read_problem([])
    assert not rights.read_problem(["$jobs/#"])
    assert not rights.publish_problem("any/topic")
    assert not rights.name_problem("spark", has_secret=False)
    assert not rights.staging_problem()
    assert "'pump', which has a secret: choose another name, or ask" in rights.name_problem("pump", has_secret=True)


def test_listed_names_may_have_a_secret_and_others_are_refused() -> None:
    rights = TokenRights(names=("pump-?", "spark"))
    assert not rights.name_problem("pump-1", has_secret=True)
    assert not rights.name_problem("spark", has_secret=False)
    for has_secret in (True, False):
        assert "it may publish under 'pump-?', 'spark'" in rights.name_problem("pump-12", has_secret=has_secret)


def test_topics_to_publish_to() -> None:
    rights = TokenRights(publish=("alerts/#", "home/+/state"))
    assert not rights.publish_problem("alerts/a/b")
    assert not rights.publish_problem("home/kitchen/state")
    assert "may not publish to 'home/kitchen'" in rights.publish_problem("home/kitchen")
    assert "it may publish to nothing" in TokenRights(publish=()).publish_problem("a")


def test_filters_to_read() -> None:
    rights = TokenRights(read=("home/#", "#"))
    assert not rights.read_problem(["home/+", "garage"])
    assert "it may read 'home/#', '#'" in rights.read_problem(["home/+", "$jobs/#"])
    assert "may not read all topics" in rights.read_problem([])
    assert "may read nothing" in TokenRights(read=()).read_problem(["a"])


@pytest.mark.parametrize("rights", [TokenRights(publish=()), TokenRights(names=())])
def test_tokens_that_only_read(rights: TokenRights) -> None:
    assert rights.staging_problem() == "the token may only read"


@pytest.mark.parametrize(
    ("rights", "complaint"),
    [
        (TokenRights(read=("a/#/b",)), "'#' before its end"),
        (TokenRights(publish=("",)), "is empty"),
        (TokenRights(names=("x" * 2000,)), "must have 1 to"),
        (TokenRights(names=("x",) * 65), "names has 65 entries: at most 64"),
    ],
)
def test_what_cannot_be_meant(rights: TokenRights, complaint: str) -> None:
    TokenRights(read=("a/#",), publish=("+",), names=("*",)).check()
    with pytest.raises(ConfigurationError, match=complaint):
        rights.check()
