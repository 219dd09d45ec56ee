"""What an open connection does by itself when time passes, and that it says in time when that will be."""

from __future__ import annotations

from collections import Counter

from godwit.transport.config import EndpointConfig
from godwit.transport.connection_state import Components
from godwit.transport.path import PathMigration
from godwit.transport.receiver import PacketReceiver
from godwit.transport.recovery import SentRun
from godwit.transport.timers import BLOCKED_RETRY_S, PROBE_PACKETS, ConnectionTimers, IdleTimer
from godwit.transport.transmitter import Transmitter
from godwit.wire import packet as wire


class Stage:
    """An open connection's parts at time 0, with the channel window that is asked for."""

    def __init__(self, window_bytes: int = 2000) -> None:
        config = EndpointConfig(channel_window_bytes=window_bytes)
        parameters = config.parameters(b"")
        self.parts = Components(
            role="server", connection_id=5, config=config, discipline=parameters, dropped=Counter(), entropy=bytes
        )
        self.parts.handle_peer(peer_id=6, peer=parameters, key=b"k", round_trip_s=0.1, now=0.0)
        self.transmitter = Transmitter(self.parts, 0.0)
        self.receiver = PacketReceiver(self.parts, self.transmitter)
        self.idle_timer = IdleTimer(role="server", now=0.0, idle_timeout_s=30.0, keep_alive_s=10.0)
        self.idle_timer.handle_packets(1, 0.0)
        self.timers = ConnectionTimers(
            self.parts,
            transmitter=self.transmitter,
            receiver=self.receiver,
            migration=PathMigration(self.parts),
            idle_timer=self.idle_timer,
        )

    def sent(self, number: int, at: float) -> None:
        flight = self.parts.congestion.begin_flight(at)
        self.parts.recovery.handle_sent([SentRun(number, 100, flight, (), (("confirm", 1, number),))], at)
        self.transmitter.next_number = number + 1

    def control_keys(self) -> list[wire.Frame]:
        frames, _ = self.parts.control_frames.next_frames(1000)
        return [frame for encoded in frames for frame in wire.decode_frames(encoded)]


def test_a_silent_peer_is_asked() -> None:
    stage = Stage()
    assert stage.timers.next_timer() == 15.0
    stage.timers.handle(14.9)
    assert stage.control_keys() == []
    stage.timers.handle(15.0)
    assert stage.control_keys() == [wire.PingFrame()]


def test_what_is_under_way_asks_and_is_said_again() -> None:
    stage = Stage()
    stage.parts.control_frames.confirm(1, 0, 2)
    assert stage.control_keys() == [wire.ConfirmFrame(1, 0, 2)]
    stage.sent(0, 1.0)
    probe_timer = stage.parts.recovery.probe_timer
    assert probe_timer is not None
    assert stage.timers.next_timer() == probe_timer < 2.0
    stage.timers.handle(probe_timer)
    assert stage.control_keys() == [wire.ConfirmFrame(1, 0, 2), wire.PingFrame()]
    assert stage.transmitter.probes_due == PROBE_PACKETS
    later = stage.timers.next_timer()
    assert later > probe_timer + (probe_timer - 1.0)


def test_a_loss_is_noticed_in_time() -> None:
    stage = Stage()
    stage.sent(0, 0.0)
    stage.sent(1, 0.01)
    stage.parts.recovery.handle_ack([(1, 1)])
    stage.receiver.detect_losses(0.05)
    due = stage.timers.next_timer()
    assert due == stage.parts.recovery.loss_timer
    stage.timers.handle(due)
    assert stage.receiver.packets_lost == 1
    assert stage.timers.next_timer() == 15.0


def test_a_sender_without_credit_asks_at_once_and_again() -> None:
    stage = Stage(window_bytes=2000)
    send_channels = stage.parts.send_channels
    channel = send_channels.open_channel()
    for _ in range(2):
        send_channels.send(channel, bytes(1500), reliable=True, last=False)
    while send_channels.has_frames():
        send_channels.next_frame(1183, packet_is_empty=True)
    assert stage.timers.ask_for_credit(3.0)
    assert stage.control_keys() == [wire.BlockedFrame(channel, 2000)]
    assert stage.timers.next_timer() == 3.0 + BLOCKED_RETRY_S
    assert not stage.timers.ask_for_credit(3.5)
    stage.timers.handle(3.0 + BLOCKED_RETRY_S)
    assert stage.control_keys() == [wire.BlockedFrame(channel, 2000)]
    send_channels.handle_credit(channel, 10_000)
    assert not stage.timers.ask_for_credit(4.5)
    assert stage.timers.next_timer() == 15.0


def test_the_first_of_all_counts() -> None:
    stage = Stage()
    stage.transmitter.paced_until = 0.7
    assert stage.timers.next_timer() == 0.7
    stage.parts.acknowledger.handle_run(1, 0.2)
    assert stage.timers.next_timer() == stage.parts.acknowledger.due_at
