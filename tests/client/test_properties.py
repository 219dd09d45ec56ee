"""Headers, and the options of publish."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.client.message import Message
from godwit.client.properties import NO_HEADERS, Headers, MessageOptions, extension_for, make_properties
from godwit.errors import BadTopicError, UsageError
from godwit.limits import MAX_HEADERS, MAX_LIFETIME_US
from godwit.wire.extension import NO_PROPERTIES, Properties, decode_properties, encode_properties


def test_headers_are_a_mapping_with_all_pairs() -> None:
    headers = Headers([("unit", "C"), ("tag", "1"), ("tag", "2")])
    assert (headers["unit"], headers["tag"], headers.get("none"), len(headers)) == ("C", "2", None, 2)
    assert list(headers) == ["unit", "tag"]
    assert headers.get_all("tag") == ["1", "2"]
    assert headers.get_all("none") == []
    assert headers.pairs == (("unit", "C"), ("tag", "1"), ("tag", "2"))
    assert headers == {"unit": "C", "tag": "2"}
    assert headers != Headers([("unit", "C"), ("tag", "2")])
    assert headers == Headers(headers.pairs)
    assert hash(headers) == hash(Headers(headers.pairs))
    assert repr(headers) == "Headers([('unit', 'C'), ('tag', '1'), ('tag', '2')])"
    assert not NO_HEADERS


def test_properties_of_a_message() -> None:
    options = MessageOptions(
        headers={"unit": "C"}, content_type="text/plain", reply_to="answers", correlation=b"7", expires_s=1.5
    )
    properties = make_properties(**options)
    assert properties.lifetime_us == 1_500_000
    message = Message("t", b"x", "p", 0, 0, 1, False, 0, encode_properties(properties), 5_000_000)
    assert message.headers == {"unit": "C"}
    assert (message.content_type, message.reply_to, message.correlation) == ("text/plain", "answers", b"7")
    assert message.expires is not None
    assert message.expires.timestamp() == 5
    plain = Message("t", b"x", "p", 0, 0, 1, False, 0)
    assert plain.headers is NO_HEADERS
    assert (plain.content_type, plain.reply_to, plain.correlation, plain.expires) == (None, None, None, None)


def test_headers_of_a_received_message_can_be_published_again() -> None:
    headers = Headers([("a", "1"), ("a", "2")])
    assert make_properties(headers=headers).headers == headers.pairs
    assert make_properties(headers=[("a", "1"), ("a", "2")]).headers == headers.pairs


def test_a_dict_or_list_is_json_unless_a_type_is_given() -> None:
    for payload in ({"a": 1}, [1]):
        assert decode_properties(extension_for(payload, NO_PROPERTIES)).content_type == "application/json"
        with_header = Properties(headers=(("a", "b"),))
        assert decode_properties(extension_for(payload, with_header)).content_type == "application/json"
        assert decode_properties(extension_for(payload, Properties(content_type="x"))).content_type == "x"
    for plain in (b"{}", "text", 1, None):
        assert extension_for(plain, NO_PROPERTIES) == b""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"headers": {"a": 1}}, "convert both to str"),
        ({"headers": 5}, "give a dict"),
        ({"headers": ["abc"]}, "give a dict"),
        ({"headers": {"": "x"}}, "the name of a header has 0 bytes"),
        ({"headers": [("a", "b")] * (MAX_HEADERS + 1)}, "headers: at most"),
        ({"content_type": b"x"}, "give a text"),
        ({"content_type": "a\nb"}, "control character"),
        ({"correlation": "x"}, "give bytes"),
        ({"correlation": bytes(5000)}, "correlation data has 5000 bytes"),
        ({"expires_s": "1"}, "give a number of seconds"),
        ({"expires_s": 0}, "give more than 0"),
        ({"expires_s": float("nan")}, "give more than 0"),
        ({"expires_s": MAX_LIFETIME_US}, "give more than 0"),
    ],
)
def test_bad_options(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        make_properties(**options)


def test_a_reply_topic_is_a_topic() -> None:
    with pytest.raises(BadTopicError):
        make_properties(reply_to="a/#")
