"""The three disciplines: what each sends again after a loss, how much it has under way, what its receiver takes."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.transport.world import CLIENT, SERVER, Flying, World, send_all

from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.transport.arq import (
    GoBackN,
    InOrderReceiver,
    SelectiveRepeat,
    SendPolicy,
    receive_policy,
    send_policy,
)
from godwit.transport.config import EndpointConfig
from godwit.transport.congestion import Flight
from godwit.transport.recovery import SentRun
from godwit.transport.send_channels import Fragment, OutgoingChannel, OutgoingRecord
from godwit.wire import packet as wire

FLIGHT = Flight(0.0, 0, 0.0, 0.0, False)


class Sender:
    """Puts one fragment into a packet, as the transmitter does, and remembers where it went."""

    def __init__(self, policy: SendPolicy) -> None:
        self.policy = policy
        self.packets: list[Fragment] = []
        self._channel = OutgoingChannel(1, 0)

    def new(self, body: bytes = b"x") -> int:
        """A new record of one fragment; gives the number of its packet."""
        fragment = Fragment(OutgoingRecord(self._channel, len(self.packets), body, False), 0, len(body))
        assert self.policy.may_send_new()
        self.policy.handle_new(fragment)
        return self._depart(fragment)

    def again(self) -> int:
        """What is to be sent again."""
        fragment = self.policy.next_resend()
        assert fragment is not None
        self.policy.mark_resent()
        return self._depart(fragment)

    def all_again(self) -> list[int]:
        sent = []
        while self.policy.next_resend() is not None:
            sent.append(self.again())
        return sent

    def _depart(self, fragment: Fragment) -> int:
        fragment.packet = len(self.packets)
        self.packets.append(fragment)
        return fragment.packet

    def lose(self, *numbers: int) -> None:
        for number in numbers:
            self.policy.handle_lost(number, (self.packets[number],))

    def ack(self, *numbers: int, next_position: int | None = None) -> list[OutgoingRecord]:
        runs = [SentRun(number, 100, FLIGHT, (self.packets[number],)) for number in numbers]
        return self.policy.handle_ack(runs, next_position)

    def positions(self, numbers: list[int]) -> list[int]:
        return [self.packets[number].position for number in numbers]


# -- selective repeat -------------------------------------------------------------------------------------------------


def test_selective_repeat_sends_again_just_what_was_lost() -> None:
    sender = Sender(SelectiveRepeat())
    fragments = [sender.packets[sender.new()] for _ in range(10)]
    sender.lose(2, 5)
    sender.ack(0, 1, 3, 4, 6, 7, 8, 9)
    again = sender.all_again()
    assert [sender.packets[number] for number in again] == [fragments[2], fragments[5]]
    assert [one.position for one in fragments] == [-1] * 10


def test_selective_repeat_has_no_window() -> None:
    policy = SelectiveRepeat()
    sender = Sender(policy)
    for _ in range(1000):
        sender.new()
    assert policy.may_send_new()
    assert policy.largest_datagram_bytes is None
    assert not policy.is_possible(5)


def test_selective_repeat_tells_what_was_completed() -> None:
    sender = Sender(SelectiveRepeat())
    first, second = sender.new(), sender.new()
    assert sender.ack(second) == [sender.packets[second].record]
    assert sender.ack(second) == []
    assert sender.ack(first) == [sender.packets[first].record]


def test_what_arrives_late_is_not_sent_again() -> None:
    sender = Sender(SelectiveRepeat())
    one, two = sender.new(), sender.new()
    sender.lose(one, two)
    sender.ack(one)
    assert [sender.packets[n] for n in sender.all_again()] == [sender.packets[two]]


def test_a_probe_goes_before_other_losses_and_its_old_packet_is_not_lost_again() -> None:
    sender = Sender(SelectiveRepeat())
    one, two, three = sender.new(), sender.new(), sender.new()
    sender.lose(two)
    sender.policy.handle_probe((sender.packets[one],))
    assert sender.packets[sender.again()] is sender.packets[one]
    sender.lose(one)  # the packet that the probe repeated
    assert [sender.packets[n] for n in sender.all_again()] == [sender.packets[two]]
    sender.ack(three)
    sender.policy.handle_probe((sender.packets[three],))
    assert sender.policy.next_resend() is None


def test_a_fragment_that_no_longer_fits_is_replaced_by_smaller_ones() -> None:
    sender = Sender(SelectiveRepeat())
    number = sender.new(bytes(100))
    whole = sender.packets[number]
    sender.lose(number)
    assert sender.policy.next_resend() is whole
    parts = [Fragment(whole.record, 0, 60), Fragment(whole.record, 60, 100)]
    sender.policy.replace_resend(parts)
    assert [sender.packets[n] for n in sender.all_again()] == parts
    assert sender.ack(number) == []  # its packet turns up after all, but it no longer counts
    assert sender.ack(number + 1) == []
    assert sender.ack(number + 2) == [whole.record]


# -- go-back-n --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 15, 100])
def test_go_back_n_has_a_window_under_way(window: int) -> None:
    sender = Sender(GoBackN(window))
    for _ in range(window):
        sender.new()
    assert not sender.policy.may_send_new()
    assert len(sender.ack(0, next_position=1)) == 1
    assert sender.policy.may_send_new()
    assert sender.packets[sender.new()].position == window
    assert not sender.policy.may_send_new()


def test_go_back_n_goes_back_to_the_first_that_is_missing_once_for_a_flight() -> None:
    sender = Sender(GoBackN(5))
    for _ in range(5):
        sender.new()
    sender.lose(1, 3)
    sender.ack(0, next_position=1)
    assert sender.positions(sender.all_again()) == [1, 2, 3, 4]
    sender.lose(2, 4)  # of the flight before: its fragments are on their way again
    assert sender.policy.next_resend() is None
    sender.lose(6)  # position 2, in the new flight
    assert sender.positions(sender.all_again()) == [1, 2, 3, 4]


def test_go_back_n_goes_on_where_it_was_interrupted() -> None:
    sender = Sender(GoBackN(4))
    for _ in range(4):
        sender.new()
    sender.lose(0)
    assert sender.positions([sender.again()]) == [0]
    sender.ack(4, next_position=1)
    assert sender.positions(sender.all_again()) == [1, 2, 3]


def test_go_back_n_is_told_by_positions_not_by_packets() -> None:
    sender = Sender(GoBackN(5))
    for _ in range(3):
        sender.new()
    assert sender.ack(0, next_position=None) == []
    assert len(sender.ack(next_position=3)) == 3
    assert sender.ack(next_position=3) == []
    assert sender.ack(next_position=1) == []
    assert sender.packets[sender.new()].position == 3


def test_what_arrived_out_of_order_was_thrown_away_and_is_sent_again() -> None:
    sender = Sender(GoBackN(5))
    for _ in range(3):
        sender.new()
    sender.ack(1, next_position=0)
    assert sender.positions(sender.all_again()) == [0, 1, 2]
    # And the very last one, overtaken by its forerunner: its loss is never reported.
    sender.ack(3, 4, 5, next_position=2)
    assert sender.positions(sender.all_again()) == [2]


def test_a_position_never_sent_is_impossible() -> None:
    sender = Sender(GoBackN(5))
    for _ in range(3):
        sender.new()
    sender.ack(0, next_position=1)
    assert [position for position in (0, 1, 2, 3, 4, 100, 2**31) if sender.policy.is_possible(position)] == [0, 1, 2, 3]


def test_positions_wrap_around_their_32_bits() -> None:
    policy = GoBackN(2)
    policy._first_position = 2**32 - 1
    sender = Sender(policy)
    sender.new()
    sender.new()
    assert sender.positions([0, 1]) == [2**32 - 1, 2**32]
    assert policy.is_possible(1)
    assert len(sender.ack(0, 1, next_position=1)) == 2


def test_a_probe_of_go_back_n_begins_with_the_first() -> None:
    sender = Sender(GoBackN(5))
    for _ in range(3):
        sender.new()
    sender.policy.handle_probe((sender.packets[2],))
    assert sender.positions(sender.all_again()) == [0, 1, 2]


def test_a_fragment_with_a_position_always_fits() -> None:
    policy = GoBackN(5)
    assert policy.largest_datagram_bytes == BASE_DATAGRAM_BYTES
    with pytest.raises(AssertionError):
        policy.replace_resend([])


def test_the_receiver_takes_only_the_next_position() -> None:
    receiver = InOrderReceiver()
    assert not receiver.accepts(1)
    assert receiver.accepts(0)
    assert not receiver.accepts(0)
    assert receiver.accepts(1)
    assert receiver.expected == 2


def test_the_client_chooses() -> None:
    def policies(arq: str, window: int = 15) -> tuple[SendPolicy, InOrderReceiver | None]:
        parameters = EndpointConfig(arq=arq, arq_window=window).parameters(b"")  # type: ignore[arg-type]
        return send_policy(parameters), receive_policy(parameters)

    send, receive = policies("selective-repeat")
    assert isinstance(send, SelectiveRepeat)
    assert receive is None
    send, receive = policies("go-back-n", 3)
    assert isinstance(send, GoBackN)
    assert isinstance(receive, InOrderReceiver)
    sender = Sender(send)
    for _ in range(3):
        sender.new()
    assert not send.may_send_new()
    send, receive = policies("stop-and-wait")
    assert isinstance(receive, InOrderReceiver)
    Sender(send).new()
    assert not send.may_send_new()


# -- on a connection --------------------------------------------------------------------------------------------------


def data_frames(flying: Flying) -> list[wire.DataFrame]:
    return [frame for frame in flying.frames() if isinstance(frame, wire.DataFrame)]


def lose_one(world: World, *, position: int | None = None, record: int | None = None) -> list[Flying]:
    """The first packet with this position or record to the server gets lost. Gives a list that it will be in."""
    lost: list[Flying] = []

    def fate(flying: Flying) -> list[float]:
        if flying.target == SERVER and not lost:
            for frame in data_frames(flying):
                if (position is not None and frame.position == position) or (
                    record is not None and frame.record == record
                ):
                    lost.append(flying)
                    return []
        return [world.delay_s]

    world.fate = fate
    return lost


def sent_to_server(world: World) -> list[wire.DataFrame]:
    return [frame for flying in world.log if flying.target == SERVER for frame in data_frames(flying)]


def test_selective_repeat_resends_one_of_many() -> None:
    world = World()
    client, _ = world.connect()
    world.run(0.5)
    lost = lose_one(world, record=7)
    channel = send_all(world, client, [bytes((n,)) * 1100 for n in range(20)])
    world.run(1.0)
    assert world.server.bodies(channel) == [bytes((n,)) * 1100 for n in range(20)]
    times = Counter((one.record, one.offset, len(one.body)) for one in sent_to_server(world))
    again = {key for key, count in times.items() if count > 1}
    assert again == {(one.record, one.offset, len(one.body)) for one in data_frames(lost[0])}


def test_go_back_n_resends_from_the_loss_on() -> None:
    world = World(client=EndpointConfig(arq="go-back-n", arq_window=8))
    client, _ = world.connect()
    world.run(0.5)
    lose_one(world, position=5)
    channel = send_all(world, client, [bytes((n,)) * 1100 for n in range(20)])
    world.run(1.0)
    assert world.server.bodies(channel) == [bytes((n,)) * 1100 for n in range(20)]
    positions = [one.position for one in sent_to_server(world) if one.position is not None]
    assert set(positions) == set(range(20))
    again = sorted({p for p in positions if positions.count(p) > 1})
    assert again == list(range(5, 5 + len(again)))
    assert 2 <= len(again) <= 8
    assert all(positions.count(p) == 2 for p in again)
    assert world.server.endpoint.dropped["out_of_order"] == len(again) - 1


@pytest.mark.parametrize("window", [1, 2, 5, 15, 64])
def test_never_more_than_the_window_under_way(window: int) -> None:
    world = World(client=EndpointConfig(arq="go-back-n", arq_window=window), loss=0.1, seed=window)
    most = [0, 0]
    acked = [0, 0]

    def fate(flying: Flying) -> list[float]:
        side = flying.target == SERVER
        for frame in flying.frames():
            if isinstance(frame, wire.AckFrame) and frame.next_position is not None:
                acked[not side] = max(acked[not side], frame.next_position)
            if isinstance(frame, wire.DataFrame) and frame.position is not None:
                most[side] = max(most[side], frame.position - acked[side] + 1)
        return world.usual_fate(flying)

    world.fate = fate
    client, server = world.connect()
    up, down = send_all(world, client, [bytes(1000)] * 60), send_all(world, server, [bytes(1000)] * 60)
    world.run_until(lambda: len(world.server.bodies(up)) == len(world.client.bodies(down)) == 60)
    # What was acknowledged but has not arrived yet counts as under way for the sender, so it may only be less.
    assert max(most) <= window


def test_stop_and_wait_has_one_fragment_under_way() -> None:
    world = World(client=EndpointConfig(arq="stop-and-wait"))
    client, _ = world.connect()
    world.run(0.5)
    start = world.now
    channel = send_all(world, client, [bytes(1100)] * 10)
    world.run_until(lambda: len(world.server.bodies(channel)) == 10)
    assert world.now - start == pytest.approx(9 * 0.02 + 0.01, rel=0.1)


def test_a_repeated_packet_is_answered_again() -> None:
    """The sender did not hear the acknowledgement: it hears it again."""
    world = World(client=EndpointConfig(arq="stop-and-wait"))
    client, _ = world.connect()
    world.run(0.5)
    before = len(world.log)
    world.fate = lambda flying: [] if flying.source == SERVER else [world.delay_s]
    send_all(world, client, [b"hello?"])
    world.run(1.0)
    asked = [flying for flying in world.log[before:] if flying.source == CLIENT and data_frames(flying)]
    answers = [flying for flying in world.log[before:] if flying.source == SERVER and flying.has(wire.AckFrame)]
    assert len(asked) >= 3
    assert len(answers) >= len(asked)
    assert world.server.endpoint.dropped["out_of_order"] >= 2
    assert world.server.bodies() == [b"hello?"]
    world.fate = world.usual_fate
    world.run(2.0)
    assert client.buffered_bytes == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("arq", ["selective-repeat", "go-back-n", "stop-and-wait"])
def test_reordering_loses_nothing(arq: str, seed: int) -> None:
    world = World(seed, client=EndpointConfig(arq=arq))  # type: ignore[arg-type]
    world.fate = lambda flying: [world.delay_s + world.rng.choice((0.0, 0.0, 0.0, 0.004, 0.012))]
    client, _ = world.connect()
    bodies = [world.rng.randbytes(world.rng.randrange(3000)) for _ in range(50)]
    channel = send_all(world, client, bodies)
    world.run_until(lambda: len(world.server.bodies(channel)) == 50, 30.0)
    assert world.server.bodies(channel) == bodies
