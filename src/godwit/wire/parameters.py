"""What each side tells of itself in the handshake: the CBOR map in connect and accept."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    GO_BACK_N_WINDOW,
    LARGEST_DATAGRAM_BYTES,
    LARGEST_RECORD_BYTES,
    MAX_ARQ_WINDOW,
    MAX_HANDSHAKE_APPLICATION_BYTES,
)
from godwit.wire import cbor

Arq: TypeAlias = Literal["selective-repeat", "go-back-n", "stop-and-wait"]

_Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_Suite: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=2**16)]
_SMALLEST_BUFFER_BYTES: Final = 2 * BASE_DATAGRAM_BYTES


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The sender's own limits; `arq` and `arq_window` are the client's choice for both directions."""

    arq: Arq = "selective-repeat"
    arq_window: Annotated[int, msgspec.Meta(ge=1, le=MAX_ARQ_WINDOW)] = GO_BACK_N_WINDOW
    max_datagram_bytes: Annotated[int, msgspec.Meta(ge=BASE_DATAGRAM_BYTES, le=LARGEST_DATAGRAM_BYTES)]
    """The longest datagram that it can take."""
    receive_buffer_bytes: Annotated[int, msgspec.Meta(ge=_SMALLEST_BUFFER_BYTES, le=2**53)]
    """What its kernel really gave it: bursts longer than a part of this are lost."""
    channel_window_bytes: _Bytes
    """The credit that every channel towards it starts with."""
    connection_window_bytes: _Bytes
    """The credit that the connection towards it starts with."""
    max_record_bytes: Annotated[int, msgspec.Meta(ge=BASE_DATAGRAM_BYTES, le=LARGEST_RECORD_BYTES)]
    max_channels: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    """How many channels towards it may be open at once."""
    idle_timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=2**42)]
    application: Annotated[bytes, msgspec.Meta(max_length=MAX_HANDSHAKE_APPLICATION_BYTES)] = b""
    """The application's data for the handshake."""
    seal: Annotated[tuple[_Suite, ...], msgspec.Meta(max_length=8)] | msgspec.UnsetType = msgspec.UNSET
    """In connect: the AEAD suites that the client can seal packets with, the preferred one first. In accept: the one
    that the server has chosen. Absent: packets are plain."""


def encode_parameters(parameters: Parameters) -> bytes:
    return cbor.encode(parameters)


def decode_parameters(data: bytes) -> Parameters:
    """The parameters, every field within its range; DecodeError otherwise."""
    return cbor.decode(data, Parameters)
