"""A file is there whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from godwit.errors import DiskError, StorageError
from godwit.store.draft import BESIDE, drafting, put


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_draft_gets_its_name_at_the_end(tmp_path: Path) -> None:
    with drafting(tmp_path / "out", like=Path(__file__)) as draft:
        draft.write_text("content")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out").read_text() == "content"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_one_that_was_not_finished(tmp_path: Path, error: type[BaseException]) -> None:
    def write() -> None:
        with drafting(tmp_path / "out", like=Path(__file__)) as draft:
            for ending in ("", *BESIDE):
                Path(f"{draft}{ending}").write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert names(tmp_path) == []


def test_what_an_earlier_one_left_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "out.draft").write_text("old")
    (tmp_path / "out.draft-wal").write_text("old")
    with drafting(tmp_path / "out", like=Path(__file__)) as draft:
        assert names(tmp_path) == [draft.name]
        assert draft.read_bytes() == b""
    assert names(tmp_path) == ["out"]


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(StorageError, match="out is there already"), drafting(tmp_path / "out", like=Path(__file__)):
        pytest.fail("it must not begin")
    assert (tmp_path / "out").read_text() == "mine"


def test_trouble_of_the_system_is_told_in_our_words(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "out"
    with (
        pytest.raises(DiskError, match=r"missing/out cannot be written: No such file"),
        drafting(missing, like=Path(__file__)) as draft,
    ):
        draft.write_text("content")


def test_put_takes_the_place_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("new")
    (tmp_path / "old").write_text("old")
    put(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "new"
    assert names(tmp_path) == ["old"]


def test_a_draft_has_the_rights_of_the_other_file(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    other.chmod(0o640)
    with drafting(tmp_path / "out", like=other) as draft:
        assert stat.S_IMODE(draft.stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640
    assert (tmp_path / "out").stat().st_uid == other.stat().st_uid
