"""The folder of a broker."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.rights import ordinary_rights

from godwit.errors import DiskError, LogInUseError
from godwit.store.folder import DataFolder, is_in_use


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_made_for_its_owner_only(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "some" / "where")
    folder.open()
    assert mode_of(folder.path) == mode_of(folder.stages_path) == 0o700
    assert (folder.log_path.parent, folder.log_path.name) == (folder.path, "log.sqlite")
    folder.close()
    folder.open()  # what is there is taken as it is
    folder.close()


def test_a_second_one_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path / "x"), DataFolder(tmp_path / "x")
    assert not is_in_use(first.path)
    first.open()
    assert is_in_use(first.path)
    with pytest.raises(LogInUseError, match=r"works in the folder .*/x: stop it, or"):
        second.open()
    first.close()
    first.close()
    assert not is_in_use(first.path)
    second.open()
    with pytest.raises(LogInUseError):
        first.open()
    second.close()


def test_a_folder_of_somebody_else_may_be_in_use(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "x")
    folder.open()
    folder.close()
    folder.path.chmod(0o000)
    with ordinary_rights():
        assert is_in_use(folder.path)
    folder.path.chmod(0o700)


def test_another_process_is_kept_out_and_its_death_lets_go(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from godwit.store.folder import DataFolder;"
        "folder = DataFolder(Path(sys.argv[1])); folder.open(); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        assert is_in_use(tmp_path)
        with pytest.raises(LogInUseError):
            DataFolder(tmp_path).open()
        process.kill()
    assert not is_in_use(tmp_path)


def test_the_key_is_made_once(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.open()
    assert folder.reset_key(b"a" * 32) == b"a" * 32
    assert folder.reset_key(b"b" * 32) == b"a" * 32
    assert mode_of(tmp_path / "reset-key") == 0o600
    (tmp_path / "reset-key").write_bytes(b"short")
    assert folder.reset_key(b"c" * 32) == b"c" * 32
    assert mode_of(tmp_path / "reset-key") == 0o600
    folder.close()


def test_a_path_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"data folder .*/file/x cannot be used: Not a directory. Check the path"):
        DataFolder(tmp_path / "file" / "x").open()
    (tmp_path / "reset-key").mkdir()
    folder = DataFolder(tmp_path)
    folder.open()
    with pytest.raises(DiskError, match="Is a directory"):
        folder.reset_key(b"a")
    folder.close()
