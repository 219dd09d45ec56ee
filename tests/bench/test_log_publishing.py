"""Measuring confirmed publishes: with a made-up system whose figures are known."""

from __future__ import annotations

from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest

from godwit.errors import GodwitError
from godwit_bench.log_publishing import Logger, Outcome, measure
from godwit_bench.stage import Stage


def broker(stage: Stage) -> str:
    return str(stage.folder.parent)


def publish(pipe: Pipe, address: str, seconds: float, message_bytes: int) -> None:
    assert (seconds, message_bytes) == (0.5, 100)
    assert Path(address).is_dir()
    pipe.send(Outcome(confirmed=1000, logged=1000, elapsed_s=4.0))


def lose(pipe: Pipe, address: str, seconds: float, message_bytes: int) -> None:
    pipe.send(Outcome(confirmed=1000, logged=999, elapsed_s=4.0))


def test_confirmed_messages_a_second(tmp_path: Path) -> None:
    assert measure(Logger(broker, publish), tmp_path, 0.5, 100) == 250.0
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_lacks_what_was_confirmed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GodwitError, match="1000 messages were confirmed, and 999 are in the log"):
        measure(Logger(broker, lose), tmp_path, 0.5, 100)
