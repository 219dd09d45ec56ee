"""Tests may run with the rights of the system's owner, for whom nothing is read-only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NOBODY: Final = 65534


@contextmanager
def ordinary_rights() -> Iterator[None]:
    """Those of somebody who owns nothing, if there are more; else what there is."""
    owner = os.geteuid()
    if owner == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(owner)
