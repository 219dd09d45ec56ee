"""Godwit with its log on disk as a system under test, run briefly: that messages are confirmed and kept."""

from __future__ import annotations

from pathlib import Path

from godwit_bench.log_godwit import durable_broker, godwit_logger
from godwit_bench.log_publishing import LOG_FOLDER, measure
from godwit_bench.stage import Stage


def test_messages_are_confirmed_and_kept(tmp_path: Path) -> None:
    assert measure(godwit_logger(), tmp_path, 0.1, 100) > 100
    assert measure(godwit_logger(3), tmp_path, 0.1, 8192) > 10


def test_its_log_is_on_the_disk_that_is_measured(tmp_path: Path) -> None:
    with Stage(within=tmp_path) as stage:
        godwit_logger().broker(stage)
        assert (stage.folder / LOG_FOLDER / "log.sqlite").is_file()


def test_a_broker_with_its_archive(tmp_path: Path) -> None:
    with Stage(within=tmp_path) as stage:
        address, archive = durable_broker(stage, stage.folder / LOG_FOLDER, with_archive=True)
        assert address.startswith("udp://127.0.0.1:")
        assert archive.startswith("grpc://127.0.0.1:")
