"""The parameters of the handshake: every field within its range, and the whole within one datagram."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import damaged, parameters, value_or_refusal

from godwit.errors import DecodeError
from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    LARGEST_DATAGRAM_BYTES,
    LARGEST_RECORD_BYTES,
    MAX_ARQ_WINDOW,
    MAX_HANDSHAKE_APPLICATION_BYTES,
)
from godwit.wire.packet import AcceptFrame, ConnectFrame, encode_frame, encode_packet
from godwit.wire.parameters import Parameters, decode_parameters, encode_parameters

LEAST: dict[str, Any] = {
    "arq": "stop-and-wait",
    "arq_window": 1,
    "max_datagram_bytes": BASE_DATAGRAM_BYTES,
    "receive_buffer_bytes": 2 * BASE_DATAGRAM_BYTES,
    "channel_window_bytes": 1,
    "connection_window_bytes": 1,
    "max_record_bytes": BASE_DATAGRAM_BYTES,
    "max_channels": 1,
    "idle_timeout_ms": 1,
    "application": b"",
}
MOST: dict[str, Any] = {
    "arq": "selective-repeat",
    "arq_window": MAX_ARQ_WINDOW,
    "max_datagram_bytes": LARGEST_DATAGRAM_BYTES,
    "receive_buffer_bytes": 2**53,
    "channel_window_bytes": 2**53,
    "connection_window_bytes": 2**53,
    "max_record_bytes": LARGEST_RECORD_BYTES,
    "max_channels": 2**31,
    "idle_timeout_ms": 2**42,
    "application": b"x" * MAX_HANDSHAKE_APPLICATION_BYTES,
}
OPTIONAL = {"arq", "arq_window", "application"}


@given(parameters)
def test_parameters_come_back(value: Parameters) -> None:
    assert decode_parameters(encode_parameters(value)) == value


@given(st.binary(max_size=100) | damaged(parameters.map(encode_parameters)))
def test_hostile_bytes_give_parameters_or_an_error(data: bytes) -> None:
    found = value_or_refusal(decode_parameters, data)
    if found is not None:
        assert decode_parameters(encode_parameters(found)) == found


@pytest.mark.parametrize("fields", [LEAST, MOST], ids=["least", "most"])
def test_the_ends_of_every_range_pass(fields: dict[str, Any]) -> None:
    found = decode_parameters(cbor2.dumps(fields))
    assert {name: getattr(found, name) for name in fields} == fields


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert decode_parameters(cbor2.dumps(LEAST | {"sealing": ["x25519"]})) == decode_parameters(cbor2.dumps(LEAST))


@pytest.mark.parametrize("missing", sorted(LEAST))
def test_only_some_fields_may_be_missing(missing: str) -> None:
    data = cbor2.dumps({name: value for name, value in LEAST.items() if name != missing})
    if missing in OPTIONAL:
        decode_parameters(data)
    else:
        with pytest.raises(DecodeError, match=f"missing required field `{missing}`"):
            decode_parameters(data)


@pytest.mark.parametrize("name", sorted(set(LEAST) - {"arq", "application"}))
def test_every_number_has_its_range(name: str) -> None:
    for value in (LEAST[name] - 1, MOST[name] + 1, -(2**64), 2**64 - 1, 1.5, True, "1", None):
        with pytest.raises(DecodeError) as caught:
            decode_parameters(cbor2.dumps(LEAST | {name: value}))
        assert caught.value.reason == "control"


@pytest.mark.parametrize(
    ("name", "value"),
    [("arq", "hope"), ("arq", 1), ("arq", ""), ("application", b"x" * 701), ("application", "text")],
)
def test_the_other_fields_too(name: str, value: object) -> None:
    with pytest.raises(DecodeError):
        decode_parameters(cbor2.dumps(LEAST | {name: value}))


def test_the_longest_parameters_fit_a_base_datagram() -> None:
    data = encode_parameters(Parameters(**MOST))
    for frame in (
        ConnectFrame(2**64 - 1, bytes(16), bytes(20), data),
        AcceptFrame(2**64 - 1, bytes(16), bytes(16), data),
    ):
        assert len(encode_packet(2**64 - 1, 0, encode_frame(frame))) <= BASE_DATAGRAM_BYTES
