"""A refused login does not say which names and topics exist."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.world import World

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.wire import control as proofs
from godwit.wire.control import Login, Will
from godwit.wire.packet import CloseFrame, encode_frame

SECRET = b"alice's long secret"
MINE = Rule(clients=("alice",), allow=frozenset(("publish",)), topics=("mine/#",))


def closed_world(**more: Any) -> World:
    access = Access(secrets={"alice": SECRET}, rules=(MINE,), allows_anonymous=False)
    return World(Settings(access=access, **more))


def answer(name: str, proof: bytes, **fields: Any) -> tuple[bytes, int]:
    """The bytes that end the connection of a refused login, and how many proofs the broker worked out for it."""
    world = closed_world(default_policy="explicit", topics=("mine/there",))
    peer = world.peer()
    made = 0

    def counting(*args: Any) -> bytes:
        nonlocal made
        made += 1
        return make_proof(*args)

    make_proof = proofs.make_proof
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proofs, "make_proof", counting)
        peer.say(Login(request=1, name=name, instance=bytes(16), proof=proof, **fields))
        world.run()
    assert peer.closed is not None
    assert not peer.said
    code, reason = peer.closed
    return encode_frame(CloseFrame(code, reason, bytes(16))), made


@pytest.mark.parametrize("proof", [b"", b"x" * 32, b"short"])
@pytest.mark.parametrize("will", [None, Will(topic="mine/there", payload=b""), Will(topic="no/such", payload=b"")])
def test_an_unknown_name_and_a_wrong_proof_are_answered_alike(proof: bytes, will: Will | None) -> None:
    known, unknown = answer("alice", proof, will=will), answer("nobody", proof, will=will)
    assert known == unknown
    assert known[1] == 1


def test_a_will_tells_nothing_about_topics_before_the_proof() -> None:
    wills = [Will(topic=topic, payload=b"") for topic in ("mine/there", "mine/missing", "$sys/x", "bad/+")]
    assert len({answer("alice", b"", will=will) for will in wills}) == 1


def test_the_operator_reads_what_was_wrong() -> None:
    world = closed_world()
    for name in ("alice", "nobody"):
        world.peer().try_login(name, proof=b"x" * 32)
    texts = world.told("refused")
    assert texts[0].endswith("the proof of the name 'alice' is missing or wrong")
    assert texts[1].endswith("no client 'nobody' is listed")


def test_the_right_proof_opens_the_door() -> None:
    assert closed_world().client("alice", secret=SECRET).closed is None
