"""Members of consumer groups, in the client: offsets in any order, reconnects, leaving, and brokers without groups."""

from __future__ import annotations

import pytest
from tests.client.subscription_bench import FEED, SubscriptionBench, batch, payloads, take_all

from godwit.client.events import Missed, SubscriptionEnded, SubscriptionStarted
from godwit.client.subscription import Membership, Subscription, make_membership, with_membership
from godwit.errors import UsageError
from godwit.wire.control import Gap, Subscribe, Subscribed, Unsubscribe, encode_in_band
from godwit.wire.control_base import Code


def ask(bench: SubscriptionBench) -> tuple[Subscription, Subscribe]:
    subscription = bench.subscriptions.subscribe(
        ("a/#",), start="earliest", since_us=None, cursor=None, membership=Membership("billing", max_in_flight=7)
    )
    (message,) = bench.asked()
    return subscription, message


def joined() -> tuple[SubscriptionBench, Subscription]:
    bench = SubscriptionBench()
    bench.attach()
    subscription, message = ask(bench)
    bench.open()
    reply = Subscribed(request=message.request, subscription=0, next_offset=5, group=True)
    assert bench.subscriptions.handle_subscribed(reply)
    assert bench.events[0] == SubscriptionStarted(subscription, 5)
    assert subscription.take() is None  # the labels
    bench.events.clear()
    return bench, subscription


def test_the_request_names_the_group() -> None:
    bench = SubscriptionBench()
    bench.attach()
    _, message = ask(bench)
    assert (message.group, message.max_in_flight, message.start) == ("billing", 7, "earliest")
    assert message.group_expiry_s > 0


def test_messages_come_in_any_order_and_again() -> None:
    bench, subscription = joined()
    bench.receive(FEED, batch([b"9"], 9) + batch([b"2", b"3"], 2))
    bench.receive(FEED, batch([b"9"], 9))
    assert payloads(take_all(subscription)) == [b"9", b"2", b"3", b"9"]


def test_a_broker_of_an_older_version_does_not_deliver_everything_to_everyone() -> None:
    bench = SubscriptionBench()
    bench.attach()
    subscription, message = ask(bench)
    bench.subscriptions.handle_subscribed(Subscribed(request=message.request, subscription=0, next_offset=5))
    (ended,) = bench.events
    assert isinstance(ended, SubscriptionEnded)
    assert (ended.subscription, ended.code) == (subscription, Code.UNKNOWN_KIND)
    assert [type(one) for one in bench.sent()] == [Unsubscribe]


def test_after_a_reconnect_it_joins_again_and_drops_messages_that_others_get() -> None:
    bench, subscription = joined()
    bench.receive(FEED, batch([b"1"], 1))
    bench.receive(FEED, batch([b"2"], 2))
    assert payloads(subscription.take()) == [b"1"]
    bench.detach()
    bench.attach()
    (message,) = bench.asked()
    assert (message.group, message.start) == ("billing", "earliest")
    bench.open()
    bench.subscriptions.handle_subscribed(Subscribed(request=message.request, subscription=0, group=True))
    assert subscription.take() is None
    assert {record for _, record in bench.connection.confirmed} == {0, 1}  # the ones before the first message
    bench.receive(FEED, batch([b"1"], 1))
    assert payloads(take_all(subscription)) == [b"1"]
    assert not [event for event in bench.events if isinstance(event, Missed)]


def test_leaving_names_what_is_processed_and_confirms_nothing_else() -> None:
    bench, subscription = joined()
    first = bench.receive(FEED, batch([b"1", b"2"], 1))
    bench.receive(FEED, batch([b"3", b"4", b"5"], 3))
    bench.receive(FEED, batch([b"6"], 6))
    subscription.take()
    subscription.take()
    before = list(bench.connection.confirmed)
    bench.sent()
    bench.subscriptions.unsubscribe(subscription, keep=False, handled=2)
    (message,) = bench.sent()
    assert isinstance(message, Unsubscribe)
    assert (message.record, message.handled, message.offset) == (first, 2, None)
    assert bench.connection.confirmed == before


def test_a_gap_is_counted() -> None:
    bench, subscription = joined()
    bench.receive(FEED, encode_in_band(Gap(count=4, next_offset=20)))
    assert subscription.take() is None
    assert subscription.missed == 4


@pytest.mark.parametrize(
    ("filters", "membership"),
    [
        (["$share/a/x", "y"], None),
        (["$share/a/x", "$share/b/x"], None),
        (["$share/a/x"], Membership("b")),
        (["x"], Membership("with/slash")),
        (["x"], Membership("")),
    ],
)
def test_filters_and_groups_that_do_not_fit(filters: list[str], membership: Membership | None) -> None:
    with pytest.raises(UsageError):
        with_membership(filters, membership)


def test_a_filter_may_name_the_group() -> None:
    assert with_membership(["$share/a/x/#"], None) == (["x/#"], Membership("a"))
    assert with_membership(["x"], None) == (["x"], None)
    assert make_membership(None, None, None) is None
    with pytest.raises(UsageError, match="max_in_flight is 0"):
        make_membership("a", None, 0)
