"""The books of jobs: messages of `$jobs` in an append reach the chronicle, others do not."""

from __future__ import annotations

import msgspec
import pytest
from tests.sim.worlds.jobs_scene import QUIET

from godwit.wire.batch import Batch, Entry, encode_batch, encode_head
from godwit.wire.changes import JobPayloadRow, JobRow
from godwit.wire.jobs import JobSpec
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Network
from godwit_sim.worlds.broker_books import EPOCH_US, Books
from godwit_sim.worlds.jobs_books import TAIL, JobBooks

KEPT = JobRow(1, "boss", "key", "mail", 1, 0, EPOCH_US, EPOCH_US, None, 3, 1000, None, "waiting", None, None)


def entry(topic: str, *payloads: bytes) -> Entry:
    batch = Batch(payloads=list(payloads), published_us=EPOCH_US, qos=1)
    body = encode_batch(batch)
    flags = body[0]
    head = encode_head(flags, EPOCH_US, None, None)
    assert body.startswith(head)
    return Entry(
        topic=topic,
        publisher="$broker",
        flags=flags,
        published_us=EPOCH_US,
        received_us=EPOCH_US,
        count=len(payloads),
        rest=body[len(head) :],
    )


def books() -> JobBooks:
    made = Books(1, Network())
    made.restarts.attempted([], [KEPT, JobPayloadRow(1, b"x")])
    made.restarts.succeeded(0)
    return JobBooks(QUIET, made)


def test_events_are_learned() -> None:
    made = books()
    made.ledger.ask("boss", JobSpec(key="key", of_kind="mail", size=1), b"x", 0.0)
    event = {"event": "submitted", "job": 1, "controller": "boss", "at_us": EPOCH_US, "payload_bytes": 1}
    made.learn([entry("other", b"no event"), entry("$jobs/mail", msgspec.json.encode(event))])
    assert made.chronicle.stories[1].state == "waiting"
    assert not made.is_storage_failing


def test_what_went_before_a_violation_is_told() -> None:
    made = books()
    for number in range(30):
        made.note(f"note {number}")
    lines = made.tail().splitlines()
    assert lines[-1].endswith("note 29")
    assert len(lines) == TAIL + 1


def test_what_is_no_event_is_caught() -> None:
    with pytest.raises(ViolationError, match="is no event"):
        books().learn([entry("$jobs/mail", b"no event")])
