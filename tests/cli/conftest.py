"""A broker process that the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.real import broker


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    """Where a broker listens, with everything allowed. Tests use topics of their own."""
    with broker() as found:
        yield found


@pytest.fixture(scope="package")
def nowhere() -> str:
    """An address without a broker."""
    return "127.0.0.1:9"
