"""All subscriptions together: asking, answers, channels, the end."""

from __future__ import annotations

import pytest
from tests.client.feeding import FEED, LIVE, Desk, batch, payloads, take_all

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


def attached() -> Desk:
    desk = Desk()
    desk.attach()
    return desk


def subscribe(desk: Desk, *filters: str, start: Start = None, cursor: str | None = None) -> Subscription:
    return desk.inbox.subscribe(filters, start=start, since_us=None, cursor=cursor)


def test_asks_at_once_or_when_there_is_a_broker() -> None:
    desk = Desk()
    early = desk.inbox.subscribe(("a",), start=None, since_us=77, cursor="c")
    assert desk.requests.has_unsent is False
    desk.attach()
    (ask,) = desk.asked()
    assert (ask.filters, ask.start, ask.since_us, ask.cursor) == (["a"], None, 77, "c")
    late = subscribe(desk, "b", start="earliest")
    (other,) = desk.asked()
    assert other.start == "earliest"
    assert (other.subscription, late.number) == (1, 1)
    assert (ask.subscription, early.number) == (0, 0)


def test_a_question_that_was_not_answered_is_asked_again_as_it_was() -> None:
    desk = attached()
    desk.inbox.subscribe(("a",), start=None, since_us=77, cursor=None)
    first = desk.asked()
    desk.detach()
    desk.attach()
    (again,) = desk.asked()
    assert (again.since_us, again.start) == (77, None)
    assert first[0].subscription == again.subscription
    desk.agree(again, 500)
    desk.detach()
    desk.attach()
    (ask,) = desk.asked()
    assert (ask.since_us, ask.start) == (None, 500)


@pytest.mark.parametrize(("start", "is_owed"), [(None, True), ("latest", True), ("earliest", False), (7, False)])
def test_a_repeated_request_asks_for_the_retained_messages(start: Start, is_owed: bool) -> None:
    """The broker may have stored the subscription and crashed before its reply: it then resumes it as a known one."""
    desk = attached()
    subscribe(desk, "a", start=start)
    (first,) = desk.asked()
    desk.detach()
    desk.attach()
    (again,) = desk.asked()
    assert (first.start, again.start) == (start, start)
    assert (first.retained, again.retained) == (False, is_owed)


def test_the_same_filters_are_the_same_subscription() -> None:
    desk = attached()
    one = subscribe(desk, "a", "b")
    assert subscribe(desk, "a", "b") is one
    assert subscribe(desk, "a", "b", cursor="x") is not one
    assert subscribe(desk, "a") is not one
    assert len(desk.asked()) == 3


def test_the_start_is_told_once() -> None:
    desk = attached()
    subscription = desk.started(next_offset=12)
    assert desk.events == [SubscriptionStarted(subscription, 12), Available(subscription)]
    assert (subscription.state, subscription.position) == ("active", 12)
    desk.detach()
    desk.attach()
    desk.agree(desk.asked()[0], 12)
    assert len([event for event in desk.events if isinstance(event, SubscriptionStarted)]) == 1


def test_data_may_come_before_the_reply() -> None:
    desk = attached()
    subscription = subscribe(desk, "a")
    (ask,) = desk.asked()
    desk.open()
    desk.bring(FEED, batch([b"x"], 3))
    assert desk.events == []
    assert subscription.take() is None
    desk.inbox.on_subscribed(Subscribed(request=ask.request, subscription=0, next_offset=3))
    assert desk.events == [SubscriptionStarted(subscription, 3), Available(subscription)]
    assert payloads(take_all(subscription)) == [b"x"]


def test_a_refused_subscription_ends() -> None:
    desk = attached()
    subscription = subscribe(desk, "a")
    (ask,) = desk.asked()
    assert not desk.inbox.on_error(ask.request + 1, Code.NOT_ALLOWED, "no")
    assert desk.inbox.on_error(ask.request, Code.NOT_ALLOWED, "no")
    assert desk.events == [SubscriptionEnded(subscription, Code.NOT_ALLOWED, "no")]
    assert subscription.state == "ended"
    assert subscribe(desk, "a") is not subscription
    desk.detach()
    desk.attach()
    assert len(desk.asked()) == 1


def test_a_kicked_subscription_ends_with_the_reason() -> None:
    desk = attached()
    subscription = desk.started()
    desk.events.clear()
    desk.inbox.on_kicked(Kicked(subscription=99, by="x"))
    desk.inbox.on_kicked(Kicked(subscription=0, by="admin", reason="maintenance"))
    assert desk.events == [SubscriptionEnded(subscription, Code.KICKED, "admin removed the subscription: maintenance")]


def test_a_broker_that_takes_two_for_one_ends_the_second() -> None:
    desk = attached()
    desk.started()
    other = subscribe(desk, "b")
    (ask,) = desk.asked()
    desk.inbox.on_subscribed(Subscribed(request=ask.request, subscription=0))
    assert other.state == "ended"


def test_an_answer_to_nothing_is_not_ours() -> None:
    desk = attached()
    assert not desk.inbox.on_subscribed(Subscribed(request=55, subscription=0))
    assert not desk.inbox.on_answer(55)


def test_an_answer_to_what_was_given_up_meanwhile_changes_nothing() -> None:
    desk = attached()
    for reply in ("subscribed", "error"):
        subscription = subscribe(desk, "a")
        (ask,) = desk.asked()
        desk.inbox.unsubscribe(subscription, keep=False)
        if reply == "error":
            assert desk.inbox.on_error(ask.request, Code.NOT_ALLOWED, "no")
        else:
            assert desk.inbox.on_subscribed(Subscribed(request=ask.request, subscription=ask.subscription))
        assert subscription.state == "ended"
    assert desk.events == []


# -- leaving ----------------------------------------------------------------------------------------------------------


def test_leaving_is_asked_until_it_is_answered() -> None:
    desk = attached()
    subscription = desk.started()
    request = desk.inbox.unsubscribe(subscription, keep=False)
    assert desk.said() == [Unsubscribe(request=request, subscription=0)]
    desk.detach()
    desk.attach()
    # The broker's session may know it: to be ended it needs a number on this connection.
    ask, leave = desk.said()
    assert isinstance(ask, Subscribe)
    assert (ask.subscription, ask.filters) == (0, ["a/#"])
    assert leave == Unsubscribe(request=request, subscription=0)
    assert not desk.inbox.on_subscribed(Subscribed(request=ask.request, subscription=0))
    assert desk.inbox.on_answer(request)
    assert desk.requests.on_answer(request)
    desk.detach()
    desk.attach()
    assert desk.said() == []


def test_leaving_and_coming_back_while_there_is_no_broker() -> None:
    desk = attached()
    subscription = desk.started()
    desk.detach()
    desk.inbox.unsubscribe(subscription, keep=False)
    again = subscribe(desk, "a/#")
    assert again is not subscription
    desk.attach()
    ask, leave = desk.said()
    assert isinstance(ask, Subscribe)
    assert isinstance(leave, Unsubscribe)
    assert (ask.subscription, leave.subscription) == (again.number, subscription.number)


def test_records_for_nobody_are_consumed() -> None:
    desk = attached()
    desk.bring(7, encode_control(DeliveryOpen(subscription=42)))
    desk.bring(7, batch([b"x"], 0))
    desk.bring(8, b"anything", reliable=False)
    assert [channel for channel, _ in desk.connection.consumed] == [7, 7]
    assert desk.connection.confirmed == [(7, 0), (7, 1)]


def test_a_channel_that_ends_is_forgotten() -> None:
    desk = attached()
    subscription = desk.started()
    desk.bring(FEED, batch([b"x"], 0))
    desk.bring(FEED, b"", last=True)
    desk.bring(LIVE, b"", last=True)
    assert payloads(take_all(subscription)) == [b"x"]
    assert len(desk.connection.consumed) == sum(desk.records.values())


@pytest.mark.parametrize("body", [b"", b"\xff", encode_control(Kicked(subscription=0, by="x")), batch([b"x"], 0)])
def test_a_channel_begins_with_its_subscription(body: bytes) -> None:
    desk = attached()
    with pytest.raises(DecodeError):
        desk.bring(5, body)


def test_closing_ends_everything() -> None:
    desk = attached()
    subscription = desk.started()
    desk.inbox.close()
    assert subscription.state == "ended"
    assert subscription.take() is None


def test_a_channel_that_is_for_work_is_told_of() -> None:
    desk = attached()
    desk.bring(7, encode_control(Work()))
    assert [event.channel for event in desk.work] == [7]
    assert desk.connection.confirmed == [(7, 0)]
