"""Consumer groups: each message goes to one member, and to another one if that member does not acknowledge it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import Peer, World

from godwit.broker.access import Access, Rule
from godwit.broker.group import HEAP_SLACK, OffsetSet
from godwit.broker.settings import Settings
from godwit.limits import GROUP_STORED_RANGES, RESTART_GRACE_S
from godwit.wire import control as c
from godwit.wire.changes import SubscriptionRow
from godwit.wire.control_base import Code

WEEK_S = 7 * 24 * 3600


def join(peer: Peer, *filters: str, group: str = "billing", **fields: Any) -> c.Subscribed:
    fields.setdefault("group_expiry_s", WEEK_S)
    reply = peer.subscribe(*(filters or ("orders/#",)), group=group, **fields)
    assert reply.group
    return reply


def members(world: World, count: int, *, confirms: bool = True) -> list[Peer]:
    peers = [world.client(f"member-{number}") for number in range(count)]
    for peer in peers:
        peer.confirms_itself = confirms
        join(peer)
    return peers


def groups(peer: Peer) -> list[c.GroupInfo]:
    return peer.expect(c.ListGroups(request=peer.number()), c.GroupList).groups


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def received(peers: list[Peer]) -> list[bytes]:
    return sorted([payload for peer in peers for payload in peer.payloads], key=int)


def test_each_message_goes_to_one_member() -> None:
    world = World()
    peers = members(world, 3)
    other = world.client("observer")
    other.subscribe("orders/#")
    sender = world.client("sender")
    channel = sender.open("orders/new")
    for payload in numbered(30):
        sender.publish(channel, payload)
    assert received(peers) == numbered(30)
    assert all(len(peer.payloads) == 10 for peer in peers)
    assert other.payloads == numbered(30)
    (info,) = groups(sender)
    assert (info.name, info.filters, info.member_count, info.lag, info.in_flight) == ("billing", ["orders/#"], 3, 0, 0)
    assert info.members == ["member-0", "member-1", "member-2"]
    assert info.position == 30


def test_groups_of_a_name_with_other_filters_are_other_groups() -> None:
    world = World()
    first, second, third = world.client("a"), world.client("b"), world.client("c")
    join(first, "orders/new")
    join(second, "orders/#")
    join(third, "orders/#", group="audit")
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), b"1")
    assert [peer.payloads for peer in (first, second, third)] == [[b"1"]] * 3
    assert [(one.name, one.filters) for one in groups(sender)] == [
        ("audit", ["orders/#"]),
        ("billing", ["orders/#"]),
        ("billing", ["orders/new"]),
    ]


def test_a_topic_stays_with_its_member_while_that_has_room() -> None:
    world = World()
    peers = members(world, 2, confirms=False)
    sender = world.client("sender")
    one, other = sender.open("orders/a"), sender.open("orders/b")
    for number in range(4):
        sender.publish(one, b"%d" % number)
        sender.publish(other, b"%d" % (100 + number))
    assert sorted(peer.payloads for peer in peers) == [[b"0", b"1", b"2", b"3"], [b"100", b"101", b"102", b"103"]]


def test_a_full_member_leaves_the_rest_to_others() -> None:
    world = World()
    first, second = world.client("first"), world.client("second")
    first.confirms_itself = second.confirms_itself = False
    join(first, max_in_flight=3)
    join(second, max_in_flight=5)
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), *numbered(20))
    assert (len(first.payloads), len(second.payloads)) == (3, 5)
    assert groups(sender)[0].in_flight == 8
    first.confirms_itself = second.confirms_itself = True
    world.run()
    assert received([first, second]) == numbered(20)
    assert groups(sender)[0].lag == 0


@pytest.mark.parametrize("end", ["die", "leave", "unsubscribe"])
def test_messages_of_a_member_that_is_gone_go_to_others(end: str) -> None:
    world = World()
    first, second = world.client("first"), world.client("second")
    number = join(first).subscription
    first.confirms_itself = False
    sender = world.client("sender")
    channel = sender.open("orders/new")
    sender.publish(channel, *numbered(10))
    assert len(first.payloads) == 10
    join(second)
    assert second.payloads == []
    if end == "unsubscribe":
        first.expect(c.Unsubscribe(request=90, subscription=number, keep=True), c.Done)
    else:
        getattr(first, end)()
    assert received([second]) == numbered(10)
    sender.publish(channel, b"10")
    assert received([second]) == numbered(11)


def test_a_member_that_leaves_acknowledges_what_it_has_processed() -> None:
    world = World()
    first, second = world.client("first"), world.client("second")
    number = join(first).subscription
    first.confirms_itself = False
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), *numbered(16))  # two records, because the first window is 16
    join(second)
    batches = [lane for lane in first.lanes.values() if lane.records > 1]
    assert len(batches) == 1
    assert len(first.payloads) == 16
    first.expect(c.Unsubscribe(request=90, subscription=number, keep=True, handled=5), c.Done)
    assert received([second]) == numbered(11, 5)


def test_a_slow_member_loses_its_messages_to_an_idle_one_and_may_return() -> None:
    world = World()
    slow, quick = world.client("slow"), world.client("quick")
    slow.confirms_itself = False
    join(slow)
    sender = world.client("sender")
    channel = sender.open("orders/new")
    sender.publish(channel, *numbered(4))
    world.pass_s(100)
    assert slow.payloads == numbered(4)  # it is alone: nothing changes
    join(quick)
    world.pass_s(1)
    assert quick.payloads == numbered(4)
    sender.publish(channel, *numbered(4, 4))
    assert slow.payloads == numbered(4)
    assert received([quick]) == numbered(8)
    slow.confirms_itself = True
    world.run()
    quick.die()
    sender.publish(channel, b"8")
    assert slow.payloads == [*numbered(4), b"8"]
    assert groups(sender)[0].lag == 0


def test_a_member_that_acknowledges_steadily_is_not_slow() -> None:
    world = World()
    steady, idle = world.client("steady"), world.client("idle")
    steady.confirms_itself = False
    join(steady, max_in_flight=1)
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), *numbered(4))
    for _ in range(4):
        world.pass_s(20)
        steady.confirm_all()
        world.run()
    assert steady.payloads == numbered(4)
    join(idle)
    world.pass_s(100)
    assert idle.payloads == []


def test_slow_members_get_fewer_messages_at_once() -> None:
    world = World()
    (peer,) = members(world, 1, confirms=False)
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), *numbered(1000))
    most = []
    for _ in range(8):
        before = len(peer.payloads)
        world.pass_s(5)
        peer.confirm_all()
        world.run()
        most.append(len(peer.payloads) - before)
    assert most[-1] == 2
    peer.confirms_itself = True
    world.run()
    assert received([peer]) == numbered(1000)


def test_messages_of_qos_0_go_to_one_member_each() -> None:
    world = World()
    peers = members(world, 2)
    sender = world.client("sender")
    channel = sender.open("orders/new", 0)
    for payload in numbered(10):
        sender.publish(channel, payload, qos=0, reliable=False)
    assert [len(peer.payloads) for peer in peers] == [5, 5]
    assert received(peers) == numbered(10)
    assert groups(sender)[0].position == 0


def test_retained_messages_are_not_sent_to_groups() -> None:
    world = World()
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), b"kept", retain=True)
    (peer,) = members(world, 1)
    assert peer.payloads == []


def test_a_new_group_begins_where_its_first_member_asks() -> None:
    world = World()
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), *numbered(5))
    first, second, third = world.client("a"), world.client("b"), world.client("c")
    join(first, start="earliest")
    assert first.payloads == numbered(5)
    join(second, start="earliest")
    assert second.payloads == []
    join(third, group="late", since_us=world.now_us - 10)
    assert third.payloads == numbered(5)


def test_a_filter_may_name_the_group() -> None:
    world = World()
    first, second = world.client("a"), world.client("b")
    assert first.subscribe("$share/billing/orders/#").group
    join(second)
    sender = world.client("sender")
    channel = sender.open("orders/new")
    sender.publish(channel, b"1")
    sender.publish(channel, b"2")
    assert received([first, second]) == [b"1", b"2"]
    assert first.refused_subscribe("$share/billing/a", "b") is Code.BAD_FILTER
    assert first.refused_subscribe("$share/billing/a", "$share/audit/a") is Code.BAD_FILTER
    assert first.refused_subscribe("$share//a") is Code.BAD_NAME
    assert first.refused_subscribe("a", group="with/slash") is Code.BAD_NAME
    assert first.refused_subscribe("a", group="x", cursor="y") is Code.MALFORMED
    found = first.expect(c.Clients(request=first.number()), c.ClientList).clients
    assert {one.name for one in found} == {"a", "b", "sender"}
    assert ["$share/billing/orders/#"] in found[0].subscriptions


def test_a_group_of_no_expiry_ends_with_its_last_member_and_others_remain() -> None:
    world = World()
    peer = world.client("a")
    number = join(peer, group_expiry_s=0).subscription
    join(peer, group="kept", group_expiry_s=60)
    peer.expect(c.Unsubscribe(request=90, subscription=number, keep=True), c.Done)
    assert [one.name for one in groups(peer)] == ["kept"]
    peer.leave()
    observer = world.client("observer")
    (info,) = groups(observer)
    assert info.member_count == 0
    assert info.expires_us == world.now_us + 60_000_000
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), b"1", b"2")
    assert groups(observer)[0].lag == 2
    world.pass_s(61)
    assert groups(observer) == []
    assert world.told("session_expired")


def test_limits_and_rights() -> None:
    rules = (
        Rule(clients=("*",), allow=frozenset(("publish",)), topics=("#",)),
        Rule(clients=("bill-*",), allow=frozenset(("subscribe",)), topics=("orders/#",), groups=("billing", "bill?")),
        Rule(clients=("root",), allow=frozenset(("subscribe", "kick")), topics=("#",)),
    )
    secrets = {"bill-1": b"1" * 16, "root": b"2" * 16}
    world = World(Settings(access=Access(secrets=secrets, rules=rules), max_groups=2))
    peer = world.client("bill-1", secret=b"1" * 16)
    assert peer.refused_subscribe("orders/#", group="audit") is Code.NOT_ALLOWED
    assert peer.refused_subscribe("#", group="billing") is Code.NOT_ALLOWED
    join(peer)
    join(peer, group="bill2")
    assert peer.refused_subscribe("orders/#", group="bill3") is Code.TOO_MANY
    root = world.client("root", secret=b"2" * 16)
    assert len(groups(peer)) == len(groups(root)) == 2
    anonymous = world.client()
    assert groups(anonymous) == []
    assert peer.refusal(c.DeleteGroup(request=91, group="billing")) is Code.NOT_ALLOWED
    root.expect(c.DeleteGroup(request=91, group="billing"), c.Done)
    assert peer.last(c.Kicked).by == "root"
    assert [one.name for one in groups(root)] == ["bill2"]
    assert root.refusal(c.DeleteGroup(request=92, group="billing")) is Code.NO_SUCH_CLIENT
    world.server.broker.change_settings(Settings(access=Access(secrets=secrets, rules=rules[::2])))
    world.run()
    assert peer.last(c.Kicked).by == "the broker"
    assert groups(root)[0].member_count == 0


def test_half_of_the_groups_are_for_clients_that_prove_a_name() -> None:
    rules = (Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("#",)),)
    world = World(Settings(access=Access(secrets={"known": b"1" * 16}, rules=rules), max_groups=4))
    anonymous, known = world.client(), world.client("known", secret=b"1" * 16)
    join(anonymous, group="a")
    join(anonymous, group="b")
    assert anonymous.refused_subscribe("x", group="c") is Code.TOO_MANY
    join(known, group="c")
    join(known, group="d")
    join(anonymous, group="d")
    assert known.refused_subscribe("x", group="e") is Code.TOO_MANY


def test_what_is_acknowledged_is_not_delivered_again_after_a_restart() -> None:
    world = DurableWorld()
    first, second = world.client("first"), world.client("second")
    first.confirms_itself = False
    join(first, max_in_flight=3)
    join(second)
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), *numbered(20))
    assert (first.payloads, len(second.payloads)) == (numbered(3), 17)
    world.pass_s(2)
    row = next(iter(world.keeping.of("feed").values()))
    assert (row.resume_at, row.high, row.unfinished) == (0, 20, (0, 3))
    world.restart()
    third = world.client("third")
    join(third)
    assert third.payloads == numbered(3)
    assert groups(third)[0].position == 20


def test_a_group_waits_for_its_members_after_a_restart_and_keeps_its_place() -> None:
    world = DurableWorld()
    (peer,) = members(world, 1)
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), *numbered(5))
    world.pass_s(5)
    world.restart()
    world.pass_s(RESTART_GRACE_S + 5)
    sender = world.client("sender")
    sender.publish(sender.open("orders/new"), b"5")
    world.restart()
    late = world.client("late")
    join(late)
    assert late.payloads == [b"5"]
    assert peer.payloads == numbered(5)
    assert not [text for text in world.told("disconnected") if "share" in text]


def test_stored_ranges_are_bounded() -> None:
    world = DurableWorld()
    first, second = world.client("first"), world.client("second")
    first.confirms_itself = False
    join(first, "a")
    join(second, "b")
    sender = world.client("sender")
    one, other = sender.open("a"), sender.open("b")
    group = next(one for one in world.server.broker.groups.after(None) if one.filters == ("a",))
    for member in group.members:
        member.window = 4096
    for number in range(GROUP_STORED_RANGES + 50):
        sender.publish(one, b"%d" % number)
        sender.publish(other, b"-")
    world.pass_s(2)
    rows = [row for row in world.keeping.of("feed").values() if row.filters == ("a",)]
    assert len(rows[0].unfinished) == 2 * GROUP_STORED_RANGES
    world.restart()
    third = world.client("third")
    join(third, "a")
    assert received([third]) == numbered(GROUP_STORED_RANGES + 50)


def test_messages_that_retention_deleted_are_counted_and_reported() -> None:
    world = DurableWorld()
    first, second = world.client("first"), world.client("second")
    first.confirms_itself = False
    join(first)
    sender = world.client("sender")
    channel = sender.open("orders/new")
    for payload in numbered(4):
        sender.publish(channel, payload)
    join(second)
    world.feed(world.keeping.thin("orders/new", 2))
    world.run()
    first.die()
    assert second.payloads == [b"2", b"3"]
    assert [gap.count for gap in second.gaps] == [2]
    assert groups(second)[0].missed == 2
    assert any("missed up to 2 messages" in text for text in world.told("warning"))
    second.leave()
    sender.publish(channel, *numbered(3, 4))
    world.feed(world.keeping.thin("orders/new", 7))
    world.run()
    third = world.client("third")
    join(third)
    sender.publish(channel, b"7")
    assert third.payloads == [b"7"]
    assert [gap.count for gap in third.gaps] == [3]


def test_a_message_that_is_never_acknowledged_costs_no_memory() -> None:
    world = World()
    stuck, quick = world.client("stuck"), world.client("quick")
    stuck.confirms_itself = False
    join(stuck, max_in_flight=1)
    sender = world.client("sender")
    channel = sender.open("orders/new")
    sender.publish(channel, b"0")
    join(quick)
    for number in range(1, 4000):
        sender.publish(channel, b"%d" % number)
    (group,) = world.server.broker.groups.after(None)
    assert groups(sender)[0].position == 0
    assert group.unfinished() == [(0, 1)]
    assert len(group._heap) <= HEAP_SLACK + 10
    assert not group._queue
    assert received([quick]) == numbered(3999, 1)


def test_a_group_with_1000_members() -> None:
    world = World(Settings(max_sessions=1001))
    peers = members(world, 1000)
    sender = world.client("sender")
    channel = sender.open("orders/new")
    for number in range(0, 5000, 50):
        sender.publish(channel, *numbered(50, number))
    assert received(peers) == numbered(5000)
    assert groups(sender)[0].member_count == 1000
    assert len(groups(sender)[0].members) == 100
    for peer in peers[:500]:
        peer.die()
    sender.publish(channel, *numbered(100, 5000))
    assert received(peers) == numbered(5100)


def test_a_row_of_an_older_version_has_no_ranges() -> None:
    row = SubscriptionRow("name", ("a",), None, 7)
    assert (row.high, row.unfinished) == (0, ())


@pytest.mark.parametrize("is_exact", [False, True], ids=["any", "exact"])
@pytest.mark.parametrize("seed", range(30))
def test_every_message_is_acknowledged_whatever_happens(seed: int, is_exact: bool) -> None:
    """Members join, stall, leave and die, and the broker is killed: nothing is lost.

    `is_exact`: no member is slow, and the broker dies when its last position is stored: then nothing is repeated.
    """
    randomness = random.Random(seed)
    world = DurableWorld(Settings(group_ack_s=10_000 if is_exact else 5))
    acknowledged: Counter[bytes] = Counter()
    peers: list[Peer] = []
    seen: dict[Peer, int] = {}
    sent = 0

    def note(peer: Peer) -> None:
        """The member acknowledges everything that it has."""
        if peer.confirm_all() or len(peer.got) > seen.get(peer, 0):
            acknowledged.update(peer.payloads[seen.get(peer, 0) :])
            seen[peer] = len(peer.got)
            world.run()

    def add() -> None:
        peer = world.client(f"member-{len(world.peers)}")
        peer.confirms_itself = False
        join(peer, start="earliest", max_in_flight=randomness.choice((None, 1, 7, 100)))
        peers.append(peer)

    def sender() -> tuple[Peer, list[int]]:
        peer = world.client(f"sender-{len(world.peers)}")
        return peer, [peer.open(f"orders/{number}") for number in range(3)]

    add()
    source, channels = sender()
    for _ in range(150):
        step = randomness.random()
        if step < 0.35:
            count = randomness.choice((1, 1, 5, 60))
            source.publish(randomness.choice(channels), *numbered(count, sent))
            sent += count
        elif step < 0.75 and peers:
            note(randomness.choice(peers))
        elif step < 0.82:
            add()
        elif step < 0.88 and len(peers) > 1:
            peer = peers.pop(randomness.randrange(len(peers)))
            randomness.choice((peer.die, peer.leave))()
        elif step < 0.98:
            world.pass_s(randomness.choice((0.1, 1.5, 7)))
        else:
            if is_exact:
                world.pass_s(1.5)
            world.restart()
            peers.clear()
            source, channels = sender()
            add()
    rounds = 0
    while len(acknowledged) < sent or groups(source)[0].lag:
        for peer in peers:
            note(peer)
        world.pass_s(0.1)
        rounds += 1
        assert rounds < 5000, f"seed {seed}: the group does not acknowledge all: {groups(source)}"
    assert set(acknowledged) == set(numbered(sent)), f"seed {seed}"
    assert not is_exact or set(acknowledged.values()) == {1}, f"seed {seed}"
    info = groups(source)[0]
    assert (info.position, info.lag, info.in_flight, info.missed) == (sent, 0, 0, 0), f"seed {seed}"


def test_ranges() -> None:
    randomness = random.Random(4)
    for _ in range(200):
        expected: set[int] = set()
        ranges = OffsetSet()
        for _ in range(20):
            first = randomness.randrange(50)
            end = first + randomness.randrange(12)
            if randomness.random() < 0.6:
                ranges.update([(first, end)])
                expected.update(range(first, end))
            else:
                taken = {offset for low, high in ranges.take(first, end) for offset in range(low, high)}
                assert taken == expected & set(range(first, end))
                expected -= taken
            assert {offset for low, high in ranges.ranges for offset in range(low, high)} == expected
            assert len(ranges) == len(expected)
            assert bool(ranges) == bool(expected)
            assert not expected or ranges.first == min(expected)
