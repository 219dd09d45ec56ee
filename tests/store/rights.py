"""Tests may run with the rights of the system's owner, for whom nothing is read-only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NOBODY: Final = 65534


@contextmanager
def ordinary_rights() -> Iterator[None]:
    """Run the block without the rights of root; other users keep theirs."""
    owner = os.geteuid()
    if owner == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(owner)
