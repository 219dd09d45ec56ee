"""Settings that hold for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A deadline per example measures how busy the machine is, not the code. On a build machine the examples are the same
# in each run, so that a red build is about the change; by hand they are fresh ones, so that they find something new.
# A failing example is printed with the line that replays it (print_blob).
# GODWIT_HYPOTHESIS_PROFILE=soak searches for long.
settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5_000)
settings.load_profile(os.environ.get("GODWIT_HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "local"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests that need one; it is made when the first of them asks."""
    from tests.spark.session import small_session

    import godwit.spark

    session = small_session()
    godwit.spark.register(session)
    yield session
    session.stop()
