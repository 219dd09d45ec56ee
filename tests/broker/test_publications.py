"""Publishing: what a channel may carry, when it is confirmed, and who is told that it was refused."""

from __future__ import annotations

import cbor2
import pytest
from tests.broker.world import World

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.limits import MAX_EXTENSION_BYTES, MAX_EXTENSION_ITEMS, MAX_RECORD_BATCHES
from godwit.wire import control as c
from godwit.wire.batch import Batch, Route, encode_batch, encode_joinable
from godwit.wire.control import encode_control
from godwit.wire.control_base import Code
from godwit.wire.extension import encode_extension


def test_a_publication_is_confirmed_with_the_number_reached() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news")
    assert alice.last(c.Opened).subscribers == 0
    assert alice.publish(channel, b"no subscriber") == 1
    assert alice.confirmed[channel] == (1, 0)
    for name in ("bob", "carol"):
        world.client(name).subscribe("news")
    assert alice.publish(channel, b"both hear it") == 2
    assert alice.confirmed[channel] == (2, 2)
    again = alice.open("news")
    assert alice.last(c.Opened) == c.Opened(channel=again, subscribers=2)
    assert [peer.payloads for peer in world.peers[1:]] == [[b"both hear it"]] * 2


def test_a_confirm_says_that_the_log_has_it() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news")
    record = encode_joinable(Batch([b"1"], 5)) + encode_batch(
        Batch([b"2", b"3"], 6, extension=encode_extension({300: 2}))
    )
    alice.record(channel, record)
    assert channel not in alice.confirmed
    world.run()
    assert alice.confirmed[channel][0] == 1
    entries = world.store.read(0, 10_000).entries
    assert [(offset, entry.count, entry.topic, entry.publisher) for offset, entry in entries] == [
        (0, 1, "news", "alice"),
        (1, 2, "news", "alice"),
    ]


def test_many_records_of_one_turn_are_confirmed_at_once() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news")
    for number in range(100):
        alice.record(channel, encode_batch(Batch([b"%d" % number], 0)))
    world.run()
    assert alice.confirmed[channel] == (100, 0)
    assert alice.consumed[channel] > 100 * 10
    assert world.store.next_offset == 100


def test_every_record_gives_its_credit_back() -> None:
    world = World()
    alice = world.client("alice")
    sent = {}
    qualities: tuple[c.Qos, ...] = (0, 1, 2)
    for qos in qualities:
        channel = alice.open("news", qos)
        opened = encode_control(c.PublishOpen(topic="news", qos=qos))
        body = encode_batch(Batch([b"x" * 5000], 0, qos=qos, sequence=0 if qos == 2 else None))
        alice.record(channel, body)
        sent[channel] = len(opened) + len(body)
    world.run()
    assert dict(alice.consumed) == sent


def test_qos_0_is_forwarded_and_neither_kept_nor_confirmed() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news", 0)
    alice.publish(channel, b"now", qos=0, reliable=False)
    alice.publish(channel, b"x" * 3000, qos=0)  # too long for one datagram: it travels reliably
    assert [(got.payload[:3], got.qos, got.live) for got in bob.got] == [(b"now", 0, True), (b"xxx", 0, True)]
    assert channel not in alice.confirmed
    assert world.store.next_offset == 0


def test_late_batches_of_qos_0_are_dropped_if_they_say_that_they_are() -> None:
    """Reliable and unreliable records of one channel can overtake each other."""
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news", 0)
    for sequence, payloads in ((0, [b"0"]), (3, [b"3", b"4"]), (1, [b"1", b"2"]), (5, [b"5"])):
        alice.publish(channel, *payloads, qos=0, sequence=sequence, reliable=sequence == 1)
    alice.publish(channel, b"as it comes", qos=0, reliable=False)
    assert bob.payloads == [b"0", b"3", b"4", b"5", b"as it comes"]
    assert [got.offset for got in bob.got] == [0, 1, 2, 3, 4]  # the broker never had what was late


def test_order_holds_for_each_publisher() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("#")
    channels = [alice.open(topic) for topic in ("a", "b")]
    for number in range(50):
        alice.publish(channels[number % 2], b"%d" % number)
    assert bob.payloads == [b"%d" % number for number in range(50)]
    assert [got.offset for got in bob.got] == list(range(50))


def test_times_and_extensions_travel_untouched() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news")
    world.pass_s(3)
    alice.publish(channel, b"1", b"2", published_us=7, deltas_us=(0, 5))
    assert [(got.published_us, got.received_us) for got in bob.got] == [(7, world.now_us), (12, world.now_us)]


def test_the_end_of_a_channel() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news")
    record = alice.record(channel, encode_batch(Batch([b"last words"], 0)), last=True)
    world.run()
    assert alice.confirmed[channel][0] == record
    second = alice.open("news")
    alice.record(second, b"", last=True)
    world.run()
    assert second not in alice.confirmed
    (info,) = alice.expect(c.Topics(request=99, filter="news"), c.TopicList).topics
    assert info.publishers == 0
    assert alice.closed is None


# -- what is refused --------------------------------------------------------------------------------------------------


HOSTILE_EXTENSIONS = {
    "not CBOR": b"\xff",
    "not a map": cbor2.dumps([1, 2]),
    "too long": cbor2.dumps({300: bytes(MAX_EXTENSION_BYTES)}),
    "too many values": cbor2.dumps({300: [0] * MAX_EXTENSION_ITEMS}),
    "an array of billions": b"\xa1\x19\x01\x2c\x9a\xff\xff\xff\xff",
    "deep": b"\xa1\x19\x01\x2c" + b"\x81" * 3000 + b"\x00",
    "a key that is a text": cbor2.dumps({"expiry": 5}),
    "a known key with another type": cbor2.dumps({1: 5}),
}


@pytest.mark.parametrize("extension", HOSTILE_EXTENSIONS.values(), ids=HOSTILE_EXTENSIONS)
@pytest.mark.parametrize(("qos", "reliable"), [(0, False), (0, True), (1, True), (2, True)])
def test_a_malformed_extension_is_refused(extension: bytes, qos: c.Qos, reliable: bool) -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news", qos)
    first, second = (None, None) if qos == 1 else (0, 1)
    record = encode_joinable(Batch([b"1"], 5, qos, sequence=first))
    record += encode_batch(Batch([b"2"], 5, qos, sequence=second, extension=extension))
    alice.record(channel, record, reliable=reliable)
    world.run()
    refused = alice.last(c.PublishRefused)
    assert (refused.channel, refused.code) == (channel, Code.MALFORMED)
    assert "'news' is not accepted: extension" in refused.text
    assert not bob.payloads
    assert not alice.closed
    alice.publish(alice.open("news"), b"3")
    assert bob.payloads == [b"3"]


def test_a_valid_extension_is_forwarded_as_it_is() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news")
    extensions = [b"", encode_extension({300: [1, {"a": b"b"}]}), cbor2.dumps({"file": {"name": "of version 0.5"}})]
    for extension in extensions:
        alice.publish(channel, b"one", b"two", extension=extension)
    assert [got.extension for got in bob.got] == [extension for extension in extensions for _ in range(2)]


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a*", "a\nb", "t" * 1024 + "\u00fc", "/".join("a" * 65)])
def test_topics_that_cannot_be(topic: str) -> None:
    if len(topic) <= 1024:
        assert World().client("alice").refused_open(topic) is Code.BAD_TOPIC
    else:
        assert World().client("alice").refused_open(topic) is Code.MALFORMED


def test_topics_of_the_broker_are_its_own() -> None:
    assert World().client("alice").refused_open("$sys/uptime_s") is Code.NOT_ALLOWED


def test_topic_names_may_have_blanks_case_and_empty_levels() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("#")
    names = ["living room/Temperature", "living room/temperature", "/a", "a//b", "\u00fc", "t" * 1024]
    for name in names:
        alice.publish(alice.open(name), b"x")
    assert [got.topic for got in bob.got] == names


def test_no_right_to_publish() -> None:
    rule = Rule(clients=("*",), allow=frozenset({"publish"}), topics=("mine/#",))
    world = World(Settings(access=Access(rules=(rule,))))
    alice = world.client("alice")
    assert alice.refused_open("yours") is Code.NOT_ALLOWED
    channel = alice.open("mine/x")
    alice.publish(channel, b"1")
    assert alice.confirmed[channel][0] == 1
    assert world.server.broker._catalogue.get("yours") is None  # nothing was created for the one refused


def test_what_follows_a_refused_open_is_thrown_away_and_gives_its_credit_back() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.start("a/+")
    alice.publish(channel, b"1")
    alice.record(channel, b"", last=True)
    world.run()
    assert len(alice.all(c.PublishRefused)) == 1
    assert channel not in alice.confirmed
    assert alice.consumed[channel] > 10
    assert world.store.next_offset == 0
    assert alice.closed is None


def test_a_message_that_is_too_large_is_refused_with_its_channel() -> None:
    world = World(Settings(max_message_bytes=1000))
    alice = world.client("alice")
    channel = alice.open("news")
    alice.publish(channel, b"x" * 1000)
    assert alice.confirmed[channel][0] == 1
    for payloads in ([b"x" * 1001], [b"1", b"x" * 1001]):
        channel = alice.open("news")
        alice.publish(channel, *payloads)
        refused = alice.last(c.PublishRefused)
        assert (refused.channel, refused.code) == (channel, Code.TOO_LARGE)
        assert channel not in alice.confirmed
    alice.publish(alice.open("news"), *([b"x" * 900] * 5))  # together they may be longer
    assert world.store.next_offset == 6


def test_a_right_that_ends_refuses_the_channel() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news")
    rule = Rule(clients=("*",), allow=frozenset({"subscribe"}), topics=("#",))
    world.server.change_settings(Settings(access=Access(rules=(rule,))))
    alice.publish(channel, b"too late")
    refused = alice.last(c.PublishRefused)
    assert (refused.channel, refused.code) == (channel, Code.NOT_ALLOWED)
    assert channel not in alice.confirmed
    assert bob.got == []


BROKEN = {
    "no batch": b"\x41",
    "an in-band message": b"\xff\xa0",
    "QoS 3": b"\xc1" + bytes(8),
    "another QoS": encode_batch(Batch([b"x"], 0, qos=2, sequence=0)),
    "a route": encode_batch(Batch([b"x"], 0, route=Route(1, 1, 1, 1))),
    "a claim": b"\x40" + bytes(8) + b"\x00\x00\xff\xff",
    "a time that no clock shows": encode_batch(Batch([b"x"], 2**63)),
    "something behind": encode_joinable(Batch([b"x"], 0)) + b"\x40",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_record_that_cannot_be_ends_the_connection(what: str) -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    alice.record(alice.open("news"), BROKEN[what])
    world.run()
    assert alice.closed is not None
    assert alice.closed[0] == Code.PROTOCOL
    assert bob.closed is None
    assert world.store.next_offset == 0


def test_a_channel_that_does_not_begin_with_an_open_ends_the_connection() -> None:
    for body in (b"", b"\x41" + bytes(20), encode_control(c.Ping(request=1))):
        alice = World().client("alice")
        alice.record(1, body)
        alice.world.run()
        assert alice.end == Code.PROTOCOL


def test_a_malformed_open_refuses_its_channel_alone() -> None:
    world = World()
    alice = world.client("alice")
    alice.record(1, b"\xa1\x64kind\x64open")
    world.run()
    assert alice.last(c.PublishRefused).code == Code.MALFORMED
    alice.publish(1, b"x")
    assert alice.closed is None
    assert 1 not in alice.confirmed


def test_an_unreliable_record_where_a_reliable_one_belongs_ends_the_connection() -> None:
    world = World()
    alice = world.client("alice")
    for qos in (1, 2):
        mallory = world.client()
        channel = mallory.open("news", qos)
        consumed = mallory.consumed[channel]
        mallory.publish(channel, b"x", qos=qos, sequence=0 if qos == 2 else None, reliable=False)
        assert mallory.end == Code.PROTOCOL
        assert mallory.consumed[channel] == consumed  # the transport would not take it
    assert world.store.next_offset == 0
    assert alice.closed is None


def test_a_sequence_that_no_reply_could_tell_ends_the_connection() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news", 2, publisher="p")
    alice.publish(channel, b"x", qos=2, sequence=2**64 - 1)
    assert alice.end == Code.PROTOCOL
    again = world.client("alice")
    assert again.ask(c.ProgressQuery(request=9, topic="news", publisher="p")) == c.Progressed(request=9)


def test_retained_messages_of_wills_and_of_one_turn_stay_within_their_room() -> None:
    world = World(Settings(max_retained_bytes=4000))
    for number in range(10):
        will = c.Will(topic=f"will/{number}", payload=bytes(1000), retain=True)
        world.client(f"w{number}", will=will).die()
    alice = world.client("alice")
    for channel in [alice.open(f"news/{number}") for number in range(10)]:
        alice.record(channel, encode_batch(Batch([bytes(100)], 0, retain=True)))
    world.run()
    assert 3000 < world.server.broker._catalogue._retained_bytes <= 4000


def test_a_record_has_a_bounded_number_of_batches() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("a")
    one = encode_joinable(Batch([b""], 5))
    record = alice.record(channel, one * MAX_RECORD_BATCHES)
    world.run()
    assert alice.confirmed[channel][0] == record
    alice.record(channel, one * (MAX_RECORD_BATCHES + 1))
    world.run()
    assert alice.end == Code.PROTOCOL


def test_repeats_of_qos_2_are_not_counted_again() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news", qos=2)
    alice.publish(channel, b"0", b"12", qos=2, sequence=0)
    alice.publish(channel, b"0", b"12", b"345", qos=2, sequence=0)
    topic = world.server.broker._catalogue.get("news")
    assert topic is not None
    assert (topic.messages, topic.payload_bytes) == (3, 6)
    assert world.server.broker.figures()["messages/in"] == 3
