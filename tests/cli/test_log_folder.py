"""The log in a folder, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.logs import write_log

from godwit.cli.log_folder import MAX_RANGES, LogFile, log_path, ranges
from godwit.errors import GodwitError, LogVersionError


def test_a_log_is_read(tmp_path: Path) -> None:
    write_log(tmp_path, [[("a", "1")]])
    with LogFile(tmp_path) as log:
        assert log.reader.next_offset() == 1
        assert log.path == tmp_path / "log.sqlite"


def test_no_log(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(GodwitError, match=r"there is no log in .*--data"):
            log_path(folder)
    (tmp_path / "log.sqlite").write_bytes(b"")
    with pytest.raises(LogVersionError):
        LogFile(tmp_path)
    with pytest.raises(GodwitError, match=r"log.sqlite is a file: give the folder"):
        log_path(tmp_path / "log.sqlite")


def test_a_file_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    write_log(tmp_path / "old", [[("a", "1")]])
    write_log(tmp_path / "new", [[("a", "1")], [("a", "2")]])
    with LogFile(tmp_path / "old") as log:
        assert not log.reopen()
        (tmp_path / "new" / "log.sqlite").replace(log.path)
        assert log.reopen()
        assert log.reader.next_offset() == 2
        assert not log.reopen()
        log.path.unlink()
        assert not log.reopen()
        assert log.reader.next_offset() == 2


def test_ranges() -> None:
    assert ranges([(5, 6)]) == "5"
    assert ranges([(5, 7), (1000, 2000)]) == "5 to 6, 1,000 to 1,999"
    many = [(10 * number, 10 * number + 1) for number in range(MAX_RANGES + 2)]
    assert ranges(many).endswith(" and 2 ranges more")
