"""So many at once, and no more."""

from __future__ import annotations

import pytest

from godwit.archive.gate import BusyError, Gate


def test_the_last_place_and_the_next_one() -> None:
    gate = Gate("readings", 2)
    with gate.entered(), gate.entered():
        assert gate.inside == 2
        with pytest.raises(BusyError, match="2 readings are under way already: try again"), gate.entered():
            pass
        assert gate.inside == 2
    assert gate.inside == 0


def test_a_place_is_free_again_after_an_error() -> None:
    gate = Gate("readings", 1)
    with pytest.raises(ZeroDivisionError), gate.entered():
        raise ZeroDivisionError
    with gate.entered():
        assert gate.inside == 1
