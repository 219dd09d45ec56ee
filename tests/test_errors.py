"""The exception tree: drawn in the docstring, and true."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from godwit import errors
from godwit.errors import (
    AccessError,
    BadFilterError,
    BadKindError,
    BadTopicError,
    BrokerError,
    ConnectionClosedError,
    DecodeError,
    GodwitError,
    JobCancelledError,
    JobError,
    JobFailedError,
    KickedError,
    NameInUseError,
    TakenOverError,
    TopicError,
    UsageError,
    broker_error,
)
from godwit.wire.control_base import Code

CLASSES = [found for _, found in inspect.getmembers(errors, inspect.isclass) if found.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_exception_has_the_root_and_says_what_it_is(kind: type[Exception]) -> None:
    assert issubclass(kind, GodwitError)
    assert kind.__doc__
    assert kind.__name__.endswith("Error")


def test_the_drawing_shows_the_tree() -> None:
    drawn: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"^([ |]*(?:\+-- )?)(\w+Error)\b", line):
            indent, name = len(match[1]), match[2]
            above = [entry for entry in above if entry[0] < indent]
            drawn[name] = above[-1][1] if above else "Exception"
            above.append((indent, name))
    assert drawn == {kind.__name__: kind.__bases__[0].__name__ for kind in CLASSES}


def test_a_decode_error_has_a_word_to_count_by() -> None:
    assert str(DecodeError("checksum")) == "checksum"
    error = DecodeError("frame", "unknown type 0x10")
    assert (str(error), error.reason) == ("frame: unknown type 0x10", "frame")


def test_a_closed_connection_says_why() -> None:
    error = ConnectionClosedError(3, "too much")
    assert (error.code, error.reason) == (3, "too much")
    assert str(error) == "the connection is closed (code 3): too much"
    assert str(ConnectionClosedError(0, "")) == "the connection is closed (code 0)"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.NOT_ALLOWED, AccessError),
        (Code.NO_SUCH_TOPIC, TopicError),
        (Code.BAD_TOPIC, BadTopicError),
        (Code.BAD_FILTER, BadFilterError),
        (Code.TOPIC_EXISTS, TopicError),
        (Code.NAME_IN_USE, NameInUseError),
        (Code.TAKEN_OVER, TakenOverError),
        (Code.KICKED, KickedError),
        (Code.STALE_EPOCH, BrokerError),
        (Code.NO_SUCH_JOB, JobError),
        (Code.BAD_KIND, BadKindError),
        (60_000, BrokerError),
    ],
)
def test_the_brokers_codes_have_their_classes(code: int, kind: type[BrokerError]) -> None:
    error = broker_error(code, "no: ask another broker")
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(same) is kind
        assert (same.code, same.text, str(same)) == (code, "no: ask another broker", "no: ask another broker")


def test_a_bad_name_is_the_same_error_wherever_it_is_found() -> None:
    for error in (BadTopicError("x"), BadFilterError("x")):
        assert isinstance(error, TopicError)
        assert isinstance(error, UsageError)
    assert isinstance(BadKindError("x"), JobError)
    assert isinstance(BadKindError("x"), UsageError)


@pytest.mark.parametrize("kind", [JobFailedError, JobCancelledError])
def test_a_job_that_failed_brings_what_there_is(kind: type[JobFailedError]) -> None:
    error = kind("job 7 has failed", "cancelled", [b"one"], {1: "no disk"})
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(same) is kind
        assert (str(same), same.state, same.results, same.errors) == (
            "job 7 has failed",
            "cancelled",
            [b"one"],
            {1: "no disk"},
        )
    assert (kind("x").state, kind("x").results, kind("x").errors) == ("failed", [], {})
