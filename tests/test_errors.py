"""The exception tree: drawn in the docstring, and true."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest

from godwit import errors
from godwit.errors import (
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
    TopicError,
    UsageError,
    broker_error,
)
from godwit.wire.control_base import Code

CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if found.__module__ == errors.__name__ and found is not Code
]


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


def codes_in_guide() -> dict[Code, type[BrokerError]]:
    """Return the class of each code that the table of errors in the guide names."""
    page = (Path(__file__).resolve().parent.parent / "docs" / "GUIDE.md").read_text(encoding="utf-8")
    found: dict[Code, type[BrokerError]] = {}
    for row in page.partition("| error | meaning | `code` |\n")[2].partition("\n\n")[0].splitlines()[1:]:
        names, _, text = row.strip("|").split("|")
        classes = [getattr(errors, name) for name in re.findall(r"`(\w+)`", names) if name.endswith("Error")]
        codes = [Code[name] for name in re.findall(r"\b[A-Z][A-Z_]+\b", text)]
        found.update(zip(codes, classes if len(classes) > 1 else classes * len(codes), strict=False))
    return found


GUIDE = codes_in_guide()


@pytest.mark.parametrize("code", [*Code, 60_000])
def test_a_code_has_the_class_that_the_guide_names(code: int) -> None:
    error = broker_error(code, "no: ask another broker")
    named = GUIDE.get(Code(code)) if code in set(Code) else None
    assert type(error) is BrokerError if named is None else isinstance(error, named)
    for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(same) is type(error)
        assert (same.code, same.text, str(same)) == (code, "no: ask another broker", "no: ask another broker")


def test_a_bad_name_is_the_same_error_wherever_it_is_found() -> None:
    for code, kind in (
        (Code.BAD_TOPIC, BadTopicError),
        (Code.BAD_FILTER, BadFilterError),
        (Code.BAD_KIND, BadKindError),
    ):
        assert type(broker_error(code, "x")) is kind
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


def test_a_broker_cannot_send_control_characters_to_a_terminal() -> None:
    error = broker_error(Code.BUSY, "full\x1b]0;title\x07\nTraceback" + "x" * 10_000)
    assert error.text.startswith("full\\x1b]0;title\\x07\\nTraceback")
    assert str(error).isprintable()
    assert len(error.text) < 1100
