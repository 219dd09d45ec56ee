"""Bridges at the hub: records of edges that are wrong, or more than an edge should send."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import LOG_ID, START_US, Peer

from godwit.broker.administration import ITEM_STEPS, STEPS_PER_TURN
from godwit.broker.relays import MAX_LISTED
from godwit.wire import control as c
from godwit.wire.batch import Entry, make_entry
from godwit.wire.changes import RelayRow
from godwit.wire.control import encode_control
from godwit.wire.control_base import Code
from godwit.wire.extension import add_origin
from godwit.wire.relay import (
    BridgeInfo,
    BridgeList,
    GapReason,
    ListBridges,
    RelayGap,
    RelayOpen,
    RelayOpened,
    encode_relay_record,
)

LAST = 2**63 - 1
OTHER_LOG = bytes(range(0x40, 0x50))


def log(number: int) -> bytes:
    return number.to_bytes(16, "big")


def open_bridge(peer: Peer, channel: int, log_id: bytes = OTHER_LOG) -> RelayOpened:
    peer.record(channel, encode_control(RelayOpen(log=log_id, filters=["#"])))
    peer.world.run()
    opened = peer.last(RelayOpened)
    assert opened.channel == channel
    return opened


def send(
    peer: Peer, channel: int, begin: int, end: int, entries: Sequence[Entry] = (), gaps: Sequence[RelayGap] = ()
) -> None:
    peer.record(channel, encode_relay_record(begin, end, list(enumerate(entries, begin)), gaps))
    peer.world.run()


def bridges(peer: Peer) -> list[BridgeInfo]:
    return peer.expect(ListBridges(request=peer.number()), BridgeList).bridges


def entry(topic: str = "a", origin: tuple[bytes, int] | None = None) -> Entry:
    extension = None if origin is None else add_origin(b"", *origin)
    return make_entry(topic, "sensor-1", [b"x"], qos=1, now_us=START_US, extension=extension)


def test_bridges_are_listed_whatever_number_of_messages_an_edge_misses() -> None:
    world = DurableWorld()
    edge, operator = world.client("edge"), world.client("operator")
    open_bridge(edge, 1)
    send(edge, 1, 0, 1, gaps=[RelayGap(GapReason.DELETED, 0, LAST, LAST)] * 3)
    (info,) = bridges(operator)
    assert (info.position, info.missed) == (1, LAST)


class CountedLog(bytes):
    """The id of a log that counts how often it is looked up or compared."""

    uses = 0

    def __hash__(self) -> int:
        CountedLog.uses += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedLog.uses += 1
        return super().__eq__(other)

    def __lt__(self, other: bytes) -> bool:
        CountedLog.uses += 1
        return super().__lt__(other)


def test_the_list_of_bridges_costs_no_more_with_many_marks_and_waits_in_the_queue_of_lists() -> None:
    world = DurableWorld()
    operator = world.client("operator")
    logs = [log(number) for number in range(1, 5000)]
    world.server.broker.relays.restore(RelayRow("edge", CountedLog(one), 1, (), START_US) for one in reversed(logs))
    CountedLog.uses = 0
    assert [info.log_id for info in bridges(operator)] == [one.hex() for one in logs[:MAX_LISTED]]
    assert CountedLog.uses < 5 * MAX_LISTED
    edge = world.client("edge")
    CountedLog.uses = 0
    open_bridge(edge, 1, log(0))  # another log of a link that the hub knows
    assert CountedLog.uses < 100
    assert [info.state for info in bridges(operator)] == ["running", *["absent"] * (MAX_LISTED - 1)]
    edge.leave()
    assert [info.log_id for info in bridges(operator)] == [one.hex() for one in logs[:MAX_LISTED]]
    before = len(operator.all(BridgeList))
    for _ in range(50):
        operator.say(ListBridges(request=operator.number()))
    world.run()
    assert len(operator.all(BridgeList)) - before <= STEPS_PER_TURN // (ITEM_STEPS * MAX_LISTED) + 1
    world.pass_s(1)
    assert len(operator.all(BridgeList)) - before == 50


def test_a_bridge_that_brought_nothing_is_forgotten_when_it_ends() -> None:
    world = DurableWorld()
    edge, operator = world.client("edge"), world.client("operator")
    for channel in range(1, 6):
        assert open_bridge(edge, channel, log(channel)).offset is None
    assert [info.log_id for info in bridges(operator)] == [log(5).hex()]
    open_bridge(edge, 6, log(5))  # the same log again: its mark is the one that counts
    send(edge, 6, 0, 1, [entry()])
    edge.leave()
    assert [(info.log_id, info.position) for info in bridges(operator)] == [(log(5).hex(), 1)]
    again = world.client("edge")
    assert open_bridge(again, 1, log(5)).offset == 1
    world.hold()
    other = world.client("other")
    other.record(1, encode_control(RelayOpen(log=log(7), filters=["#"])))
    send(other, 1, 0, 1, [entry()])
    other.leave()
    world.fail()
    assert [info.log_id for info in bridges(operator)] == [log(5).hex()]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (entry(origin=(log(9), 2**64 - 1)), Code.MALFORMED),
        (entry(origin=(log(9), LAST)), Code.MALFORMED),
        (entry("x" * 60_000, origin=(LOG_ID, 3)), Code.BAD_TOPIC),  # a topic of a message that is dropped
    ],
    ids=["origin beyond 63 bits", "origin of the next message beyond 63 bits", "topic"],
)
def test_a_record_with_a_wrong_batch_is_refused(wrong: Entry, code: Code) -> None:
    world = DurableWorld()
    edge = world.client("edge")
    open_bridge(edge, 1)
    send(edge, 1, 0, 1, [entry(origin=(log(9), LAST - 1))])
    assert not edge.all(c.PublishRefused)
    send(edge, 1, 1, 2, [wrong])
    assert edge.last(c.PublishRefused).code == code
    assert open_bridge(edge, 2).offset == 1


def test_a_bridge_that_is_opened_again_remains_among_the_sources() -> None:
    world = DurableWorld()
    edge = world.client("edge")
    relays = world.server.broker.relays
    reported: list[list[bytes]] = []
    relays.on_sources.append(lambda: reported.append(relays.sources()))
    for channel in (1, 2):
        open_bridge(edge, channel)
        assert reported[-1] == [OTHER_LOG]
    edge.leave()
    assert reported[-1] == []
