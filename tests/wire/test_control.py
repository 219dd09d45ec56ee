"""Control messages: typed, bounded, and open towards newer versions."""

from __future__ import annotations

from typing import Any, Literal, get_args

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.strategies import CONTROL, control_messages, damaged, texts, value_or_refusal

from godwit.errors import DecodeError
from godwit.limits import (
    MAX_CLIENT_NAME_BYTES,
    MAX_CONTROL_RECORD_BYTES,
    MAX_FILTERS,
    MAX_TOPIC_BYTES,
    MAX_WILL_BYTES,
)
from godwit.wire import control, control_base
from godwit.wire.control import (
    ControlMessage,
    Done,
    Error,
    Labels,
    Login,
    MalformedError,
    PublishOpen,
    Subscribe,
    UnknownKind,
    Unsubscribe,
    Will,
    decode_control,
    encode_control,
)
from godwit.wire.control_base import Code

encoded_messages = control_messages.map(encode_control)
a_quarter = settings(max_examples=max(settings().max_examples // 4, 1))
"""The examples of the active profile, divided: these tests run for each of nearly fifty kinds of messages."""


KINDS = {
    "login", "welcome", "open", "opened", "refused", "progress", "progressed", "subscribe", "subscribed", "unsubscribe",
    "commit", "kicked", "feed", "labels", "gap", "create", "topics", "topic_list", "clients", "client_list", "kick",
    "delete", "cursors", "cursor_list", "groups", "group_list", "delete_group", "capture", "workers", "worker_list",
    "work", "volunteer", "volunteered", "watch", "watched", "unwatch", "cancel", "jobs", "job_list", "job", "job_shown",
    "retry", "retried", "ping", "pong", "done", "error", "relay", "relaying", "bridges", "bridge_list",
}  # fmt: skip


def test_every_kind_is_known_by_its_name() -> None:
    assert {kind.__struct_config__.tag for kind in get_args(ControlMessage)} == set(control._KINDS) == KINDS
    assert set(CONTROL) == set(get_args(ControlMessage))


@pytest.mark.parametrize("kind", get_args(ControlMessage))
@a_quarter
@given(st.data())
def test_each_message_comes_back(kind: type[ControlMessage], data: st.DataObject) -> None:
    message = data.draw(CONTROL[kind])
    assert type(message) is kind
    assert decode_control(encode_control(message)) == message


@given(control_messages, st.dictionaries(texts.map(lambda text: "x-" + text), st.none() | texts | st.integers(0, 9)))
def test_fields_of_a_newer_version_are_ignored(message: ControlMessage, more: dict[str, Any]) -> None:
    fields = cbor2.loads(encode_control(message))
    assert decode_control(cbor2.dumps(more | fields)) == message


def test_what_has_its_default_value_is_not_sent() -> None:
    assert cbor2.loads(encode_control(PublishOpen(topic="a"))) == {"kind": "open", "topic": "a"}
    assert cbor2.loads(encode_control(Error(code=101, text=""))) == {"kind": "error", "code": 101, "text": ""}
    assert cbor2.loads(encode_control(Labels())) == {"kind": "labels"}
    will = Will(topic="a", payload=b"gone")
    login = Login(request=1, instance=bytes(16), will=will)
    assert cbor2.loads(encode_control(login))["will"] == {"topic": "a", "payload": b"gone"}


@pytest.mark.parametrize("start", ["latest", "earliest", 0, 2**63 - 1, None])
def test_a_start_is_a_word_or_an_offset(start: Literal["latest", "earliest"] | int | None) -> None:
    message = Subscribe(request=1, subscription=2, filters=["a"], start=start)
    assert decode_control(encode_control(message)) == message


def test_the_longest_of_everything_passes() -> None:
    """Characters are counted here; the bytes are the broker's to count, which looks at the names anyway."""
    will = Will(topic="t" * MAX_TOPIC_BYTES, payload=bytes(MAX_WILL_BYTES), qos=2, retain=True)
    name = "n" * MAX_CLIENT_NAME_BYTES
    login = Login(request=2**32 - 1, name=name, instance=bytes(16), proof=bytes(32), session_expiry_s=1, will=will)
    assert decode_control(encode_control(login)) == login
    filters = ["f" * MAX_TOPIC_BYTES] * MAX_FILTERS
    subscribe = Subscribe(request=2**32 - 1, subscription=2**32 - 1, filters=filters, cursor=name, start=2**63 - 1)
    assert decode_control(encode_control(subscribe)) == subscribe


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


values = (
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats() | texts | st.binary(max_size=16)
    | st.lists(texts | st.integers(0, 9) | st.tuples(st.integers(0, 9), texts), max_size=3)
    | st.dictionaries(texts, texts, max_size=2)
)  # fmt: skip
FIELDS = sorted({field for kind in get_args(ControlMessage) for field in kind.__struct_fields__})


@pytest.mark.parametrize("kind", sorted(KINDS))
@a_quarter
@given(st.dictionaries(st.sampled_from(FIELDS), values, max_size=10))
def test_fields_of_any_type_give_a_message_or_an_error(kind: str, fields: dict[str, object]) -> None:
    data = cbor2.dumps(fields | {"kind": kind})
    found = value_or_refusal(decode_control, data)
    if found is not None:
        assert not isinstance(found, UnknownKind)
        assert decode_control(encode_control(found)) == found


@pytest.mark.parametrize("kind", [kind for kind in get_args(ControlMessage) if kind.__struct_fields__])
@a_quarter
@given(st.data())
def test_one_wrong_field_gives_a_message_or_an_error(kind: type[ControlMessage], data: st.DataObject) -> None:
    """As above, but with everything else right, so that every field's own check is met."""
    fields = cbor2.loads(encode_control(data.draw(CONTROL[kind])))
    fields[data.draw(st.sampled_from(kind.__struct_fields__))] = data.draw(values)
    found = value_or_refusal(decode_control, cbor2.dumps(fields))
    assert found is None or (type(found) is kind and decode_control(encode_control(found)) == found)


def a_login(**fields: object) -> dict[str, object]:
    return {"kind": "login", "request": 1, "instance": bytes(16)} | fields


def a_subscribe(**fields: object) -> dict[str, object]:
    return {"kind": "subscribe", "request": 1, "subscription": 2, "filters": ["a"]} | fields


REFUSED: list[tuple[str, object]] = [
    ("Expected `object`", ["open"]),
    ("missing required field `kind`", {"topic": "a"}),
    ("Expected `str`", {"kind": 5}),
    ("Expected `str`", {"kind": b"open", "topic": "a"}),
    ("missing required field `topic`", {"kind": "open"}),
    ("length <= 1024", {"kind": "open", "topic": "a" * 1025}),
    ("Invalid enum value 3", {"kind": "open", "topic": "a", "qos": 3}),
    ("Expected `int`", {"kind": "open", "topic": "a", "qos": "1"}),
    ("length <= 256", {"kind": "open", "topic": "a", "publisher": "p" * 257}),
    ("Expected `int` >= 0", {"kind": "open", "topic": "a", "epoch": -1}),
    ("Expected `int` <= 9223372036854775807", {"kind": "open", "topic": "a", "epoch": 2**63}),
    ("missing required field `instance`", {"kind": "login", "request": 1}),
    ("length >= 16", a_login(instance=bytes(15))),
    ("length <= 16", a_login(instance=bytes(17))),
    ("length <= 256", a_login(name="n" * 257)),
    ("length <= 32", a_login(proof=bytes(33))),
    ("Expected `bytes`, got `str`", a_login(proof="AAAA")),
    ("Expected `int` <= 4294967295", a_login(session_expiry_s=2**32)),
    ("Expected `int` >= 0", a_login(session_expiry_s=-1)),
    ("length <= 65536", a_login(will={"topic": "a", "payload": bytes(MAX_WILL_BYTES + 1)})),
    ("Invalid enum value 3", a_login(will={"topic": "a", "payload": b"", "qos": 3})),
    ("missing required field `payload`", a_login(will={"topic": "a"})),
    ("missing required field `max_message_bytes`", {"kind": "welcome", "request": 1, "name": "a"}),
    ("Expected `int` >= 1", {"kind": "opened", "channel": 0}),
    ("missing required field `code`", {"kind": "refused", "channel": 1, "text": ""}),
    ("missing required field `topic`", {"kind": "progress", "request": 1}),
    ("Expected `int` <= 9223372036854775807", {"kind": "progressed", "request": 1, "next_sequence": 2**63}),
    ("missing required field `request`", {"kind": "subscribe", "subscription": 2, "filters": ["a"]}),
    ("Expected `int` >= 0", a_subscribe(request=-(2**64))),
    ("Expected `int` <= 4294967295", a_subscribe(request=2**32)),
    ("Expected `int` <= 4294967295", a_subscribe(subscription=2**32)),
    ("length >= 1", a_subscribe(filters=[])),
    ("length <= 64", a_subscribe(filters=["a"] * (MAX_FILTERS + 1))),
    ("length <= 1024", a_subscribe(filters=["a" * 1025])),
    ("Expected `array`", a_subscribe(filters="a")),
    ("Invalid enum value 'later'", a_subscribe(start="later")),
    ("Expected `int` >= 0", a_subscribe(start=-1)),
    ("Expected `int | str | null`", a_subscribe(start=1.5)),
    ("Expected `int | null`", a_subscribe(since_us="today")),
    ("missing required field `subscription`", {"kind": "subscribed", "request": 1}),
    ("missing required field `subscription`", {"kind": "unsubscribe", "request": 1}),
    ("missing required field `offset`", {"kind": "commit", "request": 1, "subscription": 2}),
    ("length <= 1024", {"kind": "kicked", "subscription": 2, "by": "x", "reason": "r" * 1025}),
    ("missing required field `subscription`", {"kind": "feed"}),
    ("Expected `array` of length 2", {"kind": "labels", "topics": [[1]]}),
    ("Expected `int` >= 0", {"kind": "labels", "topics": [[-1, "a"]]}),
    ("Expected `int` <= 4294967295", {"kind": "labels", "publishers": [[2**32, "a"]]}),
    ("Expected `str`", {"kind": "labels", "publishers": [[1, b"a"]]}),
    ("missing required field `next_offset`", {"kind": "gap", "count": 1}),
    ("missing required field `topic`", {"kind": "create", "request": 1}),
    ("length <= 1024", {"kind": "topics", "request": 1, "after": "a" * 1025}),
    (
        "Invalid enum value 'closed'",
        {"kind": "topic_list", "request": 1, "topics": [{"name": "a", "policy": "closed"}]},
    ),
    ("length <= 256", {"kind": "clients", "request": 1, "after": "a" * 257}),
    ("Expected `array`", {"kind": "client_list", "request": 1, "clients": [{"name": "a", "subscriptions": ["f"]}]}),
    ("length >= 1", {"kind": "kick", "request": 1, "client": "a", "filters": []}),
    ("missing required field `client`", {"kind": "kick", "request": 1}),
    ("missing required field `request`", {"kind": "ping"}),
    ("missing required field `request`", {"kind": "pong"}),
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


@pytest.mark.parametrize(
    ("fields", "request_number"), [({"request": 7}, 7), ({}, None), ({"request": -1}, None), ({"request": "7"}, None)]
)
def test_a_malformed_message_of_a_known_kind_can_be_answered(
    fields: dict[str, object], request_number: int | None
) -> None:
    with pytest.raises(MalformedError) as caught:
        decode_control(cbor2.dumps({"kind": "commit", "subscription": 1} | fields))
    assert caught.value.request == request_number
    assert not caught.value.detail.startswith("control")
    answer = Error(code=Code.MALFORMED, text=caught.value.detail, request=caught.value.request)
    assert decode_control(encode_control(answer)) == answer


def test_what_is_no_control_message_at_all_has_nothing_to_answer_with() -> None:
    for data in (b"", b"\x80", cbor2.dumps({"request": 7})):
        with pytest.raises(DecodeError) as caught:
            decode_control(data)
        assert not isinstance(caught.value, MalformedError)


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
        Unsubscribe(request=1, subscription=2).subscription = 3  # type: ignore[misc]


def test_the_codes_are_those_of_the_module_of_codes() -> None:
    assert Code is control_base.Code


def test_a_message_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counting(*args: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        return load(*args, **named)  # type: ignore[arg-type]

    load = cbor2.load
    monkeypatch.setattr("godwit.wire.cbor.cbor2.load", counting)
    assert decode_control(encode_control(Done(request=1))) == Done(request=1)
    with pytest.raises(MalformedError):
        decode_control(cbor2.dumps({"kind": "done"}))
    assert calls == 2
