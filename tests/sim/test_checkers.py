"""Each checker accepts what is right and catches what is deliberately wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from godwit_sim.checkers import ConfirmChecker, DeliveryChecker, LifeChecker, ViolationError

FLOW = ("c0.1", "up", 1)
CLIENT, SERVER = "c0.1@client", "c0.1@server.1"


@pytest.fixture
def delivery() -> DeliveryChecker:
    checker = DeliveryChecker()
    for body in (b"one", b"two", b"three"):
        checker.sent(FLOW, body)
    return checker


def test_everything_in_order(delivery: DeliveryChecker) -> None:
    for body in (b"one", b"two", b"three"):
        delivery.received(FLOW, body)
    delivery.complete()
    assert delivery.received_records == 3
    assert delivery.received_bytes == 11
    assert delivery.received_on(FLOW) == 3
    assert delivery.received_on(("x", "up", 9)) == 0


def wrong(*bodies: bytes) -> Callable[[DeliveryChecker], None]:
    def play(delivery: DeliveryChecker) -> None:
        for body in bodies:
            delivery.received(FLOW, body)

    return play


@pytest.mark.parametrize(
    ("play", "text"),
    [
        (wrong(b"two"), "record 1 came where record 0 was due"),
        (wrong(b"one", b"one"), "differ from the 3 sent, or came twice"),
        (wrong(b"one", b"tWo"), "differ"),
        (wrong(b"one", b"two", b"three", b"three"), "more than were sent"),
        (lambda d: d.received(("c0.1", "down", 1), b"one"), "nothing was sent"),
        (lambda d: d.received(("c0.1", "up", 2), b"one"), "nothing was sent"),
        (lambda d: d.received(FLOW, b"one", last=True), "last=True"),
        (lambda d: d.received(FLOW, b"one", reliable=False), "unreliable"),
    ],
)
def test_wrong_deliveries(delivery: DeliveryChecker, play: Callable[[DeliveryChecker], None], text: str) -> None:
    with pytest.raises(ViolationError, match=text):
        play(delivery)


def test_record_numbers_never_go_back(delivery: DeliveryChecker) -> None:
    delivery.received(FLOW, b"one", record=5)
    with pytest.raises(ViolationError, match="record 5 after record 5"):
        delivery.received(FLOW, b"two", record=5)


def test_nothing_follows_the_last_record() -> None:
    delivery = DeliveryChecker()
    delivery.sent(FLOW, b"end", last=True)
    delivery.sent(FLOW, b"more")
    delivery.received(FLOW, b"end", last=True)
    with pytest.raises(ViolationError, match="after the channel's last"):
        delivery.received(FLOW, b"more")


def test_unreliable_records_in_any_order_at_most_once() -> None:
    delivery = DeliveryChecker()
    for body in (b"a", b"b", b"b", b"lost"):
        delivery.sent(FLOW, body, reliable=False)
    for body in (b"b", b"a", b"b"):
        delivery.received(FLOW, body, reliable=False)
    delivery.complete()
    with pytest.raises(ViolationError, match="twice"):
        delivery.received(FLOW, b"b", reliable=False)


def test_what_never_arrives_is_missed(delivery: DeliveryChecker) -> None:
    delivery.received(FLOW, b"one")
    assert delivery.outstanding() == {FLOW: 2}
    with pytest.raises(ViolationError, match="2 records never arrived"):
        delivery.complete()


def test_an_ended_connection_owes_nothing_but_stays_honest(delivery: DeliveryChecker) -> None:
    delivery.forget("c0.1")
    delivery.complete()
    delivery.received(FLOW, b"one")
    with pytest.raises(ViolationError, match="out of order"):
        delivery.received(FLOW, b"three")


def test_a_new_beginning_needs_that_nothing_had_arrived(delivery: DeliveryChecker) -> None:
    delivery.sent(("c0.1", "down", 1), b"other")
    delivery.forget("c0.1")
    delivery.restart("c0.1", "up")
    assert delivery.outstanding() == {("c0.1", "down", 1): 1}
    delivery.received(("c0.1", "down", 1), b"other")
    with pytest.raises(ViolationError, match="made twice"):
        delivery.restart("c0.1", "down")


def test_confirms() -> None:
    confirms = ConfirmChecker()
    confirms.given(FLOW, 3, 1)
    confirms.given(FLOW, 6, 2)
    assert confirms.outstanding() == [FLOW]
    confirms.got(FLOW, 6, 2)  # cumulative: the first may be overtaken
    confirms.complete()
    with pytest.raises(ViolationError, match="sequence 3 after 6"):
        confirms.got(FLOW, 3, 1)


@pytest.mark.parametrize(("sequence", "reached"), [(4, 1), (3, 2)])
def test_confirms_that_nobody_gave(sequence: int, reached: int) -> None:
    confirms = ConfirmChecker()
    confirms.given(FLOW, 3, 1)
    with pytest.raises(ViolationError, match="never confirmed"):
        confirms.got(FLOW, sequence, reached)


def test_the_last_confirm_must_arrive() -> None:
    confirms = ConfirmChecker()
    confirms.given(FLOW, 3, 1)
    with pytest.raises(ViolationError, match="never arrived"):
        confirms.complete()
    confirms.forget("c0.1")
    confirms.complete()


@pytest.fixture
def life() -> LifeChecker:
    checker = LifeChecker()
    for end in (CLIENT, SERVER):
        checker.opened(end)
        checker.connected(end)
    return checker


def test_a_whole_life(life: LifeChecker) -> None:
    life.active(SERVER, "Received")
    life.asked(CLIENT, 7, "enough")
    life.closed(CLIENT, 7, "enough", "local")
    assert life.unclosed() == [SERVER]
    life.closed(SERVER, 7, "enough", "peer")
    life.complete()


@pytest.mark.parametrize(
    ("play", "text"),
    [
        (lambda c: c.opened(CLIENT), "opened twice"),
        (lambda c: c.connected(CLIENT), "Connected twice"),
        (lambda c: c.active("c9.1@client", "Received"), "nobody opened"),
        (lambda c: c.closed(CLIENT, 7, "x", "local"), r"asked for \[\]"),
        (lambda c: c.closed(CLIENT, 7, "x", "peer"), r"other end asked for \[\]"),
        (lambda c: c.closed(CLIENT, 0, "", "reset"), "neither closed nor dead"),
        (lambda c: c.closed(CLIENT, 0, "", "fate"), "unknown origin"),
        (lambda c: c.complete(), "never Closed"),
    ],
)
def test_wrong_lives(life: LifeChecker, play: Callable[[LifeChecker], None], text: str) -> None:
    with pytest.raises(ViolationError, match=text):
        play(life)


def test_nothing_before_connected() -> None:
    life = LifeChecker()
    life.opened(CLIENT)
    with pytest.raises(ViolationError, match="Received before Connected"):
        life.active(CLIENT, "Received")


@pytest.mark.parametrize("again", ["Closed", "Received"])
def test_nothing_after_closed(life: LifeChecker, again: str) -> None:
    life.closed(CLIENT, 0, "", "timeout")
    with pytest.raises(ViolationError, match=f"{again} after Closed"):
        life.closed(CLIENT, 0, "", "timeout") if again == "Closed" else life.active(CLIENT, again)


def test_a_death_excuses_a_reset_and_owes_no_closed(life: LifeChecker) -> None:
    life.died(SERVER)
    life.closed(CLIENT, 0, "", "reset")
    life.complete()


def test_the_reason_must_be_the_one_given(life: LifeChecker) -> None:
    life.asked(SERVER, 8, "no more")
    with pytest.raises(ViolationError, match="no more"):
        life.closed(CLIENT, 8, "no moré", "peer")
