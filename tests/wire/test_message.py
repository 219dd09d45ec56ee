"""What all control messages share."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from godwit.wire.control import ControlMessage
from godwit.wire.control_base import BaseControlMessage, Channel, CodeNumber, Count, Fraction, Qos, Request


@pytest.mark.parametrize("kind", get_args(ControlMessage))
def test_every_control_message_is_tagged_by_its_kind(kind: type[msgspec.Struct]) -> None:
    config = kind.__struct_config__
    assert issubclass(kind, BaseControlMessage)
    assert (config.tag_field, config.frozen, config.omit_defaults) == ("kind", True, True)
    assert "kind" not in kind.__struct_fields__  # a field of this name could not be told from the tag


@pytest.mark.parametrize(
    ("kind", "ends", "beyond"),
    [
        (Request, (0, 2**32 - 1), (-1, 2**32)),
        (Channel, (1, 2**32 - 1), (0, 2**32)),
        (Count, (0, 2**63 - 1), (-1, 2**63)),
        (CodeNumber, (0, 2**16 - 1), (-1, 2**16)),
        (Fraction, (0.0, 1.0), (-0.001, 1.001, float("nan"), float("inf"))),
        (Qos, (0, 2), (-1, 3)),
    ],
)
def test_numbers_have_bounds(kind: object, ends: tuple[float, ...], beyond: tuple[float, ...]) -> None:
    for value in ends:
        assert msgspec.convert(value, kind) == value
    for value in beyond:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, kind)
