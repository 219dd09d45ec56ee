"""Requests for lists: fair between clients, and within a budget of work."""

from __future__ import annotations

from tests.broker.world import Peer, World

from godwit.broker.administration import MAX_LISTS_WAITING, STEPS_PER_S, STEPS_PER_SEARCH, STEPS_PER_TURN
from godwit.broker.settings import Settings
from godwit.wire import control as c
from godwit.wire.control import Code

TOPICS = 3 * STEPS_PER_TURN
PAGE_S = STEPS_PER_SEARCH / STEPS_PER_S


def crowded() -> World:
    return World(Settings(topics=tuple(f"room{number}/temperature" for number in range(TOPICS))))


def ask(peer: Peer, count: int) -> None:
    """Lists that match nothing, all in one turn."""
    for _ in range(count):
        peer.say(c.Topics(request=peer.number(), filter="*/zzz"))


def test_requests_that_match_nothing_do_not_stop_the_broker() -> None:
    world = crowded()
    eve, alice = world.client("eve"), world.client("alice")
    ask(eve, 120)
    alice.say(c.Ping(request=77))
    world.run()
    answered = len(eve.all(c.TopicList))
    assert answered <= STEPS_PER_TURN // STEPS_PER_SEARCH + 1, "one turn answers only a few"
    assert alice.last(c.Pong).request == 77
    world.pass_s(120 * PAGE_S)
    pages = eve.all(c.TopicList)
    assert len(pages) == 120, "the others follow"
    assert all(page.more and not page.topics and page.after for page in pages)


def test_a_client_with_many_requests_does_not_keep_another_waiting() -> None:
    world = crowded()
    eve, alice = world.client("eve"), world.client("alice")
    ask(eve, 200)
    ask(alice, 1)
    world.run()
    world.pass_s(3 * PAGE_S)
    assert len(alice.all(c.TopicList)) == 1
    assert len(eve.all(c.TopicList)) < 10


def test_requests_that_wait_are_bounded_and_the_one_too_many_is_answered() -> None:
    world = crowded()
    eve = world.client("eve")
    ask(eve, 2 * MAX_LISTS_WAITING)
    world.run()
    errors = eve.all(c.Error)
    assert {Code(error.code) for error in errors} == {Code.TOO_MANY}
    world.pass_s(2 * MAX_LISTS_WAITING * PAGE_S)
    assert len(eve.all(c.TopicList)) + len(eve.all(c.Error)) == 2 * MAX_LISTS_WAITING
    assert eve.closed is None


def test_requests_of_a_client_that_left_are_dropped() -> None:
    world = crowded()
    eve = world.client("eve")
    ask(eve, 100)
    world.run()
    eve.die()
    world.pass_s(2 * PAGE_S)
    assert world.server.broker.lists.due_us is None


def test_a_bad_request_in_the_queue_is_answered_with_its_error() -> None:
    world = crowded()
    eve = world.client("eve")
    ask(eve, 30)
    eve.say(c.Topics(request=99, filter="a/#/b"))
    world.run()
    world.pass_s(31 * PAGE_S)
    (error,) = eve.all(c.Error)
    assert (error.request, error.code) == (99, Code.BAD_FILTER)
