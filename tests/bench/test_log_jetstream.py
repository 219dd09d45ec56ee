"""JetStream as a system under test, run briefly: that messages are confirmed and in the stream, never how fast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from godwit_bench import peers
from godwit_bench.log_jetstream import jetstream, jetstream_counted
from godwit_bench.log_publishing import LOG_FOLDER, Logger, measure
from godwit_bench.stage import Stage

SERVER = peers.find("nats-server") or ""
pytestmark = pytest.mark.skipif(not SERVER, reason="needs the program nats-server")


@pytest.mark.parametrize("make", [jetstream, jetstream_counted])
def test_messages_are_confirmed_and_kept(make: Callable[[str], Logger], tmp_path: Path) -> None:
    assert measure(make(SERVER), tmp_path, 0.1, 100) > 100


def test_its_store_is_on_the_disk_that_is_measured(tmp_path: Path) -> None:
    with Stage(within=tmp_path) as stage:
        jetstream(SERVER).broker(stage)
        assert (stage.folder / LOG_FOLDER / "jetstream").is_dir()
