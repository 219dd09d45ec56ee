"""The folder of stages: complete or not there, bounded, and empty in the end."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from godwit.archive import stages
from godwit.archive.requests import AbortRequest, BadRequestError, CommitRequest, StagedPart, StageRequest
from godwit.archive.stages import STAGE_EXPIRY_S, Stages, StagesFullError
from godwit.errors import DiskError


def put(folder: Stages, data: bytes, *, batch: int = 1, partition: int = 0, attempt: int = 0, query: str = "q") -> None:
    with folder.begin(StageRequest(query, batch, partition, attempt, "p")) as stage:
        stage.write(data)
        stage.finish()


def commit(*parts: tuple[int, int], batch: int = 1, query: str = "q") -> CommitRequest:
    return CommitRequest(query, batch, tuple(StagedPart(*part) for part in parts))


def contents(path: Path) -> list[bytes]:
    return sorted(file.read_bytes() for file in path.iterdir())


def test_a_finished_stage_is_found_in_the_order_of_partitions(tmp_path: Path) -> None:
    folder = Stages(tmp_path / "stages")
    for partition in (10, 2, 1):
        put(folder, b"%d" % partition, partition=partition)
    names = folder.files_of(commit((10, 0), (1, 0), (2, 0)))
    assert names is not None
    assert [(tmp_path / "stages" / name).read_bytes() for name in names] == [b"1", b"2", b"10"]
    assert (tmp_path / "stages").stat().st_mode & 0o777 == 0o700


def test_one_that_is_left_in_the_middle_was_never_there(tmp_path: Path) -> None:
    folder = Stages(tmp_path)
    with folder.begin(StageRequest("q", 1, 0, 0, "p")) as stage:
        stage.write(b"x")
    assert folder.files_of(commit((0, 0))) is None
    assert not list(tmp_path.iterdir())


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    folder = Stages(tmp_path)
    put(folder, b"x")
    assert folder.files_of(commit((0, 0), (1, 0))) is None
    assert folder.files_of(commit((0, 1))) is None
    assert folder.files_of(commit((0, 0), batch=2)) is None
    assert folder.files_of(commit((0, 0), query="other")) is None
    assert folder.files_of(commit()) == []
    next(tmp_path.iterdir()).unlink()
    assert folder.files_of(commit((0, 0))) is None


def test_the_same_attempt_again_replaces(tmp_path: Path) -> None:
    folder = Stages(tmp_path)
    put(folder, b"one")
    put(folder, b"two")
    assert contents(tmp_path) == [b"two"]


def test_a_new_process_finds_what_is_complete(tmp_path: Path) -> None:
    folder = Stages(tmp_path)
    put(folder, b"x")
    (tmp_path / "7.part").write_bytes(b"half")
    folder = Stages(tmp_path)
    assert folder.files_of(commit((0, 0))) is not None
    assert contents(tmp_path) == [b"x"]


def test_abort_removes_a_batch_or_some_parts_of_it(tmp_path: Path) -> None:
    folder = Stages(tmp_path)
    for batch, partition, attempt in ((1, 0, 0), (1, 0, 1), (1, 1, 0), (11, 0, 0), (2, 0, 0)):
        put(folder, b"%d" % batch, batch=batch, partition=partition, attempt=attempt)
    put(folder, b"other", query="other")
    assert folder.abort(AbortRequest("q", 1, (StagedPart(1, 0), StagedPart(5, 5)))) == 1
    assert folder.abort(AbortRequest("q", 1)) == 2
    assert folder.abort(AbortRequest("q", 1)) == 0
    assert contents(tmp_path) == [b"11", b"2", b"other"]


def test_what_nobody_names_expires(tmp_path: Path) -> None:
    folder = Stages(tmp_path)
    put(folder, b"old")
    put(folder, b"named", batch=2)
    for file in tmp_path.iterdir():
        os.utime(file, (1000, 1000))
    assert folder.expire(1000 + STAGE_EXPIRY_S) == 0
    assert folder.files_of(commit((0, 0), batch=2)) is not None  # the broker reads it now
    assert folder.expire(1001 + STAGE_EXPIRY_S) == 1
    assert contents(tmp_path) == [b"named"]


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MAX_STAGE_BYTES", 10)
    monkeypatch.setattr(stages, "MAX_COMMIT_BYTES", 15)
    monkeypatch.setattr(stages, "MAX_STAGED_BYTES", 25)
    monkeypatch.setattr(stages, "MAX_STAGES", 4)
    folder = Stages(tmp_path)
    with pytest.raises(BadRequestError, match="at most 10 bytes: use more partitions"):
        put(folder, b"x" * 11)
    put(folder, b"x" * 10)
    put(folder, b"x" * 10, partition=1)
    with pytest.raises(BadRequestError, match="has 20 bytes: a commit takes at most 15; make smaller batches"):
        folder.files_of(commit((0, 0), (1, 0)))
    with pytest.raises(StagesFullError, match="more than 25 bytes"):
        put(folder, b"x" * 6, partition=2)
    put(folder, b"x", partition=2)
    with folder.begin(StageRequest("q", 1, 3, 0, "p")), pytest.raises(StagesFullError, match="4 stages wait"):
        folder.begin(StageRequest("q", 1, 4, 0, "p"))
    folder.abort(AbortRequest("q", 1))
    put(folder, b"x" * 10)
    assert contents(tmp_path) == [b"x" * 10]


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Stages(tmp_path)

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskError, match=r"cannot keep the stage .* \(No space left on device\): free space"):
        put(folder, b"x")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    put(folder, b"x")
    assert contents(tmp_path) == [b"x"]


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    folder = Stages(tmp_path / "stages")
    (tmp_path / "stages").rmdir()
    with pytest.raises(DiskError, match="cannot make the stage"):
        folder.begin(StageRequest("q", 1, 0, 0, "p"))
    (tmp_path / "stages").mkdir()
    put(folder, b"x")
