"""The folder of a broker."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.rights import ordinary_rights

from godwit.errors import DiskError, LogDamagedError, LogInUseError
from godwit.store.folder import RESERVE_BYTES, DataFolder, is_in_use, sign_of_log
from godwit.store.sqlite_pages import PAGE_BYTES


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


# -- another log in the place of the log ------------------------------------------------------------------------------


NEW = (b"SQLite format 3\0" + bytes(12) + (1).to_bytes(4, "big")).ljust(PAGE_BYTES, b"\0")
"""A file of one page."""


class Killed(BaseException):
    """Nothing is done after it."""


def fill(folder: DataFolder) -> Path:
    """An old log with its WAL, and a new one."""
    folder.log_path.write_bytes(b"old")
    Path(f"{folder.log_path}-wal").write_bytes(b"old WAL")
    new = folder.path / "new"
    new.write_bytes(NEW)
    return new


def logs_in(folder: DataFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.path.glob("*log.sqlite*")}


def test_a_log_takes_the_place_of_another_and_its_wal(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.open()
    folder.replace_log(fill(folder))
    assert logs_in(folder) == {"log.sqlite": NEW}
    folder.close()


@pytest.mark.parametrize("steps", range(8))
def test_whoever_is_killed_the_log_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Never one without its WAL, or with that of the other."""
    folder = DataFolder(tmp_path)
    folder.open()
    new = fill(folder)
    left = steps

    def counting(name: str) -> None:
        done = getattr(Path, name)

        def step(path: Path, *arguments: object, **more: object) -> object:
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            return done(path, *arguments, **more)

        monkeypatch.setattr(Path, name, step)

    counting("unlink")
    counting("replace")
    try:
        folder.replace_log(new)
    except Killed:
        pass
    else:
        assert steps >= 5
    monkeypatch.undo()
    folder.close()
    folder.open()  # as the next broker does
    old = {"log.sqlite": b"old", "log.sqlite-wal": b"old WAL"}
    assert logs_in(folder) == ({"log.sqlite": NEW} if steps else old)
    folder.close()


@pytest.mark.parametrize("damaged", [b"", NEW[:90], NEW[:-1], bytes(PAGE_BYTES), NEW + NEW])
def test_a_damaged_log_replaces_no_other(tmp_path: Path, damaged: bytes) -> None:
    folder = DataFolder(tmp_path)
    fill(folder)
    (tmp_path / "log.sqlite.next").write_bytes(damaged)
    before = logs_in(folder)
    with pytest.raises(LogDamagedError, match=r"log.sqlite.next, which was to replace log.sqlite, is damaged. Move it"):
        folder.open()
    assert logs_in(folder) == before
    assert not is_in_use(tmp_path)
    (tmp_path / "log.sqlite.next").unlink()
    folder.open()
    folder.close()


@pytest.mark.parametrize("content", [None, b"", b"x" * 10])
def test_the_reserve_has_its_size(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "reserve").write_bytes(content)
    folder = DataFolder(tmp_path)
    folder.open()
    assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
    folder.close()


def test_a_folder_remembers_that_it_had_a_log(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.open()
    assert sign_of_log(folder.log_path) is None
    for _ in range(2):
        folder.mark_log()
        assert sign_of_log(folder.log_path) == "lock"
    folder.close()
    folder.open()
    folder.close()
    assert sign_of_log(folder.log_path) == "lock"


def test_a_log_that_cannot_be_replaced_is_told(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.open()
    with pytest.raises(DiskError, match="cannot be used: No such file"):
        folder.replace_log(tmp_path / "nothing")
    (tmp_path / "log.sqlite.next").mkdir()
    (tmp_path / "log.sqlite").write_bytes(b"old")
    folder.close()
    with pytest.raises(DiskError, match="cannot be used"):
        folder.open()
    assert not is_in_use(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="is a file: give the folder"):
        DataFolder(tmp_path / "file").open()


def test_a_lock_makes_nothing_else(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.lock()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    with pytest.raises(LogInUseError):
        DataFolder(tmp_path).open()
    folder.close()


def test_where_files_cannot_be_locked_the_module_is_there() -> None:
    """A broker in memory runs there, because it needs no lock."""
    program = "import sys; sys.modules['fcntl'] = None; import godwit.store.folder, godwit.net.service"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
