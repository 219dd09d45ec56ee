"""The datagrams of the attacker, and that it follows its plan."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from godwit.impairment import ImpairedLink, LinkSettings
from godwit.transport.events import Address
from godwit.wire import packet as f
from godwit.wire.packet import encode_packet
from godwit_sim.attacker import BLIND, FORGING, SEEING, Attacker, AttackPlan
from godwit_sim.network import Host, Network, Observer, addressed_to, frames_of

SERVER, CLIENT, EVIL = ("192.0.2.1", 4000), ("10.0.0.1", 40_000), ("203.0.113.66", 6666)
SEEN = encode_packet(0xABC, 7, f.encode_frame(f.DataFrame(f.WHOLE, 1, 2, 0, None, b"payload")))


class Watch(Observer):
    def __init__(self) -> None:
        self.thrown: list[tuple[Address, Address, bytes]] = []

    def sent(self, host: Host, source: Address, destination: Address, datagram: bytes, now: float) -> None:
        if host.name == "attacker":
            self.thrown.append((source, destination, datagram))


def attack(kinds: Sequence[str], *, spoofs: bool = False, talk: bool = True) -> list[tuple[Address, Address, bytes]]:
    network, watch = Network(), Watch()
    network.observers.append(watch)
    server, client, evil = (
        network.add_host(Host(name, address))
        for name, address in (("server", SERVER), ("client", CLIENT), ("attacker", EVIL))
    )
    network.join(client, server, ImpairedLink(LinkSettings(), Random(1)))
    network.join(evil, server, ImpairedLink(LinkSettings(), Random(1)))
    plan = AttackPlan(1.0, 2.0, 60, tuple(kinds), spoofs)
    Attacker(network, evil, [server, client], plan, Random(1)).schedule()
    if talk:
        network.inject(client, CLIENT, SERVER, SEEN)
    network.run(0.999)
    assert watch.thrown == []
    network.run(2.0)
    return watch.thrown


@pytest.mark.parametrize("kind", BLIND)
def test_a_blind_attacker_guesses(kind: str) -> None:
    thrown = attack([kind])
    assert len(thrown) == 60
    assert {source for source, _, _ in thrown} == {EVIL}
    assert {target for _, target, _ in thrown} == {SERVER, CLIENT}
    for _, _, datagram in thrown:
        found = addressed_to(datagram)
        assert found is None or found[0] != 0xABC


def test_false_sources() -> None:
    sources = {source for source, _, _ in attack(BLIND, spoofs=True)}
    assert {SERVER, CLIENT, EVIL} < sources


def test_repeats_are_exact() -> None:
    thrown = attack(["repeat"], spoofs=True)
    assert {datagram for _, _, datagram in thrown} == {SEEN}
    assert {source for source, _, _ in thrown} == {CLIENT, EVIL}
    assert {target for _, target, _ in thrown} == {SERVER}


@pytest.mark.parametrize("kind", ["flip", "cut"])
def test_mutilated_copies_are_no_packets(kind: str) -> None:
    for _, _, datagram in attack([kind]):
        assert datagram != SEEN
        assert addressed_to(datagram) is None


@pytest.mark.parametrize(
    ("kind", "frame"),
    [("forged_close", f.CloseFrame), ("forged_reset", f.ResetFrame), ("forged_response", f.PathResponseFrame)],
)
def test_forgeries_name_the_right_connection(kind: str, frame: type[Any]) -> None:
    for _, _, datagram in attack([kind]):
        found = addressed_to(datagram)
        assert found is not None
        assert found[0] == 0xABC
        assert isinstance(frames_of(datagram)[0], frame)


def test_nothing_seen_nothing_repeated() -> None:
    assert attack(["repeat"], talk=False) == []


def test_plans_know_whether_they_observe() -> None:
    for kinds, sees, forges in ((BLIND, False, False), (SEEING, True, False), (FORGING, True, True)):
        plan = AttackPlan(0.0, 1.0, 1, kinds, False)
        assert (plan.sees, plan.forges) == (sees, forges)
