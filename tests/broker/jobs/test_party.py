"""Who takes part in work, and under which name."""

from __future__ import annotations

from tests.broker.world import World

from godwit.broker.jobs.model import Job
from godwit.broker.jobs.party import Answer, party_of, who
from godwit.broker.jobs.ready import Queue
from godwit.broker.session import Session
from godwit.native.peer import NativePeer


def session(name: str, instance: bytes, *, is_remembered: bool) -> Session:
    made = Session(name, 1, is_remembered=is_remembered)
    made.instance = instance
    return made


def test_a_client_with_a_name_is_called_by_it() -> None:
    assert who(session("ann", bytes(16), is_remembered=True)) == "ann"


def test_a_nameless_client_is_called_after_its_run() -> None:
    """Its session's name changes with each connection."""
    names = [who(session(name, b"12345678abcdefgh", is_remembered=False)) for name in ("anonymous-1", "anonymous-2")]
    assert len(set(names)) == 1
    assert b"12345678".hex() not in names[0]  # who knows the name must not know the instance, which proves it


def test_a_connection_has_one_part() -> None:
    link = NativePeer(World().peer(), 1000, [])  # type: ignore[arg-type]
    ann = session("ann", bytes(16), is_remembered=True)
    party = party_of(link, ann, [])
    assert party_of(link, ann, []) is party is link.party
    assert party.name == "ann"


def test_an_answer_remembers_what_was_agreed_when_it_was_made() -> None:
    job = Job(1, "ann", "k", Queue("resize"), b"", 2, 0, 0, 0, None, 0, 0, None)
    answer = Answer("k", job)
    job.agreed = 2
    assert (answer.agreed, Answer("k", job).agreed, Answer("k").agreed) == (None, 2, None)
