"""A failed request carries what the reply will say."""

from __future__ import annotations

from godwit.broker.ports import RequestFailure
from godwit.wire.control import Code


def test_it_has_code_and_text() -> None:
    failure = RequestFailure(Code.BAD_TOPIC, "no")
    assert (failure.code, failure.text, str(failure)) == (Code.BAD_TOPIC, "no", "no")
