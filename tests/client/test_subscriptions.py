"""All subscriptions together: requests on each connection, and the channels of records."""

from __future__ import annotations

import pytest
from tests.client.subscription_bench import FEED, LIVE, SubscriptionBench, batch, payloads, take_all

from godwit.client.events import Available, SubscriptionEnded, SubscriptionStarted
from godwit.client.subscription import Start, Subscription
from godwit.errors import DecodeError
from godwit.wire.control import (
    DeliveryOpen,
    Kicked,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Work,
    encode_control,
)
from godwit.wire.control_base import Code


def attached() -> SubscriptionBench:
    bench = SubscriptionBench()
    bench.attach()
    return bench


def subscribe(bench: SubscriptionBench, *filters: str, start: Start = None, cursor: str | None = None) -> Subscription:
    return bench.subscriptions.subscribe(filters, start=start, since_us=None, cursor=cursor)


def test_asks_at_once_or_when_there_is_a_broker() -> None:
    bench = SubscriptionBench()
    early = bench.subscriptions.subscribe(("a",), start=None, since_us=77, cursor="c")
    assert not bench.requests.unsent
    bench.attach()
    (ask,) = bench.asked()
    assert (ask.filters, ask.start, ask.since_us, ask.cursor) == (["a"], None, 77, "c")
    late = subscribe(bench, "b", start="earliest")
    (other,) = bench.asked()
    assert other.start == "earliest"
    assert (other.subscription, late.number) == (1, 1)
    assert (ask.subscription, early.number) == (0, 0)


def test_a_question_that_was_not_answered_is_asked_again_as_it_was() -> None:
    bench = attached()
    bench.subscriptions.subscribe(("a",), start=None, since_us=77, cursor=None)
    first = bench.asked()
    bench.detach()
    bench.attach()
    (again,) = bench.asked()
    assert (again.since_us, again.start) == (77, None)
    assert first[0].subscription == again.subscription
    bench.agree(again, 500)
    bench.detach()
    bench.attach()
    (ask,) = bench.asked()
    assert (ask.since_us, ask.start) == (None, 500)


@pytest.mark.parametrize(("start", "is_owed"), [(None, True), ("latest", True), ("earliest", False), (7, False)])
def test_a_repeated_request_asks_for_the_retained_messages(start: Start, is_owed: bool) -> None:
    """The broker may have stored the subscription and crashed before its reply: it then resumes it as a known one."""
    bench = attached()
    subscribe(bench, "a", start=start)
    (first,) = bench.asked()
    bench.detach()
    bench.attach()
    (again,) = bench.asked()
    assert (first.start, again.start) == (start, start)
    assert (first.retained, again.retained) == (False, is_owed)


def test_the_same_filters_are_the_same_subscription() -> None:
    bench = attached()
    one = subscribe(bench, "a", "b")
    assert subscribe(bench, "a", "b") is one
    assert subscribe(bench, "a", "b", cursor="x") is not one
    assert subscribe(bench, "a") is not one
    assert len(bench.asked()) == 3


def test_the_start_is_reported_once() -> None:
    bench = attached()
    subscription = bench.started(next_offset=12)
    assert bench.events == [SubscriptionStarted(subscription, 12), Available(subscription)]
    assert (subscription.state, subscription.position) == ("active", 12)
    bench.detach()
    bench.attach()
    bench.agree(bench.asked()[0], 12)
    assert len([event for event in bench.events if isinstance(event, SubscriptionStarted)]) == 1


def test_data_may_come_before_the_reply() -> None:
    bench = attached()
    subscription = subscribe(bench, "a")
    (ask,) = bench.asked()
    bench.open()
    bench.receive(FEED, batch([b"x"], 3))
    assert bench.events == []
    assert subscription.take() is None
    bench.subscriptions.handle_subscribed(Subscribed(request=ask.request, subscription=0, next_offset=3))
    assert bench.events == [SubscriptionStarted(subscription, 3), Available(subscription)]
    assert payloads(take_all(subscription)) == [b"x"]


def test_a_refused_subscription_ends() -> None:
    bench = attached()
    subscription = subscribe(bench, "a")
    (ask,) = bench.asked()
    assert not bench.subscriptions.handle_error(ask.request + 1, Code.NOT_ALLOWED, "no")
    assert bench.subscriptions.handle_error(ask.request, Code.NOT_ALLOWED, "no")
    assert bench.events == [SubscriptionEnded(subscription, Code.NOT_ALLOWED, "no")]
    assert subscription.state == "ended"
    assert subscribe(bench, "a") is not subscription
    bench.detach()
    bench.attach()
    assert len(bench.asked()) == 1


def test_a_kicked_subscription_ends_with_the_reason() -> None:
    bench = attached()
    subscription = bench.started()
    bench.events.clear()
    bench.subscriptions.handle_kicked(Kicked(subscription=99, by="x"))
    bench.subscriptions.handle_kicked(Kicked(subscription=0, by="admin", reason="maintenance"))
    assert bench.events == [SubscriptionEnded(subscription, Code.KICKED, "admin removed the subscription: maintenance")]


def test_a_broker_that_joins_two_subscriptions_ends_the_second() -> None:
    bench = attached()
    bench.started()
    other = subscribe(bench, "b")
    (ask,) = bench.asked()
    bench.subscriptions.handle_subscribed(Subscribed(request=ask.request, subscription=0))
    assert other.state == "ended"


def test_an_answer_to_nothing_is_not_ours() -> None:
    bench = attached()
    assert not bench.subscriptions.handle_subscribed(Subscribed(request=55, subscription=0))
    assert not bench.subscriptions.handle_answer(55)


def test_an_answer_to_an_ended_subscription_changes_nothing() -> None:
    bench = attached()
    for reply in ("subscribed", "error"):
        subscription = subscribe(bench, "a")
        (ask,) = bench.asked()
        bench.subscriptions.unsubscribe(subscription, keep=False)
        if reply == "error":
            assert bench.subscriptions.handle_error(ask.request, Code.NOT_ALLOWED, "no")
        else:
            assert bench.subscriptions.handle_subscribed(Subscribed(request=ask.request, subscription=ask.subscription))
        assert subscription.state == "ended"
    assert bench.events == []


# -- leaving ----------------------------------------------------------------------------------------------------------


def test_leaving_is_asked_until_it_is_answered() -> None:
    bench = attached()
    subscription = bench.started()
    request = bench.subscriptions.unsubscribe(subscription, keep=False)
    assert bench.sent() == [Unsubscribe(request=request, subscription=0)]
    bench.detach()
    bench.attach()
    # The broker's session may know it: to be ended it needs a number on this connection.
    ask, leave = bench.sent()
    assert isinstance(ask, Subscribe)
    assert (ask.subscription, ask.filters) == (0, ["a/#"])
    assert leave == Unsubscribe(request=request, subscription=0)
    assert not bench.subscriptions.handle_subscribed(Subscribed(request=ask.request, subscription=0))
    assert bench.subscriptions.handle_answer(request)
    assert bench.requests.handle_answer(request)
    bench.detach()
    bench.attach()
    assert bench.sent() == []


def test_leaving_and_coming_back_while_there_is_no_broker() -> None:
    bench = attached()
    subscription = bench.started()
    bench.detach()
    bench.subscriptions.unsubscribe(subscription, keep=False)
    again = subscribe(bench, "a/#")
    assert again is not subscription
    bench.attach()
    ask, leave = bench.sent()
    assert isinstance(ask, Subscribe)
    assert isinstance(leave, Unsubscribe)
    assert (ask.subscription, leave.subscription) == (again.number, subscription.number)


def test_records_without_a_subscription_are_consumed() -> None:
    bench = attached()
    bench.receive(7, encode_control(DeliveryOpen(subscription=42)))
    bench.receive(7, batch([b"x"], 0))
    bench.receive(8, b"anything", reliable=False)
    assert [channel for channel, _ in bench.connection.consumed] == [7, 7]
    assert bench.connection.confirmed == [(7, 0), (7, 1)]


def test_a_channel_that_ends_is_forgotten() -> None:
    bench = attached()
    subscription = bench.started()
    bench.receive(FEED, batch([b"x"], 0))
    bench.receive(FEED, b"", last=True)
    bench.receive(LIVE, b"", last=True)
    assert payloads(take_all(subscription)) == [b"x"]
    assert len(bench.connection.consumed) == sum(bench.records.values())


@pytest.mark.parametrize("body", [b"", b"\xff", encode_control(Kicked(subscription=0, by="x")), batch([b"x"], 0)])
def test_a_channel_begins_with_its_subscription(body: bytes) -> None:
    bench = attached()
    with pytest.raises(DecodeError):
        bench.receive(5, body)


def test_closing_ends_everything() -> None:
    bench = attached()
    subscription = bench.started()
    bench.subscriptions.close()
    assert subscription.state == "ended"
    assert subscription.take() is None


def test_a_work_channel_is_passed_on() -> None:
    bench = attached()
    bench.receive(7, encode_control(Work()))
    assert [event.channel for event in bench.work] == [7]
    assert bench.connection.confirmed == [(7, 0)]
