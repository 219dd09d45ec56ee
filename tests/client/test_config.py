"""The settings of a client are checked when they are made."""

from __future__ import annotations

import pytest

from godwit.client.config import ClientConfig
from godwit.errors import ConfigurationError
from godwit.limits import MAX_CLIENT_NAME_BYTES, MAX_SECRET_BYTES
from godwit.transport.config import EndpointConfig


def test_nothing_has_to_be_set() -> None:
    assert ClientConfig().name is None
    assert ClientConfig(name="n" * MAX_CLIENT_NAME_BYTES, secret=bytes(MAX_SECRET_BYTES)).name is not None


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: ClientConfig(name=""), "this one 0"),
        (lambda: ClientConfig(name="\u00e4" * 129), "258"),
        (lambda: ClientConfig(name="\ud800"), "UTF-8"),
        (lambda: ClientConfig(secret=b"s"), "give a name too"),
        (lambda: ClientConfig(name="n", secret=bytes(MAX_SECRET_BYTES + 1)), "at most"),
        (lambda: ClientConfig(session_expiry_s=-1), "session_expiry_s"),
        (lambda: ClientConfig(session_expiry_s=2**32), "session_expiry_s"),
        (lambda: ClientConfig(send_buffer_bytes=0), "send_buffer_bytes"),
        (lambda: ClientConfig(retry_min_s=0), "retry_min_s"),
        (lambda: ClientConfig(retry_min_s=2, retry_max_s=1), "retry_max_s 1"),
        (lambda: ClientConfig(endpoint=EndpointConfig(accepts=True)), "endpoint.accepts"),
    ],
)
def test_invalid_settings_are_refused_with_their_name(make: object, complaint: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError, match=complaint):
        make()
