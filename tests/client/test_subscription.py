"""A subscription: delivery, confirms, repeats, gaps and reconnects."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.client.subscription_bench import FEED, LIVE, SubscriptionBench, batch, payloads, take_all

from godwit.client.events import Available, Missed
from godwit.client.message import Bookmark
from godwit.client.subscription import MAX_UNRELIABLE_HELD_BYTES, Subscription
from godwit.wire.control import Done, Gap, Labels, Subscribed, encode_in_band
from godwit.wire.epochs import Epoch


def started(next_offset: int = 0) -> tuple[SubscriptionBench, Subscription]:
    bench = SubscriptionBench()
    bench.attach()
    subscription = bench.started(next_offset=next_offset)
    take_all(subscription)
    bench.events.clear()
    bench.subscriptions.announced.clear()
    bench.connection.confirmed.clear()
    bench.connection.consumed.clear()
    return bench, subscription


def reconnect(bench: SubscriptionBench, next_offset: int | None = None) -> None:
    """Have the broker accept the requested start, or reply with the end of its log."""
    bench.detach()
    bench.attach()
    (ask,) = bench.asked()
    assert isinstance(ask.start, int)
    bench.agree(ask, ask.start if next_offset is None else next_offset)


def test_a_record_is_confirmed_when_the_next_is_asked_for() -> None:
    bench, subscription = started()
    first = bench.receive(FEED, batch([b"a", b"b"], 0))
    second = bench.receive(FEED, batch([b"c"], 2))
    assert payloads(subscription.take()) == [b"a", b"b"]
    assert bench.connection.confirmed == []
    assert payloads(subscription.take()) == [b"c"]
    assert bench.connection.confirmed == [(FEED, first)]
    assert bench.connection.consumed == [(FEED, len(batch([b"a", b"b"], 0)))]
    assert subscription.take() is None
    assert bench.connection.confirmed == [(FEED, first), (FEED, second)]
    assert subscription.take() is None
    assert len(bench.connection.confirmed) == len(bench.connection.consumed) == 2


def test_one_event_for_many_records() -> None:
    bench, subscription = started()
    bench.receive(FEED, batch([b"a"], 0))
    bench.receive(FEED, batch([b"b"], 1))
    assert bench.events == [Available(subscription)]
    assert subscription.held_bytes > 0


def test_repeats_are_confirmed_but_not_delivered() -> None:
    bench, subscription = started()
    bench.receive(FEED, batch([b"a", b"b"], 0))
    repeat = bench.receive(FEED, batch([b"a", b"b"], 0))
    overlap = bench.receive(FEED, batch([b"b", b"c"], 1))
    assert payloads(take_all(subscription)) == [b"a", b"b", b"c"]
    assert bench.connection.confirmed[1:] == [(FEED, repeat), (FEED, overlap)]
    assert subscription.position == 3


def test_gaps_are_reported_in_order() -> None:
    bench, subscription = started()
    bench.receive(FEED, batch([b"a"], 0))
    bench.receive(FEED, encode_in_band(Gap(count=7, next_offset=10)))
    bench.receive(FEED, batch([b"b"], 10))
    subscription.take()
    assert subscription.missed == 0
    assert payloads(subscription.take()) == [b"b"]
    assert subscription.missed == 7
    assert bench.events[-1] == Missed(subscription, 7, live=False, next_offset=10)


def test_a_gap_at_the_end_is_reported_and_confirmed() -> None:
    bench, subscription = started()
    number = bench.receive(FEED, encode_in_band(Gap(count=3, next_offset=3)))
    assert bench.events == [Available(subscription)]
    assert subscription.take() is None
    assert (subscription.missed, subscription.position) == (3, 3)
    assert bench.connection.confirmed == [(FEED, number)]


def test_in_band_messages_of_a_later_version_are_ignored() -> None:
    bench, subscription = started()
    bench.receive(FEED, encode_in_band(Done(request=1)))
    bench.receive(FEED, b"\xff\xa1\x64kind\x63new")
    bench.receive(FEED, batch([b"a"], 0))
    assert payloads(take_all(subscription)) == [b"a"]
    assert bench.violations == []


# -- QoS 0 ------------------------------------------------------------------------------------------------------------


def test_live_messages_need_no_confirm_and_jumps_are_missed() -> None:
    bench, subscription = started()
    bench.receive_live([b"0", b"1"], 0)
    bench.receive_live([b"4"], 4)
    bench.receive_live([b"2"], 2)
    messages = take_all(subscription)
    assert payloads(messages) == [b"0", b"1", b"4"]
    assert [message.offset for message in messages] == [None] * 3
    assert subscription.missed == 2
    assert bench.events[-1] == Missed(subscription, 2, live=True)
    assert bench.connection.confirmed == []
    assert subscription.position == 0


def test_a_long_live_message_came_reliably_and_is_confirmed() -> None:
    bench, subscription = started()
    number = bench.receive(LIVE, batch([bytes(3000)], 0, qos=0))
    assert len(take_all(subscription)) == 1
    assert bench.connection.confirmed == [(LIVE, number)]


def test_untaken_qos_0_records_are_bounded_and_counted() -> None:
    bench, subscription = started()
    most = MAX_UNRELIABLE_HELD_BYTES
    for place in range(3000):
        bench.receive_live([b"%d" % place + bytes(900)], place)
        assert subscription.held_bytes <= most
    reliable = bench.receive(FEED, batch([b"safe"], 0))
    taken = payloads(take_all(subscription))
    assert taken[-2].startswith(b"2999")
    assert taken[-1] == b"safe"
    assert subscription.missed == 3000 - (len(taken) - 1)
    assert (FEED, reliable) in bench.connection.confirmed


def test_a_late_live_record_with_an_old_label_is_dropped() -> None:
    bench, subscription = started()
    bench.receive(LIVE, encode_in_band(Labels(topics=[(5, "a/new")], publishers=[(1, "someone")], forget=True)))
    bench.receive_live([b"old"], 0)
    assert take_all(subscription) == []
    assert bench.violations == []


# -- reconnects -------------------------------------------------------------------------------------------------------


def test_resumes_behind_the_processed_messages() -> None:
    bench, subscription = started(next_offset=10)
    bench.receive(FEED, batch([b"a", b"b"], 10))
    bench.receive(FEED, batch([b"c"], 12))
    subscription.take()
    bench.detach()
    bench.attach()
    (ask,) = bench.asked()
    assert ask.start == 10  # the application may crash while it processes a message
    bench.agree(ask, 10)
    bench.receive(FEED, batch([b"a", b"b", b"c", b"d"], 10))
    assert payloads(take_all(subscription)) == [b"c", b"d"]
    assert subscription.position == 14
    bench.detach()
    bench.attach()
    assert bench.asked()[0].start == 14


def test_arrived_records_are_delivered_after_the_connection_is_lost() -> None:
    bench, subscription = started()
    bench.receive(FEED, batch([b"kept"], 5, retain=True))
    bench.receive(FEED, batch([b"a"], 0))
    bench.receive_live([b"live"], 0)
    bench.detach()
    assert payloads(subscription.take()) == [b"kept"]
    bench.attach()
    (ask,) = bench.asked()
    assert payloads(subscription.take()) == [b"a"]
    bench.open()
    bench.receive(FEED, batch([b"a", b"b"], 0))
    assert payloads(subscription.take()) == [b"live"]
    assert subscription.take() is None  # what the new connection brought waits for the broker's word
    bench.subscriptions.handle_subscribed(Subscribed(request=ask.request, subscription=0, next_offset=0))
    assert payloads(take_all(subscription)) == [b"b"]


def test_undecodable_records_do_not_survive_a_reconnect() -> None:
    bench, subscription = started()
    bench.receive(FEED, b"\xff\x00")
    bench.receive(FEED, batch([b"behind"], 0))
    bench.detach()
    assert not subscription.has_records


def test_reconnects_do_not_pile_up_records() -> None:
    bench, subscription = started()
    sizes = []
    for _ in range(5):
        for place in range(20):
            bench.receive(FEED, batch([bytes(1000)], place))
        sizes.append(subscription.held_bytes)
        reconnect(bench)
    assert sizes[1] == sizes[-1] < 2.1 * sizes[0]
    bench.receive(FEED, batch([bytes(1000)] * 2, 19))
    assert len(take_all(subscription)) == 21


def test_a_log_that_ends_earlier_is_another_one() -> None:
    """A broker without a disk was restarted: its offsets begin anew."""
    bench, subscription = started()
    bench.receive(FEED, batch([b"%d" % place for place in range(50)], 0))
    take_all(subscription)
    bench.receive(FEED, batch([b"of the old log"], 50))
    reconnect(bench, next_offset=2)
    assert Missed(subscription, None, next_offset=2) in bench.events
    bench.receive(FEED, batch([b"new"], 2))
    assert payloads(take_all(subscription)) == [b"new"]
    assert subscription.position == 3


def test_another_log_is_read_from_its_beginning() -> None:
    bench, subscription = started()
    bench.receive(FEED, batch([b"%d" % place for place in range(50)], 0))
    take_all(subscription)
    bench.detach()
    bench.attach(b"another log")
    (ask,) = bench.asked()
    assert ask.start == "earliest"
    bench.agree(ask, 40)
    assert Missed(subscription, None, next_offset=40) in bench.events
    bench.receive(FEED, batch([b"new"], 40))
    assert payloads(take_all(subscription)) == [b"new"]


def test_another_log_is_read_from_its_beginning_also_if_the_first_reply_does_not_arrive() -> None:
    bench, subscription = started(next_offset=500)
    for _ in range(3):
        bench.detach()
        bench.attach(b"another log")
        (ask,) = bench.asked()
        assert ask.start == "earliest"
        assert subscription.bookmark(500).log == b"log"
    bench.agree(ask, 40)
    assert Missed(subscription, None, next_offset=40) in bench.events
    assert subscription.bookmark(40).log == b"another log"
    bench.detach()
    bench.attach(b"another log")
    (ask,) = bench.asked()
    assert ask.start == 40


def test_a_log_that_returns_before_another_one_replied_is_read_on() -> None:
    bench, _ = started(next_offset=500)
    for log in (b"another log", b"log"):
        bench.detach()
        bench.attach(log)
    (ask,) = bench.asked()
    assert ask.start == 500


def test_the_same_log_is_not_read_again() -> None:
    bench, subscription = started()
    reconnect(bench)
    assert not [event for event in bench.events if isinstance(event, Missed)]
    assert subscription.state == "active"


def test_a_gap_before_the_start_is_missed() -> None:
    """A session resumes after the log has dropped its position: the start is behind the gap already."""
    bench, subscription = started(next_offset=254)
    bench.receive(FEED, encode_in_band(Gap(count=200, next_offset=254)))
    assert subscription.take() is None
    assert (subscription.missed, subscription.position) == (200, 254)


def test_messages_in_hand_are_not_missed() -> None:
    bench, subscription = started()
    bench.receive(FEED, batch([b"0", b"1", b"2"], 0))
    subscription.take()
    reconnect(bench)
    bench.receive(FEED, encode_in_band(Gap(count=5, next_offset=5)))
    bench.receive(FEED, batch([b"5"], 5))
    assert payloads(subscription.take()) == [b"5"]
    assert subscription.missed == 2
    assert bench.events[-1] == Missed(subscription, 2, live=False, next_offset=5)


def test_delivered_messages_are_not_missed_however_the_broker_counts() -> None:
    """It knows only how many offsets are gone, not which topics they had."""
    bench, subscription = started()
    bench.receive(FEED, batch([b"0"], 0))
    bench.receive(FEED, batch([b"7"], 7))
    reconnect(bench)
    bench.receive(FEED, encode_in_band(Gap(count=8, next_offset=8)))
    bench.receive(FEED, batch([b"8"], 8))
    assert payloads(take_all(subscription)) == [b"0", b"7", b"8"]
    assert subscription.missed == 0
    bench.receive(FEED, encode_in_band(Gap(count=9, next_offset=12)))
    assert subscription.take() is None
    assert subscription.missed == 3


def test_messages_of_some_topics_that_were_deleted_behind_the_position_are_missed() -> None:
    """Messages of other topics are left, so the gap does not move the position; those in hand are among them."""
    bench, subscription = started()
    bench.receive(FEED, batch([b"0", b"1", b"2"], 0))
    subscription.take()
    reconnect(bench)
    bench.receive(FEED, encode_in_band(Gap(count=2, next_offset=0, below=9)))
    bench.receive(FEED, batch([b"0", b"1", b"2"], 0))
    bench.receive(FEED, batch([b"7"], 7))
    assert payloads(take_all(subscription)) == [b"7"]
    assert subscription.missed == 2
    bench.receive(FEED, encode_in_band(Gap(count=9, next_offset=12)))
    assert subscription.take() is None
    assert subscription.missed == 2 + 4


def test_repeated_retained_messages_are_dropped() -> None:
    bench, subscription = started(next_offset=9)
    assert bench.subscriptions.connection is not None
    bench.receive(FEED, batch([b"kept"], 3, retain=True))
    assert payloads(take_all(subscription)) == [b"kept"]
    bench.detach()
    bench.attach()
    (ask,) = bench.asked()
    assert (ask.start, ask.retained) == (9, True)
    bench.agree(ask, 9)
    bench.receive(FEED, batch([b"kept"], 3, retain=True))
    bench.receive(FEED, batch([b"another"], 4, retain=True, topic=2) + batch([b"log"], 9))
    assert payloads(take_all(subscription)) == [b"another", b"log"]
    bench.detach()
    bench.attach()
    assert not bench.asked()[0].retained


def test_repeated_retained_messages_behind_newer_ones_are_dropped() -> None:
    """They wait, with what came behind them, while the connection is lost and the broker is asked for them again."""
    bench, subscription = started(next_offset=9)
    bench.receive(FEED, batch([b"kept"], 3, retain=True))
    bench.receive(FEED, batch([b"log"], 9))
    bench.detach()
    bench.attach()
    (ask,) = bench.asked()
    assert (ask.start, ask.retained) == (9, True)
    bench.agree(ask, 9)
    bench.receive(FEED, batch([b"kept"], 3, retain=True))
    bench.receive(FEED, batch([b"log"], 9))
    bench.receive(FEED, batch([b"more"], 10))
    assert payloads(take_all(subscription)) == [b"kept", b"log", b"more"]


@given(st.data())
def test_no_message_is_lost_or_repeated_or_counted_wrongly(data: st.DataObject) -> None:
    """The broker sends from where it is asked to, in records of any size; the connection breaks anywhere; the log
    forgets its oldest messages."""
    bench, subscription = started()
    log = [b"%d" % place for place in range(data.draw(st.integers(0, 60)))]
    sent = floor = 0
    taken: list[bytes] = []

    def skip_forgotten() -> int:
        if sent < floor:
            bench.receive(FEED, encode_in_band(Gap(count=floor - sent, next_offset=floor)))
        return max(sent, floor)

    for step in data.draw(st.lists(st.sampled_from(["send", "send", "take", "take", "break", "forget"]), max_size=60)):
        if step == "send" and sent < len(log):
            count = data.draw(st.integers(1, 10))
            bench.receive(FEED, batch(log[sent : sent + count], sent))
            sent = min(sent + count, len(log))
        elif step == "take":
            taken += payloads(subscription.take())
        elif step == "break":
            bench.detach()
            if data.draw(st.booleans()):
                taken += payloads(subscription.take())
            bench.attach()
            (ask,) = bench.asked()
            assert isinstance(ask.start, int)
            sent = ask.start
            bench.agree(ask, sent)
            sent = skip_forgotten()
        elif step == "forget":
            floor = data.draw(st.integers(floor, len(log)))
            sent = skip_forgotten()
        assert [int(payload) for payload in taken] == sorted({int(payload) for payload in taken})
        assert subscription.missed <= len(log) - len(taken)
    if sent < len(log):
        bench.receive(FEED, batch(log[sent:], sent))
    taken += payloads(take_all(subscription))
    assert [int(payload) for payload in taken] == sorted({int(payload) for payload in taken})
    assert len(taken) + subscription.missed == len(log)
    assert bench.violations == []


# -- nonsense and the end ---------------------------------------------------------------------------------------------


def test_a_violation_ends_the_connection_not_the_application() -> None:
    for body in (b"\xff\x00", b"\x00", batch([b"x"], 0, topic=77), encode_in_band(Labels())[:-1]):
        bench, subscription = started()
        bench.receive(FEED, body)
        bench.receive(FEED, batch([b"behind"], 0))
        assert subscription.take() is None
        assert len(bench.violations) == 1
        assert not subscription.has_records


def test_after_its_end_it_returns_nothing_and_releases_credit() -> None:
    bench, subscription = started()
    bench.receive(FEED, batch([b"a"], 0))
    bench.receive(FEED, batch([b"b"], 1))
    subscription.take()
    bench.subscriptions.unsubscribe(subscription, keep=False)
    assert subscription.state == "ended"
    assert len(bench.connection.consumed) == 2
    assert subscription.take() is None
    assert len(bench.connection.consumed) == 2
    bench.receive(FEED, batch([b"c"], 2))
    assert len(bench.connection.consumed) == 3
    assert subscription.take() is None


def test_with_keep_its_end_confirms_nothing() -> None:
    """A confirm may arrive before the end of the subscription, or alone: confirmed records are never sent again."""
    bench, subscription = started()
    for offset in range(3):
        bench.receive(FEED, batch([b"x"], offset))
    subscription.take()
    subscription.take()
    confirmed = list(bench.connection.confirmed)
    bench.subscriptions.unsubscribe(subscription, keep=True, offset=1)
    assert bench.connection.confirmed == confirmed
    assert len(bench.connection.consumed) == 3  # the credit is given back all the same


def test_a_connection_that_has_just_closed_is_no_error() -> None:
    bench, subscription = started()
    bench.receive(FEED, batch([b"a"], 0))
    subscription.take()
    bench.connection.is_closed = True
    assert subscription.take() is None


# -- an older copy of the log was put back ----------------------------------------------------------------------------

OLD, NEW, NEWER = (Epoch(bytes([letter]) * 8, 0) for letter in b"onr")


def read_to(next_offset: int) -> tuple[SubscriptionBench, Subscription]:
    """A subscription whose application has had everything below an offset, in a log of one epoch."""
    bench = SubscriptionBench()
    bench.attach(epochs=[OLD])
    subscription = bench.started()
    bench.receive(FEED, batch([b"%d" % place for place in range(next_offset)], 0))
    take_all(subscription)
    bench.events.clear()
    return bench, subscription


def come_back(bench: SubscriptionBench, same_below: int, *epochs: Epoch) -> None:
    """On another connection the log has other messages from an offset on."""
    bench.detach()
    bench.attach(epochs=epochs or [OLD, NEW])
    (ask,) = bench.asked()
    assert isinstance(ask.start, int)
    assert ask.epochs
    bench.agree(ask, min(ask.start, same_below), same_below)


def missed(bench: SubscriptionBench) -> list[Missed]:
    return [event for event in bench.events if isinstance(event, Missed)]


def test_it_goes_back_to_where_the_log_has_other_messages() -> None:
    bench, subscription = read_to(10)
    come_back(bench, 6)
    assert missed(bench) == [Missed(subscription, None, next_offset=6, had_below=10)]
    assert (subscription.position, subscription.resume_at, subscription.replaced) == (6, 6, (6, 10))
    bench.receive(FEED, batch([b"new 6", b"new 7"], 6))
    assert payloads(take_all(subscription)) == [b"new 6", b"new 7"]
    assert subscription.epochs == (OLD, NEW)


def test_no_loss_is_reported_if_the_log_is_the_same() -> None:
    bench, subscription = read_to(10)
    come_back(bench, 10)
    bench.receive(FEED, batch([b"new"], 10))
    assert payloads(take_all(subscription)) == [b"new"]
    assert missed(bench) == []
    assert subscription.replaced is None


def test_the_same_process_is_not_asked_to_compare() -> None:
    bench, _ = read_to(10)
    bench.detach()
    bench.attach(epochs=[OLD])
    (ask,) = bench.asked()
    assert (ask.start, ask.epochs) == (10, [])


def test_held_records_precede_the_step_back() -> None:
    """Messages that only the former log had are messages all the same, and the position may still lie before them."""
    bench, subscription = read_to(4)
    bench.receive(FEED, batch([b"old 4", b"old 5", b"old 6"], 4))
    come_back(bench, 5)
    bench.receive(FEED, batch([b"old 4", b"new 5", b"new 6"], 4))
    assert missed(bench) == []
    assert payloads(subscription.take()) == [b"old 4", b"old 5", b"old 6"]
    assert payloads(subscription.take()) == [b"new 5", b"new 6"]
    assert missed(bench) == [Missed(subscription, None, next_offset=5, had_below=7)]
    assert subscription.position == 7


def test_messages_in_hand_are_not_processed_in_the_new_log() -> None:
    bench, subscription = read_to(4)
    bench.receive(FEED, batch([b"old 4", b"old 5", b"old 6"], 4))
    assert len(subscription.take() or []) == 3
    come_back(bench, 5)
    assert missed(bench) == []
    assert subscription.reached(7) == 5
    assert subscription.reached(4) == 4
    assert subscription.take() is None
    assert subscription.replaced == (5, 7)
    assert [subscription.reached(offset) for offset in (4, 5, 6, 7, 8)] == [4, 5, 5, 5, 8]
    bench.receive(FEED, batch([b"new"] * 3, 5))
    take_all(subscription)
    assert subscription.reached(7) == 7


def test_it_goes_back_to_the_earliest_reply_of_several_connections() -> None:
    bench, subscription = read_to(4)
    for place in (4, 5, 6):
        bench.receive(FEED, batch([b"old %d" % place], place))
    come_back(bench, 5)
    bench.receive(FEED, batch([b"new 5", b"new 6"], 5))
    assert payloads(subscription.take()) == [b"old 4"]
    assert payloads(subscription.take()) == [b"old 5"]
    assert payloads(subscription.take()) == [b"old 6"]
    bench.detach()
    bench.attach(epochs=[OLD, NEW])  # it broke, and the log is the same as before
    (ask,) = bench.asked()
    assert (ask.start, ask.epochs) == (5, [])
    bench.agree(ask, 5)
    bench.receive(FEED, batch([b"new 5", b"new 6"], 5))
    assert payloads(take_all(subscription)) == [b"new 5", b"new 6"]
    assert subscription.replaced == (5, 7)


def test_nothing_stays_of_a_connection_that_was_not_compared() -> None:
    bench, subscription = read_to(4)
    bench.detach()
    bench.attach(epochs=[OLD, NEW])
    bench.open()
    bench.receive(FEED, batch([b"of some log"], 4))  # before the reply, which relates its offsets to the position
    come_back(bench, 2, OLD, NEWER)
    bench.receive(FEED, batch([b"new 2", b"new 3", b"new 4"], 2))
    assert payloads(take_all(subscription)) == [b"new 2", b"new 3", b"new 4"]


def test_a_log_that_has_nothing_in_common_is_read_from_its_beginning() -> None:
    bench, subscription = read_to(10)
    bench.detach()
    bench.attach(epochs=[NEW])
    (ask,) = bench.asked()
    bench.agree(ask, 3, same_below=0)  # it begins at 3
    bench.receive(FEED, batch([b"new"], 3))
    assert payloads(take_all(subscription)) == [b"new"]
    assert missed(bench) == [Missed(subscription, None, next_offset=0, had_below=10)]


def test_a_bookmark_is_compared_when_the_subscription_begins() -> None:
    _, former = read_to(10)
    bookmark = former.bookmark(10)
    assert bookmark == Bookmark(10, b"log", (OLD,))
    for same_below, expected in ((10, None), (6, (6, 10))):
        bench = SubscriptionBench()
        bench.attach(epochs=[OLD, NEW])
        subscription = bench.subscriptions.subscribe(("a/#",), start=bookmark, since_us=None, cursor=None)
        (ask,) = bench.asked()
        assert (ask.start, ask.epochs) == (10, [OLD])
        bench.agree(ask, same_below, same_below)
        assert subscription.replaced == expected
        assert missed(bench) == ([] if expected is None else [Missed(subscription, None, next_offset=6, had_below=10)])
        bench.receive(FEED, batch([b"new"], same_below))
        assert payloads(take_all(subscription)) == [b"new"]


def test_a_bookmark_of_another_log_begins_at_the_beginning() -> None:
    bench = SubscriptionBench()
    bench.attach(b"another", epochs=[OLD])
    subscription = bench.subscriptions.subscribe(
        ("a/#",), start=Bookmark(10, b"log", (OLD,)), since_us=None, cursor=None
    )
    (ask,) = bench.asked()
    assert (ask.start, ask.epochs) == ("earliest", [])
    bench.agree(ask, 2)
    assert missed(bench) == [Missed(subscription, None, next_offset=2)]
