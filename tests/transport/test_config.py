"""Settings are checked when they are made, and told to the other side as they are."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from godwit import limits
from godwit.errors import ConfigurationError, UsageError
from godwit.transport.config import EndpointConfig
from godwit.wire.parameters import decode_parameters, encode_parameters


def test_the_defaults_are_those_of_limits() -> None:
    config = EndpointConfig()
    assert not config.accepts
    assert config.arq == "selective-repeat"
    assert config.max_datagram_bytes == limits.MAX_DATAGRAM_BYTES
    assert config.idle_timeout_s == limits.IDLE_TIMEOUT_S
    assert config.max_record_bytes == limits.MAX_RECORD_BYTES


@pytest.mark.parametrize(
    "setting",
    [
        {"arq": "go-back-home"},
        {"arq_window": 0},
        {"arq_window": limits.MAX_ARQ_WINDOW + 1},
        {"max_datagram_bytes": limits.BASE_DATAGRAM_BYTES - 1},
        {"max_datagram_bytes": limits.MAX_TRAIN_BYTES + 1},
        {"receive_buffer_bytes": 1000},
        {"channel_window_bytes": 10},
        {"channel_window_bytes": limits.CONNECTION_WINDOW_BYTES + 1},
        {"connection_window_bytes": 2**41},
        {"max_record_bytes": 100},
        {"max_record_bytes": limits.LARGEST_RECORD_BYTES + 1},
        {"max_channels": 0},
        {"max_connections": 0},
        {"max_connections_per_host": 0},
        {"send_buffer_bytes": 0},
        {"idle_timeout_s": 0.0},
        {"idle_timeout_s": float("inf")},
        {"keep_alive_s": 0.0},
        {"keep_alive_s": float("nan")},
        {"reset_key": b"short"},
    ],
    ids=str,
)
def test_out_of_range(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ConfigurationError, match=f"^{name} is") as caught:
        EndpointConfig(**setting)
    assert isinstance(caught.value, UsageError)


def test_a_channels_window_lies_within_the_connections() -> None:
    with pytest.raises(ConfigurationError, match="window_bytes is"):
        EndpointConfig(connection_window_bytes=10)
    with pytest.raises(ConfigurationError, match="channel_window_bytes is"):
        EndpointConfig(connection_window_bytes=10_000, channel_window_bytes=20_000)


def test_at_the_ends_of_the_range() -> None:
    EndpointConfig(
        arq="go-back-n", arq_window=1, max_datagram_bytes=1200, receive_buffer_bytes=2400, channel_window_bytes=1200,
        connection_window_bytes=1200, max_record_bytes=1200, max_channels=1, max_connections=1,
        max_connections_per_host=1, send_buffer_bytes=1200,
        idle_timeout_s=0.001, keep_alive_s=0.001, reset_key=bytes(16),
    )  # fmt: skip
    EndpointConfig(arq_window=limits.MAX_ARQ_WINDOW, max_datagram_bytes=limits.MAX_TRAIN_BYTES, reset_key=b"")


def test_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        EndpointConfig().arq = "go-back-n"  # type: ignore[misc]


def test_what_the_other_side_is_told() -> None:
    config = EndpointConfig(arq="go-back-n", arq_window=7, idle_timeout_s=1.5, max_record_bytes=5000)
    told = decode_parameters(encode_parameters(config.parameters(b"app")))
    assert (told.arq, told.arq_window, told.idle_timeout_ms, told.application) == ("go-back-n", 7, 1500, b"app")
    assert told.max_record_bytes == 5000
    assert told.channel_window_bytes == config.channel_window_bytes
    assert told.connection_window_bytes == config.connection_window_bytes
    assert told.max_channels == config.max_channels
    assert told.receive_buffer_bytes == config.receive_buffer_bytes
    assert told.max_datagram_bytes == config.max_datagram_bytes


def test_stop_and_wait_is_a_window_of_one() -> None:
    assert EndpointConfig(arq="stop-and-wait", arq_window=15).parameters(b"").arq_window == 1


def test_the_extremes_can_be_told() -> None:
    for config in (
        EndpointConfig(idle_timeout_s=0.001),
        EndpointConfig(idle_timeout_s=2.0**32, connection_window_bytes=2**40, receive_buffer_bytes=2**53),
        EndpointConfig(max_record_bytes=limits.LARGEST_RECORD_BYTES, max_channels=2**31, max_connections=2**31),
    ):
        decode_parameters(encode_parameters(config.parameters(b"")))


def test_too_much_for_the_handshake() -> None:
    EndpointConfig().parameters(bytes(limits.MAX_HANDSHAKE_APPLICATION_BYTES))
    with pytest.raises(ConfigurationError, match="application"):
        EndpointConfig().parameters(bytes(limits.MAX_HANDSHAKE_APPLICATION_BYTES + 1))
