"""Sessions and the names of clients."""

from __future__ import annotations

import random

import pytest
from tests.broker.world import World

from godwit.broker.access import Access
from godwit.broker.groups import group_session_name
from godwit.broker.session import Session, Sessions, check_name, network_of
from godwit.broker.settings import Settings
from godwit.errors import UsageError
from godwit.limits import MAX_CLIENT_NAME_BYTES


@pytest.mark.parametrize("name", ["a", "Sensor 1", "\u00fc", "a/b", "a$", "n" * MAX_CLIENT_NAME_BYTES])
def test_names_that_a_client_may_have(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "n" * (MAX_CLIENT_NAME_BYTES + 1), "a\x00", "a\x1f", "\x7f", "$sys", "\ud800"])
def test_names_that_it_may_not(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_a_client_is_told_by_its_network(host: str, network: str) -> None:
    assert network_of(host) == network


def test_event_lines_of_clients_that_proved_nothing_name_their_network() -> None:
    secret = b"a long secret"
    world = World(Settings(access=Access(secrets={"alice": secret}, rules=(), allows_anonymous=True)))
    world.client("alice", secret=secret).leave()
    world.client("bob").leave()
    hosts = {(notice.kind, notice.fields["client"]): notice.fields.get("host") for notice in world.notices}
    assert hosts == {
        ("connected", "alice"): None,
        ("disconnected", "alice"): None,
        ("connected", "bob"): "192.0.2.1",
        ("disconnected", "bob"): "192.0.2.1",
    }


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_sessions_are_listed_in_order_while_they_come_and_go() -> None:
    rng = random.Random(5)
    sessions = Sessions()
    for step in range(500):
        name = f"client-{rng.randrange(40)}"
        if name in sessions and rng.random() < 0.5:
            del sessions[name]
        else:
            sessions[name] = Session(name, 1, is_remembered=True)
        if step % 7 == 0:
            after = rng.choice([None, "client-2", "client-39", "a", "z"])
            expected = sorted(known for known in sessions if after is None or known > after)
            assert [session.name for session in sessions.after(after)] == expected


class CountedName(str):
    """A name that counts how often it is looked up or compared."""

    uses = 0

    def __hash__(self) -> int:
        CountedName.uses += 1
        return super().__hash__()

    def __lt__(self, other: str) -> bool:
        CountedName.uses += 1
        return super().__lt__(other)


def test_lists_of_clients_visit_no_group_and_lists_of_groups_no_client() -> None:
    sessions = Sessions()
    clients = ["$a", *(f"client-{number}" for number in range(9))]
    for name in clients:
        sessions[name] = Session(name, 1, is_remembered=True)
    groups = sorted(CountedName(group_session_name(f"group-{number}", ["a"])) for number in range(1000))
    for name in groups:
        sessions[name] = Session(name, 1, is_remembered=True)
    assert [session.name for session in sessions.after(None)] == clients
    assert [session.name for session in sessions.groups_after(None)] == groups
    CountedName.uses = 0
    assert [session.name for session in sessions.after("$a")] == clients[1:]
    assert [session.name for session in sessions.after("client-7")] == ["client-8"]
    assert [session.name for session in sessions.after(None)] == clients
    assert CountedName.uses < 100, "about the steps of a bisection"
    assert [session.name for session in sessions.groups_after(groups[-2])] == groups[-1:]
    assert list(sessions.groups_after("client-1")) == []
    assert [session.name for session in sessions.groups_after("$a")] == groups
    del sessions[groups[0]]
    assert [session.name for session in sessions.groups_after(None)] == groups[1:]
    assert [session.name for session in sessions.after(None)] == clients


def test_a_session_that_is_replaced_is_listed_once() -> None:
    sessions = Sessions()
    sessions["a"] = Session("a", 1, is_remembered=True)
    assert len(list(sessions.after(None))) == 1
    newer = sessions["a"] = Session("a", 2, is_remembered=True)
    assert list(sessions.after(None)) == [newer]
