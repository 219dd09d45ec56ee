"""Control messages: typed, bounded, and open towards newer versions."""

from __future__ import annotations

from typing import Any, get_args

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import control_messages, damaged, texts, value_or_refusal

from godwit.errors import DecodeError
from godwit.limits import MAX_CONTROL_RECORD_BYTES
from godwit.wire import control
from godwit.wire.control import (
    Code,
    ControlMessage,
    Done,
    Error,
    Open,
    UnknownKind,
    Unsubscribe,
    decode_control,
    encode_control,
)

encoded_messages = control_messages.map(encode_control)


def test_every_kind_is_known_by_its_name() -> None:
    kinds = {kind.__struct_config__.tag for kind in get_args(ControlMessage)}
    assert kinds == control._KINDS == {"open", "subscribe", "subscribed", "unsubscribe", "done", "error"}


@given(control_messages)
def test_each_message_comes_back(message: ControlMessage) -> None:
    assert decode_control(encode_control(message)) == message


@given(control_messages, st.dictionaries(texts.map(lambda text: "x-" + text), st.none() | texts | st.integers(0, 9)))
def test_fields_of_a_newer_version_are_ignored(message: ControlMessage, more: dict[str, Any]) -> None:
    fields = cbor2.loads(encode_control(message))
    assert decode_control(cbor2.dumps(more | fields)) == message


def test_what_has_its_default_value_is_not_sent() -> None:
    assert cbor2.loads(encode_control(Open(topic="a"))) == {"kind": "open", "topic": "a"}
    assert cbor2.loads(encode_control(Error(code=101, text=""))) == {"kind": "error", "code": 101, "text": ""}


# -- unknown kinds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "request_number"),
    [
        ({}, None),
        ({"request": 0}, 0),
        ({"request": 2**32 - 1}, 2**32 - 1),
        ({"request": 2**32}, None),
        ({"request": -1}, None),
        ({"request": True}, None),  # Python's True is an int, a request is not
        ({"request": "7"}, None),
        ({"request": 7.0}, None),
        ({"request": None}, None),
        ({"request": 7, "topic": 5}, 7),
    ],
)
def test_an_unknown_kind_can_be_answered(fields: dict[str, object], request_number: int | None) -> None:
    found = decode_control(cbor2.dumps({"kind": "teleport"} | fields))
    assert found == UnknownKind("teleport", request_number)
    assert isinstance(found, UnknownKind)
    assert type(found.request) is type(request_number)
    answer = Error(code=Code.UNKNOWN_KIND, text=f"unknown kind {found.kind!r}", request=found.request)
    assert decode_control(encode_control(answer)) == answer


def test_the_name_of_an_unknown_kind_is_cut() -> None:
    assert decode_control(cbor2.dumps({"kind": "x" * 1000})) == UnknownKind("x" * 64, None)


@given(texts.filter(lambda kind: kind not in control._KINDS), st.dictionaries(texts, st.integers()))
def test_any_other_kind_is_unknown(kind: str, fields: dict[str, int]) -> None:
    fields = {name: value % 2**64 for name, value in fields.items()}
    assert isinstance(decode_control(cbor2.dumps(fields | {"kind": kind})), UnknownKind)


# -- hostile input ----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=100) | damaged(encoded_messages))
def test_hostile_bytes_give_a_message_or_an_error(data: bytes) -> None:
    found = value_or_refusal(decode_control, data)
    if found is not None and not isinstance(found, UnknownKind):
        assert decode_control(encode_control(found)) == found


@given(st.fixed_dictionaries({}, optional={name: st.none() | st.integers() | texts | st.binary(max_size=4)
       | st.lists(texts, max_size=3) for name in ("request", "channel", "filters", "topic", "qos", "code", "text",
       "epoch", "publisher", "unreliable_channel")}), st.sampled_from(sorted(control._KINDS)))  # fmt: skip
def test_fields_of_any_type_give_a_message_or_an_error(fields: dict[str, object], kind: str) -> None:
    data = cbor2.dumps(fields | {"kind": kind})
    found = value_or_refusal(decode_control, data)
    if found is not None:
        assert not isinstance(found, UnknownKind)
        assert decode_control(encode_control(found)) == found


REFUSED: list[tuple[str, object]] = [
    ("Expected `object`", ["open"]),
    ("missing required field `kind`", {"topic": "a"}),
    ("Expected `str`", {"kind": 5}),
    ("Expected `str`", {"kind": b"open", "topic": "a"}),
    ("missing required field `topic`", {"kind": "open"}),
    ("length >= 1", {"kind": "open", "topic": ""}),
    ("length <= 1024", {"kind": "open", "topic": "a" * 1025}),
    ("Invalid enum value 3", {"kind": "open", "topic": "a", "qos": 3}),
    ("Expected `int`", {"kind": "open", "topic": "a", "qos": "1"}),
    ("Expected `int` >= 0", {"kind": "open", "topic": "a", "epoch": -1}),
    ("Expected `int` <= 9223372036854775807", {"kind": "open", "topic": "a", "epoch": 2**63}),
    ("missing required field `request`", {"kind": "subscribe", "filters": ["a"]}),
    ("Expected `int` >= 0", {"kind": "subscribe", "request": -(2**64), "filters": ["a"]}),
    ("Expected `int` <= 4294967295", {"kind": "subscribe", "request": 2**32, "filters": ["a"]}),
    ("length >= 1", {"kind": "subscribe", "request": 1, "filters": []}),
    ("length >= 1", {"kind": "subscribe", "request": 1, "filters": [""]}),
    ("length <= 256", {"kind": "subscribe", "request": 1, "filters": ["a"] * 257}),
    ("Expected `array`", {"kind": "subscribe", "request": 1, "filters": "a"}),
    ("Expected `int` >= 1", {"kind": "subscribed", "request": 1, "channel": 0, "unreliable_channel": 1}),
    ("missing required field `unreliable_channel`", {"kind": "subscribed", "request": 1, "channel": 1}),
    ("Expected `int` <= 4294967295", {"kind": "unsubscribe", "request": 1, "channel": 2**32}),
    ("missing required field `request`", {"kind": "done"}),
    ("Expected `int` <= 65535", {"kind": "error", "code": 2**16, "text": ""}),
    ("missing required field `text`", {"kind": "error", "code": 1}),
]


@pytest.mark.parametrize(("why", "value"), REFUSED)
def test_every_refusal(why: str, value: object) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_control(cbor2.dumps(value))
    assert caught.value.reason == "control"
    assert why in str(caught.value)


def test_bytes_behind_the_message_are_refused() -> None:
    with pytest.raises(DecodeError, match="1 bytes behind the value"):
        decode_control(encode_control(Done(request=1)) + b"\x00")


def test_a_message_has_a_longest_size() -> None:
    padding = MAX_CONTROL_RECORD_BYTES - len(cbor2.dumps({"kind": "done", "request": 1, "x": "a" * 70_000})) + 70_000
    data = cbor2.dumps({"kind": "done", "request": 1, "x": "a" * padding})
    assert len(data) == MAX_CONTROL_RECORD_BYTES
    assert decode_control(data) == Done(request=1)
    with pytest.raises(DecodeError, match="131073 bytes, at most 131072"):
        decode_control(data + b"\x00")


def test_messages_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Unsubscribe(request=1, channel=2).channel = 3  # type: ignore[misc]


# -- codes ------------------------------------------------------------------------------------------------------------


def test_codes_fit_their_field_and_keep_to_their_range() -> None:
    transport = {"NORMAL", "SHUTDOWN", "PROTOCOL", "LIMIT", "VERSION", "BUSY", "TIMEOUT", "RESET", "INTERNAL"}
    for code in Code:
        assert 0 <= code < 2**16
        assert (code < 100) == (code.name in transport)
