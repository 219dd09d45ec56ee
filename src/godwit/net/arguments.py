"""Checks of the arguments that applications give to clients. Each raises UsageError with the remedy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import msgspec

from godwit.broker.topics import check_topic
from godwit.client.arguments import check_flag, check_text
from godwit.client.batches import Payload, to_bytes
from godwit.client.properties import MessageOptions, extension_for, make_properties
from godwit.errors import DecodeError, UsageError
from godwit.limits import MAX_WILL_BYTES
from godwit.net.loop import check_timeout
from godwit.transport.config import EndpointConfig
from godwit.wire.control import Will
from godwit.wire.control_base import Qos
from godwit.wire.extension import check_properties

if TYPE_CHECKING:
    from godwit.net.runtime import OnState


def check_path(what: str, value: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the path of a file or a folder. Raise UsageError if it is of another type, or not a path."""
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{what} is {repr(value)[:80]}, of the type {type(value).__name__}: give a path")
    try:
        if b"\0" not in os.fsencode(value):
            return value
    except UnicodeEncodeError:
        pass
    raise UsageError(f"{what} is {repr(value)[:80]}: it has a character that a path does not have")


def check_callback(what: str, value: Callable[..., object] | None) -> None:
    """Raise UsageError if an argument is neither a function nor None."""
    if value is not None and not callable(value):
        raise UsageError(f"{what} is {repr(value)[:80]}, of the type {type(value).__name__}: give a function")


def check_options(
    name: str | None,
    secret: bytes | str,
    timeout_s: float | None,
    session_expiry_s: int,
    send_buffer_bytes: int,
    on_state: OnState | None,
    endpoint: EndpointConfig | None,
) -> None:
    """Raise UsageError for an option of the wrong type; ClientConfig checks the values."""
    if name is not None:
        check_text("name", name)
    if not isinstance(secret, bytes | bytearray | str):
        raise UsageError(f"secret is of the type {type(secret).__name__}: give bytes or a text")
    check_timeout(timeout_s)
    for what, value in (("session_expiry_s", session_expiry_s), ("send_buffer_bytes", send_buffer_bytes)):
        if type(value) is not int:
            raise UsageError(f"{what} is {value!r}, of the type {type(value).__name__}: give a whole number")
    check_callback("on_state", on_state)
    if endpoint is not None and not isinstance(endpoint, EndpointConfig):
        raise UsageError(f"endpoint is of the type {type(endpoint).__name__}: give a godwit.EndpointConfig")


def make_will(
    topic: str,
    payload: Payload,
    *,
    qos: Qos = 1,
    retain: bool = False,
    delay_s: int = 0,
    **options: Unpack[MessageOptions],
) -> Will:
    """Return a will for `connect`: a message that the broker publishes if the client is lost without closing.

    Args:
        topic: Where to publish it.
        payload: The message, as for `publish`.
        qos: 0, 1 or 2, see `publish`.
        retain: Also keep it as the topic's retained message.
        delay_s: Publish it this many seconds after the loss, or when the session ends, and not if the client returns
            before. For a client with a name.
        options: Headers, content type and others, see `MessageOptions`; `expires_s` is counted from the publication.

    Raises:
        UsageError: An argument is invalid.
    """
    extension = extension_for(payload, make_properties(**options))
    will = Will(topic=topic, payload=to_bytes(payload), qos=qos, retain=retain, delay_s=delay_s, extension=extension)
    checked_will(will)
    return will


def checked_will(will: Will | None) -> Will | None:
    """Check the will here: the broker would only report that the login is malformed."""
    if will is None:
        return None
    if not isinstance(will, Will):
        raise UsageError(f"will is of the type {type(will).__name__}: give a godwit.Will(topic=..., payload=...)")
    check_topic(will.topic)
    payload = to_bytes(will.payload)  # a str is accepted here as everywhere else
    if len(payload) > MAX_WILL_BYTES:
        raise UsageError(f"the last will has {len(payload)} bytes: at most {MAX_WILL_BYTES}")
    if type(will.delay_s) is not int or not 0 <= will.delay_s < 2**32:
        raise UsageError(f"the last will has the delay {will.delay_s!r}: give a whole number of seconds, 0 or more")
    try:
        check_properties(will.extension)
    except DecodeError as error:
        raise UsageError(f"the last will is invalid: {error}; make it with godwit.make_will()") from None
    check_flag("retain of the last will", will.retain)
    if will.qos not in (0, 1, 2):
        raise UsageError(f"the last will has QoS {will.qos!r}: choose 0, 1 or 2")
    return msgspec.structs.replace(will, payload=payload)
