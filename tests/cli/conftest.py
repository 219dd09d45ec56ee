"""Settings and a broker process that the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.real import broker

from godwit.cli import connection


@pytest.fixture(autouse=True)
def no_notices_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run in this process print no line about waiting: on a busy machine every command may have to wait.

    Tests of these lines set the delays again.
    """
    monkeypatch.setattr(connection, "NOTICE_DELAY_S", 3600.0)
    monkeypatch.setattr(connection, "REPLY_NOTICE_DELAY_S", 3600.0)


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    """Where a broker listens, with everything allowed. Tests use topics of their own."""
    with broker() as found:
        yield found


@pytest.fixture(scope="package")
def nowhere() -> str:
    """An address without a broker."""
    return "127.0.0.1:9"
