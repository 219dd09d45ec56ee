"""What stands on a channel of data: batches, or a control message between them.

A batch never has QoS 3, so its first byte is below 0xC0; a record that begins with 0xFF is a control message.
"""

from __future__ import annotations

from typing import Final

from godwit.errors import DecodeError
from godwit.wire.control import ControlMessage, UnknownKind, decode_control, encode_control

IN_BAND: Final = 0xFF
_MARK: Final = bytes((IN_BAND,))


def encode_in_band(message: ControlMessage) -> bytes:
    """A control message as a record of a channel of data."""
    return _MARK + encode_control(message)


def is_in_band(record: bytes) -> bool:
    return record[:1] == _MARK


def decode_in_band(record: bytes) -> ControlMessage | UnknownKind:
    """The message of a record that is_in_band; DecodeError otherwise."""
    if not is_in_band(record):
        raise DecodeError("control", "a record without the mark of a control message")
    return decode_control(record[1:])
