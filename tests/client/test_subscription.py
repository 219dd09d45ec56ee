"""A subscription: what it gives, when it confirms, what it does with repeats, gaps and reconnects."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.client.feeding import FEED, LIVE, Desk, batch, payloads, take_all

from godwit.client.bookmark import Bookmark
from godwit.client.events import Available, Missed
from godwit.client.subscription import MAX_UNRELIABLE_HELD_BYTES, Subscription
from godwit.wire.control import Done, Gap, Labels, Subscribed, encode_in_band
from godwit.wire.epochs import Epoch


def started(next_offset: int = 0) -> tuple[Desk, Subscription]:
    desk = Desk()
    desk.attach()
    subscription = desk.started(next_offset=next_offset)
    take_all(subscription)
    desk.events.clear()
    desk.inbox.on_events_fetched()
    desk.connection.confirmed.clear()
    desk.connection.consumed.clear()
    return desk, subscription


def reconnect(desk: Desk, next_offset: int | None = None) -> None:
    """The broker agrees to what is asked, or says where its log ends."""
    desk.detach()
    desk.attach()
    (ask,) = desk.asked()
    assert isinstance(ask.start, int)
    desk.agree(ask, ask.start if next_offset is None else next_offset)


def test_a_record_is_confirmed_when_the_next_is_asked_for() -> None:
    desk, subscription = started()
    first = desk.bring(FEED, batch([b"a", b"b"], 0))
    second = desk.bring(FEED, batch([b"c"], 2))
    assert payloads(subscription.take()) == [b"a", b"b"]
    assert desk.connection.confirmed == []
    assert payloads(subscription.take()) == [b"c"]
    assert desk.connection.confirmed == [(FEED, first)]
    assert desk.connection.consumed == [(FEED, len(batch([b"a", b"b"], 0)))]
    assert subscription.take() is None
    assert desk.connection.confirmed == [(FEED, first), (FEED, second)]
    assert subscription.take() is None
    assert len(desk.connection.confirmed) == len(desk.connection.consumed) == 2


def test_one_event_tells_of_many_records() -> None:
    desk, subscription = started()
    desk.bring(FEED, batch([b"a"], 0))
    desk.bring(FEED, batch([b"b"], 1))
    assert desk.events == [Available(subscription)]
    assert subscription.held_bytes > 0


def test_repeats_are_confirmed_but_not_given() -> None:
    desk, subscription = started()
    desk.bring(FEED, batch([b"a", b"b"], 0))
    repeat = desk.bring(FEED, batch([b"a", b"b"], 0))
    overlap = desk.bring(FEED, batch([b"b", b"c"], 1))
    assert payloads(take_all(subscription)) == [b"a", b"b", b"c"]
    assert desk.connection.confirmed[1:] == [(FEED, repeat), (FEED, overlap)]
    assert subscription.position == 3


def test_gaps_are_told_where_they_are() -> None:
    desk, subscription = started()
    desk.bring(FEED, batch([b"a"], 0))
    desk.bring(FEED, encode_in_band(Gap(count=7, next_offset=10)))
    desk.bring(FEED, batch([b"b"], 10))
    subscription.take()
    assert subscription.missed == 0
    assert payloads(subscription.take()) == [b"b"]
    assert subscription.missed == 7
    assert desk.events[-1] == Missed(subscription, 7, live=False, next_offset=10)


def test_a_gap_at_the_end_is_told_and_confirmed() -> None:
    desk, subscription = started()
    number = desk.bring(FEED, encode_in_band(Gap(count=3, next_offset=3)))
    assert desk.events == [Available(subscription)]
    assert subscription.take() is None
    assert (subscription.missed, subscription.position) == (3, 3)
    assert desk.connection.confirmed == [(FEED, number)]


def test_in_band_words_of_a_later_version_are_passed_over() -> None:
    desk, subscription = started()
    desk.bring(FEED, encode_in_band(Done(request=1)))
    desk.bring(FEED, b"\xff\xa1\x64kind\x63new")
    desk.bring(FEED, batch([b"a"], 0))
    assert payloads(take_all(subscription)) == [b"a"]
    assert desk.violations == []


# -- QoS 0 ------------------------------------------------------------------------------------------------------------


def test_live_messages_need_no_confirm_and_jumps_are_missed() -> None:
    desk, subscription = started()
    desk.bring_live([b"0", b"1"], 0)
    desk.bring_live([b"4"], 4)
    desk.bring_live([b"2"], 2)
    messages = take_all(subscription)
    assert payloads(messages) == [b"0", b"1", b"4"]
    assert [message.offset for message in messages] == [None] * 3
    assert subscription.missed == 2
    assert desk.events[-1] == Missed(subscription, 2, live=True)
    assert desk.connection.confirmed == []
    assert subscription.position == 0


def test_a_long_live_message_came_reliably_and_is_confirmed() -> None:
    desk, subscription = started()
    number = desk.bring(LIVE, batch([bytes(3000)], 0, qos=0))
    assert len(take_all(subscription)) == 1
    assert desk.connection.confirmed == [(LIVE, number)]


def test_what_nobody_takes_of_quality_0_is_bounded_and_counted() -> None:
    desk, subscription = started()
    most = MAX_UNRELIABLE_HELD_BYTES
    for place in range(3000):
        desk.bring_live([b"%d" % place + bytes(900)], place)
        assert subscription.held_bytes <= most
    reliable = desk.bring(FEED, batch([b"safe"], 0))
    taken = payloads(take_all(subscription))
    assert taken[-2].startswith(b"2999")
    assert taken[-1] == b"safe"
    assert subscription.missed == 3000 - (len(taken) - 1)
    assert (FEED, reliable) in desk.connection.confirmed


def test_a_late_live_record_with_an_old_label_is_dropped() -> None:
    desk, subscription = started()
    desk.bring(LIVE, encode_in_band(Labels(topics=[(5, "a/new")], publishers=[(1, "someone")], forget=True)))
    desk.bring_live([b"old"], 0)
    assert take_all(subscription) == []
    assert desk.violations == []


# -- reconnects -------------------------------------------------------------------------------------------------------


def test_goes_on_from_what_the_application_has_asked_past() -> None:
    desk, subscription = started(next_offset=10)
    desk.bring(FEED, batch([b"a", b"b"], 10))
    desk.bring(FEED, batch([b"c"], 12))
    subscription.take()
    desk.detach()
    desk.attach()
    (ask,) = desk.asked()
    assert ask.start == 10  # the application may die over what it has in hand
    desk.agree(ask, 10)
    desk.bring(FEED, batch([b"a", b"b", b"c", b"d"], 10))
    assert payloads(take_all(subscription)) == [b"c", b"d"]
    assert subscription.position == 14
    desk.detach()
    desk.attach()
    assert desk.asked()[0].start == 14


def test_what_has_arrived_is_given_though_the_connection_is_lost() -> None:
    desk, subscription = started()
    desk.bring(FEED, batch([b"kept"], 5, retain=True))
    desk.bring(FEED, batch([b"a"], 0))
    desk.bring_live([b"live"], 0)
    desk.detach()
    assert payloads(subscription.take()) == [b"kept"]
    desk.attach()
    (ask,) = desk.asked()
    assert payloads(subscription.take()) == [b"a"]
    desk.open()
    desk.bring(FEED, batch([b"a", b"b"], 0))
    assert payloads(subscription.take()) == [b"live"]
    assert subscription.take() is None  # what the new connection brought waits for the broker's word
    desk.inbox.on_subscribed(Subscribed(request=ask.request, subscription=0, next_offset=0))
    assert payloads(take_all(subscription)) == [b"b"]


def test_what_cannot_be_read_is_not_kept_over_a_reconnect() -> None:
    desk, subscription = started()
    desk.bring(FEED, b"\xff\x00")
    desk.bring(FEED, batch([b"behind"], 0))
    desk.detach()
    assert not subscription.has_records


def test_reconnects_do_not_pile_up_records() -> None:
    desk, subscription = started()
    sizes = []
    for _ in range(5):
        for place in range(20):
            desk.bring(FEED, batch([bytes(1000)], place))
        sizes.append(subscription.held_bytes)
        reconnect(desk)
    assert sizes[1] == sizes[-1] < 2.1 * sizes[0]
    desk.bring(FEED, batch([bytes(1000)] * 2, 19))
    assert len(take_all(subscription)) == 21


def test_a_log_that_ends_earlier_is_another_one() -> None:
    """A broker without a disk was restarted: its offsets begin anew."""
    desk, subscription = started()
    desk.bring(FEED, batch([b"%d" % place for place in range(50)], 0))
    take_all(subscription)
    desk.bring(FEED, batch([b"of the old log"], 50))
    reconnect(desk, next_offset=2)
    assert Missed(subscription, None, next_offset=2) in desk.events
    desk.bring(FEED, batch([b"new"], 2))
    assert payloads(take_all(subscription)) == [b"new"]
    assert subscription.position == 3


def test_another_log_is_read_from_its_beginning() -> None:
    desk, subscription = started()
    desk.bring(FEED, batch([b"%d" % place for place in range(50)], 0))
    take_all(subscription)
    desk.detach()
    desk.attach(b"another log")
    (ask,) = desk.asked()
    assert ask.start == "earliest"
    desk.agree(ask, 40)
    assert Missed(subscription, None, next_offset=40) in desk.events
    desk.bring(FEED, batch([b"new"], 40))
    assert payloads(take_all(subscription)) == [b"new"]


def test_another_log_is_read_from_its_beginning_also_if_the_first_reply_does_not_arrive() -> None:
    desk, subscription = started(next_offset=500)
    for _ in range(3):
        desk.detach()
        desk.attach(b"another log")
        (ask,) = desk.asked()
        assert ask.start == "earliest"
        assert subscription.bookmark(500).log == b"log"
    desk.agree(ask, 40)
    assert Missed(subscription, None, next_offset=40) in desk.events
    assert subscription.bookmark(40).log == b"another log"
    desk.detach()
    desk.attach(b"another log")
    (ask,) = desk.asked()
    assert ask.start == 40


def test_a_log_that_returns_before_another_one_replied_is_read_on() -> None:
    desk, _ = started(next_offset=500)
    for log in (b"another log", b"log"):
        desk.detach()
        desk.attach(log)
    (ask,) = desk.asked()
    assert ask.start == 500


def test_the_same_log_is_not_read_again() -> None:
    desk, subscription = started()
    reconnect(desk)
    assert not [event for event in desk.events if isinstance(event, Missed)]
    assert subscription.state == "active"


def test_a_gap_before_the_start_is_missed() -> None:
    """A session comes back after the log has forgotten its place: the start is behind the gap already."""
    desk, subscription = started(next_offset=254)
    desk.bring(FEED, encode_in_band(Gap(count=200, next_offset=254)))
    assert subscription.take() is None
    assert (subscription.missed, subscription.position) == (200, 254)


def test_what_the_application_has_in_hand_is_not_missed() -> None:
    desk, subscription = started()
    desk.bring(FEED, batch([b"0", b"1", b"2"], 0))
    subscription.take()
    reconnect(desk)
    desk.bring(FEED, encode_in_band(Gap(count=5, next_offset=5)))
    desk.bring(FEED, batch([b"5"], 5))
    assert payloads(subscription.take()) == [b"5"]
    assert subscription.missed == 2
    assert desk.events[-1] == Missed(subscription, 2, live=False, next_offset=5)


def test_what_was_given_is_not_missed_however_the_broker_counts() -> None:
    """It knows only how many offsets are gone, not which topics they had."""
    desk, subscription = started()
    desk.bring(FEED, batch([b"0"], 0))
    desk.bring(FEED, batch([b"7"], 7))
    reconnect(desk)
    desk.bring(FEED, encode_in_band(Gap(count=8, next_offset=8)))
    desk.bring(FEED, batch([b"8"], 8))
    assert payloads(take_all(subscription)) == [b"0", b"7", b"8"]
    assert subscription.missed == 0
    desk.bring(FEED, encode_in_band(Gap(count=9, next_offset=12)))
    assert subscription.take() is None
    assert subscription.missed == 3


def test_retained_messages_that_come_again_are_known() -> None:
    desk, subscription = started(next_offset=9)
    assert desk.inbox.connection is not None
    desk.bring(FEED, batch([b"kept"], 3, retain=True))
    assert payloads(take_all(subscription)) == [b"kept"]
    desk.detach()
    desk.attach()
    (ask,) = desk.asked()
    assert (ask.start, ask.retained) == (9, True)
    desk.agree(ask, 9)
    desk.bring(FEED, batch([b"kept"], 3, retain=True))
    desk.bring(FEED, batch([b"another"], 4, retain=True, topic=2) + batch([b"log"], 9))
    assert payloads(take_all(subscription)) == [b"another", b"log"]
    desk.detach()
    desk.attach()
    assert not desk.asked()[0].retained


def test_retained_messages_that_come_again_behind_newer_ones_are_not_given() -> None:
    """They wait, with what came behind them, while the connection is lost and the broker is asked for them again."""
    desk, subscription = started(next_offset=9)
    desk.bring(FEED, batch([b"kept"], 3, retain=True))
    desk.bring(FEED, batch([b"log"], 9))
    desk.detach()
    desk.attach()
    (ask,) = desk.asked()
    assert (ask.start, ask.retained) == (9, True)
    desk.agree(ask, 9)
    desk.bring(FEED, batch([b"kept"], 3, retain=True))
    desk.bring(FEED, batch([b"log"], 9))
    desk.bring(FEED, batch([b"more"], 10))
    assert payloads(take_all(subscription)) == [b"kept", b"log", b"more"]


@given(st.data())
def test_no_message_is_lost_or_given_twice_or_counted_wrongly(data: st.DataObject) -> None:
    """The broker sends from where it is asked to, in records of any size; the connection breaks anywhere; the log
    forgets its oldest messages."""
    desk, subscription = started()
    log = [b"%d" % place for place in range(data.draw(st.integers(0, 60)))]
    sent = floor = 0
    taken: list[bytes] = []

    def skip_forgotten() -> int:
        if sent < floor:
            desk.bring(FEED, encode_in_band(Gap(count=floor - sent, next_offset=floor)))
        return max(sent, floor)

    for step in data.draw(st.lists(st.sampled_from(["send", "send", "take", "take", "break", "forget"]), max_size=60)):
        if step == "send" and sent < len(log):
            count = data.draw(st.integers(1, 10))
            desk.bring(FEED, batch(log[sent : sent + count], sent))
            sent = min(sent + count, len(log))
        elif step == "take":
            taken += payloads(subscription.take())
        elif step == "break":
            desk.detach()
            if data.draw(st.booleans()):
                taken += payloads(subscription.take())
            desk.attach()
            (ask,) = desk.asked()
            assert isinstance(ask.start, int)
            sent = ask.start
            desk.agree(ask, sent)
            sent = skip_forgotten()
        elif step == "forget":
            floor = data.draw(st.integers(floor, len(log)))
            sent = skip_forgotten()
        assert [int(payload) for payload in taken] == sorted({int(payload) for payload in taken})
        assert subscription.missed <= len(log) - len(taken)
    if sent < len(log):
        desk.bring(FEED, batch(log[sent:], sent))
    taken += payloads(take_all(subscription))
    assert [int(payload) for payload in taken] == sorted({int(payload) for payload in taken})
    assert len(taken) + subscription.missed == len(log)
    assert desk.violations == []


# -- nonsense and the end ---------------------------------------------------------------------------------------------


def test_nonsense_ends_the_connection_not_the_application() -> None:
    for body in (b"\xff\x00", b"\x00", batch([b"x"], 0, topic=77), encode_in_band(Labels())[:-1]):
        desk, subscription = started()
        desk.bring(FEED, body)
        desk.bring(FEED, batch([b"behind"], 0))
        assert subscription.take() is None
        assert len(desk.violations) == 1
        assert not subscription.has_records


def test_after_its_end_it_gives_nothing_and_gives_credit_back() -> None:
    desk, subscription = started()
    desk.bring(FEED, batch([b"a"], 0))
    desk.bring(FEED, batch([b"b"], 1))
    subscription.take()
    desk.inbox.unsubscribe(subscription, keep=False)
    assert subscription.state == "ended"
    assert len(desk.connection.consumed) == 2
    assert subscription.take() is None
    assert len(desk.connection.consumed) == 2
    desk.bring(FEED, batch([b"c"], 2))
    assert len(desk.connection.consumed) == 3
    assert subscription.take() is None


def test_one_that_is_kept_confirms_nothing_at_its_end() -> None:
    """A confirm may arrive before the end of the subscription does, or alone: what it covers is never sent again."""
    desk, subscription = started()
    for offset in range(3):
        desk.bring(FEED, batch([b"x"], offset))
    subscription.take()
    subscription.take()
    confirmed = list(desk.connection.confirmed)
    desk.inbox.unsubscribe(subscription, keep=True, offset=1)
    assert desk.connection.confirmed == confirmed
    assert len(desk.connection.consumed) == 3  # the credit is given back all the same


def test_a_connection_that_has_just_closed_is_no_error() -> None:
    desk, subscription = started()
    desk.bring(FEED, batch([b"a"], 0))
    subscription.take()
    desk.connection.is_closed = True
    assert subscription.take() is None


# -- an older copy of the log was put back ----------------------------------------------------------------------------

OLD, NEW, NEWER = (Epoch(bytes([letter]) * 8, 0) for letter in b"onr")


def read_to(next_offset: int) -> tuple[Desk, Subscription]:
    """A subscription whose application has had everything below an offset, in a log of one epoch."""
    desk = Desk()
    desk.attach(epochs=[OLD])
    subscription = desk.started()
    desk.bring(FEED, batch([b"%d" % place for place in range(next_offset)], 0))
    take_all(subscription)
    desk.events.clear()
    return desk, subscription


def come_back(desk: Desk, same_below: int, *epochs: Epoch) -> None:
    """On another connection the log has other messages from an offset on."""
    desk.detach()
    desk.attach(epochs=epochs or [OLD, NEW])
    (ask,) = desk.asked()
    assert isinstance(ask.start, int)
    assert ask.epochs
    desk.agree(ask, min(ask.start, same_below), same_below)


def missed(desk: Desk) -> list[Missed]:
    return [event for event in desk.events if isinstance(event, Missed)]


def test_it_goes_back_to_where_the_log_has_other_messages() -> None:
    desk, subscription = read_to(10)
    come_back(desk, 6)
    assert missed(desk) == [Missed(subscription, None, next_offset=6, had_below=10)]
    assert (subscription.position, subscription.resume_at, subscription.replaced) == (6, 6, (6, 10))
    desk.bring(FEED, batch([b"new 6", b"new 7"], 6))
    assert payloads(take_all(subscription)) == [b"new 6", b"new 7"]
    assert subscription.epochs == (OLD, NEW)


def test_nothing_is_said_if_the_log_has_what_was_read() -> None:
    desk, subscription = read_to(10)
    come_back(desk, 10)
    desk.bring(FEED, batch([b"new"], 10))
    assert payloads(take_all(subscription)) == [b"new"]
    assert missed(desk) == []
    assert subscription.replaced is None


def test_the_same_process_is_not_asked_to_compare() -> None:
    desk, _ = read_to(10)
    desk.detach()
    desk.attach(epochs=[OLD])
    (ask,) = desk.asked()
    assert (ask.start, ask.epochs) == (10, [])


def test_what_is_held_comes_before_it_goes_back() -> None:
    """Messages that only the former log had are messages all the same, and the position may still lie before them."""
    desk, subscription = read_to(4)
    desk.bring(FEED, batch([b"old 4", b"old 5", b"old 6"], 4))
    come_back(desk, 5)
    desk.bring(FEED, batch([b"old 4", b"new 5", b"new 6"], 4))
    assert missed(desk) == []
    assert payloads(subscription.take()) == [b"old 4", b"old 5", b"old 6"]
    assert payloads(subscription.take()) == [b"new 5", b"new 6"]
    assert missed(desk) == [Missed(subscription, None, next_offset=5, had_below=7)]
    assert subscription.position == 7


def test_what_the_application_works_on_is_not_done_in_the_new_log() -> None:
    desk, subscription = read_to(4)
    desk.bring(FEED, batch([b"old 4", b"old 5", b"old 6"], 4))
    assert len(subscription.take() or []) == 3
    come_back(desk, 5)
    assert missed(desk) == []
    assert subscription.reached(7) == 5
    assert subscription.reached(4) == 4
    assert subscription.take() is None
    assert subscription.replaced == (5, 7)
    assert [subscription.reached(offset) for offset in (4, 5, 6, 7, 8)] == [4, 5, 5, 5, 8]
    desk.bring(FEED, batch([b"new"] * 3, 5))
    take_all(subscription)
    assert subscription.reached(7) == 7


def test_it_goes_back_as_far_as_the_earliest_of_several_connections_says() -> None:
    desk, subscription = read_to(4)
    for place in (4, 5, 6):
        desk.bring(FEED, batch([b"old %d" % place], place))
    come_back(desk, 5)
    desk.bring(FEED, batch([b"new 5", b"new 6"], 5))
    assert payloads(subscription.take()) == [b"old 4"]
    assert payloads(subscription.take()) == [b"old 5"]
    assert payloads(subscription.take()) == [b"old 6"]
    desk.detach()
    desk.attach(epochs=[OLD, NEW])  # it broke, and the log is the same as before
    (ask,) = desk.asked()
    assert (ask.start, ask.epochs) == (5, [])
    desk.agree(ask, 5)
    desk.bring(FEED, batch([b"new 5", b"new 6"], 5))
    assert payloads(take_all(subscription)) == [b"new 5", b"new 6"]
    assert subscription.replaced == (5, 7)


def test_nothing_stays_of_a_connection_that_was_not_compared() -> None:
    desk, subscription = read_to(4)
    desk.detach()
    desk.attach(epochs=[OLD, NEW])
    desk.open()
    desk.bring(FEED, batch([b"of some log"], 4))  # before the broker has said what its offsets are worth
    come_back(desk, 2, OLD, NEWER)
    desk.bring(FEED, batch([b"new 2", b"new 3", b"new 4"], 2))
    assert payloads(take_all(subscription)) == [b"new 2", b"new 3", b"new 4"]


def test_a_log_that_has_nothing_in_common_is_read_from_its_beginning() -> None:
    desk, subscription = read_to(10)
    desk.detach()
    desk.attach(epochs=[NEW])
    (ask,) = desk.asked()
    desk.agree(ask, 3, same_below=0)  # it begins at 3
    desk.bring(FEED, batch([b"new"], 3))
    assert payloads(take_all(subscription)) == [b"new"]
    assert missed(desk) == [Missed(subscription, None, next_offset=0, had_below=10)]


def test_a_bookmark_is_compared_when_the_subscription_begins() -> None:
    _, former = read_to(10)
    bookmark = former.bookmark(10)
    assert bookmark == Bookmark(10, b"log", (OLD,))
    for same_below, expected in ((10, None), (6, (6, 10))):
        desk = Desk()
        desk.attach(epochs=[OLD, NEW])
        subscription = desk.inbox.subscribe(("a/#",), start=bookmark, since_us=None, cursor=None)
        (ask,) = desk.asked()
        assert (ask.start, ask.epochs) == (10, [OLD])
        desk.agree(ask, same_below, same_below)
        assert subscription.replaced == expected
        assert missed(desk) == ([] if expected is None else [Missed(subscription, None, next_offset=6, had_below=10)])
        desk.bring(FEED, batch([b"new"], same_below))
        assert payloads(take_all(subscription)) == [b"new"]


def test_a_bookmark_of_another_log_begins_at_the_beginning() -> None:
    desk = Desk()
    desk.attach(b"another", epochs=[OLD])
    subscription = desk.inbox.subscribe(("a/#",), start=Bookmark(10, b"log", (OLD,)), since_us=None, cursor=None)
    (ask,) = desk.asked()
    assert (ask.start, ask.epochs) == ("earliest", [])
    desk.agree(ask, 2)
    assert missed(desk) == [Missed(subscription, None, next_offset=2)]
