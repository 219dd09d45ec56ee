"""A file appears complete or not at all."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest

from godwit.errors import DiskError, StorageError
from godwit.store import atomic_file
from godwit.store.atomic_file import create_file, move_into_place, write_bytes
from godwit.store.witness import COMPANIONS


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_draft_gets_its_name_at_the_end(tmp_path: Path) -> None:
    with create_file(tmp_path / "out", like=Path(__file__), companions=COMPANIONS) as draft:
        draft.write_text("content")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out").read_text() == "content"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_one_that_was_not_finished(tmp_path: Path, error: type[BaseException]) -> None:
    def write() -> None:
        with create_file(tmp_path / "out", like=Path(__file__), companions=COMPANIONS) as draft:
            for ending in ("", *COMPANIONS):
                Path(f"{draft}{ending}").write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert names(tmp_path) == []


def test_what_an_earlier_one_left_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "out.draft").write_text("old")
    (tmp_path / "out.draft-wal").write_text("old")
    with create_file(tmp_path / "out", like=Path(__file__), companions=COMPANIONS) as draft:
        assert names(tmp_path) == [draft.name]
        assert draft.read_bytes() == b""
    assert names(tmp_path) == ["out"]


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with (
        pytest.raises(StorageError, match="out is there already"),
        create_file(tmp_path / "out", like=Path(__file__), companions=COMPANIONS),
    ):
        pytest.fail("it must not begin")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_file_is_replaced_on_demand_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o600)
    with create_file(path, like=path, replaces=True) as draft:
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
        draft.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    assert names(tmp_path) == ["out"]


def test_trouble_of_the_system_is_told_in_our_words(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "out"
    with (
        pytest.raises(DiskError, match=r"missing/out cannot be written: No such file"),
        create_file(missing, like=Path(__file__)) as draft,
    ):
        draft.write_text("content")


def test_a_file_is_moved_into_the_place_of_another(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("new")
    (tmp_path / "old").write_text("old")
    move_into_place(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "new"
    assert names(tmp_path) == ["old"]


def test_a_draft_has_the_rights_of_the_other_file(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    other.chmod(0o640)
    with create_file(tmp_path / "out", like=other) as draft:
        assert stat.S_IMODE(draft.stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640
    assert (tmp_path / "out").stat().st_uid == other.stat().st_uid


def test_a_new_file_replaces_no_other(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("new")
    (tmp_path / "old").write_text("old")
    with pytest.raises(FileExistsError):
        move_into_place(tmp_path / "new", tmp_path / "old", is_new=True)
    assert (tmp_path / "old").read_text() == "old"
    move_into_place(tmp_path / "new", tmp_path / "other", is_new=True)
    assert names(tmp_path) == ["old", "other"]


def test_small_files_are_for_their_owner_only(tmp_path: Path) -> None:
    (tmp_path / "key.new").write_text("left by a killed process, longer than the key")
    for content in (b"key", b"other"):
        write_bytes(tmp_path / "key", content)
        assert (tmp_path / "key").read_bytes() == content
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert names(tmp_path) == ["key"]


@pytest.mark.parametrize(("number", "is_ignored"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_some_file_systems_cannot_sync_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_ignored: bool
) -> None:
    def refuse(path: Path) -> None:
        if path.is_dir():
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic_file, "sync", refuse)
    (tmp_path / "new").write_text("content")
    with nullcontext() if is_ignored else pytest.raises(OSError, match=os.strerror(number)):
        move_into_place(tmp_path / "new", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "content"
