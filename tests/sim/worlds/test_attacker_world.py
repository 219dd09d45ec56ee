"""The world with an adversary on the path: good seeds, reproducible runs, and planted faults that it finds."""

from __future__ import annotations

from random import Random

import pytest

from godwit.net.tls import AES_128_GCM, CHACHA20_POLY1305
from godwit.wire.packet import encode_packet
from godwit_sim.network import Host, Network, Trace
from godwit_sim.on_path import DEEDS, Adversary, OnPathPlan, repaired
from godwit_sim.sealing import CLEAR, HIDING, ClearAead
from godwit_sim.worlds import run_seed
from godwit_sim.worlds.attacker import AttackedWorld, ClearEndpoint, draw_attack, run_attacked
from godwit_sim.worlds.transport import judge
from godwit_sim.worlds.transport_plan import draw_plan


@pytest.mark.parametrize("seed", range(15))
def test_good_seeds(seed: int) -> None:
    outcome = run_seed("attacker", seed)
    assert outcome.violation is None, f"seed {seed}: {outcome.violation}"


class AesEndpoint(ClearEndpoint):
    suite = AES_128_GCM


class ChaChaEndpoint(ClearEndpoint):
    suite = CHACHA20_POLY1305


@pytest.mark.parametrize("endpoint", [AesEndpoint, ChaChaEndpoint])
@pytest.mark.parametrize("seed", range(6))
def test_good_seeds_with_real_ciphers(seed: int, endpoint: type[ClearEndpoint]) -> None:
    violation, _ = run_attacked(seed, Trace(), endpoint)
    assert violation is None, f"seed {seed}: {violation}"


def test_the_same_seed_is_the_same_run() -> None:
    assert run_seed("attacker", 4).digest == run_seed("attacker", 4).digest


@pytest.mark.soak
def test_many_seeds() -> None:
    for seed in range(15, 600):
        assert run_seed("attacker", seed).violation is None, f"seed {seed}"


def test_the_adversary_does_all_it_can() -> None:
    plan = OnPathPlan(until_s=9.0, share=1.0, deeds=DEEDS, blackouts=((5.0, 6.0),))
    network = Network()
    adversary = Adversary(network, network.add_host(Host("adversary", ("203.0.113.66", 6666))), plan, Random(1))
    packet = encode_packet(7, 3, b"\x01" * 40)
    results = [adversary.handle(("a", 1), ("b", 2), packet, 1.0) for _ in range(400)]
    assert set(adversary.deeds) == set(DEEDS)
    assert any(not passed for passed in results)
    assert any(data != packet for passed in results for _, data in passed)
    assert adversary.handle(("a", 1), ("b", 2), packet, 5.5) == []
    assert adversary.handle(("a", 1), ("b", 2), packet, 9.0) == [(0.0, packet)], "its time is over"


def test_checksums_are_repaired_and_sealed_packets_left_alone() -> None:
    packet = encode_packet(7, 3, b"\x01" * 40)
    assert repaired(packet[:-1] + b"?") == packet
    assert repaired(b"\x11" + packet[1:]) == b"\x11" + packet[1:]


class Careless(ClearAead):
    """A cipher that authenticates nothing."""

    def decrypt(self, nonce: bytes, data: bytes | memoryview, associated_data: bytes) -> bytes:
        return bytes(data[:-16])


def test_a_cipher_that_authenticates_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLEAR, "make", Careless)
    assert any(run_seed("attacker", seed).violation for seed in range(0, 60, 2))


def test_a_cipher_that_hides_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HIDING, "make", ClearAead)
    outcomes = [run_seed("attacker", seed) for seed in range(1, 12, 2)]
    assert any("can be read" in str(outcome.violation) for outcome in outcomes)


def test_plain_connections_do_not_survive_it() -> None:
    """The same attacks on connections that are not sealed: the checkers notice."""
    from godwit.transport.endpoint import Endpoint

    class PlainEndpoint(Endpoint):
        pass

    found = []
    for seed in range(30):
        plan = draw_plan(seed, ())
        world = AttackedWorld(plan, draw_attack(seed, plan), Trace(), PlainEndpoint)
        found.append(judge(world, Trace())[0])
    assert any(found)
    assert ClearEndpoint.suite is CLEAR
