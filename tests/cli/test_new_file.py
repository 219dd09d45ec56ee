"""A file appears complete or not at all, and replaces another only on request."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from godwit.cli.new_file import check_free, new_file
from godwit.errors import GodwitError


def test_it_has_its_name_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    with new_file(path, force=False) as part:
        part.write_bytes(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError()])
def test_nothing_is_left_of_what_failed(tmp_path: Path, error: BaseException) -> None:
    def write() -> None:
        with new_file(tmp_path / "export.jsonl", force=False) as part:
            part.write_bytes(b"half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(GodwitError, match="file is not a folder; choose another path"):
        check_free(tmp_path / "file" / "export.jsonl", force=False)


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_bytes(b"old")
    with pytest.raises(GodwitError, match=r"exists already.*--force"), new_file(path, force=False):
        pytest.fail("it began")
    assert path.read_bytes() == b"old"


def test_what_came_meanwhile_is_kept_too(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"

    def write() -> None:
        with new_file(path, force=False) as part:
            part.write_bytes(b"new")
            path.write_bytes(b"other")

    with pytest.raises(GodwitError, match="exists already"):
        write()
    assert path.read_bytes() == b"other"
    assert list(tmp_path.iterdir()) == [path]


def test_force_replaces_at_the_end_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_bytes(b"old")

    def write(*, interrupt: bool) -> None:
        with new_file(path, force=True) as part:
            part.write_bytes(b"new")
            assert path.read_bytes() == b"old"
            if interrupt:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(interrupt=True)
    assert path.read_bytes() == b"old"
    write(interrupt=False)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("force", [True, False])
def test_places_for_no_file(tmp_path: Path, force: bool) -> None:
    with pytest.raises(GodwitError, match="does not exist; create it"):
        check_free(tmp_path / "missing" / "x", force=force)
    with pytest.raises(GodwitError, match="not a regular file"):
        check_free(tmp_path, force=force)
    (tmp_path / "link").symlink_to(os.devnull)
    with pytest.raises(GodwitError, match="not a regular file"):
        check_free(tmp_path / "link", force=force)
    with pytest.raises(GodwitError, match="cannot write"):
        check_free(tmp_path / ("x" * 300), force=force)


def test_the_system_refuses(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    with pytest.raises(GodwitError, match=r"cannot write .*export.jsonl: No such file"), new_file(path, force=False):
        pass  # nothing was written
    assert list(tmp_path.iterdir()) == []


def test_the_words_of_a_library_do_not_come_out(tmp_path: Path) -> None:
    path = tmp_path / "export.parquet"
    with pytest.raises(GodwitError, match=r"export.parquet: No space left on device; "), new_file(path, force=False):
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28]")
    with pytest.raises(GodwitError, match=r"export.parquet: all that is known; "), new_file(path, force=False):
        raise OSError("all that is known")


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *, missing_ok: bool) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    path = tmp_path / "export.jsonl"
    with pytest.raises(GodwitError, match=r"cannot write .*: Read-only file system; "), new_file(path, force=False):
        raise OSError(errno.EROFS, "Read-only file system")
