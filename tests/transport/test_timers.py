"""What an open connection does by itself when time passes, and that it says in time when that will be."""

from __future__ import annotations

from collections import Counter

from godwit.transport.config import EndpointConfig
from godwit.transport.inbound import Inbound
from godwit.transport.parts import Parts
from godwit.transport.path import Roaming
from godwit.transport.sent import SentRun
from godwit.transport.silence import Silence
from godwit.transport.timers import BLOCKED_RETRY_S, PROBE_PACKETS, Timers
from godwit.transport.transmit import Transmitter
from godwit.wire import frames as wire


class Stage:
    """An open connection's parts at time 0, with the channel window that is asked for."""

    def __init__(self, window_bytes: int = 2000) -> None:
        config = EndpointConfig(channel_window_bytes=window_bytes)
        parameters = config.parameters(b"")
        self.parts = Parts(
            role="server", connection_id=5, config=config, discipline=parameters, dropped=Counter(), entropy=bytes
        )
        self.parts.on_peer(peer_id=6, peer=parameters, key=b"k", round_trip_s=0.1, now=0.0)
        self.transmitter = Transmitter(self.parts, 0.0)
        self.inbound = Inbound(self.parts, self.transmitter)
        self.silence = Silence(role="server", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
        self.silence.on_heard(1, 0.0)
        self.timers = Timers(
            self.parts,
            transmitter=self.transmitter,
            inbound=self.inbound,
            roaming=Roaming(self.parts),
            silence=self.silence,
        )

    def sent(self, number: int, at: float) -> None:
        flight = self.parts.congestion.begin_flight(at)
        self.parts.recovery.on_sent([SentRun(number, 100, flight, (), (("confirm", 1, number),))], at)
        self.transmitter.next_number = number + 1

    def said(self) -> list[wire.Frame]:
        frames, _ = self.parts.announcements.take(1000)
        return [frame for encoded in frames for frame in wire.decode_frames(encoded)]


def test_a_silent_peer_is_asked() -> None:
    stage = Stage()
    assert stage.timers.next_timer() == 10.0
    stage.timers.handle(9.9)
    assert stage.said() == []
    stage.timers.handle(10.0)
    assert stage.said() == [wire.Ping()]


def test_what_is_under_way_asks_and_is_said_again() -> None:
    stage = Stage()
    stage.parts.announcements.confirm(1, 0, 2)
    assert stage.said() == [wire.Confirm(1, 0, 2)]
    stage.sent(0, 1.0)
    probe_timer = stage.parts.recovery.probe_timer
    assert probe_timer is not None
    assert stage.timers.next_timer() == probe_timer < 2.0
    stage.timers.handle(probe_timer)
    assert stage.said() == [wire.Confirm(1, 0, 2), wire.Ping()]
    assert stage.transmitter.probes_due == PROBE_PACKETS
    later = stage.timers.next_timer()
    assert later > probe_timer + (probe_timer - 1.0)


def test_a_loss_is_noticed_in_time() -> None:
    stage = Stage()
    stage.sent(0, 0.0)
    stage.sent(1, 0.01)
    stage.parts.recovery.on_ack([(1, 1)])
    stage.inbound.detect_losses(0.05)
    due = stage.timers.next_timer()
    assert due == stage.parts.recovery.loss_timer
    stage.timers.handle(due)
    assert stage.inbound.packets_lost == 1
    assert stage.timers.next_timer() == 10.0


def test_a_sender_without_credit_asks_at_once_and_again() -> None:
    stage = Stage(window_bytes=2000)
    sending = stage.parts.sending
    channel = sending.open_channel()
    for _ in range(2):
        sending.send(channel, bytes(1500), reliable=True, last=False)
    while sending.has_frames():
        sending.next_frame(1183, packet_is_empty=True)
    assert stage.timers.ask_for_credit(3.0)
    assert stage.said() == [wire.Blocked(channel, 2000)]
    assert stage.timers.next_timer() == 3.0 + BLOCKED_RETRY_S
    assert not stage.timers.ask_for_credit(3.5)
    stage.timers.handle(3.0 + BLOCKED_RETRY_S)
    assert stage.said() == [wire.Blocked(channel, 2000)]
    sending.on_credit(channel, 10_000)
    assert not stage.timers.ask_for_credit(4.5)
    assert stage.timers.next_timer() == 10.0


def test_the_first_of_all_counts() -> None:
    stage = Stage()
    stage.transmitter.paced_until = 0.7
    assert stage.timers.next_timer() == 0.7
    stage.parts.acknowledger.on_run(1, 0.2)
    assert stage.timers.next_timer() == stage.parts.acknowledger.due_at
