"""The parts of a connection: some from the start, the others once the peer is known, and anew on a new path."""

from __future__ import annotations

from collections import Counter

import pytest

from godwit.transport.arq import GoBackN, SelectiveRepeat
from godwit.transport.config import EndpointConfig
from godwit.transport.connection_state import Components
from godwit.transport.recovery import SentRun
from godwit.wire.parameters import Parameters


def parts(arq: str = "selective-repeat", **config: int) -> tuple[Components, Parameters]:
    discipline = EndpointConfig(arq=arq).parameters(b"")  # type: ignore[arg-type]
    own = EndpointConfig(**config)  # type: ignore[arg-type]
    made = Components(
        role="client", connection_id=5, config=own, discipline=discipline, dropped=Counter(), entropy=bytes
    )
    return made, discipline


def known(round_trip_s: float | None = 0.04) -> Components:
    made, peer = parts()
    assert made.handle_peer(peer_id=6, peer=peer, key=b"k", round_trip_s=round_trip_s, now=1.0) == ""
    return made


@pytest.mark.parametrize(("arq", "policy"), [("selective-repeat", SelectiveRepeat), ("go-back-n", GoBackN)])
def test_the_discipline_rules_both_directions(arq: str, policy: type) -> None:
    made, _ = parts(arq)
    assert isinstance(made.send_channels.policy, policy)
    assert (made.in_order is None) is (policy is SelectiveRepeat)


def test_the_roles() -> None:
    made, _ = parts()
    assert (made.role, made.peer_role) == ("client", "server")


def test_what_the_handshake_showed_is_used() -> None:
    made = known(0.04)
    assert made.recovery.round_trip.smoothed_s == made.congestion.shortest_trip_s == 0.04
    assert not known(None).recovery.round_trip.has_sample


def test_what_is_queued_beyond_the_peers_limits_is_told() -> None:
    made, _ = parts()
    made.send_channels.send(made.send_channels.open_channel(), bytes(5000), reliable=True, last=False)
    small = EndpointConfig(max_record_bytes=2000).parameters(b"")
    assert "5000" in made.handle_peer(peer_id=6, peer=small, key=b"k", round_trip_s=None, now=1.0)


def test_datagrams_are_as_large_as_both_sides_take() -> None:
    made, _ = parts(max_datagram_bytes=9000)
    made.handle_peer(
        peer_id=6, peer=EndpointConfig(max_datagram_bytes=1400).parameters(b""), key=b"k", round_trip_s=None, now=1.0
    )
    made.mtu.is_wanted = True
    assert made.mtu.probe_bytes(1.0) == 1400


def test_a_new_path_is_unknown_but_what_is_under_way_stays_under_way() -> None:
    made = known()
    flight = made.congestion.begin_flight(1.0)
    made.recovery.handle_sent([SentRun(n, 1000, flight) for n in range(5)], 1.0)
    made.congestion.handle_sent(5000)
    made.mtu.handle_probe_sent(1472)
    made.mtu.handle_probe_acked(1472)
    made.handle_new_path(2.0, None)
    assert made.congestion.in_flight_bytes == 5000
    assert made.recovery.sent.packets == 5
    assert made.mtu.datagram_bytes == 1200
    assert not made.recovery.round_trip.has_sample
    assert made.congestion.bandwidth_bytes_per_s == 0.0


def test_a_probe_of_the_old_paths_size_is_an_ordinary_packet_on_the_new_one() -> None:
    made = known()
    probe = SentRun(0, 1472, made.congestion.begin_flight(1.0), is_mtu_probe=True)
    made.recovery.handle_sent([probe], 1.0)
    made.recovery.spurious = 3
    made.handle_new_path(2.0, None)
    assert not probe.is_mtu_probe
    assert made.recovery.spurious == 3  # what is counted for the statistics goes on
