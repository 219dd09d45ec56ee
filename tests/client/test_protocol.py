"""The client as a whole with a scripted broker: login, reconnects, application calls, events."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import get_args

import pytest
from tests.client.work_broker import at_work, spec
from tests.client.world import BROKER, FakeBroker, Link, Network, User, online

from godwit.client.config import ClientConfig, make_login, welcome_problem
from godwit.client.dialer import RESTART_SPREAD_S
from godwit.client.events import (
    Available,
    BufferAvailable,
    ClientEvent,
    Confirmed,
    Ended,
    Offline,
    Online,
    Refused,
    Reply,
    SubscriptionEnded,
    SubscriptionStarted,
    Unanswered,
)
from godwit.client.protocol import UNANSWERED_S, ClientProtocol
from godwit.errors import FINAL_CODES, BadFilterError, BadTopicError, BufferFullError, UsageError
from godwit.limits import LOGIN_TIMEOUT_S, MAX_FILTERS, MIB
from godwit.transport.config import EndpointConfig
from godwit.transport.events import Address, Train
from godwit.wire import control
from godwit.wire.batch import decode_batches
from godwit.wire.control import (
    Create,
    Done,
    Error,
    Login,
    Ping,
    Pong,
    TopicList,
    Topics,
    Welcome,
    Will,
    is_proof,
    make_proof,
)
from godwit.wire.control_base import Code

NOWHERE = ("203.0.113.1", 50000)


# -- coming online ----------------------------------------------------------------------------------------------------


def test_login_is_the_first_message_and_the_welcome_has_the_name() -> None:
    will = Will(topic="gone", payload=b"bye")
    _, broker, user = online(config=ClientConfig(name="sensor-1", will=will, session_expiry_s=60))
    login = broker.link.login
    assert login is not None
    assert (login.name, login.instance, login.will, login.session_expiry_s) == (
        "sensor-1",
        user.client.instance,
        will,
        60,
    )
    assert broker.link.received == [login]
    assert user.log == [Online(False, "sensor-1")]
    assert user.client.name == "sensor-1"


def test_the_broker_assigns_a_name_to_a_nameless_client() -> None:
    _, _, user = online()
    assert user.client.name == "nameless"


def test_both_sides_prove_the_secret() -> None:
    network = Network()
    broker = FakeBroker(network)
    broker.secrets["n"] = b"secret"
    user = User(network, ClientConfig(name="n", secret=b"secret"))
    user.until("online")


def test_a_broker_that_does_not_know_the_secret_is_left_for_good() -> None:
    network = Network()
    broker = FakeBroker(network)
    broker.secrets["n"] = b"another secret"
    user = User(network, ClientConfig(name="n", secret=b"secret"))
    user.until("closed")
    (ended,) = user.all(Ended)
    assert ended.code == Code.NOT_ALLOWED
    assert "did not prove" in ended.reason
    assert user.all(Online) == []


@pytest.mark.parametrize("code", [*sorted(FINAL_CODES), Code.NAME_IN_USE])
def test_final_codes_at_the_login(code: Code) -> None:
    network = Network()
    broker = FakeBroker(network)
    broker.welcomes = False
    user = User(network)
    network.run_until(lambda: bool(broker.links and broker.link.login))
    broker.link.connection.close(network.now, code, "go away")
    user.until("closed")
    assert user.all(Ended) == [Ended(code, "go away")]
    network.run(60)
    assert len(broker.links) == 1


@pytest.mark.parametrize("code", sorted(FINAL_CODES))
def test_final_codes_later(code: Code) -> None:
    network, broker, user = online()
    broker.link.connection.close(network.now, code, "go away")
    user.until("closed")
    network.run(60)
    assert len(broker.links) == 1
    with pytest.raises(UsageError, match="closed"):
        user.client.publisher("t")


@pytest.mark.parametrize(
    "code", [Code.NORMAL, Code.SHUTDOWN, Code.PROTOCOL, Code.LIMIT, Code.BUSY, Code.INTERNAL, Code.NAME_IN_USE, 9999]
)
def test_after_other_codes_it_reconnects(code: int) -> None:
    network, broker, user = online()
    broker.link.connection.close(network.now, code, "later")
    user.until("offline")
    (offline,) = user.all(Offline)
    assert (offline.code, offline.reason) == (code, "later")
    assert 0.1 <= offline.retry_in_s <= (RESTART_SPREAD_S if code == Code.SHUTDOWN else 0.2)
    user.until("online", 2.0)
    assert len(broker.links) == 2
    assert [login.instance for link in broker.links for login in link.all(Login)] == [user.client.instance] * 2


def test_a_refused_login_that_comes_as_an_error_counts_too() -> None:
    network = Network()
    broker = FakeBroker(network)
    broker.welcomes = False
    user = User(network)
    network.run_until(lambda: bool(broker.links and broker.link.login))
    login = broker.link.login
    assert login is not None
    broker.link.send(Error(code=Code.BAD_NAME, text="no such name", request=login.request))
    user.until("closed")


def test_a_broker_without_a_welcome_is_tried_again() -> None:
    network = Network()
    broker = FakeBroker(network)
    broker.welcomes = False
    user = User(network)
    user.until("offline", LOGIN_TIMEOUT_S + 1)
    assert user.all(Offline)[0].code == Code.TIMEOUT
    broker.welcomes = True
    user.until("online", 2.0)


def test_a_client_started_before_its_broker_gets_through() -> None:
    network = Network()
    user = User(network)
    network.run(37.0)
    assert user.all(Online) == []
    assert 2 <= len(user.all(Offline)) <= 4
    FakeBroker(network)
    user.until("online", 6.0)


def test_the_address_that_answers_is_found_soon() -> None:
    network = Network()
    FakeBroker(network)
    user = User(network, targets=(NOWHERE, BROKER))
    user.until("online", 1.0)


def test_a_second_connection_is_closed() -> None:
    """Both addresses lead to a broker, the first of them slowly."""
    network = Network(delay_s=0.3)
    first, second = FakeBroker(network), FakeBroker(network, address=NOWHERE)
    user = User(network, targets=(BROKER, NOWHERE))
    user.until("online")
    network.run(5)
    assert [len(broker.links) for broker in (first, second)].count(1) >= 1
    assert len([link for broker in (first, second) for link in broker.links if link.login]) == 1
    assert user.all(Offline) == []


def test_new_addresses_for_the_same_broker() -> None:
    network = Network()
    user = User(network, targets=(NOWHERE,))
    network.run(2)
    FakeBroker(network)
    user.client.connect([BROKER], network.now)
    user.until("online", 12.0)


def test_the_same_addresses_again_keep_their_turns() -> None:
    """Names are resolved before each round: a round must not begin with the same address each time for that."""
    network = Network()
    user = User(network, targets=(NOWHERE, BROKER))
    tried = []
    for _ in range(3):
        tried.append(user.client._dialer._addresses[0])
        user.client.connect([NOWHERE, BROKER], network.now)
        user.until("offline", 12.0)
        user.client.connect([NOWHERE, BROKER], network.now)
        user.until("connecting", 12.0)
    assert set(tried) == {NOWHERE, BROKER}


# -- several brokers, some of which refuse ----------------------------------------------------------------------------


class RefusingBroker(FakeBroker):
    """Refuses every login with a code."""

    def __init__(self, network: Network, address: Address, code: int) -> None:
        super().__init__(network, address=address)
        self.code = code

    def welcome(self, link: Link) -> None:
        link.connection.close(self.network.now, self.code, "not here")


REFUSALS = [*sorted(FINAL_CODES - {Code.KICKED, Code.TAKEN_OVER}), Code.NAME_IN_USE]


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("delay_s", [0.005, 0.1])
def test_a_refusal_by_one_of_several_brokers_does_not_end_the_client(code: Code, delay_s: float) -> None:
    """At 0.1 s the other broker is tried, and refuses, before the first one has answered."""
    network = Network(delay_s=delay_s)
    broker, other = FakeBroker(network), RefusingBroker(network, NOWHERE, code)
    broker.stop()
    user = User(network, targets=(NOWHERE, BROKER))
    network.run_until(lambda: len(other.links) >= 3)
    broker.start()
    user.until("online", 20.0)
    user.client.publisher("t").send(b"1", network.now_us)
    network.run(1)
    broker.stop()
    user.client.publisher("t").send(b"2", network.now_us)
    refused = len(other.links)
    network.run_until(lambda: len(other.links) > refused)
    broker.start()
    network.run_until(lambda: broker.messages("t") == [b"1", b"2"], 20.0)


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_by_all_brokers_ends_the_client(code: Code) -> None:
    network = Network()
    brokers = [RefusingBroker(network, BROKER, Code.NOT_ALLOWED), RefusingBroker(network, NOWHERE, code)]
    user = User(network, targets=(BROKER, NOWHERE))
    user.until("closed")
    assert user.all(Ended) == [Ended(code, "not here")]
    network.run(60)
    assert [len(broker.links) for broker in brokers] == [1, 1]


@pytest.mark.parametrize("code", [Code.KICKED, Code.TAKEN_OVER])
def test_a_client_that_was_removed_tries_no_other_broker(code: Code) -> None:
    network = Network()
    FakeBroker(network)
    other = FakeBroker(network, address=NOWHERE)
    user = User(network, targets=(NOWHERE, BROKER))
    user.until("online")
    other.link.connection.close(network.now, code, "go away")
    user.until("closed")
    assert user.all(Ended) == [Ended(code, "go away")]


def test_a_refusal_ends_the_client_if_its_other_addresses_lead_to_the_same_broker() -> None:
    """As with a host name that has an address of each family, of which the broker uses only one."""
    network = Network()
    broker = RefusingBroker(network, BROKER, Code.NOT_ALLOWED)
    user = User(network, targets=(NOWHERE, BROKER))
    user.client.connect([NOWHERE, BROKER], network.now, brokers={NOWHERE: "plant", BROKER: "plant"})
    user.until("closed")
    assert len(broker.links) == 1


# -- a broker that does not answer ------------------------------------------------------------------------------------


def gone(user: User, limit_s: float) -> Offline:
    """Wait until the client has noticed that its broker is gone, which has to happen within a time."""
    user.until("offline", limit_s)
    return user.all(Offline)[0]


def test_a_broker_that_is_gone_is_noticed_soon_by_a_client_that_sends() -> None:
    network, broker, user = online()
    network.run(20)
    broker.stop()
    user.client.publisher("t").send(b"x", network.now_us)
    offline = gone(user, 3.2)
    assert offline.code == Code.TIMEOUT
    assert re.fullmatch(r"nothing was received from the broker for \d+\.\d s, although it was asked", offline.reason)
    broker.start()
    user.until("online", 2.0)
    network.run(1)
    assert broker.messages("t") == [b"x"]


def test_a_broker_that_is_gone_is_noticed_soon_by_a_client_that_waits_for_a_reply() -> None:
    """The transport has acknowledged everything, but the broker owes a reply."""
    network, broker, user = online()
    user.client.request(lambda number: control.Clients(request=number))
    network.run(0.5)
    assert user.client._connection is not None
    assert user.client._connection.unanswered_since is None
    broker.stop()
    assert gone(user, 5.0).code == Code.TIMEOUT


def test_a_broker_that_takes_its_time_is_not_given_up() -> None:
    network, broker, user = online()
    number = user.client.request(lambda number: control.Clients(request=number))
    network.run(60)
    assert user.all(Offline) == []
    broker.link.send(control.ClientList(request=number))
    network.run(1)
    assert [reply.request for reply in user.all(Reply)] == [number]


def test_an_idle_client_does_not_ask() -> None:
    network, _, user = online()
    network.run(5)
    now, timer = network.now, user.client.next_timer()
    assert timer is not None
    assert timer > now + 2 * UNANSWERED_S  # the next keep-alive


def test_a_slow_path_is_not_given_up() -> None:
    network = Network(delay_s=1.6)
    broker = FakeBroker(network)
    user = User(network)
    user.until("online")
    for number in range(5):
        user.client.publisher("t").send(str(number).encode(), network.now_us)
        network.run(10)
    assert user.all(Offline) == []
    assert broker.messages("t") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_report_of_the_network_ends_an_unanswered_connection_only() -> None:
    network, broker, user = online()
    network.run(5)
    user.client.handle_unreachable(BROKER, network.now)
    network.run(1)
    broker.stop()
    user.client.publisher("t").send(b"x", network.now_us)
    network.drain()
    user.client.handle_unreachable(BROKER, network.now)  # too early: the broker had no time to answer
    assert user.client.state == "online"
    network.run_until(lambda: bool(user.all(Unanswered)), 1.2)
    assert user.all(Unanswered)[0].address == BROKER
    user.client.handle_unreachable(NOWHERE, network.now)
    assert user.client.state == "online"
    user.client.handle_unreachable(BROKER, network.now)
    assert "and the network reports that nothing listens there" in gone(user, 0.1).reason


def test_pauses_grow_while_the_broker_sends_it_away_and_shrink_when_it_worked_for_a_while() -> None:
    network, broker, user = online()
    for _ in range(8):
        broker.link.connection.close(network.now, Code.BUSY, "")
        user.until("offline")
        user.until("online")
    waits = [offline.retry_in_s for offline in user.all(Offline)]
    assert max(waits[4:]) > 1.0
    network.run(10)
    broker.link.connection.close(network.now, Code.BUSY, "")
    user.until("offline")
    assert user.all(Offline)[-1].retry_in_s <= 0.2


# -- publishing -------------------------------------------------------------------------------------------------------


def test_one_message_goes_at_once_and_is_confirmed() -> None:
    network, broker, user = online()
    publisher = user.client.publisher("home/room1")
    assert publisher.send(b"21.5", network.now_us) == 0
    network.run(3 * network.delay_s)
    assert broker.messages("home/room1") == [b"21.5"]
    network.run_until(lambda: publisher.confirmed_sequence == 1, 0.1)
    assert user.all(Confirmed) == [Confirmed(publisher, 1, 2)]
    assert (publisher.reached, publisher.subscribers) == (2, 3)


def test_messages_sent_while_the_network_is_busy_fill_batches_by_themselves() -> None:
    network, broker, user = online()
    publisher = user.client.publisher("t")
    for place in range(20_000):
        publisher.send(b"%05d" % place + bytes(95), network.now_us)
        if place % 50 == 0:
            network.step(network.now + 0.0001)
    network.run_until(lambda: publisher.is_idle)
    got = broker.messages("t")
    assert [int(payload[:5]) for payload in got] == list(range(20_000))
    assert len(broker.stored) < 200


def test_while_there_is_no_broker_messages_wait() -> None:
    network = Network()
    user = User(network)
    publisher = user.client.publisher("t")
    for place in range(100):
        publisher.send(b"%d" % place, network.now_us + place * 1_000_000)
    network.run(3)
    broker = FakeBroker(network)
    user.until("online", 12.0)
    network.run_until(lambda: publisher.confirmed_sequence == 100)
    assert broker.messages("t") == [b"%d" % place for place in range(100)]
    (batch,) = decode_batches(broker.link.published[1].records[0])
    assert batch.deltas_us is not None
    assert batch.deltas_us[-1] == 99_000_000


def test_unconfirmed_records_are_sent_again_byte_for_byte_in_order() -> None:
    network, broker, user = online()
    broker.confirms = False
    publishers = [user.client.publisher("one", qos=1), user.client.publisher("two", qos=2)]
    for place in range(5):
        for publisher in publishers:
            publisher.send(b"%d" % place, network.now_us)
        network.run(0.1)
    first = broker.link
    assert [len(channel.records) for channel in first.published.values()] == [5, 5]
    broker.stop()
    network.run(1)
    broker.start()
    broker.confirms = True
    network.run_until(lambda: all(publisher.is_idle for publisher in publishers))
    second = broker.link
    assert second is not first
    assert {channel.open.topic: channel.records for channel in first.published.values()} == {
        channel.open.topic: channel.records for channel in second.published.values()
    }
    identities = {
        channel.open.publisher
        for link in (first, second)
        for channel in link.published.values()
        if channel.open.qos == 2
    }
    assert identities == {user.client.instance.hex()}


def test_confirmed_messages_are_not_sent_again() -> None:
    network, broker, user = online()
    publisher = user.client.publisher("t")
    publisher.send(b"safe", network.now_us)
    network.run_until(lambda: publisher.is_idle)
    broker.confirms = False
    publisher.send(b"not yet", network.now_us)
    network.run(0.1)
    broker.link.connection.close(network.now, Code.SHUTDOWN)
    broker.confirms = True
    network.run_until(lambda: publisher.is_idle)
    assert broker.messages("t") == [b"safe", b"not yet", b"not yet"]


def test_the_buffer_fills_and_empties() -> None:
    network, broker, user = online(config=ClientConfig(send_buffer_bytes=100_000))
    broker.confirms = False
    publisher = user.client.publisher("t")
    with pytest.raises(BufferFullError):  # noqa: PT012 -- it fills at some point
        while True:
            publisher.send(bytes(1000), network.now_us)
    assert user.client.held_bytes > 90_000
    network.run(1)
    assert user.all(BufferAvailable) == []
    for number, channel in broker.link.published.items():
        broker.link.connection.confirm(number, len(channel.records), 0)
    network.run(1)
    assert user.all(BufferAvailable) == [BufferAvailable(publisher)]
    publisher.send(bytes(1000), network.now_us)
    assert user.client.held_bytes < 10_000


def test_more_than_the_transport_holds_waits_for_room_there() -> None:
    config = ClientConfig(endpoint=EndpointConfig(send_buffer_bytes=50_000), send_buffer_bytes=4 * MIB)
    network, broker, user = online(config=config)
    publishers = [user.client.publisher(f"t/{place}") for place in range(3)]
    for place in range(1000):
        for publisher in publishers:
            publisher.send(b"%04d" % place + bytes(396), network.now_us)
    network.run_until(lambda: all(publisher.is_idle for publisher in publishers))
    for place in range(3):
        assert [int(payload[:4]) for payload in broker.messages(f"t/{place}")] == list(range(1000))


def test_qos_0_flows_without_loss_where_the_network_has_none() -> None:
    network, broker, user = online()
    publisher = user.client.publisher("t", qos=0)
    for place in range(10_000):
        publisher.send(b"%05d" % place + bytes(95), network.now_us)
    publisher.send(bytes(5000), network.now_us)
    network.run(5)
    assert [payload[:5] for payload in broker.messages("t", 0)[:-1]] == [b"%05d" % place for place in range(10_000)]
    assert broker.messages("t", 0)[-1] == bytes(5000)
    assert user.client.held_bytes == 0


def test_very_many_topics_on_few_channels() -> None:
    network, broker, user = online()
    for round_ in range(3):
        for place in range(700):
            user.client.publisher(f"t/{round_}/{place}").send(b"x", network.now_us)
        network.run(2)
    assert len(broker.stored) == 2100
    open_ones = [channel for channel in broker.link.published.values() if not channel.ended]
    assert len(open_ones) <= 1024 + 8
    assert user.client.held_bytes == 0


def test_more_topics_at_once_than_channels() -> None:
    network = Network()
    broker = FakeBroker(network, config=EndpointConfig(accepts=True, max_channels=50))
    user = User(network)
    user.until("online")
    for place in range(400):
        user.client.publisher(f"t/{place}").send(b"%d" % place, network.now_us)
    network.run(30)
    assert sorted(topic for topic, _, _ in broker.stored) == sorted(f"t/{place}" for place in range(400))
    assert len(user.all(Confirmed)) == 400
    assert user.all(Offline) == []


def test_a_refused_topic_fails_alone() -> None:
    network, broker, user = online()
    broker.refuses["secret"] = (Code.NOT_ALLOWED, "you may not")
    good, bad = user.client.publisher("t"), user.client.publisher("secret")
    good.send(b"x", network.now_us)
    bad.send(b"y", network.now_us)
    network.run(1)
    assert user.all(Refused) == [Refused(bad, Code.NOT_ALLOWED, "you may not", 0, 1)]
    assert user.all(Confirmed) == [Confirmed(good, 1, 2)]
    del broker.refuses["secret"]
    bad.send(b"z", network.now_us)
    network.run(1)
    assert broker.messages("secret") == [b"z"]


def test_a_queued_message_that_the_broker_finds_too_long_fails_alone() -> None:
    network = Network()
    user = User(network)
    publisher = user.client.publisher("t")
    for size in (10, 50_000, 20):
        publisher.send(bytes(size), network.now_us)
    FakeBroker(network, config=EndpointConfig(accepts=True, max_record_bytes=30_000))
    user.until("online", 12.0)
    network.run_until(lambda: publisher.is_idle)
    (refused,) = user.all(Refused)
    assert (refused.code, refused.first_sequence, refused.sequence) == (Code.TOO_LARGE, 1, 2)


def test_a_closed_publisher_ends_its_channel() -> None:
    network, broker, user = online()
    publisher = user.client.publisher("t")
    publisher.send(b"x", network.now_us)
    publisher.close()
    network.run(1)
    assert broker.link.published[1].ended
    assert broker.messages("t") == [b"x"]


# -- subscribing ------------------------------------------------------------------------------------------------------


def test_messages_come_in_order_and_are_confirmed_as_they_are_taken() -> None:
    network, broker, user = online()
    subscription = user.client.subscribe(["a/#", "c", "c"])
    network.run(1)
    assert user.all(SubscriptionStarted) == [SubscriptionStarted(subscription, 0)]
    assert subscription.filters == ("a/#", "c")
    broker.push(broker.link, [b"0", b"1"], 0)
    broker.push(broker.link, [b"2"], 2, topic=2)
    network.run(1)
    assert user.all(Available)
    first = subscription.take()
    assert first is not None
    assert [(message.topic, message.payload, message.offset) for message in first] == [
        ("a/b", b"0", 0),
        ("a/b", b"1", 1),
    ]
    assert user.take_all(subscription)[0].topic == "c"
    network.run(1)
    channels = broker.link.subscribed[0]
    assert (channels.feed, 3) in broker.link.confirmed


def test_a_slow_application_holds_the_broker_back() -> None:
    config = ClientConfig(endpoint=EndpointConfig(channel_window_bytes=100_000, connection_window_bytes=200_000))
    network, broker, user = online(config=config)
    subscription = user.client.subscribe(["a/b"])
    network.run(1)
    for place in range(100):
        broker.push(broker.link, [bytes(5000)], place)
    network.run(5)
    assert subscription.held_bytes <= 110_000
    taken = 0
    until = network.now + 60
    while taken < 100 and network.now < until:
        taken += len(user.take_all(subscription))
        network.run(0.05)
    assert taken == 100


def test_resubscribes_after_a_reconnect_without_loss_or_repeat() -> None:
    network, broker, user = online()
    subscription = user.client.subscribe(["a/b"])
    network.run(1)
    broker.push(broker.link, [b"0", b"1", b"2"], 0)
    network.run(1)
    assert len(subscription.take() or []) == 3
    broker.link.connection.close(network.now, Code.SHUTDOWN)
    network.run(1)
    ask = broker.link.subscribed[0].ask
    assert ask.start == 0  # the application has not asked for more than it was given
    broker.push(broker.link, [b"0", b"1", b"2", b"3"], 0)
    network.run(1)
    assert [message.payload for message in user.take_all(subscription)] == [b"3"]
    assert len(user.all(SubscriptionStarted)) == 1


def test_a_subscription_that_is_refused() -> None:
    network, broker, user = online()
    broker.answers = False
    subscription = user.client.subscribe(["a/b"])
    network.run(1)
    (ask,) = broker.link.all(control.Subscribe)
    broker.link.send(Error(code=Code.NOT_ALLOWED, text="you may not", request=ask.request))
    network.run(1)
    assert user.all(SubscriptionEnded) == [SubscriptionEnded(subscription, Code.NOT_ALLOWED, "you may not")]
    assert user.all(Reply) == []


def test_a_kicked_subscription() -> None:
    network, broker, user = online()
    subscription = user.client.subscribe(["a/b"])
    network.run(1)
    broker.link.send(control.Kicked(subscription=subscription.number, by="admin"))
    network.run(1)
    assert user.all(SubscriptionEnded)[0].code == Code.KICKED


def test_unsubscribing_is_answered() -> None:
    network, broker, user = online()
    subscription = user.client.subscribe(["a/b"])
    network.run(1)
    request = user.client.unsubscribe(subscription)
    network.run(1)
    assert user.all(Reply) == [Reply(request, Done(request=request))]
    again = user.client.unsubscribe(subscription)
    broker.answers = False
    network.run(1)
    broker.link.send(Error(code=Code.NOT_SUBSCRIBED, text="not subscribed", request=again))
    network.run(1)
    assert isinstance(user.all(Reply)[-1].message, Error)


# -- requests ---------------------------------------------------------------------------------------------------------


def test_requests_are_answered_and_asked_again_until_then() -> None:
    network, broker, user = online()
    broker.answers = False
    create = user.client.request(lambda number: Create(request=number, topic="new"))
    topics = user.client.request(lambda number: Topics(request=number))
    network.run(1)
    assert [message.request for message in broker.link.received if isinstance(message, Create | Topics)] == [
        create,
        topics,
    ]
    assert len(broker.link.received) == 3
    broker.link.send(Error(code=Code.TOPIC_EXISTS, text="is there", request=create))
    network.run(1)
    broker.answers = True
    broker.link.connection.close(network.now, Code.SHUTDOWN)
    network.run(2)
    replies = user.all(Reply)
    assert [reply.request for reply in replies] == [create, topics]
    assert isinstance(replies[0].message, Error)
    assert isinstance(replies[1].message, TopicList)
    assert len(broker.link.all(Create)) == 0


def test_a_forgotten_request_brings_no_reply() -> None:
    network, broker, user = online()
    user.client.forget(user.client.request(lambda number: Ping(request=number)))
    network.run(1)
    assert len(broker.link.all(Ping)) == 1
    assert user.all(Reply) == []


def test_callbacks_when_to_poll_for_trains() -> None:
    network, _, user = online()
    called: list[str] = []
    user.client.on_sending(begun=lambda: called.append("begun"), full=lambda: called.append("full"))
    publisher = user.client.publisher("t")
    publisher.send(b"x", network.now_us)
    assert called == ["begun"]
    for _ in range(1000):
        publisher.send(bytes(100), network.now_us)
    assert "full" in called
    assert user.client.statistics.packets_sent > 0
    assert len(user.client.endpoint.connections) == 1


def test_a_commit_names_subscription_and_offset() -> None:
    network, broker, user = online(config=ClientConfig(name="n"))
    subscription = user.client.subscribe(["a/b"], cursor="mine")
    user.client.commit(subscription, 17)
    network.run(1)
    (commit,) = broker.link.all(control.CursorCommit)
    assert (commit.subscription, commit.offset) == (subscription.number, 17)
    assert broker.link.all(control.Subscribe)[0].cursor == "mine"


def test_a_cursor_needs_the_name_of_a_client() -> None:
    _, _, user = online()
    with pytest.raises(UsageError, match="of a client without a name: the broker stores cursors by the name"):
        user.client.subscribe(["a/b"], cursor="mine")


def test_a_ping_is_answered_also_before_the_welcome() -> None:
    network = Network()
    broker = FakeBroker(network)
    broker.welcomes = False
    user = User(network)
    network.run_until(lambda: bool(broker.links and broker.link.login))
    broker.link.send(Ping(request=7))
    network.run(1)
    assert broker.link.all(Pong) == [Pong(request=7)]
    broker.welcome(broker.link)
    user.until("online", 1.0)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_closing_sends_a_close_and_waits_for_nothing() -> None:
    network, broker, user = online()
    publisher = user.client.publisher("t")
    subscription = user.client.subscribe(["a"])
    publisher.send(b"not sent any more", network.now_us)
    user.client.close(network.now)
    user.client.close(network.now)
    assert user.client.state == "closed"
    assert user.all(Ended) == [Ended(Code.NORMAL, "closed by the application")]
    network.run(1)
    assert broker.link.closed is not None
    assert (broker.link.closed.code, broker.link.closed.origin) == (Code.NORMAL, "peer")
    assert subscription.state == "ended"
    for call in (
        lambda: user.client.publisher("t"),
        lambda: publisher.send(b"x", network.now_us),
        lambda: user.client.subscribe(["a"]),
        lambda: user.client.unsubscribe(subscription),
        lambda: user.client.request(lambda number: Ping(request=number)),
        lambda: user.client.connect([BROKER], network.now),
    ):
        with pytest.raises(UsageError, match="closed"):
            call()
    network.run(60)
    assert len(broker.links) == 1
    assert user.client.next_timer() is None


def test_closing_before_it_was_online_sends_no_confirm() -> None:
    network = Network()
    user = User(network)
    network.run(1)
    user.client.close(network.now)
    assert user.client.next_train(network.now) is None
    network.run(30)
    assert user.client.next_timer() is None


# -- bad calls --------------------------------------------------------------------------------------------------------


def test_bad_calls_are_refused_at_once() -> None:
    _, _, user = online()
    client = user.client
    calls = [
        (BadTopicError, lambda: client.publisher("a/+")),
        (BadTopicError, lambda: client.publisher("")),
        (BadFilterError, lambda: client.subscribe(["a/#/b"])),
        (UsageError, lambda: client.publisher("t", qos=3)),
        (UsageError, lambda: client.publisher("t", qos=2, identity="x" * 300)),
        (UsageError, lambda: client.publisher("t", qos=2, identity="i", epoch=-1)),
        (UsageError, lambda: client.publisher("t", qos=2, identity="i", sequence=2**63)),
        (UsageError, lambda: client.subscribe([])),
        (UsageError, lambda: client.subscribe([f"t/{place}" for place in range(MAX_FILTERS + 1)])),
        (UsageError, lambda: client.subscribe(["a"], start="middle")),
        (UsageError, lambda: client.subscribe(["a"], start=1.5)),
        (UsageError, lambda: client.subscribe(["a"], start=-1)),
        (UsageError, lambda: client.subscribe(["a"], start=1, since_us=1)),
        (UsageError, lambda: client.subscribe(["a"], cursor="")),
        (UsageError, lambda: client.connect([], 0.0)),
    ]
    for error, call in calls:
        with pytest.raises(error):
            call()  # type: ignore[no-untyped-call]


def test_a_client_without_addresses_is_quiet() -> None:
    rng = random.Random(1)
    client = ClientProtocol(ClientConfig(), entropy=rng.randbytes, random=rng)
    assert client.next_train(0.0) is None
    assert client.next_timer() is None
    client.receive(Train(BROKER, b"anything at all", 15), 0.0)
    assert client.events() == []
    assert client.statistics.packets_sent == 0


def test_a_closed_client_refuses_calls() -> None:
    network, _, user = at_work()
    user.client.close(network.now)
    calls: list[Callable[[ClientProtocol], object]] = [
        lambda client: client.submit(spec("resize"), b""),
        lambda client: client.watch(1),
        lambda client: client.volunteer(["resize"], 1),
        lambda client: client.withdraw(),
        lambda client: client.publisher("t"),
        lambda client: client.subscribe(["t"]),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="the client is closed"):
            call(user.client)


def test_callbacks_of_work_when_to_poll_for_trains() -> None:
    network, broker, user = at_work()
    called: list[str] = []
    user.client.on_sending(begun=lambda: called.append("begun"), full=lambda: called.append("full"))
    user.client.submit(spec("resize"), b"")
    user.client.submit(spec("resize"), b"")
    assert called == ["begun"]
    user.client.submit(spec("resize"), bytes(100_000))
    assert called == ["begun", "full"]
    network.run(0.1)
    called.clear()
    user.client.publisher("t").send(b"", network.now_us)
    assert called == ["begun"]
    network.run(0.1)
    assert sorted(broker.groups) == [1, 2]


INSTANCE = bytes(range(16))
BINDING = bytes(32)


def test_a_client_without_a_secret_proves_and_asks_nothing() -> None:
    login = make_login(ClientConfig(name="n"), 3, INSTANCE, BINDING, is_first=True)
    assert (login.request, login.name, login.instance, login.proof) == (3, "n", INSTANCE, b"")
    assert welcome_problem(Welcome(request=3, name="n", max_message_bytes=1), ClientConfig(name="n"), BINDING) == ""


def test_a_secret_is_proved_for_this_connection() -> None:
    config = ClientConfig(name="n", secret=b"secret", will=Will(topic="t", payload=b""), session_expiry_s=5)
    login = make_login(config, 0, INSTANCE, BINDING, is_first=True)
    assert is_proof(login.proof, b"secret", "client", BINDING, "n")
    assert not is_proof(login.proof, b"secret", "client", bytes([1] * 32), "n")
    assert b"secret" not in login.proof
    assert (login.will, login.session_expiry_s) == (config.will, 5)


def test_a_fresh_session_is_asked_for_once() -> None:
    config = ClientConfig(name="n", fresh=True)
    assert make_login(config, 0, INSTANCE, BINDING, is_first=True).fresh
    assert not make_login(config, 0, INSTANCE, BINDING, is_first=False).fresh


def test_the_broker_must_prove_that_it_knows_the_secret() -> None:
    config = ClientConfig(name="n", secret=b"secret")
    right = make_proof(b"secret", "server", BINDING, "n")
    assert welcome_problem(Welcome(request=0, name="n", proof=right, max_message_bytes=1), config, BINDING) == ""
    for wrong in (b"", make_proof(b"other", "server", BINDING, "n"), make_proof(b"secret", "client", BINDING, "n")):
        welcome = Welcome(request=0, name="n", proof=wrong, max_message_bytes=1)
        assert "did not prove" in welcome_problem(welcome, config, BINDING)


def test_events_are_frozen_values() -> None:
    assert Offline(Code.TIMEOUT, "silence", 0.5) == Offline(6, "silence", 0.5)
    assert Online(True, "a") != Online(False, "a")
    assert "silence" in repr(Ended(Code.TIMEOUT, "silence"))
    assert all(event.__struct_config__.frozen for event in get_args(ClientEvent))


def test_every_event_has_a_docstring() -> None:
    assert all(event.__doc__ for event in get_args(ClientEvent))
