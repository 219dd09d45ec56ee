"""The package itself: its public names, and that it imports nothing before they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import godwit
import godwit.sync
from godwit import errors
from godwit.net import blocking, client, publisher


def test_everything_it_offers_is_there() -> None:
    for name in godwit.__all__:
        assert getattr(godwit, name) is not None
        assert name in dir(godwit)
    assert godwit.connect is client.connect
    assert godwit.sync.connect is blocking.connect
    assert godwit.BufferFull is publisher.BufferFull is errors.BufferFullError
    assert godwit.AccessError is errors.AccessError


def test_unknown_names_raise_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'publish'"):
        _ = godwit.publish  # type: ignore[attr-defined]


def test_it_imports_no_layer_by_itself() -> None:
    program = "import sys, godwit; print([name for name in sys.modules if name.startswith('godwit.')])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "['godwit.compiled_core']\n"
